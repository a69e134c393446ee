"""A channel's value from what is stored of it: the files and the messages of a checkpoint.

Two ways of storing are about. Up to deepagents 0.5 each checkpoint holds the whole value. Since then a checkpoint of a
*delta channel* holds nothing, or now and then a snapshot, and the value is rebuilt: from the nearest ancestor that
holds one (or from nothing), with all that was written to its ancestors since. What was written to the checkpoint
itself is for the one that follows; only the writes of `NULL_TASK` count as its own, as LangGraph's `get_state` has it.
A thread may have both kinds of checkpoints.

How values and writes are joined is the reducer of deepagents. An `Overwrite` starts anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from fusebackend.backends.threads.database.decode import Ext, snapshot
from fusebackend.backends.threads.database.rows import NOTHING, Damaged

_OVERWRITE: Final = "__overwrite__"
_OVERWRITE_CLASS: Final = "langgraph.types.Overwrite"

REMOVE_ALL: Final = "__remove_all__"
"""The id of the `RemoveMessage` that stands for all messages."""

_nameless = itertools.count()


class Files:
    """The channel `files`: a dict from key to record; None deletes a key.

    Args:
        keep: makes of a record what is kept of it.
    """

    name: Final = "files"

    def __init__(self, keep: Callable[[Any], Any] = lambda record: record) -> None:
        self._keep = keep

    def whole(self, stored: Any) -> dict[str, Any]:
        """A stored value."""
        value = snapshot(stored)
        if value is None or value is NOTHING:
            return {}
        if not isinstance(value, Mapping):
            raise Damaged(f"'files' is no mapping but {_kind(value)}")
        return self.merge({}, value)

    def merge(self, files: dict[str, Any], written: Any) -> dict[str, Any]:
        """One write on top, in place."""
        if not isinstance(written, Mapping):
            raise Damaged(f"a write to 'files' is no mapping but {_kind(written)}")
        for key, record in written.items():
            if not isinstance(key, str):
                raise Damaged(f"'files' holds a key that is no string: {key!r}")
            if record is None:
                files.pop(key, None)
            else:
                files[key] = self._keep(record)
        return files


class Messages:
    """The channel `messages`: a list of plain messages; one with a known id replaces that, and some remove others."""

    name: Final = "messages"

    def whole(self, stored: Any) -> dict[str, Any]:
        value = snapshot(stored)
        return self.merge({}, [] if value is None or value is NOTHING else value)

    def merge(self, messages: dict[str, Any], written: Any) -> dict[str, Any]:
        """One write on top, in place. The keys are ids, or made up where a message has none."""
        for item in written if isinstance(written, list) else [written]:
            message = plain_message(item)
            key = message.get("id")
            if message.get("type") == "remove":
                if key == REMOVE_ALL:
                    messages.clear()
                else:
                    messages.pop(str(key), None)
                continue
            messages[f"\0{next(_nameless)}" if key is None else str(key)] = message
        return messages


Channel: TypeAlias = Files | Messages


def replay(channel: Channel, value: Mapping[str, Any], written: Iterable[Any]) -> Mapping[str, Any]:
    """A value with the writes of many steps on top, oldest first. The value itself is not changed."""
    result: dict[str, Any] | None = None
    for item in written:
        new = overwriting(item)
        if new is not NOTHING:
            result = channel.whole(new)
        else:
            result = channel.merge(dict(value) if result is None else result, item)
    return value if result is None else result


def update(channel: Channel, value: Mapping[str, Any], written: Iterable[Any]) -> Mapping[str, Any]:
    """A value with the writes of one step on top: an `Overwrite` among them is all that counts."""
    written = list(written)
    for item in written:
        new = overwriting(item)
        if new is not NOTHING:
            return channel.whole(new)
    return replay(channel, value, written)


def overwriting(value: Any) -> Any:
    """What an `Overwrite` says the value is, in each of its three forms; `NOTHING` for any other write."""
    if isinstance(value, Ext):
        if value.code == 2 and value.class_name == _OVERWRITE_CLASS:
            arguments = value.parts()[2]
            return arguments.get("value") if isinstance(arguments, Mapping) else NOTHING
        return NOTHING
    if isinstance(value, Mapping):
        if len(value) == 1 and _OVERWRITE in value:
            return value[_OVERWRITE]
        if value.get("type") == _OVERWRITE and "value" in value:
            return value["value"]
    return NOTHING


_TYPE_OF_ROLE = {"user": "human", "assistant": "ai", "developer": "system"}


def plain_message(value: Any) -> dict[str, Any]:
    """A message as a dict with a `type` (human, ai, tool, system …), from each form in which one is stored."""
    if isinstance(value, Ext):
        parts = value.parts() if value.is_object else ()
        if not parts or not isinstance(parts[2], Mapping):
            raise Damaged(f"a message is no object but extension type {value.code}")
        return _typed(parts[2], str(parts[1]))
    if isinstance(value, str):
        return {"type": "human", "content": value}
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return {"type": _TYPE_OF_ROLE.get(str(value[0]), str(value[0])), "content": value[1]}
    if isinstance(value, Mapping):
        if value.get("type") == "constructor" and isinstance(value.get("kwargs"), Mapping):  # LangChain's JSON
            return _typed(value["kwargs"], str((value.get("id") or [""])[-1]))
        if "role" in value and "type" not in value:
            role = str(value["role"])
            rest = {key: item for key, item in value.items() if key != "role"}
            return {"type": _TYPE_OF_ROLE.get(role, role), **rest}
        return {str(key): item for key, item in value.items()}
    raise Damaged(f"a message is no object but {_kind(value)}")


def _typed(arguments: Mapping[Any, Any], class_name: str) -> dict[str, Any]:
    """With the type that the class stands for, where the arguments don't say it: `HumanMessage` is `human`."""
    type_name = arguments.get("type") or class_name.removesuffix("Chunk").removesuffix("Message").lower()
    return {"type": type_name, **{str(key): item for key, item in arguments.items() if key != "type"}}


def _kind(value: Any) -> str:
    return f"extension type {value.code}" if isinstance(value, Ext) else type(value).__name__
