"""`BranchVolume`: one branch as a volume: a file of changes above a tree that is never touched (copy-on-write).

The rules are those of every native volume (`volumes/posix.py`), and so are the tables (`backends/sqlite/schema.py`).
What the file has no row for is answered by the lower tree (`lower_tree.py`): reading a branch writes nothing, and no
access time moves. A change copies up, in the transaction that has the change:

- attributes: the row of the inode, with its extended attributes, at the first change of one;
- names: the list of a directory's entries, at the first change of a name in it. Its files stay below;
- bytes: chunk by chunk. `BranchOrigin.limit` is where the lower bytes end: behind it nothing shines through.

So no whiteout is needed, a rename of a directory is two names, and a file with several links is copied up once.
Nodes of the lower tree have numbers below `FIRST_OWN`, new files those from there on.

A live file, of a route that keeps no snapshots, can change below. Its bytes are copied as a whole at the first change
of a byte, into a node of the file that has no name (`BranchOrigin.base`): a merge needs them. Until then size, mtime
and bytes are those of below. Mode, owner and extended attributes are kept when the first of them is changed (`Below`).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sqlite3
import stat
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.flusher import Worker
from fusebackend.backends.sqlite.old_rows import NewestRows
from fusebackend.backends.sqlite.schema import connect_again, new_file
from fusebackend.backends.sqlite.stored_tree import CACHE_INODES, DirtyBuffer, sqlite_errors
from fusebackend.base import budget, waiting
from fusebackend.base.durable import put_in_place, replace_file
from fusebackend.base.errors import oserror, unless
from fusebackend.base.paths import AgentPath, to_name, to_text
from fusebackend.base.relative_paths import is_below
from fusebackend.base.stamps import now_ns
from fusebackend.base.waiting import will_wait
from fusebackend.databases.sqlite import open_file, transaction
from fusebackend.protocol import (
    RENAME_EXCHANGE,
    ROOT_NODE,
    Attr,
    AttrChanges,
    Features,
    Snapshot,
    Volume,
    version_of_attr,
)
from fusebackend.protocol.versions import COARSE_NS
from fusebackend.trees.lower_tree import BASE, FIRST_OWN, LowerTree
from fusebackend.volumes.contents import ATTEMPTS, PIECE_BYTES
from fusebackend.volumes.placing import without_zeros
from fusebackend.volumes.storage import CHUNK_BYTES, CHUNK_SHIFT, Chunk, Inode, allocated_blocks
from fusebackend.volumes.walk import paged

IDENTITY: Final = 0x66626B62
"""The application id of a branch's file, which is no volume by itself: its names lead to files of the lower tree."""

UNFINISHED: Final = "@unfinished"
"""The name of a branch's file while it is made, in the directory of that, and the begin of others. No branch has it."""

BELOW: Final = "below:"
"""What the snapshot below a branch is called there begins so, before the prefix of its route."""

COPY_BYTES: Final = 256 << 10
COPY_NAMES: Final = 256
"""The mount's loop copies up no larger live file, and no live directory with so many names: that takes some ms."""

COUNTED_CHUNKS: Final = 256
"""So many chunks of a snapshot's file with holes are looked for when it is cut off: some ms on the mount's loop."""

_TABLES: Final = (
    """CREATE TABLE origin (
        node INTEGER PRIMARY KEY, path BLOB, own INTEGER NOT NULL, names INTEGER NOT NULL, "limit" INTEGER,
        base INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, size INTEGER NOT NULL,
        version INTEGER NOT NULL, below BLOB, identity BLOB)""",
    """CREATE TABLE lower_dentry (
        parent INTEGER NOT NULL, name BLOB NOT NULL, node INTEGER NOT NULL, mode INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, size INTEGER NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (parent, name)) WITHOUT ROWID""",
    "CREATE TABLE decisions (digest BLOB PRIMARY KEY, call INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE branch_route (
        prefix BLOB PRIMARY KEY, snapshot BLOB, number INTEGER NOT NULL, time_ns INTEGER NOT NULL) WITHOUT ROWID""",
)
"""`origin`: a `BranchOrigin` each; `lower_dentry`: a live directory's entries when they were copied up; `decisions`:
see `BranchVolume.note_decided`; `branch_route`: a `BranchRoute` each."""

_ORIGIN_COLUMNS: Final = 12

Stamp = tuple[int, int, int, int]
"""`Attr.fingerprint`: mtime_ns, ctime_ns, size and version."""

ANOTHER_SESSION: Final = -1
"""In place of the version in the stamp of an earlier session, which says nothing in this one."""


class BranchRoute(NamedTuple):
    """A route below a branch."""

    prefix: AgentPath
    snapshot: Snapshot | None
    """None for a live route."""
    time_ns: int
    """Of the snapshot; of a live route, when the branch was made. Since the epoch."""


class Below(msgspec.Struct, frozen=True, array_like=True):
    """The attributes that a live file had when they were copied up: a merge can tell by them which side has changed
    one."""

    mode: int
    uid: int
    gid: int
    xattrs: dict[bytes, bytes]


@dataclass(slots=True)
class BranchOrigin:
    """The parts of a lower file that a branch has of its own."""

    node: int
    path: bytes | None
    """In the lower tree, without a slash at its beginning; None if it is not known."""
    own: bool = False
    """Its attributes are the branch's."""
    names: bool = False
    """Of a directory: its entries are the branch's."""
    limit: int | None = None
    """Of a regular file: bytes from here on are the branch's, and so are chunks before it that the branch has. None: no
    byte was changed."""
    base: int = 0
    """The node that has the bytes of a live file as they were when the first one was changed; 0 for none."""
    stamp: Stamp = (0, 0, 0, 0)
    """Of the lower file, when it was copied up; of a live file with bytes of below, as it was seen last."""
    below: Below | None = None
    """The attributes that a live file had when the branch got its own."""
    identity: bytes | None = None
    """Of a live file: what `LowerTree.lasting` says."""


_AS_BELOW: Final = BranchOrigin(0, None)
"""Of a file of which the branch has nothing of its own. Never changed."""


class _LookedAt(set[int]):
    """Live files that were looked at in the call that is being made, and need not be once more: so in a `with` block,
    elsewhere it stays empty."""

    is_kept = False

    def add(self, node: int) -> None:
        if self.is_kept:
            super().add(node)

    def __enter__(self) -> None:
        self.is_kept = True

    def __exit__(self, *error: object) -> None:
        self.is_kept = False
        self.clear()


@dataclass(eq=False)
class _BranchBuffer(DirtyBuffer):
    """The dirty buffer of a branch."""

    origins: dict[int, BranchOrigin | None] = field(default_factory=dict)
    """Those that have changed; None for one that is gone."""
    listed: list[tuple[int, bytes, Attr]] = field(default_factory=list)
    """Entries of live directories that were copied up: directory, name, attributes."""
    followed: int | None = None
    """The merge whose renames are in `origins`."""
    decided: dict[bytes, int] = field(default_factory=dict)

    def write(self, db: sqlite3.Connection, new_row: Callable[[], int], newest: NewestRows) -> None:
        super().write(db, new_row, newest)
        if self.followed is not None:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('followed', ?)", (self.followed,))
        gone = [(node,) for node, origin in self.origins.items() if origin is None]
        db.executemany("DELETE FROM origin WHERE node = ?", gone)
        rows = [
            (each.node, each.path, each.own, each.names, each.limit, each.base, *each.stamp,
             None if each.below is None else msgspec.msgpack.encode(each.below), each.identity)
            for each in self.origins.values()
            if each is not None
        ]  # fmt: skip
        db.executemany("INSERT OR REPLACE INTO origin VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        db.executemany(
            "INSERT OR REPLACE INTO lower_dentry VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(parent, name, attr.node, attr.mode, *attr.fingerprint) for parent, name, attr in self.listed],
        )
        db.executemany("INSERT OR REPLACE INTO decisions VALUES (?, ?)", self.decided.items())


class BranchVolume(SqliteVolume):
    """See the module's docstring.

    Args:
        path: the file; made when it is missing (its directory must exist).
        lower: the tree below. It belongs to this volume from now on.
        routes: of a new branch, kept in its file for `read_routes`.
        is_merging: a merge of it was killed. What that has moved in the mount is its own to find.

    Raises:
        VolumeFileError: the file is in use, is no branch, or can't be opened.
        OSError: the lower tree does not answer.
    """

    identity = IDENTITY
    has_sync_log = False
    _buffer = _BranchBuffer
    keeps_patches = False
    takes_snapshots = False
    _dirty: _BranchBuffer

    def __init__(
        self,
        path: str | os.PathLike[str],
        lower: LowerTree,
        routes: Sequence[BranchRoute] = (),
        *,
        is_merging: bool = False,
    ) -> None:
        self.lower = lower
        self.routes = tuple(routes)
        self.created_ns = now_ns()
        """When the branch was made, since the epoch."""
        self._origins: dict[int, BranchOrigin] = {}
        self.decided: dict[bytes, int] = {}
        """See `note_decided`."""
        self._fresh = _LookedAt()
        self._gone: set[int] = set()  # nodes of the lower tree that were deleted in this session
        self._handles: dict[int, tuple[Volume, int]] = {}  # files of the lower tree that are open, see `open`
        is_live = any(route not in lower.frozen for route in lower.views)
        waits = any(view.features.blocking for view in lower.views.values())
        # Of a live route, long copies are made in threads, and everything else on the mount's loop.
        self.all_at_once = is_live and not waits
        if self.all_at_once:
            self.lock = waiting.Lock()
        self.features = Features(acls=True, change_feed=not is_live, blocking=is_live or waits)
        if not os.path.exists(path):
            _make(os.path.realpath(path), lower, self.routes, self.created_ns)
        super().__init__(path)
        self.directory_moves = None  # the lower tree's directories move by themselves
        try:
            with self.lock:
                self._load()
                if not is_merging:
                    self._find_moved()
                lower.is_held = lambda number: number in self._held  # which `_shrink_all` replaces
        except BaseException:
            self.close()
            raise

    def _workers(self) -> Sequence[Worker]:
        return ()  # no snapshots, and no index: most files are below

    def _load(self) -> None:
        with sqlite_errors():
            with transaction(self._db):
                # Files that were open without a name when the last server ended.
                self._db.execute("DELETE FROM origin WHERE own AND node NOT IN (SELECT node FROM inode)")
                self._db.execute("INSERT OR IGNORE INTO meta VALUES ('created_ns', ?)", (self.created_ns,))
            self.created_ns = self._scalar("SELECT value FROM meta WHERE key = 'created_ns'")
            self.decided |= dict(self._db.execute("SELECT digest, call FROM decisions"))
            found = self._db.execute("SELECT * FROM origin")
            rows, columns = found.fetchall(), len(found.description)
        if columns != _ORIGIN_COLUMNS:
            raise OSError(errno.EINVAL, "it has tables of another version; open it with the fusebackend that made it")
        for node, path, own, names, limit, base, mtime_ns, ctime_ns, size, _, below, identity in rows:
            stamp = (mtime_ns, ctime_ns, size, ANOTHER_SESSION)
            first = None if below is None else msgspec.msgpack.decode(below, type=Below)
            self._origins[node] = BranchOrigin(node, path, bool(own), bool(names), limit, base, stamp, first, identity)
            self.lower.keep(node, path)
        self.lower.reserve(self._scalar("SELECT coalesce(max(node), 0) FROM lower_dentry"))

    def _find_moved(self) -> None:
        """Find live files of the branch's own that were moved in the mount, and what is in such directories. Any other
        file is as it is in the mount: it has gone from where it was."""
        known: dict[bytes | None, bytes] = {}  # directories that were moved: path before → now
        identities = {node: origin.identity for node, origin in self._origins.items() if origin.identity is not None}
        moved = [(self._origins[node], path) for node, path in self.lower.moved(identities).items()]
        for origin, path in sorted(moved, key=lambda each: each[0].path or b""):
            above, _, name = (origin.path or b"").rpartition(b"/")
            if path is not None and (origin.own or path == known.get(above, b"") + b"/" + name):
                known[origin.path] = path
                origin.path = self.lower.keep(origin.node, path)
            else:
                origin.identity = None
            self._origin_changed(origin)

    def close(self) -> None:
        with contextlib.closing(self.lower):
            super().close()

    def copy_to(self, path: str) -> None:
        """Make a file of the branch as it is now, for another branch over the same lower tree. One at a time in a
        directory. The file is durable when this returns; after a crash it is whole, or not there.

        Changes may go on meanwhile, and are not in the copy: a read transaction (https://sqlite.org/isolation.html).

        Raises:
            OSError: of either file.
        """
        new = _unfinished(path)
        with sqlite_errors(), contextlib.ExitStack() as opened:
            with self.lock:
                self.write_back()
                source = opened.enter_context(contextlib.closing(connect_again(self.path)))
                source.execute("BEGIN")
                source.execute("SELECT count(*) FROM meta").fetchone()  # the transaction begins here
            target = opened.enter_context(contextlib.closing(open_file(new, "mode=rwc")))
            source.backup(target)
            target.execute("DELETE FROM meta WHERE key = 'created_ns'")
        put_in_place(new, path)

    # -- for a merge, and for what is shown of a branch --------------------------------------------------------

    def origins(self) -> list[BranchOrigin]:
        """Return the lower files of which the branch has something of its own. Files that it has deleted are not among
        them, unless it has their bytes."""
        with self.lock:
            return [origin for origin in self._origins.values() if origin.own]

    def kept_below(self, node: int) -> str | None:
        with self.lock:
            if not BASE <= node < FIRST_OWN or self.has_own_bytes(node):  # other numbers may be those of a session
                return None
            under = self.lower.under_of(node)
            if under is None or under[0] not in self.lower.frozen:
                return None
            return BELOW + self.lower.places.prefixes[under[0]]

    def nodes_of(self, prefix: AgentPath, nodes: Collection[int]) -> set[int]:
        """Return the nodes of files of which `kept_below` gives the bytes, of those with these nodes in a route."""
        routes = [index for index in self.lower.frozen if self.lower.places.prefixes[index] == prefix]
        return {self.lower.number(index, node) for index in routes for node in nodes}

    def node_in(self, name: str, node: int) -> int:
        under = self.lower.under_of(node)
        if under is None or node < BASE:
            raise oserror(errno.ESTALE)
        return under[1]

    def snapshot(self, name: str) -> Volume:
        """Return the snapshot below, of a route that is frozen, by a name of `kept_below`."""
        for index in self.lower.frozen:
            if name == BELOW + self.lower.places.prefixes[index]:
                return self.lower.views[index]
        raise oserror(errno.ENOENT, name)

    def keep_bytes(self, node: int) -> None:
        """Copy the bytes of a live file up, if they are those of below, as a change of one would: a merge may replace
        the file that they are read from. The copy is durable with the next `sync`."""
        with self.lock:
            inode = self._inode(node)
            if stat.S_ISREG(inode.mode) and not self.has_own_bytes(node) and self.lower.is_live(node):
                self._own_bytes(inode)

    def keeps_bytes_of(self, path: str) -> bool:
        """Return True if it has bytes or extended attributes of live files at or below a path of the lower tree, as
        they were."""
        with self.lock:
            return bool(self._kept_of(path))

    def forget_bytes_of(self, path: str) -> None:
        """Delete them, also of a file that is deleted here and that somebody still has open. A merge then takes the
        file as changed in the mount."""
        with self.lock:
            for origin in self._kept_of(path):
                if origin.base:
                    super()._drop(self._inode(origin.base))
                    origin.base = 0
                if origin.below is not None:
                    origin.below = msgspec.structs.replace(origin.below, xattrs={})
                self._origin_changed(origin)

    def _kept_of(self, path: str) -> list[BranchOrigin]:
        at = to_name(path).strip(b"/")
        return [
            each for each in self._origins.values()
            if each.path is not None and (each.path == at or is_below(each.path, at))
            and (each.base or (each.below is not None and each.below.xattrs))
        ]  # fmt: skip

    def has_own_names(self, node: int) -> bool:
        """Return True for a directory whose entries are not those of below."""
        return node >= FIRST_OWN or self.origin_of(node).names

    def has_lost(self, node: int, name: bytes) -> bool:
        """Return True for a name that a directory has among its own entries, and that nothing is found by: the mount
        has moved or deleted the live file, the branch has not."""
        with self.lock:
            listed = self.has_own_names(node) and super()._child(node, name) is not None
            return listed and self._child(node, name) is None

    def has_own_bytes(self, node: int) -> bool:
        """Return True for a regular file with bytes that were changed."""
        return node >= FIRST_OWN or self.origin_of(node).limit is not None

    def lower_entries(self, node: int) -> dict[bytes, Attr]:
        """Return the entries that a directory of the lower tree had: a live one when they were copied up, with no more
        than node, mode and fingerprint; another one as it is."""
        with self.lock:
            if self.origin_of(node).names and self.lower.is_live(node):
                self.write_back()
                with sqlite_errors():
                    rows = self._db.execute("SELECT * FROM lower_dentry WHERE parent = ?", (node,)).fetchall()
                for row in rows:
                    self.lower.find_again(row[2], node, row[1])
                return {
                    name: Attr(entry, mode, size=size, version=version, mtime_ns=mtime_ns, ctime_ns=ctime_ns)
                    for _, name, entry, mode, mtime_ns, ctime_ns, size, version in rows
                }
            return dict(paged(self.lower.listing, node))

    def follow(self, number: int, moves: Sequence[tuple[bytes, bytes]]) -> None:
        """Note that a merge has renamed files and directories of live routes, which the branch finds by their paths. It
        is durable when this returns.

        Args:
            number: of the merge; nothing is done if that of the last one is given again.
            moves: in their order, paths in the mount before and after, without a slash at the beginning.
        """
        with self.lock:
            with sqlite_errors():
                last = self._db.execute("SELECT value FROM meta WHERE key = 'followed'").fetchone()
            if last is not None and last[0] == number:
                return
            self.lower.follow(number, moves)
            for origin in self._origins.values():
                path, node = origin.path, origin.node
                if path is None or not self.lower.is_numbered(node) or not self.lower.is_live(node):
                    continue
                for old, new in moves:
                    if path == old or path.startswith(old + b"/"):
                        path = new + path[len(old) :]
                if path != origin.path and not self.lower.has_still(origin.path or b""):
                    origin.path = path
                    self._origin_changed(origin)
                    self.lower.keep(node, path)
            self._dirty.followed = number
            self._note(1, 0)
        self.sync()

    def note_decided(self, digests: Collection[bytes], call: int = 0) -> None:
        """Keep what a merge has decided for main (`MergePlan.for_main`), for the next one. It is durable when this
        returns. A digest holds until one of the sides changes, so none is ever deleted.

        Args:
            call: of the merge; 0 if it is none.
        """
        if not digests:
            return
        with self.lock:
            new = dict.fromkeys(digests, call)
            self.decided |= new
            self._dirty.decided |= new
            self._note(len(new), 0)
        self.sync()

    def key_of(self, prefix: AgentPath, node: int) -> tuple[Hashable, int] | None:
        """As `MergeTree.key_of`, for a tree with the branch at its root: the prefix and the node in the mount that a
        file is of; ("new", node) for a file that only the branch has; None for a live file that is gone."""
        if node >= FIRST_OWN:
            return "new", node
        with self.lock:
            return self.lower.main_file(node)

    def changed_names(self) -> int:
        """Return how many names are new, gone, or lead to a file with something of its own."""
        with self.lock:
            origins = self.origins()
            changed, moved = 0, set[int | None]()
            for origin in origins:
                if origin.names:
                    ours = dict(paged(self._children, origin.node))
                    theirs = {name: entry.node for name, entry in self.lower_entries(origin.node).items()}
                    others = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
                    changed += len(others)
                    moved |= {ours.get(name) for name in others}
            at_place = [each for each in origins if not each.names and each.node not in moved]
            changed += sum(each.node != ROOT_NODE for each in at_place)
            self.write_back()
            with sqlite_errors():
                new = self._db.execute("SELECT count(*) FROM dentry WHERE parent >= ?", (FIRST_OWN,))
                return changed + int(new.fetchone()[0])

    # -- copying up --------------------------------------------------------------------------------------------

    def is_own(self, node: int) -> bool:
        """Return True if the branch has an inode of this node: of a new file, or of one with attributes of its own."""
        return node >= FIRST_OWN or self.origin_of(node).own

    def origin_of(self, node: int) -> BranchOrigin:
        """Return what the branch has of a node of the lower tree. Not to be changed; `_known` is."""
        return self._origins.get(node, _AS_BELOW)

    def _origin_changed(self, origin: BranchOrigin) -> None:
        if origin.node not in self._dirty.origins:
            self._note(1, 0)
        self._dirty.origins[origin.node] = origin

    def _known(self, node: int) -> BranchOrigin:
        """Return the origin of a node of the lower tree, whose number the file keeps from now on."""
        origin = self._origins.get(node)
        if origin is None:
            path, identity = self.lower.keep(node), self.lower.lasting(node)
            origin = self._origins[node] = BranchOrigin(node, path, identity=identity)
            self._origin_changed(origin)
        return origin

    def _prepare(self, inode: Inode, names: bool = False) -> None:
        if names and not self.has_own_names(inode.node):
            self._copy_names(inode)
        elif inode.node < FIRST_OWN:
            self._copy_attributes(inode)

    def _copy_attributes(self, inode: Inode) -> BranchOrigin:
        """Copy the inode up, if that was not done yet."""
        node, way = inode.node, []
        above = self._place_below(node)
        while above is not None and not self.has_own_names(above):
            way.append(above)
            above = self._place_below(above)
        for each in reversed(way):
            self._copy_names(self._inode(each))  # the name is the branch's from now on, whatever becomes of it below
        origin = self._known(node)
        if origin.own:
            return origin
        below = self.lower.attr_of(node)
        inode.xattrs = self.lower.xattrs(node)
        target = self.lower.target(node) if stat.S_ISLNK(inode.mode) else b""
        if self.lower.is_live(node) and not origin.base:  # else those of its bytes
            origin.below = Below(inode.mode, inode.uid, inode.gid, dict(inode.xattrs))
        origin.own, origin.stamp = True, below.fingerprint
        self._origin_changed(origin)
        self._unstored.add(node)
        self._inodes[node] = inode
        super()._changed(inode)
        if inode.xattrs:
            super()._xattrs_changed(inode)
        if target:
            chunk = Chunk()
            chunk.put(0, target)
            super()._chunk_changed(node, 0, chunk)
        return origin

    def _copy_names(self, inode: Inode) -> None:
        """Copy the entries of a directory up."""
        directory = inode.node
        is_live = self.lower.is_live(directory)
        if is_live and self.all_at_once and len(self.lower.listing(directory, b"", COPY_NAMES)) == COPY_NAMES:
            will_wait()  # the attempt may have copied up another directory of the call, which changes nothing
        origin = self._copy_attributes(inode)
        listed = paged(self.lower.listing, directory)
        entries = [(name, attr) for name, attr in listed if not self._is_elsewhere(directory, attr)]
        for _, attr in entries:
            if self.lower.is_numbered(attr.node):
                self._known(attr.node)
        if is_live:
            self._dirty.listed += ((directory, name, attr) for name, attr in entries)
        origin.names = True
        self._origin_changed(origin)
        inode.nlink = 2 + sum(attr.is_dir for _, attr in entries)
        self._dirty.names.setdefault(directory, {}).update((name, attr.node) for name, attr in entries)
        self._note(len(entries), 0)
        super()._changed(inode)

    def _place_below(self, node: int) -> int | None:
        """Return the directory whose names are copied up with a live file."""
        if self.is_own(node) or not self.lower.is_numbered(node):
            return None
        return self.lower.found_in(node)

    def _own_bytes(self, inode: Inode) -> None:
        """A byte of a file is about to be changed, or its size."""
        if inode.node >= FIRST_OWN:
            return
        copies = self.origin_of(inode.node).limit is None and self.lower.is_live(inode.node)
        if copies:
            if inode.size > COPY_BYTES:
                will_wait()
            if budget.current().spent:
                raise OSError(errno.ECANCELED, "Cancelled; nothing was changed")
        origin = self._copy_attributes(inode)
        if origin.limit is None:
            if copies:
                self._copy_base(inode, origin)
            origin.limit = inode.size
            self._origin_changed(origin)

    def _copy_base(self, inode: Inode, origin: BranchOrigin) -> None:
        """Copy the bytes of a live file, as they are at one moment."""
        base = self._new_inode(stat.S_IFREG | 0o600, 0)
        base.nlink = 0  # freed when the next server begins, if this one ends on the way
        super()._changed(base)
        try:
            after = self._fill_base(inode.node, base)
        except BaseException:
            super()._drop(base)
            raise
        base.nlink = 1
        super()._changed(base)
        origin.base, origin.stamp = base.node, after.fingerprint
        inode.size, inode.blocks = base.size, base.blocks
        self._close_below(inode.node)

    def _fill_base(self, node: int, base: Inode) -> Attr:
        """Copy the bytes of a live file into a new one; returns its attributes at that moment."""
        with self.lower.reading(node) as (volume, handle):
            for attempt in range(ATTEMPTS):
                before = self.lower.attr_of(node)
                for offset, piece in without_zeros(_pieces(volume, handle)):
                    self._admit(len(piece))
                    super()._put(base, offset, piece)
                    base.size = offset + len(piece)
                after = self.lower.attr_of(node)
                if after.fingerprint == before.fingerprint or attempt == ATTEMPTS - 1:
                    break
                super()._resize(base, 0)
        super()._resize(base, after.size)
        return after

    def _close_below(self, node: int) -> None:
        handle = self._handles.pop(node, None)
        if handle is not None:
            handle[0].release(handle[1], os.O_RDONLY)

    # -- storage: inodes ---------------------------------------------------------------------------------------

    def _inode(self, node: int) -> Inode:
        if self.is_own(node):
            inode = super()._inode(node)
            if node < FIRST_OWN and stat.S_ISREG(inode.mode):
                self._follow(inode, self._origins[node])
            return inode
        if node in self._gone:
            raise oserror(errno.ESTALE)
        known = self._inodes.get(node)
        if known is not None and (node in self._fresh or not self.lower.is_live(node)):
            self._inodes.move_to_end(node)
            return known
        try:
            attr = self.lower.attr_of(node)
        except OSError:
            if known is not None and known.opens:  # its name below is gone
                return known
            raise
        return self._taken(attr, self.lower.parent(node) if attr.is_dir else 0)

    def _taken(self, attr: Attr, parent: int) -> Inode:
        """Keep the attributes of a file of the lower tree, as they are now."""
        node = attr.node
        self._fresh.add(node)
        inode = self._inodes.get(node)
        if inode is None or stat.S_IFMT(inode.mode) != stat.S_IFMT(attr.mode):
            inode = self._inodes[node] = Inode(node, attr.mode)
            if len(self._inodes) > CACHE_INODES:
                self._shrink_inodes()
        _copy_attributes(attr, inode)
        inode.parent = parent if attr.is_dir else 0
        return inode

    def _follow(self, inode: Inode, origin: BranchOrigin) -> None:
        """Of a live file with attributes of its own and bytes of below, take size and mtime from there."""
        node = inode.node
        if origin.limit is not None or node in self._fresh or not self.lower.is_live(node):
            return
        attr = unless((errno.ESTALE,), self.lower.attr_of, node)
        if attr is None:
            return
        self._fresh.add(node)
        before, origin.stamp = origin.stamp, attr.fingerprint
        if origin.stamp[:3] != before[:3] or before[3] not in (ANOTHER_SESSION, attr.version):
            self._origin_changed(origin)
            inode.size, inode.blocks, inode.mtime_ns = attr.size, attr.blocks, attr.mtime_ns
            self._renewed(inode)

    def access_due(self, attr: Attr) -> bool:
        return self.is_own(attr.node) and super().access_due(attr)

    def _let_go(self, node: int) -> None:
        super()._let_go(node)
        if node < FIRST_OWN and node not in self._inodes:
            self.lower.forget(node)

    def _drop(self, inode: Inode) -> None:
        node = inode.node
        super()._drop(inode)
        if node < FIRST_OWN:
            self._gone.add(node)
            origin = self._origins[node]
            origin.own = origin.names = False
            origin.limit = None
            if origin.base:
                self._origin_changed(origin)
            else:
                del self._origins[node]
                self._dirty.origins[node] = None

    # -- storage: names ----------------------------------------------------------------------------------------

    def _child(self, parent: int, name: bytes) -> int | None:
        if self.has_own_names(parent):
            node = super()._child(parent, name)
            return node if node is None or self._is_there(parent, name, node) else None
        attr = unless((errno.ENOENT, errno.ENOTDIR), self.lower.find, parent, name)
        if attr is None or self._is_elsewhere(parent, attr):
            return None
        self._found_below(parent, attr)
        return attr.node

    def _is_elsewhere(self, parent: int, attr: Attr) -> bool:
        """Return True for a directory that the mount has moved here, and that the branch has at a place of its own."""
        return attr.is_dir and self.is_own(attr.node) and self._inode(attr.node).parent != parent

    def _found_below(self, parent: int, attr: Attr) -> None:
        """Keep the attributes of a file, about which the caller asks next."""
        node = attr.node
        if self.is_own(node) or node in self._gone:
            return
        if self._fresh.is_kept if self.lower.is_live(node) else node not in self._inodes:
            self._taken(attr, parent)

    def _is_there(self, parent: int, name: bytes, node: int) -> bool:
        """Return False for a live file, in a directory's own entries, that its route has lost since."""
        if node in self._fresh or self.is_own(node) or not self.lower.is_live(node):
            return True
        attr = self.lower.still(node, parent, name)
        if attr is None:
            return self.lower.confirm(node)
        self._found_below(parent, attr)
        return True

    def _sound_entry(self, parent: int, name: bytes, node: int) -> int:
        return super()._sound_entry(parent, name, node) if self._note_entry(parent, name, node) else node

    def _note_entry(self, parent: int, name: bytes, node: int) -> bool:
        """Return what `_is_there` does. A file with nothing of its own, to which a name of a directory's own entries
        leads, is where it was."""
        is_there = self._is_there(parent, name, node)
        if is_there and not self.is_own(node) and self.lower.found_in(node) is None:
            self.lower.note(node, parent, name, self.lower.attr_of(node).is_dir)
        return is_there

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        if not self.has_own_names(parent):
            self._directory(parent)
            while listed := self.lower.listing(parent, after, limit):
                for _, attr in listed:
                    self._found_below(parent, attr)
                found = [(name, attr.node) for name, attr in listed if not self._is_elsewhere(parent, attr)]
                if found:
                    return found
                after = listed[-1][0]
            return []
        while page := super()._children(parent, after, limit):
            found = [(name, node) for name, node in page if self._note_entry(parent, name, node)]
            if found:
                return found
            after = page[-1][0]
        return []

    def _require_no_place(self, parent: int, name: bytes) -> None:
        if self.lower.has_place(parent, name):
            raise oserror(errno.EBUSY, name)

    def version_of(self, attr: Attr) -> str | None:
        return super().version_of(attr) if self.is_own(attr.node) else version_of_attr(attr, coarse_by_ns=COARSE_NS)

    def lookup(self, parent: int, name: bytes) -> Attr:
        with self.lock, self._fresh:
            return super().lookup(parent, name)

    def find(self, parent: int, name: bytes) -> Inode | None:
        with self.lock, self._fresh:
            return super().find(parent, name)

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        with self.lock, self._fresh:
            return super().readdir(node, after, limit)

    def _named(self, parent: int, name: bytes) -> tuple[Inode, Inode]:
        self._require_no_place(parent, name)
        return super()._named(parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        with self.lock:
            if flags in (0, RENAME_EXCHANGE):
                self._require_no_place(new_parent, new_name)
            super().rename(parent, name, new_parent, new_name, flags)

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        with self.lock:
            inode = self._inode(node)
            if changes.size is not None and stat.S_ISREG(inode.mode):
                self._own_bytes(inode)
            return super().setattr(node, changes)

    # -- storage: bytes ----------------------------------------------------------------------------------------

    def open(self, node: int, flags: int) -> Attr | None:
        with self.lock, self._fresh:
            inode = self._inode(node)
            if self._needs_below(inode) and node not in self._handles:
                self._handles[node] = self.lower.open(node)
            return super().open(node, flags)

    def release(self, node: int, flags: int) -> None:
        with self.lock, self._fresh:
            self._fresh.add(node)  # whatever it is now
            is_last = self._inode(node).opens == 1
            super().release(node, flags)
            if is_last:
                self._close_below(node)

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self.lock:
            handle = None if self.is_own(node) else self._handles.get(node)
            return super().read(node, offset, size) if handle is None else handle[0].read(handle[1], offset, size)

    def _needs_below(self, inode: Inode) -> bool:
        """Return True for a regular file of which bytes may be read from the lower tree."""
        if inode.node >= FIRST_OWN or not stat.S_ISREG(inode.mode):
            return False
        origin = self.origin_of(inode.node)
        return origin.limit is None or (origin.limit > 0 and not origin.base)

    def _reading_below(self, node: int) -> AbstractContextManager[tuple[Volume, int]]:
        """Give the volume and the node to read a file of the lower tree by, which may be open already."""
        handle = self._handles.get(node)
        return self.lower.reading(node) if handle is None else nullcontext(handle)

    def _read_below(self, node: int, offset: int, size: int) -> bytes:
        with self._reading_below(node) as (volume, handle):
            return volume.read(handle, offset, size)

    def peek(self, node: int, size: int) -> bytes:
        with self.lock:
            is_own = self.has_own_bytes(node)
        # An open finds what the lower side has now, which may be more.
        return super().peek(node, size) if is_own else Volume.peek(self, node, size)

    def _get(self, inode: Inode, offset: int, size: int) -> bytes:
        if inode.node >= FIRST_OWN:
            return super()._get(inode, offset, size)
        if stat.S_ISREG(inode.mode) and not self.has_own_bytes(inode.node):
            length = min(size, inode.size - offset)
            return self._read_below(inode.node, offset, length) if length > 0 else b""
        if stat.S_ISLNK(inode.mode) and not self.is_own(inode.node):
            return self.lower.target(inode.node)
        return super()._get(inode, offset, size)

    def _chunk(self, node: int, index: int) -> Chunk | None:
        chunk = super()._chunk(node, index)
        origin = self.origin_of(node)
        if chunk is not None or origin.limit is None:
            return chunk
        start = index << CHUNK_SHIFT
        length = min(CHUNK_BYTES, origin.limit - start)
        if length <= 0:
            return None
        if origin.base:
            below = super()._chunk(origin.base, index)
            data = b"" if below is None else bytes(below.data[:length])
        else:
            data = self._read_below(node, start, length)
        return Chunk(data) if data.count(0) < len(data) else None

    def _next_chunk(self, node: int, index: int) -> int | None:
        own = super()._next_chunk(node, index) if self.has_own_bytes(node) else None
        below = self._next_chunk_below(node, index) if node < FIRST_OWN else None
        return min((each for each in (own, below) if each is not None), default=None)

    def _next_chunk_below(self, node: int, index: int) -> int | None:
        """Return the first chunk from an index on that the file below has, own or not."""
        origin = self.origin_of(node)
        if origin.base:
            found = super()._next_chunk(origin.base, index)
        else:
            with self._reading_below(node) as (volume, handle):
                found = next(_data_chunks(volume, handle, index << CHUNK_SHIFT), None)
        return None if found is None or (origin.limit is not None and found << CHUNK_SHIFT >= origin.limit) else found

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        self._own_bytes(inode)
        super()._put(inode, offset, data)

    def _resize(self, inode: Inode, size: int) -> None:
        origin = self.origin_of(inode.node)
        is_cut = origin.limit is not None and size < origin.limit
        below, least = self._blocks_below(inode, size) if is_cut and size else (0, 0)
        super()._resize(inode, size)
        # The blocks that are given back there are those of the branch alone. The file below may count in another way.
        inode.blocks = min(max(inode.blocks - below, least), allocated_blocks(size))
        if is_cut:
            origin.limit = size
            self._origin_changed(origin)

    def _blocks_below(self, inode: Inode, size: int) -> tuple[int, int]:
        """Return the allocated blocks of chunks that shine through behind a new end, and how many the file has at least
        before that. No chunk is loaded, and a file without holes is not asked where they are: the result is exact. Of
        others each chunk with data counts as full, and no more than `COUNTED_CHUNKS` of a snapshot."""
        origin, first = self.origin_of(inode.node), -(-size >> CHUNK_SHIFT)
        limit, start = origin.limit or 0, first << CHUNK_SHIFT

        def least() -> int:
            before = self._next_chunk(inode.node, 0)
            return allocated_blocks(1) if before is not None and before < first else 0

        if start >= limit:
            return 0, least()
        last = (limit - 1) >> CHUNK_SHIFT
        own = self._indices(inode.node, first, last)

        def blocks_of(indices: Iterable[int]) -> int:
            return sum(allocated_blocks(min(CHUNK_BYTES, limit - (index << CHUNK_SHIFT))) for index in indices)

        reading = nullcontext((self, origin.base)) if origin.base else self._reading_below(inode.node)
        with reading as (volume, handle):
            attr = volume.getattr(handle)
            if attr.blocks >= allocated_blocks(attr.size):
                return allocated_blocks(limit) - allocated_blocks(start) - blocks_of(own), 0
            if limit - start > COPY_BYTES:
                will_wait()
            if origin.base:
                below = self._indices(origin.base, first, last)
            else:
                found = itertools.takewhile(lambda index: index <= last, _data_chunks(volume, handle, start))
                below = set(itertools.islice(found, COUNTED_CHUNKS))
        return blocks_of(below - own), least()

    # -- storage: extended attributes --------------------------------------------------------------------------

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        if self.is_own(inode.node):
            return super()._xattrs(inode)
        if inode.xattrs is None or self.lower.is_live(inode.node):
            inode.xattrs = self.lower.xattrs(inode.node)
        return inode.xattrs


def _make(path: str, lower: LowerTree, routes: Sequence[BranchRoute], created_ns: int) -> None:
    """Make the file of a new branch, whose root is that of the lower tree. It is durable when this returns; after a
    crash it is whole, or not there."""
    buffer = _BranchBuffer()
    attr = lower.attr_of(ROOT_NODE)
    inode = Inode(ROOT_NODE, attr.mode, parent=ROOT_NODE)
    _copy_attributes(attr, inode)
    inode.xattrs = lower.xattrs(ROOT_NODE)
    buffer.inodes[ROOT_NODE] = buffer.xattrs[ROOT_NODE] = inode
    below = Below(attr.mode, attr.uid, attr.gid, dict(inode.xattrs)) if lower.is_live(ROOT_NODE) else None
    buffer.origins[ROOT_NODE] = BranchOrigin(ROOT_NODE, b"", own=True, stamp=attr.fingerprint, below=below)
    rows = []
    for prefix, taken, time_ns in routes:
        name, number = (None, 0) if taken is None else (to_name(taken.name), taken.number)
        rows.append((to_name(prefix), name, number, time_ns))

    def fill(db: sqlite3.Connection) -> None:
        buffer.write(db, lambda: 0, NewestRows())
        db.executemany("INSERT INTO branch_route VALUES (?, ?, ?, ?)", rows)
        numbers = [("next_node", FIRST_OWN), ("created_ns", created_ns)]
        db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", numbers)

    replace_file(path, new_file(IDENTITY, _TABLES, fill), new=_unfinished(path))


def _unfinished(path: str) -> str:
    """Return the path of a branch's file while it is made, which nothing has: what a killed server left is removed."""
    new = os.path.join(os.path.dirname(path), UNFINISHED)
    for ending in ("", "-journal", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new + ending)
    return new


def _copy_attributes(source: Attr, target: Inode) -> None:
    target.take(source)
    target.nlink = max(source.nlink, 2 if source.is_dir else 1)


def _pieces(volume: Volume, handle: int) -> Iterator[tuple[int, bytes]]:
    """Read an open file without its holes: offset and bytes. To the end, also when the caller's time is up meanwhile:
    the change that needs them has begun (`data_pieces` stops)."""
    offset = volume.next_data(handle, 0)
    while offset is not None and (piece := volume.read(handle, offset, PIECE_BYTES)):
        yield offset, piece
        offset = volume.next_data(handle, offset + len(piece))


def _data_chunks(volume: Volume, handle: int, start: int) -> Iterator[int]:
    """Return the indices of the chunks of an open file that are no holes, from an offset on."""
    offset = volume.next_data(handle, start)
    while offset is not None:
        index = offset >> CHUNK_SHIFT
        yield index
        offset = volume.next_data(handle, (index + 1) << CHUNK_SHIFT)


def read_routes(path: str) -> list[BranchRoute]:
    """Return the routes below the branch of a file.

    Raises:
        OSError: ESTALE, it is no branch's, or one that was not made completely; or it can't be read.
    """
    try:
        with contextlib.closing(open_file(path, "mode=ro")) as db:
            rows = db.execute("SELECT prefix, snapshot, number, time_ns FROM branch_route").fetchall()
    except sqlite3.Error as error:
        raise OSError(errno.ESTALE, f"its file '{path}' is no branch, or damaged: {error}") from None
    if not rows:
        raise OSError(errno.ESTALE, f"its file '{path}' was not made completely; delete the branch")
    return [
        BranchRoute(
            AgentPath(to_text(prefix)),
            None if snapshot is None else Snapshot(to_text(snapshot), number, time_ns),
            time_ns,
        )
        for prefix, snapshot, number, time_ns in rows
    ]
