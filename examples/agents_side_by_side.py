"""Three subagents of a deepagents agent work at the same time, each in a branch of its own; one of them fails.

    pip install -e '.[deepagents,langgraph]'
    python examples/agents_side_by_side.py /tmp/agent

Each sees the files as they were when it began, changes them with its own tools and commands, and is merged when it is
done. What the failed one did is in its branch, and nowhere else. No API key: the models read from scripts.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from deepagents import CompiledSubAgent, create_deep_agent
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from scripted_agent import ScriptedModel, call

import fusebackend
from fusebackend.backends import SqliteBackend

SCRIPTS = {
    "writer": [
        call("edit_file", file_path="/plan.md", old_string="title", new_string="The plan"),
        AIMessage("The title is written."),
    ],
    "tester": [
        call("execute", command="grep -c TODO /plan.md > /open.txt"),
        AIMessage("The open points are counted."),
    ],
    "cleaner": [
        call("execute", command="rm /plan.md"),
        AIMessage("never said"),
    ],
}


class Failing(ScriptedModel):
    """A model whose server goes away after its first answer."""

    def _generate(self, *args: Any, **options: Any) -> Any:
        if self.script[0].text == "never said":
            raise ConnectionError("the model is gone")
        return super()._generate(*args, **options)


def in_a_branch(files: fusebackend.Mount, name: str) -> CompiledSubAgent:
    """A subagent that works in a branch for each of its tasks."""

    def work(state: dict[str, Any]) -> dict[str, Any]:
        try:
            with files.branch(name) as own:
                agent = create_deep_agent(Failing(script=list(SCRIPTS[name])), backend=own)
                said = agent.invoke({"messages": state["messages"]})["messages"][-1].text
        except ConnectionError as error:
            said = f"{error}; {error.__notes__[-1]}"
        return {"messages": [AIMessage(f"{name}: {said}")]}

    return CompiledSubAgent(name=name, description=f"Works as {name}.", runnable=RunnableLambda(work))


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: agents_side_by_side.py MOUNTPOINT")
    (mountpoint,) = arguments
    os.makedirs(mountpoint, exist_ok=True)
    with fusebackend.mount(SqliteBackend(f"{mountpoint}.db"), mountpoint, history="on") as files:
        files.upload_files([("/plan.md", b"title\n- TODO write\n- TODO test\n")])
        tasks = [call("task", description="your part", subagent_type=name).tool_calls[0] for name in SCRIPTS]
        lead = ScriptedModel(script=[AIMessage("", tool_calls=tasks), AIMessage("Two are done.")])
        agent = create_deep_agent(lead, backend=files, subagents=[in_a_branch(files, name) for name in SCRIPTS])
        state = agent.invoke({"messages": [("user", "finish the plan")]})
        for message in state["messages"]:
            if message.type == "tool":
                print(message.text)
        for name in ("plan.md", "open.txt"):
            with open(os.path.join(mountpoint, name)) as file:
                print(f"{name}: {file.read()!r}")
        print("branches:", *(branch.name for branch in files.branches()))


if __name__ == "__main__":
    main(sys.argv[1:])
