"""`by_size`: splits a sequence into what one request, one transaction or the memory can take. A pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def by_size(items: Iterable[T], size_of: Callable[[T], int], most: int, size: int) -> Iterator[list[T]]:
    """Yield the items in their order, in lists that are not empty. They are taken as the lists are.

    Args:
        size_of: of an item.
        most: items in a list.
        size: of all items of a list together. A larger item is in a list of its own.
    """
    batch: list[T] = []
    total = 0
    for item in items:
        added = size_of(item)
        if batch and (len(batch) >= most or total + added > size):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += added
    if batch:
        yield batch
