"""Upper limits for the statements that a mount sends to PostgreSQL for everyday operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import mounts
import psycopg
import pytest
from psycopg import conninfo
from services.postgres import Postgres
from trees import run

FILES = 10_000

FILL = f"""
INSERT INTO fusebackend.inode
    SELECT 1, 1000000 + n, 33188, 1, 0, 0, 0, 0, 0, n, n, n, 0, n, 0, 0 FROM generate_series(1, {FILES}) n;
INSERT INTO fusebackend.dentry
    SELECT 1, 1, convert_to('file' || to_char(n, 'FM00000'), 'UTF8'), 1000000 + n FROM generate_series(1, {FILES}) n;
ANALYZE fusebackend.inode; ANALYZE fusebackend.dentry
"""


class Counted:
    """A mount, and a count of its statements: PostgreSQL writes them to its log, beside those of other tests."""

    def __init__(self, postgres: Postgres, dsn: str, path: Path) -> None:
        self._postgres = postgres
        self._database = conninfo.conninfo_to_dict(dsn)["dbname"]
        self.path = path

    def statements(self, work: Callable[[], object]) -> Counter[str]:
        """Count the statements during `work` by their beginnings, without those of the background."""
        before = len(self._postgres.log_text)
        work()
        statement = rf" {self._database} .* ms  execute fusebackend\S*: (.{{1,60}})"
        found = re.findall(statement, self._postgres.log_text[before:])
        return Counter(found)


@pytest.fixture(scope="module")
def counted(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    tmp = tmp_path_factory.mktemp("mount")
    with postgres.database() as dsn:
        url = f"postgres:{dsn} options='-c log_min_duration_statement=0'?volume=many"
        with mounts.mounted(tmp / "mnt", url) as server:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(FILL, prepare=False)
            yield Counted(postgres, dsn, server.path)


def test_a_listing_of_10_000_files_takes_a_handful(counted: Counted) -> None:
    for lines, words in (
        (FILES, ("find", counted.path, "-type", "f", "-newermt", "1960-01-01")),
        (FILES + 1, ("ls", "-l", counted.path)),
    ):
        listed: list[str] = []
        taken = counted.statements(lambda words=words, listed=listed: listed.extend(run(*words).splitlines()))
        assert len(listed) == lines
        assert taken.total() - late(taken) <= 40, taken


def late(taken: Counter[str]) -> int:
    """Lookups of names whose entry timeout ended before the program had come to them: some on a busy machine."""
    lookups = sum(count for words, count in taken.items() if words.startswith("SELECT p.node, "))
    assert lookups < FILES / 4, taken
    return lookups
