"""Real agents for tests: deepagents and LangGraph graphs with a scripted chat model, and the threads they leave.

    with sqlite_saver(tmp_path / "threads.db") as saver:
        agent = deep_agent(saver, [use(write("/notes.txt", "one")), say("done")])
        agent.invoke(user("hello"), thread("t1"))

Nothing here uses a network: the model answers with the messages of its script, in order, then with "done".
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

pytest.importorskip("deepagents")
pytest.importorskip("langgraph.checkpoint.sqlite")

from deepagents import create_deep_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

Config = dict[str, Any]

_call_ids = itertools.count(1)


class ScriptedModel(BaseChatModel):
    """A chat model that answers from its script. `seen` keeps its inputs, one list of messages a turn."""

    script: list[AIMessage]
    seen: list[list[BaseMessage]] = []

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self.seen.append(list(messages))
        message = self.script.pop(0) if self.script else say("done")
        return ChatResult(generations=[ChatGeneration(message=message)])


# -- what a script is made of ------------------------------------------------------------------------------------


def say(text: str) -> AIMessage:
    """Make the message of a model that answers."""
    return AIMessage(text)


def use(*calls: dict[str, Any]) -> AIMessage:
    """Make the message of a model that calls tools, all in one turn."""
    return AIMessage("", tool_calls=list(calls))


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """Make one call of a tool, for `use`."""
    return {"name": tool, "args": arguments, "id": f"call-{next(_call_ids)}", "type": "tool_call"}


def write(path: str, content: str) -> dict[str, Any]:
    return call("write_file", file_path=path, content=content)


def edit(path: str, old: str, new: str) -> dict[str, Any]:
    return call("edit_file", file_path=path, old_string=old, new_string=new)


def delete(path: str) -> dict[str, Any]:
    return call("delete", file_path=path)


def delegate(description: str, subagent: str = "general-purpose") -> dict[str, Any]:
    """Make the call that gives a task to a sub-agent."""
    return call("task", description=description, subagent_type=subagent)


def user(text: str, **state: Any) -> dict[str, Any]:
    """Make the input of a run."""
    return {"messages": [("user", text)], **state}


def thread(thread_id: str, **configurable: Any) -> Config:
    """Make the config of a run in a thread."""
    return {"configurable": {"thread_id": thread_id, **configurable}, "recursion_limit": 10_000}


# -- agents ------------------------------------------------------------------------------------------------------


_compiled: list[tuple[Any, ScriptedModel]] = []
"""Agents without options, and their models, that nobody has any more."""


def deep_agent(saver: Any, script: Sequence[AIMessage] = (), **options: Any) -> Any:
    """Make a deepagents agent with files in its state. Its model is `agent.model`.

    To compile one, and to make the schemas of its tools, takes as long as all that most tests do with it: so the graph
    of an agent without options serves another one when the first has been collected.
    """
    if options or not _compiled:
        model = ScriptedModel(script=[])
        compiled = create_deep_agent(model=model, **options), model
    else:
        compiled = _compiled.pop()
    graph, model = compiled
    model.script, model.seen = list(script), []
    agent = graph.copy({"checkpointer": saver})
    agent.model = model
    if not options:
        weakref.finalize(agent, _compiled.append, compiled)
    return agent


def merge_files(left: dict[str, Any] | None, right: dict[str, Any] | None) -> dict[str, Any]:
    """Merge files as deepagents up to 0.5 did: every checkpoint holds all of them."""
    merged = {**(left or {}), **(right or {})}
    return {key: record for key, record in merged.items() if record is not None}


class OldState(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    files: NotRequired[Annotated[dict[str, Any], merge_files]]
    updates: NotRequired[list[dict[str, Any]]]


def old_agent(saver: Any) -> Any:
    """Make a graph as of deepagents up to 0.5: a run makes a checkpoint for each of the input's `updates` of files."""

    def work(state: OldState) -> dict[str, Any]:
        first, *rest = state["updates"]
        return {"files": first, "updates": rest, "messages": [say(f"{len(rest)} left")]}

    graph = StateGraph(OldState)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda state: "work" if state["updates"] else END)
    return graph.compile(checkpointer=saver)


def old_record(text: str, at: str = "2025-01-02T03:04:05+00:00") -> dict[str, Any]:
    """Make file data as of deepagents up to 0.5: a list of lines."""
    return {"content": text.split("\n"), "created_at": at, "modified_at": at}


def long_script(turns: int) -> list[AIMessage]:
    """Make the script of a busy agent: each turn makes two checkpoints, and writes, edits or deletes a file."""
    script: list[AIMessage] = []
    for turn in range(turns):
        path = f"/work/part{turn % 7}/file{turn}.txt"
        step = turn % 5
        if step == 3:
            script.append(use(edit(f"/work/part{(turn - 1) % 7}/file{turn - 1}.txt", "line", "edited line")))
        elif step == 4:
            script.append(use(delete(f"/work/part{(turn - 4) % 7}/file{turn - 4}.txt")))
        else:
            script.append(use(write(path, f"line {turn}\n" + "text " * (turn % 50))))
    return [*script, say("finished")]


class Reversed:
    """A cipher: no value can be read without it."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


# -- checkpointers -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def sqlite_saver(path: Path | str, **options: Any) -> Iterator[SqliteSaver]:
    """Open a SqliteSaver on a file, usable from any thread."""
    with contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        saver = SqliteSaver(connection, **options)
        saver.setup()
        yield saver


@contextlib.contextmanager
def postgres_saver(dsn: str) -> Iterator[Any]:
    """Open a PostgresSaver and make its tables."""
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
        yield saver


# -- LangGraph's own view ----------------------------------------------------------------------------------------


def checkpoint_ids(agent: Any, config: Config) -> list[str]:
    """Return the checkpoint ids of a thread (and namespace), oldest first."""
    found = agent.checkpointer.list({"configurable": {"checkpoint_ns": "", **config["configurable"]}})
    return sorted(saved.config["configurable"]["checkpoint_id"] for saved in found)


def state_at(agent: Any, config: Config, checkpoint_id: str | None = None) -> dict[str, Any]:
    """Return the values of a checkpoint by LangGraph's `get_state`; without an id, of the present state."""
    configurable = dict(config["configurable"])
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    values: dict[str, Any] = agent.get_state({"configurable": configurable}).values
    return values
