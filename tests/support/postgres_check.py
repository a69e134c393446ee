"""Invariants of the tables of a PostgreSQL volume. They hold at every moment, also after any process was killed."""

from __future__ import annotations

import psycopg

_RULES = {
    "a name leads to nothing": """
        SELECT d.parent, d.node FROM fusebackend.dentry d LEFT JOIN fusebackend.inode i USING (volume, node)
        WHERE d.volume = %(volume)s AND (i.node IS NULL OR i.nlink = 0)""",
    "a name is in no directory": """
        SELECT d.parent, d.node FROM fusebackend.dentry d
        LEFT JOIN fusebackend.inode p ON p.volume = d.volume AND p.node = d.parent
        WHERE d.volume = %(volume)s AND (p.node IS NULL OR p.mode & 61440 <> 16384)""",
    "a file has another number of names than its link count": """
        SELECT i.node, i.nlink FROM fusebackend.inode i WHERE i.volume = %(volume)s AND i.mode & 61440 <> 16384
        AND i.nlink <> (SELECT count(*) FROM fusebackend.dentry d WHERE d.volume = i.volume AND d.node = i.node)""",
    "a directory has another number of directories than its link count says": """
        SELECT i.node, i.nlink FROM fusebackend.inode i WHERE i.volume = %(volume)s AND i.mode & 61440 = 16384
        AND i.nlink > 0 AND i.nlink <> 2 + (SELECT count(*) FROM fusebackend.dentry d
            JOIN fusebackend.inode c ON c.volume = d.volume AND c.node = d.node
            WHERE d.volume = i.volume AND d.parent = i.node AND c.mode & 61440 = 16384)""",
    "a directory is not where it says": """
        SELECT i.node, i.parent FROM fusebackend.inode i WHERE i.volume = %(volume)s AND i.mode & 61440 = 16384
        AND i.nlink > 0 AND i.node <> 1 AND 1 <> (SELECT count(*) FROM fusebackend.dentry d
            WHERE d.volume = i.volume AND d.node = i.node AND d.parent = i.parent)""",
    "a node without a name is on nobody's list": """
        SELECT i.node, i.nlink FROM fusebackend.inode i WHERE i.volume = %(volume)s AND i.nlink = 0
        AND NOT EXISTS (SELECT FROM fusebackend.nameless n WHERE n.volume = i.volume AND n.node = i.node)""",
    "a chunk belongs to no file, or lies behind its end": """
        SELECT c.node, c.idx FROM fusebackend.chunk c LEFT JOIN fusebackend.inode i USING (volume, node)
        WHERE c.volume = %(volume)s AND c.node > 0 AND (i.node IS NULL OR c.idx * 65536 + length(c.data) > i.size)""",
    "the blocks of a file are not those of its chunks": """
        SELECT i.node, i.blocks FROM fusebackend.inode i WHERE i.volume = %(volume)s AND i.mode & 61440 <> 16384
        AND i.blocks <> (SELECT coalesce(sum((length(data) + 4095) / 4096 * 8), 0) FROM fusebackend.chunk c
            WHERE c.volume = i.volume AND c.node = i.node)""",
    "a chunk that no file has is of no snapshot either": """
        SELECT c.node, c.idx FROM fusebackend.chunk c WHERE c.volume = %(volume)s AND c.node < 0
        AND NOT EXISTS (SELECT FROM fusebackend.old_chunk o WHERE o.volume = c.volume AND o.id = -c.node)""",
    "an old chunk has lost its bytes": """
        SELECT o.node, o.idx FROM fusebackend.old_chunk o LEFT JOIN fusebackend.chunk c
        ON c.volume = o.volume AND c.node = -o.id AND c.idx = o.idx
        WHERE o.volume = %(volume)s AND length(c.data) IS DISTINCT FROM o.bytes""",
    **{
        f"rows of {table} are of the same snapshot": f"""
        SELECT o.*, v.* FROM fusebackend.old_{table} o JOIN fusebackend.volume w ON w.id = o.volume
        LEFT JOIN LATERAL (
            SELECT made, 1 << 30 AS until FROM fusebackend.{table} v WHERE v.volume = o.volume AND {keys}
            UNION ALL SELECT made, until FROM fusebackend.old_{table} v WHERE v.volume = o.volume AND {keys}
            AND v.until > o.until) v ON true
        WHERE o.volume = %(volume)s AND (o.made >= o.until OR o.until > w.taken OR v.made IS NOT NULL AND EXISTS (
            SELECT FROM fusebackend.snapshot s WHERE s.volume = o.volume AND s.number > greatest(o.made, v.made)
            AND s.number <= least(o.until, v.until)))"""
        for table, keys in (
            ("inode", "v.node = o.node"),
            ("dentry", "v.parent = o.parent AND v.name = o.name"),
            ("chunk", "v.node = o.node AND v.idx = o.idx"),
        )
    },
    "the newest snapshot is another one": """
        SELECT newest, (SELECT coalesce(max(number), 0) FROM fusebackend.snapshot WHERE volume = id) AS number
        FROM fusebackend.volume WHERE id = %(volume)s
        AND newest <> (SELECT coalesce(max(number), 0) FROM fusebackend.snapshot WHERE volume = id)""",
}


def check(dsn: str, volume: int) -> list[str]:
    """Return the violations, as sentences; none when all is well."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [
            f"{rule}: {row}"
            for rule, query in _RULES.items()
            for row in connection.execute(query, {"volume": volume}).fetchmany(3)
        ]
