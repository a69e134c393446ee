"""`FilesRemote`: the primitives of `FileVerbs` as a `Remote` of whole files: a state, a store, a sandbox.

An ETag is the digest of a file's bytes. A put compares and stores in one step: `_put` makes a new file, and `_rewrite`
replaces the bytes that it has read.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Hashable, Sequence

from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol.remote import Bytes, Contents, Etag, Head, Stamp
from fusebackend.protocol.versions import digest_of
from fusebackend.remote.agent_remote import AgentRemote, info_in, name_in
from fusebackend.remote.agent_verbs import FileVerbs, checked
from fusebackend.remote.files_update import note
from fusebackend.remote.parallel import attempted

_NOT_BEGUN = frozenset({errno.ENOTSUP, errno.ESTALE, errno.EEXIST})
"""Errors of `_put_new` that say that nothing was made."""

_LOST = frozenset({errno.ESTALE, errno.EEXIST, errno.ENOENT})
"""Errors of a put that say that another version is there."""


class FilesRemote(AgentRemote):
    """See the module's docstring.

    Args:
        backend: the backend, of which this calls the `kernel_side`.
        ttl_s: for how many seconds a listing is valid, unless the backend says so.
        clock: seconds that only grow.

    Raises:
        TypeError: it can't be mounted.
    """

    conditional = True

    def __init__(self, backend: FileVerbs, *, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.files = backend.kernel_side(ttl_s if backend.ttl_s is None else backend.ttl_s)
        super().__init__(self.files, exact_sizes=True, ttl_s=ttl_s, clock=clock)

    # -- names -------------------------------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        try:
            found = self.files._list(_path(directory))
        except NotADirectoryError:
            raise oserror(errno.ENOENT, directory) from None
        read_at = self._clock()
        return Contents({name_in(info): info_in(info, read_at) for info in found})

    def has(self, key: str) -> bool:
        path = _path(key)
        if path == ROOT:
            return True
        above, name = paths.parent_and_name(path)
        try:
            info = self.contents(above[1:]).infos.get(paths.to_name(name))
        except FileNotFoundError:
            return False
        return info is not None and info.is_dir == key.endswith("/")

    def admit(self, name: bytes, directory: str, *, is_dir: bool) -> str:
        segment = super().admit(name, directory, is_dir=is_dir)
        self.files.admits(paths.join(_path(directory), segment), is_dir=is_dir)
        return segment

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files._remove(_path(key))

    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        """In one step where nothing is at the target; else a copy, and a deletion that takes it back if it fails."""
        source, target = _path(old), _path(new)
        if replaced is None:
            self.files._rename(source, target)
            copied()
            return ()
        before, data = self.files._load(target).data, self.files._load(source).data
        self._put_over(target, data, replaced[0] or digest_of(before))
        copied()
        try:
            self.files._remove(source)
        except OSError:
            self._put_over(target, before, digest_of(data))
            raise
        return ()

    # -- files -------------------------------------------------------------------------------------------------

    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        try:
            data = self.files._load(_path(key)).data
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        return Head(len(data), digest_of(data), content=data)

    def put(self, key: str, data: Bytes, stamp: Stamp, *, over: Etag | None, create: bool) -> Etag | None:
        path, content = _path(key), data.read(0, data.size)
        try:
            if create or over is None:
                note(self.files._put(path, content, replace=False))
            else:
                self._put_over(path, content, over)
        except OSError as error:
            raise oserror(errno.ESTALE, key) if error.errno in _LOST else error from None
        return digest_of(content)

    def _put_over(self, path: AgentPath, data: bytes, etag: Etag) -> None:
        """Replace one version of a file. ESTALE where it is another one."""

        def change(before: bytes) -> bytes:
            if digest_of(before) != etag:
                raise oserror(errno.ESTALE, path)
            return data

        self.files._rewrite(path, change)

    def put_all(self, files: Sequence[tuple[str, Bytes, Stamp]]) -> Sequence[Etag | OSError | None]:
        is_doubtful = False
        if len(files) > 1:
            try:
                self.files._put_new([(_path(key), data.read(0, data.size)) for key, data, _ in files])
            except OSError as error:
                is_doubtful = error.errno not in _NOT_BEGUN
            else:
                return [data.digest() for _, data, _ in files]

        def store(file: tuple[str, Bytes, Stamp]) -> Etag | None:
            try:
                return self.put(*file, over=None, create=True)
            except OSError as error:
                # What seemed to fail together may have been stored, its answer lost.
                arrived = self.same(*file) if is_doubtful and error.errno == errno.ESTALE else None
                if arrived is None:
                    raise
                return arrived

        return attempted(store, files, width=1)

    # -- changes -----------------------------------------------------------------------------------------------

    def token(self) -> Hashable:
        return self.files.token()

    def follow(self, changed: Callable[..., None]) -> Callable[[], None] | None:
        return self.files.follow(changed)


def _path(key: str) -> AgentPath:
    return checked("/" + key)
