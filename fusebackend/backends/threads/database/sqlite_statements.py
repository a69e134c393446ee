"""The statements of `sqlite_database.py`: what is asked of the tables of LangGraph's SqliteSaver."""

from __future__ import annotations

from fusebackend.backends.threads.database.rows import NULL_TASK

# CAST lets a text that is no UTF-8 be asked for by its bytes; see `bound`.
# TEXT comes after numbers and before BLOBs: what is neither is no id (`IS_TEXT`, which the indexes answer as well).
IS_TEXT = "{0} >= '' AND {0} < x''"

LINE = "thread_id = CAST(? AS TEXT) AND checkpoint_ns = CAST(? AS TEXT)"

THREADS = f"""
WITH RECURSIVE found(id) AS (
    SELECT min(thread_id) FROM checkpoints WHERE {IS_TEXT.format("thread_id")}
    UNION ALL
    SELECT (SELECT min(thread_id) FROM checkpoints WHERE thread_id > found.id AND thread_id < x'')
    FROM found WHERE found.id IS NOT NULL
)
SELECT id, (SELECT max(checkpoint_id) FROM checkpoints
    WHERE thread_id = found.id AND checkpoint_ns = '' AND {IS_TEXT.format("checkpoint_id")})
FROM found WHERE id IS NOT NULL
"""

NAMESPACES = f"""
WITH RECURSIVE found(ns) AS (
    SELECT min(checkpoint_ns) FROM checkpoints
    WHERE thread_id = CAST(?1 AS TEXT) AND {IS_TEXT.format("checkpoint_ns")}
    UNION ALL
    SELECT (SELECT min(checkpoint_ns) FROM checkpoints
        WHERE thread_id = CAST(?1 AS TEXT) AND checkpoint_ns > found.ns AND checkpoint_ns < x'')
    FROM found WHERE found.ns IS NOT NULL
)
SELECT ns FROM found WHERE ns IS NOT NULL
"""

# CROSS JOIN keeps the chain outside, so that each step is one look-up by the primary key.
ANCESTRY = """
WITH RECURSIVE chain(id, parent, type, checkpoint) AS (
    SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint FROM checkpoints
    WHERE thread_id = CAST(?1 AS TEXT) AND checkpoint_ns = CAST(?2 AS TEXT) AND checkpoint_id = CAST(?3 AS TEXT)
    UNION ALL
    SELECT c.checkpoint_id, c.parent_checkpoint_id, c.type, c.checkpoint
    FROM chain CROSS JOIN checkpoints c ON c.checkpoint_id = chain.parent
    WHERE c.thread_id = CAST(?1 AS TEXT) AND c.checkpoint_ns = CAST(?2 AS TEXT)
)
SELECT id, parent, type, checkpoint FROM chain
"""

APPEND = f"""
INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value)
SELECT CAST(?1 AS TEXT), CAST(?2 AS TEXT), ?3, '{NULL_TASK}', coalesce(max(idx) + 1, 0), ?4, ?5, ?6 FROM writes
WHERE thread_id = CAST(?1 AS TEXT) AND checkpoint_ns = CAST(?2 AS TEXT) AND checkpoint_id = ?3
    AND task_id = '{NULL_TASK}' AND idx >= 0
"""
