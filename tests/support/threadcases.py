"""Histories of threads: one function for each story, run on a real checkpointer. Each returns the agent, which knows
the thread's state; the thread's id is the story's name."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated, Any, NotRequired, TypedDict

import graphs
from deepagents.middleware.filesystem import _file_data_delta_reducer
from graphs import delegate, delete, edit, say, thread, use, user, write
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, interrupt

APPROVE = Command(resume={"decisions": [{"type": "approve"}]})
REJECT = Command(resume={"decisions": [{"type": "reject"}]})


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


def parallel_writes_of_one_file(saver: Any, name: str = "parallel_writes_of_one_file") -> Any:
    """The last call wins, in any order of the tasks."""

    class State(TypedDict):
        files: Annotated[dict[str, Any], DeltaChannel(_file_data_delta_reducer, snapshot_frequency=3)]

    def writer(text: str) -> Any:
        return lambda state: {
            "files": {"/same.txt": {"content": text, "encoding": "utf-8"}, f"/{text}.txt": record(text)}
        }

    graph = StateGraph(State)
    for node in "abcdefgh":
        graph.add_node(node, writer(node))
        graph.add_edge(START, node)
        graph.add_edge(node, "join")
    graph.add_node("join", lambda state: {"files": {"/joined.txt": record("x"), "/a.txt": None}})
    agent = graph.compile(checkpointer=saver)
    for _ in range(3):
        agent.invoke({"files": {"/in.txt": record("in")}}, thread(name))
    return agent


def record(text: str) -> dict[str, Any]:
    return {"content": text, "encoding": "utf-8", "modified_at": "2025-03-04T05:06:07.891011+00:00"}


def overwrites(saver: Any, name: str = "overwrites") -> Any:
    class State(TypedDict):
        turn: int
        files: NotRequired[Annotated[dict[str, Any], DeltaChannel(_file_data_delta_reducer, snapshot_frequency=4)]]

    def work(state: State) -> dict[str, Any]:
        turn = state["turn"]
        files: Any = {f"/{turn}.txt": record(str(turn)), f"/{turn - 2}.txt": None}
        if turn in (3, 9):
            files = Overwrite({"/only.txt": record(str(turn))})
        if turn == 11:
            files = {"__overwrite__": {"/erased.txt": record("e")}}
        return {"files": files, "turn": turn + 1}

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda state: "work" if state["turn"] < 14 else END)
    agent = graph.compile(checkpointer=saver)
    agent.invoke({"turn": 0}, thread(name))
    agent.invoke({"turn": 12, "files": Overwrite({"/from-input.txt": record("i")})}, thread(name))
    agent.update_state(thread(name), {"files": Overwrite({"/set.txt": record("s")})}, as_node="work")
    agent.update_state(thread(name), {"files": {"/more.txt": record("m")}}, as_node="work")
    return agent


def snapshots(saver: Any, name: str = "snapshots") -> Any:
    """More than fifty updates, so that there are snapshots, in several runs."""
    script = graphs.long_script(60)
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


def old_then_new(saver: Any, name: str = "old_then_new") -> Any:
    graphs.old_agent(saver).invoke(
        user("go", updates=[{"/a.txt": graphs.old_record("one")}, {"/b.txt": graphs.old_record("two")}]), thread(name)
    )
    agent = graphs.deep_agent(
        saver, [use(edit("/b.txt", "two", "three")), use(write("/new.txt", "n")), use(delete("/a.txt"))]
    )
    agent.invoke(user("go on"), thread(name))
    return agent


def files_in_the_input(saver: Any, name: str = "files_in_the_input") -> Any:
    agent = graphs.deep_agent(saver, [use(edit("/in.txt", "given", "changed")), say("ok"), say("ok")])
    agent.invoke(user("go", files={"/in.txt": record("given")}), thread(name))
    agent.invoke(user("go", files={"/in2.txt": record("given"), "/in.txt": None}), thread(name))
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


def approved_and_rejected(saver: Any, name: str = "approved_and_rejected") -> Any:
    script = [use(write("/x.txt", "x")), use(write("/y.txt", "y")), say("done")]
    agent = graphs.deep_agent(saver, script, interrupt_on={"write_file": True})
    agent.invoke(user("go"), thread(name))
    agent.invoke(APPROVE, thread(name))
    agent.invoke(REJECT, thread(name))
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


def answered_with_an_update(saver: Any, name: str = "answered_with_an_update") -> Any:
    agent = one_tool_done_and_one_waiting(saver, name)
    update = {"files": {"/from-command.txt": record("c"), "/before.txt": None}}
    agent.invoke(Command(resume="yes", update=update), thread(name))
    return agent


def two_questions(saver: Any, name: str = "two_questions") -> Any:
    script = [use(graphs.call("ask_twice"), write("/w.txt", "w")), say("done")]

    @tool
    def ask_twice() -> str:
        """Ask a human, twice."""
        return str(interrupt("one")) + str(interrupt("two"))

    agent = graphs.deep_agent(saver, script, tools=[ask_twice])
    agent.invoke(user("go"), thread(name))
    agent.invoke(Command(resume="1"), thread(name))
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


def updated_from_outside(saver: Any, name: str = "updated_from_outside") -> Any:
    agent = plain(saver, name)
    ids = graphs.checkpoint_ids(agent, thread(name))
    agent.update_state(thread(name), {"files": {"/u.txt": record("u")}}, as_node="model")
    fork = thread(name, checkpoint_ns="", checkpoint_id=ids[6])
    time.sleep(0.002)  # directories of one millisecond are listed by their steps, and the fork's is an earlier one
    agent.update_state(fork, {"files": {"/forked.txt": record("f")}}, as_node="tools")
    agent.model.script = [use(write("/after.txt", "a")), say("done")]
    agent.invoke(None, thread(name))
    return agent


def durability(saver: Any, name: str = "durability") -> Any:
    agent = None
    for mode in ("exit", "sync", "async", "exit"):
        script = [
            use(write(f"/{mode}.txt", mode)),
            use(write(f"/{mode}2.txt", mode), write("/same.txt", mode)),
            say("ok"),
        ]
        agent = graphs.deep_agent(saver, script)
        agent.invoke(user("go"), thread(name), durability=mode)
        agent.model.script = [use(edit("/same.txt", mode, mode + "+")), say("ok")]
        agent.invoke(user("go"), thread(name), durability=mode)
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


STORIES = [
    plain, parallel_writes_of_one_file, overwrites, snapshots, old, old_then_new, files_in_the_input, a_subagent,
    waiting_for_approval, approved_and_rejected, one_tool_done_and_one_waiting, answered_with_an_update, two_questions,
    time_travel, updated_from_outside, durability, failed,
]  # fmt: skip
