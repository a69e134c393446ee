"""`IndexCache`: the indexes of a database's lines in files of the server, so that a first `ls -l` reads no checkpoint.

The directory is `$XDG_CACHE_HOME/fusebackend/threads/<digest of the database>/`, with a file for each line, readable by
its owner only: it has titles and names. An index is used for checkpoints whose marks are those that it was made with,
so a file that is lost, damaged, old or of another database costs time and nothing else. Any error in writing one is
logged once, and no more are written.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import zlib
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from fusebackend.backends.threads.database.rows import Place
from fusebackend.base import xdg

FORMAT: Final = 13
"""Of an index. Any other number, and any change in how documents look, is a reason to read the line again."""

MAX_BYTES: Final = 256 << 20
"""Of all files. More are removed when a server starts."""

log = logging.getLogger(__name__)

T = TypeVar("T", bound=tuple[Any, ...])


class IndexCache:
    """See the module's docstring. Servers may share it: a file is replaced as a whole.

    Args:
        database: what tells the database from others, without secrets.
    """

    def __init__(self, database: str) -> None:
        self._directory = xdg.path("XDG_CACHE_HOME", "threads", _digest(os.fsencode(database)))
        self._is_written = True
        try:
            with contextlib.suppress(FileNotFoundError):  # there is none, or another server has just replaced a file
                with os.scandir(self._directory) as entries:
                    size = sum(entry.stat().st_size for entry in entries)
                if size > MAX_BYTES:
                    shutil.rmtree(self._directory)
            for end in ("", "-wal", "-shm"):  # of a program before, which had one file for all lines
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self._directory}.db{end}")
        except OSError as error:
            self._fail(error)

    def get(self, place: Place, kind: type[T]) -> T | None:
        """A line's index; None where there is none, or another version of it, or something else."""
        try:
            with open(self._path(place), "rb") as file:
                # msgspec makes the records in C and checks their types: a third of the time of `json`.
                found: T = msgspec.json.decode(zlib.decompress(file.read()), type=kind)
        except (OSError, ValueError, RecursionError, zlib.error, msgspec.MsgspecError):
            return None  # the line is read again
        return found

    def put(self, place: Place, record: NamedTuple) -> None:
        if not self._is_written:
            return
        try:
            data = zlib.compress(msgspec.json.encode(record), 1)
            os.makedirs(self._directory, mode=0o700, exist_ok=True)  # another server may have removed it
            # Not synced: what is lost with the machine is read again.
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                try:
                    file.write(data)
                    file.flush()
                    os.replace(file.name, self._path(place))
                except OSError:
                    os.unlink(file.name)
                    raise
        except (UnicodeEncodeError, FileNotFoundError):
            return  # half of a surrogate pair in a name, or the directory has just gone: the line is read again
        except OSError as error:
            self._fail(error)

    def _path(self, place: Place) -> str:
        return os.path.join(self._directory, _digest(repr((FORMAT, *place)).encode()))

    def _fail(self, error: OSError) -> None:
        log.warning("the cache '%s' can't be used, so first looks read each checkpoint: %s", self._directory, error)
        self._is_written = False


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
