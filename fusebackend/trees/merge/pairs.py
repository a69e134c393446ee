"""`Pairs`: which file of the branch, and which of main, is which file of the base.

Files are the same if they have the same path in the same pair of directories, and the same type. A file that has lost
its path is the same as one at a new path, if their keys say so: it was renamed. A file at a path that was there before
is never the target of a rename, so that an editor's `rename(new, old)` is a change of `old`.

Only what the branch may have changed is compared. Main is looked at where the branch has changed something; it is
walked as a whole only to find a file again that the branch has changed, and that is no longer where it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping

from fusebackend.trees.merge.tree import Item, MergeTree


class Pairs:
    """See the module's docstring. The constructor compares base and branch.

    Args:
        base, main: the trees.
        branch: the root of its tree.
        may_differ: says of a file or directory of the branch if it, or something below it, may be other than in the
            base. Others are not looked into.
        apart: names that are left as they are, with all below them, where the base has them.

    Attributes:
        left: of the branch, what `apart` has kept out, and may differ.
        deleted: of the base, all that the branch does not have, each directory before what was in it.
        created: of the branch, all that the base does not have, each directory before what is in it.
        kept: pairs of base and branch that may differ, each directory before what is in it.
    """

    def __init__(
        self,
        base: MergeTree,
        branch: Item,
        main: MergeTree,
        may_differ: Callable[[Item], bool] = lambda item: True,
        apart: Collection[bytes] = (),
    ) -> None:
        self._apart = apart
        self.left: list[Item] = []
        self._base = base
        self._main = main
        self._may_differ = may_differ
        self.deleted: list[Item] = []
        self.created: list[Item] = []
        self.kept: list[tuple[Item, Item]] = []
        self._to_branch: dict[Item, Item] = {}
        self._from_branch: dict[Item, Item] = {}
        self._to_main: dict[Item, Item | None] = {base.root: main.root}
        self._from_main: dict[Item, Item] = {main.root: base.root}
        self._vanished: list[Item] = []
        self._appeared: deque[Item] = deque()
        self._lost: dict[Hashable, Item] = {}
        self._directories: set[Hashable] = set()
        """Keys of those that the branch has. A live base may have one at two places: main has moved it in between."""
        self._compare(base.root, branch)
        self._find_renamed()

    # -- base and branch ---------------------------------------------------------------------------------------

    def _compare(self, base: Item, branch: Item) -> None:
        left = [(base, branch)]
        while left:
            ours, theirs = left.pop()
            self._to_branch[ours], self._from_branch[theirs] = theirs, ours
            self.kept.append((ours, theirs))
            if ours.is_dir and ours.key is not None:
                self._directories.add(ours.key)
            before, after = self._names(ours, theirs)
            names = before.keys() | after.keys()
            if theirs.node and not theirs.tree.has_own_names(theirs.node):
                names = before.keys() & after.keys()  # others have come or gone while the two were listed
            for name in sorted(names, reverse=True):
                old, new = before.get(name), after.get(name)
                if old is not None and name in self._apart:
                    self.left += [new] if new is not None and self._may_differ(new) else []
                    continue
                if old is not None and new is not None and old.type == new.type:
                    if old.key is None or old.key != new.key or self._may_differ(new):
                        left.append((old, new))
                    continue
                lost = new is None and theirs.node and theirs.tree.has_lost(theirs.node, name)
                if old is not None and not old.is_fixed and not lost:
                    self._vanish(old)
                if new is not None and not new.is_fixed:
                    self._appeared.append(new)

    def _names(self, base: Item, branch: Item) -> tuple[dict[bytes, Item], dict[bytes, Item]]:
        """Return what is compared in two directories."""
        return base.names(), branch.names()

    def _inside(self, created: Item) -> Iterable[Item]:
        """Return what else is created with a directory."""
        return (item for item in created.names().values() if not item.is_fixed)

    def _vanish(self, top: Item) -> None:
        self._vanished.append(top)
        for item in top.walk():
            if item.key is not None and not item.is_fixed:
                self._lost.setdefault(item.key, item)

    def _find_renamed(self) -> None:
        """Directories first: what is in one that was renamed is the same as before."""
        files: list[Item] = []
        while self._appeared or files:
            new = self._appeared.popleft() if self._appeared else files.pop()
            if not new.is_dir and self._appeared:
                files.append(new)
                continue
            old = self._lost.get(new.key) if new.key is not None else None
            if old is not None and self._is_renamed(old, new):
                self._compare(old, new)
                continue
            self.created.append(new)
            self._appeared.extend(self._inside(new))
        self.created.sort(key=_depth)
        self.deleted = [item for top in self._vanished for item in self._deleted_of(top)]

    def _is_renamed(self, old: Item, new: Item) -> bool:
        same_route = self._main.owner(old.path) == self._main.owner(new.path)
        return old.type == new.type and same_route and self.branch_of(old) is None

    def _deleted_of(self, top: Item) -> Iterator[Item]:
        left = [top]
        while left:
            item = left.pop()
            if item in self._to_branch or (item.is_dir and item.key in self._directories):
                continue  # it was renamed, and what was deleted in it is in `_vanished`
            yield item
            left += [below for below in item.names().values() if not below.is_fixed]

    def branch_of(self, base: Item) -> Item | None:
        """Return the same file in the branch."""
        return _by_names(base, self._to_branch, self._from_branch)

    def base_of(self, branch: Item) -> Item | None:
        """Return the same file in the base; None for one that the branch has made."""
        return _by_names(branch, self._from_branch)

    # -- base and main -----------------------------------------------------------------------------------------

    def main_of(self, base: Item) -> Item | None:
        """Return the same file in main."""
        below = []
        item = base
        while item not in self._to_main:
            below.append(item)
            item = item.directory  # the roots are the same
        parent = self._to_main[item]
        for item in reversed(below):
            parent = self._to_main[item] = _child(parent, item) or self._renamed(item)
            if parent is not None:
                self._from_main.setdefault(parent, item)
        return parent

    def _renamed(self, base: Item) -> Item | None:
        return None if base.key is None else next(self._new_names(base), None)

    def _new_names(self, base: Item) -> Iterator[Item]:
        owner = self._main.owner(base.path)
        for found in self._main.find_key(base.key):
            if found.type == base.type and found.prefix == owner:
                other = self._base.find(found.path)
                # A live base may have a directory at its new place, too: that is main's.
                is_same = other is not None and other.is_dir and other.key == base.key
                if other is None or other.type != found.type or is_same:
                    yield found

    def new_names(self, base: Item) -> Iterable[Item]:
        """Return the names that a file has in main and did not have in the base. Main is walked, unless the file is
        where it was and has no other name."""
        if base.key is None or base.is_dir:
            return
        main = self.main_of(base)
        if main is not None and (main.key != base.key or main.nlink > 1):
            yield from self._new_names(base)

    def has_other_name(self, base: Item) -> bool:
        """Return True if the branch has a file by another name that it had in the base, too."""
        if base.key is None or base.is_dir or base.nlink < 2:
            return False
        others = (self.branch_of(each) for each in self._base.find_key(base.key) if each is not base)
        return any(each is not None and each.key == base.key for each in others)

    def base_of_main(self, main: Item) -> Item | None:
        """Return the same file in the base, of one that is where it was."""
        return _by_names(main, self._from_main)

    def is_moved_in_main(self, base: Item, main: Item) -> bool:
        """Return True if a file has another name or directory in main than in the base."""
        return _is_moved(base, main, self.main_of)

    def is_moved_in_branch(self, base: Item, branch: Item) -> bool:
        """Return True if a file has another name or directory in the branch than in the base."""
        return _is_moved(base, branch, self.branch_of)

    def strangers(self, base: Item, main: Item) -> Iterable[Item]:
        """Return what main has put into a directory since."""
        before = base.names()
        for name, item in main.names().items():
            old = before.get(name)
            if not item.is_fixed and (old is None or old.type != item.type):
                yield item


def _is_moved(base: Item, now: Item, same: Callable[[Item], Item | None]) -> bool:
    if base.parent is None or now.parent is None:
        return False
    return base.name != now.name or same(base.parent) is not now.parent


def _depth(item: Item) -> int:
    return item.path.count(b"/")


def _by_names(item: Item, known: Mapping[Item, Item], taken: Container[Item] = ()) -> Item | None:
    """Return the same file in another tree: the known one, or that with the same names below the nearest known
    directory, unless it is `taken`."""
    below = []
    while item not in known and item.parent is not None:
        below.append(item)
        item = item.parent
    found = known.get(item)
    for item in reversed(below):
        found = _child(found, item)
        if found in taken:
            return None
    return found


def _child(directory: Item | None, like: Item) -> Item | None:
    """Return what has the name and type of an item in a directory."""
    found = directory.child(like.name) if directory is not None else None
    return found if found is not None and found.type == like.type else None
