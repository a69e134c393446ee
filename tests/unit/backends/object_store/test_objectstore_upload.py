"""Write buffers and uploads: nothing is lost in silence, and nothing that arrived is called lost."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import obstore
import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore, S3Store
from profiles import examples
from services.failing_proxy import FailingProxy, failing_bucket
from services.s3 import REGION, Bucket, Service

from fusebackend.backends import S3Backend
from fusebackend.backends.object_store import remote as upload
from fusebackend.backends.object_store.bucket import errors as throttling
from fusebackend.backends.object_store.bucket.errors import object_errors
from fusebackend.backends.object_store.bucket.requests import Bucket as Requests
from fusebackend.backends.object_store.bucket.requests import S3Extras
from fusebackend.backends.object_store.remote import Upload
from fusebackend.protocol.versions import digest_of
from fusebackend.remote.buffer import Buffer
from fusebackend.testing.posix.case import refused

MIB = 1 << 20


class Server:
    """A bucket of a real service behind a proxy that can fail, and a store of obstore's that gives up soon."""

    def __init__(self, proxy: FailingProxy, bucket: Bucket) -> None:
        self.proxy, self.bucket = proxy, bucket
        options = bucket.options()
        backoff = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20)}
        self.store = S3Store(
            bucket.name,
            **options,
            client_options={"allow_http": True, "timeout": timedelta(seconds=20)},
            retry_config={"max_retries": 2, "backoff": backoff},  # type: ignore[typeddict-item]
        )

    @property
    def etag(self) -> object:
        return obstore.head(self.store, "key")["e_tag"]

    @property
    def data(self) -> bytes:
        return content(self.store, "key")

    @property
    def has_unfinished(self) -> bool:
        return b"<UploadId>" in self.bucket.request("GET", "", {"uploads": ""}).content


@pytest.fixture(scope="module")
def service(seaweedfs: Service) -> Iterator[Server]:
    with failing_bucket(seaweedfs) as (proxy, bucket):
        yield Server(proxy, bucket)


@pytest.fixture
def server(service: Server) -> Iterator[Server]:
    """The bucket, empty, behind a proxy that does not fail yet."""
    yield service
    proxy = service.proxy
    proxy.answers, proxy.uploads, proxy.parts, proxy.heeds = {}, [], [], True
    for key in service.bucket.all_keys():
        service.bucket.delete(key)
    proxy.requests.clear()


_made: list[Buffer] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """For tests that upload and forget."""
    yield
    while _made:
        _made.pop().close()


def buffer_of(data: bytes) -> Buffer:
    buffer = Buffer()
    _made.append(buffer)
    buffer.write(0, data)
    return buffer


def put(store: Any, key: str, buffer: Buffer, *, extras: S3Extras | None = None, **options: Any) -> str | None:
    return Upload(Requests(store, extras), key, **{"attributes": {}, **options}).put(buffer)


def content(store: object, key: str) -> bytes:
    return bytes(obstore.get(store, key).bytes())  # type: ignore[arg-type]


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- the buffer ---------------------------------------------------------------------------------------------------

OFFSETS = st.integers(0, 300)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), OFFSETS, st.binary(max_size=80)),
        st.tuples(st.just("truncate"), OFFSETS),
        st.tuples(st.just("read"), OFFSETS, st.integers(0, 200)),
        st.tuples(st.just("put")),
    ),
    max_size=40,
)


@settings(max_examples=examples(150), deadline=None)
@given(steps=STEPS, spill_bytes=st.sampled_from([0, 1, 64, 200, 1 << 20]))
def test_a_buffer_is_a_file(steps: list[tuple[object, ...]], spill_bytes: int) -> None:
    buffer, model = Buffer(spill_bytes=spill_bytes), bytearray()
    store = MemoryStore()
    for step in steps:
        match step:
            case ("write", int(offset), bytes(data)):
                buffer.write(offset, data)
                if data:
                    model.extend(bytes(max(0, offset - len(model))))
                    model[offset : offset + len(data)] = data
            case ("truncate", int(size)):
                buffer.resize(size)
                del model[size:]
                model.extend(bytes(size - len(model)))
            case ("read", int(offset), int(size)):
                assert buffer.read(offset, size) == model[offset : offset + size]
            case ("put",):
                assert put(store, "key", buffer) == obstore.head(store, "key")["e_tag"]
        assert buffer.size == len(model)
    assert buffer.digest() == digest_of(bytes(model))
    put(store, "key", buffer)
    assert content(store, "key") == model
    buffer.close()


def test_a_large_buffer_is_a_sparse_file_without_a_name() -> None:
    before = files_open()
    buffer = Buffer()
    buffer.write(8 * MIB - 1, b"x")
    assert files_open() == before, "8 MiB fit in memory"
    buffer.write(1 << 32, b"end")
    assert (files_open(), buffer.size) == (before + 1, (1 << 32) + 3)
    assert (buffer.read((1 << 32) - 2, 10), buffer.read(8 * MIB - 1, 2)) == (b"\0\0end", b"x\0")
    status = os.fstat(buffer._file.fileno())
    assert status.st_nlink == 0 and status.st_blocks * 512 < 64 * MIB
    buffer.close()
    assert files_open() == before


def test_who_writes_during_an_upload_waits_for_its_end() -> None:
    buffer = buffer_of(bytes(9 * MIB))
    began = threading.Event()

    def truncate() -> None:
        began.set()
        buffer.resize(1)

    with ThreadPoolExecutor(1) as thread:
        with buffer.frozen() as data:
            wrote = thread.submit(truncate)
            assert began.wait(30)
            with pytest.raises(TimeoutError):
                wrote.result(0.05)
            assert bytes(data[-4:]) == b"\0\0\0\0"  # mapped: if the file were cut short, this would be SIGBUS
        wrote.result(30)
    assert buffer.size == 1


def test_a_store_that_keeps_the_memory_it_was_given_keeps_what_it_was() -> None:
    store, buffer = MemoryStore(), buffer_of(b"a" * (9 * MIB))
    put(store, "key", buffer)
    buffer.write(0, b"b" * MIB)
    buffer.resize(10)
    assert content(store, "key") == b"a" * (9 * MIB)
    assert buffer.read(0, 100) == b"b" * 10


# -- conditions ---------------------------------------------------------------------------------------------------


def test_conditions_and_attributes(server: Server) -> None:
    for store in (MemoryStore(), server.store):
        made = put(store, "key", buffer_of(b"one"), create=True, attributes={"mode": "0644"})
        assert obstore.get(store, "key").attributes["mode"] == "0644"
        assert made == obstore.head(store, "key")["e_tag"]
        for condition in ({"create": True}, {"if_match": '"other"'}):
            refused(errno.ESTALE, put, store, "key", buffer_of(b"two"), **condition)
        assert content(store, "key") == b"one"
        changed = put(store, "key", buffer_of(b"three"), if_match=made)
        assert content(store, "key") == b"three"
        assert put(store, "key", buffer_of(b"")) == obstore.head(store, "key")["e_tag"]
        refused(errno.ESTALE, put, store, "key", buffer_of(b"four"), if_match=changed)
        obstore.delete(store, "key")
        refused(errno.ESTALE, put, store, "key", buffer_of(b"five"), if_match=changed)


def test_of_many_who_create_or_replace_at_once_one_wins(server: Server) -> None:
    store = server.store

    def attempt(number: int, if_match: str | None) -> int:
        try:
            put(store, "key", buffer_of(b"same"), create=if_match is None, if_match=if_match)
        except OSError as error:
            assert error.errno == errno.ESTALE
            return 0
        return 1

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(lambda number: attempt(number, None), range(8))) == 1


# -- answers that were lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "size"), [("after", 5), ("error after", 5), ("before", 5), ("after", 9 * MIB)]
)  # of a buffer in memory, and of one in a file
def test_an_upload_whose_answer_was_lost_is_no_conflict(server: Server, fault: str, size: int) -> None:
    data, known = os.urandom(size), None
    for condition in ("create", "if_match", None):
        server.proxy.uploads, data = [fault], data + b"x"
        options = {"create": True} if condition == "create" else {condition: known} if condition else {}
        made = put(server.store, "key", buffer_of(data), **options)  # type: ignore[arg-type]
        assert made == server.etag
        known = made
    assert server.data == data


def test_an_upload_that_never_arrives_is_an_error(server: Server) -> None:
    server.proxy.uploads = ["before"] * 20
    refused((errno.EIO, errno.ETIMEDOUT), put, server.store, "key", buffer_of(b"data"), create=True)
    server.proxy.uploads = []
    assert server.bucket.all_keys() == []


def test_the_same_bytes_of_somebody_else_are_not_ours(server: Server) -> None:
    """Two hosts that make a lock file of the same content: one of them has it, whatever the network does."""
    store = server.store
    put(store, "lock", buffer_of(b"taken"), create=True)
    server.proxy.uploads = ["before"]
    refused(errno.ESTALE, put, store, "lock", buffer_of(b"taken"), create=True)


# -- errors -------------------------------------------------------------------------------------------------------


@for_each(
    ("status", "code", "number"),
    [
        (403, "AccessDenied", errno.EACCES),
        (401, "Unauthorized", errno.EACCES),
        (403, "QuotaExceeded", errno.ENOSPC),
        (507, "InsufficientStorage", errno.ENOSPC),
        (503, "SlowDown", errno.ETIMEDOUT),
        (504, "GatewayTimeout", errno.ETIMEDOUT),
        (404, "NoSuchBucket", errno.ENOENT),
        (400, "KeyTooLongError", errno.ENAMETOOLONG),
        (400, "Nonsense", errno.EIO),
        (500, "InternalError", errno.EIO),
    ],
)
def test_what_the_service_refuses_has_its_errno_and_one_line_in_the_log(
    server: Server,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    number: int,
) -> None:
    monkeypatch.setattr(throttling, "PATIENCE_S", 0.0)
    server.proxy.answers["PUT"] = (status, code)
    with caplog.at_level(logging.WARNING), pytest.raises(OSError) as error:
        put(server.store, "some/key", buffer_of(b"data"), create=True)
    assert (error.value.errno, error.value.filename) == (number, "some/key")
    (line,) = caplog.messages
    assert line.startswith("some/key: ") and "\n" not in line and len(line) < 400


def test_a_missing_object_is_enoent_and_not_worth_a_line(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(FileNotFoundError) as error, object_errors("key"):
        obstore.get(server.store, "key")
    assert error.value.errno == errno.ENOENT
    assert [record for record in caplog.records if record.name.startswith("fusebackend")] == []


def test_no_server_is_a_time_out() -> None:
    with contextlib.closing(FailingProxy("http://127.0.0.1")) as ended:
        store = Server(ended, Bucket(Service(ended.endpoint, "key", "secret"), "bucket")).store
    refused(errno.ETIMEDOUT, put, store, "key", buffer_of(b"data"))


@pytest.mark.parametrize(
    "text",
    [
        "HTTP error: http://host/b/k?X-Amz-Credential=HIDDEN&X-Amz-Signature=HIDDEN failed",
        "HTTP error: https://account.host/k?sv=1&sig=HIDDEN&se=2030 failed",
        "HTTP error: https://user:HIDDEN@host/k failed\n\nDebug source:\nHIDDEN",
    ],
)
def test_what_signs_a_request_is_not_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(OSError), object_errors("key"):
        raise obstore.exceptions.GenericError(text)
    assert "HTTP error" in caplog.text and "HIDDEN" not in caplog.text


def test_errors_of_others_pass_unchanged() -> None:
    for error in (OSError(errno.ENOTEMPTY, "x"), FileNotFoundError(errno.ENOENT, "x"), ZeroDivisionError()):
        with pytest.raises(type(error)) as raised, object_errors("key"):
            raise error
        assert raised.value is error


# -- parts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads in parts of 5 MiB, which is the smallest that S3 has: most are of two, in memory."""
    monkeypatch.setattr(upload, "MULTIPART_BYTES", 5 * MIB)
    monkeypatch.setattr(upload, "PART_BYTES", 5 * MIB)
    monkeypatch.setattr(upload, "SINGLE_BYTES", 6 * MIB)


PARTS_BYTES = 11 << 19
"""Of an upload in two parts, 5.5 MiB, which may also be one request."""


def posts(server: Server) -> int:
    return server.proxy.requests.count("POST")


def test_a_large_upload_goes_in_parts(server: Server, small_parts: None) -> None:
    data = os.urandom(11 * MIB)
    done = put(server.store, "key", buffer_of(data), attributes={"mode": "0600"})
    assert done == server.etag
    assert server.data == data
    assert server.proxy.requests.count("PUT") == 3
    assert obstore.get(server.store, "key").attributes["mode"] == "0600"


def test_a_conditional_upload_is_one_request_up_to_what_services_take(server: Server, small_parts: None) -> None:
    store, data = server.store, os.urandom(PARTS_BYTES)
    made = put(store, "key", buffer_of(data), create=True)
    assert posts(server) == 0
    refused(errno.ESTALE, put, store, "key", buffer_of(data), if_match='"other"')
    assert put(store, "key", buffer_of(data[1:]), if_match=made) == server.etag


def test_beyond_that_the_condition_is_looked_at_before_and_after(server: Server, small_parts: None) -> None:
    store, data = server.store, os.urandom(7 * MIB)
    made = put(store, "key", buffer_of(data), create=True)
    assert server.data == data and posts(server) == 2
    for condition in ({"create": True}, {"if_match": '"other"'}):
        refused(errno.ESTALE, put, store, "key", buffer_of(data), **condition)
    assert not server.has_unfinished
    put(store, "key", buffer_of(data[1:]), if_match=made)
    assert server.data == data[1:]


def test_an_object_that_changes_during_an_upload_in_parts_is_a_conflict(
    server: Server, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, data = server.store, os.urandom(7 * MIB)
    made = put(store, "key", buffer_of(data), create=True)
    checks, check = [], Upload._check

    def after_a_change(self: Upload) -> None:
        checks.append(1)
        if len(checks) == 2:
            obstore.put(store, "key", b"somebody else's")
        check(self)

    monkeypatch.setattr(Upload, "_check", after_a_change)
    refused(errno.ESTALE, put, store, "key", buffer_of(data), if_match=made)
    assert content(store, "key") == b"somebody else's"
    assert not server.has_unfinished, "an upload that failed was not aborted"


@pytest.fixture
def extras(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Extras]:
    """What makes uploads in parts conditional, in no time."""
    monkeypatch.setattr(throttling, "FIRST_S", 0.001)
    monkeypatch.setattr(throttling, "PATIENCE_S", 0.05)
    service, name = server.bucket.service, server.bucket.name
    with contextlib.closing(
        S3Extras(service.endpoint, REGION, (service.key, service.secret, None), name, "")
    ) as extras:
        yield extras


def test_in_s3_a_conditional_upload_goes_in_parts_too(server: Server, extras: S3Extras, small_parts: None) -> None:
    store, data = server.store, os.urandom(PARTS_BYTES)
    made = put(store, "key", buffer_of(data), create=True, attributes={"mode": "33188"}, extras=extras)
    assert (server.data, made) == (data, server.etag)
    assert obstore.get(store, "key").attributes["mode"] == "33188"
    assert server.proxy.requests.count("PUT") == 2
    replaced = put(store, "key", buffer_of(data[1:]), if_match=made, extras=extras)
    assert (server.data, replaced) == (data[1:], server.etag)
    for condition in ({"create": True}, {"if_match": made}):
        refused(errno.ESTALE, put, store, "key", buffer_of(data), extras=extras, **condition)
    assert server.data == data[1:] and not server.has_unfinished


@pytest.mark.parametrize("heeds", [True, False], ids=["S3", "a service that ignores conditions there"])
@pytest.mark.parametrize("gone", [True, False])
def test_who_changes_an_object_during_an_upload_in_parts_is_not_overwritten(
    server: Server, extras: S3Extras, small_parts: None, monkeypatch: pytest.MonkeyPatch, heeds: bool, gone: bool
) -> None:
    store, data = server.store, os.urandom(PARTS_BYTES)
    made = put(store, "key", buffer_of(b"first"), create=True)
    server.proxy.heeds = heeds
    put_part, sent = S3Extras.put_part, []

    def change(self: S3Extras, *args: Any) -> str:
        sent.append(args)
        if len(sent) == 2:
            obstore.delete(store, "key") if gone else obstore.put(store, "key", b"somebody else's")
        return put_part(self, *args)

    monkeypatch.setattr(S3Extras, "put_part", change)
    refused(errno.ESTALE, put, store, "key", buffer_of(data), if_match=made, extras=extras)
    assert server.bucket.all_keys() == [] if gone else content(store, "key") == b"somebody else's"
    assert not server.has_unfinished


def test_a_part_that_is_lost_is_sent_again(server: Server, extras: S3Extras, small_parts: None) -> None:
    data = os.urandom(PARTS_BYTES)
    server.proxy.parts = ["before", "before"]
    put(server.store, "key", buffer_of(data), create=True, extras=extras)
    assert server.data == data and not server.has_unfinished


@pytest.mark.parametrize(("faults", "number"), [(["", "full"], errno.ENOSPC), (["before"] * 999, errno.ECONNRESET)])
def test_no_parts_are_left_of_an_upload_that_fails(
    server: Server, extras: S3Extras, small_parts: None, faults: list[str], number: int
) -> None:
    store = server.store
    made = put(store, "key", buffer_of(b"before"), create=True)
    server.proxy.parts = faults
    with pytest.raises(OSError) as refusal:
        put(store, "key", buffer_of(os.urandom(PARTS_BYTES)), if_match=made, extras=extras)
    assert refusal.value.errno == number
    assert content(store, "key") == b"before" and not server.has_unfinished


def test_the_lost_answer_to_the_last_request_is_no_conflict(
    server: Server, extras: S3Extras, small_parts: None
) -> None:
    store, data = server.store, os.urandom(PARTS_BYTES)
    server.proxy.uploads = ["after"]
    done = put(store, "key", buffer_of(data), create=True, extras=extras)
    assert (server.data, server.etag) == (data, done)


def test_a_real_service_heeds_the_condition_on_the_last_request(
    bucket: Bucket, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(PARTS_BYTES)
    with S3Backend(bucket.name, **bucket.options()) as backend:
        store, extras = backend.volume.remote.bucket.store, backend.volume.remote.bucket.extras
        with monkeypatch.context() as patch:
            patch.setattr(Upload, "_check", lambda self: None)
            etag = put(store, "key", buffer_of(data), create=True, attributes={"mode": "33188"}, extras=extras)
            assert obstore.head(store, "key")["e_tag"] == etag and content(store, "key") == data
            assert bucket.attributes("key")["mode"] == "33188"
            for wrong in ({"create": True}, {"if_match": '"another"'}):
                refused(errno.ESTALE, put, store, "key", buffer_of(data), extras=extras, **wrong)
        assert b"<UploadId>" not in bucket.request("GET", "", {"uploads": ""}).content
        again = put(store, "key", buffer_of(data[1:]), if_match=etag, extras=extras)
        assert (obstore.head(store, "key")["e_tag"], content(store, "key")) == (again, data[1:])


# -- a disk that is full ------------------------------------------------------------------------------------------

FULL_DISK = """
import os, resource, signal
from fusebackend.remote.buffer import MEMORY_BYTES, Buffer

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
buffer, data = Buffer(), os.urandom(MEMORY_BYTES)
buffer.write(0, data)
resource.setrlimit(resource.RLIMIT_FSIZE, (MEMORY_BYTES // 2, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        buffer.write(buffer.size, b"more")
    except OSError as error:
        print(type(error).__name__, error.errno)
print(buffer.size == len(data) and buffer.read(0, buffer.size) == data)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
buffer.write(buffer.size, b"more")
print(buffer.read(0, buffer.size) == data + b"more")
"""


def test_a_buffer_that_finds_the_disk_full_on_the_way_there_keeps_its_bytes() -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [f"OSError {errno.EFBIG}"] * 2 + ["True", "True"]
