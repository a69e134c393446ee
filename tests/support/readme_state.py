"""Databases of LangGraph as README.md assumes them: `store.db`, and `checkpoints.db` with a conversation `THREAD`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agents
from langgraph.store.sqlite import SqliteStore


def model() -> Any:
    return agents.ScriptedModel(script=[agents.say("done")])


def main() -> None:
    with agents.sqlite_saver(Path("checkpoints.db")) as saver:
        script = [agents.use(agents.write("/notes.txt", "one")), agents.say("done"), agents.say("nothing new")]
        agent = agents.deep_agent(saver, script)
        agent.invoke(agents.user("hello"), agents.thread("THREAD"))
        agent.invoke(agents.user("and now?"), agents.thread("THREAD"))
    with SqliteStore.from_conn_string("store.db") as store:
        store.setup()


if __name__ == "__main__":
    main()
