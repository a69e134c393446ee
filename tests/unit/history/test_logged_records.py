"""Records in the transactions of a volume: their numbers, and what the next server takes up after a kill."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import pytest

from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.history import history_file
from fusebackend.history.history_file import HistoryFile
from fusebackend.protocol import Actor

WHO = Actor(agent="planner", call="tool-7", uid=1000, pid=4)


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "of.history" / "history.db")


@pytest.fixture
def histories(path) -> Any:
    """A function that opens the history, as the next server does after a kill of the one before."""
    opened: list[HistoryFile] = []

    def again() -> HistoryFile:
        if opened:
            kill(opened[-1])
        opened.append(HistoryFile(path))
        return opened[-1]

    yield again
    opened[-1].close()


def kill(history: HistoryFile) -> None:
    """Take what was not written, as SIGKILL does."""
    with history._guard:
        history._waiting.clear()
        history._open.clear()
    history.close()
    with contextlib.closing(sqlite3.connect(history.path, isolation_level=None)) as file:
        file.execute("UPDATE state SET closed = NULL")


def names(history: HistoryFile, after: int = 0) -> list[bytes]:
    return [each.path for each in history.records_after(after, 100)]


def test_numbers_are_in_the_order_of_the_commits(histories):
    history = histories()
    call = history.open_call("session", "sh", WHO)
    one = history.reserve(history.entry(call, ROOT, "create", b"/one", node=1))
    two = history.reserve(history.entry(call, ROOT, "create", b"/two", node=2))
    history.put(two)
    assert names(history) == []  # `/one` would come after it, with a lower number
    assert history.written() == one.number
    history.put(one)
    assert names(history) == [b"/one", b"/two"]
    assert history.verify().problems == []
    assert history.written() == two.number + 1


def test_a_change_that_was_not_made_leaves_nothing(histories):
    history = histories()
    call = history.open_call("session", "sh", WHO)
    history.release(history.reserve(history.entry(call, ROOT, "create", b"/one", node=1)))
    history.end_call(call)
    assert names(history) == []
    assert history.call(call) is None
    assert history.written() == 2


def test_a_call_ends_after_its_last_commit(histories):
    history = histories()
    call = history.open_call("session", "sh", WHO)
    entry = history.reserve(history.entry(call, ROOT, "create", b"/one", node=1))
    history.end_call(call)
    history.put(entry)
    found = history.call(call)
    assert found.changes == 1
    assert found.ended_ns is not None


def test_a_killed_servers_records_are_taken_up(histories):
    history = histories()
    call = history.open_call("session", "sh", WHO, undoes=[])
    entries = [
        history.reserve(history.entry(call, ROOT, "create", b"/%d" % number, node=number)) for number in range(4)
    ]
    rows = [entry.said for entry in entries]
    history.put(entries[1])
    history.flush()
    history.put(entries[3])  # in memory
    history = histories()
    assert history.replay(ROOT, rows) == 3
    assert names(history) == [b"/0", b"/1", b"/2", b"/3"]
    found = history.call(call)
    assert (found.title, found.actor, found.changes) == ("sh", WHO, 4)
    assert found.ended_ns is not None
    assert found.ended_ns >= max(each.time_ns for each in history.records(call))
    assert history.interrupted == [call]
    assert history.earlier == 4
    assert history.verify().problems == []
    assert history.replay(ROOT, rows) == 0
    assert history.add(history.open_call("verb", "write", WHO), ROOT, "create", b"/next") == 5
    history = histories()
    assert history.replay(ROOT, rows) == 0
    assert history.verify().problems == []


def test_a_call_that_no_file_has_comes_with_its_records(histories):
    history = histories()
    first = history.open_call("verb", "write", WHO)
    history.add(first, ROOT, "create", b"/first")
    history.flush()
    undo = history.open_call("undo", "undo c1", WHO, undoes=[first])
    entry = history.reserve(history.entry(undo, ROOT, "remove", b"/first", node=3))
    history.put(entry)
    history = histories()
    assert history.replay(ROOT, [entry.said]) == 1
    found = history.call(undo)
    assert (found.kind, found.undoes, found.changes) == ("undo", (first,), 1)
    assert history.open_call("verb", "write", WHO) == undo + 1


def test_what_is_of_another_route_or_unreadable_is_not_taken_up(histories):
    history = histories()
    call = history.open_call("session", "sh", WHO)
    entry = history.reserve(history.entry(call, AgentPath("/a"), "create", b"/one", node=1))
    history = histories()
    assert history.replay(ROOT, [entry.said, (77, b"\xc1"), (78, b"\x91\x01")]) == 0
    assert names(history) == []


def test_what_was_deleted_since_stays_deleted(histories):
    history = histories()
    call, dropped = history.open_call("session", "sh", WHO), history.open_call("session", "sh", WHO)
    entry = history.reserve(history.entry(call, ROOT, "create", b"/one", node=1))
    other = history.reserve(history.entry(dropped, ROOT, "create", b"/two", node=2))
    kept = history.open_call("verb", "write", WHO)
    history.add(kept, ROOT, "create", b"/kept")
    history.put(entry)
    history.put(other)
    history.drop([other.number])
    history.end_call(call)
    history.flush()
    history.forget([call])
    history = histories()
    assert history.replay(ROOT, [entry.said, other.said]) == 0
    assert names(history) == [b"/kept"]
    assert history.verify().problems == []


def test_a_number_that_was_given_again_is_no_reason_to_lose_a_record(histories):
    """The server after the kill could not read the volume's rows."""
    history = histories()
    call = history.open_call("session", "old", WHO)
    entry = history.reserve(history.entry(call, ROOT, "create", b"/old", node=1))
    history = histories()
    again = history.open_call("session", "new", WHO)
    assert again == call
    assert history.add(again, ROOT, "create", b"/new") == entry.number
    history.flush()
    history = histories()
    assert history.replay(ROOT, [entry.said]) == 1
    assert names(history) == [b"/new", b"/old"]
    assert [each.title for each in history.calls()] == ["old", "new"]
    assert history.replay(ROOT, [entry.said]) == 0, "the row is there until it is swept"
    assert history.verify().problems == []


def test_a_commit_without_an_answer_is_asked_for(histories, monkeypatch):
    history = histories()
    call = history.open_call("session", "sh", WHO)
    made, unmade = (
        history.reserve(history.entry(call, ROOT, "create", path, node=1)) for path in (b"/made", b"/unmade")
    )
    assert history.doubtful() == []
    history.doubt(made)
    history.doubt(unmade)
    assert history.doubtful() == [made.number, unmade.number]
    history.settle([made.number])
    assert history.doubtful() == [unmade.number]
    history.flush()
    assert history.written() == unmade.number  # it may yet be made
    monkeypatch.setattr(history_file, "DOUBT_S", 0.0)
    assert history.doubtful() == [unmade.number]
    assert history.doubtful() == []
    assert names(history) == [b"/made"]
