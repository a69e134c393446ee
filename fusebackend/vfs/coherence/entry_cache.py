"""The kernel's names and attributes: for how long it may cache them, absent names, and answers that a change overtook.

`CachePolicy` has the timeouts of a route. `NegativeDentries` and `Overtaken` close a race each; see each of them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusebackend.protocol import Attr, Features

if TYPE_CHECKING:
    from fusebackend.vfs.inodes import Entry
    from fusebackend.vfs.junctions import Route


# -- timeouts ---------------------------------------------------------------------------------------------------
#
# Entry and attribute timeouts: how long the kernel may cache names, attributes and pages.
#
# The kernel's dentry, attribute and page caches are the performance plan. A volume whose every change passes through
# this process or arrives by its feed is cached for an hour, with active invalidation; absence is cached as well. A
# volume that other hosts change too is cached the same way while its feed works, and opened as in `dentries.py`;
# absence is not cached, for a new name is worth a question. On a volume that others may write to without a feed,
# everything expires after the route's TTL, and pages are kept across opens only while the file's size and times are the
# same.


COHERENT_TIMEOUT_S = 3600.0
"""Entry and attribute timeout where invalidation is active. Finite, so that a missed one heals some day."""

ENDLESS_TIMEOUT_S = 10 * 365 * 86_400.0
"""Entry and attribute timeout of a directory that is the server's, and never changes."""

SHARED_DIRECTORY_TIMEOUT_S = 60.0
"""Entry timeout of the directories of a shared volume: the way to files leads through them, and while there is no feed
their names can't be taken back. A lookup in a minute costs nothing."""


@dataclass(frozen=True)
class CachePolicy:
    """Timeouts of one route, in seconds."""

    timeout_s: float
    coherent: bool

    @classmethod
    def of(cls, features: Features, ttl_s: float, *, alone: bool = True) -> CachePolicy:
        """The policy of a volume. Without `alone` the volume has another prefix, too: a change under one prefix shows
        late under the other."""
        if features.change_feed and alone:
            return cls(COHERENT_TIMEOUT_S, True)
        return cls(ttl_s, False)

    def timeout(self, attr: Attr) -> float:
        """Return the entry timeout of a shared volume, in seconds."""
        return min(self.timeout_s, SHARED_DIRECTORY_TIMEOUT_S) if attr.is_dir else self.timeout_s


# -- negative ----------------------------------------------------------------------------------------------------


MAX_NAMES = 20_000


class NegativeDentries:
    """The kernel caches the absence of names.

    Saves: a lookup for each further question for an absent name: `git` and the import of a Python module ask for many.
    Ten questions each for 300 absent names: 301 requests instead of 3,001, a quarter of the processor time; `git
    status` in 1,000 files: 387 instead of 567. An answer with inode 0 and a timeout makes the kernel keep a negative
    dentry. Not on volumes that other hosts share: a new name is worth a question there. Switch: `negative_dentries`.

    Race: on a route that others change without a feed the kernel caches the absence for the route's TTL, which may be
    hours. `invalidate` then needs a notice for each name, since the kernel does not list its dentries. So absent names
    are kept here, and a name for which there is no room is not cached by the kernel. Cost: 200 bytes for each, at most
    20,000 of them. Switch: `absent_names`.

    Noted on the mount's loop, taken by any thread."""

    def __init__(self, on: bool, remembers: bool) -> None:
        self._on = on
        self._remembers = remembers
        self._noted: OrderedDict[tuple[int, bytes], tuple[float, Route]] = OrderedDict()  # until when, in that order
        self._guard = threading.Lock()

    def note(self, route: Route, parent: int, name: bytes) -> float:
        """Note an absent name; returns the timeout of the answer in seconds."""
        timeout_s = route.policy.timeout_s
        if route.shared or not self._on:
            return 0.0
        if route.policy.coherent or not timeout_s or not self._remembers:
            return timeout_s
        now = time.monotonic()
        with self._guard:
            self._noted.pop((parent, name), None)
            while self._noted and next(iter(self._noted.values()))[0] < now:
                self._noted.popitem(last=False)
            if len(self._noted) >= MAX_NAMES:
                return 0.0
            self._noted[parent, name] = now + timeout_s, route
        return timeout_s

    def take(self, route: Route) -> list[tuple[int, bytes]]:
        """Remove and return the (directory, name)s of a route."""
        with self._guard:
            taken = [key for key, (_, of) in self._noted.items() if of is route]
            for key in taken:
                del self._noted[key]
        return taken


# -- overtaken ---------------------------------------------------------------------------------------------------


class Overtaken:
    """An answer that a change may have overtaken is given with a timeout of zero.

    Race: a volume is asked for a name or for attributes, another face changes them, and the notice reaches the kernel
    before the answer does. The kernel drops the notice of an inode that it has not instantiated
    (`fuse_reverse_inval_inode`, fs/fuse/inode.c), and would then cache the old answer for an hour. With a timeout of
    zero it asks again. Cost: a comparison of two numbers for each answer; a busy agent makes the kernel ask twice.
    Switch: `overtaken`.

    The answers to LINK and to a CREATE of an existing file are applied without a check for a newer notice
    (`create_new_entry`, fs/fuse/dir.c), so they always have a timeout of zero. Cost: one GETATTR at the next use of the
    file. Switch: `unordered_replies`.
    """

    def __init__(self, on: bool, unordered: bool) -> None:
        self._on = on
        self._unordered = unordered
        self.generation = 0
        """Counts the changes by others."""

    def checked(self, entry: Entry, asked_at: int) -> Entry:
        """Return the entry, with a timeout of zero if anything was changed since the volume was asked.

        Args:
            asked_at: `generation` from before the volume was asked.
        """
        return entry if asked_at == self.generation or not self._on else entry._replace(timeout_s=0.0)

    def unordered(self, entry: Entry) -> Entry:
        """Return the entry for an answer that the kernel applies also after a newer notice."""
        return entry._replace(timeout_s=0.0) if self._unordered else entry
