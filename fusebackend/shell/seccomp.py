"""A seccomp filter for what namespaces do not confine (seccomp(2), Documentation/userspace-api/seccomp_filter.rst).

Without it, a command in the sandbox could still read the server's keyrings, which a process inherits; talk to the host
of a virtual machine over AF_VSOCK, which no network namespace holds back; make sockets through io_uring, which filters
do not see; and gain all capabilities of a new user namespace, and with them a large part of the kernel to attack.

It is a list of exceptions: what is not named is allowed, for commands are arbitrary programs. Calls of another
architecture (32-bit programs) are answered as if the kernel did not have them.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; the low half of the argument

CLONE_NEWUSER = 0x10000000

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""What sockets may be made for. A network namespace confines these."""


@dataclass(frozen=True)
class Architecture:
    """Numbers of system calls (asm/unistd.h), and of what linux/audit.h calls the architecture."""

    audit: int
    calls: dict[str, int]
    first_foreign: int | None = None
    """From this number on, calls belong to another interface of the same architecture."""


_SINCE_2019 = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}

ARCHITECTURES = {
    "x86_64": Architecture(
        0xC000003E,
        {
            "socket": 41, "clone": 56, "syslog": 103, "add_key": 248, "request_key": 249, "keyctl": 250,
            "unshare": 272, "perf_event_open": 298, "setns": 308, "bpf": 321, "userfaultfd": 323,
            **_SINCE_2019,
        },
        0x40000000,
    ),
    "aarch64": Architecture(
        0xC00000B7,
        {
            "unshare": 97, "syslog": 116, "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219,
            "clone": 220, "perf_event_open": 241, "setns": 268, "bpf": 280, "userfaultfd": 282,
            **_SINCE_2019,
        },
    ),
}  # fmt: skip

REFUSED = ("add_key", "request_key", "keyctl", "syslog", "setns", "bpf", "perf_event_open", "userfaultfd")
"""Answered with EPERM."""

ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""Answered with ENOSYS, so that programs take the older way; of clone3 a filter could not see the flags."""

NEW_NAMESPACES = ("clone", "unshare")
"""Answered with EPERM where they ask for a user namespace."""


def program(machine: str | None = None) -> bytes | None:
    """The filter for this machine (as `uname -m` has it), None for one whose system calls are not known here."""
    architecture = ARCHITECTURES.get(machine or os.uname().machine)
    if architecture is None:
        return None
    calls = architecture.calls
    code = [_step(_LOAD, _ARCH), _step(_JUMP_EQUAL, architecture.audit, 1, 0), _refuse(errno.ENOSYS)]
    code.append(_step(_LOAD, _NUMBER))
    if architecture.first_foreign is not None:
        code += [_step(_JUMP_AT_LEAST, architecture.first_foreign, 0, 1), _refuse(errno.ENOSYS)]
    for name in REFUSED:
        code += [_step(_JUMP_EQUAL, calls[name], 0, 1), _refuse(errno.EPERM)]
    for name in ABSENT:
        code += [_step(_JUMP_EQUAL, calls[name], 0, 1), _refuse(errno.ENOSYS)]
    for name in NEW_NAMESPACES:
        code += _where(calls[name], [_step(_JUMP_SET, CLONE_NEWUSER, 0, 1), _refuse(errno.EPERM)])
    allowed = [_step(_JUMP_EQUAL, family, len(FAMILIES) - index, 0) for index, family in enumerate(FAMILIES)]
    code += _where(calls["socket"], [*allowed, _refuse(errno.EAFNOSUPPORT)])
    code.append(_step(_RETURN, _ALLOW))
    return b"".join(code)


def _where(number: int, checks: list[bytes]) -> list[bytes]:
    """For one call: look at its first argument, and allow what the checks let through to their end."""
    head = [_step(_JUMP_EQUAL, number, 0, len(checks) + 2), _step(_LOAD, _FIRST_ARGUMENT)]
    return [*head, *checks, _step(_RETURN, _ALLOW)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One `struct sock_filter`."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)
