"""A proxy in front of an S3 service, which counts requests, and answers with errors on command.

    with failing_bucket(moto) as (proxy, bucket):             # a new bucket, reached through the proxy
        proxy.answers["PUT"] = (507, "QuotaExceeded")         # until it is cleared
        proxy.refusals = 5                                    # the next five requests get 503 SlowDown
        Counter(proxy.requests)                               # {"LIST": 1, "GET": 2, "HEAD": 3 …}

`LIST` stands for a GET of a listing, `COPY` for a PUT of another object's content.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import threading
import urllib.parse
from collections.abc import Iterator

from services.s3 import Bucket, Service


class FailingProxy:
    """See the module's docstring.

    Attributes:
        answers: by method, the status and code of the error that it gets.
        refusals: how many more requests get 503 `SlowDown`, or another status and code of `refusal`.
        requests: the kind of each request that came, in their order.
    """

    def __init__(self, target: str) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.refusals = 0
        self.refusal = (503, "SlowDown")
        self.requests: list[str] = []
        self._lock = threading.Lock()
        proxy, netloc = self, urllib.parse.urlsplit(target).netloc

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, code = proxy._judge(self)
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

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def failing_bucket(service: Service) -> Iterator[tuple[FailingProxy, Bucket]]:
    """Make an empty bucket; yield a proxy in front of its service, and the bucket behind it."""
    with contextlib.closing(FailingProxy(service.endpoint)) as proxy, service.bucket() as bucket:
        yield proxy, Bucket(Service(proxy.endpoint, service.key, service.secret), bucket.name)
