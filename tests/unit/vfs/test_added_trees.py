"""Several trees of one `FileSystem`, without a kernel: numbers, names of the server's, and what is told of changes."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
from fakekernel import FakeKernel
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from onloop import listed, run, walk
from profiles import examples
from together import together

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.config import MountSettings
from fusebackend.protocol import RENAME_EXCHANGE, Attr, AttrChanges, Caller, Features
from fusebackend.rules.view import View
from fusebackend.testing.posix.case import refused
from fusebackend.vfs.coherence import entry_cache
from fusebackend.vfs.coherence import invalidation as twins
from fusebackend.vfs.inodes import ROOT_INODE, SYNTHETIC_INDEX, Entry, node_of, route_index
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.vfs.options import TreesOptions
from fusebackend.volumes.agent_face import VolumeBackend

ME = Caller(0, 0)
PINNED = [b"usr", b"etc", b"tmp"]
PRIVATE = (".fusebackend", "private")
YEAR_S = 365 * 86_400.0


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def filesystem(kernel: FakeKernel) -> Iterator[FileSystem]:
    volumes = {path: InMemoryVolume() for path in (ROOT, AgentPath("/memories"), AgentPath("/tmp/x"))}
    made = FileSystem(volumes)
    assert made.add_tree("sandbox", PINNED) == "/.fusebackend/private/sandbox"
    made.attach(kernel)
    yield made
    made.detach()
    made.close()


@pytest.fixture
def root(filesystem: FileSystem) -> int:
    return walk(filesystem, *PRIVATE, "sandbox").inode


def told(kernel: FakeKernel) -> list[tuple[object, ...]]:
    told, kernel.told, kernel.names = kernel.told, [], []
    return told


# -- numbers ---------------------------------------------------------------------------------------------------------


def test_directories_have_a_number_in_each_tree_and_files_one(filesystem: FileSystem, root: int) -> None:
    directory = run(filesystem.mkdir(ROOT_INODE, b"d", 0o755, ME)).inode
    file = run(filesystem.mknod(directory, b"file", 0o100644, 0, ME)).inode
    twin = walk(filesystem, "d", start=root).inode
    assert twin != directory and node_of(twin) == node_of(directory)
    assert walk(filesystem, "file", start=twin).inode == file
    for inode in (twin, directory):
        assert [(name, entry.inode) for name, entry in listed(filesystem, inode).items()] == [(b"file", file)]
    assert walk(filesystem, "memories", start=root).inode != walk(filesystem, "memories").inode
    assert route_index(walk(filesystem, "memories").inode) == 1, "numbers of the main tree are what they are without"


def test_a_tree_has_one_root(filesystem: FileSystem, root: int) -> None:
    assert walk(filesystem, *PRIVATE, "sandbox").inode == root
    with pytest.raises(ValueError, match="a tree 'sandbox' already"):
        filesystem.add_tree("sandbox")


def test_more_trees_while_it_lives(filesystem: FileSystem, kernel: FakeKernel, root: int) -> None:
    names = [f"tree{number}" for number in range(20)]
    together(*(partial(filesystem.add_tree, name) for name in names))
    roots = {walk(filesystem, *PRIVATE, name).inode for name in names}
    assert len(roots | {root, ROOT_INODE}) == 22
    assert set(listed(filesystem, walk(filesystem, *PRIVATE).inode)) == {b"sandbox", *map(str.encode, names)}
    assert all(run(filesystem.lookup(top, b"file")).inode == 0 for top in (*roots, root, ROOT_INODE))
    run(filesystem.mknod(root, b"file", 0o100644, 0, ME))
    assert {notice[1] for notice in told(kernel) if notice[0] == "entry"} == {*roots, ROOT_INODE}
    VolumeBackend(filesystem.tree.routes[0].volume).write("/other", "x")
    assert {notice[1] for notice in told(kernel) if notice[0] == "entry"} == {*roots, root, ROOT_INODE}


def test_counts_go_back_to_zero(filesystem: FileSystem) -> None:
    volume: Any = filesystem.tree.routes[0].volume
    for start in ((), (*PRIVATE, "sandbox")):
        for path in ("d", "usr", "tmp", "memories"):
            walk(filesystem, *start, path)
    directory = run(filesystem.mkdir(ROOT_INODE, b"d", 0o755, ME))
    twin = walk(filesystem, *PRIVATE, "sandbox", "d")
    node = node_of(directory.inode)
    run(filesystem.rmdir(ROOT_INODE, b"d"))
    run(filesystem.forget([(directory.inode, 1)]))
    assert volume.getattr(node).nlink == 0, "it is known in the other tree, and so still there"
    run(filesystem.forget([(twin.inode, 1)]))
    with pytest.raises(OSError):
        volume.getattr(node)
    run(filesystem.forget([(inode, count) for inode, count in filesystem.inodes.items() if inode != ROOT_INODE]))
    assert len(filesystem.inodes) == 1
    assert filesystem.inodes.beside == 0
    assert not filesystem.twins._noted


# -- names of the server's -------------------------------------------------------------------------------------------


def test_pinned(filesystem: FileSystem, kernel: FakeKernel, root: int) -> None:
    run(filesystem.symlink(ROOT_INODE, b"usr", b"/elsewhere", ME))
    entry = walk(filesystem, "usr", start=root)
    assert route_index(entry.inode) == SYNTHETIC_INDEX and entry.timeout_s > YEAR_S
    assert entry.attr is not None and entry.attr.is_dir
    assert listed(filesystem, entry.inode) == {}
    assert set(listed(filesystem, root)) == {b"memories", b"tmp"}, "listed only where a route is below"
    assert set(listed(filesystem, ROOT_INODE)) == {b"memories", b"tmp", b"usr"}
    told(kernel)
    agent = VolumeBackend(filesystem.tree.routes[0].volume)
    agent.delete("/usr")
    agent.write("/usr/x", "x")
    run(filesystem.rename(ROOT_INODE, b"usr", ROOT_INODE, b"etc", 0))
    filesystem.invalidation.expire(filesystem.tree.routes[0])
    assert not [notice for notice in told(kernel) if notice[:2] == ("entry", root) and notice[2] in PINNED]
    assert walk(filesystem, "usr", start=root) == entry
    for inode in (entry.inode, walk(filesystem, *PRIVATE).inode):
        assert run(filesystem.getattr(inode)).timeout_s > YEAR_S
        with pytest.raises(PermissionError):
            run(filesystem.setattr(inode, AttrChanges(mode=0o777)))
        with pytest.raises(PermissionError):
            run(filesystem.mkdir(inode, b"new", 0o755, ME))
        assert run(filesystem.lookup(inode, b"new")).inode == 0


def test_a_route_below_a_pinned_name(filesystem: FileSystem, root: int) -> None:
    VolumeBackend(filesystem.tree.routes[0].volume).write("/tmp/mine", "x")
    tmp = walk(filesystem, "tmp", start=root)
    assert tmp.timeout_s > YEAR_S
    below = walk(filesystem, "x", start=tmp.inode)
    assert node_of(below.inode) == 1 and below.inode != walk(filesystem, "tmp", "x").inode
    assert set(listed(filesystem, tmp.inode)) == {b"x"}
    for name, number in ((b"x", errno.EBUSY), (b"new", errno.EPERM)):
        refused(number, run, filesystem.mkdir(tmp.inode, name, 0o755, ME))


def test_a_route_of_a_pinned_name() -> None:
    volumes = {AgentPath(path): InMemoryVolume() for path in ("/", "/tmp", "/usr", "/usr/local/x")}
    filesystem = FileSystem(volumes)
    filesystem.add_tree("sandbox", [b"usr"])
    root = walk(filesystem, *PRIVATE, "sandbox").inode
    assert route_index(walk(filesystem, "tmp", start=root).inode) != SYNTHETIC_INDEX
    assert route_index(walk(filesystem, "usr", start=root).inode) == SYNTHETIC_INDEX
    assert route_index(walk(filesystem, "usr", "local", start=root).inode) == SYNTHETIC_INDEX
    assert node_of(walk(filesystem, "usr", "local", "x", start=root).inode) == 1


def refusals(filesystem: FileSystem, parent: int, name: bytes) -> set[int]:
    """Try every change of a name, which must be refused; returns the errnos."""
    if not run(filesystem.lookup(ROOT_INODE, b"file")).inode:
        run(filesystem.mknod(ROOT_INODE, b"file", 0o100644, 0, ME))
    file = walk(filesystem, "file")
    calls: list[Any] = [
        filesystem.mkdir(parent, name, 0o755, ME), filesystem.mknod(parent, name, 0o100644, 0, ME),
        filesystem.symlink(parent, name, b"x", ME), filesystem.unlink(parent, name),
        filesystem.rmdir(parent, name), filesystem.create(parent, name, 0o644, 0, ME),
        filesystem.link(file.inode, parent, name), filesystem.rename(parent, name, ROOT_INODE, b"new", 0),
        filesystem.rename(ROOT_INODE, b"file", parent, name, 0),
        filesystem.rename(ROOT_INODE, b"file", parent, name, RENAME_EXCHANGE),
    ]  # fmt: skip
    found = set()
    for call in calls:
        with pytest.raises(OSError) as refused:
            run(call)
        found.add(refused.value.errno or 0)
    return found


def test_the_trees_directory(filesystem: FileSystem, root: int) -> None:
    VolumeBackend(filesystem.tree.routes[0].volume).write("/.fusebackend/mine", "x")
    filesystem.tree.files.add("status.json", lambda: b"{}")
    own, private = walk(filesystem, ".fusebackend"), walk(filesystem, *PRIVATE)
    assert own.attr is not None and own.attr.mode & 0o777 == 0o555
    assert private.attr is not None and private.attr.mode & 0o777 == 0o700
    assert own.timeout_s > YEAR_S and private.timeout_s > YEAR_S
    assert set(listed(filesystem, own.inode)) == {b"status.json"}, "a search must not go through all files again"
    assert set(listed(filesystem, private.inode)) == {b"sandbox"}
    for top in (ROOT_INODE, root):
        assert b".fusebackend" not in listed(filesystem, top)
    assert run(filesystem.lookup(root, b".fusebackend")).inode == 0
    assert run(filesystem.lookup(own.inode, b"mine")).inode == 0
    for parent, name, number in (
        (ROOT_INODE, b".fusebackend", errno.EBUSY),
        (root, b".fusebackend", errno.EPERM),
        (own.inode, b"private", errno.EBUSY),
        (own.inode, b"status.json", errno.EROFS),
        (own.inode, b"new", errno.EROFS),
        (private.inode, b"sandbox", errno.EBUSY),
        (private.inode, b"new", errno.EPERM),
    ):
        assert refusals(filesystem, parent, name) == {number}, name
    refused(errno.EROFS, run, filesystem.setattr(own.inode, AttrChanges(mode=0o777)))


def test_its_files_count_as_no_other_tree(filesystem: FileSystem) -> None:
    filesystem.tree.files.add("status.json", lambda: b"{}")
    walk(filesystem, ".fusebackend", "status.json")
    assert filesystem.inodes.beside == 0, "else each change of a name would ask for other trees"


def test_a_visible_one_is_listed_in_the_main_tree_alone() -> None:
    filesystem = FileSystem(
        {ROOT: InMemoryVolume(), AgentPath("/memories"): InMemoryVolume()}, trees=TreesOptions("visible", "other")
    )
    assert filesystem.add_tree("sandbox", PINNED) == "/other/private/sandbox"
    VolumeBackend(filesystem.tree.routes[0].volume).write("/.fusebackend/mine", "x")
    VolumeBackend(filesystem.tree.routes[0].volume).write("/other/hidden", "x")
    root, own = walk(filesystem, "other", "private", "sandbox").inode, walk(filesystem, "other").inode
    both = {b"memories", b".fusebackend"}
    assert listed(filesystem, ROOT_INODE).keys() == both | {b"other"}
    assert listed(filesystem)[b"other"].inode == own
    assert set(listed(filesystem, root)) == both
    assert refusals(filesystem, root, b"other") == {errno.EPERM}


def test_without_one_its_name_is_the_volumes() -> None:
    filesystem = FileSystem({ROOT: InMemoryVolume()}, trees=TreesOptions("off"))
    place = filesystem.add_tree("sandbox", PINNED)
    top, private, sandbox = place[1:].split("/")
    assert (private, sandbox) == ("private", "sandbox") and len(top) > 32, "by a name that nobody finds"
    root = walk(filesystem, top, private, sandbox).inode
    assert walk(filesystem, ".fusebackend").inode == 0
    run(filesystem.mkdir(ROOT_INODE, b".fusebackend", 0o755, ME))
    for tree in (ROOT_INODE, root):
        assert set(listed(filesystem, tree)) == {b".fusebackend"}


def test_a_directory_is_added_once(filesystem: FileSystem) -> None:
    made = filesystem.tree.add_directory(b"log")
    assert walk(filesystem, ".fusebackend", "log").inode == made.inode
    (entry,) = listed(filesystem, walk(filesystem, ".fusebackend").inode).items()
    assert (entry[0], entry[1].inode) == (b"log", made.inode)
    with pytest.raises(ValueError, match="a directory 'log' already"):
        filesystem.tree.add_directory(b"log")


@pytest.mark.trio
async def test_a_default_that_hangs_keeps_nobody_from_the_pinned_names() -> None:
    hangs = threading.Event()

    class Hanging(InMemoryVolume):
        features = Features(blocking=True)

        def getattr(self, node: int) -> Attr:
            assert hangs.wait(30)
            return super().getattr(node)

    filesystem = FileSystem({ROOT: Hanging(), AgentPath("/memories"): InMemoryVolume()}, deadline_s=20)
    filesystem.add_tree("sandbox", PINNED)

    entry = Entry(ROOT_INODE, None, 0)
    for name in (*map(str.encode, PRIVATE), b"sandbox"):
        entry = await filesystem.lookup(entry.inode, name)
    assert (await filesystem.lookup(entry.inode, b"usr")).inode
    assert node_of((await filesystem.lookup(entry.inode, b"memories")).inode) == 1
    hangs.set()


# -- what is told ----------------------------------------------------------------------------------------------------


def test_nothing_is_told_of_trees_that_nobody_looks_at(filesystem: FileSystem, kernel: FakeKernel) -> None:
    assert filesystem.inodes.beside == 0
    run(filesystem.mkdir(ROOT_INODE, b"d", 0o755, ME))
    run(filesystem.rename(ROOT_INODE, b"d", ROOT_INODE, b"e", 0))
    assert told(kernel) == []


@pytest.mark.fails_without("twins")
def test_a_change_through_one_is_told_of_the_other(filesystem: FileSystem, kernel: FakeKernel, root: int) -> None:
    assert walk(filesystem, "d", start=root).inode == 0
    directory = run(filesystem.mkdir(ROOT_INODE, b"d", 0o755, ME)).inode
    assert told(kernel) == [("entry", root, b"d"), ("inode", root)]
    run(filesystem.mknod(directory, b"file", 0o100644, 0, ME))
    assert told(kernel) == [], "the kernel does not know that directory there"
    twin = walk(filesystem, "d", start=root).inode
    run(filesystem.mknod(directory, b"other", 0o100644, 0, ME))
    assert told(kernel) == [("attributes", twin)], "nor that name"
    walk(filesystem, "file", start=twin)
    run(filesystem.unlink(directory, b"file"))
    assert told(kernel) == [("entry", twin, b"file"), ("inode", twin)]
    run(filesystem.setattr(twin, AttrChanges(mode=0o700)))
    assert told(kernel) == [("attributes", directory)]
    run(filesystem.setxattr(directory, b"user.a", b"1"))
    assert told(kernel) == [("attributes", twin)]
    before = filesystem.overtaken.generation
    run(filesystem.rename(root, b"d", root, b"e", 0))
    notices = [("entry", ROOT_INODE, b"d"), ("inode", ROOT_INODE), ("inode", directory),
               ("entry", ROOT_INODE, b"e"), ("inode", ROOT_INODE)]  # fmt: skip
    assert sorted(told(kernel), key=str) == sorted(notices, key=str)
    assert filesystem.overtaken.generation > before, "answers that are on their way are not believed"
    assert filesystem.names.path(filesystem.tree.routes[0], node_of(directory)) == b"/e"
    assert filesystem.names.path(filesystem.tree.attached[route_index(twin)], node_of(directory)) == b"/e"


def test_an_answer_that_a_change_through_the_other_has_overtaken_is_not_believed(
    filesystem: FileSystem, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where no notice is sent, for the kernel has not been given the name there yet."""
    for name in (b"file", b"other"):
        run(filesystem.mknod(ROOT_INODE, name, 0o100644, 0, ME))
    route = filesystem.tree.attached[route_index(root)]
    plain = route.ask

    async def overtaken(function: Any, *args: Any) -> Any:
        answer = await plain(function, *args)
        monkeypatch.setattr(route, "ask", plain)
        await filesystem.unlink(ROOT_INODE, b"file")
        return answer

    assert walk(filesystem, "other", start=root).timeout_s > 0
    monkeypatch.setattr(route, "ask", overtaken)
    entry = walk(filesystem, "file", start=root)
    assert entry.inode and entry.timeout_s == 0


def test_what_the_agent_changes_is_told_of_both(filesystem: FileSystem, kernel: FakeKernel, root: int) -> None:
    agent = VolumeBackend(filesystem.tree.routes[0].volume)
    agent.write("/d/file", "x")
    directory, twin = walk(filesystem, "d").inode, walk(filesystem, "d", start=root).inode
    file = walk(filesystem, "file", start=twin).inode
    told(kernel)
    agent.move("/d/file", "/d/other")
    assert {notice for notice in told(kernel) if notice[0] == "entry"} == {
        ("entry", number, name) for number in (directory, twin) for name in (b"file", b"other")
    }
    agent.edit("/d/other", "x", "y")
    assert told(kernel).count(("inode", file)) == 1


@pytest.mark.fails_without("absent_names")
def test_what_others_changed_unseen(kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """`invalidate` of a route that is believed for its TTL: files and absent names of both trees are dropped."""

    class Plain(InMemoryVolume):
        features = Features(change_feed=False)

    filesystem = FileSystem({ROOT: Plain()}, ttl_s=3600)
    filesystem.add_tree("sandbox", PINNED)
    filesystem.attach(kernel)
    root = walk(filesystem, *PRIVATE, "sandbox").inode
    directory = run(filesystem.mkdir(ROOT_INODE, b"d", 0o755, ME)).inode
    run(filesystem.mknod(ROOT_INODE, b"usr", 0o100644, 0, ME))
    run(filesystem.mknod(directory, b"file", 0o100644, 0, ME))
    twin = walk(filesystem, "d", start=root).inode
    walk(filesystem, "file", start=twin)
    walk(filesystem, "absent", start=twin)
    told(kernel)
    filesystem.invalidation.expire(filesystem.tree.routes[0])
    dropped = {notice[1:] for notice in told(kernel) if notice[0] == "entry"}
    assert dropped == {(directory, b"file"), (twin, b"file"), (twin, b"absent"), (ROOT_INODE, b"usr")}
    monkeypatch.setattr(entry_cache, "MAX_NAMES", 1)
    first, second = (run(filesystem.lookup(ROOT_INODE, name)).timeout_s for name in (b"one", b"two"))
    assert first > 0 and second == 0, "more names than are remembered are asked for each time"


@pytest.mark.trio
async def test_two_that_would_wait_for_each_other(
    filesystem: FileSystem, kernel: FakeKernel, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told of the other's directory only when the other one has been answered."""
    monkeypatch.setattr(twins, "PATIENCE_S", 60)
    answered = {ROOT_INODE: threading.Event(), root: threading.Event()}
    monkeypatch.setattr(kernel, "invalidate_entry", lambda parent, name: answered[parent].wait(30))

    async def change(parent: int, name: bytes) -> None:
        await filesystem.mknod(parent, name, 0o100644, 0, ME)
        answered[parent].set()

    assert (await filesystem.lookup(root, b"one")).inode == 0
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change, ROOT_INODE, b"one")
            nursery.start_soon(change, root, b"two")
    for parent in (ROOT_INODE, root):
        assert (await filesystem.lookup(parent, b"one")).timeout_s == 0, "asked again each time"
        assert (await filesystem.lookup(parent, b"none")).timeout_s == 0
    assert (await filesystem.lookup((await filesystem.lookup(root, b"memories")).inode, b"x")).timeout_s > 0


@pytest.mark.trio
async def test_one_that_can_not_be_told_in_time(
    filesystem: FileSystem, kernel: FakeKernel, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twins, "PATIENCE_S", 0.01)
    go_on, done = threading.Event(), threading.Event()

    def invalidate_entry(parent: int, name: bytes) -> None:
        assert go_on.wait(30)
        done.set()

    monkeypatch.setattr(kernel, "invalidate_entry", invalidate_entry)

    assert (await filesystem.lookup(root, b"one")).inode == 0
    await filesystem.mknod(ROOT_INODE, b"one", 0o100644, 0, ME)
    go_on.set()
    await trio.to_thread.run_sync(done.wait, 30)
    assert done.is_set()


@pytest.mark.parametrize(
    ("rules", "notices"), [((), 0), (({"operations": ["read", "write"], "paths": ["/hidden"], "mode": "hide"},), 1)]
)
def test_a_link_in_a_view_waits_for_no_notice_in_its_own_directory(
    filesystem: FileSystem,
    kernel: FakeKernel,
    monkeypatch: pytest.MonkeyPatch,
    rules: tuple[dict[str, Any], ...],
    notices: int,
) -> None:
    """The kernel has locked that one until the answer. Where nothing is hidden no number changes, and none is sent."""
    filesystem.add_view(View("v", rules))
    view = walk(filesystem, ".fusebackend", "views", "v").inode
    file = run(filesystem.mknod(view, b"file", 0o100644, 0, ME)).inode
    assert run(filesystem.lookup(ROOT_INODE, b"file")).inode == file
    monkeypatch.setattr(twins, "PATIENCE_S", 60)
    answered, sent = threading.Event(), list[tuple[bytes, bool]]()
    told_of_all = threading.Event()

    def invalidate_entry(parent: int, name: bytes) -> None:
        if parent == view:
            sent.append((name, answered.wait(10)))
            told_of_all.set()

    monkeypatch.setattr(kernel, "invalidate_entry", invalidate_entry)

    async def link() -> Entry:
        made = await filesystem.link(file, view, b"other")
        answered.set()
        await trio.to_thread.run_sync(told_of_all.wait, 10 * notices)
        return made

    assert run(link()).inode == (walk(filesystem, "file", start=view).inode if rules else file)
    assert sent == [(b"file", True)] * notices


# -- a model of the kernel's caches ----------------------------------------------------------------------------------


class Caching(FakeKernel):
    """A kernel that believes what it is told for as long as it is told, and forgets what it has to."""

    def __init__(self) -> None:
        super().__init__()
        self.filesystem: FileSystem
        self.dentries: dict[tuple[int, bytes], int] = {}
        self.modes: dict[int, tuple[int, int]] = {}

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None:
        self.modes.pop(inode, None)

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        self.dentries.pop((parent, name), None)

    async def look(self, parent: int, name: bytes) -> int:
        if (parent, name) not in self.dentries:
            entry = await self.filesystem.lookup(parent, name)
            if entry.timeout_s:
                self.dentries[parent, name] = entry.inode
            return entry.inode
        return self.dentries[parent, name]

    async def stat(self, inode: int) -> tuple[int, int]:
        if inode not in self.modes:
            entry = await self.filesystem.getattr(inode)
            if not entry.timeout_s:
                return entry.attr.mode, entry.attr.mtime_ns
            self.modes[inode] = entry.attr.mode, entry.attr.mtime_ns
        return self.modes[inode]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_both_trees_show_the_same_after_any_changes(seed: int) -> None:
    """What the kernel keeps of either tree is what the volume has, after every step through either."""
    rng, kernel = random.Random(seed), Caching()
    filesystem = kernel.filesystem = FileSystem({ROOT: InMemoryVolume(), AgentPath("/d/route"): InMemoryVolume()})
    filesystem.add_tree("sandbox", [b"pinned"])
    filesystem.attach(kernel)
    names = [b"d", b"e", b"f", b"pinned"]

    async def directories(top: int) -> list[int]:
        found = [top]
        for depth in found:
            for name in (*names, b"route"):
                inode = await kernel.look(depth, name)
                if inode and len(found) < 12 and (await kernel.stat(inode))[0] >> 12 == 0o04:
                    found.append(inode)
        return found

    async def shape(top: int, depth: int = 0) -> object:
        found = []
        for name in names if depth else names[:3]:
            inode = await kernel.look(top, name)
            if inode and depth < 3:
                mode, mtime_ns = await kernel.stat(inode)
                below = await shape(inode, depth + 1) if mode >> 12 == 0o04 else node_of(inode)
                found.append((name, mode, mtime_ns, below))
        return found

    async def step(top: int) -> None:
        parent, other = rng.choice(await directories(top)), rng.choice(await directories(top))
        name, new = rng.choice(names), rng.choice(names)
        there = await kernel.look(parent, name)
        done: list[tuple[int, bytes]] = [(parent, name)]
        # What the kernel itself makes of a success in the tree that it was made in, and of nothing in any other.
        match rng.choice(["mknod", "mkdir", "unlink", "rmdir", "rename", "chmod"]):
            case "mknod" if not there:
                await filesystem.mknod(parent, name, 0o100644, 0, ME)
            case "mkdir" if not there:
                await filesystem.mkdir(parent, name, 0o755, ME)
            case "unlink" if there:
                await filesystem.unlink(parent, name)
            case "rmdir" if there:
                await filesystem.rmdir(parent, name)
            case "rename" if there:
                await filesystem.rename(parent, name, other, new, 0)
                done.append((other, new))
            case "chmod" if there:
                await filesystem.setattr(there, AttrChanges(mode=rng.choice([0o700, 0o711, 0o755])))
                kernel.invalidate_inode(there)
                return
            case _:
                return
        for place in done:
            kernel.invalidate_entry(*place)
            kernel.invalidate_inode(place[0])
        kernel.invalidate_inode(there)

    async def all_steps() -> None:
        root = ROOT_INODE
        for name in (*PRIVATE, "sandbox"):
            root = await kernel.look(root, name.encode())
        for _ in range(25):
            with contextlib.suppress(OSError):
                await step(rng.choice([ROOT_INODE, root]))
            assert await shape(ROOT_INODE) == await shape(root)

    run(all_steps())


# -- the options of the trees directory --------------------------------------------------------------------------------


@for_each("name", [".mount", "a b", "ä" * 127, "\udcff", "a~", "..."])
def test_names(name: str) -> None:
    assert MountSettings(trees_name=name).shown_trees == ("hidden", name)


@for_each(
    ("options", "message"),
    [
        ({"trees": "no"}, "trees = 'no': give one of hidden, visible, off"),
        ({"trees": True}, "trees = True: give one of hidden, visible, off"),
        ({"trees_name": ""}, "trees_name = '' is no name of a directory; give one name, such as '.fusebackend'"),
        ({"trees_name": ".."}, "trees_name = '..' is no name of a directory; give"),
        ({"trees_name": "a/b"}, "trees_name = 'a/b' holds a slash; give"),
        ({"trees_name": "a\0"}, "trees_name = 'a\\x00' holds a NUL; give"),
        ({"trees_name": "~a"}, "trees_name = '~a' begins with '~', which no path of an agent does; give"),
        ({"trees_name": "ä" * 128}, f"trees_name = {'ä' * 128!r} is longer than 255 bytes; give"),
        ({"trees_name": "\ud800"}, "trees_name = '\\ud800' is no text; give"),
        ({"trees_name": 7}, "trees_name = 7 is int and not text; give"),
    ],
)
def test_refusals(options: dict, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        MountSettings(**options)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)
