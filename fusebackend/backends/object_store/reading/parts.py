"""`Part`: one range of an object that is fetched once, by whoever begins first, for all who wait for it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait

Fetch = Callable[[int, int], memoryview]
"""Gives the bytes (offset, size) of the object, or raises OSError."""

Arrived = Callable[["Part", memoryview | None], None]
"""Told of the bytes of a part, or None for an error, in the thread that fetched; those who wait have it by then."""


class Part:
    """`size` bytes at `offset`. Thread-safe.

    A thread of the pool and the readers who need it may all call `data`: one of them fetches, the others wait. So a
    part that waits in a full queue is fetched by its first reader instead.
    """

    __slots__ = (
        "_arrived", "_claimed", "_data", "_done", "_error", "_fetch", "_lock",
        "dropped", "end", "offset", "served", "size",
    )  # fmt: skip

    def __init__(self, offset: int, size: int, fetch: Fetch, arrived: Arrived) -> None:
        self.offset = offset
        self.size = size
        self.end = offset + size
        self.served = 0
        """Bytes that were read from it: for its reader, to know when it is used up."""
        self.dropped = False
        """Nobody is going to read it: not worth fetching ahead any more."""
        self._fetch = fetch
        self._arrived = arrived
        self._lock = threading.Lock()
        self._claimed = False
        self._done = threading.Event()
        self._data: memoryview | None = None
        self._error: OSError | None = None

    def data(self) -> memoryview:
        """The bytes; fetches them unless somebody does or has done so."""
        if not self._done.is_set():
            will_wait()
        if self._claim():
            self._run()
        else:
            self._done.wait()
        if self._data is None:
            assert self._error is not None
            # A new one each time: an exception that several threads raise would gather all their tracebacks.
            raise oserror(self._error.errno or errno.EIO, self._error.filename)
        return self._data

    def fetch_ahead(self) -> None:
        """The same in a thread of the pool: an error is for those who wait."""
        if not self.dropped and self._claim():
            self._run()

    def _claim(self) -> bool:
        with self._lock:
            claimed, self._claimed = self._claimed, True
            return not claimed

    def _run(self) -> None:
        try:
            self._data = self._fetch(self.offset, self.size)
        except OSError as error:
            self._error = error
        except BaseException as error:
            self._error = OSError(errno.EIO, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._done.set()
        self._arrived(self, self._data)
