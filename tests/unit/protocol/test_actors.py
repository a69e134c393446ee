"""`acting` and `current_actor`: who makes the changes of a block of code, or of a LangGraph run."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest

from fusebackend.protocol import NOBODY, Actor, acting, current_actor


def test_without_a_word_it_is_the_default() -> None:
    assert current_actor() is NOBODY
    assert current_actor(Actor(agent="a")) == Actor(agent="a")


def test_a_block_names_the_actor() -> None:
    with acting(Actor(agent="outer")):
        with acting(Actor(agent="inner", call="1")):
            assert current_actor(Actor(agent="default")) == Actor(agent="inner", call="1")
        assert current_actor().agent == "outer"
    assert current_actor() is NOBODY


def test_a_block_ends_with_an_error() -> None:
    with pytest.raises(KeyError), acting(Actor(agent="a")):
        raise KeyError
    assert current_actor() is NOBODY


def test_a_thread_with_a_copy_of_the_context_is_in_the_block() -> None:
    found: list[Actor] = []
    with acting(Actor(agent="a")):
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: found.append(context.run(current_actor)))
        thread.start()
        thread.join()
    assert found == [Actor(agent="a")]


def test_a_tool_of_a_langgraph_run_is_a_call() -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    found: list[Actor] = []

    @tool
    def look(word: str) -> str:
        """Note who acts."""
        found.append(current_actor(Actor(agent="default", uid=7)))
        found.append(current_actor(Actor(agent="default", uid=7)))
        return word

    graph: Any = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([look]))
    graph.add_edge(START, "tools")
    calls = [{"name": "look", "args": {"word": word}, "id": f"call_{word}"} for word in "ab"]
    graph.compile().invoke(
        {"messages": [AIMessage("", tool_calls=calls)]},
        {"configurable": {"thread_id": "t1"}, "metadata": {"lc_agent_name": "planner"}},
    )
    assert {(each.agent, each.thread, each.uid) for each in found} == {("planner", "t1", 7)}
    assert len({each.call for each in found}) == 2  # one for each tool call, the same for all verbs in it
    assert "" not in {each.call for each in found}
