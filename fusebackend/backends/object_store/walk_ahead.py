"""`WalkAhead`: the listings that somebody who walks through a tree needs next.

`find`, `git status` and `ls -R` go through directories in the order of their names, and wait for one listing after the
other, again and again when those of the last walk have grown old. So when a directory had to be listed, and the one
before it was listed a moment ago, those that come after it are listed too, several at a time. A walk then waits once
for many directories.

Nothing is believed for longer because of that: a listing made ahead is as old as it is. Only directories are listed
that the kernel knows, for with them goes what is in them (`ObjectTree.settle`), and that were listed before, with one
request: of any other nobody knows how large it is, and perhaps nobody wants to.
"""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fusebackend.backends.object_store.entry import NEVER, Entry
from fusebackend.backends.object_store.reading.fetchers import Fetchers

if TYPE_CHECKING:
    from fusebackend.backends.object_store.tree import ObjectTree

log = logging.getLogger(__name__)

AHEAD = 16
"""So many directories at a time: they are read before they are old."""

MOMENT_S = 2.0
"""Who listed the directory before this one so long ago, or twice the TTL, is at this one now. A listing is as old as
its request, and may be long on its way."""

NEAR = 1000
"""So many names, before and after, are looked at for directories."""


class WalkAhead:
    """See the module's docstring. `fetchers` do the listing."""

    def __init__(self, tree: ObjectTree, fetchers: Fetchers) -> None:
        self._tree = tree
        self._fetchers = fetchers
        self._moment_s = min(MOMENT_S, 2 * tree.ttl_s)

    def listed(self, directory: Entry) -> None:
        """Somebody has waited for the listing of this directory."""
        tree = self._tree
        with tree.lock:
            before = _before(directory)
            if before is None or not tree.is_fresh(before.listed_at, self._moment_s):
                return
            ahead = list(itertools.islice(filter(self._is_due, itertools.islice(_after(directory), NEAR)), AHEAD))
        for entry in ahead:
            self._fetchers.submit(lambda entry=entry: self._list(entry))  # type: ignore[misc]

    def _is_due(self, entry: Entry) -> bool:
        if not entry.is_dir or not entry.held or entry.large:
            return False
        return entry.listed_at > NEVER and not self._tree.is_fresh(entry.listed_at)

    def _list(self, directory: Entry) -> None:
        try:
            self._tree.refresh(directory)
        except OSError as error:  # whoever comes to it asks again, and is told
            log.debug("a directory could not be listed ahead: %s", error)


def _before(directory: Entry) -> Entry | None:
    """The directory before one in its parent; of the first one there, that before the parent, and so on."""
    entry = directory
    while entry.parent is not None:
        order = entry.parent.names()
        end = bisect.bisect_left(order, entry.name)
        for name in reversed(order[max(0, end - NEAR) : end]):
            if entry.parent.children[name].is_dir:
                return entry.parent.children[name]
        entry = entry.parent
    return None


def _after(directory: Entry) -> Iterator[Entry]:
    """What a walk meets after it has listed a directory."""
    yield from _below(directory, b"")
    entry = directory
    while entry.parent is not None:
        yield from _below(entry.parent, entry.name)
        entry = entry.parent


def _below(directory: Entry, after: bytes) -> Iterator[Entry]:
    """What is known in a directory behind a name, each with all that is known below it."""
    walks = [directory.following(after)]
    while walks:
        entry = next(walks[-1], None)
        if entry is None:
            walks.pop()
            continue
        yield entry
        if entry.is_dir:
            walks.append(entry.following(b""))
