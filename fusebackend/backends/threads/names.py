"""The name of a checkpoint: `<time>-<step>-<source>`, such as `20250102T030405.1234567Z-12-loop`.

Names sort as the checkpoints do. The time is in UTC, in steps of 100 ns. It is the one in the checkpoint's id, a UUID
of version 6; where the id is something else, the checkpoint's own time, or `undated`, with the id at the end of the
name. Two that would be called the same have their ids at the end as well.
"""

from __future__ import annotations

import datetime
import functools
import uuid
from collections import Counter
from collections.abc import Iterable

from fusebackend.backends.keys import name_of
from fusebackend.backends.threads.rows import Listed

_GREGORIAN = 0x01B21DD213814000
"""From 1582, where UUIDs count from, to 1970, in steps of 100 ns."""

LATEST_NS = (1 << 63) - 1
"""In 2262. An id may say 5236, which no file system can show."""

KNOWN_NAMES = 1 << 15


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


def checkpoint_names(listed: Iterable[Listed]) -> dict[bytes, Listed]:
    """The names of the checkpoints of one line, in order."""
    pairs = [(_stem(checkpoint), checkpoint) for checkpoint in listed]
    often = Counter(stem for stem, _ in pairs)
    return {
        _name(stem, None if often[stem] == 1 and _is_uuid6(checkpoint.id) else checkpoint.id): checkpoint
        for stem, checkpoint in pairs
    }


# A history grows by one checkpoint at a time, and all names are asked for again.


@functools.lru_cache(maxsize=KNOWN_NAMES)
def _name(stem: str, checkpoint: str | None) -> bytes:
    return name_of(stem if checkpoint is None else f"{stem}-{checkpoint}")


@functools.lru_cache(maxsize=KNOWN_NAMES)
def _stem(checkpoint: Listed) -> str:
    step = "none" if checkpoint.step is None else str(checkpoint.step)
    return f"{_stamp(time_ns_of(checkpoint.id, checkpoint.ts))}-{step}-{checkpoint.source or 'unknown'}"


def _stamp(time_ns: int | None) -> str:
    if time_ns is None:
        return "undated"
    seconds, rest = divmod(time_ns, 10**9)
    try:
        when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return "undated"
    return f"{when:%Y%m%dT%H%M%S}.{rest // 100:07d}Z"


@functools.lru_cache(maxsize=KNOWN_NAMES)
def _is_uuid6(text: str) -> bool:
    try:
        return uuid.UUID(text).version == 6
    except ValueError:
        return False
