"""The mounted tree without a kernel: lookup counts, junctions, listings, and what is told of changes."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from typing import Any

import pytest
from fakekernel import FakeKernel
from onloop import listed, run, walk

from fusebackend.backends.memory import InMemoryBackend, InMemoryVolume
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.composite.backend import CompositeBackend
from fusebackend.protocol import Attr, AttrChanges, Caller, Change, Features, Volume
from fusebackend.testing.posix.case import refused
from fusebackend.vfs.calls.executor import FAILURES_TO_OPEN
from fusebackend.vfs.coherence.entry_cache import COHERENT_TIMEOUT_S, CachePolicy
from fusebackend.vfs.inodes import ROOT_INODE, InodeTable, inode_number, node_of, route_index
from fusebackend.vfs.mounted_tree import FileSystem

ME = Caller(os.geteuid(), os.getegid())


@pytest.fixture
def tree() -> FileSystem:
    """Routes at /a/b and /a/b/c/d over a default."""
    paths = ("/", "/a/b", "/a/b/c/d")
    return FileSystem({AgentPath(path): InMemoryVolume() for path in paths})


class TestInodes:
    def test_a_number_is_its_route_and_node(self) -> None:
        number = inode_number(3, 17)
        assert (route_index(number), node_of(number)) == (3, 17)
        assert inode_number(0, 1) == ROOT_INODE

    def test_counts_go_up_and_down_and_the_record_goes_with_them(self) -> None:
        table = InodeTable()
        table.reference(5, ROOT_INODE, b"f", Attr(5, 0o100644))
        table.reference(5, ROOT_INODE, b"f", Attr(5, 0o100644))
        assert table.forget([(5, 1)]) == []
        assert table.forget([(5, 1), (ROOT_INODE, 1)]) == [5]
        assert table.get(5) is None and table.get(ROOT_INODE) is not None
        table.reference(5, ROOT_INODE, b"f", Attr(5, 0o100644))
        with pytest.raises(AssertionError, match="below zero"):
            table.forget([(5, 2)])

    def test_everything_that_gives_an_entry_counts_as_a_lookup(self, tree: FileSystem) -> None:
        entries = [
            run(tree.mkdir(ROOT_INODE, b"d", 0o755, ME)),
            run(tree.mknod(ROOT_INODE, b"n", 0o10644, 0, ME)),
            run(tree.symlink(ROOT_INODE, b"s", b"x", ME)),
            run(tree.create(ROOT_INODE, b"f", 0o644, os.O_RDWR, ME))[0],
        ]
        entries.append(run(tree.link(entries[3].inode, ROOT_INODE, b"l")))
        entries.append(run(tree.lookup(ROOT_INODE, b"d")))
        for entry in entries:
            run(tree.forget([(entry.inode, 1)]))
        assert [inode for inode, _ in tree.inodes.items()] == [ROOT_INODE]

    def test_absence_is_no_lookup(self, tree: FileSystem) -> None:
        entry = run(tree.lookup(ROOT_INODE, b"nothing"))
        assert entry.inode == 0 and entry.timeout_s == COHERENT_TIMEOUT_S
        assert len(tree.inodes) == 1


class Blocking(InMemoryVolume):
    features = replace(InMemoryVolume.features, blocking=True)


@pytest.mark.trio
async def test_what_the_kernel_gives_back_while_a_route_is_down_is_given_back() -> None:
    volume = Blocking()
    tree = FileSystem({ROOT: volume})
    entry, opened = await tree.create(ROOT_INODE, b"f", 0o644, os.O_RDWR, ME)
    await tree.unlink(ROOT_INODE, b"f")
    health = tree.tree.routes[0].executor.health
    for _ in range(FAILURES_TO_OPEN):
        health.failed("lookup", oserror(errno.ETIMEDOUT))
    assert health.down and volume.getattr(node_of(entry.inode)).nlink == 0
    await tree.release(opened.number)
    await tree.forget([(entry.inode, 1)])
    refused(errno.ESTALE, volume.getattr, node_of(entry.inode))


class TestJunctions:
    def test_ways_to_routes_are_there(self, tree: FileSystem) -> None:
        for path, names in (("/a", [b"b"]), ("/a/b", [b"c"]), ("/a/b/c", [b"d"]), ("/a/b/c/d", [])):
            entry = walk(tree, *path.strip("/").split("/"))
            assert entry.attr is not None and entry.attr.is_dir
            assert list(listed(tree, entry.inode)) == names

    def test_what_a_route_covers_is_out_of_sight(self) -> None:
        default = InMemoryVolume()
        covered = default.mkdir(1, b"m", 0o755, ME)
        default.mknod(covered.node, b"hidden", 0o100644, 0, ME)
        filesystem = FileSystem({ROOT: default, AgentPath("/m"): InMemoryVolume()})
        assert list(listed(filesystem)) == [b"m"]
        assert run(filesystem.lookup(walk(filesystem, "m").inode, b"hidden")).inode == 0

    @pytest.mark.parametrize(("above", "name"), [("/a", b"b"), ("", b"a"), ("/a/b", b"c")])
    def test_names_that_lead_to_routes_are_busy(self, tree: FileSystem, above: str, name: bytes) -> None:
        parent = walk(tree, *filter(None, above.split("/"))).inode
        run(tree.mkdir(ROOT_INODE, b"other", 0o755, ME))
        for change in (
            lambda: tree.unlink(parent, name),
            lambda: tree.rmdir(parent, name),
            lambda: tree.mkdir(parent, name, 0o755, ME),
            lambda: tree.create(parent, name, 0o644, os.O_RDWR, ME),
            lambda: tree.rename(parent, name, ROOT_INODE, b"z", 0),
            lambda: tree.rename(ROOT_INODE, b"other", parent, name, 0),
        ):
            refused(errno.EBUSY, run, change())

    def test_from_route_to_route_is_another_device(self, tree: FileSystem) -> None:
        file = run(tree.mknod(ROOT_INODE, b"f", 0o100644, 0, ME))
        inside = walk(tree, "a", "b").inode
        for change in (
            lambda: tree.rename(ROOT_INODE, b"f", inside, b"f", 0),
            lambda: tree.link(file.inode, inside, b"f"),
        ):
            refused(errno.EXDEV, run, change())

    def test_a_synthesised_directory_becomes_real_when_it_is_needed(self, tree: FileSystem) -> None:
        default = tree.tree.routes[0].volume
        way = walk(tree, "a").inode
        refused(errno.ENOENT, default.lookup, 1, b"a")
        run(tree.create(way, b"file", 0o644, os.O_RDWR, ME))
        assert default.lookup(default.lookup(1, b"a").node, b"file").nlink == 1
        assert walk(tree, "a").inode == way
        assert list(listed(tree, way)) == [b"b", b"file"]

    def test_reading_one_makes_nothing_real(self, tree: FileSystem) -> None:
        way = walk(tree, "a").inode
        assert run(tree.listxattr(way)) == []
        refused(errno.ENODATA, run, tree.getxattr(way, b"user.x"))
        refused(errno.ENOENT, tree.tree.routes[0].volume.lookup, 1, b"a")

    def test_composites_in_composites_are_one_tree(self) -> None:
        inner = CompositeBackend(InMemoryBackend(), {"/y": InMemoryBackend()})
        filesystem = FileSystem.of(CompositeBackend(InMemoryBackend(), {"/x": inner}))
        assert sorted(route.prefix for route in filesystem.tree.routes) == ["/", "/x", "/x/y"]

    def test_anything_with_mounts_is_a_tree_of_routes(self) -> None:
        class Routes:
            def mounts(self) -> dict[AgentPath, Any]:
                return {ROOT: InMemoryBackend(), AgentPath("/x"): InMemoryBackend()}

        assert [route.prefix for route in FileSystem.of(Routes()).tree.routes] == ["/", "/x"]


class TestChanges:
    @pytest.mark.fails_without("invalidation")
    def test_the_kernel_is_told_of_what_it_knows(self, tree: FileSystem) -> None:
        kernel = FakeKernel()
        tree.attach(kernel)
        volume: Any = tree.tree.routes[0].volume
        known = run(tree.mknod(ROOT_INODE, b"f", 0o100644, 0, ME)).inode
        volume.publish(Change(node=known, parent=1, name=b"f"), Change(node=999), Change(parent=999, name=b"f"))
        assert kernel.told == [("inode", known), ("entry", ROOT_INODE, b"f"), ("inode", ROOT_INODE)]

    def test_a_change_in_a_directory_shown_as_a_junction(self, tree: FileSystem) -> None:
        volume: Any = tree.tree.routes[0].volume
        under = volume.mkdir(1, b"a", 0o755, ME)
        way = walk(tree, "a").inode
        kernel = FakeKernel()
        tree.attach(kernel)
        volume.publish(Change(parent=under.node, name=b"new"))
        assert ("entry", way, b"new") in kernel.told

    def test_anything_may_have_changed(self, tree: FileSystem) -> None:
        kernel = FakeKernel()
        tree.attach(kernel)
        volume: Any = tree.tree.routes[1].volume
        mine = run(tree.mknod(walk(tree, "a", "b").inode, b"f", 0o100644, 0, ME)).inode
        other = run(tree.mknod(ROOT_INODE, b"g", 0o100644, 0, ME)).inode
        volume.publish(Change())
        assert ("inode", mine) in kernel.told and ("inode", other) not in kernel.told

    def test_nobody_is_told_after_the_end(self, tree: FileSystem) -> None:
        kernel = FakeKernel()
        tree.attach(kernel)
        tree.detach()
        volume: Any = tree.tree.routes[0].volume
        volume.publish(Change(node=1))
        assert kernel.told == []


class TestPolicies:
    def test_without_a_feed_the_ttl_counts(self) -> None:
        assert CachePolicy.of(Features(change_feed=False), 0.5) == CachePolicy(0.5, False)
        assert CachePolicy.of(Features(), 0.5) == CachePolicy(COHERENT_TIMEOUT_S, True)

    def test_one_volume_under_two_prefixes_is_believed_for_the_ttl(self) -> None:
        volume = InMemoryVolume()
        filesystem = FileSystem({ROOT: volume, AgentPath("/twin"): volume}, ttl_s=0.25)
        entry = run(filesystem.mknod(ROOT_INODE, b"f", 0o100644, 0, ME))
        twin = run(filesystem.lookup(walk(filesystem, "twin").inode, b"f"))
        assert entry.timeout_s == twin.timeout_s == 0.25 and entry.inode != twin.inode
        run(filesystem.unlink(ROOT_INODE, b"f"))
        run(filesystem.forget([(entry.inode, 1)]))
        assert run(filesystem.getattr(twin.inode)).attr.nlink == 0  # type: ignore[union-attr]

    def test_a_read_only_volume_is_erofs(self) -> None:
        volume = InMemoryVolume()
        volume.features = Features(read_only=True)
        filesystem = FileSystem({ROOT: volume})
        for change in (
            lambda: filesystem.mkdir(ROOT_INODE, b"d", 0o755, ME),
            lambda: filesystem.setattr(ROOT_INODE, AttrChanges(mode=0o700)),
            lambda: filesystem.setxattr(ROOT_INODE, b"user.x", b""),
        ):
            refused(errno.EROFS, run, change())


class TestAppends:
    @pytest.fixture
    def file(self, tree: FileSystem) -> tuple[Volume, int, int]:
        entry, opened = run(tree.create(ROOT_INODE, b"f", 0o644, os.O_RDWR | os.O_APPEND, ME))
        run(tree.write(opened.number, 0, b"x" * 4096))
        return tree.tree.routes[0].volume, entry.inode, opened.number

    @pytest.mark.fails_without("append_end")
    def test_the_end_is_where_it_is_now(self, tree: FileSystem, file: tuple[Volume, int, int]) -> None:
        """The kernel puts an append where it believes the end to be; the other face has moved it."""
        volume, inode, number = file
        volume.write(inode, 4096, b"y" * 4096)
        run(tree.write(number, 4096, b"z" * 4096))
        assert volume.read(inode, 4096, 9000) == b"y" * 4096 + b"z" * 4096

    def test_a_page_of_a_mapping_goes_where_it_is_mapped(self, tree: FileSystem, file: tuple[Volume, int, int]) -> None:
        volume, inode, number = file
        run(tree.write(number, 0, b"m" * 4096))
        assert volume.read(inode, 0, 9000) == b"m" * 4096


class Buffering(InMemoryVolume):
    features = replace(InMemoryVolume.features, blocking=True)
    at_once = frozenset({"write"})

    def write(self, node: int, offset: int, data: bytes) -> int:
        self.writer = threading.current_thread()
        return super().write(node, offset, data)


def test_a_write_that_need_not_wait_is_made_on_the_loop() -> None:
    volume = Buffering()
    filesystem = FileSystem({ROOT: volume})
    _, opened = run(filesystem.create(ROOT_INODE, b"f", 0o644, os.O_RDWR, ME))
    run(filesystem.write(opened.number, 0, b"x"))
    assert volume.writer is threading.current_thread()


class NoAttributes(InMemoryVolume):
    failing = 0

    def listxattr(self, node: int) -> list[bytes]:
        raise OSError(self.failing, "injected")


@pytest.mark.parametrize(
    ("failing", "written"), [(errno.EIO, b"one"), (errno.EPERM, b"onetwo"), (errno.ENOTSUP, b"onetwo")]
)
def test_an_append_looks_for_capabilities_before_it_writes(failing: int, written: bytes) -> None:
    """Where there can be none it goes on, as Linux does; any other error is that of a write that has not begun."""
    volume = NoAttributes()
    volume.failing = failing
    filesystem = FileSystem({ROOT: volume})
    attr = volume.create(1, b"file", 0o644, os.O_RDWR, ME)
    volume.write(attr.node, 0, b"one")
    opened = run(filesystem.open(walk(filesystem, "file").inode, os.O_WRONLY | os.O_APPEND))
    try:
        assert run(filesystem.write(opened.number, 3, b"two")) == 3
    except OSError as error:
        assert error.errno == failing
    assert volume.read(attr.node, 0, 100) == written
