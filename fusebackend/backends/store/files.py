"""`StoreFiles`: reading, changing and searching the files of one namespace.

Searches read all keys below a directory at once, in one range, and only the values that may match. A key may be shown
under another name than its own, but mostly is not: so keys are filtered by the names they may have, and only the names
of the rest are worked out. When the budget is spent (`base/budget.py`), the files found by then are returned.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from fusebackend import text
from fusebackend.backends.store.items import Change, Conflict, Items, Record, Row
from fusebackend.backends.store.tree import StoreTree
from fusebackend.backends.store.values import Form, bytes_of, file_bytes, forms_of, written
from fusebackend.base import budget, errors, paths
from fusebackend.base.budget import Spent
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import FileInfo
from fusebackend.protocol.versions import digest_of
from fusebackend.remote.agent_verbs import Loaded
from fusebackend.remote.keyed import Keyed, is_path, is_text, may_be_shown_as

FileFormat: TypeAlias = Literal["v1", "v2"]

ATTEMPTS = 10
"""How often `put` is repeated when another program changes the file meanwhile."""

SUFFIXES = tuple(form.value for form in Form)

READ_ONLY = "It is a value of the store that is no file, and can be read only"


def checked_file_format(value: FileFormat) -> FileFormat:
    """ValueError for any other format."""
    if value not in ("v1", "v2"):
        raise ValueError(f"file_format must be 'v1' or 'v2', not {value!r}")
    return value


class File(NamedTuple):
    """A file as it was found."""

    key: str
    record: Record
    form: Form
    data: bytes


class StoreFiles:
    """See the module's docstring. Its changes notify the other backends over the same items (`Items.hub`).

    Args:
        file_format: the format of new values, `"v2"` or `"v1"`.
    """

    def __init__(self, items: Items, file_format: FileFormat) -> None:
        self._items = items
        self._file_format: FileFormat = file_format

    def tree(self) -> StoreTree:
        """The tree for one verb."""
        return StoreTree(self._items.moment())

    def entries(self, path: AgentPath) -> list[FileInfo]:
        tree = self.tree()
        directory = tree.find(path)
        if directory is None:
            raise errors.oserror(errno.ENOENT)
        if not directory.is_dir:
            raise errors.oserror(errno.ENOTDIR)
        return [tree.info(paths.join(path, name), node) for name, node in tree.children(directory).items()]

    def load(self, path: AgentPath, tree: StoreTree | None = None) -> Loaded:
        file = self._kept(tree or self.tree(), path)
        if file is None:
            raise errors.oserror(errno.ENOENT)
        if file.form is not Form.FILE:
            return Loaded(file.data, None, file.record.updated_at)
        times = (file.record.value.get(name) for name in ("created_at", "modified_at"))
        return Loaded(file.data, *(str(time) if time else None for time in times))

    def put(self, path: AgentPath, data: bytes, *, replace: bool) -> None:
        """Write a file, also while others change it. EEXIST, EBUSY, and as `StoreTree.new_keys`."""
        for _ in range(ATTEMPTS):
            tree = self.tree()
            file = self._kept(tree, path)
            if file is not None and not replace:
                raise errors.oserror(errno.EEXIST)
            try:
                self._swap(tree, [self._change(tree, path, file, data)], path)
            except Conflict:
                continue
            return
        raise errors.oserror(errno.EBUSY)

    def put_if(self, path: AgentPath, data: bytes, digest: bytes | None) -> None:
        """Write a file if the present one has this digest (None: if there is none). Conflict if not."""
        tree = self.tree()
        file = self._kept(tree, path)
        before = None if file is None else digest_of(file.data)
        if before != digest:
            raise Conflict(path)
        self._swap(tree, [self._change(tree, path, file, data)], path)

    def put_all(self, files: Mapping[AgentPath, bytes]) -> None:
        """Write files in one transaction. An error means that none was written."""
        tree = self.tree()
        changes = [self._change(tree, path, self._kept(tree, path), data) for path, data in files.items()]
        self._swap(tree, changes, *files)

    def put_new(self, files: Sequence[tuple[AgentPath, bytes]]) -> None:
        """Make new files in one transaction. After an error none was made, but in a store without transactions.

        Raises:
            OSError: Conflict, EEXIST, something is at one of the paths, or one is below another; as
                `StoreTree.new_keys`.
        """
        found = [path for path, _ in files]
        if depend(found, len(files)):
            raise Conflict(found[0])
        tree = self.tree()
        takes_nul = tree.items.takes_nul
        values = [written(data, None, file_format=self._file_format, takes_nul=takes_nul) for _, data in files]
        keys = tree.new_keys(found)
        self._swap(tree, [Change(key, value, None) for key, value in zip(keys, values, strict=True)], *found)

    def rewrite(self, path: AgentPath, change: Callable[[bytes], bytes]) -> None:
        tree = self.tree()
        file = self._kept(tree, path)
        if file is None:
            raise errors.oserror(errno.ENOENT)
        require_file(file)
        self._swap(tree, [self._change(tree, path, file, change(file.data))], path)

    def remove(self, path: AgentPath) -> None:
        """Delete a file or directory. EACCES where a value below it is no file."""
        tree = self.tree()
        files = self._all(tree, path)
        require_no_values(files)
        self._swap(tree, [Change(node.key, None) for _, node in files], path, *(found for found, _ in files))

    def rename(self, old: AgentPath, new: AgentPath) -> None:
        tree = self.tree()
        files = self._all(tree, old)
        if tree.find(new) is not None:
            raise errors.oserror(errno.EEXIST)
        require_no_values(files)
        (stem,) = tree.new_keys([new], vacant=True)
        records = tree.items.fetch([node.key for _, node in files])
        changes = []
        for path, node in files:
            record = records.get(node.key)
            if record is None:
                raise Conflict(node.key)
            changes.append(Change(stem + path[len(old) :], record.value, None, record.ttl_minutes))
            changes.append(Change(node.key, None, record.version))
        self._swap(tree, changes, old, new, *(path for path, _ in files))

    def _swap(self, tree: StoreTree, changes: list[Change], *changed: AgentPath) -> None:
        tree.items.swap(changes)
        tree.items.hub.notify(tree.items.origin, changed)

    def _kept(self, tree: StoreTree, path: AgentPath) -> File | None:
        """The file at a path, None where there is nothing. EISDIR.

        A key that is the path, letter for letter, is found at once, even where a directory has the path as well:
        deepagents reads and writes it by that path.
        """
        if is_text(path) or not tree.items.text_only:
            record = tree.items.fetch([path]).get(path)
            data = None if record is None else file_bytes(record.value)
            if record is not None and data is not None:
                return File(path, record, Form.FILE, data)
        node = tree.find(path)
        if node is None:
            return None
        if node.is_dir:
            raise errors.oserror(errno.EISDIR)
        record = tree.items.fetch([node.key]).get(node.key)
        form = Form(node.suffix)
        data = None if record is None else bytes_of(record.value, form)
        return None if record is None or data is None else File(node.key, record, form, data)

    def _change(self, tree: StoreTree, path: AgentPath, file: File | None, data: bytes) -> Change:
        """The change that makes a file, or replaces `file`."""
        if file is not None:
            require_file(file)
        before = None if file is None else file.record.value
        value = written(data, before, file_format=self._file_format, takes_nul=tree.items.takes_nul)
        if file is None:
            return Change(tree.new_keys([path], vacant=True)[0], value, None)
        return Change(file.key, value, file.record.version, file.record.ttl_minutes)

    def _all(self, tree: StoreTree, path: AgentPath) -> list[tuple[AgentPath, Keyed]]:
        """The file at a path, or all below it. ENOENT."""
        node = tree.find(path)
        files = [] if node is None else files_at(tree, path, node)
        if not files:
            raise errors.oserror(errno.ENOENT)
        return files


def depend(found: Iterable[AgentPath], count: int) -> bool:
    """Return True if one of `count` uploads depends on another: of the same path, or of one below it."""
    there = set(found)
    above = {directory for path in there for directory in _above(path)}
    return len(there) < count or not above.isdisjoint(there)


def _above(path: AgentPath) -> Iterator[AgentPath]:
    """The directories on the way to a path, without the root."""
    directory, _ = paths.parent_and_name(path)
    while directory != paths.ROOT:
        yield directory
        directory, _ = paths.parent_and_name(directory)


def files_at(tree: StoreTree, path: AgentPath, node: Keyed) -> list[tuple[AgentPath, Keyed]]:
    """A file itself, of a directory all files below it."""
    return tree.paths_below(path, node, [row.key for row in tree.rows_below(node)]) if node.is_dir else [(path, node)]


def require_file(file: File) -> None:
    """EACCES if it is a value that is no file."""
    if file.form is not Form.FILE:
        raise OSError(errno.EACCES, READ_ONLY)


def require_no_values(files: Sequence[tuple[AgentPath, Keyed]]) -> None:
    """EACCES if one of these is a value that is no file."""
    for path, node in files:
        if node.suffix:
            raise OSError(errno.EACCES, f"'{path}': {READ_ONLY}")


# -- searching -----------------------------------------------------------------------------------------------------


def find_files(tree: StoreTree, path: AgentPath, matcher: Matcher) -> Iterator[FileInfo]:
    """The files at or below a path that match, sorted by path; `Spent` may end it. A single file is matched by name."""
    left, node = budget.current(), tree.find(path)
    if node is None:
        return
    if not node.is_dir:
        if matcher.matches(paths.parent_and_name(path)[1]):
            yield tree.info(path, node)
        return
    rows = tree.rows_below(node)
    keys = [row.key for row in rows]
    wanted = [key for key in left.metered(keys) if _may_match(matcher, key, _base(node))]
    for found, file in left.metered(tree.paths_below(path, node, keys, wanted)):
        if matcher.matches(_relative(found, path)):
            yield tree.info(found, file)


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
                yield path, text.grep_lines(bytes_of(record.value, Form(node.suffix)) or b"", pattern, limit)
        return
    rows = tree.rows_below(node)
    asked = rows if matcher is None else _matching(tree, rows, matcher, _base(node))
    hits: dict[tuple[str, str], list[tuple[int, str]]] = {}
    count, spent = 0, False
    try:
        for row, record in left.metered(tree.items.records(asked)):
            for form, data in forms_of(record.value).items():
                lines = text.grep_lines(data, pattern, limit)
                if lines:
                    hits[row.key, form.value] = lines
                    count += len(lines)
            if limit is not None and count >= limit and matcher is None:
                break
    except Spent:
        spent = True
    for found, file in tree.paths_below(path, node, [row.key for row in rows], {key for key, _ in hits}):
        lines = hits.get((file.key, file.suffix), [])
        if lines and (matcher is None or matcher.matches(_relative(found, path))):
            yield found, lines
    if spent:
        raise Spent


def _matching(tree: StoreTree, rows: list[Row], matcher: Matcher, base: str) -> list[Row]:
    """The rows that may match. Those that only the suffix of a form makes match are described, which is cached: else
    `*.md` would read the values of all other files, in search of long texts."""
    left = [row for row in rows if not _may_match(matcher, row.key, base, [""])]
    described = tree.items.describe([row for row in left if _may_match(matcher, row.key, base)])
    passed = {row.key for row in left if row.key not in described or not described[row.key].foreign}
    return [row for row in rows if row.key not in passed]


def _base(node: Keyed) -> str:
    """The prefix of the keys below a directory, as if all had a leading slash."""
    assert node.place is not None, "only directories have keys below them"
    return node.place.rooted


def _relative(path: str, directory: AgentPath) -> str:
    return path[len(directory) :].lstrip("/")


def _may_match(matcher: Matcher, key: str, base: str, suffixes: Iterable[str] = SUFFIXES) -> bool:
    """Whether this key, with one of these suffixes, may be shown under a path that matches; True when in doubt."""
    relative = key[len(base) :] if key.startswith(base) else key[len(base) - 1 :]
    if "%" in relative or not is_path("/" + relative):
        return True
    return any(map(matcher.matches, may_be_shown_as(relative, suffixes)))
