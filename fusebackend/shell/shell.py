"""`Shell`: commands in a mount, for `MountedBackend.execute`.

A command runs with `sh -c` in a bubblewrap sandbox with the mount as its root, as the server's own user, the only one
that the mount admits. It sees

- every route at the absolute path that the file verbs use, and writes what the mount lets it write;
- the system's programs (`system.PROGRAMS`) and a few files of /etc, read-only. They hide files of the default volume
  with the same names, because the sandbox's root is a tree of its own (`FileSystem.add_tree`);
- of the trees directory what `ShellOptions.trees` grants, and else nothing;
- its own /proc, /dev and empty /tmp; its own processes, System V objects, host name and, unless asked otherwise, a
  network of nothing but itself. With the network it can also reach what listens on this machine.

It has no capabilities and can gain none. Time, output, memory and processes are limited; processes that a command
leaves running end with it. Sockets and pipes that programs outside keep *in* the mount can be used.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fusebackend.base import budget, paths
from fusebackend.base.paths import AgentPath, PathError
from fusebackend.linux import mount_table as table
from fusebackend.linux import proc
from fusebackend.linux.command import REFUSED, Command, End, Running, StartedProcess, nothing_to_run, response
from fusebackend.linux.mount_table import MountWatch
from fusebackend.protocol import ExecuteResponse
from fusebackend.rules.view import View as Rules
from fusebackend.shell import bubblewrap, seccomp, system
from fusebackend.shell.bubblewrap import SandboxError, SandboxRoot
from fusebackend.shell.cgroups import ControlGroups, Group, Limits
from fusebackend.shell.launch import Launch, Sandboxed, Unconfined
from fusebackend.shell.mountcheck import MountCheck
from fusebackend.shell.options import ShellOptions
from fusebackend.shell.system import Bind, Devices, Etc, Fresh
from fusebackend.shell.usernamespace import UserNamespace
from fusebackend.vfs.junctions import VIEWS_NAME, Route
from fusebackend.vfs.mounted_tree import FileSystem

BRANCHES = "branches"
"""The directory of the branches in the trees directory."""


class Shell:
    """See the module's docstring. Its methods may be called by any thread but the mount's loop.

    Args:
        filesystem: the mounted tree.
        mountpoint: where it is mounted, as an absolute path without symbolic links.
        options: how commands run.
        views: of the mount, by name.
        default: the name of the view of commands that start in the main tree; none when None.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        mountpoint: str,
        options: ShellOptions,
        views: Mapping[str, Rules] | None = None,
        default: str | None = None,
    ) -> None:
        self._default = default
        self.options = options
        self.mountpoint = mountpoint
        self._filesystem = filesystem
        self._trees_path = filesystem.tree.trees_path
        prefixes = [route.prefix for route in filesystem.tree.routes]
        self._view = self._granting(SandboxRoot.of(mountpoint, prefixes))
        self._views: dict[str, SandboxRoot] = {}  # the mount through each view
        if options.sandbox == "bubblewrap":
            self._view = self._with_tree(self._view, "sandbox")
            for name, rules in (views or {}).items():
                seen = SandboxRoot.of(mountpoint, [prefix for prefix in prefixes if not rules.is_hidden(prefix)])
                self._views[name] = self._with_tree(seen, f"sandbox-view-{name}", rules=rules)
        self._limits = Limits(options, ControlGroups.of_this_process())
        self._devices = Devices()
        self._etc = Etc(options.network, [prefix for prefix in self._view.routes if prefix.startswith("/etc/")])
        self._namespace = UserNamespace()
        self._branches: dict[AgentPath, tuple[Route, SandboxRoot]] = {}  # those of commands, by their path
        self._checks: tuple[object, MountCheck] | None = None  # of the last mounts and table
        self._running = Running()
        self._furnishing = threading.Lock()

    def execute(self, command: Command) -> ExecuteResponse:
        """Run a command, and return when all that it has started has ended. Any number may run at once.

        Output is stdout, then the lines of stderr prefixed `[stderr] `. The exit code is 124 after a time-out, 130
        when the command was cancelled or the mount ended, 128 and the signal's number when one ended it, and 126 with
        the reason in the output when it could not be started.

        Raises:
            ValueError: `timeout_s` is not above 0, or above the options' `max_timeout_s`.
        """
        seconds = self.options.seconds(command.timeout_s)
        refusal = nothing_to_run(command.text)
        if refusal is not None:
            return refusal
        try:
            cwd = paths.normalise(command.cwd)
            with self._running.command(SandboxError), contextlib.closing(MountWatch(self.mountpoint)) as watch:
                return self._execute(command, cwd, seconds, watch)
        except (SandboxError, PathError) as error:
            return ExecuteResponse(output=f"Error: {error}", exit_code=REFUSED)

    def start(self) -> list[str]:
        """The mount answers. Returns messages for its user, a line each."""
        return []

    def describe(self) -> dict[str, Any]:
        """For `status`: how commands are confined and limited. It makes no calls, so the loop may use it.

        `where` is a line for people; `unseen_routes` has the routes that commands don't see, with the reason.
        """
        options = self.options
        confined = options.sandbox == "bubblewrap"
        covered = [prefix + "/" for prefix in self._view.covered] if confined else []
        described: dict[str, Any] = {
            "where": f"{options.sandbox} sandbox" if confined else "this machine, unconfined",
            "unseen_routes": dict.fromkeys(covered, "this machine's own directory is there"),
            "sandbox": options.sandbox,
        }
        if confined:
            described |= {
                "bubblewrap": bubblewrap.where(),
                "network": options.network,
                "seccomp": seccomp.program() is not None,
                "inotify_limited_by": self._namespace.describe(),
                "covered_routes": covered,
                "trees": list(self._view.granted),
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
        self._limits.close()
        with self._furnishing:
            self._devices.close()
            self._etc.close()
            self._namespace.close()

    # -- one command -------------------------------------------------------------------------------------------

    def _execute(self, command: Command, cwd: AgentPath, timeout_s: float, watch: MountWatch) -> ExecuteResponse:
        deadline = time.monotonic() + timeout_s
        caller = budget.current()

        def stopped() -> bool:
            return self._running.closed or watch.look() or caller.cancelled

        if watch.gone:
            raise SandboxError(f"nothing is mounted on '{self.mountpoint}' any more")
        with self._start(command.text, cwd) as launch:
            stdin, most = command.stdin or b"", self.options.max_output_bytes
            output = StartedProcess(launch.process, most, stdin=stdin, on_output=command.on_output)
            group = None
            try:
                first = launch.wait_for_first(deadline, stopped)
                if first is not None:
                    group = self._confine(first)
                    if command.on_start is not None:
                        command.on_start(first)
                    if launch.is_ready(deadline, stopped):
                        launch.open_gate()
                end = output.wait(deadline, stopped)
            finally:
                launch.end()
                if group is not None:
                    group.kill()
                    group.remove()
            if end is End.EXIT and launch.failed():
                output.drain()
                raise SandboxError(f"the sandbox can't be made: {bubblewrap.in_one_line(output.stderr.kept)}")
            output.drain()
            return response(output.stdout, output.stderr, end, launch.process.returncode, timeout_s, most)

    def _confine(self, pid: int) -> Group:
        try:
            return self._limits.confine(pid)
        except OSError as error:
            raise SandboxError(f"the command's memory and processes can't be limited: {error}") from None

    def _start(self, command: str, cwd: AgentPath) -> Launch:
        """Start the command, which waits at its gate."""
        options = self.options
        if options.sandbox == "none":
            if self._default is not None or self._filesystem.tree.is_in_view(cwd):
                raise SandboxError(
                    "a view binds commands in a sandbox alone, and this mount has execute.sandbox = none"
                )
            env = system.environment(cwd, dict(options.env))
            return _made(lambda: Unconfined(command, self.mountpoint + cwd, env))
        view, cwd = self._place(cwd)
        program = bubblewrap.find()
        user = bubblewrap.user_namespace(program)
        with self._furnishing:
            mounts = self._furnished(view, program, user)
            filtered = seccomp.program(counted=self._namespace.is_made)
        words = bubblewrap.arguments(mounts, options, user, cwd)
        entering = [*self._namespace.entering(), program]
        return _made(lambda: Sandboxed(entering, words, command, lambda: self._check(mounts), filtered))

    def _granting(self, view: SandboxRoot) -> SandboxRoot:
        """Return a view that has the granted parts of the trees directory, as far as the mount has them: there are no
        snapshots where no route keeps any, and no branches of a read-only mount."""
        servers = self._filesystem.tree.servers.children
        granted = tuple(name for name in dict.fromkeys(self.options.trees) if os.fsencode(name) in servers)
        return replace(view, trees_path=self._trees_path or "", granted=granted if self._trees_path else ())

    def _place(self, cwd: AgentPath) -> tuple[SandboxRoot, AgentPath]:
        """Return the view for a command, and where it starts in it: in a branch, that is the root of the command."""
        if self._trees_path is None or not paths.is_below(cwd, self._trees_path):
            return self._view if self._default is None else self._views[self._default], cwd
        views = paths.join(self._trees_path, paths.to_text(VIEWS_NAME))
        for name, view in self._views.items():
            path = paths.join(views, name)
            if paths.is_below(cwd, path):
                return view, AgentPath(cwd[len(path) :] or paths.ROOT)
        if self._default is not None:
            raise SandboxError(f"default_view = '{self._default}' binds all commands, and is no view of '{cwd}'")
        branches = paths.join(self._trees_path, BRANCHES)
        for path, route in self._filesystem.tree.beside.items():
            if paths.is_below(cwd, path) and paths.is_below(path, branches):
                return self._branch(path, route), AgentPath(cwd[len(path) :] or paths.ROOT)
        if any(paths.is_below(cwd, paths.join(self._trees_path, name)) for name in self._view.granted):
            return self._view, cwd
        raise SandboxError(
            f"commands don't see '{self._trees_path}', the mount's own directory: start the command elsewhere, and "
            "copy there what it needs"
        )

    def _branch(self, path: AgentPath, route: Route) -> SandboxRoot:
        with self._furnishing:
            known = self._branches.get(path)
            if known is not None and known[0] is route:
                return known[1]
            name = f"sandbox-{route.index}"
            if known is not None:  # a branch of that name that was deleted
                self._filesystem.remove_tree(f"sandbox-{known[0].index}")
            view = self._granting(SandboxRoot.of(self.mountpoint, [paths.ROOT]))
            try:
                view = self._with_tree(view, name, path)
            except FileNotFoundError:
                raise SandboxError(f"there is no '{path}' any more") from None
            self._branches[path] = route, view
            return view

    def _with_tree(
        self, view: SandboxRoot, name: str, of: AgentPath | None = None, rules: Rules | None = None
    ) -> SandboxRoot:
        """Return a view with a tree of the mount for its root. FileNotFoundError: there is no such branch."""
        pinned = [os.fsencode(own) for own in view.names]
        return replace(view, tree=self._filesystem.add_tree(name, pinned, of, rules))

    def _furnished(self, view: SandboxRoot, program: str, user: tuple[str, ...]) -> list[Bind | Fresh]:
        """Return the mounts of a sandbox, after making the server's parts of them."""
        self._devices.make()
        self._namespace.make(program, user)
        try:
            etc = self._etc.binds()
        except OSError as error:
            raise SandboxError(f"there is no place for an /etc of commands: {error}") from None
        return view.mounts(etc, self._devices.nodes(), self.options.memory_bytes)

    def _check(self, mounts: list[Bind | Fresh]) -> MountCheck:
        """Return the check of a sandbox's mounts against the mounts of this process."""
        seen = (proc.read("self/mountinfo"), mounts)
        if self._checks is None or self._checks[0] != seen:
            self._checks = seen, MountCheck(mounts, table.parse(os.fsdecode(seen[0])))
        return self._checks[1]


def _made(make: Callable[[], Launch]) -> Launch:
    try:
        return make()
    except (OSError, ValueError) as error:  # a NUL, or longer than 128 KiB; a limit of this machine
        raise SandboxError(f"the command can't be started: {error}") from None
