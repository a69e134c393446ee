"""The kernel's table of mounts, and the question whether one of ours still answers.

`/proc/self/mountinfo` (proc_pid_mountinfo(5)) is the only record of what is mounted: there are no state files to grow
stale. Reading it never waits for a server. Asking a mount for its status may, for ever, when the server hangs; and a
thread that waits for a request the server has taken can't be ended, not even by the end of its process. So `probe` asks
from a process of its own, which can be left behind.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from fusebackend.base.here import from_here
from fusebackend.base.lines import split_lines
from fusebackend.base.paths import is_below
from fusebackend.linux import proc

SUBTYPE = "fusebackend"
FSTYPE = f"fuse.{SUBTYPE}"
"""How our mounts show in the table; `fuse/session.py` asks for the part after the dot."""

STATUS_XATTR = "user.fusebackend.status"
"""Read from a mount's root, it is the JSON of `fusebackend status`."""

PROBE_TIMEOUT_S = 2.0
"""How long a mount may take to answer before it is called hung."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class MountError(OSError):
    """The mount can't be made, or can't be ended. `str` of it is one line for the user; `errno` is set."""

    def __str__(self) -> str:
        return str(self.args[1]) if len(self.args) > 1 else super().__str__()


@dataclass(frozen=True)
class MountEntry:
    """One line of the table."""

    mountpoint: str
    fstype: str
    source: str
    options: tuple[str, ...]
    root: str = "/"
    """The directory of the mounted file system that shows here: not `/` for a bind mount of a part of it."""
    super_options: tuple[str, ...] = ()
    """Those of the file system, wherever it is mounted."""
    id: int = 0
    """Of this mount, as long as it lasts (proc_pid_mountinfo(5), field 1)."""
    parent: int = 0
    """The id of the mount that this one is on."""
    device: str = ""
    """`MAJOR:MINOR` of the file system, the same wherever it is mounted."""
    is_shared: bool = False
    """Mounts on it are seen in other mount namespaces, and those made there here (mount_namespaces(7))."""

    @property
    def owner(self) -> int | None:
        """The user that mounted a FUSE file system."""
        for option in self.super_options:
            name, _, value = option.partition("=")
            if name == "user_id" and value.isdecimal():
                return int(value)
        return None

    @property
    def is_ours(self) -> bool:
        return self.fstype == FSTYPE


def parse(text: str) -> list[MountEntry]:
    """The lines of a mountinfo file, in its order: a later mount at the same place covers an earlier one."""
    found = []
    for line in split_lines(text):
        fields, separator, kind = line.partition(" - ")
        words, kinds = fields.split(" "), kind.split(" ")
        if separator and len(words) >= 6 and len(kinds) >= 2:
            options, super_options = tuple(words[5].split(",")), tuple(",".join(kinds[2:]).split(","))
            place, source, root = (_unescape(word) for word in (words[4], kinds[1], words[3]))
            number, parent, device = int(words[0]), int(words[1]), words[2]
            is_shared = any(word.startswith("shared:") for word in words[6:])
            found.append(
                MountEntry(place, kinds[0], source, options, root, super_options, number, parent, device, is_shared)
            )
    return found


def _unescape(word: str) -> str:
    """Undo the kernel's `\\040` for space, tab, newline and backslash."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), word)


def mounts() -> list[MountEntry]:
    """All mounts that this process can see."""
    return parse(os.fsdecode(proc.read("self/mountinfo")))


def mount_at(path: str) -> MountEntry | None:
    """Return the mount exactly at `path` (as `resolve` gives it); of several, the one on top."""
    return next((entry for entry in reversed(mounts()) if entry.mountpoint == path), None)


def our_mounts() -> list[MountEntry]:
    """Our mounts that nothing covers, by mount point. A bind mount of a part of one, such as that of a view, is none of
    its own."""
    on_top = {entry.mountpoint: entry for entry in mounts()}
    return [on_top[path] for path in sorted(on_top) if on_top[path].is_ours and on_top[path].root == "/"]


def mount_of(path: str, table: Iterable[MountEntry]) -> MountEntry | None:
    """Return the mount that a path lies at or below, by the path alone: of the deepest ones, the last."""
    holding = [entry for entry in table if is_below(path, entry.mountpoint)]
    return max(reversed(holding), key=lambda entry: len(entry.mountpoint), default=None)


def our_mount_of(directory: str) -> str | None:
    """Return the mount point of ours that a directory lies at or below, by its path alone; None if there is none."""
    entry = mount_of(directory, our_mounts())
    return None if entry is None else entry.mountpoint


def mounts_below(path: str) -> list[MountEntry]:
    """Return the mounts deeper than `path`; while it is, `path` can't be unmounted."""
    return [entry for entry in mounts() if entry.mountpoint.startswith(path.rstrip("/") + "/")]


def resolve(path: str | os.PathLike[str]) -> str:
    """The absolute path of a mount point as the table spells it, without asking what is mounted there.

    Only the directories above it are looked at, unless the path ends in a symbolic link: the server of a mount may
    hang, and then a stat of its root hangs, too.

    Raises:
        MountError: EINVAL, there can be no such path.
    """
    given = os.fspath(path)
    if not given or "\0" in given:
        raise MountError(errno.EINVAL, f"{given!r} can't be the path of a mount point")
    text = from_here(given).rstrip("/") or "/"
    parent, name = os.path.split(text)
    if name in ("", ".", ".."):
        return os.path.realpath(text)
    spelled = os.path.join(os.path.realpath(parent), name)
    return spelled if mount_at(spelled) else os.path.realpath(spelled)


@dataclass(frozen=True)
class MountState:
    """How a mount answered.

    `alive`: it did. `dead`: its server is gone (ENOTCONN). `hung`: no answer in time. `denied`: it is another user's.
    """

    mountpoint: str
    state: Literal["alive", "dead", "hung", "denied"]
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def pid(self) -> int | None:
        pid = self.status.get("pid")
        return pid if isinstance(pid, int) else None


_ASK = """
import os, sys
try:
    sys.stdout.buffer.write(os.getxattr(sys.argv[1], sys.argv[2]))
except OSError as error:
    sys.exit(error.errno)
"""
_STATES: dict[int, Literal["dead", "denied"]] = {
    errno.ENOTCONN: "dead",
    errno.ECONNABORTED: "dead",  # it died while it was asked
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}


def probe(*mountpoints: str) -> list[MountState]:
    """Return how mounts answer. They are asked at once, so it takes no longer than `PROBE_TIMEOUT_S` and a little."""
    asked = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ASK, mountpoint, STATUS_XATTR],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        for mountpoint in mountpoints
    ]
    deadline = time.monotonic() + PROBE_TIMEOUT_S
    return [_state(*each, max(deadline - time.monotonic(), 0.01)) for each in zip(mountpoints, asked, strict=True)]


def _state(mountpoint: str, process: subprocess.Popen[bytes], timeout_s: float) -> MountState:
    try:
        answer, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may outlive us, until the server answers or ends
            process.wait(0.2)
        assert process.stdout is not None
        process.stdout.close()
        return MountState(mountpoint, "hung")
    if process.returncode == 0:
        with contextlib.suppress(ValueError):
            status = json.loads(answer)
            if isinstance(status, dict):
                return MountState(mountpoint, "alive", status)
    return MountState(mountpoint, _STATES.get(process.returncode, "alive"))


# -- the end of a mount -----------------------------------------------------------------------------------------
#
# Tells when a mount is taken away from outside.
#
# A second mount of the same file system (a bind mount, a container) keeps it alive: after `fusermount3 -u` its server
# would serve on, and the unmount would wait for the server. So that second mount must end with the first one.


class MountWatch:
    """Looks whether a mount of ours is still on a mount point. poll(2) on the table of mounts reports each change of it
    (proc_pid_mountinfo(5)). Used by one thread, which closes it.

    A command's sandbox keeps the mounted file system alive in its own mount namespace: after `fusermount3 -u` the
    server would serve it until the command ends, and the unmount waits for the server.
    """

    def __init__(self, mountpoint: str) -> None:
        self._mountpoint = mountpoint
        self._table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self.poll = select.poll()
        self.poll.register(self._table, select.POLLPRI)
        self.check()

    def close(self) -> None:
        os.close(self._table)

    def look(self) -> bool:
        """Return True when the mount is gone."""
        if not self.gone and self.poll.poll(0):
            self.check()
        return self.gone

    def check(self) -> None:
        """Read the table, after a wait for `poll`, which reports a change once."""
        entry = mount_at(self._mountpoint)
        self.gone = entry is None or not entry.is_ours


class UnmountWatch:
    """Calls back once, in a thread of its own, when no mount of ours is on a mount point any more.

    Args:
        mountpoint: as the table of mounts spells it.
        then: is called.
        name: of the thread.
    """

    def __init__(self, mountpoint: str, then: Callable[[], None], name: str) -> None:
        self._mountpoint = mountpoint
        self._then = then
        stop, self._stopper = os.pipe()  # closing it ends the thread
        self._thread = threading.Thread(target=self._watch, args=(stop,), name=name, daemon=True)
        self._thread.start()

    def _watch(self, stop: int) -> None:
        with contextlib.closing(MountWatch(self._mountpoint)) as watch:
            watch.poll.register(stop, select.POLLIN | select.POLLHUP)
            while not watch.gone:
                if any(descriptor == stop for descriptor, _ in watch.poll.poll()):
                    break
                watch.check()
            else:
                self._then()
        os.close(stop)

    def close(self) -> None:
        """End it, before the mount is taken away by its own server."""
        os.close(self._stopper)
        self._thread.join()
