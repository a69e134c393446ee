"""`Asking`: how a file system of fsspec is asked, and how much of it at a time.

Those of FTP, SFTP and SMB have one connection, which they never make again: after a server ended an idle one, every
request failed. So a connection that may be lost is made again before the next request.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

from fusebackend.backends.fsspec.told import told
from fusebackend.base.waiting import will_wait
from fusebackend.remote.fetchers import Fetchers

SMB_PORT = 445

CLOSE_LIMIT_S = 1

RANGE_BYTES = 8 << 20
"""The largest range that is asked for."""

LOOP_RANGE_BYTES = 2 << 20
"""The same of a file system with a loop of its own. Its ranges arrive as a whole."""

LOOP_AHEAD = 4
"""So many of those are fetched ahead at once: together `RANGE_BYTES` each round trip."""

LOST = frozenset({
    errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNREFUSED,
    errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT,
})  # fmt: skip
"""After one of these there is no connection, or an answer is still to come on it."""

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
        self.is_smb = "smb" in fs.protocol
        # smbprotocol has threads of its own, and one more that fetches ahead costs it a third of its speed.
        self.ahead = LOOP_AHEAD if self.at_once else int(not self.is_smb)
        self.fetchers = Fetchers(self.ahead)
        self.standing: Standing | None = None
        """Ended before anything else is asked."""
        self.is_lost = False
        self.connections = 1
        """How many there were: files of an earlier one are closed."""
        self._fs = fs
        self._connects = hasattr(fs, "_connect")
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
        with self._lock:
            try:
                with told(path):
                    if self.standing is not None and self.standing is not fetch:
                        self.standing.end()
                    self.mend()
                    yield
            except OSError as error:
                lost = error.errno in LOST or self._is_closed()
                # EIO is what all other errors of libraries become, those of a lost connection as well.
                if self._connects and (lost or error.errno == errno.EIO):
                    self.is_lost = True
                if lost and error.errno not in LOST:
                    raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET), path) from error
                raise

    def mend(self) -> None:
        """Connect again if the connection may be lost."""
        if not self.is_lost and not self.is_smb:
            return
        try:
            if self.is_lost:
                with contextlib.suppress(Exception):  # of any library: its connection is gone
                    self._close()
            if self.is_lost or self.is_smb:  # smbclient connects by itself, but without the password
                self._fs._connect()
            if self.is_lost and getattr(self._fs, "tls", None) is True:
                self._fs.ftp.prot_p()  # as the constructor of FTP's does
        except Exception as error:
            number = error.errno if isinstance(error, OSError) and error.errno in LOST else errno.ENOTCONN
            raise OSError(number, os.strerror(number)) from error
        self.connections += self.is_lost
        self.is_lost = False

    def _close(self) -> None:
        if self.is_smb:
            import smbclient

            smbclient.delete_session(self._fs.host, self._fs.port or SMB_PORT, timeout=CLOSE_LIMIT_S)
        else:
            getattr(self._fs, "client", self._fs.ftp).close()  # of paramiko or ftplib

    def _is_closed(self) -> bool:
        """Whether SFTP's connection is gone: paramiko raises an `OSError` without a number."""
        client: Any = getattr(self._fs, "client", None)
        transport = client.get_transport() if hasattr(client, "get_transport") else None
        return transport is not None and not transport.is_active()
