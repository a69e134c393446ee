"""`Absent`: in the place of a part that a mount does not have, such as snapshots, branches or a history."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Absent:
    """Nothing is in it and nothing is open, so listings are empty; whatever else is asked of it is ENOTSUP.

    Args:
        why: gives the sentence that says why there is none.
    """

    opened = bases = broken = distinct = NOTHING
    image_bytes = log_bytes = 0
    is_open = False
    recorder = None

    def __init__(self, why: Callable[[], str]) -> None:
        self._why = why

    def all(self) -> list[Any]:
        """Return nothing: there are no snapshots and no branches."""
        return []

    forgettable = all

    def forget(self, calls: Sequence[str]) -> None:
        """There is no call to forget."""

    def tidy(self) -> None:
        """Nothing was left."""

    def before_call(self) -> None:
        """Nothing takes snapshots."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(errno.ENOTSUP, self._why())
