"""`LineIndex`: the names, sizes and times of all that is computed from one line of checkpoints.

`ls -l` shows exact sizes, and they follow from the contents: the whole of a conversation at each checkpoint. So the
line is read once, checkpoint by checkpoint, and the index of it cached by the server (`index_cache.py`); later only the
new checkpoints are read. A checkpoint whose mark has changed is read again, with all that follow it.

The messages alone are indexed (`MessageIndex`) as long as nobody asks for more. They need one channel of each
checkpoint, so a search through the messages of all threads does not read their files and states: that took three
quarters of it.
"""

from __future__ import annotations

import datetime
import errno
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from fusebackend.backends.threads import documents
from fusebackend.backends.threads.conversation import one_line
from fusebackend.backends.threads.database.rows import Damaged, Saved, checkpoint_name, time_ns_of
from fusebackend.backends.threads.index_cache import IndexCache
from fusebackend.backends.threads.json_text import compact, plain
from fusebackend.backends.threads.lineage import Lineage, Moment
from fusebackend.backends.threads.message_index import MAX_NOTE_CHARS, IndexedMessage, MessageIndex, Said
from fusebackend.backends.threads.nodes import Record
from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.git_patch import Side, file_patch
from fusebackend.base.recent import Recent
from fusebackend.base.waiting import will_wait
from fusebackend.remote.keyed import ListedTree

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
        self._begin(cache.get(lineage.place, CachedIndex) if cache is not None else None)

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
                    ts = moment.saved.ts if isinstance(moment.saved, Saved) else None
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


# -- parts of a checkpoint -------------------------------------------------------------------------------------------


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
