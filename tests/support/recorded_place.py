"""A volume whose changes are recorded, and random changes of it by several calls."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st
from replayed import tree_of

from fusebackend.base.paths import ROOT
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.images import Images
from fusebackend.history.recorder import Recorder
from fusebackend.protocol import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    ROOT_NODE,
    Actor,
    AttrChanges,
    Caller,
    Volume,
)
from fusebackend.testing.by_path import walk
from fusebackend.trees.automatic import is_automatic, name_at
from fusebackend.vfs.junctions import Route
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.volumes.contents import opened
from fusebackend.volumes.walk import resolve

ME = Caller(os.geteuid(), os.getegid())


class Walked:
    """Paths of nodes, found by a walk: as `NodePaths` has them for what the kernel knows."""

    def _paths(self, route: Route) -> Iterator[tuple[bytes, int]]:
        yield b"/", ROOT_NODE
        for path, attr in walk(route.volume):
            yield b"/" + path, attr.node

    def of(self, route: Route, node: int) -> bytes | None:
        return next((path for path, found in self._paths(route) if found == node), None)

    last = of

    def below(self, route: Route, node: int, name: bytes) -> bytes | None:
        above = self.of(route, node)
        return None if above is None else above.rstrip(b"/") + b"/" + name


class Place:
    """A volume whose changes are recorded."""

    def __init__(self, volume: Volume, directory: str) -> None:
        self.volume = volume
        self.filesystem = FileSystem({ROOT: volume})
        self.history = HistoryFile(os.path.join(directory, "history", "history.db"))
        self.images = Images(os.path.join(directory, "history"), self.name, is_automatic)
        self.recorder = Recorder(self.history, self.images)
        self.recorder.follow(self.filesystem.tree.routes)
        self.filesystem.record(self.recorder.listener, self.recorder.calls.author)
        (route,) = self.filesystem.tree.routes
        route.listen("history", self.recorder.listener(route), Walked())
        self.door = route.door
        self._numbers = itertools.count(1)

    def name(self) -> str:
        return name_at(next(self._numbers) * 10**6)

    @contextmanager
    def by(self, who: str) -> Iterator[None]:
        with self.recorder.calls.inside("verb", who, Actor(agent=who, call=who)):
            yield

    def node(self, path: str) -> int:
        return resolve(self.volume, path, follow=False).found.node

    def write(self, path: str, offset: int, data: bytes) -> None:
        with opened(self.volume, self.node(path), os.O_WRONLY) as node:
            self.door.write(node, offset, data)

    def make(self, parent: int, name: bytes, data: bytes = b"") -> None:
        flags = os.O_WRONLY | os.O_CREAT
        node = self.door.create(parent, name, 0o644, flags, ME).node
        try:
            if data:
                self.door.write(node, 0, data)
        finally:
            self.volume.release(node, flags)

    def records(self):
        return [record for call in self.history.calls() for record in self.history.records(call.number)]

    def close(self) -> None:
        self.recorder.calls.close()
        self.history.close()


OPERATIONS = (
    "write", "write", "append", "truncate", "chmod", "setxattr", "create", "create", "mkdir", "symlink", "link",
    "unlink", "unlink", "rmdir", "rename", "rename", "exchange", "noreplace", "snapshot", "end",
)  # fmt: skip
NAMES = (b"a", b"b", b"c")


def step(place: Place, operation: str, one: int, two: int, size: int) -> None:
    """Make one random change. One that is not possible is an OSError."""
    found = [("/", ROOT_NODE, stat.S_IFDIR)]
    walked = tree_of(place.volume)[0]
    del walked[b"/"]
    found += [(os.fsdecode(path), place.node(os.fsdecode(path)), file.mode) for path, file in walked.items()]
    for _, known, _ in found:
        place.volume.hold(known)  # as the kernel does; see `UndoPlan` for files that it knows no longer
    directories = [(path, node) for path, node, mode in found if stat.S_ISDIR(mode)]
    files = [(path, node) for path, node, mode in found if stat.S_ISREG(mode)] or [("/none", 0)]
    (_, parent), (_, other) = directories[one % len(directories)], directories[two % len(directories)]
    path, node = files[one % len(files)]
    name, new_name = NAMES[two % 3], NAMES[size % 3]
    data = bytes([65 + size % 26]) * size
    door = place.door
    match operation:
        case "write":
            place.write(path, two % 50, data)
        case "append":
            with opened(place.volume, node, os.O_WRONLY) as node:
                door.append(node, data)
        case "truncate":
            door.setattr(node, AttrChanges(size=two))
        case "chmod":
            door.setattr(found[one % len(found)][1], AttrChanges(mode=0o700 | two % 64))
        case "setxattr":
            door.setxattr(node, b"user.x", data)
        case "create":
            place.make(parent, name, data)
        case "mkdir":
            door.mkdir(parent, name, 0o755, ME)
        case "symlink":
            door.symlink(parent, name, b"target", ME)
        case "link":
            door.link(node, parent, name)
        case "unlink":
            door.unlink(parent, name)
        case "rmdir":
            door.rmdir(parent, name)
        case "rename":
            door.rename(parent, name, other, new_name)
        case "exchange":
            door.rename(parent, name, other, new_name, RENAME_EXCHANGE)
        case "noreplace":
            door.rename(parent, name, other, new_name, RENAME_NOREPLACE)
        case "snapshot":
            if hasattr(place.volume, "take_snapshot"):
                place.volume.take_snapshot(place.name())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(OPERATIONS), st.sampled_from("XYZ"), st.integers(0, 40), st.integers(0, 40), st.integers(0, 99)
    ),
    max_size=40,
)


def make(place: Place, steps) -> None:
    for operation, who, one, two, size in steps:
        if operation == "end":
            for call in place.recorder.calls.open():
                place.recorder.calls.end(call)
            continue
        with place.by(who):
            try:
                step(place, operation, one, two, size)
            except OSError as error:
                assert error.errno is not None  # it could not be done
