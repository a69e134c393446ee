"""Hosts with clocks a day and a half apart mount one bucket or one database. All promises hold, since versions decide
and never a clock."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import skewed
from eventually import eventually
from mounts import Mounted, Serve
from services.postgres import Postgres
from services.s3 import Bucket

from fusebackend.testing.posix.case import fails

pytestmark = [pytest.mark.mounted, pytest.mark.services]

LIMIT_S = 60.0
EARLY, LATE = -20.0, 17.0


@pytest.fixture(params=["s3", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        yield bucket.url(ttl="0.2")
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.database() as dsn:
        yield f"postgres:{dsn}?volume=skewed"


@pytest.fixture
def hosts(url: str, serve: Serve) -> tuple[Mounted, Mounted]:
    """Serve two hosts, one with a slow clock and one with a fast clock."""
    early, late = (serve("memory:", routes={"/there": skewed.url_of(url, hours)}) for hours in (EARLY, LATE))
    return early, late


def test_each_sees_what_the_other_has_closed(hosts: tuple[Mounted, Mounted]) -> None:
    paths = [host.path / "there" for host in hosts]
    for number in range(6):
        writer, reader = paths[number % 2], paths[1 - number % 2]
        text = f"written by {number}"
        (writer / "file").write_text(text)
        (writer / f"new{number}").write_text(text)
        eventually(lambda reader=reader, text=text: (reader / "file").read_text() == text, LIMIT_S)  # type: ignore[misc]
        eventually(lambda reader=reader, number=number: (reader / f"new{number}").exists(), LIMIT_S)  # type: ignore[misc]
    os.rename(paths[0] / "new0", paths[0] / "renamed")
    eventually(lambda: (paths[1] / "renamed").read_text() == "written by 0", LIMIT_S)
    os.unlink(paths[1] / "renamed")
    eventually(lambda: not (paths[0] / "renamed").exists(), LIMIT_S)


@pytest.mark.parametrize("first", [0, 1], ids=["early", "late"])
def test_a_lost_update_is_an_error_whoever_is_late(hosts: tuple[Mounted, Mounted], first: int) -> None:
    mine, theirs = hosts[first].path / "there/file", hosts[1 - first].path / "there/file"
    hosts[first].expected_log = "was changed by others|closed unsaved"
    mine.write_text("both know this")
    eventually(lambda: theirs.read_text() == "both know this", LIMIT_S)
    file = os.open(mine, os.O_WRONLY)
    theirs.write_text("theirs")
    with fails(errno.ESTALE):
        os.ftruncate(file, 0)
        os.pwrite(file, b"ours", 0)
        os.fsync(file)
    with contextlib.suppress(OSError):
        os.close(file)
    eventually(lambda: theirs.read_text() == "theirs", LIMIT_S)
    eventually(lambda: mine.read_text() == "theirs", LIMIT_S)


def test_the_rename_of_a_host_that_lives_is_left_alone(bucket: Bucket, serve: Serve) -> None:
    """The store's clock decides whether a record of a rename is old, and not the clock of the host that reads it."""
    record = (
        b'{"source": "a", "destination": "b", "etag": null, "replaced": null, "host": "elsewhere", "pid": 1,'
        b' "session": "s"}'
    )
    bucket.put("a", b"moving")
    bucket.put(".fusebackend.renames/1", record)
    for hours in (EARLY, LATE):
        server = serve("memory:", routes={"/there": skewed.url_of(bucket.url(), hours)})
        assert os.listdir(server.path / "there") == ["a"]
    assert bucket.get(".fusebackend.renames/1") == record


def test_appends_of_two_hosts_all_land(hosts: tuple[Mounted, Mounted]) -> None:
    paths: list[Path] = [host.path / "there/log" for host in hosts]
    paths[0].write_text("")
    eventually(paths[1].exists, LIMIT_S)
    for number in range(10):
        with paths[number % 2].open("a") as file:
            file.write(f"{number}\n")
    eventually(lambda: sorted(paths[0].read_text().split()) == [str(number) for number in range(10)], LIMIT_S)
