"""The glob that a search over several backends was asked for.

A composite asks each backend for more than that (`TreePattern.broad`), so a backend that goes by what the glob names
could not see it. It travels in a context variable, as `budget.py`'s does.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple


class Asked(NamedTuple):
    """What is asked for."""

    pattern: str
    """The glob, as it was given."""
    here: str | None
    """The same for what is below the path that the backend is asked to search; None where it can't be cut there."""


_asked: contextvars.ContextVar[Asked | None] = contextvars.ContextVar("fusebackend_asked", default=None)


def current() -> Asked | None:
    """What the search that is going on here was asked for, where that is over several backends."""
    return _asked.get()


@contextlib.contextmanager
def for_pattern(pattern: str, here: str | None) -> Iterator[None]:
    """What is asked inside is asked for this glob. Inside of another one, that of the outermost search is the one."""
    outer = _asked.get()
    token = _asked.set(Asked(pattern if outer is None else outer.pattern, here))
    try:
        yield
    finally:
        _asked.reset(token)
