"""`Chain`: a hash chain over what a history says, so that a later change of it shows.

Every call, every record, and every later event of them (an end, an undo, a change that was not made, a deletion), and
every request with what became of it (`requests.py`), is a link: a number without gaps, and a digest of what is said.
The head of a link is the digest of the head before it and of its own digest. The head of the last one is in the file.

    head(n) = BLAKE2b(head(n - 1) + digest(n))        digest(n) = BLAKE2b(n, table, columns)

A deleted call leaves its links, as stubs with their digests, until nothing older is left: then a checkpoint with the
head takes their place. The event of the deletion is a link itself, and names the call; a stub without one was deleted
by somebody else.

Not in a digest: where the bytes of a file are kept, and its extended attributes, for `forget` deletes them. What a call
left (`Record.after`), which is known later, is an event.

A link takes 4 µs, in the thread that writes the file. `verify` reads all of it: some 10 µs for each link.

It shows accidents, and changes by somebody who has not written all digests anew. Against the server's own user, who can
do that, it proves nothing.
"""

from __future__ import annotations

import hashlib
import heapq
import sqlite3
from collections.abc import Iterator, Mapping, Sequence, Set
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from fusebackend.history import requests
from fusebackend.protocol import VerifyResult

BYTES: Final = 16
"""Of a digest."""

START: Final = bytes(BYTES)
"""The head before the first link."""

NAMED: Final = 100
"""Problems that an answer names, at most."""

NO_STAMP: Final = hash((None,) * 5)

CALL_COLUMNS: Final = 11
"""Of a row of `calls`: all but its end, and which undo has taken it back. These are events."""

BEFORE_COLUMN, XATTRS_COLUMN, TARGET_COLUMN = 9, 17, 18
"""Of a row of `records`: what was done is up to the first, the file before it up to the last; without its extended
attributes. A row that is to be written may end before."""

LINK_COLUMN: Final = 27
"""Of a row of `records` in the file: its link; the digest follows."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS events (
    link INTEGER PRIMARY KEY, kind TEXT NOT NULL, request INTEGER, value BLOB NOT NULL, digest BLOB NOT NULL,
    secret BLOB);
CREATE INDEX IF NOT EXISTS events_of_requests ON events (request, link) WHERE request NOTNULL;
CREATE TABLE IF NOT EXISTS stubs (link INTEGER PRIMARY KEY, of INTEGER NOT NULL, digest BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS chain (
    one INTEGER PRIMARY KEY CHECK (one = 1), link INTEGER NOT NULL, head BLOB NOT NULL,
    first INTEGER NOT NULL, before BLOB NOT NULL);
INSERT OR IGNORE INTO chain VALUES (1, 0, zeroblob(16), 1, zeroblob(16));
"""
"""`chain`: the last link and its head; the first link that is there, and the head before it (the checkpoint).
`stubs.of`: the deleted call; the negative number of a record whose change was not made. `events.secret`: what an event
says by a keyed digest (`requests.py`), until it is forgotten."""

EVENT: Final = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)"

Statement: TypeAlias = tuple[str, tuple[Any, ...]]

_encode: Final = msgspec.msgpack.Encoder().encode


class Position(NamedTuple):
    """A link, and its head."""

    link: int
    head: bytes


def digest(link: int, kind: str, row: Sequence[Any]) -> bytes:
    """Return the digest of what a link says. The values are those of SQLite."""
    return hashlib.blake2b(_encode((link, kind, row)), digest_size=BYTES).digest()


def after(head: bytes, said: bytes) -> bytes:
    """Return the head of a link, from that of the one before it and its digest."""
    return hashlib.blake2b(head + said, digest_size=BYTES).digest()


def said_of_call(row: Sequence[Any]) -> Sequence[Any]:
    return row[:CALL_COLUMNS]


def said_of_record(row: Sequence[Any], *, has_before: bool) -> Sequence[Any]:
    """Return what a record says, of a row that may end early."""
    return (*row[:XATTRS_COLUMN], row[TARGET_COLUMN]) if has_before else row[:BEFORE_COLUMN]


class Chain:
    """The end of a chain, for the thread that writes the file.

    Args:
        position: the last link.
    """

    def __init__(self, position: Position) -> None:
        self.link, self.head = position

    @property
    def position(self) -> Position:
        return Position(self.link, self.head)

    def add(self, kind: str, row: Sequence[Any]) -> tuple[int, bytes]:
        """Add a link; returns its number and its digest."""
        self.link += 1
        found = digest(self.link, kind, row)
        self.head = after(self.head, found)
        return self.link, found

    def event(
        self, kind: str, row: Sequence[Any], request: int | None = None, secret: bytes | None = None
    ) -> Statement:
        """Add an event; returns the statement that writes it.

        Args:
            request: the number of the request that it is of.
            secret: what it does not say itself, and can be forgotten.
        """
        value = _encode(row)
        link, found = self.add(kind, [request, value])
        return EVENT, (link, kind, request, value, found, secret)


def load(connection: sqlite3.Connection) -> Position:
    """Return the last link."""
    return Position(*connection.execute("SELECT link, head FROM chain").fetchone())


def leave_stubs(connection: sqlite3.Connection, calls: Sequence[int]) -> None:
    """Keep the links of calls that are about to be deleted."""
    rows = [(call,) for call in calls]
    connection.executemany("INSERT INTO stubs SELECT link, number, digest FROM calls WHERE number = ?", rows)
    connection.executemany("INSERT INTO stubs SELECT link, call, digest FROM records WHERE call = ?", rows)


def collapse(connection: sqlite3.Connection) -> None:
    """Have the checkpoint take the place of the oldest links, up to the first call, record or request that is still
    there. After calls were deleted, in the same transaction."""
    last, first, head = connection.execute("SELECT link, first, before FROM chain").fetchone()
    (live,) = connection.execute(
        "SELECT min(link) FROM (SELECT min(link) AS link FROM calls UNION ALL SELECT min(link) FROM records "
        f"UNION ALL SELECT min(link) FROM events WHERE {requests.LIVE})"
    ).fetchone()
    until = last + 1 if live is None else live
    rows = connection.execute(
        "SELECT link, digest FROM stubs WHERE link < ? UNION ALL SELECT link, digest FROM events WHERE link < ? "
        "ORDER BY link",
        (until, until),
    )
    for link, found in rows:
        if link != first:
            return  # a gap: it stays, so that `verify` finds it
        first, head = link + 1, after(head, found)
    if first == until:
        connection.execute("UPDATE chain SET first = ?, before = ?", (first, head))
        for table in ("stubs", "events"):
            connection.execute(f"DELETE FROM {table} WHERE link < ?", (until,))


# -- verification ----------------------------------------------------------------------------------------------


class _Link(NamedTuple):
    link: int
    digest: bytes
    where: str
    computed: bytes | None
    """None for a stub: what it said is gone."""
    call: int


def _links(connection: sqlite3.Connection) -> Iterator[_Link]:
    """Yield all links in their order."""
    sources = [_of_calls(connection), _of_records(connection), _of_events(connection), _of_stubs(connection)]
    return heapq.merge(*sources, key=attrgetter("link"))


def _of_calls(connection: sqlite3.Connection) -> Iterator[_Link]:
    for row in connection.execute("SELECT * FROM calls ORDER BY link"):
        link, found = row[-2:]
        yield _Link(link, found, f"call c{row[0]}", digest(link, "call", said_of_call(row)), row[0])


def _of_records(connection: sqlite3.Connection) -> Iterator[_Link]:
    """Yield the records. Nearly all have numbers in the order of their links; one whose outcome was known late is read
    by itself, for to sort all takes a copy of the table."""
    late, least = [], 1 << 63
    for number, link in connection.execute("SELECT number, link FROM records ORDER BY number DESC"):
        if link > least:
            late.append((link, number))
        least = min(least, link)
    late.sort(reverse=True)
    passed = {number for _, number in late}
    for row in connection.execute("SELECT * FROM records ORDER BY number"):
        if row[0] in passed:
            continue
        while late and late[-1][0] < row[LINK_COLUMN]:
            yield _of_record(connection, late.pop()[1])
        yield _said(row)
    while late:
        yield _of_record(connection, late.pop()[1])


def _of_record(connection: sqlite3.Connection, number: int) -> _Link:
    return _said(connection.execute("SELECT * FROM records WHERE number = ?", (number,)).fetchone())


def _said(row: Sequence[Any]) -> _Link:
    """Return the link of a row of `records`."""
    link, found = row[LINK_COLUMN : LINK_COLUMN + 2]
    where = f"change {row[0]} of call c{row[1]}"
    # Of a file that was not there before nothing is said, so nothing may stand there.
    has_before = any(each is not None for each in (*row[BEFORE_COLUMN:XATTRS_COLUMN], row[TARGET_COLUMN]))
    said = said_of_record(row, has_before=has_before)
    return _Link(link, found, where, digest(link, "record", said), row[1])


def _of_events(connection: sqlite3.Connection) -> Iterator[_Link]:
    rows = connection.execute("SELECT link, kind, request, value, digest FROM events ORDER BY link")
    for link, kind, request, value, found in rows:
        yield _Link(link, found, f"event {link} ({kind})", digest(link, kind, [request, value]), 0)


def _of_stubs(connection: sqlite3.Connection) -> Iterator[_Link]:
    for link, call, found in connection.execute("SELECT * FROM stubs ORDER BY link"):
        yield _Link(link, found, f"link {link} of {_name(call)}", None, call)


def verify(connection: sqlite3.Connection) -> VerifyResult:
    """Check a history. In a transaction that sees one state of it."""
    last, stored_head, first, head = connection.execute("SELECT link, head, first, before FROM chain").fetchone()
    problems: list[str] = []
    stubs: dict[int, int] = {}  # call → its first stub
    expected = first
    for each in _links(connection):
        if each.link > expected:
            problems.append(_missing(expected, each.link - 1))
        elif each.link < expected:
            problems.append(f"{each.where} was added: its place in the chain is taken")
            continue
        if each.computed is None:
            stubs.setdefault(each.call, each.link)
        elif each.computed != each.digest:
            problems.append(f"{each.where} was changed")
        expected = each.link + 1
        head = after(head, each.digest if each.computed is None else each.computed)
    if expected <= last:
        problems.append(_missing(expected, last))
    if not problems and (expected != last + 1 or head != stored_head):
        problems.append("the head of the chain is another one: the end of the history was written anew")
    problems += _wrong_events(connection, stubs)
    return VerifyResult(first, last, problems[:NAMED])


def _name(call: int) -> str:
    return f"the deleted call c{call}" if call > 0 else f"change {-call}, which was not made"


def _missing(first: int, last: int) -> str:
    return f"link {first} is missing" if first == last else f"links {first} to {last} are missing"


def _wrong_events(connection: sqlite3.Connection, stubs: Mapping[int, int]) -> Iterator[str]:
    """Compare ends, undos and deletions with the events of them."""
    ends: dict[int, Any] = {}
    undone: dict[int, Any] = {}
    gone: set[int] = set()
    stamps: dict[int, int] = {}  # record → a hash of what its call left: there may be a million
    pairs: set[tuple[Any, Any]] = set()  # an undo and a call that it has taken back
    for link, kind, request, value, found, secret in connection.execute("SELECT * FROM events ORDER BY link"):
        if digest(link, kind, [request, value]) != found:
            continue  # it was changed, which `verify` has found: it may be anything
        row = msgspec.msgpack.decode(value)
        if secret is not None and not requests.is_said(kind, row, secret):
            yield f"what is kept for event {link} ({kind}) was changed"
        if kind == "end":
            ends[row[0]] = row[1]
        elif kind == "undone":
            undone[row[0]] = row[1]
            pairs.add((row[1], row[0]))
        elif kind in ("forget", "drop"):
            gone.update(row)
        elif kind == "after":
            stamps.update((number, hash(tuple(stamp))) for number, *stamp in row)
    for number, ended_ns, by in connection.execute("SELECT number, ended_ns, undone_by FROM calls ORDER BY number"):
        if ended_ns != ends.get(number):
            yield f"the end of call c{number} was changed"
        if by != undone.get(number):
            yield f"which undo has taken back call c{number} was changed"
    columns = "after_mode, after_uid, after_gid, after_size, after_mtime_ns"
    for number, call, *stamp in connection.execute(f"SELECT number, call, {columns} FROM records ORDER BY number"):
        if hash(tuple(stamp)) != stamps.get(number, NO_STAMP):
            yield f"what change {number} of call c{call} has left was changed"
    planted = "SELECT number, call FROM records WHERE mode IS NULL AND (xattrs NOTNULL OR place NOTNULL)"
    for number, call in connection.execute(f"{planted} ORDER BY number"):
        yield f"what is kept for change {number} of call c{call} was added past the server"
    yield from _wrong_undos(connection, pairs)
    for call, link in stubs.items():
        if call not in gone:
            yield f"{_name(call)}: it was deleted past the server (link {link})"


def _wrong_undos(connection: sqlite3.Connection, pairs: Set[tuple[Any, Any]]) -> Iterator[str]:
    """Compare the calls that undos name with the events of their being taken back. A failed undo has no events; an undo
    that also took back a half-done one names fewer calls."""
    undos = {undo for undo, _ in pairs}
    there = set(connection.execute("SELECT undo, call FROM undoes"))
    known = dict(connection.execute("SELECT number, kind FROM calls")) if undos else {}
    wrong = {undo for undo, call in there if undo in undos and (undo, call) not in pairs}
    wrong |= {undo for undo, call in pairs - there if undo in known and known.get(call, "undo") != "undo"}
    for undo in sorted(wrong):
        yield f"what call c{undo} has taken back was changed"
