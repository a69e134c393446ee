"""Files whose content is computed at each open: handles with contents of their own, sizes, times, refusals."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT
from fusebackend.protocol import ROOT_NODE
from fusebackend.testing.posix.case import all_refused, fails, refused
from fusebackend.vfs import pseudo_files
from fusebackend.vfs.inodes import ROOT_INODE, Entry
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.vfs.pseudo_files import PseudoFiles
from fusebackend.volumes.agent_face import VolumeBackend


class Growing:
    """A content that is longer each time."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> bytes:
        self.times += 1
        return b"x" * self.times


@pytest.fixture
def files() -> PseudoFiles:
    files = PseudoFiles()
    files.add("growing", Growing())
    files.add("same", lambda: b"same\n")
    return files


def node(files: PseudoFiles, name: bytes) -> int:
    return files.lookup(ROOT_NODE, name).node


def test_each_open_keeps_its_content_until_it_is_closed(files: PseudoFiles) -> None:
    file = node(files, b"growing")
    first, second = files.open(file, os.O_RDONLY), files.open(file, os.O_RDONLY)
    assert len({file, first.node, second.node}) == 3
    assert second.size == first.size + 1
    for opened in (first, second):
        assert files.read(opened.node, 0, 100) == b"x" * opened.size
        assert files.read(opened.node, 1, 1) == b"x" and files.read(opened.node, opened.size, 9) == b""
        assert files.getattr(opened.node).size == opened.size
    files.release(first.node, os.O_RDONLY)
    refused(errno.ESTALE, files.read, first.node, 0, 1)
    assert files.read(second.node, 0, 100) == b"x" * second.size
    files.release(second.node, os.O_RDONLY)
    assert len(files._files) == 2, "nothing is left of them"


def test_the_size_is_that_of_the_latest_open_or_a_new_one(files: PseudoFiles) -> None:
    file = node(files, b"growing")
    assert files.getattr(file).size < files.getattr(file).size
    first = files.open(file, os.O_RDONLY)
    assert files.getattr(file).size == files.getattr(file).size == first.size
    second = files.open(file, os.O_RDONLY)
    assert files.getattr(file).size == second.size
    files.release(second.node, os.O_RDONLY)
    assert files.getattr(file).size == first.size
    files.release(first.node, os.O_RDONLY)
    assert files.getattr(file).size > second.size


def test_the_time_is_that_of_the_content(files: PseudoFiles) -> None:
    assert len({files.getattr(node(files, b"growing")).mtime_ns for _ in range(3)}) == 3
    assert len({files.getattr(node(files, b"same")).mtime_ns for _ in range(3)}) == 1


def test_attributes(files: PseudoFiles) -> None:
    top, file = files.getattr(ROOT_NODE), files.getattr(node(files, b"same"))
    assert (top.mode, top.nlink) == (stat.S_IFDIR | 0o555, 2)
    assert (file.mode, file.nlink, file.size, file.blocks) == (stat.S_IFREG | 0o444, 1, 5, 1)
    assert (file.uid, file.gid) == (os.geteuid(), os.getegid())
    assert [name for name, _ in files.readdir(ROOT_NODE, b"", 10)] == [b"growing", b"same"]
    assert [name for name, _ in files.readdir(ROOT_NODE, b"growing", 10)] == [b"same"]
    assert files.readdir(ROOT_NODE, b"same", 10) == []
    assert [name for name, _ in files.readdir(ROOT_NODE, b"", 1)] == [b"growing"]


def test_refusals(files: PseudoFiles) -> None:
    file = node(files, b"same")
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC):
        refused(errno.EROFS, files.open, file, flags)
    all_refused(
        (errno.EISDIR, files.open, ROOT_NODE, os.O_RDONLY),
        (errno.ENOENT, files.lookup, ROOT_NODE, b"other"),
        (errno.ENOTDIR, files.lookup, file, b"other"),
        (errno.ENOTDIR, files.readdir, file, b"", 1),
        (errno.ESTALE, files.getattr, 99),
        (errno.EBADF, files.read, file, 0, 1),
    )
    with pytest.raises(ValueError, match="a file 'same' already"):
        files.add("same", lambda: b"")


def test_open_contents_have_a_bound(files: PseudoFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pseudo_files, "MAX_OPENED", 2)
    file = node(files, b"same")
    opened = [files.open(file, os.O_RDONLY).node for _ in range(2)]
    refused(errno.ENFILE, files.open, file, os.O_RDONLY)
    files.release(opened[0], os.O_RDONLY)
    assert files.open(file, os.O_RDONLY).size == 5


def test_the_agent_face(files: PseudoFiles) -> None:
    agent = VolumeBackend(files)
    assert str(agent.read("/same")).endswith("same")
    assert [info["path"] for info in agent.ls("/").entries or ()] == ["/growing", "/same"]
    assert [match["path"] for match in agent.grep("am").matches or ()] == ["/same"]
    (growing,) = agent.download_files(["/growing"])
    assert growing.content == b"x" * len(growing.content or b"")
    for record in (
        agent.write("/new", "x"),
        agent.edit("/same", "same", "other"),
        agent.delete("/same"),
        agent.move("/same", "/new"),
    ):
        assert record.error is not None and record.error.endswith("Read-only file system"), record
    assert agent.upload_files([("/same", b"x")])[0].error is not None
    assert len(files._files) == 2, "every handle is closed"


@pytest.mark.trio
async def test_the_mount_reads_past_the_page_cache() -> None:
    filesystem = FileSystem({ROOT: InMemoryVolume()})
    filesystem.tree.files.add("growing", Growing())

    entry = Entry(ROOT_INODE, None, 0)
    for name in (b".fusebackend", b"growing"):
        entry = await filesystem.lookup(entry.inode, name)
    assert entry.timeout_s == 0 and (await filesystem.getattr(entry.inode)).timeout_s == 0
    handles = [await filesystem.open(entry.inode, os.O_RDONLY) for _ in range(3)]
    assert all(handle.direct for handle in handles), "pages are the inode's, and contents are the handle's"
    lengths = [len(await filesystem.read(handle.number, 0, 100)) for handle in handles]
    assert lengths == [lengths[0], lengths[0] + 1, lengths[0] + 2]
    attr = (await filesystem.getattr(entry.inode)).attr
    assert attr is not None and attr.size == lengths[-1]
    for handle in handles:
        await filesystem.release(handle.number)
    assert len(filesystem.tree.files._files) == 1
    with fails(errno.EROFS):
        await filesystem.open(entry.inode, os.O_WRONLY)


@pytest.mark.trio
async def test_an_ordinary_file_is_opened_as_before() -> None:
    filesystem = FileSystem({ROOT: InMemoryVolume()})
    VolumeBackend(filesystem.tree.routes[0].volume).write("/file", "x")

    entry = await filesystem.lookup(ROOT_INODE, b"file")
    opened = await filesystem.open(entry.inode, os.O_RDONLY)
    assert opened.keep_pages and not opened.direct
