"""A seccomp filter for system calls that namespaces do not confine (seccomp(2),
Documentation/userspace-api/seccomp_filter.rst).

Without it, a command in the sandbox could still read the server's keyrings, which a process inherits; talk to the host
of a virtual machine over AF_VSOCK, which no network namespace holds back; make sockets through io_uring, which filters
do not see; gain all capabilities of a new user namespace, and with them a large part of the kernel to attack; take what
the kernel counts for the whole machine or user from others; and leave a setuid program of the server's user in a `dir:`
route, for other users of this machine. A `chmod` that sets the setgid bit is let through, for directories may have one;
of a file, the mount refuses it (`vfs/setid.py`).

It is a list of exceptions: all other calls are allowed, because commands are arbitrary programs. Calls of another
architecture (32-bit programs) are answered as if the kernel did not have them.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from dataclasses import dataclass
from functools import cache

from fusebackend.linux.bind_mount import CLONE_NEWUSER

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; each argument has 8 bytes, low half first

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Address families of sockets that may be made. A network namespace confines these."""


@dataclass(frozen=True)
class Architecture:
    """Numbers of system calls (asm/unistd.h), and of the architecture (linux/audit.h)."""

    audit: int
    calls: dict[str, int]
    first_foreign: int | None = None
    """From this number on, calls belong to another interface of the same architecture."""


_SINCE_2019 = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435, "openat2": 437,
    "fchmodat2": 452,
}  # fmt: skip

ARCHITECTURES = {
    "x86_64": Architecture(
        0xC000003E,
        {
            "open": 2, "socket": 41, "clone": 56, "creat": 85, "chmod": 90, "fchmod": 91, "syslog": 103,
            "mknod": 133, "io_setup": 206, "inotify_init": 253, "inotify_init1": 294, "fanotify_init": 300,
            "add_key": 248, "request_key": 249, "keyctl": 250,
            "openat": 257, "mknodat": 259, "fchmodat": 268, "unshare": 272, "perf_event_open": 298, "setns": 308,
            "bpf": 321, "userfaultfd": 323,
            **_SINCE_2019,
        },
        0x40000000,
    ),
    "aarch64": Architecture(
        0xC00000B7,
        {
            "io_setup": 0, "inotify_init1": 26, "fanotify_init": 262,
            "mknodat": 33, "fchmod": 52, "fchmodat": 53, "openat": 56, "unshare": 97, "syslog": 116, "socket": 198,
            "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "perf_event_open": 241, "setns": 268,
            "bpf": 280, "userfaultfd": 282,
            **_SINCE_2019,
        },
    ),
}  # fmt: skip

REFUSED = ("add_key", "request_key", "keyctl", "syslog", "setns", "bpf", "perf_event_open", "userfaultfd")
"""Answered with EPERM."""

ABSENT = ("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""Answered with ENOSYS, so that programs take the older way: a filter could not see their arguments."""

COUNTED_BY_MACHINE = ("io_setup",)
"""Answered with EAGAIN, as if others had it all (fs.aio-max-nr, 65,536 requests for a whole machine)."""

COUNTED_BY_USER = ("inotify_init", "inotify_init1", "fanotify_init")
"""Answered with EMFILE, as if others had it all, where no user namespace has a count of its own."""

NEW_NAMESPACES = ("clone", "unshare")
"""Answered with EPERM where their first argument asks for a user namespace."""

_SETID = stat.S_ISUID | stat.S_ISGID
MODES = {
    "chmod": (1, stat.S_ISUID), "fchmod": (1, stat.S_ISUID), "fchmodat": (2, stat.S_ISUID),
    "fchmodat2": (2, stat.S_ISUID), "mknod": (1, _SETID), "mknodat": (2, _SETID), "creat": (1, _SETID),
    "open": (2, _SETID), "openat": (3, _SETID),
}  # fmt: skip
"""The argument that is a mode, and bits of which none may be set: EPERM. The first four calls may be about a directory,
which may have setgid; the others make a file."""

FLAGS = {"open": 1, "openat": 2}
"""The argument that must have one of `CREATING`; there is no mode else."""

CREATING = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)


@cache
def program(machine: str | None = None, *, counted: bool = True) -> bytes | None:
    """Return the filter for this machine (as `uname -m` has it), None for an unknown architecture.

    Args:
        machine: another one.
        counted: the sandbox has counts of its own of the resources of `COUNTED_BY_USER`.
    """
    architecture = ARCHITECTURES.get(machine or os.uname().machine)
    if architecture is None:
        return None
    calls = architecture.calls
    code = [_step(_LOAD, _ARCH), _step(_JUMP_EQUAL, architecture.audit, 1, 0), _refuse(errno.ENOSYS)]
    code.append(_step(_LOAD, _NUMBER))
    if architecture.first_foreign is not None:
        code += [_step(_JUMP_AT_LEAST, architecture.first_foreign, 0, 1), _refuse(errno.ENOSYS)]
    answers = dict.fromkeys(REFUSED, errno.EPERM) | dict.fromkeys(ABSENT, errno.ENOSYS)
    answers |= dict.fromkeys(COUNTED_BY_MACHINE, errno.EAGAIN)
    answers |= dict.fromkeys(() if counted else [name for name in COUNTED_BY_USER if name in calls], errno.EMFILE)
    for name, answer in answers.items():
        code += [_step(_JUMP_EQUAL, calls[name], 0, 1), _refuse(answer)]
    for name in NEW_NAMESPACES:
        code += _of(calls[name], [_argument(0), _step(_JUMP_SET, CLONE_NEWUSER, 0, 1), _refuse(errno.EPERM)])
    for name, (number, bits) in MODES.items():
        if name not in calls:
            continue
        checks = [_argument(number), _step(_JUMP_SET, bits, 0, 1), _refuse(errno.EPERM)]
        if name in FLAGS:
            checks = [_argument(FLAGS[name]), _step(_JUMP_SET, CREATING, 0, len(checks)), *checks]
        code += _of(calls[name], checks)
    allowed = [_step(_JUMP_EQUAL, family, len(FAMILIES) - index, 0) for index, family in enumerate(FAMILIES)]
    code += _of(calls["socket"], [_argument(0), *allowed, _refuse(errno.EAFNOSUPPORT)])
    code.append(_step(_RETURN, _ALLOW))
    return b"".join(code)


def _of(number: int, checks: list[bytes]) -> list[bytes]:
    """For one call: allow what the checks let through to their end."""
    return [_step(_JUMP_EQUAL, number, 0, len(checks) + 1), *checks, _step(_RETURN, _ALLOW)]


def _argument(index: int) -> bytes:
    """Load the low half of an argument, counted from 0."""
    return _step(_LOAD, _ARGUMENTS + 8 * index)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One `struct sock_filter`."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)
