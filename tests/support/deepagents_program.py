"""An agent of deepagents works on backends of ours given as they are, on a mount, on a client of it and on an exported
one, and under permissions (`permitted.py`). `test_deepagents_versions.py` compares what the tools said, with each
version of deepagents.

    python deepagents_program.py DIRECTORY

prints it as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import permitted
from graphs import call, deep_agent, edit, say, use, user, write
from langgraph.store.memory import InMemoryStore

import fusebackend
from fusebackend.backends import (
    CompositeBackend,
    InMemoryBackend,
    LocalShellBackend,
    SqliteBackend,
    StateBackend,
    StoreBackend,
)
from fusebackend.integrations.deepagents import export


def script(executes: bool) -> list[Any]:
    calls = [
        write("/a.md", "one\ntwo\n"),
        write("/m/b.md", "three\n"),
        edit("/a.md", "two", "zwei"),
        call("read_file", file_path="/a.md"),
        call("ls", path="/"),
        call("glob", pattern="*.md"),
        call("grep", pattern="zwei"),
        *([call("execute", command="cat a.md", timeout=10)] if executes else []),
        call("delete", file_path="/a.md"),
        call("read_file", file_path="/a.md"),
    ]
    return [*map(use, calls), say("done")]


def work(backend: Any, executes: bool = False, awaited: bool = False) -> dict[str, Any]:
    agent = deep_agent(None, script(executes), backend=backend)
    state = asyncio.run(agent.ainvoke(user("go"))) if awaited else agent.invoke(user("go"))
    said = [(message.name, message.content) for message in state["messages"] if message.type == "tool"]
    return {"said": said, "files": sorted(state.get("files") or {}), "executes": executes}


def answers_in(directory: Path) -> dict[str, Any]:
    """Let agents work in a directory; return by kind of backend what their tools said."""
    answers: dict[str, Any] = {"version": version("deepagents"), "from": sys.modules["deepagents"].__file__}
    (directory / "permitted").mkdir()
    answers["permitted"] = list(permitted.outcomes(directory / "permitted"))
    with SqliteBackend(directory / "files.db") as volume:
        answers["sqlite"] = work(volume)
    answers["state"] = work(StateBackend())
    answers["store"] = work(StoreBackend(store=InMemoryStore(), namespace=lambda _: ("files",)))
    for kind, kept in ("classes", InMemoryBackend()), ("classes, awaited", InMemoryBackend()):
        composite = CompositeBackend(StateBackend, {"/m/": lambda _, kept=kept: kept})
        answers[kind] = work(composite, awaited="awaited" in kind)
    answers["exported"] = work(export(InMemoryBackend()))
    (directory / "shell").mkdir()
    with LocalShellBackend(directory / "shell", env={"PATH": "/usr/bin:/bin"}) as shell:
        answers["composite"] = work(CompositeBackend(shell, {"/m/": InMemoryBackend()}), executes=True)
    mountpoint = directory / "mount"
    mountpoint.mkdir()
    with fusebackend.mount(CompositeBackend(InMemoryBackend(), {"/m/": InMemoryBackend()}), mountpoint) as mount:
        answers["mount"] = work(mount, executes=True)
        mount.delete("/m/b.md")
        with fusebackend.connect(mountpoint) as client:
            answers["client, awaited"] = work(client, executes=True, awaited=True)
    exported = export(InMemoryBackend())
    exported.write("/d/x.md", "x")
    found = exported.glob("**/*.md")
    answers["glob"] = [info["path"] for info in found.matches or ()]
    return answers


if __name__ == "__main__":
    print(json.dumps(answers_in(Path(sys.argv[1]))))
