"""A directory that is seen at a second path: a bind mount (mount(2), MS_BIND)."""

from __future__ import annotations

import ctypes
import os

MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8


def bind(source: str, target: str) -> None:
    """Show a directory at another path. What is mounted below it is not seen there.

    Raises:
        OSError: EPERM without CAP_SYS_ADMIN, or another of mount(2).
    """
    mount(source, target, MS_BIND)


def unbind(target: str) -> None:
    """Take a mount away; files that are open below it can be used until they are closed.

    Raises:
        OSError: EINVAL, nothing is mounted there; EPERM, or another of umount(2).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def mount(source: str, target: str, flags: int) -> None:
    """mount(2), without a type and data. OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)
