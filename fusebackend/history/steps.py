"""`Steps`: records what a verb changes, by the paths that it names, for any kind of backend.

The files at the paths are kept and recorded before the verb, and compared after it: a record without a change is
dropped. So a change by others during the verb has a later record than the verb's, and an undo of the verb finds the
conflict. Verbs that name the same path wait for each other.

What a verb makes and renames is recorded from the `Change`s by which volumes with snapshots, and branches, report it:
with the lock held, or in the transaction (`_Recorded.rows`). Nobody sees it before, and no commit has it: another
process's fsync made it durable without its record in 1 of 10 kills. Elsewhere new names are found by comparing, too.

The calls of verbs to a volume do not pass its `Door`. The listener of the history takes a snapshot before a change, for
which the transaction of a verb on `postgres:` would wait for itself; foreign backends, moves between routes under a
hidden name, and files that a remote puts as a whole need the comparison all the same, so both ways would be there.

A failure to record is logged, and the verb is made all the same (`Recorder.failed`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from fusebackend.base.context import during
from fusebackend.base.errors import VANISHED, unless
from fusebackend.base.paths import AgentPath, PathError, normalise, to_name, to_text
from fusebackend.history.calls import OpenCall
from fusebackend.history.history_file import Entry
from fusebackend.history.recorder import CONTENT, MADE, NOT_STAMPED, Recorder, asks_first
from fusebackend.history.records import Image, Kept, RecordKind, Stamp, stamp_of
from fusebackend.protocol import STEP, Attr, Changes, LogRow, SnapshotVolume, Volume
from fusebackend.rules.ruled_volume import NODES
from fusebackend.vfs.junctions import MountTree, Route
from fusebackend.volumes.walk import NOWHERE, Place, below, find, known, resolve

log = logging.getLogger(__name__)

T = TypeVar("T")

How: TypeAlias = Literal["put", "remove", "rename"]
"""What a verb does with a path: gives a file bytes; removes what is there; moves it inside its route."""

Verb: TypeAlias = Literal["put", "remove", "move"]


class _Before(NamedTuple):
    """A path before a verb."""

    how: How
    route: Route
    place: Place
    numbers: dict[int, tuple[AgentPath, Kept]]
    """The records that were made of what is there, by their numbers: path and state."""


_Key: TypeAlias = tuple[RecordKind, Route, AgentPath]
"""Kind, route and path of a record."""


class _Recorded:
    """The records of one verb: what it replaces and removes, from before it, and what it makes and renames.

    A volume with snapshots, or a branch, tells what it has made, by `Change`s, in the transaction or under the lock
    (`rows`). Elsewhere the names are compared when the verb is over (`_created`, `_renamed`).

    Args:
        recording: logs what fails in a block.
    """

    def __init__(
        self,
        recorder: Recorder,
        call: OpenCall,
        recording: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._recorder = recorder
        self._call = call
        self._recording = recording
        self._before: list[_Before] = []
        self._began = recorder.history.last
        self._noted: dict[_Key, Entry] = {}
        self._pending: list[_Key] = []  # in the transaction that goes on

    # -- before ----------------------------------------------------------------------------------------------------

    def look(self, how: How, route: Route, path: AgentPath) -> None:
        """Keep and record what is at a path of the verb."""
        try:
            self._before.append(route.executor.run("stat", partial(self._found, how, route, route.inner(path))))
        except PathError:
            return
        except OSError as error:
            if error.errno not in VANISHED:
                log.debug("'%s' can't be looked at before a change: %s", path, error)

    def _found(self, how: How, route: Route, inner: AgentPath) -> _Before:
        volume = route.volume
        with contextlib.nullcontext() if route.executor.blocking or route.shared else volume.lock:
            place = resolve(volume, inner, follow=how == "put")
            found = _Before(how, route, place, {})
            if place.attr is None or how == "rename":
                return found
            if not place.attr.is_dir:
                self._keep(found, place.path, place.attr)
                return found
        if how == "remove":
            self._keep_tree(found, place.path, place.attr)
        return found

    def _keep(self, found: _Before, path: AgentPath, attr: Attr, gone: int = 0) -> None:
        call, recorder, volume, node = self._call, self._recorder, found.route.volume, attr.node
        kind: RecordKind = "content" if found.how == "put" else "remove"
        if kind == "content" and (not stat.S_ISREG(attr.mode) or recorder.of(volume).has_bytes(call, node)):
            return
        name = to_name(path)
        number, kept = recorder.add_step(call, found.route.prefix, kind, volume, name, node, attr, gone=gone)
        assert kept is not None, "it was there"
        if kept.image is not None:  # the bytes are on their way to the record: a tree may have many
            kept = kept._replace(image=kept.image._replace(data=None))
        found.numbers[number] = (path, kept)

    def _keep_tree(self, found: _Before, path: AgentPath, attr: Attr) -> None:
        """Keep a directory and everything below it: a directory after its entries, as it is removed. A file with
        several names there has one less each time."""
        volume, gone = found.route.volume, Counter[int]()
        for inner, entry in reversed([(path, attr), *_below(volume, path, attr)]):
            self._keep(found, inner, known(volume, entry.node, inner), gone[entry.node])
            gone[entry.node] += entry.nlink > 1 and not entry.is_dir

    # -- while it is made: a `StepNote` ------------------------------------------------------------------------------

    def made(self, work: Callable[[], T], done: Callable[[T], bool]) -> T:
        """Return the result of the verb; the volumes tell meanwhile what it makes, and the rest is looked for at its
        end. The arguments are those of `Steps.verb`."""
        is_made = False
        try:
            if any(each.numbers for each in self._before if each.route.prefix in self._recorder.logged):
                self._recorder.history.flush()  # the records of what it is about to replace come first
            with during(STEP, self):
                result = work()
            is_made = done(result)
            return result
        finally:
            for key in self._pending:
                self._recorder.history.doubt(self._noted[key])
            self._end(is_made=is_made)

    def rows(self, volume: Volume, changes: Changes) -> Sequence[LogRow]:
        routes = (each.route for each in reversed(self._before))  # a verb may have thousands; its last is asked for
        there = (each for each in routes if isinstance(each.volume, SnapshotVolume) and each.volume.kept_by is volume)
        route = next(there, None)
        if route is None:
            return ()
        for key in self._pending:  # of an attempt that is repeated
            self._recorder.history.release(self._noted.pop(key))
        self._pending = []
        with self._recording():
            for change in changes:
                path, node = AgentPath(change.path.rstrip("/")), (change.node or 0) & NODES
                if change.kind == "created":
                    self._note(route, "create", path, node=node)
                elif change.moved_from is not None:
                    old = AgentPath(change.moved_from.rstrip("/"))
                    self._note(route, "rename", old, node=node, to_path=to_name(path))
                elif change.kind == "deleted":  # the verb takes back what it has made, and a commit may have had it
                    made = [key for key in self._noted if key[:2] == ("create", route)]
                    back = [key for key in made if self._noted[key].node == node]
                    self._recorder.history.drop([self._noted.pop(key).number for key in back])
        return [self._noted[key].said for key in self._pending]

    def _note(self, route: Route, kind: RecordKind, path: AgentPath, **fields: Any) -> None:
        key = kind, route, path
        if key in self._noted:
            return
        history, call = self._recorder.history, self._recorder.calls.number(self._call)
        self._noted[key] = entry = history.entry(call, route.prefix, kind, to_name(path), **fields)
        if route.prefix in self._recorder.logged:
            history.reserve(entry)
            self._pending.append(key)
        else:
            history.put(entry)
            self._own(key)

    def _own(self, key: _Key) -> None:
        kind, route, _ = key
        if kind == "create":
            self._recorder.of(route.volume).own(self._call, self._noted[key].node, MADE)

    def committed(self) -> None:
        for key in self._pending:
            self._own(key)
            self._recorder.history.put(self._noted[key])
        self._pending = []

    # -- after -----------------------------------------------------------------------------------------------------

    def _end(self, *, is_made: bool) -> None:
        """Drop the records of unchanged files, and note new names. What has been looked at for that is stamped, if this
        is all of the call: the history's file then need not be asked what is left to look at.

        Args:
            is_made: the verb has worked.
        """
        before = self._before
        is_rename = len(before) == 2 and before[0].how == "rename"
        with self._recording():
            for found in before:
                if found.numbers or not isinstance(found.route.volume, SnapshotVolume):
                    compare = partial(self._compare, found, is_made=is_made, is_rename=is_rename)
                    found.route.executor.run("stat", compare)
            if is_made and is_rename and not isinstance(before[0].route.volume, SnapshotVolume):
                before[0].route.executor.run("stat", partial(self._renamed, *before))
            if not self._call.is_shared:
                with self._recorder.recording(NOT_STAMPED):
                    pending = set(self._pending)
                    made = [(entry.number, key[1].prefix, entry.left_at) for key, entry in self._noted.items()
                            if key not in pending]  # fmt: skip
                    self._recorder.stamp_records(made, {}, anew=False)
                    self._call.is_stamped = True
            changed = {found.route for found in before if found.numbers} | {key[1] for key in self._noted}
            if not all(asks_first(each.volume) or each.prefix in self._recorder.logged for each in changed):
                self._recorder.history.flush()

    def _compare(self, found: _Before, *, is_made: bool, is_rename: bool) -> None:
        how, call, recorder = found.how, self._call, self._recorder
        volume, prefix = found.route.volume, found.route.prefix
        records = recorder.of(volume)
        stamps: dict[int, Stamp] = {}
        for number, (path, kept) in tuple(found.numbers.items()):
            now = find(volume, path)
            # Not by the version: of a shared volume a look may give the file another one.
            if (
                now is not None
                and now.fingerprint[:3] == kept.fingerprint[:3]
                and (now.node == kept.node or _is_gone(volume, kept.node))
            ):
                if how == "put":
                    records.disown(call, kept.node)
                recorder.history.drop([number])
                recorder.images.remove(kept.image)
            elif how == "put" and now is not None:
                stamps[number] = stamp_of(now)
                if records.last.get(kept.node) is not call:
                    # Another call has changed it meanwhile, before this one or after it.
                    image = Image("lost", "two calls changed it at the same time")
                    lost, by = kept._replace(image=image), recorder.calls.number(call)
                    again = recorder.history.add(by, prefix, "content", to_name(path), lost, node=kept.node)
                    records.own(call, kept.node, CONTENT)
                    stamps[again] = stamp_of(now)
        if not call.is_shared:
            recorder.history.set_after(stamps)
        if not isinstance(volume, SnapshotVolume):
            self._created(found, is_made=is_made, is_rename=is_rename)

    def _created(self, found: _Before, *, is_made: bool, is_rename: bool) -> None:
        """Note the names that are there, where there was none before: directories on the way, and all names below.

        Args:
            is_made: the verb has worked. One that has failed may have made some names: those that no other call has
                recorded.
        """
        volume, call = found.route.volume, self._call
        for path, node in _created(found, is_rename) if found.place.attr is None else ():
            if not is_made and self._is_others(found.route, path):
                continue
            # What is on the way may have been made by another verb of the call.
            if len(path) >= len(found.place.path) or not self._recorder.of(volume).how(call, node) & MADE:
                self._note(found.route, "create", path, node=node)

    def _renamed(self, old: _Before, new: _Before) -> None:
        """Note the rename of a verb that has worked."""
        now = find(new.route.volume, new.place.path)
        if old.place.attr is not None and now is not None and old.place.path != new.place.path:
            self._note(old.route, "rename", old.place.path, to_path=to_name(new.place.path), node=now.node)

    def _is_others(self, route: Route, path: AgentPath) -> bool:
        """Return True if another call has recorded since the verb began how a file got its path."""
        name = to_name(path)
        since = self._recorder.history.since(self._began, route.prefix, name)
        theirs = [each for each in since if each.call != self._call.number and each.kind in ("create", "rename")]
        return any((each.to_path or each.path) == name for each in theirs)


class PathLocks:
    """A lock for each path that is in use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    @contextlib.contextmanager
    def held(self, paths: Iterable[str]) -> Iterator[None]:
        """Hold the locks of paths, in one order for all threads."""
        with self._guard:
            locks = [self._locks.setdefault(path, threading.Lock()) for path in sorted(set(paths))]
        with contextlib.ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            yield


class Steps:
    """See the module's docstring.

    Args:
        tree: of the mount.
    """

    def __init__(self, recorder: Recorder, tree: MountTree) -> None:
        self._recorder = recorder
        self._tree = tree
        self._locks = PathLocks()

    def verb(self, name: str, verb: Verb, named: Sequence[str], work: Callable[[], T], done: Callable[[T], bool]) -> T:
        """Return the result of a verb, and record what it has changed.

        Args:
            name: of the verb, for the call's title.
            verb: its kind.
            named: the paths, as the agent gives them.
            work: makes the verb.
            done: says of its result that it has done something.
        """
        title = f"{name} {named[0] if named else ''}{f' and {len(named) - 1} more' if len(named) > 1 else ''}"
        if verb == "move":
            title = f"{name} {' '.join(named)}"
        outer = _normalised(named)
        with self._recorder.calls.inside("verb", title) as call, self._locks.held(outer):
            recording = partial(self._recorder.recording, f"a change was not recorded ({title})", call)
            recorded = _Recorded(self._recorder, call, recording)
            with recording():
                for path, how in self._ways_of_move(outer) if verb == "move" else [(path, verb) for path in outer]:
                    route = self._route(path)
                    if route is not None:
                        recorded.look(how, route, path)
            return recorded.made(work, done)

    def _ways_of_move(self, outer: Sequence[AgentPath]) -> list[tuple[AgentPath, How]]:
        """Return what a move does with each path."""
        if len(outer) != 2:
            return []
        within = self._route(outer[0]) is self._route(outer[1])
        return [(outer[0], "rename" if within else "remove"), (outer[1], "remove")]

    def _route(self, path: AgentPath) -> Route | None:
        route = self._tree.route_of(path)
        if self._recorder.routes.get(route.prefix) is not route:  # in the trees directory, where only branches are
            return None
        return None if route.volume.features.read_only else route


def _normalised(named: Sequence[str]) -> list[AgentPath]:
    """Return the paths that a verb names, each once, without those that it will refuse."""
    found = []
    for path in named:
        with contextlib.suppress(PathError):
            found.append(normalise(path))
    return list(dict.fromkeys(found))


def _created(found: _Before, is_rename: bool) -> Iterator[tuple[AgentPath, int]]:
    """Yield the names that are there, where there was none before a verb, and their nodes: directories on the way to a
    path, the path unless it got there by a rename, and all below it. Each name on the way is looked up once."""
    volume, place = found.route.volume, found.place
    now = unless(NOWHERE, partial(resolve, volume, place.path, follow=False))
    if now is None:
        return
    yield from zip(place.missing_paths, now.trail[len(place.trail) :], strict=False)
    if now.attr is not None and not is_rename:
        yield place.path, now.attr.node
        if now.attr.is_dir:
            yield from ((path, attr.node) for path, attr in _below(volume, place.path, now.attr))


def _below(volume: Volume, path: AgentPath, attr: Attr) -> Iterator[tuple[AgentPath, Attr]]:
    for inner, entry in below(volume, attr.node, to_name(path).rstrip(b"/")):
        yield AgentPath(to_text(inner)), entry


def _is_gone(volume: Volume, node: int) -> bool:
    """Return True for a node that says nothing any more, see `walk.known`."""
    try:
        volume.getattr(node)
    except OSError as error:
        return error.errno == errno.ESTALE
    return False
