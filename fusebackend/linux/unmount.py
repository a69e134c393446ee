"""Ending a mount from outside, and finding the processes that keep it busy.

`fusermount3 -u` does for root and for the owner of a mount; it runs as a process of its own, because unmounting may
wait for a server that hangs. The server notices, makes its volumes durable and ends; `unmount` waits for that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from fusebackend.base.context import closing_fd
from fusebackend.base.deadline import is_readable
from fusebackend.base.errors import unless
from fusebackend.base.lines import split_lines
from fusebackend.base.paths import is_below
from fusebackend.linux import mount_table as table
from fusebackend.linux import proc
from fusebackend.linux.distribution import install
from fusebackend.linux.mount_table import MountError

COMMAND_TIMEOUT_S = 20.0
"""For fusermount3, which normally needs milliseconds."""


@dataclass(frozen=True)
class Holder:
    """A process that has something below a mount point open: `how` is cwd, root, exe, mmap or fd N."""

    pid: int
    command: str
    how: str
    path: str


class BusyError(MountError):
    """Something below the mount point is open, or mounted."""

    def __init__(self, mountpoint: str, holders: list[Holder], mounted_below: list[str]) -> None:
        super().__init__(errno.EBUSY, f"'{mountpoint}' is busy")
        self.mountpoint = mountpoint
        self.holders = holders
        self.mounted_below = mounted_below


def detach(mountpoint: str, *, lazy: bool = False) -> None:
    """Take a mount out of the tree; `lazy` does so while files are open, and they stay readable until closed.

    Raises:
        BusyError: not `lazy`, and something is open below it.
        MountError: it could not be done, in the words of fusermount3.
    """
    if shutil.which("fusermount3"):
        command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", mountpoint]
    elif os.geteuid() == 0:
        command = ["umount", "-n", *(["-l"] if lazy else []), "--", mountpoint]
    else:
        raise MountError(errno.ENOENT, f"fusermount3 is not installed: '{install('fusermount3')}', or unmount as root")
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        raise MountError(
            errno.ETIMEDOUT, f"unmounting '{mountpoint}' got no answer from its server; try --lazy"
        ) from None
    if done.returncode == 0:
        return
    reason = split_lines(done.stderr.decode("utf-8", "replace").strip())[-1:] or [
        f"{command[0]} ended with status {done.returncode}"
    ]
    if "busy" in reason[0]:
        below = [entry.mountpoint for entry in table.mounts_below(mountpoint)]
        raise BusyError(mountpoint, list(holders(mountpoint)), below)
    raise MountError(errno.EIO, f"cannot unmount '{mountpoint}': {reason[0]}")


def serves(pid: int) -> bool:
    """Return True for the process of a FUSE server. A number from another pid namespace may mean any other process
    here."""
    with contextlib.suppress(OSError):
        return any(path.endswith("/fuse") for _, path in _descriptors(f"/proc/{pid}"))
    return False


def server_of(entry: table.MountEntry) -> int | None:
    """The process that serves a mount, found without asking the mount: it has the connection open (fdinfo of
    `/dev/fuse`, Linux 6.14). None where that can't be seen."""
    connection = f"fuse_connection:\t{entry.device.partition(':')[2]}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and serves(int(name)):
            with contextlib.suppress(OSError):
                for descriptor in os.listdir(f"/proc/{name}/fdinfo"):
                    with contextlib.suppress(FileNotFoundError):
                        if connection in split_lines(proc.read(f"{name}/fdinfo/{descriptor}")):
                            return int(name)
    return None


def is_stopped(pid: int) -> bool:
    """By SIGSTOP or a debugger, as proc_pid_stat(5) says."""
    with contextlib.suppress(OSError):
        return proc.stat(pid)[0] in (b"T", b"t")
    return False


def why_hung(entry: table.MountEntry) -> tuple[str, str]:
    """Return why a mount does not answer, by its server's process where that can be found, and what helps."""
    pid = server_of(entry)
    if pid is None:
        return "its server does not answer", "wait until it does"
    if is_stopped(pid):
        return f"its server, process {pid}, is stopped", f"'kill -CONT {pid}' lets it go on"
    return f"its server, process {pid}, does not answer", "wait until it does"


@contextlib.contextmanager
def end_of(pid: int) -> Iterator[Callable[[float], bool]]:
    """Give what waits until a process has ended, for so many seconds, and returns False when it has not by then. The
    process is held by a pidfd so that its number can't come to mean another one."""
    fd = unless({errno.ESRCH}, os.pidfd_open, pid)
    if fd is None:
        yield lambda timeout_s: True
        return
    with closing_fd(fd):
        yield partial(is_readable, fd)


def holders(mountpoint: str) -> Iterator[Holder]:
    """Return the processes with open files below `mountpoint`, as far as this user may see them. Never touches the
    mount itself."""
    for name in sorted(os.listdir("/proc")):
        if name.isdigit():
            yield from _held_by(int(name), mountpoint)


def _held_by(pid: int, mountpoint: str) -> Iterator[Holder]:
    seen = set()
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for how, path in _paths_of(f"/proc/{pid}"):
            if is_below(path, mountpoint) and path not in seen:
                seen.add(path)
                yield Holder(pid, _command(pid), how, path)


def _paths_of(process: str) -> Iterator[tuple[str, str]]:
    for link in ("cwd", "root", "exe"):
        with contextlib.suppress(FileNotFoundError):  # a kernel thread has no exe
            yield link, os.readlink(f"{process}/{link}")
    yield from ((f"fd {descriptor}", path) for descriptor, path in _descriptors(process))
    with open(f"{process}/maps", "rb") as file:
        for line in file:
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[5].startswith(b"/"):
                yield "mmap", os.fsdecode(fields[5].rstrip(b"\n"))


def _descriptors(process: str) -> Iterator[tuple[str, str]]:
    """Each open descriptor and what it is of. OSError: the process has ended, or is another user's."""
    for descriptor in os.listdir(f"{process}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield descriptor, os.readlink(f"{process}/fd/{descriptor}")


def _command(pid: int) -> str:
    try:
        words = os.fsdecode(proc.read(f"{pid}/cmdline")).replace("\0", " ").strip()
        return words if len(words) <= 80 else words[:79] + "…"
    except OSError:
        return "?"
