"""`Client`: the files of a mount that another process serves, with the verbs, records and errors of every backend.

    files = fusebackend.connect("/mnt/agent")
    files.edit("/memories/plan.md", "monday", "tuesday")

It is a `SandboxBackendProtocol`, so it can be a route of a composite or be handed to an agent. It may be used from any
number of threads, and after a fork in both processes: each call has a connection of its own while it lasts, and
connections are kept for the next one. A server that has no room for another one is asked again for a while.

The `a…` forms of its verbs are those of every backend (`base/awaiting.py`). A call that is cancelled hangs up, and so
the server cancels it: a command is killed, a search ends, and a change is carried out if it has begun.

A server that can't be reached is an error in the record (`execute`: in the output), and `ServerLost` from the methods
that have no record. The next call looks for the server of the mount again, so a client outlives a remount. A call that
changes something is sent once only: when the connection breaks while the answer is awaited, the outcome is unknown, and
the error says so.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar, Unpack

import msgspec

from fusebackend.base.batches import by_size
from fusebackend.base.here import absolute
from fusebackend.control import rendezvous, wire
from fusebackend.control.client.client_connection import (
    AnsweredError,
    Connection,
    Pool,
    RemoteWatch,
    ServerLost,
    Take,
)
from fusebackend.control.following import FollowedMount
from fusebackend.control.limits import MAX_ITEMS
from fusebackend.linux import mount_table
from fusebackend.linux.mount_table import MountError
from fusebackend.protocol import (
    NOBODY,
    READ_LIMIT_LINES,
    SERVED,
    Actor,
    BranchInfo,
    Conditions,
    Declared,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    OnOutput,
    PrunedThread,
    ReadResult,
    StatResult,
    conditions_of,
    current_actor,
    not_bytes,
)
from fusebackend.protocol.served import STAT_COLUMNS, DiffForm, MountProtocol
from fusebackend.text import iso_time, read_bytes
from fusebackend.vfs.watch.async_watch import AsyncWatch

BATCH_BYTES = 512 << 10
"""How much of contents and paths one message carries; a larger file is staged in pieces. In base64 it fits into a
message of 1 MiB."""

BATCH_FILES = 500
"""And how many files."""

PIECE_BYTES = 512 << 10
"""How much of a file one message to the server carries when it travels in pieces."""

STAGED_CHARACTERS = 128 << 10
"""A longer text is staged: JSON may take six bytes for a character."""

NOTHING: Mapping[str, str] = MappingProxyType({})

T = TypeVar("T")
Failures = (AnsweredError, ServerLost)


def connect(path: str | os.PathLike[str] | None = None, *, actor: Actor = NOBODY, view: str | None = None) -> Client:
    """A client of the mount that `path` lies in; of the environment variable FUSEBACKEND_MOUNT without one.

    Args:
        path: the mount point, or any path below it; the configuration file of what `fusebackend serve` serves without a
            mount; or a socket of a server, such as one of `view_socket`.
        actor: who makes the changes of this client, where `fusebackend.acting` and a LangGraph run do not say it; its
            `agent`, `thread` and `call`, with which `log` and `undo` find them.
        view: see the mount through this view; through none if it is empty, through the default one, if there is one,
            when None. Verbs that are about what all readers have, such as `log`, are refused in a view.

    Raises:
        MountError: there is no such view; there is neither path nor variable; the path lies in no mount of fusebackend;
            the mount's server is gone, hung or another user's.
    """
    path = path or os.environ.get("FUSEBACKEND_MOUNT")
    if not path:
        raise MountError(errno.EINVAL, "say which mount: give connect() a path in it, or set FUSEBACKEND_MOUNT")
    client = Client(path, actor=actor, view=view)
    try:
        client.hello()
    except AnsweredError as error:
        raise MountError(error.data.get("errno", errno.EPERM), str(error)) from None
    except ServerLost as error:
        raise MountError(errno.ENOTCONN, str(error)) from None
    return client


class Client(FollowedMount):
    """See the module's docstring. Its verbs are made from their table, but for those below.

    Args:
        path: as for `connect`, or a symbolic link to one.
        actor, view: as for `connect`.

    Attributes:
        mountpoint: where the mount is; the path of the socket or the configuration file, if that was given.
        is_mounted: False if a socket or a configuration was given.

    Raises:
        MountError: the path lies in no mount of fusebackend.
    """

    def __init__(self, path: str | os.PathLike[str], *, actor: Actor = NOBODY, view: str | None = None) -> None:
        self.mountpoint, self.is_mounted = rendezvous.place_of(path)
        self.actor = actor
        self.view = view
        self._pool = Pool(self._connect)

    def _where(self) -> str:
        return repr(self.mountpoint)

    def close(self) -> None:
        """Close the connections that are kept. The client can still be used: it makes new ones."""
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- verbs whose parameters or answers travel in another form; the others are made at the end ---------------

    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        params = {"file_path": file_path, "offset": offset, "limit": limit}
        try:
            return self._call(ReadResult, "read", params)
        except Failures as error:
            is_long = isinstance(error, AnsweredError) and error.code == wire.BUSY
            return (self._read_here(file_path, offset, limit) if is_long else None) or ReadResult(error=str(error))

    def _read_here(self, file_path: str, offset: int, limit: int) -> ReadResult | None:
        """`read`, of a window or a binary file that does not fit into one answer: from a download. None without one."""
        (whole,) = self.download_files([file_path])
        if whole.content is None:
            return None
        result = read_bytes(file_path, whole.content, offset, limit)
        result.version = whole.version
        found = self._record(StatResult, "stat", {"path": file_path, "follow": True})
        if result.file_data is not None and found.mtime_ns is not None:
            result.file_data["modified_at"] = iso_time(found.mtime_ns)
        return result

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        contents: dict[int, bytearray] = {}
        answers = self.fetch(paths, lambda index, piece: contents.setdefault(index, bytearray()).extend(piece))
        for index, answer in enumerate(answers):
            if answer.error is None:
                answer.content = bytes(contents.get(index, b""))
        return answers

    def fetch(self, paths: Sequence[str], take: Callable[[int, bytes], None]) -> list[FileDownloadResponse]:
        """`download_files` of files of any size: `take` gets an index and bytes as they come, the answers have none."""
        answers: list[FileDownloadResponse] = []
        for batch in by_size(paths, _path_size, MAX_ITEMS, BATCH_BYTES):
            start = len(answers)

            def taken(piece: Mapping[str, Any], start: int = start) -> None:
                take(start + piece["index"], msgspec.convert(piece["data"], bytes))

            try:
                params = {"paths": batch, "stream": True}
                answers += self._call(list[FileDownloadResponse], "download_files", params, taken)
            except Failures as error:
                answers += [FileDownloadResponse(path, error=str(error)) for path in batch]
        return answers

    def real_paths(self, wanted: list[str]) -> list[str | None]:
        found: list[str | None] = []
        for batch in by_size(wanted, _path_size, MAX_ITEMS, BATCH_BYTES):
            found += self._done(list[str | None], "real_paths", {"paths": batch})
        return found

    def append(self, path: str, pieces: Iterable[bytes]) -> None:
        try:
            self._staged(type(None), "append", [pieces], lambda token: {"path": path, "staged": token})
        except AnsweredError as error:
            raise error.as_exception(path) from None

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        conditions = conditions_of(len(files), if_version, if_absent)
        items = [(path, content, when) for (path, content), when in zip(files, conditions, strict=True)]
        answers: list[FileUploadResponse] = []
        for batch in by_size(items, _upload_size, BATCH_FILES, BATCH_BYTES):
            path, content, when = batch[0]
            if (refusal := not_bytes(path, content)) is not None:
                answers.append(refusal)
            elif len(content) > BATCH_BYTES:
                answers.append(self.send(path, _pieces(content), **when))
            else:
                answers += self._upload(
                    [{"path": path, "content": bytes(content), **when} for path, content, when in batch]
                )
        return answers

    def _upload(self, batch: list[dict[str, Any]]) -> list[FileUploadResponse]:
        try:
            return self._call(list[FileUploadResponse], "upload_files", {"files": batch})
        except Failures as error:
            return [FileUploadResponse(item["path"], str(error)) for item in batch]

    def send(self, path: str, pieces: Iterable[bytes], **when: Unpack[Conditions]) -> FileUploadResponse:
        """`upload_files` of one file that comes in pieces, each taken when the one before it is sent.

        They go over one connection: staged content belongs to it. The file changes when all of them have arrived.
        """

        def params(token: str) -> Mapping[str, Any]:
            return {"files": [{"path": path, "staged": token, **when}]}

        try:
            return self._staged(list[FileUploadResponse], "upload_files", [pieces], params)[0]
        except Failures as error:
            return FileUploadResponse(path, str(error))

    # -- execution ---------------------------------------------------------------------------------------------

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        cwd: str = "/",
        on_output: OnOutput | None = None,
    ) -> ExecuteResponse:
        params = {"command": command, "timeout": timeout, "stdin": stdin, "cwd": cwd, "stream": on_output is not None}

        def take(params: Mapping[str, Any]) -> None:
            if on_output is not None:
                on_output(params["stream"], msgspec.convert(params["data"], bytes))

        try:
            return self._call(ExecuteResponse, "execute", params, take, staged={"stdin": "staged"})
        except AnsweredError as error:
            if error.code == wire.INVALID_PARAMS:
                raise ValueError(str(error)) from None
            return ExecuteResponse(output=f"Error: {error}", exit_code=1)
        except ServerLost as error:
            return ExecuteResponse(output=f"Error: {error}", exit_code=None)

    # -- the mount ---------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """Return the server's description of itself: protocol, version, mount point, process id, verbs."""
        return self._call(dict[str, Any], "hello", {})

    def ping(self, payload: Any = None) -> Any:
        """Return the payload."""
        return self._call(object, "ping", {"payload": payload})

    def create_branch(
        self, name: str, ref: str | None = None, directory: str | os.PathLike[str] | None = None
    ) -> BranchInfo:
        place = None if directory is None else absolute(directory)
        return self._done(BranchInfo, "create_branch", {"name": name, "ref": ref, "directory": place})

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
        found: list[bytes] = []
        on_text = found.append if on_text is None else on_text
        params = {"call": call, "paths": list(paths), "form": form, "columns": columns, "stream": True,
                  "report": on_skipped is not None}  # fmt: skip

        def take(given: Mapping[str, Any]) -> None:
            if on_skipped is not None and "reason" in given:
                on_skipped(given["path"], given["reason"])
            else:
                on_text(msgspec.convert(given["data"], bytes))

        self._done(str, "diff", params, take)
        return b"".join(found).decode()

    def prune_threads(
        self, *paths: str, on_progress: Callable[[str, int, int], None] | None = None, **given: Any
    ) -> list[PrunedThread]:
        def take(told: Mapping[str, Any]) -> None:
            if on_progress is not None:
                on_progress(told["thread"], told["done"], told["total"])

        params = {**given, "paths": paths, "report": on_progress is not None}
        return self._done(list[PrunedThread], "prune_threads", params, take)

    def begin_call(self, title: str, *, pid: int | None = None, id: str = "", agent: str = "", thread: str = "") -> str:
        params = {"title": title, "pid": pid or os.getpid(), "id": id, "agent": agent, "thread": thread}
        return self._done(str, "begin_call", params)

    def has_ended(self) -> bool:
        if self.is_mounted:
            entry = mount_table.mount_at(self.mountpoint)
            return entry is None or not entry.is_ours
        try:
            self.hello()
        except ServerLost:
            return True
        return False

    def watch(self, path: str = "/") -> RemoteWatch:
        """The changes at and below a path, from now on, whichever face makes them. Close it when done.

        Raises:
            ValueError: the path is malformed.
            ServerLost: the server can't be reached.
        """
        try:
            connection, _ = self._pool.ask(str, "subscribe", {"path": path})
        except AnsweredError as error:
            raise error.as_exception() from None
        return RemoteWatch(connection)

    def awatch(self, path: str = "/") -> AsyncWatch:
        """`watch`, as an async iterator under asyncio and trio:

            async with files.awatch("/memories") as changes:
                async for change in changes:
                    ...

        The server tells of changes from the beginning of the block on; without one, from the first step on. It ends,
        and its subscription with it, at the end of the block, and when a step is cancelled.

        Raises:
            ValueError: the path is malformed. Here and below: when it begins.
            ServerLost: the server can't be reached.
        """
        return AsyncWatch(functools.partial(self.watch, path))

    def _done(self, kind: type[T], verb: str, params: Mapping[str, Any], take: Take | None = None) -> T:
        """Call a verb of the mount; it raises what the same call raises in the server's own process."""
        try:
            return self._call(kind, verb, params, take)
        except AnsweredError as error:
            raise error.as_exception(params.get("path")) from None

    # -- calls -------------------------------------------------------------------------------------------------

    def _record(
        self,
        kind: type[T],
        verb: str,
        params: dict[str, Any],
        take: Take | None = None,
        staged: Mapping[str, str] = NOTHING,
    ) -> T:
        """An agent verb: errors become its record's `error`."""
        try:
            return self._call(kind, verb, params, take, staged)
        except Failures as error:
            return wire.convert({"error": str(error)}, kind)

    def _matches(self, kind: Any, verb: str, params: dict[str, Any]) -> Any:
        """A search, whose matches come as they are found."""
        matches: list[Any] = []

        def take(piece: Mapping[str, Any]) -> None:
            matches.extend(wire.convert(piece, kind).matches)

        result = self._record(kind, verb, params, take)
        return result if result.error is not None else replace(result, matches=matches)

    def _call(
        self,
        kind: type[T],
        verb: str,
        params: Mapping[str, Any],
        take: Take | None = None,
        staged: Mapping[str, str] = NOTHING,
    ) -> T:
        """A call. Of the parameters in `staged`, those that are too long for a message go first, and their tokens under
        the names given there. Bytes in place of text are refused here: JSON would have them as base64, which is text.
        """
        for name, value in params.items():
            if isinstance(value, (bytes, bytearray, memoryview)) and name != "stdin":
                raise AnsweredError(
                    wire.ErrorObject(wire.INVALID_PARAMS, f"{verb}: Expected 'str', got 'bytes' - at '$.{name}'")
                )
        long = {name: content for name in staged if (content := _content(params[name])) is not None}
        if long:
            rest = {name: value for name, value in params.items() if name not in long}
            names = [staged[name] for name in long]
            contents = [(content,) for content in long.values()]
            return self._staged(
                kind, verb, contents, lambda *tokens: {**rest, **dict(zip(names, tokens, strict=True))}, take
            )
        connection, answer = self._pool.ask(kind, verb, params, take)
        self._pool.give_back(connection)
        return answer

    def _staged(
        self,
        kind: type[T],
        verb: str,
        contents: Sequence[Iterable[bytes]],
        params: Callable[..., Mapping[str, Any]],
        take: Take | None = None,
    ) -> T:
        """A call whose contents go before it, over the same connection: what is staged belongs to that. `params` makes
        its parameters of their tokens."""
        connection, token = self._pool.ask(str, "stage", {"data": b""})
        tokens: list[str] = []
        try:
            for pieces in contents:
                token = connection.call(str, "stage", {"data": b""}) if tokens else token
                tokens.append(token)
                for part in itertools.chain.from_iterable(map(_pieces, pieces)):
                    connection.call(str, "stage", {"data": part, "token": token})
            answer = connection.call(kind, verb, params(*tokens), take)
        except BaseException:
            connection.close()
            raise
        self._pool.give_back(connection)
        return answer

    def _connect(self) -> Connection:
        try:
            find = rendezvous.socket_at if self.is_mounted else rendezvous.socket_of
            actor = functools.partial(current_actor, self.actor)
            connection = Connection(find(self.mountpoint), self.mountpoint, actor)
        except MountError as error:
            raise ServerLost(str(error.strerror)) from None
        if self.view is not None:
            try:
                connection.call(dict[str, Any], "hello", {"view": self.view})
            except BaseException:
                connection.close()
                raise
        return connection


def _content(value: Any) -> bytes | None:
    """Return the content of a parameter that has to be staged; None if it fits into a message, or can't be of the right
    type."""
    if isinstance(value, str) and len(value) > STAGED_CHARACTERS:
        return value.encode("utf-8", "surrogatepass")
    return value if isinstance(value, bytes) and len(value) > PIECE_BYTES else None


def _upload_size(item: tuple[str, bytes, Conditions]) -> int:
    """Return the size of a file with its path; of a refused file, more than goes with others."""
    path, content, _ = item
    return BATCH_BYTES + 1 if not_bytes(path, content) is not None else len(content) + _path_size(path)


def _path_size(path: str) -> int:
    """Return what a path takes of a message at most: a character that is not printable is an escape."""
    return len(path) * (4 if path.isprintable() else 6)


def _pieces(content: bytes | bytearray | memoryview) -> Iterator[bytes]:
    view = memoryview(content).cast("B")
    return (bytes(view[start : start + PIECE_BYTES]) for start in range(0, len(view), PIECE_BYTES))


# -- what is made from the table of verbs -------------------------------------------------------------------------


def _over_socket(declared: Declared) -> Callable[..., Any]:
    """Return a verb whose parameters and answer go over the socket as they are."""

    @functools.wraps(declared.method)
    def asked(self: Client, *args: Any, **options: Any) -> Any:
        given = declared.signature.bind(*args, **options)
        given.apply_defaults()
        kind, params = declared.signature.return_annotation, given.arguments
        if declared.streams:
            return self._matches(kind, declared.name, {**params, "stream": True})
        if declared.in_record:
            return self._record(kind, declared.name, params, staged=declared.staged)
        return self._done(type(None) if kind is None else kind, declared.name, params)

    return asked


for _name, _declared in SERVED.items():
    if getattr(Client, _name) is getattr(MountProtocol, _name):
        setattr(Client, _name, _over_socket(_declared))
