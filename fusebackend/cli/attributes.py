"""The attributes of a file, in the form of ls(1) and stat(1)."""

from __future__ import annotations

import datetime
import functools
import stat

from fusebackend.protocol.records import FILE_TYPES

_TYPES = {word: bits for bits, word in FILE_TYPES.items()}


def mode_string(kind: str | None, mode: int | None) -> str:
    """Type and permissions as `ls -l` shows them, `-rw-r--r--`."""
    return stat.filemode(_TYPES.get(kind or "", 0) | (mode or 0))


@functools.cache
def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@functools.cache
def group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def to_the_minute(time_ns: int) -> str:
    """A time to the minute, in the local zone; a number of seconds where the calendar has no such year."""
    seconds = time_ns // 1_000_000_000
    try:
        return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return f"@{seconds}"


def to_the_nanosecond(time_ns: int) -> str:
    """A time in the local zone with all its digits, as stat(1) prints it."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    try:
        moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"@{seconds}.{nanoseconds:09}"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{nanoseconds:09} {moment:%z}"
