"""Branches of a mount, with real programs, the verbs, the command, and a server that is killed."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
import trees
from mounts import Mounted
from profiles import amount
from programs import command, sh

import fusebackend
from fusebackend.control.client.client import Client

pytestmark = pytest.mark.mounted

KINDS = ["memory:", "sqlite:{tmp}/volume.db", "dir:{tmp}/files"]
"""URLs of volumes below a branch, `{tmp}` is a directory: frozen ones, and one that is live."""

MANUAL = ["snapshots=manual"]
STEPS = amount("FUSEBACKEND_BRANCH_STEPS", day=60, night=1000)

SCENE = r"""
umask 022
mkdir -p src/deep/er docs empty
echo one > src/one; echo two > src/deep/two; printf 'no newline' > docs/plain
head -c 300000 /dev/urandom > src/large
truncate -s 3M src/sparse; printf end >> src/sparse
ln src/one docs/linked; ln -s ../src/one docs/link; ln -s /nowhere docs/dangling
mkfifo docs/fifo; chmod 4755 src/deep/two; chmod 1777 empty; chmod 600 docs/plain
setfattr -n user.tag -v value src/one; setfattr -n user.dir -v yes src/deep
touch -d '2001-02-03 04:05:06.789' src/deep/two; touch -h -d '1999-01-01' docs/link
printf x > "$(printf 'odd \n\377 name')"
mkdir tracked; cd tracked; git init -q .; echo a > a; git add a; git -c user.name=n -c user.email=e commit -qm one
"""

STEPS_OF_PEOPLE = [
    "rm -rf src/deep",
    "mkdir -p src/deep/er/new; echo new > src/deep/er/new/file",
    "echo $STEP > $STEP.tmp",
    "sed -i s/one/uno/ src/one || true",
    "echo more >> docs/linked",
    "yes $STEP | head -c 100000 | dd of=src/large bs=64k seek=1 conv=notrunc status=none",
    "truncate -s 100 src/large; truncate -s 1M src/sparse",
    "chmod 700 src; chmod 755 src",
    "setfattr -n user.tag -v other src/one; setfattr -x user.dir src/deep 2>/dev/null || true",
    "mv docs docs2; mv docs2 docs; ln -sf elsewhere docs/link",
    "cp -a src src2; mv src2/* docs/ 2>/dev/null || true; rm -rf src2",
    "mv src/one src/renamed; ln src/renamed src/one",
    "cd tracked; echo $STEP > a; git add a; git -c user.name=n -c user.email=e commit -qm more",
    "cd tracked; git -c gc.auto=0 gc -q; git checkout -q .; git clean -fdxq",
    "ls -lR . > /dev/null; cat src/one > /dev/null || true",
]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "files").mkdir()
    return str(request.param).format(tmp=tmp_path)


@pytest.fixture(scope="module", params=KINDS)
def mounted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    tmp = tmp_path_factory.mktemp("branches")
    (tmp / "files").mkdir()
    limit_s = mounts.LIFE_LIMIT_S + STEPS
    url, routes = request.param.format(tmp=tmp), {"/notes": "memory:"}
    with mounts.mounted(tmp / "mnt", url, routes=routes, options=MANUAL, limit_s=limit_s) as server:
        yield server


@pytest.fixture
def files(mounted: Mounted) -> Iterator[Client]:
    with fusebackend.connect(mounted.path) as made:
        yield made
        made.delete_branches(*(each.name for each in made.branches()))
    mounts.empty(mounted.path, "notes")


def tree(mounted: Mounted, name: str) -> Path:
    return mounted.path / ".fusebackend/branches" / name


class TestRealWork:
    def test_the_same_steps_as_on_a_copy(self, mounted: Mounted, files: Client, tmp_path: Path) -> None:
        sh(SCENE, mounted.path)
        (mounted.path / "notes/note").write_text("note")
        files.create_branch("work")
        copy, branch = tmp_path / "copy", tree(mounted, "work")
        sh(f"cp -a '{branch}' '{copy}'", tmp_path)
        before = trees.snapshot(mounted.path)
        source = random.Random(7)
        for step in range(STEPS):
            script = f"umask 022; {{ {source.choice(STEPS_OF_PEOPLE)}; }} 2>/dev/null || true"
            when = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}
            for place in (branch, copy):
                sh(script, place, STEP=str(step), **when)
        sh(f"diff -r --no-dereference -x fifo -x .git '{branch}' '{copy}'", tmp_path)
        assert sh("git log --format=%H; git status --short; git fsck", branch / "tracked") == sh(
            "git log --format=%H; git status --short; git fsck", copy / "tracked"
        )
        ours, theirs = (_but_git(trees.snapshot(place, times=False)) for place in (branch, copy))
        assert ours == theirs
        assert trees.snapshot(mounted.path) == before, "the branch has changed the mount"

    def test_tar_rsync_and_sqlite(self, mounted: Mounted, files: Client, tmp_path: Path) -> None:
        sh(SCENE, mounted.path)
        database = sqlite3.connect(mounted.path / "data.db")
        database.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1);")
        database.close()
        files.create_branch("work")
        branch = tree(mounted, "work")
        sh("tar cf - src docs | (mkdir ../work/t && cd ../work/t && tar xf -)", branch)
        sh("diff -r --no-dereference -x fifo src t/src; diff -r --no-dereference -x fifo docs t/docs", branch)
        if shutil.which("rsync"):
            sh("mkdir r; rsync -aHX src docs r/; rsync -aHXn --checksum --delete -i src docs r/", branch)
            assert sh("rsync -aHXn --checksum -i src docs r/", branch) == ""
        database = sqlite3.connect(branch / "data.db")
        for number in range(50):
            with database:
                database.execute("INSERT INTO t VALUES (?)", (number,))
        assert database.execute("SELECT count(*) FROM t").fetchone() == (51,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()
        database = sqlite3.connect(mounted.path / "data.db")
        assert database.execute("SELECT count(*) FROM t").fetchone() == (1,)
        database.close()


def _but_git(found: dict[bytes, trees.Entry]) -> dict[bytes, trees.Entry]:
    """Leave out what git makes, in which there are times."""
    return {path: entry for path, entry in found.items() if b".git/" not in path}


class TestLife:
    def test_it_outlives_the_server(self, tmp_path: Path) -> None:
        (tmp_path / "files").mkdir()
        url, routes = f"sqlite:{tmp_path}/volume.db", {"/live": f"dir:{tmp_path}/files"}
        with mounts.mounted(tmp_path / "mnt", url, routes=routes, options=MANUAL) as first:
            sh(SCENE + "cd ..; echo live > live/file", first.path)
            with fusebackend.connect(first.path) as files:
                files.create_branch("work")
            branch = tree(first, "work")
            steps = "rm -rf src/deep; mv docs papers; echo more >> live/file; echo new > live/new; chmod 600 src/one"
            sh(steps, branch)
            before, numbers = trees.snapshot(branch), _numbers(branch)
        with mounts.mounted(tmp_path / "mnt", url, routes=routes, options=MANUAL) as second:
            assert trees.snapshot(branch) == before
            assert _numbers(branch) == numbers
            assert (second.path / "live/file").read_text() == "live\n"

    def test_a_killed_server_loses_nothing_that_was_synced(self, tmp_path: Path) -> None:
        url = f"sqlite:{tmp_path}/volume.db"
        first = mounts.start(tmp_path / "mnt", url, options=MANUAL)
        try:
            sh(SCENE, first.path)
            with fusebackend.connect(first.path) as files:
                files.create_branch("work")
            branch = tree(first, "work")
            for number in range(20):
                with (branch / f"src/file{number}").open("wb") as file:
                    file.write(b"%d" % number * 10_000)
                    file.flush()
                    os.fsync(file.fileno())
            with (branch / "src/large").open("r+b") as file:
                file.seek(70_000)
                file.write(b"changed")
                file.flush()
                os.fsync(file.fileno())
            content = (branch / "src/large").read_bytes()
        finally:
            first.kill()
        with mounts.mounted(tmp_path / "mnt", url, options=MANUAL):
            for number in range(20):
                assert (branch / f"src/file{number}").read_bytes() == b"%d" % number * 10_000
            assert (branch / "src/large").read_bytes() == content

    def test_a_mount_with_other_routes_refuses_it(self, tmp_path: Path) -> None:
        with (
            mounts.mounted(tmp_path / "mnt", "memory:", options=MANUAL) as first,
            fusebackend.connect(first.path) as files,
        ):
            files.create_branch("work")
        with (
            mounts.mounted(tmp_path / "mnt", "memory:", options=MANUAL) as second,
            fusebackend.connect(second.path) as files,
        ):
            (found,) = files.branches()
            assert found.error is not None and "does not have snapshot" in found.error
            assert not tree(second, "work").exists()
            failed = command("exec", "--mount", second.path, "--branch", "work", "--", "ls")
            assert failed.returncode == 1 and "can't be used" in failed.stderr
            files.delete_branches("work")
            assert files.branches() == []

    def test_a_branch_of_a_branch(self, url: str, tmp_path: Path) -> None:
        """It has the other's changes and none of its later ones; it stays when the other is deleted, and after a
        restart; and it is merged."""
        durable = not url.startswith("memory:")
        with mounts.mounted(tmp_path / "mnt", url, options=[*MANUAL, "ttl=0"]) as first:
            sh(SCENE, first.path)
            with fusebackend.connect(first.path) as files:
                files.create_branch("one")
                one, two = tree(first, "one"), tree(first, "two")
                sh("rm -r src/deep; mv docs papers; echo more >> src/one; chmod 700 empty; echo new > new", one)
                with (one / "src/large").open("r+b") as file:  # not synced, and still open
                    file.seek(100_000)
                    file.write(b"changed")
                    file.flush()
                    (one / "new").unlink()
                    before = trees.snapshot(one)
                    made = files.create_branch("two", "one")
                assert trees.snapshot(two) == trees.snapshot(one) == before
                assert made.changes == files.branches()[0].changes > 0
                sh("rm -r papers; echo later > later", one)
                sh("echo two > src/one", two)
                assert not (two / "later").exists() and (two / "papers/plain").exists()
                assert (one / "src/one").read_text() == "one\nmore\n"
                with pytest.raises(OSError, match="there is a branch 'two' already"):
                    files.create_branch("two", "one")
                with pytest.raises(ValueError, match="three"):
                    files.create_branch("four", "three")
                files.delete_branches("one")
                if not durable:
                    return
        with (
            mounts.mounted(tmp_path / "mnt", url, options=[*MANUAL, "ttl=0"]) as second,
            fusebackend.connect(second.path) as files,
        ):
            assert (two / "src/one").read_text() == "two\n"
            assert files.merge_branch("two").conflicts == []
            assert (second.path / "src/one").read_text() == "two\n"
            assert (second.path / "papers/plain").exists() and not (second.path / "src/deep").exists()
            assert (second.path / "src/large").read_bytes()[100_000:100_007] == b"changed"
            files.delete_branches("two")
            assert files.snapshots() == [], "the snapshot below both goes with the last one"


def _numbers(top: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_ino for path in top.rglob("*")}


class TestAgents:
    def test_commands_have_it_as_their_root(self, mounted: Mounted, files: Client) -> None:
        files.write("/file", "before\n")
        files.create_branch("work")
        done = command("exec", "--mount", mounted.path, "--branch", "work", "--", "cat /file; echo new > /new; ls /")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["before", "file", "new", "notes"]
        assert not (mounted.path / "new").exists()
        answer = files.run("cat new; pwd", cwd="/.fusebackend/branches/work/")
        assert answer.output.split() == ["new", "/"], answer
        files.delete_branches("work")
        files.create_branch("work")
        assert files.run("ls /", cwd="/.fusebackend/branches/work").output.split() == ["file", "notes"]


class TestCommand:
    def test_shell(self, mounted: Mounted, files: Client) -> None:
        files.write("/file", "before\n")
        files.create_branch("work")
        script = 'pwd; cat file; echo new > new; fusebackend() { %s -m fusebackend "$@"; }; fusebackend ls; exit 7'
        done = command("shell", "--mount", mounted.path, "--branch", "work", "--", "sh", "-c", script % sys.executable)
        assert done.returncode == 7, done.stderr
        assert done.stdout.split() == [str(mounted.path), "before", "file", "new", "notes/"]
        assert not (mounted.path / "new").exists()
        assert (tree(mounted, "work") / "new").exists()
        inside = mounted.path / "sub"
        for top in (mounted.path, tree(mounted, "work")):
            (top / "sub").mkdir()
        assert command("shell", "--branch", "work", "pwd", cwd=inside).stdout == f"{inside}\n"
        missing = command("shell", "--mount", mounted.path, "--branch", "work", "no such program")
        assert missing.returncode == 126 and missing.stderr.startswith("Error: 'no such program'")
