"""`glob` and `grep` over the tree of a store.

All keys below a directory are read at once, in one range; of their values only those that may match. A key can be shown
under another name than its own, but mostly is not: so keys are sifted by what they could be called, and what they are
called is found out for the rest. When the budget is spent (`base/budget.py`), what was found by then is named and given
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusebackend import text
from fusebackend.backends.store.names import FILE_MARK, FOREIGN_SUFFIX, is_name
from fusebackend.backends.store.tree import Node, StoreTree
from fusebackend.backends.store.values import bytes_of
from fusebackend.base import budget, paths
from fusebackend.base.budget import Spent
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import FileInfo


def find_files(tree: StoreTree, path: AgentPath, matcher: Matcher) -> Iterator[FileInfo]:
    """The files at or below a path that match, sorted by path; `Spent` may end it. Of a file, the name is matched."""
    left, node = budget.current(), tree.find(path)
    if node is None:
        return
    if not node.is_dir:
        if matcher.matches(paths.parent_and_name(path)[1]):
            yield node.info(path)
        return
    rows = tree.rows_below(node)
    wanted = {row.key for row in left.metered(rows) if _may_match(matcher, row.key, _base(node))}
    for found, file in left.metered(tree.files_below(path, node, rows, wanted)):
        if matcher.matches(_relative(found, path)):
            yield file.info(found)


def grep_files(
    tree: StoreTree, pattern: str, path: AgentPath, matcher: Matcher | None, limit: int | None
) -> Iterator[tuple[str, Sequence[tuple[int, str]]]]:
    """The lines with a literal in these files, file by file; about `limit` of them is enough."""
    left, node = budget.current(), tree.find(path)
    if node is None:
        return
    if not node.is_dir:
        if matcher is None or matcher.matches(paths.parent_and_name(path)[1]):
            for record in tree.items.fetch([node.key]).values():
                yield path, text.grep_lines(bytes_of(record.value)[0], pattern, limit)
        return
    rows = tree.rows_below(node)
    asked = [row for row in rows if matcher is None or _may_match(matcher, row.key, _base(node))]
    hits: dict[str, list[tuple[int, str]]] = {}
    count, spent = 0, False
    try:
        for row, record in left.metered(tree.items.records(asked)):
            lines = text.grep_lines(bytes_of(record.value)[0], pattern, limit)
            if lines:
                hits[row.key] = lines
                count += len(lines)
            if limit is not None and count >= limit and matcher is None:
                break
    except Spent:
        spent = True
    for found, file in tree.files_below(path, node, rows, set(hits)):
        if matcher is None or matcher.matches(_relative(found, path)):
            yield found, hits[file.key]
    if spent:
        raise Spent


def _base(node: Node) -> str:
    """What the keys below a directory start with, as if all had a leading slash."""
    assert node.place is not None, "only directories have keys below them"
    return node.place.rooted if node.place.rooted is not None else f"/{node.place.bare}"


def _relative(path: str, directory: AgentPath) -> str:
    return path[len(directory) :].lstrip("/")


def _may_match(matcher: Matcher, key: str, base: str) -> bool:
    """Could this key be shown under a path that matches? Yes, when in doubt."""
    relative = key[len(base) :] if key.startswith(base) else key[len(base) - 1 :]
    if "%" in relative or not all(map(is_name, relative.split("/"))):
        return True
    return any(matcher.matches(relative + end) for end in ("", FOREIGN_SUFFIX, FILE_MARK, FILE_MARK + FOREIGN_SUFFIX))
