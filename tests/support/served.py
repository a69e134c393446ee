"""Servers without a mount for tests: `fusebackend serve` in its own process, some where there is no /dev/fuse."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import mounts
import programs
import pytest
import warm

from fusebackend.control import rendezvous

LIMIT_S = 60.0
LARGEST_BYTES = 1 << 20
"""Of a server's output."""

Process = subprocess.Popen[bytes] | warm.Forked

NO_FUSE = """
set -e
new=/mnt
mount -t tmpfs none "$new"
for name in null zero full random urandom tty; do : > "$new/$name"; mount --bind "/dev/$name" "$new/$name"; done
mkdir "$new/shm"
ln -s /proc/self/fd "$new/fd"
mount --rbind "$new" /dev
umount -l "$new"
exec "$@"
"""
"""A /dev without fuse, for the commands below it."""

AS_USER = () if os.geteuid() == 0 else ("--map-current-user", "--keep-caps")
WITHOUT_FUSE = ("unshare", "--mount", *AS_USER, "sh", "-c", NO_FUSE, "sh")


def command(*words: str, wrapper: Sequence[str] = ()) -> list[str]:
    return [*wrapper, sys.executable, "-m", "fusebackend", *words]


def run(*words: str, status: int = 0) -> str:
    """Run a command; returns what it printed, of both streams."""
    done = programs.command(*words, limit_s=LIMIT_S)
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert "Traceback" not in said, said
    return said


def homes(patch: pytest.MonkeyPatch, directory: Path) -> None:
    """Give servers and commands new directories for sockets, data and state."""
    for name in ("XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        patch.setenv(name, str(directory / name))
        (directory / name).mkdir(mode=0o700)


def script(text: str, place: Path, monkeypatch: pytest.MonkeyPatch, *namespaces: str) -> list[str]:
    """Run a script of the shell in a directory and in namespaces of its own; returns its lines.

    Args:
        namespaces: options of unshare(1) besides `--mount` and `--pid`.
    """
    for name in ("XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        directory = place / name[4:7].lower()  # short: a socket's path has 107 bytes
        monkeypatch.setenv(name, str(directory))
        directory.mkdir(mode=0o700)
    # A server that a failure leaves ends with the pid namespace.
    own = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", *namespaces]
    done = subprocess.run(
        ["unshare", *own, "sh", "-c", text],
        cwd=place,
        env={**mounts.module_environment(), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 2,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@contextlib.contextmanager
def served(*words: str, place: str, wrapper: Sequence[str] = ()) -> Iterator[rendezvous.Served]:
    """Serve for the length of a block; the server must end with 0, and log no error."""
    with started(["serve", *words], place, wrapper) as (process, found):
        yield found
        end(process)


def end(process: Process) -> None:
    """End a server. It must end with 0."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0


@contextlib.contextmanager
def started(
    arguments: Sequence[str], place: str, wrapper: Sequence[str] = ()
) -> Iterator[tuple[Process, rendezvous.Served]]:
    """Start a server for the length of a block, by the arguments of `fusebackend`, or of Python where they are `-c CODE
    …`; it is killed at the end, if it has not ended, and must have logged no error.

    Without a wrapper it is forked from a process that has imported everything.
    """
    with tempfile.TemporaryFile() as output, Path(os.devnull).open("rb") as nothing:
        streams = nothing.fileno(), output.fileno(), output.fileno()

        def said() -> str:
            return os.pread(output.fileno(), LARGEST_BYTES, 0).decode()

        process: Process
        if wrapper:
            # When the tests themselves are killed, their servers get SIGTERM.
            line = ["setpriv", "--pdeathsig", "TERM", "--", *command(*arguments, wrapper=wrapper)]
            process = subprocess.Popen(
                line, env=mounts.module_environment(), stdin=nothing, stdout=output, stderr=output
            )
        else:
            process = warm.start([*arguments], mounts.module_environment(), streams)
        try:
            deadline = time.monotonic() + LIMIT_S
            while "serving /" not in said():
                assert process.poll() is None and time.monotonic() < deadline, said()
                time.sleep(0.002)
            found = rendezvous.server_of(place)
            assert found is not None, said()
            yield process, found
        finally:
            process.kill()
            process.wait(LIMIT_S)
        assert "ERROR" not in said() and "Traceback" not in said(), said()
