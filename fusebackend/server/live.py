"""`LiveMount`: everything that belongs to one mount, put together: tree, session, executor and control socket.

The session is the kernel's (`mount/session.py`), or where nothing is mounted `unmounted.py`; all else is the same.

`server.api.Mount` and the server of `fusebackend mount` both are one of these and their way of waiting for it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fusebackend.base import paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.config import branches_directory
from fusebackend.control.server.control_server import ControlServer
from fusebackend.control.verbs import VERBS
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.linux.mount_table import MountError
from fusebackend.mount.options import MountOptions
from fusebackend.protocol import Actor
from fusebackend.server.approvals import Approvals
from fusebackend.server.mounted import MountedBackend
from fusebackend.server.recording import Recording
from fusebackend.server.rules import Views, with_route_rules
from fusebackend.server.trees import (
    attach_branches,
    attach_log,
    attach_snapshots,
    fill,
    refuse_taken_by_file,
    refuse_taken_by_route,
)
from fusebackend.server.unmounted import NoCommands, Unmounted
from fusebackend.server.view_mounts import ViewMounts
from fusebackend.shell import Shell, ShellOptions
from fusebackend.trees.automatic import AutomaticSnapshots
from fusebackend.trees.branches import Branches
from fusebackend.vfs import switches
from fusebackend.vfs.calls import request
from fusebackend.vfs.mounted_tree import FileSystem

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.config import MetricsOptions
    from fusebackend.history.masking import LogOptions
    from fusebackend.history.requests import ApprovalOptions
    from fusebackend.mount.session import Session
    from fusebackend.rules.rule import Operation, RouteRules
    from fusebackend.rules.view import View
    from fusebackend.server.guest import Guest
    from fusebackend.server.metrics import Metrics
    from fusebackend.vfs.calls.route_limits import RouteLimits
    from fusebackend.vfs.junctions import Route
    from fusebackend.vfs.trees_options import TreesOptions

log = logging.getLogger(__name__)

LOCAL_SHELLS = frozenset(
    {
        ("fusebackend.backends.directory.backend", "LocalShellBackend"),
        ("deepagents.backends.local_shell", "LocalShellBackend"),
    }
)
"""Classes with an `execute` that is a plain shell of this machine, as its user: the sandbox takes its place in a
mount."""


class LiveMount:
    """A backend, mounted. `run` serves it; `stop` ends it, from any thread.

    Args:
        backend: the backend to mount.
        mountpoint: an empty directory, as `point.prepare` gives it.
        options: how to mount.
        ttl_s, deadline_s, limits, trees: as for `FileSystem`.
        shell: how `execute` runs commands in the mount.
        history: the directory of the history of calls; None keeps none.
        route_rules: rules of routes, by prefix.
        views: by name.
        default_view: the view of commands and clients that name none.
        view_mounts: mount points of views, by name.
        log_options: what it keeps of calls.
        approvals: how long is waited for them.
        metrics: what is measured; nothing when None.
        socket: the address of the control socket; one of its own in the runtime directory when None.
        is_mounted: False serves the verbs alone; `mountpoint` then only stands for what it keeps between runs.
        takes_snapshots: the mount takes snapshots by itself (`AutomaticSnapshots`), unless it is read-only.

    Attributes:
        warnings: messages for the user of the mount, a line each, once it answers.

    Raises:
        MountError: the name of the trees directory is taken.
        RuleError: there are rules for a route that is not there.
        OSError: the default backend runs commands, and can't be had; ENOENT, there is a mount point for a view that is
            not there; or ENOTSUP, the metrics need a package that is not
            installed.
    """

    def __init__(
        self,
        backend: CompositeBackend,
        mountpoint: str,
        options: MountOptions,
        *,
        ttl_s: float,
        deadline_s: float,
        limits: Mapping[AgentPath, RouteLimits] | None = None,
        shell: ShellOptions | None = None,
        trees: TreesOptions | None = None,
        takes_snapshots: bool = False,
        history: str | None = None,
        route_rules: Mapping[AgentPath, RouteRules] | None = None,
        views: Mapping[str, View] | None = None,
        default_view: str | None = None,
        view_mounts: Mapping[str, str] | None = None,
        log_options: LogOptions | None = None,
        approvals: ApprovalOptions | None = None,
        metrics: MetricsOptions | None = None,
        socket: str | None = None,
        is_mounted: bool = True,
    ) -> None:
        self._is_mounted = is_mounted
        self._on_end: Callable[[], None] = lambda: None
        backend = with_route_rules(backend, route_rules or {})
        self.filesystem = FileSystem.of(
            backend,
            ttl_s=ttl_s,
            deadline_s=deadline_s,
            limits=limits,
            switches=switches.from_environment(),
            trees=trees,
        )
        self.backend = self._backend = backend
        self._guards = {
            route.prefix: route.executor for route in self.filesystem.tree.routes if route.executor.blocking
        }
        self._session = self._session_of(mountpoint, options)
        self.status = self._session.status
        fill(self.filesystem, self.status)
        self.snapshots = attach_snapshots(self.filesystem)
        self.branches: Branches | None = None
        if not options.read_only:
            self.branches = attach_branches(self.filesystem, self.snapshots, branches_directory(mountpoint))
        self.views = Views(self.filesystem, backend, views or {}, default_view, self._guards)
        for name in view_mounts or {}:
            self.views.find(name)
        self._view_mounts = ViewMounts(mountpoint, view_mounts or {})
        refuse_taken_by_route(self.filesystem)
        self._runs_commands = runs_commands(backend.mounts()[ROOT])
        self._default = options.description.get("urls", {}).get(ROOT) or type(backend.mounts()[ROOT]).__name__
        runs_there = self._runs_commands if is_mounted else has_execute(backend.mounts()[ROOT])
        if runs_there and default_view is not None:
            where = f"they run in {self._default}, outside of the mount"
            why = f"default_view = '{default_view}' can't bind commands: {where}"
            raise MountError(errno.ENOTSUP, why)
        if not self._runs_commands:
            refuse_taken_by_file(self.filesystem, self._default)
        self.warnings: list[str] = []
        self.shell = self._executor(mountpoint, options, shell or ShellOptions())
        self.automatic: AutomaticSnapshots | None = None
        if takes_snapshots and self.snapshots is not None and not options.read_only:
            self.automatic = AutomaticSnapshots(self.snapshots)
        self.recording: Recording | None = None
        if history is not None:
            urls = options.description.get("urls", {})
            self.recording = Recording.opened(
                history, mountpoint, self.filesystem, self.automatic, self.warnings, urls, log_options
            )
            if self.recording is not None and self.branches is not None:
                self.recording.apart(self.branches.path)
        self.filesystem.tree.on_interrupt = self._interrupted
        self.approvals = Approvals(None if self.recording is None else self.recording.history, approvals)
        self.log_files = attach_log(self.filesystem, self.recording)
        self.metrics: Metrics | None = None
        verbs = VERBS
        if metrics is not None:  # nothing of it is in the path of a request otherwise
            from fusebackend.server.metrics import opened

            self.metrics = opened(self.filesystem, self.status, metrics)
            if not isinstance(self._session, Unmounted):
                self.metrics.measure_kernel(self._session.operations)
            verbs = self.metrics.measured_verbs(VERBS)
        self._face = mounted = MountedBackend(
            backend,
            self.filesystem,
            mountpoint,
            self.shell,
            self.status,
            self.snapshots,
            self.automatic,
            self.branches,
            self.recording,
            self.views,
            self.metrics,
            self.approvals,
            is_mounted=is_mounted,
        )
        self._control = ControlServer(mounted, read_only=options.read_only, verbs=verbs, address=socket)
        self.views.listen = self._control.open_view

    def _session_of(self, mountpoint: str, options: MountOptions) -> Session | Unmounted:
        if not self._is_mounted:
            return Unmounted(self.filesystem, mountpoint, options, describe=self._describe, before_end=self._end)
        from fusebackend.mount.session import Session  # it needs libfuse

        return Session(self.filesystem, mountpoint, options, describe=self._describe, before_end=self._end)

    def _executor(self, mountpoint: str, options: MountOptions, shell: ShellOptions) -> Shell | Guest | NoCommands:
        """Decide where commands run: in the default backend if it has `execute` of its own (`guest.py`), else, and for
        `shell:`, which confines nothing, in the mount's sandbox (`shell/`). Where nothing is mounted, there is no
        sandbox: the default backend runs commands, or nothing does."""
        if not self._is_mounted and not has_execute(self._backend.mounts()[ROOT]):
            return NoCommands(self._default)
        if self._is_mounted and not self._runs_commands:
            return Shell(self.filesystem, mountpoint, shell, self.views.by_name, self.views.default)
        from fusebackend.server.guest import Guest  # few mounts need it and its imports

        return Guest(
            self._backend,
            self.filesystem,
            mountpoint,
            shell,
            allow_other=options.allow_other,
            read_only=options.read_only,
            is_mounted=self._is_mounted,
        )

    def run(self, on_ready: Callable[[], None] | None = None, on_end: Callable[[], None] = lambda: None) -> None:
        """As `Session.run`. The control socket listens before there is a mount that names it.

        Args:
            on_end: called, perhaps more than once, when it begins to end, before anything is stored. Where the mount
                was taken away from outside, it is called after that.
        """
        self._on_end = on_end

        def ready() -> None:
            self.warnings = [*self.warnings, *self.shell.start()]
            if self._runs_commands:  # asked earlier, a container would start before the routes are bound in it
                refuse_taken_by_file(self.filesystem, self._default)
            self._view_mounts.start({name: self.views.root(name) for name in self.views.by_name})
            for line in self.warnings:
                log.warning("%s", line)
            if self.automatic is not None:
                self.automatic.start()
            if on_ready is not None:
                on_ready()

        self._backend.guard(self._guards)
        if self.branches is not None:
            self.branches.open()
            if self.recording is not None:
                self.recording.opened_branches(self.branches.names)
            self._face.tidy()
        self._listen()
        try:
            if self.metrics is not None:
                self.metrics.listen()
            self._session.run(ready)
        finally:
            self._end()
            if self.branches is not None:
                if self.recording is not None:
                    self.recording.close_branches()
                self.branches.close()
            self._backend.guard({})
            if self.metrics is not None:
                self.metrics.close()
            if self.recording is not None:
                self.recording.close()
            if self.log_files is not None:
                self.log_files.close()

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
        self.approvals.close()
        self._control.close()
        self._view_mounts.close()
        self.shell.close()
        if self.automatic is not None:
            self.automatic.stop()

    def _interrupted(self, route: Route, view: View, path: AgentPath | None, node: int, operation: Operation) -> None:
        """A system call was refused in a view where a verb could have asked for an approval."""
        if path is None:
            inner = self.filesystem.names.last(route, node)
            if inner is None:
                return
            path = AgentPath(paths.join(route.prefix, inner.strip("/")))
        actor = Actor(uid=request.current().uid)
        if self.recording is not None and self.recording.is_open:
            actor = self.recording.calls.current().actor
        self.approvals.refused_by_kernel(view.name, path, actor, "read" if operation == "read" else "change")

    def _describe(self) -> dict[str, Any]:
        control = {"socket": self._control.address, **self._control.counts()}
        history = None if self.recording is None else self.recording.describe()
        trees = self.filesystem.tree.trees_path
        measured = {} if self.metrics is None else {"metrics": self.metrics.url}
        return {"trees": trees, "history": history, "execute": self.shell.describe(), "control": control, **measured}


def has_execute(default: Any) -> bool:
    """Return True if a backend has an `execute` of its own."""
    return AgentFace(default, "The default backend").verb("execute") is not None


def runs_commands(default: Any) -> bool:
    """Return True if a backend has an `execute` of its own, other than a plain shell of this machine."""
    if not has_execute(default):
        return False
    owner = next((kind for kind in type(default).__mro__ if "execute" in vars(kind)), None)
    in_instance = "execute" in getattr(default, "__dict__", {})
    return in_instance or owner is None or (owner.__module__, owner.__qualname__) not in LOCAL_SHELLS
