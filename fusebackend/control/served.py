"""`ServedMount`: what a control server asks of the mount that it serves. `server/mounted.py` implements it."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

from fusebackend.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    SandboxBackendProtocol,
    StatResult,
    StatsResult,
)

if TYPE_CHECKING:
    from fusebackend.vfs.watch.queue import Watch


class ServedMount(SandboxBackendProtocol):
    """The agent face of a live mount, and what only a live mount can do.

    Attributes:
        mountpoint: where it is mounted, as an absolute path.
    """

    mountpoint: str

    @abc.abstractmethod
    def upload_from(self, path: str, file: IO[bytes]) -> FileUploadResponse:
        """`upload_files` of one that is in a file."""

    @abc.abstractmethod
    def download_to(self, path: str, file: IO[bytes]) -> FileDownloadResponse:
        """`download_files` of one file into another."""

    @abc.abstractmethod
    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        cwd: str = "/",
        on_output: Callable[[str, bytes], None] | None = None,
        cancelled: threading.Event | None = None,
    ) -> ExecuteResponse:
        """`execute` with all that a shell can be given. `timeout` is in seconds."""

    @abc.abstractmethod
    def status(self) -> dict[str, Any]:
        """What `fusebackend status --json` shows of the mount."""

    @abc.abstractmethod
    def stat(self, path: str, *, follow: bool = False) -> StatResult:
        """What a path is; a symbolic link itself, unless `follow` says otherwise."""

    @abc.abstractmethod
    def stats(self, path: str) -> StatsResult:
        """`stat` of each entry of a directory."""

    @abc.abstractmethod
    def invalidate(self, path: str = "/") -> None:
        """Something behind `path` has been changed by others. PathError, OSError."""

    @abc.abstractmethod
    def watch(self, path: str = "/") -> Watch:
        """The changes at and below a path, from now on. PathError."""
