"""What programs did to files of a mount, taken back: as it was, and with the caches of the kernel right."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mounts
import pytest
import warm
from eventually import eventually
from kinds import MEMORY, NATIVE_BY_DAY
from mounts import Mounted, Serve
from programs import command, ok, python, session
from services.s3 import Bucket
from trees import snapshot

import fusebackend
from fusebackend.backends.sqlite.check import check
from fusebackend.protocol import UndoResult
from fusebackend.testing.each import each

KINDS = {"sqlite": "sqlite:{tmp}/volume.db", "memory": "memory:", "dir": "dir:{tmp}/live"}

SCENE = r"""
mkdir -p repo/sub/deep
head -c 300000 /dev/urandom > repo/bytes
printf 'one\ntwo\nthree\n' > repo/sub/text
touch -d 2001-02-03T04:05:06.789 repo/sub/text
chmod 4750 repo/bytes
ln repo/bytes repo/sub/deep/other-name
ln -s sub/text repo/link
mkfifo repo/fifo
truncate -s 5M repo/sparse; printf x | dd of=repo/sparse bs=1 seek=3000000 conv=notrunc status=none
: > repo/empty
printf '#!/bin/sh\necho run\n' > repo/run; chmod 755 repo/run; touch -d 2011-01-01 repo/run
for n in $(seq 30); do echo "file $n" > repo/sub/deep/$n; done
python3 -c 'import os; os.setxattr("repo/run", "user.colour", b"red")'
git init -q -b main git && cd git
git config user.name t; git config user.email t@t; git config maintenance.auto false
mkdir a c; for n in 1 2 3 4; do seq $n 200 > a/f$n; echo $n > c/g$n; done; ln c/g1 c/hard
git add -A; git commit -qm one
"""

tree = partial(snapshot, directory_times=False)

HARM = {
    "rm": "rm -rf repo",
    "write": "sed -i s/two/TWO/ repo/sub/text; echo more >> repo/bytes; chmod 600 repo/run; : > repo/run",
    "move": "mv repo/sub repo/moved; rm repo/moved/text; mkdir repo/sub; echo new > repo/sub/text; "
    "mv repo/run repo/empty",
    "attributes": 'truncate -s 100 repo/sparse; python3 -c \'import os; os.removexattr("repo/run", "user.colour")\'',
    "kinds": "rm repo/link repo/fifo; ln -s elsewhere repo/link; mkdir repo/fifo; touch repo/fifo/in-it",
    "git": "cd git && git checkout -q -b two && git rm -qr c && echo new > a/f1 && git add -A && "
    "git commit -qm two && git checkout -q main && git merge -q two && git clean -qfdx",
    "shell": "cd git; : > a/f1; echo more >> a/f2; mv a/f3 a/f4; mv a moved; ln -f c/g3 c/g4; rm c/hard; mv -T c d; "
    "mkdir c; cp d/g2 c/g2; rm c/g2; truncate -s 5 d/g3; perl -pi -e s/1/2/ d/g1; chmod -R go-rwx d; touch -d @5 d/g1",
    "python": "python3 -c \"import mmap,os;f=open('git/a/f1','r+b');m=mmap.mmap(f.fileno(),0);m[0:1]=b'9';m.flush();"
    "os.replace('git/a/f2','git/a/f1');os.setxattr('git/a/f3','user.a',b'1')\"",
    "tar": "tar -C repo -cf all.tar . && rm -rf repo/* && tar -C repo -xf all.tar && rm all.tar; touch repo/*",
}


@pytest.fixture(params=NATIVE_BY_DAY)
def mounted(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "live").mkdir()
    return serve(KINDS[request.param].format(tmp=tmp_path))


def undo(path: Path, *calls: str, **options: Any) -> UndoResult:
    with fusebackend.connect(path) as files:
        return files.undo(*calls, **options)


def test_everything_is_as_it_was(mounted: Mounted) -> None:
    """And as it was after, when that is taken back; the next case begins where this one did."""
    path = mounted.path
    session(SCENE, path)
    before = tree(path)
    for case in each(HARM):
        with case as harm:
            assert tree(path) == before, "an earlier case has left something"
            session(harm, path)
            after = tree(path)
            assert after != before
            with fusebackend.connect(path) as files:
                assert files.log(limit=1)[0].kind == "session" and files.status()["history"]["incomplete"] is None
            undone = undo(path)
            assert undone.conflicts == [] and undone.partly == []
            assert tree(path) == before
            assert (path / "repo/bytes").stat().st_ino == (path / "repo/sub/deep/other-name").stat().st_ino
            redone = undo(path, undone.undo or "")
            assert redone.conflicts == []
            assert tree(path) == after
            assert undo(path, redone.undo or "").conflicts == []


def test_a_process_that_has_a_file_open_reads_the_old_bytes(mounted: Mounted) -> None:
    path = mounted.path / "file"
    session("echo before > file", mounted.path)
    with open(path) as reader:
        session("echo after, and longer > file", mounted.path)
        assert reader.read() == "after, and longer\n"
        undo(mounted.path)
        reader.seek(0)
        assert reader.read() == "before\n"


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    """A file system on which files can share blocks."""
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        pytest.skip("needs root and mkfs.xfs (Debian: xfsprogs)")
    at, disk = tmp_path / "xfs", tmp_path / "disk"
    at.mkdir()
    with disk.open("wb") as file:
        file.truncate(2 << 30)
    subprocess.run(["mkfs.xfs", "-q", disk], check=True)
    subprocess.run(["mount", "-o", "loop", disk, at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


@pytest.mark.night
def test_a_large_file_comes_back_where_blocks_can_be_shared(
    xfs: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop device, which not every container gives: marked `night`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(xfs / "state"))
    live = xfs / "live"
    live.mkdir()
    content = os.urandom(70 << 20)
    (live / "large").write_bytes(content)
    mounted = serve("memory:", routes={"/live": f"dir:{live}"})
    session("echo more >> live/large", mounted.path)
    session("rm live/large; echo other > live/large", mounted.path)
    for _ in range(2):
        undone = undo(mounted.path)
        assert (undone.conflicts, undone.partly) == ([], [])
    assert (live / "large").read_bytes() == content
    with fusebackend.connect(mounted.path) as files:
        assert files.verify_log().problems == []


# --------------------------------------------------------------------------------------------------------------
# `examples/undo_everything.py`, also with the store in PostgreSQL and the artifacts in a bucket
# --------------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
LIMIT_S = 180

MOST_S = 5.0
"""In which four calls over four kinds of storage are to be taken back."""


FORKED = """
import runpy, sys
_, sys.executable, *sys.argv = sys.argv
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program whose thirty commands are forked, too."""


def demonstrated(tmp_path: Path, *words: str) -> str:
    (tmp_path / "mount").mkdir()
    warm.command(tmp_path / "python", mounts.module_environment())
    program = ROOT / "examples/undo_everything.py"
    done = python(FORKED, tmp_path / "python", program, tmp_path / "mount", tmp_path / "kept", *words, limit_s=LIMIT_S)
    assert done.returncode == 0, done
    return done.stdout


def check_demonstrated(output: str) -> None:
    assert [line.split()[2] for line in output.splitlines() if re.match(r"c\d+ ", line)] == ["cleaner"] * 4
    assert "Bash: rm -rf repo/*" in output
    assert "12 files changed, 12 deletions(-)" in output
    found = re.search(r"^4 calls taken back in ([\d.]+) s; (\d+) files of the colleague", output, re.MULTILINE)
    assert found is not None, output
    assert float(found[1]) < MOST_S
    assert int(found[2]) > 10
    merges = [line for line in output.splitlines() if line.startswith("$ fusebackend branch merge")]
    assert [line.split()[4] for line in merges] == ["port", "tidy", "rival"]


@pytest.mark.night
def test_in_files(tmp_path: Path) -> None:
    """The one below has other routes, and all else is the same."""
    check_demonstrated(demonstrated(tmp_path))


@pytest.mark.services
def test_in_a_bucket_and_in_postgresql(tmp_path: Path, bucket: Bucket, postgres_dsn: str) -> None:
    routes = "--artifacts", bucket.url("artifacts"), "--memories", f"store+postgres:{postgres_dsn}?ns=memories"
    check_demonstrated(demonstrated(tmp_path, *routes))


# --------------------------------------------------------------------------------------------------------------
# `diff` and `restore` with real programs
# --------------------------------------------------------------------------------------------------------------

KEPT = [MEMORY, "sqlite:{tmp}/volume.db"]


@pytest.fixture(params=KEPT)
def kept_mount(serve: Serve, request: pytest.FixtureRequest, tmp_path: Path) -> Mounted:
    (tmp_path / "live").mkdir()
    (tmp_path / "live/file").write_text("1")
    routes = {"/notes": "memory:", "/way/live": f"dir:{tmp_path}/live"}
    return serve(str(request.param).format(tmp=tmp_path), routes=routes, options=["snapshots=manual"])


def take(kept_mount: Mounted, name: str) -> Path:
    with fusebackend.connect(str(kept_mount.path)) as files:
        files.create_snapshot(name)
    return kept_mount.path / ".fusebackend/snapshots" / name


def test_files_that_are_open_for_writing(kept_mount: Mounted) -> None:
    path = kept_mount.path
    (path / "log").write_text("old\n")
    (path / "other").write_text("old\n")
    take(kept_mount, "before")
    (path / "other").write_text("new\n")
    with (path / "log").open("a") as log, (path / "other").open():
        log.write("new\n")
        log.flush()
        done = command("restore", ".", "--from", "before", cwd=path)
        assert (done.returncode, done.stdout) == (1, "")
        error = done.stderr
        assert "Error: '/log' is open for writing" in error
        assert re.search(rf"process {os.getpid()} \(.+\) has '/log' open as fd ", error)
        assert "'/other'" not in error
        assert (path / "other").read_text() == "new\n"
        ok("restore", ".", "--from", "before", "--force", cwd=path)
        log.write("after\n")
    assert (path / "log").read_text() == "old\n"


# --------------------------------------------------------------------------------------------------------------
# `fusebackend forget`: after it, no file that the server keeps has a byte of the secret
# --------------------------------------------------------------------------------------------------------------

SECRET = b"hunter2-correct-horse"


@pytest.fixture
def forgetting(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounted]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "plain").mkdir()
    routes = {"/plain": f"dir:{tmp_path}/plain", "/memory": "memory:"}
    yield serve(f"sqlite:{tmp_path}/volume.db", routes=routes, options=["snapshots=auto", "history=on"])


def put(path: Path, data: bytes) -> None:
    """Write a file, in a session of its own: another call."""
    subprocess.run(["tee", path], input=data, stdout=subprocess.DEVNULL, check=True, start_new_session=True)


def holding(directory: Path, secret: bytes = SECRET) -> list[str]:
    """The files below a directory that have a secret in them."""
    device = directory.stat().st_dev  # leaves out the mount
    kept = (Path(place, name) for place, _, names in os.walk(directory) for name in names)
    return sorted(path.name for path in kept if path.lstat().st_dev == device and secret in path.read_bytes())


def test_no_byte_of_it_is_left(forgetting: Mounted, tmp_path: Path) -> None:
    root = forgetting.path
    with fusebackend.connect(root) as files:
        for place in (root, root / "plain", root / "memory"):
            put(place / "kept", b"of no interest " * 9)
            put(place / "secret", SECRET * 10)
            os.setxattr(place / "secret", "user.note", SECRET) if place != root / "memory" else None
            put(place / "secret", SECRET * 8000)
        put(root / "plain/gone", b"of no interest")
        files.create_snapshot("named")
        files.create_branch("work")
        branch = root / ".fusebackend/branches/work"
        os.setxattr(branch / "plain/gone", "user.note", SECRET)
        for name in ("secret", "plain/secret"):
            put(branch / name, b"mine: " + SECRET)
        put(branch / "kept", b"changed in the branch")
        (branch / "own").write_bytes(SECRET)
        os.removexattr(root / "secret", "user.note")
        os.removexattr(root / "plain/secret", "user.note")
        put(root / "secret", b"***")
        put(root / "plain/secret", b"***")
        os.sync()
        (root / "memory/secret").unlink()
        (root / "plain/gone").unlink()  # the branch has attributes of its own, and the live file's bytes
        files.create_snapshot("later")
        calls = [each.call for each in files.log()]
        eventually(lambda: {"volume.db", "work.db"} <= {name.removesuffix("-wal") for name in holding(tmp_path)})

        paths = [root / name for name in ("secret", "plain/secret", "memory/secret", "plain/gone")]
        (branch / "own").unlink()  # no path leads to its bytes any more
        held = os.open(branch / "plain/secret", os.O_RDONLY)  # the branch has its row as long
        aside = next(tmp_path.glob("state/fusebackend/*.history")) / "history.db.set-aside"
        aside.write_bytes(SECRET)
        assert "add --yes" in command("forget", *paths, cwd=root).stderr
        would = json.loads(ok("forget", "-n", "--json", *paths, cwd=root))
        assert would["branches"] == ["work"]
        assert {"named", "later"} <= set(would["snapshots"])
        assert would["images"] > 0
        done = command("forget", "--yes", *paths, cwd=root)
        assert done.returncode == 0, done
        assert "not reached: free blocks" in done.stderr
        assert "/secret' is there, and stays as it is" in done.stderr
        assert f"not reached: '{aside}', a history that can't be read; delete it" in done.stderr
        assert holding(tmp_path) == [aside.name]
        os.close(held)
        assert (root / "secret").read_bytes() == b"***"
        assert (root / "kept").read_bytes() == (root / ".fusebackend/snapshots/named/kept").read_bytes()
        for place in ("snapshots/named/secret", "snapshots/named/memory/secret", "branches/work/secret"):
            assert not (root / ".fusebackend" / place).exists()
        assert (branch / "kept").read_bytes() == b"changed in the branch"
        assert [each.call for each in files.log()] == calls
        assert "were forgotten" in command("undo", files.log(paths=["/secret"])[0].call, "-n", cwd=root).stderr
        assert "is not in 'named'" in command("restore", "secret", "--from", "named", cwd=root).stderr
        assert check(tmp_path / "volume.db") == []
        put(root / "secret", b"goes on")
        assert files.grep("goes on", "/").matches
    done = command("forget", "/tmp", cwd=root)
    assert done.returncode != 0
    assert "Error: '/tmp' lies in no mount" in done.stderr
    assert "Traceback" not in done.stderr
    done = command("forget", "--yes", "gone", cwd=root)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1, "Error: no file, snapshot, branch or call has 'gone': is that how it was written?",
    )  # fmt: skip
    (root / "directory").mkdir()
    (root / "directory/file").write_text("x")
    within = command("forget", "--yes", "directory", "directory/file", cwd=root)
    assert within.returncode == 0, within.stderr
