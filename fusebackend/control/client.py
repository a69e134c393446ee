"""`Client`: the files of a mount that another process serves, with the verbs, records and errors of every backend.

    files = fusebackend.connect("/mnt/agent")
    files.edit("/memories/plan.md", "monday", "tuesday")

It is a `SandboxBackendProtocol`, so it can be a route of a composite or be handed to an agent. It may be used from any
number of threads, and after a fork in both processes: each call has a connection of its own while it lasts, and
connections are kept for the next one. A server that has no room for another one is asked again for a while.

A server that can't be reached is an error in the record (`execute`: in the output), and `ServerLost` from the methods
that have no record. The next call looks for the server of the mount again, so a client outlives a remount. A call that
changes something is sent once only: when the connection breaks while the answer is awaited, nobody knows whether it
was carried out, and the error says so.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

import msgspec

from fusebackend.control import rendezvous, wire
from fusebackend.control.connection import Connection, Refused, ServerLost
from fusebackend.control.pool import Pool, Take
from fusebackend.control.remotewatch import RemoteWatch
from fusebackend.control.verbs import PIECE_BYTES
from fusebackend.mount.error import MountError
from fusebackend.protocol import (
    READ_LIMIT_LINES,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    MoveResult,
    ReadResult,
    SandboxBackendProtocol,
    StatResult,
    WriteResult,
)

BATCH_BYTES = 4 << 20
"""How much content one `upload_files` message carries; a larger file is staged in pieces."""

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]
T = TypeVar("T")
Failures = (Refused, ServerLost)


def connect(path: str | os.PathLike[str] | None = None) -> Client:
    """A client of the mount that `path` lies in; of the environment variable FUSEBACKEND_MOUNT without one.

    Raises:
        MountError: there is neither; it lies in no mount of fusebackend; the mount's server is gone, hung or another
            user's.
    """
    path = path or os.environ.get("FUSEBACKEND_MOUNT")
    if not path:
        raise MountError(errno.EINVAL, "say which mount: give connect() a path in it, or set FUSEBACKEND_MOUNT")
    client = Client(path)
    try:
        client.hello()
    except Refused as error:
        raise MountError(errno.EPERM, str(error)) from None
    except ServerLost as error:
        raise MountError(errno.ENOTCONN, str(error)) from None
    return client


class Client(SandboxBackendProtocol):
    """See the module's docstring.

    Args:
        path: the mount point, or any path below it, or a symbolic link to one.

    Attributes:
        mountpoint: where the mount is.

    Raises:
        MountError: the path lies in no mount of fusebackend.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._begin(rendezvous.split(path, follow=True)[0])

    def _begin(self, mountpoint: str) -> None:
        self.mountpoint = mountpoint
        self._pool = Pool(self._connect)

    def close(self) -> None:
        """Close the connections that are kept. The client can still be used: it makes new ones."""
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        return f"fusebackend:{self.mountpoint}"

    # -- reading -----------------------------------------------------------------------------------------------

    def ls(self, path: str) -> LsResult:
        return self._record(LsResult, "ls", {"path": path})

    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        return self._record(ReadResult, "read", {"file_path": file_path, "offset": offset, "limit": limit})

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        params = {"pattern": pattern, "path": path, "glob": glob, "max_count": max_count, "stream": True}
        matches: list[GrepMatch] = []
        result = self._record(GrepResult, "grep", params, _collecting(list[GrepMatch], matches))
        return result if result.error is not None else replace(result, matches=matches)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        matches: list[FileInfo] = []
        params = {"pattern": pattern, "path": path, "stream": True}
        result = self._record(GlobResult, "glob", params, _collecting(list[FileInfo], matches))
        return result if result.error is not None else replace(result, matches=matches)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        contents: dict[int, bytearray] = {}

        def take(params: Mapping[str, Any]) -> None:
            contents.setdefault(params["index"], bytearray()).extend(msgspec.convert(params["data"], bytes))

        asked = list(paths)
        try:
            answers: list[FileDownloadResponse] = self._pool.call(
                list[FileDownloadResponse], "download_files", {"paths": asked, "stream": True}, take
            )
        except Failures as error:
            return [FileDownloadResponse(path, error=str(error)) for path in asked]
        for index, answer in enumerate(answers):
            if answer.error is None:
                answer.content = bytes(contents.get(index, b""))
        return answers

    def fetch(self, path: str, take: Callable[[bytes], None]) -> FileDownloadResponse:
        """`download_files` of one file of any size: `take` gets the bytes as they come, the answer has none."""
        try:
            answers: list[FileDownloadResponse] = self._pool.call(
                list[FileDownloadResponse],
                "download_files",
                {"paths": [path], "stream": True},
                lambda piece: take(msgspec.convert(piece["data"], bytes)),
            )
        except Failures as error:
            return FileDownloadResponse(path, error=str(error))
        return answers[0]

    def stat(self, path: str, *, follow: bool = False) -> StatResult:
        """What a path is; a symbolic link itself, unless `follow` says otherwise."""
        return self._record(StatResult, "stat", {"path": path, "follow": follow})

    # -- changing ----------------------------------------------------------------------------------------------

    def write(self, file_path: str, content: str) -> WriteResult:
        return self._record(WriteResult, "write", {"file_path": file_path, "content": content})

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        params = {
            "file_path": file_path, "old_string": old_string, "new_string": new_string, "replace_all": replace_all,
        }  # fmt: skip
        return self._record(EditResult, "edit", params)

    def delete(self, file_path: str) -> DeleteResult:
        return self._record(DeleteResult, "delete", {"file_path": file_path})

    def move(self, source: str, destination: str) -> MoveResult:
        return self._record(MoveResult, "move", {"source": source, "destination": destination})

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        answers: list[FileUploadResponse] = []
        batch: list[dict[str, Any]] = []
        size = 0
        for path, content in files:
            if not isinstance(content, (bytes, bytearray, memoryview)):
                answers += self._upload(batch)
                batch, size = [], 0
                error = f"content must be bytes, not {type(content).__name__}"
                answers.append(FileUploadResponse(path, error))
                continue
            if len(content) > BATCH_BYTES:
                answers += self._upload(batch)
                batch, size = [], 0
                answers.append(self.send(path, _pieces(content)))
                continue
            if size + len(content) > BATCH_BYTES:
                answers += self._upload(batch)
                batch, size = [], 0
            batch.append({"path": path, "content": bytes(content)})
            size += len(content)
        return answers + self._upload(batch)

    def _upload(self, batch: list[dict[str, Any]]) -> list[FileUploadResponse]:
        if not batch:
            return []
        try:
            return self._pool.call(list[FileUploadResponse], "upload_files", {"files": batch})
        except Failures as error:
            return [FileUploadResponse(item["path"], str(error)) for item in batch]

    def send(self, path: str, pieces: Iterable[bytes]) -> FileUploadResponse:
        """`upload_files` of one file that comes in pieces, each taken when the one before it is sent.

        They go over one connection: what is staged belongs to it. The file changes when all of them have arrived.
        """
        try:
            with self._pool.begun(str, "stage", {"data": b""}) as (connection, token):
                for piece in pieces:
                    for part in _pieces(piece):
                        connection.call(str, "stage", {"data": part, "token": token})
                files = [{"path": path, "staged": token}]
                return connection.call(list[FileUploadResponse], "upload_files", {"files": files})[0]
        except Failures as error:
            return FileUploadResponse(path, str(error))

    # -- execution ---------------------------------------------------------------------------------------------

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command in a shell that sees every route at the path the other verbs use.

        Raises:
            ValueError: `timeout` is not above 0, or above what the mount's configuration allows (`max_timeout`).
        """
        return self.run(command, timeout=timeout)

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        cwd: str = "/",
        on_output: OnOutput | None = None,
    ) -> ExecuteResponse:
        """`execute` with all that a shell can be given, see `MountedBackend.run`."""
        params = {"command": command, "timeout": timeout, "stdin": stdin, "cwd": cwd, "stream": on_output is not None}

        def take(params: Mapping[str, Any]) -> None:
            if on_output is not None:
                on_output(params["stream"], msgspec.convert(params["data"], bytes))

        try:
            return self._pool.call(ExecuteResponse, "execute", params, take)
        except Refused as error:
            if error.code == wire.INVALID_PARAMS:
                raise ValueError(str(error)) from None
            return ExecuteResponse(output=f"Error: {error}", exit_code=1)
        except ServerLost as error:
            return ExecuteResponse(output=f"Error: {error}", exit_code=None)

    # -- the mount ---------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """What the server says of itself: protocol, version, mount point, process id, verbs."""
        return self._pool.call(dict[str, Any], "hello", {})

    def ping(self, payload: Any = None) -> Any:
        """What was sent, back again."""
        return self._pool.call(object, "ping", {"payload": payload})

    def status(self) -> dict[str, Any]:
        """The mount as `fusebackend status --json` shows it."""
        return self._pool.call(dict[str, Any], "status", {})

    def invalidate(self, path: str = "/") -> None:
        """Something behind `path` has been changed by others: believe nothing that is known of it.

        Raises:
            ValueError: the path is malformed.
        """
        try:
            self._pool.call(type(None), "invalidate", {"path": path})
        except Refused as error:
            raise error.as_exception() from None

    def watch(self, path: str = "/") -> RemoteWatch:
        """The changes at and below a path, from now on, whichever face makes them. Close it when done.

        Raises:
            ValueError: the path is malformed.
            ServerLost: the server can't be reached.
        """
        try:
            connection, _ = self._pool.ask(str, "subscribe", {"path": path})
        except Refused as error:
            raise error.as_exception() from None
        return RemoteWatch(connection)

    # -- calls -------------------------------------------------------------------------------------------------

    def _record(self, kind: type[T], verb: str, params: dict[str, Any], take: Take | None = None) -> T:
        """An agent verb: whatever goes wrong is an error in its record."""
        try:
            return self._pool.call(kind, verb, params, take)
        except Failures as error:
            return msgspec.convert({"error": str(error)}, kind)

    def _connect(self) -> Connection:
        try:
            return Connection(rendezvous.socket_at(self.mountpoint), self.mountpoint)
        except MountError as error:
            raise ServerLost(str(error.strerror)) from None


def _collecting(kind: Any, found: list[Any]) -> Callable[[Mapping[str, Any]], None]:
    return lambda params: found.extend(msgspec.convert(params["matches"], kind))


def _pieces(content: bytes | bytearray | memoryview) -> Iterator[bytes]:
    view = memoryview(content).cast("B")
    return (bytes(view[start : start + PIECE_BYTES]) for start in range(0, len(view), PIECE_BYTES))
