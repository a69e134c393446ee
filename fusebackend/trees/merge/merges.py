"""`Merges`: the merges of a mount's branches into its main tree, one at a time."""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final

from fusebackend.base.paths import AgentPath, join, normalise, to_name, to_text
from fusebackend.base.relative_paths import is_below
from fusebackend.history.history_file import Filter
from fusebackend.protocol import WORKTREE, MergeResult, UndoConflict, UndoneChange
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.merge.plan import PARKED, MergePlan, Side, Step, plan
from fusebackend.trees.merge.run import MainTree, Merge, Outcome, keep_sources
from fusebackend.trees.merge.sides import trees_of
from fusebackend.trees.merge.tree import shown

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

    def compare(self, name: str) -> tuple[int, int]:
        """Return how many conflicts a merge of a branch would leave, and how many changes it would make.

        Raises:
            OSError: as `merge`.
        """
        with self._guard:
            found = self._plan(name, self._main.branches.volume(name), None, False, [b""])
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
