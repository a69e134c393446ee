"""`Merges`: the merges of a mount's branches into its main tree, one at a time."""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

from fusebackend.base.errors import oserror, unless
from fusebackend.base.paths import ROOT, AgentPath, join, normalise, to_name, to_text
from fusebackend.base.relative_paths import is_below
from fusebackend.history.history_file import Filter
from fusebackend.protocol import WORKTREE, Attr, Features, MergeResult, UndoConflict, UndoneChange, Volume
from fusebackend.trees.branch_volume import BranchVolume, Stamp
from fusebackend.trees.lower_tree import FIRST_OWN
from fusebackend.trees.merge.plan import PARKED, MergePlan, Side, Step, plan
from fusebackend.trees.merge.run import MainTree, Merge, Outcome, keep_sources
from fusebackend.trees.merge.tree import Item, MergeTree, by_node, shown
from fusebackend.volumes.contents import data_pieces
from fusebackend.volumes.frozen import GivesPieces

log = logging.getLogger(__name__)

GIT: Final = b".git"
"""Left as it is in the merge of a worktree: nobody but git can merge its files."""

SHOWN_WRITERS: Final = 8
"""Actors of a branch that the title of its merge names."""

_WORDS = {"make": "create", "link": "create", "replace": "replace", "attributes": "attributes", "move": "rename",
          "remove": "remove"}  # fmt: skip


class Merges:
    """See the module's docstring.

    Args:
        main: of the mount.
        trees: the mount's own directory, which no branch may put another one on: the next mount would be refused.
    """

    def __init__(self, main: MainTree, trees: AgentPath | None = None) -> None:
        self._main = main
        self._guard = threading.Lock()
        self._trees = trees

    def merge(
        self,
        name: str,
        paths: Sequence[str] = (),
        *,
        keep: Side | None = None,
        lines: bool = False,
        dry_run: bool = False,
    ) -> MergeResult:
        """Merge a branch.

        Args:
            name: of the branch.
            paths: only what lies at or below one of these is merged; everything when empty.
            keep: the side that conflicts are decided for; None refuses them, but for those that were decided for main
                and of which neither side has changed since.
            lines: merge the lines of text files that both have changed.
            dry_run: change nothing.

        Raises:
            ValueError: a path is malformed.
            OSError: ENOENT, there is no such branch, or nothing at a path; ESTALE, it can't be opened; errors of the
                volumes. The same merge does the rest then.
        """
        with self._guard:
            branch = self._main.branches.volume(name)
            chosen = [to_name(normalise(path)).strip(b"/") for path in paths] or [b""]
            branch.sync()
            merge = self._merge(branch, name, lambda: self._plan(name, branch, keep, lines, chosen))
            outcome = merge.dry_run() if dry_run else merge.run()
            if not (dry_run or outcome.is_refused):
                call = outcome.call
                branch.note_decided(outcome.plan.for_main, 0 if call is None else int(call[1:]))
        return _result(name, outcome)

    def _merge(self, branch: BranchVolume, name: str, plan: Callable[[], MergePlan]) -> Merge:
        journal, written = self._main.branches.journal(name), self._main.written
        recording = partial(self._main.recording, "merge", partial(self._title, name))
        before = partial(keep_sources, branch)
        return Merge(name, self._main.volumes, plan, journal, written, recording, branch.follow, before)

    def tidy(self) -> None:
        """Remove what killed merges have left in the routes, and give what they have parked its names again. The same
        merge still does the rest. OSError: as `end`."""
        self.end(self._main.branches.opened)

    def end(self, names: Collection[str]) -> None:
        """Do what `tidy` does for branches that are about to be deleted: nobody else would.

        Raises:
            OSError: something that a merge has left in a route can't be removed. Its text names the branch.
        """
        for name, branch in self._main.branches.opened.items():
            if name not in names:
                continue
            with self._guard:
                try:
                    self._merge(branch, name, MergePlan).tidy()
                except OSError as error:
                    text = f"what a merge of branch '{name}' has left can't be removed: {error.strerror or error}"
                    raise OSError(error.errno, text) from error

    def _plan(
        self, name: str, branch: BranchVolume, keep: Side | None, lines: bool, paths: Collection[bytes]
    ) -> MergePlan:
        base, theirs, main, may_differ = trees_of(branch, self._main.volumes)
        apart = (GIT,) if name.startswith(WORKTREE) else ()
        found = plan(
            base, theirs, main, keep=keep, lines=lines, paths=paths, may_differ=may_differ, apart=apart,
            decided=self._decided(branch),
        )  # fmt: skip
        own = [] if self._trees is None else [to_name(self._trees).strip(b"/")]
        if any(_in_the_way(step, own) is not None for step in found.steps):
            reason = "is the mount's own directory; give what the branch has there another name"
            found.conflicts.append(UndoConflict(shown(own[0]), reason))
        covered = self._main.covered()
        for step in found.steps if covered else ():
            path = _in_the_way(step, covered)
            if path is not None:
                where = "there" if path == step.path else f"at '/{to_text(path)}'"
                found.conflicts.append(UndoConflict(shown(step.path), f"another file system is mounted {where}"))
        return found

    def _decided(self, branch: BranchVolume) -> set[bytes]:
        """Return what was decided for main by merges that are not taken back."""
        found, recorder = branch.decided, self._main.recorder
        if recorder is None:
            return set(found)
        calls = {number: recorder.history.call(number) for number in set(found.values()) - {0}}
        undone = {number for number, call in calls.items() if call is not None and call.undone_by is not None}
        return {digest for digest, number in found.items() if number not in undone}

    def _title(self, name: str) -> str:
        """Return what a log says of a merge, with the actors that have changed something in the branch, as long as the
        history knows them."""
        assert self._main.recorder is not None, "there is a history"
        calls = self._main.recorder.history.calls(None, Filter(paths=(join(self._main.branches.path, name),)))
        writers = sorted({call.actor.word for call in calls} - {""})
        more = f" and {len(writers) - SHOWN_WRITERS} more" if len(writers) > SHOWN_WRITERS else ""
        by = f", written by {', '.join(writers[:SHOWN_WRITERS])}{more}" if writers else ""
        return f"merge branch '{name}'{by}"

    def compare(self, name: str) -> tuple[int | None, int | None]:
        """Return how many conflicts a merge of a branch would leave, and how many changes it would make. Both are None
        where that can't be known: of a branch that can't be opened, or whose routes do not answer."""
        try:
            with self._guard:
                found = self._plan(name, self._main.branches.volume(name), None, False, [b""])
        except OSError as error:
            log.info("branch '%s' can't be compared with the mount: %s", name, error)
            return None, None
        return len(found.conflicts), len(found.steps)


def _in_the_way(step: Step, covered: Collection[bytes]) -> bytes | None:
    """Return the path of a mounted file system that a step would hide a change below, or that it would unmount: the
    kernel does that when the name goes (d_invalidate in fs/dcache.c)."""
    ends = [step.path, step.to_path] if step.word == "move" else [step.path]
    for path in (each for each in ends if not each.startswith(PARKED)):
        for each in covered:
            is_gone = step.word in ("remove", "move", "park", "replace") and is_below(each, path)
            if path == each or is_below(path, each) or is_gone:
                return each
    return None


def _result(name: str, outcome: Outcome) -> MergeResult:
    found = outcome.plan
    partly = [f"{each.path}: {each.reason} can't be kept there" for each in found.uncarried] + outcome.partly
    return MergeResult(
        branch=name,
        call=outcome.call,
        changes=[] if outcome.is_refused else list(_changes(outcome.steps)),
        decided=found.decided,
        conflicts=found.conflicts,
        partly=list(dict.fromkeys(partly)),
        repositories=[posixpath.dirname(path) for path in found.left],
    )


def _changes(steps: Sequence[Step]) -> Iterator[UndoneChange]:
    parked = {step.to_path: step.path for step in steps if step.word == "park"}
    for step in steps:
        if step.word == "park":
            continue
        path = "/" + to_text(step.path)
        if step.word == "move":
            old = "/" + os.fsdecode(parked.get(step.path, step.path))
            yield UndoneChange("rename", "/" + to_text(step.to_path), old)
        else:
            yield UndoneChange("merge" if step.data is not None else _WORDS[step.word], path)


# -- the three trees ---------------------------------------------------------------------------------------------
#
# The three trees of a branch's merge: `BranchBase`, the branch itself, and main.
#
# The base of a frozen route is its snapshot. That of a live one is what the branch has noted when it copied something
# up: the bytes of a file that it has written, the attributes of one of which it has changed any, and the entries of a
# directory. Of anything else it is the route as it is now; a file that main has changed since, and that the branch has
# deleted, counts as changed.

_GONE = (errno.ESTALE, errno.ENOENT)


class BranchBase(GivesPieces):
    """The state that a branch began with, as far as it is known. Its nodes are those of the branch."""

    features = Features(read_only=True)

    def __init__(self, branch: BranchVolume) -> None:
        self._branch = branch
        self._lower = branch.lower
        self.lock = branch.lock
        self._noted: dict[int, Attr] = {}  # entries of live directories, when those were copied up

    def is_live(self, node: int) -> bool:
        """Return True for a file of a route that is not frozen. Its ctime may be no more than a time of modification
        that a program has set, as in a bucket."""
        with self.lock:
            return node < FIRST_OWN and self._lower.is_live(node)

    def is_unknown(self, node: int) -> bool:
        """Return True for a live file that was changed since the branch has last looked at it, if its bytes were not
        kept."""
        with self.lock:
            if node >= FIRST_OWN or not self._lower.is_live(node) or self._branch.origin_of(node).base:
                return False
            now = unless(_GONE, self._lower.attr_of, node)
            if now is None:
                return True
            noted = self._noted.get(node)
            if noted is None:
                return now.mtime_ns > self._branch.created_ns
            return now.fingerprint[:3] != noted.fingerprint[:3]

    def _as_it_was(self, attr: Attr) -> Attr:
        node = attr.node
        if node in self._noted:
            return self._noted[node]
        origin = self._branch.origin_of(node)
        if not origin.base and not origin.own:
            return attr
        return self._with_kept(attr, attr.mode, origin.stamp if origin.base else attr.fingerprint)

    def _with_kept(self, now: Attr, mode: int, stamp: Stamp) -> Attr:
        """Return the attributes of a live file with this stamp, and with those that were kept.

        Args:
            mode: if none were.
        """
        mtime_ns, ctime_ns, size, version = stamp
        below = self._branch.origin_of(now.node).below
        uid, gid = (now.uid, now.gid) if below is None else (below.uid, below.gid)
        return Attr(now.node, mode if below is None else below.mode, nlink=now.nlink, uid=uid, gid=gid, rdev=now.rdev,
                    size=size, version=version, atime_ns=now.atime_ns, mtime_ns=mtime_ns,
                    ctime_ns=ctime_ns)  # fmt: skip

    # -- the kernel face ---------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        found = dict(self.readdir(parent, b"", 1 << 30)).get(name)
        if found is None:
            raise oserror(errno.ENOENT, name)
        return found

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        with self.lock:
            if not (self._branch.has_own_names(node) and self._lower.is_live(node)):
                # A killed merge, or main, has something else in place of the directory that was noted.
                gone = (*_GONE, errno.ENOTDIR) if node in self._noted else ()
                listed = unless(gone, self._lower.listing, node, after, limit)
                return [(name, self._as_it_was(attr)) for name, attr in listed or ()]
            entries = self._branch.lower_entries(node)
            return [(name, self._entry(entries[name])) for name in sorted(entries) if name > after][:limit]

    def _entry(self, noted: Attr) -> Attr:
        """Return the attributes of an entry that was noted: what a listing does not have is as it is now."""
        node, mode = noted.node, noted.mode
        origin = self._branch.origin_of(node)
        now = unless(_GONE, self._lower.attr_of, node) or Attr(node, mode)
        stamp = origin.stamp if origin.base else noted.fingerprint
        attr = self._noted[node] = self._with_kept(now, mode, stamp)
        return attr

    def getattr(self, node: int) -> Attr:
        with self.lock:
            now = unless(_GONE if node in self._noted else (), self._lower.attr_of, node)
            return self._noted[node] if now is None else self._as_it_was(now)

    def readlink(self, node: int) -> bytes:
        with self.lock:
            return self._lower.target(node)

    def xattrs(self, node: int) -> Mapping[bytes, bytes]:
        with self.lock:
            below = self._branch.origin_of(node).below
            if below is not None:
                return below.xattrs
            return unless(_GONE if node in self._noted else (), self._lower.xattrs, node) or {}

    def pieces(self, node: int) -> Iterator[tuple[int, bytes]]:
        return data_pieces(self, node)

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self.lock, self._reading(node) as (volume, handle):
            return volume.read(handle, offset, size)

    def next_data(self, node: int, offset: int) -> int | None:
        with self.lock, self._reading(node) as (volume, handle):
            return volume.next_data(handle, offset)

    def _reading(self, node: int) -> AbstractContextManager[tuple[Volume, int]]:
        """Look where the bytes are, for each piece: they may be kept while a file is read."""
        kept = self._branch.origin_of(node).base
        return nullcontext((self._branch, kept)) if kept else self._lower.reading(node)


def trees_of(
    branch: BranchVolume, volumes: Mapping[AgentPath, Volume]
) -> tuple[MergeTree, MergeTree, MergeTree, Callable[[Item], bool]]:
    """Return base, branch and main for a merge, and `may_differ` of `Pairs`.

    Args:
        volumes: prefix → volume, of the routes of the mount: those that the branch was made over.
    """

    view = BranchBase(branch)
    frozen_ns = min((route.time_ns for route in branch.routes if route.snapshot is not None), default=0)
    base = MergeTree({ROOT: view}, volumes, branch.key_of, frozen_ns, view.is_unknown, view.is_live)
    theirs = MergeTree(
        {ROOT: branch}, volumes, branch.key_of, has_own_names=branch.has_own_names, has_lost=branch.has_lost
    )
    main = MergeTree(volumes, volumes, by_node)
    return base, theirs, main, _may_differ(branch, base)


def _may_differ(branch: BranchVolume, base: MergeTree) -> Callable[[Item], bool]:
    """Everything that has something of its own, and the directories that lead there: all of them where a way is not
    known, or where a file has other names as well."""
    nodes: set[int] = set()
    everywhere = False
    for origin in branch.origins():
        everywhere = everywhere or origin.path is None or not _has_one_name(branch, origin.node)
        item: Item | None = base.root
        nodes |= {base.root.node, origin.node}
        for name in origin.path.split(b"/") if origin.path else ():
            item = item.child(name) if item is not None else None
            if item is not None:
                nodes.add(item.node)
    return lambda item: item.node >= FIRST_OWN or item.node in nodes or not item.node or (everywhere and item.is_dir)


def _has_one_name(branch: BranchVolume, node: int) -> bool:
    with branch.lock:
        below = unless(_GONE, branch.lower.attr_of, node)
        now = unless(_GONE, branch.getattr, node)
        return below is not None and (below.is_dir or (below.nlink == 1 and now is not None and now.nlink <= 1))
