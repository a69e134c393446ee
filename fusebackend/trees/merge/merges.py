"""`Merges`: the merges of a mount's branches into its main tree.

One at a time, by any thread but the mount's loop. A merge is a call of the history, and can be undone.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from fusebackend.base.paths import AgentPath, join, normalise, to_name, to_text
from fusebackend.base.relative_paths import is_below
from fusebackend.history.calls import OpenCall
from fusebackend.history.history_file import Filter
from fusebackend.history.recorder import Recorder
from fusebackend.protocol import WORKTREE, MergeResult, UndoConflict, UndoneChange, Volume
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.branches import Branches
from fusebackend.trees.merge.plan import PARKED, Conflict, Plan, Side, Step, plan
from fusebackend.trees.merge.records import MergeRecords
from fusebackend.trees.merge.run import Merge, Outcome, keep_sources
from fusebackend.trees.merge.sides import trees_of

GIT: Final = b".git"
"""Left as it is in the merge of a worktree: nobody but git can merge its files."""

SHOWN_WRITERS: Final = 8
"""Actors of a branch that the title of its merge names."""

_WORDS = {"make": "create", "link": "create", "replace": "replace", "attributes": "attributes", "move": "rename",
          "remove": "remove"}  # fmt: skip


class Merges:
    """See the module's docstring.

    Args:
        branches, volumes: of the mount.
        written: returns the nodes that somebody has open for writing, each with the prefix of its route.
        recorder: of the history; None if there is none.
        trees: the mount's own directory, which no branch may put another one on: the next mount would be refused.
        covered: returns the paths of main at which other file systems are mounted, without a slash at the begin.
    """

    def __init__(
        self,
        branches: Branches,
        volumes: Mapping[AgentPath, Volume],
        written: Callable[[], Collection[tuple[AgentPath, int]]],
        recorder: Recorder | None = None,
        trees: AgentPath | None = None,
        covered: Callable[[], Collection[bytes]] = tuple,
    ) -> None:
        self._covered = covered
        self._branches = branches
        self._volumes = dict(volumes)
        self._written = written
        self._recorder = recorder
        self._trees = trees
        self._guard = threading.Lock()

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
            branch = self._branches.volume(name)
            chosen = [to_name(normalise(path)).strip(b"/") for path in paths] or [b""]
            branch.sync()
            call: list[OpenCall] = []
            merge = self._merge(branch, name, lambda: self._plan(name, branch, keep, lines, chosen), call)
            outcome = merge.dry_run() if dry_run else merge.run()
            number = call[0].number if call else 0
            if not (dry_run or outcome.is_refused):
                branch.note_decided(outcome.plan.for_main, number)
        return _result(name, outcome, dry_run, f"c{number}" if number else None)

    def _merge(self, branch: BranchVolume, name: str, plan: Callable[[], Plan], call: list[OpenCall]) -> Merge:
        journal = self._branches.journal(name)
        recording = lambda: self._recording(name, call)  # noqa: E731
        before = partial(keep_sources, branch)
        return Merge(name, self._volumes, plan, journal, self._written, recording, branch.follow, before)

    def tidy(self) -> None:
        """Remove what killed merges have left in the routes, and give what they have parked its names again. The same
        merge still does the rest."""
        for name, branch in self._branches.opened.items():
            with self._guard:
                self._merge(branch, name, Plan, []).tidy()

    def _plan(self, name: str, branch: BranchVolume, keep: Side | None, lines: bool, paths: Collection[bytes]) -> Plan:
        base, theirs, main, may_differ = trees_of(branch, self._volumes)
        apart = (GIT,) if name.startswith(WORKTREE) else ()
        found = plan(
            base, theirs, main, keep=keep, lines=lines, paths=paths, may_differ=may_differ, apart=apart,
            decided=self._decided(branch),
        )  # fmt: skip
        if self._trees is not None and any(_is_there(step, to_name(self._trees).strip(b"/")) for step in found.steps):
            reason = "is the mount's own directory; give what the branch has there another name"
            found.conflicts.append(Conflict(self._trees, reason))
        covered = self._covered()
        for step in found.steps if covered else ():
            path = _in_the_way(step, covered)
            if path is not None:
                where = "there" if path == step.path else f"at '/{to_text(path)}'"
                found.conflicts.append(Conflict(_shown(step), f"another file system is mounted {where}"))
        return found

    def _decided(self, branch: BranchVolume) -> set[bytes]:
        """Return what was decided for main by merges that are not taken back."""
        found = branch.decided
        if self._recorder is None:
            return set(found)
        calls = {number: self._recorder.history.call(number) for number in set(found.values()) - {0}}
        undone = {number for number, call in calls.items() if call is not None and call.undone_by is not None}
        return {digest for digest, number in found.items() if number not in undone}

    @contextlib.contextmanager
    def _recording(self, name: str, calls: list[OpenCall]) -> Iterator[MergeRecords]:
        if self._recorder is None:
            yield MergeRecords()
            return
        with self._recorder.calls.inside("merge", _title(name, self._writers(name))) as call:
            calls[:] = [call]
            yield MergeRecords(self._recorder, call)

    def _writers(self, name: str) -> list[str]:
        """Return words for the actors that have changed something in a branch, as long as the history knows them."""
        assert self._recorder is not None
        calls = self._recorder.history.calls(None, Filter(paths=(join(self._branches.path, name),)))
        return sorted({call.actor.word for call in calls} - {""})

    def compare(self, name: str) -> tuple[int, int]:
        """Return how many conflicts a merge of a branch would leave, and how many changes it would make.

        Raises:
            OSError: as `merge`.
        """
        with self._guard:
            found = self._plan(name, self._branches.volume(name), None, False, [b""])
            return len(found.conflicts), len(found.steps)


def _title(name: str, writers: Sequence[str]) -> str:
    """Return what a log says of a merge, with the actors that have changed something in the branch."""
    more = f" and {len(writers) - SHOWN_WRITERS} more" if len(writers) > SHOWN_WRITERS else ""
    by = f", written by {', '.join(writers[:SHOWN_WRITERS])}{more}" if writers else ""
    return f"merge branch '{name}'{by}"


def _shown(step: Step) -> AgentPath:
    return AgentPath("/" + to_text(step.path))


def _in_the_way(step: Step, covered: Collection[bytes]) -> bytes | None:
    """Return the path of a mounted file system that a step would hide a change below, or that it would unmount: the
    kernel does that when the name goes (d_invalidate in fs/dcache.c)."""
    if step.path.startswith(PARKED):
        return None
    paths = (step.path, step.to_path) if step.word == "move" else (step.path,)
    for path in paths:
        for each in covered:
            is_gone = step.word in ("remove", "move", "park", "replace") and is_below(each, path)
            if path == each or is_below(path, each) or is_gone:
                return each
    return None


def _is_there(step: Step, path: bytes) -> bool:
    """Return True for a step that puts something at a path or below it."""
    made = step.to_path if step.word == "move" else step.path
    return made == path or is_below(made, path)


def _result(name: str, outcome: Outcome, dry_run: bool, call: str | None) -> MergeResult:
    found = outcome.plan
    conflicts = [_conflict(each) for each in found.conflicts]
    conflicts += [UndoConflict(path, "is open for writing in the mount") for path in outcome.open_paths]
    partly = [f"{each.path}: {each.what} can't be kept there" for each in found.uncarried] + outcome.partly
    steps = found.steps if dry_run else outcome.steps
    return MergeResult(
        branch=name,
        call=call,
        changes=[] if conflicts else list(_changes(steps, set(found.merged))),
        decided=[_conflict(each) for each in found.decided],
        conflicts=conflicts,
        partly=list(dict.fromkeys(partly)),
        repositories=[posixpath.dirname(path) for path in found.left],
    )


def _conflict(conflict: Conflict) -> UndoConflict:
    return UndoConflict(conflict.path, conflict.reason)


def _changes(steps: Sequence[Step], merged: set[AgentPath]) -> Iterator[UndoneChange]:
    parked = {PARKED + step.to_path: step.path for step in steps if step.word == "park"}
    for step in steps:
        if step.word == "park":
            continue
        path = "/" + to_text(step.path)
        if step.word == "move":
            old = "/" + os.fsdecode(parked.get(step.path, step.path))
            yield UndoneChange("rename", "/" + to_text(step.to_path), old)
        else:
            yield UndoneChange("merge" if path in merged and step.data is not None else _WORDS[step.word], path)
