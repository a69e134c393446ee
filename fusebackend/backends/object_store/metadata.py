"""Modes, owners and times as object metadata: `x-amz-meta-mode`, `-uid`, `-gid` and `-mtime`.

The names and forms are those of s3fs-fuse: the mode is `st_mode` in decimal digits with the type in it, a symbolic
link's target is its content, and the time is in seconds since the epoch with nine decimals, as rclone writes and reads
it. A missing or malformed attribute has a default: a regular file, 0644 (0755 for a directory), the user and the group
of the server, and the time at which the store says that the object was put. A mode that begins with `0` is taken for an
octal one (rclone). All other metadata, and attributes such as `Content-Type`, are carried along when an object is put
again.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from fusebackend.backends.object_store.put import UPLOAD_ATTRIBUTE
from fusebackend.protocol.remote import Stamp
from fusebackend.remote.entry import DIRECTORY_MODE, FILE_MODE

OURS = ("mode", "uid", "gid", "mtime", UPLOAD_ATTRIBUTE)

_DIGITS = re.compile(r"[0-9]{1,10}")
_MODE = re.compile(r"0[0-7]{0,9}|[1-9][0-9]{0,9}")
_SECONDS = re.compile(r"(-?[0-9]{1,11})(?:\.([0-9]+))?")
_BILLION = 1_000_000_000


def read(attributes: Mapping[str, str], modified_ns: int, *, is_dir: bool, is_shown: bool = True) -> Stamp:
    """The stamp of an object, with defaults. Without `is_shown` these alone; all attributes are only carried along."""
    if not is_shown:
        extra = {name: value for name, value in attributes.items() if name not in (UPLOAD_ATTRIBUTE, "mtime")}
        return read({}, modified_ns, is_dir=is_dir)._replace(extra=extra)
    mode = _mode(attributes.get("mode", ""), is_dir)
    uid, gid = (_number(attributes.get(word, "")) for word in ("uid", "gid"))
    mtime_ns = _time_ns(attributes.get("mtime", ""))
    return Stamp(
        mode,
        os.geteuid() if uid is None else uid,
        os.getegid() if gid is None else gid,
        modified_ns if mtime_ns is None else mtime_ns,
        {name: value for name, value in attributes.items() if name not in OURS},
    )


def written(stamp: Stamp) -> dict[str, str]:
    """The attributes of an object with this stamp."""
    ours = {"mode": str(stamp.mode), "uid": str(stamp.uid), "gid": str(stamp.gid), "mtime": _text(stamp.mtime_ns)}
    return {**ours, **stamp.extra}


def _mode(text: str, is_dir: bool) -> int:
    if not _MODE.fullmatch(text):
        return DIRECTORY_MODE if is_dir else FILE_MODE
    mode = int(text, 8 if text.startswith("0") else 10)
    if is_dir:
        return stat.S_IFDIR | stat.S_IMODE(mode)
    return (stat.S_IFLNK if stat.S_ISLNK(mode) else stat.S_IFREG) | stat.S_IMODE(mode)


def _number(text: str) -> int | None:
    number = int(text) if _DIGITS.fullmatch(text) else -1
    return number if 0 <= number < 0xFFFFFFFF else None


def _time_ns(text: str) -> int | None:
    found = _SECONDS.fullmatch(text)
    if found is None:
        return None
    fraction = int((found[2] or "").ljust(9, "0")[:9])
    return int(found[1]) * _BILLION + (-fraction if text.startswith("-") else fraction)


def _text(time_ns: int) -> str:
    seconds, fraction = divmod(abs(time_ns), _BILLION)
    return f"{'-' if time_ns < 0 else ''}{seconds}.{fraction:09}"
