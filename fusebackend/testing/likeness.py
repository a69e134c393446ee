"""Likeness cases: make each call of a large table on a mount and in a plain directory, and compare every outcome.

    from fusebackend.testing.likeness import LikenessCases

    class TestMine(LikenessCases):
        @pytest.fixture(scope="class")
        @classmethod
        def root(cls):
            yield pathlib.Path("/mnt/mine")

A row is a scene (files of all kinds with owners and modes), a user, and one call. The comparison covers the call's
result or errno, and for everything in the scene afterwards: type, mode, owner, link count, size, contents, target,
device number, the name it had before, and whether its modification and change time have moved. No row holds an expected
outcome; the plain directory gives it, on the same kernel. ext4 and tmpfs agree on all rows.

There are tens of thousands of rows; `rows_per_table` of them are drawn, the same each time. Needs root, for the users.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import random
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fusebackend.testing.posix.attributes import UTIME_NOW, UTIME_OMIT, utimensat
from fusebackend.testing.posix.case import NOBODY, in_child, opened, renameat2

# -- scenes ------------------------------------------------------------------------------------------------------
#
# Directories of files of all kinds, each kind made by its name in `KINDS`.


Owner = tuple[int, int]

OLD_NS = 1_000_000_000 * 10**9


class Thing(NamedTuple):
    """A file to make in a scene. With `mode` None it has the mode of its kind."""

    kind: str
    name: str
    owner: Owner = (0, 0)
    mode: int | None = None


class Scene(NamedTuple):
    """A directory and its contents."""

    things: tuple[Thing, ...]
    mode: int = 0o755
    owner: Owner = (0, 0)


def _file(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"data")


def _link(to: str = "") -> Callable[[str], None]:
    """Return a maker of symbolic links to their own name with `to` after it."""

    def make(path: str) -> None:
        os.symlink(os.path.basename(path) + to, path)

    return make


def _second_name(path: str) -> None:
    os.link(path.removesuffix(".twin"), path)


KINDS: dict[str, dict[str, Callable[[str], None]]] = {
    "file": {"": _file},
    "directory": {"": os.mkdir},
    "full directory": {"": os.mkdir, "/in": _file},
    "fifo": {"": partial(os.mknod, mode=stat.S_IFIFO | 0o644)},
    "socket": {"": partial(os.mknod, mode=stat.S_IFSOCK | 0o644)},
    "character device": {"": partial(os.mknod, mode=stat.S_IFCHR | 0o644, device=os.makedev(1, 3))},
    "block device": {"": partial(os.mknod, mode=stat.S_IFBLK | 0o644, device=os.makedev(7, 99))},
    "link to a file": {".to": _file, "": _link(".to")},
    "link to a directory": {".to": os.mkdir, ".to/in": _file, "": _link(".to")},
    "dangling link": {"": partial(os.symlink, "nowhere")},
    "link to itself": {"": _link()},
    "file with two names": {"": _file, ".twin": _second_name},
    "nothing": {},
}
"""What is made, in order: a maker of a file at a path by what the path has after the name of the thing."""

DEVICES = ("character device", "block device")


def build(case: str, scene: Scene) -> dict[str, os.stat_result]:
    """Make a scene as the directory `case`; return `lstat` by path. All times but the change times are old."""
    os.mkdir(case)
    made = [case]
    for thing in scene.things:
        path = f"{case}/{thing.name}"
        for ending, make in KINDS[thing.kind].items():
            make(path + ending)
            os.lchown(path + ending, *thing.owner)
            made.append(path + ending)
        if thing.mode is not None and path in made and not os.path.islink(path):
            os.chmod(path, thing.mode)
    os.chown(case, *scene.owner)
    os.chmod(case, scene.mode)
    for path in reversed(made):
        os.utime(path, ns=(OLD_NS, OLD_NS), follow_symlinks=False)
    return {path: os.lstat(path) for path in made}


# -- calls -------------------------------------------------------------------------------------------------------
#
# On the name `p` (with endings), beside a file `o` and a directory `od`.


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


# -- observing ---------------------------------------------------------------------------------------------------
#
# Make the calls of many rows in one directory, and record everything that is visible afterwards.


BATCH = 200
"""This many scenes are made, then one wait for the clock that stamps files (`TICK_S`), then the calls."""

TICK_S = 0.03


class User(NamedTuple):
    """The user that makes a call; `ROOT` for root's own."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


ROOT = User("root", 0, 0)


class Row(NamedTuple):
    label: str
    scene: Scene
    user: User
    call: Callable[[], Any]
    """Made with the scene as the working directory."""


def observe(root: Path, rows: Sequence[Row]) -> list[Any]:
    """Return the outcome of each row. The process becomes other users, and back: call it in a child."""
    seen: list[Any] = []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        cases = [f"{root}/{number}" for number in range(len(batch))]
        before = [build(case, row.scene) for case, row in zip(cases, batch, strict=True)]
        time.sleep(TICK_S)
        seen += [_made(*each) for each in zip(cases, before, batch, strict=True)]
        for case in cases:
            shutil.rmtree(case)
    return seen


def _made(case: str, before: dict[str, os.stat_result], row: Row) -> Any:
    os.chdir(case)
    os.umask(0o022)
    if row.user is not ROOT:
        os.setgroups(row.user.groups)
        os.setresgid(row.user.gid, row.user.gid, 0)
        os.setresuid(row.user.uid, row.user.uid, 0)
    try:
        answer = row.call()
    except OSError as error:
        answer = errno.errorcode[error.errno or 0]
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups([])
        os.chdir("/")
    known = {status.st_ino: (os.path.relpath(path, case), status) for path, status in before.items()}
    return answer, [_shown(path, status, case, known) for path, status in _walk(case)]


def _walk(path: str) -> Iterator[tuple[str, os.stat_result]]:
    status = os.lstat(path)
    yield path, status
    if stat.S_ISDIR(status.st_mode):
        for name in sorted(os.listdir(path)):
            yield from _walk(f"{path}/{name}")


def _shown(path: str, status: os.stat_result, case: str, known: dict[int, tuple[str, os.stat_result]]) -> Any:
    """Record one file. Access times are left out: file systems and mount options differ in the rules for them."""
    was, old = known.get(status.st_ino, ("new", status))
    moved = [
        name
        for name, then, now in (
            ("mtime", old.st_mtime_ns, status.st_mtime_ns),
            ("ctime", old.st_ctime_ns, status.st_ctime_ns),
        )
        if then != now
    ]
    kind = stat.S_IFMT(status.st_mode)
    content: Any = None
    if kind == stat.S_IFLNK:
        content = os.readlink(path)
    elif kind == stat.S_IFREG:
        with open(path, "rb") as file:
            content = status.st_size, file.read(100)
    owner = status.st_uid, status.st_gid
    return os.path.relpath(path, case), was, oct(status.st_mode), status.st_nlink, owner, status.st_rdev, moved, content


# -- tables ------------------------------------------------------------------------------------------------------
#
# Rows that combine scenes, users and calls.


USER = User("a user", NOBODY, NOBODY)
MEMBER = User("a member of the group", NOBODY, NOBODY, (OTHER,))
BESIDE = (Thing("file", "o", (NOBODY, NOBODY)), Thing("directory", "od", (NOBODY, NOBODY)))


def names() -> Iterator[Row]:
    """Yield rows for every kind of file, under its name and with every ending that a path can have."""
    for kind, user, ending in itertools.product(KINDS, (ROOT, USER), ("", "/", "/.", "/..", "/x", "/../p")):
        scene = Scene((Thing(kind, "p", (user.uid, user.gid)), *BESIDE), 0o777)
        for label, call in on_names("p" + ending):
            if kind in DEVICES and label.startswith("open") and "O_PATH" not in label:
                continue  # the driver answers, and a mount with `nodev` refuses it
            yield Row(f"{kind}, {user.name}: {label}", scene, user, call)


MODES = (None, 0o6777, 0o0700, 0o2770, 0o1777, 0o4711, 0o2755, 0o0077)


def attributes() -> Iterator[Row]:
    """Yield rows that combine owners, groups and modes with every user."""
    for kind, mode, owner, user in _owned():
        for label, call in on_attributes(kind):
            yield _owned_row(kind, mode, owner, user, label, call)


def extended_attributes() -> Iterator[Row]:
    for kind, mode, owner, user in _owned():
        if mode in (None, 0o1777, 0o0700):
            for label, call in on_extended_attributes():
                yield _owned_row(kind, mode, owner, user, label, call)


def _owned() -> Iterator[tuple[str, int | None, tuple[int, int], User]]:
    kinds = ("file", "directory", "full directory", "fifo", "character device", "link to a file", "dangling link",
             "link to a directory", "file with two names")  # fmt: skip
    owners = ((0, 0), (NOBODY, NOBODY), (OTHER, NOBODY), (NOBODY, OTHER), (0, OTHER))
    for kind, mode, owner, user in itertools.product(kinds, MODES, owners, (ROOT, USER, MEMBER)):
        if user is not MEMBER or owner[1] == OTHER:
            yield kind, mode, owner, user


def _owned_row(kind: str, mode: int | None, owner: tuple[int, int], user: User, label: str, call: object) -> Row:
    shown = "" if mode is None else f" {mode:o}"
    scene = Scene((Thing(kind, "p", owner, mode), *BESIDE), 0o777)
    return Row(f"{kind}{shown} of {owner}, {user.name}: {label}", scene, user, call)  # type: ignore[arg-type]


def renaming() -> Iterator[Row]:
    """Yield renames of every kind over every kind, in one directory and between two, and with invalid names."""
    for kind, target, flags, source in itertools.product(KINDS, KINDS, (0, 1, 2, 3, 8), ("a/s", "b/s")):
        things = (Thing("directory", "a"), Thing("directory", "b"), Thing(kind, source), Thing(target, "b/d"))
        call = partial(renameat2, Path(source), Path("b/d"), flags)
        yield Row(f"renameat2 of {kind} {source} over {target} b/d, flags {flags}", Scene(things), ROOT, call)
    some = ("file", "directory", "full directory", "link to a directory", "nothing")
    for kind, target, end, other in itertools.product(some, some, *[("", "/", "/.", "/..")] * 2):
        call = partial(os.rename, "s" + end, "d" + other)
        scene = Scene((Thing(kind, "s"), Thing(target, "d")))
        yield Row(f"rename of {kind} s{end} over {target} d{other}", scene, ROOT, call)
    scene = Scene((Thing("directory", "a"), Thing("directory", "a/b"), Thing("file", "a/f")))
    for (old, new), flags in itertools.product(
        (("a", "a/b"), ("a", "a/b/c"), ("a/b", "a"), ("a", "a"), ("a/b", "a/../a/b"), ("a/f", "a/b"), ("a/b", "a/f"),
         ("a/f", "a/f/x"), ("a/b", ".."), (".", "a/x"), ("..", "a/x"), ("a", "a/n")),
        (0, 1, 2),
    ):  # fmt: skip
        call = partial(renameat2, old, new, flags)  # as written: `Path` would normalise the names
        yield Row(f"renameat2 {old} {new}, flags {flags}", scene, ROOT, call)


def sticky_directories() -> Iterator[Row]:
    """Yield calls of one user in directories of every mode and owner, on files of every owner."""
    kinds = ("file", "directory", "full directory", "dangling link", "fifo")
    for mode, above, kind, owner, other in itertools.product(
        (0o1777, 0o777, 0o755, 0o1755, 0o555, 0o333, 0o1733), OWNERS, kinds, OWNERS, OWNERS
    ):
        scene = Scene((Thing(kind, "p", owner), Thing("file", "o", other), BESIDE[1]), mode, above)
        for label, call in in_sticky_directories():
            if other == OWNERS[0] or " o" in label:
                shown = f"{kind} of {owner} and a file of {other} in {mode:o} of {above}"
                yield Row(f"{shown}, a user: {label}", scene, USER, call)


TABLES = (names, attributes, extended_attributes, renaming, sticky_directories)


# -- the cases ---------------------------------------------------------------------------------------------------


LIMIT_S = 3600.0
SHOWN = 20


class LikenessCases:
    """Override the fixture `root`."""

    rows_per_table: int = 150
    """How many rows of each table are drawn; 0 takes all."""

    @pytest.fixture
    def root(self) -> Path:
        raise NotImplementedError("override the fixture `root`: it gives the directory under test, as a Path")

    @pytest.fixture(scope="class")
    @classmethod
    def plain(cls) -> Iterator[Path]:
        """A plain directory, the reference."""
        if os.geteuid() != 0:
            pytest.skip("needs root")
        with tempfile.TemporaryDirectory() as directory:
            yield Path(directory)

    @pytest.mark.parametrize("table", TABLES)
    def test_calls(self, root: Path, plain: Path, table: Callable[[], Iterable[Row]]) -> None:
        rows = _drawn(table, self.rows_per_table)
        wanted, found = (in_child(partial(observe, where, rows), LIMIT_S) for where in (plain, root))
        wrong = [
            f"{row.label}:\n  a plain directory: {right}\n  here:              {here}"
            for row, right, here in zip(rows, wanted, found, strict=True)
            if right != here
        ]
        assert not wrong, f"{len(wrong)} of {len(rows)} rows differ:\n" + "\n".join(wrong[:SHOWN])


@functools.cache
def _drawn(table: Callable[[], Iterable[Row]], count: int) -> list[Row]:
    rows = list(table())
    return random.Random(table.__name__).sample(rows, count) if 0 < count < len(rows) else rows
