"""Patches of conversations: what one step changed in a set of files, as an entry of `git log -p`.

A patch begins with author, date and subject. `git apply` takes it, and skips these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fusebackend.base.git_patch import Side, file_patch


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
        parts += file_patch(path, _side(before.get(path)), _side(after.get(path)))
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


def _side(data: bytes | None) -> Side | None:
    return None if data is None else Side(data)
