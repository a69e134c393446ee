"""The JSON documents of a line: its conversation and its state, now and at each checkpoint.

`messages.jsonl` has one message a line, an object with `type` (human, ai, tool, system …), `content`, `id` and the
message's other fields. `state.json` has the checkpoint, the next nodes, the pending interrupts, and the values of all
channels but `files`, `messages` and those that only steer the graph; keys are sorted, so two checkpoints can be
compared by `diff`. In place of an unreadable value is an object with the key `error`; a `warning` says that older
checkpoints were deleted from the database, which LangGraph ignores silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from fusebackend.backends.threads.database.activity import INTERRUPT, Standing, standing
from fusebackend.backends.threads.database.rows import Damaged, Raw, Saved, Write
from fusebackend.backends.threads.database.values import compact, encoded, loads, pretty
from fusebackend.backends.threads.lineage import Lineage
from fusebackend.remote.keyed import ListedTree

_SHOWN_ELSEWHERE: Final = ("files", "messages")
_STEERING: Final = ("branch:", "join:", "start:", "__")


def messages_now(lineage: Lineage) -> bytes:
    """`messages.jsonl`: the current conversation."""
    return _jsonl(lineage.messages_now)


def messages_at(lineage: Lineage, checkpoint: str) -> bytes:
    """The conversation at a checkpoint."""
    return _jsonl(lambda: lineage.conversation_at(checkpoint).values())


def message_line(message: Mapping[str, Any]) -> bytes:
    """One line of `messages.jsonl`, without empty fields."""
    shown = {key: value for key, value in message.items() if key == "content" or value not in (None, {}, [])}
    return encoded(compact(shown) + "\n")


def error_line(error: Damaged) -> bytes:
    """All of `messages.jsonl` where the conversation can't be read."""
    return message_line({"error": str(error)})


def _jsonl(messages: Callable[[], Iterable[Mapping[str, Any]]]) -> bytes:
    try:
        return b"".join(map(message_line, messages()))
    except Damaged as error:
        return error_line(error)


def state_now(lineage: Lineage) -> bytes:
    """`state.json`: the rest of the current state."""
    try:
        newest = lineage.newest()
        if newest is None:
            return rendered({})
        found = state(lineage, newest.saved, newest.writes, lineage.files_now)
        found["pending"] = [
            {"task_id": write.task, "channel": write.channel, "value": _loaded(write.value)}
            for write in newest.writes
            if _is_state(write.channel)
        ]
        return rendered(found)
    except Damaged as error:
        return state_error(lineage, error)


def state_at(lineage: Lineage, checkpoint: str) -> bytes:
    """The rest of the state at a checkpoint."""
    try:
        saved, writes = lineage.moment(checkpoint)
    except Damaged as error:
        return state_error(lineage, error)
    return rendered(state(lineage, saved, writes, lambda: lineage.files_at(checkpoint)))


def rendered(state: Mapping[str, Any]) -> bytes:
    """`state.json`, of what is in it."""
    return encoded(pretty(state) + "\n")


def state_error(lineage: Lineage, error: Damaged) -> bytes:
    """All of `state.json` where a checkpoint can't be read."""
    place = lineage.place
    return rendered({"thread_id": place.thread, "checkpoint_ns": place.namespace, "error": str(error)})


def state(
    lineage: Lineage, saved: Saved, writes: Sequence[Write], files: Callable[[], Mapping[str, object]]
) -> dict[str, Any]:
    """The state of one checkpoint. `files` gives its files by key.

    Without the writes to it: these are the values of the next one, and two states would differ by each value twice.
    """
    found: dict[str, Any] = {
        "thread_id": lineage.place.thread,
        "checkpoint_ns": lineage.place.namespace,
        "checkpoint_id": saved.id,
        "parent_checkpoint_id": saved.parent,
        "created_at": saved.ts,
        "metadata": saved.metadata,
        "next": [],
        "interrupts": [],
        "values": {channel: value for channel, value in saved.values.items() if _is_state(channel)},
    }
    try:
        now = standing(saved, writes)
        found["next"], found["interrupts"] = list(now.next), interrupts(now)
    except Damaged as error:
        found["next"] = {"error": str(error)}
    keys = _escaped_keys(files)
    if keys:
        found["file_keys"] = keys
    missing = lineage.missing(saved.id)
    if missing is not None:
        found["warning"] = f"Checkpoint {missing} is gone: what was written up to it may be missing from files"
    return found


def interrupts(now: Standing) -> list[Any]:
    """The values of the interrupts that wait for a human."""
    found: list[Any] = []
    for write in now.interrupts:
        assert write.channel == INTERRUPT, f"{write.channel} is no interrupt"
        values = _loaded(write.value)
        found += values if isinstance(values, list) else [values]
    return found


def _is_state(channel: str) -> bool:
    return channel not in _SHOWN_ELSEWHERE and not channel.startswith(_STEERING)


def _loaded(raw: Raw) -> Any:
    try:
        return loads(raw)
    except Damaged as error:
        return {"error": str(error)}


def _escaped_keys(files: Callable[[], Mapping[str, object]]) -> dict[str, str]:
    """Path → key of the files whose path is not their key."""
    try:
        return {path: key for path, key in ListedTree(files()).all() if path != key}
    except Damaged:
        return {}
