"""Branches of a mount: real programs, verbs, the command, merges, calls, states of the past, and killed servers."""

from __future__ import annotations

import errno
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import mounts
import programs
import pytest
import trees
from kinds import MEMORY
from mounts import Mounted, Serve
from profiles import amount
from programs import command, sh

import fusebackend
from fusebackend.control.client.client import Client
from fusebackend.testing.posix.case import fails

KINDS = [MEMORY, "sqlite:{tmp}/volume.db", "dir:{tmp}/files"]
"""URLs of volumes below a branch, `{tmp}` is a directory: frozen ones, which are alike to a program, and one that is
live."""

MANUAL = ["snapshots=manual"]
RECORDED = ["history=on", *MANUAL]
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
    limits = {"options": MANUAL, "limit_s": mounts.LIFE_LIMIT_S + STEPS}
    with mounts.of_kind(request, tmp_path_factory, request.param, routes={"/notes": "memory:"}, **limits) as server:
        yield server


@pytest.fixture
def files(mounted: Mounted) -> Iterator[Client]:
    with fusebackend.connect(mounted.path) as made:
        yield made
        made.delete_branches(*(each.name for each in made.branches()))
    mounts.empty(mounted.path, "notes")


def branch_of(path: Path, name: str) -> Path:
    return path / ".fusebackend/branches" / name


class TestRealWork:
    def test_the_same_steps_as_on_a_copy(self, mounted: Mounted, files: Client, tmp_path: Path) -> None:
        sh(SCENE, mounted.path)
        (mounted.path / "notes/note").write_text("note")
        made = files.create_branch("work")
        copy, branch = tmp_path / "copy", branch_of(mounted.path, "work")
        assert f"{mounted.path}{made.path}" == str(branch)
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


def _but_git(found: dict[bytes, trees.Entry]) -> dict[bytes, trees.Entry]:
    """Leave out what git makes, in which there are times."""
    return {path: entry for path, entry in found.items() if b".git/" not in path}


class TestLife:
    def test_a_killed_server_loses_nothing_that_was_synced(self, tmp_path: Path) -> None:
        url = f"sqlite:{tmp_path}/volume.db"
        first = mounts.start(tmp_path / "mnt", url, options=MANUAL)
        try:
            sh(SCENE, first.path)
            with fusebackend.connect(first.path) as files:
                files.create_branch("work")
            branch = branch_of(first.path, "work")
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
            assert not branch_of(second.path, "work").exists()
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
                one, two = branch_of(first.path, "one"), branch_of(first.path, "two")
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


class TestCommand:
    def test_shell(self, mounted: Mounted, files: Client) -> None:
        files.write("/file", "before\n")
        files.create_branch("work")
        script = 'pwd; cat file; echo new > new; fusebackend() { %s -m fusebackend "$@"; }; fusebackend ls; exit 7'
        done = command("shell", "--mount", mounted.path, "--branch", "work", "--", "sh", "-c", script % sys.executable)
        assert done.returncode == 7, done.stderr
        assert done.stdout.split() == [str(mounted.path), "before", "file", "new", "notes/"]
        assert not (mounted.path / "new").exists()
        assert (branch_of(mounted.path, "work") / "new").exists()
        inside = mounted.path / "sub"
        for top in (mounted.path, branch_of(mounted.path, "work")):
            (top / "sub").mkdir()
        assert command("shell", "--branch", "work", "pwd", cwd=inside).stdout == f"{inside}\n"
        missing = command("shell", "--mount", mounted.path, "--branch", "work", "no such program")
        assert missing.returncode == 126 and missing.stderr.startswith("Error: 'no such program'")


# --------------------------------------------------------------------------------------------------------------
# Merges by the command, over `sqlite:` and `dir:` routes of one mount
# --------------------------------------------------------------------------------------------------------------

LINES = "".join(f"line {number}\n" for number in range(20))


@pytest.fixture
def two_routes(serve: Serve, tmp_path: Path) -> Mounted:
    (tmp_path / "src").mkdir()
    server: Mounted = serve(f"sqlite:{tmp_path}/volume.db", routes={"/src": f"dir:{tmp_path}/src"})
    for top in (server.path, server.path / "src"):
        (top / "notes").mkdir()
        (top / "notes" / "plan.md").write_text(LINES)
        (top / "old.txt").write_text("old\n")
        (top / "run.sh").write_text("#!/bin/sh\n")
    return server


def run(server: Mounted, *arguments: str, code: int = 0) -> str:
    done = programs.command(*arguments, cwd=server.path)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def created(server: Mounted, name: str = "work") -> Path:
    return Path(run(server, "branch", "create", name).splitlines()[0])


def test_a_branch_puts_nothing_on_the_mounts_own_directory(two_routes: Mounted) -> None:
    created(two_routes)
    with fusebackend.connect(two_routes.path) as files:
        assert files.write("/.fusebackend/branches/work/.fusebackend/x", "x").error is None
        assert files.write("/.fusebackend/branches/work/other", "y").error is None
    said = run(two_routes, "branch", "merge", "work", "--keep-branch", code=1)
    assert "'.fusebackend': is the mount's own directory" in said
    run(two_routes, "branch", "merge", "work", "--", "other")
    assert (two_routes.path / "other").read_text() == "y"


def test_a_merge_names_the_writers_of_the_branch(serve: Serve) -> None:
    """By a verb and by the kernel. Readers are not named."""
    path = serve("memory:", options=["history=on", "snapshots=manual"]).path
    branch = "/.fusebackend/branches/idea"
    with fusebackend.connect(path) as files:
        files.create_branch("idea")
        for agent in ("planner", "reviewer"):
            with fusebackend.acting(fusebackend.Actor(agent=agent)):
                files.write(f"{branch}/{agent}", "by a verb\n")
        with fusebackend.acting(fusebackend.Actor(agent="reader")):
            assert files.read(f"{branch}/planner").error is None
        name = files.begin_call("work", id="t", agent="coder")
        sh("cat planner; echo written >> planner", Path(f"{path}{branch}"))
        files.end_call(name)
        merged = files.merge_branch("idea")
        (call,) = files.log([merged.call or ""])
        assert call.title == "merge branch 'idea', written by coder, planner, reviewer"
        assert [each.calls for each in files.blame("/planner").lines] == [[merged.call]] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_other_file_systems_in_the_mount_are_left_alone(two_routes: Mounted) -> None:
    """The kernel unmounts what is on a name that goes."""
    sh("mkdir -p d/there e; echo old > d/there/f; echo old > e/f", two_routes.path)
    top = created(two_routes)
    sh("echo new > d/there/f; echo new > e/f; mv d moved", top)
    sh("mount -t tmpfs none d/there; echo mine > d/there/mine", two_routes.path)
    try:
        said = run(two_routes, "branch", "merge", "work", "--keep-branch", code=1)
        assert "another file system is mounted" in said
        assert (two_routes.path / "d/there/mine").read_text() == "mine\n"
        assert (two_routes.path / "e/f").read_text() == "old\n"
        run(two_routes, "branch", "merge", "work", "--", "e")
        assert (two_routes.path / "e/f").read_text() == "new\n"
    finally:
        sh("umount d/there", two_routes.path)
    run(two_routes, "branch", "merge", "work")
    assert (two_routes.path / "moved/there/f").read_text() == "new\n"


def test_the_next_mount_removes_what_a_killed_restore_has_left(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "live").mkdir()
    server = serve(f"dir:{tmp_path}/live", at="mnt")
    created(server)
    server.kill()
    for name in ("@restore", "work"):  # as `Merge` has begun them
        (tmp_path / f"live/.fusebackend-merge-{name}").mkdir()
        (tmp_path / f"live/.fusebackend-merge-{name}/1").write_text("half")
        (directory,) = (tmp_path / "data/fusebackend").glob("*.branches")
        line = {"id": 1, "routes": ["/"]}
        (directory / f"{name}.merge").write_text(json.dumps(line) + "\n")
    again = serve(f"dir:{tmp_path}/live", at="mnt")
    assert os.listdir(again.path) == []
    assert not list(directory.glob("*.merge"))


# --------------------------------------------------------------------------------------------------------------
# Branches that begin with a state before the present: before a call, or at a time
# --------------------------------------------------------------------------------------------------------------


def test_a_time_is_one_on_all_routes(serve: Serve, tmp_path: Path) -> None:
    """Routes that keep snapshots have the newest one of that time, the others what they had at its moment."""
    (tmp_path / "files").mkdir()
    path = serve("memory:", routes={"/live": f"dir:{tmp_path}/files"}, options=RECORDED).path
    with fusebackend.connect(str(path)) as files:
        for each in ("/plan", "/live/plan", "/live/other"):
            files.write(each, "one")
        files.create_snapshot("taken")
        moment()
        files.edit("/live/plan", "one", "two")
        then = moment()
        files.edit("/plan", "one", "three")
        files.edit("/live/plan", "two", "three")
        files.delete("/live/other")
        files.write("/live/new", "new")
        files.create_branch("then", then)
        files.create_branch("named", "taken")
        with pytest.raises(ValueError, match="as old as '3d'"):
            files.create_branch("early", "3d")
        assert [each.name for each in files.branches()] == ["named", "then"]
    assert sorted(os.listdir(branch_of(path, "then") / "live")) == ["other", "plan"]
    then_has = [(branch_of(path, "then") / each).read_text() for each in ("plan", "live/plan")]
    named_has = [(branch_of(path, "named") / each).read_text() for each in ("plan", "live/plan")]
    assert (then_has, named_has) == (["one", "one"], ["one", "three"])


def moment() -> str:
    """Return the present as a REF, with nothing changed in the same moment."""
    time.sleep(0.02)
    now_s = time.time()
    time.sleep(0.02)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 10**6):06}+00:00"


def test_without_a_history(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    options = ["history=off", "snapshots=manual"]
    path = serve("memory:", routes={"/live": f"dir:{tmp_path}/files"}, options=options).path
    with fusebackend.connect(str(path)) as files:
        files.create_snapshot("taken")
        then = moment()
        for ref, why in ((then, "what /live/ had at"), ("c1", "keeps no history")):
            with fails(errno.ENOTSUP, match=why):
                files.create_branch("past", ref)
        assert files.create_branch("past", "taken").routes == {"/": "frozen", "/live/": "live"}


def test_secrets_leave_the_base_of_a_branch(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    path = serve(f"dir:{tmp_path}/files", options=RECORDED).path
    with fusebackend.connect(str(path)) as files:
        files.write("/settings", "key = hunter2")
        files.write("/plan", "one")
        files.edit("/settings", "hunter2", "***")
        files.create_branch("past", files.log(limit=1)[0].call)
        assert (branch_of(path, "past") / "settings").read_text() == "key = hunter2"
        assert files.forget("/settings").branches == ["past"]
        assert not (branch_of(path, "past") / "settings").exists()
        assert (branch_of(path, "past") / "plan").read_text() == "one"
    data = Path(os.environ["XDG_DATA_HOME"])
    kept = [each for each in data.rglob("past.*") if b"hunter2" in each.read_bytes()]
    assert list(data.rglob("past.base")) and kept == []
