"""An S3 stand-in that loses answers: objects in memory, conditions as AWS has them, and faults on command.

    with LosingS3() as server:
        store = server.store("bucket")
        server.lose("after")          # the next upload is done, and its connection is cut before the answer
        server.lose("before")         # ... is not done, and its connection is cut
        server.refuse(507, "QuotaExceeded")   # every upload is answered so, until `accept`
    server.spoil("cut", "", "full")       # the next parts: lost, taken, refused with ENOSPC's code

With `heeds = False` it ignores conditions on the last request of an upload in parts, as moto does. It records the
requests (`requests`), its objects (`objects`) and the unfinished multipart uploads (`unfinished`). It is no reference
for S3; SeaweedFS and moto are.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

from fusebackend.backends.object_store.bucket.s3_client import S3Client
from fusebackend.backends.object_store.bucket.s3_extras import S3Extras

MODIFIED = "Sat, 21 Nov 2026 12:00:00 GMT"


class Object(NamedTuple):
    data: bytes
    etag: str
    attributes: dict[str, str]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the client closed, which these tests cause; print any other error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class LosingS3:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.unfinished: dict[str, dict[int, bytes]] = {}
        self.attributes_of: dict[str, dict[str, str]] = {}
        self.requests: list[str] = []
        self.lock = threading.Lock()
        self.faults: list[str] = []
        self.part_faults: list[str] = []
        self.heeds = True
        self.refusal: tuple[int, str] | None = None
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"service": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def extras(self, bucket: str) -> S3Extras:
        """Return the requests that obstore does not offer."""
        endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return S3Extras(S3Client(endpoint, "us-east-1", "access", "secret"), bucket, "")

    def store(self, bucket: str) -> Any:
        from obstore.store import S3Store

        backoff = {
            "init_backoff": datetime.timedelta(milliseconds=5),
            "max_backoff": datetime.timedelta(milliseconds=20),
        }
        return S3Store(
            bucket,
            endpoint=f"http://127.0.0.1:{self._server.server_port}",
            access_key_id="access",
            secret_access_key="secret",
            region="us-east-1",
            client_options={"allow_http": True, "timeout": datetime.timedelta(seconds=20)},
            retry_config={"max_retries": 2, "backoff": backoff},
        )

    def lose(self, *faults: str) -> None:
        with self.lock:
            self.faults.extend(faults)

    def spoil(self, *faults: str) -> None:
        with self.lock:
            self.part_faults.extend(faults)

    def refuse(self, status: int, code: str) -> None:
        self.refusal = (status, code)

    def accept(self) -> None:
        self.refusal = None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: LosingS3

    def log_message(self, *_: object) -> None:
        """Print nothing: tests look at `requests`."""

    def _begin(self) -> tuple[str, dict[str, list[str]], bytes]:
        parts = urlsplit(self.path)
        key = unquote(parts.path).partition("/")[2].partition("/")[2]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = parse_qs(parts.query, keep_blank_values=True)
        with self.service.lock:
            self.service.requests.append(" ".join([self.command, key, *sorted(query)]))
        return key, query, body

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("Content_Length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def _cut(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def do_PUT(self) -> None:
        key, query, body = self._begin()
        if "uploadId" in query:
            with self.service.lock:
                fault = self.service.part_faults.pop(0) if self.service.part_faults else ""
            if fault == "cut":
                self._cut()
                return
            if fault == "full":
                self._refuse(507, "QuotaExceeded")
                return
            self.service.unfinished[query["uploadId"][0]][int(query["partNumber"][0])] = body
            self._answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
            return
        with self.service.lock:
            fault = self.service.faults.pop(0) if self.service.faults else ""
        if fault == "before":
            self._cut()
            return
        if self.service.refusal is not None:
            self._refuse(*self.service.refusal)
            return
        with self.service.lock:
            status, code = self._judged(key)
            if status == 200:
                etag = self._store(key, body)
        if fault == "after":
            self._cut()
        elif fault == "error after":
            self._refuse(500, "InternalError")
        elif status == 200:
            self._answer(200, ETag=etag)
        else:
            self._refuse(status, code)

    def _judged(self, key: str) -> tuple[int, str]:
        """Return status and code for an upload, by its condition."""
        there = self.service.objects.get(key)
        if self.headers.get("If-None-Match") == "*" and there is not None:
            return 412, "PreconditionFailed"
        if (wanted := self.headers.get("If-Match")) is not None and (there is None or there.etag != wanted):
            return (412, "PreconditionFailed") if there is not None else (404, "NoSuchKey")
        return 200, ""

    def _store(self, key: str, body: bytes, attributes: dict[str, str] | None = None) -> str:
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        self.service.objects[key] = Object(body, etag, self._attributes() if attributes is None else attributes)
        return etag

    def _attributes(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")}

    def do_POST(self) -> None:
        key, query, asked = self._begin()
        if "delete" in query:
            gone = re.findall(r"<Key>(.*?)</Key>", asked.decode())
            for name in gone:
                self.service.objects.pop(name, None)
            done = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in gone)
            self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())
            return
        if "uploads" in query:
            upload = f"upload{len(self.service.requests)}"
            self.service.unfinished[upload] = {}
            with self.service.lock:
                self.service.attributes_of[upload] = self._attributes()
            self._answer(200, f"<R><UploadId>{upload}</UploadId></R>".encode())
            return
        self._end(key, query["uploadId"][0])

    def _end(self, key: str, upload: str) -> None:
        with self.service.lock:
            fault = self.service.faults.pop(0) if self.service.faults else ""
            if upload not in self.service.unfinished:
                status, code = 404, "NoSuchUpload"
            else:
                status, code = self._judged(key) if self.service.heeds else (200, "")
            if status == 200:
                parts = self.service.unfinished.pop(upload)
                whole = b"".join(parts[number] for number in sorted(parts))
                etag = self._store(key, whole, self.service.attributes_of[upload])
        if fault == "after":
            self._cut()
        elif status == 200:
            body = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
            self._answer(200, body.encode())
        else:
            self._refuse(status, code)

    def do_DELETE(self) -> None:
        key, query, _ = self._begin()
        if "uploadId" in query:
            self.service.unfinished.pop(query["uploadId"][0], None)
        else:
            self.service.objects.pop(key, None)
        self._answer(204)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key, _, _ = self._begin()
        with self.service.lock:
            there = self.service.objects.get(key)
        if there is None:
            self._refuse(404, "NoSuchKey")
            return
        data, status = there.data, 200
        headers = {"ETag": there.etag, "Last_Modified": MODIFIED, **there.attributes}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if wanted is not None:
            first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[first : last + 1], 206
        if self.command == "HEAD":
            headers["Content_Length"] = str(len(data))
        self._answer(status, data, **headers)
