"""`ViewedMount`: a live mount through one of its views, for a client that has chosen it.

Paths are those of the mount. The verbs of files go to the agent face of the view (`rules.py`), commands run in its
tree, and `watch` gives what may be read. Verbs that show or change what other readers have (the log, undo, snapshots,
branches) are refused.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusebackend.base import paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.linux.command import Command
from fusebackend.protocol import SERVED, ExecuteResponse, FileEvent
from fusebackend.server.mounted import MountedBackend

if TYPE_CHECKING:
    from fusebackend.vfs.watch.feed import Watch


class ViewedMount(MountedBackend):
    """See the module's docstring. It shares all parts of the mount.

    Args:
        mount: the mount itself.
        name: of the view.

    Raises:
        OSError: ENOENT, there is no such view.
    """

    def __init__(self, mount: MountedBackend, name: str) -> None:
        views = mount._views
        face = views.face(name)
        # Without what its verbs must not reach: the snapshots, the branches, the measures.
        parts = replace(mount.parts, snapshots=None, branches=None, metrics=None)
        super().__init__(replace(parts, backend=face, status=mount.status))
        self._root = views.root(name)
        self._view_name = name
        self._rules = views.find(name).without(self.filesystem.tree.trees_path)
        self._for = lambda *_: face

    def viewed(self, name: str) -> MountedBackend:
        if name != self._view_name:
            raise OSError(errno.EPERM, f"this connection sees the mount through view '{self._view_name}', for good")
        return self

    def run_command(self, command: Command) -> ExecuteResponse:
        inside = paths.normalise(command.cwd)
        cwd = self._root if inside == ROOT else AgentPath(self._root + inside)
        return super().run_command(replace(command, cwd=cwd))

    def status(self) -> dict[str, Any]:
        """Return what the view's reader may know of the mount."""
        status = super().status()
        shown = {"version": status.get("version"), "mountpoint": status.get("mountpoint")}
        return {**shown, "trees": None, "view": self._view_name}

    def watch(self, path: str = "/") -> Watch:
        return ViewedWatch(super().watch(path), self._readable)  # type: ignore[return-value]

    def _readable(self, event: FileEvent) -> FileEvent | None:
        """Return an event as far as the view shows it: a move from or to what it does not show is a beginning or an
        end."""
        came = event.moved_from is None or self._shows(event.moved_from)
        stays = self._shows(event.path)
        if stays and came:
            return event
        if event.moved_from is None or not (stays or came):
            return None
        if event.kind == "exchanged":
            return replace(event, kind="unknown", path=event.path if stays else event.moved_from, moved_from=None)
        if stays:
            return replace(event, kind="created", moved_from=None)
        return replace(event, kind="deleted", path=event.moved_from, moved_from=None)

    def _shows(self, path: str) -> bool:
        return self._rules.decide("read", path.rstrip("/") or ROOT) == "allow"


def _refused(verb: str) -> Callable[..., Any]:
    def refuse(self: ViewedMount, *_: Any, **__: Any) -> Any:
        raise OSError(errno.EPERM, f"a view has no '{verb}': it is about what all readers have")

    return refuse


for _verb in SERVED.values():
    if not _verb.in_view:
        setattr(ViewedMount, _verb.name, _refused(_verb.name))
ViewedMount.diff_pieces = _refused("diff")  # type: ignore[method-assign]


class ViewedWatch:
    """The events of a `Watch` that a view shows. Its methods are those of `Watch`."""

    def __init__(self, watch: Watch, shown: Callable[[FileEvent], FileEvent | None]) -> None:
        self._watch = watch
        self._shown = shown
        self.path = watch.path

    def get(self, timeout_s: float | None = None) -> FileEvent | None:
        """As `Watch.get`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            event = self._watch.get(left)
            shown = None if event is None else self._shown(event)
            if event is None or shown is not None:
                return shown

    @property
    def closed(self) -> bool:
        return self._watch.closed

    def close(self) -> None:
        self._watch.close()

    def __iter__(self) -> Iterator[FileEvent]:
        while (event := self.get()) is not None:
            yield event
