"""`HostedSandbox`: what the thin classes over the SDKs of hosted sandboxes have in common.

The SDK's object is its owner's, who makes it and ends it: nothing here starts, prolongs or ends a sandbox. Whatever the
SDK raises is an error of one line in the answer.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from fusebackend.backends.sandbox.staged import StagedSandbox
from fusebackend.linux.command import End, Kept, nothing_to_run, require_positive, response
from fusebackend.protocol import ExecuteResponse


class Ran(NamedTuple):
    """What an SDK tells of a command. Without a code, it ran out of time."""

    stdout: bytes
    stderr: bytes
    code: int | None


class HostedSandbox(StagedSandbox):
    """See the module's docstring.

    Args:
        timeout: seconds that a command may take, unless `execute` is told otherwise.
        max_output_bytes: output beyond this is dropped, and the answer says `truncated`.
        root: the directory that is `/` for the file verbs, and where commands begin.
        on_exists: what `write` does to an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
    """

    def __init__(
        self,
        timeout: float = 120.0,
        max_output_bytes: int = 100_000,
        *,
        root: str = "/",
        on_exists: Literal["error", "replace"] = "error",
    ) -> None:
        require_positive(timeout)
        if max_output_bytes < 0:
            raise ValueError(f"max_output_bytes must not be negative, but is {max_output_bytes}")
        super().__init__(root=root, on_exists=on_exists)
        self.timeout = timeout
        self.max_output_bytes = max_output_bytes

    @abc.abstractmethod
    def run(self, command: str, timeout_s: int) -> Ran:
        """Run a command in `root` through the SDK, and let it raise what it raises."""

    def execute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run `command`, with output as every backend has it: stdout, then stderr's lines prefixed `[stderr] `.

        Raises:
            ValueError: `timeout` is not above 0.
        """
        seconds = self.timeout if timeout is None else timeout
        require_positive(seconds)
        refusal = nothing_to_run(command)
        if refusal is not None:
            return refusal
        try:
            with telling():
                ran = self.run(command, math.ceil(seconds))
        except OSError as error:
            return ExecuteResponse(output=f"Error executing command: {error.strerror}", exit_code=1)
        kept = []
        for stream in (ran.stdout, ran.stderr):
            kept.append(Kept(self.max_output_bytes))
            kept[-1].add(stream)
        end = End.TIME_OUT if ran.code is None else End.EXIT
        return response(kept[0], kept[1], end, ran.code or 0, seconds, self.max_output_bytes)


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Whatever an SDK raises inside, as an `OSError` of one line."""
    try:
        yield
    except Exception as error:  # each SDK has its own, and those of its transport
        line = " ".join(str(error).split())
        raise OSError(errno.EIO, f"{type(error).__name__}: {line}" if line else type(error).__name__) from error
