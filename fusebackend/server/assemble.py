"""`assemble`: everything that belongs to one mount (`MountParts`), made from its settings and put together; and
`LiveMount`, the mount from its first request to its last.

It is the one place that knows all parts. `Mount` serves backends of its process by it, `cli.serve` those of a plan.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fusebackend.base import paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.config import MountPlan, kept_at
from fusebackend.control.server.control_server import ControlServer
from fusebackend.control.verbs import VERBS
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.linux.command import REFUSED, Command
from fusebackend.linux.mount_table import MountError
from fusebackend.protocol import Actor, ExecuteResponse
from fusebackend.protocol.scheme import mask
from fusebackend.server.approvals import Approvals
from fusebackend.server.mounted import MountedBackend
from fusebackend.server.recording import Recording
from fusebackend.server.rules import ViewMounts, Views, with_route_rules
from fusebackend.server.trees import (
    LogFiles,
    attach_branches,
    attach_log,
    attach_snapshots,
    fill,
    refuse_taken_by_file,
    refuse_taken_by_route,
)
from fusebackend.shell.shell import Shell
from fusebackend.trees.automatic import AutomaticSnapshots
from fusebackend.trees.branches import Branches
from fusebackend.trees.snapshots import Snapshots
from fusebackend.vfs import switches
from fusebackend.vfs.calls import request
from fusebackend.vfs.coherence.page_cache import KernelCache
from fusebackend.vfs.mounted_tree import FileSystem

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.fuse.session import Session
    from fusebackend.rules.rule import Operation
    from fusebackend.rules.view import View
    from fusebackend.server.guest import Guest
    from fusebackend.server.metrics import Metrics
    from fusebackend.vfs.junctions import Route

    Executor: TypeAlias = "Shell | Guest | NoCommands"
    """The place where commands run."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MountParts:
    """What a mount is made of, put together by `assemble`. A part that it lacks is None."""

    backend: CompositeBackend
    """What is mounted."""
    filesystem: FileSystem
    """Its mounted tree."""
    mountpoint: str
    """An absolute path; what stands for it where nothing is mounted."""
    is_mounted: bool = True
    """False if the verbs alone are served."""
    shell: Executor
    """Runs the commands of the mount."""
    default: str = ""
    """The default backend, for people: its URL or type."""
    runs_commands: bool = False
    """The default backend runs commands itself."""
    status: Callable[[], dict[str, Any]]
    """Gives what `fusebackend status --json` shows of the mount."""
    views: Views
    snapshots: Snapshots | None = None
    automatic: AutomaticSnapshots | None = None
    """Takes snapshots by itself, and before calls that may change something."""
    branches: Branches | None = None
    recording: Recording | None = None
    """Keeps the history of calls."""
    log_files: LogFiles | None = None
    approvals: Approvals
    """Has the changes that wait for one."""
    metrics: Metrics | None = None
    guards: Mapping[AgentPath, Any] = field(default_factory=dict)
    """The executors of routes that block, by prefix."""
    warnings: tuple[str, ...] = ()
    """For the user of the mount, a line each."""


LOCAL_SHELLS = frozenset(
    {
        ("fusebackend.backends.directory.backend", "LocalShellBackend"),
        ("deepagents.backends.local_shell", "LocalShellBackend"),
    }
)
"""Classes with an `execute` that is a plain shell of this machine, as its user: the sandbox takes its place in a
mount."""


def assemble(backend: CompositeBackend, plan: MountPlan) -> LiveMount:
    """Put a mount together. Nothing is mounted and nobody can call yet.

    Args:
        backend: what is mounted.
        plan: where, how, and what it keeps. Its mount point is an empty directory, as `point.prepare` gives it.

    Raises:
        MountError: the name of the trees directory is taken; or `default_view` can't bind commands.
        RuleError: there are rules for a route that is not there, or a view is invalid.
        OSError: the default backend runs commands, and can't be had; ENOENT, there is a mount point for a view that is
            not there; or ENOTSUP, the metrics need a package that is not installed.
    """
    settings, shown = plan.settings, {prefix: mask(url) for prefix, url in plan.urls.items()}
    kind = _session(plan)
    backend = with_route_rules(backend, settings.route_rules)
    filesystem = FileSystem.of(
        backend,
        ttl_s=settings.ttl_s,
        deadline_s=settings.deadline_s,
        limits=settings.limits,
        switches=switches.from_environment(),
        trees=settings.shown_trees,
    )

    def status() -> dict[str, Any]:
        return live.status()

    fill(filesystem, status)
    snapshots = attach_snapshots(filesystem)
    automatic = branches = None
    if not settings.read_only:
        branches = attach_branches(filesystem, snapshots, kept_at(plan.mountpoint, "branches"))
        automatic = AutomaticSnapshots(snapshots) if snapshots and settings.snapshots == "auto" else None
    guards = {route.prefix: route.executor for route in filesystem.tree.routes if route.executor.blocking}
    views = Views(filesystem, backend, settings.checked_views(), settings.default_view, guards)
    for name in settings.view_mounts:
        views.find(name)
    view_mounts = ViewMounts(plan.mountpoint, settings.view_mounts)
    refuse_taken_by_route(filesystem)
    default = shown.get(ROOT) or type(backend.mounts()[ROOT]).__name__
    shell = _executor(backend, filesystem, plan, default, views)
    warnings: list[str] = []
    recording = _recording(plan, filesystem, automatic, branches, warnings, shown)
    metrics = None
    if settings.metrics is not None:  # nothing of it is in the path of a request otherwise
        from fusebackend.server.metrics import opened

        metrics = opened(filesystem, status, settings.metrics)
    parts = MountParts(
        backend=backend,
        filesystem=filesystem,
        mountpoint=plan.mountpoint,
        is_mounted=plan.is_mounted,
        shell=shell,
        default=default,
        runs_commands=runs_commands(backend.mounts()[ROOT]),
        status=status,
        views=views,
        snapshots=snapshots,
        automatic=automatic,
        branches=branches,
        recording=recording,
        log_files=attach_log(filesystem, recording),
        approvals=Approvals(None if recording is None else recording.history, settings.approvals),
        metrics=metrics,
        guards=guards,
        warnings=tuple(warnings),
    )
    verbs = VERBS if metrics is None else metrics.measured_verbs(VERBS)
    face = MountedBackend(parts)
    control = ControlServer(face, read_only=settings.read_only, verbs=verbs, address=plan.socket)
    views.listen = control.open_view
    live = LiveMount(face, control, view_mounts, kind, plan)
    return live


def _session(plan: MountPlan) -> type[Session] | type[Unmounted]:
    """Return the kind of session. Where libfuse is missing, this fails before anything is open."""
    if not plan.is_mounted:
        return Unmounted
    from fusebackend.fuse.session import Session

    return Session


def _recording(
    plan: MountPlan,
    filesystem: FileSystem,
    automatic: AutomaticSnapshots | None,
    branches: Branches | None,
    warnings: list[str],
    urls: Mapping[str, str],
) -> Recording | None:
    """Open the history of calls, if there is one; None, and a line in `warnings`, if there can't be one. Calls in
    branches are not of the mount."""
    if plan.history is None:
        return None
    try:
        recording = Recording(plan.history, plan.mountpoint, filesystem, automatic, urls, plan.settings.log)
    except OSError as error:
        warnings.append(f"no history of calls is kept, so nothing can be undone: {error.strerror or error}")
        return None
    if branches is not None:
        recording.history.apart = branches.path  # before the first is attached
    return recording


def _executor(
    backend: CompositeBackend, filesystem: FileSystem, plan: MountPlan, default: str, views: Views
) -> Executor:
    """Decide where commands run: in the default backend if it has `execute` of its own (`guest.py`), else, and for
    `shell:`, which confines nothing, in the mount's sandbox (`shell/`). Where nothing is mounted, there is no sandbox:
    the default backend runs commands, or nothing does."""
    settings, runs = plan.settings, backend.mounts()[ROOT]
    is_guest = runs_commands(runs) if plan.is_mounted else has_execute(runs)
    if is_guest and views.default is not None:
        where = f"they run in {default}, outside of the mount"
        raise MountError(errno.ENOTSUP, f"default_view = '{views.default}' can't bind commands: {where}")
    if not runs_commands(runs):  # a container would be started to answer that
        refuse_taken_by_file(filesystem, default)
    if is_guest:
        from fusebackend.server.guest import Guest  # few mounts need it and its imports

        return Guest(backend, filesystem, plan)
    if not plan.is_mounted:
        return NoCommands(default)
    return Shell(filesystem, plan.mountpoint, settings.shell, views.by_name, views.default)


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


class LiveMount:
    """A backend, mounted. `run` serves it; `stop` ends it, from any thread.

    The session is the kernel's (`fuse/session.py`), or where nothing is mounted `Unmounted`; all else is the same.

    Attributes:
        face: its verbs, for the clients of its socket.
        warnings: messages for the user of the mount, a line each, once it answers.

    Args:
        plan: where, how, and what it keeps.
    """

    def __init__(
        self,
        face: MountedBackend,
        control: ControlServer,
        view_mounts: ViewMounts,
        kind: type[Session] | type[Unmounted],
        plan: MountPlan,
    ) -> None:
        parts = self.parts = face.parts
        self.filesystem = parts.filesystem
        self.warnings = list(parts.warnings)
        self.face = face
        self._control = control
        self._view_mounts = view_mounts
        self._plan = plan
        self._started_at = time.time()
        self._on_end: Callable[[], None] = lambda: None
        self._session = kind(parts.filesystem, plan, before_end=self._end)
        parts.filesystem.xattrs.status = lambda: json.dumps(self.status()).encode()
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
            self._view_mounts.start({name: parts.views.seen(name).root for name in parts.views.by_name})
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
            self.face.tidy()
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
            for part in (parts.metrics, parts.recording, parts.log_files):
                if part is not None:
                    part.close()

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
            inner = self.filesystem.names.path(route, node)
            if inner is None:
                return
            path = AgentPath(paths.join(route.prefix, paths.to_text(inner.strip(b"/"))))
        actor = Actor(uid=request.current().uid)
        if self.parts.recording is not None and self.parts.recording.is_open:
            actor = self.parts.recording.calls.current().actor
        self.parts.approvals.refused_by_kernel(view.name, path, actor, "read" if operation == "read" else "change")

    def status(self) -> dict[str, Any]:
        """Return what `fusebackend status --json` shows of the mount."""
        plan = self._plan
        control = {"socket": self._control.address, **self._control.counts()}
        history = None if self.parts.recording is None else self.parts.recording.describe()
        trees = self.filesystem.tree.trees_path
        measured = {} if self.parts.metrics is None else {"metrics": self.parts.metrics.url}
        return {
            **self._session.status(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "read_only": plan.settings.read_only,
            **({} if plan.log is None else {"log": plan.log}),
            "routes": self.filesystem.describe_routes({prefix: mask(url) for prefix, url in plan.urls.items()}),
            "trees": trees,
            "history": history,
            "execute": self.parts.shell.describe(),
            "control": control,
            **measured,
        }


# -- without a mount ---------------------------------------------------------------------------------------------

LOOK_S = 1.0
"""Python runs the handler of a signal that came as the main thread began to wait when the wait is over."""

WHY_NONE = (
    "nothing is mounted here, so commands run in the default backend, and {default} runs none: mount it, or give a "
    "default that has a shell, such as shell: or docker:"
)


class Unmounted:
    """In the place of `fuse.session.Session`, whose arguments it takes: a tree that is served without the kernel.

    Nothing here needs /dev/fuse, libfuse or pyfuse3: the verbs of the control socket reach the main tree, snapshots,
    branches, views and the log by themselves. Changes are recorded and watched as in a mount. `run` takes the calling
    thread until `stop`, which the handler of a signal may call.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        plan: MountPlan,
        *,
        before_end: Callable[[], None],
    ) -> None:
        self.filesystem = filesystem
        self.place = plan.mountpoint
        self._before_end = before_end
        self._ends: queue.SimpleQueue[bool] = queue.SimpleQueue()  # an event would lock out a handler of a signal

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until stopped, and make all volumes durable. The volumes are not closed.

        Raises:
            OSError: a volume could not be made durable at the end.
        """
        try:
            self.filesystem.attach(KernelCache())
            if on_ready is not None:
                on_ready()
            is_stopped = False
            while not is_stopped:
                with contextlib.suppress(queue.Empty):
                    is_stopped = self._ends.get(timeout=LOOK_S)
            self._before_end()
        finally:
            self.filesystem.detach()
            self.filesystem.close()

    def stop(self) -> None:
        """End `run`. For any thread and handler of a signal, and harmless when it has ended."""
        self._ends.put(True)

    def status(self) -> dict[str, Any]:
        """As `Session.status`, and `place` for the mount point, which is None."""
        return {"mountpoint": None, "place": self.place, "known_inodes": 0, "open_files": 0, "counters": {}}


class NoCommands:
    """The place of commands where there is none: the default backend can't run them.

    Args:
        default: its URL or type.
    """

    def __init__(self, default: str) -> None:
        self._why = WHY_NONE.format(default=default)

    def start(self) -> list[str]:
        """Return no messages."""
        return []

    def execute(self, command: Command) -> ExecuteResponse:
        """Refuse a command, with the reason."""
        return ExecuteResponse(output=f"Error: {self._why}", exit_code=REFUSED)

    def describe(self) -> dict[str, Any]:
        """For `status`, as `Shell.describe`."""
        return {"where": "nowhere: nothing is mounted", "sandbox": "default", "unseen_routes": {}, "running": 0}

    def close(self) -> None:
        """There is nothing to end."""
