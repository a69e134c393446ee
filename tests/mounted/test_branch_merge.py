"""Merges of branches by the command, over `sqlite:` and `dir:` routes of one mount."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import programs
import pytest
from mounts import Mounted, Serve
from programs import sh

import fusebackend

pytestmark = pytest.mark.mounted

LINES = "".join(f"line {number}\n" for number in range(20))


@pytest.fixture
def mounted(serve: Serve, tmp_path: Path) -> Mounted:
    (tmp_path / "src").mkdir()
    server: Mounted = serve(f"sqlite:{tmp_path}/volume.db", routes={"/src": f"dir:{tmp_path}/src"})
    for top in (server.path, server.path / "src"):
        (top / "notes").mkdir()
        (top / "notes" / "plan.md").write_text(LINES)
        (top / "old.txt").write_text("old\n")
        (top / "run.sh").write_text("#!/bin/sh\n")
    return server


def command(server: Mounted, *arguments: str, code: int = 0) -> str:
    done = programs.command(*arguments, cwd=server.path)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def branch_of(server: Mounted, name: str = "work") -> Path:
    return Path(command(server, "branch", "create", name).splitlines()[0])


def change(top: Path) -> None:
    (top / "notes" / "plan.md").write_text(LINES.replace("line 3\n", "branch\n"))
    (top / "notes").rename(top / "papers")
    (top / "old.txt").unlink()
    (top / "run.sh").chmod(0o755)
    (top / "new").mkdir()
    (top / "new" / "file").write_text("new\n")


def test_a_branch_puts_nothing_on_the_mounts_own_directory(mounted: Mounted) -> None:
    branch_of(mounted)
    with fusebackend.connect(mounted.path) as files:
        assert files.write("/.fusebackend/branches/work/.fusebackend/x", "x").error is None
        assert files.write("/.fusebackend/branches/work/other", "y").error is None
    said = command(mounted, "branch", "merge", "work", "--keep-branch", code=1)
    assert "'.fusebackend': is the mount's own directory" in said
    command(mounted, "branch", "merge", "work", "--", "other")
    assert (mounted.path / "other").read_text() == "y"


def test_a_branch_is_merged_and_taken_back(mounted: Mounted) -> None:
    branch = branch_of(mounted)
    for top in (branch, branch / "src"):
        change(top)
    assert "would rename notes -> papers" in command(mounted, "branch", "merge", "work", "-n")
    assert (mounted.path / "old.txt").exists()
    said = command(mounted, "branch", "merge", "work")
    for top in (mounted.path, mounted.path / "src"):
        assert (top / "papers" / "plan.md").read_text().splitlines()[3] == "branch"
        assert not (top / "notes").exists()
        assert not (top / "old.txt").exists()
        assert (top / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (top / "new" / "file").read_text() == "new\n"
    assert "merged" in command(mounted, "branch", "list")
    assert "everything of 'work' already" in command(mounted, "branch", "merge", "work")
    call = said.split("fusebackend undo ")[1].split("'")[0]
    command(mounted, "undo", call)
    for top in (mounted.path, mounted.path / "src"):
        assert (top / "notes" / "plan.md").read_text() == LINES
        assert (top / "old.txt").read_text() == "old\n"
        assert (top / "run.sh").stat().st_mode & 0o777 == 0o644
        assert not (top / "papers").exists()
        assert not (top / "new").exists()


def test_a_merge_names_the_writers_of_the_branch(serve: Serve) -> None:
    """By a verb and by the kernel, also in a copy of it. Readers are not named."""
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
        files.create_branch("copy", "idea")
        merged = files.merge_branch("copy")
        (call,) = files.log([merged.call or ""])
        assert call.title == "merge branch 'copy', written by coder, planner, reviewer"
        assert [each.calls for each in files.blame("/planner").lines] == [[merged.call]] * 2


def test_git_takes_the_patch_of_a_branch(mounted: Mounted, tmp_path: Path) -> None:
    branch = branch_of(mounted)
    for top in (branch, branch / "src"):
        change(top)
    patch = tmp_path / "patch"
    patch.write_text(command(mounted, "diff", "main..work"))
    assert "rename from notes/plan.md" in patch.read_text() or "papers/plan.md" in patch.read_text()
    checked = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=mounted.path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    command(mounted, "branch", "merge", "work")
    assert command(mounted, "diff", "main..work") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_other_file_systems_in_the_mount_are_left_alone(mounted: Mounted) -> None:
    """The kernel unmounts what is on a name that goes."""
    sh("mkdir -p d/there e; echo old > d/there/f; echo old > e/f", mounted.path)
    top = branch_of(mounted)
    sh("echo new > d/there/f; echo new > e/f; mv d moved", top)
    sh("mount -t tmpfs none d/there; echo mine > d/there/mine", mounted.path)
    try:
        said = command(mounted, "branch", "merge", "work", "--keep-branch", code=1)
        assert "another file system is mounted" in said
        assert (mounted.path / "d/there/mine").read_text() == "mine\n"
        assert (mounted.path / "e/f").read_text() == "old\n"
        command(mounted, "branch", "merge", "work", "--", "e")
        assert (mounted.path / "e/f").read_text() == "new\n"
    finally:
        sh("umount d/there", mounted.path)
    command(mounted, "branch", "merge", "work")
    assert (mounted.path / "moved/there/f").read_text() == "new\n"


def test_the_next_mount_removes_what_a_killed_restore_has_left(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "live").mkdir()
    server = serve(f"dir:{tmp_path}/live", at="mnt")
    branch_of(server)
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
