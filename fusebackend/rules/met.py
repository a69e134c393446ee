"""`Met`: the rules of mode `interrupt` that a verb has met in a view.

Rules hold at volumes, which know neither the verb nor its arguments, so they note what they refuse here, and the verb's
mount makes a request of it (`server/approvals.py`). It travels in a context variable, as a budget does, into the
threads of routes that block. A change by the kernel has none; where it is told of is `RuledVolume.on_interrupt`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from fusebackend.base.paths import AgentPath

MAX_PATHS = 100
"""Paths of one verb that are noted. A verb that meets more, as a `delete` of a tree may, asks for these first."""


class Met:
    """See the module's docstring.

    Attributes:
        paths: what is interrupted of all that the verb has looked at, in the order in which it was met.
        refused: the verb was refused for one of them, and not only told of it.
    """

    def __init__(self) -> None:
        self.paths: dict[AgentPath, None] = {}
        self.refused = False

    def note(self, path: AgentPath) -> None:
        if len(self.paths) < MAX_PATHS:
            self.paths[path] = None


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
