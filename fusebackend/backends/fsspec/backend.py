"""`FsspecBackend`: the agent face of a file system of fsspec."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from fusebackend.backends.fsspec import opening
from fusebackend.backends.fsspec.remote import FsspecRemote
from fusebackend.protocol import DEFAULT_TTL_S
from fusebackend.remote.backend import RemoteBackend
from fusebackend.remote.volume import RemoteVolume

MAX_FILE_BYTES = 5 << 40
"""Larger files are EFBIG."""


class FsspecVolume(RemoteVolume):
    """What is in memory, or in a file of this machine, is read and written on the mount's own thread: a read of 128 KiB
    takes less than the hop to another thread. `FsAccess` says `will_wait`."""

    at_once = frozenset({"write"})


class FsspecBackend(RemoteBackend):
    """A directory of a file system of fsspec. `remote.py` says what is kept and compared.

    Args:
        fs: an `fsspec.AbstractFileSystem` of its own (`skip_instance_cache=True`): its cache of listings is turned off.
        root: the directory in it that is the root.
        ttl: seconds for which a listing is believed.
        read_only: nothing can be changed.
        on_exists: see `VolumeBackend`.
        clock: seconds that only grow, by which listings age.
    """

    schemes: ClassVar = opening.SCHEMES

    def __init__(
        self,
        fs: Any,
        root: str = "",
        *,
        ttl: float = DEFAULT_TTL_S,
        read_only: bool = False,
        on_exists: Literal["error", "replace"] = "error",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        remote = FsspecRemote(fs, root, read_only=read_only)
        volume = FsspecVolume(remote, max_file_bytes=MAX_FILE_BYTES, ttl_s=ttl, clock=clock)
        super().__init__(volume, on_exists=on_exists)
        self._shown = f"{remote.name} {root}"

    def _where(self) -> str:
        return self._shown
