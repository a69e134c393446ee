"""`NamespaceTree`: a whole LangGraph store as a tree, in which each namespace is a directory.

    StoreBackend.tree(store)        any store
    store+sqlite:PATH?tree=1        store+postgres:DSN?tree=1

Layout:
- the namespace `("users", "ada")` is the directory `/users/ada`; a label is escaped as in `remote/keyed.py` (`a/b` is
  `a%2Fb`, the empty label `%`);
- in it are the directories of its child namespaces and the keys of the namespace itself, as `tree.py` shows them: a
  key with slashes makes directories, and a value that is no file is `NAME.json`, perhaps with a `NAME.md`, which can
  be read only;
- where the first part of a key is the name of a child namespace as well, the namespace keeps the name, and the file or
  directory of the key has `%=` (and `%` more often, if need be) at its end.

Making and moving:
- a new directory is a namespace in waiting: a file `/users/bob/n.md` is the key `/n.md` of `("users", "bob")`. Below a
  directory that a key with slashes has made, it is a part of the key. So it is where the name can't be a label: one
  with a `.`, which LangGraph forbids; at the root that is EINVAL, as is `langgraph`;
- the root itself holds no files (EPERM), for an item has a namespace;
- a file or directory is moved from one namespace to another by copy and delete, each in one transaction where the store
  has them: after a failure between the two both are there, and nothing is lost. A directory that is a namespace can't
  become a part of keys (EXDEV).

The promises for a single namespace (`backend.py`) hold for each. Changes of others are visible at once in SQLite, in
other stores after the TTL; there is no change feed. Every verb lists the namespaces, which takes a step of an index for
each of them.
"""

from __future__ import annotations

import copy
import errno
import re
import uuid
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from fusebackend.backends.store.files import (
    FileFormat,
    StoreFiles,
    checked_file_format,
    files_at,
    find_files,
    grep_files,
    require_no_values,
)
from fusebackend.backends.store.items import Change, Conflict, Hub, Items, Settings
from fusebackend.backends.store.source import SharedStore, checked_namespace, require_store
from fusebackend.backends.store.sql_items import SqlDatabase, SqlItems
from fusebackend.backends.store.tree import StoreTree
from fusebackend.base import budget, errors, paths
from fusebackend.base.errors import code_of
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.databases.langgraph import translate_errors
from fusebackend.protocol import FileInfo, FileUploadResponse, OnExists
from fusebackend.remote.agent_verbs import FileVerbs, Loaded, Refusal, checked
from fusebackend.remote.keyed import MARK, ROOT_NODE, Keyed, name_of, text_of

Namespace: TypeAlias = tuple[str, ...]

NO_FILES_HERE = "The root of a store holds namespaces and no files: make a directory first"

LISTED_AT_ONCE = 1000
"""Namespaces, of a store that is no database."""


class Spaces:
    """The namespaces of a store, and the items of each.

    Args:
        store: the store, or None where only its database is open.
        database: its database (`source.database_of`), or None.
        items_of: makes the items of a namespace.
        close: closes the connections.
    """

    def __init__(
        self,
        store: Any,
        database: SqlDatabase | None,
        items_of: Callable[[Namespace], Items],
        close: Callable[[], None],
    ) -> None:
        self._store = store
        self._database = database
        self._items_of = items_of
        self._items: dict[Namespace, Items] = {}
        self.close = close

    def for_mount(self, ttl_s: float) -> Spaces:
        """The same, with items for a mount."""
        return Spaces(self._store, self._database, lambda space: self.items(space).for_mount(ttl_s), self.close)

    def items(self, space: Namespace) -> Items:
        items = self._items.get(space)
        if items is None:
            items = self._items[space] = self._items_of(space)
        return items

    def names(self) -> list[Namespace]:
        """The namespaces that hold items."""
        if self._database is None:
            return self._listed()
        return [tuple(prefix.split(".")) for prefix in self._database.namespaces()]

    def _listed(self) -> list[Namespace]:
        data = getattr(self._store, "_data", None)
        if isinstance(data, dict):  # an InMemoryStore, whose own list fails while others write
            return [tuple(space) for space, items in list(data.items()) if items]
        found: list[Namespace] = []
        while True:
            with translate_errors("The store"):
                page = self._store.list_namespaces(limit=LISTED_AT_ONCE, offset=len(found))
            found += [tuple(space) for space in page]
            if len(page) < LISTED_AT_ONCE:
                return found

    def token(self) -> Hashable:
        """Equal tokens mean that nothing was changed in between; None when unknown."""
        return None if self._database is None else self._database.token()

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        return None if self._database is None else self._database.trouble

    @property
    def blocking(self) -> bool:
        return self.items(("-",)).blocking

    @property
    def durable(self) -> bool:
        return self.items(("-",)).durable

    @classmethod
    def of_store(cls, store: Any) -> Spaces:
        """The namespaces of a store. TypeError for an unusable one; OSError where its database can't be opened."""
        shared = SharedStore.of(require_store(store))
        owner = _Owner()
        shared.users.add(owner)
        return cls(
            store,
            shared.database,
            lambda space: shared.items(space, feed=False),
            lambda: shared.leave(owner),
        )

    @classmethod
    def of_database(cls, database: SqlDatabase) -> Spaces:
        """The namespaces of a database, which `close` closes."""
        return cls(None, database, lambda space: SqlItems(database, space, Settings(feed=False)), database.close)


class _Owner:
    """Keeps a shared store open."""


class Where(NamedTuple):
    """A path inside of a namespace; the root of that is the namespace itself."""

    space: Namespace
    inner: AgentPath

    @property
    def is_space(self) -> bool:
        return self.inner == ROOT


class View:
    """The namespaces for the length of one verb."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._children: dict[Namespace, dict[str, str]] = {(): {}}  # namespace → shown name → label
        self._trees: dict[Namespace, StoreTree] = {}
        for space in spaces.names():
            for depth, label in enumerate(space):
                self._children.setdefault(space[:depth], {})[paths.to_text(name_of(label))] = label
            self._children.setdefault(space, {})

    def children(self, space: Namespace) -> dict[str, str]:
        return self._children.get(space, {})

    def tree(self, space: Namespace) -> StoreTree:
        if space not in self._trees:
            self._trees[space] = StoreTree(self._spaces.items(space).moment())
        return self._trees[space]

    def below(self, space: Namespace, path: AgentPath) -> Iterator[tuple[Namespace, AgentPath]]:
        """A namespace and all below it, with their paths."""
        left = [(space, path)]
        while left:
            space, path = left.pop()
            yield space, path
            left += [((*space, label), paths.join(path, name)) for name, label in self.children(space).items()]

    # -- paths to keys and back --------------------------------------------------------------------------------

    def where(self, path: AgentPath) -> Where:
        """The place of a path, whether it exists or not."""
        space: Namespace = ()
        segments = path[1:].split("/") if path != ROOT else []
        for index, segment in enumerate(segments):
            label = self.children(space).get(segment)
            if label is None:
                inner = [self._key_name(space, segment), *segments[index + 1 :]]
                return Where(space, AgentPath("/" + "/".join(inner)))
            space = (*space, label)
        return Where(space, ROOT)

    def node(self, where: Where) -> Keyed | None:
        """The file or directory that is there."""
        if where.is_space:
            return ROOT_NODE
        return self.tree(where.space).find(where.inner) if where.space else None

    def shown(self, space: Namespace, inner: str) -> str:
        """The path below a namespace at which this path of its own tree is shown."""
        first, slash, rest = inner.lstrip("/").partition("/")
        if first in self.children(space):
            first = self._given_way(space, first)
        return first + slash + rest

    def _given_way(self, space: Namespace, name: str) -> str:
        """The shown name of a key whose name is a namespace's as well."""
        marked = name + MARK
        while marked in self.children(space) or self.tree(space).find(AgentPath(f"/{marked}")) is not None:
            marked += "%"
        return marked

    def _key_name(self, space: Namespace, shown: str) -> str:
        """The name of a key that is shown by this one."""
        found = _MARKED.fullmatch(shown)
        if found is not None and found[1] in self.children(space) and self._given_way(space, found[1]) == shown:
            return found[1]
        return shown

    def target(self, path: AgentPath, *, is_dir: bool = False) -> Where:
        """The place for a new file or directory at a path.

        Raises:
            OSError: EPERM for a file at the root, EINVAL for a name there that no namespace has, ENOTDIR below a file.
        """
        directory, name = paths.parent_and_name(path)
        missing: list[str] = []
        while (node := self.node(self.where(directory))) is None:
            directory, above = paths.parent_and_name(directory)
            missing.insert(0, above)
        if not node.is_dir:
            raise errors.oserror(errno.ENOTDIR)
        space, inner = self.where(directory)
        if inner == ROOT:
            while missing and (label := _label(space, missing[0])) is not None:
                space = (*space, label)
                del missing[0]
            if not space and is_dir and not missing:
                label = _label((), name)
                if label is not None:
                    return Where((label,), ROOT)
        if not space:
            _require_place_at_root((missing or [name])[0], is_dir or bool(missing))
        return Where(space, paths.join(inner, "/".join([*missing, name])))


_MARKED = re.compile(f"(.+){re.escape(MARK)}%*", re.DOTALL)


def _label(space: Namespace, name: str) -> str | None:
    """The label that a new directory's name stands for; None where it can't be one."""
    try:
        label = text_of(paths.to_name(name))
        label.encode("utf-8")
        checked_namespace((*space, label))
    except (TypeError, ValueError):
        return None
    return label


def _require_place_at_root(name: str, is_dir: bool) -> None:
    if not is_dir:
        raise OSError(errno.EPERM, NO_FILES_HERE)
    if _label((), name) is None:
        raise OSError(errno.EINVAL, f"No namespace can be called '{name}'")


class NamespaceTree(FileVerbs):
    """See the module's docstring. `StoreBackend.tree` makes one.

    Args:
        spaces: the namespaces; closed with this object.
        file_format, on_exists, ttl_s: as for `StoreBackend`.
    """

    exact_sizes = True

    def __init__(
        self,
        spaces: Spaces,
        *,
        file_format: FileFormat = "v2",
        on_exists: OnExists = "error",
        ttl_s: float | None = None,
    ) -> None:
        super().__init__(on_exists=on_exists)
        self.file_format = checked_file_format(file_format)
        self.ttl_s = ttl_s
        self._spaces = spaces
        self._hub = Hub()
        self._origin = ""

    def close(self) -> None:
        """Close the connections that were opened here. The store itself belongs to the caller."""
        self._spaces.close()

    def __enter__(self) -> NamespaceTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for a mount -------------------------------------------------------------------------------------------

    def kernel_side(self, ttl_s: float) -> NamespaceTree:
        """This backend for a mount, as `StoreBackend.kernel_side`."""
        side = copy.copy(self)
        side._spaces, side._origin = self._spaces.for_mount(ttl_s), uuid.uuid4().hex
        return side

    @property
    def blocking(self) -> bool:
        return self._spaces.blocking

    @property
    def durable(self) -> bool:
        return self._spaces.durable

    def token(self) -> Hashable:
        """Equal tokens mean that nothing was changed in between; None when unknown."""
        try:
            token = self._spaces.token()
        except OSError:  # the next access will raise it
            return None
        return None if token is None else (token, self._hub.count(self._origin))

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        return self._spaces.trouble

    def follow(self, changed: Callable[..., None]) -> Callable[[], None]:
        """Call `changed(*paths, elsewhere=False)` after each change that an agent makes through this backend."""
        return self._hub.watch(self._origin, lambda paths: changed(*paths, elsewhere=False))

    def admits(self, path: AgentPath, *, is_dir: bool) -> None:
        """Raise the error of any file or directory at this path, before it is written in vain. Queries nothing."""
        directory, name = paths.parent_and_name(path)
        if directory == ROOT:
            _require_place_at_root(name, is_dir)

    def upload_if(self, path: str, content: bytes, digest: bytes | None) -> FileUploadResponse:
        """As `StoreBackend.upload_if`."""
        try:
            found = checked(path)
            where = self._for_writing(self._view(), found)
            self._files(where.space).put_if(where.inner, content, digest)
        except (Conflict, FileExistsError):
            return FileUploadResponse(path=path, error=errors.CONFLICT)
        except Refusal as error:
            return FileUploadResponse(path=path, error=code_of(error))
        self._tell(found)
        return FileUploadResponse(path=path)

    def upload_new(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """As `StoreBackend.upload_new`; `conflict` also for files of several namespaces, which have no transaction."""
        error: str | None = None
        found = [checked(path) for path, _ in files]
        try:
            view = self._view()
            places = [self._for_writing(view, path) for path in found]
            (space,) = {where.space for where in places}
            new = [(where.inner, content) for where, (_, content) in zip(places, files, strict=True)]
            self._files(space).put_new(new)
            self._tell(*found)
        except (Conflict, FileExistsError, ValueError):
            error = errors.CONFLICT
        except Refusal as refusal:
            error = code_of(refusal)
        return [FileUploadResponse(path=path, error=error) for path, _ in files]

    # -- primitives --------------------------------------------------------------------------------------------

    def _view(self) -> View:
        return View(self._spaces)

    def _files(self, space: Namespace) -> StoreFiles:
        return StoreFiles(self._spaces.items(space), self.file_format)

    def _tell(self, *changed: AgentPath) -> None:
        self._hub.notify(self._origin, changed)

    def _file(self, path: AgentPath) -> Where:
        """The place of a file. EISDIR, ENOENT."""
        where = self._view().where(path)
        if where.is_space:
            raise errors.oserror(errno.EISDIR)
        if not where.space:
            raise errors.oserror(errno.ENOENT)
        return where

    def _for_writing(self, view: View, path: AgentPath) -> Where:
        """The place of a file that is there, or is to be made. EISDIR, and as `View.target`."""
        where = view.where(path)
        if where.is_space:
            raise errors.oserror(errno.EISDIR)
        return where if view.node(where) is not None else view.target(path)

    def _list(self, path: AgentPath) -> list[FileInfo]:
        view = self._view()
        where = view.where(path)
        node = view.node(where)
        if node is None:
            raise errors.oserror(errno.ENOENT)
        if not node.is_dir:
            raise errors.oserror(errno.ENOTDIR)
        found: list[FileInfo] = []
        if where.is_space:
            found = [
                FileInfo(path=paths.join(path, name) + "/", is_dir=True, size=0) for name in view.children(where.space)
            ]
        if where.space:
            for name, child in view.tree(where.space).children(node).items():
                shown = view.shown(where.space, name) if where.is_space else name
                found.append(view.tree(where.space).info(paths.join(path, shown), child))
        return found

    def _load(self, path: AgentPath) -> Loaded:
        where = self._file(path)
        return self._files(where.space).load(where.inner)

    def _put(self, path: AgentPath, data: bytes, *, replace: bool) -> None:
        where = self._for_writing(self._view(), path)
        self._files(where.space).put(where.inner, data, replace=replace)
        self._tell(path)

    def _rewrite(self, path: AgentPath, change: Callable[[bytes], bytes]) -> None:
        where = self._file(path)
        self._files(where.space).rewrite(where.inner, change)
        self._tell(path)

    def _remove(self, path: AgentPath) -> None:
        view = self._view()
        where = view.where(path)
        if not where.is_space:
            if not where.space:
                raise errors.oserror(errno.ENOENT)
            self._files(where.space).remove(where.inner)
        else:
            doomed = [(space, self._all(view, space)) for space, _ in view.below(where.space, path)]
            for _, files in doomed:
                require_no_values(files)
            for space, files in doomed:
                if files:
                    self._spaces.items(space).swap([Change(node.key, None) for _, node in files])
        self._tell(path)

    def _rename(self, old: AgentPath, new: AgentPath) -> None:
        view = self._view()
        source = view.where(old)
        node = view.node(source)
        if node is None:
            raise errors.oserror(errno.ENOENT)
        if view.node(view.where(new)) is not None:
            raise errors.oserror(errno.EEXIST)
        if source.is_space:
            self._rename_space(view, source.space, old, new)
        else:
            target = view.target(new, is_dir=node.is_dir)
            if target.space == source.space:
                self._files(source.space).rename(source.inner, target.inner)
            else:
                files = files_at(view.tree(source.space), source.inner, node)
                stem = "" if target.is_space else view.tree(target.space).new_keys([target.inner], vacant=True)[0]
                keys = {file.key: stem + found[len(source.inner) :] for found, file in files}
                self._carry(source.space, target.space, files, keys)
        self._tell(old, new)

    def _rename_space(self, view: View, space: Namespace, old: AgentPath, new: AgentPath) -> None:
        """Rename a namespace, with all below it. Keys stay the same."""
        directory, name = paths.parent_and_name(new)
        place = view.where(directory) if directory == ROOT else view.target(paths.join(directory, name))
        above = place.space
        label = _label(above, name)
        if label is None or (directory != ROOT and place.inner != f"/{name}"):
            raise OSError(errno.EXDEV, "A namespace can't become a part of keys")
        moved = [(found, self._all(view, found)) for found, _ in view.below(space, old)]
        for _, files in moved:
            require_no_values(files)
        for found, files in moved:
            if files:
                keys = {file.key: file.key for _, file in files}
                self._carry(found, (*above, label, *found[len(space) :]), files, keys)

    def _carry(
        self, source: Namespace, target: Namespace, files: Sequence[tuple[AgentPath, Keyed]], keys: dict[str, str]
    ) -> None:
        """Move items from one namespace to another: copy them, then delete those that were copied."""
        require_no_values(files)
        items = self._spaces.items(source)
        records = items.fetch(list(keys))
        if len(records) < len(keys):
            raise Conflict(next(key for key in keys if key not in records))
        self._spaces.items(target).swap([
            Change(keys[key], record.value, None, record.ttl_minutes) for key, record in records.items()
        ])  # fmt: skip
        items.swap([Change(key, None, record.version) for key, record in records.items()])

    def _all(self, view: View, space: Namespace) -> list[tuple[AgentPath, Keyed]]:
        """The files of a namespace itself, by their paths in it."""
        if not space:
            return []
        return files_at(view.tree(space), ROOT, ROOT_NODE)

    # -- searching ---------------------------------------------------------------------------------------------

    def _find(self, path: AgentPath, matcher: Matcher) -> Iterator[FileInfo]:
        view, left = self._view(), budget.current()
        where = view.where(path)
        if not where.is_space:
            if where.space:
                for info in find_files(view.tree(where.space), where.inner, matcher):
                    yield {**info, "path": path + info["path"][len(where.inner) :]}
            return
        found = [
            info
            for space, base in left.metered(view.below(where.space, path)) if space
            for info in self._found_in(view, space, base, _Below(view, space, _from(path, base), matcher))
        ]  # fmt: skip
        yield from sorted(found, key=lambda info: info["path"])

    def _found_in(self, view: View, space: Namespace, base: AgentPath, matcher: Any) -> Iterator[FileInfo]:
        for info in find_files(view.tree(space), ROOT, matcher):
            yield {**info, "path": paths.join(base, view.shown(space, info["path"]))}

    def _grep(
        self, pattern: str, path: AgentPath, matcher: Matcher | None, limit: int | None
    ) -> Iterator[tuple[str, Sequence[tuple[int, str]]]]:
        view, left = self._view(), budget.current()
        where = view.where(path)
        if not where.is_space:
            if where.space:
                for found, lines in grep_files(view.tree(where.space), pattern, where.inner, matcher, limit):
                    yield path + found[len(where.inner) :], lines
            return
        hits: list[tuple[str, Sequence[tuple[int, str]]]] = []
        for space, base in left.metered(view.below(where.space, path)):
            if space:
                below: Any = None if matcher is None else _Below(view, space, _from(path, base), matcher)
                for found, lines in grep_files(view.tree(space), pattern, ROOT, below, limit):
                    hits.append((paths.join(base, view.shown(space, found)), lines))
        yield from sorted(hits, key=lambda hit: hit[0])


class _Below:
    """The matcher of a search that begins above a namespace, for paths of the namespace's own tree."""

    def __init__(self, view: View, space: Namespace, prefix: str, matcher: Matcher) -> None:
        self._view, self._space, self._prefix, self._matcher = view, space, prefix, matcher

    def matches(self, relative_path: str) -> bool:
        return self._matcher.matches(self._prefix + self._view.shown(self._space, relative_path))


def _from(path: AgentPath, base: AgentPath) -> str:
    """The relative path from one path down to another, with a slash at its end."""
    relative = base[len(path) :].strip("/")
    return relative + "/" if relative else ""
