"""The table of events of a history, which only grows, and its hash chain, by which a later change of it shows.

An event is a row: a call that begins or ends, a change, what a call has left, an undo, a gap, a request for an approval
and what became of it. It is a link of the chain: a number without gaps, and a digest of what the row says and of the
digest before it. The last one is in `state`, too.

    digest(n) = BLAKE2b(n, digest(n - 1), columns)

Only a deletion changes a row: all but its digest goes (`gone`, and `unmade` for a change that was not made), and an
event says which calls that were. A deleted row without such an event was deleted past the server, and a deleted row
that says more was filled past it. The oldest rows leave the table once nothing older is left: their last digest stays.

Not in a digest: the bytes of a file, or where they are, and its extended attributes, for `forget` deletes them; and the
change that a request keeps, which is said by a keyed digest (`requests.py`).

A link takes 2 µs, in the thread that writes the file. `verify` reads all of it: some 5 µs for each link.

It shows accidents, and changed rows whose later digests were not computed anew. The server's own user can compute them,
so against that user it proves nothing.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from fusebackend.history import requests
from fusebackend.protocol import VerifyResult

BYTES: Final = 16
"""Of a digest."""

NAMED: Final = 100
"""Problems that an answer names, at most."""

COLUMNS: Final = (
    "event", "call", "kind", "number", "mode", "payload",
    "time_ns", "route", "path", "node",
    "to_path", "linked", "nlink", "identity",
    "place", "name", "image_node", "secret",
    "bytes",
)  # fmt: skip
"""Of an event. A row may end after any of them: those after it are NULL."""

SAID: Final = 14
"""So many columns are in the digest. Those after them can be forgotten."""

CALL, KIND, NUMBER, PAYLOAD, TIME, ROUTE, PATH, NODE, TO_PATH, SECRET = 1, 2, 3, 5, 6, 7, 8, 9, 10, 17

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS state (
    one INTEGER PRIMARY KEY CHECK (one = 1), history TEXT NOT NULL, call INTEGER NOT NULL, record INTEGER NOT NULL,
    closed INTEGER, link INTEGER NOT NULL, digest BLOB NOT NULL, first INTEGER NOT NULL, before BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS routes (prefix BLOB PRIMARY KEY, backend TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    link INTEGER PRIMARY KEY, digest BLOB NOT NULL,
    event TEXT NOT NULL, call INTEGER, kind TEXT, number INTEGER, mode INTEGER, payload BLOB,
    time_ns INTEGER, route BLOB, path BLOB, node INTEGER,
    to_path BLOB, linked INTEGER, nlink INTEGER, identity BLOB,
    place TEXT, name TEXT, image_node INTEGER, secret BLOB, bytes BLOB);
CREATE INDEX IF NOT EXISTS events_by_number ON events (event, number) WHERE path ISNULL;
CREATE INDEX IF NOT EXISTS events_of_call ON events (call, event, number) WHERE path ISNULL AND call NOTNULL;
CREATE UNIQUE INDEX IF NOT EXISTS records_by_number ON events (number) WHERE path NOTNULL;
CREATE INDEX IF NOT EXISTS records_of_call ON events (call, number) WHERE path NOTNULL;
CREATE INDEX IF NOT EXISTS records_of_path ON events (path, number) WHERE path NOTNULL;
CREATE INDEX IF NOT EXISTS records_to_path ON events (to_path, number) WHERE to_path NOTNULL;
CREATE INDEX IF NOT EXISTS records_of_links ON events (node, number) WHERE nlink > 1;
CREATE INDEX IF NOT EXISTS records_of_files ON events (identity, number) WHERE identity NOTNULL;
CREATE INDEX IF NOT EXISTS records_with_image ON events (place, name) WHERE place NOTNULL;
CREATE VIEW IF NOT EXISTS calls AS SELECT
    link, number, kind, time_ns AS began_ns, payload,
    (SELECT max(number) FROM events e WHERE e.call = c.number AND e.event = 'end' AND path ISNULL) AS ended_ns,
    (SELECT number FROM events e WHERE e.call = c.number AND e.event = 'undone' AND path ISNULL
        ORDER BY link DESC LIMIT 1) AS undone_by
    FROM events c WHERE event = 'call' AND path ISNULL;
CREATE VIEW IF NOT EXISTS records AS SELECT
    link, number, call, time_ns, route, kind, path, to_path, node, linked, payload, place, name, image_node, secret,
    (SELECT payload FROM events e WHERE e.event = 'left' AND e.number = r.number AND path ISNULL
        ORDER BY link DESC LIMIT 1) AS stamp,
    (SELECT mode FROM events e WHERE e.event = 'left' AND e.number = r.number AND path ISNULL
        ORDER BY link DESC LIMIT 1) AS stamp_mode,
    coalesce(identity, (SELECT identity FROM events e WHERE e.event = 'returned' AND e.number = r.number
        AND path ISNULL ORDER BY link DESC LIMIT 1)) AS identity,
    mode, nlink FROM events r WHERE path NOTNULL;
CREATE VIEW IF NOT EXISTS undoes AS SELECT
    call AS undo, number AS call FROM events WHERE event = 'undoes' AND path ISNULL;
CREATE VIEW IF NOT EXISTS gaps AS SELECT
    call, payload AS why, link FROM events WHERE event = 'gap' AND path ISNULL;
"""
"""`state`: the last numbers; what the last record was when the file was closed; the last link and its digest; the first
link that is there, and the digest before it. `routes`: the backend of each route.

    event       call    number                  further
    call        its number, twice               kind, time, payload: title and actor
    end         yes     the time
    undoes      undo    a call that it takes back
    undone      yes     the undo; NULL once that is taken back
    gap         yes                             payload: why
    change      yes     of the record           kind, time, …; payload and mode: the file before it
    left                of the record           payload and mode: what the call has left; NULL: nothing is known
    returned            of the record           identity: of a file that an undo has brought back
    request     number, negative                kind: its state; payload: what was asked
    decision    number, negative                kind: its state; payload: what became of it
    forget              the latest end of all   payload: calls that were deleted, and requests, each with its rows
    drop                                        payload: records that were deleted: their changes were not made
"""

_BLANK: Final = ", ".join(f"{column} = NULL" for column in ("kind", *COLUMNS[NUMBER + 1 :]))

_FORGET: Final = tuple(
    f"UPDATE events SET event = 'gone', call = ?1, number = NULL, {_BLANK} WHERE {which}"
    for which in (
        "link IN (SELECT e.link FROM events r CROSS JOIN events e ON e.event IN ('left', 'returned') "
        "AND e.number = r.number AND e.path ISNULL WHERE r.call = ?1 AND r.path NOTNULL)",
        "call = ?1 AND path NOTNULL",
        "call = ?1 AND path ISNULL",
    )
)
"""What a call has left, its changes, and all else of it. An index has each."""

_ROWS: Final = "SELECT count(*) FROM events WHERE call = ? AND path ISNULL"
"""Of a call that is gone: no row has a path any more."""

_LIVE: Final = (
    "SELECT link FROM events WHERE +event IN ('call', 'change', 'request') "
    "AND call NOT IN (SELECT value FROM json_each(?)) ORDER BY link LIMIT 1"
)

DROP: Final = f"UPDATE events SET event = 'unmade', {_BLANK} WHERE number = ? AND path NOTNULL"
"""What is said of a record."""

Row: TypeAlias = Sequence[Any]

encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.decode


def row_of(
    event: str,
    call: int | None = None,
    kind: str | None = None,
    number: int | None = None,
    mode: int | None = None,
    payload: Any = None,
    **others: Any,
) -> Row:
    """Return the row of an event.

    Args:
        others: further columns.
    """
    row: Row = (event, call, kind, number, mode, payload)
    return (*row, *map(others.get, COLUMNS[len(row) :])) if others else row


@functools.cache
def append(columns: tuple[bool, ...], rows: int) -> str:
    """Return the statement that writes events.

    Args:
        columns: which are not NULL in each row. Each column costs 0.5 us, a NULL as well: most records have ten
            values of eighteen.

    After an error the transaction is over (`OR ROLLBACK`), so that SQLite keeps no journal for this statement alone.
    """
    named = [*itertools.compress(COLUMNS, columns)]
    row = f"({', '.join('?' * (len(named) + 2))})"
    return f"INSERT OR ROLLBACK INTO events (link, digest, {', '.join(named)}) VALUES {', '.join([row] * rows)}"


def digest(link: int, before: bytes, row: Sequence[Any]) -> bytes:
    """Return the digest of a link. The values are those of SQLite; NULLs at the end are not said.

    Args:
        before: the digest of the link before it.
    """
    end = min(len(row), SAID)
    while row[end - 1] is None:
        end -= 1
    return hashlib.blake2b(encode((link, before, row[:end])), digest_size=BYTES).digest()


def forget(connection: sqlite3.Connection, ended_ns: int, calls: Sequence[int]) -> Row:
    """Delete what is said of calls, and of requests, which have negative numbers here.

    The oldest links leave the table, up to the first call, record or request that stays. After a gap they do not, so
    that `verify` finds it.

    Args:
        ended_ns: the latest end of all that were deleted.

    Returns:
        The event of it, which says how many rows each has left.
    """
    (first,) = connection.execute("SELECT first FROM state").fetchone()
    (last,) = connection.execute("SELECT coalesce(max(link), 0) FROM events").fetchone()
    (until,) = connection.execute(_LIVE, (json.dumps(calls),)).fetchone() or (last + 1,)
    (count,) = connection.execute("SELECT count(*) FROM events WHERE link < ?", (until,)).fetchone()
    if count and count == until - first:
        before = "(SELECT digest FROM events WHERE link = ?1 - 1)"
        connection.execute(f"UPDATE state SET first = ?1, before = {before}", (until,))
        connection.execute("DELETE FROM events WHERE link < ?", (until,))
    for statement in _FORGET:
        connection.executemany(statement, [(call,) for call in calls])
    left = [(call, *connection.execute(_ROWS, (call,)).fetchone()) for call in calls]
    return row_of("forget", number=ended_ns, payload=encode(left))


# -- verification ----------------------------------------------------------------------------------------------


def verify(connection: sqlite3.Connection) -> VerifyResult:
    """Check a history. In a transaction that sees one state of it."""
    last, end, first, before = connection.execute("SELECT link, digest, first, before FROM state").fetchone()
    problems: list[str] = []
    gone: dict[tuple[str, int], list[int]] = {}  # what was deleted → its links
    filled: set[int] = set()  # of these, the links that say more than is left
    told: dict[tuple[str, int], int] = {}  # of which events say so → how many links it had
    expected, head = first, before
    for link, found, *row in connection.execute(f"SELECT link, digest, {', '.join(COLUMNS)} FROM events ORDER BY link"):
        is_after_gap = link > expected
        if is_after_gap:
            problems.append(_missing(expected, link - 1))
        elif link < expected:
            problems.append(f"{_name(link, row)} was added: its place in the chain is taken")
            continue
        expected = link + 1
        event, call, _, number, _, payload = row[:6]
        computed = digest(link, head, row)
        head = found
        if event in ("gone", "unmade"):
            gone.setdefault((event, call if event == "gone" else number), []).append(link)
            if any(value is not None for name, value in zip(COLUMNS, row, strict=True) if name not in _LEFT[event]):
                filled.add(link)
        elif computed != found and not is_after_gap:
            problems.append(f"{_name(link, row)} was changed")
        elif row[SAID:] != [None] * (len(row) - SAID) and not _is_kept(row):
            problems.append(f"what is kept for {_name(link, row)} was changed")
        elif event == "forget":
            told.update((("gone", each), rows) for each, rows in decode(payload))
        elif event == "drop":
            told.update((("unmade", each), 1) for each in decode(payload))
    if expected <= last:
        problems.append(_missing(expected, last))
    if not problems and (expected != last + 1 or head != end):
        problems.append("the end of the chain is another one: the end of the history was written anew")
    for (event, number), links in gone.items():
        name, rows = _NAMES[event].format(number), told.get((event, number), 0)
        if not rows:
            problems.append(f"{name}: it was deleted past the server (link {links[0]})")
        elif len(links) > rows:  # fewer are there once the oldest have left the table
            problems.append(f"{name}: {len(links)} links say so, and it had {rows}")
        else:
            problems += (f"event {link} ({event}) was changed" for link in links if link in filled)
    return VerifyResult(first, last, problems[:NAMED])


def _is_kept(row: Sequence[Any]) -> bool:
    """Return True if something may be kept for an event: bytes for a file that was there before; what was asked."""
    if row[0] == "change":
        return row[PAYLOAD] is not None
    return row[0] == "request" and requests.is_said(row[PAYLOAD], row[SECRET])


_LEFT: Final = {"gone": ("event", "call"), "unmade": ("event", "call", "number")}
"""What such rows say. With a path, one would be a change."""

_NAMES: Final = {"gone": "the deleted call c{}", "unmade": "change {}, which was not made"}


def _name(link: int, row: Sequence[Any]) -> str:
    names = {"call": f"call c{row[CALL]}", "change": f"change {row[NUMBER]} of call c{row[CALL]}"}
    return names.get(row[0], f"event {link} ({row[0]})")


def _missing(first: int, last: int) -> str:
    return f"link {first} is missing" if first == last else f"links {first} to {last} are missing"
