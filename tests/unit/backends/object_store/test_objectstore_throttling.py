"""A bucket that many hosts use: a service that gets too many requests, and what a mount sends when it was idle."""

from __future__ import annotations

import contextlib
import errno
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest
import services.s3
from for_each import for_each
from nodes import whole
from obstore.exceptions import GenericError
from raising import raising
from services.failing_proxy import failing_bucket

from fusebackend.backends import S3Backend
from fusebackend.backends.object_store.bucket import errors as throttling
from fusebackend.backends.object_store.bucket.errors import FIRST_S, MOST_S, PATIENCE_S, patiently
from fusebackend.backends.object_store.bucket.requests import Bucket
from fusebackend.backends.object_store.remote import BucketRemote
from fusebackend.protocol import ROOT_NODE
from fusebackend.remote.volume import RemoteVolume
from fusebackend.testing import by_path
from fusebackend.vfs.options import DEFAULT_DEADLINE_S

REFUSALS = [(503, "SlowDown"), (429, "TooManyRequests")]
INNER = 4
"""Requests that obstore sends before its answer is an error."""

HOUR_S = 3600.0


class Clock:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


refused = raising(GenericError("Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>"))


# -- the waits ----------------------------------------------------------------------------------------------------


def test_the_waits_grow_and_end_within_the_deadline_of_a_route() -> None:
    clock = Clock()
    with pytest.raises(GenericError):
        patiently(refused, clock=clock, sleep=clock.sleep)
    limits = [min(FIRST_S * 2**number, MOST_S) for number in range(len(clock.waits))]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(clock.waits, limits, strict=True))
    assert PATIENCE_S - MOST_S <= sum(clock.waits) <= PATIENCE_S < DEFAULT_DEADLINE_S


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no"),
        GenericError("Server returned non-2xx status code: 500 Internal Server Error: "),
        GenericError("Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied</Code>"),
        GenericError("error sending request, kind: Connect"),
    ],
    ids=["missing", "500", "403", "unreachable"],
)
def test_other_errors_leave_at_once(error: Exception) -> None:
    clock = Clock()
    with pytest.raises(type(error)):
        patiently(raising(error), clock=clock, sleep=clock.sleep)
    assert clock.waits == []


# -- a service that refuses ---------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a hundredth of the time."""
    monkeypatch.setattr(throttling, "FIRST_S", FIRST_S / 100)
    monkeypatch.setattr(throttling, "MOST_S", MOST_S / 100)


@pytest.fixture
def bucket(seaweedfs, hasty):
    with failing_bucket(seaweedfs) as found:
        yield found


CALLS: dict[str, Callable[[S3Backend], object]] = {
    "ls": lambda backend: backend.ls("/directory").error,
    "read": lambda backend: backend.read("/file").error,
    "write": lambda backend: backend.write("/new", "text").error,
    "edit": lambda backend: backend.edit("/file", "text", "other").error,
    "move": lambda backend: backend.move("/file", "/directory/file").error,
    "delete": lambda backend: backend.delete("/file").error,
    "chmod": lambda backend: by_path.chmod(backend.volume, b"file", 0o600),
    "mkdir": lambda backend: by_path.mkdir(backend.volume, b"made"),
}


@for_each("refusal", REFUSALS)
@for_each("call", CALLS)
def test_a_throttled_call_waits_and_succeeds(bucket, caplog, call: str, refusal: tuple[int, str]) -> None:
    proxy, at = bucket
    with S3Backend(at.name, f"{call}{refusal[0]}", ttl=0.0, **at.options()) as backend:
        assert backend.write("/file", "text").error is None
        assert backend.write("/directory/other", "text").error is None
        proxy.requests.clear()
        proxy.refusal, proxy.refusals = refusal, 2 * INNER + 1
        assert CALLS[call](backend) is None
        assert proxy.refusals == 0
        assert len(proxy.requests) > 2 * INNER + 1
    assert [record for record in caplog.records if record.name.startswith("fusebackend")] == []


def test_a_service_that_goes_on_refusing_is_a_time_out(bucket, monkeypatch, caplog) -> None:
    monkeypatch.setattr(throttling, "PATIENCE_S", 0.5)
    proxy, at = bucket
    with S3Backend(at.name, ttl=0.0, **at.options()) as backend:
        assert backend.write("/file", "text").error is None
        proxy.requests.clear()
        proxy.refusals = 10**6
        with pytest.raises(TimeoutError):
            backend.volume.lookup(ROOT_NODE, b"file")
        assert 0 < len(proxy.requests) < 100
        proxy.refusals = 0
        assert backend.download_files(["/file"])[0].content == b"text"
    assert "SlowDown" in caplog.text


def test_a_listing_that_is_refused_in_the_middle_goes_on_after_its_last_key(bucket, seaweedfs) -> None:
    proxy, at = bucket
    names = [f"d/{number:05}" for number in range(1100)]
    behind = services.s3.Bucket(seaweedfs, at.name).options()
    with S3Backend(at.name, **behind) as maker, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: obstore.put(maker.volume.remote.bucket.store, name, b""), names))
    with S3Backend(at.name, **at.options()) as backend:
        keys = Bucket(backend.volume.remote.bucket.store).keys_below("d/")
        found = [next(keys)]  # with the first page
        proxy.refusals = INNER + 1
        found += keys
        assert [key for key, _, _ in found] == names
        assert proxy.refusals == 0


# -- after an idle hour -------------------------------------------------------------------------------------------

FILES = 30
DIRECTORIES = 4


def visit(volume: RemoteVolume) -> None:
    """List every directory and `stat` every name, as `find -ls` does; open and read one file."""
    for name, directory in list(volume.readdir(ROOT_NODE, b"", 1000)):
        volume.hold(directory.node)
        for file, attr in volume.readdir(directory.node, b"", 1000):
            assert volume.getattr(volume.lookup(directory.node, file).node).size == attr.size
        assert whole(volume, volume.lookup(directory.node, b"f0").node) == name


def test_an_idle_hour_costs_nothing_and_ends_without_a_storm(seaweedfs) -> None:
    with failing_bucket(seaweedfs) as (proxy, at), S3Backend(at.name, **at.options()) as maker:
        for directory in range(DIRECTORIES):
            for file in range(FILES):
                assert maker.write(f"/d{directory}/f{file}", f"d{directory}").error is None
        clock, there = Clock(), maker.volume.remote.bucket
        with contextlib.closing(RemoteVolume(BucketRemote(there.store, there.extras), clock=clock)) as volume:

            def requests(work: Callable[[], object]) -> Counter[str]:
                proxy.requests.clear()
                work()
                return Counter(proxy.requests)

            cold = requests(lambda: visit(volume))
            assert requests(lambda: clock.sleep(HOUR_S)) == {}
            assert requests(lambda: volume.lookup(ROOT_NODE, b"d0")) == {"LIST": 1}
            after = requests(lambda: visit(volume))
            assert cold["LIST"] == DIRECTORIES + 1
            assert after["LIST"] == DIRECTORIES  # that of the root was for the lookup
            assert after.total() <= cold.total()
            assert after["GET"] == 0, "the blocks that were read are those of this version"
