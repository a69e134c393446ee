"""The glob that a search over several backends was asked for.

A composite asks each backend for more than that (`TreePattern.broad`), so a backend that goes by what the glob names
could not see it. It travels in a context variable, as `budget.py`'s does.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_pattern: contextvars.ContextVar[str | None] = contextvars.ContextVar("fusebackend_asked", default=None)


def pattern() -> str | None:
    """The glob of the search that is going on here, where that is over several backends."""
    return _pattern.get()


@contextlib.contextmanager
def for_pattern(wanted: str | None) -> Iterator[None]:
    """What is asked inside is asked for this glob. Inside of another one, that of the outermost search holds."""
    token = _pattern.set(_pattern.get() or wanted)
    try:
        yield
    finally:
        _pattern.reset(token)
