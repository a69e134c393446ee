"""A bucket whose service fails: what was stored stays, what could not be stored is an error and is tried again."""

from __future__ import annotations

import contextlib
import errno
import http.client
import http.server
import os
import threading
import urllib.parse

import pytest
from services import seaweedfs as seaweedfs_service
from services.s3 import Bucket, Service

from fusebackend.backends import S3Backend
from fusebackend.protocol import ROOT_NODE, Caller

pytestmark = pytest.mark.services

ME = Caller(os.geteuid(), os.getegid())
RW = os.O_RDWR


class FailingProxy:
    """Passes requests on, but answers a method with an error while `answers` has one for it: (status, code)."""

    def __init__(self, target: str) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        proxy, netloc = self, urllib.parse.urlsplit(target).netloc

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, code = proxy.answers.get(self.command, (0, ""))
                if status:
                    self._reply(status, {}, f"<Error><Code>{code}</Code></Error>".encode())
                    return
                with contextlib.closing(http.client.HTTPConnection(netloc, timeout=30)) as onward:
                    onward.request(self.command, self.path, body, dict(self.headers))
                    answer = onward.getresponse()
                    self._reply(answer.status, dict(answer.getheaders()), answer.read())

            def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, text in headers.items():
                    if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                        if name.lower() == "content-length" and self.command != "HEAD":
                            continue
                        self.send_header(name, text)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one

            def log_message(self, *args: object) -> None:
                """A test's log is for what is tested."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def proxied(moto):
    """A bucket behind a proxy that can fail."""
    with contextlib.closing(FailingProxy(moto.endpoint)) as proxy:
        service = Service(proxy.endpoint, moto.key, moto.secret)
        with moto.bucket() as bucket:
            yield proxy, Bucket(service, bucket.name)


@pytest.mark.slow
def test_a_full_bucket_is_enospc_and_loses_nothing(proxied):
    proxy, bucket = proxied
    with S3Backend(bucket.name, **bucket.options()) as backend:
        volume = backend.volume
        assert backend.write("/kept", "before").error is None
        node = volume.create(ROOT_NODE, b"new", 0o644, RW, ME).node
        volume.write(node, 0, b"does not fit")
        proxy.answers["PUT"] = (507, "QuotaExceeded")
        with pytest.raises(OSError) as refusal:
            volume.flush(node)
        assert refusal.value.errno == errno.ENOSPC
        assert "No space left on device" in backend.write("/other", "x").error
        assert "No space left on device" in backend.edit("/kept", "before", "after").error
        assert backend.download_files(["/kept"])[0].content == b"before"
        assert volume.read(node, 0, 100) == b"does not fit"
        proxy.answers.clear()
        volume.flush(node)
        volume.release(node, RW)
        assert bucket.get("new") == b"does not fit"


@pytest.mark.slow
def test_errors_of_the_service_are_errors_and_are_over_when_it_is_well(proxied):
    proxy, bucket = proxied
    with S3Backend(bucket.name, ttl=0.0, **bucket.options()) as backend:
        assert backend.write("/d/a", "text").error is None
        for status, code, words in ((403, "AccessDenied", "permission_denied"), (404, "NoSuchBucket", "not_found")):
            proxy.answers = dict.fromkeys(("GET", "HEAD", "PUT", "DELETE"), (status, code))
            assert words in str(backend.ls("/d").error)
            assert backend.write("/d/b", "x").error
            assert backend.move("/d", "/e").error
            assert backend.delete("/d/a").error
        proxy.answers.clear()
        assert backend.download_files(["/d/a"])[0].content == b"text"
        assert backend.move("/d", "/e").error is None
        assert [info["path"] for info in backend.ls("/e").entries] == ["/e/a"]
    assert [key for key in bucket.all_keys() if "renames" in key] == []


@pytest.mark.slow
def test_kill_9_of_the_service_under_use_and_restart():
    with seaweedfs_service.running() as server, server.bucket() as bucket:
        with S3Backend(bucket.name, **bucket.options()) as backend:
            volume = backend.volume
            for number in range(20):
                assert backend.write(f"/d/{number}", f"content {number}").error is None
            node = volume.create(ROOT_NODE, b"open", 0o644, RW, ME).node
            volume.write(node, 0, b"synced")
            volume.fsync(node)
            volume.write(node, 6, b" and more")
            server.crash()
            with pytest.raises(OSError):
                volume.fsync(node)
            assert backend.write("/d/late", "x").error
            server.start()
            volume.fsync(node)
            volume.release(node, RW)
            found = backend.download_files([f"/d/{number}" for number in range(20)])
            assert [answer.content for answer in found] == [f"content {number}".encode() for number in range(20)]
        assert bucket.get("open") == b"synced and more"
