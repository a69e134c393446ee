"""The three trees of a branch's merge: `BranchBase`, the branch itself, and main.

The base of a frozen route is its snapshot. That of a live one is what the branch has noted when it copied something up:
the bytes of a file that it has written, the attributes of one of which it has changed any, and the entries of a
directory. Of anything else it is the route as it is now; a file that main has changed since, and that the branch has
deleted, counts as changed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from fusebackend.base.errors import oserror, unless
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import Attr, Features, Volume
from fusebackend.trees.branch_volume import BranchVolume, Stamp
from fusebackend.trees.lower_tree import FIRST_OWN
from fusebackend.trees.merge.tree import Item, MergeTree, by_node
from fusebackend.volumes.contents import data_pieces
from fusebackend.volumes.frozen import GivesPieces

_GONE = (errno.ESTALE, errno.ENOENT)


class BranchBase(GivesPieces):
    """The state that a branch began with, as far as it is known. Its nodes are those of the branch."""

    features = Features(read_only=True)

    def __init__(self, branch: BranchVolume) -> None:
        self._branch = branch
        self._lower = branch.lower
        self.lock = branch.lock
        self._noted: dict[int, Attr] = {}  # entries of live directories, when those were copied up

    def is_live(self, node: int) -> bool:
        """Return True for a file of a route that is not frozen. Its ctime may be no more than a time of modification
        that a program has set, as in a bucket."""
        with self.lock:
            return node < FIRST_OWN and self._lower.is_live(node)

    def is_unknown(self, node: int) -> bool:
        """Return True for a live file that was changed since the branch has last looked at it, if its bytes were not
        kept."""
        with self.lock:
            if node >= FIRST_OWN or not self._lower.is_live(node) or self._branch.origin_of(node).base:
                return False
            now = unless(_GONE, self._lower.attr_of, node)
            if now is None:
                return True
            noted = self._noted.get(node)
            if noted is None:
                return now.mtime_ns > self._branch.created_ns
            return now.fingerprint[:3] != noted.fingerprint[:3]

    def _as_it_was(self, attr: Attr) -> Attr:
        node = attr.node
        if node in self._noted:
            return self._noted[node]
        origin = self._branch.origin_of(node)
        if not origin.base and not origin.own:
            return attr
        return self._with_kept(attr, attr.mode, origin.stamp if origin.base else attr.fingerprint)

    def _with_kept(self, now: Attr, mode: int, stamp: Stamp) -> Attr:
        """Return the attributes of a live file with this stamp, and with those that were kept.

        Args:
            mode: if none were.
        """
        mtime_ns, ctime_ns, size, version = stamp
        below = self._branch.origin_of(now.node).below
        uid, gid = (now.uid, now.gid) if below is None else (below.uid, below.gid)
        return Attr(now.node, mode if below is None else below.mode, nlink=now.nlink, uid=uid, gid=gid, rdev=now.rdev,
                    size=size, version=version, atime_ns=now.atime_ns, mtime_ns=mtime_ns,
                    ctime_ns=ctime_ns)  # fmt: skip

    # -- the kernel face ---------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        found = dict(self.readdir(parent, b"", 1 << 30)).get(name)
        if found is None:
            raise oserror(errno.ENOENT, name)
        return found

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        with self.lock:
            if not (self._branch.has_own_names(node) and self._lower.is_live(node)):
                # A killed merge, or main, has something else in place of the directory that was noted.
                gone = (*_GONE, errno.ENOTDIR) if node in self._noted else ()
                listed = unless(gone, self._lower.listing, node, after, limit)
                return [(name, self._as_it_was(attr)) for name, attr in listed or ()]
            entries = self._branch.lower_entries(node)
            return [(name, self._entry(entries[name])) for name in sorted(entries) if name > after][:limit]

    def _entry(self, noted: Attr) -> Attr:
        """Return the attributes of an entry that was noted: what a listing does not have is as it is now."""
        node, mode = noted.node, noted.mode
        origin = self._branch.origin_of(node)
        now = unless(_GONE, self._lower.attr_of, node) or Attr(node, mode)
        stamp = origin.stamp if origin.base else noted.fingerprint
        attr = self._noted[node] = self._with_kept(now, mode, stamp)
        return attr

    def getattr(self, node: int) -> Attr:
        with self.lock:
            now = unless(_GONE if node in self._noted else (), self._lower.attr_of, node)
            return self._noted[node] if now is None else self._as_it_was(now)

    def readlink(self, node: int) -> bytes:
        with self.lock:
            return self._lower.target(node)

    def xattrs(self, node: int) -> Mapping[bytes, bytes]:
        with self.lock:
            below = self._branch.origin_of(node).below
            if below is not None:
                return below.xattrs
            return unless(_GONE if node in self._noted else (), self._lower.xattrs, node) or {}

    def pieces(self, node: int) -> Iterator[tuple[int, bytes]]:
        return data_pieces(self, node)

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self.lock, self._reading(node) as (volume, handle):
            return volume.read(handle, offset, size)

    def next_data(self, node: int, offset: int) -> int | None:
        with self.lock, self._reading(node) as (volume, handle):
            return volume.next_data(handle, offset)

    def _reading(self, node: int) -> AbstractContextManager[tuple[Volume, int]]:
        """Look where the bytes are, for each piece: they may be kept while a file is read."""
        kept = self._branch.origin_of(node).base
        return nullcontext((self._branch, kept)) if kept else self._lower.reading(node)


def trees_of(
    branch: BranchVolume, volumes: Mapping[AgentPath, Volume]
) -> tuple[MergeTree, MergeTree, MergeTree, Callable[[Item], bool]]:
    """Return base, branch and main for a merge, and `may_differ` of `Pairs`.

    Args:
        volumes: prefix → volume, of the routes of the mount: those that the branch was made over.
    """

    view = BranchBase(branch)
    frozen_ns = min((route.time_ns for route in branch.routes if route.snapshot is not None), default=0)
    base = MergeTree({ROOT: view}, volumes, branch.key_of, frozen_ns, view.is_unknown, view.is_live)
    theirs = MergeTree(
        {ROOT: branch}, volumes, branch.key_of, has_own_names=branch.has_own_names, has_lost=branch.has_lost
    )
    main = MergeTree(volumes, volumes, by_node)
    return base, theirs, main, _may_differ(branch, base)


def _may_differ(branch: BranchVolume, base: MergeTree) -> Callable[[Item], bool]:
    """Everything that has something of its own, and the directories that lead there: all of them where a way is not
    known, or where a file has other names as well."""
    nodes: set[int] = set()
    everywhere = False
    for origin in branch.origins():
        everywhere = everywhere or origin.path is None or not _has_one_name(branch, origin.node)
        item: Item | None = base.root
        nodes |= {base.root.node, origin.node}
        for name in origin.path.split(b"/") if origin.path else ():
            item = item.child(name) if item is not None else None
            if item is not None:
                nodes.add(item.node)
    return lambda item: item.node >= FIRST_OWN or item.node in nodes or not item.node or (everywhere and item.is_dir)


def _has_one_name(branch: BranchVolume, node: int) -> bool:
    with branch.lock:
        below = unless(_GONE, branch.lower.attr_of, node)
        now = unless(_GONE, branch.getattr, node)
        return below is not None and (below.is_dir or (below.nlink == 1 and now is not None and now.nlink <= 1))
