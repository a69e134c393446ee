"""Nobody splits text where `str.splitlines` would: the kernel's tables, names and numbers of lines go by LF alone."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "fusebackend"

ALLOWED = {
    # What other packages' backends count as a line, and lose of it, is what is asked there.
    "dialects/text_files.py": 2,
    # Formatted tracebacks, and files that a published suite has written itself.
    "testing/each.py": 1,
    "testing/posix/files.py": 2,
}


def test_lines_are_split_by_one_function() -> None:
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            found[str(path.relative_to(PACKAGE))] += isinstance(node, ast.Attribute) and node.attr == "splitlines"
    used = {name: count for name, count in found.items() if count}
    assert used == ALLOWED, "take fusebackend.base.lines.split_lines"


def test_files_of_the_kernel_are_read_as_bytes() -> None:
    """A file that is opened as text has a newline for each CR, and CR may be in a name."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == "open"):
                continue
            name = ast.unparse(node.args[0])
            mode = ast.unparse(node.args[1]) if len(node.args) > 1 else "'r'"
            tables = ("mountinfo", "cgroup'", "maps", "mounts", "fdinfo", "status'")
            if "/proc" in name and any(table in name for table in tables) and "b" not in mode:
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {name}")
    assert not wrong, "take fusebackend.linux.proc.read"
