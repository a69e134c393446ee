"""States before the present, from the live routes and the records of the history: they are taken back in memory.

`EarlierVolume` is a route at a moment, such as the begin of a call: all that was changed since, by anybody, is taken
back (`history/undo_plan.py`). What no record names is the live file itself, with its own node. So it needs no
snapshot, and works on every route whose changes are recorded.

It never guesses. A file can be listed, but not read, if its bytes are lost, or if it was changed after the moment and
no record says from what: by a call that was changing it already, or behind the mount. Its times show that, but for a
change behind the mount within a tick of the clock (some ms) after the moment. Of a file that a call was changing, such
a tick before the moment counts as well: so early may be the stamp of what that call has changed after it. Where such a
file's attributes were changed since, its times show nothing, and it counts as changed.
Times of directories are the present ones: no record has them. Of calls that overlap, attributes may be those between.

`sides` gives two trees, before a call and after it, with nothing but the paths that the call has changed, and the
directories above these: their difference is what the call did, and nothing of what others did meanwhile or since.
"""

from __future__ import annotations

import errno
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.errors import oserror, unless
from fusebackend.base.paths import AgentPath, mount_path
from fusebackend.base.relative_paths import above, is_below, split
from fusebackend.base.stamps import TICK_NS
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.records import Record
from fusebackend.history.undo_plan import PlannedFile, PlannedName, PlannedTree
from fusebackend.protocol import MAX_NODE, ROOT_NODE, Attr, Features, SnapshotVolume, Volume
from fusebackend.trees.merge.tree import MergeTree
from fusebackend.volumes.frozen import GivesPieces
from fusebackend.volumes.placing import NodeSource, Source, State, state_of
from fusebackend.volumes.walk import entries

_FIRST_OWN: Final = MAX_NODE + 1
"""Nodes from here on are those of files that are not the live ones."""

_UNKNOWN: Final = "a call that had begun before has changed it since, or a program behind the mount"

_DIRECTORY: Final = State(stat.S_IFDIR | 0o755, 0, 0, 0, 0, 2, 0, 0, {}, b"")
"""The state of a directory that was there, and of which nothing else is known."""


class PastMoment(NamedTuple):
    """A moment of a history.

    Attributes:
        words: it, for an error: `before c42`.
        time_ns: since the epoch.
        begin: the number of the last record before it.
    """

    words: str
    time_ns: int
    begin: int


class RecordedVolume(GivesPieces):
    """A route with records taken back. Read-only; for one thread.

    Args:
        tree: of the live route.
        source: returns the bytes of a record's image.
        with_ways: make directories that a record's path needs and that are not there.
    """

    features = Features(read_only=True)

    def __init__(
        self,
        tree: PlannedTree,
        source: Callable[[Record], Source],
        with_ways: bool,
    ) -> None:
        self.lock = tree.volume.lock
        self._tree = tree
        self._live = tree.volume
        self._source = source
        self._with_ways = with_ways
        self._known = {ROOT_NODE: tree.root}  # directories, and files that are not the live ones, by their numbers
        self._numbers: dict[PlannedFile, int] = {}  # of those that no live file is
        self._gone: dict[int | bytes, PlannedFile] = {}  # files that have no name, by what they had: node or identity
        self._counted: Collection[int] = ()  # files of which another name was changed

    # -- taking back -----------------------------------------------------------------------------------------------

    def take_back(self, record: Record) -> None:
        """Take a change back. Those after it are taken back already."""
        place = self._place(record.path)
        other = self._place(record.to_path) if record.to_path else place
        if place is None or other is None:
            return
        file = place.file
        match record.kind:
            case "create":
                place.put(None)
                if not record.linked:  # the number may have been another file's before
                    self._tree.files.pop(record.node, None)
                    self._gone.pop(record.node, None)
            case "remove":
                place.put(self._earlier(record))
            case "rename":
                place.put(other.file)
                other.put(self._earlier(record))
            case "exchange":
                place.put(other.file)
                other.put(file)
            case "content" | "attributes":
                if file is None:
                    place.put(self._earlier(record))
                else:
                    self._give(file, record)

    def _place(self, path: bytes) -> PlannedName | None:
        place = self._tree.at(path)
        if place is None and self._with_ways:
            for way in reversed(list(above(path))):
                found = self._tree.at(way)
                assert found is not None, "what is above it was made"
                if found.file is None or not found.file.is_dir:
                    found.put(PlannedFile(None, _DIRECTORY))
            place = self._tree.at(path)
        return place

    def _earlier(self, record: Record) -> PlannedFile | None:
        """Return the file of a record before its change, which may have another name by now."""
        before = record.before
        if before is None:
            return None
        file = None if stat.S_ISDIR(before.mode) else self._known_file(record, record.linked or before.nlink > 1)
        file = file or PlannedFile(None, before)
        self._give(file, record)
        return file

    def _known_file(self, record: Record, has_others: bool) -> PlannedFile | None:
        """Return the file of a record, where other names and other records may lead to it; None for one of its own.

        Args:
            has_others: it has had other names when it lost this one.
        """
        return None

    def _give(self, file: PlannedFile, record: Record) -> None:
        assert record.before is not None, "a change has the state before it"
        image = record.image
        file.become(record.before)
        if not file.is_regular:
            return
        if record.kind == "attributes":
            file.why_lost = file.why_lost or ("" if file.source or file.node else _UNKNOWN)
            return
        file.source, file.why_lost = None, "the history has no bytes of it"
        if image is not None and image.place == "lost":
            file.why_lost = image.name
        elif image is not None:
            try:
                file.source, file.why_lost = self._source(record), ""
            except OSError as error:
                file.why_lost = error.strerror or str(error)

    # -- the files -------------------------------------------------------------------------------------------------

    def _is_newer(self, file: PlannedFile, mode: int, time_ns: int) -> bool:
        """Return True for a file whose bytes may have been changed without a record since, by its time."""
        return False

    def _may_go_on(self, file: PlannedFile) -> bool:
        """Return True for a file whose bytes a call may have changed since without a record, whatever its times say."""
        return False

    def _entry(self, directory: PlannedName, name: bytes, live: Attr | None) -> Attr | None:
        """Return the attributes of a name.

        Args:
            live: what a live directory has there.
        """
        assert directory.file is not None, "it is a directory"
        place = directory.file.names.get(name)
        if place is None and live is not None:
            file = self._tree.files.get(live.node) or PlannedFile(live)
            place = PlannedName(directory, name, file)
        if place is None or place.file is None:
            return None
        file = place.file
        if file.state is None and not file.is_dir:
            attr = live if live is not None and live.node == file.node else self._live.getattr(file.node)
            # A change of names moves the ctime, too.
            is_counted = place.is_moved or attr.node in self._counted
            if not self._is_newer(file, attr.mode, attr.mtime_ns if is_counted else attr.ctime_ns):
                return attr
            file.become(state_of(self._live, attr))
            file.why_lost = _UNKNOWN
        number = file.node or self._numbers.setdefault(file, _FIRST_OWN + len(self._numbers))
        self._known.setdefault(number, place)
        return self.getattr(number)

    def _file(self, node: int) -> PlannedFile | None:
        """Return the file of a number; None if the file is as the live one."""
        return self._known[node].file if node in self._known else None

    def _state(self, node: int) -> State | None:
        file = self._file(node)
        return None if file is None else file.state

    # -- the kernel face -------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        directory = self._known[parent]
        live = None
        if directory.file is not None and directory.file.node and name not in directory.file.names:
            live = unless((errno.ENOENT,), self._live.lookup, directory.file.node, name)
        found = self._entry(directory, name, live)
        if found is None:
            raise oserror(errno.ENOENT, name)
        return found

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        directory = self._known[node]
        there = self._names(directory)
        found = [(name, self._entry(directory, name, there[name])) for name in sorted(there) if name > after]
        return [(name, attr) for name, attr in found if attr is not None][:limit]

    def _names(self, directory: PlannedName) -> dict[bytes, Attr | None]:
        """Return the names that may be in a directory, with what a live one has there."""
        assert directory.file is not None, "it is a directory"
        there: dict[bytes, Attr | None] = dict.fromkeys(directory.file.names)
        if directory.file.node:
            there.update(entries(self._live, directory.file.node))
        return there

    def getattr(self, node: int) -> Attr:
        state = self._state(node)
        if state is None:
            return self._live.getattr(node)
        # Without a ctime: nothing is taken for untouched by its times.
        return Attr(node, state.mode, nlink=state.nlink, uid=state.uid, gid=state.gid, rdev=state.rdev,
                    size=state.size, atime_ns=state.atime_ns, mtime_ns=state.mtime_ns)  # fmt: skip

    def readlink(self, node: int) -> bytes:
        state = self._state(node)
        return self._live.readlink(node) if state is None else state.target

    def xattrs(self, node: int) -> Mapping[bytes, bytes]:
        state = self._state(node)
        return self._live.xattrs(node) if state is None else state.xattrs

    def pieces(self, node: int) -> Iterator[tuple[int, bytes]]:
        """Read a file. An error, with a text for people, if its bytes are not known."""
        self.require(node)
        file = self._file(node)
        source = None if file is None else file.source
        return (source or NodeSource(self._live, node)).pieces()

    def require(self, node: int) -> None:
        """Raise an error, with a text for people, for a regular file whose bytes are not known."""
        file = self._file(node)
        if file is None or file.state is None or not file.is_regular:
            return
        if file.why_lost:
            raise self._unknown(self._known[node].path, file.why_lost)
        is_newer = self._is_newer(file, file.state.mode, file.state.mtime_ns)
        # Where only attributes were changed, the bytes are the live ones, and the times those of the record.
        if is_newer or (file.source is None and self._may_go_on(file)):
            raise self._unknown(self._known[node].path, _UNKNOWN)

    def _unknown(self, path: bytes, why: str) -> OSError:
        return OSError(errno.EIO, f"its bytes are lost: {why}")


class EarlierVolume(RecordedVolume):
    """See the module's docstring. Only for the paths that it was made for.

    Args:
        history: of the mount.
        moment: the moment.
        prefixes, live: the route. A volume may have several prefixes: a change is recorded under one of them.
        paths: in the route, with all below them.
        source: returns the bytes of a record's image.

    Attributes:
        touched: the paths that are not the live files, without a slash at the end, or directories above them.
    """

    def __init__(
        self,
        history: HistoryFile,
        moment: PastMoment,
        prefixes: Sequence[AgentPath],
        live: Volume,
        paths: Sequence[bytes],
        source: Callable[[Record], Source],
    ) -> None:
        earlier = 0 if isinstance(live, SnapshotVolume) else history.earlier
        super().__init__(PlannedTree(prefixes[0], live, earlier=earlier), source, False)
        self._history, self._prefixes = history, prefixes
        self._moment = moment
        is_whole = bool(paths) and any(history.has_links(moment.begin, prefix) for prefix in prefixes)
        self._paths = [b"/"] if is_whole else list(paths)
        self._now_ns = time.time_ns()
        records = self._records()
        self._last = max(records, default=moment.begin)
        for number in sorted(records, reverse=True):
            self.take_back(records[number])
        self._counted = {each.node for each in records.values() if each.linked or each.to_path}
        paths_of = {path.rstrip(b"/") for each in records.values() for path in _paths_of(each)}
        # Changed by one name, a file may have others that no record names.
        self.touched = [b""] if any(map(_is_of_several, records.values())) else list(paths_of)

    def _records(self) -> dict[int, Record]:
        def since(path: bytes) -> Iterable[Record]:
            for prefix in self._prefixes:
                yield from self._history.since(self._moment.begin, prefix, path)

        return _touching(self._paths, since)

    @property
    def is_overtaken(self) -> bool:
        """True if something has changed at the paths since this was made."""
        return any(number > self._last for number in self._records())

    @property
    def is_touched_again(self) -> bool:
        """True if something has changed at the paths that are not the live files since this was made."""
        return any(
            self._history.since(self._last, prefix, path or b"/") for prefix in self._prefixes for path in self.touched
        )

    def _known_file(self, record: Record, has_others: bool) -> PlannedFile | None:
        node, identity = record.earlier_node if record.number > self._tree.earlier else 0, record.identity
        key = node or (b"" if identity.isdigit() else identity)
        if not key:
            return None
        found = self._gone.get(key)
        if found is None and has_others:  # else the number may be that of another file by now
            found = self._tree.files.get(node) if node else self._tree.by_identity(identity)
        if found is None:
            found = PlannedFile(None, record.before)
            if node and has_others:
                self._tree.files[node] = found
            else:
                self._gone[key] = found
        return found

    def _is_newer(self, file: PlannedFile, mode: int, time_ns: int) -> bool:
        moment = self._moment
        if not stat.S_ISREG(mode) or not moment.time_ns - TICK_NS < time_ns <= self._now_ns:
            return False
        return time_ns > moment.time_ns or self._may_go_on(file)

    def _may_go_on(self, file: PlannedFile) -> bool:
        moment = self._moment
        return any(self._history.was_changing(each, file.node, moment.begin, moment.time_ns) for each in self._prefixes)

    def _unknown(self, path: bytes, why: str) -> OSError:
        shown = mount_path(self._prefixes[0], path)
        return OSError(errno.ENODATA, f"the bytes of '{shown}' {self._moment.words} are not known: {why}")


class _SideOfCall(RecordedVolume):
    """One side of a call in one route: nothing but some paths, and the directories above them.

    Args:
        tree, source: as of `RecordedVolume`.
        records: those that are taken back, the last one first.
        shown: those whose paths are there; below a renamed directory, all.
    """

    def __init__(
        self,
        tree: PlannedTree,
        source: Callable[[Record], Source],
        records: Iterable[Record],
        shown: Iterable[Record],
    ) -> None:
        super().__init__(tree, source, True)
        self._below: dict[bytes, set[bytes]] = defaultdict(set)
        self._whole: set[bytes] = set()
        for record in shown:
            self._whole.update(_paths_of(record) if record.to_path else ())
            for path in _paths_of(record):
                while path != b"/" and path:
                    directory, name = split(path)
                    self._below[directory].add(name)
                    path = directory
        for record in records:
            self.take_back(record)

    def _names(self, directory: PlannedName) -> dict[bytes, Attr | None]:
        path = directory.path.rstrip(b"/")
        if any(path == each or is_below(path, each) for each in self._whole):
            return super()._names(directory)
        for name in self._below[path]:
            self._tree.at(path + b"/" + name)
        return dict.fromkeys(self._below[path])


def sides(
    history: HistoryFile,
    records: Sequence[Record],
    volumes: Mapping[AgentPath, Volume],
    source: Callable[[Record], Source],
) -> tuple[MergeTree, MergeTree]:
    """Return the trees before and after a call.

    Args:
        records: of the call, in their order.
        volumes: of the routes, by prefix.
        source: returns the bytes of a record's image.
    """
    before: dict[AgentPath, Volume] = {}
    after: dict[AgentPath, Volume] = {}
    for prefix in dict.fromkeys(record.prefix for record in records):
        own = [record for record in records if record.prefix == prefix]
        paths = {path for each in own for path in _paths_of(each)}
        later = _touching(paths, partial(history.since, own[-1].number, prefix))
        since = [later[number] for number in sorted(later, reverse=True)]
        volume = volumes.get(prefix) or InMemoryVolume()
        after[prefix] = _SideOfCall(PlannedTree(prefix, volume), source, since, own)
        before[prefix] = _SideOfCall(PlannedTree(prefix, volume), source, [*since, *reversed(own)], own)
    return MergeTree(before), MergeTree(after)


def _paths_of(record: Record) -> Sequence[bytes]:
    return (record.path, record.to_path) if record.to_path else (record.path,)


def _is_of_several(record: Record) -> bool:
    """Return True for a change of a file with several names."""
    before = record.before
    return before is not None and record.kind != "remove" and before.nlink > 1 and not stat.S_ISDIR(before.mode)


def _touching(paths: Iterable[bytes], find: Callable[[bytes], Iterable[Record]]) -> dict[int, Record]:
    """Return the records that touch paths, and those of what was renamed from or to there.

    Args:
        find: returns those of one path.
    """
    found: dict[int, Record] = {}
    seen: set[bytes] = set()
    left = sorted(paths, reverse=True)
    while left:
        path = left.pop()
        if not seen.isdisjoint((b"/", path, *above(path))):
            continue
        seen.add(path)
        for record in find(path):
            found[record.number] = record
            if record.kind in ("rename", "exchange"):
                left += _others(record, path)
    return found


def _others(record: Record, path: bytes) -> Iterator[bytes]:
    """The paths that what is at or below a path had before a rename or after it."""
    for one, other in ((record.path, record.to_path), (record.to_path, record.path)):
        if one == path or one.startswith(path.rstrip(b"/") + b"/"):
            yield other
        elif path.startswith(one + b"/"):
            yield other + path[len(one) :]
