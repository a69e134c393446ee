"""Calls in a branch are looked at and taken back as those of the mount."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import mounts
import pytest
from programs import as_call, command, sh
from trees import snapshot

import fusebackend
from fusebackend.config import kept_at
from fusebackend.control.client.client import Client
from fusebackend.testing.posix.case import refused

RECORDED = ["history=on", "snapshots=manual"]
KINDS = ["sqlite:{tmp}/volume.db", "dir:{tmp}/files", "store+sqlite:{tmp}/store.db?ns=files"]
BRANCHES = "/.fusebackend/branches"


listed = partial(snapshot, directory_times=False)


Scene = tuple[Client, Path, Path]
"""A client, the mount, and the tree of the branch `idea`."""


@contextmanager
def branched(tmp_path: Path, kind: str) -> Iterator[Scene]:
    """Serve a backend with some files and a branch of them."""
    (tmp_path / "files").mkdir(exist_ok=True)
    with (
        mounts.mounted(tmp_path / "mnt", kind.format(tmp=tmp_path), options=RECORDED) as mounted,
        fusebackend.connect(str(mounted.path)) as files,
    ):
        yield begun(files, mounted.path)


def begun(files: Client, path: Path) -> Scene:
    if not files.branches():
        sh("mkdir -p docs src; echo one > docs/a; echo two > docs/b; echo three > src/c", path)
        files.create_branch("idea")
    return files, path, path / BRANCHES[1:] / "idea"


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with branched(tmp_path_factory.mktemp("branched"), request.param) as scene:
        yield scene


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    """The files and the branch as if new, in a mount that tests share."""
    files, path, _ = shared
    yield begun(files, path)
    files.delete_branches(*(each.name for each in files.branches()))
    mounts.empty(path)


def test_a_call_in_a_branch_is_shown_and_taken_back(scene: Scene) -> None:
    """By the kernel and by a verb, with its bytes and attributes, and an undo is undone."""
    files, path, branch = scene
    main, before = listed(path), listed(branch)
    first = as_call(
        files, branch, "echo ONE > docs/a; echo more >> docs/b; rm src/c; mkdir new; echo n > new/f; mv docs texts"
    )
    changed = listed(branch)
    shown = files.diff(first)
    at = BRANCHES[1:] + "/idea"
    assert f"+++ b/{at}/texts/a\n@@ -0,0 +1 @@\n+ONE\n" in shown and "\n-one\n" in shown, shown
    assert f"--- a/{at}/src/c" in shown and f"+++ b/{at}/new/f" in shown
    dry = files.undo(first, dry_run=True)
    assert dry.calls == [first] and dry.changes and not dry.conflicts and listed(branch) == changed
    assert all(each.path.startswith(f"{BRANCHES}/idea/") for each in dry.changes)
    undone = files.undo(first)
    assert not undone.conflicts and undone.undo is not None
    assert listed(branch) == before and listed(path) == main
    assert [(each.call, each.undone_by) for each in files.log(branch="idea")] == [
        (undone.undo, None),
        (first, undone.undo),
    ]
    kinds = ["content", "content", "create", "create", "remove", "rename"]
    assert sorted(each.change for each in files.changes(first, branch="idea")) == kinds
    assert [each.call for each in files.log(branch="idea", limit=1)] == [undone.undo]
    assert files.log(branch="idea", since=time.time_ns() + 10**12) == []
    files.undo(undone.undo)
    assert listed(branch) == changed and listed(path) == main
    with fusebackend.acting(fusebackend.Actor(agent="planner")):
        files.write(f"{BRANCHES}/idea/plan", "by a verb\n")
        assert files.edit(f"{BRANCHES}/idea/texts/b", "two", "TWO").error is None
        assert files.delete(f"{BRANCHES}/idea/new").error is None
    calls = [each.call for each in files.log(branch="idea", by="planner")]
    assert len(calls) == 3
    assert [each.call for each in files.log(branch="idea", paths=["/plan"])] == calls[2:]
    assert "-two\n+TWO\n" in files.diff(calls[1])
    for _ in calls:
        assert not files.undo(branch="idea", by="planner").conflicts
    assert listed(branch) == changed and listed(path) == main


def test_a_call_of_an_earlier_server_is_taken_back(tmp_path: Path) -> None:
    """Of a live route; `test_what_is_in_the_snapshot_below_is_not_copied` has a frozen one."""
    with branched(tmp_path, KINDS[1]) as (files, _, branch):
        before = listed(branch)
        first = as_call(files, branch, "echo ONE > docs/a; rm docs/b; ln src/c src/link; mv src code")
    with branched(tmp_path, KINDS[1]) as (files, _, branch):
        assert [each.call for each in files.log(branch="idea")] == [first]
        assert not files.undo(first).conflicts
        assert listed(branch) == before


def test_a_call_in_the_mount_and_in_a_branch_is_one(tmp_path: Path) -> None:
    with branched(tmp_path, KINDS[0]) as (files, path, branch):
        main, before = listed(path), listed(branch)
        newest = files.log()[0].call
        only = as_call(files, branch, "echo x > x")
        assert files.log()[0].call == newest, "a call in a branch alone is none of the mount"
        assert [each.call for each in files.log(paths=[BRANCHES + "/idea"])] == [only]
        assert [each.call for each in files.log([only])] == [only]
        both = as_call(files, path, f"echo m > docs/a; echo b > .{BRANCHES}/idea/docs/a")
        assert files.log()[0].call == both and files.log(branch="idea")[0].call == both
        assert not files.undo(both).conflicts
        assert listed(path) == main
        assert not files.undo(branch="idea").conflicts and listed(branch) == before
        assert files.undo(branch="idea").calls == []


def test_a_branch_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    """With a deleted branch its records go, and a copy has none of the other's calls."""
    with branched(tmp_path, KINDS[0]) as (files, _, branch):
        first = as_call(files, branch, "echo ONE > docs/a; rm docs/b")
        files.create_branch("copy", "idea")
        assert files.log(branch="copy") == files.changes(branch="copy") == []
        files.delete_branches("idea")
        files.create_branch("idea")
        assert files.log(branch="idea") == []
        refused(errno.ENOENT, files.undo, first)
        second = as_call(files, branch, "echo again > docs/a")
        assert [each.call for each in files.log(branch="idea")] == [second]
        assert not files.verify_log().problems
    with branched(tmp_path, KINDS[0]) as (files, _, branch):
        assert not files.undo(second).conflicts
        assert (branch / "docs/a").read_text() == "one\n" and (branch / "docs/b").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_blame_in_a_branch(tmp_path: Path, kind: str) -> None:
    """What the branch has from below is by calls of the mount, and of no later one if that is a snapshot."""
    with branched(tmp_path, kind) as (files, path, branch):
        made = files.blame("/docs/b").last
        is_live = files.branches()[0].routes["/"] == "live"
        first = as_call(files, branch, "echo more >> docs/a")
        second = as_call(files, branch, "sed -i 1iabove docs/a; mv docs/a docs/z")
        later = as_call(files, path, "echo later >> docs/a; echo later >> docs/b")
        for found in (files.blame("/docs/z", branch="idea"), files.blame(f"{BRANCHES}/idea/docs/z")):
            assert found.lines is not None
            assert [(each.text, each.calls) for each in found.lines] == [
                ("above", [second]), ("one", [made]), ("more", [first]),
            ]  # fmt: skip
        below = files.blame("/docs/b", branch="idea").lines
        assert below is not None
        assert [(each.text, each.calls) for each in below] == [("two", [made]), ("later", [later])][: 1 + is_live]
        shown = command("blame", "--branch", "idea", "/docs/z", cwd=path)
        assert shown.returncode == 0 and shown.stdout.splitlines()[2].startswith(first), shown


@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_begins_with_the_state_before_a_call_in_another(tmp_path: Path, kind: str) -> None:
    """It is also what `diff` compares with, and where `restore` takes files for the mount from."""
    listed = partial(snapshot, directory_times=False, links=False)  # it has copies of hard links
    with branched(tmp_path, kind) as (files, path, branch):
        as_call(files, branch, "echo ONE > docs/a; mkdir more; echo m > more/m; ln docs/b docs/link")
        before = listed(branch)
        call = as_call(files, branch, "echo worse > docs/a; rm -r more src; mv docs/b docs/moved; echo n > new")
        sh("echo later > later; chmod 600 docs/a", branch)
        now = listed(branch)
        files.create_branch("again", call)
        again = path / BRANCHES[1:] / "again"
        assert listed(again) == before and listed(branch) == now
        sh("echo n > again", again)
        assert b"again" not in listed(branch)
        shown = files.diff(f"{call}..idea", form="names")
        wanted = {"docs/a", "more/m", "src/c", "docs/moved", "new", "later"}
        assert {line.split()[-1] for line in shown.splitlines()} >= wanted, shown
        assert "docs/a" in files.diff(f"{call}..main", form="names")
        assert not files.restore(["/docs/a"], call).conflicts
        assert (path / "docs/a").read_text() == "ONE\n"
    with branched(tmp_path, kind) as (_, path, _):
        kept = {name: found for name, found in listed(again).items() if name != b"again"}
        if "store" in kind:  # times of live files are those of the store's next server
            kept, before = ({name: each._replace(mtime_ns=0) for name, each in tree.items()} for tree in (kept, before))
        assert kept == before


def test_changes_that_a_kill_has_prevented_stand_in_no_way(tmp_path: Path) -> None:
    """In the mount, and in a branch of it."""
    url, branch = f"sqlite:{tmp_path}/volume.db", tmp_path / "mnt" / BRANCHES[1:] / "idea"
    mounted = mounts.start(tmp_path / "mnt", url, options=RECORDED)
    try:
        with fusebackend.connect(str(mounted.path)) as files:
            files.write("/a", "one\n")
            files.create_branch("idea")
            first = as_call(files, branch, "echo two > a; sync .")
            second = as_call(files, mounted.path, "echo 1 > file; mkdir d; sync .")
            before = listed(branch), listed(mounted.path)
            directory = Path(kept_at(str(mounted.path), "branches"))
            kept = {each: each.read_bytes() for each in stored(tmp_path, directory)}
            lost = [as_call(files, branch, "echo three > a"), as_call(files, branch, "echo new > new; rm a", "other")]
            files.write("/d/new", "one\n")
            files.edit("/d/new", "one", "two")
            lost += [each.call for each in files.log(limit=2)]
    finally:
        mounted.kill()
    for each in stored(tmp_path, directory):  # as if nothing of it had been stored yet
        each.unlink()
    for each, data in kept.items():
        each.write_bytes(data)
    with (
        mounts.mounted(tmp_path / "mnt", url, options=RECORDED) as again,
        fusebackend.connect(str(again.path)) as files,
    ):
        assert (listed(branch), listed(again.path)) == before
        assert not {each.call for each in [*files.log(), *files.log(paths=[BRANCHES])]} & set(lost)
        assert files.undo(first).conflicts == [] and (branch / "a").read_text() == "one\n"
        assert files.undo(second).conflicts == [] and listed(again.path).keys() == {b"a"}
        assert files.verify_log().problems == []


def stored(directory: Path, branches: Path) -> list[Path]:
    return [*directory.glob("volume.db*"), *branches.glob("idea.db*")]


def test_what_is_in_the_snapshot_below_is_not_copied(tmp_path: Path) -> None:
    """Files of a frozen route that the branch has not changed yet, of any size."""
    with branched(tmp_path, KINDS[0]) as (files, path, _):
        with (path / "large").open("wb") as file:
            for number in range(70):
                file.write(bytes([number]) * (1 << 20))
        files.create_branch("other")
        branch = path / BRANCHES[1:] / "other"
        before = listed(branch)
        call = as_call(files, branch, "echo x >> large; rm docs/a; mv src/c docs/b; truncate -s 5 large")
        kept = [each.kept for each in files.changes(call) if each.kept is not None]
        assert kept and set(kept) == {"snapshot"}, kept
        assert "two" in files.diff(call, paths=[f"{BRANCHES}/other/docs"])
    with branched(tmp_path, KINDS[0]) as (files, _, _):
        assert not files.undo(call).conflicts
        assert listed(branch) == before


def test_a_command_in_a_branch_is_a_call(scene: Scene) -> None:
    """It has the branch as its root, in a tree of its own."""
    files, path, branch = scene
    before = listed(branch)
    script = "cd /docs; echo ONE > a; mkdir deep; echo > deep/d; mv b deep/b; cd /; mv docs texts; echo >> texts/a"
    done = command("exec", "--branch", "idea", "--", script, cwd=path)
    assert done.returncode == 0, done
    (call,) = files.log(branch="idea")
    assert call.kind == "command" and "cd /docs" in call.title
    changed = listed(branch)
    assert b"texts/deep/b" in changed
    assert {each.path for each in files.changes(call.call)} >= {f"{BRANCHES}/idea/docs/a", f"{BRANCHES}/idea/docs"}
    undone = files.undo(branch="idea")
    assert undone.calls == [call.call] and not undone.conflicts and listed(branch) == before
    assert undone.undo is not None
    assert not files.undo(undone.undo).conflicts and listed(branch) == changed
