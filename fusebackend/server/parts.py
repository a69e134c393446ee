"""`MountParts`: what a running mount is made of. `assemble.py` puts it together; a part that a mount lacks is None."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fusebackend.base.paths import AgentPath
from fusebackend.linux.command import Command
from fusebackend.protocol import ExecuteResponse

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.server.approvals import Approvals
    from fusebackend.server.log_files import LogFiles
    from fusebackend.server.metrics import Metrics
    from fusebackend.server.recording import Recording
    from fusebackend.server.rules import Views
    from fusebackend.trees.automatic import AutomaticSnapshots
    from fusebackend.trees.branches import Branches
    from fusebackend.trees.snapshots import Snapshots
    from fusebackend.vfs.mounted_tree import FileSystem


class Executor(Protocol):
    """The place where commands run: `Shell`, `Guest` or `NoCommands`."""

    def start(self) -> list[str]: ...

    def execute(self, command: Command) -> ExecuteResponse: ...

    def describe(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class MountParts:
    """See the module's docstring."""

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
