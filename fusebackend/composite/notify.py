"""`TellingFace`: the agent face of a backend that has no change feed, telling a mount of it what it changes.

`ForeignVolume`, the kernel face of such a backend, can't know what was done through the other face. A composite speaks
to its backends through this, so that a mount's caches do not wait for their time to live, and watchers hear of it. A
backend with a volume of its own tells by itself, and one that is not mounted has nobody to tell.

Such a backend does not say whether `upload_files` replaced something, nor whether what it deleted was a directory. Only
while somebody watches it is asked before.
"""

from __future__ import annotations

import logging
from typing import Any

from fusebackend.base.paths import AgentPath
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.protocol import (
    Attr,
    Change,
    DeleteResult,
    EditResult,
    FileUploadResponse,
    MoveResult,
    WriteResult,
)
from fusebackend.remote.volume import ForeignVolume, foreign_volume
from fusebackend.volumes.walk import resolve

log = logging.getLogger(__name__)


class TellingFace(AgentFace):
    """See the module's docstring."""

    def write(self, path: AgentPath, content: str) -> WriteResult:
        volume, before = self._before(path)
        result = super().write(path, content)
        self._tell(volume, [path], [] if result.error else [_stored(path, before[0])])
        return result

    def edit(self, path: AgentPath, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        volume, _ = self._before()
        result = super().edit(path, old_string, new_string, replace_all)
        self._tell(volume, [path], [] if result.error else [Change(kind="modified", path=path)])
        return result

    def delete(self, path: AgentPath) -> DeleteResult:
        volume, before = self._before(path)
        result = super().delete(path)
        # A tree may be gone in part.
        kind: Any = "unknown" if result.error else "deleted"
        told = not result.error or _is_dir(before[0])
        self._tell(volume, [path], [Change(kind=kind, path=_shown(path, before[0]))] if told else [])
        return result

    def move(self, source: AgentPath, destination: AgentPath) -> MoveResult:
        volume, before = self._before(source)
        result = super().move(source, destination)
        after, old = _shown(destination, before[0]), _shown(source, before[0])
        moved = Change(kind="moved", path=after, moved_from=old)
        self._tell(volume, [source, destination], [] if result.error else [moved])
        return result

    def upload_files(self, files: list[tuple[AgentPath, bytes]]) -> list[FileUploadResponse]:
        wanted = [path for path, _ in files]
        volume, before = self._before(*wanted)
        answers = super().upload_files(files)
        stored = zip(wanted, before, answers, strict=True)
        self._tell(volume, wanted, [_stored(path, attr) for path, attr, answer in stored if not answer.error])
        return answers

    def _before(self, *wanted: AgentPath) -> tuple[ForeignVolume | None, list[Attr | None]]:
        """The volume that a mount has of this backend, if any; and what is at these paths, if somebody watches."""
        volume = foreign_volume(self.backend)
        if volume is None or not volume.watched:
            return volume, [None] * len(wanted)
        return volume, [self._look(volume, path) for path in wanted]

    def _look(self, volume: ForeignVolume, path: AgentPath) -> Attr | None:
        try:
            return self._guarded("stat", lambda: resolve(volume, path, follow=False).attr)
        except OSError:  # the verb will say what is wrong
            return None

    def _tell(self, volume: ForeignVolume | None, changed: list[AgentPath], reports: list[Change]) -> None:
        if volume is None:
            return
        try:
            self._guarded("tell", lambda: volume.told(*changed, reports=reports))
        except OSError as error:
            log.warning("%s: a mount shows changes late: %s", self.name, error)


def _stored(path: AgentPath, before: Attr | None) -> Change:
    return Change(kind="created" if before is None else "modified", path=path)


def _is_dir(attr: Attr | None) -> bool:
    return attr is not None and attr.is_dir


def _shown(path: AgentPath, attr: Attr | None) -> str:
    return path + "/" if _is_dir(attr) else path
