"""Control groups: where they can be made on which machine, what is written to them, and whose are removed."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from raising import raising

from fusebackend.linux import mount_table as table
from fusebackend.linux import runtime_directory
from fusebackend.shell import cgroups
from fusebackend.shell.cgroups import ControlGroups, Limits, Place, places
from fusebackend.shell.options import Bounds, ShellOptions

V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
"""


def directories(found: list[Place]) -> list[tuple[str, int, set[str]]]:
    return [(place.directory, place.version, set(place.controllers)) for place in found]


class TestPlaces:
    @for_each(
        ("membership", "mounts", "found"),
        [
            ("8:pids:/\n4:memory:/a/b\n1:cpu:/\n0::/\n", V1.format(root="/"), [
                ("/sys/fs/cgroup/pids", 1, {"pids"}),
                ("/sys/fs/cgroup/memory/a/b", 1, {"memory"}),
                ("/sys/fs/cgroup/cpu", 1, {"cpu"}),
            ]),
            ("4:pids,memory:/x\n", "35 31 0:32 / /sys/fs/cgroup/both rw - cgroup cgroup rw,memory,pids\n",
             [("/sys/fs/cgroup/both/x", 1, {"memory", "pids"})]),
            # A container sees its part of the hierarchy, and no other group.
            ("4:memory:/docker/abc/x\n", V1.format(root="/docker/abc"), [("/sys/fs/cgroup/memory/x", 1, {"memory"})]),
            ("4:memory:/other\n", V1.format(root="/docker/abc"), []),
            ("4:memory:/other\n0::/x\n", "", []),
        ],
    )  # fmt: skip
    def test_version_1_is_the_own_group_of_each_controller(
        self, membership: str, mounts: str, found: list[Any]
    ) -> None:
        assert directories(places(membership, table.parse(mounts))) == found

    @pytest.fixture
    def unified(self, tmp_path: Path) -> Path:
        """A tree of groups, as systemd makes it: the upper ones hand controllers down."""
        slice_ = tmp_path / "user.slice/app.slice"
        (slice_ / "mine.scope").mkdir(parents=True)
        (tmp_path / "cgroup.subtree_control").write_text("cpu io memory pids")
        (tmp_path / "user.slice/cgroup.subtree_control").write_text("memory pids")
        (slice_ / "cgroup.subtree_control").write_text("memory pids")
        (slice_ / "mine.scope/cgroup.subtree_control").write_text("")
        return tmp_path

    def mounted(self, unified: Path) -> list[table.MountEntry]:
        return table.parse(f"30 23 0:26 / {unified} rw - cgroup2 cgroup2 rw,nsdelegate\n")

    def test_version_2_is_the_nearest_group_that_hands_both_down(self, unified: Path) -> None:
        found = places("0::/user.slice/app.slice/mine.scope\n", self.mounted(unified))
        assert directories(found) == [(f"{unified}/user.slice/app.slice", 2, {"memory", "pids"})]
        (unified / "user.slice/app.slice/cgroup.subtree_control").write_text("cpu memory pids")
        found = places("0::/user.slice/app.slice/mine.scope\n", self.mounted(unified))
        assert directories(found) == [(f"{unified}/user.slice/app.slice", 2, {"memory", "pids", "cpu"})]
        (unified / "user.slice/app.slice/cgroup.subtree_control").write_text("memory")
        found = places("0::/user.slice/app.slice/mine.scope\n", self.mounted(unified))
        assert directories(found) == [(f"{unified}/user.slice", 2, {"memory", "pids"})]

    def test_version_2_where_none_does(self, unified: Path) -> None:
        for path in unified.rglob("cgroup.subtree_control"):
            path.write_text("cpu")
        assert places("0::/user.slice/app.slice/mine.scope\n", self.mounted(unified)) == []

    def test_version_2_for_what_version_1_does_not_have(self, unified: Path) -> None:
        mounted = [*table.parse(V1.format(root="/"))[:3], *self.mounted(unified)]
        assert directories(places("4:memory:/\n0::/user.slice/app.slice/mine.scope\n", mounted)) == [
            ("/sys/fs/cgroup/memory", 1, {"memory"}),
            (f"{unified}/user.slice/app.slice", 2, {"pids"}),
        ]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which new directories have the files of a control group, as the kernel makes them."""
    make, remove = os.mkdir, os.rmdir
    files = (
        "memory.max", "memory.swap.max", "pids.max", "cpu.max", "cgroup.procs", "cgroup.subtree_control",
        "memory.limit_in_bytes", "cpu.cfs_period_us", "cpu.cfs_quota_us",
    )  # fmt: skip

    def mkdir(path: str, mode: int = 0o777) -> None:
        make(path, mode)
        for name in files:
            Path(path, name).touch()

    def rmdir(path: str) -> None:
        for name in files:
            Path(path, name).unlink()
        remove(path)

    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(cgroups.os, "mkdir", mkdir)
    monkeypatch.setattr(cgroups.os, "rmdir", rmdir)
    return tmp_path


BOTH = frozenset({"memory", "pids"})


class TestGroups:
    @pytest.mark.parametrize(
        ("version", "bounds"),
        [
            (1, {"memory.limit_in_bytes": "4096", "pids.max": "9", "cpu.cfs_quota_us": "150000"}),
            (2, {"memory.max": "4096", "memory.swap.max": "0", "pids.max": "9", "cpu.max": "150000 100000"}),
        ],
    )
    def test_one_for_all_commands(self, kernel: Path, version: int, bounds: dict[str, str]) -> None:
        groups = ControlGroups([Place(str(kernel), version, BOTH | {"cpu"})])
        common = groups.make(Bounds(4096, 9, 1.5))
        (directory,) = map(Path, common.directories)
        assert {name: (directory / name).read_text() for name in bounds} == bounds
        handed = {1: "", 2: "+cpu +memory +pids"}[version]
        assert (directory / "cgroup.subtree_control").read_text() == handed
        group = groups.make(Bounds(1024, 3), common)
        assert [Path(path).parent for path in group.directories] == [directory]
        assert (Path(group.directories[0]) / "cpu.max").read_text() == "", "these share what all have"
        group.add(4711)
        assert (Path(group.directories[0]) / "cgroup.procs").read_text() == "4711"
        group.remove()
        common.remove()
        assert os.listdir(kernel) == ["cgroup.procs"]
        described = Limits(ShellOptions(), groups).describe()
        limited = described["memory_limited_by"], described["processes_limited_by"]
        assert limited == (f"cgroup v{version}",) * 2

    def test_those_of_a_killed_server_are_removed_with_what_is_in_them(self, kernel: Path) -> None:
        ended = subprocess.Popen(["true"])
        ended.wait()
        mine = runtime_directory.own_name().split("-")
        theirs = "-".join([*mine[:2], str(ended.pid), *mine[3:]])
        os.mkdir(kernel / theirs)
        os.mkdir(kernel / theirs / "one")
        ControlGroups([Place(str(kernel), 2, BOTH)])
        assert os.listdir(kernel) == ["cgroup.procs"]

    def test_version_1_without_accounting_of_swap(self, kernel: Path) -> None:
        group = ControlGroups([Place(str(kernel), 1, BOTH)]).make(Bounds(1 << 20, 5))
        (directory,) = map(Path, group.directories)
        assert (directory / "memory.limit_in_bytes").read_text() == str(1 << 20)
        assert (directory / "memory.max").read_text() == ""
        assert not (directory / "memory.memsw.limit_in_bytes").exists()
        group.remove()

    def test_a_place_that_takes_none(self, tmp_path: Path) -> None:
        gone = Place(str(tmp_path / "gone"), 2, BOTH)
        plain = Place(str(tmp_path), 1, BOTH)  # no file appears in a plain directory
        groups = ControlGroups([gone, plain])
        assert groups.places == []
        assert groups.version_for("memory") is None
        assert groups.make(Bounds(1, 1)).directories == []
        assert os.listdir(tmp_path) == []

    def test_one_of_a_killed_server_that_can_not_be_removed(
        self, kernel: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(directory: str, remove: object) -> None:
            raise PermissionError(13, "Permission denied", directory)

        monkeypatch.setattr(runtime_directory, "remove_stale", refuse)
        groups = ControlGroups([Place(str(kernel), 2, BOTH)])
        assert groups.version_for("memory") == 2, "that is no reason to do without"
        assert "control groups of a server that was killed stay in" in caplog.text

    def test_a_place_that_does_not_let_processes_in(self, kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cgroups.os, "access", lambda path, mode: False)
        assert ControlGroups([Place(str(kernel), 2, BOTH)]).places == []
        assert os.listdir(kernel) == ["cgroup.procs"]

    def test_one_that_stays_in_use(self, tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setattr(cgroups, "REMOVAL_PATIENCE_S", 0.01)
        monkeypatch.setattr(cgroups, "_removed", lambda directory: False)
        with caplog.at_level(logging.WARNING):
            cgroups.Group([str(tmp_path)]).remove()
        assert "is still in use and stays" in caplog.text

    def test_killing_does_not_touch_what_can_not_be_seen(self, kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        killed: list[int] = []
        group = ControlGroups([Place(str(kernel), 2, BOTH)]).make(Bounds(1, 1))
        members = Path(group.directories[0], "cgroup.procs")

        def kill(pid: int, number: int) -> None:
            killed.append(pid)
            members.write_text("0\n")

        monkeypatch.setattr(cgroups.os, "kill", kill)
        members.write_text("0\n4711\n0\n")
        group.kill()
        assert killed == [4711], "0 would be this process's own group"


class TestOwner:
    def test_names_of_processes_that_are_gone(self, tmp_path: Path) -> None:
        ended = subprocess.Popen(["true"])
        ended.wait()
        mine = runtime_directory.own_name()
        prefix, namespace, pid, began, _ = mine.split("-")
        stale = {
            f"{prefix}-{namespace}-{ended.pid}-{began}-1",
            f"{prefix}-{namespace}-{pid}-{int(began) - 1}-1",  # the same number, another process
        }
        others = {
            mine,
            runtime_directory.own_name(),
            f"{prefix}-1-{ended.pid}-{began}-1",
            "fusebackend-x",
            "other",
            "fusebackend-1-2-3-x",
        }
        for name in stale | others:
            (tmp_path / name).mkdir()
        removed: list[str] = []
        runtime_directory.remove_stale(str(tmp_path), removed.append)
        assert {os.path.basename(path) for path in removed} == stale


class TestLimits:
    def test_without_groups_the_processes_are_limited(self) -> None:
        shell = Limits(ShellOptions(memory_bytes=64 << 20, max_processes=50), ControlGroups([]))
        process = subprocess.Popen(["sh", "-c", "read x; ulimit -d; ulimit -n"], stdin=-1, stdout=-1, text=True)
        assert shell.confine(process.pid).directories == []
        output, _ = process.communicate("\n")
        assert output.split() == [str(64 << 10), "1024"]

    def test_a_process_that_has_ended_is_no_error(self) -> None:
        process = subprocess.Popen(["true"])
        process.wait()
        Limits(ShellOptions(), ControlGroups([])).confine(process.pid).remove()

    def test_a_process_that_can_not_be_limited(self, kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:

        monkeypatch.setattr(cgroups.Group, "add", raising(PermissionError(13, "Permission denied")))
        groups = ControlGroups([Place(str(kernel), 2, BOTH)])
        before = os.listdir(kernel)
        limits = Limits(ShellOptions(), groups)
        with pytest.raises(PermissionError):
            limits.confine(os.getpid())
        limits.close()
        assert os.listdir(kernel) == before

    @pytest.mark.parametrize(
        ("uid", "uid_map", "words"),
        [
            (0, "0 0 4294967295\n", "not at all (root is exempt)"),
            (0, "0 100000 65536\n", "rlimit, for each command"),
            (1000, "0 0 4294967295\n", "rlimit, for each command"),
        ],
    )
    def test_what_they_say_of_themselves(
        self, monkeypatch: pytest.MonkeyPatch, uid: int, uid_map: str, words: str
    ) -> None:
        monkeypatch.setattr(cgroups.os, "geteuid", lambda: uid)
        monkeypatch.setattr(cgroups.proc, "read", {"self/uid_map": uid_map.encode()}.__getitem__)
        described = Limits(ShellOptions(memory_bytes=1 << 30, max_processes=9), ControlGroups([])).describe()
        assert described == {
            "memory_bytes": 1 << 30,
            "total_memory_bytes": None,
            "memory_limited_by": "rlimit, for each process",
            "max_processes": 9,
            "total_processes": None,
            "processes_limited_by": words,
            "total_cpus": None,
        }
