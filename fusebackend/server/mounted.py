"""`MountedBackend`: the files of a live mount through the agent face, and verbs of live mounts.

The verbs go to the backend that is mounted, and to the trees directory where it is named (`trees.py`). `execute` runs
where the default backend runs commands, else in a sandbox of the mount (`live.py`); `stat`, `invalidate`, `watch` and
`status` speak of the mount. Both `server.api.Mount` and the control server end here.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Protocol

from fusebackend.base import budget, errors, paths
from fusebackend.base.paths import ROOT, AgentPath, PathError
from fusebackend.control.verbs import ServedMount
from fusebackend.linux.command import Command
from fusebackend.protocol import (
    READ_LIMIT_LINES,
    Attr,
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
    SnapshotInfo,
    StatResult,
    StatsResult,
    WriteResult,
)
from fusebackend.protocol.records import FILE_TYPES
from fusebackend.server.trees import TreesFace
from fusebackend.trees.automatic import AutomaticSnapshots
from fusebackend.trees.snapshots import Snapshots
from fusebackend.vfs.watch.async_watch import AsyncWatch, ThreadedWatch
from fusebackend.volumes.walk import resolve

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.vfs.junctions import Route
    from fusebackend.vfs.mounted_tree import FileSystem
    from fusebackend.vfs.watch.queue import Watch

STAT_BYTES = 2048
"""Memory of a `StatResult`, with its part of an answer."""


class Executor(Protocol):
    """The place where commands run: `Shell` or `Guest`."""

    def execute(self, command: Command) -> ExecuteResponse: ...


class MountedBackend(ServedMount):
    """See the module's docstring.

    Args:
        backend: what is mounted.
        filesystem: its mounted tree.
        mountpoint: where, as an absolute path.
        shell: runs the commands of the mount.
        status: gives what `fusebackend status --json` shows of the mount.
        snapshots: of the mount; None if it keeps none.
        automatic: takes snapshots before calls that may change something; None if nothing does.
    """

    def __init__(
        self,
        backend: CompositeBackend,
        filesystem: FileSystem,
        mountpoint: str,
        shell: Executor,
        status: Callable[[], dict[str, Any]],
        snapshots: Snapshots | None = None,
        automatic: AutomaticSnapshots | None = None,
    ) -> None:
        self.backend = backend
        self.filesystem = filesystem
        self.mountpoint = mountpoint
        self.shell = shell
        self._status = status
        self._snapshots = snapshots
        self._automatic = automatic
        self._for = TreesFace(backend, filesystem).of

    def _where(self) -> str:
        return f"{self.backend!r} on {self.mountpoint!r}"

    # -- the agent face ----------------------------------------------------------------------------------------

    def _to_change(self, *named: str) -> CompositeBackend:
        """The backend for a call that may change what is at these paths."""
        if self._automatic is not None:
            self._automatic.before_call()
        return self._for(*named)

    def ls(self, path: str) -> LsResult:
        return self._for(path).ls(path)

    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        return self._for(file_path).read(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        return self._to_change(file_path).write(file_path, content)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return self._to_change(file_path).edit(file_path, old_string, new_string, replace_all)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return self._for(path).grep(pattern, path, glob, max_count=max_count)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        return self._for(path, pattern).glob(pattern, path)

    def delete(self, file_path: str) -> DeleteResult:
        return self._to_change(file_path).delete(file_path)

    def move(self, source: str, destination: str) -> MoveResult:
        return self._to_change(source, destination).move(source, destination)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._to_change(*(path for path, _ in files)).upload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._for(*paths).download_files(paths)

    def upload_from(self, path: str, file: IO[bytes]) -> FileUploadResponse:
        """`upload_files` of one file, from an open file; see `CompositeBackend.upload_from`."""
        return self._to_change(path).upload_from(path, file)

    def download_to(self, path: str, file: IO[bytes]) -> FileDownloadResponse:
        """`download_files` of one file into another, see `CompositeBackend.download_to`."""
        return self._for(path).download_to(path, file)

    @property
    def id(self) -> str:
        return f"fusebackend:{self.mountpoint}"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command where the default backend does, with every route at the path that the other verbs use.

        `status` says where that is, and which routes can't be seen there.
        """
        return self.run(command, timeout=timeout)

    def run_command(self, command: Command) -> ExecuteResponse:
        if self._automatic is not None:
            self._automatic.before_call()
        return self.shell.execute(command)

    # -- the mount ---------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the mount as `fusebackend status --json` shows it."""
        return self._status()

    def stat(self, path: str, *, follow: bool = False) -> StatResult:
        """Return the attributes of a path; a symbolic link itself, unless `follow` says otherwise."""
        try:
            outer = paths.normalise(path)
            route = self.filesystem.tree.route_of(outer)
            attr, target = route.executor.run("stat", partial(self._look, route, outer, follow))
        except PathError as error:
            return StatResult(error=str(error), code=errors.INVALID_PATH)
        except FileNotFoundError:
            return StatResult(error=f"File '{path}' not found", code=errors.FILE_NOT_FOUND)
        except OSError as error:
            return StatResult(error=f"File '{path}': {error.strerror}", code=errors.code_of(error))
        prefix = route.prefix if route.prefix == ROOT else route.prefix + "/"
        if attr is None:
            return StatResult(path=outer, type="directory", size=0, mode=0o755, route=prefix)
        return StatResult(
            path=outer,
            type=FILE_TYPES.get(stat_module.S_IFMT(attr.mode), "file"),
            size=attr.size,
            mode=stat_module.S_IMODE(attr.mode),
            nlink=attr.nlink,
            uid=attr.uid,
            gid=attr.gid,
            atime_ns=attr.atime_ns,
            mtime_ns=attr.mtime_ns,
            ctime_ns=attr.ctime_ns,
            target=target,
            route=prefix,
        )

    def stats(self, path: str) -> StatsResult:
        """`stat` of each entry of a directory, in one answer, `path` as `ls` gives it. A file that has gone has an
        error."""
        answer = self.ls(path)
        if answer.error is not None:
            return StatsResult(error=answer.error)
        hold = budget.current().hold
        found = []
        for info in answer.entries or ():
            hold(STAT_BYTES)
            found.append(replace(self.stat(info["path"]), path=info["path"]))
        return StatsResult(entries=found)

    def _look(self, route: Route, outer: AgentPath, follow: bool) -> tuple[Attr | None, str | None]:
        """Return the attributes of a path in its volume, and the target of a symbolic link. None for a directory that
        exists only for the routes."""
        try:
            found = resolve(route.volume, route.inner(outer), follow=follow).found
        except (FileNotFoundError, NotADirectoryError):
            if self._is_way(outer):
                return None, None
            raise
        if not found.is_dir and self._is_way(outer):
            return None, None
        is_link = stat_module.S_ISLNK(found.mode)
        return found, os.fsdecode(route.volume.readlink(found.node)) if is_link else None

    def _is_way(self, path: AgentPath) -> bool:
        """Return True if there are routes below a path. It is a directory then, even if the backend has a file
        there."""
        return bool(self.filesystem.tree.table.names_below(path))

    def invalidate(self, path: str = "/") -> None:
        """Forget everything that is cached of `path`, because others have changed it.

        Raises:
            PathError: the path is malformed.
            OSError: a route did not answer in time; the others are done.
        """
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

    def snapshots(self) -> list[SnapshotInfo]:
        """Return the snapshots of the mount, the oldest first. Each is a tree in `/.fusebackend/snapshots`."""
        return [] if self._snapshots is None else [each.info for each in self._snapshots.all()]

    def create_snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Take a snapshot of every route that keeps any: of all of them or, after an error, of none.

        Args:
            name: of the snapshot, as that of a file; the time in UTC, as `20261123T061530Z`, when None.

        Raises:
            ValueError: the name can't be that of a snapshot.
            OSError: EEXIST, there is one of that name; ENOTSUP, the mount keeps none; or a volume's error.
        """
        return self._kept().create(name)

    def delete_snapshots(self, *names: str) -> None:
        """Delete snapshots.

        Raises:
            OSError: ENOENT, one of them is not there, and none was deleted; or a volume's error.
        """
        self._kept().delete(names)

    def _kept(self) -> Snapshots:
        if self._snapshots is not None:
            return self._snapshots
        if self.filesystem.tree.trees_path is None:
            why = "this mount has no directory for snapshots: mount without '-o trees=off'"
        else:
            why = "no route of this mount keeps snapshots: 'sqlite:' and 'memory:' do"
        raise OSError(errno.ENOTSUP, why)

    def watch(self, path: str = "/") -> Watch:
        """The changes at and below a path, from now on, whichever face makes them. Close it when done.

        Raises:
            PathError: the path is malformed.
        """
        return self.filesystem.feed.watch(path)

    def awatch(self, path: str = "/") -> AsyncWatch:
        """`watch`, as an async iterator under asyncio and trio; see `vfs/watch/async_watch.py`. It begins at once.

        Raises:
            PathError: the path is malformed.
        """
        return AsyncWatch(ThreadedWatch(self, self.watch(path)))
