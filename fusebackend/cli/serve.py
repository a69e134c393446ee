"""The process behind a mount: open the backends of a plan, mount them, serve until unmounted, close them. The same
without the mount, for `fusebackend serve`.

`serve` does it in this process. `python -m fusebackend.cli.serve` is how `start` starts one in the background.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from fusebackend.base import heap
from fusebackend.base.shown import shown
from fusebackend.config import MountPlan
from fusebackend.urls.opening import UrlError, mask, open_backend

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend

log = logging.getLogger("fusebackend.serve")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Lines(logging.Formatter):
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
    from fusebackend.control import rendezvous
    from fusebackend.linux.service_manager import ServiceManager
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
                ending = threading.Thread(target=_end_with_sessions, args=(plan.sessions,), daemon=True)
                ending.name = "fusebackend-sessions"
                ending.start()

        live.run(ready, lambda: manager.stopping("storing everything"))
    log.info("%s %s, everything is stored", "unmounted" if plan.is_mounted else "ended", plan.mountpoint)


def _begin() -> None:
    """Make this process a server: its log, its descriptors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)
    faulthandler.enable()  # a crash in C code leaves the stack of each thread in the log
    _allow_many_files()


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
    from fusebackend.control import rendezvous

    rendezvous.wait_for_sessions(path)
    log.info("the last session is over")
    os.kill(os.getpid(), signal.SIGTERM)


def _allow_many_files() -> None:
    """As many descriptors as this process may have: a `dir:` route needs one for each file open through the mount."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _close(backend: Any, url: str) -> None:
    close = getattr(backend, "close", None)
    if not callable(close):
        return  # a backend that has nothing to close
    try:
        close()
    except Exception:
        log.exception("could not close %s", url)
        raise


def main() -> None:
    """Read the plan from standard input, and answer on the descriptor it names: mounted, or why not."""
    request = json.loads(sys.stdin.buffer.read())
    _without_stdin()
    ready_fd: int = request["ready_fd"]
    os.set_inheritable(ready_fd, False)
    answered = False

    def answer(message: dict[str, Any]) -> None:
        nonlocal answered
        if not answered:
            answered = True
            with contextlib.suppress(BrokenPipeError):  # the command that started this has ended
                os.write(ready_fd, json.dumps(message).encode() + b"\n")
            os.close(ready_fd)

    plan = msgspec.convert(request["plan"], MountPlan)
    try:
        serve(plan, lambda warnings: answer({"pid": os.getpid(), "warnings": list(warnings)}))
    except (UrlError, OSError) as error:
        from fusebackend.cli.main import one_line

        log.error("%s", one_line(error), exc_info=answered)
        answer({"error": one_line(error)})
        sys.exit(1)
    except Exception as error:
        log.exception("the server failed")
        answer({"error": f"the server failed: {type(error).__name__}: {error}; see {plan.log}"})
        sys.exit(1)


def _without_stdin() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


if __name__ == "__main__":
    main()
