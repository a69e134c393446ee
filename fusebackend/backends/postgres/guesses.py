"""`Guesses`: what a change will find, as `KnownInodes` has it.

A change whose rows are known is one round trip instead of two: with 1 ms to the server it halves the time of `unlink`,
`chmod` and `rm -r`. Nothing known has to be right: the change compares all of it on the server
(`statements.lock_guessed`), and a wrong guess costs the round trip. After a wrong guess, that node is not guessed for
`CONTESTED_S`. A change that only makes a name in a directory guesses that directory all the same, whatever others have
done in it (`Guess.dated`).

No I/O happens here. Any thread may call any method.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from fusebackend.backends.postgres.known_inodes import KnownInodes
from fusebackend.backends.postgres.statements import Guess, StoredInode
from fusebackend.backends.postgres.transaction import Wanted
from fusebackend.protocol import ROOT_NODE, Link

CONTESTED_S = 1.0
"""So long a node that another host has changed unheard is taken to be changed by others all the time."""

MAX_CONTESTED: Final = 5_000
"""With more, all are guessed again."""


class Guesses:
    """See the module's docstring."""

    def __init__(self, known: KnownInodes) -> None:
        self._known = known
        # Until when, with whether a name could not just be made in a directory.
        self._contested: dict[tuple[int, bool], float] = {}

    def wrong(self, guess: Guess) -> None:
        """Something of it was otherwise."""
        if len(self._contested) > MAX_CONTESTED:
            self._contested.clear()
        until = time.monotonic() + CONTESTED_S
        self._contested.update({(node, bool(guess.dated)): until for node in guess.rows})
        self._known.changed(*guess.rows, *(link.parent for link in guess.links if guess.way))

    def of(self, wanted: Wanted) -> Guess | None:
        """What a change will find, if all of it is known."""
        if wanted.walks or wanted.write or wanted.read or wanted.append or wanted.cut:
            return None
        names = {name: self._known.child(*name) for name in wanted.entries}
        if wanted.makes:
            names = {name: node or None for name, node in names.items()}
        children = [node for node in names.values() if node is not None]
        if names and (names[wanted.entries[0]] is None) == wanted.taken:
            return None  # a name is there already, or it is not: that is asked
        nodes = {*wanted.nodes, *(parent for parent, _ in names), *children}
        rows = {node: row for node in nodes if (row := self._known.get(node)) is not None}
        if len(rows) < len(nodes) or self._is_contested(nodes):
            return self._dated(*wanted.entries[0]) if wanted.makes and not children else None
        directories = [node for node in children if rows[node].is_dir]
        if directories and wanted.rename:  # it needs the lock of directories' names, and those above
            return None
        return Guess(rows, names, directories[0] if directories and wanted.empty else 0)

    def of_path(self, path: Sequence[bytes]) -> Guess | None:
        """What a verb will find that makes a file, if all of the way to its directory is known."""
        directory, links, way = ROOT_NODE, list[Link](), list[StoredInode]()
        for name in path[:-1]:
            row, node = self._known.directory(directory), self._known.child(directory, name)
            if row is None or not node:
                return None
            links.append(Link(directory, name, node))
            way.append(row)
            directory = node
        found = self._dated(directory, path[-1]) if not self._known.child(directory, path[-1]) else None
        return None if found is None else found._replace(links=links, way=way)

    def _dated(self, directory: int, name: bytes) -> Guess | None:
        row = self._known.directory(directory)
        if row is None or self._is_contested((directory,), dated=True):
            return None
        return Guess({directory: row}, {(directory, name): None}, dated=directory)

    def _is_contested(self, nodes: Iterable[int], *, dated: bool = False) -> bool:
        now = time.monotonic()
        return any(self._contested.get((node, dated), 0.0) > now for node in nodes)
