"""`split_lines`: lines end at `\\n` and nowhere else, as they do for the kernel, git, grep, sed and wc.

`str.splitlines` splits at nine other characters as well, `bytes.splitlines` at `\\r`, and a file opened as text turns
`\\r` into `\\n`. All of these may be in a name: the kernel's tables escape blank, tab, newline and backslash alone
(`show_mountinfo` in fs/proc_namespace.c), so a mount point with U+2028 in it was made, and never found again.
"""

from __future__ import annotations

from typing import AnyStr


def split_lines(data: AnyStr, *, with_ends: bool = False) -> list[AnyStr]:
    """Return the lines of a text, without their `\\n` or `with_ends`. What follows the last `\\n` is one if it is not
    empty."""
    end = "\n" if isinstance(data, str) else b"\n"
    lines = data.split(end)
    last = lines.pop()
    if with_ends:
        lines = [line + end for line in lines]
    if last:
        lines.append(last)
    return lines
