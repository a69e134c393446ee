"""What a mount takes of the disk, and the deletion of its past: the verbs `df` and `prune`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from fusebackend.protocol import LimitInfo, PruneResult, SnapshotVolume, SpaceInfo, Usage
from fusebackend.server.history import MountHistory
from fusebackend.trees.automatic import time_of
from fusebackend.trees.snapshots import Snapshots


def space(snapshots: Snapshots, past: MountHistory, branch_bytes: int, usages: Mapping[str, Usage]) -> SpaceInfo:
    """Return what a mount takes of the disk. Files are those of routes that keep snapshots; others are not counted:
    that would be a walk of all their files.

    Args:
        usages: of the routes with limits.
    """
    volumes: list[SnapshotVolume] = list(snapshots.distinct.values())
    kept = sum(volume.snapshot_bytes() for volume in volumes)
    live = sum(_used_bytes(volume) for volume in volumes) - kept if volumes else None
    automatic, named = _by_kind(snapshots)
    goes = kept if automatic and not named else 0
    limits = [_limit(route, usage) for route, usage in usages.items()]
    reclaimable = goes + past.image_bytes + past.log_bytes
    return SpaceInfo(live, kept, past.image_bytes, branch_bytes, past.log_bytes, reclaimable, limits)


def _limit(route: str, usage: Usage) -> LimitInfo:
    used_bytes, limit_bytes, used_files, limit_files = usage
    left_bytes = None if limit_bytes is None else max(0, limit_bytes - used_bytes)
    left_files = None if limit_files is None else max(0, limit_files - used_files)
    return LimitInfo(route, used_bytes, limit_bytes, left_bytes, used_files, limit_files, left_files)


def prune(snapshots: Snapshots, past: MountHistory, *, dry_run: bool) -> PruneResult:
    """Delete the automatic snapshots and the calls that have ended, with the bytes that they replaced."""
    automatic, _ = _by_kind(snapshots)
    calls = past.forgettable()
    going = PruneResult(automatic, len(calls), past.image_bytes)
    if dry_run:
        return going
    past.forget(calls)
    going.bytes -= past.image_bytes
    if automatic:
        with contextlib.suppress(FileNotFoundError):  # the policy has deleted one just now
            snapshots.delete(automatic)
    return going


def _used_bytes(volume: SnapshotVolume) -> int:
    disk = volume.statfs()
    return (disk.blocks - disk.blocks_free) * disk.block_bytes


def _by_kind(snapshots: Snapshots) -> tuple[list[str], list[str]]:
    """Return the names of automatic snapshots, and those of others."""
    found = [each.name for each in snapshots.all()]
    automatic = [name for name in found if time_of(name) is not None]
    return automatic, [name for name in found if time_of(name) is None]
