"""Branches of a mount: real programs, verbs, the command, merges, calls, states of the past, and killed servers."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import mounts
import programs
import pytest
import trees
from kinds import MEMORY
from mounts import Mounted, Serve
from profiles import amount
from programs import as_call, command, sh
from trees import snapshot

import fusebackend
from fusebackend.control.client.client import Client

pytestmark = pytest.mark.mounted

KINDS = [MEMORY, "sqlite:{tmp}/volume.db", "dir:{tmp}/files"]
"""URLs of volumes below a branch, `{tmp}` is a directory: frozen ones, which are alike to a program, and one that is
live."""

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


# --------------------------------------------------------------------------------------------------------------
# The calls in a branch: their actors and changes
# --------------------------------------------------------------------------------------------------------------

RECORDED = ["history=on", "snapshots=manual"]
URLS = ["sqlite:{tmp}/volume.db", "dir:{tmp}/files"]


def branch_of(path: Path, name: str) -> Path:
    return path / ".fusebackend/branches" / name


def changed(files: Client, branch: str) -> list[tuple[str, set[tuple[str, str, str | None]]]]:
    """Return the agents of the branch's calls with what each has changed, the oldest first."""
    return [
        (call.actor.agent, {(each.change, each.path, each.to_path) for each in files.changes(call.call, branch=branch)})
        for call in reversed(files.log(branch=branch))
    ]


@pytest.mark.parametrize("kind", URLS)
def test_who_changed_what_in_a_branch(tmp_path: Path, kind: str) -> None:
    """By the kernel and by verbs; kept after a remount, in a copy of the branch and after the merge; never in the log
    of the mount."""
    (tmp_path / "files").mkdir()
    url = kind.format(tmp=tmp_path)
    with mounts.mounted(tmp_path / "mnt", url, options=RECORDED) as mounted:
        path = mounted.path
        sh("mkdir -p src/deep docs; echo one > src/deep/text; echo two > docs/here; echo three > docs/gone", path)
        with fusebackend.connect(str(path)) as files:
            files.create_branch("idea")
            before = [each.call for each in files.log()]
            branch = branch_of(path, "idea")
            name = files.begin_call("read", id="reader", agent="reader")
            sh("cat docs/here; ls -R > /dev/null", branch)
            assert files.end_call(name) is None
            as_call(files, branch, "echo a >> src/deep/text; echo b >> src/deep/text; chmod 600 docs/here", "coder")
            as_call(files, branch, "mv src lib; rm docs/gone; mkdir new; echo n > new/file", "mover")
            with fusebackend.acting(fusebackend.Actor(agent="planner")):
                files.write("/.fusebackend/branches/idea/plan", "by a verb\n")
                assert files.edit("/.fusebackend/branches/idea/lib/deep/text", "one", "ONE").error is None
            wanted = [
                ("coder", {("content", "/src/deep/text", None), ("attributes", "/docs/here", None)}),
                (
                    "mover",
                    {
                        ("rename", "/src", "/lib"),
                        ("remove", "/docs/gone", None),
                        ("create", "/new", None),
                        ("create", "/new/file", None),
                    },
                ),
                ("planner", {("create", "/plan", None)}),
                ("planner", {("content", "/lib/deep/text", None)}),
            ]
            assert changed(files, "idea") == wanted
            names = [each.call for each in files.log(branch="idea")]
            assert len(set(names)) == 4 and all(name.startswith("c") for name in names), names
            assert next(each.title for each in files.log(branch="idea", by="mover")).startswith("run mv src lib")
            assert all(each.ended_ns is not None for each in files.log(branch="idea"))
            assert [each.call for each in files.log(branch="idea", paths=["/docs"])] == names[2:]
            assert [each.call for each in files.log(branch="idea", limit=1)] == names[:1]
            assert files.log(branch="idea", since=files.log(branch="idea")[0].began_ns + 10**9) == []
            assert [each.call for each in files.log()] == before
            files.create_branch("copy", "idea")
            assert files.log(branch="copy") == []
            files.delete_branches("copy")
    with (
        mounts.mounted(tmp_path / "mnt", url, options=RECORDED) as again,
        fusebackend.connect(str(again.path)) as files,
    ):
        assert changed(files, "idea") == wanted
        as_call(files, branch_of(again.path, "idea"), "rm -r new", "cleaner")
        assert changed(files, "idea")[-1] == ("cleaner", {("remove", "/new", None), ("remove", "/new/file", None)})
        assert not files.merge_branch("idea").conflicts
        assert [agent for agent, _ in changed(files, "idea")] == ["coder", "mover", "planner", "planner", "cleaner"]


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


def change(top: Path) -> None:
    (top / "notes" / "plan.md").write_text(LINES.replace("line 3\n", "branch\n"))
    (top / "notes").rename(top / "papers")
    (top / "old.txt").unlink()
    (top / "run.sh").chmod(0o755)
    (top / "new").mkdir()
    (top / "new" / "file").write_text("new\n")


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


def test_git_takes_the_patch_of_a_branch(two_routes: Mounted, tmp_path: Path) -> None:
    branch = created(two_routes)
    for top in (branch, branch / "src"):
        change(top)
    patch = tmp_path / "patch"
    patch.write_text(run(two_routes, "diff", "main..work"))
    assert "rename from notes/plan.md" in patch.read_text() or "papers/plan.md" in patch.read_text()
    checked = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=two_routes.path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    run(two_routes, "branch", "merge", "work")
    assert run(two_routes, "diff", "main..work") == ""


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
        line = {"format": 1, "branch": name, "id": 1, "routes": ["/"], "steps": 1}
        (directory / f"{name}.merge").write_text(json.dumps(line) + "\n")
    again = serve(f"dir:{tmp_path}/live", at="mnt")
    assert os.listdir(again.path) == []
    assert not list(directory.glob("*.merge"))


# --------------------------------------------------------------------------------------------------------------
# Branches that begin with a state before the present: before a call, or at a time
# --------------------------------------------------------------------------------------------------------------

STEPS_OF_CALLS = [
    r"""umask 022; mkdir -p src/deep docs live/sub
    printf '1\n2\n3\n' > src/text; head -c 5000 /dev/urandom > src/deep/bytes; ln src/text src/linked
    ln -s ../src/text docs/link; mkfifo docs/pipe; printf 'to be moved\n' > docs/here
    truncate -s 3M src/sparse; printf end >> src/sparse; setfattr -n user.tag -v value src/sparse
    printf a > live/a; printf b > live/sub/b; touch -d '2001-02-03 04:05:06.789' src/text live/a; echo > live/same""",
    "echo two > src/text; rm -rf src/deep; mv docs/here docs/there; chmod 700 docs; printf changed > live/a",
    "setfattr -x user.tag src/sparse; printf more >> src/sparse; mkdir -p src/deep new; mv live/sub live/moved",
    "mv new old; printf n > old/n; rm docs/link docs/pipe; mkdir docs/pipe; rm live/a; mkdir live/a; echo > live/a/c",
    "rm -rf src live/moved; mv docs/there again; printf new > live/new",
]  # fmt: skip


shown = partial(snapshot, directory_times=False)
"""All but the times of directories, which no record has."""


@pytest.mark.parametrize("kind", ["sqlite:{tmp}/volume.db", "dir:{tmp}/default"])
def test_a_branch_begins_with_the_state_before_a_call(tmp_path: Path, kind: str) -> None:
    """On all routes, also those without snapshots; it stays so, and is what a merge compares with."""
    (tmp_path / "default").mkdir()
    (tmp_path / "files").mkdir()
    url = kind.format(tmp=tmp_path)
    routes = {"/live": f"dir:{tmp_path}/files"}
    with mounts.mounted(tmp_path / "mnt", url, routes=routes, options=RECORDED) as mounted:
        path = mounted.path
        with fusebackend.connect(str(path)) as files:
            states = {}
            for step in STEPS_OF_CALLS:
                was = shown(path)
                states[as_call(files, path, step)] = was
            now = shown(path)
            for call, was in states.items():
                made = files.create_branch(f"before-{call}", call)
                assert made.changes == 0
                assert shown(branch_of(path, f"before-{call}")) == was, call
                assert files.merge_branch(f"before-{call}").changes == []
            assert shown(path) == now
            _, second, third, fourth, _ = states
            assert command("branch", "create", "by-command", "--from", third, cwd=path).returncode == 0
            assert shown(branch_of(path, "by-command")) == states[third]
            (branch_of(path, f"before-{second}") / "live/same").write_text("branch")
            (branch_of(path, f"before-{second}") / "docs/here").write_text("branch")
            (branch_of(path, f"before-{second}") / "src/text").write_text("branch")
            merged = files.merge_branch(f"before-{second}")
            assert {each.path for each in merged.conflicts} == {"/docs/here", "/src/text", "/src/linked"}, merged
            done = files.merge_branch(f"before-{second}", ["/live"])
            assert not done.conflicts and [each.path for each in done.changes] == ["/live/same"]
            assert (path / "live/same").read_text() == "branch"
            files.create_branch("copy", f"before-{second}")
            assert shown(branch_of(path, "copy")) == shown(branch_of(path, f"before-{second}"))
            files.delete_branches("copy")
            kept = {call: shown(branch_of(path, f"before-{call}")) for call in (second, fourth)}
    with mounts.mounted(tmp_path / "mnt", url, routes=routes, options=RECORDED) as again:
        for call, was in kept.items():
            assert shown(branch_of(again.path, f"before-{call}")) == was
        with fusebackend.connect(str(again.path)) as files:
            files.delete_branches(*(each.name for each in files.branches()))
            assert files.branches() == [] and [each.name for each in files.snapshots()] == []


def test_a_branch_begins_with_the_state_at_a_time(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    path = serve(f"dir:{tmp_path}/files", options=RECORDED).path
    with fusebackend.connect(str(path)) as files:
        for each in ("/first", "/plan", "/other"):
            files.write(each, "one")
        then = moment()
        files.edit("/plan", "one", "two")
        files.delete("/other")
        files.write("/new", "new")
        files.create_branch("then", then)
        found = branch_of(path, "then")
        assert sorted(os.listdir(found)) == ["first", "other", "plan"]
        assert ((found / "plan").read_text(), (path / "plan").read_text()) == ("one", "two")
        with pytest.raises(OSError) as unknown:
            files.create_branch("early", "3d")
        assert unknown.value.errno == errno.ENODATA and "as old as '3d'" in str(unknown.value)
        assert [each.name for each in files.branches()] == ["then"]


def test_a_time_is_one_on_all_routes(serve: Serve, tmp_path: Path) -> None:
    """Routes that keep snapshots have the newest one of that time, the others what they had at its moment."""
    (tmp_path / "files").mkdir()
    path = serve("memory:", routes={"/live": f"dir:{tmp_path}/files"}, options=RECORDED).path
    with fusebackend.connect(str(path)) as files:
        files.write("/plan", "one")
        files.write("/live/plan", "one")
        files.create_snapshot("taken")
        time.sleep(0.02)  # more than a tick of the clock
        files.edit("/live/plan", "one", "two")
        then = moment()
        files.edit("/plan", "one", "three")
        files.edit("/live/plan", "two", "three")
        files.create_branch("then", then)
        files.create_branch("named", "taken")
    then_has = [(branch_of(path, "then") / each).read_text() for each in ("plan", "live/plan")]
    named_has = [(branch_of(path, "named") / each).read_text() for each in ("plan", "live/plan")]
    assert (then_has, named_has) == (["one", "one"], ["one", "three"])


def moment() -> str:
    """Return the present as a REF, with nothing changed in the same moment."""
    time.sleep(0.02)
    now_s = time.time()
    time.sleep(0.02)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 10**6):06}+00:00"


def test_what_is_not_known_is_refused(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    path = serve("memory:", routes={"/live": f"dir:{tmp_path}/files"}, options=RECORDED).path
    (tmp_path / "files/large").write_bytes(b"x")
    os.truncate(tmp_path / "files/large", 65 << 20)
    with fusebackend.connect(str(path)) as files:
        call = as_call(files, path, "rm live/large")
    for ref, error in (
        (call, f"the bytes of '/live/large' before {call} are not known: larger than 64 MiB"),
        ("c999", "there is no call 'c999'"),
    ):
        done = command("branch", "create", "past", "--from", ref, cwd=path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert error in done.stderr
    with fusebackend.connect(str(path)) as files:
        assert files.branches() == [] and files.snapshots() == []


def test_without_a_history(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    options = ["history=off", "snapshots=manual"]
    path = serve("memory:", routes={"/live": f"dir:{tmp_path}/files"}, options=options).path
    with fusebackend.connect(str(path)) as files:
        files.create_snapshot("taken")
        then = moment()
        for ref, why in ((then, "what /live/ had at"), ("c1", "keeps no history")):
            with pytest.raises(OSError, match=why) as refused:
                files.create_branch("past", ref)
            assert refused.value.errno == errno.ENOTSUP
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
