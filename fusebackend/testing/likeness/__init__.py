"""Likeness cases: make each call of a large table on a mount and in a plain directory, and compare every outcome.

    from fusebackend.testing.likeness import LikenessCases

    class TestMine(LikenessCases):
        @pytest.fixture(scope="class")
        @classmethod
        def root(cls):
            yield pathlib.Path("/mnt/mine")

A row is a scene (files of all kinds with owners and modes), a user, and one call. The comparison covers the call's
result or errno, and for everything in the scene afterwards: type, mode, owner, link count, size, contents, target,
device number, the name it had before, and whether its modification and change time have moved. No row holds an expected
outcome; the plain directory gives it, on the same kernel. ext4 and tmpfs agree on all rows.

tables.py        the rows
scenes.py        directories of files of all kinds
calls.py         the calls
observing.py     making calls, and recording the outcome

There are tens of thousands of rows; `rows_per_table` of them are drawn, the same each time. Needs root, for the users.
"""

from __future__ import annotations

import functools
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fusebackend.testing.likeness import tables
from fusebackend.testing.likeness.observing import Row, observe
from fusebackend.testing.posix.case import in_child

__all__ = ["LikenessCases", "Row"]

LIMIT_S = 3600.0
SHOWN = 20


class LikenessCases:
    """Override the fixture `root`."""

    rows_per_table: int = 150
    """How many rows of each table are drawn; 0 takes all."""

    @pytest.fixture
    def root(self) -> Path:
        raise NotImplementedError("override the fixture `root`: it gives the directory under test, as a Path")

    @pytest.fixture(scope="class")
    @classmethod
    def plain(cls) -> Iterator[Path]:
        """A plain directory, the reference."""
        if os.geteuid() != 0:
            pytest.skip("needs root")
        with tempfile.TemporaryDirectory() as directory:
            yield Path(directory)

    @pytest.mark.parametrize("table", tables.TABLES)
    def test_calls(self, root: Path, plain: Path, table: Callable[[], Iterable[Row]]) -> None:
        rows = _drawn(table, self.rows_per_table)
        wanted, found = (in_child(partial(observe, where, rows), LIMIT_S) for where in (plain, root))
        wrong = [
            f"{row.label}:\n  a plain directory: {right}\n  here:              {here}"
            for row, right, here in zip(rows, wanted, found, strict=True)
            if right != here
        ]
        assert not wrong, f"{len(wrong)} of {len(rows)} rows differ:\n" + "\n".join(wrong[:SHOWN])


@functools.cache
def _drawn(table: Callable[[], Iterable[Row]], count: int) -> list[Row]:
    rows = list(table())
    return random.Random(table.__name__).sample(rows, count) if 0 < count < len(rows) else rows
