"""`Processes`: the process that a FUSE request comes from, by its thread.

The kernel gives the id of the thread that made the request, in the server's pid namespace, and 0 for a thread outside
of it: that process is not known, and taken for no other. An id is given to another thread once its own has ended, so
the answer of /proc is kept with a descriptor of the thread (`pidfd_open` with PIDFD_THREAD, Linux 6.9), which is asked
before use: 0.3 µs, against 40 µs of /proc. Where the kernel has none, only leaders of processes are kept. `MOST_KEPT`
are, since each takes a descriptor. Thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from fusebackend.base.recent import Recent
from fusebackend.linux import proc

MOST_KEPT: Final = 64

DEEPEST: Final = 64
"""Ancestors that are looked at."""

_PIDFD_THREAD: Final = os.O_EXCL
"""In <linux/pidfd.h>."""

_COMMAND_BYTES: Final = 200

_FIELDS: Final = (b"Tgid", b"Uid", b"Threads")
"""Of proc_pid_status(5). To tell all sixty apart takes 15 us more."""


class Process(NamedTuple):
    """A process, as /proc shows it."""

    pid: int
    began: int
    """In clock ticks since the boot; with `pid` it is no other process of this boot."""
    parent: int
    session: int
    """The pid of the session's leader; 0 if that is outside of the server's pid namespace."""
    uid: int
    namespace: int
    """The inode of its pid namespace; 0 if this process may not see it."""
    command: str
    """Its command line; the name of its program if it has several threads."""


class _Kept(NamedTuple):
    """A process with the descriptor of the thread that was asked for."""

    process: Process
    descriptor: int


class Processes:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._kept: Recent[int, _Kept] = Recent(MOST_KEPT, _close)
        self._guard = threading.Lock()
        self.namespace = _namespace(os.getpid())
        """The inode of the server's pid namespace."""

    def of(self, thread: int) -> Process | None:
        """Return the process of a thread; None for 0, and for a thread that has ended or that /proc hides."""
        if thread <= 0:
            return None
        with self._guard:
            kept = self._kept.get(thread)
            if kept is not None:
                if _has_its_id(kept.descriptor):
                    return kept.process
                _close(self._kept.pop(thread))
            descriptor = _open(thread)
            process = read(thread)
            if descriptor is None:
                return process
            if process is None or not _has_its_id(descriptor):  # /proc may have shown another thread
                os.close(descriptor)
                return None
            self._kept[thread] = _Kept(process, descriptor)
            return process

    def close(self) -> None:
        with self._guard:
            while self._kept:
                _close(self._kept.popitem()[1])


def _close(kept: _Kept) -> None:
    os.close(kept.descriptor)


def _has_its_id(descriptor: int) -> bool:
    """Return True for a thread that goes on, or that its parent has not waited for: no other one can have its id.

    The signal 0 says so. poll(2) takes twice as long, and Python lets go of its lock for it: with another thread at
    work, as that of the history, each change then took some µs more."""
    try:
        signal.pidfd_send_signal(descriptor, 0)
        return True
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's, or there is no such system call
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        return not end.poll(0)


def read(thread: int) -> Process | None:
    """Return what /proc shows of the process of a thread; None if it has ended."""
    try:
        status = proc.read(f"{thread}/status")
        leader, uids, threads = (status.partition(b"\n%b:" % name)[2].split(maxsplit=2) for name in _FIELDS)
        pid, uid = int(leader[0]), int(uids[1])
        name, _, rest = proc.read(f"{pid}/stat").rpartition(b")")
        words = rest.split()
        command = _command_line(pid) if int(threads[0]) == 1 else b""
    except (OSError, IndexError, ValueError):
        return None
    text = (command or name.partition(b"(")[2]).decode("utf-8", "replace")
    return Process(pid, int(words[19]), int(words[1]), int(words[3]), uid, _namespace(pid), text)


def _command_line(pid: int) -> bytes:
    """Return the command line of a process with one thread. The kernel reads it from the process's memory, under its
    `mmap_lock`: another thread may hold that in a page fault that waits for this mount (`fuse_page_mkwrite`)."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(_COMMAND_BYTES).rstrip(b"\0").replace(b"\0", b" ")


def ancestors(process: Process) -> Iterator[tuple[int, int]]:
    """Yield (pid, began) of a process and of those above it, as far as they live."""
    yield process.pid, process.began
    parent = process.parent
    for _ in range(DEEPEST):
        if parent <= 1:
            return
        try:
            words = proc.stat(parent)
        except OSError:
            return
        yield parent, int(words[19])
        parent = int(words[1])


def _namespace(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def _open(thread: int) -> int | None:
    for flags in (_PIDFD_THREAD, 0):
        with contextlib.suppress(OSError):
            return os.pidfd_open(thread, flags)
    return None
