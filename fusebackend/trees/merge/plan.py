"""`plan`: the three-way merge of a branch into the main tree, as steps and conflicts; nothing is changed.

A merge takes what the branch has changed since the base and main has not. For each file, bytes, permissions, owner
and each extended attribute are merged apart; so is its name, where the trees share keys (`pairs.py`). What both
changed, and not in the same way, is a conflict:

- bytes or attributes changed on both sides; with `lines`, bytes that `merge_lines` merges are none;
- changed on one side, renamed on the other: a file with other bytes; a directory is followed to its new name;
- changed or renamed on one side, deleted on the other; for a directory also: deleted here, and something new in it
  there;
- renamed on both sides; made on both sides.

A conflict is left to the user, or decided for one side as a whole (`keep`): main's file stays as it is, or the branch's
takes its place. Steps are in an order in which each can be made; the state of a half-made merge is one that the same
plan completes, for what was merged already is the same on both sides.

What a route of main can't hold is no step and no conflict: it is in `uncarried`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from fusebackend.base.merge_lines import MERGED_BYTES, merge_lines
from fusebackend.base.paths import AgentPath
from fusebackend.base.relative_paths import is_below, join
from fusebackend.protocol import Attr, Features, SnapshotVolume, UndoConflict
from fusebackend.trees.merge.pairs import Pairs
from fusebackend.trees.merge.tree import Item, MergeTree, same_contents
from fusebackend.volumes.placing import State

Side: TypeAlias = Literal["main", "branch"]
Word: TypeAlias = Literal["make", "link", "replace", "attributes", "move", "park", "remove"]

READ_ONLY = "a change: the route is read-only"


class Stamp(NamedTuple):
    """A file of main as the plan has seen it. Of a directory, only the type counts."""

    mode: int
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    """0 for a file with several names, for a change of one of them moves it."""

    def is_that_of(self, attr: Attr) -> bool:
        """Return True if a file with these attributes is the one that was seen."""
        now = stamp_of(attr, attr.mode)
        return now[:3] == self[:3] and (now.ctime_ns == self.ctime_ns or not now.ctime_ns or not self.ctime_ns)


class Step(NamedTuple):
    """One change of main.

    - `make`: a file, link, special file or directory, where nothing is.
    - `link`: another name of the file at `to_path`, in place of what is at `path`.
    - `replace`: another file in place of the one at `path`, as a whole.
    - `attributes`: of the file at `path`.
    - `move`: `path` becomes `to_path`, where nothing is.
    - `park`: `path` gets out of the way, to a path with `PARKED`, until a later `move` from there.
    - `remove`: a file, or an empty directory.
    """

    word: Word
    prefix: AgentPath
    path: bytes
    """In main, at this step; without a slash at the begin."""
    to_path: bytes = b""
    state: State | None = None
    item: Item | None = None
    """Of the branch: the bytes."""
    data: bytes | None = None
    """The bytes, where lines were merged."""
    stamp: Stamp | None = None
    """Of what is at `path`; None for nothing, and for a file that an earlier step has changed."""
    times: bool = False
    """Of `attributes`: set the times, too."""


@dataclass
class MergePlan:
    """See the module's docstring.

    Attributes:
        steps: the changes, in their order.
        conflicts: paths that both sides have changed, in main, or in the branch where main has none; those that are
            left. The steps leave them as they are in main.
        decided: conflicts that `keep` has decided, or an earlier merge.
        for_main: with `keep="main"`, a digest of each of them and of both its sides: `decided` of a later plan.
        uncarried: changes of the branch that a route of main can't hold.
        left: paths of the branch that were kept apart, and may differ.
    """

    steps: list[Step] = field(default_factory=list)
    conflicts: list[UndoConflict] = field(default_factory=list)
    decided: list[UndoConflict] = field(default_factory=list)
    for_main: set[bytes] = field(default_factory=set)
    uncarried: list[UndoConflict] = field(default_factory=list)
    left: list[AgentPath] = field(default_factory=list)


def plan(
    base: MergeTree,
    branch: MergeTree,
    main: MergeTree,
    *,
    keep: Side | None = None,
    lines: bool = False,
    paths: Collection[bytes] = (b"",),
    may_differ: Callable[[Item], bool] = lambda item: True,
    apart: Collection[bytes] = (),
    decided: Collection[bytes] = (),
) -> MergePlan:
    """Return what a merge would do. `main` is moved to the state after it, in memory.

    Args:
        keep: the side that conflicts are decided for; None leaves them.
        lines: merge the lines of files that both sides have changed.
        paths: of the branch or of the base; only what lies at or below one of them is merged.
        may_differ, apart: as of `Pairs`.
        decided: what earlier plans have decided for main (`MergePlan.for_main`). Without `keep` that holds until one
            side of a conflict changes.

    Raises:
        OSError: a tree can't be read.
    """
    return Planner(Pairs(base, branch.root, main, may_differ, apart), main, keep, lines, paths, decided).result


class Fields(NamedTuple):
    """The attributes of a file that a merge carries over."""

    mode: int | None
    owner: tuple[int, int] | None
    xattrs: dict[bytes, bytes]
    mtime_ns: int = 0
    """0 where it is not carried over."""


class _Placing(NamedTuple):
    """Main gets a file or directory at the place that it has in the branch."""

    branch: Item
    moved: Item | None = None
    """Of main, the same one at another place; None for one that is made."""

    @property
    def item(self) -> Item:
        return self.branch if self.moved is None else self.moved


class Planner:
    """One plan. `result` has it."""

    times = False
    """Times are carried over, too."""

    def __init__(
        self,
        pairs: Pairs,
        main: MergeTree,
        keep: Side | None,
        lines: bool,
        paths: Collection[bytes],
        decided: Collection[bytes],
    ) -> None:
        self.result = MergePlan(left=[item.shown for item in pairs.left])
        self._pairs = pairs
        self._main = main
        self._keep = keep
        self._lines = lines
        self._paths = tuple(paths)
        self._decided_before = decided
        self._made: dict[Item, Item] = {}  # directories and files of the branch → what they become in main
        self._dropped: set[Item] = set()  # of the branch: main keeps what is there instead
        self._doomed: dict[Item, None] = {}  # of main
        self._stay: set[Item] = set()  # of main: it must not be removed, nor what is above it
        self._placings: list[_Placing] = []
        self._moving: set[Item] = set()
        self._changed: set[Item] = set()  # of main, by a step
        self._leaders: dict[tuple[AgentPath, int], Item] = {}  # a node of the branch → a file of main with its bytes
        self._line_leaders: dict[tuple[AgentPath, int], tuple[Item, bytes]] = {}  # …, with these lines merged into them
        self._given: dict[tuple[AgentPath, int], tuple[Fields, int]] = {}  # a node of main → new attributes, mode
        self._twins: dict[tuple[AgentPath, int], list[Item]] | None = None  # a node of the branch → of the base
        self._parked_at: dict[Item, AgentPath] = {}  # of main, with their paths before
        self._decide()
        self._emit()

    # -- decisions ---------------------------------------------------------------------------------------------

    def _is_wanted(self, *items: Item | None) -> bool:
        return any(
            path == chosen or is_below(path, chosen)
            for path in (item.path for item in items if item is not None)
            for chosen in self._paths
        )

    def _conflict(self, item: Item, reason: str, other: Item | None = None, *, whole: bool = False) -> Side | None:
        """Note a conflict, and return the side that it is decided for.

        Args:
            item: of main; of the branch where main has none.
            other: of the branch, if it has one, too.
            whole: main's side drops all that is in the branch's directory.
        """
        found, keep = UndoConflict(item.shown, reason), self._keep
        if keep == "main" or (keep is None and self._decided_before):
            digest = self._digest(item if other is None else other, reason, item, whole=whole)
            if keep == "main":
                self.result.for_main.add(digest)
            elif digest in self._decided_before:
                keep = "main"
        (self.result.conflicts if keep is None else self.result.decided).append(found)
        return keep

    def _digest(self, named: Item, reason: str, main: Item, *, whole: bool) -> bytes:
        """Return what a conflict and its sides are known by. The branch's path names it, where there is one: a merge
        renames what is above in main. As it renames the file itself, main's ctime does not count."""
        told: list[object] = [named.path, main.name, reason]
        for item in dict.fromkeys((named, main)):
            above = len(item.path)
            for each in item.walk() if whole and item is named else (item,):
                ctime_ns = 0 if each.is_dir or each.tree is self._main else each.ctime_ns
                times = () if each.is_dir else (each.size, each.mtime_ns, ctime_ns)
                state = each.state
                xattrs = sorted(state.xattrs.items())
                told.append(
                    (each.path[above:], each.mode, *times, state.uid, state.gid, state.rdev, state.target, xattrs)
                )
        return sha256(repr(told).encode()).digest()

    def _decide(self) -> None:
        for base in self._pairs.deleted:
            if self._is_wanted(base):
                self._decide_deleted(base)
        for branch in self._pairs.created:
            if self._is_wanted(branch) or (branch.is_dir and any(is_below(each, branch.path) for each in self._paths)):
                self._decide_created(branch)
        for base, branch in self._pairs.kept:
            if base.parent is None or self._is_wanted(base, branch):
                self._decide_kept(base, branch)
        for item in list(self._stay):
            above = item
            while above.parent is not None:
                self._doomed.pop(above, None)
                above = above.parent

    def _decide_deleted(self, base: Item) -> None:
        main = self._pairs.main_of(base)
        if main is None:
            self._decide_retyped_in_main(base)
        if main is None or main.is_fixed or self._is_read_only(main):
            return
        is_moved = self._pairs.is_moved_in_main(base, main)
        is_kept = self._pairs.has_other_name(base)
        if is_moved and is_kept:
            return
        others = [] if is_kept else [each for each in self._pairs.new_names(base) if each is not main]
        # Names that main has made: of a merged deletion nobody could tell them from what main has renamed.
        for other in others:
            if other not in self._doomed and other not in self._stay:
                decided = self._conflict(other, "deleted in the branch, has another name in main")
                self._doom(other) if decided == "branch" else self._stay.add(other)
        if any(other in self._stay for other in others):
            self._stay.add(main)
            return
        if is_moved:
            reason = "deleted in the branch, renamed in main"
        elif not self._is_same(base, main):
            reason = "deleted in the branch, changed in main"
        else:
            reason = ""
        if reason and self._conflict(main, reason) != "branch":
            self._stay.add(main)
            return
        self._doomed[main] = None
        if not main.is_dir:
            return
        for stranger in self._pairs.strangers(base, main):
            words = f"made in main, in '{main.shown}', which the branch deleted"
            if self._conflict(stranger, words) == "branch":
                self._doom(stranger)
            else:
                self._stay.add(stranger)

    def _decide_retyped_in_main(self, base: Item) -> None:
        """Look for a file of another type that main has in place of one that the branch has deleted."""
        branch, main = self._pairs.branch_of(base.directory), self._pairs.main_of(base.directory)
        there = main.child(base.name) if main is not None else None
        if branch is None or branch.child(base.name) is not None or there is None or there.is_fixed:
            return  # the place itself is merged elsewhere
        if self._conflict(there, "deleted in the branch, changed in main") == "branch":
            self._doom(there)

    def _is_retyped(self, branch: Item) -> bool:
        """Return True for a file of the branch in place of one of another type, which main has deleted."""
        above = self._pairs.base_of(branch.directory)
        old = above.child(branch.name) if above is not None else None
        return old is not None and self._pairs.main_of(old) is None and self._pairs.branch_of(old) is None

    def _doom(self, main: Item) -> None:
        """Have a file or directory of main removed with all below it, but for routes."""
        self._doomed.update((item, None) for item in main.walk() if not item.is_fixed)

    def _decide_kept(self, base: Item, branch: Item) -> None:
        moved = self._pairs.is_moved_in_branch(base, branch)
        main = self._pairs.main_of(base)
        there = self._occupant(branch) if moved else None
        if main is None:
            if there is not None and self._is_copy(branch, there):
                self._made[branch] = there
                return
            if (moved or not self._is_same(base, branch, self._features(base))) and not branch.is_way:
                reason = "renamed in the branch, deleted in main" if moved else "changed in the branch, deleted in main"
                if self._conflict(branch, reason) == "branch":
                    self._recreate(branch)
            return
        is_moved_in_main = self._pairs.is_moved_in_main(base, main)
        if there is not None and is_moved_in_main and (there is main or there.key == main.key is not None):
            # It is where the branch has it, maybe by another name as well: a merge that was killed may have renamed it.
            main, moved, is_moved_in_main = there, False, False
        if not main.is_dir and is_moved_in_main and not same_contents(base, branch):
            if there is not None and self._is_copy(branch, there):
                self._made[branch] = there
                return
            # A new file in main's new place would not be found again by a merge that is resumed.
            if self._conflict(main, f"renamed in main, changed in the branch as '{branch.shown}'", branch) == "branch":
                self._recreate(branch)
            return
        self._made[branch] = main
        if main.is_way or branch.is_way or base.is_way:
            return
        self._decide_contents(base, branch, main)
        if moved and not main.is_fixed:
            self._decide_move(branch, main, is_moved_in_main=is_moved_in_main)

    def _is_copy(self, branch: Item, there: Item) -> bool:
        """Return True for a file at the place of a renamed one that was merged already, with other bytes: a new one."""
        return there.type == branch.type and not branch.is_dir and self._is_same(branch, there)

    def _recreate(self, branch: Item) -> None:
        """Make a file that main has deleted, and the directories above it that main has deleted as well."""
        below = [branch]
        while self._home(branch) is None:
            branch = branch.directory
            below.append(branch)
        for item in reversed(below):
            if item not in self._made:
                self._decide_created(item, is_decided=True)

    def _decide_contents(self, base: Item | None, branch: Item, main: Item) -> None:
        """Merge bytes and attributes."""
        features = self._features(main)
        old = None if base is None else self._fields(base, features)
        theirs, ours = self._fields(branch, features), self._fields(main, features)
        bytes_from, data = self._decide_bytes(base, branch, main)
        wanted = _merged(old, theirs, ours)
        if wanted is None or bytes_from == "conflict":
            words = "made in both, and not the same" if base is None else "changed in both"
            if self._conflict(main, words, branch) != "branch":
                return
            wanted = theirs
            is_own = base is None and not main.is_dir and main.nlink > 1  # main's other names keep their attributes
            bytes_from = "branch" if is_own or not same_contents(branch, main) else "main"
        if bytes_from == "main" and self._is_other_file(base, branch, main, is_same=theirs == ours):
            bytes_from = "branch"
        if bytes_from == "branch" or (wanted != ours and bytes_from == "main"):
            self._update(branch, main, wanted, has_bytes=bytes_from == "branch")
        elif bytes_from == "lines":
            self._update(branch, main, wanted, data=data)
        node = branch.prefix, branch.node
        if data is not None:
            self._line_leaders.setdefault(node, (main, data))
        elif bytes_from == "branch" or (branch.nlink > 1 and same_contents(branch, main)):
            self._leaders.setdefault(node, main)

    def _update(
        self, branch: Item, main: Item, wanted: Fields, *, has_bytes: bool = False, data: bytes | None = None
    ) -> None:
        if self._is_read_only(main):
            return
        features, state = self._features(main), main.state
        if has_bytes or data is not None:
            theirs = branch.state
            size = theirs.size if data is None else len(data)
            state = state._replace(size=size, mtime_ns=theirs.mtime_ns, target=theirs.target, rdev=theirs.rdev)
        if wanted.mode is not None:
            state = state._replace(mode=stat.S_IFMT(state.mode) | wanted.mode)
        if wanted.owner is not None:
            state = state._replace(uid=wanted.owner[0], gid=wanted.owner[1])
        if features.xattrs:
            state = state._replace(xattrs=wanted.xattrs)
        self._give(branch, main, wanted, state, has_bytes=has_bytes, data=data)

    def _give(
        self, branch: Item, item: Item, wanted: Fields, state: State, *, has_bytes: bool, data: bytes | None = None
    ) -> None:
        """Have a file of main get attributes. The step comes before those that make other names, which link to it.

        Args:
            state: the whole of it afterwards.
            has_bytes: of the branch, too.
            data: bytes of merged lines.
        """
        features, stamp = self._features(item), self._stamp(item)
        self._changed.add(item)
        is_new = has_bytes or data is not None
        leader = self._leader(branch, data, is_name=False) if is_new and features.links else None
        if leader is not None and leader is not item and leader.prefix == item.prefix and self._is_placed(leader):
            self.result.steps.append(Step("link", item.prefix, item.path, leader.path, stamp=stamp))
            self._changed.add(leader)
            return
        if not is_new:
            if self._given.get((item.prefix, item.node)) == (wanted, state.mode):
                return  # by another name of the file, which has the attributes by then
            self._given[item.prefix, item.node] = wanted, state.mode
        step = Step(
            "replace" if is_new else "attributes",
            item.prefix,
            item.path,
            state=state,
            item=branch if has_bytes else None,
            data=data,
            stamp=stamp,
            times=self.times,
        )
        self.result.steps.append(step)
        if has_bytes:
            self._note_uncarried(branch, features, item.path)

    def _decide_bytes(
        self, base: Item | None, branch: Item, main: Item
    ) -> tuple[Literal["main", "branch", "lines", "conflict"], bytes | None]:
        """Return where the bytes come from; with merged lines, them, also where main has them already."""
        if branch.is_dir:
            return "main", None
        if base is not None and same_contents(base, main):  # as a rule known without a read
            return ("main" if same_contents(base, branch) else "branch"), None
        if same_contents(branch, main) or (base is not None and same_contents(base, branch)):
            return "main", None
        sizes = [item.size for item in (base, branch, main) if item is not None]
        if self._lines and branch.is_file and base is not None and max(sizes) <= MERGED_BYTES:
            data, clean = merge_lines(base.read(), main.read(), branch.read())
            if clean:
                return ("main" if data == main.read() else "lines"), data
        return "conflict", None

    def _is_other_file(self, base: Item | None, branch: Item, main: Item, *, is_same: bool) -> bool:
        """Return True if the branch has another file here, with the bytes of main's, and that can be told apart: main's
        has more names, which must get neither its attributes nor what is written to it; or it has more names itself.

        Args:
            is_same: its attributes are main's, too. A link gives up main's.
        """
        if base is None or main.is_dir or (main.nlink == 1 and branch.nlink == 1):
            return False
        if None in (base.key, branch.key, main.key):
            is_other = branch.nlink < base.nlink <= main.nlink
        else:
            can_join = is_same and self._features(main).links
            is_other = main.key == base.key != branch.key and (main.nlink > 1 or can_join)
        return is_other and same_contents(branch, main)

    def _decide_move(self, branch: Item, main: Item, *, is_moved_in_main: bool) -> None:
        if is_moved_in_main:
            words = f"renamed in main, and to '{branch.shown}' in the branch"
            if self._conflict(main, words, branch) != "branch":
                return
        if not self._is_read_only(main) and self._vacates(branch, main):
            self._placings.append(_Placing(branch, main))
            self._moving.add(main)

    def _decide_created(self, branch: Item, *, is_decided: bool = False) -> None:
        if branch.directory in self._dropped:
            self._dropped.add(branch)
            return
        if self._home(branch) is None:
            words = f"in '{branch.directory.shown}', which main deleted"
            if not is_decided and self._conflict(branch, words, whole=True) != "branch":
                self._dropped.add(branch)
                return
            self._recreate(branch.directory)
        there = self._occupant(branch)
        if there is not None and there.type == branch.type and not there.is_fixed and self._stays(there):
            self._made[branch] = there
            self._decide_contents(self._base_of_link(branch, there), branch, there)
            return
        retyped = there is None and not is_decided and self._is_retyped(branch)
        words = "changed in the branch, deleted in main"
        if retyped and self._conflict(branch, words, whole=True) != "branch":
            self._dropped.add(branch)
            return
        if not self._can_hold(branch):
            self._dropped.add(branch)
        elif self._vacates(branch, None):
            self._placings.append(_Placing(branch))
            self._made.setdefault(branch, self._future(branch))

    def _base_of_link(self, branch: Item, there: Item) -> Item | None:
        """Return the file of the base that both sides have another name of, at the same place; None for other files."""
        if branch.nlink < 2 or there.nlink < 2 or branch.is_dir:
            return None
        if self._twins is None:
            self._twins = {}
            for base, twin in self._pairs.kept:
                if twin.nlink > 1 and not twin.is_dir:
                    self._twins.setdefault((twin.prefix, twin.node), []).append(base)
        for base in self._twins.get((branch.prefix, branch.node), ()):
            main = self._pairs.main_of(base)
            if main is not None and (main.prefix, main.node) == (there.prefix, there.node):
                return base
        return None

    def _can_hold(self, branch: Item) -> bool:
        """Return False for a kind of file that the route of main can't hold."""
        volume = self._main.volumes[self._main.owner(branch.path)]
        features = volume.features
        able, kind = True, ""
        if stat.S_ISLNK(branch.mode):
            able, kind = features.symlinks, "a symbolic link"
        elif not branch.is_dir and not branch.is_file:
            is_device = stat.S_ISCHR(branch.mode) or stat.S_ISBLK(branch.mode)
            refused = is_device and os.geteuid() != 0 and not isinstance(volume, SnapshotVolume)
            able, kind = features.special_files and not refused, "a special file"
        if not able:
            self._lacks(branch.shown, kind)
        return able and not self._is_read_only(branch)

    def _lacks(self, path: AgentPath, what: str) -> None:
        """Note what a route of main can't hold."""
        self.result.uncarried.append(UndoConflict(path, what))

    def _is_read_only(self, item: Item) -> bool:
        """Note a change that can't be made because the route of main is read-only."""
        if self._features(item).read_only:
            self._lacks(item.shown, READ_ONLY)
            return True
        return False

    def _future(self, branch: Item) -> Item:
        """The item of main that a file of the branch becomes. It is in no directory yet."""
        above = self._home(branch)
        prefix = above.prefix if above is not None else self._main.owner(branch.path)
        return Item.future(self._main, prefix, branch)

    def _vacates(self, branch: Item, moving: Item | None) -> bool:
        """See that the place which the branch gives to a file is free, or will be; False if main keeps what it has."""
        there = self._occupant(branch)
        if there is None or there is moving or not self._stays(there):
            return True
        if there.is_fixed:
            self._conflict(there, "the root of a route, in the branch another file", branch, whole=True)
            self._dropped.add(branch)
            return False
        words = "made in main" if moving is None else f"made in main, and '{moving.shown}' has this name in the branch"
        if self._conflict(there, words, branch, whole=True) == "branch":
            self._doom(there)
            return True
        self._dropped.add(branch)
        return False

    def _stays(self, main: Item) -> bool:
        """Return False for a file of main that the merge removes, or gives another place."""
        if main in self._doomed or main in self._moving:
            return False
        base = self._pairs.base_of_main(main)
        branch = self._pairs.branch_of(base) if base is not None else None
        return base is None or branch is None or not self._pairs.is_moved_in_branch(base, branch)

    def _occupant(self, branch: Item) -> Item | None:
        """What is in main at the place of a file of the branch."""
        home = self._home(branch)
        return None if home is None else home.child(branch.name)

    def _home(self, branch: Item) -> Item | None:
        """Return the directory of main that a file of the branch belongs in; None if main has deleted it."""
        made = self._made.get(branch.directory)
        if made is not None:
            return made
        base = self._pairs.base_of(branch.directory)
        main = None if base is None else self._pairs.main_of(base)
        return main if main is None or main.is_dir else None

    # -- comparing ---------------------------------------------------------------------------------------------

    def _features(self, item: Item) -> Features:
        """The features of the route of main that has the item's path."""
        prefix = item.prefix if item.tree is self._main else self._main.owner(item.path)
        return self._main.volumes[prefix].features

    def _fields(self, item: Item, features: Features) -> Fields:
        state, keeps = item.state, features.persistent_modes
        is_link = stat.S_ISLNK(item.mode)
        return Fields(
            stat.S_IMODE(state.mode) if keeps and not is_link else None,
            (state.uid, state.gid) if keeps and os.geteuid() == 0 else None,
            dict(state.xattrs) if features.xattrs and not is_link else {},
        )

    def _is_same(self, one: Item, other: Item, features: Features | None = None) -> bool:
        known = features or self._features(other)
        if self._fields(one, known) != self._fields(other, known):
            return False
        return one.is_dir or same_contents(one, other)

    # -- steps -------------------------------------------------------------------------------------------------

    def _emit(self) -> None:
        """Put the changes into an order, and move the items of main as they will be moved."""
        waiting = sorted(self._placings, key=lambda each: (each.item.path.count(b"/"), each.moved is not None))
        # Renames come last: a bucket copies files for one, and a merge that is resumed would take them for changed.
        waiting = [change for change in waiting if change.moved is not None or not self._try(change)]
        self._remove_some()
        while waiting:
            left = [change for change in waiting if not self._try(change)]
            if len(left) == len(waiting) and not self._remove_some() and not self._park(left):
                self._decide_stuck(left)
                break
            waiting = left
        while self._remove_some():
            pass
        for item in self._doomed:
            if item.is_dir:
                self._conflict(item, "deleted in the branch, and main has files in it", whole=True)

    def _decide_stuck(self, left: Iterable[_Placing]) -> None:
        """Note what can't be made. Where other changes wait for it, or something was parked for it, nothing decides."""
        alone = True
        for change in left:
            parent = self._home(change.branch)
            is_own = change.moved is not None and parent is not None and parent.is_below(change.moved)
            alone = alone and is_own and not self._parked_at.get(change.item)
        for change in left:
            words = "renamed into itself by both"
            if alone:
                self._conflict(change.item, words)
            else:
                shown = self._parked_at.get(change.item, change.item.shown)
                self.result.conflicts.append(UndoConflict(shown, words))

    def _try(self, change: _Placing) -> bool:
        """Make a change if it can be made now."""
        parent, name, item = self._home(change.branch), change.branch.name, change.moved
        if parent is None or not self._is_placed(parent):
            return False
        there = parent.child(name)
        if item is not None and parent.is_below(item):
            return False
        if there is not None and there is item:
            return True
        if there is not None and (there not in self._doomed or there.is_dir or change.item.is_dir):
            return False
        if item is not None:
            if there is not None:
                self._remove(there)
            self._step("move", item, to=(parent, name))
            item.detach()
            item.attach(parent, name)
            self._moving.discard(item)
        else:
            self._emit_make(change.branch, parent, name, there)
        return True

    def _is_placed(self, item: Item) -> bool:
        while item.parent is not None:
            if item.parent.names().get(item.name) is not item:
                return False
            item = item.parent
        return item is self._main.root

    def _emit_make(self, branch: Item, parent: Item, name: bytes, over: Item | None) -> None:
        made = self._made[branch]
        features = self._features(parent)
        leader = self._leader(branch)
        if over is not None:
            over.detach()
            self._doomed.pop(over)
        stamp = None if over is None else self._stamp(over)
        path = join(parent.path, name)
        if leader is not None and leader.prefix == parent.prefix and features.links and self._is_placed(leader):
            self.result.steps.append(Step("link", parent.prefix, path, leader.path, stamp=stamp))
            self._changed.add(leader)
        else:
            word: Word = "make" if over is None else "replace"
            self.result.steps.append(Step(word, parent.prefix, path, state=branch.state, item=branch, stamp=stamp))
            self._leaders.setdefault((branch.prefix, branch.node), made)
        self._note_uncarried(branch, features, path, is_link=leader is not None)
        made.attach(parent, name)

    def _note_uncarried(self, branch: Item, features: Features, path: bytes, *, is_link: bool = False) -> None:
        shown = AgentPath(f"/{os.fsdecode(path)}")
        if is_link and not features.links:
            self._lacks(shown, "a hard link")
        if branch.state.xattrs and not features.xattrs:
            self._lacks(shown, "extended attributes")
        if not features.persistent_modes and branch.is_file and branch.mode & 0o111:
            self._lacks(shown, "permissions")

    def _leader(self, branch: Item, data: bytes | None = None, *, is_name: bool = True) -> Item | None:
        """Return the file of main that another name of a file of the branch becomes, or has become.

        Args:
            data: as of `_give`.
            is_name: for a new name, whatever the bytes are.
        """
        if branch.nlink < 2 or branch.is_dir:
            return None
        node = branch.prefix, branch.node
        if node in self._leaders and data is None:
            return self._leaders[node]
        main, lines = self._line_leaders.get(node, (None, None))
        return main if is_name or lines == data else None

    def _remove_some(self) -> bool:
        """Remove what can be removed now: files, and directories without names. True if there was something."""
        count = len(self._doomed)
        for item in [*reversed(self._doomed)]:  # what is in a directory comes first
            if not item.names() and item not in self._moving:
                self._remove(item)
        return len(self._doomed) < count

    def _remove(self, item: Item) -> None:
        self._step("remove", item)
        item.detach()
        del self._doomed[item]

    def _park(self, waiting: Iterable[_Placing]) -> bool:
        """Get something out of the way that other changes wait for, and that waits itself."""
        for change in waiting:
            parent = self._home(change.branch)
            there = parent.child(change.branch.name) if parent is not None else None
            if parent is None or there is None:
                continue
            item = there
            if there in self._doomed and change.moved is not None and change.moved.is_below(there):
                item = change.moved  # it takes the place of the directory that it is in
            is_moving = any(each.moved is item for each in waiting)
            if is_moving and item not in self._parked_at and not parent.is_below(item):
                self._parked_at[item] = item.shown
                name = PARKED + b"%d" % len(self._parked_at)
                self._step("park", item, to=(self._main.root, name))
                item.detach()
                item.parent, item.name = self._main.root, name
                return True
        return False

    def _step(self, word: Word, item: Item, to: tuple[Item, bytes] | None = None) -> None:
        to_path = b"" if to is None else join(to[0].path, to[1])
        stamp = None if item in self._changed else self._stamp(item)
        self._changed.add(item)
        self.result.steps.append(Step(word, item.prefix, item.path, to_path, stamp=stamp))

    def _stamp(self, item: Item) -> Stamp:
        _, mode = self._given.get((item.prefix, item.node), (None, item.mode))
        return stamp_of(item, mode)


PARKED = b"\0parked/"
"""Where the path of a parked item begins: no name has a NUL."""


def stamp_of(attr: Attr, mode: int) -> Stamp:
    """Return the stamp of a file with these attributes, and this mode."""
    if attr.is_dir:
        return Stamp(stat.S_IFDIR)
    return Stamp(mode, attr.size, attr.mtime_ns, attr.ctime_ns if attr.nlink == 1 else 0)


class _BothChangedError(Exception):
    """Both sides have changed an attribute."""


T = TypeVar("T")


def _merged(base: Fields | None, branch: Fields, main: Fields) -> Fields | None:
    """Merge attributes, each apart; None where both sides have changed one."""
    if base is None:
        return main if branch == main else None
    ours, theirs, before = main.xattrs, branch.xattrs, base.xattrs
    try:
        xattrs = {name: _one(before.get(name), theirs.get(name), ours.get(name)) for name in before | theirs | ours}
        mode, owner = _one(base.mode, branch.mode, main.mode), _one(base.owner, branch.owner, main.owner)
    except _BothChangedError:
        return None
    return Fields(mode, owner, {name: value for name, value in xattrs.items() if value is not None})


def _one(base: T, branch: T, main: T) -> T:
    if branch in (base, main):
        return main
    if main != base:
        raise _BothChangedError
    return branch
