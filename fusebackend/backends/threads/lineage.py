"""`Lineage`: the checkpoints of one line, and the files and messages at each.

Values are rebuilt by `database/values.py` from the rows of `Database`, and cached: a checkpoint with a child does not
change any more, so going through a history in order reads each checkpoint once. `ChannelHistory` reads ahead meanwhile,
for each checkpoint takes a few statements, which in PostgreSQL are round trips. `Lineage.moments` reads all of each
checkpoint, once for all of its channels.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fusebackend.backends.threads.database.activity import Standing, standing
from fusebackend.backends.threads.database.rows import (
    NOTHING,
    NULL_TASK,
    CheckpointMark,
    Damaged,
    Database,
    Link,
    Place,
    Saved,
    Write,
)
from fusebackend.backends.threads.database.values import (
    Channel,
    FilesChannel,
    Message,
    MessagesChannel,
    loads,
    overwriting,
    replay,
    update,
)
from fusebackend.backends.threads.nodes import Record, Records
from fusebackend.base.recent import Recent

REMEMBERED: Final = 128
"""Checkpoints whose files are cached, from which those of their children follow."""


class NewestCheckpoint:
    """The newest checkpoint of a line, all writes to it, and the state of its thread's run."""

    def __init__(self, saved: Saved, mark: CheckpointMark, writes: list[Write]) -> None:
        self.saved = saved
        self.mark = mark
        self.writes = writes
        self.standing: Standing = standing(saved, writes)
        self.files: Mapping[str, Record] | None = None
        """The current files, once they have been asked for."""
        self.overwritten = False
        """An `Overwrite` is among the pending writes of files, so that the others don't count."""

    def grow(self, mark: CheckpointMark, more: list[Write], files: ChannelHistory) -> bool:
        """Add newer writes. False where these are more than pending writes after the known ones."""
        if mark.row != self.mark.row or mark.writes != len(self.writes) + len(more):
            return False
        last = max((write.number for write in self.writes if write.task == NULL_TASK), default=-1)
        if any(write.task != NULL_TASK or write.channel.startswith("__") or write.number <= last for write in more):
            return False
        try:
            values = files.values(more)
            if self.standing.finished or self.overwritten or any(overwriting(value) is not NOTHING for value in values):
                self.files = None
            if self.files is not None:
                self.files = replay(files.channel, self.files, values)
        except Damaged:
            return False  # the files say so, and all else of the line is shown
        self.writes = self.writes + more
        self.mark = mark
        return True

    @property
    def keeps_files(self) -> bool:
        """Whether the agent keeps files in its state: there is a version of them, or a count of writes to them."""
        counters = self.saved.metadata.get("counters_since_delta_snapshot")
        name = FilesChannel.name
        return name in self.saved.versions or (isinstance(counters, Mapping) and name in counters)


MOST_AHEAD: Final = 32
"""Checkpoints read at once; an old thread's hold all of its files."""


class ChannelHistory:
    """One channel in one line: its value at each checkpoint. A checkpoint that is read after the one before it is read
    together with the next ones, twice as many each time. So is an ancestor with those before it, which are its own
    ancestors, but in a thread with forks.

    Args:
        order: gives the ids of the line's checkpoints, sorted.
    """

    def __init__(self, database: Database, place: Place, channel: Channel, order: Callable[[], list[str]]) -> None:
        self.channel = channel
        self._order = order
        self.missing: dict[str, str] = {}
        """Deleted checkpoints, by the ids of those whose values were read and follow from them."""
        self._database = database
        self._place = place
        self._links: dict[str, Link | Damaged] = {}
        self._writes: dict[str, list[Write]] = {}
        self._before: Recent[str, Mapping[str, Any]] = Recent(REMEMBERED)  # values without the writes to a checkpoint
        self._next: str | None = None  # the next one, in order …
        self._ahead = 1  # … and how many are read with it

    def changed(self, checkpoints: Iterable[str]) -> None:
        """Drop the rows, and the values of checkpoints that were stored anew."""
        self._links.clear()
        self._writes.clear()
        self._next = None
        for checkpoint in checkpoints:
            self._before.pop(checkpoint, None)

    def know(self, saved: Saved, writes: Sequence[Write]) -> None:
        """Take a checkpoint that was read as a whole, so that it is not read again."""
        if len(self._writes) >= REMEMBERED:
            self._writes.clear()
        name = self.channel.name
        link = Link(saved.id, saved.parent, saved.ts, name in saved.versions, saved.values.get(name, NOTHING))
        self._links = {saved.id: link}  # only this one: each may hold a megabyte
        self._writes[saved.id] = [write for write in writes if write.channel == name]

    def expect(self, checkpoint: str) -> None:
        """This checkpoint is read next."""
        order = self._order()
        after = bisect.bisect_right(order, checkpoint)
        if checkpoint not in self._links:
            self._ahead = min(self._ahead * 2, MOST_AHEAD) if checkpoint == self._next else 1
            self._links.clear()
            self._writes.clear()
            if self._ahead > 1:
                self.read([checkpoint, *order[after : after + self._ahead - 1]])
        self._next = order[after] if after < len(order) else None

    def read(self, checkpoints: Sequence[str]) -> Mapping[str, Link | Damaged]:
        """Read these together, in place of what was read before."""
        self._links = self._database.links(self._place, checkpoints, self.channel.name)
        written = self._database.writes(self._place, checkpoints, self.channel.name)
        self._writes = {checkpoint: written.get(checkpoint, []) for checkpoint in checkpoints}
        return self._links

    def at(self, checkpoint: str) -> Mapping[str, Any]:
        """The value of LangGraph's `get_state` for this checkpoint. Of the writes to it only those of no task count.

        Raises:
            Damaged: it can't be read, or a checkpoint was deleted from which it follows. LangGraph silently takes what
                is left for all of it.
        """
        value = self.before(checkpoint)
        if (missing := self.missing.get(checkpoint)) is not None:
            raise Damaged(f"'{self.channel.name}' follows from checkpoint {missing}, which is gone")
        own = self._writes.get(checkpoint)
        if own is None:
            own = self._written([checkpoint]).get(checkpoint)
        return update(self.channel, value, self.values(own, {NULL_TASK})) if own else value

    def now(self, newest: NewestCheckpoint) -> Mapping[str, Any]:
        """The value of `get_state` without a checkpoint: with the writes of finished tasks. The agent goes on from what
        is left, so that counts also after a deletion."""
        base = self.before(newest.saved.id)
        pending, done = (self.values(newest.writes, tasks) for tasks in ({NULL_TASK}, newest.standing.finished))
        return update(self.channel, update(self.channel, base, pending), done)

    def values(self, writes: Iterable[Write], tasks: Container[str] | None = None) -> list[Any]:
        """The values of those writes that are to this channel (and of these tasks)."""
        name = self.channel.name
        found = (write for write in writes if write.channel == name and (tasks is None or write.task in tasks))
        try:
            return [loads(write.value) for write in found]
        except Damaged as error:
            raise Damaged(f"a write to '{name}': {error}") from None

    def before(self, checkpoint: str) -> Mapping[str, Any]:
        """The value at a checkpoint, without the writes to it."""
        known = self._before
        value: Mapping[str, Any] = {}
        start: str | None = None  # the checkpoint with this value
        missing: str | None = None
        chain: list[str] = []  # those that follow from it, newest first
        written: list[str] = []  # of these, those to which the channel is known
        for link in self._ancestry(checkpoint):
            missing = link.parent
            if link.stored is not NOTHING:
                start, value = link.id, self.channel.whole(link.stored)
                known[start], missing = value, None
                break
            if link.id == checkpoint and not link.versioned:
                return {}
            chain.append(link.id)
            if link.versioned:
                written.append(link.id)
            if link.parent is not None and link.parent in known:
                start, value = link.parent, known[link.parent]
                missing = self.missing.get(start)
                break
        if missing is not None:
            self.missing.update(dict.fromkeys(written, missing))
        chain.reverse()
        steps = ([start] if start is not None else []) + chain[:-1]
        writes = self._written(steps)
        for found in chain:
            if start is not None:
                value = replay(self.channel, value, self.values(writes.get(start, ())))
            known[found] = value
            start = found
        return value

    def _ancestry(self, checkpoint: str) -> Iterator[Link]:
        """The checkpoint, then its parent, and so on to the root, or to one that is gone. Damaged."""
        met: set[str] = set()
        links, size = self._links, 1
        following: str | None = checkpoint
        while following is not None and following not in met:
            if following not in links:
                order, size = self._order(), min(size * 2, MOST_AHEAD)
                before = bisect.bisect_left(order, following)
                wanted = [following, *order[max(0, before - size + 1) : before]]
                links = self._database.links(self._place, wanted, self.channel.name)
            link = links.get(following)
            if link is None:
                return
            if isinstance(link, Damaged):
                raise link
            met.add(following)
            following = link.parent
            yield link

    def _written(self, checkpoints: Sequence[str]) -> dict[str, list[Write]]:
        """As `Database.writes`."""
        found = {checkpoint: self._writes[checkpoint] for checkpoint in checkpoints if checkpoint in self._writes}
        missing = [checkpoint for checkpoint in checkpoints if checkpoint not in found]
        if missing:
            found |= self._database.writes(self._place, missing, self.channel.name)
        return found


class Moment(NamedTuple):
    """One checkpoint, and all writes to it, or its messages alone. `saved` is the error where it can't be read."""

    id: str
    saved: Saved | Link | Damaged
    writes: list[Write]


class Lineage:
    """See the module's docstring. `records` makes equal records the same."""

    def __init__(self, database: Database, place: Place, records: Records) -> None:
        self.place = place
        self.database = database
        self.records = records
        self._marks: dict[str, CheckpointMark] = {}
        self._order: list[str] | None = None
        self.let_go()

    def _tell(self, what: str) -> None:
        self.database.log.tell(f"thread {self.place.thread!r}: {what}")

    # -- checkpoints -------------------------------------------------------------------------------------------

    def marks(self) -> Mapping[str, CheckpointMark]:
        """The checkpoints by id. Recorded before anything is read, so that later changes show."""
        if not self._marks:
            self._marks = self.database.marks(self.place)
        return self._marks

    def _in_order(self) -> list[str]:
        if self._order is None:
            self._order = sorted(self.marks())
        return self._order

    def missing(self, checkpoint: str) -> str | None:
        """A deleted checkpoint from which the files of this one follow, once these were read."""
        return self._files.missing.get(checkpoint)

    def forget(self) -> None:
        """Drop everything."""
        self._order = None
        self._marks.clear()
        self.let_go()

    def let_go(self) -> None:
        """Drop values. The marks stay: changes show by them."""
        self._newest: NewestCheckpoint | None = None
        channel = FilesChannel(self.records.of, self._tell)
        self._files = ChannelHistory(self.database, self.place, channel, self._in_order)
        self.let_go_messages()

    def let_go_messages(self) -> None:
        """Drop the conversations."""
        self._messages = ChannelHistory(self.database, self.place, MessagesChannel(), self._in_order)

    def verify(self) -> frozenset[str] | None:
        """The ids of checkpoints that have changed since the last call.

        None where that is unknown: there are no marks, or an older checkpoint has changed, from which others follow.
        """
        if not self._marks:
            self.forget()
            return None
        before, now = self._marks, self.database.marks(self.place)
        changed = {found for found in before.keys() | now.keys() if before.get(found) != now.get(found)}
        newest = max(before)
        if any(found < newest for found in changed):
            self.forget()  # the past has changed: a deletion, or a manual edit
            return None
        if changed:
            if not self._grown(now):
                self._newest = None
            self._order, self._marks = None, now
            self._files.changed(changed)
            self._messages.changed(changed)
        return frozenset(changed)

    def _grown(self, now: Mapping[str, CheckpointMark]) -> bool:
        """Whether the newest checkpoint is the same but for some more writes, which are added."""
        newest = self._newest
        if newest is None or newest.saved.id != max(now, default=None):
            return False
        id_, since = newest.saved.id, newest.mark.last
        more = self.database.writes(self.place, [id_], after=since).get(id_, [])
        return newest.grow(now[id_], more, self._files)

    def newest(self) -> NewestCheckpoint | None:
        if self._newest is None:
            marks = self.marks()
            checkpoint = self.database.newest(self.place)
            if checkpoint is not None:
                saved, writes = self.moment(checkpoint)
                self._newest = NewestCheckpoint(saved, marks.get(checkpoint, CheckpointMark(None)), writes)
        return self._newest

    def moments(self, checkpoints: Sequence[str], *, whole: bool = True) -> Iterator[Moment]:
        """These checkpoints, in this order: all of each, or what `conversation_at` needs. That and `files_at` of one
        read nothing more, before the next is taken."""
        newest = max(self._marks, default=None)
        try:
            for start in range(0, len(checkpoints), MOST_AHEAD):
                some = checkpoints[start : start + MOST_AHEAD]
                if whole:
                    written = self.database.writes(self.place, some)
                    for checkpoint in some:
                        yield self._moment(checkpoint, written.pop(checkpoint, []), is_newest=checkpoint == newest)
                else:
                    found = self._messages.read(some)
                    for checkpoint in some:
                        yield Moment(checkpoint, found.get(checkpoint) or Damaged("it has just been deleted"), [])
        finally:
            self._files.changed(())
            self.let_go_messages()

    def _moment(self, checkpoint: str, writes: list[Write], *, is_newest: bool) -> Moment:
        try:
            saved = self.database.saved(self.place, checkpoint)
        except Damaged as error:
            return Moment(checkpoint, error, writes)
        self._files.know(saved, writes)
        self._messages.know(saved, writes)
        if self._newest is None and is_newest:
            self._newest = NewestCheckpoint(saved, self._marks[checkpoint], writes)
        return Moment(checkpoint, saved, writes)

    # -- values ------------------------------------------------------------------------------------------------

    def files_at(self, checkpoint: str) -> Mapping[str, Record]:
        """The files of LangGraph's `get_state` for this checkpoint.

        Raises:
            Damaged: a needed value can't be read, or was deleted.
            OSError: the database can't.
        """
        self._files.expect(checkpoint)
        return self._files.at(checkpoint)

    def files_now(self) -> Mapping[str, Record]:
        """The files of `get_state` without a checkpoint."""
        newest = self.newest()
        if newest is None:
            return {}
        if newest.files is None:
            pending = self._files.values(newest.writes, {NULL_TASK})
            newest.overwritten = any(overwriting(value) is not NOTHING for value in pending)
            newest.files = self._files.now(newest)
        return newest.files

    def conversation_at(self, checkpoint: str) -> Mapping[str, Message]:
        """The conversation of `get_state` for this checkpoint: plain messages by id. Raises as `files_at`. One object
        for checkpoints that are read in order and have equal values."""
        return self._messages.at(checkpoint)

    def messages_now(self) -> list[Message]:
        """The conversation of the newest checkpoint, as plain messages, without the writes to it. When their step ends
        its messages get their order, and their ids: a reader of a file that grows would find half of a line."""
        newest = max(self.marks(), default=None)
        return [] if newest is None else list(self._messages.before(newest).values())

    def moment(self, checkpoint: str) -> tuple[Saved, list[Write]]:
        """A checkpoint, and the writes to it. Damaged; ENOENT."""
        saved = self.database.saved(self.place, checkpoint)
        return saved, self.database.writes(self.place, [checkpoint]).get(checkpoint, [])
