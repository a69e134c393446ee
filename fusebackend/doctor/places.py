"""The directories that a server keeps things in, and the locale."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from fusebackend.base import xdg
from fusebackend.doctor.finding import Finding, error, ok, warning
from fusebackend.linux import runtime_directory

LITTLE_BYTES = 512 << 20
"""Less free space than this is worth a warning."""

NONE_BYTES = 16 << 20
"""With less, a server can keep nothing."""

_KEPT = (
    ("data directory", "XDG_DATA_HOME", ".local/share", "the embedded default, and branches"),
    ("state directory", "XDG_STATE_HOME", ".local/state", "logs and histories"),
)


def directories() -> Iterable[Finding]:
    """Data and state can be written, and have room; the runtime directory is the user's own."""
    for what, variable, otherwise, holds in _KEPT:
        yield writable(what, xdg.path(variable, otherwise), f"{holds}; set {variable} to another place")
    try:
        yield ok("runtime directory", runtime_directory.directory())
    except OSError as failure:
        mend = "set XDG_RUNTIME_DIR to a directory of this user's with mode 0700"
        yield error("runtime directory", f"no place for sockets: {failure.strerror or failure}", mend)


def writable(what: str, path: str, mend: str) -> Finding:
    """Check that files can be made in a directory, or in the nearest one above that is there, and that there is room.

    Args:
        mend: what is kept there, and what else can be done.
    """
    place = path
    while not os.path.lexists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        return error(what, f"'{place}' is no directory", mend)
    about = os.statvfs(place)
    if about.f_flag & os.ST_RDONLY:
        return error(what, f"'{path}' is on a file system that is mounted read-only", mend)
    if not os.access(place, os.W_OK | os.X_OK):
        return error(what, f"'{place}' can't be written by this user", mend)
    free = about.f_bavail * about.f_frsize
    room = f"{free >> 20:,} MiB are free on '{place}'"
    if free < NONE_BYTES or (about.f_files and not about.f_favail):
        return error(what, room if about.f_favail or not about.f_files else f"no inodes are free on '{place}'", mend)
    return warning(what, room, mend) if free < LITTLE_BYTES else ok(what, f"{path}; {room}")


def locale() -> Iterable[Finding]:
    """Names and texts are UTF-8."""
    encoding = sys.getfilesystemencoding().lower().replace("_", "-")
    if encoding == "utf-8":
        return [ok("locale", "UTF-8")]
    return [warning("locale", f"names of files are read as {encoding}, not as UTF-8", "export LC_ALL=C.UTF-8")]
