"""Scripts and the `fusebackend` command as processes of their own, on a real mount."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import mounts
import warm

from fusebackend import Client

LIMIT_S = 60.0
"""A hang, not a slow machine."""


def sh(script: str, cwd: Path, *, limit_s: float = LIMIT_S, **env: str) -> str:
    """Run a script, which must succeed; return what it printed."""
    return _bash(script, cwd, limit_s, env, session=False)


def session(script: str, cwd: Path, *, limit_s: float = LIMIT_S) -> None:
    """Run a script as a process session of its own, which is one call."""
    _bash(script, cwd, limit_s, {}, session=True)


def _bash(script: str, cwd: Path, limit_s: float, env: dict[str, str], *, session: bool) -> str:
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=limit_s,
        start_new_session=session,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_call(files: Client, where: Path, script: str, agent: str = "coder") -> str:
    """Run a script as one call of an agent; return the call's name. It must change something."""
    name = files.begin_call(f"run {script}", id=agent, agent=agent)
    sh(script, where)
    found = files.end_call(name)
    assert found is not None
    return found


def ok(*words: object, cwd: Path | None = None, stdin: str = "") -> str:
    """Run `fusebackend`, which must succeed; return what it printed."""
    done = command(*words, cwd=cwd, stdin=stdin)
    assert done.returncode == 0, done
    return done.stdout


def refused(*words: object, cwd: Path | None = None, status: int = 1) -> str:
    """Run `fusebackend`, which must fail; return its error, the only line that it prints."""
    done = command(*words, cwd=cwd)
    assert (done.returncode, done.stdout) == (status, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


def command(
    *words: object, cwd: Path | None = None, stdin: str = "", limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run `fusebackend` without a terminal: a process of its own, forked from one that has imported all."""
    with contextlib.ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(os.fsencode(stdin))
        given.seek(0)
        arguments, streams = [str(word) for word in words], (given.fileno(), out.fileno(), err.fileno())
        process = warm.start(arguments, mounts.module_environment(), streams, cwd)
        try:
            status = process.wait(limit_s)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, status, os.fsdecode(out.read()), os.fsdecode(err.read()))


class Beside:
    """`fusebackend` beside a test, forked as by `command`. As a context manager it is killed at the block's end."""

    def __init__(self, *words: object, cwd: Path | None = None) -> None:
        ours, theirs = os.pipe()
        self._files = contextlib.ExitStack()
        self.output = self._files.enter_context(os.fdopen(ours, errors="surrogateescape"))
        errors = os.fdopen(os.memfd_create("errors"), "w+", errors="surrogateescape")
        self._errors = self._files.enter_context(errors)
        with open(os.devnull) as nothing:
            streams = (nothing.fileno(), theirs, self._errors.fileno())
            self.process = warm.start([str(word) for word in words], mounts.module_environment(), streams, cwd)
        os.close(theirs)

    def line(self) -> str:
        """Read the next line of its output; fail where it has ended."""
        line = self.output.readline()
        assert line, self.end()
        return line.removesuffix("\n")

    def end(self, by: signal.Signals | None = None) -> tuple[int, str]:
        """Wait until it has ended, by a signal if one is given; return its exit status and its standard error."""
        if by is not None:
            self.process.send_signal(by)
        status = self.process.wait(LIMIT_S)
        self._errors.seek(0)
        return status, self._errors.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        self._files.close()


def python(code: str, *words: object, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run a program that uses the library, likewise. A warning in it is an error."""
    return command("-c", "import warnings\nwarnings.simplefilter('error')\n" + code, *words, limit_s=limit_s)


def on_a_terminal(*words: object, cwd: Path | None = None, typed: str = "") -> tuple[int, str]:
    """Run `fusebackend` on a terminal; return its exit status and everything that the terminal shows."""
    ours, theirs = pty.openpty()
    environment = {**mounts.module_environment(), "TERM": "xterm", "COLUMNS": "60"}
    process = warm.start([str(word) for word in words], environment, (theirs, theirs, theirs), cwd)
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    status = process.wait(LIMIT_S)
    return status, os.fsdecode(shown).replace("\r\n", "\n")


def processes_with(*words: str) -> list[int]:
    """Return the processes that have these words, one after the other, in their command line."""
    wanted = b"\0%b\0" % "\0".join(words).encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if wanted in b"\0" + (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or a zombie that its parent has not waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
