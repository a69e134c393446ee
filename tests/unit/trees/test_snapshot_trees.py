"""The tree of a snapshot: routes as in the main tree, numbers, and what kernel caches are told."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterable
from typing import Any

import pytest
from fakekernel import FakeKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from onloop import listed, run, walk
from profiles import examples

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.composite.backend import CompositeBackend
from fusebackend.protocol import ROOT_NODE, Attr, AttrChanges, Caller, Volume
from fusebackend.server.trees import TreesFace, attach_snapshots
from fusebackend.testing.posix.case import refused
from fusebackend.testing.snapshots import copy_of
from fusebackend.trees import snapshot_trees as module
from fusebackend.trees.snapshot_trees import SnapshotTrees
from fusebackend.trees.snapshots import Snapshots
from fusebackend.vfs.inodes import ROOT_INODE
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.vfs.options import TreesOptions
from fusebackend.volumes.agent_face import VolumeBackend

ME = Caller(0, 0)


def made(*prefixes: str) -> tuple[dict[AgentPath, InMemoryVolume], Snapshots, SnapshotTrees]:
    volumes = {AgentPath(prefix): InMemoryVolume() for prefix in ("/", *prefixes)}
    snapshots = Snapshots(volumes)
    return volumes, snapshots, SnapshotTrees(snapshots, volumes)


def write(volume: Volume, path: str, content: str = "") -> None:
    assert VolumeBackend(volume).upload_files([(path, content.encode())])[0].error is None  # type: ignore[arg-type]


def at(trees: Volume, path: str) -> Attr:
    attr = trees.getattr(ROOT_NODE)
    for name in path.split("/"):
        attr = trees.lookup(attr.node, name.encode())
    return attr


def text(trees: Volume, path: str) -> str:
    attr = at(trees, path)
    trees.open(attr.node, os.O_RDONLY)
    content = trees.read(attr.node, 0, attr.size + 1)
    trees.release(attr.node, os.O_RDONLY)
    return content.decode()


def listing(trees: Volume, node: int, limit: int = 100) -> list[bytes]:
    found: list[bytes] = []
    while page := trees.readdir(node, found[-1] if found else b"", limit):
        assert len(page) <= limit
        assert all(attr.node == trees.lookup(node, name).node for name, attr in page)
        found += [name for name, _ in page]
    return found


def test_reading_moves_no_access_time() -> None:
    volumes, snapshots, trees = made()
    write(volumes[ROOT], "/file", "x")
    snapshots.create("one")
    assert not trees.access_due(at(trees, "one/file"))


# -- routes ----------------------------------------------------------------------------------------------------------


def test_ways_that_no_route_has_are_synthesised() -> None:
    volumes, snapshots, trees = made("/a/b/c")
    snapshots.create("bare")
    write(volumes[ROOT], "/a", "a file")
    snapshots.create("file")
    VolumeBackend(volumes[ROOT]).delete("/a")
    write(volumes[ROOT], "/a/x", "")
    snapshots.create("partly")
    for name in ("bare", "file"):
        assert listing(trees, at(trees, f"{name}/a").node) == [b"b"]
        synthesised = at(trees, f"{name}/a")
        assert stat.filemode(synthesised.mode) == "dr-xr-xr-x"
        assert synthesised.mtime_ns == next(each.time_ns for each in snapshots.all() if each.name == name)
    assert listing(trees, at(trees, "partly/a").node) == [b"b", b"x"]
    assert stat.filemode(at(trees, "partly/a").mode) == "drwxr-xr-x"
    assert listing(trees, at(trees, "partly/a/b").node) == [b"c"]
    for path in ("bare/a", "bare/a/b"):
        node = at(trees, path).node
        assert trees.getattr(node).node == node and list(trees.listxattr(node)) == []
        refused(errno.ENODATA, trees.getxattr, node, b"user.x")


def test_a_page_that_is_not_full_ends_the_listing() -> None:
    """The kernel kept a listing without the ways whose names come after all of the route's."""
    volumes, snapshots, trees = made("/m", "/x/y")
    for name in ("a", "m", "s"):
        write(volumes[ROOT], f"/{name}/file")
    snapshots.create("one")
    node = at(trees, "one").node
    assert [name for name, _ in trees.readdir(node, b"", 100)] == [b"a", b"m", b"s", b"x"]
    assert [name for name, _ in trees.readdir(node, b"", 3)] == [b"a", b"m", b"s"]
    assert [name for name, _ in trees.readdir(node, b"a", 2)] == [b"m", b"s"]


def test_a_route_without_the_snapshot_is_an_empty_directory(tmp_path: Any) -> None:
    (tmp_path / "live").write_text("live")
    default, late = InMemoryVolume(), InMemoryVolume()
    late.take_snapshot("theirs")
    volumes: dict[AgentPath, Volume] = {
        ROOT: default,
        AgentPath("/dir"): DirectoryVolume(tmp_path),
        AgentPath("/late"): late,
    }
    write(default, "/dir/covered", "x")
    default.take_snapshot("mine")
    snapshots = Snapshots(volumes)
    trees = SnapshotTrees(snapshots, volumes)
    snapshots.create("both")
    assert listing(trees, ROOT_NODE) == [b"both", b"mine", b"theirs"]
    for path in ("mine/dir", "mine/late", "both/dir", "theirs"):
        assert stat.filemode(at(trees, path).mode) == "dr-xr-xr-x"
    assert listing(trees, at(trees, "mine").node) == listing(trees, at(trees, "theirs").node) == [b"dir", b"late"]
    for path in ("mine/dir", "mine/late", "both/dir", "theirs/dir"):
        assert listing(trees, at(trees, path).node) == []
        refused(errno.ENOENT, at, trees, f"{path}/live")
    assert stat.filemode(at(trees, "theirs/late").mode) == "drwxr-xr-x"


segments = st.sampled_from("abc")
paths = st.lists(segments, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))


@settings(max_examples=examples(100))
@given(st.sets(paths, max_size=5), st.data())
def test_any_routes_are_as_in_the_main_tree(prefixes: set[str], data: st.DataObject) -> None:
    """Compared with the mounted tree that a kernel walks, for random routes and files in each."""
    volumes, snapshots, trees = made(*sorted(prefixes))
    for volume in volumes.values():
        for path in data.draw(st.lists(paths, max_size=5)):
            VolumeBackend(volume).upload_files([(path, path.encode())])
    main = FileSystem(dict(volumes))
    snapshots.create("one")

    def same(inode: int, node: int) -> None:
        names = list(listed(main, inode))
        limit = data.draw(st.integers(1, 5))
        assert listing(trees, node, limit) == sorted(names)
        for name in names:
            entry, attr = run(main.lookup(inode, name)), trees.lookup(node, name)
            assert (entry.attr.is_dir, entry.attr.size * (not attr.is_dir)) == (
                attr.is_dir,
                attr.size * (not attr.is_dir),
            )
            if attr.is_dir:
                same(entry.inode, attr.node)

    same(ROOT_INODE, trees.lookup(ROOT_NODE, b"one").node)


# -- numbers ---------------------------------------------------------------------------------------------------------


def numbers(trees: SnapshotTrees) -> dict[bytes, int]:
    return {path: each.attributes["node"] for path, each in copy_of(trees).items()}


def test_numbers_are_the_same_after_a_remount() -> None:
    volumes, snapshots, trees = made("/a/b")
    for path in ("/f", "/d/f", "/d/e/f"):
        write(volumes[ROOT], path)
    for name in ("one", "two", "three"):
        snapshots.create(name)
    before = numbers(trees)
    assert len(set(before.values())) == len(before)
    assert numbers(SnapshotTrees(Snapshots(volumes), volumes)) == before
    snapshots.delete(["two"])
    again = SnapshotTrees(Snapshots(volumes), volumes)
    at(again, "three/d")  # in another order
    assert numbers(again) == {path: node for path, node in before.items() if not path.startswith(b"/two")}


def test_far_nodes_have_numbers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [1 << 30, (1 << 30) + 1, 1 << 40, (1 << 40) + 1, (1 << 44) + (1 << 24) - 1, (1 << 44) + (1 << 24)]
    far = itertools.chain(places, itertools.count(1 << 45))
    monkeypatch.setattr(InMemoryVolume, "_new_inode", _far(InMemoryVolume._new_inode, far))
    volumes, snapshots, trees = made()
    for number in range(3):
        write(volumes[ROOT], f"/d{number}/file", f"content {number}")
    snapshots.create("one")
    snapshots.create("two")
    found = numbers(trees)
    assert numbers(trees) == found
    assert len(set(found.values())) == len(found)
    assert [text(trees, f"two/d{number}/file") for number in range(3)] == [f"content {number}" for number in range(3)]


@pytest.mark.parametrize("far", [False, True])
def test_no_number_is_used_again(far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a snapshot, a route or a node has no first block, and others are taken."""
    if far:
        monkeypatch.setattr(InMemoryVolume, "_new_inode", _far(InMemoryVolume._new_inode))
        monkeypatch.setattr(module, "ROUTES", 2)
    volumes, snapshots, trees = made("/a/b", "/c")
    for volume in volumes.values():
        write(volume, "/d/file", "content")
        volume.link(volume.lookup(volume.lookup(ROOT_NODE, b"d").node, b"file").node, ROOT_NODE, b"link")
    snapshots.create("one")
    snapshots.create("two")
    found = numbers(trees)
    assert numbers(trees) == found
    assert len(set(found.values())) == len(found) - 6, "the names of a file have one number"
    assert text(trees, "two/c/link") == text(trees, "one/a/b/d/file") == "content"
    gone = at(trees, "one/c/link").node
    snapshots.delete(["one"])
    refused(errno.ESTALE, trees.getattr, gone)
    snapshots.delete(["two"])
    snapshots.create("one")
    assert not set(numbers(trees).values()) & set(found.values()) - {ROOT_NODE}, "no number is used again"


def _far(new: Any, far: Iterable[int] = range(1 << 40, 1 << 41)) -> Any:
    """Have a memory volume choose nodes beyond 2⁴⁰, or these, but for its root."""

    def new_inode(self: InMemoryVolume, mode: int, parent: int) -> Any:
        made = new(self, mode, parent)
        if made.node == ROOT_NODE:
            self._numbers = iter(far)
        return made

    return new_inode


def test_without_a_block_that_is_left_nothing_more_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKS", 3)
    _, snapshots, trees = made("/c", "/d")
    snapshots.create("one")
    assert listing(trees, ROOT_NODE) == [b"one"] and at(trees, "one/c")
    refused(errno.ENFILE, at, trees, "one/d")


# -- deleting, and kernel caches -------------------------------------------------------------------------------------


def test_below_a_deleted_snapshot_all_is_estale() -> None:
    volumes, snapshots, trees = made("/a/b")
    write(volumes[ROOT], "/d/file", "x")
    snapshots.create("one")
    kept = [at(trees, path).node for path in ("one", "one/d", "one/d/file", "one/a", "one/a/b")]
    trees.hold(kept[2])
    trees.open(kept[2], os.O_RDONLY)
    snapshots.delete(["one"])
    for node in kept:
        refused(errno.ESTALE, trees.getattr, node)
        refused(errno.ESTALE, trees.lookup, node, b"x")
        refused(errno.ESTALE, trees.readdir, node, b"", 1)
    refused(errno.ESTALE, trees.read, kept[2], 0, 1)
    trees.release(kept[2], os.O_RDONLY)
    trees.forget(kept)
    snapshots.create("one")
    assert not {at(trees, path).node for path in ("one", "one/d", "one/d/file")} & set(kept)
    refused(errno.ESTALE, trees.getattr, kept[0])


def test_a_snapshot_taken_and_deleted_by_the_volume_itself_is_noticed() -> None:
    volumes, snapshots, trees = made()
    snapshots.create("one")
    old = at(trees, "one").node
    volumes[ROOT].delete_snapshot("one")
    write(volumes[ROOT], "/new", "x")
    volumes[ROOT].take_snapshot("one")
    assert at(trees, "one").node != old and text(trees, "one/new") == "x"
    for name in ("a/b", "x" * 256, "..", "nul\0"):
        volumes[ROOT].take_snapshot(name)
    assert listing(trees, ROOT_NODE) == [b"one"], "others can't be names of directories"


def test_one_that_is_deleted_while_it_is_listed_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    volumes, snapshots, trees = made()
    for name in ("one", "two"):
        snapshots.create(name)
    assert listing(trees, ROOT_NODE) == [b"one", b"two"]
    everything, one = snapshots.all(), snapshots.find("one")
    volumes[ROOT].delete_snapshot("one")
    monkeypatch.setattr(snapshots, "all", lambda: everything)
    monkeypatch.setattr(snapshots, "find", lambda name: one)
    assert [name for name, _ in trees.readdir(ROOT_NODE, b"", 10)] == [b"two"]
    refused(errno.ENOENT, trees.lookup, ROOT_NODE, b"one")


# -- in a mounted tree -----------------------------------------------------------------------------------------------


def test_it_is_in_the_trees_directory_and_costs_the_others_nothing() -> None:
    filesystem = FileSystem({ROOT: InMemoryVolume(), AgentPath("/notes"): InMemoryVolume()})
    snapshots = attach_snapshots(filesystem)
    assert snapshots is not None
    filesystem.add_tree("sandbox")
    kernel = FakeKernel()
    filesystem.attach(kernel)
    at_root = (".fusebackend", "snapshots")
    assert walk(filesystem, *at_root, "one").inode == 0, "absence is cached"
    run(filesystem.mknod(ROOT_INODE, b"file", 0o100644, 0, ME))
    kernel.take()
    snapshots.create("one")
    top = walk(filesystem, *at_root)
    assert top.timeout_s > 600
    assert kernel.take() == [(top.inode, b"one")]
    file = walk(filesystem, *at_root, "one", "file")
    assert file.timeout_s > 600 and file.attr is not None and file.inode != walk(filesystem, "file").inode
    assert list(listed(filesystem, top.inode)) == [b"one"]
    assert list(listed(filesystem, walk(filesystem, *at_root, "one").inode)) == [b"file", b"notes"]
    assert not filesystem.inodes.beside, "its inodes make no rename in the main tree slower"
    for change in (
        filesystem.mkdir(top.inode, b"x", 0o755, ME),
        filesystem.unlink(walk(filesystem, *at_root, "one").inode, b"file"),
        filesystem.setattr(file.inode, AttrChanges(mode=0)),
        filesystem.open(file.inode, os.O_RDWR),
        filesystem.rmdir(top.inode, b"one"),
    ):
        refused(errno.EROFS, run, change)
    refused(errno.EBUSY, run, filesystem.rmdir(walk(filesystem, ".fusebackend").inode, b"snapshots"))
    refused(errno.EXDEV, run, filesystem.link(file.inode, ROOT_INODE, b"linked"))
    refused(errno.EROFS, run, filesystem.rename(top.inode, b"one", ROOT_INODE, b"moved", 0))
    assert run(filesystem.listxattr(file.inode)) == []
    kernel.take()
    snapshots.delete(["one"])
    assert kernel.take() == [(top.inode, b"one")]
    refused(errno.ESTALE, run, filesystem.getattr(file.inode))
    known = dict(filesystem.inodes.items())
    run(filesystem.forget([(file.inode, known[file.inode])]))
    filesystem.detach()
    filesystem.close()


@pytest.mark.parametrize("shown", ["off", "hidden"])
def test_without_the_directory_or_routes_there_is_nothing(shown: Any, tmp_path: Any) -> None:
    volume: Volume = InMemoryVolume() if shown == "off" else DirectoryVolume(tmp_path)
    filesystem = FileSystem({ROOT: volume}, trees=TreesOptions(shown))
    attached = len(filesystem.tree.attached)
    assert attach_snapshots(filesystem) is None
    assert len(filesystem.tree.attached) == attached and not filesystem.tree.beside


def test_verbs_reach_it() -> None:
    volume = InMemoryVolume()
    backend = CompositeBackend(VolumeBackend(volume))
    filesystem = FileSystem({ROOT: volume})
    snapshots = attach_snapshots(filesystem)
    assert snapshots is not None
    backend.write("/file", "before\n")
    snapshots.create("one")
    backend.edit("/file", "before", "after")
    face = TreesFace(backend, filesystem)
    there = "/.fusebackend/snapshots"
    both = face.of(there)
    assert [entry["path"] for entry in both.ls(there).entries or ()] == [f"{there}/one/"]
    assert "before" in str(both.read(f"{there}/one/file"))
    assert [match["path"] for match in both.grep("before", there).matches or ()] == [f"{there}/one/file"]
    assert both.write(f"{there}/one/new", "x").error
    assert both.delete(f"{there}/one").error
    assert both.move(f"{there}/one/file", "/restored").error
    assert both.download_files([f"{there}/one/file"])[0].content == b"before\n"
    assert face.of("/file").grep("before").matches == []
