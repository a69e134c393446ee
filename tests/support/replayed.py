"""A reference for records: the tree of a volume as a dictionary, and records taken back in it, the latest first."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fusebackend.history.history_file import HistoryFile
from fusebackend.history.records import Image, Record, State
from fusebackend.protocol import ROOT_NODE, SnapshotVolume, Volume
from fusebackend.testing.by_path import content, walk
from fusebackend.volumes.contents import opened


@dataclass
class File:
    """A file by its node; several names may have it."""

    mode: int
    data: bytes = b""
    target: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict)

    def give(self, before: State) -> None:
        self.mode, self.target, self.xattrs = before.mode, before.target, dict(before.xattrs)


Tree = dict[bytes, File]


def tree_of(volume: Volume) -> tuple[Tree, dict[int, File]]:
    """Return the files of a volume by their paths, and by their nodes."""
    root = File(volume.getattr(ROOT_NODE).mode)
    tree: Tree = {b"/": root}
    nodes: dict[int, File] = {ROOT_NODE: root}
    for path, attr in walk(volume):
        if attr.node not in nodes:
            made = nodes[attr.node] = File(attr.mode, content(volume, attr))
            if stat.S_ISLNK(attr.mode):
                made.data, made.target = b"", made.data
            else:
                made.xattrs = {each: volume.getxattr(attr.node, each) for each in volume.listxattr(attr.node)}
        tree[b"/" + path] = nodes[attr.node]
    return tree, nodes


def read(volume: Volume, node: int) -> bytes:
    with opened(volume, node, os.O_RDONLY) as handle:
        return volume.read(handle, 0, 1 << 24)


def shown(tree: Tree) -> dict[bytes, tuple[int, bytes, bytes, dict[bytes, bytes]]]:
    return {path: (file.mode, file.data, file.target, file.xattrs) for path, file in tree.items()}


def bytes_of(
    volume: Volume, history: HistoryFile, place: Callable[[Image], str], record: Record, image: Image
) -> bytes:
    assert image.place != "lost", image.name
    if image.place == "snapshot":
        assert isinstance(volume, SnapshotVolume)
        return read(volume.snapshot(image.name), image.node)
    if not image.name:
        return history.image_data(record.number)
    with open(place(image), "rb") as file:
        return file.read()


class Replay:
    """The present tree of a volume, from which records are taken back."""

    def __init__(self, volume: Volume, history: HistoryFile, place: Callable[[Image], str]) -> None:
        self._volume = volume
        self._history = history
        self._place = place
        self.tree, self._nodes = tree_of(volume)

    def back(self, records: Iterable[Record]) -> None:
        for record in sorted(records, reverse=True):
            getattr(self, f"_{record.kind}")(record)

    def _old(self, record: Record, node: int) -> File:
        """The file of a record, as it was before it."""
        assert record.before is not None
        file = self._nodes.get(node) if record.linked and node else None
        if file is None:
            file = File(0)
            if node:
                self._nodes[node] = file
        self._give(file, record)
        return file

    def _give(self, file: File, record: Record) -> None:
        assert record.before is not None
        file.give(record.before)
        if record.image is not None:
            file.data = bytes_of(self._volume, self._history, self._place, record, record.image)
            assert len(file.data) == record.before.size

    def _create(self, record: Record) -> None:
        del self.tree[record.path]

    def _remove(self, record: Record) -> None:
        assert record.path not in self.tree
        self.tree[record.path] = self._old(record, record.node)

    def _content(self, record: Record) -> None:
        self._give(self.tree[record.path], record)

    _attributes = _content

    def _rename(self, record: Record) -> None:
        self._move(record.to_path, record.path)
        if record.before is not None:
            self.tree[record.to_path] = self._old(record, 0 if record.image is None else record.image.node)

    def _exchange(self, record: Record) -> None:
        self._move(record.to_path, b"aside")
        self._move(record.path, record.to_path)
        self._move(b"aside", record.path)

    def _move(self, old: bytes, new: bytes) -> None:
        moved = {path: file for path, file in self.tree.items() if path == old or path.startswith(old + b"/")}
        for path in moved:
            del self.tree[path]
        for path, file in moved.items():
            self.tree[new + path[len(old) :]] = file
