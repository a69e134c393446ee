"""The rules of a mount: those of its routes, and its views, as trees and as agent faces.

A route with rules is served through a `RuledVolume` in place of its own backend, for every reader and both faces: what
it hides is in no tree, snapshot, branch or history either, for the mount does not have it (snapshots are of the volume
below, and are looked at through the same rules). A view is a tree beside the
main one (`FileSystem.add_view`); its agent face is a composite of the same routes, each through a `RuledVolume`. It may
have a mount point of its own (`ViewMounts`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fusebackend.base import paths
from fusebackend.base.paths import ROOT, AgentPath, is_below
from fusebackend.composite.backend import CompositeBackend
from fusebackend.linux import mount_point
from fusebackend.linux.bind_mount import bind, unbind
from fusebackend.linux.mount_table import MountError, UnmountWatch
from fusebackend.protocol import Change, FileEvent, SnapshotVolume, Volume
from fusebackend.remote.volume import volume_of
from fusebackend.rules.rule import RouteRules, RuleError, within
from fusebackend.rules.ruled_volume import RuledSnapshotVolume, RuledVolume
from fusebackend.rules.view import View
from fusebackend.vfs.junctions import VIEWS_NAME, Route
from fusebackend.volumes.agent_face import VolumeBackend

if TYPE_CHECKING:
    from fusebackend.vfs.mounted_tree import FileSystem


def with_route_rules(backend: CompositeBackend, rules: Mapping[str, RouteRules]) -> CompositeBackend:
    """Return a composite whose routes keep to these rules; itself without any.

    Raises:
        RuleError: a prefix is that of no route, or a route can't have rules.
    """
    rules = {prefix: own for prefix, own in rules.items() if own}
    if not rules:
        return backend
    parts = backend.mounts()
    for prefix in rules:
        if prefix not in parts:
            known = ", ".join(parts)
            raise RuleError(f"there is no route '{prefix}' for the rules that are given for it; there are: {known}")
    ruled: dict[str, Any] = {
        prefix: _ruled(part, prefix, rules[prefix]) if prefix in rules else part for prefix, part in parts.items()
    }
    return CompositeBackend(ruled.pop(str(ROOT)), ruled)


def _ruled(backend: Any, prefix: AgentPath, rules: RouteRules) -> VolumeBackend:
    hidden = [within(rules.hide)] if rules.hide else []
    below, view = volume_of(backend), View(prefix, hidden)
    volume = (
        RuledSnapshotVolume(below, view, read_only=rules.read_only)  # type: ignore[abstract]  # `pass_on` has the rest
        if isinstance(below, SnapshotVolume)
        else RuledVolume(below, view, read_only=rules.read_only, for_all=True)
    )
    return VolumeBackend(volume, on_exists=getattr(backend, "on_exists", "error"))


def shown_event(view: View, event: FileEvent) -> FileEvent | None:
    """Return an event as far as a view shows it, see `Change.shown`."""

    def shows(path: str) -> bool:
        return view.decide("read", path.rstrip("/") or ROOT) == "allow"

    shown = Change(kind=event.kind, path=event.path, moved_from=event.moved_from).shown(shows)
    if shown is None:
        return None
    return replace(event, kind=shown.kind, path=shown.path, moved_from=shown.moved_from)


def _unheard(name: str) -> str:
    raise OSError(errno.ENOTCONN, f"view '{name}' can have no socket: the mount has no control socket")


class SeenMount(NamedTuple):
    """A mount as a view shows it.

    Attributes:
        root: the path of its tree.
        shown: the view as its verbs have it: without the mount's own directory.
        volumes: of the routes that are not hidden, by prefix.
        face: its agent face.
    """

    root: AgentPath
    shown: View
    volumes: Mapping[AgentPath, RuledVolume]
    face: CompositeBackend


class Views:
    """The views of a mount. They don't change while it lasts.

    Args:
        filesystem: gets a tree for each. Before the mount.
        backend: the mounted files.
        views: by name.
        default: the name of the view of commands and clients that name none.
        guards: the executors of routes that block, by prefix.

    Raises:
        OSError: ENOTSUP, there are views, and the mount has no directory for them.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        backend: CompositeBackend,
        views: Mapping[str, View],
        default: str | None = None,
        guards: Mapping[AgentPath, Any] | None = None,
    ) -> None:
        self.by_name = dict(views)
        self.default = default
        self.path: AgentPath | None = None
        """The directory of the views."""
        self.listen: Callable[[str], str] = _unheard
        """Opens the socket of a view, and returns its path (`ControlServer.open_view`)."""
        self._routes = filesystem.tree.table
        self._seen: dict[str, SeenMount] = {}
        self._parts = backend.mounts()
        self._guards = dict(guards or {})
        trees = filesystem.tree.trees_path
        if not self.by_name:
            return
        if trees is None:
            raise OSError(errno.ENOTSUP, "views need the mount's own directory: mount without '-o trees=off'")
        self.path = paths.join(trees, paths.to_text(VIEWS_NAME))
        for view in self.by_name.values():
            filesystem.add_view(view)
            seen = [route for route in filesystem.tree.routes if not view.is_hidden(route.prefix)]
            # The trees directory is not in a view, and the volume must not get a file of its name: the next mount of it
            # would be refused.
            own = view.without(trees)
            volumes = {route.prefix: RuledVolume(route.volume, own, route.prefix) for route in seen}
            root = paths.join(self.path, view.name)
            self._seen[view.name] = SeenMount(root, own, volumes, self._face(volumes))

    def _face(self, volumes: Mapping[AgentPath, RuledVolume]) -> CompositeBackend:
        faces: dict[str, Any] = {
            str(prefix): VolumeBackend(volume, on_exists=getattr(self._parts[prefix], "on_exists", "error"))
            for prefix, volume in volumes.items()
        }
        face = CompositeBackend(faces.pop(ROOT), faces)
        face.guard({prefix: guard for prefix, guard in self._guards.items() if prefix == ROOT or prefix in faces})
        return face

    def granting(self, name: str, granted: Sequence[AgentPath], *, trees: bool) -> CompositeBackend:
        """Return the agent face of a view with an approval, see `View.granting`. OSError: as `find`."""
        seen = self.seen(name)
        own = seen.shown.granting(granted, trees=trees)
        return self._face({prefix: RuledVolume(each.below, own, prefix) for prefix, each in seen.volumes.items()})

    def find(self, name: str) -> View:
        """Return a view. OSError: ENOENT, there is none of that name."""
        view = self.by_name.get(name)
        if view is None:
            known = ", ".join(self.by_name) or "none at all"
            raise OSError(errno.ENOENT, f"there is no view '{name}'; there are: {known}")
        return view

    def seen(self, name: str) -> SeenMount:
        """Return the mount as a view shows it. OSError: as `find`."""
        return self._seen[self.find(name).name]

    def is_way(self, name: str | None, path: AgentPath) -> bool:
        """Return True if there are routes below a path, as a view shows them; None is no view."""
        below = self._routes.prefixes_below(path)
        return bool(below) if name is None else any(prefix in self._seen[name].volumes for prefix in below)

    def volume(self, name: str | None, route: Route) -> Volume | None:
        """Return the volume of a route as a view shows it, None where the route is hidden. No name is no view."""
        return route.volume if name is None else self._seen[name].volumes.get(route.prefix)

    def faces(self) -> dict[str, CompositeBackend]:
        """Return the agent face of each view, by the path of its tree."""
        return {each.root: each.face for each in self._seen.values()}

    def split(self, path: str) -> tuple[str | None, str]:
        """Return the name of the view in whose tree a path lies, and the path there; else None, and the path."""
        if self.path is None or not isinstance(path, str):
            return None, path
        with contextlib.suppress(paths.PathError):  # the verb will refuse it
            path = paths.normalise(path)
        for name, each in self._seen.items():
            if is_below(path, each.root):
                return name, path[len(each.root) :] or ROOT
        return None, path

    def place(self, path: str, chosen: str | None) -> tuple[str | None, AgentPath]:
        """Return the view that a path is in, if any, and the normalised path there. PathError.

        Args:
            chosen: the view that a client has chosen, in which all its paths are; None for a client that names views by
                the paths of their trees.
        """
        name, inside = self.split(path) if chosen is None else (chosen, path)
        return name, paths.normalise(inside)


# -- mount points of views ---------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


class ViewMounts:
    """Mount points of views: `[views.NAME] mount = "/mnt/reviewer"`.

    Each is a bind mount of the view's tree, so its files are the same live ones. No way leads up past the root of a
    bind mount: `..` goes to the directory that it is mounted in, and for an open directory that was moved out of it the
    kernel refuses `..` (`path_connected()` in fs/namei.c). What else leads to the mount is in docs/views.md.

    They end with the mount, also when that is unmounted from outside: they would keep its file system alive.

    Args:
        mountpoint: of the mount itself.
        places: an empty directory for each view that has one, by the view's name.

    Raises:
        MountError: one is inside of another or of the mount, can't be mounted on, or this user can't make bind mounts.
    """

    def __init__(self, mountpoint: str, places: Mapping[str, str]) -> None:
        self._mountpoint = mountpoint
        self._places: dict[str, str] = {}
        self._bound: list[str] = []
        self._watch: UnmountWatch | None = None
        if places and os.geteuid() != 0:
            raise MountError(
                errno.EPERM, f"only root can give view '{next(iter(places))}' a mount point (a bind mount)"
            )
        for name, place in places.items():
            path, _ = mount_point.prepare(place)
            for other in (mountpoint, *self._places.values()):
                if is_below(path, other) or is_below(other, path):
                    raise MountError(
                        errno.EINVAL,
                        f"the mount point of view '{name}', '{path}', and '{other}' must not hold one another",
                    )
            self._places[name] = path

    def start(self, roots: Mapping[str, str]) -> None:
        """Mount all of them, once the mount answers.

        Args:
            roots: the directory of each view in the mount, by name.

        Raises:
            MountError: the kernel refused one; those before it are taken away.
        """
        for name, place in self._places.items():
            try:
                bind(self._mountpoint.rstrip("/") + roots[name], place)
            except OSError as error:
                self._unbind()
                why = f"view '{name}' can't be mounted on '{place}': {error.strerror}"
                raise MountError(error.errno or errno.EIO, why) from None
            self._bound.append(place)
        if self._bound:
            self._watch = UnmountWatch(self._mountpoint, self._unbind, "fusebackend-views")

    def close(self) -> None:
        """Take them away, before the mount. Twice is once."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        self._unbind()

    def _unbind(self) -> None:
        while self._bound:
            place = self._bound.pop()
            with contextlib.suppress(OSError):  # somebody has taken it away
                unbind(place)
                log.info("unmounted %s", place)
