"""A deepagents agent on a mount, without an API key: its model reads from a script.

    pip install -e '.[deepagents,langgraph]'
    python examples/scripted_agent.py /tmp/agent

It makes the mount point, mounts, lets the agent write a file and run a command, and prints what the mount shows. Put a
real model in the place of `ScriptedModel` and it is an agent.
"""

from __future__ import annotations

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

SCRIPT = [
    ("write_file", {"file_path": "/memories/plan.md", "content": "monday: TODO\ntuesday: done\n"}),
    ("execute", {"command": "grep -c TODO /memories/plan.md | tee /open.txt"}),
]


class ScriptedModel(BaseChatModel):
    """Calls the tools of `script` one after the other, then says that it is done."""

    script: list[tuple[str, dict[str, Any]]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        message = AIMessage("The plan is written.")
        if self.script:
            name, arguments = self.script.pop(0)
            message = AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{len(self.script)}"}])
        return ChatResult(generations=[ChatGeneration(message=message)])


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
