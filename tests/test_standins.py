"""Stand-ins without a kernel: found by lookup, never listed, and what the kernel is told while they are there."""

from __future__ import annotations

import errno
import threading

import pytest
from fakekernel import FakeKernel
from onloop import run

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.volume import VolumeBackend
from fusebackend.paths import ROOT, AgentPath
from fusebackend.protocol import Attr, Caller, Features
from fusebackend.vfs.filesystem import FileSystem
from fusebackend.vfs.inodes import ROOT_INODE, SYNTHETIC_INDEX, Entry, route_index

ME = Caller(0, 0)


@pytest.fixture
def volume() -> InMemoryVolume:
    return InMemoryVolume()


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def tree(volume: InMemoryVolume, kernel: FakeKernel) -> FileSystem:
    tree = FileSystem({ROOT: volume, AgentPath("/tmp/shared"): InMemoryVolume()})
    tree.attach(kernel)
    return tree


def listed(tree: FileSystem) -> dict[bytes, int]:
    """Names of the root, with their inodes."""
    number = run(tree.opendir(ROOT_INODE))
    seen: dict[bytes, int] = {}

    def emit(name: bytes, entry: Entry, after: int) -> bool:
        seen[name] = entry.inode
        return True

    run(tree.readdir(number, 0, emit))
    run(tree.releasedir(number))
    return {name: inode for name, inode in seen.items() if name not in (b".", b"..")}


def look(tree: FileSystem, name: bytes) -> Entry:
    return run(tree.lookup(ROOT_INODE, name))


def test_shown_by_name_and_never_listed(tree: FileSystem) -> None:
    assert look(tree, b"usr").inode == 0
    with tree.stand_ins.shown([b"usr", b"proc"]):
        entry = look(tree, b"usr")
        assert route_index(entry.inode) == SYNTHETIC_INDEX
        assert entry.attr is not None
        assert entry.attr.is_dir
        assert look(tree, b"proc").inode not in (0, entry.inode)
        assert look(tree, b"bin").inode == 0
        assert run(tree.lookup(entry.inode, b"usr")).inode == 0, "in the root alone"
        assert set(listed(tree)) == {b"tmp"}
    assert look(tree, b"usr").inode == 0
    assert set(listed(tree)) == {b"tmp"}


def test_the_kernel_believes_one_for_long_but_hears_of_its_beginning_and_its_end(
    tree: FileSystem, kernel: FakeKernel
) -> None:
    with tree.stand_ins.shown([b"usr"]):
        assert kernel.take() == [(ROOT_INODE, b"usr")]
        assert look(tree, b"usr").timeout_s > 60
    assert kernel.take() == [(ROOT_INODE, b"usr")]


def test_the_last_one_out_hides_them(tree: FileSystem, kernel: FakeKernel) -> None:
    with tree.stand_ins.shown([b"usr"]):
        kernel.take()
        with tree.stand_ins.shown([b"usr", b"etc"]):
            assert kernel.take() == [(ROOT_INODE, b"etc")], "somebody has mounted on /usr"
        assert kernel.take() == [(ROOT_INODE, b"etc")]
        assert look(tree, b"usr").inode != 0
        assert look(tree, b"etc").inode == 0
    assert look(tree, b"usr").inode == 0


def test_an_error_hides_them(tree: FileSystem) -> None:
    with pytest.raises(RuntimeError, match="boom"), tree.stand_ins.shown([b"usr"]):
        raise RuntimeError("boom")
    assert look(tree, b"usr").inode == 0


def test_a_name_keeps_its_number(tree: FileSystem) -> None:
    with tree.stand_ins.shown([b"usr"]):
        first = look(tree, b"usr").inode
    with tree.stand_ins.shown([b"etc", b"usr"]):
        assert look(tree, b"usr").inode == first
        assert look(tree, b"etc").inode != first


def test_a_directory_of_the_volume_is_left_alone(tree: FileSystem, volume: InMemoryVolume, kernel: FakeKernel) -> None:
    VolumeBackend(volume).write("/usr/x", "text")
    kernel.take()
    before = look(tree, b"usr").inode
    with tree.stand_ins.shown([b"usr"]):
        assert look(tree, b"usr").inode == listed(tree)[b"usr"] == before
    assert kernel.take() == []


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_something_else_of_that_name_is_an_error(tree: FileSystem, kind: str) -> None:
    if kind == "file":
        run(tree.mknod(ROOT_INODE, b"usr", 0o100644, 0, ME))
    else:
        run(tree.symlink(ROOT_INODE, b"usr", b"tmp", ME))
    with pytest.raises(NotADirectoryError) as failure, tree.stand_ins.shown([b"etc", b"usr"]):
        pytest.fail("there is no directory to show")
    assert failure.value.filename == b"usr"
    assert look(tree, b"etc").inode == 0, "none of them is shown"


def test_made_real_meanwhile_the_next_one_needs_it_too(
    tree: FileSystem, volume: InMemoryVolume, kernel: FakeKernel
) -> None:
    first = tree.stand_ins.shown([b"usr"])
    first.__enter__()
    stand_in = look(tree, b"usr").inode
    VolumeBackend(volume).write("/usr/x", "text")
    with tree.stand_ins.shown([b"usr"]):
        kernel.take()
        first.__exit__(None, None, None)
        assert look(tree, b"usr").inode == stand_in
        assert kernel.take() == [], "the second has mounted there"
    assert look(tree, b"usr").inode != stand_in
    assert kernel.take() == [(ROOT_INODE, b"usr")]


def test_a_default_that_hangs() -> None:
    class Hanging(InMemoryVolume):
        features = Features(blocking=True)

        def lookup(self, parent: int, name: bytes) -> Attr:
            threading.Event().wait(5)
            return super().lookup(parent, name)

    tree = FileSystem({ROOT: Hanging()}, deadline_s=0.05)
    with pytest.raises(TimeoutError), tree.stand_ins.shown([b"usr"]):
        pytest.fail("nobody knows what is there")
    assert dict(tree.tree.stand_ins) == {}


def test_the_way_to_a_route_needs_no_stand_in(tree: FileSystem, kernel: FakeKernel) -> None:
    before = look(tree, b"tmp").inode
    with tree.stand_ins.shown([b"tmp"]):
        assert look(tree, b"tmp").inode == before
        assert kernel.take() == []
        assert set(listed(tree)) == {b"tmp"}


@pytest.mark.parametrize("change", ["mkdir", "mknod", "symlink", "unlink", "rmdir", "rename", "rename over", "link"])
def test_the_name_is_busy(tree: FileSystem, change: str) -> None:
    file = run(tree.mknod(ROOT_INODE, b"file", 0o100644, 0, ME))
    with tree.stand_ins.shown([b"usr"]):
        call = {
            "mkdir": lambda: tree.mkdir(ROOT_INODE, b"usr", 0o755, ME),
            "mknod": lambda: tree.mknod(ROOT_INODE, b"usr", 0o100644, 0, ME),
            "symlink": lambda: tree.symlink(ROOT_INODE, b"usr", b"x", ME),
            "unlink": lambda: tree.unlink(ROOT_INODE, b"usr"),
            "rmdir": lambda: tree.rmdir(ROOT_INODE, b"usr"),
            "rename": lambda: tree.rename(ROOT_INODE, b"usr", ROOT_INODE, b"other", 0),
            "rename over": lambda: tree.rename(ROOT_INODE, b"file", ROOT_INODE, b"usr", 0),
            "link": lambda: tree.link(file.inode, ROOT_INODE, b"usr"),
        }[change]
        with pytest.raises(OSError, match="usr") as failure:
            run(call())
        assert failure.value.errno == errno.EBUSY
    assert set(listed(tree)) == {b"file", b"tmp"}
    assert run(tree.mkdir(ROOT_INODE, b"usr", 0o755, ME)).inode != 0


def test_made_real_by_the_other_face_it_keeps_its_number_until_the_end(
    tree: FileSystem, volume: InMemoryVolume, kernel: FakeKernel
) -> None:
    with tree.stand_ins.shown([b"usr"]):
        stand_in = look(tree, b"usr").inode
        kernel.take()
        assert VolumeBackend(volume).write("/usr/x", "text").error is None
        assert (ROOT_INODE, b"usr") not in kernel.take(), "the kernel would drop what is mounted there"
        assert look(tree, b"usr").inode == stand_in
        assert listed(tree)[b"usr"] == stand_in, "a listing counts as a lookup"
        assert run(tree.lookup(stand_in, b"x")).inode != 0, "what is in it is seen"
    assert (ROOT_INODE, b"usr") in kernel.take()
    real = look(tree, b"usr").inode
    assert real not in (0, stand_in)
    assert listed(tree)[b"usr"] == real


def test_made_a_file_by_the_other_face_it_shows_as_one_at_the_end(tree: FileSystem, volume: InMemoryVolume) -> None:
    with tree.stand_ins.shown([b"usr"]):
        assert VolumeBackend(volume).write("/usr", "text").error is None
        entry = look(tree, b"usr")
        assert entry.attr is not None
        assert entry.attr.is_dir
        assert run(tree.lookup(entry.inode, b"x")).inode == 0
    entry = look(tree, b"usr")
    assert entry.attr is not None
    assert not entry.attr.is_dir


def test_creating_something_in_one_makes_it_real(tree: FileSystem) -> None:
    with tree.stand_ins.shown([b"usr"]):
        stand_in = look(tree, b"usr").inode
        made = run(tree.mkdir(stand_in, b"x", 0o755, ME))
    assert run(tree.lookup(look(tree, b"usr").inode, b"x")).inode == made.inode


def test_one_that_is_still_open_when_it_goes(tree: FileSystem) -> None:
    with tree.stand_ins.shown([b"usr"]):
        stand_in = look(tree, b"usr").inode
        number = run(tree.opendir(stand_in))
    seen: list[bytes] = []
    run(tree.readdir(number, 0, lambda name, entry, after: not seen.append(name)))
    assert seen == [b".", b".."]
    assert run(tree.getattr(stand_in)).attr is not None
    run(tree.releasedir(number))
    run(tree.forget([(stand_in, 1)]))
    assert tree.inodes.get(stand_in) is None


def test_a_full_buffer_takes_no_reference(tree: FileSystem, volume: InMemoryVolume) -> None:
    with tree.stand_ins.shown([b"usr"]):
        VolumeBackend(volume).write("/usr/x", "text")
        number = run(tree.opendir(ROOT_INODE))
        room = [b".", b"..", b"tmp"]
        run(tree.readdir(number, 0, lambda name, entry, after: name in room))
        assert tree.inodes.get(look(tree, b"usr").inode).lookups == 1
        seen: list[bytes] = []
        run(tree.readdir(number, 3, lambda name, entry, after: not seen.append(name)))
        assert seen == [b"usr"]


def test_many_threads(tree: FileSystem) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def use(names: list[bytes]) -> None:
        try:
            for _ in range(200):
                with tree.stand_ins.shown(names):
                    assert all(tree.tree.stands_in(ROOT_INODE, name) for name in names)
        except BaseException as error:
            failures.append(error)

    def go_through() -> None:
        while not stop.is_set():
            list(tree.tree.synthetic())

    watcher = threading.Thread(target=go_through)
    watcher.start()
    users = [threading.Thread(target=use, args=([b"usr", b"n%d" % number],)) for number in range(4)]
    for thread in users:
        thread.start()
    for thread in users:
        thread.join()
    stop.set()
    watcher.join()
    assert failures == []
    assert dict(tree.tree.stand_ins) == {}
