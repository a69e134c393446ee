"""The doors of a mount: whatever a verb does through one of them it does through all, or is refused by one sentence.

Each verb of the table is called with the same arguments on servers with the same files: on the mount itself, by a
client, and by both through a view; where there is a tool for it, by an MCP client as well. An argument is chosen by the
name of its parameter: a new verb needs no line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from controlled import ClientOf, serving
from live import live
from over_mcp import Says, tools_of

from fusebackend.backends import InMemoryBackend
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.control.verbs import VERBS
from fusebackend.integrations.tools import TOOLS
from fusebackend.protocol import SERVED, Declared, MountProtocol
from fusebackend.server.in_process import Mount
from fusebackend.server.mounted import MountedBackend
from fusebackend.testing.each import each

ARGUMENTS: dict[str, Any] = {
    "after": 0, "agent": "planner", "call": "c1", "command": "true", "content": "text\n", "destination": "/d/moved",
    "directory": None, "file_path": "/d/new", "files": [("/d/up", b"1"), ("bad", b"")], "form": "names", "id": "call-1",
    "name": "work", "new_string": "new", "number": 1, "offset": 0, "old_string": "text", "operation": "write",
    "path": "/d", "paths": ["/d/file"], "pattern": "one", "pid": None, "pieces": [b"more"], "ref": None, "size": 3,
    "source": "/d/up", "title": "a call", "view": "agent", "wanted": ["/d/../d/file", "/none"],
}  # fmt: skip
OF_ONE: dict[str, dict[str, Any]] = {
    "append": {"path": "/d/file"},
    "blame": {"path": "/d/file"},
    "diff": {"paths": []},
    "glob": {"pattern": "**/file"},
    "make_directory": {"path": "/made"},
    "move": {"source": "/d/up"},
    "read_range": {"path": "/d/file"},
    "remove_directory": {"path": "/made"},
    "restore": {"ref": "work"},
    "undo": {"calls": ["c1"]},
    "view_socket": {"name": "none"},
}
OF_ALL = "a view has no '{}': it is about what all readers have"


@contextlib.contextmanager
def server(directory: Path) -> Iterator[Any]:
    directory.mkdir()
    with live(directory, SqliteBackend(directory / "files.db"), views={"agent": []}) as made, made.connect() as files:
        files.upload_files([("/d/file", b"one\ntwo\n")])
        yield made


def arguments(verb: Declared) -> tuple[inspect.BoundArguments, list[str]]:
    """Return those that a verb is called with, and apart those of its `*names`."""
    given, listed = verb.signature.bind_partial(), []
    for known in verb.sent:
        value = OF_ONE.get(verb.name, {}).get(known.name, ARGUMENTS.get(known.name, known.default))
        if known.kind is known.VAR_POSITIONAL:
            listed = OF_ONE.get(verb.name, {}).get(known.name, ["work"])
        elif value is not inspect.Parameter.empty:
            given.arguments[known.name] = value
    return given, listed


def call(door: Any, verb: Declared, prefix: str = "") -> Any:
    """Return what a verb answers, or raises, without what differs from one server to the next."""
    given, listed = arguments(verb)
    work = partial(getattr(door, prefix + verb.name), *given.args, *listed, **given.kwargs)
    try:
        return plain(anyio.run(work, backend="trio") if prefix else work())
    except (OSError, ValueError, NotImplementedError) as error:
        kind = OSError if isinstance(error, OSError) else ValueError if isinstance(error, ValueError) else type(error)
        return kind, getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)


TOOL_OF = {tool.verb.name: tool for tool in TOOLS.values()}
"""By the name of the verb. What has none is called by a client: so what tools have changed is seen in its answers."""

OF_TOOL: dict[str, dict[str, Any]] = {"undo": {"calls": []}}
"""Each call of a tool is one of the log. Elsewhere here all that was changed before is `c1`, which nothing follows."""


def by_tool(says: Says, verb: Declared) -> tuple[bool, str]:
    """Return whether the tool of a verb fails, and its text."""
    given, listed = arguments(verb)
    asked = {"path" if name == "file_path" else name: value for name, value in given.arguments.items()}
    asked |= {"name": listed[0], "calls": listed} if listed else {}
    asked |= OF_TOOL.get(verb.name, {})
    tool = TOOL_OF[verb.name]
    known = tool.schema["properties"]
    return says(tool.name, {name: value for name, value in asked.items() if name in known and value is not None})


def refusal(answer: Any) -> str | None:
    """The words with which a verb was refused; None if it was not."""
    if isinstance(answer, tuple):
        return str(answer[2])
    return answer["error"] if isinstance(answer, dict) and "error" in answer else None


def plain(answer: Any) -> Any:
    """Return an answer without times, versions, sizes on disk and actors."""
    if dataclasses.is_dataclass(answer):
        known = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
        answer = {"": type(answer).__name__} | known
    if isinstance(answer, dict):
        differs = ("_at", "_ns", "_bytes", "actor", "version")
        return {name: plain(value) for name, value in answer.items() if not name.endswith(differs)}
    if isinstance(answer, (list, tuple)):
        return [plain(value) for value in answer]
    return answer


DIFFERENT = ("df", "metrics", "status", "prune", "forget", "execute")
"""Verbs whose answers name places and sizes: that they are records of the same type is enough."""


def test_every_verb_does_the_same_through_every_door(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        made = {name: stack.enter_context(server(tmp_path / name)) for name in "0123456"}
        mount, seen = made["0"].mount.face, made["1"].mount.face.viewed("agent")
        socket, awaited = (stack.enter_context(made[name].connect()) for name in ("2", "3"))
        view = stack.enter_context(made["4"].connect(view="agent"))
        client, client_in_view = (
            stack.enter_context(made["5"].connect()),
            stack.enter_context(made["6"].connect(view="agent")),
        )
        tools, tools_in_view = stack.enter_context(tools_of(client)), stack.enter_context(tools_of(client_in_view))
        for case in each({verb.name: verb for verb in SERVED.values()}):
            with case as verb:
                there = call(mount, verb)
                assert_same(verb, call(socket, verb), there)
                assert_same(verb, call(awaited, verb, "a"), there)
                inside = call(seen, verb)
                assert_same(verb, call(view, verb), inside)
                assert_same_by_tool(verb, tools, client, there)
                assert_same_by_tool(verb, tools_in_view, client_in_view, inside)
                if not verb.in_view:
                    assert inside == (OSError, errno.EPERM, OF_ALL.format(verb.name)) == call(seen, verb, "a")


def assert_same(verb: Declared, found: Any, there: Any) -> None:
    assert found == there or (verb.name in DIFFERENT and type(found) is type(there)), f"{found} instead of {there}"


def assert_same_by_tool(verb: Declared, says: Says, client: Any, there: Any) -> None:
    if verb.name not in TOOL_OF or there == (OSError, errno.EPERM, OF_ALL.format(verb.name)):
        assert_same(verb, call(client, verb), there)
        return
    failed, said = by_tool(says, verb)
    why = refusal(there)
    assert (failed, why or "") == (why is not None, why or ""), said
    assert (why or "") in said


def test_a_read_only_server_refuses_every_change() -> None:
    with InMemoryBackend() as files, serving(files, read_only=True) as served, ClientOf(served) as client:
        for case in each({verb.name: verb for verb in SERVED.values() if verb.changes}):
            with case as verb:
                assert "this mount is read-only" in str(call(client, verb))


def test_an_error_names_the_same_path_through_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EIO, "it can't be read", "/a/file \udcff")

    monkeypatch.setattr(MountedBackend, "branches", refused)
    with (
        InMemoryBackend() as files,
        serving(files) as served,
        ClientOf(served) as client,
        pytest.raises(OSError) as error,
    ):
        client.branches()
    found = error.value
    assert (found.errno, found.strerror, found.filename) == (errno.EIO, "it can't be read", "/a/file \udcff")


def test_a_mount_without_parts_says_so_in_one_sentence() -> None:
    with InMemoryBackend() as files, serving(files) as served, ClientOf(served) as client:
        words = {
            "this mount keeps no history": "log changes verify_log blame undo begin_call end_call",
            "no route of this mount keeps snapshots": "create_snapshot delete_snapshots",
            "has no branches": "create_branch take_in_branch delete_branches merge_branch restore",
        }
        for case in each({name: (SERVED[name], why) for why, names in words.items() for name in names.split()}):
            with case as (verb, why):
                kind, number, said = call(client, verb)
                assert (kind, number, why in said) == (OSError, errno.ENOTSUP, True)
        assert client.snapshots() == client.branches() == []


def test_every_verb_is_implemented_with_the_parameters_of_its_declaration() -> None:
    assert set(SERVED) < set(VERBS)
    for name, verb in SERVED.items():
        assert getattr(Mount, name) is getattr(MountedBackend, name)
        assert getattr(MountedBackend, name) is not getattr(MountProtocol, name), f"{name} is not implemented"
        own = inspect.signature(getattr(MountedBackend, name)).parameters.values()
        known = inspect.signature(verb.method).parameters.values()
        assert [(each.name, each.default) for each in own] == [(each.name, each.default) for each in known], name
