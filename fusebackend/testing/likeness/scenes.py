"""Scenes: directories of files of all kinds, each kind made by its name in `KINDS`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
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


def _file(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"data")


def _link(to: str = "") -> Callable[[str], None]:
    """Return a maker of symbolic links to their own name with `to` after it."""

    def make(path: str) -> None:
        os.symlink(os.path.basename(path) + to, path)

    return make


def _second_name(path: str) -> None:
    os.link(path.removesuffix(".twin"), path)


KINDS: dict[str, dict[str, Callable[[str], None]]] = {
    "file": {"": _file},
    "directory": {"": os.mkdir},
    "full directory": {"": os.mkdir, "/in": _file},
    "fifo": {"": partial(os.mknod, mode=stat.S_IFIFO | 0o644)},
    "socket": {"": partial(os.mknod, mode=stat.S_IFSOCK | 0o644)},
    "character device": {"": partial(os.mknod, mode=stat.S_IFCHR | 0o644, device=os.makedev(1, 3))},
    "block device": {"": partial(os.mknod, mode=stat.S_IFBLK | 0o644, device=os.makedev(7, 99))},
    "link to a file": {".to": _file, "": _link(".to")},
    "link to a directory": {".to": os.mkdir, ".to/in": _file, "": _link(".to")},
    "dangling link": {"": partial(os.symlink, "nowhere")},
    "link to itself": {"": _link()},
    "file with two names": {"": _file, ".twin": _second_name},
    "nothing": {},
}
"""What is made, in order: a maker of a file at a path by what the path has after the name of the thing."""

DEVICES = ("character device", "block device")


def build(case: str, scene: Scene) -> dict[str, os.stat_result]:
    """Make a scene as the directory `case`; return `lstat` by path. All times but the change times are old."""
    os.mkdir(case)
    made = [case]
    for thing in scene.things:
        path = f"{case}/{thing.name}"
        for ending, make in KINDS[thing.kind].items():
            make(path + ending)
            os.lchown(path + ending, *thing.owner)
            made.append(path + ending)
        if thing.mode is not None and path in made and not os.path.islink(path):
            os.chmod(path, thing.mode)
    os.chown(case, *scene.owner)
    os.chmod(case, scene.mode)
    for path in reversed(made):
        os.utime(path, ns=(OLD_NS, OLD_NS), follow_symlinks=False)
    return {path: os.lstat(path) for path in made}
