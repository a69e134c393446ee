"""`Recorder`: records what the kernel, the verbs and the server itself change, with the bytes that go.

Changes are recorded where they come in: `RecordingVolume` stands before each volume for those of the kernel, and
`steps.py` encloses a verb. Code that calls a backend past the mount is not seen.

The first change of a file's bytes by a call keeps the bytes before it (`images.py`); the next ones cost a comparison:
`VolumeRecords` knows the call that has changed a file last. A change by another call ends that, so that each of two
calls which change a file in turn has a record after one of the other, and an undo of either finds the conflict.

On volumes that do not block, and in branches, record and change are one step under the volume's lock. Where a thread
may wait for a network, a change by others between the two is not excluded.

Nothing here fails a change: an error is logged, once, and `status` says that the history is incomplete.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple

from fusebackend.base.errors import VANISHED
from fusebackend.base.paths import AgentPath, to_name
from fusebackend.history.calls import Calls, Mark, OpenCall
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.images import Images
from fusebackend.history.records import Image, RecordKind, Stamp, State
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, Attr, AttrChanges, Caller, SnapshotVolume, Volume
from fusebackend.vfs.junctions import Route
from fusebackend.vfs.watch.node_paths import NodePaths
from fusebackend.volumes.placing import state_of

log = logging.getLogger(__name__)

ATTRIBUTES, CONTENT, MADE, AGAIN = 1, 2, 4, 8
"""How far the changes of a file by a call are recorded: its attributes; its bytes; it was made by the call; its bytes,
once more after another call had changed them."""

STAMPED: Final = 500
"""Records that are stamped at a time. A call may have 100,000: all of them at once would leave Python's heap large."""


class Kept(NamedTuple):
    """A file as it is before a change."""

    node: int
    before: State
    image: Image | None
    """None for what has no bytes, and for bytes that an earlier record of the same call leads to."""
    ctime_ns: int
    identity: bytes | None = None
    """Of a file with several names, see `Volume.lasting`."""


class VolumeRecords:
    """The files of one volume that calls have changed, for all routes and trees that show it.

    A large call has many: a file costs an entry of one dictionary, whose value all files share that its call has
    changed in the same way.
    """

    __slots__ = ("_stale", "marks")

    def __init__(self) -> None:
        self.marks: dict[int, Mark] = {}
        """Node → the call that has changed it last, and how. It has a record of how the file was before, see `how`."""
        self._stale = 0  # marks of calls that have ended

    def own(self, call: OpenCall, node: int, how: int) -> None:
        """Note that a change of a file by a call is recorded."""
        mark = self.marks.get(node)
        if mark is not None and mark.call is call:
            how |= mark.how
        else:
            if mark is not None:
                self._left(mark, node)
            if call.earlier:
                how |= call.earlier.get(self, {}).pop(node, 0)
            call.counts[self] = call.counts.get(self, 0) + 1
        self.marks[node] = call.mark(how)

    def _left(self, mark: Mark, node: int) -> None:
        """Another call changes a file now."""
        other = mark.call
        if other is None:
            self._stale -= 1
        else:
            other.counts[self] = other.counts.get(self, 0) - 1
            other.earlier.setdefault(self, {})[node] = mark.how

    def is_last(self, call: OpenCall, node: int) -> bool:
        """Return True if no other call that goes on has changed the file since."""
        mark = self.marks.get(node)
        return mark is not None and mark.call is call

    def how(self, call: OpenCall, node: int) -> int:
        """Return how far the changes of a file by a call are recorded."""
        mark = self.marks.get(node)
        if mark is not None and mark.call is call:
            return mark.how
        return call.earlier.get(self, {}).get(node, 0) if call.earlier else 0

    def has_bytes(self, call: OpenCall, node: int) -> bool:
        """Return True if a record of the call leads to the bytes before it, and no other has changed the file since."""
        mark = self.marks.get(node)
        return mark is not None and mark.call is call and bool(mark.how & (CONTENT | MADE | AGAIN))

    def disown(self, call: OpenCall, node: int) -> None:
        """The change was not made."""
        if self.is_last(call, node):
            del self.marks[node]
            call.counts[self] -= 1
        call.earlier.get(self, {}).pop(node, 0)

    def ended(self, marks: int) -> None:
        """A call has ended that had so many marks here: once they are the most, they go."""
        self._stale += marks
        if self._stale * 2 > len(self.marks):
            for node in [node for node, mark in tuple(self.marks.items()) if mark.call is None]:
                del self.marks[node]
            self._stale = 0


class Recorder:
    """See the module's docstring. One for each mount; thread-safe.

    Args:
        history, images: take records and bytes.
    """

    def __init__(self, history: HistoryFile, images: Images, calls: Calls | None = None) -> None:
        self.history = history
        self.images = images
        self.calls = calls or Calls(history, self.settle)
        self.incomplete: str | None = None
        """Why something was not recorded; None if all was."""
        self.beside: dict[AgentPath, Volume] = {}
        """The volumes of recorded routes that come and go, by prefix: branches. Replaced as a whole."""
        self._routes: dict[AgentPath, Route] = {}
        self._volumes: dict[int, VolumeRecords] = {}
        self._stamping = threading.Lock()
        self._stamped: dict[int, int] = {}  # call → the last record that was stamped

    def of(self, volume: Volume) -> VolumeRecords:
        """Return what is recorded of a volume."""
        found = self._volumes.get(id(volume))
        if found is None:
            found = self._volumes[id(volume)] = VolumeRecords()
        return found

    def follow(self, routes: list[Route]) -> None:
        """Record the changes of these routes."""
        self._routes = {route.prefix: route for route in routes}

    def attach(self, route: Route) -> None:
        """Record the changes of a route that comes and goes, from now on. In any thread, one at a time."""
        self._routes = {**self._routes, route.prefix: route}
        self.beside = {**self.beside, route.prefix: route.volume}

    def detach(self, prefix: AgentPath) -> None:
        """Such a route goes, or its volume is about to be closed."""
        volume = self.beside.get(prefix)
        self._routes = {each: route for each, route in self._routes.items() if each != prefix}
        self.beside = {each: there for each, there in self.beside.items() if each != prefix}
        self._volumes.pop(id(volume), None)  # another volume may get its id

    def recorded(self, route: Route) -> bool:
        """Return True if the changes of a route are recorded."""
        return self._routes.get(route.prefix) is route

    def door(self, names: NodePaths, route: Route) -> RecordingVolume:
        """Return what records the kernel's changes of a route."""
        return RecordingVolume(route, names, self)

    # -- before and after a change ---------------------------------------------------------------------------------

    def keep(self, call: OpenCall, volume: Volume, attr: Attr) -> Kept:
        """Keep a file as it is, before a change of its bytes or its removal."""
        node, is_file, ctime_ns = attr.node, stat.S_ISREG(attr.mode), attr.ctime_ns
        records = self.of(volume)
        before = state_of(volume, attr)
        image = None
        if is_file and (attr.nlink > 1 or not records.has_bytes(call, node)):
            # Its node says which file a name led to that comes back as a link.
            image = self.images.keep(volume, attr)._replace(node=node)
        identity = None
        if attr.nlink > 1 and not attr.is_dir:
            with contextlib.suppress(OSError):
                identity = volume.lasting(node)
        return Kept(node, before, image, ctime_ns, identity)

    def drop(self, kept: Kept | None) -> None:
        """Forget what was kept for a change that was not made."""
        if kept is not None:
            self.images.remove(kept.image)

    def add(
        self, call: OpenCall, prefix: AgentPath, kind: RecordKind, path: bytes, kept: Kept | None = None, **fields: Any
    ) -> int:
        """Add a record to a call."""
        number = self.calls.number(call)
        if kept is None:
            return self.history.add(number, prefix, kind, path, **fields)
        given = {"node": kept.node, "identity": kept.identity, **fields}
        return self.history.add(number, prefix, kind, path, before=kept.before, image=kept.image, **given)

    def failed(self, error: BaseException, what: str, call: OpenCall | None = None) -> None:
        """Something could not be recorded.

        Args:
            call: a change of it is missing.
        """
        if call is not None:
            self.history.note_gap(self.calls.number(call), f"{what}: {error}")
        if self.incomplete is None:
            if isinstance(error, OSError):
                log.warning("the history is incomplete: %s: %s", what, error.strerror or error)
            else:
                log.error("the history is incomplete: %s", what, exc_info=error)
        self.incomplete = f"{what}: {error}"

    # -- the ends of calls -----------------------------------------------------------------------------------------

    def settle(self, call: OpenCall) -> None:
        """Stamp what a call has left, see `Record.after`. Called before it ends."""
        try:
            self.stamp(call.number)
        except Exception as error:
            self.failed(error, "what a call has left can't be looked at")
        for records, marks in call.forget().items():
            records.ended(marks)

    def settle_all(self) -> None:
        """Stamp what the calls that go on have left by now."""
        for call in self.calls.open():
            try:
                self.stamp(call.number, anew=True)
            except Exception as error:
                self.failed(error, "what a call has left can't be looked at")

    def stamp(self, call: int, *, anew: bool = False) -> None:
        """Set `after` of a call's records to the present state.

        Args:
            anew: also of those with a stamp. An undo stamps the files that it makes: it changes none of them once more
                without another record.
        """
        last = 0
        while part := self.history.unstamped(call, last, STAMPED, all_of_them=anew):
            last = part[-1][0]
            by_route: dict[AgentPath, list[tuple[int, bytes]]] = {}
            for number, prefix, path in part:
                by_route.setdefault(prefix, []).append((number, path))
            for prefix, records in by_route.items():
                route = self._routes.get(prefix)
                if route is not None:
                    with contextlib.suppress(OSError):  # it does not answer: these have no stamp
                        stamps = route.executor.run("stat", partial(_stamps, route.volume, records))
                        self.history.set_after(
                            {number: stamp for number, stamp in stamps.items() if anew or stamp is not None}
                        )

    def stamp_interrupted(self) -> None:
        """Stamp the newest call of a server that was killed, before anything else changes."""
        for call in self.history.interrupted:
            self.stamp(call, anew=True)


def _stamps(volume: Volume, records: list[tuple[int, bytes]]) -> Mapping[int, Stamp | None]:
    directories: dict[bytes, int] = {b"": ROOT_NODE}
    return {number: _stamp(volume, directories, path) for number, path in records}


def _stamp(volume: Volume, directories: dict[bytes, int], path: bytes) -> Stamp | None:
    above, _, name = path.rpartition(b"/")
    try:
        attr = volume.lookup(_directory(volume, directories, above), name) if name else volume.getattr(ROOT_NODE)
    except OSError:
        return None
    return Stamp(attr.mode, attr.uid, attr.gid, attr.size, attr.mtime_ns)


def _directory(volume: Volume, directories: dict[bytes, int], path: bytes) -> int:
    node = directories.get(path)
    if node is None:
        above, _, name = path.rpartition(b"/")
        node = directories[path] = volume.lookup(_directory(volume, directories, above), name).node
    return node


class RecordingVolume:
    """A route's volume, for the calls that change something: each is recorded. Each method is as in `Volume`."""

    def __init__(self, route: Route, names: NodePaths, recorder: Recorder) -> None:
        volume = route.volume
        self._route = route
        self._prefix = route.prefix
        self._volume = volume
        self._names = names
        self._recorder = recorder
        self._records = recorder.of(volume)
        self._marks = self._records.marks
        self._current = recorder.calls.current
        # The lock of a branch is held while its route is asked, in threads; the mount's loop does not wait for it.
        is_branch = isinstance(volume, SnapshotVolume) and not volume.takes_snapshots
        waits = (volume.features.blocking and not is_branch) or volume.features.shared
        self._lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext() if waits else volume.lock
        self._recording = _Recording(recorder, route.prefix)

    # -- names -----------------------------------------------------------------------------------------------------

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        return self._make(self._volume.mknod, parent, name, mode, rdev, caller)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._make(self._volume.mkdir, parent, name, mode, caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        return self._make(self._volume.symlink, parent, name, target, caller)

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        return self._make(self._volume.create, parent, name, mode, flags, caller)

    def _make(self, function: Callable[..., Attr], parent: int, name: bytes, *args: object) -> Attr:
        with self._lock:
            attr = function(parent, name, *args)
            with self._recording:
                call = self._current()
                self._records.own(call, attr.node, MADE)
                self._recorder.add(call, self._prefix, "create", self._path(parent, name), node=attr.node)
            return attr

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        with self._lock:
            attr = self._volume.link(node, new_parent, new_name)
            with self._recording:
                path = self._path(new_parent, new_name)
                self._recorder.add(self._current(), self._prefix, "create", path, node=node, linked=True)
            return attr

    def unlink(self, parent: int, name: bytes) -> None:
        self._remove(self._volume.unlink, parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        self._remove(self._volume.rmdir, parent, name)

    def _remove(self, remove: Callable[[int, bytes], None], parent: int, name: bytes) -> None:
        with self._lock:
            call, kept = self._current(), None
            with self._recording:
                kept = self._recorder.keep(call, self._volume, self._volume.lookup(parent, name))
            try:
                remove(parent, name)
            except BaseException:
                self._recorder.drop(kept)
                raise
            if kept is not None:
                with self._recording:
                    linked = kept.before.nlink > 1 and not stat.S_ISDIR(kept.before.mode)
                    path = self._path(parent, name)
                    self._recorder.add(call, self._prefix, "remove", path, kept, linked=linked)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        with self._lock:
            call, kept, node, path, to_path = self._current(), None, 0, b"", b""
            with self._recording:
                path, to_path = self._path(parent, name), self._path(new_parent, new_name)
                node = self._volume.lookup(parent, name).node
                replaced = self._look(new_parent, new_name)
                if replaced is not None and replaced.node == node:
                    path = b""  # two names of one file: POSIX leaves both
                elif replaced is not None and not flags & RENAME_EXCHANGE:
                    kept = self._recorder.keep(call, self._volume, replaced)
            try:
                self._volume.rename(parent, name, new_parent, new_name, flags)
            except BaseException:
                self._recorder.drop(kept)
                raise
            if path:
                with self._recording:
                    kind: RecordKind = "exchange" if flags & RENAME_EXCHANGE else "rename"
                    linked = kept is not None and kept.before.nlink > 1 and not stat.S_ISDIR(kept.before.mode)
                    self._recorder.add(call, self._prefix, kind, path, kept, to_path=to_path, node=node, linked=linked)

    def _look(self, parent: int, name: bytes) -> Attr | None:
        try:
            return self._volume.lookup(parent, name)
        except FileNotFoundError:
            return None

    # -- attributes and data ---------------------------------------------------------------------------------------

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        with self._lock:
            if changes.size is not None:
                self._before_content(node)
            else:
                self._before_attributes(node)
            return self._volume.setattr(node, changes)

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        with self._lock:
            self._before_attributes(node)
            self._volume.setxattr(node, name, value)

    def removexattr(self, node: int, name: bytes) -> None:
        with self._lock:
            self._before_attributes(node)
            self._volume.removexattr(node, name)

    def write(self, node: int, offset: int, data: bytes) -> int:
        with self._lock:
            self._before_content(node)
            return self._volume.write(node, offset, data)

    def append(self, node: int, data: bytes) -> int:
        with self._lock:
            self._before_content(node)
            return self._volume.append(node, data)

    def flush(self, node: int) -> None:
        self._volume.flush(node)

    def fsync(self, node: int, datasync: bool = False) -> None:
        self._volume.fsync(node, datasync)

    def _before_content(self, node: int) -> None:
        call = self._current()
        mark = self._marks.get(node)
        if mark is not None and mark.call is call and mark.how & (CONTENT | MADE):
            return
        with self._recording:
            self._first(call, node, CONTENT)

    def _before_attributes(self, node: int) -> None:
        call = self._current()
        mark = self._marks.get(node)
        if mark is not None and mark.call is call:
            return
        with self._recording:
            self._first(call, node, ATTRIBUTES)

    def _first(self, call: OpenCall, node: int, how: int) -> None:
        """Record the first change of a file by a call, and the first one after another call's."""
        done = self._records.how(call, node)
        if how == CONTENT and done & (CONTENT | MADE):
            how = AGAIN
        if how & done & (AGAIN | ATTRIBUTES):  # two calls change it in turn: each has a record after the other's
            self._records.own(call, node, 0)
            return
        attr = self._volume.getattr(node)
        if attr.nlink == 0:
            self._records.own(call, node, how)
            return  # no name leads to it, so nothing can be taken back
        path = self._name(node)
        recorder = self._recorder
        if how == ATTRIBUTES:
            kept = Kept(node, state_of(self._volume, attr), None, 0)
        else:
            kept = recorder.keep(call, self._volume, attr)
        kind: RecordKind = "attributes" if how == ATTRIBUTES else "content"
        recorder.add(call, self._prefix, kind, path, kept)
        self._records.own(call, node, how)

    # -- how -------------------------------------------------------------------------------------------------------

    def _path(self, parent: int, name: bytes) -> bytes:
        above = self._names.directory(self._route, parent)
        if above is None:
            raise LookupError(f"the path of {os.fsdecode(name)!r} is not known")
        return to_name(above).rstrip(b"/") + b"/" + name

    def _name(self, node: int) -> bytes:
        path = self._names.of(self._route, node) or self._names.last(self._route, node)
        if path is None:
            raise LookupError(f"the path of node {node} is not known")
        return to_name(path)


class _Recording:
    """Logs what fails in a block and lets the change go on. It has no state: a `contextlib` one takes 2 µs."""

    __slots__ = ("_prefix", "_recorder")

    def __init__(self, recorder: Recorder, prefix: AgentPath) -> None:
        self._recorder = recorder
        self._prefix = prefix

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        if isinstance(error, OSError) and error.errno in VANISHED:
            return True  # the change itself will say so
        if not isinstance(error, Exception):
            return False
        recorder = self._recorder
        recorder.failed(error, f"a change in '{self._prefix}' was not recorded", recorder.calls.current())
        return True
