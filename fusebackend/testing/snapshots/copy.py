"""`copy_of`: all that a reader finds in a volume, as values to compare."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from fusebackend.protocol import ROOT_NODE, Attr, Volume
from fusebackend.volumes.walk import paged

PAGE_ENTRIES = 3
"""Entries of a directory that are asked for at once: few, so that every listing has several pages."""


class Copied(NamedTuple):
    """One name of a volume, with all that a reader finds behind it."""

    node: int
    mode: int
    owner: tuple[int, int]
    nlink: int
    rdev: int
    size: int
    blocks: int
    times_ns: tuple[int, int, int]
    xattrs: dict[bytes, bytes]
    content: bytes
    """Of a file its bytes, of a symbolic link its target."""
    data: tuple[int, ...]
    """Where `next_data` finds data."""


def copy_of(volume: Volume) -> dict[bytes, Copied]:
    """Return path → what is there, for every name of a volume. Access times are those after the walk."""
    read_once(volume)  # moves those access times that reads move
    return read_once(volume)


def but_atimes(volume: Volume) -> dict[bytes, Copied]:
    """Return what `read_once` does, without access times."""
    return {path: each._replace(times_ns=(0, *each.times_ns[1:])) for path, each in read_once(volume).items()}


def read_once(volume: Volume) -> dict[bytes, Copied]:
    """Return what `copy_of` does, in one walk: of a volume in which reads move no access times."""
    found: dict[bytes, Copied] = {}
    waiting = [(b"/", volume.getattr(ROOT_NODE).node)]
    while waiting:
        path, node = waiting.pop()
        listed = paged(volume.readdir, node, PAGE_ENTRIES) if volume.getattr(node).is_dir else ()
        children = [(name, attr.node) for name, attr in listed]
        found[path] = _copied(volume, volume.getattr(node))
        for name, child in children:
            assert volume.lookup(node, name).node == child, f"{name!r} in {path!r} is listed as node {child}"
            waiting.append((path.rstrip(b"/") + b"/" + name, child))
    # Reading moves access times, of directories and links too, so attributes are asked for after everything was read.
    return {path: each._replace(times_ns=_times(volume.getattr(each.node))) for path, each in sorted(found.items())}


def _times(attr: Attr) -> tuple[int, int, int]:
    return attr.atime_ns, attr.mtime_ns, attr.ctime_ns


def _copied(volume: Volume, attr: Attr) -> Copied:
    # The attributes may be the volume's own record, which the reads below change.
    node, mode, size = attr.node, attr.mode, attr.size
    owner, nlink, rdev, blocks = (attr.uid, attr.gid), attr.nlink, attr.rdev, attr.blocks
    xattrs = {name: volume.getxattr(node, name) for name in volume.listxattr(node)} if volume.features.xattrs else {}
    content, data = b"", tuple[int, ...]()
    if stat.S_ISLNK(mode):
        content = volume.readlink(node)
    elif stat.S_ISREG(mode):
        volume.open(node, os.O_RDONLY)
        content = volume.read(node, 0, size + 1)
        data = _data(volume, node, size)
        volume.release(node, os.O_RDONLY)
    return Copied(node, mode, owner, nlink, rdev, size, blocks, _times(attr), xattrs, content, data)


def _data(volume: Volume, node: int, size: int) -> tuple[int, ...]:
    """Where data begins, seen from each 64 KiB."""
    found = {volume.next_data(node, offset) for offset in range(0, size, 1 << 16)}
    return tuple(sorted(offset for offset in found if offset is not None))
