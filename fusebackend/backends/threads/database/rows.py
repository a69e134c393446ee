"""What is read from a checkpoint database: `Database`, the way to it, and the records it answers with.

`sqlite_database.py` and `postgres_database.py` implement it over the tables of LangGraph's savers. Nothing here knows
what a file is.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, TypeAlias

NULL_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""The task id of writes that belong to no task: input of a step that has not begun."""


class Damaged(Exception):
    """Something in the database can't be read. `str` is one line: what, and why."""


class Nothing:
    """The type of `NOTHING`: there is no value. `None` is one."""

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = Nothing()


class Place(NamedTuple):
    """One line of checkpoints: a thread, and a namespace in it. `""` is the thread's own, others are sub-graphs."""

    thread: str
    namespace: str


class Raw(NamedTuple):
    """A value as it is stored: what `decode.loads` reads."""

    kind: str | None
    data: bytes | None


class Listed(NamedTuple):
    """A checkpoint in a listing."""

    id: str
    step: int | None
    source: str | None
    ts: str | None
    """When it was made, ISO 8601; None where that can't be known without reading the whole checkpoint."""


class Mark(NamedTuple):
    """What differs when a checkpoint, or what was written to it, is another than before."""

    row: object
    writes: int = 0
    """How many there are …"""
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
    """Grows with the time at which it was stored, or stored anew, among the writes of one checkpoint."""


class Link(NamedTuple):
    """A checkpoint on the way from one to the root, as far as one channel is concerned."""

    id: str
    parent: str | None
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


class News(NamedTuple):
    """What has been written since the last time somebody asked."""

    everything: bool
    """Anything may have changed, also been deleted. Otherwise only checkpoints and writes were added …"""
    places: frozenset[Place] = frozenset()
    """… to these lines."""


Append: TypeAlias = Callable[[Place, str, str, Raw], None]
"""Store one more write of `NULL_TASK`: place, checkpoint id, channel, value."""


class Database(abc.ABC):
    """The way to a checkpoint database. Not thread-safe: the volume's lock is held around each call.

    Every method raises `OSError` when the database can't be asked, and `Damaged` for a row that makes no sense.
    The order of checkpoint ids is that of time.
    """

    blocking: bool
    """Calls may wait for a network."""

    tells: bool
    """`news` is cheap and exact: it may be asked before every other call."""

    @abc.abstractmethod
    def news(self, *, now: bool = False) -> News | None:
        """What is new; None for nothing, as far as can be told without asking too often. `now` asks in any case."""

    @abc.abstractmethod
    def threads(self) -> list[tuple[str, str | None]]:
        """Every thread, with the id of the newest checkpoint of its own line."""

    @abc.abstractmethod
    def has_thread(self, thread: str) -> bool: ...

    @abc.abstractmethod
    def namespaces(self, thread: str) -> list[str]:
        """The namespaces that a thread has checkpoints in."""

    @abc.abstractmethod
    def marks(self, place: Place) -> dict[str, Mark]:
        """The checkpoints by id."""

    @abc.abstractmethod
    def listed(self, place: Place, checkpoints: Sequence[str]) -> list[Listed]:
        """What a listing says of these checkpoints, in any order."""

    @abc.abstractmethod
    def newest(self, place: Place) -> str | None:
        """The id of the newest checkpoint."""

    @abc.abstractmethod
    def ancestry(self, place: Place, checkpoint: str, channel: str) -> Generator[Link, None, None]:
        """The checkpoint, then its parent, and so on to the root. Read only as far as the iterator is followed."""

    @abc.abstractmethod
    def links(self, place: Place, checkpoints: Sequence[str], channel: str) -> list[Link]:
        """These checkpoints, in any order, without those that can't be read."""

    @abc.abstractmethod
    def writes(self, place: Place, checkpoints: Sequence[str], channel: str | None = None) -> dict[str, list[Write]]:
        """Checkpoint id → its writes, to one channel or all, in the order in which a step applies them."""

    @abc.abstractmethod
    def writes_since(self, place: Place, checkpoint: str, order: int) -> list[Write]:
        """The writes to a checkpoint of a greater order, in the order in which a step applies them."""

    @abc.abstractmethod
    def saved(self, place: Place, checkpoint: str) -> Saved: ...

    @abc.abstractmethod
    def exclusive(self) -> AbstractContextManager[Append]:
        """Nobody else writes to the database until the block ends. An error undoes what was appended in it.

        EROFS where this process may not write, EBUSY when somebody else keeps it for too long.
        """

    @abc.abstractmethod
    def close(self) -> None: ...


def in_order(rows: Iterable[tuple[str, str, str, int, str, str | None, bytes | None, int]]) -> dict[str, list[Write]]:
    """Rows of writes (checkpoint, task path, task, index, channel, type, value, order) by checkpoint.

    They are in the order in which LangGraph applies the writes of one step: by the path of the task, its id, the index.
    """
    found: dict[str, list[tuple[tuple[str, str, int], Write]]] = {}
    for checkpoint, path, task, index, channel, kind, value, order in rows:
        write = Write(task, channel, Raw(kind, value), index, order)
        found.setdefault(checkpoint, []).append(((path, task, index), write))
    for pairs in found.values():
        pairs.sort(key=lambda pair: pair[0])
    return {checkpoint: [write for _, write in pairs] for checkpoint, pairs in found.items()}


def portions(items: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))
