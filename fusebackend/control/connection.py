"""`Connection`: a client's end of one connection to a control server, carrying one call at a time."""

from __future__ import annotations

import errno
import itertools
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from fusebackend.control import wire
from fusebackend.control.wire import Closed, Incoming, Lines

MAX_ANSWER_BYTES = 1 << 30
"""The longest message a client takes. What can be longer comes in pieces."""

CONNECT_TIMEOUT_S = 10.0

T = TypeVar("T")


class ServerLost(ConnectionError):
    """The server of a mount can't be reached, or was gone before it answered."""


class NotSent(ServerLost):
    """It was gone before it had the whole call: nothing has been done."""


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, error: wire.ErrorObject) -> None:
        super().__init__(error.message)
        self.code = error.code
        self.data = error.data or {}

    def as_exception(self) -> Exception:
        """What the same call raises in the server's own process."""
        if self.code == wire.INVALID_PARAMS:
            return ValueError(str(self))
        if self.code == wire.SYSTEM_ERROR:
            return OSError(self.data.get("errno", errno.EIO), str(self))
        return RuntimeError(str(self))


class Connection:
    """See the module's docstring.

    Attributes:
        used: it has carried a call before, so the server may have closed it since.
        answering: something of the answer to the last call has come.

    Raises:
        ServerLost: nobody listens.
    """

    _incoming = wire.Decoder(Incoming)

    def __init__(self, address: str, mountpoint: str) -> None:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _connect(stream, address)
        except OSError as error:
            stream.close()
            why = "nobody listens" if isinstance(error, (ConnectionRefusedError, FileNotFoundError)) else error.strerror
            raise ServerLost(f"the server of '{mountpoint}' can't be reached at '{address}': {why}") from None
        self.begin(stream, mountpoint)

    def begin(self, stream: socket.socket, mountpoint: str) -> None:
        """Use a stream that is connected already."""
        self.used = False
        self.answering = False
        self._mountpoint = mountpoint
        self._ids = itertools.count(1)
        self._stream = stream
        self._lines = Lines(stream, MAX_ANSWER_BYTES)

    def waiting(self, timeout_s: float | None) -> bool:
        """Is there a message, or the beginning of one, within so many seconds? None waits for ever."""
        return self._lines.begun or bool(select.select([self._stream], [], [], timeout_s)[0])

    def close(self) -> None:
        """Also from another thread, which ends a call under way."""
        try:
            self._stream.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise
        self._stream.close()

    def call(
        self,
        kind: type[T],
        verb: str,
        params: Mapping[str, Any],
        take: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> T:
        """Ask, hand every notification of the call to `take`, and give the answer as `kind`.

        Raises:
            Refused, NotSent, ServerLost: see there.
            NotImplementedError: what is mounted can't do this.
        """
        number = next(self._ids)
        self.answering = False
        line = wire.encode({"jsonrpc": "2.0", "id": number, "method": verb, "params": params})
        try:
            self._stream.sendall(line)
        except OSError as error:
            raise NotSent(f"the server of '{self._mountpoint}' is gone: {error.strerror}") from None
        while True:
            message = self.next()
            if message.method is not None:
                if take is not None and message.params is not msgspec.UNSET:
                    take(wire.decode_any(message.params))
                continue
            if message.id == number or (message.id is None and message.error is not None):
                return self._result(kind, message)

    def next(self) -> Incoming:
        """The next message, whatever it is. Raises `ServerLost` at the end."""
        try:
            line = self._lines.next()
        except (Closed, wire.WireError) as error:
            raise ServerLost(
                f"the server of '{self._mountpoint}' was gone before it answered, so nobody knows what it did ({error})"
            ) from None
        self.answering = True
        try:
            message: Incoming = self._incoming(line)
        except msgspec.DecodeError as error:
            raise ServerLost(f"the server of '{self._mountpoint}' does not speak this protocol: {error}") from None
        return message

    def _result(self, kind: type[T], message: Incoming) -> T:
        if message.error is not None:
            if message.error.code == wire.NOT_SUPPORTED:
                raise NotImplementedError(message.error.message)
            raise Refused(message.error)
        if message.result is msgspec.UNSET:
            raise ServerLost(f"the server of '{self._mountpoint}' does not speak this protocol: no result")
        result: T = wire.decode_as(kind, message.result)
        return result


def _connect(stream: socket.socket, address: str) -> None:
    """Connect, and wait for a server that has a queue of others to accept. Raises OSError."""
    stream.setblocking(False)
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            stream.connect(address)
        except BlockingIOError:  # of a Unix socket: its queue is full (connect(2), EAGAIN)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            stream.setblocking(True)
            return
