"""`Undo`: calls taken back, all of their changes or none, and nothing that others have done.

It goes by the records of the calls, never by the difference of two snapshots. `UndoPlan` checks all of them before
anything is changed; each step is checked again when it is made, with the lock of its volume held. An error on the way
takes the made steps back. A killed server leaves a part; the same undo does the rest.

An undo is a call: each step is recorded before it is made, as any other change is, so that an undo of the undo brings
the calls back. One undo runs at a time. No lock of a volume is held for longer than `HELD_S` and two steps.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from fusebackend.base import budget
from fusebackend.base.batches import by_size
from fusebackend.base.errors import oserror
from fusebackend.base.paths import AgentPath, mount_path
from fusebackend.history.calls import OpenCall
from fusebackend.history.history_file import Filter
from fusebackend.history.recorder import MADE, UNSURE, Recorder, asks_first
from fusebackend.history.records import Call, RecordKind, Stamp, stamp_of
from fusebackend.history.undo_plan import Step, UndoPlan
from fusebackend.protocol import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    Attr,
    Changes,
    UndoneChange,
    UndoResult,
    Volume,
)
from fusebackend.volumes import placing
from fusebackend.volumes.placing import Name, Placed
from fusebackend.volumes.walk import Directories

log = logging.getLogger(__name__)

HELD_S: Final = 0.001
"""After so long the lock of a volume is let go of, so that the mount's loop gets it."""

PAUSE_S: Final = 0.000_05
"""For so long: a thread that waits for a lock gets it only if the one that has released it does not take it again at
once."""

MADE_AT_ONCE: Final = 100
"""Steps that are prepared together, at most. Small files of them are made together where that takes less time: 16
uploads at a time, or one transaction."""

MADE_BYTES: Final = 1 << 20
"""They have so many bytes, which are in memory, unless one alone has more."""

_NAMES: Final = ("make", "link")
"""Steps that make a name."""

_IN_PLACE: Final = ("overwrite", "merge")
"""Steps that give a file other bytes: they wait for processes that have just opened it."""

_Kind: TypeAlias = Literal["alone", "together", "any", "names", "others"]
"""See `_Making._route_and_kind`."""

_WORDS: Final = {"make": "create", "link": "create", "exchange": "rename", "overwrite": "replace"}
"""Of a step → of `UndoneChange`, where they differ."""


class Undo:
    """See the module's docstring. For any thread that may wait for the volumes.

    Args:
        recorder: of the mount.

    Attributes:
        read: the names of the snapshots that an undo reads now.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.read: Collection[str] = ()
        self._recorder = recorder
        self._history = recorder.history
        self._guard = threading.Lock()

    def undo(
        self,
        calls: Sequence[int] = (),
        *,
        wanted: Filter | None = None,
        every: bool = False,
        keep_newer: bool = False,
        merge_lines: bool = False,
        dry_run: bool = False,
    ) -> UndoResult:
        """Take calls back.

        Args:
            calls: their numbers. None: the newest that changed something, that is no undo and not undone.
            wanted: without `calls`, the newest of these.
            every: without `calls`, all of `wanted`.
            keep_newer: leave what was changed since as it is, and take back the rest.
            merge_lines: take the lines of the calls out of text files that were changed since.
            dry_run: only say what would be done.

        Raises:
            OSError: ENOENT, there is no such call; EALREADY, it was taken back; EBUSY, its command goes on; the error
                of a step, and what was done has been taken back.
        """
        with self._guard, contextlib.ExitStack() as ended:
            ended.callback(setattr, self, "read", ())
            chosen = self._chosen(calls, wanted or Filter(), every)
            if not chosen:
                return UndoResult([])
            plan = self._plan([call.number for call in chosen], merge=merge_lines)
            if not keep_newer:
                plan.conflicts += plan.refusals()
            result = UndoResult([call.ref for call in chosen], partly=plan.partly)
            if plan.conflicts and not keep_newer:
                result.conflicts = plan.conflicts
                return result
            result.kept = plan.conflicts
            result.changes = [_shown(step) for step in plan.steps if not step.closes]
            if not dry_run:
                self._make(plan, chosen, result)
            return result

    # -- the calls -------------------------------------------------------------------------------------------------

    def _chosen(self, calls: Sequence[int], wanted: Filter, every: bool) -> list[Call]:
        if not calls:
            return self._every(wanted) if every else self._history.calls(1, wanted._replace(is_standing=True))
        found = []
        for number in sorted(set(calls)):
            call = self._history.call(number)
            if call is None or not call.changes:
                text = f"there is no call 'c{number}', or it has changed nothing; 'fusebackend log' lists them"
                raise OSError(errno.ENOENT, text)
            if call.undone_by is not None:
                again = f"'fusebackend undo c{call.undone_by}' brings it back"
                raise OSError(errno.EALREADY, f"{call.ref} was taken back by c{call.undone_by} already; {again}")
            found.append(call)
        return found

    def _every(self, wanted: Filter) -> list[Call]:
        """Return all of these calls whose changes are there, the oldest first. An undo and what it took back are left
        out together; one that took back others than these is taken back with these."""
        found = {call.number: call for call in self._history.calls(None, wanted)}
        over: set[int] = set()
        for call in found.values():  # the newest first: an undo may have been taken back itself
            if call.undoes and call.number not in over and found.keys() >= set(call.undoes):
                over.update(call.undoes, [call.number])
        there = (call for call in found.values() if call.undone_by is None or call.undone_by in found)
        return sorted((call for call in there if call.number not in over), key=lambda call: call.number)

    def _plan(self, numbers: Sequence[int], *, merge: bool = False, leave: bool = False) -> UndoPlan:
        """Plan for calls. Those that go on end first, so that what they have left is known: EBUSY for a command."""
        for call in self._recorder.calls.open():
            if call.number in numbers:
                if call.kind == "command":
                    text = f"c{call.number} ({call.title}) is still going on; take it back when it has ended"
                    raise OSError(errno.EBUSY, text)
                self._recorder.calls.end(call)
        self._history.require()  # else records are missing that would be taken back
        plan = UndoPlan(self._recorder.volumes, self._recorder.images, self._history, merge=merge, leave=leave)
        self.read = plan.snapshots
        plan.add(numbers)
        return plan

    # -- the steps -------------------------------------------------------------------------------------------------

    def _make(self, plan: UndoPlan, chosen: Sequence[Call], result: UndoResult) -> None:
        title = "undo " + " ".join(call.ref for call in chosen)
        with self._recorder.calls.inside("undo", title, undoes=[each.number for each in chosen]) as call:
            try:
                result.partly += _Making(self._recorder, call).make(plan.steps)
            except BaseException as error:
                if call.number:
                    self._recorder.calls.end(call)
                    self._take_back(call.number, error)
                raise
            volumes = self._recorder.volumes
            for prefix in {step.prefix for step in plan.steps}:
                volumes[prefix].sync()  # else a killed server could lose what its history calls done
            # A number also if nothing was left to do: the calls are undone then, too.
            by = self._recorder.calls.number(call)
            self._history.mark_undone(plan.unfinished, by)
            for each in reversed(chosen):
                self._mark(each, by)
        if plan.steps:
            result.undo = f"c{call.number}"
        self._history.flush()

    def _mark(self, call: Call, by: int | None) -> None:
        """Note which undo has taken a call back; None if that was taken back. The calls that it took back itself stand
        again then, or are undone again, and so on. Of a call that is undone together with its undo, the call's own word
        comes last."""
        self._history.mark_undone([call.number], by)
        for number in call.undoes if by is not None else reversed(call.undoes):
            below = self._history.call(number)
            if below is not None:
                self._mark(below, None if by is not None else call.number)

    def _take_back(self, number: int, error: BaseException) -> None:
        """Take the made steps of an undo back, whose error is being raised. What others have put into directories that
        it had made stays, and these with it."""
        try:
            plan = self._plan([number], leave=True)
            if plan.conflicts:
                raise OSError(errno.EBUSY, f"'{plan.conflicts[0].path}' {plan.conflicts[0].reason}")
            with self._recorder.calls.inside("undo", f"undo c{number}, which failed", undoes=[number]) as call:
                _Making(self._recorder, call).make(plan.steps, to_the_end=True)
                self._history.mark_undone([number], by=self._recorder.calls.number(call))
        except OSError:
            log.exception("the steps of the undo c%d, which failed, could not be taken back", number)
            text = f"{error}; a part is done, and 'fusebackend undo c{number}' takes that back"
            raise OSError(getattr(error, "errno", None) or errno.EIO, text) from error
        if plan.left:
            path, name = plan.left[0]
            text = f"{error}; '{path}' was made and stays, for '{name}' is in it"
            raise OSError(getattr(error, "errno", None) or errno.EIO, text) from error


class _Making:
    """The steps of one undo while they are made."""

    def __init__(self, recorder: Recorder, call: OpenCall) -> None:
        self._recorder = recorder
        self._volumes = recorder.volumes
        self._call = call
        self._lost: list[str] = []
        self._ways: dict[AgentPath, Directories] = {}
        self._volume: Volume  # that is being changed
        self._way: Directories  # of it
        self._early: set[int] = set()  # records of names that are not made yet

    def make(self, steps: Iterable[Step], *, to_the_end: bool = False) -> list[str]:
        """Make the steps. Returns a line for each thing that a volume did not take.

        Args:
            to_the_end: also if the caller no longer waits.

        Raises:
            OSError: EBUSY, a file has changed since the plan was made; ECANCELED; from a volume.
        """
        left = budget.current()
        try:
            for (prefix, kind), row in itertools.groupby(steps, self._route_and_kind):
                self._volume = self._volumes[prefix]
                self._way = self._ways.setdefault(prefix, Directories(self._volume))
                for portion in by_size(row, _size_of, 1 if kind == "alone" else MADE_AT_ONCE, MADE_BYTES):
                    waiting = self._prepared(portion)
                    while waiting:
                        if left.cancelled and not to_the_end:
                            raise oserror(errno.ECANCELED)
                        self._some(kind, waiting)
                        time.sleep(PAUSE_S)
        except BaseException:
            # What others make under these names is not this call's, to be taken back with it.
            self._recorder.history.drop(self._early)
            raise
        return self._lost

    def _route_and_kind(self, step: Step) -> tuple[AgentPath, _Kind]:
        """Return what steps in a row have in common that are prepared together: their route, and one of these.

        - `alone`: it is prepared by itself, see `_some`.
        - `together`: a small file of a volume that makes many in less time.
        - `any`: of a volume for which nothing is recorded in advance.
        - `names`: it makes a name, which is recorded in advance.
        - `others`.
        """
        volume, source = self._volumes[step.prefix], step.source
        if step.word in _IN_PLACE or (source is not None and source.state.size > placing.STAGED_BYTES):
            return step.prefix, "alone"
        if step.word == "make" and volume.places_together and source and placing.is_small(source):
            return step.prefix, "together"
        if asks_first(volume):
            return step.prefix, "any"
        return step.prefix, "names" if step.word in _NAMES else "others"

    def _prepared(self, portion: Iterable[Step]) -> deque[Step]:
        """Do what needs no lock, and return the steps: record the names that are about to be made, where a killed
        server would leave one without its record, and read what files of snapshots are made of. By the size and time in
        the record the name is told from a file that another program makes."""
        steps = deque[Step]()
        for step in portion:
            if step.word in _NAMES and not asks_first(self._volume):
                step = step._replace(record=self._record_new(step, step.node, _left(step)))
                self._early.add(step.record)
            steps.append(step)
        if self._early:
            self._recorder.history.require()
        placing.ahead([step.source for step in steps])
        return steps

    def _some(self, kind: _Kind, waiting: deque[Step]) -> None:
        """Make those steps of a portion that are waiting, as many as `HELD_S` allows, as one change of their volume.

        What must not be done with the lock held is done before: to write a large file, and to wait for processes that
        have just opened one.
        """
        step, volume = waiting[0], self._volume
        with contextlib.ExitStack() as stack:
            if step.word in _IN_PLACE:
                stack.enter_context(volume.rewriting(self._as_seen(step, self._way.at(step.path)[2]).node))
            elif step.word == "make" and step.source is not None and kind == "alone":
                parent, name, _ = self._way.at(step.path)
                ready = stack.enter_context(placing.staged(volume, parent, name, step.source))
                waiting[0] = step._replace(source=ready)
            changes = stack.enter_context(volume.changing())
            self._way.look_again()
            if kind == "together" and len(waiting) > 1:
                self._make_together(waiting, changes)
            until_s = time.monotonic() + HELD_S
            while waiting:
                step = waiting.popleft()
                self._note_lost(step, self._placed(step, changes))
                if time.monotonic() >= until_s:
                    break
            self._way.look_again()

    def _note_lost(self, step: Step, placed: Placed | None) -> None:
        if placed is not None and placed.lost:
            path = mount_path(step.prefix, step.path)
            self._lost += [f"'{path}': its {word} could not be kept" for word in placed.lost]

    def _make_together(self, steps: deque[Step], changes: Changes) -> None:
        new = []
        for step in steps:
            assert step.source is not None, "it is made of something"
            new.append((Name(*self._way.place(step.path), os.fsdecode(step.path)), step.source))
        errors: list[OSError] = []
        for step, placed in zip(steps, placing.make_together(self._volume, new, changes), strict=True):
            if isinstance(placed, OSError):
                errors.append(self._not_made(step, placed))
                continue
            self._is_made(step, placed)
            self._note_lost(step, placed)
        if errors:
            raise next((error for error in errors if error.errno != errno.ECANCELED), errors[0])
        steps.clear()

    def _placed(self, step: Step, changes: Changes) -> Placed | None:
        shown, volume = os.fsdecode(step.path), self._volume
        if step.word in _NAMES:
            return self._new(step, changes)
        parent, name, attr = self._way.at(step.path)
        if step.word == "clean":
            if attr is not None:
                placing.remove(volume, parent, name, attr, changes, shown)
            return None
        attr = self._as_seen(step, attr)
        match step.word:
            case "remove":
                self._record_change("remove", step, attr.node, attr)
                self._way.forget(step.path)
                placing.remove(volume, parent, name, attr, changes, shown)
            case "rename" | "exchange":
                self._rename(step, Name(parent, name, shown), attr, changes)
            case "overwrite" | "merge":
                assert step.source is not None, "its bytes come from somewhere"
                self._record_change("content", step, attr.node, attr)
                return placing.overwrite(volume, attr.node, step.source, changes, shown)
            case "attributes":
                assert step.state is not None, "there are attributes"
                if not step.closes:  # the record of a directory that was made says all
                    self._record_change("attributes", step, attr.node, attr)
                return placing.set_attributes(volume, attr.node, step.state, changes, shown)
        return None

    def _record_new(self, step: Step, node: int, after: Stamp | None) -> int:
        is_link = step.word == "link"
        history, call = self._recorder.history, self._recorder.calls.number(self._call)
        return history.add(call, step.prefix, "create", step.path, node=node, linked=is_link, after=after)

    def _record_change(
        self, kind: RecordKind, step: Step, node: int, before: Attr | None = None, **fields: Any
    ) -> None:
        self._recorder.add_step(self._call, step.prefix, kind, self._volume, step.path, node, before, **fields)
        if not asks_first(self._volume) and step.prefix not in self._recorder.logged:
            self._recorder.history.require()

    def _new(self, step: Step, changes: Changes) -> Placed:
        """Make a file, or give one another name."""
        parent, name = self._way.place(step.path)
        shown, volume = os.fsdecode(step.path), self._volume
        try:
            if step.source is not None:
                placed = placing.make(volume, parent, name, step.source, changes, shown)
            else:
                there = volume.getattr(step.node) if step.node else self._as_seen(step, self._way.at(step.to_path)[2])
                if step.record:  # before it is made: the answer may be lost
                    self._recorder.history.set_after({step.record: stamp_of(there)})
                placed = placing.link(volume, there.node, parent, name, changes, shown)
        except OSError as error:
            raise self._not_made(step, error) from None
        self._is_made(step, placed)
        return placed

    def _is_made(self, step: Step, placed: Placed) -> None:
        """Record what a step has made."""
        attr, record, is_link = placed.attr, step.record, step.word == "link"
        self._early.discard(record)
        known = self._recorder.of(self._volume)
        if not is_link:
            known.own(self._call, attr.node, MADE)
        after = stamp_of(attr) if is_link or stat.S_ISREG(attr.mode) else None
        if not record:
            record = self._record_new(step, attr.node, after)
        elif after is not None and not is_link:
            self._recorder.history.set_after({record: after})
        if step.file:
            self._recorder.history.note_return(record, step.file, known.identity(attr) or b"%d" % attr.node)

    def _not_made(self, step: Step, error: OSError) -> OSError:
        """Return the error to raise for a name that was not made. Where it may have been, for an answer was lost, the
        record stays; a file that is not as it says is somebody else's."""
        if isinstance(error, FileExistsError):
            return _changed(step, "has been made anew")
        if error.errno in UNSURE:
            self._early.discard(step.record)
        return error

    def _rename(self, step: Step, old: Name, attr: Attr, changes: Changes) -> None:
        parent, name, there = self._way.at(step.to_path)
        is_exchange = step.word == "exchange"
        if (there is not None) != is_exchange:
            raise _changed(step, "has been made anew" if there is not None else "is not there any more")
        flags = RENAME_EXCHANGE if is_exchange else RENAME_NOREPLACE if self._volume.features.rename else 0
        kind: RecordKind = "exchange" if is_exchange else "rename"
        self._record_change(kind, step, attr.node, to_path=step.to_path)
        if attr.is_dir or (there is not None and there.is_dir):
            self._way.forget()
        placing.rename(self._volume, old, Name(parent, name, os.fsdecode(step.to_path)), attr, changes, flags)

    def _as_seen(self, step: Step, attr: Attr | None) -> Attr:
        """Return the attributes of what is at the path of a step, which is as the plan has found it."""
        if attr is None:
            raise _changed(step, "is not there any more")
        if step.seen is not None and not step.seen.is_that_of(stamp_of(attr)):
            raise _changed(step, "has changed in this moment")
        return attr


def _size_of(step: Step) -> int:
    return 0 if step.source is None else step.source.state.size


def _left(step: Step) -> Stamp | None:
    """Return what a step leaves under the name that it makes; None where that is not known."""
    return stamp_of(step.source.state) if step.source is not None and stat.S_ISREG(step.source.state.mode) else None


def _changed(step: Step, how: str) -> OSError:
    return OSError(errno.EBUSY, f"'{mount_path(step.prefix, step.path)}' {how}; nothing was taken back")


def _shown(step: Step) -> UndoneChange:
    word, path = _WORDS.get(step.word, step.word), mount_path(step.prefix, step.path)
    if word == "rename":
        return UndoneChange(word, mount_path(step.prefix, step.to_path), path)
    return UndoneChange(word, path)
