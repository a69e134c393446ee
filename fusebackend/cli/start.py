"""Starting a server in the background and waiting until its mount answers.

The server is a new process, not a fork: backends start threads, and threads do not survive a fork. Its plan goes
through its standard input, so that passwords in URLs don't show in the list of processes; its answer comes back through
a pipe, as one line of JSON: `{"pid": …, "warnings": […]}` or `{"error": …}`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec

from fusebackend.base import xdg
from fusebackend.base.deadline import is_readable
from fusebackend.base.lines import split_lines
from fusebackend.config import MountPlan
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountError

START_TIMEOUT_S = 60.0
"""For opening every backend and mounting; the embedded default needs a fraction of a second."""

END_TIMEOUT_S = 5.0
"""For a server that is asked to end while it starts."""

MAX_LOG_BYTES = 10 << 20
"""A log longer than this is put aside as `.1` when a server starts."""


def start(plan: MountPlan) -> tuple[int, list[str]]:
    """Start a server; returns its process id when its mount answers, and messages for the user.

    Raises:
        MountError: it could not mount, in its own words.
    """
    if plan.log is None:
        raise ValueError("a server in the background needs a log")
    log_fd = open_log(plan.log)
    try:
        fcntl.flock(log_fd, fcntl.LOCK_EX)  # another command may be about to mount here, too
        if plan.is_mounted and table.mount_at(plan.mountpoint) is not None:
            raise MountError(errno.EBUSY, f"'{plan.mountpoint}' has been mounted by another command just now")
        return _start_with_log(plan, plan.log, log_fd)
    finally:
        fcntl.flock(log_fd, fcntl.LOCK_UN)  # closing would not do: the server has it open as well
        os.close(log_fd)


def _start_with_log(plan: MountPlan, log: str, log_fd: int) -> tuple[int, list[str]]:
    log_start = os.fstat(log_fd).st_size
    process, answer_fd = _start(plan, log_fd)
    try:
        answer = _wait_for_answer(answer_fd)
    except BaseException:  # Ctrl-C too: the server must not stay
        _end(process)
        raise
    finally:
        os.close(answer_fd)
    if answer is None:
        _end(process)
        raise MountError(errno.ETIMEDOUT, f"no answer from the server within {START_TIMEOUT_S:.0f} s; see {log}")
    if "pid" not in answer:
        process.wait(END_TIMEOUT_S)
        raise MountError(errno.EIO, _why(answer, log, log_start))
    process.returncode = 0  # it is meant to outlive us: no warning that it still runs
    return process.pid, answer["warnings"]


def open_log(path: str) -> int:
    """Open a log for appending, readable by its owner only; a long one is renamed first."""
    xdg.make_directory(os.path.dirname(path), "XDG_STATE_HOME")
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_size > MAX_LOG_BYTES:
            os.replace(path, f"{path}.1")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _start(plan: MountPlan, log_fd: int) -> tuple[subprocess.Popen[bytes], int]:
    answer_fd, ready_fd = os.pipe()
    try:
        process = subprocess.Popen(
            # -P: modules of the current directory must not stand in for Python's
            [sys.executable, "-P", "-m", "fusebackend.cli.serve", plan.mountpoint],
            stdin=subprocess.PIPE,
            stdout=log_fd,
            stderr=log_fd,
            pass_fds=(ready_fd,),
            start_new_session=True,
        )
    except BaseException:
        os.close(answer_fd)
        raise
    finally:
        os.close(ready_fd)
    stdin = process.stdin
    if stdin is not None:
        with contextlib.suppress(BrokenPipeError), stdin:  # it ended at once; the missing answer will say so
            stdin.write(json.dumps({"plan": msgspec.to_builtins(plan), "ready_fd": ready_fd}).encode())
    return process, answer_fd


def _wait_for_answer(fd: int) -> dict[str, Any] | None:
    """The server's answer; empty when it ended without one, None when it took too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    received = b""
    while not received.endswith(b"\n"):
        if not is_readable(fd, deadline - time.monotonic()):
            return None
        chunk = os.read(fd, 65536)
        if not chunk:
            return {}
        received += chunk
    answer: dict[str, Any] = json.loads(received)
    return answer


def _why(answer: dict[str, Any], log: str, log_start: int) -> str:
    """The error of a server that did not start, with libfuse's own words, which it prints, when there are some."""
    with open(log, "rb") as file:
        file.seek(log_start)
        printed = split_lines(file.read(65536).decode("utf-8", "replace"))
    if not answer:
        last_words = f": {printed[-1]}" if printed else ""
        return f"the server ended before it was ready{last_words} (see {log})"
    reasons = [line for line in printed if line.startswith(("fusermount3:", "fuse:", "mount:"))]
    return f"{answer['error']} ({reasons[-1]})" if reasons else str(answer["error"])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server that is not wanted any more, gently first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
            return
