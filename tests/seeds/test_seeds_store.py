"""The code samples of the seeds that need a LangGraph store, with `deepagents.backends` replaced: one test per sample.

From *state, store, checkpointer, memory* and *composite* (both Chinese). `create_deep_agent` stays deepagents' own.
Where a sample is wrong, the test says what is right and why.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import stores
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from fusebackend.backends import CompositeBackend, StateBackend, StoreBackend

NAMESPACE = ("memories",)


@pytest.fixture
def runtime():
    return SimpleNamespace(state={"messages": [], "files": {}}, store=InMemoryStore())


# -- state, store, checkpointer, memory ------------------------------------------------------------------------


def test_q1_1_a_factory_with_a_namespace(runtime):
    backend = lambda rt: StoreBackend(rt, namespace=lambda ctx: NAMESPACE)  # noqa: E731 - the sample's words
    made = backend(runtime)
    assert made.write("/AGENTS.md", "# Memory").error is None
    assert runtime.store.get(NAMESPACE, "/AGENTS.md").value["content"] == "# Memory"


@pytest.mark.parametrize("kind", stores.KINDS)
def test_q1_3_values_by_namespace_and_key(kind, tmp_path, request):
    """The store's own `put` and `get`; what of it is no file is a value, and shown as one."""
    with stores.of_request(request, kind, tmp_path) as store:
        store.put(("users", "ann"), "prefs", {"colour": "#FD5108"})
        with StoreBackend(store, namespace=("users", "ann")) as backend:
            (info,) = backend.ls("/").entries
            assert info["path"] == "/prefs.json"
            assert json.loads(backend.download_files(["/prefs.json"])[0].content) == {"colour": "#FD5108"}


def test_q2_2_a_write_is_kept_at_once_and_has_no_update(runtime):
    result = StoreBackend(runtime, namespace=lambda ctx: NAMESPACE).write("/a.md", "x")
    assert (result.path, result.files_update) == ("/a.md", None)
    assert runtime.store.get(NAMESPACE, "/a.md") is not None
    assert runtime.state["files"] == {}


def test_q2_2_all_threads_and_every_start_share_it(tmp_path):
    path = str(tmp_path / "store.db")
    for content in ("of the first run", "of the second"):
        with SqliteStore.from_conn_string(path) as store:
            for thread in ("one", "two"):
                runtime = SimpleNamespace(
                    store=store, state={"files": {}}, config={"configurable": {"thread_id": thread}}
                )
                with StoreBackend(runtime, namespace="memories", on_exists="replace") as backend:
                    if thread == "one":
                        backend.write("/a.md", content)
                    assert content in backend.read("/a.md")
    with SqliteStore.from_conn_string(path) as store, StoreBackend(store, namespace="memories") as backend:
        assert "of the second" in backend.read("/a.md")


def test_q2_4_a_sqlite_store(tmp_path):
    """The sample writes before it calls `setup()`, which LangGraph's class does by itself then. Its database is called
    `checkpoints.db`: a store and a checkpointer may share one."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    path = str(tmp_path / "checkpoints.db")
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
    with SqliteStore.from_conn_string(path) as store:
        store.put(
            namespace=("memories",),
            key="/memories/AGENTS.md",
            value={
                "content": ["# Memory", "主题色: #FD5108"],
                "created_at": "2025-01-01T00:00:00",
                "modified_at": "2025-01-01T00:00:00",
            },
        )
        item = store.get(("memories",), "/memories/AGENTS.md")
        assert item.namespace == ("memories",)  # the sample's comment has a list
        assert [found.key for found in store.search(("memories",))] == ["/memories/AGENTS.md"]
        with StoreBackend(store, namespace=("memories",)) as backend:
            assert "主题色: #FD5108" in backend.read("/memories/AGENTS.md")


def test_q2_4_the_table(tmp_path):
    """The sample has a column `namespace` with JSON. It is `prefix`, with dots, and so labels hold none."""
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        with StoreBackend(store, namespace=("memories", "ann")) as backend:
            backend.write("/memories/AGENTS.md", "x")
        columns = [row[1] for row in store.conn.execute("PRAGMA table_info(store)")]
        assert columns[:3] == ["prefix", "key", "value"] and "namespace" not in columns
        rows = store.conn.execute("SELECT key FROM store WHERE prefix = 'memories.ann' AND key = '/memories/AGENTS.md'")
        assert rows.fetchall() == [("/memories/AGENTS.md",)]


def test_q2_6_temporary_files_and_two_namespaces(runtime):
    """The routes name no store: it is that of the graph that runs, or here of the runtime they are resolved with."""
    backend = CompositeBackend(
        default=StateBackend(),
        routes={
            "/memories/": lambda rt: StoreBackend(rt, namespace=lambda ctx: ("memories",)),
            "/knowledge/": lambda rt: StoreBackend(rt, namespace=lambda ctx: ("knowledge",)),
        },
    ).resolve(runtime)
    for path in ("/tmp/file.txt", "/memories/AGENTS.md", "/knowledge/docs.md"):
        assert backend.write(path, path).error is None
    assert runtime.store.get(("memories",), "/AGENTS.md").value["content"] == "/memories/AGENTS.md"
    assert runtime.store.get(("knowledge",), "/docs.md").value["content"] == "/knowledge/docs.md"
    assert len(runtime.store.search(())) == 2
    assert {info["path"] for info in backend.ls("/").entries} == {"/knowledge/", "/memories/", "/tmp/"}


# -- composite -------------------------------------------------------------------------------------------------


def test_composite_3_two_routes_over_one_runtime(runtime):
    """Both routes of the sample mean the same namespace, so a file of one is a file of the other; a namespace each, as
    in the sample of the other seed, is what is meant."""
    composite = CompositeBackend(
        default=StateBackend(runtime),
        routes={
            "/memories/": StoreBackend(runtime),
            "/cache/": StoreBackend(runtime),
        },
    )
    composite.write("/temp.txt", "ephemeral data")
    composite.write("/memories/note.md", "persistent data")
    assert runtime.state["files"]["/temp.txt"]["content"] == "ephemeral data"
    assert runtime.store.get(("filesystem",), "/note.md").value["content"] == "persistent data"
    assert "persistent data" in composite.read("/cache/note.md")


def test_composite_9_1_classes_as_routes(runtime):
    backend = CompositeBackend(
        default=StateBackend,
        routes={
            "/memories/": StoreBackend,
            "/skills/": StoreBackend,
            "/conversation_history/": StoreBackend,
        },
    )(runtime)
    assert backend.write("/skills/SKILL.md", "---\nname: x\n---\n").error is None
    assert backend.write("/note.txt", "x").error is None
    assert runtime.store.get(("filesystem",), "/SKILL.md") is not None
    assert list(runtime.state["files"]) == ["/note.txt"]


def test_composite_11_tenants_apart(runtime):
    tenants = {
        name: CompositeBackend(StateBackend(), {"/data/": StoreBackend(runtime, namespace=("tenants", name))})
        for name in ("acme", "acme-corp")
    }
    for name, backend in tenants.items():
        assert backend.write("/data/who", name).error is None
    for name, backend in tenants.items():
        assert name in backend.read("/data/who")
        assert len(backend.glob("**", "/data").matches) == 1
