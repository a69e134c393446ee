"""Git patches: the difference of two files in the form that `git apply` takes.

Text is compared line by line. Anything else is a `GIT binary patch` with both contents, so that the patch can be
applied and reverted.

Lines are compared by E. W. Myers, An O(ND) Difference Algorithm and Its Variations, 1986: the time depends on the
number of changes, and a text with more than `MAX_EDITS` of them is shown as replaced. difflib took 18 s for two texts
of 1,000 equal lines, and the mount waited.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Iterator
from typing import AnyStr, Final, NamedTuple

from fusebackend.base.lines import split_lines

MAX_DIFFED_BYTES: Final = 1 << 20
"""Of one side. A longer text is replaced as a whole."""

MAX_EDITS: Final = 300
"""Lines that are deleted or inserted. So many take 40 ms to find, also among 100,000 equal lines."""

CONTEXT_LINES: Final = 3
FILE_MODE: Final = "100644"
EXECUTABLE_MODE: Final = "100755"
LINK_MODE: Final = "120000"
NO_BLOB: Final = "0" * 40

_BINARY_LINE_BYTES: Final = 52
_UNSAFE: Final = re.compile(rb'[\x00-\x1f\x7f-\xff"\\]')
_C_ESCAPES: Final = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


class Side(NamedTuple):
    """A file before or after a change."""

    data: bytes
    """Its contents; the target of a symbolic link."""
    mode: str = FILE_MODE
    """As git has it: `FILE_MODE`, `EXECUTABLE_MODE` or `LINK_MODE`."""


def file_patch(path: bytes, before: Side | None, after: Side | None, *, old_path: bytes | None = None) -> list[bytes]:
    """Return the patch of one file, from its `diff --git` line on.

    Args:
        path: the file's path after the change, without a leading slash; of a deleted file, before it.
        before, after: the file; None where there is none. Of two sides that are there, both are links or none is: git
            has a deletion and a creation for a changed type.
        old_path: the path before the change, where the file was renamed.

    Returns:
        Pieces of the patch, in order.
    """
    old, new = quoted(b"a/" + (path if old_path is None else old_path)), quoted(b"b/" + path)
    return [
        f"diff --git {old} {new}\n".encode(),
        *_head(path, old_path, before, after),
        *_body(old, new, before, after),
    ]


def _head(path: bytes, old_path: bytes | None, before: Side | None, after: Side | None) -> Iterator[bytes]:
    """The lines of modes and names, and the one of the contents."""
    mode = ""
    if before is None:
        yield f"new file mode {_mode(after)}\n".encode()
    elif after is None:
        yield f"deleted file mode {_mode(before)}\n".encode()
    elif before.mode != after.mode:
        yield f"old mode {before.mode}\nnew mode {after.mode}\n".encode()
    else:
        mode = f" {after.mode}"
    if old_path is not None:
        same = "100%" if _data(before) == _data(after) else "0%"
        yield f"similarity index {same}\nrename from {quoted(old_path)}\nrename to {quoted(path)}\n".encode()
    if _data(before) != _data(after):
        yield f"index {_blob(before)}..{_blob(after)}{mode}\n".encode()


def _body(old: str, new: str, before: Side | None, after: Side | None) -> Iterator[bytes]:
    """The contents, where they differ."""
    if _data(before) == _data(after):
        return
    if shows_as_text(before) and shows_as_text(after):
        yield from _text(
            old if before is not None else "/dev/null",
            new if after is not None else "/dev/null",
            _data(before) or b"",
            _data(after) or b"",
        )
    else:
        yield b"GIT binary patch\n"
        yield from _binary(_data(after) or b"")
        yield from _binary(_data(before) or b"")


def edited_lines(before: Side | None, after: Side | None) -> tuple[int, int] | None:
    """Return the number of lines that the patch deletes and inserts, or None where it is a binary one."""
    if not (shows_as_text(before) and shows_as_text(after)):
        return None
    a, b = (split_lines(_data(side) or b"", with_ends=True) for side in (before, after))
    changes = _changes(a, b)
    return sum(change.i2 - change.i1 for change in changes), sum(change.j2 - change.j1 for change in changes)


def _data(side: Side | None) -> bytes | None:
    return None if side is None else side.data


def _mode(side: Side | None) -> str:
    return FILE_MODE if side is None else side.mode


def quoted(path: bytes) -> str:
    """A path as git writes it: in quotes with C escapes if it has a control character, a quote or a byte above 127.

    Also in quotes: a path with a space before a slash. git apply finds no name in the line that git writes for it.
    """
    if not _UNSAFE.search(path) and b" /" not in path:
        return path.decode("ascii")
    escaped = _UNSAFE.sub(
        lambda found: (f"\\{_C_ESCAPES.get(found[0][0]) or format(found[0][0], '03o')}").encode(), path
    )
    return f'"{escaped.decode("ascii")}"'


def _blob(side: Side | None) -> str:
    """The name of the git object with these bytes."""
    if side is None:
        return NO_BLOB
    data = side.data
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def shows_as_text(side: Side | None) -> bool:
    """Return True where the contents are shown line by line.

    Git's own test is a NUL byte in the first 8,000. Here text is UTF-8 as well, so that a pager can show it. A link's
    target is a line always.
    """
    if side is None or side.mode == LINK_MODE:
        return True
    if b"\0" in side.data:
        return False
    try:
        side.data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _text(old: str, new: str, before: bytes, after: bytes) -> Iterator[bytes]:
    a, b = split_lines(before, with_ends=True), split_lines(after, with_ends=True)
    if not a and not b:
        return  # an empty file is created or deleted: the lines above say all
    yield f"--- {old}{_tab(old)}\n+++ {new}{_tab(new)}\n".encode()
    for hunk in _hunks(_changes(a, b)):
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


def _changes(a: list[bytes], b: list[bytes]) -> list[Change]:
    """The changes from one list of lines to another, in order. Above the limits, a single one replaces all lines."""
    if max(sum(map(len, a)), sum(map(len, b))) <= MAX_DIFFED_BYTES:
        found = line_changes(a, b)
        if sum(each.i2 - each.i1 + each.j2 - each.j1 for each in found) <= MAX_EDITS:
            return found
    return [Change(0, len(a), 0, len(b))]


def line_changes(a: list[AnyStr], b: list[AnyStr]) -> list[Change]:
    """The changes from one list of lines to another, in order. Of more than `MAX_EDITS` lines, a single one replaces
    those between the first and the last that differ."""
    first, n, m = 0, len(a), len(b)
    while first < min(n, m) and a[first] == b[first]:
        first += 1
    while n > first and m > first and a[n - 1] == b[m - 1]:
        n, m = n - 1, m - 1
    edits = _edits(a[first:n], b[first:m])
    if edits is None:
        return [Change(first, n, first, m)]
    found: list[Change] = []
    for x, y, is_insertion in edits:
        i, j = x + first, y + first
        i2, j2 = (i, j + 1) if is_insertion else (i + 1, j)
        if found and (found[-1].i2, found[-1].j2) == (i, j):
            found[-1] = found[-1]._replace(i2=i2, j2=j2)
        else:
            found.append(Change(i, i2, j, j2))
    return found


def _edits(a: list[AnyStr], b: list[AnyStr]) -> list[tuple[int, int, bool]] | None:
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
