"""`S3Client`: signed requests to S3 for the few things that obstore has no words for.

A key with an empty segment ends a listing of obstore's, whatever else is in it; it can't copy an object onto itself
with other attributes; it can neither see nor delete an object whose key ends with a slash; and it can't make the last
step of an upload in parts conditional. Everything else goes through obstore. AWS Signature Version 4 with the payload's
hash, paths in the URL (not host names), and connections that are used again. Thread-safe.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import hmac
import http.client
import re
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from fusebackend.backends.object_store.bucket.errors import ERRNO_OF_CODE, ERRNO_OF_STATUS
from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait

TIMEOUT_S = 30.0

MAX_IDLE = 16
"""Connections that are kept."""

_CODE = re.compile(rb"<Code>(\w{1,64})</Code>")


class Answer(NamedTuple):
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class S3Client:
    """See the module's docstring. `endpoint` is a URL without a path."""

    def __init__(self, endpoint: str, region: str, key: str, secret: str, token: str | None = None) -> None:
        parts = urlsplit(endpoint)
        self._secure = parts.scheme == "https"
        self._host = parts.netloc.rpartition("@")[2]
        self._region = region
        self._key = key
        self._secret = secret
        self._token = token
        self._idle: deque[http.client.HTTPConnection] = deque()

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request; `path` is quoted as it is to be sent. Raises `OSError` for any answer that is not 2xx."""
        pairs = sorted((query or {}).items())
        will_wait()
        words = "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in pairs)
        signed = self._signed(method, path, words, body, headers or {})
        target = f"{path}?{words}" if words else path
        try:
            status, answer = self._exchange(method, target, body, signed)
        except OSError as error:
            raise oserror(_errno_of(error), path) from error
        if 200 <= status < 300:
            return answer
        code = _CODE.search(answer.body)
        number = ERRNO_OF_CODE.get(code[1].decode()) if code is not None else None
        raise oserror(number or ERRNO_OF_STATUS.get(status, errno.EIO), path)

    # -- the wire ----------------------------------------------------------------------------------------------

    def _exchange(
        self, method: str, target: str, body: bytes | memoryview, headers: Mapping[str, str]
    ) -> tuple[int, Answer]:
        """A kept connection may have been closed by the other side: then a new one is tried, once."""
        try:
            kept = self._idle.pop()
        except IndexError:
            return self._send(self._connection(), method, target, body, headers)
        try:
            return self._send(kept, method, target, body, headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            return self._send(self._connection(), method, target, body, headers)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        body: bytes | memoryview,
        headers: Mapping[str, str],
    ) -> tuple[int, Answer]:
        try:
            connection.request(method, target, body or None, dict(headers))
            response = connection.getresponse()
            content = response.read()
        except OSError:
            connection.close()
            raise
        except http.client.HTTPException as error:
            connection.close()
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from None
        if response.will_close or len(self._idle) >= MAX_IDLE:
            connection.close()
        else:
            self._idle.append(connection)
        return response.status, Answer({name.lower(): text for name, text in response.getheaders()}, content)

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(self._host, timeout=TIMEOUT_S, context=ssl.create_default_context())
        return http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    # -- the signature -----------------------------------------------------------------------------------------

    def _signed(
        self, method: str, path: str, words: str, body: bytes | memoryview, headers: Mapping[str, str]
    ) -> dict[str, str]:
        """The headers with their signature (AWS, "Signature Version 4")."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        sent = {name.lower(): text.strip() for name, text in headers.items()}
        sent |= {"host": self._host, "x-amz-date": now, "x-amz-content-sha256": digest}
        if self._token:
            sent["x-amz-security-token"] = self._token
        names = ";".join(sorted(sent))
        lines = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent))
        canonical = "\n".join((method, path, words, lines, names, digest))
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        to_sign = "\n".join(("AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()))
        key = f"AWS4{self._secret}".encode()
        for part in (now[:8], self._region, "s3", "aws4_request", to_sign):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        sent["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        )
        return sent


def _errno_of(error: OSError) -> int:
    """Python's own errors of a connection have no errno, or one of another kind."""
    if isinstance(error, (TimeoutError, socket.gaierror)):
        return errno.ETIMEDOUT
    if isinstance(error, http.client.RemoteDisconnected):
        return errno.ECONNRESET
    if isinstance(error, ssl.SSLError):
        return errno.EIO
    return error.errno or errno.EIO
