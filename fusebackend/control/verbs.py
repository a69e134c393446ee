"""The table of verbs: what can be asked over the control socket, with which parameters, and what then happens.

Every agent verb has the parameters and the record that it has in Python (`protocol/agent.py`). A verb is run by the
server in a thread of the connection; one that may take long has a thread of its own, so that the connection goes on
and it can be cancelled, and may stream what it finds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from fusebackend import __version__, budget
from fusebackend.protocol import READ_LIMIT_LINES, ExecuteResponse, FileDownloadResponse, FileUploadResponse

if TYPE_CHECKING:
    from fusebackend.control.staging import Staging
    from fusebackend.mount.mounted import MountedBackend

PROTOCOL = 1
"""Version of the verbs and their records. It grows when something that was there changes its meaning."""

PIECE_BYTES = 768 << 10
"""How much of a file one message carries when it travels in pieces."""

PIECE_MATCHES = 500
"""How many matches one message carries when they stream."""

MAX_CONTENT_BYTES = 40 << 20
"""How much content one answer carries: with base64 it stays under the limit of a message."""

T = TypeVar("T")


class Call(Protocol):
    """What a verb knows of the call it answers."""

    backend: MountedBackend
    staging: Staging
    cancelled: budget.Cancellation

    def notify(self, method: str, **params: Any) -> None:
        """Send what there is so far; waits for the reader, and raises `ConnectionError` when there is none."""

    def cancel(self, call: int | str) -> bool: ...
    def subscribe(self, path: str) -> str: ...
    def unsubscribe(self, subscription: str) -> bool: ...


class Params(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters are given by name; an unknown name is an error."""


class OfPath(Params):
    path: str


class OfRead(Params):
    file_path: str
    offset: int = 0
    limit: int = READ_LIMIT_LINES


class OfWrite(Params):
    file_path: str
    content: str


class OfEdit(Params):
    file_path: str
    old_string: str
    new_string: str
    replace_all: bool = False


class OfGrep(Params):
    pattern: str
    path: str | None = None
    glob: str | None = None
    max_count: int | None = None
    stream: bool = False


class OfGlob(Params):
    pattern: str
    path: str | None = None
    stream: bool = False


class OfDelete(Params):
    file_path: str


class OfMove(Params):
    source: str
    destination: str


class UploadItem(Params):
    """A file: its bytes, or the token of what was staged."""

    path: str
    content: bytes | None = None
    staged: str | None = None


class OfUpload(Params):
    files: list[UploadItem]


class OfDownload(Params):
    paths: list[str]
    stream: bool = False


class OfExecute(Params):
    command: str
    timeout: float | None = None
    stdin: bytes | None = None
    cwd: str = "/"
    stream: bool = False


class OfStat(Params):
    path: str
    follow: bool = False


class OfScope(Params):
    path: str = "/"


class OfSubscription(Params):
    subscription: str


class OfCancel(Params):
    call: int | str


class OfStage(Params):
    data: bytes
    token: str | None = None


class OfPing(Params):
    payload: Any = None


class Nothing(Params):
    """No parameters."""


@dataclass(frozen=True)
class Verb:
    """`long` verbs run in a thread of their own; a `command` is one of these, and counted apart, for it may run for
    hours. `changes` are refused on a read-only mount."""

    params: type[Params]
    run: Callable[[Call, Any], Any]
    long: bool = False
    changes: bool = False
    command: bool = False


def _pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _grep(call: Call, asked: OfGrep) -> Any:
    with budget.limited(None, cancelled=call.cancelled):
        result = call.backend.grep(asked.pattern, asked.path, asked.glob, max_count=asked.max_count)
    return _streamed(call, "grep.matches", result) if asked.stream else result


def _glob(call: Call, asked: OfGlob) -> Any:
    with budget.limited(None, cancelled=call.cancelled):
        result = call.backend.glob(asked.pattern, asked.path)
    return _streamed(call, "glob.matches", result) if asked.stream else result


def _streamed(call: Call, method: str, result: Any) -> Any:
    """The matches as notifications, in order; the record without them."""
    if result.matches is None:
        return result
    for matches in _pieces(result.matches, PIECE_MATCHES):
        if call.cancelled.is_set():
            break
        call.notify(method, matches=matches)
    return replace(result, matches=None)


def _move(call: Call, asked: OfMove) -> Any:
    with budget.limited(None, cancelled=call.cancelled):  # a move from one backend to another may take long
        return call.backend.move(asked.source, asked.destination)


def _upload(call: Call, asked: OfUpload) -> Any:
    contents: list[bytes | None] = [_content(call, item) for item in asked.files]
    given = [(item.path, content) for item, content in zip(asked.files, contents, strict=True) if content is not None]
    answers = iter(call.backend.upload_files(given))
    return [
        FileUploadResponse(item.path, "neither content nor anything staged under this token")
        if content is None
        else next(answers)
        for item, content in zip(asked.files, contents, strict=True)
    ]


def _content(call: Call, item: UploadItem) -> bytes | None:
    return item.content if item.staged is None else call.staging.take(item.staged)


def _download(call: Call, asked: OfDownload) -> Any:
    answers = []
    room = MAX_CONTENT_BYTES
    for index, path in enumerate(asked.paths):
        if call.cancelled.is_set():
            break
        answer = call.backend.download_files([path])[0]
        content = answer.content
        if content is not None and asked.stream:
            for piece in _pieces(content, PIECE_BYTES):
                if call.cancelled.is_set():
                    break
                call.notify("download_files.data", index=index, data=piece)
            answer = FileDownloadResponse(path, None, answer.error)
        elif content is not None:
            room -= len(content)
            if room < 0:
                answer = FileDownloadResponse(path, None, "too much for one message: ask with stream")
        answers.append(answer)
    return answers


def _execute(call: Call, asked: OfExecute) -> ExecuteResponse:
    def on_output(stream: str, data: bytes) -> None:
        call.notify("execute.output", stream=stream, data=data)

    with budget.limited(None, cancelled=call.cancelled):
        return call.backend.run(
            asked.command,
            timeout=asked.timeout,
            stdin=asked.stdin,
            cwd=asked.cwd,
            on_output=on_output if asked.stream else None,
            cancelled=call.cancelled,
        )


def _hello(call: Call, asked: Nothing) -> Any:
    backend = call.backend
    return {
        "protocol": PROTOCOL,
        "version": __version__,
        "mountpoint": backend.mountpoint,
        "id": backend.id,
        "pid": os.getpid(),
        "verbs": sorted(VERBS),
    }


def _invalidate(call: Call, asked: OfScope) -> None:
    call.backend.invalidate(asked.path)


VERBS: dict[str, Verb] = {
    "hello": Verb(Nothing, _hello),
    "ping": Verb(OfPing, lambda call, asked: asked.payload),
    "ls": Verb(OfPath, lambda call, asked: call.backend.ls(asked.path)),
    "read": Verb(OfRead, lambda call, asked: call.backend.read(asked.file_path, asked.offset, asked.limit)),
    "write": Verb(OfWrite, lambda call, asked: call.backend.write(asked.file_path, asked.content), changes=True),
    "edit": Verb(
        OfEdit,
        lambda call, asked: call.backend.edit(asked.file_path, asked.old_string, asked.new_string, asked.replace_all),
        changes=True,
    ),
    "grep": Verb(OfGrep, _grep, long=True),
    "glob": Verb(OfGlob, _glob, long=True),
    "delete": Verb(OfDelete, lambda call, asked: call.backend.delete(asked.file_path), long=True, changes=True),
    "move": Verb(OfMove, _move, long=True, changes=True),
    "stage": Verb(OfStage, lambda call, asked: call.staging.add(asked.data, asked.token)),
    "upload_files": Verb(OfUpload, _upload, long=True, changes=True),
    "download_files": Verb(OfDownload, _download, long=True),
    "execute": Verb(OfExecute, _execute, long=True, command=True),
    "stat": Verb(OfStat, lambda call, asked: call.backend.stat(asked.path, follow=asked.follow)),
    "status": Verb(Nothing, lambda call, asked: call.backend.status()),
    "invalidate": Verb(OfScope, _invalidate),
    "subscribe": Verb(OfScope, lambda call, asked: call.subscribe(asked.path)),
    "unsubscribe": Verb(OfSubscription, lambda call, asked: call.unsubscribe(asked.subscription)),
    "cancel": Verb(OfCancel, lambda call, asked: call.cancel(asked.call)),
}
