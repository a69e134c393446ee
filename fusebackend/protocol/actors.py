"""`Actor`: who makes a change, and `acting`: who makes those of a block of code.

    with acting(Actor(agent="planner", call="toolu_01")):
        files.write("/plan.md", "monday\\n")

Inside a LangGraph or LangChain tool, the agent, the thread and the call are those of the run, unless a block names
others. The call is the id of the tool's run, as traces have it: the configuration of a run does not have the id of the
tool call.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from fusebackend.base.context import during

__all__ = ["NOBODY", "Actor", "acting", "current_actor"]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change, as far as it is known: empty strings and None where it is not.

    `agent`, `thread` and `call` are the client's own words for itself. `uid` and `pid` come from the kernel.

    Args:
        agent: the name of the agent.
        thread: its conversation, such as a LangGraph thread.
        call: the tool call.
        command: the command line, or the program of a process.
        uid: of the process.
        pid: of the process, in the server's pid namespace. None for one outside of it.
        host: of a volume that several hosts share.
    """

    agent: str = ""
    thread: str = ""
    call: str = ""
    command: str = ""
    uid: int | None = None
    pid: int | None = None
    host: str = ""

    def is_meant(self, by: str) -> bool:
        """Return True if a log by this word has its calls: agent, thread, tool call, command, or uid."""
        return by in (self.agent, self.thread, self.call, self.command, str(self.uid))

    @property
    def word(self) -> str:
        """One word for it: the agent, the thread, or the program; empty if none is known."""
        return self.agent or self.thread or self.command.split(" ", 1)[0].rpartition("/")[2]


NOBODY = Actor()
"""Nothing is known."""

_acting: ContextVar[Actor] = ContextVar("fusebackend_actor", default=NOBODY)

_CONFIG_MODULE = "langchain_core.runnables.config"


def acting(actor: Actor) -> AbstractContextManager[object]:
    """Have the verbs of this block made by `actor`. Threads and tasks that are begun in it with a copy of the context
    are in the block, too."""
    return during(_acting, actor)


def current_actor(default: Actor = NOBODY) -> Actor:
    """Return who acts: of `acting`, else of the LangChain run in this context, else `default`. What a run does not say
    is that of `default`."""
    named = _acting.get()
    if named is not NOBODY:
        return named
    return default if _CONFIG_MODULE not in sys.modules else _of_run(default)


def _of_run(default: Actor) -> Actor:
    variable = getattr(sys.modules[_CONFIG_MODULE], "var_child_runnable_config", None)
    config = variable.get() if variable is not None else None
    if not isinstance(config, dict):
        return default
    run = getattr(config.get("callbacks"), "parent_run_id", None)
    agent = (config.get("metadata") or {}).get("lc_agent_name")
    thread = (config.get("configurable") or {}).get("thread_id")
    return replace(
        default,
        agent=str(agent or default.agent),
        thread=str(thread or default.thread),
        call=str(run or default.call),
    )
