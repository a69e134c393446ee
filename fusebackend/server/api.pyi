"""Made by scripts/declared.py: `mount()` as `MountSettings` declares it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fusebackend.config import MetricsOptions
from fusebackend.history.masking import LogOptions
from fusebackend.history.requests import ApprovalOptions
from fusebackend.protocol import BackendLike
from fusebackend.rules.rule import RouteRules
from fusebackend.server.in_process import Mount
from fusebackend.shell.options import ShellOptions
from fusebackend.vfs.options import RouteLimits

def mount(
    backend: BackendLike,
    mountpoint: str | os.PathLike[str],
    *,
    runtime: Any = None,
    read_only: bool = False,
    allow_other: bool = False,
    ttl_s: float = 1.0,
    deadline_s: float = 30.0,
    idle: Literal["sleep", "poll"] | None = "sleep",
    trees: Literal["hidden", "visible", "off"] | None = "hidden",
    trees_name: str | None = ".fusebackend",
    snapshots: Literal["auto", "manual"] | None = "manual",
    history: Literal["on", "off"] | None = "off",
    options: Sequence[str] | None = ...,
    default_view: str | None = None,
    shell: ShellOptions | None = ...,
    log: LogOptions | None = ...,
    approvals: ApprovalOptions | None = ...,
    metrics: MetricsOptions | None = None,
    limits: Mapping[str, RouteLimits] | None = ...,
    route_rules: Mapping[str, RouteRules] | None = ...,
    views: Mapping[str, Sequence[Any]] | None = ...,
    view_mounts: Mapping[str, Any] | None = ...,
) -> Mount:
    """Mount a backend of this process on an empty directory.

        with fusebackend.mount(InMemoryBackend(), "/mnt/agent") as files:
            files.write("/hello.txt", "hello\\n")

    Args:
        backend: Any backend, a `CompositeBackend` for several; it stays yours, and is not closed at the end.
        mountpoint: An empty directory. A dead mount of an earlier process there is cleared away.
        runtime: For a backend factory (`lambda runtime: StateBackend(runtime)`, or a class): its argument.
        read_only: Nothing can be changed through the mount.
        allow_other: Users other than this one may come in, as far as modes allow.
        ttl_s: How long the kernel caches files of a backend that others change unseen. In seconds.
        deadline_s: How long a call into a backend that may wait (a network) takes at most; then it is ETIMEDOUT. In
            seconds.
        idle: poll: processors may idle without sleep during bursts of requests, which are answered faster then.
        trees: How the mount has its own directory /.fusebackend: hidden, visible in listings of the root, or off.
        trees_name: Another name of that directory.
        snapshots: auto: the mount takes snapshots by itself, every 10 s while there are changes, and deletes old
            ones; manual: it takes those that are asked for.
        history: on: it keeps for a day which call changed what, and the bytes that it replaced, below
            $XDG_STATE_HOME/fusebackend.
        options: -o words, such as noexec.
        default_view: The name of the view of commands, and of clients that name none.
        shell: How execute runs commands in the mount: sandbox, network, limits.
            `fusebackend.shell.options.ShellOptions`.
        log: What the history keeps of commands. `fusebackend.history.masking.LogOptions`.
        approvals: How long is waited for approvals (docs/approvals.md).
            `fusebackend.history.requests.ApprovalOptions`.
        metrics: Measure requests and verbs, and where Prometheus can ask for it. `fusebackend.config.MetricsOptions`.
        limits: Other limits for single routes, by prefix; / is the default.
            `fusebackend.vfs.options.RouteLimits`.
        route_rules: Rules of single routes for every reader, by prefix; / is the default.
            `fusebackend.rules.rule.RouteRules`.
        views: Lists of rules by name. A rule is a mapping with operations, paths and mode, or a FilesystemPermission
            of deepagents; docs/views.md has the rest.
        view_mounts: An empty directory for each view that is to have a mount point of its own, by name. Only root can
            make these.

    Raises:
        MountError: the directory can't be mounted on, this process has a mount already, or the name of the mount's own
            directory is taken.
        ValueError: an option is unknown, or its value is invalid.
        TypeError: `backend` is a factory and there is no `runtime`, or it is no backend at all.
    """
