"""The glob that a search over several backends was asked for.

A composite asks each backend for more than that (`TreePattern.broad`), so a backend that goes by the names in the glob
could not see it. It travels in a context variable, as `budget.py`'s does.
"""

from __future__ import annotations

import contextvars
from contextlib import AbstractContextManager
from typing import NamedTuple

from fusebackend.base.context import during


class Asked(NamedTuple):
    """The arguments of a search."""

    pattern: str
    """The glob, as it was given."""
    here: str | None
    """The same for files below the path that the backend is asked to search; None where it can't be cut there."""


_asked: contextvars.ContextVar[Asked | None] = contextvars.ContextVar("fusebackend_asked", default=None)


def current() -> Asked | None:
    """Return the arguments of the search that runs here, if it is over several backends."""
    return _asked.get()


def for_pattern(pattern: str, here: str | None) -> AbstractContextManager[object]:
    """Calls in the block are parts of a search for this glob. Inside of another one, that of the outermost search is
    the one."""
    outer = _asked.get()
    return during(_asked, Asked(pattern if outer is None else outer.pattern, here))
