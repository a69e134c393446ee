"""`Call` and its `Record`s: what the history of a mount keeps.

A call is what one actor did in one go: a verb, a command with all of its processes, a tool call that a client names, or
what a process session did until it was quiet for 2 s. A record is one change in it, with what is needed to take the
change back: so an undo goes by the records of a call, and what others did stays.

Paths are those inside the route, of bytes, and begin with `/`.
"""

from __future__ import annotations

import re
import stat
from typing import Literal, NamedTuple, TypeAlias

from fusebackend.base.paths import AgentPath
from fusebackend.protocol import Actor, Attr
from fusebackend.volumes.placing import State

__all__ = ["Call", "CallKind", "Image", "Kept", "Record", "RecordKind", "Stamp", "State"]

CallKind: TypeAlias = Literal[
    "verb", "command", "tool", "session", "undo", "restore", "merge", "request", "approval", "denial"
]
"""The last three change no file; see `requests.py`."""

RecordKind: TypeAlias = Literal["create", "remove", "rename", "exchange", "content", "attributes"]
"""What was done.

- `create`: a name was made: of a new file, directory, link or special file, or another name of a file (`linked`).
- `remove`: a name was removed. `before` and `image` are those of the file.
- `rename`: `path` became `to_path`. What it replaced there is in `before` and `image`; both None if nothing.
- `exchange`: `path` and `to_path` changed places.
- `content`: the bytes of a file, or its size. Once for a file and call, before the first change.
- `attributes`: mode, owner, times or extended attributes of a file whose bytes the call has not changed yet.

The path of the last two may have been removed from the file, which has another name that is not known (`linked`).
"""


_NAME = re.compile(r"c([1-9]\d{0,17})", re.ASCII)


def is_call_name(text: str) -> bool:
    """Return True for a text that means a call, `c42`."""
    return _NAME.fullmatch(text) is not None


def call_number(name: str) -> int:
    """Return the number of a call by its name.

    Raises:
        ValueError: it is no name of a call.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"'{name}' is no call; calls have names such as 'c42' ('fusebackend log' lists them)")
    return int(found[1])


class Call(NamedTuple):
    """A call."""

    number: int
    """1 and up, never used again; users write it `c42`."""
    kind: CallKind
    title: str
    """One line for people: `write /notes.md`, the command with its secrets masked, the program of a session."""
    actor: Actor
    began_ns: int
    ended_ns: int | None
    """None while it goes on. A call that a crash of the server interrupted ends when the server comes back."""
    changes: int
    """The number of its records."""
    undoes: tuple[int, ...] = ()
    """Of an undo: the calls that it took back."""
    undone_by: int | None = None
    """The undo that has taken it back, if it is not undone itself."""

    @property
    def ref(self) -> str:
        return f"c{self.number}"


class Image(NamedTuple):
    """Where the bytes of a regular file are as they were before a change."""

    place: Literal["snapshot", "file", "lost"]
    """`snapshot`: the route's snapshot `name` has them in its node `node`. `file`: the file `name` in the directory of
    the history has them, or their record itself. `lost`: nobody has; `name` says why (too large, an error)."""
    name: str
    """Empty for bytes in the record (`HistoryFile.image_data`)."""
    node: int = 0
    """Of the file: says which one a name led to that comes back as a link."""
    data: bytes | None = None
    """The bytes of a small file, for its record; None in a record that is read again."""


class Kept(NamedTuple):
    """A file as it is before a change."""

    node: int
    before: State
    image: Image | None
    """None for what has no bytes, and for bytes that an earlier record of the same call leads to."""
    fingerprint: tuple[int, ...] = ()
    """`Attr.fingerprint`, of one moment: a volume may refresh attributes while the bytes are kept."""
    identity: bytes | None = None
    """What names the file for longer than its node (`Volume.lasting`), or its node, as digits, where the record has
    another one."""

    @property
    def is_linked(self) -> bool:
        """True for a file with several names."""
        return self.before.nlink > 1 and not stat.S_ISDIR(self.before.mode)


class Stamp(NamedTuple):
    """What a call left under a name. A file with another stamp was changed since."""

    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int

    def is_that_of(self, found: Stamp) -> bool:
        """Return True if nothing has changed. The size and the time of a directory follow from its names."""
        known = 3 if stat.S_ISDIR(self.mode) else 5
        return found[:known] == self[:known]


def stamp_of(file: State | Attr) -> Stamp:
    return Stamp(file.mode, file.uid, file.gid, file.size, file.mtime_ns)


class Record(NamedTuple):
    """One change."""

    number: int
    """In the order in which changes began; over all calls."""
    call: int
    time_ns: int
    prefix: AgentPath
    """Of the route."""
    kind: RecordKind
    path: bytes
    to_path: bytes = b""
    node: int = 0
    """The file, by its node in the volume: it names the file only while that node lives."""
    linked: bool = False
    before: State | None = None
    image: Image | None = None
    after: Stamp | None = None
    """Of the file at the end of the call, under `to_path` for a rename; None where it removed the name, and for a
    directory's size and time, which follow from its names."""
    identity: bytes = b""
    """As in `Kept`; of a file that an undo has made, that of the earlier one before it, see `HistoryFile.note_return`.
    Empty if nothing is known."""

    @property
    def earlier_path(self) -> bytes:
        """The path of the file whose earlier state it has."""
        return self.to_path if self.kind == "rename" else self.path

    @property
    def earlier_node(self) -> int:
        """The node of the file whose earlier state it has; 0 if it is not known."""
        if self.kind != "rename":
            return self.node
        return 0 if self.image is None else self.image.node
