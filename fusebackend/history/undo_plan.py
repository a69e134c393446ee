"""`UndoPlan`: the steps that take calls back, from their records, and why they can't be taken back.

The records are taken in reverse. A step is planned against a `PlannedTree` of its route: the tree as it is now, with
the steps before in it. So each step is checked before anything is changed. Why an undo is refused, by the words of the
conflict:

- `was changed since`, `was renamed since` and the like: another call has a later record at the path, above it or below
  it, whatever is there now (`overlaps.py`);
- `has changed since`: the file is not as the call left it (`Record.after`), and no record says why;
- `has been made anew`, `is not there any more`, `is not empty` and the like: a name is taken, or gone;
- `was one of several names of a file`, `is not the file that was changed`: the path may mean another file by now;
- `can't come back`: the bytes before are in no image (`Images.source`);
- `may have more changes`: the history lacks some of the call (`HistoryFile.gaps`);
- `can't be changed`: permissions, or the rules of the route (`UndoPlan.refusals`);
- `belongs to a route that is not mounted any more`, `is on a route that is read-only now`.

What happens between the plan and a step is EBUSY (`Step.seen`, `undo.py`).

Calls are taken back together with the undos of them that did not come to their end (`HistoryFile.unfinished`): first
what these did, then the calls. So an undo that was interrupted is done by the same command.

It is no three-way merge of trees (`trees/merge/plan.py`). None of these reasons comes from a comparison of trees: base
and main would be one. Its steps are those of the records, so files that have changed places do so again, at once and
without their bytes; a merge knows a file by its path first.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, NamedTuple, TypeAlias

from fusebackend.base.errors import VANISHED, unless
from fusebackend.base.merge_lines import MERGED_BYTES, merge_lines
from fusebackend.base.paths import AgentPath, mount_path
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.images import Images
from fusebackend.history.records import Record, Stamp, stamp_of
from fusebackend.protocol import ROOT_NODE, Attr, SnapshotVolume, UndoConflict, Volume
from fusebackend.volumes.frozen import LooksAhead
from fusebackend.volumes.placing import TEMPORARY, BytesSource, KeptSource, NodeSource, Source, State, refusals, whole
from fusebackend.volumes.walk import below, entries

LOOKED_AT_ONCE = 1000
"""Images in snapshots that are looked at together."""

NAMED_CONFLICTS = 200
"""For so many conflicts the later call is searched for in the directories above: each takes a query."""

Word: TypeAlias = Literal["make", "link", "remove", "rename", "exchange", "overwrite", "merge", "attributes", "clean"]


class Step(NamedTuple):
    """A change of one path, which is the one that it has when the steps before are made."""

    word: Word
    prefix: AgentPath
    path: bytes
    to_path: bytes = b""
    """Of `rename` and `exchange`; of `link`: the name of the file that gets another one."""
    source: Source | None = None
    """Of `make`, `overwrite` and `merge`."""
    state: State | None = None
    """Of `attributes`."""
    seen: Stamp | None = None
    """Of the file as it was found: the step is made only if it is still so. None if earlier steps have changed it."""
    node: int = 0
    """Of `link`: the file, if it has no name that the plan knows."""
    file: bytes = b""
    """Of `make`: what the file was named by, see `UndoPlan._key`."""
    closes: bool = False
    """Not shown to users: the attributes of a directory that a step before has made, when all is in it; a temporary
    name."""
    record: int = 0
    """Of `make` and `link`: the number of its record, if that was added before the name is made."""


class UndoPlan:
    """See the module's docstring. `add` the calls, then look at `steps` and `conflicts`.

    Args:
        volumes: prefix → volume, of all routes.
        images: of the mount.
        history: of the mount. Volumes without snapshots may number their files anew when they are opened, so nodes in
            the records of an earlier server are taken for no file that is there.
        merge: merge files by lines that a later call has changed as well.
        leave: a directory that the call has made, and that has names of others by now, is no conflict and stays.

    Attributes:
        steps: in their order. With conflicts, they take back the rest.
        conflicts: the paths that stay as they are.
        left: the directories that stay, with the name of another in each.
        partly: a line for each file that comes back without its other names, which are not in the route.
        snapshots: the names of those that it reads.
        unfinished: the undos of the calls that were interrupted, which are taken back with them.
    """

    def __init__(
        self,
        volumes: Mapping[AgentPath, Volume],
        images: Images,
        history: HistoryFile,
        *,
        merge: bool = False,
        leave: bool = False,
    ) -> None:
        self.steps: list[Step] = []
        self.conflicts: list[UndoConflict] = []
        self.left: list[tuple[str, str]] = []
        self.partly: list[str] = []
        self.snapshots: set[str] = set()
        self.unfinished: list[int] = []
        self._volumes = volumes
        self._images = images
        self._history = history
        self._merge = merge
        self._leave = leave
        self._trees: dict[AgentPath, PlannedTree] = {}
        self._made: dict[tuple[AgentPath, bytes], PlannedFile] = {}  # by `_key`
        self._closing: dict[PlannedFile, AgentPath] = {}  # directories that get their attributes when all is in them
        self._hollow: dict[PlannedFile, AgentPath] = {}  # files that no step has given their bytes yet

    def add(self, calls: Sequence[int]) -> None:
        """Plan for calls, by their numbers."""
        self.unfinished = self._history.unfinished(calls)
        numbers = [*calls, *self.unfinished]
        records = sorted((record for number in numbers for record in self._history.records(number)), reverse=True)
        theirs = self._history.overlaps(numbers)
        for start in range(0, len(records), LOOKED_AT_ONCE):
            portion = records[start : start + LOOKED_AT_ONCE]
            self._look_ahead(portion)
            for record in portion:
                try:
                    self._add(record, theirs.get(record.number, ()))
                except _NotTakenBack as conflict:
                    self._refuse(record, conflict)
        for file, prefix in self._hollow.items():
            if file.place is not None:
                why = "can't come back, for its earlier bytes were not recorded"
                self.conflicts.append(UndoConflict(mount_path(prefix, file.place.path), why))
        closing = [(file.place.path, prefix, file.state) for file, prefix in self._closing.items() if file.place]
        for path, prefix, state in sorted(closing, key=lambda each: each[0].count(b"/"), reverse=True):
            self.steps.append(Step("attributes", prefix, path, state=state, closes=True))
        for number, why in self._history.gaps(numbers).items():
            self.conflicts.append(
                UndoConflict("/", f"may have more changes of c{number}, which were not recorded: {why}")
            )

    def _look_ahead(self, records: Sequence[Record]) -> None:
        """Look at the images of records in snapshots together: one by one, each takes a query."""
        nodes: dict[tuple[AgentPath, str], list[int]] = defaultdict(list)
        for record in records:
            if record.image is not None and record.image.place == "snapshot":
                nodes[record.prefix, record.image.name].append(record.image.node)
                self.snapshots.add(record.image.name)
        for (prefix, name), wanted in nodes.items():
            volume = self._volumes.get(prefix)
            if isinstance(volume, SnapshotVolume):
                with contextlib.suppress(OSError):  # `Images.source` finds the same
                    frozen = volume.snapshot(name)
                    if isinstance(frozen, LooksAhead):
                        frozen.ahead([volume.node_in(name, node) for node in wanted])

    def _refuse(self, record: Record, conflict: _NotTakenBack) -> None:
        path, call = conflict.path or record.earlier_path, conflict.call
        if call is None and len(self.conflicts) < NAMED_CONFLICTS:
            call = self._history.later(record, path)
        found = UndoConflict(
            mount_path(record.prefix, path), conflict.reason, None if call is None else f"c{call}"
        )  # fmt: skip
        if all(each.path != found.path for each in self.conflicts[-3:]):
            self.conflicts.append(found)

    def refusals(self) -> Iterator[UndoConflict]:
        """What permissions and the rules of routes refuse of the steps."""
        for prefix in dict.fromkeys(step.prefix for step in self.steps):
            own = [step for step in self.steps if step.prefix == prefix]
            gone = {os.fsdecode(step.path) for step in own if step.word == "remove"}
            made = [step for step in own if step.word in ("make", "link", "rename")]
            new = [os.fsdecode(step.to_path if step.word == "rename" else step.path) for step in made]
            for path, error in refusals(self._volumes[prefix], gone, new):
                yield UndoConflict(mount_path(prefix, os.fsencode(path)), f"can't be changed: {error.strerror}")

    # -- one record ------------------------------------------------------------------------------------------------

    def _add(self, record: Record, theirs: Sequence[Record]) -> None:
        tree = self._tree(record.prefix)
        if theirs and not self._is_gone(tree, record, theirs[-1]):
            if self._merge and self._merged(tree, record, theirs[0]):
                return
            last = theirs[-1]
            at_target = bool(record.to_path) and record.to_path in (last.path, last.to_path)
            raise _NotTakenBack(_words_for(record, last), last.call, record.to_path if at_target else record.path)
        match record.kind:
            case "create":
                self._remove(tree, record)
            case "remove":
                self._make(tree, record)
            case "rename":
                self._rename(tree, record)
            case "exchange":
                self._exchange(tree, record)
            case "content":
                self._overwrite(tree, record)
            case "attributes":
                self._attributes(tree, record)

    def _tree(self, prefix: AgentPath) -> PlannedTree:
        tree = self._trees.get(prefix)
        if tree is None:
            volume = self._volumes.get(prefix)
            if volume is None:
                raise _NotTakenBack("belongs to a route that is not mounted any more")
            if volume.features.read_only:
                raise _NotTakenBack("is on a route that is read-only now")
            earlier = 0 if isinstance(volume, SnapshotVolume) else self._history.earlier
            returned = cache(partial(self._history.returned, prefix, earlier))  # most files are known by their node
            tree = self._trees[prefix] = PlannedTree(prefix, volume, returned, earlier)
        return tree

    def _is_gone(self, tree: PlannedTree, record: Record, last: Record) -> bool:
        """Return True for a file that the call has made and a later one has removed: nothing is left to do."""
        place = tree.at(record.path)
        return record.kind == "create" and last.kind == "remove" and (place is None or place.file is None)

    def _remove(self, tree: PlannedTree, record: Record) -> None:
        place = tree.at(record.path)
        if place is None or place.file is None:
            return
        self._require_left(place, place.file, record)
        if place.file.is_dir:
            names = list(tree.names(place.file))
            left = next((name for name in names if not name.startswith(TEMPORARY)), None)
            if left is not None and self._leave:
                self.left.append((mount_path(tree.prefix, record.path), os.fsdecode(left)))
                return
            if left is not None:
                raise _NotTakenBack(f"is not empty: '{os.fsdecode(left)}' is in it")
            for name in names:  # an undo that was killed has left it
                self.steps.append(Step("clean", tree.prefix, record.path + b"/" + name, closes=True))
        self.steps.append(Step("remove", tree.prefix, record.path, seen=place.file.seen))
        place.put(None)

    def _make(self, tree: PlannedTree, record: Record) -> None:
        """Plan for a name that was removed."""
        before, place = record.before, tree.at(record.path)
        if before is None:
            raise _NotTakenBack("was there, and its history does not say what it was")
        if place is None:
            raise _NotTakenBack("was in a directory that is not there any more")
        if place.file is None:
            self._bring_back(tree, record, place, self._earlier(tree, record))
            return
        # Else the change was not made, though it was recorded: the server was killed in between.
        is_dir = stat.S_ISDIR(before.mode)
        has_less = not is_dir and place.file.links < before.nlink  # it is another name of the same file
        if has_less or not _is_restored(place.file.now, before):
            raise _NotTakenBack("has been made anew")
        if is_dir:
            self._closing[place.file] = tree.prefix
            place.file.become(before)
        elif key := self._key(tree, record):  # its other names may not be there yet
            self._made[tree.prefix, key] = place.file
        place.file.places += (place,)

    def _earlier(self, tree: PlannedTree, record: Record) -> PlannedFile | Source:
        """Return what a file that is not at its path any more comes back from: the file itself, which has other names,
        or its state."""
        try:
            return self._twin(tree, record) or self._source(tree, record)
        except _NotTakenBack:
            self._source(tree, record)  # that its bytes are gone says more than that its other names are not found
            raise

    def _bring_back(self, tree: PlannedTree, record: Record, place: PlannedName, earlier: PlannedFile | Source) -> None:
        """Plan for a file that comes back to a vacant place. Its bytes may come later: an earlier record of its call
        leads to them."""
        before, path = record.before, record.earlier_path
        assert before is not None, "its state is known"
        if isinstance(earlier, PlannedFile):
            link = Step("link", tree.prefix, path, node=earlier.node)
            if earlier.place is not None:  # the node may go with a name that a step before removes
                link = Step("link", tree.prefix, path, earlier.place.path)
            self.steps.append(link)
            place.put(earlier)
            return
        is_dir = stat.S_ISDIR(before.mode)
        if before.nlink > 1 and not is_dir and tree.volume.features.links:
            shown = mount_path(tree.prefix, path)
            self.partly.append(f"'{shown}': its other names are not in the route, so it is a file of its own")
        file, key = PlannedFile(None, before), self._key(tree, record)
        self._note_bytes(tree, file, record)
        if is_dir:
            # Closed to its owner, it could not be filled.
            earlier = KeptSource(before._replace(mode=before.mode | stat.S_IRWXU))
            self._closing[file] = tree.prefix
        elif key:
            self._made[tree.prefix, key] = file
        self.steps.append(Step("make", tree.prefix, path, source=earlier, file=b"" if is_dir else key))
        place.put(file)

    def _note_bytes(self, tree: PlannedTree, file: PlannedFile, record: Record) -> None:
        """Note whether a record leads to the bytes before it. Else an earlier one of its call does."""
        assert record.before is not None, "its state is known"
        if record.image is None and record.before.size > 0 and stat.S_ISREG(record.before.mode):
            self._hollow[file] = tree.prefix
        else:
            self._hollow.pop(file, None)

    def _key(self, tree: PlannedTree, record: Record) -> bytes:
        """Return what names the file whose earlier state a record has, or the file that an undo has made again in its
        place: its identity, or its node where nodes last; empty if nothing does."""
        return tree.now(self._first_key(tree, record))

    def _first_key(self, tree: PlannedTree, record: Record) -> bytes:
        key = record.identity
        if key and not key.isdigit():
            return key
        node = record.earlier_node or int(key or 0)
        return b"%d" % node if node and record.number > tree.earlier else b""

    def _twin(self, tree: PlannedTree, record: Record) -> PlannedFile | None:
        """Return the file of a name that was one of several: it has others still, or has come back with another one,
        in this undo or before. None if it was the only one, or if the others are in no directory of the route.

        Raises:
            _NotTakenBack: it is not known which file it was, or that has lost its other names since.
        """
        assert record.before is not None, "its state is known"
        if stat.S_ISDIR(record.before.mode) or not tree.volume.features.links:
            return None
        first, had_others = self._first_key(tree, record), record.before.nlink > 1
        key = tree.now(first)
        if not had_others and not record.linked and key == first:
            return None
        made = self._made.get((tree.prefix, key))
        if made is not None and made.place is not None:
            return made
        found = self._by_node(tree, record) or tree.by_identity(key)
        if found is not None or not had_others:
            return found
        if not key or key.isdigit() or self._history.was_removed(record, {first, key}):
            raise _NotTakenBack("was one of several names of a file, and none of the others is found")
        return None

    def _is_it(self, tree: PlannedTree, record: Record, file: PlannedFile) -> bool:
        """Return True if a record of its path has changed this file. A file that had several names, or was open, may
        have been changed when it had lost that name."""
        if file.is_dir or (file.node == record.node and record.number > tree.earlier):
            return True
        key = self._key(tree, record)
        made = self._made.get((tree.prefix, key))
        if made is not None:
            return made is file
        if file.node and key and key == tree.identity(file.node):
            return True
        assert record.before is not None, "its state is known"
        return max(record.before.nlink, file.nlink) < 2 and not record.linked and self._by_node(tree, record) is None

    def _by_node(self, tree: PlannedTree, record: Record) -> PlannedFile | None:
        """Return the file of a record by its node."""
        key = self._key(tree, record)
        node = int(key) if key.isdigit() else record.earlier_node if record.number > tree.earlier else 0
        is_known = node and tree.identity(node) == key
        attr = unless(VANISHED, tree.volume.getattr, node) if is_known else None
        if attr is None:
            return None
        file = tree.file(attr)
        return file if file.place is not None or file.links else None

    def _rename(self, tree: PlannedTree, record: Record) -> None:
        old, new = tree.at(record.path), tree.at(record.to_path)
        if new is None or (old is None and new.file is not None):
            path = record.to_path if new is None else record.path
            raise _NotTakenBack("was renamed in a directory that is not there any more", path=path)
        if old is not None and old.file is not None:
            is_known = record.node and record.number > tree.earlier
            if is_known and old.file.node != record.node:
                words = f"has been made anew, since it was renamed to '{os.fsdecode(record.to_path)}'"
                raise _NotTakenBack(words, path=record.path)
            return  # as in `_make`: it was not renamed
        if new.file is None or old is None:
            raise _NotTakenBack("is not there any more")
        self._require_left(new, new.file, record)
        replaced = None if record.before is None else self._earlier(tree, record)  # a conflict before there is a step
        self.steps.append(Step("rename", tree.prefix, record.to_path, record.path, seen=new.file.seen))
        old.put(new.file)
        new.put(None)
        if replaced is not None:
            self._bring_back(tree, record, new, replaced)

    def _exchange(self, tree: PlannedTree, record: Record) -> None:
        one, other = tree.at(record.path), tree.at(record.to_path)
        if one is None or one.file is None:
            raise _NotTakenBack("is not there any more")
        if other is None or other.file is None:
            raise _NotTakenBack("is not there any more", path=record.to_path)
        if record.number > tree.earlier and record.node and one.file.node == record.node:
            return
        self._require_left(other, other.file, record)
        self.steps.append(Step("exchange", tree.prefix, record.path, record.to_path, seen=one.file.seen))
        file, other_file = one.file, other.file
        one.put(other_file)
        other.put(file)

    def _overwrite(self, tree: PlannedTree, record: Record) -> None:
        place, file, before = self._there(tree, record)
        if not file.is_regular:
            raise _NotTakenBack("is no regular file any more")
        self._require_left(place, file, record)
        source = self._source(tree, record)
        self.steps.append(Step("overwrite", tree.prefix, record.path, source=source, seen=file.seen))
        file.become(before)
        self._note_bytes(tree, file, record)

    def _attributes(self, tree: PlannedTree, record: Record) -> None:
        place, file, before = self._there(tree, record)
        self._require_left(place, file, record)
        if file not in self._closing:
            self.steps.append(Step("attributes", tree.prefix, record.path, state=before, seen=file.seen))
        file.become(before)

    def _there(self, tree: PlannedTree, record: Record) -> tuple[PlannedName, PlannedFile, State]:
        place = tree.at(record.path)
        if place is None or place.file is None or record.before is None:
            raise _NotTakenBack("is not there any more")
        if not self._is_it(tree, record, place.file):
            raise _NotTakenBack("is not the file that was changed, which had several names")
        return place, place.file, record.before

    def _require_left(self, place: PlannedName, file: PlannedFile, record: Record) -> None:
        """Raise a conflict unless the file is as the call has left it. Once a step has changed the file, or moved it to
        the path, the calls have: a stamp is of the file that had the path at the end of its call."""
        after = record.after
        if after is None or file.checked:
            return
        file.checked = True
        if file.seen is not None and not place.is_moved and not after.is_that_of(file.seen):
            raise _NotTakenBack("has changed since")

    # -- earlier bytes -------------------------------------------------------------------------------------------

    def _source(self, tree: PlannedTree, record: Record) -> Source:
        state, image = record.before, record.image
        assert state is not None, "its state is known"
        source = self._images.source(self._history, tree.volume, record)
        if source is not None:
            return source
        if image is not None and stat.S_ISREG(state.mode) and state.size:
            why = image.name if image.place == "lost" else "they are gone"
            raise _NotTakenBack(f"can't come back, for its earlier bytes were not kept: {why}")
        return KeptSource(state)

    def _merged(self, tree: PlannedTree, record: Record, first: Record) -> bool:
        """Plan for the merge of a file by lines, if there is one without a conflict.

        Its base are the bytes that the call left. They are those before the first change by another call.
        """
        path = record.earlier_path
        if record.before is None or first.before is None or first.earlier_path != path:
            return False
        if not {record.kind, first.kind} <= {"content", "rename"}:
            return False
        place = tree.at(path)
        file = None if place is None else place.file
        if file is None or file.seen is None or not file.is_regular:
            return False
        if max(file.seen.size, record.before.size, first.before.size) > MERGED_BYTES:
            return False
        base = self._images.source(self._history, tree.volume, first)
        theirs = self._images.source(self._history, tree.volume, record)
        if base is None or theirs is None:
            return False
        ours = NodeSource(tree.volume, file.node)
        merged, is_clean = merge_lines(*(whole(source) for source in (base, ours, theirs)))
        if not is_clean:
            return False
        source = BytesSource(ours.state, merged)
        self.steps.append(Step("merge", tree.prefix, path, source=source, seen=file.seen))
        file.become(source.state)
        return True


def _is_restored(found: Stamp | State, before: State) -> bool:
    """Return True if a file is the one with this state; of a directory only that it is one."""
    if stat.S_IFMT(found.mode) != stat.S_IFMT(before.mode):
        return False
    return stat.S_ISDIR(found.mode) or (found.size, found.mtime_ns) == (before.size, before.mtime_ns)


def _words_for(record: Record, other: Record) -> str:
    for path in filter(None, (other.path, other.to_path)):
        if record.path.startswith(path + b"/") or record.to_path.startswith(path + b"/"):
            return f"is below '{os.fsdecode(path)}', which was renamed since"
    if other.kind in ("create", "remove", "rename", "exchange") and other.path not in (record.path, record.to_path):
        return f"has '{os.fsdecode(other.to_path or other.path)}' in it, which was changed since"
    words = {"create": "was made anew", "remove": "was removed", "rename": "was renamed", "exchange": "was exchanged"}
    return f"{words.get(other.kind, 'was changed')} since"


class _NotTakenBack(Exception):
    """A record can't be taken back.

    Args:
        reason: continues a sentence that begins with the path.
        call: in whose way it is, if that is known.
        path: in the route; empty for that of the record, where a rename has brought the file.
    """

    def __init__(self, reason: str, call: int | None = None, path: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.call = call
        self.path = path


# -- planned tree ------------------------------------------------------------------------------------------------
#
# The tree of a route with changes in it that are not made. An undo plans against it, and a state before a call is read
# from it (`trees/earlier.py`).
#
# A name is looked up in the volume when it is first asked for. All names of one file of the volume lead to the same
# `PlannedFile`, so a change of a file with hard links is one of all of its names.


class PlannedFile:
    """A file in a `PlannedTree`; several places have it if it has hard links.

    Args:
        attr: of the file in the volume; None if a step makes it.

    Attributes:
        node: in the volume; 0 if a step has made it.
        nlink: the number of its names in the volume.
        seen: what it is in the volume, and when the steps are made; None if a step makes or changes it.
        state: what it is when the steps are made, if a step makes or changes it; see `become`.
        source, why_lost: its bytes then, of a state before a call. Both empty: those in the volume.
        checked: it was compared with what its call has left.
        links: the number of its names when the steps are made.
        names: of a directory: the places that were looked at, or that steps have changed.
        places: where it was found by its identity, or steps have put it, or those of a killed undo, the last one at the
            end. It may have left them.
    """

    __slots__ = ("checked", "links", "names", "nlink", "node", "places", "seen", "source", "state", "why_lost")

    def __init__(self, attr: Attr | None, state: State | None = None) -> None:
        self.node, self.nlink = (0, 0) if attr is None else (attr.node, attr.nlink)
        self.seen = None if attr is None else stamp_of(attr)
        self.state = state
        self.source: Source | None = None
        self.why_lost = ""
        self.checked = False
        self.links = self.nlink
        self.names: dict[bytes, PlannedName] = {}
        self.places: tuple[PlannedName, ...] = ()

    def become(self, state: State) -> None:
        """Have a step change it."""
        self.seen, self.state = None, state

    @property
    def now(self) -> Stamp | State:
        """What it is when the steps are made."""
        found = self.seen or self.state
        assert found is not None, "a file that is made has a state"
        return found

    @property
    def place(self) -> PlannedName | None:
        """The last place that has it still; None if none has."""
        return next((place for place in reversed(self.places) if place.file is self), None)

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.now.mode)

    @property
    def is_regular(self) -> bool:
        return stat.S_ISREG(self.now.mode)


@dataclass(eq=False, slots=True)
class PlannedName:
    """A name in a `PlannedTree`.

    Attributes:
        moved: a step has put another file here, or none.
    """

    above: PlannedName | None
    name: bytes
    file: PlannedFile | None
    moved: bool = False

    @property
    def path(self) -> bytes:
        parts = []
        place: PlannedName = self
        while place.above is not None:
            parts.append(place.name)
            place = place.above
        return b"/" + b"/".join(reversed(parts))

    def put(self, file: PlannedFile | None) -> None:
        """Have another file here, or none."""
        if self.file is not None:
            self.file.links -= 1
        self.file = file
        self.moved = True
        if file is not None:
            file.links += 1
            file.places += (self,)
            for below in file.names.values():
                below.above = self

    @property
    def is_moved(self) -> bool:
        """True if a step has moved the file here, or a directory above it."""
        place: PlannedName | None = self
        while place is not None and not place.moved:
            place = place.above
        return place is not None


class PlannedTree:
    """The tree of a route with the planned steps in it.

    Args:
        returned: as `HistoryFile.returned`.
        earlier: nodes in records up to this number name no file of the volume any more.

    Attributes:
        files: those that were looked at, by node.
    """

    def __init__(
        self, prefix: AgentPath, volume: Volume, returned: Callable[[], Mapping[bytes, bytes]] = dict, earlier: int = 0
    ) -> None:
        self.prefix = prefix
        self.volume = volume
        self.earlier = earlier
        self._returned = returned
        self.files: dict[int, PlannedFile] = {}
        self._paths: dict[bytes, list[bytes]] | None = None  # by identity
        self.root = PlannedName(None, b"", self.file(volume.getattr(ROOT_NODE)))

    def at(self, path: bytes) -> PlannedName | None:
        """Return the place of a path; None if its directory is not there."""
        place: PlannedName | None = self.root
        for name in filter(None, path.split(b"/")):
            known = None if place is None or place.file is None else place.file.names.get(name)
            place = known or self._below(place, name)  # a path may be thousands deep
        return place

    def _below(self, place: PlannedName | None, name: bytes) -> PlannedName | None:
        directory = None if place is None else place.file
        if directory is None or not directory.is_dir:
            return None
        if name not in directory.names:
            directory.names[name] = PlannedName(place, name, self._look(directory, name))
        return directory.names[name]

    def _look(self, directory: PlannedFile, name: bytes) -> PlannedFile | None:
        if not directory.node:
            return None
        attr = unless(VANISHED, self.volume.lookup, directory.node, name)
        return None if attr is None else self.file(attr)

    def now(self, key: bytes) -> bytes:
        """Return what names a file by now that an undo may have brought back."""
        returned, seen = self._returned(), set()
        while key in returned and key not in seen:
            seen.add(key)
            key = returned[key]
        return key

    def identity(self, node: int) -> bytes | None:
        """Return what names a file of the volume: its identity, or its node where it has none."""
        with contextlib.suppress(OSError):  # it is gone
            return self.volume.lasting(node) or b"%d" % node
        return None

    def by_identity(self, key: bytes) -> PlannedFile | None:
        """Return a file by what `lasting` says of it; None if no name in the volume leads to it."""
        for path in () if key.isdigit() or not key else self._paths_of(key):
            place = self._now_at(path)
            if place is not None and place.file is not None:
                place.file.places += (place,)
                return place.file
        return None

    def _paths_of(self, identity: bytes) -> Sequence[bytes]:
        """Return the paths of a file as the volume is now. The first call reads the whole tree."""
        if self._paths is None:
            self._paths = {}
            for path, attr in below(self.volume, ROOT_NODE):
                found = None if attr.is_dir else self.identity(attr.node)
                if found is not None:
                    self._paths.setdefault(found, []).append(path)
        return self._paths.get(identity, ())

    def _now_at(self, path: bytes) -> PlannedName | None:
        """Return the place to which the planned steps have moved what is at a path of the volume."""
        place: PlannedName | None = self.root
        for name in path.split(b"/")[1:]:
            directory = None if place is None else place.file
            place = self._below(place, name)
            if place is not None and place.moved and directory is not None:
                file = self._look(directory, name)
                place = None if file is None else file.place
        return place

    def file(self, attr: Attr) -> PlannedFile:
        """Return a file of the volume; the same one for each of its names."""
        found = self.files.get(attr.node)
        if found is None:
            found = self.files[attr.node] = PlannedFile(attr)
        return found

    def names(self, directory: PlannedFile) -> Iterator[bytes]:
        """Return the names in a directory."""
        yield from (name for name, below in directory.names.items() if below.file is not None)
        if directory.node:
            listed = entries(self.volume, directory.node)
            yield from (name for name, _ in listed if name not in directory.names)
