"""The files and messages at each checkpoint are those LangGraph itself finds there, whatever the agent has done."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphs
import pytest
import threadcases
from for_each import for_each
from graphs import thread
from langgraph.pregel._checkpoint import channels_from_checkpoint
from threadcases import STORIES

from fusebackend import text
from fusebackend.backends.threads import ThreadsBackend
from fusebackend.backends.threads.database.rows import time_ns_of

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


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
            paths = [info["path"] for info in listing.entries if not info["is_dir"]]
            for info, answer in zip(
                [info for info in listing.entries if not info["is_dir"]],
                self.backend.download_files(paths),
                strict=True,
            ):
                assert answer.error is None, answer
                assert answer.content is not None
                assert info["size"] == len(answer.content)
                found[info["path"][len(directory) :]] = answer.content
        return found

    def history(self, line: str) -> list[str]:
        listing = self.backend.ls(f"{line}/history")
        assert listing.entries is not None, listing.error
        return [info["path"].rstrip("/") for info in listing.entries if info["is_dir"]]


@contextlib.contextmanager
def bench(kind: str, where: str) -> Iterator[Bench]:
    if kind == "sqlite":
        with graphs.sqlite_saver(where) as saver, ThreadsBackend.from_sqlite(where) as backend:
            yield Bench(saver, backend)
    else:
        with graphs.postgres_saver(where) as saver, ThreadsBackend.from_postgres(where) as backend:
            yield Bench(saver, backend)


@pytest.fixture(params=KINDS)
def b(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    where = str(tmp_path / "threads.db") if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")
    with bench(request.param, where) as made:
        yield made


def shown(files: dict[str, Any] | None) -> dict[str, bytes]:
    """What a tree has to show of the files in a state. Every key is a path here."""
    return {
        "/" + key.removeprefix("/"): data.encode() if isinstance(data, str) else text.decode_file_data(data)
        for key, data in (files or {}).items()
    }


def message(found: Any) -> dict[str, Any]:
    return {
        "type": found.type,
        "content": found.content,
        "id": found.id,
        "calls": getattr(found, "tool_calls", None) or None,
    }


@for_each("story", STORIES, ids=[story.__name__ for story in STORIES])
def test_every_checkpoint_is_as_langgraph_finds_it(b: Bench, story: Any) -> None:
    agent = story(b.saver)
    check(b, agent, story.__name__)


def check(b: Bench, agent: Any, name: str) -> None:
    ids = graphs.checkpoint_ids(agent, thread(name))
    history = b.history(f"/{name}")
    assert len(history) == len(ids) > 0
    for checkpoint, directory in zip(ids, history, strict=True):
        expected = shown(graphs.state_at(agent, thread(name), checkpoint).get("files"))
        assert b.tree(directory) == expected, (checkpoint, directory)
    now = graphs.state_at(agent, thread(name))
    assert b.tree(f"/{name}/head") == shown(now.get("files"))
    (answer,) = b.backend.download_files([f"/{name}/messages.jsonl"])
    assert answer.content is not None
    lines = [json.loads(line) for line in answer.content.decode().splitlines()]
    assert [
        {"type": line["type"], "content": line["content"], "id": line.get("id"), "calls": line.get("tool_calls")}
        for line in lines
    ] == [message(found) for found in now.get("messages", [])]


def test_every_checkpoint_of_a_subagent_is_as_langgraph_finds_it(b: Bench) -> None:
    agent = threadcases.a_subagent(b.saver)
    (space,) = [entry["path"].rstrip("/") for entry in b.backend.ls("/a_subagent/subgraphs").entries or []]
    namespace = space.rpartition("/")[2]
    assert namespace.startswith("tools:")
    config = thread("a_subagent", checkpoint_ns=namespace)
    ids = graphs.checkpoint_ids(agent, config)
    for checkpoint, directory in zip(ids, b.history(space), strict=True):
        saved = b.saver.get_tuple(thread("a_subagent", checkpoint_ns=namespace, checkpoint_id=checkpoint))
        channels, _ = channels_from_checkpoint(
            {"files": agent.channels["files"]}, saved.checkpoint, saver=b.saver, config=saved.config
        )
        assert b.tree(directory) == shown(channels["files"].get())
    assert b.tree(f"{space}/head")["/sub.txt"] == b"s"
    assert json.loads(b.backend.download_files([f"{space}/state.json"])[0].content or b"")["checkpoint_ns"] == namespace


def test_a_thread_of_400_checkpoints(b: Bench) -> None:
    agent = graphs.deep_agent(b.saver, graphs.long_script(200))
    agent.invoke(user_input(), thread("long"))
    assert len(graphs.checkpoint_ids(agent, thread("long"))) > 400
    check(b, agent, "long")


def user_input() -> dict[str, Any]:
    return graphs.user("go")


@pytest.mark.alone
def test_opening_a_thread_of_400_checkpoints_takes_no_time(tmp_path: Path) -> None:
    path = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(path) as saver:
        graphs.deep_agent(saver, graphs.long_script(200)).invoke(user_input(), thread("long"))
        took = []
        for _ in range(5):
            start = time.perf_counter()
            with ThreadsBackend.from_sqlite(path) as backend:
                assert len(backend.ls("/long").entries or []) == 9
                assert backend.ls("/long/head/work").entries
            took.append(time.perf_counter() - start)
    assert min(took) < 0.5, took  # 17 to 30 ms where nothing else runs


def test_names_say_when_which_step_and_why(b: Bench) -> None:
    agent = threadcases.time_travel(b.saver)
    ids = graphs.checkpoint_ids(agent, thread("time_travel"))
    names = [path.rpartition("/")[2] for path in b.history("/time_travel")]
    nodes = {"start", *(node.strip("_").replace(".", "_") for node in agent.nodes)}
    assert names == sorted(names)
    for checkpoint, name in zip(ids, names, strict=True):
        metadata = b.saver.get_tuple(thread("time_travel", checkpoint_ns="", checkpoint_id=checkpoint)).metadata
        stamp, rest = name.split("Z-", 1)
        step, _, node = rest.rpartition("-")
        assert step == f"{metadata['step']:04}"
        assert node == metadata["source"] if metadata["source"] != "loop" else node in nodes, node
        time_ns = time_ns_of(checkpoint)
        assert time_ns is not None
        second = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time_ns // 10**9))
        assert stamp == f"{second}.{time_ns % 10**9 // 10**6:03d}"


def test_what_did_not_change_is_the_same_inode_with_the_same_times(b: Bench) -> None:
    threadcases.plain(b.saver)
    *_, before, after = b.history("/plain")
    volume = b.backend.volume

    def at(path: str) -> Any:
        node = 1
        for name in path.strip("/").split("/"):
            attr = volume.lookup(node, name.encode())
            node = attr.node
        return attr

    assert at(f"{before}/a.txt").node == at(f"{after}/a.txt").node
    head = at("/plain/head/a.txt")
    assert head.node != at(f"{after}/a.txt").node
    assert head.mtime_ns == at(f"{after}/a.txt").mtime_ns > 0
