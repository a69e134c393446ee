"""`Places`: where in the volumes a request happens, and what the kernel is told of what is there.

It has the mount tree and the inode numbers with their lookup counts. Whatever gives the kernel an entry goes through
`entry` or `give`, which count it and keep the name for `watch/node_paths.py`; whatever the kernel gives back through
`forget`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import NAME_MAX_BYTES, ROOT_NODE, Attr, Features, Volume
from fusebackend.vfs.calls.executor import Offload
from fusebackend.vfs.calls.route_limits import DEFAULT_DEADLINE_S, DEFAULT_MAX_CALLS, RouteLimits
from fusebackend.vfs.coherence.append_end import AppendEnd
from fusebackend.vfs.coherence.dentries import Dentries
from fusebackend.vfs.coherence.overtaken import Overtaken
from fusebackend.vfs.coherence.revalidation import Revalidation
from fusebackend.vfs.coherence.timeouts import CachePolicy
from fusebackend.vfs.coherence.twins import Twins
from fusebackend.vfs.inodes import (
    SYNTHETIC_INDEX,
    Emit,
    Entry,
    InodeTable,
    inode_number,
    node_of,
    route_index,
)
from fusebackend.vfs.junctions import Junction, MountTree, Route, servers_directory
from fusebackend.vfs.setid import SET_ID, SetId


class Places:
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
    ) -> None:
        self.tree = tree
        self.inodes = inodes
        self.dentries = dentries
        self.overtaken = overtaken
        self.twins = twins
        self._append_end = append_end
        self._set_id = set_id
        self._armed = set_id.armed
        self._revalidation = revalidation
        self.own_changes = 0
        """How many changes of names and attributes the kernel has asked for."""
        self.synthesised = servers_directory()

    @property
    def changes(self) -> int:
        """Grows with every change of any name or attribute, whoever makes it."""
        return self.own_changes + self.overtaken.heard

    async def forget(self, references: Iterable[tuple[int, int]]) -> None:
        """The kernel gives back (inode, count) references."""
        for route, nodes in self.let_go(references):
            if route.volume.features.blocking:
                await route.call(self._forget_late, route, nodes)
            else:
                await route.call(route.volume.forget, nodes)

    def _forget_late(self, route: Route, nodes: list[int]) -> None:
        """Race: a blocking volume forgets in a thread, and by then the kernel may have looked a name up again and been
        given the same number: `open` of that would be ESTALE, and again after the kernel's one more try."""
        known = self.inodes.get
        route.volume.forget([node for node in nodes if known(inode_number(route.index, node)) is None])

    def let_go(self, references: Iterable[tuple[int, int]]) -> list[tuple[Route, list[int]]]:
        """Take references back; gives the nodes that the kernel knows under no number any more, by route."""
        gone: dict[int, list[int]] = {}
        forgotten = self.inodes.forget(references)
        if len(self.dentries):
            self.dentries.forget(forgotten)
        for inode in forgotten:
            gone.setdefault(route_index(inode), []).append(node_of(inode))
        gone.pop(SYNTHETIC_INDEX, None)
        routes = self.tree.attached
        for index, nodes in gone.items():
            volume = routes[index].volume
            twins = [route.index for route in routes if route.volume is volume and route.index != index]
            if twins:
                known = self.inodes.get
                gone[index] = [
                    node for node in nodes if not any(known(inode_number(twin, node)) for twin in twins)
                ]
        return [(routes[index], nodes) for index, nodes in gone.items()]

    async def place(self, inode: int, make: bool = False) -> tuple[Route, int]:
        """The route and node of an inode. ENOENT for a synthesised directory, unless `make` may make it real."""
        index = route_index(inode)
        if index != SYNTHETIC_INDEX:
            return self.tree.attached[index], node_of(inode)
        junction = self.tree.junction(inode)
        assert junction is not None, f"inode {inode} is no junction"
        place = await junction.place(make)
        if place is None:
            raise oserror(errno.ENOENT)
        return place

    async def place_for_name(self, parent: int, name: bytes) -> tuple[Route, int]:
        """Where a change of a name happens. EBUSY for a name that leads to a junction."""
        self._revalidation.arrived()
        check_name(name)
        junction = self.tree.junction(parent)
        if junction is not None:
            if self.tree.child(junction, name) is not None:
                raise oserror(errno.EBUSY, name)
            if junction.is_servers(name):
                raise oserror(errno.EPERM, name)
        place = await self.place(parent, make=True)
        place[0].check_writable()
        self.own_changes += 1
        return place

    def junction_timeout(self, junction: Junction) -> float:
        return junction.route.policy.timeout_s if junction.route is not None else junction.timeout_s

    async def made(self, route: Route, parent: int, name: bytes, function: Callable[..., Attr], *args: Any) -> Entry:
        """The entry of a name that a call into a volume makes; see `Route.take`."""
        heard = self.overtaken.heard
        return self.entry(route, parent, name, await route.take(function, *args), heard)

    def entry(self, route: Route, parent: int, name: bytes, attr: Attr, heard: int) -> Entry:
        """What the kernel is given of a name, with one more reference to the inode.

        Args:
            heard: `Overtaken.heard` from before the volume was asked. From here on the inode is one that the
                kernel is told of.
        """
        entry = self._referenced(route, parent, name, attr, heard)
        self._keep(route, parent, name, entry)
        return entry

    def give(
        self, route: Route, parent: int, name: bytes, attr: Attr, heard: int, emit: Emit, following: int
    ) -> bool:
        """Emit what `entry` gives, with the position after it, if there is room for it."""
        entry = self._referenced(route, parent, name, attr, heard)
        if not emit(name, entry, following):
            self.inodes.forget([(entry.inode, 1)])  # and no more than that: nothing was held for it
            return False
        self._keep(route, parent, name, entry)
        return True

    def _referenced(self, route: Route, parent: int, name: bytes, attr: Attr, heard: int) -> Entry:
        directory = parent
        if route.files is route:
            inode = inode_number(route.index, attr.node)
        else:
            inode, parent = route.number(attr), route.above(attr, parent)
            self.twins.given(directory, name)
        known = self.inodes.reference(inode, parent, name, attr)
        if attr.size != known.size:
            self._append_end.told(inode, known, attr.size)
        if attr.mode & SET_ID or self._armed:
            self._set_id.told(inode, attr)
        timeout_s = route.policy.timeout(attr) if route.shared else route.policy.timeout_s
        if self.twins.contended and self.twins.is_contended(directory):
            timeout_s = 0.0
        return self.overtaken.checked(Entry(inode, attr, timeout_s), heard)

    def _keep(self, route: Route, parent: int, name: bytes, entry: Entry) -> None:
        route.volume.hold(node_of(entry.inode))  # perhaps again: a forget may have overtaken the answer of a thread
        if route.shared:
            self.dentries.found((parent, name), entry.inode)

    def told(self, inode: int, attr: Attr) -> None:
        """The kernel is told these attributes of an inode, if it knows it."""
        known = self.inodes.get(inode)
        if known is None:
            return
        if attr.size != known.size:
            self._append_end.told(inode, known, attr.size)
        if attr.mode & SET_ID or self._armed:
            self._set_id.told(inode, attr)


def check_name(name: bytes) -> None:
    if len(name) > NAME_MAX_BYTES:
        raise oserror(errno.ENAMETOOLONG)


def routes_of(
    volumes: dict[AgentPath, Volume], ttl_s: float, limits: Mapping[AgentPath, RouteLimits], others: RouteLimits
) -> list[Route]:
    """A route for each volume, the default first.

    Args:
        volumes, ttl_s, limits: as for `FileSystem`.
        others: the limits of routes for which nothing is said.
    """
    routes = []
    for index, prefix in enumerate([ROOT, *sorted(prefix for prefix in volumes if prefix != ROOT)]):
        volume = volumes[prefix]
        features = volume.features
        alone = list(volumes.values()).count(volume) == 1
        policy_of = partial(_policy, alone, ttl_s if volume.ttl_s is None else volume.ttl_s)
        own = limits.get(prefix, RouteLimits()).or_else(others)
        name = "The default backend" if prefix == ROOT else f"Route '{prefix}/'"
        probe = partial(volume.readdir, ROOT_NODE, b"", 1)
        offload = Offload(
            features.blocking,
            own.deadline_s or DEFAULT_DEADLINE_S,
            max_calls=own.max_calls or DEFAULT_MAX_CALLS,
            name=name,
            probe=probe,
            volume=volume,
        )
        routes.append(Route(index, prefix, volume, policy_of, offload))
    return routes


def _policy(alone: bool, ttl_s: float, features: Features) -> CachePolicy:
    """Of a volume under two prefixes, a change under one shows late under the other."""
    return CachePolicy.of(features if alone else replace(features, change_feed=False), ttl_s)
