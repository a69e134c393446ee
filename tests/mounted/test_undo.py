"""What programs did to files of a mount, taken back: as it was, and with the caches of the kernel right."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mounts import Mounted, Serve
from programs import session
from trees import snapshot

import fusebackend
from fusebackend.protocol import UndoResult

pytestmark = pytest.mark.mounted


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
git config user.name t; git config user.email t@t; git config gc.auto 0
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


@pytest.fixture(params=list(KINDS))
def mounted(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "live").mkdir()
    return serve(KINDS[request.param].format(tmp=tmp_path))


def undo(path: Path, *calls: str, **options: Any) -> UndoResult:
    with fusebackend.connect(path) as files:
        return files.undo(*calls, **options)


@pytest.mark.parametrize("harm", HARM)
def test_everything_is_as_it_was(mounted: Mounted, harm: str) -> None:
    session(SCENE, mounted.path)
    before = tree(mounted.path)
    session(HARM[harm], mounted.path)
    after = tree(mounted.path)
    assert after != before
    with fusebackend.connect(mounted.path) as files:
        assert files.log(limit=1)[0].kind == "session" and files.status()["history"]["incomplete"] is None
    undone = undo(mounted.path)
    assert undone.conflicts == [] and undone.partly == []
    assert tree(mounted.path) == before
    assert (mounted.path / "repo/bytes").stat().st_ino == (mounted.path / "repo/sub/deep/other-name").stat().st_ino
    redone = undo(mounted.path, undone.undo or "")
    assert redone.conflicts == []
    assert tree(mounted.path) == after


def test_a_process_that_has_a_file_open_reads_the_old_bytes(mounted: Mounted) -> None:
    path = mounted.path / "file"
    session("echo before > file", mounted.path)
    with open(path) as reader:
        session("echo after, and longer > file", mounted.path)
        assert reader.read() == "after, and longer\n"
        undo(mounted.path)
        reader.seek(0)
        assert reader.read() == "before\n"


@contextlib.contextmanager
def at_work(directory: Path) -> Iterator[dict[str, str]]:
    """Have another program write files in a directory meanwhile; yields what it has written."""
    written: dict[str, str] = {}
    ending = threading.Event()

    def work() -> None:
        number = 0
        while not ending.is_set():
            directory.mkdir(parents=True, exist_ok=True)
            name = f"theirs{number % 50}"
            (directory / name).write_text(f"written {number}\n")
            written[name] = f"written {number}\n"
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield written
    finally:
        ending.set()
        thread.join()


def test_another_program_goes_on_in_the_same_directory(mounted: Mounted) -> None:
    session("mkdir repo; for n in $(seq 200); do echo $n > repo/$n; done", mounted.path)
    before = tree(mounted.path)
    with at_work(mounted.path / "repo") as written:
        session("rm repo/[0-9]*", mounted.path)
        with fusebackend.connect(mounted.path) as files:
            call = next(
                each.call for each in files.log() if each.title.startswith(("bash", "rm")) and each.changes == 200
            )
        undone = undo(mounted.path, call)
        time.sleep(0.1)
    assert undone.conflicts == []
    after = tree(mounted.path)
    assert {name: found for name, found in after.items() if b"theirs" not in name} == before
    assert len(written) > 5
    assert all((mounted.path / "repo" / name).read_text() == text for name, text in written.items())


@pytest.mark.parametrize("kind", ["sqlite", "dir"])
@pytest.mark.parametrize("after_s", [0.01, 0.05, 0.15, 0.4])
def test_a_killed_server_finishes_the_undo_with_the_same_command(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, after_s: float
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "live").mkdir()
    url = KINDS[kind].format(tmp=tmp_path)
    mounted = serve(url, at="mnt")
    session("mkdir repo; for n in $(seq 500); do echo $n > repo/$n; done; ln repo/1 repo/one", mounted.path)
    before = tree(mounted.path)
    session("rm -rf repo; sync .", mounted.path)
    with fusebackend.connect(mounted.path) as files:
        call = files.log()[0].call

    def undoing() -> None:
        with contextlib.suppress(Exception):  # the server ends meanwhile
            undo(mounted.path, call)

    thread = threading.Thread(target=undoing)
    thread.start()
    time.sleep(after_s)
    mounted.kill()
    thread.join()
    again = serve(url, at="mnt")
    with fusebackend.connect(again.path) as files:
        if files.log(calls=(call,))[0].undone_by is None:
            assert files.undo(call).conflicts == []
    assert tree(again.path) == before


def test_changes_that_a_kill_has_prevented_stand_in_no_way(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mounted = serve(f"sqlite:{tmp_path}/volume.db", at="mnt")
    session("echo 1 > file; mkdir d; sync .", mounted.path)
    for each in tmp_path.glob("volume.db*"):
        shutil.copy(each, tmp_path / f"kept-{each.name}")
    with fusebackend.connect(mounted.path) as files:
        files.write("/d/new", "one\n")
        files.edit("/d/new", "one", "two")
        calls = [each.call for each in files.log(limit=2)]
    mounted.kill()
    for each in tmp_path.glob("volume.db*"):  # as if nothing of it had been stored yet
        each.unlink()
    for each in tmp_path.glob("kept-*"):
        each.rename(tmp_path / each.name.removeprefix("kept-"))
    again = serve(f"sqlite:{tmp_path}/volume.db", at="mnt")
    with fusebackend.connect(again.path) as files:
        assert not {each.call for each in files.log()} & set(calls)
        assert files.undo().conflicts == []
        assert files.verify_log().problems == []
    assert tree(again.path) == {}


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
