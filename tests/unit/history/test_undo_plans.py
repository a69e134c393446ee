"""What an undo asks the history is found by an index: it asks for each file, and the history has those of a day."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from recorded import recorded_of

from fusebackend.databases import sqlite

_WHOLE = re.compile(r"SCAN (events|e|r|c)\b")
"""Of `EXPLAIN QUERY PLAN`: the table is read from its begin to its end, or an index is."""


@for_each("kind", ["sqlite", "dir"])
def test_no_statement_of_an_undo_reads_the_whole_history(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = defaultdict[str, set[str]](set)
    opened = sqlite.open_file

    def traced(path: str, *words: Any, **options: Any) -> sqlite3.Connection:
        connection = opened(path, *words, **options)
        connection.set_trace_callback(lambda statement: seen[path].add(statement))
        return connection

    monkeypatch.setattr(sqlite, "open_file", traced)
    with recorded_of(kind, tmp_path) as recorded:
        files = recorded.files
        with recorded.call("plant"):
            files.make(
                ("mkdir", "/d"), ("write", "/d/a", b"a"), ("write", "/d/b", b"b"), ("link", "/d/a", "/d/c"),
                ("symlink", "a", "/d/link"),
            )  # fmt: skip
        with recorded.call("work"):
            files.make(
                ("write", "/d/b", b"longer"), ("rename", "/d/b", "/d/moved"), ("remove", "/d/c"),
                ("change", "/d/moved", {"mode": 0o600}), ("write", "/d/new", b"n"), ("rename", "/d/new", "/d/moved"),
                ("rename", "/d", "/e"),
            )  # fmt: skip
        work = recorded.last()
        with recorded.call("rm -rf"):
            files.remove_tree("/e")
        seen.clear()
        assert recorded.undoing.undo([work]).conflicts
        for calls in ([], [work], []):
            assert recorded.undoing.undo(calls).conflicts == []
        recorded.history.flush()
        path = str(recorded.directory / "history.db")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            asked = [each for each in seen[path] if each.lstrip().startswith(("SELECT", "WITH", "UPDATE", "DELETE"))]
            plans = {each: list(connection.execute(f"EXPLAIN QUERY PLAN {each}")) for each in asked}
    assert any("bytes" in each for each in plans), "the bytes of a file are asked for"
    assert [each for each, plan in plans.items() for row in plan if _WHOLE.search(row[3])] == []
