"""Random histories: graphs that write, delete, overwrite, ask, fail, fork, and are written to from outside.

LangGraph is asked at each checkpoint. The reader lives through all of it, so what it remembers is put to the test too.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, NotRequired, TypedDict

import graphs
import pytest
from deepagents.middleware.filesystem import _file_data_delta_reducer
from graphs import thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send, interrupt
from profiles import examples
from test_threads_state import KINDS, Bench, bench, shown
from threadcases import record

NULL_TASK = "00000000-0000-0000-0000-000000000000"

PATHS = st.sampled_from(["/a", "/b", "/c/d", "/c/e"])
UPDATES = st.dictionaries(PATHS, st.none() | st.integers(0, 9).map(lambda number: record(str(number))), max_size=3)
WRITES = st.one_of(
    UPDATES,
    UPDATES.map(lambda update: Overwrite({key: data for key, data in update.items() if data})),
    UPDATES.map(lambda update: {"__overwrite__": {key: data for key, data in update.items() if data}}),
)


def plain_graph(saver: Any) -> Any:
    """As deepagents up to 0.5 kept files: all of them in every checkpoint."""
    return compiled(Annotated[dict[str, Any], graphs.merge_files], saver)


def delta_graph(saver: Any, frequency: int) -> Any:
    """As it does since."""
    return compiled(
        Annotated[dict[str, Any], DeltaChannel(_file_data_delta_reducer, snapshot_frequency=frequency)], saver
    )


def compiled(files: Any, saver: Any) -> Any:
    """A step takes the next thing to do: writes, at once in several tasks, or a question, or a failure."""

    def plan(state: Any) -> dict[str, Any]:
        return {}

    def work(task: Any) -> dict[str, Any]:
        if task == "ask":
            interrupt("?")
            return {}
        if task == "fail":
            raise RuntimeError("as it should")
        return {"files": task}

    def then(state: Any) -> Any:
        if not state["todo"]:
            return END
        return [Send("work", task) for task in state["todo"][0]] or "next"

    graph = StateGraph(TypedDict("State", {"todo": list[Any], "files": NotRequired[files]}))
    graph.add_node("plan", plan)
    graph.add_node("work", work)
    graph.add_node("next", lambda state: {"todo": state["todo"][1:]})
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", then, ["work", "next", END])
    graph.add_edge("work", "next")
    graph.add_edge("next", "plan")
    return graph.compile(checkpointer=saver)


def one_overwrite(tasks: list[Any]) -> bool:
    """LangGraph refuses more than one in a step."""
    return (
        sum(isinstance(task, Overwrite) or (isinstance(task, dict) and "__overwrite__" in task) for task in tasks) < 2
    )


TASKS = st.lists(WRITES | st.sampled_from(["ask", "fail"]), max_size=3).filter(one_overwrite)
TODO = st.lists(TASKS, max_size=4)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), TODO, st.sampled_from(["sync", "async", "exit"])),
        st.tuples(st.just("input"), UPDATES, TODO),
        st.tuples(st.just("resume"), UPDATES),
        st.tuples(st.just("continue"), st.integers(0, 30)),
        st.tuples(st.just("update"), UPDATES, st.integers(0, 30) | st.none()),
        st.tuples(st.just("outside"), UPDATES),
        st.tuples(st.just("era"), st.sampled_from([0, 1, 2, 3, 7])),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module", params=KINDS)
def b(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if request.param == "sqlite":
        with bench("sqlite", str(tmp_path_factory.mktemp("model") / "threads.db")) as made:
            yield made
    else:
        with request.getfixturevalue("postgres").database() as dsn, bench("postgres", dsn) as made:
            yield made


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deeds=DEEDS)
def test_any_history_is_as_langgraph_finds_it(b: Bench, deeds: list[Any]) -> None:
    name = uuid.uuid4().hex
    graph = delta_graph(b.saver, 3)
    for deed in deeds:
        if deed[0] == "era":
            graph = delta_graph(b.saver, deed[1]) if deed[1] else plain_graph(b.saver)
        else:
            with contextlib.suppress(RuntimeError):
                do(graph, name, deed)
        compare(b, graph, name)


def do(graph: Any, name: str, deed: Any) -> None:
    config = thread(name)
    kind, *arguments = deed
    if kind == "run":
        todo, durability = arguments
        graph.invoke({"todo": todo}, config, durability=durability)
    elif kind == "input":
        files, todo = arguments
        graph.invoke({"todo": todo, "files": files}, config)
    elif not graphs.checkpoint_ids(graph, config):
        return
    elif kind == "resume":
        if graph.get_state(config).interrupts:
            graph.invoke(Command(resume="!", update={"files": arguments[0]}), config)
    elif kind == "continue":
        graph.invoke(None, at(graph, name, arguments[0]))
    elif kind == "update":
        graph.update_state(at(graph, name, arguments[1]), {"files": arguments[0], "todo": []}, as_node="next")
    else:
        saved = graph.checkpointer.get_tuple(config)
        taken = [write for write in saved.pending_writes if write[0] == NULL_TASK and not write[1].startswith("__")]
        graph.checkpointer.put_writes(saved.config, [("files", {})] * len(taken) + [("files", arguments[0])], NULL_TASK)


def at(graph: Any, name: str, index: int | None) -> Any:
    ids = graphs.checkpoint_ids(graph, thread(name))
    if index is None or index >= len(ids):
        return thread(name)
    return thread(name, checkpoint_ns="", checkpoint_id=ids[index])


def compare(b: Bench, graph: Any, name: str) -> None:
    ids = graphs.checkpoint_ids(graph, thread(name))
    if not ids:
        return
    b.backend.volume.follow()
    for checkpoint, directory in zip(ids, b.history(f"/{name}"), strict=True):
        assert b.tree(directory) == shown(graphs.state_at(graph, thread(name), checkpoint).get("files")), directory
    assert b.tree(f"/{name}/head") == shown(graphs.state_at(graph, thread(name)).get("files"))
