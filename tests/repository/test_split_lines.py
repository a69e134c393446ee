"""Nobody splits text where `str.splitlines` would: the kernel's tables, names and numbers of lines go by LF alone."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "fusebackend"

ALLOWED = {
    # What other packages' backends count as a line, and lose of it, is what is asked there.
    "dialects/text_files.py": 2,
    # Formatted tracebacks, and files that a published suite has written itself.
    "testing/each.py": 1,
    "testing/posix/files.py": 2,
}


def nodes(word: str) -> Iterator[tuple[Path, ast.AST]]:
    """Yield the nodes of each module that has the word: to parse all of them takes five seconds."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        if word in text:
            for node in ast.walk(ast.parse(text)):
                yield path.relative_to(PACKAGE), node


def test_lines_are_split_by_one_function() -> None:
    found = Counter(
        str(path) for path, node in nodes("splitlines") if isinstance(node, ast.Attribute) and node.attr == "splitlines"
    )
    assert found == ALLOWED, "take fusebackend.base.lines.split_lines"


def test_files_of_the_kernel_are_read_as_bytes() -> None:
    """A file that is opened as text has a newline for each CR, and CR may be in a name."""
    wrong = []
    for path, node in nodes("/proc"):
        if not (isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == "open"):
            continue
        name = ast.unparse(node.args[0])
        mode = ast.unparse(node.args[1]) if len(node.args) > 1 else "'r'"
        tables = ("mountinfo", "cgroup'", "maps", "mounts", "fdinfo", "status'")
        if "/proc" in name and any(table in name for table in tables) and "b" not in mode:
            wrong.append(f"{path}:{node.lineno}: {name}")
    assert not wrong, "take fusebackend.linux.proc.read"
