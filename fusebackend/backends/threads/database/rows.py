"""`Database`, a checkpoint database; the records that it answers with; and the names of checkpoints.

`sqlite.py`, `postgres.py` and `saver.py` implement it. Nothing here depends on files.

A checkpoint's name is `<time>-<step>-<node>`, such as `20260922T091431.123Z-0012-tools`. Names sort as the checkpoints
do. The time is in UTC, in milliseconds, from the checkpoint's id, a UUID of version 6; where the id is something else,
it is the checkpoint's own time, or `undated`, and the id ends the name. It also ends a name that an older checkpoint
has. The last part is the node that led to the checkpoint, or else the checkpoint's source.
"""

from __future__ import annotations

import abc
import datetime
import errno
import re
import uuid
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from fusebackend.base.stamps import nanoseconds
from fusebackend.remote.keyed import cut_name, name_of
from fusebackend.volumes.damage import DamageLog

NULL_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""The task id of writes that belong to no task: input of a step that has not begun."""


class Damaged(OSError):
    """EIO: a part of the database can't be read, and not all of it. `str` is one line with the part and the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EIO, reason)
        self.args = (reason,)  # what pickle makes it of again

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Takes the place of a part of a value, such as a channel, a file or a message, that can't be read, or is too
    large. All beside it is there."""

    reason: str


NOTHING: Final = object()
"""There is no value. `None` is one."""


class Place(NamedTuple):
    """One line of checkpoints: a thread, and a namespace in it. `""` is the thread's own, others are sub-graphs."""

    thread: str
    namespace: str


class Raw(NamedTuple):
    """A value as it is stored, for `values.loads`."""

    kind: str | None
    data: bytes | None


class CheckpointMark(NamedTuple):
    """Differs after a change of a checkpoint, or of the writes to it."""

    row: Any
    writes: int = 0
    """The number of writes …"""
    last: int = 0
    """… and the order of the newest."""


class Write(NamedTuple):
    """One value that a task has written to a channel, for the checkpoint that is to follow."""

    task: str
    channel: str
    value: Raw
    number: int
    """Its place among the writes of its task."""
    order: int
    """Grows with the time of the last change, among the writes of one checkpoint."""


class Link(NamedTuple):
    """A checkpoint on the way from one to the root, with one of its channels."""

    id: str
    parent: str | None
    ts: str | None
    versioned: bool
    """The channel has a version: it has been written to before this checkpoint."""
    stored: Any
    """The channel's value where this checkpoint holds it, else `NOTHING`. Extension types are not unpacked."""


class Saved(NamedTuple):
    """All of one checkpoint. Extension types are not unpacked."""

    id: str
    parent: str | None
    ts: str | None
    values: Mapping[str, Any]
    versions: Mapping[str, Any]
    seen: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, Any]


class Outline(NamedTuple):
    """What a plan for pruning needs to know of a checkpoint."""

    id: str
    parent: str | None
    ts: str | None
    version: int
    """Of the format."""
    parents: Mapping[str, str]
    """Of a sub-graph: the checkpoints that it ran at, by namespace."""
    versions: Mapping[str, str]
    """Channel → its version."""
    values: Mapping[str, int]
    """Channel → the size of its value in the checkpoint, 0 where it is next to nothing."""
    deltas: frozenset[str]
    """The channels that it shows to be delta channels."""
    writes: Mapping[str, int]
    """Channel → the size of the writes to it."""
    bytes: int
    """Of it and the writes to it."""
    blobs: Mapping[str, int]
    """Channel → the size of its value, where that is kept apart; 0 where it has none."""
    is_partial: bool
    """It was pruned to a link, which has some of its channels."""

    def stores(self, channel: str) -> bool:
        """Whether the value of a channel is stored with it."""
        return channel in self.values or bool(self.blobs.get(channel))


class Portion(NamedTuple):
    """A checkpoint that goes, or of which a part goes."""

    id: str
    left: frozenset[str] | None
    """The channels that stay, with their values, versions and writes; None where the checkpoint goes."""
    writes: Sequence[str]
    """Of a checkpoint that stays: the channels whose writes go."""
    orphans: Sequence[str]
    """The checkpoints that lose it as their parent."""
    blobs: Sequence[tuple[str, str]]
    """Channels and versions that nothing else needs."""
    bytes: int


class News(NamedTuple):
    """The changes since the last call."""

    everything: bool
    """Anything may have changed, also been deleted. Otherwise only checkpoints and writes were added …"""
    places: frozenset[Place] = frozenset()
    """… to these lines."""


Append: TypeAlias = Callable[[Place, str, str, Raw], None]
"""Store one more write of `NULL_TASK`: place, checkpoint id, channel, value."""


class Database(abc.ABC):
    """A checkpoint database. Not thread-safe: the volume's lock is held around each call.

    A method that may wait for a network says `will_wait` (`base/waiting.py`) first, before it has changed anything.

    Every method raises `OSError` when the database can't be read, `Damaged` for an invalid row. Checkpoint ids are
    ordered by time.
    """

    def __init__(self, name: str) -> None:
        """`name` is the database's in lines of the log."""
        self.log = DamageLog(name)

    tells: bool
    """`news` is cheap and exact: it may be called before every other method."""

    identity: str | None = None
    """Tells it from all other databases, without secrets: the indexes of its lines are cached under it. None where its
    marks can't be stored."""

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        return None

    @abc.abstractmethod
    def news(self, *, now: bool = False) -> News | None:
        """The changes since the last call, None for none. The database may be queried less often, except with `now`."""

    @abc.abstractmethod
    def threads(self) -> list[tuple[str, str | None]]:
        """Every thread, with the id of the newest checkpoint of its own line."""

    @abc.abstractmethod
    def has_thread(self, thread: str) -> bool: ...

    @abc.abstractmethod
    def namespaces(self, thread: str) -> list[str]:
        """The namespaces of a thread that have checkpoints."""

    @abc.abstractmethod
    def marks(self, place: Place) -> dict[str, CheckpointMark]:
        """The checkpoints by id."""

    @abc.abstractmethod
    def newest(self, place: Place) -> str | None:
        """The id of the newest checkpoint."""

    @abc.abstractmethod
    def links(self, place: Place, checkpoints: Sequence[str], channel: str) -> dict[str, Link | Damaged]:
        """Those of these checkpoints that are there, by id; in place of an unreadable one its error. Of a checkpoint no
        more is fetched than its channel needs: a walk reads all of them, and some hold megabytes of other things."""

    @abc.abstractmethod
    def saved(self, place: Place, checkpoint: str) -> Saved:
        """A checkpoint. Damaged; ENOENT."""

    @abc.abstractmethod
    def writes(
        self, place: Place, checkpoints: Sequence[str], channel: str | None = None, *, after: int | None = None
    ) -> dict[str, list[Write]]:
        """Checkpoint id → its writes, in the order in which a step applies them.

        Args:
            channel: only writes to this one.
            after: only writes of a greater `Write.order`.
        """

    def weigh(self, by: str, thread: str | None = None) -> Counter[tuple[str, str]]:
        """The sizes of what is kept, as far as they are known, see `SaverTables`."""
        return Counter()

    @abc.abstractmethod
    def exclusive(self) -> AbstractContextManager[Append]:
        """Keep other writers out until the block ends. An error undoes all that was appended in it.

        EROFS where this process may not write, EBUSY when another writer keeps its lock for too long.
        """

    @abc.abstractmethod
    def close(self) -> None: ...


# -- names of checkpoints --------------------------------------------------------------------------------------------

MAX_NAME_BYTES: Final = 200
"""Of a checkpoint's name: `.messages.jsonl` and `.patch` follow it."""

MAX_NODE_CHARS: Final = 64
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_+-]+")

_GREGORIAN = 0x01B21DD213814000
"""From 1582, where UUIDs count from, to 1970, in steps of 100 ns."""

_UUID6: Final = re.compile("([0-9a-f]{8})-([0-9a-f]{4})-6([0-9a-f]{3})-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

LATEST_NS = (1 << 63) - 1
"""In 2262. An id may say 5236, which no file system can show."""


def time_ns_of(checkpoint: str, ts: str | None = None) -> int | None:
    """When a checkpoint was made, in nanoseconds since 1970: from its id, else from its own time."""
    ticks = _ticks_of(checkpoint)
    if ticks is not None:
        return min((ticks - _GREGORIAN) * 100, LATEST_NS)
    try:
        when = datetime.datetime.fromisoformat(ts or "")
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return nanoseconds(when)


def checkpoint_name(
    checkpoint: str, time_ns: int | None, step: int | None, node: str, taken: Container[bytes]
) -> bytes:
    """The name of a checkpoint, other than those that are taken."""
    number = "none" if step is None else f"{step:04}"
    stem = f"{_stamp(time_ns)}-{number}-{_NOT_PLAIN.sub('_', node)[:MAX_NODE_CHARS] or 'unknown'}"
    short = stem.encode()
    if _ticks_of(checkpoint) is not None and short not in taken:
        return short
    whole = name_of(f"{stem}-{checkpoint}")
    return whole if len(whole) <= MAX_NAME_BYTES else cut_name(whole, checkpoint, MAX_NAME_BYTES)


def _stamp(time_ns: int | None) -> str:
    if time_ns is None:
        return "undated"
    try:
        return iso_ms(time_ns).replace("-", "").replace(":", "")
    except (OverflowError, ValueError, OSError):
        return "undated"


def iso_ms(time_ns: int) -> str:
    """A time in UTC, in milliseconds. ValueError, OverflowError, OSError."""
    seconds, rest = divmod(time_ns, 10**9)
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()[:19]}.{rest // 10**6:03d}Z"


def _ticks_of(checkpoint: str) -> int | None:
    """The time in a UUID of version 6; None for any other text."""
    usual = _UUID6.fullmatch(checkpoint)  # `UUID` takes five times as long, and takes more forms
    if usual is not None:
        return int("".join(usual.groups()), 16)
    try:
        fields = uuid.UUID(checkpoint)
    except ValueError:
        return None
    return (fields.int >> 80) << 12 | (fields.int >> 64 & 0xFFF) if fields.version == 6 else None
