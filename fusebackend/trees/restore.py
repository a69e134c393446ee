"""`Restores`: files of another state of a mount put back into its main tree, as they were, with all attributes.

A plan is made from both trees, of the steps that a merge has (`merge/run.py`), which makes them: all at once on routes
that keep snapshots, file by file on others, and after a kill the same restore does the rest. Each file whose bytes
differ becomes a new one in the place of the old, which a process that has it open keeps; where only attributes differ
the file stays. Hard links among the restored files are links of one file; a link from elsewhere stays with the old
one. A directory keeps its node. A restore is a call of the history, and can be undone.

A path at which another file system is mounted is left alone, with all above it that would have to be removed: the
kernel unmounts what is mounted on a name that changes (`d_invalidate` in fs/dcache.c). Names of the server's own, of a
merge that is under way or was killed, are in no state.

One at a time, by any thread but the mount's loop.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple, TypeAlias

from fusebackend.base.paths import ROOT, AgentPath, normalise, to_name, to_text
from fusebackend.base.relative_paths import above, is_below, join, split
from fusebackend.history.calls import OpenCall
from fusebackend.history.recorder import Recorder
from fusebackend.history.records import is_call_name
from fusebackend.protocol import Features, RestoreResult, SnapshotVolume, UndoConflict, UndoneChange, Volume
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.branches import JOURNAL_OF_BASE, Branches
from fusebackend.trees.merge.plan import Plan, Stamp, Step, Uncarried, stamp_of
from fusebackend.trees.merge.records import MergeRecords
from fusebackend.trees.merge.run import ATTEMPTS, STAGING, Merge
from fusebackend.trees.merge.tree import Item, MergeTree, same_bytes
from fusebackend.trees.refs import MAIN_REF, Ref
from fusebackend.trees.states import States
from fusebackend.volumes.placing import TEMPORARY, State

FOREIGN = "another file system is mounted there"
"""Why a path is left alone."""

JOURNAL = "@restore"
"""The name of the journal, which no branch can have."""


class Restores:
    """See the module's docstring.

    Args:
        branches, volumes, states: of the mount.
        written: returns the nodes that somebody has open for writing, each with the prefix of its route.
        recorder: of the history; None if there is none.
        covered: returns the paths of main at which other file systems are mounted, without a slash at the begin.
        began_ns: returns when a call began; OSError, there is none of that name, or no history.
    """

    def __init__(
        self,
        branches: Branches,
        volumes: Mapping[AgentPath, Volume],
        states: States,
        written: Callable[[], Collection[tuple[AgentPath, int]]],
        recorder: Recorder | None,
        covered: Callable[[], Collection[bytes]] = tuple,
        began_ns: Callable[[str], int] | None = None,
    ) -> None:
        self._covered = covered
        self._began_ns = began_ns
        self._branches = branches
        self._states = states
        self._volumes = dict(volumes)
        self._written = written
        self._recorder = recorder
        self._guard = threading.Lock()

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
        call: list[OpenCall] = []
        left_alone: set[str] = set()

        def plan() -> Plan:
            for _ in range(ATTEMPTS):
                state, main = self._states.at(ref, [source for source, _ in pairs]), self._states.at(MAIN_REF)
                left_alone.update(_lacking(state.kept, self._volumes, sources))
                found = _RestorePlanner(
                    state.tree, main.tree, ref.name, state.kept, pairs, to is None, self._covered()
                ).plan
                for step in found.steps:
                    if step.item is not None:
                        state.require(step.item)
                if not state.is_overtaken:
                    return found
            raise OSError(errno.EBUSY, "the files change again and again; try again, or restore fewer paths at a time")

        with self._guard:
            os.makedirs(os.path.dirname(self._branches.journal(JOURNAL)), 0o700, exist_ok=True)
            run = Merge(JOURNAL, self._volumes, plan, self._branches.journal(JOURNAL),
                        tuple if force else self._written, lambda: self._recording(ref, call))  # fmt: skip
            outcome = run.dry_run() if dry_run else run.run()
        steps = outcome.plan.steps if dry_run else outcome.steps
        conflicts = [UndoConflict(path, "is open for writing in the mount") for path in outcome.open_paths]
        conflicts += [UndoConflict(each.path, each.reason) for each in outcome.plan.conflicts]
        number = call[0].number if call else 0
        return RestoreResult(
            ref.name,
            f"c{number}" if number else None,
            [] if conflicts else list(_changes(steps)),
            [UndoConflict(each.path, each.what) for each in outcome.plan.uncarried],
            conflicts,
            list(dict.fromkeys(outcome.partly)),
            sorted(left_alone),
        )

    @property
    def is_kept(self) -> bool:
        """True if there is a history, which knows states before the present."""
        return self._recorder is not None

    def began_ns(self, call: str) -> int:
        """Return when a call began.

        Raises:
            OSError: ENOENT, there is none of that name; ENOTSUP, there is no history.
        """
        assert self._began_ns is not None, "a mount gives it"
        return self._began_ns(call)

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

        def plan() -> Plan:
            for _ in range(ATTEMPTS):
                state = self._states.at(ref, [to_name(prefix).strip(b"/") for prefix in prefixes])
                pairs = [(path, path) for path in state.touched(prefixes)]
                there = MergeTree(volumes, volumes, lambda _, node: base.main_file(node))
                found = _RestorePlanner(state.tree, there, ref.name, volumes, pairs, True, (), removes=True).plan
                for step in found.steps:
                    if step.item is not None:
                        state.require(step.item)
                if not state.is_touched_again(prefixes):
                    return found
            raise OSError(errno.EBUSY, "the files change again and again; try again, or begin with a snapshot")

        journal = self._branches.journal(JOURNAL_OF_BASE)
        with contextlib.suppress(FileNotFoundError):  # of a base that was not completed, and is gone
            os.unlink(journal)
        outcome = Merge(JOURNAL_OF_BASE, volumes, plan, journal).run()
        for each in outcome.plan.uncarried:
            raise OSError(errno.EIO, f"'{each.path}': {each.what}")

    def tidy(self) -> None:
        """Remove what a killed restore has left in the routes, and give what it has parked its names again. The same
        restore still does the rest."""
        with self._guard:
            Merge(JOURNAL, self._volumes, Plan, self._branches.journal(JOURNAL)).tidy()

    @contextlib.contextmanager
    def _recording(self, ref: Ref, calls: list[OpenCall]) -> Iterator[MergeRecords]:
        if self._recorder is None:
            yield MergeRecords()
            return
        with self._recorder.calls.inside("restore", f"restore from {ref.name}") as call:
            calls[:] = [call]
            yield MergeRecords(self._recorder, call)


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

    def plan() -> Plan:
        main = MergeTree(volumes, volumes)
        found = _RestorePlanner(
            MergeTree({ROOT: source}, volumes), main, "the source", volumes, [(b"", b"")], True, ()
        ).plan
        if changed_after_ns is not None:
            for step in found.steps:
                item = main.find(step.path) if step.word in ("replace", "link", "remove") else None
                if item is not None and not item.is_dir and item.ctime_ns > changed_after_ns:
                    later.append(item.shown)
        if later:
            found.steps.clear()
        return _complete(found)

    _complete(Merge(JOURNAL, volumes, plan, journal).run().plan)
    return later[0] if later else None


def _complete(plan: Plan) -> Plan:
    """Return a plan that leaves nothing out. EIO for another one."""
    left = [(each.path, each.what) for each in plan.uncarried]
    left += [(each.path, each.reason) for each in plan.conflicts]
    if left:
        raise OSError(errno.EIO, f"'{left[0][0]}': {left[0][1]}")
    return plan


def _lacking(kept: Collection[AgentPath], prefixes: Collection[AgentPath], paths: Sequence[bytes]) -> Iterator[str]:
    """Return the prefixes of the routes at and below some paths of which a state holds nothing, for people."""
    for prefix in prefixes:
        route = to_name(prefix).strip(b"/")
        if prefix not in kept and any(route == path or is_below(route, path) for path in paths):
            yield f"{prefix.rstrip('/')}/"


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


_File: TypeAlias = tuple[bool, AgentPath, int]
"""A file of main (True) or of the source, whatever its names are."""


class _Leaf(NamedTuple):
    """A path that is no directory in the source, and what is there in main."""

    item: Item
    path: bytes
    there: Item | None


class _RestorePlanner:
    """One plan: steps that make the paths of main what they are in the source.

    Args:
        name: of the source.
        kept: prefixes of the routes of which the source holds something; the others are left alone.
        pairs: path in the source, path in main.
        with_ways: make the directories above a path that main does not have.
        covered: as of `Restores`.
        removes: remove a path that is not in the source; it is an error otherwise.
    """

    def __init__(
        self,
        source: MergeTree,
        main: MergeTree,
        name: str,
        kept: Collection[AgentPath],
        pairs: Sequence[tuple[bytes, bytes]],
        with_ways: bool,
        covered: Collection[bytes],
        *,
        removes: bool = False,
    ) -> None:
        self.plan = Plan()
        self._covered = frozenset(covered)
        self._order: list[Step | _Leaf] = []
        self._names: Counter[_File] = Counter()  # of each file, as far as they are restored
        self._source, self._main, self._kept = source, main, kept
        self._leaders: dict[tuple[AgentPath, int], tuple[AgentPath, bytes]] = {}
        self._removals: list[Step] = []
        self._attributes: list[Step] = []
        self._same: dict[_File, _File | None] = {}  # in both directions; None for a file that is made anew
        self._made: set[bytes] = set()
        self._paired: dict[bytes, Item] = {}  # directories of main that stay, with those of the source
        for path, final in pairs:
            item = source.find(path)
            if item is None and removes:
                there = main.find(final)
                if there is not None:
                    self._remove(there, final)
                continue
            if item is None or not (item.is_fixed or main.owner(path) in kept):
                raise OSError(errno.ENOENT, f"'/{to_text(path)}' is not in '{name}'")
            if not self._covered.isdisjoint(above(final)):
                self._skip(final, FOREIGN)
                continue
            self._make_ways(path, final, with_ways)
            self._put(item, path, final, main.find(final))
        for each in self._order:
            if isinstance(each, _Leaf):
                self._put_leaf(*each)
            else:
                self.plan.steps.append(each)
        self.plan.steps += self._removals
        self._keep_times()
        self._attributes.sort(key=_after_its_names)
        self.plan.steps += self._attributes

    def _keep_times(self) -> None:
        """Plan the attributes of directories in which steps change names: that moves their times."""
        known = {step.path for step in self._attributes}
        for path in {split(step.path)[0] for step in self.plan.steps} - known:
            if path in self._paired:
                self._attributes.append(self._given(self._paired[path], path, stamp_of(stat.S_IFDIR, 0, 0, 0, 2)))

    def _make_ways(self, path: bytes, final: bytes, with_ways: bool) -> None:
        ways = []
        for here, there in zip(chain(above(path), repeat(b"")), above(final), strict=False):
            if not there or there in self._made:
                break
            found = self._main.find(there)
            if found is not None:
                if not found.is_dir:
                    raise OSError(errno.ENOTDIR, f"'/{to_text(there)}' is no directory, so nothing can be put there")
                break
            if not with_ways:
                raise OSError(errno.ENOENT, f"there is no directory '/{to_text(there)}'")
            ways.append((here, there))
        for here, there in reversed(ways):
            item = self._source.find(here)
            assert item is not None, "it is above one that is there"
            self._make(item, there)

    def _put(self, item: Item, source: bytes, path: bytes, there: Item | None) -> None:
        left = [(item, source, path, there)]
        while left:
            item, source, path, there = left.pop()
            if path in self._covered:
                self._skip(path, FOREIGN)
                continue
            if self._main.owner(source) not in self._kept:  # but routes may be below it
                ours = there.names() if there is not None else {}
                left += [(each, join(source, name), join(path, name), ours.get(name))
                         for name, each in item.names().items() if each.is_fixed]  # fmt: skip
                continue
            is_place = item.is_fixed or (there is not None and there.is_fixed)
            if there is not None and there.is_dir != item.is_dir:
                if is_place:
                    self._skip(path, "the root of a route, or a directory on the way to one")
                    continue
                if not self._remove(there, path, at_once=True):
                    continue
                there = None
            if not item.is_dir:
                self._order.append(_Leaf(item, path, there))
                self._names.update([self._file(item)] if there is None else [self._file(item), self._file(there)])
                continue
            if there is None:
                if not self._make(item, path):
                    continue
            elif not (item.is_way or there.is_way):
                self._paired[path] = item
                self._give(item, path, there)
            theirs = {name: each for name, each in item.names().items()
                      if not (name.startswith(TEMPORARY) or _is_staging(item, name))}  # fmt: skip
            ours = there.names() if there is not None else {}
            for name in sorted(ours.keys() - theirs.keys()):
                if not (ours[name].is_fixed or (there is not None and _is_staging(there, name))):
                    self._remove(ours[name], join(path, name))
            for name in sorted(theirs, reverse=True):
                left.append((theirs[name], join(source, name), join(path, name), ours.get(name)))

    def _make(self, item: Item, path: bytes) -> bool:
        if not self._can_hold(item, path):
            return False
        self._made.add(path)
        self._order.append(Step("make", self._main.owner(path), path, state=item.state, item=item))
        self._attributes.append(self._given(item, path, stamp_of(stat.S_IFDIR, 0, 0, 0, 2)))
        return True

    def _put_leaf(self, item: Item, path: bytes, there: Item | None) -> None:
        if not self._can_hold(item, path):
            return
        prefix = self._main.owner(path)
        features = self._main.volumes[prefix].features
        key = item.prefix, item.node
        if there is not None and self._stays(item, there, features):
            self._leaders.setdefault(key, (prefix, path))
            self._give(item, path, there)
            return
        stamp = None if there is None else stamp_of(there.mode, there.size, there.mtime_ns, there.ctime_ns, there.nlink)
        leader = self._leaders.get(key) if item.nlink > 1 and features.links else None
        if leader is not None and leader[0] == prefix:
            self.plan.steps.append(Step("link", prefix, path, leader[1], stamp=stamp))
            return
        self._leaders.setdefault(key, (prefix, path))
        self._same.setdefault(self._file(item), None)
        self.plan.steps.append(Step("make" if there is None else "replace", prefix, path, state=item.state, item=item,
                                    stamp=stamp))  # fmt: skip

    def _stays(self, item: Item, there: Item, features: Features) -> bool:
        """Return True for a file whose bytes and links are right. One with several names has all attributes right, for
        they would change under the others, too. Names that are one file in the source are one in main, and the reverse;
        names elsewhere are those of the source, as far as it has any."""
        if there.type != item.type:
            return False
        if not features.links or item.nlink == there.nlink == 1:
            return _has_same(item, there)
        mine, theirs = self._file(item), self._file(there)
        if self._same.setdefault(mine, theirs) != theirs or self._same.setdefault(theirs, mine) != mine:
            return False
        if there.nlink > self._names[theirs] and item.nlink <= self._names[mine]:
            return False
        if there.nlink > 1 and _fields(item.state, features) != _fields(there.state, features):
            return False
        return _has_same(item, there)

    def _file(self, item: Item) -> _File:
        return item.tree is self._main, item.prefix, item.node

    def _give(self, item: Item, path: bytes, there: Item) -> None:
        """Plan the attributes of a file or directory that stays."""
        prefix = self._main.owner(path)
        features = self._main.volumes[prefix].features
        differs = _fields(item.state, features) != _fields(there.state, features)
        stamp = stamp_of(there.mode, there.size, there.mtime_ns, there.ctime_ns, there.nlink)
        if differs and not self._is_read_only(prefix, path):
            self._attributes.append(self._given(item, path, stamp))

    def _given(self, item: Item, path: bytes, stamp: Stamp) -> Step:
        return Step("attributes", self._main.owner(path), path, state=item.state, stamp=stamp, times=True)

    def _remove(self, there: Item, path: bytes, *, at_once: bool = False) -> bool:
        """Plan the removal of something with all below it."""
        if any(each.is_fixed for each in there.walk()):
            self._skip(path, "a route is in it")
            return False
        inner = next((each for each in sorted(self._covered) if each == path or is_below(each, path)), None)
        if inner is not None:
            self._skip(path, f"another file system is mounted at '/{to_text(inner)}'")
            return False
        if self._is_read_only(there.prefix, path):
            return False
        steps = [Step("remove", there.prefix, join(path, each.path[len(there.path) :].lstrip(b"/"))
                      if each is not there else path,
                      stamp=stamp_of(each.mode, each.size, each.mtime_ns, each.ctime_ns, each.nlink))
                 for each in there.walk()]  # fmt: skip
        (self._order if at_once else self._removals).extend(reversed(steps))
        return True

    def _can_hold(self, item: Item, path: bytes) -> bool:
        prefix = self._main.owner(path)
        volume = self._main.volumes[prefix]
        kind = ""
        if stat.S_ISLNK(item.mode):
            kind = "" if volume.features.symlinks else "a symbolic link"
        elif not item.is_dir and not item.is_file:
            is_device = not (stat.S_ISFIFO(item.mode) or stat.S_ISSOCK(item.mode))
            refused = is_device and os.geteuid() != 0 and not isinstance(volume, SnapshotVolume)
            kind = "" if volume.features.special_files and not refused else "a special file"
        if kind:
            self._skip(path, f"its route can't hold {kind}")
        return not kind and not self._is_read_only(prefix, path)

    def _is_read_only(self, prefix: AgentPath, path: bytes) -> bool:
        if self._main.volumes[prefix].features.read_only:
            self._skip(path, "its route is read-only")
            return True
        return False

    def _skip(self, path: bytes, why: str) -> None:
        self.plan.uncarried.append(Uncarried(AgentPath("/" + to_text(path)), why))


def _is_staging(directory: Item, name: bytes) -> bool:
    return directory.is_fixed and name.startswith(STAGING)


def _after_its_names(step: Step) -> int:
    """The deepest paths come first: a change of a name in a directory moves its times."""
    return -step.path.count(b"/") if step.path else 1


def _has_same(item: Item, there: Item) -> bool:
    if item.is_file:
        return same_bytes(item, there)
    return (item.state.target, item.rdev) == (there.state.target, there.rdev)


def _fields(state: State, features: Features) -> tuple[object, ...]:
    is_link = stat.S_ISLNK(state.mode)
    return (
        state.mode if features.persistent_modes and not is_link else 0,
        (state.uid, state.gid) if features.persistent_modes and os.geteuid() == 0 else 0,
        state.mtime_ns if features.persistent_modes else 0,
        state.xattrs if features.xattrs and not is_link else {},
    )


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
