"""`AutomaticSnapshots`: snapshots that a mount takes by itself while its files change, and deletes when they are old.

A file that was there for `EVERY_S` seconds is in one of them, by any program that deletes or overwrites it later. A
snapshot is taken before a call of an agent that may change something, and every `EVERY_S` while there are changes; none
while there are none. Before a volume answers ENOSPC it deletes the oldest of them (`SnapshotVolume.may_go`).

Their names are times in UTC, `@20261123T061530.123Z`; no other snapshot's name begins with `@`. Snapshots with other
names are never deleted here.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from fusebackend.history.images import FREE_SHARE, MAX_BYTES, MAX_SHARE
from fusebackend.protocol import SnapshotVolume
from fusebackend.trees.snapshots import AUTOMATIC, Snapshots

log = logging.getLogger(__name__)

EVERY_S: Final = 10.0
"""Between two snapshots, at least."""

HOUR_S: Final = 3600
ALL_S: Final = HOUR_S
HOURLY_S: Final = 24 * HOUR_S
DAILY_S: Final = 7 * 24 * HOUR_S
"""All are kept for this long, then the first of each hour, then the first of each day (UTC), then none."""

CLEAN_S: Final = 600.0
"""How often old ones are looked for while nothing changes. A mount without users asks its volumes nothing."""

GONE_AT_ONCE: Final = 0.25
"""The share of the automatic snapshots that goes at one look when the bytes are too many: how many bytes that frees is
known later."""


_FORMAT: Final = "%Y%m%dT%H%M%S"


def name_at(time_ns: int) -> str:
    """The name of an automatic snapshot of this time."""
    moment = datetime.fromtimestamp(time_ns // 10**9, UTC)
    return f"{AUTOMATIC}{moment:{_FORMAT}}.{time_ns // 10**6 % 1000:03}Z"


def time_of(name: str) -> int | None:
    """The time of an automatic snapshot by its name, in ns since the epoch; None for another name."""
    try:
        return int(datetime.strptime(name, f"{AUTOMATIC}{_FORMAT}.%fZ").replace(tzinfo=UTC).timestamp() * 1000) * 10**6
    except ValueError:
        return None


def expired(taken: Sequence[tuple[str, int]], now_ns: int) -> list[str]:
    """Return the names of those that are kept no longer, of automatic snapshots by name and time (ns since the epoch),
    the oldest first."""
    gone: list[str] = []
    hours: set[int] = set()
    days: set[int] = set()
    for name, time_ns in taken:
        time_s = time_ns // 10**9
        age_s = now_ns // 10**9 - time_s
        hour, day = time_s // HOUR_S, time_s // (24 * HOUR_S)
        # By the same rule however often this is called: the first of a period stays the first.
        if age_s >= DAILY_S or (age_s >= HOURLY_S and day in days) or (age_s >= ALL_S and hour in hours):
            gone.append(name)
        hours.add(hour)
        days.add(day)
    return gone


@functools.lru_cache(64)
def is_automatic(name: str) -> bool:
    """Return True for the name of an automatic snapshot."""
    return time_of(name) is not None


class AutomaticSnapshots:
    """See the module's docstring. `start` begins it, in a thread of its own; `stop` ends it.

    Args:
        snapshots: of the mount.
        monotonic_s, time_ns: the clocks.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        monotonic_s: Callable[[], float] = time.monotonic,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._snapshots = snapshots
        self._monotonic_s = monotonic_s
        self._time_ns = time_ns
        self._taking = threading.Lock()
        self._due_s = 0.0  # by the monotonic clock
        self.keep: Callable[[], Collection[str]] = frozenset
        """Returns the names of those that are not deleted because of their age: the history needs them."""
        self.is_read: Callable[[str], bool] = lambda name: False
        """Returns True for a snapshot that an undo or a restore reads now: its own changes may fill the disk."""
        self._ending = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="fusebackend-snapshots", daemon=True)

    def start(self) -> None:
        for volume in self._volumes():
            volume.may_go = self._may_go
        self._thread.start()

    def _may_go(self, name: str) -> bool:
        return is_automatic(name) and self._snapshots.holder(name) is None and not self.is_read(name)

    def stop(self) -> None:
        for volume in self._volumes():
            volume.may_go = None
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()

    def before_call(self) -> None:
        """Take a snapshot if one is due: the caller is about to change something."""
        if self._monotonic_s() >= self._due_s:
            self.take_if_changed()

    def take_if_changed(self) -> bool:
        """Take a snapshot unless nothing has changed since the newest one. A failure is logged, once in a row.

        Returns whether it was tried."""
        with self._taking:
            if self._monotonic_s() < self._due_s or not any(volume.is_changed for volume in self._volumes()):
                return False
            self._due_s = self._monotonic_s() + EVERY_S
            try:
                self._snapshots.take(name_at(self._time_ns()), durably=False)
            except OSError as error:
                if not self._failing:
                    log.warning("no automatic snapshot: %s", error.strerror or error)
                self._failing = True
            else:
                self._failing = False
            return True

    def _run(self) -> None:
        clean_at_s = 0.0
        while not self._ending.wait(EVERY_S):
            try:
                if self.take_if_changed() or self._monotonic_s() >= clean_at_s:
                    self.clean()
                    clean_at_s = self._monotonic_s() + CLEAN_S
            except OSError as error:  # of a server that is away, say; the next one may work
                log.warning("automatic snapshots can't be kept up now: %s", error.strerror or error)
            except Exception:
                log.exception("automatic snapshots can't be kept up")

    def clean(self) -> None:
        """Delete those that are kept no longer, and the oldest where they take too much of the disk."""
        taken = sorted(
            (time_ns, each.name)
            for each in self._snapshots.all()
            if (time_ns := time_of(each.name)) is not None and self._may_go(each.name)
        )
        gone = expired([(name, time_ns) for time_ns, name in taken], self._time_ns())
        if gone:
            kept = self.keep()
            gone = [name for name in gone if name not in kept]
        if not gone and taken and any(_is_too_much(volume) for volume in self._volumes()):
            gone = [name for _, name in taken[: max(1, int(len(taken) * GONE_AT_ONCE))]]
            log.info("the disk is full, or %d snapshots take much of it: the oldest %d go", len(taken), len(gone))
        if gone:
            with contextlib.suppress(FileNotFoundError):  # somebody else has deleted one just now
                self._snapshots.delete(gone)

    def _volumes(self) -> Iterable[SnapshotVolume]:
        return self._snapshots.distinct.values()


def _is_too_much(volume: SnapshotVolume) -> bool:
    """Return True if snapshots alone have as many bytes of files as all copies of the history may, or where the disk is
    nearly full."""
    kept = volume.snapshot_bytes()
    if not kept:
        return False
    disk = volume.statfs()
    disk_bytes = disk.blocks * disk.block_bytes
    return kept > min(MAX_BYTES, MAX_SHARE * disk_bytes) or disk.blocks_free < FREE_SHARE * disk.blocks
