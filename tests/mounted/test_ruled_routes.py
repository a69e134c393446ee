"""A route that hides names, and what a mount keeps of the past: no verb and no tree shows a hidden name or bytes."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from mounts import Mounted, Serve
from programs import command

import fusebackend
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.walk import resolve

pytestmark = pytest.mark.mounted

SECRET = "hunter2-correct-horse"
HIDDEN = ["secret/**", "secret", ".env", "**/.env"]
FILES = {
    "a": "one\n",
    "sub/x": "x\n",
    "only/gone": "gone\n",
    ".env": SECRET,
    "sub/.env": SECRET,
    "only/.env": SECRET,
    "secret/key": SECRET,
}
SEEN = {"a", "sub", "sub/x", "only", "only/gone"}


def config(tmp_path: Path) -> Path:
    path = tmp_path / "ruled.toml"
    path.write_text(
        f"""
        [default]
        url = "sqlite:{tmp_path}/volume.db"
        hide = {json.dumps(HIDDEN)}
        [routes]
        "/ro" = {{ url = "sqlite:{tmp_path}/ro.db", read_only = true, hide = ["*.key"] }}
        """
    )
    return path


def store(path: str, files: Mapping[str, str]) -> None:
    """Make files, and a snapshot of them, where no rule is."""
    volume = SqliteVolume(path)
    answers = VolumeBackend(volume).upload_files([(f"/{name}", text.encode()) for name, text in files.items()])
    assert [answer.error for answer in answers] == [None] * len(files)
    if "secret/key" in files:
        volume.link(resolve(volume, "/sub/x").found.node, resolve(volume, "/secret").found.node, b"linked")
    volume.take_snapshot("before-the-rule")
    volume.close()


@pytest.fixture
def ruled(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounted]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    store(f"{tmp_path}/volume.db", FILES)
    store(f"{tmp_path}/ro.db", {"r": "r\n", "r.key": SECRET})
    yield serve("", config=config(tmp_path), options=["snapshots=auto", "history=on"])


def names(top: Path) -> set[str]:
    return {
        os.path.relpath(os.path.join(path, name), top)
        for path, directories, files in os.walk(top)
        for name in (*directories, *files)
    }


def said(path: Path, *words: str) -> str:
    """All that a subcommand says, with status 0 or not."""
    done = command(*words, cwd=path)
    return done.stdout + done.stderr


def refused(number: int, work: object) -> None:
    with pytest.raises(OSError) as caught:
        work()  # type: ignore[operator]
    assert caught.value.errno == number, caught.value


def test_what_is_hidden_is_in_nothing_that_is_kept(ruled: Mounted) -> None:
    root, kept = ruled.path, ruled.path / ".fusebackend/snapshots"
    with fusebackend.connect(root) as files:
        routes = {each["prefix"]: each["undo"] for each in files.status()["routes"]}
        assert routes == {"/": "instant", "/ro/": "none"}
        assert files.create_snapshot("taken").routes == ["/", "/ro/"]
        for name in ("before-the-rule", "taken"):
            assert names(kept / name) == SEEN | {"ro", "ro/r"}
            for path in (".env", "sub/.env", "secret", "secret/key", "secret/linked", "ro/r.key"):
                refused(errno.ENOENT, lambda path=path, name=name: os.stat(kept / name / path))
            assert os.stat(kept / name / "sub/x").st_nlink == 1 == os.stat(kept / name).st_nlink
            assert (kept / name / "ro/r").read_text() == "r\n"
        (root / "a").write_text("two\n")
        files.write("/sub/new", "new")
        files.create_branch("old", ref="before-the-rule")
        files.create_branch("new")
        for name, text in (("old", "one\n"), ("new", "two\n")):
            branch = root / ".fusebackend/branches" / name
            assert names(branch) - {"sub/new"} == SEEN | {"ro", "ro/r"}
            assert (branch / "a").read_text() == text
            os.rename(branch / "sub", branch / "moved")
            refused(errno.ENOENT, lambda branch=branch: os.stat(branch / "moved/.env"))
            for path in (".env", "secret"):
                refused(errno.ENOENT, lambda branch=branch, path=path: os.stat(branch / path))
        for path in ("/.env", "/secret/key", "/sub/.env"):
            with pytest.raises(OSError) as absent:
                files.restore([path], ref="before-the-rule")
            assert absent.value.errno == errno.ENOENT
            found = files.forget(path, dry_run=True)
            assert (found.unknown, found.live, found.snapshots) == ([path], [], [])
        assert not [each for each in files.changes() if b"secret" in os.fsencode(each.path)]
        assert not files.grep(SECRET, path=f"{root}/.fusebackend/snapshots/taken").matches
    for words in (
        ["diff", "before-the-rule"], ["diff", "old..new"], ["log", "--changes"], ["blame", ".env"],
    ):  # fmt: skip
        answer = said(root, *words)
        assert SECRET not in answer and "key" not in answer and "linked" not in answer, words
        assert ".env" not in answer or words[-1] == ".env", words
        assert "Traceback" not in answer


def test_files_come_back_as_on_any_route(ruled: Mounted) -> None:
    root = ruled.path
    with fusebackend.connect(root) as files:
        files.create_snapshot("taken")
        assert files.delete("/sub/x").error is None
        assert files.undo().conflicts == []
        assert (root / "sub/x").read_text() == "x\n"
        assert files.edit("/a", "one", "two").error is None
        assert files.restore(["/a"], ref="taken").conflicts == []
        assert (root / "a").read_text() == "one\n"
        assert files.write("/sub/new", "new").error is None
        restored = files.restore(["/"], ref="before-the-rule")
        assert [each.path for each in restored.changes if each.path == "/sub/new"] == ["/sub/new"]
        assert names(root) == SEEN | {"ro", "ro/r"}
        files.create_branch("work")
        branch = root / ".fusebackend/branches/work"
        (branch / "a").write_text("merged\n")
        (branch / "fresh").mkdir()
        (branch / "fresh/f").write_text("f")
        assert files.merge_branch("work").conflicts == []
        assert (root / "a").read_text() == "merged\n" and (root / "fresh/f").read_text() == "f"
        assert files.undo().conflicts == []
        assert (root / "a").read_text() == "one\n" and not (root / "fresh").exists()


def test_what_would_touch_what_is_hidden_is_refused_whole(ruled: Mounted, serve: Serve, tmp_path: Path) -> None:
    root = ruled.path
    with fusebackend.connect(root) as files:
        files.create_branch("work")
        branch = root / ".fusebackend/branches/work"
        (branch / "a").write_text("merged\n")
        (branch / "sub/.env").write_text("mine")  # there is none in the branch
        with pytest.raises(PermissionError) as denied:
            files.merge_branch("work")
        assert "'/sub/.env' can't be merged: Permission denied" in str(denied.value)
        assert names(root) == SEEN | {"ro", "ro/r"} and (root / "a").read_text() == "one\n"
        (branch / "sub/.env").unlink()
        (branch / "only/gone").unlink()
        (branch / "only").rmdir()  # it looks empty there, and is not in the mount
        with pytest.raises(PermissionError) as denied:
            files.merge_branch("work")
        assert "'/only' can't be merged" in str(denied.value)
        assert names(root) == SEEN | {"ro", "ro/r"} and (root / "a").read_text() == "one\n"
        (branch / "only").mkdir()
        files.merge_branch("work", paths=["/a"])
        assert (root / "a").read_text() == "merged\n"
    ruled.stop()
    left = {name for name in FILES if SECRET in FILES[name]}
    without = serve(f"sqlite:{tmp_path}/volume.db", at="without")
    assert {name for name in left if (without.path / name).read_text() == SECRET} == left


def test_a_branch_of_an_earlier_session_finds_its_directories(ruled: Mounted, serve: Serve, tmp_path: Path) -> None:
    branch = ruled.path / ".fusebackend/branches/work"
    with fusebackend.connect(ruled.path) as files:
        files.create_branch("work")
    (branch / "sub/mine").write_text("mine")
    os.rename(branch / "only", branch / "sub/only")
    ruled.stop()
    serve("", at=ruled.path.name, config=config(tmp_path), options=["snapshots=auto", "history=on"])
    assert names(branch) == {"a", "sub", "sub/x", "sub/mine", "sub/only", "sub/only/gone", "ro", "ro/r"}
    refused(errno.ENOENT, lambda: os.stat(branch / "sub/.env"))
    refused(errno.ENOENT, lambda: os.stat(branch / "sub/only/.env"))
