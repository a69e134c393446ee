"""Draw docs/benchmark.svg: bars of the ratios in BENCHMARKS.md, on a logarithmic axis.

    scripts/bench --plot

It is drawn from the table there, so that both always agree. An SVG of bars, lines and words is sixty lines by hand; a
plotting library would be the largest dependency of the project. The colours suit light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from driver import cells, read_between
from serving import REPOSITORY

PICTURE = REPOSITORY / "docs" / "benchmark.svg"
TITLE = "Time on a mount ÷ time in a plain directory (shorter is better)"

COLOURS = {
    "fusebackend": "#2563eb", "idle=poll": "#93c5fd", "bindfs": "#94a3b8", "rclone": "#f59e0b", "JuiceFS": "#10b981",
    "SeaweedFS": "#a855f7",
}  # fmt: skip
OTHER_COLOUR = "#64748b"
INK, GRID = "#6b7280", "#9ca3af"

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 900, 190, 50, 64, 12
BAR, GAP = 9, 12
"""Pixels: the height of a bar, and the gap between groups."""

RATIO = " ÷ plain"
"""The suffix of the head of a column of ratios to the plain directory."""

Groups = dict[str, dict[str, float]]
"""Measure → side → ratio."""


class Axis:
    """A logarithmic axis from `low` to `high`, which are widened to whole steps of 1, 2, 5, 10 …"""

    def __init__(self, values: Sequence[float], left: float, width: float) -> None:
        steps = [digit * 10.0**power for power in range(-6, 9) for digit in (1, 2, 5)]
        lowest, highest = min(1.0, *values), max(2.0, *values)
        self.low = max(step for step in steps if step <= lowest * 1.001)
        self.high = min(step for step in steps if step >= highest * 0.999)
        self.ticks = [step for step in steps if self.low * 0.999 <= step <= self.high * 1.001]
        self._left, self._scale = left, width / math.log(self.high / self.low)

    def __call__(self, value: float) -> float:
        return self._left + self._scale * math.log(value / self.low)


def groups(lines: Sequence[str]) -> Groups:
    """Parse the ratios of a table of `bench.py`, the geometric mean first."""
    table = [cells(line) for line in lines if line.startswith("|")]
    heads = table[0]
    columns = {head.removesuffix(RATIO): place for place, head in enumerate(heads) if head.endswith(RATIO)}
    # The table ends where another table, with fewer columns, begins.
    rows = [row for row in table[2:] if len(row) == len(heads)]
    found = {row[0]: {side: float(row[place]) for side, place in columns.items()} for row in rows}
    return dict(sorted(found.items(), key=lambda item: item[0] != "geometric mean"))


def draw(found: Groups, title: str) -> str:
    """Return the SVG."""
    sides = list(next(iter(found.values())))
    axis = Axis([value for ratios in found.values() for value in ratios.values()], LEFT, WIDTH - LEFT - RIGHT)
    group = len(sides) * BAR + GAP
    height = TOP + len(found) * group + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>',
        *_legend(sides),
        *_grid(axis, height),
    ]
    for number, (name, ratios) in enumerate(found.items()):
        lines += _group(name, ratios, axis, TOP + number * group)
    return "\n".join([*lines, "</svg>\n"])


def _legend(sides: Sequence[str]) -> Iterator[str]:
    for number, side in enumerate(sides):
        x = LEFT + number * 110
        yield f'<rect x="{x}" y="26" width="10" height="10" fill="{COLOURS.get(side, OTHER_COLOUR)}"/>'
        yield f'<text x="{x + 15}" y="35">{escape(side)}</text>'


def _grid(axis: Axis, height: float) -> Iterator[str]:
    for tick in axis.ticks:
        x, wide = axis(tick), 1.5 if tick == 1 else 0.5
        yield (
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - BOTTOM}" '
            f'stroke="{GRID}" stroke-width="{wide}" stroke-opacity="0.6"/>'
        )
        yield f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle" font-size="10">{tick:g}×</text>'


def _group(name: str, ratios: dict[str, float], axis: Axis, top: float) -> Iterator[str]:
    bold = ' font-weight="bold"' if name == "geometric mean" else ""
    middle = top + len(ratios) * BAR / 2 + 4
    yield f'<text x="{LEFT - 10}" y="{middle:.1f}" text-anchor="end"{bold}>{escape(name)}</text>'
    for number, (side, ratio) in enumerate(ratios.items()):
        # From 1, the plain directory, to the right for slower and to the left for faster.
        start, end = sorted((axis(1), axis(ratio)))
        y = top + number * BAR
        yield (
            f'<rect x="{start:.1f}" y="{y}" width="{max(end - start, 1):.1f}" height="{BAR - 1}" '
            f'fill="{COLOURS.get(side, OTHER_COLOUR)}"><title>{escape(f"{name}, {side}: {ratio:g}×")}</title></rect>'
        )
        yield f'<text x="{end + 3:.1f}" y="{y + BAR - 2}" font-size="8">{ratio:g}</text>'


def main() -> None:
    PICTURE.write_text(draw(groups(read_between("table").splitlines()), TITLE))
    print(f"drew {PICTURE.relative_to(REPOSITORY)}")
