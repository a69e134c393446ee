"""`ThreadsBackend.from_saver`: threads of any checkpointer object."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphs
import pytest
import threadcases
from agentface import names, text
from graphs import say, thread, use, user, write
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from raising import raising
from threadcases import Bench, check_history, record, shown

from fusebackend.backends import ThreadsBackend
from fusebackend.backends.threads.database import saver as saver_module
from fusebackend.backends.threads.database.postgres import PostgresDatabase
from fusebackend.backends.threads.database.rows import NULL_TASK
from fusebackend.backends.threads.database.saver import SaverDatabase, database_of_saver
from fusebackend.backends.threads.database.sqlite import SqliteDatabase


class OfSomebody(BaseCheckpointSaver[str]):
    """A saver that is none of LangGraph's: it has the two verbs that are needed, and what the graph calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = InMemorySaver()
        self.lists = 0
        for name in ("get_tuple", "put", "put_writes", "get_next_version", "get_delta_channel_history"):
            setattr(self, name, getattr(self.inner, name))

    def list(self, config: Any, **options: Any) -> Iterator[Any]:
        self.lists += 1
        return self.inner.list(config, **options)


SAVERS = ["memory", "sqlite in memory", "encrypted", "somebody's"]


@pytest.fixture(params=SAVERS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "somebody's":
        yield OfSomebody()
    else:
        path = ":memory:" if request.param == "sqlite in memory" else tmp_path / "threads.db"
        serde = EncryptedSerializer(graphs.Reversed()) if request.param == "encrypted" else None
        with contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as connection:
            yield SqliteSaver(connection, serde=serde)


def test_checkpoints_state_and_namespaces_are_shown(saver: Any) -> None:
    """`test_threads_model.py` and `test_threads_for_people.py` have more stories in a saver that is asked itself."""
    agent, forked = threadcases.a_subagent(saver), threadcases.time_travel(saver)
    with ThreadsBackend.from_saver(saver) as backend:
        b = Bench(saver, backend)
        assert names(backend) == ["a_subagent", "time_travel"]
        check_history(b, agent, "a_subagent")
        check_history(b, forked, "time_travel")
        (space,) = names(backend, "/a_subagent/subgraphs")
        assert b.tree(f"/a_subagent/subgraphs/{space}/head")["/sub.txt"] == b"s"
        state = json.loads(text(backend, "/a_subagent/state.json"))
        assert state["checkpoint_id"] == graphs.checkpoint_ids(agent, thread("a_subagent"))[-1]


def test_what_is_saved_later_is_seen(saver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SWEEP_INTERVAL_S": 0.0, "MEMORY_INTERVAL_S": 0.0, "SWEEP_SHARE": 1e9}.items():
        monkeypatch.setattr(saver_module, name, value)
    with ThreadsBackend.from_saver(saver) as backend:
        b = Bench(saver, backend)
        assert backend.ls("/").entries == []
        agent = graphs.deep_agent(saver, [use(write("/a.txt", "one")), say("done")])
        agent.invoke(user("go"), thread("t"))
        assert b.tree("/t/head") == {"/a.txt": b"one"}
        before = len(b.history("/t"))
        agent.model.script.extend([use(write("/b.txt", "two")), say("done")])
        agent.invoke(user("go"), thread("t"))
        assert b.tree("/t/head") == {"/a.txt": b"one", "/b.txt": b"two"}
        assert len(b.history("/t")) > before
        agent.update_state(thread("t"), {"files": {"/a.txt": None}}, as_node="model")
        assert b.tree("/t/head") == shown(graphs.state_at(agent, thread("t"))["files"])
        saver.put_writes(agent.get_state(thread("t")).config, [("files", {"/w.txt": record("w")})], NULL_TASK)
        assert b.tree("/t/head")["/w.txt"] == b"w"


def test_a_thread_that_is_deleted_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver_module, "MEMORY_INTERVAL_S", 0.0)
    monkeypatch.setattr(saver_module, "SWEEP_SHARE", 1e9)
    saver = InMemorySaver()
    threadcases.plain(saver, "one")
    threadcases.plain(saver, "two")
    with ThreadsBackend.from_saver(saver) as backend:
        assert names(backend) == ["one", "two"]
        saver.delete_thread("one")
        assert names(backend) == ["two"]
        assert backend.ls("/one").error is not None


def test_a_saver_is_not_listed_all_the_time() -> None:
    saver = OfSomebody()
    threadcases.plain(saver)
    with ThreadsBackend.from_saver(saver) as backend:
        backend.glob("**/*")
        for _ in range(100):
            backend.ls("/plain/head")
        assert saver.lists <= 3


def test_databases_are_read_directly(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        agent = threadcases.plain(saver)
        database = database_of_saver(saver)
        assert isinstance(database, SqliteDatabase)
        database.close()
        with pytest.raises(ValueError, match="must be 'head' or None"):
            ThreadsBackend.from_sqlite(str(path), write="all")
        with ThreadsBackend.from_saver(saver, write="head") as backend:
            assert backend.write("/plain/head/new.txt", "n").error is None
        assert shown(graphs.state_at(agent, thread("plain"))["files"])["/new.txt"] == b"n"


@pytest.mark.parametrize("pooled", [False, True])
def test_a_postgres_saver_is_read_directly(postgres_dsn: str, pooled: bool) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg_pool import ConnectionPool

    with graphs.postgres_saver(postgres_dsn) as saver:
        threadcases.plain(saver)
        with ConnectionPool(postgres_dsn, kwargs={"autocommit": True}, min_size=1, open=True) as pool:
            opened = database_of_saver(PostgresSaver(pool) if pooled else saver)  # type: ignore[arg-type]
        assert isinstance(opened, PostgresDatabase)
        with ThreadsBackend(opened) as backend:
            assert names(backend) == ["plain"]


def test_a_saver_that_is_asked_itself_is_read_only() -> None:
    saver = InMemorySaver()
    threadcases.plain(saver)
    with pytest.raises(ValueError, match=r"write='head' needs .* not a InMemorySaver"):
        ThreadsBackend.from_saver(saver, write="head")
    with ThreadsBackend.from_saver(saver) as backend:
        assert "Read-only" in (backend.write("/plain/head/x", "x").error or "")


def test_async_savers_and_what_is_none_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
            with pytest.raises(TypeError, match=r"AsyncSqliteSaver only answers inside .* ThreadsBackend.from_sqlite"):
                ThreadsBackend.from_saver(saver)

    asyncio.run(main())

    class OnlyAsync(BaseCheckpointSaver[str]): ...

    with pytest.raises(TypeError, match="OnlyAsync only answers"):
        ThreadsBackend.from_saver(OnlyAsync())
    with pytest.raises(TypeError, match="str is no checkpointer of LangGraph: it has no list and no get_tuple"):
        ThreadsBackend.from_saver("threads.db")


def test_the_constructor_says_what_to_use() -> None:
    with pytest.raises(TypeError, match=r"not str: make it by ThreadsBackend.from_sqlite.*from_saver"):
        ThreadsBackend("threads.db")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not InMemorySaver"):
        ThreadsBackend(InMemorySaver())  # type: ignore[arg-type]


def test_a_saver_that_fails_is_an_error_in_its_own_words() -> None:
    saver: Any = OfSomebody()
    saver.list = raising(RuntimeError("no such luck"))
    with pytest.raises(OSError, match="the saver failed: RuntimeError: no such luck"):
        ThreadsBackend.from_saver(saver)


@pytest.mark.parametrize("channel", ["odd", "files"])
def test_values_that_can_not_be_packed_harm_no_other(channel: str) -> None:
    class Odd:
        def __reduce__(self) -> Any:
            raise TypeError("never")

    def with_an_odd_value(config: Any) -> Any:
        found = saver.inner.get_tuple(config)
        if found is not None:
            found.checkpoint["channel_values"][channel] = Odd()
        return found

    saver: Any = OfSomebody()
    threadcases.plain(saver)
    saver.get_tuple = with_an_odd_value
    assert isinstance(database_of_saver(saver), SaverDatabase)
    with ThreadsBackend.from_saver(saver) as backend:
        if channel == "files":
            assert names(backend, "/plain/head") == ["ERROR.txt"]
            assert "can't be packed" in text(backend, "/plain/head/ERROR.txt")
            assert "unreadable" in text(backend, "/plain/README.md")
            return
        assert text(backend, "/plain/head/a.txt") == "three\n"
        assert "can't be packed" in text(backend, "/plain/state.json")
