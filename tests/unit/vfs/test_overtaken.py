"""An answer that a change has overtaken: it is not believed, and the change is not lost on the kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyfuse3
import pytest
from eventually import eventually
from fakekernel import FakeKernel
from for_each import for_each
from onloop import listed, readdir, run
from raising import raising
from together import together

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT
from fusebackend.fuse import notifier as notifiers
from fusebackend.fuse.notifier import Notifier
from fusebackend.protocol import ROOT_NODE, Attr, Caller, Change
from fusebackend.testing.posix.case import refused
from fusebackend.vfs import switches
from fusebackend.vfs.coherence.entry_cache import COHERENT_TIMEOUT_S
from fusebackend.vfs.coherence.page_cache import DirectIO
from fusebackend.vfs.inodes import ROOT_INODE, InodeTable, node_of
from fusebackend.vfs.mounted_tree import FileSystem

ME = Caller(os.geteuid(), os.getegid())


class OvertakenVolume(InMemoryVolume):
    """Somebody changes a file as soon as it has been looked at."""

    overtaken = False

    def lookup(self, parent: int, name: bytes) -> Attr:
        return self._overtake(super().lookup(parent, name))

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        return self._overtake(super().create(parent, name, mode, flags, caller))

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._overtake(super().mkdir(parent, name, mode, caller))

    def readdir(self, node: int, after: bytes, limit: int) -> list[tuple[bytes, Attr]]:
        page = list(super().readdir(node, after, limit))
        for _, attr in page:
            self._overtake(attr)
        return page

    def _overtake(self, attr: Attr) -> Attr:
        if self.overtaken:
            self.tell([Change(node=attr.node)])
        return attr


@pytest.fixture
def volume() -> OvertakenVolume:
    volume = OvertakenVolume()
    volume.release(volume.create(ROOT_NODE, b"file", 0o644, os.O_WRONLY, ME).node, os.O_WRONLY)
    return volume


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def filesystem(volume: OvertakenVolume, kernel: FakeKernel) -> Iterator[FileSystem]:
    filesystem = FileSystem({ROOT: volume})
    filesystem.attach(kernel)
    yield filesystem
    filesystem.detach()


def given_times(filesystem: FileSystem) -> set[float]:
    """For how long the kernel may believe the answers of all kinds."""
    entries = [
        run(filesystem.lookup(ROOT_INODE, b"file")),
        run(filesystem.create(ROOT_INODE, b"new", 0o644, os.O_RDWR, ME))[0],
        run(filesystem.mkdir(ROOT_INODE, b"directory", 0o755, ME)),
        listed(filesystem)[b"file"],
        listed(filesystem)[b"file"],
    ]
    return {entry.timeout_s for entry in entries}


def test_what_has_not_changed_since_it_was_looked_at_is_believed(filesystem: FileSystem) -> None:
    listed(filesystem)  # the kernel may keep the second one
    assert given_times(filesystem) == {COHERENT_TIMEOUT_S}


@pytest.mark.fails_without("overtaken")
def test_what_has_changed_since_it_was_looked_at_is_not_believed(
    filesystem: FileSystem, volume: OvertakenVolume
) -> None:
    listed(filesystem)
    volume.overtaken = True
    assert given_times(filesystem) == {0.0}


@pytest.mark.parametrize("room", [2, 3])
def test_what_does_not_fit_into_a_listing_is_not_held(filesystem: FileSystem, room: int) -> None:
    for _ in range(2):
        number = run(filesystem.opendir(ROOT_INODE))
        run(readdir(filesystem, number, 0, room))
        run(filesystem.releasedir(number))
    known = [count for inode, count in filesystem.inodes.items() if inode != ROOT_INODE]
    assert known == ([2] if room == 3 else [])


# -- the kernel takes some answers whatever it is told -------------------------------------------------------------


@pytest.mark.fails_without("unordered_replies")
def test_the_attributes_that_a_new_link_is_given_are_asked_for_again(filesystem: FileSystem) -> None:
    file = run(filesystem.lookup(ROOT_INODE, b"file"))
    assert run(filesystem.link(file.inode, ROOT_INODE, b"other name")).timeout_s == 0


@pytest.mark.fails_without("unordered_replies")
def test_a_file_that_was_made_meanwhile_is_opened(filesystem: FileSystem) -> None:
    entry, opened = run(filesystem.create(ROOT_INODE, b"file", 0o644, os.O_WRONLY | os.O_CREAT, ME))
    assert entry.timeout_s == 0 and entry.inode == run(filesystem.lookup(ROOT_INODE, b"file")).inode
    run(filesystem.release(opened.number))
    run(filesystem.forget([(entry.inode, 2)]))
    assert len(filesystem.inodes) == 1


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_WRONLY | os.O_TRUNC], ids=["open", "truncate"])
def test_what_else_was_made_meanwhile_is_left_to_the_kernel(filesystem: FileSystem, kind: str, flags: int) -> None:
    if kind == "link":
        made = run(filesystem.symlink(ROOT_INODE, b"new", b"file", ME))
    elif kind == "fifo":
        made = run(filesystem.mknod(ROOT_INODE, b"new", 0o10644, 0, ME))
    else:
        made = run(filesystem.mkdir(ROOT_INODE, b"new", 0o755, ME))
    refused(errno.ESTALE, run, filesystem.create(ROOT_INODE, b"new", 0o644, flags | os.O_CREAT, ME))
    assert dict(filesystem.inodes.items())[made.inode] == 1 and len(filesystem.files) == 0
    if kind == "link":
        assert run(filesystem.readlink(made.inode)) == b"file"


def test_a_name_that_is_gone_again_is_left_to_the_kernel(
    filesystem: FileSystem, volume: OvertakenVolume, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(volume, "create", raising(FileExistsError(errno.EEXIST, "it was there just now")))
    refused(errno.ESTALE, run, filesystem.create(ROOT_INODE, b"nothing", 0o644, os.O_WRONLY | os.O_CREAT, ME))


@pytest.mark.fails_without("crossed_renames")
def test_what_was_renamed_while_an_agent_changes_names_is_looked_up_again(
    filesystem: FileSystem, volume: OvertakenVolume, kernel: FakeKernel
) -> None:
    run(filesystem.rename(ROOT_INODE, b"file", ROOT_INODE, b"b", 0))
    assert kernel.names == []
    with volume.changing():
        run(filesystem.rename(ROOT_INODE, b"b", ROOT_INODE, b"c", 0))
    assert kernel.names == [(ROOT_INODE, b"b"), (ROOT_INODE, b"c")]
    run(filesystem.rename(ROOT_INODE, b"c", ROOT_INODE, b"d", 0))
    assert len(kernel.names) == 2


@pytest.mark.fails_without("late_forget")
def test_a_node_that_was_looked_up_again_while_its_forgetting_waited_is_kept(
    filesystem: FileSystem, volume: OvertakenVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.features = replace(volume.features, blocking=True)
    route = filesystem.tree.routes[0]
    forgotten: list[int] = []
    monkeypatch.setattr(volume, "forget", forgotten.extend)
    inode = run(filesystem.lookup(ROOT_INODE, b"file")).inode
    plain = route.executor.give_back

    async def late(function: Callable[..., object], *args: object) -> None:
        monkeypatch.setattr(route.executor, "give_back", plain)
        await filesystem.lookup(ROOT_INODE, b"file")
        await plain(function, *args)

    monkeypatch.setattr(route.executor, "give_back", late)
    run(filesystem.forget([(inode, 1)]))
    assert forgotten == []
    run(filesystem.forget([(inode, 1)]))
    assert forgotten == [node_of(inode)]


@for_each(
    ("flags", "mode", "passes"),
    [
        (os.O_WRONLY | os.O_CREAT, 0o644, True),
        (os.O_WRONLY | os.O_TRUNC, 0o644, True),
        (os.O_WRONLY | os.O_APPEND, 0o644, True),
        (os.O_WRONLY, 0o644, False),  # another process may have the same page mapped
        (os.O_RDWR | os.O_TRUNC, 0o644, False),  # it may be mapped by this handle
        (os.O_WRONLY | os.O_CREAT, 0o4755, False),  # Linux before 5.12 clears these bits with a cached write only
    ],
)
def test_writes_pass_the_page_cache_where_no_mapped_page_can_undo_them(flags: int, mode: int, passes: bool) -> None:
    assert DirectIO(InodeTable(), True, True, True).opened(2, flags, mode)[0] is passes


# -- the kernel is told again --------------------------------------------------------------------------------------


class LateKernel:
    """Knows an inode after it has been told of it so many times in vain."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.told: list[int] = []

    def invalidate_inode(self, inode: int, attr_only: bool = False) -> None:
        self.told.append(inode)
        if len(self.told) <= self.times:
            raise OSError(errno.ENOENT, "no such inode")


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateKernel:
    """It never knows, unless `times` is set."""
    kernel = LateKernel(10**9)
    monkeypatch.setattr(pyfuse3, "invalidate_inode", lambda *args, **words: kernel.invalidate_inode(*args, **words))
    return kernel


@pytest.fixture
def inodes() -> InodeTable:
    inodes = InodeTable()
    inodes.reference(7, ROOT_INODE, b"file", Attr(7, 0o100644))
    return inodes


@pytest.fixture
def notifier(inodes: InodeTable) -> Iterator[Notifier]:
    notifier = Notifier(inodes, switches.DEFAULT.notify_again)
    yield notifier
    notifier.close()


def tell(notifier: Notifier, inode: int, attributes_only: bool) -> None:
    """In a thread, as the loop's own does not wait for the kernel."""
    together(lambda: notifier.invalidate_inode(inode, attributes_only=attributes_only))


@pytest.mark.parametrize("attributes_only", [False, True])
@pytest.mark.fails_without("notify_again")
def test_of_an_inode_that_it_is_about_to_hear_of_the_kernel_is_told_again(
    notifier: Notifier, late: LateKernel, attributes_only: bool
) -> None:
    late.times = 3
    tell(notifier, 7, attributes_only)
    assert late.told == [7] * 4


def test_the_loop_has_it_told_again_by_another_thread(notifier: Notifier, late: LateKernel) -> None:
    late.times = 3
    notifier.invalidate_inode(7, attributes_only=True)
    eventually(lambda: late.told == [7] * 4, 20)
    late.told.clear()
    late.times = 0
    notifier.invalidate_inode(7, attributes_only=True)
    assert late.told == [7], "at once, where it is known"


def test_of_an_inode_that_it_has_given_back_it_is_told_no_more(
    notifier: Notifier, inodes: InodeTable, late: LateKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_told = late.invalidate_inode

    def invalidate_inode(inode: int, attr_only: bool = False) -> None:
        if len(late.told) == 2:
            inodes.forget([(7, 1)])
        be_told(inode, attr_only)

    monkeypatch.setattr(late, "invalidate_inode", invalidate_inode)
    tell(notifier, 7, False)
    assert late.told == [7] * 3


def test_a_kernel_that_never_hears_of_it_keeps_nobody_for_ever(
    notifier: Notifier, inodes: InodeTable, late: LateKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifiers, "PATIENCE_S", 0.01)
    tell(notifier, 7, False)
    assert set(late.told) == {7}
    told = len(late.told)
    tell(notifier, 7, False)
    assert len(late.told) == told + 1, "nobody waits for it a second time"
    inodes.reference(7, ROOT_INODE, b"file", Attr(7, 0o100644))
    late.times = told + 3
    monkeypatch.setattr(notifiers, "PATIENCE_S", 60.0)
    tell(notifier, 7, False)
    assert len(late.told) == told + 4
