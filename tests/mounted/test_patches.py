"""A mount without the workarounds for pyfuse3 and libfuse serves as well, only slower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from eventually import eventually
from mounts import Serve

from fusebackend.vfs.switches import OPTIMISATIONS, VARIABLE


@pytest.mark.parametrize(
    "off", [",".join(OPTIMISATIONS), *(pytest.param(name, marks=pytest.mark.night) for name in OPTIMISATIONS)]
)
def test_a_mount_serves_without_an_optimisation(
    off: str, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, off)
    root = serve(f"sqlite:{tmp_path}/files.db", routes={"/blocks": "state:"}).path
    for directory in (root, root / "blocks"):
        made = directory / "made"
        made.mkdir()
        for number in range(20):
            (made / f"file-{number}").write_text(f"{number}\n" * 100)
        for _ in range(2):
            assert len(os.listdir(made)) == 20
        assert subprocess.check_output(["cat", made / "file-7"]) == b"7\n" * 100
        with open(made / "file-7", "a") as file:
            file.write("more\n")
        (made / "file-7").rename(directory / "moved")
        assert not (made / "file-7").exists() and (directory / "moved").read_text().endswith("7\nmore\n")
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-C", root / "made"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"], ["fsck", "--strict"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    assert subprocess.check_output([*git, "status", "--porcelain"]) == b""


def test_the_flags_of_init_save_questions_and_the_kernels_limits_are_raised(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    for off, read_ahead in (("", "256\n"), ("init_flags,kernel_limits", "128\n")):
        monkeypatch.setenv(VARIABLE, off)
        root = serve("memory:").path
        (root / "file").touch()
        with open(root / "file", "r+b", buffering=0) as file:
            for _ in range(20):
                file.write(b"x")
        asked.append(json.loads(os.getxattr(root, "user.fusebackend.status"))["counters"].get("getxattr", 0))
        if os.geteuid() == 0:  # only root may raise it
            eventually(lambda root=root, read_ahead=read_ahead: _read_ahead(root) == read_ahead, 60)
    assert asked[1] >= asked[0] + 15


def _read_ahead(root: Path) -> str:
    device = os.stat(root).st_dev
    return Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text()


def test_a_name_that_is_no_optimisation_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "prefil")
    command = [sys.executable, "-m", "fusebackend", "mount", "--default", "memory:", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "'prefil' is no optimisation" in done.stderr
    assert "Traceback" not in done.stderr
