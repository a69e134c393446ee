"""`SnapshotMachine`: random operations on a volume, with snapshots taken and deleted between them.

After every step each snapshot is compared with the copy that was made when it was taken.
"""

from __future__ import annotations

import errno
import itertools
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from fusebackend.protocol import SnapshotVolume
from fusebackend.testing.model import VolumeMachine
from fusebackend.testing.posix.case import refused
from fusebackend.testing.snapshots.copy import Copied, copy_of, read_once

MAX_SNAPSHOTS = 5
"""Each is read as a whole after every step."""


class SnapshotMachine(VolumeMachine):
    """Subclass it and override `make_volume`; see the package's docstring."""

    volume: Any

    def __init__(self) -> None:
        super().__init__()
        assert isinstance(self.volume, SnapshotVolume)
        self.copies: dict[str, dict[bytes, Copied]] = {}
        self.numbers: dict[str, int] = {}
        self._names = (f"s{number}" for number in itertools.count())
        self._last = 0

    @precondition(lambda self: len(self.copies) < MAX_SNAPSHOTS)
    @rule()
    def take(self) -> None:
        name = next(self._names)
        copy = copy_of(self.volume)
        taken = self.volume.take_snapshot(name)
        assert taken.name == name and taken.number > self._last, f"{taken} after number {self._last}"
        self._last = self.numbers[name] = taken.number
        self.copies[name] = copy

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.copies)))
        gone = self.volume.snapshot(name)
        self.volume.delete_snapshot(name)
        del self.copies[name], self.numbers[name]
        refused(errno.ESTALE, gone.getattr, 1)

    @invariant()
    def snapshots_are_right(self) -> None:
        listed = [(taken.name, taken.number) for taken in self.volume.snapshots()]
        assert listed == list(self.numbers.items())
        for name, wanted in self.copies.items():
            assert read_once(self.volume.snapshot(name)) == wanted, f"snapshot {name}"
