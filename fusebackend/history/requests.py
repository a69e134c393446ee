"""`Request`: a change that a verb has asked for, and that waits for an approval, as the history keeps it.

A request has two parts. What was asked never changes: who, when, through which view, the verb, its paths, and the
change itself. What became of it does: its state, and then who decided, when and why. Both are events of the hash chain
(`chain.py`), the change by a keyed digest, so that a short secret can't be guessed from it.

A request outlives its server. It is deleted some time after it was decided, and `forget` takes its change away.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from fusebackend.base.paths import AgentPath, is_below
from fusebackend.base.settings import TIME, Setting, Table
from fusebackend.protocol import Actor

if TYPE_CHECKING:
    import sqlite3

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

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY, asked BLOB NOT NULL, key BLOB NOT NULL, change BLOB,
    state TEXT NOT NULL, became BLOB NOT NULL, link INTEGER NOT NULL);
"""
"""`change` is None once it was forgotten. `link` is that of the event of the request."""

INSERT: Final = "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?)"
UPDATE: Final = "UPDATE requests SET state = ?, became = ? WHERE number = ?"
DELETE: Final = "DELETE FROM requests WHERE number = ?"
STATEMENTS: Final = frozenset({INSERT, UPDATE, DELETE})

ASKED, BECAME, GONE = "request", "request-became", "request-gone"
"""Events of the chain."""


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


Statement: TypeAlias = tuple[str, tuple[Any, ...]]


def packed(value: Any) -> bytes:
    """Return a value as JSON, bytes in base64. Names that are no UTF-8 (surrogateescape) are kept."""
    return json.dumps(msgspec.to_builtins(value)).encode("ascii")


def unpacked(kind: type[T], data: bytes) -> T:
    """Return what `packed` has packed."""
    return msgspec.convert(json.loads(data), kind)


# -- rows and events: the columns of `INSERT`, without the link, which `written` adds ------------------------------


def inserted(request: Request) -> Statement:
    """Return the statement that writes a new request."""
    asked, became = packed(request.asked), packed(request.became)
    return INSERT, (request.number, asked, request.key, request.change, request.state, became)


def updated(request: Request) -> Statement:
    """Return the statement that writes what became of a request."""
    return UPDATE, (request.state, packed(request.became), request.number)


def said(statement: str, row: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Return the event of a statement: its kind and value."""
    if statement == INSERT:
        number, asked, key, change, state, became = row
        return ASKED, [number, asked, digest(key, change or b""), state, became]
    if statement == UPDATE:
        state, became, number = row
        return BECAME, [number, state, became]
    return GONE, [row[0]]


def load(connection_rows: Iterable[tuple[Any, ...]]) -> Iterator[Request]:
    """Yield the requests of rows of the table."""
    for number, asked, key, change, state, became, _ in connection_rows:
        yield Request(number, unpacked(Asked, asked), key, change, state, unpacked(Became, became))


def concerns(request: Request, paths: Iterable[AgentPath]) -> bool:
    """Return True if a request names something at or below one of these paths."""
    named = {*request.asked.paths, *request.asked.granted}
    return any(is_below(each, path) for each in named for path in paths)


def wrong(connection: sqlite3.Connection, events: Iterable[tuple[str, list[Any]]]) -> Iterator[str]:
    """Compare the requests of a history with the events of them. Yields a line for each that was changed.

    Args:
        events: of the chain, from the first one that is there.
    """
    asked: dict[int, tuple[bytes, bytes]] = {}
    last: dict[int, tuple[str, bytes]] = {}
    for kind, value in events:
        if kind == ASKED:
            number, text, change, state, became = value
            asked[number], last[number] = (text, change), (state, became)
        elif kind == BECAME:
            last[value[0]] = (value[1], value[2])
        elif kind == GONE:
            asked.pop(value[0], None)
    rows = connection.execute("SELECT number, asked, key, change, state, became FROM requests ORDER BY number")
    for number, text, key, change, state, became in rows:
        known = asked.pop(number, None)
        if known is None:
            yield f"request {number} was added past the server"
        elif (text, known[1] if change is None else digest(key, change)) != known or (state, became) != last[number]:
            yield f"request {number} was changed"
    for number in asked:
        yield f"request {number}: it was deleted past the server"
