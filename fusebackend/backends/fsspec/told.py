"""What file systems of fsspec raise, as an `OSError` with a number.

fsspec asks for `FileNotFoundError` and its like, and many file systems raise them without a number; the libraries
behind them have classes of their own.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator

log = logging.getLogger(__name__)

NUMBERS: tuple[tuple[type[BaseException], int], ...] = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (IsADirectoryError, errno.EISDIR),
    (NotADirectoryError, errno.ENOTDIR),
    (PermissionError, errno.EACCES),
    (TimeoutError, errno.ETIMEDOUT),
    (NotImplementedError, errno.EROFS),
)

REPLIES = {"421": errno.ECONNRESET, "550": errno.ENOENT, "530": errno.EACCES, "553": errno.EACCES, "552": errno.ENOSPC}
"""Of FTP servers (RFC 959, 4.2): `ftplib` raises them as text. 421 ends the connection; 550 is no such file, or no
right to it."""

CLOSED = frozenset({"EOFError", "SSHException", "SMBConnectionClosed"})
"""What ftplib, paramiko and smbprotocol raise when the server has closed the connection."""


STATUSES = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT, 412: errno.ESTALE}
"""Of HTTP (RFC 9110, 15.5): `aiohttp` raises them with a `status`. 412: `If-Match` names another version."""


NT_STATUSES = {0xC0000022: errno.EACCES, 0xC0000043: errno.EBUSY, 0xC000007F: errno.ENOSPC}
"""Of SMB (MS-ERREF, 2.3.1): access denied, sharing violation, disk full. `smbclient` knows the second one, as EPERM."""


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """Raise what is raised inside as an `OSError` about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and isinstance(error, type(OSError(error.errno, ""))):
            raise
        # smbprotocol's errors have numbers, and are no FileNotFoundError.
        number = NT_STATUSES.get(getattr(error, "ntstatus", 0)) or error.errno or 0
        number = number or next((number for kind, number in NUMBERS if isinstance(error, kind)), errno.EIO)
        raise OSError(number, os.strerror(number), path) from error
    except NotImplementedError as error:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path) from error
    except Exception as error:  # of the library behind the file system
        number = STATUSES.get(getattr(error, "status", 0), errno.EIO)
        if type(error).__module__ == "ftplib":
            number = REPLIES.get(str(error)[:3], errno.EIO)
        if type(error).__name__ in CLOSED:
            number = errno.ECONNRESET
        if number == errno.EIO:
            log.warning("%s: %s: %s", path, type(error).__name__, error)
        raise OSError(number, os.strerror(number), path) from error
