"""Parsers of the scripts' answers: entries, files and codes. Pure functions over bytes.

An entry is printed as `//MODE SIZE TIME//.//./PATH`. No path that find prints holds two slashes but for those it begins
with, so any name can be parsed, newlines included.
"""

from __future__ import annotations

import calendar
import errno
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from fusebackend.base.errors import errno_of, oserror
from fusebackend.base.lines import split_lines
from fusebackend.protocol import FileInfo
from fusebackend.text import iso_time

ERRNO = {
    "n": errno.ENOENT,
    "t": errno.ENOTDIR,
    "x": errno.EACCES,
    "d": errno.EISDIR,
    "e": errno.EEXIST,
    "i": errno.EINVAL,  # a FIFO, socket or device
    "c": errno.ESTALE,  # it is not what was to be replaced
    "m": errno.ENXIO,  # the sent file is not there
    "b": errno.EFBIG,
}
"""The codes of the scripts."""

TEMPORARY = re.compile(rb"\.fusebackend-(?:[0-9a-f]+(?:-[0-9]+)?|lock)~")
"""Temporary files of the scripts; no listing shows it."""

_ENTRY = re.compile(rb"(?:\A|(?<=\n))(?://([0-9a-f]+) ([0-9]+) ([^/]*)//)?\.//\./|\n//end(u?)\n\Z")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")


class Entry(NamedTuple):
    """A file or directory as find and stat tell of it; `mode` is 0 where only find did."""

    path: bytes  # relative to where the search began
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)


def info_of(path: str, entry: Entry) -> FileInfo:
    """The record of an entry. Directories have size 0 in every backend."""
    return FileInfo(
        path=path + "/" if entry.is_dir else path,
        is_dir=entry.is_dir,
        size=0 if entry.is_dir else entry.size,
        modified_at=iso_time(entry.mtime_ns),
    )


class Found(NamedTuple):
    """The result of a search: all, if it came to its end; if not, it was cut short."""

    entries: list[Entry]
    ended: bool
    unreadable: bool


def status_of(answer: bytes) -> tuple[str, bytes]:
    """The first line of an answer, and the rest."""
    line, _, rest = answer.partition(b"\n")
    return line.decode("utf-8", "replace"), rest


def failure(status: str) -> OSError:
    """Return the error for a status other than `ok`. A tool's message ends with the system's own words for an errno."""
    if status in ERRNO:
        return oserror(ERRNO[status])
    message = status.removeprefix("!").strip() or "The sandbox gave no reason"
    words = message.rpartition(": ")[2]
    return OSError(errno_of(words), words if errno_of(words) != errno.EIO else message)


END = b"\n//end\n"
"""The line after the last entry of a search."""


def entries_of(listing: bytes) -> Found:
    """The entries of a listing. Where it has no end, its last entry may be cut and is left out."""
    entries: list[Entry] = []
    ended = unreadable = False
    marks = list(_ENTRY.finditer(listing))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        if mark[4] is not None:
            ended, unreadable = True, bool(mark[4])
            break
        if following is None:
            break
        entries.append(_entry(listing[mark.end() : following.start() - 1], mark))
    kept = [entry for entry in entries if not any(map(TEMPORARY.fullmatch, entry.path.split(b"/")))]
    return Found(kept, ended, unreadable)


def _entry(path: bytes, mark: re.Match[bytes]) -> Entry:
    if mark[1] is None:
        return Entry(path)
    return Entry(path, int(mark[1], 16), int(mark[2]), time_ns(mark[3].decode("ascii", "replace")))


def time_ns(text: str) -> int:
    """A time as stat's `%y` shows it, in UTC, in nanoseconds since the epoch; 0 for a malformed one."""
    found = _TIME.match(text)
    if found is None:
        return 0
    seconds = calendar.timegm(tuple(map(int, found.groups()[:6])))
    return seconds * 10**9 + int((found[7] or "").ljust(9, "0"))


class Piece(NamedTuple):
    """One file of an answer to `fb_cat`: its bytes, or a code."""

    code: str
    data: bytes = b""
    mtime_ns: int = 0


def pieces_of(answer: bytes, mark: str) -> list[Piece] | None:
    """The files of an answer to `fb_cat`; None where they changed meanwhile, and so can't be separated."""
    codes = answer.partition(b"\n")[0].decode("ascii", "replace").split()
    _, _, rest = answer.partition(b"\n")
    count = codes.count("f")
    before, rest = _lines(rest, count)
    content, marked, after = rest.rpartition(f"\n{mark}\n".encode())
    if before is None or not marked or not content.startswith(b"\n"):
        return None
    content = content[1:]
    sizes = [int(line.split()[1]) for line in before]
    if count == 1:
        sizes = [len(content)]  # there is nothing to tell apart; and a file of /proc has no size, and yet bytes
    elif before != split_lines(after) or sum(sizes) != len(content):
        return None
    return list(_cut(codes, sizes, before, content))


def _lines(text: bytes, count: int) -> tuple[list[bytes] | None, bytes]:
    lines: list[bytes] = []
    for _ in range(count):
        line, newline, text = text.partition(b"\n")
        if not newline or len(line.split()) < 4:
            return None, text
        lines.append(line)
    return lines, text


def _cut(codes: list[str], sizes: list[int], stats: list[bytes], content: bytes) -> Iterator[Piece]:
    position = index = 0
    for code in codes:
        if code != "f":
            yield Piece(code)
            continue
        modified = stats[index].split(b" ", 2)[2].decode("ascii", "replace")
        yield Piece(code, content[position : position + sizes[index]], time_ns(modified))
        position += sizes[index]
        index += 1
