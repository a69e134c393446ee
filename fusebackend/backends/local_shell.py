"""`LocalShellBackend`: a directory of this machine, and its shell.

The file verbs are those of `FilesystemBackend`. A command runs as this process's user, in `root_dir`, and nothing
confines it: `virtual_mode` is about the paths of the file verbs alone. For commands that may not leave the files they
work on, mount the backend and use the mount's `execute`.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from typing import IO

from fusebackend.backends.directoryface import OnExists
from fusebackend.backends.filesystem import FilesystemBackend
from fusebackend.protocol import Change, ExecuteResponse, SandboxBackendProtocol

PIECE_BYTES = 64 << 10

LEFT_BYTES = 1 << 20
"""Read of each stream after the command has ended: as much as a pipe can hold. Who else holds it may write on."""

TIMED_OUT = 124
"""The exit code after a time-out, as of timeout(1)."""

NO_OUTPUT = "<no output>"


class LocalShellBackend(FilesystemBackend, SandboxBackendProtocol):
    """See the module's docstring.

    Args:
        root_dir: a directory that exists, where commands start; the current one when None.
        virtual_mode: confine the paths of the file verbs to `root_dir`.
        timeout: seconds that a command may take, unless `execute` is told otherwise.
        max_output_bytes: output beyond this is dropped, and the answer says `truncated`.
        env: environment variables of the commands.
        inherit_env: start from this process's environment. By default commands know none of it, for it may hold keys.
        max_file_size_mb, on_exists: as for `FilesystemBackend`.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        virtual_mode: bool = True,
        timeout: int = 120,
        max_output_bytes: int = 100_000,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = False,
        *,
        max_file_size_mb: int = 10,
        on_exists: OnExists = "error",
    ) -> None:
        _require_positive(timeout)
        if max_output_bytes < 0:
            raise ValueError(f"max_output_bytes must not be negative, but is {max_output_bytes}")
        super().__init__(root_dir, virtual_mode, max_file_size_mb, on_exists=on_exists)
        self.timeout = timeout
        self.max_output_bytes = max_output_bytes
        self.env = {**(os.environ if inherit_env else {}), **(env or {})}
        self._id = f"local-{uuid.uuid4().hex[:8]}"

    @property
    def id(self) -> str:
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run `command` with `sh -c` in `root_dir`, with no input.

        What it leaves running in the background goes on, unless it ran out of time: then its whole process group is
        killed. Output is stdout, then the lines of stderr prefixed `[stderr] `.

        Raises:
            ValueError: `timeout` is not above 0.
        """
        seconds = self.timeout if timeout is None else timeout
        _require_positive(seconds)
        if not isinstance(command, str) or not command.strip():
            return ExecuteResponse(output="Error: Command must be a non-empty string.", exit_code=1)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError, UnicodeError) as error:  # the directory is gone; a NUL; longer than 128 KiB
            return ExecuteResponse(output=f"Error executing command: {error}", exit_code=1)
        with process:
            run = _Run(process, self.max_output_bytes)
            timed_out = not run.wait(seconds)
        self.volume.publish(Change())  # it may have changed any file
        output, truncated = _format(run.stdout, run.stderr, self.max_output_bytes)
        if timed_out:
            message = f"Error: Command timed out after {seconds} seconds."
            shown = message if output == NO_OUTPUT else f"{message}\n\n{output}"
            return ExecuteResponse(output=shown, exit_code=TIMED_OUT, truncated=truncated)
        # As a shell tells of a signal: 128 and its number.
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        if code != 0:
            output = f"{output.rstrip()}\n\nExit code: {code}"
        return ExecuteResponse(output=output, exit_code=code, truncated=truncated)


class _Stream:
    """One stream of output: the first bytes of it, and how much there was."""

    def __init__(self, pipe: IO[bytes], keep_bytes: int) -> None:
        self.pipe = pipe
        self.kept = bytearray()
        self.seen = 0
        self._keep = keep_bytes
        os.set_blocking(pipe.fileno(), False)

    def take(self) -> bool:
        """Read what is there; False at the end of the stream. Raises BlockingIOError when nothing is there now."""
        piece = os.read(self.pipe.fileno(), PIECE_BYTES)
        self.seen += len(piece)
        self.kept += piece[: self._keep - len(self.kept)]
        return bool(piece)

    def drain(self) -> None:
        """Read what is left, as far as it is there."""
        end = self.seen + LEFT_BYTES
        with contextlib.suppress(BlockingIOError):
            while self.seen < end and self.take():
                pass


class _Run:
    """A running command: its streams are read until it ends, not until they do, for others may hold them open."""

    def __init__(self, process: subprocess.Popen[bytes], keep_bytes: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.stdout = _Stream(process.stdout, keep_bytes)
        self.stderr = _Stream(process.stderr, keep_bytes)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the command. False when it did not come in time, and all of it was killed."""
        try:
            ended = self._read_until_end(time.monotonic() + timeout_s)
        except BaseException:
            self._kill()
            raise
        if not ended:
            self._kill()
        self.stdout.drain()
        self.stderr.drain()
        return ended

    def _read_until_end(self, deadline: float) -> bool:
        end = os.pidfd_open(self._process.pid)
        with selectors.DefaultSelector() as selector:
            try:
                selector.register(end, selectors.EVENT_READ)
                for stream in (self.stdout, self.stderr):
                    selector.register(stream.pipe, selectors.EVENT_READ, stream)
                while (left_s := deadline - time.monotonic()) > 0:
                    ready = [key for key, _ in selector.select(left_s)]
                    if any(key.fd == end for key in ready):
                        return True
                    for key in ready:
                        if not key.data.take():
                            selector.unregister(key.fileobj)
                return False
            finally:
                os.close(end)

    def _kill(self) -> None:
        # The group's number is the child's, which is not waited for yet: it can't be anybody else's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _format(stdout: _Stream, stderr: _Stream, max_bytes: int) -> tuple[str, bool]:
    """The output as one text, and whether it was cut."""
    parts = [bytes(stdout.kept)]
    errors = bytes(stderr.kept).strip(b"\n")
    if errors:
        if stdout.kept and not stdout.kept.endswith(b"\n"):
            parts.append(b"\n")
        parts.append(b"\n".join(b"[stderr] " + line for line in errors.split(b"\n")))
    output = b"".join(parts)
    truncated = len(output) > max_bytes or stdout.seen > len(stdout.kept) or stderr.seen > len(stderr.kept)
    # Told that there is more to come, the decoder leaves out a character that the limit has cut in two.
    shown = codecs.getincrementaldecoder("utf-8")("replace").decode(output[:max_bytes], final=not truncated)
    if truncated:
        return f"{shown}\n\n... Output truncated at {max_bytes} bytes.", True
    return shown or NO_OUTPUT, False


def _require_positive(timeout: float) -> None:
    if timeout <= 0:
        raise ValueError(f"timeout must be above 0 seconds, but is {timeout}")
