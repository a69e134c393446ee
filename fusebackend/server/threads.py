"""The verbs `weigh_threads` and `prune_threads`: the space of checkpoint databases that are mounted.

Each has a connection of its own to the database, so that the mount goes on meanwhile. A pruning is a call of the log,
with one change for each thread: of its `checkpoints.tsv`, which loses lines and whose bytes nobody has kept. An undo of
it is refused for that.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from fusebackend.backends.threads.line import CHECKPOINTS
from fusebackend.backends.threads.prune import Keep, largest_first, prune, weighed
from fusebackend.backends.threads.volume import ThreadsVolume
from fusebackend.base import paths
from fusebackend.base.paths import AgentPath, normalise
from fusebackend.history.recorder import Recorder
from fusebackend.history.records import Image, Kept, State
from fusebackend.protocol import PrunedThread, ThreadSize, Volume
from fusebackend.trees.refs import time_ns
from fusebackend.volumes.walk import names_of

OnProgress: TypeAlias = Callable[[str, int, int], None]

BEFORE: Final = State(stat.S_IFREG | 0o444, 0, 0, 0, 1, 1, 0, 0, {}, b"")
"""Some file with some bytes."""

PRUNED: Final = Kept(0, BEFORE, Image("lost", "what was pruned is gone for good"))


def weigh_threads(volumes: Mapping[AgentPath, Volume], given: Sequence[str], by: str | None) -> list[ThreadSize]:
    """See `MountProtocol.weigh_threads`. `volumes` are those of the routes, by prefix."""
    found: list[ThreadSize] = []
    for _, volume, names in _chosen(volumes, given):
        with contextlib.closing(volume.tables()) as tables:
            found += weighed(tables, volume.threads_named(names), by)
    return largest_first(found)


def prune_threads(
    volumes: Mapping[AgentPath, Volume],
    recorder: Recorder | None,
    given: Sequence[str],
    keep: int | None,
    older: str | None,
    keep_steps: Sequence[str],
    *,
    dry_run: bool,
    vacuum: bool,
    on_progress: OnProgress,
) -> list[PrunedThread]:
    """See `MountProtocol.prune_threads`."""
    if (keep is None) == (older is None) or (keep is not None and keep < 1):
        raise ValueError("give one of 'keep', at least 1, and 'older'")
    chosen = Keep(keep or 1, None if older is None else time_ns(older), frozenset(keep_steps))
    recorder, found = None if dry_run else recorder, []
    with contextlib.ExitStack() as stack:
        title = f"prune_threads {' '.join(given)}"
        call = None if recorder is None else stack.enter_context(recorder.calls.inside("verb", title))

        def tell(prefix: AgentPath, name: bytes, thread: str, done: int, total: int) -> None:
            if recorder is not None and call is not None and not done:  # before anything of the thread goes
                path = b"/".join((b"", name, CHECKPOINTS))
                recorder.history.add(recorder.calls.number(call), prefix, "content", path, PRUNED)
            on_progress(thread, done, total)

        for prefix, volume, names in _chosen(volumes, given):
            with contextlib.closing(volume.tables()) as tables:
                for thread, name in volume.threads_named(names).items():
                    progress = partial(tell, prefix, name, thread)
                    found.append(prune(tables, thread, chosen, dry_run=dry_run, on_progress=progress))
                if vacuum and not dry_run:
                    tables.vacuum()
            volume.pruned()
    return found


def _chosen(
    volumes: Mapping[AgentPath, Volume], given: Sequence[str]
) -> Iterator[tuple[AgentPath, ThreadsVolume, list[bytes]]]:
    """The routes of threads that these paths name, each with the names of threads in it, none for all of them."""
    if not given:
        raise ValueError("which threads?")
    for path in map(normalise, given):
        prefix, inner = paths.in_route(path, volumes)
        volume = volumes[prefix]
        if not isinstance(volume, ThreadsVolume):
            raise OSError(errno.ENOTSUP, f"'{path}' is in no route of threads")
        names = names_of(inner)
        if len(names) > 1:
            raise ValueError(f"'{path}' is neither a thread nor a route of threads")
        yield prefix, volume, names
