"""`fusebackend forget` on a real mount: after it, no file that the server keeps has a byte of the secret."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from mounts import Mounted, Serve
from programs import command, ok

import fusebackend
from fusebackend.backends.sqlite.check import check

pytestmark = pytest.mark.mounted

SECRET = b"hunter2-correct-horse"


@pytest.fixture
def mounted(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounted]:
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


def test_no_byte_of_it_is_left(mounted: Mounted, tmp_path: Path) -> None:
    root = mounted.path
    with fusebackend.connect(root) as files:
        for place in (root, root / "plain", root / "memory"):
            put(place / "kept", b"of no interest " * 9)
            put(place / "secret", SECRET * 10)
            os.setxattr(place / "secret", "user.note", SECRET) if place != root / "memory" else None
            put(place / "secret", SECRET * 8000)
        files.create_snapshot("named")
        files.create_branch("work")
        branch = root / ".fusebackend/branches/work"
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
        files.create_snapshot("later")
        calls = [each.call for each in files.log()]
        eventually(lambda: {"volume.db", "work.db"} <= {name.removesuffix("-wal") for name in holding(tmp_path)})

        paths = [root / name for name in ("secret", "plain/secret", "memory/secret")]
        (branch / "own").unlink()  # no path leads to its bytes any more
        assert "add --yes" in command("forget", *paths, cwd=root).stderr
        would = json.loads(ok("forget", "-n", "--json", *paths, cwd=root))
        assert would["branches"] == ["work"]
        assert {"named", "later"} <= set(would["snapshots"])
        assert would["images"] > 0
        done = command("forget", "--yes", *paths, cwd=root)
        assert done.returncode == 0, done
        assert "not reached: free blocks" in done.stderr
        assert "/secret' is there, and stays as it is" in done.stderr
        assert holding(tmp_path) == []
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


def test_errors_are_one_line(mounted: Mounted) -> None:
    done = command("forget", "/tmp", cwd=mounted.path)
    assert done.returncode != 0
    assert "Error: '/tmp' lies in no mount" in done.stderr
    assert "Traceback" not in done.stderr
    done = command("forget", "--yes", "gone", cwd=mounted.path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1, "Error: no file, snapshot, branch or call has 'gone': is that how it was written?",
    )  # fmt: skip
    (mounted.path / "directory").mkdir()
    (mounted.path / "directory/file").write_text("x")
    within = command("forget", "--yes", "directory", "directory/file", cwd=mounted.path)
    assert within.returncode == 0, within.stderr
