"""A scene with some of everything, and what wrecks it: for the cases of snapshots and of branches."""

from __future__ import annotations

import os
import stat

from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, AttrChanges, Caller, Volume
from fusebackend.testing.by_path import OWNER, overwrite, write

CHUNK = 1 << 16


def make_scene(volume: Volume) -> None:
    """Make some of everything."""
    directory = volume.mkdir(ROOT_NODE, b"directory", 0o2755, OWNER).node
    volume.mkdir(directory, b"below", 0o700, Caller(1000, 1000))
    write(volume, b"small", b"small")
    large = write(volume, b"directory/below/large", bytes(range(256)) * 1024)
    holes = write(volume, b"holes", b"first")
    overwrite(volume, holes, 5 * CHUNK + 7, b"last")
    volume.setattr(large, AttrChanges(mode=0o4755, uid=1000, gid=1001, mtime_ns=-5, atime_ns=10**18))
    volume.setxattr(large, b"user.name", b"value")
    volume.setxattr(directory, b"user.directory", b"")
    volume.link(large, ROOT_NODE, b"other name of large")
    volume.symlink(directory, b"link", b"../somewhere \xff", OWNER)
    volume.mknod(directory, b"fifo", stat.S_IFIFO | 0o600, 0, OWNER)
    volume.mknod(directory, b"device", stat.S_IFCHR | 0o600, os.makedev(1, 3), OWNER)
    for number in range(30):
        write(volume, b"directory/%02d" % number, b"x" * number)
    write(volume, b"directory/below/" + b"odd \xff\n\\name" * 10, b"")


def wreck_scene(volume: Volume) -> None:
    """Change everything that `_scene` has made."""
    directory = volume.lookup(ROOT_NODE, b"directory").node
    below = volume.lookup(directory, b"below").node
    large = volume.lookup(below, b"large").node
    overwrite(volume, large, 100, b"changed")
    overwrite(volume, large, 3 * CHUNK, b"changed")
    volume.setattr(large, AttrChanges(mode=0o600, uid=0, gid=0))
    volume.setxattr(large, b"user.name", b"another")
    volume.setxattr(large, b"user.more", b"")
    volume.removexattr(directory, b"user.directory")
    volume.unlink(ROOT_NODE, b"other name of large")
    volume.setattr(volume.lookup(ROOT_NODE, b"holes").node, AttrChanges(size=3))
    overwrite(volume, volume.lookup(ROOT_NODE, b"small").node, 5, b" and more")
    for name in (b"link", b"fifo", b"device"):
        volume.unlink(directory, name)
    volume.rename(directory, b"00", directory, b"01")
    volume.rename(directory, b"02", directory, b"03", RENAME_EXCHANGE)
    volume.rename(directory, b"below", ROOT_NODE, b"above")
    volume.symlink(directory, b"below", b"above", OWNER)
    for number in range(10, 30):
        volume.unlink(directory, b"%02d" % number)
    write(volume, b"directory/new", b"new")
