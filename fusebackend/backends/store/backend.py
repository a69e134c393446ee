"""`StoreBackend`: the files of an agent's long-term memory, in a namespace of a LangGraph `BaseStore`.

    StoreBackend(store, namespace=("memories",))        any store: InMemoryStore, SqliteStore, PostgresStore, …
    StoreBackend(runtime)                               its `store`; also as a factory, `lambda rt: StoreBackend(rt)`
    StoreBackend(namespace=lambda rt: (rt.context.user_id,))    the store and the runtime of the graph that runs
    store+sqlite:PATH?ns=memories  store+postgres:DSN?ns=memories
    StoreBackend.tree(store)  store+sqlite:PATH?tree=1          all of them, each a directory (`namespaces.py`)

A file is an item: its path is the key, and the value has deepagents' format (`values.py`). Values in the seeds' format
are read, and rewritten in today's when the file is changed. Other keys and values are shown by the rule of `StoreTree`:
nothing is hidden. A child namespace is another tree: give it a route of its own.

- No change of another program is overwritten unseen. `edit` and the mount replace only the version that they have read;
  after another program's change `edit` fails, and the mount answers as SEMANTICS.md says. In SQLite and PostgreSQL that
  holds between all programs, in one transaction; in other stores within this process, where another program can come
  between the comparison and the put. A store that makes embeddings (`index=…`) counts as another store for writing.
- `created_at` stays, `modified_at` is the time of the change, and an item's time to live begins anew, as the store is
  configured or else as the item had it.
- Directories are parts of keys: there are no empty ones, and a directory goes with its last file.
- Every verb sees the changes of others: it queries an SQL store, and searches through any other store once.
  `kernel_side` describes mounts. Changes are told to the other backends over the same items (`Items.hub`).
- Searches read all keys below a directory at once, in one range, and only the values that may match. A key may be shown
  under another name than its own, but mostly is not: so keys are filtered by the names they may have, and only the
  names of the rest are worked out. When the budget is spent (`base/budget.py`), the files found by then are returned.

A store that only answers inside of its event loop (`AsyncSqliteStore`, `AsyncPostgresStore`) is refused, and the
error names the alternatives.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

from fusebackend import text
from fusebackend.backends.store.items import Change, Conflict, Items, Record, Row, Settings
from fusebackend.backends.store.namespaces import (
    Namespace,
    SpacePlace,
    Spaces,
    SpaceTree,
    StoreTree,
    require_place_at_root,
)
from fusebackend.backends.store.source import NamespaceLike, StoreSource, checked_namespace
from fusebackend.backends.store.sql_items import SqlItems, StoreDatabase
from fusebackend.backends.store.values import FILE, SUFFIXES, file_bytes, forms_of, written
from fusebackend.base import budget, errors, paths
from fusebackend.base.budget import Spent
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.databases.dsn import LIBPQ_WORDS, conninfo_of
from fusebackend.protocol import (
    WHOLE_FILES,
    FileInfo,
    FileUploadResponse,
    OnExists,
    Refusal,
)
from fusebackend.protocol.scheme import (
    ON_EXISTS,
    TTL,
    Parameter,
    Scheme,
    Url,
    UrlError,
    auto_or_off,
    one_of,
    require_modules,
    url_errors,
)
from fusebackend.remote.agent_verbs import FileVerbs, Loaded, checked
from fusebackend.remote.keyed import ROOT_NODE, Keyed, directories_of, is_path, may_be_shown_as
from fusebackend.volumes.search import Lines, Search

FileFormat: TypeAlias = Literal["v1", "v2"]
Placed: TypeAlias = tuple[Namespace, Change]
T = TypeVar("T")

ATTEMPTS = 10
"""How often `put` is repeated when another program changes the file meanwhile."""

READ_ONLY = "It is a value of the store that is no file, and can be read only"


class File(NamedTuple):
    """A file as it was found."""

    space: Namespace
    key: str
    record: Record
    form: str
    data: bytes


def require_file(file: File) -> None:
    """EACCES if it is a value that is no file."""
    if file.form != FILE:
        raise OSError(errno.EACCES, READ_ONLY)


# -- searching -----------------------------------------------------------------------------------------------------


class StoreSearch(Search):
    """A search of the namespaces below a path."""

    def __init__(self, tree: SpaceTree, path: AgentPath, matcher: Matcher | None) -> None:
        super().__init__(path, matcher)
        self._tree = tree

    def files(self) -> Iterator[FileInfo]:
        return self._each(lambda at: self._tree.info(self._path, at), self._found_below, itemgetter("path"))

    def lines(self, pattern: str, limit: int | None) -> Iterator[Lines]:
        below = partial(self._hits_below, pattern, limit)
        return self._each(partial(self._hits_in, pattern, limit), below, itemgetter(0))

    def _each(
        self,
        one: Callable[[SpacePlace], T],
        below: Callable[[AgentPath, SpacePlace], Iterator[T]],
        order: Callable[[T], str],
    ) -> Iterator[T]:
        """What is found in the file at the path, or below the directory: in each namespace that has a part of it."""
        at = self._tree.find(self._path)
        if at is None:
            return
        if not at.is_dir:
            if self._matches(""):
                yield one(at)
            return
        parts = list(self._tree.parts(self._path, at))
        found = (each for part in parts for each in below(*part))
        yield from found if len(parts) == 1 else sorted(found, key=order)

    def _found_below(self, base: AgentPath, at: SpacePlace) -> Iterator[FileInfo]:
        assert self._matcher is not None, "a glob has a pattern"
        left, space = budget.current(), self._tree.tree(at.space)
        keys = [row.key for row in space.rows_below(at.node)]
        may = _KeyFilter(space, at.node, _relative(base, self._path), self._matcher)
        wanted = [key for key in left.metered(keys) if may.match(key)]
        for found, file in left.metered(space.paths_below(base, at.node, keys, wanted)):
            if self._matcher.matches(_relative(found, self._path)):
                yield space.info(found, file.key, file.suffix)

    def _hits_in(self, pattern: str, limit: int | None, at: SpacePlace) -> Lines:
        record = self._tree.tree(at.space).items.fetch([at.node.key]).get(at.node.key)
        data = None if record is None else forms_of(record.value).get(at.node.suffix)
        return self._path, text.grep_lines((data or b"",), pattern, limit, budget.current().hold)

    def _hits_below(self, pattern: str, limit: int | None, base: AgentPath, at: SpacePlace) -> Iterator[Lines]:
        left, space = budget.current(), self._tree.tree(at.space)
        rows = space.rows_below(at.node)
        asked = rows
        if self._matcher is not None:
            asked = _KeyFilter(space, at.node, _relative(base, self._path), self._matcher).of(rows)
        hits: dict[tuple[str, str], list[tuple[int, str]]] = {}
        count, spent = 0, False
        try:
            for row, record in left.metered(space.items.records(asked)):
                for form, data in forms_of(record.value).items():
                    lines = text.grep_lines((data,), pattern, limit, left.hold)
                    if lines:
                        hits[row.key, form] = lines
                        count += len(lines)
                if limit is not None and count >= limit and self._matcher is None:
                    break
        except Spent:
            spent = True
        for found, file in space.paths_below(base, at.node, [row.key for row in rows], {key for key, _ in hits}):
            lines = hits.get((file.key, file.suffix), [])
            if lines and self._matches(_relative(found, self._path)):
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


LISTED = 100
"""Namespaces that an error names."""


def _namespace(value: str) -> tuple[str, ...]:
    try:
        return checked_namespace(value)
    except ValueError as error:
        raise ValueError(f"must be a namespace such as 'a.b' ({error})") from None


PARAMETERS = {
    "ns": Parameter(_namespace, "the namespace, its parts with dots between"),
    "tree": Parameter(one_of("1"), "1: all namespaces of the store, each a directory"),
}


class StoreBackend(FileVerbs):
    """See the module's docstring.

    Args:
        store_or_runtime: a store, or an object with a `store`. None, without `store` either: that of the graph in which
            a verb is called.
        namespace: a tuple of labels, a string (`"a.b"`), or a function that returns one for the runtime (None outside
            of a graph). It is called for every verb.
        store: the store; `store_or_runtime` is then only the argument of `namespace`.
        file_format: how files are written, `"v2"` (text or base64) or `"v1"` (the seeds' list of lines).
        on_exists: `write` over an existing file is an `"error"` (the seeds) or a `"replace"` (deepagents 0.7).
        feed: allow to make a trigger in PostgreSQL, and an index where the database sorts by language.
        ttl_s: how long a mount caches without a change feed; None for its own default.

    Raises:
        TypeError, ValueError: a store that can't be used, a namespace that can't be one.
    """

    schemes: ClassVar = {
        "store+sqlite": Scheme(
            "store+sqlite:PATH?ns=NAMESPACE",
            "an agent's long-term memory: a namespace of a LangGraph store in SQLite",
            lambda url: open_sqlite(url),
            takes="path",
            parameters={**PARAMETERS, **TTL, **ON_EXISTS},
            features=replace(WHOLE_FILES, blocking=True),
        ),
        "store+postgres": Scheme(
            "store+postgres:DSN?ns=NAMESPACE",
            "the same in PostgreSQL, with what other programs change shown at once",
            lambda url: open_postgres(url),
            parameters={
                "feed": Parameter(
                    auto_or_off,
                    "auto (default): a trigger tells of changes at once, where it may be made; off: they are seen "
                    "after ttl",
                ),
                **PARAMETERS,
                **TTL,
                **ON_EXISTS,
            },
            passed_on=LIBPQ_WORDS,
        ),
    }

    def __init__(
        self,
        store_or_runtime: Any = None,
        *,
        namespace: NamespaceLike = ("filesystem",),
        store: Any = None,
        file_format: FileFormat = "v2",
        on_exists: OnExists = "error",
        feed: bool = True,
        ttl_s: float | None = None,
    ) -> None:
        super().__init__(on_exists=on_exists)
        if file_format not in ("v1", "v2"):
            raise ValueError(f"file_format must be 'v1' or 'v2', not {file_format!r}")
        self.file_format = file_format
        self.ttl_s = ttl_s
        self._source = StoreSource(store_or_runtime, store, namespace, feed=feed)
        self._spaces: Spaces | None = None  # fixed on a mount, and for a URL

    @classmethod
    def over(cls, found: Items | Spaces, **options: Any) -> StoreBackend:
        """A backend of open items, or of the namespaces of a store, which it closes."""
        backend = cls(namespace=("-",), **options)
        backend._spaces = found if isinstance(found, Spaces) else Spaces.of_one(found)
        return backend

    def _where(self) -> str:
        return self._source.where()

    @classmethod
    def tree(cls, store: Any, **options: Any) -> StoreBackend:
        """The whole store, each namespace a directory, as `namespaces.py` describes.

        Options: `file_format`, `on_exists` and `ttl_s`, as for the constructor.
        """
        return cls.over(Spaces.of_store(store), **options)

    @property
    def spaces(self) -> Spaces:
        """The current namespace, or all of them."""
        return self._spaces if self._spaces is not None else Spaces.of_one(self._source.items())

    @property
    def items(self) -> Items:
        """The items of the current namespace."""
        return self.spaces.items(self.spaces.root)

    def close(self) -> None:
        """Close the connections that were opened here. The store itself belongs to the caller."""
        if self._spaces is not None:
            self._spaces.close()
        self._source.close()

    # -- for a mount -------------------------------------------------------------------------------------------

    def kernel_side(self, ttl_s: float) -> StoreBackend:
        """This backend for a mount: the namespace is fixed, and a search through the store is valid for `ttl_s`.

        PostgreSQL notifies of every change (`items.feed`). For SQLite `token` is a cheap test for changes, so only the
        kernel's entry and attribute timeouts delay them. Other stores are searched once in that time.

        Raises:
            OSError, TypeError, ValueError: there is no store or no namespace outside of a graph.
        """
        side = copy.copy(self)
        side._spaces = self.spaces.for_mount(ttl_s)
        return side

    @property
    def blocking(self) -> bool:
        return self.items.blocking

    @property
    def durable(self) -> bool:
        return self.items.durable

    @property
    def change_feed(self) -> bool:
        return self.items.feed

    def token(self) -> Hashable:
        """Equal tokens mean that nothing was changed in between except through this object; None when unknown."""
        try:
            spaces = self.spaces
            token = spaces.token()
        except OSError:  # the next access will raise it
            return None
        return None if token is None else (token, spaces.hub.count(spaces.origin))

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        return self.spaces.trouble

    def follow(self, changed: Callable[..., None]) -> Callable[[], None]:
        """Call `changed(*paths, elsewhere=…)` after each change that is not made through this object.

        No paths stand for any. Changes of this process's agents, through any backend over the same items, arrive at
        once, in the thread that made them; those of others (`elsewhere`) only where there is a feed.

        Returns:
            a function that ends it.
        """
        spaces = self.spaces

        def elsewhere(key: str | None) -> None:
            changed(*(_places_of(key) if key is not None else ()), elsewhere=True)

        with contextlib.ExitStack() as ends:
            ends.callback(spaces.hub.watch(spaces.origin, lambda paths: changed(*paths, elsewhere=False)))
            ends.callback(spaces.items(spaces.root).watch(elsewhere))
            return ends.pop_all().close

    def admits(self, path: AgentPath, *, is_dir: bool) -> None:
        """Raise the error of any file or directory at this path, before it is written in vain. Queries nothing."""
        directory, name = paths.parent_and_name(path)
        if directory == ROOT and not self.spaces.root:
            require_place_at_root(name, is_dir)

    # -- files --------------------------------------------------------------------------------------------------

    _seen: SpaceTree | None = None
    """Of a view of one moment."""

    def _tree(self) -> SpaceTree:
        """The tree for one verb."""
        return self._seen or SpaceTree(self.spaces)

    def _list(self, path: AgentPath) -> list[FileInfo]:
        tree = self._tree()
        at = tree.find(path)
        if at is None or not at.is_dir:
            raise errors.oserror(errno.ENOENT if at is None else errno.ENOTDIR)
        return tree.entries(path, at)

    def _load(self, path: AgentPath) -> Loaded:
        file = self._there(self._tree(), path)
        if file.form != FILE:
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
        if len(set(found)) < len(found) or not directories_of(found).isdisjoint(found):
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
        _, files = self._all(tree, path)
        self._swap(
            tree, [(file.space, Change(file.node.key, None)) for _, file in files], path, *(found for found, _ in files)
        )

    def _rename(self, old: AgentPath, new: AgentPath) -> None:
        """Move a file or directory; from one namespace to another by copy and delete."""
        tree = self._tree()
        at, files = self._all(tree, old)
        if tree.find(new) is not None:
            raise errors.oserror(errno.EEXIST)
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
        if len(files) > 1 and not if_version and not if_absent:
            with contextlib.suppress(TypeError, *Refusal):
                given = [(checked(path), bytes(memoryview(content))) for path, content in files]
                self._put_together(given, new=False)
                return [FileUploadResponse(path=path) for path, _ in files]
        return super().upload_files(files, if_version=if_version, if_absent=if_absent)

    def _moment(self) -> StoreBackend:
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
        if text.is_utf8(inner) or not items.text_only:
            record = items.fetch([inner]).get(inner)
            data = None if record is None else file_bytes(record.value)
            if record is not None and data is not None:
                return File(space, inner, record, FILE, data)
        node = tree.tree(space).find(inner)
        if node is None:
            return None
        if node.is_dir:
            raise errors.oserror(errno.EISDIR)
        record = items.fetch([node.key]).get(node.key)
        data = None if record is None else forms_of(record.value).get(node.suffix)
        return None if record is None or data is None else File(space, node.key, record, node.suffix, data)

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

    def _all(self, tree: SpaceTree, path: AgentPath) -> tuple[SpacePlace, list[tuple[AgentPath, SpacePlace]]]:
        """What is at a path, and the file there, or all below it. ENOENT; EACCES if one of them is a value that is no
        file."""
        at = tree.find(path)
        files = [] if at is None else tree.files(path, at)
        if at is None or not files:
            raise errors.oserror(errno.ENOENT)
        for found, file in files:
            if file.node.suffix:
                raise OSError(errno.EACCES, f"'{found}': {READ_ONLY}")
        return at, files

    def _search(self, path: AgentPath, matcher: Matcher | None, pattern: str | None = None) -> Search:
        return StoreSearch(self._tree(), path, matcher)


def _places_of(key: str) -> tuple[AgentPath, ...]:
    """The paths that a change of a key may affect; none when that is unknown."""
    path = key if key.startswith("/") else f"/{key}"
    try:
        known = paths.normalise(path) == path and "%" not in path
    except paths.PathError:
        known = False
    return tuple(AgentPath(path + suffix) for suffix in SUFFIXES) if known else ()


# -- URLs -------------------------------------------------------------------------------------------------------------


def open_sqlite(url: Url) -> StoreBackend:
    """The backend of `store+sqlite:PATH?ns=NAME`. LangGraph makes the tables, and the file if its directory exists."""
    require_modules(url, "langgraph", "langgraph.store.sqlite", "sqlite3")
    from fusebackend.backends.store.sqlite_database import SqliteStoreDatabase

    parent = os.path.dirname(url.rest)
    if not os.path.isdir(parent):
        raise UrlError(f"'{url.masked}': there is no directory '{parent}'")
    if os.path.exists(url.rest) and not os.path.isfile(url.rest):
        raise UrlError(f"'{url.masked}': '{url.rest}' is not a file")
    with url_errors(url):
        return _opened(url, SqliteStoreDatabase.of_file(url.rest, setup=_sqlite_tables))


def _sqlite_tables(connection: Any) -> None:
    from langgraph.store.sqlite import SqliteStore

    SqliteStore(connection).setup()


def open_postgres(url: Url) -> StoreBackend:
    """The backend of `store+postgres:DSN?ns=NAME`. LangGraph makes the tables where they are missing."""
    require_modules(url, "langgraph", "langgraph.store.postgres", "psycopg", "psycopg_pool")
    from fusebackend.backends.store.postgres_database import PostgresStoreDatabase

    conninfo = conninfo_of(url)
    with url_errors(url):
        return _opened(url, PostgresStoreDatabase.of_url(conninfo, setup=_postgres_tables))


def _postgres_tables(connection: Any) -> None:
    from langgraph.store.postgres import PostgresStore

    PostgresStore(connection).setup()


def _opened(url: Url, database: StoreDatabase) -> StoreBackend:
    """The backend over a namespace of a database, or over all. It closes the database."""
    on_exists = url.parameters.get("on_exists", "error")
    namespace = url.parameters.get("ns")
    if url.parameters.get("tree"):
        if namespace is not None:
            database.close()
            raise UrlError(f"'{url.masked}': tree=1 shows all namespaces; leave ns out")
        return StoreBackend.over(Spaces.of_database(database), on_exists=on_exists, ttl_s=url.parameters.get("ttl"))
    if namespace is None:
        there = list(map(".".join, database.namespaces()[:LISTED]))
        database.close()
        holds = f"; this store holds {', '.join(there)}" if there else ""
        how = "add ?ns=NAME, such as ?ns=memories, or ?tree=1 for all"
        raise UrlError(f"'{url.masked}' names no namespace; {how}{holds}")
    items = SqlItems(database, namespace, Settings(feed=url.parameters.get("feed", True)))
    return StoreBackend.over(items, ttl_s=url.parameters.get("ttl"), on_exists=on_exists)
