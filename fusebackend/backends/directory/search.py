"""Searches: `LocalTree` walks the files below a directory, and `find_candidates` has ripgrep sort out most of them.

A walk makes no nodes: a hundred thousand files would push every other node out of a volume's table. As in the volume,
each step is one `openat` with O_NOFOLLOW from the directory above, so a swapped directory leads nowhere else. No lock
is held.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fusebackend.backends.directory.dirfd import FILE_FLAGS, LIST_FLAGS, Descriptor
from fusebackend.base import budget, paths
from fusebackend.base.budget import Budget
from fusebackend.base.errors import VANISHED, oserror
from fusebackend.volumes.walk import LISTED_BYTES, UNREADABLE

OPEN_LEVELS = 64
"""Directories of one walk that are open at a time; those above are opened again on the way back."""

SWAPPED = VANISHED | {errno.ELOOP}
"""Errors in a walk when a file that it has just seen is gone, or is a link or something else now."""


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
        """Return True if this process may read it. False as well when it is gone."""
        return os.access(self.name, os.R_OK, dir_fd=self.directory.fd, effective_ids=True, follow_symlinks=False)


class _Level:
    """A directory on the way down: its entries that are still to come."""

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


# -- ripgrep --------------------------------------------------------------------------------------------------

SHARE = 0.7
"""The share of the search's budget after which `rg` is ended. The files that it has named are read in the rest; the
answer of `grep` says `truncated`."""

POLL_S = 0.05
"""Interval of the checks for a cancelled search."""

PATTERN_BYTES = 64 << 10
"""Longer patterns are left to Python: the system takes arguments of up to 128 KiB."""

ARGUMENTS = (
    "--no-config", "--files-with-matches", "--null", "--fixed-strings", "--case-sensitive", "--text", "--hidden",
    "--no-ignore", "--no-follow", "--no-mmap", "--color=never", "--encoding=none", "--regex-size-limit=1G",
)  # fmt: skip

_ERROR_NUMBER = re.compile(rb"\(os error (\d+)\)")
_NO_MATCH, _FAILED = 1, 2


class Candidates(NamedTuple):
    """Files that may match, as paths relative to the directory."""

    files: frozenset[str]
    complete: bool = True
    """False when the budget ended it."""
    denied: bool = False
    """Some file or directory may not be read."""


def find_candidates(directory: int, pattern: str, max_bytes: int, *, program: str = "rg") -> Candidates | None:
    """Find the files below a directory, up to `max_bytes` in size, that hold `pattern`: ten times faster than Python.

    `rg` names the files (`-l`). The caller reads their lines through descriptors, by the rules of `text.grep_lines`, so
    the answer is the same to the byte, and as confined: `rg` goes by paths, so a directory that is swapped for a link
    meanwhile can lead it outside, and lines printed by `rg` could be of any file of the machine. A file that it names
    wrongly is read and does not match. Its arguments make it search every file, hidden or ignored, as bytes.

    Returns None when `rg` is not installed, does not take the pattern, or met an error of the disk.

    Args:
        directory: an open descriptor.
    """
    try:
        needle = pattern.encode("utf-8")
    except UnicodeEncodeError:
        return Candidates(frozenset())
    if b"\n" in needle or b"\0" in needle:
        return Candidates(frozenset())  # in no line of a text file
    found = shutil.which(program)
    if found is None or len(needle) > PATTERN_BYTES:
        return None
    # The child enters the directory by the descriptor, before it is closed: no path that could lead elsewhere.
    process = subprocess.Popen(
        [found, *ARGUMENTS, f"--max-filesize={max_bytes}", "-e", needle, "--", "./"],
        cwd=f"/proc/self/fd/{directory}",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            output, messages, ended = _output(process, budget.current())
        except BaseException:
            process.kill()
            raise
    if ended:
        return Candidates(_names(output), complete=False)
    if process.returncode not in (0, _NO_MATCH, _FAILED):
        return None
    met = {int(number) for number in _ERROR_NUMBER.findall(messages)}
    if (process.returncode == _FAILED and not met) or met - SWAPPED - UNREADABLE:
        return None
    return Candidates(_names(output), denied=bool(met & UNREADABLE))


def _output(process: subprocess.Popen[bytes], left: Budget) -> tuple[bytes, bytes, bool]:
    """Return its stdout and stderr, and True if they were cut short."""
    share = left.within(left.left_s * SHARE)
    while not share.spent:
        try:
            return *process.communicate(timeout=min(share.left_s, POLL_S)), False
        except subprocess.TimeoutExpired:  # nothing is lost: the next call goes on
            continue
    process.kill()
    return *process.communicate(), True


def _names(output: bytes) -> frozenset[str]:
    names = output.split(b"\0")[:-1]  # the part after the last NUL is empty, or was cut by a time-out
    return frozenset(paths.to_text(name.removeprefix(b"./")) for name in names)
