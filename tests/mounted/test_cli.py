"""The command line, on real mounts: its output, its exit status, and no process or mount left behind."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import mounts
import pytest
import served
from click.testing import CliRunner
from eventually import eventually
from programs import Beside, command, has_ended, refused

from fusebackend import config
from fusebackend.cli.umount import umount
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountError
from fusebackend.testing.each import each

LIMIT_S = 60

needs_fdinfo = pytest.mark.skipif(
    tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (6, 14),
    reason="the kernel does not tell which connection a process has open (Linux 6.14)",
)


class Shell:
    """Runs the command with a home directory of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log_dir = home / "state/fusebackend"

    def __call__(self, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return command(*words, cwd=cwd or self.home)

    def ok(self, *words: object, cwd: Path | None = None) -> str:
        done = self(*words, cwd=cwd)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def refused(self, *words: object, status: int = 1, cwd: Path | None = None) -> str:
        return refused(*words, cwd=cwd or self.home, status=status)

    def status(self, mountpoint: Path) -> dict:
        (found,) = json.loads(self("status", "--json", mountpoint).stdout)
        return found

    def log(self, mountpoint: Path) -> str:
        return (self.log_dir / f"{config.escape_mountpoint(str(mountpoint))}.log").read_text()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    home = tmp_path / "home"
    home.mkdir()
    places = {"HOME": home, "XDG_DATA_HOME": home / "data", "XDG_STATE_HOME": home / "state", "NO_COLOR": "1"}
    for name, value in places.items():
        monkeypatch.setenv(name, str(value))
    shell = Shell(home)
    yield shell
    for entry in reversed(table.mounts()):
        if entry.mountpoint.startswith(f"{tmp_path}/"):
            subprocess.run(["fusermount3", "-u", "-z", "--", entry.mountpoint], check=False, timeout=LIMIT_S)
    eventually(lambda: not servers(tmp_path), LIMIT_S)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and their servers are started as a user would, and not forked (`warm.py`)."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")


@pytest.fixture
def point(tmp_path: Path) -> Path:
    path = tmp_path / "agent"
    path.mkdir()
    return path


def servers(directory: Path) -> list[int]:
    """Return the server processes of mounts whose log is below `directory`."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            log = os.readlink(f"/proc/{name}/fd/2")
            if log.startswith(f"{directory}/") and log.endswith(".log"):
                found.append(int(name))
    return found


def is_mounted(path: Path) -> bool:
    return table.mount_at(str(path)) is not None


def wait_until_ended(pid: int) -> None:
    eventually(lambda: has_ended(pid), LIMIT_S)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until_ended(pid)


class TestMount:
    @pytest.mark.usefixtures("started")
    def test_the_embedded_default(self, shell: Shell, point: Path) -> None:
        said = shell.ok("mount", point)
        name = config.escape_mountpoint(str(point))
        data = shell.home / f"data/fusebackend/{name}.db"
        assert f"mounted {point} (process " in said
        entry = table.mount_at(str(point))
        assert entry is not None and entry.fstype == table.FSTYPE
        assert f"  /  sqlite:{data}\n" in said
        assert f"log: {shell.log_dir}/{name}.log\n" in said
        assert stat.S_IMODE(data.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(data.stat().st_mode) == 0o600
        pid = shell.status(point)["pid"]  # the server holds nothing of the process that started it
        assert (os.readlink(f"/proc/{pid}/cwd"), os.readlink(f"/proc/{pid}/fd/0")) == ("/", "/dev/null")
        assert os.getsid(pid) == pid
        assert all(os.readlink(f"/proc/{pid}/fd/{descriptor}").endswith(".log") for descriptor in (1, 2))
        (point / "notes").mkdir()
        (point / "notes/a.txt").write_text("kept")
        assert shell.ok("umount", point) == f"unmounted {point}\n"
        assert list(point.iterdir()) == []
        shell.ok("mount", point)
        assert (point / "notes/a.txt").read_text() == "kept"

    def test_the_command_line_wins_over_the_file(self, shell: Shell, point: Path) -> None:
        (shell.home / "agent.toml").write_text(
            'mountpoint = "/nowhere"\ndefault = "sqlite:/no/such/directory.db"\nread_only = true\n'
            '[routes]\na = "dir:/no/such/directory"\nb = "memory:"\n'
        )
        shell.ok("mount", point, "--config", "agent.toml", "--default", "memory:", "--route", "/a/=memory:", "-o", "rw")
        status = shell.status(point)
        assert [route["url"] for route in status["routes"]] == ["memory:", "memory:", "memory:"]
        assert status["read_only"] is False
        (point / "new").write_text("")

    @pytest.mark.parametrize("forbids", [True, False])
    def test_every_word_for_libfuse_mounts(self, shell: Shell, point: Path, forbids: bool) -> None:
        words = [word for word in config.PASSED_ON[1:] if word.startswith("no") is forbids]
        shell.ok("mount", point, "--default", "memory:", "-o", ",".join(words))
        (point / "a").write_text("works")
        entry = table.mount_at(str(point))
        assert entry is not None
        assert {"nosuid", "nodev", "noexec", "noatime"} & {*words} <= {*entry.options}
        shell.ok("umount", point)
        assert not is_mounted(point)

    @pytest.mark.skipif(os.geteuid() != 0, reason="fusermount3 has root's uid, which the outer mount keeps out")
    def test_a_mount_inside_a_mount(self, shell: Shell, point: Path) -> None:
        shell.ok("mount", point, "--default", "memory:")
        inner = point / "inner"
        inner.mkdir()
        shell.ok("mount", inner, "--default", "memory:")
        (inner / "a").write_text("deep")
        done = shell("umount", point)
        assert done.returncode == 1
        assert f"  mounted below it: {inner}\n" in done.stderr
        shell.ok("umount", inner)
        shell.ok("umount", point)

    def test_an_odd_name(self, shell: Shell, tmp_path: Path) -> None:
        ends = "ends of lines \r \x0b \x0c \x1c \x1d \x1e \x85 \u2028 \u2029"
        odd = tmp_path / f"-rf with space\ttab back\\slash 데이터 percent%20?x=1 {ends}"
        odd.mkdir()
        shell.ok("mount", odd)
        (odd / "a").write_text("kept")
        assert is_mounted(odd) and shell.status(odd)["state"] == "alive"
        shell.ok("umount", odd)
        assert not is_mounted(odd)

    def test_relative_paths_and_symlinks_to_a_mount_point(self, shell: Shell, tmp_path: Path, point: Path) -> None:
        (tmp_path / "link").symlink_to("agent")
        shell.ok("mount", "link/", "--default", "sqlite:x.db", cwd=tmp_path)
        assert is_mounted(point)
        assert (tmp_path / "x.db").exists()
        assert f"'{point}' is mounted already" in shell.refused("mount", "agent", cwd=tmp_path)
        shell.ok("umount", "./link", cwd=tmp_path)
        assert not is_mounted(point)

    @pytest.mark.usefixtures("started")
    def test_python_urls_import_from_the_current_directory(self, shell: Shell, point: Path) -> None:
        (shell.home / "shelf.py").write_text(
            "from fusebackend.backends import InMemoryBackend\n"
            "def make(text):\n"
            "    backend = InMemoryBackend()\n"
            "    backend.write('/said.txt', text)\n"
            "    return backend\n"
        )
        (shell.home / "random.py").write_text("raise SystemExit('a file here stood in for a module of Python')\n")
        shell.ok("mount", point, "--default", "python:shelf:make?text=hello")
        assert (point / "said.txt").read_text() == "hello"

    @pytest.mark.usefixtures("started")
    def test_passwords_are_shown_nowhere(self, shell: Shell, point: Path) -> None:
        (shell.home / "vault.py").write_text(
            "from fusebackend.backends import InMemoryBackend\ndef make(password): return InMemoryBackend()\n"
        )
        said = shell.ok("mount", point, "--default", "python:vault:make?password=hunter2")
        status = shell.status(point)
        assert status["routes"][0]["url"] == "python:vault:make?password=***"
        command = Path(f"/proc/{status['pid']}/cmdline").read_bytes()
        assert str(point).encode() in command
        shown = said + shell.log(point) + json.dumps(status) + shell.ok("status", point) + os.fsdecode(command)
        assert "hunter2" not in shown

    def test_a_long_log_is_put_aside(self, shell: Shell, point: Path) -> None:
        shell.log_dir.mkdir(parents=True)
        log = shell.log_dir / f"{config.escape_mountpoint(str(point))}.log"
        with log.open("w") as file:
            file.truncate((10 << 20) + 1)
        shell.ok("mount", point, "--default", "memory:")
        assert log.stat().st_size < 100_000
        assert Path(f"{log}.1").stat().st_size == (10 << 20) + 1
        assert "mounting" in log.read_text()


class TestRefusals:
    """Each is one line and a status; nothing is mounted and no server stays."""

    @pytest.fixture(autouse=True)
    def nothing_stays(self, shell: Shell, tmp_path: Path) -> Iterator[None]:
        before = {entry.mountpoint for entry in table.mounts()}
        yield
        left = {entry.mountpoint for entry in table.mounts()} - before
        assert not {path for path in left if path.startswith(str(tmp_path))}
        assert servers(tmp_path) == []

    @pytest.mark.parametrize("variable", ["XDG_DATA_HOME", "XDG_STATE_HOME"])
    def test_a_home_that_can_not_be_written(
        self, shell: Shell, point: Path, variable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, "/proc/none")  # where root can make nothing either
        why = f"can't be made: No such file or directory; set {variable} to another place"
        assert shell.refused("mount", point) == f"the directory '/proc/none/fusebackend' {why}"

    def test_what_can_not_be_mounted(self, shell: Shell, point: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        (tmp_path / "full/precious").mkdir(parents=True)
        damaged = b"SQLite format 3\0" + b"\xa5" * 8192
        (shell.home / "damaged.db").write_bytes(damaged)
        (shell.home / "fatal.py").write_text("import os\nprint('last words', flush=True)\nos._exit(9)\n")
        (shell.home / "agent.toml").write_text("readonly = true\n")
        for case in each([
            (1, "…is not empty; mount on an empty directory", [tmp_path / "full"]),
            (1, f"mount point '{tmp_path}/no' does not exist…", [tmp_path / "no"]),
            (1, f"mount point '{tmp_path}/file' is not a directory", [tmp_path / "file"]),
            (1, f"mount point '{tmp_path}/file/x': Not a directory", [tmp_path / "file/x"]),
            (1, "'/proc' is a mount point already (proc on it)", ["/proc"]),
            (1, "'nope:x': unknown scheme 'nope:'; known: sqlite:, memory:…", [point, "--default", "nope:x"]),
            (1, "…'sqlite:' knows no parameter 'colour'; known: limit_bytes…",
             [point, "--default", "sqlite:x.db?colour=red"]),
            (1, "…'sqlite:/no/such/x.db': there is no directory '/no/such'…",
             [point, "--default", "sqlite:/no/such/x.db"]),
            (1, "…there is no directory…", [point, "--default", "dir:missing"]),
            (1, "…No module named 'no_such_module'…", [point, "--default", "python:no_such_module:make"]),
            (1, f"…'{shell.home}/damaged.db'…", [point, "--default", "sqlite:damaged.db"]),
            (1, "the server ended before it was ready: last words (see …", [point, "--default", "python:fatal:make"]),
            (1, "…lies inside the mount point…", [point, "--default", f"sqlite:{point}/x.db"]),
            (1, "…lies inside the mount point…", [point, "--default", f"dir:{point}"]),
            (1, "…holds the mount point…", [point, "--default", "memory:", "--route", f"all=dir:{point.parent}"]),
            (2, "…Route prefix '/../x' holds '..'; write the path it means…", [point, "--route", "/../x=memory:"]),
            (2, "…route '/a/' is given twice…", [point, "--route", "/a=memory:", "--route", "a/=memory:"]),
            (2, "…unknown option '-o nonsense'; known: ro, rw, allow_other, ttl=TIME, …", [point, "-o", "nonsense"]),
            (2, "…'soon' is no length of time…", [point, "-o", "ttl=soon"]),
            (1, "…cannot read 'no.toml': No such file or directory…", [point, "--config", "no.toml"]),
            (2, "'agent.toml': unknown key 'readonly'; known: mountpoint, …", [point, "--config", "agent.toml"]),
        ]):  # fmt: skip
            with case as (status, message, words):
                said = shell.refused("mount", *words, status=status)
                assert re.fullmatch(".*".join(map(re.escape, message.split("…"))), said), said
        assert (shell.home / "damaged.db").read_bytes() == damaged
        assert list(point.iterdir()) == [] and not (shell.home / "data").exists()
        for words, message in (([], "give a MOUNTPOINT"), ([point, "--route", "/notes"], "'/notes' is not PREFIX=URL")):
            done = shell("mount", *words)
            assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr

    def test_a_log_inside_the_mount(self, shell: Shell, point: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(point))
        said = shell.refused("mount", point, "--default", "memory:", status=2)
        assert "the log would be inside the mount" in said

    def test_what_is_not_mounted_cannot_be_unmounted(self, shell: Shell, point: Path, tmp_path: Path) -> None:
        assert shell.refused("umount", point) == f"'{point}' is not mounted"
        assert shell.refused("umount", tmp_path / "no") == f"'{tmp_path}/no' is not mounted"
        assert shell.refused("umount", "/proc") == "'/proc' is mounted, but not by fusebackend (proc)"
        assert shell.refused("status", point) == f"'{point}' is not mounted by fusebackend"


class TestMountedAlready:
    def test_of_several_commands_at_once_one_mounts(self, shell: Shell, point: Path) -> None:
        with contextlib.ExitStack() as stack:
            words = ("mount", point, "--default", "memory:")
            started = [stack.enter_context(Beside(*words, cwd=shell.home)) for _ in range(3)]
            assert sorted(command.end()[0] for command in started) == [0, 1, 1]
        assert len([entry for entry in table.mounts() if entry.mountpoint == str(point)]) == 1
        assert len(servers(point.parent)) == 1
        pid = shell.status(point)["pid"]
        said = shell.refused("mount", point)
        assert said == f"'{point}' is mounted already by process {pid}; 'fusebackend umount {point}' ends that"
        assert shell.status(point)["pid"] == pid

    def test_a_dead_mount_is_replaced_or_cleared_away(self, shell: Shell, point: Path) -> None:
        shell.ok("mount", point)
        with (point / "a.txt").open("w") as file:
            file.write("kept")
            file.flush()
            os.fsync(file.fileno())
        kill(shell.status(point)["pid"])
        with pytest.raises(OSError, match=r"endpoint is not connected|caused connection abort"):
            os.listdir(point)
        status = shell("status", "--json", point)
        assert (status.returncode, json.loads(status.stdout)[0]["state"]) == (1, "dead")
        said = shell.ok("mount", point)
        assert said.startswith(f"the server of an earlier mount on {point} had died; it was cleared away\n")
        assert (point / "a.txt").read_text() == "kept"
        assert len([entry for entry in table.mounts() if entry.mountpoint == str(point)]) == 1
        kill(shell.status(point)["pid"])
        assert "dead: its server is gone" in shell("status", point).stdout
        assert shell.ok("umount", point) == f"unmounted {point}; its server had died before\n"
        assert not is_mounted(point)

    def test_a_server_that_hangs_hangs_nobody_else(self, shell: Shell, point: Path) -> None:
        shell.ok("mount", point, "--default", "memory:")
        pid = shell.status(point)["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            status = shell("status", "--json", point)
            assert status.returncode == 1
            assert json.loads(status.stdout)[0]["state"] == "hung"
            assert "its server does not answer" in shell.refused("mount", point)
            said = shell.refused("umount", "--lazy", point)
            assert f"'{point}' is detached, but its server" in said
            assert "what was written there and is not stored yet is lost if it is killed" in said
            assert not is_mounted(point)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until_ended(pid)

    @needs_fdinfo
    def test_a_stopped_server_keeps_its_mount_and_what_it_has_not_stored(self, shell: Shell, point: Path) -> None:
        shell.ok("mount", point, "--default", "sqlite:x.db")
        pid = shell.status(point)["pid"]
        (point / "file").write_text("not stored yet")
        os.kill(pid, signal.SIGSTOP)
        try:
            assert f"hung: its server, process {pid}, is stopped; 'kill -CONT {pid}'" in shell("status", point).stdout
            said = shell.refused("umount", point)
            assert f"'{point}' is still mounted: its server, process {pid}, is stopped" in said
            assert "is lost if it is killed" in said and f"'kill -CONT {pid}'" in said and "--lazy" in said
            assert is_mounted(point)
        finally:
            os.kill(pid, signal.SIGCONT)
        shell.ok("umount", point)
        shell.ok("mount", point, "--default", "sqlite:x.db")
        assert (point / "file").read_text() == "not stored yet"

    def test_a_mount_of_another_user_is_theirs_to_end(
        self, shell: Shell, point: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root, to become somebody else")
        monkeypatch.chdir(point.parent)  # the command leaves its directory
        shell.ok("mount", point, "--default", "memory:")
        with mock.patch("os.geteuid", return_value=65534):
            done = CliRunner().invoke(umount, [str(point)])
        assert isinstance(done.exception, MountError) and done.exception.errno == errno.EPERM
        assert done.exception.strerror == f"'{point}' is a mount of user root, who can unmount it, as can root"
        assert is_mounted(point)


class TestUmount:
    def test_from_inside_it_is_not_in_its_own_way(self, shell: Shell, point: Path) -> None:
        assert ", read-only)" in shell.ok("mount", point, "--default", "memory:", "-o", "noexec,ro")
        with pytest.raises(OSError, match="Read-only file system"):
            (point / "new").write_text("")
        lazy_on_an_idle_mount = shell.ok("umount", "--lazy", ".", cwd=point)
        assert lazy_on_an_idle_mount == f"unmounted {point}\n"
        shell.ok("mount", point, "--default", "memory:")
        assert shell.ok("umount", ".", cwd=point) == f"unmounted {point}\n"

    def test_it_says_who_has_something_open(self, shell: Shell, point: Path) -> None:
        shell.ok("mount", point, "--default", "memory:")
        file = point / "open"
        shutil.copy("/bin/sleep", file)
        for case in each({"cwd": ["sleep", "60"], "exe": [str(file), "60"], "fd": None}):
            with case as words, contextlib.ExitStack() as held:
                pid, path = os.getpid(), file
                if words is None:
                    held.enter_context(file.open())
                else:
                    path = point if case.name == "cwd" else file
                    sleeper = subprocess.Popen(words, cwd=point if case.name == "cwd" else "/")
                    held.callback(sleeper.wait)
                    held.callback(sleeper.kill)
                    pid = sleeper.pid
                done = shell("umount", point)
                assert done.returncode == 1
                assert f"Error: '{point}' is busy\n" in done.stderr
                (line,) = [line for line in done.stderr.splitlines() if f"  process {pid} (" in line]
                assert f"has {path} open as {case.name}" in line
                assert is_mounted(point)
                assert shell.status(point)["state"] == "alive"
        shell.ok("umount", point)

    def test_lazy_leaves_open_files_usable(self, shell: Shell, point: Path) -> None:
        shell.ok("mount", point, "--default", "sqlite:x.db")
        pid = shell.status(point)["pid"]
        with (point / "a.txt").open("w+") as file:
            said = shell.ok("umount", "--lazy", point)
            assert said == f"detached {point}; process {pid} serves it until the last open file is closed\n"
            assert not is_mounted(point)
            file.write("still here")
            file.flush()
            os.fsync(file.fileno())
        wait_until_ended(pid)
        shell.ok("mount", point, "--default", "sqlite:x.db")
        assert (point / "a.txt").read_text() == "still here"

    def test_a_volume_file_that_was_moved_away_is_told(self, shell: Shell, point: Path) -> None:
        shell.ok("mount", point, "--default", "sqlite:x.db")
        (shell.home / "x.db").rename(shell.home / "y.db")
        gone = f"its file {shell.home}/x.db was moved or deleted"
        assert "/ is degraded since" in (status := shell.ok("status", point)) and gone in status
        (point / "a").write_text("x")
        with pytest.raises(OSError, match="Input/output"), (point / "a").open("a") as file:
            os.fsync(file.fileno())
        assert "its server reported" in shell.refused("umount", point)


class TestSignals:
    @pytest.mark.parametrize("end", ["umount", signal.SIGINT])  # SIGTERM is below, and ends each mount of the tests
    def test_the_server_unmounts_cleanly(self, shell: Shell, point: Path, end: str | signal.Signals) -> None:
        shell.ok("mount", point, "--default", "sqlite:x.db")
        (point / "a").write_text("kept" * 250_000)
        pid = shell.status(point)["pid"]
        if isinstance(end, signal.Signals):
            os.kill(pid, end)
            wait_until_ended(pid)
        else:
            shell.ok("umount", point)
            assert has_ended(pid), "it returns when the server has ended"
        assert not is_mounted(point)
        assert "everything is stored" in shell.log(point)
        assert not (shell.home / "x.db-wal").exists()
        shell.ok("mount", point, "--default", "sqlite:x.db")
        assert (point / "a").read_text() == "kept" * 250_000


class TestStatus:
    def test_for_programs_and_in_words(self, shell: Shell, point: Path) -> None:
        (shell.home / "project").mkdir()
        routes = ("--route", "notes=memory:", "--route", "project=dir:project")
        said = shell.ok("mount", point, "--default", "sqlite:x.db", *routes, "-o", "ttl=2 s")
        shown = [f"  /  sqlite:{shell.home}/x.db", "  /notes/  memory:", f"  /project/  dir:{shell.home}/project"]
        assert said.splitlines()[-3:] == shown
        (point / "project/new").write_text("from the mount")
        assert (shell.home / "project/new").read_text() == "from the mount"
        everything = json.loads(shell.ok("status", "--json"))
        (mine,) = [one for one in everything if one["mountpoint"] == str(point)]
        assert mine["state"] == "alive"
        assert os.path.exists(f"/proc/{mine['pid']}")
        assert abs(mine["started_at"] - time.time()) < LIMIT_S
        assert mine["read_only"] is False
        assert Path(mine["log"]).exists()
        assert [(route["prefix"], route["url"], route["features"]["durable"]) for route in mine["routes"]] == [
            ("/", f"sqlite:{shell.home}/x.db", True),
            ("/notes/", "memory:", False),
            ("/project/", f"dir:{shell.home}/project", True),
        ]
        default, _, project = mine["routes"]
        assert default["ttl_s"] is None
        assert project["ttl_s"] == (None if project["features"]["change_feed"] else 2)
        assert mine["counters"]
        said = shell.ok("status", point)
        assert said.startswith(f"{point}  process {mine['pid']}, since ")
        assert re.search(r"\n  0 open files, \d files? known to the kernel, ", said)
        assert "\n  commands: in a bubblewrap sandbox, no network\n" in said
        assert "\n  execute: bubblewrap sandbox\n" in said
        assert "\n  log: /" in said
        assert f"\n  history: {shell.log_dir}/" in said and "idle" not in said
        route = next(line for line in said.splitlines() if "memory:" in line)
        assert route.split() == ["/notes/", "memory:", "coherent", "instant", "outlive", "its", "server"]

    def test_processors_that_are_kept_awake(self, shell: Shell, point: Path) -> None:
        shell.ok("mount", point, "--default", "memory:", "-o", "idle=poll")
        said = shell.ok("status", point)
        if shell.status(point)["idle"] == "poll":
            assert "\n  idle: poll, processors of the machine are kept awake during bursts\n" in said
        else:  # another processor's driver, or not root
            assert re.search(
                r"\n  idle: sleep, although idle=poll was asked for: (the cpuidle driver|cannot open) .+\n", said
            )


# --------------------------------------------------------------------------------------------------------------
# A server that gets SIGTERM right after its mount appears ends, also in the middle of its start
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delay_s", [0, 0.001, 0.008, *(pytest.param(each, marks=pytest.mark.night) for each in (0.0005, 0.002, 0.004))]
)
def test_sigterm_in_the_first_moments(tmp_path: Path, delay_s: float) -> None:
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    with Beside("mount", mountpoint, "--foreground", "--default", "memory:") as server:
        try:
            while not mounts.is_listed(mountpoint):  # not `ismount`: that would wait for an answer
                assert server.process.poll() is None, server.end()
            time.sleep(delay_s)
            status, said = server.end(signal.SIGTERM)
            assert (status, mounts.is_listed(mountpoint)) == (0, False), said
        finally:
            if mounts.is_listed(mountpoint):
                subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=True)


def test_sigterm_while_everything_is_stored_loses_nothing(tmp_path: Path, serve: mounts.Serve) -> None:
    """After an unmount the files may be in the server's memory alone."""
    file = tmp_path / "agent.db"
    mounted = serve(f"sqlite:{file}")
    for number in range(50):
        (mounted.path / f"{number}").write_text("kept")
    subprocess.run(["fusermount3", "-u", "-z", mounted.path], check=True)
    for _ in range(3):
        mounted.process.send_signal(signal.SIGTERM)
    assert mounted.process.wait(LIMIT_S) == 0
    assert len(os.listdir(serve(f"sqlite:{file}").path)) == 50


def test_a_crash_in_c_code_leaves_the_stacks_in_the_log(serve: mounts.Serve) -> None:
    mounted = serve("memory:")
    eventually(lambda: f"mounted {mounted.path} (process {mounted.pid})\n" in mounted.log_text(), LIMIT_S)
    mounted.process.send_signal(signal.SIGSEGV)
    assert mounted.process.wait(30) == -signal.SIGSEGV
    text = mounted.log_text()
    assert "Fatal Python error: Segmentation fault" in text
    assert "in serve" in text


# --------------------------------------------------------------------------------------------------------------
# Mounts by /etc/fstab
# --------------------------------------------------------------------------------------------------------------

# /sbin has what it had, and our helpers, which are what the wheel's scripts are.
AROUND = r"""
set -eu
mkdir sbin before mnt
for helper in mount umount; do
    code="from fusebackend.cli.mount_helper import ${helper}_main as main; main()"
    printf '#!/bin/sh\nPYTHONPATH=%s exec %s -c "%s" "$@"\n' "$PYTHONPATH" "$PYTHON" "$code" >sbin/$helper.fusebackend
    chmod +x sbin/$helper.fusebackend
done
mount --bind "$(realpath /sbin)" before
mount -t tmpfs none "$(realpath /sbin)"
ln -s "$PWD"/before/* "$PWD/sbin/mount.fusebackend" /sbin/
ln -s "$PWD/sbin/umount.fusebackend" /sbin/umount.fuse.fusebackend
mount -t tmpfs none /run/mount 2>/dev/null || true  # mount(8)'s own notes
says() { printf '%s: ' "$1"; shift; "$@" 2>&1 && echo "= 0" || echo "= $?"; }
"""

FSTAB = r"""
printf 'default = "sqlite:agent.db"\n[routes]\n"/notes/" = "memory:"\n' > agent.toml
options=defaults,nosuid,noatime,_netdev,nofail,uhelper=fusebackend,x-systemd.requires=network.target
echo "$PWD/agent.toml $PWD/mnt fusebackend $options 0 0" > fstab
says all mount -T fstab -a
findmnt -n -o SOURCE,FSTYPE,OPTIONS mnt
echo hello > mnt/notes/hello; echo kept > mnt/kept
says again mount -T fstab -a
findmnt -n mnt | wc -l
says twice mount -T fstab mnt
(cd mnt; says busy umount "$OLDPWD/mnt") | grep -E "^(busy|=)"
says remount mount.fusebackend "$PWD/agent.toml" mnt -o remount,ro
says forced umount.fuse.fusebackend mnt -f
says umount umount -v "$PWD/mnt"
says read-only mount -T fstab -o ro mnt
cat mnt/kept; says write touch mnt/new
says end umount mnt
says fake mount -f -v -t fusebackend none mnt
says none findmnt mnt
mkdir 'a, b\c'
says odd mount -t fusebackend "dir:$PWD/a, b\\c" mnt
findmnt -n -r -o SOURCE mnt
says last umount mnt
"""


def run(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a script in namespaces of its own; returns its lines, with the directory as `HERE`."""
    if os.geteuid() != 0:
        pytest.skip("mount(8) and a mount namespace need root")
    return [line.replace(str(tmp_path), "HERE") for line in served.script(AROUND + script, tmp_path, monkeypatch)]


def test_a_line_of_fstab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(run(FSTAB, tmp_path, monkeypatch))

    def says(*wanted: str) -> None:
        """The next lines begin so."""
        for beginning in wanted:
            line = next(lines)
            assert line.startswith(beginning), [line, *lines]

    says("all: = 0")
    says("HERE/agent.toml fuse.fusebackend rw,nosuid,nodev,noatime,user_id=0,")
    says("again: = 0", "1")  # `mount -a` knows it by its source
    says("twice: mount.fusebackend: 'HERE/mnt' is mounted already by process ", "= 32")
    says("busy: umount.fusebackend: 'HERE/mnt' is busy", "= 32")
    says("remount: mount.fusebackend: -o remount is not possible: umount, and mount again with other options", "= 1")
    says("forced: umount.fusebackend: -f would lose what is not stored yet: if it must be, 'umount -i -f mnt'", "= 1")
    says("umount: unmounted HERE/mnt", "= 0")  # our helper's words: everything is stored
    says("read-only: = 0", "kept", "write: touch: cannot touch 'mnt/new': Read-only file system", "= 1", "end: = 0")
    says("fake: = 0", "none: = 1")
    says("odd: = 0", r"dir:HERE/a,\x20b\x5cc", "last: = 0")  # findmnt's escapes
    assert list(lines) == []


# --------------------------------------------------------------------------------------------------------------
# Mounts without root's rights: in a user namespace where /dev/fuse can be opened
# --------------------------------------------------------------------------------------------------------------

WORK = """
set -e
fusebackend() { "$PYTHON" -m fusebackend "$@"; }
awk '{ print "ids", $3 }' /proc/self/uid_map
fusebackend doctor --json | grep -c 'a FUSE file system can be mounted'
fusebackend mount mnt --default sqlite:"$PWD"/volume.db
echo hello > mnt/file
chmod 600 mnt/file
ln mnt/file mnt/linked
ln -s file mnt/symbolic
fusebackend read --mount mnt /symbolic
fusebackend exec --mount mnt -- 'cat linked; touch made'
fusebackend branch create --mount mnt work
echo branch > mnt/.fusebackend/branches/work/file
cat mnt/file
stat -c '%a %h %n' mnt/file mnt/made
fusebackend umount mnt
"""


def test_a_mount_in_a_user_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnt").mkdir()
    user = ("--user", "--map-root-user")
    if subprocess.run(["unshare", *user, "true"], capture_output=True).returncode != 0:
        pytest.skip("no user namespace for this user")
    lines = served.script(WORK, tmp_path, monkeypatch, *user)
    assert lines[:2] == ["ids 1", "1"]  # one id alone is mapped: no rights outside
    assert lines[2].startswith(f"mounted {tmp_path}/mnt (process ")
    rest = [line for line in lines[3:] if not line.startswith("  ")]
    made = f"{tmp_path}/mnt/.fusebackend/branches/work"
    assert rest == ["hello", "hello", made, "hello", "600 2 mnt/file", "644 1 mnt/made", f"unmounted {tmp_path}/mnt"]
    assert not os.path.ismount(tmp_path / "mnt")
