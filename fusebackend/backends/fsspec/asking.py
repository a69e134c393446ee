"""`Asking`: how a file system of fsspec is asked, and how much of it at a time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

from fusebackend.backends.fsspec.told import told
from fusebackend.base.waiting import will_wait
from fusebackend.remote.fetchers import Fetchers

RANGE_BYTES = 8 << 20
"""The largest range that is asked for."""

LOOP_RANGE_BYTES = 2 << 20
"""The same of a file system with a loop of its own. Its ranges arrive as a whole."""

LOOP_AHEAD = 4
"""So many of those are fetched ahead at once: together `RANGE_BYTES` each round trip."""

Fetch: TypeAlias = Callable[[int, int], Iterable["bytes | memoryview"]]
"""Yields the bytes from one offset to another, in pieces."""


class Standing(Protocol):
    """A request that stays open for what follows, and that no other may overtake on its connection."""

    def end(self) -> None: ...


class Asking:
    """How a file system is asked: by one thread at a time, for its connection is one, unless it has a loop of its own.

    Args:
        fs: an `fsspec.AbstractFileSystem`.
        clock: seconds that only grow.
    """

    def __init__(self, fs: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.at_once = bool(fs.async_impl)
        self.range_bytes = LOOP_RANGE_BYTES if self.at_once else RANGE_BYTES
        self.ahead = LOOP_AHEAD if self.at_once else 1
        self.fetchers = Fetchers(self.ahead)
        self.standing: Standing | None = None
        """Ended before anything else is asked."""
        self._lock: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext() if self.at_once else threading.RLock()
        )

    @contextlib.contextmanager
    def of(self, path: str, fetch: object = None) -> Iterator[None]:
        """Hold the file system. What it raises inside is an `OSError` about `path`.

        Args:
            fetch: what is going to be called; if it is the standing request, that goes on.
        """
        will_wait()
        with self._lock, told(path):
            if self.standing is not None and self.standing is not fetch:
                standing, self.standing = self.standing, None
                standing.end()
            yield
