"""A file system that finds a file by several spellings of its name, as vfat, exFAT, NTFS and CIFS do: FUSE over a
directory, in a process of its own.

    with folding.mounted(tmp_path / "disk") as disk:
        (disk / "key").write_text("x")
        assert (disk / "KEY").read_text() == "x" and os.listdir(disk) == ["key"]

Names are the same if they differ in case or Unicode form alone, or in dots and spaces at the end, which are not stored.
A name of more than eight letters is found by its first six and `~1` as well. `lacks=` is what calls for links, nodes
and extended attributes give: "ENOTSUP", "ENOSYS" or "EPERM". The kernel caches none of its answers. The process ends
with its mount, or after `LIMIT_S`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIMIT_S = 300
START_LIMIT_S = 30.0


@contextlib.contextmanager
def mounted(place: Path, *, lacks: str = "") -> Iterator[Path]:
    """Mount on `place/folding`, over `place/stored`; give the mount point. Skips the test where nothing can be
    mounted."""

    stored, point = place / "stored", place / "folding"
    stored.mkdir(parents=True)
    point.mkdir()
    words = [sys.executable, __file__, str(stored), str(point), lacks]
    process = subprocess.Popen(words)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not os.path.ismount(point):
            assert process.poll() is None and time.monotonic() < deadline, "the file system did not start"
            time.sleep(0.005)
        yield point
    finally:
        subprocess.run(["fusermount3", "-u", "-z", "--", point], check=False, timeout=START_LIMIT_S)
        process.kill()  # a descriptor of a file may be open, and would keep it
        process.wait()


def stored_as(name: str) -> str:
    return name.rstrip(". ") or name


def folded(name: str) -> str:
    return unicodedata.normalize("NFC", stored_as(name)).casefold()


def serve(stored: str, point: str, lacks: str) -> None:
    import pyfuse3
    import trio
    from pyfuse3 import FUSEError

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            try:
                return function(*args)
            except OSError as error:
                raise FUSEError(error.errno or errno.EIO) from None

        return call

    class Folding(pyfuse3.Operations):  # type: ignore[misc]
        """Paths by inode number. Nothing is ever forgotten."""

        def __init__(self) -> None:
            self.paths = {pyfuse3.ROOT_INODE: os.fsencode(stored)}
            self.listings: dict[int, list[bytes]] = {}

        def at(self, inode: int) -> bytes:
            return self.paths[inode]

        def find(self, parent: int, name: bytes) -> bytes:
            """The path of a name, as it is stored; of one that is not there, as it would be."""
            above, wanted = self.at(parent), folded(os.fsdecode(name))
            for each in sorted(os.listdir(above)):
                shown, stem = os.fsdecode(each), folded(os.fsdecode(each)).partition(".")[0]
                if folded(shown) == wanted or (len(stem) > 8 and wanted == stem[:6] + "~1"):
                    return above + b"/" + each
            return above + b"/" + os.fsencode(stored_as(os.fsdecode(name)))

        def attributes(self, path: bytes) -> Any:
            found, entry = os.lstat(path), pyfuse3.EntryAttributes()
            for field in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size", "st_blocks"):
                setattr(entry, field, getattr(found, field))
            for field in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns"):
                setattr(entry, field, getattr(found, field))
            entry.st_blksize = 512
            entry.st_ino = found.st_ino if path != self.paths[pyfuse3.ROOT_INODE] else pyfuse3.ROOT_INODE
            entry.generation = entry.entry_timeout = entry.attr_timeout = 0
            self.paths[entry.st_ino] = path
            return entry

        def new(self, parent: int, name: bytes) -> bytes:
            path = self.find(parent, name)
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, "")
            return path

        def made(self, path: bytes, context: Any) -> Any:
            os.chown(path, context.uid, context.gid, follow_symlinks=False)
            return self.attributes(path)

        @failing
        def lookup(self, parent: int, name: bytes, context: Any) -> Any:
            return self.attributes(self.find(parent, name))

        @failing
        def getattr(self, inode: int, context: Any) -> Any:
            return self.attributes(self.at(inode))

        @failing
        def setattr(self, inode: int, attr: Any, fields: Any, handle: Any, context: Any) -> Any:
            path = self.at(inode)
            if fields.update_size:
                os.truncate(path, attr.st_size)
            if fields.update_mode:
                os.chmod(path, stat.S_IMODE(attr.st_mode))
            if fields.update_uid or fields.update_gid:
                uid, gid = attr.st_uid if fields.update_uid else -1, attr.st_gid if fields.update_gid else -1
                os.chown(path, uid, gid, follow_symlinks=False)
            if fields.update_atime or fields.update_mtime:
                before = os.lstat(path)
                atime_ns = attr.st_atime_ns if fields.update_atime else before.st_atime_ns
                mtime_ns = attr.st_mtime_ns if fields.update_mtime else before.st_mtime_ns
                os.utime(path, ns=(atime_ns, mtime_ns), follow_symlinks=False)
            return self.attributes(path)

        @failing
        def readlink(self, inode: int, context: Any) -> bytes:
            return os.readlink(self.at(inode))

        @failing
        def mknod(self, parent: int, name: bytes, mode: int, rdev: int, context: Any) -> Any:
            self._has_them()
            path = self.new(parent, name)
            os.mknod(path, mode & ~context.umask, rdev)
            return self.made(path, context)

        @failing
        def mkdir(self, parent: int, name: bytes, mode: int, context: Any) -> Any:
            path = self.new(parent, name)
            os.mkdir(path, mode & ~context.umask)
            return self.made(path, context)

        @failing
        def symlink(self, parent: int, name: bytes, target: bytes, context: Any) -> Any:
            self._has_them()
            path = self.new(parent, name)
            os.symlink(target, path)
            return self.made(path, context)

        @failing
        def link(self, inode: int, parent: int, name: bytes, context: Any) -> Any:
            self._has_them()
            path = self.new(parent, name)
            os.link(self.at(inode), path)
            return self.attributes(path)

        @failing
        def unlink(self, parent: int, name: bytes, context: Any) -> None:
            os.unlink(self.find(parent, name))

        @failing
        def rmdir(self, parent: int, name: bytes, context: Any) -> None:
            os.rmdir(self.find(parent, name))

        @failing
        def rename(self, parent: int, name: bytes, to: int, to_name: bytes, flags: int, context: Any) -> None:
            old, new = self.find(parent, name), self.find(to, to_name)
            if flags and not (flags == pyfuse3.RENAME_NOREPLACE and not os.path.lexists(new)):
                raise OSError(errno.EEXIST if flags == pyfuse3.RENAME_NOREPLACE else errno.EINVAL, "")
            os.rename(old, new)
            for inode, path in self.paths.items():
                if path == old or path.startswith(old + b"/"):
                    self.paths[inode] = new + path[len(old) :]

        @failing
        def opendir(self, inode: int, context: Any) -> int:
            self.listings[inode] = os.listdir(self.at(inode))
            return inode

        async def readdir(self, handle: int, start: int, token: Any) -> None:
            for number, name in enumerate(self.listings[handle][start:], start + 1):
                path = self.at(handle) + b"/" + name
                with contextlib.suppress(FileNotFoundError):
                    if not pyfuse3.readdir_reply(token, name, self.attributes(path), number):
                        return

        @failing
        def open(self, inode: int, flags: int, context: Any) -> Any:
            return pyfuse3.FileInfo(fh=os.open(self.at(inode), flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)))

        @failing
        def create(self, parent: int, name: bytes, mode: int, flags: int, context: Any) -> Any:
            path = self.new(parent, name)
            fd = os.open(path, (flags | os.O_CREAT) & ~os.O_NOFOLLOW, mode & ~context.umask)
            return pyfuse3.FileInfo(fh=fd), self.made(path, context)

        @failing
        def read(self, handle: int, offset: int, size: int) -> bytes:
            return os.pread(handle, size, offset)

        @failing
        def write(self, handle: int, offset: int, data: bytes) -> int:
            return os.pwrite(handle, data, offset)

        @failing
        def release(self, handle: int) -> None:
            os.close(handle)

        @failing
        def statfs(self, context: Any) -> Any:
            found, answer = os.statvfs(stored), pyfuse3.StatvfsData()
            for field in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail"):
                setattr(answer, field, getattr(found, field))
            answer.f_namemax = 255
            return answer

        def _has_them(self) -> None:
            if lacks:
                raise OSError(getattr(errno, lacks), "")

        @failing
        def getxattr(self, inode: int, name: bytes, context: Any) -> bytes:
            self._has_them()
            return os.getxattr(self.at(inode), name)

        @failing
        def setxattr(self, inode: int, name: bytes, value: bytes, context: Any) -> None:
            self._has_them()
            os.setxattr(self.at(inode), name, value)

        @failing
        def listxattr(self, inode: int, context: Any) -> list[bytes]:
            self._has_them()
            return [os.fsencode(name) for name in os.listxattr(self.at(inode))]

        @failing
        def removexattr(self, inode: int, name: bytes, context: Any) -> None:
            self._has_them()
            os.removexattr(self.at(inode), name)

    options = {"fsname=folding", "default_permissions", *(("allow_other",) if os.geteuid() == 0 else ())}
    pyfuse3.init(Folding(), point, options)
    signal.alarm(LIMIT_S)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
