"""Which changes of a PostgreSQL volume wait for each other, and what becomes of those that overtake each other.

Hosts are threads here, each with a `PostgresBackend` of its own.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any

import psycopg
import pytest
from eventually import eventually
from postgres_check import check
from postgres_hosts import ME, sql
from profiles import amount
from round_trips import Trips
from services.postgres import Postgres
from together import beside, over_and_over, together

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres import stored_tree
from fusebackend.backends.postgres.schema import TURN_LOCK
from fusebackend.backends.postgres.transaction import Transaction, overtaken
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, AttrChanges, Change, Changes

LIMIT_S = 60.0
HOSTS = 4

Hosts = list[PostgresBackend]


def rounds(number: int) -> int:
    """How often a load is repeated: twenty times more at night."""
    return number * amount("LOCK_ROUNDS", day=1, night=20)


@pytest.fixture
def hosts(shared_dsn: str, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(PostgresBackend(shared_dsn, request.node.name)) for _ in range(HOSTS)]


def ok(*results: Any) -> None:
    for result in results:
        assert result.error is None, result.error


class Paused:
    """A verb that waits in the middle of its change, with all its locks, for the end of a block."""

    def __init__(self, backend: PostgresBackend, work: Callable[[], object], *paths: str) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()

        def change(_: Changes) -> None:
            work()
            backend.volume._here.flush()  # a guess is repeated with its questions, and so has its locks
            self._reached.set()
            assert self._go_on.wait(LIMIT_S)

        self._thread = threading.Thread(target=backend.volume.change_as_one, args=(change, *paths), daemon=True)

    def __enter__(self) -> Paused:
        self._thread.start()
        assert self._reached.wait(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def waits(call: Callable[[], Any], paused: Paused) -> None:
    """The call ends after the paused verb, and not before."""
    with beside(call) as waiting:
        assert not wait([waiting], timeout=0.3).done
        paused.__exit__()


# -- waiting for one another -----------------------------------------------------------------------------------------


def test_changes_of_different_files_and_directories_do_not_wait(hosts: Hosts) -> None:
    one, two = hosts[:2]
    ok(one.write("/a/file", "one"), one.write("/b/file", "two"), one.write("/b/moved", "three"))
    volume = two.volume
    node = volume.lookup(volume.lookup(ROOT_NODE, b"b").node, b"file").node
    directory = volume.lookup(ROOT_NODE, b"b").node
    inside = one.volume.lookup(ROOT_NODE, b"a").node
    make = lambda: one.volume.mknod(inside, b"new", 0o100644, 0, ME)  # noqa: E731
    with Paused(one, make, "/a/new"):
        ok(two.write("/b/other", "x"), two.edit("/b/file", "two", "2"), two.upload("/b/file", b"22"))
        ok(two.move("/b/moved", "/b/there"), two.delete("/b/there"))
        ok(two.edit("/a/file", "one", "1"))  # in the directory, whose names alone are locked
        volume.write(node, 0, b"kernel")
        volume.mknod(directory, b"made", 0o100644, 0, ME)
        volume.rename(directory, b"made", directory, b"renamed")
        volume.unlink(directory, b"renamed")
        volume.mkdir(directory, b"sub", 0o755, ME)
        volume.rmdir(directory, b"sub")
    assert {info["path"] for info in two.ls("/a").entries or ()} == {"/a/file", "/a/new"}


def test_a_directory_is_renamed_while_no_verb_walks(hosts: Hosts) -> None:
    """Else a file would land where its path does not lead any more."""
    one, two = hosts[:2]
    ok(one.write("/a/b/file", "x"), one.write("/c/file", "x"))
    inside = one.volume.lookup(one.volume.lookup(ROOT_NODE, b"a").node, b"b").node
    elsewhere = two.volume.lookup(ROOT_NODE, b"c").node
    paused = Paused(one, lambda: one.volume.mknod(inside, b"new", 0o100644, 0, ME), "/a/b/new")
    with paused:
        two.volume.mknod(elsewhere, b"meanwhile", 0o100644, 0, ME)
        waits(lambda: two.volume.rename(ROOT_NODE, b"c", ROOT_NODE, b"d"), paused)
    assert {info["path"] for info in two.ls("/").entries or ()} == {"/a/", "/d/"}


def test_those_who_wait_for_a_directory_stand_in_line(hosts: Hosts, shared_dsn: str) -> None:
    """A commit wakes one of them. All that wait for a row are woken by each, for its next version."""
    ok(hosts[0].write("/a/first", "x"))
    volume = hosts[3].volume
    directory = volume.lookup(ROOT_NODE, b"a").node
    calls: list[Callable[[], object]] = [
        lambda: ok(hosts[1].write("/a/second", "x")),
        lambda: ok(hosts[2].delete("/a/first")),
        lambda: volume.mknod(directory, b"third", 0o100644, 0, ME),
    ]
    waiting = (
        "SELECT locktype, classid::int FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM"
        " pg_stat_activity WHERE datname = current_database())"
    )
    paused = Paused(hosts[0], lambda: ok(hosts[0].write("/a/zero", "x")), "/a/zero")
    with paused, beside(lambda: together(*calls)):
        eventually(lambda: len(sql(shared_dsn, waiting)) == len(calls), LIMIT_S)
        assert sql(shared_dsn, waiting) == [("advisory", TURN_LOCK)] * len(calls)
        paused.__exit__()
    assert {entry["path"] for entry in hosts[0].ls("/a").entries or []} == {"/a/second", "/a/third", "/a/zero"}


def test_roots_of_volumes_have_lines_of_their_own(hosts: Hosts, shared_dsn: str) -> None:
    with PostgresBackend(shared_dsn, "another") as another, Paused(hosts[0], lambda: hosts[0].write("/f", "x"), "/f"):
        ok(another.write("/g", "x"))
        another.volume.mknod(ROOT_NODE, b"h", 0o100644, 0, ME)


# -- round trips ---------------------------------------------------------------------------------------------------


def test_a_verb_takes_as_many_round_trips_as_a_single_operation(hosts: Hosts, trips: Trips) -> None:
    """However long its path is: the first locks and fetches everything, the second writes and commits. Where the way to
    a new file is known, it takes only that one."""
    one = hosts[0]
    ok(one.write("/a/b/c/d/start", "x"))

    def taken(call: Callable[[], Any]) -> int:
        return trips(lambda: ok(call()))

    assert taken(lambda: one.write("/a/b/c/d/file", "hello" * 50)) == 1
    assert taken(lambda: one.write("/a/x/y/z/file", "hello" * 50)) == 2
    assert taken(lambda: one.write("/a/x/y/z/other", "hello" * 50)) == 1
    assert taken(lambda: one.upload("/a/b/c/d/file", b"bye" * 50)) == 2
    assert taken(lambda: one.edit("/a/b/c/d/file", "byebye" * 25, "you")) == 3
    assert taken(lambda: one.move("/a/b/c/d/file", "/a/x/file")) == 2
    assert taken(lambda: one.delete("/a/x/file")) == 2


# -- what overtakes ------------------------------------------------------------------------------------------------


def overtake(monkeypatch: pytest.MonkeyPatch, times: int) -> list[bool]:
    """Have so many changes of several operations be overtaken at their end; returns which had the volume alone."""
    exclusive: list[bool] = []
    whole = Transaction.commit

    def commit(self: Transaction, notify: Any) -> None:
        if self.several:
            exclusive.append(self._exclusive)
            if len(exclusive) <= times:
                raise overtaken()
        whole(self, notify)

    monkeypatch.setattr(Transaction, "commit", commit)
    return exclusive


def test_what_was_overtaken_is_done_again_as_a_whole(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = hosts[:2]
    ok(one.write("/a/file", "first"))
    told: list[Change] = []
    seen: list[Change] = []
    one.volume.subscribe(told.append)

    def observe(changes: Any) -> Callable[[], None]:
        seen.extend(changes)
        return lambda: None

    one.volume.observe(observe)
    for times, call in (
        (1, lambda: one.write("/a/b/c", "made")),
        (2, lambda: one.edit("/a/file", "first", "second")),
        (1, lambda: one.move("/a/file", "/a/b/moved")),
        (2, lambda: one.delete("/a/b/c")),
    ):
        with monkeypatch.context() as patch:
            overtake(patch, times)
            ok(call())
    assert two.download("/a/b/moved").content == b"second"
    assert [(change.kind, change.path) for change in seen] == [
        ("created", "/a/b/"), ("created", "/a/b/c"), ("modified", "/a/file"), ("moved", "/a/b/moved"),
        ("deleted", "/a/b/c"),
    ]  # fmt: skip
    assert len(told) == len(set(told)) + 2  # `/a` and `/a/b` have been changed twice


def test_what_is_overtaken_time_and_again_gets_the_volume_for_itself(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    exclusive = overtake(monkeypatch, stored_tree.SHARED_ATTEMPTS - 1)
    ok(hosts[0].write("/a/file", "first"))
    assert exclusive == [False] * (stored_tree.SHARED_ATTEMPTS - 1) + [True]
    assert hosts[1].download("/a/file").content == b"first"


def test_what_was_read_before_it_was_locked_is_compared(hosts: Hosts) -> None:
    one, two = hosts[:2]
    ok(one.write("/file", "first"))
    node = one.volume.lookup(ROOT_NODE, b"file").node
    volume = one.volume
    seen: list[int] = []

    def after(meanwhile: Callable[[], Any], change: Callable[[], Any]) -> Callable[[Changes], None]:
        """Look at both names, let another host change something once, and change something."""
        seen.clear()

        def work(_: Changes) -> None:
            for name in (b"file", b"absent"):
                with contextlib.suppress(FileNotFoundError):
                    volume.lookup(ROOT_NODE, name)
            seen.append(len(seen))
            if len(seen) == 1:
                ok(meanwhile())
            change()

        return work

    volume.change_as_one(
        after(lambda: two.edit("/file", "first", "second"), lambda: volume.setattr(node, AttrChanges(mode=0o600)))
    )
    assert len(seen) == 2
    with pytest.raises(FileExistsError):
        volume.change_as_one(
            after(lambda: two.write("/absent", "x"), lambda: volume.mknod(ROOT_NODE, b"absent", 0o100644, 0, ME))
        )
    assert len(seen) == 2  # at first the name was free
    with pytest.raises(FileNotFoundError):
        volume.change_as_one(after(lambda: two.delete("/file"), lambda: volume.unlink(ROOT_NODE, b"file")))
    assert len(seen) == 2
    volume.change_as_one(  # another name in the same directory is no matter
        after(lambda: two.write("/other", "x"), lambda: volume.unlink(ROOT_NODE, b"absent"))
    )
    assert len(seen) == 1


def test_a_symbolic_link_that_is_pointed_elsewhere_is_followed_anew(hosts: Hosts) -> None:
    """Writers through a link, while another host swaps it: each file is where the link led at that moment."""
    one, two, three, _ = hosts
    ok(one.write("/x/start", ""), one.write("/y/start", ""))
    one.volume.symlink(ROOT_NODE, b"now", b"x", ME)
    targets = itertools.cycle((b"x", b"y"))

    def swap() -> None:
        two.volume.symlink(ROOT_NODE, b"next", next(targets), ME)
        two.volume.rename(ROOT_NODE, b"next", ROOT_NODE, b"now")

    with over_and_over(swap):
        for number in range(rounds(40)):
            ok(three.write(f"/now/file{number}", str(number)))
    found = {info["path"].rpartition("/")[2] for place in "xy" for info in one.ls(f"/{place}").entries or ()}
    assert found == {"start", *(f"file{number}" for number in range(rounds(40)))}
    assert check_of(one) == []


# -- load ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def names_that_come_and_go() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        assert error.errno in (errno.EEXIST, errno.ENOENT, errno.ESTALE), error


def check_of(backend: PostgresBackend) -> list[str]:
    return check(backend.volume.conninfo, backend.volume.id)


def test_no_edit_of_one_file_by_many_is_lost(hosts: Hosts) -> None:
    """Each host counts in a line of its own, and all of them in one line together, which the hosts read first."""
    count_to = rounds(15)
    lines = [f"host {number}: {{0}}\n" for number in range(HOSTS)]
    ok(hosts[0].write("/counts", "".join(line.format(0) for line in lines) + "end\n"))

    def count(number: int) -> None:
        for value in range(count_to):
            ok(hosts[number].edit("/counts", lines[number].format(value), lines[number].format(value + 1)))
            ok(hosts[number].edit("/counts", "end\n", f"{number}-{value}\nend\n"))

    together(*(lambda number=number: count(number) for number in range(HOSTS)))
    content = (hosts[0].download("/counts").content or b"").decode()
    assert content.startswith("".join(line.format(count_to) for line in lines))
    added = content.splitlines()[HOSTS:-1]
    assert sorted(added) == sorted(f"{number}-{value}" for number in range(HOSTS) for value in range(count_to))
    assert check_of(hosts[0]) == []


def test_directories_move_while_files_are_made_in_them(hosts: Hosts, postgres: Postgres) -> None:
    """Every file that a host was told of is there once, with its bytes; and nothing waited for a deadlock's end."""
    before = postgres.log_text.count("deadlock detected")
    places = ["/a", "/b", "/a/in", "/b/in", "/c"]
    for place in places:
        ok(hosts[0].write(f"{place}/start", ""))
    made: dict[str, bytes] = {}
    chances = {backend: random.Random(number) for number, backend in enumerate(hosts)}

    def write(backend: PostgresBackend, seed: int) -> None:
        chance = random.Random(seed)
        for number in range(rounds(60)):
            name = f"file-{seed}-{number}"
            if backend.write(f"{chance.choice(places)}/{name}", name).error is None:
                made[name] = name.encode()

    def make(backend: PostgresBackend, seed: int) -> None:
        chance, volume = random.Random(seed), backend.volume
        for number in range(rounds(60)):
            name = b"file-%d-%d" % (seed, number)
            with contextlib.suppress(OSError):
                directory = volume.lookup(ROOT_NODE, chance.choice([b"a", b"b", b"c"])).node
                node = volume.create(directory, name, 0o644, os.O_WRONLY, ME).node
                try:
                    volume.write(node, 0, name)
                    made[name.decode()] = name
                finally:
                    volume.release(node, os.O_WRONLY)

    def move(backend: PostgresBackend) -> None:
        chance = chances[backend]
        source, target = chance.choice(["/a", "/b", "/c", "/a/in", "/b/in"]), chance.choice(places)
        moved = backend.move(source, f"{target}/in")
        assert moved.error is None or "deadlock" not in moved.error, moved.error
        backend.move(f"{target}/in", source)
        with contextlib.suppress(OSError):  # a ring, if both are done
            backend.volume.rename(ROOT_NODE, b"a", backend.volume.lookup(ROOT_NODE, b"b").node, b"ring")
        with contextlib.suppress(OSError):
            backend.volume.rename(ROOT_NODE, b"b", backend.volume.lookup(ROOT_NODE, b"a").node, b"ring")
        for inner, outer in (("/b/ring", "/a"), ("/a/ring", "/b")):
            backend.move(inner, outer)

    with over_and_over(lambda: move(hosts[2])), over_and_over(lambda: move(hosts[3])):
        together(lambda: write(hosts[0], 0), lambda: make(hosts[1], 1))
    assert check_of(hosts[0]) == []
    found = {
        path.rpartition("/")[2]: path for path in (info["path"] for info in hosts[0].glob("**/file-*").matches or ())
    }
    assert sorted(found) == sorted(made)
    assert len(made) > rounds(60) / 2
    for name, path in found.items():
        assert hosts[1].download(path).content == made[name]
    assert postgres.log_text.count("deadlock detected") == before


def test_operations_of_rows_in_any_order_do_not_deadlock(hosts: Hosts, postgres: Postgres) -> None:
    before = postgres.log_text.count("deadlock detected")
    volume = hosts[0].volume
    nodes = [volume.mkdir(ROOT_NODE, b"d%d" % number, 0o755, ME).node for number in range(3)]
    for node in nodes:
        for name in (b"x", b"y"):
            volume.mknod(node, name, 0o100644, 0, ME)

    def change(backend: PostgresBackend, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(rounds(40)):
            (here, there), volume = chance.sample(nodes, 2), backend.volume
            one, other = chance.choice([b"x", b"y"]), chance.choice([b"x", b"y", b"z"])
            with names_that_come_and_go():
                match chance.randrange(4):
                    case 0:
                        volume.rename(here, one, there, one, RENAME_EXCHANGE)
                    case 1:
                        volume.link(volume.lookup(here, one).node, there, other)
                    case 2:
                        volume.rename(here, one, there, other)
                    case 3:
                        volume.unlink(here, other)
                        volume.mknod(here, other, 0o100644, 0, ME)

    together(*(lambda number=number: change(hosts[number], number) for number in range(HOSTS)))
    assert check_of(hosts[0]) == []
    assert postgres.log_text.count("deadlock detected") == before


def test_a_name_that_led_elsewhere_when_its_directory_was_free_is_no_deadlock(
    hosts: Hosts, shared_dsn: str, postgres: Postgres
) -> None:
    """Each of two hosts has locked the file that the other one finds under its name after the wait for the directory.

    Files are older than their directory: their rows are locked first.
    """
    before = postgres.log_text.count("deadlock detected")
    volume = hosts[0].volume
    one, other = (volume.mknod(ROOT_NODE, name, 0o100644, 0, ME).node for name in (b"x", b"y"))
    here, there = (volume.mkdir(ROOT_NODE, name, 0o755, ME).node for name in (b"here", b"there"))
    for name in (b"x", b"y"):
        volume.rename(ROOT_NODE, name, here, name)
    key = (volume.id, here)

    def rename_both() -> None:
        rename = [host.volume.rename for host in hosts]
        together(lambda: rename[1](here, b"x", there, b"x"), lambda: rename[2](here, b"y", there, b"y"))

    with psycopg.connect(shared_dsn) as swapper:
        swapper.execute("SELECT FROM fusebackend.inode WHERE volume = %s AND node = %s FOR UPDATE", key)
        with beside(rename_both):
            waiting = (
                "SELECT count(*) FROM pg_locks WHERE NOT granted"
                " AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
            )
            eventually(lambda: sql(shared_dsn, waiting) == [(2,)], LIMIT_S)
            swap = "UPDATE fusebackend.dentry SET node = %s - node WHERE volume = %s AND parent = %s"
            swapper.execute(swap, (one + other, *key))
            swapper.execute("UPDATE fusebackend.inode SET version = version + 1 WHERE volume = %s AND node = %s", key)
            swapper.commit()
    assert [volume.lookup(there, name).node for name in (b"x", b"y")] == [other, one]
    assert check_of(hosts[0]) == []
    assert postgres.log_text.count("deadlock detected") == before


def test_a_file_is_made_where_another_host_removes_the_directory(hosts: Hosts) -> None:
    """A verb that finds its directory gone makes it again, for that is what it would have done a moment later."""
    one, two = hosts[:2]
    for number in range(rounds(15)):
        ok(one.write(f"/d{number}/start", ""), one.delete(f"/d{number}/start"))
        removed: list[int | None] = []

        def remove(number: int = number, removed: list[int | None] = removed) -> None:
            try:
                two.volume.rmdir(ROOT_NODE, b"d%d" % number)
            except OSError as error:
                removed.append(error.errno)

        def write(number: int = number) -> None:
            ok(one.write(f"/d{number}/file", "x"))

        together(write, remove)
        assert removed in ([], [errno.ENOTEMPTY])
        assert two.download(f"/d{number}/file").content == b"x"
    assert check_of(one) == []
