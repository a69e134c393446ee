"""An agent of OpenAI's SDK on a mount: the log knows its calls, and commands see its files."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import mounts
import pytest
from mounts import Mounted

import fusebackend
from fusebackend.protocol.actors import Actor

pytest.importorskip("agents")

from agents import Agent, Runner, set_trace_processors
from agents.testing import ScriptedModel
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseFunctionShellToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
)

from fusebackend.integrations.openai_agents import file_tools, patch_tool, shell_tool


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    set_trace_processors([])  # else a thread would send them to OpenAI
    with mounts.mounted(tmp_path_factory.mktemp("openai") / "mnt", "memory:") as server:
        yield server


NUMBERS = itertools.count()


def patch(kind: str, path: str, diff: str | None = None) -> tuple[type, dict[str, Any]]:
    operation = {"type": kind, "path": path} | ({} if diff is None else {"diff": diff})
    return ResponseApplyPatchToolCall, {"operation": operation, "type": "apply_patch_call"}


def shell(command: str) -> tuple[type, dict[str, Any]]:
    action = {"commands": [command], "timeout_ms": None, "max_output_length": None}
    return ResponseFunctionShellToolCall, {"action": action, "type": "shell_call"}


def verb(name: str, **arguments: Any) -> tuple[type, dict[str, Any]]:
    return ResponseFunctionToolCall, {"name": name, "arguments": json.dumps(arguments), "type": "function_call"}


def answers(files: fusebackend.Client, *calls: tuple[type, dict[str, Any]]) -> list[tuple[str, str]]:
    """The id of each call of a model, and the text that it is answered with."""
    names = [f"call-{next(NUMBERS)}" for _ in calls]
    script: list[Any] = [
        [kind.model_validate({"id": name, "call_id": name, "status": "completed", **said})]
        for name, (kind, said) in zip(names, calls, strict=True)
    ]
    text = {"annotations": [], "text": "done", "type": "output_text"}
    message = {"id": "m", "content": [text], "role": "assistant", "status": "completed", "type": "message"}
    model = ScriptedModel([*script, [ResponseOutputMessage.model_validate(message)]])
    tools = [patch_tool(files), shell_tool(files), *file_tools(files, "ls", "read", "grep", "write")]
    result = asyncio.run(Runner.run(Agent("planner", model=model, tools=tools), "go", max_turns=50))
    items = [item for item in result.new_items if item.type == "tool_call_output_item"]
    assert [item.raw_item["call_id"] for item in items] == names
    return list(zip(names, (str(item.output) for item in items), strict=True))


def test_the_log_has_agent_and_tool_call(mount: Mounted) -> None:
    with fusebackend.connect(mount.path, actor=Actor(agent="planner", thread="monday")) as files:
        done = answers(
            files,
            patch("create_file", "log/plan.md", "+one\n+two\n+"),
            patch("update_file", "log/plan.md", "@@\n one\n-two\n+2\n"),
            shell("cat log/plan.md; echo three >> log/plan.md; echo oops >&2"),
            verb("write", path="log/more.md", content="more"),
        )
        assert [text for _, text in done[:2]] == ["Created log/plan.md", "Updated log/plan.md"]
        assert "one\n2\n" in done[2][1] and "oops" in done[2][1]
        assert (mount.path / "log/plan.md").read_text() == "one\n2\nthree\n"
        calls = files.log(paths=["/log"])
        found = {call.actor.call: (call.actor.agent, call.actor.thread, call.changes > 0) for call in calls}
        assert found == {name: ("planner", "monday", True) for name, _ in done}
        assert [call.actor.call for call in files.log(by=done[3][0])] == [done[3][0]]
        assert files.undo(by=done[3][0]).undo
        assert sorted(path.name for path in (mount.path / "log").iterdir()) == ["plan.md"]
