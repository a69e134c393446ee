"""Exhausted resources and large amounts: a full disk, and memory."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import mounts
import pytest
import trees
from agentface import ME
from eventually import eventually
from mounts import Serve

from fusebackend.backends.sqlite import check as sqlite_check
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.protocol import ROOT_NODE
from fusebackend.testing.posix.case import fails, opened

KIB = 1024
MIB = 1024 * KIB


# --------------------------------------------------------------------------------------------------------------
# A full disk
# --------------------------------------------------------------------------------------------------------------


def fill_up(directory: Path) -> dict[str, str]:
    """Write and fsync files of 256 KiB until the disk is full; return the digests of those with a completed fsync."""
    synced = {}
    with fails(errno.ENOSPC):
        for number in range(1000):
            data = os.urandom(256 * KIB)
            path = directory / f"file{number:04}"
            with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                os.write(fd, data)
                os.fsync(fd)
            synced[path.name] = trees.sha256(path)
    return synced


@pytest.mark.parametrize("scheme", ["sqlite", "dir"])
def test_a_full_disk_is_enospc_and_loses_nothing(small_disk: Path, serve: Serve, scheme: str) -> None:
    (small_disk / "files").mkdir()
    url = {"sqlite": f"sqlite:{small_disk}/volume.db", "dir": f"dir:{small_disk}/files"}[scheme]
    server = serve(url, at="mnt")
    (server.path / "first").write_bytes(b"before")
    mounts.sync(server.path)
    synced = fill_up(server.path)
    assert len(synced) > 10

    for name, digest in synced.items():  # reading goes on
        assert trees.sha256(server.path / name) == digest
    assert (server.path / "first").read_bytes() == b"before"

    (small_disk / "ballast").unlink()
    later = server.path / "later"
    with later.open("wb") as file:
        file.write(b"there is room again")
        file.flush()
        os.fsync(file.fileno())
    removed = sorted(synced)[:8]
    for name in removed:
        (server.path / name).unlink()
        del synced[name]
    mounts.sync(server.path)
    with (server.path / "last").open("wb") as file:  # the removed files made room
        file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())

    server.kill()  # so that nothing but fsync has made it durable
    if scheme == "sqlite":
        assert sqlite_check.check(small_disk / "volume.db") == []
    again = serve(url, at="mnt")
    for name, digest in synced.items():
        assert trees.sha256(again.path / name) == digest
    assert (again.path / "later").read_bytes() == b"there is room again"
    assert (again.path / "last").stat().st_size == MIB
    assert not set(removed) & set(os.listdir(again.path))


def test_a_full_disk_reaches_a_writer_that_only_closes_and_syncs_later(small_disk: Path, serve: Serve) -> None:
    """Without an fsync for each file the error may come late, but it comes, and files that fit are not lost."""
    server = serve(f"sqlite:{small_disk}/volume.db")
    server.expected_log = "SQLITE_FULL"
    written = []
    with fails(errno.ENOSPC):
        for number in range(1000):
            (server.path / f"file{number:04}").write_bytes(bytes([number % 251]) * 100 * KIB)
            written.append(number)
            if number % 20 == 19:
                mounts.sync(server.path)
    assert len(written) > 20
    (small_disk / "ballast").unlink()
    mounts.sync(server.path)
    for number in written:
        assert (server.path / f"file{number:04}").read_bytes() == bytes([number % 251]) * 100 * KIB


# --------------------------------------------------------------------------------------------------------------
# Sizes and memory
# --------------------------------------------------------------------------------------------------------------


KNOWN_FILES = 22_000
"""More than any of the server's own caches holds."""


@pytest.mark.alone
@pytest.mark.parametrize("scheme", ["sqlite", "dir"])
def test_memory_for_each_file_that_the_kernel_knows(serve: Serve, tmp_path: Path, scheme: str) -> None:
    """The server uses about 1 KiB for each file that the kernel knows, and frees it after FORGET. Python 3.13 needs 7 %
    more than 3.11.

    `memory:` is left out, since it keeps its files in memory.
    """
    server = serve(_filled(tmp_path, scheme, "many", "more"), at="mnt")
    (server.path / "warm-up").mkdir()
    for number in range(1_000):
        (server.path / f"warm-up/{number:06}").write_bytes(b"")
    mounts.sync(server.path)
    before = server.memory_kib()
    _list_all(server.path / "many")
    known = server.memory_kib()
    for_each = (known - before) * KIB / KNOWN_FILES
    assert for_each < 1.1 * KIB, f"{for_each:.0f} bytes for each file"
    assert server.known_inodes() > KNOWN_FILES

    mounts.drop_caches(2)
    eventually(lambda: server.known_inodes() < 100)
    # Not all of it: SQLite's page cache stays, and Python keeps an arena of a mebibyte while anything in it is in use.
    assert server.memory_kib() < known - 30 * KNOWN_FILES / KIB
    _list_all(server.path / "more")
    assert server.memory_kib() - known < 0.75 * (known - before)


def _filled(tmp_path: Path, scheme: str, *directories: str) -> str:
    """Make `KNOWN_FILES` empty files in each directory of a volume, without a mount. Return the volume's URL."""
    if scheme == "sqlite":
        with contextlib.closing(SqliteVolume(str(tmp_path / "volume.db"))) as volume:
            for directory in directories:
                node = volume.mkdir(ROOT_NODE, directory.encode(), 0o755, ME).node
                for number in range(KNOWN_FILES):
                    volume.mknod(node, b"%06d" % number, stat.S_IFREG | 0o644, 0, ME)
        return f"sqlite:{tmp_path}/volume.db"
    for directory in directories:
        (tmp_path / "files" / directory).mkdir(parents=True)
        for number in range(KNOWN_FILES):
            (tmp_path / "files" / directory / f"{number:06}").touch()
    return f"dir:{tmp_path}/files"


def _list_all(directory: Path) -> None:
    """Have the kernel know all files: READDIRPLUS counts as a lookup of each, in a tenth of the time."""
    assert len(os.listdir(directory)) == KNOWN_FILES
