"""`Recording`: the history of a mount that is served: its file, the recorders of kernel and verbs, and retention.

A thread ends calls that are quiet, stamps them, and deletes what is older than a day or too much. `close` comes after
the last change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fusebackend.base.paths import AgentPath, join
from fusebackend.history.calls import QUIET_S
from fusebackend.history.history_file import FILE_NAME, HistoryFile
from fusebackend.history.images import Images
from fusebackend.history.masking import LogOptions
from fusebackend.history.recorder import HistoryListener, Recorder, drop_lost, drop_unmade
from fusebackend.history.steps import Steps
from fusebackend.protocol import SnapshotVolume
from fusebackend.trees.automatic import AutomaticSnapshots, is_automatic, name_at
from fusebackend.trees.branch_volume import BranchVolume

if TYPE_CHECKING:
    from fusebackend.vfs.junctions import Route
    from fusebackend.vfs.mounted_tree import FileSystem

log = logging.getLogger(__name__)

KEPT_S: Final = 24 * 3600
"""Calls, their records and bytes are kept for so long after the call's end."""

CLEAN_S: Final = 60.0
"""How often old ones are deleted."""

RUNNING_S: Final = 1.0
"""How long the end of a mount waits for changes that still run in threads."""

GONE_AT_ONCE: Final = 100
"""Calls that go at a time when the bytes are too many, the oldest first."""


class Recording:
    """See the module's docstring.

    Args:
        directory: of the history.
        mountpoint: must not have the directory in it.
        filesystem: the mounted tree.
        automatic: the snapshots that the mount takes by itself. None: images are in no snapshots.
        urls: prefix → URL of the backend, where it is known.
        options: what is kept of calls.

    Attributes:
        is_open: False once the mount has ended: the backend's verbs go on, and nothing is recorded of them.

    Raises:
        OSError: there can't be a history in the directory, or another server has it open.
    """

    def __init__(
        self,
        directory: str,
        mountpoint: str,
        filesystem: FileSystem,
        automatic: AutomaticSnapshots | None,
        urls: Mapping[str, str] | None = None,
        options: LogOptions | None = None,
    ) -> None:
        real = os.path.realpath(directory)
        if os.path.commonpath([real, os.path.realpath(mountpoint)]) == os.path.realpath(mountpoint):
            raise OSError(f"it would be inside the mount: '{directory}'; set XDG_STATE_HOME to another place")
        self.directory = directory
        self.is_open = True
        self._filesystem = filesystem
        self._automatic = automatic
        self.history = HistoryFile(os.path.join(directory, FILE_NAME), options=options)
        try:
            self.history.bind({route.prefix: _identity(route, urls or {}) for route in filesystem.tree.routes})
            self.images = Images(directory, None if automatic is None else _now, is_automatic)
            logged = self._replay()
            self.images.clean(self.history)
            self.recorder = Recorder(self.history, self.images, filesystem.tree.routes, logged)
            self.calls = self.recorder.calls
            self.steps = Steps(self.recorder, filesystem.tree)
            self._attach()
        except BaseException:
            self.history.close()
            raise
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fusebackend-calls", daemon=True)
        self._thread.start()

    def _replay(self) -> set[AgentPath]:
        """Take up what volumes have kept for a server that was killed; returns the routes that keep a log from now on.
        Before anything else is written, and before bytes that no record needs are removed."""
        logged = set()
        for route in self._filesystem.tree.routes:
            if isinstance(route.volume, SnapshotVolume) and not route.volume.features.read_only:
                try:
                    rows = route.volume.keep_log(self.history.commit_log(partial(self._lost, route)))
                except OSError as error:
                    log.warning("'%s': what a killed server may have changed can't be read: %s", route.prefix, error)
                    continue
                if rows is not None:
                    logged.add(route.prefix)
                    taken = self.history.replay(route.prefix, rows)
                    if taken:
                        log.info("'%s': %d changes of a killed server are in the history now", route.prefix, taken)
        return logged

    def _lost(self, route: Route, numbers: Sequence[int]) -> None:
        self.recorder.lost(route.volume)
        drop_lost(self.history, self.images, route.volume, numbers)
        log.warning("'%s': a crash has taken %d changes that were recorded", route.prefix, len(numbers))

    def _attach(self) -> None:
        filesystem = self._filesystem
        with contextlib.suppress(OSError):  # a volume that does not answer: an undo names what it finds
            drop_unmade(self.history, self.recorder.images, filesystem.tree.volume_at, self.recorder.logged)
        self.recorder.stamp_interrupted()
        filesystem.record(partial(HistoryListener, self.recorder), self.calls.processes.of, self)
        for route in filesystem.tree.routes:
            route.undo = "none" if route.volume.features.read_only else "copies"
            if isinstance(route.volume, SnapshotVolume):
                route.volume.before_commit = self.history.before_commit
                if self._automatic is not None and not route.volume.features.read_only:
                    route.undo = "instant"
        if self._automatic is not None:
            self._automatic.keep = lambda: self.history.images("snapshot")

    # -- branches --------------------------------------------------------------------------------------------------

    def attached(self, route: Route) -> bool:
        """Record the changes in a branch from now on. False if that is not possible."""
        volume = route.volume
        if not isinstance(volume, BranchVolume):
            return False
        try:
            self.history.bind({route.prefix: f"branch {volume.created_ns}"})
            with contextlib.suppress(OSError):  # as of the routes of the mount
                drop_unmade(self.history, self.images, {route.prefix: volume})
        except OSError as error:
            self.recorder.failed(error, f"changes in '{route.prefix}' are not recorded")
            return False
        volume.before_commit = self.history.before_commit
        route.undo = "copies"
        self.recorder.attach(route)
        return True

    def detached(self, route: Route) -> None:
        """Forget what was recorded of a branch: it is deleted."""
        if route.prefix not in self.recorder.beside:
            return
        self.recorder.detach(route.prefix)
        self._drop(route.prefix)

    def opened_branches(self, names: Collection[str]) -> None:
        """All branches have been attached that can be. Before anything changes.

        Args:
            names: of those that are there, also of ones that can't be opened.
        """
        apart = self.history.apart
        there = {join(apart, name) for name in names} if apart is not None else set()
        with contextlib.suppress(OSError):  # the next server does it
            for prefix in self.history.bound_apart():
                if prefix not in there:
                    self._drop(prefix)
        self.recorder.stamp_interrupted()

    def close_branches(self) -> None:
        """The volumes of the branches are about to be closed, after the last change."""
        if self.recorder.beside:
            self.recorder.settle_all()
        for prefix in self.recorder.beside:
            self.recorder.detach(prefix)

    def _drop(self, prefix: AgentPath) -> None:
        try:
            below = self.images.next_number()
            self.history.drop_route(prefix)
            self.images.clean(self.history, below)
        except OSError as error:
            self.recorder.failed(error, f"what was recorded of '{prefix}' can't be deleted")

    def close(self) -> None:
        """End all calls, and close the file. Twice is once."""
        if not self.is_open:
            return
        self.is_open = False
        self._ending.set()
        self.calls.opened.set()
        self._thread.join()
        self.recorder.end(RUNNING_S)
        self.calls.close()
        self.history.flush()
        for route in self._filesystem.tree.routes:
            if isinstance(route.volume, SnapshotVolume):
                route.volume.before_commit = None
                if route.prefix in self.recorder.logged:
                    with contextlib.suppress(OSError):  # the next server finds what is left
                        route.volume.keep_log(None)
        self.history.close()

    def describe(self) -> dict[str, Any]:
        """For `status`."""
        return {
            "path": self.directory,
            "bytes": self.history.size_bytes,
            "image_bytes": self.images.size_bytes,
            "incomplete": self.recorder.incomplete or self.history.failed,
        }

    # -- what goes -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        clean_at_s, wait_s = time.monotonic() + CLEAN_S, QUIET_S
        while not self._ending.is_set():  # `close` sets `opened`, and `end_quiet` may have cleared it since
            self.calls.opened.wait(CLEAN_S)
            if self._ending.wait(wait_s):
                return
            try:
                wait_s = self.calls.end_quiet()
                if time.monotonic() >= clean_at_s:
                    clean_at_s = time.monotonic() + CLEAN_S
                    self.clean()
            except Exception:  # the next time may be better
                log.exception("the history can't be kept up")

    def clean(self, time_ns: int | None = None) -> None:
        """Delete calls that ended more than a day ago, the oldest calls where images take too much, and images that no
        record needs."""
        below = self.images.next_number()
        gone = self.history.ended_before((time.time_ns() if time_ns is None else time_ns) - KEPT_S * 10**9)
        if not gone and self.images.is_too_much():
            gone = self.history.oldest(GONE_AT_ONCE)
            if gone:
                log.info("images of the history take too much of the disk: the oldest %d calls go", len(gone))
        if gone:
            self.history.forget(gone)
            self.images.clean(self.history, below)


def _identity(route: Route, urls: Mapping[str, str]) -> str | None:
    """Return a text that names the backend of a route; None if its files end with the server."""
    volume = route.volume
    if not volume.features.durable:
        return None
    return urls.get(route.prefix) or f"{type(volume).__name__} {getattr(volume, 'path', '')}".rstrip()


def _now() -> str:
    return name_at(time.time_ns())
