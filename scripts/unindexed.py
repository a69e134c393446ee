"""`sqlite:` without its index, to measure the index's cost: `python:unindexed:backend` serves `$UNINDEXED_FILE`."""

from __future__ import annotations

import os
from typing import Any

from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.backends.sqlite.stored_tree import DirtyBuffer


def backend() -> SqliteBackend:
    """Make a backend that marks no file as changed, so none is indexed, without the SQL indexes that searches need."""
    write = DirtyBuffer.write

    def write_no_marks(overlay: DirtyBuffer, *arguments: Any) -> None:
        overlay.contents.clear()
        write(overlay, *arguments)

    DirtyBuffer.write = write_no_marks  # type: ignore[method-assign]
    made = SqliteBackend(os.environ["UNINDEXED_FILE"])
    with made.volume.lock:
        for name in ("dentry_node", "inode_large"):
            made.volume._db.execute(f"DROP INDEX IF EXISTS {name}")
    return made
