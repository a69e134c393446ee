"""Writing to the head of a thread: what LangGraph makes of it, and when it is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import graphs
import pytest
import threadcases
from deepagents.middleware.filesystem import _file_data_delta_reducer
from eventually import eventually
from graphs import delete, edit, say, thread, use, user, write
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from nodes import node_at
from rooted import Rooted
from test_threads_follow import Listener
from threadcases import APPROVE, KINDS, Bench, bench, record, shown, where_of
from together import beside

from fusebackend import text
from fusebackend.backends.threads import ThreadsBackend
from fusebackend.testing.conformance import BackendConformance, Probe
from fusebackend.testing.posix.case import refused


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A checkpointer, and a backend that may write to its heads."""
    with bench(request.param, where_of(request, request.param, tmp_path), write="head") as made:
        yield made


one_database = pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
"""For what does not depend on how rows are written."""


def state(agent: Any, name: str) -> dict[str, bytes]:
    return shown(graphs.state_at(agent, thread(name)).get("files"))


# -- a thread at rest ----------------------------------------------------------------------------------------------


def test_a_write_is_part_of_the_state_at_once_and_of_the_next_run(desk: Bench) -> None:
    agent = threadcases.plain(desk.saver)
    assert desk.backend.write("/plain/head/notes/new.txt", "from outside\n").error is None
    assert desk.get("/plain/head/notes/new.txt") == b"from outside\n"
    assert state(agent, "plain")["/notes/new.txt"] == b"from outside\n"
    agent.model.script = [use(edit("/notes/new.txt", "outside", "inside")), say("ok")]
    agent.invoke(user("go"), thread("plain"))
    assert state(agent, "plain")["/notes/new.txt"] == b"from inside\n"
    desk.backend.volume.follow()
    assert desk.get("/plain/head/notes/new.txt") == b"from inside\n"


def test_many_writes_to_one_checkpoint_all_count(desk: Bench) -> None:
    agent = threadcases.plain(desk.saver)
    for number in range(5):
        desk.put(f"/plain/head/n{number}.txt", str(number))
        desk.put("/plain/head/same.txt", f"version {number}")
    assert desk.backend.edit("/plain/head/same.txt", "version 4", "version 5").error is None
    assert desk.backend.delete("/plain/head/n0.txt").error is None
    assert desk.backend.delete("/plain/head/a.txt").error is None
    found = state(agent, "plain")
    assert found["/same.txt"] == b"version 5"
    assert sorted(found) == ["/c.txt", "/n1.txt", "/n2.txt", "/n3.txt", "/n4.txt", "/same.txt", "/second.txt"]
    agent.invoke(user("go"), thread("plain"))
    assert state(agent, "plain") == found
    assert len(graphs.state_at(agent, thread("plain"))["messages"]) > 8


def test_langgraphs_own_pending_writes_and_ours_get_along(desk: Bench) -> None:
    agent = threadcases.plain(desk.saver)
    desk.put("/plain/head/one.txt", "1")
    agent.invoke(Command(update={"files": {"/two.txt": record("2")}}, goto="model"), thread("plain"))
    desk.put("/plain/head/three.txt", "3")
    found = state(agent, "plain")
    assert (found["/one.txt"], found["/two.txt"], found["/three.txt"]) == (b"1", b"2", b"3")


def test_many_uploads_are_one_pending_write(desk: Bench) -> None:
    agent = threadcases.plain(desk.saver)
    threadcases.old(desk.saver)
    before = len(desk.saver.get_tuple(thread("plain")).pending_writes)
    files = [(f"/plain/head/many/{number}.txt", str(number).encode()) for number in range(300)]
    files[7:7] = [("/old/head/elsewhere.txt", b"x"), ("/nobody/head/x.txt", b""), ("/plain/head/a.txt/below", b"")]
    files += [("/plain/head/a.txt", b"replaced"), ("/plain/head/many", b""), ("/plain/state.json", b"")]
    files += [("/plain/head/a%2Eb", b"as it is"), ("/plain/head/\udcff", b""), ("/plain/head/last.txt", "text")]
    responses = desk.backend.upload_files(files)
    assert [response.path for response in responses] == [path for path, _ in files]
    assert {response.path: response.error for response in responses if response.error is not None} == {
        "/nobody/head/x.txt": "file_not_found",
        "/plain/head/a.txt/below": "invalid_path",
        "/plain/head/many": "is_directory",
        "/plain/state.json": "permission_denied",
        "/plain/head/\udcff": "Invalid or incomplete multibyte or wide character",
        "/plain/head/last.txt": "content must be bytes, not str",
    }
    assert len(desk.saver.get_tuple(thread("plain")).pending_writes) == before + 1
    found = state(agent, "plain")
    assert found["/many/299.txt"] == b"299"
    assert (found["/a.txt"], found["/a%2Eb"]) == (b"replaced", b"as it is")
    assert desk.get("/plain/head/many/150.txt") == b"150"
    assert desk.get("/old/head/elsewhere.txt") == b"x"


def test_agents_wait_while_a_write_is_checked_and_stored(desk: Bench) -> None:
    agent = threadcases.plain(desk.saver)
    update = threading.Thread(target=agent.update_state, args=(thread("plain"), {"files": {"/x.txt": record("x")}}))
    with desk.backend.volume._database.exclusive():
        update.start()
        update.join(0.2)
        assert update.is_alive()
    update.join()
    assert state(agent, "plain")["/x.txt"] == b"x"


@one_database
def test_a_move_is_one_change(desk: Bench) -> None:
    agent = threadcases.plain(desk.saver)
    before = len(desk.saver.get_tuple(thread("plain")).pending_writes)
    assert desk.backend.move("/plain/head/a.txt", "/plain/head/moved/b.txt").error is None
    assert state(agent, "plain")["/moved/b.txt"] == b"three\n"
    assert "/a.txt" not in state(agent, "plain")
    assert len(desk.saver.get_tuple(thread("plain")).pending_writes) == before + 1


@one_database
def test_a_move_takes_no_file_that_is_too_large_to_be_read(desk: Bench) -> None:
    big = {"content": ["line"] * 500_001, "modified_at": "2025-01-02T03:04:05+00:00"}
    agent = graphs.old_agent(desk.saver)
    agent.invoke(user("go", updates=[{"/d/big.txt": big, "/d/small.txt": graphs.old_record("s")}]), thread("old"))
    before = graphs.state_at(agent, thread("old"))["files"]
    assert "more than 500,000 values" in (desk.backend.move("/old/head/d", "/old/head/e").error or "")
    assert graphs.state_at(agent, thread("old"))["files"] == before


@one_database
def test_bytes_and_times_are_kept_as_deepagents_keeps_them(desk: Bench) -> None:
    agent = threadcases.plain(desk.saver)
    before = graphs.state_at(agent, thread("plain"))["files"]["/a.txt"]
    desk.backend.upload_files([("/plain/head/bin.dat", b"\xff\x00"), ("/plain/head/a.txt", "grüß\r\n".encode())])
    files = graphs.state_at(agent, thread("plain"))["files"]
    assert files["/bin.dat"]["encoding"] == "base64"
    assert text.decode_file_data(files["/bin.dat"]) == b"\xff\x00"
    assert (files["/a.txt"]["content"], files["/a.txt"]["encoding"]) == ("grüß\r\n", "utf-8")
    assert files["/a.txt"]["created_at"] == before["created_at"]
    assert files["/a.txt"]["modified_at"] > before["modified_at"]


@one_database
def test_an_old_agent_gets_what_it_can_read(desk: Bench) -> None:
    agent = graphs.old_agent(desk.saver)
    agent.invoke(user("go", updates=[{"/a.txt": graphs.old_record("one\n")}]), thread("lines"))
    desk.put("/lines/head/a.txt", "two\nthree\n")
    desk.put("/lines/head/b.txt", "new")
    files = graphs.state_at(agent, thread("lines"))["files"]
    assert (files["/a.txt"]["content"], files["/b.txt"]["content"]) == (["two", "three", ""], ["new"])
    agent.invoke(user("go", updates=[{"bare.md": "text"}, {"/a.txt": None, "/b.txt": None}]), thread("lines"))
    desk.backend.volume.follow()
    desk.put("/lines/head/bare.md", "other text")
    assert graphs.state_at(agent, thread("lines"))["files"] == {"bare.md": "other text"}


@one_database
def test_before_the_first_file_there_is_a_counter_that_says_there_may_be_one(desk: Bench) -> None:
    agent = graphs.deep_agent(desk.saver, [say("hello"), use(write("/own.txt", "o")), say("ok")])
    agent.invoke(user("hi"), thread("talk"))
    desk.put("/talk/head/first.txt", "1")
    assert state(agent, "talk") == {"/first.txt": b"1"}
    agent.invoke(user("go"), thread("talk"))
    assert state(agent, "talk") == {"/first.txt": b"1", "/own.txt": b"o"}


@one_database
def test_an_agent_without_files_would_not_see_one(desk: Bench) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [say("hello")]})
    graph.add_edge(START, "answer")
    graph.compile(checkpointer=desk.saver).invoke(user("hi"), thread("talk"))
    assert "keeps no files in its state" in (desk.backend.write("/talk/head/x.txt", "x").error or "")


# -- a thread that waits for a human ---------------------------------------------------------------------------------


@one_database
def test_an_approval_stays_what_it_is(desk: Bench) -> None:
    agent = threadcases.waiting_for_approval(desk.saver)
    before = agent.get_state(thread("waiting_for_approval"))
    desk.put("/waiting_for_approval/head/note.txt", "look at this")
    assert desk.backend.edit("/waiting_for_approval/head/plan.txt", "p", "plan").error is None
    after = agent.get_state(thread("waiting_for_approval"))
    assert after.next == before.next != ()
    assert after.interrupts == before.interrupts != ()
    assert shown(after.values["files"]) == {"/plan.txt": b"plan", "/note.txt": b"look at this"}
    agent.invoke(APPROVE, thread("waiting_for_approval"))
    done = agent.get_state(thread("waiting_for_approval"))
    assert done.next == ()
    assert shown(done.values["files"]) == {"/note.txt": b"look at this"}


@one_database
def test_before_the_very_first_file_is_approved(desk: Bench) -> None:
    agent = graphs.deep_agent(desk.saver, [use(write("/x.txt", "x")), say("ok")], interrupt_on={"write_file": True})
    agent.invoke(user("go"), thread("first"))
    desk.put("/first/head/note.txt", "n")
    before = agent.get_state(thread("first"))
    assert before.interrupts
    agent.invoke(APPROVE, thread("first"))
    assert state(agent, "first") == {"/x.txt": b"x", "/note.txt": b"n"}


@one_database
def test_what_a_finished_task_has_made_stays(desk: Bench) -> None:
    agent = threadcases.one_tool_done_and_one_waiting(desk.saver)
    name = "one_tool_done_and_one_waiting"
    assert desk.get(f"/{name}/head/done.txt") == b"d"
    desk.put(f"/{name}/head/note.txt", "n")
    assert len(agent.get_state(thread(name)).interrupts) == 1
    agent.invoke(Command(resume="yes"), thread(name))
    assert state(agent, name) == {"/before.txt": b"b", "/done.txt": b"d", "/note.txt": b"n"}


@one_database
def test_new_input_instead_of_an_answer_keeps_the_file(desk: Bench) -> None:
    agent = threadcases.waiting_for_approval(desk.saver)
    desk.put("/waiting_for_approval/head/note.txt", "n")
    agent.model.script = [say("something else")]
    agent.invoke(user("forget it"), thread("waiting_for_approval"))
    assert state(agent, "waiting_for_approval") == {"/plan.txt": b"p", "/note.txt": b"n"}


# -- a thread that runs ----------------------------------------------------------------------------------------------


@one_database
def test_while_a_run_is_active_the_head_is_busy(desk: Bench) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @tool
    def wait() -> str:
        """Wait."""
        inside.set()
        assert go_on.wait(30)
        return "waited"

    script = [use(write("/a.txt", "a")), use(graphs.call("wait"), write("/b.txt", "b")), say("ok")]
    agent = graphs.deep_agent(desk.saver, script, tools=[wait])
    with beside(lambda: agent.invoke(user("go"), thread("run"), durability="sync")):
        assert inside.wait(30)
        try:
            for result in (
                desk.backend.write("/run/head/x.txt", "x"),
                desk.backend.edit("/run/head/a.txt", "a", "b"),
                desk.backend.delete("/run/head/a.txt"),
                desk.backend.move("/run/head/a.txt", "/run/head/z.txt"),
            ):
                assert "A run of this thread is active" in (result.error or "")
            assert desk.backend.upload_files([("/run/head/x.txt", b"")])[0].error == os.strerror(errno.EBUSY)
            assert desk.get("/run/head/a.txt") == b"a"
        finally:
            go_on.set()
    desk.put("/run/head/x.txt", "x")
    assert state(agent, "run") == {"/a.txt": b"a", "/b.txt": b"b", "/x.txt": b"x"}


def test_a_run_that_was_killed_counts_as_ended_after_the_quiet_time(tmp_path: Path) -> None:
    path = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(path) as saver:
        agent = graphs.deep_agent(saver, [use(write("/a.txt", "a")), say("ok")])
        agent.invoke(user("go"), thread("t"))
        # As if it had been killed before its last steps.
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            ids = graphs.checkpoint_ids(agent, thread("t"))
            for table in ("checkpoints", "writes"):
                connection.execute(f"DELETE FROM {table} WHERE checkpoint_id > ?", (ids[4],))
            connection.execute("DELETE FROM writes WHERE checkpoint_id = ?", (ids[4],))
        assert agent.get_state(thread("t")).next
        with ThreadsBackend.from_sqlite(path, write="head") as patient:
            assert "active" in (patient.write("/t/head/x.txt", "x").error or "")
        with ThreadsBackend.from_sqlite(path, write="head", quiet_s=0.0) as hasty:
            assert hasty.write("/t/head/x.txt", "x").error is None
        assert state(agent, "t") == {"/a.txt": b"a", "/x.txt": b"x"}


@one_database
def test_a_failed_run_has_ended(desk: Bench) -> None:
    agent = threadcases.failed(desk.saver)
    assert agent.get_state(thread("failed")).next
    desk.put("/failed/head/x.txt", "x")
    assert state(agent, "failed")["/x.txt"] == b"x"


def test_watchers_are_told_of_the_agents_changes_and_once_of_ours(desk: Bench) -> None:
    agent = threadcases.plain(desk.saver)
    listener = Listener(desk.backend)
    desk.put("/plain/head/ours.txt", "1")
    desk.put("/plain/head/ours.txt", "2")
    desk.backend.upload_files([("/plain/head/x.txt", b"x"), ("/plain/head/a.txt", b"y")])
    desk.backend.volume.follow()
    told = [(report.kind, report.path) for report in listener.reports if report.path.startswith("/plain/head/")]
    assert told == [
        ("created", "/plain/head/ours.txt"),
        ("modified", "/plain/head/ours.txt"),
        ("created", "/plain/head/x.txt"),
        ("modified", "/plain/head/a.txt"),
    ]
    agent.model.script = [use(write("/theirs.txt", "t"), delete("/c.txt"), edit("/ours.txt", "2", "3")), say("ok")]
    agent.invoke(user("go"), thread("plain"))
    eventually(lambda: "/plain/head/theirs.txt" in listener.paths("created"))
    eventually(lambda: "/plain/head/c.txt" in listener.paths("deleted"))
    eventually(lambda: listener.paths("modified").count("/plain/head/ours.txt") == 2)
    listener.end()


# -- conflicts -------------------------------------------------------------------------------------------------------


def test_a_version_that_was_not_seen_is_not_overwritten(desk: Bench) -> None:
    agent = threadcases.plain(desk.saver)
    volume = desk.backend.volume
    node = node_at(volume, "/plain/head/a.txt")
    volume.open(node, os.O_RDWR)
    volume.write(node, 0, b"mine!")
    agent.model.script = [use(edit("/a.txt", "three", "theirs")), say("ok")]
    agent.invoke(user("go"), thread("plain"))
    refused(errno.ESTALE, volume.flush, node)
    volume.release(node, os.O_RDWR)
    found = state(agent, "plain")
    assert found["/a.txt"] == b"theirs\n"
    assert [data for path, data in found.items() if path.startswith("/a.txt.conflict-")] == [b"mine!\n"]


# -- the rest of the tree --------------------------------------------------------------------------------------------


@one_database
def test_nothing_but_the_head_can_be_written_to(desk: Bench) -> None:
    threadcases.a_subagent(desk.saver)
    backend = desk.backend
    (space,) = [entry["path"] for entry in backend.ls("/a_subagent/subgraphs").entries or []]
    checkpoint = (backend.ls("/a_subagent/history").entries or [])[-1]["path"]
    for directory in ("/", "/a_subagent/", "/a_subagent/history/", checkpoint, space, f"{space}head/"):
        assert "Read-only" in (backend.write(f"{directory}x.txt", "x").error or ""), directory
    for path in ("/a_subagent", "history", "head", "messages.jsonl", "state.json"):
        assert "Read-only" in (backend.delete(os.path.join("/a_subagent", path)).error or ""), path
    assert desk.get("/a_subagent/head/main.txt") == b"by sub"
    assert "Read-only" in (backend.edit(f"{checkpoint}main.txt", "by", "x").error or "")
    assert "Read-only" in (backend.move(f"{checkpoint}main.txt", "/a_subagent/head/y.txt").error or "")
    refused(errno.EROFS, backend.volume.open, node_at(backend.volume, "/a_subagent/state.json"), os.O_WRONLY)


# -- the published suite -----------------------------------------------------------------------------------------------


class State(TypedDict):
    files: Annotated[dict[str, Any], DeltaChannel(_file_data_delta_reducer, snapshot_frequency=50)]


class Place:
    """A checkpoint database with a thread for each case."""

    def __init__(self, kind: str, where: str, saver: Any) -> None:
        graph = StateGraph(State)
        graph.add_node("rest", lambda state: {})
        graph.add_edge(START, "rest")
        self.graph = graph.compile(checkpointer=saver)
        self.open = ThreadsBackend.from_sqlite if kind == "sqlite" else ThreadsBackend.from_postgres
        self.where = where

    def thread(self) -> str:
        name = uuid.uuid4().hex
        self.graph.invoke({"files": {}}, graphs.thread(name))
        return f"/{name}/head"


# By day the suite runs in full over SQLite alone.
SUITE_KINDS = ["sqlite", pytest.param("postgres", marks=[pytest.mark.services, pytest.mark.configuration])]


@pytest.fixture(scope="module", params=SUITE_KINDS)
def place(request, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            where = str(tmp_path_factory.mktemp("conformance") / "threads.db")
            saver = stack.enter_context(graphs.sqlite_saver(where))
        else:
            where = stack.enter_context(request.getfixturevalue("postgres").database())
            saver = stack.enter_context(graphs.postgres_saver(where))
        yield Place(request.param, where, saver)


class HeadConformance(BackendConformance):
    big_file_bytes = (1 << 20) + 5  # one record, whatever its size

    def test_a_name_may_be_bytes_that_are_no_text(self, b: Probe) -> None:
        """Keys are texts."""
        (response,) = b.upload_files([("/dir/\udcff", b"x")])
        assert response.error == "Invalid or incomplete multibyte or wide character"
        assert b.read("/\udcff").error == "File '/\udcff' not found"


class TestWritable(HeadConformance):
    @pytest.fixture
    def backend(self, place):
        with place.open(place.where, write="head") as backend:
            yield Rooted(place.thread(), backend, backend)


@pytest.mark.configuration
class TestReplacing(HeadConformance):
    replaces_existing = True

    @pytest.fixture
    def backend(self, place):
        with place.open(place.where, write="head", on_exists="replace") as backend:
            yield Rooted(place.thread(), backend, backend)


@pytest.mark.configuration
class TestReadOnly(HeadConformance):
    """What one backend writes, another one reads that can do nothing else."""

    keeps_empty_directories = False

    @pytest.fixture
    def backend(self, place, monkeypatch):
        with place.open(place.where, write="head") as writer, place.open(place.where) as reader:
            poll = reader.volume._tree.poll
            monkeypatch.setattr(reader.volume._tree, "poll", lambda: poll(now=True))
            yield Rooted(place.thread(), writer, reader)
