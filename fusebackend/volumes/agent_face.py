"""`VolumeBackend`: the agent face of any native volume, over its kernel face alone; and the verbs that it shares with
those over whole files, `AgentVerbs`.

Every verb takes a path, resolves it inside the volume, and answers with a record; a failure is an error in that record,
never an exception. A change is made under `volume.lock`, and reported to the volume's subscribers when the lock is free
again, so that a mount invalidates kernel caches.

A subclass is a backend with a constructor of its own, and overrides only what its volume can do faster.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import functools
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Self, TypeAlias, TypeVar, Unpack

from fusebackend import text
from fusebackend.base import budget, errors, paths
from fusebackend.base.globs import Matcher, compile_glob
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import (
    ANY,
    READ_LIMIT_LINES,
    RENAME_NOREPLACE,
    ROOT_NODE,
    Attr,
    BackendProtocol,
    Caller,
    Change,
    Changed,
    Changes,
    Condition,
    Conditions,
    DeleteResult,
    Digest,
    EditResult,
    FileDownloadResponse,
    FileInfo,
    FileRange,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    MoveResult,
    OnExists,
    ReadResult,
    Refusal,
    Volume,
    WriteResult,
    checked_on_exists,
    conditions_of,
    not_bytes,
    verbs,
    version_of_bytes,
)
from fusebackend.volumes import placing
from fusebackend.volumes.contents import (
    PIECE_BYTES,
    FileContents,
    joined,
    opened,
    overwrite,
    read_with,
    require_regular,
    rewrite,
    write_pieces,
)
from fusebackend.volumes.removal import Doomed, remove_tree
from fusebackend.volumes.search import FileSearch, Search, file_info, globbed, grepped
from fusebackend.volumes.walk import Needs, Place, entries, resolve, resolve_from

# -- over volumes and whole files --------------------------------------------------------------------------------
#
# The arguments of a verb, its conditions, its search and its answer are here. How a file is stored or changed if a
# condition is met, and how files are found, is the backend's.


FilesUpdate: TypeAlias = dict[str, Any] | None
"""The change of `runtime.state["files"]`, for a state's caller to merge; None of any other backend."""


class Unchanged(Exception):
    """An edit that can't be made; the text says why. Never leaves an `edit`."""


class AgentVerbs(BackendProtocol):
    """The verbs that are the same over a volume and over whole files behind an API, on four primitives.

    Args:
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
    """

    def __init__(self, *, on_exists: OnExists = "error") -> None:
        self.on_exists = checked_on_exists(on_exists)

    def close(self) -> None:
        """Make everything durable and let go of files and connections. Twice is once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    _path = staticmethod(paths.normalise)
    """Returns the path in this backend that is meant; each verb asks once. PathError, and OSError for one that can't be
    there."""

    _condition = staticmethod(Condition.of)
    """The condition of a verb's arguments. OSError as `Condition.of`; ENOTSUP where none can be decided."""

    # -- primitives: these raise, and take what `_path` has returned --------------------------------------------

    @abc.abstractmethod
    def _put_if(self, path: AgentPath, data: bytes, condition: Condition, *, replace: bool) -> FilesUpdate:
        """Create a file with its parents, or replace one if `replace`. Changed, EEXIST, EISDIR, ENOTDIR."""

    @abc.abstractmethod
    def _change_if(self, path: AgentPath, change: Callable[[bytes], bytes], condition: Condition) -> FilesUpdate:
        """Give a file other bytes, made of those it has; `change` may be called again when these are others by then.
        Changed, ENOENT, EISDIR."""

    @abc.abstractmethod
    def _search(self, path: AgentPath, matcher: Matcher | None, pattern: str | None = None) -> Search:
        """The files at or below a path that match, for a `grep` those that may hold the literal."""

    @abc.abstractmethod
    def download(self, path: str) -> FileDownloadResponse:
        """`download_files` of one file."""

    # -- verbs -------------------------------------------------------------------------------------------------

    @verbs.GREP.answers()
    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        matcher = compile_glob(glob) if glob else None
        at = self._path(ROOT if path is None else path)
        with budget.granted():
            return grepped(self._search(at, matcher, pattern), pattern, max_count)

    @verbs.GLOB.answers()
    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        matcher = compile_glob(pattern)
        at = self._path(ROOT if path is None else path)
        with budget.granted():
            return globbed(self._search(at, matcher))

    @verbs.WRITE.answers()
    def write(
        self, file_path: str, content: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> WriteResult:
        condition = self._condition(if_version, if_absent)
        replace = self.on_exists == "replace" or condition.version is not None
        data, path = content.encode("utf-8"), self._path(file_path)
        update = self._put_if(path, data, condition, replace=replace)
        return WriteResult(path=path, files_update=update)

    @verbs.EDIT.answers()
    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        if_version: str | None = None,
    ) -> EditResult:
        occurrences = 0

        def change(before: bytes) -> bytes:
            nonlocal occurrences
            content = before.decode("utf-8")
            budget.current().hold(2 * sys.getsizeof(content) + len(before))  # itself, replaced, and that as bytes
            outcome = text.replace_string(content, old_string, new_string, replace_all)
            if isinstance(outcome, str):
                raise Unchanged(outcome)
            after, occurrences = outcome
            return after.encode("utf-8")

        condition, path = self._condition(if_version), self._path(file_path)
        try:
            update = self._change_if(path, change, condition)
        except Unchanged as refused:
            return EditResult(error=str(refused))
        return EditResult(path=path, occurrences=occurrences, files_update=update)

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        conditions = conditions_of(len(files), if_version, if_absent)
        return [self.upload(path, content, **when) for (path, content), when in zip(files, conditions, strict=True)]

    @verbs.UPLOAD_FILES.answers()
    def upload(self, path: str, content: bytes, **when: Unpack[Conditions]) -> FileUploadResponse:
        """`upload_files` of one file."""
        if (refusal := not_bytes(path, content)) is not None:
            return refusal
        condition = self._condition(**when)
        update = self._put_if(self._path(path), bytes(content), condition, replace=True)
        return FileUploadResponse(path=path, files_update=update)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self.download(path) for path in paths]


# -- over a volume -----------------------------------------------------------------------------------------------


FILE_MODE = 0o644
DIRECTORY_MODE = 0o755

R = TypeVar("R")

EDITED_LOCKED_BYTES = 256 << 10
"""A file is edited under the volume's lock up to this size: a millisecond."""

OPENED_ANEW = 20
"""So often a file is opened once more that is another one each time: beside many writers of one object a read would say
that there is none."""

EDIT_ATTEMPTS = 4
"""The last one keeps the lock."""


class VolumeBackend(AgentVerbs):
    """The agent's verbs over a volume.

    Args:
        volume: the kernel face. The backend owns it from now on: `close` closes it.
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).

    Attributes:
        max_file_bytes: larger files are EFBIG, for these verbs hold a file's contents in memory. A sparse file may
            claim any size.
        max_search_bytes: larger files are passed over by `grep`, and its answer says `truncated`.
    """

    max_file_bytes: int = 2 << 30
    max_search_bytes: int = 2 << 30

    def __init__(self, volume: Volume, *, on_exists: OnExists = "error") -> None:
        super().__init__(on_exists=on_exists)
        self.volume = self._named = volume  # the paths name nodes of another one where they are the machine's
        self._closed = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.volume.close()

    def meant(self, error: Exception) -> Exception:
        """ESTALE says of a volume's node that its file was deleted meanwhile."""
        is_gone = isinstance(error, OSError) and error.errno == errno.ESTALE
        return errors.oserror(errno.ENOENT) if is_gone else error

    # -- reading -----------------------------------------------------------------------------------------------

    @verbs.LS.answers()
    def ls(self, path: str) -> LsResult:
        base = self._path(path)
        place = resolve(self._named, base, needs="type")
        directory = place.found
        if not directory.is_dir:
            raise errors.oserror(errno.ENOTDIR)
        trail = (*place.trail, directory.node)
        found = budget.current().kept(entries(self._named, directory.node, is_brief=True), _size_of)
        infos = [self._info(base, trail, name, attr) for name, attr in found]
        return LsResult(entries=sorted(infos, key=lambda info: info["path"]))

    def _info(self, base: AgentPath, trail: tuple[int, ...], name: bytes, attr: Attr) -> FileInfo:
        path = paths.join(base, paths.to_text(name))
        if stat.S_ISLNK(attr.mode):
            try:
                attr = resolve_from(self._named, trail, [name]).attr or attr
            except OSError:
                return file_info(path, attr)  # a link that leads nowhere, or out of here, is listed as itself
        info = file_info(path, attr, is_dir=attr.is_dir)
        if stat.S_ISREG(attr.mode) and (version := self._named.version_of(attr)) is not None:
            info["version"] = version
        return info

    @verbs.READ.answers()
    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        def read(place: Place) -> ReadResult:
            attr = place.found
            is_brief, mtime_ns = attr.is_brief, attr.mtime_ns
            result = self._read(file_path, attr, offset, limit)
            if result.file_data is not None:
                result.file_data["modified_at"] = text.iso_time(attr.mtime_ns if is_brief else mtime_ns)
            return result

        return self._opening(self._path(file_path), read)

    def _opening(self, path: AgentPath, work: Callable[[Place], R]) -> R:
        """Return the result of `work` for the file at a path, which it opens: once more for a link that looked like a
        file, see `walk.Needs`, and for a file that was replaced since it was looked at, as objects of a bucket are."""
        look = functools.partial(resolve, self._named, path, needs="name")
        for _ in range(OPENED_ANEW):
            try:
                return work(look())
            except OSError as error:
                if error.errno == errno.ELOOP and look.keywords:
                    look = functools.partial(resolve, self._named, path)
                elif error.errno != errno.ESTALE:
                    raise
        return work(look())

    def _read(self, path: str, attr: Attr, offset: int, limit: int) -> ReadResult:
        if text.has_binary_extension(path):
            refused = text.too_large_video(path, attr.size)
            return refused or self._read_binary(attr)
        take = functools.partial(text.read_pieces, offset=offset, limit=limit, kept=budget.current().hold)
        try:
            result, version = self._versioned(attr, take)
            result.version = version
            return result
        except UnicodeDecodeError:
            return self._read_binary(attr)

    def _read_binary(self, attr: Attr) -> ReadResult:
        data, version = self._versioned(attr, joined)
        result = text.read_binary(data)
        result.version = version
        return result

    def _versioned(self, attr: Attr, take: Callable[[Iterable[bytes]], R]) -> tuple[R, str | None]:
        """Return the result of `take` for all bytes of a file, with the version of these; see `read_with`."""
        version: str | None = None

        def seen(attr: Attr) -> None:
            nonlocal version
            version = self._named.version_of(attr)

        def passed(pieces: Iterable[bytes]) -> R:
            nonlocal version
            if version is not None:
                return take(pieces)
            digest = Digest()
            outcome = take(digest.passing(pieces))
            version = digest.version
            return outcome

        return read_with(self._named, attr, self.max_file_bytes, passed, seen), version

    def _search(self, path: AgentPath, matcher: Matcher | None, pattern: str | None = None) -> Search:
        """Overridden by a faster one: see `search.FileSearch`, which it has to agree with."""
        return FileSearch(self._named, path, matcher, self.max_search_bytes)

    @verbs.DOWNLOAD_FILES.answers()
    def download(self, path: str) -> FileDownloadResponse:
        content, version = self._opening(self._path(path), lambda place: self._versioned(place.found, joined))
        return FileDownloadResponse(path=path, content=content, version=version)

    @verbs.DOWNLOAD_FILES.answers()
    def download_to(self, path: str, file: IO[bytes]) -> FileDownloadResponse:
        """`download_files` of one file into another, which is empty, piece by piece. The answer has no content."""

        def take(pieces: Iterable[bytes]) -> None:
            file.seek(0)  # it changed while it was read, so it is read again
            file.truncate()
            for piece in pieces:
                file.write(piece)

        _, version = self._opening(self._path(path), lambda place: self._versioned(place.found, take))
        return FileDownloadResponse(path=path, version=version)

    def _require(self, condition: Condition, attr: Attr | None, read: Callable[[], bytes] | None = None) -> None:
        """Raise `Changed` if a condition of a change is not met. EISDIR for the version of a directory. Call it with
        the lock held.

        Args:
            read: returns the file's bytes, where they are known.
        """
        if condition == ANY:
            return
        if attr is None:
            condition.require(None, is_there=False)
        elif condition.absent and not stat.S_ISREG(attr.mode):
            condition.require(None)
        else:
            require_regular(attr)
            found = None if condition.wants_digest else self._named.version_of(attr)
            if found is None:
                found = version_of_bytes(read() if read else read_with(self._named, attr, self.max_file_bytes, joined))
            condition.require(found)

    def real_paths(self, wanted: list[str]) -> list[str | None]:
        return [self._real_path(path) for path in wanted]

    def _real_path(self, path: str) -> str | None:
        try:
            return resolve(self._named, self._path(path)).path
        except Refusal:
            return None

    # -- writing -----------------------------------------------------------------------------------------------

    @verbs.UPLOAD_FILES.answers()
    def upload_from(self, path: str, file: IO[bytes], **when: Unpack[Conditions]) -> FileUploadResponse:
        """`upload_files` of one file, from an open file, piece by piece."""
        condition = Condition.of(**when)
        self._put_if(self._path(path), FileContents(file), condition, replace=True)
        return FileUploadResponse(path=path)

    def _put_if(self, path: AgentPath, data: bytes | FileContents, condition: Condition, *, replace: bool) -> None:
        """An existing file gets its contents in place."""
        follow = replace and not condition.absent

        def put(changes: Changes) -> None:
            # As open(2): O_EXCL finds a symbolic link itself in the way, without it a link is followed.
            place = resolve(self._named, path, follow=follow)
            self._require(condition, place.attr)
            if place.attr is None:
                self._create(place, data, changes)
            elif not replace:
                raise errors.oserror(errno.EEXIST)
            else:
                require_regular(place.attr)
                self._named.require_room(place.attr, len(data))  # what does not fit leaves the file as it is
                # Reported even if it fails half-way: the file has changed then, too.
                changes.append(Change(node=place.attr.node, kind="modified", path=place.path))
                overwrite(self._named, place.attr.node, data)

        if replace:
            self._rewrite(path, put)
        else:
            self._named.change_as_one(put, path)

    def _create(self, place: Place, data: bytes | FileContents, changes: Changes) -> None:
        with self._parents(place, changes) as parent:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            node = self._named.create(parent, place.name, FILE_MODE, flags, caller()).node
            made = Change(node, parent, place.name, "created", place.path)
            changes.append(made)  # a large file may be durable in part
            try:
                try:
                    write_pieces(self._named, node, data)
                finally:
                    self._named.release(node, flags)
            except OSError:
                with contextlib.suppress(OSError):  # the first error is the one to tell
                    self._named.without_rules.unlink(parent, place.name)  # no half-written file where there was none
                    _take_back(made, changes)
                raise

    def _change_if(self, path: AgentPath, change: Callable[[bytes], bytes], condition: Condition) -> None:
        """The new contents of a large file take long: they are made with the lock free, as long as it does not change
        meanwhile. Overridden where files are stored whole."""
        ahead: tuple[object, bytes, bytes] | None = None

        def made(attr: Attr) -> tuple[object, bytes, bytes]:
            """What a file was known by, its bytes, and the new ones."""
            seen = attr.node, attr.fingerprint
            before = read_with(self._named, attr, self.max_file_bytes, joined)
            self._require(condition, attr, functools.partial(bytes, before))
            return seen, before, change(before)

        def store(changes: Changes) -> bool:
            place = resolve(self._named, path)
            node = place.found.node
            if ahead is not None and (node, place.found.fingerprint) != ahead[0]:
                return False
            _, before, after = ahead or made(place.found)
            changes.append(Change(node=node, kind="modified", path=place.path))
            rewrite(self._named, node, before, after)
            return True

        for left in reversed(range(EDIT_ATTEMPTS)):
            attr = resolve(self._named, path).found
            ahead = made(attr) if left and attr.size > EDITED_LOCKED_BYTES else None
            if self._rewrite(path, store, attr.node):
                return

    def _rewrite(self, path: AgentPath, work: Callable[[Changes], R], node: int | None = None) -> R:
        """`change_as_one` of the contents of a file, after open handles of it (`rewriting`).

        Args:
            node: of the file, where it is known.
        """
        if node is None and self._named.is_guarded:
            with contextlib.suppress(*Refusal):  # it will be refused again
                node = resolve(self._named, path).found.node
        with contextlib.nullcontext() if node is None else self._named.rewriting(node):
            return self._named.change_as_one(work, path, reads=True)

    # -- in the kernel's way: these are no agent verbs, and raise --------------------------------------------------

    def read_range(self, path: str, offset: int, size: int) -> FileRange:
        """Return up to `size` bytes from byte `offset` on, fewer at the end of the file alone.

        Raises:
            PathError: the path is malformed.
            OSError: ENOENT, EISDIR, EINVAL (no regular file), EACCES, or the volume's.
            Spent: the caller may not hold so much in memory (`Budget.hold`).
        """
        attr = resolve(self._named, self._path(path)).found
        require_regular(attr)
        content = bytearray()
        with opened(self._named, attr.node, os.O_RDONLY) as node:
            while len(content) < size and (
                piece := self._named.read(node, offset + len(content), min(size - len(content), PIECE_BYTES))
            ):
                budget.current().hold(3 * len(piece))  # with the answer, in base64
                content += piece
            after = self._named.getattr(node)
            return FileRange(bytes(content), after.size, after.mtime_ns, after.ctime_ns)

    def append(self, path: str, file: IO[bytes]) -> None:
        """Add the contents of a file at the end of another; directories and file are made if absent. What others
        append meanwhile stays.

        Raises:
            PathError: the path is malformed.
            OSError: EISDIR, EINVAL (no regular file), EACCES, EROFS, ENOSPC, EDQUOT, ESTALE (changed elsewhere, where a
                volume stores whole files), or the volume's.
        """
        data, at = FileContents(file), self._path(path)

        def append(changes: Changes) -> None:
            place = resolve(self._named, at)
            if place.attr is None:
                self._create(place, data, changes)
                return
            require_regular(place.attr)
            node = place.attr.node
            changes.append(Change(node=node, kind="modified", path=place.path))
            with opened(self._named, node, os.O_WRONLY | os.O_APPEND) as node:
                for offset in range(0, len(data), PIECE_BYTES):
                    self._named.append(node, data.piece(offset))
                if not self._named.features.random_writes:
                    self._named.flush(node)

        self._rewrite(at, append)

    def make_directory(self, path: str, *, parents: bool = False) -> None:
        """Make a directory; with `parents` also those on the way.

        Raises:
            PathError: the path is malformed.
            OSError: EEXIST, ENOENT (no directory to make it in), ENOTDIR, EACCES, EROFS, or the volume's.
        """
        at = self._path(path)

        def make(changes: Changes) -> None:
            place = resolve(self._named, at, follow=False)
            if place.attr is not None:
                raise errors.oserror(errno.EEXIST)
            if place.missing and not parents:
                raise errors.oserror(errno.ENOENT)
            with self._parents(place, changes) as parent:
                node = self._named.mkdir(parent, place.name, DIRECTORY_MODE, caller()).node
            changes.append(Change(node, parent, place.name, "created", place.path + "/"))

        self._named.change_as_one(make, at)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory.

        Raises:
            PathError: the path is malformed.
            OSError: ENOENT, ENOTDIR, ENOTEMPTY, EBUSY (the root), EACCES, EROFS, or the volume's.
        """
        at = self._path(path)

        def remove(changes: Changes) -> None:
            place = resolve(self._named, at, follow=False)
            if place.found.node == ROOT_NODE:
                raise errors.oserror(errno.EBUSY)
            if not place.found.is_dir:
                raise errors.oserror(errno.ENOTDIR)
            placing.remove(self._named, place.parent, place.name, place.found, changes, place.path)

        self._named.change_as_one(remove, at, removes=True)

    # -- names -------------------------------------------------------------------------------------------------

    @verbs.MOVE.answers()
    def move(
        self, source: str, destination: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> MoveResult:
        condition, here, there = Condition.of(if_version), self._path(source), self._path(destination)

        def move(changes: Changes) -> None:
            old = resolve(self._named, here, follow=False, needs="name")
            moved = old.found
            new = resolve(self._named, there, follow=False, needs="name")
            if moved.node == ROOT_NODE:
                raise OSError(errno.EBUSY, "The root can't be moved")
            self._require(condition, moved)
            if new.attr is not None:
                raise Changed(None, is_there=True, of_target=True) if if_absent else errors.oserror(errno.EEXIST)
            if moved.node in new.trail:
                raise OSError(errno.EINVAL, "A directory can't be moved into itself")
            self._named.require_rename(old.path, new.path)
            with self._parents(new, changes) as parent:
                self._named.rename(old.parent, old.name, parent, new.name, RENAME_NOREPLACE)
            changes += [Change(node=old.parent), Change(node=moved.node, parent=old.parent, name=old.name)]
            end = "/" if moved.is_dir else ""
            changes.append(Change(moved.node, parent, new.name, "moved", new.path + end, old.path + end))

        self._named.change_as_one(move, here, there, removes=True)
        return MoveResult(path=there)

    @verbs.DELETE.answers()
    def delete(self, file_path: str, *, if_version: str | None = None) -> DeleteResult:
        condition, path = Condition.of(if_version), self._path(file_path)

        def delete(changes: Changes) -> Doomed | None:
            """Returns a directory, which is left to be deleted."""
            needs: Needs = "attributes" if file_path.endswith("/") else "name"
            place = resolve(self._named, path, follow=False, needs=needs)
            if place.found.node == ROOT_NODE:
                raise OSError(errno.EBUSY, "The root can't be deleted")
            # A link to a directory has a slash in listings, too; it is the link that goes, wherever it leads by now.
            if file_path.endswith("/") and not (place.found.is_dir or stat.S_ISLNK(place.found.mode)):
                raise errors.oserror(errno.ENOTDIR)
            self._require(condition, place.found)
            if place.found.is_dir:
                return Doomed(place.parent, place.name, place.found.node, place.path)
            placing.remove(self._named, place.parent, place.name, place.found, changes, place.path)
            return None

        doomed = self._named.change_as_one(delete, path, removes=True)
        if doomed is not None:
            self._named.require_removable(doomed.path)
            remove_tree(self._named, doomed)
        return DeleteResult(path=path)

    @contextlib.contextmanager
    def _parents(self, place: Place, changes: Changes) -> Iterator[int]:
        """Make the directories that a place lacks, and yield the one for its name. An error undoes them. Others may
        make the same ones meanwhile, where the lock excludes nobody."""
        self._named.require_new(*place.missing_paths, place.path)
        changes.append(Change(node=place.parent))
        made: Changes = []
        parent = place.parent
        try:
            for name, path in zip(place.missing, place.missing_paths, strict=True):
                try:
                    node = self._named.mkdir(parent, name, DIRECTORY_MODE, caller()).node
                except FileExistsError:
                    node = self._named.lookup(parent, name).node
                else:
                    made.append(Change(node, parent, name, "created", path + "/"))
                    changes.append(made[-1])
                parent = node
            yield parent
        except OSError:
            for change in reversed(made):
                assert change.parent is not None and change.name is not None
                with contextlib.suppress(OSError):  # others have put something there
                    self._named.without_rules.rmdir(change.parent, change.name)
                    _take_back(change, changes)
            raise


def _take_back(made: Change, changes: Changes) -> None:
    """Have the change be for caches alone: nobody has seen what was made."""
    changes[changes.index(made)] = made._replace(kind="deleted", path="")


def _size_of(entry: tuple[bytes, Attr]) -> int:
    return budget.ENTRY_BYTES + len(entry[0])


def caller() -> Caller:
    """The owner of files that an agent makes: the server's own user."""
    return Caller(os.geteuid(), os.getegid(), os.getpid())
