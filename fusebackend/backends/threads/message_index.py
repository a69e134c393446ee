"""`MessageIndex`: the names, sizes and times of a line's messages, and which checkpoint brought each.

`messages/`, `messages.jsonl` and `transcript.md` follow from it. `LineIndex` reads the checkpoints for it.

A message is found by its content and id, and has the number of its first appearance over all checkpoints. A removed
message keeps its file in `messages/`, a changed message gets another. The pending writes of a step that has not
ended are not in it.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from fusebackend.backends.threads import documents
from fusebackend.backends.threads.conversation import files_of, one_line, section, title
from fusebackend.backends.threads.database.rows import CheckpointMark, Damaged
from fusebackend.backends.threads.database.values import Message
from fusebackend.backends.threads.json_text import compact, encoded, plain
from fusebackend.backends.threads.lineage import Lineage
from fusebackend.base.waiting import will_wait

MAX_NOTE_CHARS: Final = 120

UNMEASURED: Final = -1

_DIGEST_BYTES: Final = 12


class Said(NamedTuple):
    """The conversation at one checkpoint. Sizes are in bytes."""

    id: str
    mark: list[Any]
    time_ns: int
    added: int
    """Messages that no older checkpoint has."""
    messages_bytes: int
    tools: list[str]
    """The tools whose results it brought."""
    error: str | None


class IndexedMessage(NamedTuple):
    """A message."""

    digest: str
    """Of all but its id."""
    id: str | None
    step: int
    """The place of the checkpoint that brought it …"""
    position: int
    """… and its own in the conversation there."""
    section_bytes: int
    """`UNMEASURED` until `transcript.md` is looked at: a search through `messages/` does not need it."""
    files: list[tuple[str, int]]
    """The names and sizes of its files in `messages/`."""
    title: str
    """The first line that a human wrote in it, or nothing."""
    model: str
    """The model that wrote it, as it says itself, or nothing."""


class _LastMessage(NamedTuple):
    """A message of the conversation that was added last."""

    message: Message
    number: int
    end: int
    """The size of `messages.jsonl` up to here."""


class MessageIndex:
    """See the module's docstring.

    Attributes:
        said: the checkpoints, oldest first.
        messages: every message; its number is its place, counted from 1.
        last: for each message the place of the newest checkpoint with it, and its position there. Worked out by `end`.
        title: the first line that a human wrote, or nothing.
        model: the newest model that gave its name, or nothing.
        messages_bytes: of `messages.jsonl`.
    """

    def __init__(
        self,
        lineage: Lineage,
        said: list[Said],
        messages: list[IndexedMessage],
        last: list[tuple[int, int]],
        messages_bytes: int,
    ) -> None:
        self._lineage = lineage
        self.said = said
        self.messages = messages
        self.last = last
        self.messages_bytes = messages_bytes
        self._unread()
        self._sort()

    def _unread(self) -> None:
        self._conversation: Mapping[str, Message] | None = None  # that was added last …
        self._read: list[_LastMessage] = []  # … its messages …
        self._used: set[int] = set()  # … and their numbers

    @property
    def title(self) -> str:
        return self.title_at(len(self.said))

    @property
    def model(self) -> str:
        return next((message.model for message in reversed(self.messages) if message.model), "")

    def title_at(self, place: int) -> str:
        """The title as it was known at a checkpoint, on which the size of its patch depends."""
        return next((message.title for message in self.messages if message.title and message.step <= place), "")

    # -- reading the line --------------------------------------------------------------------------------------

    def kept(self, order: Sequence[str], marks: Mapping[str, CheckpointMark]) -> int:
        """How many checkpoints from the first on are known as they are now."""
        kept = 0
        for said, checkpoint in zip(self.said, order, strict=False):
            if said.id != checkpoint or said.mark != _plain(marks[checkpoint]):
                break
            kept += 1
        return kept

    def cut(self, kept: int) -> None:
        """Drop the checkpoints from this place on, and the messages that they brought."""
        self._unread()
        del self.said[kept:]
        left = sum(message.step < kept for message in self.messages)
        del self.messages[left:], self.last[left:]
        self._sort()
        for number, (place, _) in enumerate(self.last):
            if place >= kept:
                self.last[number] = (self.messages[number].step, self.messages[number].position)

    def _sort(self) -> None:
        """Sort the messages by content."""
        self._by_digest: dict[str, list[int]] = {}
        for number, message in enumerate(self.messages):
            self._by_digest.setdefault(message.digest, []).append(number)

    def add(self, checkpoint: str, mark: CheckpointMark, time_ns: int, *, sections: bool) -> None:
        """Add the conversation at the checkpoint that follows; with `sections`, measure those of `transcript.md`."""
        known = len(self.messages)
        error: str | None = None
        tools: list[str] = []
        try:
            conversation = self._lineage.conversation_at(checkpoint)
        except Damaged as found:
            conversation, error = {}, str(found)
            size = len(documents.error_line(found))
            self._follow({}, time_ns, sections=sections)
        else:
            if conversation is not self._conversation:
                tools = self._follow(conversation, time_ns, sections=sections)
            size = self._read[-1].end if self._read else 0
        self._conversation = conversation
        added = len(self.messages) - known
        self.said.append(Said(checkpoint, _plain(mark), time_ns, added, size, tools, error))

    def _follow(self, conversation: Mapping[str, Message], time_ns: int, *, sections: bool) -> list[str]:
        """Go on from the conversation added last to that of the next checkpoint. Returns the tools with new results."""
        place, messages = len(self.said), list(conversation.values())
        same = self._same(messages)
        self._date(place - 1, same)
        read, used = self._read, self._used
        used.difference_update(one.number for one in read[same:])
        del read[same:]
        size = read[-1].end if read else 0
        tools: dict[str, None] = {}
        for position in range(same, len(messages)):
            message = messages[position]
            digest, line_bytes = _digest(message)
            size += line_bytes
            number = self._find(digest, message.get("id"), used)
            if number is None:
                number = len(self.messages)
                size_there = len(section_bytes(number + 1, message, time_ns)) if sections else UNMEASURED
                self._describe(number, digest, message, place, position, size_there)
                if message.get("type") == "tool" and message.get("name"):
                    tools[str(message["name"])] = None
            used.add(number)
            read.append(_LastMessage(message, number, size))
        return list(tools)

    def _same(self, messages: Sequence[Message]) -> int:
        """How many messages at the beginning are those of the conversation added last. It takes no step of Python for
        each message: at each checkpoint of a long thread all are compared, and most only add some."""
        before = list(self._conversation.values()) if self._conversation is not None else []
        if messages[: len(before)] == before:
            return len(before)
        return sum(takewhile(bool, map(operator.is_, map(operator.itemgetter(0), self._read), messages)))

    def _date(self, place: int, start: int) -> None:
        """This place is the newest with the messages of the conversation added last, from position `start` on."""
        for position in range(start, len(self._read)):
            self.last[self._read[position].number] = (place, position)

    def _find(self, digest: str, id_: Any, used: set[int]) -> int | None:
        """The number of a message. A message without an id, from a pending write, is the same with an id."""
        numbers = [number for number in self._by_digest.get(digest, ()) if number not in used]
        if id_ is None:
            return numbers[0] if numbers else None
        for number in numbers:
            if self.messages[number].id == str(id_):
                return number
        for number in numbers:
            if self.messages[number].id is None:
                self.messages[number] = self.messages[number]._replace(id=str(id_))
                return number
        return None

    def _describe(self, number: int, digest: str, message: Message, place: int, position: int, size: int) -> None:
        id_ = message.get("id")
        made = IndexedMessage(
            digest=digest,
            id=None if id_ is None else str(id_),
            step=place,
            position=position,
            section_bytes=size,
            files=[(file.name, len(file.data)) for file in files_of(number + 1, message)],
            title=title([message]),
            model=_model(message),
        )
        self.messages.append(made)
        self.last.append((place, position))
        self._by_digest.setdefault(digest, []).append(number)

    def measure(self, message_of: Callable[[int], Mapping[str, Any]]) -> bool:
        """Measure all sections of `transcript.md`. Returns whether there were any to measure.

        Args:
            message_of: gives a message by its place, as for the transcript.
        """
        unmeasured = [place for place, message in enumerate(self.messages) if message.section_bytes == UNMEASURED]
        if unmeasured:
            will_wait()
        for place in unmeasured:
            message = self.messages[place]
            size = len(section_bytes(place + 1, message_of(place), self.said[message.step].time_ns))
            self.messages[place] = message._replace(section_bytes=size)
        return bool(unmeasured)

    def end(self) -> None:
        """All checkpoints are known. Called while what the newest one needs is at hand."""
        self._date(len(self.said) - 1, 0)
        self._unread()
        newest = self.said[-1] if self.said else None
        if newest is not None and newest.error is None and not newest.mark[1]:  # there are no writes to it
            self.messages_bytes = newest.messages_bytes
        else:
            self.messages_bytes = len(documents.messages_now(self._lineage))


def _plain(mark: CheckpointMark) -> list[Any]:
    return [mark.row, mark.writes, mark.last]


def section_bytes(number: int, message: Mapping[str, Any], time_ns: int) -> bytes:
    """A message as a part of `transcript.md`."""
    return encoded(section(number, message, time_ns))


def _digest(message: Message) -> tuple[str, int]:
    """The digest of a message, and the size of its line; worked out once for each object.

    Without its id and empty fields: a message that was written as a pair of role and text has none of these, and has
    them in the snapshot that a fork begins with.
    """
    if message.digest is None:
        content = {key: value for key, value in message.items() if key != "id" and value not in (None, {}, [])}
        data = encoded(compact(content))
        message.digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
        left_out = {key: message[key] for key in ("id", "content") if key in message and key not in content}
        rest = documents.message_line(left_out)
        # The line is both in one object: a comma and a space take the place of two braces.
        message.line_bytes = len(data) + len(rest) - (2 if data == b"{}" or rest == b"{}\n" else 0)
    return message.digest, message.line_bytes


def _model(message: Mapping[str, Any]) -> str:
    """The model that has written a message, as it says itself."""
    found = plain(message.get("response_metadata"))
    if message.get("type") != "ai" or not isinstance(found, Mapping):
        return ""
    for field in ("model_name", "model", "model_id"):
        if isinstance(found.get(field), str):
            return one_line(found[field], MAX_NOTE_CHARS)
    return ""
