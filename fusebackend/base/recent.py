"""`Recent`: a dict that keeps the items used last, for caches that are no hot path. `RecentBytes`: those that together
have so many bytes. Neither is thread-safe."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

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


class RecentBytes(Generic[K, V]):
    """Items with sizes, the least recently used of which go when together they are larger than `bound`. One stays.

    Args:
        dropped: called with each that has to go.
    """

    def __init__(self, bound: int, dropped: Callable[[V], object] | None = None) -> None:
        self.bound = bound
        self.bytes = 0
        self._dropped = dropped
        self.kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        """The items with their sizes, to look at without using them."""

    def get(self, key: K) -> V | None:
        """Use an item, if it is here."""
        item = self.kept.get(key)
        if item is None:
            return None
        self.kept.move_to_end(key)
        return item[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Add an item, in place of one with its key. It counts as so many bytes for as long as it is here."""
        before = self.kept.pop(key, None)
        self.bytes += size if before is None else size - before[1]
        self.kept[key] = value, size
        while self.bytes > self.bound and len(self.kept) > 1:
            _, (oldest, freed) = self.kept.popitem(last=False)
            self.bytes -= freed
            if self._dropped is not None:
                self._dropped(oldest)

    def pop(self, key: K) -> V | None:
        """Take one out, if it is here."""
        item = self.kept.pop(key, None)
        if item is None:
            return None
        self.bytes -= item[1]
        return item[0]

    def clear(self) -> None:
        self.kept.clear()
        self.bytes = 0
