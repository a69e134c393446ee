"""Branches that begin with a state before the present: before a call, or at a time."""

from __future__ import annotations

import errno
import os
import time
from functools import partial
from pathlib import Path

import mounts
import pytest
from mounts import Serve
from programs import as_call, command
from trees import snapshot

import fusebackend

pytestmark = pytest.mark.mounted

RECORDED = ["history=on", "snapshots=manual"]

STEPS = [
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


def branch_of(path: Path, name: str) -> Path:
    return path / ".fusebackend/branches" / name


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
            for step in STEPS:
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
