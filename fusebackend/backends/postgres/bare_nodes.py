"""`BareNodes`: nodes that are known to have no extended attributes, so that nobody has to ask. Pure.

`ls -l` asks for some attribute of each file it lists, and nearly none has any. So what a listing has shown is asked for
as a whole, when the first of it is; and what was made here has none. That is believed only while changes by other hosts
are told, and until one of the node is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

MAX_NODES = 50_000
"""When so many are known, all are forgotten."""

MAX_PAGES = 64
"""Of listings. The oldest is forgotten first."""


class BareNodes:
    """See the module's docstring. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bare: set[int] = set()
        self._pages: list[frozenset[int]] = []
        self._changes = 0

    def __contains__(self, node: int) -> bool:
        return node in self._bare

    @property
    def moment(self) -> int:
        """To be noted before the tables are asked, and given to `note` with their answer."""
        return self._changes

    def listed(self, nodes: Iterable[int]) -> None:
        page = frozenset(nodes)
        if len(page) > 1:
            with self._lock:
                self._pages = [*self._pages[1 - MAX_PAGES :], page]

    def beside(self, node: int) -> Sequence[int]:
        """The nodes that were listed together with this one, itself included."""
        with self._lock:
            return next((list(page) for page in reversed(self._pages) if node in page), [node])

    def note(self, moment: int, nodes: Iterable[int]) -> None:
        """These have none, unless something has changed meanwhile."""
        with self._lock:
            if moment == self._changes:
                if len(self._bare) > MAX_NODES:
                    self._bare.clear()
                self._bare.update(nodes)

    def changed(self, node: int | None) -> None:
        """A node may have some now; None: any may."""
        with self._lock:
            self._changes += 1
            if node is None:
                self._bare.clear()
            else:
                self._bare.discard(node)
