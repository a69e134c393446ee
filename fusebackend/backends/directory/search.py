"""Searches: `LocalWalk` walks the files below a directory, and `find_candidates` has ripgrep sort out most of them.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar, cast

from fusebackend.backends.directory.dirfd import FILE_FLAGS, LIST_FLAGS, Descriptor
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.base import budget, paths
from fusebackend.base.budget import Budget
from fusebackend.base.errors import VANISHED, oserror
from fusebackend.protocol import Attr, Volume
from fusebackend.volumes.contents import LOCKED_BYTES, PIECE_BYTES, read_with
from fusebackend.volumes.walk import LISTED_BYTES, UNREADABLE, FileWalk

OPEN_LEVELS = 64
"""Directories of one walk that are open at a time; those above are opened again on the way back."""

SWAPPED = VANISHED | {errno.ELOOP}
"""Errors in a walk when a file that it has just seen is gone, or is a link or something else now."""

T = TypeVar("T")


class LocalFile(Attr):
    """A regular file as the walk saw it, without a node.

    Args:
        name: its name in the directory.
    """

    __slots__ = ("directory", "name")

    def __init__(self, name: str, status: os.stat_result, directory: Descriptor) -> None:
        super().__init__(0, status.st_mode, size=status.st_size, mtime_ns=status.st_mtime_ns)
        self.name = name
        self.directory = directory

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


class LocalWalk(FileWalk):
    """A `FileWalk` of a `DirectoryVolume`. See the module's docstring."""

    def __iter__(self) -> Iterator[tuple[str, LocalFile]]:
        start = self._start()
        if start is None:
            return
        prefix, node = start
        try:
            root = cast("DirectoryVolume", self._volume).open_directory(node)
        except OSError as error:
            self._pass_over(error)
            return
        yield from self._files(root, prefix)

    def _files(self, root: Descriptor, prefix: str) -> Iterator[tuple[str, LocalFile]]:
        levels = [_Level("", prefix, root, self._names(root))]
        while levels:
            level = levels[-1]
            directory = level.directory or self._reopen(root, levels)
            below = None
            for shown, name in level.listing if directory is not None else ():
                assert directory is not None
                self._budget.require()
                if not shown.endswith("/"):
                    found = self._file(name, directory)
                    if found is not None:
                        yield level.prefix + shown, found
                elif self._depth is None or len(levels) + len(self._below) < self._depth:
                    inner = self._open(directory, name)
                    if inner is not None:
                        below = _Level(name, level.prefix + shown, inner, self._names(inner))
                        break
            if below is None:
                self._budget.hold(-levels.pop().held)
                continue
            levels.append(below)
            if len(levels) > OPEN_LEVELS:
                levels[-OPEN_LEVELS - 1].directory = None

    def _reopen(self, root: Descriptor, levels: list[_Level]) -> Descriptor | None:
        """The directory of the last level, and of half a window above it: the next ones on the way back."""
        found: Descriptor | None = root
        for number, level in enumerate(levels):
            if found is not None and number > 0:
                found = self._open(found, level.name)
            level.directory = found if number >= len(levels) - OPEN_LEVELS // 2 else None
        return found

    def _open(self, directory: Descriptor, name: str) -> Descriptor | None:
        try:
            return Descriptor(os.open(name, LIST_FLAGS, dir_fd=directory.fd))
        except OSError as error:
            self._pass_over(error)
            return None

    def _names(self, directory: Descriptor) -> list[tuple[str, str]]:
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

    def _file(self, name: str, directory: Descriptor) -> LocalFile | None:
        try:
            status = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
        except OSError as error:
            self._pass_over(error)
            return None
        return LocalFile(name, status, directory) if stat.S_ISREG(status.st_mode) else None

    def _pass_over(self, error: OSError | UnicodeEncodeError) -> None:
        if not (isinstance(error, OSError) and error.errno == errno.ELOOP):  # a link is in its place now
            super()._pass_over(error)


class SievedWalk(LocalWalk):
    """A `LocalWalk` of the files that may hold a pattern, by ripgrep. Those that can't be read are among them: reading
    them will say why not.

    Args:
        max_bytes: larger files are not looked at by ripgrep.
    """

    def __init__(
        self,
        pattern: str,
        max_bytes: int,
        volume: DirectoryVolume,
        directory: int,
        *,
        below: Sequence[str] = (),
        depth: int | None = None,
    ) -> None:
        super().__init__(volume, directory, below=below, depth=depth)
        self._pattern = pattern
        self._max_bytes = max_bytes

    def _files(self, root: Descriptor, prefix: str) -> Iterator[tuple[str, LocalFile]]:
        found = find_candidates(root.fd, self._pattern, self._max_bytes)
        if found is None:
            yield from super()._files(root, prefix)
            return
        self.unreadable |= not found.complete
        for path, file in super()._files(root, prefix):
            is_large = file.size > self._max_bytes
            if is_large or path.removeprefix(prefix) in found.files or (found.denied and not file.readable()):
                yield path, file


def read_local(volume: Volume, attr: Attr, max_bytes: int, take: Callable[[Iterable[bytes]], T]) -> T:
    """As `contents.read_with`, also for a file without a node."""
    if not isinstance(attr, LocalFile):
        return read_with(volume, attr, max_bytes, take)
    if attr.size > max_bytes:
        raise oserror(errno.EFBIG)
    return take(_pieces(volume, attr, max_bytes))


def _pieces(volume: Volume, file: LocalFile, max_bytes: int) -> Iterator[bytes]:
    """The bytes of a file. A small one is read in one go, with no write of a mount in between; a larger one may show
    lines of before and after a change."""
    opened = file.open()
    with volume.lock:
        piece = os.pread(opened.fd, min(LOCKED_BYTES, max_bytes + 1), 0)
    offset = len(piece)
    while piece:
        if offset > max_bytes:
            raise oserror(errno.EFBIG)  # it has grown, or is a file of /proc, which has no size
        yield piece
        piece = os.pread(opened.fd, PIECE_BYTES, offset)
        offset += len(piece)


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
