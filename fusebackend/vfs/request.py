"""`Request`: whose request is being answered, for whoever waits on its behalf.

It travels in a context variable of the task that answers, since only those who wait need it. A process that was killed
can't go before its request is answered (fs/fuse/dev.c, `request_wait_answer`), and pyfuse3 does not pass on the
kernel's FUSE_INTERRUPT. But the kernel marks such a thread with a pending SIGKILL, whatever fatal signal it was, and
that can be seen from here. Signals that a process handles are none of these: system calls on files are not expected to
end with EINTR for them.
"""

from __future__ import annotations

import contextvars
import signal
from typing import NamedTuple

_KILLED = 1 << (signal.SIGKILL - 1)


class Request(NamedTuple):
    """What is asked, by which thread (0 for the kernel's own, or where it is not known) and which user."""

    verb: str
    thread: int = 0
    uid: int = 0

    @property
    def is_abandoned(self) -> bool:
        """Has whoever waits for the answer been killed?"""
        if self.thread == 0:
            return False
        try:
            with open(f"/proc/{self.thread}/status", "rb") as status:
                pending = next((line for line in status if line.startswith(b"SigPnd:")), b"SigPnd: 0")
        except OSError:
            return False  # it has ended: then it was not waiting for this, and somebody else is
        return bool(int(pending.split()[1], 16) & _KILLED)


NOBODYS = Request("a call")

_current: contextvars.ContextVar[Request] = contextvars.ContextVar("fusebackend_request", default=NOBODYS)


def current() -> Request:
    """The request that this task answers."""
    return _current.get()


def answer(verb: str, thread: int, uid: int) -> None:
    """This task answers another request from now on."""
    _current.set(Request(verb, thread, uid))


def on_behalf_of(thread: int) -> None:
    """The kernel has not said who asks, but this is who has opened what is asked for."""
    _current.set(_current.get()._replace(thread=thread))
