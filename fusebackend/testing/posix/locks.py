"""flock(2) and fcntl(2) record locks between processes of one machine."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from fusebackend.testing.posix.case import Case, fork, in_child, opened, refused

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


def _try_lock(fd: int, start: int, length: int) -> bool:
    """Return whether this process can take the lock; release it at once."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError as error:
        assert error.errno in BUSY
        return False
    fcntl.lockf(fd, fcntl.LOCK_UN, length, start)
    return True
