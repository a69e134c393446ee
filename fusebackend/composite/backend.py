"""`CompositeBackend`: one tree of files out of a default backend and others attached at prefixes.

Routes are mount points, with the same semantics here as on the mount (`route_table.py` decides what belongs where):
prefixes are checked when the composite is made, paths are normalised before they are routed, a prefix and every
directory on the way to it are directories of their parent, and hide files of the backend underneath in every verb. grep
and glob below a path include every route below it.

A route may be any object with an agent face, in any dialect (`dialects/agent_face.py`), or a factory: then the
composite is called with a runtime and returns one with backends. Until then, verbs that reach the factory say so,
unless a LangGraph graph is running here: then each verb makes the routes with that graph's runtime.

Failures stay where they happen. A backend that raises gives an error that names its route. When one of several fails
in a grep or a glob, the matches of the others are returned with `truncated` set and no error, and the failure is
logged; only when nothing was found is it the error of the result.

A `files_update` of a state-backed route comes back with the paths an agent sees, and is merged into the default's
`runtime.state["files"]` when the default has one. A `StateBackend` that shares its state with the default keeps its
files there under those same paths. A foreign state-backed backend over the default's own runtime looks its files up by
inner paths; for that one alone the update keeps them, as in the seeds.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar, Unpack

from fusebackend.base import budget, caller, paths
from fusebackend.base.paths import ROOT, AgentPath, PathError
from fusebackend.composite import search
from fusebackend.composite.route_table import PrefixTable
from fusebackend.composite.router import RoutedPath, Routing, face_of
from fusebackend.databases.langgraph import GraphRuntime, graph_config
from fusebackend.dialects.agent_face import AgentFace, Guard, accepted, has_agent_face, is_factory, is_named_factory
from fusebackend.dialects.answers import with_version
from fusebackend.protocol import (
    AGENT_VERBS,
    READ_LIMIT_LINES,
    BackendProtocol,
    Changed,
    Condition,
    Conditions,
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
    Verb,
    WriteResult,
    conditions_of,
    verbs,
)
from fusebackend.protocol.registered import registered_with
from fusebackend.remote.files_update import apply_files_update
from fusebackend.remote.parallel import each

log = logging.getLogger(__name__)

NO_EXECUTION = (
    "Default backend doesn't support command execution (SandboxBackendProtocol). "
    "To enable execution, provide a default backend that implements SandboxBackendProtocol."
)
"""The seeds' words."""

Group = list[tuple[int, RoutedPath]]
"""The items of a batch that one backend is asked for, with their places in the batch."""

RUNTIME_NAMES = ("runtime", "rt", "store_or_runtime")
"""Parameters of a factory with options that get the runtime, unless an option has that name."""

Response = TypeVar("Response", FileUploadResponse, FileDownloadResponse)
Record = TypeVar("Record")


class CompositeBackend(BackendProtocol):
    """See the module's docstring.

    Args:
        default: the backend of every path that no route holds, or a factory.
        routes: prefix → backend or factory. `memories`, `/memories` and `/memories/` mean the same.

    Attributes:
        default: as given, or as `unwrapped` returns it.
        routes: prefix with a `/` at both ends → backend, the longest prefix first.
        given: normalised prefix → backend, as given.

    Raises:
        PathError: a prefix is refused, or two mean the same.
        TypeError: a route is None.
    """

    def __new__(cls, default: Any, routes: Mapping[str, Any] | None = None) -> CompositeBackend:
        """deepagents asks the class whether a backend can execute or keeps files in the graph's state, so the class of
        a composite that does has the words for it among its bases."""
        parts = [unwrapped(part) for part in (default, *(routes or {}).values())]
        bases = [
            *([_Unmade] if any(is_factory(part) for part in parts) else []),
            *([_ExecutingComposite] if supports_execution(parts[0]) else []),
            *([_InGraph] if any(keeps_in_graph(part) for part in parts) else []),
        ]
        return super().__new__(_class((*bases, cls)) if bases else cls)

    def __init__(self, default: Any, routes: Mapping[str, Any] | None = None) -> None:
        table = PrefixTable(routes or {})
        default = unwrapped(default)
        self.given = {paths.normalise_prefix(prefix): unwrapped(backend) for prefix, backend in (routes or {}).items()}
        for prefix, backend in {ROOT: default, **self.given}.items():
            if backend is None:
                raise TypeError(f"The backend at '{prefix}' is None")
        self.default = default
        self.routes: dict[str, Any] = {}
        faces: dict[AgentPath | None, AgentFace] = {None: face_of(default, "The default backend")}
        for prefix in table.prefixes:
            backend = beside(self.given[prefix], default, prefix)
            self.routes[prefix + "/"] = backend
            faces[prefix] = face_of(backend, f"Route '{prefix}/'")
        self._routing = Routing(table, faces)
        self.note_hidden: Callable[[Sequence[AgentPath]], Callable[[], None]] = lambda paths: lambda: None
        """See `transfer.NoteHidden`; paths are those that an agent sees."""

    def _where(self) -> str:
        routes = "".join(f", {prefix}: {backend!r}" for prefix, backend in self.routes.items())
        return f"{self.default!r}{routes}"

    @property
    def sorted_routes(self) -> list[tuple[str, Any]]:
        """The routes, the longest prefix first (seeds)."""
        return list(self.routes.items())

    @property
    def in_graph(self) -> bool:
        return any(keeps_in_graph(part) for part in (self.default, *self.routes.values()))

    @property
    def can_execute(self) -> bool:
        return supports_execution(self.default)

    def beside(self, other: Any, prefix: str) -> CompositeBackend:
        base = beside(self.default, other, prefix)
        routes: dict[str, Any] = {path: beside(part, other, prefix + path) for path, part in self.given.items()}
        same = base is self.default and all(routes[path] is part for path, part in self.given.items())
        return self if same else CompositeBackend(base, routes)

    def mounts(self) -> dict[AgentPath, Any]:
        """Return prefix → backend, the default at `/`, with nested composites taken apart: the mount points of the
        kernel face."""
        table: dict[AgentPath, Any] = {}
        for prefix, backend in {"/": self.default, **self.routes}.items():
            own = AgentPath(prefix.removesuffix("/"))
            inner = backend.mounts() if isinstance(backend, CompositeBackend) else {ROOT: backend}
            for path, part in inner.items():
                outer = AgentPath(own + path.removesuffix("/")) or ROOT
                if (self._routing.table.route(outer)[0] or "") == own:  # else one of our routes covers it
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
        return self._at(verbs.READ, file_path, offset, limit)

    def write(
        self, file_path: str, content: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> WriteResult:
        return self._at(verbs.WRITE, file_path, content, if_version=if_version, if_absent=if_absent)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        if_version: str | None = None,
    ) -> EditResult:
        return self._at(
            verbs.EDIT, file_path, old_string, new_string, replace_all, besides=old_string, if_version=if_version
        )

    def delete(self, file_path: str, *, if_version: str | None = None) -> DeleteResult:
        is_directory = isinstance(file_path, str) and file_path.endswith("/")
        return self._at(verbs.DELETE, file_path, is_directory=is_directory, if_version=if_version)

    def _at(
        self, verb: Verb[Record], path: str, *given: Any, method: str = "", besides: str = "", **options: Any
    ) -> Record:
        """Ask the backend of a path; its record comes back with the agent's paths, and its update merged.

        Args:
            given, options: the other arguments of the verb.
            method: does it, if not the one of the verb's name.
            besides: text of the agent's that an error may quote, see `RoutedPath.words`.
        """
        try:
            routed = self._routing.route(path, verb)
        except (PathError, OSError) as error:
            return verb.refused(error, path)
        answer: Record = getattr(routed.face, method or verb.name)(routed.inner, *given, **options)
        return self._shown(verb, routed, answer, path, besides)

    def _shown(self, verb: Verb[Record], routed: RoutedPath, answer: Record, given: str, besides: str = "") -> Record:
        record: Any = answer
        done = record.error is None
        if not done:
            record.error = routed.words(record.error, besides=besides)
        if verb.batch:
            record.path = given
        elif verb.changes and done:
            record.path = routed.outer
        if verb.changes and (done or verb.batch):
            record.files_update = (record.files_update and self._merged(routed, record.files_update)) or None
        return answer

    @verbs.MOVE.answers()
    def move(
        self, source: str, destination: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> MoveResult:
        """Rename; atomic inside a route if its backend has `move`. Across routes, or without one: `transfer.py`."""
        old, new = (self._routing.route(path, verbs.MOVE) for path in (source, destination))
        if paths.is_below(new.outer, old.outer) and new.outer != old.outer:
            raise OSError(errno.EINVAL, "A directory can't be moved into itself")
        for face in (old.face, new.face):
            if face.refusal is not None or face.lacks("ls", "ls_info"):
                raise OSError(errno.ENOTSUP, face.refusal or f"{face.name} does not support ls")
        when = Conditions(if_version=if_version, if_absent=if_absent)
        if old.face.backend is not new.face.backend or old.face.lacks("move"):
            return self._transfer(old, new, when)
        result = old.face.move(old.inner, new.inner, **when)
        update = result.files_update or {}
        removed = {path: record for path, record in update.items() if record is None}
        stored = {path: record for path, record in update.items() if record is not None}
        moved = self._moved(old, new, removed, stored, new.words(old.words(result.error)))
        moved.version = result.version
        return moved

    def _transfer(self, old: RoutedPath, new: RoutedPath, when: Conditions) -> MoveResult:
        """Conditions are compared before the first copy; what comes later is a conflict of the copy (`transfer.py`)."""
        from fusebackend.composite.transfer import HiddenNames, transfer

        def note(names: HiddenNames) -> Callable[[], None]:
            given = ((old.prefix, names.source), (new.prefix, names.target))
            return self.note_hidden([AgentPath((prefix or "") + path) for prefix, path in given if path is not None])

        old.face.require(old.inner, Condition.of(when.get("if_version")))
        try:
            removed, stored = transfer(old.face, old.inner, new.face, new.inner, note)
        except FileExistsError:
            if when.get("if_absent"):
                raise Changed(None, is_there=True, of_target=True) from None
            raise
        return self._moved(old, new, removed, stored)

    def remove_hidden(self, path: str) -> str | None:
        """Remove what a killed move has left under a hidden name, which `note_hidden` was given. Returns why it is
        still there.

        Raises:
            OSError: the backend does not answer.
        """
        from fusebackend.composite.transfer import remove_hidden

        routed = self._routing.route(path)
        return routed.words(remove_hidden(routed.face, routed.inner))

    def _moved(
        self,
        old: RoutedPath,
        new: RoutedPath,
        removed: dict[str, Any],
        stored: dict[str, Any],
        error: str | None = None,
    ) -> MoveResult:
        update = {**self._merged(old, removed), **self._merged(new, stored)}
        return MoveResult(error=error, path=new.outer if error is None else None, files_update=update or None)

    # -- directories and searches ------------------------------------------------------------------------------

    @verbs.LS.answers()
    def ls(self, path: str) -> LsResult:
        return search.ls(self._routing, self._routing.route(path))

    @verbs.GREP.answers()
    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        limit = None if max_count is None else max(0, max_count)
        with budget.granted():
            return search.grep(self._routing, self._routing.scope(path), pattern, glob, limit)

    @verbs.GLOB.answers()
    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        with budget.granted():
            return search.glob(self._routing, self._routing.scope(path), pattern)

    # -- batches -----------------------------------------------------------------------------------------------

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        """One call per backend; answers in the order and with the paths given."""
        conditions = list(conditions_of(len(files), if_version, if_absent))

        def upload(group: Group) -> list[FileUploadResponse]:
            given = [conditions[index] for index, _ in group]
            items = [(routed.inner, files[index][1]) for index, routed in group]
            return group[0][1].face.upload_files(items, given)

        return self._batched(verbs.UPLOAD_FILES, [path for path, _ in files], upload)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """One call per backend; answers in the order and with the paths given."""

        def download(group: Group) -> list[FileDownloadResponse]:
            return [*map(with_version, group[0][1].face.download_files([routed.inner for _, routed in group]))]

        return self._batched(verbs.DOWNLOAD_FILES, paths, download)

    def upload_from(self, path: str, file: IO[bytes], **when: Unpack[Conditions]) -> FileUploadResponse:
        """`upload_files` of one file, from an open file, without holding it all in memory where its backend can do
        that."""
        return self._at(verbs.UPLOAD_FILES, path, file, method="upload_from", **when)

    def download_to(self, path: str, file: IO[bytes]) -> FileDownloadResponse:
        """`download_files` of one file into another, which is empty, without holding all of it in memory where its
        backend can do that. The answer has no content."""
        return self._at(verbs.DOWNLOAD_FILES, path, file, method="download_to")

    def _batched(
        self, verb: Verb[Response], wanted: list[str], ask: Callable[[Group], list[Response]]
    ) -> list[Response]:
        """The answers for paths, of which each backend is asked for its own."""
        answers: dict[int, Response] = {}
        groups: dict[int, Group] = {}
        for index, path in enumerate(wanted):
            try:
                routed = self._routing.route(path, verb)
            except (PathError, OSError) as error:
                answers[index] = verb.refused(error, path)
                continue
            groups.setdefault(id(routed.face.backend), []).append((index, routed))
        for group, found in _asked(verb, list(groups.values()), ask):
            for (index, routed), answer in zip(group, found, strict=True):
                answers[index] = self._shown(verb, routed, answer, wanted[index])
        return [answers[index] for index in range(len(wanted))]

    def real_paths(self, wanted: list[str]) -> list[str | None]:
        """One question for each backend. A link leads nowhere out of its route."""
        answers: list[str | None] = [None] * len(wanted)
        groups: dict[AgentPath | None, list[tuple[int, RoutedPath]]] = {}
        for index, path in enumerate(wanted):
            with contextlib.suppress(PathError):
                routed = self._routing.route(path)
                groups.setdefault(routed.prefix, []).append((index, routed))
        for prefix, group in groups.items():
            found = group[0][1].face.real_paths([routed.inner for _, routed in group])
            for (index, _), real in zip(group, found, strict=True):
                answers[index] = None if real is None else paths.normalise(f"{prefix or ''}{real}")
        return answers

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

    def _merged(self, routed: RoutedPath, update: Mapping[str, Any] | None) -> dict[str, Any]:
        """An update with the agent's paths, merged into the default's state if it has one."""
        if not update or getattr(routed.face.backend, "is_table", False):  # a named table is no part of a state
            return {}
        prefix = routed.prefix or ""
        shown = {prefix + (key if key.startswith("/") else f"/{key}"): record for key, record in update.items()}
        runtime = None if is_factory(self.default) else getattr(self.default, "runtime", None)
        if runtime is None:
            return shown
        backend = routed.face.backend
        given = self.given.get(routed.prefix or ROOT, self.default)
        if backend is given and getattr(backend, "runtime", None) is runtime:
            shown = dict(update)  # see the module's docstring
        try:
            if not (isinstance(self.default, BackendProtocol) and self.default.apply_update(shown)):
                apply_files_update(runtime, shown)
        except (AttributeError, TypeError) as error:
            log.warning("the default's state takes no update, so only the result carries it: %s", error)
        return shown


def _asked(
    verb: Verb[Response], groups: list[Group], ask: Callable[[Group], list[Response]]
) -> Iterator[tuple[Group, list[Response]]]:
    """Yield the answers of each backend. Backends with an `a…` verb of their own are asked at the same time. When the
    caller has cancelled, no further backend is asked."""
    awaited = [group for group in groups if group[0][1].face.coroutine(verb.name, caller.library())]
    yield from zip(awaited, each(ask, awaited, search.MAX_AWAITED), strict=True)
    for group in groups:
        if group in awaited:
            continue
        if budget.current().cancelled:
            yield group, [verb.record(path=routed.outer, error="cancelled") for _, routed in group]
        else:
            yield group, ask(group)


# -- backends as they are given ----------------------------------------------------------------------------------


def unwrapped(backend: Any) -> Any:
    """Return the backend of this package behind an exported one, and deepagents' composite as one of this package, so
    that each of its routes is a mount point. Any other backend is returned as it is.

    Raises:
        PathError: a route of that composite has a prefix that this package refuses.
    """
    exporting = sys.modules.get("fusebackend.integrations.exported")
    if exporting is not None and isinstance(backend, exporting.Exported):
        return backend.backend
    kind = type(backend)
    if (kind.__module__, kind.__qualname__) == ("deepagents.backends.composite", "CompositeBackend"):
        return CompositeBackend(backend.default, backend.routes)
    return backend


def beside(backend: Any, default: Any, prefix: str) -> Any:
    """Return a route's backend as it is at a prefix; see `BackendProtocol.beside`."""
    return backend.beside(default, prefix) if isinstance(backend, BackendProtocol) else backend


def resolve(backend: Any, runtime: Any = None) -> Any:
    """Return a backend from a backend or a factory of one (the CMDC seed's `resolve`).

    Args:
        backend: a backend, which is itself; a class or function, called with the runtime; a composite, whose factories
            are called; or `(factory, options)`, also with `"package.module:factory"` in place of the factory: called
            with the options, and with the runtime if it has a parameter for it (`RUNTIME_NAMES`).
        runtime: what a factory gets; LangGraph's inside of a graph.

    Raises:
        TypeError: this is no backend, and makes none.
        ImportError, AttributeError: there is no such module, or nothing of that name in it.
    """
    found = made(backend, runtime)
    _require_agent_face(found)
    return found


def adopted(backend: Any, advice: str) -> CompositeBackend:
    """Return a backend as a composite, which it may be.

    Args:
        advice: what to do with a factory.

    Raises:
        TypeError: it is a factory, or no backend.
    """
    backend = unwrapped(backend)
    if isinstance(backend, CompositeBackend):
        return backend
    if is_factory(backend):
        name = getattr(backend, "__name__", type(backend).__name__)
        raise TypeError(f"'{name}' makes backends and is none: {advice}")
    _require_agent_face(backend)
    return CompositeBackend(backend)


def _require_agent_face(found: Any) -> None:
    if not has_agent_face(found):
        raise TypeError(f"a {type(found).__name__} is no backend: it can't list or fetch files")


def made(backend: Any, runtime: Any) -> Any:
    """Return the backend that a factory makes for a runtime; a backend is returned as it is.

    Raises:
        TypeError: a factory gave no backend.
    """
    if isinstance(backend, CompositeBackend):
        return backend.resolve(runtime)
    if not is_factory(backend):
        return backend
    found = unwrapped(_called(backend, runtime) if is_named_factory(backend) else backend(runtime))
    if found is None or is_factory(found):
        raise TypeError(f"The factory {backend!r} gave {found!r} and no backend")
    return found.resolve(runtime) if isinstance(found, CompositeBackend) else found


def _called(named: tuple[Any, Mapping[str, Any]], runtime: Any) -> Any:
    """Call a factory with options."""
    factory, options = named
    if isinstance(factory, str):
        module, _, path = factory.partition(":")
        factory = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    try:
        known: Iterable[str] = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some C functions have none
        known = ()
    given = {name: runtime for name in RUNTIME_NAMES if name in known and name not in options}
    return factory(**given, **options)


def keeps_in_graph(backend: Any) -> bool:
    """Return True if files of this backend may be in the state of a running LangGraph graph; a factory's may."""
    if isinstance(backend, BackendProtocol):
        return backend.in_graph
    module = sys.modules.get("deepagents.backends.state")
    return is_factory(backend) or (module is not None and isinstance(backend, module.StateBackend))


def supports_execution(backend: Any) -> bool:
    """Return True if this backend runs commands, as `SandboxBackendProtocol` or any object with `execute`."""
    if isinstance(backend, BackendProtocol):
        return backend.can_execute
    return not is_factory(backend) and callable(getattr(backend, "execute", None))


# -- what deepagents asks the class ----------------------------------------------------------------------------


@registered_with("deepagents.backends.protocol", "SandboxBackendProtocol")
class _ExecutingComposite:
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


for _verb in (*AGENT_VERBS, "real_paths"):
    setattr(_Unmade, _verb, _in_its_graph(_verb))


@functools.cache
def _class(bases: tuple[type, ...]) -> type[CompositeBackend]:
    return type(bases[-1].__name__, bases, {"__module__": bases[-1].__module__})
