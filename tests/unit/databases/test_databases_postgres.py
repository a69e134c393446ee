"""The errno of psycopg's errors, and DSNs of URLs. No server is needed."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import psycopg
import pytest
from for_each import for_each

from fusebackend.databases.dsn import conninfo_of
from fusebackend.databases.langgraph import dsn_of
from fusebackend.databases.langgraph import translate_errors as translate_any
from fusebackend.databases.postgres import errno_of, translate_errors
from fusebackend.protocol.scheme import Url, UrlError, require_modules, url_errors
from fusebackend.testing.posix.case import fails


@for_each(
    ("state", "number"),
    [("53100", errno.ENOSPC), ("42501", errno.EACCES), ("40P01", errno.EBUSY), ("42601", errno.EIO)],
)
def test_the_errno_goes_by_the_sqlstate(state: str, number: int) -> None:
    error = psycopg.errors.lookup(state)("words")
    assert errno_of(error) == number
    with fails(number, match="PostgreSQL: words"), translate_errors():
        raise error


def test_libpqs_words_of_a_url_are_in_its_dsn() -> None:
    url = Url("postgres", "host=db", {"application_name": "mine", "volume": "v"}, "postgres:host=db")
    assert psycopg.conninfo.conninfo_to_dict(conninfo_of(url)) == {"host": "db", "application_name": "mine"}
    with pytest.raises(UrlError, match="missing"):
        conninfo_of(Url("postgres", "no words", {}, "postgres:no words"))


def test_the_errors_of_opening_a_url_name_it_without_passwords() -> None:
    url = Url("postgres", "", {}, "postgres:host=db password=secret")
    with pytest.raises(UrlError, match=r"needs no_such_module.*'fusebackend\[some\]'") as caught:
        require_modules(url, "some", "sys", "no_such_module")
    assert "secret" not in str(caught.value)
    for error in (OSError(errno.EACCES, "why"), ValueError("why"), ModuleNotFoundError("why")):
        with pytest.raises(UrlError, match="password=\\*\\*\\*': why"), url_errors(url):
            raise error


def test_the_dsn_of_a_pool_has_its_words_and_no_other_options() -> None:
    pool = SimpleNamespace(
        conninfo="host=db", kwargs={"port": 5, "autocommit": True, "row_factory": None}, getconn=None
    )
    assert psycopg.conninfo.conninfo_to_dict(dsn_of(pool)) == {"host": "db", "port": "5"}


def test_the_errors_of_any_object_are_told_in_its_words() -> None:
    for error, number in ((NotImplementedError("x"), errno.ENOTSUP), (KeyError("x"), errno.EIO)):
        with fails(number, match="The store"), translate_any("The store"):
            raise error
