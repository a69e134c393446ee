"""`SqliteVolume`: what an SQLite file can hold, and what happens at the bounds of it."""

from __future__ import annotations

import os
import stat

import pytest

from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller

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


def test_what_is_appended_in_small_pieces_counts_in_full(tmp_path):
    """Else a disk that is nearly full is promised more than it can take."""
    with SqliteBackend(tmp_path / "volume.db") as backend, backend.volume.lock:
        node = backend.volume.create(ROOT_NODE, b"log", stat.S_IFREG | 0o644, os.O_WRONLY, Caller(0, 0)).node
        for offset in range(0, 60_000, 100):
            backend.volume.write(node, offset, bytes(100))
        assert backend.volume._dirty.bytes == 60_000
        backend.volume.release(node, os.O_WRONLY)


def test_a_listing_reads_the_inodes_of_a_page_together(tmp_path):
    """A query for each would be most of its time. Some entries are in memory, changed and removed since."""
    me, path = Caller(0, 0), tmp_path / "volume.db"
    with SqliteBackend(path) as backend:
        for number in range(1000):
            backend.volume.mknod(ROOT_NODE, b"%03d" % number, stat.S_IFREG | 0o600, 0, me)
    with SqliteBackend(path) as backend:
        volume, queries = backend.volume, []
        changed = volume.lookup(ROOT_NODE, b"007")
        volume.setattr(changed.node, AttrChanges(mode=0o640))
        volume.unlink(ROOT_NODE, b"008")
        volume._db.set_trace_callback(queries.append)
        listed = dict(volume.readdir(ROOT_NODE, b"", 1000))
        assert len(queries) <= 4
        assert sorted(listed) == [b"%03d" % number for number in range(1000) if number != 8]
        assert listed[b"007"].mode == stat.S_IFREG | 0o640
        assert {attr.node for attr in listed.values()} == {volume.lookup(ROOT_NODE, name).node for name in listed}
