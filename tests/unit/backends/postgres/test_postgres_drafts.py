"""Files that a host has made and not closed yet: what it sees of them itself, what others see, and what errors do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import psycopg
import pytest
from eventually import eventually
from for_each import for_each
from postgres_hosts import ME
from round_trips import Statements, meddle, refuse_commits, sent
from together import together

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres import drafts
from fusebackend.backends.postgres.old_rows import Newest
from fusebackend.backends.postgres.statements import StoredInode
from fusebackend.backends.postgres.transaction import Transaction
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.base import acl
from fusebackend.databases import pipeline
from fusebackend.protocol import RENAME_NOREPLACE, ROOT_NODE, Attr, AttrChanges, Caller, Change
from fusebackend.testing.posix.case import fails, refused

LONG_AGO_NS = 10**18


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No draft is stored before its time comes in a test."""
    monkeypatch.setattr(drafts, "DRAFT_S", 1000.0)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The statements of each round trip of a transaction."""
    return sent(monkeypatch)


def create(volume: PostgresVolume, name: bytes = b"file", mode: int = 0o600) -> int:
    return volume.create(ROOT_NODE, name, mode, os.O_RDWR, ME).node


def draft(volume: PostgresVolume, name: bytes = b"file", data: bytes = b"draft") -> int:
    node = create(volume, name)
    volume.write(node, 0, data)
    return node


def unpack(volume: PostgresVolume, name: bytes) -> int:
    """What `tar xf` does for a file."""
    node = create(volume, name)
    volume.write(node, 0, b"a" * 512)
    volume.write(node, 512, b"b" * 2488)
    volume.setattr(node, AttrChanges(mtime_ns=LONG_AGO_NS))
    assert volume.getattr(node).size == 3000
    volume.setattr(node, AttrChanges(uid=7, gid=8))
    volume.setattr(node, AttrChanges(mode=0o640))
    volume.setxattr(node, b"user.a", b"b")
    volume.flush(node)
    volume.release(node, os.O_RDWR)
    return node


def fields(attr: Attr) -> tuple[int, ...]:
    return attr.mode, attr.uid, attr.gid, attr.size, attr.blocks, attr.mtime_ns, attr.ctime_ns, attr.nlink


def test_what_a_program_does_with_a_new_file_is_two_transactions(
    one: PostgresVolume, two: PostgresVolume, batches: list[list[str]]
) -> None:
    unpack(one, b"first")  # fills the connection's records
    batches.clear()
    node = unpack(one, b"second")
    assert [batch.count("COMMIT") for batch in batches] == [1, 1], batches
    assert [len(batch) for batch in batches] == [7, 6], batches
    attr = two.lookup(ROOT_NODE, b"second")
    assert (attr.node, attr.mode, attr.uid, attr.gid, attr.size) == (node, 0o100640, 7, 8, 3000)
    assert attr.mtime_ns == LONG_AGO_NS
    assert two.read(node, 0, 4000) == b"a" * 512 + b"b" * 2488
    assert two.getxattr(node, b"user.a") == b"b"


def test_a_directorys_times_are_those_that_a_reader_left(one: PostgresVolume, two: PostgresVolume) -> None:
    """No time goes back: an access time is noted without a new version."""
    one.mkdir(ROOT_NODE, b"a", 0o755, ME)
    two.readdir(ROOT_NODE, b"", 9)
    atime_ns = two.getattr(ROOT_NODE).atime_ns
    two.settle()
    one.mkdir(ROOT_NODE, b"b", 0o755, ME)
    assert two.getattr(ROOT_NODE).atime_ns == one.getattr(ROOT_NODE).atime_ns == atime_ns


def test_a_directorys_attributes_are_those_of_the_last_change_that_was_told(
    one: PostgresVolume, two: PostgresVolume
) -> None:
    modes: list[int] = []
    directory = one.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    one.mkdir(directory, b"e", 0o755, ME)
    assert one.getattr(directory).nlink == 3
    one.subscribe(lambda change: modes.append(one.getattr(directory).mode))
    two.setattr(directory, AttrChanges(mode=0o700))
    eventually(lambda: 0o40700 in modes)
    assert set(modes) == {0o40700}


def test_the_name_is_there_at_once_and_the_bytes_after_the_close(one: PostgresVolume, two: PostgresVolume) -> None:
    node = draft(one)
    refused(errno.EEXIST, two.create, ROOT_NODE, b"file", 0o600, os.O_RDWR, ME)
    assert two.lookup(ROOT_NODE, b"file").size == 0
    one.flush(node)
    assert two.read(node, 0, 100) == b"draft"


LOOKS: dict[str, Callable[[PostgresVolume, bytes, int], object]] = {
    "read": lambda volume, name, node: volume.read(node, 0, 9) == b"draft",
    "getattr": lambda volume, name, node: volume.getattr(node).size == 5,
    "lookup": lambda volume, name, node: volume.lookup(ROOT_NODE, name).size == 5,
    "readdir": lambda volume, name, node: dict(volume.readdir(ROOT_NODE, b"", 9))[name].size == 5,
    "open": lambda volume, name, node: volume.open(node, os.O_RDONLY).size == 5,
    "next_data": lambda volume, name, node: volume.next_data(node, 0) == 0,
    "listxattr": lambda volume, name, node: volume.listxattr(node) == [b"user.a"],
}


@for_each("how", LOOKS)
def test_this_host_sees_it_at_once(one: PostgresVolume, how: str) -> None:
    node = draft(one, how.encode())
    one.setxattr(node, b"user.a", b"b")
    assert LOOKS[how](one, how.encode(), node)
    assert one.read(node, 0, 9) == b"draft"
    assert one.getxattr(node, b"user.a") == b"b"


NEXT: dict[str, tuple[Callable[[PostgresVolume, bytes, int], object], bytes]] = {
    "fsync": (lambda volume, name, node: volume.fsync(node), b"draft"),
    "sync": (lambda volume, name, node: volume.sync(), b"draft"),
    "flush": (lambda volume, name, node: volume.flush(node), b"draft"),
    "release": (lambda volume, name, node: volume.release(node, os.O_RDWR), b"draft"),
    "rename": (
        lambda volume, name, node: volume.rename(ROOT_NODE, name, ROOT_NODE, b"new", RENAME_NOREPLACE),
        b"draft",
    ),
    "link": (lambda volume, name, node: volume.link(node, ROOT_NODE, b"other"), b"draft"),
    "append": (lambda volume, name, node: volume.append(node, b", more"), b"draft, more"),
    "truncate": (lambda volume, name, node: volume.setattr(node, AttrChanges(size=2)), b"dr"),
    "unlink": (lambda volume, name, node: volume.unlink(ROOT_NODE, name), b"draft"),
}


@for_each("how", NEXT)
def test_and_what_it_does_next_comes_after_it(one: PostgresVolume, two: PostgresVolume, how: str) -> None:
    call, contents = NEXT[how]
    node = draft(one, how.encode())
    two.open(node, os.O_RDONLY)
    call(one, how.encode(), node)
    assert two.read(node, 0, 100) == contents
    assert one.read(node, 0, 100) == contents


def test_agents_see_it_at_once(shared_dsn: str) -> None:
    with PostgresBackend(shared_dsn, "agents") as backend:
        volume = backend.volume
        directory = volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
        verbs: list[Callable[[str], object]] = [
            lambda path: (backend.read(path).file_data or {}).get("content"),
            lambda path: backend.download(path).content,
            lambda path: [entry["size"] for entry in backend.ls("/d").entries or () if entry["path"] == path],
            lambda path: [match["text"] for match in backend.grep("needle", path).matches or ()],
            lambda path: backend.edit(path, "needle", "thread").error,
        ]
        expected: list[object] = ["a needle", b"a needle", [8], ["a needle"], None]
        for number, (verb, answer) in enumerate(zip(verbs, expected, strict=True)):
            node = volume.create(directory, b"%d" % number, 0o644, os.O_RDWR, ME).node
            volume.write(node, 0, b"a needle")
            assert verb(f"/d/{number}") == answer
        assert volume.read(node, 0, 100) == b"a thread"


def test_an_inherited_acl_is_that_of_the_draft(one: PostgresVolume, two: PostgresVolume) -> None:
    acls = [(1, 6, 0xFFFFFFFF), (2, 6, 7), (4, 4, 0xFFFFFFFF), (16, 6, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)]
    one.setxattr(ROOT_NODE, acl.DEFAULT, acl._packed(acls))
    node = one.create(ROOT_NODE, b"file", 0o666, os.O_RDWR, Caller(1000, 1000, umask=0o077)).node
    one.write(node, 0, b"draft")
    one.setattr(node, AttrChanges(mode=0o640))
    assert one.getattr(node).mode == 0o100640
    one.flush(node)
    assert acl.mode_of(two.getxattr(node, acl.ACCESS)) == (0o640, False)
    assert two.getattr(node).mode == 0o100640
    assert acl.mode_of(two.getxattr(two.mkdir(ROOT_NODE, b"d", 0o777, ME).node, acl.DEFAULT)) == (0o660, False)


def test_it_is_in_a_snapshot(one: PostgresVolume) -> None:
    node = draft(one)
    one.take_snapshot("a")
    one.write(node, 0, b"later")
    kept = one.snapshot("a")
    assert kept.read(kept.lookup(ROOT_NODE, b"file").node, 0, 100) == b"draft"


def test_a_snapshot_of_another_host_has_the_file_as_it_was_stored(one: PostgresVolume, two: PostgresVolume) -> None:
    unpack(one, b"first")
    node = draft(one)
    two.take_snapshot("a")
    one.flush(node)
    kept = two.snapshot("a")
    assert kept.lookup(ROOT_NODE, b"file").size == 0
    assert two.lookup(ROOT_NODE, b"file").size == 5


def test_what_nobody_closes_is_stored_in_time(
    one: PostgresVolume, two: PostgresVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "DRAFT_S", 0.01)
    nodes = [draft(one, b"%d" % number) for number in range(3)]
    for node in nodes:
        eventually(lambda node=node: two.read(node, 0, 100) == b"draft")
    one.write(nodes[0], 5, b", more")
    assert two.read(nodes[0], 0, 100) == b"draft, more", "the file is no draft any more"


def test_a_change_that_the_last_close_overtakes_is_stored_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "DRAFT_S", 0.01)
    stored: list[drafts.Draft] = []
    known = drafts.Drafts(stored.append)
    known.begin(StoredInode(7, 0o100600), (ROOT_NODE, b"file"), Transaction(1, 1, Newest(1)))
    known.change(7, 0, lambda made: made.shown, lambda made: known.forget(7))
    eventually(lambda: len(stored) == 1 and not known.pending())
    known.close()


def test_a_draft_is_found_by_its_node_among_any_number() -> None:
    class Unread(dict[int, drafts.Draft]):
        def items(self) -> NoReturn:
            raise AssertionError("all drafts are gone through for one")

    stored: list[drafts.Draft] = []
    known = drafts.Drafts(stored.append)
    known._drafts = Unread()
    for node in range(2, 5):
        known.begin(StoredInode(node, 0o100600), (ROOT_NODE, b"%d" % node), Transaction(1, 1, Newest(1)))
        known.change(node, 0, lambda made: made.shown, lambda made: None)
    known.end(2)
    known.settle_all()
    assert [made.shown.node for made in stored] == [2, 3, 4]
    known.close()


def test_a_large_file_is_stored_as_it_is_written(one: PostgresVolume, two: PostgresVolume) -> None:
    node = create(one)
    for number in range(3):
        one.write(node, number * 700_000, bytes([number]) * 700_000)
    assert two.getattr(node).size == 2_100_000
    assert one.read(node, 0, 1 << 22) == b"".join(bytes([number]) * 700_000 for number in range(3))


def test_the_times_that_are_shown_stay(one: PostgresVolume, two: PostgresVolume) -> None:
    """`git add` compares those of an open file with those it finds later."""
    node = draft(one)
    one.setattr(node, AttrChanges(mode=0o644))
    shown = fields(one.getattr(node))
    assert fields(one.setattr(node, AttrChanges(atime_ns=LONG_AGO_NS)))[0] == shown[0]
    shown = fields(one.getattr(node))
    one.flush(node)
    assert fields(one.getattr(node)) == shown
    assert fields(two.getattr(node)) == shown


CHANGES: dict[str, Callable[[PostgresVolume, bytes, int], object]] = {
    "chmod": lambda volume, name, node: volume.setattr(node, AttrChanges(mode=0o444)),
    "write": lambda volume, name, node: volume.write(node, 5, b", theirs"),
    "append": lambda volume, name, node: volume.append(node, b"theirs, long"),
    "rename": lambda volume, name, node: volume.rename(ROOT_NODE, name, ROOT_NODE, b"moved"),
    "unlink": lambda volume, name, node: volume.unlink(ROOT_NODE, name),
    "setxattr": lambda volume, name, node: volume.setxattr(node, b"user.theirs", b"x"),
}


@for_each("told", [False, True])
@for_each("change", CHANGES)
def test_another_hosts_change_of_the_file_stays(
    one: PostgresVolume, two: PostgresVolume, monkeypatch: pytest.MonkeyPatch, change: str, told: bool
) -> None:
    events: list[Change] = []
    if not told:
        monkeypatch.setattr(drafts.Drafts, "doubt", lambda self, node: None)
    name = f"{change} {told}".encode()
    node = draft(one, name)
    end = one.subscribe(events.append)
    two.open(node, os.O_RDWR)
    CHANGES[change](two, name, node)
    if told:
        eventually(lambda: any(each.node == node or each.name == name for each in events))
    end()
    one.setattr(node, AttrChanges(mtime_ns=LONG_AGO_NS))
    one.flush(node)
    content = {"write": b"draft, theirs", "append": b"drafts, long"}.get(change, b"draft")
    for volume in (one, two):
        assert volume.read(node, 0, 100) == content
        eventually(lambda volume=volume: volume.getattr(node).mtime_ns == LONG_AGO_NS)
        attr = volume.getattr(node)
        assert attr.mode == (0o100444 if change == "chmod" else 0o100600)
        assert attr.nlink == (change != "unlink")
        expected = [b"user.theirs"] if change == "setxattr" else []
        eventually(lambda volume=volume, expected=expected: volume.listxattr(node) == expected)


def test_this_host_answers_with_another_hosts_change_once_it_has_been_told(
    one: PostgresVolume, two: PostgresVolume
) -> None:
    """The kernel asks then, and keeps the answer."""
    modes: list[int] = []
    node = draft(one)
    one.subscribe(lambda change: modes.append(one.getattr(node).mode))
    two.setattr(node, AttrChanges(mode=0o444))
    eventually(lambda: bool(modes))
    assert set(modes) == {0o100444}


FULL = "DO $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$"


@pytest.mark.parametrize("when", ["flush", "fsync", "before"])
def test_an_error_is_that_of_each_close_and_fsync_until_the_file_is_closed(
    one: PostgresVolume, monkeypatch: pytest.MonkeyPatch, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that forks and executes another program closes the files in the child, where nobody sees an error."""
    with monkeypatch.context() as patch:
        node = create(one)
        refuse_commits(patch, FULL)
        patch.setattr(drafts, "DRAFT_S", 0.0 if when == "before" else drafts.DRAFT_S)
        one.write(node, 0, b"draft")
        if when == "before":
            eventually(lambda: "can't be stored" in caplog.text)
        else:
            with pytest.raises(OSError, match="no space"):
                getattr(one, when)(node)
    for attempt in (one.flush, one.fsync, one.fsync, one.flush):
        with fails(errno.ENOSPC, match="no space"):
            attempt(node)
    assert one.getattr(node).size == 0
    one.release(node, os.O_RDWR)
    one.open(node, os.O_RDWR)
    one.write(node, 0, b"again")
    one.fsync(node)
    assert one.read(node, 0, 100) == b"again"


def test_the_error_of_one_file_is_none_of_another(one: PostgresVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    fails, works = draft(one, b"fails"), draft(one, b"works")
    one.flush(works)
    with monkeypatch.context() as patch:
        refuse_commits(patch, FULL)
        one.fsync(works)
    with pytest.raises(OSError, match="no space"):
        one.flush(fails)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_is_lost_at_the_commit_loses_nothing(
    one: PostgresVolume, two: PostgresVolume, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The commit has happened or not: the changes are made once more."""
    node = draft(one)
    two.open(node, os.O_RDWR)
    cut: list[int] = []

    def lose(connection: psycopg.Connection[object], statements: Statements) -> Statements:
        if ("COMMIT", ()) in statements and not cut:
            cut.append(1)
            if when == "after":
                pipeline.send(connection, statements)
            two._query(("SELECT pg_terminate_backend(%s::int)", (connection.info.backend_pid,)))
        return statements

    meddle(monkeypatch, lose)
    one.flush(node)
    assert cut
    monkeypatch.undo()
    one.flush(node)
    for volume in (one, two):
        assert volume.read(node, 0, 100) == b"draft"
    one.setattr(node, AttrChanges(size=0))  # no other host has changed it


def test_a_volume_that_is_closed_stores_its_drafts(shared_dsn: str, two: PostgresVolume) -> None:
    with contextlib.closing(PostgresVolume(shared_dsn, two.name)) as other:
        node = draft(other)
        two.open(node, os.O_RDONLY)
    assert two.read(node, 0, 100) == b"draft"


def test_many_threads_write_and_look_at_the_same_draft(one: PostgresVolume, two: PostgresVolume) -> None:
    """Every byte arrives, whoever stores the file meanwhile."""
    for turn in range(8):
        node = create(one, b"%d" % turn)

        def write(part: int, node: int = node) -> None:
            for number in range(20):
                one.write(node, part * 20 + number, b"%d" % part)
                if number == 10 + part:
                    assert one.read(node, part * 20, 11) == b"%d" % part * 11

        together(*(partial(write, part) for part in range(4)))
        one.flush(node)
        assert two.read(node, 0, 100) == b"".join(b"%d" % part * 20 for part in range(4))
