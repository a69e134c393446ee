"""`Executor`: runs the commands of a mount, and is the one place that decides where.

A default backend that has `execute` of its own runs them itself (`guest.py`): a container, a hosted sandbox, or any
object with that verb. The command then has that backend's programs and its isolation, not this machine's. For every
other default, and for `shell:`, which confines nothing, they run in the mount's sandbox (`shell/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fusebackend.base.paths import ROOT
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.linux.command import Command
from fusebackend.protocol import ExecuteResponse
from fusebackend.shell import Shell, ShellOptions

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.server.guest import Guest
    from fusebackend.vfs.mounted_tree import FileSystem

LOCAL_SHELLS = frozenset(
    {
        ("fusebackend.backends.directory.backend", "LocalShellBackend"),
        ("deepagents.backends.local_shell", "LocalShellBackend"),
    }
)
"""Classes whose `execute` is a plain shell of this machine, as its user: the sandbox takes its place in a mount."""


class Executor:
    """See the module's docstring. Its methods may be called by any thread but the mount's loop.

    Args:
        backend: what is mounted.
        filesystem: its mounted tree.
        mountpoint: where, as an absolute path without symbolic links.
        options: how commands run.
        allow_other: other users may use the mount.
        read_only: nothing can be changed through the mount.

    Raises:
        OSError: the default runs commands, and can't be had.
    """

    def __init__(
        self,
        backend: CompositeBackend,
        filesystem: FileSystem,
        mountpoint: str,
        options: ShellOptions,
        *,
        allow_other: bool = False,
        read_only: bool = False,
    ) -> None:
        default = backend.mounts()[ROOT]
        self._runner: Shell | Guest
        self._guest: Guest | None = None
        if runs_commands(default):
            from fusebackend.server.guest import Guest  # few mounts need it and its imports

            self._guest = self._runner = Guest(
                backend, filesystem, mountpoint, options, allow_other=allow_other, read_only=read_only
            )
        else:
            self._runner = Shell(filesystem, mountpoint, options)

    def start(self) -> list[str]:
        """The mount answers. Returns what its user should know, a line each: which routes commands don't see, and why.

        Raises:
            OSError: the default can't run commands.
        """
        return [] if self._guest is None else self._guest.start()

    def execute(self, command: Command) -> ExecuteResponse:
        """Run a command. A `stdin` or `timeout_s` that the place can't handle is refused, with the reason."""
        return self._runner.execute(command)

    def describe(self) -> dict[str, Any]:
        """For `status`. It makes no calls, so the loop may use it.

        `where` is a line for people; `unseen_routes` says of each route that commands don't see why.
        """
        described = self._runner.describe()
        if self._guest is not None:
            return described
        confined = described["sandbox"] != "none"
        covered: list[str] = described.get("covered_routes", [])
        unseen: Mapping[str, str] = dict.fromkeys(covered, "this machine's own directory is there")
        return {
            "where": f"{described['sandbox']} sandbox" if confined else "this machine, unconfined",
            "unseen_routes": unseen,
            **described,
        }

    def close(self) -> None:
        """End the commands that run, wait until they have ended, and start no more. Twice is once."""
        self._runner.close()


def runs_commands(default: Any) -> bool:
    """Return True if a backend has an `execute` of its own, other than a plain shell of this machine."""
    if AgentFace(default, "The default backend").verb("execute") is None:
        return False
    owner = next((kind for kind in type(default).__mro__ if "execute" in vars(kind)), None)
    in_instance = "execute" in getattr(default, "__dict__", {})
    return in_instance or owner is None or (owner.__module__, owner.__qualname__) not in LOCAL_SHELLS
