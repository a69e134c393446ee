"""`Binds`: a container of this machine that sees the routes of a mount as bind mounts of it.

A container that was made for the mount gets each route's root at the route's own path; routes below another one come
with it. The mount's root is not bound, so what else is in the mount, such as `/.fusebackend`, is not in the container.
The engine takes a bind when the container starts, so that waits until the mount answers: taken earlier it would show
the directory underneath. It needs `allow_other`, for the engine and most users in a container are not the server's.
A container that runs already can't be given mounts; it may have been started with some of this mount's.

The container's own table of mounts is checked: an engine in a virtual machine or on another host shows a directory of
its own there.

A container keeps the mounted file system alive in its mount namespace. After `fusermount3 -u` the server would serve it
for ever, and the unmount would wait for the server: so the container is removed then. When the server ends by itself
the container is left to its backend, whose owner removes it, and the bind mounts in it fail with ENOTCONN.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable

from fusebackend.backends.sandbox.docker import DockerBackend
from fusebackend.backends.sandbox.scripts import Script, status_of
from fusebackend.base import paths
from fusebackend.base.lines import split_lines
from fusebackend.base.paths import AgentPath
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import UnmountWatch

log = logging.getLogger(__name__)

SYSTEM = frozenset({"bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr"})
"""Names of the root that a container can't do without; a route that is one of them is not bound."""

KERNELS = frozenset({"proc", "sys", "dev"})
"""Nothing is bound below these either: the engine refuses it, or mounts its own there."""

OWN_DIRECTORY = "the sandbox's own directory is there"

LOOK_S = 5.0
"""How long the look at a route from inside may take when the mount begins; a route that hangs is there all the same."""

ALLOW_OTHER = "mount with -o allow_other, so that the container's engine and users may come in"


class Binds:
    """See the module's docstring; a sight (`guest.py`).

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
            return status_of(self.default.ask(script, LOOK_S, looks=True))[0] == "ok"
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


def is_systems(path: str) -> bool:
    """Return True if a sandbox needs its own directory at this path."""
    top, _, below = path.removeprefix("/").partition("/")
    return top in KERNELS or (top in SYSTEM and not below)
