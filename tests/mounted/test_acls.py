"""POSIX ACLs with `-o acl`: as on a plain directory, checked by the kernel, in snapshots and branches, and undone."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from eventually import eventually
from kinds import MEMORY
from mounts import Serve

import fusebackend
from fusebackend.base import acl
from fusebackend.testing.posix.case import as_user, refused, umask

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment"),
    pytest.mark.skipif(not shutil.which("setfacl"), reason="the package acl is not installed"),
]

OTHER, GROUP = 65533, 65532

SCRIPT = """
umask 027
mkdir plain given; echo 1 > plain/file; chmod 640 plain/file
setfacl -m u:65533:rw,g:65532:r plain/file
setfacl -d -m u:65533:rwx,g:65532:rx,o:- given
setfacl -m u:65533:rx given
echo 2 > given/file; mkdir -m 750 given/sub; echo 3 > given/sub/deep; mkfifo given/fifo; ln -s file given/link
install -m 600 /dev/null given/private
chmod 700 given/sub
cp -a given copied; cp given/file plain/unlike; mv plain/unlike plain/moved
rsync -rlptgoDA given/ synced
setfacl -m m::r given/file
echo 4 > minimal; setfacl -m u:65533:r minimal; setfacl -b minimal
mkdir bare; setfacl -d -m u:65533:r bare; setfacl -k bare; echo 5 > bare/file
mkdir setgid; chgrp 65532 setgid; chmod 2770 setgid; setfacl -m u:65533:rwx setgid; echo 6 > setgid/file
"""


def shown(directory: Path) -> str:
    """What getfacl and ls say of everything in a directory."""
    acls, modes = "find . ! -type l | sort | xargs getfacl -np", "find . -printf '%p %M %U %G\\n' | sort"
    command = f"{acls} ; {modes} ; ls -lR | grep '^[-dlp]' | cut -c 1-11"
    found = subprocess.run(["sh", "-c", command], cwd=directory, capture_output=True, text=True, check=True)
    return found.stdout


def run(directory: Path) -> str:
    subprocess.run(["sh", "-euc", SCRIPT], cwd=directory, check=True)
    return shown(directory)


def may(path: Path, flags: int, user: int = OTHER, group: int = OTHER) -> bool:
    """Return whether a process of that user, in that group, can open the file."""
    try:
        as_user(Path("/"), lambda: os.close(os.open(path, flags)), user, (group,))
    except PermissionError:
        return False
    return True


def allow(path: Path, *entries: str) -> None:
    subprocess.run(["setfacl", *entries, path], check=True)


OPTIONS = ["acl,allow_other"]
VIEW = '[views.v]\nrules = [{ operations = ["read"], paths = ["/closed", "/drop"], mode = "deny" }]\n'

BACKENDS = [
    "sqlite:{tmp}/volume.db",
    MEMORY,
    "dir:{tmp}/disk",
    pytest.param("postgres:{dsn}?volume=v", marks=pytest.mark.services),
]


def reachable(directory: Path) -> Path:
    """Let other users pass to a directory of a test."""
    directory.chmod(0o755)
    for above in directory.parents:
        if not above.stat().st_mode & 0o001 and os.access(above, os.W_OK):
            above.chmod(above.stat().st_mode | 0o011)
    return directory


@pytest.fixture(scope="module", params=BACKENDS, ids=["sqlite", "memory", "dir", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[mounts.Mounted]:
    tmp = reachable(tmp_path_factory.mktemp("acls"))
    (tmp / "disk").mkdir()
    (tmp / "views.toml").write_text(VIEW)
    routes, config = {"/other": "state:other", "/there": "memory:"}, tmp / "views.toml"
    with contextlib.ExitStack() as stack:
        dsn = ""
        if "{dsn}" in request.param:
            dsn = stack.enter_context(request.getfixturevalue("postgres").database())
        url = request.param.format(tmp=tmp, dsn=dsn)
        yield stack.enter_context(mounts.mounted(tmp / "mnt", url, routes=routes, options=OPTIONS, config=config))


@pytest.fixture
def server(shared: mounts.Mounted) -> Iterator[mounts.Mounted]:
    yield shared
    with fusebackend.connect(shared.path, view="") as files:
        files.delete_branches(*(each.name for each in files.branches()))
    mounts.empty(shared.path, "other", "there")


def test_acls_are_as_on_a_plain_directory(server: mounts.Mounted, tmp_path: Path) -> None:
    plain, here = tmp_path / "plain", server.path / "here"
    plain.mkdir()
    here.mkdir()
    assert run(here) == run(plain)
    mounts.drop_caches(2)
    assert shown(here) == shown(plain), "what the kernel asks for again"


def test_the_kernel_checks_them(server: mounts.Mounted) -> None:
    file = server.path / "file"
    file.write_text("x")
    file.chmod(0o600)
    assert not may(file, os.O_RDONLY)
    allow(file, "-m", f"u:{OTHER}:r")
    assert may(file, os.O_RDONLY) and not may(file, os.O_RDWR) and not may(file, os.O_RDONLY, user=OTHER + 5)
    assert not may(file, os.O_RDONLY, user=OTHER + 5, group=GROUP)
    allow(file, "-m", f"g:{GROUP}:rw")
    assert may(file, os.O_RDWR, user=OTHER + 5, group=GROUP)
    file.chmod(0o600)  # the mask
    assert not may(file, os.O_RDONLY)
    file.chmod(0o660)
    assert may(file, os.O_RDONLY)
    allow(file, "-b")
    file.chmod(0o644)
    allow(file, "-m", f"u:{OTHER}:-")
    assert not may(file, os.O_RDONLY) and may(file, os.O_RDONLY, user=OTHER + 5)


def test_other_routes_refuse_them_and_work(server: mounts.Mounted) -> None:
    refused_but_working(server.path / "other")
    with umask(0o027):
        (server.path / "new").touch(mode=0o666)
    assert (server.path / "new").stat().st_mode & 0o777 == 0o640


def refused_but_working(path: Path) -> None:
    file = path / "file"
    file.write_text("x")
    file.chmod(0o640)
    assert not may(file, os.O_RDONLY) and may(file, os.O_RDONLY, group=0)
    refused(errno.ENOTSUP, os.setxattr, file, os.fsdecode(acl.ACCESS), acl.inherited(_default(), 0o660)[0] or b"")
    with umask(0o027):
        (path / "new").touch(mode=0o666)
        (path / "directory").mkdir()
    assert (path / "new").stat().st_mode & 0o777 == 0o640
    assert (path / "directory").stat().st_mode & 0o777 == 0o750


def _default() -> bytes:
    """`user::rwx,user:65533:rwx,group::r-x,mask::rwx,other::---`"""
    entries = [(1, 7, 0xFFFFFFFF), (2, 7, OTHER), (4, 5, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)]
    return acl._packed(entries)


def test_another_host_inherits_and_checks_them(postgres_dsn: str, tmp_path: Path, serve: Serve) -> None:
    """Also where it knew of files and directories that they had none."""
    reachable(tmp_path)
    here, there = (serve(f"postgres:{postgres_dsn}?volume=v", options=OPTIONS).path for _ in range(2))
    (here / "directory").mkdir()
    for name in ("first", "second"):
        (there / "directory" / name).write_text("x")
        (there / "directory" / name).chmod(0o640)
    assert not may(there / "directory/first", os.O_RDONLY)
    allow(here / "directory", "-d", "-m", f"u:{OTHER}:rw")
    allow(here / "directory/first", "-m", f"u:{OTHER}:rw")
    (there / "directory/first").chmod(0o640)  # its mask, at once
    eventually(lambda: may(there / "directory/first", os.O_RDONLY), 20)
    assert not may(there / "directory/first", os.O_RDWR)
    eventually(lambda: "#effective:r--" in shown(here / "directory"), 20)  # the mask is that of chmod
    eventually(lambda: f"default:user:{OTHER}:rw" in shown(there / "directory"), 20)
    (there / "directory" / "third").write_text("x")
    (there / "directory" / "inner").mkdir()
    assert may(there / "directory/third", os.O_RDWR) and not may(there / "directory/second", os.O_RDONLY)
    eventually(lambda: shown(here / "directory") == shown(there / "directory"), 20)
    assert may(here / "directory/third", os.O_RDWR)


def test_those_of_a_directory_are_those_of_the_disk(tmp_path: Path, serve: Serve) -> None:
    disk = tmp_path / "disk"
    (reachable(tmp_path) / "disk").mkdir()
    file = disk / "file"
    file.write_text("x")
    file.chmod(0o600)
    allow(file, "-m", f"u:{OTHER}:r")
    path = serve(f"dir:{disk}", options=[*OPTIONS, "ttl=50 ms"]).path
    assert may(path / "file", os.O_RDONLY) and not may(path / "file", os.O_RDWR)
    assert not may(path / "file", os.O_RDONLY, user=OTHER + 5, group=0), "the group has less than its mask"
    allow(path / "file", "-m", f"u:{OTHER}:rw")
    assert may(file, os.O_RDWR) and shown(path) == shown(disk)
    allow(file, "-b")
    eventually(lambda: not may(path / "file", os.O_RDWR), 20)


@pytest.fixture
def ramfs(tmp_path: Path) -> Iterator[Path]:
    """A file system without ACLs. Request it before `serve`, which must end first."""
    disk = reachable(tmp_path) / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "-o", "mode=755", "none", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_disk_without_them_refuses_them_and_works(ramfs: Path, serve: Serve) -> None:
    refused_but_working(serve(f"dir:{ramfs}", options=OPTIONS).path)


def test_snapshots_and_branches_have_them_and_undo_brings_them_back(server: mounts.Mounted) -> None:
    path = server.path
    with fusebackend.connect(path) as mount:
        directory = path / "given"
        directory.mkdir()
        allow(directory, "-d", "-m", f"u:{OTHER}:rwx")
        (directory / "file").write_text("x")
        before = shown(directory)
        assert f"user:{OTHER}:rwx" in before
        keeps_snapshots = mount.status()["routes"][0]["url"].partition(":")[0] != "dir"
        if keeps_snapshots:
            mount.create_snapshot("s")
        mount.create_branch("b")
        call = mount.begin_call("take the entries away")
        allow(directory / "file", "-b")
        allow(directory, "-k")
        taken = mount.end_call(call)
        assert shown(directory) != before
        assert taken is not None
        branch = path / ".fusebackend/branches/b/given"
        if keeps_snapshots:
            assert shown(path / ".fusebackend/snapshots/s/given") == before
        else:
            mount.undo(taken)  # the branch shows the directory as it is
        assert shown(branch) == before
        (branch / "file").write_text("copied up")
        (branch / "new").write_text("inherits")
        assert f"user:{OTHER}:rwx" in shown(branch)

        if keeps_snapshots:
            mount.undo(taken)
        assert shown(directory) == before


def test_a_move_into_another_route_keeps_them_and_gives_no_others(server: mounts.Mounted) -> None:
    """The default ACLs of a directory that is moved, and of the one it is moved to, are not those of files in it."""
    directory, there = server.path / "moved", server.path / "there/into"
    script = """
    umask 0; mkdir moved there/into moved/own; echo 1 > moved/private; echo 2 > moved/shared; chmod 660 moved/*
    setfacl -m u:65533:r moved/shared; setfacl -d -m u:65533:rwx moved; setfacl -d -m g:65532:rwx there/into
    """
    subprocess.run(["sh", "-euc", script], cwd=server.path, check=True)
    before = shown(directory)
    with fusebackend.connect(server.path) as files:
        assert files.move("/moved", "/there/into/moved").error is None
        assert shown(there / "moved") == before
        assert files.move("/there/into/moved", "/back").error is None
    assert shown(server.path / "back") == before
    assert not may(server.path / "back/private", os.O_RDONLY)


def test_a_view_masks_them_as_it_does_modes(server: mounts.Mounted) -> None:
    """A directory that may not be read can be searched, and a file that may not be read can be written."""
    closed, drop = server.path / "closed", server.path / "drop"
    closed.mkdir()
    (closed / "file").write_text("x")
    (closed / "file").chmod(0o644)
    drop.write_text("x")
    drop.chmod(0o600)
    closed.chmod(0o700)
    for path, entry in ((closed, "rwx"), (drop, "rw")):
        allow(path, "-m", f"u:{OTHER}:{entry}")
        assert may(path, os.O_RDONLY)
    view = server.path / ".fusebackend/views/v"
    assert may(view / "closed/file", os.O_RDONLY)
    assert not may(view / "closed", os.O_RDONLY)
    assert may(view / "drop", os.O_WRONLY)
    assert not may(view / "drop", os.O_RDONLY)
    assert not may(view / "closed/file", os.O_RDONLY, user=OTHER + 5)
