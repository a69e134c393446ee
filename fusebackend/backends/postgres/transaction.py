"""`Transaction`: one change of a volume, from the rows it decides on to the commit.

It begins with one round trip, which locks and fetches the rows that the rules need (`Wanted`), and ends with another,
which writes the changed rows, notifies other hosts and commits. In between it answers `TreeVolume`: inodes, names,
chunks and extended attributes, from memory first, and then from the tables.

Locks. A change takes `CHANGE_LOCK` shared, and locks the rows of the inodes it decides on: that of a directory stands
for its names, that of a file for its chunks and attributes. `RENAME_LOCK` stands for the names of directories: the
rename of one takes it alone, so that two of them on two hosts can't make a ring, and a change that walks paths takes it
shared, so that they stay what they are. The locks are taken in this order: `CHANGE_LOCK`, `RENAME_LOCK`, the turns of
nodes in the order of their numbers (`TURN_LOCK`: those that wait for a row stand in line), then rows in the same order.
So single operations never deadlock. An `exclusive` change has `CHANGE_LOCK` for itself and
locks no rows: no other change is under way. So is a snapshot taken: a change knows from its lock which one is the
newest (`newest`), and keeps for it what it replaces (`old_rows.py`).

Where this host has lately read or changed all rows of a change, it takes them to be still the same, and sends all in
one round trip (`guess`). A statement in it locks and compares them (`statements.lock_guessed`); if others have changed
one, nothing is done, and the change is repeated with its questions. A change that makes a name in a directory needs no
version of its row (`Guess.dated`): it waits for its turn, compares the names, and sets the times of the row as it is.
So hosts that fill one directory hold its lock for no longer than the server needs, and an agent's `write` of a new file
is one round trip.

What a change of several operations has read without a lock, on its way down a path, is compared when its row is locked.
If it has changed meanwhile, the whole change is repeated (`overtaken`), as after a deadlock.
"""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn

import psycopg
from psycopg import Connection
from psycopg.errors import SerializationFailure

from fusebackend.backends.postgres import old_rows, statements
from fusebackend.backends.postgres.old_rows import Newest
from fusebackend.backends.postgres.statements import Guess, StoredInode
from fusebackend.backends.postgres.unsynced import WAIT_FOR_DISK
from fusebackend.base.errors import oserror
from fusebackend.databases.pipeline import BEGIN, COMMIT, Rows, Statement, require_quiet, send
from fusebackend.databases.postgres import REPEATABLE, errno_of
from fusebackend.protocol import ROOT_NODE, Change, LogRow
from fusebackend.volumes.storage import CHUNK_BYTES, CHUNK_SHIFT, Chunk, allocated_blocks

MAX_PENDING_BYTES = 8 << 20
"""More than this is written before the commit: a change of several operations may be of any size."""


WALKED_CHUNKS = 4
"""Chunks of the file at the end of a path that are fetched with it: an agent's file rarely has more."""


def _first_cut(size: int) -> int:
    """The first chunk that a file loses when it gets this size."""
    return (size >> CHUNK_SHIFT) + bool(size & (CHUNK_BYTES - 1))


def gone() -> OSError:
    return oserror(errno.ESTALE)


def overtaken() -> Exception:
    """The error that has a change repeated (`databases.postgres.REPEATABLE`)."""
    return SerializationFailure("another change has overtaken this one")


class Walk(NamedTuple):
    """A path that a change is about to resolve."""

    names: tuple[bytes, ...]
    removes: bool = False
    """Whether the last name is to go: its directory is locked as well."""
    reads: bool = False
    """Whether the contents of the file are to be fetched."""


@dataclass(frozen=True)
class Wanted:
    """The rows that an operation needs."""

    nodes: tuple[int, ...] = ()
    entries: tuple[tuple[int, bytes], ...] = ()
    """Names, with the inodes under them. Their directories are locked, too."""
    taken: bool = False
    """Whether the inodes under the names change, too, and so are locked."""
    empty: bool = False
    """Whether the last of the names is that of an empty directory."""
    line: tuple[int, ...] = ()
    """These directories' ancestors."""
    makes: bool = False
    """Whether the name is to be made: mostly there is none yet."""
    rename: bool = False
    """Whether the names are renamed."""
    write: tuple[int, int, int] | None = None
    """The chunks of a node that are changed by writing so many bytes at an offset."""
    read: tuple[int, int, int] | None = None
    """The chunks of a node with so many bytes at an offset."""
    append: int = 0
    """The last chunk of this node."""
    cut: tuple[int, int] | None = None
    """The blocks that a node loses when it gets this size."""
    walks: tuple[Walk, ...] = ()
    locks: bool = True
    """Whether rows are locked: not where they are only to find the way."""


class Transaction:
    """See the module's docstring. Used by one thread, between `begin` and `commit` or `rollback`.

    One without a connection yet gathers the changes of one file, of which all is known (`drafts.py`).

    Args:
        durable: it is on the server's disk when `commit` returns.
        exclusive: it has the volume for itself.
        several: it is a change of several operations, which is repeated as a whole after an error of `REPEATABLE`.
        renames: it may rename directories; one of several operations may not otherwise.
        snapshots: which one is the newest.

    Attributes:
        connection, incarnation: are set before it begins; the server's incarnation is that of `unsynced.py`.
        wants_renames: it was refused, since it is about to rename a directory.
        newest: the number of the newest snapshot, 0 for none, of a transaction that has fetched something.
        way: the nodes along the path that it walked last, each with the directory and the name that lead to it.
    """

    connection: Connection[Any]
    incarnation: str

    def __init__(
        self,
        volume: int,
        version: int,
        snapshots: Newest,
        *,
        durable: bool = False,
        exclusive: bool = False,
        several: bool = False,
        renames: bool = False,
    ) -> None:
        self._volume = volume
        self._exclusive = exclusive
        self.several = several
        self._renames = renames
        self._snapshots = snapshots
        self._lock: Rows = []  # the answer of the statement that took it
        self.newest = 0
        self.durable = durable
        self.wants_renames = False
        self.way: Rows = []
        self.grown_bytes = self.grown_files = self.counts = 0  # for the volume's limits
        self.lost_names: list[int] = []  # nodes
        self.written: list[tuple[int, int, int | None]] = []  # nodes, and their `contents` and `emptied` before
        self.logged: list[LogRow] = []  # added with the commit
        self.before: dict[int, int] = {}  # the versions of what it changes
        self.version = version  # of all that this changes
        self._inodes: dict[int, StoredInode] = {}
        self._locked: set[int] = set()  # inodes whose rows are locked
        self._names: dict[tuple[int, bytes], int | None] = {}
        self._unsure: set[tuple[int, bytes]] = set()  # names that were read while their directory was not locked
        self._chunks: dict[tuple[int, int], Chunk | None] = {}
        self._parents: dict[int, int] = {}
        self._empty: set[int] = set()  # directories that have no names in the table
        self._freed: dict[tuple[int, int], int] = {}
        self.has_begun = False
        self._failure: BaseException | None = None  # the server would answer a commit with a rollback
        self._is_draft = False
        self._is_flushed = False  # some of it was written before the end
        self._guess: list[tuple[Statement, Callable[[Rows], None] | None]] = []  # sent with the commit
        self._guessed: Rows = []  # whether all was as guessed
        self._dated: StoredInode | None = None  # the guessed row of a directory that only gets names (`Guess.dated`) …
        self._dated_at = 0  # … and the time of that
        self._dated_row: Rows = []  # … as it was when it was locked
        # Changes that are not in the tables yet:
        self._changed: dict[int, StoredInode] = {}
        self._set_names: dict[tuple[int, bytes], int | None] = {}
        self._set_chunks: dict[tuple[int, int], Chunk] = {}
        self._cuts: dict[int, int] = {}
        self.nameless: dict[int, int] = {}  # node → the session that still uses it; 0 for none
        # What the tables have of it, for the newest snapshot:
        self._replaced: set[tuple[int, bytes]] = set()  # names that led somewhere else
        self._made: dict[tuple[int, int], int] = {}  # `made` of chunks
        self.changes: list[Change] = []  # other hosts are told of them with the commit
        self._walked: Rows = []  # nodes of paths whose rows have been locked
        self._target: int | None = None  # the end of the path that was walked last

    def ask(self, statement: Statement) -> Rows:
        """The rows of a statement of the caller's."""
        found: Rows = []
        self._send([(statement, found.extend)])
        return found

    def inodes(self) -> list[StoredInode]:
        """The inodes that it has changed, as it has left them."""
        return [self._inodes[node] for node in self.before if node in self._inodes]

    def names(self) -> Mapping[tuple[int, bytes], int | None] | None:
        """The names that it has changed, with the nodes that they have been given; None where they were too many."""
        return None if self._is_flushed else self._set_names

    # -- fetching ----------------------------------------------------------------------------------------------

    def fetch(self, wanted: Wanted) -> None:
        """Lock and fetch all of it in one round trip."""
        volume, lock = self._volume, wanted.locks and not self._exclusive
        if self.has_begun and self._has(wanted, lock):
            return
        renames: Rows = []
        turns: set[int] = set()
        if lock and not wanted.rename:  # `RENAME_LOCK` comes first: a change that walks has it when it takes its turn
            turns = {*wanted.nodes, *(parent for parent, _ in wanted.entries)}
        begins = not self.has_begun
        batch = self._beginning(wanted.walks, sorted(turns))
        if wanted.rename and lock and not self.several:
            batch.append((statements.lock_renames(volume, wanted.entries), renames.extend))
            batch.append((statements.take_turns(volume, sorted({parent for parent, _ in wanted.entries})), None))
        self._names.update({entry: None for entry in wanted.entries if entry[0] in self._empty})
        entries = [entry for entry in wanted.entries if entry not in self._names or (lock and entry in self._unsure)]
        nodes = {*wanted.nodes, *(parent for parent, _ in wanted.entries)}
        if wanted.taken:
            nodes.update(node for node in map(self._names.get, wanted.entries) if node is not None)
        nodes -= self._locked if lock else self._inodes.keys()
        taken, guessed = lock and wanted.taken, [entry for entry in entries if entry in self._unsure]
        before = [self._names[entry] for entry in guessed]
        if entries and taken:
            batch.append((statements.lock_with_entries(volume, sorted(nodes), entries), self._take_locked))
        elif nodes:
            take = self._take_locked if lock else self._take_inodes
            batch.append((statements.inodes(volume, sorted(nodes), lock), take))
        if entries:
            self._names.update(dict.fromkeys(entries))
            batch.append((statements.entries(volume, entries), self._take_entries))
        if wanted.empty and not self._set_names and (entries or self._is_directory(wanted.entries[-1])):
            batch.append((statements.is_empty(volume, wanted.entries[-1]), self._take_empty))
        if entries or not wanted.rename or self._moves_directory(wanted.entries):
            batch += [(statements.line(volume, node), self._parents.update) for node in wanted.line]
        batch += [(statement, self._take_chunks) for statement in self._chunks_for(wanted)]
        if wanted.cut is not None:
            node, first = wanted.cut[0], _first_cut(wanted.cut[1])
            if not self._has_set(node) and self._known_blocks(node, first) is None:
                batch.append((statements.freed(volume, node, first), lambda rows: self._take_freed(node, first, rows)))
        self._send(batch)
        if begins:
            self.newest = self._snapshots.of(self.connection, self._lock[0][1], self.ask)
        self._note_names(entries, sure=lock)
        if before != [self._names[entry] for entry in guessed]:
            self._fail(overtaken())
        if lock and any(node in self._inodes for node in nodes - self._locked):
            self._fail(overtaken())  # the row is gone
        if taken and not all(map(self._is_locked, wanted.entries)):
            self._fail(overtaken())  # a name led elsewhere when its directory was locked; to lock that now may deadlock
        if wanted.rename and lock and not (self._renames or renames) and self._moves_directory(wanted.entries):
            self.wants_renames = True
            self._fail(overtaken())

    def _has(self, wanted: Wanted, lock: bool) -> bool:
        """Whether nothing is to be fetched. It takes a tenth of what `fetch` does, and most operations have it all."""
        nodes, entries, write = wanted.nodes, wanted.entries, wanted.write
        known = self._locked if lock else self._inodes
        return (
            all(node in known for node in nodes)
            and all(
                entry in self._names and entry[0] in known and not (lock and entry in self._unsure) for entry in entries
            )
            and (write is None or (write[0] in nodes and self._inodes[write[0]].is_new and not self._cuts))
            and not (wanted.taken or wanted.empty or wanted.rename or wanted.append)
            and not (wanted.line or wanted.walks or wanted.read or wanted.cut)
        )

    def _beginning(
        self, walks: Sequence[Walk], turns: Sequence[int]
    ) -> list[tuple[Statement, Callable[[Rows], None] | None]]:
        """What a transaction begins with, if it has not begun. `turns` are the nodes that it locks first."""
        batch: list[tuple[Statement, Callable[[Rows], None] | None]] = []
        volume = self._volume
        if not self.has_begun:
            self.has_begun = True
            batch.append((BEGIN, None))
            renames = self._renames if self.several and not self._exclusive else None
            batch.append((statements.lock_changes(volume, self._exclusive, turns, renames), self._lock.extend))
        if walks and not self._exclusive:
            ways = [(walk.names, 2 if walk.removes else 1) for walk in walks]
            batch.append((statements.lock_walks(volume, ROOT_NODE, ways), self._walked.extend))
        for walk in walks:
            take = partial(self._take_walk, walk)
            batch.append((statements.walk(volume, ROOT_NODE, walk.names), take))
            if walk.reads:
                chunks = statements.walked_chunks(volume, ROOT_NODE, walk.names, WALKED_CHUNKS)
                batch.append((chunks, self._take_walked_chunks))
        return batch

    def _note_names(self, entries: Iterable[tuple[int, bytes]], *, sure: bool) -> None:
        for entry in entries:
            if sure or self._exclusive or entry[0] in self._locked:
                self._unsure.discard(entry)
            else:
                self._unsure.add(entry)

    def _moves_directory(self, entries: Iterable[tuple[int, bytes]]) -> bool:
        return any(map(self._is_directory, entries))

    def _is_directory(self, entry: tuple[int, bytes]) -> bool:
        node = self._names[entry]
        return node is not None and self._inodes[node].is_dir

    def _is_locked(self, entry: tuple[int, bytes]) -> bool:
        """Whether the inode under a name is locked, or there is none."""
        node = self._names[entry]
        return node is None or node in self._locked

    def _fail(self, error: BaseException) -> NoReturn:
        self._failure = error
        raise error

    def _chunks_for(self, wanted: Wanted) -> list[Statement]:
        """The chunks that will be changed in part, and the lengths of those that are replaced as a whole."""
        if wanted.append:
            return [statements.last_chunk(self._volume, wanted.append)]
        if wanted.cut is not None:
            node, size = wanted.cut
            index = size >> CHUNK_SHIFT
            return self._missing_chunks(node, index, index, 0, 0) if size & (CHUNK_BYTES - 1) else []
        if (span := wanted.write or wanted.read) is None:
            return []
        node, offset, size = span
        first, last = offset >> CHUNK_SHIFT, (offset + max(size, 1) - 1) >> CHUNK_SHIFT
        return self._missing_chunks(node, first, last, offset, size if wanted.write else 0)

    def _missing_chunks(self, node: int, first: int, last: int, offset: int, size: int) -> list[Statement]:
        """Chunks that are not in memory; without the bytes of those that `size` bytes at `offset` replace."""
        if self._exclusive or node in self._locked:
            last = min(last, self._last_chunk(node))
        missing = [index for index in range(first, last + 1) if (node, index) not in self._chunks]
        if not missing or node in self._cuts:
            return []
        self._chunks.update({(node, index): None for index in missing})
        end = offset + size
        whole = [index for index in missing if offset <= index << CHUNK_SHIFT and (index + 1) << CHUNK_SHIFT <= end]
        return [statements.chunks(self._volume, node, missing[0], missing[-1], whole)]

    def _last_chunk(self, node: int) -> int:
        """No chunk begins at the end of its file, or beyond."""
        inode = self._inodes.get(node)
        return (1 << 63) if inode is None else (inode.size - 1) >> CHUNK_SHIFT

    def _has_set(self, node: int) -> bool:
        return any(other == node for other, _ in self._set_chunks)

    def _known_blocks(self, node: int, first: int) -> int | None:
        """The blocks of the chunks from `first` on, if all of them are in memory."""
        if not (self._exclusive or node in self._locked) or node in self._cuts or node not in self._inodes:
            return None
        indices = range(first, self._last_chunk(node) + 1)
        if len(indices) > len(self._chunks) or any((node, index) not in self._chunks for index in indices):
            return None
        chunks = [self._chunks[node, index] for index in indices]
        return sum(allocated_blocks(len(chunk.data)) for chunk in chunks if chunk is not None)

    def _send(self, batch: Sequence[tuple[Statement, Callable[[Rows], None] | None]], *, ends: bool = False) -> None:
        """Send statements in one round trip. `ends`: a commit is among them."""
        if not batch:
            return
        if self._guess and not ends:
            self._fail(overtaken())
        try:
            answers = send(self.connection, [statement for statement, _ in batch])
        except BaseException as error:
            self._failure = error
            raise
        for (_, take), rows in zip(batch, answers, strict=True):
            if take is not None:
                take(rows)

    def _take_inodes(self, rows: Rows) -> None:
        for row in rows:
            if row[0] not in self._inodes:
                self._inodes[row[0]] = StoredInode.of(row)

    def _take_locked(self, rows: Rows) -> None:
        """These rows are locked now. A file's row that was read before must be the same; a directory must exist.

        A directory's names are compared by themselves, since unrelated names come and go in it all the time.
        """
        for row in rows:
            node = row[0]
            if node in self._locked:
                continue
            inode, before = StoredInode.of(row), self._inodes.get(node)
            if before is not None and (inode.nlink == 0 if inode.is_dir else inode.version != before.version):
                self._fail(overtaken())
            self._inodes[node] = inode
            self._locked.add(node)

    def _take_entries(self, rows: Rows) -> None:
        self._names.update({(parent, name): node for parent, name, node, *_ in rows})
        self._take_inodes([row[2:] for row in rows])

    def _take_walk(self, walk: Walk, rows: Rows) -> None:
        """Rows in `_walked` are locked, so nobody changes them any more."""
        self.way = rows
        self._take_locked([row[2:] for row in rows if (row[2],) in self._walked])
        self._take_inodes([row[2:] for row in rows])
        entries = {(parent, name): row[0] for parent, name, *row in rows[1:]}
        self._target, depth = (rows[-1][2], len(rows) - 1) if rows else (None, 0)
        if rows and depth < len(walk.names):
            if self._inodes[rows[-1][2]].is_dir:
                entries[rows[-1][2], walk.names[depth]] = None
            self._target = None
        self._names.update(entries)
        self._note_names(entries, sure=False)

    def _take_walked_chunks(self, rows: Rows) -> None:
        target = self._target
        if target is not None and (self._exclusive or target in self._locked):
            self._chunks.update({(target, index): None for index in range(WALKED_CHUNKS)})
            self._take_chunks([row for row in rows if row[0] == target])

    def _take_empty(self, rows: Rows) -> None:
        self._empty.update(node for (node,) in rows)

    def _take_chunks(self, rows: Rows) -> None:
        """A chunk without bytes is about to be replaced as a whole: zeros stand in for it."""
        for node, index, size, data, made in rows:
            self._made[node, index] = made
            if self._chunks.get((node, index)) is None:
                self._chunks[node, index] = Chunk(bytes(size) if data is None else data)

    def _take_freed(self, node: int, first: int, rows: Rows) -> None:
        ((self._freed[node, first],),) = rows

    def begin_draft(self, created: StoredInode) -> None:
        """Begin with the changes of a draft. `commit` is an error of `REPEATABLE` if its row has another version.

        It is the error of the connection if that is lost before the answer: the changes may be made twice.
        """
        self._is_draft = True
        self._locked.clear()
        if not self.guess(Guess({created.node: created}, {})):
            self.fetch(Wanted(nodes=(created.node,)))
        self._inodes.update(self._changed)

    def guess(self, guess: Guess) -> bool:
        """Take the tables to have these rows and names; locks are left to the commit, which compares them.

        `commit` is an error of `REPEATABLE` if something is otherwise, and so is the wish for more rows.

        Returns:
            False if the newest snapshot is not known, or a row may have to be kept for it that was only guessed.
        """
        newest = self._snapshots.likely(self.connection)
        if newest is None or (guess.dated and guess.rows[guess.dated].made < newest[1]):
            return False
        count, self.newest = newest
        self.has_begun = True
        self._guess = [(BEGIN, None)]
        if guess.dated:
            self._dated = copy.copy(guess.rows[guess.dated])
            turns = [guess.dated]
            locks = statements.lock_changes(self._volume, False, turns, self._renames if self.several else None)
            rows = statements.inodes(self._volume, turns, lock=True)
            self._guess += [(locks, None), (rows, self._dated_row.extend)]
        compares = statements.compare_dated if guess.dated else statements.lock_guessed
        self._guess.append((compares(self._volume, guess, count), self._guessed.extend))
        self._inodes.update({inode.node: inode for inode in guess.way})
        self._names.update({(link.parent, link.name): link.node for link in guess.links if guess.way})
        self._inodes.update(guess.rows)
        self._locked.update(guess.rows)
        self._names.update(guess.names)
        self._empty.update({guess.empty} - {0})
        return True

    # -- storage -----------------------------------------------------------------------------------------------

    def inode(self, node: int) -> StoredInode:
        inode = self._inodes.get(node)
        if inode is None:
            self.fetch(Wanted(nodes=(node,)))
            inode = self._inodes.get(node)
            if inode is None:
                raise gone()
        return inode

    def known(self, node: int) -> StoredInode | None:
        """The inode, if it has been fetched. With each name its inode has been."""
        return self._inodes.get(node)

    def parent(self, node: int) -> int:
        if node in self._inodes:
            return self._inodes[node].parent
        if node not in self._parents:
            self.fetch(Wanted(line=(node,)))
        if node not in self._parents:
            raise gone()
        return self._parents[node]

    def add(self, inode: StoredInode) -> None:
        self._inodes[inode.node] = self._changed[inode.node] = inode
        self._locked.add(inode.node)  # no other transaction can see it
        self._empty.add(inode.node)

    def changed(self, inode: StoredInode) -> None:
        assert self._exclusive or inode.node in self._locked, f"node {inode.node} is changed, but its row is not locked"
        self._changed[inode.node] = inode

    def child(self, parent: int, name: bytes) -> int | None:
        if (parent, name) not in self._names:
            self.fetch(Wanted(entries=((parent, name),)))
        return self._names[parent, name]

    def set_child(self, parent: int, name: bytes, node: int | None) -> None:
        if self.newest and self._names.get((parent, name), 0) is not None:
            self._replaced.add((parent, name))
        self._names[parent, name] = self._set_names[parent, name] = node
        if node is not None:
            self._empty.discard(parent)

    def children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        if parent in self._empty:
            return []
        self.flush()
        found: list[tuple[bytes, int]] = []
        locked: set[int] = set()
        sure = self._exclusive or parent in self._locked

        def take(rows: Rows) -> None:
            self._take_locked([row[1:] for row in rows if row[1] in locked])
            self._take_inodes([row[1:] for row in rows])
            found.extend((name, row[0]) for name, *row in rows)
            if sure:
                self._names.update({(parent, name): node for name, node in found})

        batch: list[tuple[Statement, Callable[[Rows], None] | None]] = []
        if limit > 1 and sure and not self._exclusive:  # a listing, for a removal of the files in it
            lock = statements.lock_children(self._volume, parent, after, limit)
            batch.append((lock, lambda rows: locked.update(node for (node,) in rows)))
        self._send([*batch, (statements.children(self._volume, parent, after, limit), take)])
        if sure and not found and not after:
            self._empty.add(parent)
        return found

    def chunk(self, node: int, index: int) -> Chunk | None:
        key = (node, index)
        if key not in self._chunks:
            if not self.has_begun or index >= self._cuts.get(node, index + 1):
                return None
            self._chunks[key] = None
            self._send([(statements.chunks(self._volume, node, index, index, []), self._take_chunks)])
        return self._chunks[key]

    def set_chunk(self, node: int, index: int, chunk: Chunk) -> None:
        self._chunks[node, index] = self._set_chunks[node, index] = chunk

    def cut(self, node: int, first: int) -> int:
        """Forget chunks; returns the sum of their blocks."""
        if self._cuts.get(node) is not None or self._has_set(node):
            self.flush()
        known = self._known_blocks(node, first)
        if known is not None:
            self._freed[node, first] = known
        if (node, first) not in self._freed:
            self._send([(statements.freed(self._volume, node, first), lambda c: self._take_freed(node, first, c))])
        for key in [key for key in self._chunks if key[0] == node and key[1] >= first]:
            del self._chunks[key]
        freed = self._freed.pop((node, first))
        if freed:
            self._cuts[node] = first
        return freed

    # -- writing -----------------------------------------------------------------------------------------------

    @property
    def is_large(self) -> bool:
        return len(self._set_chunks) * CHUNK_BYTES > MAX_PENDING_BYTES

    def flush(self) -> None:
        """Write the changes so far, without a commit."""
        self._send([(statement, None) for statement in self._writing()])
        for key in self._set_chunks:
            self._chunks.pop(key, None)  # fetched again when they are needed: they were many
        for table in (self._changed, self._set_names, self._set_chunks, self._cuts, self.nameless):
            table.clear()
        self._freed.clear()
        self._is_flushed = True

    def commit(self, notify: Callable[[Sequence[Change], Sequence[LogRow]], list[Statement]]) -> None:
        """Write everything, notify other hosts and commit.

        Args:
            notify: returns the statements for that, and is called with `changes` and `logged`.

        Raises:
            psycopg.Error: nothing has been changed; or the connection was lost, and the outcome is unknown.
        """
        if self._failure is not None:
            if getattr(self._failure, "sqlstate", None) in REPEATABLE:
                raise self._failure
            raise oserror(errno.EIO)
        writing = self._writing()  # adds the changes
        writing += notify(self.changes, self.logged)
        if self._guess:
            require_quiet(self.connection)
            writing = list(map(statements.if_guessed, writing))
        writing += [COMMIT, WAIT_FOR_DISK] if self.durable else [COMMIT]
        try:
            self._send([*self._guess, *((statement, None) for statement in writing)], ends=True)
        except psycopg.OperationalError as error:
            if self.connection.closed and not self._is_draft:
                words = "PostgreSQL: the connection was lost while a change was being committed"
                raise OSError(errno_of(error), words) from error
            raise
        if self._guess and self._guessed != [(True,)]:
            raise overtaken()
        if self._dated is not None and self._dated_at:
            self._note_dated(self._dated)

    def _date(self, inode: StoredInode, guessed: StoredInode) -> Statement:
        """Write the directory in which names were made, whatever others have done in it since it was guessed."""
        own = copy.copy(inode)
        own.mtime_ns, own.ctime_ns, own.nlink = guessed.mtime_ns, guessed.ctime_ns, guessed.nlink
        if own.row != guessed.row or inode.mtime_ns != inode.ctime_ns:  # more has changed than what a new name does
            self._fail(overtaken())
        self._dated_at = inode.ctime_ns
        more_links = inode.nlink - guessed.nlink
        return statements.date_directory(
            self._volume, inode.node, inode.ctime_ns, more_links, self.version, self.newest
        )

    def _note_dated(self, guessed: StoredInode) -> None:
        """The directory's row is now what it was when it was locked, with the new name's times."""
        inode = StoredInode.of(self._dated_row[0])
        self.before[inode.node] = inode.version
        inode.nlink += self._inodes[inode.node].nlink - guessed.nlink
        inode.mtime_ns = inode.ctime_ns = self._dated_at
        inode.settle_times()
        inode.version, inode.made = self.version, max(inode.made, self.newest)
        self._inodes[inode.node] = inode

    def _writing(self) -> list[Statement]:
        """The statements that write all changes."""
        volume = self._volume
        # Nobody knows a new node yet but by its name.
        self.changes += [Change(node) for node, inode in self._changed.items() if not inode.is_new]
        self.changes += [Change(node, parent, name) for (parent, name), node in self._set_names.items()]
        batch = self._keeping() if self.newest else []
        dated = None if self._dated is None else self._changed.get(self._dated.node)
        if self._dated is not None and dated is not None:
            batch.append(self._date(dated, self._dated))
        for inode in self._changed.values():
            self.before.setdefault(inode.node, inode.version)
            inode.version = self.version
            inode.settle_times()
            inode.made = max(inode.made, self.newest)
        added = [inode for inode in self._changed.values() if inode.is_new]
        updated = [inode for inode in self._changed.values() if not inode.is_new and inode is not dated]
        gone = [key for key, node in self._set_names.items() if node is None]
        here = [(*key, node) for key, node in self._set_names.items() if node is not None]
        if gone:
            batch.append(statements.delete_names(volume, gone))
        if here:
            batch.append(statements.put_names(volume, here, self.newest))
        batch += [statements.cut(volume, node, first) for node, first in self._cuts.items()]
        if added:
            batch += statements.add_inodes(volume, added)
        if updated:
            batch += statements.update_inodes(volume, updated)
        if self._set_chunks:
            batch += statements.put_chunks(volume, self._set_chunks, self.newest)
        if self.nameless:
            batch.append(statements.put_nameless(volume, self.nameless))
        for inode in added:
            inode.is_new = False
        return batch

    def _keeping(self) -> list[Statement]:
        """Keep what the newest snapshot has of the rows that are about to be changed. Most were kept before."""
        volume, newest = self._volume, self.newest
        batch: list[Statement] = []
        if self._replaced:
            batch.append(old_rows.keep_names(volume, list(self._replaced), newest))
            self._replaced.clear()
        older = [inode.node for inode in self._changed.values() if inode.made < newest and not inode.is_new]
        if older:
            batch.append(old_rows.keep_inodes(volume, older, newest))
        batch += [old_rows.keep_cut(volume, node, first, newest) for node, first in self._cuts.items()]
        places: dict[int, list[int]] = {}
        for node, index in self._set_chunks:
            if self._made.get((node, index), newest) < newest:
                places.setdefault(node, []).append(index)
                self._made[node, index] = newest
        batch += [old_rows.keep_chunks(volume, node, indices, newest) for node, indices in places.items()]
        return batch
