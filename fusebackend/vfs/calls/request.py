"""`Request`: the thread and user of the request that a task answers.

It travels in a context variable of the task, since only calls that wait need it. A process that was killed can't end
before its request is answered (fs/fuse/dev.c, `request_wait_answer`), and pyfuse3 does not pass on the kernel's
FUSE_INTERRUPT. But after any fatal signal the kernel marks the thread with a pending SIGKILL, which /proc shows.
Signals that a process handles don't count: system calls on files are not expected to end with EINTR for them.
"""

from __future__ import annotations

import contextlib
import contextvars
import signal
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fusebackend.linux import proc

_KILLED = 1 << (signal.SIGKILL - 1)

CAP_FOWNER, CAP_FSETID = 3, 4
"""Capabilities by their numbers (linux/capability.h)."""


UNSEEN: Final = object()
"""The author of a request before the history has looked."""


class Request(msgspec.Struct):
    """A request: its kind, its thread (0 for the kernel's own, or if not known), and the user and the group of its
    accesses to files (`fsuid`)."""

    verb: str
    thread: int = 0
    uid: int = 0
    gid: int = 0
    author: Any = UNSEEN
    """The process that asks, or that has opened the handle, as the history knows it; None if it does not know it."""

    @property
    def is_abandoned(self) -> bool:
        """True if the thread that waits for the answer was killed."""
        pending = self._status.get(b"SigPnd")
        return bool(pending and int(pending[0], 16) & _KILLED)  # if it has ended, another one waits for this

    def can(self, capability: int) -> bool:
        """True if the thread has this capability. If /proc does not show it, root has all and others none."""
        effective = self._status.get(b"CapEff")
        return bool(int(effective[0], 16) >> capability & 1) if effective else self.uid == 0

    def is_in(self, group: int) -> bool:
        """True if the group is the user's first one, or a supplementary group of the thread."""
        return self.gid == group or b"%d" % group in self._status.get(b"Groups", ())

    @property
    def is_confined(self) -> bool:
        """True for a thread of a command in a sandbox, by properties that it can't change: it is in a pid namespace
        below ours, has no capability that it could get, and gains none by executing a file (shell/bubblewrap.py).

        A thread that /proc does not show counts as confined; the kernel's own requests don't.
        """
        fields = self._status
        if not fields:
            return self.thread != 0
        gains_nothing = fields.get(b"NoNewPrivs") == [b"1"] and int(fields[b"CapBnd"][0], 16) == 0
        return gains_nothing and len(fields.get(b"NSpid", ())) > 1

    @property
    def _status(self) -> dict[bytes, list[bytes]]:
        """What the kernel says of the thread; nothing if it is not known or has ended."""
        if self.thread == 0:
            return {}
        with contextlib.suppress(OSError):
            return proc.status(self.thread)
        return {}


NOBODYS = Request("a call")


asked: contextvars.ContextVar[Request] = contextvars.ContextVar("fusebackend_request", default=NOBODYS)

current: Final[Callable[[], Request]] = asked.get
"""Returns the request that this task answers."""


def on_behalf_of(opener: Request) -> None:
    """Attribute a request without an asker to the thread and the process that opened the handle."""
    asked.set(Request(current().verb, opener.thread, opener.uid, opener.gid, opener.author))
