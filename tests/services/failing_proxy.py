"""A proxy in front of an S3 service, which counts requests, answers with errors and loses answers on command.

    with failing_bucket(seaweedfs) as (proxy, bucket):        # a new bucket, reached through the proxy
        proxy.answers["PUT"] = (507, "QuotaExceeded")         # until it is cleared
        proxy.refusals = 5                                    # the next five requests get 503 SlowDown
        proxy.uploads += ["after", "before"]                  # what becomes of the next uploads
        proxy.parts += ["before", "", "full"]                 # ... and of the next parts of one
        Counter(proxy.requests)                               # {"LIST": 1, "GET": 2, "HEAD": 3 …}

`LIST` stands for a GET of a listing, `COPY` for a PUT of another object's content.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import sys
import threading
import urllib.parse
from collections.abc import Iterator

from services.s3 import Bucket, Service


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that the client closed, which these tests cause; print any other error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class FailingProxy:
    """See the module's docstring.

    Attributes:
        answers: by method, the status and code of the error that it gets.
        refusals: how many more requests get 503 `SlowDown`, or another status and code of `refusal`.
        requests: the kind of each request that came, in their order.
        uploads: what becomes of the next uploads, each a PUT or the last request of an upload in parts: `before` cuts
            the connection and stores nothing, `after` stores it and cuts the connection, `error after` stores it and
            answers with 500, `full` stores nothing and answers with 507, an empty word does nothing.
        parts: the same for the next parts of uploads.
        heeds: False takes the conditions off the last request of an upload in parts, which some services ignore.
    """

    def __init__(self, target: str) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.refusals = 0
        self.refusal = (503, "SlowDown")
        self.requests: list[str] = []
        self.uploads: list[str] = []
        self.parts: list[str] = []
        self.heeds = True
        self._lock = threading.Lock()
        proxy, netloc = self, urllib.parse.urlsplit(target).netloc

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, code = proxy._judge(self)
                fault = proxy._fault(self)
                if status or fault == "full":
                    self._refuse(*((status, code) if status else (507, "QuotaExceeded")))
                    return
                if fault == "before":
                    self._cut()
                    return
                headers = {name: text for name, text in self.headers.items() if not proxy._drops(self, name)}
                with contextlib.closing(http.client.HTTPConnection(netloc, timeout=30)) as onward:
                    onward.request(self.command, self.path, body, headers)
                    answer = onward.getresponse()
                    content = answer.read()
                if fault == "after":
                    self._cut()
                elif fault == "error after":
                    self._refuse(500, "InternalError")
                else:
                    self._reply(answer.status, dict(answer.getheaders()), content)

            def _refuse(self, status: int, code: str) -> None:
                self._reply(status, {}, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

            def _cut(self) -> None:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

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

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _judge(self, request: http.server.BaseHTTPRequestHandler) -> tuple[int, str]:
        """Note a request; return the status and code of the error that it gets, or 0."""
        method = name = request.command
        if method == "GET" and "list-type" in urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query):
            name = "LIST"
        elif method == "PUT" and "x-amz-copy-source" in request.headers:
            name = "COPY"
        with self._lock:
            self.requests.append(name)
            if self.refusals:
                self.refusals -= 1
                return self.refusal
        return self.answers.get(method, (0, ""))

    def _fault(self, request: http.server.BaseHTTPRequestHandler) -> str:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query, keep_blank_values=True)
        is_part, is_last = "partNumber" in query, request.command == "POST" and "uploadId" in query
        faults = self.parts if is_part else self.uploads
        with self._lock:
            return faults.pop(0) if faults and (is_last or request.command == "PUT") else ""

    def _drops(self, request: http.server.BaseHTTPRequestHandler, header: str) -> bool:
        return not self.heeds and request.command == "POST" and header.lower() in ("if-match", "if-none-match")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def failing_bucket(service: Service) -> Iterator[tuple[FailingProxy, Bucket]]:
    """Make an empty bucket; yield a proxy in front of its service, and the bucket behind it."""
    with contextlib.closing(FailingProxy(service.endpoint)) as proxy, service.bucket() as bucket:
        yield proxy, Bucket(Service(proxy.endpoint, service.key, service.secret), bucket.name)
