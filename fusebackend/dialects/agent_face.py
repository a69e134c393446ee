"""`AgentFace`: any object with an agent face, asked in the words it knows, answering in this package's records.

Backends come in dialects: this package's, deepagents 0.7's with records of the same attributes, and the seeds', where
`ls_info` gives a list, `read` a numbered text and `grep_raw` a list or an error as a string. They may be subclasses of
any protocol or of none, and may have only the `a…` form of a verb. Composite and ForeignVolume speak to all of them
through this class:

- answers are this package's records, with normalised paths, sorted, without duplicates and without what was not asked
  for (the children of another directory, matches outside of the searched path);
- nothing is raised: an exception of a backend becomes the error of the record, with the verb that failed. It is logged
  with its traceback, unless it is `NotImplementedError`;
- a batch has one answer per item;
- where `read` answers with less than the file (numbered text, a reminder that it is empty, a piece of base64), its
  bytes are downloaded, and the lines are cut out of them here;
- a backend without `download_files` and `upload_files` gives and takes bytes by `read` and `write` (`text_files.py`).
"""

from __future__ import annotations

import errno
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol, TypeVar, Unpack

from fusebackend import text
from fusebackend.base import budget, caller, errors, paths
from fusebackend.base.budget import Spent
from fusebackend.base.deadline import GivenUp, RouteDown
from fusebackend.base.errors import Unanswered
from fusebackend.base.paths import AgentPath
from fusebackend.dialects.answers import (
    as_download,
    as_infos,
    as_matches,
    error_of,
    field_of,
    file_path,
    is_inexact,
    parse_numbered,
    unpack,
    with_version,
)
from fusebackend.dialects.text_files import Outcome, TextFiles
from fusebackend.protocol import (
    AGENT_VERBS,
    ANY,
    READ_LIMIT_LINES,
    BackendProtocol,
    Condition,
    Conditions,
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    MoveResult,
    ReadResult,
    Verb,
    Volume,
    WriteResult,
    options_of,
    verbs,
)

log = logging.getLogger(__name__)

_PROTOCOLS = frozenset({"BackendProtocol", "SandboxBackendProtocol"})
"""Classes whose verbs are defaults that only raise `NotImplementedError`, here and in deepagents."""

T = TypeVar("T")


class Unsupported(Unanswered):
    """It has no such verb."""


def is_named_factory(backend: Any) -> bool:
    """True for `(factory, options)` or `("package.module:factory", options)`, the CMDC seed's `{module, opts}`."""
    if not isinstance(backend, tuple) or len(backend) != 2 or not isinstance(backend[1], Mapping):
        return False
    return callable(backend[0]) or (isinstance(backend[0], str) and ":" in backend[0])


def is_factory(backend: Any) -> bool:
    """True for a factory, which makes a backend when it is called with a runtime."""
    if isinstance(backend, type) or is_named_factory(backend):
        return True
    return callable(backend) and not any(hasattr(backend, verb) for verb in ("ls", "ls_info", "read"))


def is_native(backend: object) -> bool:
    """True for a backend of ours with a volume: nothing of its answers is to be translated or checked, and it reports
    its changes by itself."""
    return isinstance(getattr(backend, "volume", None), Volume)


def has_agent_face(found: object) -> bool:
    """True for a backend: an object that can list or fetch files, under some name."""
    verbs = ("ls", "als", "ls_info", "als_info", "download_files", "adownload_files")
    return not isinstance(found, type) and any(hasattr(found, verb) for verb in verbs)


class Guard(Protocol):
    """Runs calls into a backend that may hang, see `RouteExecutor` in `vfs/calls/executor.py`."""

    def run(self, verb: str, call: Callable[[], T], files: int = 1) -> T:
        """The result of the call; its exception, or `GivenUp`, or `RouteDown` if it is not even made.

        Args:
            verb: which it is.
            call: the call.
            files: how many files it is about.
        """


class AgentFace:
    """See the module's docstring.

    Args:
        backend: the object. A factory is accepted, and every verb answers that it needs a runtime.
        name: its name in errors, such as `Route '/memories/'`.

    Attributes:
        guard: runs the calls while the backend is mounted and may hang.
        texts: bytes by `read` and `write`, for a backend that has no other verbs for them.
        refusal: why no verb can work, if none can: this is a factory.
        start: where relative paths begin and a search without a path does: the root, but for a `FilesystemBackend` that
            is not confined, ours or deepagents'. That one's root is the machine's.
    """

    def __init__(self, backend: Any, name: str) -> None:
        self.backend = backend
        self.name = name
        self.guard: Guard | None = None
        self.texts = TextFiles(self, functools.partial(AgentFace.change, self))
        self.refusal: str | None = None
        if is_factory(backend):
            needed = "a factory and needs a runtime: call the composite with one, or its resolve(runtime)"
            self.refusal = f"{name} is {needed}"
        confined = getattr(backend, "virtual_mode", True) is not False or isinstance(backend, type)
        self.start = paths.ROOT if confined else paths.normalise(str(getattr(backend, "cwd", paths.ROOT)))
        self._exact = is_native(backend)
        # Verbs that have no `a…` form of the backend's own are called as they are.
        self._plain = frozenset(verb for verb in AGENT_VERBS if self._exact and self._is_default(f"a{verb}"))

    def lacks(self, *verbs: str) -> bool:
        """True if the backend's class has none of these verbs."""
        return all(self._method(verb) is None and self._async_method(verb) is None for verb in verbs)

    @property
    def gives_bytes(self) -> bool:
        """True if there are verbs for the bytes of files, or ones that stand in for them."""
        return not self.lacks("download_files") or not (self.lacks("read") or self.lacks("ls", "ls_info"))

    @property
    def takes_bytes(self) -> bool:
        return not self.lacks("upload_files") or (self.gives_bytes and not self.lacks("write"))

    @property
    def text_only(self) -> bool:
        """True if uploads must be written as text."""
        return self.lacks("upload_files") and self.takes_bytes

    def require_mountable(self) -> None:
        """
        Raises:
            TypeError: this can have no kernel face, and why.
        """
        name = type(self.backend).__name__
        if is_factory(self.backend):
            raise TypeError(f"{self.backend!r} makes a backend when it is called with a runtime; give what it makes")
        if self.lacks("ls", "ls_info"):
            raise TypeError(f"{name} has neither ls nor ls_info, so it can't be mounted")
        # deepagents' StateBackend, unless its files come from elsewhere, as its own tests have it.
        functions = (getattr(self.backend, "ls", None), getattr(self.backend, "_read_files", None))
        theirs = {getattr(function, "__module__", None) for function in functions} == {"deepagents.backends.state"}
        if theirs or getattr(self.backend, "only_in_graph", False):
            raise TypeError(
                f"{name} has files only inside of a running graph, so it can't be mounted: mount the threads "
                "(threads+sqlite:PATH), or give the agent another backend, such as SqliteBackend"
            )

    # -- verbs -------------------------------------------------------------------------------------------------

    @verbs.LS.answers()
    def ls(self, path: AgentPath) -> LsResult:
        answer = self.ask(("ls", "ls_info"), path)
        if self._exact:
            return answer  # type: ignore[no-any-return]
        error, raw = unpack(answer, "entries")
        entries = as_infos(self._items(raw, "ls"), path)
        children = [info for info in entries if paths.parent_and_name(file_path(info))[0] == path]
        return LsResult(error=error, entries=children if children or error is None else None)

    def has(self, path: AgentPath, *, is_dir: bool = True) -> bool | None:
        """Return whether there is this directory, or file, as the nearest directory above it says that can be listed:
        an error of its own is no answer. None where none can be, and of the root."""
        while path != paths.ROOT:
            above, _ = paths.parent_and_name(path)
            result = self.ls(above)
            if result.error is None:
                return (f"{path}/" if is_dir else path) in {info["path"] for info in result.entries or ()}
            path, is_dir = above, True
        return None

    @verbs.READ.answers()
    def read(self, path: AgentPath, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        answer = self.ask(("read",), path, offset=offset, limit=limit)
        if isinstance(answer, ReadResult):
            return answer
        if isinstance(answer, str):
            result = parse_numbered(answer, offset)
            return result if result.error is not None else self._cut(path, offset, limit) or result
        fields = {name: field_of(answer, name) for name in ReadResult.__dataclass_fields__}
        if fields["error"] is None and not isinstance(fields["file_data"], Mapping):
            return ReadResult(error=f"{self.name}: read answered {type(answer).__name__} without file data")
        result = self._record(fields)
        if result.error is not None:
            return self._binary(path) or result
        return self._cut(path, offset, limit) or result if is_inexact(path, result) else result

    def _record(self, fields: dict[str, Any]) -> ReadResult:
        """A record of a `read` as ours; a window that makes no sense is left out of it."""
        try:
            return ReadResult(**{**fields, "no_lines_requested": bool(fields["no_lines_requested"])})
        except ValueError as error:
            log.warning("%s: %s; it is left out", self.name, error)
            return ReadResult(error=fields["error"], file_data=fields["file_data"])

    def _binary(self, path: AgentPath) -> ReadResult | None:
        """A file that is there and that `read` fails at for it is no text (deepagents' FilesystemBackend), whole."""
        content = self._bytes(path)
        return None if content is None or text.is_utf8(content) else text.read_binary(content)

    def _cut(self, path: AgentPath, offset: int, limit: int) -> ReadResult | None:
        """The answer of `read`, made of the file's bytes; None when the backend does not give them."""
        content = self._bytes(path)
        return None if content is None else text.read_bytes(path, content, offset, limit)

    def _bytes(self, path: AgentPath) -> bytes | None:
        if self.lacks("download_files"):
            return None
        return self.download_files([path])[0].content

    @verbs.WRITE.answers()
    def write(self, path: AgentPath, content: str, **when: Unpack[Conditions]) -> WriteResult:
        if not self._exact and not text.is_utf8(content):
            return WriteResult(error=f"Error writing file '{path}': content is not valid text")
        self._require_met(verbs.WRITE, when, path)
        if when.get("if_version") and not self._decides(verbs.WRITE, when):  # its `write` may refuse to replace a file
            (stored,) = self.upload_files([(path, content.encode("utf-8"))])
            return WriteResult(
                stored.error and f"Error writing file '{path}': {stored.error}", path, stored.files_update
            )
        result = self.change(WriteResult, "write", path, content, **when)
        if result.error is not None and stumbled(result.error) and self._bytes(path) is not None:
            return WriteResult(path=path)
        return result

    @verbs.EDIT.answers()
    def edit(
        self,
        path: AgentPath,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        **when: Unpack[Conditions],
    ) -> EditResult:
        self._require_met(verbs.EDIT, when, path)
        counted = self._bytes(path) if replace_all and self._method("ls_info") is not None else None
        options = {"replace_all": True, **when} if replace_all else when
        result = self.change(EditResult, "edit", path, old_string, new_string, **options)
        if result.error is not None and stumbled(result.error):
            old = old_string.encode("utf-8", "surrogateescape")
            return EditResult(path=path, occurrences=counted.count(old) if counted is not None else 1)
        return result

    @verbs.DELETE.answers()
    def delete(self, path: AgentPath, *, is_directory: bool = False, **when: Unpack[Conditions]) -> DeleteResult:
        """`is_directory`: says the caller, by a slash at the end of the path; then a file stays."""
        if is_directory and self._exact:
            path = AgentPath(f"{path}/")
        elif is_directory:
            listed = self.ls(paths.parent_and_name(path)[0]).entries or ()
            if any(file_path(info) == path and not info["is_dir"] for info in listed):
                raise errors.oserror(errno.ENOTDIR)
        self._require_met(verbs.DELETE, when, path)
        if not isinstance(self.backend, BackendProtocol) and path != paths.ROOT:
            directory, name = paths.parent_and_name(path)
            above, real = self.real_paths([directory, path])
            if above is None or real != paths.join(AgentPath(above), name):
                raise OSError(errno.ENOTSUP, "this backend would delete what a symbolic link leads to")
        return self.change(DeleteResult, "delete", path, **when)

    @verbs.MOVE.answers()
    def move(self, source: AgentPath, destination: AgentPath, **when: Unpack[Conditions]) -> MoveResult:
        self._require_met(verbs.MOVE, when, source)
        return self.change(MoveResult, "move", source, destination, **when)

    def require(self, path: AgentPath, condition: Condition) -> None:
        """Compare a file with a condition, on behalf of a backend that does not: whoever changes it before the change
        that follows is not seen. Changed, or the error of a download."""
        if condition == ANY:
            return
        (answer,) = self.download_files([path])
        if answer.content is None and answer.error != errors.FILE_NOT_FOUND:
            raise errors.oserror(errors.errno_of(answer.error or ""), path)
        if answer.content is None:
            condition.require(None, is_there=False)
        else:
            answer.version = None if condition.wants_digest else answer.version
            condition.require(with_version(answer).version)

    def _require_met(self, verb: Verb[Any], when: Conditions, path: AgentPath) -> None:
        """Compare the file of a verb with its conditions, where they are decided here. As `require`."""
        if any(when.values()) and not self._decides(verb, when):
            is_absent = verb is verbs.WRITE and bool(when.get("if_absent"))
            self.require(path, Condition.of(when.get("if_version"), is_absent))

    def _decides(self, verb: Verb[Any], when: Conditions) -> bool:
        """True if the backend's own verb decides these conditions."""
        wanted = {name for name, value in when.items() if value}
        method = self._method(verb.name) or self._async_method(verb.name)
        if method is None:
            return True
        return (
            isinstance(self.backend, BackendProtocol) and accepted(method, dict.fromkeys(wanted, True)).keys() == wanted
        )

    @verbs.GREP.answers()
    def grep(self, pattern: str, path: AgentPath, glob: str | None, max_count: int | None = None) -> GrepResult:
        answer = self.ask(("grep", "grep_raw"), pattern, path, glob, max_count=max_count)
        if self._exact:
            return answer  # type: ignore[no-any-return]
        error, raw = unpack(answer, "matches")
        matches = as_matches(self._items(raw, "grep"), path)
        if error is not None and not matches:
            return GrepResult(error=error)
        cut = max_count is not None and len(matches) > max_count
        truncated = cut or error is not None or bool(field_of(answer, "truncated"))
        return GrepResult(matches=matches[:max_count], truncated=truncated)

    @verbs.GLOB.answers()
    def glob(self, pattern: str, path: AgentPath) -> GlobResult:
        answer = self.ask(("glob", "glob_info"), pattern, path)
        if self._exact:
            return answer  # type: ignore[no-any-return]
        error, raw = unpack(answer, "matches")
        found = as_infos(self._items(raw, "glob"), path)
        files = [info for info in found if not info.get("is_dir") and paths.is_below(info["path"], path)]
        if error is not None and not files:
            return GlobResult(error=error)
        reason = field_of(answer, "truncation_reason") or ("unreadable" if error is not None else None)
        return GlobResult(matches=files, truncated=bool(field_of(answer, "truncated")) or error is not None,
                          truncation_reason=reason)  # fmt: skip

    def upload_files(
        self, files: list[tuple[AgentPath, bytes]], conditions: Sequence[Conditions] = ()
    ) -> list[FileUploadResponse]:
        """`conditions`: one for each file, or none at all."""
        if any(conditions) and not self._decides(verbs.UPLOAD_FILES, Conditions(if_version="*", if_absent=True)):
            return [
                self._upload_if_met(path, content, Condition.of(**when))
                for (path, content), when in zip(files, conditions, strict=True)
            ]
        try:
            answers = self._batch("upload_files", files, **options_of(conditions))
        except Unanswered as refusal:
            if isinstance(refusal, Unsupported) and self.takes_bytes:
                return self.texts.upload(files)
            return [FileUploadResponse(path=path, error=str(refusal)) for path, _ in files]
        return [
            FileUploadResponse(
                path=path,
                error="no answer from the backend" if answer is None else error_of(answer),
                files_update=field_of(answer, "files_update"),
                version=field_of(answer, "version"),
            )
            for (path, _), answer in zip(files, answers, strict=True)
        ]

    @verbs.UPLOAD_FILES.answers()
    def _upload_if_met(self, path: AgentPath, content: bytes, condition: Condition) -> FileUploadResponse:
        self.require(path, condition)
        return self.upload_files([(path, content)])[0]

    def download_files(self, wanted: list[AgentPath]) -> list[FileDownloadResponse]:
        try:
            answers = self._batch("download_files", wanted)
        except Unanswered as refusal:
            if isinstance(refusal, Unsupported) and self.gives_bytes:
                return self.texts.download(wanted)
            return [FileDownloadResponse(path=path, error=str(refusal)) for path in wanted]
        return [as_download(path, answer) for path, answer in zip(wanted, answers, strict=True)]

    @verbs.UPLOAD_FILES.answers()
    def upload_from(self, path: AgentPath, file: IO[bytes], **when: Unpack[Conditions]) -> FileUploadResponse:
        """Upload a local file: piece by piece where the backend can do that."""
        if not self._exact or getattr(self.backend, "upload_from", None) is None:
            budget.current().hold(file.seek(0, os.SEEK_END))
            file.seek(0)
            return self.upload_files([(path, file.read())], [when] if when else ())[0]
        answer = self.ask(("upload_from",), path, file, **when)
        return FileUploadResponse(path=path, error=error_of(answer), version=field_of(answer, "version"))

    @verbs.DOWNLOAD_FILES.answers()
    def download_to(self, path: AgentPath, file: IO[bytes]) -> FileDownloadResponse:
        """`download_files` of one file into another, which is empty: piece by piece where the backend can do that. The
        answer has no content."""
        direct = getattr(self.backend, "download_to", None)
        if not self._exact or direct is None:
            answer = with_version(self.download_files([path])[0])
            budget.current().hold(len(answer.content or b""))
            file.write(answer.content or b"")
            return FileDownloadResponse(path=path, error=answer.error, version=answer.version)
        answer = self.ask(("download_to",), path, file)
        return FileDownloadResponse(path=path, error=error_of(answer), version=field_of(answer, "version"))

    def real_paths(self, wanted: list[AgentPath]) -> list[str | None]:
        """Where paths lead, see `BackendProtocol.real_paths`; None where that can't be told. Of others' backends only
        deepagents' `FilesystemBackend` follows links."""
        find: Callable[[list[AgentPath]], list[str | None]] | None = None
        if isinstance(self.backend, BackendProtocol):
            find = self.backend.real_paths  # type: ignore[assignment]
        elif hasattr(self.backend, "_resolve_path") and hasattr(self.backend, "cwd"):
            find = functools.partial(_real_paths_on_disk, self.backend)
        if self.refusal is not None or find is None:
            return [None if self.refusal else path for path in wanted]
        try:
            return self.guarded("stat", functools.partial(find, list(wanted)), len(wanted))
        except Exception:  # foreign code: it can't be told
            log.warning("%s: real_paths failed", self.name, exc_info=True)
            return [None] * len(wanted)

    # -- asking ------------------------------------------------------------------------------------------------

    def change(self, kind: type[Outcome], verb: str, *args: Any, **options: Any) -> Outcome:
        """The answer of a verb that changes files. A subclass learns of each here, but for those by which `texts`
        uploads a file."""
        try:
            answer = self.ask((verb,), *args, **options)
        except Unanswered as refusal:
            return kind(error=str(refusal))
        if self._exact and isinstance(answer, kind):
            return answer
        known = "error" in answer or "path" in answer if isinstance(answer, Mapping) else hasattr(answer, "error")
        if not known:
            return kind(error=f"{self.name}: {verb} answered {type(answer).__name__}, not a result")
        fields = {name: field_of(answer, name) for name in kind.__dataclass_fields__}
        return kind(**{**fields, "error": error_of(answer)})

    def ask(self, verbs: tuple[str, ...], *args: Any, **options: Any) -> Any:
        """The answer of the first of these verbs that the backend has; options it does not know are left out.

        Raises:
            Unanswered: it has none of them, or failed.
        """
        if self.refusal is not None:
            raise Unanswered(self.refusal)
        for verb in verbs:
            for method in (getattr(self.backend, verb),) if verb in self._plain else self._forms(verb):
                call = functools.partial(method, *args, **accepted(method, options))
                try:
                    files = len(args[0]) if verb in ("upload_files", "download_files") else 1
                    return self.guarded(verb, call, files)
                except NotImplementedError:
                    continue
                except Spent:  # the budget of the call is used up
                    raise
                except (GivenUp, RouteDown) as error:  # logged where it was decided
                    raise Unanswered(f"{self.name}: {error.strerror}") from None
                except Exception as error:  # foreign code: each exception becomes an answer
                    if not stumbled(str(error)):
                        log.warning("%s: %s failed", self.name, verb, exc_info=True)
                    raise Unanswered(f"{self.name}: {verb} failed: {type(error).__name__}: {error}") from error
        raise Unsupported(f"{self.name} ({type(self.backend).__name__}) does not support {verbs[0]}")

    def _forms(self, verb: str) -> Iterator[Callable[..., Any]]:
        """Yield the forms of a verb that the backend has, as plain functions, in the order in which they are tried."""
        for find in (self._awaited_method, self._method, self._async_method):
            if (method := find(verb)) is not None:
                yield method

    def guarded(self, verb: str, call: Callable[[], T], files: int = 1) -> T:
        """Make a call with the deadline of the route, if it has one."""
        return call() if self.guard is None else self.guard.run(verb, call, files)

    def verb(self, name: str) -> Callable[..., Any] | None:
        """A verb of the backend's own, its `a…` form as a plain function where it has no other; None for neither."""
        return None if self.refusal is not None else self._method(name) or self._async_method(name)

    def _method(self, verb: str) -> Callable[..., Any] | None:
        method = getattr(self.backend, verb, None)
        return method if callable(method) and not self._is_default(verb) else None

    def coroutine(self, verb: str, library: str | None) -> Callable[..., Any] | None:
        """The `a…` form of a verb that the backend wrote, if a loop of this library can await it. Not where a subclass
        has a plain verb of its own and the `a…` form is its base's.

        Our protocol promises both libraries; a stranger is taken to need asyncio.
        """
        if library is None or (library != "asyncio" and not isinstance(self.backend, BackendProtocol)):
            return None
        return self._own_coroutine(verb) if self._depth("a" + verb) <= self._depth(verb) else None

    def _own_coroutine(self, verb: str) -> Callable[..., Any] | None:
        method = getattr(self.backend, "a" + verb, None)
        return method if inspect.iscoroutinefunction(method) and not self._is_default("a" + verb) else None

    def _awaited_method(self, verb: str) -> Callable[..., Any] | None:
        """`coroutine` as a plain function, for the task that waits for this thread. Where there is one, it comes first:
        it needs no thread, is cancelled with that task, and the backend's connections may belong to its loop."""
        return _as_plain(self.coroutine(verb, caller.library()), _await_there)

    def _async_method(self, verb: str) -> Callable[..., Any] | None:
        """The `a…` form of a verb as a plain function, on a loop of its own."""
        return _as_plain(self._own_coroutine(verb), _await_here)

    def _depth(self, name: str) -> int:
        """How far from the backend's own class a name is defined; beyond all bases if nowhere."""
        bases = type(self.backend).__mro__
        return next((depth for depth, cls in enumerate(bases) if name in vars(cls)), len(bases))

    def _is_default(self, name: str) -> bool:
        """True for a verb that is inherited from a protocol class. There, today's names stand in for the seeds' and
        call them."""
        owner = next((cls for cls in type(self.backend).__mro__ if name in vars(cls)), None)
        if owner is not None and getattr(vars(owner)[name], "is_twin", False):
            return True  # of a protocol class, with the parameters of the backend's own verb
        if owner is None or owner.__name__ not in _PROTOCOLS:
            return False
        twin = {"ls": "ls_info", "grep": "grep_raw", "glob": "glob_info"}.get(name)
        return twin is None or not hasattr(self.backend, twin) or self._is_default(twin)

    def _batch(self, verb: str, items: list[Any], **options: Any) -> list[Any]:
        answers = list(self._items(self.ask((verb,), items, **options), verb))
        return (answers + [None] * len(items))[: len(items)]

    def _items(self, raw: Any, verb: str) -> Iterable[Any]:
        if raw is None:
            return ()
        if isinstance(raw, (str, bytes, Mapping)) or not isinstance(raw, Iterable):
            raise Unanswered(f"{self.name}: {verb} answered {type(raw).__name__}, not a list")
        return raw


def _as_plain(method: Callable[..., Any] | None, wait: Callable[..., Any]) -> Callable[..., Any] | None:
    """An `a…` verb as a plain function, which waits for it in this way."""
    return None if method is None else functools.update_wrapper(functools.partial(wait, method), method)


def stumbled(error: str) -> bool:
    """True if a change was made, and only its record failed. Backends from before deepagents 0.7 give its records a
    `files_update`, which those no longer take; by then the change is made."""
    return "unexpected keyword argument 'files_update'" in error


def _real_paths_on_disk(backend: Any, wanted: list[AgentPath]) -> list[str | None]:
    """`real_paths` of deepagents' `FilesystemBackend`. Its own `_real_path` is there from 0.7.25 on alone."""
    found: list[str | None] = []
    root = os.path.realpath(backend.cwd) if getattr(backend, "virtual_mode", False) else "/"
    for path in wanted:
        try:
            real = os.path.realpath(backend._resolve_path(path))
        except (OSError, ValueError, RuntimeError):  # a loop, or out of its root
            real = ""
        found.append("/" + real[len(root) :].lstrip("/") if real and paths.is_below(real, root) else None)
    return found


def _await_there(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return caller.awaited(functools.partial(method, *args, **options))


def _await_here(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    from fusebackend.base.awaiting import until_cancelled

    return until_cancelled(functools.partial(method, *args, **options))


def accepted(method: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Those options that a method knows by name; an option of None is never passed."""
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return given
    known = option_names(method)
    return given if known is None else {name: value for name, value in given.items() if name in known}


def option_names(method: Callable[..., Any]) -> frozenset[str] | None:
    """The names of a method's parameters; None when it takes any name."""
    function = getattr(method, "__wrapped__", method)
    return _option_names(getattr(function, "__func__", function))


@functools.lru_cache(maxsize=256)  # asking takes as long as reading a small file
def _option_names(function: Callable[..., Any]) -> frozenset[str] | None:
    known = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        return None
    return frozenset(known)
