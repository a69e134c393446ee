"""The control socket of a real mount: its discovery, its permissions, and its behaviour under load."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from controlled import Raw
from profiles import amount

import fusebackend
from fusebackend.control import rendezvous
from fusebackend.linux.mount_table import MountError

LIMIT_S = 30.0
LOAD_S = amount("FUSEBACKEND_LOAD_S", day=4, night=60)
"""The length of the load test."""


@pytest.fixture
def mounted(serve, tmp_path: Path):
    return serve(f"sqlite:{tmp_path}/files.db", routes={"/memories": "memory:"})


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

    def test_outside_of_every_mount(self, tmp_path):
        with pytest.raises(MountError, match="lies in no mount"):
            fusebackend.connect(tmp_path)

    def test_the_socket_goes_with_the_mount(self, mounted):
        address = os.getxattr(mounted.path, rendezvous.SOCKET_XATTR).decode()
        mounted.stop()
        assert not os.path.exists(address)


class TestHolding:
    def test_connections_one_after_the_other_leave_nothing(self, mounted):
        address = os.getxattr(mounted.path, rendezvous.SOCKET_XATTR).decode()

        def held() -> tuple[int, int]:
            """Count threads and descriptors of the server."""
            return len(os.listdir(f"/proc/{mounted.pid}/task")), len(os.listdir(f"/proc/{mounted.pid}/fd"))

        def use(times: int) -> None:
            for number in range(times):
                with Raw(address) as raw:
                    if number % 3 == 0:
                        raw.ask("grep", pattern="x")
                    elif number % 3 == 1:
                        raw.ask("subscribe")
                    else:
                        raw.send(b'{"jsonrpc":"2.0","id":1,"method":"execute"')

        use(100)
        before = held()
        memory = mounted.memory_kib()
        use(2000)
        deadline = time.monotonic() + LIMIT_S
        few = 8  # background threads come and go: the index has one, and so do calls that wait for the disk
        while any(now > then + few for now, then in zip(held(), before, strict=True)):
            assert time.monotonic() < deadline, f"{held()} and not {before}"
            time.sleep(0.05)
        assert mounted.memory_kib() < memory + 8 * 1024

    def test_load(self, mounted, tmp_path):
        """Thirty-two clients work while git and rg work in the mount."""
        repository = tmp_path / "repository"
        _make_repository(repository)
        deadline = time.monotonic() + LOAD_S
        failures: list[str] = []
        calls = [0] * 32

        def work(number: int) -> None:
            try:
                with fusebackend.connect(mounted.path) as client:
                    while time.monotonic() < deadline and not failures:
                        calls[number] += _round(client, number, calls[number])
            except Exception as error:
                failures.append(f"client {number}: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        memory = []
        turn = 0
        while time.monotonic() < deadline and not failures:
            clone = mounted.path / f"clone-{turn}"
            subprocess.run(["git", "clone", "-q", repository, clone], check=True, timeout=120)
            subprocess.run(["git", "fsck", "--strict"], cwd=clone, check=True, timeout=120, capture_output=True)
            found = subprocess.run(["rg", "-c", "needle", clone], check=True, timeout=120, capture_output=True)
            assert found.stdout.count(b"\n") == 50
            shutil.rmtree(clone)
            memory.append(mounted.memory_kib())
            turn += 1
        for thread in threads:
            thread.join(120)
        assert not failures
        assert not any(thread.is_alive() for thread in threads)
        assert min(calls) > 0, f"somebody was never served: {calls}"
        assert memory[-1] < memory[0] + 100 * 1024, f"memory grows: {memory}"


def _round(client: fusebackend.Client, number: int, turn: int) -> int:
    """Make a few calls and check their answers; return the number of calls."""
    path = f"/memories/client-{number}.txt"
    content = f"turn {turn}\n" * 20
    _fine(client.upload_files([(path, content.encode())])[0].error)
    result = client.read(path)
    _fine(result.error)
    if result.file_data is None or result.file_data["content"] != content:
        raise AssertionError(f"a stale read of {path}")
    _fine(client.edit(path, f"turn {turn}\n", f"turned {turn}\n", True).error)
    matches = client.grep(f"turned {turn}", "/memories", f"client-{number}.txt").matches
    if len(matches or ()) != 20:
        raise AssertionError(f"grep found {matches}")
    _fine(client.ls("/memories").error)
    return 5


def _fine(error: str | None) -> None:
    if error is not None:
        raise AssertionError(error)


def _make_repository(path: Path) -> None:
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"]
    path.mkdir()
    for number in range(200):
        (path / f"file-{number}.txt").write_text(("needle\n" if number % 4 == 0 else "straw\n") * 30)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], cwd=path, check=True)
