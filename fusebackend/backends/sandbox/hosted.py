"""`HostedSandbox`: the common parts of the thin classes over the SDKs of hosted sandboxes.

The caller makes and ends the SDK's object: nothing here starts, prolongs or ends a sandbox. Errors of the SDK become
errors of one line in the answer.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import importlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fusebackend.backends.sandbox.base import BaseSandbox
from fusebackend.base.extras import needed_by
from fusebackend.linux.command import End, Kept, nothing_to_run, require_positive, response
from fusebackend.protocol import ExecuteResponse, OnExists


class Ran(NamedTuple):
    """The outcome of a command in an SDK. Without a code, it ran out of time."""

    stdout: bytes
    stderr: bytes
    code: int | None


class HostedSandbox(BaseSandbox):
    """See the module's docstring.

    Args:
        sandbox: the SDK's object. The caller makes and ends it.
        timeout: seconds that a command may take by default.
        max_output_bytes: output beyond this is dropped, and the answer says `truncated`.
        root: the directory that is `/` for the file verbs, and where commands begin.
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
    """

    def __init__(
        self,
        sandbox: Any,
        timeout: float = 120.0,
        max_output_bytes: int = 100_000,
        *,
        root: str = "/",
        on_exists: OnExists = "error",
    ) -> None:
        require_positive(timeout, max_output_bytes)
        super().__init__(root=root, on_exists=on_exists)
        self.sandbox = sandbox
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
            with sdk_errors():
                ran = self.run(command, math.ceil(seconds))
        except OSError as error:
            return ExecuteResponse(output=f"Error executing command: {error.strerror}", exit_code=1)
        stdout, stderr = Kept(self.max_output_bytes), Kept(self.max_output_bytes)
        stdout.add(ran.stdout)
        stderr.add(ran.stderr)
        end = End.TIME_OUT if ran.code is None else End.EXIT
        return response(stdout, stderr, end, ran.code or 0, seconds, self.max_output_bytes)


@contextlib.contextmanager
def sdk_errors() -> Iterator[None]:
    """Turn errors of an SDK in the block into an `OSError` of one line."""
    try:
        yield
    except Exception as error:  # each SDK has its own, and those of its transport
        line = " ".join(str(error).split())
        raise OSError(errno.EIO, f"{type(error).__name__}: {line}" if line else type(error).__name__) from error


class E2BBackend(HostedSandbox):
    """The files and the shell of an E2B sandbox (extra `e2b`).

        E2BBackend(e2b.Sandbox.create())

    Tested against a stand-in that has the calls of e2b 2.63 that are used here (`commands.run`, `files.write_files`,
    `files.read`, `sandbox_id`), and not against the service.

    Args:
        sandbox: an `e2b.Sandbox`. It is its owner's: `kill` ends it.
        options: as for `HostedSandbox`.
    """

    @property
    def id(self) -> str:
        return str(self.sandbox.sandbox_id)

    def run(self, command: str, timeout_s: int) -> Ran:
        with needed_by("E2BBackend"):
            e2b = importlib.import_module("e2b")
        try:
            result = self.sandbox.commands.run(command, cwd=str(self.root), timeout=timeout_s)
        except e2b.CommandExitException as error:  # the SDK's way to tell of a code that is not 0
            result = error
        except e2b.TimeoutException:
            return Ran(b"", b"", None)
        return Ran(_bytes(result.stdout), _bytes(result.stderr), int(result.exit_code))

    def send(self, files: Sequence[tuple[str, bytes]]) -> None:
        with sdk_errors():
            self.sandbox.files.write_files([{"path": path, "data": data} for path, data in files])

    def fetch(self, path: str) -> bytes:
        with sdk_errors():
            return bytes(self.sandbox.files.read(path, format="bytes"))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


OUT_OF_TIME = -1
"""The answer of `ContainerProcess.wait` when the time is over."""


class ModalBackend(HostedSandbox):
    """The files and the shell of a Modal sandbox (extra `modal`).

        ModalBackend(modal.Sandbox.create(app=app))

    Tested against a stand-in that has the calls of modal 1.6 that are used here (`exec`, `filesystem.write_bytes`,
    `filesystem.read_bytes`, `object_id`), and not against the service.

    Args:
        sandbox: a `modal.Sandbox`. It is its owner's: `terminate` ends it.
        options: as for `HostedSandbox`.
    """

    @property
    def id(self) -> str:
        return str(self.sandbox.object_id)

    def run(self, command: str, timeout_s: int) -> Ran:
        process = self.sandbox.exec("sh", "-c", command, timeout=timeout_s, workdir=str(self.root), text=False)
        stdout, stderr = process.stdout.read(), process.stderr.read()
        code = process.wait()
        return Ran(stdout, stderr, None if code == OUT_OF_TIME else int(code))

    def send(self, files: Sequence[tuple[str, bytes]]) -> None:
        with sdk_errors():
            for path, data in files:
                self.sandbox.filesystem.write_bytes(data, path)

    def fetch(self, path: str) -> bytes:
        with sdk_errors():
            return bytes(self.sandbox.filesystem.read_bytes(path))
