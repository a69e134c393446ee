"""Files of a volume by their paths: made, changed, and compared."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from fusebackend.protocol import ROOT_NODE, Attr, AttrChanges, Caller, Volume
from fusebackend.volumes import placing
from fusebackend.volumes.contents import opened
from fusebackend.volumes.walk import below, entries

OWNER = Caller(os.geteuid(), os.getegid())


class File(NamedTuple):
    """Everything of a file that a merge carries over."""

    type: int
    mode: int
    data: bytes
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


Shown: TypeAlias = dict[bytes, File]


def walk(volume: Volume, node: int = ROOT_NODE) -> Iterable[tuple[bytes, Attr]]:
    """All files below a directory, by their path. A directory comes before what is in it."""
    return ((path[1:], attr) for path, attr in below(volume, node))


def content(volume: Volume, attr: Attr) -> bytes:
    if stat.S_ISLNK(attr.mode):
        return volume.readlink(attr.node)
    if not stat.S_ISREG(attr.mode):
        return b""
    with opened(volume, attr.node, os.O_RDONLY) as node:  # `read_with` reads in one view, which may move no access time
        data = b""
        while piece := volume.read(node, len(data), 1 << 20):
            data += piece
        return data


def shown(volume: Volume, *, modes: bool = True) -> Shown:
    """Return all files of a volume."""
    found = {}
    for path, attr in walk(volume):
        state = placing.state_of(volume, volume.getattr(attr.node))
        mode = stat.S_IMODE(state.mode) if modes and not stat.S_ISLNK(state.mode) else 0
        xattrs = tuple(sorted(state.xattrs.items())) if modes else ()
        found[path] = File(stat.S_IFMT(state.mode), mode, content(volume, attr), xattrs)
    return found


def links(volume: Volume) -> set[frozenset[bytes]]:
    """Return the sets of names that lead to one file, of files with several."""
    found: dict[int, set[bytes]] = {}
    for path, attr in walk(volume):
        if not attr.is_dir:
            found.setdefault(attr.node, set()).add(path)
    return {frozenset(names) for names in found.values() if len(names) > 1}


def at(volume: Volume, path: bytes) -> Attr:
    attr = volume.getattr(ROOT_NODE)
    for name in path.split(b"/") if path else ():
        attr = volume.lookup(attr.node, name)
    return attr


def place(volume: Volume, path: bytes) -> tuple[int, bytes]:
    above, _, name = path.rpartition(b"/")
    return at(volume, above).node, name


def write(volume: Volume, path: bytes, data: bytes, mode: int = 0o644) -> int:
    """Make a file, or overwrite one in place; its node."""
    parent, name = place(volume, path)
    try:
        node = volume.lookup(parent, name).node
    except FileNotFoundError:
        node = volume.mknod(parent, name, stat.S_IFREG | mode, 0, OWNER).node
    with opened(volume, node, os.O_WRONLY) as handle:
        volume.setattr(handle, AttrChanges(size=0))
        if data:
            volume.write(handle, 0, data)
        if not volume.features.random_writes:
            volume.flush(handle)
    return node


def overwrite(volume: Volume, node: int, offset: int, data: bytes) -> None:
    """Write at an offset of a file."""
    with opened(volume, node, os.O_RDWR):
        volume.write(node, offset, data)


def replace(volume: Volume, path: bytes, data: bytes) -> None:
    """Write a new file, and rename it over another one, as editors do."""
    parent, name = place(volume, path)
    write(volume, path + b".new", data)
    volume.rename(parent, name + b".new", parent, name)


def mkdir(volume: Volume, path: bytes, mode: int = 0o755) -> None:
    volume.mkdir(*place(volume, path), mode, OWNER)


def symlink(volume: Volume, path: bytes, target: bytes) -> None:
    volume.symlink(*place(volume, path), target, OWNER)


def link(volume: Volume, path: bytes, new: bytes) -> None:
    volume.link(at(volume, path).node, *place(volume, new))


def rename(volume: Volume, path: bytes, new: bytes) -> None:
    volume.rename(*place(volume, path), *place(volume, new))


def chmod(volume: Volume, path: bytes, mode: int) -> None:
    volume.setattr(at(volume, path).node, AttrChanges(mode=mode))


def remove(volume: Volume, path: bytes) -> None:
    """Remove a file, or a directory with all that is in it."""
    attr = at(volume, path)
    parent, name = place(volume, path)
    if not attr.is_dir:
        volume.unlink(parent, name)
        return
    for inner, _ in list(entries(volume, attr.node)):
        remove(volume, path + b"/" + inner)
    volume.rmdir(parent, name)
