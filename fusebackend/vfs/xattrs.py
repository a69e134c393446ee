"""Extended attributes: those of the volumes, and two that tell of the mount itself."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from fusebackend.base import acl
from fusebackend.base.errors import oserror
from fusebackend.vfs.calls.request import current
from fusebackend.vfs.inode_resolver import InodeResolver
from fusebackend.vfs.inodes import route_index
from fusebackend.vfs.junctions import Route
from fusebackend.vfs.setid import CAPABILITY, Capabilities, clear_set_gid

STATUS_XATTR = b"user.fusebackend.status"
"""Read from a tree's root, it is the JSON of `fusebackend status`. Never listed, so that `cp -a` leaves it alone. The
root of a view has none: it would tell of routes that the view hides."""

SOCKET_XATTR = b"user.fusebackend.socket"
"""Read from anything in the mount, it is the path of the control socket. Never listed either."""


class ExtendedAttributes:
    """Answers the kernel's requests for extended attributes."""

    def __init__(self, resolver: InodeResolver, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._resolver = resolver
        self.status: Callable[[], bytes] = lambda: b"{}"
        self.socket = b""  # the control socket's path, once it listens
        self.has_acls: Callable[[], bool] = lambda: False  # whether the kernel checks them

    async def get(self, inode: int, name: bytes) -> bytes:
        if name == STATUS_XATTR and self._resolver.tree.is_root(inode):
            if self._resolver.tree.attached[route_index(inode)].is_view:
                raise oserror(errno.ENODATA)
            return self.status()
        if name == SOCKET_XATTR and self.socket:
            return self.socket
        try:
            route, node = await self._resolver.place(inode)
        except FileNotFoundError:
            raise oserror(errno.ENODATA) from None  # a synthesised directory has none
        if name in acl.NAMES and self.has_acls() and not route.volume.features.acls:
            raise oserror(errno.ENODATA)  # ENOTSUP would fail the kernel's check of permissions
        self._check(route, name)
        try:
            return await route.ask(route.volume.getxattr, node, name)
        except OSError as error:
            if name == _SELINUX and error.errno == errno.ENODATA:
                raise oserror(errno.ENOTSUP) from None
            raise

    async def set(self, inode: int, name: bytes, value: bytes) -> None:
        route, node = await self._resolver.place(inode, make=True)
        route.check_writable()
        self._check(route, name)
        if name == CAPABILITY:
            self._capabilities.given(inode)
        await route.call(route.door.setxattr, node, name, value)
        if name == acl.ACCESS:
            await route.call(clear_set_gid, route.volume, route.door, node, current())
        self._changed(inode, route, node)

    async def list(self, inode: int) -> Sequence[bytes]:
        try:
            route, node = await self._resolver.place(inode)
        except FileNotFoundError:
            return []  # a synthesised directory has none
        if not route.volume.features.xattrs:
            return []
        names = await route.ask(route.volume.listxattr, node)
        privileged = current().uid == 0
        shown = (name for name in names if not name.startswith(_ACLS) or self._are_kept(route, name))
        return [name for name in shown if privileged or not name.startswith(_FOR_ROOT)]

    async def remove(self, inode: int, name: bytes) -> None:
        try:
            route, node = await self._resolver.place(inode)
        except FileNotFoundError:
            raise oserror(errno.ENODATA) from None  # a synthesised directory has none
        route.check_writable()
        self._check(route, name)
        await route.call(route.door.removexattr, node, name)
        self._changed(inode, route, node)

    def _check(self, route: Route, name: bytes) -> None:
        if not (route.volume.features.xattrs and name.startswith(_NAMESPACES)):
            if not self._are_kept(route, name):
                raise oserror(errno.ENOTSUP)
        elif name in _NAMESPACES:
            raise oserror(errno.EINVAL)

    def _are_kept(self, route: Route, name: bytes) -> bool:
        """Whether this is the name of an ACL that the kernel will check."""
        return name in acl.NAMES and route.volume.features.acls and self.has_acls()

    def _changed(self, inode: int, route: Route, node: int) -> None:
        known = self._resolver.inodes.get(inode)
        if self._resolver.inodes.beside and known is not None and known.is_dir:
            self._resolver.twins.attributes_changed(route, node)


_SELINUX = b"security.selinux"
"""A file without one has ENOTSUP: `ls -l` then asks for no other file's. After ENODATA it asks for each, most of the
work of listing a large directory. A kernel with SELinux answers itself (security_inode_getsecurity)."""

_FOR_ROOT = b"trusted."
"""Other users are not told that these exist (xattr(7)); reading them is what the kernel prevents."""

_NAMESPACES = (b"user.", b"trusted.", b"security.")
"""What names may begin with (xattr(7)); who may use which is the kernel's to check.

`system.` is ACLs, which the kernel checks with `-o acl` alone. Otherwise it would not apply them.
"""

_ACLS = b"system.posix_acl_"
