"""Many deleted files had back, of a directory, a store and a bucket, also where another program takes one of the
names while the undo runs."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mounts import Mounted, Serve
from programs import session
from services.s3 import Bucket

import fusebackend
from fusebackend.protocol import UndoResult
from fusebackend.urls import open_backend

pytestmark = pytest.mark.mounted

KINDS = ["dir", "store", pytest.param("s3", marks=pytest.mark.services)]
FILES = 250
LIMIT_S = 60.0
THEIRS = b"another program wrote this\n"

SCENE = f"""
mkdir -p repo/sub repo/empty
for n in $(seq {FILES}); do
    yes "$n" | head -c $((n * 7)) > repo/$n
    chmod $((600 + n % 2 * 44)) repo/$n; touch -d 2001-02-03T04:05:$((10 + n % 50)).25 repo/$n
done
head -c 1500000 /dev/urandom > repo/sub/large
truncate -s 70000 repo/sub/zeros
: > repo/sub/none
"""


class Place(NamedTuple):
    """A mount, and another program's way to the same files."""

    path: Path
    keeps_attributes: bool
    put: Callable[[str, bytes], Any]
    has: Callable[[str], bool]


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    kind = request.param
    with contextlib.ExitStack() as stack:
        if kind == "dir":
            live = tmp_path / "live"
            live.mkdir()
            url = f"dir:{live}"
            put: Callable[[str, bytes], Any] = lambda name, data: (live / name).write_bytes(data)  # noqa: E731
            has: Callable[[str], bool] = lambda name: (live / name).exists()  # noqa: E731
        elif kind == "store":
            url = f"store+sqlite:{tmp_path}/store.db?ns=files"
            other = open_backend(url)
            stack.callback(other.close)
            put = lambda name, data: other.upload_files([(f"/{name}", data)])  # noqa: E731
            has = lambda name: other.download_files([f"/{name}"])[0].error is None  # noqa: E731
        else:
            bucket: Bucket = request.getfixturevalue("bucket")
            url = bucket.url()
            put = lambda name, data: bucket.put(name, data)  # noqa: E731
            has = lambda name: name in bucket.all_keys()  # noqa: E731
        mounted: Mounted = serve(url)
        yield Place(mounted.path, kind != "store", put, has)


def undo(path: Path, *calls: str) -> UndoResult:
    with fusebackend.connect(path) as files:
        return files.undo(*calls)


def tree(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for directory, _, names in os.walk(place.path):
        for name in names:
            path = Path(directory, name)
            status = path.stat()
            attributes = (status.st_mode, status.st_uid, status.st_mtime_ns) if place.keeps_attributes else None
            found[str(path.relative_to(place.path))] = (path.read_bytes(), attributes)
    return found


def planted(place: Place) -> dict[str, Any]:
    """Make the files and delete them again."""
    session(SCENE, place.path)
    before = tree(place)
    assert len(before) == FILES + 3
    session("rm -rf repo", place.path)
    assert tree(place) == {}
    return before


def test_everything_is_as_it_was(place: Place) -> None:
    before = planted(place)
    undone = undo(place.path)
    assert undone.conflicts == [] and undone.partly == []
    assert tree(place) == before
    assert (place.path / "repo/empty").is_dir() or not place.keeps_attributes
    assert undone.undo is not None
    assert undo(place.path, undone.undo).conflicts == []
    assert tree(place) == {}
    undo(place.path)
    assert tree(place) == before


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_a_name_that_is_taken_while_the_undo_runs_is_the_other_s(place: Place, share: float) -> None:
    """Before the undo or after it. The other files are all there, or none is."""
    before = planted(place)
    seen, taken = f"repo/{FILES - int(share * FILES)}", "repo/sub/none" if share == 0.0 else "repo/1"
    written = threading.Event()

    def take() -> None:
        deadline = time.monotonic() + LIMIT_S
        while not place.has(seen) and time.monotonic() < deadline:
            time.sleep(0.001)
        with contextlib.suppress(FileNotFoundError):  # of a directory that is not there yet
            place.put(taken, THEIRS)
            written.set()

    thread = threading.Thread(target=take)
    thread.start()
    refused: OSError | None = None
    try:
        undo(place.path)
    except OSError as error:
        refused = error
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    time.sleep(1.5)  # what others have put is shown by then
    after = tree(place)
    if written.is_set():
        assert after.pop(taken)[0] == THEIRS
        del before[taken]
    if refused is None:
        assert after == before
    else:
        assert refused.errno == errno.EBUSY, refused
        assert after == {}
