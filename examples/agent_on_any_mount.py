"""An agent on a mount that another process serves.

    fusebackend mount /mnt/agent --default sqlite:files.db --route /work/=dir:$HOME/project
    python examples/agent_on_any_mount.py /mnt/agent anthropic:claude-sonnet-4-5 'summarise /work/README.md'

The agent's verbs and commands go through the mount's control socket: nothing of it is opened in this process, and what
the agent changes is on the mount at once.
"""

from __future__ import annotations

import sys
from typing import Any

from deepagents import create_deep_agent

import fusebackend
from fusebackend.integrations.deepagents import export


def answer(model: Any, mountpoint: str, question: str) -> str:
    """What the agent says in the end."""
    with fusebackend.connect(mountpoint) as files:
        agent = create_deep_agent(model, backend=export(files))
        state = agent.invoke({"messages": [("user", question)]})
    return str(state["messages"][-1].text)


def main(arguments: list[str]) -> None:
    if len(arguments) != 3:
        sys.exit("usage: agent_on_any_mount.py MOUNTPOINT MODEL QUESTION")
    mountpoint, model, question = arguments
    print(answer(model, mountpoint, question))


if __name__ == "__main__":
    main(sys.argv[1:])
