"""Limits of a PostgreSQL volume: on one host exact, between two by as much as `SharedQuota` says."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from counting import Counting
from eventually import eventually
from postgres_hosts import ME
from together import together

from fusebackend.backends.postgres import stored_tree
from fusebackend.backends.postgres.backend import PostgresBackend
from fusebackend.protocol import ROOT_NODE, AttrChanges, Usage
from fusebackend.testing.posix.case import fails

KIB = 1 << 10


@pytest.fixture
def host(shared_dsn: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., PostgresBackend]]:
    made: list[PostgresBackend] = []

    def make(**limits: Any) -> PostgresBackend:
        made.append(PostgresBackend(shared_dsn, request.node.name, **limits))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def usage(backend: PostgresBackend) -> Usage:
    assert backend.volume.usage is not None
    return backend.volume.usage


def counted(backend: PostgresBackend) -> tuple[int, int]:
    """The bytes and files of the tables, all of which have names."""
    backend.volume.settle()
    ((blocks, files, xattr_bytes),) = backend.volume.connections.query(
        "SELECT coalesce(sum(blocks), 0)::int8, count(*), (SELECT coalesce(sum(length(part)), 0)"
        " FROM fusebackend.inode CROSS JOIN unnest(attributes) part WHERE volume = %s AND nlink > 0)"
        " FROM fusebackend.inode"
        " WHERE volume = %s AND node <> 1 AND nlink > 0",
        (backend.volume.id, backend.volume.id),
    )
    return blocks * 512 + xattr_bytes, files


def file(backend: PostgresBackend, name: bytes, size: int) -> int:
    """A closed file of zeros."""
    node = backend.volume.create(ROOT_NODE, name, 0o644, os.O_RDWR, ME).node
    try:
        for offset in range(0, size, 64 * KIB):
            backend.volume.write(node, offset, bytes(min(size - offset, 64 * KIB)))
    finally:
        backend.volume.flush(node)
        backend.volume.release(node, os.O_RDWR)
    return node


def refused(call: Callable[..., object], *arguments: Any) -> None:
    with fails(errno.EDQUOT):
        call(*arguments)


def test_what_a_draft_has_accepted_is_stored(host: Callable[..., PostgresBackend]) -> None:
    backend = host(limit_bytes=100 * KIB, limit_files=2)
    volume = backend.volume
    node = volume.create(ROOT_NODE, b"file", 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, b"a" * 60 * KIB)
    assert usage(backend)[::2] == (60 * KIB, 1), "before it is stored"
    refused(volume.write, node, 60 * KIB, bytes(41 * KIB))
    volume.write(node, 60 * KIB, b"b" * 40 * KIB)
    other = host()
    other.volume.setattr(volume.lookup(ROOT_NODE, b"file").node, AttrChanges(mode=0o600))
    refused(volume.write, node, 100 * KIB, b"x")
    volume.flush(node)
    volume.release(node, os.O_RDWR)
    assert volume.getattr(node).size == 100 * KIB and usage(backend)[::2] == (100 * KIB, 1) == counted(backend)
    refused(volume.mkdir, ROOT_NODE, b"directory", 0o755, ME)
    volume.create(ROOT_NODE, b"empty", 0o644, os.O_RDWR, ME)
    refused(volume.create, ROOT_NODE, b"third", 0o644, os.O_RDWR, ME)
    assert "Disk quota exceeded" in (backend.write("/more/file", "text").error or "")
    found = volume.statfs().within(usage(backend))
    assert (found.blocks * found.block_bytes, found.blocks_free, found.files_free) == (100 * KIB, 0, 0)


def test_a_draft_that_is_repeated_is_not_refused(
    host: Callable[..., PostgresBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = host(limit_bytes=100 * KIB), host()
    monkeypatch.setattr(here.volume._drafts, "doubt", lambda node: None)
    node = here.volume.create(ROOT_NODE, b"file", 0o644, os.O_RDWR, ME).node
    here.volume.write(node, 0, b"a" * 80 * KIB)
    there.volume.setattr(node, AttrChanges(mode=0o600))  # its row has another version now
    file(there, b"other", 90 * KIB)
    here.volume.flush(node)
    here.volume.release(node, os.O_RDWR)
    assert here.volume.getattr(node).size == 80 * KIB
    eventually(lambda: _refreshed(here) == counted(here) == (172 * KIB, 2), 30)


def _refreshed(backend: PostgresBackend) -> tuple[int, int]:
    quota = backend.volume._shared_quota
    assert quota is not None
    quota.refresh()
    return usage(backend)[::2]


def test_two_hosts_keep_one_limit(host: Callable[..., PostgresBackend]) -> None:
    one, two = host(limit_bytes=1 << 20), host(limit_bytes=1 << 20)
    file(one, b"one", 600 * KIB)
    eventually(lambda: _refreshed(two)[0] >= 600 * KIB, 30)
    refused(file, two, b"two", 500 * KIB)
    two.volume.unlink(ROOT_NODE, b"two")
    one.volume.unlink(ROOT_NODE, b"one")
    eventually(lambda: _refreshed(two) == (0, 0), 30)
    file(two, b"two", 1000 * KIB)
    assert two.volume.lookup(ROOT_NODE, b"two").size == 1000 * KIB
    eventually(lambda: _refreshed(one) == _refreshed(two) == counted(one) == (1000 * KIB, 1), 30)


def test_an_open_file_without_a_name_counts(host: Callable[..., PostgresBackend]) -> None:
    backend = host(limit_bytes=100 * KIB)
    volume = backend.volume
    node = volume.create(ROOT_NODE, b"file", 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, bytes(50 * KIB))
    volume.unlink(ROOT_NODE, b"file")
    volume.write(node, 50 * KIB, bytes(40 * KIB))
    refused(file, backend, b"other", 20 * KIB)
    volume.unlink(ROOT_NODE, b"other")
    volume.release(node, os.O_RDWR)
    file(backend, b"other", 100 * KIB)


def test_the_sums_are_those_of_the_tables(
    host: Callable[..., PostgresBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three threads on each of two hosts; a limit that is passed by no more than two hosts write at once."""
    monkeypatch.setattr(stored_tree, "FRESH_S", 0.0)
    monkeypatch.setattr(stored_tree, "SHARE", 0)
    limit, largest, most = 1 << 19, 160_000, 6
    hosts = [host(limit_bytes=limit, limit_files=most) for _ in range(2)]
    steps = [Counting(hosts[number % 2], number) for number in range(6)]

    def change(number: int) -> None:
        for _ in range(50):
            steps[number].step()
        steps[number].end()

    together(*[partial(change, number) for number in range(6)])
    used_bytes, used_files = counted(hosts[0])
    assert used_bytes <= limit + 6 * largest and used_files <= most + 6
    assert any(each.refusals for each in steps)
    for backend in hosts:
        assert backend.volume._shared_quota is not None
        backend.volume._shared_quota.doubt()
        assert _refreshed(backend) == counted(hosts[0])
        assert (backend.volume._shared_quota._pending_bytes, backend.volume._shared_quota._pending_files) == (0, 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_count_beside_a_commit_does_not_stay_wrong(
    host: Callable[..., PostgresBackend], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A change that commits while the inodes are counted: the count has it or not, and nobody can tell."""
    backend = host(limit_bytes=1 << 20)
    quota = backend.volume._shared_quota
    assert quota is not None
    count, settle = quota._count, quota.settle

    def counts_late(growing: Any, *, committed: bool) -> None:
        if committed and growing.grown_files:  # it is committed, and not added yet
            monkeypatch.setattr(quota, "settle", settle)
            quota.doubt()
            quota._recount()
        settle(growing, committed=committed)

    def commits_meanwhile() -> tuple[int, int]:
        monkeypatch.setattr(quota, "_count", count)
        found = count()
        file(backend, b"file", 100 * KIB)
        return found

    if when == "before":
        monkeypatch.setattr(quota, "settle", counts_late)
        file(backend, b"file", 100 * KIB)
    else:
        monkeypatch.setattr(quota, "_count", commits_meanwhile)
        quota.doubt()
        quota._recount()
    eventually(lambda: _refreshed(backend) == counted(backend) == (100 * KIB, 1), 10)


def test_nothing_drifts(host: Callable[..., PostgresBackend]) -> None:
    """Two hosts; whenever both are at rest, each has the sums of the tables, without being told to count."""
    hosts = [host(limit_bytes=400 * KIB, limit_files=60) for _ in range(2)]
    steps = [Counting(backend, number) for number, backend in enumerate(hosts)]
    for _ in range(4):
        for _ in range(60):
            steps[0].step()
            steps[1].step()
        for each in steps:
            each.end()
        eventually(lambda: _refreshed(hosts[0]) == _refreshed(hosts[1]) == counted(hosts[0]), 20)


def test_attributes_of_what_is_deleted_count_no_more(host: Callable[..., PostgresBackend]) -> None:
    """Their rows go later, and nothing is told of it: no count from before that refuses anything."""
    backend = host(limit_bytes=100 * KIB)
    volume = backend.volume
    node = file(backend, b"file", 4 * KIB)
    volume.setxattr(node, b"user.x", bytes(50 * KIB))
    volume.unlink(ROOT_NODE, b"file")
    eventually(lambda: _refreshed(backend) == (0, 0), 10)
    file(backend, b"other", 100 * KIB)
