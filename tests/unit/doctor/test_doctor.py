"""`fusebackend doctor`: each finding under the condition that it is about, which is made here."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mounts
import pytest
import served
import warm
from for_each import for_each
from raising import raising

from fusebackend.doctor import Finding, found_by, ok, worst
from fusebackend.linux import distribution

ROOT = Path(__file__).parents[3]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes these conditions")

NAMESPACE = ("unshare", "--mount", "sh", "-c")
MOUNTS = "mounts alone"
"""The name of a script that changes nothing else of the process."""

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

Findings = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.homes(monkeypatch, tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of mktemp
    warm.command(tmp_path / "forked", mounts.module_environment())


def diagnosed(
    *words: str, wrapper: Sequence[str] = (), status: int | None = None, env: dict[str, str] | None = None
) -> Findings:
    """Run the command; returns the findings by what they are about.

    Where no more than mounts are another it is forked (`warm.py`), in a tenth of the time of a start.
    """
    command = served.command("doctor", "--json", *words, wrapper=wrapper)
    if not env and wrapper[-1:] in ((), (MOUNTS,)):
        command = [*wrapper, f"{os.environ['TMPDIR']}/forked", "doctor", "--json", *words]
    done = subprocess.run(
        command,
        env={**mounts.module_environment(), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=served.LIMIT_S,
    )
    assert "Traceback" not in done.stderr, done.stderr
    answer = json.loads(done.stdout)
    assert done.returncode == (1 if answer["verdict"] == "error" else 0)
    if status is not None:
        assert done.returncode == status, done.stdout
    found = {each["what"]: each for each in answer["findings"]}
    for each in found.values():
        assert each["verdict"] in ("ok", "warning", "error") and each["why"]
        assert bool(each["mend"]) == (each["verdict"] != "ok")
        assert "can't be checked" not in each["why"], each
    return found


def within(script: str, name: str = MOUNTS) -> tuple[str, ...]:
    """A command that runs in a mount namespace in which a script, of this name, has made a condition."""
    return (*NAMESPACE, f'set -e\n{script}\nexec "$@"', name)


def says(finding: dict[str, Any], verdict: str, why: str, *mends: str) -> None:
    assert finding["verdict"] == verdict, finding
    assert why in finding["why"], finding
    assert all(mend in finding["mend"] for mend in mends), finding


def say(found: Findings, expected: dict[str, tuple[str, ...]]) -> None:
    """Each is as `says` wants it, or not there where nothing is expected."""
    assert [what for what in expected if what in found] == [what for what in expected if expected[what]]
    for what in expected.keys() & found.keys():
        says(found[what], *expected[what])


def bound(tmpfs: str, commands: str, over: str) -> tuple[str, ...]:
    """A file system `$d` with what these commands make of it, bound over a path."""
    return within(f'd=$(mktemp -d); mount -t tmpfs {tmpfs} none "$d"; {commands}; mount --bind {over}')


def instead_of(program: str, *lines: str) -> tuple[str, ...]:
    """A script in the place of a program, whose own file is `$c.own`."""
    text = "; ".join(f"echo {shlex.quote(line)} >> $c" for line in ("#!/bin/sh", *lines))
    copied = f'b=$(command -v {program}); c=$(mktemp); cp "$b" "$c.own"; chmod 755 $c "$c.own"'
    return within(f'{copied}; {text}; sed -i "s#OWN#$c.own#" $c; mount --bind $c "$b"')


FILTER = (
    "import ctypes, os, struct, sys\n"
    "b = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"  # allow everything
    "p = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(b)))\n"
    "c = ctypes.CDLL(None)\n"
    "assert c.prctl(38, 1, 0, 0, 0) == 0 and c.prctl(22, 2, p, 0, 0) == 0\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
KERNEL = """chmod 755 "$d"; for name in cap_last_cap overflowuid overflowgid; do
cat /proc/sys/kernel/$name > "$d/$name"; done
echo 1 > "$d/apparmor_restrict_unprivileged_userns"; echo 0 > "$d/unprivileged_userns_clone\""""
# A file without an execute bit is no program.
MISSING = "for p in fusermount3 rg bwrap git; do where=$(command -v $p) && mount --bind /dev/null $where; done"
COPIED = 'f=$(command -v fusermount3); c=$(mktemp); cp "$f" "$c"; chmod 755 "$c"; mount --bind "$c" "$f"'
NOTHING = "c=$(mktemp); echo '# nothing' > $c; chmod 644 $c; touch /etc/fuse.conf; mount --bind $c /etc/fuse.conf"
PROFILE = "c=$(mktemp); echo 'docker-default (enforce)' > $c; mount --bind $c /proc/$$/attr/current"
DROPPED = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--")
# In a user namespace of its own, so that the limit is that of this test alone.
NO_NAMESPACES = ("unshare", "--user", "--map-root-user", "sh", "-c",
                 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh")  # fmt: skip

CONDITIONS: dict[str, tuple[Sequence[str], int | None, dict[str, tuple[str, ...]]]] = {
    "the device is missing": (served.WITHOUT_FUSE, 1, {
        "/dev/fuse": ("error", "it is not there", "--device /dev/fuse --cap-add SYS_ADMIN", "fusebackend serve"),
        "mount(2)": (),
    }),
    "it is another file": (within("mount --bind /dev/null /dev/fuse"), 1, {
        "/dev/fuse": ("error", "it is not the FUSE device", "mknod -m 666 /dev/fuse c 10 229"),
    }),
    "it is on a mount without devices": (
        bound("-o nodev", 'mknod -m 666 "$d/fuse" c 10 229', '"$d/fuse" /dev/fuse'), 1,
        {"/dev/fuse": ("error", "it can't be opened", "--device /dev/fuse")},
    ),
    "it is closed to a user": ((*bound("", 'mknod -m 600 "$d/fuse" c 10 229', '"$d/fuse" /dev/fuse'), *NOBODY), 1, {
        "/dev/fuse": ("error", "it is not open to this user", "chmod a+rw /dev/fuse"),
        "runtime directory": ("ok", "/fusebackend-65534"),
        "data directory": ("error", "can't be written by this user", "set XDG_DATA_HOME"),
    }),
    "root has no capability": (DROPPED, 1, {
        "mount(2)": ("error", "the kernel refuses: Operation not permitted", "--cap-add SYS_ADMIN"),
    }),
    "programs are missing": (within(MISSING), None, {
        "fusermount3": ("warning", "it is not installed: root mounts without it", "fuse3"),
        "ripgrep": ("warning", "it is not installed", "ripgrep"),
        "git": ("warning", "lines can't be merged", "git"),
        "bubblewrap": ("warning", "commands (exec) are refused", "bubblewrap"),
    }),
    "a user has no fusermount": ((*within("mount --bind /dev/null $(command -v fusermount3)"), *NOBODY), None, {
        "fusermount3": ("error", "only root mounts without it", "fuse3"),
    }),
    "fusermount has lost its bit": ((*within(COPIED), *NOBODY), None, {
        "fusermount3": ("error", "is not setuid root", "chmod 4755"),
    }),
    "no new privileges": ((*NOBODY, "--no-new-privs"), None, {
        "fusermount3": ("error", "no_new_privs", "no-new-privileges"),
    }),
    "others are not allowed": ((*within(NOTHING), *NOBODY), None, {
        "allow_other": ("warning", "no line 'user_allow_other'", "echo user_allow_other >> /etc/fuse.conf"),
    }),
    "users have no namespaces": ((*bound("", KERNEL, '"$d" /proc/sys/kernel'), *NOBODY), None, {
        "user namespaces": (
            "warning", "one has no rights here: no sandbox for commands",
            "kernel.unprivileged_userns_clone=1; sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, as root",
        ),
    }),
    "nobody has any": (NO_NAMESPACES, None, {
        "user namespaces": ("warning", "none can be made: No space left on device", "max_user_namespaces"),
    }),
    "a sandbox can't be made": (instead_of("bwrap", "echo no sandbox today >&2; exit 1"), None, {
        "bubblewrap": ("warning", "no sandbox today", 'sandbox = "none"'),
    }),
    "a sandbox can have no network of its own": (
        instead_of(
            "bwrap",
            'for word; do [ "$word" != --unshare-net ] || { echo no loopback >&2; exit 1; }; done; exec OWN "$@"',
        ),
        None, {"bubblewrap": ("warning", "no loopback", "--cap-add NET_ADMIN; or network = true in [execute]")},
    ),
    "a filter of system calls": ((sys.executable, "-c", FILTER), None, {
        "seccomp": ("warning", "a filter confines this process", "--cap-add SYS_ADMIN"),
    }),
    "a profile of AppArmor": (within(PROFILE, "its profile"), None, {
        "AppArmor": ("warning", "profile 'docker-default' confines", "apparmor=unconfined"),
    }),
    "control groups": (within("umount -R -l /sys/fs/cgroup"), None, {
        "control groups": ("warning", "none for memory and pids", "Delegate=yes"),
    }),
}  # fmt: skip


@needs_root
@for_each("name", CONDITIONS)
def test_a_condition(name: str) -> None:
    wrapper, status, findings = CONDITIONS[name]
    say(diagnosed(wrapper=wrapper, status=status), findings)


def test_the_text_for_people() -> None:
    done = subprocess.run(served.command("doctor"), env=mounts.module_environment(), capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert all(line.startswith(("ok ", "warning ", "error ", "         mend: ")) for line in lines)
    assert any(line.startswith("ok       runtime directory: ") for line in lines)


@needs_root
class TestMounting:
    def test_pyfuse3_without_its_library(self, tmp_path: Path) -> None:
        (tmp_path / "pyfuse3").mkdir()
        message = "libfuse3.so.3: cannot open shared object file: No such file or directory"
        (tmp_path / "pyfuse3/__init__.py").write_text(f"raise ImportError({message!r})\n")
        env = {"PYTHONPATH": f"{tmp_path}:{mounts.module_environment()['PYTHONPATH']}"}
        found = diagnosed(env=env, status=1)
        says(found["libfuse3"], "error", message, "libfuse3" if distribution.distribution() == "debian" else "fuse3")


@needs_root
class TestNamespaces:
    def test_propagation(self, tmp_path: Path) -> None:
        private = diagnosed(str(tmp_path / "mnt"), wrapper=within("mount --make-rprivate /"))
        says(private["propagation"], "warning", "is not shared", "mount --make-rshared")
        shared = diagnosed(str(tmp_path / "mnt"), wrapper=within("mount --make-rshared /"))
        says(shared["propagation"], "ok", "is shared")

    def test_a_root_directory_that_is_no_mount(self, tmp_path: Path) -> None:
        script = (
            f'd="{tmp_path}"; for x in /*; do if [ -L "$x" ] || [ -f "$x" ]; then cp -a "$x" "$d"; '
            'else mkdir "$d$x"; mount --rbind "$x" "$d$x"; fi; done; set -- chroot "$d" "$@"'
        )
        found = diagnosed(wrapper=within(script, "a chroot"))
        says(found["propagation"], "warning", "no mount that this process sees holds '/'", "bind the root directory")
        says(found["mount(2)"], "ok", "a FUSE file system can be mounted")
        assert "fusebackend-doctor" not in Path("/proc/self/mounts").read_text()


class TestPlaces:
    @needs_root
    def test_a_read_only_and_a_full_directory(self, tmp_path: Path) -> None:
        script = f"""mount -t tmpfs -o ro none {tmp_path}/XDG_DATA_HOME
        mount -t tmpfs -o size=1m none {tmp_path}/XDG_STATE_HOME"""
        found = diagnosed(wrapper=within(script), status=1)
        says(found["data directory"], "error", "mounted read-only", "set XDG_DATA_HOME to another place")
        says(found["state directory"], "error", "1 MiB are free", "set XDG_STATE_HOME to another place")

    @needs_root
    def test_little_room(self, tmp_path: Path) -> None:
        found = diagnosed(wrapper=within(f"mount -t tmpfs -o size=100m none {tmp_path}/XDG_STATE_HOME"))
        says(found["state directory"], "warning", "100 MiB are free", "set XDG_STATE_HOME")

    def test_no_place_for_sockets_and_another_locale(self, tmp_path: Path) -> None:
        taken = tmp_path / "tmp"
        taken.mkdir()
        (taken / f"fusebackend-{os.geteuid()}").write_text("a file")
        env = {
            "XDG_RUNTIME_DIR": "/nowhere",
            "TMPDIR": str(taken),
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
        }
        found = diagnosed(env=env, status=1)
        says(found["runtime directory"], "error", "no place for sockets", "set XDG_RUNTIME_DIR")
        says(found["locale"], "warning", "not as UTF-8", "LC_ALL=C.UTF-8")

    def test_a_file_in_the_place_of_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        found = diagnosed(env={"XDG_DATA_HOME": str(tmp_path / "file")}, status=1)
        says(found["data directory"], "error", "is no directory")


class TestRoutes:
    def of(self, tmp_path: Path, routes: dict[str, str], **options: Any) -> Findings:
        config = tmp_path / "agent.toml"
        lines = [f"{json.dumps(prefix)} = {json.dumps(url)}" for prefix, url in routes.items()]
        config.write_text("default = 'memory:'\n[routes]\n" + "\n".join(lines) + "\n")
        found = diagnosed("--config", str(config), **options)
        return {what.split(" ")[1]: each for what, each in found.items() if what.startswith("route ")}

    def test_files_and_directories(self, tmp_path: Path) -> None:
        (tmp_path / "text.db").write_text("not a database at all")
        (tmp_path / "dir").mkdir()
        with (tmp_path / "used.db").open("wb") as used:
            fcntl.flock(used, fcntl.LOCK_EX)
            found = self.of(
                tmp_path,
                {
                    "/new": "sqlite:new.db",
                    "/nowhere": "sqlite:nowhere/x.db",
                    "/text": "sqlite:text.db",
                    "/used": "sqlite:used.db",
                    "/threads": "threads+sqlite:none.db",
                    "/dir": "dir:dir",
                    "/none": "dir:none",
                    "/file": "dir:text.db",
                    "/code": "python:some.module:make",
                },
                status=1,
            )
        say(found, {
            "/new/": ("ok", "the file will be made"),
            "/nowhere/": ("error", "there is no directory", f"mkdir -p {tmp_path}/nowhere"),
            "/text/": ("error", "is no SQLite file", "another path"),
            "/used/": ("warning", "in use by another fusebackend", "unmount"),
            "/threads/": ("error", "there is no file", "SqliteSaver"),
            "/dir/": ("ok", "can be read and written"),
            "/none/": ("error", "there is no directory", f"mkdir -p {tmp_path}/none"),
            "/file/": ("error", "is not a directory"),
            "/code/": ("ok", "code of its own"),
            "/": ("ok", "needs nothing"),
        })  # fmt: skip
        assert not (tmp_path / "new.db").exists()

    @needs_root
    def test_what_another_user_may_not_have(self, tmp_path: Path) -> None:
        for name, mode in (("closed", 0o700), ("readable", 0o755)):
            (tmp_path / name).mkdir(mode=mode)
        (tmp_path / "closed.db").write_bytes(b"SQLite format 3\0")
        (tmp_path / "closed.db").chmod(0o600)
        above = tmp_path
        while above != Path("/"):
            if not above.stat().st_mode & 0o001:
                above.chmod(above.stat().st_mode | 0o011)
            above = above.parent
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        shutil.move(tmp_path / "closed.db", tmp_path / "open/closed.db")
        routes = {"/closed": "dir:closed", "/readable": "dir:readable", "/db": "sqlite:open/closed.db"}
        found = self.of(tmp_path, routes, wrapper=NOBODY, status=1)
        say(found, {
            "/closed/": ("error", "can't be read by this user", "chmod u+rx"),
            "/readable/": ("warning", "the route is read-only", "chmod u+w"),
            "/db/": ("error", "can't be written: Permission denied", "chmod u+rw"),
        })  # fmt: skip

    def test_services_that_do_not_answer(self, tmp_path: Path, closed_port: int) -> None:
        secret = "hunter2"
        found = self.of(
            tmp_path,
            {
                "/pg": f"postgres:host=127.0.0.1 port={closed_port} dbname=x user=u password={secret}?volume=v",
                "/threads": f"threads+postgres:postgresql://u:{secret}@127.0.0.1:{closed_port}/x",
                "/s3": f"s3://bucket?endpoint=http://127.0.0.1:{closed_port}&access_key_id=a&secret_access_key={secret}",
                "/docker": "docker:debian",
            },
            env={"DOCKER_HOST": f"unix://{tmp_path}/no.sock"},
            status=1,
        )
        assert secret not in json.dumps(found)
        say(found, {
            "/pg/": ("error", "Connection refused", "start it"),
            "/threads/": ("error", "Connection refused", "start it"),
            "/s3/": ("error", "the service does not answer", "whether the endpoint is reachable"),
            "/docker/": ("error", "There is no Docker engine", "DOCKER_HOST"),
        })  # fmt: skip

    def test_packages_that_are_missing(self, tmp_path: Path) -> None:
        for module in ("psycopg", "obstore", "docker"):
            (tmp_path / "without" / module).mkdir(parents=True)
        hiding = "import sys\nfor name in ('psycopg', 'obstore', 'docker'): sys.modules[name] = None\n"
        (tmp_path / "without/sitecustomize.py").write_text(hiding)
        routes = {"/pg": "postgres:dbname=x?volume=v", "/s3": "s3://bucket?region=x", "/docker": "docker:debian"}
        env = {"PYTHONPATH": f"{tmp_path}/without:{mounts.module_environment()['PYTHONPATH']}"}
        found = self.of(tmp_path, routes, env=env, status=1)
        for name, extra in (("/pg/", "postgres"), ("/s3/", "s3"), ("/docker/", "docker")):
            says(found[name], "error", extra, f"pip install 'fusebackend[{extra}]'")

    def test_a_configuration_without_a_sandbox(self, tmp_path: Path) -> None:
        (tmp_path / "agent.toml").write_text('default = "memory:"\n[execute]\nsandbox = "none"\n')
        says(diagnosed("--config", str(tmp_path / "agent.toml"))["bubblewrap"], "ok", "not needed")


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:  # bound, and not listening: nobody else gets it
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_services_that_answer(tmp_path: Path, postgres_dsn: str) -> None:
    found = TestRoutes().of(tmp_path, {"/pg": f"postgres:{postgres_dsn}?volume=never-made"})
    says(found["/pg/"], "ok", "answers")


class TestFindings:
    def test_a_check_that_fails_is_a_finding(self) -> None:
        def check(what: str) -> list[Finding]:
            raise RuntimeError("for postgresql://u:hunter2@h/x\nin two lines")

        (found,) = found_by("thing", check)
        assert (found.what, found.verdict) == ("thing", "error")
        assert "RuntimeError" in found.why and "hunter2" not in found.why and "\n" not in found.why

    def test_a_check_that_hangs_is_a_finding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import threading

        monkeypatch.setattr("fusebackend.doctor.PATIENCE_S", 0.05)
        gate = threading.Event()
        (found,) = found_by("thing", lambda what: [ok(what, str(gate.wait()))])
        gate.set()
        assert (found.verdict, found.what) == ("error", "thing") and "no answer" in found.why

    def test_the_worst(self) -> None:
        assert worst([]) == "ok"
        assert worst([ok("a", "b"), Finding("c", "warning", "d", "e")]) == "warning"
        assert worst([Finding("c", "error", "d", "e"), Finding("c", "warning", "d", "e")]) == "error"


class TestDistributions:
    @pytest.mark.parametrize(
        ("release", "command"),
        [
            ({"ID": "debian", "VERSION_ID": "13"}, "apt-get install fuse3"),
            ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "apt-get install fuse3"),
            ({"ID": "fedora"}, "dnf install fuse3"),
            ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install fuse3"),
            ({"ID": "alpine"}, "apk add fuse3"),
            ({"ID": "arch"}, "pacman -S fuse3"),
            ({"ID": "other"}, "apt-get install fuse3 (debian), dnf install fuse3 (fedora)"),
        ],
    )
    def test_each_installs_in_its_way(
        self, release: dict[str, str], command: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
        assert command in distribution.install("fusermount3")

    @pytest.mark.parametrize("family", distribution.EVERYTHING)
    def test_one_line_installs_everything(self, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": family})
        line = distribution.install_everything()
        assert "fuse3" in line and line in (ROOT / "docs/install.md").read_text()
        assert family == "debian" or line in (ROOT / "scripts/bootstrap").read_text()

    def test_elsewhere_it_has_the_lines_of_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.freedesktop_os_release", raising(FileNotFoundError()))
        said = distribution.install_everything()
        assert all(packages in said for packages in distribution.EVERYTHING.values())


@needs_root
def test_mount_says_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    line = served.command("mount", str(tmp_path / "mnt"), wrapper=served.WITHOUT_FUSE)
    done = subprocess.run(line, env=mounts.module_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "there is no /dev/fuse" in done.stderr and "'fusebackend doctor'" in done.stderr
