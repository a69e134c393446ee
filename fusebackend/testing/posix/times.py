"""utimensat and the times that calls change, of an object and of the directories it is in."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

from fusebackend.base.stamps import now_ns
from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import Case, fresh, opened

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


@contextlib.contextmanager
def changes(*paths: Path, mtime: bool = True) -> Iterator[None]:
    """Fail unless the body moves the change time (and with `mtime` the modification time) of each path forwards."""
    before = {path: path.lstat() for path in paths}
    _tick(max(status.st_ctime_ns for status in before.values()))
    yield
    for path, was in before.items():
        now = path.lstat()
        assert now.st_ctime_ns > was.st_ctime_ns, f"the change time of {path.name} stood still"
        if mtime:
            assert now.st_mtime_ns > was.st_mtime_ns, f"the modification time of {path.name} stood still"
        else:
            assert now.st_mtime_ns == was.st_mtime_ns, f"the modification time of {path.name} moved"


@contextlib.contextmanager
def leaves(*paths: Path) -> Iterator[None]:
    """Fail if the body changes modification or change time of a path."""
    before = {path: path.lstat() for path in paths}
    _tick(max(status.st_ctime_ns for status in before.values()))
    yield
    for path, was in before.items():
        now = path.lstat()
        assert (now.st_mtime_ns, now.st_ctime_ns) == (was.st_mtime_ns, was.st_ctime_ns), f"a time of {path.name} moved"


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
    def test_write_changes_the_file(self, d: Path, file: Path) -> None:
        with leaves(d), changes(file), opened(file, os.O_WRONLY) as fd:
            os.write(fd, b"new")

    @needs("persistent_modes")
    def test_write_through_an_open_handle_shows_at_once(self, file: Path) -> None:
        with opened(file, os.O_WRONLY) as fd:
            for _ in range(3):
                with changes(file):
                    os.write(fd, b"more")

    @needs("persistent_modes")
    def test_utime_after_a_write_on_an_open_handle_wins(self, file: Path) -> None:
        with opened(file, os.O_WRONLY) as fd:
            os.write(fd, b"written before utime")
            os.utime(fd, ns=(OLD_NS, OLD_NS))
            assert file.stat().st_mtime_ns == OLD_NS
        assert file.stat().st_mtime_ns == OLD_NS  # closing writes pages back, and must not stamp the file again

    @needs("persistent_modes")
    def test_read_and_stat_leave_mtime_and_ctime(self, d: Path, file: Path) -> None:
        with leaves(d, file):
            file.read_bytes()
            os.listdir(d)
            file.stat()

    @needs("persistent_modes")
    def test_truncate_changes_the_file(self, file: Path) -> None:
        for size in (100, 2):
            with changes(file):
                os.truncate(file, size)
        with changes(file):
            os.close(os.open(file, os.O_WRONLY | os.O_TRUNC))

    @needs("persistent_modes")
    def test_chmod_changes_only_the_change_time(self, d: Path, file: Path) -> None:
        with leaves(d), changes(file, mtime=False):
            os.chmod(file, 0o600)

    @needs("persistent_modes")
    def test_creating_a_name_changes_the_directory(self, d: Path) -> None:
        with changes(d):
            os.close(os.open(d / "file", os.O_WRONLY | os.O_CREAT))
        with changes(d):
            os.mkdir(d / "dir")
        if self.features.symlinks:
            with changes(d):
                os.symlink("x", d / "link")

    @needs("persistent_modes")
    def test_removing_a_name_changes_the_directory(self, d: Path, file: Path) -> None:
        (d / "dir").mkdir()
        with changes(d):
            os.unlink(file)
        with changes(d):
            os.rmdir(d / "dir")

    @needs("persistent_modes", "links")
    def test_link_changes_the_file_and_the_directory(self, d: Path, file: Path) -> None:
        (d / "dir").mkdir()
        with changes(file, mtime=False), changes(d / "dir"), leaves(d):
            os.link(file, d / "dir" / "link")
        with changes(file, mtime=False), changes(d / "dir"):
            os.unlink(d / "dir" / "link")

    @needs("persistent_modes", "rename")
    def test_rename_changes_both_directories(self, d: Path) -> None:
        (d / "from").mkdir()
        (d / "to").mkdir()
        (d / "from" / "file").write_bytes(b"x")
        before = (d / "from" / "file").stat().st_mtime_ns
        with changes(d / "from", d / "to"), leaves(d):
            os.rename(d / "from" / "file", d / "to" / "file")
        assert (d / "to" / "file").stat().st_mtime_ns == before

    @needs("persistent_modes", "xattrs")
    def test_setxattr_changes_only_the_change_time(self, file: Path) -> None:
        with changes(file, mtime=False):
            os.setxattr(file, "user.note", b"x")
        with changes(file, mtime=False):
            os.removexattr(file, "user.note")

    @needs("persistent_modes")
    def test_times_survive_a_rename(self, d: Path, file: Path) -> None:
        os.utime(file, ns=(OLD_NS, OLD_NS))
        os.rename(file, d / "moved")
        assert (d / "moved").stat().st_mtime_ns == OLD_NS
