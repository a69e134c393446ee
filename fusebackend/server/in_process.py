"""`Mount`: backends of this process as a directory, for as long as a `with` block lasts.

The mount is served by a thread of its own (`Session.run`), so this process may use it like any other: every system call
on it lets go of Python's lock. Only one thing must not be done in the serving process: to fault in a memory mapping of
a file on the mount would block it for ever. pyfuse3 holds one session per process, hence one mount at a time.

A new process closes the files that this one has open, which the mount must answer (FLUSH), and may have its directory
in the mount. `subprocess` keeps Python's lock until that is done, for it uses vfork(2): the mount could never answer.
So it uses fork(2) while there is a mount, which lets go of the lock at once, and takes some ms more in a large process.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import subprocess
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fusebackend.config import MountPlan, MountSettings, kept_at
from fusebackend.linux import mount_point as point
from fusebackend.linux.mount_table import MountError
from fusebackend.server.mounted import MountedBackend

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""How long the kernel and the backends may take until the mount answers."""

END_TIMEOUT_S = 60.0
"""How long storing everything may take at the end."""


class Mount(MountedBackend):
    """A mount of this process, and its files through the agent face: every verb goes to the backend it serves.

    `execute` runs where the default backend runs commands, else in a sandbox whose root is the mount; it sees every
    route at the path that the other verbs use, but those that `status` names. Made by `fusebackend.mount`.
    Leaving the `with` block, or `close`, unmounts; at the end of the interpreter that is done too. The file verbs go on
    working afterwards, for the backend is still there.
    """

    _current: Mount | None = None
    _guard = threading.Lock()

    def __init__(self, backend: CompositeBackend, mountpoint: str | os.PathLike[str], settings: MountSettings) -> None:
        self._claim()
        try:
            from fusebackend.server.assemble import assemble

            point.check_system(allow_other=settings.allow_other)
            self.mountpoint, _ = point.prepare(mountpoint)
            history = kept_at(self.mountpoint, "history") if settings.keeps_history else None
            self._live = assemble(backend, MountPlan(mountpoint=self.mountpoint, settings=settings, history=history))
            # All that the socket's face is made of. A second one would merge the same branch at the same time, and not
            # know of the snapshots that the other one reads.
            vars(self).update(vars(self._live.face))
            if self.parts.metrics is not None:
                self.parts.metrics.measure_verbs(self)
            self._ready = threading.Event()
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
            _let_children_wait(True)

    def _release(self) -> None:
        with Mount._guard:
            if Mount._current is self:
                Mount._current = None
                _let_children_wait(False)

    def _run(self) -> None:
        try:
            self._live.run(self._ready.set)
            if not self._ready.is_set():
                raise MountError(errno.ENOTCONN, f"'{self.mountpoint}' was unmounted before it was ready")
        except BaseException as error:  # raised again by `_wait_until_ready` or `close`
            self._error = error
        finally:
            self._ready.set()

    def _wait_until_ready(self) -> None:
        try:
            if not self._ready.wait(START_TIMEOUT_S):
                raise MountError(errno.ETIMEDOUT, f"'{self.mountpoint}' did not answer within {START_TIMEOUT_S:.0f} s")
        except BaseException:  # Ctrl-C, too
            self._live.stop()
            self._thread.join(5.0)
            raise
        if self._error is not None:
            raise self._error

    def _close_at_exit(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _let_children_wait(for_the_mount: bool) -> None:
    """Have `subprocess` begin processes in a way that lets the mount answer them, see the module's docstring. Python's
    documentation names both switches ("Disable use of vfork() or posix_spawn()")."""
    for switch in ("_USE_VFORK", "_USE_POSIX_SPAWN"):
        setattr(subprocess, switch, not for_the_mount)
