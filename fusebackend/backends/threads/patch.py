"""Git patches: what one step changed in a set of files, in the form that `git apply` takes.

A patch begins like an entry of `git log -p`: author, date and subject, then one `diff --git` for each file. Text is
compared line by line; anything else is a `GIT binary patch` with both contents, so that the patch can be applied and
reverted.

Lines are compared by E. W. Myers, An O(ND) Difference Algorithm and Its Variations, 1986: the time depends on the
number of changes, and a text with more than `MAX_EDITS` of them is shown as replaced. difflib took 18 s for two texts
of 1,000 equal lines, and the mount waited.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

MAX_DIFFED_BYTES: Final = 1 << 20
"""Of one side. A longer text is replaced as a whole."""

MAX_EDITS: Final = 300
"""Lines that are deleted or inserted. So many take 40 ms to find, also among 100,000 equal lines."""

CONTEXT_LINES: Final = 3
MODE: Final = "100644"
NO_BLOB: Final = "0" * 40

_BINARY_LINE_BYTES: Final = 52
_UNSAFE: Final = re.compile(rb'[\x00-\x1f\x7f-\xff"\\]')
_C_ESCAPES: Final = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


class Header(NamedTuple):
    """The lines above the first `diff --git`."""

    commit: str
    """The checkpoint's id."""
    author: str
    date: str
    subject: str


def patch(header: Header, before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> bytes:
    """The patch from one set of files to another.

    Args:
        before, after: contents by path, without a leading slash. Only files that differ need to be there.

    Returns:
        A patch for `git apply`, or nothing where the sets are equal.
    """
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    if not changed:
        return b""
    parts = [_head(header)]
    for path in changed:
        parts += _file(path, before.get(path), after.get(path))
    return b"".join(parts)


def _head(header: Header) -> bytes:
    lines = [
        f"commit {_one_line(header.commit)}",
        f"Author: {_one_line(header.author)}",
        f"Date:   {_one_line(header.date)}",
        "",
        f"    {_one_line(header.subject)}",
        "",
        "",
    ]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _one_line(text: str) -> str:
    """Text without line ends and control characters: a header has one line for each field."""
    return "".join(char if char.isprintable() or char == " " else "\N{REPLACEMENT CHARACTER}" for char in text)


def _file(path: bytes, before: bytes | None, after: bytes | None) -> Iterator[bytes]:
    old, new = _quoted(b"a/" + path), _quoted(b"b/" + path)
    yield f"diff --git {old} {new}\n".encode()
    if before is None:
        yield f"new file mode {MODE}\n".encode()
    elif after is None:
        yield f"deleted file mode {MODE}\n".encode()
    mode = f" {MODE}" if before is not None and after is not None else ""
    yield f"index {_blob(before)}..{_blob(after)}{mode}\n".encode()
    if _is_text(before) and _is_text(after):
        yield from _text(
            old if before is not None else "/dev/null",
            new if after is not None else "/dev/null",
            before or b"",
            after or b"",
        )
    else:
        yield b"GIT binary patch\n"
        yield from _binary(after or b"")
        yield from _binary(before or b"")


def _quoted(path: bytes) -> str:
    """A path as git writes it: in quotes with C escapes if it has a control character, a quote or a byte above 127."""
    if not _UNSAFE.search(path):
        return path.decode("ascii")
    escaped = _UNSAFE.sub(
        lambda found: (f"\\{_C_ESCAPES.get(found[0][0]) or format(found[0][0], '03o')}").encode(), path
    )
    return f'"{escaped.decode("ascii")}"'


def _blob(data: bytes | None) -> str:
    """The name of the git object with these bytes."""
    if data is None:
        return NO_BLOB
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _is_text(data: bytes | None) -> bool:
    """Git's own test is a NUL byte in the first 8,000. Here text is UTF-8 as well, so that a pager can show it."""
    if data is None:
        return True
    if b"\0" in data:
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _lines(data: bytes) -> list[bytes]:
    """Lines with their newline, the last one perhaps without. Only LF ends a line, as in git."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _text(old: str, new: str, before: bytes, after: bytes) -> Iterator[bytes]:
    a, b = _lines(before), _lines(after)
    if not a and not b:
        return  # an empty file is created or deleted: the lines above say all
    yield f"--- {old}{_tab(old)}\n+++ {new}{_tab(new)}\n".encode()
    if max(len(before), len(after)) > MAX_DIFFED_BYTES:
        changes: list[Change] | None = None
    else:
        changes = _changes(a, b)
    for hunk in _hunks(changes if changes is not None else [Change(0, len(a), 0, len(b))]):
        start, stop = max(hunk[0].i1 - CONTEXT_LINES, 0), min(hunk[-1].i2 + CONTEXT_LINES, len(a))
        shift, end_shift = hunk[0].j1 - hunk[0].i1, hunk[-1].j2 - hunk[-1].i2
        yield f"@@ -{_range(start, stop)} +{_range(start + shift, stop + end_shift)} @@\n".encode()
        at = start
        for change in hunk:
            yield from (_marked(b" ", line) for line in a[at : change.i1])
            yield from (_marked(b"-", line) for line in a[change.i1 : change.i2])
            yield from (_marked(b"+", line) for line in b[change.j1 : change.j2])
            at = change.i2
        yield from (_marked(b" ", line) for line in a[at:stop])


class Change(NamedTuple):
    """The lines `a[i1:i2]` become `b[j1:j2]`."""

    i1: int
    i2: int
    j1: int
    j2: int


def _hunks(changes: list[Change]) -> Iterator[list[Change]]:
    """Changes that share their context belong together."""
    hunk: list[Change] = []
    for change in changes:
        if hunk and change.i1 - hunk[-1].i2 > 2 * CONTEXT_LINES:
            yield hunk
            hunk = []
        hunk.append(change)
    if hunk:
        yield hunk


def _changes(a: list[bytes], b: list[bytes]) -> list[Change] | None:
    """The changes from one list of lines to another, in order. None for more than `MAX_EDITS` lines."""
    first, n, m = 0, len(a), len(b)
    while first < min(n, m) and a[first] == b[first]:
        first += 1
    while n > first and m > first and a[n - 1] == b[m - 1]:
        n, m = n - 1, m - 1
    edits = _edits(a[first:n], b[first:m])
    if edits is None:
        return None
    found: list[Change] = []
    for x, y, is_insertion in edits:
        i, j = x + first, y + first
        i2, j2 = (i, j + 1) if is_insertion else (i + 1, j)
        if found and (found[-1].i2, found[-1].j2) == (i, j):
            found[-1] = found[-1]._replace(i2=i2, j2=j2)
        else:
            found.append(Change(i, i2, j, j2))
    return found


def _edits(a: list[bytes], b: list[bytes]) -> list[tuple[int, int, bool]] | None:
    """The fewest deletions and insertions of a line, in order, each with its place in both lists.

    `furthest[k]` is the largest x that some number of edits reaches on the diagonal x - y = k.
    """
    n, m = len(a), len(b)
    if abs(n - m) > MAX_EDITS:
        return None
    middle = MAX_EDITS + 1
    furthest = [0] * (2 * middle + 1)
    steps: list[list[int]] = []  # before each number of edits, the diagonals from -number - 1 to number + 1
    for count in range(MAX_EDITS + 1):
        steps.append(furthest[middle - count - 1 : middle + count + 2])
        for k in range(-count, count + 1, 2):
            x = _step(furthest, middle + k, k, count)
            y = x - k
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[middle + k] = x
            if x >= n and y >= m:
                return _traced(steps, n, m)
    return None


def _step(furthest: list[int], at: int, k: int, count: int) -> int:
    """Where the diagonal `k`, at this place of the list, is entered by the edit `count`."""
    if k == -count or (k != count and furthest[at - 1] < furthest[at + 1]):
        return furthest[at + 1]
    return furthest[at - 1] + 1


def _traced(steps: list[list[int]], x: int, y: int) -> list[tuple[int, int, bool]]:
    """The edits that lead to the ends of both lists."""
    found = []
    for count in range(len(steps) - 1, 0, -1):
        before, k = steps[count], x - y
        at = count + 1 + k
        is_insertion = k == -count or (k != count and before[at - 1] < before[at + 1])
        k += 1 if is_insertion else -1
        x = before[count + 1 + k]
        y = x - k
        found.append((x, y, is_insertion))
    found.reverse()
    return found


def _tab(name: str) -> str:
    """Git ends a name with a space in it by a tab, for patch(1)."""
    return "\t" if " " in name and not name.startswith('"') else ""


def _marked(mark: bytes, line: bytes) -> bytes:
    return mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def _range(start: int, end: int) -> str:
    """A range of lines as in unified diffs: an empty one is named by the line before it."""
    count = end - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def _binary(data: bytes) -> Iterator[bytes]:
    """`literal` of a binary patch: deflated, in base 85, at most 52 bytes a line with their count as a letter."""
    packed = zlib.compress(data)
    yield b"literal %d\n" % len(data)
    for start in range(0, len(packed), _BINARY_LINE_BYTES):
        piece = packed[start : start + _BINARY_LINE_BYTES]
        count = chr(ord("A") + len(piece) - 1 if len(piece) <= 26 else ord("a") + len(piece) - 27).encode()
        yield count + base64.b85encode(piece, pad=True) + b"\n"
    yield b"\n"
