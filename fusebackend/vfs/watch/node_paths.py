"""`NodePaths`: the paths of the nodes that the kernel knows, for watchers.

The kernel speaks of inodes. For each one it knows, the inode table keeps the directory and the name of the last lookup,
so a path is the way up to the next junction. A file's directory is noted by its number in the main tree, even if the
kernel knows it in another tree only; a path is the same in all trees. Paths stay right when

- the kernel renames: `rename` does it and notes it in one step;
- the other face moves a known node: its descendants are known by it, and its new directory may not be known at all, so
  it is noted with its whole path below the route (`adopt`) until the kernel finds it there;
- a file has several names: earlier ones are kept beside the last one.

A name that was removed is not noted, for that would cost every `unlink` a question. So a name counts only if the volume
says that it leads to the node (`_leads_to`).

All is called with the volume's lock held, in any thread; the table's records are changed one by one.

Race: an agent puts another file under a name while the kernel renames it. The notice waits for the kernel's directory
lock, and the kernel applies its rename to dentries that no longer match (`fuse_rename_common`, fs/fuse/dir.c). So a
rename beside an unpublished change drops both names. Cost: a comparison for each rename. Switch: `crossed_renames`.
"""

from __future__ import annotations

from collections.abc import Iterable

from fusebackend.base import paths
from fusebackend.base.errors import VANISHED
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, Attr
from fusebackend.rules.ruled_volume import DEEPEST, VARIANTS
from fusebackend.vfs.door import Door
from fusebackend.vfs.inodes import SYNTHETIC_INDEX, InodeTable, KnownInode, inode_number, node_of, route_index
from fusebackend.vfs.junctions import MountTree, Route


class NodePaths:
    """See the module's docstring."""

    def __init__(self, tree: MountTree, inodes: InodeTable, drops_crossed: bool) -> None:
        self._tree = tree
        self._inodes = inodes
        self._drops_crossed = drops_crossed
        self._adopted: set[int] = set()
        self.moves = 0
        """How many directories were renamed, or files moved by the other face."""

    # -- paths -------------------------------------------------------------------------------------------------

    def path(self, route: Route, node: int, name: bytes = b"") -> bytes | None:
        """Return the path, inside its volume, by which the kernel knew a node last, or of a name in that directory.
        None if it does not know it."""
        return self._path(route, self.inode(route, node), name)

    def _path(self, route: Route, inode: int, name: bytes = b"") -> bytes | None:
        path = b"/" + name if name else b""
        for _ in range(DEEPEST):
            junction = self._tree.junction(inode)
            if junction is not None:
                if junction.route is not route:
                    path = paths.to_name(route.inner(junction.path).rstrip("/")) + path
                return path or b"/"
            known = self._inodes.get(inode) or self._elsewhere(inode)
            if known is None:
                return None
            path = b"/" + known.name + path
            inode = known.parent
        return None

    def of(self, route: Route, node: int) -> bytes | None:
        """Return the path of a node by a name that leads to it now; None without a known name."""
        inode = self.inode(route, node)
        known = self._inodes.get(inode)
        if self._tree.junction(inode) is not None or known is None:
            only = None if known is not None else self._elsewhere(inode)
            if only is not None and not only.is_dir and not self._leads_to(route, only.parent, only.name, node):
                return None
            return self._path(route, inode)
        others = self._inodes.others.get(inode, [])
        while not self._leads_to(route, known.parent, known.name, node):
            if not others:
                return None
            known.parent, known.name = others.pop()
        return self._path(route, inode)

    def inode(self, route: Route, node: int) -> int:
        """Return the inode by which the kernel knows a node: its own, or that of a junction."""
        number = self._tree.directory(route, node)
        if route.files is route or self._inodes.get(number) is not None:
            return number
        return inode_number(route.files.index, node)

    def _elsewhere(self, inode: int) -> KnownInode | None:
        """Return the record of a directory, or a file that rules restrict, in another tree, if the kernel knows it only
        there."""
        for twin in self._tree.attached[route_index(inode)].twins if route_index(inode) != SYNTHETIC_INDEX else ():
            for bits in VARIANTS if twin.is_view else (0,):
                known = self._inodes.get(inode_number(twin.index, node_of(inode) | bits))
                if known is not None:
                    return known
        return None

    def _leads_to(self, route: Route, directory: int, name: bytes, node: int) -> bool:
        """True if `name` in this directory leads to that node, or if the volume can't answer."""
        place = self._tree.place_of(directory)
        if place is None:
            return False
        at = place[1]
        try:
            for part in name.split(b"/"):
                at = route.volume.lookup(at, part).node
        except OSError as error:
            return error.errno not in VANISHED
        return at == node

    # -- changes -----------------------------------------------------------------------------------------------

    def rename(self, route: Route, parent: tuple[int, int], name: bytes, new_parent: tuple[int, int], new_name: bytes,
               flags: int) -> tuple[bool, int | None]:  # fmt: skip
        """Have the volume rename, and note it. Directories are (inode, node).

        Returns:
            Whether an agent's change is not published yet, so that the kernel's dentries may lead to other files; and
            the node that has another name, if it is a directory that the kernel may know in several trees.
        """
        volume = route.volume
        door = route.door if isinstance(route.door, Door) else Door(route, self)
        with volume.lock:
            change = door.renaming(parent[1], name, new_parent[1], new_name, flags)
            moved, other = change.attr, change.replaced if flags & RENAME_EXCHANGE else None
            before = self._inner(route, parent[1], name) if self._adopted and moved.is_dir else None
            door.make(change, volume.rename, parent[1], name, new_parent[1], new_name, flags)
            self._renamed(route, moved, new_parent, new_name)
            if other is not None:
                self._renamed(route, other, parent, name)
            if before is not None:
                self._carry(route, before, self._inner(route, new_parent[1], new_name), other is not None)
            crossed = self._drops_crossed and volume.unpublished > 0
            return crossed, moved.node if self._inodes.beside and moved.is_dir else None

    def _renamed(self, route: Route, attr: Attr, parent: tuple[int, int], name: bytes) -> None:
        self._inodes.renamed(*route.numbers(attr, parent[0]), name, attr)
        self.moves += attr.is_dir
        for twin in route.twins if attr.is_dir else ():
            self._inodes.renamed(inode_number(twin.index, attr.node), self._tree.directory(twin, parent[1]), name, attr)

    def _inner(self, route: Route, directory: int, name: bytes) -> str | None:
        path = self.path(route, directory, name)
        return None if path is None else paths.to_text(path)

    def adopt(self, routes: Iterable[Route], node: int | None, before: str, after: str) -> None:
        """Note a move by the other face from one path of a volume, mounted as these routes, to another."""
        self.moves += 1
        for route in routes:
            self._carry(route, before, after, False)
            for each in (route, *route.twins):
                inode = inode_number(each.index, node) if node is not None else 0
                known = self._inodes.get(inode)
                if known is not None:
                    known.parent = inode_number(each.index, ROOT_NODE)
                    known.name = paths.to_name(after.strip("/"))
                    self._adopted.add(inode)

    def _carry(self, route: Route, before: str, after: str | None, exchanged: bool) -> None:
        """Move adopted nodes below a directory with it."""
        indexes = (route.index, *(twin.index for twin in route.twins))
        for inode in tuple(self._adopted):
            known = self._inodes.get(inode)
            if known is None or b"/" not in known.name:
                self._adopted.discard(inode)  # forgotten, or found again since
                continue
            path = AgentPath("/" + paths.to_text(known.name))
            old, new = before.rstrip("/"), (after or "").rstrip("/")
            if exchanged and paths.is_below(path, new):
                old, new = new, old
            if route_index(inode) in indexes and paths.is_below(path, old) and path != old:
                known.name = paths.to_name((new + path[len(old) :]).strip("/"))
