"""`Forgetting`: the verb `forget`: the contents of paths leave everything that is kept of the past.

These are the snapshots and branches of a mount, the bytes that its history keeps for undo, the search indexes, and what
the files of volumes, of branches and of the history still hold of deleted rows. The files as they are now stay, and so
do the calls of the log with their changes. A file is followed by its node: a version that had another name goes too.

Each step is durable when the next one begins, and finds nothing to do when it is repeated: after an error or a kill the
same call does the rest.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence

from fusebackend.base import paths
from fusebackend.base.paths import ROOT, AgentPath, to_name, to_text
from fusebackend.history.history_file import ASIDE
from fusebackend.history.recorder import Recorder
from fusebackend.history.records import Record
from fusebackend.protocol import Attr, AttrChanges, ForgetResult, SnapshotVolume, Volume
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.branches import Branches
from fusebackend.volumes import placing
from fusebackend.volumes.walk import ANY_BYTES, below, find, resolve

BELOW: str = (
    "free blocks and snapshots of the file systems below, backups, and the earlier versions that a bucket, a store"
    " or another backend keeps by itself"
)
"""Where bytes may still be, that no server of ours can reach."""


class Forgetting:
    """See the module's docstring.

    Args:
        volumes: of the routes, by prefix.
        recorder: of the history; None if there is none.
        branches: of the mount.
    """

    def __init__(self, volumes: Mapping[AgentPath, Volume], recorder: Recorder | None, branches: Branches) -> None:
        self._volumes = volumes
        self._recorder = recorder
        self._branches = branches

    def forget(self, given: Sequence[str], *, dry_run: bool) -> ForgetResult:
        """Forget all versions of what is, or was, at and below these paths.

        Raises:
            ValueError: a path is malformed.
            OSError: of volumes, and of the files of history and branches.
        """
        chosen = [paths.normalise(path) for path in given]
        result = ForgetResult([*chosen])
        records: dict[int, Record] = {}
        nodes: dict[AgentPath, set[int]] = {prefix: set() for prefix in self._volumes}
        snapshots: set[str] = set()
        for path in chosen:
            recorder = self._recorder
            changes = [] if recorder is None else recorder.history.at(_kept_at(recorder, path))
            kept = {each.number: each for each in changes}
            records |= kept
            is_known = bool(kept)
            for prefix, inner in self._routes(path):
                there = self._live(prefix, inner)
                result.live += [each if prefix == ROOT else (prefix + each).rstrip("/") for each in there]
                nodes[prefix] |= set(there.values())
                found, names = self._in_snapshots(prefix, inner)
                nodes[prefix] |= found
                snapshots |= names
                is_known |= bool(found) or find(self._volumes[prefix], inner) is not None
                nodes[prefix] |= self._recorded(prefix, kept.values())
            touched = self._in_branches(path, dry_run=True)
            result.branches += [name for name in touched if name not in result.branches]
            if not is_known and not touched:
                result.unknown.append(path)
        result.snapshots = sorted(snapshots)
        result.images = sum(each.image is not None and each.image.place != "lost" for each in records.values())
        if not dry_run:
            self._do(result, chosen, nodes)
        return result

    def _do(
        self, result: ForgetResult, chosen: Sequence[AgentPath], nodes: Mapping[AgentPath, Collection[int]]
    ) -> None:
        if self._recorder is not None:
            images = self._recorder.images
            below = images.next_number()
            everywhere = [part for path in chosen for part in _kept_at(self._recorder, path)]
            all_nodes = dict(nodes)
            for prefix, branch in self._recorder.beside.items():
                assert isinstance(branch, BranchVolume), "nothing else is recorded beside the routes"
                all_nodes[prefix] = {each for route in nodes for each in branch.nodes_of(route, nodes[route])}
            self._recorder.history.forget_contents(everywhere, all_nodes)
            images.clean(self._recorder.history, below)
            aside = self._recorder.history.path + ASIDE
            result.left += [f"'{aside}', a history that can't be read; delete it"] if os.path.exists(aside) else []
        for path in chosen:  # while the snapshots below them have the names
            self._in_branches(path, dry_run=False)
        same: dict[SnapshotVolume, list[AgentPath]] = {}
        for prefix, volume in self._volumes.items():
            if isinstance(volume, SnapshotVolume) and self._concerns(chosen, prefix):
                same.setdefault(volume.kept_by, []).append(prefix)
        for keeper, prefixes in same.items():
            going = [each for each in prefixes if not self._volumes[each].features.read_only]
            if going:
                result.left += keeper.forget_versions(set().union(*(nodes[each] for each in going)))
            else:
                result.left.append(f"snapshots of route '{prefixes[0]}', which is read-only here")
        for _, branch in self._opened():  # also for what they have deleted
            branch.forget_versions(())
        broken = self._branches.broken
        result.left += [f"branch '{name}', which can't be opened; 'branch delete' removes its files" for name in broken]
        result.left.append(BELOW)

    # -- finding -----------------------------------------------------------------------------------------------

    @staticmethod
    def _concerns(given: Sequence[str], prefix: AgentPath) -> bool:
        return any(paths.is_below(path, prefix) or paths.is_below(prefix, path) for path in given)

    def _routes(self, path: AgentPath) -> Iterator[tuple[AgentPath, str]]:
        """The routes that a path is in or above, each with the path inside it."""
        owner, inner = paths.in_route(path, self._volumes)
        yield owner, inner
        for prefix in self._volumes:
            if prefix != owner and paths.is_below(prefix, path):
                yield prefix, "/"

    def _live(self, prefix: AgentPath, inner: str) -> dict[str, int]:
        volume = self._volumes[prefix]
        # In a volume without snapshots a node means nothing later on.
        if not isinstance(volume, SnapshotVolume):
            found = find(volume, inner)
            return {} if found is None or found.is_dir else {inner: 0}
        return _files(volume, inner)

    def _in_snapshots(self, prefix: AgentPath, inner: str) -> tuple[set[int], set[str]]:
        """The nodes of files at a path in all snapshots, and the names of those that have any."""
        volume = self._volumes[prefix]
        nodes: set[int] = set()
        names: set[str] = set()
        if not isinstance(volume, SnapshotVolume):
            return nodes, names
        for taken in volume.snapshots():
            with contextlib.suppress(FileNotFoundError):  # deleted just now
                found = _files(volume.snapshot(taken.name), inner)
                nodes |= set(found.values())
                names |= {taken.name} if found else set()
        return nodes, names

    def _recorded(self, prefix: AgentPath, records: Collection[Record]) -> set[int]:
        """The nodes of files that changes at a path name. Those of directories are left out."""
        volume = self._volumes[prefix]
        if not isinstance(volume, SnapshotVolume):
            return set()
        found = set()
        for record in records:
            if record.prefix != prefix:
                continue
            if record.image is not None and record.image.node:
                found.add(record.image.node)
            if record.node and record.after is not None and (record.after.mode & 0o170000) != 0o040000:
                found.add(record.node)
        return found

    # -- branches ----------------------------------------------------------------------------------------------

    def _in_branches(self, path: AgentPath, *, dry_run: bool) -> list[str]:
        """Remove the files that branches have of their own at a path; returns the names of these branches."""
        touched = []
        for name, branch in self._opened():
            own = [each for each, node in _files(branch, path).items() if branch.is_own(node)]
            if own or branch.keeps_bytes_of(path):
                touched += [] if name in touched else [name]
            if dry_run:
                continue
            for each in own:
                with branch.changing() as changes:
                    place = resolve(branch, each, follow=False, most_bytes=ANY_BYTES)
                    _empty(branch, place.found)  # the kernel may keep the node for a while
                    placing.remove(branch, place.parent, place.name, place.found, changes, each)
            branch.forget_bytes_of(path)
        return touched

    def _opened(self) -> list[tuple[str, BranchVolume]]:
        """The branches, each before its base."""
        return [*self._branches.opened.items(), *self._branches.bases.items()]


def _kept_at(recorder: Recorder, path: AgentPath) -> list[AgentPath]:
    """A path of the mount, and the same one in each branch whose changes are recorded."""
    return [path, *(prefix if path == ROOT else AgentPath(prefix + path) for prefix in recorder.beside)]


def _empty(branch: BranchVolume, attr: Attr) -> None:
    """Take the bytes and extended attributes of a file away."""
    node = attr.node
    if stat.S_ISREG(attr.mode):
        if branch.has_own_bytes(node):  # else they would be copied first, from a live file that may be gone
            branch.setattr(node, AttrChanges(size=0))
        for name in branch.listxattr(node):
            branch.removexattr(node, name)


def _files(volume: Volume, path: str) -> dict[str, int]:
    """Return the files at and below a path, with their nodes; directories are left out."""
    found, top = find(volume, path), path.rstrip("/")
    if found is None or not found.is_dir:
        return {} if found is None else {top: found.node}
    return {to_text(inner): attr.node for inner, attr in below(volume, found.node, to_name(top)) if not attr.is_dir}
