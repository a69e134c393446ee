"""One PostgreSQL volume, mounted by two hosts (server processes here): an `open` at one sees every close at the other.

`FUSEBACKEND_TWO_MOUNTS_STEPS=20000` makes so many random changes instead of some hundreds. Each is followed by a dozen
opens and downloads at both hosts, so that even those are some thousand operations.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mounts
import psycopg
import pytest
import skewed
from eventually import eventually
from hosts import Host, SharedVolume, read, run_at_random
from mounts import Mounted, Serve
from profiles import amount
from services.postgres import Postgres
from services.s3 import Bucket
from together import together

import fusebackend
from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres.lease import PAUSE_S
from fusebackend.testing.posix.case import fails, opened, refused

STEPS = amount("FUSEBACKEND_TWO_MOUNTS_STEPS", day=120, night=2_000)
LIMIT_S = mounts.LIFE_LIMIT_S + STEPS / 3

pytestmark = [pytest.mark.services, pytest.mark.timeout(LIMIT_S)]

LISTENING = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name LIKE 'fusebackend-feed%%' AND datname = %s"
)
"""Cuts the feeds of one database only, since other tests share the server."""


def database_of(dsn: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])


class Pair(SharedVolume):
    """Two mounts of one volume. `first` and `second` are the same directory in them, for one test."""

    def __init__(self, dsn: str, first: mounts.Mounted, second: mounts.Mounted) -> None:
        super().__init__([first.path, second.path])
        self.dsn = dsn
        self.first, self.second = self.roots

    def enter(self, name: str) -> None:
        """Make a directory for one test."""
        self.first, self.second = (root / name for root in self.roots)
        self.first.mkdir()

    def hosts(self, base: str) -> tuple[Host, ...]:
        return super().hosts(f"/{self.first.relative_to(self.roots[0])}{base}")

    def route(self, agent: int) -> dict[str, Any]:
        route: dict[str, Any] = self.agents[agent].status()["routes"][0]
        return route

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]


Mount = Callable[..., Pair]


@pytest.fixture
def mount(postgres_dsn: str, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    """Yield a function that mounts the volume twice; the second host may be one of `odd_hosts`."""
    monkeypatch.setenv("TWO_MOUNTS_DSN", postgres_dsn)
    with contextlib.ExitStack() as stack:

        def two(options: str = "", second: str | None = None) -> Pair:
            url = f"postgres:{postgres_dsn}?volume=v{options}"
            pair = Pair(postgres_dsn, serve(url, limit_s=LIMIT_S), serve(second or url, limit_s=LIMIT_S))
            stack.callback(pair.close)
            return pair

        yield two


@pytest.fixture(scope="module")
def mounted_pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    tmp = tmp_path_factory.mktemp("pair")
    with (
        postgres.database() as dsn,
        mounts.mounted(tmp / "first", f"postgres:{dsn}?volume=v", limit_s=LIMIT_S) as first,
        mounts.mounted(tmp / "second", f"postgres:{dsn}?volume=v", limit_s=LIMIT_S) as second,
        contextlib.closing(Pair(dsn, first, second)) as pair,
    ):
        yield pair


@pytest.fixture
def pair(mounted_pair: Pair, request: pytest.FixtureRequest) -> Pair:
    mounted_pair.enter(request.node.name)
    return mounted_pair


# -- at random ---------------------------------------------------------------------------------------------------------


def test_what_was_closed_at_one_host_is_opened_at_the_other(pair: Pair) -> None:
    run_at_random(pair.hosts, STEPS, catch_up=pair.catch_up)


# -- without any feed --------------------------------------------------------------------------------------------------


def test_a_host_that_hears_nothing_opens_what_is_there(mount: Mount) -> None:
    """Its caches are valid for an hour, and yet each open is right."""
    pair = mount(second="python:odd_hosts:open_deaf")
    here, there = pair.first, pair.second
    (here / "d").mkdir()
    (here / "d/file").write_text("old")
    os.symlink("d/file", here / "link")
    assert read(str(there / "d/file")) == read(str(there / "link")) == b"old"

    (here / "d/file").write_text("written")
    assert (there / "d/file").read_text() == "written"
    (here / "new").write_text("renamed over")
    (here / "new").rename(here / "d/file")
    assert (there / "d/file").read_text() == "renamed over"
    (here / "d/file").unlink()
    refused(errno.ENOENT, (there / "d/file").read_text)
    (here / "d/file").write_text("made again")
    assert (there / "d/file").read_text() == "made again"

    (here / "d").rename(here / "moved")
    (here / "d").mkdir()
    (here / "d/file").write_text("in a new directory")
    assert (there / "d/file").read_text() == "in a new directory"
    assert (there / "moved/file").read_text() == "made again"
    assert os.listdir(there / "d") == ["file"]
    (here / "d").rename(here / "moved too")
    (here / "d").mkdir()
    (here / "d/other").write_text("beside it")
    assert (there / "d/other").read_text() == "beside it"
    assert os.listdir(there / "d") == ["other"]

    os.symlink("moved/file", here / "new")
    (here / "new").rename(here / "link")
    assert (there / "link").read_text() == "made again"
    os.link(here / "moved/file", here / "a")
    assert (there / "a").read_text() == "made again"
    (here / "a").unlink()
    (here / "a").write_text("no link any more")
    assert (there / "a").read_text() == "no link any more"
    os.truncate(there / "a", 2)
    assert (here / "a").read_text() == "no"
    (here / "b").write_text("b")
    assert (there / "b").read_text() == "b"
    (here / "b").rename(here / "c")
    (here / "b").write_text("another b")
    os.truncate(there / "b", 3)
    assert ((here / "b").read_text(), (here / "c").read_text()) == ("ano", "b")
    with (there / "c").open() as opened:  # by its descriptor, when it has lost its name elsewhere
        (here / "c").unlink()
        assert Path(f"/proc/self/fd/{opened.fileno()}").read_text() == "b"
        refused(errno.ENOENT, (there / "c").open)
        assert opened.read() == "b"


def test_status_says_whether_the_feed_is_there(mount: Mount) -> None:
    pair = mount()
    assert pair.route(1)["ttl_s"] is None and pair.route(1)["features"]["change_feed"]
    (pair.first / "d").mkdir()
    (pair.first / "d/file").write_text("one")
    assert (pair.second / "d/file").read_text() == "one"
    database = database_of(pair.dsn)
    elsewhere = psycopg.conninfo.make_conninfo(pair.dsn, dbname="postgres")
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")  # type: ignore[call-overload]
        connection.execute(LISTENING, [database])
        eventually(lambda: pair.route(1)["ttl_s"] == 1.0)
        assert not pair.route(1)["features"]["change_feed"]
        (pair.first / "d/file").write_text("three")
        assert (pair.second / "d/file").read_text() == "three"
        (pair.first / "d/file").write_text("seven")
        eventually(lambda: os.stat(pair.second / "d/file").st_size == 5)
        (pair.first / "d").rename(pair.first / "e")
        connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")  # type: ignore[call-overload]
    eventually(lambda: pair.route(1)["ttl_s"] is None)
    eventually(lambda: not os.path.exists(pair.second / "d"))
    assert (pair.second / "e/file").read_text() == "seven"


# -- writing from both -------------------------------------------------------------------------------------------------


def test_appends_of_both_hosts_all_land_at_the_end(pair: Pair) -> None:
    lines = {path: [f"{path.parent.name} {number} {'x' * (number * 37 % 900)}\n" for number in range(150)] for path in
             (pair.first, pair.second)}  # fmt: skip

    def append(path: Path) -> None:
        with opened(path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) as fd:
            for line in lines[path]:
                os.write(fd, line.encode())

    together(*(partial(append, path) for path in lines))
    for path in lines:
        found = (path / "log").read_text().splitlines(keepends=True)
        for own in lines.values():
            assert [line for line in found if line in own] == own
        assert len(found) == 300


def test_unless_the_last_writer_is_to_win(mount: Mount) -> None:
    pair = mount("&conflict=last-writer")
    (pair.first / "file").write_text("first\n")
    with opened(pair.first / "file", os.O_RDWR) as fd:
        (pair.second / "file").write_text("by the other host\n")
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"last\n", 0)
    assert (pair.second / "file").read_text() == "last\n"


# -- other changes that the feed reports -------------------------------------------------------------------------------


def test_what_the_other_host_does_is_seen_without_opening(pair: Pair) -> None:
    (pair.first / "d").mkdir()
    (pair.first / "d/file").write_text("one")
    assert os.stat(pair.second / "d/file").st_size == 3
    with (pair.second / "d/file").open("rb", buffering=0) as opened:
        assert opened.read() == b"one"
        (pair.first / "d/file").write_text("three")
        eventually(lambda: os.pread(opened.fileno(), 9, 0) == b"three")
    eventually(lambda: os.stat(pair.second / "d/file").st_size == 5)
    (pair.first / "d/file").rename(pair.first / "d/other")
    eventually(lambda: not os.path.exists(pair.second / "d/file"))
    assert os.path.exists(pair.second / "d/other")
    pair.agents[0].delete(f"/{pair.first.name}/d")
    eventually(lambda: not os.path.exists(pair.second / "d"))
    (pair.first / "kind").write_text("a file")
    assert os.path.isfile(pair.second / "kind")
    (pair.first / "kind").unlink()
    (pair.first / "kind/below").mkdir(parents=True)
    eventually(lambda: os.path.isdir(pair.second / "kind/below"))


# -- other routes that two hosts mount ---------------------------------------------------------------------------------


def beside(serve: Serve, url: str) -> Iterator[tuple[Host, Host]]:
    """Start two mounts with a common route."""
    first, second = (serve("memory:", routes={"/route": url}).path for _ in range(2))
    with fusebackend.connect(first) as agent, fusebackend.connect(second) as other:
        yield Host(first, agent, "/route"), Host(second, other, "/route")


@pytest.fixture
def store_hosts(postgres_dsn: str, serve: Serve) -> Iterator[tuple[Host, Host]]:
    yield from beside(serve, f"store+postgres:{postgres_dsn}?ns=memories")


@pytest.fixture
def bucket_hosts(bucket: Bucket, serve: Serve) -> Iterator[tuple[Host, Host]]:
    yield from beside(serve, bucket.url("shared"))


def say(host: Host, name: str, content: bytes) -> None:
    Path(host.place(name)).write_bytes(content)


@pytest.mark.parametrize("which", ["store_hosts", "bucket_hosts"])
def test_hosts_that_share_a_route_of_whole_files_come_to_the_same(which: str, request: pytest.FixtureRequest) -> None:
    here, there = request.getfixturevalue(which)
    chance = random.Random(11)
    contents: dict[str, bytes] = {}
    for number in range(12):
        host, other = chance.sample((here, there), 2)
        name = chance.choice("abc")
        how = chance.choice(["write", "replace", "remove", "agent"])
        contents[name] = b"%d %s\n" % (number, how.encode()) * chance.choice([1, 2000])
        if how == "write":
            say(host, name, contents[name])
        elif how == "replace":
            say(host, "new", contents[name])
            os.rename(host.place("new"), host.place(name))
        elif how == "agent":
            assert host.agent.upload_files([(f"{host.base}/{name}", contents[name])])[0].error is None
        elif os.path.exists(host.place(name)):
            os.unlink(host.place(name))
            del contents[name]
        else:
            del contents[name]
        for each, shown in itertools.product((other, host), "abc"):
            wanted = contents.get(shown)
            eventually(
                lambda each=each, shown=shown, wanted=wanted: found(each, shown) == wanted, what=f"no {number} {how}"
            )


def found(host: Host, name: str) -> bytes | None:
    try:
        return read(host.place(name))
    except FileNotFoundError:
        return None


# --------------------------------------------------------------------------------------------------------------
# Hosts with clocks a day and a half apart: all promises hold, since versions decide and never a clock
# --------------------------------------------------------------------------------------------------------------

SOON_S = 60.0
EARLY, LATE = -20.0, 17.0


@pytest.fixture(scope="module", params=["s3", "postgres"])
def hosts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Mounted, Mounted]]:
    """Serve two hosts, one with a slow clock and one with a fast clock. Tests have files of their own there."""
    tmp = tmp_path_factory.mktemp("skewed")
    with contextlib.ExitStack() as stack:
        if request.param == "s3":
            url = stack.enter_context(request.getfixturevalue("seaweedfs").bucket()).url(ttl="0.2")
        else:
            url = f"postgres:{stack.enter_context(request.getfixturevalue('postgres').database())}?volume=skewed"
        early, late = (
            stack.enter_context(mounts.mounted(tmp / name, "memory:", routes={"/there": skewed.url_of(url, hours)}))
            for name, hours in (("early", EARLY), ("late", LATE))
        )
        yield early, late


def test_each_sees_what_the_other_has_closed(hosts: tuple[Mounted, Mounted]) -> None:
    paths = [host.path / "there" for host in hosts]
    for number in range(6):
        writer, reader = paths[number % 2], paths[1 - number % 2]
        text = f"written by {number}"
        (writer / "file").write_text(text)
        (writer / f"new{number}").write_text(text)
        eventually(lambda reader=reader, text=text: (reader / "file").read_text() == text, SOON_S)  # type: ignore[misc]
        eventually(lambda reader=reader, number=number: (reader / f"new{number}").exists(), SOON_S)  # type: ignore[misc]
    os.rename(paths[0] / "new0", paths[0] / "renamed")
    eventually(lambda: (paths[1] / "renamed").read_text() == "written by 0", SOON_S)
    os.unlink(paths[1] / "renamed")
    eventually(lambda: not (paths[0] / "renamed").exists(), SOON_S)


@pytest.mark.parametrize("first", [0, 1], ids=["early", "late"])
def test_a_lost_update_is_an_error_whoever_is_late(hosts: tuple[Mounted, Mounted], first: int) -> None:
    mine, theirs = (hosts[each].path / f"there/lost{first}" for each in (first, 1 - first))
    hosts[first].expected_log = "was changed by others|closed unsaved"
    mine.write_text("both know this")
    eventually(lambda: theirs.read_text() == "both know this", SOON_S)
    file = os.open(mine, os.O_WRONLY)
    theirs.write_text("theirs")
    with fails(errno.ESTALE):
        os.ftruncate(file, 0)
        os.pwrite(file, b"ours", 0)
        os.fsync(file)
    with contextlib.suppress(OSError):
        os.close(file)
    eventually(lambda: theirs.read_text() == "theirs", SOON_S)
    eventually(lambda: mine.read_text() == "theirs", SOON_S)


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


# --------------------------------------------------------------------------------------------------------------
# A host that is stopped, loses its connection meanwhile, and goes on
# --------------------------------------------------------------------------------------------------------------

ROUNDS = amount("FUSEBACKEND_STOPPED_ROUNDS", day=2, night=20)
LEASED_S = 1.5
"""Until a host that is alone and busy has its lease, see `lease.py`."""

CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    " AND datname = current_database()"
)


def test_a_host_that_was_stopped_with_its_lease_opens_what_another_closed(postgres_dsn: str, serve: Serve) -> None:
    """Its lease has not ended by itself yet, and the server has given the lock to another host."""
    host = serve(f"postgres:{postgres_dsn}?volume=v")
    host.expected_log = "PostgreSQL|postgres|connection"
    file = host.path / "file"
    file.write_text("none")
    for number in range(ROUNDS):
        until = time.monotonic() + LEASED_S
        while time.monotonic() < until:
            assert file.read_text() == (f"{number - 1}" if number else "none")
            time.sleep(PAUSE_S / 2)  # busy enough for a lease
        os.kill(host.pid, signal.SIGSTOP)
        try:
            with psycopg.connect(postgres_dsn, autocommit=True) as connection:
                connection.execute(CUT)
            with PostgresBackend(postgres_dsn, "v", on_exists="replace") as other:
                assert other.write("/file", f"{number}").error is None
        finally:
            os.kill(host.pid, signal.SIGCONT)
        assert file.read_text() == f"{number}"
