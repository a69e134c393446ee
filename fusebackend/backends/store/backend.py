"""`StoreBackend`: the files of an agent's long-term memory, in a namespace of a LangGraph `BaseStore`.

    StoreBackend(store, namespace=("memories",))        any store: InMemoryStore, SqliteStore, PostgresStore, …
    StoreBackend(runtime)                               its `store`; also as a factory, `lambda rt: StoreBackend(rt)`
    StoreBackend(namespace=lambda rt: (rt.context.user_id,))    the store and the runtime of the graph that runs
    store+sqlite:PATH?ns=memories  store+postgres:DSN?ns=memories
    StoreBackend.tree(store)  store+sqlite:PATH?tree=1          all of them, each a directory (`namespaces.py`)

A file is an item: its path is the key, and the value is what deepagents writes (`values.py`). Values in the seeds'
format are read, and rewritten in today's when the file is changed. Other keys and values are shown by the rule in
`names.py`: nothing is hidden. A child namespace is another tree: give it a route of its own.

- Who writes last does not win unseen. `edit` and the mount write only over what they have read; when somebody else
  was quicker, `edit` says so, and the mount answers as SEMANTICS.md says. In SQLite and PostgreSQL that holds between
  all programs, in one transaction; in other stores within this process, where another program can come between the
  comparison and the put. A store that makes embeddings (`index=…`) counts as another store for writing.
- `created_at` stays, `modified_at` is the time of the change, and an item's time to live begins anew, as the store is
  configured or else as the item had it.
- Directories are parts of keys: an empty one can't be, and one is gone with its last file.
- What others write is seen at once by every verb: SQL stores are asked, others are searched through, once for each
  verb. What a mount sees, and when, is said in `kernel_side`.

A store that only answers inside of its event loop (`AsyncSqliteStore`, `AsyncPostgresStore`) is refused with words that
say what to give instead.
"""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from fusebackend.backends.store.items import Change, Conflict, Items, Record
from fusebackend.backends.store.names import is_text
from fusebackend.backends.store.search import find_files, grep_files
from fusebackend.backends.store.source import Namespace, StoreSource
from fusebackend.backends.store.tree import Node, StoreTree
from fusebackend.backends.store.values import bytes_of, written
from fusebackend.base import errors, paths
from fusebackend.base.errors import code_of
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import FileDownloadResponse, FileInfo, FileUploadResponse
from fusebackend.remote.agent_verbs import FileVerbs, Loaded, Refusal, checked
from fusebackend.remote.buffer import digest_of

if TYPE_CHECKING:
    from fusebackend.backends.store.namespaces import NamespaceTree

ATTEMPTS = 10
"""How often a file that others write at the same time is replaced anew before that is an error."""

READ_ONLY = "It is a value of the store that is no file, and can be read only"


class File(NamedTuple):
    """A file as it was found."""

    key: str
    record: Record


class StoreBackend(FileVerbs):
    """See the module's docstring.

    Args:
        store_or_runtime: a store, or anything with a `store`. None, without `store` either: that of the graph in which
            a verb is called.
        namespace: a tuple of labels, a string (`"a.b"`), or what gives one when it is called with the runtime (None
            outside of a graph). It is asked at every verb.
        store: the store; `store_or_runtime` is then only what `namespace` is called with.
        file_format: how files are written, `"v2"` (text or base64) or `"v1"` (the seeds' list of lines).
        on_exists: what `write` does to an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
        feed: may a trigger, and where the database sorts by language an index, be made in PostgreSQL?
        ttl_s: for how long a mount believes what it has seen where no feed tells of changes; None for its own time.

    Raises:
        TypeError, ValueError: a store that can't be used, a namespace that can't be one.
    """

    exact_sizes = True

    def __init__(
        self,
        store_or_runtime: Any = None,
        *,
        namespace: Namespace = ("filesystem",),
        store: Any = None,
        file_format: Literal["v1", "v2"] = "v2",
        on_exists: Literal["error", "replace"] = "error",
        feed: bool = True,
        ttl_s: float | None = None,
    ) -> None:
        super().__init__(on_exists=on_exists)
        if file_format not in ("v1", "v2"):
            raise ValueError(f"file_format must be 'v1' or 'v2', not {file_format!r}")
        self.file_format = file_format
        self.ttl_s = ttl_s
        self._source = StoreSource(store_or_runtime, store, namespace, feed=feed)
        self._items: Items | None = None  # when they are settled: on a mount, or opened by a URL

    @classmethod
    def over(cls, items: Items, **options: Any) -> StoreBackend:
        """A backend of items that are open already, and that it closes."""
        backend = cls(namespace=("-",), **options)
        backend._items = items
        return backend

    def _where(self) -> str:
        return self._source.where()

    @classmethod
    def tree(cls, store: Any, **options: Any) -> NamespaceTree:
        """The whole store, each namespace a directory; `namespaces.py` says what is where.

        Options: `file_format`, `on_exists` and `ttl_s`, as for the constructor.
        """
        from fusebackend.backends.store.namespaces import NamespaceTree, Spaces

        return NamespaceTree(Spaces.of_store(store), **options)

    @property
    def items(self) -> Items:
        """The items of the namespace that is meant here and now."""
        return self._items if self._items is not None else self._source.items()

    def close(self) -> None:
        """Let go of the connections that were opened here. The store itself is its owner's."""
        if self._items is not None:
            self._items.close()
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- for a mount -------------------------------------------------------------------------------------------

    def kernel_side(self, ttl_s: float) -> StoreBackend:
        """This backend as a mount speaks to it: the namespace settled, and a search of the store, where one is needed,
        good for `ttl_s`.

        A PostgreSQL store tells of every change (`items.feed`). For SQLite `token` says cheaply whether anything has
        changed, so only the kernel's own time to live stands between a change and who looks. Other stores are searched
        once in that time.

        Raises:
            OSError, TypeError, ValueError: there is no store or no namespace outside of a graph.
        """
        side = copy.copy(self)
        side._items = self.items.for_mount(ttl_s)
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
        """Two equal ones mean that nobody has changed anything in between, but this object itself; None when that can't
        be told."""
        try:
            token = self.items.token()
        except OSError:  # whoever looks will be told what is wrong
            return None
        return None if token is None else (token, self.items.hub.count(self.items.origin))

    def follow(self, changed: Callable[..., None]) -> Callable[[], None]:
        """Call `changed(*paths, elsewhere=…)` after each change that is not made through this object itself, without
        paths when anything may have changed. Returns what ends that.

        What agents of this process change, through whichever backend over the same items, is told at once, in the
        thread that made the change; what others change (`elsewhere`) only where there is a feed.
        """
        items = self.items

        def elsewhere(key: str | None) -> None:
            changed(*(_places_of(key) if key is not None else ()), elsewhere=True)

        ends = (items.hub.watch(items.origin, lambda paths: changed(*paths, elsewhere=False)), items.watch(elsewhere))

        def end() -> None:
            for stop in ends:
                stop()

        return end

    def _tell(self, items: Items, *changed: AgentPath) -> None:
        items.hub.tell(items.origin, changed)

    def upload_if(self, path: str, content: bytes, digest: bytes | None) -> FileUploadResponse:
        """Write a file if what is there now has this digest (`buffer.digest_of`; None: if there is nothing), in one
        step. The error is `conflict` if not."""
        try:
            found, tree = checked(path), self._tree()
            file = self._kept(tree, found)
            before = None if file is None else digest_of(bytes_of(file.record.value)[0])
            if before != digest:
                raise Conflict(path)
            tree.items.swap([self._change(tree, found, file, content)])
        except (Conflict, FileExistsError):
            return FileUploadResponse(path=path, error=errors.CONFLICT)
        except Refusal as error:
            return FileUploadResponse(path=path, error=code_of(error))
        self._tell(tree.items, found)
        return FileUploadResponse(path=path)

    # -- primitives --------------------------------------------------------------------------------------------

    def _tree(self) -> StoreTree:
        return StoreTree(self.items.moment())

    def _list(self, path: AgentPath) -> list[FileInfo]:
        tree = self._tree()
        directory = tree.find(path)
        if directory is None:
            raise errors.oserror(errno.ENOENT)
        if not directory.is_dir:
            raise errors.oserror(errno.ENOTDIR)
        return [node.info(paths.join(path, name)) for name, node in tree.children(directory).items()]

    def _load(self, path: AgentPath) -> Loaded:
        return self._loaded(self._tree(), path)

    def _loaded(self, tree: StoreTree, path: AgentPath) -> Loaded:
        file = self._kept(tree, path)
        if file is None:
            raise errors.oserror(errno.ENOENT)
        value = file.record.value
        data, foreign = bytes_of(value)
        if foreign:
            return Loaded(data, None, file.record.updated_at)
        times = (value.get(name) for name in ("created_at", "modified_at"))
        return Loaded(data, *(str(time) if time else None for time in times))

    def _kept(self, tree: StoreTree, path: AgentPath) -> File | None:
        """The file at a path, None where there is nothing. EISDIR.

        One whose key is the path, letter for letter, is found at once, and also where it is a directory as well:
        deepagents reads and writes it by that path.
        """
        if is_text(path) or not tree.items.text_only:
            record = tree.items.fetch([path]).get(path)
            if record is not None and not bytes_of(record.value)[1]:
                return File(path, record)
        node = tree.find(path)
        if node is None:
            return None
        if node.is_dir:
            raise errors.oserror(errno.EISDIR)
        record = tree.items.fetch([node.key]).get(node.key)
        return None if record is None else File(node.key, record)

    def _put(self, path: AgentPath, data: bytes, *, replace: bool) -> None:
        for _ in range(ATTEMPTS):
            tree = self._tree()
            file = self._kept(tree, path)
            if file is not None and not replace:
                raise errors.oserror(errno.EEXIST)
            try:
                tree.items.swap([self._change(tree, path, file, data)])
            except Conflict:
                continue
            self._tell(tree.items, path)
            return
        raise errors.oserror(errno.EBUSY)

    def _change(self, tree: StoreTree, path: AgentPath, file: File | None, data: bytes) -> Change:
        """What makes a file, or replaces what it was."""
        before = None if file is None else file.record.value
        if file is not None and bytes_of(before)[1]:
            raise OSError(errno.EACCES, READ_ONLY)
        value = written(data, before, file_format=self.file_format, takes_nul=tree.items.takes_nul)
        if file is None:
            return Change(tree.new_key(path), value, None)
        return Change(file.key, value, file.record.version, file.record.ttl_minutes)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """All files in one transaction, where nothing is in their way; those of which one is fail singly."""
        if len(files) < 2 or not self._upload_together(files):
            return super().upload_files(files)
        return [FileUploadResponse(path=path) for path, _ in files]

    def _upload_together(self, files: list[tuple[str, bytes]]) -> bool:
        """Upload all, or nothing and False."""
        try:
            found = {checked(path): bytes(memoryview(content)) for path, content in files}
            above = {directory for path in found for directory in _above(path)}
            if len(found) < len(files) or not above.isdisjoint(found):
                return False  # one changes what another finds
            tree = self._tree()
            changes = [self._change(tree, path, self._kept(tree, path), data) for path, data in found.items()]
            tree.items.swap(changes)
        except (TypeError, *Refusal):
            return False
        self._tell(tree.items, *found)
        return True

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        try:
            tree = self._tree()
        except OSError as error:
            return [FileDownloadResponse(path=path, error=code_of(error)) for path in paths]
        responses = []
        for path in paths:
            try:
                responses.append(FileDownloadResponse(path=path, content=self._loaded(tree, checked(path)).data))
            except Refusal as error:
                responses.append(FileDownloadResponse(path=path, error=code_of(error)))
        return responses

    def _rewrite(self, path: AgentPath, change: Callable[[bytes], bytes]) -> None:
        tree = self._tree()
        file = self._kept(tree, path)
        if file is None:
            raise errors.oserror(errno.ENOENT)
        before, foreign = bytes_of(file.record.value)
        if foreign:
            raise OSError(errno.EACCES, READ_ONLY)
        tree.items.swap([self._change(tree, path, file, change(before))])
        self._tell(tree.items, path)

    def _remove(self, path: AgentPath) -> None:
        tree = self._tree()
        files = self._files(tree, path)
        if not files:
            raise errors.oserror(errno.ENOENT)
        require_no_values(files)
        tree.items.swap([Change(node.key, None) for _, node in files])
        self._tell(tree.items, path, *(found for found, _ in files))

    def _rename(self, old: AgentPath, new: AgentPath) -> None:
        tree = self._tree()
        files = self._files(tree, old)
        if not files:
            raise errors.oserror(errno.ENOENT)
        if tree.find(new) is not None:
            raise errors.oserror(errno.EEXIST)
        require_no_values(files)
        stem = tree.new_key(new)
        records = tree.items.fetch([node.key for _, node in files])
        changes = []
        for path, node in files:
            record = records.get(node.key)
            if record is None:
                raise Conflict(node.key)
            changes.append(Change(stem + path[len(old) :], record.value, None, record.ttl_minutes))
            changes.append(Change(node.key, None, record.version))
        tree.items.swap(changes)
        self._tell(tree.items, old, new, *(path for path, _ in files))

    def _files(self, tree: StoreTree, path: AgentPath) -> list[tuple[AgentPath, Node]]:
        """The file at a path, or all below it."""
        node = tree.find(path)
        if node is None:
            return []
        return tree.files_below(path, node, tree.rows_below(node)) if node.is_dir else [(path, node)]

    def _find(self, path: AgentPath, matcher: Matcher) -> Iterator[FileInfo]:
        return find_files(self._tree(), path, matcher)

    def _grep(
        self, pattern: str, path: AgentPath, matcher: Matcher | None, limit: int | None
    ) -> Iterator[tuple[str, Sequence[tuple[int, str]]]]:
        return grep_files(self._tree(), pattern, path, matcher, limit)


def _above(path: AgentPath) -> Iterator[AgentPath]:
    """The directories on the way to a path, without the root."""
    directory, _ = paths.parent_and_name(path)
    while directory != paths.ROOT:
        yield directory
        directory, _ = paths.parent_and_name(directory)


def require_no_values(files: Sequence[tuple[AgentPath, Node]]) -> None:
    for path, node in files:
        if node.foreign:
            raise OSError(errno.EACCES, f"'{path}': {READ_ONLY}")


def _places_of(key: str) -> tuple[AgentPath, ...]:
    """The paths at which something may look different when a key has changed; none when that can't be said."""
    path = key if key.startswith("/") else f"/{key}"
    try:
        known = paths.normalise(path) == path and "%" not in path
    except paths.PathError:
        known = False
    return (AgentPath(path), AgentPath(path + ".json")) if known else ()
