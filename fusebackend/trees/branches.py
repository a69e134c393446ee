"""`Branches`: the branches of a mount. Each is a file of changes (`branch_volume.py`) over all of its routes.

A branch is made over snapshots, which it takes and owns, or over a snapshot that there is; routes that keep none are
below it live. It belongs to one mount point, outlives the server, and is opened again if the routes are those that it
was made over; where they are not, it is kept and listed with the reason.

Called by any thread but the mount's loop, for the kernel is notified. One change at a time.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from fusebackend.base.durable import put_in_place
from fusebackend.base.paths import ROOT, AgentPath, join, to_text
from fusebackend.base.stamps import APART_NS, nanoseconds
from fusebackend.protocol import NAME_MAX_BYTES, BranchInfo, SnapshotVolume, Volume
from fusebackend.trees.branch_volume import UNFINISHED, BranchRoute, BranchVolume, read_routes
from fusebackend.trees.composed import Places
from fusebackend.trees.lower_tree import BaseTree, LowerTree
from fusebackend.trees.refs import Ref, Refs
from fusebackend.trees.snapshots import AUTOMATIC, Snapshots, check_name, require_there, words_for

if TYPE_CHECKING:
    from fusebackend.trees.restore import Restores

log = logging.getLogger(__name__)

SUFFIX: Final = ".db"
BASE: Final = ".base"
"""The end of the name of the file with the state before the present that a branch began with: `BaseTree`."""

_BESIDE: Final = ("", "-wal", "-shm")
"""The files of a branch, and of its base."""

JOURNAL: Final = ".merge"
"""The end of the name of a merge's journal, beside the branch's file. It is made as `.merge.new`."""

TAKING: Final = ".taking"
"""The end of the name of a file with the name of the snapshot that a branch takes while it is made: by its name alone,
it could be of a branch of another mount of the same volume."""

NAME_BYTES: Final = NAME_MAX_BYTES - len(JOURNAL) - len(".new")
"""A branch's name has so many at most: no other file of it has a longer ending."""

OWNED: Final = f"{AUTOMATIC}branch-"
"""The names of snapshots that were taken for a branch begin with it."""

MAX_BRANCHES: Final = 256
"""Each has a connection, a thread, and some MiB of caches."""


class Shown(Protocol):
    """A directory that shows volumes: `RoutesDirectory` in `vfs/mounted_tree.py`."""

    @property
    def path(self) -> AgentPath:
        """The path of the directory, below the mount point."""

    def attach(self, name: str, volume: Volume) -> None:
        """Show a volume."""

    def detach(self, name: str) -> None:
        """Show it no more."""


class Branches:
    """See the module's docstring.

    Args:
        directory: of their files; made when it is needed.
        volumes: prefix → volume, of all routes of the mount.
        snapshots: of the mount.
        trees: the directory that shows them.
    """

    def __init__(self, directory: str, volumes: Mapping[AgentPath, Volume], snapshots: Snapshots, trees: Shown) -> None:
        self._directory = directory
        self._volumes = dict(volumes)
        self._snapshots = snapshots
        self._trees = trees
        self._guard = threading.RLock()
        self._open: dict[str, BranchVolume] = {}
        self._broken: dict[str, str] = {}
        self._needs: dict[str, frozenset[str]] = {}  # branch → the snapshots below it
        self.past: Restores | None = None
        """Knows states before the present; None while nothing does."""
        snapshots.holder = self._holder

    # -- life --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open all branches that there are. Those that can't be opened are logged, and kept."""
        with self._guard:
            for name in [file.removesuffix(SUFFIX) for file in self._listed() if file.endswith(SUFFIX)]:
                try:
                    self._attach(name, self._opened(name, read_routes(self._path(name))))
                except OSError as error:
                    self._broken[name] = error.strerror or str(error)
                    log.warning("branch '%s' can't be opened: %s", name, self._broken[name])
            self._clean()

    def close(self) -> None:
        """Make every branch durable, and close its file. The mount has ended."""
        with self._guard:
            volumes, self._open = self._open, {}
            for name, volume in volumes.items():
                try:
                    volume.close()
                except OSError as error:
                    log.error("branch '%s' could not be stored: %s", name, error.strerror or error)

    def _listed(self) -> list[str]:
        """Return the names of all files beside the branches."""
        files = os.listdir(os.fsencode(self._directory)) if os.path.isdir(self._directory) else []
        return sorted(map(to_text, files))

    def _path(self, name: str, ending: str = SUFFIX) -> str:
        """Return the path of a branch's file: of its changes, or of its base."""
        return os.path.join(self._directory, name + ending)

    def _clean(self) -> None:
        """Remove what an error, or a killed server, has left of branches that were not made: a branch's own file comes
        last. The branches that there are have been opened, so what needs a snapshot is known."""
        for file in self._listed():
            name, ending = os.path.splitext(file)
            if file.startswith(UNFINISHED):
                os.unlink(self._path(file, ""))
            elif ending == BASE and not os.path.exists(self._path(name)):
                self._remove_files(name)
            elif ending == TAKING and name not in self._broken:  # a branch that can't be opened may need the snapshot
                with open(self._path(file, ""), encoding="utf-8", errors="surrogateescape") as taking:
                    snapshot = taking.read()
                if self._snapshots.holder(snapshot) is None:
                    self._snapshots.drop(snapshot)
                os.unlink(taking.name)

    def _opened(self, name: str, routes: Sequence[BranchRoute], path: str | None = None) -> BranchVolume:
        """Open a branch's file, its base, or a copy of it by another path; it is made when it is missing."""
        self._needs[name] = frozenset(route.snapshot.name for route in routes if route.snapshot is not None)
        places = Places(route.prefix for route in routes)
        by_prefix = {route.prefix: route for route in routes}
        if ROOT not in by_prefix:
            raise OSError(
                errno.ESTALE, f"its file '{self._path(name)}' is damaged: it does not say what is at the root"
            )
        ordered = [by_prefix[prefix] for prefix in places.prefixes]
        views = {index: self._view(route) for index, route in enumerate(ordered)}
        frozen = {index for index, route in enumerate(ordered) if route.snapshot is not None}
        lower = LowerTree(places, views, frozen, min(route.time_ns for route in routes))
        is_merging = os.path.exists(self.journal(name))
        opened = partial(BranchVolume, routes=routes, is_merging=is_merging)
        path, base_path = path or self._path(name), self._path(name, BASE)
        if path == base_path or not os.path.exists(base_path):
            return opened(path, lower)
        base = opened(base_path, lower)
        try:
            return opened(path, BaseTree(base))
        except BaseException:
            base.close()
            raise

    def _view(self, route: BranchRoute) -> Volume:
        """Return the volume below a branch, of one route. ESTALE if it is not that of the branch."""
        where, volume = words_for(route.prefix), self._volumes.get(route.prefix)
        if volume is None:
            raise OSError(errno.ESTALE, f"it was made over {where}, which this mount does not have")
        if route.snapshot is None:
            return volume
        name = route.snapshot.name
        if not isinstance(volume, SnapshotVolume) or route.snapshot not in volume.snapshots():
            raise OSError(errno.ESTALE, f"{where} does not have snapshot '{name}', over which it was made")
        return volume.snapshot(name)

    def _attach(self, name: str, volume: BranchVolume) -> None:
        try:
            self._trees.attach(name, volume)
        except BaseException:
            volume.close()
            raise
        self._open[name] = volume

    # -- changes -----------------------------------------------------------------------------------------------

    def create(self, name: str, ref: str | None = None) -> BranchInfo:
        """Make a branch.

        Args:
            name: of the branch, as that of a directory.
            ref: the state that it begins with: another branch, whose changes it has from then on as its own; a
                snapshot, in which routes that it does not hold are live; a call, the state before it, of the branch if
                it has changed nothing but one; a time; the present when None.

        Raises:
            ValueError: the name can't be that of a branch, or nothing is meant by `ref`.
            OSError: EEXIST, there is a branch or a snapshot of that name; ENODATA, it is not known what was there
                then; ENOTSUP, only a history would know; or an error of a volume, or of the file.
        """
        check_name(name, "branch", NAME_BYTES)
        with self._guard:
            if name in self.names:
                raise OSError(errno.EEXIST, f"there is a branch '{name}' already; choose another name, or delete it")
            if self._snapshots.find(name) is not None:
                raise OSError(errno.EEXIST, f"there is a snapshot '{name}' already; choose another name")
            if len(self.names) >= MAX_BRANCHES:
                raise OSError(errno.ENOSPC, f"there are {MAX_BRANCHES} branches already, and no more fit; delete some")
            os.makedirs(self._directory, 0o700, exist_ok=True)
            try:
                self._attach(name, self._made(name, ref))
            except BaseException:
                self._remove_files(name)
                self._needs.pop(name, None)
                raise
            finally:
                self._clean()
        return self.find(name)

    def _made(self, name: str, ref: str | None) -> BranchVolume:
        if ref is not None and ref in self.names:
            return self._copied(name, ref)
        if ref is not None and self.past is not None and (inside := self.past.branch_of(ref)) is not None:
            return self._copied(name, inside, Ref(ref, self.past.began_ns(ref), is_call=True))
        frozen, past = self._state(ref)
        if frozen is None and self._snapshots.volumes:
            frozen = self._taken(name)
        routes = self._routes(frozen)
        if past is not None:
            # Routes that a snapshot has stay as they are, if that is of the same moment.
            chosen = {route.prefix for route in routes if past.is_call or route.snapshot is None}
            self._put_back(self._opened(name, routes, self._path(name, BASE)), past, chosen)
        return self._opened(name, routes)

    def _taken(self, name: str) -> str:
        """Take a snapshot for a branch, and return its name. It is noted first, for `_clean`."""
        owned = f"{OWNED}{name}-{secrets.token_hex(4)}"
        # Not synced: after a power cut the snapshot may stay, and costs space.
        with open(self._path(name, TAKING), "w", encoding="utf-8", errors="surrogateescape") as taking:
            taking.write(owned)
        self._snapshots.take(owned, durably=True)
        return owned

    @property
    def bases(self) -> dict[str, BranchVolume]:
        """The states before the present that open branches began with, by the branch's name."""
        lowers = {name: volume.lower for name, volume in self.opened.items()}
        return {name: lower.base for name, lower in lowers.items() if isinstance(lower, BaseTree)}

    def _copied(self, name: str, source: str, past: Ref | None = None) -> BranchVolume:
        """Make a branch of a branch: over the same state of the mount, with a copy of the file of changes.

        Args:
            past: the state of that branch before a call; as it is now when None.
        """
        volume = self.volume(source)
        if isinstance(volume.lower, BaseTree):
            volume.lower.base.copy_to(self._path(name, BASE))
        if past is None:
            volume.copy_to(self._path(name))
        else:
            self._copied_back(name, volume, past)
        return self._opened(name, volume.routes)

    def _copied_back(self, name: str, source: BranchVolume, past: Ref) -> None:
        """Make a copy of a branch, and of that what the branch was before a call. It has its name when it is whole."""
        path = self._path(UNFINISHED, "-copy")
        source.copy_to(path)
        self._put_back(self._opened(name, source.routes, path=path), past, {ROOT})
        put_in_place(path, self._path(name))

    def _put_back(self, volume: BranchVolume, past: Ref, prefixes: Collection[AgentPath]) -> None:
        """Make a branch's file what some routes were in a state before the present, and close it."""
        assert self.past is not None, "it knows the state"
        with contextlib.closing(volume):
            self.past.put_back(past, prefixes, volume)
            volume.sync()

    def _state(self, ref: str | None) -> tuple[str | None, Ref | None]:
        """Return the snapshot that a REF means, None for the present; and the state that those routes are put back to
        which the snapshot does not have, None if they are live. Of a call these are all routes."""
        if ref is None:
            return None, None
        taken = {each.name: each.time_ns for each in self._snapshots.all()}
        refs = Refs(taken, began_ns=None if self.past is None else self.past.began_ns)
        moment = None if ref in taken else refs.moment(ref)
        if moment is None:
            found = refs.one(ref)
            return (None, found) if found.is_call else (None if found.is_main else found.name, None)
        snapshot = refs.one(ref) if self._snapshots.volumes else Ref(ref, nanoseconds(moment))
        parts = self._snapshots.find(snapshot.name) if self._snapshots.volumes else None
        live = [prefix for prefix in self._volumes if parts is None or prefix not in parts.parts]
        if live and (self.past is None or not self.past.is_kept):
            words = ", ".join(prefix if prefix == ROOT else prefix + "/" for prefix in live)
            why = f"what {words} had at '{ref}' is in no snapshot, and this mount keeps no history of calls"
            raise OSError(errno.ENOTSUP, f"{why}; the name of a snapshot takes the present of such routes")
        assert snapshot.time_ns is not None, "it is before the present"
        # On older kernels, what was changed just before the snapshot may have a record that is later than its stamp.
        past = Ref(ref, snapshot.time_ns + (APART_NS if parts else 0), is_recorded=True) if live else None
        return (None if parts is None else parts.name), past

    def _routes(self, snapshot: str | None) -> list[BranchRoute]:
        found = None if snapshot is None else self._snapshots.find(snapshot)
        taken = {} if found is None else found.parts
        now = time.time_ns()
        parts = ((prefix, taken.get(prefix)) for prefix in self._volumes)
        return [BranchRoute(prefix, part, now if part is None else part.time_ns) for prefix, part in parts]

    def delete(self, names: Sequence[str]) -> None:
        """Delete branches, with all that is in them.

        Raises:
            OSError: ENOENT, one of them is not there, and none was deleted; or an error of the file.
        """
        with self._guard:
            require_there("branch", names, self.names)
            for name in dict.fromkeys(names):
                self._delete(name)

    def _delete(self, name: str) -> None:
        needed = self._needs.pop(name, frozenset())
        volume = self._open.pop(name, None)
        self._broken.pop(name, None)
        if volume is not None:
            self._trees.detach(name)
            with contextlib.suppress(OSError):  # a full disk: it goes anyway
                volume.close()
        try:
            self._remove_files(name)
        except OSError as error:  # some are there still: no other branch gets the name
            self._broken[name] = f"its files can't be removed: {error.strerror}"
            raise
        for snapshot in needed:
            if snapshot.startswith(OWNED) and self._snapshots.holder(snapshot) is None:
                self._snapshots.drop(snapshot)

    def _files(self, name: str) -> list[str]:
        return [self._path(name, kind + ending) for kind in (SUFFIX, BASE) for ending in _BESIDE]

    def _remove_files(self, name: str) -> None:
        for path in (*self._files(name), self.journal(name), f"{self.journal(name)}.new"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    # -- asking ------------------------------------------------------------------------------------------------

    def volume(self, name: str) -> BranchVolume:
        """Return a branch as a volume.

        Raises:
            OSError: ENOENT, there is none of that name; ESTALE, it can't be opened.
        """
        with self._guard:
            if name in self._open:
                return self._open[name]
            if name in self._broken:
                raise OSError(errno.ESTALE, f"branch '{name}' can't be opened: {self._broken[name]}")
            known = ", ".join(self.names) or "none at all"
            raise OSError(errno.ENOENT, f"there is no branch '{name}'; there are: {known}")

    @property
    def path(self) -> AgentPath:
        """The directory that has them, below the mount point."""
        return self._trees.path

    @property
    def names(self) -> list[str]:
        """Their names, also of those that can't be opened."""
        with self._guard:
            return sorted({*self._open, *self._broken})

    @property
    def opened(self) -> dict[str, BranchVolume]:
        """The branches that are open, by name."""
        with self._guard:
            return dict(self._open)

    @property
    def broken(self) -> list[str]:
        """The names of those that can't be opened."""
        with self._guard:
            return list(self._broken)

    def find(self, name: str) -> BranchInfo:
        """Describe a branch, as far as no merge is planned for it (`Merges.compare`). OSError: ENOENT."""
        path = join(self.path, name)
        with self._guard:
            if name in self._broken:
                return BranchInfo(name, 0, {}, 0, self._size_bytes(name), path, error=self._broken[name])
            volume = self.volume(name)
            routes = {
                route.prefix if route.prefix == ROOT else route.prefix + "/": "live"
                if route.snapshot is None
                else "frozen"
                for route in volume.routes
            }
            changes, size_bytes = volume.changed_names(), self._size_bytes(name)
            return BranchInfo(name, volume.created_ns, routes, changes, size_bytes, path)

    def all(self) -> list[BranchInfo]:
        """Describe all branches, by name."""
        found = []
        for name in self.names:
            with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                found.append(self.find(name))
        return found

    def journal(self, name: str) -> str:
        """Return the path of the journal of a branch's merge."""
        return self._path(name, JOURNAL)

    def _size_bytes(self, name: str) -> int:
        size = 0
        for path in self._files(name):
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(path).st_blocks * 512
        return size

    def _holder(self, snapshot: str) -> str | None:
        """Return what needs a snapshot, for an error. A volume may ask with its lock held, so this takes none."""
        needs = list(self._needs.items())
        return next((f"branch '{name}'" for name, snapshots in needs if snapshot in snapshots), None)
