"""`sandbox = "none"`: a command that runs as this user, in the mount, and is held by nothing but its limits.

It sees the whole machine, with the mount where it is mounted. What it leaves running is ended with it as far as it
stays in its control group or, without one, in its process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping

from fusebackend.shell import system
from fusebackend.shell.launch import Launch

_BEHIND_THE_GATE = 'read -r _ && cd -- "$1" && exec "$2" -c "$3"'
"""The shell changes directory itself: this process must not wait for its own mount. The gate is a line of input, which
`read` takes byte by byte, so that the rest is left for the command; and at the end of input, nothing runs."""


class Unconfined(Launch):
    """See the module's docstring."""

    def __init__(self, command: str, cwd: str, env: Mapping[str, str]) -> None:
        """Start a shell that waits at the gate.

        Raises:
            OSError, ValueError: it can't be started.
        """
        self.process = subprocess.Popen(
            [system.SHELL, "-c", _BEHIND_THE_GATE, system.SHELL, cwd, system.SHELL, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
            umask=system.UMASK,
        )

    def wait_for_first(self, deadline: float, stopped: Callable[[], bool]) -> int | None:
        return self.process.pid

    def is_ready(self, deadline: float, stopped: Callable[[], bool]) -> bool:
        return True

    def open_gate(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self.process.stdin.fileno(), b"\n")

    def end(self) -> None:
        # The group's number is the child's. Once that is reaped it may be another's, so this comes first.
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def failed(self) -> bool:
        return False
