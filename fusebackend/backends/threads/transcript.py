"""`messages.jsonl` and `state.json`: a thread's conversation and the rest of its state, for people and their tools.

`messages.jsonl` has one message a line, an object with `type` (human, ai, tool, system …), `content`, `id` and whatever
else the message carries. `state.json` says which checkpoint is the newest, what is to run next, what a human is asked,
and the values of all channels but `files`, `messages` and those that only steer the graph. What can't be read is an
object with the key `error` in its place; a `warning` says that older checkpoints were taken out of the database, which
LangGraph passes over in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fusebackend.backends.threads.database.activity import INTERRUPT
from fusebackend.backends.threads.database.decode import loads, readable
from fusebackend.backends.threads.database.rows import Damaged, Raw
from fusebackend.backends.threads.lineage import Lineage, Newest
from fusebackend.remote.keys import arrange

_SHOWN_ELSEWHERE: Final = ("files", "messages")
_STEERING: Final = ("branch:", "join:", "start:", "__")


def messages_jsonl(lineage: Lineage) -> bytes:
    """The conversation as it is now."""
    try:
        lines = [_line(message) for message in lineage.messages_now()]
    except Damaged as error:
        lines = [_line({"error": str(error)})]
    return "".join(lines).encode("utf-8", "surrogateescape")


def state_json(lineage: Lineage) -> bytes:
    """The rest of the state as it is now."""
    try:
        newest = lineage.newest()
        state = _state(lineage, newest) if newest is not None else {}
    except Damaged as error:
        state = {"thread_id": lineage.place.thread, "checkpoint_ns": lineage.place.namespace, "error": str(error)}
    return (json.dumps(state, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "surrogateescape")


def _line(message: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in message.items() if key == "content" or value not in (None, {}, [])}
    return json.dumps(readable(shown), ensure_ascii=False) + "\n"


def _state(lineage: Lineage, newest: Newest) -> dict[str, Any]:
    saved = newest.saved
    state: dict[str, Any] = {
        "thread_id": lineage.place.thread,
        "checkpoint_ns": lineage.place.namespace,
        "checkpoint_id": saved.id,
        "parent_checkpoint_id": saved.parent,
        "created_at": saved.ts,
        "metadata": readable(saved.metadata),
        "next": list(newest.standing.next),
        "interrupts": _interrupts(newest),
        "values": {channel: _shown(value) for channel, value in sorted(saved.values.items()) if _is_state(channel)},
        "pending": [
            {"task_id": write.task, "channel": write.channel, "value": _loaded(write.value)}
            for write in newest.writes
            if _is_state(write.channel)
        ],
    }
    keys = _escaped_keys(lineage)
    if keys:
        state["file_keys"] = keys
    if lineage.missing is not None:
        state["warning"] = f"Checkpoint {lineage.missing} is gone: what was written up to it may be missing from files"
    return state


def _interrupts(newest: Newest) -> list[Any]:
    found: list[Any] = []
    for write in newest.standing.interrupts:
        assert write.channel == INTERRUPT, f"{write.channel} is no interrupt"
        values = _loaded(write.value)
        found += values if isinstance(values, list) else [values]
    return found


def _is_state(channel: str) -> bool:
    return channel not in _SHOWN_ELSEWHERE and not channel.startswith(_STEERING)


def _loaded(raw: Raw) -> Any:
    try:
        return readable(loads(raw))
    except Damaged as error:
        return {"error": str(error)}


def _shown(value: Any) -> Any:
    try:
        return readable(value)
    except Damaged as error:
        return {"error": str(error)}


def _escaped_keys(lineage: Lineage) -> dict[str, str]:
    """Where files are whose path in `head` is not their key: path → key."""
    try:
        places = arrange(lineage.files_now())
    except Damaged:
        return {}
    found = {}
    for names, key in places.items():
        path = "/" + b"/".join(names).decode("utf-8", "surrogateescape")
        if path != key:
            found[path] = key
    return found
