"""Databases of LangGraph as README.md assumes them: `store.db`, and `checkpoints.db` with a conversation `THREAD`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphs
from langgraph.store.sqlite import SqliteStore


def model() -> Any:
    return graphs.ScriptedModel(script=[graphs.say("done")])


def make(directory: Path) -> None:
    with graphs.sqlite_saver(directory / "checkpoints.db") as saver:
        script = [graphs.use(graphs.write("/notes.txt", "one")), graphs.say("done"), graphs.say("nothing new")]
        agent = graphs.deep_agent(saver, script)
        agent.invoke(graphs.user("hello"), graphs.thread("THREAD"))
        agent.invoke(graphs.user("and now?"), graphs.thread("THREAD"))
    with SqliteStore.from_conn_string(str(directory / "store.db")) as store:
        store.setup()
