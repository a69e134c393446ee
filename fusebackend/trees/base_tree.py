"""`BaseTree`: the tree below a branch that was made from a state before the present, which no snapshot has.

The base is a branch's file by itself (`BranchVolume`), over the present state or a snapshot: it was changed until it
was that state, and nobody changes it any more. The branch lies above it, so what its changes are, and what a merge
compares them with, is as in any branch. A branch with a live route below takes all of its base for live.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from fusebackend.base.paths import ROOT
from fusebackend.trees.composed import Places
from fusebackend.trees.lower_tree import FIRST_OWN, LowerTree

if TYPE_CHECKING:
    from fusebackend.trees.branch_volume import BranchVolume


class BaseTree(LowerTree):
    """See the module's docstring.

    Args:
        base: belongs to this tree from now on.
    """

    def __init__(self, base: BranchVolume) -> None:
        is_frozen = base.features.change_feed  # the lower tree of the base has no live route
        super().__init__(Places([ROOT]), {0: base}, {0} if is_frozen else set(), base.created_ns)
        self.base = base

    def main_file(self, number: int) -> tuple[Hashable, int] | None:
        under = self.under_of(number)
        if under is None:
            return None
        return ("base", under[1]) if under[1] >= FIRST_OWN else self.base.key_of(ROOT, under[1])

    def is_live(self, number: int) -> bool:
        return not self.frozen  # all of it or nothing, also before a number is looked up

    def has_place(self, number: int, name: bytes) -> bool:
        under = self.under_of(number) if number < FIRST_OWN else None
        return under is not None and under[1] < FIRST_OWN and self.base.lower.has_place(under[1], name)

    def follow(self, number: int, moves: Sequence[tuple[bytes, bytes]]) -> None:
        self.base.follow(number, moves)

    def has_still(self, path: bytes) -> bool:
        with contextlib.suppress(OSError):
            self._walked(path)
            return True
        return False

    def close(self) -> None:
        """Close the base."""
        self.base.close()
