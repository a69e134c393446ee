"""A `PostgresVolume` as the tests of two hosts use it."""

from __future__ import annotations

import os
from typing import Any

import psycopg

from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE, Caller

ME = Caller(1000, 1000)


class Host(PostgresVolume):
    """A volume with shorter words for what the tests do."""

    def make(self, name: bytes, data: bytes = b"", parent: int = ROOT_NODE) -> int:
        """A closed file."""
        node = self.create(parent, name, 0o644, os.O_RDWR, ME).node
        self.write(node, 0, data)
        self.release(node, os.O_RDWR)
        return node

    def content(self, node: int) -> bytes:
        return self.read(node, 0, 1 << 20)


def sql(dsn: str, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Run a statement beside the volumes, which commits by itself; returns its rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def cut_feed(volume: PostgresVolume) -> None:
    """End the connection of a volume's session. Others in other databases have the same name."""
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = %s"
    )
    assert sql(volume.conninfo, cut, f"fusebackend-feed-{volume._session.id}") == [(True,)]
