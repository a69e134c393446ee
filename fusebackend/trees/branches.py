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
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from fusebackend.base.paths import ROOT, AgentPath, to_text
from fusebackend.protocol import NAME_MAX_BYTES, BranchInfo, SnapshotVolume, Volume
from fusebackend.trees.branch_volume import BranchRoute, BranchVolume, read_routes
from fusebackend.trees.composed import Places
from fusebackend.trees.lower_tree import LowerTree
from fusebackend.trees.refs import Refs, Taken
from fusebackend.trees.snapshots import AUTOMATIC, Snapshots, check_name
from fusebackend.volumes.native import NativeVolume

log = logging.getLogger(__name__)

SUFFIX: Final = ".db"
_BESIDE: Final = ("", "-wal", "-shm")
"""The files of a branch."""

JOURNAL: Final = ".merge"
"""The end of the name of a merge's journal, beside the branch's file."""

OWNED: Final = f"{AUTOMATIC}branch-"
"""The names of snapshots that were taken for a branch begin with it."""

MAX_BRANCHES: Final = 256
"""Each has a connection, a thread, and some MiB of caches."""


class Shown(Protocol):
    """A directory that shows volumes: `RoutesDirectory` in `vfs/mounted_tree.py`."""

    def attach(self, name: str, volume: NativeVolume) -> object:
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
        self.compare: Callable[[str], tuple[int, int]] | None = None
        """Returns how many files of a branch have changed in the mount as well, and how many changes a merge would
        make; None while nothing can tell."""
        snapshots.holders.append(self._holder)

    # -- life --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open all branches that there are. Those that can't be opened are logged, and kept."""
        with self._guard:
            for name in self._names():
                try:
                    self._attach(name, self._opened(name, read_routes(self._path(name))))
                except OSError as error:
                    self._broken[name] = error.strerror or str(error)
                    log.warning("branch '%s' can't be opened: %s", name, self._broken[name])

    def close(self) -> None:
        """Make every branch durable, and close its file. The mount has ended."""
        with self._guard:
            volumes, self._open = self._open, {}
            for name, volume in volumes.items():
                try:
                    volume.close()
                except OSError as error:
                    log.error("branch '%s' could not be stored: %s", name, error.strerror or error)

    def _names(self) -> list[str]:
        try:
            files = sorted(os.listdir(os.fsencode(self._directory)))
        except FileNotFoundError:
            return []
        return [to_text(file[: -len(SUFFIX)]) for file in files if file.endswith(SUFFIX.encode())]

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name + SUFFIX)

    def _opened(self, name: str, routes: Sequence[BranchRoute]) -> BranchVolume:
        self._needs[name] = frozenset(route.snapshot for route in routes if route.snapshot is not None)
        places = Places(route.prefix for route in routes)
        by_prefix = {route.prefix: route for route in routes}
        if ROOT not in by_prefix:
            raise OSError(
                errno.ESTALE, f"its file '{self._path(name)}' is damaged: it does not say what is at the root"
            )
        views: dict[int, Volume] = {}
        frozen = set()
        for index, prefix in enumerate(places.prefixes):
            route = by_prefix[prefix]
            views[index] = self._view(route)
            if route.snapshot is not None:
                frozen.add(index)
        time_ns = min(route.time_ns for route in routes)
        return BranchVolume(self._path(name), LowerTree(places, views, frozen, time_ns), routes)

    def _view(self, route: BranchRoute) -> Volume:
        """Return the volume below a branch, of one route. ESTALE if it is not that of the branch."""
        where = "the default backend" if route.prefix == ROOT else f"route '{route.prefix}/'"
        volume = self._volumes.get(route.prefix)
        if volume is None:
            raise OSError(errno.ESTALE, f"it was made over {where}, which this mount does not have")
        if route.snapshot is None:
            return volume
        found = []
        if isinstance(volume, SnapshotVolume):
            found = [taken for taken in volume.snapshots() if taken.name == route.snapshot]
        if not found or (found[0].number, found[0].time_ns) != (route.number, route.time_ns):
            raise OSError(errno.ESTALE, f"{where} does not have snapshot '{route.snapshot}', over which it was made")
        assert isinstance(volume, SnapshotVolume)
        return volume.snapshot(route.snapshot)

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
                snapshot, a time; the present when None.

        Raises:
            ValueError: the name can't be that of a branch, or nothing is meant by `ref`.
            OSError: EEXIST, there is a branch or a snapshot of that name; or an error of a volume, or of the file.
        """
        check_name(name, "branch", NAME_MAX_BYTES - len(SUFFIX) - len("-wal"))
        with self._guard:
            names = self._names()
            if name in names:
                raise OSError(errno.EEXIST, f"there is a branch '{name}' already; choose another name, or delete it")
            if self._snapshots.find(name) is not None:
                raise OSError(errno.EEXIST, f"there is a snapshot '{name}' already; choose another name")
            if len(names) >= MAX_BRANCHES:
                raise OSError(errno.ENOSPC, f"there are {MAX_BRANCHES} branches already, and no more fit; delete some")
            os.makedirs(self._directory, 0o700, exist_ok=True)
            if ref is not None and ref in names:
                return self._copied(name, ref)
            frozen = self._state(ref)
            owned = None
            if frozen is None and self._snapshots.volumes:
                owned = frozen = f"{OWNED}{name}-{secrets.token_hex(4)}"
                self._snapshots.take(owned, durably=True)
            try:
                self._attach(name, self._opened(name, self._routes(frozen)))
            except BaseException:
                self._remove_files(name)
                self._needs.pop(name, None)
                if owned is not None:
                    self._snapshots.drop(owned)
                raise
            return self.find(name)

    def _copied(self, name: str, source: str) -> BranchInfo:
        """Make a branch of a branch: over the same state of the mount, with a copy of the file of changes."""
        volume = self.volume(source)
        try:
            volume.copy_to(self._path(name))
            self._attach(name, self._opened(name, volume.routes))
        except BaseException:
            self._remove_files(name)
            self._needs.pop(name, None)
            raise
        return self.find(name)

    def _state(self, ref: str | None) -> str | None:
        """Return the snapshot that a REF means, None for the present."""
        if ref is None:
            return None
        found = Refs([Taken(each.name, each.info.time_ns) for each in self._snapshots.all()]).one(ref)
        return None if found.is_main else found.name

    def _routes(self, snapshot: str | None) -> list[BranchRoute]:
        parts = None if snapshot is None else self._snapshots.find(snapshot)
        now = time.time_ns()
        routes = []
        for prefix in self._volumes:
            part = parts.parts.get(prefix) if parts is not None else None
            if part is None:
                routes.append(BranchRoute(prefix, None, 0, now))
            else:
                routes.append(BranchRoute(prefix, part.name, part.number, part.time_ns))
        return routes

    def delete(self, names: Sequence[str]) -> None:
        """Delete branches, with all that is in them.

        Raises:
            OSError: ENOENT, one of them is not there, and none was deleted; or an error of the file.
        """
        with self._guard:
            there = self._names()
            for name in names:
                if name not in there:
                    known = ", ".join(there) or "none at all"
                    text = f"there is no branch '{name}', and nothing was deleted; there are: {known}"
                    raise OSError(errno.ENOENT, text)
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
        self._remove_files(name)
        for snapshot in needed:
            if snapshot.startswith(OWNED) and self._snapshots.holder(snapshot) is None:
                self._snapshots.drop(snapshot)

    def _remove_files(self, name: str) -> None:
        for path in (*(self._path(name) + ending for ending in _BESIDE), self.journal(name)):
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
            known = ", ".join(self._names()) or "none at all"
            raise OSError(errno.ENOENT, f"there is no branch '{name}'; there are: {known}")

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
        """Describe a branch. OSError: ENOENT."""
        with self._guard:
            if name in self._broken:
                return BranchInfo(name, 0, {}, 0, self._size_bytes(name), error=self._broken[name])
            volume = self.volume(name)
            routes = {
                route.prefix if route.prefix == ROOT else route.prefix + "/": "live"
                if route.snapshot is None
                else "frozen"
                for route in volume.routes
            }
            conflicts, unmerged = self._compared(name)
            changes, size_bytes = volume.changed_names(), self._size_bytes(name)
            return BranchInfo(name, volume.created_ns, routes, changes, size_bytes, conflicts, unmerged)

    def all(self) -> list[BranchInfo]:
        """Describe all branches, by name."""
        with self._guard:
            return [self.find(name) for name in sorted({*self._open, *self._broken})]

    def _compared(self, name: str) -> tuple[int | None, int | None]:
        if self.compare is None:
            return None, None
        try:
            return self.compare(name)
        except OSError as error:
            log.info("branch '%s' can't be compared with the mount: %s", name, error)
            return None, None

    def journal(self, name: str) -> str:
        """Return the path of the journal of a branch's merge."""
        return os.path.join(self._directory, name + JOURNAL)

    def _size_bytes(self, name: str) -> int:
        size = 0
        for ending in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(self._path(name) + ending).st_blocks * 512
        return size

    def _holder(self, snapshot: str) -> str | None:
        """Return what needs a snapshot, for an error. A volume may ask with its lock held, so this takes none."""
        needs = list(self._needs.items())
        return next((f"branch '{name}'" for name, snapshots in needs if snapshot in snapshots), None)


def _words(route: BranchRoute) -> str:
    return route.prefix if route.prefix == ROOT else route.prefix + "/"
