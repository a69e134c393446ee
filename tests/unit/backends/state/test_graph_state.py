"""`StateBackend` without a runtime: the state of the LangGraph graph that runs around it, or one of its own."""

import asyncio
import contextlib
import threading
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

pytest.importorskip("deepagents")

from deepagents.backends import StateBackend as TheirStateBackend
from deepagents.middleware.filesystem import FilesystemState
from graphs import call, deep_agent, thread, use, user, write
from langgraph._internal import _constants
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, StateGraph

from fusebackend.backends import CompositeBackend, StateBackend, volume_of
from fusebackend.databases.langgraph import GRAPH_STATE, READ_KEY, SEND_KEY, GraphRuntime, GraphStateError
from fusebackend.integrations.deepagents import adopt, export
from fusebackend.protocol import ROOT_NODE
from fusebackend.testing.conformance import (
    BatchCases,
    EditingCases,
    ListingCases,
    MovingCases,
    NamingCases,
    ReadingCases,
    SearchingCases,
)


class InNode(threading.Thread):
    """A graph whose one node waits, in a thread of its own, and runs what it is asked to, until it is ended."""

    def __init__(self, state: Any = FilesystemState) -> None:
        super().__init__(daemon=True)
        self._asked: list[Any] = []
        self._wake = threading.Condition()
        graph = StateGraph(state)
        graph.add_node("node", self._work)
        graph.add_edge(START, "node")
        self.graph = graph.compile()
        self._final: dict[str, Any] = {}
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._final = self.graph.invoke({"messages": []})
        except Exception as error:
            self._error = error

    def _work(self, state: Any) -> dict[str, Any]:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._asked)
                function, answer = self._asked.pop()
            if function is None:
                return {}
            try:
                answer["value"] = function()
            except BaseException as error:
                answer["error"] = error
            answer["done"].set()

    def __call__(self, function: Any, *args: Any, **options: Any) -> Any:
        """Call a function inside of the node."""
        answer: dict[str, Any] = {"done": threading.Event()}
        self._ask(lambda: function(*args, **options), answer)
        assert answer["done"].wait(60)
        if "error" in answer:
            raise answer["error"]
        return answer["value"]

    def _ask(self, function: Any, answer: dict[str, Any]) -> None:
        with self._wake:
            self._asked.append((function, answer))
            self._wake.notify()

    def end(self) -> dict[str, Any]:
        """The state the graph ends with, or the error."""
        self._ask(None, {})
        self.join(60)
        if self._error is not None:
            raise self._error
        return self._final


@pytest.fixture
def node():
    inside = InNode()
    yield inside
    inside.end()


class Inside:
    """A backend whose verbs are called inside of a node."""

    def __init__(self, node: InNode, backend: Any) -> None:
        self._node = node
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return lambda *args, **options: self._node(found, *args, **options)


@pytest.mark.configuration
class TestConformanceInAGraph(
    ReadingCases, EditingCases, MovingCases, ListingCases, SearchingCases, BatchCases, NamingCases
):
    """All but the cases of awaiting, which would not be inside: `test_async_verbs_…` is."""

    keeps_empty_directories = False
    big_file_bytes = (1 << 20) + 5

    @pytest.fixture
    def backend(self, node):
        return Inside(node, node(StateBackend))

    def test_a_name_may_be_bytes_that_are_no_text(self, b):
        """LangGraph's checkpointer fails at one, and with it the whole step of the agent."""
        b.put("/f")
        assert "must be UTF-8" in b.backend.write("/\udcff", "x").error
        assert "must be UTF-8" in b.backend.move("/f", "/\udcff").error
        assert all("must be UTF-8" in each.error for each in b.backend.upload_files([("/\udcff", b""), ("/g", b"")]))
        assert b.names("/") == ["/f"]


def test_the_keys_are_langgraphs_own():
    assert (READ_KEY, SEND_KEY) == (_constants.CONFIG_KEY_READ, _constants.CONFIG_KEY_SEND)


def test_only_what_changed_is_sent(node):
    backend = node(StateBackend)
    node(backend.upload_files, [(f"/{number}", b"x") for number in range(3)])
    sent = []

    def watched():
        from langgraph.config import get_config

        config = get_config()["configurable"]
        send = config[SEND_KEY]
        config[SEND_KEY] = lambda writes: (sent.extend(writes), send(writes))
        try:
            backend.write("/new", "y"), backend.delete("/1")
        finally:
            config[SEND_KEY] = send

    node(watched)
    assert [(channel, *update) for channel, update in sent] == [("files", "/new"), ("files", "/1")]
    assert sent[1][1] == {"/1": None}


def test_deepagents_own_backend_sees_the_same_files(node):
    ours, theirs = StateBackend(), TheirStateBackend()
    node(ours.write, "/ours", "1\n")
    node(theirs.write, "/theirs", "2\n")
    assert node(theirs.read, "/ours").file_data["content"] == "1\n"
    assert node(ours.read, "/theirs").file_data["content"] == "2\n"
    assert node(adopt(theirs).read, "/ours").file_data["content"] == "1\n"
    assert node(ours.delete, "/theirs").error is None
    assert "not found" in node(theirs.read, "/theirs").error


def test_one_backend_serves_every_thread_and_each_has_its_own_files():
    backend = StateBackend()
    first, second = InNode(), InNode()
    first(backend.write, "/f", "first"), second(backend.write, "/f", "second")
    assert "first" in first(backend.read, "/f") and "second" in second(backend.read, "/f")
    assert first.end()["files"]["/f"]["content"] == "first"
    assert second.end()["files"]["/f"]["content"] == "second"


def test_outside_of_the_graph_every_verb_says_so(node):
    backend = node(StateBackend)
    expected = "no graph is running here"
    for verb, args in {
        "ls": ["/"], "read": ["/f"], "write": ["/f", "x"], "edit": ["/f", "a", "b"], "grep": ["x"], "glob": ["*"],
        "delete": ["/f"], "move": ["/f", "/g"],
    }.items():  # fmt: skip
        assert expected in getattr(backend, verb)(*args).error, verb
    assert expected in backend.upload_files([("/f", b"")])[0].error
    assert expected in backend.download_files(["/f"])[0].error
    with pytest.raises(GraphStateError, match="mount a thread as threads"):
        GRAPH_STATE["files"]


def test_a_backend_that_was_used_outside_keeps_its_own_state_inside(node):
    """So what was mounted, or filled, before the run is what the agent finds."""
    backend = StateBackend()
    backend.write("/f", "before")
    assert "before" in node(backend.read, "/f")
    node(backend.write, "/g", "in the run")
    assert "in the run" in backend.read("/g")
    assert not node.end().get("files")


def test_a_mounted_backend_has_a_state_of_its_own_and_one_in_a_graph_can_not_be_mounted(node):
    mounted, used = StateBackend(), StateBackend()
    volume = volume_of(mounted)
    node(mounted.write, "/f", "from the run")
    assert volume.lookup(ROOT_NODE, b"f").size == len("from the run")
    node(used.write, "/f", "x")
    with pytest.raises(TypeError, match="StateBackend has files only inside of a running graph"):
        volume_of(used)


class NoFiles(TypedDict):
    messages: list[Any]


def test_a_graph_without_files_is_no_place_for_them():
    node = InNode(NoFiles)
    backend = node(StateBackend)
    assert node(backend.write, "/f", "x").error is None
    assert "x" in backend.read("/f")  # a state of its own
    explicit = StateBackend(GraphRuntime())
    assert "has no 'files'" in node(explicit.write, "/f", "x").error
    assert "has no 'files'" in node(explicit.ls, "/").error
    node.end()


class Unmerged(TypedDict):
    messages: list[Any]
    files: NotRequired[dict[str, Any]]


class Unreduced(TypedDict):
    messages: list[Any]
    files: NotRequired[Annotated[dict[str, Any], lambda left, right: right]]


def test_a_state_that_does_not_merge_is_found_out_at_the_first_write_that_loses():
    refused = pytest.raises(InvalidUpdateError)  # LangGraph itself ends the run
    for state, end in ((Unmerged, refused), (Unreduced, contextlib.nullcontext())):
        node = InNode(state)
        backend = node(StateBackend)
        assert node(backend.write, "/f", "x").error is None
        assert "does not merge updates" in node(backend.write, "/g", "x").error
        with end:
            node.end()


def test_two_of_them_in_a_composite_share_the_state_by_the_agents_paths(node):
    """deepagents 0.7 keeps `/memories/n.md` of such a route under `/n.md`, where it meets the default's own."""
    composite = CompositeBackend(StateBackend(), {"/memories/": StateBackend()})
    node(composite.write, "/n.md", "default"), node(composite.write, "/memories/n.md", "memory")
    assert [info["path"] for info in node(composite.glob, "*").matches] == ["/memories/n.md", "/n.md"]
    files = node.end()["files"]
    assert {path: record["content"] for path, record in files.items()} == {
        "/n.md": "default", "/memories/n.md": "memory",
    }  # fmt: skip


def test_a_nested_composite_over_one_state_has_each_file_once():
    from types import SimpleNamespace

    runtime = SimpleNamespace(state={"files": {}})
    inner = CompositeBackend(StateBackend(runtime), {"/m/": StateBackend(runtime)})
    outer = CompositeBackend(StateBackend(runtime), {"/p/": inner})
    for path in ("/p/m/x", "/p/y", "/z"):
        assert outer.write(path, path).path == path
    assert sorted(runtime.state["files"]) == ["/p/m/x", "/p/y", "/z"]
    assert [info["path"] for info in outer.glob("*").matches] == ["/p/m/x", "/p/y", "/z"]


def test_a_factory_gets_the_state_and_the_store_of_the_graph():
    from langgraph.store.memory import InMemoryStore

    seen = {}

    def work(state: Any) -> dict[str, Any]:
        runtime = GraphRuntime()
        seen.update(store=runtime.store, files=runtime.state["files"], messages=runtime.state.get("messages"))
        seen.update(context=runtime.context, thread=runtime.config["configurable"]["thread_id"])
        return {}

    graph = StateGraph(FilesystemState)
    graph.add_node("node", work)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    store = InMemoryStore()
    compiled = graph.compile(store=store, checkpointer=InMemorySaver())
    compiled.invoke({"messages": [], "files": {"/f": {"content": "x", "encoding": "utf-8"}}}, thread("t"))
    assert seen["store"] is store and list(seen["files"]) == ["/f"]
    assert (seen["messages"], seen["context"], seen["thread"]) == ([], None, "t")
    with pytest.raises(GraphStateError):
        _ = GraphRuntime().store


# -- in an agent -----------------------------------------------------------------------------------------------


def test_async_verbs_reach_the_graphs_state():
    async def run() -> Any:
        agent = deep_agent(
            InMemorySaver(),
            [use(write("/a.md", "text\n")), use(call("read_file", file_path="/a.md"), call("grep", pattern="text"))],
            backend=export(StateBackend()),
        )
        return await agent.ainvoke(user("go"), thread("a"))

    state = asyncio.run(run())
    assert state["files"]["/a.md"]["content"] == "text\n"
    said = [message.content for message in state["messages"] if message.type == "tool"]
    assert "text" in said[1] and "/a.md" in said[2]
