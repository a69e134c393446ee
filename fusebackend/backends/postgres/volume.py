"""`PostgresVolume`: the kernel face of `PostgresBackend`, a tree in a database that many hosts mount at once.

The rules are `TreeVolume`'s; they run on a `Transaction`, which fetches the rows they need and gathers their changes.
Each operation that changes something is one transaction of two round trips, committed when it returns, and repeated
when the server rolls it back in favour of another one; but what fills a new file is one transaction at its close, of
one round trip (`drafts.py`), and so is a new name in a directory that this host has changed last. Reads are single
statements: each sees one state and waits for no lock, and any number of them run at once. Of what another host could
have changed, only single rows are kept in memory, and bytes of small files that are open (`KnownInodes`).

`lock` does nothing here. Several calls become one in `change_as_one`, which locks what it changes, and in `changing`,
which keeps all other changes of the volume out, on every host; and in `viewing` all reads see one state. All of them
belong to the thread that entered them.

A snapshot is taken by a change that keeps all others out, and knows nothing of files (`old_rows.py`).

Durability: a commit of the agent face waits for the server's disk, one of the kernel face does not. `fsync` is a commit
that waits, for all commits before it, by any host; `unsynced.py` has it fail where a crash of the server has taken what
it is about. When the connection is lost between a commit and its answer, the outcome is unknown, and the call fails
with EIO.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from fusebackend.backends.postgres import old_rows, schema, statements
from fusebackend.backends.postgres.commit_log import KeptLog
from fusebackend.backends.postgres.host_session import HostSession, Worker, configure, require_own_process
from fusebackend.backends.postgres.known_inodes import UNKNOWN
from fusebackend.backends.postgres.opening import FEATURES
from fusebackend.backends.postgres.snapshots import PostgresSnapshots
from fusebackend.backends.postgres.statements import StoredInode
from fusebackend.backends.postgres.stored_tree import PostgresTree, missing
from fusebackend.backends.postgres.transaction import Transaction, Wanted, gone
from fusebackend.backends.postgres.uses import MAX_ACCESSES
from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.databases.pipeline import Rows, rows_of
from fusebackend.databases.postgres import Connections, at_primary
from fusebackend.protocol import (
    ROOT_NODE,
    Attr,
    AttrChanges,
    Caller,
    Change,
    CommitLog,
    Link,
    LogRow,
    Snapshot,
    SnapshotVolume,
    StatFs,
    Volume,
    WrongLinks,
)
from fusebackend.volumes.damage import is_in_range
from fusebackend.volumes.quota import Limits
from fusebackend.volumes.storage import CHUNK_SHIFT, cut_out

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECTIONS = 16
"""Operations that run at once. A mount may ask for four times as many; a server takes 100 from all hosts together."""

SNAPSHOTS = Change(parent=0)
"""In the change feed: snapshots have been taken or deleted. No directory has the node 0."""

FIELD_COUNT = len(statements.FIELDS)
NLINK = statements.FIELDS.index("nlink")
VERSION = statements.FIELDS.index("version")

BESIDE_BYTES = 512 << 10
"""Of small files that are fetched with one that is opened, while there is a lease."""

BESIDE_FILES = 64
"""The same, how many."""

FREE_BLOCKS = 1 << 38
"""Of 4 KiB: a server does not tell how much room it has, so `df` shows 1 PiB."""


class PostgresVolume(PostgresTree, SnapshotVolume):
    """See the module's docstring.

    Args:
        conninfo: libpq's words for the connection, or a URI.
        name: the volume; made if there is none of that name.
        conflict: whether a rewrite of a file that another host has changed fails with ESTALE (`"error"`) or wins
            (`"last-writer"`).
        connections: how many operations run at once.
        limits: how much this host lets the volume hold (`SharedQuota`).

    Raises:
        OSError: the server can't be reached, or refuses, or `conninfo` leads to a transaction pooler;
            `VolumeDatabaseError` when its tables are of another version.
    """

    features = FEATURES

    at_once = frozenset({"release"})

    def __init__(
        self,
        conninfo: str,
        name: str,
        *,
        conflict: Literal["error", "last-writer"] = "error",
        connections: int = CONNECTIONS,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.conninfo = conninfo
        conninfo = at_primary(conninfo)
        with contextlib.ExitStack() as undo:
            require_own_process(conninfo)
            pool = Connections(conninfo, connections, configure)
            undo.callback(pool.close)
            pool.run(schema.make_tables)
            number = pool.run(lambda connection: schema.volume_id(connection, name))
            session = HostSession(conninfo, number, pool, self.changed_elsewhere, self._feed_became)
            undo.callback(session.close)
            last_writer_wins = conflict == "last-writer"
            super().__init__(pool, number, session, last_writer_wins=last_writer_wins, limits=limits)
            session.each_period = self._each_period
            self._snapshots = PostgresSnapshots(number, self.connections.query, self._ask_briefly)
            self._require_root()
            session.run(self._feed.start)
            self._shared_quota.refresh()
            undo.pop_all()
        self._closed = False

    def _each_period(self) -> None:
        if self._unsynced.is_pending:
            self.connections.run(self._unsynced.sync)
        if self._accesses:
            self._store_accesses()
        if self._log is not None and self._log.is_due:
            self.connections.run(self._log.sweep)

    def keep_log(self, log: CommitLog | None) -> Sequence[LogRow] | None:
        if log is None:
            kept, self._log = self._log, None
            if kept is not None:
                self.connections.run(kept.sweep)
            return None
        if self._log is not None and self._log.history != log.history:
            return None  # another mount of this object has its log here
        kept = KeptLog(self.id, log, self._unsynced.incarnation)
        found = self.connections.run(kept.load)
        self._log = kept
        return found

    def _ask_briefly(self, query: str, parameters: Sequence[object]) -> Rows:
        """The rows of a short statement, by the session, or by a connection that is awaited."""
        if self._feed.live:
            with contextlib.suppress(OSError):
                return self._session.run(lambda connection: rows_of(connection, query, parameters))
        return self.connections.query(query, parameters)

    def _require_root(self) -> None:
        """Without it nothing can be mounted: the kernel would wait for an answer that never comes."""
        rows = self._query(statements.inode(self.id, ROOT_NODE))
        root = StoredInode.of(rows[0]) if rows and is_in_range(rows[0][:12]) else None
        if root is None or not root.is_dir or root.parent != ROOT_NODE or root.nlink == 0:
            words = f"PostgreSQL: volume '{self.name}' is damaged: it has no root directory"
            raise schema.VolumeDatabaseError(errno.EIO, words)

    @property
    def all_at_once(self) -> bool:  # type: ignore[override]
        return self._lease.held

    def add_worker(self, worker: Worker) -> None:
        """Have the session do it in the background."""
        self._session.workers.append(worker)
        self._session.work_soon()

    def observe_delays(self, callback: Callable[[float], None]) -> None:
        self._feed.on_delay = callback

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self.connections.trouble

    def _end_drafts(self, *files: int | tuple[int, bytes]) -> None:
        """Store the drafts of files, by their nodes or names, before something else changes these."""
        if self._scope.transaction is None:
            self._drafts.end(*files)

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        if self._scope.transaction is not None:
            return self._change(Wanted(entries=((parent, name),), locks=False), super().lookup, parent, name)
        way = self._scope.way
        if way and (parent, name) in way:
            inode = self._accesses.shown(StoredInode.sound(way[parent, name], self._damage))
            self._damage.require_entry(parent, name, inode)
            return inode
        if self._is_leased:
            known = self._known_child(parent, name)
            if known is not None:
                return known
        pending, moment = self._drafts.pending(), self._known.moment
        question = statements.found(self.id, parent, name)
        wrong: Sequence[Link] = ()
        if self._scope.links_above and not self._known.child(parent, name):
            rows, wrong = self._query_with(self._scope.links_above, question)
            self._scope.links_above = ()
        else:
            rows = self._query(question)
        if pending and rows and rows[0][FIELD_COUNT] in pending:
            self._drafts.settle(rows[0][FIELD_COUNT])
            rows = self._query(question)
        directory, found = (rows[0][:FIELD_COUNT], rows[0][FIELD_COUNT:]) if rows else ((), ())
        if wrong and (not rows or found[0] is None):
            raise WrongLinks(wrong)
        self._require_directory(directory[1:3], parent)
        if self._feed.live and self._scope.view is None:
            self._known.looked(moment, parent, directory[VERSION], name, found[0])
            self._known.found_row(moment, directory)
        if found[0] is None:
            raise oserror(errno.ENOENT, name)
        inode = self._note_inode(moment, found)
        self._damage.require_entry(parent, name, inode)
        return inode

    @property
    def _is_leased(self) -> bool:
        """Whether what is known of the tables is so."""
        return self._lease.held and self._feed.live and self._scope.view is None

    def _known_child(self, parent: int, name: bytes) -> StoredInode | None:
        """The inode under a name, None if that is not known. ENOENT if it is known that there is none."""
        node = self._known.child(parent, name)
        if node is None:
            raise oserror(errno.ENOENT, name)
        known = self._known.get(node) if node != UNKNOWN else None
        if known is None:
            return None
        self._damage.require_entry(parent, name, known)
        return self._drafts.attr(node) or self._accesses.shown(known)

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,)), super().readdir, node, after, limit)
        is_told = self._feed.live and self._scope.view is None
        if after and is_told and self._known.ends(node, after):
            return []
        moment = self._known.moment
        pending = self._drafts.pending()
        rows = self._query(statements.listed(self.id, node, after, limit))
        if changed := [row[7] for row in rows if row[7] in pending]:
            for file in changed:
                self._drafts.settle(file)
            rows = self._query(statements.listed(self.id, node, after, limit))
        self._require_directory(rows[0][:2] if rows else (), node)
        if not after:
            mode, _, atime_ns, mtime_ns, ctime_ns, _ = rows[0][:6]
            if node not in self._accesses:
                self._note_access(Attr(node, mode, atime_ns=atime_ns, mtime_ns=mtime_ns, ctime_ns=ctime_ns))
        named = [(row[6], row[7:]) for row in rows if row[6] is not None]
        sound = [(name, row) for name, row in named if self._is_entry(node, name, row)]
        listed = [(name, StoredInode.of(row)) for name, row in sound]
        if len(listed) > 1:
            self._listed.append(frozenset(inode.node for _, inode in listed))
        if is_told:
            for _, inode in listed:
                self._known.found(moment, inode)
            names = {name: row[0] for name, row in named}
            self._known.listed_names(moment, node, rows[0][5], after, names, is_end=len(named) < limit)
        shown = self._damage.shown(node, [(name, self._accesses.shown(inode)) for name, inode in listed])
        if named and not shown:  # none of them can be shown: go on after them
            return self.readdir(node, named[-1][0], limit)
        return shown

    def _is_entry(self, directory: int, name: bytes, row: Sequence[Any]) -> bool:
        """Whether a row of a listing is a sound inode."""
        if row[0] is not None and is_in_range(row[:12]):
            return True
        self._damage.tell(f"name {name!r} in inode {directory} leads to an inode that is missing or damaged")
        return False

    def wrong_links(self, links: Sequence[Link]) -> Sequence[Link]:
        if not links:
            return []
        return missing(links, self._query(statements.links(self.id, links)))

    def _require_directory(self, row: Sequence[Any], node: int) -> None:
        """Check the mode and link count of a directory; it is missing if there are none."""
        if not row:
            raise gone()
        mode, nlink = row
        if not stat.S_ISDIR(mode):
            raise oserror(errno.ENOTDIR)
        if nlink == 0:
            self._require_used(node)

    def _require_used(self, node: int) -> None:
        """A node without a name exists only for its users. ESTALE."""
        if node not in self._uses:
            raise gone()
        if node not in self._uses.nameless:
            self._session.look_after(node)

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        return self._make_name(super().mknod, parent, name, mode, rdev, caller)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._make_name(super().mkdir, parent, name, mode, caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        return self._make_name(super().symlink, parent, name, target, caller)

    def _make_name(self, rule: Callable[..., Attr], parent: int, name: bytes, *arguments: Any) -> Attr:
        return self._change(Wanted(entries=((parent, name),), makes=True), rule, parent, name, *arguments)

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        self._end_drafts(node)
        wanted = Wanted(nodes=(node,), entries=((new_parent, new_name),))
        return self._change(wanted, super().link, node, new_parent, new_name)

    def unlink(self, parent: int, name: bytes) -> None:
        self._end_drafts((parent, name))
        self._change(Wanted(entries=((parent, name),), taken=True), super().unlink, parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        self._change(Wanted(entries=((parent, name),), taken=True, empty=True), super().rmdir, parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        self._end_drafts((parent, name), (new_parent, new_name))
        moves = parent != new_parent
        entries = ((parent, name), (new_parent, new_name))
        line = (parent, new_parent) if moves else ()
        wanted = Wanted(entries=entries, taken=True, empty=True, rename=True, line=line)
        self._change(wanted, super().rename, parent, name, new_parent, new_name, flags)

    # -- attributes --------------------------------------------------------------------------------------------

    def getattr(self, node: int) -> Attr:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,)), super().getattr, node)
        attr = self._drafts.attr(node)
        if attr is not None:
            return attr
        self._drafts.settle(node)
        if self._feed.live and self._scope.view is None:
            known = self._known.get(node)
            if known is not None:
                return self._accesses.shown(known)
        return self._read_inode(node)

    def _read_inode(self, node: int, *, with_data: bool = False) -> StoredInode:
        """The inode. `with_data`, the bytes of a small file, of which the kernel has none, are known from now on."""
        moment = self._known.moment
        sent = self._known.sent(node)
        rows = self._query(statements.opened(self.id, node, sent) if with_data else statements.inode(self.id, node))
        if not rows:
            raise gone()
        return self._note_inode(moment, rows[0][:FIELD_COUNT], *rows[0][FIELD_COUNT:])

    def _note_inode(self, moment: int, row: Sequence[Any], data: bytes | None = None) -> StoredInode:
        inode = StoredInode.sound(row, self._damage)
        if inode.nlink == 0:
            self._require_used(inode.node)
        elif self._feed.live and self._scope.view is None:
            self._known.found(moment, inode, data)
        return self._accesses.shown(inode)

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        if changes.size is None:
            return self._change_file(Wanted(nodes=(node,)), 0, super().setattr, node, changes)
        self._end_drafts(node)
        return self._change(Wanted(nodes=(node,), cut=(node, changes.size)), super().setattr, node, changes)

    def readlink(self, node: int) -> bytes:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,)), super().readlink, node)
        inode, chunks = self._read_contents(node, 0, 0)
        if not stat.S_ISLNK(inode.mode):
            raise oserror(errno.EINVAL)
        self._note_access(inode)
        return bytes(chunks[0])

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        self._change_file(Wanted(nodes=(node,)), len(name) + len(value), super().setxattr, node, name, value)

    def removexattr(self, node: int, name: bytes) -> None:
        self._change_file(Wanted(nodes=(node,)), 0, super().removexattr, node, name)

    # -- data --------------------------------------------------------------------------------------------------

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        attr = self.mknod(parent, name, stat.S_IFREG | stat.S_IMODE(mode), 0, caller)
        self._uses.open(attr.node, flags, 0)
        if self._scope.transaction is None and self._feed.live and isinstance(attr, StoredInode):
            draft = Transaction(self.id, self._session.new_version(), self._newest)
            self._drafts.begin(attr, (parent, name), draft)
        return attr

    def open(self, node: int, flags: int) -> Attr:
        if self._scope.transaction is not None:
            inode = self._change(Wanted(nodes=(node,)), lambda: self._here.inode(node))
        else:
            self._drafts.settle(node)
            is_read = flags & os.O_ACCMODE == os.O_RDONLY
            known = self._opened_leased(node, is_read) if self._is_leased else None
            inode = known or self._read_inode(node, with_data=is_read)
        self._uses.open(node, flags, inode.contents)
        return inode

    def _opened_leased(self, node: int, is_read: bool) -> StoredInode | None:
        """The inode of a file that is opened, if it is known; fetches the bytes of small ones that lie beside it."""
        known = self._known.get(node)
        if known is not None and is_read and self._known.needs_data(node):
            self._read_beside(node)
            known = self._known.get(node)
        return None if known is None else self._accesses.shown(known)

    def _read_beside(self, node: int) -> None:
        """Fetch small files that were listed together, whose bytes are not known: their numbers are near each other."""
        wanted, size = [node], 0
        beside = next((page for page in reversed(tuple(self._listed)) if node in page), frozenset())
        for other in sorted(beside, key=lambda other: abs(other - node)):
            known = self._known.get(other)
            if known is None or other == node or not self._known.needs_data(other):
                continue
            size += known.size
            if size > BESIDE_BYTES or len(wanted) == BESIDE_FILES:
                break
            wanted.append(other)
        moment = self._known.moment
        for row in self._query(statements.small(self.id, wanted)):
            # The others may be damaged, or have lost their names meanwhile: that is no error of this file.
            if row[0] == node or (is_in_range(row[:12]) and row[NLINK]):
                self._note_inode(moment, row[:FIELD_COUNT], row[FIELD_COUNT])

    def flush(self, node: int) -> None:
        self._drafts.require_stored(node)

    def release(self, node: int, flags: int) -> None:
        try:
            self._drafts.settle(node)
        except OSError as error:  # no close has stored it: the kernel asks for that before
            log.warning("what was written to a new file can't be stored: %s", error)
        is_nameless = node in self._uses.nameless
        self._uses.release(node, flags)
        if not self._uses.is_open(node):
            self._drafts.forget(node)
            if is_nameless:
                self._shared_quota.freed()  # it has no name, and counts no more
        self._unsynced.released(node)
        self._session.wake()

    def read(self, node: int, offset: int, size: int) -> bytes:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,), read=(node, offset, size)), super().read, node, offset, size)
        known = self._known.data(node) if self._feed.live and self._scope.view is None else None
        if known is not None and node not in self._drafts.pending():
            inode, chunks = self._accesses.shown(known[0]), {0: known[1]}
        else:
            last = (offset + max(size, 1) - 1) >> CHUNK_SHIFT
            inode, chunks = self._read_contents(node, offset >> CHUNK_SHIFT, last)
        if stat.S_ISDIR(inode.mode):
            raise oserror(errno.EISDIR)
        self._note_access(inode)
        return cut_out(chunks, offset, min(offset + size, inode.size))

    def _note_access(self, attr: Attr) -> None:
        if self.access_due(attr) and self._scope.view is None:
            self._accesses.note(attr.node, now_ns())
            if len(self._accesses) >= MAX_ACCESSES:
                self._session.work_soon()

    def _read_contents(self, node: int, first: int, last: int) -> tuple[StoredInode, dict[int, bytes]]:
        self._drafts.settle(node)
        rows = self._query(statements.contents(self.id, node, first, last))
        if not rows:
            raise gone()
        inode = self._accesses.shown(StoredInode.sound(rows[0], self._damage))
        if inode.nlink == 0:
            self._require_used(node)
        return inode, {row[-2]: row[-1] for row in rows if row[-2] is not None}

    def next_data(self, node: int, offset: int) -> int | None:
        if self._scope.transaction is not None:
            return self._change(Wanted(nodes=(node,)), super().next_data, node, offset)
        self._drafts.settle(node)
        rows = self._query(statements.next_chunk(self.id, node, offset >> CHUNK_SHIFT))  # with the size of now
        if not rows:
            raise gone()
        nlink, size, index = rows[0]
        if nlink == 0:
            self._require_used(node)
        return None if index is None or offset >= size else max(offset, index << CHUNK_SHIFT)

    def write(self, node: int, offset: int, data: bytes) -> int:
        wanted = Wanted(nodes=(node,), write=(node, offset, len(data)))
        return self._change_file(wanted, len(data), super().write, node, offset, data)

    def append(self, node: int, data: bytes) -> int:
        self._end_drafts(node)
        return self._change(Wanted(nodes=(node,), append=node), super().append, node, data)

    # -- snapshots ---------------------------------------------------------------------------------------------

    @property
    def is_changed(self) -> bool:
        """As far as this host has been told."""
        return self._unsnapped_here or self._unsnapped_elsewhere

    def snapshot_bytes(self) -> int:
        return int(self.connections.query(old_rows.KEPT_BYTES, (self.id,))[0][0])

    def snapshots(self) -> Sequence[Snapshot]:
        return self._snapshots.all()

    def take_snapshot(self, name: str) -> Snapshot:
        self.settle()
        # Before: what is changed meanwhile may be in it or not.
        self._unsnapped_here = self._unsnapped_elsewhere = False
        try:
            with self._alone(durable=False) as transaction:
                taken = self._snapshots.take(transaction, name)
                transaction.changes.append(SNAPSHOTS)
        except BaseException:
            self._unsnapped_here = True
            raise
        return taken

    def delete_snapshot(self, name: str) -> None:
        with self._alone(durable=False) as transaction:
            number = self._snapshots.delete(transaction, name)
            transaction.changes.append(SNAPSHOTS)
        self._snapshots.deleted(number)
        self._session.work_soon()

    def snapshot(self, name: str) -> Volume:
        return self._snapshots.view(name)

    def forget_versions(self, nodes: Collection[int]) -> list[str]:
        with self._alone(durable=True) as transaction:
            for statement in old_rows.forget(self.id, list(nodes), transaction.newest):
                transaction.ask(statement)
            transaction.changes.append(SNAPSHOTS)
        self._snapshots.forget_cached()
        if self._log is not None:
            self.connections.run(self._log.sweep)
        self.connections.run(lambda connection: connection.execute(f"VACUUM {old_rows.TABLES_WITH_BYTES}"))
        return [
            f"PostgreSQL overwrites the places of deleted rows as it needs them; VACUUM FULL"
            f" {old_rows.TABLES_WITH_BYTES} does so at once, and locks the tables meanwhile. Its WAL archives, replicas"
            " and backups, and the memory of other hosts that have the volume open, can't be reached"
        ]

    # -- life --------------------------------------------------------------------------------------------------

    def fsync(self, node: int, datasync: bool = False) -> None:
        try:
            self._drafts.require_stored(node)
        finally:  # that a crash has taken the file says more than that it is gone
            with contextlib.suppress(OSError):  # of another file, whose close tells of it
                self.settle()
            self.connections.run(self._unsynced.sync)
            self._unsynced.require(node)

    def sync(self) -> None:
        self.settle()
        self.connections.run(self._unsynced.sync)
        self._unsynced.require_all()

    def statfs(self) -> StatFs:
        (used_bytes,) = self._query(("SELECT pg_database_size(current_database())", ()))[0]
        self._shared_quota.refresh()  # `df` may ask where nothing is written
        return StatFs(4096, used_bytes // 4096 + FREE_BLOCKS, FREE_BLOCKS, 1 << 40, 1 << 39)

    def forget(self, nodes: Iterable[int]) -> None:
        self._held.difference_update(nodes)
        self._session.wake()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as ends:
            ends.callback(self.connections.close)
            ends.callback(self._session.close)
            ends.callback(self.sync)
            ends.callback(self._feed.stop)
            self._drafts.close()

    def changed_elsewhere(self, changes: Sequence[Change]) -> None:
        """Other hosts have made these changes: open nodes may have lost their names."""
        is_taken = False
        if self.on_snapshot is not None and not {SNAPSHOTS, Change()}.isdisjoint(changes):
            taken = self._snapshots.taken
            try:
                for name in self._snapshots.news():
                    self.on_snapshot(name)
                is_taken = self._snapshots.taken > taken
            except OSError as error:  # told again when the connection is back
                log.info("which snapshots there are can't be read yet: %s", error)
        changes = [change for change in changes if change != SNAPSHOTS]
        if not changes:
            if is_taken:  # all changes before it have been told of
                self._unsnapped_elsewhere = False
            return
        self._unsnapped_elsewhere = True
        self._shared_quota.doubt()
        # At 16 busy hosts this is called for each change by each of the 15 others.
        nodes = dict.fromkeys(change.node for change in changes if change.node is not None or change == Change())
        parents = dict.fromkeys(change.parent for change in changes if change.parent is not None)
        for node in nodes:
            self._drafts.doubt(node)
        self._known.changed(*nodes, *parents)
        for node in self._uses.opened() if None in nodes else nodes:
            if node is not None and self._uses.is_open(node):
                self._session.look_after(node)
        self.publish(*changes)

    def _feed_became(self, live: bool) -> None:
        self.features = replace(self.features, change_feed=live)
        self._known.changed(None)
        self.expire()
        if live and self._unsynced.is_pending:
            try:  # before other hosts change what the server has recovered
                self.connections.run(self._unsynced.sync)
            except OSError as error:
                log.info("whether PostgreSQL has lost changes shows at the next fsync: %s", error)
