"""A command while it runs: its output read as it comes, its input fed, its end awaited, all by the thread that asks.

`StartedProcess` belongs to one thread. Output is kept up to a limit and read beyond it, so that a full pipe never
stops a command. `LocalShellBackend`, `DockerBackend` and the shell of a mount all answer with `response`, in the seeds'
format: stdout, the lines of stderr after `[stderr] `, and 124 for a time-out.

A command ends when its caller no longer waits for it (`budget.Cancellation`), wherever it was asked for.
"""

from __future__ import annotations

import codecs
import contextlib
import enum
import logging
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Literal, TypeAlias

from fusebackend.base import budget
from fusebackend.base.context import closing_fd
from fusebackend.base.lines import split_lines
from fusebackend.protocol import ExecuteResponse

log = logging.getLogger(__name__)

PIECE_BYTES = 64 << 10

LEFT_BYTES = 1 << 20
"""Read of each stream after the command has ended: as much as a pipe can hold. Other processes that hold it may write
on."""

STOP_POLL_S = 0.05
"""How often a command that may be stopped from outside is looked at."""

TIMED_OUT = 124
"""The exit code after a time-out, as of timeout(1)."""

REFUSED = 126
"""The exit code of a command that was not started: a shell gives it for a file that can't be run."""

STOPPED = 130
"""The exit code of a command that was stopped from outside: as a shell's after Ctrl-C."""

CLOSE_PATIENCE_S = 90.0
"""How long the end of a mount waits for commands to end."""

NO_OUTPUT = "<no output>"
STDERR = "[stderr] "

OnOutput: TypeAlias = Callable[[Literal["stdout", "stderr"], bytes], None]


@dataclass(frozen=True)
class Command:
    """A command for `sh -c`, as its caller gives it. It ends when its caller is cancelled (`base/budget.py`).

    Attributes:
        text: the command.
        timeout_s: seconds, up to the maximum of the place where it runs, whose own time-out holds when None.
        stdin: its input; none when None.
        cwd: the directory it starts in, as the agent names it.
        on_output: called with output as it comes, in the calling thread; an exception of it ends the command.
        on_start: called with the pid of its first process, before that starts others, by the mount's own sandbox.
    """

    text: str
    timeout_s: float | None = None
    stdin: bytes | None = None
    cwd: str = "/"
    on_output: OnOutput | None = None
    on_start: Callable[[int], None] | None = None


class End(enum.Enum):
    """How the wait for a command ended."""

    EXIT = enum.auto()
    TIME_OUT = enum.auto()
    STOP = enum.auto()


class Running:
    """The commands of a mount that are under way, so that its end can wait for them. Any thread may call it."""

    def __init__(self) -> None:
        self.count = 0
        self.closed = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def command(self, refusal: type[Exception]) -> Iterator[None]:
        """Count one command for the length of a block. Raises `refusal` after `close`."""
        with self._changed:
            if self.closed:
                raise refusal("the mount is ending, and takes no more commands")
            self.count += 1
        try:
            yield
        finally:
            with self._changed:
                self.count -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse further commands, and wait until those under way, which look at `closed`, have ended."""
        with self._changed:
            self.closed = True
            if not self._changed.wait_for(lambda: self.count == 0, CLOSE_PATIENCE_S):
                log.error("%d commands have not ended within %.0f s", self.count, CLOSE_PATIENCE_S)


class Kept:
    """The kept part of one stream of output: the first bytes of it, and how much there was.

    Args:
        keep_bytes: how many bytes are kept.
        told: called with each kept piece.
    """

    def __init__(self, keep_bytes: int, told: Callable[[bytes], None] | None = None) -> None:
        self.kept = bytearray()
        self.seen = 0
        self._keep = keep_bytes
        self._told = told

    def add(self, piece: bytes) -> None:
        """Take note of more output."""
        self.seen += len(piece)
        kept = piece[: self._keep - len(self.kept)]
        self.kept += kept
        if kept and self._told is not None:
            self._told(kept)


class _OutputStream(Kept):
    """One stream of a process."""

    def __init__(self, pipe: IO[bytes], keep_bytes: int, told: Callable[[bytes], None] | None) -> None:
        super().__init__(keep_bytes, told)
        self.pipe = pipe
        os.set_blocking(pipe.fileno(), False)

    def take(self) -> bool:
        """Read what is there; False at the end of the stream. Raises BlockingIOError when nothing is there now."""
        piece = os.read(self.pipe.fileno(), PIECE_BYTES)
        self.add(piece)
        return bool(piece)

    def drain(self) -> None:
        """Read what is left, as far as it is there."""
        end = self.seen + LEFT_BYTES
        with contextlib.suppress(BlockingIOError):
            while self.seen < end and self.take():
                pass


class _Input:
    """The input of a command."""

    def __init__(self, pipe: IO[bytes], content: bytes) -> None:
        self.pipe = pipe
        self._left = memoryview(content)
        os.set_blocking(pipe.fileno(), False)

    def take(self) -> bool:
        """Write what the pipe can hold; False at the end, and when the pipe is closed."""
        try:
            self._left = self._left[os.write(self.pipe.fileno(), self._left[:PIECE_BYTES]) :]
        except BrokenPipeError:
            return False
        return bool(self._left)


class StartedProcess:
    """A started process. Its streams are read until it ends, not until they do, for others may hold them open.

    Args:
        process: started with pipes for stdout and stderr, and for stdin where there is input.
        keep_bytes: how much of each stream is kept.
        stdin: written to its standard input, which is then closed.
        on_output: called with the kept output, as it comes. An exception of it ends the wait.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        keep_bytes: int,
        *,
        stdin: bytes | None = None,
        on_output: OnOutput | None = None,
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._input: _Input | None = None
        if stdin is not None:
            assert process.stdin is not None
            self._input = _Input(process.stdin, stdin)
        self.stdout = _OutputStream(
            process.stdout, keep_bytes, on_output and (lambda piece: on_output("stdout", piece))
        )
        self.stderr = _OutputStream(
            process.stderr, keep_bytes, on_output and (lambda piece: on_output("stderr", piece))
        )

    def wait(self, deadline: float, stopped: Callable[[], bool] | None = None) -> End:
        """Read and write until the process has ended, `deadline` (monotonic) has come, `stopped` returns True, or the
        caller is cancelled.

        The process is neither killed nor reaped: the caller does that, for the whole group.
        """
        with (
            _cancellation() as cancelled,
            selectors.DefaultSelector() as selector,
            closing_fd(os.pidfd_open(self._process.pid)) as ended,
        ):
            selector.register(ended, selectors.EVENT_READ)
            selector.register(cancelled, selectors.EVENT_READ)
            for stream in (self.stdout, self.stderr):
                selector.register(stream.pipe, selectors.EVENT_READ, stream)
            if self._input is not None:
                selector.register(self._input.pipe, selectors.EVENT_WRITE, self._input)
            while (left_s := deadline - time.monotonic()) > 0:
                if stopped is not None:
                    if stopped():
                        return End.STOP
                    left_s = min(left_s, STOP_POLL_S)
                ready = [key for key, _ in selector.select(left_s)]
                if any(key.fd == cancelled for key in ready):
                    return End.STOP
                if any(key.fd == ended for key in ready):
                    return End.EXIT
                for key in ready:
                    if not key.data.take():
                        selector.unregister(key.fileobj)
                        if key.data is self._input:
                            self._input.pipe.close()
            return End.TIME_OUT

    def drain(self) -> None:
        """Read what is left after the end."""
        self.stdout.drain()
        self.stderr.drain()


@contextlib.contextmanager
def _cancellation() -> Iterator[int]:
    """A descriptor that can be read as soon as the caller no longer waits."""
    with (
        closing_fd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)) as woken,
        budget.current().waking(lambda: os.eventfd_write(woken, 1)),
    ):
        yield woken


def output(stdout: Kept, stderr: Kept, max_bytes: int) -> tuple[str, bool]:
    """Two streams as one text, and whether it was cut."""
    parts = [bytes(stdout.kept)]
    errors = bytes(stderr.kept).strip(b"\n")
    if errors:
        if stdout.kept and not stdout.kept.endswith(b"\n"):
            parts.append(b"\n")
        parts.append(b"\n".join(STDERR.encode() + line for line in errors.split(b"\n")))
    joined = b"".join(parts)
    dropped = any(stream.seen > len(stream.kept) for stream in (stdout, stderr))
    truncated = len(joined) > max_bytes or dropped
    # With `final=False` the decoder leaves out a character that the limit has cut in two.
    shown = codecs.getincrementaldecoder("utf-8")("replace").decode(joined[:max_bytes], final=not truncated)
    if truncated:
        return f"{shown}\n\n... Output truncated at {max_bytes} bytes.", True
    return shown or NO_OUTPUT, False


def response(stdout: Kept, stderr: Kept, end: End, code: int, timeout_s: float, max_bytes: int) -> ExecuteResponse:
    """The answer to `execute`. `code` is the process's, a negative signal number as `Popen` has it."""
    shown, truncated = output(stdout, stderr, max_bytes)
    if end is not End.EXIT:
        timed_out = end is End.TIME_OUT
        message = f"timed out after {timeout_s:.10g} seconds" if timed_out else "was stopped"
        message = f"Error: Command {message}."
        if shown != NO_OUTPUT:
            message = f"{message}\n\n{shown}"
        return ExecuteResponse(output=message, exit_code=TIMED_OUT if timed_out else STOPPED, truncated=truncated)
    if code < 0:
        code = 128 - code  # as a shell tells of a signal
    if code != 0:
        shown = f"{shown.rstrip()}\n\nExit code: {code}"
    return ExecuteResponse(output=shown, exit_code=code, truncated=truncated)


def streams(answer: ExecuteResponse) -> tuple[str, str, bool]:
    """Take an answer of `execute` apart: stdout, stderr, and whether the command timed out. A line of stdout that
    begins with `[stderr] ` is taken for one of stderr."""
    text = answer.output.removesuffix(f"\n\nExit code: {answer.exit_code}").removesuffix(NO_OUTPUT)
    lines = split_lines(text, with_ends=True)
    errors = "".join(line.removeprefix(STDERR) for line in lines if line.startswith(STDERR))
    plain = "".join(line for line in lines if not line.startswith(STDERR))
    return plain, errors, answer.exit_code == TIMED_OUT and plain.startswith("Error: Command timed out")


def nothing_to_run(command: object) -> ExecuteResponse | None:
    """The answer to a command that is none."""
    if isinstance(command, str) and command.strip():
        return None
    return ExecuteResponse(output="Error: Command must be a non-empty string.", exit_code=1)


def require_positive(timeout: float, max_output_bytes: int = 0) -> None:
    """Raise ValueError for a time-out that is not above 0, or a negative limit of output."""
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds, but is {timeout}")
    if max_output_bytes < 0:
        raise ValueError(f"max_output_bytes must not be negative, but is {max_output_bytes}")
