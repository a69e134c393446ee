"""`events.py`: what was changed in the file of a history past its server is found."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.history.events import COLUMNS, SAID
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.records import Image, Kept, Stamp, State
from fusebackend.history.requests import Asked, Request, asked, became, new_key
from fusebackend.protocol import Actor, VerifyResult

BEFORE = State(0o100644, 1, 2, 0, 5, 1, 10, -20, {b"user.a\xff": b"\0\1"}, b"")

BLANK = ", ".join(f"{name} = NULL" for name in ("kind", *COLUMNS[4:]))
"""What nothing is left of."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "of.history" / "history.db")


@pytest.fixture
def history(path: str) -> Iterator[HistoryFile]:
    history = HistoryFile(path)
    yield history
    history.close()


def made(history: HistoryFile, records: int = 3, title: str = "write \udcff") -> int:
    call = history.open_call("verb", title, Actor(agent="a\udcff", uid=7))
    for number in range(records):
        history.add(
            call, AgentPath("/memories"), "rename", b"/a\xff", Kept(number, BEFORE, Image("file", "1")), to_path=b"/b",
            node=number, linked=True,
        )  # fmt: skip
    history.end_call(call)
    return call


def tampered(history: HistoryFile, statement: str, *values: Any) -> list[str]:
    history.flush()
    connection = sqlite3.connect(history.path)
    with connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()
    return history.verify().problems


def test_an_untouched_history_is_as_it_was_written(history: HistoryFile, path: str) -> None:
    assert history.verify() == VerifyResult(1, 0, [])
    calls = [made(history) for _ in range(4)]
    going_on = history.open_call("command", "work", Actor())
    numbers = [history.add(going_on, ROOT, "create", b"/a") for _ in range(3)]
    history.drop(numbers[1:2])
    undo = history.open_call("undo", "undo c1 c2", Actor(), calls[:2])
    history.add(undo, ROOT, "create", b"/a")
    history.mark_undone(calls[:2], undo)
    history.mark_undone(calls[:1], None)
    history.set_after({numbers[0]: Stamp(1, 2, 3, 4, 5)})
    history.forget_contents([AgentPath("/memories")], {})
    found = history.verify()
    assert (found.first, found.problems) == (1, [])
    history.close()
    again = HistoryFile(path)
    assert again.verify().problems == []
    made(again)
    assert again.verify().problems == []
    assert again.verify().last > found.last
    again.close()


def test_calls_whose_first_changes_come_in_another_order(history: HistoryFile) -> None:
    """As of threads: a call has its number before its first change is added."""
    numbers = [history.open_call("verb", f"call {each}", Actor()) for each in range(4)]
    for number in (numbers[2], numbers[0], numbers[3], numbers[1]):
        history.add(number, AgentPath(ROOT), "create", b"/a")
    history.flush()
    assert history.verify().problems == []
    problems = tampered(history, "UPDATE events SET payload = x'90' WHERE event = 'call' AND call = ?", numbers[0])
    assert problems == [f"call c{numbers[0]} was changed"]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE events SET payload = x'90' WHERE event = 'call' AND call = 2", "call c2 was changed"),
        ("UPDATE events SET kind = 'undo' WHERE event = 'call' AND call = 2", "call c2 was changed"),
        ("UPDATE events SET number = number + 1 WHERE event = 'end' AND call = 2", "event 10 (end) was changed"),
        ("UPDATE events SET call = 3 WHERE event = 'end' AND call = 2", "event 10 (end) was changed"),
        ("UPDATE events SET event = 'undone' WHERE link = 10", "event 10 (undone) was changed"),
        ("UPDATE events SET path = x'2f61' WHERE link = 8", "change 5 of call c2 was changed"),
        ("UPDATE events SET time_ns = time_ns - 1 WHERE link = 8", "change 5 of call c2 was changed"),
        ("UPDATE events SET call = 1 WHERE link = 8", "change 5 of call c1 was changed"),
        ("UPDATE events SET payload = x'90' WHERE link = 8", "change 5 of call c2 was changed"),
        ("UPDATE events SET digest = zeroblob(16) WHERE link = 8", "change 5 of call c2 was changed"),
        ("DELETE FROM events WHERE link = 8", "link 8 is missing"),
        ("DELETE FROM events WHERE call = 2 AND path NOTNULL", "links 7 to 9 are missing"),
        ("DELETE FROM events WHERE event = 'call' AND call = 2", "link 6 is missing"),
        ("DELETE FROM events WHERE link = 1", "link 1 is missing"),
        ("UPDATE state SET link = 14", "the end of the chain is another one"),
        ("DELETE FROM events WHERE link = 15", "link 15 is missing"),
        (
            "INSERT INTO events SELECT 16, digest, event, 1, kind, number, mode, payload, time_ns, route, path, node, "
            "to_path, linked, nlink, identity, place, name, image_node, secret, bytes FROM events WHERE link = 10",
            "event 16 (end) was changed",
        ),
        ("UPDATE events SET link = 0 WHERE link = 10", "event 0 (end) was added: its place in the chain is taken"),
    ],
)
def test_a_change_past_the_server_is_found(history: HistoryFile, statement: str, problem: str) -> None:
    for _ in range(3):
        made(history)
    found = tampered(history, statement)
    assert any(each.startswith(problem) for each in found), found


@pytest.mark.parametrize("column", ["mode", "nlink", "payload", "identity", "place", "secret", "bytes"])
def test_nothing_is_added_to_a_change_that_found_no_file(history: HistoryFile, column: str) -> None:
    """Bytes that were planted there would be what an undo puts back, and what blame compares with."""
    call = history.open_call("verb", "write /a", Actor())
    history.add(call, ROOT, "create", b"/a", node=3)
    history.end_call(call)
    assert history.verify().problems == []
    (found,) = tampered(history, f"UPDATE events SET {column} = 'file' WHERE path NOTNULL")
    assert found in ("change 1 of call c1 was changed", "what is kept for change 1 of call c1 was changed"), found


def test_what_an_undo_has_taken_back_is_not_changed(history: HistoryFile) -> None:
    one, other = made(history), made(history)
    undo = history.open_call("undo", f"undo c{one}", Actor(), [one])
    history.add(undo, ROOT, "create", b"/a", node=3)
    history.mark_undone([one], by=undo)
    history.end_call(undo)
    failed = history.open_call("undo", f"undo c{other}", Actor(), [other])
    history.add(failed, ROOT, "create", b"/b", node=4)
    history.end_call(failed)
    assert history.verify().problems == []
    for event in ("undoes", "undone"):
        statement = f"UPDATE events SET number = number + 5 WHERE event = '{event}'"
        assert all(found.endswith(f"({event}) was changed") for found in tampered(history, statement))
        assert tampered(history, statement.replace("+", "-")) == []


def test_a_deletion_that_looks_like_one_of_the_server_is_found(history: HistoryFile) -> None:
    for _ in range(3):
        made(history)
    found = tampered(history, f"UPDATE events SET event = 'gone', number = NULL, {BLANK} WHERE link = 8")
    assert found == ["the deleted call c2: it was deleted past the server (link 8)"]
    found = tampered(history, "UPDATE events SET event = 'unmade', number = 5 WHERE link = 8")
    assert found == ["change 5, which was not made: it was deleted past the server (link 8)"]


def test_what_is_said_to_be_of_a_deleted_call_is_found(history: HistoryFile) -> None:
    """A change of another call looks as if it had gone with one that the server has deleted."""
    calls = [made(history) for _ in range(4)]
    history.forget([calls[1]])
    found = tampered(history, f"UPDATE events SET event = 'gone', call = 2, number = NULL, {BLANK} WHERE link = 12")
    assert found == ["the deleted call c2: 6 links say so, and it had 5"]


@pytest.mark.parametrize("event", ["gone", "unmade"])
def test_a_row_of_which_nothing_is_left_is_not_filled(history: HistoryFile, event: str) -> None:
    """With a path it is a change of its call in the log. No digest is computed of such a row."""
    _, call = made(history), made(history)  # the rows of the oldest one would leave the table
    dropped = history.open_call("verb", "edit /a", Actor())
    history.drop([history.add(dropped, ROOT, "create", b"/a") for _ in range(2)][:1])
    made(history)
    history.forget([call])
    assert history.verify().problems == []
    connection = sqlite3.connect(history.path)
    (link,) = connection.execute("SELECT link FROM events WHERE event = ?", (event,)).fetchone()
    connection.close()
    for name in {"kind", "number", *COLUMNS[4:]} if event == "gone" else {"kind", *COLUMNS[4:]}:
        statement = f"UPDATE events SET {name} = ? WHERE link = ?"
        assert tampered(history, statement, 7, link) == [f"event {link} ({event}) was changed"]
        assert tampered(history, statement, None, link) == []


def test_deleted_calls_leave_a_history_that_can_be_verified(history: HistoryFile) -> None:
    chance = random.Random(1)
    calls: list[int] = []
    for _ in range(200):
        calls.append(made(history, chance.randint(1, 3)))
        if chance.random() < 0.3:
            gone = chance.sample(calls, min(len(calls), chance.randint(1, 8)))
            calls = [each for each in calls if each not in gone]
            history.forget(gone)
        found = history.verify()
        assert found.problems == []
    history.forget(calls)
    found = history.verify()
    assert (found.first, found.problems) == (found.last, []), "the event of the last deletion stays"
    connection = sqlite3.connect(history.path)
    assert connection.execute("SELECT event FROM events").fetchall() == [("forget",)]
    connection.close()
    call = made(history)
    assert tampered(history, "UPDATE events SET kind = 'x' WHERE event = 'call'") == [f"call c{call} was changed"]


def test_random_changes_of_said_columns_are_found(history: HistoryFile) -> None:
    """Every column that says something, and every row."""
    for _ in range(3):
        made(history)
    what = Asked(1, 2, Actor(), "view", "write", ["/a"], ["/a"], "write /a", [])
    history.put_request(asked(Request(1, what, new_key(), b"{}")))
    history.put_request(became(Request(1, what, b"", None, "denied")))
    history.flush()
    connection = sqlite3.connect(history.path)
    connection.execute("DROP INDEX records_by_number")  # which refuses some of them
    for name in ("digest", *COLUMNS[:SAID]):
        for (row,) in connection.execute("SELECT link FROM events").fetchall():
            (kept,) = connection.execute(f"SELECT {name} FROM events WHERE link = ?", (row,)).fetchone()
            change(connection, name, row, other(kept))
            assert history.verify().problems, (name, row)
            change(connection, name, row, kept)
            assert history.verify().problems == []
    connection.close()


def change(connection: sqlite3.Connection, name: str, row: int, value: Any) -> None:
    with connection:
        connection.execute(f"UPDATE events SET {name} = ? WHERE link = ?", (value, row))


def other(value: Any) -> Any:
    """Return another value of the same kind, with one bit changed where it has bytes."""
    if value is None:
        return 1
    if isinstance(value, int):
        return value + 1000
    if isinstance(value, str):
        return value + "x"
    return bytes([value[0] ^ 1]) + value[1:] if value else b"x"


def test_what_is_forgotten_is_no_change(history: HistoryFile) -> None:
    call = history.open_call("verb", "write", Actor())
    for path in (b"/1", b"/2", b"/3"):
        history.add(call, ROOT, "content", path, Kept(0, BEFORE, Image("file", "1")))
    history.end_call(call)
    history.forget_contents([AgentPath("/2")], {})
    assert history.verify().problems == []
    connection = sqlite3.connect(history.path)
    rows = connection.execute("SELECT secret, place FROM records ORDER BY number").fetchall()
    connection.close()
    assert [row[1] for row in rows] == ["file", "lost", "file"]
    assert rows[1] == (None, "lost")
    assert history.record(2).image == Image("lost", "they were forgotten ('fusebackend forget')")  # type: ignore[union-attr]


def test_stamps_that_come_with_records_and_later(history: HistoryFile) -> None:
    call = history.open_call("undo", "undo", Actor())
    stamp = Stamp(1, 2, 3, 4, 5)
    first = history.add(call, ROOT, "create", b"/a", after=stamp)
    second = history.add(call, ROOT, "create", b"/b", Kept(0, BEFORE, None), after=stamp)
    third = history.add(call, ROOT, "create", b"/c", Kept(0, BEFORE, Image("lost", "x")), after=stamp)
    assert history.verify().problems == []
    history.set_after({first: None, second: Stamp(9, 9, 9, 9, 9)})
    history.end_call(call)
    assert history.verify().problems == []
    records = {each.number: each.after for each in history.records(call)}
    assert records == {first: None, second: Stamp(9, 9, 9, 9, 9), third: stamp}
    left = f"FROM events WHERE event = 'left' AND number = {third}"
    (found,) = tampered(history, f"UPDATE events SET mode = 3 WHERE link = (SELECT link {left})")
    assert found.endswith("(left) was changed")
