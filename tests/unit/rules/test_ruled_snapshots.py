"""Snapshots of a volume whose route has rules: the same ones as below, without what is hidden."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from profiles import examples

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import ROOT_NODE, Caller, SnapshotVolume, Volume
from fusebackend.rules.rule import within
from fusebackend.rules.ruled_volume import RuledSnapshotVolume, RuledVolume
from fusebackend.rules.view import View
from fusebackend.server.forget import Forgetting
from fusebackend.server.mounted import Absent
from fusebackend.testing.posix.case import refused
from fusebackend.testing.snapshots import SnapshotCases
from fusebackend.trees.snapshots import Snapshots
from fusebackend.volumes.walk import entries

ME = Caller(0, 0)
HIDDEN = within(["**/.env", "/private"])


def ruled(below: SnapshotVolume, *, read_only: bool = False) -> RuledSnapshotVolume:
    return RuledSnapshotVolume(below, View("/", [HIDDEN]), read_only=read_only)


KINDS = ["memory", "sqlite"]
AND_POSTGRES = pytest.mark.parametrize(
    "below", [*KINDS, pytest.param("postgres", marks=pytest.mark.services)], indirect=True
)
"""For what is found by the numbers of a volume, which are its own affair."""


@pytest.fixture(params=KINDS)
def below(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SnapshotVolume]:
    volume: SnapshotVolume
    if request.param == "memory":
        volume = InMemoryVolume()
    elif request.param == "sqlite":
        volume = SqliteVolume(str(tmp_path / "v.db"))
    else:
        volume = PostgresVolume(request.getfixturevalue("postgres_dsn"), "v")
    yield volume
    volume.close()


class TestRuled(SnapshotCases):
    """It keeps the promises of any volume with snapshots, for what is not hidden."""

    @pytest.fixture
    def volume(self, below: SnapshotVolume) -> SnapshotVolume:
        return ruled(below)


def make(volume: Volume, path: str, data: bytes | None = b"") -> int:
    """Make a file with its bytes, or a directory, and those on the way; return its node."""
    node, names = ROOT_NODE, [os.fsencode(name) for name in path.split("/")[1:]]
    for index, name in enumerate(names):
        is_dir = index + 1 < len(names) or data is None
        try:
            node = volume.lookup(node, name).node
        except FileNotFoundError:
            made = volume.mkdir(node, name, 0o755, ME) if is_dir else volume.create(node, name, 0o644, os.O_RDWR, ME)
            node = made.node
            if not is_dir:
                volume.release(node, os.O_RDWR)
    if data:
        volume.write(node, 0, data)
    return node


def tree(volume: Volume, node: int = ROOT_NODE, path: str = "") -> dict[str, bytes | None]:
    """Return what can be found by names: path → bytes, None for a directory."""
    found: dict[str, bytes | None] = {}
    for name, attr in list(entries(volume, node)):
        at = f"{path}/{os.fsdecode(name)}"
        assert volume.lookup(node, name).node == attr.node
        found[at] = None if attr.is_dir else volume.read(attr.node, 0, attr.size)
        found |= tree(volume, attr.node, at) if attr.is_dir else {}
    return found


@AND_POSTGRES
def test_what_is_hidden_now_is_in_no_snapshot(below: SnapshotVolume) -> None:
    for path in ("/a", "/.env", "/sub/.env", "/private/p"):
        make(below, path, path.encode())
    linked = make(below, "/sub/x", b"x")
    below.link(linked, below.lookup(ROOT_NODE, b"private").node, b"linked")
    below.take_snapshot("before the rule")
    volume = ruled(below)
    taken = volume.snapshot("before the rule")
    assert tree(taken) == tree(volume) == {"/a": b"/a", "/sub": None, "/sub/x": b"x"}
    for parent, name in (
        (ROOT_NODE, b".env"),
        (ROOT_NODE, b"private"),
        (taken.lookup(ROOT_NODE, b"sub").node, b".env"),
    ):
        refused(errno.ENOENT, taken.lookup, parent, name)
    shown = taken.lookup(taken.lookup(ROOT_NODE, b"sub").node, b"x")
    assert (shown.node, shown.shown_nlink) == (linked, 1), "it has one name, and its own number"
    assert taken.getattr(ROOT_NODE).nlink == 1, "no count of what is hidden"
    assert taken is volume.snapshot("before the rule")
    assert [each.name for each in volume.snapshots()] == ["before the rule"]
    assert "/private/p" in tree(below.snapshot("before the rule")), "it is there without the rule"


@AND_POSTGRES
def test_a_hidden_directory_is_closed_to_its_number(below: SnapshotVolume) -> None:
    """A branch has numbers from before a rule was there."""
    make(below, "/private/deep/p", b"p")
    private = below.lookup(ROOT_NODE, b"private").node
    deep = below.lookup(private, b"deep").node
    below.take_snapshot("s")
    taken = ruled(below).snapshot("s")
    for node in (private, deep):
        refused(errno.EACCES, taken.readdir, node, b"", 10)
        assert not taken.getattr(node).mode & 0o444
    for node, name in ((private, b"deep"), (deep, b"p")):
        refused(errno.ENOENT, taken.lookup, node, name)


@AND_POSTGRES
def test_a_directory_is_found_by_a_number_of_an_earlier_session(below: SnapshotVolume) -> None:
    make(below, "/a/b/c/x", b"x")
    make(below, "/a/b/c/.env", b"hidden")
    below.take_snapshot("s")
    node = ROOT_NODE
    for name in (b"a", b"b", b"c"):
        node = below.lookup(node, name).node
    taken = ruled(below).snapshot("s")
    assert [name for name, _ in taken.readdir(node, b"", 10)] == [b"x"]
    refused(errno.ENOTDIR, taken.lookup, taken.lookup(node, b"x").node, b"y")
    below.delete_snapshot("s")
    refused(errno.ESTALE, taken.readdir, node, b"", 10)


def test_one_volume_under_several_rules_is_taken_once(below: SnapshotVolume) -> None:
    make(below, "/a", b"a")
    told: list[str] = []
    volumes: dict[AgentPath, Volume] = {
        ROOT: ruled(below),
        AgentPath("/plain"): below,
        AgentPath("/ro"): ruled(below, read_only=True),
    }
    snapshots = Snapshots(volumes)
    snapshots.on_change = told.append
    assert snapshots.create("s").routes == ["/", "/plain/", "/ro/"]
    assert list(snapshots.distinct.values()) == [below]
    snapshots.delete(["s"])
    assert not below.snapshots() and told == ["s", "s"]


def test_nothing_is_forgotten_that_is_hidden(below: SnapshotVolume) -> None:
    for path in ("/a", "/.env"):
        make(below, path, path.encode())
    below.take_snapshot("s")
    forgetting = Forgetting({ROOT: ruled(below)}, None, Absent(str))
    asked = forgetting.forget(["/.env"], dry_run=False)
    assert (asked.unknown, asked.live, asked.snapshots) == (["/.env"], [], []), "as of a name that was never there"
    everything = forgetting.forget(["/"], dry_run=False)
    assert everything.live == ["/a"] and everything.snapshots == ["s"]
    assert tree(below.snapshot("s")) == {"/.env": b"/.env"}


def test_a_read_only_route_loses_no_versions(below: SnapshotVolume) -> None:
    make(below, "/a", b"a")
    volume = ruled(below, read_only=True)
    volume.take_snapshot("s")
    result = Forgetting({ROOT: volume}, None, Absent(str)).forget(["/a"], dry_run=False)
    assert "snapshots of route '/', which is read-only here" in result.left
    assert tree(volume.snapshot("s")) == {"/a": b"a"}
    refused(errno.EROFS, volume.forget_versions, [2])


def test_a_view_over_it_has_files_with_other_names(below: SnapshotVolume) -> None:
    node = make(below, "/a", b"a")
    below.link(node, ROOT_NODE, b".env")
    view = RuledVolume(ruled(below), View("v", [{"operations": ["read", "write"], "paths": ["/x"], "mode": "hide"}]))
    assert view.lookup(ROOT_NODE, b"a").nlink == 1
    assert [name for name, _ in view.readdir(ROOT_NODE, b"", 10)] == [b"a"]


def test_what_the_mount_sets_reaches_the_volume_below(below: SnapshotVolume) -> None:
    volume = ruled(below)
    assert volume.kept_by is below and below.kept_by is below
    for name in ("may_go", "before_commit", "on_snapshot"):
        told: list[object] = []
        setattr(volume, name, told.append)
        assert getattr(below, name) == told.append
        setattr(volume, name, None)


def test_a_foreign_volume_has_them_by_names(below: SnapshotVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    make(below, "/a/x", b"")
    make(below, "/a/.env", b"")
    below.take_snapshot("s")
    frozen = RuledVolume(below.snapshot("s"), View("none", []))  # no `FrozenTree`: it has no way up from a directory
    monkeypatch.setattr(below, "snapshot", lambda name: frozen)
    taken = ruled(below).snapshot("s")
    directory = below.lookup(ROOT_NODE, b"a").node
    refused(errno.ESTALE, taken.readdir, directory, b"", 10)
    assert taken.lookup(ROOT_NODE, b"a").node == directory
    assert [name for name, _ in taken.readdir(directory, b"", 10)] == [b"x"]


NAMES = st.sampled_from([b"a", b"b", b".env", b"private"])


class RuledMachine(RuleBasedStateMachine):
    """Changes below and through the rules, snapshots between them. Each is what it was below, less what is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.below = InMemoryVolume()
        self.volume = ruled(self.below)
        self.copies: dict[str, dict[str, bytes | None]] = {}
        self.taken = 0

    def directories(self, volume: Volume) -> list[int]:
        found, left = [], [ROOT_NODE]
        while left:
            found.append(left.pop())
            left += [attr.node for _, attr in entries(volume, found[-1]) if attr.is_dir]
        return found

    @rule(data=st.data(), by_rules=st.booleans(), name=NAMES, is_dir=st.booleans())
    def new(self, data: st.DataObject, by_rules: bool, name: bytes, is_dir: bool) -> None:
        volume: Volume = self.volume if by_rules else self.below
        parent = data.draw(st.sampled_from(self.directories(volume)))
        try:
            if is_dir:
                volume.mkdir(parent, name, 0o755, ME)
            else:
                node = volume.create(parent, name, 0o644, os.O_RDWR, ME).node
                volume.write(node, 0, b"%d" % self.taken)
                volume.release(node, os.O_RDWR)
        except OSError as error:
            is_hidden = by_rules and (name == b".env" or (name == b"private" and parent == ROOT_NODE))
            assert error.errno == (errno.EACCES if is_hidden else errno.EEXIST)

    @rule(data=st.data(), name=NAMES, new_name=NAMES)
    def move(self, data: st.DataObject, name: bytes, new_name: bytes) -> None:
        """By somebody else: out of what is hidden, and into it."""
        there = self.directories(self.below)
        old, new = data.draw(st.sampled_from(there)), data.draw(st.sampled_from(there))
        try:
            self.below.rename(old, name, new, new_name)
        except OSError as error:
            assert error.errno in (errno.ENOENT, errno.EINVAL, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR)

    @rule(data=st.data(), name=NAMES, new_name=NAMES)
    def link(self, data: st.DataObject, name: bytes, new_name: bytes) -> None:
        there = self.directories(self.below)
        old, new = data.draw(st.sampled_from(there)), data.draw(st.sampled_from(there))
        try:
            attr = self.below.lookup(old, name)
            if stat.S_ISREG(attr.mode):
                self.below.link(attr.node, new, new_name)
        except OSError as error:
            assert error.errno in (errno.ENOENT, errno.EEXIST)

    @precondition(lambda self: len(self.copies) < 4)
    @rule()
    def take(self) -> None:
        self.taken += 1
        self.volume.take_snapshot(f"s{self.taken}")
        self.copies[f"s{self.taken}"] = tree(self.below)

    @rule()
    def restart(self) -> None:
        """Another server has looked nothing up yet, and has numbers of directories."""
        self.volume = ruled(self.below)
        for name in self.copies:
            hidden = self.below.snapshot(name)
            taken = self.volume.snapshot(name)
            for node in self.directories(hidden):
                try:
                    names = [each for each, _ in taken.readdir(node, b"", 100)]
                except PermissionError:
                    continue
                assert b".env" not in names and not (node == ROOT_NODE and b"private" in names)

    @invariant()
    def snapshots_are_right(self) -> None:
        for name, copy in self.copies.items():
            wanted = {path: data for path, data in copy.items() if not is_hidden(path)}
            assert tree(self.volume.snapshot(name)) == wanted, name
        assert tree(self.volume) == {path: data for path, data in tree(self.below).items() if not is_hidden(path)}


def is_hidden(path: str) -> bool:
    names = path.split("/")[1:]
    return ".env" in names or names[0] == "private"


TestRuledMachine = RuledMachine.TestCase
TestRuledMachine.settings = hypothesis.settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
