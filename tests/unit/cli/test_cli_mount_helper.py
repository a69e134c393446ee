"""What mount(8) passes to `mount.fusebackend`, and the exit statuses that it gets. Nothing is mounted."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from for_each import for_each

from fusebackend.base.settings import ConfigError
from fusebackend.cli import mount_helper

ROOT = Path(__file__).parents[3]


def words(options: str, is_sloppy: bool = False) -> str:
    return ",".join(mount_helper._words([options], is_sloppy))


class TestWords:
    def test_those_for_mount_and_the_boot_are_left_out(self) -> None:
        said = "rw,noexec,nosuid,nodev,user,_netdev,noauto,nofail,x-systemd.automount,X-mount.mkdir,comment=a,atime"
        assert words(said) == "rw,noexec,nosuid,nodev"

    def test_ours_stay(self) -> None:
        assert words("allow_other,ttl=5 s,trees=off,acl,ro") == "allow_other,ttl=5 s,trees=off,acl,ro"

    def test_unknown_ones_stay_for_the_error_unless_sloppy(self) -> None:
        assert words("ro,sloop,ttl=1") == "ro,sloop,ttl=1"
        assert words("ro,sloop,ttl=1", is_sloppy=True) == "ro,ttl=1"

    @pytest.mark.parametrize("word", ["remount", "bind"])
    def test_what_is_no_mount(self, word: str) -> None:
        with pytest.raises(ConfigError, match=f"-o {word} is not possible"):
            words(f"rw,{word}")


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch, umount: bool = False) -> object:
    """Run a helper as its script does; returns its exit status."""
    monkeypatch.setattr("sys.argv", ["helper", *arguments])
    with pytest.raises(SystemExit) as ended:
        (mount_helper.umount_main if umount else mount_helper.mount_main)()
    return ended.value.code


class TestErrors:
    @for_each(
        ("arguments", "status", "why"),
        [
            (["memory:"], 1, "Missing argument 'MOUNTPOINT'."),
            (["memory:", "/mnt", "--odd"], 1, "No such option"),
            (["memory:", "/mnt", "-o", "rw,odd"], 1, "unknown option '-o odd'; known: ro, rw,"),
            (["nowhere", "/mnt"], 1, "'nowhere' has no scheme;"),
            (["/no/such.toml", "/mnt"], 1, "cannot read '/no/such.toml': No such file or directory"),
            (["postgres://me:secret@host/db", "/mnt"], 1, "'postgres://me:***@host/db' has a password, which every "),
            (["memory:", "/mnt", "-N", "1"], 1, "-N is not known here"),
            (["memory:", "/mnt", "-t", "ext4"], 1, "-t ext4: this mounts file systems of type fusebackend"),
            (["memory:", "/no/such/directory"], 32, "mount point '/no/such/directory' does not exist;"),
        ],
    )
    def test_it_is_a_line_and_a_status_of_mount(
        self,
        arguments: list[str],
        status: int,
        why: str,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        if status == 32:
            monkeypatch.setattr("fusebackend.linux.mount_point.check_system", lambda **_: None)
        assert run(*arguments, monkeypatch=monkeypatch) == status
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(f"mount.fusebackend: {why}")
        assert "secret" not in line

    def test_umount_of_nothing(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        assert run("/no/such/directory", monkeypatch=monkeypatch, umount=True) == 32
        assert capfd.readouterr().err == "umount.fusebackend: '/no/such/directory' is not mounted\n"


def test_fake_reads_everything_and_mounts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run("memory:", str(tmp_path), "-f", "-n", "-o", "rw", "-t", "fusebackend", monkeypatch=monkeypatch) == 0
    assert not os.path.ismount(tmp_path)


def test_there_is_a_path_to_run_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PATH")  # as mount(8) does
    assert run("memory:", str(tmp_path), "-f", monkeypatch=monkeypatch) == 0
    assert "/usr/bin" in os.environ["PATH"].split(":")


def test_the_wheel_has_both_scripts() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in ("mount", "umount"):
        module, _, function = scripts[f"{name}.fusebackend"].partition(":")
        assert module == mount_helper.__name__
        assert callable(getattr(mount_helper, function))
