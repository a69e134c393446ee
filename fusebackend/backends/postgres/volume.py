"""`PostgresVolume`: the kernel face of `PostgresBackend`, a tree in a database that many hosts mount at once.

How it works. The rules are `TreeVolume`'s; they run on a `Transaction`, which holds what they ask for and gathers what
they change. Each operation that changes something is one transaction of two round trips, is committed when it returns,
and is done once more when the server gave it up for another's sake. Reads are single statements: each sees one state,
waits for nobody, and any number of them run at once. There is nothing kept in memory that another host could have
changed meanwhile.

`lock` holds nobody back here. Several calls become one in `changing`, which keeps all other changes of the volume out,
on every host; and `viewing`, in which all reads see one state. Both belong to the thread that entered them.

Durability: commits don't wait for the disk, but for the server's word that they happened. `fsync` is a commit that
waits for the disk as well, and so for everything that was committed before it. When the connection is lost between a
commit and its answer, nobody knows whether it has happened: that is EIO for whoever asked.
"""

from __future__ import annotations

import contextlib
import errno
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fusebackend.backends.chunks import CHUNK_BYTES, CHUNK_SHIFT, Chunk
from fusebackend.backends.native import Changes
from fusebackend.backends.postgres import notices, schema, statements
from fusebackend.backends.postgres.batch import Statement, send
from fusebackend.backends.postgres.connections import CONNECTIONS, Connections, gone
from fusebackend.backends.postgres.errors import told
from fusebackend.backends.postgres.feed import VolumeFeed
from fusebackend.backends.postgres.rows import StoredInode
from fusebackend.backends.postgres.session import Session
from fusebackend.backends.postgres.transaction import Transaction, Wanted
from fusebackend.backends.postgres.uses import Uses
from fusebackend.backends.storage import Inode
from fusebackend.backends.tree import TreeVolume, is_access_noted, now_ns
from fusebackend.errors import oserror
from fusebackend.protocol import Attr, AttrChanges, Caller, Change, Features, Link, StatFs

if TYPE_CHECKING:
    from psycopg import Connection

T = TypeVar("T")

FREE_BLOCKS = 1 << 38
"""Of 4 KiB: a server does not tell how much room it has, so `df` shows 1 PiB."""


class _Scope(threading.local):
    """What a thread is in the middle of."""

    def __init__(self) -> None:
        self.transaction: Transaction | None = None
        self.view: Any = None  # a connection in the middle of a transaction that only reads
        self.told: list[Changes] = []
        self.lost_names: list[int] = []


class PostgresVolume(TreeVolume):
    """See the module's docstring.

    Args:
        conninfo: libpq's words for the connection, or a URI.
        name: the volume; made if there is none of that name.
        conflict: what a rewrite of a file that another host has changed meanwhile is: `"error"` (ESTALE), or
            `"last-writer"`, who wins.
        connections: how many operations run at once.

    Raises:
        OSError: the server can't be reached, or refuses; `VolumeDatabaseError` when its tables are too new.
    """

    features = Features(blocking=True, shared=True)

    def __init__(
        self,
        conninfo: str,
        name: str,
        *,
        conflict: Literal["error", "last-writer"] = "error",
        connections: int = CONNECTIONS,
    ) -> None:
        super().__init__()
        self.lock = contextlib.nullcontext()
        self.name = name
        self.conninfo = conninfo
        self._last_writer_wins = conflict == "last-writer"
        self._scope = _Scope()
        self._uses = Uses()
        self._connections = Connections(conninfo, connections)
        try:
            self._connections.run(schema.migrate)
            self.id = self._connections.run(lambda connection: schema.volume_id(connection, name))
            self._session = Session(conninfo, self.id, self._uses)
            self._feed = VolumeFeed(self, conninfo, self.id, self.session)
        except BaseException:
            self._connections.close()
            raise
        self._closed = False

    @property
    def connections(self) -> Connections:
        """For what else is asked of the database on the volume's behalf, as long as it is open."""
        return self._connections

    @property
    def session(self) -> str:
        """The name under which this process's changes are told."""
        return str(self._session.id)

    # -- transactions ------------------------------------------------------------------------------------------

    def _change(self, wanted: Wanted, rule: Callable[..., T], *arguments: Any) -> T:
        """Run a rule in a transaction: that of the scope, or one of its own."""
        transaction = self._scope.transaction
        if transaction is not None:
            with told():
                if transaction.is_large:
                    transaction.flush()
                transaction.fetch(wanted)
                return rule(*arguments)
        version = self._session.new_version()

        def attempt(connection: Connection[Any]) -> T:
            with self._transaction(Transaction(connection, self.id, version)) as transaction:
                transaction.fetch(wanted)
                return rule(*arguments)

        return self._connections.run(attempt)

    @contextlib.contextmanager
    def _transaction(self, transaction: Transaction) -> Iterator[Transaction]:
        """What this thread does in between is one transaction, which is committed at the end."""
        scope = self._scope
        scope.transaction = transaction
        scope.lost_names = []
        try:
            yield transaction
            transaction.commit(self._notices)
        except BaseException:
            transaction.rollback()
            raise
        finally:
            scope.transaction = None
        for node in scope.lost_names:
            if node in self._uses:
                self._uses.note_nameless(node)

    def _notices(self, changes: Sequence[Change]) -> list[Statement]:
        channel = notices.channel(self.id)
        return [statements.notify(channel, payload) for payload in notices.encode(self.session, changes)]

    @contextlib.contextmanager
    def changing(self) -> Iterator[Changes]:
        """As in `NativeVolume`: one transaction, alone with the volume. An error undoes all of it.

        Observers and subscribers are told when it has been committed.
        """
        changes = Changes()
        scope = self._scope
        if scope.transaction is not None:  # inside of another one, which will tell
            scope.told.append(changes)
            yield changes
            return
        scope.told = [changes]
        try:
            with told(), self._connections.leased(self._begin_alone) as connection:
                version = self._session.new_version()
                with self._transaction(Transaction(connection, self.id, version, exclusive=True, begun=True)):
                    yield changes
        except BaseException:
            self._tell_all(scope.told, reports=False)
            raise
        self._tell_all(scope.told, reports=True)

    def _begin_alone(self, connection: Connection[Any]) -> None:
        send(connection, [statements.BEGIN, statements.lock_changes(self.id, exclusive=True)])

    def _tell_all(self, told: Sequence[Changes], *, reports: bool) -> None:
        """What has failed is told as well: it may have happened, and if not, looking again does no harm."""
        shown = [self.report(changes.reports) for changes in told if reports]
        for changes in told:
            self.tell(changes)
        for tell in shown:
            tell()

    @contextlib.contextmanager
    def viewing(self) -> Iterator[None]:
        """What this thread reads in between is one state of the volume."""
        scope = self._scope
        if scope.transaction is not None or scope.view is not None:
            yield
            return
        with told(), self._connections.leased(_begin_view) as connection:
            scope.view = connection
            try:
                yield
            finally:
                scope.view = None
                if not connection.closed:
                    send(connection, [statements.COMMIT])

    def _query(self, statement: Statement) -> list[Any]:
        if self._scope.view is not None:
            with told():
                return send(self._scope.view, [statement])[0]
        return self._connections.query(*statement)

    @property
    def _here(self) -> Transaction:
        transaction = self._scope.transaction
        assert transaction is not None, "a rule runs in a transaction"
        return transaction

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        if self._scope.transaction is not None:
            return self._change(Wanted(entries=((parent, name),)), super().lookup, parent, name)
        rows = self._query(statements.found(self.id, parent, name))
        self._require_directory(rows, parent)
        if rows[0][2] is None:
            raise oserror(errno.ENOENT, name)
        return StoredInode.of(rows[0][2:])

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,)), super().readdir, node, after, limit)
        rows = self._query(statements.listed(self.id, node, after, limit))
        self._require_directory(rows, node)
        return [(row[2], StoredInode.of(row[3:])) for row in rows if row[2] is not None]

    def wrong_links(self, links: Sequence[Link]) -> Sequence[Link]:
        if not links:
            return []
        found = {Link(*row) for row in self._query(statements.links(self.id, links))}
        return [link for link in links if link not in found]

    def _require_directory(self, rows: Sequence[Any], node: int) -> None:
        if not rows:
            raise gone()
        mode, nlink = rows[0][:2]
        if not stat.S_ISDIR(mode):
            raise oserror(errno.ENOTDIR)
        if nlink == 0:
            self._require_used(node)

    def _require_used(self, node: int) -> None:
        """A node without a name is there for who uses it."""
        if node not in self._uses:
            raise gone()
        self._session.look_after(node)

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        return self._change(Wanted(entries=((parent, name),)), super().mknod, parent, name, mode, rdev, caller)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._change(Wanted(entries=((parent, name),)), super().mkdir, parent, name, mode, caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        return self._change(Wanted(entries=((parent, name),)), super().symlink, parent, name, target, caller)

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        wanted = Wanted(nodes=(node,), entries=((new_parent, new_name),))
        return self._change(wanted, super().link, node, new_parent, new_name)

    def unlink(self, parent: int, name: bytes) -> None:
        self._change(Wanted(entries=((parent, name),)), super().unlink, parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        self._change(Wanted(entries=((parent, name),), empty=True), super().rmdir, parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        moves = parent != new_parent
        entries = ((parent, name), (new_parent, new_name))
        wanted = Wanted(entries=entries, empty=True, rename=moves, line=(parent, new_parent) if moves else ())
        self._change(wanted, super().rename, parent, name, new_parent, new_name, flags)

    # -- attributes --------------------------------------------------------------------------------------------

    def getattr(self, node: int) -> Attr:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,)), super().getattr, node)
        return self._read_inode(node)

    def _read_inode(self, node: int) -> StoredInode:
        rows = self._query(statements.inode(self.id, node))
        if not rows:
            raise gone()
        inode = StoredInode.of(rows[0])
        if inode.nlink == 0:
            self._require_used(node)
        return inode

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        cut = None if changes.size is None else (node, changes.size)
        return self._change(Wanted(nodes=(node,), cut=cut), super().setattr, node, changes)

    def readlink(self, node: int) -> bytes:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,)), super().readlink, node)
        inode, chunks = self._read_contents(node, 0, 0)
        if not stat.S_ISLNK(inode.mode):
            raise oserror(errno.EINVAL)
        return bytes(chunks[0])

    def getxattr(self, node: int, name: bytes) -> bytes:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,), xattrs=node), super().getxattr, node, name)
        try:
            return self._read_xattrs(node)[name]
        except KeyError:
            raise oserror(errno.ENODATA, name) from None

    def listxattr(self, node: int) -> Sequence[bytes]:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,), xattrs=node), super().listxattr, node)
        return sorted(self._read_xattrs(node))

    def _read_xattrs(self, node: int) -> dict[bytes, bytes]:
        rows = self._query(statements.attributes(self.id, node))
        if not rows:
            raise gone()
        if rows[0][0] == 0:
            self._require_used(node)
        return {name: value for _, name, value in rows if name is not None}

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        self._change(Wanted(nodes=(node,), xattrs=node), super().setxattr, node, name, value)

    def removexattr(self, node: int, name: bytes) -> None:
        self._change(Wanted(nodes=(node,), xattrs=node), super().removexattr, node, name)

    # -- data --------------------------------------------------------------------------------------------------

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        attr = self.mknod(parent, name, stat.S_IFREG | stat.S_IMODE(mode), 0, caller)
        self._uses.open(attr.node, flags, 0)
        return attr

    def open(self, node: int, flags: int) -> None:
        if self._scope.transaction is not None:
            contents = self._change(Wanted(nodes=(node,)), self._stored, node).contents
        else:
            contents = self._read_inode(node).contents
        self._uses.open(node, flags, contents)

    def release(self, node: int, flags: int) -> None:
        self._uses.release(node, flags)
        self._session.wake()

    def read(self, node: int, offset: int, size: int) -> bytes:
        first = offset >> CHUNK_SHIFT
        last = (offset + max(size, 1) - 1) >> CHUNK_SHIFT
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,), read=(node, first, last)), super().read, node, offset, size)
        inode, chunks = self._read_contents(node, first, last)
        if stat.S_ISDIR(inode.mode):
            raise oserror(errno.EISDIR)
        if is_access_noted(inode) and self._scope.view is None:
            self._query(statements.accessed(self.id, node, now_ns()))
        return _cut_out(inode.size, chunks, offset, size)

    def _read_contents(self, node: int, first: int, last: int) -> tuple[StoredInode, dict[int, bytes]]:
        rows = self._query(statements.contents(self.id, node, first, last))
        if not rows:
            raise gone()
        inode = StoredInode.of(rows[0])
        if inode.nlink == 0:
            self._require_used(node)
        return inode, {row[-2]: row[-1] for row in rows if row[-2] is not None}

    def write(self, node: int, offset: int, data: bytes) -> int:
        wanted = Wanted(nodes=(node,), write=(node, offset, len(data)))
        return self._change(wanted, super().write, node, offset, data)

    def append(self, node: int, data: bytes) -> int:
        return self._change(Wanted(nodes=(node,), append=node), super().append, node, data)

    # -- life --------------------------------------------------------------------------------------------------

    def fsync(self, node: int, datasync: bool = False) -> None:
        self._connections.run(_sync)

    def sync(self) -> None:
        self.fsync(0)

    def statfs(self) -> StatFs:
        (used_bytes,) = self._query(("SELECT pg_database_size(current_database())", ()))[0]
        return StatFs(4096, used_bytes // 4096 + FREE_BLOCKS, FREE_BLOCKS, 1 << 40, 1 << 39)

    def hold(self, node: int) -> None:
        self._uses.hold(node)

    def forget(self, nodes: Iterable[int]) -> None:
        self._uses.forget(nodes)
        self._session.wake()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._feed.close()
        try:
            self.sync()
        finally:
            try:
                self._session.close()
            finally:
                self._connections.close()

    def changed_elsewhere(self, changes: Sequence[Change]) -> None:
        """Other hosts have made these changes: what is open here may have lost its name."""
        for change in changes:
            nodes = [change.node] if change != Change() else self._uses.opened()
            for node in nodes:
                if node is not None and self._uses.is_open(node):
                    self._session.look_after(node)
        self.publish(*changes)

    # -- storage -----------------------------------------------------------------------------------------------

    def _stored(self, node: int) -> StoredInode:
        return self._here.inode(node)

    def _inode(self, node: int) -> Inode:
        inode = self._here.inode(node)
        if inode.nlink == 0 and not inode.is_new and node not in self._uses:
            raise gone()
        return inode

    def _parent_of(self, node: int) -> int:
        return self._here.parent(node)

    def _new_inode(self, mode: int, parent: int) -> Inode:
        inode = StoredInode(self._session.new_node(), mode, parent=parent)
        self._here.add(inode)
        return inode

    def _changed(self, inode: Inode) -> None:
        assert isinstance(inode, StoredInode)
        self._here.changed(inode)

    def _reap(self, inode: Inode) -> None:
        """A node without a name is freed by `Session`, when nobody on any host uses it any more."""
        if inode.nlink == 0:
            used = inode.node in self._uses
            self._here.set_nameless(inode.node, self._session.id if used else 0)
            self._scope.lost_names.append(inode.node)

    def _drop(self, inode: Inode) -> None:
        raise AssertionError("nodes are freed by `Session`")

    def _child(self, parent: int, name: bytes) -> int | None:
        return self._here.child(parent, name)

    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        self._here.set_child(parent, name, node)

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        self._directory(parent)
        return self._here.children(parent, after, limit)

    def _chunk(self, node: int, index: int) -> Chunk | None:
        return self._here.chunk(node, index)

    def _new_chunk(self, node: int, index: int) -> Chunk:
        return Chunk()

    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        self._here.set_chunk(node, index, chunk)

    def _drop_chunks(self, node: int, first: int) -> int:
        return self._here.cut(node, first)

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        assert isinstance(inode, StoredInode)
        return self._here.xattrs(inode)

    def _xattrs_changed(self, inode: Inode) -> None:
        assert isinstance(inode, StoredInode)
        self._here.set_xattrs(inode)

    # -- who has written ---------------------------------------------------------------------------------------

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        self._rewritten(inode, empties=False)
        super()._put(inode, offset, data)

    def _resize(self, inode: Inode, size: int) -> None:
        if not stat.S_ISDIR(inode.mode):
            self._rewritten(inode, empties=size == 0)
        super()._resize(inode, size)

    def _rewritten(self, inode: Inode, *, empties: bool) -> None:
        """The bytes of a file are about to change. ESTALE where that would undo what another host has written.

        That is when it is emptied though another host has changed it since it was opened here to be written; and when
        it was emptied here, to be written anew, and another host has done the same since.
        """
        assert isinstance(inode, StoredInode)
        uses, version = self._uses, self._here.version
        if not self._last_writer_wins:
            may = uses.may_empty if empties else uses.may_write
            if not may(inode, version):
                raise gone()
        uses.wrote(inode, version, empties)
        inode.contents = version
        if empties:
            inode.emptied = version


def _begin_view(connection: Connection[Any]) -> None:
    send(connection, [("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())])


def _cut_out(file_bytes: int, chunks: dict[int, bytes], offset: int, size: int) -> bytes:
    """Part of a file, from the chunks that are there."""
    end = min(offset + size, file_bytes)
    pieces: list[bytes] = []
    while offset < end:
        index, start = offset >> CHUNK_SHIFT, offset & (CHUNK_BYTES - 1)
        length = min(end - offset, CHUNK_BYTES - start)
        piece = chunks.get(index, b"")[start : start + length]
        pieces.append(piece)
        if len(piece) < length:
            pieces.append(bytes(length - len(piece)))
        offset += length
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _sync(connection: Connection[Any]) -> None:
    """A commit that waits for the disk. It must have written something, or it would not wait (xact.c)."""
    emit = "SELECT pg_logical_emit_message(true, 'fusebackend', '')"
    send(connection, [statements.BEGIN, ("SET LOCAL synchronous_commit = on", ()), (emit, ()), statements.COMMIT])
