"""A large checkpoint database, made quickly: its rows are written as SqliteSaver writes them, without a graph."""

from __future__ import annotations

import json
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import ormsgpack
from langgraph.checkpoint.sqlite import SqliteSaver

_FIRST_TICK = 0x01F0_0000_0000_0000
"""In 2025, in steps of 100 ns since 1582, as UUIDs count."""


def make(path: Path, *, threads: int, checkpoints: int, files: int, changed: int = 10, text: str = "x" * 200) -> None:
    """Make threads `thread-0000`, …; each checkpoint holds all files of its thread, some changed since the last.

    Every file ends in a line `thread T version V`.
    """
    connection = sqlite3.connect(path)
    SqliteSaver(connection).setup()
    connection.execute("PRAGMA synchronous = OFF")
    for number in range(threads):
        connection.executemany(
            "INSERT INTO checkpoints VALUES (?, '', ?, ?, 'msgpack', ?, ?)",
            _rows(number, checkpoints, files, changed, text),
        )
    connection.commit()
    connection.close()


def _rows(thread: int, checkpoints: int, files: int, changed: int, text: str) -> list[tuple[Any, ...]]:
    state = {f"/notes/{index % 5}/file-{index:03}.md": _record(thread, 0, text) for index in range(files)}
    keys = list(state)
    rows: list[tuple[Any, ...]] = []
    parent = None
    for step in range(checkpoints):
        for index in range(changed if step else 0):
            state[keys[(step * changed + index) % files]] = _record(thread, step, text)
        checkpoint = checkpoint_id(thread, step)
        document = {
            "v": 4, "ts": "2025-01-01T00:00:00+00:00", "id": checkpoint, "channel_values": {"files": state},
            "channel_versions": {"files": f"{step + 1:032}.0"}, "versions_seen": {}, "updated_channels": None,
        }  # fmt: skip
        metadata = json.dumps({"source": "loop", "step": step, "parents": {}}).encode()
        rows.append((f"thread-{thread:04}", checkpoint, parent, ormsgpack.packb(document), metadata))
        parent = checkpoint
    return rows


def checkpoint_id(thread: int, step: int) -> str:
    """Make a UUID of version 6: the ids of a thread are in the order of its steps."""
    ticks = _FIRST_TICK + step * 10_000_000
    high = (ticks >> 12) << 16 | 0x6000 | ticks & 0xFFF
    return str(uuid.UUID(int=high << 64 | 0x8000 << 48 | thread))


def _record(thread: int, version: int, text: str) -> dict[str, Any]:
    return {
        "content": f"{text}\nthread {thread} version {version}\n",
        "encoding": "utf-8",
        "created_at": "2025-01-01T00:00:00+00:00",
        "modified_at": f"2025-01-01T00:{version // 60:02}:{version % 60:02}+00:00",
    }
