"""utimensat and the times that calls change, of an object and of the directories it is in."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fusebackend.base.stamps import now_ns
from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import Case, fresh, make, opened

UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2

OLD_NS = 1_000_000_000_123_456_789
SECOND_NS = 1_000_000_000

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def utimensat(path: Path, atime: tuple[int, int], mtime: tuple[int, int], flags: int = 0) -> None:
    """utimensat(2) with the special values that `os.utime` does not pass."""
    times = (_Timespec * 2)(_Timespec(*atime), _Timespec(*mtime))
    if _libc.utimensat(-100, os.fsencode(path), times, flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Moves(NamedTuple):
    """A call in a directory with `file` and `dir/in`, and the paths whose times it moves; `.` is the directory itself.
    Where the class has them, `dir/twin` is another name of the file, which has the extended attribute `user.note`."""

    call: Callable[[Path], object]
    both: tuple[str, ...] = ()
    """Modification and change time."""
    change: tuple[str, ...] = ()
    """The change time alone."""
    needs: tuple[str, ...] = ()


def _opened(path: Path, flags: int, data: bytes = b"") -> None:
    with opened(path, flags) as fd:
        os.write(fd, data)


MOVES = {
    "write": Moves(lambda d: _opened(d / "file", os.O_WRONLY, b"new"), ("file",)),
    "O_TRUNC": Moves(lambda d: _opened(d / "file", os.O_WRONLY | os.O_TRUNC), ("file",)),
    "truncate to more": Moves(lambda d: os.truncate(d / "file", 100), ("file",)),
    "truncate to less": Moves(lambda d: os.truncate(d / "file", 2), ("file",)),
    "chmod": Moves(lambda d: os.chmod(d / "file", 0o600), change=("file",)),
    "read": Moves(lambda d: (d / "file").read_bytes()),
    "listdir": Moves(os.listdir),
    "stat": Moves(lambda d: (d / "file").stat()),
    "O_CREAT": Moves(lambda d: _opened(d / "new", os.O_WRONLY | os.O_CREAT), (".",)),
    "mkdir": Moves(lambda d: os.mkdir(d / "new"), (".",)),
    "symlink": Moves(lambda d: os.symlink("x", d / "new"), (".",), needs=("symlinks",)),
    "unlink": Moves(lambda d: os.unlink(d / "dir" / "in"), ("dir",)),
    "rmdir": Moves(lambda d: os.rmdir(d / "empty"), (".",)),
    "link": Moves(lambda d: os.link(d / "file", d / "dir" / "new"), ("dir",), ("file",), ("links",)),
    "unlink one of two names": Moves(lambda d: os.unlink(d / "dir" / "twin"), ("dir",), ("file",), ("links",)),
    "rename": Moves(lambda d: os.rename(d / "dir" / "in", d / "new"), (".", "dir"), needs=("rename",)),
    "setxattr": Moves(lambda d: os.setxattr(d / "file", "user.a", b"x"), change=("file",), needs=("xattrs",)),
    "removexattr": Moves(lambda d: os.removexattr(d / "file", "user.note"), change=("file",), needs=("xattrs",)),
}


def _tick(stamp_ns: int) -> None:
    """Wait until the kernel's coarse clock, which stamps files, is past a stamp, and one tick (up to 10 ms) more.

    The stamp may be ahead of the clock that this processor reads: other processors advance it, and some kernels stamp
    files with a finer resolution than the tick.
    """
    start = max(stamp_ns, now_ns())
    while now_ns() <= start:
        time.sleep(0.001)
    time.sleep(0.01)


class TimeCases(Case):
    @needs("persistent_modes")
    def test_utime_keeps_nanoseconds(self, file: Path) -> None:
        os.utime(file, ns=(OLD_NS, OLD_NS + 1))
        status = file.stat()
        assert (status.st_atime_ns, status.st_mtime_ns) == (OLD_NS, OLD_NS + 1)

    @needs("persistent_modes")
    def test_utime_now(self, file: Path) -> None:
        os.utime(file, ns=(OLD_NS, OLD_NS))
        utimensat(file, (0, UTIME_NOW), (0, UTIME_NOW))
        status = file.stat()
        assert abs(status.st_mtime_ns - time.time_ns()) < 60 * SECOND_NS
        assert abs(status.st_atime_ns - time.time_ns()) < 60 * SECOND_NS

    @needs("persistent_modes")
    def test_utime_omit(self, file: Path) -> None:
        os.utime(file, ns=(OLD_NS, OLD_NS))
        utimensat(file, (0, UTIME_OMIT), (5, 6))
        assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (OLD_NS, 5 * SECOND_NS + 6)
        utimensat(file, (7, 8), (0, UTIME_OMIT))
        assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (7 * SECOND_NS + 8, 5 * SECOND_NS + 6)

    @needs("persistent_modes", "wide_times")
    def test_times_before_1970_and_after_2038(self, d: Path) -> None:
        before_1970 = (-1, -86_400 * 365, -(1 << 31) + 1)
        later = (0, 1, (1 << 31) - 1, 1 << 31, 1 << 32, 5_000_000_000, 9_000_000_000)
        for case in each(before_1970 + later):
            with case as seconds, fresh(d) as own:
                file = own / "file"
                file.touch()
                for nanoseconds in (0, 1, 999_999_999):
                    wanted = seconds * SECOND_NS + nanoseconds
                    os.utime(file, ns=(wanted, wanted))
                    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (wanted, wanted)

    @needs("persistent_modes", "symlinks")
    def test_utime_of_a_symlink(self, d: Path, file: Path) -> None:
        os.symlink("file", d / "link")
        before = file.stat().st_mtime_ns
        os.utime(d / "link", ns=(OLD_NS, OLD_NS), follow_symlinks=False)
        assert (d / "link").lstat().st_mtime_ns == OLD_NS
        assert file.stat().st_mtime_ns == before

    @needs("persistent_modes")
    def test_utime_of_a_directory(self, d: Path) -> None:
        (d / "dir").mkdir()
        os.utime(d / "dir", ns=(OLD_NS, OLD_NS))
        assert (d / "dir").stat().st_mtime_ns == OLD_NS

    @needs("persistent_modes")
    def test_utime_changes_the_change_time(self, file: Path) -> None:
        before = file.stat().st_ctime_ns
        _tick(before)
        os.utime(file, ns=(OLD_NS, OLD_NS))
        assert file.stat().st_ctime_ns > before

    @needs("persistent_modes")
    def test_a_new_file_has_the_time_of_now(self, d: Path) -> None:
        start = time.time_ns() - SECOND_NS
        (d / "file").touch()
        (d / "dir").mkdir()
        for path in (d / "file", d / "dir"):
            status = path.stat()
            for stamp in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns):
                assert start <= stamp <= time.time_ns() + SECOND_NS

    @needs("persistent_modes")
    def test_the_times_that_a_call_moves(self, d: Path) -> None:
        for case in each(MOVES):
            with case as (call, both, change, words), fresh(d) as own:
                self.require(words)
                make(own, {"file": b"12345", "dir/in": b"x", "empty": None})
                if self.features.links:
                    os.link(own / "file", own / "dir" / "twin")
                if self.features.xattrs:
                    os.setxattr(own / "file", "user.note", b"x")
                before = {name: (own / name).lstat() for name in (".", "file", "dir", "dir/in", "empty")}
                _tick(max(status.st_ctime_ns for status in before.values()))
                call(own)
                for name in [name for name in before if (own / name).exists()]:
                    was, now = before[name], (own / name).lstat()
                    assert (now.st_mtime_ns > was.st_mtime_ns) == (name in both), f"modification time of {name}"
                    assert (now.st_ctime_ns > was.st_ctime_ns) == (name in both + change), f"change time of {name}"

    @needs("persistent_modes")
    def test_write_through_an_open_handle_shows_at_once(self, file: Path) -> None:
        with opened(file, os.O_WRONLY) as fd:
            for _ in range(3):
                before = file.stat()
                _tick(before.st_ctime_ns)
                os.write(fd, b"more")
                assert file.stat().st_ctime_ns > before.st_ctime_ns
                assert file.stat().st_mtime_ns > before.st_mtime_ns

    @needs("persistent_modes")
    def test_utime_after_a_write_on_an_open_handle_wins(self, file: Path) -> None:
        with opened(file, os.O_WRONLY) as fd:
            os.write(fd, b"written before utime")
            os.utime(fd, ns=(OLD_NS, OLD_NS))
            assert file.stat().st_mtime_ns == OLD_NS
        assert file.stat().st_mtime_ns == OLD_NS  # closing writes pages back, and must not stamp the file again

    @needs("persistent_modes")
    def test_times_survive_a_rename(self, d: Path, file: Path) -> None:
        os.utime(file, ns=(OLD_NS, OLD_NS))
        os.rename(file, d / "moved")
        assert (d / "moved").stat().st_mtime_ns == OLD_NS
