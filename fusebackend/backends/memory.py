"""`InMemoryBackend`: a whole POSIX volume in dicts, and the reference for every other one.

Nothing outlives the process; `fsync` promises nothing beyond that (`Features.durable` is False).

Taking a snapshot copies nothing. A node's inode, names and chunks are each kept (`EarlierValues`) when they are first
changed afterwards; until then a snapshot reads those of the live volume. The bytes of a chunk are shared until one
side is written to. A directory with a million names takes 0.3 s to keep, once for each snapshot that it is changed
after.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Generic, TypeVar, cast

from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.protocol import ROOT_NODE, Attr, Features, OnExists, Snapshot, SnapshotVolume, StatFs
from fusebackend.protocol.scheme import LIMITS, ON_EXISTS, Scheme
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.frozen import FrozenTree
from fusebackend.volumes.posix import DIRECTORY_BYTES, TreeVolume, is_access_noted
from fusebackend.volumes.quota import Limits, Quota
from fusebackend.volumes.storage import Chunk, Inode, allocated_blocks

T = TypeVar("T")

Names = list[tuple[bytes, int]]
"""The names in a directory, in order, with their nodes."""

Bytes = dict[int, bytes]
"""The chunks of a file by their index, each an object that never changes."""


class EarlierValues(Generic[T]):
    """Earlier values of a table: of each node those that snapshots have, and the table has no more.

    A value that is kept after a snapshot serves the earlier ones too, back to the last one with a value of its own.

    Args:
        copy: returns a copy of the value that a node has now.
    """

    def __init__(self, copy: Callable[[int], T]) -> None:
        self._copy = copy
        self._values: dict[int, list[tuple[int, T]]] = {}  # by node: number of a snapshot, value; ascending
        self._newest = self._first_new = 0

    def begin(self, newest: int, first_new: int) -> None:
        """From now on this is the newest snapshot, 0 for none; nodes from `first_new` on are not in it."""
        self._newest, self._first_new = newest, first_new

    def keep(self, node: int) -> None:
        """A node's value is about to change: keep it, unless that was done since the newest snapshot."""
        if node < self._first_new:
            values = self._values.setdefault(node, [])
            if not values or values[-1][0] != self._newest:
                values.append((self._newest, self._copy(node)))

    def values(self) -> Iterator[tuple[int, T]]:
        """Every value that is kept, with the number of the newest snapshot that has it."""
        return itertools.chain.from_iterable(self._values.values())

    def map(self, change: Callable[[int, T], T]) -> None:
        """Give each value another one."""
        for node, values in self._values.items():
            values[:] = [(number, change(node, value)) for number, value in values]

    def at(self, node: int, number: int) -> T | None:
        """Return the value of a node at a snapshot; None if it is still what it was."""
        values = self._values.get(node, ())
        place = bisect.bisect_left(values, number, key=lambda kept: kept[0])
        return values[place][1] if place < len(values) else None

    def drop(self, number: int, before: int, first_new: int) -> None:
        """Drop a snapshot. The one before it, if that is not 0, takes over the values that it has none for."""
        for node, values in list(self._values.items()):
            place = bisect.bisect_left(values, number, key=lambda kept: kept[0])
            if place == len(values) or values[place][0] != number:
                continue
            if node < first_new and (place == 0 or values[place - 1][0] < before):
                values[place] = (before, values[place][1])
            elif len(values) > 1:
                del values[place]
            else:
                del self._values[node]


class InMemoryVolume(TreeVolume, SnapshotVolume):
    """The kernel face of `InMemoryBackend`."""

    features = Features(acls=True, durable=False)

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__()
        self.directory_moves = 0
        self._quota = None if limits is None else Quota(limits)
        self._numbers = itertools.count(ROOT_NODE)
        self._inodes: dict[int, Inode] = {}
        self._names: dict[int, dict[bytes, int]] = {}
        self._sorted: dict[int, list[bytes]] = {}  # names in order, made when a listing asks, dropped when one changes
        self._chunks: dict[int, dict[int, Chunk]] = {}
        self._snapshots: dict[str, InMemorySnapshot] = {}  # in the order of their numbers
        self._taken = 0  # snapshots, ever
        self._newest_ns = 0  # the time of the newest
        self._unsnapped = True  # something has changed since
        self._old_inodes = EarlierValues(lambda node: _copy(self._inodes[node]))
        self._old_names = EarlierValues(lambda node: sorted(self._names.get(node, {}).items()))
        self._old_chunks = EarlierValues(self._shared_chunks)
        root = self._new_inode(stat.S_IFDIR | 0o755, ROOT_NODE)
        root.nlink, root.size, root.blocks = 2, DIRECTORY_BYTES, allocated_blocks(DIRECTORY_BYTES)
        root.uid, root.gid = os.geteuid(), os.getegid()
        root.atime_ns = root.mtime_ns = root.ctime_ns = now_ns()

    def statfs(self) -> StatFs:
        with self.lock:
            used = sum(inode.blocks for inode in self._inodes.values()) // 8
            if self._snapshots:  # they take memory, too
                used += self.snapshot_bytes() // 4096
            page_bytes = os.sysconf("SC_PAGE_SIZE")
            free = os.sysconf("SC_AVPHYS_PAGES") * page_bytes // 4096
            return StatFs(4096, used + free, free, len(self._inodes) + 2**31, 2**31)

    def _inode(self, node: int) -> Inode:
        try:
            return self._inodes[node]
        except KeyError:
            raise oserror(errno.ESTALE) from None

    def _new_inode(self, mode: int, parent: int) -> Inode:
        node = next(self._numbers)
        inode = self._inodes[node] = Inode(node, mode, parent=parent)
        if stat.S_ISDIR(mode):
            self._names[node] = {}
        return inode

    def _prepare(self, inode: Inode, names: bool = False) -> None:
        self._old_inodes.keep(inode.node)

    def _accessed(self, inode: Inode) -> None:
        if is_access_noted(inode):
            self._old_inodes.keep(inode.node)
        super()._accessed(inode)

    def _changed(self, inode: Inode) -> None:
        """Inodes are changed where they are kept."""
        if not self._unsnapped:
            self._unsnapped = inode.ctime_ns >= self._newest_ns

    def _drop(self, inode: Inode) -> None:
        for history in (self._old_inodes, self._old_names, self._old_chunks):
            history.keep(inode.node)
        for table in (self._inodes, self._names, self._sorted, self._chunks):
            table.pop(inode.node, None)

    def _child(self, parent: int, name: bytes) -> int | None:
        names = self._names.get(parent)
        return None if names is None else names.get(name)

    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        self._old_names.keep(parent)
        self._unsnapped = True
        names = self._names[parent]
        in_order = self._sorted.get(parent)
        if node is None:
            del names[name]
            if in_order is not None:
                del in_order[bisect.bisect_left(in_order, name)]
            return
        if in_order is not None and name not in names:
            bisect.insort(in_order, name)
        names[name] = node

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        names = self._names.get(parent)
        if names is None:
            self._directory(parent)
            raise oserror(errno.ESTALE)
        in_order = self._sorted.get(parent)
        if in_order is None:
            in_order = self._sorted[parent] = sorted(names)
        start = bisect.bisect_right(in_order, after)
        return [(name, names[name]) for name in in_order[start : start + limit]]

    def _chunk(self, node: int, index: int) -> Chunk | None:
        chunks = self._chunks.get(node)
        return None if chunks is None else chunks.get(index)

    def _next_chunk(self, node: int, index: int) -> int | None:
        chunks = self._chunks.get(node, {})
        return index if index in chunks else min((other for other in chunks if other > index), default=None)

    def _new_chunk(self, node: int, index: int) -> Chunk:
        chunk = self._chunks.setdefault(node, {})[index] = Chunk()
        return chunk

    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        """Chunks are changed where they are kept."""

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        if self._snapshots:
            self._old_inodes.keep(inode.node)
            self._old_chunks.keep(inode.node)
        super()._put(inode, offset, data)

    def _resize(self, inode: Inode, size: int) -> None:
        self._old_chunks.keep(inode.node)
        super()._resize(inode, size)

    def _drop_chunks(self, node: int, first: int) -> int:
        chunks = self._chunks.get(node, {})
        gone = [index for index in chunks if index >= first]
        return sum(allocated_blocks(len(chunks.pop(index).data)) for index in gone)

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        if inode.xattrs is None:
            inode.xattrs = {}
        return inode.xattrs

    def _xattrs_changed(self, inode: Inode) -> None:
        """Extended attributes are changed where they are kept."""

    # -- snapshots ---------------------------------------------------------------------------------------------

    @property
    def is_changed(self) -> bool:
        return self._unsnapped

    def snapshot_bytes(self) -> int:
        with self.lock:
            kept = {id(data): len(data) for _, chunks in self._old_chunks.values() for data in chunks.values()}
            live = (id(chunk.data) for chunks in self._chunks.values() for chunk in chunks.values())
            return sum(kept.values()) - sum(kept.get(each, 0) for each in live)

    def snapshots(self) -> Sequence[Snapshot]:
        with self.lock:
            return [tree.taken for tree in self._snapshots.values()]

    def take_snapshot(self, name: str) -> Snapshot:
        with self.lock:
            if name in self._snapshots:
                raise oserror(errno.EEXIST, name)
            self._taken += 1
            self._newest_ns = now_ns(exact=True)
            self._unsnapped = False
            taken = Snapshot(name, self._taken, self._newest_ns)
            self._snapshots[name] = InMemorySnapshot(self, taken, next(self._numbers))
            self._keep_for_newest()
            return taken

    def _keep_for_newest(self) -> None:
        """Have the histories keep what the newest snapshot has."""
        newest = next(reversed(self._snapshots.values()), None)
        for history in (self._old_inodes, self._old_names, self._old_chunks):
            history.begin(*((0, 0) if newest is None else newest.mark))

    def delete_snapshot(self, name: str) -> None:
        with self.lock:
            gone = self.snapshot(name)
            gone.deleted = True
            number = gone.taken.number
            before = max((each.mark for each in self._snapshots.values() if each.taken.number < number), default=(0, 0))
            del self._snapshots[name]
            for history in (self._old_inodes, self._old_names, self._old_chunks):
                history.drop(number, *before)
            self._keep_for_newest()

    def forget_versions(self, nodes: Collection[int]) -> list[str]:
        going = set(nodes)
        with self.lock:
            for parent in [parent for parent, names in self._names.items() if not going.isdisjoint(names.values())]:
                self._old_names.keep(parent)
            for node in going & self._inodes.keys():
                self._old_chunks.keep(node)
                self._old_inodes.keep(node)
            self._old_names.map(lambda parent, names: [each for each in names if each[1] not in going])
            self._old_chunks.map(lambda node, chunks: {} if node in going else chunks)
            for _, inode in self._old_inodes.values():
                if inode.node in going:
                    inode.xattrs = {}
        return []

    def snapshot(self, name: str) -> InMemorySnapshot:
        try:
            return self._snapshots[name]
        except KeyError:
            raise oserror(errno.ENOENT, name) from None

    def _shared_chunks(self, node: int) -> Bytes:
        """The chunks of a file. From now on, `Chunk.put` copies their bytes: they are no bytearray any more."""
        chunks = self._chunks.get(node, {})
        for chunk in chunks.values():
            if isinstance(chunk.data, bytearray):
                chunk.data = cast("bytes", memoryview(chunk.data))
        return {index: cast("bytes", chunk.data) for index, chunk in chunks.items()}


def _copy(inode: Inode) -> Inode:
    copy = Inode(inode.node, inode.mode, parent=inode.parent)
    for field in Attr.__slots__:
        setattr(copy, field, getattr(inode, field))
    copy.xattrs = dict(inode.xattrs or {})
    return copy


class InMemorySnapshot(FrozenTree):
    """A snapshot of an `InMemoryVolume`.

    Args:
        live: the volume.
        taken: its name and number.
        first_new: the first node that the volume had not made yet.

    Attributes:
        mark: its number, and `first_new`.
    """

    features = replace(InMemoryVolume.features, read_only=True)

    def __init__(self, live: InMemoryVolume, taken: Snapshot, first_new: int) -> None:
        super().__init__()
        self.lock = live.lock
        self.taken = taken
        self.deleted = False
        self._live = live
        self.mark = taken.number, first_new

    def statfs(self) -> StatFs:
        with self.lock:
            self._inode(ROOT_NODE)
            return self._live.statfs()

    def _check(self, node: int) -> None:
        """Raise ESTALE for a node that the volume had not made then, and for all of a deleted snapshot."""
        if self.deleted or node >= self.mark[1]:
            raise oserror(errno.ESTALE)

    def _inode(self, node: int) -> Inode:
        self._check(node)
        inode = self._live._old_inodes.at(node, self.taken.number) or self._live._inodes.get(node)
        if inode is None:
            raise oserror(errno.ESTALE)
        return inode

    def _old_names(self, parent: int) -> Names | None:
        return self._live._old_names.at(parent, self.taken.number)

    def _child(self, parent: int, name: bytes) -> int | None:
        self._check(parent)
        names = self._old_names(parent)
        if names is None:
            return self._live._child(parent, name)
        place = bisect.bisect_left(names, (name,))
        return names[place][1] if place < len(names) and names[place][0] == name else None

    def _children(self, parent: int, after: bytes, limit: int) -> Names:
        self._directory(parent)
        names = self._old_names(parent)
        if names is None:
            return self._live._children(parent, after, limit)
        start = bisect.bisect_left(names, (after + b"\0",))
        return names[start : start + limit]

    def _chunk(self, node: int, index: int) -> Chunk | None:
        old = self._live._old_chunks.at(node, self.taken.number)
        if old is None:
            return self._live._chunks.get(node, {}).get(index)
        return Chunk(old[index]) if index in old else None

    def _next_chunk(self, node: int, index: int) -> int | None:
        old = self._live._old_chunks.at(node, self.taken.number)
        if old is None:
            return self._live._next_chunk(node, index)
        return min((other for other in old if other >= index), default=None)

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        return inode.xattrs or {}


class InMemoryBackend(VolumeBackend):
    """Files in this process's memory, on both faces.

    Args:
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
        limit_bytes, limit_files: how much it may hold; more is EDQUOT (`volumes/quota.py`). None for no limit.
    """

    schemes: ClassVar = {
        "memory": Scheme(
            "memory:",
            "files in the server's memory, gone when it ends",
            lambda url: InMemoryBackend(**url.parameters),
            takes="nothing",
            parameters={**LIMITS, **ON_EXISTS},
            features=InMemoryVolume.features,
            snapshots=True,
        )
    }

    def __init__(
        self, *, on_exists: OnExists = "error", limit_bytes: int | None = None, limit_files: int | None = None
    ) -> None:
        super().__init__(InMemoryVolume(Limits.of(limit_bytes, limit_files)), on_exists=on_exists)
