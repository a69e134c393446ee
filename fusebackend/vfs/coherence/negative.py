"""`NegativeDentries`: the kernel caches the absence of names.

Saves: a lookup for each further question for an absent name: `git` and the import of a Python module ask for many. Ten
questions each for 300 absent names: 301 requests instead of 3,001, a quarter of the processor time; `git status` in
1,000 files: 387 instead of 567. An answer with inode 0 and a timeout makes the kernel keep a negative dentry. Not on
volumes that other hosts share: a new name is worth a question there. Switch: `negative_dentries`.

Race: on a route that others change without a feed the kernel caches the absence for the route's TTL, which may be
hours. `invalidate` then needs a notice for each name, since the kernel does not list its dentries. So absent names are
kept here, and a name for which there is no room is not cached by the kernel. Cost: 200 bytes for each, at most 20,000
of them. Switch: `absent_names`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from fusebackend.vfs.junctions import Route

MAX_NAMES = 20_000


class NegativeDentries:
    """See the module's docstring. Noted on the mount's loop, taken by any thread."""

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
