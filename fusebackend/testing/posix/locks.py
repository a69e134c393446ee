"""flock(2) and fcntl(2) record locks between processes of one machine."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from fusebackend.testing.posix.case import Case, fails, fork, in_child, opened, refused

BUSY = (errno.EAGAIN, errno.EACCES)
WAITERS = 20


class LockCases(Case):
    def test_flock_excludes_another_handle(self, d: Path) -> None:
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as first, opened(d / "file", os.O_RDWR) as second:
            fcntl.flock(first, fcntl.LOCK_EX)
            refused(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            refused(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(first, fcntl.LOCK_UN)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_flock_is_shared_by_readers(self, d: Path) -> None:
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as first, opened(d / "file", os.O_RDWR) as second:
            fcntl.flock(first, fcntl.LOCK_SH)
            fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
            refused(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_flock_ends_with_its_handle(self, d: Path) -> None:
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as second:
            with opened(d / "file", os.O_RDWR) as first:
                fcntl.flock(first, fcntl.LOCK_EX)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_flock_ends_with_its_process(self, d: Path) -> None:
        (d / "file").touch()
        in_child(lambda: fcntl.flock(os.open(d / "file", os.O_RDWR), fcntl.LOCK_EX))
        with opened(d / "file", os.O_RDWR) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_twenty_waiters_on_one_flock(self, d: Path) -> None:
        (d / "lock").touch()
        (d / "count").write_text("0")

        def count_up() -> None:
            with opened(d / "lock", os.O_RDWR) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                value = int((d / "count").read_text())
                (d / "count").write_text(str(value + 1))

        with opened(d / "lock", os.O_RDWR) as mine:
            fcntl.flock(mine, fcntl.LOCK_EX)
            children = [fork(count_up) for _ in range(WAITERS)]
            # The mount must serve other requests while all of them wait.
            (d / "meanwhile").write_bytes(b"x")
            assert (d / "count").read_text() == "0"
            fcntl.flock(mine, fcntl.LOCK_UN)  # close(2) would not: the children inherited this handle
        for child in children:
            child.result()
        assert (d / "count").read_text() == str(WAITERS)

    def test_record_locks_exclude_another_process(self, d: Path) -> None:
        (d / "file").write_bytes(b"x" * 100)

        def attempt() -> list[bool]:
            with opened(d / "file", os.O_RDWR) as fd:
                return [_try_lock(fd, start, 10) for start in (0, 5, 10, 95)]

        with opened(d / "file", os.O_RDWR) as fd:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
            assert in_child(attempt) == [False, False, True, True]
            fcntl.lockf(fd, fcntl.LOCK_UN, 10, 0)
            assert in_child(attempt) == [True, True, True, True]

    def test_record_locks_are_shared_by_readers(self, d: Path) -> None:
        (d / "file").write_bytes(b"x" * 100)

        def attempt() -> tuple[bool, bool]:
            with opened(d / "file", os.O_RDWR) as fd:
                return _try_lock(fd, 0, 10, fcntl.LOCK_SH), _try_lock(fd, 0, 10, fcntl.LOCK_EX)

        with opened(d / "file", os.O_RDWR) as fd:
            fcntl.lockf(fd, fcntl.LOCK_SH, 10, 0)
            assert in_child(attempt) == (True, False)

    def test_record_locks_need_a_fitting_handle(self, d: Path) -> None:
        (d / "file").touch()
        with opened(d / "file", os.O_RDONLY) as fd, fails(errno.EBADF):
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with opened(d / "file", os.O_WRONLY) as fd, fails(errno.EBADF):
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def test_record_locks_end_when_any_handle_closes(self, d: Path) -> None:
        (d / "file").touch()

        def attempt() -> bool:
            with opened(d / "file", os.O_RDWR) as fd:
                return _try_lock(fd, 0, 0)

        with opened(d / "file", os.O_RDWR) as fd:
            fcntl.lockf(fd, fcntl.LOCK_EX)
            assert in_child(attempt) is False
            os.close(os.open(d / "file", os.O_RDONLY))
            assert in_child(attempt) is True

    def test_waiters_on_a_record_lock_get_it_in_turn(self, d: Path) -> None:
        (d / "file").write_text("0")

        def count_up() -> None:
            with opened(d / "file", os.O_RDWR) as fd:
                for _ in range(10):
                    fcntl.lockf(fd, fcntl.LOCK_EX)
                    value = int(os.pread(fd, 20, 0))
                    os.pwrite(fd, str(value + 1).encode(), 0)
                    fcntl.lockf(fd, fcntl.LOCK_UN)

        children = [fork(count_up) for _ in range(5)]
        for child in children:
            child.result()
        assert (d / "file").read_text() == "50"


def _try_lock(fd: int, start: int, length: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Return whether this process can take the lock; release it at once."""
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB, length, start)
    except OSError as error:
        assert error.errno in BUSY
        return False
    fcntl.lockf(fd, fcntl.LOCK_UN, length, start)
    return True
