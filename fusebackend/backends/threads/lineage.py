"""`Lineage`: the checkpoints of one line, and the files and messages at each.

Values are rebuilt by `database/values.py` from the rows of `Database`, and cached: a checkpoint with a child does not
change any more, so going through a history in order reads each checkpoint once. `Reading` reads ahead meanwhile, for
each checkpoint takes a few statements, which in PostgreSQL are round trips.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from fusebackend.backends.threads.database.activity import Standing, standing
from fusebackend.backends.threads.database.rows import (
    NOTHING,
    NULL_TASK,
    Damaged,
    Database,
    Link,
    Listed,
    Mark,
    Named,
    Place,
    Saved,
    Write,
    checkpoint_names,
)
from fusebackend.backends.threads.database.values import Channel, Files, Messages, loads, overwriting, replay, update
from fusebackend.backends.threads.nodes import Record, Records

REMEMBERED: Final = 128
"""Checkpoints whose files are cached, from which those of their children follow."""


class Newest:
    """The newest checkpoint of a line, all writes to it, and the state of its thread's run."""

    def __init__(self, saved: Saved, mark: Mark, writes: list[Write]) -> None:
        self.saved = saved
        self.mark = mark
        self.writes = writes
        self.standing: Standing = standing(saved, writes)
        self.files: Mapping[str, Record] | None = None
        """The current files, once they have been asked for."""
        self.overwritten = False
        """An `Overwrite` is among the pending writes of files, so that the others don't count."""

    def grow(self, mark: Mark, more: list[Write], channel: Files) -> bool:
        """Add newer writes. False where these are more than pending writes after the known ones."""
        if mark.row != self.mark.row or mark.writes != len(self.writes) + len(more):
            return False
        last = max((write.number for write in self.writes if write.task == NULL_TASK), default=-1)
        if any(write.task != NULL_TASK or write.channel.startswith("__") or write.number <= last for write in more):
            return False
        values = _values(channel, (write for write in more if write.channel == channel.name))
        if self.standing.finished or self.overwritten or any(overwriting(value) is not NOTHING for value in values):
            self.files = None
        if self.files is not None:
            self.files = replay(channel, self.files, values)
        self.writes = self.writes + more
        self.mark = mark
        return True


MOST_AHEAD: Final = 32
"""Checkpoints read at once; an old thread's hold all of its files."""


class Reading:
    """The rows of one channel in one line. A checkpoint that is read after the one before it is read together with the
    next ones, twice as many each time."""

    def __init__(self, database: Database, place: Place, channel: str) -> None:
        self._database = database
        self._place = place
        self._channel = channel
        self._links: dict[str, Link] = {}
        self._writes: dict[str, list[Write]] = {}
        self._next: str | None = None  # the next one, in order …
        self._ahead = 1  # … and how many are read with it

    def forget(self) -> None:
        self._links.clear()
        self._writes.clear()
        self._next = None

    def expect(self, checkpoint: str, order: Sequence[str], index: int) -> None:
        """This checkpoint, at this place in the order, is read next."""
        if checkpoint not in self._links:
            self._ahead = min(self._ahead * 2, MOST_AHEAD) if checkpoint == self._next else 1
            self._links.clear()
            self._writes.clear()
            if self._ahead > 1:
                some = order[index : index + self._ahead]
                self._links = {link.id: link for link in self._database.links(self._place, some, self._channel)}
                written = self._database.writes(self._place, some, self._channel)
                self._writes = {found: written.get(found, []) for found in some}
        self._next = order[index + 1] if index + 1 < len(order) else None

    def ancestry(self, checkpoint: str) -> Generator[Link, None, None]:
        """As `Database.ancestry`."""
        met = set()
        following: str | None = checkpoint
        while following is not None and following not in met and (link := self._links.get(following)) is not None:
            met.add(following)
            following = link.parent
            yield link
        if following is not None and following not in met:
            with contextlib.closing(self._database.ancestry(self._place, following, self._channel)) as links:
                yield from links

    def writes(self, checkpoints: Sequence[str]) -> dict[str, list[Write]]:
        """As `Database.writes`."""
        found = {checkpoint: self._writes[checkpoint] for checkpoint in checkpoints if checkpoint in self._writes}
        missing = [checkpoint for checkpoint in checkpoints if checkpoint not in found]
        if missing:
            found |= self._database.writes(self._place, missing, self._channel)
        return found


class Lineage:
    """See the module's docstring. `records` makes equal records the same."""

    def __init__(self, database: Database, place: Place, records: Records) -> None:
        self.place = place
        self._database = database
        self._files = Files(records.of)
        self._names: dict[bytes, Listed] | None = None
        self._listed: dict[str, Listed] = {}
        self._known_names: dict[Listed, Named] = {}
        self._marks: dict[str, Mark] = {}
        self._before: OrderedDict[str, Mapping[str, Record]] = OrderedDict()
        self._newest: Newest | None = None
        self.missing: str | None = None
        """A deleted checkpoint that others follow from."""
        self._reading = Reading(database, place, self._files.name)
        self._order: tuple[list[str], dict[str, int]] | None = None  # the ids, and the place of each

    # -- checkpoints -------------------------------------------------------------------------------------------

    def names(self) -> Mapping[bytes, Listed]:
        """The checkpoints by name."""
        if self._names is None:
            self._mark()
            unknown = [checkpoint for checkpoint in self._marks if checkpoint not in self._listed]
            for listed in self._database.listed(self.place, unknown):
                self._listed[listed.id] = listed
            self._names = checkpoint_names((self._listed[found] for found in sorted(self._listed)), self._known_names)
        return self._names

    def _mark(self) -> None:
        """Record the marks before anything is read, so that later changes show."""
        if not self._marks:
            self._marks = self._database.marks(self.place)

    def forget(self) -> None:
        """Drop everything."""
        self.missing = None
        self._names, self._newest, self._order = None, None, None
        self._reading.forget()
        self._marks.clear()
        self._listed.clear()
        self._known_names.clear()
        self._before.clear()

    def let_go(self) -> None:
        """Drop values. The marks stay: changes show by them."""
        self._newest = None
        self._reading.forget()
        self._before.clear()

    def verify(self) -> frozenset[str] | None:
        """The ids of checkpoints that have changed since the last call.

        None where that is unknown: there are no marks, or an older checkpoint has changed, from which others follow.
        """
        if not self._marks:
            self.forget()
            return None
        before, now = self._marks, self._database.marks(self.place)
        changed = {found for found in before.keys() | now.keys() if before.get(found) != now.get(found)}
        if any(found < max(before) for found in changed):
            self.forget()  # the past has changed: a deletion, or a manual edit
            return None
        if changed:
            if not self._grown(now):
                self._newest = None
            self._names, self._order, self._marks = None, None, now
            self._reading.forget()
            for found in changed:
                self._before.pop(found, None)
                self._listed.pop(found, None)
        return frozenset(changed)

    def _grown(self, now: Mapping[str, Mark]) -> bool:
        """Whether the newest checkpoint is the same but for some more writes, which are added."""
        newest = self._newest
        if newest is None or newest.saved.id != max(now, default=None):
            return False
        mark = now[newest.saved.id]
        return newest.grow(
            mark, self._database.writes_since(self.place, newest.saved.id, newest.mark.last), self._files
        )

    def newest_id(self) -> str | None:
        return self._database.newest(self.place)

    def newest(self) -> Newest | None:
        if self._newest is None:
            self._mark()
            checkpoint = self._database.newest(self.place)
            if checkpoint is not None:
                saved = self._database.saved(self.place, checkpoint)
                writes = self._database.writes(self.place, [checkpoint]).get(checkpoint, [])
                self._newest = Newest(saved, self._marks.get(checkpoint, Mark(None)), writes)
        return self._newest

    # -- values ------------------------------------------------------------------------------------------------

    def files_at(self, checkpoint: str) -> Mapping[str, Record]:
        """The files of LangGraph's `get_state` for this checkpoint.

        Raises:
            Damaged: a needed value can't be read.
            OSError: the database can't.
        """
        self._mark()
        if self._order is None:
            order = sorted(self._marks)
            self._order = order, {found: index for index, found in enumerate(order)}
        order, places = self._order
        if checkpoint in places:
            self._reading.expect(checkpoint, order, places[checkpoint])
        own = self._reading.writes([checkpoint]).get(checkpoint, [])
        base = self._base(self._files, self._reading, checkpoint, self._before)
        return update(self._files, base, _values(self._files, _of(own, self._files, {NULL_TASK})))

    def files_now(self) -> Mapping[str, Record]:
        """The files of `get_state` without a checkpoint: with the writes of finished tasks."""
        newest = self.newest()
        if newest is None:
            return {}
        if newest.files is None:
            base = self._base(self._files, self._reading, newest.saved.id, self._before)
            pending = _values(self._files, _of(newest.writes, self._files, {NULL_TASK}))
            done = _values(self._files, _of(newest.writes, self._files, newest.standing.finished))
            newest.overwritten = any(overwriting(value) is not NOTHING for value in pending)
            newest.files = update(self._files, update(self._files, base, pending), done)
        return newest.files

    def messages_now(self) -> list[dict[str, Any]]:
        """The conversation, as plain messages."""
        newest = self.newest()
        if newest is None:
            return []
        channel = Messages()
        reading = Reading(self._database, self.place, channel.name)
        base = self._base(channel, reading, newest.saved.id, OrderedDict())
        pending = _values(channel, _of(newest.writes, channel, {NULL_TASK}))
        done = _values(channel, _of(newest.writes, channel, newest.standing.finished))
        return list(update(channel, update(channel, base, pending), done).values())

    @property
    def keeps_files(self) -> bool:
        """Whether the agent keeps files in its state: its newest checkpoint has a version of them, or counts writes."""
        newest = self.newest()
        if newest is None:
            return False
        counters = newest.saved.metadata.get("counters_since_delta_snapshot")
        return self._files.name in newest.saved.versions or (
            isinstance(counters, Mapping) and self._files.name in counters
        )

    def _base(
        self, channel: Channel, reading: Reading, checkpoint: str, known: OrderedDict[str, Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """A channel's value at a checkpoint, without the writes to it. `known` caches such values."""
        value: Mapping[str, Any] = {}
        start: str | None = None  # the checkpoint with this value
        above: str | None = None
        chain: list[str] = []  # those that follow from it, newest first
        with contextlib.closing(reading.ancestry(checkpoint)) as links:
            for link in links:
                above = link.parent
                if link.stored is not NOTHING:
                    start, value = link.id, channel.whole(link.stored)
                    known[start] = value
                    break
                if link.id == checkpoint and not link.versioned:
                    return {}
                chain.append(link.id)
                if link.parent is not None and link.parent in known:
                    start, value = link.parent, known[link.parent]
                    break
            else:
                self.missing = above or self.missing
        chain.reverse()
        steps = ([start] if start is not None else []) + chain[:-1]
        writes = reading.writes(steps)
        for found in chain:
            if start is not None:
                value = replay(channel, value, _values(channel, writes.get(start, ())))
            known[found] = value
            start = found
        while len(known) > REMEMBERED:
            known.popitem(last=False)
        return value


def _of(writes: Iterable[Write], channel: Channel, tasks: Container[str]) -> Iterator[Write]:
    return (write for write in writes if write.channel == channel.name and write.task in tasks)


def _values(channel: Channel, writes: Iterable[Write]) -> list[Any]:
    try:
        return [loads(write.value) for write in writes]
    except Damaged as error:
        raise Damaged(f"a write to '{channel.name}': {error}") from None
