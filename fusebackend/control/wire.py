"""The wire: JSON-RPC 2.0, one message a line, over a Unix stream socket.

The parts of both ends: the shape of messages, the error codes, the limits, and `MessageLines`, which cuts a stream into
messages without ever holding more than the limit. Bytes are base64. A file name that is not UTF-8 travels as Python
shows it, with a lone surrogate for each odd byte (`"\\udcff"`), which JSON can escape and msgspec can't: then the
standard library's parser takes over.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import socket
import threading
from typing import Any, Literal, TypeVar

import msgspec

from fusebackend.control.limits import MAX_MESSAGE_BYTES, MAX_VALUES

RECEIVE_BYTES = 256 << 10

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NOT_SUPPORTED = -32001
"""`NotImplementedError`: the backend can't do this at all."""
CANCELLED = -32002
BUSY = -32003
"""Too many connections, calls, subscriptions or bytes at once (`limits.py`). Without an id: the server takes nothing
more from this connection, and has not begun what it has not taken."""
SYSTEM_ERROR = -32004
"""`OSError`; `data.errno` is its number, `data.path` the path that it names, if any."""

CallId = int | str | None
T = TypeVar("T")


class Request(msgspec.Struct):
    """A call; without an id a notification, which is carried out and not answered."""

    jsonrpc: Literal["2.0"]
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    id: CallId | msgspec.UnsetType = msgspec.UNSET


class Params(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters are given by name; an unknown name is an error."""


class ErrorObject(msgspec.Struct, omit_defaults=True):
    code: int
    message: str
    data: dict[str, Any] | None = None


MADE_ROOM = ErrorObject(BUSY, "this connection was idle, and had to make room for another one; connect again")
STOOD_STILL = ErrorObject(BUSY, "a message stood still half way, and had to make room for others; connect again")
ENDING = ErrorObject(BUSY, "the mount is ending")


class Response(msgspec.Struct):
    """The answer to a call."""

    id: CallId
    result: Any
    jsonrpc: str = "2.0"


class Failure(msgspec.Struct):
    """The answer to a call that came to nothing."""

    id: CallId
    error: ErrorObject
    jsonrpc: str = "2.0"


class Notification(msgspec.Struct):
    """A part of a streaming call's answer: `params.call` is the call's id."""

    method: str
    params: dict[str, Any]
    jsonrpc: str = "2.0"


class Incoming(msgspec.Struct):
    """Anything a server sends, as a client reads it."""

    jsonrpc: str
    id: CallId = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorObject | None = None
    method: str | None = None
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class WireError(Exception):
    """A message that can't be taken, as a JSON-RPC error."""

    def __init__(self, code: int, message: str, *, call: CallId = None) -> None:
        super().__init__(message)
        self.call = call
        self.error = ErrorObject(code, message)


class Closed(ConnectionError):
    """The other end is gone."""


_encoder = msgspec.json.Encoder()


def encode(message: Any) -> bytearray:
    """One line."""
    line = bytearray()
    try:
        _encoder.encode_into(message, line)
    except UnicodeEncodeError:
        line = bytearray(_encode_odd(message))
    line += b"\n"
    return line


def _encode_odd(value: Any) -> bytes:
    """Encode JSON with lone surrogates. Record by record: the standard library's encoder holds Python's lock all the
    time, for 100,000 records a third of a second."""
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(map(_encode_odd, value)) + b"]"
    if isinstance(value, (Response, Notification)):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    elif dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif not (isinstance(value, dict) and any(isinstance(part, (list, dict)) for part in value.values())):
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")
    return b"{" + b",".join(json.dumps(name).encode() + b":" + _encode_odd(part) for name, part in value.items()) + b"}"


_making = threading.Lock()
"""Decoders are made by one thread at a time. msgspec keeps what it has found out of a class in the class, and there
before it is complete: a second thread that made a decoder meanwhile ended the process with SIGSEGV."""


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with _making:
        return msgspec.json.Decoder(kind)


def decode(line: bytes | msgspec.Raw, kind: Any) -> Any:
    """Read a message, or a part of one. Those of clients are bounded (`MAX_VALUES`), answers are not. Raises
    `msgspec.DecodeError` for malformed JSON, and `msgspec.ValidationError` for another shape."""
    try:
        return _decoder(kind).decode(line)
    except (msgspec.DecodeError, UnicodeError) as error:
        if isinstance(error, msgspec.ValidationError) or b"\\ud" not in bytes(line).lower():
            raise
    is_of_client = kind is Request or (isinstance(kind, type) and issubclass(kind, Params))
    if is_of_client and values(line) > MAX_VALUES:
        raise msgspec.DecodeError(f"escaped bytes of file names in a message of more than {MAX_VALUES} values")
    try:
        found = json.loads(bytes(line), parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    if kind in (Request, Incoming) and isinstance(found, dict):
        _raw_again(found)
    return msgspec.convert(found, kind)


def _finite(text: str) -> float:
    """JSON has no infinity, and nothing that is no number."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"number out of range: {text}")
    return number


def _raw_again(message: dict[str, Any]) -> None:
    """The parts of a message that are decoded later, as JSON again."""
    for key in ("params", "result"):
        if key in message:
            message[key] = msgspec.Raw(json.dumps(message[key]).encode("ascii"))


def convert(found: Any, kind: type[T]) -> T:
    """A part of a message that has been decoded as anything. Raises `msgspec.ValidationError` for another shape."""
    _decoder(kind)  # type: ignore[arg-type]  # any class has a hash
    return msgspec.convert(found, kind)


def parse_request(line: bytes) -> Request:
    """Raises `WireError` for a line that is no call."""
    try:
        request: Request = decode(line, Request)
    except msgspec.ValidationError as error:
        if line.lstrip().startswith(b"["):
            raise WireError(INVALID_REQUEST, "batches are not taken: send one message a line") from None
        raise WireError(INVALID_REQUEST, f"no JSON-RPC 2.0 request: {error}", call=id_of(line)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise WireError(PARSE_ERROR, f"no JSON: {error}") from None
    return request


class _IdOnly(msgspec.Struct):
    id: CallId = None


_id_only = msgspec.json.Decoder(_IdOnly)


def id_of(line: bytes) -> CallId:
    """The id of a message that is not taken, if it has one."""
    try:
        return _id_only.decode(line).id
    except (msgspec.DecodeError, RecursionError, UnicodeError, MemoryError):
        return None


def values(line: bytes | msgspec.Raw) -> int:
    """At most how many values a message has. Braces and commas within texts count, too: telling it apart takes as long
    as decoding."""
    text = bytes(line)
    return sum(map(text.count, (b",", b"[", b"{")))


def require_few_values(params: msgspec.Raw, call: CallId) -> None:
    """Raises `WireError` for parameters of any type that are too many."""
    if values(params) > MAX_VALUES:
        raise WireError(INVALID_PARAMS, f"a payload of more than {MAX_VALUES} values is not taken", call=call)


def parse_params(request: Request, kind: type[Params]) -> Params:
    """Raises `WireError` for parameters that are not the verb's."""
    call = None if request.id is msgspec.UNSET else request.id
    try:
        found: Params = decode(request.params, kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        message = f"{request.method}: {error}".replace("`", "'")
        if bytes(request.params).lstrip().startswith(b"["):
            message = f"{request.method}: parameters are given by name, as an object"
        raise WireError(INVALID_PARAMS, message, call=call) from None
    return found


class MessageLines:
    """A stream of bytes, cut into messages: `receive` until `next` has one.

    A line over the limit is reported as a `WireError`, and thrown away to its end; the next message is understood
    again.

    Args:
        stream: gives the bytes.
        limit_bytes: of one line.

    Attributes:
        held: what was received and not given yet.
    """

    def __init__(self, stream: socket.socket, limit_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._stream = stream
        self._limit = limit_bytes
        self.held = bytearray()
        self._end = -1  # of the first line in it
        self._skips = False

    def next(self) -> bytes | None:
        """Return the next line; None if it has not come yet."""
        if self._end < 0:
            return None
        line = bytes(memoryview(self.held)[: self._end])
        del self.held[: self._end + 1]
        self._end = self.held.find(b"\n")
        return line

    def receive(self) -> None:
        """Wait for more of the stream. Raises `Closed` at its end, `WireError` for a line that is too long, and the
        TimeoutError of the stream."""
        try:
            piece = self._stream.recv(RECEIVE_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed(f"the connection failed: {error}") from None
        if not piece and self.held:
            self.forget()
            raise WireError(PARSE_ERROR, "the last message has no newline at its end, so it was not taken")
        if not piece:
            raise Closed("the connection is closed")
        if self._skips:
            _, ended, piece = piece.partition(b"\n")
            self._skips = not ended
        searched = len(self.held)
        self.held += piece
        if self._end < 0:
            self._end = self.held.find(b"\n", searched)
        if self._end < 0 and len(self.held) > self._limit:
            self.forget()
            self._skips = True
            raise WireError(PARSE_ERROR, f"a message of more than {self._limit} bytes is not taken")

    def forget(self) -> None:
        """Free the held bytes."""
        self.held = bytearray()
        self._end = -1
