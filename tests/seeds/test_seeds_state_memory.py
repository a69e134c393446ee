"""The samples about state, memory and what an agent remembers, of the seed *state, store, checkpointer, memory*.

As in `test_seeds.py`, with `deepagents.backends` replaced by `fusebackend.backends`; here the agents are real, with a
model that reads its lines from a script. `create_deep_agent` is deepagents' own. It takes instances of its own classes
only, so a backend goes to it through `export`, and so does a factory, which deepagents itself takes no more since 0.7.
"""

import pytest

pytest.importorskip("deepagents")

from graphs import call, deep_agent, edit, say, sqlite_saver, thread, use, user, write
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

import fusebackend.integrations.memory_files
from fusebackend.backends import CompositeBackend, StateBackend, StoreBackend
from fusebackend.integrations.deepagents import export

MEMORY_FILE = "/memories/AGENTS.md"
NAMESPACE = ("memories",)


def files_of(agent, thread_id):
    return agent.get_state(thread(thread_id)).values.get("files") or {}


def tools_said(state):
    return [message.content for message in state["messages"] if message.type == "tool"]


# -- Q1: four components ---------------------------------------------------------------------------------------


def test_q1_the_workflow_a_memory_of_one_conversation_is_read_in_the_next(tmp_path):
    """backend, store, checkpointer and memory together: the first conversation asks to remember the company's colour,
    the second one finds it in the system prompt."""
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        store.put(NAMESPACE, MEMORY_FILE, {"content": ["# Memory"], "created_at": "2025-01-01T00:00:00",
                                           "modified_at": "2025-01-01T00:00:00"})  # fmt: skip
        agent = deep_agent(
            InMemorySaver(),
            [
                use(edit(MEMORY_FILE, "# Memory", "# Memory\n公司主题色: #FD5108")),
                say("remembered"),
                say("公司主题色为 #FD5108"),
            ],
            backend=export(lambda rt: StoreBackend(rt, namespace=lambda ctx: NAMESPACE)),
            store=store,
            memory=[MEMORY_FILE],
        )
        agent.invoke(user("记住公司的主题色是#FD5108"), thread("first"))
        assert "FD5108" in store.get(NAMESPACE, MEMORY_FILE).value["content"]
        agent.invoke(user("你有哪些记忆"), thread("second"))
        before, after = agent.model.seen[0][0].content, agent.model.seen[2][0].content
        assert "# Memory" in str(before) and "FD5108" not in str(before)
        assert "公司主题色: #FD5108" in str(after)
        loaded = fusebackend.memory.load(StoreBackend(store, namespace=NAMESPACE), [MEMORY_FILE])
        assert "公司主题色: #FD5108" in loaded.text


def test_q1_the_checkpointer_keeps_the_conversation_and_the_store_what_all_share():
    store, saver = InMemoryStore(), InMemorySaver()
    composite = CompositeBackend(StateBackend(), {"/memories/": StoreBackend(namespace=lambda ctx: NAMESPACE)})
    script = [use(write("/draft.md", "mine"), write("/memories/rule.md", "ours")), say("done")]
    agent = deep_agent(saver, script, backend=export(composite), store=store)
    agent.invoke(user("go"), thread("first"))
    assert list(files_of(agent, "first")) == ["/draft.md"]
    assert [item.key for item in store.search(NAMESPACE)] == ["/rule.md"]
    assert agent.get_state(thread("first")).values["messages"][0].content == "go"


# -- Q2: StateBackend ------------------------------------------------------------------------------------------


def test_q2_1_a_class_is_a_factory_and_the_files_are_in_the_state():
    agent = deep_agent(InMemorySaver(), [use(write("/path/to/file.txt", "line1\nline2"))], backend=export(StateBackend))
    agent.invoke(user("write"), thread("t"))
    record = files_of(agent, "t")["/path/to/file.txt"]
    assert record["content"] == "line1\nline2"  # the seed's list of lines is read, and today's string written
    assert record["created_at"] == record["modified_at"]


def test_q2_1_files_given_to_a_run_in_the_seeds_format_are_the_agents():
    files = {"/path/to/file.txt": {"content": ["line1", "line2"], "created_at": "2025-01-01T00:00:00",
                                   "modified_at": "2025-01-01T00:00:00"}}  # fmt: skip
    script = [use(call("read_file", file_path="/path/to/file.txt")), use(edit("/path/to/file.txt", "line2", "line3"))]
    agent = deep_agent(InMemorySaver(), script, backend=export(StateBackend()))
    state = agent.invoke(user("read", files=files), thread("t"))
    assert "line1\nline2" in tools_said(state)[0]
    record = files_of(agent, "t")["/path/to/file.txt"]
    assert record["content"] == "line1\nline3" and record["created_at"] == "2025-01-01T00:00:00"


@pytest.mark.parametrize("backend", [StateBackend, StateBackend(), lambda rt: StateBackend(rt)])
def test_q2_1_how_long_files_live(tmp_path, backend):
    """The table: in every call of the thread, not in another thread, and after a restart as the checkpointer does."""
    look = [use(call("ls", path="/")), say("seen")]
    with sqlite_saver(tmp_path / "threads.db") as saver:
        agent = deep_agent(saver, [use(write("/f.md", "x")), say("ok"), *look, *look], backend=export(backend))
        agent.invoke(user("write"), thread("one"))
        assert "/f.md" in tools_said(agent.invoke(user("again"), thread("one")))[-1]
        assert "/f.md" not in tools_said(agent.invoke(user("other"), thread("two")))[-1]
    with sqlite_saver(tmp_path / "threads.db") as saver:  # a restart, with SqliteSaver
        agent = deep_agent(saver, list(look), backend=export(backend))
        assert "/f.md" in tools_said(agent.invoke(user("restarted"), thread("one")))[-1]
    agent = deep_agent(InMemorySaver(), list(look), backend=export(backend))  # and with InMemorySaver
    assert "/f.md" not in tools_said(agent.invoke(user("restarted"), thread("one")))[-1]


def test_q2_3_the_update_of_a_write_is_what_the_graph_gets():
    """In the sample `write` returns `files_update` and the tool hands it to the graph. Inside of a graph the backend
    sends it itself, as deepagents has since 0.7; the result still carries it, and merging it again changes nothing."""
    results = []

    class Watched(StateBackend):
        def upload_files(self, files):
            results.extend(found := super().upload_files(files))
            return found

    agent = deep_agent(InMemorySaver(), [use(write("/f.md", "x"))], backend=export(Watched()))
    agent.invoke(user("write"), thread("t"))
    (result,) = results
    assert result.files_update == files_of(agent, "t")


def test_q2_6_temporary_files_in_the_state_and_two_namespaces_in_the_store():
    backend = CompositeBackend(
        default=StateBackend(),
        routes={
            "/memories/": StoreBackend(namespace=lambda ctx: ("memories",)),
            "/knowledge/": StoreBackend(namespace=lambda ctx: ("knowledge",)),
        },
    )
    store = InMemoryStore()
    paths = ("/tmp/file.txt", "/memories/AGENTS.md", "/knowledge/docs.md")
    script = [use(*[write(path, path) for path in paths]), say("done")]
    agent = deep_agent(InMemorySaver(), script, backend=export(backend), store=store)
    agent.invoke(user("write"), thread("t"))
    assert list(files_of(agent, "t")) == ["/tmp/file.txt"]
    assert [item.key for item in store.search(("memories",))] == ["/AGENTS.md"]
    assert [item.key for item in store.search(("knowledge",))] == ["/docs.md"]
