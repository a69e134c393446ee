"""What an `s3://` mount asks of its service: requests cost money, and each is a wait."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
from services.failing_proxy import FailingProxy, failing_bucket
from services.s3 import Bucket, Service

import fusebackend
from fusebackend.backends import S3Backend
from fusebackend.testing.each import each

OFF = {"attributes": "off"}
MANY = 400
"""Files of a directory: far more than the requests that any row may take."""
TEXT = b"needle\n" + b"x" * 1017


def _run(*words: str | Path) -> int:
    return len(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines())


def _verb(call: Callable[[Any, str], Any]) -> Callable[[Path, Any], Any]:
    """A row's `work` with the client of the mount, and the route's prefix."""

    def work(path: Path, client: Any) -> Any:
        answer = call(client, f"/{path.name}")
        assert answer.error is None, answer.error
        return len(getattr(answer, "entries", None) or getattr(answer, "matches", None) or ())

    return work


ROWS: dict[str, tuple[Callable[[Path, Any], Any], Any, int, dict[str, str]]] = {
    "ls": (lambda path, _: _run("ls", path / "many"), MANY, 3, {}),
    "find -name": (lambda path, _: _run("find", path / "many", "-name", "f*"), MANY, 3, {}),
    "ls -l": (lambda path, _: _run("ls", "-l", path / "hundred"), 101, 103, {}),
    "ls -l, no attributes": (lambda path, _: _run("ls", "-l", path / "many"), MANY + 1, 3, OFF),
    "grep -r, no attributes": (lambda path, _: _run("grep", "-rl", "needle", path / "hundred"), 100, 103, OFF),
    "one file, no attributes": (lambda path, _: len((path / "many/f200").read_bytes()), 1024, 3, OFF),
    "verb ls": (_verb(lambda client, at: client.ls(f"{at}/many")), MANY, 3, {}),
    "verb glob": (_verb(lambda client, at: client.glob("many/f*", at)), MANY, 3, {}),
    "verb grep": (_verb(lambda client, at: client.grep("needle", f"{at}/hundred")), 100, 103, {}),
    "verb read": (_verb(lambda client, at: client.read(f"{at}/many/f200")), 0, 2, {}),
    "verb write": (_verb(lambda client, at: client.write(f"{at}/hundred/new", "new")), 0, 2, {}),
    "verb edit": (_verb(lambda client, at: client.edit(f"{at}/many/f201", "needle", "pin")), 0, 3, {}),
    "find in a tree": (lambda path, _: _run("find", path / "tree", "-name", "f"), 20, 3 + 20 + 1, {}),
    "find in a tree, no attributes": (lambda path, _: _run("find", path / "tree", "-name", "f"), 20, 3 + 20, OFF),
    "verb glob in a tree": (_verb(lambda client, at: client.glob("tree/**/f", at)), 20, 3 + 20, {}),
    "mv of a directory of 9 files": (lambda path, _: os.rename(path / "9a", path / "a"), None, 13, {}),  # 1: its mode
    "mv of 9 files, no attributes": (lambda path, _: os.rename(path / "9b", path / "b"), None, 12, OFF),
    "verb move of 9 files": (_verb(lambda client, at: client.move(f"{at}/9c", f"{at}/c")), 0, 12, {}),
}
"""What is done on a cold route, the answer, the most requests that it may take, and parameters of the route."""


@pytest.fixture(scope="module")
def place(seaweedfs: Service) -> Iterator[tuple[FailingProxy, Bucket]]:
    with failing_bucket(seaweedfs) as (proxy, bucket):
        with S3Backend(bucket.name, **bucket.options()) as maker:
            files = [(f"/many/f{number:03}", TEXT) for number in range(MANY)]
            files += [(f"/hundred/f{number}", TEXT) for number in range(100)]
            assert not [answer.error for answer in maker.upload_files(files) if answer.error]
        nine = [f"9{which}/f{number}" for which in "abc" for number in range(9)]
        for key in [*(f"tree/d{number}/f" for number in range(20)), *nine]:
            bucket.put(key, TEXT)
        yield proxy, bucket


def test_requests_on_a_cold_route(place: tuple[FailingProxy, Bucket], tmp_path: Path) -> None:
    proxy, bucket = place
    routes = {f"/{number}": bucket.url(ttl="60", **row[3]) for number, row in enumerate(ROWS.values())}
    options = ["history=off"]  # which would look at what is changed, and keep it
    with (
        mounts.mounted(tmp_path / "mnt", "memory:", routes=routes, options=options) as server,
        fusebackend.connect(server.path) as client,
    ):
        for number, case in enumerate(each(ROWS)):
            with case as (work, expected, limit, _):
                assert not (server.path / str(number) / ".fusebackend").exists()  # asked of a default at its start
                proxy.requests.clear()
                assert work(server.path / str(number), client) == expected
                requests = Counter(proxy.requests)
                assert requests.total() <= limit, requests
