"""The name of a checkpoint: `<time>-<step>-<source>`, such as `20250102T030405.1234567Z-12-loop`.

Names sort as the checkpoints do. The time is in UTC, in steps of 100 ns. It is the one in the checkpoint's id, a UUID
of version 6; where the id is something else, the checkpoint's own time, or `undated`, with the id at the end of the
name. Two that would be called the same have their ids at the end as well.
"""

from __future__ import annotations

import datetime
import uuid
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from fusebackend.backends.threads.database.rows import Listed
from fusebackend.remote.keys import name_of

_GREGORIAN = 0x01B21DD213814000
"""From 1582, where UUIDs count from, to 1970, in steps of 100 ns."""

LATEST_NS = (1 << 63) - 1
"""In 2262. An id may say 5236, which no file system can show."""


def time_ns_of(checkpoint: str, ts: str | None = None) -> int | None:
    """When a checkpoint was made, in nanoseconds since 1970: from its id, else from its own time."""
    try:
        fields = uuid.UUID(checkpoint)
    except ValueError:
        fields = None
    if fields is not None and fields.version == 6:
        ticks = (fields.int >> 80) << 12 | (fields.int >> 64 & 0xFFF)
        return min((ticks - _GREGORIAN) * 100, LATEST_NS)
    try:
        when = datetime.datetime.fromisoformat(ts or "")
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    since = when - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1) * 1000


class Named(NamedTuple):
    """What a checkpoint can be called."""

    short: bytes
    whole: bytes
    """With its id at the end."""
    is_uuid6: bool


def checkpoint_names(listed: Iterable[Listed], known: dict[Listed, Named] | None = None) -> dict[bytes, Listed]:
    """The names of the checkpoints of one line, in order.

    `known` is where names are kept: a history grows by one checkpoint at a time, and all names are asked for again.
    It belongs to the line and goes with it. A cache of the whole process kept some names of every line, and with each
    of them a megabyte of memory that was otherwise free (`base/heap.py`).
    """
    known = {} if known is None else known
    pairs = []
    for checkpoint in listed:
        named = known.get(checkpoint)
        if named is None:
            named = known[checkpoint] = _named(checkpoint)
        pairs.append((named, checkpoint))
    often = Counter(named.short for named, _ in pairs)
    return {
        named.short if often[named.short] == 1 and named.is_uuid6 else named.whole: checkpoint
        for named, checkpoint in pairs
    }


def _named(checkpoint: Listed) -> Named:
    step = "none" if checkpoint.step is None else str(checkpoint.step)
    stem = f"{_stamp(time_ns_of(checkpoint.id, checkpoint.ts))}-{step}-{checkpoint.source or 'unknown'}"
    return Named(name_of(stem), name_of(f"{stem}-{checkpoint.id}"), _is_uuid6(checkpoint.id))


def _stamp(time_ns: int | None) -> str:
    if time_ns is None:
        return "undated"
    seconds, rest = divmod(time_ns, 10**9)
    try:
        when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return "undated"
    return f"{when:%Y%m%dT%H%M%S}.{rest // 100:07d}Z"


def _is_uuid6(text: str) -> bool:
    try:
        return uuid.UUID(text).version == 6
    except ValueError:
        return False
