"""`HeadFiles`: the current files of one thread, as an agent face that can write.

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
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fusebackend import text
from fusebackend.backends.threads.database.activity import RunWatch
from fusebackend.backends.threads.database.rows import Damaged, Database
from fusebackend.backends.threads.database.values import pack
from fusebackend.backends.threads.line import Line
from fusebackend.backends.threads.nodes import Record
from fusebackend.base import errors, paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import (
    BackendProtocol,
    DeleteResult,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    LsResult,
    MoveResult,
)
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


class HeadFiles(BackendProtocol):
    """See the module's docstring. Called by `ForeignVolume`, with the lock of the threads' volume held.

    Args:
        database: where the line is.
        line: the thread's own.
        runs: detects whether a run is active.
        poll: queries the database for news.
    """

    exact_sizes = True
    blocking = False
    durable = True

    def __init__(self, database: Database, line: Callable[[], Line], runs: RunWatch, poll: Callable[[], None]) -> None:
        self._database = database
        self._poll = poll
        self._line = line
        self._runs = runs
        self._version = -1
        self._seen: Mapping[str, Record] = {}
        self._layout = Layout({})

    # -- reading -----------------------------------------------------------------------------------------------

    def ls(self, path: str) -> LsResult:
        try:
            layout = self._look()
        except (OSError, Damaged) as error:
            return LsResult(error=_code(error))
        if path not in layout.directories:
            return LsResult(error=errors.FILE_NOT_FOUND)
        prefix = "/" if path == ROOT else path + "/"
        found: dict[str, FileInfo] = {}
        for place, key in layout.keys.items():
            if place.startswith(prefix):
                name, slash, _ = place[len(prefix) :].partition("/")
                child = prefix + name + slash
                if child not in found:
                    found[child] = FileInfo(path=child, is_dir=True) if slash else _info(child, self._seen[key])
        return LsResult(entries=sorted(found.values(), key=lambda info: info["path"]))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(AgentPath(path)) for path in paths]

    def _download(self, path: AgentPath) -> FileDownloadResponse:
        try:
            layout = self._look()
            key = layout.keys.get(path)
            if key is None:
                error = errors.IS_DIRECTORY if path in layout.directories else errors.FILE_NOT_FOUND
                return FileDownloadResponse(path=path, error=error)
            return FileDownloadResponse(path=path, content=self._seen[key].data())
        except (OSError, Damaged) as error:
            return FileDownloadResponse(path=path, error=_code(error))

    def is_file(self, path: AgentPath) -> bool:
        return path in self._look().keys

    @property
    def is_damaged(self) -> bool:
        """Whether the files can't be read."""
        try:
            self._look()
        except Damaged:
            return True
        return False

    # -- writing -----------------------------------------------------------------------------------------------
    # On what condition, the volume over this decides (`remote/volume.py`).

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:  # type: ignore[override]
        """The valid uploads become one pending write."""
        try:
            layout = self._look().copy()
        except (OSError, Damaged) as error:
            return [FileUploadResponse(path=path, error=_code(error)) for path, _ in files]
        usual = self._usual_format()
        update: dict[str, Any] = {}

        def admit(path: AgentPath, data: bytes) -> None:
            key = layout.key_for(path)
            layout.add(path, key)
            update[key] = _encoded(data, self._seen.get(key), usual)

        found = [self._try(admit, AgentPath(path), data) for path, data in files]
        failed = self._try(self._put, update) if update else None
        return [
            FileUploadResponse(path=path, error=error or failed) for (path, _), error in zip(files, found, strict=True)
        ]

    def upload_if(self, path: str, content: bytes, digest: bytes | None) -> FileUploadResponse:
        """Upload over the version with this digest; None where there is to be no file. `conflict` over another."""
        (now,) = self.download_files([path])
        found = None if now.content is None else digest_of(now.content)
        if found != digest:
            return FileUploadResponse(path=path, error=errors.CONFLICT)
        return self.upload_files([(path, content)])[0]

    def delete(self, file_path: str) -> DeleteResult:  # type: ignore[override]
        return DeleteResult(path=file_path, error=self._try(self._delete, file_path))

    def move(self, source: str, destination: str) -> MoveResult:  # type: ignore[override]
        return MoveResult(path=destination, error=self._try(self._move, source, destination))

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

    def _try(self, change: Callable[..., None], *arguments: Any) -> str | None:
        try:
            change(*arguments)
        except (OSError, Damaged) as error:
            return _code(error)
        return None

    def _delete(self, path: str) -> None:
        keys = [key for _, key in self._look().below(path)]
        if not keys:
            raise errors.oserror(errno.ENOENT)
        self._put(dict.fromkeys(keys))

    def _move(self, source: str, destination: str) -> None:
        moved = self._look().below(source)
        if not moved:
            raise errors.oserror(errno.ENOENT)
        update: dict[str, Any] = {}
        for place, key in moved:
            update[key] = None
            update[_new_key(AgentPath(destination + place[len(source) :]))] = self._seen[key].source
        self._put(update)

    def _put(self, update: dict[str, Any]) -> None:
        """Make these changes, unless one of the files has changed since `_look`."""
        before = {key: self._seen.get(key) for key in update}
        with self._database.exclusive() as append:
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
        """The current layout."""
        line = self._line()
        if line.version != self._version:
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


def _new_key(path: AgentPath) -> str:
    """The key of a new file. EINVAL where its path would be shown as another one."""
    try:
        return key_of(paths.split(path))
    except ValueError:
        raise errors.oserror(errno.EINVAL, path) from None


def _info(path: str, record: Record) -> FileInfo:
    return FileInfo(path=path, is_dir=False, size=record.size, modified_at=text.iso_time(record.mtime_ns))


def _code(error: OSError | Damaged) -> str:
    if isinstance(error, OSError) and error.errno == errno.ESTALE:
        return errors.CONFLICT
    return os.strerror(error.errno or errno.EIO) if isinstance(error, OSError) else os.strerror(errno.EIO)
