"""`StoreBackend` beyond the published suite: stores, namespaces, formats, values that are no files, conflicts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import stores
from agentface import get, names
from for_each import for_each
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from raising import raising
from stored import put_if, put_new
from stores import NS, before_its_change

from fusebackend.backends import StoreBackend
from fusebackend.backends.store import source
from fusebackend.databases import sqlite as sqlite_module
from fusebackend.protocol.versions import digest_of
from fusebackend.urls import UrlError, open_backend, parse


def put(store, key, content="text", **more):
    value = {"content": content, "encoding": "utf-8", "created_at": "2025-01-01T00:00:00+00:00", **more}
    store.put(NS, key, value)
    return value


# -- which store, which namespace ------------------------------------------------------------------------------


def test_a_store_or_a_runtime_that_has_one(store):
    put(store, "/a", "kept")
    runtime = SimpleNamespace(store=store, state={})
    for backend in (
        StoreBackend(store, namespace=NS),
        StoreBackend(store=store, namespace=NS),
        StoreBackend(runtime, namespace=NS),
        StoreBackend(runtime, store=store, namespace="memories"),
        StoreBackend(runtime, namespace=lambda given: NS if given is runtime else ("other",)),
        StoreBackend(store, namespace=lambda given: NS if given is None else ("other",)),
    ):
        with backend:
            assert get(backend, "/a") == b"kept"


def test_the_namespace_is_asked_at_every_verb():
    user = SimpleNamespace(name="")
    backend = StoreBackend(InMemoryStore(), namespace=lambda _: ("users", user.name))
    for name in ("ann", "bob"):
        user.name = name
        assert backend.read("/note").error == "File '/note' not found"
        backend.write("/note", f"of {name}")
    user.name = "ann"
    assert "of ann" in backend.read("/note")


@for_each(
    ("namespace", "message"),
    [
        ((), "The namespace is empty; give at least one label"),
        ("", "has an empty label"),
        ("a..b", "has an empty label"),
        (("a", ""), "has an empty label"),
        (("a.b",), "The label 'a.b' holds a '.', which LangGraph forbids"),
        (("u@ex.com",), "holds a '.', which LangGraph forbids"),
        (("a", 7), "holds int; labels must be strings"),
        (7, "A namespace is a tuple of labels or a string such as 'a.b', not int"),
        (("langgraph", "x"), "can't be 'langgraph'"),
        (("a\0",), "holds a NUL"),
    ],
)
def test_what_is_no_namespace_is_refused_in_one_line(namespace, message):
    with pytest.raises((TypeError, ValueError), match=rf"^[^\n]*{re.escape(message)}[^\n]*$"):
        StoreBackend(InMemoryStore(), namespace=namespace)
    backend = StoreBackend(InMemoryStore(), namespace=lambda _: namespace)
    assert message in backend.write("/a", "x").error
    assert message in backend.ls("/").error


def test_a_namespace_that_langgraph_takes_is_taken(store):
    namespace = ("한국어", "a b", "*", "it's", "100%", "[x]", "\\")
    with StoreBackend(store, namespace=namespace) as backend:
        assert backend.write("/a", "x").error is None
        assert store.get(namespace, "/a").value["content"] == "x"
        assert [info["path"] for info in backend.ls("/").entries] == ["/a"]


def test_a_namespace_function_that_fails_says_so():
    backend = StoreBackend(InMemoryStore(), namespace=lambda runtime: (runtime.context.user_id,))
    message = "The namespace's function failed: AttributeError: 'NoneType' object has no attribute 'context'."
    assert "No LangGraph graph is running here, so it was given None." in backend.ls("/").error
    check_that_each_verb_says(backend, message)


def check_that_each_verb_says(backend, words):
    for result in (
        backend.ls("/"), backend.read("/a"), backend.write("/a", ""), backend.edit("/a", "a", "b"),
        backend.grep("x"), backend.glob("*"), backend.delete("/a"), backend.move("/a", "/b"),
    ):  # fmt: skip
        assert words in result.error
    assert backend.upload_files([("/a", b"")])[0].error and backend.download_files(["/a"])[0].error


def test_without_a_store_it_says_what_to_do():
    backend = StoreBackend(namespace=("memories",))
    assert "There is no store: no LangGraph graph with one is running here" in backend.write("/a", "x").error
    assert "There is no store" in StoreBackend(SimpleNamespace(store=None, state={})).ls("/").error
    for given, options, words in [
        ([SimpleNamespace(state={})], {}, "SimpleNamespace is neither a LangGraph store nor has it a 'store'"),
        ([InMemoryStore()], {"store": InMemoryStore()}, "Two stores are given; give one"),
        ([], {"store": object()}, "object is no LangGraph store: it has no get and no put"),
        ([InMemoryStore()], {"file_format": "v3"}, "file_format must be 'v1' or 'v2'"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            StoreBackend(*given, **options)


def test_inside_of_a_graph_the_store_and_the_runtime_are_the_graphs():
    from langgraph.graph import END, START, StateGraph

    backend = StoreBackend(namespace=lambda runtime: ("users", runtime.context["user"]))
    seen = []

    def node(state):
        seen.append(backend.write("/note", state["text"]))
        seen.append(backend.read("/note"))
        return {}

    builder = StateGraph(dict, context_schema=dict)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    store = InMemoryStore()
    builder.compile(store=store).invoke({"text": "hello"}, context={"user": "ann"})
    assert seen[0].error is None
    assert "hello" in seen[1]
    assert store.get(("users", "ann"), "/note").value["content"] == "hello"


def test_a_store_that_answers_in_its_event_loop_alone_is_refused(tmp_path):
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    async def attempt():
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "x.db")) as store:
            with pytest.raises(TypeError) as refusal:
                StoreBackend(store)
            backend = StoreBackend(SimpleNamespace(store=store))
            return str(refusal.value), (await backend.als("/")).error

    refused, error = asyncio.run(attempt())
    expected = "AsyncSqliteStore only answers inside of its own event loop"
    assert refused.startswith(expected)
    assert "give SqliteStore over the same database, or its URL (store+sqlite:PATH" in refused
    assert expected in error


def test_a_store_that_fails_is_an_error_and_no_exception():
    for error, words in (
        (RuntimeError("no luck"), "The store failed: RuntimeError: no luck"),
        (NotImplementedError("await me"), "can't do this: await me"),
    ):

        class Broken(InMemoryStore):
            batch = raising(error)

        check_that_each_verb_says(StoreBackend(Broken()), words)


def test_child_namespaces_are_trees_of_their_own(store, backend):
    put(store, "/mine", "of mine")
    store.put((*NS, "sub"), "/theirs", {"content": "x", "encoding": "utf-8"})
    store.put(("memories2",), "/other", {"content": "x", "encoding": "utf-8"})
    assert names(backend) == [info["path"][1:] for info in backend.glob("**").matches] == ["mine"]
    assert backend.grep("x").matches == []
    assert backend.delete("/theirs").error == "Error: File '/theirs' not found"
    assert store.get((*NS, "sub"), "/theirs") is not None
    with StoreBackend(store, namespace="memories.sub") as child:
        assert [info["path"] for info in child.ls("/").entries] == ["/theirs"]


# -- values ----------------------------------------------------------------------------------------------------


def test_the_seeds_format_is_read_and_migrated_when_it_is_written(store, backend):
    times = {"created_at": "2025-01-01T00:00:00", "modified_at": "2025-01-01T00:00:00"}
    store.put(NS, "/AGENTS.md", {"content": ["# Memory", "主题色: #FD5108"], **times})
    store.put(NS, "/newline.md", {"content": ["one", ""], **times})
    assert str(backend.read("/AGENTS.md")) == "     1\t# Memory\n     2\t主题色: #FD5108"
    assert get(backend, "/newline.md") == b"one\n"
    assert backend.ls("/").entries[0] == {
        "path": "/AGENTS.md", "is_dir": False, "size": 27, "modified_at": "2025-01-01T00:00:00",
    }  # fmt: skip
    assert backend.edit("/AGENTS.md", "FD5108", "000000").error is None
    value = store.get(NS, "/AGENTS.md").value
    assert value.pop("modified_at") > "2026"
    text = "# Memory\n主题色: #000000"
    assert value == {"content": text, "encoding": "utf-8", "created_at": "2025-01-01T00:00:00"}


def test_the_list_of_splitlines_is_read_as_what_it_kept(store, backend):
    """The Korean seed and deepagents-backends: a last newline is lost, an empty file is an empty list."""
    for text, kept in {"": b"", "one\ntwo\n": b"one\ntwo"}.items():
        store.put(NS, "/f", {"content": text.splitlines()})
        assert get(backend, "/f") == kept


def test_the_seeds_format_is_written_on_request(store):
    with StoreBackend(store, namespace=NS, file_format="v1") as backend:
        backend.write("/a", "one\ntwo\n")
        assert store.get(NS, "/a").value["content"] == ["one", "two", ""]
        backend.upload_files([("/a", b"\xff")])
        assert store.get(NS, "/a").value["encoding"] == "base64"
        assert get(backend, "/a") == b"\xff"


def test_what_else_a_value_holds_stays(store, backend):
    put(store, "/a", "one", author="ann", tags=["x"])
    assert backend.edit("/a", "one", "two").error is None
    value = store.get(NS, "/a").value
    assert value["content"] == "two"
    assert (value["author"], value["tags"], value["created_at"]) == ("ann", ["x"], "2025-01-01T00:00:00+00:00")


FOREIGN = {
    "prefs": {"theme": "dark", "größe": [1, 2.5, None, True]},
    "no-content": {},
    "content-is-an-object": {"content": {"text": "x"}},
    "content-holds-numbers": {"content": ["a", 1]},
    "unknown-encoding": {"content": "x", "encoding": "rot13"},
    "broken-base64": {"content": "?", "encoding": "base64"},
}


def check_that_it_can_be_read_only(backend, path, content):
    refused = "It is a value of the store that is no file, and can be read only"
    for result in (
        backend.edit(path, content.decode()[0], "x"), backend.delete(path), backend.move(path, "/elsewhere"),
    ):  # fmt: skip
        assert refused in result.error
    codes = [backend.upload_files([(path, b"{}")])[0].error, put_if(backend, path, b"{}", digest_of(content))]
    assert codes == ["permission_denied"] * 2


@for_each("name", FOREIGN)
def test_a_value_that_is_no_file_is_json_and_can_be_read_only(store, backend, name):
    value = FOREIGN[name]
    store.put(NS, f"/{name}", value)
    path = f"/{name}.json"
    (info,) = backend.ls("/").entries
    content = get(backend, path)
    assert (info["path"], info["size"], info["read_only"]) == (path, len(content), True)
    assert json.loads(content) == value
    assert content.endswith(b"}\n")
    assert [match["path"] for match in backend.glob("*.json").matches] == [path]
    assert backend.read(f"/{name}").error == f"File '/{name}' not found"
    check_that_it_can_be_read_only(backend, path, content)
    assert backend.upload_files([(f"/{name}", b"x")])[0].error == "permission_denied"
    backend.write("/dir/file", "x")
    assert backend.move("/dir/file", f"/{name}").error
    assert store.get(NS, f"/{name}").value == value
    store.delete(NS, f"/{name}")
    assert backend.delete("/dir").error is None


def test_values_are_searched_as_they_are_shown(store, backend):
    store.put(NS, "prefs", {"theme": "dark"})
    put(store, "/a", "dark side")
    found = [(match["path"], match["line"], match["text"]) for match in backend.grep("dark").matches]
    assert found == [("/a", 1, "dark side"), ("/prefs.json", 2, '  "theme": "dark"')]
    assert [match["path"] for match in backend.grep("dark", glob="*.json").matches] == ["/prefs.json"]


LONG = "The theme is dark.\n" * 20

TEXTS = {
    "one": {"text": LONG},
    "beside-others": {"kind": "memory", "score": 0.5, "tags": ["a", "b"], "text": LONG, "old": None},
    "deep": {"kind": "Memory", "content": {"content": LONG}},
    "one-line": {"text": "x" * 201},
    "two-lines": {"text": "a\nb"},
    "any-text": {"text": "\x1b[31m漢\r\n" * 9},
    "broken": {"content": LONG, "encoding": "rot13"},
}

NO_TEXTS = {
    "short": {"text": "x" * 200},
    "a-line-with-its-newline": {"text": "dark\n"},
    "several": {"a": LONG, "b": LONG},
    "a-table": {"text": LONG, "rows": [{"a": 1}] * 100},
    "many-columns": {"text": LONG, **dict.fromkeys(map(str, range(100)), 1)},
    "a-long-key": {LONG: 1},
}


@for_each("name", TEXTS)
def test_a_long_text_has_a_file_of_its_own(store, backend, name):
    store.put(NS, f"/{name}", TEXTS[name])
    content = next(text for text in _texts(TEXTS[name]) if len(text) > 200 or "\n" in text)
    path = f"/{name}.md"
    infos = backend.ls("/").entries
    assert [(info["path"], info["read_only"]) for info in infos] == [(f"/{name}.json", True), (path, True)]
    assert get(backend, path) == content.encode()
    assert [info["size"] for info in infos] == [len(get(backend, info["path"])) for info in infos]
    updated_at = store.get(NS, f"/{name}").updated_at  # a SqliteStore's is UTC without saying so
    updated_at = updated_at.replace(tzinfo=updated_at.tzinfo or UTC)
    assert [datetime.fromisoformat(info["modified_at"]) for info in infos] == [updated_at, updated_at]
    assert json.loads(get(backend, f"/{name}.json")) == TEXTS[name]
    assert [info["path"] for info in backend.glob("*.md").matches] == [path]
    word = content.split("\n")[0].strip("\r")
    assert path in {match["path"] for match in backend.grep(word).matches}
    for options in ({"path": path}, {"glob": "*.md"}):
        assert {match["path"] for match in backend.grep(word, **options).matches} == {path}
    check_that_it_can_be_read_only(backend, path, content.encode())
    assert backend.write(path, "").error
    assert store.get(NS, f"/{name}").value == TEXTS[name]
    store.put(NS, f"/{name}", {"text": "short"})
    assert [info["path"] for info in backend.ls("/").entries] == [f"/{name}.json"]
    assert backend.read(path).error == f"File '{path}' not found"
    assert backend.write(path, "now a file").error is None
    for key in (f"/{name}", path):
        store.delete(NS, key)


def _texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from _texts(child)


@for_each("name", NO_TEXTS)
def test_a_value_that_is_not_one_long_text_is_json_alone(store, backend, name):
    store.put(NS, f"/{name}", NO_TEXTS[name])
    assert [info["path"] for info in backend.ls("/").entries] == [f"/{name}.json"]
    assert backend.read(f"/{name}.md").error == f"File '/{name}.md' not found"
    store.delete(NS, f"/{name}")


def test_json_has_sorted_keys(store, backend):
    store.put(NS, "prefs", {"b": {"d": 1, "c": []}, "a": "é"})
    expected = '{\n  "a": "é",\n  "b": {\n    "c": [],\n    "d": 1\n  }\n}\n'
    assert get(backend, "/prefs.json") == expected.encode()


@pytest.mark.parametrize("levels", [200, 5_000])
def test_a_value_of_a_thousand_levels_takes_no_other_value_with_it(store, backend, levels):
    """orjson, by which SqliteStore writes, refuses more than 254 levels; other programs don't."""
    raw = '{"in": ' * levels + json.dumps({"text": LONG}) + "}" * levels
    put(store, "/good", "good")
    if isinstance(store, InMemoryStore):
        value = {"text": LONG}
        for _ in range(levels):
            value = {"in": value}
        store.put(NS, "/deep", value)
    elif isinstance(store, SqliteStore):
        store.conn.execute("INSERT INTO store (prefix, key, value) VALUES ('memories', '/deep', ?)", (raw.encode(),))
    else:
        try:
            with store._cursor() as cursor:
                cursor.execute("INSERT INTO store (prefix, key, value) VALUES ('memories', '/deep', %s)", (raw,))
        except Exception as error:
            assert "stack depth" in str(error)
            return
    infos = {info["path"]: info["size"] for info in backend.ls("/").entries}
    assert infos.keys() == {"/deep.json", "/good"}
    content = get(backend, "/deep.json")
    assert infos["/deep.json"] == len(content)
    assert content.count(b'"in"') == levels
    assert {match["path"] for match in backend.grep("theme").matches} == {"/deep.json"}
    assert backend.edit("/good", "good", "better").error is None


def test_values_that_only_memory_can_hold_are_shown():
    store = InMemoryStore()
    loop = {"a": 1}
    loop["self"] = loop
    put(store, "/good", "good", meta=loop)
    for key, value in {"loop": loop, "keys": {1: 2, "x": 3, (4,): 5}, "nan": {"x": float("nan")}}.items():
        store.put(NS, key, value)
    store.put(NS, "surrogate", {"text": LONG + "\ud800"})
    backend = StoreBackend(store, namespace=NS)
    for info in backend.ls("/").entries:
        assert len(get(backend, info["path"])) == info["size"], info
    assert b'"self": "\xe2\x80\xa6"' in get(backend, "/loop.json")
    assert json.loads(get(backend, "/surrogate.json"))["text"] == LONG + "\ud800"
    assert get(backend, "/surrogate.md") == (LONG + "?").encode()
    assert backend.edit("/good", "good", "better").error is None


def test_a_value_of_tens_of_megabytes_is_shown(store, backend):
    content = "0123456789\n" * 2_000_000
    store.put(NS, "/large", {"text": content})
    large = {info["path"]: info["size"] for info in backend.ls("/").entries}
    assert large == {"/large.json": len(content) + 2_000_000 + len('{\n  "text": ""\n}\n'), "/large.md": len(content)}
    assert get(backend, "/large.md") == content.encode()


def test_what_is_no_json_in_the_table_is_shown_as_it_is(tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "x.db")) as store:
        store.setup()
        for row in [("/odd", "not json {"), ("/list", "[1]"), ("/text", '"one line"')]:
            store.conn.execute("INSERT INTO store (prefix, key, value) VALUES ('memories', ?, ?)", row)
        with StoreBackend(store, namespace=NS) as backend:
            assert {name: get(backend, f"/{name}") for name in names(backend)} == {
                "list.json": b"[\n  1\n]\n",
                "odd.json": b"not json {",
                "text.json": b'"one line"\n',
                "text.md": b"one line",
            }
            assert backend.upload_files([("/odd.json", b"")])[0].error == "permission_denied"


@for_each("key", ["x'ff00'", "x''", "x'2f61'", "7", "CAST(x'2fff' AS TEXT)", "CAST(x'2f80' AS TEXT)", "NULL"])
@for_each("value", ['\'{"content": "x"}\'', "NULL", "7", "x'ff'"])
def test_an_odd_row_harms_no_other_key(tmp_path, key, value):
    with SqliteStore.from_conn_string(str(tmp_path / "x.db")) as store:
        store.setup()
        for prefix in ("memories", "other"):
            with contextlib.suppress(sqlite3.IntegrityError):
                store.conn.execute(f"INSERT INTO store (prefix, key, value) VALUES ('{prefix}', {key}, {value})")
        with contextlib.suppress(sqlite3.IntegrityError):
            store.conn.execute(f"INSERT INTO store (prefix, key, value) VALUES (x'ff', {key}, {value})")
        put(store, "/good", "good")
        put(store, "/é", "behind all that is no UTF-8")
        with StoreBackend(store, namespace=NS) as backend:
            assert {"/good", "/é"} <= {info["path"] for info in backend.ls("/").entries}
            assert "/good" in [match["path"] for match in backend.glob("**/*").matches]
            assert [match["path"] for match in backend.grep("good").matches] == ["/good"]
            backend.write("/new", "text")
            assert get(backend, "/new") == b"text"


def test_a_key_of_100_000_segments_is_no_walk_without_end(tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "x.db")) as store:
        store.setup()
        put(store, "/" + "a/" * 100_000 + "deep", "deep")
        put(store, "/good", "good")
        with StoreBackend(store, namespace=NS) as backend:
            assert [info["path"] for info in backend.ls("/").entries] == ["/a/", "/good"]
            assert [match["path"] for match in backend.glob("**/*").matches] == ["/good"]
            assert [match["path"] for match in backend.grep("good").matches] == ["/good"]
            assert backend.delete("/a").error is None or backend.ls("/").error is None


# -- conflicts -------------------------------------------------------------------------------------------------


def test_of_two_edits_at_once_one_is_told(store):
    put(store, "/a", "one two")
    with StoreBackend(store, namespace=NS) as first, stores.other_program(store, NS) as second:
        with before_its_change(first, lambda: second.edit("/a", "two", "2")):
            told = first.edit("/a", "one", "1").error
        assert told == "Error editing file '/a': It was changed by somebody else meanwhile; read it again"
        assert get(first, "/a") == b"one 2"
        assert first.edit("/a", "one", "1").error is None
        assert get(second, "/a") == b"1 2"


def test_of_two_who_create_a_file_one_is_told(store):
    with StoreBackend(store, namespace=NS) as first, stores.other_program(store, NS) as second:
        with before_its_change(first, lambda: second.write("/a", "theirs")):
            assert "already exists" in first.write("/a", "ours").error
        assert get(first, "/a") == b"theirs"


def test_an_upload_over_known_bytes_only(store, backend):
    for path, data, known, error in [
        ("/a", b"1", None, None),
        ("/a", b"2", None, "conflict"),
        ("/a", b"2", digest_of(b"1"), None),
        ("/a", b"3", digest_of(b"1"), "conflict"),
        ("/none", b"3", digest_of(b"1"), "conflict"),
        ("/a/b", b"3", None, "invalid_path"),
    ]:
        assert put_if(backend, path, data, known) == error, (path, data)
    assert get(backend, "/a") == b"2"


def test_a_batch_is_one_change_or_fails_item_by_item(store, backend):
    answers = backend.upload_files([("/a", b"1"), ("/b", b"2"), ("/a", b"3")])
    assert [answer.error for answer in answers] == [None] * 3
    assert (get(backend, "/a"), get(backend, "/b")) == (b"3", b"2")
    answers = backend.upload_files([("/c", b"1"), ("/c/d", b"2"), ("/..", b""), ("/e", "text"), ("/f", b"4")])
    assert [answer.error for answer in answers] == [
        None, "invalid_path", "invalid_path", "content must be bytes, not str", None,
    ]  # fmt: skip
    assert [answer.content for answer in backend.download_files(["/c", "/e", "/f"])] == [b"1", None, b"4"]


def test_new_files_are_one_change_or_none(store, backend):
    new = [("/d/a", b"1"), ("/d/b", b"\xff"), ("/c", b"")]
    assert put_new(backend, new) is None
    assert [get(backend, path) for path, _ in new] == [data for _, data in new]
    for taken in ("/c", "/d", "/d/a"):
        assert put_new(backend, [("/d/new", b"x"), (taken, b"x")]) == "conflict"
    assert put_new(backend, [("/e", b"x"), ("/e/f", b"x")]) == "conflict"
    assert put_new(backend, [("/new", b"x"), ("/c/f", b"x")]) == "invalid_path"
    assert [get(backend, path) for path, _ in new] == [data for _, data in new]
    assert {item.key for item in store.search(NS)} == {path for path, _ in new}


def test_of_two_who_make_new_files_one_is_told(store):
    with StoreBackend(store, namespace=NS) as first, stores.other_program(store, NS) as second:
        with before_its_change(first, lambda: second.write("/d/b", "theirs")):
            error = put_new(first, [("/d/a", b"ours"), ("/d/b", b"ours"), ("/d/c", b"ours")])
        assert error == "conflict"
        assert {item.key: item.value["content"] for item in store.search(NS)} == {"/d/b": "theirs"}


def test_a_directory_moves_with_its_times(store, backend):
    put(store, "/d/a", "1")
    put(store, "/d/e/b", "2")
    assert backend.move("/d", "/new").error is None
    assert sorted(item.key for item in store.search(NS)) == ["/new/a", "/new/e/b"]
    assert store.get(NS, "/new/a").value["created_at"] == "2025-01-01T00:00:00+00:00"


# -- times -----------------------------------------------------------------------------------------------------


def test_created_stays_and_modified_moves(store, backend):
    value = put(store, "/a", "1")
    row = store.get(NS, "/a")
    backend.upload_files([("/a", b"2")])
    changed = store.get(NS, "/a")
    assert changed.value["created_at"] == value["created_at"] < changed.value["modified_at"]
    assert changed.created_at == row.created_at or isinstance(store, InMemoryStore)  # that one keeps no such time
    assert changed.updated_at >= row.updated_at
    assert backend.read("/a").file_data["modified_at"] == changed.value["modified_at"]


def test_a_listing_has_the_stores_time_where_the_value_has_none(store, backend):
    store.put(NS, "/bare", {"content": "x"})
    store.put(NS, "prefs", {"theme": "dark"})
    assert all(re.fullmatch(r"20.*\+00:00", info["modified_at"]) for info in backend.ls("/").entries)


@pytest.mark.parametrize("kind", stores.SQL_KINDS)
def test_the_time_to_live_is_the_stores_or_else_the_items(kind, tmp_path, request):
    with stores.of_request(request, kind, tmp_path) as store:
        store.put(NS, "/mortal", {"content": "x", "encoding": "utf-8"}, ttl=30)
        with StoreBackend(store, namespace=NS) as backend:
            assert backend.edit("/mortal", "x", "y").error is None
            backend.write("/for ever", "x")
        store.ttl_config = {"default_ttl": 60, "refresh_on_read": True}
        with StoreBackend(store, namespace=NS) as backend:
            backend.write("/an hour", "x")
            assert backend.move("/mortal", "/moved").error is None
            assert get(backend, "/moved") == b"y"
        rows = _rows(store, "SELECT key, ttl_minutes, expires_at IS NULL AS endless FROM store ORDER BY key")
        assert rows == [("/an hour", 60, 0), ("/for ever", None, 1), ("/moved", 60, 0)]


def _rows(store, query):
    if isinstance(store, SqliteStore):
        return [tuple(row) for row in store.conn.execute(query)]
    return [tuple(int(v) if isinstance(v, bool) else v for v in row.values()) for row in store.conn.execute(query)]


def test_what_the_store_itself_writes_and_reads_is_the_same_row(tmp_path):
    """Both write the same columns in the same forms, so that LangGraph reads its times and sorts by them."""
    with SqliteStore.from_conn_string(str(tmp_path / "x.db")) as store:
        store.setup()
        put(store, "/theirs")
        with StoreBackend(store, namespace=NS) as backend:
            backend.write("/ours", "text")
        rows = store.conn.execute("SELECT typeof(value), typeof(created_at), typeof(updated_at), expires_at FROM store")
        assert set(rows) == {("blob", "text", "text", None)}
        items = store.search(NS)
        assert {item.key for item in items} == {"/theirs", "/ours"}
        assert all(abs((item.updated_at - item.created_at).total_seconds()) < 2 for item in items)


# -- backends over one store -----------------------------------------------------------------------------------


def test_backends_over_one_store_share_its_connections(store, monkeypatch):
    """The factories of the seeds make a backend for every call of a tool."""
    opened, plain = [], source.database_of
    monkeypatch.setattr(source, "database_of", lambda store: (opened.append(store), plain(store))[1])
    backends = [StoreBackend(store, namespace=NS) for _ in range(20)]
    for number, backend in enumerate(backends):
        assert backend.write(f"/{number}", "x").error is None
    assert len({id(backend.items) for backend in backends}) == 1
    assert len(opened) == 1
    assert StoreBackend(store, namespace="other").items is not backends[0].items
    for backend in backends[:-1]:
        backend.close()
    assert "x" in backends[-1].read("/3")
    for _ in range(2):
        backends[-1].close()
    with StoreBackend(store, namespace=NS) as again:
        assert "x" in again.read("/3")
    assert len(opened) == 2


def test_what_is_shared_ends_with_the_store(tmp_path):
    import gc

    with SqliteStore.from_conn_string(str(tmp_path / "x.db")) as store:
        backend = StoreBackend(SimpleNamespace(store=store), namespace=NS)
        backend.write("/a", "x")
        database = backend.items._database
    del store, backend
    gc.collect()
    with pytest.raises(OSError, match="closed database"), database.asking() as ask:
        ask("SELECT 1", [])


# -- databases -------------------------------------------------------------------------------------------------


def test_a_database_in_memory_is_shared_with_the_store():
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    store = SqliteStore(connection)
    with StoreBackend(store, namespace=NS) as backend:
        assert backend.write("/a", "x").error is None
        assert store.get(NS, "/a").value["content"] == "x"
        assert (backend.durable, backend.blocking) == (False, False)
        before = backend.items.token()
        assert backend.edit("/a", "x", "y").error is None
        assert backend.items.token() == before
        put(store, "/b")
        assert backend.items.token() != before
    assert store.get(NS, "/a") is not None  # it is still open
    connection.close()


def test_a_store_that_was_not_set_up_is(tmp_path):
    connection = sqlite3.connect(tmp_path / "x.db", check_same_thread=False, isolation_level=None)
    with StoreBackend(SqliteStore(connection), namespace=NS) as backend:
        assert backend.write("/a", "x").error is None
        assert backend.durable
    connection.close()


def test_a_store_that_does_more_is_asked_itself():
    class Counting(InMemoryStore):
        puts = 0

        def put(self, namespace, key, value, index=None, **options):
            type(self).puts += 1
            super().put(namespace, key, {**value, "counted": True}, index, **options)

    store = Counting()
    StoreBackend(store, namespace=NS).write("/a", "x")
    assert Counting.puts == 1
    assert store.get(NS, "/a").value["counted"]


def test_a_store_that_embeds_is_written_through_itself(tmp_path):
    """Its search by meaning must find what was written here."""

    def embed(texts):
        return [[float(len(text)), 1.0] for text in texts]

    store = InMemoryStore(index={"dims": 2, "embed": embed, "fields": ["content"]})
    backend = StoreBackend(store, namespace=NS)
    backend.write("/a", "some text")
    assert store.search(NS, query="some text")[0].score is not None

    with SqliteStore.from_conn_string(str(tmp_path / "x.db")) as sqlite:
        pytest.importorskip("sqlite_vec")
        sqlite.setup()
        sqlite.index_config = {"dims": 2}
        used = []
        put_ = sqlite.put
        sqlite.put = lambda *args, **options: (used.append(args[1]), put_(*args, **{**options, "index": False}))
        with StoreBackend(sqlite, namespace=NS) as backend:
            assert backend.write("/a", "x").error is None
            assert backend.edit("/a", "x", "y").error is None
        assert used == ["/a", "/a"]


def test_a_locked_database_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_module, "BUSY_S", 0.05)
    with SqliteStore.from_conn_string(str(tmp_path / "x.db")) as store:
        store.setup()
        with StoreBackend(store, namespace=NS) as backend:
            assert backend.ls("/").error is None
            store.conn.execute("BEGIN IMMEDIATE")
            assert backend.write("/a", "x").error == "Error writing file '/a': SQLite: database is locked"
            store.conn.execute("COMMIT")
            assert backend.write("/a", "x").error is None


# -- URLs ------------------------------------------------------------------------------------------------------


def test_a_url_opens_a_database_and_makes_what_is_missing(tmp_path):
    with open_backend(f"store+sqlite:{tmp_path}/store.db?ns=a.b&on_exists=replace&ttl=0.5") as backend:
        assert isinstance(backend, StoreBackend)
        assert (backend.on_exists, backend.ttl_s) == ("replace", 0.5)
        assert backend.write("/x", "1").error is None
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        assert store.get(("a", "b"), "/x").value["content"] == "1"


def test_a_url_opens_postgres(postgres, tmp_path):
    with postgres.database() as dsn:
        for url in (
            f"store+postgres:{dsn}?ns=m",
            f"store+postgres:{postgres.uri(dsn.split('dbname=')[1])}?ns=m&feed=off",
        ):
            with open_backend(url) as backend:
                assert backend.upload_files([("/x", b"1")])[0].error is None
        with pytest.raises(UrlError, match=r"names no namespace; add \?ns=NAME.*this store holds m$"):
            open_backend(f"store+postgres:{dsn}")


@for_each(
    ("url", "message"),
    [
        ("store+sqlite:?ns=a", "is incomplete; write store+sqlite:PATH?ns=NAMESPACE"),
        ("store+sqlite:/x?ns=", "must be a namespace such as 'a.b' (The namespace ('',) has an empty label), not ''"),
        ("store+sqlite:/x?ns=a..b", "has an empty label"),
        ("store+sqlite:/x?ttl=soon&ns=a", "parameter 'ttl' of 'store+sqlite:' must be a number of seconds, not 'soon'"),
        ("store+postgres:dbname=x?feed=maybe", "parameter 'feed' of 'store+postgres:' must be 'auto' or 'off'"),
        ("store+postgres:dbname=x?colour=red", "'store+postgres:' knows no parameter 'colour'"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_before_anything_is_opened(url, message):
    with pytest.raises(UrlError, match=re.escape(message)):
        parse(url)


def test_a_database_that_is_none(tmp_path):
    (tmp_path / "text").write_text("not a database at all, but long enough to be one" * 100)
    (tmp_path / "dir").mkdir()
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE store (id INTEGER)")
    other.close()
    open_backend(f"sqlite:{tmp_path}/volume.db").close()
    with SqliteStore.from_conn_string(str(tmp_path / "good.db")) as store:
        store.setup()
        store.put(("a", "b"), "k", {})
    for name, message in (
        ("text?ns=a", "SQLite: file is not a database"),
        ("dir?ns=a", "is not a file"),
        ("none/x.db?ns=a", f"there is no directory '{tmp_path}/none'"),
        ("other.db?ns=a", "The table 'store' is not LangGraph's: it has no column 'created_at'"),
        ("volume.db?ns=a", "The database belongs to another program"),
        ("good.db", "names no namespace; add ?ns=NAME, such as ?ns=memories, or ?tree=1 for all; this store holds a.b"),
    ):
        with pytest.raises(UrlError, match=rf"^[^\n]*{re.escape(message)}[^\n]*$"):
            open_backend(f"store+sqlite:{tmp_path}/{name}")


def test_a_server_that_is_none(postgres):
    for place, words in [
        ("host=/nowhere password=hidden", r"'store\+postgres:host=/nowhere password=\*\*\*': PostgreSQL: connection"),
        ("dbname", "missing"),
        (postgres.dsn("none"), 'database "none" does not exist'),
    ]:
        with pytest.raises(UrlError, match=words):
            open_backend(f"store+postgres:{place}?ns=a")


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("langgraph", "psycopg", "psycopg_pool", "deepagents"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from fusebackend.backends import StoreBackend
from fusebackend.urls import UrlError, open_backend
for url in ("store+sqlite:/tmp/x.db?ns=a", "store+postgres:dbname=x?ns=a"):
    try:
        open_backend(url)
    except UrlError as error:
        print(error)
class Store:
    def get(self, namespace, key): return None
    def put(self, namespace, key, value): pass
    def delete(self, namespace, key): pass
    def search(self, namespace, *, limit, offset): return []
backend = StoreBackend(Store(), namespace="a")
print(backend.ls("/"), StoreBackend(namespace="a").ls("/").error[:18])
print(sorted(name for name in sys.modules if name.split(".")[0] in ("langgraph", "psycopg", "deepagents")))
"""


def test_without_the_extras_it_says_what_to_install_and_imports_nothing():
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], cwd=Path(__file__).parents[4], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "'store+sqlite:/tmp/x.db?ns=a' needs langgraph.store.sqlite, which is not installed: "
        "pip install 'fusebackend[langgraph]'",
        "'store+postgres:dbname=x?ns=a' needs langgraph.store.postgres, which is not installed: "
        "pip install 'fusebackend[langgraph]'",
        "LsResult(error=None, entries=[]) Path '/': There is",
        "[]",
    ]
