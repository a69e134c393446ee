"""`DirectoryVolume`, through its kernel face: POSIX on what lies below it, and which nodes and descriptors it keeps."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import shutil
import stat
from pathlib import Path

import pytest
from nodes import ME, names, put, whole

from fusebackend.backends import FilesystemBackend
from fusebackend.backends.directory import dirfd, nodes
from fusebackend.backends.directory.volume import LISTINGS, PAGE_ENTRIES, DirectoryVolume
from fusebackend.protocol import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    ROOT_NODE,
    AttrChanges,
)
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import fails, refused


@pytest.fixture
def volume(tmp_path):
    (tmp_path / "root").mkdir()
    volume = DirectoryVolume(tmp_path / "root")
    yield volume
    volume.close()


@pytest.fixture
def disk(tmp_path, volume) -> Path:
    return tmp_path / "root"


def cold(volume):
    """Close the descriptors that are kept, so that each place has to be found again."""
    volume._nodes.forget_descriptors()


def open_descriptors():
    gc.collect()  # an exception that was caught can be a cycle, and its frames hold descriptors until then
    return len(os.listdir("/proc/self/fd"))


# -- names -----------------------------------------------------------------------------------------------------------


def test_what_is_made_is_on_the_disk_and_the_other_way_round(volume, disk):
    node = put(volume, b"file", b"abc")
    assert (disk / "file").read_bytes() == b"abc"
    (disk / "theirs").write_bytes(b"xyz")
    assert whole(volume, volume.lookup(ROOT_NODE, b"theirs").node) == b"xyz"
    assert volume.lookup(ROOT_NODE, b"file").node == node
    status = (disk / "file").stat()
    attr = volume.getattr(node)
    assert (attr.size, attr.mtime_ns, attr.ctime_ns, attr.blocks, attr.mode, attr.nlink) == (
        3, status.st_mtime_ns, status.st_ctime_ns, status.st_blocks, status.st_mode, 1,
    )  # fmt: skip


def test_what_can_not_get_its_mode_is_not_made(volume, disk, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "no mode")

    monkeypatch.setattr(os, "chmod", refuse)
    refused(errno.EROFS, volume.create, ROOT_NODE, b"file", 0o644, os.O_RDWR, ME)
    refused(errno.EROFS, volume.mkdir, ROOT_NODE, b"directory", 0o755, ME)
    assert os.listdir(disk) == []


def test_the_root_has_its_number_and_stays_it_when_it_is_renamed(volume, disk):
    disk.rename(disk.with_name("moved"))
    put(volume, b"file")
    assert (disk.with_name("moved") / "file").exists()
    assert volume.getattr(ROOT_NODE).is_dir


def test_a_root_that_was_removed_is_an_error_and_looks_like_no_empty_directory(volume, disk, caplog):
    put(volume, b"f", b"x")
    assert volume.trouble is None
    shutil.rmtree(disk)
    disk.mkdir()
    refused(errno.EIO, volume.lookup, ROOT_NODE, b"f")
    refused(errno.EIO, volume.lookup, ROOT_NODE, b"absent")
    refused(errno.EIO, names, volume)
    refused(errno.EIO, put, volume, b"new")
    assert os.listdir(disk) == []
    assert volume.trouble is not None and f"its directory {disk} was moved or deleted" in volume.trouble[1]
    assert caplog.text.count("was moved or deleted") == 1


def test_a_root_whose_path_leads_elsewhere_stays_it_and_says_so(volume, disk, tmp_path):
    (tmp_path / "link").symlink_to(disk)
    backend = FilesystemBackend(tmp_path / "link")
    other = tmp_path / "other"
    other.mkdir()
    os.rename(disk, tmp_path / "aside")
    os.rename(other, disk)
    put(volume, b"f", b"x")
    assert os.listdir(tmp_path / "aside") == ["f"] and os.listdir(disk) == []
    assert volume.trouble is not None and backend.volume.trouble is not None
    os.rename(disk, other)
    os.rename(tmp_path / "aside", disk)
    assert volume.trouble is None and backend.volume.trouble is None
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(other)
    assert backend.volume.trouble is not None, "a link that is switched leads nobody out of a directory"
    assert backend.write("/g", "y").error is None and sorted(os.listdir(disk)) == ["f", "g"]


@pytest.mark.parametrize("name", [b"..", b".", b"", b"a/b", b"../x", b"/etc", b"a\0b"])
def test_a_name_that_would_lead_elsewhere_is_refused(volume, name):
    node = put(volume, b"file")
    for call in (
        lambda: volume.lookup(ROOT_NODE, name),
        lambda: volume.create(ROOT_NODE, name, 0o644, os.O_RDWR, ME),
        lambda: volume.mknod(ROOT_NODE, name, stat.S_IFIFO | 0o644, 0, ME),
        lambda: volume.mkdir(ROOT_NODE, name, 0o755, ME),
        lambda: volume.symlink(ROOT_NODE, name, b"x", ME),
        lambda: volume.link(node, ROOT_NODE, name),
        lambda: volume.unlink(ROOT_NODE, name),
        lambda: volume.rmdir(ROOT_NODE, name),
        lambda: volume.rename(ROOT_NODE, name, ROOT_NODE, b"new"),
        lambda: volume.rename(ROOT_NODE, b"file", ROOT_NODE, name),
    ):
        refused(errno.EINVAL, call)


def test_a_link_is_never_followed(volume, disk):
    (disk / "file").write_bytes(b"secret")
    link = volume.symlink(ROOT_NODE, b"link", b"file", ME).node
    fifo = volume.mknod(ROOT_NODE, b"fifo", stat.S_IFIFO | 0o644, 0, ME).node
    for case in each({
        "open": (errno.EINVAL, volume.open, link, os.O_RDONLY),
        "lookup": (errno.ENOTDIR, volume.lookup, link, b"x"),
        "readlink of a file": (errno.EINVAL, volume.readlink, volume.lookup(ROOT_NODE, b"file").node),
        "open of a directory": (errno.EISDIR, volume.open, ROOT_NODE, os.O_RDONLY),
        "size of a directory": (errno.EISDIR, volume.setattr, ROOT_NODE, AttrChanges(size=0)),
        "open of a fifo": (errno.EINVAL, volume.open, fifo, os.O_RDONLY),
        "size of a fifo": (errno.EINVAL, volume.setattr, fifo, AttrChanges(size=0)),
    }):  # fmt: skip
        with case as (number, call, *arguments), fails(number):
            call(*arguments)


# -- rename ----------------------------------------------------------------------------------------------------------


def test_flags_of_a_rename_that_are_not_known(volume):
    put(volume, b"two")
    for flags in (4, RENAME_NOREPLACE | RENAME_EXCHANGE, 99):
        refused(errno.EINVAL, volume.rename, ROOT_NODE, b"two", ROOT_NODE, b"x", flags)


# -- data ------------------------------------------------------------------------------------------------------------


def test_handles_for_reading_and_writing_are_counted_apart(volume):
    node = put(volume, b"file", b"abc")
    cold(volume)
    before = open_descriptors()
    volume.open(node, os.O_RDONLY)
    refused(errno.EBADF, volume.write, node, 0, b"x")
    volume.open(node, os.O_WRONLY)
    volume.open(node, os.O_RDWR | os.O_APPEND | os.O_DIRECT | os.O_TRUNC | os.O_EXCL | os.O_CREAT)
    assert volume.read(node, 0, 3) == b"abc"
    volume.write(node, 1, b"X")
    volume.release(node, os.O_WRONLY)
    volume.write(node, 2, b"Y")
    volume.release(node, os.O_RDWR)
    refused(errno.EBADF, volume.write, node, 0, b"x")
    assert volume.read(node, 0, 3) == b"aXY"
    volume.release(node, os.O_RDONLY)
    refused(errno.EBADF, volume.read, node, 0, 3)
    refused(errno.EBADF, volume.release, node, os.O_RDONLY)
    cold(volume)
    assert open_descriptors() == before


def test_no_access_is_noted_while_all_handles_have_o_noatime(volume):
    node = put(volume, b"file", b"abc")

    def heeded() -> set[bool]:
        opened = volume._nodes.get(node).opened
        fds = [each.fd for each in opened._descriptors.values()]
        return {bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NOATIME) for fd in fds}

    volume.open(node, os.O_RDONLY | os.O_NOATIME)
    assert heeded() == {True}
    volume.open(node, os.O_RDWR)
    assert heeded() == {False}
    volume.release(node, os.O_RDWR)
    assert heeded() == {True}
    volume.open(node, os.O_RDWR | os.O_NOATIME)
    volume.open(node, os.O_RDONLY)
    assert heeded() == {False}
    volume.release(node, os.O_RDONLY | os.O_NOATIME)
    volume.release(node, os.O_RDONLY)
    assert heeded() == {True}, "of the writer alone"
    volume.release(node, os.O_RDWR | os.O_NOATIME)
    volume.open(node, os.O_RDONLY)
    assert heeded() == {False}
    volume.release(node, os.O_RDONLY)


def test_a_handle_opened_for_writing_alone_can_be_read(volume):
    node = put(volume, b"file", b"abc")
    volume.open(node, os.O_WRONLY)
    assert volume.read(node, 0, 3) == b"abc"  # the kernel fills a page before it changes a part of it
    volume.release(node, os.O_WRONLY)


def test_a_program_can_run_as_soon_as_its_last_writer_is_gone(volume, disk):
    node = put(volume, b"program", b"#!/bin/sh\nexit 7\n", mode=0o755)
    volume.open(node, os.O_RDONLY)
    volume.open(node, os.O_RDWR)
    volume.release(node, os.O_RDWR)
    assert os.waitstatus_to_exitcode(os.system(str(disk / "program"))) == 7
    volume.release(node, os.O_RDONLY)


def test_fsync_of_everything(volume, disk, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_ino))
    inner = volume.mkdir(ROOT_NODE, b"dir", 0o755, ME).node
    node = volume.create(inner, b"file", 0o644, os.O_RDWR, ME).node
    status, above = (disk / "dir/file").stat(), (disk / "dir").stat()
    volume.fsync(node, datasync=True)
    assert synced == [status.st_ino, above.st_ino], "a new file is no file without its name"
    synced.clear()
    volume.fsync(node)
    volume.release(node, os.O_RDWR)
    volume.fsync(node)
    assert synced == [status.st_ino] * 2
    synced.clear()
    volume.rename(inner, b"file", ROOT_NODE, b"renamed")
    volume.fsync(node)
    volume.fsync(ROOT_NODE)
    root = volume.getattr(ROOT_NODE)
    assert synced[0] == status.st_ino
    assert synced[1] == synced[2]
    assert root.is_dir
    volume.fsync(volume.symlink(ROOT_NODE, b"link", b"x", ME).node)
    volume.sync()


def test_a_failed_fsync_is_told_and_tried_again(volume, monkeypatch):
    node = put(volume, b"file")
    calls = []

    def fail(fd):
        calls.append(fd)
        raise OSError(errno.EIO, "disk")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        refused(errno.EIO, volume.fsync, node)
    monkeypatch.setattr(os, "fsync", calls.append)
    calls.clear()
    volume.fsync(node)
    assert len(calls) == 2, "the name is still to be synced"


# -- attributes ------------------------------------------------------------------------------------------------------


def test_modes_are_as_asked_whatever_the_umask(volume, disk):
    before = os.umask(0o077)
    try:
        put(volume, b"file", mode=0o666)
        volume.mkdir(ROOT_NODE, b"dir", 0o1777, ME)
        volume.mknod(ROOT_NODE, b"fifo", stat.S_IFIFO | 0o622, 0, ME)
        volume.mknod(ROOT_NODE, b"plain", stat.S_IFREG | 0o640, 0, ME)
    finally:
        os.umask(before)
    modes = {entry.name: stat.S_IMODE(entry.lstat().st_mode) for entry in disk.iterdir()}
    assert modes == {"file": 0o666, "dir": 0o1777, "fifo": 0o622, "plain": 0o640}


def test_xattrs(volume, disk):
    node = put(volume, b"file")
    try:
        os.setxattr(disk / "file", "user.theirs", b"1")
    except OSError as error:
        pytest.skip(f"this file system has no xattrs: {error}")
    volume.setxattr(node, b"user.ours", b"\0binary\xff")
    assert os.getxattr(disk / "file", "user.ours") == b"\0binary\xff"
    volume.hold(node)
    volume.unlink(ROOT_NODE, b"file")
    assert volume.getxattr(node, b"user.theirs") == b"1"


def test_statfs_is_that_of_the_disk(volume, disk):
    found, there = volume.statfs(), os.statvfs(disk)
    assert (found.block_bytes, found.blocks, found.name_max) == (there.f_frsize, there.f_blocks, 255)
    assert 0 < found.blocks_free <= there.f_bfree


# -- listings --------------------------------------------------------------------------------------------------------


def test_a_page_is_not_empty_before_the_end(volume, disk):
    for number in range(50):
        (disk / f"{number:02}").touch()
    page = volume.readdir(ROOT_NODE, b"", 10)
    assert [name for name, _ in page] == [b"%02d" % number for number in range(10)]
    for number in range(10, 45):
        (disk / f"{number:02}").unlink()
    assert [name for name, _ in volume.readdir(ROOT_NODE, b"09", 10)] == [b"45", b"46", b"47", b"48", b"49"]
    assert volume.readdir(ROOT_NODE, b"49", 10) == []
    (disk / "50").touch()
    assert names(volume)[-1] == b"50", "a listing that starts is new"


def test_listings_are_bounded(volume, disk):
    for number in range(PAGE_ENTRIES + 10):
        (disk / f"{number:05}").touch()
    assert len(volume.readdir(ROOT_NODE, b"", 10**9)) == PAGE_ENTRIES
    for number in range(LISTINGS + 12):
        node = volume.mkdir(ROOT_NODE, b"dir%02d" % number, 0o755, ME).node
        put(volume, b"file", parent=node)
        volume.readdir(node, b"", 1)
    assert len(volume._listings) <= LISTINGS


# -- nodes -----------------------------------------------------------------------------------------------------------


def test_what_others_take_away_is_stale_and_then_missing(volume, disk):
    node = put(volume, b"file", b"x")
    inner = volume.mkdir(ROOT_NODE, b"dir", 0o755, ME).node
    below = put(volume, b"below", b"y", parent=inner)
    for held in (node, inner, below):
        volume.hold(held)
    cold(volume)
    (disk / "file").unlink()
    (disk / "dir").rename(disk / "elsewhere")
    for call in (
        lambda: volume.getattr(node),
        lambda: volume.open(node, os.O_RDONLY),
        lambda: volume.getattr(below),
        lambda: volume.lookup(inner, b"below"),
    ):
        refused(errno.ESTALE, call)
    refused(errno.ENOENT, volume.lookup, ROOT_NODE, b"file")
    again = volume.lookup(ROOT_NODE, b"elsewhere").node
    assert again == inner, "the same directory, found again under its new name"
    assert whole(volume, below) == b"y"


def test_what_others_put_in_its_place_is_another_node(volume, disk):
    node = put(volume, b"file", b"old")
    volume.hold(node)
    (disk / "new").write_bytes(b"new")
    (disk / "new").rename(disk / "file")
    refused(errno.ESTALE, volume.setattr, node, AttrChanges(size=0))
    other = volume.lookup(ROOT_NODE, b"file").node
    assert other != node
    assert whole(volume, other) == b"new"
    assert (disk / "file").read_bytes() == b"new"


@pytest.mark.parametrize("asked", [True, False], ids=["found to be gone", "nobody asked"])
def test_an_inode_number_that_the_system_uses_again_is_another_node(volume, disk, asked):
    for attempt in range(50):  # another process may get the number
        old = f"x{attempt}"
        (disk / old).mkdir()
        before = volume.lookup(ROOT_NODE, old.encode()).node
        volume.hold(before)
        volume._nodes.forget_descriptors()
        number = (disk / old).stat().st_ino
        (disk / old).rmdir()
        if asked:
            refused(errno.ESTALE, volume.getattr, before)
        name = _directory_with(disk, number, [old] if asked else [], attempt)  # ext4 gives a freed number out at once
        if name is not None:
            break
    else:
        pytest.skip("this file system gives no inode number again soon")
    after = volume.lookup(ROOT_NODE, name.encode()).node
    assert after != before
    refused(errno.ESTALE, volume.getattr, before)
    assert volume.lookup(ROOT_NODE, name.encode()).node == volume.getattr(after).node == after


def _directory_with(disk, number, names, attempt):
    """The name of a new directory with this inode number, if one gets it."""
    for name in [*names, *(f"y{attempt}-{count}" for count in range(20))]:
        (disk / name).mkdir()
        if (disk / name).stat().st_ino == number:
            return name
    return None


def test_an_inode_number_that_comes_back_as_a_file_and_a_directory_in_turn_is_another_node_each_time(volume, disk):
    held = set()
    for _ in range(20):
        (disk / "x").mkdir()
        attr = volume.lookup(ROOT_NODE, b"x")
        volume.hold(attr.node)
        volume._nodes.forget_descriptors()
        (disk / "x").rmdir()
        (disk / "x").write_bytes(b"file")
        other = volume.lookup(ROOT_NODE, b"x")
        assert other.node != attr.node
        assert not volume.getattr(other.node).is_dir
        refused(errno.ESTALE, volume.getattr, attr.node)
        (disk / "x").unlink()
        held.add(attr.node)
    assert len(held) == 20, "no number twice"


@pytest.mark.parametrize(
    ("younger_ns", "same"),
    [(-1, True), (0, True), (1, False), (None, False)],
    ids=["older", "equal", "younger", "unknown"],
)
def test_the_birth_time_tells_a_moved_file_from_another_one_with_its_number(
    volume, disk, monkeypatch, younger_ns, same
):
    (disk / "x").write_bytes(b"1")
    node = volume.lookup(ROOT_NODE, b"x").node
    volume.hold(node)
    seen_ns = (disk / "x").stat().st_ctime_ns
    while (disk / "x").stat().st_ctime_ns == seen_ns:  # before Linux 6.13 the clock has ticks
        (disk / "x").rename(disk / "y")
        (disk / "y").rename(disk / "x")
    (disk / "x").rename(disk / "y")
    refused(errno.ESTALE, volume.getattr, node)
    born_ns = None if younger_ns is None else seen_ns + younger_ns
    monkeypatch.setattr(dirfd, "born_ns", lambda directory, name: born_ns)
    found = volume.lookup(ROOT_NODE, b"y").node
    assert (found == node) is same
    assert whole(volume, found) == b"1"


def test_a_file_that_is_as_young_as_the_node_and_has_not_changed_was_not_moved(volume, disk, monkeypatch):
    (disk / "x").write_bytes(b"1")
    node = volume.lookup(ROOT_NODE, b"x").node
    volume.hold(node)
    (disk / "x").rename(disk / "y")
    born_ns = volume._nodes.get(node).changed_ns = (disk / "y").stat().st_ctime_ns  # as if made and seen in this tick
    monkeypatch.setattr(dirfd, "born_ns", lambda directory, name: born_ns)
    assert volume.lookup(ROOT_NODE, b"y").node != node


def test_what_the_mount_has_made_is_a_new_node_whatever_its_inode_number(volume, disk, monkeypatch):
    monkeypatch.setattr(dirfd, "born_ns", lambda directory, name: 0)
    made = set()
    for _ in range(20):
        node = volume.mkdir(ROOT_NODE, b"x", 0o755, ME).node
        volume.hold(node)
        volume._nodes.forget_descriptors()
        (disk / "x").rmdir()
        made.add(node)
    assert len(made) == 20


def test_the_birth_time_of_a_file_is_read_where_there_is_one(disk, monkeypatch):
    (disk / "x").write_bytes(b"")
    root = dirfd.open_root(str(disk))
    born_ns = dirfd.born_ns(root, b"x")
    if born_ns is None:
        pytest.skip("this file system has no birth times")
    assert 0 <= (disk / "x").stat().st_ctime_ns - born_ns < 60 * 10**9
    refused(errno.ENOENT, dirfd.born_ns, root, b"absent")
    monkeypatch.setattr(dirfd, "_STATX_BTIME", 0)
    assert dirfd.born_ns(root, b"x") is None


def test_idle_nodes_are_bounded_and_held_ones_stay(volume, disk, monkeypatch):
    monkeypatch.setattr(nodes, "IDLE_FILES", 50)
    monkeypatch.setattr(nodes, "IDLE_DIRECTORIES", 20)
    for number in range(40):
        (disk / f"dir{number:03}").mkdir()
        for inner in range(10):
            (disk / f"dir{number:03}" / f"file{inner}").write_bytes(b"%d" % number)
    held = []
    for number in range(40):
        directory = volume.lookup(ROOT_NODE, b"dir%03d" % number)
        for inner in range(10):
            node = volume.lookup(directory.node, b"file%d" % inner).node
            if inner == 3:
                volume.hold(node)
                held.append((node, b"%d" % number))
    for node, expected in held:
        assert whole(volume, node) == expected
    assert len(volume._nodes) <= 1 + 50 + 40 + 40, "idle files, held files, and the directories these were found in"
    volume.forget([node for node, _ in held])
    assert len(volume._nodes) <= 1 + 50 + 50 + 20
    assert len(volume._nodes._keys) == len(volume._nodes)
    assert all(node.children >= 0 for node in volume._nodes._numbers.values())


def test_a_node_that_is_not_known_is_stale(volume):
    for call in (
        lambda: volume.getattr(999),
        lambda: volume.lookup(999, b"x"),
        lambda: volume.readdir(999, b"", 1),
        lambda: volume.open(999, os.O_RDONLY),
        lambda: volume.link(999, ROOT_NODE, b"x"),
    ):
        refused(errno.ESTALE, call)
    volume.hold(999)
    volume.forget([999, ROOT_NODE])
    assert volume.getattr(ROOT_NODE).is_dir


def test_deep_trees_with_few_descriptors(volume, disk):
    volume._nodes._descriptors._most = 16
    before = open_descriptors()
    node, way = ROOT_NODE, []
    for number in range(500):
        node = volume.mkdir(node, b"d%d" % number, 0o755, ME).node
        way.append(node)
    file = put(volume, b"file", b"deep", parent=node)
    assert open_descriptors() <= before + 16
    cold(volume)
    assert whole(volume, file) == b"deep"
    other = put(volume, b"top")
    cold(volume)
    volume.rename(ROOT_NODE, b"top", node, b"bottom")  # two directories, far apart
    volume.rename(way[250], b"d251", ROOT_NODE, b"cut")
    cold(volume)
    assert volume.lookup(node, b"bottom").node == other
    assert open_descriptors() <= before + 16
    for directory in (volume.lookup(ROOT_NODE, b"cut"), volume.lookup(ROOT_NODE, b"d0")):
        assert directory.is_dir


def test_closing_gives_every_descriptor_back(tmp_path):
    before = open_descriptors()
    volume = DirectoryVolume(tmp_path)
    for number in range(30):
        node = volume.create(ROOT_NODE, b"%d" % number, 0o644, os.O_RDWR, ME).node
        volume.hold(node)
        inner = volume.mkdir(ROOT_NODE, b"d%d" % number, 0o755, ME).node
        volume.readdir(inner, b"", 1)
        volume.unlink(ROOT_NODE, b"%d" % number)
    volume.close()
    volume.close()
    assert open_descriptors() == before
    refused(errno.EBADF, volume.lookup, ROOT_NODE, b"d1")
