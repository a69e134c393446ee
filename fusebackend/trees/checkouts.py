"""`Checkouts`: branches in plain directories of this machine, where nothing has to be mounted to work on them.

A branch is put into a directory by a copy of what differs, and what is changed there is taken in before the branch is
merged or compared: both are mirrors of a whole tree (`restore.mirror`). What was changed since on both sides, in the
directory and in the branch's own tree, is a conflict: a mirror then changes nothing.

A file beside the branches says which directory holds which, by path, device and inode, also after the branch was
deleted: a new branch may then be put there, which copies what differs. No other directory that has something in it is
ever written to. One call at a time, by any thread but the mount's loop.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.base.durable import replace_file
from fusebackend.base.paths import is_below
from fusebackend.base.stamps import coarse_ns
from fusebackend.linux.mount_table import MountError
from fusebackend.trees.branches import Branches
from fusebackend.trees.restore import mirror

FILE = "directories.json"
"""The file that says which directory holds which branch."""

JOURNAL = "@directory"
"""The name of a mirror's journal, which no branch can have."""


class Held(NamedTuple):
    """A directory that holds a branch, or has held one.

    Attributes:
        branch: its name; None once it was deleted.
        device, inode: of the directory, which another one at its path does not have.
        synced_ns: when both were the same.
    """

    branch: str | None
    device: int
    inode: int
    synced_ns: int


class Checkouts:
    """See the module's docstring.

    Args:
        branches: of the mount.
        forbidden: directories that no branch may be put into, above, or below: the mount point, those of routes.
    """

    def __init__(self, branches: Branches, forbidden: Iterable[str] = ()) -> None:
        self._branches = branches
        self._forbidden = [os.path.realpath(path) for path in forbidden]
        self._guard = threading.Lock()

    def directory(self, name: str) -> str | None:
        """Return the directory that holds a branch; None if none does."""
        return next((path for path, held in self._read().items() if held.branch == name), None)

    def put(self, name: str, path: str) -> None:
        """Put a branch into a directory, which is made if it is missing.

        One that holds this branch already has its own changes taken in, and gets those of the branch's tree.

        Raises:
            OSError: ENOTEMPTY, it holds something else; EBUSY, another branch, or the branch is in another directory;
                EINVAL, it is no place for one; ESTALE, both have changed; or an error of the file system.
        """
        real = os.path.realpath(path)
        with self._guard:
            known = self._read()
            held = self._held(known, real)
            elsewhere = next((each for each, one in known.items() if one.branch == name and each != real), None)
            if elsewhere is not None and os.path.isdir(elsewhere):
                raise OSError(errno.EBUSY, f"branch '{name}' is in '{elsewhere}' already")
            is_new = not os.path.isdir(real)
            if held is None:
                self._require_free(real)
                try:
                    os.makedirs(real, 0o700, exist_ok=True)
                except OSError as error:
                    raise OSError(error.errno, f"'{real}' can't be made: {error.strerror}") from None
            elif held.branch not in (None, name):
                raise OSError(errno.EBUSY, f"'{real}' holds branch '{held.branch}'; delete that one first")
            if held is not None and held.branch == name:
                self._synced(known, name, real, held, both_ways=True)
                return
            before = dict(known)
            known.pop(elsewhere or "", None)
            at = os.stat(real)
            # Noted first: a copy that is interrupted can be made again, and is no directory of somebody else's.
            self._write({**known, real: Held(None, at.st_dev, at.st_ino, 0)})
            try:
                self._mirror(name, real, into_branch=False)
            except OSError:
                if held is None:
                    with contextlib.suppress(OSError):  # the first error is the one to tell
                        _clear(real, itself=is_new)
                    self._write(before)
                raise
            self._write({**known, real: Held(name, at.st_dev, at.st_ino, _tick())})

    def take_in(self, name: str) -> None:
        """Take what was changed in the directory of a branch into the branch; nothing for one that is in none.

        Raises:
            OSError: ENOENT, the directory is gone; ESTALE, both have changed; or an error of the file system.
        """
        with self._guard:
            known = self._read()
            path = next((path for path, held in known.items() if held.branch == name), None)
            if path is None:
                return
            held = self._held(known, path)
            if held is None:
                why = f"'{path}', the directory of branch '{name}', is gone: put it back, or delete the branch"
                raise OSError(errno.ENOENT, why)
            self._synced(known, name, path, held)

    def forget(self, names: Sequence[str]) -> None:
        """Branches were deleted. Their directories stay as they are."""
        with self._guard:
            known = self._read()
            if any(held.branch in names for held in known.values()):
                self._write({
                    path: held._replace(branch=None) if held.branch in names else held for path, held in known.items()
                })  # fmt: skip

    def _synced(self, known: dict[str, Held], name: str, path: str, held: Held, *, both_ways: bool = False) -> None:
        try:
            self._mirror(name, path, into_branch=True, synced_ns=held.synced_ns)
        except OSError as error:
            if error.errno != errno.ESTALE or not both_ways:
                raise
            self._mirror(name, path, into_branch=False, synced_ns=held.synced_ns)
        self._write({**known, path: held._replace(synced_ns=_tick())})

    def _mirror(self, name: str, path: str, *, into_branch: bool, synced_ns: int | None = None) -> None:
        """Make one of both what the other is.

        Args:
            synced_ns: what changed later where it would be overwritten is a conflict; nothing is when None.
        """
        branch = self._branches.volume(name)
        with contextlib.closing(DirectoryVolume(path)) as there:
            branch.sync()
            source, destination = (there, branch) if into_branch else (branch, there)
            changed = mirror(source, destination, self._branches.journal(JOURNAL), changed_after_ns=synced_ns)
        if changed is not None:
            if into_branch:
                why = f"'{changed}' was changed in the branch's own tree since: put the branch into '{path}' again"
            else:
                own = "in the branch's own tree, too"
                why = f"'{changed}' was changed in '{path}', and there are changes {own}: make them the same there"
            raise OSError(errno.ESTALE, why)

    def _require_free(self, real: str) -> None:
        for other in self._forbidden:
            if is_below(real, other) or is_below(other, real):
                raise OSError(errno.EINVAL, f"'{real}' can't hold a branch: it and '{other}' lie in each other")
        try:
            with os.scandir(real) as entries:
                if next(entries, None) is not None:
                    raise OSError(errno.ENOTEMPTY, f"'{real}' is not empty: give a directory that is, or a new one")
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            raise MountError(errno.ENOTDIR, f"'{real}' is not a directory") from None

    def _held(self, known: dict[str, Held], path: str) -> Held | None:
        """Return what a directory holds; None if another one is there now."""
        with contextlib.suppress(KeyError, OSError):
            at = os.stat(path)
            if (known[path].device, known[path].inode) == (at.st_dev, at.st_ino):
                return known[path]
        return None

    @property
    def _file(self) -> str:
        return os.path.join(os.path.dirname(self._branches.journal(JOURNAL)), FILE)

    def _read(self) -> dict[str, Held]:
        try:
            with open(self._file, encoding="utf-8", errors="surrogateescape") as file:
                return {path: Held(*held) for path, held in json.load(file).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError):
            raise OSError(errno.EIO, f"'{self._file}' is damaged; remove it, and no directory holds a branch") from None

    def _write(self, known: dict[str, Held]) -> None:
        replace_file(self._file, json.dumps(known).encode("utf-8", "surrogateescape"))


def _tick() -> int:
    """Return a time that all stamps so far have at most, and that all later ones exceed: they are of the coarse clock.
    A change that somebody makes in the branch's own tree while it is mirrored may count as one before that."""
    now_ns = time.time_ns()
    while coarse_ns() <= now_ns:
        time.sleep(0.001)
    return now_ns


def _clear(path: str, *, itself: bool) -> None:
    """Remove a copy that could not be completed, as far as that is possible."""
    with os.scandir(path) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
    if itself:
        os.rmdir(path)
