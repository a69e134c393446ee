"""`Guesses`: the rows and names that this host has last read or written, from which it guesses those of a change.

A change whose rows are known is one round trip instead of two. Nothing here has to be right: the change compares all
of it on the server (`statements.lock_guessed`), and a wrong guess costs the round trip. So other hosts' changes are
only noted to have few of these, and a node of a wrong guess is not guessed again for `CONTESTED_S`.

No I/O happens here. Any thread may call any method.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fusebackend.backends.postgres.statements import FIELDS, Guess, StoredInode
from fusebackend.backends.postgres.transaction import Wanted

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
        self._names: dict[Name, int | None] = {}  # None: it is not there
        self._contested: dict[int, float] = {}  # until when

    def note(self, rows: Iterable[Row], names: Mapping[Name, int | None]) -> None:
        """These are in the tables, or were a moment ago. A row without links is no guess any more."""
        with self._lock:
            for row in rows:
                self._rows.pop(row[0], None)
                if row[2]:
                    self._rows[row[0]] = row
            for name, node in names.items():
                self._names.pop(name, None)
                self._names[name] = node
            _trim(self._rows)
            _trim(self._names)

    def changed(self, node: int | None, name: Name | None = None) -> None:
        """Another host has changed a node, or a name, or there was a read; no node stands for any."""
        with self._lock:
            if node is None and name is None:
                self._rows.clear()
                self._names.clear()
            self._rows.pop(_UNKNOWN if node is None else node, None)
            if name is not None:
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
            if len(self._contested) > MAX_ROWS:
                self._contested.clear()
            for node in guess.rows:
                self._rows.pop(node, None)
                self._contested[node] = until
            for name in guess.names:
                self._names.pop(name, None)

    def of(self, wanted: Wanted) -> Guess | None:
        """What a change will find, if all of it is known."""
        if wanted.walks or wanted.write or wanted.read or wanted.append or wanted.cut or wanted.xattrs:
            return None
        with self._lock:
            absent = None if wanted.makes else _UNKNOWN
            names = {name: self._names.get(name, absent) for name in wanted.entries}
            children = [node for node in names.values() if node is not None]
            if names and (names[wanted.entries[0]] is None) == wanted.taken:
                return None  # a name is there already, or it is not: that is asked
            nodes = {*wanted.nodes, *(parent for parent, _ in names), *children}
            if not nodes <= self._rows.keys() or self._is_contested(nodes):
                return None
            rows = {node: StoredInode.of(self._rows[node]) for node in nodes}
        directories = [node for node in children if rows[node].is_dir]
        if directories and wanted.rename:  # it needs the lock of directories' names, and those above
            return None
        return Guess(rows, names, directories[0] if directories and wanted.empty else 0)

    def _is_contested(self, nodes: Iterable[int]) -> bool:
        if not self._contested:
            return False
        now = time.monotonic()
        return any(self._contested.get(node, 0.0) > now for node in nodes)


def _trim(table: dict[Any, Any]) -> None:
    while len(table) > MAX_ROWS:
        del table[next(iter(table))]
