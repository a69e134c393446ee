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

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fusebackend import text
from fusebackend.backends.threads.database.activity import RunWatch
from fusebackend.backends.threads.database.rows import Damaged, Database
from fusebackend.backends.threads.database.values import pack
from fusebackend.backends.threads.line import Line
from fusebackend.backends.threads.nodes import Record
from fusebackend.base import errors, paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol.remote import Abilities, Bytes, Contents, Etag, Head, Info, Remote, Stamp
from fusebackend.protocol.versions import digest_of
from fusebackend.remote.keyed import arrange, is_too_deep, key_of

BUSY = "A run of this thread is active. Try again when it has ended, or waits for an answer"
NO_FILES = "The agent of this thread keeps no files in its state, and would not see this one"


class Layout:
    """The key of each path, and the paths of directories."""

    def __init__(self, files: Mapping[str, Record]) -> None:
        self.keys: dict[AgentPath, str] = {}
        self.directories: set[str] = {ROOT}
        for names, key in arrange(files).items():
            self.add(AgentPath("/" + b"/".join(names).decode("utf-8", "surrogateescape")), key)

    def add(self, path: AgentPath, key: str) -> None:
        self.keys[path] = key
        self.directories.update(_above(path))

    def copy(self) -> Layout:
        copy = Layout({})
        copy.keys.update(self.keys)
        copy.directories.update(self.directories)
        return copy

    def below(self, path: str) -> list[tuple[AgentPath, str]]:
        """The file at a path, and all below it."""
        return [(place, key) for place, key in self.keys.items() if paths.is_below(place, path)]

    def key_for(self, path: AgentPath) -> str:
        """The key of a file that is there, or can be made.

        Raises:
            OSError: EISDIR where a directory is, ENOTDIR below a file, EINVAL for a path that no key has.
        """
        key = self.keys.get(path)
        if key is not None:
            return key
        if path in self.directories:
            raise errors.oserror(errno.EISDIR)
        if is_too_deep(path):
            raise errors.oserror(errno.ENAMETOOLONG)
        if any(above in self.keys for above in _above(path)):
            raise errors.oserror(errno.ENOTDIR)
        return _new_key(path)


def _above(path: AgentPath) -> Iterator[AgentPath]:
    """The directories that lead to a path, but the root."""
    path, _ = paths.parent_and_name(path)
    while path != ROOT:
        yield path
        path, _ = paths.parent_and_name(path)


class HeadFiles(Remote):
    """See the module's docstring. Called by the volume over it, with the lock of the threads' volume held.

    Args:
        database: where the line is.
        line: the thread's own.
        runs: detects whether a run is active.
        poll: queries the database for news.
    """

    name = "head of a thread"
    abilities = Abilities(exact_sizes=True, blocking=False, durable=True)

    def __init__(self, database: Database, line: Callable[[], Line], runs: RunWatch, poll: Callable[[], None]) -> None:
        self._database = database
        self._poll = poll
        self._line = line
        self._runs = runs
        self._version = -1
        self._seen: Mapping[str, Record] = {}
        self._layout = Layout({})

    # -- reading -----------------------------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        path, layout = _path(directory), self._look()
        if path not in layout.directories:
            raise errors.oserror(errno.ENOENT, path)
        prefix = "/" if path == ROOT else path + "/"
        found: dict[bytes, Info] = {}
        for place, key in layout.keys.items():
            if place.startswith(prefix):
                name, slash, _ = place[len(prefix) :].partition("/")
                found.setdefault(paths.to_name(name), _directory(name) if slash else _info(name, self._seen[key]))
        return Contents(found)

    def has(self, key: str) -> bool:
        layout = self._look()
        return _path(key) in (layout.directories if key.endswith("/") else layout.keys)

    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        data = self._data(_path(key))
        return None if data is None else Head(len(data), digest_of(data), content=data)

    def _data(self, path: AgentPath) -> bytes | None:
        """The bytes of a file, None where there is none."""
        key = self._look().keys.get(path)
        with _undamaged():
            return None if key is None else self._seen[key].data()

    @property
    def is_damaged(self) -> bool:
        """Whether the files can't be read."""
        try:
            self._look()
        except OSError as error:
            if isinstance(error.__cause__, Damaged):
                return True
            raise
        return False

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
        layout, usual = self._look().copy(), self._usual_format()
        update: dict[str, Any] = {}
        found: list[OSError | None] = []
        for path, data in files:
            try:
                key = layout.key_for(path)
            except OSError as error:
                found.append(error)
                continue
            layout.add(path, key)
            update[key] = _encoded(data, self._seen.get(key), usual)
            found.append(None)
        try:
            self._put(update)
        except OSError as error:
            return [refused or error for refused in found]
        return found

    def delete(self, key: str) -> None:
        there = self._look().keys.get(_path(key))
        if there is not None:
            self._put({there: None})

    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        """One pending write."""
        layout, source, target = self._look(), _path(old), _path(new)
        moved = layout.below(source)
        there = layout.below(target)
        if not moved or (there and replaced is None):
            raise errors.oserror(errno.EEXIST if moved else errno.ENOENT, target if moved else source)
        update: dict[str, Any] = dict.fromkeys(key for _, key in moved)
        for place, key in moved:
            end = AgentPath(target + place[len(source) :])
            update[layout.keys.get(end) or _new_key(end)] = _again(self._seen[key])
        self._put(update)
        copied()
        return ()

    def require_idle(self) -> None:
        """EBUSY while a run is active, ENOTSUP where the agent keeps no files."""
        lineage = self._line().lineage
        newest = lineage.newest()
        if newest is None:
            raise errors.oserror(errno.ENOENT)
        if self._runs.is_active(newest.saved, newest.writes, newest.standing):
            raise OSError(errno.EBUSY, BUSY)
        if not lineage.keeps_files:
            raise OSError(errno.ENOTSUP, NO_FILES)

    def _put(self, update: dict[str, Any]) -> None:
        """Make these changes, unless one of the files has changed since `_look`."""
        if not update:
            return
        before = {key: self._seen.get(key) for key in update}
        with _undamaged(), self._database.exclusive() as append:
            self._poll()
            self.require_idle()
            lineage = self._line().lineage
            newest = lineage.newest()
            assert newest is not None, "the thread was found not to be idle"
            now = lineage.files_now()
            if any(now.get(key) is not record for key, record in before.items()):
                raise errors.oserror(errno.ESTALE)
            append(lineage.place, newest.saved.id, "files", pack(update))
        changes = self._line().shared.found.changes
        self._poll()
        others = len(changes)
        self._look()
        # The writer reports its own paths; caches have to look again.
        changes[others:] = [change._replace(path="") for change in changes[others:] if change.is_for_caches]

    def _look(self) -> Layout:
        """The current layout. EIO where it can't be read."""
        line = self._line()
        if line.version != self._version:
            with _undamaged():
                self._seen = line.lineage.files_now()
            self._version = line.version
            self._layout = Layout(self._seen)
        return self._layout

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


def _new_key(path: AgentPath) -> str:
    """The key of a new file. EINVAL where its path would be shown as another one."""
    try:
        return key_of(paths.split(path))
    except ValueError:
        raise errors.oserror(errno.EINVAL, path) from None


def _info(name: str, record: Record) -> Info:
    return Info(name, False, record.size, record.mtime_ns, (record.mtime_ns, record.size))


def _directory(name: str) -> Info:
    return Info(name, is_dir=True)


def _path(key: str) -> AgentPath:
    return AgentPath("/" + key.removesuffix("/"))


@contextlib.contextmanager
def _undamaged() -> Iterator[None]:
    """EIO for what can't be read inside."""
    try:
        yield
    except Damaged as error:
        raise errors.oserror(errno.EIO) from error
