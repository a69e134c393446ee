"""`Request`: a change that a verb has asked for, and that waits for an approval, as the history keeps it.

A request has two parts. What was asked never changes: who, when, through which view, the verb, its paths, and the
change itself. What became of it does: its state, and the decision with its actor, time and reason. Both are events
(`events.py`), the change by a keyed digest, so that a short secret can't be guessed from it. Key and change can be
forgotten.

A request outlives its server. It is deleted some time after it was decided, and `forget` takes its change away.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from fusebackend.base.paths import AgentPath, is_below
from fusebackend.base.settings import TIME, Setting, Table
from fusebackend.protocol import Actor

RequestState: TypeAlias = Literal["pending", "approved", "made", "failed", "denied", "expired", "refused"]
"""`pending`: nobody has decided. `approved`: it is being made. `made`, `failed`: it was approved, and happened or could
not. `expired`: nobody decided in time. `refused`: by the kernel, which can't wait, so it can't be approved."""

MAX_WAIT_S: Final = 3600.0
MAX_EXPIRE_S: Final = 30 * 24 * 3600.0


class ApprovalOptions(Table, frozen=True):
    """How long is waited for approvals: `[approvals]` of the TOML file.

    Raises:
        ValueError: a time is out of range.
    """

    wait_s: Annotated[
        float, Setting("How long a caller waits before it is refused with the number of its request.", "wait", TIME)
    ] = 0.0
    expire_s: Annotated[float, Setting("How long a request waits.", "expire", TIME)] = 24 * 3600.0

    def __post_init__(self) -> None:
        if not 0 <= self.wait_s <= MAX_WAIT_S:
            raise ValueError(f"wait = {self.wait_s:g} s: a caller waits for an hour at most")
        if not 0 < self.expire_s <= MAX_EXPIRE_S:
            raise ValueError(f"expire = {self.expire_s:g} s: give more than 0, and 30 days (720 h) at most")


LOGGED: Final = ("request", "approval", "denial")
"""Kinds of calls in the log that change no file."""

DIGEST_BYTES: Final = 16

SELECT: Final = (
    "SELECT event, call, kind, payload, secret FROM events WHERE event IN ('request', 'decision') AND path ISNULL "
    "ORDER BY call DESC, link"
)
FORGET: Final = "UPDATE events SET secret = NULL WHERE call = ? AND path ISNULL"


T = TypeVar("T")


class Asked(msgspec.Struct, frozen=True):
    """What was asked, and never changes. Paths are those of the mount."""

    time_ns: int
    expires_ns: int
    actor: Actor
    view: str
    verb: str
    paths: list[str]
    """That the verb names."""
    granted: list[str]
    """Those that an approval lets through: `paths`, or where their links lead."""
    title: str
    """It in a line."""
    stamps: list[str]
    """What was at each of `paths`. With another stamp it was changed since."""


class Became(msgspec.Struct, frozen=True):
    """What became of a request."""

    time_ns: int = 0
    by: Actor | None = None
    reason: str = ""
    """Of a denial; why it could not be made."""
    answer: bytes = b""
    """Of the verb, `packed`, for a caller that asks again."""


class Request(NamedTuple):
    """See the module's docstring."""

    number: int
    """1 and up, never used again."""
    asked: Asked
    key: bytes
    """Of the digests of contents in it."""
    change: bytes | None
    """The arguments of the verb, `packed`. None where they are not known any more, or never were."""
    state: RequestState = "pending"
    became: Became = Became()


def new_key() -> bytes:
    return os.urandom(DIGEST_BYTES)


def digest(key: bytes, *parts: bytes) -> bytes:
    """Return the keyed digest of contents."""
    found = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES)
    for part in parts:
        found.update(part)
    return found.digest()


def packed(value: Any) -> bytes:
    """Return a value as JSON, bytes in base64. Names that are no UTF-8 (surrogateescape) are kept."""
    return json.dumps(msgspec.to_builtins(value)).encode("ascii")


def unpacked(kind: type[T], data: bytes) -> T:
    """Return what `packed` has packed."""
    return msgspec.convert(json.loads(data), kind)


# -- events --------------------------------------------------------------------------------------------------------


def asked(request: Request) -> dict[str, Any]:
    """Return the event of a new request. Its secret are the key, and the change if there is one."""
    change = request.change or b""
    said = [packed(request.asked), digest(request.key, change), packed(request.became)]
    return {
        "event": "request", "call": -request.number, "kind": request.state, "payload": msgspec.msgpack.encode(said),
        "secret": request.key + change,
    }  # fmt: skip


def became(request: Request) -> dict[str, Any]:
    """Return the event of what became of a request."""
    return {"event": "decision", "call": -request.number, "kind": request.state, "payload": packed(request.became)}


def is_said(payload: bytes, secret: object) -> bool:
    """Return True if a request has the digest of what is kept beside it."""
    if not isinstance(secret, bytes):
        return False
    return bool(digest(secret[:DIGEST_BYTES], secret[DIGEST_BYTES:]) == msgspec.msgpack.decode(payload)[1])


def load(rows: Iterable[tuple[str, int, RequestState, bytes, bytes | None]]) -> list[Request]:
    """Return the requests of the rows of `SELECT`."""
    found: dict[int, Request] = {}
    for event, call, state, payload, secret in rows:
        if event == "request":
            said, _, payload = msgspec.msgpack.decode(payload)
            key, change = (secret or b"")[:DIGEST_BYTES], (secret or b"")[DIGEST_BYTES:]
            found[-call] = Request(-call, unpacked(Asked, said), key, change or None)
        if -call in found:
            found[-call] = found[-call]._replace(state=state, became=unpacked(Became, payload))
    return list(found.values())


def concerns(request: Request, paths: Iterable[AgentPath]) -> bool:
    """Return True if a request names something at or below one of these paths."""
    named = {*request.asked.paths, *request.asked.granted}
    return any(is_below(each, path) for each in named for path in paths)
