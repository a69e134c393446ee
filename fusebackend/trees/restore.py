"""`Restores`: files of another state of a mount put back into its main tree, as they were, with all attributes.

A restore is a merge in which main is the base, too, and the source wins (`merge/plan.py`). Its steps are made as those
of any merge (`merge/run.py`): all at once on routes that keep snapshots, file by file on others, and after a kill the
same restore does the rest. Each file whose bytes differ becomes a new one in the place of the old, which a process that
has it open keeps; where only attributes differ the file stays. Hard links among the restored files are links of one
file; a link from elsewhere stays with the old one. A directory keeps its node. A restore is a call of the history, and
can be undone.

A path at which another file system is mounted is left alone, with all above it that would have to be removed: the
kernel unmounts what is mounted on a name that changes (`d_invalidate` in fs/dcache.c). Names of the server's own, of a
merge that is under way or was killed, are in no state.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TypeAlias

from fusebackend.base.paths import ROOT, AgentPath, normalise, to_name, to_text
from fusebackend.base.relative_paths import above, is_below, join, split
from fusebackend.history.records import is_call_name
from fusebackend.protocol import Features, RestoreResult, UndoConflict, UndoneChange, Volume
from fusebackend.trees.branch_volume import UNFINISHED, BranchVolume
from fusebackend.trees.merge.pairs import Pairs
from fusebackend.trees.merge.plan import READ_ONLY, Fields, MergePlan, Planner, Stamp, Step
from fusebackend.trees.merge.run import ATTEMPTS, STAGING, MainTree, Merge
from fusebackend.trees.merge.tree import Item, MergeTree, same_contents, shown
from fusebackend.trees.refs import MAIN_REF, Ref
from fusebackend.trees.states import MountState, States
from fusebackend.volumes.placing import TEMPORARY

FOREIGN = "another file system is mounted there"
"""Why a path is left alone."""

JOURNAL = "@restore"
"""The name of the journal, which no branch can have."""


class Restores:
    """See the module's docstring.

    Args:
        main, states: of the mount.

    Attributes:
        read: the names of the snapshots that a restore reads now.
        began_ns: returns when a call began. OSError: ENOENT, there is none of that name; ENOTSUP, there is no history.
    """

    def __init__(self, main: MainTree, states: States, began_ns: Callable[[str], int]) -> None:
        self.read: Collection[str] = ()
        self._main = main
        self._guard = threading.Lock()
        self.began_ns = began_ns
        self._states = states
        self._journal = main.branches.journal(JOURNAL)

    def restore(
        self, given: Sequence[str], ref: Ref, to: Sequence[str] | None, *, dry_run: bool, force: bool
    ) -> RestoreResult:
        """Restore paths. The arguments are those of `MountedBackend.restore`.

        Raises:
            ValueError: a path is malformed; one of `to` is, or lies in, another one; with main as the state: or the
                path that it is to be a copy of.
            OSError: ENOENT, a path is not in that state; ENOTDIR, there is no directory for it; errors of volumes.
        """
        sources = [to_name(normalise(path)).strip(b"/") for path in given]
        finals = sources if to is None else [to_name(normalise(path)).strip(b"/") for path in to]
        pairs = [(source, final) for source, final in zip(sources, finals, strict=True)]
        if to is None:  # what lies in another path is restored with it
            tops = set(sources)
            pairs = [pair for pair in dict.fromkeys(pairs) if tops.isdisjoint(above(pair[0]))]
        else:
            _require_apart(pairs, ref)
        left_alone: set[str] = set()

        def plan() -> tuple[MountState, MergePlan, bool]:
            state, main = self._states.at(ref, [source for source, _ in pairs]), self._states.at(MAIN_REF)
            left_alone.update(state.lacking(sources))
            found = _plan(state.tree, main.tree, ref.name, pairs, to is None, frozenset(self._main.covered()))
            return state, found, state.is_overtaken

        with self._guard, contextlib.ExitStack() as ended:
            ended.callback(setattr, self, "read", ())
            history = self._main.recorder.history if self._main.recorder and (ref.is_call or ref.is_recorded) else None
            self.read = {ref.name} if history is None else history.images("snapshot")
            os.makedirs(os.path.dirname(self._journal), 0o700, exist_ok=True)
            recording = partial(self._main.recording, "restore", lambda: f"restore from {ref.name}")
            settled = partial(_settled, plan, "restore fewer paths at a time")
            written = tuple if force else self._main.written
            run = Merge(JOURNAL, self._main.volumes, settled, self._journal, written, recording)
            outcome = run.dry_run() if dry_run else run.run()
        return RestoreResult(
            ref.name,
            outcome.call,
            [] if outcome.is_refused else list(_changes(outcome.steps)),
            outcome.plan.uncarried,
            outcome.plan.conflicts,
            list(dict.fromkeys(outcome.partly)),
            sorted(left_alone),
        )

    @property
    def is_kept(self) -> bool:
        """True if there is a history, which knows states before the present."""
        return self._main.recorder is not None

    def branch_of(self, call: str) -> str | None:
        """Return the branch whose state the one before a call is; None for that of the mount, and for what is no call.

        Raises:
            OSError: ENOENT, there is no call of that name; ENOTSUP, it has changed several branches alone.
        """
        return self._states.branch_of(Ref(call, 0, is_call=True)) if self.is_kept and is_call_name(call) else None

    def put_back(self, ref: Ref, prefixes: Collection[AgentPath], base: BranchVolume) -> None:
        """Make a branch's base, which is over the present state or over a snapshot, what some routes were in a state
        that the history knows.

        Raises:
            ValueError: as `States.at`.
            OSError: as `States.at`; ENODATA, the bytes of a file are not known; EBUSY, the files change again and
                again.
        """
        volumes = {ROOT: base}

        def plan() -> tuple[MountState, MergePlan, bool]:
            state = self._states.at(ref, [to_name(prefix).strip(b"/") for prefix in prefixes])
            pairs = [(path, path) for path in state.touched(prefixes)]
            there = MergeTree(volumes, volumes, base.key_of)
            found = _plan(state.tree, there, ref.name, pairs, True, (), removes=True)
            return state, found, state.is_touched_again(prefixes)

        journal = self._main.branches.journal(UNFINISHED)
        _complete(Merge(UNFINISHED, volumes, partial(_settled, plan, "begin with a snapshot"), journal).run().plan)

    def tidy(self) -> None:
        """Remove what a killed restore has left in the routes, and give what it has parked its names again. The same
        restore still does the rest."""
        with self._guard:
            Merge(JOURNAL, self._main.volumes, MergePlan, self._journal).tidy()


def _settled(plan: Callable[[], tuple[MountState, MergePlan, bool]], advice: str) -> MergePlan:
    """Return a plan of a state that nobody has changed meanwhile.

    Args:
        plan: makes one, and says whether somebody has.

    Raises:
        OSError: ENODATA, the bytes of a file are not known; EBUSY, the files change again and again.
    """
    for _ in range(ATTEMPTS):
        state, found, is_overtaken = plan()
        for step in found.steps:
            if step.item is not None:
                state.require(step.item)
        if not is_overtaken:
            return found
    raise OSError(errno.EBUSY, f"the files change again and again; try again, or {advice}")


def mirror(source: Volume, target: Volume, journal: str, *, changed_after_ns: int | None = None) -> AgentPath | None:
    """Make a whole volume what another one is, with all attributes. What is the same in both is not written.

    Args:
        journal: the path of the journal: after a kill the same call does the rest.
        changed_after_ns: do nothing if what would be replaced or removed has a later ctime.

    Returns:
        A path that has, when nothing was done; None when both are the same.

    Raises:
        OSError: of a volume; EIO, the target can't hold a file of the source.
    """
    volumes = {ROOT: target}
    later: list[AgentPath] = []

    def plan() -> MergePlan:
        trees = MergeTree({ROOT: source}, volumes), MergeTree(volumes, volumes)
        found = _plan(*trees, "the source", [(b"", b"")], True, ())
        if changed_after_ns is not None:
            now = MergeTree(volumes, volumes)
            for step in found.steps:
                item = now.find(step.path) if step.word in ("replace", "link", "remove") else None
                if item is not None and not item.is_dir and item.ctime_ns > changed_after_ns:
                    later.append(item.shown)
        if later:
            found.steps.clear()
        return _complete(found)

    _complete(Merge(JOURNAL, volumes, plan, journal).run().plan)
    return later[0] if later else None


def _complete(plan: MergePlan) -> MergePlan:
    """Return a plan that leaves nothing out. EIO for another one."""
    for each in (*plan.uncarried, *plan.conflicts):
        raise OSError(errno.EIO, f"'{each.path}': {each.reason}")
    return plan


def _require_apart(pairs: Sequence[tuple[bytes, bytes]], ref: Ref) -> None:
    """Raises ValueError if one of the new paths has another one in it, or is one with it."""
    finals: dict[bytes, bytes] = {}
    for source, final in pairs:
        if final in finals:
            both = f"'/{to_text(finals[final])}' and '/{to_text(source)}'"
            raise ValueError(f"{both} would both become '/{to_text(final)}'; give each another path")
        finals[final] = source
    for source, final in pairs:
        outer = next((each for each in above(final) if each in finals), None)
        if outer is None and ref.is_main and (is_below(final, source) or is_below(source, final)):
            outer = source
        if outer is not None:
            raise ValueError(f"'/{to_text(final)}' and '/{to_text(outer)}' lie in each other; give a path beside it")


_FileKey: TypeAlias = tuple[bool, AgentPath, int]
"""A file of main (True) or of the source, whatever its names are."""


def _plan(
    source: MergeTree,
    main: MergeTree,
    name: str,
    pairs: Sequence[tuple[bytes, bytes]],
    with_ways: bool,
    covered: Collection[bytes],
    *,
    removes: bool = False,
) -> MergePlan:
    """Return the steps that make paths of main what they are in the source: main is what both the base and the present
    are, and the source always wins.

    Args:
        name: of the source.
        pairs: path in the source, path in main.
        with_ways: make the directories above a path that main does not have.
        covered: as of `Restores`.
        removes: remove a path that is not in the source; it is an error otherwise.
    """
    wanted = main.root.apart(None, b"", with_names=False, is_way=True)
    gone: list[Item] = []
    skipped: list[UndoConflict] = []
    for path, final in pairs:
        item = source.find(path)
        if item is None:
            if not removes:
                raise OSError(errno.ENOENT, f"'/{to_text(path)}' is not in '{name}'")
            there = main.find(final)
            gone += [there] if there is not None else []
        elif not frozenset(covered).isdisjoint(above(final)):
            skipped.append(UndoConflict(shown(final), FOREIGN))
        elif not final:
            wanted = item.apart(None, b"")
        else:
            item.apart(_way(source, main, wanted, path, final, with_ways), split(final)[1])
    return _Restoring(_RestorePairs(main, wanted, gone, covered, skipped), main, covered).result


def _way(source: MergeTree, main: MergeTree, top: Item, path: bytes, final: bytes, with_ways: bool) -> Item:
    """Return the directory of a path that is restored, in the tree of all of them."""
    ways = list(zip(chain(above(path), repeat(b"")), above(final), strict=False))
    for here, there in reversed(ways[:-1]):
        known = top.child(split(there)[1])
        if known is None:
            found, like = main.find(there), source.find(here)
            if found is not None and not found.is_dir:
                raise OSError(errno.ENOTDIR, f"'/{to_text(there)}' is no directory, so nothing can be put there")
            if found is None and not with_ways:
                raise OSError(errno.ENOENT, f"there is no directory '/{to_text(there)}'")
            kept = found or like
            assert kept is not None, "it is above one that is there"
            known = kept.apart(top, split(there)[1], with_names=False, is_way=found is not None)
        top = known
    return top


class _RestorePairs(Pairs):
    """The pairs of main and of what is restored in it. Nothing is renamed.

    Args:
        gone: of main, what is to be removed besides.
        covered: as of `Restores`.
        skipped: what is left alone, and why. Gets more.

    Attributes:
        deleted: of main; what is in a directory of these is not named.
        counts: how many names of each file with several are in both trees.
    """

    def __init__(
        self,
        main: MergeTree,
        wanted: Item,
        gone: Sequence[Item],
        covered: Collection[bytes],
        skipped: list[UndoConflict],
    ) -> None:
        self.skipped = skipped
        self._covered = covered
        super().__init__(main, wanted, main)
        self.deleted = [*gone, *self._vanished]
        names = (item for items in (*self.kept, self.created) for item in items if item.nlink > 1)
        self.counts = Counter(_file(item, main) for item in names)

    def _names(self, base: Item, branch: Item) -> tuple[dict[bytes, Item], dict[bytes, Item]]:
        after = {item.name: item for item in self._inside(branch)}
        chosen = after if branch.is_way else base.names()
        before = {name: item for name, item in base.names().items() if name in chosen and not _is_staging(base, name)}
        directory = base.path
        for name in before.keys() | after.keys():
            path, old, new = join(directory, name), before.get(name), after.get(name)
            if path in self._covered:
                self.skipped.append(UndoConflict(shown(path), FOREIGN))
            elif old is not None and new is not None and old.type != new.type and (old.is_fixed or new.is_fixed):
                why = "the root of a route, or a directory on the way to one"
                self.skipped.append(UndoConflict(shown(path), why))
            else:
                continue
            before.pop(name, None)
            after.pop(name, None)
        return before, after

    def _inside(self, created: Item) -> Iterable[Item]:
        """Names of the server's own are in no state."""
        return (item for name, item in created.names().items()
                if not (name.startswith(TEMPORARY) or _is_staging(created, name)))  # fmt: skip

    def _vanish(self, top: Item) -> None:
        self._vanished.append(top)

    def main_of(self, base: Item) -> Item:
        return base

    def base_of_main(self, main: Item) -> Item:
        return main


class _Restoring(Planner):
    """The plan of a restore: the source wins, with all attributes. What can't be as it was is left alone.

    Args:
        covered: as of `Restores`.
    """

    times = True

    def __init__(self, pairs: _RestorePairs, main: MergeTree, covered: Collection[bytes]) -> None:
        self._covered = sorted(covered)
        self._counts = pairs.counts
        self._same: dict[_FileKey, _FileKey] = {}  # in both directions
        super().__init__(pairs, main, "branch", False, (b"",), ())
        found = [*pairs.skipped, *self.result.uncarried]
        self.result.uncarried = list({(each.path, each.reason): each for each in found}.values())

    def _lacks(self, path: AgentPath, what: str) -> None:
        words = "its route is read-only" if what == READ_ONLY else f"its route can't hold {what}"
        self.result.uncarried.append(UndoConflict(path, words))

    def _note_uncarried(self, branch: Item, features: Features, path: bytes, *, is_link: bool = False) -> None:
        """What is lost on the way is told when it is."""

    def _decide_deleted(self, base: Item) -> None:
        inner = next((each for each in self._covered if each == base.path or is_below(each, base.path)), None)
        if any(each.is_fixed for each in base.walk()):
            self.result.uncarried.append(UndoConflict(base.shown, "a route is in it"))
        elif inner is not None:
            where = f"another file system is mounted at '/{to_text(inner)}'"
            self.result.uncarried.append(UndoConflict(base.shown, where))
        elif not self._is_read_only(base):
            self._doom(base)

    def _vacates(self, branch: Item, moving: Item | None) -> bool:
        there = self._occupant(branch)
        if there is not None and self._stays(there):
            self._dropped.add(branch)
        return branch not in self._dropped

    def _decide_contents(self, base: Item | None, branch: Item, main: Item) -> None:
        features = self._features(main)
        wanted = self._fields(branch, features)
        is_right = main.is_dir or self._is_right(branch, main, features)
        if is_right and wanted == self._fields(main, features):
            self._leaders.setdefault((branch.prefix, branch.node), main)
        elif not self._is_read_only(main):
            self._leaders.setdefault((branch.prefix, branch.node), main)
            self._give(branch, main, wanted, branch.state, has_bytes=not is_right)

    def _is_right(self, item: Item, there: Item, features: Features) -> bool:
        """Return True for a file whose bytes and links are right. One with several names has all attributes right, for
        they would change under the others, too. Names that are one file in the source are one in main, and the reverse;
        names elsewhere are those of the source, as far as it has any."""
        if features.links and not item.nlink == there.nlink == 1:
            mine, theirs = _file(item, self._main), _file(there, self._main)
            if self._same.setdefault(mine, theirs) != theirs or self._same.setdefault(theirs, mine) != mine:
                return False
            if there.nlink > max(self._counts[theirs], 1) and item.nlink <= max(self._counts[mine], 1):
                return False
            if there.nlink > 1 and self._fields(item, features) != self._fields(there, features):
                return False
        return same_contents(item, there)

    def _fields(self, item: Item, features: Features) -> Fields:
        found = super()._fields(item, features)
        return found._replace(mtime_ns=item.state.mtime_ns if features.persistent_modes else 0)

    def _emit(self) -> None:
        """What is in nobody's way is removed when all else is in place. Last, directories get their attributes, and the
        times that steps in them move."""
        super()._emit()
        steps = [step for step in self.result.steps if step.word != "attributes" or not _is_of_directory(step)]
        touched = {step.path for step in self.result.steps if _is_of_directory(step)}
        touched |= {split(step.path)[0] for step in steps if step.word != "attributes"}
        made = {step.path for step in steps if step.word in ("make", "link")}
        steps.sort(key=lambda step: step.word == "remove" and made.isdisjoint((step.path, *above(step.path))))
        closing = [
            Step("attributes", main.prefix, main.path, state=branch.state, stamp=Stamp(stat.S_IFDIR), times=True)
            for branch, main in self._made.items()
            if main.is_dir and main.path in touched and not (branch.is_way or main.is_way)
        ]
        closing.sort(key=lambda step: step.path.count(b"/") if step.path else -1, reverse=True)
        self.result.steps = steps + closing


def _file(item: Item, main: MergeTree) -> _FileKey:
    return item.tree is main, item.prefix, item.node


def _is_staging(directory: Item, name: bytes) -> bool:
    return directory.is_fixed and name.startswith(STAGING)


def _is_of_directory(step: Step) -> bool:
    """Return True for a step that makes a directory, or sets its attributes."""
    return step.word in ("make", "attributes") and step.state is not None and stat.S_ISDIR(step.state.mode)


def _changes(steps: Sequence[Step]) -> Iterator[UndoneChange]:
    """The changes for people, in the order of paths: a removal and a new file at one path are one change."""
    words: dict[bytes, str] = {}
    for step in steps:
        word = {"make": "create"}.get(step.word, step.word)
        if step.path in words:
            word = "replace" if {word, words[step.path]} == {"create", "remove"} else words[step.path]
        words[step.path] = word
    tops = {path for path, word in words.items() if word == "remove"}
    for path, word in sorted(words.items()):
        if word == "remove" and split(path)[0] in tops:
            continue
        yield UndoneChange(word, "/" + to_text(path))
