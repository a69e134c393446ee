"""`Unmounted`: in the place of `mount.session.Session`, a tree that is served without the kernel.

Nothing here needs /dev/fuse, libfuse or pyfuse3: the verbs of the control socket reach the main tree, snapshots,
branches, views and the log by themselves. Changes are recorded and watched as in a mount.

`run` takes the calling thread until `stop`, or until SIGTERM, SIGINT or SIGHUP if that is the main thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fusebackend.linux.command import Command
from fusebackend.mount.options import MountOptions
from fusebackend.protocol import ExecuteResponse
from fusebackend.vfs.mounted_tree import FileSystem

log = logging.getLogger(__name__)

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

REFUSED = 126
"""The exit code of a command that was not started, as a shell has it."""

WHY_NONE = (
    "nothing is mounted here, so commands run in the default backend, and {default} runs none: mount it, or give a "
    "default that has a shell, such as shell: or docker:"
)


class NoKernel:
    """A `KernelCache` that has nothing cached."""

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None:
        """There is no kernel to notify."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """There is no kernel to notify."""

    def store(self, inode: int, content: bytes) -> None:
        """There is no kernel to notify."""


class Unmounted:
    """See the module's docstring. The arguments are those of `Session`; `place` stands for the mount point."""

    def __init__(
        self,
        filesystem: FileSystem,
        place: str,
        options: MountOptions,
        *,
        describe: Callable[[], Mapping[str, Any]],
        before_end: Callable[[], None],
    ) -> None:
        self.filesystem = filesystem
        self.place = place
        self.options = options
        self._describe = describe
        self._before_end = before_end
        self._stopped = False
        self._ends: socket.socket | None = None  # takes bytes that end it: the number of a signal, 0 for `stop`
        self._started_at = time.time()

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until stopped, and make all volumes durable. The volumes are not closed.

        Raises:
            OSError: a volume could not be made durable at the end.
        """
        end, self._ends = socket.socketpair()
        self._ends.setblocking(False)
        with end, self._ends, self._signals_to(self._ends):
            try:
                self.filesystem.attach(NoKernel())
                if on_ready is not None:
                    on_ready()
                number = 0 if self._stopped else end.recv(1)[0]
                while number not in (0, *ENDING):  # another signal that has a handler
                    number = end.recv(1)[0]
                if number:
                    log.info("%s: ending", signal.Signals(number).name)
                self._before_end()
            finally:
                self.filesystem.detach()
                self.filesystem.close()

    def stop(self) -> None:
        """End `run`. Thread-safe, and harmless when it has ended."""
        self._stopped = True
        if self._ends is not None:
            with contextlib.suppress(OSError):  # it has ended, or is told so often enough
                self._ends.send(b"\0")

    def status(self) -> dict[str, Any]:
        """Return what `status` shows: as of a mount, and `place` for the mount point, which is None."""
        description = dict(self.options.description)
        urls = description.pop("urls", {})
        return {
            "mountpoint": None,
            "place": self.place,
            "pid": os.getpid(),
            "started_at": self._started_at,
            "read_only": self.options.read_only,
            **description,
            "routes": self.filesystem.describe_routes(urls),
            "known_inodes": 0,
            "open_files": 0,
            **self._describe(),
            "counters": {},
        }

    @contextlib.contextmanager
    def _signals_to(self, ends: socket.socket) -> Iterator[None]:
        """Have signals end it, in the main thread: the system's handler writes their numbers. One of Python's would run
        when the thread goes on, which may have just begun to wait."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wakes = signal.set_wakeup_fd(ends.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda number, frame: None) for number in ENDING}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
            signal.set_wakeup_fd(wakes)


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
