"""`LineIndex`: the names, sizes and times of all that is computed from one line of checkpoints.

`ls -l` shows exact sizes, and they follow from the contents: the whole of a conversation at each checkpoint. So the
line is read once, checkpoint by checkpoint, and the index of it cached by the server (`index_cache.py`); later only the
new checkpoints are read. A checkpoint whose mark has changed is read again, with all that follow it.

A message is found by its content and id, and has the number of its first appearance over all checkpoints. A removed
message keeps its file in `messages/`, a changed message gets another. The pending writes of a step that has not
ended are not in it.
"""

from __future__ import annotations

import datetime
import errno
import functools
import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fusebackend.backends.threads import documents
from fusebackend.backends.threads.conversation import files_of, one_line, section, title
from fusebackend.backends.threads.database.activity import standing
from fusebackend.backends.threads.database.rows import Damaged, Mark, Saved, checkpoint_name, time_ns_of
from fusebackend.backends.threads.database.values import Message
from fusebackend.backends.threads.index_cache import IndexCache
from fusebackend.backends.threads.json_text import compact, encoded, plain
from fusebackend.backends.threads.lineage import Lineage, Moment
from fusebackend.backends.threads.nodes import Record
from fusebackend.backends.threads.patch import Header, patch
from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait
from fusebackend.remote.keys import arrange

if TYPE_CHECKING:
    import msgspec

FORMAT: Final = 4
"""Of a cached index. Any other number, and any change in how documents look, is a reason to read the line again."""

RECENT_FILES: Final = 64
"""Checkpoints whose files are at hand while a line is read, to compare those of their children with."""

UNREADABLE: Final = -1
"""The number of changed files where the files can't be read."""

MAX_NOTE_CHARS: Final = 120

_DIGEST_BYTES: Final = 12

Files = Mapping[str, Record]


class Step(NamedTuple):
    """A checkpoint. Sizes are in bytes."""

    id: str
    mark: list[Any]
    name: str
    parent: str | None
    step: int | None
    source: str | None
    node: str
    """The node that led to it, or else its source."""
    time_ns: int
    next: list[str]
    interrupts: list[str]
    """What is waited for, a line each."""
    messages: int
    """In the conversation at this checkpoint …"""
    added: int
    """… and how many of them no older checkpoint has."""
    messages_bytes: int
    state_bytes: int
    files: int
    changed: int
    """Files that differ from those of the parent; `UNREADABLE`."""
    patch_bytes: int
    """0 where no file has changed."""
    version: int
    """Of the files: the same number for the same files."""
    tools: list[str]
    """The tools whose results it brought."""
    error: str | None


class IndexedMessage(NamedTuple):
    """A message."""

    digest: str
    """Of all but its id."""
    step: int
    """The place of the checkpoint that brought it …"""
    position: int
    """… and its own in the conversation there."""
    section_bytes: int
    files: list[tuple[str, int]]
    """The names and sizes of its files in `messages/`."""


class LineIndex:
    """See the module's docstring.

    Attributes:
        steps: the checkpoints, oldest first.
        messages: every message; its number is its place, counted from 1.
        last: for each message the place of the newest checkpoint with it, and its position there.
        names: the place of a checkpoint by its name.
        title: the first line that a human wrote, or nothing.
        model: the newest model that gave its name, or nothing.
        messages_bytes, state_bytes: of `messages.jsonl` and `state.json`.
    """

    def __init__(self, lineage: Lineage, cache: IndexCache | None) -> None:
        self._lineage = lineage
        self._cache = cache
        self._clear()
        if cache is not None:
            self._restore(cache.get(lineage.place))

    def _clear(self) -> None:
        self.steps: list[Step] = []
        self.messages: list[IndexedMessage] = []
        self.last: list[tuple[int, int]] = []
        self.names: dict[bytes, int] = {}
        self.messages_bytes, self.state_bytes = 0, 0
        self._ids: list[str | None] = []
        self._by_digest: dict[str, list[int]] = {}
        self._titles: dict[int, str] = {}
        self._models: dict[int, str] = {}  # by the message that has it
        self._files: OrderedDict[str, Files] = OrderedDict()

    @property
    def title(self) -> str:
        return next(iter(self._titles.values()), "")

    @property
    def model(self) -> str:
        return next(reversed(self._models.values()), "")

    # -- reading the line --------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the checkpoints that are new, or have changed."""
        marks = self._lineage.marks()
        order = sorted(marks)
        kept = 0
        for step, checkpoint in zip(self.steps, order, strict=False):
            if step.id != checkpoint or step.mark != _plain_mark(marks[checkpoint]):
                break
            kept += 1
        if kept == len(self.steps) == len(order):
            return
        will_wait()
        self._cut(kept)
        try:
            for moment in self._lineage.moments(order[kept:]):
                self._add(moment, _plain_mark(marks[moment.id]))
                if moment.id == order[-1]:
                    self._add_now()
            if kept == len(order):  # the newest ones were deleted
                self._add_now()
        except BaseException:
            self._clear()
            raise
        finally:
            self._files.clear()
        if self._cache is not None:
            self._cache.put(self._lineage.place, self._saved())

    def _cut(self, kept: int) -> None:
        """Drop the checkpoints from this place on, and the messages that they brought."""
        del self.steps[kept:]
        self.names = {name: place for name, place in self.names.items() if place < kept}
        left = sum(message.step < kept for message in self.messages)
        del self.messages[left:], self.last[left:], self._ids[left:]
        for known in (self._titles, self._models):
            for number in [number for number in known if number >= left]:
                del known[number]
        self._sort()
        for number, (place, _) in enumerate(self.last):
            if place >= kept:
                self.last[number] = (self.messages[number].step, self.messages[number].position)

    def _sort(self) -> None:
        """Sort the messages by content."""
        self._by_digest = {}
        for number, message in enumerate(self.messages):
            self._by_digest.setdefault(message.digest, []).append(number)

    def _add(self, moment: Moment, mark: list[Any]) -> None:
        error: list[str] = []
        saved = moment.saved if isinstance(moment.saved, Saved) else None
        if saved is None:
            error.append(str(moment.saved))
        parent = self._parent(saved)
        step, source = _of_metadata(saved)
        time_ns = time_ns_of(moment.id, saved.ts if saved is not None else None)
        node = _node(saved, parent, source)
        name = checkpoint_name(moment.id, time_ns, step, node, self.names)
        following, waiting = _following(moment, saved)
        known = len(self.messages)
        messages, messages_bytes, tools = self._add_messages(moment.id, time_ns or 0, error)
        files = self._files_at(moment.id, error)  # before its parent's: they may be read anew
        made = Step(
            id=moment.id,
            mark=mark,
            name=name.decode("utf-8", "surrogateescape"),
            parent=saved.parent if saved is not None else None,
            step=step,
            source=source,
            node=node,
            time_ns=time_ns or 0,
            next=following,
            interrupts=waiting,
            messages=messages,
            added=len(self.messages) - known,
            messages_bytes=messages_bytes,
            state_bytes=0,
            files=len(files or ()),
            changed=UNREADABLE,
            patch_bytes=0,
            version=len(self.steps),
            tools=tools,
            error=error[0] if error else None,
        )
        if saved is not None:
            state = documents.state(self._lineage, saved, moment.writes, lambda: files or {})
        else:
            assert isinstance(moment.saved, Damaged)
            state = documents.state_error(self._lineage, moment.saved)
        made = made._replace(state_bytes=len(state))
        before = self._before(parent, made)
        if files is not None and before is not None:
            changed = len(_changed(before, files))
            if changed:
                text = patch_of(made, self._title_at(len(self.steps)), before, files)
                made = made._replace(changed=changed, patch_bytes=len(text))
            else:
                made = made._replace(changed=0, version=parent.version if parent is not None else made.version)
        self.names[name] = len(self.steps)
        self.steps.append(made)

    def _parent(self, saved: Saved | None) -> Step | None:
        parent = saved.parent if saved is not None else None
        return next((step for step in reversed(self.steps) if step.id == parent), None)

    def _files_at(self, checkpoint: str, error: list[str]) -> Files | None:
        files = self._files.get(checkpoint)
        if files is None:
            try:
                files = self._lineage.files_at(checkpoint)
            except Damaged as found:
                error.append(str(found))
                return None
            self._files[checkpoint] = files
            if len(self._files) > RECENT_FILES:
                self._files.popitem(last=False)
        return files

    def _before(self, parent: Step | None, step: Step) -> Files | None:
        """The files of the parent, with which those of a checkpoint are compared. None where they can't be read."""
        if parent is not None:
            return self._files_at(parent.id, [])
        return {} if step.parent is None else None

    def _add_messages(self, checkpoint: str, time_ns: int, error: list[str]) -> tuple[int, int, list[str]]:
        """Returns how many there are, the size of all as lines, and the tools whose results are new."""
        try:
            conversation = self._lineage.messages_at(checkpoint)
        except Damaged as found:
            error.append(str(found))
            return 0, len(documents.error_line(found)), []
        place = len(self.steps)
        used: set[int] = set()
        tools: dict[str, None] = {}
        size = 0
        for position, message in enumerate(conversation):
            digest, line_bytes = _digest(message)
            size += line_bytes
            number = self._find(digest, message.get("id"), used)
            if number is None:
                number = len(self.messages)
                self._describe(number, digest, message, place, position, time_ns)
                if message.get("type") == "tool" and message.get("name"):
                    tools[str(message["name"])] = None
            used.add(number)
            self.last[number] = (place, position)
        return len(conversation), size, list(tools)

    def _find(self, digest: str, id_: Any, used: set[int]) -> int | None:
        """The number of a message. A message without an id, from a pending write, is the same with an id."""
        numbers = [number for number in self._by_digest.get(digest, ()) if number not in used]
        if id_ is None:
            return numbers[0] if numbers else None
        for number in numbers:
            if self._ids[number] == str(id_):
                return number
        for number in numbers:
            if self._ids[number] is None:
                self._ids[number] = str(id_)
                return number
        return None

    def _describe(self, number: int, digest: str, message: Message, place: int, position: int, time_ns: int) -> None:
        files = [(file.name, len(file.data)) for file in files_of(number + 1, message)]
        size = len(section_bytes(number + 1, message, time_ns))
        self.messages.append(IndexedMessage(digest, place, position, size, files))
        self.last.append((place, position))
        id_ = message.get("id")
        self._ids.append(None if id_ is None else str(id_))
        self._by_digest.setdefault(digest, []).append(number)
        if not self._titles and (found := title(iter([message]))):
            self._titles[number] = found
        model = _model(message)
        if model and model != self.model:
            self._models[number] = model

    def _add_now(self) -> None:
        self.messages_bytes = len(documents.messages_now(self._lineage))
        self.state_bytes = len(documents.state_now(self._lineage))

    # -- contents ----------------------------------------------------------------------------------------------

    def patch(self, checkpoint: str) -> bytes:
        """The git patch of a checkpoint. Damaged; OSError; ESTALE for a checkpoint that is gone."""
        place = next((place for place, step in enumerate(self.steps) if step.id == checkpoint), None)
        if place is None:
            raise oserror(errno.ESTALE)
        step = self.steps[place]
        files = self._lineage.files_at(step.id)
        before = self._lineage.files_at(step.parent) if step.parent is not None else {}
        return patch_of(step, self._title_at(place), before, files)

    def _title_at(self, place: int) -> str:
        """The title as it was known at a checkpoint, on which the size of its patch depends."""
        return next((found for number, found in self._titles.items() if self.messages[number].step <= place), "")

    @property
    def previous(self) -> int | None:
        """The place of the newest checkpoint with other files than the newest one."""
        for place in range(len(self.steps) - 2, -1, -1):
            if self.steps[place].version != self.steps[-1].version:
                return place
        return None

    # -- the cache ---------------------------------------------------------------------------------------------

    def _saved(self) -> bytes:
        found = Kept(
            FORMAT,
            self.steps,
            self.messages,
            self.last,
            self._ids,
            list(self._titles.items()),
            list(self._models.items()),
            (self.messages_bytes, self.state_bytes),
        )
        return zlib.compress(json.dumps(found, ensure_ascii=True, separators=(",", ":")).encode("ascii"), 1)

    def _restore(self, data: bytes | None) -> None:
        if data is None:
            return
        found = _kept(data)
        if found is None:
            return
        self.steps, self.messages, self.last, self._ids = found.steps, found.messages, found.last, found.ids
        self._titles, self._models = dict(found.titles), dict(found.models)
        self.messages_bytes, self.state_bytes = found.now
        self.names = {step.name.encode("utf-8", "surrogateescape"): place for place, step in enumerate(self.steps)}
        self._sort()


class Kept(NamedTuple):
    """What the cache has of a line."""

    format: int
    steps: list[Step]
    messages: list[IndexedMessage]
    last: list[tuple[int, int]]
    ids: list[str | None]
    titles: list[tuple[int, str]]
    models: list[tuple[int, str]]
    now: tuple[int, int]


@functools.cache
def _decoder() -> msgspec.json.Decoder[Kept]:
    """It makes the records in C and checks their types: a third of the time of `json`, in a search through all."""
    import msgspec

    return msgspec.json.Decoder(Kept)


def _kept(data: bytes) -> Kept | None:
    """The index that was cached; None for another format, and for what something else has written."""
    import msgspec

    try:
        text = zlib.decompress(data)
        try:
            found = _decoder().decode(text)
        except msgspec.DecodeError:  # of a name with half of a surrogate pair, which is valid for Python
            found = msgspec.convert(json.loads(text), Kept)
    except (ValueError, RecursionError, zlib.error, msgspec.MsgspecError):
        return None  # the line is read again
    return found if found.format == FORMAT else None


# -- parts of a checkpoint -------------------------------------------------------------------------------------------


def section_bytes(number: int, message: Mapping[str, Any], time_ns: int) -> bytes:
    """A message as a part of `transcript.md`."""
    return encoded(section(number, message, time_ns))


def patch_of(step: Step, subject: str, before: Files, after: Files) -> bytes:
    """The git patch of one checkpoint, nothing where the files are the same. A file that is no file data is empty."""
    keys = _changed(before, after)
    date = datetime.datetime.fromtimestamp(step.time_ns // 10**9, datetime.UTC)
    number = "none" if step.step is None else step.step
    tools = f": {', '.join(step.tools)}" if step.tools else ""
    header = Header(
        commit=step.id,
        author=step.node,
        date=f"{date:%a %b %d %H:%M:%S %Y} +0000",
        subject=one_line(f"step {number}{tools}" + (f" ({subject})" if subject else ""), MAX_NOTE_CHARS),
    )
    return patch(header, _contents(before, keys), _contents(after, keys))


def _changed(before: Files, after: Files) -> set[str]:
    """The keys of files that differ."""
    return {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}


def _contents(files: Files, keys: set[str]) -> dict[bytes, bytes]:
    """The contents of these files by the path that `history/` shows them under."""
    found = {}
    for names, key in arrange(files).items():
        if key in keys:
            record = files[key]
            found[b"/".join(names)] = b"" if record.error is not None else record.data()
    return found


def _plain_mark(mark: Mark) -> list[Any]:
    return [mark.row, mark.writes, mark.last]


def _of_metadata(saved: Saved | None) -> tuple[int | None, str | None]:
    if saved is None:
        return None, None
    step, source = saved.metadata.get("step"), saved.metadata.get("source")
    return step if isinstance(step, int) else None, source if isinstance(source, str) else None


def _node(saved: Saved | None, parent: Step | None, source: str | None) -> str:
    """The nodes that led to a checkpoint: those that old metadata name, or that came next after its parent."""
    if saved is None or source != "loop":
        return source or "unknown"
    written = saved.metadata.get("writes")
    nodes = list(written) if isinstance(written, Mapping) else parent.next if parent is not None else []
    return "+".join(dict.fromkeys(str(node).strip("_") or "_" for node in nodes)) or source


def _following(moment: Moment, saved: Saved | None) -> tuple[list[str], list[str]]:
    """The next nodes, and the interrupts that wait, a line each."""
    if saved is None:
        return [], []
    try:
        now = standing(saved, moment.writes)
        waiting = documents.interrupts(now)
    except Damaged:
        return [], []
    return list(now.next), [one_line(_question(value), MAX_NOTE_CHARS) for value in waiting]


def _question(interrupt: Any) -> str:
    """What an interrupt asks for: its value alone, where it is an `Interrupt`."""
    found = plain(interrupt)
    value = found.get("value") if isinstance(found, Mapping) and "value" in found else found
    return value if isinstance(value, str) else compact(value)


def _digest(message: Message) -> tuple[str, int]:
    """The digest of a message, and the size of its line; worked out once for each object.

    Without its id and empty fields: a message that was written as a pair of role and text has none of these, and has
    them in the snapshot that a fork begins with.
    """
    if message.digest is None:
        content = {key: value for key, value in message.items() if key != "id" and value not in (None, {}, [])}
        data = encoded(compact(content))
        message.digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
        message.line_bytes = len(documents.message_line(message))
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
