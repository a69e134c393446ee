"""`PostgresTree`: the storage of a PostgreSQL volume, as the rules of `TreeVolume` read and change it.

It owns the transactions: which calls make one, when it is committed, and which callbacks follow. Within a thread's
`Scope` every call goes to its `Transaction`; outside of one each read is a single statement.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from psycopg import Connection

from fusebackend.backends.postgres import feed, statements
from fusebackend.backends.postgres.commit_log import KeptLog
from fusebackend.backends.postgres.drafts import Draft, Drafts
from fusebackend.backends.postgres.host_session import HostSession
from fusebackend.backends.postgres.known_inodes import Guesses, KnownInodes
from fusebackend.backends.postgres.statements import Guess, StoredInode
from fusebackend.backends.postgres.transaction import Transaction, Walk, Wanted, gone, overtaken
from fusebackend.backends.postgres.unsynced import Unsynced
from fusebackend.backends.postgres.uses import Accesses
from fusebackend.base.paths import PathError
from fusebackend.base.stamps import CLOCK
from fusebackend.base.waiting import will_wait
from fusebackend.databases.pipeline import COMMIT, Rows, Statement, rollback, rows_of, send
from fusebackend.databases.postgres import REPEATABLE, Connections, translate_errors
from fusebackend.protocol import NOTE, ROOT_NODE, STEP, Change, Changes, Link, LogRow, Usage, WrongLinks
from fusebackend.volumes.damage import Damage
from fusebackend.volumes.posix import TreeVolume
from fusebackend.volumes.quota import Limits, Quota, bytes_of_blocks
from fusebackend.volumes.storage import Chunk, Inode
from fusebackend.volumes.walk import names_of

T = TypeVar("T")

SHARED_ATTEMPTS = 4
"""So often a change of several operations is begun beside others; then it has the volume for itself."""

MAX_LISTED = 64
"""Listings whose nodes are remembered. The oldest is forgotten first."""


class Scope(threading.local):
    """The transaction or view that a thread is in."""

    def __init__(self) -> None:
        self.transaction: Transaction | None = None
        self.view: Any = None  # a connection in the middle of a transaction that only reads
        self.is_repeating = False  # what is stored has been accepted before, whatever the limits
        self.links: Sequence[Link] = ()  # to be compared together with the next question
        self.links_above: Sequence[Link] = ()  # the same, if a name that is looked up is absent
        self.way: dict[tuple[int, bytes], Sequence[Any]] = {}  # names that are about to be looked up
        self.changes: Changes = []  # of a change of several operations


class PostgresTree(TreeVolume):
    """See the module's docstring.

    Args:
        volume_id: the volume's number in the tables.
        last_writer_wins: a rewrite of a file that another host has changed is no error.
        limits: how much this host lets the volume hold.

    Attributes:
        connections: for further queries on the volume's behalf, too, until it is closed.
    """

    def __init__(
        self,
        connections: Connections,
        volume_id: int,
        session: HostSession,
        *,
        last_writer_wins: bool,
        limits: Limits | None,
    ) -> None:
        super().__init__()
        self.lock = contextlib.nullcontext()
        self.id = volume_id
        self.connections = connections
        self._session = session
        self._uses, self._feed = session.uses, session.feed
        self._newest = session.newest
        self._held = self._uses.held  # one set, which nobody replaces
        self._lease = self._feed.lease
        self._unsynced = Unsynced(volume_id, self._uses.is_open)
        self._drafts = Drafts(self._store)
        self._known = KnownInodes()
        self._accesses = Accesses()
        self._guesses = Guesses(self._known)
        self._listed = deque[frozenset[int]](maxlen=MAX_LISTED)  # nodes that were listed together
        self._last_writer_wins = last_writer_wins
        self._log: KeptLog | None = None
        self._scope = Scope()
        self._shared_quota = SharedQuota(limits or Limits(), self._count, self._scope, self._feed)
        self._quota = self._shared_quota if limits is not None else None
        self._damage = Damage(f"volume {volume_id} of the database")
        # Whether something may have changed since the newest snapshot, by this host or by others; not known at first.
        self._unsnapped_here, self._unsnapped_elsewhere = False, True

    # -- transactions ------------------------------------------------------------------------------------------

    def _change(self, wanted: Wanted, rule: Callable[..., T], *arguments: Any) -> T:
        """Run a rule in a transaction: that of the scope, or one of its own."""
        CLOCK.saw_all()  # reads wait for no change, and are on any host: the times they return are not recorded
        transaction = self._scope.transaction
        if transaction is not None:
            # After some errors a change of several operations is repeated as a whole.
            with translate_errors(passes=REPEATABLE if transaction.several else ()):
                if transaction.is_large:
                    transaction.flush()
                transaction.fetch(wanted)
                return rule(*arguments)
        if any(node in self._accesses for node in wanted.nodes):
            self._store_accesses()  # the attributes that are returned have them
        version = self._session.new_version()
        guess = self._guesses.of(wanted)
        if guess is not None:
            guess = guess._replace(links=self._scope.links)

        def once(connection: Connection[Any], guessed: Guess | None) -> T:
            begun = self._begun(connection, Transaction(self.id, version, self._newest))
            with self._transaction(begun) as transaction:
                if guessed is not None and transaction.guess(guessed):
                    return self._noted(transaction, _as_guessed(rule, *arguments))
                self._compare_links(connection)
                transaction.fetch(wanted)
                return self._noted(transaction, rule(*arguments))

        result = self._attempted(guess, once)
        self._scope.links = ()
        if self._log is not None:
            NOTE.set(None)  # it is of one change, and this was it
        return result

    def _attempted(self, guess: Guess | None, once: Callable[[Connection[Any], Guess | None], T]) -> T:
        """Make a change, with its guess at first. If that is wrong, the next attempt asks for what the first one took
        to be known, also where no host has told of a change."""

        def attempt(connection: Connection[Any]) -> T:
            nonlocal guess
            guessed, guess = guess, None
            try:
                return once(connection, guessed)
            except BaseException:
                if guessed is not None:
                    self._guesses.wrong(guessed)
                raise

        return self.connections.run(attempt)

    def _noted(self, transaction: Transaction, result: T) -> T:
        """Have a change add to the log what its thread has noted. Its locks are held, or its guess will be compared: so
        the rows of changes that depend on each other get their numbers in the order of the commits."""
        if self._log is not None and (note := NOTE.get()) is not None:
            transaction.logged += note.rows(result)
        return result

    def _change_file(self, wanted: Wanted, size: int, rule: Callable[..., T], node: int, *arguments: Any) -> T:
        """Run a rule that writes so many bytes of a file, or sets attributes: on its draft, if there is one."""
        if self._scope.transaction is None and node in self._drafts:
            self._compare_links()
            run = partial(rule, node, *arguments)

            def make(draft: Draft) -> T:
                CLOCK.saw_all()
                self._scope.transaction = draft.transaction
                try:
                    result = run()
                finally:
                    self._scope.transaction = None
                draft.shown.settle_times()
                self._noted(draft.transaction, result)
                if self._log is not None:
                    NOTE.set(None)
                return cast("T", draft.attr) if result is draft.shown else result

            self._unsnapped_here = True
            made = self._drafts.change(node, size, (wanted, run), make)
            if made is not None:
                return made[0]
        return self._change(wanted, rule, node, *arguments)

    def _store(self, draft: Draft) -> None:
        """Make the changes of a draft one transaction, on the row as it is by then."""
        attempts = itertools.count(1)

        def attempt(connection: Connection[Any]) -> None:
            if next(attempts) == 1:  # the kernel takes its pages for those of this version
                with self._transaction(self._begun(connection, draft.transaction)) as transaction:
                    transaction.begin_draft(draft.created)
                return
            again = Transaction(self.id, self._session.new_version(), self._newest)
            with self._transaction(self._begun(connection, again)) as transaction:
                transaction.logged = draft.transaction.logged
                self._scope.is_repeating = True
                for wanted, run in draft.steps:
                    transaction.fetch(wanted)
                    run()

        try:
            self.connections.run(attempt)
        finally:
            self._scope.is_repeating = False
            self._shared_quota.settle(draft.transaction, committed=False)

    def settle(self) -> None:
        """Store what this host has changed and other hosts do not see yet. OSError if that fails.

        Not within a change of several operations: it has been done before.
        """
        if self._scope.transaction is None:
            if self._accesses:
                self._store_accesses()
            self._drafts.settle_all()

    def _begun(self, connection: Connection[Any], transaction: Transaction) -> Transaction:
        """A transaction, which is about to begin on a connection."""
        self._session.rejoin(connection)
        if self._unsynced.is_due:
            self._unsynced.sync(connection)
        transaction.connection, transaction.incarnation = connection, self._unsynced.incarnation(connection)
        return transaction

    @contextlib.contextmanager
    def _transaction(self, transaction: Transaction) -> Iterator[Transaction]:
        """The calls of this thread in the block are one transaction, committed at the end."""
        scope = self._scope
        scope.transaction = transaction
        try:
            yield transaction
            for node, contents, emptied in transaction.written:
                self._uses.wrote(node, transaction.version, contents, emptied)
            moment = self._known.moment
            self._shared_quota.commits(transaction)
            try:
                transaction.commit(self._notices)
            finally:  # it may have happened without an answer
                if transaction.changes:
                    self._feed.announce()
            changed = transaction.inodes()
            self._known.committed(moment, changed, transaction.before, transaction.names())
            self._unsnapped_here = self._unsnapped_here or bool(transaction.before)
            self._unsynced.committed(
                transaction.incarnation,
                transaction.before,
                transaction.version,
                unnamed={inode.node for inode in changed if inode.nlink == 0},
                durable=transaction.durable,
            )
            self._shared_quota.settle(transaction, committed=True)
        except BaseException:
            rollback(transaction.connection)
            for node in transaction.before:  # it may have happened without an answer
                self._known.changed(node)
            if transaction.before and transaction.connection.closed:  # … or may yet happen
                self._lease.doubt()
            raise
        finally:
            scope.transaction = None
            self._shared_quota.settle(transaction, committed=False)
        for node in transaction.lost_names:
            if node in self._uses:
                self._uses.nameless.add(node)
        if transaction.lost_names:
            self._shared_quota.doubt()  # of their extended attributes: they were not read

    def _notices(self, changes: Sequence[Change], logged: Sequence[LogRow]) -> list[Statement]:
        """The row of the change feed for these changes, with rows of the log."""
        told = [feed.row(self.id, self._session.id, feed.encode(changes))] if changes else []
        return told if self._log is None else self._log.added(logged, told)

    @contextlib.contextmanager
    def changing(self) -> Iterator[Changes]:
        """As in `Volume`: one transaction that keeps all others out. An error undoes all of it.

        Observers and subscribers are called when it has been committed.
        """
        if self._scope.transaction is not None:  # the outer one notifies
            yield self._scope.changes
            return
        self.settle()
        with self._telling(), self._alone(durable=True):
            yield self._scope.changes

    @contextlib.contextmanager
    def _alone(self, *, durable: bool) -> Iterator[Transaction]:
        """A transaction of this thread that has the volume for itself.

        Args:
            durable: it is on the server's disk at the end.
        """

        def begin(connection: Connection[Any]) -> Transaction:
            version = self._session.new_version()
            transaction = Transaction(self.id, version, self._newest, exclusive=True, durable=durable)
            self._begun(connection, transaction).fetch(Wanted())
            return transaction

        with translate_errors(), self.connections.leased(begin) as begun, self._step(begun):
            yield begun

    @contextlib.contextmanager
    def _step(self, transaction: Transaction) -> Iterator[None]:
        """`_transaction` for a change of several operations, which adds to the log what its verb notes."""
        scope = self._scope
        scope.changes = []
        note = STEP.get() if self._log is not None else None
        with self._transaction(transaction):
            yield
            if note is not None:
                transaction.logged += note.rows(self, scope.changes)
        if note is not None:
            note.committed()

    def change_as_one(self, work: Callable[[Changes], T], *paths: str, removes: bool = False, reads: bool = False) -> T:
        """As in `Volume`: one transaction, which locks what it changes, and is repeated if it was overtaken.

        The last of `SHARED_ATTEMPTS` keeps all others out, so that it comes to an end.
        """
        scope = self._scope
        if scope.transaction is not None:
            return work(scope.changes)
        self.settle()
        walks = tuple(Walk(names, removes=removes, reads=reads) for names in map(_names_of, paths) if names)
        attempts = itertools.count(1)
        renames = False
        makes = len(walks) == 1 and not removes and not reads
        guess = self._guesses.of_path(walks[0].names) if makes else None

        def once(connection: Connection[Any], guessed: Guess | None) -> T:
            nonlocal renames
            alone = next(attempts) >= SHARED_ATTEMPTS
            version = self._session.new_version()
            begun = Transaction(
                self.id, version, self._newest, durable=True, exclusive=alone, several=True, renames=renames
            )
            self._begun(connection, begun)
            try:
                with self._step(begun):
                    if guessed is not None and begun.guess(guessed):
                        return _as_guessed(work, scope.changes)
                    moment = self._known.moment
                    begun.fetch(Wanted(walks=walks))
                    if makes and self._feed.live:
                        self._known.walked(moment, begun.way)
                    return work(scope.changes)
            finally:
                renames = renames or begun.wants_renames

        with self._telling():
            return self._attempted(guess, once)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell of the changes of a step when it is made. A failed one is announced as well: it may have happened, and
        if not, an invalidation does no harm."""
        scope = self._scope
        scope.changes = []
        try:
            yield
        except BaseException:
            self.tell(scope.changes)
            raise
        shown = self.report(scope.changes)
        self.tell(scope.changes)
        shown()

    @contextlib.contextmanager
    def viewing(self) -> Iterator[None]:
        """The reads of this thread in the block see one state of the volume."""
        scope = self._scope
        if scope.transaction is not None or scope.view is not None:
            yield
            return
        self.settle()
        with translate_errors(), self.connections.leased(_begin_view) as connection:
            scope.view = connection
            try:
                yield
            finally:
                scope.view = None
                if not connection.closed:
                    send(connection, [COMMIT])

    @contextlib.contextmanager
    def walking(self, names: Sequence[bytes]) -> Iterator[None]:
        """Fetch the way down these names with one statement; a transaction has its own (`Walk`)."""
        scope = self._scope
        if scope.transaction is not None or len(names) < 2:
            yield
            return
        self.settle()
        rows = self._query(statements.walk(self.id, ROOT_NODE, names))
        scope.way = {(parent, name): row for parent, name, *row in rows[1:]}
        try:
            yield
        finally:
            scope.way = {}

    def _query(self, statement: Statement) -> Rows:
        scope = self._scope
        if scope.view is not None:
            with translate_errors():
                return send(scope.view, [statement])[0]
        if not scope.links:
            return self.connections.run(lambda connection: send(connection, [statement]))[0]
        rows, wrong = self._query_with(scope.links, statement)
        self._compared(wrong)
        return rows

    def _query_with(self, links: Sequence[Link], statement: Statement) -> tuple[Rows, Sequence[Link]]:
        """The rows of a statement, and those of these links that are not there, in one round trip."""
        questions = [statement, statements.links(self.id, links)]
        rows, there = self.connections.run(lambda connection: send(connection, questions))
        return rows, missing(links, there)

    def _store_accesses(self) -> None:
        """Store access times that have moved."""
        will_wait()
        times = self._accesses.copy()
        for node, is_set in self.connections.query(*statements.accessed(self.id, times)):
            if is_set:
                self._known.accessed(node, times[node])
            else:
                self._known.changed(node)
        self._accesses.stored(times)

    def through(self, links: Sequence[Link], call: Callable[[], T], *, absent: bool = False) -> T:
        """As in `Volume`: reads ask for the links in the same round trip, changes before they begin."""
        scope = self._scope
        if self._lease.held:
            return call()
        scope.links, scope.links_above = ((), links) if absent else (links, ())
        try:
            result = call()
            self._compare_links()  # it was answered from memory
            return result
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                self._require_links(scope.links_above)
            raise
        finally:
            scope.links = scope.links_above = ()

    def _compare_links(self, connection: Connection[Any] | None = None) -> None:
        """Compare what `through` has been given, if no question has. On this connection, or any."""
        links = self._scope.links
        if links:
            question = statements.links(self.id, links)
            there = self.connections.query(*question) if connection is None else rows_of(connection, *question)
            self._compared(missing(links, there))

    def _compared(self, wrong: Sequence[Link]) -> None:
        """Whatever follows a wrong link fails, too: the first question may be one whose errors do not matter."""
        if wrong:
            raise WrongLinks(wrong)
        self._scope.links = ()

    def _count(self) -> tuple[int, int]:
        totals = statements.totals(self.id, self._uses.opened())
        transaction = self._scope.transaction
        rows = self._query(totals) if transaction is None or not transaction.has_begun else transaction.ask(totals)
        ((blocks, files, xattr_bytes),) = rows
        return bytes_of_blocks(int(blocks)) + int(xattr_bytes), files

    @property
    def _here(self) -> Transaction:
        transaction = self._scope.transaction
        assert transaction is not None, "a rule runs in a transaction"
        return transaction

    # -- storage -----------------------------------------------------------------------------------------------

    def _inode(self, node: int) -> Inode:
        if self._scope.transaction is None:  # extended attributes are read
            return cast("Inode", self.getattr(node))
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

    def _renewed(self, inode: Inode) -> None:
        """The transaction has one version for all that it changes."""

    def _changed(self, inode: Inode) -> None:
        assert isinstance(inode, StoredInode)
        self._here.changed(inode)

    def _reap(self, inode: Inode) -> None:
        """`HostSession` frees a node without a name when no host uses it any more."""
        used = inode.node in self._uses
        self._here.nameless[inode.node] = self._session.id if used else 0
        self._here.lost_names.append(inode.node)
        if not self._uses.is_open(inode.node):
            self._shared_quota.add(-bytes_of_blocks(inode.blocks), -1)

    def _accessed(self, inode: Inode) -> None:
        """A read within a change leaves no access time: that would be one more row, announced to every host."""

    def _drop(self, inode: Inode) -> None:
        raise AssertionError("nodes are freed by `HostSession`")

    def _child(self, parent: int, name: bytes) -> int | None:
        node = self._here.child(parent, name)
        if node is not None and (inode := self._here.known(node)) is not None:
            self._damage.require_entry(parent, name, inode)
        return node

    def _entries(self, directory: int, children: list[tuple[bytes, int]]) -> list[tuple[bytes, Inode]]:
        return self._damage.entries(directory, children, self._inode)

    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        self._here.set_child(parent, name, node)

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        self._directory(parent)
        return self._here.children(parent, after, limit)

    def _chunk(self, node: int, index: int) -> Chunk | None:
        return self._here.chunk(node, index)

    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        self._here.set_chunk(node, index, chunk)

    def _drop_chunks(self, node: int, first: int) -> int:
        return self._here.cut(node, first)

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        assert isinstance(inode, StoredInode)
        return inode.unpacked()

    def _xattrs_changed(self, inode: Inode) -> None:
        assert isinstance(inode, StoredInode)
        inode.pack()

    # -- conflicts between hosts -------------------------------------------------------------------------------

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        self._rewritten(inode, empties=False)
        super()._put(inode, offset, data)

    def _resize(self, inode: Inode, size: int) -> None:
        if not stat.S_ISDIR(inode.mode):
            self._rewritten(inode, empties=size == 0)
        super()._resize(inode, size)

    def _rewritten(self, inode: Inode, *, empties: bool) -> None:
        """The bytes of a file are about to change. ESTALE where that would undo another host's write.

        That is when it is emptied though another host has changed it since it was opened here for writing; and when it
        was emptied here to be written anew, and another host has done the same since.
        """
        assert isinstance(inode, StoredInode)
        uses, version = self._uses, self._here.version
        if not self._last_writer_wins:
            may = uses.may_empty if empties else uses.may_write
            if not may(inode, version):
                raise gone()
        self._here.written.append((inode.node, inode.contents, inode.emptied if empties else None))
        inode.contents = version
        if empties:
            inode.emptied = version


def _as_guessed(rule: Callable[..., T], *arguments: Any) -> T:
    """The result of a rule. Its error may be due to the guess: then the change is repeated."""
    try:
        return rule(*arguments)
    except OSError:
        raise overtaken() from None


def missing(links: Sequence[Link], there: Rows) -> Sequence[Link]:
    """Those links that are not in the answer to `statements.links`."""
    found = {Link(*row) for row in there}
    return [link for link in links if link not in found]


def _begin_view(connection: Connection[Any]) -> Connection[Any]:
    send(connection, [("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())])
    return connection


def _names_of(path: str) -> tuple[bytes, ...]:
    """The names of a path; none where `resolve` will refuse it."""
    try:
        return tuple(names_of(path))
    except (PathError, OSError):
        return ()


# -- shared quota ------------------------------------------------------------------------------------------------
#
# `SharedQuota`: the limits of a volume that other hosts change as well. Each host with limits keeps them by itself.
#
# No commit waits for a common sum, and none is written. A host counts the inodes of the volume (a million take half a
# second), and adds what its own changes add. What other hosts do shows in the next count. There is one before a change
# if another host has changed something and the last count is older than `FRESH_S`, and than `SHARE` times as long as it
# took; and one before a change is refused. So the limit is overrun at most by what other hosts write in that time.
#
# What is not committed yet counts from the moment it is accepted: a change under way, and a draft, whose storing is
# never refused. An unlinked file counts on the hosts that have it open, as long as they have.

FRESH_S: Final = 0.05
SHARE: Final = 20
"""A count takes a twentieth of the time at most."""

RECOUNT_SHARE: Final = 5
"""Before a change is refused, the count may be this many times as old as it took."""


class SharedQuota(Quota):
    """See the comment above. Any thread may call any method.

    Args:
        limits: without any, nothing is counted.
        count: counts the bytes and files of the volume as committed. May raise OSError.
        scope: where the changes of the calling thread gather.
        feed: says whether changes of other hosts are told to `doubt`.
    """

    def __init__(
        self,
        limits: Limits,
        count: Callable[[], tuple[int, int]],
        scope: Scope,
        feed: feed.VolumeFeed,
    ) -> None:
        super().__init__(limits)
        self._count = count
        self._scope = scope
        self._feed = feed
        self._lock = threading.Lock()
        self._pending_bytes = self._pending_files = 0  # of all scopes
        self._is_doubtful = True
        self._counted_at = 0.0
        self._took_s = 0.0
        self._begun = self._ended = self._stored = 0  # counts; the newest one whose sums were taken

    def doubt(self) -> None:
        """The sums may be others than the last count and this host's changes tell. Does not wait."""
        self._is_doubtful = True

    def freed(self) -> None:
        """This host has freed what it can't tell the size of. No count from before refuses a change."""
        self._is_doubtful = True
        self._counted_at = 0.0

    def refresh(self) -> None:
        """Count again if it is due."""
        if time.monotonic() - self._counted_at > max(FRESH_S, SHARE * self._took_s):
            self._recount()

    def _recount(self) -> None:
        """Count again, unless nothing can have changed."""
        if self.limits == Limits() or (self._feed.live and not self._is_doubtful):
            return
        began = time.monotonic()
        with self._lock:
            self._is_doubtful = False
            self._begun += 1
            number = self._begun
        try:
            used_bytes, used_files = self._count()
        except BaseException:
            self._is_doubtful = True
            raise
        else:
            with self._lock:
                if number > self._stored:  # else another thread's count has seen more
                    self.used_bytes, self.used_files, self._stored = used_bytes, used_files, number
                    self._counted_at = time.monotonic()
                    self._took_s = self._counted_at - began
        finally:
            with self._lock:
                self._ended += 1

    def admits(self, more_bytes: int) -> bool:
        if more_bytes > 0:
            self.refresh()
        return self._scope.is_repeating or super().admits(more_bytes)

    def require(self, more_bytes: int, more_files: int = 0) -> None:
        if self._scope.is_repeating:
            return
        self.refresh()
        is_old = time.monotonic() - self._counted_at > RECOUNT_SHARE * self._took_s
        if is_old and self._passed(more_bytes, more_files):
            self._recount()
        super().require(more_bytes, more_files)

    def add(self, more_bytes: int, more_files: int = 0) -> None:
        growing = self._scope.transaction
        assert growing is not None, "a rule runs in a transaction"
        growing.grown_bytes += more_bytes
        growing.grown_files += more_files
        with self._lock:
            self._pending_bytes += more_bytes
            self._pending_files += more_files

    def commits(self, growing: Transaction) -> None:
        """A transaction begins to commit: a count that ends from now on may have what it adds."""
        growing.counts = self._ended

    def settle(self, growing: Transaction, *, committed: bool) -> None:
        """A transaction or draft has ended."""
        more_bytes, more_files = growing.grown_bytes, growing.grown_files
        growing.grown_bytes = growing.grown_files = 0
        with self._lock:
            self._pending_bytes -= more_bytes
            self._pending_files -= more_files
            if committed:
                self.used_bytes += more_bytes
                self.used_files += more_files
            # With a count since the commit began, or at this moment, nobody can tell whether that has it.
            is_exact = committed and growing.counts == self._begun == self._ended
            if (more_bytes or more_files) and not is_exact:
                self._is_doubtful = True

    @property
    def usage(self) -> Usage:
        with self._lock:
            used_bytes, used_files = self.used_bytes + self._pending_bytes, self.used_files + self._pending_files
        return Usage(used_bytes, self.limits.limit_bytes, used_files, self.limits.limit_files)
