"""The verbs of the agent face as data: the record of each, the words of its errors, and whether it changes files.

`BackendProtocol` (`agent.py`) has their signatures. Errors, `a…` forms and the verbs of the control socket come from
this table, so that every backend says the same of the same failure.
"""

from __future__ import annotations

import errno
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from fusebackend.base import errors
from fusebackend.base.globs import GlobError
from fusebackend.base.paths import ROOT, PathError
from fusebackend.protocol.records import (
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    MoveResult,
    ReadResult,
    WriteResult,
)
from fusebackend.protocol.versions import Changed

__all__ = [
    "AGENT_VERBS", "DELETE", "DOWNLOAD_FILES", "EDIT", "GLOB", "GREP", "LS", "MOVE", "READ", "READING", "SEED_VERBS",
    "UPLOAD_FILES", "VERBS", "WRITE", "Declared", "Refusal", "Verb", "not_bytes",
]  # fmt: skip

R = TypeVar("R")
P = ParamSpec("P")

Limits: TypeAlias = Mapping[str, Mapping[str, int]]

Refusal = (OSError, PathError, GlobError, UnicodeError, errors.Unanswered)
"""Exceptions that become errors of a record."""

PATHS = frozenset({"path", "file_path", "source", "destination"})
"""Parameters that are a path of the call, which its error names."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One verb of a mount.

    Attributes:
        name: of the method, and of the verb on the socket.
        method: its declaration.
        changes: it changes something: refused on a read-only mount, and never sent twice.
        long: it may take long, so it has a thread of its own at the server, and can be cancelled.
        works: it takes a turn at the server; others are done in no time, or only wait.
        command: it may run for hours, and is counted apart.
        has_actor: the actor of the call matters, although it changes nothing.
        in_view: a view has it. Other verbs are about the mount as a whole, not about what one reader may see.
        in_record: its answer is a record, which has the error as well.
        streams: `matches` may be sent as they are found.
        staged: parameters that may be too long for a message, and the names of their tokens.
        within: methods that do its work in the server's process, if it is not done by the one of its name alone.
        limits: of parameters, as `msgspec.Meta` has them. A list that may be empty can be left out.
    """

    name: str = field(kw_only=False)
    method: Callable[..., Any] = lambda self: None
    changes: bool = False
    long: bool = False
    works: bool = True
    command: bool = False
    has_actor: bool = False
    in_view: bool = False
    in_record: bool = False
    streams: bool = False
    staged: Mapping[str, str] = field(default_factory=dict)
    within: tuple[str, ...] = ()
    limits: Limits = field(default_factory=dict)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The signature, with types instead of their names, without `self`."""
        found = inspect.signature(self.method, eval_str=True)
        return found.replace(parameters=list(found.parameters.values())[1:])

    @property
    def sent(self) -> list[inspect.Parameter]:
        """The parameters that a client sends; functions that are called with parts of the answer stay with it."""
        return [given for given in self.signature.parameters.values() if not given.name.startswith("on_")]


@dataclass(frozen=True)
class Verb(Declared, Generic[R]):
    """One verb of the agent face.

    Attributes:
        record: the type of its answer. A batch answers with one for each item.
        failed: the start of its errors; `{0}` and `{1}` are the paths of the call.
        sentences: whole errors by errno or type of exception, instead of `failed` and the system's words.
        codes: `failed` is followed by an error code (`base/errors.py`).
        batch: its arguments are lists; each record has the `path` of its item, and an error code.
        pinned: the errno for the prefix of a composite's route, and for directories above one.
    """

    record: type[R]
    failed: str = ""
    sentences: Mapping[int | type[Exception], str] = field(default_factory=dict)
    codes: bool = False
    batch: bool = False
    pinned: int = errno.EISDIR

    def answers(self) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a method that answers with this verb's record: what it refuses (`Refusal`) is the record's error.
        A class with a method `meant` returns by that the error to tell for one that was raised."""

        def decorated(method: Callable[P, R]) -> Callable[P, R]:
            signature = inspect.signature(method)

            @functools.wraps(method)
            def answered(*args: P.args, **options: P.kwargs) -> R:
                try:
                    return method(*args, **options)
                except Refusal as error:
                    given = signature.bind(*args, **options)
                    given.apply_defaults()
                    paths = [value for name, value in given.arguments.items() if name in PATHS]
                    meant: Callable[[Exception], Exception] | None = getattr(args[0], "meant", None)
                    return self.refused(
                        meant(error) if meant else error, *(ROOT if path is None else path for path in paths)
                    )

            return answered

        return decorated

    def refused(self, error: Exception, *paths: str) -> R:
        """Return the record for an error.

        Args:
            error: an `OSError`, or an exception with a text for the user, such as `PathError` and `GlobError`.
            paths: the paths of the call, as its caller gave them.
        """
        record: Callable[..., R] = self.record
        lost: dict[str, str | None] = {"version": error.version} if isinstance(error, Changed) else {}
        if self.batch:
            return record(path=paths[0], error="changed" if lost else errors.code_of(error), **lost)
        return record(error=self.sentence(error, *paths), **lost)

    def sentence(self, error: Exception, *paths: str) -> str:
        """Return the text of an error."""
        if isinstance(error, Changed):
            return error.sentence(*paths)
        number = error.errno if isinstance(error, OSError) else None
        known = self.sentences.get(type(error) if number is None else number)
        if known is not None:
            return known.format(*paths, error=error)
        if not isinstance(error, OSError):
            return str(error)  # it names the path or the pattern itself
        code = errors.CODE_OF_ERRNO.get(number or 0) if self.codes else None
        why = code or error.strerror or str(error)
        return f"{self.failed.format(*paths)}: {why}"


_NOT_FOUND = "Error: File '{0}' not found"

LS = Verb(
    "ls", LsResult, "Path '{0}'",
    {errno.ENOENT: "Path '{0}': path_not_found", errno.ENOTDIR: "Path '{0}': not_a_directory"}, codes=True,
)  # fmt: skip
READ = Verb("read", ReadResult, "File '{0}'", {errno.ENOENT: "File '{0}' not found"}, has_actor=True)
WRITE = Verb(
    "write", WriteResult, "Error writing file '{0}'",
    {
        errno.EEXIST: "Cannot write to {0} because it already exists. "
        "Read and then make an edit, or write to a new path.",
        UnicodeEncodeError: "Error writing file '{0}': content is not valid text: {error}",
    },
    changes=True, staged={"content": "staged"},
)  # fmt: skip
EDIT = Verb(
    "edit", EditResult, "Error editing file '{0}'",
    {
        errno.ENOENT: _NOT_FOUND,
        UnicodeDecodeError: "Error: File '{0}' is not UTF-8 text and can't be edited",
        UnicodeEncodeError: "Error editing file '{0}': new_string is not valid text: {error}",
    },
    changes=True, staged={"old_string": "staged_old", "new_string": "staged_new"},
)  # fmt: skip
GREP = Verb("grep", GrepResult, "Error searching '{0}'", long=True, streams=True)
GLOB = Verb("glob", GlobResult, "Error searching '{0}'", long=True, streams=True)
DELETE = Verb(
    "delete", DeleteResult, "Error deleting '{0}'", {errno.ENOENT: _NOT_FOUND},
    changes=True, pinned=errno.EBUSY, long=True,
)  # fmt: skip
MOVE = Verb(
    "move", MoveResult, "Error moving '{0}' to '{1}'",
    {errno.ENOENT: _NOT_FOUND, errno.EEXIST: "Cannot move to {1} because it already exists."},
    changes=True, pinned=errno.EBUSY, long=True,
)  # fmt: skip
UPLOAD_FILES = Verb(
    "upload_files", FileUploadResponse, changes=True, batch=True, long=True, within=("upload_files", "upload_from")
)
DOWNLOAD_FILES = Verb(
    "download_files", FileDownloadResponse, batch=True, long=True, has_actor=True,
    within=("download_files", "download_to"),
)  # fmt: skip

VERBS: dict[str, Verb[Any]] = {
    verb.name: verb
    for verb in (LS, READ, WRITE, EDIT, GREP, GLOB, DELETE, MOVE, UPLOAD_FILES, DOWNLOAD_FILES)
}  # fmt: skip
AGENT_VERBS = tuple(VERBS)

READING = (READ.name, DOWNLOAD_FILES.name)
"""The verbs that give the bytes of files, and change nothing."""

SEED_VERBS = ("ls_info", "grep_raw", "glob_info")
"""Older names (deepagents before 0.7) of `ls`, `grep` and `glob`."""


def not_bytes(path: str, content: object) -> FileUploadResponse | None:
    """Return the answer of `upload_files` for content of another type than bytes, else None."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return None
    return FileUploadResponse(path=path, error=f"content must be bytes, not {type(content).__name__}")
