"""`Guest`: commands of a mount that run in the default backend.

A feature that the default's `execute` lacks is replaced where that is exact, and refused otherwise:

- the directory to start in: by `cd`, which ends the command with 126 where there is none;
- standard input: by a file beside the sandbox's own (`BaseSandbox`), which is gone before the command reads it; any
  other object has no place for one, so a command with input is refused;
- output as it comes: an `execute` that takes no `on_output` tells all of it when the command has ended;
- the end before its time: an `execute` that takes no `stopped` can't be interrupted. Its answer is dropped then, and
  the caller's answer and the log say that the command may still run;
- time: an `execute` that takes no `timeout` is given up when the time is over, in the same way.

How such a command comes to the other routes is a sight, `Binds` or `Carrying`. Both have `how`, a word for `status`;
`unseen`, the prefixes of routes that commands don't see, and why; `start`, when the mount answers; `before` and `after`
a command; and `close`, when commands have ended and the mount is about to. The first three return what the user should
know, a line each; OSError: the command can't be run, or none. Without a sight a command sees no route, and `status`
says so. After a command the mount believes nothing that it knew of the default's files.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.backends.sandbox.base import BaseSandbox
from fusebackend.backends.sandbox.docker import DockerBackend
from fusebackend.backends.sandbox.scripts import Script, nonce, status_of
from fusebackend.base import budget, paths
from fusebackend.base.deadline import BoundedCalls, GivenUp
from fusebackend.base.lines import split_lines
from fusebackend.base.paths import ROOT, AgentPath, PathError
from fusebackend.dialects.agent_face import AgentFace, option_names
from fusebackend.dialects.answers import field_of
from fusebackend.linux import mount_table as table
from fusebackend.linux.command import (
    NO_OUTPUT,
    REFUSED,
    STOPPED,
    TIMED_OUT,
    Command,
    End,
    Kept,
    Running,
    nothing_to_run,
    response,
)
from fusebackend.linux.mount_table import UnmountWatch
from fusebackend.protocol import Change, ExecuteResponse
from fusebackend.server.carrying import OWN_DIRECTORY, Carrying, is_systems
from fusebackend.shell.options import ShellOptions

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.config import MountPlan
    from fusebackend.vfs.mounted_tree import FileSystem

log = logging.getLogger(__name__)

MAX_COMMANDS = 64
"""Commands at once, those included that were given up and have not ended."""

GRACE_S = 30.0
"""How long after its own time-out an `execute` may take to answer before it is given up."""

START_PATIENCE_S = 60.0
"""How long a command waits for the mount to begin, …"""

LOOK_S = 0.05
"""… and how often it looks whether it is to be stopped meanwhile."""

NOT_THEIRS = (
    "network", "memory_bytes", "max_processes", "total_memory_bytes", "total_processes", "total_cpus", "env", "sandbox",
    "trees",
)  # fmt: skip
"""Options that only the mount's own sandbox obeys."""


class GuestError(Exception):
    """The command can't be run; the text is one line for the user."""


class Guest:
    """See the module's docstring. Its methods may be called by any thread but the mount's loop.

    Args:
        backend: what is mounted; its default runs commands.
        filesystem: its mounted tree.
        plan: how it is mounted. Where it is not, commands see the default's files only.

    Raises:
        OSError: the default can't be had.
    """

    def __init__(self, backend: CompositeBackend, filesystem: FileSystem, plan: MountPlan) -> None:
        self._is_mounted = plan.is_mounted
        self._default = backend.mounts()[ROOT]
        self._backend = backend
        self._filesystem = filesystem
        self._options = plan.settings.shell
        self._read_only = plan.settings.read_only
        verb = AgentFace(self._default, "The default backend").verb("execute")
        assert verb is not None, "a guest has execute"
        self._verb = verb
        self._known = option_names(verb)  # None: any
        self.label = label_of(self._default)
        self._routes = [route.prefix for route in filesystem.tree.routes if route.prefix != ROOT]
        self._sight = self._choose_sight(plan.mountpoint, plan.settings.allow_other)
        self._calls = BoundedCalls(MAX_COMMANDS, self._log_late)
        self._started = threading.Event()
        self._running = Running()

    def _choose_sight(self, mountpoint: str, allow_other: bool) -> Binds | Carrying | None:
        if not self._is_mounted or not self._routes or not isinstance(self._default, BaseSandbox):
            return None
        if isinstance(self._default, DockerBackend):
            return Binds(self._default, mountpoint, self._routes, allow_other)
        return Carrying(self._default, self._backend, self._filesystem)

    def start(self) -> list[str]:
        """The mount answers. Returns messages for its user, a line each: routes that commands don't see, and why.

        Raises:
            OSError: the default can't run commands.
        """
        lines = self._sight.start() if self._sight is not None else []
        if isinstance(self._sight, Binds) and self._sight.elsewhere:
            self._sight.close()
            self._sight = Carrying(self._sight.default, self._backend, self._filesystem)
            lines = self._sight.start()
        lines += [
            f"commands run in {self.label} and don't see {prefix}/: {why}" for prefix, why in self._unseen.items()
        ]
        usual = ShellOptions()
        ignored = [name for name in NOT_THEIRS if getattr(self._options, name) != getattr(usual, name)]
        if ignored:
            lines.append(f"commands run in {self.label}, to which [execute] {', '.join(ignored)} does not apply")
        self._started.set()
        return lines

    @property
    def _unseen(self) -> Mapping[AgentPath, str]:
        if self._sight is not None:
            return self._sight.unseen
        why = "it has files of its own only" if self._is_mounted else "nothing is mounted"
        return dict.fromkeys(self._routes, why)

    # -- one command -------------------------------------------------------------------------------------------

    def execute(self, command: Command) -> ExecuteResponse:
        """Run a command. ValueError: `timeout_s` is not above 0, or above the maximum."""
        if command.timeout_s is not None:
            self._options.seconds(command.timeout_s)  # within the maximum of the configuration
        refusal = nothing_to_run(command.text)
        if refusal is not None:
            return refusal

        caller = budget.current()

        def stopped() -> bool:
            return self._running.closed or caller.cancelled

        try:
            start = paths.normalise(command.cwd)
            if self._filesystem.tree.is_in_view(start):
                raise GuestError(f"a view can't bind a command in {self.label}, which is outside of the mount")
            if self._read_only:
                raise GuestError(f"this mount is read-only, and a command in {self.label} could change its files")
            with self._running.command(GuestError):
                self._wait_for_start(stopped)
                return self._execute(command, start, stopped)
        except (GuestError, PathError) as error:
            return ExecuteResponse(output=f"Error: {error}", exit_code=REFUSED)

    def _wait_for_start(self, stopped: Callable[[], bool]) -> None:
        """The control socket is there before the mount, and so may commands be."""
        deadline = time.monotonic() + START_PATIENCE_S
        while not self._started.wait(LOOK_S):
            if stopped() or time.monotonic() > deadline:
                raise GuestError("the mount does not answer yet")

    def _execute(self, command: Command, start: AgentPath, stopped: Callable[[], bool]) -> ExecuteResponse:
        notes: list[str] = []
        try:
            if self._sight is not None:
                notes += self._sight.before(stopped)
            before = self._going_to(start) + self._reading(command.stdin)
        except OSError as error:
            raise GuestError(f"{self.label}: {error.strerror or error}") from None
        try:
            if stopped():
                return response(Kept(0), Kept(0), End.STOP, 0, 0, 0)
            answer = self._run(replace(command, text=before + command.text), stopped)
        finally:
            if self._sight is not None:
                notes += self._sight.after()
            self._forget()
        notes = list(dict.fromkeys(notes))
        if notes:
            text = "\n".join(f"[stderr] fusebackend: {note}" for note in notes)
            answer.output = f"{text}\n{answer.output}"
            if command.on_output is not None:
                command.on_output("stderr", "".join(f"fusebackend: {note}\n" for note in notes).encode())
        return answer

    def _going_to(self, start: AgentPath) -> str:
        trees = self._filesystem.tree.trees_path
        if not self._is_mounted and trees is not None and paths.is_below(start, trees):
            raise GuestError(f"'{start}' is in no place where commands run: nothing is mounted")
        there = self._default.path_of(start) if isinstance(self._default, BaseSandbox) else start
        if isinstance(self._default, FilesystemBackend) and there != ROOT:  # it starts commands in its directory
            there = AgentPath(f"{str(self._default.cwd).rstrip('/')}{start}")
        return "" if there == ROOT else f"{Script().call('cd', there).text} || exit {REFUSED}\n"

    def _reading(self, stdin: bytes | None) -> str:
        if stdin is None:
            return ""
        if not stdin:
            return "exec </dev/null\n"
        if not isinstance(self._default, BaseSandbox):
            raise GuestError(
                f"commands run in {self.label}, whose execute takes no standard input: write it to a file, and have "
                "the command read that"
            )
        path = self._default.path_of(AgentPath(f"/.fusebackend-{nonce()}~"))
        self._default.deliver([(path, stdin)])
        return f'{Script().call("set --", path).text}\nexec <"$1" || exit {REFUSED}\nrm -f "$1"\nset --\n'

    def _run(self, command: Command, stopped: Callable[[], bool]) -> ExecuteResponse:
        timeout, on_output = command.timeout_s, command.on_output
        if timeout is None and self._options.timeout_s != ShellOptions().timeout_s:
            timeout = self._options.timeout_s
        given: dict[str, Any] = {}
        if self._known is not None and "stopped" in self._known:
            given = {"stopped": stopped, "timeout": timeout, "on_output": on_output}
            return self._answer(self._verb(command.text, **{k: v for k, v in given.items() if v is not None}))
        limit = timeout
        takes_timeout = self._known is None or "timeout" in self._known
        if timeout is not None and takes_timeout:
            given["timeout"] = math.ceil(timeout)  # deepagents' are whole seconds
            limit = given["timeout"] + GRACE_S
        elif timeout is None and not takes_timeout:
            limit = self._options.timeout_s
        deadline = math.inf if limit is None else time.monotonic() + limit
        answer = self._given_up_at(deadline, partial(self._verb, command.text, **given), stopped)
        if on_output is not None and answer.output != NO_OUTPUT:
            on_output("stdout", answer.output.encode("utf-8", "surrogateescape"))
        return answer

    def _given_up_at(self, deadline: float, call: Callable[[], Any], stopped: Callable[[], bool]) -> ExecuteResponse:
        try:
            return self._answer(self._calls.run(call, lambda: 0.0 if stopped() else deadline - time.monotonic()))
        except GivenUp:
            why, code = ("was stopped", STOPPED) if stopped() else ("took too long", TIMED_OUT)
            log.warning("a command in %s %s; it can't be ended there, and may still run", self.label, why)
            text = f"Error: Command {why}. {self.label} can't be told to end it, so it may still run there."
            return ExecuteResponse(output=text, exit_code=code)
        except NotImplementedError as error:
            raise GuestError(str(error) or f"{self.label} can't run commands") from None
        except Exception as error:  # foreign code: any error of it becomes an answer
            log.warning("a command in %s failed", self.label, exc_info=True)
            return ExecuteResponse(output=f"Error executing command: {type(error).__name__}: {error}", exit_code=1)

    def _answer(self, raw: Any) -> ExecuteResponse:
        """Return the answer of `execute` as this package's record, not longer than the options allow."""
        if isinstance(raw, str):
            raw = {"output": raw}
        output, code = field_of(raw, "output"), field_of(raw, "exit_code")
        if not isinstance(output, str):
            raise GuestError(f"{self.label}: execute answered {type(raw).__name__} without output")
        truncated = bool(field_of(raw, "truncated"))
        if not isinstance(self._default, BaseSandbox):  # those have a limit of their own
            most = self._options.max_output_bytes
            kept = Kept(most)
            kept.add(output.encode("utf-8", "replace"))
            if kept.seen > most:
                output, truncated = response(kept, Kept(0), End.EXIT, 0, 0, most).output, True
        return ExecuteResponse(output=output, exit_code=code if isinstance(code, int) else None, truncated=truncated)

    def _log_late(self, error: BaseException | None) -> None:
        log.info("a command in %s that was given up has ended%s", self.label, f": {error}" if error else "")

    def _forget(self) -> None:
        """The command may have changed any file of the default."""
        route = self._filesystem.tree.routes[0]
        try:
            route.executor.run("invalidate", partial(self._filesystem.invalidation.expire, route))
        except OSError as error:
            log.info("what a command has changed shows late: %s", error)
        route.volume.publish(Change(path="/"))

    # -- life --------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """For `status`, as `Shell.describe`."""
        described = {
            "where": self.label,
            "sandbox": "default",
            "routes": None if self._sight is None else self._sight.how,
            "unseen_routes": {f"{prefix}/": why for prefix, why in self._unseen.items()},
            "max_output_bytes": getattr(self._default, "max_output_bytes", self._options.max_output_bytes),
        }
        return {**described, "running": self._running.count}

    def close(self) -> None:
        """End the commands that run, wait until they have ended, and start no more. Twice is once."""
        self._running.close()
        if self._sight is not None:
            self._sight.close()


def label_of(default: Any) -> str:
    """Where commands run, for people."""
    if isinstance(default, DockerBackend):
        return f"container {default.container.name or default.container.image} (docker)"
    name = type(default).__name__
    try:
        told = getattr(default, "id", None)
    except Exception:  # foreign code
        told = None
    if not isinstance(told, str):
        return name
    return f"sandbox {told} ({name})" if isinstance(default, BaseSandbox) else f"{name} {told}"


# -- bind mounts -------------------------------------------------------------------------------------------------

INSIDE_S = 5.0
"""How long the look at a route from inside may take when the mount begins; a route that hangs is there all the same."""

ALLOW_OTHER = "mount with -o allow_other, so that the container's engine and users may come in"


class Binds:
    """A sight: a container of this machine sees the routes of a mount as bind mounts of it.

    A container that was made for the mount gets each route's root at the route's own path; routes below another one
    come with it. The mount's root is not bound, so what else is in the mount, such as `/.fusebackend`, is not in the
    container. The engine takes a bind when the container starts, so that waits until the mount answers: taken earlier
    it would show the directory underneath. It needs `allow_other`, for the engine and most users in a container are not
    the server's. A container that runs already can't be given mounts; it may have been started with some of this
    mount's.

    The container's own table of mounts is checked: an engine in a virtual machine or on another host shows a directory
    of its own there.

    A container keeps the mounted file system alive in its mount namespace. After `fusermount3 -u` the server would
    serve it for ever, and the unmount would wait for the server: so the container is removed then. When the server ends
    by itself the container is left to its backend, whose owner removes it, and the bind mounts in it fail with
    ENOTCONN.

    Args:
        default: the backend of the container.
        mountpoint: of the mount.
        prefixes: of the routes.
        allow_other: other users may use the mount.

    Raises:
        OSError: no engine, no image.
    """

    how = "bound"

    def __init__(
        self, default: DockerBackend, mountpoint: str, prefixes: Iterable[AgentPath], allow_other: bool
    ) -> None:
        self.default = default
        self._mountpoint = mountpoint
        self._allow_other = allow_other
        self.unseen: dict[AgentPath, str] = {}
        self.elsewhere = False
        """Does the engine not know this machine's files? Then nothing is bound."""
        self._prefixes = sorted(prefixes)
        others = [(prefix, other) for prefix in self._prefixes for other in self._prefixes if other != prefix]
        below = {prefix for prefix, other in others if paths.is_below(prefix, other)}
        self._tops = [prefix for prefix in self._prefixes if prefix not in below]
        default.check()
        self._ours = default.container.hold()
        self._watch: UnmountWatch | None = None

    def start(self) -> list[str]:
        wanted: list[AgentPath] = []
        for prefix in self._tops:
            why = self._why_not(prefix)
            if why is None:
                wanted.append(prefix)
            else:
                self._hide(prefix, why)
        container = self.default.container
        if not self._ours:
            return self._check(wanted, "it ran before the mount, and what is mounted in a container can't be changed")
        container.bind({self.default.path_of(prefix): self._mountpoint + prefix for prefix in wanted})
        try:
            container.running()
        except OSError as error:
            if "bind source path does not exist" not in str(error.strerror):
                raise
            self.elsewhere = True
            container.bind({})
        else:
            missing = self._missing(wanted)
            self.elsewhere = bool(wanted) and missing == wanted
            if self.elsewhere:
                container.unbind()
        if self.elsewhere or not wanted:
            return []
        notes = self._check(wanted, "the container's engine shows a directory of its own there")
        self.default.leave_out(wanted)
        self._watch = UnmountWatch(self._mountpoint, self._unmounted, "fusebackend-binds")
        return notes

    def _why_not(self, prefix: AgentPath) -> str | None:
        """Why a route is not bound; None if it can be."""
        if is_systems(self.default.path_of(prefix)):
            return OWN_DIRECTORY
        if "\n" in prefix:
            return "its name has a line break"
        if self._ours and not self._allow_other and os.geteuid() != 0:
            return ALLOW_OTHER
        return None

    def _hide(self, top: AgentPath, why: str) -> None:
        """A route and those below it are not seen."""
        self.unseen |= {prefix: why for prefix in self._prefixes if paths.is_below(prefix, top)}

    def _check(self, prefixes: list[AgentPath], why: str) -> list[str]:
        """Which of these the container does see. Returns what the user should know of those."""
        missing = self._missing(prefixes)
        for prefix in missing:
            self._hide(prefix, why)
        seen = [prefix for prefix in prefixes if prefix not in missing]
        if self._allow_other or not seen:
            return []
        for prefix in seen:
            if not self._is_open(prefix):
                self._hide(prefix, ALLOW_OTHER)
        return ["only root sees the other routes in the container; for its other users, mount with -o allow_other"]

    def _is_open(self, prefix: AgentPath) -> bool:
        """Return True if the container's user may look into a route."""
        script = Script().call("fb_enter", self.default.path_of(prefix))
        try:
            return status_of(self.default.ask(script, INSIDE_S, looks=True))[0] == "ok"
        except TimeoutError:
            return True

    def _missing(self, prefixes: list[AgentPath]) -> list[AgentPath]:
        """Which of these are not the routes of this mount where the container's commands are."""
        (piece,) = self.default.pieces(["/proc/self/mountinfo"])
        device = os.stat(self._mountpoint).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        there = {
            entry.mountpoint: entry.root
            for line in split_lines(os.fsdecode(piece.data))
            if line.split(" ")[2:3] == [number]
            for entry in table.parse(line)
        }
        return [prefix for prefix in prefixes if there.get(self.default.path_of(prefix)) != prefix]

    def before(self, stopped: Callable[[], bool]) -> list[str]:
        return []

    def after(self) -> list[str]:
        return []

    # -- the end -----------------------------------------------------------------------------------------------

    def _unmounted(self) -> None:
        """Remove the container after an unmount of the mount that is bound in it."""
        log.info("%s is unmounted: its container ends", self._mountpoint)
        self.default.container.unbind()

    def close(self) -> None:
        if self._ours:
            self.default.container.bind({})  # containers started from now on have no bind of this mount
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()  # the mount may be gone from the next moment on, and that is no news then
        self.default.leave_out([])
