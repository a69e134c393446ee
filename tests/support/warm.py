"""Commands for tests without the time that Python takes to import them: forked from a process that has imported all.

A server needs 0.5 s of a processor until it serves, most of it imports; a forked one a tenth of that. It is the same
for the other commands, and for programs of tests that use the library (`-c CODE`). `start` gives a process with the
methods of `Popen` that tests use. One process of imported modules serves a worker of the test run: it gets a command
line, an environment, a directory and three descriptors over a socket, forks, and reports each child's end.

A command whose interpreter would start differently (its limits, its user, a `PYTHON…` variable) can't be forked:
`parent` says so, and `start` starts it as a user would.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import faulthandler
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "LANG", "LC_", "TZ")
"""Beginnings of variables that an interpreter and its C library read when they start."""
LARGEST_BYTES = 180_000
"""Of a request: a packet of a Unix socket is not larger than its buffer."""


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


def _rights() -> object:
    """Return the limits and the user of this process, which a server inherits."""
    return [resource.getrlimit(limit) for limit in LIMITS], os.getresuid(), os.getresgid(), os.getgroups()


RIGHTS = _rights()

SECRET = {"SERVER_SECRET": "in the clear"}
"""What /proc/PID/environ tells of a forked process: a command in a mount must not see it."""


class Forked:
    """A child of the warm process: the part of `Popen` that tests use."""

    stdin = stdout = stderr = None

    def __init__(self, parent: Parent, pid: int) -> None:
        self._parent, self.pid = parent, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Parent:
    """The warm process, seen from the tests."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = _read_at_start(environment)
        self._ends: dict[int, int] = {}
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST_BYTES)
        # As any server of a test, it goes with the tests, and its children go with it.
        command = ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, __file__, str(theirs.fileno())]
        self.process = subprocess.Popen(
            command, env={**environment, **SECRET}, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        atexit.register(self.close, os.getpid())

    def close(self, owner: int) -> None:
        if owner == os.getpid():
            self._socket.close()
            self.process.wait(60)

    def start(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        descriptors: tuple[int, int, int],
        cwd: str | None = None,
    ) -> Forked:
        mask = os.umask(0o022)
        os.umask(mask)
        own = {"environment": dict(environment), "cwd": cwd or os.getcwd(), "umask": mask}
        request = json.dumps({"arguments": arguments, **own}).encode()
        assert len(request) < LARGEST_BYTES, "an environment of that size needs another way"
        with self._lock:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            self._socket.sendmsg([request], [rights])
            while (told := self._receive())[0] != "started":
                self._ends[told[1]] = told[2]
        return Forked(self, told[1])

    def ended(self, pid: int) -> int | None:
        """Return the exit status of a child, as `Popen` does, or None while it runs."""
        with self._lock:
            self._socket.setblocking(False)
            try:
                while True:
                    _, ended, status = self._receive()
                    self._ends[ended] = status
            except BlockingIOError:
                pass
            finally:
                self._socket.setblocking(True)
            return self._ends.pop(pid, None)

    def _receive(self) -> tuple[str, int, int]:
        data = self._socket.recv(1000)
        assert data, "the warm process has ended"
        what, pid, status = json.loads(data)
        return what, pid, status


_parent: tuple[int, Parent] | None = None


def parent(environment: Mapping[str, str]) -> Parent | None:
    """Return this process's warm parent, started when it is first needed; None if it can't have such a child."""
    global _parent
    if _rights() != RIGHTS:
        return None
    if _parent is None or _parent[0] != os.getpid() or _parent[1].process.poll() is not None:
        if threading.current_thread() is not threading.main_thread():
            return None  # PR_SET_PDEATHSIG is about the thread that started it
        _parent = os.getpid(), Parent(environment)
    found = _parent[1]
    return found if found.environment == _read_at_start(environment) else None


def start(
    arguments: list[str],
    environment: Mapping[str, str],
    descriptors: tuple[int, int, int],
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.Popen[bytes] | Forked:
    """Start `fusebackend` with these arguments, or Python where they are `-c CODE …`. When the tests themselves are
    killed, it gets SIGTERM: a server unmounts."""
    found = parent(environment)
    if found is not None:
        return found.start(arguments, environment, descriptors, os.fspath(cwd) if cwd is not None else None)
    module = [] if arguments[:1] == ["-c"] else ["-m", "fusebackend"]
    words = ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, *module, *arguments]
    given, out, err = descriptors
    return subprocess.Popen(words, env=environment, stdin=given, stdout=out, stderr=err, cwd=cwd)


# -- the warm process ------------------------------------------------------------------------------------------------


def _serve(channel: socket.socket) -> list[str] | None:
    """Fork for each request. Return the command line in each child, and None in the parent when the tests end."""
    import select

    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            os.read(woken, 1000)
            _report(channel)
        if channel in ready:
            request, descriptors, _, _ = socket.recv_fds(channel, LARGEST_BYTES, 3)
            if not request:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (channel.detach(), woken, wake):
                    os.close(descriptor)
                return _become(json.loads(request), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(json.dumps(["started", pid, 0]).encode())


def _report(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.send(json.dumps(["ended", pid, os.waitstatus_to_exitcode(status)]).encode())


def _become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    """Take over the descriptors, environment and directory of a server that is to be."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, which a fork does not inherit
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    return list(request["arguments"])


_status: int | None = None
"""What a forked command ends with, from the moment that it has nothing left to do."""


def _end() -> None:
    """End a forked command after everything that it has for its end, and before Python takes all modules apart: that
    would copy the memory it shares with its parent, 45 ms of a processor of the 55 that a short command takes."""
    if _status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status)


def _main() -> None:
    global _status
    channel = socket.socket(fileno=int(sys.argv[1]))
    atexit.register(_end)  # before all others, and so it is called after them
    import gc
    import importlib
    import pkgutil

    import fusebackend.backends.directory
    import fusebackend.backends.memory
    import fusebackend.backends.sqlite
    import fusebackend.cli
    import fusebackend.control.client.client
    import fusebackend.linux.service_manager
    import fusebackend.mount.session
    import fusebackend.server.api
    import fusebackend.server.assemble
    import fusebackend.server.unmounted
    from fusebackend.cli.main import main

    for command in pkgutil.iter_modules(fusebackend.cli.__path__):
        importlib.import_module(f"fusebackend.cli.{command.name}")

    gc.freeze()  # these objects stay shared
    arguments = _serve(channel)
    if arguments is None:
        return
    if arguments[:1] == ["-c"]:
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = ["fusebackend", *arguments]
        try:
            main()
        except SystemExit as end:
            _status = end.code if isinstance(end.code, int) else None
            raise


if __name__ == "__main__":
    _main()
