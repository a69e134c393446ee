"""Volume files as earlier versions of `sqlite:` left them."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def as_version_2(path: Path) -> None:
    """Without snapshots; the places of chunks are an index."""
    db = sqlite3.connect(path)
    db.execute("CREATE UNIQUE INDEX chunk_place ON chunk (node, idx)")
    for table in ("place", "snapshot", "old_inode", "old_dentry", "old_place", "old_xattr", "pruning"):
        db.execute(f"DROP TABLE {table}")
    db.execute("DELETE FROM meta WHERE key = 'snapshot'")
    db.execute("PRAGMA user_version = 2")
    db.commit()
    db.execute("VACUUM")
    db.close()


def as_version_1(path: Path) -> None:
    """Without an index for searches as well."""
    as_version_2(path)
    db = sqlite3.connect(path)
    for name in ("trigram", "unindexed", "common_word"):
        db.execute(f"DROP TABLE {name}")
    for name in ("dentry_node", "inode_large"):
        db.execute(f"DROP INDEX {name}")
    db.execute("DELETE FROM meta WHERE key = 'indexed'")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
