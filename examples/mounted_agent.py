"""A deepagents agent whose files are a directory, while it runs and while it does not.

    pip install -e '.[deepagents,langgraph]' langchain-anthropic
    mkdir -p ~/agent /mnt/agent
    python examples/mounted_agent.py /mnt/agent ~/agent anthropic:claude-sonnet-4-5

Each line that is typed is a conversation of its own. Meanwhile, in another terminal:

    cat /mnt/agent/report.md                                    what the agent has written
    sed -i 's/French/German/' /mnt/agent/memories/AGENTS.md     what it will remember in the next conversation
    git -C /mnt/agent init                                      any program works here

Its files are in three places: `files.db` for what is under `/` (one SQLite file), `store.db` for `/memories/` (a
LangGraph store, which other programs of LangGraph read as well), and the conversation's own state for `/draft/`. That
is in `threads.db`, which can be mounted by itself, by another process and later:

    fusebackend mount /mnt/threads --default threads+sqlite:$HOME/agent/threads.db
    ls /mnt/threads/*/history
"""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

import fusebackend
from fusebackend.backends import CompositeBackend, SqliteBackend, StateBackend, StoreBackend
from fusebackend.integrations.deepagents import export

MEMORY = "/memories/AGENTS.md"


@contextlib.contextmanager
def mounted_files(mountpoint: Path, directory: Path) -> Iterator[fusebackend.Mount]:
    """Long-term memory in a store, everything else in SQLite, and both on the mount point."""
    with (
        SqliteBackend(directory / "files.db") as files,
        SqliteStore.from_conn_string(str(directory / "store.db")) as store,
    ):
        store.setup()
        memories = StoreBackend(store, namespace=("memories",))
        memories.write("/AGENTS.md", "# What to remember\n")  # refused, and rightly, when it is there
        with fusebackend.mount(CompositeBackend(files, {"/memories/": memories}), mountpoint) as mount:
            yield mount


@contextlib.contextmanager
def saved_threads(directory: Path) -> Iterator[SqliteSaver]:
    connection = sqlite3.connect(directory / "threads.db", check_same_thread=False)
    with contextlib.closing(connection):
        yield SqliteSaver(connection)


def make_agent(model: Any, mount: fusebackend.Mount, saver: SqliteSaver) -> Any:
    """An agent that works on the mount, and can run commands there; its drafts stay in the conversation."""
    backend = CompositeBackend(mount, {"/draft/": StateBackend()})
    return create_deep_agent(model, backend=export(backend), memory=[MEMORY], checkpointer=saver)


def converse(agent: Any, questions: Iterable[str]) -> None:
    started = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    for number, question in enumerate(questions, start=1):
        thread_id = f"{started}-{number}"
        config = {"configurable": {"thread_id": thread_id}}
        state = agent.invoke({"messages": [("user", question.strip())]}, config)
        print(f"[{thread_id}] {state['messages'][-1].text}", flush=True)


def main(arguments: list[str]) -> None:
    if len(arguments) != 3:
        sys.exit("usage: mounted_agent.py MOUNTPOINT DIRECTORY MODEL")
    mountpoint, directory, model = arguments
    with mounted_files(Path(mountpoint), Path(directory)) as mount, saved_threads(Path(directory)) as saver:
        print(f"mounted on {mountpoint}", flush=True)
        converse(make_agent(model, mount, saver), sys.stdin)


if __name__ == "__main__":
    main(sys.argv[1:])
