"""`make demo` as it stands, in a checkout of its own, and each command that it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import mounts
import pytest

pytest.importorskip("deepagents")
pytest.importorskip("langgraph.store.sqlite")

ROOT = Path(__file__).parents[2]
LIMIT_S = 120


class Checkout:
    """A directory in which `make` finds this checkout's scripts and examples; nothing is installed there."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "check out"
        self.mountpoint, self.data = tmp_path / "mount point", tmp_path / "da%ta"
        (self.path / "scripts").mkdir(parents=True)
        for name in ("demo", "mountpoint", "umount"):
            (self.path / "scripts" / name).symlink_to(ROOT / "scripts" / name)
        bootstrap = self.path / "scripts/bootstrap"
        bootstrap.write_text("#!/bin/sh\n")
        bootstrap.chmod(0o755)
        (self.path / "Makefile").symlink_to(ROOT / "Makefile")
        (self.path / "examples").symlink_to(ROOT / "examples")
        (self.path / ".venv").symlink_to(sys.prefix)
        self.environment: Mapping[str, str] = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "MOUNTPOINT": str(self.mountpoint),
            "DEMO": str(self.data),
        }

    def run(self, *command: str, status: int = 0) -> str:
        done = subprocess.run(
            command, cwd=self.path, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    if mounts.is_listed(made.mountpoint):
        made.run("scripts/umount")


EXPECTED = [
    # In any order: a minute may have ended between the two.
    r"(?s)\A(?=.*-fix-the-login-test -> ).*-what-does-http-status-429-mean -> ",
    r"Fix the login test",
    r"an off-by-one(.*\n)*.*The login test passes",
    r"(?m)^-    return attempts <= MAX_ATTEMPTS\n\+    return attempts < MAX_ATTEMPTS$",
    r"(?m)^name\tstep\t.*node(.*\n){10,}",
    r"(?m)^\+    assert not may_try\(4\)$",
    r"^[^\n]*/changes/[^\n]*\.patch\n$",
    r"nothing imports it|No file imports legacy_auth",
    r"/README.md:- waits for a human: .*customers@example.com",
    r"^Ada leads",
]
"""What each command shows, as a pattern."""


def test_every_command_that_it_prints_shows_something(checkout: Checkout) -> None:
    printed = checkout.run("make", "demo")
    commands = re.findall(r"^# .*\n(.*)$", printed, re.MULTILINE)
    assert len(commands) == len(EXPECTED) == 10
    for command, expected in zip(commands, EXPECTED, strict=True):
        shown = checkout.run("bash", "-c", command)
        assert re.search(expected, shown), f"{command}\n{shown}"
    # What the mount has besides: the files of all conversations, and memories that can be written to.
    assert (checkout.mountpoint / "reports/login-test.md").read_text().startswith("# The login test")
    with (checkout.mountpoint / "memories/AGENTS.md").open("a") as memory:
        memory.write("- Write in French.\n")

    refused = checkout.run("make", "demo", status=2)
    assert re.search(r"^demo: .*/mount point is mounted already; 'make umount' first, or set MOUNTPOINT", refused)
    elsewhere = checkout.mountpoint.with_name("elsewhere")
    refused = checkout.run("make", "demo", f"MOUNTPOINT={elsewhere}", status=2)
    assert re.search(r"^demo: it is mounted on .*/mount point already; end it with 'fusebackend umount ", refused)

    checkout.run("make", "umount")
    assert not mounts.is_listed(checkout.mountpoint)
    assert list(checkout.mountpoint.iterdir()) == []
    assert not _serves(checkout.data)

    again = checkout.run("make", "demo")  # of the last one nothing is left
    assert re.findall(r"^# .*\n(.*)$", again, re.MULTILINE) == commands
    assert "French" not in (checkout.mountpoint / "memories/AGENTS.md").read_text()
    assert len(os.listdir(checkout.mountpoint / "threads")) == 4
    checkout.run("make", "umount")
    assert not _serves(checkout.data)


def _serves(directory: Path) -> bool:
    """Whether a process has one of the databases open."""
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(path).startswith(str(directory)) for path in descriptors.iterdir()):
                return True
        except OSError:  # it ended, or it belongs to another user
            continue
    return False
