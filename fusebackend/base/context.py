"""What holds for the length of a block: `during`, another value of a context variable; `closing_fd`, a descriptor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

V = TypeVar("V")


@contextlib.contextmanager
def during(variable: ContextVar[Any], value: V) -> Iterator[V]:
    """Set a variable in a block, which gets the value, and set it back at its end. Threads and tasks that are begun in
    it with a copy of the context have the value, too."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@contextlib.contextmanager
def closing_fd(descriptor: int) -> Iterator[int]:
    """Close a file descriptor at the end of a block, which gets it."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
