"""The sandbox without a mount: what it is told to show, and how a shell refuses what it can't do."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.mount.table import MountEntry
from fusebackend.paths import AgentPath
from fusebackend.shell import Shell, ShellOptions, bubblewrap, devices, mountwatch, system
from fusebackend.shell.bubblewrap import View
from fusebackend.shell.devices import Devices
from fusebackend.vfs.filesystem import FileSystem


class TestView:
    def test_what_the_root_must_have(self) -> None:
        names = View.of("/mnt", ["/memories"]).names
        assert {"usr", "bin", "etc", "proc", "dev", "tmp"} <= set(names)
        assert len(names) == len(set(names))

    def test_routes_elsewhere_need_nothing(self) -> None:
        view = View.of("/mnt", ["/memories", "/user", "/temp/x", "/a/tmp/b"])
        assert (view.routes, view.covered, view.own) == ((), (), system.OWN)

    def test_routes_below_what_is_mounted_over_the_mount(self) -> None:
        prefixes = [
            "/tmp/a",
            "/tmp/a/deep",
            "/tmp/ab",
            "/etc/x",
            "/dev/x",
            "/usr/bin",
            "/usr/nonesuch",
            "/proc/x",
            "/bin",
        ]
        view = View.of("/mnt", prefixes)
        assert view.routes == ("/dev/x", "/etc/x", "/tmp/a", "/tmp/ab", "/usr/bin")
        assert view.covered == ("/bin", "/proc/x", "/usr/nonesuch")

    def test_tmp_may_be_a_route(self) -> None:
        view = View.of("/mnt", ["/tmp", "/tmp/deep"])
        assert "tmp" not in view.names
        assert (view.routes, view.covered) == ((), ())


def told(words: list[str], option: str) -> list[str]:
    """The first word after each occurrence of an option."""
    return [words[index + 1] for index, word in enumerate(words) if word == option]


def arguments(view: View, options: ShellOptions) -> list[str]:
    return bubblewrap.arguments(view, options, ("--unshare-user",), Devices(), {"/etc/passwd": 7}, "/here")


class TestArguments:
    def test_the_mount_is_the_root_and_comes_first(self) -> None:
        words = arguments(View.of("/mnt/x y", ["/tmp/a"]), ShellOptions())
        binds = [words[index + 1 : index + 3] for index, word in enumerate(words) if word == "--bind"]
        assert binds == [["/mnt/x y", "/"], ["/mnt/x y/tmp/a", "/tmp/a"]]
        first = min(words.index(word) for word in ("--ro-bind", "--proc", "--dev", "--tmpfs"))
        assert words.index("--bind") < first
        assert words.index("/tmp/a") > words.index("/tmp"), "on top of the sandbox's own"

    def test_the_network_is_cut_off_unless_asked_for(self) -> None:
        view = View.of("/mnt", [])
        assert "--unshare-net" in arguments(view, ShellOptions())
        assert "--unshare-net" not in arguments(view, ShellOptions(network=True))

    def test_everything_of_the_machine_is_read_only(self) -> None:
        words = arguments(View.of("/mnt", []), ShellOptions())
        assert "/usr" in told(words, "--ro-bind")
        assert told(words, "--remount-ro") == ["/proc", "/dev", "/etc"]
        assert not {"--dev-bind", "--bind-try", "--cap-add", "--share-net", "--symlink"} & set(words)

    def test_memory_is_bounded(self) -> None:
        words = arguments(View.of("/mnt", []), ShellOptions(memory_bytes=1 << 28))
        assert told(words, "--size") == [str(1 << 28)] * 2

    def test_the_environment_is_cleared_first(self) -> None:
        words = arguments(View.of("/mnt", []), ShellOptions(env={"TOKEN": "a b", "HOME": "/x"}))
        assert words.index("--clearenv") < words.index("--setenv")
        given = {words[i + 1]: words[i + 2] for i, word in enumerate(words) if word == "--setenv"}
        assert (given["TOKEN"], given["HOME"], given["PWD"]) == ("a b", "/x", "/here")

    def test_files_are_given_by_descriptor(self) -> None:
        words = arguments(View.of("/mnt", []), ShellOptions())
        at = words.index("--file")
        assert words[at - 2 : at + 3] == ["--perms", "0644", "--file", "7", "/etc/passwd"]


class TestSystem:
    def test_etc_has_no_secret(self) -> None:
        for network in (False, True):
            files = system.etc_files(network)
            assert not [path for path in files if "shadow" in path or "private" in path or "sudo" in path]
            assert (b"localhost" in files["/etc/hosts"], b":x:" in files["/etc/passwd"]) == (True, True)
        assert "/etc/ssl" not in [piece.path for piece in system.etc_directories()], "its keys are below it"

    def test_accounts_are_the_user_and_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(system.os, "geteuid", lambda: 4711)
        monkeypatch.setattr(system.os, "getegid", lambda: 4712)
        files = system.etc_files(False)
        assert files["/etc/passwd"].startswith(b"user:x:4711:4712::/tmp:/bin/sh\nnobody:x:65534:")
        assert files["/etc/group"] == b"user:x:4712:\nnogroup:x:65534:\n"

    def test_a_user_who_is_nobody_is_told_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(system.os, "geteuid", lambda: 65534)
        assert system.etc_files(False)["/etc/passwd"].count(b"65534") == 1


class TestDevices:
    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in devices.NAMES:
            (tmp_path / name).touch()
        monkeypatch.setattr(devices, "PLACE", str(tmp_path))
        monkeypatch.setattr(devices.os, "geteuid", lambda: 0)
        return tmp_path

    def test_they_belong_to_nobody_and_go(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        owners: dict[str, tuple[int, int]] = {}
        monkeypatch.setattr(devices.os, "mknod", lambda path, mode, device: Path(path).touch())
        monkeypatch.setattr(devices.os, "chown", lambda path, *owner: owners.update({os.path.basename(path): owner}))
        made = Devices()
        made.make()
        made.make()
        (directory,) = (path for path in place.iterdir() if path.is_dir())
        assert owners == dict.fromkeys(devices.NAMES, (65534, 65534))
        assert made.words()[:3] == ["--dev-bind", f"{directory}/null", "/dev/null"]
        assert directory.stat().st_mode & 0o777 == 0o700
        made.close()
        assert not directory.exists()
        assert made.words() == []

    def test_where_none_can_be_made(self, place: Path, monkeypatch, caplog: pytest.LogCaptureFixture) -> None:
        def refuse(*arguments: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(devices.os, "mknod", refuse)
        made = Devices()
        made.make()
        assert made.words() == []
        assert not [path for path in place.iterdir() if path.is_dir()]
        assert "commands can change the modes of this machine's devices: " in caplog.text

    def test_only_root_needs_them(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices.os, "geteuid", lambda: 1000)
        made = Devices()
        made.make()
        assert made.words() == []


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MountEntry | None]]:
    """What is mounted at the mount point, in a list of one."""
    there: list[MountEntry | None] = [MountEntry("/mnt", "fuse.fusebackend", "fusebackend", ())]
    monkeypatch.setattr(mountwatch.table, "mount_at", lambda path: there[0])
    return there  # type: ignore[return-value]


def shell_at(mountpoint: Path, **options: object) -> Shell:
    filesystem = FileSystem({AgentPath("/"): InMemoryVolume()})
    return Shell(filesystem, str(mountpoint), ShellOptions(**options))  # type: ignore[arg-type]


class TestRefusals:
    def test_without_bubblewrap(self, tmp_path: Path, mounted: object, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bubblewrap, "PROGRAM_PATHS", "/nonexistent")
        shell = shell_at(tmp_path)
        refused = shell.execute("touch /tmp/must-not-be")
        assert refused.exit_code == 126
        assert refused.output == (
            "Error: bubblewrap is not installed, which confines commands to the mount: 'apt-get install bubblewrap'; "
            'or write sandbox = "none" in the configuration\'s [execute] to run them unconfined'
        )
        assert shell.describe()["bubblewrap"] is None

    def test_where_bubblewrap_can_do_nothing(
        self, tmp_path: Path, mounted: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setattr(bubblewrap, "PROGRAM_PATHS", str(tmp_path))
        refused = shell_at(tmp_path).execute("true")
        assert (refused.exit_code, refused.output) == (
            126,
            "Error: this machine does not let bubblewrap make a sandbox (No permissions to create new namespace)",
        )

    def test_when_nothing_is_mounted(self, tmp_path: Path, mounted: list[MountEntry | None]) -> None:
        for there in (None, MountEntry("/mnt", "ext4", "/dev/sda", ())):
            mounted[0] = there
            refused = shell_at(tmp_path).execute("true")
            assert (refused.exit_code, refused.output) == (126, f"Error: nothing is mounted on '{tmp_path}' any more")

    def test_after_the_end(self, tmp_path: Path, mounted: object) -> None:
        shell = shell_at(tmp_path, sandbox="none")
        shell.close()
        shell.close()
        assert shell.execute("true").output == "Error: the mount is ending, and takes no more commands"

    @pytest.mark.parametrize("timeout", [0, -1])
    def test_a_timeout_must_be_above_0(self, tmp_path: Path, timeout: int) -> None:
        with pytest.raises(ValueError, match="above 0"):
            shell_at(tmp_path).execute("true", timeout=timeout)

    def test_words_of_bubblewrap(self) -> None:
        said = b"bwrap: Can't mkdir /newroot/usr: Device or resource busy\n\nbwrap: more\xff\n"
        assert bubblewrap.in_one_line(said) == "Can't mkdir /newroot/usr: Device or resource busy; more\ufffd"
        assert bubblewrap.in_one_line(b"") == "it does not say why"


class TestUnconfined:
    def test_stopping_from_another_thread(self, tmp_path: Path, mounted: object) -> None:
        shell = shell_at(tmp_path, sandbox="none")
        begun = threading.Event()
        thread = threading.Timer(0, lambda: (begun.wait(30), shell.close()))
        thread.start()
        response = shell.execute("echo begun; sleep 1000", on_output=lambda stream, piece: begun.set())
        thread.join()
        assert (response.output, response.exit_code) == ("Error: Command was stopped.\n\nbegun\n", 130)

    def test_a_mount_that_goes_ends_its_commands(self, tmp_path: Path, mounted: list[MountEntry | None]) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root, to change the table of mounts")
        shell = shell_at(tmp_path, sandbox="none")

        def unmount(stream: str, piece: bytes) -> None:
            mounted[0] = None
            for command in (["mount", "-t", "tmpfs", "none", tmp_path], ["umount", tmp_path]):
                subprocess.run(command, check=True)

        assert shell.execute("echo begun; sleep 1000", on_output=unmount).exit_code == 130

    def test_what_it_says_of_itself(self, tmp_path: Path) -> None:
        described = shell_at(tmp_path, sandbox="none", timeout_s=7).describe()
        assert (described["sandbox"], described["timeout_s"], described["running"]) == ("none", 7, 0)
        assert "network" not in described, "it is not for this shell to say"
