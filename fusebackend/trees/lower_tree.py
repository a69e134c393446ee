"""`LowerTree`: the tree below a branch, of snapshots (frozen) and of routes that keep none (live). It is only read.

Every file has a number that stays: of a frozen route, its node and the route in the bits of one number; of a live one,
whose nodes do not outlive the session, a number that is given when the file is first seen. The path of a live file is
kept with its number (`keep`) as soon as a branch has stored the number: it is then found by that path, also after
another file has taken its place there, and is ESTALE while there is none. A file that was moved away between sessions
is found by what its volume says of it for longer (`moved`). A branch stores the numbers of all entries of a live
directory before it stores anything of one of them, so no other number is ever given to a kept path.

Called with the branch's lock held.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from fusebackend.base.errors import oserror, unless
from fusebackend.base.paths import ROOT, to_name
from fusebackend.protocol import ROOT_NODE, Attr, Volume
from fusebackend.trees.composed import NOT_THERE, WAY, ComposedTree, Places, Spot, Under
from fusebackend.volumes.contents import opened
from fusebackend.volumes.walk import Directories, below, vanishing

if TYPE_CHECKING:
    from fusebackend.trees.branch_volume import BranchVolume

NODE_BITS: Final = 37
ROUTE_BITS: Final = 8
BASE: Final = 1 << (NODE_BITS + ROUTE_BITS)
"""Numbers from here on have route and node in their bits; lower ones were given one by one."""

FIRST_OWN: Final = BASE << 1
"""Numbers from here on are a branch's own."""

WAYS: Final = (1 << ROUTE_BITS) - 1
"""In place of a route, in the numbers of directories that lead to a prefix."""

PERMISSIONS: Final = 0o755
"""Of directories that no route has."""

MAX_FOUND: Final = 1 << 17
"""Files whose place in the tree is remembered beyond those that the kernel holds; 200 bytes each."""

T = TypeVar("T")


class LowerTree(ComposedTree):
    """See the module's docstring.

    Args:
        places: of the routes that the branch has.
        views: the snapshot of each frozen route, the volume of each live one, by the route's index.
        frozen: the indices of the frozen ones.
        time_ns: of directories that no route has, since the epoch.
    """

    def __init__(self, places: Places, views: Mapping[int, Volume], frozen: Collection[int], time_ns: int) -> None:
        super().__init__(places, views, time_ns, PERMISSIONS)
        self.frozen = frozenset(frozen)
        self._live: dict[int, Under | None] = {}  # files without a number by its bits; None until it is looked for
        self._numbers: dict[Under, int] = {}  # of the files in `_live`
        self._next = ROOT_NODE + 1
        self._found: dict[int, tuple[int, bytes]] = {}  # number → directory and name
        self._directories: set[int] = set()  # those in `_found` that stay there
        self._kept: dict[int, bytes] = {}  # number → path
        self._unseen: set[int] = set()  # those of earlier sessions that were not looked for yet
        self.is_held: Callable[[int], bool] = lambda number: False
        """Says of a number that the kernel knows it."""

    # -- numbers -----------------------------------------------------------------------------------------------

    def number(self, route: int, node: int) -> int:
        if route == WAY:
            return BASE | WAYS << NODE_BITS | node
        if node == ROOT_NODE and not route:
            return ROOT_NODE
        if route < WAYS and not node >> NODE_BITS and (node == ROOT_NODE or route in self.frozen):
            return BASE | route << NODE_BITS | node
        number = self._numbers.get((route, node))
        if number is None:
            number = self._numbers[route, node] = self._next
            self._live[number] = route, node
            self._next += 1
        return number

    def _decoded(self, number: int) -> Under:
        if number == ROOT_NODE:
            return 0, ROOT_NODE
        if number >= BASE:
            route = number >> NODE_BITS & WAYS
            return WAY if route == WAYS else route, number & (1 << NODE_BITS) - 1
        if number not in self._live:
            raise oserror(errno.ESTALE)
        under = self._live[number]
        if under is None:
            under = self._live[number] = self._walked(self._kept[number])
            self._numbers.setdefault(under, number)
            self._unseen.discard(number)
        return under

    def under_of(self, number: int) -> Under | None:
        """Return the route and the node of a number; None for a live file that is gone."""
        return unless((errno.ESTALE,), self._decoded, number)

    def main_file(self, number: int) -> tuple[Hashable, int] | None:
        """Return the prefix and the node in the mount that a number is of; None for a live file that is gone. A file
        that the mount does not have has something else in place of a prefix."""
        under = self.under_of(number)
        if under is None:
            return None
        return ("way" if under[0] == WAY else self.places.prefixes[under[0]]), under[1]

    def shown(self, route: int, attr: Attr, number: int | None = None) -> Attr:
        if self._unseen and attr.nlink > 1 and not attr.is_dir and (route, attr.node) not in self._numbers:
            # It may have a number by another of its names.
            for unseen in tuple(self._unseen):
                with contextlib.suppress(OSError):
                    self._decoded(unseen)
            self._unseen.clear()
        return super().shown(route, attr, number)

    def is_live(self, number: int) -> bool:
        """Return True for a file of a route that is not frozen."""
        if number == ROOT_NODE or number >= BASE:
            route = self._decoded(number)[0]
            return route != WAY and route not in self.frozen
        under = self._live.get(number)
        return under is None or under[0] not in self.frozen

    def is_numbered(self, number: int) -> bool:
        """Return True for a number that says nothing without its path."""
        return ROOT_NODE < number < BASE

    def keep(self, number: int, path: bytes | None = None) -> bytes | None:
        """Remember the path of a number for good, and return it; None if it is not known.

        Args:
            path: as an earlier session has kept it. The number may be unknown then.
        """
        if path is None:
            path = self.path(number)
        elif self.is_numbered(number) and number not in self._live:
            self._live[number] = None
            self._unseen.add(number)
            self._next = max(self._next, number + 1)
        if path is not None:
            self._kept[number] = path
        return path

    def reserve(self, number: int) -> None:
        """Give no file this number, nor one below it: a directory of an earlier session had a file of it."""
        if self.is_numbered(number):
            self._next = max(self._next, number + 1)

    def find_again(self, number: int, parent: int, name: bytes) -> None:
        """Find a file by the name that it had in a directory, if its number says nothing."""
        if self.is_numbered(number) and number not in self._live:
            above = self.path(parent)
            if above is not None:
                self.keep(number, above + b"/" + name if above else name)

    def forget(self, number: int) -> None:
        """The kernel does not hold a number any more, and no branch has stored it."""
        if number not in self._directories:
            self._found.pop(number, None)
        if number not in self._kept and number not in self._directories:
            self._unnumber(number, self._live.pop(number, None))

    def _unnumber(self, number: int, under: Under | None) -> None:
        """A file has this number no more."""
        if under is not None and self._numbers.get(under) == number:
            del self._numbers[under]

    # -- paths -------------------------------------------------------------------------------------------------

    def note(self, number: int, parent: int, name: bytes, is_dir: bool) -> None:
        """Remember where a file was found."""
        if len(self._found) >= MAX_FOUND + len(self._directories) and number not in self._found:
            for each in list(self._found)[: MAX_FOUND // 2]:
                if not self.is_held(each):
                    self.forget(each)
        self._found[number] = parent, name
        if is_dir:
            self._directories.add(number)

    def parent(self, number: int) -> int:
        """Return the directory that a directory is in."""
        if number == ROOT_NODE:
            return ROOT_NODE
        above = self._above(number)
        if above is None:
            raise oserror(errno.ESTALE)
        return above[0]

    def _above(self, number: int) -> tuple[int, bytes] | None:
        """Return the directory that a file was found in, or that leads to a route, and the name there."""
        found = self._found.get(number)
        if found is not None:
            return found
        place = self.at(*self._decoded(number)).place
        if place is None or place.parent is None:
            return None
        return self.number(place.parent.route, place.parent.node), place.name

    def found_in(self, number: int) -> int | None:
        """Return the directory in which a file was found in this session; None once `note` of it is forgotten."""
        found = self._found.get(number)
        return None if found is None else found[0]

    def path(self, number: int) -> bytes | None:
        """Return the path of a number in the tree, without a slash at its beginning; None if it is not known."""
        names: list[bytes] = []
        while number != ROOT_NODE:
            if number in self._kept:
                kept = self._kept[number]
                return b"/".join([kept, *reversed(names)]) if kept else b"/".join(reversed(names))
            above = self._above(number)
            if above is None:
                return None
            number, name = above
            names.append(name)
        return b"/".join(reversed(names))

    def _walked(self, path: bytes) -> Under:
        """Return what is at a path now; no link is followed. ESTALE if nothing is."""
        route, inner = self.places.route_of(path)
        found = unless(NOT_THERE, Directories(self.views[route]).at, inner)
        attr = None if found is None else found[2]
        if attr is None:
            raise oserror(errno.ESTALE)
        return route, attr.node

    def lasting(self, number: int) -> bytes | None:
        """As `Volume.lasting`, of a live file that is known by its path alone."""
        with contextlib.suppress(OSError):
            if self.is_numbered(number):
                route, node = self._decoded(number)
                return self.views[route].lasting(node)
        return None

    def moved(self, identities: Mapping[int, bytes]) -> dict[int, bytes | None]:
        """Return the paths of live files that are not where an earlier session has kept them, and None for those that
        are nowhere in their route. That is walked, if there are any.

        Args:
            identities: of `lasting`, by number.
        """
        lost: dict[int, dict[bytes | None, int]] = {}
        found: dict[int, bytes | None] = {}
        for number, identity in identities.items():
            with contextlib.suppress(OSError):  # of a route that does not answer
                if self.under_of(number) is None:
                    route, _ = self.places.route_of(self._kept[number])
                    lost.setdefault(route, {})[identity] = number
                    found[number] = None
        for route in lost:
            volume, prefix = self.views[route], to_name(self.places.prefixes[route]).strip(b"/")
            for path, attr in below(volume, ROOT_NODE, prefix, (OSError,)):
                with vanishing():
                    number = lost[route].pop(volume.lasting(attr.node), 0)
                    if number:
                        found[number] = path.strip(b"/")
                if not lost[route]:
                    break
        return found

    def confirm(self, number: int) -> bool:
        """Find a live file by its path once more. False if there is none."""
        path = self.path(number)
        if number not in self._live or path is None:
            return number >= BASE or number == ROOT_NODE
        under = unless((errno.ESTALE,), self._walked, path)
        if under is None:
            return False
        if under != self._live[number]:
            self._unnumber(number, self._live[number])
            self._live[number] = under
            other = self._numbers.get(under)
            there = None if other is None else unless((errno.ESTALE,), self._walked, self.path(other) or b"")
            if there != under:  # or they have changed their places
                self._numbers[under] = number
        return True

    def still(self, number: int, parent: int, name: bytes) -> Attr | None:
        """Return the attributes of a live file, if a name in its directory leads to it as before. `confirm` says of
        others whether there is one at its path."""
        under = self._live.get(number)
        if under is None:
            return None
        try:
            above = self.at(*self._decoded(parent)).under
            if above is None or above[0] != under[0]:
                return None
            attr = self.views[above[0]].lookup(above[1], name)
        except OSError:
            return None
        return self.shown(above[0], attr, number) if attr.node == under[1] else None

    def _ask(self, number: int, use: Callable[[Spot], T]) -> T:
        """Return the result of `use` for a number, once more if its file has moved."""
        at = self.at(*self._decoded(number))
        try:
            return use(at)
        except OSError as error:
            if error.errno != errno.ESTALE or not self.is_numbered(number) or not self.confirm(number):
                raise
        return use(self.at(*self._decoded(number)))

    # -- reading -----------------------------------------------------------------------------------------------

    def attr_of(self, number: int) -> Attr:
        """As `Volume.getattr`; ESTALE for a file that is gone."""

        def attr(at: Spot) -> Attr:
            try:
                return self.attr(at)
            except FileNotFoundError:
                raise oserror(errno.ESTALE) from None

        return self._ask(number, attr)

    def find(self, number: int, name: bytes) -> Attr:
        """As `Volume.lookup`."""
        found = self._ask(number, lambda at: self.lookup(at, name))
        self.note(found.node, number, name, found.is_dir)
        return found

    def listing(self, number: int, after: bytes, limit: int) -> list[tuple[bytes, Attr]]:
        """As `Volume.readdir`."""
        page = self._ask(number, lambda at: self.readdir(at, after, limit))
        for name, attr in page:
            self.note(attr.node, number, name, attr.is_dir)
        return page

    def has_place(self, number: int, name: bytes) -> bool:
        """Return True if a name in a directory is the root of a route, or leads to one."""
        if number >= FIRST_OWN or self.is_numbered(number):
            return False
        place = self.at(*self._decoded(number)).place
        return place is not None and name in place.children

    def view_of(self, number: int) -> tuple[Volume, int]:
        """Return the volume that has a file, and its node there."""
        return self._ask(number, self.view)

    def target(self, number: int) -> bytes:
        """Return the target of a symbolic link."""
        volume, node = self.view_of(number)
        return volume.readlink(node)

    def xattrs(self, number: int) -> dict[bytes, bytes]:
        """Return the extended attributes."""
        found = unless((errno.ENOENT,), self.view_of, number)
        return {} if found is None else dict(found[0].xattrs(found[1]))

    def open(self, number: int) -> tuple[Volume, int]:
        """Open a file for reading; returns its volume, and the node to read and to release."""
        volume, node = self.view_of(number)
        attr = volume.open(node, os.O_RDONLY)
        return volume, node if attr is None else attr.node

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[tuple[Volume, int]]:
        """Open a file for a block; yields its volume and the node to read."""
        volume, node = self.view_of(number)
        with opened(volume, node, os.O_RDONLY) as handle:
            yield volume, handle

    # -- of a tree over another branch's file --------------------------------------------------------------------

    def follow(self, number: int, moves: Sequence[tuple[bytes, bytes]]) -> None:
        """A merge has renamed files in the mount, see `BranchVolume.follow`. Routes are as they are."""

    def close(self) -> None:
        """The branch is closed."""

    def has_still(self, path: bytes) -> bool:
        """Return True if files keep their path, whatever was renamed in the mount."""
        return False


class BaseTree(LowerTree):
    """The tree below a branch that was made from a state before the present, which no snapshot has.

    The base is a branch's file by itself (`BranchVolume`), over the present state or a snapshot: it was changed until
    it was that state, and nobody changes it any more. The branch lies above it, so what its changes are, and what a
    merge compares them with, is as in any branch. A branch with a live route below takes all of its base for live.

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
