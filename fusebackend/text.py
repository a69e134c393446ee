"""The text rules of the agent face: lines, windows, replacements, searches, and the records of state.

Pure functions over bytes and strings; every backend uses them, so that all agree. The rules come from the seeds and
from deepagents 0.7; where those differ, the docstrings name the rule in force.

A line ends at `\\n` and nowhere else (`base/lines.py`), so that the number of a line is the same for `read`, `grep`,
`blame`, sed and git. `read` shows CRLF as LF, and `edit` takes text as `read` shows it.
"""

from __future__ import annotations

import base64
import codecs
import datetime
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from fusebackend.base import budget
from fusebackend.base.git_patch import line_changes
from fusebackend.base.lines import split_lines
from fusebackend.base.stamps import EPOCH
from fusebackend.protocol import READ_LIMIT_LINES, FileData, ReadResult

SPLIT_CHARACTERS = 64 << 10
"""Text is split into lines in pieces of this size, for that holds Python's lock."""

KEPT_FACTOR = 4
"""Copies of a window in memory while an answer is made of it: its parts, joined, with LF, as JSON."""

_BASE64_BYTES = 3 << 18

_Decoder = codecs.getincrementaldecoder("utf-8")

BINARY_EXTENSIONS = frozenset({
    "png", "jpeg", "jpg", "webp", "gif", "heic", "heif",
    "mp4", "mpeg", "mov", "avi", "flv", "mpg", "webm", "wmv", "3gpp", "mkv",
    "wav", "mp3", "aiff", "aac", "ogg", "flac",
    "pdf", "ppt", "pptx",
})  # fmt: skip
"""Files that `read` returns whole and in base64, text or not (deepagents 0.7)."""

_MATCH_BYTES = 600
"""Memory of a match besides its text; counted in steps of `budget.COUNTED_BYTES`."""

VIDEO_EXTENSIONS = frozenset({"mp4", "mpeg", "mov", "avi", "flv", "mpg", "webm", "wmv", "3gpp", "mkv"})
MAX_VIDEO_BYTES = 1 << 30
"""`read` refuses a larger video, as deepagents does (MAX_VIDEO_INPUT_BYTES)."""

# --------------------------------------------------------------------------------------------------------------
# Reading: windows of lines
# --------------------------------------------------------------------------------------------------------------


def _unheard(size: int) -> None:
    """Ignore the bytes that are kept."""


def read_pieces(
    pieces: Iterable[bytes],
    offset: int = 0,
    limit: int = READ_LIMIT_LINES,
    kept: Callable[[int], None] = _unheard,
) -> ReadResult:
    """Return the lines from `offset` up to `offset + limit` (exclusive) of UTF-8 that comes in pieces, cut anywhere.

    Lines count from 0. A negative offset means 0. A limit of 0 or less asks for no lines. White space alone is returned
    as it is, without a window. A trailing newline is there if and only if the last line of the window has one. No line
    outside of the window stays in memory.

    Args:
        kept: called with the number of bytes that are kept in addition; an exception it raises ends the reading.

    Raises:
        UnicodeDecodeError: the text is not UTF-8; read such a file with `read_binary`.
    """
    first, limit = max(0, offset), max(0, limit)
    total = lines = 0
    found: list[str] = []  # of many lines each
    begun: list[str] = []  # parts of a line in the window without its end yet; joined once, so linear
    blank: list[str] | None = []  # the whole text, as long as it is white space
    for block, count, rest in _blocks(pieces):
        if blank is not None:
            text = block + rest
            if text and not text.isspace():
                blank = None
            else:
                kept(sys.getsizeof(text))
                blank.append(text)
        begin, end = max(first - total, 0), min(first + limit - total, count)
        if begin < end:  # only at the ends of the window are whole lines split
            if begin == 0:
                found += begun
            if end < count:
                block = block[: len(block) - len(block.split("\n", end)[end])]
            block = block.split("\n", begin)[begin]
            kept(KEPT_FACTOR * sys.getsizeof(block))
            found.append(block)
            lines += end - begin
        if count:
            begun.clear()
            total += count
        if rest and first <= total < first + limit:
            kept(KEPT_FACTOR * sys.getsizeof(rest))
            begun.append(rest)
    if limit == 0:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
    if blank is not None:
        return ReadResult(file_data=FileData(content="".join(blank), encoding="utf-8"))
    if first >= total:
        return ReadResult(error=f"Line offset {first} exceeds file length ({total} lines)")
    last = first + lines
    return ReadResult(
        file_data=FileData(content=as_shown("".join(found)), encoding="utf-8"),
        total_lines=total,
        start_line=first + 1,
        end_line=last,
        next_offset=last if last < total else None,
    )


def _blocks(pieces: Iterable[bytes]) -> Iterator[tuple[str, int, str]]:
    """Yield text in short parts, for Python's lock is held while one is looked through: whole lines, their number, and
    the beginning of another one. What is begun at the end of the text is a line, too: the last part is nothing more."""
    decoder = _Decoder()
    is_begun = False
    for piece in pieces:
        text = decoder.decode(piece)
        for start in range(0, len(text), SPLIT_CHARACTERS):
            part = text[start : start + SPLIT_CHARACTERS]
            cut = part.rfind("\n") + 1
            is_begun = cut < len(part)
            yield part[:cut], part.count("\n"), part[cut:]
    decoder.decode(b"", final=True)
    if is_begun:
        yield "", 1, ""


def as_shown(content: str) -> str:
    """Return text as `read` shows it: with LF for CRLF. A CR alone ends no line, and stays."""
    return content.replace("\r\n", "\n")


def read_binary(data: bytes) -> ReadResult:
    """Return a whole file in base64, without a window. `b64encode` holds Python's lock, so it encodes in pieces."""
    view = memoryview(data)
    pieces = (
        base64.b64encode(view[at : at + _BASE64_BYTES]).decode("ascii") for at in range(0, len(data), _BASE64_BYTES)
    )
    return ReadResult(file_data=FileData(content="".join(pieces), encoding="base64"))


def read_bytes(path: str, data: bytes, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
    """Return the answer of `read` for a file that holds `data`: a window of text, or the whole of a binary file."""
    if has_binary_extension(path):
        return too_large_video(path, len(data)) or read_binary(data)
    try:
        return read_pieces((data,), offset, limit)
    except UnicodeDecodeError:
        return read_binary(data)


def too_large_video(path: str, size: int) -> ReadResult | None:
    """Return the answer of `read` for a video of more than `MAX_VIDEO_BYTES`; None for any other file."""
    if size <= MAX_VIDEO_BYTES or path.rpartition(".")[2].lower() not in VIDEO_EXTENSIONS:
        return None
    return ReadResult(error=f"Video file exceeds maximum input size of {MAX_VIDEO_BYTES} bytes")


def is_utf8(content: str | bytes) -> bool:
    """Return whether bytes are UTF-8, or a text can be encoded in it: surrogates stand for other bytes."""
    try:
        content.decode("utf-8") if isinstance(content, bytes) else content.encode("utf-8")
    except UnicodeError:
        return False
    return True


def has_binary_extension(path: str) -> bool:
    """Return whether the name has the extension of an image, a video, a sound or a document."""
    stem, _, extension = path.rpartition("/")[2].rpartition(".")
    return stem != "" and extension.lower() in BINARY_EXTENSIONS


# --------------------------------------------------------------------------------------------------------------
# Editing
# --------------------------------------------------------------------------------------------------------------


def replace_string(content: str, old: str, new: str, replace_all: bool = False) -> tuple[str, int] | str:
    """Replace a string; return the new content and the number of replacements, or the text of an error.

    `old` is found as `read` shows the file (`as_shown`), and `new` is put there with the line ends of what it replaces
    (`keep_line_ends`); all else keeps its bytes. An `old` with CRLF that is there as it is means these bytes, and `new`
    is written as it is. Where nothing else is found, a newline of `old` is a CR alone, too. Occurrences don't overlap,
    as in `str.count`.
    """
    if not old:
        return "Error: old_string is empty; give the text to replace"
    if "\r\n" in old and old in content:
        return _replace(content, old, new, replace_all)
    new = as_shown(new)
    if "\r" not in content:
        return _replace(content, as_shown(old), new, replace_all)
    if "\n" not in old and "\n" not in new:
        return _replace(content, old, new, replace_all)
    shown = as_shown(content)
    if old not in shown:
        old = as_shown(old)
        alike = shown.replace("\r", "\n")
        if old not in shown and old.replace("\r", "\n") in alike:
            shown, old = alike, old.replace("\r", "\n")
    outcome = _replace(shown, old, new, replace_all)
    if isinstance(outcome, str):
        return outcome
    if "\r" not in shown and shown.count("\n") == content.count("\r\n"):
        return outcome[0].replace("\n", "\r\n"), outcome[1]
    return "".join(_mixed(content, shown.split(old), len(old), new)), outcome[1]


def _mixed(content: str, parts: list[str], size: int, new: str) -> Iterator[str]:
    """Yield the pieces of a text with mixed line ends. `parts` of what is shown of it stay as they are; `new` is put
    between them, in the place of `size` characters."""
    last = content.rfind("\n")
    at, line_end = 0, -1
    put = functools.cache(keep_line_ends)  # what is replaced differs in its line ends alone
    for number, part in enumerate(parts):
        if number:
            begin, at = at, _behind(content, at, size)
            if line_end < at:
                line_end = content.find("\n", at) if at <= last else last
            is_crlf = content[line_end - 1 : line_end + 1] == "\r\n"
            yield put(content[begin:at], new, "\r\n" if is_crlf else "\n")
        begin, at = at, _behind(content, at, len(part))
        yield content[begin:at]


def _behind(content: str, at: int, size: int) -> int:
    """Return the place behind so many shown characters. Each turn goes on by the CRLF of the one before."""
    while size:
        end = at + size
        end += content[end - 1 : end + 1] == "\r\n"
        size -= len(as_shown(content[at:end]))
        at = end
    return at


def keep_line_ends(before: str, after: str, otherwise: str = "") -> str:
    """Return a changed text, whose lines all end in LF, with the line ends that the lines have in `before`.

    A new line has the end of the line that it replaces or follows. `otherwise` is the end of a last line that has none.
    """
    old, new = split_lines(before, with_ends=True), split_lines(after, with_ends=True)
    ends = ["\r\n" if line.endswith("\r\n") else "\n" for line in old] or [otherwise or "\n"]
    if not before.endswith("\n"):
        ends[-1] = otherwise or ["\n", *ends][-2]
    result: list[str] = []
    done = 0
    for change in line_changes([as_shown(line) for line in old], new):
        result += old[done : change.i1]
        done = change.i2
        for number, line in enumerate(new[change.j1 : change.j2], start=change.i1):
            end = ends[min(number, max(change.i2 - 1, 0))]
            result.append(line[:-1] + end if line.endswith("\n") else line)
    return "".join(result + old[done:])


def _replace(content: str, old: str, new: str, replace_all: bool) -> tuple[str, int] | str:
    occurrences = content.count(old)
    if occurrences == 0:
        message = f"Error: String not found in file: '{old}'"
        if old.endswith("\n") and old != "\n" and content.endswith(old[:-1]):
            message += ". The file does not end with a newline: give old_string without its last one"
        return message
    if occurrences > 1 and not replace_all:
        return (
            f"Error: String '{old}' appears {occurrences} times in file. Use replace_all=True to replace all "
            "instances, or provide a more specific string with surrounding context."
        )
    growth = occurrences * (len(new) - len(old))
    if growth > 0:  # 5 million times `a` in 20 MB, each of them 500 bytes later, is 2.5 GB
        budget.current().hold(2 * growth * (1 if content.isascii() and new.isascii() else 4))
    return content.replace(old, new), occurrences


# --------------------------------------------------------------------------------------------------------------
# Searching
# --------------------------------------------------------------------------------------------------------------


def grep_lines(
    pieces: Iterable[bytes], pattern: str, limit: int | None = None, kept: Callable[[int], None] = _unheard
) -> list[tuple[int, str]]:
    """Return number and text of the lines that contain `pattern`, a literal; at most `limit` of them.

    THE definition of a text file: it holds no NUL byte and is UTF-8. Any other file has no matching lines. Lines are
    split at `\\n` alone and keep a `\\r`; a rest after the last `\\n` is a line if it is not empty.

    Args:
        pieces: the file, cut anywhere. All are read, for a late NUL discards every match.
        kept: called with the number of bytes that are kept in addition; an exception it raises ends the search.
    """
    try:
        needle = pattern.encode("utf-8")
    except UnicodeEncodeError:
        return []  # a lone surrogate, which UTF-8 can't hold
    decoder = _Decoder()
    found: list[tuple[int, str]] = []
    unfinished: list[bytes] = []
    line = 1
    try:
        for piece in pieces:
            if b"\0" in piece:
                return []
            decoder.decode(piece)
            cut = piece.rfind(b"\n") + 1
            if cut:
                block = b"".join(unfinished) + piece[:cut]
                unfinished.clear()
                _grep_block(block, needle, line, limit, found, kept)
                line += block.count(b"\n")
            else:
                kept(len(piece))
            unfinished.append(piece[cut:])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return []
    rest = b"".join(unfinished)
    if rest:
        _grep_block(rest, needle, line, limit, found, kept)
    return found


def _grep_block(
    block: bytes,
    needle: bytes,
    line: int,
    limit: int | None,
    found: list[tuple[int, str]],
    kept: Callable[[int], None],
) -> None:
    """Add the matches in a block of whole lines that begins at number `line`. Only matching lines cost Python time."""
    position = waiting = 0
    while limit is None or len(found) < limit:
        if waiting > budget.COUNTED_BYTES:
            kept(waiting)
            waiting = 0
        hit = block.find(needle, position)
        if hit < 0 or hit == len(block):
            break
        begin = block.rfind(b"\n", 0, hit) + 1
        end = block.find(b"\n", hit)
        end = len(block) if end < 0 else end
        line += block.count(b"\n", position, begin)
        if hit + len(needle) <= end:  # a needle that holds a newline is in no single line
            found.append((line, block[begin:end].decode("utf-8")))
            waiting += end - begin + _MATCH_BYTES
        position = end + 1
        line += 1
    if waiting:
        kept(waiting)


# --------------------------------------------------------------------------------------------------------------
# Records of state and stores
# --------------------------------------------------------------------------------------------------------------


def encode_file_data(
    data: bytes,
    *,
    created_at: str | None = None,
    modified_at: str | None = None,
    file_format: Literal["v1", "v2"] = "v2",
    as_text: bool = True,
) -> dict[str, Any]:
    """Return the record of a file that holds `data`: text where it is UTF-8, else base64. Times default to now.

    `v1`, the format of the seeds, is a list of the lines between the newlines. It can't hold bytes, so these are always
    `v2`. With `as_text=False` the content is always base64.
    """
    now = now_iso()
    times = {"created_at": created_at or modified_at or now, "modified_at": modified_at or now}
    try:
        text = data.decode("utf-8") if as_text else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        return {"content": base64.b64encode(data).decode("ascii"), "encoding": "base64", **times}
    if file_format == "v1":
        return {"content": text.split("\n"), **times}
    return {"content": text, "encoding": "utf-8", **times}


def decode_file_data(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file from its record, `v1` (list of lines) or `v2` (text and encoding). Times are optional.

    Raises:
        TypeError: the record is not a mapping, or its content is neither a string nor a list of strings.
        ValueError: there is no content, the encoding is unknown, or the content does not fit the encoding.
    """
    if not isinstance(record, Mapping):
        raise TypeError(f"File data must be a mapping, not {type(record).__name__}")
    if "content" not in record:
        raise ValueError("File data has no 'content'")
    content = record["content"]
    if isinstance(content, (list, tuple)):
        for index, line in enumerate(content):
            if not isinstance(line, str):
                raise TypeError(f"File data holds {type(line).__name__} as line {index + 1}; lines must be strings")
        content = "\n".join(content)
    if not isinstance(content, str):
        raise TypeError(f"File data holds {type(content).__name__}; content must be a string or a list of strings")
    encoding = record.get("encoding") or "utf-8"
    try:
        if encoding == "base64":
            return base64.b64decode(content, validate=True)
        if encoding == "utf-8":
            return content.encode("utf-8")
    except ValueError as error:  # binascii's and Unicode's are both
        raise ValueError(f"File data is not valid {encoding}: {error}") from error
    raise ValueError(f"File data has the unknown encoding {encoding!r}")


def file_data_size(record: Mapping[str, Any]) -> int:
    """Return the size of `decode_file_data` in bytes, and raise as it does. Most texts are not encoded for it."""
    content = record.get("content") if isinstance(record, Mapping) else None
    if isinstance(content, str) and content.isascii() and record.get("encoding") in (None, "", "utf-8"):
        return len(content)
    return len(decode_file_data(record))


# --------------------------------------------------------------------------------------------------------------
# Times
# --------------------------------------------------------------------------------------------------------------

_FIRST = datetime.datetime.min.replace(tzinfo=datetime.UTC)
_LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC)


def iso_time(time_ns: int) -> str:
    """Format nanoseconds since the epoch as ISO 8601 in UTC with its offset, to the microsecond; years 1 to 9999."""
    try:
        return (EPOCH + datetime.timedelta(microseconds=time_ns // 1000)).isoformat()
    except OverflowError:  # a file may bear any 64-bit time
        return (_LAST if time_ns > 0 else _FIRST).isoformat()


def now_iso() -> str:
    """Return the present time in the format of the records of state."""
    return datetime.datetime.now(datetime.UTC).isoformat()
