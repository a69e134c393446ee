"""`PostgresBackend`: a native volume in PostgreSQL that many hosts mount at once."""

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
