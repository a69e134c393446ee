"""The run of a thread, as its newest checkpoint and the writes to it show it.

A checkpoint tells which nodes run next: those with news in one of their channels (`branch:to:NODE` and the like), and
the targets of sends (`__pregel_tasks`). Each leaves writes: its output when it is finished, `__interrupt__` when it
waits for a human, `__error__` when it has failed, which ends the run and cancels the others unless a handler takes
over. So a run is *active* while a next node has left nothing, or all are finished and the next checkpoint is missing,
or a human has answered and the node has not come back. A run that was killed looks the same, except for its age.

Invisible are: a run with `durability="exit"`, which writes nothing until it ends; a resume that names its interrupts
one by one, or a retry after a failure, until their first node is done; a run that another process began a moment ago. A
step that takes longer than the quiet time looks like a killed run, and a stop before a node (`interrupt_before`) looks
like a run until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

from fusebackend.backends.threads.database.rows import NULL_TASK, Saved, Write, time_ns_of
from fusebackend.backends.threads.database.values import Ext

INTERRUPT: Final = "__interrupt__"
RESUME: Final = "__resume__"
ERROR: Final = "__error__"
HANDLED: Final = "__error_source_node__"
PRUNED_NEXT: Final = "pruned_next"
"""In the metadata of a link: the next nodes, by which its children have their names in `history/`."""
_CONTROL: Final = frozenset({INTERRUPT, RESUME, ERROR, HANDLED, "__scheduled__"})
"""Channels with events of a task, and not its output."""

TASKS: Final = "__pregel_tasks"
_START: Final = "__start__"
_INPUT: Final = "__input__"


QUIET_S: Final = 600.0
"""After so many seconds without a sign of life a run counts as ended."""


class Standing(NamedTuple):
    """The state of a thread's run."""

    next: tuple[str, ...]
    """The next nodes. Empty: the thread waits for new input."""
    finished: frozenset[str]
    """The tasks that are done: the next checkpoint will have their output."""
    interrupts: tuple[Write, ...]
    """The writes of nodes that wait for a human."""
    running: bool
    """A next node may be running: it neither waits nor has it failed."""
    resumed: bool
    """It runs after an answer of a human, perhaps long after the checkpoint was made."""


def standing(saved: Saved, writes: Sequence[Write]) -> Standing:
    """The state of a run, from the thread's newest checkpoint and the writes to it."""
    nodes = next_nodes(saved)
    if not nodes:
        return Standing((), frozenset(), (), False, False)
    by_task: dict[str, list[Write]] = {}
    answered = max(
        (write.order for write in writes if write.task == NULL_TASK and write.channel == RESUME), default=None
    )
    no_node = (NULL_TASK, _input_task(saved.id)) if writes else ()
    for write in writes:
        if write.task not in no_node:
            by_task.setdefault(write.task, []).append(write)
    finished = frozenset(task for task, own in by_task.items() if any(write.channel not in _CONTROL for write in own))
    asked = [
        write for task, own in by_task.items() if task not in finished for write in own if write.channel == INTERRUPT
    ]
    waiting = tuple(write for write in asked if answered is None or write.order > answered)
    left = [{write.channel for write in own} for own in by_task.values()]
    failed = any(ERROR in channels and HANDLED not in channels for channels in left)
    over = failed or (bool(waiting) and len(finished | {write.task for write in waiting}) >= len(nodes))
    return Standing(nodes, finished, waiting, not over, not over and answered is not None and bool(asked))


def next_nodes(saved: Saved) -> tuple[str, ...]:
    """The nodes that run after a checkpoint, each as often as it will."""
    if isinstance(known := saved.metadata.get(PRUNED_NEXT), list):
        return tuple(map(str, known))
    sent = saved.values.get(TASKS)
    nodes = [_sent_to(item) for item in sent] if isinstance(sent, (list, tuple)) else []
    triggered = []
    for channel, value in saved.values.items():
        node = _triggers(channel, value)
        if node is not None and _is_news(saved, node, channel):
            triggered.append(node)
    return (*nodes, *sorted(set(triggered)))


def _triggers(channel: str, value: Any) -> str | None:
    """The node that a channel with this value starts."""
    kind, _, rest = channel.partition(":")
    if channel == _START:
        return _START
    if kind in ("branch", "start"):
        return rest.rpartition(":")[2] or None
    if kind == "join":
        sources, _, node = rest.rpartition(":")
        seen = value.parts()[2] if isinstance(value, Ext) and value.class_name == "builtins.set" else value
        return node if isinstance(seen, (list, tuple)) and set(seen) == set(sources.split("+")) else None
    return None


def _is_news(saved: Saved, node: str, channel: str) -> bool:
    version = saved.versions.get(channel)
    seen = saved.seen.get(node)
    last = seen.get(channel) if isinstance(seen, Mapping) else None
    if version is None or last is None:
        return version is not None
    if isinstance(version, (int, float)) and isinstance(last, (int, float)):
        return last < version
    return str(last) < str(version)  # savers pad their numbers so that they sort as texts


def _sent_to(item: Any) -> str:
    if isinstance(item, Ext) and item.class_name == "langgraph.types.Send":
        arguments = item.parts()[2]
        if isinstance(arguments, (list, tuple)) and arguments:
            return str(arguments[0])
    return "unknown"


def _input_task(checkpoint: str) -> str | None:
    """The task under which new input is stored with the checkpoint that it comes after."""
    try:
        return str(uuid5(UUID(checkpoint), _INPUT))
    except ValueError:
        return None


class RunWatch:
    """Detects whether a run of one thread is active.

    Args:
        quiet_s: after how many seconds without a sign of life it counts as ended.
        clock: seconds that only grow.
        wall_ns: the time, in nanoseconds since 1970.
    """

    def __init__(
        self,
        quiet_s: float = QUIET_S,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._quiet_s = quiet_s
        self._clock = clock
        self._wall_ns = wall_ns
        self._met: object = None
        self._met_at = float("-inf")

    def is_active(self, saved: Saved, writes: Iterable[Write], now: Standing) -> bool:
        """Whether a run with this newest checkpoint may be active."""
        met = (saved.id, *sorted(write.order for write in writes))
        if met != self._met:
            # At first only the checkpoint's age is known; an answer to an interrupt may come days later.
            if self._met is not None or now.resumed:
                self._met_at = self._clock()
            self._met = met
        if not now.running:
            return False
        made_ns = time_ns_of(saved.id, saved.ts)
        age_s = (self._wall_ns() - made_ns) / 1e9 if made_ns is not None else 0.0
        return min(age_s, self._clock() - self._met_at) < self._quiet_s
