"""`Listener.run`: a job on a connection that is lost again and again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from eventually import eventually
from raising import raising

from fusebackend.databases import listener
from fusebackend.databases.listener import Listener


class Silent:
    """A receiver that has nothing to do."""

    def prepare(self, connection: psycopg.Connection[Any]) -> None: ...
    def heard(self, payload: str) -> None: ...
    def lost(self, error: BaseException) -> None: ...
    def back(self) -> None: ...

    def turn(self, ask: object) -> float:
        return 1.0


@pytest.fixture
def listening(postgres_dsn: str) -> Iterator[Listener]:
    with contextlib.closing(Listener(postgres_dsn, "tested", Silent(), name="tested")) as made:
        yield made


class Turning(Silent):
    """A receiver that counts its turns."""

    turns = 0

    def turn(self, ask: object) -> float:
        self.turns += 1
        return 60.0


class Stumbling(Silent):
    """A receiver with a mistake."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def heard(self, payload: str) -> None:
        self.told.append(payload)
        assert payload != "stumble"

    def lost(self, error: BaseException) -> None:
        self.told.append(f"lost: {type(error).__name__}")

    def back(self) -> None:
        self.told.append("back")


class Losing:
    """A job that has the server cut its connection, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, connection: psycopg.Connection[Any]) -> str:
        if self.left:
            self.left -= 1
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return "done"


def test_a_job_is_done_though_its_connection_is_cut_several_times(listening: Listener) -> None:
    assert listening.run(Losing(3)) == "done"


def test_a_job_that_always_loses_its_connection_fails(listening: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "JOB_S", 0.5)
    job, began = Losing(1000), time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        listening.run(job)
    assert job.left < 999  # it was tried more than once
    assert time.monotonic() - began < 30
    assert listening.run(Losing(0)) == "done"


def test_a_wake_up_while_another_is_read_is_not_the_last(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, read, turns = Turning(), os.eventfd_read, list[int]()
    with contextlib.closing(Listener(postgres_dsn, "tested", receiver, name="tested")) as listening:

        def read_late(bell: int) -> int:
            if not turns:
                turns.append(receiver.turns)
                listening.wake()
            return read(bell)

        monkeypatch.setattr(os, "eventfd_read", read_late)
        listening.wake()
        eventually(lambda: bool(turns) and receiver.turns > turns[0], 2)
        before = receiver.turns
        listening.wake()
        eventually(lambda: receiver.turns > before, 2)


def test_a_mistake_of_the_receiver_is_as_good_as_a_lost_connection(postgres_dsn: str) -> None:
    """Without the thread, no job would end, and what others change would not be told any more."""
    receiver = Stumbling()
    with contextlib.closing(Listener(postgres_dsn, "tested", receiver, name="tested")) as listening:
        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            for word in ("one", "stumble"):
                connection.execute("SELECT pg_notify('tested', %s)", [word])
            eventually(lambda: "back" in receiver.told, 30)
            connection.execute("SELECT pg_notify('tested', 'two')")
            eventually(lambda: "two" in receiver.told, 30)
        assert listening.run(Losing(0)) == "done"
    assert receiver.told == ["one", "stumble", "lost: AssertionError", "back", "two"]


def test_the_end_of_the_thread_is_the_end_of_jobs(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an end that nobody foresaw: select(2) once failed in it, in a process with a thousand open files."""

    ended: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    monkeypatch.setattr(listener, "is_readable", raising(ValueError("filedescriptor out of range in select()")))
    monkeypatch.setattr(listener, "RETRY_S", (60.0,))
    with contextlib.closing(Listener(postgres_dsn, "tested", Silent(), name="tested")) as listening:
        pid = listening.run(lambda connection: connection.info.backend_pid)
        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        eventually(lambda: bool(ended), 30)
        with pytest.raises(psycopg.OperationalError, match="closed"):
            listening.run(Losing(0))
    assert [str(each.exc_value) for each in ended] == ["filedescriptor out of range in select()"]
