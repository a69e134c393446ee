"""A service stalls, is killed and comes back while a mount works with it: synced files stay, and calls end at their
deadline. `test_many_mounts.py` does it to PostgreSQL."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from mounts import Mounted, Serve
from services import seaweedfs as seaweedfs_service
from services.seaweedfs import SeaweedFS
from services.stall import Stall

SLACK_S = 15.0
"""A call may end this much later than its deadline on a busy machine: it is several requests with a deadline each."""

LIMIT_S = 180.0

TROUBLE = {
    errno.ETIMEDOUT, errno.EIO, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ESTALE, errno.ENOTCONN,
    errno.ECONNABORTED,
}  # fmt: skip
"""The errnos of calls to a lost service. ESTALE comes from a retry: the answer to the first attempt was lost, but it
had changed the file."""

EXPECTED = "fusebackend|Traceback|OSError|TimeoutError|Error:|postgres|psycopg|PostgreSQL"
"""Lines that the server may log here; these tests check its behaviour."""


class Load:
    """Files written and synced in a directory by a few threads, from the start of a block to its end."""

    def __init__(self, directory: Path, threads: int = 3) -> None:
        self.directory = directory
        self.synced: dict[str, bytes] = {}
        self.errors: list[int | None] = []
        self.slowest_s = 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a call did not end"

    def _run(self, number: int) -> None:
        for round_ in range(10**6):
            if self._stop.is_set():
                return
            name, content = f"file-{number}-{round_}", f"{number} {round_}".encode() * 50
            start = time.monotonic()
            try:
                self._write(name, content)
                self.synced[name] = content
            except OSError as error:
                self.errors.append(error.errno)
                time.sleep(0.02)
            self.slowest_s = max(self.slowest_s, time.monotonic() - start)

    def _write(self, name: str, content: bytes) -> None:
        file = os.open(self.directory / name, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
        try:
            os.write(file, content)
            os.fsync(file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(file)
            raise
        os.close(file)

    def wait_for_more(self, files: int) -> None:
        enough = len(self.synced) + files
        eventually(lambda: len(self.synced) >= enough, LIMIT_S)


def check_synced(directory: Path, synced: dict[str, bytes]) -> None:
    names = set(os.listdir(directory))
    assert not set(synced) - names
    for name, content in synced.items():
        assert (directory / name).read_bytes() == content


def health(server: Mounted, prefix: str) -> dict[str, Any]:
    routes = json.loads(os.getxattr(server.path, "user.fusebackend.status"))["routes"]
    return next(route["health"] for route in routes if route["prefix"] == prefix)


@pytest.fixture(scope="module")
def objects() -> Iterator[SeaweedFS]:
    with seaweedfs_service.running() as server:
        yield server


@pytest.mark.services
def test_an_object_store_stalls_is_killed_and_comes_back(objects: SeaweedFS, serve: Serve) -> None:
    deadline_s = 3.0
    host, port = objects.service.endpoint.removeprefix("http://").split(":")
    with objects.service.bucket() as bucket, Stall((host, int(port))) as network:
        url = bucket.url(endpoint=f"http://{network.address[0]}:{network.address[1]}")
        server = serve("memory:", routes={"/s3": url}, options=[f"deadline={deadline_s}"])
        server.expected_log = EXPECTED
        with Load(server.path / "s3", threads=2) as load:
            load.wait_for_more(5)
            network.stall()
            eventually(lambda: health(server, "/s3/")["state"] == "down", LIMIT_S)
            network.resume()
            load.wait_for_more(5)
            objects.crash()
            time.sleep(0.5)
            objects.start()
            load.wait_for_more(5)
        assert load.slowest_s < 3 * deadline_s + SLACK_S  # a write is several requests
        assert set(load.errors) <= TROUBLE
        check_synced(server.path / "s3", load.synced)
        server.kill()
        again = serve("memory:", routes={"/s3": bucket.url()})
        check_synced(again.path / "s3", load.synced)
        again.stop()
