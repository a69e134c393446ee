"""Scenes: directories of files of all kinds, each kind made by its name in `KINDS`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import NamedTuple

Owner = tuple[int, int]

OLD_NS = 1_000_000_000 * 10**9


class Thing(NamedTuple):
    """A file to make in a scene. With `mode` None it has the mode of its kind."""

    kind: str
    name: str
    owner: Owner = (0, 0)
    mode: int | None = None


class Scene(NamedTuple):
    """A directory and its contents."""

    things: tuple[Thing, ...]
    mode: int = 0o755
    owner: Owner = (0, 0)


def _file(path: str) -> list[str]:
    with open(path, "wb") as file:
        file.write(b"data")
    return [path]


def _directory(path: str) -> list[str]:
    os.mkdir(path)
    return [path]


def _full_directory(path: str) -> list[str]:
    os.mkdir(path)
    return [path, *_file(path + "/in")]


def _node(kind: int, device: int = 0) -> Callable[[str], list[str]]:
    def make(path: str) -> list[str]:
        os.mknod(path, kind | 0o644, device)
        return [path]

    return make


def _link(target: str, beside: Callable[[str], list[str]] | None = None) -> Callable[[str], list[str]]:
    """Return a maker of symbolic links; `{}` in `target` stands for the link's own name."""

    def make(path: str) -> list[str]:
        made = beside(path + ".to") if beside is not None else []
        os.symlink(target.format(os.path.basename(path)), path)
        return [path, *made]

    return make


def _two_names(path: str) -> list[str]:
    _file(path)
    os.link(path, path + ".twin")
    return [path, path + ".twin"]


KINDS: dict[str, Callable[[str], list[str]]] = {
    "file": _file,
    "directory": _directory,
    "full directory": _full_directory,
    "fifo": _node(stat.S_IFIFO),
    "socket": _node(stat.S_IFSOCK),
    "character device": _node(stat.S_IFCHR, os.makedev(1, 3)),
    "block device": _node(stat.S_IFBLK, os.makedev(7, 99)),
    "link to a file": _link("{}.to", _file),
    "link to a directory": _link("{}.to", _full_directory),
    "dangling link": _link("nowhere"),
    "link to itself": _link("{}"),
    "file with two names": _two_names,
    "nothing": lambda path: [],
}
"""Makers of files at a path; each returns the paths of all it has made."""

DEVICES = ("character device", "block device")


def build(case: str, scene: Scene) -> dict[str, os.stat_result]:
    """Make a scene as the directory `case`; return `lstat` by path. All times but the change times are old."""
    os.mkdir(case)
    made = [case]
    for thing in scene.things:
        path = f"{case}/{thing.name}"
        paths = KINDS[thing.kind](path)
        for each in paths:
            os.lchown(each, *thing.owner)
        if thing.mode is not None and paths and not os.path.islink(path):
            os.chmod(path, thing.mode)
        made += paths
    os.chown(case, *scene.owner)
    os.chmod(case, scene.mode)
    for path in reversed(made):
        os.utime(path, ns=(OLD_NS, OLD_NS), follow_symlinks=False)
    return {path: os.lstat(path) for path in made}
