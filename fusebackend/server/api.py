"""`mount()`: backends of this process as a directory, for as long as a `with` block lasts.

The mount is served by a thread of its own (`Session.run`), so this process may use it like any other: every system call
on it lets go of Python's lock. Only one thing must not be done in the serving process: to fault in a memory mapping of
a file on the mount would block it for ever. pyfuse3 holds one session per process, hence one mount at a time.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fusebackend.base.paths import ROOT, AgentPath, normalise_prefix
from fusebackend.linux import mount_point as point
from fusebackend.linux.mount_table import MountError
from fusebackend.protocol import DEFAULT_TTL_S, BackendLike
from fusebackend.server.mounted import MountedBackend

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.config import HistoryWord, MetricsOptions, SnapshotsWord
    from fusebackend.history.masking import LogOptions
    from fusebackend.history.requests import ApprovalOptions
    from fusebackend.rules.rule import RouteRules
    from fusebackend.rules.view import View
    from fusebackend.shell import ShellOptions
    from fusebackend.vfs.calls.route_limits import RouteLimits
    from fusebackend.vfs.trees_options import Shown, TreesOptions

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""How long the kernel and the backends may take until the mount answers."""

END_TIMEOUT_S = 60.0
"""How long storing everything may take at the end."""


def mount(
    backend: BackendLike,
    mountpoint: str | os.PathLike[str],
    *,
    read_only: bool = False,
    allow_other: bool = False,
    ttl_s: float = DEFAULT_TTL_S,
    deadline_s: float = 30.0,
    limits: Mapping[str, RouteLimits] | None = None,
    options: Iterable[str] = (),
    runtime: Any = None,
    shell: ShellOptions | None = None,
    trees: Shown | None = None,
    trees_name: str | None = None,
    snapshots: SnapshotsWord | None = None,
    history: HistoryWord | None = None,
    route_rules: Mapping[str, RouteRules] | None = None,
    views: Mapping[str, Iterable[Any]] | None = None,
    default_view: str | None = None,
    view_mounts: Mapping[str, str | os.PathLike[str]] | None = None,
    log: LogOptions | None = None,
    approvals: ApprovalOptions | None = None,
    metrics: MetricsOptions | None = None,
) -> Mount:
    """Mount a backend of this process on an empty directory.

        with fusebackend.mount(InMemoryBackend(), "/mnt/agent") as files:
            files.write("/hello.txt", "hello\\n")

    Args:
        backend: any backend, a `CompositeBackend` for several; it stays yours, and is not closed at the end.
        mountpoint: an empty directory. A dead mount of an earlier process there is cleared away.
        read_only: nothing can be changed through the mount; the `Mount`'s own methods still can.
        allow_other: users other than this one may come in, as far as modes allow.
        ttl_s: seconds for which the kernel caches files of a backend that others change unseen.
        deadline_s: seconds after which a call into a backend that may wait (a network) ends with ETIMEDOUT.
        limits: other limits for single routes, by prefix (`fusebackend.vfs.calls.route_limits.RouteLimits`); `/` is the
            default.
        options: `-o` words, such as `noexec`.
        runtime: for a backend factory (`lambda runtime: StateBackend(runtime)`, or a class): its argument.
        shell: how `execute` runs commands in the mount (`fusebackend.shell.ShellOptions`): sandbox, network, limits.
        trees: how the mount has its own directory `/.fusebackend`: `"hidden"` (the default), `"visible"` in listings of
            the root, or `"off"`.
        trees_name: another name of that directory.
        snapshots: `"auto"` has the mount take snapshots by itself, every 10 s while there are changes, and delete old
            ones; `"manual"` (the default) takes those that are asked for.
        history: `"on"` keeps for a day which call changed what, and the bytes that it replaced, below
            `$XDG_STATE_HOME/fusebackend`; `"off"` is the default.
        route_rules: rules of single routes for every reader, by prefix (`fusebackend.rules.rule.RouteRules`); `/` is
            the default.
        views: lists of rules by name. A rule is a mapping with `operations`, `paths` and `mode`, or a
            `FilesystemPermission` of deepagents; docs/views.md has the rest.
        default_view: the name of the view of commands, and of clients that name none.
        view_mounts: an empty directory for each view that is to have a mount point of its own, by name. Only root can
            make these.
        log: what it keeps of commands (`fusebackend.history.masking.LogOptions`).
        approvals: how long is waited for them (`fusebackend.history.requests.ApprovalOptions`); docs/approvals.md.
        metrics: measure requests and verbs, and where Prometheus can ask (`fusebackend.config.MetricsOptions`).

    Raises:
        MountError: the directory can't be mounted on, this process has a mount already, or the name of the mount's own
            directory is taken.
        ValueError: an option is unknown, or its value is invalid.
        TypeError: `backend` is a factory and there is no `runtime`, or it is no backend at all.
    """
    from fusebackend.config import history_directory, keeps_history, parse_words, takes_snapshots, trees_options
    from fusebackend.rules.view import checked_views

    words = parse_words(list(options))
    has_history = keeps_history(words.history or history or "off") and not (read_only or words.read_only)
    kind: type[Mount] = Mount
    if metrics is not None:
        from fusebackend.server.metrics import with_measured_verbs

        kind = with_measured_verbs(Mount)
    return kind(
        _composite(backend, runtime),
        mountpoint,
        read_only=read_only or bool(words.read_only),
        allow_other=allow_other or bool(words.allow_other),
        ttl_s=ttl_s if words.ttl_s is None else words.ttl_s,
        deadline_s=deadline_s if words.deadline_s is None else words.deadline_s,
        limits=_by_prefix(limits or {}),
        may_keep_awake=words.may_keep_awake,
        words=words.libfuse,
        shell=shell,
        trees=trees_options(words.trees or trees, words.trees_name or trees_name),
        takes_snapshots=takes_snapshots(words.snapshots or snapshots or "manual"),
        history=history_directory if has_history else None,
        route_rules=_by_prefix(route_rules or {}),
        views=checked_views(views or {}, default_view),
        default_view=default_view,
        view_mounts={name: os.path.abspath(place) for name, place in (view_mounts or {}).items()},
        log_options=log,
        approval_options=approvals,
        metrics=metrics,
    )


def _composite(backend: Any, runtime: Any) -> CompositeBackend:
    """The backend at the root of a tree, with every factory in it called."""
    from fusebackend.composite.backend import CompositeBackend, resolve
    from fusebackend.dialects.agent_face import has_agent_face, is_factory, is_named_factory

    if is_named_factory(backend):
        backend = resolve(backend, runtime)
    if is_factory(backend):
        if runtime is None:
            name = getattr(backend, "__name__", type(backend).__name__)
            raise TypeError(f"'{name}' makes backends and is none: give mount() a runtime= to call it with, or call it")
    elif not has_agent_face(backend):
        raise TypeError(f"a {type(backend).__name__} is no backend: it can't list or fetch files")
    composite = backend if isinstance(backend, CompositeBackend) else CompositeBackend(backend)
    return composite if runtime is None else composite.resolve(runtime)


T = TypeVar("T")


def _by_prefix(said: Mapping[str, T]) -> dict[AgentPath, T]:
    """Raises `PathError` for a prefix that is none."""
    return {ROOT if prefix == ROOT else normalise_prefix(prefix): given for prefix, given in said.items()}


class Mount(MountedBackend):
    """A mount of this process, and its files through the agent face: every verb goes to the backend it serves.

    `execute` runs where the default backend runs commands, else in a sandbox whose root is the mount; it sees every
    route at the path that the other verbs use, but those that `status` names. Made by `fusebackend.mount`.
    Leaving the `with` block, or `close`, unmounts; at the end of the interpreter that is done too. The file verbs go on
    working afterwards, for the backend is still there.
    """

    _current: Mount | None = None
    _guard = threading.Lock()

    def __init__(
        self,
        backend: CompositeBackend,
        mountpoint: str | os.PathLike[str],
        *,
        read_only: bool,
        allow_other: bool,
        ttl_s: float,
        deadline_s: float,
        limits: Mapping[AgentPath, RouteLimits],
        may_keep_awake: bool,
        words: tuple[str, ...],
        shell: ShellOptions | None,
        trees: TreesOptions,
        takes_snapshots: bool,
        history: Callable[[str], str] | None,
        route_rules: Mapping[AgentPath, RouteRules],
        views: Mapping[str, View],
        default_view: str | None,
        view_mounts: Mapping[str, str],
        log_options: LogOptions | None,
        approval_options: ApprovalOptions | None,
        metrics: MetricsOptions | None,
    ) -> None:
        self._claim()
        try:
            from fusebackend.mount.options import MountOptions
            from fusebackend.server.live import LiveMount

            point.check_system(allow_other=allow_other)
            self.mountpoint = point.prepare(mountpoint).path
            options = MountOptions(allow_other, read_only, may_keep_awake, words)
            self._live = LiveMount(
                backend,
                self.mountpoint,
                options,
                ttl_s=ttl_s,
                deadline_s=deadline_s,
                limits=limits,
                shell=shell,
                trees=trees,
                takes_snapshots=takes_snapshots,
                history=None if history is None else history(self.mountpoint),
                route_rules=route_rules,
                views=views,
                default_view=default_view,
                view_mounts=view_mounts,
                log_options=log_options,
                approvals=approval_options,
                metrics=metrics,
            )
            live = self._live
            super().__init__(
                live.backend,
                live.filesystem,
                self.mountpoint,
                live.shell,
                live.status,
                live.snapshots,
                live.automatic,
                live.branches,
                live.recording,
                live.views,
                live.metrics,
                live.approvals,
            )
            self._wakeup = threading.Event()
            self._ready = False
            self._error: BaseException | None = None
            self._thread = threading.Thread(target=self._run, name="fusebackend-mount", daemon=True)
            self._thread.start()
            self._wait_until_ready()
        except BaseException:
            self._release()
            raise
        atexit.register(self._close_at_exit)

    # -- life --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Unmount, and return when everything is stored. Twice is once.

        Raises:
            MountError: it took longer than a minute.
            OSError: something could not be stored; or the error that ended the mount.
        """
        self._live.stop()
        self._thread.join(END_TIMEOUT_S)
        if self._thread.is_alive():
            raise MountError(errno.ETIMEDOUT, f"'{self.mountpoint}' is still storing after {END_TIMEOUT_S:.0f} s")
        self._release()
        atexit.unregister(self._close_at_exit)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception:  # the error that is under way says more
            log.exception("ending the mount on %s failed as well", self.mountpoint)

    def _claim(self) -> None:
        with Mount._guard:
            if Mount._current is not None:
                raise MountError(
                    errno.EBUSY,
                    f"this process has a mount already, on '{Mount._current.mountpoint}', and pyfuse3 can hold only "
                    "one: give both backends to one CompositeBackend, close the first, or mount the second from "
                    "another process ('fusebackend mount')",
                )
            self.mountpoint = "?"
            Mount._current = self

    def _release(self) -> None:
        with Mount._guard:
            if Mount._current is self:
                Mount._current = None

    def _run(self) -> None:
        try:
            self._live.run(self._announce)
        except BaseException as error:  # raised again by `_wait_until_ready` or `close`
            self._error = error
        finally:
            self._wakeup.set()

    def _announce(self) -> None:
        self._ready = True
        self._wakeup.set()

    def _wait_until_ready(self) -> None:
        try:
            answered = self._wakeup.wait(START_TIMEOUT_S)
        except BaseException:  # Ctrl-C
            self._abandon()
            raise
        if self._error is not None:
            raise self._error
        if not answered or not self._ready:
            self._abandon()
            raise MountError(errno.ETIMEDOUT, f"'{self.mountpoint}' did not answer within {START_TIMEOUT_S:.0f} s")

    def _abandon(self) -> None:
        self._live.stop()
        self._thread.join(5.0)

    def _close_at_exit(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
