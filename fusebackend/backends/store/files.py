"""`StoreFiles`: reading, changing and searching the files of a store.

Searches read all keys below a directory at once, in one range, and only the values that may match. A key may be shown
under another name than its own, but mostly is not: so keys are filtered by the names they may have, and only the names
of the rest are worked out. When the budget is spent (`base/budget.py`), the files found by then are returned.
"""

from __future__ import annotations

import abc
import copy
import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from fusebackend import text
from fusebackend.backends.store.items import Change, Conflict, Record, Row
from fusebackend.backends.store.namespaces import Namespace, SpacePlace, Spaces, SpaceTree, StoreTree
from fusebackend.backends.store.values import Form, bytes_of, file_bytes, forms_of, written
from fusebackend.base import budget, errors, paths
from fusebackend.base.budget import Spent
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import FileInfo, FileUploadResponse, OnExists
from fusebackend.remote.agent_verbs import FileVerbs, Loaded, Refusal, checked
from fusebackend.remote.keyed import ROOT_NODE, Keyed, is_path, is_text, may_be_shown_as

FileFormat: TypeAlias = Literal["v1", "v2"]
Placed: TypeAlias = tuple[Namespace, Change]

ATTEMPTS = 10
"""How often `put` is repeated when another program changes the file meanwhile."""

SUFFIXES = tuple(form.value for form in Form)

READ_ONLY = "It is a value of the store that is no file, and can be read only"


class File(NamedTuple):
    """A file as it was found."""

    space: Namespace
    key: str
    record: Record
    form: Form
    data: bytes


class StoreFiles(FileVerbs):
    """See the module's docstring. Changes notify the other backends over the same items (`Items.hub`).

    Args:
        file_format: the format of new values, `"v2"` or `"v1"`.
    """

    def __init__(self, *, file_format: FileFormat, on_exists: OnExists) -> None:
        super().__init__(on_exists=on_exists)
        if file_format not in ("v1", "v2"):
            raise ValueError(f"file_format must be 'v1' or 'v2', not {file_format!r}")
        self.file_format = file_format

    _seen: SpaceTree | None = None
    """Of a view of one moment."""

    @property
    @abc.abstractmethod
    def spaces(self) -> Spaces:
        """The current namespace, or all of them."""

    def _tree(self) -> SpaceTree:
        """The tree for one verb."""
        return self._seen or SpaceTree(self.spaces)

    def _list(self, path: AgentPath) -> list[FileInfo]:
        return self._tree().entries(path)

    def _load(self, path: AgentPath) -> Loaded:
        file = self._there(self._tree(), path)
        if file.form is not Form.FILE:
            return Loaded(file.data, None, file.record.updated_at)
        times = (file.record.value.get(name) for name in ("created_at", "modified_at"))
        return Loaded(file.data, *(str(time) if time else None for time in times))

    def _put(self, path: AgentPath, data: bytes, *, replace: bool) -> None:
        """Write a file, also while others change it. EEXIST, EBUSY, and as `SpaceTree.new_keys`."""
        for _ in range(ATTEMPTS):
            tree = self._tree()
            file = self._kept(tree, path)
            if file is not None and not replace:
                raise errors.oserror(errno.EEXIST)
            try:
                self._swap(tree, [self._change(tree, path, file, data)], path)
            except Conflict:
                continue
            return
        raise errors.oserror(errno.EBUSY)

    def _put_new(self, files: Sequence[tuple[AgentPath, bytes]]) -> None:
        self._put_together(files, new=True)

    def _put_together(self, files: Sequence[tuple[AgentPath, bytes]], *, new: bool) -> None:
        """Write files in one transaction. After an error none was written, but in a store without transactions.

        Args:
            new: nothing may be at any of the paths.

        Raises:
            OSError: Conflict, one is below another or has its path, or they are of several namespaces; as
                `SpaceTree.new_keys`.
        """
        found = [path for path, _ in files]
        if depend(found, len(files)):
            raise Conflict(found[0])
        tree = self._tree()
        if new:
            space, keys = tree.new_keys(found)
            values = (self._value(tree, space, data) for _, data in files)
            changes = [(space, Change(key, value, None)) for key, value in zip(keys, values, strict=True)]
        else:
            changes = [self._change(tree, path, self._kept(tree, path), data) for path, data in files]
            if len({space for space, _ in changes}) > 1:
                raise Conflict(found[0])
        self._swap(tree, changes, *found)

    def _rewrite(self, path: AgentPath, change: Callable[[bytes], bytes]) -> None:
        tree = self._tree()
        file = self._there(tree, path)
        require_file(file)
        self._swap(tree, [self._change(tree, path, file, change(file.data))], path)

    def _remove(self, path: AgentPath) -> None:
        """Delete a file or directory. EACCES where a value below it is no file."""
        tree = self._tree()
        at = tree.find(path)
        files = self._all(tree, path, at)
        self._swap(
            tree, [(file.space, Change(file.node.key, None)) for _, file in files], path, *(found for found, _ in files)
        )

    def _rename(self, old: AgentPath, new: AgentPath) -> None:
        """Move a file or directory; from one namespace to another by copy and delete."""
        tree = self._tree()
        at = tree.find(old)
        files = self._all(tree, old, at)
        if tree.find(new) is not None:
            raise errors.oserror(errno.EEXIST)
        assert at is not None, "it has files"
        if at.node == ROOT_NODE:  # a namespace: the keys stay
            moved = tree.moved_space(new)
            places = [((*moved, *file.space[len(at.space) :]), file.node.key) for _, file in files]
        else:
            space, inner = tree.target(new, is_dir=at.is_dir)
            (stem,) = ("",) if inner == ROOT else tree.tree(space).new_keys([inner], vacant=True)
            places = [(space, stem + found[len(old) :]) for found, _ in files]
        keys: dict[Namespace, list[str]] = {}
        for _, file in files:
            keys.setdefault(file.space, []).append(file.node.key)
        records = {space: tree.spaces.items(space).fetch(some) for space, some in keys.items()}
        made, gone = [], []
        for (target, key), (_, file) in zip(places, files, strict=True):
            record = records[file.space].get(file.node.key)
            if record is None:
                raise Conflict(file.node.key)
            made.append((target, Change(key, record.value, None, record.ttl_minutes)))
            gone.append((file.space, Change(file.node.key, None, record.version)))
        self._swap(tree, made + gone, old, new, *(path for path, _ in files))

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        """Upload all in one transaction if possible; else one by one, so that each has its own error."""
        if len(files) < 2 or if_version or if_absent or not self._upload_together(files):
            return super().upload_files(files, if_version=if_version, if_absent=if_absent)
        return [FileUploadResponse(path=path) for path, _ in files]

    def _upload_together(self, files: list[tuple[str, bytes]]) -> bool:
        """Upload all, or nothing and False."""
        try:
            given = [(checked(path), bytes(memoryview(content))) for path, content in files]
            self._put_together(given, new=False)
        except (TypeError, *Refusal):
            return False
        return True

    def _moment(self) -> StoreFiles:
        view = copy.copy(self)
        view._seen = self._tree()
        return view

    # -- steps -----------------------------------------------------------------------------------------------

    def _swap(self, tree: SpaceTree, changes: Sequence[Placed], *changed: AgentPath) -> None:
        """Make changes, those of each namespace in one transaction."""
        by_space: dict[Namespace, list[Change]] = {}
        for space, change in changes:
            by_space.setdefault(space, []).append(change)
        spaces = tree.spaces
        for space, some in by_space.items():
            spaces.items(space).swap(some)
        spaces.hub.notify(spaces.origin, changed)

    def _kept(self, tree: SpaceTree, path: AgentPath) -> File | None:
        """The file at a path, None where there is nothing. EISDIR.

        A key that is the path, letter for letter, is found at once, even where a directory has the path as well:
        deepagents reads and writes it by that path.
        """
        space, inner = tree.where(path)
        if not space and inner != ROOT:
            return None
        if inner == ROOT:
            raise errors.oserror(errno.EISDIR)
        items = tree.tree(space).items
        if is_text(inner) or not items.text_only:
            record = items.fetch([inner]).get(inner)
            data = None if record is None else file_bytes(record.value)
            if record is not None and data is not None:
                return File(space, inner, record, Form.FILE, data)
        node = tree.tree(space).find(inner)
        if node is None:
            return None
        if node.is_dir:
            raise errors.oserror(errno.EISDIR)
        form, record = Form(node.suffix), items.fetch([node.key]).get(node.key)
        data = None if record is None else bytes_of(record.value, form)
        return None if record is None or data is None else File(space, node.key, record, form, data)

    def _there(self, tree: SpaceTree, path: AgentPath) -> File:
        """The file at a path. ENOENT, EISDIR."""
        file = self._kept(tree, path)
        if file is None:
            raise errors.oserror(errno.ENOENT)
        return file

    def _change(self, tree: SpaceTree, path: AgentPath, file: File | None, data: bytes) -> Placed:
        """The change that makes a file, or replaces `file`."""
        if file is None:
            space, (key,) = tree.new_keys([path], vacant=True)
            return space, Change(key, self._value(tree, space, data), None)
        require_file(file)
        value = self._value(tree, file.space, data, file.record.value)
        return file.space, Change(file.key, value, file.record.version, file.record.ttl_minutes)

    def _value(self, tree: SpaceTree, space: Namespace, data: bytes, before: Any = None) -> dict[str, Any]:
        return written(data, before, file_format=self.file_format, takes_nul=tree.spaces.items(space).takes_nul)

    def _all(self, tree: SpaceTree, path: AgentPath, at: SpacePlace | None) -> list[tuple[AgentPath, SpacePlace]]:
        """The file at a path, or all below it. ENOENT; EACCES if one of them is a value that is no file."""
        files = [] if at is None else tree.files(path, at)
        if not files:
            raise errors.oserror(errno.ENOENT)
        for found, file in files:
            if file.node.suffix:
                raise OSError(errno.EACCES, f"'{found}': {READ_ONLY}")
        return files

    # -- searching ---------------------------------------------------------------------------------------------

    def _find(self, path: AgentPath, matcher: Matcher) -> Iterator[FileInfo]:
        """As in `FileVerbs`. A single file is matched by its name."""
        tree = self._tree()
        at = tree.find(path)
        if at is None:
            return
        if not at.is_dir:
            if matcher.matches(paths.parent_and_name(path)[1]):
                yield tree.info(path, at)
            return
        parts = list(tree.parts(path, at))
        found = (info for part in parts for info in _found_below(tree, path, *part, matcher))
        yield from found if len(parts) == 1 else sorted(found, key=itemgetter("path"))

    def _grep(
        self, pattern: str, path: AgentPath, matcher: Matcher | None, limit: int | None
    ) -> Iterator[tuple[str, Sequence[tuple[int, str]]]]:
        """The lines with a literal in these files, file by file; about `limit` of them is enough."""
        tree = self._tree()
        at = tree.find(path)
        if at is None:
            return
        if not at.is_dir:
            if matcher is None or matcher.matches(paths.parent_and_name(path)[1]):
                for record in tree.tree(at.space).items.fetch([at.node.key]).values():
                    yield path, text.grep_lines(bytes_of(record.value, Form(at.node.suffix)) or b"", pattern, limit)
            return
        parts = list(tree.parts(path, at))
        found = (hit for part in parts for hit in _hits_below(tree, pattern, path, *part, matcher, limit))
        yield from found if len(parts) == 1 else sorted(found, key=itemgetter(0))


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


def require_file(file: File) -> None:
    """EACCES if it is a value that is no file."""
    if file.form is not Form.FILE:
        raise OSError(errno.EACCES, READ_ONLY)


# -- searching -----------------------------------------------------------------------------------------------------


def _found_below(
    tree: SpaceTree, path: AgentPath, base: AgentPath, at: SpacePlace, matcher: Matcher
) -> Iterator[FileInfo]:
    left, space = budget.current(), tree.tree(at.space)
    keys = [row.key for row in space.rows_below(at.node)]
    may = _KeyFilter(space, at.node, _relative(base, path), matcher)
    wanted = [key for key in left.metered(keys) if may.match(key)]
    for found, file in left.metered(space.paths_below(base, at.node, keys, wanted)):
        if matcher.matches(_relative(found, path)):
            yield space.info(found, file.key, file.suffix)


def _hits_below(
    tree: SpaceTree,
    pattern: str,
    path: AgentPath,
    base: AgentPath,
    at: SpacePlace,
    matcher: Matcher | None,
    limit: int | None,
) -> Iterator[tuple[str, Sequence[tuple[int, str]]]]:
    left, space = budget.current(), tree.tree(at.space)
    rows = space.rows_below(at.node)
    asked = rows if matcher is None else _KeyFilter(space, at.node, _relative(base, path), matcher).of(rows)
    hits: dict[tuple[str, str], list[tuple[int, str]]] = {}
    count, spent = 0, False
    try:
        for row, record in left.metered(space.items.records(asked)):
            for form, data in forms_of(record.value).items():
                lines = text.grep_lines(data, pattern, limit)
                if lines:
                    hits[row.key, form.value] = lines
                    count += len(lines)
            if limit is not None and count >= limit and matcher is None:
                break
    except Spent:
        spent = True
    for found, file in space.paths_below(base, at.node, [row.key for row in rows], {key for key, _ in hits}):
        lines = hits.get((file.key, file.suffix), [])
        if lines and (matcher is None or matcher.matches(_relative(found, path))):
            yield found, lines
    if spent:
        raise Spent


class _KeyFilter:
    """The keys below a directory that may be shown under a path that matches.

    Args:
        relative: the path of the directory in which the search began.
    """

    def __init__(self, tree: StoreTree, directory: Keyed, relative: str, matcher: Matcher) -> None:
        assert directory.place is not None, "only directories have keys below them"
        self._tree, self._matcher = tree, matcher
        self._base = directory.place.rooted
        self._taken = tree.taken if directory == ROOT_NODE else ()
        self._above = relative and relative + "/"

    def match(self, key: str, suffixes: Iterable[str] = SUFFIXES) -> bool:
        """Whether this key may match, with one of these suffixes; True when in doubt."""
        relative = key[len(self._base) :] if key.startswith("/") else key[len(self._base) - 1 :]
        if "%" in relative or not is_path("/" + relative):
            return True
        if self._taken and relative.partition("/")[0] in self._taken:
            return True
        return any(map(self._matcher.matches, may_be_shown_as(self._above + relative, suffixes)))

    def of(self, rows: list[Row]) -> list[Row]:
        """The rows that may match. Those that only the suffix of a form makes match are described, which is cached:
        else `*.md` would read the values of all other files, in search of long texts."""
        left = [row for row in rows if not self.match(row.key, ("",))]
        described = self._tree.items.describe([row for row in left if self.match(row.key)])
        passed = {row.key for row in left if row.key not in described or not described[row.key].foreign}
        return [row for row in rows if row.key not in passed]


def _relative(path: str, directory: AgentPath) -> str:
    return path[len(directory) :].lstrip("/")
