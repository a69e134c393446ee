"""`HeadFiles`: the current files of one thread, as a `Remote`.

A write becomes a *pending write*: one more row of `NULL_TASK` with the newest checkpoint, which LangGraph counts as
part of the state from then on. Unlike `update_state` it makes no checkpoint, so the next nodes and the pending
interrupts stay the same. The run that follows finds the files and keeps them.

Refused:
- while a run is active (`database/activity.py` defines that): EBUSY. A run in progress would not see the file;
- in a thread whose agent keeps no files in its state: ENOTSUP. It would ignore them;
- over a version that was not read here: ESTALE, as everywhere.

The checks run with the database locked against other writers. A run that has read the thread and not yet written is
invisible; it goes on without the file, and the file is in its result unless the run has written one of the same name.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusebackend import text
from fusebackend.backends.threads.database.activity import RunWatch
from fusebackend.backends.threads.database.rows import Damaged
from fusebackend.backends.threads.database.values import pack
from fusebackend.backends.threads.line import Line
from fusebackend.backends.threads.lineage import NewestCheckpoint
from fusebackend.backends.threads.nodes import Record
from fusebackend.backends.threads.tree import LineDirectory, Tree
from fusebackend.base import errors, paths
from fusebackend.base.paths import AgentPath
from fusebackend.protocol.remote import Abilities, Bytes, Contents, Etag, Head, Info, Remote, Stamp
from fusebackend.protocol.versions import digest_of
from fusebackend.remote.keyed import ListedTree

BUSY = "A run of this thread is active. Try again when it has ended, or waits for an answer"
NO_FILES = "The agent of this thread keeps no files in its state, and would not see this one"


class HeadFiles(Remote):
    """See the module's docstring. Called by the volume over it, with the lock of the threads' volume held.

    Args:
        threads: all threads.
        directory: that of the thread.
        quiet_s: as for `RunWatch`.
    """

    name = "head of a thread"
    abilities = Abilities(exact_sizes=True, blocking=False, durable=True)

    def __init__(self, threads: Tree, directory: LineDirectory, quiet_s: float) -> None:
        self._threads = threads
        self._directory = directory
        self._runs = RunWatch(quiet_s)
        self._version = -1
        self._seen: Mapping[str, Record] = {}
        self._tree = ListedTree(())

    def line(self) -> Line:
        """The thread's own, up to date."""
        return self._threads.line(self._directory)

    # -- reading -----------------------------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        path, tree = _path(directory), self._look()
        node = tree.find(path)
        if node is None or not node.is_dir:
            raise errors.oserror(errno.ENOENT, path)
        return Contents(
            {
                paths.to_name(name): Info(name, is_dir=True) if child.is_dir else self._info(name, tree.key_of(child))
                for name, child in tree.children(node).items()
            }
        )

    def _info(self, name: str, key: str) -> Info:
        record = self._seen[key]
        return Info(name, False, record.size, record.mtime_ns, (record.mtime_ns, record.size))

    def has(self, key: str) -> bool:
        found = self._look().find(_path(key))
        return found is not None and found.is_dir == key.endswith("/")

    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        found = self._look().key(_path(key))
        if found is None:
            return None
        data = self._seen[found].data()
        return Head(len(data), digest_of(data), content=data)

    # -- writing -----------------------------------------------------------------------------------------------

    def put(self, key: str, data: Bytes, stamp: Stamp, *, over: Etag | None, create: bool) -> Etag | None:
        there = self.head(key)
        if (there is not None) if create else (over is not None and (there is None or there.etag != over)):
            raise errors.oserror(errno.ESTALE, key)
        content = data.read(0, data.size)
        (failed,) = self.store([(_path(key), content)])
        if failed is not None:
            raise failed
        return digest_of(content)

    def store(self, files: Sequence[tuple[AgentPath, bytes]]) -> list[OSError | None]:
        """Put files, whatever is there: those that can be become one pending write. An error for each, or None."""
        tree, usual = self._look().copy(), self._usual_format()
        update: dict[str, Any] = {}
        found: list[OSError | None] = []
        for path, data in files:
            try:
                key = tree.key(path)
                if key is None:
                    tree.require_place(path)
            except OSError as error:
                found.append(error)
                continue
            if key is None:
                key = str(path)
                tree.add(key)
            update[key] = _encoded(data, self._seen.get(key), usual)
            found.append(None)
        try:
            self._put(update)
        except OSError as error:
            return [refused or error for refused in found]
        return found

    def delete(self, key: str) -> None:
        there = self._look().key(_path(key))
        if there is not None:
            self._put({there: None})

    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        """One pending write."""
        tree, source, target = self._look(), _path(old), _path(new)
        moved, there = tree.below(source, tree.find(source)), tree.below(target, tree.find(target))
        if not moved or (there and replaced is None):
            raise errors.oserror(errno.EEXIST if moved else errno.ENOENT, target if moved else source)
        update: dict[str, Any] = dict.fromkeys(key for _, key in moved)
        for place, key in moved:
            end = AgentPath(target + place[len(source) :])
            update[tree.key(end) or end] = _again(self._seen[key])
        self._put(update)
        copied()
        return ()

    def require_idle(self) -> NewestCheckpoint:
        """The newest checkpoint. EBUSY while a run is active, ENOTSUP where the agent keeps no files."""
        newest = self.line().lineage.newest()
        if newest is None:
            raise errors.oserror(errno.ENOENT)
        if self._runs.is_active(newest.saved, newest.writes, newest.standing):
            raise OSError(errno.EBUSY, BUSY)
        if not newest.keeps_files:
            raise OSError(errno.ENOTSUP, NO_FILES)
        return newest

    def _put(self, update: dict[str, Any]) -> None:
        """Make these changes, unless one of the files has changed since `_look`."""
        if not update:
            return
        before = {key: self._seen.get(key) for key in update}
        with self._threads.database.exclusive() as append:
            self._threads.poll(now=True)
            lineage, newest = self.line().lineage, self.require_idle()
            now = lineage.files_now()
            if any(now.get(key) is not record for key, record in before.items()):
                raise errors.oserror(errno.ESTALE)
            append(lineage.place, newest.saved.id, "files", pack(update))
        changes = self._threads.found
        self._threads.poll(now=True)
        others = len(changes)
        self._look()
        # The writer reports its own paths; caches have to look again.
        changes[others:] = [change._replace(path="") for change in changes[others:] if change.is_for_caches]

    def _look(self) -> ListedTree:
        """The tree of the current files. EIO where it can't be read."""
        line = self.line()
        if line.version != self._version:  # the lineage may have let go of the files meanwhile
            self._seen = line.lineage.files_now()
            self._version = line.version
            self._tree = ListedTree(self._seen)
        return self._tree

    def _usual_format(self) -> str:
        """The format of the thread's files, if they have one in common."""
        formats = {record.file_format for record in self._seen.values()}
        return formats.pop() if len(formats) == 1 else "v2"


def _encoded(data: bytes, before: Record | None, usual: str) -> Any:
    """A record in the format of the one it replaces, if any."""
    file_format = before.file_format if before is not None else usual
    if file_format == "v0":
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            file_format = "v2"
    created_at = before.created_at if before is not None else None
    return text.encode_file_data(data, created_at=created_at, file_format="v1" if file_format == "v1" else "v2")


def _again(record: Record) -> Any:
    """A record as it is, or its bytes alone where the rest of it can't be stored again."""
    try:
        pack(record.source)
    except Damaged:
        return _encoded(record.data(), record, "v2")
    return record.source


def _path(key: str) -> AgentPath:
    return AgentPath("/" + key.removesuffix("/"))
