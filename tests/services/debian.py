"""Fresh roots of Debian, by `packaging/debian-root`, and a systemd as process 1 in one of them, by systemd-nspawn(1).

systemd-nspawn needs no systemd on this machine: `--keep-unit --register=no`. The systemd of Debian 12 also works on
control groups of version 1; that of Debian 13 refuses them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"

RUNNING = ("python3", "fuse3", "ripgrep", "bubblewrap", "ca-certificates")
BUILDING = ("python3-dev", "python3-venv", "gcc", "libc6-dev", "pkg-config", "libfuse3-dev")

MAKE_LIMIT_S = 540.0
BOOT_LIMIT_S = 120.0


def require(*programs: str) -> None:
    """Skip the test where no root can be made."""
    for program in ("debootstrap", *programs):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: 'apt-get install debootstrap systemd-container docker.io'")
    if os.geteuid() != 0:
        pytest.skip("only root can make a root of Debian")


def make_root(directory: Path, packages: Sequence[str] = ()) -> None:
    """Make a root with packages, in which pip reaches what it reaches on this machine."""
    run([str(ROOT / "packaging/debian-root"), "--make", SUITE, str(directory), *packages], MAKE_LIMIT_S)


def install(directory: Path) -> None:
    """Install this checkout in a root that has `RUNNING` and `BUILDING`."""
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        (directory / "src").mkdir(exist_ok=True)
        shutil.copy(ROOT / name, directory / "src" / name)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fusebackend", directory / "src/fusebackend", ignore=unwanted)
    script = """
    python3 -m venv /opt/fusebackend
    /opt/fusebackend/bin/pip install --quiet --constraint /src/constraints.txt /src
    ln -s /opt/fusebackend/bin/fusebackend /usr/local/bin/
    """
    _within(directory, script)


def _within(directory: Path, script: str) -> None:
    """Run a script in a root, with nothing of this machine's environment."""
    clean = ["env", "--ignore-environment", "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]
    clean.append("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    run(["chroot", str(directory), *clean, "sh", "-ec", script], MAKE_LIMIT_S)


def run(command: Sequence[str], limit_s: float, status: int = 0) -> str:
    """Run a command; returns what it printed, of both streams."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s
    )
    assert done.returncode == status, f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout


class Machine:
    """A root that systemd has booted.

    Args:
        leader: its process 1, as seen from here.
    """

    def __init__(self, leader: int) -> None:
        self._enter = ["nsenter", "--target", str(leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"]

    def sh(self, script: str, status: int = 0, limit_s: float = 120.0) -> str:
        """Run a script of the shell in it; returns what it printed, of both streams."""
        return run([*self._enter, "sh", "-c", script], limit_s, status)

    def start(self, code: str, *words: str) -> subprocess.Popen[str]:
        """Start a program of Python in it; the caller kills it."""
        # The kernel ends it with nsenter, which is its parent.
        command = [*self._enter, "setpriv", "--pdeathsig", "KILL", "--", "/usr/bin/python3", "-c", code, *words]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def booted(directory: Path) -> Iterator[Machine]:
    """Boot a root for the length of a block, and shut it down."""
    log = directory.parent / "boot.log"
    words = ["--register=no", "--keep-unit", "--bind=/dev/fuse", "--directory", str(directory), "--boot"]
    with log.open("w") as output:
        nspawn = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", "systemd-nspawn", *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        machine = _when_booted(nspawn, log)
        yield machine
    except BaseException:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        raise
    finally:
        nspawn.send_signal(signal.SIGTERM)
        try:
            nspawn.wait(BOOT_LIMIT_S)
        except subprocess.TimeoutExpired:
            nspawn.kill()
            nspawn.wait()
            raise


def _when_booted(nspawn: subprocess.Popen[bytes], log: Path) -> Machine:
    deadline = time.monotonic() + BOOT_LIMIT_S
    children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children")
    said = ""
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if nspawn.poll() is not None:
            pytest.skip(f"systemd does not boot here: {text[-500:]}")
        leaders = children.read_text().split()
        if leaders:
            machine = Machine(int(leaders[0]))
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                said = machine.sh("systemctl is-system-running", limit_s=10)
                return machine
        time.sleep(0.1)
    raise AssertionError(f"systemd does not get ready: {said}\n{log.read_text(errors='replace')[-4000:]}")
