"""`Snapshots`: the snapshots of a mount. Each is one of every route that keeps any (`SnapshotVolume`), under one name.

It owns nothing: the volumes have the snapshots, and may have some that this mount has not taken. Called by any thread
but the mount's loop, for `on_change` notifies the kernel. One change at a time; taking one holds the locks of all its
volumes that do not block, so that what an agent has done to one route before another is in neither or in both, or in
the first alone.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from fusebackend.base.paths import ROOT, AgentPath, to_name, why_no_name
from fusebackend.history.records import is_call_name
from fusebackend.protocol import NAME_MAX_BYTES, Snapshot, SnapshotVolume, Volume
from fusebackend.trees.refs import Refs

log = logging.getLogger(__name__)

AUTOMATIC = "@"
"""The names of those that a mount takes by itself begin with it."""

_GIVEN_NAME = "%Y%m%dT%H%M%SZ"
"""The name that is given by default: the time in UTC. A second one of that time has a number at its end."""


def check_name(name: str, of: str = "snapshot", max_bytes: int = NAME_MAX_BYTES) -> None:
    """Refuse what can't be the name of a snapshot, or of a branch, as that of a directory.

    Raises:
        ValueError: it can't be one, or means something else where a state is named: a time, a call, a range.
    """
    why = why_no_name(name)
    if why is None:
        size, refs = len(to_name(name)), Refs({})
        reasons = {
            f"has {size} bytes, and at most {max_bytes} fit": size > max_bytes,
            "begins with '-', as an option does": name.startswith("-"),
            f"begins with '{AUTOMATIC}', as those that the mount takes by itself do": name.startswith(AUTOMATIC),
            "holds '..', as a range does": ".." in name,
            "means a call": is_call_name(name),
            "means the present state": refs.is_present(name),
            "means a time": refs.is_ref(name),
        }
        why = next((reason for reason, applies in reasons.items() if applies), None)
    if why is not None:
        raise ValueError(f"{of} name {name!r} {why}; give another one, such as 'before-upgrade'")


def require_there(of: str, names: Iterable[str], there: Collection[str]) -> None:
    """Raise ENOENT, with a text for people, if one of the names that are to be deleted is not there."""
    for name in names:
        if name not in there:
            known = ", ".join(there) or "none at all"
            text = f"there is no {of} '{name}', and nothing was deleted; there are: {known}"
            raise OSError(errno.ENOENT, text)


class Parts(NamedTuple):
    """A snapshot of the mount: those of its routes."""

    name: str
    parts: Mapping[AgentPath, Snapshot]
    """Prefix → the snapshot of that route. Those of one volume are the same."""

    @property
    def time_ns(self) -> int:
        """When the first of them was taken."""
        return min(part.time_ns for part in self.parts.values())

    @property
    def routes(self) -> list[str]:
        """The prefixes, as people are shown them."""
        return [prefix if prefix == ROOT else prefix + "/" for prefix in sorted(self.parts)]


class Snapshots:
    """See the module's docstring.

    Args:
        volumes: prefix → volume, of all routes of a mount.
    """

    def __init__(self, volumes: Mapping[AgentPath, Volume]) -> None:
        self.volumes = {prefix: volume for prefix, volume in volumes.items() if isinstance(volume, SnapshotVolume)}
        """Those that keep snapshots."""
        self.distinct: dict[AgentPath, SnapshotVolume] = {}
        """The volumes that have them, each once, by its first prefix."""
        for prefix, volume in self.volumes.items():
            if volume.kept_by not in self.distinct.values():
                self.distinct[prefix] = volume.kept_by
        self._guard = threading.Lock()
        self.on_change: Callable[[str], None] = lambda name: None
        """Called with the name of each snapshot that was taken or deleted, with no lock held."""
        for volume in self.distinct.values():
            volume.on_snapshot = lambda name: self.on_change(name)
        self.holder: Callable[[str], str | None] = lambda name: None
        """Says what needs a snapshot, such as a branch; None for nothing. Such a snapshot is not deleted."""

    def _named(self) -> dict[str, dict[AgentPath, Snapshot]]:
        found: dict[str, dict[AgentPath, Snapshot]] = {}
        for prefix, volume in self.volumes.items():
            for part in volume.snapshots():
                found.setdefault(part.name, {})[prefix] = part
        return found

    def all(self) -> list[Parts]:
        """Return all snapshots, the oldest first; of one time, as they were taken (a clock may have been set back)."""
        taken = [Parts(name, parts) for name, parts in self._named().items()]
        return sorted(taken, key=lambda each: each.time_ns)

    def find(self, name: str) -> Parts | None:
        """Return the snapshot of a name."""
        parts = self._named().get(name)
        return None if parts is None else Parts(name, parts)

    def create(self, name: str | None = None) -> Parts:
        """Take a snapshot of every route that keeps any: of all of them or, after an error, of none.

        Args:
            name: of the snapshot; the time in UTC, as `20261123T061530Z`, when None.

        Raises:
            ValueError: the name can't be that of a snapshot.
            OSError: EEXIST, there is one of that name; or a volume's error.
        """
        if name is not None:
            check_name(name)
        return self.take(name, durably=True)

    def take(self, name: str | None, *, durably: bool) -> Parts:
        """Do what `create` does, for a name that need not be checked.

        Args:
            durably: wait until the volumes have it on disk, with their locks free.
        """
        with self._guard:
            if name is None:
                name = self._given_name()
            elif self.find(name) is not None:
                raise OSError(
                    errno.EEXIST, f"there is a snapshot '{name}' already; choose another name, or delete that one"
                )
            taken = self._take(name)
            if durably:
                self._sync(name)
        self.on_change(name)
        return taken

    def _given_name(self) -> str:
        name = datetime.fromtimestamp(time.time(), UTC).strftime(_GIVEN_NAME)
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        names = self._named()
        return next(each for each in itertools.chain([name], numbered) if each not in names)

    def _take(self, name: str) -> Parts:
        done: dict[SnapshotVolume, Snapshot] = {}
        with contextlib.ExitStack() as locks:
            for volume in self.distinct.values():
                if not volume.features.blocking:
                    locks.enter_context(volume.lock)
            for prefix, volume in self.distinct.items():
                try:
                    done[volume] = volume.take_snapshot(name)
                except BaseException as error:
                    _take_back(name, done)
                    if isinstance(error, OSError):
                        raise OSError(error.errno, f"{words_for(prefix)} took no snapshot: {error.strerror}") from error
                    raise
        return Parts(name, {prefix: done[volume.kept_by] for prefix, volume in self.volumes.items()})

    def _sync(self, name: str) -> None:
        volumes = self.distinct.values()
        for volume in volumes:
            try:
                volume.sync()
            except OSError as error:
                _take_back(name, volumes)
                raise OSError(error.errno, f"the snapshot can't be made durable: {error.strerror}") from error

    def drop(self, name: str) -> None:
        """Delete a snapshot whose holder goes, if it is there; log a volume's error, for the holder goes anyway."""
        try:
            if self.find(name) is not None:
                self.delete([name])
        except OSError as error:
            log.error("snapshot '%s', which nothing needs any more, is left: %s", name, error.strerror or error)

    def delete(self, names: Sequence[str]) -> None:
        """Delete snapshots, each in every route that has it.

        Raises:
            OSError: ENOENT, one of them is not there, or EBUSY, something needs it, and none was deleted; or a volume's
                error.
        """
        for name in names:
            needed_by = self.holder(name)
            if needed_by is not None:
                text = f"snapshot '{name}' is below {needed_by}, and nothing was deleted; delete that first"
                raise OSError(errno.EBUSY, text)
        touched: list[str] = []
        try:
            with self._guard:
                there = {each.name: each.parts for each in self.all()}
                require_there("snapshot", names, there)
                for name in dict.fromkeys(names):
                    touched.append(name)
                    self._delete(name, there[name])
        finally:
            for name in touched:
                self.on_change(name)

    def _delete(self, name: str, parts: Mapping[AgentPath, Snapshot]) -> None:
        for prefix, volume in self.distinct.items():
            if prefix not in parts:
                continue
            try:
                volume.delete_snapshot(name)
            except FileNotFoundError:
                pass  # somebody else has deleted it just now
            except OSError as error:
                raise OSError(error.errno, f"{words_for(prefix)} still has '{name}': {error.strerror}") from error


def _take_back(name: str, volumes: Iterable[SnapshotVolume]) -> None:
    for volume in volumes:
        try:
            volume.delete_snapshot(name)
        except OSError:
            log.exception("a part of snapshot '%s', which was not taken, is left", name)


def words_for(prefix: AgentPath) -> str:
    """Return what an error calls a route."""
    return "the default backend" if prefix == ROOT else f"route '{prefix}/'"
