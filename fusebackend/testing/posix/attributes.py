"""Attributes: modes, owners, times, and extended attributes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from fusebackend.base.stamps import now_ns
from fusebackend.linux.bind_mount import called
from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import (
    AT_FDCWD,
    NOBODY,
    Case,
    all_refused,
    as_user,
    drop_capabilities,
    fresh,
    in_child,
    make,
    opened,
    refused,
)

# -- chmod, access, statvfs, and the attributes of a new file ----------------------------------------------------


class AttributeCases(Case):
    @needs("persistent_modes")
    def test_chmod_of_a_file(self, d: Path, file: Path) -> None:
        """Of a regular one, and of a directory."""
        (d / "dir").mkdir()
        modes = (0o000, 0o400, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4755, 0o7777)
        for case in each(product((("file", stat.S_IFREG), ("dir", stat.S_IFDIR)), modes)):
            with case as ((name, kind), mode):
                os.chmod(d / name, mode)
                assert (d / name).stat().st_mode == kind | mode
        assert file.read_bytes() == b"x"
        os.chmod(d / "dir", 0o755)

    @needs("persistent_modes", "links")
    def test_chmod_is_seen_through_every_link(self, d: Path, file: Path) -> None:
        os.link(file, d / "two")
        (d / "two").stat()
        os.chmod(file, 0o640)
        assert stat.S_IMODE((d / "two").stat().st_mode) == 0o640

    def test_statvfs_is_plausible(self, d: Path) -> None:
        status = os.statvfs(d)
        assert status.f_namemax == 255
        assert status.f_bsize > 0 and status.f_frsize > 0
        assert 0 < status.f_bfree <= status.f_blocks
        assert status.f_bavail <= status.f_blocks
        with opened(d / "file", os.O_WRONLY | os.O_CREAT) as fd:
            assert os.fstatvfs(fd).f_namemax == 255

    def test_stat_of_a_new_file(self, d: Path) -> None:
        (d / "file").write_bytes(b"12345")
        status = (d / "file").stat()
        assert (status.st_size, status.st_nlink) == (5, 1)
        assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
        assert status.st_blksize > 0
        assert status.st_dev == d.stat().st_dev
        assert status.st_ino > 0


# -- owners and groups: chown, files made by another user, set-group-ID directories, the sticky bit. Needs root ---


OTHER = 12345


def _write(path: Path | str, flags: int, data: bytes = b"patched") -> None:
    with opened(path, flags) as fd:
        os.write(fd, data)


def _ftruncate(path: Path | str) -> None:
    with opened(path, os.O_RDWR) as fd:
        os.ftruncate(fd, 10)


CHANGES_OF_CONTENTS: dict[str, Callable[[Path | str], None]] = {
    "write": lambda path: _write(path, os.O_WRONLY),
    "write in a file that can be read": lambda path: _write(path, os.O_RDWR),
    "append": lambda path: _write(path, os.O_WRONLY | os.O_APPEND),
    "append to a file that can be read": lambda path: _write(path, os.O_RDWR | os.O_APPEND),
    "O_TRUNC": lambda path: _write(path, os.O_WRONLY | os.O_TRUNC, b""),
    "truncate": lambda path: os.truncate(path, 10),
    "ftruncate": _ftruncate,
}


def _in_turn(calls: Iterable[Callable[[], object]]) -> None:
    """Make calls in one process of another user: to fork for each would be slow."""
    for call in calls:
        call()


def _modes(directory: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in directory.iterdir()}


def _by_root(directory: Path, change: Callable[[], object]) -> None:
    with contextlib.chdir(directory):
        change()


def _by_root_without_capabilities(directory: Path, change: Callable[[], object]) -> None:
    in_child(partial(_in_turn, [drop_capabilities, partial(_by_root, directory, change)]))


_by_a_member = partial(as_user, groups=(OTHER,))

WRITERS: tuple[tuple[Callable[[Path, Callable[[], object]], object], tuple[int, int], int, int], ...] = (
    (as_user, (NOBODY, NOBODY), 0o4755, 0o755),
    (as_user, (NOBODY, NOBODY), 0o2755, 0o755),
    (as_user, (NOBODY, NOBODY), 0o6755, 0o755),
    (as_user, (NOBODY, NOBODY), 0o6745, 0o2745),
    (as_user, (NOBODY, NOBODY), 0o644, 0o644),
    (as_user, (OTHER, 0), 0o2666, 0o666),
    (as_user, (OTHER, OTHER), 0o2666, 0o666),
    (_by_a_member, (OTHER, OTHER), 0o2666, 0o2666),
    (_by_root, (0, 0), 0o4755, 0o4755),
    (_by_root, (0, 0), 0o2755, 0o2755),
    (_by_root, (0, 0), 0o6745, 0o6745),
    (_by_root_without_capabilities, (0, 0), 0o6755, 0o755),
)
"""Who changes a file, the file's owner and mode, and the mode that is left."""


class OwnershipCases(Case):
    @needs("root", "persistent_modes")
    def test_chown_sets_owner_and_group(self, file: Path) -> None:
        for owner in ((OTHER, OTHER + 1), (4_294_967_294, 4_294_967_293)):
            os.chown(file, *owner)
            assert (file.stat().st_uid, file.stat().st_gid) == owner
        os.chown(file, -1, 7)
        os.chown(file, 8, -1)
        assert (file.stat().st_uid, file.stat().st_gid) == (8, 7)

    @needs("root", "persistent_modes", "symlinks")
    def test_lchown_changes_the_symlink(self, d: Path, file: Path) -> None:
        os.symlink("file", d / "link")
        os.lchown(d / "link", OTHER, OTHER)
        assert ((d / "link").lstat().st_uid, file.stat().st_uid) == (OTHER, 0)
        os.chown(d / "link", 9, 9)
        assert ((d / "link").lstat().st_uid, file.stat().st_uid) == (OTHER, 9)

    @needs("root", "persistent_modes", "other_users")
    def test_a_setgid_directory_passes_its_group_on(self, d: Path) -> None:
        """What a user makes belongs to it, and to its group or that of a set-group-ID directory, which also passes its
        bit on to directories."""
        for case in each((0o777, 0o2777)):
            with case as mode, fresh(d) as own:
                os.chown(own, 0, OTHER)
                os.chmod(own, mode)
                as_user(own, partial(_in_turn, [partial(maker, kind) for kind, maker in self.makers().items()]))
                passes_on = bool(mode & stat.S_ISGID)
                for path in own.rglob("*"):
                    status = path.lstat()
                    assert (status.st_uid, status.st_gid) == (NOBODY, OTHER if passes_on else NOBODY)
                    assert bool(status.st_mode & stat.S_ISGID) == (passes_on and stat.S_ISDIR(status.st_mode))

    @needs("root", "persistent_modes", "other_users")
    def test_modes_keep_another_user_out(self, d: Path) -> None:
        make(d, {"secret": b"x", "closed/file": b"x", "readable": b"open"})
        for name, mode in (("secret", 0o600), ("closed", 0o700), ("readable", 0o644)):
            os.chmod(d / name, mode)
        rows = (
            (errno.EACCES, os.open, "secret", os.O_RDONLY),
            (errno.EACCES, os.open, "secret", os.O_WRONLY),
            (errno.EACCES, os.open, "readable", os.O_RDWR),
            (errno.EACCES, os.open, "closed/file", os.O_RDONLY),
            (errno.EACCES, os.open, "new", os.O_WRONLY | os.O_CREAT),
            (errno.EACCES, os.listdir, "closed"),
            (errno.EACCES, os.unlink, "secret"),
        )
        as_user(d, partial(all_refused, *rows))
        assert as_user(d, Path("readable").read_bytes) == b"open"

    @needs("root", "persistent_modes", "other_users")
    def test_changing_contents_without_privileges_clears_the_bits(self, d: Path) -> None:
        """POSIX, write() and truncate(). Linux keeps a set-group-ID bit without group execute permission if the writing
        user is in the file's group."""
        for case in each(WRITERS):
            with case as (run, owner, mode, left), fresh(d) as own:
                for how in CHANGES_OF_CONTENTS:
                    (own / how).write_bytes(b"x" * 100)
                    os.chown(own / how, *owner)
                    os.chmod(own / how, mode)
                run(own, partial(_in_turn, [partial(change, how) for how, change in CHANGES_OF_CONTENTS.items()]))
                assert _modes(own) == dict.fromkeys(CHANGES_OF_CONTENTS, oct(left))

    @needs("root", "persistent_modes", "other_users")
    def test_a_handle_opened_before_the_bits_were_set_clears_them_too(self, d: Path, file: Path) -> None:
        os.chown(file, NOBODY, NOBODY)

        def write() -> None:
            with opened("file", os.O_RDWR) as fd:
                os.fchmod(fd, 0o4755)
                os.write(fd, b"patched")
                assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o755
                os.write(fd, b"again")

        as_user(d, write)
        assert stat.S_IMODE(file.stat().st_mode) == 0o755

    @needs("root", "persistent_modes", "other_users", "special_files")
    def test_chown_to_nobody_in_particular_clears_the_bits(self, d: Path) -> None:
        """`chown` with -1 for both changes no owner, and counts as a change (POSIX, chown())."""
        bits = ((0o6755, 0o755), (0o2755, 0o755), (0o4644, 0o644), (0o755, 0o755))
        for case in each((0, NOBODY)):
            with case as uid, fresh(d) as own:
                expected = {}
                for kind, (mode, left) in product((stat.S_IFREG, stat.S_IFIFO), bits):
                    path = own / oct(kind | mode)
                    os.mknod(path, kind | 0o644)
                    os.chown(path, NOBODY, NOBODY)
                    os.chmod(path, mode)
                    expected[path.name] = oct(left)
                as_user(own, partial(_in_turn, [partial(os.chown, name, -1, -1) for name in expected]), uid=uid)
                assert _modes(own) == expected

    @needs("root", "persistent_modes")
    def test_chown_clears_the_bits_of_a_file_and_leaves_those_of_a_directory(self, d: Path) -> None:
        make(d, {"file": b"", "dir": None})
        for name, left in (("file", 0o755), ("dir", 0o6755)):
            os.chmod(d / name, 0o6755)
            for owner in ((OTHER, OTHER), (-1, -1)):
                os.chown(d / name, *owner)
                assert stat.S_IMODE((d / name).stat().st_mode) == left


# -- utimensat and the times that calls change, of an object and of the directories it is in ---------------------


UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2

OLD_NS = 1_000_000_000_123_456_789
SECOND_NS = 1_000_000_000


def utimensat(path: Path, atime: tuple[int, int], mtime: tuple[int, int], flags: int = 0) -> None:
    """utimensat(2) with the special values that `os.utime` does not pass."""
    called("utimensat", None, AT_FDCWD, os.fsencode(path), struct.pack("4l", *atime, *mtime), flags)


class TimedCall(NamedTuple):
    """A call in a directory with `file` and `dir/in`, and the paths whose times it moves; `.` is the directory itself.
    Where the class has them, `dir/twin` is another name of the file, which has the extended attribute `user.note`."""

    call: Callable[[Path], object]
    both: tuple[str, ...] = ()
    """Modification and change time."""
    change: tuple[str, ...] = ()
    """The change time alone."""
    needs: tuple[str, ...] = ()


TIMED_CALLS = {
    "write": TimedCall(lambda d: _write(d / "file", os.O_WRONLY), ("file",)),
    "O_TRUNC": TimedCall(lambda d: _write(d / "file", os.O_WRONLY | os.O_TRUNC, b""), ("file",)),
    "truncate to more": TimedCall(lambda d: os.truncate(d / "file", 100), ("file",)),
    "truncate to less": TimedCall(lambda d: os.truncate(d / "file", 2), ("file",)),
    "chmod": TimedCall(lambda d: os.chmod(d / "file", 0o600), change=("file",)),
    "utime": TimedCall(lambda d: os.utime(d / "file", ns=(OLD_NS, time.time_ns() + SECOND_NS)), ("file",)),
    "read": TimedCall(lambda d: (d / "file").read_bytes()),
    "listdir": TimedCall(os.listdir),
    "stat": TimedCall(lambda d: (d / "file").stat()),
    "O_CREAT": TimedCall(lambda d: _write(d / "new", os.O_WRONLY | os.O_CREAT), (".",)),
    "mkdir": TimedCall(lambda d: os.mkdir(d / "new"), (".",)),
    "symlink": TimedCall(lambda d: os.symlink("x", d / "new"), (".",), needs=("symlinks",)),
    "unlink": TimedCall(lambda d: os.unlink(d / "dir" / "in"), ("dir",)),
    "rmdir": TimedCall(lambda d: os.rmdir(d / "empty"), (".",)),
    "link": TimedCall(lambda d: os.link(d / "file", d / "dir" / "new"), ("dir",), ("file",), ("links",)),
    "unlink one of two names": TimedCall(lambda d: os.unlink(d / "dir" / "twin"), ("dir",), ("file",), ("links",)),
    "rename": TimedCall(lambda d: os.rename(d / "dir" / "in", d / "new"), (".", "dir"), needs=("rename",)),
    "setxattr": TimedCall(lambda d: os.setxattr(d / "file", "user.a", b"x"), change=("file",), needs=("xattrs",)),
    "removexattr": TimedCall(lambda d: os.removexattr(d / "file", "user.note"), change=("file",), needs=("xattrs",)),
}


def _tick(stamp_ns: int) -> None:
    """Wait until the kernel's coarse clock, which stamps files, is past a stamp, and one tick (up to 10 ms) more.

    The stamp may be ahead of the clock that this processor reads: other processors advance it, and some kernels stamp
    files with a finer resolution than the tick.
    """
    start = max(stamp_ns, now_ns())
    while now_ns() <= start:
        time.sleep(0.001)
    time.sleep(0.01)


class TimeCases(Case):
    @needs("persistent_modes")
    def test_utime_keeps_nanoseconds(self, d: Path, file: Path) -> None:
        (d / "dir").mkdir()
        for path in (file, d / "dir"):
            os.utime(path, ns=(OLD_NS, OLD_NS + 1))
            assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (OLD_NS, OLD_NS + 1)

    @needs("persistent_modes")
    def test_utime_now(self, file: Path) -> None:
        os.utime(file, ns=(OLD_NS, OLD_NS))
        utimensat(file, (0, UTIME_NOW), (0, UTIME_NOW))
        status = file.stat()
        assert abs(status.st_mtime_ns - time.time_ns()) < 60 * SECOND_NS
        assert abs(status.st_atime_ns - time.time_ns()) < 60 * SECOND_NS

    @needs("persistent_modes")
    def test_utime_omit(self, file: Path) -> None:
        os.utime(file, ns=(OLD_NS, OLD_NS))
        utimensat(file, (0, UTIME_OMIT), (5, 6))
        assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (OLD_NS, 5 * SECOND_NS + 6)
        utimensat(file, (7, 8), (0, UTIME_OMIT))
        assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (7 * SECOND_NS + 8, 5 * SECOND_NS + 6)

    @needs("persistent_modes", "wide_times")
    def test_times_before_1970_and_after_2038(self, d: Path) -> None:
        before_1970 = (-1, -86_400 * 365, -(1 << 31) + 1)
        later = (0, 1, (1 << 31) - 1, 1 << 31, 1 << 32, 5_000_000_000, 9_000_000_000)
        for case in each(before_1970 + later):
            with case as seconds, fresh(d) as own:
                file = own / "file"
                file.touch()
                for nanoseconds in (0, 1, 999_999_999):
                    wanted = seconds * SECOND_NS + nanoseconds
                    os.utime(file, ns=(wanted, wanted))
                    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (wanted, wanted)

    @needs("persistent_modes", "symlinks")
    def test_utime_of_a_symlink(self, d: Path, file: Path) -> None:
        os.symlink("file", d / "link")
        before = file.stat().st_mtime_ns
        os.utime(d / "link", ns=(OLD_NS, OLD_NS), follow_symlinks=False)
        assert (d / "link").lstat().st_mtime_ns == OLD_NS
        assert file.stat().st_mtime_ns == before

    @needs("persistent_modes")
    def test_a_new_file_has_the_time_of_now(self, d: Path) -> None:
        start = time.time_ns() - SECOND_NS
        make(d, {"file": b"", "dir": None})
        for path in (d / "file", d / "dir"):
            status = path.stat()
            for stamp in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns):
                assert start <= stamp <= time.time_ns() + SECOND_NS

    @needs("persistent_modes")
    def test_the_times_that_a_call_moves(self, d: Path) -> None:
        for case in each(TIMED_CALLS):
            with case as (call, both, change, words), fresh(d) as own:
                self.require(words)
                make(own, {"file": b"12345", "dir/in": b"x", "empty": None})
                if self.features.links:
                    os.link(own / "file", own / "dir" / "twin")
                if self.features.xattrs:
                    os.setxattr(own / "file", "user.note", b"x")
                before = {name: (own / name).lstat() for name in (".", "file", "dir", "dir/in", "empty")}
                _tick(max(status.st_ctime_ns for status in before.values()))
                call(own)
                for name in [name for name in before if (own / name).exists()]:
                    was, now = before[name], (own / name).lstat()
                    assert (now.st_mtime_ns > was.st_mtime_ns) == (name in both), f"modification time of {name}"
                    assert now.st_mtime_ns >= was.st_mtime_ns, f"modification time of {name} went back"
                    assert (now.st_ctime_ns > was.st_ctime_ns) == (name in both + change), f"change time of {name}"

    @needs("persistent_modes")
    def test_write_through_an_open_handle_shows_at_once(self, file: Path) -> None:
        with opened(file, os.O_WRONLY) as fd:
            for _ in range(3):
                before = file.stat()
                _tick(before.st_ctime_ns)
                os.write(fd, b"more")
                assert file.stat().st_ctime_ns > before.st_ctime_ns
                assert file.stat().st_mtime_ns > before.st_mtime_ns

    @needs("persistent_modes")
    def test_utime_after_a_write_on_an_open_handle_wins(self, file: Path) -> None:
        with opened(file, os.O_WRONLY) as fd:
            os.write(fd, b"written before utime")
            os.utime(fd, ns=(OLD_NS, OLD_NS))
            assert file.stat().st_mtime_ns == OLD_NS
        assert file.stat().st_mtime_ns == OLD_NS  # closing writes pages back, and must not stamp the file again

    @needs("persistent_modes")
    def test_times_survive_a_rename(self, d: Path, file: Path) -> None:
        os.utime(file, ns=(OLD_NS, OLD_NS))
        os.rename(file, d / "moved")
        assert (d / "moved").stat().st_mtime_ns == OLD_NS


# -- extended attributes -----------------------------------------------------------------------------------------


CAPABILITIES = bytes.fromhex("0100000200040000000000000000000000000000")
"""cap_net_bind_service, effective and permitted, as setcap(8) writes it."""

TAKES_CAPABILITIES: dict[str, Callable[[Path], None]] = {
    **CHANGES_OF_CONTENTS,
    "O_TRUNC and write": lambda path: _write(path, os.O_WRONLY | os.O_TRUNC),
    "truncate to nothing": lambda path: os.truncate(path, 0),
    "chown": lambda path: os.chown(path, 5, 5),
}
"""Changes of a file with capabilities, which has none afterwards."""


class ExtendedAttributeCases(Case):
    @needs("xattrs")
    def test_set_get_list_and_remove(self, file: Path) -> None:
        os.setxattr(file, "user.one", b"1")
        os.setxattr(file, "user.two", b"\x00\xff binary")
        assert os.getxattr(file, "user.one") == b"1"
        assert os.getxattr(file, "user.two") == b"\x00\xff binary"
        assert sorted(_listed(file)) == ["user.one", "user.two"]
        os.removexattr(file, "user.one")
        assert _listed(file) == ["user.two"]

    @needs("xattrs")
    def test_a_value_is_replaced(self, file: Path) -> None:
        largest = os.urandom(self.limits.xattr_value_bytes)
        for value in (b"first", b"a longer second", b"", largest, b"small again"):
            os.setxattr(file, "user.value", value)
            assert os.getxattr(file, "user.value") == value

    @needs("xattrs")
    def test_create_and_replace_flags(self, file: Path) -> None:
        refused(errno.ENODATA, os.setxattr, file, "user.a", b"1", os.XATTR_REPLACE)
        os.setxattr(file, "user.a", b"1", os.XATTR_CREATE)
        refused(errno.EEXIST, os.setxattr, file, "user.a", b"2", os.XATTR_CREATE)
        assert os.getxattr(file, "user.a") == b"1"
        os.setxattr(file, "user.a", b"3", os.XATTR_REPLACE)
        assert os.getxattr(file, "user.a") == b"3"

    @needs("xattrs")
    def test_a_missing_attribute_is_enodata(self, d: Path, file: Path) -> None:
        all_refused(
            (errno.ENODATA, os.getxattr, file, "user.none"),
            (errno.ENODATA, os.removexattr, file, "user.none"),
            (errno.ENOENT, os.getxattr, d / "missing", "user.none"),
        )
        assert _listed(file) == []

    @needs("xattrs")
    def test_attributes_of_a_directory(self, d: Path) -> None:
        (d / "dir").mkdir()
        os.setxattr(d / "dir", "user.note", b"on a directory")
        (d / "dir" / "file").touch()
        assert os.getxattr(d / "dir", "user.note") == b"on a directory"
        assert _listed(d / "dir" / "file") == []

    @needs("xattrs")
    def test_attributes_through_a_handle(self, d: Path, fd: int) -> None:
        os.setxattr(fd, "user.a", b"1")
        os.unlink(d / "file")
        assert os.getxattr(fd, "user.a") == b"1"
        os.setxattr(fd, "user.b", b"2")
        assert sorted(name for name in os.listxattr(fd) if name.startswith("user.")) == ["user.a", "user.b"]

    @needs("xattrs")
    def test_attributes_stay_with_the_file(self, d: Path, file: Path) -> None:
        os.setxattr(file, "user.a", b"1")
        os.rename(file, d / "moved")
        assert os.getxattr(d / "moved", "user.a") == b"1"
        (d / "moved").write_bytes(b"rewritten")
        assert os.getxattr(d / "moved", "user.a") == b"1"
        os.unlink(d / "moved")
        (d / "moved").write_bytes(b"another file")
        assert _listed(d / "moved") == []

    @needs("xattrs")
    def test_long_and_odd_names(self, file: Path) -> None:
        longest = "user." + "n" * 250
        for name, value in ((longest, b"1"), (b"user.\xff\n", b"2")):
            os.setxattr(file, name, value)
            assert os.getxattr(file, name) == value
        assert sorted(map(os.fsencode, _listed(file))) == sorted([longest.encode(), b"user.\xff\n"])
        refused(errno.ERANGE, os.setxattr, file, "user." + "n" * 251, b"1")

    @needs("xattrs")
    def test_many_attributes(self, file: Path) -> None:
        for number in range(50):
            os.setxattr(file, f"user.{number:02}", b"%d" % number)
        assert sorted(_listed(file)) == [f"user.{number:02}" for number in range(50)]
        assert os.getxattr(file, "user.49") == b"49"

    @needs("xattrs", "root")
    def test_a_change_takes_the_capabilities_of_a_file(self, d: Path) -> None:
        for case in each(TAKES_CAPABILITIES):
            with case as change, fresh(d) as own:
                for _ in range(2):  # the second time, the kernel has the inode cached
                    (own / "file").write_bytes(b"x")
                    os.setxattr(own / "file", "security.capability", CAPABILITIES)
                    assert os.getxattr(own / "file", "security.capability") == CAPABILITIES
                    change(own / "file")
                    refused(errno.ENODATA, os.getxattr, own / "file", "security.capability")

    @needs("xattrs", "root")
    def test_a_write_takes_capabilities_that_were_set_meanwhile(self, d: Path) -> None:
        with opened(d / "file", os.O_WRONLY | os.O_CREAT) as fd:
            for _ in range(2):
                os.write(fd, b"x")
                os.setxattr(d / "file", "security.capability", CAPABILITIES)
                os.write(fd, b"y")
                refused(errno.ENODATA, os.getxattr, d / "file", "security.capability")


def _listed(path: Path) -> list[str]:
    """Return the names in the `user.` namespace; a security module may add names in others."""
    return [name for name in os.listxattr(path) if name.startswith("user.")]
