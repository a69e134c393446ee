"""`FileVerbs`: the agent's verbs for a backend of remote files, over primitives that raise `OSError`.

Paths are normalised and held to Linux's limits before a primitive sees them, so that the mount can show what is stored;
whatever a primitive raises becomes the error of the record, in the words that all backends of this package use.
"""

from __future__ import annotations

import abc
import errno
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import NamedTuple

from fusebackend import text
from fusebackend.base import paths
from fusebackend.base.errors import VANISHED, oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import (
    ANY,
    READ_LIMIT_LINES,
    Changed,
    Condition,
    DeleteResult,
    FileDownloadResponse,
    FileInfo,
    LsResult,
    MoveResult,
    ReadResult,
    verbs,
    version_of_bytes,
)
from fusebackend.volumes.agent_face import AgentVerbs, FilesUpdate
from fusebackend.volumes.walk import names_of


class Loaded(NamedTuple):
    """A whole file, and its times where they are known."""

    data: bytes
    created_at: str | None = None
    modified_at: str | None = None


def checked(path: str) -> AgentPath:
    """A path, normalised and held to the limits of Linux.

    Raises:
        PathError, OSError: as `paths.normalise` and `walk.names_of`.
    """
    found = paths.normalise(path)
    names_of(found)
    return found


class FileVerbs(AgentVerbs):
    """See the module's docstring.

    Attributes:
        ttl_s: see `Abilities`. `AgentRemote` also asks for the other hooks of any backend: `blocking`, `durable` …
    """

    ttl_s: float | None = None
    _path = staticmethod(checked)

    # -- primitives --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _list(self, path: AgentPath) -> list[FileInfo]:
        """The entries of a directory. ENOENT, ENOTDIR."""

    @abc.abstractmethod
    def _load(self, path: AgentPath) -> Loaded:
        """A file. ENOENT, EISDIR."""

    @abc.abstractmethod
    def _put(self, path: AgentPath, data: bytes, *, replace: bool) -> FilesUpdate:
        """Create a file with its parents, or replace one. EEXIST, EISDIR, ENOTDIR."""

    @abc.abstractmethod
    def _rewrite(self, path: AgentPath, change: Callable[[bytes], bytes]) -> FilesUpdate:
        """Give a file other bytes, made from those it has. ESTALE when somebody else changes it meanwhile."""

    @abc.abstractmethod
    def _remove(self, path: AgentPath) -> FilesUpdate:
        """Delete a file, or a directory with all below it. ENOENT."""

    @abc.abstractmethod
    def _rename(self, old: AgentPath, new: AgentPath) -> FilesUpdate:
        """Move a file or directory, never over another. ENOENT, EEXIST."""

    def _put_new(self, files: Sequence[tuple[AgentPath, bytes]]) -> None:
        """Create files, all of them in one step or none. EEXIST, ESTALE; ENOTSUP where that can't be."""
        raise oserror(errno.ENOTSUP)

    def kernel_side(self, ttl_s: float) -> FileVerbs:
        """The backend that a mount calls, which caches for `ttl_s`."""
        return self

    def token(self) -> Hashable:
        """See `Remote.token`."""
        return None

    def follow(self, changed: Callable[..., None]) -> Callable[[], None] | None:
        """See `Remote.follow`."""
        return None

    def admits(self, path: AgentPath, *, is_dir: bool) -> None:
        """Raise the error of any new file or directory at this path, before it is written in vain."""

    # -- reading -----------------------------------------------------------------------------------------------

    @verbs.LS.answers()
    def ls(self, path: str) -> LsResult:
        return LsResult(entries=sorted(self._list(checked(path)), key=itemgetter("path")))

    @verbs.READ.answers()
    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        path = checked(file_path)
        loaded = self._load(path)
        result = text.read_bytes(path, loaded.data, offset, limit)
        if result.file_data is not None:
            if loaded.created_at:
                result.file_data["created_at"] = loaded.created_at
            if loaded.modified_at:
                result.file_data["modified_at"] = loaded.modified_at
        if result.error is None:
            result.version = version_of_bytes(loaded.data)
        return result

    def _moment(self) -> FileVerbs:
        """This backend for several looks at one moment."""
        return self

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        try:
            view = self._moment()
        except OSError as error:
            return [FileDownloadResponse(path=path, error=error.strerror) for path in paths]
        return [view.download(path) for path in paths]

    @verbs.DOWNLOAD_FILES.answers()
    def download(self, path: str) -> FileDownloadResponse:
        data = self._load(checked(path)).data
        return FileDownloadResponse(path=path, content=data, version=version_of_bytes(data))

    # -- writing -----------------------------------------------------------------------------------------------

    def _put_if(self, path: AgentPath, data: bytes, condition: Condition, *, replace: bool) -> FilesUpdate:
        if condition.version is not None:
            return self._change_if(path, lambda before: data, condition)
        try:
            return self._put(path, data, replace=replace and not condition.absent)
        except FileExistsError:
            if condition.absent:
                raise Changed(self._version_at(path), is_there=True) from None
            raise

    def _change_if(self, path: AgentPath, change: Callable[[bytes], bytes], condition: Condition) -> FilesUpdate:
        def if_met(before: bytes) -> bytes:
            condition.require(version_of_bytes(before))
            return change(before)

        try:
            return self._rewrite(path, change if condition == ANY else if_met)
        except OSError as error:
            if condition == ANY or error.errno not in VANISHED:
                raise
            condition.require(self._version_at(path), is_there=error.errno == errno.ESTALE)
            raise

    def _require(self, path: AgentPath, condition: Condition) -> None:
        """Compare what is at a path just before it is changed: whoever changes it in between is not seen."""
        if condition != ANY:
            condition.require(version_of_bytes(self._load(path).data))

    def _version_at(self, path: AgentPath) -> str | None:
        try:
            return version_of_bytes(self._load(path).data)
        except OSError:
            return None

    @verbs.DELETE.answers()
    def delete(self, file_path: str, *, if_version: str | None = None) -> DeleteResult:
        path = checked(file_path)
        if path == ROOT:
            raise OSError(errno.EBUSY, "The root can't be deleted")
        if file_path.endswith("/"):
            self._list(path)  # ENOTDIR
        self._require(path, self._condition(if_version))
        return DeleteResult(path=path, files_update=self._remove(path))

    @verbs.MOVE.answers()
    def move(
        self, source: str, destination: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> MoveResult:
        old, new = checked(source), checked(destination)
        if old == ROOT:
            raise OSError(errno.EBUSY, "The root can't be moved")
        if old != new and paths.is_below(new, old):
            raise OSError(errno.EINVAL, "A directory can't be moved into itself")
        absent = self._condition(None, if_absent).absent
        self._require(old, self._condition(if_version))
        try:
            update = self._rename(old, new)
        except FileExistsError:
            if absent:
                raise Changed(self._version_at(new), is_there=True, of_target=True) from None
            raise
        return MoveResult(path=new, files_update=update)
