"""A PostgreSQL volume with rows that no volume writes: one bad row is one bad entry, what is beside it is as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from postgres_hosts import sql

from fusebackend.backends.postgres.backend import PostgresBackend
from fusebackend.backends.postgres.schema import VolumeDatabaseError
from fusebackend.backends.postgres.volume import PostgresVolume

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def backend(shared_dsn: str, request: pytest.FixtureRequest) -> Iterator[PostgresBackend]:
    """/bad/, /d/below/, /d/file and /hard."""
    with PostgresBackend(shared_dsn, request.node.name) as backend:
        for path in ("/d/file", "/hard", "/bad/file", "/d/below/file"):
            backend.write(path, "some words")
        yield backend


@pytest.fixture
def damage(shared_dsn: str, backend: PostgresBackend) -> Callable[[str], None]:
    """Change the tables. In the statement, `V` is the volume, and a path in braces the node there."""

    def run(script: str) -> None:
        volume = volume_of(backend)
        nodes = {path: volume.lookup(1, path.encode()).node for path in ("bad", "d", "hard")}
        nodes["below"] = volume.lookup(nodes["d"], b"below").node
        for statement in script.format(V=volume.id, **nodes).split(";"):
            sql(shared_dsn, statement)

    return run


def volume_of(backend: PostgresBackend) -> PostgresVolume:
    assert isinstance(backend.volume, PostgresVolume)
    return backend.volume


def names(backend: PostgresBackend, path: str = "/") -> list[str]:
    return [info["path"] for info in backend.ls(path).entries or ()]


@pytest.mark.parametrize(
    "script",
    [
        "UPDATE fusebackend.inode SET mode = -1 WHERE volume = {V} AND node = {bad}",
        "UPDATE fusebackend.inode SET nlink = 0 WHERE volume = {V} AND node = {bad}",
        "UPDATE fusebackend.inode SET uid = 1::int8 << 40 WHERE volume = {V} AND node = {bad}",
        "UPDATE fusebackend.inode SET size = -1 WHERE volume = {V} AND node = {bad}",
        "DELETE FROM fusebackend.inode WHERE volume = {V} AND node = {bad}",
        "UPDATE fusebackend.inode SET node = -9 WHERE volume = {V} AND node = {bad};"
        "UPDATE fusebackend.dentry SET node = -9 WHERE volume = {V} AND node = {bad}",
        "UPDATE fusebackend.dentry SET node = 1 WHERE volume = {V} AND node = {bad}",
        "UPDATE fusebackend.dentry SET name = 'a/b' WHERE volume = {V} AND node = {bad}",
    ],
)
def test_a_bad_row_is_one_bad_entry(
    backend: PostgresBackend, damage: Callable[[str], None], script: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(script)
    assert names(backend) == ["/d/", "/hard"]
    assert backend.ls("/bad").error is not None
    assert backend.write("/d/new", "text").error is None
    assert backend.delete("/d").error is None
    assert "is damaged" in caplog.text


@pytest.mark.parametrize(
    "script",
    [
        "INSERT INTO fusebackend.dentry VALUES ({V}, {below}, 'loop', {d})",
        "INSERT INTO fusebackend.dentry VALUES ({V}, {below}, 'loop', {below})",
        "INSERT INTO fusebackend.dentry VALUES ({V}, {below}, 'loop', 1)",
        "INSERT INTO fusebackend.dentry VALUES ({V}, 1, 'loop', 1)",
        "INSERT INTO fusebackend.dentry VALUES ({V}, {below}, 'loop', {d});"
        "UPDATE fusebackend.inode SET parent = {below} WHERE volume = {V} AND node = {d}",
        "UPDATE fusebackend.dentry SET parent = node WHERE volume = {V} AND node = {bad}",
    ],
)
def test_a_directory_below_itself_is_gone_into_once(
    backend: PostgresBackend, damage: Callable[[str], None], script: str
) -> None:
    damage(script)
    for result in (backend.glob("**/*"), backend.glob("**")):
        assert result.error is None and all("loop/" not in info["path"] for info in result.matches or ())
    for pattern in ("words", "wo"):
        assert "/hard" in [match["path"] for match in backend.grep(pattern).matches or ()]
    backend.move("/hard", "/d/below/hard")
    for path in ("/d", "/bad"):
        backend.delete(path)
    assert backend.write("/new", "text").error is None


def test_a_volume_without_a_root_says_so_at_once(
    shared_dsn: str, backend: PostgresBackend, damage: Callable[[str], None]
) -> None:
    damage("UPDATE fusebackend.inode SET mode = 33188 WHERE volume = {V} AND node = 1")
    try:
        with pytest.raises(VolumeDatabaseError, match="is damaged: it has no root directory"):
            PostgresBackend(shared_dsn, volume_of(backend).name)
    finally:
        undone = "UPDATE fusebackend.inode SET mode = 16877 WHERE volume = %s AND node = 1"
        sql(shared_dsn, undone, volume_of(backend).id)
