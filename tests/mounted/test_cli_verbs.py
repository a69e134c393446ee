"""The command line's verbs on real mounts: paths as the kernel knows them, signals, pipes and terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import mounts
import programs
import pytest
from eventually import eventually
from mounts import Serve
from programs import Beside, on_a_terminal, processes_with, refused

from fusebackend.testing.each import each

LIMIT_S = 30.0
INTERRUPTED, QUIET_END = 130, 128 + signal.SIGPIPE

Word = str | bytes | Path


def run(*words: Word, cwd: Path | None = None, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    done = programs.command(*map(os.fsdecode, words), cwd=cwd, stdin=os.fsdecode(stdin))
    return subprocess.CompletedProcess(done.args, done.returncode, os.fsencode(done.stdout), os.fsencode(done.stderr))


def ok(*words: Word, cwd: Path | None = None, stdin: bytes = b"") -> bytes:
    done = run(*words, cwd=cwd, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    tmp = tmp_path_factory.mktemp("verbs")
    with mounts.mounted(tmp / "mnt", f"sqlite:{tmp}/files.db", routes={"/memories": "memory:"}) as server:
        yield server.path


@pytest.fixture
def mnt(shared: Path) -> Iterator[Path]:
    yield shared
    mounts.empty(shared, "memories")


# --------------------------------------------------------------------------------------------------------------
# Both faces
# --------------------------------------------------------------------------------------------------------------


def test_long_listings_as_ls_prints_them(mnt):
    (mnt / "a").write_bytes(b"1" * 1234)
    (mnt / "dir").mkdir()
    (mnt / "c").symlink_to("a")
    os.mkfifo(mnt / "fifo")
    options = {"env": {**os.environ, "LC_ALL": "C"}, "cwd": mnt, "capture_output": True, "check": True, "text": True}
    theirs = subprocess.run(["ls", "-lp", "--time-style=+%Y-%m-%d %H:%M"], **options).stdout
    rows = [line.split(maxsplit=1) for line in theirs.splitlines()[1:]]
    ours = [line.split(maxsplit=1) for line in ok("ls", "-l", mnt).decode().splitlines()]
    assert [(mode, rest.split()) for mode, rest in ours] == [(mode, rest.split()) for mode, rest in rows]


def test_on_a_terminal_nothing_steers_it_and_a_bar_shows_how_far_it_is(mnt, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    (mnt / os.fsdecode(b"\xff\n\x1b[31m")).write_bytes(b"needle \x1b[2J\n")
    for words in (("ls", mnt), ("ls", "-l", mnt), ("glob", "*", mnt), ("grep", "needle", mnt)):
        status, shown = on_a_terminal(*words)
        assert (status, "\\377\\n\\033[31m" in shown) == (0, True)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\udc80-\udcff]", shown)
    size, shown = 0, ""
    while "uploading" not in shown:  # a copy of less than half a second has no bar
        size += 100_000_000
        with (tmp_path / "large").open("ab") as file:
            file.truncate(size)
        status, shown = on_a_terminal("upload", "--force", tmp_path / "large", mnt / "large")
    assert status == 0 and f"/{size / 1e6:.1f} MB" in shown


# --------------------------------------------------------------------------------------------------------------
# Copying
# --------------------------------------------------------------------------------------------------------------


def test_a_tree_into_itself(mnt):
    (mnt / "a").write_text("x")
    (mnt / "memories/b").write_text("y")
    ok("upload", mnt, f"{mnt}/copy/")
    assert (mnt / f"copy/{mnt.name}/a").read_text() == "x"
    assert not (mnt / f"copy/{mnt.name}/copy").exists()


def test_from_mount_to_mount(serve, mnt):
    other = serve("memory:").path
    (mnt / "a").write_text("x")
    assert "lie in different mounts" in refused("mv", mnt / "a", other / "a")
    ok("download", mnt / "a", other / "a")
    assert (other / "a").read_text() == "x"
    assert os.listdir(other) == ["a"]


def test_a_download_that_is_interrupted_leaves_nothing(mnt, tmp_path):
    (mnt / "large").write_bytes(bytes(100_000_000))
    (tmp_path / "into").mkdir()
    with Beside("download", mnt / "large", tmp_path / "into") as download:
        eventually(lambda: os.listdir(tmp_path / "into"), LIMIT_S)
        assert download.end(signal.SIGINT) == (INTERRUPTED, "")
    assert os.listdir(tmp_path / "into") == []


# --------------------------------------------------------------------------------------------------------------
# Pipes
# --------------------------------------------------------------------------------------------------------------


PIPED = [
    ("read", "large"),
    ("grep", "needle", "large"),
    ("grep", "--json", "needle", "large"),
    ("ls", "many"),
    ("exec", "yes"),
    ("watch", "--json", "many"),
]


def test_whoever_reads_may_stop(mnt):
    (mnt / "large").write_text("needle\n" * 40_000)
    (mnt / "many").mkdir()
    for number in range(400):
        (mnt / "many" / f"{number:03}{'x' * 200}").touch()
    # Python writes an unbuffered line at once, and others when the command has ended or 8 KB are full.
    with pytest.MonkeyPatch.context() as patch:
        for case in each([*((words, "") for words in PIPED), (PIPED[1], "1")]):
            with case as (words, unbuffered):
                if unbuffered:
                    patch.setenv("PYTHONUNBUFFERED", unbuffered)
                with Beside(*words, cwd=mnt) as command:
                    assert command.output.read(1)
                    command.output.close()
                    if words[0] == "watch":
                        (mnt / "many/new").touch()
                    assert command.end() == (QUIET_END, "")


# --------------------------------------------------------------------------------------------------------------
# Commands
# --------------------------------------------------------------------------------------------------------------


class TestExec:
    def test_output_comes_when_it_is_printed(self, mnt):
        script = "echo first; while [ ! -e /go ]; do sleep 0.02; done; echo last"
        with Beside("exec", "--mount", mnt, "--", script) as command:
            assert command.line() == "first"
            ok("write", mnt / "go", "--text", "")
            assert command.line() == "last"
            assert command.end() == (0, "")

    @pytest.mark.parametrize("number, status", [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, -signal.SIGTERM)])
    def test_the_command_ends_with_us(self, mnt, number, status):
        seconds = f"6{number}.25"
        with Beside("exec", "--mount", mnt, "--", f"echo once; sleep {seconds}") as command:
            assert command.line() == "once"
            eventually(lambda: processes_with("sleep", seconds), LIMIT_S)
            assert command.end(number) == (status, "")
        eventually(lambda: not processes_with("sleep", seconds), LIMIT_S)


def test_a_watch_says_that_the_mount_has_ended(serve):
    mounted = serve("memory:")
    with Beside("watch", "--json", mounted.path) as watch:
        watch.line()
        (mounted.path / "file").touch()
        watch.line()  # from here on it only waits
        mounted.stop()
        status, said = watch.end()
    assert status == 1
    assert re.fullmatch(r"Error: the server of '.*' (has ended|tells of no more changes: the mount is ending)\n", said)


# --------------------------------------------------------------------------------------------------------------
# Broken mounts
# --------------------------------------------------------------------------------------------------------------


def verbs(path: Path) -> list[tuple[Word, ...]]:
    return [
        ("ls", path), ("stat", path), ("read", path), ("write", path, "--text", "x"), ("edit", path, "a", "b"),
        ("glob", "*", path), ("rm", path), ("mv", path, f"{path}2"), ("upload", __file__, path),
        ("download", path, f"{path.parent}.copy"), ("watch", path), ("exec", "--cwd", path, "true"),
    ]  # fmt: skip


def test_a_dead_mount_and_one_that_has_ended(serve: Serve):
    dead, ended = serve("memory:"), serve("memory:")
    dead.process.kill()
    dead.process.wait()
    for words in [*verbs(dead.path / "file"), ("ls", dead.path), ("exec", "--mount", dead.path, "true")]:
        assert "is gone; mount it again" in refused(*words), words
    assert "is gone; mount it again" in refused("grep", "x", dead.path, status=2)
    ended.stop()
    for words in verbs(ended.path / "file"):
        assert re.match(rf"'{ended.path}/file2?' lies in no mount of fusebackend", refused(*words)), words
