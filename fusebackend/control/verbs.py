"""The table of verbs: the methods of the control socket, with their parameters.

Every agent verb has the parameters and the record that it has in Python (`protocol/agent.py`). A verb is run by the
server in a thread of the connection; a verb that may take long has a thread of its own, so that the connection goes on
and can cancel it, and may stream its matches.
"""

from __future__ import annotations

import abc
import errno
import inspect
import io
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, cast

import msgspec

from fusebackend import protocol
from fusebackend.base.batches import by_size
from fusebackend.base.budget import Cancellation, Spent
from fusebackend.base.version import __version__
from fusebackend.control import limits
from fusebackend.control.limits import MAX_ITEMS, NoRoom
from fusebackend.linux.command import Command, OnOutput
from fusebackend.protocol import (
    Actor,
    ApprovalInfo,
    BlameResult,
    BranchInfo,
    CallInfo,
    ChangeInfo,
    ExecuteResponse,
    Explained,
    FileDownloadResponse,
    FileRange,
    FileUploadResponse,
    ForgetResult,
    MergeResult,
    PruneResult,
    RestoreResult,
    SandboxBackendProtocol,
    SnapshotInfo,
    SpaceInfo,
    StatResult,
    StatsResult,
    UndoResult,
    VerifyResult,
    ViewInfo,
)

if TYPE_CHECKING:
    from fusebackend.control.staging import Staging
    from fusebackend.vfs.watch.queue import Watch

PROTOCOL = 1
"""Version of the verbs and their records. It grows when something that was there changes its meaning."""

PIECE_BYTES = 512 << 10
"""How much of a file one message to the server carries when it travels in pieces."""

DOWNLOAD_BYTES = 128 << 10
"""And one from the server: each connection with a client that does not read holds one of these."""

PIECE_MATCHES = 500
"""How many matches one message carries when they stream."""

PIECE_TEXT = 256 << 10
"""And how much text of matches, in characters."""

MAX_CONTENT_BYTES = 8 << 20
"""How much content of files one answer carries that does not stream."""

MAX_INPUT_BYTES = 32 << 20
"""The longest input of a command: it is held in memory."""

LOGGED_CALLS = 100
"""Calls that one answer of `log` has, unless the client asks for another number."""

LISTED_CHANGES = 1000
"""Changes that one answer of `changes` has, likewise."""

DiffForm: TypeAlias = Literal["patch", "stat", "names", "json"]

STAT_COLUMNS = 80
"""Width of `diff` with `form="stat"`, unless the client asks for another one."""

NOT_HELD = "not both states hold it"
"""Why `diff` did not compare a route."""

MAX_ACTOR_CHARACTERS = 1000
"""Of each word that a client has for itself. The history keeps it with every call."""

SPOOLED_BYTES = 64 << 10
"""A file that is larger is copied to disk for the time of its download."""


class ServedMount(SandboxBackendProtocol):
    """The agent face of a live mount, and the verbs of mounts alone.

    Attributes:
        mountpoint: where it is mounted, as an absolute path.
        is_mounted: False where only the verbs are served; `mountpoint` then stands for what is served.
    """

    mountpoint: str
    is_mounted: bool = True

    @abc.abstractmethod
    def upload_from(self, path: str, file: IO[bytes]) -> FileUploadResponse:
        """`upload_files` of one file, from an open file."""

    @abc.abstractmethod
    def download_to(self, path: str, file: IO[bytes]) -> FileDownloadResponse:
        """`download_files` of one file into another."""

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        cwd: str = "/",
        on_output: OnOutput | None = None,
        cancelled: threading.Event | None = None,
    ) -> ExecuteResponse:
        """`execute` with everything that a command can be given; `Command` describes the arguments, `timeout` is in
        seconds.

        Raises:
            ValueError: `timeout` is not above 0, or above the maximum of the place where commands run.
        """
        return self.run_command(Command(command, timeout, stdin, cwd, on_output, cancelled))

    @abc.abstractmethod
    def run_command(self, command: Command) -> ExecuteResponse:
        """Run a command where the default backend does, with every route at the path that the other verbs use."""

    @abc.abstractmethod
    def status(self) -> dict[str, Any]:
        """Return the mount as `fusebackend status --json` shows it."""

    @abc.abstractmethod
    def metrics(self) -> str:
        """Return what is measured of the mount, in the text format of Prometheus. OSError: ENOTSUP, prometheus-client
        is not installed."""

    @abc.abstractmethod
    def stat(self, path: str, *, follow: bool = False) -> StatResult:
        """Return the attributes of a path; a symbolic link itself, unless `follow` says otherwise."""

    @abc.abstractmethod
    def stats(self, path: str) -> StatsResult:
        """`stat` of each entry of a directory."""

    @abc.abstractmethod
    def read_range(self, path: str, offset: int, size: int) -> FileRange:
        """Return bytes of a file from `offset` on, at most `size`. ValueError, OSError."""

    @abc.abstractmethod
    def append_from(self, path: str, file: IO[bytes]) -> None:
        """Add the contents of an open file at the end of a file. ValueError, OSError."""

    @abc.abstractmethod
    def make_directory(self, path: str, *, parents: bool = False) -> None:
        """Make a directory, with `parents` also those on the way. ValueError, OSError."""

    @abc.abstractmethod
    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. ValueError, OSError."""

    @abc.abstractmethod
    def invalidate(self, path: str = "/") -> None:
        """Something behind `path` has been changed by others. PathError, OSError."""

    @abc.abstractmethod
    def snapshots(self) -> list[SnapshotInfo]:
        """Return the snapshots of the mount, the oldest first."""

    @abc.abstractmethod
    def create_snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Take a snapshot of every route that keeps any. ValueError, OSError."""

    @abc.abstractmethod
    def delete_snapshots(self, *names: str) -> None:
        """Delete snapshots: all of these, or none if one is not there. OSError."""

    @abc.abstractmethod
    def views(self) -> list[ViewInfo]:
        """Return the views of the mount."""

    @abc.abstractmethod
    def explain(self, view: str, operation: str, path: str) -> Explained:
        """Return what a view does about an operation on a path, and why. ValueError, OSError."""

    @abc.abstractmethod
    def approvals(self) -> list[ApprovalInfo]:
        """Return the changes that wait for an approval, and those decided lately, by number."""

    @abc.abstractmethod
    def approval(self, number: int) -> ApprovalInfo:
        """Return a request for an approval, with its change as text. OSError."""

    @abc.abstractmethod
    def approve(self, number: int) -> ApprovalInfo:
        """Approve a request, and have its change happen. OSError."""

    @abc.abstractmethod
    def deny(self, number: int, reason: str | None = None) -> ApprovalInfo:
        """Deny a request. OSError."""

    @abc.abstractmethod
    def viewed(self, name: str) -> ServedMount:
        """Return the mount through a view. OSError: ENOENT, there is none of that name."""

    @abc.abstractmethod
    def view_socket(self, name: str) -> str:
        """Return the path of a socket whose clients see the mount through a view, for good. OSError."""

    @property
    @abc.abstractmethod
    def default_view(self) -> str | None:
        """The view of clients that name none."""

    @abc.abstractmethod
    def branches(self) -> list[BranchInfo]:
        """Return the branches of the mount, by name."""

    @abc.abstractmethod
    def create_branch(self, name: str, ref: str | None = None, directory: str | None = None) -> BranchInfo:
        """Make a branch, and put it into a directory of this machine. ValueError, OSError."""

    @abc.abstractmethod
    def take_in_branch(self, name: str) -> None:
        """Take what was changed in the directory of a branch into the branch. OSError."""

    @abc.abstractmethod
    def delete_branches(self, *names: str) -> None:
        """Delete branches: all of these, or none if one is not there. OSError."""

    @abc.abstractmethod
    def merge_branch(
        self,
        name: str,
        paths: list[str] | None = None,
        keep: Literal["main", "branch"] | None = None,
        merge_lines: bool = False,
        dry_run: bool = False,
    ) -> MergeResult:
        """Merge a branch into the mount. ValueError, OSError."""

    @abc.abstractmethod
    def log(
        self,
        calls: tuple[str, ...] = (),
        *,
        by: str | None = None,
        since: int | str | None = None,
        paths: tuple[str, ...] = (),
        before: str | None = None,
        ended_after_ns: int | None = None,
        limit: int = LOGGED_CALLS,
        branch: str | None = None,
    ) -> list[CallInfo]:
        """Return calls that changed something, the newest first. ValueError, OSError."""

    @abc.abstractmethod
    def changes(
        self, call: str | None = None, *, after: int = 0, limit: int = LISTED_CHANGES, branch: str | None = None
    ) -> list[ChangeInfo]:
        """Return the changes of a call, or of all, in their order. ValueError, OSError."""

    @abc.abstractmethod
    def verify_log(self) -> VerifyResult:
        """Check by its hash chain that the log is as it was written. OSError."""

    @abc.abstractmethod
    def blame(self, path: str, *, branch: str | None = None) -> BlameResult:
        """Return which call left a file as it is, and each of its lines. ValueError, OSError."""

    @abc.abstractmethod
    def diff_pieces(
        self,
        call: str,
        *,
        paths: tuple[str, ...] = (),
        form: DiffForm = "patch",
        columns: int = STAT_COLUMNS,
        on_skipped: Callable[[str, str], None] | None = None,
    ) -> Iterator[bytes]:
        """`diff`, in pieces of whole lines. `on_skipped` is told each path that was not compared, with the reason, and
        each route, with the reason `NOT_HELD`; the text has no routes then. ValueError, OSError."""

    def diff(
        self, call: str, *, paths: tuple[str, ...] = (), form: DiffForm = "patch", columns: int = STAT_COLUMNS
    ) -> str:
        """Return what a call did, and nothing of what others did; or how two states differ.

        Args:
            call: its name, `c42`; or `A..B`, two states, each a snapshot, a branch, a time, a call for the state before
                it, or `main`. `A` alone is compared with `main`.
            paths: only what is at and below these.
            form: `patch` as `git diff` has it, `stat`, `names` (`--name-status`), or `json`, an object a line.
            columns: of `stat`.

        Raises:
            ValueError: it names no call and no state.
            OSError: ENOENT, there is no such call, or it did not change one of the paths, or a path is in neither
                state; ENOTSUP, the mount keeps no history; ENODATA, it lacks changes since the call, or a state holds
                nothing of a path.
        """
        return b"".join(self.diff_pieces(call, paths=paths, form=form, columns=columns)).decode()

    @abc.abstractmethod
    def undo(
        self,
        *calls: str,
        by: str | None = None,
        branch: str | None = None,
        keep_newer: bool = False,
        merge_lines: bool = False,
        dry_run: bool = False,
    ) -> UndoResult:
        """Take calls back: all of their changes, or none. ValueError, OSError."""

    @abc.abstractmethod
    def begin_call(self, title: str, *, pid: int | None = None, id: str = "", agent: str = "", thread: str = "") -> str:
        """Have what a process and its descendants change belong to one call, until `end_call`. OSError."""

    @abc.abstractmethod
    def end_call(self, id: str) -> str | None:
        """End a call of `begin_call`, by its id. OSError."""

    @abc.abstractmethod
    def df(self) -> SpaceInfo:
        """Return what the mount takes of the disk."""

    @abc.abstractmethod
    def prune(self, *, dry_run: bool = False) -> PruneResult:
        """Delete what is kept of the past, but for snapshots that were asked for. OSError."""

    @abc.abstractmethod
    def restore(
        self,
        paths: list[str],
        ref: str,
        *,
        to: list[str] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> RestoreResult:
        """Put files back as they were in another state. ValueError, OSError."""

    @abc.abstractmethod
    def forget(self, *paths: str, dry_run: bool = False) -> ForgetResult:
        """Have all that is kept of the past lose the contents of paths. ValueError, OSError."""

    @abc.abstractmethod
    def watch(self, path: str = "/") -> Watch:
        """The changes at and below a path, from now on. PathError."""


class Call(Protocol):
    """The call that a verb answers."""

    backend: ServedMount
    staging: Staging
    cancelled: Cancellation

    def notify(self, method: str, **params: Any) -> None:
        """Send what there is so far; waits for the reader, and raises `ConnectionError` when there is none."""

    def notify_of(self, method: str, params: Callable[[], Mapping[str, Any]]) -> None:
        """`notify`, with parameters that are made when it is the call's turn to send, so that no piece waits in
        memory."""

    def hold(self, size: int) -> None:
        """So many bytes more are held for the call (`limits.py`)."""

    def introduce(self, actor: Actor) -> None:
        """Have further calls of this connection made by `actor`; user and process are those that the kernel names."""

    def look_through(self, view: str) -> None:
        """Have further calls of this connection see the mount through a view; through none, if its name is empty."""

    def cancel(self, call: int | str) -> bool: ...
    def subscribe(self, path: str) -> str: ...
    def unsubscribe(self, subscription: str) -> bool: ...


class Params(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters are given by name; an unknown name is an error."""


class OfWrite(Params):
    """Contents that don't fit into a message are staged, here and in `edit` and `execute`."""

    file_path: str
    content: str = ""
    staged: str | None = None


class OfEdit(Params):
    file_path: str
    old_string: str = ""
    new_string: str = ""
    replace_all: bool = False
    staged_old: str | None = None
    staged_new: str | None = None


class UploadItem(Params, gc=False):
    """A file: its bytes, or the token of its staged content."""

    path: str
    content: bytes | None = None
    staged: str | None = None


class OfUpload(Params):
    files: Annotated[list[UploadItem], msgspec.Meta(max_length=MAX_ITEMS)]


class OfDownload(Params):
    paths: Annotated[list[str], msgspec.Meta(max_length=MAX_ITEMS)]
    stream: bool = False


class OfExecute(Params):
    command: str
    timeout: float | None = None
    stdin: bytes | None = None
    staged: str | None = None
    cwd: str = "/"
    stream: bool = False


class OfPaths(Params):
    paths: Annotated[list[str], msgspec.Meta(max_length=MAX_ITEMS)]


class OfRange(Params):
    path: str
    offset: Annotated[int, msgspec.Meta(ge=0)]
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTENT_BYTES)]


class OfAppend(Params):
    path: str
    content: bytes | None = None
    staged: str | None = None


class OfScope(Params):
    path: str = "/"


class OfForget(Params):
    paths: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_ITEMS)]
    dry_run: bool = False


class OfNames(Params):
    names: Annotated[list[str], msgspec.Meta(max_length=MAX_ITEMS)]


class OfDiff(Params):
    call: str
    paths: Annotated[list[str], msgspec.Meta(max_length=MAX_ITEMS)] = []
    form: DiffForm = "patch"
    columns: int = STAT_COLUMNS
    stream: bool = False
    report: bool = False


class OfUndo(Params):
    calls: Annotated[list[str], msgspec.Meta(max_length=MAX_ITEMS)] = []
    by: str | None = None
    branch: str | None = None
    keep_newer: bool = False
    merge_lines: bool = False
    dry_run: bool = False


ActorWord = Annotated[str, msgspec.Meta(max_length=MAX_ACTOR_CHARACTERS)]


class GivenActor(Params):
    """The client's own words for itself, see `Actor`."""

    agent: ActorWord = ""
    thread: ActorWord = ""
    call: ActorWord = ""


class OfHello(Params):
    actor: GivenActor | None = None
    view: Annotated[str, msgspec.Meta(max_length=MAX_ACTOR_CHARACTERS)] | None = None


class OfSubscription(Params):
    subscription: str


class OfCancel(Params):
    call: int | str


class OfStage(Params):
    data: bytes
    token: str | None = None


class OfPing(Params):
    payload: Any = None


@dataclass(frozen=True)
class SocketVerb:
    """`long` verbs run in their own thread, and a subscription may `stay` after the answer: both are refused to
    newcomers while all other places are taken (`limits.py`). A `command` is long, and counted apart, for it may run for
    hours. `changes` are refused on a read-only mount. Verbs that `work` wait for their turn (`server/turns.py`); the
    others are done in no time, or only wait."""

    params: type[Params]
    run: Callable[[Call, Any], Any]
    long: bool = False
    changes: bool = False
    works: bool = True
    command: bool = False
    stays: bool = False


def _same(
    name: str, *, streams: bool = False, long: bool = False, works: bool = True, changes: bool = False
) -> SocketVerb:
    """Return the verb of the socket for a method of `ServedMount`, with the method's own parameters.

    With `streams` it has the parameter `stream` too, and then sends its matches as notifications.
    """
    method = inspect.signature(getattr(ServedMount, name), eval_str=True)
    fields: list[Any] = []
    names: dict[bool, list[str]] = {False: [], True: []}  # by whether they are given by keyword
    for given in list(method.parameters.values())[1:]:
        default = () if given.default is given.empty else (given.default,)
        fields.append((given.name, given.annotation, *default))
        names[given.kind is given.KEYWORD_ONLY].append(given.name)
    if streams:
        fields.append(("stream", bool, False))
    params = cast("type[Params]", msgspec.defstruct(f"Of{name.title()}", fields, bases=(Params,)))

    def run(call: Call, asked: Any) -> Any:
        options = {option: getattr(asked, option) for option in names[True]}
        result = getattr(call.backend, name)(*(getattr(asked, given) for given in names[False]), **options)
        return _streamed(call, f"{name}.matches", result) if streams and asked.stream else result

    changes = changes or (name in protocol.VERBS and protocol.VERBS[name].changes)
    return SocketVerb(params, run, long=long, works=works, changes=changes)


def _streamed(call: Call, method: str, result: Any) -> Any:
    """The matches as notifications, in order; the record without them."""
    if result.matches is None:
        return result
    for matches in by_size(result.matches, lambda match: len(match.get("text", "")), PIECE_MATCHES, PIECE_TEXT):
        if call.cancelled.is_set():
            break
        call.notify(method, matches=matches)
    return replace(result, matches=None)


def _write(call: Call, asked: OfWrite) -> Any:
    return call.backend.write(asked.file_path, _text(call, asked.content, asked.staged))


def _edit(call: Call, asked: OfEdit) -> Any:
    old = _text(call, asked.old_string, asked.staged_old)
    new = _text(call, asked.new_string, asked.staged_new)
    try:
        return call.backend.edit(asked.file_path, old, new, asked.replace_all)
    except NoRoom:
        raise NoRoom(
            f"'{asked.file_path}', or what it would become, is too large to be edited here, where all clients share "
            f"{limits.MAX_BYTES >> 20} MiB: edit it through the mount, or download it and upload it again"
        ) from None


def _text(call: Call, given: str, staged: str | None) -> str:
    """Raises ValueError for bytes that are not UTF-8; for lone surrogates, `write` gives the error."""
    return given if staged is None else _staged(call, staged, 4).decode("utf-8", "surrogatepass")


def _staged(call: Call, token: str, factor: int = 1) -> bytes:
    """Take staged content, which will be held so many times."""
    call.hold(factor * call.staging.size(token))
    content = call.staging.take(token)
    if content is None:
        raise OSError(errno.EINVAL, f"nothing is staged under '{token}'")
    return content


def _upload(call: Call, asked: OfUpload) -> Any:
    given = [(item.path, item.content) for item in asked.files if item.staged is None and item.content is not None]
    answers = iter(call.backend.upload_files(given) if given else ())
    return [
        _upload_staged(call, item) if item.staged is not None or item.content is None else next(answers)
        for item in asked.files
    ]


def _upload_staged(call: Call, item: UploadItem) -> FileUploadResponse:
    file = call.staging.take_file(item.staged) if item.staged is not None else None
    if file is None:
        return FileUploadResponse(item.path, "neither content nor anything staged under this token")
    with file:
        return call.backend.upload_from(item.path, file)


def _download(call: Call, asked: OfDownload) -> Any:
    answers = []
    room = MAX_CONTENT_BYTES
    for index, path in enumerate(asked.paths):
        if call.cancelled.is_set():
            break
        with _Spool(math.inf if asked.stream else room) as file:
            try:
                answer = call.backend.download_to(path, cast("IO[bytes]", file))
            except _Full:
                answer = FileDownloadResponse(path, None, "too much for one message: ask with stream")
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if answer.error is not None:
                pass
            elif asked.stream:
                _send_file(call, index, file)
            else:
                room -= size
                call.hold(3 * size)  # with the answer, in base64
                answer = FileDownloadResponse(path, file.read())
        answers.append(answer)
    return answers


def _append(call: Call, asked: OfAppend) -> None:
    if asked.content is not None:
        with io.BytesIO(asked.content) as content:
            return call.backend.append_from(asked.path, content)
    file = call.staging.take_file(asked.staged) if asked.staged is not None else None
    if file is None:
        raise ValueError("neither content nor anything staged under this token")
    with file:
        return call.backend.append_from(asked.path, file)


class _Full(Spent):
    """A file does not fit into the message that asked for it."""


class _Spool(tempfile.SpooledTemporaryFile[bytes]):
    """A copy of a file; it takes no more than `room` bytes, so that none is copied to be refused."""

    def __init__(self, room: float) -> None:
        super().__init__(SPOOLED_BYTES, prefix="fusebackend-")
        self._room = room

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._room:
            raise _Full
        return super().write(data)


def _send_file(call: Call, index: int, file: tempfile.SpooledTemporaryFile[bytes]) -> None:
    """A copy of the file, piece by piece as the client reads: it is as it was at one moment, and not in memory."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    while file.tell() < size and not call.cancelled.is_set():
        call.notify_of("download_files.data", lambda: {"index": index, "data": file.read(DOWNLOAD_BYTES)})


def _execute(call: Call, asked: OfExecute) -> ExecuteResponse:
    if asked.staged is not None and call.staging.size(asked.staged) > MAX_INPUT_BYTES:
        raise NoRoom(f"a command reads at most {MAX_INPUT_BYTES >> 20} MiB: upload it, and have it read there")

    def on_output(stream: str, data: bytes) -> None:
        call.notify("execute.output", stream=stream, data=data)

    return call.backend.run(
        asked.command,
        timeout=asked.timeout,
        stdin=asked.stdin if asked.staged is None else _staged(call, asked.staged),
        cwd=asked.cwd,
        on_output=on_output if asked.stream else None,
        cancelled=call.cancelled,
    )


def _diff(call: Call, asked: OfDiff) -> str:
    """With `stream`, the text goes in pieces, and the answer is empty. With `report`, what was not compared is told
    beside the text."""
    text = bytearray()
    on_skipped = (lambda path, reason: call.notify("diff.skipped", path=path, reason=reason)) if asked.report else None
    options: dict[str, Any] = {"form": asked.form, "columns": asked.columns, "on_skipped": on_skipped}
    for piece in call.backend.diff_pieces(asked.call, paths=tuple(asked.paths), **options):
        if call.cancelled.is_set():
            break
        text += piece
        if not asked.stream:
            call.hold(3 * len(piece))
        elif len(text) >= PIECE_TEXT:
            call.notify("diff.text", data=bytes(text))
            text.clear()
    if asked.stream and text:
        call.notify("diff.text", data=bytes(text))
        text.clear()
    return text.decode()


def _undo(call: Call, asked: OfUndo) -> UndoResult:
    return call.backend.undo(
        *asked.calls,
        by=asked.by,
        branch=asked.branch,
        keep_newer=asked.keep_newer,
        merge_lines=asked.merge_lines,
        dry_run=asked.dry_run,
    )


def _hello(call: Call, asked: OfHello) -> Any:
    backend = call.backend
    if asked.view is not None:
        call.look_through(asked.view)
    if asked.actor is not None:
        call.introduce(Actor(asked.actor.agent, asked.actor.thread, asked.actor.call))
    return {
        "protocol": PROTOCOL,
        "version": __version__,
        "mountpoint": backend.mountpoint if backend.is_mounted else None,
        "id": backend.id,
        "pid": os.getpid(),
        "verbs": sorted(VERBS),
        "limits": {
            "connections": limits.MAX_CONNECTIONS,
            "calls": limits.MAX_CALLS,
            "shared_calls": limits.MAX_SHARED_CALLS,
            "message_bytes": limits.MAX_MESSAGE_BYTES,
            "answer_bytes": limits.MAX_ANSWER_BYTES,
            "content_bytes": MAX_CONTENT_BYTES,
            "input_bytes": MAX_INPUT_BYTES,
            "files": limits.MAX_ITEMS,
            "bytes": limits.MAX_BYTES,
        },
    }


VERBS: dict[str, SocketVerb] = {
    "hello": SocketVerb(OfHello, _hello, works=False),
    "ping": SocketVerb(OfPing, lambda call, asked: asked.payload, works=False),
    "ls": _same("ls"),
    "read": _same("read"),
    "write": SocketVerb(OfWrite, _write, changes=True),
    "edit": SocketVerb(OfEdit, _edit, changes=True),
    "grep": _same("grep", streams=True, long=True),
    "glob": _same("glob", streams=True, long=True),
    "delete": _same("delete", long=True),
    "move": _same("move", long=True),
    "stage": SocketVerb(OfStage, lambda call, asked: call.staging.add(asked.data, asked.token), works=False),
    "upload_files": SocketVerb(OfUpload, _upload, long=True, changes=True),
    "download_files": SocketVerb(OfDownload, _download, long=True),
    "read_range": SocketVerb(
        OfRange, lambda call, asked: call.backend.read_range(asked.path, asked.offset, asked.size)
    ),
    "append": SocketVerb(OfAppend, _append, long=True, changes=True),
    "make_directory": _same("make_directory", changes=True),
    "remove_directory": _same("remove_directory", changes=True),
    "execute": SocketVerb(OfExecute, _execute, long=True, works=False, command=True),
    "stat": _same("stat", works=False),
    "stats": _same("stats", long=True),
    "real_paths": SocketVerb(OfPaths, lambda call, asked: call.backend.real_paths(asked.paths), long=True),
    "status": _same("status", works=False),
    "metrics": _same("metrics"),
    "invalidate": _same("invalidate", works=False),
    "snapshots": _same("snapshots"),
    "create_snapshot": _same("create_snapshot", long=True, changes=True),
    "delete_snapshots": SocketVerb(
        OfNames, lambda call, asked: call.backend.delete_snapshots(*asked.names), long=True, changes=True
    ),
    "log": _same("log", long=True),
    "changes": _same("changes", long=True),
    "verify_log": _same("verify_log", long=True),
    "blame": _same("blame", long=True),
    "diff": SocketVerb(OfDiff, _diff, long=True),
    "undo": SocketVerb(OfUndo, _undo, long=True, changes=True),
    "begin_call": _same("begin_call", works=False),
    "end_call": _same("end_call", works=False),
    "df": _same("df", long=True),
    "prune": _same("prune", long=True, changes=True),
    "restore": _same("restore", long=True, changes=True),
    "approvals": _same("approvals"),
    "approval": _same("approval", long=True),
    "approve": replace(_same("approve", long=True, works=False, changes=True), command=True),
    "deny": _same("deny"),
    "views": _same("views", works=False),
    "explain": _same("explain"),
    "view_socket": _same("view_socket", works=False),
    "forget": SocketVerb(
        OfForget, lambda call, asked: call.backend.forget(*asked.paths, dry_run=asked.dry_run), long=True, changes=True
    ),
    "branches": _same("branches", long=True),
    "create_branch": _same("create_branch", long=True, changes=True),
    "take_in_branch": _same("take_in_branch", long=True, changes=True),
    "delete_branches": SocketVerb(
        OfNames, lambda call, asked: call.backend.delete_branches(*asked.names), long=True, changes=True
    ),
    "merge_branch": _same("merge_branch", long=True, changes=True),
    "subscribe": SocketVerb(OfScope, lambda call, asked: call.subscribe(asked.path), works=False, stays=True),
    "unsubscribe": SocketVerb(OfSubscription, lambda call, asked: call.unsubscribe(asked.subscription), works=False),
    "cancel": SocketVerb(OfCancel, lambda call, asked: call.cancel(asked.call), works=False),
}
