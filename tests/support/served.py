"""Servers without a mount for tests: `fusebackend serve` in its own process, by default where there is no /dev/fuse."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fusebackend.control import rendezvous

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0

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


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])}


def command(*words: str, wrapper: Sequence[str] = ()) -> list[str]:
    return [*wrapper, sys.executable, "-m", "fusebackend", *words]


def run(*words: str, status: int = 0, wrapper: Sequence[str] = ()) -> str:
    """Run a command; returns what it printed, of both streams."""
    done = subprocess.run(
        command(*words, wrapper=wrapper),
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert "Traceback" not in said, said
    return said


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
        env={**environment(), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 2,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@contextlib.contextmanager
def served(*words: str, place: str, wrapper: Sequence[str] = WITHOUT_FUSE) -> Iterator[rendezvous.Served]:
    """Serve for the length of a block; the server must end with 0, and log no error."""
    with started(command("serve", *words, wrapper=wrapper), place) as (process, found):
        yield found
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a server. It must end with 0, and have logged no error."""
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=LIMIT_S)[0].decode()
    assert process.returncode == 0, said
    assert "ERROR" not in said and "Traceback" not in said, said


@contextlib.contextmanager
def started(line: Sequence[str], place: str) -> Iterator[tuple[subprocess.Popen[bytes], rendezvous.Served]]:
    """Start a server for the length of a block, by its command line; it is killed at the end, if it has not ended."""
    # When the tests themselves are killed, their servers get SIGTERM.
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", "--", *line],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        said = b""
        deadline = time.monotonic() + LIMIT_S
        while b"serving /" not in said:
            assert select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0], said.decode()
            piece = os.read(process.stdout.fileno(), 65536)
            assert piece, said.decode()
            said += piece
        found = rendezvous.server_of(place)
        assert found is not None, said.decode()
        yield process, found
    finally:
        process.kill()
        process.communicate()
