"""`TextFiles`: the bytes of files in a backend that has no `download_files` and `upload_files`, by `read` and `write`.

The seeds ask a backend for `ls`, `read` and `write` only. Such a `read` answers with text, often with numbered lines,
from which line ends are gone: `a`, `a\\n` and `a\\r\\n` look alike. So a file's bytes are taken from the lines *and*
the size in the listing, which must agree. Anything else is an error (EIO on a mount), never a guess:

- a record's content is taken as it is, unless a size contradicts it; where the size says that each line has a CR that
  the record left out, as deepagents' do, they are put back;
- numbered lines need a size. It decides between LF, LF with none after the last line, and CRLF. Sizes may count bytes
  or characters, unless the backend says `exact_sizes`; a size that fits two of these in different units decides
  nothing, until a file of the same backend has shown which unit it is;
- a text that is no numbered lines is the file.

Some line ends look like LF in the text and in the size: where lines are numbered, a form
feed or a lone CR looks like a newline, and one CRLF in a file without a last newline like that newline.

A written file must read back as the same bytes, or it is EILSEQ; bytes that are no UTF-8, and line ends that this
form of `read` loses, are refused before. `write` that refuses an existing file is helped by `edit` of the whole text,
which fails where the text is another by now, or by `delete` before it; a backend with neither keeps what it has
(EEXIST).
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fusebackend import text
from fusebackend.base import paths
from fusebackend.base.errors import FILE_NOT_FOUND, IS_DIRECTORY, Unanswered
from fusebackend.base.lines import split_lines
from fusebackend.base.paths import AgentPath
from fusebackend.dialects.answers import error_of, field_of, unnumber
from fusebackend.protocol import (
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    MoveResult,
    WriteResult,
    verbs,
)
from fusebackend.protocol.records import EMPTY_REMINDER

if TYPE_CHECKING:
    from fusebackend.dialects.agent_face import AgentFace

log = logging.getLogger(__name__)

ALL_LINES = 2**31 - 1
"""The limit that is asked for. A backend may give fewer; it is asked again, from there on, while it gives any."""

ATTEMPTS = 3
"""How often a file is read whose size changes meanwhile."""

NOT_TEXT = os.strerror(errno.EILSEQ)
EXISTS = os.strerror(errno.EEXIST)


class Untold(Unanswered):
    """It did answer, and a file's bytes are not known all the same. Never leaves this module."""


Outcome = TypeVar("Outcome", WriteResult, EditResult, DeleteResult, MoveResult)


class TextFiles:
    """See the module's docstring.

    Args:
        change: makes a change of the backend by one of its verbs, as `AgentFace.change`.

    Attributes:
        write_once: true once the backend has refused to replace a file.
    """

    def __init__(self, face: AgentFace, change: Callable[..., Any]) -> None:
        self._face = face
        self._change = change
        is_exact = getattr(face.backend, "exact_sizes", False)
        self._units = {"bytes"} if is_exact else {"bytes", "characters"}  # the possible units of sizes
        self._form = ""  # the answers of `read`: "numbered" lines, "records", "plain" text, or "" for not yet known
        self.write_once = False

    # -- reading -----------------------------------------------------------------------------------------------

    def download(self, wanted: list[AgentPath]) -> list[FileDownloadResponse]:
        listings: dict[AgentPath, dict[str, FileInfo]] = {}
        return [self._download(path, listings) for path in wanted]

    @verbs.DOWNLOAD_FILES.answers()
    def _download(self, path: AgentPath, listings: dict[AgentPath, dict[str, FileInfo]]) -> FileDownloadResponse:
        return FileDownloadResponse(path=path, content=self._bytes(path, listings))

    def _bytes(self, path: AgentPath, listings: dict[AgentPath, dict[str, FileInfo]]) -> bytes:
        """A file's bytes. `listings` holds what was listed before, and is added to. Raises `Untold`."""
        size = self._size(path, listings)
        for _ in range(ATTEMPTS):
            try:
                return self._content(path, size)
            except Unanswered as refusal:
                listings.clear()
                before, size = size, self._size(path, listings)
                if size == before:
                    raise refusal from None
        raise Untold(f"The size of '{path}' changes all the time")

    def _size(self, path: AgentPath, listings: dict[AgentPath, dict[str, FileInfo]]) -> int | None:
        """The size of a file in its directory's listing; None when that names none.

        Raises:
            Untold: it is not there, or no file, or the directory can't be listed.
        """
        directory, _ = paths.parent_and_name(path)
        if directory not in listings:
            result = self._face.ls(directory)
            if result.error is not None and self._face.has(directory) is not False:
                raise Unanswered(result.error)
            listings[directory] = {info["path"]: info for info in result.entries or ()}
        found = listings[directory]
        if path not in found:
            raise Untold(IS_DIRECTORY if f"{path}/" in found or path == paths.ROOT else FILE_NOT_FOUND)
        return found[path].get("size")

    def _content(self, path: AgentPath, size: int | None) -> bytes:
        """A file's bytes, if they are known. Raises `Untold`."""
        answer = self._read(path, 0)
        content = self._told(path, size, answer) if isinstance(answer, str) else self._recorded(path, size, answer)
        return content if isinstance(content, bytes) else content.encode()

    def _read(self, path: AgentPath, offset: int) -> Any:
        answer = self._face.ask(("read",), path, offset=offset, limit=ALL_LINES)
        if isinstance(answer, str) and not text.is_utf8(answer):
            raise Untold(f"read of '{path}' gave what is no text")
        return answer

    def _told(self, path: AgentPath, size: int | None, answer: str) -> str:
        """A file by a text, which may be numbered lines."""
        lines = unnumber(answer, 1)
        if lines is None:
            return self._unnumbered(path, size, answer)
        if size is None:
            raise Untold(f"The bytes of '{path}' are not known: its listing has no size, and read tells no line ends")
        page: list[str] | None = lines
        while page is not None:
            joined = "\n".join(lines)
            plain = [joined, joined + "\n"]
            if (joined.isascii() or len(self._units) == 1) and any(_units_of(one, size) & self._units for one in plain):
                break  # all lines are there
            try:
                page = unnumber(self._read(path, len(lines)), len(lines) + 1)
            except (Unanswered, TypeError, AttributeError):  # no more lines, or no text: the size will tell
                page = None
            lines += page or []
        own = [answer] if answer not in plain else []  # the numbers may be the file's
        found = self._fitting(path, size, [*plain, *own], [_as_crlf(joined + "\n")])
        self._form = "plain" if found in own else "numbered"
        return found

    def _unnumbered(self, path: AgentPath, size: int | None, answer: str) -> str:
        if answer == EMPTY_REMINDER:
            if size != 0:
                raise Untold(f"The bytes of '{path}' are not known: read tells only that nothing can be seen in it")
            return ""
        if answer.startswith("Error") and (self._form == "numbered" or size != len(answer.encode())):
            raise Untold(answer)
        if answer and not self._form:
            self._form = "plain"
        return self._fitting(path, size, [answer], [])

    def _recorded(self, path: AgentPath, size: int | None, answer: Any) -> str | bytes:
        """A file by records, each with a window of its lines."""
        whole = ""
        lines: int | None = 0
        while lines is not None:
            data, lines = _window(path, answer, lines)
            if isinstance(data, bytes):
                return data
            whole += data
            if lines is not None:
                answer = self._read(path, lines)
        self._form = "records"
        return self._fitting(path, size, [whole], [_as_crlf(whole)])

    def _fitting(self, path: AgentPath, size: int | None, texts: list[str], by_bytes: list[str]) -> str:
        """The one text that has this size. `by_bytes` are those that only a size in bytes can tell."""
        if size is None and len(texts) == 1:
            return texts[0]
        units: dict[str, set[str]] = {}
        for candidate in texts:
            for unit in self._units & _units_of(candidate, size):
                units.setdefault(candidate, set()).add(unit)
        for candidate in by_bytes:
            if len(candidate.encode()) == size:
                units.setdefault(candidate, set()).add("bytes")
        if len(units) != 1:
            why = "is none of what its text may be" if not units else "does not tell which text it is"
            raise Untold(f"The bytes of '{path}' are not known: its size, {size}, {why}")
        ((found, possible),) = units.items()
        self._units &= possible
        return found

    # -- writing -----------------------------------------------------------------------------------------------

    def upload(self, files: list[tuple[AgentPath, bytes]]) -> list[FileUploadResponse]:
        return [self._upload(path, data) for path, data in files]

    def _upload(self, path: AgentPath, data: bytes) -> FileUploadResponse:
        try:
            content = data.decode("utf-8")
        except UnicodeDecodeError:
            return FileUploadResponse(path=path, error=NOT_TEXT)
        if not _survives(content, self._form):
            return FileUploadResponse(path=path, error=NOT_TEXT)
        try:
            result: WriteResult | EditResult = self._change(WriteResult, "write", path, content)
            if result.error is not None:
                self._size(path, {})  # raises unless a file is there, and in the way
                result = self._replace(path, content)
        except Unanswered as refusal:
            missing = str(refusal) == FILE_NOT_FOUND
            return FileUploadResponse(path=path, error=result.error if missing else str(refusal))
        error = result.error or self._difference(path, data)
        return FileUploadResponse(path=path, error=error, files_update=result.files_update)

    def _difference(self, path: AgentPath, data: bytes) -> str | None:
        """Why a file that was written is not what it should be."""
        try:
            if self._bytes(path, {}) == data:
                return None
        except Untold as untold:
            log.warning("%s: '%s' was written and can't be read back: %s", self._face.name, path, untold)
            return NOT_TEXT
        except Unanswered as refusal:
            return str(refusal)
        log.warning("%s: '%s' was written and reads back as something else", self._face.name, path)
        return NOT_TEXT

    def _replace(self, path: AgentPath, content: str) -> WriteResult | EditResult:
        """Write over a file that `write` refuses to write over. Raises `Untold`."""
        if self._face.lacks("edit") and self._face.lacks("delete"):
            self.write_once = True
            return WriteResult(error=EXISTS)
        try:
            before = self._bytes(path, {}).decode()
        except UnicodeDecodeError:
            return WriteResult(error=EXISTS)  # bytes, which a text can't put aside
        if before == content:
            return WriteResult(path=path)
        if before and not self._face.lacks("edit"):
            edited: EditResult = self._change(EditResult, "edit", path, before, content)
            if edited.error is None or self._face.lacks("delete"):
                return edited
        if self._face.lacks("delete"):
            return WriteResult(error=EXISTS)  # an edit needs something to replace
        deleted = self._change(DeleteResult, "delete", path)
        if deleted.error is not None:
            return WriteResult(error=deleted.error)
        result: WriteResult = self._change(WriteResult, "write", path, content)
        if result.error is not None:
            back = self._change(WriteResult, "write", path, before)
            if back.error is not None:
                log.error(
                    "%s: '%s' was deleted to be written anew, and neither succeeded: %s",
                    self._face.name,
                    path,
                    back.error,
                )
        return result


def _window(path: AgentPath, answer: Any, offset: int) -> tuple[str | bytes, int | None]:
    """The content of a record of `read`: text, and the offset of what follows; or the whole file's bytes. Raises
    `Untold`. Backends count lines as they like: at LF, or as `str.splitlines` does."""
    error, record = error_of(answer), field_of(answer, "file_data")
    if error is not None:
        raise Untold(error)
    try:
        data = text.decode_file_data(record)
    except (TypeError, ValueError) as failure:
        raise Untold(f"read of '{path}' gave no file data: {failure}") from None
    start, end = field_of(answer, "start_line"), field_of(answer, "end_line")
    total, following = field_of(answer, "total_lines"), field_of(answer, "next_offset")
    more = following is not None or (total is not None and end is not None and end < total)
    if (start or 1) != offset + 1 or (more and following not in (None, end)):
        raise Untold(f"read of '{path}' from line {offset} gave other lines")
    if field_of(record, "encoding") == "base64":
        if more or offset:
            raise Untold(f"read of '{path}' gave a piece of base64")
        return data, None
    content = data.decode()
    if not more:
        return content, None
    if not content or end - offset not in (len(split_lines(content)), len(content.splitlines())):
        raise Untold(f"read of '{path}' gave other lines than it says")
    return content, end


def _units_of(candidate: str, size: int | None) -> set[str]:
    """In which units a text has this size."""
    units = {"bytes"} if len(candidate.encode()) == size else set()
    return units | ({"characters"} if len(candidate) == size else set())


def _as_crlf(content: str) -> str:
    return content.replace("\n", "\r\n")


def _survives(content: str, form: str) -> bool:
    """True if `read` and a size tell a text from any other. A form not known yet may be that of numbered
    lines, which tell LF, and CRLF after each line. A record tells a CR neither from a CRLF nor from LF."""
    if form == "plain":
        return True
    crlf = "\r\n" in content and content.count("\r\n") == content.count("\n")
    plain = content.replace("\r\n", "\n") if crlf else content
    if form == "records":
        return "\r" not in plain
    return not plain or (
        (not crlf or plain.endswith("\n")) and plain.splitlines() == plain.removesuffix("\n").split("\n")
    )
