"""A server of the tests: a child of this process in a session of its own, in a temporary directory with its log.

It is ended by its process id, and is started with setpriv(1), so that the kernel ends it when this process is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

LIMIT_S = 60.0

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""What must be free there for a server whose files need not outlive it. Twice what one takes, and memory for tests."""


def as_user() -> list[str]:
    """Return setpriv's words for a program that refuses to run as root: root starts it as the user `postgres`."""
    return ["--reuid=postgres", "--regid=postgres", "--init-groups"] if os.geteuid() == 0 else []


class Program:
    """One server. It may start again after its end; `remove` ends it for good, and removes its directory."""

    name: str

    def __init__(self, directory: str, *, user: bool = False, in_memory: bool = False) -> None:
        # Not pytest's directory: the path of a socket may have 107 bytes, and the user `postgres` must get there.
        has_room = in_memory and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
        self.directory = Path(tempfile.mkdtemp(prefix=f"fusebackend-{directory}-", dir=MEMORY if has_room else None))
        self._process: subprocess.Popen[bytes] | None = None
        if user and as_user():
            shutil.chown(self.directory, "postgres", "postgres")

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def log_text(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def answers(self) -> bool:
        """Return whether it takes requests."""
        raise NotImplementedError

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start it by setpriv's words and its own, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                start_new_session=True, env=environment,
            )  # fmt: skip
        self.wait()

    def wait(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + LIMIT_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end(signal.SIGKILL)
                pytest.fail(f"{self.name} did not start:\n{self.log_text[-2000:]}", pytrace=False)
            time.sleep(0.02)

    def end(self, number: signal.Signals, limit_s: float = 30.0) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self.name} did not end within {limit_s:.0f} s of {number.name}") from None

    def remove(self) -> None:
        self.end(signal.SIGKILL)
        shutil.rmtree(self.directory)
