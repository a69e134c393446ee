"""`ComposedTree`: volumes of several routes as one tree that is only read, as a mount shows its routes.

Each route hides what it covers in the one above (`composite/route_table.py` has the rules), and is an empty directory
where the tree has no volume of it, so that nothing live shows through. Directories on the way to a prefix that the
route above does not have are synthesised. A subclass gives each file its number.

Any thread; the volumes have the locks.
"""

from __future__ import annotations

import abc
import errno
import heapq
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from fusebackend.base.errors import oserror, unless
from fusebackend.base.paths import ROOT, AgentPath, in_route, split, to_name, to_text
from fusebackend.protocol import ROOT_NODE, Attr, UncountedAttr, Volume
from fusebackend.vfs.pseudo_files import own_attr
from fusebackend.volumes.walk import paged

NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
"""Errors of a name that leads to nothing."""

WAY = -1
"""In place of a route, of directories that lead to a prefix."""

Under = tuple[int, int]
"""A route, and a node of its volume."""


@dataclass(eq=False, slots=True)
class Place:
    """A directory that is the root of a route or leads to one."""

    route: int  # `WAY` if it is none's root
    node: int  # a number of its own, for a way
    parent: Place | None
    name: bytes
    children: dict[bytes, Place] = field(default_factory=dict)


class Places:
    """The directories that are roots of routes or lead to them, by the prefixes of all routes of a mount."""

    def __init__(self, prefixes: Iterable[AgentPath]) -> None:
        self.prefixes = [ROOT, *sorted(prefix for prefix in prefixes if prefix != ROOT)]
        """Of the routes, by their index."""
        self.ways: list[Place] = []
        roots = {ROOT: Place(0, ROOT_NODE, None, b"")}
        for prefix in sorted(self.prefixes[1:], key=lambda prefix: prefix.count("/")):
            *way, last = split(prefix)
            above = roots[ROOT]
            for name in way:
                if name not in above.children:
                    above.children[name] = Place(WAY, len(self.ways), above, name)
                    self.ways.append(above.children[name])
                above = above.children[name]
            roots[prefix] = above.children[last] = Place(self.prefixes.index(prefix), ROOT_NODE, above, last)
        self.roots = [roots[prefix] for prefix in self.prefixes]
        """By the index of their routes."""

    def route_of(self, path: bytes) -> tuple[int, bytes]:
        """Return the index of the route that has a path of the tree, and the path there, with a slash at its begin."""
        prefix, inner = in_route(AgentPath("/" + to_text(path)), self.prefixes)
        return self.prefixes.index(prefix), to_name(inner)


class Spot(NamedTuple):
    """One file or directory of the tree."""

    place: Place | None
    under: Under | None
    """None for a directory that no route has."""


class ComposedTree(abc.ABC):
    """See the module's docstring.

    Args:
        places: of the mount.
        views: the volumes, by the index of their route; those of routes that are not here are empty directories.
        time_ns: of directories that no route has, since the epoch.
        permissions: of those.
    """

    def __init__(self, places: Places, views: Mapping[int, Volume], time_ns: int, permissions: int) -> None:
        self.places = places
        self.views = views
        self.time_ns = time_ns
        self.permissions = permissions

    @abc.abstractmethod
    def number(self, route: int, node: int) -> int:
        """Return the number that the tree gives a node of a route's volume, or a way."""

    def at(self, route: int, node: int) -> Spot:
        """Return the meaning of a node of a route's volume, or of a way."""
        if route == WAY:
            place = self.places.ways[node]
        elif node == ROOT_NODE:
            place = self.places.roots[route]
        else:
            return Spot(None, (route, node))
        return Spot(place, self.under(place))

    def under(self, place: Place) -> Under | None:
        """Return the directory that a route has in this place."""
        way = []
        while place.route == WAY:
            way.append(place.name)
            assert place.parent is not None, "a way is below a route"
            place = place.parent
        found = (place.route, ROOT_NODE) if place.route in self.views else None
        for name in reversed(way):
            attr = None if found is None else unless(NOT_THERE, self.views[found[0]].lookup, found[1], name)
            found = (place.route, attr.node) if attr is not None and attr.is_dir else None
        return found

    def view(self, at: Spot) -> tuple[Volume, int]:
        """Return the volume that has a file, and its node there. ENOENT if none has."""
        if at.under is None:
            raise oserror(errno.ENOENT)
        return self.views[at.under[0]], at.under[1]

    def attr(self, at: Spot) -> Attr:
        number = None if at.place is None else self.number(at.place.route, at.place.node)
        if at.under is not None:
            route, node = at.under
            return self.shown(route, self.views[route].getattr(node), number)
        assert number is not None, "every node but that of a place is a route's"
        return own_attr(number, stat.S_IFDIR | self.permissions, self.time_ns)

    def shown(self, route: int, attr: Attr, number: int | None = None) -> Attr:
        """Return attributes of a route's volume, with the number that they have here.

        Args:
            number: it, where it is known.
        """
        kind = Attr if attr.shown_nlink == attr.nlink else UncountedAttr
        return kind(
            self.number(route, attr.node) if number is None else number,
            attr.mode,
            nlink=attr.nlink,
            uid=attr.uid,
            gid=attr.gid,
            rdev=attr.rdev,
            size=attr.size,
            blocks=attr.blocks,
            atime_ns=attr.atime_ns,
            mtime_ns=attr.mtime_ns,
            ctime_ns=attr.ctime_ns,
            version=attr.version,
        )

    def lookup(self, at: Spot, name: bytes) -> Attr:
        """As `Volume.lookup`."""
        place = None if at.place is None else at.place.children.get(name)
        if place is not None:
            return self.attr(Spot(place, self.under(place)))
        if at.under is None:
            raise oserror(errno.ENOENT, name)
        route, node = at.under
        return self.shown(route, self.views[route].lookup(node, name))

    def readdir(self, at: Spot, after: bytes, limit: int) -> list[tuple[bytes, Attr]]:
        """As `Volume.readdir`: the entries of the route, and the ways to other routes among them. A page that is not
        full ends a listing that the kernel keeps (`vfs/listing.py`)."""
        places = {} if at.place is None else at.place.children
        ways = [name for name in sorted(places) if name > after]
        shown = ((name, self.lookup(at, name)) for name in ways)
        if at.under is None:
            return list(islice(shown, limit))
        route, inner = at.under
        read = self.views[route].readdir
        listed = paged(read, inner, limit, after) if ways else read(inner, after, limit)
        own = ((name, self.shown(route, attr)) for name, attr in listed if name not in places)
        return list(islice(heapq.merge(own, shown, key=itemgetter(0)), limit))
