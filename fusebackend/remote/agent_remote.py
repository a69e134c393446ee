"""`AgentRemote`: any object with agent verbs as a `Remote` of whole files, and the only reader of its optional hooks.

An ETag is the digest of a file's bytes. A file is downloaded and compared before it is uploaded, which leaves a gap of
one request. One that was downloaded for its size is kept for `ttl_s`, for the open to come.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from fusebackend.base import budget, errors, paths
from fusebackend.base.batches import by_size
from fusebackend.base.errors import FILE_NOT_FOUND, oserror, unless
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.base.recent import RecentBytes
from fusebackend.base.stamps import nanoseconds
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.protocol import FileInfo
from fusebackend.protocol.remote import Abilities, Bytes, Contents, Etag, Head, Info, Remote, Stamp
from fusebackend.protocol.versions import Changed, Condition, digest_of, version_of_etag
from fusebackend.remote.agent_verbs import FileVerbs, checked
from fusebackend.remote.files_update import note
from fusebackend.remote.parallel import attempted

log = logging.getLogger(__name__)

PROBE_FILES = 64
PROBE_BYTES = 8 << 20
"""Bounds of one batch of downloads to know sizes, and of the bytes that are kept of them for the `open` to come. …"""

PROBE_LEAST_BYTES = 2 << 10
"""… A smaller file counts as one of so many, for its path is kept too."""


class AgentRemote(Remote):
    """See the module's docstring.

    Args:
        backend: the object; docs/backends.md lists its hooks.
        ttl_s: how old what is kept of downloads may be, unless the backend says so.
        clock: seconds that only grow.

    Raises:
        TypeError: it can't be mounted.
    """

    def __init__(self, backend: Any, *, ttl_s: float, clock: Callable[[], float]) -> None:
        own_ttl_s: float | None = getattr(backend, "ttl_s", None)
        self.ttl_s = ttl_s if own_ttl_s is None else own_ttl_s
        self.face = AgentFace(backend, type(backend).__name__)
        self.face.require_mountable()
        self.name = self.face.name
        self.text_only = self.face.text_only
        self.hopeless = frozenset({errno.EEXIST, errno.EILSEQ}) if self.text_only else frozenset[int]()
        self._backend = backend
        self._runtime = getattr(backend, "runtime", None)
        self.abilities = Abilities(
            exact_sizes=bool(getattr(backend, "exact_sizes", False)),
            blocking=bool(getattr(backend, "blocking", True)),
            durable=bool(getattr(backend, "durable", False)),
            read_only=not self.face.takes_bytes,
            can_delete=not self.face.lacks("delete"),
            conditional=False,
            ttl_s=own_ttl_s,
        )
        self._clock = clock
        self._recent: RecentBytes[str, tuple[float, bytes]] = RecentBytes(PROBE_BYTES)  # under the volume's lock

    @property
    def write_once(self) -> bool:
        return self.face.texts.write_once

    # -- names -------------------------------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        path = _path(directory)
        result = self.face.ls(path)
        if result.error is None:
            read_at = self._clock()
            return Contents({name_in(info): info_in(info, read_at) for info in result.entries or ()})
        # An error is no proof that a directory is empty: a listing above it shows whether it is there.
        if self.has(directory):
            raise self._failure(result.error, path)
        raise oserror(errno.ENOENT, path)

    def has(self, key: str) -> bool:
        """As the nearest directory above it says that can be listed. EIO."""
        path = _path(key)
        found = path == ROOT or self.face.has(path, is_dir=key.endswith("/"))
        if found is None:
            raise self._failure(self.face.ls(ROOT).error or "", ROOT)
        return found

    def delete(self, key: str) -> None:
        path = _path(key)
        error = self._delete(path)
        if error is not None and self.has(key):
            raise self._failure(error, path)

    def _delete(self, path: AgentPath) -> str | None:
        """Delete a file or directory; the error, None for success."""
        self._recent.pop(path)
        result = self.face.delete(path)
        note(result.files_update, self._runtime)
        return result.error

    # -- files -------------------------------------------------------------------------------------------------

    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        path = _path(key)
        recent = self._recent.get(path)
        if recent is not None and self._clock() - recent[0] < self.ttl_s:
            data: bytes | None = recent[1]
        else:
            data = self._download(path)
        return None if data is None else Head(len(data), digest_of(data), content=data)

    def heads(self, wanted: Iterable[tuple[str, int]]) -> Sequence[Head | OSError | None]:
        found: list[Head | OSError | None] = []
        for batch in by_size(wanted, itemgetter(1), PROBE_FILES, PROBE_BYTES):
            found += self._probe([_path(key) for key, _ in batch])
        return found

    def _probe(self, batch: list[AgentPath]) -> list[Head | OSError | None]:
        now = self._clock()
        heads: list[Head | OSError | None] = []
        for path, answer in zip(batch, self.face.download_files(batch), strict=True):
            data = answer.content
            if data is None:
                log.info("%s: the size of %s is not known: %s", self.name, path, answer.error)
                heads.append(oserror(errno.EIO, path))
                continue
            heads.append(Head(len(data), digest_of(data)))
            if len(data) > PROBE_BYTES:
                self._recent.pop(path)
            else:
                self._recent.put(path, (now, data), max(len(data), PROBE_LEAST_BYTES))
        return heads

    def _download(self, path: AgentPath) -> bytes | None:
        """A file's bytes, None when there is no such file."""
        (answer,) = self.face.download_files([path])
        if answer.error is None:
            return answer.content
        if answer.error == FILE_NOT_FOUND:
            return None
        raise self._failure(answer.error, path)

    def put(self, key: str, data: Bytes, stamp: Stamp, *, over: Etag | None, create: bool) -> Etag | None:
        path, content = _path(key), data.read(0, data.size)
        over = None if create else over
        there = self._download(path)
        if (None if there is None else digest_of(there)) != over:
            raise oserror(errno.ESTALE, path)
        self._upload(path, content)
        return digest_of(content)

    def _upload(self, path: AgentPath, data: bytes) -> None:
        (answer,) = self.face.upload_files([(path, data)])
        self._recent.pop(path)
        if answer.error is not None:
            raise self._failure(answer.error, path)
        note(answer.files_update, self._runtime)  # a state-backed one leaves it to its caller

    # -- rename ------------------------------------------------------------------------------------------------

    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        """By the backend's own `move` where nothing is in the way; else copy, compare, and only then delete.

        Until every copy is complete the old paths are untouched, and a failure takes the copies back. After that the
        copied files are deleted one by one, and files of others stay; a failure then leaves some files in both places
        and none in neither.
        """
        source, target = _path(old), _path(new)
        if not self.abilities.can_delete:
            raise OSError(errno.ENOTSUP, f"{self.name} has no delete")
        if replaced is None and self._moved(source, target):
            return []
        before = self._download(target) if replaced is not None else None
        files, empty = self._below(source) if old.endswith("/") else ([source], [])
        begun: list[AgentPath] = []
        try:
            for file in files:
                if budget.current().spent:  # its caller is gone, or has cancelled
                    raise oserror(errno.ECANCELED, file)
                begun.append(AgentPath(target + file[len(source) :]))
                self._copy(file, begun[-1])
            copied()
            copies, begun = begun, []  # from the first deletion on they must stay, …
            for number, file in enumerate(files):
                error = self._delete(file)
                if error is not None and self._download(file) is not None:
                    if not number:
                        begun = copies  # … unless it is known that nothing was deleted
                    raise self._failure(error, file)
        except OSError:
            self._take_back(begun, before)
            raise
        if old.endswith("/"):
            self._remove_empty(source)
        return [(target + directory[len(source) :])[1:] + "/" for directory in empty if directory != source]

    def _moved(self, source: AgentPath, target: AgentPath) -> bool:
        """Try the backend's own `move`; False where that fails."""
        if self.face.lacks("move"):
            return False
        result = self.face.move(source, target)
        if result.error is not None:
            log.info("%s: move failed, copying instead: %s", self.name, result.error)
        return result.error is None

    def _copy(self, source: AgentPath, copy: AgentPath) -> None:
        data = self._download(source)
        if data is None:
            raise oserror(errno.ENOENT, source)
        self._upload(copy, data)
        if self._download(copy) != data:
            raise OSError(errno.EIO, "The copy is not what was copied")

    def _take_back(self, begun: Iterable[AgentPath], before: bytes | None) -> None:
        for copy in begun:
            try:
                if before is not None:
                    self._upload(copy, before)
                    continue
                error = self._delete(copy)
                if error is not None and self._download(copy) is not None:
                    raise self._failure(error, copy)
            except OSError as error:
                log.error("%s: a failed rename has left %s changed: %s", self.name, copy, error)

    def _below(self, directory: AgentPath) -> tuple[Sequence[AgentPath], Sequence[AgentPath]]:
        """The files below a directory, and the directories that hold nothing."""
        files: list[AgentPath] = []
        empty: list[AgentPath] = []
        left = [directory]
        while left:
            path = left.pop()
            result = self.face.ls(path)
            if result.error is not None:
                raise self._failure(result.error, path)
            for info in result.entries or ():
                if info.get("read_only"):
                    raise oserror(errno.EACCES, info["path"])  # before anything is copied: it could not be deleted
                child = AgentPath(info["path"].removesuffix("/"))
                (left if info.get("is_dir") else files).append(child)
            if not result.entries:
                empty.append(path)
        return files, empty

    def _remove_empty(self, directory: AgentPath) -> None:
        """A backend that holds empty directories has some left now."""
        above, _ = paths.parent_and_name(directory)
        listed = {info["path"] for info in self.face.ls(above).entries or ()}
        if f"{directory}/" in listed and not self._below(directory)[0]:
            error = self._delete(directory)
            if error is not None:
                log.warning("%s: empty directories stay at %s: %s", self.name, directory, error)

    # -- life --------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> tuple[float, str] | None:
        found = getattr(self._backend, "trouble", None)
        return found if isinstance(found, tuple) else None

    def expire(self) -> None:
        self._recent.clear()

    def _failure(self, error: str, path: AgentPath) -> OSError:
        """The `OSError` for an error of the backend. One without a code is EIO, and logged: no process sees it."""
        number = errors.errno_of(error)
        if number == errno.EIO:
            log.warning("%s: %s: %s", self.name, path, error)
        return OSError(number, errors.words_of(error))


def _path(key: str) -> AgentPath:
    return AgentPath("/" + key.removesuffix("/"))


def name_in(info: FileInfo) -> bytes:
    """The name under which a backend lists something."""
    return paths.to_name(info["path"].removesuffix("/").rpartition("/")[2])


def info_in(raw: FileInfo, read_at: float) -> Info:
    modified_at = raw.get("modified_at") or ""
    return Info(
        paths.to_text(name_in(raw)),
        bool(raw.get("is_dir")),
        raw.get("size"),
        time_ns(modified_at),
        # Without a time nothing says that a file is unchanged, so every listing brings a version of its own.
        (modified_at or read_at, raw.get("size")),
        read_only=bool(raw.get("read_only")),
    )


def time_ns(modified_at: str) -> int | None:
    """Nanoseconds since the epoch; without an offset it is local time, as deepagents' FilesystemBackend gives it."""
    try:
        when = datetime.datetime.fromisoformat(modified_at).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
    return nanoseconds(when)


# -- backends of whole files -------------------------------------------------------------------------------------------

_NOT_BEGUN = frozenset({errno.ENOTSUP, errno.ESTALE, errno.EEXIST})
"""Errors of `_put_new` that say that nothing was made."""

_LOST = frozenset({errno.ESTALE, errno.EEXIST, errno.ENOENT})
"""Errors of a put that say that another version is there."""


class FilesRemote(AgentRemote):
    """The primitives of `FileVerbs` as a `Remote` of whole files: a state, a store, a sandbox.

    A put compares and stores in one step: `_put` makes a new file, and `_rewrite` replaces the bytes that it has read.

    Args:
        backend: the backend, of which this calls the `kernel_side`.
        ttl_s: for how many seconds a listing is valid, unless the backend says so.
        clock: seconds that only grow.

    Raises:
        TypeError: it can't be mounted.
    """

    def __init__(self, backend: FileVerbs, *, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.files = backend.kernel_side(ttl_s if backend.ttl_s is None else backend.ttl_s)
        super().__init__(self.files, ttl_s=ttl_s, clock=clock)
        change_feed = bool(getattr(self.files, "change_feed", False))
        self.abilities = replace(self.abilities, change_feed=change_feed, conditional=True, exact_sizes=True)

    # -- names -------------------------------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        try:
            found = self.files._list(_checked(directory))
        except NotADirectoryError:
            raise oserror(errno.ENOENT, directory) from None
        read_at = self._clock()
        return Contents({name_in(info): info_in(info, read_at) for info in found})

    def has(self, key: str) -> bool:
        path = _checked(key)
        if path == ROOT:
            return True
        above, name = paths.parent_and_name(path)
        contents = unless((errno.ENOENT,), self.contents, above[1:])
        info = None if contents is None else contents.infos.get(paths.to_name(name))
        return info is not None and info.is_dir == key.endswith("/")

    def admit(self, name: bytes, directory: str, *, is_dir: bool) -> str:
        segment = super().admit(name, directory, is_dir=is_dir)
        self.files.admits(paths.join(_checked(directory), segment), is_dir=is_dir)
        return segment

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files._remove(_checked(key))

    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        """In one step where nothing is at the target; else a copy, and a deletion that takes it back if it fails."""
        source, target = _checked(old), _checked(new)
        if replaced is None:
            self.files._rename(source, target)
            copied()
            return ()
        before, data = self.files._load(target).data, self.files._load(source).data
        self._put(target, data, replaced[0] or digest_of(before))
        copied()
        try:
            self.files._remove(source)
        except OSError:
            self._put(target, before, digest_of(data))
            raise
        return ()

    # -- files -------------------------------------------------------------------------------------------------

    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        found = unless((errno.ENOENT, errno.EISDIR, errno.ENOTDIR), self.files._load, _checked(key))
        return None if found is None else Head(len(found.data), digest_of(found.data), content=found.data)

    def put(self, key: str, data: Bytes, stamp: Stamp, *, over: Etag | None, create: bool) -> Etag | None:
        content = data.read(0, data.size)
        self._put(_checked(key), content, None if create else over)
        return digest_of(content)

    def _put(self, path: AgentPath, data: bytes, over: Etag | None) -> None:
        """Replace one version of a file, or make a new one. ESTALE where something else is there."""
        condition = Condition(absent=True) if over is None else Condition(version_of_etag(over))
        try:
            note(self.files._put_if(path, data, condition, replace=False))
        except OSError as error:
            if isinstance(error, Changed) or error.errno in _LOST:
                raise oserror(errno.ESTALE, path) from None
            raise

    def put_all(self, files: Sequence[tuple[str, Bytes, Stamp]]) -> Sequence[Etag | OSError | None] | None:
        if len(files) < 2:
            return None
        try:
            self.files._put_new([(_checked(key), data.read(0, data.size)) for key, data, _ in files])
        except OSError as error:
            if error.errno in _NOT_BEGUN:
                return None
        else:
            return [data.digest() for _, data, _ in files]

        def store(file: tuple[str, Bytes, Stamp]) -> Etag | None:
            try:
                return self.put(*file, over=None, create=True)
            except OSError as error:
                # What seemed to fail together may have been stored, its answer lost.
                arrived = self.same(*file) if error.errno == errno.ESTALE else None
                if arrived is None:
                    raise
                return arrived

        return attempted(store, files, width=1)

    # -- changes -----------------------------------------------------------------------------------------------

    def token(self) -> Hashable:
        return self.files.token()

    def follow(self, changed: Callable[..., None]) -> Callable[[], None] | None:
        return self.files.follow(changed)


def _checked(key: str) -> AgentPath:
    return checked("/" + key)
