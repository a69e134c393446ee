"""`Met`: the rules of mode `interrupt` that a verb has met in a view.

Rules hold at volumes, which know neither the verb nor its arguments, so they note what they refuse here, and the verb's
mount makes a request of it (`server/approvals.py`). It travels in a context variable, as a budget does, into the
threads of routes that block. A change by the kernel has none; where it is told of is `RuledVolume.on_interrupt`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator


class Met:
    """See the module's docstring.

    Attributes:
        any: something that the verb has looked at is interrupted.
        refused: the verb was refused for something, perhaps by another rule.
    """

    def __init__(self) -> None:
        self.any = False
        self.refused = False

    @property
    def is_interrupted(self) -> bool:
        """Return True if an approval may let the verb through."""
        return self.any and self.refused


_met: contextvars.ContextVar[Met | None] = contextvars.ContextVar("fusebackend_met", default=None)


def current() -> Met | None:
    """Return what notes the rules that are met here; None where nothing does."""
    return _met.get()


@contextlib.contextmanager
def meeting() -> Iterator[Met]:
    """Note the rules that are met in the block."""
    met = Met()
    token = _met.set(met)
    try:
        yield met
    finally:
        _met.reset(token)
