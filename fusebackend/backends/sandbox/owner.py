"""Whose a container is, so that one that a killed server has left can be told from all others.

A server labels what it starts with the boot of its machine, and with what tells a process from every other of this
boot: its pid namespace, its number, and when it began.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

OWNER = "fusebackend.owner"
BOOT = "fusebackend.boot"


def labels() -> dict[str, str]:
    """Of this process."""
    return {OWNER: f"{_namespace()}-{os.getpid()}-{_began(os.getpid())}", BOOT: _boot()}


def is_left(found: Mapping[str, str], *, running: bool) -> bool:
    """Does nobody own a container with these labels any more?

    That can only be seen of the processes that this one can see. Of another boot's nobody can say whether that is this
    machine before it was started anew, or another one with the same engine: so its container is left by its owner if it
    does not run, and is left alone if it does.
    """
    words = found.get(OWNER, "").split("-")
    if len(words) != 3 or not all(word.isdecimal() for word in words):
        return False
    if found.get(BOOT) != _boot() or words[0] != _namespace():
        return not running
    return _began(int(words[1])) != words[2]


def _began(pid: int) -> str | None:
    """When a process began, in clock ticks since the boot; None when there is none of this number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
