"""Files that processes have open for writing, as /proc tells it.

/proc/PID/fdinfo has flags, inode number and mount of each descriptor (since Linux 5.14), /proc/PID/mountinfo the device
of the mount, /proc/PID/maps the shared mappings. None of it asks the file system that the file is in, so a mount that
hangs stops no scan. Processes of other users are not seen, except by root; nor are those of other containers.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fusebackend.linux import mount_table, proc

_FIELD = re.compile(rb"^(flags|mnt_id|ino):\s*(\d+)$", re.MULTILINE)
_SHARED = re.compile(rb"^\S+ .w.s \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)", re.MULTILINE)

FileId = tuple[int, int]
"""The st_dev and st_ino of a file."""


@dataclass(frozen=True, order=True)
class Writer:
    """A process that has a file open for writing, or mapped for it."""

    file: FileId
    pid: int
    command: str


def writers(files: Collection[FileId]) -> list[Writer]:
    """Return the processes that have one of the files open for writing; this process is not among them."""
    wanted = frozenset(files)
    found: set[Writer] = set()
    for text in os.listdir("/proc") if wanted else ():
        if text.isdecimal() and int(text) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or it is another user's
                found.update(Writer(file, int(text), _command(text)) for file in _written_by(text) if file in wanted)
    return sorted(found)


def _written_by(pid: str) -> Iterator[FileId]:
    """All files that a process has open for writing."""
    devices: dict[int, int] = {}
    for fd in os.listdir(f"/proc/{pid}/fdinfo"):
        with contextlib.suppress(FileNotFoundError):
            fields = {name: int(value, 8 if name == b"flags" else 10) for name, value in _fields(pid, fd)}
            if fields.get(b"flags", 0) & os.O_ACCMODE == os.O_RDONLY or fields.get(b"flags", 0) & os.O_PATH:
                continue
            if not devices:
                devices = _devices(pid)
            yield devices.get(fields.get(b"mnt_id", 0), 0), fields.get(b"ino", 0)
    for major, minor, inode in _SHARED.findall(proc.read(f"{pid}/maps")):
        yield os.makedev(int(major, 16), int(minor, 16)), int(inode)


def _fields(pid: str, fd: str) -> list[tuple[bytes, bytes]]:
    return _FIELD.findall(proc.read(f"{pid}/fdinfo/{fd}"))


def _devices(pid: str) -> dict[int, int]:
    """The device of each mount that a process sees, by the mount's id."""
    found = {}
    for entry in mount_table.parse(os.fsdecode(proc.read(f"{pid}/mountinfo"))):
        major, _, minor = entry.device.partition(":")
        found[entry.id] = os.makedev(int(major), int(minor))
    return found


def _command(pid: str) -> str:
    return os.fsdecode(proc.read(f"{pid}/comm")).removesuffix("\n")
