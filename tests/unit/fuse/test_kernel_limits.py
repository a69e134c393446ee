"""What of the kernel's limits is raised for a mount, and that it works where they can't be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from eventually import eventually
from mounts import Serve

from fusebackend.fuse.pyfuse3_patches import kernel_limits as tuning


def test_what_can_not_be_raised_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tuning._set(str(tmp_path / "none" / "read_ahead_kb"), 1)
    tuning._set(str(tmp_path), 1)
    assert [record.levelname for record in caplog.records if record.levelno > 10] == []
    assert list(tmp_path.iterdir()) == []


def test_limits_that_can_be_seen_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "CONNECTIONS", str(tmp_path))
    connection = tmp_path / "77"
    connection.mkdir()
    tuning.raise_limits(os.makedev(0, 77), tuning.READ_AHEAD_KIB)
    assert {path.name: path.read_text() for path in connection.iterdir()} == {
        "max_background": str(tuning.MAX_BACKGROUND),
        "congestion_threshold": str(tuning.MAX_BACKGROUND),
    }


@pytest.mark.parametrize("command", ["exit 1", "exec sleep 1000", None], ids=["no", "hung", "none"])
def test_a_system_that_does_not_let_us_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str | None
) -> None:
    if command is not None:
        (tmp_path / "unshare").write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin" if command is not None else str(tmp_path))
    monkeypatch.setattr(tuning, "COMMAND_LIMIT_S", 0.2)
    monkeypatch.setattr(tuning, "CONNECTIONS", str(tmp_path / "connections"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tuning.raise_limits(os.makedev(0, 77), tuning.READ_AHEAD_KIB)


@pytest.mark.mounted
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise them for sure")
def test_a_mount_reads_ahead_a_request_s_worth(serve: Serve) -> None:
    device = os.stat(serve("memory:").path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    setting = Path(f"/sys/class/bdi/{number}/read_ahead_kb")
    eventually(lambda: int(setting.read_text()) == tuning.READ_AHEAD_KIB, 30)
