"""A program whose agent says something several times a second: KIND (`sqlite` or `postgres`), WHERE, TURNS, PAUSE_S.

Message N of the thread `t` is `begin-N`, 20,000 letters, `end-N`; so is the file `/log.txt` at that time. The program
prints N once the checkpoint is stored.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

sys.path.insert(0, str(Path(__file__).parent))

import conversations
import graphs
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, StateGraph

LETTERS = "all work and no play\n" * 1000


class State(TypedDict):
    messages: Annotated[list[AnyMessage], graphs.add_messages]
    files: NotRequired[Annotated[dict[str, Any], graphs.merge_files]]
    turn: int


def text(turn: int) -> str:
    return f"begin-{turn:04}\n{LETTERS}end-{turn:04}"


def work(state: State) -> dict[str, Any]:
    said = text(state["turn"])
    return {"messages": [AIMessage(said)], "files": {"/log.txt": conversations.record(said)}}


def main(kind: str, where: str, turns: int, pause_s: float) -> None:
    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    with conversations.opened(kind, where) as saver:
        agent = builder.compile(checkpointer=saver)
        for turn in range(turns):
            agent.invoke({"turn": turn}, graphs.thread("t"), durability="sync")
            print(turn, flush=True)
            time.sleep(pause_s)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
