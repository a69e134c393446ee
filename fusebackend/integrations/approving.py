"""`approving`: approvals of a view (docs/approvals.md) as LangGraph's interrupts, and the other way round.

    files, owner = fusebackend.connect("/mnt/agent", view="agent"), fusebackend.connect("/mnt/agent", view="")
    agent = create_deep_agent(model, backend=approving(files, owner), checkpointer=saver)

A verb that a view interrupts, in a node of a graph, leaves its request and raises LangGraph's `interrupt()` with it, in
the form of langchain's `HumanInTheLoopMiddleware`: `action_requests` with name, arguments and a description, which is
the change as a patch, and `review_configs`. `Command(resume={"decisions": [{"type": "approve"}]})` decides it, or
`{"type": "reject", "message": "…"}`. A request that was decided elsewhere, as by `fusebackend approval approve`, lets
the resumed graph go on, whatever it is resumed with.

A resumed node runs again from its begin. Its verbs carry the name of the node's task as their tool call, so the same
verb finds its request, and its answer if it was made: it does not happen twice. An approved file is read again.

Importing this module does not import langgraph; `approving` does.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fusebackend.base import paths
from fusebackend.base.errors import unless
from fusebackend.base.paths import PathError
from fusebackend.base.shown import name_shown, shown
from fusebackend.protocol import (
    AGENT_VERBS,
    READING,
    VERBS,
    Actor,
    ApprovalInfo,
    ExecuteResponse,
    MountProtocol,
    SandboxBackendProtocol,
    acting,
    current_actor,
)

DECISIONS = ("approve", "reject")
"""Of langchain's types of decisions, those that a request can have: what was asked is what happens."""

ASKING = frozenset(READING) | {verb.name for verb in VERBS.values() if verb.changes}
"""The verbs that a view can interrupt, besides `execute`."""

HOW = "resume with {'decisions': [{'type': 'approve'}]}, or 'reject' and a 'message', one for each action request"


def approving(files: Any, owner: MountProtocol) -> Approving:
    """Return a backend for an agent, whose interrupted verbs interrupt the graph that they are made in.

    Args:
        files: the files through a view; also `export` of them. Give this one, not the other, to `create_deep_agent`.
        owner: the mount without a view. It decides what the graph is resumed with, so who may resume the graph may
            approve.

    Raises:
        ImportError: langgraph is not installed.
    """
    try:
        import langgraph.types  # noqa: F401
    except ImportError as error:
        raise ImportError(f"approving needs langgraph: pip install 'fusebackend[langgraph]' ({error})") from error
    return Approving(files, owner)


class Approving(SandboxBackendProtocol):
    """See the module's docstring. Verbs outside of a graph are those of the backend."""

    def __init__(self, files: Any, owner: MountProtocol) -> None:
        self.files = files
        self.owner = owner

    @property
    def id(self) -> str:
        return str(self.files.id)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        ran: ExecuteResponse = self._made("execute", command, timeout=timeout)
        return ran

    def _made(self, verb: str, *args: Any, **options: Any) -> Any:
        """Make a verb; in a graph, interrupt it as long as a request of the verb is undecided."""
        call: Callable[[], Any] = lambda: getattr(self.files, verb)(*args, **options)  # noqa: E731  # made twice
        task = _task()
        if task is None:
            return call()
        with acting(replace(current_actor(Actor()), call=task)):
            named = set(_paths((args, options)))
            was_decided = any(each.state != "pending" for each in self._of(task, verb, named))
            answer = call()
            pending = [each for each in self._of(task, verb, named) if each.state == "pending"]
            if pending:
                from langgraph.types import interrupt

                self._decide(pending, interrupt(self._request(pending)))
                return call()
            if was_decided:
                _skip()  # what the graph is resumed with was for this one, and not for the next
            return answer

    def _of(self, task: str, verb: str, named: set[str]) -> list[ApprovalInfo]:
        """Return a task's requests for a verb: a task can make several. `export` may make another one of it."""
        return [
            each
            for each in self.owner.approvals()
            if each.actor.call == task
            and (each.verb == verb if verb == "execute" else each.verb != "execute" and named & set(each.paths))
        ]

    def _request(self, pending: list[ApprovalInfo]) -> dict[str, Any]:
        """Return what the graph is interrupted with. `interrupt` returns what it is resumed with."""
        return {
            "action_requests": [
                {
                    "name": each.verb,
                    "args": {"request": each.number, "paths": list(map(name_shown, each.paths)), "view": each.view},
                    "description": shown(f"{each.title}\n\n{self.owner.approval(each.number).change}", but="\t\n"),
                }
                for each in pending
            ],
            "review_configs": [
                {"action_name": name, "allowed_decisions": list(DECISIONS)}
                for name in dict.fromkeys(each.verb for each in pending)
            ],
        }

    def _decide(self, pending: list[ApprovalInfo], resumed: Any) -> None:
        decisions = resumed.get("decisions") if isinstance(resumed, dict) else None
        if not isinstance(decisions, list) or len(decisions) != len(pending):
            raise ValueError(f"{len(pending)} decisions are needed, and not {resumed!r}: {HOW}")
        types = [each.get("type") if isinstance(each, dict) else None for each in decisions]
        if not set(types) <= set(DECISIONS):
            raise ValueError(f"a decision is none of {', '.join(DECISIONS)}: {HOW}")
        for each, decision, kind in zip(pending, decisions, types, strict=True):
            # Somebody else may have decided a request a moment before: then that holds (EALREADY).
            if kind == "approve":
                unless({errno.EALREADY}, self.owner.approve, each.number)
            else:
                unless({errno.EALREADY}, self.owner.deny, each.number, decision.get("message"))


def _paths(value: Any) -> Iterator[str]:
    """Return what may be a path in the arguments of a verb, as requests have them."""
    if isinstance(value, str):
        with contextlib.suppress(PathError):
            yield paths.normalise(value)
    elif isinstance(value, dict):
        yield from _paths(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _paths(each)


def _task() -> str | None:
    """Return the name of the graph's task that runs here, the same when it is resumed; None outside of a graph, and in
    one that keeps no checkpoints, which can't be interrupted."""
    from langgraph.config import get_config

    try:
        configurable = get_config().get("configurable", {})
    except RuntimeError:
        return None
    task = configurable.get("checkpoint_ns")
    has_checkpoints = configurable.get("__pregel_checkpointer") is not None  # langgraph has no public word for it
    return str(task) if task and has_checkpoints else None


def _skip() -> None:
    """Drop what the graph was resumed with, if anything, for a request that was decided elsewhere."""
    from langgraph.errors import GraphInterrupt
    from langgraph.types import interrupt

    with contextlib.suppress(GraphInterrupt):
        interrupt(None)


def _passing(name: str) -> Callable[..., Any]:
    def verb(self: Approving, *args: Any, **options: Any) -> Any:
        if name in ASKING:
            return self._made(name, *args, **options)
        return getattr(self.files, name)(*args, **options)

    verb.__name__ = name
    return verb


for _name in (*AGENT_VERBS, "real_paths"):
    setattr(Approving, _name, _passing(_name))
