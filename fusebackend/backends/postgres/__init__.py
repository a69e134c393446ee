"""`PostgresBackend`: a native volume in PostgreSQL that many hosts mount at once.

backend.py opening.py              the agent face; from a URL to it
volume.py stored_tree.py bare_nodes.py  the kernel face, and what the volume holds
transaction.py statements.py rows.py batch.py   one change, its SQL, its rows, and few round trips
schema.py                          the tables
connections.py host_session.py uses.py   this process among those that have the volume open
feed.py notices.py                 what other hosts change
search/                            `grep` and `glob`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusebackend.backends.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]


def __getattr__(name: str) -> Any:
    if name != "PostgresBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fusebackend.backends.postgres.backend import PostgresBackend

    return PostgresBackend
