"""The process behind a mount, and its start in the background.

`serve` opens the backends of a plan, mounts them, serves until unmounted and closes them, in this process; the same
without the mount, for `fusebackend serve`. `start` has a new process do that (`python -m fusebackend.cli.serve`), and
waits until its mount answers. That is no fork: backends start threads, and threads do not survive a fork. Its plan goes
through its standard input, so that passwords in URLs don't show in the list of processes; its answer comes back through
a pipe, as one line of JSON: `{"pid": …, "warnings": […]}` or `{"error": …}`.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import fcntl
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from fusebackend.base import heap, xdg
from fusebackend.base.deadline import is_readable
from fusebackend.base.errors import UserError
from fusebackend.base.lines import split_lines
from fusebackend.base.shown import one_line, shown
from fusebackend.config import MountPlan
from fusebackend.control import rendezvous
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountError
from fusebackend.linux.service_manager import ServiceManager
from fusebackend.urls import mask, open_backend

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.server.assemble import LiveMount

log = logging.getLogger("fusebackend.serve")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

START_TIMEOUT_S = 60.0
"""For opening every backend and mounting; the embedded default needs a fraction of a second."""

END_TIMEOUT_S = 5.0
"""For a server that is asked to end while it starts."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a server."""

MAX_LOG_BYTES = 10 << 20
"""A log longer than this is put aside as `.1` when a server starts."""


class _OneLine(logging.Formatter):
    """A record is one line, but for its traceback: a name can't make one, nor steer the terminal of its reader."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # theirs
        return shown(super().formatMessage(record))


def serve(plan: MountPlan, on_ready: Callable[[Sequence[str]], None]) -> None:
    """Serve a plan in the calling thread until it is unmounted, or SIGTERM or SIGINT comes.

    A service manager that started this process is told when the mount answers, and when it ends.

    Args:
        plan: the backends and their mount point. Its `log` is where this process logs; None means standard error.
        on_ready: called once, from another thread, when the mount answers, with messages for its user.

    Raises:
        UrlError, OSError: a backend can't be opened or made durable at the end, or the kernel refused the mount.
    """
    _begin()
    from fusebackend.server.assemble import assemble

    with contextlib.ExitStack() as opened:
        manager = opened.enter_context(ServiceManager.of_environment(is_main=plan.log is None))
        if plan.is_mounted:
            rendezvous.require_unserved(plan.mountpoint)
        else:
            plan = replace(plan, socket=opened.enter_context(rendezvous.claimed(plan.mountpoint, plan.socket)))
        backend = _opened(plan, opened)
        os.chdir("/")  # the directory that this was started in can be unmounted or removed
        does = "mounting" if plan.is_mounted else "serving, without a mount,"
        shown = {prefix: mask(url) for prefix, url in plan.urls.items()}
        log.info("%s %s: %s", does, plan.mountpoint, ", ".join(f"{prefix} = {url}" for prefix, url in shown.items()))
        live = assemble(backend, plan)
        heap.collect_less()

        def ready() -> None:
            on_ready(live.warnings)
            served = "mounted on" if plan.is_mounted else "serving"
            manager.ready(f"{served} {plan.mountpoint}: {', '.join(shown.values())}")
            if plan.sessions is not None:
                threading.Thread(
                    target=_end_with_sessions, args=(plan.sessions,), name="fusebackend-sessions", daemon=True
                ).start()

        with _signals_end(live):
            live.run(ready, lambda: manager.stopping("storing everything"))
    log.info("%s %s, everything is stored", "unmounted" if plan.is_mounted else "ended", plan.mountpoint)


@contextlib.contextmanager
def _signals_end(live: LiveMount) -> Iterator[None]:
    """Have signals end what is served in the block, whenever they come: also before its loop, and after it, while
    everything is stored. There the default action of a SIGTERM after an unmount lost what was not stored yet."""

    def end(number: int, frame: object) -> None:
        live.stop()
        with contextlib.suppress(RuntimeError):  # it came while a line of the log was written
            log.info("%s: everything is stored first; only SIGKILL does not wait for that", signal.Signals(number).name)

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _begin() -> None:
    """Make this process a server: its log, its descriptors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)
    faulthandler.enable()  # a crash in C code leaves the stack of each thread in the log
    # As many descriptors as this process may have: a `dir:` route needs one for each file open through the mount.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _opened(plan: MountPlan, opened: contextlib.ExitStack) -> CompositeBackend:
    """Open the backends of a plan; they are closed with `opened`."""
    from fusebackend.composite.backend import CompositeBackend

    backends = {}
    for prefix, url in plan.urls.items():
        backends[prefix] = open_backend(url)
        opened.callback(_close, backends[prefix], mask(url))
    return CompositeBackend(backends.pop("/"), backends)


def _end_with_sessions(path: str) -> None:
    """End this process as SIGTERM does, when the last session is over."""
    rendezvous.wait_for_sessions(path)
    log.info("the last session is over")
    os.kill(os.getpid(), signal.SIGTERM)


def _close(backend: Any, url: str) -> None:
    close = getattr(backend, "close", None)
    if not callable(close):
        return  # a backend that has nothing to close
    try:
        close()
    except Exception:
        log.exception("could not close %s", url)
        raise


# -- in the background -------------------------------------------------------------------------------------------


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


def _start_with_log(plan: MountPlan, log_path: str, log_fd: int) -> tuple[int, list[str]]:
    log_start = os.fstat(log_fd).st_size
    answer_fd, ready_fd = os.pipe()
    with open(answer_fd, "rb") as answers:
        with open(ready_fd, "wb"):  # only the server keeps it open: its end is the end of the answers
            process = _started(plan, log_fd, ready_fd)
        try:
            answer = _first(answers)
        except BaseException:  # Ctrl-C too: the server must not stay
            _end(process)
            raise
    if answer is None:
        _end(process)
        raise MountError(errno.ETIMEDOUT, f"no answer from the server within {START_TIMEOUT_S:.0f} s; see {log_path}")
    if "pid" not in answer:
        process.wait(END_TIMEOUT_S)
        raise MountError(errno.EIO, _why(answer, log_path, log_start))
    process.returncode = 0  # it is meant to outlive us: no warning that it still runs
    return process.pid, answer["warnings"]


def open_log(path: str) -> int:
    """Open a log for appending, readable by its owner only; a long one is renamed first."""
    xdg.make_directory(os.path.dirname(path), "XDG_STATE_HOME")
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_size > MAX_LOG_BYTES:
            os.replace(path, f"{path}.1")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _started(plan: MountPlan, log_fd: int, ready_fd: int) -> subprocess.Popen[bytes]:
    """Start a server, and give it its plan."""
    process = subprocess.Popen(
        # -P: modules of the current directory must not stand in for Python's
        [sys.executable, "-P", "-m", "fusebackend.cli.serve", plan.mountpoint],
        stdin=subprocess.PIPE,
        stdout=log_fd,
        stderr=log_fd,
        pass_fds=(ready_fd,),
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:  # it ended at once; the missing answer will say so
        process.stdin.write(json.dumps({"plan": msgspec.to_builtins(plan), "ready_fd": ready_fd}).encode())
    return process


def _first(answers: IO[bytes]) -> dict[str, Any] | None:
    """The server's answer, which it writes at once; empty when it ended without one, None when it took too long."""
    if not is_readable(answers.fileno(), START_TIMEOUT_S):
        return None
    line = answers.readline()
    answer: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
    return answer


def _why(answer: dict[str, Any], log_path: str, log_start: int) -> str:
    """The error of a server that did not start, with libfuse's own words, which it prints, when there are some."""
    with open(log_path, "rb") as file:
        file.seek(log_start)
        printed = split_lines(file.read(65536).decode("utf-8", "replace"))
    if not answer:
        last_words = f": {printed[-1]}" if printed else ""
        return f"the server ended before it was ready{last_words} (see {log_path})"
    reasons = [line for line in printed if line.startswith(("fusermount3:", "fuse:", "mount:"))]
    return f"{answer['error']} ({reasons[-1]})" if reasons else str(answer["error"])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server that is not wanted any more, gently first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
            return


def main() -> None:
    """Read the plan from standard input, and answer on the descriptor it names: mounted, or why not."""
    request = json.loads(sys.stdin.buffer.read())
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    ready_fd: int = request["ready_fd"]
    os.set_inheritable(ready_fd, False)
    answers = open(ready_fd, "wb")  # noqa: SIM115 (the first answer closes it)

    def answer(message: dict[str, Any]) -> None:
        if not answers.closed:
            with contextlib.suppress(BrokenPipeError), answers:  # the command that started this has ended
                answers.write(json.dumps(message).encode() + b"\n")

    plan = msgspec.convert(request["plan"], MountPlan)
    try:
        serve(plan, lambda warnings: answer({"pid": os.getpid(), "warnings": list(warnings)}))
    except (UserError, OSError) as error:
        log.error("%s", one_line(error), exc_info=answers.closed)
        answer({"error": one_line(error)})
        sys.exit(1)
    except Exception as error:
        log.exception("the server failed")
        answer({"error": f"the server failed: {type(error).__name__}: {error}; see {plan.log}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
