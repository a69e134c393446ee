"""The statements of `postgres_database.py`: what is asked of the tables of LangGraph's PostgresSaver."""

from __future__ import annotations

from fusebackend.backends.threads.database.rows import NULL_TASK

LINE = "thread_id = %(thread)s AND checkpoint_ns = %(namespace)s"

THREADS = """
WITH RECURSIVE found(id) AS (
    SELECT min(thread_id) FROM checkpoints
    UNION ALL
    SELECT (SELECT min(thread_id) FROM checkpoints WHERE thread_id > found.id) FROM found WHERE found.id IS NOT NULL
)
SELECT id, (SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = found.id AND checkpoint_ns = '')
FROM found WHERE id IS NOT NULL
"""

NAMESPACES = """
WITH RECURSIVE found(ns) AS (
    SELECT min(checkpoint_ns) FROM checkpoints WHERE thread_id = %(thread)s
    UNION ALL
    SELECT (SELECT min(checkpoint_ns) FROM checkpoints WHERE thread_id = %(thread)s AND checkpoint_ns > found.ns)
    FROM found WHERE found.ns IS NOT NULL
)
SELECT ns FROM found WHERE ns IS NOT NULL
"""

OF_CHANNEL = """
    c.checkpoint -> 'channel_versions' ->> %(channel)s, c.checkpoint -> 'channel_values' -> %(channel)s, b.type, b.blob
"""

WITH_BLOB = """
LEFT JOIN checkpoint_blobs b
ON b.thread_id = %(thread)s AND b.checkpoint_ns = %(namespace)s AND b.channel = %(channel)s
    AND b.version = c.checkpoint -> 'channel_versions' ->> %(channel)s AND b.type <> 'empty'
"""

ANCESTRY = f"""
WITH RECURSIVE chain(id, parent, depth) AS (
    SELECT checkpoint_id, parent_checkpoint_id, 1 FROM checkpoints
    WHERE {LINE} AND checkpoint_id = %(checkpoint)s
    UNION ALL
    SELECT c.checkpoint_id, c.parent_checkpoint_id, chain.depth + 1
    FROM chain JOIN checkpoints c
    ON c.thread_id = %(thread)s AND c.checkpoint_ns = %(namespace)s AND c.checkpoint_id = chain.parent
    WHERE chain.depth < %(limit)s
)
SELECT chain.id, chain.parent, {OF_CHANNEL}
FROM chain JOIN checkpoints c
ON c.thread_id = %(thread)s AND c.checkpoint_ns = %(namespace)s AND c.checkpoint_id = chain.id
{WITH_BLOB}
ORDER BY chain.depth
"""

LINKS = f"""
SELECT c.checkpoint_id, c.parent_checkpoint_id, {OF_CHANNEL}
FROM checkpoints c
{WITH_BLOB}
WHERE c.thread_id = %(thread)s AND c.checkpoint_ns = %(namespace)s AND c.checkpoint_id = ANY(%(checkpoints)s)
"""

BLOBS = """
SELECT b.channel, b.type, b.blob
FROM checkpoints c, jsonb_each_text(c.checkpoint -> 'channel_versions') AS v(channel, version)
JOIN checkpoint_blobs b ON b.thread_id = %(thread)s AND b.checkpoint_ns = %(namespace)s
    AND b.channel = v.channel AND b.version = v.version AND b.type <> 'empty'
WHERE c.thread_id = %(thread)s AND c.checkpoint_ns = %(namespace)s AND c.checkpoint_id = %(checkpoint)s
"""

APPEND = f"""
INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)
SELECT %(thread)s, %(namespace)s, %(checkpoint)s, '{NULL_TASK}', coalesce(max(idx) + 1, 0), %(channel)s, %(kind)s,
    %(data)s
FROM checkpoint_writes WHERE {LINE} AND checkpoint_id = %(checkpoint)s AND task_id = '{NULL_TASK}' AND idx >= 0
"""
