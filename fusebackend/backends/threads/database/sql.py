"""`SaverTables`: the tables of LangGraph's savers, read by the same statements in SQLite and PostgreSQL.

The two dialects are data: `SaverDialect` names what differs in tables and columns, and `Statements` are made from it. A
dialect's module has the rest: its connection, its news, and how it stores a checkpoint.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from fusebackend.backends.threads.database.activity import PRUNED_NEXT, next_nodes
from fusebackend.backends.threads.database.rows import (
    NULL_TASK,
    Append,
    CheckpointMark,
    Damaged,
    Database,
    LeftOut,
    Link,
    Outline,
    Place,
    Portion,
    Raw,
    Saved,
    Write,
)
from fusebackend.backends.threads.database.values import IN_DOCUMENT, SNAPSHOT, Ext, joined, loads, parts_of
from fusebackend.base.errors import oserror

LINE: Final = "thread_id = :thread AND checkpoint_ns = :namespace"

_WRITE_TYPES: Final = (str, str, str, int, str)
"""Of the columns that tell which write a row is: checkpoint, path of the task, task, place and channel."""


class SaverDialect(NamedTuple):
    """The differences in the tables of two savers."""

    tables: Mapping[str, str]
    """The needed columns of each table, that of writes last."""
    writes: str
    """The table of writes."""
    value: str
    """Its column with a value."""
    order: str
    """Grows with each write."""
    row: str
    """Differs when a checkpoint is stored anew."""
    is_text: str
    """A condition that leaves out rows whose column `{}` is no text."""
    among: str
    """The condition for several checkpoints."""
    links: str
    """The statement for the rows of `_link`, the id first, of several checkpoints and a channel."""
    document: str
    """The columns with the type and the bytes of a checkpoint."""
    placeholders: Callable[[str], str]
    """From `:name` to the driver's placeholders."""
    size: str
    """The bytes of a column `{}`, which is not read for it."""
    contains: str
    """A condition that the bytes `{}` are in a column `{}`."""
    changed: str
    """What is set in a checkpoint's row, with `:document` and `:metadata`, so that its mark changes."""
    values_beside: str = ""
    """The statement for channel, type and bytes of a checkpoint's values that are kept apart, where any are."""
    sizes_beside: str = ""
    """The statement for channel, version and size of the values of a line that are kept apart, 0 for none, where any
    are."""
    remove_beside: str = ""
    """The statement that deletes such a value."""
    lock_writers: str = ""
    """The statement that keeps other writers out, where a transaction doesn't."""
    lock_prunes: str = ""
    """The same for others that prune; agents don't wait for it."""


Execute: TypeAlias = Callable[..., list[Any]]
"""Run a statement with values by name, and return its rows."""

COUNTERS: Final = "counters_since_delta_snapshot"
VERSIONED_WRITES: Final = "delta_writes_versioned"
"""Metadata of a graph with delta channels; LangGraph.js has the second only, and does not name the channels."""

MEDIUM: Final = "deepagents_blob"
"""The key of a medium's digest in a message: deepagents ≥ 0.7.32 keeps it as a file of some route."""

_MEDIA: Final = re.compile(rb"%s[^0-9a-f]{1,4}([0-9a-f]{64})" % MEDIUM.encode())
"""It with its digest, in MessagePack or JSON."""

PRUNED: Final = "pruned"
"""In a document and its metadata: the channels that a checkpoint has lost. LangGraph shows the latter."""

LOST: Final = LeftOut("it was pruned, as nothing that was kept follows from it")
"""Stands for their values."""


class Statements:
    """The SQL of a dialect. Values are `thread`, `namespace`, `checkpoint`, `channel` and so on, by name."""

    def __init__(self, dialect: SaverDialect, *, has_task_path: bool) -> None:
        def text(column: str) -> str:
            return dialect.is_text.format(column)

        make, of_writes = dialect.placeholders, f"FROM {dialect.writes} WHERE {LINE}"
        task_path = "task_path" if has_task_path else "''"
        write = (
            f"SELECT checkpoint_id, {task_path}, task_id, idx, channel, type, {dialect.value}, "
            f"{dialect.order} {of_writes}"
        )
        newest = f"SELECT max(checkpoint_id) FROM checkpoints WHERE checkpoint_id >= ''{text('checkpoint_id')}"
        self.threads = make(f"""
            WITH RECURSIVE found(id) AS (
                SELECT min(thread_id) FROM checkpoints WHERE thread_id >= ''{text("thread_id")}
                UNION ALL
                SELECT (SELECT min(thread_id) FROM checkpoints WHERE thread_id > found.id{text("thread_id")})
                FROM found WHERE found.id IS NOT NULL
            )
            SELECT id, ({newest} AND thread_id = found.id AND checkpoint_ns = '') FROM found WHERE id IS NOT NULL
        """)
        self.namespaces = make(f"""
            WITH RECURSIVE found(ns) AS (
                SELECT min(checkpoint_ns) FROM checkpoints
                WHERE thread_id = :thread AND checkpoint_ns >= ''{text("checkpoint_ns")}
                UNION ALL
                SELECT (SELECT min(checkpoint_ns) FROM checkpoints
                    WHERE thread_id = :thread AND checkpoint_ns > found.ns{text("checkpoint_ns")})
                FROM found WHERE found.ns IS NOT NULL
            )
            SELECT ns FROM found WHERE ns IS NOT NULL
        """)
        self.thread = make("SELECT 1 FROM checkpoints WHERE thread_id = :thread LIMIT 1")
        self.newest = make(f"{newest} AND {LINE}")
        self.marks = make(f"SELECT checkpoint_id, {dialect.row} FROM checkpoints WHERE {LINE}")
        self.marks_of_writes = make(
            f"SELECT checkpoint_id, count(*), max({dialect.order}) {of_writes} GROUP BY checkpoint_id"
        )
        self.values_beside = make(dialect.values_beside)
        self.links = make(dialect.links)
        # Without `:after` all are wanted, and each is above one less than itself.
        self.writes = make(
            f"{write} AND {dialect.among} AND channel = coalesce(:channel, channel) "
            f"AND {dialect.order} > coalesce(:after, {dialect.order} - 1)"
        )
        row_size = " + ".join(f"coalesce({dialect.size.format(column)}, 0)" for column in ("checkpoint", "metadata"))
        write_size = f"coalesce({dialect.size.format(dialect.value)}, 0)"
        self.checkpoint = make(
            f"SELECT parent_checkpoint_id, metadata, {dialect.document}, {row_size} FROM checkpoints "
            f"WHERE {LINE} AND checkpoint_id = :checkpoint"
        )
        self.sizes_of_writes = make(
            f"SELECT checkpoint_id, channel, sum({write_size}) {of_writes} GROUP BY checkpoint_id, channel"
        )
        self.parents_after = make(
            f"SELECT parent_checkpoint_id FROM checkpoints WHERE {LINE} AND checkpoint_id > :checkpoint"
        )
        self.orphan = make(
            f"UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE {LINE} AND checkpoint_id = :checkpoint "
            "AND parent_checkpoint_id = :parent"
        )
        self.remove = [
            make(f"DELETE FROM {table} WHERE {LINE} AND checkpoint_id = :checkpoint")
            for table in (dialect.writes, "checkpoints")
        ]
        self.sizes_beside, self.remove_beside = make(dialect.sizes_beside), make(dialect.remove_beside)
        self.remove_writes = f"{self.remove[0]} AND channel = {make(':channel')}"
        self.strip = make(f"UPDATE checkpoints SET {dialect.changed} WHERE {LINE} AND checkpoint_id = :checkpoint")
        kept = [("checkpoints", row_size, "'(checkpoints)'"), (dialect.writes, write_size, "channel")]
        valued = [(dialect.writes, dialect.value)]
        if "checkpoint_blobs" in dialect.tables:
            kept.append(("checkpoint_blobs", write_size, "channel"))
            valued.append(("checkpoint_blobs", dialect.value))
        else:
            valued.append(("checkpoints", "checkpoint"))
        self.with_media = [
            make(f"SELECT {column} FROM {table} WHERE {LINE} AND ") + dialect.contains.format(MEDIUM, column)
            for table, column in valued
        ]
        self.weigh = {
            by: [
                f"SELECT thread_id, {name}, sum({size}) FROM {table} {{where}} GROUP BY 1, 2"
                for table, size, channel in kept
                for name in [
                    {
                        "channel": channel,
                        "namespace": "checkpoint_ns",
                        "step": "'(blobs)'" if table == "checkpoint_blobs" else "checkpoint_id",
                    }[by]
                ]
            ]
            for by in ("channel", "step", "namespace")
        }
        self.append = make(f"""
            INSERT INTO {dialect.writes}
                (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, {dialect.value})
            SELECT :thread, :namespace, :checkpoint, '{NULL_TASK}', coalesce(max(idx) + 1, 0), :channel, :kind, :data
            {of_writes} AND checkpoint_id = :checkpoint AND task_id = '{NULL_TASK}' AND idx >= 0
        """)


class SaverTables(Database):
    """See the module's docstring.

    Args:
        name: the database in lines of the log.
        clock: seconds that only grow.
    """

    dialect: ClassVar[SaverDialect]

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        super().__init__(name)
        self._clock = clock

    @abc.abstractmethod
    def _ask(self, statement: str, **values: Any) -> list[Any]:
        """All rows. EIO, with the driver's message."""

    @abc.abstractmethod
    def _ask_among(self, statement: str, place: Place, checkpoints: Sequence[str], **values: Any) -> list[Any]:
        """All rows of these checkpoints."""

    def _row(self, row: object) -> object:
        """A checkpoint's row in its mark."""
        return row

    def _prepare(self, name: str, columns_of: Callable[[str], set[str]]) -> None:
        """Make the statements. EINVAL, with `name`, when these are not the tables of a saver of LangGraph.

        Args:
            columns_of: gives the columns of a table; none where there is no such table.
        """
        columns: set[str] = set()
        for table, needed in self.dialect.tables.items():
            columns = columns_of(table)
            if not columns:
                raise OSError(errno.EINVAL, f"{name} is no checkpoint database of LangGraph: it has no table '{table}'")
            if missing := sorted(set(needed.split()) - columns):
                raise OSError(
                    errno.EINVAL,
                    f"{name} is no checkpoint database of LangGraph: its table '{table}' lacks '{missing[0]}'",
                )
        self._sql = Statements(self.dialect, has_task_path="task_path" in columns)

    # -- lists -------------------------------------------------------------------------------------------------

    def threads(self) -> list[tuple[str, str | None]]:
        return self._ask(self._sql.threads)

    def has_thread(self, thread: str) -> bool:
        return bool(self._ask(self._sql.thread, thread=thread))

    def namespaces(self, thread: str) -> list[str]:
        return [row[0] for row in self._ask(self._sql.namespaces, thread=thread)]

    def marks(self, place: Place) -> dict[str, CheckpointMark]:
        # In SQLite both are answered from the tables' indexes alone.
        written = {found[0]: found[1:] for found in self._ask(self._sql.marks_of_writes, **place._asdict())}
        marks: dict[str, CheckpointMark] = {}
        for checkpoint, row in self._ask(self._sql.marks, **place._asdict()):
            if isinstance(checkpoint, str):
                marks[checkpoint] = CheckpointMark(self._row(row), *written.get(checkpoint, ()))
            else:
                self.log.tell(f"row {row} of the table 'checkpoints' has a checkpoint_id that is no text; not shown")
        return marks

    def newest(self, place: Place) -> str | None:
        found = self._ask(self._sql.newest, **place._asdict())[0][0]
        return None if found is None else str(found)

    # -- contents ----------------------------------------------------------------------------------------------

    def links(self, place: Place, checkpoints: Sequence[str], channel: str) -> dict[str, Link | Damaged]:
        found: dict[str, Link | Damaged] = {}
        for row in self._ask_among(self._sql.links, place, checkpoints, channel=channel):
            try:
                found[row[0]] = self._link(row, channel)
            except Damaged as error:
                found[row[0]] = error
        return found

    @abc.abstractmethod
    def _link(self, row: Any, channel: str) -> Link:
        """The link of a row of `SaverDialect.links`. Damaged."""

    def saved(self, place: Place, checkpoint: str) -> Saved:
        at = {**place._asdict(), "checkpoint": checkpoint}
        rows = self._ask(self._sql.checkpoint, **at)
        if not rows:
            raise oserror(errno.ENOENT)
        parent, metadata, kind, data, _ = rows[0]
        require_id(checkpoint, parent)
        document = document_of(checkpoint, kind, data)
        beside = self._ask(self._sql.values_beside, **at) if self._sql.values_beside else []
        ts = document.get("ts")
        return Saved(
            checkpoint,
            parent or None,
            ts if isinstance(ts, str) else None,
            {
                **dict.fromkeys(pruned_of(document), LOST),
                **mapping(document, "channel_values"),
                **{name: _value_or_left_out(checkpoint, name, Raw(kind, blob)) for name, kind, blob in beside},
            },
            mapping(document, "channel_versions"),
            mapping(document, "versions_seen"),
            _metadata(metadata),
        )

    def writes(
        self, place: Place, checkpoints: Sequence[str], channel: str | None = None, *, after: int | None = None
    ) -> dict[str, list[Write]]:
        """LangGraph applies those of one step by the path of the task, its id, the place.

        Rows with ids or places of wrong types are left out: LangGraph could not apply them.
        """
        rows = self._ask_among(self._sql.writes, place, checkpoints, channel=channel, after=after)
        found: dict[str, list[tuple[tuple[str, str, int], Write]]] = {}
        for checkpoint, path, task, index, name, kind, value, order in rows:
            if (type(checkpoint), type(path), type(task), type(index), type(name)) != _WRITE_TYPES:
                where = f"row {order} of the table '{self.dialect.writes}'"
                self.log.tell(f"{where} has ids that are no text or a place that is no number")
                continue
            write = Write(task, name, Raw(kind, value), index, order)
            found.setdefault(checkpoint, []).append(((path, task, index), write))
        for pairs in found.values():
            pairs.sort(key=lambda pair: pair[0])
        return {checkpoint: [write for _, write in pairs] for checkpoint, pairs in found.items()}

    # -- pruning -----------------------------------------------------------------------------------------------

    def outline(self, thread: str) -> dict[Place, list[Outline]]:
        """All checkpoints of a thread. Damaged, where one can't be read: what follows from it is not known."""
        return {
            place: self._outline_of_line(place)
            for place in (Place(thread, namespace) for namespace in self.namespaces(thread))
        }

    def _outline_of_line(self, place: Place) -> list[Outline]:
        written: dict[str, dict[str, int]] = {}
        for checkpoint, channel, size in self._ask(self._sql.sizes_of_writes, **place._asdict()):
            written.setdefault(checkpoint, {})[channel] = size
        sizes = self._ask(self._sql.sizes_beside, **place._asdict()) if self._sql.sizes_beside else []
        beside = {(channel, version): size for channel, version, size in sizes}
        rows = []
        for checkpoint in sorted(self.marks(place)):
            found = self._ask(self._sql.checkpoint, **place._asdict(), checkpoint=checkpoint)
            if not found:
                continue  # another prune has just deleted it
            parent, metadata, kind, data, size = found[0]
            require_id(checkpoint, parent)
            document, about = document_of(checkpoint, kind, data), _metadata(metadata)
            versions = {name: str(version) for name, version in mapping(document, "channel_versions").items()}
            blobs = {key[0]: beside[key] for key in versions.items() if key in beside}
            values = mapping(document, "channel_values")
            deltas = set(mapping(about, COUNTERS))
            # A snapshot of a delta channel is an extension type, or `true` in the document and a value beside it.
            deltas |= {
                name
                for name, value in values.items()
                if (isinstance(value, Ext) and value.code == SNAPSHOT) or (value is True and blobs.get(name))
            }
            writes = written.get(checkpoint, {})
            if VERSIONED_WRITES in about:
                deltas |= writes.keys()
            ts, version = document.get("ts"), document.get("v")
            rows.append(
                Outline(
                    checkpoint,
                    parent or None,
                    ts if isinstance(ts, str) else None,
                    version if isinstance(version, int) else 1,
                    {name: id_ for name, id_ in mapping(about, "parents").items() if isinstance(id_, str)},
                    versions,
                    _sizes_inside(values, kind, data),
                    frozenset(deltas),
                    writes,
                    size + sum(writes.values()),
                    blobs,
                    PRUNED in document,
                )
            )
        return rows

    def remove(self, place: Place, portions: Sequence[Portion], last: str) -> bool:
        """Delete checkpoints with all that goes with them, in one transaction.

        Args:
            last: the newest checkpoint when this was planned.

        Returns:
            False, and nothing is deleted, where a newer checkpoint follows from one of them.
        """
        with self.changing() as execute:
            if self.dialect.lock_prunes:
                execute(self.dialect.lock_prunes)
            going = {portion.id for portion in portions}
            if any(row[0] in going for row in execute(self._sql.parents_after, **place._asdict(), checkpoint=last)):
                return False
            for portion in portions:
                for orphan in portion.orphans:
                    execute(self._sql.orphan, **place._asdict(), checkpoint=orphan, parent=portion.id)
                if portion.left is not None:
                    self._strip(execute, place, portion, portion.left)
                else:
                    for statement in self._sql.remove:
                        execute(statement, **place._asdict(), checkpoint=portion.id)
                for channel, version in portion.blobs:
                    execute(self._sql.remove_beside, **place._asdict(), channel=channel, version=version)
        return True

    def _strip(self, execute: Execute, place: Place, portion: Portion, left: Collection[str]) -> None:
        """Take all but some channels out of a checkpoint."""
        at = {**place._asdict(), "checkpoint": portion.id}
        for _, metadata, kind, data, _ in execute(self._sql.checkpoint, **at):
            document = document_of(portion.id, kind, data)
            versions = mapping(document, "channel_versions")
            lost = sorted({*pruned_of(document), *versions} - set(left))
            parts = {
                "channel_versions": {name: version for name, version in versions.items() if name in left},
                "versions_seen": {},
                PRUNED: lost,
            }
            stripped = _stripped(data, kind, left, parts)
            following = next_nodes(self.saved(place, portion.id))
            about = json.dumps({**_metadata(metadata), PRUNED: lost, PRUNED_NEXT: following})
            execute(self._sql.strip, **at, document=stripped, metadata=about)
            for channel in portion.writes:
                execute(self._sql.remove_writes, **at, channel=channel)

    @abc.abstractmethod
    def changing(self) -> AbstractContextManager[Execute]:
        """A transaction. EROFS, EBUSY."""

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Append]:
        with self.changing() as execute:
            if self.dialect.lock_writers:
                execute(self.dialect.lock_writers)

            def append(place: Place, checkpoint: str, channel: str, value: Raw) -> None:
                """After the present ones: savers number the writes of a task from 0 and never replace one."""
                at = {**place._asdict(), "checkpoint": checkpoint, "channel": channel}
                execute(self._sql.append, **at, kind=value.kind, data=value.data)

            yield append

    @abc.abstractmethod
    def again(self) -> SaverTables:
        """The same database, opened once more, for another thread. The caller closes it."""

    @abc.abstractmethod
    def vacuum(self) -> None:
        """Give free space back to the disk. Meanwhile nobody can write, and the database is there twice."""

    def weigh(self, by: str, thread: str | None = None) -> Counter[tuple[str, str]]:
        """The bytes of all that is kept, or of a thread, by thread and name; `by` is a thread's channel, step or
        namespace.

        In SQLite a checkpoint holds its channels' values, and is not taken apart: these are `(checkpoints)`.
        """
        where = "" if thread is None else self.dialect.placeholders("WHERE thread_id = :thread")
        given = {} if thread is None else {"thread": thread}
        sizes: Counter[tuple[str, str]] = Counter()
        for statement in self._sql.weigh[by]:
            for id_, name, size in self._ask(statement.format(where=where), **given):
                if isinstance(id_, str) and isinstance(name, str):
                    sizes[id_, name] += size
        return sizes

    def media(self, thread: str) -> set[str]:
        """The digests of the media that the messages of a thread name, without decoding them."""
        found: set[bytes] = set()
        for namespace in self.namespaces(thread):
            for statement in self._sql.with_media:
                for (value,) in self._ask(statement, thread=thread, namespace=namespace):
                    found.update(_MEDIA.findall(value))
        return {digest.decode() for digest in found}


def document_of(checkpoint: str, kind: str | None, data: Any) -> Mapping[str, Any]:
    """A stored checkpoint; of `jsonb`, the driver has decoded it. Damaged where it is no mapping, and where it can't be
    told which channels it has."""
    try:
        found = data if kind == "jsonb" else loads(Raw(kind, data), IN_DOCUMENT)
    except Damaged as error:
        raise Damaged(f"checkpoint {checkpoint}: {error}") from None
    if not isinstance(found, Mapping):
        raise Damaged(f"checkpoint {checkpoint}: no mapping but {type(found).__name__}")
    for key in ("channel_values", "channel_versions"):
        if isinstance(part := found.get(key), LeftOut):
            raise Damaged(f"checkpoint {checkpoint}: '{key}': {part.reason}")
    require_versions(checkpoint, found.get("channel_versions"))
    return found


def require_versions(checkpoint: str, versions: object) -> None:
    """Damaged: no channel would seem to have been written to."""
    if not isinstance(versions, Mapping | None):
        raise Damaged(f"checkpoint {checkpoint}: 'channel_versions' is {type(versions).__name__}, no mapping")


def pruned_of(document: Mapping[str, Any]) -> list[str]:
    """The channels that a checkpoint has lost."""
    found = document.get(PRUNED)
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def require_id(checkpoint: str, parent: object) -> None:
    if not isinstance(parent, str | None):
        raise Damaged(f"checkpoint {checkpoint}: the id of its parent is {type(parent).__name__}, not text")


def mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping in a document; empty where there is none."""
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _sizes_inside(values: Mapping[str, Any], kind: str, data: Any) -> Mapping[str, int]:
    """The sizes of values in a stored checkpoint, 0 for what is next to nothing."""
    if not values or kind == "jsonb":
        return dict.fromkeys(values, 0)
    return {name: len(part) for name, part in parts_of(kind, parts_of(kind, data)["channel_values"]).items()}


def _stripped(data: Any, kind: str, left: Collection[str], parts: Mapping[str, Any]) -> bytes | str:
    """A stored checkpoint with these parts in place of its own, and with the values of some channels alone."""
    if kind == "jsonb":
        kept = {name: value for name, value in mapping(data, "channel_values").items() if name in left}
        return json.dumps({**data, **parts, "channel_values": kept})
    document = parts_of(kind, data)
    values = parts_of(kind, document["channel_values"]) if "channel_values" in document else {}
    kept = {name: part for name, part in values.items() if name in left}
    stripped = joined(kind, {**document, **parts, "channel_values": kept})
    return stripped.decode() if isinstance(data, str) else stripped


def value_of(checkpoint: str, channel: str, raw: Raw) -> Any:
    """A value that is kept apart. Damaged."""
    try:
        return loads(raw)
    except Damaged as error:
        raise Damaged(f"checkpoint {checkpoint}: '{channel}': {error}") from None


def _value_or_left_out(checkpoint: str, channel: str, raw: Raw) -> Any:
    try:
        return value_of(checkpoint, channel, raw)
    except Damaged as error:
        return LeftOut(str(error))


def _metadata(stored: Any) -> Mapping[str, Any]:
    """Empty where it can't be read: it names a checkpoint and explains it, and has no files."""
    try:
        found = json.loads(stored) if isinstance(stored, str | bytes) else stored
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}
