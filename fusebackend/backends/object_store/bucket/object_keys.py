"""Keys and names: which objects are shown in a directory, and as what. Pure functions.

A directory is a prefix that ends with `/`, and an object is the file whose path is its key. Rules for what is no path:

- a key with an empty segment (`a//b`, `/a`), with a segment `.` or `..`, of more than 255 bytes, or with a control
  character is not shown, and keeps the directories it is in from being removed or renamed;
- an object with the key of a directory (`a` beside `a/b`) is `NAME%=`;
- a key that ends with `/` is other tools' sign for a directory, and is that directory;
- `DIRECTORY/.fusebackend.directory` is our sign: an empty object that keeps a directory which was made here, and its
  mode, owner and times. It goes when the directory is removed. `.fusebackend.renames/` at the top is the journal of
  renames. Neither is shown, and no file can be given such a name.

New names are UTF-8 without control characters and backslashes (SeaweedFS takes one for a `/`): any
other is EILSEQ, and so is a name that would be hidden; a key of more than 1,024 bytes is ENAMETOOLONG.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable

from fusebackend.base.errors import oserror
from fusebackend.protocol import NAME_MAX_BYTES
from fusebackend.protocol.remote import Contents, Head, Info
from fusebackend.remote.keyed import FILE_MARK, is_name

MARKER = ".fusebackend.directory"
JOURNAL = ".fusebackend.renames"
MAX_KEY_BYTES = 1024

PAGE_OBJECTS = 1000
"""So many objects come with one answer."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def info_of(segment: str, size: int, etag: str | None, modified_ns: int) -> Info:
    """An object as a listing shows it, by the last part of its key."""
    return Info(segment, False, size, modified_ns, (etag, modified_ns), etag)


def is_shown(segment: str) -> bool:
    """True if this part of a key can be a name in a directory."""
    return is_name(segment) and segment != MARKER and not _CONTROL.search(segment)


def arrange(directories: Iterable[str], objects: Iterable[Info], *, top: bool) -> Contents:
    """The names in a directory.

    Args:
        directories: the last parts of the prefixes in it.
        objects: the objects in it.
        top: it is the top of the tree, where the journal is.
    """
    infos: dict[bytes, Info] = {}
    for segment in directories:
        if is_shown(segment) and not (top and segment == JOURNAL):
            infos[segment.encode()] = Info(segment, is_dir=True)
    marker = None
    late: list[Info] = []
    for found in objects:
        name = found.segment.encode()
        if found.segment == MARKER:
            marker = Head(found.size or 0, found.etag, found.version, found.mtime_ns)
        elif not is_shown(found.segment):
            continue
        elif name in infos:
            late.append(found)
        else:
            infos[name] = found
    for found in late:
        name = found.segment.encode() + FILE_MARK
        while name in infos:
            name += FILE_MARK
        if len(name) <= NAME_MAX_BYTES:
            infos[name] = found
    return Contents(infos, marker, len(infos) > PAGE_OBJECTS)


def segment_of(name: bytes) -> str | None:
    """The last part of the key that a name would have by itself; None if no object can have it."""
    try:
        segment = name.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return segment if is_shown(segment) else None


def new_segment(name: bytes, directory: str) -> str:
    """The last part of the key for a new name. The key of its directory ends with `/`.

    Raises:
        OSError: EILSEQ, ENAMETOOLONG.
    """
    segment = segment_of(name)
    if segment is None or "\\" in segment or (segment == JOURNAL and not directory):
        raise oserror(errno.EILSEQ, name)
    if len((directory + segment).encode()) > MAX_KEY_BYTES - len(MARKER) - 1:
        raise oserror(errno.ENAMETOOLONG, name)
    return segment
