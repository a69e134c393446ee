"""What the seed *state, store, checkpointer, memory* says of checkpointers, looked at through `ThreadsBackend`.

As in `test_seeds.py`, with `deepagents.backends` replaced by `fusebackend.backends`: an agent keeps its files in its
state, a checkpointer saves that, and the database it saves it in is a tree of threads.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("deepagents")

import graphs
from agentface import names, text
from graphs import call, deep_agent, edit, say, thread, use, user, write
from langgraph.types import Command

from fusebackend.backends import StateBackend, ThreadsBackend
from fusebackend.integrations.deepagents import export

MEMORIES = "/memories/AGENTS.md"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def database(request, tmp_path):
    """The two checkpointers of the table that outlive a program: what opens each, and a backend over its database."""
    if request.param == "sqlite":
        path = str(tmp_path / "threads.db")
        return lambda: graphs.sqlite_saver(path), lambda: ThreadsBackend.from_sqlite(path)
    dsn = request.getfixturevalue("postgres_dsn")
    return lambda: graphs.postgres_saver(dsn), lambda: ThreadsBackend.from_postgres(dsn)


@pytest.fixture
def at_work(database):
    """A checkpointer, and a backend over its database."""
    saver, opened = database
    with saver() as checkpointer, opened() as backend:
        yield checkpointer, backend


# -- Q1.2: what a checkpointer does --------------------------------------------------------------------------------


def test_q1_2_snapshots_of_the_state(at_work):
    """状态快照: each is a directory."""
    checkpointer, backend = at_work
    script = [use(write("/a.txt", "one")), use(edit("/a.txt", "one", "two")), say("done")]
    agent = deep_agent(checkpointer, script, backend=export(StateBackend))
    agent.invoke(user("go"), thread("game"))
    backend.volume.follow()
    history = [name for name in names(backend, "/game/history") if not name.endswith((".json", ".jsonl"))]
    assert len(history) == len(list(agent.get_state_history(thread("game"))))
    seen = [backend.download_files([f"/game/history/{name}/a.txt"])[0].content for name in history]
    assert list(dict.fromkeys(seen)) == [None, b"one", b"two"]


def test_q1_2_pause_and_resume(at_work):
    """暂停/恢复: what is asked is in `state.json`, and gone when it is answered."""
    checkpointer, backend = at_work
    script = [use(write("/a.txt", "one")), say("done")]
    agent = deep_agent(checkpointer, script, interrupt_on={"write_file": True})
    agent.invoke(user("go"), thread("game"))
    backend.volume.follow()
    (asked,) = json.loads(text(backend, "/game/state.json"))["interrupts"]
    assert asked["value"]["action_requests"][0]["args"] == {"file_path": "/a.txt", "content": "one"}
    assert names(backend, "/game/head") == []
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread("game"))
    backend.volume.follow()
    assert json.loads(text(backend, "/game/state.json"))["interrupts"] == []
    assert text(backend, "/game/head/a.txt") == "one"


def test_q1_2_recovery_from_a_failure(at_work):
    """故障恢复: the run goes on where it was, with the files that it had."""
    from langchain_core.tools import tool

    broken = [True]

    @tool
    def fragile() -> str:
        """Fail the first time."""
        if broken.pop() if broken else False:
            raise RuntimeError("power cut")
        return "worked"

    checkpointer, backend = at_work
    script = [use(write("/a.txt", "one")), use(call("fragile")), use(edit("/a.txt", "one", "two")), say("done")]
    agent = deep_agent(checkpointer, script, tools=[fragile])
    with pytest.raises(RuntimeError, match="power cut"):
        agent.invoke(user("go"), thread("game"))
    backend.volume.follow()
    assert text(backend, "/game/head/a.txt") == "one"
    assert json.loads(text(backend, "/game/state.json"))["next"] == ["tools"]
    agent.invoke(None, thread("game"))
    backend.volume.follow()
    assert text(backend, "/game/head/a.txt") == "two"
    assert json.loads(text(backend, "/game/state.json"))["next"] == []


def test_q1_2_the_history_of_the_conversation(at_work):
    """对话历史: one message a line."""
    checkpointer, backend = at_work
    agent = deep_agent(checkpointer, [say("主题色是 #FD5108"), say("再见")])
    agent.invoke(user("记住公司的主题色是#FD5108"), thread("game"))
    agent.invoke(user("谢谢"), thread("game"))
    backend.volume.follow()
    lines = [json.loads(line) for line in text(backend, "/game/messages.jsonl").splitlines()]
    assert [(line["type"], line["content"]) for line in lines] == [
        ("human", "记住公司的主题色是#FD5108"),
        ("ai", "主题色是 #FD5108"),
        ("human", "谢谢"),
        ("ai", "再见"),
    ]


# -- Q2.1: where a StateBackend's files are --------------------------------------------------------------------------


def test_q2_1_the_structure_of_the_state(at_work):
    """The seed's format, a list of lines and naive times, is read where it lies."""
    file = {
        "content": ["line1", "line2"],
        "created_at": "2025-01-01T00:00:00",
        "modified_at": "2025-01-01T00:00:00",
    }
    checkpointer, backend = at_work
    agent = deep_agent(checkpointer, [say("ok")])
    agent.invoke(user("go", files={"/path/to/file.txt": file}), thread("t"))
    backend.volume.follow()
    assert text(backend, "/t/head/path/to/file.txt") == "line1\nline2"


@pytest.mark.parametrize("given", [StateBackend, StateBackend(), lambda rt: StateBackend(rt)])
def test_q2_1_from_write_file_to_the_checkpointer(at_work, given):
    """The flow of the data: write_file, the update of the state, the checkpoint, and here the file."""
    checkpointer, backend = at_work
    agent = deep_agent(checkpointer, [use(write("/report.md", "# Report\n"))], backend=export(given))
    agent.invoke(user("write"), thread("t"))
    backend.volume.follow()
    assert text(backend, "/t/head/report.md") == "# Report\n"


def test_q2_1_how_long_files_live(database):
    """The table: in the same thread, not in others, and after a restart of the program."""
    saver, opened = database
    with saver() as checkpointer:
        agent = deep_agent(checkpointer, [use(write("/f.md", "x")), say("ok"), say("ok"), say("ok")])
        agent.invoke(user("write"), thread("one"))
        agent.invoke(user("again"), thread("one"))
        agent.invoke(user("other"), thread("two"))
    with opened() as backend:  # the program has ended
        assert text(backend, "/one/head/f.md") == "x"
        assert names(backend, "/two/head") == []


def test_q2_4_one_file_may_hold_checkpoints_and_a_store(tmp_path):
    """The sample keeps its store in `checkpoints.db`; LangGraph's tables don't get into each other's way."""
    from langgraph.store.sqlite import SqliteStore

    path = str(tmp_path / "checkpoints.db")
    with SqliteStore.from_conn_string(path) as store:
        store.setup()
        store.put(("memories",), MEMORIES, {"content": ["# Memory"], "created_at": "", "modified_at": ""})
    with graphs.sqlite_saver(path) as checkpointer:
        deep_agent(checkpointer, [use(write("/f.md", "x"))]).invoke(user("go"), thread("t"))
    program = (
        "import sys\n"
        "from fusebackend.backends import CompositeBackend, InMemoryBackend\n"
        "from fusebackend.urls import open_backend\n"
        "path = sys.argv[1]\n"
        "routes = {'/memories/': open_backend(f'store+sqlite:{path}?ns=memories'),\n"
        "          '/threads/': open_backend(f'threads+sqlite:{path}')}\n"
        "both = CompositeBackend(InMemoryBackend(), routes)\n"
        "print([match['path'] for match in both.glob('**/*.md').matches if 'history' not in match['path']])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == f"['/memories{MEMORIES}', '/threads/t/head/f.md']"
