"""`drop_unmade`: deletes the records of changes that a killed server has not made.

A volume that keeps snapshots has the history written before a change of it is durable (`SnapshotVolume.before_commit`),
so after a kill the history may know of more than there is: an undo would find it in its way, and a log would show it as
done. The volume keeps the number of the last record there was when its last changes became durable, with these. Of a
change through the mount, the record is one step with the change, so those with higher numbers were not made.

What a verb removes or replaces is recorded before it does so. So the records of verbs that went on at that moment, or
when the server was killed, are looked at one by one: one that the tree shows as not made was not.

A volume that keeps a log (`SnapshotVolume.keep_log`) has a record of each change that was made, in the change. There,
only the records of the calls that the kill has interrupted are looked at, for an undo and a merge record before, too.
Renames that have files change places (`mv a t; mv b a; mv t b`) are looked at together, for each alone says nothing. A
crash of its database takes changes whose records are in the history; the log names these (`drop_lost`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from fusebackend.base.merge_lines import MERGED_BYTES
from fusebackend.base.paths import AgentPath
from fusebackend.base.relative_paths import is_below
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.images import Images
from fusebackend.history.records import Record
from fusebackend.protocol import SnapshotVolume, Volume
from fusebackend.volumes.placing import NodeSource, whole
from fusebackend.volumes.walk import find

MAX_PLACES: Final = 30
"""So many renames are looked at together."""

_PLACES: Final = ("rename", "exchange")

_Verdict: TypeAlias = Literal["made", "not made", "no change", "unknown"]


def drop_unmade(
    history: HistoryFile, images: Images, volumes: Mapping[AgentPath, Volume], logged: Collection[AgentPath] = ()
) -> int:
    """Delete the records of changes that were not made. Before anything else changes. Returns their number.

    Args:
        volumes: of the routes, by prefix.
        logged: the routes whose volumes keep a log.

    Raises:
        OSError: from a volume.
    """
    dropped = 0
    for prefix, volume in volumes.items() if history.was_killed else ():
        if isinstance(volume, SnapshotVolume):
            last = _stored(history, volume)
            if last is not None and prefix not in logged:
                dropped += _drop(history, images, history.records_after(last, -1, prefix))
            dropped += _drop(history, images, _before_acting(history, images, prefix, volume, last or 0))
    return dropped


def drop_lost(history: HistoryFile, images: Images, volume: Volume, numbers: Collection[int]) -> None:
    """Delete the records with these numbers: a crash of the volume's server has taken their changes.

    A record of a file's first change by a call stays where the file was changed since: it is that of the next one.

    Raises:
        OSError: from the volume.
    """
    lost = [record for number in numbers if (record := history.record(number)) is not None]
    _drop(history, images, [
        record for record in lost
        if record.kind not in ("content", "attributes") or _verdict(history, volume, record, images) != "made"
    ])  # fmt: skip


def _drop(history: HistoryFile, images: Images, records: Sequence[Record]) -> int:
    history.drop(record.number for record in records)
    for record in records:
        images.remove(record.image)
    return len(records)


def _before_acting(
    history: HistoryFile, images: Images, prefix: AgentPath, volume: SnapshotVolume, last: int
) -> list[Record]:
    """Return the records that were made before a change which was not: in the calls that the kill has interrupted, and
    in those that went on when the `last` record was the last one with a commit."""
    doubtful: list[Record] = []
    for number in {*history.interrupted, *history.going_on(last)}:
        call = history.call(number)
        if call is not None and call.kind not in ("session", "command"):
            records = [record for record in history.records(number) if record.prefix == prefix]
            is_after = ("create", "rename") if call.kind in ("verb", "tool") else ()
            doubtful += [each for each in records if each.kind not in is_after and each.number not in history.made]
    unmade: dict[int, Record] = {}
    for record in sorted(doubtful, key=attrgetter("number"), reverse=True):
        named = {record.path, record.to_path} - {b""}
        later = [each for path in named for each in history.since(record.number, prefix, path)]
        is_last = all(each.number in unmade for each in later)
        if is_last and _verdict(history, volume, record, images) in ("not made", "no change"):
            unmade[record.number] = record
    left = [each for each in doubtful if each.number not in unmade]
    known = unmade.keys() | {each.number for each in left}
    if all(each.number in known for record in left for path in (record.path, record.to_path)
           for each in history.since(record.number, prefix, path)) and _is_before(volume, left):  # fmt: skip
        unmade |= {each.number: each for each in left}
    return list(unmade.values())


def _stored(history: HistoryFile, volume: SnapshotVolume) -> int | None:
    """Return the number of the last record when a volume has stored its last changes; None where nobody knows it. When
    a mount ends, the history is closed before the volume."""
    last = volume.committed(history.id)
    return None if last is None else max(last, history.closed)


def _verdict(history: HistoryFile, volume: Volume, record: Record, images: Images) -> _Verdict:
    """Say whether a change was made, if none that is later was."""
    if not record.node:
        return "unknown"
    there = find(volume, os.fsdecode(record.path))
    is_it = there is not None and there.node == record.node
    match record.kind:
        case "create":
            return "made" if is_it else "not made"
        case "remove":
            return "not made" if is_it else "unknown"
        case "rename" | "exchange":
            target = find(volume, os.fsdecode(record.to_path))
            is_moved = target is not None and target.node == record.node
            return "unknown" if is_it == is_moved else "not made" if is_it else "made"
    if there is None or not is_it:
        return "not made"  # nobody has removed it later, so it was not there
    state = NodeSource(volume, there.node).state
    before = record.before
    assert before is not None, "a change has the state before it"
    if record.kind == "attributes":
        same = state._replace(atime_ns=0, nlink=0) == before._replace(atime_ns=0, nlink=0)
        return "no change" if same else "made"
    if (state.size, state.mtime_ns) != (before.size, before.mtime_ns):
        return "made"
    if not stat.S_ISREG(before.mode) or record.image is None or before.size > MERGED_BYTES:
        return "unknown"
    kept = images.source(history, volume, record)
    if kept is None:
        return "unknown"
    return "no change" if whole(kept) == whole(NodeSource(volume, there.node)) else "made"


def _is_before(volume: Volume, records: Sequence[Record]) -> bool:
    """Return True if the tree has all files where they were before renames, in their order, and no tree after some of
    these renames has. False where it can't be said."""
    if not 1 < len(records) <= MAX_PLACES or any(each.kind not in _PLACES or not each.node for each in records):
        return False
    paths = {path for each in records for path in (each.path, each.to_path)}
    if any(is_below(one, other) for one in paths for other in paths):
        return False  # what is below a renamed directory has another path then
    there = {path: find(volume, os.fsdecode(path)) for path in paths}
    nodes = {path: 0 if attr is None else attr.node for path, attr in there.items()}
    fitting = [made for made in range(len(records) + 1) if _fits(nodes, records[:made], records[made:])]
    return fitting == [0]


def _fits(nodes: Mapping[bytes, int], made: Sequence[Record], left: Sequence[Record]) -> bool:
    """Return True if a tree with these nodes can be one after some renames and before others."""
    now: dict[bytes, int | None] = dict(nodes)  # 0 for nothing, None for what is not known
    for record in left:
        if now[record.path] not in (record.node, None):
            return False
        back = now[record.to_path] if record.kind == "exchange" else 0
        now[record.path], now[record.to_path] = back, record.node
    now = dict(nodes)
    for record in reversed(made):
        vacant = now[record.path] if record.kind == "exchange" else 0
        if now[record.to_path] not in (record.node, None) or now[record.path] not in (vacant, None):
            return False
        back = now[record.path] if record.kind == "exchange" else None if record.before is not None else 0
        now[record.path], now[record.to_path] = record.node, back
    return True
