"""Files into a container and out of it by the engine's archive calls: tar streams, whatever the size.

The engine sees the container's layers and volumes, but not what is mounted inside of it alone (a tmpfs): who sends
looks whether the file has arrived, and who fetches has another way.
"""

from __future__ import annotations

import errno
import io
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from fusebackend.backends.sandbox.engine import speaking

FILE_MODE = 0o644

MEMORY_BYTES = 8 << 20
"""A larger archive is put together on the disk."""


def put(api: Any, container: str, files: Iterable[tuple[str, bytes]], owner: tuple[int, int]) -> None:
    """Put files at absolute paths whose directories are there, one request for each directory. OSError."""
    split = sorted((*path.rpartition("/")[::2], data) for path, data in files)
    for directory, group in groupby(split, itemgetter(0)):
        with tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
                for _, name, data in group:
                    archive.addfile(_member(name, len(data), owner), io.BytesIO(data))
            file.seek(0)
            with speaking():
                api.put_archive(container, directory or "/", file)


def _member(name: str, size: int, owner: tuple[int, int]) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = FILE_MODE
    member.uid, member.gid = owner
    member.mtime = int(time.time())
    return member


def get(api: Any, container: str, path: str) -> bytes:
    """The bytes of a regular file. OSError: ENXIO for what is none, a link for example."""
    with speaking():
        stream, _ = api.get_archive(container, path)
        try:
            with tarfile.open(fileobj=_Stream(stream), mode="r|") as archive:  # type: ignore[call-overload]
                for member in archive:
                    content = archive.extractfile(member) if member.isreg() else None
                    if content is not None:
                        return bytes(content.read())
        except tarfile.TarError as error:
            raise OSError(errno.EIO, f"The engine's archive can't be read: {error}") from error
        finally:
            stream.close()
    raise OSError(errno.ENXIO, "Not a regular file")


class _Stream:
    """Pieces of bytes as a file that is read from the beginning to the end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")

    def read(self, size: int) -> bytes:
        taken: list[memoryview] = []
        while size:
            if not self._piece:
                self._piece = memoryview(next(self._pieces, b""))
                if not self._piece:
                    break
            taken.append(self._piece[:size])
            self._piece = self._piece[size:]
            size -= len(taken[-1])
        return b"".join(taken)
