"""The files and messages at each checkpoint are those LangGraph itself finds there, whatever the agent has done."""

from __future__ import annotations

import json
import time
from pathlib import Path

import graphs
import pytest
import threadcases
from for_each import for_each
from graphs import thread
from langgraph.pregel._checkpoint import channels_from_checkpoint
from nodes import node_at
from test_threads_model import delta_graph
from threadcases import STORIES, Bench, check_history, check_next, record, shown

from fusebackend.backends.threads import ThreadsBackend
from fusebackend.backends.threads.database.rows import time_ns_of
from fusebackend.protocol import Attr


@for_each("story", STORIES)
def test_every_checkpoint_is_as_langgraph_finds_it(b: Bench, story: str) -> None:
    agent = STORIES[story](b.saver)
    check_history(b, agent, story)
    check_next(b, agent, story)
    newest = graphs.checkpoint_ids(agent, thread(story))[-1]  # by its id, LangGraph leaves out the writes to it
    lines = [json.loads(line) for line in (b.get(f"/{story}/messages.jsonl") or b"").splitlines()]
    assert [(line["type"], line["content"], line.get("id"), line.get("tool_calls") or []) for line in lines] == [
        (found.type, found.content, found.id, getattr(found, "tool_calls", []))
        for found in graphs.state_at(agent, thread(story), newest).get("messages", [])
    ]


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


@pytest.mark.alone
def test_opening_a_thread_of_400_checkpoints_takes_no_time(tmp_path: Path) -> None:
    path = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(path) as saver:
        graph = delta_graph(saver, 50)
        for number in range(400):
            update = {"files": {f"/work/{number % 30}": record(str(number))}, "todo": []}
            graph.update_state(thread("long"), update, as_node="next")
        took = []
        for _ in range(5):
            start = time.perf_counter()
            with ThreadsBackend.from_sqlite(path) as backend:
                assert len(backend.ls("/long").entries or []) == 10
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

    def at(path: str) -> Attr:
        return volume.getattr(node_at(volume, path))

    assert at(f"{before}/a.txt").node == at(f"{after}/a.txt").node
    head = at("/plain/head/a.txt")
    assert head.node != at(f"{after}/a.txt").node
    assert head.mtime_ns == at(f"{after}/a.txt").mtime_ns > 0
