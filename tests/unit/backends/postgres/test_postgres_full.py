"""A PostgreSQL whose disk is full: a change is ENOSPC and undone, what was there stays, and with room all goes on."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_check import check
from services.postgres import Postgres

from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller

pytestmark = pytest.mark.services

ME = Caller(1000, 1000)
PIECE = 1 << 20


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small one, for the user `postgres`."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    path = Path(tempfile.mkdtemp(prefix="fusebackend-pg-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", path], check=True)
    try:
        (path / "space").mkdir(mode=0o700)
        shutil.chown(path / "space", "postgres", "postgres")
        path.chmod(0o755)
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
        path.rmdir()


@pytest.fixture
def small_database(postgres: Postgres, disk: Path) -> Iterator[str]:
    """Its tables are on the small disk, and the server's log is not: without room for that, no server runs."""
    postgres.execute(f"CREATE TABLESPACE small LOCATION '{disk}/space'")
    try:
        postgres.execute("CREATE DATABASE small TABLESPACE small")
        try:
            yield postgres.dsn("small")
        finally:
            postgres.execute("DROP DATABASE small WITH (FORCE)")
    finally:
        postgres.execute("DROP TABLESPACE small")


def test_a_full_disk_loses_nothing(small_database: str, disk: Path) -> None:
    volume = PostgresVolume(small_database, "full")
    node = volume.create(ROOT_NODE, b"file", 0o644, os.O_RDWR, ME).node
    content = bytearray()
    with pytest.raises(OSError, match="No space left") as failure:
        while True:
            piece = os.urandom(PIECE)
            volume.write(node, len(content), piece)
            content += piece
    assert failure.value.errno == errno.ENOSPC
    assert volume.getattr(node).size == len(content)
    assert check(small_database, volume.id) == []

    subprocess.run(["mount", "-o", "remount,size=96m", disk], check=True)
    volume.write(node, len(content), b"more")
    volume.fsync(node)
    assert volume.read(node, 0, len(content) + 10) == content + b"more"
    volume.setattr(node, AttrChanges(size=0))
    volume.write(node, 0, b"anew")
    volume.release(node, os.O_RDWR)
    volume.close()
