"""What was forgotten gives its memory back: tables shrink, and caches that would keep it are emptied."""

from __future__ import annotations

import stat
import subprocess
import sys

from for_each import for_each

from fusebackend.backends import SqliteBackend
from fusebackend.base import heap
from fusebackend.protocol import ROOT_NODE, Attr, Caller
from fusebackend.vfs.inodes import InodeTable

MANY = 4000
ME = Caller(0, 0)


@for_each(("length", "peak", "expected"), [(249, 1001, True), (250, 1001, False), (0, 1000, False), (0, 0, False)])
def test_what_is_worth_shrinking(length: int, peak: int, expected: bool) -> None:
    assert heap.is_mostly_empty(length, peak) is expected


def test_giving_back_what_is_not_there() -> None:
    heap.give_back()


def test_buffers_that_are_freed_and_made_in_turns_are_the_same_memory() -> None:
    """As the answers of reads are. In a process of its own: it is for good."""
    script = """
import resource
from fusebackend.base import heap
heap.keep_less()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytes(bytearray(1 << 20))
before = faults()
for _ in range(100):
    bytes(memoryview(bytearray(1 << 20)))
print(faults() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert int(done.stdout) < 2_560, "the system gives and takes it each time: 480 page faults for each round"


def test_the_inode_table_shrinks_with_what_the_kernel_knows() -> None:
    table = InodeTable()
    for node in range(2, MANY):
        table.reference(node, ROOT_NODE, b"%d" % node, Attr(node, stat.S_IFREG | 0o644))
    full = sys.getsizeof(table._known)
    for node in range(2, MANY):
        table.forget([(node, 1)])
    assert len(table) == 1
    assert sys.getsizeof(table._known) < full / 2


def test_an_sqlite_volume_empties_its_caches_when_the_kernel_does(tmp_path) -> None:
    with SqliteBackend(tmp_path / "volume.db") as backend:
        volume = backend.volume
        kept = volume.mknod(ROOT_NODE, b"kept", stat.S_IFREG | 0o644, 0, ME).node
        volume.fsync(kept, False)
        assert volume.lookup(ROOT_NODE, b"kept").node == kept
        assert volume._names
        for node in range(MANY):
            volume.hold(node)
        full = sys.getsizeof(volume._held)
        volume.forget(range(MANY // 2))
        assert volume._names, "half of it is not most of it"
        volume.forget(range(MANY // 2, MANY))
        assert not volume._names
        assert sys.getsizeof(volume._held) < full / 2
        assert volume.lookup(ROOT_NODE, b"kept").node == kept


def test_an_inode_that_the_kernel_forgets_while_it_waits_to_be_written_goes_with_that(tmp_path) -> None:
    with SqliteBackend(tmp_path / "volume.db") as backend:
        volume = backend.volume
        gone, back = (volume.mknod(ROOT_NODE, name, stat.S_IFREG | 0o644, 0, ME).node for name in (b"gone", b"back"))
        for node in (gone, back):
            volume.hold(node)
        volume.forget([gone, back])
        volume.hold(back)
        assert {gone, back} <= volume._inodes.keys(), "what is not in the file yet must be here"
        volume.write_back()
        assert back in volume._inodes
        assert gone not in volume._inodes
        assert volume.lookup(ROOT_NODE, b"gone").node == gone


def test_what_was_freed_between_what_is_in_use_is_free():
    """Freed blocks that lie between others stay in the address space, and are used again."""
    blocks = [bytes(100_000) for _ in range(500)]
    before = heap.free_bytes()
    del blocks[::2]
    assert heap.free_bytes() - before > 20 << 20
