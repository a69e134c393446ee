"""Who opens a file and reads it at once is not changed under; who keeps it open is not waited for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
import trio
from eventually import eventually
from raising import raising
from smallkernel import SmallKernel
from together import beside

from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.backends.memory import InMemoryBackend
from fusebackend.composite.backend import CompositeBackend
from fusebackend.protocol import EditResult
from fusebackend.vfs import handles as grace_module
from fusebackend.vfs.handles import FileHandle
from fusebackend.vfs.mounted_tree import FileSystem

LONG_S = 30.0


class Mount:
    def __init__(self, backend: object) -> None:
        self.agent = CompositeBackend(backend)
        self.filesystem = FileSystem.of(self.agent)
        self.kernel = SmallKernel(self.filesystem)
        self.kernel.put("/f", b"old")

    def edit(self) -> EditResult:
        return self.agent.edit("/f", "old", "new")

    def wait_for_the_change_to_wait(self) -> None:
        eventually(lambda: self.filesystem.write_barrier.changing, 10)

    @property
    def content(self) -> bytes | None:
        return self.agent.download_files(["/f"])[0].content


@pytest.fixture
def mount() -> Iterator[Mount]:
    mount = Mount(InMemoryBackend())
    yield mount
    mount.filesystem.detach()


@pytest.mark.fails_without("write_barrier")
def test_a_change_waits_until_the_file_is_closed(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace_module, "GRACE_S", LONG_S)
    handle = mount.kernel.open("/f", os.O_RDONLY)
    with beside(mount.edit, limit_s=LONG_S) as editing:
        eventually(lambda: mount.filesystem.write_barrier.changing or editing.done(), 10)
        assert mount.content == b"old" and editing.running()
        mount.kernel.close(handle)
    assert mount.content == b"new"
    assert not mount.filesystem.write_barrier.changing


def test_a_change_waits_for_nobody_who_has_had_it_open_for_long(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = mount.kernel.open("/f", os.O_RDONLY)
    monkeypatch.setattr(grace_module, "GRACE_S", LONG_S)
    mount.filesystem.files[handle].opened_at -= 2 * LONG_S
    start = time.monotonic()
    mount.agent.edit("/f", "old", "new")
    assert mount.content == b"new" and time.monotonic() - start < LONG_S


def test_a_change_does_not_wait_for_ever(mount: Mount) -> None:
    mount.kernel.open("/f", os.O_RDONLY)
    mount.agent.upload_files([("/f", b"new")])
    assert mount.content == b"new"


@pytest.mark.trio
async def test_what_is_opened_meanwhile_waits_for_the_change(mount: Mount) -> None:
    """The change is held up where it is told, and is over for whoever gets in."""
    told, go_on = threading.Event(), threading.Event()

    def invalidate_inode(inode: int, *, attributes_only: bool = False) -> None:
        told.set()
        assert go_on.wait(LONG_S)

    mount.kernel.invalidate_inode = invalidate_inode  # type: ignore[method-assign]
    opened: list[int] = []

    async def open_it() -> None:
        opened.append((await mount.filesystem.open(mount.kernel.inode("/f"), os.O_RDONLY)).number)

    with beside(mount.edit, limit_s=LONG_S):
        assert told.wait(LONG_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            await trio.sleep(20 * grace_module.POLL_S)
            assert opened == [] and len(mount.filesystem.files) == 0
            go_on.set()
    assert len(opened) == len(mount.filesystem.files) == 1


@pytest.mark.trio
async def test_what_waits_for_a_change_waits_for_the_next_one_too(mount: Mount) -> None:
    """The second begins when the first has ended, before the file is in the table of those that are open."""
    grace, route, inode = mount.filesystem.write_barrier, mount.filesystem.tree.routes[0], mount.kernel.inode("/f")
    end = grace.begin(route, inode)
    add, number, second = mount.filesystem.files.add, [], []

    def adding(handle: FileHandle) -> int:
        if len(number) == 1:
            second.append(grace.begin(route, inode))
        number.append(add(handle))
        return number[-1]

    mount.filesystem.files.add = adding  # type: ignore[method-assign]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mount.filesystem.open, inode, os.O_RDONLY)
        await trio.sleep(2 * grace_module.POLL_S)
        end()
        with trio.fail_after(LONG_S):
            while len(number) < 2:
                await trio.sleep(grace_module.POLL_S)
        assert len(mount.filesystem.files) == 0
        second[0]()
    assert len(number) == 3 and len(mount.filesystem.files) == 1


def test_an_open_does_not_wait_for_ever(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace_module, "PATIENCE_S", 0.02)
    end = mount.filesystem.write_barrier.begin(mount.filesystem.tree.routes[0], mount.kernel.inode("/f"))
    opened = trio.run(mount.filesystem.open, mount.kernel.inode("/f"), os.O_RDONLY)
    assert opened.number
    end()


def test_a_file_that_can_not_be_opened_keeps_nobody_waiting(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(type(mount.filesystem.tree.routes[0].volume), "open", raising(OSError(5, "broken")))
    with pytest.raises(OSError, match="broken"):
        mount.kernel.open("/f")
    assert len(mount.filesystem.files) == 0


def test_two_changes_of_one_file(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace_module, "GRACE_S", LONG_S)
    handle = mount.kernel.open("/f", os.O_RDONLY)
    with beside(mount.edit, limit_s=LONG_S), beside(mount.edit, limit_s=LONG_S):
        mount.wait_for_the_change_to_wait()
        mount.kernel.close(handle)
    assert mount.content == b"new" and not mount.filesystem.write_barrier.changing


def test_an_agent_with_the_paths_of_the_machine_waits_too(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path_factory.mktemp("root")
    backend = FilesystemBackend(root, virtual_mode=False)
    mount = Mount(backend)
    monkeypatch.setattr(grace_module, "GRACE_S", LONG_S)
    handle = mount.kernel.open("/f", os.O_RDONLY)
    backend.read(f"{root}/f")
    with beside(lambda: backend.edit(f"{root}/f", "old", "new"), limit_s=LONG_S):
        mount.wait_for_the_change_to_wait()
        assert (root / "f").read_bytes() == b"old"
        mount.kernel.close(handle)
    assert (root / "f").read_bytes() == b"new"
    mount.filesystem.detach()
    backend.close()
