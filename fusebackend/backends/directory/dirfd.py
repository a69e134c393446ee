"""File descriptors as places in a tree: open one step at a time, never through a symbolic link.

Calls on a file go through `/proc/self/fd/N` of a descriptor that was opened with O_PATH and checked; calls on a name go
through the descriptor of its directory. So a directory that is swapped for a link meanwhile can't lead a call somewhere
else. O_PATH neither reads nor blocks, and opens FIFOs and devices without waking them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import resource
import stat
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from fusebackend.base.errors import oserror
from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE

CACHED_DESCRIPTORS = 1024
"""O_PATH descriptors kept open at most; a quarter of the process's limit, if that is less."""

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK
FICLONE = getattr(fcntl, "FICLONE", 0x40049409)  # the module has it from Python 3.13 on; linux/fs.h
NO_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM})
"""Of FICLONE: the file system shares no blocks, or not those of such files; or they are on different ones."""
NO_FLAGS = frozenset({errno.ENOTTY, errno.EOPNOTSUPP})
"""Of FS_IOC_GETFLAGS: the file system has no flags."""
CHECKED_LEVELS = 100
"""Levels of a tree that are looked through before it is removed: each one takes a descriptor."""
LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Flag(NamedTuple):
    """A bit in the answer of an ioctl(2)."""

    request: int
    size: int
    """Of the answer, in bytes."""
    offset: int
    bit: int


_CASEFOLD = _Flag(0x80006601 | struct.calcsize("l") << 16, struct.calcsize("l"), 0, 1 << 30)
"""Of a directory: FS_IOC_GETFLAGS, FS_CASEFOLD_FL; linux/fs.h."""
_ASCII_CI = _Flag(0x80705864, 112, 92, 1 << 12)
"""Of the file system: XFS_IOC_FSGEOMETRY_V1, XFS_FSOP_GEOM_FLAGS_DIRV2CI; xfs_fs.h."""

EXACT: dict[int, _Flag | None] = {
    0xEF53: _CASEFOLD,  # ext4
    0xF2F52010: _CASEFOLD,  # f2fs
    0x01021994: _CASEFOLD,  # tmpfs
    0x794C7630: _CASEFOLD,  # overlayfs
    0x58465342: _ASCII_CI,  # xfs
    0x9123683E: None,  # btrfs
    0x9FA0: None,  # proc
}
"""File systems that find a file by the bytes of its name and by nothing else, unless a flag is set: `f_type` of
statfs(2). Of others, such as vfat, CIFS, NFS and FUSE, this can't be told."""


class Descriptor:
    """A descriptor that is closed when the last reference to it goes; keep one in a local variable while using `fd`."""

    __slots__ = ("_is_exact", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._is_exact: bool | None = None

    @property
    def is_exact(self) -> bool:
        """Of a directory: whether it is known to find a file by its name alone, and by no other spelling."""
        if self._is_exact is None:
            self._is_exact = _is_exact(self)
        return self._is_exact

    def __del__(self, _close: Callable[[int], None] = os.close, _bad: int = errno.EBADF) -> None:
        """close(2), which lets go of a descriptor in any case. Of a file system that has gone, such as sshfs, it also
        says that what was open there is lost, which nobody waits for."""
        try:
            _close(self.fd)
        except OSError as error:
            if error.errno == _bad:
                raise

    @property
    def path(self) -> str:
        """A path that leads to exactly this file, even if it is a symbolic link or loses its name."""
        return f"/proc/self/fd/{self.fd}"


def most_cached() -> int:
    """How many O_PATH descriptors are kept open at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CACHED_DESCRIPTORS if soft < 0 else max(16, min(CACHED_DESCRIPTORS, soft // 4))


def open_root(path: str) -> Descriptor:
    """The directory at `path`, following links to it: it is the caller's choice.

    Raises:
        FileNotFoundError, NotADirectoryError, PermissionError: with one line for the user.
    """
    try:
        root = Descriptor(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        if not os.access(path, os.X_OK, effective_ids=True):  # which O_PATH does not ask: nothing in it would be found
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return root
    except OSError as error:
        words = {
            errno.ENOENT: f"There is no directory '{path}'",
            errno.ENOTDIR: f"'{path}' is not a directory",
            errno.EACCES: f"The directory '{path}' may not be entered",
        }
        raise OSError(error.errno, words.get(error.errno or 0, error.strerror)) from None


def open_names(directory: Descriptor) -> Descriptor:
    """The directory behind an O_PATH descriptor, opened so that its names can be read."""
    return Descriptor(os.open(".", LIST_FLAGS, dir_fd=directory.fd))


def names_between(above: Descriptor, below: Descriptor) -> bytes | None:
    """Return the names on the way from a directory to one below it, with `/` between them, as they are at this moment.
    None if it is not below.

    Raises:
        OSError: ENAMETOOLONG for a way that is longer than the kernel tells.
    """
    start = os.readlink(os.fsencode(above.path)).rstrip(b"/") + b"/"
    end = os.readlink(os.fsencode(below.path))
    return end[len(start) :] if end.startswith(start) else None


def _is_exact(directory: Descriptor) -> bool:
    import ctypes

    found = ctypes.create_string_buffer(_STATFS_BYTES)
    _check(_libc().fstatfs(directory.fd, found))
    kind = _KIND.unpack_from(found)[0] & 0xFFFFFFFF
    if (flag := EXACT.get(kind)) is None:
        return kind in EXACT
    try:
        opened = open_names(directory)
        answer = fcntl.ioctl(opened.fd, flag.request, bytes(flag.size))
    except OSError as error:
        return error.errno in NO_FLAGS  # not where the directory may not be read
    return not _FLAGS.unpack_from(answer, flag.offset)[0] & flag.bit


def rename(source: Descriptor, name: bytes, target: Descriptor, new_name: bytes, flags: int) -> None:
    """`renameat2(2)`: `os.rename` between two directories, and the flags that Python does not know."""
    if flags == 0:
        os.rename(name, new_name, src_dir_fd=source.fd, dst_dir_fd=target.fd)
        return
    if flags not in (RENAME_NOREPLACE, RENAME_EXCHANGE):
        raise oserror(errno.EINVAL)
    _check(_libc().renameat2(source.fd, name, target.fd, new_name, flags))


def write_all(file: Descriptor, data: bytes, offset: int) -> int:
    """`pwrite(2)`. A short write is tried again, which tells why it was short."""
    written = os.pwrite(file.fd, data, offset)
    while written < len(data):
        written += os.pwrite(file.fd, memoryview(data)[written:], offset + written)
    return written


def clone(source: Descriptor, target: int) -> bool:
    """Have an empty file share the blocks of another one. False where they can't."""
    try:
        fcntl.ioctl(target, FICLONE, source.fd)
    except OSError as error:
        if error.errno in NO_CLONE:
            return False
        raise
    return True


def sync_filesystem(directory: Descriptor) -> None:
    """`syncfs(2)` of the file system that holds the directory."""
    opened = open_names(directory)
    _check(_libc().syncfs(opened.fd))


def born_ns(directory: Descriptor, name: bytes) -> int | None:
    """When the file of a name was made, by the clock of its file system. None if that does not say."""
    mask, _, _, _, seconds, nanoseconds = _statx(directory, name, _STATX_BTIME)
    return int(seconds) * 1_000_000_000 + int(nanoseconds) if mask & _STATX_BTIME else None


def require_removable(directory: Descriptor, name: bytes) -> None:
    """Raise what unlink(2) or rmdir(2) of a name, or of one below it, would raise for what this process may do and for
    the file's flags (chattr(1)): may_delete() in fs/namei.c. A level that is too deep for its descriptors is passed
    over."""
    left = [(directory, [name], b"")]
    while left:
        at, names, path = left.pop()
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=at.fd, effective_ids=True):
            raise _not_removable(errno.EACCES, path)
        theirs_stay = _keeps_files_of_others(at)
        for name in names:
            try:
                _, attributes, owner, mode, _, _ = _statx(at, name, _STATX_TYPE | _STATX_MODE | _STATX_UID)
                below = []
                if stat.S_ISDIR(mode) and path.count(b"/") < CHECKED_LEVELS:
                    inner = Descriptor(os.open(name, LIST_FLAGS, dir_fd=at.fd))
                    below = list(map(os.fsencode, os.listdir(inner.fd)))
            except FileNotFoundError:
                continue
            if attributes & _STATX_ATTR_KEPT or (theirs_stay and owner != os.geteuid()):
                raise _not_removable(errno.EPERM, path + name)
            if attributes & _STATX_ATTR_MOUNT_ROOT:
                raise _not_removable(errno.EBUSY, path + name)
            if below:
                left.append((inner, below, path + name + b"/"))


def _keeps_files_of_others(directory: Descriptor) -> bool:
    """Return True for a directory with the sticky bit where this process may remove its own files alone."""
    if os.geteuid() == 0:
        return False
    status = os.fstat(directory.fd)
    return bool(status.st_mode & stat.S_ISVTX) and status.st_uid != os.geteuid()


def _not_removable(number: int, path: bytes) -> OSError:
    shown = path.decode("utf-8", "surrogateescape")
    what = f"'{shown}' or what is in it" if path else "nothing in its directory"
    return OSError(number, f"{os.strerror(number)}: {what} can't be removed")


def _statx(directory: Descriptor, name: bytes, wanted: int) -> tuple[int, ...]:
    """`statx(2)`: mask, attributes, owner, mode, and the time of birth as seconds and nanoseconds. Zeros where it can't
    be asked."""
    statx, new = _statx_call()
    found = new()
    try:
        if statx(directory.fd, name, _AT_SYMLINK_NOFOLLOW, wanted, found):
            _check(-1)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # a container's seccomp rules from before Linux 4.11
            raise
    return _STATX.unpack_from(found)


_STATFS_BYTES = 256
_KIND = struct.Struct("l")
_FLAGS = struct.Struct("I")

# include/uapi/linux/stat.h
_STATX_BYTES = 256
_STATX_TYPE, _STATX_MODE, _STATX_UID, _STATX_BTIME = 0x1, 0x2, 0x8, 0x800
_STATX_ATTR_KEPT, _STATX_ATTR_MOUNT_ROOT = 0x10 | 0x20, 0x2000
"""Immutable, or append-only; the root of a mount."""
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX = struct.Struct("=I4xQ4xI4xH50xqI")


@functools.cache
def _libc() -> Any:
    import ctypes  # 10 ms, and most volumes never need it

    library = ctypes.CDLL(None, use_errno=True)
    library.renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    library.fstatfs.argtypes = (ctypes.c_int, ctypes.c_char_p)
    library.syncfs.argtypes = (ctypes.c_int,)
    return library


@functools.cache
def _statx_call() -> tuple[Any, Any]:
    """The function, and what makes room for its answer. Types of arguments would cost half of a call, and it is asked
    for each file that is removed."""
    import ctypes

    return _libc().statx, ctypes.c_char * _STATX_BYTES


def _check(result: int) -> None:
    if result != 0:
        import ctypes

        raise oserror(ctypes.get_errno())


# -- open files -----------------------------------------------------------------------------------------------

Open: TypeAlias = Callable[[int], Descriptor]
"""Opens the file with an access mode; flags such as O_APPEND or O_TRUNC have no meaning where offsets are given."""


class OpenFile:
    """The descriptors of one file that is open: one for all readers, another for all writers.

    A descriptor for writing goes with the last writer, not with the last reader: a file that is open for writing can't
    be executed (ETXTBSY). A read does not say its handle: O_NOATIME counts while all handles have it (`unnoted`). Calls
    are made with the volume's lock held.
    """

    __slots__ = ("_descriptors", "_handles", "unnoted")

    def __init__(self) -> None:
        self._descriptors: dict[bool, Descriptor] = {}  # by whether it is for writing
        self._handles = [0, 0]  # for reading, for writing
        self.unnoted = 0

    @property
    def descriptor(self) -> Descriptor:
        """Any descriptor of the file."""
        assert self._descriptors, "an open file without a handle"
        return self._descriptors.get(False) or self._descriptors[True]

    @property
    def writing(self) -> Descriptor | None:
        """None when no handle is for writing."""
        return self._descriptors.get(True)

    @property
    def idle(self) -> bool:
        return not self._descriptors

    def acquire(self, flags: int, open_file: Open) -> None:
        """One more handle, with these `open(2)` flags."""
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if writes not in self._descriptors:
            self._descriptors[writes] = _open_for_writing(flags, open_file) if writes else open_file(os.O_RDONLY)
        self._handles[writes] += 1
        if flags & os.O_NOATIME or self.unnoted:
            self._count_unnoted(flags, 1)

    def release(self, flags: int) -> None:
        """One handle less."""
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        self._handles[writes] -= 1
        assert self._handles[writes] >= 0, "more handles were released than opened"
        if not self._handles[writes]:
            del self._descriptors[writes]
        if flags & os.O_NOATIME or self.unnoted:
            self._count_unnoted(flags, -1)

    def _count_unnoted(self, flags: int, one: int) -> None:
        self.unnoted += one if flags & os.O_NOATIME else 0
        noatime = os.O_NOATIME if self.unnoted == sum(self._handles) else 0
        for each in self._descriptors.values():
            with contextlib.suppress(PermissionError):  # the server does not own the file
                kept = fcntl.fcntl(each.fd, fcntl.F_GETFL) & ~os.O_NOATIME
                fcntl.fcntl(each.fd, fcntl.F_SETFL, kept | noatime)


def _open_for_writing(flags: int, open_file: Open) -> Descriptor:
    """A handle for writing can read as well: the kernel reads a page before it changes a part of it."""
    try:
        return open_file(os.O_RDWR)
    except PermissionError:
        if flags & os.O_ACCMODE == os.O_RDWR:
            raise
        return open_file(os.O_WRONLY)  # a file that we may write and not read
