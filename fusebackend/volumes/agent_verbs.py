"""`AgentVerbs`: the verbs that are the same over a volume and over whole files behind an API, on four primitives.

The arguments of a verb, its conditions, its search and its answer are here. How a file is stored or changed if a
condition is met, and how files are found, is the backend's.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias, Unpack

from fusebackend import text
from fusebackend.base import budget, paths
from fusebackend.base.globs import Matcher, compile_glob
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import (
    BackendProtocol,
    Condition,
    Conditions,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    OnExists,
    WriteResult,
    checked_on_exists,
    conditions_of,
    not_bytes,
    verbs,
)
from fusebackend.volumes.search import Search, globbed, grepped

FilesUpdate: TypeAlias = dict[str, Any] | None
"""The change of `runtime.state["files"]`, for a state's caller to merge; None of any other backend."""


class Unchanged(Exception):
    """An edit that can't be made; the text says why. Never leaves an `edit`."""


class AgentVerbs(BackendProtocol):
    """See the module's docstring.

    Args:
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
    """

    def __init__(self, *, on_exists: OnExists = "error") -> None:
        self.on_exists = checked_on_exists(on_exists)

    def close(self) -> None:
        """Make everything durable and let go of files and connections. Twice is once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _path(self, path: str) -> AgentPath:
        """The path in this backend that is meant. PathError."""
        return paths.normalise(path)

    def _condition(self, if_version: str | None = None, if_absent: bool = False) -> Condition:
        """The condition of a verb's arguments. OSError as `Condition.of`; ENOTSUP where none can be decided."""
        return Condition.of(if_version, if_absent)

    # -- primitives: these raise -------------------------------------------------------------------------------

    @abc.abstractmethod
    def _put_if(self, path: str, data: bytes, condition: Condition, *, replace: bool) -> FilesUpdate:
        """Create a file with its parents, or replace one if `replace`. Changed, EEXIST, EISDIR, ENOTDIR."""

    @abc.abstractmethod
    def _change_if(self, path: str, change: Callable[[bytes], bytes], condition: Condition) -> FilesUpdate:
        """Give a file other bytes, made of those it has; `change` may be called again when these are others by then.
        Changed, ENOENT, EISDIR."""

    @abc.abstractmethod
    def _search(self, path: str, matcher: Matcher | None, pattern: str | None = None) -> Search:
        """The files at or below a path that match, for a `grep` those that may hold the literal."""

    @abc.abstractmethod
    def download(self, path: str) -> FileDownloadResponse:
        """`download_files` of one file."""

    # -- verbs -------------------------------------------------------------------------------------------------

    @verbs.GREP.answers()
    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        matcher = compile_glob(glob) if glob else None
        with budget.granted():
            return grepped(self._search(ROOT if path is None else path, matcher, pattern), pattern, max_count)

    @verbs.GLOB.answers()
    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        matcher = compile_glob(pattern)
        with budget.granted():
            return globbed(self._search(ROOT if path is None else path, matcher))

    @verbs.WRITE.answers()
    def write(
        self, file_path: str, content: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> WriteResult:
        condition = self._condition(if_version, if_absent)
        replace = self.on_exists == "replace" or condition.version is not None
        update = self._put_if(file_path, content.encode("utf-8"), condition, replace=replace)
        return WriteResult(path=self._path(file_path), files_update=update)

    @verbs.EDIT.answers()
    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        if_version: str | None = None,
    ) -> EditResult:
        occurrences = 0

        def change(before: bytes) -> bytes:
            nonlocal occurrences
            content = before.decode("utf-8")
            budget.current().hold(2 * sys.getsizeof(content) + len(before))  # itself, replaced, and that as bytes
            outcome = text.replace_string(content, old_string, new_string, replace_all)
            if isinstance(outcome, str):
                raise Unchanged(outcome)
            after, occurrences = outcome
            return after.encode("utf-8")

        try:
            update = self._change_if(file_path, change, self._condition(if_version))
        except Unchanged as refused:
            return EditResult(error=str(refused))
        return EditResult(path=self._path(file_path), occurrences=occurrences, files_update=update)

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        conditions = conditions_of(len(files), if_version, if_absent)
        return [self.upload(path, content, **when) for (path, content), when in zip(files, conditions, strict=True)]

    @verbs.UPLOAD_FILES.answers()
    def upload(self, path: str, content: bytes, **when: Unpack[Conditions]) -> FileUploadResponse:
        """`upload_files` of one file."""
        if (refusal := not_bytes(path, content)) is not None:
            return refusal
        update = self._put_if(path, bytes(content), self._condition(**when), replace=True)
        return FileUploadResponse(path=path, files_update=update)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self.download(path) for path in paths]
