"""The calls in a branch: who changed what there."""

from __future__ import annotations

from pathlib import Path

import mounts
import pytest
from programs import as_call, sh

import fusebackend
from fusebackend.control.client.client import Client

pytestmark = pytest.mark.mounted

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
                ("coder", {("content", "/lib/deep/text", None), ("attributes", "/docs/here", None)}),
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
            assert changed(files, "copy") == wanted
            assert [each.call for each in files.log(branch="copy")] == ["b4", "b3", "b2", "b1"]
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
