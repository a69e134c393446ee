"""`AgentFace`: any object with an agent face, asked in the words it knows, answering in this package's records.

Backends come in dialects: this package's, deepagents 0.7's with records of the same attributes, and the seeds', where
`ls_info` gives a list, `read` a numbered text and `grep_raw` a list or an error as a string. They may be subclasses of
anybody's protocol or of none, and may have only the `a…` form of a verb. Composite and ForeignVolume speak to all of
them through this class:

- answers are this package's records, with normalised paths, sorted, without duplicates and without what was not asked
  for (the children of another directory, matches outside of the searched path);
- nothing is raised: whatever a backend raises is an error in the record, which says who failed at what. It is logged
  with its traceback, unless it is `NotImplementedError`;
- a batch has one answer per item, whatever the backend returns.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fusebackend import paths
from fusebackend.paths import AgentPath, PathError
from fusebackend.protocol import (
    READ_LIMIT_LINES,
    DeleteResult,
    EditResult,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    MoveResult,
    ReadResult,
    Volume,
    WriteResult,
)
from fusebackend.text import EMPTY_REMINDER, MARKER_WIDTH

log = logging.getLogger(__name__)

_PROTOCOLS = frozenset({"BackendProtocol", "SandboxBackendProtocol"})
"""Classes whose verbs are defaults that only raise `NotImplementedError`, here and in deepagents."""

Outcome = TypeVar("Outcome", WriteResult, EditResult, DeleteResult, MoveResult)


class Refusal(Exception):
    """A backend did not answer; the text says who and why. Never leaves this module."""


class Unsupported(Refusal):
    """It has no such verb."""


def is_factory(backend: Any) -> bool:
    """Is this not a backend yet, but what makes one when called with a runtime?"""
    if isinstance(backend, type):
        return True
    return callable(backend) and not any(hasattr(backend, verb) for verb in ("ls", "ls_info", "read"))


class AgentFace:
    """See the module's docstring.

    Args:
        backend: the object. A factory is accepted, and every verb answers that it needs a runtime.
        name: what errors call it, such as `Route '/memories/'`.
    """

    def __init__(self, backend: Any, name: str) -> None:
        self.backend = backend
        self.name = name
        self._exact = isinstance(getattr(backend, "volume", None), Volume)  # ours: nothing to translate or to check

    @property
    def refusal(self) -> str | None:
        """Why no verb can work, if none can: this is a factory."""
        if not is_factory(self.backend):
            return None
        return f"{self.name} is a factory and needs a runtime: call the composite with one, or its resolve(runtime)"

    @property
    def start(self) -> AgentPath:
        """Where relative paths begin and a search without a path does: the root, but for a `FilesystemBackend` that is
        not confined, ours or deepagents'. That one's root is the machine's."""
        confined = getattr(self.backend, "virtual_mode", True) is not False or isinstance(self.backend, type)
        return paths.ROOT if confined else paths.normalise(str(getattr(self.backend, "cwd", paths.ROOT)))

    def lacks(self, *verbs: str) -> bool:
        """Has the backend none of these verbs, as far as its class can tell?"""
        return all(self._method(verb) is None and self._async_method(verb) is None for verb in verbs)

    # -- verbs -------------------------------------------------------------------------------------------------

    def ls(self, path: AgentPath) -> LsResult:
        try:
            answer = self._ask(("ls", "ls_info"), path)
            if self._exact:
                return answer  # type: ignore[no-any-return]
            error, raw = _unpack(answer, "entries")
            entries = _infos(self._items(raw, "ls"), path)
        except Refusal as refusal:
            return LsResult(error=str(refusal))
        children = [info for info in entries if paths.parent_and_name(_file_path(info))[0] == path]
        return LsResult(error=error, entries=children if children or error is None else None)

    def read(self, path: AgentPath, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        try:
            answer = self._ask(("read",), path, offset=offset, limit=limit)
        except Refusal as refusal:
            return ReadResult(error=str(refusal))
        if isinstance(answer, ReadResult):
            return answer
        if isinstance(answer, str):
            return parse_numbered(answer, offset)
        fields = {name: _field(answer, name) for name in ReadResult.__dataclass_fields__}
        if fields["error"] is None and not isinstance(fields["file_data"], Mapping):
            return ReadResult(error=f"{self.name}: read answered {type(answer).__name__} without file data")
        return ReadResult(**{**fields, "no_lines_requested": bool(fields["no_lines_requested"])})

    def write(self, path: AgentPath, content: str) -> WriteResult:
        return self._change(WriteResult, "write", path, content)

    def edit(self, path: AgentPath, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return self._change(EditResult, "edit", path, old_string, new_string, replace_all=replace_all)

    def delete(self, path: AgentPath) -> DeleteResult:
        return self._change(DeleteResult, "delete", path)

    def move(self, source: AgentPath, destination: AgentPath) -> MoveResult:
        return self._change(MoveResult, "move", source, destination)

    def grep(self, pattern: str, path: AgentPath, glob: str | None, max_count: int | None = None) -> GrepResult:
        try:
            answer = self._ask(("grep", "grep_raw"), pattern, path, glob, max_count=max_count)
            if self._exact:
                return answer  # type: ignore[no-any-return]
            error, raw = _unpack(answer, "matches")
            matches = _matches(self._items(raw, "grep"), path)
        except Refusal as refusal:
            return GrepResult(error=str(refusal))
        if error is not None and not matches:
            return GrepResult(error=error)
        cut = max_count is not None and len(matches) > max_count
        truncated = cut or error is not None or bool(_field(answer, "truncated"))
        return GrepResult(matches=matches[:max_count], truncated=truncated)

    def glob(self, pattern: str, path: AgentPath) -> GlobResult:
        try:
            answer = self._ask(("glob", "glob_info"), pattern, path)
            if self._exact:
                return answer  # type: ignore[no-any-return]
            error, raw = _unpack(answer, "matches")
            found = _infos(self._items(raw, "glob"), path)
        except Refusal as refusal:
            return GlobResult(error=str(refusal))
        files = [info for info in found if not info.get("is_dir") and paths.is_below(info["path"], path)]
        if error is not None and not files:
            return GlobResult(error=error)
        reason = _field(answer, "truncation_reason") or ("unreadable" if error is not None else None)
        return GlobResult(matches=files, truncated=bool(_field(answer, "truncated")) or error is not None,
                          truncation_reason=reason)  # fmt: skip

    def upload_files(self, files: list[tuple[AgentPath, bytes]]) -> list[FileUploadResponse]:
        try:
            answers = self._batch("upload_files", files)
        except Refusal as refusal:
            return [FileUploadResponse(path=path, error=str(refusal)) for path, _ in files]
        return [
            FileUploadResponse(
                path=path,
                error="no answer from the backend" if answer is None else _error(answer),
                files_update=_field(answer, "files_update"),
            )
            for (path, _), answer in zip(files, answers, strict=True)
        ]

    def download_files(self, wanted: list[AgentPath]) -> list[FileDownloadResponse]:
        try:
            answers = self._batch("download_files", wanted)
        except Refusal as refusal:
            return [FileDownloadResponse(path=path, error=str(refusal)) for path in wanted]
        return [_download(path, answer) for path, answer in zip(wanted, answers, strict=True)]

    # -- asking ------------------------------------------------------------------------------------------------

    def _change(self, kind: type[Outcome], verb: str, *args: Any, **options: Any) -> Outcome:
        try:
            answer = self._ask((verb,), *args, **options)
        except Refusal as refusal:
            return kind(error=str(refusal))
        known = "error" in answer or "path" in answer if isinstance(answer, Mapping) else hasattr(answer, "error")
        if not known:
            return kind(error=f"{self.name}: {verb} answered {type(answer).__name__}, not a result")
        fields = {name: _field(answer, name) for name in kind.__dataclass_fields__}
        return kind(**{**fields, "error": _error(answer)})

    def _ask(self, verbs: tuple[str, ...], *args: Any, **options: Any) -> Any:
        """The answer of the first of these verbs that the backend has; options it does not know are left out.

        Raises:
            Refusal: it has none of them, or failed.
        """
        if self.refusal is not None:
            raise Refusal(self.refusal)
        for verb in verbs:
            for method in (self._method(verb), self._async_method(verb)):
                if method is None:
                    continue
                try:
                    return method(*args, **accepted(method, options))
                except NotImplementedError:
                    continue
                except Exception as error:  # somebody else's code: whatever it raises becomes an answer
                    log.warning("%s: %s failed", self.name, verb, exc_info=True)
                    raise Refusal(f"{self.name}: {verb} failed: {type(error).__name__}: {error}") from error
        raise Unsupported(f"{self.name} ({type(self.backend).__name__}) does not support {verbs[0]}")

    def _method(self, verb: str) -> Callable[..., Any] | None:
        method = getattr(self.backend, verb, None)
        return method if callable(method) and not self._is_default(verb) else None

    def _async_method(self, verb: str) -> Callable[..., Any] | None:
        """The `a…` form of a verb as a plain function, if the backend wrote one of its own."""
        method = getattr(self.backend, "a" + verb, None)
        if not inspect.iscoroutinefunction(method) or self._is_default("a" + verb):
            return None
        return functools.update_wrapper(functools.partial(_run, method), method)

    def _is_default(self, name: str) -> bool:
        """Is this verb the one of a protocol class? There, today's names stand in for the seeds' and call them."""
        owner = next((cls for cls in type(self.backend).__mro__ if name in vars(cls)), None)
        if owner is None or owner.__name__ not in _PROTOCOLS:
            return False
        twin = {"ls": "ls_info", "grep": "grep_raw", "glob": "glob_info"}.get(name)
        return twin is None or not hasattr(self.backend, twin) or self._is_default(twin)

    def _batch(self, verb: str, items: list[Any]) -> list[Any]:
        answers = list(self._items(self._ask((verb,), items), verb))
        return (answers + [None] * len(items))[: len(items)]

    def _items(self, raw: Any, verb: str) -> Iterable[Any]:
        if raw is None:
            return ()
        if isinstance(raw, (str, bytes, Mapping)) or not isinstance(raw, Iterable):
            raise Refusal(f"{self.name}: {verb} answered {type(raw).__name__}, not a list")
        return raw


def _run(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run a coroutine function to its end: on the asyncio loop that waits for this thread, if there is one, for the
    backend's connections may belong to it, and else on a loop of its own."""
    import anyio.from_thread
    import sniffio

    call = functools.partial(method, *args, **options)
    try:
        library = anyio.from_thread.run_sync(sniffio.current_async_library)
    except RuntimeError:  # this is no worker thread
        library = None
    return anyio.from_thread.run(call) if library == "asyncio" else anyio.run(call)


def accepted(method: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Those options that a method knows by name; an option of None is never passed."""
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return given
    known = inspect.signature(method).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        return given
    return {name: value for name, value in given.items() if name in known}


# -- answers ---------------------------------------------------------------------------------------------------


def _field(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)


def _error(answer: Any) -> str | None:
    error = _field(answer, "error")
    return str(error) if error else None


def _unpack(answer: Any, name: str) -> tuple[str | None, Any]:
    """Error and items of an answer: a record, or bare items, or an error as a string (seeds)."""
    if isinstance(answer, str):
        return answer or "empty error", None
    if isinstance(answer, Mapping) or hasattr(answer, name):
        return _error(answer), _field(answer, name)
    return None, answer


def _path(raw: Any, base: AgentPath) -> AgentPath | None:
    """The path of an entry; a bare name is meant in `base`."""
    path = _field(raw, "path")
    if not isinstance(path, str):
        return None
    try:
        return paths.normalise(path if path.startswith("/") else paths.join(base, path))
    except PathError:
        return None


def _file_path(info: FileInfo) -> AgentPath:
    return AgentPath(info["path"].removesuffix("/") or "/")


def _infos(items: Iterable[Any], base: AgentPath) -> list[FileInfo]:
    """Records of files and directories, sorted by path, each path once."""
    infos: dict[str, FileInfo] = {}
    for raw in items:
        path = _path(raw, base)
        if path is None or path == paths.ROOT:
            continue
        is_dir = bool(_field(raw, "is_dir")) or str(_field(raw, "path")).endswith("/")
        info = FileInfo(path=path + "/" if is_dir else path, is_dir=is_dir)
        size, modified_at = _field(raw, "size"), _field(raw, "modified_at")
        if isinstance(size, int) and size >= 0:
            info["size"] = size
        if modified_at:
            info["modified_at"] = str(modified_at)
        infos.setdefault(info["path"], info)
    return sorted(infos.values(), key=lambda info: info["path"])


def _matches(items: Iterable[Any], base: AgentPath) -> list[GrepMatch]:
    matches: dict[tuple[str, int, str], GrepMatch] = {}
    for raw in items:
        path, line = _path(raw, base), _field(raw, "line")
        if path is not None and paths.is_below(path, base) and isinstance(line, int):
            match = GrepMatch(path=path, line=line, text=str(_field(raw, "text") or ""))
            matches.setdefault((path, line, match["text"]), match)
    return [matches[key] for key in sorted(matches)]


def _download(path: AgentPath, answer: Any) -> FileDownloadResponse:
    if answer is None:
        return FileDownloadResponse(path=path, error="no answer from the backend")
    error, content = _error(answer), _field(answer, "content")
    if error is None and isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    if error is None and not isinstance(content, (bytes, bytearray, memoryview)):
        error = f"the backend answered {type(content).__name__}, not bytes"
    return FileDownloadResponse(path=path, content=bytes(content) if error is None else None, error=error)


def parse_numbered(text: str, offset: int) -> ReadResult:
    """What a seed's `read` answered, as a record: numbered lines, a reminder or `Error…`.

    Numbered lines carry their number, so a text that starts with `Error` and has none is an error. Whether the file's
    last line ends with a newline, and how many lines there are in all, such a text does not tell.
    """
    first = max(0, offset) + 1
    lines = _unnumber(text, first)
    if lines is None:
        if text.startswith("Error"):
            return ReadResult(error=text)
        if text == EMPTY_REMINDER or not text.strip():
            return ReadResult(file_data=FileData(content="", encoding="utf-8"))
        lines = text.splitlines()  # a dialect that does not number
    return ReadResult(
        file_data=FileData(content="\n".join(lines), encoding="utf-8"),
        start_line=first,
        end_line=first + len(lines) - 1,
    )


def _unnumber(text: str, first: int) -> list[str] | None:
    """The lines under markers that count from `first`, continued ones joined; None where the text is not such."""
    lines: list[str] = []
    for row in text.split("\n"):
        marker, tab, rest = row.partition("\t")
        if not tab or len(marker) < MARKER_WIDTH:
            return None
        number, dot, _ = marker.strip().partition(".")
        expected = first + len(lines) - (1 if dot else 0)
        if number != str(expected) or (dot and not lines):
            return None
        if dot:
            lines[-1] += rest
        else:
            lines.append(rest)
    return lines
