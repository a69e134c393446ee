"""`Operations`: pyfuse3's handlers. Each one unpacks a request, awaits the `FileSystem` once, and packs the answer.

Nothing may escape a handler, or pyfuse3 ends the server (its `main` returns): an `OSError` is its errno, anything else
is a defect of ours, logged with its traceback and answered with EIO. `answers` does both, around every handler. Where
memory is limited, what takes more of it is ENOMEM a while before there is none: an allocation that fails in pyfuse3's
own code ends the server.
"""

from __future__ import annotations

import collections
import errno
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pyfuse3
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext, SetattrFields, StatvfsData

from fusebackend.base.heap import Spare
from fusebackend.fuse.pyfuse3_patches.cached_opendir import CachedOpendir
from fusebackend.protocol import AttrChanges, Caller
from fusebackend.vfs.calls.request import Request, asked
from fusebackend.vfs.inodes import Entry
from fusebackend.vfs.mounted_tree import FileSystem

log = logging.getLogger(__name__)

PREFERRED_IO_BYTES = 128 * 1024
"""`st_blksize`: the size of reads and writes by `cp` and others."""

T = TypeVar("T")
Handler = Callable[..., Awaitable[Any]]


def answers(handler: Handler) -> Handler:
    """Turn any exception of a handler into an answer, and count the request."""
    name = handler.__name__

    @functools.wraps(handler)
    async def answering(self: Operations, *request: Any) -> Any:
        self.counters[name] += 1
        context = request[-1]
        if isinstance(context, RequestContext):
            asked.set(Request(name, context.pid, context.uid, context.gid))
        else:  # the kernel does not say who asks
            asked.set(Request(name))
        done = self.begin and self.begin(name, request[0])
        try:
            if self.spare is not None and name in _GROWING:
                self.spare.require(len(request[2]) if name == "write" else SMALL_BYTES)
            result = await handler(self, *request)
            if done:
                done(0, result)
            return result
        except MemoryError:
            number = errno.ENOMEM
            self.counters["errors"] += 1
        except OSError as error:
            # `OSError("text", "more")` has a text where the number goes.
            number = error.errno if isinstance(error.errno, int) and 0 < error.errno <= _MAX_ERRNO else errno.EIO
            self.counters["errors"] += number not in _EXPECTED
        except FUSEError as refused:
            number = refused.errno
        except Exception:
            number = errno.EIO
            self.counters["defects"] += 1
            log.exception("defect in %s%r", name, request[:2])
        if done:
            done(number, None)
        raise FUSEError(number)

    return answering


def _checked(answer: object, kind: type[T]) -> T:
    """Return an answer of the right type. pyfuse3 ends the server on any other, outside of `answers`."""
    if not isinstance(answer, kind):
        raise TypeError(f"the volume answered {type(answer).__name__}, which is no {kind.__name__}")
    return answer


_MAX_ERRNO = 4095
"""The kernel takes a larger one for a pointer (include/linux/err.h)."""

_GROWING = frozenset({"write", "create", "mknod", "mkdir", "symlink", "link", "setxattr"})
"""Requests that take memory, and are refused when a limit of it is near."""

SMALL_BYTES = 4096
"""Memory for one of those, other than a write."""

_EXPECTED = frozenset({errno.ENOENT, errno.ENODATA, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTSUP, errno.ENOSYS})
"""Errnos that are everyday answers; `status` counts the others as errors."""


def pack(entry: Entry) -> EntryAttributes:
    """Pack an entry for the kernel. Inode 0 with a timeout caches the absence of a name."""
    packed = EntryAttributes()
    packed.st_ino = entry.inode
    packed.entry_timeout = packed.attr_timeout = entry.timeout_s
    attr = entry.attr
    if attr is None:
        return packed
    packed.st_mode = attr.mode
    packed.st_nlink = attr.shown_nlink
    packed.st_uid = attr.uid
    packed.st_gid = attr.gid
    packed.st_rdev = attr.rdev
    packed.st_size = attr.size
    packed.st_blocks = attr.blocks
    packed.st_blksize = PREFERRED_IO_BYTES
    packed.st_atime_ns = attr.atime_ns
    packed.st_mtime_ns = attr.mtime_ns
    packed.st_ctime_ns = attr.ctime_ns
    return packed


def _caller(context: RequestContext) -> Caller:
    return Caller(context.uid, context.gid, context.pid, context.umask)


class Operations:
    """See the module's docstring.

    Attributes:
        counters: one count for each kind of request, for `status`.
        begin: where the metrics are on, called with the kind of each request, as pyfuse3 calls it, and its first
            argument; returns what is called with the errno of the answer, or 0, and with what the handler has returned.

    Not a subclass of `pyfuse3.Operations`, which only has defaults that say ENOSYS: every handler is here.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False  # the kernel would trust its own sizes and times over what the API changes
    enable_acl = False

    def __init__(self, filesystem: FileSystem) -> None:
        self.filesystem = filesystem
        self.counters: collections.Counter[str] = collections.Counter()
        self.begin: Callable[[str, Any], Callable[[int, Any], None]] | None = None
        self.cached_opendir: CachedOpendir | None = None
        spare = Spare()
        self.spare = spare if spare.is_limited else None

    def init(self) -> None:
        """Called after FUSE_INIT."""

    def stacktrace(self) -> None:
        """pyfuse3's debugging aid, unused."""

    # -- names -------------------------------------------------------------------------------------------------

    @answers
    async def lookup(self, parent: int, name: bytes, context: RequestContext) -> EntryAttributes:
        return pack(await self.filesystem.lookup(parent, name))

    @answers
    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, context: RequestContext) -> EntryAttributes:
        return pack(await self.filesystem.mknod(parent, name, mode, rdev, _caller(context)))

    @answers
    async def mkdir(self, parent: int, name: bytes, mode: int, context: RequestContext) -> EntryAttributes:
        return pack(await self.filesystem.mkdir(parent, name, mode, _caller(context)))

    @answers
    async def symlink(self, parent: int, name: bytes, target: bytes, context: RequestContext) -> EntryAttributes:
        return pack(await self.filesystem.symlink(parent, name, target, _caller(context)))

    @answers
    async def link(self, inode: int, new_parent: int, new_name: bytes, context: RequestContext) -> EntryAttributes:
        return pack(await self.filesystem.link(inode, new_parent, new_name))

    @answers
    async def unlink(self, parent: int, name: bytes, context: RequestContext) -> None:
        await self.filesystem.unlink(parent, name)

    @answers
    async def rmdir(self, parent: int, name: bytes, context: RequestContext) -> None:
        await self.filesystem.rmdir(parent, name)

    @answers
    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, context: RequestContext
    ) -> None:
        await self.filesystem.rename(parent, name, new_parent, new_name, flags)

    @answers
    async def forget(self, references: Sequence[tuple[int, int]]) -> None:
        """Has no answer, so an error has nowhere to go but the log."""
        try:
            await self.filesystem.forget(references)
        except Exception:
            self.counters["defects"] += 1
            log.exception("defect in forget%r", references[:2])

    # -- attributes --------------------------------------------------------------------------------------------

    @answers
    async def getattr(self, inode: int, context: RequestContext) -> EntryAttributes:
        return pack(await self.filesystem.getattr(inode))

    @answers
    async def setattr(
        self,
        inode: int,
        wanted: EntryAttributes,
        fields: SetattrFields,
        handle: int | None,
        context: RequestContext,
    ) -> EntryAttributes:
        changes = AttrChanges(
            mode=wanted.st_mode & 0o7777 if fields.update_mode else None,
            uid=wanted.st_uid if fields.update_uid else None,
            gid=wanted.st_gid if fields.update_gid else None,
            size=wanted.st_size if fields.update_size else None,
            atime_ns=wanted.st_atime_ns if fields.update_atime else None,
            mtime_ns=wanted.st_mtime_ns if fields.update_mtime else None,
            ctime_ns=wanted.st_ctime_ns if fields.update_ctime else None,
        )
        return pack(await self.filesystem.setattr(inode, changes, handle is not None))

    @answers
    async def readlink(self, inode: int, context: RequestContext) -> bytes:
        return _checked(await self.filesystem.readlink(inode), bytes)

    @answers
    async def getxattr(self, inode: int, name: bytes, context: RequestContext) -> bytes:
        return _checked(await self.filesystem.getxattr(inode, name), bytes)

    @answers
    async def setxattr(self, inode: int, name: bytes, value: bytes, context: RequestContext) -> None:
        await self.filesystem.setxattr(inode, name, value)

    @answers
    async def listxattr(self, inode: int, context: RequestContext) -> list[bytes]:
        return [_checked(name, bytes) for name in await self.filesystem.listxattr(inode)]

    @answers
    async def removexattr(self, inode: int, name: bytes, context: RequestContext) -> None:
        await self.filesystem.removexattr(inode, name)

    @answers
    async def statfs(self, context: RequestContext) -> StatvfsData:
        status = await self.filesystem.statfs()
        packed = StatvfsData()
        packed.f_bsize = packed.f_frsize = status.block_bytes
        packed.f_blocks = status.blocks
        packed.f_bfree = packed.f_bavail = status.blocks_free
        packed.f_files = status.files
        packed.f_ffree = packed.f_favail = status.files_free
        packed.f_namemax = status.name_max
        return packed

    # -- files -------------------------------------------------------------------------------------------------

    @answers
    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, context: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        entry, opened = await self.filesystem.create(parent, name, mode, flags, _caller(context))
        return FileInfo(fh=opened.number, keep_cache=opened.keep_pages, direct_io=opened.direct), pack(entry)

    @answers
    async def open(self, inode: int, flags: int, context: RequestContext) -> FileInfo:
        opened = await self.filesystem.open(inode, flags)
        return FileInfo(fh=opened.number, keep_cache=opened.keep_pages, direct_io=opened.direct)

    @answers
    async def read(self, handle: int, offset: int, size: int) -> bytes:
        return _checked(await self.filesystem.read(handle, offset, size), bytes)

    @answers
    async def write(self, handle: int, offset: int, data: bytes) -> int:
        written = _checked(await self.filesystem.write(handle, offset, data), int)
        if not 0 <= written <= len(data):
            raise ValueError(f"the volume says it has written {written} of {len(data)} bytes")
        return written

    @answers
    async def flush(self, handle: int) -> None:
        if not self.filesystem.wants_flush:
            raise FUSEError(errno.ENOSYS)  # the kernel then never asks again
        await self.filesystem.flush(handle)

    @answers
    async def fsync(self, handle: int, datasync: bool) -> None:
        await self.filesystem.fsync(handle, datasync)

    @answers
    async def release(self, handle: int) -> None:
        await self.filesystem.release(handle)

    # -- directories -------------------------------------------------------------------------------------------

    @answers
    async def opendir(self, inode: int, context: RequestContext) -> int:
        number = await self.filesystem.opendir(inode)
        if self.cached_opendir is not None and self.filesystem.directories[number].kept:
            self.cached_opendir.begin()
        return number

    @answers
    async def readdir(self, handle: int, offset: int, token: pyfuse3.ReaddirToken) -> None:
        await self.filesystem.readdir(
            handle, offset, lambda name, entry, after: pyfuse3.readdir_reply(token, name, pack(entry), after)
        )

    @answers
    async def fsyncdir(self, handle: int, datasync: bool) -> None:
        await self.filesystem.fsyncdir(handle, datasync)

    @answers
    async def releasedir(self, handle: int) -> None:
        await self.filesystem.releasedir(handle)

    # -- what is left to the kernel ----------------------------------------------------------------------------

    @answers
    async def access(self, inode: int, mode: int, context: RequestContext) -> bool:
        raise FUSEError(errno.ENOSYS)  # `default_permissions`: the kernel decides from mode and owner

    @answers
    async def poll(self, inode: int, handle: int, waiter: object, context: RequestContext) -> int:
        raise FUSEError(errno.ENOSYS)  # regular files are always ready
