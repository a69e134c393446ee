"""Numbered text, the seeds' form of a read: lines under markers, and reminders where there are none."""

from __future__ import annotations

from collections.abc import Iterable

MARKER_WIDTH = 6
"""Columns of a line number in numbered text (seeds)."""

LINE_CHARACTERS = 5000
"""Longer lines are continued under markers `n.1`, `n.2` (seeds)."""

EMPTY_REMINDER = "System reminder: File exists but has empty contents"
NO_LINES_REMINDER = "System reminder: no lines were read because the limit asks for none"


def number_lines(lines: Iterable[str], start_line: int = 1) -> str:
    """Lines under right-aligned markers, each followed by a TAB."""
    numbered: list[str] = []
    for number, line in enumerate(lines, start=start_line):
        numbered.append(f"{number:>{MARKER_WIDTH}}\t{line[:LINE_CHARACTERS]}")
        for part, begin in enumerate(range(LINE_CHARACTERS, len(line), LINE_CHARACTERS), start=1):
            marker = f"{number}.{part}"
            numbered.append(f"{marker:>{MARKER_WIDTH}}\t{line[begin : begin + LINE_CHARACTERS]}")
    return "\n".join(numbered)
