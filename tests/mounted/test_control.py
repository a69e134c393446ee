"""The control socket of a real mount: its discovery, its permissions, `invalidate`, killed clients, and the
examples of `docs/control-protocol.md`, by `socat` and `jq`: other languages need no code of ours."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mounts
import pytest
from controlled import Raw
from mounts import ROOT, Mounted, Serve
from profiles import amount

import fusebackend
from fusebackend.control import limits, rendezvous, wire
from fusebackend.control.client import client_connection as connection_module
from fusebackend.control.verbs import MAX_CONTENT_BYTES, MAX_INPUT_BYTES, PIECE_MATCHES
from fusebackend.linux.mount_table import MountError
from fusebackend.testing.each import each


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    tmp = tmp_path_factory.mktemp("control")
    routes = {"/memories": "memory:", "/notes": "memory:"}
    with mounts.mounted(tmp / "mnt", f"sqlite:{tmp}/files.db", routes=routes) as mounted:
        yield mounted


@pytest.fixture
def client(mounted):
    with fusebackend.connect(mounted.path) as client:
        yield client


class TestFinding:
    def test_from_any_path_below(self, mounted, client):
        client.write("/memories/deep/file", "text")
        os.symlink("memories", mounted.path / "link")
        for path in ("", "memories", "memories/deep/file", "not/there/yet", "link/deep", "memories/deep/file/"):
            found = fusebackend.connect(mounted.path / path)
            assert found.mountpoint == str(mounted.path)
            found.close()
        assert rendezvous.split(mounted.path / "memories/deep") == (str(mounted.path), "/memories/deep")
        assert rendezvous.split(mounted.path / "link") == (str(mounted.path), "/link")
        assert rendezvous.split(mounted.path / "link/deep") == (str(mounted.path), "/memories/deep")
        assert rendezvous.split(mounted.path) == (str(mounted.path), "/")

    def test_a_relative_path(self, mounted, client, monkeypatch):
        client.write("/memories/file", "text")
        monkeypatch.chdir(mounted.path / "memories")
        assert rendezvous.split("file") == (str(mounted.path), "/memories/file")

    def test_the_attribute_is_answered_and_not_listed(self, mounted, client):
        client.write("/file", "")
        address = os.getxattr(mounted.path / "file", rendezvous.SOCKET_XATTR).decode()
        assert os.path.exists(address)
        assert not address.startswith(str(mounted.path))
        assert os.listxattr(mounted.path / "file") == []
        copy = mounted.path / "copy"
        subprocess.run(["cp", "-a", mounted.path / "file", copy], check=True)
        assert os.listxattr(copy) == []


# --------------------------------------------------------------------------------------------------------------
# How clients find the server of a mount
# --------------------------------------------------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can bind a mount")


@contextlib.contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    target.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", target], check=True)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    tmp = tmp_path_factory.mktemp("two")
    with mounts.mounted(tmp / "cover/sub", "memory:") as one, mounts.mounted(tmp / "other", "memory:") as other:
        yield one.path, other.path


class TestConfusion:
    """A call for one mount never reaches another one."""

    @needs_root
    def test_a_mount_point_inside_of_another_mount(self, serve, two):
        outer = two[0]
        inner = serve("memory:", at=f"{outer}/inner")
        with fusebackend.connect(inner.path) as client:
            assert client.write("/x", "inner").error is None
            inner.stop()
            assert "lies in no mount" in client.write("/y", "inner").error
        assert not (outer / "y").exists()
        with fusebackend.connect(outer / "inner") as client:
            assert client.mountpoint == str(outer)

    @needs_root
    def test_a_mount_that_another_one_covers(self, two):
        below, other = two
        cover = below.parent
        (other / "sub").mkdir()
        with fusebackend.connect(below) as client:
            assert client.write("/x", "below").error is None
            client.close()
            with bound(other, cover):
                assert rendezvous.split(cover / "sub/x") == (str(cover), "/sub/x")
                assert "lies in no mount" in client.write("/y", "below").error
            assert client.write("/z", "below").error is None
        assert not (other / "y").exists()
        assert {"x", "z"} <= {*os.listdir(below)} and not (below / "y").exists()

    @needs_root
    def test_two_mounts_on_one_mount_point(self, two):
        below, above = two
        with bound(above, below), fusebackend.connect(below) as client:
            assert client.write("/twice", "above").error is None
        with fusebackend.connect(below) as client:
            assert client.read("/twice").error
        assert (above / "twice").read_text() == "above"

    @needs_root
    def test_a_part_that_is_bound_elsewhere_and_one_that_something_else_covers(self, two, tmp_path):
        part = two[0] / "part"
        part.mkdir()
        (part / "file").write_text("text")
        with bound(part, tmp_path / "bound"):
            assert rendezvous.split(tmp_path / "bound/file") == (str(tmp_path / "bound"), "/part/file")
            with fusebackend.connect(tmp_path / "bound/file") as client:
                assert client.read("/part/file").file_data["content"] == "text"
        with bound(tmp_path, part), pytest.raises(MountError, match="lies in no mount"):
            rendezvous.split(part / "file")

    def test_symbolic_links_lead_to_the_mount_they_point_to(self, two, tmp_path):
        one, other = two
        (tmp_path / "outside").symlink_to(one)
        (one / "across").symlink_to(other)
        (one / "nowhere").symlink_to("/none/at/all")
        found = {}
        for path in (tmp_path / "outside", one / "across", one / "across/file", one / "nowhere"):
            with fusebackend.connect(path) as client:
                found[path.name] = client.mountpoint
        assert found == {"outside": str(one), "across": str(other), "file": str(other), "nowhere": str(one)}
        alike = other.with_name("other2")
        alike.mkdir()
        with pytest.raises(MountError, match="lies in no mount"):
            fusebackend.connect(alike)


class TestServers:
    def test_a_server_that_is_stopped(self, mounted, monkeypatch):
        monkeypatch.setattr(rendezvous, "ANSWER_TIMEOUT_S", 0.3)
        monkeypatch.setattr(connection_module, "SILENCE_S", 0.1)
        monkeypatch.setattr(connection_module, "ANSWER_TIMEOUT_S", 0.3)
        with fusebackend.connect(mounted.path) as client:
            mounted.process.send_signal(signal.SIGSTOP)
            try:
                start = time.monotonic()
                with pytest.raises(MountError, match="hangs, or is stopped"):
                    fusebackend.connect(mounted.path)
                assert "hangs, or is stopped" in client.read("/x").error
                assert "hangs, or is stopped" in client.write("/x", "text").error
                assert time.monotonic() - start < 60
            finally:
                mounted.process.send_signal(signal.SIGCONT)
            assert client.ls("/").error is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    @pytest.mark.parametrize("options", [[], ["allow_other"]])
    def test_another_user_is_told_so(self, serve, options):
        with tempfile.TemporaryDirectory(prefix="fusebackend-") as place:
            os.chmod(place, 0o755)
            mounted = serve("memory:", at=f"{place}/mnt", options=options)
            program = f"import fusebackend\ntry: fusebackend.connect('{place}/mnt')\nexcept OSError as e: print(e)"
            become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", program]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(become, capture_output=True, text=True, env=environment, timeout=30)
            mounted.stop()
        assert "is another user's" in done.stdout, done.stderr

    def test_a_child_has_connections_of_its_own(self, mounted):
        with fusebackend.connect(mounted.path) as client:
            client.write("/owned", "parent")
            (kept,) = client._pool._idle
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    client.edit("/owned", "parent", "child")
                    client.close()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert client.read("/owned").file_data["content"] == "child"
            assert client._pool._idle == [kept], "the child has closed the parent's connection"


# --------------------------------------------------------------------------------------------------------------
# `invalidate`: after it, the mount shows changes by others at once, however long the kernel's timeouts are
# --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the directory that is mounted, for changes behind the mount, and those of two routes."""
    directory = tmp_path_factory.mktemp("outside") / "default"
    for path in (directory / "way", directory.with_name("one"), directory.with_name("two")):
        path.mkdir(parents=True)
    return directory


@pytest.fixture(scope="module")
def mount(outside: Path) -> Iterator[Mounted]:
    """Mount it, with timeouts of an hour."""
    routes = {f"/{name}": f"dir:{outside.with_name(name)}" for name in ("one", "two")} | {"/way/to": "memory:"}
    with mounts.mounted(outside.with_name("mnt"), f"dir:{outside}", routes=routes, options=["ttl=1h"]) as mount:
        yield mount


@pytest.fixture
def cached(mount: Mounted) -> Iterator[fusebackend.Client]:
    with fusebackend.connect(mount.path) as cached:
        yield cached


ABSENT = {"absent", "d/absent", "d/e/absent", "again", "moved", "t"}


def names_in(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


def at(path: Path) -> str:
    """Describe the file at a path."""
    try:
        if path.is_symlink():
            return f"link to {os.readlink(path)}"
        return f"{path.stat().st_size} bytes: {path.read_text()}" if not path.is_dir() else "directory"
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"


def _links(outside: Path) -> None:
    os.link(outside / "d/file", outside / "again")


def _unlinks_one(outside: Path) -> None:
    (outside / "d/file").unlink()
    (outside / "d/file").write_text("another")


def _retargets(outside: Path) -> None:
    (outside / "link").unlink()
    (outside / "link").symlink_to("d/e/deep")


CHANGES: list[Callable[[Path], object]] = [
    lambda outside: (outside / "d/file").write_text("changed"),
    lambda outside: (outside / "d/file").unlink(),
    lambda outside: os.replace(outside / "d/other", outside / "d/file"),
    lambda outside: (outside / "d").rename(outside / "moved"),
    lambda outside: shutil.rmtree(outside / "d"),
    lambda outside: (shutil.rmtree(outside / "d"), (outside / "d").write_text("a file now")),
    lambda outside: (shutil.rmtree(outside / "d/e"), (outside / "d/e").mkdir()),
    lambda outside: ((outside / "d/e").rename(outside / "t"), (outside / "d").rename(outside / "t/d")),
    _retargets,
    _links,
    _unlinks_one,
    lambda outside: (outside / "absent").write_text("here now"),
    lambda outside: (outside / "d/absent").mkdir(),
    lambda outside: shutil.copytree(outside / "d", outside / "absent"),
]


def test_what_others_have_changed(mount, cached, outside):
    for number, case in enumerate(each(itertools.product(enumerate(CHANGES), (False, True)))):
        with case as ((_, change), linked):
            disk = outside / str(number)
            (disk / "d/e").mkdir(parents=True)
            cached.invalidate("/")
            here = mount.path / str(number)
            for name in ("d/file", "d/other", "d/e/deep"):
                (disk / name).write_text(name)
            (disk / "link").symlink_to("d/file")
            if linked:
                (disk / "z").mkdir()
                os.link(disk / "d/file", disk / "z/twin")
            before = names_in(disk)
            assert names_in(here) == before
            for name in before | ABSENT:
                assert at(here / name) == at(disk / name)
            change(disk)
            cached.invalidate("/")
            for name in before | ABSENT | names_in(disk):  # by name, before anything is listed
                assert at(here / name) == at(disk / name), name
            assert names_in(here) == names_in(disk)


def test_whoever_works_in_a_directory_stays_there(mount, cached, outside, monkeypatch):
    assert not (mount.path / "absent before").exists()
    for name in ("new", "absent before"):
        (mount.path / name).mkdir()
        with monkeypatch.context() as patch:
            patch.chdir(mount.path / name)
            cached.invalidate("/")
            assert os.getcwd() == str(mount.path / name)
            Path("file").write_text("text")
        assert (outside / name / "file").read_text() == "text"


@needs_root
def test_what_is_mounted_in_a_directory_stays_there(serve, mount, cached, outside):
    (outside / "inner").mkdir()
    inner = serve("memory:", at=str(mount.path / "inner"))
    (inner.path / "file").write_text("inner")
    cached.invalidate("/")
    assert (inner.path / "file").read_text() == "inner"
    inner.stop()


def test_a_file_that_is_open_goes_on(mount, cached, outside):
    (outside / "file").write_text("old")
    (outside / "next").write_text("new")
    cached.invalidate("/")
    with (mount.path / "file").open() as file:
        os.replace(outside / "next", outside / "file")
        cached.invalidate("/")
        assert (mount.path / "file").read_text() == "new"
        assert file.read() == "old"


def test_only_the_route_that_is_meant(mount, cached, outside):
    for name in ("one", "two"):
        assert not (mount.path / name / "x").exists()
        (outside.with_name(name) / "x").write_text(name)
    cached.invalidate("/two/any/where")
    assert not (mount.path / "one/x").exists()
    assert (mount.path / "two/x").read_text() == "two"
    cached.invalidate("/")
    assert (mount.path / "one/x").read_text() == "one"


def test_a_directory_on_the_way_to_a_route(mount, cached, outside):
    assert not (mount.path / "way/x").exists()
    (outside / "way/x").write_text("text")
    cached.invalidate("/way")
    assert (mount.path / "way/x").read_text() == "text"


# --------------------------------------------------------------------------------------------------------------
# The examples of docs/control-protocol.md
# --------------------------------------------------------------------------------------------------------------

DOCUMENT = (Path(__file__).parents[2] / "docs/control-protocol.md").read_text()
PROGRAM_LIMIT_S = 30


@pytest.fixture
def shell(mounted):
    """Return a function that runs a script with `$mount` and `$socket`, found as in the document."""
    for tool in ("socat", "jq", "getfattr"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing")
    finding = next(line for line in DOCUMENT.splitlines() if line.startswith("socket=$("))

    def run(script: str) -> str:
        found = finding.replace("/mnt/agent", str(mounted.path))
        whole = f"set -euo pipefail\nmount='{mounted.path}'\n{found}\n{script}"
        done = subprocess.run(["bash", "-c", whole], capture_output=True, text=True, timeout=PROGRAM_LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_example(shell, mounted):
    (mounted.path / "notes/plan.md").write_text("monday\n")
    (example,) = re.findall(r"```sh\n(echo .*?)```", DOCUMENT, re.DOTALL)
    assert shell(example) == "monday\n\n"


def test_several_calls_a_stream_and_an_error(shell):
    output = shell(r"""
        jq -cn '{jsonrpc:"2.0", id:1, method:"write", params:{file_path:"/notes/a", content:"needle\nstraw\n"}},
                {jsonrpc:"2.0", id:2, method:"grep", params:{pattern:"needle", stream:true}},
                {jsonrpc:"2.0", id:3, method:"fly"}' \
          | socat -t 60 - "UNIX-CONNECT:$socket" | jq -c '[.id, .method, .error.code, .params.matches[0].path]'
        cat "$mount/notes/a"
    """)
    lines = output.splitlines()
    assert json.loads(lines[0]) == [1, None, None, None]
    rest = [json.loads(line) for line in lines[1:4]]
    assert sorted(rest, key=str) == sorted(
        [[None, "grep.matches", None, "/notes/a"], [2, None, None, None], [3, None, -32601, None]], key=str
    )
    assert rest.index([None, "grep.matches", None, "/notes/a"]) < rest.index([2, None, None, None])
    assert lines[4:] == ["needle", "straw"]


def test_a_subscription(shell):
    output = shell(r"""
        touch "$mount/said"
        ( echo '{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"path":"/notes"}}'
          until grep -q /notes/n "$mount/said"; do echo hi > "$mount/notes/n"; sleep 0.05; done
        ) | socat -t 1 - "UNIX-CONNECT:$socket" > "$mount/said"
        jq -rn 'first(inputs | select(.method == "change")) | .params.event.path' "$mount/said"
    """)
    assert output == "/notes/n\n"


def test_every_error_code_and_limit_is_documented():
    codes = {value for value in vars(wire).values() if isinstance(value, int) and value < -32000}
    assert {int(code) for code in re.findall(r"^\| (-32\d+) \|", DOCUMENT, re.MULTILINE)} == codes
    for case in each([
        f"{wire.MAX_MESSAGE_BYTES >> 20} MiB",
        f"{MAX_CONTENT_BYTES >> 20} MiB",
        f"| {limits.MAX_CONNECTIONS} connections |",
        f"{limits.NEWCOMERS} more",
        f"| {limits.MAX_CALLS} long calls and {limits.MAX_CALLS} subscriptions",
        f"{limits.MAX_SHARED_CALLS} long calls and {limits.MAX_SHARED_SUBSCRIPTIONS} subscriptions",
        f"{limits.MAX_ANSWER_BYTES >> 20} MiB for an answer",
        f"{limits.MAX_ITEMS:,} files",
        f"{MAX_INPUT_BYTES >> 20} MiB that a command",
        f"{limits.MAX_BYTES >> 20} MiB that all calls hold",
        f"{limits.MAX_ARRIVING} messages of more than {limits.FREE_BYTES >> 10} KiB",
        f"up to {PIECE_MATCHES} at a time",
    ]):  # fmt: skip
        with case as said:
            assert said in DOCUMENT


# --------------------------------------------------------------------------------------------------------------
# Processes that are killed in the middle of their requests: the server must not block on those requests
# --------------------------------------------------------------------------------------------------------------

ANSWER_LIMIT_S = 20.0
ROUNDS = amount("FUSEBACKEND_KILLED_CLIENTS", day=50, night=150)

BUSY = """
import os, sys, threading
def work(number):
    while True:
        path = f"{sys.argv[1]}/file-{os.getpid()}-{number}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.unlink(path)
for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_reading_requests_never_blocks(mounted: Mounted) -> None:
    os.listdir(mounted.path)
    for descriptor in Path(f"/proc/{mounted.pid}/fd").iterdir():
        if os.readlink(descriptor) == "/dev/fuse":
            text = Path(f"/proc/{mounted.pid}/fdinfo/{descriptor.name}").read_text()
            flags = re.search(r"^flags:\s*(\d+)$", text, re.MULTILINE)
            assert flags and int(flags[1], 8) & os.O_NONBLOCK
            return
    raise AssertionError("the server has no /dev/fuse open")


def test_the_server_goes_on_when_its_clients_are_killed(serve: Serve) -> None:
    mounted = serve("memory:")
    for _ in range(ROUNDS):
        busy = subprocess.Popen([sys.executable, "-S", "-c", BUSY, mounted.path], stdout=subprocess.PIPE)
        assert busy.stdout is not None
        assert busy.stdout.readline() == b"ready\n"
        busy.kill()
        busy.wait()
        busy.stdout.close()
    # No request arrives now; a thread that needs Python's lock must get it all the same.
    address = os.getxattr(mounted.path, "user.fusebackend.socket").decode()
    start = time.monotonic()
    with Raw(address) as raw:
        assert raw.ask("ping", payload=1)["result"] == 1
    assert time.monotonic() - start < ANSWER_LIMIT_S
