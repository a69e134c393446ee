"""Limits of a volume: what counts, what is refused, and that the sums are those of the tree, whatever happened."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import Counting, acl_of

from fusebackend.backends.memory import InMemoryBackend
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller, Usage
from fusebackend.rules.ruled_volume import RuledVolume
from fusebackend.rules.view import View
from fusebackend.testing.by_path import walk
from fusebackend.testing.posix.case import all_refused, refused
from fusebackend.volumes.agent_face import VolumeBackend

ME = Caller(os.getuid(), os.getgid(), os.getpid())
KIB = 1 << 10


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made: list[VolumeBackend] = []

    def make(**limits: Any) -> VolumeBackend:
        made.append(
            InMemoryBackend(**limits) if request.param == "memory" else SqliteBackend(tmp_path / "v.db", **limits)
        )
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def usage(backend: VolumeBackend) -> Usage:
    assert backend.volume.usage is not None
    return backend.volume.usage


def counted(backend: VolumeBackend) -> tuple[int, int]:
    """The bytes and files of the tree below the root, as a walk finds them."""
    volume = backend.volume
    seen = {attr.node: attr for _, attr in walk(volume)}
    xattrs = sum(
        len(name) + len(volume.getxattr(node, name)) for node in (ROOT_NODE, *seen) for name in volume.listxattr(node)
    )
    return sum(attr.blocks * 512 for attr in seen.values()) + xattrs, len(seen)


def file(backend: VolumeBackend, name: bytes = b"file", data: bytes = b"") -> int:
    node = backend.volume.create(ROOT_NODE, name, 0o644, os.O_RDWR, ME).node
    if data:
        backend.volume.write(node, 0, data)
    return node


def test_without_limits_nothing_is_counted(make: Any) -> None:
    assert make().volume.usage is None


def test_what_counts(make: Any) -> None:
    backend = make(limit_bytes=1 << 20, limit_files=10)
    volume = backend.volume
    assert usage(backend) == (0, 1 << 20, 0, 10)
    node = file(backend, data=b"x")
    assert usage(backend)[::2] == (4096, 1)
    volume.link(node, ROOT_NODE, b"again")
    assert usage(backend)[::2] == (4096, 1), "a second name is no second file"
    volume.write(node, 10 << 20, b"x")
    assert usage(backend)[::2] == (8192, 1), "a hole takes nothing"
    volume.setattr(node, AttrChanges(size=1 << 30))
    volume.mkdir(ROOT_NODE, b"directory", 0o755, ME)
    volume.symlink(ROOT_NODE, b"link", b"target", ME)
    assert usage(backend)[::2] == (16384, 3)
    volume.setxattr(node, b"user.name", b"value")
    volume.setxattr(node, b"user.name", b"longer value")
    assert usage(backend).used_bytes == 16384 + 21
    volume.removexattr(node, b"user.name")
    volume.setattr(node, AttrChanges(size=1))
    assert usage(backend)[::2] == (12288, 3)
    for name in (b"file", b"again"):
        volume.unlink(ROOT_NODE, name)
    assert usage(backend)[::2] == (12288, 3), "it is still open"
    volume.release(node, os.O_RDWR)
    assert usage(backend)[::2] == (8192, 2) == counted(backend)


def test_a_write_that_does_not_fit_changes_nothing(make: Any) -> None:
    backend = make(limit_bytes=100 * KIB)
    volume = backend.volume
    node = file(backend, data=b"a" * 90 * KIB)
    for offset, size in ((90 * KIB, 20 * KIB), (1 << 30, 70 * KIB), ((1 << 30) + 60 * KIB, 1)):
        refused(errno.EDQUOT, volume.write, node, offset, bytes(size))
    refused(errno.EDQUOT, volume.append, node, bytes(20 * KIB))
    assert volume.getattr(node).size == 90 * KIB and usage(backend)[::2] == counted(backend)
    volume.write(node, 90 * KIB, bytes(10 * KIB))
    assert usage(backend).used_bytes == 100 * KIB
    volume.write(node, 0, b"b" * 100 * KIB)  # over what is there
    all_refused(
        (errno.EDQUOT, volume.write, node, 100 * KIB, b"x"),
        (errno.EDQUOT, volume.setxattr, node, b"user.name", b"value"),
        (errno.EDQUOT, volume.mkdir, ROOT_NODE, b"directory", 0o755, ME),
        (errno.EDQUOT, volume.symlink, ROOT_NODE, b"link", b"target", ME),
    )
    volume.setattr(node, AttrChanges(size=1 << 40))  # a hole
    volume.setattr(node, AttrChanges(size=96 * KIB))
    volume.symlink(ROOT_NODE, b"link", b"target", ME)


def test_contents_that_do_not_fit_leave_a_file_with_holes_as_it_is_also_through_a_view(make: Any) -> None:
    """A view did not hand the question on, and the first megabyte was written."""
    backend = make(limit_bytes=1536 * KIB)
    node = file(backend, data=b"begin")
    backend.volume.setattr(node, AttrChanges(size=3 << 20))
    view = View("v", [{"operations": ["write"], "paths": ["/x"], "mode": "deny"}])
    for face in (backend, VolumeBackend(RuledVolume(backend.volume, view))):
        (response,) = face.upload_files([("/file", b"x" * (3 << 20))])
        assert response.error == os.strerror(errno.EDQUOT)
        assert backend.volume.read(node, 0, 6) == b"begin\0"


def test_files_are_counted_apart_from_bytes(make: Any) -> None:
    backend = make(limit_files=2)
    volume = backend.volume
    node = file(backend, data=bytes(1 << 20))
    volume.mkdir(ROOT_NODE, b"directory", 0o755, ME)
    all_refused(
        (errno.EEXIST, volume.mkdir, ROOT_NODE, b"directory", 0o755, ME),
        (errno.EDQUOT, file, backend, b"other"),
        (errno.EDQUOT, volume.mknod, ROOT_NODE, b"fifo", stat.S_IFIFO | 0o600, 0, ME),
    )
    volume.link(node, ROOT_NODE, b"again")
    volume.rename(ROOT_NODE, b"again", ROOT_NODE, b"elsewhere")
    volume.rmdir(ROOT_NODE, b"directory")
    file(backend, b"other")
    volume.release(node, os.O_RDWR)
    volume.rename(ROOT_NODE, b"other", ROOT_NODE, b"elsewhere")
    assert usage(backend).used_files == 2


def test_statfs_is_the_limit(make: Any) -> None:
    backend = make(limit_bytes=1 << 20, limit_files=10)
    file(backend, data=b"x" * 8192)
    found = backend.volume.statfs().within(usage(backend))
    assert found.blocks * found.block_bytes == 1 << 20
    assert found.blocks_free * found.block_bytes == (1 << 20) - 8192
    assert (found.files, found.files_free) == (10, 9)
    disk = backend.volume.statfs()
    assert disk.blocks_free * disk.block_bytes > 1 << 20, "the disk is not full where the limit is: snapshots stay"


def test_agents_are_told_in_words_and_lose_nothing(make: Any) -> None:
    backend = make(limit_bytes=64 * KIB, limit_files=3)
    assert backend.write("/file", "a" * 40 * KIB).error is None
    assert "Disk quota exceeded" in (backend.write("/d/e/other", "b" * 40 * KIB).error or "")
    (answer,) = backend.upload_files([("/file", b"c" * 70 * KIB)])
    assert answer.error == "Disk quota exceeded"
    assert "Disk quota exceeded" in (backend.edit("/file", "a", "aa", replace_all=True).error or "")
    (kept,) = backend.download_files(["/file"])
    assert kept.content == b"a" * 40 * KIB
    assert [info["path"] for info in backend.ls("/").entries or []] == ["/file"]
    (answer,) = backend.upload_files([("/file", b"c" * 60 * KIB)])
    assert answer.error is None and usage(backend).used_bytes == 60 * KIB


def test_the_error_says_which_limit(make: Any) -> None:
    backend = make(limit_bytes=8192, limit_files=1)
    node = file(backend, data=bytes(4096))
    with pytest.raises(OSError, match="Disk quota exceeded: 4,096 of 8,192 bytes are used, and 8,192 more are needed"):
        backend.volume.write(node, 4096, bytes(8192))
    with pytest.raises(OSError, match="Disk quota exceeded: there are 1 of 1 files and directories"):
        file(backend, b"other")


def test_a_limit_must_be_above_0(make: Any) -> None:
    with pytest.raises(ValueError, match="limit_bytes must be above 0, not 0"):
        make(limit_bytes=0)


def test_what_is_inherited_counts_with_what_is_made(make: Any) -> None:
    """Each alone fits, and both together do not."""
    backend = make(limit_bytes=16 * KIB)
    volume = backend.volume
    above = volume.mkdir(ROOT_NODE, b"above", 0o755, ME).node
    volume.setxattr(above, b"system.posix_acl_default", acl_of(*range(100)))
    file(backend, data=bytes(4096))
    volume.setxattr(above, b"user.x", bytes(3000))
    before = usage(backend)
    refused(errno.EDQUOT, volume.mkdir, above, b"below", 0o755, ME)
    assert usage(backend) == before
    refused(errno.EEXIST, volume.mkdir, ROOT_NODE, b"above", 0o755, ME)
    volume.mknod(above, b"fifo", stat.S_IFIFO | 0o600, 0, ME)
    assert before.used_bytes < usage(backend).used_bytes <= 16 * KIB
    assert usage(backend)[::2] == counted(backend)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_drifts(make: Any, seed: int, tmp_path: Path) -> None:
    backend = make(limit_bytes=400 * KIB, limit_files=60)
    counting = Counting(backend, seed)
    for _ in range(2500):
        counting.step()
        assert usage(backend).used_bytes <= 400 * KIB and usage(backend).used_files <= 60
    counting.end()
    assert usage(backend)[::2] == counted(backend)
    if isinstance(backend, SqliteBackend):
        backend.close()
        again = make(limit_bytes=400 * KIB)
        assert usage(again)[::2] == counted(again) == usage(backend)[::2]


def test_they_are_counted_when_the_file_is_opened(tmp_path: Path) -> None:
    with SqliteBackend(tmp_path / "v.db") as backend:
        backend.upload_files([("/d/file", bytes(100 * KIB)), ("/other", b"x")])
        backend.volume.setxattr(ROOT_NODE, b"user.x", b"value")
        held = file(backend, data=bytes(50 * KIB))
        backend.volume.unlink(ROOT_NODE, b"file")
        backend.volume.sync()
        before = counted(backend)
        assert backend.volume.getattr(held).blocks
        # As a crash leaves it: the file without a name is still in the tables.
        for end in ("", "-wal"):
            (tmp_path / f"copy.db{end}").write_bytes((tmp_path / f"v.db{end}").read_bytes())
    with SqliteBackend(tmp_path / "copy.db", limit_bytes=64 * KIB) as backend:
        assert usage(backend)[::2] == before == counted(backend)
        more = file(backend, b"more")  # the limit is lower than what is there
        refused(errno.EDQUOT, backend.volume.write, more, 0, b"x")
        assert backend.delete("/d/file").error is None
        assert backend.volume.write(more, 0, b"x") == 1
