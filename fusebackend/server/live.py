"""`LiveMount`: a mount that `assemble` has put together, from its first request to its last.

The session is the kernel's (`mount/session.py`), or where nothing is mounted `unmounted.py`; all else is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fusebackend.base import paths
from fusebackend.base.paths import AgentPath
from fusebackend.control.server.control_server import ControlServer
from fusebackend.mount.options import MountOptions
from fusebackend.protocol import Actor
from fusebackend.server.trees import refuse_taken_by_file
from fusebackend.server.unmounted import Unmounted
from fusebackend.server.view_mounts import ViewMounts
from fusebackend.vfs.calls import request

if TYPE_CHECKING:
    from fusebackend.mount.session import Session
    from fusebackend.rules.rule import Operation
    from fusebackend.rules.view import View
    from fusebackend.server.mounted import MountedBackend
    from fusebackend.vfs.junctions import Route

log = logging.getLogger(__name__)


class LiveMount:
    """A backend, mounted. `run` serves it; `stop` ends it, from any thread.

    Attributes:
        warnings: messages for the user of the mount, a line each, once it answers.
    """

    def __init__(
        self,
        face: MountedBackend,
        control: ControlServer,
        view_mounts: ViewMounts,
        kind: type[Session] | type[Unmounted],
        options: MountOptions,
    ) -> None:
        parts = self.parts = face.parts
        self.filesystem = parts.filesystem
        self.warnings = list(parts.warnings)
        self._face = face
        self._control = control
        self._view_mounts = view_mounts
        self._on_end: Callable[[], None] = lambda: None
        self._session = kind(parts.filesystem, parts.mountpoint, options, describe=self._describe, before_end=self._end)
        self.status = self._session.status
        if parts.metrics is not None and not isinstance(self._session, Unmounted):
            parts.metrics.measure_kernel(self._session.operations)
        parts.filesystem.tree.on_interrupt = self._interrupted

    def run(self, on_ready: Callable[[], None] | None = None, on_end: Callable[[], None] = lambda: None) -> None:
        """As `Session.run`. The control socket listens before there is a mount that names it.

        Args:
            on_end: called, perhaps more than once, when it begins to end, before anything is stored. Where the mount
                was taken away from outside, it is called after that.
        """
        self._on_end = on_end
        parts = self.parts

        def ready() -> None:
            self.warnings = [*self.warnings, *parts.shell.start()]
            if parts.runs_commands:  # asked earlier, a container would start before the routes are bound in it
                refuse_taken_by_file(self.filesystem, parts.default)
            self._view_mounts.start({name: parts.views.root(name) for name in parts.views.by_name})
            for line in self.warnings:
                log.warning("%s", line)
            if parts.automatic is not None:
                parts.automatic.start()
            if on_ready is not None:
                on_ready()

        parts.backend.guard(parts.guards)
        if parts.branches is not None:
            parts.branches.open()
            if parts.recording is not None:
                parts.recording.opened_branches(parts.branches.names)
            self._face.tidy()
        self._listen()
        try:
            if parts.metrics is not None:
                parts.metrics.listen()
            self._session.run(ready)
        finally:
            self._end()
            if parts.branches is not None:
                if parts.recording is not None:
                    parts.recording.close_branches()
                parts.branches.close()
            parts.backend.guard({})
            if parts.metrics is not None:
                parts.metrics.close()
            if parts.recording is not None:
                parts.recording.close()
            if parts.log_files is not None:
                parts.log_files.close()

    def stop(self) -> None:
        """End `run`: unmount, lazily if files are still open. Thread-safe, and harmless when it has ended."""
        self._session.stop()

    def _listen(self) -> None:
        try:
            address = self._control.start()
        except OSError as error:
            log.warning("no control socket: %s; the files are there, the verbs are not", error.strerror or error)
            return
        self.filesystem.xattrs.socket = address.encode("utf-8", "surrogateescape")

    def _end(self) -> None:
        """Commands first: they have files of the mount open, and no verb may start another one."""
        self._on_end()
        self.parts.approvals.close()
        self._control.close()
        self._view_mounts.close()
        self.parts.shell.close()
        if self.parts.automatic is not None:
            self.parts.automatic.stop()

    def _interrupted(self, route: Route, view: View, path: AgentPath | None, node: int, operation: Operation) -> None:
        """A system call was refused in a view where a verb could have asked for an approval."""
        if path is None:
            inner = self.filesystem.names.last(route, node)
            if inner is None:
                return
            path = AgentPath(paths.join(route.prefix, paths.to_text(inner.strip(b"/"))))
        actor = Actor(uid=request.current().uid)
        if self.parts.recording is not None and self.parts.recording.is_open:
            actor = self.parts.recording.calls.current().actor
        self.parts.approvals.refused_by_kernel(view.name, path, actor, "read" if operation == "read" else "change")

    def _describe(self) -> dict[str, Any]:
        control = {"socket": self._control.address, **self._control.counts()}
        history = None if self.parts.recording is None else self.parts.recording.describe()
        trees = self.filesystem.tree.trees_path
        measured = {} if self.parts.metrics is None else {"metrics": self.parts.metrics.url}
        return {
            "trees": trees,
            "history": history,
            "execute": self.parts.shell.describe(),
            "control": control,
            **measured,
        }
