"""Three trees in memory for merges: a base, a branch and main, changed by the same kinds of steps, and compared."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from fusebackend.backends.memory import InMemoryBackend
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import ROOT_NODE, Attr, AttrChanges, Caller, SnapshotVolume, Volume
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.branches import Branches
from fusebackend.trees.merge.plan import Plan, Side, plan
from fusebackend.trees.merge.run import Merge, Outcome
from fusebackend.trees.merge.sides import trees_of
from fusebackend.trees.merge.tree import Item, MergeTree
from fusebackend.trees.snapshots import Snapshots
from fusebackend.volumes import placing
from fusebackend.volumes.contents import opened
from fusebackend.volumes.walk import entries

OWNER = Caller(os.geteuid(), os.getegid())


class File(NamedTuple):
    """Everything of a file that a merge carries over."""

    type: int
    mode: int
    data: bytes
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


Shown: TypeAlias = dict[bytes, File]


def memory() -> SnapshotVolume:
    volume = InMemoryBackend().volume
    assert isinstance(volume, SnapshotVolume)
    return volume


def walk(volume: Volume, node: int = ROOT_NODE, path: bytes = b"") -> Iterable[tuple[bytes, Attr]]:
    """All files below a directory, by their path. A directory comes before what is in it."""
    for name, attr in list(entries(volume, node)):
        here, is_dir, below = path + b"/" + name if path else name, attr.is_dir, attr.node
        yield here, attr
        if is_dir:
            yield from walk(volume, below, here)


def content(volume: Volume, attr: Attr) -> bytes:
    if stat.S_ISLNK(attr.mode):
        return volume.readlink(attr.node)
    if not stat.S_ISREG(attr.mode):
        return b""
    with opened(volume, attr.node, os.O_RDONLY) as node:
        data = b""
        while piece := volume.read(node, len(data), 1 << 20):
            data += piece
        return data


def shown(volume: Volume, *, modes: bool = True) -> Shown:
    """Return all files of a volume."""
    found = {}
    for path, attr in walk(volume):
        state = placing.state_of(volume, volume.getattr(attr.node))
        mode = stat.S_IMODE(state.mode) if modes and not stat.S_ISLNK(state.mode) else 0
        xattrs = tuple(sorted(state.xattrs.items())) if modes else ()
        found[path] = File(stat.S_IFMT(state.mode), mode, content(volume, attr), xattrs)
    return found


def links(volume: Volume) -> set[frozenset[bytes]]:
    """Return the sets of names that lead to one file, of files with several."""
    found: dict[int, set[bytes]] = {}
    for path, attr in walk(volume):
        if not attr.is_dir:
            found.setdefault(attr.node, set()).add(path)
    return {frozenset(names) for names in found.values() if len(names) > 1}


def at(volume: Volume, path: bytes) -> Attr:
    attr = volume.getattr(ROOT_NODE)
    for name in path.split(b"/") if path else ():
        attr = volume.lookup(attr.node, name)
    return attr


def place(volume: Volume, path: bytes) -> tuple[int, bytes]:
    above, _, name = path.rpartition(b"/")
    return at(volume, above).node, name


def write(volume: Volume, path: bytes, data: bytes, mode: int = 0o644) -> None:
    """Make a file, or overwrite one in place."""
    parent, name = place(volume, path)
    try:
        node = volume.lookup(parent, name).node
    except FileNotFoundError:
        node = volume.mknod(parent, name, stat.S_IFREG | mode, 0, OWNER).node
    with opened(volume, node, os.O_WRONLY) as handle:
        volume.setattr(handle, AttrChanges(size=0))
        if data:
            volume.write(handle, 0, data)
        if not volume.features.random_writes:
            volume.flush(handle)


def replace(volume: Volume, path: bytes, data: bytes) -> None:
    """Write a new file, and rename it over another one, as editors do."""
    parent, name = place(volume, path)
    write(volume, path + b".new", data)
    volume.rename(parent, name + b".new", parent, name)


def mkdir(volume: Volume, path: bytes, mode: int = 0o755) -> None:
    volume.mkdir(*place(volume, path), mode, OWNER)


def symlink(volume: Volume, path: bytes, target: bytes) -> None:
    volume.symlink(*place(volume, path), target, OWNER)


def link(volume: Volume, path: bytes, new: bytes) -> None:
    volume.link(at(volume, path).node, *place(volume, new))


def rename(volume: Volume, path: bytes, new: bytes) -> None:
    volume.rename(*place(volume, path), *place(volume, new))


def chmod(volume: Volume, path: bytes, mode: int) -> None:
    volume.setattr(at(volume, path).node, AttrChanges(mode=mode))


def remove(volume: Volume, path: bytes) -> None:
    """Remove a file, or a directory with all that is in it."""
    attr = at(volume, path)
    parent, name = place(volume, path)
    if not attr.is_dir:
        volume.unlink(parent, name)
        return
    for below, _ in list(entries(volume, attr.node)):
        remove(volume, path + b"/" + below)
    volume.rmdir(parent, name)


def copy(source: Volume, target: Volume) -> dict[int, int]:
    """Copy all files of a volume into an empty one; returns the nodes of the source by those of the copy."""
    nodes = {ROOT_NODE: ROOT_NODE}
    twins: dict[int, int] = {}
    for path, attr in walk(source):
        node = attr.node
        parent, name = place(target, path)
        if node in twins and not attr.is_dir:
            target.link(twins[node], parent, name)
            continue
        twins[node] = placing.make(target, parent, name, placing.NodeSource(source, node), [], "").attr.node
        nodes[twins[node]] = node
    return nodes


class Three:
    """A base, a branch and main. Main is the volume that the base is a snapshot of, and the branch a copy of the base.

    Args:
        make: fills the base.
        knows_nodes: the trees share keys, so that renames are seen.
    """

    def __init__(self, make: Callable[[Volume], Any], *, knows_nodes: bool = True) -> None:
        self.main = memory()
        make(self.main)
        self.main.take_snapshot("base")
        self.base = self.main.snapshot("base")
        self.branch = memory()
        self._nodes = copy(self.base, self.branch)
        self._knows_nodes = knows_nodes

    def trees(self) -> tuple[MergeTree, MergeTree, MergeTree]:
        """Return base, branch and main, to be read anew."""

        def key(prefix: AgentPath, node: int) -> object:
            return node if self._knows_nodes else None

        def branch_key(prefix: AgentPath, node: int) -> object:
            return self._nodes.get(node, ("new", node)) if self._knows_nodes else None

        return (
            MergeTree({ROOT: self.base}, key_of=key),
            MergeTree({ROOT: self.branch}, key_of=branch_key),
            MergeTree({ROOT: self.main}, key_of=key),
        )


def everything(item: Item) -> bool:
    return True


class Hidden:
    """A directory of routes that nobody sees."""

    def attach(self, name: str, volume: Volume) -> None:
        """Show nothing."""

    def detach(self, name: str) -> None:
        """Show nothing."""


class Branched:
    """A branch over volumes, as a mount has it.

    Args:
        directory: of its file.
        volumes: prefix → volume, filled.
        create: False for a branch that is there.
    """

    def __init__(self, directory: str, volumes: Mapping[str, Volume], *, create: bool = True) -> None:
        self.volumes = {AgentPath(prefix): volume for prefix, volume in volumes.items()}
        self.directory = directory
        self.branches: Branches
        self.open()
        if create:
            self.branches.create("b")

    def open(self) -> None:
        snapshots = Snapshots(self.volumes)
        self.branches = Branches(self.directory, self.volumes, snapshots, Hidden())  # type: ignore[arg-type]
        self.branches.open()

    @property
    def branch(self) -> BranchVolume:
        return self.branches.volume("b")

    @property
    def main(self) -> Volume:
        """The default route."""
        return self.volumes[ROOT]

    def close(self) -> None:
        self.branches.close()

    def plan(self, keep: Side | None = None, lines: bool = False, *, whole: bool = False) -> Plan:
        """Plan a merge; `whole` compares all files, not only those that the branch says to have changed."""
        base, branch, main, may_differ = trees_of(self.branch, self.volumes)
        return plan(base, branch, main, keep=keep, lines=lines, may_differ=everything if whole else may_differ)

    def merge(self, keep: Side | None = None, lines: bool = False) -> Outcome:
        journal = f"{self.directory}/b.merge"
        return Merge("b", self.volumes, lambda: self.plan(keep, lines), journal, follow=self.branch.follow).run()

    def all(self, *, modes: bool = True) -> Shown:
        """Return the files of all routes by their path in the mount."""
        found: Shown = {}
        for prefix, volume in self.volumes.items():
            for path, file in shown(volume, modes=modes).items():
                found[os.fsencode(prefix).strip(b"/") + b"/" + path if prefix != ROOT else path] = file
        return found
