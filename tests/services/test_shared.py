"""The shared servers of a run: started once, the same for all workers, removed with the last; and a slow disk."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from services import postgres as service
from services import seaweedfs, shared, slow_fsync

# No promise: a run whose workers have no server fails by itself.
pytestmark = [pytest.mark.services, pytest.mark.night]

ANOTHER_WORKER = """
import sys
from pathlib import Path
from services import shared
with shared.postgres(Path(sys.argv[1])) as server:
    print(server.directory, flush=True)
    sys.stdin.read()
"""


def directory_of(run: Path, holders: ExitStack) -> Path:
    return holders.enter_context(shared.postgres(run)).directory


def test_workers_who_come_at_once_get_the_same_server_and_the_last_one_ends_it(tmp_path: Path) -> None:
    with ExitStack() as first, ExitStack() as second, ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda holders: directory_of(tmp_path, holders), (first, second)))
        assert found[0] == found[1]
        first.close()
        with shared.postgres(tmp_path) as server, server.database() as dsn, psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            assert server.directory == found[0]
        assert found[0].exists()
        second.close()
        assert not found[0].exists()
        with shared.postgres(tmp_path) as server:
            assert server.directory != found[0]


def test_a_worker_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ANOTHER_WORKER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    ) as other:
        assert other.stdout is not None
        directory = Path(other.stdout.readline().strip())
        with shared.postgres(tmp_path) as server:
            assert server.directory == directory
            other.kill()
            other.wait()
            with server.database():
                pass
    assert not directory.exists()


def test_why_there_is_none_reaches_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for a skip reaches the test. The keeper is a thread here, so that the patches apply to it."""
    keepers: list[threading.Thread] = []

    def start(name: str, run: Path, listener: socket.socket) -> None:
        keepers.append(threading.Thread(target=shared.keep, args=(name, listener.dup())))
        keepers[0].start()

    monkeypatch.setattr(shared, "_start", start)
    monkeypatch.setattr(seaweedfs, "missing", lambda: "SeaweedFS is not installed")
    with pytest.raises(pytest.skip.Exception, match="SeaweedFS is not installed"), shared.seaweedfs(tmp_path):
        pass
    keepers[0].join(60)
    assert not keepers[0].is_alive()


def test_every_commit_waits_for_a_slow_fsync():
    import psycopg

    if (reason := slow_fsync.missing()) is not None:
        pytest.skip(reason)
    slow_fsync_s, commits = 0.02, 10
    with (
        service.running(durable=True, slow_fsync_s=slow_fsync_s) as server,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE written (one integer)")
        began = time.monotonic()
        for _ in range(commits):
            connection.execute("INSERT INTO written VALUES (1)")
        assert time.monotonic() - began >= commits * slow_fsync_s
