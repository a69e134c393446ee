"""`KnownInodes`: rows and names that this host has read or committed, until they are known to have changed.

After each read of a file, and after each name that is made in a directory, the kernel asks for attributes again. They
are answered from here while changes of other hosts are announced, and are as fresh as the change feed. With the row of
a small file that was opened come its bytes: the `read` that follows is of the time of the `open`, as close-to-open has
it, and asks for nothing. With a lease (`lease.py`) there are no other hosts, and opens and lookups are answered, too.
Without one, names are only guessed by a change, and so are the rows of directories that others have changed since
(`Guesses`).

Names are those of one version of their directory's row, which changes with each of them.

An answer of the tables may be older than a commit that this host has made meanwhile. So each is noted with the moment
before it was asked for, and is dropped if the node has changed since. No I/O happens here. Any thread may call any
method.
"""

from __future__ import annotations

import copy
import itertools
import stat
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fusebackend.backends.postgres.statements import FIELDS, Guess, StoredInode
from fusebackend.backends.postgres.transaction import Wanted
from fusebackend.base.recent import Recent, RecentBytes
from fusebackend.databases.pipeline import Rows
from fusebackend.protocol import ROOT_NODE, Link
from fusebackend.volumes.damage import is_in_range
from fusebackend.volumes.storage import CHUNK_BYTES, CHUNK_COST_BYTES, Chunk, ChunkCache

MAX_INODES: Final = 20_000
"""Some 1 KB each. Those that were noted first are forgotten first, as of all that follows."""

MAX_BYTES: Final = 8 << 20
"""Of files."""

MAX_ATTRIBUTE_BYTES: Final = 4096
"""A row with more is asked for each time."""

MAX_NAMES: Final = 50_000
"""Those of the directory that was used longest ago go first, and no directory with more is kept."""

MAX_CHANGES: Final = 10_000

UNKNOWN: Final = 0
"""In the place of a node."""


_VERSION: Final = FIELDS.index("version")


@dataclass(slots=True)
class _Names:
    """Names in a directory, with their nodes; None for one that is not there."""

    version: int
    """Of the directory's row."""
    is_whole: bool = False
    """All are known."""
    names: dict[bytes, int | None] = field(default_factory=dict)
    listed: bytes = b""
    """A listing has come to this name."""


class KnownInodes:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Recent[int, StoredInode] = Recent(MAX_INODES)
        self._data = ChunkCache(MAX_BYTES)  # all bytes of files, as of their rows in `_known`
        self._names: RecentBytes[int, _Names] = RecentBytes(MAX_NAMES)  # each directory counts as one more than it has
        self._moment = 0
        self._changes: dict[int, int] = {}  # when a node last changed; all others did at `_floor` or before
        self._floor = 0
        self._sent: Recent[int, int] = Recent(MAX_CHANGES)  # versions of bytes that the kernel has been given
        self._aged: Recent[int, StoredInode] = Recent(MAX_CHANGES)  # rows of directories that others have changed since

    @property
    def moment(self) -> int:
        """To be read before the tables are queried or changed, and passed on with the outcome."""
        return self._moment

    def get(self, node: int) -> StoredInode | None:
        """A copy of a row."""
        known = self._known.get(node)
        return None if known is None else copy.copy(known)

    def directory(self, node: int) -> StoredInode | None:
        """A copy of the row of a directory, which others may have changed since."""
        row = self.get(node) or copy.copy(self._aged.get(node))
        return row if row is not None and row.is_dir else None

    def data(self, node: int) -> tuple[StoredInode, bytes] | None:
        """A copy of the row of a small file, and all its bytes."""
        with self._lock:
            known, only = self._known.get(node), self._data.get((node, 0))
            if known is None or only is None:
                return None
            self._sent[node] = known.contents
        return copy.copy(known), bytes(only.data)

    def needs_data(self, node: int) -> bool:
        """Whether a node is a small file whose bytes are neither here nor with the kernel."""
        known = self._known.get(node)
        if known is None or not stat.S_ISREG(known.mode) or (node, 0) in self._data.kept:
            return False
        return 0 < known.size <= CHUNK_BYTES and self._sent.get(node) != known.contents

    def child(self, directory: int, name: bytes) -> int | None:
        """The node under a name, None if there is none, `UNKNOWN` if that is not known."""
        with self._lock:
            known = self._names.get(directory)
        if known is None:
            return UNKNOWN
        return known.names.get(name, None if known.is_whole else UNKNOWN)

    def sent(self, node: int) -> int:
        """Which version of a file's bytes was last read from here; -1 for none. The kernel may still have them."""
        return self._sent.get(node, -1)

    def ends(self, directory: int, name: bytes) -> bool:
        """Whether no name of a directory comes after this one."""
        with self._lock:
            known = self._names.get(directory)
            if known is None or not known.is_whole:
                return False
            return not any(other > name and node is not None for other, node in known.names.items())

    def found(self, moment: int, inode: StoredInode, data: bytes | None = None) -> None:
        """A row was read, and perhaps all bytes of the file."""
        with self._lock:
            if self._changed_at(inode.node) <= moment:
                known = self._known.get(inode.node)
                if data is None and known is not None and known.version == inode.version:
                    return
                self._set(inode, data)

    def found_row(self, moment: int, row: Sequence[Any]) -> None:
        """A row was read (`statements.COLUMNS`) that may be damaged."""
        known = self._known.get(row[0])
        is_new = known is None or known.version != row[_VERSION]
        if is_new and row[2] and is_in_range(row[:12]):
            self.found(moment, StoredInode.of(row))

    def walked(self, moment: int, rows: Rows) -> None:
        """A path was walked (`statements.walk`)."""
        for above, row in itertools.pairwise(rows):
            self.found_row(moment, above[2:])
            self.looked(moment, row[0], above[2 + _VERSION], row[1], row[2])
        self.found_row(moment, rows[-1][2:])

    def looked(self, moment: int, directory: int, version: int, name: bytes, node: int | None) -> None:
        """A name was looked up in a directory whose row has this version."""
        with self._lock:
            known = self._names_of(moment, directory, version)
            if known is not None:
                known.names[name] = node
                self._keep_names(directory, known)

    def listed_names(
        self, moment: int, directory: int, version: int, after: bytes, found: Mapping[bytes, int], *, is_end: bool
    ) -> None:
        """These names follow one of a directory, whose row has this version; they are the last of it if `is_end`."""
        with self._lock:
            known = self._names_of(moment, directory, version)
            if known is None:
                return
            known.names.update(found)
            if known.listed >= after:
                known.listed = max(known.listed, *found, after) if found else known.listed
                known.is_whole = known.is_whole or is_end
            self._keep_names(directory, known)

    def _names_of(self, moment: int, directory: int, version: int) -> _Names | None:
        """Where names that were read belong; None if they are old."""
        if self._changed_at(directory) > moment:
            return None
        known = self._names.get(directory)
        return known if known is not None and known.version == version else _Names(version)

    def committed(
        self,
        moment: int,
        inodes: Iterable[StoredInode],
        before: Mapping[int, int],
        names: Mapping[tuple[int, bytes], int | None] | None = None,
    ) -> None:
        """This host has committed these rows. Of two commits at once it is not known which was the later one.

        Args:
            before: their versions until then.
            names: all that it has changed; None if they are not known.
        """
        with self._lock:
            kept = self._names_after(inodes, before) if names is not None else {}
            for (directory, name), node in (names or {}).items():
                if directory in kept:
                    kept[directory].names[name] = node
            for inode in inodes:
                is_known = self._changed_at(inode.node) <= moment and inode.nlink > 0
                self._note_change(inode.node)
                if is_known:
                    self._set(inode, None)
            for directory, known in kept.items():
                self._keep_names(directory, known)

    def _names_after(self, inodes: Iterable[StoredInode], before: Mapping[int, int]) -> dict[int, _Names]:
        """Take out the names of directories that a commit has changed, where they are those before it.

        A new directory has none. One with names of neither version was changed by another commit of this host, which
        has not been noted yet.
        """
        kept: dict[int, _Names] = {}
        for inode in inodes:
            if not inode.is_dir or not inode.nlink:
                continue
            known = self._names.get(inode.node)
            if known is None and before.get(inode.node) == 0:
                kept[inode.node] = _Names(inode.version, is_whole=True)
            elif known is not None and known.version in (before.get(inode.node), inode.version):
                self._names.pop(inode.node)
                known.version = inode.version
                kept[inode.node] = known
        return kept

    def _keep_names(self, directory: int, known: _Names) -> None:
        if len(known.names) <= MAX_NAMES:
            self._names.put(directory, known, 1 + len(known.names))
        else:
            self._names.pop(directory)

    def accessed(self, node: int, atime_ns: int) -> None:
        """The access time of a node's row has been set."""
        with self._lock:
            known = self._known.get(node)
            if known is not None:
                self._known[node] = copy.copy(known)
                self._known[node].atime_ns = atime_ns

    def changed(self, *nodes: int | None) -> None:
        """Rows, or names in directories, may have changed: of directories they are good for no more than `directory`.
        None stands for any."""
        with self._lock:
            if None in nodes:
                self._aged.clear()
                self._moment += 1
                self._floor = self._moment
                self._changes.clear()
                self._known.clear()
                self._data.clear()
                self._names.clear()
            for node in nodes:
                if node is not None:
                    if (row := self.directory(node)) is not None:
                        self._aged[node] = row
                    self._note_change(node)

    def _changed_at(self, node: int) -> int:
        return self._changes.get(node, self._floor)

    def _note_change(self, node: int) -> None:
        self._moment += 1
        self._changes.pop(node, None)
        self._changes[node] = self._moment
        if len(self._changes) > MAX_CHANGES:
            self._floor = self._changes.pop(next(iter(self._changes)))
        if node in self._known:
            self._drop(node)
        self._names.pop(node)

    def _set(self, inode: StoredInode, data: bytes | None) -> None:
        node = inode.node
        self._drop(node)
        if sum(map(len, inode.attributes or ())) > MAX_ATTRIBUTE_BYTES:
            return
        self._known[node] = copy.copy(inode)
        if data is not None:
            self._data.put((node, 0), Chunk(data), len(data) + CHUNK_COST_BYTES)

    def _drop(self, node: int) -> None:
        self._known.pop(node, None)
        self._data.pop((node, 0))


# -- guesses -----------------------------------------------------------------------------------------------------
#
# `Guesses`: what a change will find, as `KnownInodes` has it.
#
# A change whose rows are known is one round trip instead of two: with 1 ms to the server it halves the time of
# `unlink`, `chmod` and `rm -r`. Nothing known has to be right: the change compares all of it on the server
# (`statements.lock_guessed`), and a wrong guess costs the round trip. After a wrong guess, that node is not guessed for
# `CONTESTED_S`. A change that only makes a name in a directory guesses that directory all the same, whatever others
# have done in it (`Guess.dated`).
#
# No I/O happens here. Any thread may call any method.

CONTESTED_S = 1.0
"""So long a node that another host has changed unheard is taken to be changed by others all the time."""

MAX_CONTESTED: Final = 5_000
"""With more, all are guessed again."""


class Guesses:
    """See the comment above."""

    def __init__(self, known: KnownInodes) -> None:
        self._known = known
        # Until when, with whether a name could not just be made in a directory.
        self._contested: dict[tuple[int, bool], float] = {}

    def wrong(self, guess: Guess) -> None:
        """Something of it was otherwise."""
        if len(self._contested) > MAX_CONTESTED:
            self._contested.clear()
        until = time.monotonic() + CONTESTED_S
        self._contested.update({(node, bool(guess.dated)): until for node in guess.rows})
        self._known.changed(*guess.rows, *(link.parent for link in guess.links if guess.way))

    def of(self, wanted: Wanted) -> Guess | None:
        """What a change will find, if all of it is known."""
        if wanted.walks or wanted.write or wanted.read or wanted.append or wanted.cut:
            return None
        names = {name: self._known.child(*name) for name in wanted.entries}
        if wanted.makes:
            names = {name: node or None for name, node in names.items()}
        children = [node for node in names.values() if node is not None]
        if names and (names[wanted.entries[0]] is None) == wanted.taken:
            return None  # a name is there already, or it is not: that is asked
        nodes = {*wanted.nodes, *(parent for parent, _ in names), *children}
        rows = {node: row for node in nodes if (row := self._known.get(node)) is not None}
        if len(rows) < len(nodes) or self._is_contested(nodes):
            return self._dated(*wanted.entries[0]) if wanted.makes and not children else None
        directories = [node for node in children if rows[node].is_dir]
        if directories and wanted.rename:  # it needs the lock of directories' names, and those above
            return None
        return Guess(rows, names, directories[0] if directories and wanted.empty else 0)

    def of_path(self, path: Sequence[bytes]) -> Guess | None:
        """What a verb will find that makes a file, if all of the way to its directory is known."""
        directory, links, way = ROOT_NODE, list[Link](), list[StoredInode]()
        for name in path[:-1]:
            row, node = self._known.directory(directory), self._known.child(directory, name)
            if row is None or not node:
                return None
            links.append(Link(directory, name, node))
            way.append(row)
            directory = node
        found = self._dated(directory, path[-1]) if not self._known.child(directory, path[-1]) else None
        return None if found is None else found._replace(links=links, way=way)

    def _dated(self, directory: int, name: bytes) -> Guess | None:
        row = self._known.directory(directory)
        if row is None or self._is_contested((directory,), dated=True):
            return None
        return Guess({directory: row}, {(directory, name): None}, dated=directory)

    def _is_contested(self, nodes: Iterable[int], *, dated: bool = False) -> bool:
        now = time.monotonic()
        return any(self._contested.get((node, dated), 0.0) > now for node in nodes)
