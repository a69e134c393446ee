"""`ForeignVolume`: the kernel face of any object that has the agent face alone, ours or somebody else's.

Files are whole: a file is downloaded when it is opened, read and written in a buffer (in memory up to 8 MiB, in a
temporary file beyond), and uploaded when it was written to and is flushed, synced or closed for the last time. An
upload that fails is the error of that flush; the bytes stay here, and are tried again at the next flush, at `sync` and
at `close`. A conflict with another writer is ESTALE, and loses neither side's bytes (`whole_files.py`).

What a backend can't hold:
- directories without a file: they are kept in this volume, and so is a directory that was emptied through it, until a
  file appears in them. They don't outlive it;
- modes, owners and times: kept in this volume as well, for tools that set them (`Features.persistent_modes` is False);
- links, special files, extended attributes: ENOTSUP. Names that are no UTF-8: EILSEQ;
- an atomic rename: a file is copied, compared, then deleted, and a directory file by file; a backend with a `move` is
  asked to do it where nothing is in the way. RENAME_EXCHANGE is EINVAL;
- deleting, where the backend has no `delete`: ENOTSUP.

A backend tells nobody what others change, so what it lists is believed for `ttl_s`. Sizes in listings may be missing,
or count characters; unless the backend says `exact_sizes = True`, a file is downloaded to know its size when somebody
asks for it, for a wrong size cuts reads short. `told` is how a composite says what it changed through the other face.

A backend may know more, and say so by having (see `StoreBackend`):
- `kernel_side(ttl_s)`: what a mount is to speak to in its place;
- `token()`: whether anything has changed since; `follow(changed)`: what has, and `change_feed = True` if that is all;
- `upload_if(path, content, digest)`: an upload over known bytes only, in one step;
- `admits(path, is_dir)`: raises an OSError for what can't be made there at all, so that nobody writes it in vain;
- `ttl_s`: for how long a mount may believe it.

Calls may wait for the backend and hold the volume's lock meanwhile; `hold` and `forget` never wait.
"""

from __future__ import annotations

import errno
import logging
import stat
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import RENAME_NOREPLACE, Attr, Caller, Change, Volume
from fusebackend.remote.buffer import Buffer
from fusebackend.remote.changes import AbsentNames, changes_at, changes_everywhere
from fusebackend.remote.entry import Entry, require_text
from fusebackend.remote.files import ForeignFiles
from fusebackend.remote.rename import Relocation

log = logging.getLogger(__name__)

TRUSTED_BYTES = 1 << 20
"""In a page of a listing, a size claimed to be larger is shown as it is: to download such files for a plain `ls` would
be worse. `lookup` and `getattr` know better."""

_volumes: weakref.WeakValueDictionary[int, ForeignVolume] = weakref.WeakValueDictionary()


def volume_of(backend: Any) -> Volume:
    """The kernel face of a backend: its own volume, or the one `ForeignVolume` of it that there is in this process.

    Raises:
        TypeError: it is a factory, or can't list a directory.
    """
    own = getattr(backend, "volume", None)
    if isinstance(own, Volume):
        return own
    return foreign_volume(backend) or _volumes.setdefault(id(backend), ForeignVolume(backend))


def foreign_volume(backend: Any) -> ForeignVolume | None:
    """The `ForeignVolume` of a backend, if somebody has asked for one and still uses it."""
    return _volumes.get(id(backend))  # a volume keeps its backend, so an id in the table is nobody else's


class ForeignVolume(ForeignFiles):
    """See the module's docstring.

    Args:
        backend: the object. It may say `exact_sizes`, `blocking` and `durable` about itself (attributes), and have
            what the module's docstring lists.
        exact_sizes: are the sizes in its listings bytes? None: as the backend says, which is False by default.
        ttl_s: for how many seconds a listing is believed.
        clock: seconds that only grow.
    """

    def __init__(self, backend: Any, **options: Any) -> None:
        super().__init__(backend, **options)
        self._absent = AbsentNames()
        self._unfollow: Callable[[], None] | None = None

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        forgotten = None
        try:
            with self.lock:
                try:
                    entry = self._named(self._tree.entry(parent), name)
                except FileNotFoundError:
                    forgotten = self._absent.add(parent, name) if self.features.change_feed else None
                    raise
                self._files.measure([entry])
                return entry
        finally:
            if forgotten is not None:
                self.tell([forgotten])

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        with self.lock:
            page = self._tree.page(self._tree.entry(node), after, limit)
            self._files.measure(entry for entry in page if entry.size <= TRUSTED_BYTES)
            return [(entry.name, entry) for entry in page]

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        if not stat.S_ISREG(mode):
            raise oserror(errno.ENOTSUP, name)
        with self.lock:
            entry = self._new_file(parent, name, mode, caller)
            try:
                self._files.store(entry)
            except OSError as error:
                self._files.revert(entry)
                self._tree.unlinked(entry)
                raise oserror(errno.EEXIST, name) if error.errno == errno.ESTALE else error from None
            self._files.drop(entry)
            return entry

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        """The file is in this volume alone until it is flushed."""
        with self.lock:
            entry = self._new_file(parent, name, mode, caller)
            entry.opens = 1
            self._files.admit(entry, flags)
            return entry

    def _new_file(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        self._admit(parent, name, is_dir=False)
        entry = self._tree.make(self._tree.entry(parent), name, stat.S_IFREG | stat.S_IMODE(mode), caller)
        entry.buffer, entry.dirty, entry.baseline = Buffer(), True, None
        return entry

    def _admit(self, parent: int, name: bytes, *, is_dir: bool) -> None:
        admits = getattr(self._face.backend, "admits", None)
        if callable(admits):
            require_text(name)
            admits(paths.join(self._tree.path(self._tree.entry(parent)), paths.to_text(name)), is_dir=is_dir)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        with self.lock:
            self._admit(parent, name, is_dir=True)
            return self._tree.make(self._tree.entry(parent), name, stat.S_IFDIR | stat.S_IMODE(mode), caller)

    def unlink(self, parent: int, name: bytes) -> None:
        with self.lock:
            entry = self._named(self._tree.entry(parent), name)
            if entry.is_dir:
                raise oserror(errno.EISDIR, name)
            if not entry.local:
                self._delete(entry)
            self._tree.unlinked(entry)

    def rmdir(self, parent: int, name: bytes) -> None:
        with self.lock:
            entry = self._named(self._tree.entry(parent), name)
            if not entry.is_dir:
                raise oserror(errno.ENOTDIR, name)
            self._require_empty(entry)
            if self._tree.backend_lists(entry):
                self._delete(entry)
            self._tree.unlinked(entry)

    def _named(self, parent: Entry, name: bytes) -> Entry:
        entry = self._tree.child(parent, name)
        if entry is None:
            raise oserror(errno.ENOENT, name)
        return entry

    def _require_empty(self, directory: Entry) -> None:
        self._tree.expire()
        if self._tree.listing(directory).infos:
            raise oserror(errno.ENOTEMPTY, directory.name)

    def _delete(self, entry: Entry) -> None:
        """Delete in the backend. What somebody else has deleted meanwhile is deleted as well."""
        self._require_delete()
        entry.require_writable()
        path = self._tree.path(entry)
        error = self._files.delete(path)
        if error is not None and self._tree.backend_lists(entry):
            raise self._tree.failure(error, path)

    def _require_delete(self) -> None:
        if self._face.lacks("delete"):
            raise OSError(errno.ENOTSUP, f"{self._face.name} has no delete")

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        if flags not in (0, RENAME_NOREPLACE):
            raise oserror(errno.EINVAL, name)
        require_text(new_name)
        with self.lock:
            directory = self._tree.entry(new_parent)
            entry = self._named(self._tree.entry(parent), name)
            target = self._tree.child(directory, new_name)
            if target is not None and flags == RENAME_NOREPLACE:
                raise oserror(errno.EEXIST, new_name)
            if target is entry:
                return
            self._require_replaceable(entry, target, directory)
            self._admit(new_parent, new_name, is_dir=entry.is_dir)
            for below in entry.tree():
                self._files.store(below)
            empty: list[AgentPath] = []
            if self._tree.backend_lists(entry):
                self._require_delete()
                if target is not None and target.is_dir and self._tree.backend_lists(target):
                    self._delete(target)
                new = paths.join(self._tree.path(directory), paths.to_text(new_name))
                replaces = target is not None and not target.is_dir and not target.local
                empty = Relocation(self._face, self._files, self._tree.failure).run(
                    self._tree.path(entry), new, is_dir=entry.is_dir, replaces=replaces
                )
            if target is not None:
                self._tree.unlinked(target)
            self._tree.relink(entry, directory, new_name)
            for path in empty:
                self._tree.make_directories(path)
            self._files.expire()

    def _require_replaceable(self, entry: Entry, target: Entry | None, directory: Entry) -> None:
        if self._tree.is_gone(directory):
            raise oserror(errno.ENOENT, directory.name)
        entry.require_writable()
        if entry.is_dir and directory.is_within(entry):
            raise oserror(errno.EINVAL, entry.name)
        if target is None:
            return
        target.require_writable()
        if target.is_dir and not entry.is_dir:
            raise oserror(errno.EISDIR, target.name)
        if entry.is_dir:
            if not target.is_dir:
                raise oserror(errno.ENOTDIR, target.name)
            self._require_empty(target)

    # -- life --------------------------------------------------------------------------------------------------

    def hold(self, node: int) -> None:
        self._tree.hold(node)

    def forget(self, nodes: Iterable[int]) -> None:
        """What can't be done without waiting is done with the next call."""
        self._tree.forget(nodes)
        if self._mutex.acquire(blocking=False):
            try:
                self._tree.settle()
            finally:
                self._mutex.release()

    def expire(self) -> None:
        """Believe nothing that was listed or downloaded before."""
        with self.lock:
            self._tree.expire()
            self._files.expire()

    def told(self, *changed: AgentPath, reports: Sequence[Change] = ()) -> None:
        """These paths were changed through the backend's agent face: forget what was known, and tell of it."""
        with self.changing() as changes:
            self.expire()
            for path in changed:
                changes += changes_at(self._tree, path)
            changes += reports

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """While somebody listens, so does this volume to its backend, if that tells of changes."""
        end = super().subscribe(callback)
        follow = getattr(self._face.backend, "follow", None)
        if self._unfollow is None and follow is not None:
            self._unfollow = follow(self._heard)

        def unsubscribe() -> None:
            end()
            if not self._subscribers and self._unfollow is not None:
                unfollow, self._unfollow = self._unfollow, None
                unfollow()

        return unsubscribe

    def _heard(self, *changed: AgentPath, elsewhere: bool) -> None:
        """The backend tells of changes, without paths when they may be anywhere; of those made by this process's own
        agents whoever made them tells the observers."""
        with self.lock:
            self.expire()
            changes = [change for path in changed for change in changes_at(self._tree, path)]
            if not changed:
                changes = [*changes_everywhere(self._tree), *self._absent.take()]
        if elsewhere:
            self.publish(*changes, *(Change(path=path, source="elsewhere") for path in changed))
        else:
            self.tell(changes)

    def close(self) -> None:
        self.sync()
