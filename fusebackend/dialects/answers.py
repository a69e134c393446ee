"""Answers of a backend in any dialect, as the records of this package. Pure functions.

`AgentFace` asks; this module reads the answers: records with attributes, mappings, bare lists, numbered text.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from fusebackend.base import paths
from fusebackend.base.lines import split_lines
from fusebackend.base.paths import AgentPath, PathError
from fusebackend.protocol import (
    FileData,
    FileDownloadResponse,
    FileInfo,
    GrepMatch,
    ReadResult,
    version_of_bytes,
)
from fusebackend.protocol.records import EMPTY_REMINDER, MARKER_WIDTH
from fusebackend.text import as_shown, has_binary_extension


def field_of(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)


def error_of(answer: Any) -> str | None:
    error = field_of(answer, "error")
    return str(error) if error else None


def unpack(answer: Any, name: str) -> tuple[str | None, Any]:
    """Error and items of an answer: a record, or bare items, or an error as a string (seeds)."""
    if isinstance(answer, str):
        return answer or "empty error", None
    if isinstance(answer, Mapping) or hasattr(answer, name):
        return error_of(answer), field_of(answer, name)
    return None, answer


def path_of(raw: Any, base: AgentPath) -> AgentPath | None:
    """The path of an entry; a bare name is meant in `base`."""
    path = field_of(raw, "path")
    if not isinstance(path, str):
        return None
    try:
        return paths.normalise(path if path.startswith("/") else paths.join(base, path))
    except PathError:
        return None


def file_path(info: FileInfo) -> AgentPath:
    return AgentPath(info["path"].removesuffix("/") or "/")


def as_infos(items: Iterable[Any], base: AgentPath) -> list[FileInfo]:
    """Records of files and directories, sorted by path, each path once."""
    infos: dict[str, FileInfo] = {}
    for raw in items:
        path = path_of(raw, base)
        if path is None or path == paths.ROOT:
            continue
        is_dir = bool(field_of(raw, "is_dir")) or str(field_of(raw, "path")).endswith("/")
        info = FileInfo(path=path + "/" if is_dir else path, is_dir=is_dir)
        size, modified_at = field_of(raw, "size"), field_of(raw, "modified_at")
        if isinstance(size, int) and size >= 0:
            info["size"] = size
        if modified_at:
            info["modified_at"] = as_utc(str(modified_at))
        if field_of(raw, "read_only"):
            info["read_only"] = True
        infos.setdefault(info["path"], info)
    return sorted(infos.values(), key=lambda info: info["path"])


def as_matches(items: Iterable[Any], base: AgentPath) -> list[GrepMatch]:
    matches: dict[tuple[str, int, str], GrepMatch] = {}
    for raw in items:
        path, line = path_of(raw, base), field_of(raw, "line")
        if path is not None and paths.is_below(path, base) and isinstance(line, int):
            match = GrepMatch(path=path, line=line, text=str(field_of(raw, "text") or ""))
            matches.setdefault((path, line, match["text"]), match)
    return [matches[key] for key in sorted(matches)]


def is_inexact(path: AgentPath, result: ReadResult) -> bool:
    """True for a record that says less than the file. deepagents' FilesystemBackend gives the reminder for white space,
    and its state and stores give lines of base64 where bytes have no extension that tells, and text where one does."""
    data = result.file_data
    if result.error is not None or data is None:
        return False
    encoded = data.get("encoding") == "base64"
    if result.start_line is not None:
        return encoded
    return data.get("content") == EMPTY_REMINDER or (has_binary_extension(path) and not encoded)


def as_utc(time: str) -> str:
    """A time of a listing with its offset. One without is local: so deepagents' FilesystemBackend gives it."""
    try:
        when = datetime.datetime.fromisoformat(time)
    except ValueError:
        return time
    return time if when.tzinfo is not None else when.astimezone(datetime.UTC).isoformat()


def as_download(path: AgentPath, answer: Any) -> FileDownloadResponse:
    if answer is None:
        return FileDownloadResponse(path=path, error="no answer from the backend")
    error, content = error_of(answer), field_of(answer, "content")
    if error is None and isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    if error is None and not isinstance(content, (bytes, bytearray, memoryview)):
        error = f"the backend answered {type(content).__name__}, not bytes"
    if error is not None:
        return FileDownloadResponse(path=path, error=error)
    return FileDownloadResponse(path=path, content=bytes(content), version=field_of(answer, "version"))


def with_version(answer: FileDownloadResponse) -> FileDownloadResponse:
    """Give a file the digest of its bytes for its version, where its backend gives none."""
    if answer.version is None and answer.content is not None:
        answer.version = version_of_bytes(answer.content)
    return answer


def parse_numbered(text: str, offset: int) -> ReadResult:
    """The answer of a seed's `read` as a record: numbered lines, a reminder or `Error…`.

    Numbered lines carry their number, so a text that starts with `Error` and has none is an error. Whether the file's
    last line ends with a newline, and how many lines there are in all, such a text does not tell.
    """
    first = max(0, offset) + 1
    lines = unnumber(text, first)
    if lines is None:
        if text.startswith("Error"):
            return ReadResult(error=text)
        if text == EMPTY_REMINDER or not text.strip():
            return ReadResult(file_data=FileData(content="", encoding="utf-8"))
        lines = split_lines(as_shown(text))  # a dialect that does not number
    return ReadResult(
        file_data=FileData(content="\n".join(lines), encoding="utf-8"),
        start_line=first,
        end_line=first + len(lines) - 1,
    )


def unnumber(text: str, first: int) -> list[str] | None:
    """The lines under markers that count from `first`, continued ones joined; None where the text is not such."""
    lines: list[str] = []
    for row in text.split("\n"):
        marker, tab, rest = row.partition("\t")
        if not tab or len(marker) < MARKER_WIDTH:
            return None
        number, dot, _ = marker.strip().partition(".")
        expected = first + len(lines) - (1 if dot else 0)
        if number != str(expected) or (dot and not lines):
            return None
        if dot:
            lines[-1] += rest
        else:
            lines.append(rest)
    return lines
