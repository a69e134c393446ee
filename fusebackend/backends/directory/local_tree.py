"""`LocalTree`: the regular files below a directory on disk, without a node for each.

A walk of a hundred thousand files would push every other node out of a volume's table, so `grep` and `glob` go by
descriptors alone. As in the volume, each step is one `openat` with O_NOFOLLOW from the directory above: what is found
is below the directory the walk started from, whoever swaps what meanwhile. Nobody's lock is held.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fusebackend.backends.directory.dirfd import FILE_FLAGS, LIST_FLAGS, Descriptor
from fusebackend.base import budget, paths
from fusebackend.base.errors import VANISHED, oserror
from fusebackend.volumes.walk import LISTED_BYTES, UNREADABLE

OPEN_LEVELS = 64
"""Directories of one walk that are open at a time; those above are opened again on the way back."""

SWAPPED = VANISHED | {errno.ELOOP}
"""What a walk meets when what it has just seen is gone, or is a link or something else now."""


class LocalFile(NamedTuple):
    """A regular file as the walk saw it."""

    path: str
    """Relative to where the walk started."""
    name: str
    status: os.stat_result
    directory: Descriptor

    def open(self) -> Descriptor:
        """Open it for reading. ENOENT when it is no regular file any more."""
        opened = Descriptor(os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | FILE_FLAGS, dir_fd=self.directory.fd))
        if not stat.S_ISREG(os.fstat(opened.fd).st_mode):
            raise oserror(errno.ENOENT)
        return opened

    def readable(self) -> bool:
        """May this process read it? False as well when it is gone."""
        return os.access(self.name, os.R_OK, dir_fd=self.directory.fd, effective_ids=True, follow_symlinks=False)


class _Level:
    """A directory on the way down: what is still to come of it."""

    __slots__ = ("directory", "held", "listing", "name", "prefix")

    def __init__(self, name: str, prefix: str, directory: Descriptor, listing: list[tuple[str, str]]) -> None:
        self.name = name
        self.prefix = prefix
        self.directory: Descriptor | None = directory
        self.listing = iter(listing)
        self.held = len(listing) * LISTED_BYTES


class LocalTree:
    """The files below a directory, in the order of their paths as text.

    The budget (`budget.current`) is asked for each directory and file; `Spent` ends the walk.

    Attributes:
        unreadable: something could not be looked into, so the walk is not complete.
    """

    def __init__(self, root: Descriptor, *, below: Sequence[str] = (), depth: int | None = None) -> None:
        """
        Args:
            root: the directory, open for reading its names.
            below: go down these plain names first and see nothing else.
            depth: how many segments a file's path has at most, `below` included.
        """
        self._root = root
        self._below = tuple(below)
        self._depth = depth
        self._budget = budget.current()
        self.unreadable = False

    def start(self) -> Descriptor | None:
        """The directory at the end of `below`, None when it is not there or may not be read."""
        return self._open(self._root, self._below)

    def __iter__(self) -> Iterator[LocalFile]:
        """Files that vanish meanwhile are passed over."""
        start = self.start()
        if start is None:
            return
        prefix = "".join(f"{name}/" for name in self._below)
        levels = [_Level("", prefix, start, self._listing(start))]
        while levels:
            level = levels[-1]
            directory = level.directory or self._reopen(levels)
            below = None
            for shown, name in level.listing if directory is not None else ():
                assert directory is not None
                self._budget.require()
                if not shown.endswith("/"):
                    found = self._file(level.prefix + shown, name, directory)
                    if found is not None:
                        yield found
                elif self._depth is None or len(levels) + len(self._below) < self._depth:
                    inner = self._open(directory, (name,))
                    if inner is not None:
                        below = _Level(name, level.prefix + shown, inner, self._listing(inner))
                        break
            if below is None:
                self._budget.hold(-levels.pop().held)
                continue
            levels.append(below)
            if len(levels) > OPEN_LEVELS:
                levels[-OPEN_LEVELS - 1].directory = None

    def _reopen(self, levels: list[_Level]) -> Descriptor | None:
        """The directory of the last level, and of half a window above it: the next ones on the way back."""
        found = self.start()
        for number, level in enumerate(levels):
            if found is not None and number > 0:
                found = self._open(found, (level.name,))
            level.directory = found if number >= len(levels) - OPEN_LEVELS // 2 else None
        return found

    def _open(self, directory: Descriptor, names: Sequence[str]) -> Descriptor | None:
        for name in names:
            try:
                directory = Descriptor(os.open(name, LIST_FLAGS, dir_fd=directory.fd))
            except (OSError, UnicodeEncodeError) as error:
                self._pass_over(error)
                return None
        return directory

    def _listing(self, directory: Descriptor) -> list[tuple[str, str]]:
        """Regular files and directories, as text and as the system's name. `/` ends the text of a directory, which
        makes the order that of paths."""
        listing: list[tuple[str, str]] = []
        try:
            with os.scandir(directory.fd) as found:
                for entry in self._budget.metered(self._budget.kept(found, lambda entry: LISTED_BYTES)):
                    text = paths.to_text(os.fsencode(entry.name))
                    if entry.is_file(follow_symlinks=False):
                        listing.append((text, entry.name))
                    elif entry.is_dir(follow_symlinks=False):
                        listing.append((text + "/", entry.name))
        except OSError as error:
            self._pass_over(error)
        listing.sort()
        return listing

    def _file(self, path: str, name: str, directory: Descriptor) -> LocalFile | None:
        try:
            status = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
        except OSError as error:
            self._pass_over(error)
            return None
        return LocalFile(path, name, status, directory) if stat.S_ISREG(status.st_mode) else None

    def _pass_over(self, error: OSError | UnicodeEncodeError) -> None:
        number = error.errno if isinstance(error, OSError) else errno.ENOENT
        if number in UNREADABLE:
            self.unreadable = True
        elif number not in SWAPPED and number != errno.ENAMETOOLONG:
            raise error
