"""`Launch`: one command from its start to the end of its last process, behind a gate until it is under its limits."""

from __future__ import annotations

import abc
import subprocess
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Launch(abc.ABC):
    """Used by one thread, as a context manager: its end is the end of everything that was started.

    `process` is a child of ours with pipes for its input and output.
    """

    process: subprocess.Popen[bytes]

    @abc.abstractmethod
    def wait_for_first(self, deadline: float, stopped: Callable[[], bool]) -> int | None:
        """The process from which all others will come, which has started none yet.

        None when there will be none: it failed, `deadline` (monotonic) has come, or `stopped` said so.
        """

    @abc.abstractmethod
    def is_ready(self, deadline: float, stopped: Callable[[], bool]) -> bool:
        """Wait until what the command will run in is made. False for the reasons of `wait_for_first`.

        Raises:
            SandboxError: it is not as it should be, and the gate must stay closed.
        """

    @abc.abstractmethod
    def open_gate(self) -> None:
        """Let the command start."""

    @abc.abstractmethod
    def end(self) -> None:
        """Kill what is left of it, and wait until it is gone."""

    @abc.abstractmethod
    def failed(self) -> bool:
        """After the end: did the command never start? What was printed then says why."""

    def close(self) -> None:
        """Give back what it holds."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end()
        finally:
            self.close()
