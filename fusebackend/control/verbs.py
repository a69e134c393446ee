"""The table of verbs: the methods of the control socket, with their parameters.

Every verb has the parameters and the record that it has in Python, for it is made from its declaration
(`protocol/served.py`). Verbs whose contents or answers travel in another form, and those of the connection, have a
function here. A verb is run by the server in a thread of the connection; a verb that may take long has a thread of its
own, so that the connection goes on and can cancel it, and may stream its matches.
"""

from __future__ import annotations

import abc
import errno
import inspect
import io
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import IO, TYPE_CHECKING, Annotated, Any, Union, Unpack, cast, get_args, get_origin

import msgspec

from fusebackend.base.batches import by_size
from fusebackend.base.budget import Spent
from fusebackend.base.errors import oserror
from fusebackend.base.version import __version__
from fusebackend.control import limits
from fusebackend.control.following import FollowedMount
from fusebackend.control.limits import MAX_ITEMS, NoRoom
from fusebackend.control.wire import Params as Params
from fusebackend.protocol import (
    PLAIN,
    SERVED,
    Actor,
    Conditions,
    Declared,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    options_of,
)
from fusebackend.protocol.served import MAX_CONTENT_BYTES

if TYPE_CHECKING:
    from fusebackend.control.server.server_connection import RunningCall
    from fusebackend.vfs.watch.feed import Watch

PROTOCOL = 1
"""Version of the verbs and their records. It grows when something that was there changes its meaning."""

DOWNLOAD_BYTES = 128 << 10
"""How much of a file one message from the server carries when it travels in pieces: each connection with a client that
does not read holds one of these."""

PIECE_MATCHES = 500
"""How many matches one message carries when they stream."""

PIECE_TEXT = 256 << 10
"""And how much text of matches, in characters."""

MAX_INPUT_BYTES = 32 << 20
"""The longest input of a command: it is held in memory."""

MAX_ACTOR_CHARACTERS = 1000
"""Of each word that a client has for itself. The history keeps it with every call."""

WHOLE: Mapping[str, int] = {"ge": -(1 << 63), "le": (1 << 63) - 1}
"""Bounds of a number, where the verb has none of its own: SQLite, PostgreSQL and lseek(2) take no larger one."""

SPOOLED_BYTES = 64 << 10
"""A file that is larger is copied to disk for the time of its download."""


class ServedMount(FollowedMount):
    """What the functions of this table, and the control server, ask of a mount besides its verbs
    (`server/mounted.py`)."""

    @property
    @abc.abstractmethod
    def default_view(self) -> str | None:
        """The view of clients that name none."""

    @abc.abstractmethod
    def upload_from(self, path: str, file: IO[bytes], **when: Unpack[Conditions]) -> FileUploadResponse:
        """`upload_files` of one file, from an open file."""

    @abc.abstractmethod
    def download_to(self, path: str, file: IO[bytes]) -> FileDownloadResponse:
        """`download_files` of one file into another."""

    @abc.abstractmethod
    def append_from(self, path: str, file: IO[bytes]) -> None:
        """`append` of the contents of an open file."""

    @abc.abstractmethod
    def viewed(self, name: str) -> ServedMount:
        """Return the mount through a view. OSError: ENOENT, there is none of that name."""

    @abc.abstractmethod
    def watch(self, path: str = "/") -> Watch:
        """The changes at and below a path, from now on, whichever face makes them. PathError."""


class UploadItem(Params, gc=False):
    """A file: its bytes, or the token of its staged content."""

    path: str
    content: bytes | None = None
    staged: str | None = None
    if_version: str | None = None
    if_absent: bool = False


ActorWord = Annotated[str, msgspec.Meta(max_length=MAX_ACTOR_CHARACTERS)]


class GivenActor(Params):
    """The client's own words for itself, see `Actor`."""

    agent: ActorWord = ""
    thread: ActorWord = ""
    call: ActorWord = ""


class OfPing(Params):
    payload: Any = None


@dataclass(frozen=True)
class SocketVerb(Declared):
    """A verb of the socket. Both `long` verbs and subscriptions, which `stay` after the answer, are refused to
    newcomers while all other places are taken (`limits.py`)."""

    params: type[Params] = Params
    run: Callable[[RunningCall, Any], Any] = lambda call, asked: None
    stays: bool = False


VERBS: dict[str, SocketVerb] = {}


def _given(given: inspect.Parameter, bounds: Mapping[str, int]) -> tuple[Any, ...]:
    """Return a parameter of a method as a field of a Struct. The list of `*names` is required, but where it may be
    empty."""
    if given.kind is given.VAR_POSITIONAL:
        listed = _bounded(list[given.annotation], bounds)  # type: ignore[name-defined]
        return (given.name, listed, []) if bounds.get("min_length") == 0 else (given.name, listed)
    kind = _bounded(given.annotation, bounds)
    return (given.name, kind) if given.default is given.empty else (given.name, kind, given.default)


def _bounded(kind: Any, bounds: Mapping[str, Any]) -> Any:
    """Return the type of a parameter with its bounds. Every list has one."""
    if get_origin(kind) in (Union, UnionType):
        sent = (each for each in get_args(kind) if get_origin(each) is not os.PathLike)
        return Union[tuple(_bounded(each, bounds) for each in sent)]  # noqa: UP007 - of any number
    if get_origin(kind) in (list, Sequence):
        bounds = {"max_length": MAX_ITEMS, **bounds}
    if kind is int:
        bounds = {**WHOLE, **bounds}
    return Annotated[kind, msgspec.Meta(**bounds)] if bounds else kind


def _params(declared: Declared, left: tuple[str, ...] = (), **more: tuple[Any, ...]) -> type[Params]:
    """Return the parameters of a verb on the socket: those of its method, but for `left`, and `more`, each a type and
    perhaps a default."""
    made = [_given(each, declared.limits.get(each.name, {})) for each in declared.sent if each.name not in left]
    staged = [(token, str | None, None) for token in declared.staged.values()]
    made = [(name, kind, "") if name in declared.staged else (name, kind, *rest) for name, kind, *rest in made]
    streams = [("stream", bool, False)] if declared.streams else []
    fields = [*made, *staged, *streams, *((name, *field) for name, field in more.items())]
    return cast("type[Params]", msgspec.defstruct(f"Of{declared.name.title()}", fields, bases=(Params,)))


def _of_method(declared: Declared) -> Callable[..., Any]:
    """Return what carries out a verb by the method of its name; it takes the functions that this is given as well."""
    known = declared.sent
    names = [each.name for each in known if each.kind is not each.VAR_POSITIONAL]
    listed = next((each.name for each in known if each.kind is each.VAR_POSITIONAL), None)

    def run(call: RunningCall, asked: Any, **functions: Any) -> Any:
        given = {name: getattr(asked, name) for name in names} | functions
        for name, field in declared.staged.items():
            if (token := getattr(asked, field)) is not None:
                given[name] = _text(call, token)
        rest = getattr(asked, listed) if listed else ()
        result = getattr(call.backend, declared.name)(*rest, **given)
        return _streamed(call, f"{declared.name}.matches", result) if declared.streams and asked.stream else result

    return run


def _add(declared: Declared, params: type[Params], run: Callable[[RunningCall, Any], Any], **more: Any) -> None:
    flags = {each.name: getattr(declared, each.name) for each in fields(Declared)}
    VERBS[declared.name] = SocketVerb(**{**flags, **more}, params=params, run=run)


def _socket_verb(
    left: tuple[str, ...] = (), *, works: bool = True, stays: bool = False, **more: tuple[Any, ...]
) -> Callable[[Callable[[RunningCall, Any], Any]], Callable[[RunningCall, Any], Any]]:
    """Carry out a verb by this function, `_NAME`; `left` and `more` are as of `_params`. A verb that no mount has is
    the connection's."""

    def add(run: Callable[[RunningCall, Any], Any]) -> Callable[[RunningCall, Any], Any]:
        name = run.__name__[1:]
        declared = SERVED.get(name) or replace(PLAIN, name=name, works=works)
        _add(declared, _params(declared, left, **more), run, stays=stays)
        return run

    return add


def _streamed(call: RunningCall, method: str, result: Any) -> Any:
    """The matches as notifications, in order; the record without them."""
    if result.matches is None:
        return result
    for matches in by_size(result.matches, lambda match: len(match.get("text", "")), PIECE_MATCHES, PIECE_TEXT):
        call.require()
        call.notify(method, matches=matches)
    return replace(result, matches=None)


_edited = _of_method(SERVED["edit"])


@_socket_verb()
def _edit(call: RunningCall, asked: Any) -> Any:
    try:
        return _edited(call, asked)
    except NoRoom:
        raise NoRoom(
            f"'{asked.file_path}', or what it would become, is too large to be edited here, where all clients share "
            f"{limits.MAX_BYTES >> 20} MiB: edit it through the mount, or download it and upload it again"
        ) from None


def _text(call: RunningCall, token: str) -> str:
    """Raises ValueError for bytes that are not UTF-8; for lone surrogates, `write` gives the error."""
    return _staged(call, token, 4).decode("utf-8", "surrogatepass")


def _staged(call: RunningCall, token: str, factor: int = 1) -> bytes:
    """Take staged content, which will be held so many times."""
    call.place.hold(factor * call.connection.staging.size(token))
    file = call.connection.staging.take_file(token)
    if file is None:
        raise OSError(errno.EINVAL, f"nothing is staged under '{token}'")
    with file:
        file.seek(0)
        return file.read()


@_socket_verb(
    ("files", "if_version", "if_absent"), files=(Annotated[list[UploadItem], msgspec.Meta(max_length=MAX_ITEMS)],)
)
def _upload_files(call: RunningCall, asked: Any) -> Any:
    whole = [item for item in asked.files if item.staged is None and item.content is not None]
    given = [(item.path, item.content) for item in whole]
    conditions = [Conditions(if_version=item.if_version, if_absent=item.if_absent) for item in whole]
    answers = iter(call.backend.upload_files(given, **options_of(conditions)) if given else ())
    return [
        _upload_staged(call, item) if item.staged is not None or item.content is None else next(answers)
        for item in asked.files
    ]


def _upload_staged(call: RunningCall, item: UploadItem) -> FileUploadResponse:
    file = call.connection.staging.take_file(item.staged)
    if file is None:
        return FileUploadResponse(item.path, "neither content nor anything staged under this token")
    with file:
        return call.backend.upload_from(item.path, file, if_version=item.if_version, if_absent=item.if_absent)


@_socket_verb(stream=(bool, False))
def _download_files(call: RunningCall, asked: Any) -> Any:
    answers = []
    room = MAX_CONTENT_BYTES
    for index, path in enumerate(asked.paths):
        call.require()
        with _Spool(math.inf if asked.stream else room) as file:
            try:
                answer = call.backend.download_to(path, cast("IO[bytes]", file))
            except _Full:
                answer = FileDownloadResponse(path, None, "too much for one message: ask with stream")
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if answer.error is None and asked.stream:
                _send_file(call, index, file, size)
            elif answer.error is None:
                room -= size
                call.place.hold(3 * size)  # with the answer, in base64
                answer = replace(answer, content=file.read())
        answers.append(answer)
    return answers


@_socket_verb(("pieces",), content=(bytes | None, None), staged=(str | None, None))
def _append(call: RunningCall, asked: Any) -> None:
    staging = call.connection.staging
    file = staging.take_file(asked.staged) if asked.content is None else io.BytesIO(asked.content)
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


def _send_file(call: RunningCall, index: int, file: tempfile.SpooledTemporaryFile[bytes], size: int) -> None:
    """A copy of the file, piece by piece as the client reads: it is as it was at one moment, and not in memory."""
    while file.tell() < size and not call.cancelled.is_set():
        call.notify_of("download_files.data", lambda: {"index": index, "data": file.read(DOWNLOAD_BYTES)})


@_socket_verb(
    ("timeout",),
    timeout=(float | None, None),
    stdin=(bytes | None, None),
    staged=(str | None, None),
    cwd=(str, "/"),
    stream=(bool, False),
)
def _execute(call: RunningCall, asked: Any) -> ExecuteResponse:
    if asked.staged is not None and call.connection.staging.size(asked.staged) > MAX_INPUT_BYTES:
        raise NoRoom(f"a command reads at most {MAX_INPUT_BYTES >> 20} MiB: upload it, and have it read there")

    def on_output(stream: str, data: bytes) -> None:
        call.notify("execute.output", stream=stream, data=data)

    stdin = asked.stdin if asked.staged is None else _staged(call, asked.staged)
    told = on_output if asked.stream else None
    return call.backend.run(asked.command, timeout=asked.timeout, stdin=stdin, cwd=asked.cwd, on_output=told)


_differs = _of_method(SERVED["diff"])


@_socket_verb(stream=(bool, False), report=(bool, False))
def _diff(call: RunningCall, asked: Any) -> str:
    """With `stream`, the text goes in pieces, and the answer is empty. With `report`, what was not compared is told
    beside the text."""
    text = bytearray()

    def send() -> None:
        call.notify("diff.text", data=bytes(text))
        text.clear()

    def take(piece: bytes) -> None:
        call.require()
        text.extend(piece)
        if not asked.stream:
            call.place.hold(3 * len(piece))
        elif len(text) >= PIECE_TEXT:
            send()

    on_skipped = (lambda path, reason: call.notify("diff.skipped", path=path, reason=reason)) if asked.report else None
    _differs(call, asked, on_text=take, on_skipped=on_skipped)
    if asked.stream and text:
        send()
    return text.decode()


_pruned = _of_method(SERVED["prune_threads"])


@_socket_verb(report=(bool, False))
def _prune_threads(call: RunningCall, asked: Any) -> Any:
    def tell(thread: str, done: int, total: int) -> None:
        if call.cancelled.is_set():
            raise oserror(errno.ECANCELED)
        if asked.report:
            call.notify("prune_threads.progress", thread=thread, done=done, total=total)

    return _pruned(call, asked, on_progress=tell)


@_socket_verb(("wanted",), paths=(Annotated[list[str], msgspec.Meta(max_length=MAX_ITEMS)],))
def _real_paths(call: RunningCall, asked: Any) -> list[str | None]:
    return call.backend.real_paths(asked.paths)


@_socket_verb(
    works=False,
    actor=(GivenActor | None, None),
    view=(Annotated[str, msgspec.Meta(max_length=MAX_ACTOR_CHARACTERS)] | None, None),
)
def _hello(call: RunningCall, asked: Any) -> Any:
    backend = call.backend
    if asked.view is not None:
        call.connection.look_through(asked.view)
    if asked.actor is not None:
        call.connection.introduce(Actor(asked.actor.agent, asked.actor.thread, asked.actor.call))
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


@_socket_verb(works=False, data=(bytes,), token=(str | None, None))
def _stage(call: RunningCall, asked: Any) -> str:
    return call.connection.staging.add(asked.data, asked.token)


@_socket_verb(works=False, stays=True, path=(str, "/"))
def _subscribe(call: RunningCall, asked: Any) -> str:
    call.subscribed = call.connection.subscribe(asked.path)
    return call.subscribed.name


@_socket_verb(works=False, subscription=(str,))
def _unsubscribe(call: RunningCall, asked: Any) -> bool:
    return call.connection.unsubscribe(asked.subscription)


@_socket_verb(works=False, call=(int | str,))
def _cancel(call: RunningCall, asked: Any) -> bool:
    return call.connection.cancel(asked.call)


_add(replace(PLAIN, name="ping", works=False), OfPing, lambda call, asked: asked.payload)
for _declared in SERVED.values():
    if _declared.name not in VERBS:
        _add(_declared, _params(_declared), _of_method(_declared))
