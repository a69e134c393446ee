"""An agent of OpenAI's Agents SDK on a mount, without an API key: the answers of the model come from a script.

    pip install -e '.[openai]'
    fusebackend mount /mnt/agent
    python examples/openai_agent.py /mnt/agent
    cat /mnt/agent/plan.md

It is the SDK's own runner and its own tools. Leave `model` out, and it is OpenAI's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from agents import Agent, Runner, set_tracing_disabled
from agents.testing import ScriptedModel
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseFunctionShellToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
)

import fusebackend
from fusebackend.integrations.openai_agents import file_tools, patch_tool, shell_tool


def patch(number: int, kind: str, diff: str) -> list[Any]:
    operation = {"type": kind, "path": "plan.md", "diff": diff}
    known = {"id": f"{number}", "call_id": f"call-{number}", "type": "apply_patch_call", "status": "completed"}
    return [ResponseApplyPatchToolCall.model_validate(known | {"operation": operation})]


def shell(number: int, command: str) -> list[Any]:
    known = {"id": f"{number}", "call_id": f"call-{number}", "type": "shell_call", "status": "completed"}
    return [ResponseFunctionShellToolCall.model_validate(known | {"action": {"commands": [command]}})]


def read(number: int, path: str) -> list[Any]:
    arguments = json.dumps({"path": path})
    return [ResponseFunctionToolCall(type="function_call", name="read", call_id=f"call-{number}", arguments=arguments)]


def say(words: str) -> list[Any]:
    text = {"type": "output_text", "text": words, "annotations": []}
    known = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
    return [ResponseOutputMessage.model_validate(known | {"content": [text]})]


SCRIPT = [
    patch(1, "create_file", "+monday: write\n+tuesday: test\n+"),
    patch(2, "update_file", "@@\n monday: write\n-tuesday: test\n+tuesday: rest\n"),
    shell(3, "wc -l plan.md"),
    read(4, "plan.md"),
    say("The plan is written."),
]
"""What the model does, turn by turn."""


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: openai_agent.py MOUNTPOINT")
    set_tracing_disabled(True)
    with fusebackend.connect(arguments[0]) as files:
        tools = [patch_tool(files, agent="planner"), shell_tool(files, agent="planner"), *file_tools(files)]
        result = Runner.run_sync(Agent("planner", model=ScriptedModel(SCRIPT), tools=tools), "Plan the week.")
        for item in result.new_items:
            if item.type == "tool_call_output_item":
                print(item.output)
        print(result.final_output)


if __name__ == "__main__":
    main(sys.argv[1:])
