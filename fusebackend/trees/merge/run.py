"""`Merge`: makes the steps of a plan (`plan.py`) in the volumes of the main tree.

New contents are written first, into a directory of the server's in the route (`STAGING`), with the locks free. Then

- a route that keeps snapshots (`sqlite:`, `memory:`, `postgres:`) changes in one go: no reader and no crash sees a part
  of the merge there, and after an error nothing of it is done;
- any other route changes file by file. Each file is the old one or the new one, for it gets its name by a rename, and
  its bytes by one store where files are stored whole.

Main may change until then: each step compares what is there with what the plan has seen, and if that differs the merge
is planned again. It is resumed the same way: after a kill the same command plans what is left to be done, for what was
merged is the same on both sides. The journal, a file of JSON lines beside the branch's, says that a merge is under way,
in which routes, and what has been parked: it is complete before the first change, and goes when all is durable.

A merge belongs to one thread, which waits for the volumes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from fusebackend.base.durable import replace_file, sync_directory
from fusebackend.base.errors import VANISHED, unless
from fusebackend.base.paths import AgentPath, split, to_name, to_text
from fusebackend.history.calls import OpenCall
from fusebackend.history.recorder import Recorder
from fusebackend.history.records import CallKind, RecordKind
from fusebackend.protocol import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    ROOT_NODE,
    Attr,
    AttrChanges,
    Caller,
    Change,
    Changes,
    EventKind,
    SnapshotVolume,
    UndoConflict,
    Volume,
)
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.branches import Branches
from fusebackend.trees.composed import NOT_THERE
from fusebackend.trees.merge.plan import PARKED, MergePlan, Step
from fusebackend.trees.merge.tree import shown
from fusebackend.volumes import placing
from fusebackend.volumes.placing import BytesSource, KeptSource, Name, Source
from fusebackend.volumes.walk import Directories, entries

STAGING: Final = b".fusebackend-merge-"
"""The name of the server's directory in the root of a route begins so; the branch's name follows."""

ATTEMPTS: Final = 5
"""So often a merge is planned, while main changes at its paths."""


class MainChangedError(Exception):
    """Main is not as the plan has seen it."""

    def __init__(self, path: AgentPath) -> None:
        super().__init__(path)
        self.path = path


class Journal:
    """The file that says that a merge is under way. Each call is durable when it returns."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """Return its lines; none if no merge is under way. A line that a crash has cut off counts for nothing."""
        data = unless((errno.ENOENT,), Path(self.path).read_bytes) or b""
        found = []
        for line in data.split(b"\n")[:-1]:
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def begin(self, line: dict[str, Any]) -> None:
        """Make the file, with its first line."""
        replace_file(self.path, _line(line))

    def note(self, line: dict[str, Any]) -> None:
        """Add a line."""
        with open(self.path, "ab") as file:
            os.write(file.fileno(), _line(line))
            os.fsync(file.fileno())

    def end(self) -> None:
        """Remove the file: all is done. What a killed `begin` has left goes, too."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.path}.new")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
            sync_directory(os.path.dirname(self.path) or ".")


def _line(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"


class MergeRecords:
    """Records what a merge changes, so that it can be undone as any other call. Call it with the volume's lock held.

    A file in the place of another one is two records, of its removal and of the new one: a merge puts new files in
    place. A failure to record is logged, and the merge goes on (`Recorder.failed`). Paths are those inside the route.

    Args:
        recorder, call: of the merge; None for a mount without a history.
    """

    def __init__(self, recorder: Recorder | None = None, call: OpenCall | None = None) -> None:
        self._recorder = recorder
        self._call = call
        self._made: list[int] = []

    @property
    def call(self) -> str | None:
        """The name of the call, if it has changed something."""
        return f"c{self._call.number}" if self._call is not None and self._call.number else None

    def add(
        self,
        kind: RecordKind,
        prefix: AgentPath,
        volume: Volume,
        path: bytes,
        node: int,
        before: Attr | None = None,
        **fields: Any,
    ) -> None:
        """Record a change, as `Recorder.add_step`: after a name was made or renamed, before anything else."""
        recorder, call = self._recorder, self._call
        if recorder is None or call is None:
            return
        with recorder.recording("a change of a merge was not recorded", call):
            number, _ = recorder.add_step(call, prefix, kind, volume, path, node, before, **fields)
            self._made.append(number)

    def flush(self) -> None:
        """Write what was recorded: a kill does not take it any more."""
        if self._recorder is not None:
            self._recorder.history.flush()

    def mark(self) -> int:
        """Return a place among the records, for `drop`."""
        return len(self._made)

    def drop(self, mark: int) -> None:
        """Forget the records since a place: their changes were taken back."""
        if self._recorder is not None:
            self._recorder.history.drop(self._made[mark:])
        del self._made[mark:]


@dataclass
class Outcome:
    """What a merge has done, or would do.

    Attributes:
        steps: those that were made, or would be.
        plan: the last one; its steps are those that were left to be made then. With conflicts, nothing was changed.
        partly: what could not be kept on the way, such as an owner.
        call: its name in the history; None where nothing was changed.
    """

    plan: MergePlan
    steps: list[Step] = field(default_factory=list)
    partly: list[str] = field(default_factory=list)
    call: str | None = None

    @property
    def is_refused(self) -> bool:
        return bool(self.plan.conflicts)


@dataclass
class MainTree:
    """The main tree of a mount, for what changes many files of it: by any thread but the mount's loop. Each such change
    is a call of the history, and can be undone.

    Attributes:
        branches, volumes: of the mount.
        written: returns the nodes that somebody has open for writing, each with the prefix of its route.
        recorder: of the history; None if there is none.
        covered: returns the paths of main at which other file systems are mounted, without a slash at the begin.
    """

    branches: Branches
    volumes: Mapping[AgentPath, Volume]
    written: Callable[[], Collection[tuple[AgentPath, int]]]
    recorder: Recorder | None = None
    covered: Callable[[], Collection[bytes]] = tuple

    @contextlib.contextmanager
    def recording(self, kind: CallKind, title: Callable[[], str]) -> Iterator[MergeRecords]:
        """Enclose the changes of a call."""
        if self.recorder is None:
            yield MergeRecords()
            return
        with self.recorder.calls.inside(kind, title()) as call:
            yield MergeRecords(self.recorder, call)


class Merge:
    """One merge of one branch.

    Args:
        branch: its name.
        volumes: prefix → volume, of the main tree.
        plan: plans the merge, from trees that are read anew.
        journal: the path of the journal.
        written: returns the nodes that somebody has open for writing, each with the prefix of its route.
        recording: encloses the changes of a plan, and yields what records them.
        follow: called with a number of its own for each merge, and with the old and the new path of everything that was
            renamed in main, in order: the branch may know files by their paths. Called again after a kill.
        before: called with a plan, before the first change of main.
    """

    def __init__(
        self,
        branch: str,
        volumes: Mapping[AgentPath, Volume],
        plan: Callable[[], MergePlan],
        journal: str,
        written: Callable[[], Collection[tuple[AgentPath, int]]] = tuple,
        recording: Callable[[], AbstractContextManager[MergeRecords]] = lambda: contextlib.nullcontext(MergeRecords()),
        follow: Callable[[int, Sequence[tuple[bytes, bytes]]], None] = lambda number, moves: None,
        before: Callable[[MergePlan], None] = lambda plan: None,
    ) -> None:
        self._before = before
        self._follow = follow
        self._volumes = volumes
        self._plan = plan
        self._journal = Journal(journal)
        self._open = written
        self._recording = recording
        self._staging = STAGING + os.fsencode(branch)[: 255 - len(STAGING)]

    def dry_run(self) -> Outcome:
        """Return what `run` would do."""
        plan = self._planned()
        return Outcome(plan, plan.steps)

    def run(self) -> Outcome:
        """Merge.

        Raises:
            OSError: of a volume, or of the journal. In a route that changes in one go nothing is done then; in another
                one a part may be. The same merge does the rest.
        """
        self.tidy()
        outcome = Outcome(MergePlan())
        for attempt in range(ATTEMPTS):
            outcome.plan = self._planned()
            if outcome.is_refused:
                return outcome
            if not outcome.plan.steps:
                break
            self._before(outcome.plan)
            try:
                with self._recording() as records:
                    try:
                        self._make(outcome, records)
                    finally:
                        outcome.call = records.call or outcome.call
                break
            except MainChangedError as error:
                self.tidy()
                if attempt == ATTEMPTS - 1:
                    outcome.plan.conflicts.append(UndoConflict(error.path, "main changes it again and again"))
                    return outcome
            except Exception:
                self.tidy()
                raise
        self._sync(*self._volumes)
        self.tidy()
        return outcome

    def _planned(self) -> MergePlan:
        """Return a plan. What goes while it is made has it made again."""
        plans = (unless(VANISHED, self._plan) for _ in range(ATTEMPTS - 1))
        plan = next(filter(None, plans), None) or self._plan()
        self._refuse_open(plan)
        return plan

    def _refuse_open(self, plan: MergePlan) -> None:
        """Add the paths that have to change and that somebody has open for writing."""
        written = {(id(self._volumes[prefix]), node) for prefix, node in self._open()}
        for step in plan.steps if written else ():
            if step.stamp is None or step.word not in ("replace", "link", "remove") or step.path.startswith(PARKED):
                continue
            route = self._route(step.prefix)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), route.volume.lock:
                attr = route.find(step.path)
                if attr is not None and stat.S_ISREG(attr.mode) and (id(route.volume), attr.node) in written:
                    plan.conflicts.append(UndoConflict(shown(step.path), "is open for writing in the mount"))

    def _route(self, prefix: AgentPath, number: int = 0) -> _ChangingRoute:
        return _ChangingRoute(prefix, self._volumes[prefix], self._staging, number)

    def _make(self, outcome: Outcome, records: MergeRecords) -> None:
        by_route: dict[AgentPath, list[Step]] = {}
        for step in outcome.plan.steps:
            by_route.setdefault(step.prefix, []).append(step)
        for prefix, steps in by_route.items():
            self._route(prefix).require(steps)
        number = secrets.randbits(62)
        self._journal.begin({"id": number, "routes": list(by_route)})
        making: list[_OneByOne | _AtOnce] = []
        for prefix, steps in by_route.items():
            kind = _AtOnce if isinstance(self._volumes[prefix], SnapshotVolume) else _OneByOne
            making.append(kind(self._route(prefix, number), steps, records, self._journal, outcome))
        # Those that change in one go get their new contents first, which may be too large for them, and change last: an
        # error in another one leaves them as they are.
        for each in making:
            each.prepare()
        for each in sorted(making, key=lambda each: isinstance(each, _AtOnce)):
            each.run()

    def tidy(self) -> None:
        """End a merge that is under way, whole or not: bring back what it has parked, tell the branch of renames, and
        remove what was staged, and the journal."""
        lines = self._journal.read()
        if not lines:
            return
        moves: list[tuple[bytes, bytes]] = []
        for prefix in lines[0]["routes"]:
            if prefix in self._volumes:
                route = self._route(AgentPath(prefix), lines[0]["id"])
                noted = [line for line in lines if line.get("prefix") == prefix]
                finals = {line["moves"][0][1]: os.fsencode(line["final"]) for line in noted if "final" in line}
                moves += route.bring_back(_made(route, noted), finals, self._recording)
                route.clear()
        if moves:
            self._follow(lines[0]["id"], moves)
        # A kill takes back what is not durable: nobody would look for the staging directory again.
        self._sync(*(prefix for prefix in lines[0]["routes"] if prefix in self._volumes))
        self._journal.end()

    def _sync(self, *prefixes: str) -> None:
        for volume in {id(volume): volume for volume in (self._volumes[AgentPath(each)] for each in prefixes)}.values():
            if not volume.features.read_only:
                volume.sync()


def _not_merged(path: AgentPath, error: OSError) -> OSError:
    return OSError(error.errno, f"'{path}' can't be merged: {error.strerror}")


def _made(route: _ChangingRoute, lines: Iterable[dict[str, Any]]) -> list[tuple[bytes, bytes]]:
    """Return the renames of a route's lines that were made. Of the last line that is not known from the journal."""
    noted = [[(os.fsencode(old), os.fsencode(new)) for old, new in line["moves"]] for line in lines]
    with route.volume.lock:
        if noted and not (route.has(noted[-1][-1][1]) and not route.has(noted[-1][-1][0])):
            noted.pop()
    return [move for moves in noted for move in moves]


def _ends(step: Step) -> tuple[bytes, bytes]:
    """Return the paths before and after a step that renames; nothing for another one."""
    return (step.path, step.to_path) if step.word in ("move", "park") else (b"", b"")


class _ChangingRoute:
    """A route that changes, and the names in it that are known. Call it with the lock held, but for `clear`."""

    def __init__(self, prefix: AgentPath, volume: Volume, staging: bytes, number: int) -> None:
        self.prefix = prefix
        self._number = number
        self.volume = volume
        self.staging_name = staging
        self._skip = len(split(prefix))
        self.directories = Directories(volume)
        self.staging_node = 0

    def inner(self, path: bytes) -> str:
        """The path in the volume, of one of the whole tree; of a parked file, that in the staging directory."""
        if path.startswith(PARKED):
            return f"/{to_text(self.staging_name)}/parked-{to_text(path[len(PARKED) :])}"
        return "/" + to_text(b"/".join(path.split(b"/")[self._skip :]))

    def recorded(self, path: bytes) -> bytes:
        """The path in the volume, as the history has it. A parked file has a name in the root that no other merge
        gives: where it is in truth is gone after the merge, and an undo parks it, too."""
        if path.startswith(PARKED):
            return b"/" + STAGING + b"%x-%s" % (self._number, path[len(PARKED) :])
        return to_name(self.inner(path))

    def place(self, path: bytes) -> tuple[int, bytes]:
        """Return the directory and the name of a path; of a parked one, those in the staging directory."""
        if path.startswith(PARKED):
            return self.staging(), b"parked-" + path[len(PARKED) :]
        return self.directories.place(to_name(self.inner(path)))

    def find(self, path: bytes) -> Attr | None:
        """Return the attributes of what is at a path."""
        if not path or path.count(b"/") < self._skip:
            return self.volume.getattr(ROOT_NODE)  # the route's root
        parent, name = self.place(path)
        return unless((errno.ENOENT,), self.volume.lookup, parent, name)

    def require(self, steps: Sequence[Step]) -> None:
        """Raise why a step can't be made, before the first one is."""
        gone = {self.inner(step.path) for step in steps if step.word == "remove"}
        made = [step.to_path if step.word == "move" else step.path for step in steps if step.word in _MAKES]
        for path, error in placing.refusals(self.volume, gone, map(self.inner, made)):
            raise _not_merged(AgentPath(self.prefix.rstrip("/") + path), error)

    def has(self, path: bytes) -> bool:
        """Return True if there is something at a path."""
        return unless(NOT_THERE, self.find, path) is not None

    def staging(self) -> int:
        """Return the staging directory, which is made when it is first needed."""
        if not self.staging_node:
            try:
                self.staging_node = self.volume.lookup(ROOT_NODE, self.staging_name).node
            except FileNotFoundError:
                owner = Caller(os.geteuid(), os.getegid(), os.getpid())
                with self.volume.changing() as changes, self._same_time():
                    made = self.volume.mkdir(ROOT_NODE, self.staging_name, 0o700, owner)
                    self.staging_node = made.node
                    changes += [Change(node=ROOT_NODE), Change(made.node, ROOT_NODE, self.staging_name)]
        return self.staging_node

    @contextlib.contextmanager
    def _same_time(self, *spared: type[OSError]) -> Iterator[None]:
        """The root keeps its mtime, though a name of the server's is made or removed in it, but for errors that are
        `spared`."""
        before_ns = self.volume.getattr(ROOT_NODE).mtime_ns
        yield
        if self.volume.features.persistent_modes:
            with contextlib.suppress(*spared):
                self.volume.setattr(ROOT_NODE, AttrChanges(mtime_ns=before_ns))

    def bring_back(
        self,
        moves: Sequence[tuple[bytes, bytes]],
        finals: Mapping[str, bytes],
        recording: Callable[[], AbstractContextManager[MergeRecords]],
    ) -> list[tuple[bytes, bytes]]:
        """Give parked files their names again or, where a later step has put something there, those that they were to
        get; returns all renames.

        Args:
            finals: those names, by the parked ones.
            recording: as of `Merge`. It is a call of its own: an undo of the merge names it, and takes both back.

        Raises:
            OSError: one can't be brought back; its text names the file and the place. The same merge tries again.
        """
        made = list(moves)
        for old, parked in moves:
            if not parked.startswith(PARKED) or any(each == parked for each, _ in moves):
                continue
            with recording() as records, self.volume.changing() as changes:
                self.directories.look_again()
                attr = self.find(parked)
                if attr is None:
                    continue
                final = finals.get(os.fsdecode(parked), old)
                to_path = final if self.has(old) else old
                node = attr.node
                try:
                    here = self.place(to_path)
                    self.volume.rename(*self.place(parked), *here, RENAME_NOREPLACE)
                except OSError as error:
                    where = f"'{shown(to_path)}' is at '{self.inner(parked)}'"
                    why = f"and can't be brought back: {error.strerror}; merge again when it can be"
                    raise OSError(error.errno, f"{where}, {why}") from error
                changes += [Change(node=here[0]), Change(node, *here, "created", self.inner(to_path))]
                old, new = self.recorded(parked), self.recorded(to_path)
                records.add("rename", self.prefix, self.volume, old, node, to_path=new)
                made.append((parked, to_path))
        self.directories.forget()
        return made

    def clear(self) -> None:
        """Remove the staging directory with all that is in it but parked files. The lock is free in between. The merge
        is made by now: an error of the root's time is none of it."""
        there = unless((errno.ENOENT,), self.volume.lookup, ROOT_NODE, self.staging_name)
        if there is None:
            return
        node = there.node
        self._empty(node)
        with self.volume.changing() as changes, contextlib.suppress(FileNotFoundError), self._same_time(OSError):
            self.volume.rmdir(ROOT_NODE, self.staging_name)
            changes += [Change(node=ROOT_NODE), Change(node, ROOT_NODE, self.staging_name)]
        self.staging_node = 0

    def _empty(self, directory: int) -> None:
        for name, attr in list(entries(self.volume, directory)):
            node, is_dir = attr.node, attr.is_dir
            if is_dir:
                self._empty(node)
            with self.volume.changing() as changes:
                self.volume.rmdir(directory, name) if is_dir else self.volume.unlink(directory, name)
                changes += [Change(node=directory), Change(node, directory, name)]


class _RouteSteps:
    """Steps in one route.

    Args:
        outcome: gets those that were made, and what could not be kept of them.
    """

    replacing = 0
    """The flags of a rename to a name at which something is."""

    def __init__(
        self, route: _ChangingRoute, steps: Sequence[Step], records: MergeRecords, journal: Journal, outcome: Outcome
    ) -> None:
        self.route = route
        self.records = records
        self.journal = journal
        self.outcome = outcome
        self.volume = route.volume
        self.steps = steps
        self.staged: dict[bytes, int] = {}
        """Nodes of what `stage` has made, by their names."""
        self.ready: Source | None = None
        """What the present step makes a file of, read with the lock free."""
        self.set_aside: Counter[int] = Counter()
        """Nodes in the staging directory under names that they have lost: how many of each."""
        self._partly: list[str] = []  # of steps that are not made yet: the plan may be dropped

    def prepare(self) -> None:
        """Write the new contents, which nobody sees yet."""

    def source(self, step: Step) -> Source:
        assert step.state is not None, "a step that has a source has a state"
        if self.ready is not None:
            return self.ready
        if step.data is not None:
            return BytesSource(step.state, step.data)
        if step.item is not None and stat.S_ISREG(step.state.mode):
            return step.item.source(step.state)
        return KeptSource(step.state)

    def check(self, step: Step) -> Attr | None:
        """Return what is at the path of a step, if it is what the plan has seen there."""
        attr = unless(NOT_THERE, self.route.find, step.path)
        if attr is None or step.stamp is None:
            is_same = (attr is None) is (step.stamp is None and step.word not in _MOVES)
        else:
            is_same = step.stamp.is_that_of(attr)
        if not is_same:
            raise MainChangedError(shown(step.path))
        return attr

    def has_new_file(self, step: Step) -> bool:
        """Return True if a step writes a new file, which can be staged."""
        return step.word in ("make", "replace") and step.state is not None and not stat.S_ISDIR(step.state.mode)

    def lost(self, step: Step, placed: placing.Placed) -> None:
        self._partly += [f"{shown(step.path)}: {words}" for words in placed.lost]

    def made(self, steps: Sequence[Step]) -> None:
        """Note that steps were made."""
        self.outcome.steps += steps
        self.outcome.partly += self._partly
        self._partly.clear()

    def stage(self, step: Step, name: bytes) -> None:
        """Make the file of a step in the staging directory."""
        staging = self.route.staging()
        with placing.staged(self.volume, staging, name, self.source(step)) as ready, self.volume.lock:
            placed = placing.make(self.volume, staging, name, ready, [], "")
        self.staged[name] = placed.attr.node
        self.lost(step, placed)

    def going(self, step: Step, attr: Attr | None) -> None:
        """Record that what is at the path of a step is removed, or replaced."""
        if attr is not None:
            gone = self.set_aside[attr.node]
            self.record("remove", step.path, attr.node, attr, gone=gone)

    def record(self, kind: RecordKind, path: bytes, node: int, before: Attr | None = None, **fields: Any) -> None:
        """Record a change, see `MergeRecords.add`."""
        self.records.add(kind, self.route.prefix, self.volume, self.route.recorded(path), node, before, **fields)

    def run_step(self, step: Step, name: bytes, attr: Attr | None, changes: Changes) -> None:
        """Make one step.

        Args:
            name: in the staging directory: of the new file, if it was staged, or for a link.
            attr: what `check` has found.
        """
        if step.word == "link":
            found = self.route.find(step.to_path)
            if found is None:
                raise MainChangedError(shown(step.to_path))
            if attr is not None and attr.node == found.node:
                return  # the same file has both names: a rename would do nothing
            self.staged[name] = self.volume.link(found.node, self.route.staging(), name).node
        if name in self.staged:
            self.put(step, name, attr, changes)
        elif step.word == "make":
            self.make_here(step, changes)
        else:
            assert attr is not None, "the plan has seen something there"
            how = {"replace": self.overwrite, "attributes": self.set_attributes, "remove": self.remove}
            how.get(step.word, self.move)(step, attr, changes)

    def put(self, step: Step, name: bytes, attr: Attr | None, changes: Changes) -> None:
        """Give what was staged its name."""
        parent, final = self.route.place(step.path)
        node = self.staged[name]
        self.going(step, attr)
        self.rename((self.route.staging(), name), (parent, final), RENAME_NOREPLACE if attr is None else self.replacing)
        self.record("create", step.path, node, linked=step.word == "link")
        kind: EventKind = "created" if attr is None else "modified"
        changes += [Change(node=parent), Change(node, parent, final, kind, self.route.inner(step.path))]

    def rename(self, old: tuple[int, bytes], new: tuple[int, bytes], flags: int) -> None:
        """Rename to or from the staging directory."""
        self.volume.rename(*old, *new, flags)

    def make_here(self, step: Step, changes: Changes) -> None:
        parent, name = self.route.place(step.path)
        source = self.source(step)
        placed = placing.make(self.volume, parent, name, source, changes, self.route.inner(step.path))
        self.record("create", step.path, placed.attr.node)
        self.lost(step, placed)

    def overwrite(self, step: Step, attr: Attr, changes: Changes) -> None:
        source, inner = self.source(step), self.route.inner(step.path)
        self.record("content", step.path, attr.node, attr)
        self.lost(step, placing.overwrite(self.volume, attr.node, source, changes, inner))

    def remove(self, step: Step, attr: Attr, changes: Changes) -> None:
        parent, name = self.route.place(step.path)
        mark = self.records.mark()
        self.going(step, attr)
        try:
            placing.remove(self.volume, parent, name, attr, changes, self.route.inner(step.path))
        except OSError as error:
            self.records.drop(mark)
            if error.errno == errno.ENOTEMPTY:
                raise MainChangedError(shown(step.path)) from None
            raise
        if attr.is_dir:
            self.route.directories.forget()

    def move(self, step: Step, attr: Attr, changes: Changes) -> None:
        old, new = (Name(*self.route.place(path), self.route.inner(path)) for path in _ends(step))
        node, is_dir = attr.node, attr.is_dir
        placing.rename(self.volume, old, new, attr, changes, RENAME_NOREPLACE)
        if is_dir:
            self.route.directories.forget()
        path, to_path = _ends(step)
        self.record("rename", path, node, to_path=self.route.recorded(to_path))

    def set_attributes(self, step: Step, attr: Attr, changes: Changes) -> None:
        assert step.state is not None
        state = step.state if step.times else step.state._replace(atime_ns=attr.atime_ns, mtime_ns=attr.mtime_ns)
        inner = self.route.inner(step.path)
        self.record("attributes", step.path, attr.node, attr)
        self.lost(step, placing.set_attributes(self.volume, attr.node, state, changes, inner))


_MAKES = frozenset({"make", "link", "move", "replace"})
_MOVES = frozenset({"move", "park", "remove"})


class _OneByOne(_RouteSteps):
    """Steps that are made one after the other."""

    def record(self, kind: RecordKind, path: bytes, node: int, before: Attr | None = None, **fields: Any) -> None:
        """Record a change. What a file was is written before it changes: after a kill, a restore of a state before a
        call takes it for what it was then, and removed the only copy of a file once where it did not know."""
        super().record(kind, path, node, before, **fields)
        if before is not None:
            self.records.flush()

    def run(self) -> None:
        for index, step in enumerate(self.steps):
            old, new = _ends(step)
            if new:
                line: dict[str, Any] = {"moves": [[os.fsdecode(old), os.fsdecode(new)]], "prefix": self.route.prefix}
                if step.word == "park":
                    line["final"] = os.fsdecode(next(each.to_path for each in self.steps if each.path == new))
                self.journal.note(line)
            self._run(step, b"%d" % index)
            self.made([step])
        self.route.clear()

    def _run(self, step: Step, name: bytes) -> None:
        is_new = self.has_new_file(step)
        is_staged = is_new and self.volume.features.random_writes
        if is_staged:
            self.stage(step, name)
        with contextlib.ExitStack() as stack:
            if is_new and not is_staged:
                self.ready = stack.enter_context(placing.at_hand(self.source(step)))
            changes = stack.enter_context(self.volume.changing())
            self.route.directories.look_again()
            attr = self.check(step)
            if is_staged:  # the lock was free since: the node may have another number
                self.staged[name] = self.volume.lookup(self.route.staging(), name).node
            self.run_step(step, name, attr, changes)
        self.ready = None


class _AtOnce(_RouteSteps):
    """Steps of which a reader sees all or none. What they replace goes into the staging directory, so that each can be
    taken back under the same lock, and is removed afterwards."""

    replacing = RENAME_EXCHANGE

    def prepare(self) -> None:
        staged = [(index, step) for index, step in enumerate(self.steps) if self.has_new_file(step)]
        for index, step in staged:
            self.stage(step, b"%d" % index)
        if len(self.steps) > 1 or staged:
            with self.volume.changing():
                self.route.staging()
            self.volume.sync()

    def run(self) -> None:
        moves = [[os.fsdecode(old), os.fsdecode(new)] for old, new in map(_ends, self.steps) if new]
        if moves:
            self.journal.note({"moves": moves, "prefix": self.route.prefix})
        if self.route.staging_node:
            self.volume.sync()  # the names below go into one transaction, with nothing else
        self.volume.change_at_once(self._commit)
        self.route.clear()
        self.made(self.steps)

    def _commit(self, changes: Changes) -> None:
        self._back: list[Callable[[Changes], object]] = []
        self.set_aside.clear()
        self.route.directories.forget()
        mark = self.records.mark()
        try:
            for index, step in enumerate(self.steps):
                try:
                    self.run_step(step, b"%d" % index, self.check(step), changes)
                except PermissionError as error:  # of a route's rules
                    raise _not_merged(shown(step.path), error) from error
        except BaseException:
            for back in reversed(self._back):
                back(changes)
            changes[:] = [each._replace(kind="unknown", moved_from=None) for each in changes]  # for watchers
            self.records.drop(mark)
            raise

    def make_here(self, step: Step, changes: Changes) -> None:
        super().make_here(step, changes)
        self._back.append(partial(self._remove_directory, step.path))

    def set_attributes(self, step: Step, attr: Attr, changes: Changes) -> None:
        before, node = placing.state_of(self.volume, attr), attr.node
        super().set_attributes(step, attr, changes)
        self._back.append(partial(placing.set_attributes, self.volume, node, before))

    def move(self, step: Step, attr: Attr, changes: Changes) -> None:
        old, new = map(self.route.place, _ends(step))
        super().move(step, attr, changes)
        self._back.append(partial(self._rename_back, new, old, RENAME_NOREPLACE))

    def rename(self, old: tuple[int, bytes], new: tuple[int, bytes], flags: int) -> None:
        super().rename(old, new, flags)
        self._back.append(partial(self._rename_back, new, old, flags))

    def remove(self, step: Step, attr: Attr, changes: Changes) -> None:
        parent, name = self.route.place(step.path)
        there = self.route.staging(), b"old-%d" % len(self._back)
        if attr.is_dir:
            if self.volume.readdir(attr.node, b"", 1):
                raise MainChangedError(shown(step.path))
            # The staging directory, into which it goes, could not be removed with names that rules hide in it.
            self.volume.require_removable(self.route.inner(step.path))
        node, is_dir = attr.node, attr.is_dir
        self.going(step, attr)
        self.rename((parent, name), there, RENAME_NOREPLACE)
        self.set_aside[node] += not is_dir
        path = self.route.inner(step.path) + ("/" if is_dir else "")
        changes += [Change(node=parent), Change(node, parent, name, "deleted", path)]
        if is_dir:
            self.route.directories.forget()

    def put(self, step: Step, name: bytes, attr: Attr | None, changes: Changes) -> None:
        old = 0 if attr is None else attr.node  # a file: a plan gives no name to anything while a directory has it
        super().put(step, name, attr, changes)
        self.set_aside[old] += 1

    # -- taking back -------------------------------------------------------------------------------------------

    def _remove_directory(self, path: bytes, changes: Changes) -> None:
        parent, name = self.route.place(path)
        attr = self.volume.lookup(parent, name)
        placing.remove(self.volume, parent, name, attr, changes, self.route.inner(path))
        self.route.directories.forget()

    def _rename_back(self, now: tuple[int, bytes], before: tuple[int, bytes], flags: int, changes: Changes) -> None:
        self.route.directories.forget()
        self.volume.rename(*now, *before, flags)
        for parent, name in (now, before):
            changes += [Change(node=parent), Change(parent=parent, name=name)]


def keep_sources(branch: BranchVolume, plan: MergePlan) -> None:
    """Copy up the bytes that steps of a plan are made of and that the branch reads from live routes. Else a step reads
    what an earlier one has put there, as where files have changed places (`mv a t; mv b a; mv t b`), and so would the
    same merge once more after a kill.

    Raises:
        OSError: ESTALE, the route has deleted bytes that the branch has not. Its text names the file.
    """
    sources = {
        step.item.node: step for step in plan.steps if step.word in ("make", "replace") and step.item is not None
    }
    for node in sorted(sources.keys() - {0}):
        try:
            branch.keep_bytes(node)
        except OSError as error:
            if error.errno not in VANISHED:
                raise
            path = to_text(sources[node].path)
            text = f"'/{path}' can't be merged: the branch had only renamed it, and main has deleted its bytes"
            raise OSError(errno.ESTALE, text) from error
    branch.sync()
