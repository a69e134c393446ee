"""`sides`: two trees, before a call and after it, put together from the records of the history.

They have the paths that the call has changed, and the directories above these. `diff.differences` of the two is what
the call did, and nothing of what others did meanwhile or since.

A file after the call is as the next call found it that changed it, or as it is now. The records of the call itself lead
back from there: each has the state before its change. Bytes that the history has lost can't be read: EIO, with the
reason.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from fusebackend.base.errors import VANISHED
from fusebackend.base.paths import AgentPath
from fusebackend.base.relative_paths import above, join, split
from fusebackend.history.records import Record
from fusebackend.history.undo_plan import node_of
from fusebackend.protocol import Volume
from fusebackend.trees.merge.tree import Item
from fusebackend.volumes.placing import NodeSource, Source, State
from fusebackend.volumes.walk import below, find

MAX_MOVES: Final = 100
"""Later renames that a file is followed through."""


class Version(NamedTuple):
    """A file at some time.

    Attributes:
        state: its attributes.
        source: its bytes, for regular files; None where they are lost.
        why_lost: the reason.
        node: in the volume; 0 where that is not known, and for directories.
    """

    state: State
    source: Source | None
    why_lost: str = ""
    node: int = 0


class Past(NamedTuple):
    """What the sides of a call are made of.

    Attributes:
        volumes: of the routes, by prefix.
        later: returns the records of other calls after a record that touch a path of its route, undone ones, too.
        source: returns the bytes of a record's image.
        lasts: returns True if the nodes of a record are still those of the volume's files.
    """

    volumes: Mapping[AgentPath, Volume]
    later: Callable[[int, AgentPath, bytes], list[Record]]
    source: Callable[[Record], Source]
    lasts: Callable[[Record], bool] = lambda record: False


def sides(records: list[Record], past: Past) -> tuple[RecordedTree, RecordedTree]:
    """Return the trees before and after a call.

    Args:
        records: of the call, in their order.
    """
    before: dict[bytes, Version | None] = {}
    after: dict[bytes, Version | None] = {}
    by_route: dict[AgentPath, list[Record]] = defaultdict(list)
    for record in records:
        by_route[record.prefix].append(record)
    for prefix, found in by_route.items():
        replay = Replay(prefix, found, past)
        replay.run()
        head = os.fsencode(prefix).strip(b"/")
        for paths, side in ((replay.now, before), (replay.after, after)):
            side.update({join(head, path.strip(b"/")) if path != b"/" else head: each for path, each in paths.items()})
    return RecordedTree(before), RecordedTree(after)


class Replay:
    """Records of one route, taken back from the last to the first: those of a call, or of all calls.

    Attributes:
        after: path → the file after the records, of every path that they changed.
        now: path → the file before the records that were taken back so far.
        linked: node → the same, of files with several names: they have changed under names that are not in `now`, too.
    """

    def __init__(self, prefix: AgentPath, records: list[Record], past: Past) -> None:
        self.after: dict[bytes, Version | None] = {}
        self.now: dict[bytes, Version | None] = {}
        self.linked: dict[int, Version] = {}
        self._prefix = prefix
        self._records = records
        self._past = past
        self._volume = past.volumes.get(prefix)
        self._last = records[-1].number if records else 0

    def run(self) -> None:
        for record in reversed(self._records):
            if record.kind == "rename":
                self._rename(record)
            elif record.kind == "exchange":
                self._exchange(record)
            else:
                self._touch(record.path)
                self.now[record.path] = before = None if record.kind == "create" else self._before(record)
                if before is None and not record.linked:
                    self.linked.pop(record.node, None)  # the number may have been another file's before
                elif before is not None and before.node and before.state.nlink > 1:
                    if record.kind == "remove":
                        self._link(before)
                    else:
                        self._change(before)

    def _link(self, before: Version) -> None:
        """One more name of a file is there: names that were removed later had fewer links beside them then."""
        for path, each in self.now.items():
            if each is not None and each.node == before.node and each.state.nlink < before.state.nlink:
                self.now[path] = each._replace(state=each.state._replace(nlink=before.state.nlink))

    def _change(self, before: Version) -> None:
        """Give a file with several names its earlier state under all of them."""
        self.linked[before.node] = before
        for path, each in self.now.items():
            if each is not None and each.node == before.node:
                self.now[path] = before

    def _before(self, record: Record) -> Version | None:
        """Return the file of a record before its change."""
        found = self._version(record)
        if found is None or stat.S_ISDIR(found.state.mode) or not self._past.lasts(record):
            return found
        return found._replace(node=node_of(record))

    def _version(self, record: Record) -> Version | None:
        if record.before is None:
            return None
        state = record.before
        if not stat.S_ISREG(state.mode):
            return Version(state, None)
        if record.kind == "attributes":
            there = self.now.get(record.path)
            return Version(state, None if there is None else there.source)
        if record.image is None:
            return Version(state, None, "the history has no bytes of it")
        if record.image.place == "lost":
            return Version(state, None, record.image.name)
        try:
            return Version(state, self._past.source(record))
        except OSError as error:
            return Version(state, None, error.strerror or str(error))

    def _rename(self, record: Record) -> None:
        self._touch_all(record.to_path)
        self._touch_all(record.path)
        moved = self._taken(record.to_path)
        self.now[record.to_path] = self._before(record)
        self._put(record.path, moved)

    def _exchange(self, record: Record) -> None:
        self._touch_all(record.to_path)
        self._touch_all(record.path)
        one, other = self._taken(record.path), self._taken(record.to_path)
        self._put(record.path, other)
        self._put(record.to_path, one)

    def _taken(self, path: bytes) -> dict[bytes, Version | None]:
        """Take a path and all below it away; returns what was there, by what follows the path."""
        found = {}
        for each in list(self.now):
            if each == path or each.startswith(path + b"/"):
                found[each[len(path) :]] = self.now[each]
                self.now[each] = None
        return found

    def _put(self, path: bytes, found: Mapping[bytes, Version | None]) -> None:
        for rest, version in found.items():
            self._touch(path + rest)
            self.now[path + rest] = version

    def _touch(self, path: bytes) -> None:
        if path not in self.after:
            self.after[path] = found = self._found(path)
            self.now.setdefault(path, found if found is None else self.linked.get(found.node, found))

    def _touch_all(self, path: bytes) -> None:
        """Touch a path, and what is below it now."""
        self._touch(path)
        attr = None if self._volume is None else find(self._volume, os.fsdecode(path))
        if self._volume is not None and attr is not None and attr.is_dir:
            for inner, _ in below(self._volume, attr.node, path.rstrip(b"/"), passing=(OSError,)):
                self._touch(inner)

    # -- after the call ----------------------------------------------------------------------------------------

    def _found(self, path: bytes) -> Version | None:
        """Return the file that the call left at a path: as the next record of another call has it, or as it is now."""
        number, state = self._last, None
        for _ in range(MAX_MOVES):
            moved = False
            for record in self._past.later(number, self._prefix, path):
                if record.path == path:
                    if record.kind == "create":
                        return None
                    if record.kind in ("rename", "exchange"):
                        path, number, moved = record.to_path, record.number, True
                        break
                    if record.kind == "attributes" and record.before is not None:
                        state = state or record.before
                        continue
                    found = self._before(record)
                    return found if found is None or state is None else found._replace(state=state)
                if record.to_path == path:
                    if record.kind == "rename":
                        return self._before(record)
                    path, number, moved = record.path, record.number, True
                    break
                if record.to_path and path.startswith(record.path + b"/"):
                    path, number, moved = record.to_path + path[len(record.path) :], record.number, True
                    break
            if not moved:
                break
        live = self._live(path)
        return live if live is None or state is None else live._replace(state=state)

    def _live(self, path: bytes) -> Version | None:
        """Return the file at a path now."""
        attr = None if self._volume is None else find(self._volume, os.fsdecode(path))
        if self._volume is None or attr is None:
            return None
        try:
            source = NodeSource(self._volume, attr.node)
        except OSError as error:
            if error.errno in VANISHED:
                return None
            raise
        return Version(source.state, source, node=0 if attr.is_dir else attr.node)


class RecordedTree:
    """A tree of versions of files, a `ReadTree`. Of the directories above a path, its `ways`, nothing is known but that
    they were there."""

    def __init__(self, versions: Mapping[bytes, Version | None]) -> None:
        self._versions = {path: each for path, each in versions.items() if each is not None}
        self._names: dict[bytes, set[bytes]] = defaultdict(set)
        self.ways = {b""}
        for path in versions:
            self.ways.update(way for way in above(path) if way not in self._versions)
        for path in self._versions:
            while path:
                directory, name = split(path)
                self._names[directory].add(name)
                path = directory

    def entry(self, path: bytes) -> os.stat_result | None:
        found = self._versions.get(path)
        if found is not None:
            return stat_of(found.state)
        return stat_of(_DIRECTORY) if path in self._names or path == b"" else None

    def entries(self, path: bytes) -> dict[bytes, os.stat_result]:
        found = {}
        for name in self._names.get(path, ()):
            entry = self.entry(join(path, name))
            if entry is not None:
                found[name] = entry
        return found

    def pieces(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        version = self._versions[path]
        if version.source is None:
            raise OSError(errno.EIO, f"its bytes are lost: {version.why_lost}")
        return version.source.pieces()

    def target(self, path: bytes) -> bytes:
        return self._versions[path].state.target

    def xattrs(self, path: bytes) -> dict[str, bytes]:
        found = self._versions.get(path)
        return {} if found is None else {os.fsdecode(name): value for name, value in found.state.xattrs.items()}


_DIRECTORY: Final = State(stat.S_IFDIR | 0o755, 0, 0, 0, 0, 2, 0, 0, {}, b"")


def stat_of(of: State | Item, ctime_ns: int = 0) -> os.stat_result:
    """Return a state as lstat(2) shows a file, without its access time."""
    head = (of.mode, 0, 0, of.nlink, of.uid, of.gid, of.size, 0, of.mtime_ns // 10**9, 0)
    return os.stat_result(head, {"st_mtime_ns": of.mtime_ns, "st_ctime_ns": ctime_ns, "st_rdev": of.rdev})
