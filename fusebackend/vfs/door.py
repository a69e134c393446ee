"""`Door`: the one way by which the kernel's changes of a route reach its volume, and the listeners that follow them.

Each call makes one `DoorChange`, unless no listener `follows` it: a second write to a file is the volume's alone. The
listeners get it at up to three moments, in their order:

- `before` the change: it may keep what goes, and take a snapshot.
- `ordered`, once it is made, or `refused`, if it was not: with the volume's lock still held where a listener `orders`,
  so that they see the changes in their order. They never wait.
- `after`, with no lock of the volume's: whatever happened.

The path and the attributes before are found when the first listener asks for them, once, and handed on. What a
listener raises is logged, named in `status`, and fails no change. A route without listeners has no door: `Route.door`
then is the volume itself, and costs nothing.

A new listener is a subclass of `ChangeListener`, and a line that gives it to `Route.listen`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from fusebackend.base.errors import VANISHED, oserror
from fusebackend.protocol import Attr, AttrChanges, Caller

if TYPE_CHECKING:
    from fusebackend.vfs.junctions import Route
    from fusebackend.vfs.watch.node_paths import NodePaths

log = logging.getLogger(__name__)

T = TypeVar("T")

DoorKind = Literal["create", "link", "remove", "rename", "content", "attributes", "stored"]
"""`stored`: the bytes of a whole-file volume that was changed before are at their backend now."""

_NO_LOCK: Final = contextlib.nullcontext()

_UNASKED: Final[Any] = object()
"""In place of what nobody has asked for yet, and may be None."""


class DoorChange(msgspec.Struct, eq=False):
    """One change of a volume, from before it is made until it has been.

    Args:
        node: what is changed; 0 until it is known, for what is made, removed or renamed.
        parent, name: of a change of names; of a link and a rename, the new ones are `new_parent` and `new_name`.
        flags: of a rename.
        result: what the volume has returned.
        record: what the history notes of it until it is made.
        ending: closed when the change is over, before anybody's `after`.
    """

    door: Door
    kind: DoorKind
    node: int
    parent: int = 0
    name: bytes = b""
    new_parent: int = 0
    new_name: bytes = b""
    flags: int = 0
    result: Any = None
    record: Any = None
    ending: contextlib.ExitStack | None = None
    _attr: Attr | None = None
    _replaced: Attr | None = _UNASKED
    _path: bytes | None = _UNASKED
    _to_path: bytes | None = _UNASKED
    _known: tuple[bytes | None, bytes | None, int] = (None, None, 0)

    @property
    def attr(self) -> Attr:
        """The attributes before the change; ENOENT and the like as of the volume. Ask first before it."""
        if self._attr is None:
            volume = self.door.route.volume
            self._attr = volume.find(self.parent, self.name) if self.name else volume.getattr(self.node)
            if self._attr is None:
                raise oserror(errno.ENOENT, self.name)
        return self._attr

    @property
    def replaced(self) -> Attr | None:
        """What had the new name before a rename, if anything. Ask first before it."""
        if self._replaced is _UNASKED:
            self._replaced = self.door.route.volume.find(self.new_parent, self.new_name)
        return self._replaced

    @property
    def is_same_file(self) -> bool:
        """True for a rename between two names of one file: POSIX leaves both."""
        return self.replaced is not None and self.replaced.node == self.attr.node

    @property
    def path(self) -> bytes | None:
        """The path inside the volume, by a name that leads to it; None if none is known."""
        if self._path is _UNASKED:
            names, route = self.door.names, self.door.route
            self._path = names.path(route, self.parent, self.name) if self.name else names.of(route, self.node)
        return self._path

    @property
    def to_path(self) -> bytes | None:
        """The new path of a rename."""
        if self._to_path is _UNASKED:
            if self.new_parent == self.parent and self.path is not None:
                self._to_path = self.path[: -len(self.name)] + self.new_name
            else:
                self._to_path = self.door.names.path(self.door.route, self.new_parent, self.new_name)
        return self._to_path

    def note_known(self) -> None:
        """Note the paths by which the kernel knows what is changed, before a change that may wait for its route.

        When a crashed PostgreSQL is back, the mount drops what the kernel knows. The kernel forgets the file if the
        program that asked for the change was killed meanwhile: two of 60 crashes beside writers.
        """
        names, route = self.door.names, self.door.route
        if not self.name:
            self._known = names.path(route, self.node), None, names.moves
            return
        new = names.path(route, self.new_parent, self.new_name) if self.kind == "rename" else None
        self._known = names.path(route, self.parent, self.name), new, names.moves

    @property
    def known(self) -> tuple[bytes | None, bytes | None]:
        """What `note_known` has noted: the path, and the new one of a rename. None once this host has moved a directory
        meanwhile, for it may be one above. That another host has, while PostgreSQL was away, nobody can tell."""
        path, to_path, moves = self._known
        return (path, to_path) if moves == self.door.names.moves else (None, None)


class ChangeListener:
    """Follows the changes of a route: see the module's docstring.

    Attributes:
        name: for `status` and the log.
        orders: it needs the changes in their order, so the volume's lock is held from `before` to `ordered`.
    """

    name = ""
    orders = True
    error: str | None = None
    """Why it has not followed some change; None if it has followed all."""

    def follows(self, kind: DoorKind, node: int) -> bool:
        """Return False if it has nothing to do at any moment of such a change of this file. Asked with the lock held
        that `orders` asks for; not for changes of names."""
        return True

    def before(self, change: DoorChange) -> None:
        """The change is about to be made."""

    def ordered(self, change: DoorChange) -> None:
        """The change was made."""

    def refused(self, change: DoorChange, error: BaseException) -> None:
        """The volume has raised this instead."""

    def after(self, change: DoorChange) -> None:
        """The change is over, made or not."""

    def failed(self, change: DoorChange, error: Exception) -> None:
        """This listener has raised this in one of the others."""
        if self.error is None:
            log.error("'%s': %s do not follow a change", change.door.route.prefix, self.name, exc_info=error)
        self.error = f"{type(error).__name__}: {error}"


_Moment = tuple[ChangeListener, Callable[..., None]]


class Door:
    """See the module's docstring. Each method is as in `Volume`. Thread-safe, as its volume is."""

    def __init__(self, route: Route, names: NodePaths, listeners: Sequence[ChangeListener] = ()) -> None:
        self.route = route
        self.names = names
        self.listeners = tuple(listeners)
        self._volume = route.volume
        orders = any(listener.orders for listener in listeners)
        self._lock: contextlib.AbstractContextManager[Any] = route.volume.lock if orders else _NO_LOCK
        self._before = self._moments("before")
        self._ordered = self._moments("ordered")
        self._refused = self._moments("refused")
        self._after = self._moments("after")

    # -- names -------------------------------------------------------------------------------------------------

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        return self.make(
            DoorChange(self, "create", 0, parent, name), self._volume.mknod, parent, name, mode, rdev, caller
        )

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self.make(DoorChange(self, "create", 0, parent, name), self._volume.mkdir, parent, name, mode, caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        return self.make(
            DoorChange(self, "create", 0, parent, name), self._volume.symlink, parent, name, target, caller
        )

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        return self.make(
            DoorChange(self, "create", 0, parent, name), self._volume.create, parent, name, mode, flags, caller
        )

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        return self.make(
            DoorChange(self, "link", node, new_parent, new_name), self._volume.link, node, new_parent, new_name
        )

    def unlink(self, parent: int, name: bytes) -> None:
        self.make(DoorChange(self, "remove", 0, parent, name), self._volume.unlink, parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        self.make(DoorChange(self, "remove", 0, parent, name), self._volume.rmdir, parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        change = self.renaming(parent, name, new_parent, new_name, flags)
        self.make(change, self._volume.rename, parent, name, new_parent, new_name, flags)

    def renaming(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> DoorChange:
        """Return a rename that is to be made: the caller needs the same attributes as the listeners."""
        return DoorChange(self, "rename", 0, parent, name, new_parent, new_name, flags)

    # -- attributes and data -----------------------------------------------------------------------------------

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        kind: DoorKind = "attributes" if changes.size is None else "content"
        return self._change(kind, node, self._volume.setattr, changes)

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        self._change("attributes", node, self._volume.setxattr, name, value)

    def removexattr(self, node: int, name: bytes) -> None:
        self._change("attributes", node, self._volume.removexattr, name)

    def write(self, node: int, offset: int, data: bytes) -> int:
        return self._change("content", node, self._volume.write, offset, data)

    def append(self, node: int, data: bytes) -> int:
        return self._change("content", node, self._volume.append, data)

    def flush(self, node: int) -> None:
        if self._is_followed("stored", node):
            self.make(DoorChange(self, "stored", node), self._volume.flush, node)
        else:
            self._volume.flush(node)

    def fsync(self, node: int, datasync: bool = False) -> None:
        self._volume.fsync(node, datasync)  # takes the lock itself, and may wait for a disk without it
        if self._is_followed("stored", node):
            self.make(DoorChange(self, "stored", node), lambda: None)

    # -- how ---------------------------------------------------------------------------------------------------

    def _moments(self, name: str) -> list[_Moment]:
        """Return the methods of this name, of the listeners that have one of their own."""
        own = [each for each in self.listeners if getattr(type(each), name) is not getattr(ChangeListener, name)]
        return [(each, getattr(each, name)) for each in own]

    def _is_followed(self, kind: DoorKind, node: int) -> bool:
        try:
            for listener in self.listeners:
                if listener.follows(kind, node):
                    return True
        except Exception as error:
            listener.failed(DoorChange(self, kind, node), error)
            return True  # the others follow it, perhaps
        return False

    def _change(self, kind: DoorKind, node: int, function: Callable[..., T], *args: Any) -> T:
        """Change a file by `function(node, *args)`."""
        with self._lock:
            if not self._is_followed(kind, node):
                return function(node, *args)
        return self.make(DoorChange(self, kind, node), function, node, *args)

    def make(self, change: DoorChange, function: Callable[..., T], *args: Any) -> T:
        """Make a change by `function`, with the listeners around it."""
        try:
            with self._lock:
                _tell(self._before, change)
                try:
                    change.result = result = function(*args)
                except BaseException as refusal:
                    _tell([(listener, partial(moment, error=refusal)) for listener, moment in self._refused], change)
                    raise
                _tell(self._ordered, change)
                return result
        finally:
            change.record = None  # it refers to the change, and the garbage collector is dear
            if change.ending is not None:
                change.ending.close()
            if self._after:
                _tell(self._after, change)


def _tell(moments: Sequence[_Moment], change: DoorChange) -> None:
    for listener, moment in moments:
        try:
            moment(change)
        except Exception as error:
            if not (isinstance(error, OSError) and error.errno in VANISHED):  # else the change itself says so
                listener.failed(change, error)
