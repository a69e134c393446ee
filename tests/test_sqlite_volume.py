"""`SqliteVolume`: what an SQLite file can hold, and what happens at the bounds of it."""

from __future__ import annotations

import pytest

from fusebackend.backends.sqlite import SqliteBackend
from fusebackend.protocol import ROOT_NODE, AttrChanges

YEAR_2300_NS = 10_413_792_000 * 10**9


@pytest.mark.parametrize("beyond_ns", [YEAR_2300_NS, -YEAR_2300_NS])
def test_a_time_that_no_integer_of_sqlite_holds_is_the_nearest_that_one_does(tmp_path, beyond_ns):
    path = tmp_path / "volume.db"
    with SqliteBackend(path) as backend:
        changes = AttrChanges(atime_ns=beyond_ns, mtime_ns=beyond_ns, ctime_ns=beyond_ns)
        backend.volume.setattr(ROOT_NODE, changes)
    with SqliteBackend(path) as backend:
        attr = backend.volume.getattr(ROOT_NODE)
        nearest_ns = (1 << 63) - 1 if beyond_ns > 0 else -(1 << 63)
        assert (attr.atime_ns, attr.mtime_ns, attr.ctime_ns) == (nearest_ns,) * 3
