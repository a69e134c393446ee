"""`EarlierVolume`: a route as it was at a moment, such as the begin of a call, from the route as it is now and the
records since.

It takes back all that was changed since, by anybody, in memory (`recorded.py`): what no record names is the live file
itself, with its own node. So it needs no snapshot, and works on every route whose changes are recorded.

It never guesses. A file can be listed, but not read, if its bytes are lost, or if it was changed after the moment and
no record says from what: by a call that was changing it already, or behind the mount. Its times show that, but for a
change behind the mount within a tick of the clock (some ms) after the moment. Of a file that a call was changing, such
a tick before the moment counts as well: so early may be the stamp of what that call has changed after it.
Times of directories are the present ones: no record has them. Of calls that overlap, attributes may be those between.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from fusebackend.base.errors import oserror
from fusebackend.base.paths import AgentPath
from fusebackend.base.relative_paths import join
from fusebackend.base.stamps import TICK_NS
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.records import Record
from fusebackend.history.undo_plan import mount_path
from fusebackend.linux.holes import next_data
from fusebackend.protocol import MAX_NODE, ROOT_NODE, Attr, Features, SnapshotVolume, StatFs, Volume
from fusebackend.trees.recorded import Past, Replay, Version
from fusebackend.volumes.contents import opened
from fusebackend.volumes.placing import NodeSource, Source, state_of
from fusebackend.volumes.walk import entries

_FIRST_OWN: Final = MAX_NODE + 1
"""Nodes from here on are those of files that are not the live ones."""

_UNKNOWN: Final = "a call that had begun before has changed it since, or a program behind the mount"

_ctimes = itertools.count(1)


class Moment(NamedTuple):
    """A moment of a history.

    Attributes:
        words: it, for an error: `before c42`.
        time_ns: since the epoch.
        begin: the number of the last record before it.
    """

    words: str
    time_ns: int
    begin: int


class _Directory(NamedTuple):
    path: bytes
    """In the route, without a slash at its end."""
    live: int
    """The directory that has the path now; 0 if none has."""


class _OpenBytes(NamedTuple):
    """A file that is open: in a volume, or as a copy."""

    volume: Volume | None
    handle: int
    size: int
    closing: contextlib.ExitStack


class EarlierVolume(Volume):
    """See the module's docstring. Read-only; for one thread, and only for the paths that it was made for.

    Args:
        history: of the mount.
        moment: the moment.
        prefixes, live: the route. A volume may have several prefixes: a change is recorded under one of them.
        paths: in the route, with all below them.
        source: returns the bytes of a record's image.
    """

    features = Features(read_only=True)

    def __init__(
        self,
        history: HistoryFile,
        moment: Moment,
        prefixes: Sequence[AgentPath],
        live: Volume,
        paths: Sequence[bytes],
        source: Callable[[Record], Source],
    ) -> None:
        self.lock = live.lock
        self._history, self._prefixes = history, prefixes
        self._moment = moment
        self._live = live
        is_whole = bool(paths) and any(history.has_links(moment.begin, prefix) for prefix in prefixes)
        self._paths = [b"/"] if is_whole else list(paths)
        self._now_ns = time.time_ns()
        records = self._records()
        self._last = max(records, default=moment.begin)
        frozen = isinstance(live, SnapshotVolume)
        past = Past({prefixes[0]: live}, lambda *_: [], source, lambda each: frozen or each.number > history.earlier)
        replay = Replay(prefixes[0], [records[number] for number in sorted(records)], past)
        replay.run()
        self._versions = {path.rstrip(b"/"): each for path, each in replay.now.items()}
        self._linked = replay.linked
        # A change of another name moves the ctime, too.
        self._counted = {each.node for each in records.values() if each.linked or each.kind in ("rename", "exchange")}
        self._names: dict[bytes, set[bytes]] = {}
        for path, version in self._versions.items():
            if version is not None and path:
                above, _, name = path.rpartition(b"/")
                self._names.setdefault(above, set()).add(name)
        self._own: dict[int, Version] = dict(self._linked)
        self._numbers: dict[bytes, int] = {}
        self._ctimes: dict[int, int] = {}
        self._directories = {ROOT_NODE: _Directory(b"", ROOT_NODE)}
        if (root := self._versions.get(b"")) is not None:
            self._own[ROOT_NODE] = root
        self._open: dict[int, _OpenBytes] = {}
        self._where: dict[int, bytes] = {ROOT_NODE: b"/"}

    def _records(self) -> dict[int, Record]:
        """Return the records that touch the paths, and those of what was renamed from or to there."""
        found: dict[int, Record] = {}
        seen: set[bytes] = set()
        left = list(self._paths)
        while left:
            path = left.pop()
            if any(path == each or path.startswith(each.rstrip(b"/") + b"/") for each in seen):
                continue
            seen.add(path)
            for prefix in self._prefixes:
                for record in self._history.since(self._moment.begin, prefix, path):
                    found[record.number] = record
                    if record.kind in ("rename", "exchange"):
                        left += _others(record, path)
        return found

    @property
    def touched(self) -> list[bytes]:
        """The paths that are not the live files."""
        return list(self._versions) if not self._linked else [b""]

    @property
    def is_overtaken(self) -> bool:
        """True if something has changed at the paths since this was made."""
        return any(number > self._last for number in self._records())

    @property
    def is_touched_again(self) -> bool:
        """True if something has changed at the paths that are not the live files since this was made."""
        changed = (
            self._history.since(self._last, prefix, path or b"/") for prefix in self._prefixes for path in self.touched
        )
        return any(changed)

    # -- the files -------------------------------------------------------------------------------------------------

    def _known(self, path: bytes, version: Version) -> Attr:
        """Return the attributes of a file that is not the live one."""
        number = version.node or self._numbers.setdefault(path, _FIRST_OWN + len(self._numbers))
        self._own[number] = version
        self._where.setdefault(number, path)
        if stat.S_ISDIR(version.state.mode) and number not in self._directories:
            self._directories[number] = _Directory(path, self._live_directory(path))
        return self._attr(number)

    def _attr(self, number: int) -> Attr:
        state = self._own[number].state
        # No two files have this ctime, so that nothing is taken for unchanged by its times.
        ctime_ns = self._ctimes.setdefault(number, -next(_ctimes))
        return Attr(number, state.mode, nlink=state.nlink, uid=state.uid, gid=state.gid, rdev=state.rdev,
                    size=state.size, atime_ns=state.atime_ns, mtime_ns=state.mtime_ns, ctime_ns=ctime_ns)  # fmt: skip

    def _live_directory(self, path: bytes) -> int:
        """Return the directory that has a path now, or 0."""
        node = ROOT_NODE
        try:
            for name in path.split(b"/")[1:]:
                attr = self._live.lookup(node, name)
                if not attr.is_dir:
                    return 0
                node = attr.node
        except (FileNotFoundError, NotADirectoryError):
            return 0
        return node

    def _as_live(self, path: bytes, attr: Attr) -> Attr:
        """Return the attributes of a live file that no record names at its path."""
        if attr.node in self._linked:
            return self._known(path, self._linked[attr.node])
        self._where.setdefault(attr.node, path)
        if attr.is_dir:
            self._directories.setdefault(attr.node, _Directory(path, attr.node))
        elif self._is_newer(attr.node, attr.mode, attr.mtime_ns if attr.node in self._counted else attr.ctime_ns):
            return self._known(path, Version(state_of(self._live, attr), None, _UNKNOWN))
        return attr

    def _is_newer(self, node: int, mode: int, time_ns: int) -> bool:
        """Return True for a regular file that was changed at a time after the moment, or may have been."""
        moment = self._moment
        if not stat.S_ISREG(mode) or not moment.time_ns - TICK_NS < time_ns <= self._now_ns:
            return False
        return time_ns > moment.time_ns or any(
            self._history.was_changing(prefix, node, moment.begin, moment.time_ns) for prefix in self._prefixes
        )

    def _entry(self, parent: int, name: bytes, live: Attr | None) -> Attr | None:
        path = join(self._directories[parent].path, name) if parent != ROOT_NODE else b"/" + name
        if path in self._versions:
            version = self._versions[path]
            return None if version is None else self._known(path, version)
        return None if live is None else self._as_live(path, live)

    # -- the kernel face -------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        live = None
        if self._directories[parent].live:
            try:
                live = self._live.lookup(self._directories[parent].live, name)
            except FileNotFoundError:
                live = None
        found = self._entry(parent, name, live)
        if found is None:
            raise oserror(errno.ENOENT, name)
        return found

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        directory = self._directories[node]
        there: dict[bytes, Attr | None] = dict.fromkeys(self._names.get(directory.path, ()))
        if directory.live:
            there.update(entries(self._live, directory.live))
        found = [(name, self._entry(node, name, there[name])) for name in sorted(there) if name > after]
        return [(name, attr) for name, attr in found if attr is not None][:limit]

    def getattr(self, node: int) -> Attr:
        return self._attr(node) if node in self._own else self._live.getattr(node)

    def readlink(self, node: int) -> bytes:
        return self._own[node].state.target if node in self._own else self._live.readlink(node)

    def listxattr(self, node: int) -> Sequence[bytes]:
        return list(self._own[node].state.xattrs) if node in self._own else self._live.listxattr(node)

    def getxattr(self, node: int, name: bytes) -> bytes:
        if node not in self._own:
            return self._live.getxattr(node, name)
        try:
            return self._own[node].state.xattrs[name]
        except KeyError:
            raise oserror(errno.ENODATA, name) from None

    def open(self, node: int, flags: int) -> Attr | None:
        """Open a file; each once at a time. ENODATA, with a text for people, if its bytes are not known."""
        assert node not in self._open, "it is open already"
        self.require(node)
        version, closing = self._own.get(node), contextlib.ExitStack()
        source = NodeSource(self._live, node) if version is None else version.source
        assert source is not None, "its bytes are known"
        if isinstance(source, NodeSource):
            handle = closing.enter_context(opened(source.volume, source.node, os.O_RDONLY))
            self._open[node] = _OpenBytes(source.volume, handle, source.state.size, closing)
        else:
            handle = closing.enter_context(_copied(source))
            self._open[node] = _OpenBytes(None, handle, source.state.size, closing)
        return None

    def require(self, node: int) -> None:
        """Raise ENODATA, with a text for people, for a regular file whose bytes are not known."""
        version = self._own.get(node)
        if version is None or not stat.S_ISREG(version.state.mode):
            return
        if version.source is None or self._is_newer(version.node, version.state.mode, version.state.mtime_ns):
            raise self._unknown(node, version)

    def _unknown(self, node: int, version: Version) -> OSError:
        why = version.why_lost or _UNKNOWN
        path = mount_path(self._prefixes[0], self._where[node])
        return OSError(errno.ENODATA, f"the bytes of '{path}' {self._moment.words} are not known: {why}")

    def read(self, node: int, offset: int, size: int) -> bytes:
        volume, handle, _, _ = self._open[node]
        return os.pread(handle, size, offset) if volume is None else volume.read(handle, offset, size)

    def next_data(self, node: int, offset: int) -> int | None:
        volume, handle, size, _ = self._open[node]
        if volume is not None:
            return volume.next_data(handle, offset)
        start = next_data(handle, offset, size)
        return start if start < size else None

    def release(self, node: int, flags: int) -> None:
        self._open.pop(node).closing.close()

    def statfs(self) -> StatFs:
        return self._live.statfs()


def _others(record: Record, path: bytes) -> Iterator[bytes]:
    """The paths that what is at or below a path had before a rename or after it."""
    for one, other in ((record.path, record.to_path), (record.to_path, record.path)):
        if one == path or one.startswith(path.rstrip(b"/") + b"/"):
            yield other
        elif path.startswith(one + b"/"):
            yield other + path[len(one) :]


@contextlib.contextmanager
def _copied(source: Source) -> Iterator[int]:
    """Copy the bytes of a regular file to an unnamed one, and yield its descriptor."""
    with tempfile.TemporaryFile(prefix="fusebackend-") as copy:
        for offset, piece in source.pieces():
            os.pwrite(copy.fileno(), piece, offset)
        os.ftruncate(copy.fileno(), source.state.size)
        yield copy.fileno()
