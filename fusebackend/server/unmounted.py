"""`Unmounted`: in the place of `mount.session.Session`, a tree that is served without the kernel.

Nothing here needs /dev/fuse, libfuse or pyfuse3: the verbs of the control socket reach the main tree, snapshots,
branches, views and the log by themselves. Changes are recorded and watched as in a mount.

`run` takes the calling thread until `stop`, which the handler of a signal may call.
"""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Callable
from typing import Any

from fusebackend.config import MountPlan
from fusebackend.linux.command import REFUSED, Command
from fusebackend.protocol import ExecuteResponse
from fusebackend.vfs.coherence.page_cache import KernelCache
from fusebackend.vfs.mounted_tree import FileSystem

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a server."""

LOOK_S = 1.0
"""Python runs the handler of a signal that came as the main thread began to wait when the wait is over."""

WHY_NONE = (
    "nothing is mounted here, so commands run in the default backend, and {default} runs none: mount it, or give a "
    "default that has a shell, such as shell: or docker:"
)


class Unmounted:
    """See the module's docstring. The arguments are those of `Session`."""

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
