"""The trees directory of a running mount: its files and trees, the check that its name is free, and its agent face.

The kernel's side is `MountTree` in `vfs/junctions.py`. Here a mount adds its computed files and its snapshots, and
refuses a default volume or a route that has the name already: either would be hidden. Agents get the same files as
processes.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fusebackend.base import paths
from fusebackend.base.paths import to_text
from fusebackend.base.version import __version__
from fusebackend.composite.backend import CompositeBackend
from fusebackend.linux.mount_table import MountError
from fusebackend.protocol import ROOT_NODE, Volume
from fusebackend.server.log_files import LogFiles
from fusebackend.server.recording import Recording
from fusebackend.server.rules import Views
from fusebackend.shell.shell import BRANCHES
from fusebackend.trees.branches import Branches
from fusebackend.trees.snapshot_trees import SnapshotTrees
from fusebackend.trees.snapshots import Snapshots
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.vfs.xattrs import SOCKET_XATTR
from fusebackend.volumes.agent_face import VolumeBackend

log = logging.getLogger(__name__)

STATUS_FILE = "status.json"
"""What `fusebackend status --json` shows of the mount, and the extended attribute of its root, but for people."""

VERSION_FILE = "version"
"""The version of the server, a line."""

SNAPSHOTS = "snapshots"
"""The directory of the snapshots."""

LOG = "log"
"""The directory of the log's files."""


def fill(filesystem: FileSystem, status: Callable[[], Mapping[str, Any]]) -> None:
    """Add the files of every mount. `status` is called by any thread, the mount's loop included."""
    if filesystem.tree.trees_path is None:
        return
    filesystem.tree.files.add(STATUS_FILE, lambda: json.dumps(status(), indent=2).encode() + b"\n")
    filesystem.tree.files.add(VERSION_FILE, lambda: __version__.encode() + b"\n")


def attach_snapshots(filesystem: FileSystem) -> Snapshots | None:
    """Return the snapshots of a mount, which from now on are in its trees directory. None if it has none, or without a
    route that keeps snapshots. Before the mount."""
    volumes = filesystem.tree.volume_at
    snapshots = Snapshots(volumes)
    if filesystem.tree.trees_path is None or not snapshots.volumes:
        return None
    filesystem.add_route(SNAPSHOTS, SnapshotTrees(snapshots, volumes))
    return snapshots


def attach_log(filesystem: FileSystem, recording: Recording | None) -> LogFiles | None:
    """Return the log of a mount as files, which from now on are in its trees directory. None if it has no such
    directory, or no history. Before the mount."""
    if filesystem.tree.trees_path is None or recording is None:
        return None
    files = LogFiles(recording.history)
    filesystem.add_route(LOG, files)
    return files


def attach_branches(filesystem: FileSystem, snapshots: Snapshots | None, directory: str) -> Branches | None:
    """Return the branches of a mount, whose trees are in its trees directory once they are open. None if it has no such
    directory. Before the mount.

    Args:
        snapshots: of the mount.
        directory: of the branches' files.
    """
    if filesystem.tree.trees_path is None:
        return None
    volumes = filesystem.tree.volume_at
    return Branches(directory, volumes, snapshots or Snapshots(volumes), filesystem.add_directory(BRANCHES))


def refuse_taken_by_route(filesystem: FileSystem) -> None:
    """Refuse routes at and below the trees directory.

    Raises:
        MountError: there is one.
    """
    own = filesystem.tree.trees_path
    for route in filesystem.tree.routes:
        if own is not None and paths.is_below(route.prefix, own):
            raise _taken(f"route '{route.prefix}/' begins with '{own}'", "attach it elsewhere")


def refuse_taken_by_file(filesystem: FileSystem, default: str) -> None:
    """Refuse a default volume that has a file by the name of the trees directory: the mount would hide it.

    A `dir:` over another mount has that mount's trees directory, which counts for none. A volume that can't answer is
    not refused: its failures show in the mount, as those of any other call. Blocks.

    Args:
        default: the default backend, as its URL or type.

    Raises:
        MountError: there is one.
    """
    own, route = filesystem.tree.trees_path, filesystem.tree.routes[0]
    if own is None:
        return
    try:
        is_taken = route.executor.run("lookup", partial(_has, route.volume, paths.to_name(own[1:])))
    except OSError as error:
        log.info("%s could not be asked for '%s': %s", route.executor.name, own, error)
        return
    if is_taken:
        raise _taken(f"{default} has a file '{own}'", "rename that one, which a mount with '-o trees=off' shows")


def _has(volume: Volume, name: bytes) -> bool:
    try:
        found = volume.lookup(ROOT_NODE, name)
    except FileNotFoundError:
        return False
    try:
        return not (found.is_dir and volume.getxattr(found.node, SOCKET_XATTR))
    except OSError:
        return True


def _taken(what: str, remedy: str) -> MountError:
    message = f"{what}, which is the mount's own directory: {remedy}, or mount with '-o trees_name=NAME'"
    return MountError(errno.EEXIST, message)


class TreesFace:
    """Chooses the backend of a verb: of the mounted files, or of these and the trees directory.

    A composite of both costs another look for each path, so only calls that name the directory pay it. Where listings
    show it, the others have its files, but not the volumes in it: a search from the root would find all files again
    in every snapshot.

    Args:
        backend: the mounted files.
        filesystem: their mounted tree.
        views: of the mount, if it has any.
    """

    def __init__(self, backend: CompositeBackend, filesystem: FileSystem, views: Views | None = None) -> None:
        self._views = {} if views is None else views.faces()
        self._tree = filesystem.tree
        self._backend = self._plain = self._both = backend
        self._beside: object = None  # the routes in the trees directory that `_both` was made of
        self._name: str | None = None
        if self._tree.trees_path is not None:
            self._name = to_text(self._tree.servers.name)
            if self._tree.servers.is_listed:
                self._plain = CompositeBackend(backend, self._files)

    @property
    def _files(self) -> dict[str, VolumeBackend]:
        return {str(self._tree.trees_path): VolumeBackend(self._tree.files)}

    def _with_all(self) -> CompositeBackend:
        """Return the mounted files with all that is in the trees directory now."""
        routes = self._tree.beside
        if self._beside is not routes:  # any thread; two may make the same
            beside = {str(path): VolumeBackend(route.volume) for path, route in routes.items()}
            self._both = CompositeBackend(self._backend, {**self._files, **beside, **self._views})
            self._beside = routes
        return self._both

    def of(self, *named: str | None) -> CompositeBackend:
        """Return the backend for a call with these paths."""
        if self._name is not None and any(isinstance(path, str) and self._name in path for path in named):
            return self._with_all()
        return self._plain
