"""Commands for tests without the time that Python takes to import them: forked from a process that has imported all.

A server needs 0.5 s of a processor until it serves, most of it imports; a forked one a tenth of that. It is the same
for the other commands, and for programs of tests that use the library (`-c CODE`). `start` gives a process with the
methods of `Popen` that tests use. One process of imported modules serves a worker of the test run: it gets a command
line, an environment, a directory, descriptors and a mount namespace over a socket, forks, and reports the child's end.
What `fusebackend mount` and others start in the background is forked likewise.

A command whose interpreter would start differently (its limits, its user, a `PYTHON…` variable) can't be forked:
`parent` says so, and `start` starts it as a user would.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import json
import os
import resource
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forked import LARGEST_BYTES, Forked

LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "LANG", "LC_", "TZ")
"""Beginnings of variables that an interpreter and its C library read when they start."""
MOST_DESCRIPTORS = 8
SERVER = ["-m", "fusebackend.cli.serve"]
"""How the command line of a server in the background begins."""
MODULE = ["-m", "fusebackend"]
"""How that of a command may begin: what is forked stands for the interpreter of a program (`sys.executable`)."""
PROGRAM = "a program"
"""The first word where the others are a file with a program in Python, and its arguments."""


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


def _rights() -> object:
    """Return the limits and the user of this process, which a server inherits."""
    return [resource.getrlimit(limit) for limit in LIMITS], os.getresuid(), os.getresgid(), os.getgroups()


RIGHTS = _rights()
BEGUN = {**_read_at_start(os.environ), "PYTHONPATH": ""}

SECRET = {"SERVER_SECRET": "in the clear"}
"""What /proc/PID/environ tells of a forked process: a command in a mount must not see it."""


class Parent:
    """The warm process, seen from the tests."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        self.address = f"fusebackend-tests-{os.getpid()}-{os.urandom(8).hex()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{self.address}")  # without a file, which tests that are killed would leave
            listener.listen(100)
            # As any server of a test, it goes with the tests, and its children go with it.
            words = [sys.executable, __file__, self.address, str(listener.fileno()), *modules]
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "--", *words],
                env={**environment, **SECRET},
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
            )
        atexit.register(self.close, os.getpid())

    def close(self, owner: int) -> None:
        if owner == os.getpid():
            assert self.process.stdin is not None
            self.process.stdin.close()  # it waits for that
            self.process.wait(60)


_parents: dict[tuple[Sequence[str], str | None], tuple[int, Parent]] = {}
"""By the modules that they import besides those of every command, and by PYTHONPATH."""


def parent(environment: Mapping[str, str], modules: Sequence[str] = ()) -> Parent | None:
    """Return this process's warm parent, started when it is first needed; None if it can't have such a child."""
    if _rights() != RIGHTS or {**_read_at_start(environment), "PYTHONPATH": ""} != BEGUN:
        return None
    key = modules, environment.get("PYTHONPATH")
    owner, found = _parents.get(key, (0, None))
    if found is None or owner != os.getpid() or found.process.poll() is not None:
        if threading.current_thread() is not threading.main_thread():
            return None  # PR_SET_PDEATHSIG is about the thread that started it
        found = Parent(environment, modules)
        _parents[key] = os.getpid(), found
    return found


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
        where = None if cwd is None else os.fspath(cwd)
        return Forked(found.address, arguments, dict(enumerate(descriptors)), environment, where)
    module = [] if arguments[:1] == ["-c"] else ["-P", "-m", "fusebackend"]  # as the installed script has it
    words = ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, *module, *arguments]
    given, out, err = descriptors
    return subprocess.Popen(words, env=environment, stdin=given, stdout=out, stderr=err, cwd=cwd)


def command(
    script: Path, environment: Mapping[str, str], before: Sequence[str] = (), modules: Sequence[str] = ()
) -> None:
    """Make a file that is the command `fusebackend`, forked as by `start`, for the PATH of a script.

    A shell's signals to it are passed on. Only its session is not the shell's.

    Args:
        before: words before those that it is given; see `start`.
        modules: what its parent imports besides.
    """
    found = parent(environment, modules)
    assert found is not None, "this process's limits or environment are not those that all began with"
    support = str(Path(__file__).parent)
    script.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {support!r})\n"
        f"import forked\nforked.main({found.address!r}, {[*before]!r})\n"
    )
    script.chmod(0o755)


def python(script: Path, environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
    """Make a file that runs a program in Python, likewise."""
    command(script, environment, [PROGRAM], modules)


# -- the warm process ------------------------------------------------------------------------------------------------


def _serve(listener: socket.socket) -> list[str] | None:
    """Fork for each request. Return the command line in each child, and None in the parent when the tests end."""
    import select

    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, woken, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        if woken in ready:
            os.read(woken, 1000)
            _report(children)
        if listener in ready:
            channel, _ = listener.accept()
            _, user, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.getuid():  # anybody may find the address
                channel.close()
                continue
            request, descriptors, _, _ = socket.recv_fds(channel, LARGEST_BYTES, MOST_DESCRIPTORS)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (listener, channel, *children.values()):
                    each.close()
                os.close(woken)
                os.close(wake)
                return _become(json.loads(request), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            children[pid] = channel
            channel.send(json.dumps(["started", pid]).encode())


def _report(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with children.pop(pid) as channel, contextlib.suppress(BrokenPipeError):  # nobody waits for it
            channel.send(json.dumps(["ended", os.waitstatus_to_exitcode(status)]).encode())


def _become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    """Take over the descriptors, environment and directory of a server that is to be."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, which a fork does not inherit
    namespace, *descriptors = descriptors
    if os.fstat(namespace).st_ino != os.stat("/proc/self/ns/mnt").st_ino:
        assert libc.setns(namespace, 0) == 0, "the mount namespace of who asks"
    os.close(namespace)
    for number, descriptor in zip(request["numbers"], descriptors, strict=True):
        if number != descriptor:
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(number, True)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    return list(request["arguments"])


class _Server(Forked):
    """What stands for `subprocess.Popen` in `fusebackend.cli.serve`: a server in the background is forked, too."""

    def __init__(self, address: str, words: list[str], *, stdout: int, pass_fds: tuple[int], **_: Any) -> None:
        given, plan = os.pipe()
        (ready,) = pass_fds
        super().__init__(address, words[words.index("-m") :], {0: given, 1: stdout, 2: stdout, ready: ready})
        os.close(given)
        self.stdin = os.fdopen(plan, "wb")


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
    _, address, listener, *modules = sys.argv
    atexit.register(_end)  # before all others, and so it is called after them
    import gc
    import importlib
    import pkgutil

    import fusebackend.backends.directory
    import fusebackend.backends.memory
    import fusebackend.backends.sqlite
    import fusebackend.cli
    import fusebackend.control.client.client
    import fusebackend.fuse.session
    import fusebackend.linux.service_manager
    import fusebackend.server.api
    import fusebackend.server.assemble
    from fusebackend.cli import serve as server
    from fusebackend.cli.main import main

    for command in pkgutil.iter_modules(fusebackend.cli.__path__):
        importlib.import_module(f"fusebackend.cli.{command.name}")
    for module in modules:
        importlib.import_module(module)

    gc.freeze()  # these objects stay shared
    with socket.socket(fileno=int(listener)) as requests:
        arguments = _serve(requests)
    if arguments is None:
        return
    server.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": functools.partial(_Server, address)})
    if arguments[:1] == ["-c"]:
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    if arguments[:2] == MODULE:
        arguments = arguments[2:]
    if arguments[:2] == SERVER:
        os.setsid()
        sys.argv, command = arguments[1:], server.main
    elif arguments[:1] == [PROGRAM]:
        sys.argv = arguments[1:]
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        command = functools.partial(runpy.run_path, sys.argv[0], run_name="__main__")
    else:
        sys.argv, command = ["fusebackend", *arguments], main
    try:
        command()
        _status = 0
    except SystemExit as end:
        _status = end.code if isinstance(end.code, int) else None
        raise


if __name__ == "__main__":
    _main()
