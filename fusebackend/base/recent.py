"""`Recent`: a dict that keeps the items used last. For caches that are no hot path; not thread-safe."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """See the module's docstring. An item is used when it is set, and by `use`.

    Args:
        most: items that are kept.
        dropped: called with each that is not any more.
    """

    def __init__(self, most: int, dropped: Callable[[V], object] | None = None) -> None:
        super().__init__()
        self._most = most
        self._dropped = dropped

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            _, oldest = self.popitem(last=False)
            if self._dropped is not None:
                self._dropped(oldest)

    def use(self, key: K) -> V | None:
        """Return an item, None if there is none of that key."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)
