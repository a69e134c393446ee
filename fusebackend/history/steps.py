"""`Steps`: records what a verb changes, by the paths that it names, for any kind of backend.

The files at the paths are kept and recorded before the verb, and compared after it: a record without a change is
dropped, and new names get theirs. So a change by others during the verb has a later record than the verb's, and an undo
of the verb finds the conflict. Verbs that name the same path wait for each other.

A failure to record is logged, and the verb is made all the same (`Recorder.failed`).
"""

from __future__ import annotations

import contextlib
import logging
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from fusebackend.base.errors import VANISHED
from fusebackend.base.paths import AgentPath, PathError, normalise, to_name
from fusebackend.history.calls import OpenCall
from fusebackend.history.recorder import CONTENT, MADE, Kept, Recorder
from fusebackend.history.records import Image, RecordKind
from fusebackend.protocol import Attr, Volume
from fusebackend.vfs.junctions import MountTree, Route
from fusebackend.volumes.walk import Place, entries, resolve

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


class PathLocks:
    """A lock for each path that is in use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def held(self, paths: Sequence[str]) -> Iterator[None]:
        """Hold the locks of paths, in one order for all threads."""
        with contextlib.ExitStack() as locks:
            for path in sorted(set(paths)):
                locks.enter_context(self._one(path))
            yield

    @contextlib.contextmanager
    def _one(self, path: str) -> Iterator[None]:
        with self._guard:
            lock, users = self._locks.get(path, (threading.Lock(), 0))
            self._locks[path] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[path]
                if users == 1:
                    del self._locks[path]
                else:
                    self._locks[path] = (lock, users - 1)


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
        with self._recorder.calls.inside("verb", title) as call, self._locks.held(self._outer(named)):
            before: list[_Before] = []
            with self._recording(title, call):
                for path, how in self._ways(verb, named):
                    found = self._before(call, how, path)
                    if found is not None:
                        before.append(found)
            made = False
            try:
                result = work()
                made = done(result)
            finally:
                with self._recording(title, call):
                    self._after(call, before, made)
            return result

    def _ways(self, verb: Verb, named: Sequence[str]) -> list[tuple[AgentPath, How]]:
        """Return what a verb does with each path."""
        outer = self._outer(named)
        if verb != "move":
            return [(path, verb) for path in outer]
        if len(outer) != 2:
            return []
        within = self._route(outer[0]) is self._route(outer[1])
        return [(outer[0], "rename" if within else "remove"), (outer[1], "remove")]

    def _outer(self, named: Sequence[str]) -> list[AgentPath]:
        found = []
        for path in named:
            with contextlib.suppress(PathError):
                found.append(normalise(path))
        return list(dict.fromkeys(found))

    def _route(self, path: AgentPath) -> Route | None:
        route = self._tree.route_of(path)
        if not self._recorder.recorded(route):  # in the trees directory, where only branches are
            return None
        return None if route.volume.features.read_only else route

    # -- before ----------------------------------------------------------------------------------------------------

    def _before(self, call: OpenCall, how: How, path: AgentPath) -> _Before | None:
        route = self._route(path)
        if route is None:
            return None
        try:
            return route.executor.run("stat", partial(self._look, call, how, route, route.inner(path)))
        except PathError:
            return None
        except OSError as error:
            if error.errno not in VANISHED:
                log.debug("'%s' can't be looked at before a change: %s", path, error)
            return None

    def _look(self, call: OpenCall, how: How, route: Route, inner: AgentPath) -> _Before:
        volume = route.volume
        with contextlib.nullcontext() if route.executor.blocking or route.shared else volume.lock:
            place = resolve(volume, inner, follow=how == "put")
            found = _Before(how, route, place, {})
            if place.attr is None or how == "rename":
                return found
            if not place.attr.is_dir:
                self._keep(call, found, place.path, place.attr)
                return found
        if how == "remove":
            self._keep_tree(call, found, place.path, place.attr)
        return found

    def _keep(self, call: OpenCall, found: _Before, path: AgentPath, attr: Attr) -> None:
        recorder, volume, prefix, how = self._recorder, found.route.volume, found.route.prefix, found.how
        node = attr.node
        if how == "put" and (not stat.S_ISREG(attr.mode) or recorder.of(volume).has_bytes(call, node)):
            return
        kept = recorder.keep(call, volume, attr)
        if how == "put":
            recorder.of(volume).own(call, node, CONTENT)
        linked = how != "put" and kept.before.nlink > 1 and not stat.S_ISDIR(kept.before.mode)
        kind: RecordKind = "content" if how == "put" else "remove"
        number = recorder.add(call, prefix, kind, to_name(path), kept, linked=linked)
        found.numbers[number] = (path, kept)

    def _keep_tree(self, call: OpenCall, found: _Before, path: AgentPath, attr: Attr) -> None:
        """Keep a directory and everything below it: a directory after its entries, as it is removed."""
        levels = [(path, attr, iter(list(entries(found.route.volume, attr.node))))]
        while levels:
            at, directory, listing = levels[-1]
            for name, entry in listing:
                below = AgentPath(f"{at.rstrip('/')}/{name.decode('utf-8', 'surrogateescape')}")
                if entry.is_dir:
                    levels.append((below, entry, iter(list(entries(found.route.volume, entry.node)))))
                    break
                self._keep(call, found, below, entry)
            else:
                levels.pop()
                self._keep(call, found, at, directory)

    # -- after -----------------------------------------------------------------------------------------------------

    def _after(self, call: OpenCall, before: list[_Before], made: bool) -> None:
        is_rename = len(before) == 2 and before[0].how == "rename"
        for found in before:
            found.route.executor.run("stat", partial(self._compare, call, found, made, is_rename))
        if made and is_rename:
            old, new = before
            old.route.executor.run("stat", partial(self._renamed, call, old, new))

    def _compare(self, call: OpenCall, found: _Before, made: bool, is_rename: bool) -> None:
        """Drop the records of unchanged files, and add those of new names."""
        how = found.how
        volume, prefix, recorder = found.route.volume, found.route.prefix, self._recorder
        records = recorder.of(volume)
        for number, (path, kept) in tuple(found.numbers.items()):
            now = _attr(volume, path)
            if now is not None and now.node == kept.node and _is_same(now, kept):
                if how == "put":
                    records.disown(call, kept.node)
                recorder.history.drop([number])
                recorder.drop(kept)
            elif how == "put" and now is not None and not records.is_last(call, kept.node):
                # Another call has changed it meanwhile, before this one or after it.
                image = Image("lost", "two calls changed it at the same time")
                recorder.add(call, prefix, "content", to_name(path), kept._replace(image=image))
                records.own(call, kept.node, CONTENT)
        if made and found.place.attr is None:
            self._created(call, found, is_rename)

    def _created(self, call: OpenCall, found: _Before, is_rename: bool) -> None:
        """Add the records of names that a verb has made: directories on the way, and all names below."""
        volume, prefix, recorder = found.route.volume, found.route.prefix, self._recorder
        place = found.place
        for path in place.missing_paths if is_rename else (*place.missing_paths, place.path):
            attr = _attr(volume, path)
            if attr is None:
                return
            if path != place.path and recorder.of(volume).how(call, attr.node) & MADE:
                continue  # on the way to another path of the verb, too
            recorder.of(volume).own(call, attr.node, MADE)
            recorder.add(call, prefix, "create", to_name(path), node=attr.node)
            if path == place.path and attr.is_dir:
                self._created_below(call, found.route, place.path, attr)

    def _created_below(self, call: OpenCall, route: Route, path: AgentPath, attr: Attr) -> None:
        pending = [(path, attr.node)]
        while pending:
            at, node = pending.pop()
            for name, entry in list(entries(route.volume, node)):
                below = f"{at.rstrip('/')}/{name.decode('utf-8', 'surrogateescape')}"
                number = entry.node
                self._recorder.of(route.volume).own(call, number, MADE)
                self._recorder.add(call, route.prefix, "create", to_name(below), node=number)
                if entry.is_dir:
                    pending.append((AgentPath(below), number))

    def _renamed(self, call: OpenCall, old: _Before, new: _Before) -> None:
        now = _attr(new.route.volume, new.place.path)
        if old.place.attr is not None and now is not None and old.place.path != new.place.path:
            path, to_path = to_name(old.place.path), to_name(new.place.path)
            self._recorder.add(call, old.route.prefix, "rename", path, to_path=to_path, node=now.node)

    @contextlib.contextmanager
    def _recording(self, what: str, call: OpenCall) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._recorder.failed(error, f"a change was not recorded ({what})", call)


def _attr(volume: Volume, path: AgentPath) -> Attr | None:
    try:
        return resolve(volume, path, follow=False).attr
    except OSError as error:
        if error.errno in VANISHED or isinstance(error, NotADirectoryError):
            return None
        raise


def _is_same(now: Attr, kept: Kept) -> bool:
    """True if a file is as it was kept, by its size and times."""
    return (now.size, now.mtime_ns, now.ctime_ns) == (kept.before.size, kept.before.mtime_ns, kept.ctime_ns)
