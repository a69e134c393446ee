"""`AbsentNames`: what the kernel was told is not there, of routes that others may change unseen.

The kernel believes that for as long as the route's TTL, which may be hours; when somebody says that things have changed
(`invalidate`), it has to be told name by name. So a name that can't be kept in mind here is not kept by the kernel.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from fusebackend.vfs.junctions import Route

MAX_NAMES = 20_000


class AbsentNames:
    """See the module's docstring. Noted on the mount's loop, taken by any thread."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[int, bytes], tuple[float, Route]] = OrderedDict()  # until when, in that order
        self._guard = threading.Lock()

    def note(self, route: Route, parent: int, name: bytes) -> float:
        """A name was not there; returns for how many seconds the kernel may believe that."""
        timeout_s = route.policy.timeout_s
        if route.shared:
            return 0.0
        if route.policy.coherent or not timeout_s:
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
        """The (directory, name)s of a route, once."""
        with self._guard:
            taken = [key for key, (_, of) in self._noted.items() if of is route]
            for key in taken:
                del self._noted[key]
        return taken
