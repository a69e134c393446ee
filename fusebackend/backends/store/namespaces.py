"""`Spaces` and `SpaceTree`: one namespace of a LangGraph store, or all of it, in which each namespace is a directory.

    StoreBackend.tree(store)        any store
    store+sqlite:PATH?tree=1        store+postgres:DSN?tree=1

Layout of a whole store:
- the namespace `("users", "ada")` is the directory `/users/ada`; a label is escaped as in `remote/keyed.py` (`a/b` is
  `a%2Fb`, the empty label `%`);
- in it are the directories of its child namespaces and the keys of the namespace itself, as `StoreTree` shows them: a
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

import errno
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from fusebackend.backends.store.items import Conflict, Hub, Items, Row, Settings
from fusebackend.backends.store.source import SharedStore, checked_namespace, require_store
from fusebackend.backends.store.sql_items import SqlItems, StoreDatabase
from fusebackend.backends.store.values import JSON, TEXT, About
from fusebackend.base import errors, paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.databases.langgraph import translate_errors
from fusebackend.protocol import FileInfo
from fusebackend.remote.keyed import ROOT_NODE, Keyed, KeyedTree, name_of, text_of


class StoreTree(KeyedTree):
    """The keys of a namespace as a tree of paths, by the rule of `remote/keyed.py`, for one verb.

    A store takes values that are no files: such a key is `NAME.json`, and `NAME.md` as well where the value is one long
    text; both can be read only. Names of files are text with surrogateescape, as in agent paths.
    """

    endings = (JSON, TEXT)

    def __init__(self, items: Items) -> None:
        self.items = items
        self.text_only = items.text_only
        self._rows: dict[str, Row] = {}
        self._about: dict[str, About] = {}

    def level(self, prefix: str) -> Iterable[str]:
        return self._seen(self.items.level(prefix))

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[dict[str, Row], list[str]]:
        rows, directories = self.items.look(keys, prefixes)
        return self._seen(rows), directories

    def suffixes(self, keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
        described = self.items.describe([self._rows[key] for key in keys])
        self._about.update(described)
        return {key: about.suffixes for key, about in described.items()}

    def _seen(self, rows: list[Row]) -> dict[str, Row]:
        found = {row.key: row for row in rows}
        self._rows.update(found)
        return found

    def rows_below(self, directory: Keyed) -> list[Row]:
        """The keys of all files below a directory, in order."""
        assert directory.place is not None, "only directories have something below them"
        rows = [row for prefix in directory.place.all for row in self.items.below(prefix)]
        self._seen(rows)
        return rows

    def info(self, path: str, key: str, suffix: str) -> FileInfo:
        """A file that was found in this tree."""
        about = self._about[key]
        info = FileInfo(path=path, is_dir=False, size=about.size_of(suffix))
        if about.modified_at:
            info["modified_at"] = about.modified_at
        if about.foreign:
            info["read_only"] = True
        return info


Namespace: TypeAlias = tuple[str, ...]

NO_FILES_HERE = "The root of a store holds namespaces and no files: make a directory first"

LISTED_AT_ONCE = 1000
"""Namespaces, of a store that is no database."""


class Spaces:
    """The namespaces that a backend shows, and the items of each.

    Args:
        items_of: makes the items of a namespace.
        names: lists the namespaces below the root that hold items.
        source: has the `token` and the `trouble` of all of them; None where nothing is known (`source.database_of`).
        root: the namespace that is shown as the root; empty where all are.
        close: closes the connections.
        hub, origin: of the changes, as in `Items`.
    """

    def __init__(
        self,
        items_of: Callable[[Namespace], Items],
        source: Items | StoreDatabase | None,
        *,
        names: Callable[[], list[Namespace]] = list,
        root: Namespace = (),
        close: Callable[[], None],
        hub: Hub | None = None,
        origin: str = "",
    ) -> None:
        self.names = names
        self.root = root
        self.close = close
        self.hub = hub or Hub()
        self.origin = origin
        self._source = source
        self._items_of = items_of
        self._items: dict[Namespace, Items] = {}

    @classmethod
    def of_one(cls, items: Items) -> Spaces:
        """One namespace."""
        return cls(lambda space: items, items, root=("-",), close=items.close, hub=items.hub, origin=items.origin)

    @classmethod
    def of_store(cls, store: Any) -> Spaces:
        """All namespaces of a store. TypeError for an unusable one; OSError where its database can't be opened."""
        shared = SharedStore.of(require_store(store))
        owner = _Owner()
        shared.users.add(owner)
        names = partial(_listed, store) if shared.database is None else shared.database.namespaces
        close = partial(shared.leave, owner)
        return cls(partial(shared.items, feed=False), shared.database, names=names, close=close)

    @classmethod
    def of_database(cls, database: StoreDatabase) -> Spaces:
        """All namespaces of a database, which `close` closes."""
        items_of = partial(SqlItems, database, settings=Settings(feed=False))
        return cls(items_of, database, names=database.namespaces, close=database.close)

    def for_mount(self, ttl_s: float) -> Spaces:
        """The same, with items for a mount."""
        if self.root:
            return Spaces.of_one(self.items(self.root).for_mount(ttl_s))
        return Spaces(
            lambda space: self.items(space).for_mount(ttl_s), self._source, names=self.names, close=self.close,
            hub=self.hub, origin=uuid.uuid4().hex,
        )  # fmt: skip

    def items(self, space: Namespace) -> Items:
        """The items of a namespace."""
        items = self._items.get(space)
        if items is None:
            items = self._items[space] = self._items_of(space or ("-",))
        return items

    def token(self) -> Hashable:
        """Equal tokens mean that nothing was changed in between, but for changes that the hub counts; None when
        unknown."""
        return None if self._source is None else self._source.token()

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        return None if self._source is None else self._source.trouble


def _listed(store: Any) -> list[Namespace]:
    data = getattr(store, "_data", None)
    if isinstance(data, dict):  # an InMemoryStore, whose own list fails while others write
        return [tuple(space) for space, items in list(data.items()) if items]
    found: list[Namespace] = []
    while True:
        with translate_errors("The store"):
            page = store.list_namespaces(limit=LISTED_AT_ONCE, offset=len(found))
        found += [tuple(space) for space in page]
        if len(page) < LISTED_AT_ONCE:
            return found


class _Owner:
    """Keeps a shared store open."""


class SpacePlace(NamedTuple):
    """A file or directory in the tree of a namespace; the root of that is the namespace itself."""

    space: Namespace
    node: Keyed

    @property
    def is_dir(self) -> bool:
        return self.node.is_dir


class SpaceTree:
    """The tree of the namespaces, for one verb."""

    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces
        self._labels: dict[Namespace, dict[str, str]] = {}  # namespace → shown name → label
        self._trees: dict[Namespace, StoreTree] = {}
        self._above: dict[AgentPath, tuple[Namespace, AgentPath, list[str]]] = {}
        for space in spaces.names():
            for depth, label in enumerate(space):
                self._labels.setdefault(space[:depth], {})[paths.to_text(name_of(label))] = label

    def tree(self, space: Namespace) -> StoreTree:
        if space not in self._trees:
            tree = self._trees[space] = StoreTree(self.spaces.items(space).moment())
            tree.taken = self._labels.get(space, {})
        return self._trees[space]

    def where(self, path: AgentPath) -> tuple[Namespace, AgentPath]:
        """The namespace and the path in it, whether there is anything or not."""
        space, rest = self.spaces.root, path
        while rest != ROOT and space in self._labels:
            name, _, below = rest[1:].partition("/")
            if name not in self._labels[space]:
                break
            space, rest = (*space, self._labels[space][name]), AgentPath("/" + below)
        return space, rest

    def find(self, path: AgentPath) -> SpacePlace | None:
        """The file or directory at a path."""
        space, inner = self.where(path)
        if inner == ROOT:
            return SpacePlace(space, ROOT_NODE)
        node = self.tree(space).find(inner) if space else None
        return None if node is None else SpacePlace(space, node)

    def entries(self, path: AgentPath, at: SpacePlace) -> list[FileInfo]:
        """The entries of a directory."""
        labels = self._labels.get(at.space, {}) if at.node == ROOT_NODE else {}
        found = [(name, SpacePlace((*at.space, label), ROOT_NODE)) for name, label in labels.items()]
        if at.space:
            found += [
                (name, SpacePlace(at.space, node)) for name, node in self.tree(at.space).children(at.node).items()
            ]
        return [self.info(paths.join(path, name), child) for name, child in found]

    def info(self, path: str, at: SpacePlace) -> FileInfo:
        """A file or directory that was found in this tree."""
        if at.is_dir:
            return FileInfo(path=path + "/", is_dir=True, size=0)
        return self.tree(at.space).info(path, at.node.key, at.node.suffix)

    def parts(self, path: AgentPath, at: SpacePlace) -> Iterator[tuple[AgentPath, SpacePlace]]:
        """A directory, and the namespaces below it where it is one, with their paths."""
        left = [(path, at)]
        while left:
            path, at = left.pop()
            if at.space:
                yield path, at
            if at.node == ROOT_NODE:
                labels = self._labels.get(at.space, {})
                left += [
                    (paths.join(path, name), SpacePlace((*at.space, label), ROOT_NODE))
                    for name, label in labels.items()
                ]

    def files(self, path: AgentPath, at: SpacePlace) -> list[tuple[AgentPath, SpacePlace]]:
        """A file itself, of a directory all files below it."""
        if not at.is_dir:
            return [(path, at)]
        found = []
        for base, (space, node) in self.parts(path, at):
            tree = self.tree(space)
            below = tree.paths_below(base, node, [row.key for row in tree.rows_below(node)])
            found += [(inner, SpacePlace(space, file)) for inner, file in below]
        return found

    # -- new files ---------------------------------------------------------------------------------------------

    def new_keys(self, wanted: Sequence[AgentPath], *, vacant: bool = False) -> tuple[Namespace, list[str]]:
        """The namespace and the keys of new files at paths, as `KeyedTree.new_keys`.

        Raises:
            OSError: also Conflict, they are of several namespaces; EISDIR for a namespace; EPERM for a file in the
                root.
        """
        if any(self.where(path)[1] == ROOT for path in wanted):
            raise errors.oserror(errno.EISDIR)
        places = [self.target(path) for path in wanted]
        if len({space for space, _ in places}) != 1:
            raise Conflict(wanted[0])
        space = places[0][0]
        return space, self.tree(space).new_keys([inner for _, inner in places], vacant=vacant)

    def target(self, path: AgentPath, *, is_dir: bool = False) -> tuple[Namespace, AgentPath]:
        """The place for a new file or directory at a path.

        Raises:
            OSError: EPERM for a file at the root, EINVAL for a name there that no namespace has, ENOTDIR below a file.
        """
        if self.spaces.root:
            return self.spaces.root, path
        directory, name = paths.parent_and_name(path)
        if directory not in self._above:
            self._above[directory] = self._nearest(directory)
        space, inner, missing = self._above[directory]
        if not space:
            require_place_at_root((missing or [name])[0], is_dir or bool(missing))
            return (text_of(paths.to_name(name)),), ROOT
        return space, paths.join(inner, "/".join([*missing, name]))

    def _nearest(self, directory: AgentPath) -> tuple[Namespace, AgentPath, list[str]]:
        """The place of a directory as far as it exists or is made of new namespaces, and the rest of its path."""
        missing: list[str] = []
        while (at := self.find(directory)) is None:
            directory, above = paths.parent_and_name(directory)
            missing.insert(0, above)
        if not at.is_dir:
            raise errors.oserror(errno.ENOTDIR)
        space, inner = self.where(directory)
        while inner == ROOT and missing and (label := label_of(space, missing[0])) is not None:
            space = (*space, label)
            del missing[0]
        return space, inner, missing

    def moved_space(self, path: AgentPath) -> Namespace:
        """The namespace that an existing one becomes when it is moved to a path. EXDEV for a part of keys."""
        directory, name = paths.parent_and_name(path)
        space, inner, missing = self._nearest(directory)
        label = label_of(space, name)
        if label is None or inner != ROOT or missing:
            raise OSError(errno.EXDEV, "A namespace can't become a part of keys")
        return (*space, label)


def label_of(space: Namespace, name: str) -> str | None:
    """The label that a new directory's name stands for; None where it can't be one."""
    try:
        label = text_of(paths.to_name(name))
        label.encode("utf-8")
        checked_namespace((*space, label))
    except (TypeError, ValueError):
        return None
    return label


def require_place_at_root(name: str, is_dir: bool) -> None:
    if not is_dir:
        raise OSError(errno.EPERM, NO_FILES_HERE)
    if label_of((), name) is None:
        raise OSError(errno.EINVAL, f"No namespace can be called '{name}'")
