"""Branches over several routes: numbers, what a merge asks, and the files of branches."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import nodes
import pytest
from merging import branch_over
from nodes import node_at, overwrite, whole
from raising import raising

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.schema import VolumeFileError
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller, Volume
from fusebackend.testing.posix.case import refused
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.composed import Places
from fusebackend.trees.lower_tree import FIRST_OWN, NODE_BITS, LowerTree

ME = Caller(os.geteuid(), os.getegid())
LIVE, WAY = AgentPath("/live"), AgentPath("/way/to/route")


@pytest.fixture
def volumes(tmp_path: Path) -> dict[AgentPath, Volume]:
    (tmp_path / "files").mkdir()
    return {ROOT: InMemoryVolume(), LIVE: DirectoryVolume(tmp_path / "files"), WAY: InMemoryVolume()}


Opened = Callable[[], BranchVolume]


@pytest.fixture
def opened(tmp_path: Path, volumes: dict[AgentPath, Volume]) -> Iterator[Opened]:
    """Open the branch, after closing it if it is open."""
    made: list[BranchVolume] = []

    def open_it() -> BranchVolume:
        for each in made:
            each.close()
        made.append(branch_over(tmp_path / "branch.db", volumes))
        return made[-1]

    yield open_it
    made[-1].close()


def put(volume: Volume, path: bytes, content: bytes) -> int:
    *way, name = path.split(b"/")
    return nodes.put(volume, name, content, node_at(volume, b"/".join(way)))


def read(volume: Volume, path: bytes) -> bytes:
    return whole(volume, node_at(volume, path))


def write(volume: Volume, path: bytes, content: bytes) -> None:
    overwrite(volume, node_at(volume, path), 0, content)


def names(volume: Volume, path: bytes = b"") -> list[bytes]:
    return [name for name, _ in volume.readdir(node_at(volume, path), b"", 100)]


class TestRoutes:
    def test_the_tree_is_that_of_the_mount(self, volumes: dict[AgentPath, Volume], opened: Opened) -> None:
        put(volumes[ROOT], b"file", b"root")
        put(volumes[LIVE], b"file", b"live")
        put(volumes[WAY], b"file", b"below a way")
        volumes[ROOT].mkdir(ROOT_NODE, b"live", 0o700, ME)
        put(volumes[ROOT], b"live/hidden", b"")
        branch = opened()
        assert names(branch) == [b"file", b"live", b"way"]
        assert names(branch, b"live") == [b"file"] and names(branch, b"way/to/route") == [b"file"]
        assert [read(branch, path) for path in (b"file", b"live/file", b"way/to/route/file")] == [
            b"root", b"live", b"below a way",
        ]  # fmt: skip

    @pytest.mark.parametrize("path", [b"live", b"way", b"way/to", b"way/to/route"])
    def test_the_root_of_a_route_and_the_way_to_it_stay(self, opened: Opened, path: bytes) -> None:
        branch = opened()
        above, _, name = path.rpartition(b"/")
        parent = node_at(branch, above)
        put(branch, b"other", b"")
        for change in (
            lambda: branch.rmdir(parent, name),
            lambda: branch.rename(parent, name, ROOT_NODE, b"new"),
            lambda: branch.rename(ROOT_NODE, b"other", parent, name),
        ):
            refused(errno.EBUSY, change)

    def test_files_move_between_routes(self, volumes: dict[AgentPath, Volume], opened: Opened) -> None:
        put(volumes[LIVE], b"file", b"live")
        volumes[ROOT].mkdir(ROOT_NODE, b"directory", 0o755, ME)
        put(volumes[ROOT], b"directory/inner", b"inner")
        branch = opened()
        branch.rename(node_at(branch, b"live"), b"file", ROOT_NODE, b"moved")
        branch.rename(ROOT_NODE, b"directory", node_at(branch, b"live"), b"directory")
        branch = opened()
        assert names(branch) == [b"live", b"moved", b"way"] and names(branch, b"live") == [b"directory"]
        assert (read(branch, b"moved"), read(branch, b"live/directory/inner")) == (b"live", b"inner")

    def test_a_node_that_does_not_fit_is_numbered(self) -> None:
        tree = LowerTree(Places([ROOT]), {0: InMemoryVolume()}, {0}, 0)
        assert tree.number(0, 5) == tree.number(0, 5) >= 1 << NODE_BITS
        large = tree.number(0, 1 << NODE_BITS)
        assert ROOT_NODE < large < 1 << NODE_BITS and tree.number(0, 1 << NODE_BITS) == large
        assert not tree.is_live(large)


class TestForAMerge:
    def test_what_a_branch_has_of_its_own(self, volumes: dict[AgentPath, Volume], opened: Opened) -> None:
        for name in (b"bytes", b"mode", b"moved", b"gone"):
            put(volumes[ROOT], name, name)
        branch = opened()
        write(branch, b"bytes", b"BYTES")
        branch.setattr(node_at(branch, b"mode"), AttrChanges(mode=0o600))
        branch.rename(ROOT_NODE, b"moved", ROOT_NODE, b"new name")
        branch.unlink(ROOT_NODE, b"gone")
        new = put(branch, b"new", b"new")
        branch = opened()
        found = {origin.path: origin for origin in branch.origins()}
        assert found.keys() == {b"", b"bytes", b"mode", b"moved"}
        assert found[b""].names and branch.has_own_names(ROOT_NODE)
        assert branch.has_own_bytes(found[b"bytes"].node) and not branch.has_own_bytes(found[b"mode"].node)
        assert branch.is_own(new) and new >= FIRST_OWN
        below = branch.lower_entries(ROOT_NODE)
        assert sorted(below) == [b"bytes", b"gone", b"live", b"mode", b"moved", b"way"]
        assert below[b"moved"].node == node_at(branch, b"new name")
        assert branch.changed_names() == 6  # bytes, mode; moved, new name, gone, new

    def test_the_base_of_a_live_file(self, volumes: dict[AgentPath, Volume], opened: Opened) -> None:
        put(volumes[LIVE], b"file", b"before")
        put(volumes[LIVE], b"other", b"other")
        branch = opened()
        write(branch, b"live/file", b"BRANCH")
        write(volumes[LIVE], b"file", b"mount!")
        volumes[LIVE].unlink(ROOT_NODE, b"other")
        branch = opened()
        (origin,) = [each for each in branch.origins() if each.path == b"live/file"]
        branch.open(origin.base, os.O_RDONLY)
        assert branch.read(origin.base, 0, 100) == b"before"
        branch.release(origin.base, os.O_RDONLY)
        assert origin.stamp[2] == len(b"before")
        assert sorted(branch.lower_entries(node_at(branch, b"live"))) == [b"file", b"other"]
        assert names(branch, b"live") == [b"file"], "a file that has gone, and of which the branch has nothing"
        assert read(branch, b"live/file") == b"BRANCH"

    def test_a_live_file_that_is_replaced_below(self, volumes: dict[AgentPath, Volume], opened: Opened) -> None:
        put(volumes[LIVE], b"file", b"before")
        put(volumes[LIVE], b"mode", b"before")
        branch = opened()
        branch.setattr(node_at(branch, b"live/mode"), AttrChanges(mode=0o600))
        number = node_at(branch, b"live/file")
        for name in (b"file", b"mode"):
            put(volumes[LIVE], b"new", b"replaced")
            volumes[LIVE].rename(ROOT_NODE, b"new", ROOT_NODE, name)
        assert node_at(branch, b"live/file") == number
        assert (read(branch, b"live/file"), read(branch, b"live/mode")) == (b"replaced", b"replaced")
        attr = branch.lookup(node_at(branch, b"live"), b"mode")
        assert (attr.mode & 0o777, attr.size) == (0o600, len(b"replaced"))

    def test_a_live_file_that_leaves_a_way_between_sessions(self, volumes: dict[AgentPath, Volume],
                                                            opened: Opened) -> None:  # fmt: skip
        """It was looked for in no route, and its bytes were gone."""
        live = volumes[LIVE]
        volumes[AgentPath("/live/way/route")] = InMemoryVolume()
        way = live.mkdir(ROOT_NODE, b"way", 0o755, ME).node
        put(live, b"way/file", b"content")
        branch = opened()
        branch.setattr(node_at(branch, b"live/way/file"), AttrChanges(mode=0o600))
        branch.close()
        live.rename(way, b"file", ROOT_NODE, b"moved")
        assert read(opened(), b"live/way/file") == b"content"


class TestFiles:
    def test_a_branch_is_no_volume(self, tmp_path: Path, opened: Opened) -> None:
        opened().close()
        with pytest.raises(VolumeFileError, match="an SQLite file of something else"):
            SqliteVolume(tmp_path / "branch.db")

    def test_a_volume_is_no_branch(self, tmp_path: Path, volumes: dict[AgentPath, Volume]) -> None:
        SqliteVolume(tmp_path / "volume.db").close()
        with pytest.raises(VolumeFileError, match="an SQLite file of something else"):
            branch_over(tmp_path / "volume.db", volumes)

    def test_a_new_file_is_synced_before_it_has_its_name(self, tmp_path: Path, volumes: dict[AgentPath, Volume],
                                                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
        """A server that is killed while it makes a branch, or loses power, leaves none, and the next is whole."""
        target = tmp_path / "made/branch.db"
        target.parent.mkdir()
        done: list[str] = []

        def fsync(fd: int) -> None:
            done.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))

        def killed(*names: str) -> None:
            done.append("replace")
            raise InterruptedError

        with monkeypatch.context() as patch, pytest.raises(InterruptedError):
            patch.setattr(os, "fsync", fsync)
            patch.setattr(os, "replace", killed)
            branch_over(target, volumes)
        (left,) = target.parent.iterdir()
        assert done == [left.name, "replace"] and left != target
        left.write_bytes(b"half a file")
        branch = branch_over(target, volumes)
        assert sorted(target.parent.iterdir())[0] == target and not left.exists()
        with sqlite3.connect(target) as reader:
            assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert reader.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        reader.close()
        branch.close()

    def test_a_copied_directory_is_in_one_transaction(self, tmp_path: Path, volumes: dict[AgentPath, Volume],
                                                      opened: Opened) -> None:  # fmt: skip
        for number in range(20):
            put(volumes[LIVE], b"%d" % number, b"")
        branch = opened()
        put(branch, b"live/new", b"new")
        reader = sqlite3.connect(tmp_path / "branch.db")
        count = (
            "SELECT (SELECT count(*) FROM dentry), (SELECT count(*) FROM lower_dentry), (SELECT sum(names) FROM origin)"
        )
        assert reader.execute(count).fetchone() == (0, 0, 0)
        branch.write_back()
        assert reader.execute(count).fetchone() == (21, 20, 1)
        reader.close()

    def test_a_copy_is_whole_or_not_there(self, tmp_path: Path, volumes: dict[AgentPath, Volume], opened: Opened,
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
        """A server that is killed while it copies leaves no branch, and the next copy is none the wiser."""
        put(volumes[LIVE], b"file", b"before")
        branch = opened()
        put(branch, b"live/new", b"new")
        target = tmp_path / "copies/copy.db"
        target.parent.mkdir()

        with monkeypatch.context() as patch, pytest.raises(InterruptedError):
            patch.setattr(os, "replace", raising(InterruptedError))
            branch.copy_to(str(target))
        (left,) = target.parent.iterdir()
        left.write_bytes(b"half a file")
        branch.copy_to(str(target))
        assert list(target.parent.iterdir()) == [target]
        put(branch, b"live/later", b"later")
        copied = branch_over(target, volumes)
        assert read(copied, b"live/new") == b"new" and copied.created_ns > branch.created_ns
        refused(errno.ENOENT, node_at, copied, b"live/later")
        copied.close()
