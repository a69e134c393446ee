"""`drop_unmade`: deletes the records of changes that a killed server has not made.

A volume that keeps snapshots has the history written before a change of it is durable (`SnapshotVolume.before_commit`),
so after a kill the history may know of more than there is: what it has more are the last changes of the volume, for
these become durable in their order. An undo would find them in its way, and a log would show them as done.

The records are looked at from the last to the first. The first one that was made ends that. One that the tree shows as
not made was not, and with it all later ones. One that the tree may show in both cases, such as the removal of a file
that is not there, waits for an earlier one to decide; until then, so do those that touch its paths. A file that has the
bytes and attributes from before its record is no change, made or not: nothing follows from it for others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from fusebackend.base.errors import VANISHED
from fusebackend.base.paths import AgentPath
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.images import Images
from fusebackend.history.records import Image, Record
from fusebackend.history.undo_plan import MERGED_BYTES, image_source, whole
from fusebackend.protocol import Attr, SnapshotVolume, Volume
from fusebackend.volumes.placing import NodeSource
from fusebackend.volumes.walk import resolve

MAX_UNDECIDED: Final = 1000
"""After so many records in a row that decide nothing, these are left as they are."""

PAGE: Final = 200

_Verdict: TypeAlias = Literal["made", "not made", "no change", "unknown"]


def drop_unmade(history: HistoryFile, images: Images, volumes: Mapping[AgentPath, Volume]) -> int:
    """Delete the records of changes that were not made. Before anything else changes. Returns their number.

    Args:
        volumes: of the routes, by prefix.

    Raises:
        OSError: from a volume.
    """
    dropped = 0
    for prefix, volume in volumes.items() if history.was_killed else ():
        if isinstance(volume, SnapshotVolume):
            found = _unmade(history, images.path, prefix, volume)
            history.drop(record.number for record in found)
            for record in found:
                images.remove(record.image)
            dropped += len(found)
    return dropped


def _unmade(
    history: HistoryFile, image_path: Callable[[Image], str], prefix: AgentPath, volume: Volume
) -> list[Record]:
    unmade: list[Record] = []
    undecided: list[Record] = []
    paths: set[bytes] = set()  # of undecided records
    for record in _backwards(history, prefix):
        named = {record.path, record.to_path} - {b""}
        verdict = _verdict(volume, record, image_path) if not _touches(named, paths) else "unknown"
        if verdict == "made" or len(undecided) > MAX_UNDECIDED:
            break
        if verdict == "unknown":
            undecided.append(record)
            paths |= named
        elif verdict == "no change":
            unmade.append(record)
        else:
            unmade += [*undecided, record]
            undecided.clear()
            paths.clear()
    return unmade


def _backwards(history: HistoryFile, prefix: AgentPath) -> Iterator[Record]:
    below: int | None = None
    while page := history.newest(prefix, below, PAGE):
        yield from page
        below = page[-1].number


def _touches(named: set[bytes], paths: set[bytes]) -> bool:
    """Return True if one of the paths is, is below or is above one of the others."""
    return any(
        one == other or one.startswith(other.rstrip(b"/") + b"/") or other.startswith(one.rstrip(b"/") + b"/")
        for one in named
        for other in paths
    )


def _verdict(volume: Volume, record: Record, image_path: Callable[[Image], str]) -> _Verdict:
    """Say whether a change was made, if none that is later was."""
    if not record.node:
        return "unknown"
    there = _at(volume, record.path)
    is_it = there is not None and there.node == record.node
    match record.kind:
        case "create":
            return "made" if is_it else "not made"
        case "remove":
            return "not made" if is_it else "unknown"
        case "rename" | "exchange":
            target = _at(volume, record.to_path)
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
    kept = image_source(volume, image_path, before, record.image)
    if kept is None:
        return "unknown"
    return "no change" if whole(kept) == whole(NodeSource(volume, there.node)) else "made"


def _at(volume: Volume, path: bytes) -> Attr | None:
    try:
        return resolve(volume, os.fsdecode(path), follow=False).attr
    except OSError as error:
        if error.errno in VANISHED or isinstance(error, NotADirectoryError):
            return None
        raise
