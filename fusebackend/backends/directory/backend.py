"""`FilesystemBackend`: a directory of this machine, by the paths that the seeds give it.

`virtual_mode=True` confines both faces to `root_dir`: each path is relative to it, even with a leading `/`; `..` and
`~` are refused; a symbolic link that leads out, or has an absolute target, is an error; and none of this can be undone
by swapping directories for links meanwhile (see `DirectoryVolume`).

`virtual_mode=False` is for agents that may do what the process may: absolute paths are those of the machine, relative
ones start from `root_dir`, links are followed anywhere, and results show absolute paths. A mount of the backend shows
`root_dir` in both modes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from fusebackend.backends.directory.search import LocalWalk, SievedWalk, read_local
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.base import paths
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import AgentPath, PathError
from fusebackend.linux.command import End, StartedProcess, nothing_to_run, require_positive, response
from fusebackend.protocol import (
    Change,
    ContextLine,
    ExecuteResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    OnExists,
    SandboxBackendProtocol,
)
from fusebackend.protocol.scheme import COMMANDS, MAX_FILE_SIZE, ON_EXISTS, Scheme, Url, UrlError
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.search import FileSearch, Search


class HostVolume(DirectoryVolume):
    """The machine's whole tree. Links with absolute targets lead somewhere in it."""

    def __init__(self) -> None:
        super().__init__("/")

    def readlink(self, node: int) -> bytes:
        """As seen from the link's directory, which is how a path is resolved in a volume."""
        with self.lock:
            target = super().readlink(node)
            if not target.startswith(b"/"):
                return target
            return b"../" * self._nodes.depth(node) + target.lstrip(b"/")


class FilesystemBackend(VolumeBackend):
    """Files in a directory on disk. See the module's docstring.

    The default of `virtual_mode` is that of deepagents 0.7. The seeds' default was False, and they warn of it.

    Args:
        root_dir: a directory that exists; the current one when None.
        virtual_mode: confine paths to `root_dir`.
        max_file_size_mb: larger files are passed over by `grep`, with ripgrep and without it.
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).

    Attributes:
        cwd: `root_dir`, absolute and without links.
        volume: the kernel face of `root_dir`.

    Raises:
        FileNotFoundError, NotADirectoryError, PermissionError: there is no such directory, or it can't be entered.
    """

    schemes: ClassVar = {
        "dir": Scheme(
            "dir:PATH",
            "a directory of this machine; nothing outside it can be reached",
            lambda url: FilesystemBackend(_directory(url), **url.parameters),
            takes="path",
            parameters={**MAX_FILE_SIZE, **ON_EXISTS},
            features=DirectoryVolume.features,
        )
    }

    def __init__(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        virtual_mode: bool = True,
        max_file_size_mb: int = 10,
        *,
        on_exists: OnExists = "error",
    ) -> None:
        if max_file_size_mb < 0:
            raise ValueError(f"max_file_size_mb must not be negative, but is {max_file_size_mb}")
        self.cwd = Path(root_dir if root_dir is not None else ".").resolve()
        self.virtual_mode = virtual_mode
        self.max_file_size_bytes = self.max_search_bytes = max_file_size_mb * 1024 * 1024
        volume = DirectoryVolume(root_dir if root_dir is not None else ".")  # a link on the way may be switched
        super().__init__(volume, on_exists=on_exists)
        if not virtual_mode:
            self._named = self._host()

    volume: DirectoryVolume

    def _where(self) -> str:
        return repr(str(self.cwd))

    def _host(self) -> HostVolume:
        """The machine's tree, with the lock of the mounted one: its changes are reported to the mount as well."""
        host = HostVolume()
        host.lock = self.volume.lock

        def relay(change: Change) -> None:
            node, parent = self.volume.twin(host, change.node), self.volume.twin(host, change.parent)
            if node is not None or parent is not None:  # else the mount does not know the file
                self.volume.tell([Change(node, parent, change.name if parent is not None else None)])

        def relay_paths(changes: Sequence[Change]) -> Callable[[], None]:
            return self.volume.report([seen for change in changes if (seen := self._seen(host, change)) is not None])

        def relay_guard(node: int) -> Callable[[], None]:
            stack = contextlib.ExitStack()
            twin = self.volume.twin(host, node)
            if twin is not None:
                stack.enter_context(self.volume.rewriting(twin))
            return stack.close

        host.subscribe(relay)
        host.observe(relay_paths)
        host.guard(relay_guard)
        return host

    def _seen(self, host: HostVolume, change: Change) -> Change | None:
        """A change with paths of the machine as one of `root_dir`, None for one outside of it."""
        path = self._inner(change.path)
        if change.moved_from is None:
            return None if path is None else change._replace(path=path)
        before = self._inner(change.moved_from)
        if path is not None and before is not None:
            return change._replace(path=path, moved_from=before, node=self.volume.twin(host, change.node))
        if path is not None:
            return Change(kind="created", path=path)
        return None if before is None else Change(kind="deleted", path=before)

    def _inner(self, path: str) -> str | None:
        root = str(self.cwd)
        return path[len(root) if root != "/" else 0 :] if paths.is_below(path, root) else None

    def close(self) -> None:
        self._named.close()
        super().close()

    # -- paths -------------------------------------------------------------------------------------------------

    def _path(self, path: str) -> AgentPath:
        if not isinstance(path, str) or not path:
            raise PathError("Path is empty")
        if not self.virtual_mode:
            return paths.normalise(os.path.normpath(os.path.join(self.cwd, path)))
        if ".." in path.split("/"):
            raise PathError(f"Path traversal not allowed: '{path}' holds '..'")
        return paths.normalise(path)

    # -- searching ---------------------------------------------------------------------------------------------

    def _search(self, path: AgentPath, matcher: Matcher | None, pattern: str | None = None) -> Search:
        """With searches that make no nodes."""
        walk = LocalWalk if pattern is None else partial(SievedWalk, pattern, self.max_search_bytes)
        return FileSearch(self._named, path, matcher, self.max_search_bytes, walk, read_local)

    def _start(self, path: str | None) -> str | None:
        """Where a search begins: without a path, in `root_dir`."""
        return str(self.cwd) if path is None and not self.virtual_mode else path

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        """As for every backend, and with `context_lines` lines before and after each match (deepagents')."""
        if context_lines < 0:
            return GrepResult(error=f"context_lines must not be negative, and is {context_lines}")
        result = super().grep(pattern, self._start(path), glob, max_count=max_count)
        if context_lines and result.matches:
            self._add_context(result, pattern, context_lines)
        return result

    def _add_context(self, result: GrepResult, pattern: str, context_lines: int) -> None:
        """Read the files of matches once more; files that can't be read by now are `missing`."""
        by_path: dict[str, list[GrepMatch]] = {}
        for match in result.matches or ():
            by_path.setdefault(match["path"], []).append(match)
        gone = []
        for path, matches in by_path.items():
            (file,) = self.download_files([path])
            if file.content is None:
                gone.append(path)
                continue
            lines = file.content.decode("utf-8", "replace").removesuffix("\n").split("\n")
            for match in matches:
                number = match["line"]
                before = range(max(1, number - context_lines), number)
                after = range(number + 1, min(len(lines), number + context_lines) + 1)
                match["context_before"] = _lines_without(pattern, lines, before)
                match["context_after"] = _lines_without(pattern, lines, after)
        if gone:
            result.missing = f"Context of files that can't be read any more: {', '.join(gone)}"

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """With `virtual_mode=False`, the path `/` means `root_dir`, as in the seeds: it is their default."""
        return super().glob(pattern, self._start(None if path == "/" else path))


def _lines_without(pattern: str, lines: list[str], numbers: range) -> list[ContextLine]:
    """Those of these lines, counted from 1, that don't match themselves."""
    return [ContextLine(line=n, text=lines[n - 1]) for n in numbers if pattern not in lines[n - 1]]


def _directory(url: Url) -> str:
    if not os.path.exists(url.rest):
        raise UrlError(f"'{url.masked}': there is no directory '{url.rest}'")
    if not os.path.isdir(url.rest):
        raise UrlError(f"'{url.masked}': '{url.rest}' is not a directory")
    return url.rest


class LocalShellBackend(FilesystemBackend, SandboxBackendProtocol):
    """Files in a directory on disk, and its shell.

    A command runs as this process's user, in `root_dir`, and nothing confines it: `virtual_mode` is about the paths of
    the file verbs alone. To confine commands to the files, mount the backend and use the mount's `execute`.

    Args:
        root_dir: a directory that exists, where commands start; the current one when None.
        virtual_mode: confine the paths of the file verbs to `root_dir`.
        timeout: seconds that a command may take by default.
        max_output_bytes: output beyond this is dropped, and the answer says `truncated`.
        env: environment variables of the commands.
        inherit_env: start from this process's environment. By default commands know none of it, for it may hold keys.
        max_file_size_mb, on_exists: as for `FilesystemBackend`.
    """

    schemes: ClassVar = {
        "shell": Scheme(
            "shell:PATH",
            "the same, and agents may run commands there",
            lambda url: LocalShellBackend(_directory(url), **url.parameters),
            takes="path",
            parameters={**MAX_FILE_SIZE, **COMMANDS, **ON_EXISTS},
            features=DirectoryVolume.features,
            execute=True,
        )
    }

    def __init__(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        virtual_mode: bool = True,
        timeout: int = 120,
        max_output_bytes: int = 100_000,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = False,
        *,
        max_file_size_mb: int = 10,
        on_exists: OnExists = "error",
    ) -> None:
        require_positive(timeout, max_output_bytes)
        super().__init__(root_dir, virtual_mode, max_file_size_mb, on_exists=on_exists)
        self.timeout = timeout
        self.max_output_bytes = max_output_bytes
        self.env = {**(os.environ if inherit_env else {}), **(env or {})}
        self._id = f"local-{uuid.uuid4().hex[:8]}"

    @property
    def id(self) -> str:
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run `command` with `sh -c` in `root_dir`, with no input.

        Processes that it leaves in the background go on, unless it ran out of time or `aexecute` was cancelled: then
        its whole process group is killed. Output is stdout, then the lines of stderr prefixed `[stderr] `.

        Raises:
            ValueError: `timeout` is not above 0.
        """
        seconds = self.timeout if timeout is None else timeout
        require_positive(seconds)
        refusal = nothing_to_run(command)
        if refusal is not None:
            return refusal
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError, UnicodeError) as error:  # the directory is gone; a NUL; longer than 128 KiB
            return ExecuteResponse(output=f"Error executing command: {error}", exit_code=1)
        with process:
            run = StartedProcess(process, self.max_output_bytes)
            end = None
            try:
                end = run.wait(time.monotonic() + seconds)
            finally:
                if end is not End.EXIT:
                    _kill_group(process)
            run.drain()
        with self.volume.changing() as changes:  # it may have changed any file
            changes += [Change(), Change(path="/")]
        return response(run.stdout, run.stderr, end, process.returncode, seconds, self.max_output_bytes)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # The group's number is the child's, which is not reaped yet, so no other group can have it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
