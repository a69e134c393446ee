"""A deepagents agent on a mount, without an API key: its model reads from a script.

    pip install -e '.[deepagents,langgraph]'
    python examples/scripted_agent.py /tmp/agent

It makes the mount point, mounts, lets the agent write a file and run a command, and prints what the mount shows. Put a
real model in the place of `ScriptedModel` and it is an agent.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import fusebackend
from fusebackend.backends import CompositeBackend, InMemoryBackend
from fusebackend.integrations.deepagents import export


class ScriptedModel(BaseChatModel):
    """Answers with the messages of `script`, one after the other."""

    script: list[AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        message = self.script.pop(0).model_copy(update={"response_metadata": {"model_name": "scripted"}})
        return ChatResult(generations=[ChatGeneration(message=message)])


def call(tool: str, content: str | list[str | dict[str, Any]] = "", /, **arguments: Any) -> AIMessage:
    """The message of a model that calls a tool, and perhaps says or thinks something before it."""
    return AIMessage(content, tool_calls=[{"name": tool, "args": arguments, "id": f"call-{next(_call_ids)}"}])


_call_ids = itertools.count(1)

SCRIPT = [
    call("write_file", file_path="/memories/plan.md", content="monday: TODO\ntuesday: done\n"),
    call("execute", command="grep -c TODO /memories/plan.md | tee /open.txt"),
    AIMessage("The plan is written."),
]


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: scripted_agent.py MOUNTPOINT")
    (mountpoint,) = arguments
    os.makedirs(mountpoint, exist_ok=True)
    backend = CompositeBackend(InMemoryBackend(), {"/memories/": InMemoryBackend()})
    with fusebackend.mount(backend, mountpoint) as files:
        agent = create_deep_agent(ScriptedModel(script=list(SCRIPT)), backend=export(files))
        state = agent.invoke({"messages": [("user", "plan the week")]})
        print(state["messages"][-1].text)
        for name in ("memories/plan.md", "open.txt"):
            with open(os.path.join(mountpoint, name)) as file:
                print(f"{mountpoint}/{name}: {file.read()!r}")


if __name__ == "__main__":
    main(sys.argv[1:])
