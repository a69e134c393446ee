"""`Recorder`: records what the kernel, the verbs and the server itself change, with the bytes that go.

Changes are recorded where they come in: a `HistoryListener` follows the door of each route for those of the kernel, and
`steps.py` encloses a verb. Code that calls a backend past the mount is not seen.

The first change of a file's bytes by a call keeps the bytes before it (`images.py`); the next ones cost a comparison:
`VolumeRecords` knows the call that has changed a file last. A change by another call ends that, so that each of two
calls which change a file in turn has a record after one of the other, and an undo of either finds the conflict.

On volumes that do not block, and in branches, record and change are one step under the volume's lock. On those that
keep a log, they are one transaction (`HistoryFile.reserve`). Where else a thread may wait for a network, a change by
others between the two is not excluded.

Nothing here fails a change: an error is logged, once, and `status` says that the history is incomplete.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from fusebackend.base.merge_lines import MERGED_BYTES
from fusebackend.base.paths import AgentPath
from fusebackend.base.relative_paths import is_below
from fusebackend.base.stamps import CLOCK
from fusebackend.history.calls import Calls, OpenCall
from fusebackend.history.history_file import Entry, HistoryFile
from fusebackend.history.images import Images
from fusebackend.history.records import Kept, Record, RecordKind, Stamp, stamp_of
from fusebackend.protocol import (
    NOTE,
    RENAME_EXCHANGE,
    Attr,
    LogRow,
    SnapshotVolume,
    Volume,
)
from fusebackend.vfs.door import ChangeListener, DoorChange, DoorKind
from fusebackend.vfs.junctions import Route
from fusebackend.volumes import placing
from fusebackend.volumes.placing import NodeSource, whole
from fusebackend.volumes.walk import Directories, find

log = logging.getLogger(__name__)

ATTRIBUTES, CONTENT, MADE, AGAIN, PARTED = 1, 2, 4, 8, 16
"""How far the changes of a file by a call are recorded: its attributes; its bytes; it was made by the call; its bytes,
once more after another call had changed them; the call has taken a name from it."""

_OWN: Final[dict[RecordKind, int]] = {"create": MADE, "content": CONTENT, "attributes": ATTRIBUTES}
"""What a step has its call own of a file."""

NOT_STAMPED: Final = "what a call has left can't be looked at"

STAMPED: Final = 500
"""Records that are stamped at a time. A call may have 100,000: all of them at once would leave Python's heap large."""

TURNS: Final = 64
"""Of files that are changed one by one, by their nodes: those with the same remainder wait for each other."""

MOST_MOVED: Final = 1000
"""Files whose last rename is known, though the kernel may not know it yet."""

ENDING_STEP_S: Final = 0.02
"""How often what still runs is looked for, when the mount ends."""

UNSURE: Final = frozenset({errno.EIO, errno.ETIMEDOUT})
"""Errors after which a change may have been made: the connection was lost."""


class VolumeRecords:
    """The files of one volume that calls have changed, for all routes and trees that show it.

    Args:
        images: takes the bytes of files before a change.
    """

    __slots__ = ("_images", "_volume", "last", "moved")

    def __init__(self, volume: Volume, images: Images) -> None:
        self._volume = volume
        self._images = images
        self.moved: dict[int, bytes] = {}
        """Node → the path that this host has given it last."""
        self.last: dict[int, OpenCall] = {}
        """Node → the call that has changed it last, of those that go on. It has a record of how the file was before."""

    def own(self, call: OpenCall, node: int, how: int) -> None:
        """Note that a change of a file by a call is recorded."""
        self.last[node] = call
        files = call.files.setdefault(self, {})
        files[node] = files.get(node, 0) | how

    def how(self, call: OpenCall, node: int) -> int:
        """Return how far the changes of a file by a call are recorded."""
        return call.files.get(self, {}).get(node, 0)

    def has_bytes(self, call: OpenCall, node: int) -> bool:
        """Return True if a record of the call leads to the bytes before it, and no other has changed the file since."""
        return self.last.get(node) is call and bool(self.how(call, node) & (CONTENT | MADE | AGAIN))

    def part(self, call: OpenCall, kept: Kept) -> bool:
        """Note that a file loses a name by a call, which may have changed it before; returns whether it has others."""
        if kept.is_linked and self.last.get(kept.node) is call:
            self.own(call, kept.node, PARTED)
        return kept.is_linked

    def disown(self, call: OpenCall, node: int) -> None:
        """The change was not made, or the call ends."""
        if self.last.get(node) is call:
            self.last.pop(node, None)  # where the volume is no lock of its callers, several calls may end at once
        call.files.get(self, {}).pop(node, None)

    def keep(self, call: OpenCall, attr: Attr, kind: RecordKind = "remove", *, replaced: bool = False) -> Kept:
        """Keep a file as it is, before a change.

        Args:
            kind: of the change. One of attributes leaves the bytes.
            replaced: a rename removes it. The record's node is that of the renamed file, so the image says which one
                this is, or else the identity.
        """
        node, is_file = attr.node, stat.S_ISREG(attr.mode)
        CLOCK.saw(attr.ctime_ns)  # an undo compares it with what has the name by then
        before = placing.state_of(self._volume, attr)
        image, identity = None, self.identity(attr)
        if kind != "attributes":
            is_parted = replaced and self.how(call, node) & PARTED
            if is_file and (attr.nlink > 1 or is_parted or not self.has_bytes(call, node)):
                image = self._images.keep(self._volume, attr)
            if identity is None and replaced and image is None:
                identity = b"%d" % node
        return Kept(node, before, image, attr.fingerprint, identity)

    def identity(self, attr: Attr) -> bytes | None:
        """Return what names a file for longer than its node, see `Volume.lasting`; None if nothing does."""
        try:
            return None if stat.S_ISDIR(attr.mode) else self._volume.lasting(attr.node)
        except OSError:
            return None

    def end(self, call: OpenCall) -> None:
        """A call has ended."""
        for node in list(call.files.pop(self, ())):
            self.disown(call, node)


class Recorder:
    """See the module's docstring. One for each mount; thread-safe.

    Args:
        history, images: take records and bytes.
        routes: of the mount.
        logged: the routes whose volumes keep a log.
    """

    def __init__(
        self, history: HistoryFile, images: Images, routes: Iterable[Route] = (), logged: Collection[AgentPath] = ()
    ) -> None:
        self.history = history
        self.images = images
        self.calls = Calls(history, self.settle)
        self.incomplete: str | None = None
        """Why something was not recorded; None if all was."""
        self.beside: dict[AgentPath, Volume] = {}
        """The volumes of recorded routes that come and go, by prefix: branches. Replaced as a whole."""
        self.logged = logged
        self.pending: set[_PendingChange] = set()
        """Changes of the kernel's whose record comes when they are made."""
        self.routes = {route.prefix: route for route in routes}
        """Those whose changes are recorded, by prefix. Replaced as a whole."""
        self._volumes: dict[int, VolumeRecords] = {}

    def of(self, volume: Volume) -> VolumeRecords:
        """Return what is recorded of a volume."""
        found = self._volumes.get(id(volume))
        return found or self._volumes.setdefault(id(volume), VolumeRecords(volume, self.images))

    def attach(self, route: Route) -> None:
        """Record the changes of a route that comes and goes, from now on. In any thread, one at a time."""
        self.routes = {**self.routes, route.prefix: route}
        self.beside = {**self.beside, route.prefix: route.volume}

    def detach(self, prefix: AgentPath) -> None:
        """Such a route goes, or its volume is about to be closed."""
        volume = self.beside.get(prefix)
        self.routes = {each: route for each, route in self.routes.items() if each != prefix}
        self.beside = {each: there for each, there in self.beside.items() if each != prefix}
        self._volumes.pop(id(volume), None)  # another volume may get its id

    @property
    def volumes(self) -> dict[AgentPath, Volume]:
        """The volumes of all recorded routes, by prefix: of the mount's, and of the branches that there are now."""
        return {prefix: route.volume for prefix, route in self.routes.items()}

    # -- before and after a change ---------------------------------------------------------------------------------

    def add_step(
        self,
        call: OpenCall,
        prefix: AgentPath,
        kind: RecordKind,
        volume: Volume,
        path: bytes,
        node: int,
        before: Attr | None = None,
        *,
        gone: int = 0,
        **fields: Any,
    ) -> tuple[int, Kept | None]:
        """Add the record of a step of a verb, an undo, a merge or a restore, with the volume's lock held. Returns its
        number, and what was kept.

        Args:
            node: of the file.
            before: of a file that goes, or whose bytes or attributes are changed in place.
            gone: how many of the file's names have gone before, though the volume has them still.
        """
        kept = None if before is None else self.of(volume).keep(call, before, kind)
        if kind == "remove" and kept is not None:
            fields["linked"] = kept.is_linked
            kept = kept._replace(before=kept.before._replace(nlink=kept.before.nlink - gone))
        if kind in _OWN:
            self.of(volume).own(call, node, _OWN[kind])
        return self.history.add(self.calls.number(call), prefix, kind, path, kept, node=node, **fields), kept

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

    @contextlib.contextmanager
    def recording(self, what: str, call: OpenCall | None = None) -> Iterator[None]:
        """Have an error in the block fail nothing. The arguments are those of `failed`."""
        try:
            yield
        except Exception as error:
            self.failed(error, what, call)

    def end(self, wait_s: float) -> None:
        """The history is about to be closed: what still runs in a thread may change something without a record, as
        where a route hangs. Its call has a gap.

        Args:
            wait_s: for so long it may come to its end.
        """
        end_s = time.monotonic() + wait_s
        while calls := {*self.calls.running(), *(each.call for each in tuple(self.pending))}:
            if time.monotonic() > end_s:
                break
            time.sleep(ENDING_STEP_S)
        for call in calls:
            self.history.note_gap(self.calls.number(call), "it still ran when the mount ended")

    # -- the ends of calls -----------------------------------------------------------------------------------------

    def settle(self, call: OpenCall) -> None:
        """Stamp what a call has left, see `Record.after`. Called before it ends."""
        if not call.is_stamped:
            with self.recording(NOT_STAMPED):
                self.stamp(call.number)
        for records in tuple(call.files):
            records.end(call)

    def lost(self, volume: Volume) -> None:
        """A crash of a volume's server has taken changes: each call has its next change of a file recorded again."""
        records = self.of(volume)
        for call in self.calls.open():
            records.end(call)
        records.moved.clear()

    def settle_all(self) -> None:
        """Stamp what the calls that go on have left by now."""
        for call in self.calls.open():
            with self.recording(NOT_STAMPED):
                self.stamp(call.number, anew=True)

    def stamp(self, call: int, *, anew: bool = False) -> None:
        """Set `after` of a call's records to the present state.

        Args:
            anew: also of those with a stamp. An undo stamps the files that it makes: it changes none of them once more
                without another record.
        """
        made = self._planned(call) if anew else ()
        planned = {each.number: each.after for each in made if each.after is not None}
        self.stamp_records(self.history.unstamped(call, STAMPED, all_of_them=anew), planned, anew=anew)

    def stamp_records(
        self, records: Iterable[tuple[int, AgentPath, bytes]], planned: Mapping[int, Stamp], *, anew: bool
    ) -> None:
        """Set `after` of some records to the present state.

        Args:
            records: the number, the route and the path of each, as of `HistoryFile.unstamped`.
            planned: what an undo makes, by their numbers.
            anew: also where nothing is there.
        """
        left = iter(records)
        known: dict[AgentPath, Directories] = {}
        while part := list(itertools.islice(left, STAMPED)):
            by_route: dict[AgentPath, list[tuple[int, bytes]]] = {}
            for number, prefix, path in part:
                by_route.setdefault(prefix, []).append((number, path))
            for prefix, places in by_route.items():
                route = self.routes.get(prefix)
                if route is not None:
                    directories = known.setdefault(prefix, Directories(route.volume))
                    with contextlib.suppress(OSError):  # it does not answer: these have no stamp
                        stamps = route.executor.run("stat", partial(_stamps, directories, places))
                        self.history.set_after(
                            {
                                number: stamp
                                for number, stamp in stamps.items()
                                if (anew or stamp is not None)
                                and (number not in planned or _is_as_planned(route.volume, stamp, planned[number]))
                            }
                        )

    def _planned(self, call: int) -> list[Record]:
        """Return what an undo makes, by its records: some are there before their files. What is there instead, as after
        a kill of the server, another has made."""
        found = self.history.call(call)
        if found is None or found.kind != "undo":
            return []
        return [each for each in self.history.records(call) if each.kind == "create"]

    def stamp_interrupted(self) -> None:
        """Stamp the newest call of a server that was killed, before anything else changes. What its undos were about to
        give a name goes."""
        for call in self.history.interrupted:
            for record in self._planned(call):
                if (route := self.routes.get(record.prefix)) is not None:
                    with contextlib.suppress(OSError):  # the same undo removes it, or finds it in its way
                        placing.remove_staged(route.volume, *Directories(route.volume).place(record.path))
            self.stamp(call, anew=True)


def _stamps(directories: Directories, records: list[tuple[int, bytes]]) -> Mapping[int, Stamp | None]:
    directories.look_again()
    stamps: dict[int, Stamp | None] = {}
    for number, path in records:
        attr = None
        with contextlib.suppress(OSError):
            _, _, attr = directories.at(path)
        stamps[number] = None if attr is None else stamp_of(attr)
    return stamps


def _is_as_planned(volume: Volume, found: Stamp | None, planned: Stamp) -> bool:
    """Return True for a file that is the planned one, as far as its volume keeps attributes. An owner may be lost."""
    if found is None or stat.S_IFMT(found.mode) != stat.S_IFMT(planned.mode) or found.size != planned.size:
        return False
    return found.mtime_ns == planned.mtime_ns or not volume.features.persistent_modes


class _PendingChange(msgspec.Struct, eq=False):
    """A change that came by the door, until it is recorded: a `Note` for volumes that keep a log.

    Args:
        listener, change: that it came by.
        call: that makes it.
        own: how far the changes of the file by the call are recorded with it; 0 for no more than they are.
        node: of the file; 0 for that of the result.
        linked: as in `Record`.
        path, to_path: as of before the change; empty where they can be looked for after it.
    """

    listener: HistoryListener
    change: DoorChange
    call: OpenCall
    kind: RecordKind
    kept: Kept | None = None
    own: int = 0
    node: int = 0
    linked: bool = False
    path: bytes = b""
    to_path: bytes = b""
    entry: Entry | None = None

    def rows(self, result: Any) -> Sequence[LogRow]:
        listener, history = self.listener, self.listener.recorder.history
        try:
            if self.entry is not None:
                history.release(self.entry)
                self.entry = None
            self.entry = history.reserve(self._record(result))
        except Exception as error:
            listener.failed(self.change, error)
            return ()
        return [self.entry.said]

    def _record(self, result: Any) -> Entry:
        recorder, path = self.listener.recorder, self.path or self.change.path or self.change.known[0]
        if path is None:
            raise _unknown(self.change.name)
        return recorder.history.entry(
            self.call.number or recorder.calls.number(self.call), self.listener.prefix, self.kind, path, self.kept,
            self.to_path, self.node or result.node, self.linked,
        )  # fmt: skip

    def made(self, result: Any) -> None:
        """Record the change: it was made."""
        listener = self.listener
        if self.own:
            listener.records.own(self.call, self.node or result.node, self.own)
        listener.recorder.history.put(self.entry or self._record(result))

    def refused(self, error: BaseException) -> None:
        """The change was not made, as far as this process knows."""
        recorder = self.listener.recorder
        if self.entry is not None and (not isinstance(error, OSError) or error.errno in UNSURE):
            recorder.history.doubt(self.entry)
            return
        if self.entry is not None:
            recorder.history.release(self.entry)
        if self.kept is not None:
            recorder.images.remove(self.kept.image)


class HistoryListener(ChangeListener):
    """Records the changes of a route's door.

    A volume that keeps a log gets each record with the change (`_logged`). Its number comes in the transaction, so the
    records are in the order of the commits. Their paths are right, too: a file is changed by one call at a time from
    the look for its path to the record (`_turns`), and the path that this host has given it last is known before the
    kernel has the answer (`_moved`).
    """

    name = "history"

    def __init__(self, recorder: Recorder, route: Route) -> None:
        volume = route.volume
        self.prefix = route.prefix
        self.recorder = recorder
        self.records = recorder.of(volume)
        self._last = self.records.last
        self._current = recorder.calls.current
        # The lock of a branch is held while its route is asked, in threads; the mount's loop does not wait for it.
        is_branch = isinstance(volume, SnapshotVolume) and not volume.takes_snapshots
        self.orders = not ((volume.features.blocking and not is_branch) or volume.features.shared)
        self._is_logged = route.prefix in recorder.logged
        self._turns = [threading.Lock() for _ in range(TURNS)] if self._is_logged else []
        self._moved = self.records.moved

    # -- the moments of a change -----------------------------------------------------------------------------------

    def follows(self, kind: DoorKind, node: int, call: OpenCall | None = None) -> bool:
        """`call`: the one of the change, where it is known."""
        if kind == "stored":
            return False
        call = call or self._current()
        if self._last.get(node) is call:
            return kind == "content" and not self.records.how(call, node) & (CONTENT | MADE)
        return True

    def before(self, change: DoorChange) -> None:
        kind, node = change.kind, change.node
        is_of_file, call = not change.name, self._current()
        if is_of_file and not self.follows(kind, node, call):
            return
        if self._is_logged:
            change.note_known()
            change.ending = contextlib.ExitStack()
            change.ending.callback(NOTE.reset, NOTE.set(None))
            if is_of_file:
                change.ending.enter_context(self._turns[node % TURNS])
                call = self._current()  # the one before may have ended meanwhile
                if not self.follows(kind, node, call):
                    return
        pending = self._first(call, change) if is_of_file else self._pending(call, change)
        if is_of_file and pending is not None and not self._is_logged:
            # Before the change: what is read of the volume without its lock follows no change unseen.
            pending.made(None)
            return
        change.record = pending
        if pending is not None:
            self.recorder.pending.add(pending)
        if self._is_logged:
            NOTE.set(pending)

    def ordered(self, change: DoorChange) -> None:
        pending: _PendingChange | None = change.record
        if pending is None:
            return
        if self._is_logged:
            self._note_moved(change, pending)
        try:
            pending.made(change.result)
        finally:
            self.recorder.pending.discard(pending)

    def refused(self, change: DoorChange, error: BaseException) -> None:
        if change.record is not None:
            self.recorder.pending.discard(change.record)
            change.record.refused(error)

    def failed(self, change: DoorChange, error: Exception) -> None:
        what = f"a change in '{self.prefix}' was not recorded"
        self.recorder.failed(error, what, self._current())

    # -- what is recorded ------------------------------------------------------------------------------------------

    def _pending(self, call: OpenCall, change: DoorChange) -> _PendingChange | None:
        """Return the record that a change of names needs, with what it takes away."""
        match change.kind:
            case "create":
                return _PendingChange(self, change, call, "create", own=MADE)
            case "link":
                return _PendingChange(self, change, call, "create", node=change.node, linked=True)
            case "remove":
                attr = change.attr
                if change.ending is not None:
                    self._take(change.ending, attr)
                kept = self.records.keep(call, attr)
                linked = self.records.part(call, kept)
                return _PendingChange(self, change, call, "remove", kept, node=kept.node, linked=linked)
            case "rename":
                return self._renaming(call, change)
        raise AssertionError(f"no change of names: {change.kind}")

    def _renaming(self, call: OpenCall, change: DoorChange) -> _PendingChange | None:
        attr, replaced = change.attr, change.replaced
        if change.ending is not None:
            self._take(change.ending, attr, replaced)
        if change.is_same_file:
            return None
        path, to_path = change.path or change.known[0], change.to_path or change.known[1]  # while it has the old one
        if path is None or to_path is None:
            raise _unknown(change.name if path is None else change.new_name)
        pending = _PendingChange(self, change, call, "rename", node=attr.node, path=path, to_path=to_path)
        if replaced is not None and change.flags & RENAME_EXCHANGE:
            pending.kind = "exchange"
        elif replaced is not None:
            pending.kept = self.records.keep(call, replaced, replaced=True)
            pending.linked = self.records.part(call, pending.kept)
        return pending

    def _first(self, call: OpenCall, change: DoorChange) -> _PendingChange | None:
        """Return the record of the first change of a file by a call, or of the first one after another call's."""
        node, how = change.node, ATTRIBUTES if change.kind == "attributes" else CONTENT
        done = self.records.how(call, node)
        if how == CONTENT and done & (CONTENT | MADE):
            how = AGAIN
        if how & done & (AGAIN | ATTRIBUTES):  # two calls change it in turn: each has a record after the other's
            self.records.own(call, node, 0)
            return None
        attr = change.attr
        if attr.nlink == 0:
            self.records.own(call, node, how)
            return None  # no name leads to it, so nothing can be taken back
        # An open file may have lost the name that is known.
        path = change.path or self._moved.get(node) or change.door.names.path(change.door.route, node)
        path = path or change.known[0]
        if path is None:
            raise LookupError(f"the path of node {node} is not known")
        kind: RecordKind = "attributes" if how == ATTRIBUTES else "content"
        kept = self.records.keep(call, attr, kind)
        is_lost = change.path is None and node not in self._moved
        return _PendingChange(self, change, call, kind, kept, how, node, is_lost, path)

    # -- how -------------------------------------------------------------------------------------------------------

    def _take(self, ending: contextlib.ExitStack, *attrs: Attr | None) -> None:
        """Wait for these files. Directories need none: what is in one has its row locked."""
        for number in sorted({attr.node % TURNS for attr in attrs if attr is not None and not attr.is_dir}):
            ending.enter_context(self._turns[number])

    def _note_moved(self, change: DoorChange, pending: _PendingChange) -> None:
        if change.kind == "remove":
            self._moved.pop(pending.node, None)
        if change.kind != "rename":
            return
        moved = [(change.attr, pending.to_path)]
        if change.replaced is not None and change.flags & RENAME_EXCHANGE:
            moved.append((change.replaced, pending.path))
        for attr, path in moved:
            if not attr.is_dir:
                self._moved.pop(attr.node, None)
                self._moved[attr.node] = path
        while len(self._moved) > MOST_MOVED:
            with contextlib.suppress(KeyError, RuntimeError):  # another thread does it
                del self._moved[next(iter(self._moved))]


def asks_first(volume: Volume) -> bool:
    """Return True for a volume that has the history written before a change of it is durable. Of a shared one each
    change is durable at once."""
    return isinstance(volume, SnapshotVolume) and volume.before_commit is not None and not volume.features.shared


def _unknown(name: bytes) -> LookupError:
    return LookupError(f"the path of {os.fsdecode(name)!r} is not known")


# -- unmade ------------------------------------------------------------------------------------------------------
#
# `drop_unmade`: deletes the records of changes that a killed server has not made.
#
# A volume that keeps snapshots has the history written before a change of it is durable
# (`SnapshotVolume.before_commit`), so after a kill the history may know of more than there is: an undo would find it in
# its way, and a log would show it as done. The volume keeps the number of the last record there was when its last
# changes became durable, with these. Of a change through the mount, the record is one step with the change, so those
# with higher numbers were not made.
#
# What a verb removes or replaces is recorded before it does so. So the records of verbs that went on at that moment, or
# when the server was killed, are looked at one by one: a change that the tree does not show was not made.
#
# A volume that keeps a log (`SnapshotVolume.keep_log`) has a record of each change that was made, in the change. There,
# only the records of the calls that the kill has interrupted are looked at, for an undo and a merge record before, too.
# Renames that have files change places (`mv a t; mv b a; mv t b`) are looked at together, for each alone says nothing.
# A crash of its database takes changes whose records are in the history; the log names these (`drop_lost`).

MAX_PLACES: Final = 30
"""So many renames are looked at together."""

_PLACES: Final = ("rename", "exchange")

_Verdict: TypeAlias = Literal["made", "not made", "no change", "unknown"]


def drop_unmade(
    history: HistoryFile, images: Images, volumes: Mapping[AgentPath, Volume], logged: Collection[AgentPath] = ()
) -> int:
    """Delete the records of changes that were not made. Before anything else changes. Returns their number.

    Args:
        volumes: of the routes, by prefix.
        logged: the routes whose volumes keep a log.

    Raises:
        OSError: from a volume.
    """
    dropped = 0
    for prefix, volume in volumes.items() if history.was_killed else ():
        if isinstance(volume, SnapshotVolume):
            last = _stored(history, volume)
            if last is not None and prefix not in logged:
                dropped += _drop(history, images, history.records_after(last, -1, prefix))
            dropped += _drop(history, images, _before_acting(history, images, prefix, volume, last or 0))
    return dropped


def drop_lost(history: HistoryFile, images: Images, volume: Volume, numbers: Collection[int]) -> None:
    """Delete the records with these numbers: a crash of the volume's server has taken their changes.

    A record of a file's first change by a call stays where the file was changed since: it is that of the next one.

    Raises:
        OSError: from the volume.
    """
    lost = [record for number in numbers if (record := history.record(number)) is not None]
    _drop(history, images, [
        record for record in lost
        if record.kind not in ("content", "attributes") or _verdict(history, volume, record, images) != "made"
    ])  # fmt: skip


def _drop(history: HistoryFile, images: Images, records: Sequence[Record]) -> int:
    history.drop(record.number for record in records)
    for record in records:
        images.remove(record.image)
    return len(records)


def _before_acting(
    history: HistoryFile, images: Images, prefix: AgentPath, volume: SnapshotVolume, last: int
) -> list[Record]:
    """Return the records that were made before a change which was not: in the calls that the kill has interrupted, and
    in those that went on when the `last` record was the last one with a commit."""
    doubtful: list[Record] = []
    for number in {*history.interrupted, *history.going_on(last)}:
        call = history.call(number)
        if call is not None and call.kind not in ("session", "command"):
            records = [record for record in history.records(number) if record.prefix == prefix]
            is_after = ("create", "rename") if call.kind in ("verb", "tool") else ()
            doubtful += [each for each in records if each.kind not in is_after and each.number not in history.made]
    unmade: dict[int, Record] = {}
    for record in sorted(doubtful, key=attrgetter("number"), reverse=True):
        named = {record.path, record.to_path} - {b""}
        later = [each for path in named for each in history.since(record.number, prefix, path)]
        is_last = all(each.number in unmade for each in later)
        if is_last and _verdict(history, volume, record, images) in ("not made", "no change"):
            unmade[record.number] = record
    left = [each for each in doubtful if each.number not in unmade]
    known = unmade.keys() | {each.number for each in left}
    if all(each.number in known for record in left for path in (record.path, record.to_path)
           for each in history.since(record.number, prefix, path)) and _is_before(volume, left):  # fmt: skip
        unmade |= {each.number: each for each in left}
    return list(unmade.values())


def _stored(history: HistoryFile, volume: SnapshotVolume) -> int | None:
    """Return the number of the last record when a volume has stored its last changes; None where nobody knows it. When
    a mount ends, the history is closed before the volume."""
    last = volume.committed(history.id)
    return None if last is None else max(last, history.closed)


def _verdict(history: HistoryFile, volume: Volume, record: Record, images: Images) -> _Verdict:
    """Say whether a change was made, if none that is later was."""
    if not record.node:
        return "unknown"
    there = find(volume, os.fsdecode(record.path))
    is_it = there is not None and there.node == record.node
    match record.kind:
        case "create":
            return "made" if is_it else "not made"
        case "remove":
            return "not made" if is_it else "unknown"
        case "rename" | "exchange":
            target = find(volume, os.fsdecode(record.to_path))
            is_moved = target is not None and target.node == record.node
            return "unknown" if is_it == is_moved else "not made" if is_it else "made"
    if there is None or not is_it:
        return "not made"  # nobody has removed it later, so it was not there
    state = NodeSource(volume, there.node).state
    before = record.before
    assert before is not None, "a change has the state before it"
    if record.kind == "attributes":
        same = state._replace(atime_ns=0, nlink=0) == before._replace(atime_ns=0, nlink=0)
        return "no change" if same else "made"
    if (state.size, state.mtime_ns) != (before.size, before.mtime_ns):
        return "made"
    if not stat.S_ISREG(before.mode) or record.image is None or before.size > MERGED_BYTES:
        return "unknown"
    kept = images.source(history, volume, record)
    if kept is None:
        return "unknown"
    return "no change" if whole(kept) == whole(NodeSource(volume, there.node)) else "made"


def _is_before(volume: Volume, records: Sequence[Record]) -> bool:
    """Return True if the tree has all files where they were before renames, in their order, and no tree after some of
    these renames has. False where it can't be said."""
    if not 1 < len(records) <= MAX_PLACES or any(each.kind not in _PLACES or not each.node for each in records):
        return False
    paths = {path for each in records for path in (each.path, each.to_path)}
    if any(is_below(one, other) for one in paths for other in paths):
        return False  # what is below a renamed directory has another path then
    there = {path: find(volume, os.fsdecode(path)) for path in paths}
    nodes = {path: 0 if attr is None else attr.node for path, attr in there.items()}
    fitting = [made for made in range(len(records) + 1) if _fits(nodes, records[:made], records[made:])]
    return fitting == [0]


def _fits(nodes: Mapping[bytes, int], made: Sequence[Record], left: Sequence[Record]) -> bool:
    """Return True if a tree with these nodes can be one after some renames and before others."""
    now: dict[bytes, int | None] = dict(nodes)  # 0 for nothing, None for what is not known
    for record in left:
        if now[record.path] not in (record.node, None):
            return False
        back = now[record.to_path] if record.kind == "exchange" else 0
        now[record.path], now[record.to_path] = back, record.node
    now = dict(nodes)
    for record in reversed(made):
        vacant = now[record.path] if record.kind == "exchange" else 0
        if now[record.to_path] not in (record.node, None) or now[record.path] not in (vacant, None):
            return False
        back = now[record.path] if record.kind == "exchange" else None if record.before is not None else 0
        now[record.path], now[record.to_path] = record.node, back
    return True
