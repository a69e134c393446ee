"""The calls of the tables: on the name `p` (with endings), beside a file `o` and a directory `od`."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fusebackend.testing.likeness.scenes import Owner
from fusebackend.testing.posix.attributes import UTIME_NOW, UTIME_OMIT, utimensat
from fusebackend.testing.posix.case import NOBODY, opened, renameat2

OTHER = 12345
AT_SYMLINK_NOFOLLOW = 0x100

Call = tuple[str, Callable[[], Any]]

OPENINGS = {
    "O_RDONLY": os.O_RDONLY,
    "O_WRONLY": os.O_WRONLY,
    "O_RDWR": os.O_RDWR,
    "O_WRONLY|O_CREAT": os.O_WRONLY | os.O_CREAT,
    "O_RDONLY|O_CREAT": os.O_RDONLY | os.O_CREAT,
    "O_RDWR|O_CREAT|O_EXCL": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "O_WRONLY|O_TRUNC": os.O_WRONLY | os.O_TRUNC,
    "O_WRONLY|O_TRUNC|O_CREAT": os.O_WRONLY | os.O_TRUNC | os.O_CREAT,
    "O_RDONLY|O_NOFOLLOW": os.O_RDONLY | os.O_NOFOLLOW,
    "O_WRONLY|O_NOFOLLOW|O_CREAT": os.O_WRONLY | os.O_NOFOLLOW | os.O_CREAT,
    "O_DIRECTORY": os.O_DIRECTORY,
    "O_RDWR|O_DIRECTORY": os.O_RDWR | os.O_DIRECTORY,
    "O_DIRECTORY|O_CREAT": os.O_DIRECTORY | os.O_CREAT,
    "O_PATH": os.O_PATH,
    "O_PATH|O_NOFOLLOW": os.O_PATH | os.O_NOFOLLOW,
    "O_WRONLY|O_APPEND": os.O_WRONLY | os.O_APPEND,
    "O_NOATIME": os.O_NOATIME,
}


def opening(path: str, flags: int, then: Callable[[int], Any] = lambda fd: "opened") -> Any:
    """Open, call `then`, close. O_NONBLOCK makes a FIFO without a reader ENXIO, so no row blocks."""
    with opened(path, flags | os.O_NONBLOCK, 0o6777) as fd:
        return then(fd)


def on_names(p: str) -> Iterator[Call]:
    """Yield the calls that take a name."""
    yield from (
        (f"stat {p}", lambda: stat.S_IFMT(os.stat(p).st_mode)),
        (f"lstat {p}", lambda: stat.S_IFMT(os.lstat(p).st_mode)),
        (f"unlink {p}", lambda: os.unlink(p)),
        (f"rmdir {p}", lambda: os.rmdir(p)),
        (f"mkdir {p}", lambda: os.mkdir(p, 0o777)),
        (f"mkfifo {p}", lambda: os.mkfifo(p, 0o777)),
        (f"mknod {p} as a file", lambda: os.mknod(p, stat.S_IFREG | 0o666)),
        (f"mknod {p} as a socket", lambda: os.mknod(p, stat.S_IFSOCK | 0o6777)),
        (f"mknod {p} as a device", lambda: os.mknod(p, stat.S_IFCHR | 0o666, os.makedev(1, 7))),
        (f"symlink {p}", lambda: os.symlink("target", p)),
        (f"link {p} new", lambda: os.link(p, "new", follow_symlinks=False)),
        (f"link o {p}", lambda: os.link("o", p)),
        (f"rename {p} new", lambda: os.rename(p, "new")),
        (f"rename {p} new/", lambda: os.rename(p, "new/")),
        (f"rename {p} od/new", lambda: os.rename(p, "od/new")),
        (f"rename o {p}", lambda: os.rename("o", p)),
        (f"rename od {p}", lambda: os.rename("od", p)),
        (f"readlink {p}", lambda: os.readlink(p)),
        (f"listdir {p}", lambda: sorted(os.listdir(p))),
    )
    for size in (0, 10, -1):
        yield f"truncate {p} {size}", partial(os.truncate, p, size)
    yield from (
        (f"chmod {p}", lambda: os.chmod(p, 0o600)),
        (f"chown {p}", lambda: os.chown(p, NOBODY, OTHER)),
        (f"utime {p}", lambda: os.utime(p, ns=(5, 6))),
        (f"access {p}", lambda: [os.access(p, mode) for mode in range(8)]),
    )
    for name, flags in OPENINGS.items():
        yield f"open {p} {name}", partial(opening, p, flags)


def on_attributes(kind: str) -> Iterator[Call]:
    """Yield the calls with an outcome that depends on owner and mode of `p`."""
    for mode in (0, 0o1, 0o444, 0o755, 0o1755, 0o2755, 0o4755, 0o6755, 0o7777):
        yield f"chmod {mode:o}", partial(os.chmod, "p", mode)
    for owner in itertools.product((-1, 0, NOBODY, OTHER), repeat=2):
        if owner != (-1, -1):  # in FUSE it looks like the SETATTR that clears set-ID bits before some writes
            yield from (
                (f"chown {owner}", partial(os.chown, "p", *owner)),
                (f"lchown {owner}", partial(os.lchown, "p", *owner)),
            )
    for times in itertools.product(((0, UTIME_NOW), (0, UTIME_OMIT), (5, 7), (-7, 5), (1 << 33, 9)), repeat=2):
        yield from (
            (f"utimensat {times}", partial(utimensat, Path("p"), times[0], times[1])),
            (f"utimensat of a link {times}", partial(utimensat, Path("p"), times[0], times[1], AT_SYMLINK_NOFOLLOW)),
        )
    for size in (0, 2, 4, 9):
        yield f"truncate {size}", partial(os.truncate, "p", size)
    for mode in range(8):
        yield from (
            (f"access {mode}", partial(os.access, "p", mode)),
            (f"faccessat {mode}", partial(os.access, "p", mode, effective_ids=True)),
        )
    if kind not in ("fifo", "character device"):  # their reads and writes send no FUSE request
        yield from _on_handles()
    yield from (
        ("open p/new", lambda: opening("p/new", os.O_WRONLY | os.O_CREAT)),
        ("mkdir p/new", lambda: os.mkdir("p/new", 0o7777)),
        ("mkfifo p/new", lambda: os.mkfifo("p/new", 0o6777)),
        ("symlink p/new", lambda: os.symlink("x", "p/new")),
        ("link o p/new", lambda: os.link("o", "p/new")),
        ("rename o p/new", lambda: os.rename("o", "p/new")),
        ("rename od p/new", lambda: os.rename("od", "p/new")),
        ("rename p/in new", lambda: os.rename("p/in", "new")),
        ("unlink p/in", lambda: os.unlink("p/in")),
        ("stat p/in", lambda: os.stat("p/in").st_size),
        ("listdir p", lambda: sorted(os.listdir("p"))),
        ("unlink p", lambda: os.unlink("p")),
        ("rename p o", lambda: os.rename("p", "o")),
        ("rename p od", lambda: os.rename("p", "od")),
        ("rename p od/new", lambda: os.rename("p", "od/new")),
        ("exchange p o", lambda: renameat2(Path("p"), Path("o"), 2)),
        ("exchange p od", lambda: renameat2(Path("p"), Path("od"), 2)),
        ("link p new", lambda: os.link("p", "new")),
    )


def _on_handles() -> Iterator[Call]:
    for mode in (0, 0o444, 0o2755, 0o6755):
        yield f"fchmod {mode:o}", partial(opening, "p", os.O_RDONLY, partial(os.fchmod, mode=mode))
    for uid, gid in ((0, -1), (-1, OTHER), (NOBODY, NOBODY)):
        yield f"fchown {(uid, gid)}", partial(opening, "p", os.O_RDONLY, partial(os.fchown, uid=uid, gid=gid))
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC):
        yield f"write {flags:o}", partial(opening, "p", flags, lambda fd: os.write(fd, b"xy"))
    yield from (
        ("write nothing", lambda: opening("p", os.O_RDWR, lambda fd: os.write(fd, b""))),
        ("read", lambda: opening("p", os.O_RDONLY, lambda fd: os.read(fd, 10))),
    )
    for size in (0, 4, 9):  # of a descriptor, os.truncate is ftruncate(2)
        yield f"ftruncate {size}", partial(opening, "p", os.O_RDWR, partial(os.truncate, length=size))
    yield "ftruncate of a reader", lambda: opening("p", os.O_RDONLY, lambda fd: os.ftruncate(fd, 3))


XATTRS = (
    "user.", "user.a", "user", "trusted.a", "trusted.", "security.a", "security.", "system.a", "foo", "foo.bar", "",
    "btrfs.x",
)  # fmt: skip


def on_extended_attributes() -> Iterator[Call]:
    """Yield calls on all namespaces but ACLs. XATTR_CREATE with XATTR_REPLACE is left out: it never reaches a mount."""
    for name in XATTRS:
        for flags in (0, os.XATTR_CREATE, os.XATTR_REPLACE):
            yield f"setxattr {name} {flags}", partial(os.setxattr, "p", name, b"v", flags)
        yield from (
            (f"lsetxattr {name}", partial(os.setxattr, "p", name, b"v", follow_symlinks=False)),
            (f"getxattr {name}", partial(os.getxattr, "p", name)),
            (f"lgetxattr {name}", partial(os.getxattr, "p", name, follow_symlinks=False)),
            (f"removexattr {name}", partial(os.removexattr, "p", name)),
            (f"setxattr, all others and removexattr {name}", partial(_all_of, name)),
        )
    yield "listxattr", lambda: sorted(os.listxattr("p"))


def _all_of(name: str) -> Any:
    os.setxattr("p", name, b"v")
    found = os.getxattr("p", name), sorted(os.listxattr("p"))
    os.removexattr("p", name)
    return *found, sorted(os.listxattr("p"))


def in_sticky_directories() -> Iterator[Call]:
    yield from (
        ("unlink p", lambda: os.unlink("p")),
        ("rmdir p", lambda: os.rmdir("p")),
        ("rename p new", lambda: os.rename("p", "new")),
        ("rename p o", lambda: os.rename("p", "o")),
        ("rename o p", lambda: os.rename("o", "p")),
        ("rename od p", lambda: os.rename("od", "p")),
        ("rename p od/new", lambda: os.rename("p", "od/new")),
        ("exchange p o", lambda: renameat2(Path("p"), Path("o"), 2)),
        ("listdir", lambda: sorted(os.listdir("."))),
        ("lstat p", lambda: os.lstat("p").st_uid),
        ("link p new", lambda: os.link("p", "new", follow_symlinks=False)),
        ("open p O_CREAT", lambda: opening("p", os.O_WRONLY | os.O_CREAT)),
        ("open p O_CREAT|O_EXCL", lambda: opening("p", os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
        ("open new O_CREAT", lambda: opening("new", os.O_WRONLY | os.O_CREAT)),
        ("truncate p", lambda: os.truncate("p", 0)),
    )


OWNERS: tuple[Owner, ...] = ((0, 0), (NOBODY, NOBODY), (OTHER, OTHER))
