"""A mount server that is killed in the middle of changes to a volume in PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from eventually import eventually
from mounts import Serve
from postgres_check import check
from services.postgres import Postgres

from fusebackend.backends.postgres import host_session as session
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE

pytestmark = [pytest.mark.mounted, pytest.mark.services]


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as dsn:
        yield dsn


def test_a_server_killed_while_it_renames_leaves_each_name_once(
    serve: Serve, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of ten files always has one of two names, in one of two directories; and unlinked open ones are freed."""
    server = serve(f"postgres:{database}?volume=work")
    places = [server.path / "a", server.path / "b"]
    for place in places:
        place.mkdir()
    for number in range(10):
        (places[0] / f"file{number}").write_text(f"{number}\n" * 100)
    held = os.open(server.path / "held", os.O_RDWR | os.O_CREAT)
    os.write(held, b"x" * 100_000)
    os.unlink(server.path / "held")
    moved = [0]

    def rename(seed: int) -> None:
        chance = random.Random(seed)
        with contextlib.suppress(OSError):
            while True:
                name = f"file{chance.randrange(10)}"
                source, target = chance.sample(places, 2)
                with contextlib.suppress(FileNotFoundError):
                    os.rename(source / name, target / name)
                    moved[0] += 1

    threads = [threading.Thread(target=rename, args=(seed,), daemon=True) for seed in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: moved[0] >= 40)
    server.kill()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    with contextlib.suppress(OSError):
        os.close(held)

    volume = PostgresVolume(database, "work")
    try:
        assert check(database, volume.id) == []
        found = []
        for name in (b"a", b"b"):
            directory = volume.lookup(ROOT_NODE, name).node
            for entry, attr in volume.readdir(directory, b"", 100):
                found.append(entry)
                assert volume.read(attr.node, 0, 1000) == (entry[4:] + b"\n") * 100
        assert sorted(found) == [b"file%d" % number for number in range(10)]
        assert {entry for entry, _ in volume.readdir(ROOT_NODE, b"", 100)} == {b"a", b"b"}
    finally:
        volume.close()
    assert check(database, volume.id) == []
    monkeypatch.setattr(session, "GRACE_S", 0.0)
    deadline = time.monotonic() + 60
    while nameless(database):  # PostgreSQL may not have noticed the killed client yet
        assert time.monotonic() < deadline, "what the killed server had open is not freed"
        PostgresVolume(database, "work").close()


def nameless(dsn: str) -> list[tuple[int]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT node FROM fusebackend.inode WHERE nlink = 0").fetchall()
