"""Following a running agent: what it does is seen, told to caches as a change, and to watchers as an event."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import graphs
import pytest
import threadcases
from agentface import names
from eventually import eventually
from for_each import for_each
from graphs import delete, edit, say, thread, use, user, write
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from nodes import node_at, whole
from threadcases import Bench, check_history, record, shown

from fusebackend.backends.threads import ThreadsBackend
from fusebackend.backends.threads.database import sqlite as sqlite_module
from fusebackend.backends.threads.database.rows import News, Place
from fusebackend.backends.threads.database.sqlite import SqliteDatabase
from fusebackend.base.waiting import WouldWait, at_once
from fusebackend.protocol import Change
from fusebackend.testing.posix.case import refused
from fusebackend.volumes.contents import opened

LIMIT_S = 60.0
"""How long to wait for what comes within a second, on a busy machine."""


class Listener:
    """Somebody who keeps caches, and watches."""

    def __init__(self, backend: ThreadsBackend) -> None:
        self.changes: list[Change] = []
        self.reports: list[Change] = []
        self._ends = [backend.volume.subscribe(self.changes.append), backend.volume.observe(self._report)]

    def _report(self, reports: Sequence[Change]) -> Callable[[], None]:
        self.reports += reports
        return lambda: None

    def paths(self, kind: str) -> list[str]:
        return [report.path for report in self.reports if report.kind == kind]

    def end(self) -> None:
        for end in self._ends:
            end()


@pytest.fixture
def listener(b: Bench) -> Iterator[Listener]:
    made = Listener(b.backend)
    yield made
    made.end()


def test_a_new_checkpoint_is_told(b: Bench, listener: Listener) -> None:
    agent = threadcases.plain(b.saver)
    volume = b.backend.volume
    volume.follow()
    for path in ("/plain/head", "/plain/history"):
        b.backend.ls(path)
    file, head, messages = (node_at(volume, f"/plain/{path}") for path in ("head/a.txt", "head", "messages.jsonl"))
    agent.model.script = [
        use(edit("/a.txt", "three", "four"), write("/new/file.txt", "n"), delete("/c.txt")),
        use(write("/c.txt/inside.txt", "a directory now")),
        say("ok"),
    ]
    agent.invoke(user("go"), thread("plain"))
    last = graphs.checkpoint_ids(agent, thread("plain"))[-1]

    def newest() -> str:
        return volume.getxattr(node_at(volume, b.history("/plain")[-1]), b"user.fusebackend.checkpoint").decode()

    eventually(lambda: newest() == last)  # the feed may show earlier ones before
    created = {b.history("/plain")[-1] + "/"}
    created |= {f"/plain/head/{name}" for name in ("new/", "new/file.txt", "c.txt/", "c.txt/inside.txt")}
    eventually(lambda: created <= set(listener.paths("created")))
    eventually(lambda: "/plain/head/c.txt" in listener.paths("deleted"))
    modified = {"/plain/head/a.txt", "/plain/messages.jsonl", "/plain/state.json"}
    eventually(lambda: modified <= set(listener.paths("modified")))
    assert len(listener.paths("created")) >= 7
    assert all(report.source == "elsewhere" for report in listener.reports)
    eventually(lambda: {file, messages} <= {change.node for change in listener.changes if change.parent is None})
    eventually(lambda: any(change.parent == head and change.name == b"c.txt" for change in listener.changes))
    assert node_at(volume, "/plain/head/a.txt") == file
    assert b.tree("/plain/head") == shown(graphs.state_at(agent, thread("plain"))["files"])


def test_the_conversation_grows_at_its_end_when_a_step_ends(b: Bench) -> None:
    """LangGraph puts the messages of a step into their order then, and gives them ids."""
    builder = StateGraph(MessagesState)
    builder.add_node("quick", lambda _: {"messages": [AIMessage("answer")]})
    builder.add_node("asks", lambda _: {"messages": [AIMessage(interrupt("?"))]})
    builder.add_edge(START, "quick")
    builder.add_edge(START, "asks")
    graph = builder.compile(checkpointer=b.saver)
    graph.invoke(user("go"), thread("asking"))

    def lines() -> str:
        return whole(b.backend.volume, node_at(b.backend.volume, "/asking/messages.jsonl")).decode()

    before = lines()
    assert [json.loads(line)["content"] for line in before.splitlines()] == ["go"]
    graph.invoke(Command(resume="yes"), thread("asking"))
    eventually(lambda: "yes" in lines())
    after = lines()
    assert after.startswith(before)
    assert [json.loads(line)["content"] for line in after.splitlines()] == ["go", "yes", "answer"]


def test_a_new_thread_is_told(b: Bench, listener: Listener) -> None:
    assert b.backend.ls("/").entries == []
    b.backend.volume.follow()
    threadcases.a_subagent(b.saver)
    eventually(lambda: "/a_subagent/" in listener.paths("created"))
    eventually(lambda: any(change.parent == 1 and change.name == b"a_subagent" for change in listener.changes))


def test_of_a_thread_that_nobody_has_looked_into_no_more_is_told(b: Bench, listener: Listener) -> None:
    agent = threadcases.plain(b.saver)
    b.backend.volume.follow()
    b.backend.ls("/")
    agent.invoke(user("go"), thread("plain"))
    if b.backend.volume.features.change_feed:
        eventually(lambda: "/plain/" in listener.paths("unknown"))
        assert not [path for path in listener.paths("created") if path != "/plain/"]


def test_a_namespace_of_a_subagent_is_told(b: Bench, listener: Listener) -> None:
    agent = graphs.deep_agent(b.saver, [say("hello")])
    agent.invoke(user("hi"), thread("t"))
    b.backend.volume.follow()
    assert len(b.backend.ls("/t").entries or []) == 10
    agent.model.script = [use(graphs.delegate("work")), use(write("/s.txt", "s")), say("sub"), say("ok")]
    agent.invoke(user("go"), thread("t"))
    eventually(lambda: "/t/subgraphs/" in listener.paths("created"))
    assert len(b.backend.ls("/t").entries or []) == 11


def test_a_deleted_thread_is_gone(b: Bench, listener: Listener) -> None:
    threadcases.plain(b.saver)
    threadcases.old(b.saver)
    b.backend.volume.follow()
    assert names(b.backend) == ["old", "plain"]
    b.backend.ls("/plain/head")
    volume = b.backend.volume
    held = node_at(volume, "/plain/head")
    volume.hold(held)
    b.saver.delete_thread("plain")
    eventually(lambda: "/plain/" in listener.paths("deleted"))
    assert names(b.backend) == ["old"]
    assert volume.readdir(held, b"", 10) == []
    threadcases.plain(b.saver)
    b.backend.volume.follow()
    assert "/a.txt" in b.tree("/plain/head")


def test_the_file_of_another_message_is_stale(tmp_path: Path) -> None:
    """The kernel still holds its node: the bytes of another message would be taken for the file's."""
    where = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(where) as saver, ThreadsBackend.from_sqlite(where) as backend:
        agent = threadcases.plain(saver)
        volume = backend.volume
        held = node_at(volume, file_of(backend, "messages", -1))
        volume.hold(held)
        saver.delete_thread("plain")
        agent.invoke(user("something else, and longer"), thread("plain"))
        volume.follow()
        backend.ls("/plain/messages")
        refused(errno.ESTALE, volume.open, held, os.O_RDONLY)


@pytest.mark.parametrize(("kind", "place"), [("changes", -1), ("history", -4)])
def test_what_is_computed_of_a_deleted_checkpoint_is_stale(
    tmp_path: Path, kind: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are counted now and then, so a deletion may not be known yet: an empty file was read."""
    where = str(tmp_path / "threads.db")
    with (
        graphs.sqlite_saver(where) as saver,
        contextlib.closing(sqlite3.connect(where)) as others,
        ThreadsBackend.from_sqlite(where) as backend,
    ):
        threadcases.plain(saver)
        volume = backend.volume
        held = node_at(volume, file_of(backend, kind, place))
        assert volume.getattr(held).size > 0
        monkeypatch.setattr(sqlite_module, "COUNTING_SHARE", 1e-9)
        highest = others.execute("SELECT max(rowid) FROM checkpoints").fetchone()[0]
        others.execute("DELETE FROM checkpoints WHERE rowid < ?", (highest,))
        others.commit()
        refused(errno.ESTALE, volume.open, held, os.O_RDONLY)


def file_of(backend: ThreadsBackend, kind: str, place: int) -> str:
    """A file in a directory of the thread `plain`."""
    entries = backend.ls(f"/plain/{kind}").entries or []
    return [entry["path"] for entry in entries if not entry.get("is_dir")][place]


@pytest.mark.parametrize("name", ["state.json", "README.md"])
def test_a_handle_reads_a_rewritten_document_of_one_moment(tmp_path: Path, name: str) -> None:
    """The kernel reads as far as the size that it knew at `open`: JSON that grew ended inside a value."""
    where = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(where) as saver, ThreadsBackend.from_sqlite(where) as backend:
        agent = threadcases.plain(saver)
        volume = backend.volume
        document = node_at(volume, f"/plain/{name}")
        with opened(volume, document, os.O_RDONLY) as handle:
            assert handle != document, "a handle of its own content: past the page cache"
            before = volume.read(handle, 0, 1 << 20)
            assert len(before) == volume.getattr(handle).size
            agent.invoke(user("more"), thread("plain"))
            volume.follow()
            assert volume.read(handle, 0, 1 << 20) == before != whole(volume, document)


@for_each(
    ("before", "after", "read"),
    [("8", "11", "8"), ("11", "8", "11"), ("one", "", "one"), ("one", None, "one"), ("one", "one two", "one two")],
)
def test_a_handle_reads_one_version_of_a_file_of_the_head(b: Bench, before: str, after: str | None, read: str) -> None:
    """A file that was `8` at the first read(2) and `11` at the second read as `81`."""
    name = f"{before} {after}"
    graphs.deep_agent(b.saver, [use(write("/count.txt", before)), say("ok")]).invoke(user("go"), thread(name))
    volume = b.backend.volume
    volume.follow()
    file = node_at(volume, f"/{name}/head/count.txt")
    with opened(volume, file, os.O_RDONLY) as handle:
        assert handle != file, "a handle of its own content: past the page cache"
        first = volume.read(handle, 0, 1)
        change = delete("/count.txt") if after is None else edit("/count.txt", before, after)
        graphs.deep_agent(b.saver, [use(change), say("ok")]).invoke(user("more"), thread(name))
        volume.follow()
        assert first + volume.read(handle, 1, 100) == read.encode()
        assert volume.getattr(handle).size == len(read)
        if after is not None:
            with opened(volume, file, os.O_RDONLY) as later:
                assert volume.read(later, 0, 100) == after.encode()
                assert volume.getattr(file).size == volume.getattr(later).size == len(after)


def test_a_running_agent_is_followed_step_by_step(b: Bench) -> None:
    """At every moment what is shown is one of the states that the thread has been in, and they come in order."""
    states: list[dict[str, bytes]] = []

    @tool
    def look() -> str:
        """Look at what is mounted, in the middle of a run."""
        b.backend.volume.follow()
        states.append(b.tree("/run/head"))
        return "seen"

    changes = (write("/1.txt", "1"), edit("/1.txt", "1", "one"), write("/2.txt", "2"))
    script = [use(call) for change in changes for call in (change, graphs.call("look"))]
    agent = graphs.deep_agent(b.saver, script, tools=[look])
    agent.invoke(user("go"), thread("run"), durability="sync")
    assert states == [{"/1.txt": b"1"}, {"/1.txt": b"one"}, {"/1.txt": b"one", "/2.txt": b"2"}]


def test_a_write_to_an_old_checkpoint_is_seen(b: Bench) -> None:
    """LangGraph stores the update of a `Command` that resumes from an older checkpoint there."""
    threadcases.plain(b.saver)
    ids = graphs.checkpoint_ids(graphs.deep_agent(b.saver), thread("plain"))
    old = b.history("/plain")[4]
    b.tree(old)
    b.tree(b.history("/plain")[5])
    config = thread("plain", checkpoint_ns="", checkpoint_id=ids[4])
    b.saver.put_writes(config, [("files", {"/late.txt": record("late")})], "00000000-0000-0000-0000-000000000000")
    b.backend.volume.follow()
    assert b.tree(old)["/late.txt"] == b"late"
    check_history(b, graphs.deep_agent(b.saver), "plain")


def test_nobody_is_asked_when_nobody_listens(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(b.backend)
    listener.end()
    asked = threading.Event()
    monkeypatch.setattr(b.backend.volume._tree, "refresh", asked.set)
    assert not asked.wait(0.6)


def test_a_database_that_cannot_be_read_is_said_once(
    b: Bench, listener: Listener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Semaphore(0)

    def fail() -> None:
        failed.release()
        raise OSError(5, "gone")

    monkeypatch.setattr(b.backend.volume._tree, "refresh", fail)
    for _ in range(3):
        assert failed.acquire(timeout=LIMIT_S)
    assert [message for message in caplog.messages if "can't be followed" in message] == [
        "the checkpoint database can't be followed: gone"
    ]


# -- what SQLite tells -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        for name in ("one", "two"):
            threadcases.plain(saver, name)
    return path


@pytest.fixture
def database(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SqliteDatabase, sqlite3.Connection]]:
    monkeypatch.setattr(sqlite_module, "COUNTING_SHARE", 1e9)  # rows are counted at each look, however slow it was
    path = str(shutil.copy(made, tmp_path))
    with contextlib.closing(sqlite3.connect(path)) as other, contextlib.closing(SqliteDatabase(path)) as opened:
        yield opened, other


def test_no_commit_is_no_news(database: tuple[SqliteDatabase, sqlite3.Connection]) -> None:
    opened, other = database
    assert opened.news() is None
    other.execute("BEGIN")
    other.execute("DELETE FROM writes")
    assert opened.news() is None
    other.execute("ROLLBACK")
    assert opened.news() is None
    other.execute("CREATE TABLE something_else (x)")
    assert opened.news() is None


@pytest.mark.parametrize(
    ("statement", "news"),
    [
        (
            "INSERT INTO writes SELECT 'one', '', checkpoint_id, 'task', '', 0, 'files', 'null', x'' FROM checkpoints "
            "WHERE thread_id = 'one' LIMIT 1",
            News(False, frozenset({Place("one", "")})),
        ),
        (
            "INSERT INTO checkpoints SELECT 'three', 'x:y', checkpoint_id, NULL, type, checkpoint, metadata "
            "FROM checkpoints WHERE thread_id = 'one' LIMIT 1",
            News(False, frozenset({Place("three", "x:y")})),
        ),
        ("DELETE FROM checkpoints WHERE thread_id = 'one'", News(True)),
        ("DELETE FROM checkpoints WHERE thread_id = 'two'", News(True)),
        ("DELETE FROM writes WHERE thread_id = 'one'", News(True)),
        ("INSERT OR REPLACE INTO checkpoints SELECT * FROM checkpoints WHERE thread_id = 'one' LIMIT 1", News(True)),
        ("INSERT OR REPLACE INTO checkpoints SELECT * FROM checkpoints ORDER BY rowid DESC LIMIT 1", News(True)),
    ],
)
def test_what_was_written_is_told_apart(
    database: tuple[SqliteDatabase, sqlite3.Connection], statement: str, news: News | None
) -> None:
    opened, other = database
    other.execute(statement)
    other.commit()
    assert opened.news() == news
    assert opened.news() is None


def test_rows_that_come_back_under_the_same_ids_are_told(
    database: tuple[SqliteDatabase, sqlite3.Connection],
) -> None:
    opened, other = database
    rows = other.execute("SELECT * FROM checkpoints WHERE thread_id = 'two'").fetchall()
    other.execute("DELETE FROM checkpoints WHERE thread_id = 'two'")
    other.executemany("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", [("new", *row[1:]) for row in rows])
    other.commit()
    assert opened.news() == News(True)


def test_a_count_that_takes_long_is_made_later(
    database: tuple[SqliteDatabase, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, other = database
    now = [1000.0]
    monkeypatch.setattr(sqlite_module, "COUNTING_SHARE", 1 / 20)
    monkeypatch.setattr(opened, "_clock", lambda: now[0])
    opened._counted_at, opened._count_s = 1000.0, 1.0
    other.execute("DELETE FROM checkpoints WHERE thread_id = 'one'")
    other.commit()
    assert opened.news() is None
    now[0] += 19
    assert opened.news() is None
    now[0] += 2
    assert opened.news() == News(True)
    assert opened.news() is None


@pytest.mark.parametrize("rows_at_once", [1, 3, 50_000])
def test_rows_of_odd_threads_count_and_added_ones_are_no_deletion(
    database: tuple[SqliteDatabase, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    opened, other = database
    monkeypatch.setattr(sqlite_module, "ROWS_AT_ONCE", rows_at_once)
    row = "INSERT INTO checkpoints SELECT {}, '', checkpoint_id, NULL, type, checkpoint, metadata FROM checkpoints"
    for odd in ("''", "'a'", "'p' || char(1)", "x'6f'", "CAST(x'ff' AS TEXT)", "'two '"):
        other.execute(f"{row.format(odd)} LIMIT 1")
    other.commit()
    assert opened.news() is not None
    counts = {
        table: other.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("checkpoints", "writes")
    }
    other.execute(row.format("'later'") + " LIMIT 1")
    other.commit()
    assert opened._count(opened._seen) == counts
    assert opened.news() == News(False, frozenset({Place("later", "")}))


def test_no_statement_keeps_a_writer_out_for_long(
    database: tuple[SqliteDatabase, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with a rollback journal can't be committed to meanwhile. One statement counted all rows, and one read 32
    checkpoints with all of their files."""
    opened, other = database
    row = "INSERT INTO writes VALUES ('one', '', 'id', ?, '', 0, 'files', 'null', x'')"
    other.executemany(row, [(f"task {number}",) for number in range(3000)])
    other.commit()
    assert opened.news() is not None
    steps, longest = 0, 0
    ask = opened._ask

    def step() -> None:
        nonlocal steps
        steps += 10

    def counted(statement: str, **values: object) -> list[object]:
        nonlocal steps, longest
        steps = 0
        found = ask(statement, **values)
        longest = max(longest, steps)
        return found

    monkeypatch.setattr(sqlite_module, "ROWS_AT_ONCE", 100)
    monkeypatch.setattr(opened, "_ask", counted)
    opened._connection.set_progress_handler(step, 10)
    assert opened._count(opened._seen)["writes"] > 3000
    assert 100 < longest < 4000
    opened._connection.set_progress_handler(None, 0)

    def one(statement: str, **values: object) -> list[object]:
        found = ask(statement, **values)
        assert len(found) <= 1
        return found

    place = Place("one", "")
    checkpoints = sorted(opened.marks(place))
    monkeypatch.setattr(opened, "_ask", one)
    assert len(opened.links(place, checkpoints, "files")) == len(checkpoints) > 1


def test_checkpoints_are_read_in_a_thread(tmp_path: Path) -> None:
    """The mount calls on its own loop first, where other routes would wait for a long conversation."""
    where = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(where) as saver, ThreadsBackend.from_sqlite(where) as backend:
        agent = threadcases.plain(saver)
        volume = backend.volume
        line = volume.lookup(1, b"plain")
        for _ in range(2):
            with pytest.raises(WouldWait):
                at_once(lambda: volume.lookup(line.node, b"README.md"))
            assert volume.lookup(line.node, b"README.md").size > 0
            assert len(at_once(lambda: volume.readdir(line.node, b"", 100))) == 10
            agent.invoke(user("more"), thread("plain"))
