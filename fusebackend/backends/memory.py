"""`InMemoryBackend`: a whole POSIX volume in dicts, and the reference for every other one.

Nothing outlives the process; `fsync` promises nothing beyond that (`Features.durable` is False).

Taking a snapshot copies nothing. A node is kept (`EarlierNodes`) when it is first changed afterwards, with its names
and chunks; until then a snapshot reads the live one. The bytes of a chunk are shared until one side is written to. A
directory with a million names takes 40 ms to keep, once for each snapshot that it is changed after.
"""

from __future__ import annotations

import abc
import bisect
import errno
import itertools
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, cast

from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.protocol import ROOT_NODE, Features, OnExists, Snapshot, SnapshotVolume, StatFs
from fusebackend.protocol.scheme import LIMITS, ON_EXISTS, Scheme
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.frozen import FrozenTree
from fusebackend.volumes.posix import DIRECTORY_BYTES, TreeVolume
from fusebackend.volumes.quota import Limits, Quota
from fusebackend.volumes.storage import Chunk, Inode, allocated_blocks

_NO_NAMES: Final[dict[bytes, int]] = {}
"""Of all that is no directory: a million empty dicts take 64 MB."""


class MemoryNode(Inode):
    """An inode with its names and chunks."""

    __slots__ = ("chunks", "in_order", "names")

    def __init__(self, node: int, mode: int, *, parent: int = 0) -> None:
        super().__init__(node, mode, parent=parent)
        self.names: dict[bytes, int] = {} if stat.S_ISDIR(mode) else _NO_NAMES
        self.in_order: list[bytes] | None = None  # the names, from the first listing on
        self.chunks: dict[int, Chunk] = {}

    def copy(self) -> MemoryNode:
        """Return what a snapshot keeps. It shares the bytes of the chunks: they are no bytearray any more, so
        `Chunk.put` copies them."""
        copy = MemoryNode(self.node, self.mode, parent=self.parent)
        copy.take(self)
        copy.xattrs = dict(self.xattrs or {})
        copy.names = dict(self.names) if self.names else _NO_NAMES
        for index, chunk in self.chunks.items():
            if isinstance(chunk.data, bytearray):
                chunk.data = cast("bytes", memoryview(chunk.data))
            copy.chunks[index] = Chunk(chunk.data)
        return copy


class EarlierNodes:
    """Earlier states of a volume's nodes: those that snapshots have, and the volume has no more.

    A state that is kept after a snapshot serves the earlier ones too, back to the last one with a state of its own.

    Args:
        live: the nodes of the volume.
    """

    def __init__(self, live: Mapping[int, MemoryNode]) -> None:
        self._live = live
        self._states: dict[int, list[tuple[int, MemoryNode]]] = {}  # by node: number of a snapshot, state; ascending
        self._newest = self._first_new = 0

    def begin(self, newest: int, first_new: int) -> None:
        """From now on this is the newest snapshot, 0 for none; nodes from `first_new` on are not in it."""
        self._newest, self._first_new = newest, first_new

    def keep(self, node: int) -> None:
        """A node is about to change: keep it, unless that was done since the newest snapshot."""
        if node < self._first_new:
            states = self._states.setdefault(node, [])
            if not states or states[-1][0] != self._newest:
                states.append((self._newest, self._live[node].copy()))

    def __iter__(self) -> Iterator[MemoryNode]:
        """Every state that is kept."""
        return (state for states in self._states.values() for _, state in states)

    def at(self, node: int, number: int) -> MemoryNode | None:
        """Return a node as it is in a snapshot, which may be as it still is."""
        states = self._states.get(node, ())
        place = bisect.bisect_left(states, number, key=lambda kept: kept[0])
        return states[place][1] if place < len(states) else self._live.get(node)

    def drop(self, number: int, before: int, first_new: int) -> None:
        """Drop a snapshot. The one before it, if that is not 0, takes over the states that it has none for."""
        for node, states in list(self._states.items()):
            place = bisect.bisect_left(states, number, key=lambda kept: kept[0])
            if place == len(states) or states[place][0] != number:
                continue
            if node < first_new and (place == 0 or states[place - 1][0] < before):
                states[place] = (before, states[place][1])
            elif len(states) > 1:
                del states[place]
            else:
                del self._states[node]


class InMemoryTree(TreeVolume):
    """Reads nodes in memory: those of the volume, or of one of its snapshots."""

    @abc.abstractmethod
    def _inode(self, node: int) -> MemoryNode: ...

    def _child(self, parent: int, name: bytes) -> int | None:
        return self._inode(parent).names.get(name)

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        self._directory(parent)
        directory = self._inode(parent)
        if directory.in_order is None:
            directory.in_order = sorted(directory.names)
        start = bisect.bisect_right(directory.in_order, after)
        return [(name, directory.names[name]) for name in directory.in_order[start : start + limit]]

    def _chunk(self, node: int, index: int) -> Chunk | None:
        return self._inode(node).chunks.get(index)

    def _next_chunk(self, node: int, index: int) -> int | None:
        chunks = self._inode(node).chunks
        return index if index in chunks else min((other for other in chunks if other > index), default=None)

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        if inode.xattrs is None:
            inode.xattrs = {}
        return inode.xattrs


class InMemoryVolume(InMemoryTree, SnapshotVolume):
    """The kernel face of `InMemoryBackend`."""

    features = Features(acls=True, durable=False)

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__()
        self.directory_moves = 0
        self._quota = None if limits is None else Quota(limits)
        self._numbers = itertools.count(ROOT_NODE)
        self._nodes: dict[int, MemoryNode] = {}
        self._earlier = EarlierNodes(self._nodes)
        self._snapshots: dict[str, InMemorySnapshot] = {}  # in the order of their numbers
        self._taken = 0  # snapshots, ever
        self._newest_ns = 0  # the time of the newest
        self._unsnapped = True  # something has changed since
        root = self._new_inode(stat.S_IFDIR | 0o755, ROOT_NODE)
        root.nlink, root.size, root.blocks = 2, DIRECTORY_BYTES, allocated_blocks(DIRECTORY_BYTES)
        root.uid, root.gid = os.geteuid(), os.getegid()
        root.atime_ns = root.mtime_ns = root.ctime_ns = now_ns()

    def statfs(self) -> StatFs:
        with self.lock:
            used = sum(node.blocks for node in self._nodes.values()) // 8
            if self._snapshots:  # they take memory, too
                used += self.snapshot_bytes() // 4096
            page_bytes = os.sysconf("SC_PAGE_SIZE")
            free = os.sysconf("SC_AVPHYS_PAGES") * page_bytes // 4096
            return StatFs(4096, used + free, free, len(self._nodes) + 2**31, 2**31)

    def _inode(self, node: int) -> MemoryNode:
        try:
            return self._nodes[node]
        except KeyError:
            raise oserror(errno.ESTALE) from None

    def _new_inode(self, mode: int, parent: int) -> Inode:
        node = next(self._numbers)
        inode = self._nodes[node] = MemoryNode(node, mode, parent=parent)
        return inode

    def _prepare(self, inode: Inode, names: bool = False) -> None:
        self._earlier.keep(inode.node)

    def _accessed(self, inode: Inode) -> None:
        if self.access_due(inode):
            self._earlier.keep(inode.node)
        super()._accessed(inode)

    def _changed(self, inode: Inode) -> None:
        """Inodes are changed where they are kept."""
        if not self._unsnapped:
            self._unsnapped = inode.ctime_ns >= self._newest_ns

    def _drop(self, inode: Inode) -> None:
        self._earlier.keep(inode.node)
        del self._nodes[inode.node]

    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        self._unsnapped = True
        directory = self._inode(parent)
        if node is None:
            del directory.names[name]
            if directory.in_order is not None:
                del directory.in_order[bisect.bisect_left(directory.in_order, name)]
            return
        if directory.in_order is not None and name not in directory.names:
            bisect.insort(directory.in_order, name)
        directory.names[name] = node

    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        self._inode(node).chunks[index] = chunk

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        self._earlier.keep(inode.node)
        super()._put(inode, offset, data)

    def _drop_chunks(self, node: int, first: int) -> int:
        chunks = self._inode(node).chunks
        gone = [index for index in chunks if index >= first]
        return sum(allocated_blocks(len(chunks.pop(index).data)) for index in gone)

    def _xattrs_changed(self, inode: Inode) -> None:
        """Extended attributes are changed where they are kept."""

    # -- snapshots ---------------------------------------------------------------------------------------------

    @property
    def is_changed(self) -> bool:
        return self._unsnapped

    def snapshot_bytes(self) -> int:
        with self.lock:
            kept = {id(chunk.data): len(chunk.data) for node in self._earlier for chunk in node.chunks.values()}
            live = (id(chunk.data) for node in self._nodes.values() for chunk in node.chunks.values())
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
            tree = self._snapshots[name] = InMemorySnapshot(self, taken, next(self._numbers))
            self._earlier.begin(*tree.mark)
            return taken

    def delete_snapshot(self, name: str) -> None:
        with self.lock:
            gone = self.snapshot(name)
            gone.deleted = True
            del self._snapshots[name]
            marks = [each.mark for each in self._snapshots.values()]
            self._earlier.drop(gone.taken.number, *max((mark for mark in marks if mark < gone.mark), default=(0, 0)))
            self._earlier.begin(*max(marks, default=(0, 0)))

    def forget_versions(self, nodes: Collection[int]) -> list[str]:
        going = set(nodes)
        with self.lock:
            for node, inode in self._nodes.items():
                if node in going or not going.isdisjoint(inode.names.values()):
                    self._earlier.keep(node)
            for kept in self._earlier:
                if kept.names:
                    kept.names = {name: node for name, node in kept.names.items() if node not in going}
                    kept.in_order = None
                if kept.node in going:
                    kept.chunks, kept.xattrs = {}, {}
        return []

    def snapshot(self, name: str) -> InMemorySnapshot:
        try:
            return self._snapshots[name]
        except KeyError:
            raise oserror(errno.ENOENT, name) from None


class InMemorySnapshot(InMemoryTree, FrozenTree):
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

    def _inode(self, node: int) -> MemoryNode:
        number, first_new = self.mark
        inode = None if self.deleted or node >= first_new else self._live._earlier.at(node, number)
        if inode is None:
            raise oserror(errno.ESTALE)
        return inode


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
