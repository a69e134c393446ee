"""A disk that loses power: possible contents of a few files afterwards, by the records of `recorder.c`.

Writes to a file before its last complete sync survive. Of the later ones any subset may survive, in any order: each as
a whole, torn between sectors, or not at all. Changes of names survive in order, up to some moment after the last sync
of the directory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from power.work import HEADER

SECTOR_BYTES = 512
NAMES = ("", "-wal", "-journal", "-log")
DIRECTORY = 1_000_000


class Record(NamedTuple):
    kind: str
    name: int
    file: int
    offset: int
    data: bytes


def records(log: Path) -> Iterator[Record]:
    data = log.read_bytes()
    at = 0
    while at < len(data):
        kind, name, _, file, offset, size = HEADER.unpack_from(data, at)
        at += HEADER.size
        yield Record(kind.decode(), name, file, offset, data[at : at + size])
        at += size


class File:
    """One file: its synced contents, and the writes since."""

    def __init__(self) -> None:
        self.safe = bytearray()
        self.pending: list[Record] = []
        self.syncing: dict[int, int] = {}  # sync → length of `pending` when it began

    def after(self, chance: random.Random) -> bytes:
        """Draw possible contents. Often all or none of the last writes survive; else each is drawn on its own."""
        data = bytearray(self.safe)
        likely = chance.choice((0.0, 0.5, 0.9, 1.0))
        for record in self.pending:
            if chance.random() < likely:
                _apply(data, record, chance if chance.random() < 0.2 else None)
        return bytes(data)


class Disk:
    """The files after the records that `take` was given."""

    def __init__(self) -> None:
        self._files: dict[int, File] = {}
        self._names: dict[int, int] = {}  # synced
        self._changes: list[Record] = []  # changes of names since
        self._syncing: dict[int, int] = {}

    def take(self, record: Record) -> None:
        kind, number = record.kind, record.file
        if kind in "CU":
            if kind == "C":
                self._files[number] = File()
            self._changes.append(record)
        elif kind in "WT":
            self._files[number].pending.append(record)
        elif kind == "B" and number == DIRECTORY:
            self._syncing[record.offset] = len(self._changes)
        elif kind == "E" and number == DIRECTORY:
            self._settle_names(self._syncing.pop(record.offset))
        elif kind == "B":
            self._files[number].syncing[record.offset] = len(self._files[number].pending)
        elif kind == "E":
            file = self._files[number]
            done = file.syncing.pop(record.offset)
            for write in file.pending[:done]:
                _apply(file.safe, write, None)
            del file.pending[:done]
            file.syncing = {sync: max(0, count - done) for sync, count in file.syncing.items()}

    def _settle_names(self, done: int) -> None:
        for change in self._changes[:done]:
            _rename(self._names, change)
        del self._changes[:done]
        self._syncing = {sync: max(0, count - done) for sync, count in self._syncing.items()}

    def lose_power(self, path: Path, chance: random.Random) -> None:
        """Write possible contents to `path` and the files beside it."""
        names = dict(self._names)
        for change in self._changes[: chance.randint(0, len(self._changes))]:
            _rename(names, change)
        for number, suffix in enumerate((*NAMES, "-shm")):
            target = path.with_name(path.name + suffix)
            target.unlink(missing_ok=True)
            if number in names:
                target.write_bytes(self._files[names[number]].after(chance))


def _rename(names: dict[int, int], change: Record) -> None:
    if change.kind == "C":
        names[change.name] = change.file
    else:
        names.pop(change.name, None)


def _apply(data: bytearray, record: Record, tearing: random.Random | None) -> None:
    if record.kind == "T":
        size = record.offset
        del data[size:]
        data.extend(bytes(size - len(data)))
        return
    for start in range(0, len(record.data), SECTOR_BYTES if tearing else len(record.data) or 1):
        if tearing is not None and tearing.random() < 0.5:
            continue
        piece = record.data[start : start + SECTOR_BYTES] if tearing else record.data
        offset = record.offset + start
        if offset > len(data):
            data.extend(bytes(offset - len(data)))
        data[offset : offset + len(piece)] = piece
