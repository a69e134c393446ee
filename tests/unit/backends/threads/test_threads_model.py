"""Random histories: graphs that write, delete, overwrite, ask, fail, fork, and are written to from outside, by
themselves and in sub-graphs.

LangGraph is asked at each checkpoint. The reader lives through all of it, so what it remembers is put to the test too.
"""

from __future__ import annotations

import contextlib
import operator
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, NotRequired, TypedDict

import graphs
import pytest
from deepagents.middleware.filesystem import _file_data_delta_reducer
from graphs import thread
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send, interrupt
from profiles import examples
from threadcases import KINDS, Bench, bench, check_history, check_next, record

from fusebackend.backends.threads import ThreadsBackend
from fusebackend.backends.threads.database import saver as saver_module
from fusebackend.backends.threads.database.rows import NULL_TASK

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


def deltas(saver: Any, name: str = "deltas") -> Any:
    """Few checkpoints with a delta channel, whose value is stored at every third."""
    graph = delta_graph(saver, 3)
    for number in range(8):
        graph.update_state(thread(name), {"files": {f"/{number}": record("x")}, "todo": []}, as_node="next")
    return graph


def compiled(files: Any, saver: Any) -> Any:
    """A step takes the next thing to do: writes, at once in several tasks, or a question, or a failure. Some of it is
    done by a sub-graph with checkpoints of each run, or by one that goes on from its last run."""

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
        sent = [task if isinstance(task, list) else ["work", task] for task in state["todo"][0]]
        return [Send(node, {"task": task} if node != "work" else task) for node, task in sent] or "next"

    inner = StateGraph(
        TypedDict("Inner", {"task": Any, "runs": Annotated[int, operator.add], "files": NotRequired[files]})
    )
    inner.add_node("begin", lambda state: {"runs": 1, "files": {"/inner": record(str(state["runs"]))}})
    inner.add_node("do", lambda state: work(state["task"]))
    inner.add_edge(START, "begin")
    inner.add_edge("begin", "do")
    graph = StateGraph(TypedDict("State", {"todo": list[Any], "files": NotRequired[files]}))
    graph.add_node("plan", lambda state: {})
    graph.add_node("work", work)
    graph.add_node("inherits", inner.compile())
    graph.add_node("own", inner.compile(checkpointer=True))
    graph.add_node("next", lambda state: {"todo": state["todo"][1:]})
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", then, ["work", "inherits", "own", "next", END])
    for node in ("work", "inherits", "own"):
        graph.add_edge(node, "next")
    graph.add_edge("next", "plan")
    return graph.compile(checkpointer=saver)


def is_possible(tasks: list[Any]) -> bool:
    """LangGraph refuses more than one `Overwrite` in a step, and runs of a sub-graph with one namespace for all."""
    overwrites = [isinstance(task, Overwrite) or (isinstance(task, dict) and "__overwrite__" in task) for task in tasks]
    return sum(overwrites) < 2 and sum(isinstance(task, list) and task[0] == "own" for task in tasks) < 2


TASK = WRITES | st.sampled_from(["ask", "fail"])
INNER = st.tuples(st.sampled_from(["inherits", "own"]), TASK).map(list)
TASKS = st.lists(TASK | INNER, max_size=3).filter(is_possible)
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


@pytest.fixture(scope="module")
def lasting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        if request.param == "saver":
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name, value in (("SWEEP_INTERVAL_S", 0.0), ("MEMORY_INTERVAL_S", 0.0), ("SWEEP_SHARE", 1e9)):
                patch.setattr(saver_module, name, value)
            saver = InMemorySaver()
            yield Bench(saver, stack.enter_context(ThreadsBackend.from_saver(saver)))
        elif request.param == "postgres":
            dsn = stack.enter_context(request.getfixturevalue("postgres").database())
            yield stack.enter_context(bench("postgres", dsn))
        else:
            yield stack.enter_context(bench("sqlite", str(tmp_path_factory.mktemp("model") / "threads.db")))


@pytest.mark.parametrize("lasting", ["sqlite"], indirect=True)
@settings(max_examples=examples(100))
@given(deeds=DEEDS)
def test_any_history_is_as_langgraph_finds_it(lasting: Bench, deeds: list[Any]) -> None:
    check(lasting, deeds)


@pytest.mark.parametrize("lasting", [*KINDS[1:], "saver"], indirect=True)
@settings(max_examples=examples(25))
@given(deeds=DEEDS)
def test_so_is_that_of_another_database(lasting: Bench, deeds: list[Any]) -> None:
    """Only the rows come from elsewhere."""
    check(lasting, deeds)


def check(b: Bench, deeds: list[Any]) -> None:
    name = uuid.uuid4().hex
    for graph in after_each(b, name, deeds):
        compare(b, graph, name)
    b.saver.delete_thread(name)  # what is looked for later is not looked for among hundreds


def after_each(b: Bench, name: str, deeds: list[Any]) -> Iterator[Any]:
    """Do deeds in a thread; yield the graph after each, for an era has another one."""
    graph = delta_graph(b.saver, 3)
    for deed in deeds:
        if deed[0] == "era":
            graph = delta_graph(b.saver, deed[1]) if deed[1] else plain_graph(b.saver)
        else:
            # A task that fails; and a run that is to go on from a checkpoint which has nothing to do.
            with contextlib.suppress(RuntimeError, EmptyInputError):
                do(graph, name, deed)
        yield graph


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
    if graphs.checkpoint_ids(graph, thread(name)):
        b.backend.volume.follow()
        check_history(b, graph, name)
        check_next(b, graph, name)
