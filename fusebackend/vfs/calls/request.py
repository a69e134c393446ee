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
from typing import NamedTuple, Protocol, TypeAlias

_KILLED = 1 << (signal.SIGKILL - 1)

CAP_FOWNER, CAP_FSETID = 3, 4
"""Capabilities by their numbers (linux/capability.h)."""


class Request(NamedTuple):
    """What is asked, by which thread (0 for the kernel's own, or where it is not known) and which user."""

    verb: str
    thread: int = 0
    uid: int = 0
    gid: int = 0

    @property
    def is_abandoned(self) -> bool:
        """Has whoever waits for the answer been killed?"""
        pending = self._status(b"SigPnd:")
        return bool(pending and int(pending[0], 16) & _KILLED)  # if it has ended, somebody else waits for this

    def can(self, capability: int) -> bool:
        """Has the thread this capability? Where that is not to be found out, root has all and others none."""
        effective = self._status(b"CapEff:")
        return bool(int(effective[0], 16) >> capability & 1) if effective else self.uid == 0

    def is_in(self, group: int) -> bool:
        """Is the user in a group, by its first one or by the others that the thread has?"""
        return self.gid == group or b"%d" % group in (self._status(b"Groups:") or ())

    @property
    def is_confined(self) -> bool:
        """Is the thread one of a command in a sandbox? By what it can't change of itself: it is in a pid namespace
        below ours, without a capability that it could get, and can gain none by executing a file (shell/bubblewrap.py).

        Whoever can't be looked at is taken for one; the kernel's own requests are not.
        """
        if self.thread == 0:
            return False
        try:
            with open(f"/proc/{self.thread}/status", "rb") as status:
                fields = {words[0]: words[1:] for line in status if (words := line.split())}
        except OSError:
            return True
        gains_nothing = fields.get(b"NoNewPrivs:") == [b"1"] and int(fields[b"CapBnd:"][0], 16) == 0
        return gains_nothing and len(fields.get(b"NSpid:", ())) > 1

    def _status(self, field: bytes) -> list[bytes] | None:
        """The words of a line in the thread's /proc/…/status; None when it is not known or has ended."""
        if self.thread == 0:
            return None
        try:
            with open(f"/proc/{self.thread}/status", "rb") as status:
                return next((line.split()[1:] for line in status if line.startswith(field)), None)
        except OSError:
            return None


NOBODYS = Request("a call")


class Asker(Protocol):
    """As the kernel says who asks (pyfuse3's `RequestContext`)."""

    @property
    def pid(self) -> int: ...

    @property
    def uid(self) -> int: ...

    @property
    def gid(self) -> int: ...


# What is asked, and by whom. Most requests are answered before anybody wants to know: no `Request` is made of it yet.
_Asked: TypeAlias = Request | tuple[str, Asker | None]

_current: contextvars.ContextVar[_Asked] = contextvars.ContextVar("fusebackend_request", default=NOBODYS)


def current() -> Request:
    """The request that this task answers."""
    asked = _current.get()
    if isinstance(asked, Request):
        return asked
    verb, asker = asked
    return Request(verb) if asker is None else Request(verb, asker.pid, asker.uid, asker.gid)


def answer(verb: str, asker: Asker | None) -> None:
    """This task answers another request from now on; None where the kernel does not say whose."""
    _current.set((verb, asker))


def on_behalf_of(thread: int) -> None:
    """The kernel has not said who asks, but this is who has opened what is asked for."""
    _current.set(current()._replace(thread=thread))
