"""Conversations of agents: a checkpoint database of any number of threads of about 30 checkpoints, in little time.

    with conversations.opened("sqlite", "/tmp/threads.db") as saver:
        conversations.fill(saver, 1000)

`STORIES` are real graphs, of deepagents and plain LangGraph, run with a scripted model: messages of all types with
content blocks of all types, files that are written, edited, moved and deleted, sub-graphs, interrupts, forks, state of
many types. `fill` runs each twice and copies the rows of these *seeds* under other thread ids: running 1,000 takes ten
minutes, copying them one. The rows stay those of LangGraph's own serialiser, because a copy only changes words of them
into words of the same length: the thread's id, and `WORDS`.

`scripts/make_threads_database` is this module for the command line.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import datetime
import itertools
import operator
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import graphs
from graphs import call, delegate, delete, edit, say, thread, use, user, write
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, interrupt

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ENCODED = base64.b64encode(PNG).decode()

WORDS = {
    "Quillfox": ["aardvark", "blackcap", "capybara", "dragonet", "elephant", "flamingo", "grayling", "hedgehog"],
    "Brambles": ["checkout", "database", "frontend", "importer", "launcher", "renderer", "terminal", "uploader"],
    "Thistles": ["accounts", "calendar", "contacts", "invoices", "messages", "payments", "policies", "receipts"],
}
"""Words of the stories, and those of the same length in copies."""

LONG = "".join(f"{number:04} Brambles: expected the Thistles page, found the Quillfox page\n" for number in range(300))
"""18,000 characters: transcripts show the beginning only."""


# -- tools ---------------------------------------------------------------------------------------------------------


@tool
def run_tests(path: str) -> str:
    """Run the tests."""
    return LONG


@tool(response_format="content_and_artifact")
def screenshot(page: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Take a picture of a page."""
    content = [
        {"type": "text", "text": f"The page {page}"},
        {"type": "image", "base64": ENCODED, "mime_type": "image/png"},
    ]
    return content, {"page": page, "raw": PNG, "size": [1, 1]}


@tool
def draw(path: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Write a binary file."""
    files = {path: {**record(ENCODED), "encoding": "base64"}}
    return Command(update={"files": files, "messages": [ToolMessage(f"Drew {path}", tool_call_id=tool_call_id)]})


@tool
def rename(old: str, new: str, text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Rename a file."""
    files = {old: None, new: record(text)}
    message = ToolMessage(f"Renamed {old} to {new}", tool_call_id=tool_call_id, name="rename")
    return Command(update={"files": files, "messages": [message]})


@tool
def lookup(word: str) -> str:
    """Look a word up; an unknown one is an error."""
    raise ValueError(f"no entry for {word}")


def record(text: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    return {"content": text, "encoding": "utf-8", "created_at": now, "modified_at": now}


def thinking(thought: str, text: str, *calls: dict[str, Any], **more: Any) -> AIMessage:
    """A model's message with reasoning, text and calls, in content blocks."""
    content: list[str | dict[Any, Any]] = [{"type": "reasoning", "reasoning": thought}]
    if text:
        content.append({"type": "text", "text": text, **more})
    return AIMessage(content, tool_calls=list(calls))


# -- stories of deepagents -------------------------------------------------------------------------------------------


def coder(saver: Any, name: str) -> Any:
    """A test is mended: a file is written, edited and deleted, with the reason in the reasoning."""
    source = "".join(f"def step_{number}(Quillfox):\n    return {number}\n\n\n" for number in range(40))
    script = [
        thinking(
            f"The login test of the Quillfox Brambles fails. I should see what is there for {name}.", "I look at it.",
            write("/src/login.py", source), write("/notes/plan.md", f"# Plan for {name}\n\n1. find the Thistles bug\n"),
        ),
        use(call("run_tests", path="/src")),
        thinking("", "The redirect is wrong.", edit("/src/login.py", "return 7\n", "return 7  # Thistles\n")),
        use(write(f"/src/legacy_{name}.py", "OLD = True\n"), call("read_file", file_path="/src/login.py")),
        use(edit("/notes/plan.md", "1. find", "1. found")),
        thinking(
            f"legacy_{name}.py is imported by nothing since the Quillfox release, so I delete it.",
            "", delete(f"/src/legacy_{name}.py"),
        ),
        use(call("run_tests", path="/tests"), call("grep", pattern="Thistles", path="/src")),
        say(f"The login test of {name} passes.\n\n```python\nassert Quillfox\n```\n\n# Done\n"),
    ]  # fmt: skip
    agent = graphs.deep_agent(saver, script, tools=[run_tests])
    agent.invoke(user(f"Please fix the login test of the Brambles\n\nIt is {name}, since Quillfox."), thread(name))
    agent.model.script = [use(delete("/notes/plan.md")), say("The plan is gone.")]
    agent.invoke(user("Thanks. Remove the plan, too."), thread(name))
    return agent


def artist(saver: Any, name: str) -> Any:
    """Pictures: in a question, from a tool, in an answer, and as a binary file; a file that a tool renames."""
    script = [
        use(call("screenshot", page=f"/Thistles/{name}")),
        use(call("draw", path="/images/logo.png"), write("/images/logo.txt", "a Quillfox\n")),
        use(call("rename", old="/images/logo.txt", new="/images/with space/Logo é.txt", text="a Quillfox\n")),
        AIMessage([
            {"type": "text", "text": "Here it is:"},
            {"type": "image", "base64": ENCODED, "mime_type": "image/png"},
            {"type": "text", "text": "As in the manual.", "annotations": [
                {"type": "citation", "url": f"https://example.com/{name}", "title": "The Quillfox manual"},
                {"type": "citation", "title": "without a place", "cited_text": "Thistles are blue"},
            ]},
            {"type": "hologram", "depth": 3, "words": ["Brambles", name]},
        ]),
        use(call("draw", path="/images/logo.png"), write("/empty.txt", "")),
        use(call("lookup", word="Brambles")),
        say("done"),
    ]  # fmt: skip
    agent = graphs.deep_agent(saver, script, tools=[screenshot, draw, rename, lookup])
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}}
    question = HumanMessage([{"type": "text", "text": f"Draw a Quillfox like this one for {name}"}, image])
    with contextlib.suppress(ValueError):
        agent.invoke({"messages": [question]}, thread(name))
    agent.model.script = [use(write("/images/again.txt", "x")), use(edit("/images/again.txt", "x", "y"))]
    agent.model.script += [use(call("screenshot", page=f"/{part}")) for part in ("one", "two")] + [say("again")]
    agent.invoke(user("And again, without the dictionary."), thread(name))
    return agent


def manager(saver: Any, name: str) -> Any:
    """Sub-agents, which have a conversation of their own and share the files."""
    script = []
    for part in ("first", "second", "third"):
        script += [
            use(write(f"/{part}/task.md", f"Count the Thistles of the Quillfox, {part}, {name}\n")),
            use(delegate(f"the {part} part of {name}")),
            use(write(f"/{part}/result.md", f"{len(part)} Thistles\n")),
            say(f"The {part} part is done: {len(part)} Thistles."),
        ]
    agent = graphs.deep_agent(saver, [*script, say(f"All parts of {name} are done.")])
    agent.invoke(user(f"Count all Thistles of the Brambles ({name})"), thread(name))
    return agent


def approvals(saver: Any, name: str) -> Any:
    """Approved, rejected, and waiting for a decision."""
    script = [
        use(write("/keep.txt", f"keep {name}\n"), write("/drop.txt", "drop\n"), write("/later.txt", "later\n")),
        thinking("It is not needed any more.", "", delete("/drop.txt")),
        use(delete("/keep.txt")),
        use(write("/log.md", "two decisions\n")),
        use(edit("/log.md", "two", "three")),
        *(use(write(f"/list-{number}.txt", f"Thistles {number}\n")) for number in range(3)),
        thinking(f"Only {name} knows whether the Quillfox may go.", "May I?", delete("/later.txt")),
    ]
    agent = graphs.deep_agent(saver, script, interrupt_on={"delete": True})
    agent.invoke(user(f"Clean up the Brambles of {name}"), thread(name))
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread(name))
    agent.invoke(Command(resume={"decisions": [{"type": "reject", "message": "no, keep it"}]}), thread(name))
    return agent


def forks(saver: Any, name: str) -> Any:
    """Another answer from the middle of the conversation, and an update from outside."""
    script = [use(write("/a.txt", "1\n")), use(edit("/a.txt", "1", "2")), use(write("/b.txt", name)), say("done")]
    agent = graphs.deep_agent(saver, script)
    agent.invoke(user(f"Count the Thistles of {name}"), thread(name))
    ids = graphs.checkpoint_ids(agent, thread(name))
    agent.model.script = [use(write("/other.txt", "o")), use(delete("/a.txt")), say("otherwise")]
    agent.invoke(None, thread(name, checkpoint_id=ids[5]))
    agent.update_state(thread(name), {"files": {"/outside.txt": record("from outside")}}, as_node="model")
    agent.model.script = [use(write("/last.txt", "Quillfox")), use(delete("/other.txt")), say("the end")]
    agent.invoke(user("Go on"), thread(name))
    return agent


# -- stories of plain graphs -----------------------------------------------------------------------------------------


def chat(saver: Any, name: str) -> Any:
    """Messages without files: of all types, equal ones, empty ones, one that is changed, some that are removed."""

    def answer(state: MessagesState) -> dict[str, Any]:
        turn = len(state["messages"])
        number = sum(message.type == "human" for message in state["messages"])
        again: list[Any] = [AIMessage(f"Answer {number} about the Quillfox of {name}", id=f"answer-{name}-{turn}")]
        if number == 2:
            again = [ChatMessage("I object to the Thistles", role="critic", id=f"critic-{name}"), AIMessage("")]
        if number == 3:
            again = [AIMessage(f"A better first answer about {name}", id=state["messages"][2].id)]
        if number == 5:
            again = [RemoveMessage(id=str(state["messages"][1].id)), AIMessage("I have forgotten your question.")]
        if number == 7:
            block = {"type": "text", "text": "Rarely.", "citations": [{"document_title": "Thistles", "page": 3}]}
            again = [AIMessage([{"type": "thinking", "thinking": "Do Quillfoxes bark?", "signature": "x"}, block])]
        return {"messages": again}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    agent = graph.compile(checkpointer=saver)
    agent.invoke({"messages": [SystemMessage("You are a Brambles"), HumanMessage(f"What is {name}?")]}, thread(name))
    for question in (
        "again?",
        "again?",
        "",
        "what did I ask?",
        "is it a Quillfox?",
        "does it bark?",
        "## 3 · ai",
        "ok?",
    ):
        agent.invoke(user(question), thread(name))
    return agent


@dataclass
class Money:
    amount: Decimal
    currency: str


def pipeline(saver: Any, name: str) -> Any:
    """State without files and messages: numbers, lists, nested values, dates, sets, bytes, a dataclass."""

    class State(TypedDict):
        step: int
        label: str
        totals: Annotated[list[int], operator.add]
        nested: NotRequired[dict[str, Any]]
        price: NotRequired[Any]

    def work(state: State) -> dict[str, Any]:
        step = state["step"] + 1
        return {
            "step": step,
            "label": f"{name} Quillfox {step}",
            "totals": [step * step],
            "nested": {
                "at": datetime.datetime(2026, 11, 22, 9, 14, step, tzinfo=datetime.UTC), "empty": {}, "none": None,
                "tags": {f"Thistles-{step}"}, "recent": deque([step, step + 1]), "bytes": bytes([0, 255, step]),
                "id": uuid.UUID(int=step), "ratio": step / 3, "text": "line one\nline two\x1b[31m\n",
            },
            "price": Money(Decimal(f"{step}.50"), "EUR"),
        }  # fmt: skip

    graph = StateGraph(State)
    for node in ("load", "check", "store"):
        graph.add_node(node, work)
    graph.add_edge(START, "load")
    graph.add_edge("load", "check")
    graph.add_edge("check", "store")
    graph.add_conditional_edges("store", lambda state: "load" if state["step"] < 27 else END)
    agent = graph.compile(checkpointer=saver)
    agent.invoke({"step": 0, "label": name, "totals": []}, thread(name))
    return agent


def nested_graphs(saver: Any, name: str) -> Any:
    """A graph in a graph in a graph, of which each has checkpoints; the innermost without messages."""

    class Inner(TypedDict):
        count: int

    class Outer(MessagesState):
        count: int

    inner = StateGraph(Inner)
    inner.add_node("add", lambda state: {"count": state["count"] + 1})
    inner.add_node("double", lambda state: {"count": state["count"] * 2})
    inner.add_edge(START, "add")
    inner.add_edge("add", "double")
    middle = StateGraph(Outer)
    middle.add_node("tell", lambda state: {"messages": [AIMessage(f"{state['count']} Thistles of {name}")]})
    middle.add_node("inner", inner.compile(checkpointer=True))
    middle.add_edge(START, "tell")
    middle.add_edge("tell", "inner")
    outer = StateGraph(Outer)
    outer.add_node("middle", middle.compile(checkpointer=True))
    outer.add_node("end", lambda state: {"messages": [AIMessage(f"The count is {state['count']}")]})
    outer.add_edge(START, "middle")
    outer.add_edge("middle", "end")
    agent = outer.compile(checkpointer=saver)
    for turn in range(8):
        agent.invoke({**user(f"Count the Quillfox, turn {turn}"), "count": turn}, thread(name))
    return agent


def questions(saver: Any, name: str) -> Any:
    """A plain graph that asks a human at every step."""

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], graphs.add_messages]
        answers: Annotated[list[str], operator.add]

    def ask(state: State) -> dict[str, Any]:
        number = len(state["answers"])
        answer = interrupt({"question": f"How many Thistles has {name}?", "number": number})
        return {"answers": [answer], "messages": [AIMessage(f"You said {answer} to {number}")]}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "ask")
    agent = graph.compile(checkpointer=saver)
    agent.invoke({**user(f"Ask me about {name}"), "answers": []}, thread(name))
    for number in range(26):
        agent.invoke(Command(resume=f"{number} Quillfox"), thread(name))
    return agent


def clearing(saver: Any, name: str) -> Any:
    """A conversation that is summed up: all messages are removed, and a summary takes their place."""

    def answer(state: MessagesState) -> dict[str, Any]:
        if len(state["messages"]) > 9:
            summary = SystemMessage(f"So far, {name} was about the Quillfox and {len(state['messages'])} Thistles.")
            return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), summary, *state["messages"][-1:]]}
        return {"messages": [AIMessage(f"Noted, {len(state['messages'])} of {name}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    agent = graph.compile(checkpointer=saver)
    for turn in range(10):
        agent.invoke(user(f"Note {turn}: the Brambles of {name} have {turn} Quillfox"), thread(name))
    return agent


def old_files(saver: Any, name: str) -> Any:
    """Files as of deepagents up to 0.5: every checkpoint holds all of them."""
    agent = graphs.old_agent(saver)
    updates: list[dict[str, Any]] = [
        {f"/docs/{number % 5}.md": graphs.old_record(f"# {name}\n\nQuillfox {number}\n" * (1 + number % 4))}
        for number in range(24)
    ]
    updates += [{"/docs/0.md": None, "relative.md": "bare text of the first versions"}, {"/docs/1.md": None}]
    agent.invoke(user(f"Write the Brambles docs of {name}", updates=updates), thread(name))
    return agent


STORIES: dict[str, Callable[[Any, str], Any]] = {
    story.__name__: story
    for story in (
        coder, artist, manager, approvals, forks, chat, pipeline, nested_graphs, questions, clearing, old_files,
    )
}  # fmt: skip
"""Each runs a graph in the thread of the given name, and returns the graph."""


# -- many threads ----------------------------------------------------------------------------------------------------

SEEDS_EACH = 2
"""How often each story is run for `fill`."""


class Made(NamedTuple):
    """A thread of `fill`."""

    story: str
    words: dict[str, str]
    """The words in the place of `WORDS`."""


def fill(saver: Any, threads: int) -> dict[str, Made]:
    """Make threads `T0000000`, `T0000001`, … in the database of a SqliteSaver; returns them by name."""
    seeds = {f"T48{number:05}": story for number, story in enumerate([*STORIES] * SEEDS_EACH)}
    rows = {}
    for seed, story in seeds.items():
        STORIES[story](saver, seed)
        for table in ("checkpoints", "writes"):  # LangGraph takes writes in the order in which they were made
            asked = f"SELECT * FROM {table} WHERE thread_id = ? ORDER BY rowid"
            rows[seed, table] = saver.conn.execute(asked, [seed]).fetchall()
        saver.delete_thread(seed)
    made = {}
    for number, (seed, story) in zip(range(threads), itertools.cycle(seeds.items()), strict=False):
        name, chance = f"T{number:07}", random.Random(number)
        made[name] = Made(story, {word: chance.choice([word, *others]) for word, others in WORDS.items()})
        changed = {seed: name, **made[name].words}
        for (of, table), found in rows.items():
            if of == seed and found:
                places = ", ".join("?" * len(found[0]))
                copies = [[_changed(value, changed) for value in row] for row in found]
                saver.conn.executemany(f"INSERT INTO {table} VALUES ({places})", copies)
    saver.conn.commit()
    return made


def _changed(value: Any, words: dict[str, str]) -> Any:
    for word, other in words.items():
        if isinstance(value, str):
            value = value.replace(word, other)
        elif isinstance(value, bytes):
            value = value.replace(word.encode(), other.encode())
    return value


@contextlib.contextmanager
def opened(kind: str, where: str = "") -> Iterator[Any]:
    """A checkpointer by its kind: `sqlite` (a path), `postgres` (a DSN) or `memory`.

    That of SQLite does not wait for the disk.
    """
    serde = JsonPlusSerializer(allowed_msgpack_modules=[(Money.__module__, Money.__qualname__)])
    if kind == "memory":
        yield InMemorySaver(serde=serde)
    elif kind == "postgres":
        with graphs.postgres_saver(where) as saver:
            saver.serde = serde
            yield saver
    else:
        with graphs.sqlite_saver(where, serde=serde) as saver:
            saver.conn.execute("PRAGMA synchronous = OFF")
            yield saver


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="make_threads_database",
        description="Make a LangGraph checkpoint database with the conversations of scripted agents.",
    )
    parser.add_argument("database", help="path of a SQLite file")
    parser.add_argument("threads", nargs="?", type=int, default=1000, help="how many (default: 1000)")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    with opened("sqlite", given.database) as saver:
        made = fill(saver, given.threads)
    print(f"{len(made):,} threads in {time.monotonic() - start:.0f} s: {given.database}")
