"""The sandbox without a mount: what it is told to show, and how a shell refuses what it can't do."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from for_each import for_each
from raising import raising

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import AgentPath
from fusebackend.linux import mount_table as table
from fusebackend.linux.command import Command
from fusebackend.linux.mount_table import MountEntry
from fusebackend.shell import bubblewrap, system
from fusebackend.shell import shell as shell_module
from fusebackend.shell.bubblewrap import Bind, Fresh, SandboxError, SandboxRoot
from fusebackend.shell.mountcheck import MountCheck
from fusebackend.shell.options import ShellOptions
from fusebackend.shell.system import Devices, Etc
from fusebackend.shell.usernamespace import UserNamespace
from fusebackend.vfs.mounted_tree import FileSystem


class TestView:
    def test_what_the_root_must_have(self) -> None:
        names = SandboxRoot.of("/mnt", ["/memories"]).names
        assert {"usr", "bin", "etc", "proc", "dev", "tmp"} <= set(names)
        assert len(names) == len(set(names))

    def test_routes_elsewhere_need_nothing(self) -> None:
        view = SandboxRoot.of("/mnt", ["/memories", "/user", "/temp/x", "/a/tmp/b"])
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
        view = SandboxRoot.of("/mnt", prefixes)
        assert view.routes == ("/dev/x", "/etc/x", "/tmp/a", "/tmp/ab", "/usr/bin")
        assert view.covered == ("/bin", "/proc/x", "/usr/nonesuch")

    def test_tmp_may_be_a_route(self) -> None:
        view = SandboxRoot.of("/mnt", ["/tmp", "/tmp/deep"])
        assert "tmp" not in view.names
        assert (view.routes, view.covered) == ((), ())


class TestSystem:
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
        for name in system.DEVICES:
            (tmp_path / name).touch()
        monkeypatch.setattr(system, "PLACE", str(tmp_path))
        monkeypatch.setattr(system.os, "geteuid", lambda: 0)
        return tmp_path

    def test_they_belong_to_nobody_and_go(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        owners: dict[str, tuple[int, int]] = {}
        monkeypatch.setattr(system.os, "mknod", lambda path, mode, device: Path(path).touch())
        monkeypatch.setattr(system.os, "chown", lambda path, *owner: owners.update({os.path.basename(path): owner}))
        made = Devices()
        made.make()
        made.make()
        (directory,) = (path for path in place.iterdir() if path.is_dir())
        assert owners == dict.fromkeys(system.DEVICES, (65534, 65534))
        assert made.nodes() == {name: f"{directory}/{name}" for name in system.DEVICES}
        assert directory.stat().st_mode & 0o777 == 0o700
        made.close()
        assert not directory.exists()
        assert made.nodes() == {}

    def test_where_none_can_be_made(self, place: Path, monkeypatch, caplog: pytest.LogCaptureFixture) -> None:

        monkeypatch.setattr(system.os, "mknod", raising(PermissionError(1, "Operation not permitted")))
        made = Devices()
        made.make()
        assert made.nodes() == {}
        assert not [path for path in place.iterdir() if path.is_dir()]
        assert "commands can change the modes of this machine's devices: " in caplog.text

    def test_only_root_needs_them(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(system.os, "geteuid", lambda: 1000)
        made = Devices()
        made.make()
        assert made.nodes() == {}


class TestEtc:
    @pytest.fixture
    def runtime(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        directory = tmp_path / "fusebackend"
        directory.mkdir(mode=0o700)
        monkeypatch.setattr(system.runtime_directory, "directory", lambda: str(directory))
        monkeypatch.setattr(system, "ROOTS_PLACE", "/nonexistent")
        return directory

    def test_roots_is_where_nobody_else_makes_any(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(system, "ROOTS_PLACE", str(tmp_path))
        made = Etc(False)
        assert Path(made.binds()[0].source).parents[1] == tmp_path
        made.close()
        assert list(tmp_path.iterdir()) == []

    def test_it_is_made_once_where_nobody_else_comes_and_goes(self, runtime: Path) -> None:
        made = Etc(False, ["/etc/mine/deep"])
        first, *others = made.binds()
        directory = Path(first.source)
        assert (first.path, first.read_only) == ("/etc", True)
        assert {path.stat().st_mode & 0o777 for path in (directory.parent, runtime)} == {0o700}
        assert {path.stat().st_mode & 0o777 for path in (directory, directory / "mine/deep")} == {0o755}
        assert {(directory / name).stat().st_mode & 0o777 for name in ("passwd", "hosts")} == {0o644}
        assert all(directory.joinpath(bind.path.removeprefix("/etc/")).is_dir() for bind in others)
        before = (directory / "passwd").stat()
        assert made.binds() == [first, *others]
        assert (directory / "passwd").stat() == before
        made.close()
        made.close()
        assert list(runtime.iterdir()) == []

    def test_it_follows_this_machine(self, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        resolver = tmp_path / "resolv.conf"
        resolver.write_text("one")
        monkeypatch.setattr(system, "etc_sources", lambda network: [str(resolver)])
        monkeypatch.setattr(system, "etc_files", lambda network: {"/etc/resolv.conf": resolver.read_bytes()})
        made = Etc(True)
        inside = Path(made.binds()[0].source) / "resolv.conf"
        assert inside.read_text() == "one"
        resolver.write_text("another")
        made.binds()
        assert inside.read_text() == "another"
        resolver.unlink()
        monkeypatch.setattr(system, "etc_files", lambda network: {})
        made.binds()
        assert not inside.exists()
        made.close()

    def test_that_of_a_killed_server_goes(self, runtime: Path) -> None:
        killed = runtime / f"fusebackend-{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}-1-1"
        (killed / "etc").mkdir(parents=True)
        made = Etc(False)
        made.binds()
        assert not killed.exists()
        made.close()


class TestUserNamespace:
    def test_where_there_is_none(self, caplog: pytest.LogCaptureFixture) -> None:
        namespace = UserNamespace()
        assert namespace.describe() == "not known before the first command"
        namespace.make("/bin/false", ())
        assert (namespace.is_made, namespace.entering(), namespace.describe()) == (False, [], "refused")
        assert "commands get no inotify: this machine has no user namespace" in caplog.text

    def test_where_it_can_not_be_made(self, caplog: pytest.LogCaptureFixture) -> None:
        before = os.listdir("/proc/self/fd")
        namespace = UserNamespace()
        namespace.make("/bin/false", ("--unshare-user",))
        namespace.make("/nonexistent", ("--unshare-user",))
        assert (namespace.is_made, namespace.entering()) == (False, [])
        assert caplog.text.count("commands get no inotify: no user namespace to bound it can be made") == 1
        assert len(os.listdir("/proc/self/fd")) == len(before)

    def test_where_bubblewrap_does_not_work_in_it(self, caplog: pytest.LogCaptureFixture) -> None:
        if shutil.which("bwrap") is None:
            pytest.skip("bwrap is missing (Debian: bubblewrap)")
        namespace = UserNamespace()
        namespace.make("bwrap", ("--no-such-option",))
        assert (namespace.is_made, namespace.entering()) == (False, [])
        assert "no-such-option" in caplog.text


HOST = """\
1 0 8:1 / / rw - ext4 /dev/sda rw
2 1 0:5 / /dev rw - devtmpfs udev rw
3 2 0:6 / /dev/shm rw - tmpfs shm rw
4 1 0:7 / /proc rw - proc proc rw
5 1 8:2 /real /usr/local rw - ext4 /dev/sdb rw
6 5 0:8 / /usr/local/on\\040it rw - tmpfs x rw
7 1 0:9 / /mnt/agent rw,nosuid,nodev - fuse.fusebackend fusebackend rw
8 7 0:10 / /mnt/agent/other rw - tmpfs y rw
"""

SANDBOX = """\
20 9 0:9 /.fusebackend/sandbox / rw,nosuid,nodev - fuse.fusebackend fusebackend rw
21 20 8:1 /usr /usr ro,nosuid,nodev - ext4 /dev/sda rw
22 21 8:2 /real /usr/local ro,nosuid,nodev - ext4 /dev/sdb rw
23 22 0:8 / /usr/local/on\\040it ro,nosuid,nodev - tmpfs x rw
24 20 0:20 / /proc ro,nosuid,nodev,noexec - proc proc rw
25 24 0:20 /irq /proc/irq ro,nosuid,nodev,noexec - proc proc rw
26 20 0:21 / /dev ro,nosuid,nodev - tmpfs tmpfs rw
27 26 0:5 /null /dev/null rw,nosuid - devtmpfs udev rw
28 27 0:5 /own/null /dev/null rw,nosuid - devtmpfs udev rw
29 20 0:22 / /tmp rw,nosuid,nodev - tmpfs tmpfs rw
30 29 0:9 /.fusebackend/sandbox/tmp/a /tmp/a rw,nosuid,nodev - fuse.fusebackend fusebackend rw
31 20 8:1 /run/private/etc /etc ro,nosuid,nodev - ext4 /dev/sda rw
"""


class TestMountCheck:
    @pytest.fixture
    def check(self) -> MountCheck:
        root = "/mnt/agent/.fusebackend/sandbox"
        mounts = [
            Bind(root, "/", read_only=False, of="/mnt/agent"),
            Bind("/usr", "/usr"),
            Fresh("proc", "/proc", ("ro", "nosuid", "nodev", "noexec")),
            Fresh("tmpfs", "/dev", ("ro", "nosuid", "nodev")),
            Bind("/dev/null", "/dev/null", read_only=False, devices=True),
            Bind("/dev/own/null", "/dev/null", read_only=False, devices=True),
            Fresh("tmpfs", "/tmp"),
            Bind(root + "/tmp/a", "/tmp/a", read_only=False, of="/mnt/agent"),
            Bind("/run/private/etc", "/etc"),
        ]
        return MountCheck(mounts, table.parse(HOST))

    def test_all_as_it_should_be(self, check: MountCheck) -> None:
        assert check.differences(table.parse(SANDBOX)) == []
        assert check.is_made(table.parse(SANDBOX))
        assert check.differences(table.parse("".join(reversed(SANDBOX.splitlines(keepends=True))))) == []
        without_cover = [line for line in SANDBOX.splitlines() if "irq" not in line]
        assert check.differences(table.parse("\n".join(without_cover))) == []

    def test_it_is_made_when_the_root_is_alone(self, check: MountCheck) -> None:
        made = table.parse(SANDBOX)
        old = table.parse("40 20 0:30 / / rw - tmpfs tmpfs rw")
        assert not check.is_made(table.parse(HOST))
        assert not check.is_made([*made, *old])
        assert not check.is_made(made[1:])
        assert not check.is_made([])

    @for_each(
        ("line", "instead", "said"),
        [
            ("20", "20 9 0:9 / / rw,nosuid,nodev - fuse.fusebackend fusebackend rw", "/ shows / and not /.fuse"),
            ("21", "21 20 8:1 /usr /usr rw,nosuid,nodev - ext4 /dev/sda rw", "/usr is not ro"),
            ("21", "21 20 8:1 /home /usr ro,nosuid,nodev - ext4 /dev/sda rw", "/usr shows /home and not /usr"),
            ("21", "21 20 8:1 /usr /evil ro,nosuid,nodev - ext4 /dev/sda rw", "/usr is not mounted"),
            ("22", "", "/usr/local is not mounted"),
            ("22", "22 21 8:2 /real /usr/local ro,nosuid - ext4 /dev/sdb rw", "/usr/local is not nodev"),
            ("24", "24 20 0:20 / /proc rw,nosuid,nodev,noexec - proc proc rw", "/proc is not ro"),
            ("24", "24 20 0:7 / /proc ro,nosuid,nodev,noexec - proc proc rw", "/proc is file system 0:7 and not one"),
            ("25", "25 24 0:7 /irq /proc/irq ro - proc proc rw", "/proc/irq is file system 0:7 and not 0:20"),
            ("25", "25 24 0:20 /sys /proc/irq ro - proc proc rw", "/proc/irq shows /sys and not /irq"),
            ("25", "25 24 0:20 /sys /proc/self rw - proc proc rw", "/proc/self is mounted 1 times and not 0"),
            ("26", "26 20 0:9 /dev /dev ro,nosuid,nodev - fuse.fusebackend fusebackend rw", "/dev is fuse"),
            ("28", "28 27 0:5 /null /dev/null rw,nosuid - devtmpfs udev rw", "/dev/null shows /null and not /own/null"),
            ("28", "", "/dev/null is mounted 1 times and not 2"),
            ("29", "29 20 0:6 / /tmp rw,nosuid,nodev - tmpfs tmpfs rw", "/tmp is file system 0:6 and not one"),
            ("30", "30 20 0:9 /.fusebackend/sandbox/tmp/a /tmp/a rw,nosuid,nodev - fuse.fusebackend f rw",
             "/tmp/a is mounted in a directory that is not there any more"),
            ("31", "31 20 8:1 /run/private/etc//deleted /etc ro,nosuid,nodev - ext4 /dev/sda rw", "/etc shows /run"),
            ("31", SANDBOX.splitlines()[-1] + "\n32 20 0:10 / /other rw,nosuid,nodev - tmpfs y rw",
             "/other is mounted 1 times and not 0"),
        ],
    )  # fmt: skip
    def test_anything_else(self, check: MountCheck, line: str, instead: str, said: str) -> None:
        lines = [instead if each.startswith(line + " ") else each for each in SANDBOX.splitlines()]
        assert said in "; ".join(check.differences(table.parse("\n".join(lines))))

    @pytest.mark.parametrize("line", [
        "9 7 0:11 / /mnt/agent/.fusebackend/sandbox rw - tmpfs z rw",
        "9 7 0:11 / /mnt/agent rw - fuse.fusebackend fusebackend rw\n10 9 0:12 / /mnt/agent rw - tmpfs z rw",
    ])  # fmt: skip
    def test_another_mount_over_the_files(self, line: str) -> None:
        root = Bind("/mnt/agent/.fusebackend/sandbox", "/", read_only=False, of="/mnt/agent")
        with pytest.raises(SandboxError, match="something else is mounted on"):
            MountCheck([root], table.parse(HOST + line))

    def test_a_source_on_no_mount(self) -> None:
        with pytest.raises(SandboxError, match="is on no mount that this process can see"):
            MountCheck([Bind("/usr", "/usr")], [])


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MountEntry | None]]:
    """What is mounted at the mount point, in a list of one."""
    there: list[MountEntry | None] = [MountEntry("/mnt", "fuse.fusebackend", "fusebackend", ())]
    monkeypatch.setattr(shell_module.table, "mount_at", lambda path: there[0])
    return there  # type: ignore[return-value]


def shell_at(mountpoint: Path, **options: object) -> shell_module.Shell:
    filesystem = FileSystem({AgentPath("/"): InMemoryVolume()})
    return shell_module.Shell(filesystem, str(mountpoint), ShellOptions(**options))  # type: ignore[arg-type]


class TestRefusals:
    def test_without_bubblewrap(self, tmp_path: Path, mounted: object, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bubblewrap, "PROGRAM_PATHS", "/nonexistent")
        shell = shell_at(tmp_path)
        refused = shell.execute(Command("touch /tmp/must-not-be"))
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
        refused = shell_at(tmp_path).execute(Command("true"))
        assert (refused.exit_code, refused.output) == (
            126,
            "Error: this machine does not let bubblewrap make a sandbox (No permissions to create new namespace)",
        )

    def test_when_nothing_is_mounted(self, tmp_path: Path, mounted: list[MountEntry | None]) -> None:
        for there in (None, MountEntry("/mnt", "ext4", "/dev/sda", ())):
            mounted[0] = there
            refused = shell_at(tmp_path).execute(Command("true"))
            assert (refused.exit_code, refused.output) == (126, f"Error: nothing is mounted on '{tmp_path}' any more")

    def test_after_the_end(self, tmp_path: Path, mounted: object) -> None:
        shell = shell_at(tmp_path, sandbox="none")
        shell.close()
        shell.close()
        assert shell.execute(Command("true")).output == "Error: the mount is ending, and takes no more commands"

    @pytest.mark.parametrize("timeout", [0, -1])
    def test_a_timeout_must_be_above_0(self, tmp_path: Path, timeout: int) -> None:
        with pytest.raises(ValueError, match="above 0"):
            shell_at(tmp_path).execute(Command("true", timeout_s=timeout))

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
        response = shell.execute(Command("echo begun; sleep 1000", on_output=lambda stream, piece: begun.set()))
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

        assert shell.execute(Command("echo begun; sleep 1000", on_output=unmount)).exit_code == 130

    def test_what_it_says_of_itself(self, tmp_path: Path) -> None:
        described = shell_at(tmp_path, sandbox="none", timeout_s=7).describe()
        assert (described["sandbox"], described["timeout_s"], described["running"]) == ("none", 7, 0)
        assert "network" not in described, "it is not for this shell to say"
