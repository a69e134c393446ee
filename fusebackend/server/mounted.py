"""`MountedBackend`: the files of a live mount through the agent face, and verbs of live mounts.

The verbs go to the backend that is mounted, and to the trees directory where it is named (`trees.py`). `execute` runs
where the default backend runs commands, else in a sandbox of the mount; `stat`, `invalidate`, `watch` and `status`
speak of the mount. Both `server.in_process.Mount` and the control server end here.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat as stat_module
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast

from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.base import budget, errors, paths
from fusebackend.base.paths import ROOT, AgentPath, PathError, normalise, to_name
from fusebackend.config import MetricsOptions
from fusebackend.control.verbs import SPOOLED_BYTES, ServedMount
from fusebackend.linux.command import Command
from fusebackend.linux.mount_table import mounts_below
from fusebackend.protocol import (
    READ_LIMIT_LINES,
    READING,
    SERVED,
    Actor,
    ApprovalInfo,
    Attr,
    BlameResult,
    BranchInfo,
    CallInfo,
    ChangeInfo,
    Conditions,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    Explained,
    FileDownloadResponse,
    FileRange,
    FileUploadResponse,
    ForgetResult,
    GlobResult,
    GrepResult,
    LimitInfo,
    LsResult,
    MergeResult,
    MoveResult,
    PrunedThread,
    PruneResult,
    ReadResult,
    RestoreResult,
    SnapshotInfo,
    SnapshotVolume,
    SpaceInfo,
    StatResult,
    StatsResult,
    ThreadSize,
    UndoResult,
    Usage,
    Verb,
    VerifyResult,
    ViewInfo,
    Volume,
    WriteResult,
    acting,
    conditions_of,
    current_actor,
    options_of,
    verbs,
)
from fusebackend.protocol.records import FILE_TYPES
from fusebackend.protocol.served import LISTED_CHANGES, LOGGED_CALLS, STAT_COLUMNS, DiffForm, OnOutput
from fusebackend.rules import met
from fusebackend.server.approvals import KEPT_OUTPUT, MAX_CHANGE_BYTES, Change, InterruptedVerbs, info_of
from fusebackend.server.forget import Forgetting
from fusebackend.server.history import MountHistory, said
from fusebackend.server.moves import JOURNAL as MOVES_JOURNAL
from fusebackend.server.moves import MoveJournal
from fusebackend.server.rules import shown_event
from fusebackend.server.trees import SNAPSHOTS, TreesFace
from fusebackend.trees.automatic import time_of
from fusebackend.trees.branches import Branches
from fusebackend.trees.checkouts import Checkouts
from fusebackend.trees.merge.merges import Merges
from fusebackend.trees.merge.run import MainTree
from fusebackend.trees.refs import Refs
from fusebackend.trees.restore import Restores
from fusebackend.trees.snapshots import Parts, Snapshots
from fusebackend.trees.states import States
from fusebackend.urls import SCHEMES
from fusebackend.vfs.watch.async_watch import AsyncWatch
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.contents import version_of
from fusebackend.volumes.walk import resolve

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.history.recorder import Recorder
    from fusebackend.history.requests import Request
    from fusebackend.history.steps import Verb as Kind
    from fusebackend.server.assemble import MountParts
    from fusebackend.server.recording import Recording
    from fusebackend.trees.automatic import AutomaticSnapshots
    from fusebackend.vfs.junctions import Route
    from fusebackend.vfs.watch.feed import Watch

log = logging.getLogger(__name__)

R = TypeVar("R")

NO_HISTORY = "this mount keeps no history of calls: mount it without '-o history=off', from Python with history=\"on\""

KINDS: Mapping[str, Kind] = {"delete": "remove", "remove_directory": "remove", "move": "move"}
"""What verbs do to the paths that they name, for the history, if it is not `put`."""

STAT_BYTES = 2048
"""Memory of a `StatResult`, with its part of an answer."""


class Absent:
    """In the place of a part that a mount does not have, such as snapshots, branches or a history. Nothing is in it and
    nothing is open, so listings are empty; whatever else is asked of it is ENOTSUP.

    Args:
        why: gives the sentence that says why there is none.
    """

    opened = bases = broken = distinct = read = MappingProxyType[str, Any]({})
    image_bytes = log_bytes = 0
    is_open = False
    recorder = None

    def __init__(self, why: Callable[[], str]) -> None:
        self._why = why

    def all(self) -> list[Any]:
        """Return nothing: there are no snapshots and no branches."""
        return []

    forgettable = all

    def forget(self, calls: Sequence[str]) -> None:
        """There is no call to forget."""

    def tidy(self) -> None:
        """Nothing was left."""

    def before_call(self) -> None:
        """Nothing takes snapshots."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(errno.ENOTSUP, self._why())


class MountedBackend(ServedMount):
    """See the module's docstring.

    Args:
        view: the name of the view that it is seen through, whose agent face is then the backend of `parts`.
    """

    def __init__(self, parts: MountParts, view: str | None = None) -> None:
        self.parts = parts
        self.is_mounted = parts.is_mounted
        self._view_name = view
        self.backend = backend = parts.backend
        self.filesystem = filesystem = parts.filesystem
        self.mountpoint = parts.mountpoint
        self.shell = parts.shell
        self._recording: Recording = parts.recording or cast("Any", Absent(lambda: NO_HISTORY))
        self._recorder: Recorder | None = self._recording.recorder
        self._snapshots: Snapshots = parts.snapshots or cast("Any", Absent(self._why_no_snapshots))
        self._automatic: AutomaticSnapshots = parts.automatic or cast("Any", Absent(str))
        self._branches: Branches = parts.branches or cast("Any", Absent(self._why_no_branches))
        self._merges: Merges = cast("Any", self._branches)
        self._restores: Restores = cast("Any", self._branches)
        self._checkouts: Checkouts = cast("Any", self._branches)
        self._moves: MoveJournal = cast("Any", self._branches)
        volumes = filesystem.tree.volume_at
        self._states = States(
            volumes,
            self._snapshots,
            self._branches,
            lambda ref, paths: self._past.before(ref, paths),
            lambda call: self._past.branch_of(call),
        )
        self._past: MountHistory = cast("Any", self._recording)
        if self._recorder is not None:
            self._past = MountHistory(self._recorder, volumes)
        self._views = parts.views
        self._for = TreesFace(backend, filesystem, parts.views).of
        self._asking = InterruptedVerbs(parts.approvals, parts.views, filesystem.tree)
        if parts.branches is not None:
            self._attach(parts.branches, volumes)
        if view is not None:
            self._for = lambda *_: backend
            for verb in (each for each in SERVED.values() if not each.in_view):
                setattr(self, verb.name, partial(_refuse, verb.name))

    def _attach(self, branches: Branches, volumes: dict[AgentPath, Volume]) -> None:
        """Give the mount what it changes many files with: merges, restores, branches in directories."""
        filesystem, parts = self.filesystem, self.backend.mounts().values()
        own = filesystem.tree.trees_path
        main = MainTree(branches, volumes, filesystem.written, self._recorder, self._covered)
        self._merges = Merges(main, own)
        directories = [str(each.cwd) for each in parts if isinstance(each, FilesystemBackend)]
        self._checkouts = Checkouts(branches, [*([self.mountpoint] if self.is_mounted else []), *directories])
        self._restores = branches.past = Restores(main, self._states, self._began_ns)
        self._moves = MoveJournal(self.backend, branches.journal(MOVES_JOURNAL))
        self.backend.note_hidden = self._moves.note
        self._automatic.is_read = lambda name: name in self._past.read or name in self._restores.read

    def tidy(self) -> None:
        """Remove what a killed server has left of merges, restores and moves, before anybody sees the files."""
        self._moves.tidy()
        for each in (self._merges, self._restores):
            try:
                each.tidy()
            except OSError as error:
                log.warning("names '.fusebackend-merge-…' of a merge or restore are left: %s", error.strerror or error)

    def _where(self) -> str:
        return f"{self.backend!r} on {self.mountpoint!r}"

    # -- the agent face ----------------------------------------------------------------------------------------

    def _change(self, verb: Verb[R], *named: str, **given: Any) -> R:
        """Make a call that may change what is at the paths that it names. Where a view interrupts it, it waits for an
        approval.

        Args:
            given: its other arguments.
        """
        work: Callable[[], R] = partial(getattr(self._for(*named), verb.name), *named, **given)
        where = self._asking.where(self._view_name, named) if self._views.by_name else None
        if where is None:
            return self._recorded(verb.name, named, work)
        arguments = partial(Change, **given)
        made, why = self._asking.recall(*where, verb.name, arguments)
        answer: R | None = None
        if made is None and why is None:
            with met.meeting() as found:
                answer = self._recorded(verb.name, named, work)
            if not found.is_interrupted or _has_worked(answer):
                return answer
            made, why = self._asking.ask(where[0], verb.name, where[1], arguments())
        if made is not None:
            if made.error is None and self._view_name is None:  # the path of the view has a longer way
                made = replace(made, path=paths.normalise(named[-1]))
            return made  # type: ignore[no-any-return]
        if answer is not None and why is None:
            return answer
        return verb.record(error=f"Error: {why}")  # type: ignore[call-arg]

    def _recorded(self, verb: str, named: Sequence[str], work: Callable[[], R]) -> R:
        """Make a call that may change what is at these paths, and record what it does."""
        self._automatic.before_call()
        if not self._recording.is_open:
            return work()
        if self._views.by_name:  # a change through a view is one of the live files
            named = [self._views.split(path)[1] for path in named]
        answer: R = self._recording.steps.verb(verb, KINDS.get(verb, "put"), named, work, _has_worked)
        return answer

    def ls(self, path: str) -> LsResult:
        return self._for(path).ls(path)

    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        return self._reading(
            "read",
            file_path,
            lambda backend, path: backend.read(path, offset, limit),
            lambda why: ReadResult(error=f"Error: {why}"),
            lambda: Change(offset=offset, limit=limit),
        )

    def _reading(
        self,
        verb: str,
        path: str,
        read: Callable[[CompositeBackend, str], R],
        refused: Callable[[str], R],
        arguments: Callable[[], Change] = Change,
    ) -> R:
        """Read a file. Where a view interrupts it, it waits for an approval, which is for one read.

        Args:
            read: reads the file by its path in a backend.
            refused: makes the answer, if it is not read.
        """
        if not self._views.by_name:
            return read(self._for(path), path)
        with met.meeting() as found:
            answer = read(self._for(path), path)
        where = self._asking.where(self._view_name, [path]) if found.is_interrupted else None
        if where is None:
            return answer
        view, (inside,) = where
        face, why = self._asking.ask(view, verb, [inside], arguments())
        if face is not None:
            return read(face, inside)
        return answer if why is None else refused(why)

    def write(
        self, file_path: str, content: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> WriteResult:
        return self._change(verbs.WRITE, file_path, if_version=if_version, if_absent=if_absent, content=content)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        if_version: str | None = None,
    ) -> EditResult:
        return self._change(
            verbs.EDIT,
            file_path,
            old_string=old_string,
            new_string=new_string,
            replace_all=replace_all,
            if_version=if_version,
        )

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return self._for(path).grep(pattern, path, glob, max_count=max_count)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        return self._for(path, pattern).glob(pattern, path)

    def delete(self, file_path: str, *, if_version: str | None = None) -> DeleteResult:
        return self._change(verbs.DELETE, file_path, if_version=if_version)

    def move(
        self, source: str, destination: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> MoveResult:
        return self._change(verbs.MOVE, source, destination, if_version=if_version, if_absent=if_absent)

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        conditions = list(conditions_of(len(files), if_version, if_absent))
        named = [path for path, _ in files]
        where = self._asking.where(self._view_name, named) if self._views.by_name else None
        if where is not None:
            backend = self._for(*named)

            def upload_one(index: int) -> FileUploadResponse:
                return backend.upload_files([files[index]], **options_of([conditions[index]]))[0]

            return self._uploaded(where, named, conditions, upload_one, lambda index: bytes(files[index][1]))
        upload = partial(self._for(*named).upload_files, files, if_version=if_version, if_absent=if_absent)
        return self._recorded("upload_files", named, upload)

    def _uploaded(
        self,
        where: tuple[str, list[AgentPath]],
        given: Sequence[str],
        conditions: Sequence[Conditions],
        upload: Callable[[int], FileUploadResponse],
        contents: Callable[[int], bytes],
    ) -> list[FileUploadResponse]:
        """Upload files in a view that interrupts: what is interrupted of it is one request.

        Args:
            where: the view, and the paths there.
            given: the paths as the caller has them.
            upload: uploads one of them, by its place.
            contents: returns its contents, for a request.
        """
        found: list[met.Met] = []

        def one_by_one() -> list[FileUploadResponse]:
            answers = []
            for index in range(len(given)):
                with met.meeting() as each:
                    answers.append(upload(index))
                found.append(each)
            return answers

        answers = self._recorded("upload_files", given, one_by_one)
        view, named = where
        left = [
            index
            for index, each in enumerate(found)
            if each.is_interrupted and answers[index].error is not None
            if self._asking.may_ask(view, "upload_files", named[index])
        ]
        if not left:
            return answers
        change = Change(contents=[contents(index) for index in left], conditions=[conditions[index] for index in left])
        made, why = self._asking.ask(view, "upload_files", [named[index] for index in left], change)
        for place, index in enumerate(left):
            error = why if made is None else made[place].error
            if made is not None or why is not None:
                answers[index] = FileUploadResponse(given[index], error)
        return answers

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        if not self._views.by_name:
            return self._for(*paths).download_files(paths)
        with met.meeting() as found:
            answers = self._for(*paths).download_files(paths)
        if not found.is_interrupted:
            return answers
        return [
            each
            if each.error is None
            else self._downloaded(each.path, lambda backend, inside: backend.download_files([inside])[0])
            for each in answers
        ]

    def _downloaded(
        self, path: str, download: Callable[[CompositeBackend, str], FileDownloadResponse]
    ) -> FileDownloadResponse:
        answer = self._reading("download_files", path, download, lambda why: FileDownloadResponse(path, error=why))
        return replace(answer, path=path)

    def real_paths(self, wanted: list[str]) -> list[str | None]:
        return self._for(*wanted).real_paths(wanted)

    def upload_from(self, path: str, file: IO[bytes], **when: Unpack[Conditions]) -> FileUploadResponse:
        """`upload_files` of one file, from an open file; see `CompositeBackend.upload_from`."""
        upload = partial(self._for(path).upload_from, path, file, **when)
        where = self._asking.where(self._view_name, [path])
        if where is None or not file.seekable():
            return self._recorded("upload_files", [path], upload)

        def contents(_: int) -> bytes:
            file.seek(0)
            return file.read(MAX_CHANGE_BYTES + 1)

        return self._uploaded(where, [path], [when], lambda _: upload(), contents)[0]

    def download_to(self, path: str, file: IO[bytes]) -> FileDownloadResponse:
        """`download_files` of one file into another, see `CompositeBackend.download_to`."""
        return self._downloaded(path, lambda backend, inside: backend.download_to(inside, file))

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        cwd: str = "/",
        on_output: OnOutput | None = None,
    ) -> ExecuteResponse:
        if self._view_name is not None:
            cwd = self._views.seen(self._view_name).root + normalise(cwd)
        wanted = Command(command, timeout, stdin, cwd, on_output)
        name, inside = self._views.split(cwd)
        if name is None:
            name = self._views.default
        if name is None or not self._views.find(name).has_commands:
            return self._started(wanted)
        # A command that starts anywhere else than in its view is for the shell to refuse.
        return self._asking.before_command(name, replace(wanted, cwd=inside), lambda: self._started(wanted))

    def _started(self, command: Command) -> ExecuteResponse:
        self._automatic.before_call()
        if not self._recording.is_open:
            return self.shell.execute(command)
        calls = self._recording.calls
        with calls.inside("command", command.text) as call, contextlib.ExitStack() as ends:

            def started(pid: int) -> None:
                ends.callback(calls.started(call, pid))

            return self.shell.execute(replace(command, on_start=started))

    # -- approvals ---------------------------------------------------------------------------------------------

    def approvals(self) -> list[ApprovalInfo]:
        return self._asking.approvals.list()

    def approval(self, number: int) -> ApprovalInfo:
        request = self._asking.approvals.find(number)
        return info_of(request, self._asking.shown(request))

    def approve(self, number: int) -> ApprovalInfo:
        self._asking.approvals.approve(number, self._decider(), self._make)
        return self.approval(number)

    def deny(self, number: int, reason: str | None = None) -> ApprovalInfo:
        self._asking.approvals.deny(number, self._decider(), reason or "")
        return info_of(self._asking.approvals.find(number))

    def _decider(self) -> Actor:
        return current_actor(Actor(uid=os.geteuid(), pid=os.getpid()))

    def _make(self, request: Request, begin: Callable[[], Any] | None) -> tuple[Any, str | None]:
        """Make what was approved, as its actor; see `Approvals.approve`. CanNotBeMade."""
        if request.asked.verb in READING:
            return None, None  # its caller reads, and nothing of it is kept
        with acting(request.asked.actor):
            asked = self._asking.arguments(request)
            if request.asked.verb == "execute":
                cwd = self._views.seen(request.asked.view).root + request.asked.paths[0]
                own = Command(asked.command or "", asked.timeout_s, asked.stdin, cwd)
                ran = self._started(own) if begin is None else begin()
                return replace(ran, output=ran.output[:KEPT_OUTPUT]), None
            work = _asked(request, asked, self._asking.face(request))
            answer = self._recorded(request.asked.verb, request.asked.paths, work)
            failed = [each.error for each in (answer if isinstance(answer, list) else [answer]) if each.error]
            return answer, "; ".join(failed) or None

    # -- the mount ---------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        status = self.parts.status()
        if self._view_name is None:
            return status
        shown = {"version": status.get("version"), "mountpoint": status.get("mountpoint")}
        return {**shown, "trees": None, "view": self._view_name}

    def has_ended(self) -> bool:
        return self._asking.approvals.is_closed

    def metrics(self) -> str:
        from fusebackend.server.metrics import opened

        metrics = self.parts.metrics or opened(self.filesystem, self.parts.status, MetricsOptions())
        return metrics.text()

    def stat(self, path: str, *, follow: bool = False) -> StatResult:
        try:
            name, outer = self._views.place(path, self._view_name)
            route, volume = self._seen(name, outer)
            found = route.executor.run("stat", partial(self._look, name, volume, route, outer, follow))
            found.path = paths.normalise(path)
            return found
        except (PathError, OSError) as error:
            return StatResult(error=verbs.READ.sentence(error, path), code=errors.code_of(error))

    def stats(self, path: str) -> StatsResult:
        answer = self.ls(path)
        if answer.error is not None:
            return StatsResult(error=answer.error)
        hold = budget.current().hold
        found = []
        for info in answer.entries or ():
            hold(STAT_BYTES)
            found.append(replace(self.stat(info["path"]), path=info["path"]))
        return StatsResult(entries=found)

    def read_range(self, path: str, offset: int, size: int) -> FileRange:
        return self._at_volume("read", path, lambda backend, inner: backend.read_range(inner, offset, size))

    def append(self, path: str, pieces: Iterable[bytes]) -> None:
        with tempfile.SpooledTemporaryFile(SPOOLED_BYTES, prefix="fusebackend-") as file:
            file.writelines(pieces)
            file.seek(0)
            self.append_from(path, cast("IO[bytes]", file))

    def append_from(self, path: str, file: IO[bytes]) -> None:
        """Add the contents of an open file at the end of a file, which is made if absent. In a view that interrupts
        writing it is refused.

        Raises:
            ValueError: the path is malformed.
            OSError: as `VolumeBackend.append`.
        """
        append = partial(self._at_volume, "write", path, lambda backend, inner: backend.append(inner, file))
        self._recorded("append", [path], append)

    def make_directory(self, path: str, *, parents: bool = False) -> None:

        def make() -> None:
            name, outer = self._views.place(path, self._view_name)
            # A directory that exists only for the routes is not in the volume yet.
            above = AgentPath(os.path.dirname(outer))
            with_parents = parents or (above != ROOT and self._views.is_way(name, above))
            if self._views.is_way(name, outer):
                raise errors.oserror(errno.EEXIST)
            self._at_volume("mkdir", path, lambda backend, inner: backend.make_directory(inner, parents=with_parents))

        self._recorded("make_directory", [path], make)

    def remove_directory(self, path: str) -> None:

        def remove() -> None:
            if self._views.is_way(*self._views.place(path, self._view_name)):
                raise errors.oserror(errno.EBUSY)
            self._at_volume("rmdir", path, lambda backend, inner: backend.remove_directory(inner))

        self._recorded("remove_directory", [path], remove)

    def _seen(self, name: str | None, outer: AgentPath) -> tuple[Route, Volume]:
        """Return the route that has a path, and its volume, as a view shows them. A path of a hidden route belongs to
        the route around it, of which the rules refuse it as if there were none."""
        route = self.filesystem.tree.route_of(outer)
        while (volume := self._views.volume(name, route)) is None:
            route = self.filesystem.tree.route_of(AgentPath(os.path.dirname(route.prefix)))
        return route, volume

    def _at_volume(self, verb: str, path: str, work: Callable[[VolumeBackend, str], R]) -> R:
        """Return what `work` does with the volume that holds a path, and with the path there."""
        try:
            name, outer = self._views.place(path, self._view_name)
            route, volume = self._seen(name, outer)
            return route.executor.run(verb, lambda: work(VolumeBackend(volume), route.inner(outer)))
        except OSError as error:
            raise errors.about(error, path) from None

    def _look(self, view: str | None, volume: Volume, route: Route, outer: AgentPath, follow: bool) -> StatResult:
        """Return the `stat` of a path, by its volume."""
        prefix = route.prefix if route.prefix == ROOT else route.prefix + "/"
        attr: Attr | None = None
        try:
            attr = resolve(volume, route.inner(outer), follow=follow).found
        except (FileNotFoundError, NotADirectoryError):
            if not self._views.is_way(view, outer):
                raise
        if attr is None or (not attr.is_dir and self._views.is_way(view, outer)):
            # It exists only for the routes, even if the backend has a file there.
            return StatResult(type="directory", size=0, mode=0o755, route=prefix)
        return StatResult(
            type=FILE_TYPES.get(stat_module.S_IFMT(attr.mode), "file"),
            size=attr.size,
            mode=stat_module.S_IMODE(attr.mode),
            nlink=attr.shown_nlink,
            uid=attr.uid,
            gid=attr.gid,
            atime_ns=attr.atime_ns,
            mtime_ns=attr.mtime_ns,
            ctime_ns=attr.ctime_ns,
            target=os.fsdecode(volume.readlink(attr.node)) if stat_module.S_ISLNK(attr.mode) else None,
            route=prefix,
            version=version_of(volume, attr) if stat_module.S_ISREG(attr.mode) else None,
        )

    def invalidate(self, path: str = "/") -> None:
        outer = paths.normalise(path)
        failure: OSError | None = None
        tree = self.filesystem.tree
        for route in tree.routes:
            if route is tree.route_of(outer) or paths.is_below(route.prefix, outer):
                try:
                    route.executor.run("invalidate", partial(self.filesystem.invalidation.expire, route))
                except OSError as error:
                    failure = OSError(error.errno, f"{route.executor.name}: {error.strerror}")
        if failure is not None:
            raise failure

    def views(self) -> list[ViewInfo]:
        views = self._views
        return [
            ViewInfo(name, [rule.described() for rule in view.rules], views.seen(name).root, name == views.default)
            for name, view in views.by_name.items()
            if self._view_name in (None, name)
        ]

    def explain(self, view: str, operation: str, path: str) -> Explained:
        if self._view_name not in (None, view):
            raise OSError(errno.ENOENT, f"there is no view '{view}'; there are: {self._view_name}")
        mode, rule, matched = self._views.find(view).explain(operation, path)
        return Explained(mode, rule, matched)

    def viewed(self, name: str) -> MountedBackend:
        """Return the mount through a view, for a client that has chosen it. It shares all parts of the mount.

        Paths are those of the mount. The verbs of files go to the agent face of the view (`rules.py`), commands run in
        its tree, `watch` gives what may be read, and `status` what the view's reader may know. Verbs that show or
        change what other readers have (the log, undo, snapshots, branches) are refused.

        Raises:
            OSError: ENOENT, there is no such view; EPERM, it is seen through another one.
        """
        if self._view_name is not None:
            if name != self._view_name:
                raise OSError(errno.EPERM, f"this connection sees the mount through view '{self._view_name}', for good")
            return self
        # Without what its verbs must not reach: the snapshots, the branches, the measures.
        parts = replace(self.parts, snapshots=None, branches=None, metrics=None)
        seen = self._views.seen(name).face
        seen.note_hidden = self.backend.note_hidden
        return MountedBackend(replace(parts, backend=seen), name)

    def view_socket(self, name: str) -> str:
        return self._views.listen(name)

    @property
    def default_view(self) -> str | None:
        return self._views.default

    def snapshots(self) -> list[SnapshotInfo]:
        return [self._snapshot_info(each) for each in self._snapshots.all()]

    def create_snapshot(self, name: str | None = None) -> SnapshotInfo:
        return self._snapshot_info(self._snapshots.create(name))

    def _snapshot_info(self, taken: Parts) -> SnapshotInfo:
        path = f"{self.filesystem.tree.trees_path}/{SNAPSHOTS}/{taken.name}"
        return SnapshotInfo(taken.name, taken.time_ns, taken.routes, path)

    def delete_snapshots(self, *names: str) -> None:
        self._snapshots.delete(names)

    def _why_no_snapshots(self) -> str:
        if self.filesystem.tree.trees_path is None:
            return "this mount has no directory for snapshots: mount without '-o trees=off'"
        keeping = ", ".join(f"'{name}:'" for name, scheme in SCHEMES.items() if scheme.snapshots)
        return f"no route of this mount keeps snapshots: {keeping} do"

    def branches(self) -> list[BranchInfo]:
        return [self._described(each) for each in self._branches.all()]

    def _described(self, branch: BranchInfo) -> BranchInfo:
        """Return what is known of a branch with what its merge would do, and the directory that it is in."""
        conflicts, unmerged = self._merges.compare(branch.name)
        directory = self._checkouts.directory(branch.name)
        return replace(branch, conflicts=conflicts, unmerged=unmerged, directory=directory)

    def create_branch(
        self, name: str, ref: str | None = None, directory: str | os.PathLike[str] | None = None
    ) -> BranchInfo:
        branches = self._branches
        if directory is None:
            return self._described(branches.create(name, ref))
        is_new = ref is not None or name not in branches.opened
        made = branches.create(name, ref) if is_new else branches.find(name)
        try:
            self._checkouts.put(name, os.fspath(directory))
        except BaseException:
            if is_new:
                branches.delete([name])
            raise
        return self._described(made)

    def take_in_branch(self, name: str) -> None:
        self._branches.volume(name)
        self._checkouts.take_in(name)

    def delete_branches(self, *names: str) -> None:
        self._merges.end(names)
        self._branches.delete(names)
        self._checkouts.forget(names)

    def merge_branch(
        self,
        name: str,
        paths: list[str] | None = None,
        keep: Literal["main", "branch"] | None = None,
        merge_lines: bool = False,
        dry_run: bool = False,
    ) -> MergeResult:
        self._checkouts.take_in(name)
        if not dry_run:
            self._automatic.before_call()
        return self._merges.merge(name, paths or (), keep=keep, lines=merge_lines, dry_run=dry_run)

    def _why_no_branches(self) -> str:
        if self.filesystem.tree.trees_path is None:
            return "this mount has no directory for branches: mount without '-o trees=off'"
        return "this mount is read-only, and has no branches"

    # -- the past ----------------------------------------------------------------------------------------------

    def log(
        self,
        calls: Sequence[str] = (),
        *,
        by: str | None = None,
        since: int | str | None = None,
        paths: Sequence[str] = (),
        before: str | None = None,
        ended_after_ns: int | None = None,
        limit: int = LOGGED_CALLS,
        branch: str | None = None,
    ) -> list[CallInfo]:
        named = paths if branch is None else self._in_branch(branch, paths)
        return self._past.log(calls, by, since, named, before, ended_after_ns, limit)

    def changes(
        self, call: str | None = None, *, after: int = 0, limit: int = LISTED_CHANGES, branch: str | None = None
    ) -> list[ChangeInfo]:
        return self._past.changes(call, after, limit, None if branch is None else self._branch(branch))

    def _branch(self, name: str) -> AgentPath:
        """Return where a branch is. OSError: there is none of that name, or no branches."""
        self._branches.volume(name)
        return paths.join(self._branches.path, name)

    def _in_branch(self, name: str, inner: Sequence[str]) -> list[str]:
        """Return paths of a branch, or its root, as paths of the mount."""
        branch = self._branch(name)
        return [paths.join(branch, normalise(path).strip("/")) for path in inner or ("/",)]

    def verify_log(self) -> VerifyResult:
        return self._recording.history.verify()

    def blame(self, path: str, *, branch: str | None = None) -> BlameResult:
        past = self._past
        at = path if branch is None else self._in_branch(branch, [path])[0]
        try:
            return past.blame(at)
        except OSError as error:
            raise errors.about(error, path) from None

    def diff(
        self,
        call: str,
        *,
        paths: Sequence[str] = (),
        form: DiffForm = "patch",
        columns: int = STAT_COLUMNS,
        on_text: Callable[[bytes], None] | None = None,
        on_skipped: Callable[[str, str], None] | None = None,
    ) -> str:
        refs = self._refs()
        if ".." not in call and refs.has_call(call):
            result = self._past.diff(call, paths)
        else:
            before, after = refs.pair(call)
            inner = [to_name(path).strip(b"/") for path in self._of_main(paths or ["/"])]
            for ref in (before, after):
                if ref.is_branch:
                    self.take_in_branch(ref.name)
            result = self._states.differences(before, after, inner)
        found: list[bytes] = []
        for piece in said(result, form, columns, on_skipped):
            (on_text or found.append)(piece)
        return b"".join(found).decode()

    def _of_main(self, given: Sequence[str]) -> list[AgentPath]:
        """Return paths in the main tree, which every state has. Raises `ValueError` for others."""
        found, trees = [normalise(path) for path in given], self.filesystem.tree.trees_path
        for path in found:
            if trees is not None and paths.is_below(path, trees):
                raise ValueError(f"'{path}' lies in the trees directory; give its path in the main tree")
        return found

    def _refs(self) -> Refs:
        """The states that there are now."""
        taken = {each.name: each.time_ns for each in self.snapshots()}
        opened = {name: branch.created_ns for name, branch in self._branches.opened.items()}
        return Refs(taken, opened, began_ns=self._began_ns)

    def _began_ns(self, call: str) -> int:
        return self._past.call(call).began_ns

    def undo(
        self,
        *calls: str,
        by: str | None = None,
        thread: str | None = None,
        since: int | str | None = None,
        branch: str | None = None,
        keep_newer: bool = False,
        merge_lines: bool = False,
        dry_run: bool = False,
    ) -> UndoResult:
        if keep_newer and merge_lines:
            raise ValueError("keep_newer or merge_lines, not both")
        for name, value in {"branch": branch, "thread": thread, "since": since}.items():
            if calls and value is not None:
                raise ValueError(f"calls or a {name}, not both: it chooses the calls")
        inside = None if branch is None else self._branch(branch)
        how = {"keep_newer": keep_newer, "merge_lines": merge_lines, "dry_run": dry_run}
        return self._past.undo(calls, by, thread, since, inside, **how)

    def begin_call(self, title: str, *, pid: int | None = None, id: str = "", agent: str = "", thread: str = "") -> str:
        known = current_actor()
        actor = Actor(agent or known.agent, thread or known.thread, id or known.call)
        return self._past.begin_call(title, os.getpid() if pid is None else pid, actor)

    def end_call(self, id: str) -> str | None:
        return self._past.end_call(id)

    def df(self) -> SpaceInfo:
        limits = [
            _limit(route.prefix if route.prefix == ROOT else route.prefix + "/", usage)
            for route in self.filesystem.tree.routes
            if (usage := route.volume.usage) is not None
        ]
        # Of routes that keep snapshots: to count the others would be a walk of all their files.
        volumes = list(self._snapshots.distinct.values())
        kept = sum(volume.snapshot_bytes() for volume in volumes)
        live = sum(_used_bytes(volume) for volume in volumes) - kept if volumes else None
        automatic, named = self._snapshots_by_kind()
        images, log_bytes = self._past.image_bytes, self._past.log_bytes
        reclaimable = (kept if automatic and not named else 0) + images + log_bytes
        in_branches = sum(each.size_bytes for each in self._branches.all())
        return SpaceInfo(live, kept, images, in_branches, log_bytes, reclaimable, limits)

    def prune(self, *, dry_run: bool = False) -> PruneResult:
        automatic, _ = self._snapshots_by_kind()
        calls = self._past.forgettable()
        going = PruneResult(automatic, len(calls), self._past.image_bytes)
        if dry_run:
            return going
        self._past.forget(calls)
        going.bytes -= self._past.image_bytes
        if automatic:
            with contextlib.suppress(FileNotFoundError):  # the policy has deleted one just now
                self._snapshots.delete(automatic)
        return going

    def _snapshots_by_kind(self) -> tuple[list[str], list[str]]:
        """Return the names of automatic snapshots, and those of others."""
        found = [each.name for each in self._snapshots.all()]
        automatic = [name for name in found if time_of(name) is not None]
        return automatic, [name for name in found if time_of(name) is None]

    def weigh_threads(self, *paths: str, by: Literal["channel", "step", "namespace"] | None = None) -> list[ThreadSize]:
        from fusebackend.server import threads

        return threads.weigh_threads(self.filesystem.tree.volume_at, paths, by)

    def prune_threads(
        self,
        *paths: str,
        keep: int | None = None,
        older: str | None = None,
        keep_steps: Sequence[str] = (),
        dry_run: bool = False,
        vacuum: bool = False,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> list[PrunedThread]:
        from fusebackend.server import threads

        return threads.prune_threads(
            self.filesystem.tree.volume_at,
            self._recorder if self._recording.is_open else None,
            paths,
            keep,
            older,
            keep_steps,
            dry_run=dry_run,
            vacuum=vacuum,
            on_progress=on_progress or (lambda thread, done, total: None),
        )

    def restore(
        self,
        paths: list[str],
        ref: str,
        *,
        to: list[str] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> RestoreResult:
        restore = self._restores.restore
        if to is not None and len(to) != len(paths):
            raise ValueError("'to' needs a path for each of 'paths'")
        self._of_main([*paths, *(to or ())])
        state = self._refs().one(ref)
        if state.is_main and to is None:
            raise ValueError("everything is as in 'main' already; restore from another state, or to another path")
        if not dry_run:
            self._automatic.before_call()
        return restore(paths, state, to, dry_run=dry_run, force=force)

    def _covered(self) -> list[bytes]:
        """The paths at which other file systems are mounted, without a slash at the begin."""
        if not self.is_mounted:
            return []
        return [to_name(entry.mountpoint[len(self.mountpoint) :].strip("/")) for entry in mounts_below(self.mountpoint)]

    def forget(self, *paths: str, dry_run: bool = False) -> ForgetResult:
        if not paths:
            raise ValueError("forget which paths?")
        tree = self.filesystem.tree
        if not dry_run:
            self._asking.approvals.forget(map(normalise, paths), self._decider())
        found = Forgetting(tree.volume_at, self._recorder, self._branches).forget(paths, dry_run=dry_run)
        if not dry_run:
            for route in tree.attached[len(tree.routes) :]:  # snapshots and branches
                self.filesystem.invalidation.expire(route)
        return found

    def watch(self, path: str = "/") -> Watch:
        """The changes at and below a path, from now on, whichever face makes them. Close it when done.

        Raises:
            PathError: the path is malformed.
        """
        if self._view_name is None:
            return self.filesystem.feed.watch(path)
        return self.filesystem.feed.watch(path, partial(shown_event, self._views.seen(self._view_name).shown))

    def awatch(self, path: str = "/") -> AsyncWatch:
        """`watch`, as an async iterator under asyncio and trio; see `vfs/watch/async_watch.py`. It begins at once.

        Raises:
            PathError: the path is malformed.
        """
        return AsyncWatch(self.watch(path))


def _refuse(verb: str, *_: Any, **__: Any) -> Any:
    raise OSError(errno.EPERM, f"a view has no '{verb}': it is about what all readers have")


def _asked(request: Request, change: Change, backend: CompositeBackend) -> Callable[[], Any]:
    """Return what makes the change that a request asks for."""
    verb, named = request.asked.verb, request.asked.paths
    if verb == "upload_files":
        files = list(zip(named, change.contents, strict=True))
        return partial(backend.upload_files, files, **options_of(change.conditions))
    given = {
        name: getattr(change, name) for name in SERVED[verb].signature.parameters if name in change.__struct_fields__
    }
    return partial(getattr(backend, verb), *named, **given)


def _has_worked(answer: Any) -> bool:
    """Return True if a verb has changed something: an answer, or one of several, has no error. A verb without an answer
    raises where it fails."""
    answers = answer if isinstance(answer, list) else [answer]
    return any(each is None or each.error is None for each in answers)


def _limit(route: str, usage: Usage) -> LimitInfo:
    used_bytes, limit_bytes, used_files, limit_files = usage
    left_bytes = None if limit_bytes is None else max(0, limit_bytes - used_bytes)
    left_files = None if limit_files is None else max(0, limit_files - used_files)
    return LimitInfo(route, used_bytes, limit_bytes, left_bytes, used_files, limit_files, left_files)


def _used_bytes(volume: SnapshotVolume) -> int:
    disk = volume.statfs()
    return (disk.blocks - disk.blocks_free) * disk.block_bytes
