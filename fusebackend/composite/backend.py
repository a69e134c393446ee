"""`CompositeBackend`: one tree of files out of a default backend and others attached at prefixes.

Routes are mount points, with the same semantics here as on the mount (`route_table.py` decides what belongs where):
prefixes are checked when the composite is made, paths are normalised before they are routed, a prefix and every
directory on the way to it are directories of their parent, and what they cover underneath is out of sight in every
verb. grep and glob below a path include every route below it.

A route may be any object with an agent face, in whatever dialect (`dialects/agent_face.py`), or a factory: then the
composite is called with a runtime and gives one whose routes are made. Until then, verbs that reach the factory say so,
unless a LangGraph graph is running here: then each verb makes the routes with that graph's runtime.

Failures stay where they happen. A backend that raises gives an error that names its route. When one of several fails
in a grep or a glob, the matches of the others are returned with `truncated` set and no error, and the failure is
logged; only when nothing was found is it the error of the result.

A `files_update` of a state-backed route comes back with the paths an agent sees, and is merged into the default's
`runtime.state["files"]` when the default has one. A `StateBackend` that shares its state with the default keeps its
files there under those same paths. Somebody else's state-backed backend over the default's own runtime looks its files
up by inner paths; for that one alone the update keeps them, as in the seeds.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, TypeVar

from fusebackend.backends.state.backend import StateBackend
from fusebackend.backends.state.graph import GraphRuntime, graph_config
from fusebackend.base import budget, caller, errors, paths
from fusebackend.base.deadline import together
from fusebackend.base.globs import GlobError
from fusebackend.base.paths import ROOT, AgentPath, PathError
from fusebackend.composite.attach import familiar, keeps_in_graph, made, seated, supports_execution
from fusebackend.composite.notify import TellingFace
from fusebackend.composite.route_table import RouteTable
from fusebackend.composite.router import Routed, Routing
from fusebackend.composite.search import MAX_AWAITED, TreeSearch
from fusebackend.dialects.agent_face import AgentFace, Guard, accepted, is_factory
from fusebackend.protocol import (
    AGENT_VERBS,
    READ_LIMIT_LINES,
    BackendProtocol,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    MoveResult,
    ReadResult,
    WriteResult,
)
from fusebackend.protocol.registered import registered_with
from fusebackend.remote.files_update import apply_files_update

log = logging.getLogger(__name__)

NO_EXECUTION = (
    "Default backend doesn't support command execution (SandboxBackendProtocol). "
    "To enable execution, provide a default backend that implements SandboxBackendProtocol."
)
"""The seeds' words."""

Group = list[tuple[int, Routed]]
"""The items of a batch that one backend is asked for, with their places in the batch."""

Response = TypeVar("Response", FileUploadResponse, FileDownloadResponse)
Changed = TypeVar("Changed", WriteResult, EditResult, DeleteResult)


class CompositeBackend(BackendProtocol):
    """See the module's docstring.

    Args:
        default: the backend of every path that no route holds, or a factory.
        routes: prefix → backend or factory. `memories`, `/memories` and `/memories/` mean the same.

    Attributes:
        default: as given (`attaching.familiar` says what is taken for another).
        routes: prefix with a `/` at both ends → backend, the longest prefix first.
        given: normalised prefix → backend, as given.

    Raises:
        PathError: a prefix is refused, or two mean the same.
        TypeError: a route is None.
    """

    def __new__(cls, default: Any, routes: Mapping[str, Any] | None = None) -> CompositeBackend:
        """deepagents asks the class whether a backend can execute or keeps files in the graph's state, so the class of
        a composite that does has the words for it among its bases."""
        parts = [familiar(part) for part in (default, *(routes or {}).values())]
        bases = [
            *([_Unmade] if any(is_factory(part) for part in parts) else []),
            *([_Executing] if supports_execution(parts[0]) else []),
            *([_InGraph] if any(keeps_in_graph(part) for part in parts) else []),
        ]
        return super().__new__(_class((*bases, cls)) if bases else cls)

    def __init__(self, default: Any, routes: Mapping[str, Any] | None = None) -> None:
        table = RouteTable(routes or {})
        default = familiar(default)
        self.given = {paths.normalise_prefix(prefix): familiar(backend) for prefix, backend in (routes or {}).items()}
        for prefix, backend in {ROOT: default, **self.given}.items():
            if backend is None:
                raise TypeError(f"The backend at '{prefix}' is None")
        self.default = default
        self.routes: dict[str, Any] = {}
        faces: dict[AgentPath | None, AgentFace] = {None: TellingFace(default, "The default backend")}
        for prefix in table.prefixes:
            backend = seated(self.given[prefix], prefix, default)
            self.routes[prefix + "/"] = backend
            faces[prefix] = TellingFace(backend, f"Route '{prefix}/'")
        self._table = table
        self._routing = Routing(table, faces)
        self._tree = TreeSearch(self._routing)

    def _where(self) -> str:
        routes = "".join(f", {prefix}: {backend!r}" for prefix, backend in self.routes.items())
        return f"{self.default!r}{routes}"

    @property
    def sorted_routes(self) -> list[tuple[str, Any]]:
        """The routes, the longest prefix first (seeds)."""
        return list(self.routes.items())

    def mounts(self) -> dict[AgentPath, Any]:
        """Prefix → backend, the default at `/`, with nested composites taken apart: what a kernel mounts where."""
        table: dict[AgentPath, Any] = {}
        for prefix, backend in {"/": self.default, **self.routes}.items():
            own = AgentPath(prefix.removesuffix("/"))
            inner = backend.mounts() if isinstance(backend, CompositeBackend) else {ROOT: backend}
            for path, part in inner.items():
                outer = AgentPath(own + path.removesuffix("/")) or ROOT
                if (self._table.route(outer)[0] or "") == own:  # else one of our routes covers it
                    table[outer] = part
        return table

    def guard(self, guards: Mapping[AgentPath, Guard]) -> None:
        """From now on, have calls into these backends go through these guards; prefixes are those of `mounts`."""
        for prefix, face in self._routing.faces.items():
            own = prefix or ROOT
            if isinstance(face.backend, CompositeBackend):
                below = {path: guard for path, guard in guards.items() if paths.is_below(path, own)}
                face.backend.guard({AgentPath(path[len(prefix or "") :] or ROOT): below[path] for path in below})
            else:
                face.guard = guards.get(own)

    def resolve(self, runtime: Any) -> CompositeBackend:
        """This composite with every factory called with the runtime; itself when there is none.

        Raises:
            TypeError: a factory gave no backend.
        """
        default = made(self.default, runtime)
        routes: dict[str, Any] = {prefix: made(backend, runtime) for prefix, backend in self.given.items()}
        if default is self.default and all(routes[prefix] is given for prefix, given in self.given.items()):
            return self
        return CompositeBackend(default, routes)

    def __call__(self, runtime: Any) -> CompositeBackend:
        """`resolve`: a composite is a factory of itself, so it can be given wherever a factory can."""
        return self.resolve(runtime)

    # -- one path ----------------------------------------------------------------------------------------------

    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        try:
            routed = self._routing.route(file_path)
            if self._table.pinned(routed.outer):
                return ReadResult(error=f"File '{file_path}': {os.strerror(errno.EISDIR)}")
        except PathError as error:
            return ReadResult(error=str(error))
        result = routed.face.read(routed.inner, offset, limit)
        if result.error is not None:
            result.error = routed.words(result.error)
        return result

    def write(self, file_path: str, content: str) -> WriteResult:
        try:
            routed = self._routing.route(file_path)
            if self._table.pinned(routed.outer):
                return WriteResult(error=f"Error writing file '{file_path}': {os.strerror(errno.EISDIR)}")
        except PathError as error:
            return WriteResult(error=str(error))
        return self._changed(routed, routed.face.write(routed.inner, content))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        try:
            routed = self._routing.route(file_path)
            if self._table.pinned(routed.outer):
                return EditResult(error=f"Error editing file '{file_path}': {os.strerror(errno.EISDIR)}")
        except PathError as error:
            return EditResult(error=str(error))
        result = routed.face.edit(routed.inner, old_string, new_string, replace_all)
        return self._changed(routed, result, old_string)

    def delete(self, file_path: str) -> DeleteResult:
        try:
            routed = self._routing.route(file_path)
            if self._table.pinned(routed.outer):
                return DeleteResult(error=f"Error deleting '{file_path}': {os.strerror(errno.EBUSY)}")
        except PathError as error:
            return DeleteResult(error=str(error))
        return self._changed(routed, routed.face.delete(routed.inner))

    def move(self, source: str, destination: str) -> MoveResult:
        """Rename; atomic inside a route whose backend has `move`. Across routes, or without one: `transfer.py`."""
        doing = f"Error moving '{source}' to '{destination}'"
        try:
            old, new = self._routing.route(source), self._routing.route(destination)
        except PathError as error:
            return MoveResult(error=str(error))
        if self._table.pinned(old.outer) or self._table.pinned(new.outer):
            return MoveResult(error=f"{doing}: {os.strerror(errno.EBUSY)}")
        if paths.is_below(new.outer, old.outer) and new.outer != old.outer:
            return MoveResult(error=f"{doing}: A directory can't be moved into itself")
        for face in (old.face, new.face):
            if face.refusal is not None or face.lacks("ls", "ls_info"):
                return MoveResult(error=f"{doing}: {face.refusal or f'{face.name} does not support ls'}")
        if old.face.backend is not new.face.backend or old.face.lacks("move"):
            return self._transfer(old, new, source, destination)
        result = old.face.move(old.inner, new.inner)
        update = result.files_update or {}
        removed = {path: record for path, record in update.items() if record is None}
        stored = {path: record for path, record in update.items() if record is not None}
        return self._moved(old, new, removed, stored, new.words(old.words(result.error)))

    def _transfer(self, old: Routed, new: Routed, source: str, destination: str) -> MoveResult:
        from fusebackend.composite.transfer import transfer

        error: str | None = None
        removed: dict[str, Any] = {}
        stored: dict[str, Any] = {}
        try:
            removed, stored = transfer(old.face, old.inner, new.face, new.inner)
        except FileNotFoundError:
            error = f"Error: File '{source}' not found"
        except FileExistsError:
            error = f"Cannot move to {destination} because it already exists."
        except (OSError, PathError) as failure:
            why = getattr(failure, "strerror", None) or failure
            error = f"Error moving '{source}' to '{destination}': {why}"
        return self._moved(old, new, removed, stored, error)

    def _moved(
        self, old: Routed, new: Routed, removed: dict[str, Any], stored: dict[str, Any], error: str | None
    ) -> MoveResult:
        update = {**self._merged(old, removed), **self._merged(new, stored)}
        return MoveResult(error=error, path=new.outer if error is None else None, files_update=update or None)

    # -- directories and searches ------------------------------------------------------------------------------

    def ls(self, path: str) -> LsResult:
        try:
            return self._tree.ls(self._routing.route(path))
        except PathError as error:
            return LsResult(error=str(error))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        limit = None if max_count is None else max(0, max_count)
        try:
            with budget.granted():
                return self._tree.grep(self._routing.scope(path), pattern, glob, limit)
        except (PathError, GlobError) as error:
            return GrepResult(error=str(error))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        try:
            with budget.granted():
                return self._tree.glob(self._routing.scope(path), pattern)
        except (PathError, GlobError) as error:
            return GlobResult(error=str(error))

    # -- batches -----------------------------------------------------------------------------------------------

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """One call per backend; answers in the order and with the paths given."""
        answers, groups = self._grouped([path for path, _ in files], FileUploadResponse)

        def upload(group: Group) -> list[FileUploadResponse]:
            return group[0][1].face.upload_files([(routed.inner, files[index][1]) for index, routed in group])

        for group, responses in _asked("upload_files", groups, upload, FileUploadResponse):
            for (index, routed), response in zip(group, responses, strict=True):
                answers[index] = FileUploadResponse(
                    path=files[index][0],
                    error=routed.words(response.error),
                    files_update=self._merged(routed, response.files_update) or None,
                )
        return answers

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """One call per backend; answers in the order and with the paths given."""
        answers, groups = self._grouped(paths, FileDownloadResponse)

        def download(group: Group) -> list[FileDownloadResponse]:
            return group[0][1].face.download_files([routed.inner for _, routed in group])

        for group, responses in _asked("download_files", groups, download, FileDownloadResponse):
            for (index, routed), response in zip(group, responses, strict=True):
                answers[index] = FileDownloadResponse(
                    path=paths[index], content=response.content, error=routed.words(response.error)
                )
        return answers

    def upload_from(self, path: str, file: IO[bytes]) -> FileUploadResponse:
        """`upload_files` of one that is in a file, without holding it all in memory where its backend can do that."""
        answers, groups = self._grouped([path], FileUploadResponse)
        for ((_, routed),) in groups:
            response = routed.face.upload_from(routed.inner, file)
            update = self._merged(routed, response.files_update) if response.files_update else None
            return FileUploadResponse(path=path, error=routed.words(response.error), files_update=update)
        answer: FileUploadResponse = answers[0]
        return answer

    def download_to(self, path: str, file: IO[bytes]) -> FileDownloadResponse:
        """`download_files` of one file into another, which is empty, without holding all of it in memory where its
        backend can do that. The answer has no content."""
        answers, groups = self._grouped([path], FileDownloadResponse)
        for ((_, routed),) in groups:
            response = routed.face.download_to(routed.inner, file)
            return FileDownloadResponse(path=path, error=routed.words(response.error))
        answer: FileDownloadResponse = answers[0]
        return answer

    def _grouped(self, wanted: list[str], kind: Callable[..., Any]) -> tuple[list[Any], list[Group]]:
        """Answers for the paths that no backend is asked for, and the others by backend, with their places."""
        answers: list[Any] = [None] * len(wanted)
        groups: dict[int, list[tuple[int, Routed]]] = {}
        for index, path in enumerate(wanted):
            try:
                routed = self._routing.route(path)
            except PathError:
                answers[index] = kind(path=path, error=errors.INVALID_PATH)
                continue
            if self._table.pinned(routed.outer):
                answers[index] = kind(path=path, error=errors.IS_DIRECTORY)
            else:
                groups.setdefault(id(routed.face.backend), []).append((index, routed))
        return answers, list(groups.values())

    # -- execution ---------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The default backend's.

        Raises:
            NotImplementedError: it can't execute, so it has none.
        """
        return str(self._executing().id)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command in the default backend; no route is visible to it.

        Raises:
            NotImplementedError: it can't, in the seeds' words.
        """
        run: Callable[..., ExecuteResponse] = self._executing().execute
        return run(command, **accepted(run, {"timeout": timeout}))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """`execute`, awaitable under asyncio and trio; the default's own `aexecute` where it has one. Cancelled, it
        ends at once, and the command is killed if the default can do that."""
        import sniffio

        from fusebackend.base.awaiting import aside

        backend = self._executing()
        run = AgentFace(backend, "").coroutine("execute", sniffio.current_async_library())
        if run is None:
            return await aside(backend, "execute", lambda: self.execute(command, timeout=timeout))
        answer: ExecuteResponse = await run(command, **accepted(run, {"timeout": timeout}))
        return answer

    def _executing(self) -> Any:
        if not supports_execution(self.default):
            raise NotImplementedError(NO_EXECUTION)
        return self.default

    # -- changes -----------------------------------------------------------------------------------------------

    def _changed(self, routed: Routed, result: Changed, old_string: str = "") -> Changed:
        """A result in the agent's words, with its update merged."""
        result.error = routed.words(result.error, besides=old_string)
        if result.error is None:
            result.path = routed.outer
            result.files_update = self._merged(routed, result.files_update) or None
        return result

    def _merged(self, routed: Routed, update: Mapping[str, Any] | None) -> dict[str, Any]:
        """An update with the agent's paths, merged into the default's state if it has one."""
        if not update or getattr(routed.face.backend, "is_table", False):  # a named table is no part of a state
            return {}
        shown = self._routing.outer_keys(routed, update)
        runtime = None if is_factory(self.default) else getattr(self.default, "runtime", None)
        if runtime is None:
            return shown
        backend = routed.face.backend
        if not isinstance(backend, StateBackend) and getattr(backend, "runtime", None) is runtime:
            shown = dict(update)  # see the module's docstring
        try:
            if isinstance(self.default, StateBackend):
                self.default.apply(shown)
            else:
                apply_files_update(runtime, shown)
        except (AttributeError, TypeError) as error:
            log.warning("the default's state takes no update, so only the result carries it: %s", error)
        return shown


def _asked(
    verb: str, groups: list[Group], ask: Callable[[Group], list[Response]], kind: Callable[..., Response]
) -> Iterator[tuple[Group, list[Response]]]:
    """What each backend answers. Those whose own `a…` verb is awaited are asked at the same time, and when the caller
    no longer waits, no further one is asked."""
    awaited = [group for group in groups if group[0][1].face.coroutine(verb, caller.library())]
    yield from zip(awaited, together([functools.partial(ask, group) for group in awaited], MAX_AWAITED), strict=True)
    for group in groups:
        if group in awaited:
            continue
        if budget.current().cancelled:
            yield group, [kind(path=routed.outer, error="cancelled") for _, routed in group]
        else:
            yield group, ask(group)


# -- what deepagents asks the class ----------------------------------------------------------------------------


@registered_with("deepagents.backends.protocol", "SandboxBackendProtocol")
class _Executing:
    """The default runs commands: `create_deep_agent` gives the agent a tool for them."""


@registered_with("deepagents.backends.state", "StateBackend")
class _InGraph:
    """Files are in the graph's state: `create_deep_agent` gives the state a key for them."""


class _Unmade:
    """Some part is a factory: inside of a running graph, each verb is that of the composite its runtime makes."""


def _in_its_graph(verb: str) -> Callable[..., Any]:
    plain = getattr(CompositeBackend, verb)

    @functools.wraps(plain)
    def asked(self: CompositeBackend, *args: Any, **options: Any) -> Any:
        if graph_config() is None:
            return plain(self, *args, **options)
        return getattr(self.resolve(GraphRuntime()), verb)(*args, **options)

    return asked


for _verb in AGENT_VERBS:
    setattr(_Unmade, _verb, _in_its_graph(_verb))


@functools.cache
def _class(bases: tuple[type, ...]) -> type[CompositeBackend]:
    return type(bases[-1].__name__, bases, {"__module__": bases[-1].__module__})
