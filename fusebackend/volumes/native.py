"""`NativeVolume`: the lock and the change feed of every volume of this package.

The feed has two kinds of listeners. Subscribers keep caches: they are called after the change and with no lock held,
since they may have to wait for the kernel, and the kernel for a request that needs the lock. Observers keep account:
they are called in the order of this process's changes, and so with the lock held; changes made elsewhere come
without it (`publish`).
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from fusebackend.base.context import during
from fusebackend.protocol import STEP, Attr, Change, Changes, Guard, Observer, Volume

log = logging.getLogger(__name__)

Listener = TypeVar("Listener")
T = TypeVar("T")


class State(NamedTuple):
    """The attributes of a file, without its bytes."""

    mode: int
    """Type and permissions, as st_mode."""
    uid: int
    gid: int
    rdev: int
    size: int
    nlink: int
    atime_ns: int
    mtime_ns: int
    xattrs: dict[bytes, bytes]
    target: bytes
    """Of a symbolic link."""


class NewFile(NamedTuple):
    """A regular file that is to be made, by `NativeVolume.place`."""

    parent: int
    name: bytes
    state: State
    """All of it but the change time, which will be that of the making."""
    pieces: Iterable[tuple[int, bytes]]
    """Offset and bytes of each, in their order. They may all be in memory at once. They are read with the lock free:
    they may be of a volume whose readers wait for this one's, as a branch's do."""


_silent = contextvars.ContextVar("silent", default=False)


def silently() -> AbstractContextManager[object]:
    """Report no changes of this thread to observers meanwhile: they are steps of a change reported as a whole."""
    return during(_silent, True)


class _Later(threading.local):
    """What this thread is to tell of at the end of the block of `changing` that it is in; None outside of one."""

    changes: Changes | None = None


class NativeVolume(Volume):
    """A volume with a re-entrant `lock`, and lists of subscribers and observers. Each change of its agent face is
    reported before and after it is made.

    Attributes:
        directory_moves: how often a directory was moved or removed, under the lock. As long as the number is the same,
            each directory is where it was found. None where others than this object move them.
        watched: a `Watch` is open. Only then a backend without a change feed stats paths before it changes them.
        places_together: `place_all` takes much less time for many files than `place` for one after the other.
    """

    directory_moves: int | None = None
    watched = False
    places_together = False

    def __init__(self) -> None:
        self.lock = self._new_lock()
        self._subscribers: list[Callable[[Change], None]] = []
        self._observers: list[Observer] = []
        self._guards: list[Guard] = []
        self._changes: Changes = []  # of the block that holds the lock, where that excludes others
        self._later = _Later()

    def _new_lock(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def way_to(self, directory: int) -> bytes | None:
        """Return the names from the root to a directory, with `/` between them, as they are at this moment.

        None where they can't be told for less than looking each of them up. A directory that was removed may be told
        at any names.
        """
        return None

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        return listening(self._subscribers, callback)

    def observe(self, callback: Observer) -> Callable[[], None]:
        return listening(self._observers, callback)

    def guard(self, callback: Guard) -> Callable[[], None]:
        """Have `callback` called before an agent changes the contents of a node; returns the function that ends that.

        `callback` is called with no lock held, and may wait a moment for open handles. The function that it returns is
        called after subscribers and observers have been called.
        """
        return listening(self._guards, callback)

    @property
    def is_guarded(self) -> bool:
        return bool(self._guards)

    @contextlib.contextmanager
    def rewriting(self, node: int) -> Iterator[None]:
        """Enclose an agent's whole change of the contents of a node in the guards. Call it with no lock held."""
        with contextlib.ExitStack() as ends:
            for guard in tuple(self._guards):
                ends.callback(guard(node))
            yield

    def require_room(self, attr: Attr, size_bytes: int) -> None:
        """Raise EDQUOT if the volume's limit has no room for so many bytes in place of those of a file."""

    @contextlib.contextmanager
    def changing(self) -> Iterator[Changes]:
        """Hold the lock for a change by the agent face. Changes put into the list are reported, also after an error."""
        changes: Changes = []
        later: Changes = []
        shown = contextlib.ExitStack().close
        try:
            with self.lock:
                self.unpublished += 1
                outer, self._changes = self._changes, changes
                above, self._later.changes = self._later.changes, later
                try:
                    yield changes
                finally:
                    self.note_step(changes)
                    self._changes, self._later.changes = outer, above
                    shown = self.report(changes)
        finally:
            self.tell([*changes, *later])
            with self.lock:
                self.unpublished -= 1
            shown()

    def note_step(self, changes: Changes) -> None:
        """Have the verb of this thread record what it has made: the lock is about to be free, or a commit has it."""
        note = STEP.get()
        if note is not None:
            note.rows(self, changes)

    def change_as_one(self, work: Callable[[Changes], T], *paths: str, removes: bool = False, reads: bool = False) -> T:
        """Return the result of `work`, called in `changing`.

        A volume that several hosts change at once may undo what `work` has done and call it again, so that changes of
        different files need not wait for each other.

        Args:
            paths: `work` resolves them, and changes what is there. A volume may fetch them at once.
            removes: it removes or moves the names at the ends of them.
            reads: it reads the files.
        """
        with self.changing() as changes:
            return work(changes)

    def place(self, file: NewFile) -> Attr | None:
        """Make a regular file with its bytes and attributes under a vacant name, as one change: no reader sees a part
        of it, and neither does a crash. None if the volume can't, and has made nothing.

        Raises:
            OSError: EEXIST; ENOSPC; from `file.pieces`. Nothing is made then.
        """
        return None

    def place_all(self, files: Sequence[NewFile]) -> list[Attr | OSError]:
        """`place` many files, each as a change of its own. Only where `places_together`.

        Returns:
            for each its attributes, or why it was not made: ECANCELED if it was not begun after the error of another.
        """
        raise NotImplementedError("files are made one by one")

    @property
    def without_rules(self) -> NativeVolume:
        """The same files without the rules of a view or route: for what a verb does by itself after these have allowed
        the verb, such as to take back what it has made."""
        return self

    # A verb of several steps asks these before its first one. Paths are those of `Place.path`. What a volume can't know
    # before is no error here.

    def require_removable(self, path: str) -> None:
        """Raise why what is at a path, or something below it, can't be read and removed.

        Raises:
            OSError: ENOENT, ENOTDIR; EACCES, EPERM, EBUSY, EROFS. The text names nothing that rules hide.
        """

    def require_new(self, *paths: str, changed: bool = False) -> None:
        """Raise why nothing can be made at some paths.

        Args:
            changed: it is to be changed afterwards: its owner, its times, its name.

        Raises:
            OSError: EACCES, EROFS.
        """

    def require_rename(self, path: str, new: str) -> None:
        """Raise why a path can't be renamed to another one, whose directories may be missing.

        Raises:
            OSError: ENOENT, ENOTDIR; EACCES, EROFS; EXDEV, other rules apply there.
        """

    def change_at_once(self, work: Callable[[Changes], T]) -> T:
        """Do what `change_as_one` does, for names and attributes: of any number of them, a crash leaves all or none."""
        return self.change_as_one(work, removes=True)

    def publish(self, *changes: Change) -> None:
        """Report changes that were made behind this volume. Call it with no lock held.

        If none has a path, observers get `unknown` for the whole volume.
        """
        with_path = any(change.path for change in changes)
        shown = self.report(changes if with_path else [Change(path="/", source="elsewhere")])
        self.tell(changes)
        shown()

    def report(self, changes: Sequence[Change]) -> Callable[[], None]:
        """Call every observer with the changes that have a path. Call the function returned after `tell`."""
        seen = [change for change in changes if change.path]
        answers = contextlib.ExitStack()
        if seen and not _silent.get():
            for observer in tuple(self._observers):
                try:
                    if (shown := observer(seen)) is not None:
                        answers.callback(shown)
                except Exception:  # as in `tell`
                    log.exception("an observer failed on %r", seen[:3])
        return answers.close

    def tell(self, changes: Sequence[Change]) -> None:
        """Call every subscriber with each change for caches, in order: in a block of `changing` at its end, when this
        thread has let go of the lock. If one fails, that is logged."""
        if self._later.changes is not None:
            self._later.changes += changes
            return
        for callback in tuple(self._subscribers):
            for change in changes:
                if not change.is_for_caches:
                    continue
                try:
                    callback(change)
                except Exception:  # the change is made already
                    log.exception("a subscriber failed on %r", change)


def listening(listeners: list[Listener], callback: Listener) -> Callable[[], None]:
    """Add a listener; returns the function that removes it."""
    listeners.append(callback)

    def remove() -> None:
        if callback in listeners:
            listeners.remove(callback)

    return remove
