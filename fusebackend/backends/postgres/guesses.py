"""`Guesses`: the rows and names that this host has last read or written, from which it guesses those of a change.

A change whose rows are known is one round trip instead of two. Nothing here has to be right: the change compares all
of it on the server (`statements.lock_guessed`), and a wrong guess costs the round trip. We track other hosts' changes
only to avoid wrong guesses. After a wrong guess, that node is not guessed for `CONTESTED_S`. A change that only makes a
name in a directory guesses that directory all the same, whatever others have done in it (`Guess.dated`).

No I/O happens here. Any thread may call any method.
"""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fusebackend.backends.postgres.statements import FIELDS, Guess, StoredInode
from fusebackend.backends.postgres.transaction import Wanted
from fusebackend.databases.pipeline import Rows
from fusebackend.protocol import ROOT_NODE, Link

MAX_ROWS: Final = 5_000
"""And as many names: some 8 MB together. The oldest is forgotten first."""

CONTESTED_S = 1.0
"""So long a node that another host has changed unheard is taken to be changed by others all the time."""

Name = tuple[int, bytes]
Row = Sequence[Any]
"""Values of `statements.COLUMNS`."""

_UNKNOWN: Final = -1

_ATIME: Final = FIELDS.index("atime_ns")


class Guesses:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[int, Row] = {}
        self._directories: dict[int, Row] = {}  # their rows, which others may have changed since
        self._names: dict[Name, int | None] = {}  # None: it is not there
        self._contested: dict[int, float] = {}  # until when
        self._refused: dict[int, float] = {}  # the same of directories in which a name could not just be made

    def note(self, rows: Iterable[Row], names: Mapping[Name, int | None]) -> None:
        """These are in the tables, or were a moment ago. A row without links is no guess any more."""
        with self._lock:
            for row in rows:
                self._rows.pop(row[0], None)
                self._directories.pop(row[0], None)
                if row[2]:
                    self._rows[row[0]] = row
            for name, node in names.items():
                self._names.pop(name, None)
                self._names[name] = node
            _trim(self._rows)
            _trim(self._names)

    def note_way(self, rows: Rows) -> None:
        """A path was walked (`statements.walk`)."""
        directories = [row[2:] for row in rows if stat.S_ISDIR(row[3])]
        self.note(directories, {(row[0], row[1]): row[2] for row in rows[1:]})

    def changed(self, nodes: Iterable[int | None], names: Iterable[Name] = ()) -> None:
        """Another host has changed nodes, and names; None stands for any."""
        with self._lock:
            for node in nodes:
                if node is None:
                    self._rows.clear()
                    self._directories.clear()
                    self._names.clear()
                elif node in self._rows:
                    self._age(node)
            for name in names:
                self._names.pop(name, None)

    def accessed(self, node: int, atime_ns: int | None) -> None:
        """The access time of a node's row has been set; None if that is not known."""
        with self._lock:
            row = self._rows.pop(node, None)
            if row is not None and atime_ns is not None:
                self._rows[node] = (*row[:_ATIME], atime_ns, *row[_ATIME + 1 :])

    def __contains__(self, name: Name) -> bool:
        """Whether the row is here to which a name leads."""
        return self._names.get(name) in self._rows

    def is_there(self, name: Name) -> bool:
        """Whether a name leads somewhere, most likely."""
        return self._names.get(name) is not None

    def wrong(self, guess: Guess) -> None:
        """Something of it was otherwise."""
        until = time.monotonic() + CONTESTED_S
        with self._lock:
            for link in guess.links if guess.way else ():
                self._names.pop((link.parent, link.name), None)
            wrong = self._refused if guess.dated else self._contested
            if len(wrong) > MAX_ROWS:
                wrong.clear()
            for node in guess.rows:
                self._age(node)
                wrong[node] = until
            for name in guess.names:
                self._names.pop(name, None)

    def _age(self, node: int) -> None:
        """A row has changed."""
        row = self._rows.pop(node, None)
        if row is not None and stat.S_ISDIR(row[1]):
            self._directories[node] = row
            _trim(self._directories)

    def of(self, wanted: Wanted) -> Guess | None:
        """What a change will find, if all of it is known."""
        if wanted.walks or wanted.write or wanted.read or wanted.append or wanted.cut:
            return None
        if wanted.xattrs and not wanted.bare:
            return None
        with self._lock:
            absent = None if wanted.makes else _UNKNOWN
            names = {name: self._names.get(name, absent) for name in wanted.entries}
            children = [node for node in names.values() if node is not None]
            if names and (names[wanted.entries[0]] is None) == wanted.taken:
                return None  # a name is there already, or it is not: that is asked
            nodes = {*wanted.nodes, *(parent for parent, _ in names), *children}
            if not nodes <= self._rows.keys() or _is_noted(self._contested, nodes):
                return self._dated(wanted) if wanted.makes and not children else None
            rows = {node: StoredInode.of(self._rows[node]) for node in nodes}
        directories = [node for node in children if rows[node].is_dir]
        if directories and wanted.rename:  # it needs the lock of directories' names, and those above
            return None
        return Guess(rows, names, directories[0] if directories and wanted.empty else 0, wanted.xattrs)

    def of_path(self, path: Sequence[bytes]) -> Guess | None:
        """What a verb will find that makes a file, if all of the way to its directory is known."""
        directory, links, way = ROOT_NODE, list[Link](), list[StoredInode]()
        with self._lock:
            for number, name in enumerate(path):
                row = self._directory(directory)
                if row is None:
                    return None
                node = self._names.get((directory, name))
                if number == len(path) - 1:
                    if node is not None or _is_noted(self._refused, (directory,)):
                        return None
                    rows, absent = {directory: StoredInode.of(row)}, {(directory, name): None}
                    return Guess(rows, absent, bare=directory, links=links, way=way, dated=directory)
                if node is None:
                    return None
                links.append(Link(directory, name, node))
                way.append(StoredInode.of(row))
                directory = node
        return None

    def _dated(self, wanted: Wanted) -> Guess | None:
        ((directory, name),) = wanted.entries
        row = self._directory(directory)
        if row is None or _is_noted(self._refused, (directory,)):
            return None
        return Guess({directory: StoredInode.of(row)}, {(directory, name): None}, bare=wanted.xattrs, dated=directory)

    def _directory(self, node: int) -> Row | None:
        """The row of a directory, which others may have changed since."""
        row = self._rows.get(node) or self._directories.get(node)
        return row if row is not None and stat.S_ISDIR(row[1]) else None


def _is_noted(until: Mapping[int, float], nodes: Iterable[int]) -> bool:
    if not until:
        return False
    now = time.monotonic()
    return any(until.get(node, 0.0) > now for node in nodes)


def _trim(table: dict[Any, Any]) -> None:
    while len(table) > MAX_ROWS:
        del table[next(iter(table))]
