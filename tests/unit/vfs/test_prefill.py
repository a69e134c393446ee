"""Pages pushed at open: when, and with what."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio
from eventually import tick
from fakekernel import FakeKernel
from smallkernel import answer

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.threads import ThreadsBackend
from fusebackend.base.paths import ROOT
from fusebackend.protocol import AttrChanges, Caller, Change
from fusebackend.vfs.coherence.page_cache import FILL_BYTES
from fusebackend.vfs.inodes import ROOT_INODE
from fusebackend.vfs.mounted_tree import FileSystem


def stored(kernel: FakeKernel) -> list[tuple[object, ...]]:
    """The inodes and contents that were pushed."""
    return [notice[1:] for notice in kernel.told if notice[0] == "store"]


class Mount:
    """A file that has been read since it was written, unless its `access_is_due`."""

    def __init__(self, content: bytes = b"some words", *, access_is_due: bool = False) -> None:
        self.volume = InMemoryVolume()
        self.filesystem = FileSystem({ROOT: self.volume})
        self.kernel = FakeKernel()
        self.filesystem.attach(self.kernel)
        entry, opened = answer(self.filesystem.create(ROOT_INODE, b"file", 0o644, os.O_RDWR, Caller(0, 0)))
        self.inode = entry.inode
        answer(self.filesystem.write(opened.number, 0, content))
        answer(self.filesystem.release(opened.number))
        if not access_is_due:
            tomorrow_ns = time.time_ns() + 86_400 * 10**9
            self.volume.setattr(self.inode, AttrChanges(atime_ns=tomorrow_ns))

    @property
    def stored(self) -> list[tuple[object, ...]]:
        return stored(self.kernel)

    def read(self, number: int) -> bytes:
        return answer(self.filesystem.read(number, 0, FILL_BYTES))

    def open(self, flags: int = os.O_RDONLY) -> int:
        return answer(self.filesystem.open(self.inode, flags)).number

    def close(self, number: int) -> None:
        answer(self.filesystem.release(number))


def test_the_first_reader_is_given_the_pages_once() -> None:
    mount = Mount()
    for _ in range(2):
        mount.close(mount.open())
        assert mount.stored == [(mount.inode, b"some words")]


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
def test_a_writer_is_given_none_and_makes_the_next_reader_first_again(flags: int) -> None:
    mount = Mount()
    mount.close(mount.open())
    mount.close(mount.open(flags))
    assert len(mount.stored) == 1
    mount.open()
    assert len(mount.stored) == 2


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_nothing_is_pushed_while_another_handle_may_be_reading(flags: int) -> None:
    """A read in the works holds its page until we answer: storing that page would wait for ourselves."""
    mount = Mount()
    first = mount.open(flags)
    mount.filesystem.prefill.filled.discard(mount.inode)
    mount.kernel.told.clear()
    mount.open()
    assert mount.stored == []
    mount.close(first)


@pytest.mark.parametrize(("size", "pushed"), [(0, False), (FILL_BYTES, True), (FILL_BYTES + 1, False)])
def test_neither_empty_nor_large_files_are_pushed(size: int, pushed: bool) -> None:
    mount = Mount(b"y" * size)
    mount.open()
    assert mount.stored == [(mount.inode, b"y" * size)] * pushed


def test_what_the_other_face_changed_is_pushed_again() -> None:
    mount = Mount()
    mount.close(mount.open())
    mount.volume.open(mount.inode, os.O_WRONLY)
    mount.volume.write(mount.inode, 0, b"SOME")
    mount.volume.release(mount.inode, os.O_WRONLY)
    mount.volume.publish(Change(node=mount.inode))
    mount.open()
    assert mount.stored[-1] == (mount.inode, b"SOME words")


def test_new_times_or_a_new_size_make_the_kernel_drop_its_pages_so_they_are_pushed_again() -> None:
    mount = Mount()
    mount.close(mount.open())
    answer(mount.filesystem.setattr(mount.inode, AttrChanges(size=4)))
    mount.open()
    assert mount.stored[-1] == (mount.inode, b"some")


def test_a_file_whose_access_time_is_due_is_left_to_the_kernel_to_ask_for() -> None:
    mount = Mount(access_is_due=True)
    before = mount.volume.getattr(mount.inode).atime_ns
    tick()
    number = mount.open()
    assert mount.stored == []
    assert mount.volume.getattr(mount.inode).atime_ns == before
    assert mount.read(number) == b"some words"
    assert mount.volume.getattr(mount.inode).atime_ns > before


def test_what_the_kernel_has_asked_for_it_is_not_given_again() -> None:
    mount = Mount(access_is_due=True)
    number = mount.open()
    mount.read(number)
    mount.close(number)
    mount.open()
    assert mount.stored == []


def test_files_of_a_checkpoint_database_have_no_access_times_and_are_pushed(tmp_path: Path) -> None:
    import graphs
    import threadcases

    where = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(where) as saver, ThreadsBackend.from_sqlite(where) as backend:
        threadcases.plain(saver)
        (step, *_) = [entry["path"] for entry in backend.glob("/plain/history/*/a.txt").matches or ()]
        path = [os.fsencode(name) for name in step.strip("/").split("/")]

        async def read(kernel: FakeKernel) -> tuple[int, bytes]:
            filesystem = FileSystem.of(backend)
            filesystem.attach(kernel)
            inode = ROOT_INODE
            for name in path:
                inode = (await filesystem.lookup(inode, name)).inode
            number = (await filesystem.open(inode, os.O_RDONLY)).number
            content = await filesystem.read(number, 0, FILL_BYTES)
            await filesystem.release(number)
            filesystem.detach()
            return inode, content

        for _ in range(3):  # what would wait for the lock, which the feed may hold, is not pushed
            kernel = FakeKernel()
            inode, content = trio.run(read, kernel)
            if stored(kernel):
                break
    assert content and stored(kernel) == [(inode, content)]
