"""Histories of threads: one function for each story, run on a real checkpointer. Each returns the agent, which knows
the thread's state; the thread's id is the story's name.

    with bench("sqlite", path) as b:
        agent = plain(b.saver)
        assert b.tree("/plain/head") == shown(graphs.state_at(agent, thread("plain"))["files"])
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphs
import pytest
from graphs import delegate, delete, edit, say, thread, use, user, write
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from fusebackend import text
from fusebackend.backends.threads import ThreadsBackend

APPROVE = Command(resume={"decisions": [{"type": "approve"}]})


def plain(saver: Any, name: str = "plain") -> Any:
    script = [
        use(write("/a.txt", "one\n"), write("/deep/er/b.md", "# two"), write("/c.txt", "")),
        use(edit("/a.txt", "one", "three")),
        use(delete("/deep/er/b.md")),
        say("first"),
        use(write("/second.txt", "2")),
        say("second"),
    ]
    agent = graphs.deep_agent(saver, script)
    agent.invoke(user("go"), thread(name))
    agent.invoke(user("again"), thread(name))
    return agent


def record(content: str) -> dict[str, Any]:
    return {"content": content, "encoding": "utf-8", "modified_at": "2025-03-04T05:06:07.891011+00:00"}


def snapshots(saver: Any, name: str = "snapshots", turns: int = 60) -> Any:
    """More than fifty updates, so that there are snapshots, in several runs."""
    script = graphs.long_script(turns)
    agent = graphs.deep_agent(saver, script)
    agent.invoke(user("go"), thread(name))
    agent.model.script.extend([use(write("/late.txt", "late")), say("bye")])
    agent.invoke(user("go on"), thread(name))
    return agent


def old(saver: Any, name: str = "old") -> Any:
    agent = graphs.old_agent(saver)
    updates = [
        {"/a.txt": graphs.old_record("one\ntwo\n")},
        {"/b/c.txt": graphs.old_record("b"), "/a.txt": graphs.old_record("changed")},
        {"/b/c.txt": None},
        {"relative.md": "the bare text of the first versions"},
    ]
    agent.invoke(user("go", updates=updates), thread(name))
    agent.invoke(
        user("more", updates=[{"/d.txt": graphs.old_record("d")}], files={"/in.txt": graphs.old_record("i")}),
        thread(name),
    )
    return agent


def a_subagent(saver: Any, name: str = "a_subagent") -> Any:
    script = [
        use(write("/main.txt", "m")),
        use(delegate("write")),
        use(write("/sub.txt", "s"), write("/sub2.txt", "s")),
        use(edit("/main.txt", "m", "by sub")),
        say("sub is done"),
        say("done"),
    ]
    agent = graphs.deep_agent(saver, script)
    agent.invoke(user("go"), thread(name))
    return agent


def waiting_for_approval(saver: Any, name: str = "waiting_for_approval") -> Any:
    script = [use(write("/plan.txt", "p")), use(delete("/plan.txt")), say("done")]
    agent = graphs.deep_agent(saver, script, interrupt_on={"delete": True})
    agent.invoke(user("go"), thread(name))
    return agent


@tool
def ask(question: str) -> str:
    """Ask a human."""
    return str(interrupt(question))


def one_tool_done_and_one_waiting(saver: Any, name: str = "one_tool_done_and_one_waiting") -> Any:
    script = [
        use(write("/before.txt", "b")),
        use(write("/done.txt", "d"), graphs.call("ask", question="?")),
        say("done"),
    ]
    agent = graphs.deep_agent(saver, script, tools=[ask])
    agent.invoke(user("go"), thread(name))
    return agent


def time_travel(saver: Any, name: str = "time_travel") -> Any:
    script = [use(write("/a.txt", "1")), use(edit("/a.txt", "1", "2")), use(write("/b.txt", "b")), say("done")]
    agent = graphs.deep_agent(saver, script)
    agent.invoke(user("go"), thread(name))
    ids = graphs.checkpoint_ids(agent, thread(name))
    time.sleep(0.002)  # directories of one millisecond are listed by their steps, and a fork's is an earlier one
    agent.model.script = [use(write("/other.txt", "o")), use(delete("/a.txt")), say("done otherwise")]
    agent.invoke(None, thread(name, checkpoint_id=ids[5]))
    time.sleep(0.002)
    agent.model.script = [use(write("/third.txt", "t")), say("done a third time")]
    agent.invoke(user("from there"), thread(name, checkpoint_id=ids[-1]))
    return agent


def failed(saver: Any, name: str = "failed") -> Any:
    @tool
    def fail() -> str:
        """Fail."""
        raise RuntimeError("as it should")

    script = [use(write("/a.txt", "a")), use(graphs.call("fail"), write("/b.txt", "b"))]
    agent = graphs.deep_agent(saver, script, tools=[fail])
    with contextlib.suppress(RuntimeError):
        agent.invoke(user("go"), thread(name))
    return agent


STORIES = {
    story.__name__: story
    for story in (
        plain, old, a_subagent, waiting_for_approval, one_tool_done_and_one_waiting, time_travel, failed,
    )
}  # fmt: skip


# -- a database and its reader ---------------------------------------------------------------------------------------

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


def where_of(request: pytest.FixtureRequest, kind: str, directory: Path) -> str:
    """Return the path or DSN of a database without threads for a test. PostgreSQL's is the module's: to make one takes
    longer than most tests."""
    if kind == "postgres":
        dsn = str(request.getfixturevalue("shared_dsn"))
        with graphs.postgres_saver(dsn) as saver:
            saver.conn.execute("TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes")
        return dsn
    return str(directory / "threads.db")


def reader(kind: str, where: str, **options: Any) -> ThreadsBackend:
    return (ThreadsBackend.from_postgres if kind == "postgres" else ThreadsBackend.from_sqlite)(where, **options)


class Bench:
    """A checkpointer, and the backend over its database."""

    def __init__(self, saver: Any, backend: ThreadsBackend) -> None:
        self.saver = saver
        self.backend = backend

    def tree(self, directory: str) -> dict[str, bytes]:
        """The files below a directory, by their path there."""
        found: dict[str, bytes] = {}
        left = [directory]
        while left:
            listing = self.backend.ls(left.pop())
            assert listing.error is None, listing.error
            assert listing.entries is not None
            left += [info["path"] for info in listing.entries if info["is_dir"]]
            for info in listing.entries:
                if not info["is_dir"]:
                    content = self.get(info["path"])
                    assert content is not None and info["size"] == len(content)
                    found[info["path"][len(directory) :]] = content
        return found

    def history(self, line: str) -> list[str]:
        listing = self.backend.ls(f"{line}/history")
        assert listing.entries is not None, listing.error
        return [info["path"].rstrip("/") for info in listing.entries if info["is_dir"]]

    def get(self, path: str) -> bytes | None:
        return self.backend.download_files([path])[0].content

    def put(self, path: str, content: str) -> None:
        (response,) = self.backend.upload_files([(path, content.encode())])
        assert response.error is None, response.error


@contextlib.contextmanager
def bench(kind: str, where: str, **options: Any) -> Iterator[Bench]:
    opened = graphs.postgres_saver if kind == "postgres" else graphs.sqlite_saver
    with opened(where) as saver, reader(kind, where, **options) as backend:
        if kind == "sqlite":
            saver.conn.execute("PRAGMA synchronous = OFF")  # no test of these is about power failures
        yield Bench(saver, backend)


def age(saver: Any) -> None:
    """Make the checkpoints of a SqliteSaver 14 years older."""
    older = "{0} = '1e' || substr({0}, 3)"
    for table, columns in [("checkpoints", ["checkpoint_id", "parent_checkpoint_id"]), ("writes", ["checkpoint_id"])]:
        saver.conn.execute(f"UPDATE {table} SET {', '.join(map(older.format, columns))}")
    saver.conn.commit()


def shown(files: dict[str, Any] | None) -> dict[str, bytes]:
    """What a tree has to show of the files in a state. Every key is a path here."""
    return {
        "/" + key.removeprefix("/"): data.encode() if isinstance(data, str) else text.decode_file_data(data)
        for key, data in (files or {}).items()
    }


def check_history(b: Bench, agent: Any, name: str) -> None:
    """The files of each checkpoint, and of the head, are those that LangGraph finds."""
    ids, history = graphs.checkpoint_ids(agent, thread(name)), b.history(f"/{name}")
    for checkpoint, directory in zip(ids, history, strict=True):
        expected = shown(graphs.state_at(agent, thread(name), checkpoint).get("files"))
        assert b.tree(directory) == expected, (checkpoint, directory)
    assert b.tree(f"/{name}/head") == shown(graphs.state_at(agent, thread(name)).get("files"))


def check_next(b: Bench, agent: Any, name: str) -> None:
    """What is next is what LangGraph says, but for what is done already: that is for the step that is still open."""
    saved = json.loads(b.get(f"/{name}/state.json") or b"")
    snapshot = agent.get_state(thread(name, checkpoint_ns="", checkpoint_id=saved["checkpoint_id"]))
    assert sorted(saved["next"]) == sorted(task.name for task in snapshot.tasks)
