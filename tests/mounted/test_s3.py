"""`s3://` on a mount, over a real SeaweedFS: the POSIX cases and everyday programs, as far as SEMANTICS promises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
import trees
from kinds import Kind
from mounts import Serve
from services.s3 import Bucket, Service
from test_real_work import test_vim_edits_a_file  # noqa: F401 - over the fixture `server` here

from fusebackend.testing.each import each
from fusebackend.testing.posix import Limits, PosixCases
from fusebackend.urls import SCHEMES

OPTIONS = ("allow_other",) if os.geteuid() == 0 else ()


class TestPosix(PosixCases):
    features = SCHEMES["s3"].features
    limits = Limits(huge_files=False, sparse=False, byte_names=False, many_entries=100, other_users=bool(OPTIONS))

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, seaweedfs: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        tmp = tmp_path_factory.mktemp("posix")
        with (
            seaweedfs.bucket() as bucket,
            mounts.mounted(tmp / "mnt", "memory:", routes={"/s3": bucket.url("posix")}, options=OPTIONS) as server,
        ):
            yield server.path / "s3"

    def test_a_name_is_any_bytes(self, d: Path) -> None:
        """Names that no key can hold, or that a service would change, are refused."""
        for case in each(("two\nlines", "back\\slash", "\x01", "\x7f")):
            with case as name:
                with pytest.raises(OSError, match="Invalid or incomplete multibyte"):
                    (d / name).write_text("")
                assert os.listdir(d) == []

    def test_a_tree_of_200_levels(self, d: Path) -> None:
        """A key has 1,024 bytes at most."""
        deep = d
        with pytest.raises(OSError, match="File name too long"):
            while True:
                deep = deep / ("level-" + "x" * 90)
                deep.mkdir()
        assert len(str(deep.relative_to(d.parent))) > 900


# -- everyday programs -----------------------------------------------------------------------------------------

SOURCES = 60


@pytest.fixture(scope="module")
def work(seaweedfs: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Bucket]]:
    """Mount a bucket for all of these."""
    tmp = tmp_path_factory.mktemp("work")
    with (
        seaweedfs.bucket() as bucket,
        mounts.mounted(tmp / "mnt", "memory:", routes={"/s3": bucket.url("work")}) as server,
    ):
        yield server.path / "s3", bucket


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a git repository, on a plain directory."""
    root = tmp_path_factory.mktemp("origin")
    trees.make_repository(root, SOURCES)
    return root


def test_git_clones_commits_and_checks(work: tuple[Path, Bucket], origin: Path) -> None:
    path, bucket = work
    trees.git(path, "clone", "--quiet", "--no-local", origin, "clone")
    clone = path / "clone"
    assert len(trees.git(clone, "ls-files").splitlines()) == SOURCES
    assert trees.git(clone, "status", "--porcelain") == ""
    trees.git(clone, "checkout", "--quiet", "-b", "topic")
    (clone / "new.txt").write_text("new\n")
    trees.git(clone, "add", "--all")
    trees.git(clone, "commit", "--quiet", "--message=topic")
    trees.git(clone, "gc", "--quiet", "--prune=now")
    trees.git(clone, "fsck", "--strict", "--full", "--no-dangling")
    assert trees.git(clone, "status", "--porcelain") == ""
    assert bucket.get("work/clone/new.txt") == b"new\n"


def test_tar_rsync_and_cp_keep_modes_times_and_links(work: tuple[Path, Bucket], tmp_path: Path) -> None:
    path, _ = work
    origin = tmp_path / "origin"
    trees.make_zoo(origin, links=False, symlinks=True, special=False, xattrs=False)
    for odd in [*origin.rglob("*\n*")]:
        odd.rename(odd.with_name(odd.name.replace("\n", " ")))  # no key can hold that
    look = lambda root: trees.snapshot(root, modes=True, times=True, xattrs=False, links=False)  # noqa: E731
    before = look(origin)
    trees.run("tar", "--format=posix", "-cf", tmp_path / "in.tar", "-C", origin, ".")
    (path / "tar").mkdir()
    trees.run("tar", "-xpf", tmp_path / "in.tar", "-C", path / "tar")
    assert look(path / "tar") == before
    command = ["rsync", "-a", "--checksum", "--modify-window=-1", "--delete", "--itemize-changes", f"{origin}/"]
    assert trees.run(*command, path / "rsync")
    assert trees.run(*command, path / "rsync") == ""
    assert look(path / "rsync") == before
    trees.run("cp", "-a", path / "rsync", tmp_path / "back")
    assert look(tmp_path / "back") == before
    trees.run("mv", path / "rsync", path / "moved")
    assert look(path / "moved") == before
    trees.run("rm", "-r", path / "moved", path / "tar")
    assert not (path / "moved").exists()


@pytest.fixture(scope="module")
def server(work: tuple[Path, Bucket]) -> tuple[Path, Kind]:
    return work[0], Kind("s3", SCHEMES["s3"].features)


# -- promises of SEMANTICS -------------------------------------------------------------------------------------


def test_a_killed_server_loses_nothing_that_was_closed_or_synced(bucket: Bucket, serve: Serve) -> None:
    server = serve("memory:", routes={"/s3": bucket.url()})
    (server.path / "s3/d").mkdir()
    (server.path / "s3/d/closed").write_text("closed")
    fd = os.open(server.path / "s3/d/synced", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"synced")
    os.fsync(fd)
    server.kill()
    with pytest.raises(OSError):
        os.close(fd)
    assert (bucket.get("d/closed"), bucket.get("d/synced")) == (b"closed", b"synced")
