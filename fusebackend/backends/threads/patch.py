"""Git patches: what one step changed in a set of files, in the form that `git apply` takes.

A patch begins like an entry of `git log -p`: who, when, and why, then one `diff --git` for each file. Text is compared
line by line; anything else is a `GIT binary patch` with both contents, so that the patch can be applied and reverted.
Files of more than `MAX_DIFFED_BYTES` are shown as replaced as a whole: difflib takes quadratic time.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

MAX_DIFFED_BYTES: Final = 1 << 20
MAX_DIFFED_LINES: Final = 5_000
"""Of one side. Beyond either, a text is replaced as a whole."""

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
    if max(len(before), len(after)) > MAX_DIFFED_BYTES or max(len(a), len(b)) > MAX_DIFFED_LINES:
        groups: Iterable[list[tuple[str, int, int, int, int]]] = [[("replace", 0, len(a), 0, len(b))]]
    else:
        groups = difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(CONTEXT_LINES)
    for group in groups:
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n".encode()
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (_marked(b" ", line) for line in a[i1:i2])
                continue
            yield from (_marked(b"-", line) for line in a[i1:i2])
            yield from (_marked(b"+", line) for line in b[j1:j2])


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
