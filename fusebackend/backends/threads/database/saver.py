"""`SaverDatabase`: the checkpoints of any checkpointer object, through its own `list` and `get_tuple`.

`database_of_saver` opens the database of a SqliteSaver over a file or of a PostgresSaver directly (`sqlite.py`,
`postgres.py`), which is cheaper and tells more. Any other saver is called itself: an `InMemorySaver`, a SqliteSaver in
memory, one with encrypted values, one of another package.

A saver does not announce news. So its list is compared with the last one, at most once in `SWEEP_INTERVAL_S` and for at
most a twentieth of the time. An `InMemorySaver` is compared without unpacking a checkpoint; any other one unpacks all.
The contents of a checkpoint are read when they are needed.

Values arrive as objects. They are packed again as LangGraph stores them, and then read like those of a database: no
module below ever sees an object of another package's class.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from fusebackend.backends.threads.database.rows import (
    NOTHING,
    Append,
    CheckpointMark,
    Damaged,
    Database,
    LeftOut,
    Link,
    News,
    Place,
    Raw,
    Saved,
    Write,
)
from fusebackend.backends.threads.database.values import loads, require
from fusebackend.base.errors import oserror
from fusebackend.base.recent import Recent
from fusebackend.base.waiting import will_wait
from fusebackend.databases.langgraph import dsn_of, loaded_class, sqlite_path, translate_errors

SWEEP_INTERVAL_S: Final = 0.5
"""A saver is listed at most this often, …"""

MEMORY_INTERVAL_S: Final = 0.05
"""… an `InMemorySaver` this often, …"""

SWEEP_SHARE: Final = 1 / 20
"""… and of the time no more than this goes into it."""

KEPT_TUPLES: Final = 32
"""Checkpoints of the saver that are cached."""


def database_of_saver(saver: Any) -> Database:
    """The database of a saver's checkpoints.

    Raises:
        TypeError: it is no saver, or one that answers in its event loop only.
        OSError: its database can't be opened.
        ModuleNotFoundError: ormsgpack is missing (`fusebackend[langgraph]`).
    """
    require_saver(saver)
    if _is_exactly(saver, "langgraph.checkpoint.sqlite", "SqliteSaver") and _is_plain(saver):
        with translate_errors("the saver"):
            saver.setup()
            path = sqlite_path(saver.conn)
        if path:  # not one in memory
            from fusebackend.backends.threads.database.sqlite import SqliteDatabase

            return SqliteDatabase(path, follows=False)  # the saver goes on with the file that it has
    if _is_exactly(saver, "langgraph.checkpoint.postgres", "PostgresSaver") and _is_plain(saver):
        from fusebackend.backends.threads.database.postgres import PostgresDatabase

        return PostgresDatabase(dsn_of(saver.conn))
    return SaverDatabase(saver)


def require_saver(saver: Any) -> None:
    """TypeError, with the alternatives, for an object that can't be called from any thread."""
    name = type(saver).__name__
    missing = [verb for verb in ("list", "get_tuple") if not callable(getattr(saver, verb, None))]
    if missing:
        raise TypeError(f"{name} is no checkpointer of LangGraph: it has no {' and no '.join(missing)}")
    base = loaded_class("langgraph.checkpoint.base", "BaseCheckpointSaver")
    has_no_sync = base is not None and getattr(type(saver), "list", None) is base.list
    if has_no_sync or any(cls.__name__.startswith("Async") for cls in type(saver).__mro__):
        raise TypeError(
            f"{name} only answers inside of its own event loop, and these files are asked for from anywhere; give "
            "a saver that is not async over the same database, or use ThreadsBackend.from_sqlite(PATH) or "
            "ThreadsBackend.from_postgres(DSN)"
        )


def _is_exactly(saver: Any, module: str, name: str) -> bool:
    """Whether it is of this class. A subclass may store its checkpoints otherwise."""
    found = loaded_class(module, name)
    return found is not None and type(saver) is found


def _is_plain(saver: Any) -> bool:
    """Whether its values are stored as LangGraph packs them, and not encrypted."""
    return type(getattr(saver, "serde", None)).__name__ == "JsonPlusSerializer"


class SaverDatabase(Database):
    """See the module's docstring. `close` does nothing to the saver."""

    tells = False

    def __init__(self, saver: Any) -> None:
        """Raises: ModuleNotFoundError: ormsgpack is missing."""
        require()
        super().__init__("the saver")
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

        self._saver = saver
        self._pack = JsonPlusSerializer().dumps_typed
        self._in_memory = _is_exactly(saver, "langgraph.checkpoint.memory", "InMemorySaver")
        self._tuples: Recent[tuple[Place, str], Any] = Recent(KEPT_TUPLES)
        self._sweep()

    def close(self) -> None:
        self._tuples.clear()

    # -- news --------------------------------------------------------------------------------------------------

    def news(self, *, now: bool = False) -> News | None:
        interval_s = MEMORY_INTERVAL_S if self._in_memory else SWEEP_INTERVAL_S
        if time.monotonic() - self._swept_at < max(interval_s, self._sweep_s / SWEEP_SHARE):
            return None
        will_wait()
        before = self._found
        self._sweep()
        changed = [place for place in before.keys() | self._found.keys() if before.get(place) != self._found.get(place)]
        if not changed:
            return None
        for key in [key for key in self._tuples if key[0] in changed]:
            del self._tuples[key]
        if all(before.get(place, {}).keys() <= self._found.get(place, {}).keys() for place in changed):
            return News(False, frozenset(changed))
        return News(True)

    def _sweep(self) -> None:
        start = time.monotonic()
        with translate_errors("the saver"):
            self._found = self._all_in_memory() if self._in_memory else self._all_listed()
        self._swept_at = time.monotonic()
        self._sweep_s = self._swept_at - start

    def _all_listed(self) -> dict[Place, dict[str, CheckpointMark]]:
        found: dict[Place, dict[str, CheckpointMark]] = {}
        for item in self._saver.list(None):
            place, checkpoint = _place_of(item.config)
            row = (_parent_of(item), repr(item.checkpoint.get("channel_versions")), _written(item))
            count = len(item.pending_writes or ())
            found.setdefault(place, {})[checkpoint] = CheckpointMark(row, count, count)
        return found

    def _all_in_memory(self) -> dict[Place, dict[str, CheckpointMark]]:
        """The checkpoints of an `InMemorySaver`. Agents write meanwhile: each copy is one step of the interpreter."""
        found: dict[Place, dict[str, CheckpointMark]] = {}
        writes = dict(self._saver.writes)
        for thread, spaces in list(self._saver.storage.items()):
            for namespace, checkpoints in list(spaces.items()):
                place = Place(thread, namespace)
                for checkpoint, stored in list(checkpoints.items()):
                    written = tuple(writes.get((thread, namespace, checkpoint), ()))
                    mark = CheckpointMark((stored, written), len(written), len(written))
                    found.setdefault(place, {})[checkpoint] = mark
        return found

    # -- lists -------------------------------------------------------------------------------------------------

    def threads(self) -> list[tuple[str, str | None]]:
        return [(thread, self.newest(Place(thread, ""))) for thread in {place.thread for place in self._found}]

    def has_thread(self, thread: str) -> bool:
        return any(place.thread == thread for place in self._found)

    def namespaces(self, thread: str) -> list[str]:
        return [place.namespace for place in self._found if place.thread == thread]

    def marks(self, place: Place) -> dict[str, CheckpointMark]:
        return dict(self._found.get(place, {}))

    def newest(self, place: Place) -> str | None:
        return max(self._found.get(place, {}), default=None)

    # -- contents ----------------------------------------------------------------------------------------------

    def links(self, place: Place, checkpoints: Sequence[str], channel: str) -> dict[str, Link | Damaged]:
        found: dict[str, Link | Damaged] = {}
        for checkpoint in checkpoints:
            with contextlib.suppress(FileNotFoundError):
                found[checkpoint] = self._link(self._tuple(place, checkpoint), checkpoint, channel)
        return found

    def _link(self, item: Any, checkpoint: str, channel: str) -> Link:
        document = item.checkpoint
        values, ts = document.get("channel_values") or {}, document.get("ts")
        return Link(
            checkpoint,
            _parent_of(item),
            ts if isinstance(ts, str) else None,
            channel in (document.get("channel_versions") or {}),
            self._shown(values[channel]) if channel in values else NOTHING,
        )

    def saved(self, place: Place, checkpoint: str) -> Saved:
        item = self._tuple(place, checkpoint)
        document = item.checkpoint
        ts, metadata = document.get("ts"), self._shown(dict(item.metadata or {}))
        return Saved(
            checkpoint,
            _parent_of(item),
            ts if isinstance(ts, str) else None,
            {name: self._shown(value) for name, value in (document.get("channel_values") or {}).items()},
            document.get("channel_versions") or {},
            document.get("versions_seen") or {},
            metadata if isinstance(metadata, Mapping) else {},
        )

    def writes(
        self, place: Place, checkpoints: Sequence[str], channel: str | None = None, *, after: int | None = None
    ) -> dict[str, list[Write]]:
        """A saver lists them in the order in which a step applies them, without times."""
        answer: dict[str, list[Write]] = {}
        for checkpoint in checkpoints:
            with contextlib.suppress(FileNotFoundError):
                found = [
                    Write(task, name, self._stored(value), number, number)
                    for number, (task, name, value) in enumerate(self._tuple(place, checkpoint).pending_writes or (), 1)
                    if channel in (None, name) and number > (after or 0)
                ]
                if found:
                    answer[checkpoint] = found
        return answer

    def _tuple(self, place: Place, checkpoint: str) -> Any:
        """The checkpoint as the saver has it. ENOENT."""
        key = (place, checkpoint)
        item = self._tuples.use(key)
        if item is None:
            will_wait()
            names = {"thread_id": place.thread, "checkpoint_ns": place.namespace, "checkpoint_id": checkpoint}
            with translate_errors("the saver"):
                item = self._saver.get_tuple({"configurable": names})
            if item is None:
                raise oserror(errno.ENOENT)
            self._tuples[key] = item
        return item

    def _stored(self, value: Any) -> Raw:
        try:
            return Raw(*self._pack(value))
        except Exception as error:  # an object of any class may fail in any way
            raise Damaged(f"{type(value).__name__} can't be packed: {type(error).__name__}: {error}") from None

    def _shown(self, value: Any) -> Any:
        """A readable value; `LeftOut` if it can't be packed."""
        try:
            return loads(self._stored(value))
        except Damaged as error:
            return LeftOut(str(error))

    # -- writing -----------------------------------------------------------------------------------------------

    def exclusive(self) -> AbstractContextManager[Append]:
        raise OSError(errno.EROFS, "a saver can't be kept from being written to by others, so nothing is written here")


def _place_of(config: Mapping[str, Any]) -> tuple[Place, str]:
    names = config["configurable"]
    return Place(str(names["thread_id"]), str(names.get("checkpoint_ns") or "")), str(names["checkpoint_id"])


def _parent_of(item: Any) -> str | None:
    return _place_of(item.parent_config)[1] if item.parent_config else None


def _written(item: Any) -> tuple[tuple[str, str], ...]:
    return tuple((write[0], write[1]) for write in item.pending_writes or ())
