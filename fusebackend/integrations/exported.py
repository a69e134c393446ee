"""`Exported`: a backend of ours as deepagents 0.7 knows them. The one module that imports deepagents.

deepagents asks the class what a backend can do, so `exported` chooses among classes: with `delete` or without, with
`execute` or without, and a subclass of their `StateBackend` where files are in the graph's state, so that
`create_deep_agent` gives the state a key for files.

The tools of an agent ask what `FilesystemMiddleware.backend` gives, in every version of deepagents 0.7. That is what
`for_tools` makes (`protocol/registered.py`), for two promises that a backend can't keep when it is given as it is:

- `write_file` replaces, as its description tells the model. `export` is that, so a backend of ours is exported here.
- No symbolic link leads around `permissions=`. deepagents before 0.7.25 compares rules with the names that it is given,
  and later ones resolve links of their own `FilesystemBackend` alone. So each path that leads elsewhere is compared by
  where it leads as well (`Ruled`), by the function of deepagents' own that compares the names.

Processes that change links while a verb runs are not waited for, here as in deepagents.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from deepagents.backends import CompositeBackend as DeepagentsCompositeBackend
from deepagents.backends import StateBackend as DeepagentsStateBackend
from deepagents.backends import protocol as theirs
from deepagents.middleware import filesystem as middleware

from fusebackend.base import errors, paths
from fusebackend.base.paths import AgentPath, PathError
from fusebackend.base.shown import name_meant, name_shown, shown
from fusebackend.composite.backend import CompositeBackend, supports_execution
from fusebackend.databases.langgraph import GraphRuntime
from fusebackend.dialects.agent_face import AgentFace, is_factory
from fusebackend.integrations.approving import Approving
from fusebackend.integrations.deepagents import adopt
from fusebackend.protocol import READ_LIMIT_LINES, BackendProtocol, FileDownloadResponse
from fusebackend.protocol.agent import async_twin

log = logging.getLogger(__name__)

Verb = TypeVar("Verb", bound=Callable[..., Any])
Record = TypeVar("Record")


class BadArgument(ValueError):
    """An argument of a kind that makes no sense; its text is one line for the user."""


def _answering(record: Callable[..., Any]) -> Callable[[Verb], Verb]:
    """Make a verb answer with `record(error=text)` where it would raise."""

    def decorate(verb: Verb) -> Verb:
        @functools.wraps(verb)
        def answering(*args: Any, **options: Any) -> Any:
            try:
                return _shown(verb(*args, **options))
            except (BadArgument, PathError, NotImplementedError) as error:
                return record(error=shown(str(error), but="\n"))
            except Exception as error:  # an agent's run must not end by it
                log.exception("%s failed", verb.__name__)
                return record(error=shown(f"{verb.__name__} failed: {type(error).__name__}: {error}", but="\n"))

        return answering  # type: ignore[return-value]

    return decorate


def _failed_command(error: str) -> theirs.ExecuteResponse:
    return theirs.ExecuteResponse(output=f"Error: {error}", exit_code=1)


class Exported(theirs.BackendProtocol):
    """See the module's docstring.

    Attributes:
        backend: the exported backend.
    """

    def __init__(self, backend: Any, files: Callable[[], CompositeBackend]) -> None:
        self.backend = backend
        self._files = files
        self._id = f"fusebackend-{uuid.uuid4().hex[:8]}"

    def __repr__(self) -> str:
        return f"export({self.backend!r})"

    def real_paths(self, wanted: list[str]) -> list[str | None]:
        """See `BackendProtocol.real_paths`."""
        return self._files().real_paths(list(map(_meant, wanted)))

    # -- reading -----------------------------------------------------------------------------------------------

    @_answering(theirs.LsResult)
    def ls(self, path: str) -> theirs.LsResult:
        return _as_theirs(theirs.LsResult, self._files().ls(_path("path", path)))

    @_answering(theirs.ReadResult)
    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> theirs.ReadResult:
        found = self._files().read(_path("file_path", file_path), _whole("offset", offset), _whole("limit", limit))
        if found.error is not None or found.file_data is None:
            return theirs.ReadResult(error=found.error or "no file data")
        found.file_data = {**found.file_data, "encoding": found.file_data.get("encoding") or "utf-8"}
        return _as_theirs(theirs.ReadResult, found)

    @_answering(theirs.GrepResult)
    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> theirs.GrepResult:
        _text("pattern", pattern)
        if glob is not None:
            _text("glob", glob)
        most = None if max_count is None else _whole("max_count", max_count)
        found = self._files().grep(pattern, None if path is None else _path("path", path), glob, max_count=most)
        return _as_theirs(theirs.GrepResult, found)

    @_answering(theirs.GlobResult)
    def glob(self, pattern: str, path: str | None = None) -> theirs.GlobResult:
        found = self._files().glob(_text("pattern", pattern), None if path is None else _path("path", path))
        if found.truncation_reason not in _REASONS:
            found.truncation_reason = None
        return _as_theirs(theirs.GlobResult, found)

    def download_files(self, paths: list[str]) -> list[theirs.FileDownloadResponse]:
        """As ours, and a path with `~` is `file_not_found`: deepagents' memory takes such sources for optional."""
        answers = [theirs.FileDownloadResponse(path=path, error=_refused(path)) for path in _items(paths)]
        asked = [answer for answer in answers if answer.error is None]
        found = self._batch("download_files", [_meant(answer.path) for answer in asked])
        for answer, one in zip(asked, found, strict=True):
            answer.content, answer.error = one.content, one.error
            if answer.path.startswith("~"):
                answer.error = errors.FILE_NOT_FOUND
        return answers

    def _batch(self, verb: str, items: list[Any]) -> list[Any]:
        """One answer per item, of any class that has an `error`."""
        try:
            return list(getattr(self._files(), verb)(items)) if items else []
        except Exception as error:  # as in `_answering`
            log.exception("%s failed", verb)
            return [FileDownloadResponse(path="", error=f"{verb} failed: {type(error).__name__}: {error}")] * len(items)

    # -- writing -----------------------------------------------------------------------------------------------

    @_answering(theirs.WriteResult)
    def write(self, file_path: str, content: str) -> theirs.WriteResult:
        """Create a file, or replace it."""
        path, text = paths.normalise(_path("file_path", file_path)), _text("content", content)
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            return theirs.WriteResult(error=f"Error writing file '{file_path}': content is not valid text: {error}")
        (answer,) = self._files().upload_files([(path, data)])
        if answer.error is not None:
            return theirs.WriteResult(error=f"Error writing file '{file_path}': {errors.words_of(answer.error)}")
        return theirs.WriteResult(path=path)

    @_answering(theirs.EditResult)
    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> theirs.EditResult:
        old, new = _text("old_string", old_string), _text("new_string", new_string)
        done = self._files().edit(_path("file_path", file_path), old, new, bool(replace_all))
        return _as_theirs(theirs.EditResult, done)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[theirs.FileUploadResponse]:
        answers: list[theirs.FileUploadResponse] = []
        asked: list[tuple[str, bytes]] = []
        for item in _items(files):
            path, content = item if isinstance(item, (tuple, list)) and len(item) == 2 else (item, None)
            error = _refused(path)
            if not isinstance(content, (bytes, bytearray, memoryview)):
                error = error or f"content must be bytes, not {type(content).__name__}"
            elif error is None:
                asked.append((_meant(path), bytes(content)))
            answers.append(theirs.FileUploadResponse(path=path, error=error))
        waiting = [answer for answer in answers if answer.error is None]
        for answer, one in zip(waiting, self._batch("upload_files", asked), strict=True):
            answer.error = one.error
        return answers


class Deleting(Exported):
    @_answering(theirs.DeleteResult)
    def delete(self, file_path: str) -> theirs.DeleteResult:
        return _as_theirs(theirs.DeleteResult, self._files().delete(_path("file_path", file_path)))


class Executing(Exported, theirs.SandboxBackendProtocol):
    @property
    def id(self) -> str:
        """The backend's own, where it has one."""
        own = getattr(self.backend, "id", None)
        return own if isinstance(own, str) and own else self._id

    @_answering(_failed_command)
    def execute(self, command: str, *, timeout: int | None = None) -> theirs.ExecuteResponse:
        return _as_theirs(theirs.ExecuteResponse, self._files().execute(_text("command", command), timeout=timeout))


for _class_, _verbs in {
    Exported: ("ls", "read", "glob", "write", "edit", "upload_files", "download_files"),
    Deleting: ("delete",),
    Executing: ("execute",),
}.items():
    for _verb in _verbs:
        setattr(_class_, f"a{_verb}", async_twin(getattr(_class_, _verb)))
_awaited_grep = async_twin(Exported.grep)


@functools.wraps(_awaited_grep)
async def _agrep(self: Exported, *args: Any, **options: Any) -> Any:
    import anyio

    limit_s = theirs.ASYNC_GREP_TIMEOUT
    with anyio.move_on_after(limit_s):
        return await _awaited_grep(self, *args, **options)
    return theirs.GrepResult(error=f"Error: grep timed out after {limit_s} s. Search less, or for less.")


Exported.agrep = _agrep  # type: ignore[method-assign, assignment]

_REASONS = ("budget", "unreadable", "transport")
"""The reasons that deepagents knows for an answer that was cut short."""


def exported(backend: Any, ruled: bool = False) -> Exported:
    """A backend of ours, or a factory of one, as one of theirs.

    Args:
        backend: as it was given.
        ruled: a class with `rules`.

    Raises:
        TypeError: as of `adopt`.
    """
    files = CompositeBackend(backend) if is_factory(backend) else adopt(backend)
    parts = files.mounts().values()
    unmade = any(is_factory(part) for part in parts)
    kind = _class(
        deletes=unmade or any(not AgentFace(part, "").lacks("delete") for part in parts),
        executes=not unmade and supports_execution(backend),
        in_graph=files.in_graph,
        ruled=ruled,
    )
    return kind(backend, lambda: files.resolve(GraphRuntime()))


@functools.cache
def _class(*, deletes: bool, executes: bool, in_graph: bool, ruled: bool) -> type[Exported]:
    bases: list[type] = [RuledDeleting if deletes else Ruled] if ruled else [Deleting] if deletes else []
    bases += [Executing] if executes else []
    bases = [*(bases or [Exported]), *([DeepagentsStateBackend] if in_graph else [])]
    name = "Exported" + "".join(base.__name__.removeprefix("Exported") for base in bases)
    return type(name, tuple(bases), {"__module__": __name__})


# -- rules of deepagents ---------------------------------------------------------------------------------------


class Ruled(Exported):
    """An exported backend whose paths are compared with rules by where they lead, too. Its maker sets the attributes.

    Attributes:
        rules: of the middleware; None if it has them where this module does not look: then no link leads anywhere.
        prefix: of the backend in a composite of deepagents'.
    """

    rules: Sequence[Any] | None
    prefix: str

    def _refusal(self, operation: str, path: str, real: str | None) -> str | None:
        """Return why there is no such operation on a path that leads there, in deepagents' words.

        Approvals (`interrupt`) are asked for by the name that is given, before the tool runs: no link gets one.
        """
        if real is None:
            return f"cannot resolve {self.prefix}{path}"
        if real == path:
            return None
        decide = None if self.rules is None else getattr(middleware, "_check_fs_permission", None)
        if decide is not None and decide(self.rules, operation, self.prefix + real) == "allow":
            return None
        return f"permission denied for {operation} on {self.prefix}{path} (resolves to {self.prefix}{real})"

    def _seen(self, found: Sequence[Any] | None) -> Any:
        """Return the entries or matches of a search without those that lead to what may not be read."""
        names = list(dict.fromkeys(paths.normalise(each["path"]) for each in found or ()))
        real = dict(zip(names, self.real_paths(list(names)), strict=True))
        hidden = {name for name in names if self._refusal("read", name, real[name]) is not None}
        return found and [each for each in found if paths.normalise(each["path"]) not in hidden]


def _ruled(name: str, operation: str, record: Callable[..., Any], listed: str = "", begin: str = "") -> None:
    """Make a verb of `Ruled`.

    Args:
        record: its answer.
        listed: the field with what it has found.
        begin: of its errors, where the tool does not begin them.
    """
    plain = getattr(Exported, name)
    signature = inspect.signature(plain)

    @_answering(record)
    @functools.wraps(plain)
    def verb(self: Ruled, *args: Any, **options: Any) -> Any:
        given = signature.bind(self, *args, **options).arguments
        path = given.get("file_path", given.get("path"))
        if path is not None:
            path = paths.normalise(_text("path", path))
            why = self._refusal(operation, path, self.real_paths([path])[0])
            if why is not None:
                return record(error=begin + why)
        found = plain(self, *args, **options)
        if listed:
            setattr(found, listed, self._seen(getattr(found, listed)))
        return found

    setattr(Ruled, name, verb)


_ruled("ls", "read", theirs.LsResult, "entries")
_ruled("read", "read", theirs.ReadResult)
_ruled("glob", "read", theirs.GlobResult, "matches")
_ruled("grep", "read", theirs.GrepResult, "matches", "Error: ")
_ruled("write", "write", theirs.WriteResult, begin="Error: ")
_ruled("edit", "write", theirs.EditResult, begin="Error: ")


class RuledDeleting(Ruled, Deleting):
    @_answering(theirs.DeleteResult)
    def delete(self, file_path: str) -> theirs.DeleteResult:
        """A link is deleted itself. Through one nothing is: rules about what is in a directory are compared with the
        name that is given alone."""
        given = paths.normalise(_text("file_path", file_path))
        path = AgentPath(_meant(given))
        directory, name = paths.parent_and_name(path)
        (above,) = self._files().real_paths([directory])
        real = None if above is None else paths.join(above, name)
        refusal = self._refusal("write", given, real)
        if refusal is not None or real != path:
            why = f"{self.prefix}{path} goes through a symbolic link: delete {self.prefix}{real}"
            return theirs.DeleteResult(error=f"Error: {refusal or why}")
        return super().delete(file_path)


def for_tools(given: Any, rules: Sequence[Any] | None, prefix: str = "") -> Any:
    """Return a backend as the tools of an agent with these rules ask it. Backends of others stay as they are."""
    if isinstance(given, DeepagentsCompositeBackend):
        made = copy.copy(given)
        made.default = for_tools(given.default, rules, prefix)
        made.routes = {path: for_tools(part, rules, prefix + path.rstrip("/")) for path, part in given.routes.items()}
        made.sorted_routes = [(path, made.routes[path]) for path, _ in given.sorted_routes]
        parts = [(made.default, given.default), *((made.routes[path], part) for path, part in given.routes.items())]
        return given if all(ours is part for ours, part in parts) else made
    if isinstance(given, Approving):
        return Approving(for_tools(given.files, rules, prefix), given.owner)
    backend = given.backend if isinstance(given, Exported) else given
    if not isinstance(given, Exported | BackendProtocol):
        return given
    tools = exported(backend, rules is None or bool(rules))
    if isinstance(tools, Ruled):
        tools.rules, tools.prefix = rules, prefix
    return tools


# -- records ---------------------------------------------------------------------------------------------------


def _escaped(path: str) -> str:
    """A path that UTF-8 can hold. Escaped are names that are no UTF-8, and names that look like such an escape."""
    return name_shown(path) if any("\udc80" <= character <= "\udcff" for character in path + name_meant(path)) else path


def _meant(path: str) -> str:
    meant = name_meant(path)
    return meant if _escaped(meant) == path else path


def _shown(result: Any) -> Any:
    """A record that goes to a model and into a checkpoint, which take UTF-8 alone. Each verb takes its paths back."""
    for name in ("entries", "matches"):
        if getattr(result, name, None):
            setattr(result, name, [{**each, "path": _escaped(each["path"])} for each in getattr(result, name)])
    if getattr(result, "path", None) is not None:
        result.path = _escaped(result.path)
    if getattr(result, "error", None) is not None:
        result.error = shown(result.error, but="\n")
    return result


def _as_theirs(record: type[Record], found: Any) -> Record:
    """A record of ours as theirs, which has some of its fields: fewer in some versions of deepagents 0.7."""
    known = dataclasses.fields(cast(Any, record))
    return record(**{field.name: getattr(found, field.name) for field in known})


# -- arguments -------------------------------------------------------------------------------------------------


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadArgument(f"{name} must be text, not {type(value).__name__}")
    return value


def _path(name: str, value: Any) -> str:
    """A path as answers have it."""
    return _meant(_text(name, value))


def _whole(name: str, value: Any) -> int:
    """A number as a model may give it, `"5"` or `5.0`."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadArgument(f"{name} must be a whole number, not {value!r}") from None


def _refused(path: Any) -> str | None:
    """Why no backend can be asked for this, if it can't."""
    return None if isinstance(path, str) else errors.INVALID_PATH


def _items(given: Any) -> Sequence[Any]:
    """The items of a batch; a lone string is no batch, and None is an empty one."""
    if given is None or isinstance(given, (str, bytes)):
        return [] if given is None else [given]
    try:
        return list(given)
    except TypeError:
        return [given]
