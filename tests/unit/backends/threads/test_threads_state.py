"""The files and messages at each checkpoint are those LangGraph itself finds there, whatever the agent has done."""

from __future__ import annotations

import json

import graphs
import pytest
import threadcases
from for_each import for_each
from graphs import thread
from nodes import node_at
from threadcases import STORIES, Bench, check_history, check_next

from fusebackend.protocol import Attr


@pytest.mark.parametrize("b", ["postgres"], indirect=True)  # `test_threads_for_people.py` reads stories in SQLite
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
