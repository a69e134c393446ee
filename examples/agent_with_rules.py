"""A deepagents agent on a mount that may not see and change everything there, without an API key.

    python examples/agent_with_rules.py /tmp/agent

deepagents refuses `create_deep_agent(permissions=…)` for a backend that runs commands, as a mount does: a command would
pass its rules by. So the same list is given to the mount, as a view, and the agent gets a client that sees the mount
through it. Then the rules bind its tools and its commands, whatever symbolic links there are.
"""

from __future__ import annotations

import os
import sys

from deepagents import FilesystemPermission, create_deep_agent
from langchain_core.messages import AIMessage, ToolMessage
from scripted_agent import ScriptedModel, call

import fusebackend
from fusebackend.backends import InMemoryBackend

RULES = [
    FilesystemPermission(operations=["read", "write"], paths=["/secrets/**"], mode="deny"),
    FilesystemPermission(operations=["write"], paths=["/docs/**"], mode="deny"),
]

SCRIPT = [
    call("read_file", file_path="/docs/guide.md"),
    call("write_file", file_path="/docs/guide.md", content="mine\n"),
    call("read_file", file_path="/secrets/key"),
    call("read_file", file_path="/shortcut/key"),
    call("execute", command="cat /secrets/key /shortcut/key || echo refused > /report.md"),
    call("write_file", file_path="/report.md", content="I have read the guide.\n"),
    AIMessage("The guide is read, and nothing else."),
]


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: agent_with_rules.py MOUNTPOINT")
    (mountpoint,) = arguments
    os.makedirs(mountpoint, exist_ok=True)
    with fusebackend.mount(InMemoryBackend(), mountpoint, views={"agent": RULES}) as owner:
        owner.upload_files([("/secrets/key", b"the key\n"), ("/docs/guide.md", b"Be kind.\n")])
        os.symlink("secrets", os.path.join(mountpoint, "shortcut"))
        with fusebackend.connect(mountpoint, view="agent") as files:
            agent = create_deep_agent(ScriptedModel(script=list(SCRIPT)), backend=files)
            state = agent.invoke({"messages": [("user", "read the guide")]})
        for message in state["messages"]:
            if isinstance(message, ToolMessage):
                print(f"{message.name}: {message.text}")
        print(state["messages"][-1].text)
        with open(os.path.join(mountpoint, "report.md")) as report:
            print(f"report.md: {report.read()!r}")


if __name__ == "__main__":
    main(sys.argv[1:])
