"""Pruning of a thread: which checkpoints stay, and their deletion while agents run.

`plan` decides from the outline of a thread, without a database. A delta channel's value is stored at some checkpoints
only, and follows from the writes since: where a checkpoint goes that others follow from, savers rebuild an empty state
without an error. So two kinds of checkpoints stay: *whole* ones, which read as before, and *links* on the way from
these to stored values.

A link keeps only the channels for which a whole checkpoint looks at it: their values, versions and writes. What it has
it has rightly, for all that these follow from is kept as well; a channel that it has lost has no version there, so that
LangGraph finds nothing instead of too little, and is named in its metadata (`pruned`), and as an error in `history/`.
Links can't be hidden: savers list a thread by the namespace in which they look for ancestors. Of a deepagents thread's
295 checkpoints pruned to 10, 105 are links, because of 50 versions of files; 1.6 of their 3.2 MB were conversations.

`prune` deletes the newest first, with a checkpoint's writes, and the blobs that nothing else needs, in one transaction:
after a kill all that is left reads as before, and the next plan has the rest. A portion that a new checkpoint follows
from is not deleted, but planned again.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fusebackend.backends.threads.conversation import BLOBS
from fusebackend.backends.threads.database.activity import INTERRUPT, TASKS
from fusebackend.backends.threads.database.rows import Damaged, Database, Outline, Place, Portion, time_ns_of
from fusebackend.backends.threads.database.sql import SaverTables
from fusebackend.protocol import PrunedThread, ThreadSize

YOUNG_NS: Final = 600 * 10**9
"""Younger checkpoints stay: a run may be at them."""

PORTION_S: Final = 0.03
"""How long a transaction should take; a writer waits for one, and as long again is left to it."""

MOST_AT_ONCE: Final = 64
"""Checkpoints in a transaction."""

MOST_PLANS: Final = 10
"""Of one thread, when others go on from what is about to go."""

_SENDS_IN_STATE: Final = 4
"""From this version of the format on, a checkpoint has its own sends; before, its parent's writes have them."""


class Keep(NamedTuple):
    """Which checkpoints of a thread's own line are chosen."""

    newest: int = 1
    """So many of the newest ones; with 0 nothing is chosen, and the whole thread goes …"""
    since_ns: int | None = None
    """… those made since then, in nanoseconds since 1970 …"""
    steps: frozenset[str] = frozenset()
    """… and those of these ids."""


@dataclass
class PrunePlan:
    """What goes of a thread, and what stays for which reason."""

    portions: list[tuple[Place, list[Portion]]] = field(default_factory=list)
    """By line, sub-graphs first; the newest checkpoint first."""
    whole: set[tuple[str, str]] = field(default_factory=set)
    """Namespace and id of checkpoints that read as before."""
    links: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """Those that stay for others, with the channels that these look for."""
    bytes: int = 0
    """Of all that goes."""
    held_bytes: int = 0
    """Of the links."""

    @property
    def checkpoints(self) -> int:
        """How many go."""
        return sum(portion.left is None for _, portions in self.portions for portion in portions)


def plan(lines: Mapping[Place, Sequence[Outline]], keep: Keep, now_ns: int) -> PrunePlan:
    """Decide what goes of a thread.

    Args:
        lines: all lines of one thread.
        now_ns: the time, in nanoseconds since 1970.
    """
    result = PrunePlan()
    by_id = {(place.namespace, row.id): row for place, rows in lines.items() for row in rows}
    if not any(namespace == "" for namespace, _ in by_id):
        return result
    own = sorted(id_ for (namespace, id_), row in by_id.items() if namespace == "" and not row.is_partial)
    chosen = {("", id_) for id_ in [*own[max(0, len(own) - keep.newest) :], *keep.steps.intersection(own)]}
    parents = {(namespace, row.parent) for (namespace, _), row in by_id.items()}
    newest = {namespace: max(row.id for row in rows) for (_, namespace), rows in lines.items() if rows}
    for key, row in by_id.items():
        made_ns = time_ns_of(row.id, row.ts)
        if row.is_partial:
            continue
        recent = made_ns is None or made_ns > now_ns - YOUNG_NS
        since = keep.since_ns is not None and made_ns is not None and made_ns >= keep.since_ns and key[0] == ""
        waits = INTERRUPT in row.writes and key not in parents
        # A sub-graph with a checkpointer of its own has no task's id in its namespace, and goes on where it was.
        goes_on = keep.newest and ":" not in key[0] and row.id == newest[key[0]]
        if recent or since or waits or goes_on:
            chosen.add(key)
            if waits:
                chosen.update(named for named in row.parents.items() if named in by_id)
    _with_subgraphs(chosen, by_id)
    result.whole = chosen
    for place, rows in lines.items():
        result.links |= _links(place.namespace, rows, chosen)
    for place in sorted(lines, key=lambda place: place.namespace, reverse=True):
        portions = _portions(place.namespace, lines[place], chosen, result.links)
        if portions:
            result.portions.append((place, portions))
            result.bytes += sum(portion.bytes for portion in portions)
    going = {(place.namespace, portion.id): portion.bytes for place, some in result.portions for portion in some}
    result.held_bytes = sum(by_id[key].bytes - going.get(key, 0) for key in result.links)
    return result


def _with_subgraphs(chosen: set[tuple[str, str]], by_id: Mapping[tuple[str, str], Outline]) -> None:
    """Add the checkpoints of sub-graphs that ran at chosen ones, and of their own sub-graphs."""
    started: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key, row in by_id.items():
        for named in row.parents.items():
            started.setdefault(named, []).append(key)
    following = list(chosen)
    while following:
        for key in started.get(following.pop(), ()):
            if key not in chosen:
                chosen.add(key)
                following.append(key)


def _links(
    namespace: str, rows: Sequence[Outline], chosen: Collection[tuple[str, str]]
) -> dict[tuple[str, str], frozenset[str]]:
    """The checkpoints that whole ones of a line follow from, and in which channels: for each delta channel, down to its
    nearest stored value, or to the root; and the parent that holds the sends of a checkpoint in an old format."""
    by_id = {row.id: row for row in rows}
    deltas = frozenset().union(*(row.deltas for row in rows))
    found: dict[str, set[str]] = {}
    for row in rows:
        if (namespace, row.id) not in chosen:
            continue
        if row.version < _SENDS_IN_STATE and row.parent in by_id and TASKS in by_id[row.parent].writes:
            found.setdefault(row.parent, set()).add(TASKS)
        wanted = {channel for channel in deltas if channel in row.versions and not row.stores(channel)}
        following, met = row.parent, {row.id}
        while wanted and following in by_id and following not in met:
            met.add(following)
            found.setdefault(following, set()).update(wanted)
            wanted = {channel for channel in wanted if not by_id[following].stores(channel)}
            following = by_id[following].parent
    return {(namespace, id_): frozenset(left) for id_, left in found.items() if (namespace, id_) not in chosen}


def _portions(
    namespace: str,
    rows: Sequence[Outline],
    whole: Collection[tuple[str, str]],
    links: Mapping[tuple[str, str], frozenset[str]],
) -> list[Portion]:
    """What goes of each checkpoint, the newest first."""
    uses = Counter(blob for row in rows for blob in row.versions.items())
    orphans: dict[str, list[str]] = {}
    for row in rows:
        if row.parent is not None and ((namespace, row.id) in whole or (namespace, row.id) in links):
            orphans.setdefault(row.parent, []).append(row.id)
    portions = []
    for row in sorted(rows, key=lambda row: row.id, reverse=True):
        left = links.get((namespace, row.id))
        goes = {*row.versions, *row.values, *row.writes} - (left or set())
        if (namespace, row.id) in whole or (left is not None and not goes):
            continue
        versions = {blob for blob in row.versions.items() if blob[0] in goes}
        uses.subtract(versions)
        blobs = {blob: row.blobs[blob[0]] for blob in versions if not uses[blob] and blob[0] in row.blobs}
        inside = row.bytes if left is None else sum(row.values.get(name, 0) + row.writes.get(name, 0) for name in goes)
        portions.append(
            Portion(
                row.id,
                left,
                [] if left is None else sorted(goes & row.writes.keys()),
                orphans.get(row.id, []) if left is None else [],
                list(blobs),
                inside + sum(blobs.values()),
            )
        )
    return portions


def prune(
    database: SaverTables,
    thread: str,
    keep: Keep,
    *,
    dry_run: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    now_ns: Callable[[], int] = time.time_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> PrunedThread:
    """Delete the checkpoints of a thread but for those to keep, and for those that these need.

    Args:
        dry_run: delete nothing.
        on_progress: is called before the first portion, and after each, with the checkpoints that are gone, and all
            that go.

    Raises:
        OSError: ENOENT, there is no such thread; EROFS; EBUSY, others keep going on from what is to go; EIO, a
            checkpoint can't be read, such as an encrypted one, and nothing was deleted.
    """
    done = freed = 0
    for _ in range(MOST_PLANS):
        lines = _lines(database, thread)
        going = plan(lines, keep, now_ns())
        last = {place: max(row.id for row in rows) for place, rows in lines.items() if rows}
        total, stale = done + going.checkpoints, False
        if going.portions and not dry_run and not done:
            on_progress(0, total)
        for place, portions in () if dry_run else going.portions:
            at_once, left = 1, portions
            while left and not stale:
                began = time.monotonic()
                stale = not database.remove(place, left[:at_once], last[place])
                took_s = time.monotonic() - began
                if not stale:
                    done += sum(portion.left is None for portion in left[:at_once])
                    freed += sum(portion.bytes for portion in left[:at_once])
                    left = left[at_once:]
                    on_progress(done, total)
                    at_once = min(MOST_AT_ONCE, max(1, min(at_once * 2, int(at_once * PORTION_S / max(took_s, 1e-6)))))
                    if left:
                        sleep(min(took_s, PORTION_S))  # or no writer that polls for the lock would get it
        if not stale:
            if dry_run:
                done, freed = going.checkpoints, going.bytes
            return PrunedThread(thread, done, freed, len(going.whole), len(going.links), going.held_bytes)
    raise OSError(errno.EBUSY, f"others go on from checkpoints of thread {thread!r} that are to go")


def _lines(database: SaverTables, thread: str) -> Mapping[Place, Sequence[Outline]]:
    try:
        lines = database.outline(thread)
    except Damaged as error:
        raise OSError(errno.EIO, f"thread '{thread}' was left as it is: {error}") from None
    if not any(lines.values()):
        raise OSError(errno.ENOENT, f"there is no thread '{thread}'")
    return lines


def remove(
    database: SaverTables, thread: str, checkpoint: str | None = None, now_ns: Callable[[], int] = time.time_ns
) -> None:
    """Delete a thread, or one of its checkpoints.

    Raises:
        OSError: as `prune`; EBUSY, something of it has to stay.
    """
    lines = _lines(database, thread)
    own = {row.id for row in lines.get(Place(thread, ""), ())}
    keep = Keep(0) if checkpoint is None else Keep(1, steps=frozenset(own - {checkpoint}))
    going = plan(lines, keep, now_ns())
    stays = going.whole if checkpoint is None else {("", checkpoint)} & (going.whole | going.links.keys())
    if stays:
        raise OSError(errno.EBUSY, "others follow from it, it waits for an answer, or a run may be at it")
    prune(database, thread, keep, now_ns=now_ns)


def media_in(directory: str) -> dict[str, int]:
    """The sizes of the media that deepagents keeps in a directory, by digest; the largest first."""
    with os.scandir(directory) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))


def with_media(
    database: SaverTables, sizes: Sequence[ThreadSize], by: str | None, media: Mapping[str, int]
) -> tuple[list[ThreadSize], dict[str, int]]:
    """The sizes of threads with the media that each names, as a part of it or, without `by`, in the whole; and those
    that no thread names."""
    named = {thread: media.keys() & database.media(thread) for thread, _ in database.threads()}
    beside = {thread: sum(media[digest] for digest in digests) for thread, digests in named.items()}
    if by is None:
        found = [replace(one, bytes=one.bytes + beside.get(one.thread, 0)) for one in sizes]
    else:
        found = [
            *sizes,
            *(ThreadSize(thread, beside.get(thread, 0), BLOBS) for thread in {one.thread for one in sizes}),
        ]
    unnamed = media.keys() - frozenset().union(*named.values())
    return largest_first(found), {digest: size for digest, size in media.items() if digest in unnamed}


def largest_first(sizes: Iterable[ThreadSize]) -> list[ThreadSize]:
    """Sizes in the order in which they are shown."""
    return sorted(sizes, key=lambda one: (-one.bytes, one.thread, one.name or ""))


def weighed(database: Database, threads: Collection[str], by: str | None) -> list[ThreadSize]:
    """The sizes of threads, of all where none is given, or of the parts of each: the largest first."""
    sizes: Counter[tuple[str, str | None]] = Counter()
    single = next(iter(threads)) if len(threads) == 1 else None
    for (thread, name), size in database.weigh(by or "namespace", single).items():
        if not threads or thread in threads:
            sizes[thread, name if by else None] += size
    return largest_first(ThreadSize(thread, size, name) for (thread, name), size in sizes.items())
