"""The trees directory of a running mount: its files and trees, the check that its name is free, its agent face, and the
log of calls as files (`LogFiles`).

The kernel's side is `MountTree` in `vfs/junctions.py`. Here a mount adds its computed files and its snapshots, and
refuses a default volume or a route that has the name already: either would be hidden. Agents get the same files as
processes.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import date, datetime, timedelta
from datetime import time as clock
from functools import partial
from typing import IO, Any, Final

from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import to_name, to_text
from fusebackend.base.shown import name_shown
from fusebackend.base.version import __version__
from fusebackend.composite.backend import CompositeBackend
from fusebackend.history.history_file import Filter, HistoryFile
from fusebackend.history.records import Call
from fusebackend.linux.mount_table import MountError
from fusebackend.protocol import ROOT_NODE, Attr, Volume
from fusebackend.server.history import call_info, change_info
from fusebackend.server.recording import Recording
from fusebackend.server.rules import Views
from fusebackend.shell.shell import BRANCHES
from fusebackend.trees.branches import Branches
from fusebackend.trees.snapshot_trees import SnapshotTrees
from fusebackend.trees.snapshots import Snapshots
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.vfs.pseudo_files import PseudoDirectory, own_attr
from fusebackend.vfs.xattrs import SOCKET_XATTR
from fusebackend.volumes.agent_face import VolumeBackend

log = logging.getLogger(__name__)

STATUS_FILE = "status.json"
"""What `fusebackend status --json` shows of the mount, and the extended attribute of its root, but for people."""

VERSION_FILE = "version"
"""The version of the server, a line."""

SNAPSHOTS = "snapshots"
"""The directory of the snapshots."""

LOG = "log"
"""The directory of the log's files."""


def fill(filesystem: FileSystem, status: Callable[[], Mapping[str, Any]]) -> None:
    """Add the files of every mount. `status` is called by any thread, the mount's loop included."""
    if filesystem.tree.trees_path is None:
        return
    filesystem.tree.files.add(STATUS_FILE, lambda: json.dumps(status(), indent=2).encode() + b"\n")
    filesystem.tree.files.add(VERSION_FILE, lambda: __version__.encode() + b"\n")


def attach_snapshots(filesystem: FileSystem) -> Snapshots | None:
    """Return the snapshots of a mount, which from now on are in its trees directory. None if it has none, or without a
    route that keeps snapshots. Before the mount."""
    volumes = filesystem.tree.volume_at
    snapshots = Snapshots(volumes)
    if filesystem.tree.trees_path is None or not snapshots.volumes:
        return None
    filesystem.add_route(SNAPSHOTS, SnapshotTrees(snapshots, volumes))
    return snapshots


def attach_log(filesystem: FileSystem, recording: Recording | None) -> LogFiles | None:
    """Return the log of a mount as files, which from now on are in its trees directory. None if it has no such
    directory, or no history. Before the mount."""
    if filesystem.tree.trees_path is None or recording is None:
        return None
    files = LogFiles(recording.history)
    filesystem.add_route(LOG, files)
    return files


def attach_branches(filesystem: FileSystem, snapshots: Snapshots | None, directory: str) -> Branches | None:
    """Return the branches of a mount, whose trees are in its trees directory once they are open. None if it has no such
    directory. Before the mount.

    Args:
        snapshots: of the mount.
        directory: of the branches' files.
    """
    if filesystem.tree.trees_path is None:
        return None
    volumes = filesystem.tree.volume_at
    return Branches(directory, volumes, snapshots or Snapshots(volumes), filesystem.add_directory(BRANCHES))


def refuse_taken_by_route(filesystem: FileSystem) -> None:
    """Refuse routes at and below the trees directory.

    Raises:
        MountError: there is one.
    """
    own = filesystem.tree.trees_path
    for route in filesystem.tree.routes:
        if own is not None and paths.is_below(route.prefix, own):
            raise _taken(f"route '{route.prefix}/' begins with '{own}'", "attach it elsewhere")


def refuse_taken_by_file(filesystem: FileSystem, default: str) -> None:
    """Refuse a default volume that has a file by the name of the trees directory: the mount would hide it.

    A `dir:` over another mount has that mount's trees directory, which counts for none. A volume that can't answer is
    not refused: its failures show in the mount, as those of any other call. Blocks.

    Args:
        default: the default backend, as its URL or type.

    Raises:
        MountError: there is one.
    """
    own, route = filesystem.tree.trees_path, filesystem.tree.routes[0]
    if own is None:
        return
    try:
        is_taken = route.executor.run("lookup", partial(_has, route.volume, paths.to_name(own[1:])))
    except OSError as error:
        log.info("%s could not be asked for '%s': %s", route.executor.name, own, error)
        return
    if is_taken:
        raise _taken(f"{default} has a file '{own}'", "rename that one, which a mount with '-o trees=off' shows")


def _has(volume: Volume, name: bytes) -> bool:
    found = volume.find(ROOT_NODE, name)
    if found is None:
        return False
    try:
        return not (found.is_dir and volume.getxattr(found.node, SOCKET_XATTR))
    except OSError:
        return True


def _taken(what: str, remedy: str) -> MountError:
    message = f"{what}, which is the mount's own directory: {remedy}, or mount with '-o trees_name=NAME'"
    return MountError(errno.EEXIST, message)


class TreesFace:
    """Chooses the backend of a verb: of the mounted files, or of these and the trees directory.

    A composite of both costs another look for each path, so only calls that name the directory pay it. Where listings
    show it, the others have its files, but not the volumes in it: a search from the root would find all files again
    in every snapshot.

    Args:
        backend: the mounted files.
        filesystem: their mounted tree.
        views: of the mount, if it has any.
    """

    def __init__(self, backend: CompositeBackend, filesystem: FileSystem, views: Views | None = None) -> None:
        self._views = {} if views is None else views.faces()
        self._tree = filesystem.tree
        self._backend = self._plain = self._both = backend
        self._beside: object = None  # the routes in the trees directory that `_both` was made of
        self._name: str | None = None
        if self._tree.trees_path is not None:
            self._name = to_text(self._tree.servers.name)
            if self._tree.servers.is_listed:
                self._plain = CompositeBackend(backend, self._files)

    @property
    def _files(self) -> dict[str, VolumeBackend]:
        return {str(self._tree.trees_path): VolumeBackend(self._tree.files)}

    def _with_all(self) -> CompositeBackend:
        """Return the mounted files with all that is in the trees directory now."""
        routes = self._tree.beside
        if self._beside is not routes:  # any thread; two may make the same
            beside = {str(path): VolumeBackend(route.volume) for path, route in routes.items()}
            self._both = CompositeBackend(self._backend, {**self._files, **beside, **self._views})
            self._beside = routes
        return self._both

    def of(self, *named: str | None) -> CompositeBackend:
        """Return the backend for a call with these paths."""
        if self._name is not None and any(isinstance(path, str) and self._name in path for path in named):
            return self._with_all()
        return self._plain


# -- the log as files --------------------------------------------------------------------------------------------

TABLE_NODE: Final = 2
TODAY_NODE: Final = 3
FIRST_DAY: Final = 1 << 10
"""The node of a day is this and its ordinal."""

OPENED: Final = 1 << 32
"""Added to the node of a file: its node for open handles."""

LISTED_CHANGES: Final = 100
"""Changes that a line of JSON has; `changes` counts all."""

FETCHED: Final = 500
"""Calls in one query."""

COLUMNS: Final = (
    "call", "began", "ended", "kind", "agent", "thread", "tool_call", "command", "uid", "pid", "changes", "undoes",
    "title",
)  # fmt: skip
"""Of the table."""

_NS: Final = 10**9


class _Lines:
    """A file: the lines of the calls that ended from one time to another."""

    def __init__(
        self, history: HistoryFile, line: Callable[[Call], bytes], head: bytes, begin_ns: int, end_ns: int
    ) -> None:
        self._history = history
        self._line = line
        self._head = head
        self._begin_ns, self._end_ns = begin_ns, end_ns
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=os.path.dirname(history.path))  # noqa: SIM115  # see `close`
        self._reset()

    def _reset(self) -> None:
        self._forgets = self._history.forgets
        self._file.seek(0)
        self._file.truncate()
        self._file.write(self._head)
        self.size = len(self._head)
        self.last_ns = self._begin_ns - 1
        """The end of the last call in it."""

    def extend(self) -> None:
        """Add the calls that have ended since the last look."""
        if self._forgets != self._history.forgets:
            self._forgets = self._history.forgets
            if self._history.forgotten_ns >= self._begin_ns:
                self._reset()
        while True:
            wanted = Filter(ended_after_ns=self.last_ns, ended_before_ns=self._end_ns, with_requests=True)
            found = self._history.calls(FETCHED, wanted)
            for call in found:
                assert call.ended_ns is not None, "it was asked for by its end"
                self.size += self._file.write(self._line(call))
                self.last_ns = call.ended_ns
            if len(found) < FETCHED:
                break
        self._file.flush()

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)

    def close(self) -> None:
        self._file.close()


class LogFiles(PseudoDirectory):
    """The kernel face of `/.fusebackend/log`: the calls of the history as files, a line for each call.

        2026-11-23.jsonl    the calls that ended on that day, as JSON, in the order of their ends
        today.jsonl         those of the present day; an open handle stays with its day
        calls.tsv           all of them, as a table

    A file grows when a call ends, and only then, so `tail -f` follows it. A handle reads past the page cache, which
    would keep the last page as it was. Nothing can be changed (EROFS). Only the server's user can read: titles name
    files and commands that others need not know of.

    Lines are made when somebody looks, and kept in an unnamed file until a call in it is deleted. A look costs a query;
    the first one after a start, some 0.1 ms for each call. Any thread; `lock` is held while lines are made.

    Args:
        history: of the mount.
    """

    features = replace(PseudoDirectory.features, blocking=True)
    file_mode = 0o400
    directory_mode = 0o500

    def __init__(self, history: HistoryFile) -> None:
        super().__init__()
        self._history = history
        self._files: dict[int, _Lines] = {}

    def close(self) -> None:
        """Let go of the files. Twice is once."""
        with self.lock:
            for each in self._files.values():
                each.close()
            self._files.clear()

    # -- names and attributes ----------------------------------------------------------------------------------

    def nodes(self) -> Mapping[bytes, int]:
        days = {date.today(), *(_day_of(each) for each in self._history.ends(_next_midnight))}
        found = {to_name(f"{day.isoformat()}.jsonl"): FIRST_DAY + day.toordinal() for day in days}
        return {**found, b"calls.tsv": TABLE_NODE, b"today.jsonl": TODAY_NODE}

    def file_attr(self, node: int) -> Attr:
        with self.lock:
            lines = self._extended(node)
            time_ns = lines.last_ns if lines.last_ns > 0 else self.since_ns
            return own_attr(node, stat.S_IFREG | self.file_mode, time_ns, lines.size)

    def _extended(self, node: int) -> _Lines:
        """Return the file of a node, with all calls that have ended. With the lock held."""
        node = self._of_day(node % OPENED)
        lines = self._files.get(node)
        if lines is None:
            if node == TABLE_NODE:
                head = "\t".join(COLUMNS).encode() + b"\n"
                lines = _Lines(self._history, _row, head, 1, 1 << 62)
            elif node > FIRST_DAY:
                begin = date.fromordinal(node - FIRST_DAY)
                until_ns = _midnight(begin + timedelta(days=1))
                lines = _Lines(self._history, self._object, b"", _midnight(begin), until_ns)
            else:
                raise oserror(errno.ESTALE)
            self._files[node] = lines
        lines.extend()
        return lines

    def _of_day(self, node: int) -> int:
        return FIRST_DAY + date.today().toordinal() if node == TODAY_NODE else node

    # -- data --------------------------------------------------------------------------------------------------

    def opened(self, node: int) -> Attr:
        return self.file_attr(OPENED + self._of_day(node))

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self.lock:
            return self._extended(node).read(offset, size)

    # -- lines -------------------------------------------------------------------------------------------------

    def _object(self, call: Call) -> bytes:
        info = asdict(call_info(call))
        del info["undone_by"]  # it comes later, and a line stays as it is
        found = [change_info(each) for each in self._history.records(call.number, LISTED_CHANGES)]
        changed = [{"change": each.change, "path": each.path, "to_path": each.to_path} for each in found]
        return json.dumps({"time": _iso(call.ended_ns), **info, "changed": changed}).encode("ascii") + b"\n"


def _row(call: Call) -> bytes:
    actor = call.actor
    words = (
        call.ref, _iso(call.began_ns), _iso(call.ended_ns), call.kind, actor.agent, actor.thread, actor.call,
        actor.command, actor.uid, actor.pid, call.changes, " ".join(f"c{each}" for each in call.undoes), call.title,
    )  # fmt: skip
    return "\t".join("" if word is None else name_shown(str(word)) for word in words).encode() + b"\n"


def _iso(time_ns: int | None) -> str:
    """Return a local time, with its offset."""
    return "" if time_ns is None else datetime.fromtimestamp(time_ns / _NS).astimezone().isoformat("T", "milliseconds")


def _midnight(day: date) -> int:
    """Return the begin of a day, in the local zone."""
    return round(datetime.combine(day, clock()).timestamp()) * _NS


def _next_midnight(time_ns: int) -> int:
    return _midnight(_day_of(time_ns) + timedelta(days=1))


def _day_of(time_ns: int) -> date:
    return datetime.fromtimestamp(time_ns / _NS).date()
