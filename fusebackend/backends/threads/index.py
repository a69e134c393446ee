"""`LineIndex`: the names, sizes and times of all that is computed from one line of checkpoints.

`ls -l` shows exact sizes, and they follow from the contents: the whole of a conversation at each checkpoint. So the
line is read once, checkpoint by checkpoint, and the index of it cached by the server (`IndexCache`); later only the
new checkpoints are read. A checkpoint whose mark has changed is read again, with all that follow it.

The messages alone are indexed (`MessageIndex`) as long as nobody asks for more. They need one channel of each
checkpoint, so a search through the messages of all threads does not read their files and states: that took three
quarters of it.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import logging
import operator
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

import msgspec

from fusebackend.backends.threads import documents
from fusebackend.backends.threads.conversation import files_of, one_line, section, title
from fusebackend.backends.threads.database.rows import (
    CheckpointMark,
    Damaged,
    Place,
    Saved,
    checkpoint_name,
    time_ns_of,
)
from fusebackend.backends.threads.database.values import Message, compact, encoded, plain
from fusebackend.backends.threads.lineage import Lineage, Moment
from fusebackend.backends.threads.nodes import Record
from fusebackend.base import paths, xdg
from fusebackend.base.errors import oserror
from fusebackend.base.git_patch import Side, file_patch
from fusebackend.base.recent import Recent
from fusebackend.base.waiting import will_wait
from fusebackend.remote.keyed import ListedTree

# -- messages ----------------------------------------------------------------------------------------------------
#
# `MessageIndex`: the names, sizes and times of a line's messages, and which checkpoint brought each.
#
# `messages/`, `messages.jsonl` and `transcript.md` follow from it. `LineIndex` reads the checkpoints for it.
#
# A message is found by its content and id, and has the number of its first appearance over all checkpoints. A removed
# message keeps its file in `messages/`, a changed message gets another. The pending writes of a step that has not
# ended are not in it.

MAX_NOTE_CHARS: Final = 120

UNMEASURED: Final = -1

_DIGEST_BYTES: Final = 12


class Said(NamedTuple):
    """The conversation at one checkpoint. Sizes are in bytes."""

    id: str
    mark: CheckpointMark
    time_ns: int
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
    """See the comment above.

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
            if said.id != checkpoint or said.mark != marks[checkpoint]:
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
        self.said.append(Said(checkpoint, mark, time_ns, size, tools, error))

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
        if newest is not None and newest.error is None and not newest.mark.writes:
            self.messages_bytes = newest.messages_bytes
        else:
            self.messages_bytes = len(documents.messages_now(self._lineage))


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


# -- the cache ---------------------------------------------------------------------------------------------------
#
# `IndexCache`: the indexes of a database's lines in files of the server, so that a first `ls -l` reads no checkpoint.
#
# The directory is `$XDG_CACHE_HOME/fusebackend/threads/<digest of the database>/`, with a file for each line, readable
# by its owner only: it has titles and names. An index is used for checkpoints whose marks are those that it was made
# with, so a file that is lost, damaged, old or of another database costs time and nothing else. Any error in writing
# one is logged once, and no more are written.

FORMAT: Final = 14
"""Of an index. Any other number, and any change in how documents look, is a reason to read the line again."""

MAX_BYTES: Final = 256 << 20
"""Of all files. More are removed when a server starts."""

log = logging.getLogger(__name__)


class IndexCache:
    """See the comment above. Servers may share it: a file is replaced as a whole.

    Args:
        database: what tells the database from others, without secrets.
    """

    def __init__(self, database: str) -> None:
        self._directory = xdg.path("XDG_CACHE_HOME", "threads", _file_digest(os.fsencode(database)))
        self._is_written = True
        try:
            with contextlib.suppress(FileNotFoundError):  # there is none, or another server has just replaced a file
                with os.scandir(self._directory) as entries:
                    size = sum(entry.stat().st_size for entry in entries)
                if size > MAX_BYTES:
                    shutil.rmtree(self._directory)
        except OSError as error:
            self._fail(error)

    def get(self, place: Place) -> CachedIndex | None:
        """A line's index; None where there is none, or another version of it, or something else."""
        try:
            with open(self._path(place), "rb") as file:
                # msgspec makes the records in C and checks their types: a third of the time of `json`.
                return msgspec.json.decode(zlib.decompress(file.read()), type=CachedIndex)
        except (OSError, ValueError, RecursionError, zlib.error, msgspec.MsgspecError):
            return None  # the line is read again

    def put(self, place: Place, record: CachedIndex) -> None:
        if not self._is_written:
            return
        try:
            data = zlib.compress(msgspec.json.encode(record), 1)
            os.makedirs(self._directory, mode=0o700, exist_ok=True)  # another server may have removed it
            # Not synced: what is lost with the machine is read again.
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                try:
                    file.write(data)
                    file.flush()
                    os.replace(file.name, self._path(place))
                except OSError:
                    os.unlink(file.name)
                    raise
        except (UnicodeEncodeError, FileNotFoundError):
            return  # half of a surrogate pair in a name, or the directory has just gone: the line is read again
        except OSError as error:
            self._fail(error)

    def _path(self, place: Place) -> str:
        return os.path.join(self._directory, _file_digest(repr((FORMAT, *place)).encode()))

    def _fail(self, error: OSError) -> None:
        log.warning("the cache '%s' can't be used, so first looks read each checkpoint: %s", self._directory, error)
        self._is_written = False


def _file_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# -- the index ---------------------------------------------------------------------------------------------------

RECENT_FILES: Final = 64
"""Checkpoints whose files are at hand while a line is read, to compare those of their children with."""

UNREADABLE: Final = -1
"""The number of changed files where the files can't be read."""

Files = Mapping[str, Record]


class Step(NamedTuple):
    """A checkpoint. Sizes are in bytes."""

    said: Said
    """Its id, time and conversation."""
    name: str
    parent: str | None
    step: int | None
    source: str | None
    node: str
    """The node that led to it, or else its source."""
    next: list[str]
    interrupts: list[str]
    """What is waited for, a line each."""
    state_bytes: int
    changed: int
    """Files that differ from those of the parent; `UNREADABLE`."""
    patch_bytes: int
    """0 where no file has changed."""
    version: int
    """Of the files: the same number for the same files."""
    error: str | None


class CachedIndex(NamedTuple):
    """What the cache has of a line."""

    steps: list[Step]
    said: list[Said]
    """The conversations at the checkpoints that follow the steps."""
    state_bytes: int
    messages: list[IndexedMessage]
    last: list[tuple[int, int]]
    messages_bytes: int


class LineIndex:
    """See the module's docstring.

    Attributes:
        steps: the checkpoints, oldest first: all, or those of which more than the messages was read.
        talk: the messages of all checkpoints.
        state_bytes: of `state.json`, where all steps were read.
    """

    def __init__(self, lineage: Lineage, cache: IndexCache | None) -> None:
        self._lineage = lineage
        self._cache = cache
        self._files: Recent[str, Files] = Recent(RECENT_FILES)
        self._begin(cache.get(lineage.place) if cache is not None else None)

    def _begin(self, known: CachedIndex | None = None) -> None:
        index = known or CachedIndex([], [], 0, [], [], 0)
        self.steps = index.steps
        self.state_bytes = index.state_bytes
        said = [step.said for step in index.steps] + index.said
        self.talk = MessageIndex(self._lineage, said, index.messages, index.last, index.messages_bytes)

    def _keep(self) -> None:
        if self._cache is not None:
            said = self.talk.said[len(self.steps) :]
            kept = CachedIndex(
                self.steps, said, self.state_bytes, self.talk.messages, self.talk.last, self.talk.messages_bytes
            )
            self._cache.put(self._lineage.place, kept)

    # -- reading the line --------------------------------------------------------------------------------------

    def refresh(self, *, steps: bool) -> None:
        """Read the checkpoints that are new, or have changed: their messages, and with `steps` all else of them."""
        marks = self._lineage.marks()
        order = sorted(marks)
        known = self.talk.kept(order, marks)
        is_known = known == len(self.talk.said) == len(order)
        del self.steps[known:]
        start = len(self.steps) if steps else known
        if is_known and start == known:
            return
        will_wait()
        try:
            if not is_known:
                self.talk.cut(known)
            self._names = {paths.to_name(step.name) for step in self.steps}
            for place, moment in enumerate(self._lineage.moments(order[start:], whole=steps), start):
                if place >= known:
                    ts = None if isinstance(moment.saved, Damaged) else moment.saved.ts
                    self.talk.add(moment.id, marks[moment.id], time_ns_of(moment.id, ts) or 0, sections=steps)
                if steps:
                    self._add(moment)
                if moment.id == order[-1]:
                    self._end()
            if start == len(order):  # the newest ones were deleted
                self._end()
        except BaseException:
            self._begin()
            raise
        finally:
            self._files.clear()

    def _add(self, moment: Moment) -> None:
        said = self.talk.said[len(self.steps)]
        saved = moment.saved if isinstance(moment.saved, Saved) else None
        error = [str(moment.saved)] if saved is None else []
        if said.error is not None:
            error.append(said.error)
        parent_id = saved.parent if saved is not None else None
        parent = next((step for step in reversed(self.steps) if step.said.id == parent_id), None)
        metadata = saved.metadata if saved is not None else {}
        step = found if isinstance(found := metadata.get("step"), int) else None
        source = found if isinstance(found := metadata.get("source"), str) else None
        node = _node(saved, parent, source)
        name = checkpoint_name(moment.id, said.time_ns or None, step, node, self._names)
        files = self._files_at(moment.id, error)  # before its parent's: they may be read anew
        if saved is not None:
            state = documents.state(self._lineage, saved, moment.writes, lambda: files or {})
            state_bytes = len(documents.rendered(state))
        else:
            assert isinstance(moment.saved, Damaged)
            state = {"next": [], "interrupts": []}
            state_bytes = len(documents.state_error(self._lineage, moment.saved))
        made = Step(
            said=said,
            name=paths.to_text(name),
            parent=parent_id,
            step=step,
            source=source,
            node=node,
            next=state["next"] if isinstance(state["next"], list) else [],  # or an error
            interrupts=[one_line(_question(value), MAX_NOTE_CHARS) for value in state["interrupts"]],
            state_bytes=state_bytes,
            changed=UNREADABLE,
            patch_bytes=0,
            version=len(self.steps),
            error=error[0] if error else None,
        )
        before: Files | None = {} if parent_id is None else None
        if parent is not None:
            before = self._files_at(parent.said.id, [])
        if files is not None and before is not None:
            changed = len(_changed(before, files))
            if changed:
                text = patch_of(made, self.talk.title_at(len(self.steps)), before, files)
                made = made._replace(changed=changed, patch_bytes=len(text))
            else:
                made = made._replace(changed=0, version=parent.version if parent is not None else made.version)
        self._names.add(name)
        self.steps.append(made)

    def _files_at(self, checkpoint: str, error: list[str]) -> Files | None:
        """None where they can't be read; `error` gets the reason."""
        files = self._files.get(checkpoint)
        if files is None:
            try:
                files = self._lineage.files_at(checkpoint)
            except Damaged as found:
                error.append(str(found))
                return None
            self._files[checkpoint] = files
        return files

    def _end(self) -> None:
        """All checkpoints are known. Called while what the newest one needs is at hand."""
        self.talk.end()
        if len(self.steps) == len(self.talk.said):
            self.state_bytes = len(documents.state_now(self._lineage))
        self._keep()

    def measure(self, message_of: Callable[[int], Mapping[str, Any]]) -> None:
        """As `MessageIndex.measure`."""
        if self.talk.measure(message_of):
            self._keep()

    # -- contents ----------------------------------------------------------------------------------------------

    def patch(self, checkpoint: str) -> bytes:
        """The git patch of a checkpoint. Damaged; OSError; ESTALE for a checkpoint that is gone."""
        place = next((place for place, step in enumerate(self.steps) if step.said.id == checkpoint), None)
        if place is None:
            raise oserror(errno.ESTALE)
        step = self.steps[place]
        files = self._lineage.files_at(checkpoint)
        before = self._lineage.files_at(step.parent) if step.parent is not None else {}
        return patch_of(step, self.talk.title_at(place), before, files)


# -- parts of a checkpoint ---------------------------------------------------------------------------------------


def patch_of(step: Step, subject: str, before: Files, after: Files) -> bytes:
    """The git patch of one checkpoint, as `git log -p` has it; nothing where the files are the same. A file that is
    no file data is empty."""
    keys = _changed(before, after)
    old, new = _contents(before, keys), _contents(after, keys)
    changed = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    if not changed:
        return b""
    date = datetime.datetime.fromtimestamp(step.said.time_ns // 10**9, datetime.UTC)
    number = "none" if step.step is None else step.step
    tools = f": {', '.join(step.said.tools)}" if step.said.tools else ""
    subject = one_line(f"step {number}{tools}" + (f" ({subject})" if subject else ""), MAX_NOTE_CHARS)
    head = (
        f"commit {_field(step.said.id)}\nAuthor: {_field(step.node)}\nDate:   {date:%a %b %d %H:%M:%S %Y} +0000\n\n"
        f"    {subject}\n\n"
    )
    parts = [head.encode("utf-8", "surrogateescape")]
    for path in changed:
        parts += file_patch(path, _side(old.get(path)), _side(new.get(path)))
    return b"".join(parts)


def _side(data: bytes | None) -> Side | None:
    return None if data is None else Side(data)


def _field(text: str) -> str:
    """Text without line ends and control characters: a header has one line for each field."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _changed(before: Files, after: Files) -> set[str]:
    """The keys of files that differ."""
    return {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}


def _contents(files: Files, keys: set[str]) -> dict[bytes, bytes]:
    """The contents of these files by the path that `history/` shows them under."""
    found = {}
    for path, key in ListedTree(files).all():
        if key in keys:
            record = files[key]
            found[paths.to_name(path[1:])] = b"" if record.error is not None else record.data()
    return found


def _node(saved: Saved | None, parent: Step | None, source: str | None) -> str:
    """The nodes that led to a checkpoint: those that old metadata name, or that came next after its parent."""
    if saved is None or source != "loop":
        return source or "unknown"
    written = saved.metadata.get("writes")
    nodes = list(written) if isinstance(written, Mapping) else parent.next if parent is not None else []
    return "+".join(dict.fromkeys(str(node).strip("_") or "_" for node in nodes)) or source


def _question(interrupt: Any) -> str:
    """What an interrupt asks for: its value alone, where it is an `Interrupt`."""
    found = plain(interrupt)
    value = found.get("value") if isinstance(found, Mapping) and "value" in found else found
    return value if isinstance(value, str) else compact(value)
