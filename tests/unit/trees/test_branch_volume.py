"""A branch over every kind of native volume, against the model that the volume itself is tested with."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, cast

import failing
import hypothesis
import obstore
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from merging import branch_over
from nodes import node_at, overwrite, put
from obstore.store import MemoryStore
from profiles import examples

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemorySnapshot, InMemoryVolume
from fusebackend.backends.object_store.remote import BucketRemote
from fusebackend.backends.sqlite import backend as sqlite
from fusebackend.backends.sqlite import flusher, stored_tree
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.base import budget, heap
from fusebackend.base.paths import ROOT
from fusebackend.protocol import ROOT_NODE, AttrChanges, Volume
from fusebackend.remote.volume import RemoteVolume
from fusebackend.testing.branches import BranchCases, BranchMachine
from fusebackend.testing.posix.case import refused
from fusebackend.trees import branch_volume, lower_tree
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.volumes.storage import CHUNK_BYTES, allocated_blocks

SETTINGS = hypothesis.settings(max_examples=examples(40), stateful_step_count=60, deadline=None, database=None)
FAILING = hypothesis.settings(SETTINGS, max_examples=examples(10))


class SmallCaches(BranchMachine):
    """With bounds so small that flushes and evictions happen in the middle of everything."""

    def make_volume(self) -> Volume:
        self.bounds = pytest.MonkeyPatch()
        self.bounds.setattr(stored_tree, "CACHE_INODES", 8)
        self.bounds.setattr(branch_volume, "CACHE_INODES", 8)
        self.bounds.setattr(stored_tree, "CACHE_BYTES", 2000)
        self.bounds.setattr(flusher, "FLUSH_AFTER_S", 3600)
        self.directory = tempfile.mkdtemp()
        return self.make_lower()

    def make_lower(self) -> Volume:
        return SqliteVolume(f"{self.directory}/volume.db")

    @initialize(items=st.sampled_from((3, 15, 4000)))
    def bound_buffer(self, items: int) -> None:
        self.bounds.setattr(sqlite, "MAX_DIRTY_ITEMS", items)

    @rule()
    def write_back(self) -> None:
        self.volume.sync()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.bounds.undo()
            shutil.rmtree(os.fsencode(self.directory))


class SqliteBranchMachine(SmallCaches):
    """Over `sqlite:`. A branch over `memory:` is the same code over the same snapshots."""


class DirectoryBranchMachine(SmallCaches):
    """Over `dir:`, live."""

    owners: ClassVar = ((0, 0), (1000, 1000)) if os.geteuid() == 0 else ((os.geteuid(), os.getegid()),)

    def make_lower(self) -> Volume:
        os.mkdir(f"{self.directory}/root")
        return DirectoryVolume(f"{self.directory}/root")


class Failing(SmallCaches):
    """Each operation in the branch is tried on a disk that fails after some statements, and then again."""

    def make_volume(self) -> Volume:
        made = super().make_volume()
        self.bounds.setattr(sqlite, "FULL_RETRY_S", 0)
        self.failing = failing.Failing(self.bounds)
        return made

    def _opened(self) -> BranchVolume:
        return cast("BranchVolume", failing.Retried(super()._opened(), self.failing))

    @precondition(lambda self: self.below is not None)
    @rule(calls=st.sampled_from((None, *range(10))), writes_back=st.booleans())
    def fail_after(self, calls: int | None, writes_back: bool) -> None:
        self.volume.calls, self.volume.writes_back = calls, writes_back


class FailingSqliteBranchMachine(Failing, SqliteBranchMachine):
    """Over `sqlite:`, whose reads fail as well."""


class FailingDirectoryBranchMachine(Failing, DirectoryBranchMachine):
    """Over `dir:`, whose reads fail as well."""

    def make_volume(self) -> Volume:
        made = super().make_volume()
        self.failing.counts(made)
        return made


for machine in (
    SqliteBranchMachine,
    DirectoryBranchMachine,
    FailingSqliteBranchMachine,
    FailingDirectoryBranchMachine,
):
    case = machine.TestCase
    case.settings = FAILING if issubclass(machine, Failing) else SETTINGS
    globals()[f"Test{machine.__name__}"] = case
del machine, case


# -- the published cases -----------------------------------------------------------------------------------------------


class TestMemory(BranchCases):
    @pytest.fixture
    def volume(self) -> Iterator[Volume]:
        yield (made := InMemoryVolume())
        made.close()


class TestSqlite(BranchCases):
    @pytest.fixture
    def volume(self, tmp_path: Path) -> Iterator[Volume]:
        yield (made := SqliteVolume(tmp_path / "volume.db"))
        made.close()


class TestDirectory(BranchCases):
    """Live."""

    @pytest.fixture
    def volume(self, tmp_path: Path) -> Iterator[Volume]:
        (tmp_path / "files").mkdir()
        yield (made := DirectoryVolume(tmp_path / "files"))
        made.close()


class TestStore(BranchCases):
    """Live, over files that are stored whole, without links, modes or extended attributes."""

    @pytest.fixture
    def volume(self) -> Iterator[Volume]:
        memory = pytest.importorskip("langgraph.store.memory")
        from fusebackend.backends import StoreBackend
        from fusebackend.remote.volume import volume_of

        yield (made := volume_of(StoreBackend(memory.InMemoryStore())))
        made.close()


def test_a_branch_of_another_version_is_an_error_and_stays(tmp_path: Path) -> None:
    path, lower = tmp_path / "branch.db", {ROOT: InMemoryVolume()}
    branch_over(path, lower).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE origin DROP COLUMN identity")
    before = path.read_bytes()
    with pytest.raises(OSError, match="another version"):
        branch_over(path, lower)
    assert path.read_bytes() == before


def test_what_was_copied_up_is_stored_whole_after_a_failed_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, below = failing.Failing(monkeypatch), InMemoryVolume()
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 3600)
    put(below, b"file", b"below " * 20)
    branch = branch_over(tmp_path / "branch.db", {ROOT: below})
    branch.write(node_at(branch, "file"), 0, b"above")
    with pytest.raises(OSError, match="Input/output"), disk.after(2):
        branch.sync()
    branch.close()
    with contextlib.closing(branch_over(tmp_path / "branch.db", {ROOT: below})) as again:
        assert again.read(node_at(again, "file"), 0, 200) == b"above " + b"below " * 19


@pytest.mark.parametrize("size", [0, 100, 200_000, 3 << 20, 4_500_000, 5 << 20])
def test_a_file_with_holes_that_is_cut_off_in_a_branch_counts_what_is_stored(tmp_path: Path, size: int) -> None:
    (tmp_path / "files").mkdir()
    with contextlib.ExitStack() as opened:
        model = opened.enter_context(contextlib.closing(InMemoryVolume()))
        lowers = [InMemoryVolume(), SqliteVolume(tmp_path / "volume.db"), DirectoryVolume(tmp_path / "files")]
        branches = []
        for number, volume in enumerate([model, *lowers]):
            node = put(volume, b"sparse", b"data" * 65_536)
            overwrite(volume, node, 4 << 20, b"data" * 163_840)
            overwrite(volume, node, 9 << 20, b"end")
            if volume is not model:
                opened.enter_context(contextlib.closing(volume))
                branch = branch_over(tmp_path / f"{number}.db", {ROOT: volume})
                branches.append(opened.enter_context(contextlib.closing(branch)))
        changes = AttrChanges(size=size)
        expected = model.setattr(node_at(model, "sparse"), changes).blocks
        assert [each.setattr(node_at(each, "sparse"), changes).blocks for each in branches] == [expected] * 3


@pytest.mark.parametrize("kind", ["snapshot", "live"])
@pytest.mark.parametrize("has_hole", [False, True])
def test_a_large_file_is_cut_off_without_a_look_at_each_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, has_hole: bool
) -> None:
    """With the branch's lock held, on the mount's loop: a GiB took more than a second."""
    chunks, longest = 400, 50
    (tmp_path / "files").mkdir()
    with contextlib.ExitStack() as opened:
        below: Volume = DirectoryVolume(tmp_path / "files") if kind == "live" else InMemoryVolume()
        opened.enter_context(contextlib.closing(below))
        node = put(below, b"large", b"data" * (CHUNK_BYTES // 4) * chunks)
        if has_hole:
            overwrite(below, node, (chunks + 1) * CHUNK_BYTES, b"end")
        branch = opened.enter_context(contextlib.closing(branch_over(tmp_path / "branch.db", {ROOT: below})))
        monkeypatch.setattr(branch_volume, "COUNTED_CHUNKS", longest)
        node = node_at(branch, "large")
        branch.write(node, 9 * CHUNK_BYTES, b"above")
        calls: list[object] = []
        for volume_type in (BranchVolume, InMemorySnapshot):
            for name in ("_chunk", "_next_chunk"):
                method = getattr(volume_type, name)
                monkeypatch.setattr(
                    volume_type, name, lambda *words, method=method: calls.append(words) or method(*words)
                )
        for size in (10 * CHUNK_BYTES, 3 * CHUNK_BYTES, CHUNK_BYTES, 1):
            blocks = branch.setattr(node, AttrChanges(size=size)).blocks
            assert blocks == allocated_blocks(size)
        assert len(calls) < 4 * longest + 40


@pytest.mark.parametrize("kind", ["live", "frozen"])
def test_the_data_between_holes_is_found_in_the_branch_and_below(kind: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    with contextlib.ExitStack() as opened:
        below: Volume = DirectoryVolume(tmp_path / "files") if kind == "live" else InMemoryVolume()
        opened.enter_context(contextlib.closing(below))
        overwrite(below, put(below, b"sparse", b"data"), 4 * CHUNK_BYTES, b"data")
        branch = opened.enter_context(contextlib.closing(branch_over(tmp_path / "branch.db", {ROOT: below})))
        node = node_at(branch, "sparse")
        branch.open(node, os.O_RDWR)

        def found() -> list[int | None]:
            """Return the chunk with data that is found from each chunk on."""
            starts = range(0, branch.getattr(node).size, CHUNK_BYTES)
            places = [branch.next_data(node, start) for start in starts]
            return [None if place is None else place // CHUNK_BYTES for place in places]

        assert found() == [0, 4, 4, 4, 4]
        branch.write(node, 2 * CHUNK_BYTES, b"above")
        assert found() == [0, 2, 2, 4, 4]
        for size in (4, 6):  # what was cut off below does not come back
            branch.setattr(node, AttrChanges(size=size * CHUNK_BYTES))
            assert found() == [0, 2, 2, None, None, None][:size]
        own = put(branch, b"own", b"data")
        overwrite(branch, own, 2 * CHUNK_BYTES, b"data")
        assert [branch.next_data(own, each) for each in (0, CHUNK_BYTES)] == [0, 2 * CHUNK_BYTES]


def test_a_file_with_holes_whose_chunks_are_not_full_still_has_blocks_when_it_is_cut_off(tmp_path: Path) -> None:
    """A program takes a file without blocks for one hole, and copies zeros."""
    with contextlib.closing(InMemoryVolume()) as below:
        node = put(below, b"sparse", b"data")
        for number in range(1, 4):
            overwrite(below, node, number << 20, b"data")
        with contextlib.closing(branch_over(tmp_path / "branch.db", {ROOT: below})) as branch:
            for size in (3 << 20, (1 << 20) + 40_000, (1 << 20) + 20_000, 1 << 20, 60_000, 30_000):
                blocks = branch.setattr(node_at(branch, "sparse"), AttrChanges(size=size)).blocks
                assert 0 < blocks <= allocated_blocks(size)


def test_a_write_completes_when_its_caller_cancels_once_it_has_begun(tmp_path: Path) -> None:
    """The first change of a live file copies its bytes up. It begins with the first one of them: a huge file would lock
    the branch for nobody."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "file").write_bytes(b"below " * 20)
    cancelled = budget.Cancellation()
    with contextlib.ExitStack() as opened:
        below = opened.enter_context(contextlib.closing(DirectoryVolume(tmp_path / "files")))
        branch = opened.enter_context(contextlib.closing(branch_over(tmp_path / "branch.db", {ROOT: below})))
        node = node_at(branch, "file")
        with pytest.MonkeyPatch.context() as patched, budget.limited(None, cancelled):
            read = below.read
            patched.setattr(below, "read", lambda *words: cancelled.set() or read(*words))
            branch.write(node, 0, b"above")
            assert cancelled.is_set()
        assert branch.read(node, 0, 200) == b"above " + b"below " * 19


def test_a_write_that_is_cancelled_before_it_begins_copies_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "file").write_bytes(b"below")
    cancelled = budget.Cancellation()
    cancelled.set()
    with contextlib.ExitStack() as opened:
        below = opened.enter_context(contextlib.closing(DirectoryVolume(tmp_path / "files")))
        branch = opened.enter_context(contextlib.closing(branch_over(tmp_path / "branch.db", {ROOT: below})))
        node = node_at(branch, "file")
        with budget.limited(None, cancelled):
            refused(errno.ECANCELED, branch.write, node, 0, b"above")
        assert not branch.has_own_bytes(node) and not branch.is_own(node)
        branch.write(node, 0, b"above")
        assert branch.read(node, 0, 200) == b"above"


def test_a_look_at_the_bytes_finds_what_the_lower_file_has_by_now(tmp_path: Path) -> None:
    store = MemoryStore()
    obstore.put(store, "file", b"short")
    with contextlib.closing(
        branch_over(tmp_path / "b.db", {ROOT: RemoteVolume(BucketRemote(store), ttl_s=60)})
    ) as branch:
        node = branch.lookup(ROOT_NODE, b"file").node
        obstore.put(store, "file", b"longer by now")
        assert branch.peek(node, 100) == b"longer by now"


def test_a_file_that_is_in_use_keeps_its_number_after_the_caches_were_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has dropped most of a branch's files, and finds others since."""
    monkeypatch.setattr(lower_tree, "MAX_FOUND", 4)
    monkeypatch.setattr(heap, "is_mostly_empty", lambda length, peak: length == 0)
    (tmp_path / "files").mkdir()
    for number in range(20):
        (tmp_path / "files" / f"{number}").write_bytes(b"below")
    with contextlib.ExitStack() as opened:
        below = opened.enter_context(contextlib.closing(DirectoryVolume(tmp_path / "files")))
        branch = opened.enter_context(contextlib.closing(branch_over(tmp_path / "branch.db", {ROOT: below})))
        dropped = node_at(branch, "0")
        branch.hold(dropped)
        branch.forget([dropped])
        used = node_at(branch, "1")
        branch.hold(used)
        for number in range(2, 20):
            node_at(branch, f"{number}")
        assert branch.read(used, 0, 200) == b"below"
