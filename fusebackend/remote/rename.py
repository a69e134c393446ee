"""`Relocation`: a rename in a backend that may have no `move`: copy, compare, and only then delete.

Until every copy is complete the old paths are untouched, and a failure takes the copies back. After that files are
deleted one by one, so that what others put there meanwhile is not; a failure then leaves some files in both places and
none in neither.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from fusebackend.base import budget, paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import AgentPath
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.remote.whole_files import WholeFiles

log = logging.getLogger(__name__)


class Relocation:
    """One rename. `failure` makes an `OSError` of a backend's error at a path."""

    def __init__(self, face: AgentFace, files: WholeFiles, failure: Callable[[str, AgentPath], OSError]) -> None:
        self._face = face
        self._files = files
        self._failure = failure

    def run(self, old: AgentPath, new: AgentPath, *, is_dir: bool, replaces: bool) -> list[AgentPath]:
        """Move a file or a directory.

        Args:
            replaces: there is a file at `new`, which goes. It comes back when the rename fails.

        Returns:
            Directories without a file that were below `old`, as they would be named now: they can't be copied.
        """
        if not replaces and self._moved(old, new):
            return []
        before = self._files.download(new) if replaces else None
        sources, empty = self._below(old) if is_dir else ([old], [])
        copies = [AgentPath(new + source[len(old) :]) for source in sources]
        begun: list[AgentPath] = []
        try:
            for source, copy in zip(sources, copies, strict=True):
                if budget.current().spent:  # its caller is gone, or has cancelled
                    raise oserror(errno.ECANCELED, source)
                begun.append(copy)
                self._copy(source, copy)
            for index, source in enumerate(sources):
                error = self._files.delete(source)
                if error is not None and self._files.download(source) is not None:
                    if index:
                        begun.clear()  # some are deleted already: their copies must stay
                    raise self._failure(error, source)
        except OSError:
            self._take_back(begun, before)
            raise
        if is_dir:
            self._remove_empty(old)
        return [AgentPath(new + directory[len(old) :]) for directory in empty if directory != old]

    def _moved(self, old: AgentPath, new: AgentPath) -> bool:
        """Has the backend's own `move` done it?"""
        if self._face.lacks("move"):
            return False
        result = self._face.move(old, new)
        if result.error is not None:
            log.info("%s: move failed, copying instead: %s", self._face.name, result.error)
        return result.error is None

    def _copy(self, source: AgentPath, copy: AgentPath) -> None:
        data = self._files.download(source)
        if data is None:
            raise oserror(errno.ENOENT, source)
        self._files.upload(copy, data)
        if self._files.download(copy) != data:
            raise OSError(errno.EIO, "The copy is not what was copied")

    def _take_back(self, begun: list[AgentPath], before: bytes | None) -> None:
        for copy in begun:
            try:
                if before is not None:
                    self._files.upload(copy, before)
                else:
                    error = self._files.delete(copy)
                    if error is not None and self._files.download(copy) is not None:
                        raise self._failure(error, copy)
            except OSError as error:
                log.error("%s: a failed rename has left %s changed: %s", self._face.name, copy, error)

    def _below(self, directory: AgentPath) -> tuple[list[AgentPath], list[AgentPath]]:
        """The files below a directory, and the directories that hold nothing."""
        files: list[AgentPath] = []
        empty: list[AgentPath] = []
        left = [directory]
        while left:
            path = left.pop()
            result = self._face.ls(path)
            if result.error is not None:
                raise self._failure(result.error, path)
            for info in result.entries or ():
                if info.get("read_only"):
                    raise oserror(errno.EACCES, info["path"])  # before anything is copied: it could not be deleted
                child = AgentPath(info["path"].removesuffix("/"))
                (left if info.get("is_dir") else files).append(child)
            if not result.entries:
                empty.append(path)
        return files, empty

    def _remove_empty(self, directory: AgentPath) -> None:
        """A backend that holds empty directories has some left now."""
        above, _ = paths.parent_and_name(directory)
        listed = {info["path"] for info in self._face.ls(above).entries or ()}
        if f"{directory}/" in listed and not self._below(directory)[0]:
            error = self._files.delete(directory)
            if error is not None:
                log.warning("%s: empty directories stay at %s: %s", self._face.name, directory, error)
