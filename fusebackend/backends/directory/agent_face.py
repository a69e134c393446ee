"""`DirectoryFace`: the agent's verbs over a `DirectoryVolume`.

`VolumeBackend` does it all, with the searches of this folder: the system walks faster than node by node.
"""

from __future__ import annotations

import functools

from fusebackend.backends.directory.search import LocalWalk, SievedWalk, read_local
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.protocol import GlobResult, GrepResult, OnExists
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.search import glob_files, grep_files


class DirectoryFace(VolumeBackend):
    """See the module's docstring.

    Args:
        volume: the directory.
        max_search_bytes: larger files are passed over by `grep`, with and without ripgrep; the answer then says
            `truncated`.
    """

    volume: DirectoryVolume

    def __init__(self, volume: DirectoryVolume, *, max_search_bytes: int, on_exists: OnExists = "error") -> None:
        super().__init__(volume, on_exists=on_exists)
        self.max_search_bytes = max_search_bytes

    def _glob_files(self, pattern: str, path: str) -> GlobResult:
        return glob_files(self.volume, pattern, path, LocalWalk)

    def _grep_files(
        self, pattern: str, path: str, glob: str | None, max_count: int | None, max_bytes: int
    ) -> GrepResult:
        walk = functools.partial(SievedWalk, pattern, max_bytes)
        return grep_files(self.volume, pattern, path, glob, max_count, max_bytes, walk, read_local)
