"""Changes that guess the rows they need: one round trip, and nothing lost or logged where the guess is wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import pytest
from eventually import eventually
from for_each import for_each
from postgres_check import check
from postgres_hosts import ME, sql
from round_trips import Trips, sent
from services.postgres import Postgres, running
from together import beside

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres.feed import VolumeFeed
from fusebackend.backends.postgres.known_inodes import CONTESTED_S
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.base import acl
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, AttrChanges, Link, WrongLinks
from fusebackend.testing.posix.case import refused
from fusebackend.volumes.agent_face import VolumeBackend

pytestmark = pytest.mark.services

LIMIT_S = 30.0

Hosts = tuple[PostgresVolume, PostgresVolume]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One of these tests alone, for its log."""
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def pair(server: Postgres) -> Iterator[Hosts]:
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(PostgresBackend(server.dsn(), "v")).volume for _ in range(2))
        yield first, second


@pytest.fixture
def hosts(pair: Hosts, server: Postgres) -> Iterator[Hosts]:
    """Two hosts. The server logs no error in the test, and the volume is sound at the end."""
    before = len(server.log_text)
    yield pair
    assert check(server.dsn(), pair[0].id) == []
    assert [line for line in server.log_text[before:].splitlines() if "ERROR" in line] == []


@pytest.fixture
def top(pair: Hosts, request: pytest.FixtureRequest) -> int:
    """The directory of a test."""
    return top_of(pair, request.node.name)


def top_of(pair: Hosts, name: str) -> int:
    node = pair[0].mkdir(ROOT_NODE, name.encode(), 0o755, ME).node
    make(pair[1], node, b"x")  # a connection reads the number of the newest snapshot first
    return node


@pytest.fixture(autouse=True)
def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's guesses are not told of other hosts' changes."""
    monkeypatch.setattr(VolumeFeed, "_publish", lambda self, changes: None)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    """A function that counts the round trips of transactions in a call."""
    batches = sent(monkeypatch)

    def count(call: Callable[[], object]) -> int:
        batches.clear()
        call()
        return len(batches)

    return count


def make(volume: PostgresVolume, parent: int, name: bytes) -> int:
    return volume.mknod(parent, name, 0o100644, 0, ME).node


def names(volume: PostgresVolume, parent: int) -> set[bytes]:
    return {name for name, _ in volume.readdir(parent, b"", 100)}


def absent(volume: PostgresVolume, parent: int, name: bytes) -> None:
    refused(errno.ENOENT, volume.lookup, parent, name)


def tree(volume: PostgresVolume, top: int) -> tuple[int, int]:
    """Two directories, the first with a file, a second one, and an empty directory."""
    here, there = (volume.mkdir(top, name, 0o755, ME).node for name in (b"here", b"there"))
    for name in (b"file", b"other"):
        make(volume, here, name)
    volume.mkdir(here, b"empty", 0o755, ME)
    return here, there


Change = Callable[[PostgresVolume, int, int], object]

CHANGES: dict[str, Change] = {
    "mknod": lambda volume, here, there: make(volume, here, b"new"),
    "mkdir": lambda volume, here, there: volume.mkdir(here, b"new", 0o755, ME),
    "symlink": lambda volume, here, there: volume.symlink(here, b"new", b"target", ME),
    "link": lambda volume, here, there: volume.link(volume.lookup(here, b"file").node, there, b"link"),
    "unlink": lambda volume, here, there: volume.unlink(here, b"file"),
    "rmdir": lambda volume, here, there: volume.rmdir(here, b"empty"),
    "rename": lambda volume, here, there: volume.rename(here, b"file", here, b"new"),
    "rename over": lambda volume, here, there: volume.rename(here, b"file", here, b"other"),
    "rename elsewhere": lambda volume, here, there: volume.rename(here, b"file", there, b"new"),
    "exchange": lambda volume, here, there: volume.rename(here, b"file", here, b"other", RENAME_EXCHANGE),
    "setattr": lambda volume, here, there: volume.setattr(
        volume.lookup(here, b"file").node, AttrChanges(mode=0o600, mtime_ns=7)
    ),
}


def looked_up(volume: PostgresVolume, here: int, there: int) -> None:
    """What the kernel asks for before a change."""
    for parent in (here, there):
        for name in (b"new", b"link"):
            absent(volume, parent, name)
    for name in (b"file", b"other", b"empty"):
        volume.lookup(here, name)


@for_each("what", CHANGES)
def test_a_change_of_what_was_looked_up_is_one_round_trip(hosts: Hosts, what: str, trips: Trips) -> None:
    top = top_of(hosts, f"one round trip: {what}")
    one, two = hosts
    here, there = tree(one, top)
    looked_up(two, here, there)
    assert trips(lambda: CHANGES[what](two, here, there)) == 1
    before = names(one, here) | names(one, there)
    assert (b"new" in before) == (what in ("mknod", "mkdir", "symlink", "rename", "rename elsewhere"))
    assert (b"file" in before) == (what not in ("unlink", "rename", "rename over", "rename elsewhere"))
    assert (b"empty" in before) == (what != "rmdir")
    assert (b"link" in before) == (what == "link")
    if what == "setattr":
        attr = one.lookup(here, b"file")
        assert (attr.mode, attr.mtime_ns) == (0o100600, 7)


OVERTAKES: dict[str, tuple[Change, dict[str, int]]] = {
    "a new name": (lambda volume, here, there: make(volume, here, b"new"), dict.fromkeys(
        ("mknod", "mkdir", "symlink"), errno.EEXIST)),
    "no file": (lambda volume, here, there: volume.unlink(here, b"file"), dict.fromkeys(
        ("unlink", "rename", "rename over", "rename elsewhere", "exchange"), errno.ENOENT)),
    "another file": (lambda volume, here, there: volume.rename(here, b"other", here, b"file"), {
        "exchange": errno.ENOENT}),
    "other attributes": (lambda volume, here, there: volume.setattr(
        volume.lookup(here, b"file").node, AttrChanges(mode=0o640)), {}),
    "a directory that is full": (lambda volume, here, there: make(
        volume, volume.lookup(here, b"empty").node, b"x"), {"rmdir": errno.ENOTEMPTY}),
}  # fmt: skip


@for_each("how", OVERTAKES)
@for_each("what", [what for what in CHANGES if what not in ("link", "setattr")])
def test_a_wrong_guess_ends_as_a_question_would(hosts: Hosts, what: str, how: str) -> None:
    """Beside the volume itself, `hosts` looks at the server's log: a wrong guess is no line there."""
    top = top_of(hosts, f"a wrong guess: {what}, {how}")
    one, two = hosts
    here, there = tree(one, top)
    looked_up(two, here, there)
    overtake, refused = OVERTAKES[how]
    overtake(one, here, there)
    number: int | None = None
    try:
        CHANGES[what](two, here, there)
    except OSError as error:
        number = error.errno
    assert number == refused.get(what)
    if how == "other attributes" and what in ("rename", "rename elsewhere"):
        assert one.lookup(there if what == "rename elsewhere" else here, b"new").mode == 0o100640


def test_a_guess_waits_for_a_change_and_is_compared_then(
    hosts: Hosts, top: int, server: Postgres, request: pytest.FixtureRequest
) -> None:
    """The statement that compares has begun before the other change is committed."""
    one, two = hosts
    here, there = tree(one, top)
    looked_up(two, here, there)
    inside = one.lookup(here, b"empty").node
    reached, go_on = threading.Event(), threading.Event()

    def fill(_: object) -> None:
        make(one, inside, b"x")
        one._scope.transaction.flush()  # type: ignore[union-attr]
        reached.set()
        assert go_on.wait(LIMIT_S)

    waiting = "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with beside(lambda: one.change_as_one(fill, f"/{request.node.name}/here/empty/x")):
        assert reached.wait(LIMIT_S)
        with beside(lambda: refused(errno.ENOTEMPTY, two.rmdir, here, b"empty")):
            eventually(lambda: "WITH lock AS" in str(sql(server.dsn(), waiting)), LIMIT_S)
            go_on.set()
    assert names(two, inside) == {b"x"}


def test_a_contested_directory_is_asked_for_a_while(
    hosts: Hosts,
    top: int,
    trips: Trips,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = hosts
    now = [time.monotonic() + CONTESTED_S]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("fusebackend.backends.postgres.known_inodes.time", clock)

    def unlink(volume: PostgresVolume, name: bytes) -> int:
        return trips(lambda: volume.unlink(top, name))

    for volume, tag in ((one, b"a"), (two, b"b")):
        for number in range(5):
            make(volume, top, tag + b"%d" % number)
    for number in range(5):
        two.lookup(top, b"b%d" % number)
        one.lookup(top, b"a%d" % number)
    now[0] += CONTESTED_S
    assert [unlink(two, b"b%d" % number) for number in range(2)] == [1, 1]
    assert unlink(one, b"a0") == 3
    assert unlink(one, b"a1") == 2, "for a while it takes no guess"
    now[0] += CONTESTED_S
    one.lookup(top, b"a2")
    assert unlink(one, b"a2") == 1
    assert names(one, top) - {b"x"} == {b"a3", b"a4", b"b2", b"b3", b"b4"}


def test_names_in_a_directory_that_others_fill_are_one_round_trip(hosts: Hosts, top: int, trips: Trips) -> None:
    """Neither host reads what the other one does in it, and its row has all of it in the end."""
    one, two = hosts
    for volume in hosts:
        absent(volume, top, b"a0")
    calls: list[Callable[[PostgresVolume, bytes], object]] = [
        lambda volume, name: make(volume, top, name),
        lambda volume, name: volume.mkdir(top, name, 0o755, ME),
        lambda volume, name: volume.symlink(top, name, b"target", ME),
    ]
    make(one, top, b"first")
    assert trips(lambda: make(two, top, b"second")) == 3
    for number in range(6):
        for volume, tag in ((one, b"a"), (two, b"b")):
            name = tag + b"%d" % number
            call = partial(calls[number % 3], volume, name)
            assert trips(call) == 1 or (number, volume) == (0, one), "that others do is found out once"
    wanted = {tag + b"%d" % number for number in range(6) for tag in (b"a", b"b")}
    supposed = two._known.get(top)
    assert supposed is not None and supposed.row == one._read_inode(top).row
    assert names(one, top) == names(two, top) == {b"x", b"first", b"second"} | wanted
    here, there = one._read_inode(top), two._read_inode(top)
    assert here.nlink == there.nlink == 2 + 4
    assert here.mtime_ns == here.ctime_ns >= max(one.lookup(top, name).ctime_ns for name in wanted)


def written(backend: PostgresBackend, path: str) -> None:
    result = backend.write(path, "text")
    assert result.error is None, result.error


@pytest.fixture
def backends(pair: Hosts) -> tuple[PostgresBackend, PostgresBackend]:
    """The agent face of the two hosts."""
    first, second = (PostgresBackend.__new__(PostgresBackend) for _ in pair)
    for backend, volume in ((first, pair[0]), (second, pair[1])):
        VolumeBackend.__init__(backend, volume)
    return first, second


INHERITED = acl._packed([(1, 6, 0xFFFFFFFF), (4, 4, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)])

OTHERS: dict[str, Callable[[PostgresVolume, int, int], object]] = {
    "a file": lambda volume, top, here: make(volume, here, b"new"),
    "a directory": lambda volume, top, here: volume.mkdir(here, b"new", 0o755, ME),
    "another mode": lambda volume, top, here: volume.setattr(here, AttrChanges(mode=0o2775, gid=77)),
    "an ACL": lambda volume, top, here: volume.setxattr(here, acl.DEFAULT, INHERITED),
    "another way": lambda volume, top, here: volume.rename(top, b"here", top, b"gone"),
    "nothing left": lambda volume, top, here: (
        volume.unlink(here, b"file"), volume.unlink(here, b"before"), volume.rmdir(top, b"here")),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_a_verb_that_guessed_wrong_ends_as_if_it_had_asked(
    hosts: Hosts,
    backends: tuple[PostgresBackend, PostgresBackend],
    top: int,
    what: str,
    trips: Trips,
    request: pytest.FixtureRequest,
) -> None:
    one, two = hosts
    here = one.mkdir(top, b"here", 0o755, ME).node
    make(one, here, b"file")
    path = f"/{request.node.name}/here"
    written(backends[1], f"{path}/before")
    OTHERS[what](one, top, here)
    result = []
    count = trips(lambda: result.append(backends[1].write(f"{path}/new", "text")))
    if what in ("a file", "a directory"):
        assert "already exists" in (result[0].error or "")
    else:
        assert result[0].error is None
        assert backends[0].read(f"{path}/new").file_data is not None
    assert count in (2, 3, 4)
    if what in ("another way", "nothing left"):
        assert one.lookup(top, b"here").node != here
        return
    node = two.lookup(here, b"new").node
    if what == "another mode":
        assert two.getattr(node).gid == 77
    if what == "an ACL":
        assert stat.S_IMODE(two.getattr(node).mode) == 0o640


def test_a_verb_keeps_what_a_snapshot_has_of_its_directory(
    hosts: Hosts, backends: tuple[PostgresBackend, PostgresBackend], top: int, request: pytest.FixtureRequest
) -> None:
    one, two = hosts
    path = f"/{request.node.name}"
    written(backends[1], f"{path}/before")
    mtime_ns = one._read_inode(top).mtime_ns
    one.take_snapshot(request.node.name)
    for number in range(3):
        written(backends[1], f"{path}/{number}")
        make(one, top, b"n%d" % number)
    snapshot = one.snapshot(request.node.name)
    assert {name for name, _ in snapshot.readdir(top, b"", 9)} == {b"x", b"before"}
    assert snapshot.getattr(top).mtime_ns == mtime_ns
    assert names(two, top) >= {b"0", b"1", b"2", b"n0", b"n1", b"n2"}


def test_a_known_directory_is_not_taken_for_an_empty_one(hosts: Hosts, top: int) -> None:
    _, two = hosts
    here, there = tree(two, top)
    looked_up(two, here, there)
    two.lookup(top, b"here")
    refused(errno.ENOTEMPTY, two.rmdir, top, b"here")
    assert names(two, here) == {b"file", b"other", b"empty"}


def test_what_a_snapshot_has_is_kept_by_guesses(
    hosts: Hosts, top: int, trips: Trips, request: pytest.FixtureRequest
) -> None:
    one, two = hosts
    here, there = tree(one, top)
    one.take_snapshot(request.node.name)
    make(two, top, b"y")  # this connection reads the number of the newest snapshot
    looked_up(two, here, there)
    assert trips(lambda: two.rename(here, b"file", there, b"new")) == 1
    assert trips(lambda: two.unlink(here, b"other")) == 1
    assert trips(lambda: two.rmdir(here, b"empty")) == 1
    assert (names(one, here), names(one, there)) == (set(), {b"new"})
    snapshot = one.snapshot(request.node.name)
    assert {name for name, _ in snapshot.readdir(here, b"", 9)} == {b"file", b"other", b"empty"}


def test_a_guess_from_before_a_snapshot_is_wrong(
    hosts: Hosts, top: int, trips: Trips, request: pytest.FixtureRequest
) -> None:
    one, two = hosts
    here, there = tree(one, top)
    looked_up(two, here, there)
    one.take_snapshot(request.node.name)
    assert trips(lambda: two.unlink(here, b"file")) == 4  # wrong; asked, with the number of the snapshot; done
    snapshot = one.snapshot(request.node.name)
    assert {name for name, _ in snapshot.readdir(here, b"", 9)} == {b"file", b"other", b"empty"}
    assert names(one, here) == {b"other", b"empty"}


# -- the way to a node -------------------------------------------------------------------------------------------------


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The statements of each round trip outside of a transaction."""
    return sent(monkeypatch, "fusebackend.backends.postgres.stored_tree")


def test_a_read_compares_the_way_in_its_round_trip(hosts: Hosts, top: int, questions: list[list[str]]) -> None:
    one, _ = hosts
    here, _ = tree(one, top)
    right, wrong = Link(top, b"here", here), Link(top, b"there", here)
    node = one.lookup(here, b"file").node
    for read in (
        lambda: one.open(node, os.O_RDONLY).node == node,
        lambda: one.read(node, 0, 10) == b"",
        lambda: one._read_inode(node).node == node,
    ):
        questions.clear()
        assert one.through([right], read)
        assert [len(asked) for asked in questions] in ([2], [2, 1]), "and the access time alone"
        with pytest.raises(WrongLinks) as raised:
            one.through([right, wrong], read)
        assert (raised.value.errno, raised.value.links) == (errno.ESTALE, [wrong])
    one.release(node, os.O_RDONLY)
    assert not one._uses.is_open(node)


def test_a_change_on_a_wrong_way_is_not_made(hosts: Hosts, top: int, trips: Trips) -> None:
    one, two = hosts
    here, _ = tree(one, top)
    right, wrong = Link(top, b"here", here), Link(top, b"there", here)
    node = one.lookup(here, b"file").node
    assert trips(lambda: one.through([right], lambda: one.setattr(node, AttrChanges(mode=0o600)))) == 1
    assert two.lookup(here, b"file").mode == 0o100600
    with pytest.raises(WrongLinks) as raised:
        one.through([right, wrong], lambda: one.setattr(node, AttrChanges(mode=0o640)))
    assert raised.value.links == [wrong]
    assert two.lookup(here, b"file").mode == 0o100600
    with pytest.raises(WrongLinks):
        one.through([wrong], lambda: None)

    def read_first() -> None:
        with contextlib.suppress(OSError):
            one.read(node, 0, 10)
        one.setattr(node, AttrChanges(size=5))

    with pytest.raises(WrongLinks):
        one.through([wrong], read_first)
    assert two.lookup(here, b"file").size == 0
    one.through([right], lambda: None)
    assert one._scope.links == one._scope.links_above == ()


def test_the_way_to_an_absent_name_is_compared_in_the_same_round_trip(
    hosts: Hosts, top: int, questions: list[list[str]]
) -> None:
    one, two = hosts
    here, _ = tree(one, top)
    right, wrong = Link(top, b"here", here), Link(top, b"there", here)

    def look(volume: PostgresVolume, name: bytes, *links: Link) -> int:
        return volume.through(links, lambda: volume.lookup(here, name).node, absent=True)

    one.settle()  # access times that are due would go with a question
    questions.clear()
    refused(errno.ENOENT, look, one, b"new", right)
    assert [len(asked) for asked in questions] == [2]
    with pytest.raises(WrongLinks):
        look(one, b"new", wrong)
    node = one.lookup(here, b"file").node
    questions.clear()
    assert look(one, b"file", wrong) == node, "the way to a name that is there does not matter"
    assert [len(asked) for asked in questions] == [1]
    two.unlink(here, b"file")
    refused(errno.ENOENT, look, one, b"file", right)
    one._known._names_of(one._known.moment, here, one._read_inode(here).version).names[b"file"] = node  # type: ignore[union-attr]
    with pytest.raises(WrongLinks):
        look(one, b"file", wrong)
