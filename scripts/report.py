"""Reports of benchmarks, printed and in BENCHMARKS.md: tables between markers, and the conditions of the run."""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from measures import drop_caches
from serving import REPOSITORY

BENCHMARKS = REPOSITORY / "BENCHMARKS.md"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Make the lines of a table with names in the first column and numbers in the others."""
    return [_line(heads), "|---|" + "---:|" * (len(heads) - 1), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def cells(line: str) -> list[str]:
    """Parse a line that `markdown` made, without the stars of bold cells."""
    return [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]


def conditions(url: str, arguments: argparse.Namespace, work: Path) -> str:
    """Describe the machine and the run: `arguments.rounds` rounds, `arguments.quick` or all of the work."""
    return (
        f"`{url.partition(':')[0]}:` on {machine(work)}; medians of {arguments.rounds} rounds"
        f"{', a tenth of the work' if arguments.quick else ''}."
    )


def machine(work: Path) -> str:
    """Describe the machine, and the file system that `work` is on."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    find = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(work)]
    disk = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    return (
        f"{platform.system()} {platform.release()}, {cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores, "
        f"{memory_gib:.0f} GiB, {disk}, Python {platform.python_version()}"
        f"{'' if drop_caches() else '; not root: the cold measures are warm'}"
    )


def read_between(table: str) -> str:
    """Return the text between a table's markers in BENCHMARKS.md."""
    return _parts(table)[1]


def write_between(table: str, report: str) -> None:
    """Replace the text between a table's markers in BENCHMARKS.md."""
    before, _, after = _parts(table)
    BENCHMARKS.write_text(f"{before}{report}\n{after}")


def _parts(table: str) -> tuple[str, str, str]:
    """Split BENCHMARKS.md: up to and with the opening marker, between the two, and from the closing one on."""
    opening, closing = f"<!-- {table} -->\n", f"<!-- end of {table} -->"
    before, start, rest = BENCHMARKS.read_text().partition(opening)
    found, end, after = rest.partition(closing)
    if not start or not end:
        raise SystemExit(f"{BENCHMARKS} has no markers of '{table}'")
    return before + start, found, end + after
