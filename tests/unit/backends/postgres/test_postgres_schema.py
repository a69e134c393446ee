"""The database of PostgreSQL volumes: who makes its tables, what it refuses, and what a URL says when it can't be."""

from __future__ import annotations

import threading
from functools import partial
from urllib.parse import quote

import pytest
from for_each import for_each
from postgres_hosts import sql
from services.postgres import Postgres
from together import together

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres import schema
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.testing.each import each
from fusebackend.urls import UrlError, open_backend


def refusal(url: str) -> str:
    with pytest.raises(UrlError) as caught:
        open_backend(url)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_whoever_comes_first_makes_the_tables(postgres_dsn: str) -> None:
    barrier = threading.Barrier(6)

    def come(number: int) -> None:
        barrier.wait(30)
        with PostgresBackend(postgres_dsn, f"volume {number % 2}", connections=2) as backend:
            assert backend.write(f"/{number}.txt", "here\n").error is None

    together(*(partial(come, number) for number in range(6)))
    assert sql(postgres_dsn, "SELECT version FROM fusebackend.schema_version") == [(1,)]
    assert len(sql(postgres_dsn, "SELECT id FROM fusebackend.volume")) == 2
    assert len(sql(postgres_dsn, "SELECT node FROM fusebackend.dentry")) == 6
    assert sql(postgres_dsn, "SELECT id FROM fusebackend.session") == []


def test_tables_that_can_not_be_made_leave_nothing(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "SEARCH_TABLES", "SELECT 1 / 0")
        with pytest.raises(OSError, match="division by zero"):
            PostgresBackend(postgres_dsn)
    assert sql(postgres_dsn, "SELECT to_regclass('fusebackend.inode')") == [(None,)]
    PostgresBackend(postgres_dsn).close()


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ("UPDATE fusebackend.schema_version SET version = 0", 0),
        ("UPDATE fusebackend.schema_version SET version = 2", 2),
        ("DROP TABLE fusebackend.logged", 0),
        ("CREATE TABLE fusebackend.xattr ()", 0),
    ],
)
def test_tables_of_another_version_are_refused(postgres_dsn: str, change: str, version: int) -> None:
    with PostgresBackend(postgres_dsn) as backend:
        assert backend.write("/kept.txt", "kept").error is None
    sql(postgres_dsn, change)
    assert refusal(f"postgres:{postgres_dsn}?volume=default").endswith(
        f"its tables are of another version ({version}, and this fusebackend knows 1 alone);"
        " open it with the fusebackend that made them"
    )
    assert sql(postgres_dsn, "SELECT name FROM fusebackend.dentry") == [(b"kept.txt",)]


def test_a_volume_is_opened_by_url(postgres_dsn: str) -> None:
    with open_backend(f"postgres:{postgres_dsn}?volume=work&conflict=last-writer&on_exists=replace") as backend:
        assert isinstance(backend.volume, PostgresVolume)
        assert backend.write("/a.txt", "1").error is None
        assert backend.write("/a.txt", "2").error is None
    assert refusal(f"postgres:{postgres_dsn}") == (
        f"'postgres:{postgres_dsn}' names no volume; add ?volume=NAME, such as ?volume=work; this database holds work"
    )


def test_a_uri_is_as_good_as_words(postgres: Postgres) -> None:
    with postgres.database() as dsn:
        name = dsn.rpartition("dbname=")[2]
        with open_backend(f"postgres:{postgres.uri(name)}?volume=work") as backend:
            assert backend.write("/a.txt", "1").error is None
        with open_backend(f"postgres:{dsn}?volume=work") as backend:
            assert backend.download_files(["/a.txt"])[0].content == b"1"


@for_each("name", ["a b", "ü☃😀", "50%", "a&b=c?d", "it's; DROP", "../x", "x" * 200])
def test_a_volume_has_any_printable_name(postgres_dsn: str, name: str) -> None:
    with open_backend(f"postgres:{postgres_dsn}?volume={quote(name, safe='')}") as backend:
        assert backend.write("/a.txt", name).error is None
    assert (name,) in sql(postgres_dsn, "SELECT name FROM fusebackend.volume")


def of_another_user(dsn: str, user: str) -> str:
    return f"postgres:{dsn.replace('user=postgres', user)}?volume=work"


class TestRefused:
    def test_whoever_may_not_or_can_not_open_it(self, postgres: Postgres, postgres_dsn: str) -> None:
        """The sentence of each, in which no password stands."""
        postgres.execute("CREATE ROLE modest LOGIN")
        try:
            for case in each(
                [
                    (f"postgres:{postgres.dsn('nowhere')}?volume=work", 'database "nowhere" does not exist'),
                    (of_another_user(postgres_dsn, "user=nobody password=secret"), 'role "nobody" does not exist'),
                    (of_another_user(postgres_dsn, "user=modest"), "permission denied for database"),
                    ("postgres:nonsense?volume=work", "nonsense"),
                    ("postgres:host=x nonsense=1?volume=work", "nonsense"),
                    ("postgres:dbname=x?volume=work&conflict=both", "must be 'error' or 'last-writer'"),
                ]
            ):
                with case as (url, expected):
                    message = refusal(url)
                    assert expected in message
                    assert "secret" not in message
        finally:
            postgres.execute("DROP ROLE modest")

    def test_a_server_that_is_not_there(self) -> None:
        message = refusal("postgres:postgresql://me:secret@127.0.0.1:1/x?volume=work&connect_timeout=2")
        assert "refused" in message
        assert "secret" not in message
        assert "me:***@" in message

    def test_a_volume_without_a_proper_name(self) -> None:
        with pytest.raises(ValueError, match="volume must be a name"):
            PostgresBackend("dbname=x", "a\nb")
