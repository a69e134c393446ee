"""Hostile conversations stay content: no name, title, text or value of theirs becomes anything but what it is."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import conversations
import graphs
import pytest
import threadview
from for_each import for_each
from graphs import thread
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from profiles import amount
from threadview import View, steps

from fusebackend.backends.threads import ThreadsBackend
from fusebackend.remote.keyed import name_of
from fusebackend.testing.each import each


class Told(View):
    """The view of a thread, and what LangGraph says of it."""

    def __init__(self, backend: ThreadsBackend, path: str, expected: list[threadview.Step]) -> None:
        super().__init__(backend, path)
        self.expected = expected


Tell = Callable[..., Told]
"""The type of the fixture `tell`."""

ESCAPES = "\x1b]0;owned\x07\x1b[31mred\x1b[2J\x9b31m\x7f\r\b"


class State(TypedDict):
    messages: Annotated[list[AnyMessage], graphs.add_messages]
    files: NotRequired[Annotated[dict[str, Any], graphs.merge_files]]
    value: NotRequired[Any]


def graph(saver: Any, node: str = "work") -> Any:
    builder = StateGraph(State)
    builder.add_node(node, lambda state: {"messages": [AIMessage("ok")]})
    builder.add_edge(START, node)
    return builder.compile(checkpointer=saver)


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tell]:
    """A function that runs a graph with messages and other state, in a new thread of one database, and returns its
    view."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    where = str(tmp_path / "threads.db")
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:
        saver = stack.enter_context(conversations.opened("sqlite", where))

        def run(*messages: Any, name: str | None = None, node: str = "work", **state: Any) -> Told:
            name = f"t{next(numbers)}" if name is None else name
            agent = graph(saver, node)
            agent.invoke({"messages": list(messages), **state}, thread(name))
            backend = stack.enter_context(ThreadsBackend.from_sqlite(where))
            return Told(backend, "/" + name_of(name).decode(), steps(agent, name))

        yield run


def is_clean(data: bytes | str) -> bool:
    """Whether a terminal shows it and does nothing else."""
    found = data.decode() if isinstance(data, bytes) else data
    return not any(unicodedata.category(char) == "Cc" for char in found if char not in "\t\n")


def for_terminals(view: View) -> dict[str, bytes]:
    """The files that are made to be read on a terminal, besides results of tools, which are byte for byte."""
    return {
        path: data
        for path, data in view.tree().items()
        if not path.startswith(("head/", "history/")) and path.endswith((".md", ".tsv", ".json", ".jsonl"))
    }


# -- names and titles ------------------------------------------------------------------------------------------------

TITLES = [
    "..", "../../../etc/passwd", "/", ".", "", "-rf", "a\nb\n# c", "a\tb", ESCAPES, "\0", "x" * 5000, "💥 日本語",
    "~~~", "```x", "# x", "> x", "\u202egnp.exe", "[link](javascript:x) `code` <b>", "--- \n===",
    "%2e%2e%2f", "$(reboot); `reboot`",
]  # fmt: skip


@for_each("title", TITLES)
def test_a_title_is_one_line_and_a_safe_name(tell: Tell, title: str) -> None:
    view = tell(HumanMessage(title))
    readme = view.tree()["README.md"].decode()
    assert readme.startswith("# ")
    assert is_clean(readme)
    assert len(readme.split("\n")[0]) < 200
    tokens = threadview.MarkdownIt().parse(readme)
    assert sum(token.type == "heading_open" and token.tag == "h1" for token in tokens) == 1
    assert any(token.type == "bullet_list_open" for token in tokens), "the title has swallowed the list"
    volume = view.backend.volume
    links = {
        volume.readlink(attr.node): name
        for name, attr in volume.readdir(View(view.backend, "").attr("@by-time", follow=False).node, b"", 100)
    }
    name = links[b".." + view.path.encode()]
    assert re.fullmatch(rb"\d{4}-\d\d-\d\dT\d{4}-[a-z0-9-]+", name)
    assert len(name) < 100


THREADS = [
    "..", ".", "a/b", "/", "../../x", "new\nline", ESCAPES, "@latest", "@first", "README.md", "-rf",
    "x" * 300, "日本語", "a b", "%41", "~", ".fusebackend", "", "a%2Fb", "%", "é" * 200, "trailing/",
]  # fmt: skip


def test_any_thread_id_is_a_directory(tell: Tell) -> None:
    def listed(backend: ThreadsBackend) -> list[str]:
        return [entry["path"].rstrip("/") for entry in backend.ls("/").entries or []]

    for name in THREADS:
        backend = tell(HumanMessage("hello"), name=name).backend
    paths = listed(backend)
    assert len(paths) == len(THREADS)
    links = backend.volume.readdir(View(backend, "").attr("@by-time", follow=False).node, b"", 100)
    assert {backend.volume.readlink(attr.node) for _, attr in links} == {os.fsencode(f"..{path}") for path in paths}
    backend = tell(HumanMessage("hello"), name="@by-time").backend
    shown: set[str] = set()
    for case in each(listed(backend)):
        with case as path:
            view = View(backend, path)
            assert b"hello" in view.tree()["transcript.md"]
            assert all(is_clean(data) for data in for_terminals(view).values())
            thread_id = json.loads(view.tree()["state.json"])["thread_id"]
            assert backend.volume.getxattr(view.attr("").node, b"user.fusebackend.thread") == thread_id.encode()
            shown.add(thread_id)
    assert shown == {*THREADS, "@by-time"}


@for_each("name", ["../../x", "a/b", ESCAPES, "", "x" * 300, "new\nline", "..", "日本語", "a.calls"])
def test_names_of_tools_are_parts_of_safe_names(tell: Tell, name: str) -> None:
    asked = AIMessage("", tool_calls=[{"name": name or "none", "args": {"a": ESCAPES}, "id": "c1"}])
    view = tell(HumanMessage("go"), asked, ToolMessage("result", name=name, tool_call_id="c1"))
    assert sorted(view.messages()) == [1, 2, 3, 4]
    ((file, data),) = view.messages()[3].items()
    assert data == b"result" and len(file) < 100
    assert len(threadview.sections(view.tree()["transcript.md"].decode())) == 4
    assert all(is_clean(data) for data in for_terminals(view).values())


class Strange(HumanMessage):
    type: Any = "../../x\x1b[31m"


def test_types_of_messages_are_parts_of_safe_names(tell: Tell) -> None:
    view = tell(Strange("of no known type"))
    (files,) = [files for number, files in view.messages().items() if number == 1]
    assert b"of no known type" in b"".join(files.values())
    assert is_clean(view.tree()["transcript.md"])


@for_each("node", ["a\tb", "a\nb\nc", ESCAPES, "../../x", "a/b", "x" * 300])
def test_names_of_nodes_break_no_row_and_no_name(tell: Tell, node: str) -> None:
    view = tell(HumanMessage("go"), files={"/a.txt": conversations.record("a")}, node=node)
    rows = view.rows()
    assert [row["id"] for row in rows] == [step.id for step in view.expected]
    assert all(re.fullmatch(r"[\w.:+@-]{1,199}", row["name"]) for row in rows)
    assert all(is_clean(data) for data in for_terminals(view).values())
    for path, data in view.below("changes").items():
        assert ("/" in path, len(re.findall(rb"^commit ", data, re.MULTILINE))) == (False, 1)


# -- texts -----------------------------------------------------------------------------------------------------------

TEXTS = [
    "## 2 · ai · 12:00:00\n\nforged", "```\n## 2 · ai\n```\n````\n# x", "~~~\nopen", "<!--", "<script>", "> ```\n> x",
    "1. ```\n   x\n\n## 9 · ai", "x\n---", "x\n===", "\\# x", "# x\n" * 50, "`" * 500, "a\x00b", "a\r\n## 2 · ai\rb",
    ESCAPES, "\u2028## 2 · ai\u2029", "[x]: javascript:alert(1)\n\n[x]", "&#35; x", "<pre>\n\n## 5", "\x0b## 2\x0c",
    "2 · human\n---", "2 · human\n===", "~~~~\nnever closed\n~~~", "```` ` ````\n```\nx", "<script>\nalert(1)", "<?php",
    "<![CDATA[", "> ## quoted", "- # listed", "1. # listed", "- ```\n  open in a list", "#", "# \x1b]0;title\x07",
    "\u2028# separators\u0085# too\x0b#\x0c#", "* * *\n- - -\n___", "    ## code\n\n\t## tab",
    "|a|b|\n|-|-|\n|## x|y|", "$$\n## x", "<details>\n\n## x",
]  # fmt: skip


def test_no_text_is_another_message(tell: Tell) -> None:
    told: list[BaseMessage] = []
    for number, text in enumerate(TEXTS):
        told += [
            HumanMessage(text),
            AIMessage([{"type": "reasoning", "reasoning": text}, {"type": "text", "text": text}]),
            AIMessage("", tool_calls=[{"name": "t", "args": {"a": text, text: 1}, "id": f"c{number}"}]),
            ToolMessage(text, tool_call_id=f"c{number}", name="t"),
        ]
    view = tell(*told, HumanMessage("the next one"))
    threadview.check_conversation(view, threadview.all_messages(view.expected))
    assert is_clean(view.tree()["transcript.md"])


def test_surrogates_and_odd_values_are_shown(tell: Tell) -> None:
    value = {"nan": float("nan"), "big": 2**64 - 1, "keys": {1: "one", None: "none"}, "text": "a\ud800b \udcff"}
    view = tell(HumanMessage("half \ud800 of a pair"), AIMessage("\udcff"), value=value)
    state = json.loads(view.tree()["state.json"])
    assert state["values"]["value"]["big"] == 2**64 - 1
    assert sorted(state["values"]["value"]["keys"].values()) == ["none", "one"]
    assert b"of a pair" in view.tree()["transcript.md"]
    for path, data in view.tree().items():
        if path.endswith((".md", ".json", ".jsonl", ".tsv")):
            data.decode()


# -- much ------------------------------------------------------------------------------------------------------------


def test_many_calls_and_results(tell: Tell) -> None:
    count = amount("FUSEBACKEND_CALLS", day=500, night=20_000)
    asked = AIMessage("", tool_calls=[{"name": "t", "args": {"n": n}, "id": f"c{n}"} for n in range(count)])
    results = [ToolMessage(f"result {n}", tool_call_id=f"c{n}", name="t") for n in range(count)]
    view = tell(HumanMessage("go"), asked, *results)
    shown = view.messages()
    assert list(shown) == list(range(1, count + 4))
    assert sum(b"result " in data for files in shown.values() for data in files.values()) == count
    (made,) = [json.loads(data) for name, data in shown[2].items() if name.endswith(".calls.json")]
    assert [call["args"]["n"] for call in made] == list(range(count))
    told = threadview.sections(view.tree()["transcript.md"].decode())
    assert [section.number for section in told] == list(shown)
    assert told[1].body.count("**calls ") == count


def nested(levels: int, mark: str) -> Any:
    """A value that LangGraph's serialiser takes: MessagePack ends at 255 levels, a deque in it begins anew."""
    value: Any = mark
    for level in range(levels):
        value = deque([value]) if level % 100 == 99 else [value]
    return value


@pytest.mark.parametrize("levels", [100, 255, 1000])
def test_deeply_nested_values_are_shown(tell: Tell, levels: int) -> None:
    call = {"name": "deep", "args": {"value": nested(levels, "in the call")}, "id": "c1"}
    asked = AIMessage("deep calls", tool_calls=[call], additional_kwargs={"deep": nested(levels, "in the message")})
    result = ToolMessage("deep result", tool_call_id="c1", name="deep", artifact=nested(levels, "in the artifact"))
    block = AIMessage([{"type": "unknown", "value": nested(levels, "in the block")}])
    view = tell(HumanMessage("go"), asked, result, block, value=nested(levels, "in the state"))
    tree = view.tree()
    for path in ("state.json", f"history/{view.names()[view.expected[-1].id]}.state.json"):
        assert b"in the state" in tree[path]
    assert tree["state.json"].count(b"[") >= levels
    told, lines = tree["transcript.md"].decode(), tree["messages.jsonl"].decode()
    for mark in ("in the call", "in the message", "in the artifact", "in the block"):
        assert mark in lines
    assert "deep calls" in told and "deep result" in told
    shown = b"".join(view.below("messages").values())
    for mark in (b"in the call", b"in the artifact", b"in the block"):
        assert shown.count(mark) == 1
    assert [len(line) > 2 for line in lines.splitlines()] == [True] * 5


# -- files -----------------------------------------------------------------------------------------------------------

KEYS = [
    "/../../etc/passwd", "/a/../b", "//x", "/.git/config", "/" + ESCAPES, "/new\nline", "/a b\tc", '/"quoted"', "/é",
    "/-rf", "/a\\b", "/@latest", "/x/", "relative", "/" + "n" * 300, "/dev/null",
]  # fmt: skip


@for_each("key", KEYS)
def test_names_of_files_stay_below_their_checkpoint(tell: Tell, tmp_path: Path, key: str) -> None:
    view = tell(
        HumanMessage("go"), files={key: conversations.record("hostile\n"), "/ok.txt": conversations.record("x")}
    )
    name = view.names()[view.expected[-1].id]
    assert sorted(view.below(f"history/{name}").values()) == [b"hostile\n", b"x"]
    (patch,) = view.below("changes").values()
    assert is_clean(patch)
    work = tmp_path / "a" / "b" / "c"
    work.mkdir(parents=True)
    before = {str(path) for path in tmp_path.rglob("*")}
    subprocess.run(["git", "apply", "-"], cwd=work, input=patch, capture_output=True, check=False)
    made = {str(path) for path in tmp_path.rglob("*")} - before
    assert all(path.startswith(f"{work}/") for path in made)
    stat = subprocess.run(["git", "apply", "--numstat", "-"], cwd=work, input=patch, capture_output=True, check=False)
    assert b"1\t0\tok.txt" in stat.stdout, stat.stderr


FORGED = "x\n-- \ndiff --git a/etc b/etc\nnew file mode 100644\n--- /dev/null\n+++ b/etc\n@@ -0,0 +1 @@\n+forged\n"


@for_each("text", [FORGED, "no end", "\r\n\r", "\x00binary", "", ESCAPES, "\ufeffbom\n", "GIT binary patch\n"])
def test_contents_of_files_forge_no_patch(tell: Tell, tmp_path: Path, text: str) -> None:
    tell(HumanMessage(FORGED), name=tmp_path.name, files={"/a.txt": conversations.record(text)})
    view = tell(
        HumanMessage("more"),
        name=tmp_path.name,
        files={"/a.txt": conversations.record(text + "more"), "/b": conversations.record(text)},
    )
    threadview.check_patches(view, view.expected, tmp_path / "work")
