"""Owners and groups: chown, files made by another user, set-group-ID directories, the sticky bit. Needs root."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import (
    NOBODY,
    Case,
    all_refused,
    as_user,
    drop_capabilities,
    fresh,
    in_child,
    make,
    opened,
)

OTHER = 12345


def _write(path: str, flags: int) -> None:
    with opened(path, flags) as fd:
        if not flags & os.O_TRUNC:
            os.write(fd, b"patched")


def _ftruncate(path: str) -> None:
    with opened(path, os.O_RDWR) as fd:
        os.ftruncate(fd, 10)


CHANGES_OF_CONTENTS: dict[str, Callable[[str], None]] = {
    "write": lambda path: _write(path, os.O_WRONLY),
    "write in a file that can be read": lambda path: _write(path, os.O_RDWR),
    "append": lambda path: _write(path, os.O_WRONLY | os.O_APPEND),
    "O_TRUNC": lambda path: _write(path, os.O_WRONLY | os.O_TRUNC),
    "truncate": lambda path: os.truncate(path, 10),
    "ftruncate": _ftruncate,
}


def _by_root(directory: Path, change: Callable[[], object]) -> None:
    with contextlib.chdir(directory):
        change()


def _by_root_without_capabilities(directory: Path, change: Callable[[], object]) -> None:
    def changed() -> None:
        drop_capabilities()
        _by_root(directory, change)

    in_child(changed)


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


def _make_directory(path: str) -> None:
    os.mkdir(path)
    Path(path, "below").touch()


MAKERS: dict[str, tuple[tuple[str, ...], Callable[[str], object]]] = {
    "file": ((), lambda path: Path(path).touch()),
    "directory": ((), _make_directory),
    "symlink": (("symlinks",), lambda path: os.symlink("x", path)),
    "fifo": (("special_files",), os.mkfifo),
}
"""What a class must declare, and the maker of a file at a path."""


class OwnershipCases(Case):
    @needs("root", "persistent_modes")
    def test_chown_sets_owner_and_group(self, file: Path) -> None:
        os.chown(file, OTHER, OTHER + 1)
        status = file.stat()
        assert (status.st_uid, status.st_gid) == (OTHER, OTHER + 1)
        os.chown(file, -1, 7)
        os.chown(file, 8, -1)
        status = file.stat()
        assert (status.st_uid, status.st_gid) == (8, 7)

    @needs("root", "persistent_modes", "symlinks")
    def test_lchown_changes_the_symlink(self, d: Path, file: Path) -> None:
        os.symlink("file", d / "link")
        os.lchown(d / "link", OTHER, OTHER)
        assert ((d / "link").lstat().st_uid, file.stat().st_uid) == (OTHER, 0)
        os.chown(d / "link", 9, 9)
        assert ((d / "link").lstat().st_uid, file.stat().st_uid) == (OTHER, 9)

    @needs("root", "persistent_modes")
    def test_large_ids(self, file: Path) -> None:
        os.chown(file, 4_294_967_294, 4_294_967_293)
        status = file.stat()
        assert (status.st_uid, status.st_gid) == (4_294_967_294, 4_294_967_293)

    @needs("root", "persistent_modes")
    def test_chown_clears_set_user_id(self, file: Path) -> None:
        os.chmod(file, 0o6755)
        os.chown(file, OTHER, OTHER)
        assert stat.S_IMODE(file.stat().st_mode) == 0o755

    @needs("root", "persistent_modes", "other_users")
    def test_a_setgid_directory_passes_its_group_on(self, d: Path) -> None:
        """What a user makes belongs to it, and to its group or that of a set-group-ID directory, which also passes its
        bit on to directories."""
        for case in each(product(MAKERS, (0o777, 0o2777))):
            with case as (kind, mode), fresh(d) as own:
                words, maker = MAKERS[kind]
                self.require(words)
                os.chown(own, 0, OTHER)
                os.chmod(own, mode)
                as_user(own, partial(maker, "made"))
                passes_on = bool(mode & stat.S_ISGID)
                for path in own.rglob("*"):
                    status = path.lstat()
                    assert (status.st_uid, status.st_gid) == (NOBODY, OTHER if passes_on else NOBODY)
                    assert bool(status.st_mode & stat.S_ISGID) == (passes_on and path.is_dir())

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

    @needs("root", "persistent_modes")
    def test_changing_contents_without_privileges_clears_the_bits(self, d: Path) -> None:
        """POSIX, write() and truncate(). Linux keeps a set-group-ID bit without group execute permission if the writing
        user is in the file's group."""
        for case in each(product(CHANGES_OF_CONTENTS, WRITERS)):
            with case as (how, (run, owner, mode, left)), fresh(d) as own:
                if run not in (_by_root, _by_root_without_capabilities):
                    self.require(["other_users"])
                (own / "file").write_bytes(b"x" * 100)
                os.chown(own / "file", *owner)
                os.chmod(own / "file", mode)
                run(own, partial(CHANGES_OF_CONTENTS[how], "file"))
                assert oct(stat.S_IMODE((own / "file").stat().st_mode)) == oct(left)

    @needs("root", "persistent_modes", "other_users")
    def test_a_handle_opened_before_the_bits_were_set_clears_them_too(self, d: Path) -> None:
        (d / "file").write_bytes(b"x" * 100)
        os.chown(d / "file", NOBODY, NOBODY)

        def write() -> None:
            with opened("file", os.O_RDWR) as fd:
                os.fchmod(fd, 0o4755)
                os.write(fd, b"patched")
                assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o755
                os.write(fd, b"again")

        as_user(d, write)
        assert stat.S_IMODE((d / "file").stat().st_mode) == 0o755

    @needs("root", "persistent_modes", "other_users", "special_files")
    def test_chown_to_nobody_in_particular_clears_the_bits(self, d: Path) -> None:
        """`chown` with -1 for both changes no owner, and counts as a change (POSIX, chown())."""
        bits = ((0o6755, 0o755), (0o2755, 0o755), (0o4644, 0o644), (0o755, 0o755))
        for case in each(product((stat.S_IFREG, stat.S_IFIFO), bits)):
            with case as (kind, (mode, left)), fresh(d) as own:
                for uid in (0, NOBODY):
                    os.mknod(own / "file", kind | 0o644)
                    os.chown(own / "file", NOBODY, NOBODY)
                    os.chmod(own / "file", mode)
                    as_user(own, partial(os.chown, "file", -1, -1), uid=uid)
                    assert oct(stat.S_IMODE((own / "file").stat().st_mode)) == oct(left)
                    os.unlink(own / "file")

    @needs("root", "persistent_modes")
    def test_chown_leaves_the_bits_of_a_directory(self, d: Path) -> None:
        (d / "dir").mkdir()
        os.chmod(d / "dir", 0o6755)
        os.chown(d / "dir", OTHER, OTHER)
        os.chown(d / "dir", -1, -1)
        assert stat.S_IMODE((d / "dir").stat().st_mode) == 0o6755
