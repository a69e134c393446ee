"""`InodeResolver`: inode → route and node, and the entries that the kernel gets.

It has the mount tree and the inode numbers with their lookup counts. Each entry for the kernel is made by `entry` or
`emit_entry`, which count the reference and keep the name for `watch/node_paths.py`; `forget` takes references back.

Race: a blocking volume forgets in a thread. By then the kernel may have looked a name up again and got the same node
(`fuse_queue_forget`, fs/fuse/dev.c): `open` of it would be ESTALE, and again after the kernel's one retry. So the
thread forgets only nodes without a reference. Cost: a look into a table for each. Switch: `late_forget`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any

from fusebackend.base.errors import oserror
from fusebackend.protocol import MAX_NODE, NAME_MAX_BYTES, Attr
from fusebackend.rules.ruled_volume import NODES, VARIANTS
from fusebackend.vfs.coherence.dentries import Dentries, Revalidation
from fusebackend.vfs.coherence.entry_cache import Overtaken
from fusebackend.vfs.coherence.invalidation import Twins
from fusebackend.vfs.coherence.range_order import AppendEnd
from fusebackend.vfs.inodes import (
    NODE_BITS,
    SYNTHETIC_INDEX,
    Emit,
    Entry,
    InodeTable,
    inode_number,
)
from fusebackend.vfs.junctions import MountTree, Route, call_and_hold, servers_directory
from fusebackend.vfs.setid import SET_ID, SetId


class InodeResolver:
    """See the module's docstring."""

    def __init__(
        self,
        tree: MountTree,
        inodes: InodeTable,
        dentries: Dentries,
        overtaken: Overtaken,
        revalidation: Revalidation,
        twins: Twins,
        append_end: AppendEnd,
        set_id: SetId,
        late_forget: bool,
    ) -> None:
        self.tree = tree
        self.inodes = inodes
        self.dentries = dentries
        self.overtaken = overtaken
        self.twins = twins
        self._append_end = append_end
        self._set_id = set_id
        self._marked = set_id.marked
        self._revalidation = revalidation
        self._checks_late = late_forget
        self.own_changes = 0
        """Counts the changes of names and attributes by the kernel."""
        self.synthesised = servers_directory()

    @property
    def changes(self) -> int:
        """Counts all changes of names and attributes, by the kernel and by others."""
        return self.own_changes + self.overtaken.generation

    async def forget(self, references: Iterable[tuple[int, int]]) -> None:
        """The kernel gives back (inode, count) references."""
        for route, nodes in self.let_go(references):
            if route.volume.features.blocking:
                await route.executor.give_back(self._forget_late, route, nodes)
            else:
                route.volume.forget(nodes)

    def _forget_late(self, route: Route, nodes: list[int]) -> None:
        if self._checks_late:
            nodes = [node for node in nodes if self.inodes.get(inode_number(route.index, node)) is None]
        route.volume.forget(nodes)

    def let_go(self, references: Iterable[tuple[int, int]]) -> list[tuple[Route, list[int]]]:
        """Take references back; gives the nodes that the kernel knows under no number any more, by route."""
        gone: dict[int, list[int]] = {}
        forgotten = self.inodes.forget(references)
        self.dentries.forget(forgotten)
        for inode in forgotten:
            gone.setdefault(inode >> NODE_BITS, []).append(inode & MAX_NODE)
        gone.pop(SYNTHETIC_INDEX, None)
        routes = self.tree.attached
        for index, nodes in gone.items():
            volume = routes[index].files.volume
            family = [route for route in routes if route.files.volume is volume]
            if len(family) > 1 or routes[index].is_ruled:
                gone[index] = self._unknown(family, nodes)
        return [(routes[index], nodes) for index, nodes in gone.items()]

    def _unknown(self, family: list[Route], nodes: list[int]) -> list[int]:
        """Return those of the nodes of these routes' volume that the kernel knows by none of their inodes. Through a
        view a file may have several, as rules have restricted it in different ways (`VARIANTS`)."""
        mask = NODES if any(route.is_ruled for route in family) else MAX_NODE
        known_as = [
            inode_number(route.index, bits) for route in family for bits in (VARIANTS if route.is_ruled else (0,))
        ]
        known = self.inodes.get
        return [node for node in nodes if not any(known(number | node & mask) for number in known_as)]

    async def place(self, inode: int, make: bool = False) -> tuple[Route, int]:
        """The route and node of an inode. ENOENT for a synthesised directory, unless `make` may make it real."""
        index = inode >> NODE_BITS
        if index != SYNTHETIC_INDEX:
            return self.tree.attached[index], inode & MAX_NODE
        junction = self.tree.junction(inode)
        assert junction is not None, f"inode {inode} is no junction"
        place = await junction.place(make)
        if place is None:
            raise oserror(errno.ENOENT)
        return place

    async def place_for_name(self, parent: int, name: bytes, *, prunes: bool = False) -> tuple[Route, int]:
        """Where a change of a name happens. EBUSY for a name that leads to a junction.

        Args:
            prunes: a directory is removed.
        """
        if self._revalidation.walks:
            self._revalidation.arrived()
        if len(name) > NAME_MAX_BYTES:
            raise oserror(errno.ENAMETOOLONG)
        junction = self.tree.junction(parent)
        if junction is not None:
            if self.tree.child(junction, name) is not None:
                raise oserror(errno.EBUSY, name)
            if name == junction.servers_name:
                raise oserror(errno.EPERM, name)
        place = await self.place(parent, make=True)
        if not (prunes and place[0].volume.features.prunable):
            place[0].check_writable()
        self.own_changes += 1
        return place

    async def create_entry(
        self, route: Route, node: int, parent: int, name: bytes, function: Callable[..., Attr], *args: Any
    ) -> Entry:
        """Have the volume create a name in a directory, and return its entry.

        Args:
            route, node, parent: the directory, by its node and inode.
            function, args: the call into the volume.
        """
        generation = self.overtaken.generation
        attr = await route.call(call_and_hold, route.volume, function, *args)
        entry = self.entry(route, parent, name, attr, generation)
        if self.inodes.beside:
            await self.twins.names_changed(route, (node, name))
        return entry

    def entry(self, route: Route, parent: int, name: bytes, attr: Attr, generation: int) -> Entry:
        """Return the entry of a name, and count the reference that the kernel gets with it.

        Args:
            generation: `Overtaken.generation` from before the volume was asked.
        """
        if route.files is not route:
            self.twins.note_names(route, parent, (name,))
        entry = self._referenced(route, parent, name, attr, generation)
        self._keep(route, parent, name, entry)
        return entry

    def emit_entry(
        self, route: Route, parent: int, name: bytes, attr: Attr, generation: int, emit: Emit, following: int
    ) -> bool:
        """Emit one readdirplus entry. Returns False, and takes the reference back, if the kernel's buffer is full.

        `Twins.note_names` precedes it.
        """
        entry = self._referenced(route, parent, name, attr, generation)
        if not emit(name, entry, following):
            self.inodes.forget([(entry.inode, 1)])  # and no more than that: nothing was held for it
            return False
        self._keep(route, parent, name, entry)
        return True

    def _referenced(self, route: Route, parent: int, name: bytes, attr: Attr, generation: int) -> Entry:
        directory = parent
        if route.files is route:
            inode = route.index << NODE_BITS | attr.node
        else:
            inode, parent = route.numbers(attr, parent)
        known = self.inodes.reference(inode, parent, name, attr)
        if attr.size != known.size:
            self._append_end.size_sent(inode, known, attr.size)
        if attr.mode & SET_ID or self._marked:
            self._set_id.attr_sent(inode, attr)
        timeout_s = route.policy.timeout(attr) if route.shared else route.policy.timeout_s
        is_restricted = route.is_ruled and attr.node > NODES
        if is_restricted or attr.is_brief or (self.twins.contended and self.twins.is_contended(directory)):
            timeout_s = 0.0
        return self.overtaken.checked(Entry(inode, attr, timeout_s), generation)

    def _keep(self, route: Route, parent: int, name: bytes, entry: Entry) -> None:
        inode = entry.inode
        holder = route if inode >> NODE_BITS == route.index else route.files  # as in `let_go`
        holder.volume.hold(inode & MAX_NODE)  # perhaps again: a forget may have overtaken the answer of a thread
        if route.shared:
            self.dentries.found((parent, name), entry.inode)

    def attr_sent(self, inode: int, attr: Attr) -> None:
        """Note the attributes that the kernel gets of an inode, if it knows the inode."""
        known = self.inodes.get(inode)
        if known is None:
            return
        if attr.size != known.size:
            self._append_end.size_sent(inode, known, attr.size)
        if attr.mode & SET_ID or self._marked:
            self._set_id.attr_sent(inode, attr)
