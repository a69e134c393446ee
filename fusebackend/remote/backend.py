"""`RemoteBackend`: the agent face of a `RemoteVolume`.

The verbs are those of every volume. What replaces a whole file is one request of the remote instead of a step under the
volume's lock; files of a batch are put and fetched several at a time, where the remote takes that.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Sequence
from typing import IO, Unpack

from fusebackend.base import budget
from fusebackend.base.errors import oserror
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import (
    Attr,
    Change,
    Changes,
    Condition,
    Conditions,
    FileDownloadResponse,
    FileUploadResponse,
    conditions_of,
)
from fusebackend.remote.files import ATTEMPTS
from fusebackend.remote.parallel import each
from fusebackend.remote.volume import RemoteVolume
from fusebackend.volumes.agent_face import FILE_MODE, VolumeBackend, caller
from fusebackend.volumes.contents import FileContents, require_regular
from fusebackend.volumes.walk import Needs, Place, resolve


class RemoteBackend(VolumeBackend):
    """See the module's docstring. The arguments are those of `VolumeBackend`."""

    volume: RemoteVolume
    _shown: str
    """Where its files are, for `repr`."""

    def _where(self) -> str:
        return self._shown

    def _put_if(self, path: AgentPath, data: bytes | FileContents, condition: Condition, *, replace: bool) -> None:
        assert isinstance(data, bytes), "an object is stored as a whole"
        needs: Needs = "name"
        with self.volume.changing() as changes:
            for _ in range(ATTEMPTS):
                # As open(2): O_EXCL finds a symbolic link itself in the way, without it a link is followed.
                place = resolve(self.volume, path, follow=replace and not condition.absent, needs=needs)
                if place.attr is None or condition.absent:
                    self._require(condition, place.attr)
                elif not replace:
                    raise oserror(errno.EEXIST)
                try:
                    self._put_at(place, data, changes, condition)
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOENT, errno.ELOOP):
                        raise
                    needs = "attributes"  # somebody else was faster, or it is a link
                    continue
                return
            raise oserror(errno.EAGAIN)

    def _put_at(self, place: Place, data: bytes, changes: Changes, condition: Condition) -> None:
        if place.attr is not None:
            require_regular(place.attr)
            self._rewrite_file(place.attr, lambda before: data, condition, reads=False)
            changes.append(Change(node=place.attr.node, kind="modified", path=place.path))
            return
        with self._parents(place, changes) as parent:
            node = self.volume.make_file(parent, place.name, FILE_MODE, data, caller()).node
        changes.append(Change(node, parent, place.name, "created", place.path))

    def _rewrite_file(
        self, attr: Attr, change: Callable[[Callable[[], bytes]], bytes], condition: Condition, *, reads: bool
    ) -> None:
        """`RemoteVolume.rewrite`, whose put is over the version that the condition was compared with."""

        def if_met(before: Callable[[], bytes]) -> bytes:
            self._require(condition, attr, before)
            return change(before)

        self.volume.rewrite(attr.node, if_met, reads=reads)

    def _change_if(self, path: AgentPath, change: Callable[[bytes], bytes], condition: Condition) -> None:
        def rewrite(place: Place) -> None:
            attr = place.found
            require_regular(attr)
            if attr.size > self.max_file_bytes:
                raise oserror(errno.EFBIG)
            self._rewrite_file(attr, lambda before: change(before()), condition, reads=True)
            changes.append(Change(node=attr.node, kind="modified", path=place.path))

        with self.volume.changing() as changes:
            self._opening(path, rewrite)

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        conditions = list(conditions_of(len(files), if_version, if_absent))
        together: dict[str, list[int]] = {}  # of two for one path the last one wins
        for number, (path, _) in enumerate(files):
            together.setdefault(posixpath.normpath(f"/{path}"), []).append(number)
        answers: dict[int, FileUploadResponse] = {}

        def upload(numbers: list[int]) -> None:
            for number in numbers:
                answers[number] = self.upload(*files[number], **conditions[number])

        each(upload, together.values())
        return [answers[number] for number in range(len(files))]

    def upload_from(self, path: str, file: IO[bytes], **when: Unpack[Conditions]) -> FileUploadResponse:
        """`upload_files` of one that is in a file. It is one object, and held in memory."""
        budget.current().hold(file.seek(0, os.SEEK_END))
        file.seek(0)
        return self.upload(path, file.read(), **when)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return each(self.download, paths)
