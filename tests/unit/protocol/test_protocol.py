"""The agent face: its defaults, the table of verbs that makes them, and the actors of changes."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import inspect
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import trio
from for_each import for_each
from together import together

from fusebackend.backends.memory import InMemoryBackend
from fusebackend.base import errors
from fusebackend.base.errors import oserror
from fusebackend.base.paths import PathError
from fusebackend.composite.backend import CompositeBackend
from fusebackend.control.client.client import Client
from fusebackend.protocol import (
    AGENT_VERBS,
    NOBODY,
    SEED_VERBS,
    Actor,
    BackendProtocol,
    Change,
    ExecuteResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    SandboxBackendProtocol,
    Volume,
    acting,
    current_actor,
    unsupported,
    verbs,
)
from fusebackend.server.mounted import MountedBackend
from fusebackend.testing.posix.case import all_refused

MATCHES = [
    {"path": "/b.txt", "line": 1, "text": "b1"},
    {"path": "/a.txt", "line": 9, "text": "a9"},
    {"path": "/a.txt", "line": 2, "text": "a2"},
]


class Old(BackendProtocol):
    """The seeds' names only."""

    def ls_info(self, path):
        return [{"path": path}]

    def grep_raw(self, pattern, path=None, glob=None):
        return "Error: no such thing" if pattern == "fail" else MATCHES

    def glob_info(self, pattern, path="/"):
        return [{"path": f"{path}|{pattern}"}]


class New(BackendProtocol):
    """Today's names only."""

    def ls(self, path):
        return LsResult(error="no") if path == "/none" else LsResult(entries=[{"path": path}])

    def grep(self, pattern, path=None, glob=None, *, max_count=None):
        return GrepResult(error="no") if pattern == "fail" else GrepResult(matches=[{**MATCHES[0], "path": str(path)}])

    def glob(self, pattern, path=None):
        return GlobResult(error="no") if pattern == "fail" else GlobResult(matches=[{"path": f"{path}|{pattern}"}])


class TestAliases:
    def test_new_names_of_an_old_backend(self):
        for found, expected in [
            (Old().ls("/x"), LsResult(entries=[{"path": "/x"}])),
            (Old().glob("*.py"), GlobResult(matches=[{"path": "/|*.py"}])),
            (Old().glob("*.py", "/d"), GlobResult(matches=[{"path": "/d|*.py"}])),
            (Old().grep("fail"), GrepResult(error="Error: no such thing")),
        ]:
            assert found == expected

    def test_grep_of_an_old_backend_is_sorted_and_cut(self):
        lines = [("/a.txt", 2), ("/a.txt", 9), ("/b.txt", 1)]
        for most, shown in ((None, 3), (2, 2), (3, 3)):
            found = Old().grep("x", max_count=most)
            assert [(match["path"], match["line"]) for match in found.matches] == lines[:shown]
            assert found.truncated is (shown < 3)

    def test_old_names_of_a_new_backend(self):
        for found, expected in [
            (New().ls_info("/x"), [{"path": "/x"}]),
            (New().ls_info("/none"), []),
            (New().grep_raw("x", "/d"), [{**MATCHES[0], "path": "/d"}]),
            (New().grep_raw("fail"), "no"),
            (New().glob_info("*"), [{"path": "/|*"}]),
            (New().glob_info("fail"), []),
        ]:
            assert found == expected

    @for_each("verb", AGENT_VERBS + SEED_VERBS)
    def test_what_is_not_there_says_so_and_does_not_recurse(self, verb):
        class Nothing(BackendProtocol):
            pass

        method = getattr(Nothing(), verb)
        required = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
        with pytest.raises(NotImplementedError, match="Nothing has no"):
            method(*["x" for _ in required])


class Slow(BackendProtocol):
    def __init__(self):
        self.threads = []

    def read(self, file_path, offset=0, limit=2000):
        self.threads.append(threading.get_ident())
        if file_path == "/none":
            raise LookupError(file_path)
        return ReadResult(error=f"{file_path} {offset} {limit}")


class TestTwins:
    @for_each("verb", AGENT_VERBS + SEED_VERBS)
    def test_each_verb_has_one(self, verb):
        twin = getattr(BackendProtocol, f"a{verb}")
        assert inspect.iscoroutinefunction(twin)
        assert twin.__name__ == f"a{verb}"

    @pytest.mark.parametrize("run", [lambda f: asyncio.run(f()), trio.run], ids=["asyncio", "trio"])
    def test_it_runs_in_a_thread_and_passes_arguments_and_errors(self, run):
        backend = Slow()

        async def main():
            first = await backend.aread("/f", 3, limit=4)
            with pytest.raises(LookupError):
                await backend.aread("/none")
            return first

        assert run(main).error == "/f 3 4"
        assert threading.get_ident() not in backend.threads

    def test_execute_has_one_on_sandboxes_only(self):
        class Shell(SandboxBackendProtocol):
            def execute(self, command, *, timeout=None):
                return ExecuteResponse(f"{command} {timeout}")

        assert trio.run(lambda: Shell().aexecute("ls", timeout=3)).output == "ls 3"
        assert not hasattr(BackendProtocol, "aexecute")
        with pytest.raises(NotImplementedError):
            Shell().id  # noqa: B018


class TestKernelFace:
    def test_what_a_volume_can_not_do_is_enotsup(self):
        class Bare(Volume):
            def lookup(self, parent, name): ...
            def readdir(self, node, after, limit): ...
            def getattr(self, node): ...
            def read(self, node, offset, size): ...
            def statfs(self): ...

        volume = Bare()
        all_refused(
            (errno.ENOTSUP, volume.unlink, 1, b"x"),
            (errno.ENOTSUP, volume.rename, 1, b"x", 1, b"y"),
            (errno.ENOTSUP, volume.write, 2, 0, b""),
            (errno.ENOTSUP, volume.getxattr, 2, b"user.x"),
        )
        assert volume.listxattr(1) == ()
        assert volume.subscribe(lambda change: None)() is None
        assert [unsupported(what).errno for what in ("link", "symlink", "mknod")] == [errno.EPERM] * 3


class TestErrors:
    def test_a_code_comes_back_as_its_errno(self):
        for code, number in errors.ERRNO_OF_CODE.items():
            assert errors.code_of(errors.oserror(number)) == code
            assert errors.errno_of(code) == number

    def test_what_no_table_knows(self):
        assert errors.code_of(errors.oserror(errno.ENOSPC)) == os.strerror(errno.ENOSPC)
        assert errors.code_of(OSError("words alone")) == "words alone"
        assert errors.errno_of("a string of the backend's own") == errno.EIO


def test_the_modules_of_the_agent_face_import_nothing_heavy():
    """`import fusebackend` has 0.15 s; wcmatch, anyio and the loops are imported where they are used."""
    program = (
        "import sys, fusebackend.volumes.agent_face, fusebackend.backends.memory\n"
        "print(*sorted({'wcmatch', 'anyio', 'trio', 'asyncio', 'pyfuse3', 'rich', 'pytest'} & set(sys.modules)))"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert outcome.stdout.split() == []


# -- the table of verbs ------------------------------------------------------------------------------------------------


def test_a_batch_has_codes_and_paths():
    refused = verbs.UPLOAD_FILES.refused(oserror(errno.EROFS), "/x")
    assert (refused.path, refused.error) == ("/x", "permission_denied")
    assert verbs.DOWNLOAD_FILES.refused(PathError("no"), "/x").error == "invalid_path"
    told = verbs.DOWNLOAD_FILES.refused(OSError(errno.EIO, "the engine is gone"), "/x").error
    assert told == "the engine is gone", "an errno that says nothing"


@for_each("kind", [CompositeBackend, MountedBackend, Client, InMemoryBackend])
@for_each("name", AGENT_VERBS)
def test_every_class_shows_the_parameters_of_its_verbs(kind, name):
    protocol = inspect.signature(getattr(BackendProtocol, name))
    assert inspect.signature(getattr(kind, name)).parameters == protocol.parameters
    assert list(inspect.signature(getattr(kind, f"a{name}")).parameters) == list(protocol.parameters)
    assert inspect.iscoroutinefunction(getattr(kind, f"a{name}"))


# -- actors of changes -------------------------------------------------------------------------------------------------


def test_a_block_names_the_actor_and_outside_it_is_the_default() -> None:
    assert current_actor() is NOBODY
    assert current_actor(Actor(agent="a")) == Actor(agent="a")
    with acting(Actor(agent="outer")):
        with acting(Actor(agent="inner", call="1")):
            assert current_actor(Actor(agent="default")) == Actor(agent="inner", call="1")
        assert current_actor().agent == "outer"
    assert current_actor() is NOBODY


def test_a_block_ends_with_an_error() -> None:
    with pytest.raises(KeyError), acting(Actor(agent="a")):
        raise KeyError
    assert current_actor() is NOBODY


def test_a_thread_with_a_copy_of_the_context_is_in_the_block() -> None:
    found: list[Actor] = []
    with acting(Actor(agent="a")):
        context = contextvars.copy_context()
        together(lambda: found.append(context.run(current_actor)))
    assert found == [Actor(agent="a")]


def test_a_tool_of_a_langgraph_run_is_a_call() -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    found: list[Actor] = []

    @tool
    def look(word: str) -> str:
        """Note the current actor."""
        found.extend(current_actor(Actor(agent="default", uid=7)) for _ in range(2))
        return word

    graph: Any = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([look]))
    graph.add_edge(START, "tools")
    calls = [{"name": "look", "args": {"word": word}, "id": f"call_{word}"} for word in "ab"]
    graph.compile().invoke(
        {"messages": [AIMessage("", tool_calls=calls)]},
        {"configurable": {"thread_id": "t1"}, "metadata": {"lc_agent_name": "planner"}},
    )
    assert {(each.agent, each.thread, each.uid) for each in found} == {("planner", "t1", 7)}
    assert len({each.call for each in found}) == 2  # one for each tool call, the same for all verbs in it
    assert "" not in {each.call for each in found}


def test_of_an_exchange_nobody_is_told_a_path_that_is_hidden() -> None:
    """`Change.shown`, which views and the rules of routes use: of two hidden names one was told."""
    change = Change(kind="exchanged", path="/secret/b", moved_from="/secret/a")
    assert change.shown(lambda path: False) is None
    assert change.shown(lambda path: path == "/secret/a") == Change(kind="unknown", path="/secret/a")
    assert change.shown(lambda path: True) is change
