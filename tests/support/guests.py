"""Backends that run commands themselves, for `python:` URLs and tests. Their output holds a marker."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import sandboxes

from fusebackend.backends import InMemoryBackend, LocalShellBackend
from fusebackend.protocol import ExecuteResponse

MARKER = "ran in the default itself"


class Marked(InMemoryBackend):
    """Answers every command with a marker, the command and its time-out, and leaves a file."""

    id = "marked-1"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        if command.startswith("raise"):
            raise RuntimeError("the SDK has failed")
        self.upload_files([("/left.txt", command.encode())])
        return ExecuteResponse(output=f"{MARKER}: {command!r} {timeout}", exit_code=7)


class Bare(InMemoryBackend):
    """The seeds' dialect: no time-out, and a mapping for an answer. `wait` blocks until `released` is set."""

    released = threading.Event()

    def execute(self, command: str) -> dict[str, Any]:
        if command == "wait":
            self.released.wait(120)
        return {"output": "x" * int(command) if command.isdecimal() else MARKER, "exit_code": 0}


class OtherShell(LocalShellBackend):
    """A local shell with an `execute` of its own."""

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return ExecuteResponse(output=MARKER, exit_code=0)


def marked() -> Marked:
    return Marked()


def bare() -> Bare:
    return Bare()


def other(root: str) -> OtherShell:
    return OtherShell(root)


def hosted(directory: str) -> sandboxes.LocalSandbox:
    """Make a stand-in for a hosted sandbox: a directory, reached by commands and two transfers."""
    root = Path(directory, "root")
    root.mkdir(exist_ok=True)
    programs = sandboxes.tools("gnu", Path(directory, "tools"))
    for program in ("ls", "touch"):  # tests use these
        (programs / program).symlink_to(f"/bin/{program}")
    return sandboxes.LocalSandbox(root, programs)
