"""Rows of a history in the transactions of a volume (`commit_log.py`)."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from postgres_hosts import ME, Host, sql

from fusebackend.backends.postgres import commit_log
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import NOTE, ROOT_NODE, STEP, AttrChanges, Change, CommitLog, LogRow

pytestmark = pytest.mark.services


class History:
    """What a history is to a volume, and a note."""

    def __init__(self) -> None:
        self.id = str(uuid.uuid4())
        self.numbers = itertools.count(1)
        self.given: list[tuple[int, Any]] = []
        self.needed = 1
        self.in_doubt: list[int] = []
        self.going_on: list[int] = []  # those of changes that are being committed
        self.settled: list[int] = []
        self.lost: list[int] = []
        self.commits = 0
        self.told: list[Change] = []

    @property
    def log(self) -> CommitLog:
        settled, lost = self.settled.extend, self.lost.extend
        return CommitLog(
            self.id, lambda: self.needed, lambda: self.in_doubt, settled, lambda: self.in_doubt + self.going_on, lost
        )

    def rows(self, result: Any, changes: Sequence[Change] = ()) -> Sequence[LogRow]:
        self.told += changes
        self.given.append((next(self.numbers), result))
        self.going_on.append(self.given[-1][0])
        return [(self.given[-1][0], b"said %d" % self.given[-1][0])]

    def committed(self) -> None:
        self.commits += 1
        self.going_on = []

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        token = NOTE.set(self)
        try:
            yield
        finally:
            NOTE.reset(token)
            self.going_on = []


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def volume(one: Host, history: History) -> PostgresVolume:
    assert one.keep_log(history.log) == []
    return one


def numbers(volume: PostgresVolume) -> list[int]:
    query = "SELECT number FROM fusebackend.logged WHERE volume = %s ORDER BY number"
    return [number for (number,) in sql(volume.conninfo, query, volume.id)]


def test_a_change_has_its_row_and_a_refused_one_has_none(volume: PostgresVolume, history: History) -> None:
    with history.noting():
        made = volume.mkdir(ROOT_NODE, b"d", 0o755, ME)
    assert [(number, result.node) for number, result in history.given] == [(1, made.node)]
    assert numbers(volume) == [1]
    with history.noting(), pytest.raises(FileExistsError):
        volume.mkdir(ROOT_NODE, b"d", 0o755, ME)
    assert numbers(volume) == [1]
    assert volume.keep_log(history.log) == [(1, b"said 1")]


def test_each_kind_of_change_has_one(volume: PostgresVolume, history: History) -> None:
    node = volume.create(ROOT_NODE, b"file", 0o644, os.O_WRONLY, ME).node
    volume.release(node, os.O_WRONLY)
    changes = [
        lambda: volume.link(node, ROOT_NODE, b"link"),
        lambda: volume.write(node, 0, b"data"),
        lambda: volume.append(node, b"more"),
        lambda: volume.setattr(node, AttrChanges(size=2)),
        lambda: volume.setattr(node, AttrChanges(mode=0o600)),
        lambda: volume.setxattr(node, b"user.a", b"value"),
        lambda: volume.removexattr(node, b"user.a"),
        lambda: volume.symlink(ROOT_NODE, b"symlink", b"target", ME),
        lambda: volume.rename(ROOT_NODE, b"link", ROOT_NODE, b"renamed"),
        lambda: volume.unlink(ROOT_NODE, b"renamed"),
        lambda: volume.mkdir(ROOT_NODE, b"d", 0o755, ME),
        lambda: volume.rmdir(ROOT_NODE, b"d"),
    ]
    for done, change in enumerate(changes, 1):
        with history.noting():
            change()
        assert numbers(volume) == list(range(1, done + 1))


def test_a_note_is_of_one_change(volume: PostgresVolume, history: History) -> None:
    with history.noting():
        volume.mkdir(ROOT_NODE, b"one", 0o755, ME)
        volume.mkdir(ROOT_NODE, b"two", 0o755, ME)
    assert numbers(volume) == [1]


def test_a_change_that_guessed_wrong_has_the_row_of_its_last_attempt(volume: PostgresVolume, history: History) -> None:
    """Its number comes after that of the change which has overtaken it."""
    volume.mkdir(ROOT_NODE, b"one", 0o755, ME)
    volume.mkdir(ROOT_NODE, b"two", 0o755, ME)  # the directory is known now
    sql(volume.conninfo, "UPDATE fusebackend.inode SET version = 99 WHERE volume = %s AND node = 1", volume.id)
    with history.noting():
        volume.mkdir(ROOT_NODE, b"three", 0o755, ME)
    assert [number for number, _ in history.given] == [1, 2], "it was no guess"
    assert numbers(volume) == [2]


def test_what_is_written_to_a_new_file_has_its_row_when_it_is_stored(
    volume: PostgresVolume, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusebackend.backends.postgres.drafts.DRAFT_S", 60.0)
    node = volume.create(ROOT_NODE, b"file", 0o644, os.O_WRONLY, ME).node
    with history.noting():
        volume.write(node, 0, b"data")
    assert [number for number, _ in history.given] == [1]
    assert numbers(volume) == []
    volume.flush(node)
    assert numbers(volume) == [1]
    volume.release(node, os.O_WRONLY)


def test_a_verb_has_its_rows_in_its_transaction(volume: PostgresVolume, history: History) -> None:
    def made(name: bytes) -> Change:
        node = volume.mkdir(ROOT_NODE, name, 0o755, ME).node
        return Change(node, ROOT_NODE, name, "created", f"/{name.decode()}")

    token = STEP.set(history)
    try:
        volume.change_as_one(lambda changes: changes.append(made(b"one")))
        with volume.changing() as outer, volume.changing() as changes:
            outer.append(made(b"two"))
            changes.append(made(b"three"))
        assert (numbers(volume), history.commits) == ([1, 2], 2)
        assert [change.path for change in history.told] == ["/one", "/two", "/three"]
        with pytest.raises(ZeroDivisionError):
            volume.change_as_one(lambda changes: 1 // 0)
        assert (numbers(volume), history.commits) == ([1, 2], 2)
    finally:
        STEP.reset(token)


def test_rows_go_when_the_history_has_them(volume: PostgresVolume, history: History) -> None:
    with history.noting():
        volume.mkdir(ROOT_NODE, b"one", 0o755, ME)
    with history.noting():
        volume.mkdir(ROOT_NODE, b"two", 0o755, ME)
    assert numbers(volume) == [1, 2]
    history.needed = 2
    volume._each_period()
    assert numbers(volume) == [2]
    history.in_doubt = [2, 3]
    volume._each_period()
    assert history.settled == [2]
    history.needed = 3
    assert volume.keep_log(None) is None
    assert numbers(volume) == []
    with history.noting():
        volume.mkdir(ROOT_NODE, b"three", 0o755, ME)
    assert numbers(volume) == []


def test_rows_that_go_at_the_same_time_are_not_lost(
    volume: PostgresVolume, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    with history.noting():
        volume.mkdir(ROOT_NODE, b"one", 0o755, ME)
    history.needed = 2
    monkeypatch.setattr(volume._log, "_before", "before a crash")
    other = threading.Thread(target=volume._each_period)
    there = commit_log.KeptLog._there

    def meanwhile(*arguments: Any) -> list[int]:
        if other.ident is None:
            other.start()
            other.join(1)
        return there(*arguments)

    monkeypatch.setattr(commit_log.KeptLog, "_there", meanwhile)
    volume._each_period()
    other.join()
    assert (history.lost, numbers(volume)) == ([], [])


def test_hosts_have_rows_of_their_own(volume: PostgresVolume, history: History, two: Host) -> None:
    other = History()
    assert two.keep_log(other.log) == []
    with history.noting():
        volume.mkdir(ROOT_NODE, b"one", 0o755, ME)
    with other.noting():
        two.mkdir(ROOT_NODE, b"two", 0o755, ME)
    assert numbers(volume) == [1, 1]
    other.needed = 2
    two._each_period()
    aged = "UPDATE fusebackend.logged SET at = at - make_interval(days => %s::int) WHERE volume = %s"
    sql(volume.conninfo, aged, 6, volume.id)
    assert two.keep_log(other.log) == []
    sql(volume.conninfo, aged, 2, volume.id)
    assert [row for row, _ in volume.keep_log(history.log) or ()] == [1], "a host that has come back finds its rows"
    assert two.keep_log(other.log) == []
    assert numbers(volume) == [], "that host has not come back"


def test_a_volume_keeps_one_log(volume: PostgresVolume, history: History) -> None:
    assert volume.keep_log(History().log) is None
    assert volume.keep_log(history.log) == []
    volume.keep_log(None)
    assert volume.keep_log(History().log) == []


def test_an_idle_host_looks_for_no_rows(
    volume: PostgresVolume, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look takes a connection: 64 idle mounts had 80."""
    asked: list[object] = []
    run = volume.connections.run
    monkeypatch.setattr(volume.connections, "run", lambda work: asked.append(work) or run(work))
    volume._each_period()
    assert not asked
    with history.noting():
        volume.mknod(ROOT_NODE, b"file", 0o100644, 0, ME)
    volume.sync()
    asked.clear()
    for _ in range(3):  # it may not be committed yet
        volume._each_period()
    assert len(asked) == 3
    monkeypatch.setattr(commit_log, "SETTLED_S", 0.0)
    volume._each_period()
    assert len(asked) == 3
