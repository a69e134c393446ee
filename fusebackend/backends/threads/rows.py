"""What is read from a checkpoint database: `Database`, the way to it, and the records it answers with.

`sqlite.py` and `postgres.py` implement it over the tables of LangGraph's savers. Nothing here knows what a file is.
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


class Write(NamedTuple):
    """One value that a task has written to a channel, for the checkpoint that is to follow."""

    task: str
    channel: str
    value: Raw
    order: int
    """Grows with the time at which it was stored, among the writes of one checkpoint."""


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
    def marks(self, place: Place) -> dict[str, object]:
        """The checkpoints by id; to each, what differs when it or the writes to it were written again."""

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
    def saved(self, place: Place, checkpoint: str) -> Saved: ...

    @abc.abstractmethod
    def exclusive(self) -> AbstractContextManager[Append]:
        """Nobody else writes to the database until the block ends. An error undoes what was appended in it.

        EROFS where this process may not write, EBUSY when somebody else keeps it for too long.
        """

    @abc.abstractmethod
    def close(self) -> None: ...


def sort_key(task_path: str, task: str, index: int) -> tuple[str, str, int]:
    """The order in which a step applies its tasks' writes, as LangGraph does."""
    return task_path, task, index


def portions(items: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))
