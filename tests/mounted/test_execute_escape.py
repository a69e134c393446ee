"""Attempts to escape from the sandbox of a command, and to keep others from working: one test for each.

The commands run as the server's user, root in CI, so only the sandbox can stop them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import executing
import pytest
import races
import skips
from executing import Commands, commands
from programs import processes_with

LONG = str(2_000_000_000 + os.getpid())
MEMORY_BYTES = 128 << 20
PROCESSES = 64
LOOK_S = 0.02
"""Between two looks at a mount: without a pause the looks, and not the bomb, would take a processor all the time."""
NIGHT_LIMIT_S = 3600.0
"""By night the races take a quarter of an hour, beside the mount of the other tests."""
QUOTAS = ("cpu.max", "cpu.cfs_quota_us")
"""Files of a control group: microseconds of each 100 ms, in version 2 and 1."""

SANDBOX_PIDS = 20
"""More than a sandbox's own processes get: in it, a lower number is one of these."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    tmp = tmp_path_factory.mktemp("escape")
    options = {"memory_bytes": MEMORY_BYTES, "max_processes": PROCESSES}
    with commands(tmp / "mnt", "memory:", "/memories/=memory:", limit_s=NIGHT_LIMIT_S, **options) as shell:
        yield shell


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process of the same user, outside of the sandbox, with a number that none of the sandbox's has."""
    process = subprocess.Popen(["sleep", LONG])
    while process.pid <= SANDBOX_PIDS:
        process.kill()
        process.wait()
        process = subprocess.Popen(["sleep", LONG])
    yield process
    process.kill()
    process.wait()


def python(program: str) -> str:
    """Make a command that runs a Python program."""
    return f"python3 -c {shlex.quote(program)}"


def refused(shell: Commands, *scripts: str) -> None:
    """Run scripts in one sandbox. None may succeed: the output names those that do."""
    tried = [f"({script}) >/dev/null 2>&1 && echo {shlex.quote(script)}" for script in scripts]
    assert shell.output("; ".join([*tried, "true"])) == "<no output>"


def answers(shell: Commands) -> float:
    """Return the seconds that the mount takes to write and read a small file on both faces."""
    begin = time.monotonic()
    path = shell.path / "memories/answers"
    path.write_text("x")
    assert path.read_text() == "x"
    path.unlink()
    shell.files.ls("/")
    return time.monotonic() - begin


# -- files -------------------------------------------------------------------------------------------------------------


def test_secrets_of_the_machine(shell: Commands) -> None:
    paths = ["/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssl/private", "/root", "/home", "/var", "/run",
             "/sys", "/usr/../etc/shadow", "/proc/1/root/etc/shadow", "/proc/self/cwd/etc/shadow", "/proc/1/cwd/home",
             "/../../boot"]  # fmt: skip
    refused(shell, *(f"cat {path} || ls {path}" for path in paths))


def test_the_home_directory_and_files_beside_the_mount(shell: Commands, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET")
    home = os.path.expanduser("~")
    (shell.path / "link").symlink_to(tmp_path / "secret")
    beside = (tmp_path / "secret", shell.path.parent, shell.path, home, f"/proc/{os.getpid()}/root{tmp_path}/secret")
    refused(shell, *(f"ls -A {path}" for path in beside), "cat /link")
    found = shell.run(r"find / -xdev -name secret; find /proc /dev /tmp /etc -name secret 2>/dev/null; true")
    assert "secret" not in found["output"]


def test_what_is_mounted_below_the_mount_point(tmp_path: Path) -> None:
    """A file system mounted there is not part of the mount: neither verbs nor commands see it."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount there")
    with commands(tmp_path / "mnt", "memory:", "/memories/=memory:", "/tmp/shared/=memory:") as shell:
        places = [shell.path / name for name in ("sub", "memories/sub", "tmp/shared/sub")]
        for place in places:
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
        try:
            for place in places:
                (place / "other").touch()
            assert "other" not in shell.output("find / -name other 2>/dev/null; true")
            shell.output("touch /sub/mine /memories/sub/mine /tmp/shared/sub/mine; rmdir /sub 2>/dev/null; true")
            assert [os.listdir(place) for place in places] == [["other"]] * 3
        finally:
            for place in places:
                subprocess.run(["umount", place], check=True)
        assert [os.listdir(place) for place in places] == [["mine"]] * 3


def test_a_sandbox_that_is_not_as_it_should_be(tmp_path: Path) -> None:
    """A mount in the tree of the sandbox, which only root can make, has the command refused soon."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount there")
    with commands(tmp_path / "mnt", "memory:") as shell:
        (shell.path / "sub").mkdir()
        place = shell.path / ".fusebackend/private/sandbox/sub"
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
        try:
            begin = time.monotonic()
            refused = shell.run("touch /sub/mine")
            assert time.monotonic() - begin < 20
            assert os.listdir(place) == []
        finally:
            subprocess.run(["umount", place], check=True)
        said = "Error: the sandbox is not as it should be; the log of the server says why"
        assert refused == {"output": said, "exit_code": 126, "truncated": False}
        shell.mounted.expected_log = "its command was not started: /sub is mounted 1 times and not 0"
        assert re.search(shell.mounted.expected_log, shell.mounted.log_text())
        assert shell.output("echo on") == "on\n"


def test_writing_outside(shell: Commands, tmp_path: Path) -> None:
    system = ["/usr", "/usr/bin", "/usr/local/bin", "/bin", "/sbin", "/lib", "/etc", "/dev", "/proc"]
    refused(shell, *(f"touch {path}/from-inside" for path in [str(tmp_path), *system]))
    own = ["/", "/tmp", "/dev/shm", "/var/lib"]
    shell.output(f"for path in {' '.join(own)}; do mkdir -p $path; touch $path/from-inside; done")
    assert not [path for path in (*system, *own, tmp_path) if os.path.lexists(f"{path}/from-inside")]
    assert (shell.path / "from-inside").exists()
    assert (shell.path / "var/lib/from-inside").exists()
    shell.output("rm -r /from-inside /var")


def test_settings_of_the_kernel(shell: Commands) -> None:
    """Root may write to these without any capability: only a read-only mount prevents it."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    settings = ("sys/kernel/core_pattern", "sys/kernel/modprobe", "sysrq-trigger", "irq/default_smp_affinity",
                "self/oom_score_adj", "1/oom_score_adj", "sys/vm/drop_caches", "mtrr", "self/uid_map")  # fmt: skip
    refused(shell, *(f"echo 0 > /proc/{path}" for path in settings))
    assert shell.output("find /proc/sys /proc/[a-z]* -maxdepth 3 -type f -writable 2>/dev/null; true") == "<no output>"
    assert Path("/proc/sys/kernel/core_pattern").read_text() == pattern


def test_memory_of_the_kernel(shell: Commands) -> None:
    paths = ("/proc/kcore", "/proc/kmsg", "/proc/kpagecount", "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/vda")
    refused(shell, *(f"head -c 1 {path}" for path in paths), "dmesg")


def test_mounting(shell: Commands) -> None:
    refused(
        shell,
        "mount -o remount,rw /usr", "mount -o remount,rw /proc", "mount -t tmpfs none /memories", "umount /etc",
        "umount -l /proc", "mount --bind /memories /usr", "unshare -m true", "unshare -U true", "unshare -r true",
        "unshare -Urm mount -t proc proc /proc", "unshare -n true", "chroot /memories /bin/true",
        "mknod /tmp/disk b 254 0", "mknod /disk b 254 0", "nsenter -t 1 -m true",
    )  # fmt: skip
    assert shell.output("ls /usr/bin/env /proc/self/stat /etc/passwd") != ""


def test_a_device_in_the_mount_opens_nothing(shell: Commands) -> None:
    """The device is made from outside, where root may; the mount itself is `nodev`."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a device node")
    os.mknod(shell.path / "disk", 0o60666, os.makedev(1, 1))
    os.mknod(shell.path / "null", 0o20666, os.makedev(1, 3))
    assert "Permission denied" in shell.run("head -c 1 /disk")["output"]
    assert "Permission denied" in shell.run("head -c 1 /null")["output"]
    shell.output("rm /disk /null")


# -- privileges --------------------------------------------------------------------------------------------------------


def test_it_has_no_capabilities_and_gains_none(shell: Commands) -> None:
    status = dict(line.split(":\t", 1) for line in shell.output("cat /proc/self/status").splitlines())
    assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Amb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert shell.run("chown 12345 /memories")["exit_code"] != 0
    gained = shell.run(
        "cp /usr/bin/python3 /memories/setuid; chmod u+s /memories/setuid;"
        " /memories/setuid -c 'print(open(\"/proc/self/status\").read())' | grep CapEff; rm /memories/setuid"
    )
    assert gained["output"].split()[1] == "0000000000000000"


SYSCALL = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
for call in {calls}:
    result = libc.syscall(*(ctypes.c_long(word) if isinstance(word, int) else word for word in call))
    print(result, errno.errorcode.get(ctypes.get_errno()))
"""


def test_system_calls_that_no_namespace_confines(shell: Commands) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    calls = {
        (250, 0, -3, 0): "EPERM",  # keyctl: the id of the session keyring, which is the server's
        (248, b"user", b"name", b"value", 5, -3): "EPERM",  # add_key
        (249, b"user", b"name", 0, -3): "EPERM",  # request_key
        (425, 8, 0): "ENOSYS",  # io_uring_setup
        (435, 0, 0): "ENOSYS",  # clone3
        (272, 0x10000000): "EPERM",  # unshare(CLONE_NEWUSER)
        (56, 0x10000000 | 17, 0, 0, 0, 0): "EPERM",  # clone(CLONE_NEWUSER)
        (298, 0, 0, -1, -1, 0): "EPERM",  # perf_event_open
        (321, 0, 0, 0): "EPERM",  # bpf
        (323, 0): "EPERM",  # userfaultfd
        (103, 3, 0, 0): "EPERM",  # syslog
        (0x40000000 | 39,): "ENOSYS",  # getpid of x32
    }
    answered = shell.output(python(SYSCALL.format(calls=list(calls)))).splitlines()
    assert answered == [f"-1 {name}" for name in calls.values()]


LINKS = """
import glob, os
mine = {line.split()[0] for line in open("/proc/self/mountinfo")}
for link in sum((glob.glob(f"/proc/[0-9]*/{name}") for name in ("exe", "cwd", "root", "fd/*", "task/*/exe")), []):
    try: fd = os.open(link, os.O_PATH)
    except FileNotFoundError: continue
    words = dict(line.split(":\\t") for line in open(f"/proc/self/fdinfo/{fd}").read().splitlines() if ":\\t" in line)
    name = os.readlink(link)
    if words["mnt_id"] not in mine and not name.startswith("pipe:"): print(link, name)
    os.close(fd)
"""


def test_no_link_leads_to_a_mount_of_the_machine(shell: Commands) -> None:
    """Through one, root could change the mode of a file that is mounted read-only inside."""
    for stdin in (None, b"given"):
        assert shell.output(python(LINKS), stdin=stdin) == "<no output>"


def test_modes_of_what_belongs_to_the_machine(shell: Commands) -> None:
    paths = [*(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")), "/usr/bin/bwrap",
             "/bin/sh", "/usr", "/usr/bin", "/etc/ld.so.conf.d"]  # fmt: skip
    before = [os.stat(path).st_mode for path in paths]
    others = ["/etc/passwd", "/etc", "/dev", "/proc/self", "/proc/1/exe", "/proc/self/exe", "/proc/sys"]
    for change in ("chmod 0700", "touch -d 2001-01-01"):
        refused(shell, *(f"{change} {path}" for path in [*paths, *others]))
    shell.run("for i in 0 1 2; do chmod 0700 /proc/self/fd/$i; done")
    shell.run("chmod 0700 /proc/self/fd/0", stdin=b"given")
    assert [os.stat(path).st_mode for path in paths] == before
    assert shell.output("echo x > /dev/null; head -c 1 /dev/urandom | wc -c") == "1\n"


LEAVING = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def fchmodat2(mode):
    if libc.syscall(452, -100, b'/c', mode, 0) < 0: raise OSError(ctypes.get_errno(), 'fchmodat2')
def tmpfile(mode):
    os.link(f"/proc/self/fd/{os.open('/', os.O_TMPFILE | os.O_RDWR, mode)}", '/t', follow_symlinks=True)
tries = {
    'open': lambda mode: os.open('/a', os.O_CREAT | os.O_WRONLY, mode),
    'mknod': lambda mode: os.mknod('/b', 0o100000 | mode),
    'chmod': lambda mode: os.chmod('/c', mode),
    'fchmod': lambda mode: os.fchmod(os.open('/c', os.O_RDONLY), mode),
    'fchmodat': lambda mode: os.chmod('c', mode, dir_fd=os.open('/', os.O_RDONLY)),
    'fchmodat2': fchmodat2,
    'tmpfile': tmpfile,
    'inherited': lambda mode: os.open('/shared/d', os.O_CREAT | os.O_WRONLY, mode),
}
for name, attempt in tries.items():
    for mode in (0o4755, 0o2755, 0o6755, 0o2644):
        try: attempt(mode); print('made', name, oct(mode))
        except OSError: pass
print('end')
"""


@pytest.mark.parametrize("filtered", [True, False], ids=["seccomp", "mount alone"])
def test_leaving_a_program_that_runs_as_the_server(tmp_path: Path, filtered: bool) -> None:
    """In a `dir:` route, every user of this machine could run it. The mount refuses it without seccomp, too."""
    files = tmp_path / "files"
    files.mkdir()
    with commands(tmp_path / "mnt", f"dir:{files}", seccomp=filtered) as shell:
        shell.output("touch /c; mkdir -m 1777 /shared; chmod 2775 /shared; cp /bin/true /true")
        assert shell.output(python(LEAVING)) == "end\n"
        assert shell.run("install -m 4755 /bin/true /d")["exit_code"] != 0
        assert shell.run("chmod g+s /true")["exit_code"] != 0
        assert shell.output("stat -c %a /shared /c") == "2775\n644\n", "directories may have it, and hand it on"
        assert shell.output("mkdir /shared/below; stat -c %a /shared/below") == "2755\n"
        (shell.path / "c").chmod(0o2755)
        assert (files / "c").stat().st_mode & 0o7777 == 0o2755, "it is for commands only"
        shell.output("echo x >> /c")
    assert not [path for path in files.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000]


def test_a_core_dump_starts_nothing_outside(shell: Commands) -> None:
    assert shell.output("ulimit -c") == "0\n"  # one byte, in blocks of 512
    assert "core" not in shell.run("sh -c 'kill -SEGV $$'; ls -a /")["output"]


def test_typing_into_the_terminal_of_the_server(shell: Commands) -> None:
    assert shell.run("echo x > /dev/tty")["exit_code"] != 0
    assert shell.run(python("import fcntl; fcntl.ioctl(0, 0x5412, b'x')"))["exit_code"] != 0


# -- processes ---------------------------------------------------------------------------------------------------------


def test_killing_processes_outside(shell: Commands, victim: subprocess.Popen[bytes]) -> None:
    for pid in (victim.pid, shell.mounted.pid):
        assert shell.run(f"kill -9 {pid}")["exit_code"] != 0
    shell.run("trap '' TERM; kill -TERM -1; kill -KILL -1", timeout=20)
    shell.run(
        python("import os; [os.kill(pid, 9) for pid in range(2, 70000) if os.path.exists(f'/proc/{pid}')]"), timeout=20
    )
    shell.run("kill -9 1; kill -9 0", timeout=20)
    assert victim.poll() is None
    assert answers(shell) < 20


def test_tracing_processes_outside(shell: Commands, victim: subprocess.Popen[bytes]) -> None:
    outside = [pid for pid in (victim.pid, shell.mounted.pid, os.getpid()) if pid > SANDBOX_PIDS]
    for pid in outside:
        program = f"import ctypes; raise SystemExit(ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0)"
        assert shell.run(python(program))["exit_code"] == 0, "PTRACE_ATTACH"
        refused(shell, *(f"ls /proc/{pid}/{file}" for file in ("mem", "maps", "environ", "cmdline", "root", "fd")))
    assert Path(f"/proc/{victim.pid}/status").read_text().count("TracerPid:\t0") == 1


def test_processes_outside_are_not_even_seen(shell: Commands, victim: subprocess.Popen[bytes]) -> None:
    assert LONG not in shell.output("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "in the clear" not in shell.run("cat /proc/[0-9]*/environ")["output"]


def test_system_v_objects_are_not_shared(shell: Commands) -> None:
    made = subprocess.run(["ipcmk", "-M", "4096"], capture_output=True, text=True, check=True).stdout.split()[-1]
    try:
        assert f" {made} " not in shell.output("ipcs -m")
    finally:
        subprocess.run(["ipcrm", "-m", made], check=True)


def test_a_process_that_will_not_end(shell: Commands) -> None:
    stubborn = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in range(1, 32) if n not in (9, 19)]; "
    result = shell.run(python(stubborn + f"print('begun', flush=True); time.sleep({LONG})"), timeout=2)
    assert result["exit_code"] == 124
    assert processes_with(LONG) == []


# -- the network -------------------------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[tuple[int, str]]:
    """Listen on this machine: on a port, and on an abstract Unix socket."""
    name = f"fusebackend-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{name}")
        unix.listen()
        yield tcp.getsockname()[1], name


def connect(port: int, name: str) -> str:
    return python(
        "import socket\n"
        f"for family, address in ((2, ('127.0.0.1', {port})), (1, '\\0{name}')):\n"
        "    try: socket.socket(family).connect(address); print('connected')\n"
        "    except OSError as error: print(error.strerror)"
    )


def test_the_network(shell: Commands, listener: tuple[int, str]) -> None:
    assert shell.output(connect(*listener)) == "Connection refused\nConnection refused\n"
    assert shell.output("cat /proc/net/dev | tail -n +3 | cut -d: -f1").split() == ["lo"]
    for address in ("10.255.255.1", "1.1.1.1", "169.254.169.254"):
        program = f"import socket; socket.create_connection(('{address}', 80), 5)"
        assert "Network is unreachable" in shell.run(python(program))["output"]
    assert shell.run(python("import socket; socket.getaddrinfo('example.com', 80)"))["exit_code"] != 0


def test_its_own_loopback_works(shell: Commands) -> None:
    program = "import socket; s = socket.create_server(('localhost', 0)); socket.create_connection(s.getsockname()[:2])"
    assert shell.output(python(program)) == "<no output>"


def test_sockets_of_other_kinds(shell: Commands) -> None:
    program = (
        "import socket\nfor family in (socket.AF_VSOCK, socket.AF_PACKET, socket.AF_ALG, 31, 38, 44):\n"
        "    try: socket.socket(family, 3); print('made')\n"
        "    except OSError as error: print(error.errno)"
    )
    assert set(shell.output(python(program)).split()) == {"97"}  # EAFNOSUPPORT


def test_the_network_when_it_is_allowed(tmp_path: Path, listener: tuple[int, str]) -> None:
    with commands(tmp_path / "mnt", "memory:", network=True) as shell:
        assert shell.output(connect(*listener)) == "connected\nconnected\n"
        assert shell.output("cat /etc/resolv.conf /etc/hosts") == "".join(
            Path(path).read_text() for path in ("/etc/resolv.conf", "/etc/hosts")
        )
        assert shell.run(python("import socket; socket.socket(socket.AF_VSOCK)"))["exit_code"] != 0


def test_the_control_socket_of_another_mount(shell: Commands, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(runtime / "control"))
        unix.listen()
        program = f"import socket; socket.socket(socket.AF_UNIX).connect({str(runtime / 'control')!r})"
        assert "No such file" in shell.run(python(program))["output"]


def test_the_control_socket_of_its_own_mount(shell: Commands) -> None:
    """Its path is readable, as for everyone in the mount; but the sandbox has no such path."""
    path = os.getxattr(shell.path, "user.fusebackend.socket").decode()
    assert os.path.exists(path)
    program = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
    assert "No such file" in shell.run(python(program))["output"]


# -- exhaustion --------------------------------------------------------------------------------------------------------


def while_it_runs(shell: Commands, command: str, timeout: float) -> tuple[dict[str, object], float]:
    """Run a command; return its answer, and the longest time that the mount took to answer meanwhile."""
    pending = shell.start(command, timeout=timeout)
    slowest = 0.0
    while not pending.is_answered:
        slowest = max(slowest, answers(shell))
        time.sleep(LOOK_S)
    return pending.result(), slowest


def refused_at(group: Path) -> int:
    """Return how many processes a control group had when a fork was refused; 0 if none was. A bomb whose shells end
    when they can't fork has gone between two looks at a mount that is slow to answer."""
    counted = re.search(r"^max (\d+)$", (group / "pids.events").read_text(), re.MULTILINE)
    return PROCESSES if counted is not None and int(counted[1]) else 0


@pytest.mark.parametrize("bomb", ["f() { f | f & }; f", "f() { while :; do f & done; }; f"])
def test_a_fork_bomb(shell: Commands, bomb: str) -> None:
    beside = f"{{ {bomb}; }} & exec sleep 60"  # a shell that can't fork ends, and everything with it
    is_limited = shell.describe()["processes_limited_by"].startswith("cgroup")
    for command in (beside, f"bash -c {shlex.quote(beside)}"):
        pending = shell.start(command, timeout=90)
        begin, most, slowest, looks = time.monotonic(), 0, 0.0, 20  # once it has grown
        while looks and time.monotonic() - begin < (60 if is_limited else 2):
            slowest = max(slowest, answers(shell))
            time.sleep(LOOK_S)
            for path in executing.groups(shell.mounted.pid):
                with contextlib.suppress(OSError):
                    most = max(most, int((path / "pids.current").read_text()), refused_at(path))
            looks -= most > PROCESSES // 2
        shell.cancel(pending)
        pending.result()
        assert slowest < 10
        if is_limited:
            assert PROCESSES // 2 < most <= PROCESSES + 1
    assert shell.output("echo on") == "on\n"


def test_a_memory_bomb(shell: Commands) -> None:
    before = shell.mounted.memory_kib()
    result, slowest = while_it_runs(shell, python("x = []\nwhile True: x.append(bytearray(1 << 24))"), 60)
    assert result["exit_code"] in (1, 137), "killed, or told that there is no more"
    assert slowest < 10
    assert shell.mounted.memory_kib() < before + 50_000
    assert shell.output("echo on") == "on\n"


def test_a_memory_bomb_of_many_processes(shell: Commands) -> None:
    one = python("import time; x = bytearray(60 << 20); time.sleep(1)")
    result, slowest = while_it_runs(shell, f"for i in 1 2 3 4 5 6; do {one} & done; wait; echo end", 60)
    assert slowest < 10
    assert str(result["output"]).startswith(("end", "<no output>", "Killed"))
    assert shell.output("echo on") == "on\n"


def test_many_commands_at_once(tmp_path: Path) -> None:
    """Each of them stays within its own bounds, and all together within theirs."""
    bounds = {"memory_bytes": 64 << 20, "total_memory_bytes": 160 << 20, "total_cpus": 0.5}
    with commands(tmp_path / "mnt", "memory:", "/memories/=memory:", **bounds) as shell:
        if not shell.describe()["memory_limited_by"].startswith("cgroup"):
            pytest.skip("this machine gives the server no control groups")
        hold = python("x = bytearray(40 << 20)\nwhile True: pass")
        pending = [shell.start(f"{hold}; echo ended", timeout=600) for _ in range(6)]
        while sum(one.is_answered for one in pending) < 2:  # the kernel ends what does not fit
            assert answers(shell) < 10
            time.sleep(LOOK_S)
        common = {path.parent for path in executing.groups(shell.mounted.pid)}
        peaks = [int(file.read_text()) for path in common for file in path.glob("memory.*peak")]
        peaks += [int(file.read_text()) for path in common for file in path.glob("memory.max_usage_in_bytes")]
        assert peaks and max(peaks) <= 160 << 20
        if shell.describe()["total_cpus"] is not None:
            quotas = [file.read_text() for path in common for file in path.glob("cpu.*") if file.name in QUOTAS]
            assert [quota.split()[0] for quota in quotas] == ["50000"]
        for one in pending:
            shell.cancel(one)
            one.result()
        assert shell.output("echo on") == "on\n"
    assert executing.own_groups(shell.mounted.pid) == set()


@pytest.mark.parametrize("path", ["/tmp", "/dev/shm"])
def test_filling_what_is_kept_in_memory(shell: Commands, path: str) -> None:
    result, slowest = while_it_runs(shell, f"head -c 4G /dev/zero > {path}/file", 60)
    assert result["exit_code"] != 0
    assert slowest < 10
    assert shell.output(f"ls {path}; head -c 1M /dev/zero > {path}/file; echo on") == "on\n"


def test_filling_the_output(shell: Commands) -> None:
    before = shell.mounted.memory_kib()
    result, slowest = while_it_runs(shell, "yes & yes >&2 & cat /dev/zero & sleep 1", 20)
    assert result["truncated"]
    assert len(str(result["output"])) < 110_000
    assert slowest < 10
    assert shell.mounted.memory_kib() < before + 50_000


def test_opening_everything(shell: Commands) -> None:
    program = "import os\nfiles = []\nwhile True: files.append(os.open('/memories/many', os.O_CREAT))"
    assert "Too many open files" in shell.run(python(program))["output"]
    assert answers(shell) < 10


INSTANCES = "import ctypes; make = ctypes.CDLL(None).inotify_init; n = 0\nwhile make() >= 0: n += 1\nprint(n)"


def test_taking_all_inotify_instances(shell: Commands) -> None:
    """The kernel counts them by user, not by process or namespace: 128 as a rule, for root and for everyone."""
    most = int(Path("/proc/sys/user/max_inotify_instances").read_text())
    holding = INSTANCES + "\nimport sys, time; sys.stdout.flush(); time.sleep(60)"
    pending = [shell.start(python(holding), stream=True) for _ in range(3)]
    for one in pending:
        assert one.piece_came.wait(60)
    taken = [int(piece) for one in pending for _, piece in one.pieces]
    assert max(taken) > 0, "there are some for commands"
    assert sum(taken) <= most // 4, "and no more for all of them together"
    outside = subprocess.run(["python3", "-c", INSTANCES], capture_output=True, text=True, check=True)
    assert int(outside.stdout) > 0
    for one in pending:
        shell.cancel(one)
        one.result()
    assert int(shell.output(python(INSTANCES))) == most // 4, "what was taken comes back"


def test_taking_other_things_that_are_counted_by_user(shell: Commands) -> None:
    limits = shell.output("prlimit --noheadings --output SOFT,HARD --sigpending --msgqueue").split()
    own = [resource.getrlimit(number)[0] // 4 for number in (resource.RLIMIT_MSGQUEUE, resource.RLIMIT_SIGPENDING)]
    assert sorted({int(limit) for limit in limits}) == sorted(own)
    program = "import ctypes, errno; c = ctypes.CDLL(None, use_errno=True); "
    program += "c.syscall(206, 64, ctypes.byref(ctypes.c_long())); print(errno.errorcode[ctypes.get_errno()])"
    assert shell.output(python(program)) == "EAGAIN\n", "asynchronous requests, counted for the whole machine"


def test_deep_and_long_paths(shell: Commands) -> None:
    program = (
        "import os\nos.chdir('/memories')\nfor _ in range(300): os.mkdir('d' * 200); os.chdir('d' * 200)\nprint('deep')"
    )
    assert shell.output(python(program)) == "deep\n"
    assert shell.output("rm -rf /memories/ddd*; ls -d /memories/ddd* 2>/dev/null; true") == "<no output>"


def test_root_without_a_user_namespace(tmp_path: Path) -> None:
    """Where the machine allows no user namespaces, the rest of the sandbox must hold without one."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a sandbox without a user namespace")
    with commands(tmp_path / "mnt", "memory:", user_namespaces=False) as shell:
        assert shell.output("cat /proc/self/uid_map").split() == ["0", "0", "4294967295"]
        for command in (
            "echo x > /proc/sys/kernel/core_pattern", "echo h > /proc/sysrq-trigger", "unshare -U true",
            "unshare -m true", "mount -o remount,rw /usr", "mknod /tmp/disk b 254 0", "chown 1 /", "dmesg",
            "cat /etc/shadow", "umount /proc", "head -c 1 /proc/kcore",
        ):  # fmt: skip
            assert shell.run(command)["exit_code"] != 0, command
        assert int(shell.output("grep CapEff /proc/self/status").split()[1], 16) == 0
        assert shell.output(python(INSTANCES)) == "0\n", "it would take them from everybody"


# --------------------------------------------------------------------------------------------------------------
# Races of two commands, or of a command and the mount
# --------------------------------------------------------------------------------------------------------------

SECONDS = pytest.mark.parametrize("seconds", [0.5, pytest.param(60.0, marks=pytest.mark.night)])
"""Of a race. By night each takes a minute."""

RACES = [
    ("sqlite:{files}/default.db", "verbs"),
    *(("dir:{files}", actor) for actor in ("mount", "directory", "command", "another user")),
    *(pytest.param(default, actor, marks=pytest.mark.night) for default, actor in (
        ("sqlite:{files}/default.db", "mount"), ("dir:{files}", "verbs"),
        *itertools.product(("memory:", "state:", "postgres:{dsn}?volume=race"), ("verbs", "mount")),
    )),
]  # fmt: skip
"""The default of a mount, and what renames in it while commands start. The sandbox is the same over each default."""


def check(outcome: races.Outcome) -> None:
    assert outcome.hits == []
    assert (outcome.refused, outcome.refusals) == (0, []), "whatever the root has under the system's names"
    assert outcome.commands > 0


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a directory that other users can reach, unlike pytest's."""
    skips.need_sandbox()
    with tempfile.TemporaryDirectory(prefix="fusebackend-race-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@SECONDS
@pytest.mark.parametrize(("default", "actor"), RACES)
def test_renames_while_commands_start(
    place: Path, default: str, actor: str, seconds: float, request: pytest.FixtureRequest
) -> None:
    if actor == "another user" and os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    if "{dsn}" in default:
        default = default.replace("{dsn}", request.getfixturevalue("postgres_dsn"))
    (place / "race").mkdir()
    check(races.race(place / "race", default, actor, seconds))


@SECONDS
@pytest.mark.parametrize("actor", ["mount", pytest.param("directory", marks=pytest.mark.night)])
def test_a_server_without_privileges(place: Path, actor: str, seconds: float) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is a plain user already")
    if races.system_python() is None:
        pytest.skip("the system has no Python of this version, which other users may run")
    check(races.as_plain_user(place, "dir:{files}", actor, seconds))
