"""`Met`: the rules of mode `interrupt` that a verb has met in a view.

Rules hold at volumes, which know neither the verb nor its arguments, so they note what they refuse here, and the verb's
mount makes a request of it (`server/approvals.py`). It travels in a context variable, as a budget does, into the
threads of routes that block. A change by the kernel has none; where it is told of is `RuledVolume.on_interrupt`.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
from collections.abc import Iterator

from fusebackend.base.context import during
from fusebackend.base.errors import oserror


class Met:
    """See the module's docstring.

    Attributes:
        any: something that the verb has looked at is interrupted.
        refused: the verb was refused for something, perhaps by another rule.
        deciding: refusals that an approval could lift wait for the end of a block (`deciding`), …
        waits: … and there is one.
    """

    def __init__(self) -> None:
        self.any = False
        self.refused = False
        self.deciding = False
        self.waits = False

    def interrupted(self) -> None:
        """Note that a change is refused which may be approved.

        Raises:
            OSError: EACCES; not in a block of `deciding`, which raises it at its end.
        """
        if self.deciding:
            self.waits = True
            return
        self.any = self.refused = True
        raise oserror(errno.EACCES)

    @property
    def is_interrupted(self) -> bool:
        """Return True if an approval may let the verb through."""
        return self.any and self.refused


_met: contextvars.ContextVar[Met | None] = contextvars.ContextVar("fusebackend_met", default=None)


def current() -> Met | None:
    """Return what notes the rules that are met here; None where nothing does."""
    return _met.get()


def meeting() -> contextlib.AbstractContextManager[Met]:
    """Note the rules that are met in the block."""
    return during(_met, Met())


@contextlib.contextmanager
def deciding() -> Iterator[None]:
    """Decide in the block all that a verb needs. What an approval could lift is refused at its end, if nothing else
    was: nobody is asked for a change that can never be made."""
    noted = current()
    if noted is None or noted.deciding:
        yield
        return
    noted.deciding, noted.waits = True, False
    try:
        yield
    finally:
        noted.deciding = False
    if noted.waits:
        noted.interrupted()
