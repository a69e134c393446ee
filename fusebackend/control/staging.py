"""`Staging`: contents that arrive in pieces, because they are longer than a message may be.

One per connection. Pieces are appended to files without a name, which go with the connection.
"""

from __future__ import annotations

import errno
import secrets
import tempfile
import threading
from typing import IO

MAX_STAGED_BYTES = 2 << 30
"""Of all that one connection has staged; no backend takes a larger file."""

MAX_TOKENS = 8
"""Each is an open file, and 256 connections may have as many."""


class Staging:
    """See the module's docstring. One call may take content while another one adds some."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._files: dict[str, IO[bytes]] = {}
        self._bytes = 0

    def add(self, data: bytes, token: str | None) -> str:
        """Append a piece to the content of `token`; without one, begin something new. Returns the token.

        Raises:
            OSError: EINVAL for a token that is not known, EFBIG for too much, EMFILE for too many.
        """
        with self._guard:
            if token is not None and token not in self._files:
                raise OSError(errno.EINVAL, f"nothing is staged under '{token}'")
            if self._bytes + len(data) > MAX_STAGED_BYTES:
                raise OSError(errno.EFBIG, f"more than {MAX_STAGED_BYTES} bytes would be staged at once")
            if token is None:
                if len(self._files) >= MAX_TOKENS:
                    raise OSError(errno.EMFILE, f"{MAX_TOKENS} contents are staged already")
                token = secrets.token_hex(8)
                self._files[token] = tempfile.TemporaryFile(prefix="fusebackend-")  # noqa: SIM115 - until `take`
            self._files[token].write(data)
            self._bytes += len(data)
            return token

    def size(self, token: str) -> int:
        """How long what is staged is; 0 for a token that is not known."""
        with self._guard:
            file = self._files.get(token)
            return 0 if file is None else file.tell()

    def take_file(self, token: str | None) -> IO[bytes] | None:
        """The whole content, as a file which is the caller's to close, and which is no longer staged. None without a
        token, and for an unknown token."""
        with self._guard:
            file = None if token is None else self._files.pop(token, None)
            if file is not None:
                self._bytes -= file.tell()
        return file

    def close(self) -> None:
        with self._guard:
            for file in self._files.values():
                file.close()
            self._files.clear()
