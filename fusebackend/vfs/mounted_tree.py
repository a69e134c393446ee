"""`FileSystem`: the kernel's requests, answered by the volumes behind a mount tree.

It has the handles, calls into the volumes, and asks its parts, none of which knows it: `InodeResolver` (inode → route
and node; entries for the kernel), `Listing`, `ExtendedAttributes`, the features of `coherence/`, and `ChangeFeed` for
watchers. It knows neither pyfuse3 nor sockets: `fuse/operations.py` unpacks a request, awaits one method here, and
packs the answer. All methods run on the mount's own loop.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath, join, to_name
from fusebackend.protocol import (
    DEFAULT_TTL_S,
    NAME_MAX_BYTES,
    RENAME_EXCHANGE,
    Attr,
    AttrChanges,
    Caller,
    Change,
    Routed,
    StatFs,
    Volume,
)
from fusebackend.rules.ruled_volume import NODES
from fusebackend.rules.view import View
from fusebackend.vfs import switches as switching
from fusebackend.vfs.calls.request import current, on_behalf_of
from fusebackend.vfs.coherence.dentries import Dentries, Revalidation
from fusebackend.vfs.coherence.entry_cache import ENDLESS_TIMEOUT_S, NegativeDentries, Overtaken
from fusebackend.vfs.coherence.invalidation import Invalidation, Pruning, Twins
from fusebackend.vfs.coherence.page_cache import NO_KERNEL, DirectIO, KernelCache, PageVersions, Prefill
from fusebackend.vfs.coherence.range_order import AppendEnd, RangeOrder, RereadPages
from fusebackend.vfs.door import ChangeListener
from fusebackend.vfs.handles import DirectoryHandle, FileHandle, HandleTable, OpenedFile, WriteBarrier, close_all
from fusebackend.vfs.inode_resolver import InodeResolver
from fusebackend.vfs.inodes import SYNTHETIC_INDEX, Emit, Entry, InodeTable, node_of, route_index
from fusebackend.vfs.junctions import VIEWS_NAME, Junction, MountTree, Route, call_and_hold, routes_of
from fusebackend.vfs.listing import CachedReaddir, Listing
from fusebackend.vfs.options import DEFAULT_DEADLINE_S, RouteLimits, TreesOptions
from fusebackend.vfs.setid import Capabilities, SetId, refuse_confined, without_set_id
from fusebackend.vfs.switches import Switches
from fusebackend.vfs.watch.feed import ChangeFeed
from fusebackend.vfs.watch.node_paths import NodePaths
from fusebackend.vfs.xattrs import ExtendedAttributes

log = logging.getLogger(__name__)

_APPENDING = os.O_APPEND
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_NOT_FOR_VOLUMES = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOCTTY


class FileSystem:
    """The mounted tree. See the module's docstring."""

    def __init__(
        self,
        volumes: dict[AgentPath, Volume],
        *,
        ttl_s: float = DEFAULT_TTL_S,
        deadline_s: float = DEFAULT_DEADLINE_S,
        limits: Mapping[AgentPath, RouteLimits] | None = None,
        switches: Switches | None = None,
        trees: TreesOptions | None = None,
    ) -> None:
        """
        Args:
            volumes: prefix → volume; `/` is the default and must be there, the others as `normalise_prefix` gives them.
            ttl_s: seconds for which the kernel caches a route without a change feed.
            deadline_s: seconds after which a call into a blocking volume ends with ETIMEDOUT.
            limits: prefix → other limits for the calls into that volume.
            switches: features that are turned off; none when None.
            trees: the name of the trees directory, and whether it is listed; the default when None.
        """
        on = self.switches = switches or switching.DEFAULT
        tree = self.tree = MountTree(routes_of(volumes, ttl_s, limits or {}, deadline_s), trees)
        self.inodes = InodeTable(len(tree.attached))
        self.files: HandleTable[FileHandle] = HandleTable()
        self.directories: HandleTable[DirectoryHandle] = HandleTable()
        self._add_features(on)
        self._add_parts(on)
        self._deadline_s = deadline_s
        self._growing = threading.Lock()
        self._author: Callable[[int], object] | None = None  # see `record`
        self._make: Callable[[Route], ChangeListener] | None = None
        self._beside: Beside | None = None

    def _add_features(self, on: Switches) -> None:
        """Make what keeps the kernel's caches right, and what saves requests."""
        tree, inodes = self.tree, self.inodes

        def kernel() -> KernelCache:
            return self.invalidation.kernel

        self.dentries = Dentries()
        self.overtaken = Overtaken(on.overtaken, on.unordered_replies)
        self.page_versions = PageVersions(inodes, kernel, on.page_versions, on.hold_back)
        self.revalidation = Revalidation(tree, self.dentries, kernel, on.revalidation)
        self.write_barrier = WriteBarrier(self.files, on.write_barrier)
        self.range_order = RangeOrder(on.range_order)
        self.reread_pages = RereadPages(inodes, kernel, self.range_order, on.reread_pages)
        self.append_end = AppendEnd(inodes, self.files, on.append_end)
        self.set_id = SetId(inodes, kernel, on.set_id)
        self.capabilities = Capabilities(inodes, self.files, on.capabilities)
        self.negative = NegativeDentries(on.negative_dentries, on.absent_names)
        self.prefill = Prefill(inodes, on.prefill)
        self.cached_readdir = CachedReaddir(inodes, on.cached_readdir)
        self.direct_io = DirectIO(inodes, on.o_direct, on.direct_writes, on.direct_appends)

    def _add_parts(self, on: Switches) -> None:
        """Make what uses several of them."""
        tree, inodes = self.tree, self.inodes
        filled, kept = self.prefill.filled, self.cached_readdir.kept
        self.invalidation = Invalidation(
            tree,
            inodes,
            self.dentries,
            self.page_versions,
            self.overtaken,
            self.negative,
            filled,
            self.write_barrier,
            on.invalidation,
        )
        self.pruning = Pruning(inodes, self.invalidation, on.pruning)
        self.twins = Twins(tree, inodes, self.invalidation, kept, on.twins)
        self.names = NodePaths(tree, inodes, on.crossed_renames)
        self.resolver = InodeResolver(
            tree,
            inodes,
            self.dentries,
            self.overtaken,
            self.revalidation,
            self.twins,
            self.append_end,
            self.set_id,
            on.late_forget,
        )
        self.forget = self.resolver.forget
        self.xattrs = ExtendedAttributes(self.resolver, self.capabilities)
        self.getxattr, self.setxattr = self.xattrs.get, self.xattrs.set
        self.listxattr, self.removexattr = self.xattrs.list, self.xattrs.remove
        self.listing = Listing(self.resolver, self.cached_readdir, self.lookup)
        self.feed = ChangeFeed(self.tree, self.names)

    @classmethod
    def of(cls, backend: Any, **options: Any) -> FileSystem:
        """Return the file system of a composite, or of a single backend at `/`. Options as for the constructor."""
        from fusebackend.remote.volume import volume_of

        parts = backend.mounts() if isinstance(backend, Routed) else {ROOT: backend}
        return cls({prefix: volume_of(part) for prefix, part in parts.items()}, **options)

    @property
    def wants_flush(self) -> bool:
        """True if the kernel has to send FLUSH at every close: where a close can fail."""
        features = (route.volume.features for route in self.tree.routes)
        return any(each.stores_at_close or not each.random_writes for each in features)

    # -- names -------------------------------------------------------------------------------------------------

    async def lookup(self, parent: int, name: bytes) -> Entry:
        if len(name) > NAME_MAX_BYTES:
            raise oserror(errno.ENAMETOOLONG)
        junction = self.tree.junction(parent)
        if junction is not None:
            child = self.tree.child(junction, name)
            if child is not None:
                attr, timeout_s = await child.attributes(self.resolver.synthesised)
                self.inodes.reference(child.inode, parent, name, attr)
                return Entry(child.inode, attr, timeout_s)
            if name == junction.servers_name:
                return Entry(0, None, ENDLESS_TIMEOUT_S)
            if junction.route is None and await junction.place() is None:
                return Entry(0, None, 0)
        route, node = await self.resolver.place(parent)
        generation = self.overtaken.generation
        try:
            if route.shared:
                attr = await self.revalidation.lookup(route, parent, node, name)
            else:
                attr = await route.ask(call_and_hold, route.volume, route.volume.lookup, node, name)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            timeout_s = self.negative.note(route, parent, name)
            if route.files is not route:
                self.twins.note_names(route, parent, (name,))
            if self.twins.contended and self.twins.is_contended(parent):
                timeout_s = 0.0
            return self.overtaken.checked(Entry(0, None, timeout_s), generation)
        return self.resolver.entry(route, parent, name, attr, generation)

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Entry:
        await refuse_confined(mode)
        route, node = await self.resolver.place_for_name(parent, name)
        mode = _masked(route, mode, caller)
        return await self.resolver.create_entry(
            route, node, parent, name, route.door.mknod, node, name, mode, rdev, caller
        )

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        route, node = await self.resolver.place_for_name(parent, name)
        make, mode = route.door.mkdir, _masked(route, mode, caller)
        entry = await self.resolver.create_entry(route, node, parent, name, make, node, name, mode, caller)
        self.cached_readdir.listed(entry.inode, 0)
        return entry

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        route, node = await self.resolver.place_for_name(parent, name)
        make = route.door.symlink
        return await self.resolver.create_entry(route, node, parent, name, make, node, name, target, caller)

    async def link(self, inode: int, new_parent: int, new_name: bytes) -> Entry:
        route, node = await self.resolver.place_for_name(new_parent, new_name)
        source, source_node = await self.resolver.place(inode)
        if source.files is not route.files:
            raise oserror(errno.EXDEV)
        if source is not route and source.is_restricted(source_node):
            raise oserror(errno.EACCES)
        make = route.door.link
        known = self.inodes.get(inode)
        place = None if known is None or not self.inodes.beside else (known.parent, known.name)
        entry = await self.resolver.create_entry(route, node, new_parent, new_name, make, source_node, node, new_name)
        if place is not None and route_index(place[0]) != SYNTHETIC_INDEX:
            await self.twins.linked(source.files, node_of(place[0]), place[1], new_parent)
        if entry.attr is not None and route.is_ruled:
            await self.twins.file_changed(route, entry.attr.node)
        return self.overtaken.unordered(entry)

    async def unlink(self, parent: int, name: bytes) -> None:
        route, node = await self.resolver.place_for_name(parent, name)
        file = await self._viewed_file(route, node, name) if route.is_ruled else 0
        await self._remove(route, node, parent, name, route.door.unlink)
        if route.is_ruled:
            await self.twins.file_changed(route, file)

    async def _remove(
        self, route: Route, node: int, parent: int, name: bytes, remove: Callable[[int, bytes], None]
    ) -> None:
        await route.call(remove, node, name)
        if route.shared:
            self.dentries.removed((parent, name))
        if self.inodes.beside:
            await self.twins.names_changed(route, (node, name))

    async def _viewed_file(self, route: Route, node: int, name: bytes) -> int:
        """Return the node of a file that is about to lose a name, where a view may have a number of its own for it."""
        try:
            return (await route.ask(route.volume.lookup, node, name)).node if route.is_view else 0
        except OSError:
            return 0  # the change itself says why

    async def rmdir(self, parent: int, name: bytes) -> None:
        route, node = await self.resolver.place_for_name(parent, name, prunes=True)
        await self._remove(route, node, parent, name, route.door.rmdir)

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        route, node = await self.resolver.place_for_name(parent, name)
        new_route, new_node = await self.resolver.place_for_name(new_parent, new_name)
        if route is not new_route:
            raise oserror(errno.EXDEV)
        old, new = (parent, node), (new_parent, new_node)
        replaced = 0
        if route.is_ruled and not flags & RENAME_EXCHANGE:
            replaced = await self._viewed_file(route, new_node, new_name)
        if route.shared:
            await route.call(route.door.rename, node, name, new_node, new_name, flags)
            directory = None
            for inode, before, after in self.dentries.renamed((parent, name), (new_parent, new_name), flags):
                self.inodes.moved(inode, before, after)
        else:
            crossed, directory = await route.call(self.names.rename, route, old, name, new, new_name, flags)
            if crossed:
                self.invalidation.drop((parent, name), (new_parent, new_name))
        if self.inodes.beside:
            await self.twins.names_changed(route, (node, name), (new_node, new_name), moved=directory)
        if route.is_ruled:
            await self.twins.file_changed(route, replaced)

    # -- attributes --------------------------------------------------------------------------------------------

    async def getattr(self, inode: int) -> Entry:
        junction = self.tree.junction(inode)
        if junction is not None:
            return Entry(inode, *await junction.attributes(self.resolver.synthesised))
        route, node = await self.resolver.place(inode)
        generation = self.overtaken.generation
        attr = await route.ask(route.volume.getattr, node)
        if route.shared:
            self.page_versions.answered(inode, attr.version)
        return self._attributes(route, inode, node, attr, generation)

    def _attributes(self, route: Route, inode: int, node: int, attr: Attr, generation: int) -> Entry:
        """Return what `stat` and its like show of an inode. `generation` is from before the volume was asked."""
        self.resolver.attr_sent(inode, attr)
        is_restricted = route.is_ruled and route.is_restricted(node)
        entry = Entry(inode, attr, 0.0 if is_restricted else route.policy.timeout_s)
        if is_restricted:
            entry = entry._replace(inode=route.lasting_number(node))
        return self.overtaken.checked(entry, generation)

    async def setattr(self, inode: int, changes: AttrChanges, by_handle: bool = False) -> Entry:
        route, node = await self.resolver.place(inode, make=True)
        route.check_writable()
        self.resolver.own_changes += 1
        known = self.inodes.get(inode)
        if changes.mode is not None:
            await refuse_confined(changes.mode, partial(self._is_directory, route, node))
        self.prefill.filled.discard(inode)  # the kernel drops its pages when the time has moved
        if known is None or inode in self.set_id.marked:
            changes = await route.call(without_set_id, route.volume, node, changes, current())
        generation = self.overtaken.generation
        if route.shared and not by_handle and (changes.size is not None or known is None or not known.opens):
            attr = await self.revalidation.call(route, inode, route.door.setattr, node, changes)
        else:
            attr = await route.call(route.door.setattr, node, changes)
        entry = self._attributes(route, inode, node, attr, generation)
        if self.inodes.beside and attr.is_dir:
            self.twins.attributes_changed(route, node)
        if route.is_ruled:
            await self.twins.file_changed(route, node)
        return entry

    async def _is_directory(self, route: Route, node: int) -> bool:
        return (await route.ask(route.volume.getattr, node)).is_dir

    async def readlink(self, inode: int) -> bytes:
        route, node = await self.resolver.place(inode)
        if route.shared:
            return await self.revalidation.readlink(route, inode, node)
        return await route.ask(route.volume.readlink, node)

    async def statfs(self) -> StatFs:
        """Of the default volume: FUSE's statfs does not say which inode it is asked for."""
        default = self.tree.routes[0]
        found = await default.ask(default.volume.statfs)
        usage = default.volume.usage
        return found if usage is None else found.within(usage)

    # -- files -------------------------------------------------------------------------------------------------

    async def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[Entry, OpenedFile]:
        """A new file, open."""
        await refuse_confined(mode)
        route, node = await self.resolver.place_for_name(parent, name)
        for_volume = flags & ~_NOT_FOR_VOLUMES
        make, mode = route.door.create, _masked(route, mode, caller)
        generation = self.overtaken.generation
        try:
            attr = await route.call(call_and_hold, route.volume, make, node, name, mode, for_volume, caller)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            return await self._open_existing(parent, name, flags)
        entry = self.resolver.entry(route, parent, name, attr, generation)
        is_restricted = route.is_restricted(attr.node)
        of = route if is_restricted else route.files
        handle = FileHandle(entry.inode, of, attr.node, for_volume, self._author)
        handle.bare = True
        passes, _ = self.direct_io.opened(entry.inode, flags, attr.mode)
        handle.direct = passes or is_restricted
        self._opened(handle, attr)
        opened = OpenedFile(self.files.add(handle), not is_restricted, handle.direct)
        if self.inodes.beside:
            await self.twins.names_changed(route, (node, name))
        return entry, opened

    async def _open_existing(self, parent: int, name: bytes, flags: int) -> tuple[Entry, OpenedFile]:
        """Open a file that another face has made since the kernel's last lookup.

        ESTALE for anything but a regular file: the kernel then retries the lookup. With a non-regular entry as the
        answer to CREATE it returns EIO and leaks the handle and the reference (`fuse_create_open`, fs/fuse/dir.c).
        """
        existing = await self.lookup(parent, name)
        try:
            if existing.attr is None or not stat.S_ISREG(existing.attr.mode):
                raise oserror(errno.ESTALE, name)
            opened = await self.open(existing.inode, flags)
        except BaseException:
            await self.forget([(existing.inode, 1)])
            raise
        return self.overtaken.unordered(existing), opened

    async def open(self, inode: int, flags: int) -> OpenedFile:
        route, node = await self.resolver.place(inode)
        if flags & _WRITING:
            route.check_writable()
        handle = FileHandle(inode, route, node, flags & ~_NOT_FOR_VOLUMES, self._author)
        truncate = bool(flags & os.O_TRUNC)
        number = await self.write_barrier.admit(handle)
        try:
            self.resolver.own_changes += truncate
            if route.shared:
                attr = await self.revalidation.call(route, inode, handle.open, truncate)
            elif "open" in route.volume.at_once and not (truncate or flags & _WRITING):
                attr = await route.ask(handle.open, False)
            else:
                attr = await route.call(handle.open, truncate)
            if truncate:
                handle.bare = True  # the kernel has removed them before this O_TRUNC
                self.set_id.truncated(inode)
                self.resolver.attr_sent(inode, attr)
                await self.twins.file_changed(route, node)
        except BaseException:
            self.write_barrier.dismiss(number)
            raise
        keep = await self.page_versions.are_good(route, inode, attr)
        passes, is_old = self.direct_io.opened(inode, flags, attr.mode)
        keep = keep and not is_old
        handle.direct = passes or handle.node != node
        if route.is_restricted(node):
            keep, handle.direct = False, True
        self._opened(handle, attr)
        return OpenedFile(number, keep, handle.direct)

    def _opened(self, handle: FileHandle, attr: Attr) -> None:
        known = self.inodes.get(handle.inode)
        if known is None:
            return  # the kernel opens what it knows, and forgets nothing that is open
        known.opens += 1
        if handle.flags & _WRITING:
            self.prefill.filled.discard(handle.inode)
        elif self.invalidation.kernel is not NO_KERNEL and not handle.route.is_restricted(handle.node):
            self.prefill.opened(self.invalidation.kernel, handle, attr, known.opens)

    def _handle(self, number: int) -> FileHandle:
        """Return an open handle. On routes that may block, attribute the request to the thread that opened it."""
        handle = self.files[number]
        if handle.route.executor.blocking:
            on_behalf_of(handle.opener)
        return handle

    async def read(self, number: int, offset: int, size: int) -> bytes:
        handle = self._handle(number)
        route = handle.route
        self.reread_pages.read(handle.inode, offset, offset + size)
        if route.executor.blocking:
            await self.range_order.wait_for_writes(handle.inode, offset, offset + size)
        data = await route.ask(route.volume.read, handle.node, offset, size)
        self.prefill.filled.add(handle.inode)
        return data

    async def write(self, number: int, offset: int, data: bytes) -> int:
        handle = self.files[number]
        if handle.route.executor.blocking or self._author is not None:
            on_behalf_of(handle.opener)
        self.resolver.own_changes += 1
        if handle.direct and not handle.bare:
            await self.capabilities.writes(handle)
        inode, appending = handle.inode, bool(handle.flags & _APPENDING)
        write = partial(self.append_end.write, handle) if appending else handle.route.door.write
        written = await self.reread_pages.write(handle, write, offset, data)
        known = self.inodes.get(inode)
        if known is not None:
            self.append_end.wrote(inode, known, offset + written, appending)
        if inode in self.set_id.marked:
            await self.set_id.written(inode, handle.route, handle.node, handle.opener)
        if handle.route.is_ruled:
            await self.twins.file_changed(handle.route, handle.node)
        return written

    async def flush(self, number: int) -> None:
        handle = self._handle(number)
        features = handle.route.volume.features
        if not features.random_writes or (features.stores_at_close and handle.flags & _WRITING):
            await handle.route.call(handle.route.door.flush, handle.node)

    async def fsync(self, number: int, datasync: bool) -> None:
        handle = self._handle(number)
        await handle.route.executor.sync(partial(handle.route.door.fsync, handle.node, datasync))

    async def release(self, number: int) -> None:
        handle = self.write_barrier.dismiss(number)
        known = self.inodes.get(handle.inode)
        if known is not None:
            known.opens -= 1
            if self.direct_io.writers:
                self.direct_io.closed(handle.inode, handle.flags)
        await handle.route.executor.give_back(handle.route.volume.release, handle.node, handle.flags)

    # -- directories -------------------------------------------------------------------------------------------

    async def opendir(self, inode: int) -> int:
        junction = self.tree.junction(inode)
        try:
            route, node = await self.resolver.place(inode)
        except FileNotFoundError:
            if junction is None:
                raise
            return self.directories.add(DirectoryHandle(inode, None, 0, junction))
        if route.shared:
            await self.revalidation.check(route, inode)
        if route.volume.most_nodes is not None:
            self.pruning.looked_into(route, route.volume.most_nodes)
        kept = junction is None and await self.cached_readdir.may_keep(route, inode, node)
        return self.directories.add(DirectoryHandle(inode, route, node, junction, kept))

    async def readdir(self, number: int, offset: int, emit: Emit) -> None:
        """Emit entries from position `offset` until `emit` says that the kernel's buffer is full."""
        await self.listing.list(self.directories[number], offset, emit)

    async def fsyncdir(self, number: int, datasync: bool) -> None:
        handle = self.directories[number]
        if handle.route is not None:
            await handle.route.executor.sync(partial(handle.route.door.fsync, handle.node, datasync))

    async def releasedir(self, number: int) -> None:
        self.cached_readdir.closed(self.directories.pop(number))

    # -- trees -------------------------------------------------------------------------------------------------

    def add_route(self, name: str, volume: Volume) -> AgentPath:
        """Attach a volume in the trees directory, until the mount ends. Before the mount, and before `add_tree`.

        Args:
            name: of its root.
            volume: reports every change to `subscribe`.

        Returns:
            The path of its root, below the mount point.

        Raises:
            ValueError: there is a directory of that name.
        """
        route = self.tree.add_route(to_name(name), volume, self._deadline_s)
        self.inodes.count_beside_from(len(self.tree.attached))
        return route.prefix

    def add_directory(self, name: str) -> RoutesDirectory:
        """Add a directory to the trees directory, for volumes that come and go. Before the mount.

        Raises:
            ValueError: there is a directory of that name.
        """
        return RoutesDirectory(self, self.tree.add_directory(to_name(name), holds_routes=True))

    def record(
        self, make: Callable[[Route], ChangeListener], author: Callable[[int], object], beside: Beside | None = None
    ) -> None:
        """Have the history listen to the changes of each route, in all trees. Before the mount.

        Args:
            make: gives its listener for a route.
            author: says of which process a thread is that opens a file for writing; the `Request` of each write has it.
            beside: told of the routes that come and go (`RoutesDirectory`). Without it, these are not recorded.
        """
        self._author = author
        self._make, self._beside = make, beside
        for route in self.tree.routes:
            route.is_recorded = True
            for each in (route, *route.twins):
                self._listen(each)

    def _listen(self, route: Route) -> None:
        """Have the history listen to a route, or a twin of one, that it records. The changes of a view go on through
        another one."""
        if self._make is not None and route.files.is_recorded and not route.is_view:
            route.listen("history", self._make(route), self.names)

    def add_tree(
        self, name: str, pinned: Iterable[bytes] = (), of: AgentPath | None = None, view: View | None = None
    ) -> AgentPath:
        """Add a tree of the live files for the server's own use (`MountTree.private`), until the mount ends.

        A tree has directories of its own: a directory pinned in it, or a file system mounted on one of its names in a
        sandbox, is not in the main tree. A rename between trees is EXDEV. Thread-safe, before the mount and later.

        Args:
            name: of its root.
            pinned: names in its root that are empty directories of the server's, in place of the default volume's. They
                can't be changed, and the kernel never drops them. Where the prefix of a route leads through one, the
                route is below it; a route of that very name is not in the tree.
            of: the prefix of a route in the trees directory that is all of the tree; the routes of the main tree when
                None.
            view: the tree is these seen through it.

        Returns:
            The path of its root, below the mount point.

        Raises:
            ValueError: there is a tree of that name.
            FileNotFoundError: there is no such route.
        """
        with self._growing:
            tree = self.tree
            if of is not None and of not in tree.beside:
                raise oserror(errno.ENOENT, of)
            routes = tree.routes if of is None else [tree.beside[of]]
            self._grow(tree.private, name, routes, view, tuple(pinned))
        return join(tree.private.path, name)

    def add_view(self, view: View) -> None:
        """Add the main tree through a view, as a directory of the trees directory, until the mount ends. Any thread.

        Raises:
            ValueError: there is a view of that name.
        """
        with self._growing:
            tree = self.tree
            above = tree.servers.children.get(VIEWS_NAME) or tree.add_directory(VIEWS_NAME, holds_routes=True)
            self._grow(above, view.name, tree.routes, view)

    def _grow(
        self, above: Junction, name: str, routes: list[Route], view: View | None, pinned: tuple[bytes, ...] = ()
    ) -> None:
        """Add a new tree with twins of these routes below a directory. What a view hides is not in it."""
        tree, at = self.tree, to_name(name)
        if at in above.children:
            raise ValueError(f"there is a tree '{name}' already")
        seen = [route for route in routes if view is None or not view.is_hidden(route.prefix)]
        twins = [tree.attach_twin(route, view) for route in seen]
        for twin in twins:
            self._listen(twin)
        root = tree.grow(twins, pinned)
        self.invalidation.follow()
        self.feed.follow()
        above.children = {**above.children, at: root}  # last: from now on it can be found

    def remove_tree(self, name: str) -> None:
        """Remove a tree of `add_tree` whose routes have been removed. In any thread."""
        with self._growing:
            private, at = self.tree.private, to_name(name)
            private.children = {child: root for child, root in private.children.items() if child != at}
        self.invalidation.drop((private.inode, at))

    # -- life --------------------------------------------------------------------------------------------------

    def attach(self, kernel: KernelCache) -> None:
        """From now on, notify the kernel of changes by others."""
        self.invalidation.start(kernel)
        self.feed.start(kernel)

    def detach(self) -> None:
        self.feed.stop()
        self.invalidation.stop()

    def written(self) -> set[tuple[AgentPath, int]]:
        """Return the files of the main tree that somebody has open for writing: prefix and node. Any thread."""
        prefixes = {id(route.volume): route.prefix for route in self.tree.routes}
        return {
            (prefixes[id(handle.route.files.volume)], handle.node & NODES if handle.route.is_ruled else handle.node)
            for handle in list(self.files.values())
            if handle.flags & os.O_ACCMODE != os.O_RDONLY and id(handle.route.files.volume) in prefixes
        }

    def describe_routes(self, urls: Mapping[str, str]) -> list[dict[str, Any]]:
        """Describe the routes, for `status`.

        Args:
            urls: those of the backends, masked, by prefix.
        """
        return [
            {
                "prefix": route.prefix if route.prefix == ROOT else route.prefix + "/",
                "url": urls.get(route.prefix),
                "volume": type(route.volume).__name__,
                "features": asdict(route.volume.features),
                "ttl_s": None if route.policy.coherent else route.policy.timeout_s,
                "timeouts": route.executor.health.timeouts,
                "health": route.executor.describe(),
                "unstored": route.volume.unstored,
                "undo": route.undo,
                "listeners_failed": route.listening_errors,
                "usage": None if (usage := route.volume.usage) is None else usage._asdict(),
            }
            for route in self.tree.routes
        ]

    def close(self) -> None:
        """The mount is gone: close what the kernel can't close any more, and make every volume durable. Blocks.

        Every volume is tried, a blocking one under its deadline; the first error is raised at the end.
        """
        first: OSError | None = None
        handles = list(self.files.values())
        self.files.clear()
        nameless = dict(self.resolver.let_go(self.inodes.items()))
        views = [twin for route in self.tree.routes for twin in route.twins if twin.is_view]
        for route in (*views, *self.tree.routes):
            mine = [handle for handle in handles if handle.route is route]
            try:
                route.executor.finish(partial(close_all, route.volume, mine, nameless.get(route, [])))
            except OSError as error:
                log.error("could not close route %s: %s", route.prefix, error)
                first = first or error
        if first is not None:
            raise first


def _masked(route: Route, mode: int, caller: Caller) -> int:
    """The mode of a new file for a volume that knows no ACLs. With `-o acl` the kernel leaves the umask to us."""
    return mode if route.volume.features.acls else mode & ~caller.umask


class Beside(Protocol):
    """Records the changes of routes that come and go: `Recording`."""

    def attached(self, route: Route) -> bool:
        """A route has come. Returns True if its changes are to be recorded."""

    def detached(self, route: Route) -> None:
        """A route goes for good."""


class RoutesDirectory:
    """A directory in the trees directory with volumes that come and go, see `FileSystem.add_directory`. Any thread but
    the mount's loop: the kernel is notified."""

    def __init__(self, filesystem: FileSystem, directory: Junction) -> None:
        self._filesystem = filesystem
        self._directory = directory

    @property
    def path(self) -> AgentPath:
        """The path of the directory, below the mount point."""
        return self._directory.path

    def attach(self, name: str, volume: Volume) -> None:
        """Attach a volume, which reports every change to `subscribe`.

        Raises:
            ValueError: there is a directory of that name.
        """
        filesystem = self._filesystem
        with filesystem._growing:
            route = filesystem.tree.add_route(to_name(name), volume, filesystem._deadline_s, self._directory)
            if filesystem._beside is not None:
                route.is_recorded = filesystem._beside.attached(route)
                filesystem._listen(route)
            filesystem.invalidation.follow()
        filesystem.invalidation.drop((self._directory.inode, to_name(name)))

    def detach(self, name: str) -> None:
        """Detach a volume: from now on every call into it is ESTALE."""
        filesystem = self._filesystem
        with filesystem._growing:
            route = filesystem.tree.beside[join(self._directory.path, name)]
            if filesystem._beside is not None:
                filesystem._beside.detached(route)
            filesystem.tree.remove_route(route, self._directory)
        filesystem.invalidation.drop((self._directory.inode, to_name(name)))
        for each in (route, *route.twins):
            filesystem.invalidation.changed(each, Change())
