"""`Shell`: commands in a mount, for `MountedBackend.execute`.

A command runs with `sh -c` in a bubblewrap sandbox whose root is the mount, as the server's own user, whom alone the
mount admits. It sees

- every route at the absolute path that the file verbs use, and writes what the mount lets it write;
- the system's programs (`system.PROGRAMS`) and a few files of /etc, read-only, whatever the default volume has under
  these names: the sandbox's root is a tree of its own (`FileSystem.add_tree`), in which they are the server's;
- its own /proc, /dev and empty /tmp; its own processes, System V objects, host name and, unless asked otherwise, a
  network of nothing but itself. With the network it can also reach what listens on this machine.

It has no capabilities and can gain none. Time, output, memory and processes are limited; whatever a command leaves
running ends with it. Sockets and pipes that programs outside keep *in* the mount can be used: they are in the mount.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fusebackend.base import paths
from fusebackend.base.paths import AgentPath, PathError
from fusebackend.linux import mount_table as table
from fusebackend.linux.command import Command, End, OnOutput, Running, nothing_to_run
from fusebackend.protocol import ExecuteResponse
from fusebackend.shell import bubblewrap, seccomp, system
from fusebackend.shell.bubblewrap import Bind, Fresh, SandboxError, View
from fusebackend.shell.cgroups import ControlGroups, Group
from fusebackend.shell.devices import Devices
from fusebackend.shell.etc import Etc
from fusebackend.shell.launch import Launch
from fusebackend.shell.limits import Limits
from fusebackend.shell.mountcheck import MountCheck
from fusebackend.shell.mountwatch import MountWatch
from fusebackend.shell.options import ShellOptions
from fusebackend.shell.sandboxed import Sandboxed
from fusebackend.shell.unconfined import Unconfined
from fusebackend.shell.usernamespace import UserNamespace

if TYPE_CHECKING:
    from fusebackend.vfs.mounted_tree import FileSystem

log = logging.getLogger(__name__)

REFUSED = 126
"""The exit code of a command that was not even started: as a shell says of one that is there and can't be run."""


@dataclass(frozen=True)
class _Job:
    """What `execute` was asked for."""

    command: str
    cwd: AgentPath
    stdin: bytes | None
    on_output: OnOutput | None
    deadline: float  # by the monotonic clock
    timeout_s: float


class Shell:
    """See the module's docstring. Its methods may be called by any thread but the mount's loop.

    Args:
        filesystem: the mounted tree.
        mountpoint: where it is mounted, as an absolute path without symbolic links.
        options: how commands run.
    """

    def __init__(self, filesystem: FileSystem, mountpoint: str, options: ShellOptions) -> None:
        self.options = options
        self.mountpoint = mountpoint
        self._view = View.of(mountpoint, [route.prefix for route in filesystem.tree.routes])
        if options.sandbox == "bubblewrap":
            tree = filesystem.add_tree("sandbox", [os.fsencode(name) for name in self._view.names])
            self._view = replace(self._view, tree=tree)
        self._limits = Limits(options, ControlGroups.of_this_process())
        self._devices = Devices()
        self._etc = Etc(options.network, [prefix for prefix in self._view.routes if prefix.startswith("/etc/")])
        self._namespace = UserNamespace()
        self._checks: tuple[object, MountCheck] | None = None  # of the last mounts and table
        self._running = Running()
        self._furnishing = threading.Lock()

    def execute(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        cwd: str = "/",
        on_output: OnOutput | None = None,
        cancelled: threading.Event | None = None,
    ) -> ExecuteResponse:
        """Run a command, and return when all that it has started has ended. Any number may run at once.

        Output is stdout, then the lines of stderr prefixed `[stderr] `. The exit code is 124 after a time-out, 130
        when the command was cancelled or the mount ended, 128 and the signal's number when one ended it, and 126 with
        the reason in the output when it could not be started.

        Args:
            command: for `sh -c`.
            timeout: seconds, up to the options' `max_timeout_s`; their `timeout_s` when None.
            stdin: what it reads; nothing when None.
            cwd: where it starts, as the agent names it.
            on_output: told of the output that is kept, as it comes, in this thread. It may raise to end the command.
            cancelled: setting it ends the command.

        Raises:
            ValueError: `timeout` is not above 0, or above the options' `max_timeout_s`.
        """
        seconds = self.options.seconds(timeout)
        deadline = time.monotonic() + seconds
        refusal = nothing_to_run(command)
        if refusal is not None:
            return refusal
        try:
            job = _Job(command, paths.normalise(cwd), stdin, on_output, deadline, seconds)
            with self._running.command(SandboxError), MountWatch(self.mountpoint) as watch:
                return self._execute(job, watch, cancelled)
        except (SandboxError, PathError) as error:
            return ExecuteResponse(output=f"Error: {error}", exit_code=REFUSED)

    def describe(self) -> dict[str, Any]:
        """For `status`: how commands are confined and limited. Asks nobody, so that the loop may call it."""
        options = self.options
        described: dict[str, Any] = {"sandbox": options.sandbox}
        if options.sandbox == "bubblewrap":
            described |= {
                "bubblewrap": bubblewrap.where(),
                "network": options.network,
                "seccomp": seccomp.program() is not None,
                "inotify_limited_by": self._namespace.describe(),
                "covered_routes": [prefix + "/" for prefix in self._view.covered],
            }
        described |= {
            "timeout_s": options.timeout_s,
            "max_timeout_s": options.max_timeout_s,
            "max_output_bytes": options.max_output_bytes,
        }
        return {**described, **self._limits.describe(), "running": self._running.count}

    def close(self) -> None:
        """End the commands that run, wait until they have ended, and start no more."""
        self._running.close()
        with self._furnishing:
            self._devices.close()
            self._etc.close()
            self._namespace.close()

    # -- one command -------------------------------------------------------------------------------------------

    def _execute(self, job: _Job, watch: MountWatch, cancelled: threading.Event | None) -> ExecuteResponse:
        def stopped() -> bool:
            return self._running.closed or watch.look() or (cancelled is not None and cancelled.is_set())

        if watch.gone:
            raise SandboxError(f"nothing is mounted on '{self.mountpoint}' any more")
        with self._start(job) as launch:
            output = Command(
                launch.process, self.options.max_output_bytes, stdin=job.stdin or b"", on_output=job.on_output
            )
            group = None
            try:
                first = launch.wait_for_first(job.deadline, stopped)
                if first is not None:
                    group = self._confine(first)
                    if launch.is_ready(job.deadline, stopped):
                        launch.open_gate()
                end = output.wait(job.deadline, stopped)
            finally:
                launch.end()
                if group is not None:
                    group.kill()
                    group.remove()
            if end is End.EXIT and launch.failed():
                output.drain()
                raise SandboxError(f"the sandbox can't be made: {bubblewrap.in_one_line(output.stderr.kept)}")
            output.drain()
            return output.response(end, launch.process.returncode, job.timeout_s, self.options.max_output_bytes)

    def _confine(self, pid: int) -> Group:
        try:
            return self._limits.confine(pid)
        except OSError as error:
            raise SandboxError(f"the command's memory and processes can't be limited: {error}") from None

    @contextlib.contextmanager
    def _start(self, job: _Job) -> Iterator[Launch]:
        """The command, waiting at its gate, in whatever this shell runs commands in."""
        options = self.options
        if options.sandbox == "none":
            env = system.environment(job.cwd, dict(options.env))
            with _made(lambda: Unconfined(job.command, self.mountpoint + job.cwd, env)) as launch:
                yield launch
            return
        program = bubblewrap.find()
        user = bubblewrap.user_namespace(program)
        with self._furnishing:
            mounts = self._furnished(program, user)
            filtered = seccomp.program(counted=self._namespace.is_made)
        words = bubblewrap.arguments(mounts, options, user, job.cwd)
        entering = [*self._namespace.entering(), program]
        with _made(lambda: Sandboxed(entering, words, job.command, lambda: self._check(mounts), filtered)) as launch:
            yield launch

    def _furnished(self, program: str, user: tuple[str, ...]) -> list[Bind | Fresh]:
        """What is to be mounted in a sandbox, with all that the server has to make for it."""
        self._devices.make()
        self._namespace.make(program, user)
        try:
            etc = self._etc.binds()
        except OSError as error:
            raise SandboxError(f"there is no place for an /etc of commands: {error}") from None
        return self._view.mounts(etc, self._devices.nodes(), self.options.memory_bytes)

    def _check(self, mounts: list[Bind | Fresh]) -> MountCheck:
        """What must be mounted, by what this process has mounted now."""
        with open("/proc/self/mountinfo", "rb") as file:
            seen = (file.read(), mounts)
        if self._checks is None or self._checks[0] != seen:
            self._checks = seen, MountCheck(mounts, table.parse(os.fsdecode(seen[0])))
        return self._checks[1]


def _made(make: Callable[[], Launch]) -> Launch:
    try:
        return make()
    except (OSError, ValueError) as error:  # a NUL, or longer than 128 KiB; a limit of this machine
        raise SandboxError(f"the command can't be started: {error}") from None
