"""The mount tree: which volume a directory belongs to, and which names in it lead into another one.

A `Route` is a volume and where it is attached. A `Junction` is a directory with at least one name that leads to a
route: the mount's root, a route's root with a nested route below it, or a directory on the way to a prefix. Such a
way exists even where the backend underneath has no directory of that name; it then is synthesised, and made real
when something is first created in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import trio

from fusebackend.errors import oserror
from fusebackend.paths import ROOT, AgentPath, join, split, to_text
from fusebackend.protocol import ROOT_NODE, Attr, Caller, Features, Volume
from fusebackend.vfs.cache import CachePolicy
from fusebackend.vfs.inodes import SYNTHETIC_INDEX, inode_number
from fusebackend.vfs.offload import Offload

if TYPE_CHECKING:
    from fusebackend.vfs.reporting import ReportingVolume

WAY_PATIENCE_S = 1.0
"""How long the way to a route waits for another one that it leads through, before it shows what was last known."""

WAY_RETRY_S = 5.0
"""For how long that is shown before the other one is asked again."""


class Route:
    """A volume, where it is attached (`/` for the default), and how it is called and cached."""

    def __init__(
        self,
        index: int,
        prefix: AgentPath,
        volume: Volume,
        policy_of: Callable[[Features], CachePolicy],
        offload: Offload,
    ) -> None:
        self.index = index
        self.prefix = prefix
        self.volume = volume
        self.changing: Volume | ReportingVolume = volume  # for what changes something; while somebody watches, it tells
        self.shared = volume.features.shared
        self._policy_of = policy_of
        self.policy = policy_of(volume.features)
        self.offload = offload
        self.call = offload.call
        self.ask = offload.ask

    @property
    def keeps_listings(self) -> bool:
        """Does the kernel know from a directory's time whether a listing is still good? See `keptlisting.py`."""
        waits = self.offload.blocking or self.shared
        return self.policy.coherent and not waits and self.volume.features.persistent_modes

    def follow_feed(self) -> None:
        """The feed of a shared volume was lost, or is back: its features say which."""
        self.policy = self._policy_of(self.volume.features)

    def inner(self, outer: AgentPath) -> AgentPath:
        """The path inside the volume, of one of the mounted tree that belongs to this route."""
        return outer if self.prefix == ROOT else AgentPath(outer[len(self.prefix) :] or ROOT)

    def check_writable(self) -> None:
        """EROFS where nothing can be changed."""
        if self.volume.features.read_only:
            raise oserror(errno.EROFS)


class Junction:
    """A directory that routes run through. `route` is set where it is a route's root."""

    timeout_s = 0.0
    """For how long the kernel may believe one that is no route's root: it may become real unseen."""

    def __init__(self, inode: int, name: bytes, parent: Junction | None, route: Route | None) -> None:
        self.inode = inode
        self.name = name
        self.path: AgentPath = ROOT if parent is None else join(parent.path, to_text(name))
        self.parent = parent
        self.route = route
        self.children: dict[bytes, Junction] = {}
        self.attr: Attr | None = None  # what was last known, of one whose volume may hang …
        self.ask_after = 0.0  # … and when it is to be asked again, by the monotonic clock
        self.underlying: tuple[Route, int] | None = None if route is None else (route, ROOT_NODE)

    @property
    def holder(self) -> Route:
        """The route whose directory this is, or would be."""
        if self.route is not None:
            return self.route
        assert self.parent is not None, "a junction without a route has a parent"
        return self.parent.holder

    async def shown(self, synthesised: Attr) -> Attr:
        """The attributes of the junction: its directory's, or `synthesised` where it has none.

        Where the way to other routes leads through one that hangs, what was last known of that, so that it does not
        keep them waiting.
        """
        if not self.children or not self.holder.offload.blocking:
            return await self._ask(synthesised)
        if time.monotonic() >= self.ask_after:
            with contextlib.suppress(TimeoutError), trio.move_on_after(WAY_PATIENCE_S):
                self.attr = await self._ask(synthesised)
                return self.attr
            self.ask_after = time.monotonic() + WAY_RETRY_S
        return self.attr or synthesised

    async def _ask(self, synthesised: Attr) -> Attr:
        place = await self.place()
        if place is None:
            return synthesised
        route, node = place
        return await route.ask(route.volume.getattr, node)

    async def place(self, make: bool = False) -> tuple[Route, int] | None:
        """The directory under the junction: itself for a route's root, else what the backend has there, if anything.

        With `make`, the backend is given a directory when it has none.
        """
        if self.route is not None:
            return self.underlying
        assert self.parent is not None, "a junction without a route has a parent"
        above = await self.parent.place(make)
        if above is None:
            return None
        route, node = above
        try:
            attr = await route.ask(route.volume.lookup, node, self.name)
            self.underlying = (route, attr.node) if attr.is_dir else None
        except FileNotFoundError:
            self.underlying = None
            if make:
                route.check_writable()
                owner = Caller(os.geteuid(), os.getegid())
                attr = await route.call(route.changing.mkdir, node, self.name, 0o755, owner)
                self.underlying = (route, attr.node)
        return self.underlying


class MountTree:
    """All routes of a mount, and the junctions between them."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """`routes[0]` is the default, at `/`; the others follow in any order, with distinct prefixes."""
        self.routes = list(routes)
        default = self.routes[0]
        root = Junction(inode_number(default.index, ROOT_NODE), b"", None, default)
        nodes: dict[int, Junction] = {root.inode: root}
        self._synthetic = 0
        for route in sorted(self.routes[1:], key=lambda route: route.prefix.count("/")):
            junction = root
            names = split(route.prefix)
            for depth, name in enumerate(names):
                child = junction.children.get(name)
                last = depth == len(names) - 1
                if child is None:
                    inode = inode_number(route.index, ROOT_NODE) if last else self.synthetic_inode()
                    child = Junction(inode, name, junction, route if last else None)
                    junction.children[name] = child
                    nodes[inode] = child
                junction = child
        self.root = root
        self.stand_ins: Mapping[bytes, Junction] = {}
        """More names in the root, which are never listed; replaced as a whole, see `standins.py`."""
        self._junctions = nodes

    def volumes(self) -> list[tuple[Volume, list[Route]]]:
        """Each volume with the routes that have it: more than one, when it is mounted under several prefixes."""
        distinct = {id(route.volume): route.volume for route in self.routes}.values()
        return [(volume, [route for route in self.routes if route.volume is volume]) for volume in distinct]

    def synthetic_inode(self) -> int:
        """A number for a directory that is no volume's."""
        self._synthetic += 1
        return inode_number(SYNTHETIC_INDEX, self._synthetic)

    def add(self, junction: Junction) -> None:
        """One more junction, for good. Other threads may be going through those that are there."""
        self._junctions = {**self._junctions, junction.inode: junction}

    def child(self, junction: Junction, name: bytes) -> Junction | None:
        """What a name in a junction leads to, if not to something of the volume's."""
        return junction.children.get(name) or (self.stand_ins.get(name) if junction is self.root else None)

    def stands_in(self, inode: int, name: bytes) -> bool:
        """Is this name in this directory answered by a stand-in?"""
        return inode == self.root.inode and name in self.stand_ins

    def junction(self, inode: int) -> Junction | None:
        """The junction an inode is, None for every ordinary directory (and leaf route roots have no children)."""
        return self._junctions.get(inode)

    def synthetic(self) -> Iterator[Junction]:
        """The junctions that are no route's root."""
        return (junction for junction in self._junctions.values() if junction.route is None)
