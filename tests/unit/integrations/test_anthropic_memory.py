"""Anthropic's memory tool: the answers of the package's own tool, over every kind of backend."""

import json
import re
import shutil
import threading

import anyio
import pytest
from backend_kinds import opened_backend
from profiles import examples

pytest.importorskip("anthropic")

from functools import partial

import httpx2
from anthropic import Anthropic
from anthropic.lib.tools import ToolError
from anthropic.tools import BetaLocalFilesystemMemoryTool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from together import together

from fusebackend.backends import (
    InMemoryBackend,
)
from fusebackend.integrations.anthropic_memory import AsyncMemoryTool, MemoryTool
from fusebackend.protocol import EditResult


@pytest.fixture(params=["memory", "dir", "store"])  # the tool asks verbs; a store has its own words of a race
def backend(request, tmp_path):
    with opened_backend(request.param, tmp_path) as made:
        yield made


class LocalTool(BetaLocalFilesystemMemoryTool):
    """Of the package. How large a directory is depends on the file system that the test runs on."""

    def __init__(self, directory):
        super().__init__(str(directory))
        self._directory = directory

    def call(self, command):
        return re.sub(r"(?m)^\S+(?=\t/(.+)$)", self._size, super().call(command))

    def _size(self, line):
        return "4K" if (self._directory / line[1]).is_dir() else line[0]


def said(tool, **command):
    try:
        return tool.call(command)
    except ToolError as error:
        return f"error: {error}"


NAMES = ["a.md", "b.md", "한글", ".hidden", "d", "d/c.md", "d/e/f.md", "d/e/g/h.md", "a.md/x"]
paths = st.sampled_from([f"/memories/{name}" for name in NAMES] + ["/memories", "/memories/d/../b.md", "/memories/d/"])
texts = st.lists(st.sampled_from(["one", "two", "", "a\rb", "日本", "one two", "aa"]), max_size=6).map("\n".join)
words = st.sampled_from(["one", "two", "a", "one\ntwo", "", "none", "日"])
commands = st.one_of(
    st.fixed_dictionaries({"command": st.just("create"), "path": paths, "file_text": texts}),
    st.fixed_dictionaries(
        {"command": st.just("view"), "path": paths},
        optional={"view_range": st.tuples(st.integers(-1, 4), st.integers(-1, 5)).map(list)},
    ),
    st.fixed_dictionaries({"command": st.just("str_replace"), "path": paths, "old_str": words, "new_str": texts}),
    st.fixed_dictionaries(
        {"command": st.just("insert"), "path": paths, "insert_line": st.integers(-1, 4), "insert_text": texts}
    ),
    st.fixed_dictionaries({"command": st.just("delete"), "path": paths}),
    st.fixed_dictionaries({"command": st.just("rename"), "old_path": paths, "new_path": paths}),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(commands, min_size=1, max_size=25))
def test_answers_are_those_of_the_packages_own_tool(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("theirs")
    theirs, ours = LocalTool(directory), MemoryTool(InMemoryBackend())
    for step in steps:
        before = set(directory.rglob("*"))
        try:
            expected = said(theirs, **step)
        except (OSError, ValueError):  # theirs ends with it
            return
        assert said(ours, **step) == expected, step
        if expected.startswith("error"):  # theirs leaves the directories that it made
            for made in sorted(set(directory.rglob("*")) - before, reverse=True):
                made.rmdir()


STEPS = [
    {"command": "view", "path": "/memories"},
    {"command": "view", "path": "/memories/none.md"},
    {"command": "create", "path": "/memories/notes.md", "file_text": "# Notes\none\ntwo\none\n"},
    {"command": "create", "path": "/memories/notes.md", "file_text": "again"},
    {"command": "create", "path": "/memories/d/e/deep.md", "file_text": "deep"},
    {"command": "create", "path": "/memories/empty.md", "file_text": ""},
    {"command": "view", "path": "/memories"},
    {"command": "view", "path": "/memories/d"},
    {"command": "view", "path": "/memories/notes.md"},
    {"command": "view", "path": "/memories/notes.md", "view_range": [2, 3]},
    {"command": "view", "path": "/memories/notes.md", "view_range": [3, -1]},
    {"command": "str_replace", "path": "/memories/notes.md", "old_str": "two", "new_str": "2\n3"},
    {"command": "str_replace", "path": "/memories/notes.md", "old_str": "one", "new_str": "1"},
    {"command": "str_replace", "path": "/memories/notes.md", "old_str": "four", "new_str": "4"},
    {"command": "str_replace", "path": "/memories/none.md", "old_str": "four", "new_str": "4"},
    {"command": "str_replace", "path": "/memories/d", "old_str": "four", "new_str": "4"},
    {"command": "insert", "path": "/memories/notes.md", "insert_line": 0, "insert_text": "top\n"},
    {"command": "insert", "path": "/memories/notes.md", "insert_line": 99, "insert_text": "end"},
    {"command": "insert", "path": "/memories/empty.md", "insert_line": 0, "insert_text": "no longer"},
    {"command": "view", "path": "/memories/empty.md"},
    {"command": "rename", "old_path": "/memories/d", "new_path": "/memories/moved/d"},
    {"command": "rename", "old_path": "/memories/none.md", "new_path": "/memories/x.md"},
    {"command": "rename", "old_path": "/memories/notes.md", "new_path": "/memories/empty.md"},
    {"command": "rename", "old_path": "/memories", "new_path": "/memories/x"},
    {"command": "view", "path": "/memories"},
    {"command": "delete", "path": "/memories/moved"},
    {"command": "delete", "path": "/memories/moved"},
    {"command": "delete", "path": "/memories"},
    {"command": "view", "path": "/memories/notes.md"},
    {"command": "view", "path": "/memories/../etc/passwd"},
    {"command": "create", "path": "/memories/../../x", "file_text": "out"},
    {"command": "delete", "path": "/etc/passwd"},
]


def as_theirs(path, tmp_path):
    theirs = LocalTool(tmp_path)
    return [said(theirs, **step) for step in path]


def test_every_backend_gives_the_same_answers(backend, tmp_path):
    ours = MemoryTool(backend)
    for step, expected in zip(STEPS, as_theirs(STEPS, tmp_path / "theirs"), strict=True):
        assert said(ours, **step) == expected, step


def test_async(tmp_path):
    async def main():
        ours = AsyncMemoryTool(InMemoryBackend())
        for step, expected in zip(STEPS, as_theirs(STEPS, tmp_path), strict=True):
            try:
                assert await ours.call(step) == expected, step
            except ToolError as error:
                assert f"error: {error}" == expected, step
        assert await ours.clear_all_memory() == "All memory cleared"
        assert (await ours.call({"command": "view", "path": "/memories"})).count("\n") == 1

    for library in ("asyncio", "trio"):
        shutil.rmtree(tmp_path / "memories", ignore_errors=True)
        anyio.run(main, backend=library)


@pytest.mark.parametrize("backend", ["dir", "store"], indirect=True)
def test_changes_at_the_same_time_are_all_kept(backend):
    tool, count = MemoryTool(backend), 50
    lines = "\n".join(f"line {number:02}: old" for number in range(count))
    said(tool, command="create", path="/memories/shared.md", file_text=lines)
    said(tool, command="create", path="/memories/log.md", file_text="")

    def change(number):
        line = f"line {number:02}: "
        shared = {"path": "/memories/shared.md", "old_str": f"{line}old", "new_str": f"{line}new"}
        log = {"path": "/memories/log.md", "insert_line": 0, "insert_text": f"{number} done"}
        assert not said(tool, command="str_replace", **shared).startswith("error")
        assert not said(tool, command="insert", **log).startswith("error")

    together(*(partial(change, number) for number in range(count)))
    shown = said(tool, command="view", path="/memories/shared.md")
    assert "old" not in shown and shown.count("new") == count
    log = said(tool, command="view", path="/memories/log.md")
    assert all(f"\t{number} done" in log for number in range(count))


def test_a_directory_of_the_backend_is_the_memory():
    backend = InMemoryBackend()
    tool = MemoryTool(backend, root="/agents/planner")
    assert said(tool, command="create", path="/memories/a.md", file_text="x") == (
        "File created successfully at: /memories/a.md"
    )
    assert backend.download_files(["/agents/planner/a.md"])[0].content == b"x"
    assert "/memories/a.md" in said(tool, command="view", path="/memories")
    assert said(tool, command="view", path="/memories/../planner/a.md").startswith("error: Path")
    assert said(tool, command="view", path="/memoriesX").startswith("error: Path must start with /memories")


@pytest.mark.parametrize("backend", ["memory"], indirect=True)
def test_a_file_with_mixed_line_ends_keeps_them(backend):
    path = "/memories/mixed.md"
    backend.upload_files([(path, b"one\r\ntwo\nthree\x0cthree\r\n")])
    tool = MemoryTool(backend)
    assert "\r" not in said(tool, command="view", path=path)
    answer = said(tool, command="str_replace", path=path, old_str="one\ntwo", new_str="1\n2\n2b")
    assert answer.endswith("     1\t1\n     2\t2\n     3\t2b")
    assert "     4\tthree\x0cthree\n     5\t" in said(tool, command="view", path=path)
    assert backend.download_files([path])[0].content == b"1\r\n2\n2b\nthree\x0cthree\r\n"
    said(tool, command="insert", path=path, insert_line=1, insert_text="new")
    assert backend.download_files([path])[0].content == b"1\r\nnew\r\n2\n2b\nthree\x0cthree\r\n"


def test_what_is_no_text_is_refused():
    backend = InMemoryBackend()
    backend.upload_files([("/memories/bin", b"\xff\xfe")])
    for command in ({"command": "view"}, {"command": "str_replace", "old_str": "a", "new_str": "b"}):
        assert said(MemoryTool(backend), path="/memories/bin", **command) == (
            "error: path '/memories/bin' is not valid utf-8"
        )


def test_a_backend_that_refuses_is_told():
    backend = InMemoryBackend()
    backend.edit = lambda *arguments, **options: EditResult(error="Error: no space")
    tool = MemoryTool(backend)
    said(tool, command="create", path="/memories/a.md", file_text="x")
    assert (
        said(tool, command="str_replace", path="/memories/a.md", old_str="x", new_str="y") == "error: Error: no space"
    )


def test_a_runner_of_the_package_calls_it():
    """A model from a script: the real client, runner and messages, and a transport that answers in its place."""
    replies = [
        {"type": "tool_use", "id": "t1", "name": "memory", "input": STEPS[2]},
        {"type": "tool_use", "id": "t2", "name": "memory", "input": {"command": "view", "path": "/memories/../x"}},
        {"type": "text", "text": "noted"},
    ]
    asked = []

    def answer(request):
        asked.append(json.loads(request.content))
        block = replies[len(asked) - 1]
        reason = "tool_use" if block["type"] == "tool_use" else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block], "usage": usage}
        return httpx2.Response(200, json={**message, "stop_reason": reason, "stop_sequence": None})

    backend = InMemoryBackend()
    with Anthropic(api_key="none", http_client=httpx2.Client(transport=httpx2.MockTransport(answer))) as client:
        runner = client.beta.messages.tool_runner(
            max_tokens=10, model="m", messages=[{"role": "user", "content": "note it"}], tools=[MemoryTool(backend)]
        )
        assert runner.until_done().content[0].text == "noted"
    assert asked[0]["tools"] == [{"type": "memory_20250818", "name": "memory"}]
    assert asked[1]["messages"][-1]["content"][0]["content"] == "File created successfully at: /memories/notes.md"
    refused = asked[2]["messages"][-1]["content"][0]
    assert refused["is_error"] and "escape" in str(refused["content"])
    assert backend.download_files(["/memories/notes.md"])[0].content == STEPS[2]["file_text"].encode()


def test_a_command_that_is_cancelled_returns_at_once():
    class Slow(InMemoryBackend):
        def download_files(self, paths):
            threading.Event().wait(0.5)
            return super().download_files(paths)

    async def main():
        tool = AsyncMemoryTool(Slow())
        await tool.call({"command": "create", "path": "/memories/a.md", "file_text": "x"})
        with anyio.move_on_after(0.1) as scope:
            await tool.call({"command": "view", "path": "/memories/a.md"})
        return scope.cancelled_caught

    assert anyio.run(main)
