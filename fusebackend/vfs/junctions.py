"""The mount tree: which volume a directory belongs to, and which names in it lead into another one.

A `Route` is a volume and where it is attached. A `Junction` is a directory with at least one name that leads to a
route: a tree's root, a route's root with a nested route below it, or a directory on the way to a prefix. Such a
way exists even where the backend underneath has no directory of that name; it then is synthesised, and made real
when something is first created in it. A pinned one is the server's own: never real, and never changed.

The trees directory, `/.fusebackend` in the root of the main tree, is the server's. One place makes it: `MountTree`, by
`TreesOptions`. A feature adds what it shows there: a computed file (`MountTree.files`), a directory of its own
(`MountTree.add_directory`), with the trees in it, or a volume (`MountTree.add_route`). In the other trees its name does
not exist.

A mount has its main tree, and others beside it (`FileSystem.add_tree`). Each tree has a root, and routes and junctions
of its own: for the kernel gives a directory one dentry, and moves it where the directory is found in two places
(`d_splice_alias`). Routes of different trees that show the same live files are *twins*: they share volume, limits and
cache policy, and the inode numbers of everything that is no directory, so that locks, mappings and the page cache meet.

The kernel goes through junctions, one name at a time. For a whole path, see `MountTree.table`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import trio

from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath, is_below, join, parent_and_name, split, to_name, to_text
from fusebackend.composite.route_table import PrefixTable
from fusebackend.protocol import DEFAULT_TTL_S, MAX_NODE, ROOT_NODE, Attr, Caller, Features, Volume
from fusebackend.rules.rule import Operation
from fusebackend.rules.ruled_volume import LINKED, NODES, RuledVolume, own_bits
from fusebackend.rules.view import View
from fusebackend.vfs.calls.executor import RouteExecutor
from fusebackend.vfs.coherence.entry_cache import ENDLESS_TIMEOUT_S, CachePolicy
from fusebackend.vfs.door import ChangeListener, Door
from fusebackend.vfs.inodes import NODE_BITS, SYNTHETIC_INDEX, inode_number
from fusebackend.vfs.options import DEFAULT_DEADLINE_S, DEFAULT_MAX_CALLS, RouteLimits, TreesOptions
from fusebackend.vfs.pseudo_files import PseudoFiles, own_attr

if TYPE_CHECKING:
    from fusebackend.vfs.watch.node_paths import NodePaths

PRIVATE_NAME = b"private"
"""The directory of trees for the server's own use, such as the root of commands, below the trees directory: not listed,
so that `find` does not walk all files again, and closed to other users."""

VIEWS_NAME = b"views"
"""The directory of the views, below the trees directory."""

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
        executor: RouteExecutor,
        files: Route | None = None,
    ) -> None:
        self.index = index  # of its directories' inode numbers
        self.files: Route = files or self
        """The twin by whose index everything else is numbered."""
        self.twins: tuple[Route, ...] = ()
        """The others with the same live files, in other trees; replaced as a whole."""
        self.prefix = prefix
        self.volume = volume
        self.is_ruled = isinstance(volume, RuledVolume)
        self.door: Volume | Door = volume
        """What the kernel's changes go through: the volume itself while no listener follows them, see `listen`."""
        self._listeners: dict[str, ChangeListener] = {}
        self.is_recorded = False
        """The history follows its changes, in all trees; see `FileSystem.record`."""
        self.undo: Literal["instant", "copies", "none"] = "none"
        """How bytes are kept that a call replaces: in snapshots, in copies, or not at all."""
        self.shared = volume.features.shared
        self._policy_of = policy_of
        self.policy = policy_of(volume.features)
        self.executor = executor
        self.call = executor.call
        self.ask = executor.ask

    def twin(self, index: int, view: View | None = None) -> Route:
        """The same live files, for another tree: as they are, or through a view."""
        volume = self.volume
        if view is not None:  # its changes go on through this route, which records and reports them
            volume = RuledVolume(volume, view, self.prefix, changed=lambda: cast("Volume", self.door))
        return Route(index, self.prefix, volume, self._policy_of, self.executor, self.files)

    @property
    def is_view(self) -> bool:
        """True if another route records and reports the changes of this one."""
        return self.is_ruled and self.files is not self

    @property
    def hides(self) -> bool:
        """True of a view that hides names: files with several names have numbers of their own in it."""
        return isinstance(self.volume, RuledVolume) and self.is_view and self.volume.view.hides

    def is_restricted(self, node: int) -> bool:
        """True of a file that rules restrict. Its number is of its own, and the kernel caches nothing of it."""
        return self.is_ruled and node > NODES

    def listen(self, name: str, listener: ChangeListener | None, names: NodePaths) -> None:
        """Have a listener follow the changes of this route, in place of the one of this name; None: nobody."""
        there = {each: other for each, other in self._listeners.items() if each != name}
        self._listeners = there if listener is None else {**there, name: listener}
        self.door = Door(self, names, tuple(self._listeners.values())) if self._listeners else self.volume

    @property
    def listening_errors(self) -> list[str]:
        """The listeners that have failed, and why, for `status`."""
        return [f"{name}: {each.error}" for name, each in self._listeners.items() if each.error is not None]

    def lasting_number(self, node: int) -> int:
        """Return the `st_ino` of a restricted file. A second name restricts a file that was the main tree's inode, and
        leaves its `st_ino`: git fails if a file has another one once it has linked it (builtin/clone.c)."""
        if own_bits(node) == LINKED:
            return inode_number(self.files.index, node & NODES)
        return inode_number(self.index, node)

    def numbers(self, attr: Attr, parent: int) -> tuple[int, int]:
        """Return the inode number of a node of the volume, and the directory in which it was found: by a number that is
        the same in all trees, if it is a file."""
        files = self.files
        if stat.S_ISDIR(attr.mode) or (self.is_ruled and attr.node > NODES):
            files = self
        elif files is not self and parent >> NODE_BITS == self.index:
            parent = files.index << NODE_BITS | parent & MAX_NODE
        return files.index << NODE_BITS | attr.node, parent

    @property
    def keeps_listings(self) -> bool:
        """True if a directory's time tells the kernel whether a listing is valid. See `listing.py`."""
        waits = self.executor.blocking or self.shared
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


def routes_of(
    volumes: dict[AgentPath, Volume], ttl_s: float, limits: Mapping[AgentPath, RouteLimits], deadline_s: float
) -> list[Route]:
    """A route for each volume, the default first. Arguments as for `FileSystem`."""
    routes = []
    for index, prefix in enumerate([ROOT, *sorted(prefix for prefix in volumes if prefix != ROOT)]):
        volume = volumes[prefix]
        own = limits.get(prefix, RouteLimits())
        alone = list(volumes.values()).count(volume) == 1
        name = "The default backend" if prefix == ROOT else f"Route '{prefix}/'"
        routes.append(_route(index, prefix, volume, name, own.deadline_s or deadline_s, own.max_calls, ttl_s, alone))
    return routes


def _route(
    index: int,
    prefix: AgentPath,
    volume: Volume,
    name: str,
    deadline_s: float = DEFAULT_DEADLINE_S,
    max_calls: int | None = None,
    ttl_s: float = DEFAULT_TTL_S,
    alone: bool = True,
) -> Route:
    """A route with the calls and the cache policy that its volume needs. `alone`: the volume has no other prefix."""
    ttl_s = ttl_s if volume.ttl_s is None else volume.ttl_s
    policy_of = partial(CachePolicy.of, ttl_s=ttl_s, alone=alone)
    calls = max_calls or DEFAULT_MAX_CALLS
    executor = RouteExecutor(volume.features.blocking, volume, deadline_s, max_calls=calls, name=name)
    return Route(index, prefix, volume, policy_of, executor)


def call_and_hold(volume: Volume, function: Callable[..., Attr], *args: Any) -> Attr:
    """Call into a volume for a node that the kernel will hold, and hold it before anyone can free it."""
    # Of a shared volume, the lock does not keep another host from freeing it.
    with contextlib.nullcontext() if volume.features.shared else volume.lock:
        attr = function(*args)
        volume.hold(attr.node)
        return attr


class Junction:
    """A directory that routes run through.

    A *pinned* one is the server's: no volume of a backend has it, and neither it nor a name in it can be changed. A
    lookup finds it. No notice ever drops its name, so that the kernel keeps it, and with it the file system that a
    sandbox has mounted there.

    Args:
        route: of which it is the root, if it is one's. A pinned one's has the files in it, and is read-only.
        pinned: the attributes of a pinned one.
        listed: listings of the directory above show it. None: only if a route is below, so that `find /` in a sandbox
            shows files, and does not go through the system's directories.
    """

    servers_name: bytes = b""
    """Of the root of a tree: the name in it that is not the volume's. In the main tree it leads to the trees directory,
    elsewhere to nothing."""

    def __init__(
        self,
        inode: int,
        name: bytes,
        parent: Junction | None,
        route: Route | None,
        pinned: Attr | None = None,
        listed: bool | None = True,
    ) -> None:
        self.inode = inode
        self.name = name
        self.path: AgentPath = ROOT if parent is None else join(parent.path, to_text(name))
        self.parent = parent
        self.route = route
        self.holder: Route = route or parent.holder  # type: ignore[union-attr]  # the root of a tree is a route's
        """The route that has this directory, or would have it."""
        self.pinned = pinned
        self._listed = listed
        self.children: dict[bytes, Junction] = {}
        self.attr: Attr | None = None  # the last answer, of one whose volume may hang …
        self.ask_after = 0.0  # … and the time of the next question, by the monotonic clock
        self.underlying: tuple[Route, int] | None = None if route is None else (route, ROOT_NODE)

    @property
    def is_listed(self) -> bool:
        """True if listings of the directory above show it."""
        return bool(self.children) if self._listed is None else self._listed

    async def attributes(self, synthesised: Attr) -> tuple[Attr, float]:
        """Return the attributes of the junction, its directory's or `synthesised` where it has none, and the entry and
        attribute timeout: 0 except for roots of routes, as a way may become real without a notice.

        If its volume hangs, the last attributes: other routes below it must not wait.
        """
        if self.pinned is not None:
            return self.pinned, ENDLESS_TIMEOUT_S
        attr: Attr | None = None
        if not self.children or not self.holder.executor.blocking:
            attr = await self._ask(synthesised)
        elif time.monotonic() >= self.ask_after:
            with contextlib.suppress(TimeoutError), trio.move_on_after(WAY_PATIENCE_S):
                attr = self.attr = await self._ask(synthesised)
            if attr is None:
                self.ask_after = time.monotonic() + WAY_RETRY_S
        timeout_s = self.route.policy.timeout_s if self.route is not None else 0.0
        return attr or self.attr or synthesised, timeout_s

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
        if self.pinned is not None:
            if make:
                raise oserror(errno.EPERM)
            return None
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
                attr = await route.call(route.door.mkdir, node, self.name, 0o755, owner)
                self.underlying = (route, attr.node)
        return self.underlying


def servers_directory(permissions: int = 0o755) -> Attr:
    """Attributes of a directory that is no volume's."""
    return own_attr(0, stat.S_IFDIR | permissions, time.time_ns())


class MountTree:
    """All routes of a mount, in all of its trees, and the junctions between them.

    Trees are added by any thread while others read, so each table is replaced as a whole.
    """

    def __init__(self, routes: Iterable[Route], trees: TreesOptions | None = None) -> None:
        """`routes[0]` is the default, at `/`; the others follow in any order, with distinct prefixes."""
        self.routes = list(routes)
        """Those of the main tree."""
        self.table = PrefixTable(route.prefix for route in self.routes if route.prefix != ROOT)
        """Which of them has a path, for the mount as for agents."""
        self._by_prefix = {route.prefix: route for route in self.routes}
        options = trees or TreesOptions()
        self.files = PseudoFiles()
        """The files of the trees directory."""
        self.on_interrupt: Callable[[Route, View, AgentPath | None, int, Operation], None] | None = None
        """Told of a change in a view that is refused, and that an approval could allow a verb; see `RuledVolume`."""
        self.trees_path: AgentPath | None = None if options.shown == "off" else join(ROOT, options.name)
        """Where the trees directory is for users and agents, if it is."""
        # Without one, the root of commands still has to be somewhere: below a random name.
        self._servers_name = to_name(options.name if self.trees_path else f".fusebackend-{secrets.token_hex(16)}")
        servers_path = join(ROOT, to_text(self._servers_name))
        own = _route(len(self.routes), servers_path, self.files, "The trees directory")
        self.attached = [*self.routes, own]
        """Those of all trees, by their index."""
        self.beside: dict[AgentPath, Route] = {}
        """Routes in the trees directory by their prefix, see `add_route`; replaced as a whole."""
        self._synthetic = 0
        self._junctions: dict[int, Junction] = {}
        self.junction: Callable[[int], Junction | None] = self._junctions.get
        """Gives the junction an inode is, None for every ordinary directory (and leaf route roots have no children)."""
        self.ways: list[Junction] = []
        """The junctions that stand for a directory of a volume, where that has one."""
        self.root = self.grow(self.routes)
        inode, attr = inode_number(own.index, ROOT_NODE), self.files.getattr(ROOT_NODE)
        self.servers = Junction(inode, self._servers_name, self.root, own, attr, options.shown == "visible")
        """The trees directory, in the main tree."""
        self.add({self.servers.inode: self.servers})
        self.private = self.add_directory(PRIVATE_NAME, 0o700, listed=False)
        """The directory for `PRIVATE_NAME`; its children are trees."""

    @property
    def volume_at(self) -> dict[AgentPath, Volume]:
        """The volumes of the main tree, by the prefixes of their routes."""
        return {route.prefix: route.volume for route in self.routes}

    def grow(self, routes: Sequence[Route], pinned: Collection[bytes] = ()) -> Junction:
        """A new tree, of routes as for the constructor; returns its root.

        Args:
            pinned: names in the root that are the server's. A route that has such a name is not in the tree; one below
                it is, at the end of a way that is the server's, too.
        """
        root = Junction(inode_number(routes[0].index, ROOT_NODE), b"", None, routes[0])
        root.servers_name = self._servers_name
        nodes = {root.inode: root}

        def put(child: Junction, parent: Junction) -> Junction:
            parent.children[child.name] = nodes[child.inode] = child
            return child

        for name in pinned:
            put(Junction(self.synthetic_inode(), name, root, None, servers_directory(), None), root)
        for route in sorted(routes[1:], key=lambda route: route.prefix.count("/")):
            *way, last = split(route.prefix)
            junction = root
            for name in way:
                junction = junction.children.get(name) or put(self._way(name, junction), junction)
            if last not in junction.children:
                put(Junction(inode_number(route.index, ROOT_NODE), last, junction, route), junction)
        self.add(nodes)
        return root

    def _way(self, name: bytes, parent: Junction) -> Junction:
        pinned = None if parent.pinned is None else servers_directory()
        return Junction(self.synthetic_inode(), name, parent, None, pinned, None)

    def add_directory(
        self, name: bytes, permissions: int = 0o555, listed: bool = True, holds_routes: bool = False
    ) -> Junction:
        """Add a directory to the trees directory, until the mount ends. In any thread, one at a time.

        Args:
            name: of the directory.
            permissions: its mode. 0o700 closes it to other users than the server's.
            listed: listings of the trees directory show it.
            holds_routes: there will be routes in it; where listings of the main tree's root show the trees directory,
                they don't show this one, see `add_route`.

        Raises:
            ValueError: there is a directory of that name.
        """
        if name in self.servers.children:
            raise ValueError(f"there is a directory '{to_text(name)}' already")
        listed = listed and not (holds_routes and self.servers.is_listed)
        made = Junction(self.synthetic_inode(), name, self.servers, None, servers_directory(permissions), listed)
        self.add({made.inode: made})
        self.servers.children = {**self.servers.children, name: made}
        return made

    def add_route(self, name: bytes, volume: Volume, deadline_s: float, directory: Junction | None = None) -> Route:
        """Attach a volume in the trees directory, until `remove_route`. In any thread, one at a time.

        Where listings of the main tree's root show the trees directory, its own do not show the volume: `find` would
        walk all of it.

        Args:
            name: of its root.
            volume: reports every change to `subscribe`.
            deadline_s: as for `FileSystem`.
            directory: where, as `add_directory` has made it; the trees directory when None.

        Raises:
            ValueError: there is a directory of that name.
        """
        above = directory or self.servers
        if name in above.children:
            raise ValueError(f"there is a directory '{to_text(name)}' already")
        prefix = join(above.path, to_text(name))
        route = _route(len(self.attached), prefix, volume, f"'{prefix}/'", deadline_s)
        is_listed = not (self.servers.is_listed and above is self.servers)
        root = Junction(inode_number(route.index, ROOT_NODE), name, above, route, listed=is_listed)
        self.attached = [*self.attached, route]
        self.beside = {**self.beside, prefix: route}
        self.add({root.inode: root})
        above.children = {**above.children, name: root}
        return route

    def remove_route(self, route: Route, directory: Junction) -> None:
        """Take away a route that `add_route` has attached. Whoever is in it gets ESTALE. In any thread, one at a time.

        Its index is never used again.
        """
        name = to_name(parent_and_name(route.prefix)[1])
        directory.children = {child: root for child, root in directory.children.items() if child != name}
        self.beside = {prefix: each for prefix, each in self.beside.items() if each is not route}
        for each in (route, *route.twins):
            each.volume = each.door = GoneVolume()

    def add(self, junctions: dict[int, Junction]) -> None:
        """More junctions, for good."""
        ways = [each for each in junctions.values() if each.route is None and each.pinned is None]
        self.ways = [*self.ways, *ways]
        self._junctions.update(junctions)  # nobody goes through it

    def attach_twin(self, route: Route, view: View | None = None) -> Route:
        """A twin of a route, as it is or through a view, which is in no tree yet."""
        twin = route.twin(len(self.attached), view)
        if view is not None and isinstance(twin.volume, RuledVolume):
            twin.volume.on_interrupt = partial(self._interrupted, twin, view)
        self.attached = [*self.attached, twin]
        family = (route.files, *route.files.twins, twin)
        for member in family:
            member.twins = tuple(other for other in family if other is not member)
        return twin

    def _interrupted(self, route: Route, view: View, path: AgentPath | None, node: int, operation: Operation) -> None:
        if self.on_interrupt is not None:
            self.on_interrupt(route, view, path, node, operation)

    def route_of(self, path: AgentPath) -> Route:
        """The route of the main tree that has a path, those of the trees directory included."""
        if self.trees_path is not None and is_below(path, self.trees_path):
            there = (route for prefix, route in self.beside.items() if is_below(path, prefix))
            return next(there, self.attached[len(self.routes)])
        return self._by_prefix[self.table.route(path)[0] or ROOT]

    def is_in_view(self, path: AgentPath) -> bool:
        """Return True if a path is in the directory of the views."""
        return self.trees_path is not None and is_below(path, join(self.trees_path, to_text(VIEWS_NAME)))

    def volumes(self) -> list[tuple[Volume, list[Route]]]:
        """Each volume with the routes of the main tree that have it: several, if it has several prefixes."""
        distinct = {id(route.volume): route.volume for route in self.routes}.values()
        return [(volume, [route for route in self.routes if route.volume is volume]) for volume in distinct]

    def synthetic_inode(self) -> int:
        """A number for a directory that is no volume's."""
        self._synthetic += 1
        return inode_number(SYNTHETIC_INDEX, self._synthetic)

    def child(self, junction: Junction, name: bytes) -> Junction | None:
        """Return the junction that a name in a junction leads to; None for a name of the volume."""
        child = junction.children.get(name)
        return self.servers if child is None and name == self._servers_name and junction is self.root else child

    def listed(self, junction: Junction) -> list[bytes]:
        """Return the names in a junction that listings show and that lead to junctions, sorted."""
        names = [name for name, child in junction.children.items() if child.is_listed]
        if junction is self.root and self.servers.is_listed:
            names.append(self._servers_name)
        return sorted(names)

    def is_volumes(self, parent: int, name: bytes) -> bool:
        """True if a name in a directory is the volume's: it leads to no junction, and is not the server's."""
        junction = self._junctions.get(parent)
        return junction is None or not (name in junction.children or name == junction.servers_name)

    def place_of(self, inode: int) -> tuple[Route, int] | None:
        """Return the route and node of an inode. None for a synthesised directory."""
        index = inode >> NODE_BITS
        if index != SYNTHETIC_INDEX:
            return self.attached[index], inode & MAX_NODE
        return self._junctions[inode].underlying

    def is_root(self, inode: int) -> bool:
        """True for the root of a tree."""
        junction = self._junctions.get(inode)
        return junction is not None and junction.parent is None

    def directory(self, route: Route, node: int) -> int:
        """The number of a directory in the tree of this route: its own, or that of a junction that stands for it."""
        for way in self.ways:
            if way.underlying == (route, node):
                return way.inode
        return route.index << NODE_BITS | node


# -- a route that has gone ---------------------------------------------------------------------------------------


class GoneVolume(Volume):
    """Takes the place of a volume that was detached from a running mount. Every call is ESTALE.

    The kernel may go on asking for inodes that it has."""

    def _stale(self, *asked: Any, **options: Any) -> NoReturn:
        raise oserror(errno.ESTALE)

    lookup = readdir = getattr = read = open = statfs = _stale

    def _refusal(self, what: str) -> OSError:
        return oserror(errno.ESTALE)

    def forget(self, nodes: Iterable[int]) -> None:
        """Nothing is kept."""
