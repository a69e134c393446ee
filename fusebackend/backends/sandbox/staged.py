"""`StagedSandbox`: `upload_files` and `download_files` too, for sandboxes that have no more than plain transports.

    class MySandbox(StagedSandbox):
        @property
        def id(self): ...
        def execute(self, command, *, timeout=None): ...
        def send(self, files): ...      # bytes to paths of the sandbox where nothing is; OSError
        def fetch(self, path): ...      # the bytes of a regular file; OSError

A small file is a part of the command that puts it in its place. Others are sent beside their places first, and put
there by one command, so that each file is the old one or the new one, whole, and each item of a batch has its own
outcome.
"""

from __future__ import annotations

import abc
import errno
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fusebackend.backends.sandbox.base import PATHS_BYTES, BaseSandbox, inline
from fusebackend.backends.sandbox.script_answers import Piece, failure
from fusebackend.backends.sandbox.scripts import Script, nonce
from fusebackend.base.batches import by_size
from fusebackend.base.errors import code_of
from fusebackend.protocol import FileDownloadResponse, FileUploadResponse, not_bytes, verbs

INLINE_FILES = 8
"""More files than this are sent: each of them costs a command two processes more, and sending costs a request."""

BATCH_FILES = 500
"""Files that are put in their places by one command, which holds their paths."""

BATCH_BYTES = 64 << 20
"""Bytes that are sent at a time, more only in one file."""


class _Item(NamedTuple):
    """One file of a batch that can be tried."""

    position: int
    there: str
    data: bytes


class StagedSandbox(BaseSandbox):
    """See the module's docstring."""

    @abc.abstractmethod
    def send(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Put files at new paths of the sandbox in existing directories. OSError."""

    @abc.abstractmethod
    def fetch(self, path: str) -> bytes:
        """The bytes of a regular file at a path of the sandbox. OSError."""

    # -- uploads -----------------------------------------------------------------------------------------------

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:  # type: ignore[override]
        answers = [not_bytes(path, content) or FileUploadResponse(path=path) for path, content in files]
        items = [
            _Item(index, path, bytes(content))
            for index, (path, content) in enumerate(files) if answers[index].error is None
        ]  # fmt: skip
        for batch in _batches(items):
            for item, failed in zip(batch, self._put_batch(batch), strict=True):
                answers[item.position].error = None if failed is None else code_of(failed)
        return answers

    def _put_batch(self, batch: list[_Item]) -> list[OSError | None]:
        """Put files in their places; why not, for each."""
        try:
            small = sum(len(item.data) for item in batch) <= self.inline_bytes
            if len(batch) <= INLINE_FILES and small:
                script = Script()
                for item in batch:
                    script.call("fb_put", "over", item.there, nonce(), stdin=inline(item.data))
                return self._outcomes(script, len(batch))
            return self._send_batch(batch)
        except OSError as error:
            return [error] * len(batch)

    def _send_batch(self, batch: list[_Item]) -> list[OSError | None]:
        outcomes = self._outcomes(Script().call("fb_prepare", "over", *(item.there for item in batch)), len(batch))
        number = nonce()
        sent = {
            index: f"{item.there.rpartition('/')[0]}/.fusebackend-{number}-{index}~"
            for index, item in enumerate(batch)
            if outcomes[index] is None
        }
        if sent:
            self.deliver([(beside, batch[index].data) for index, beside in sent.items()])
            script = Script()
            for index, beside in sent.items():
                script.call("fb_put", "over", batch[index].there, number, beside)
            for index, outcome in zip(sent, self._outcomes(script, len(sent)), strict=True):
                outcomes[index] = outcome
        return outcomes

    def _outcomes(self, script: Script, count: int) -> list[OSError | None]:
        statuses = self.statuses(script)
        if len(statuses) != count:
            raise OSError(errno.EIO, f"The sandbox gave {len(statuses)} answers for {count} files")
        return [None if status == "ok" else failure(status) for status in statuses]

    # -- downloads ---------------------------------------------------------------------------------------------

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        answers: list[FileDownloadResponse] = []
        for start in range(0, len(paths), BATCH_FILES):
            batch = paths[start : start + BATCH_FILES]
            try:
                answers += map(self._answer, batch, self.pieces(batch))
            except OSError as error:
                answers += [verbs.DOWNLOAD_FILES.refused(error, path) for path in batch]
        return answers

    def _answer(self, path: str, piece: Piece) -> FileDownloadResponse:
        try:
            return FileDownloadResponse(path=path, content=self.whole(path, piece))
        except OSError as error:
            return verbs.DOWNLOAD_FILES.refused(error, path)


def _batches(items: list[_Item]) -> Iterator[list[_Item]]:
    """In their order, and of a size that one command and one request can take."""
    for batch in by_size(items, lambda item: len(item.data), BATCH_FILES, BATCH_BYTES):
        yield from by_size(batch, lambda item: 2 * len(item.there), BATCH_FILES, PATHS_BYTES)
