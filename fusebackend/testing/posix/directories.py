"""Reading directories: large ones, ones that change meanwhile, positions, link counts, removed ones."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fusebackend.testing.each import needs
from fusebackend.testing.posix.case import Case, fork, opened, refused

_libc = ctypes.CDLL(None, use_errno=True)


class _Dirent(ctypes.Structure):
    _fields_ = (
        ("d_ino", ctypes.c_uint64),
        ("d_off", ctypes.c_int64),
        ("d_reclen", ctypes.c_uint16),
        ("d_type", ctypes.c_uint8),
        ("d_name", ctypes.c_char * 256),
    )


_libc.opendir.restype = ctypes.c_void_p
_libc.opendir.argtypes = [ctypes.c_char_p]
_libc.readdir64.restype = ctypes.POINTER(_Dirent)
_libc.readdir64.argtypes = [ctypes.c_void_p]
_libc.telldir.restype = ctypes.c_long
_libc.telldir.argtypes = [ctypes.c_void_p]
_libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
_libc.rewinddir.argtypes = [ctypes.c_void_p]
_libc.closedir.argtypes = [ctypes.c_void_p]


class Listing:
    """opendir, readdir, telldir, seekdir and rewinddir, which Python does not offer. `.` and `..` are left out."""

    def __init__(self, path: Path) -> None:
        self._stream = _libc.opendir(os.fsencode(path))
        assert self._stream, os.strerror(ctypes.get_errno())

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *exc: object) -> None:
        _libc.closedir(self._stream)

    def next(self) -> bytes | None:
        while entry := _libc.readdir64(self._stream):
            name = bytes(entry.contents.d_name)
            if name not in (b".", b".."):
                return name
        return None

    def rest(self) -> Iterator[bytes]:
        while (name := self.next()) is not None:
            yield name

    def tell(self) -> int:
        return int(_libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        _libc.seekdir(self._stream, position)

    def rewind(self) -> None:
        _libc.rewinddir(self._stream)


class DirectoryCases(Case):
    def test_entries_carry_type_and_inode(self, d: Path, file: Path) -> None:
        (d / "dir").mkdir()
        with os.scandir(d) as entries:
            seen = {entry.name: (entry.is_dir(follow_symlinks=False), entry.inode()) for entry in entries}
        assert seen == {
            "file": (False, file.stat().st_ino),
            "dir": (True, (d / "dir").stat().st_ino),
        }

    @needs("symlinks", "special_files")
    def test_entries_carry_special_types(self, d: Path) -> None:
        os.symlink("x", d / "link")
        os.mkfifo(d / "fifo")
        with os.scandir(d) as entries:
            seen = {entry.name: stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) for entry in entries}
        assert seen == {"link": stat.S_IFLNK, "fifo": stat.S_IFIFO}

    def test_dot_and_dot_dot_are_listed_once(self, d: Path, file: Path) -> None:
        stream = _libc.opendir(os.fsencode(d))
        names = []
        while entry := _libc.readdir64(stream):
            names.append(bytes(entry.contents.d_name))
        _libc.closedir(stream)
        assert sorted(names) == [b".", b"..", b"file"]

    def test_a_large_directory_read_while_it_changes(self, d: Path) -> None:
        count = self.limits.many_entries
        fill(d, count)
        fleeting = range(0, count, 3)
        stable = {f"entry-{number:06}".encode() for number in range(count) if number % 3}
        seen: list[bytes] = []
        with Listing(d) as listing:
            for step, number in enumerate(fleeting):
                for _ in range(4):
                    if (name := listing.next()) is not None:
                        seen.append(name)
                os.unlink(d / f"entry-{number:06}")
                (d / f"born-{step:06}").touch()
            seen.extend(listing.rest())
        kept = [name for name in seen if name in stable]
        assert len(kept) == len(set(kept)), "a name was seen twice"
        assert set(kept) == stable, "a name was missed"
        assert len(seen) == len(set(seen)), "a name that came or went was seen twice"
        assert len(os.listdir(d)) == count

    def test_a_large_directory_read_while_another_process_changes_it(self, d: Path) -> None:
        count = self.limits.many_entries
        fill(d, count)
        stable = {f"entry-{number:06}" for number in range(count)}

        def disturb() -> None:
            for step in range(count // 3):
                (d / f"passing-{step % 50}").touch()
                os.rename(d / f"passing-{step % 50}", d / f"passed-{step % 50}")
                os.unlink(d / f"passed-{step % 50}")

        child = fork(disturb)
        listings = [os.listdir(d) for _ in range(5)]
        child.result()
        for names in listings:
            kept = [name for name in names if name in stable]
            assert len(kept) == len(stable)
            assert set(kept) == stable

    def test_removing_while_listing_removes_all(self, d: Path) -> None:
        fill(d, min(self.limits.many_entries, 1000))
        with Listing(d) as listing:
            for name in listing.rest():
                os.unlink(os.fsencode(d) + b"/" + name)
        assert os.listdir(d) == []

    def test_telldir_and_seekdir_return_to_a_place(self, d: Path) -> None:
        fill(d, 300)  # the kernel asks for some 200 at a time
        with Listing(d) as listing:
            places = []
            while True:
                place = listing.tell()
                name = listing.next()
                if name is None:
                    break
                places.append((place, name))
            assert len(places) == 300
            for place, name in (places[250], places[3], places[299], places[150]):
                listing.seek(place)
                assert listing.next() == name
            listing.seek(places[290][0])
            assert list(listing.rest()) == [name for _, name in places[290:]]

    def test_seekdir_holds_when_other_names_go(self, d: Path) -> None:
        fill(d, 300)
        with Listing(d) as listing:
            before = [listing.next() for _ in range(100)]
            place = listing.tell()
            after = list(listing.rest())
            for name in before[:50]:
                assert name is not None
                os.unlink(os.fsencode(d) + b"/" + name)
            listing.seek(place)
            assert list(listing.rest()) == after

    def test_rewinddir_sees_what_is_new(self, d: Path) -> None:
        (d / "one").touch()
        with Listing(d) as listing:
            assert list(listing.rest()) == [b"one"]
            (d / "two").touch()
            os.unlink(d / "one")
            listing.rewind()
            assert list(listing.rest()) == [b"two"]

    def test_two_listings_of_one_directory_are_independent(self, d: Path) -> None:
        fill(d, 200)
        with Listing(d) as first, Listing(d) as second:
            half = [first.next() for _ in range(100)]
            whole = list(second.rest())
            assert [*half, *first.rest()] == whole

    @needs("persistent_modes")
    def test_the_link_count_of_a_directory_counts_subdirectories(self, d: Path) -> None:
        base = d.stat().st_nlink
        for name in ("a", "b", "c"):
            (d / name).mkdir()
        (d / "file").touch()
        # Some file systems (btrfs, FUSE ones) do not count: all their directories have the link count 1.
        assert d.stat().st_nlink == (base + 3 if base > 1 else 1)
        os.rmdir(d / "a")
        os.rename(d / "b", d / "c" / "b")
        assert d.stat().st_nlink == (base + 1 if base > 1 else 1)

    def test_a_removed_directory_that_is_open_is_empty(self, d: Path) -> None:
        (d / "gone").mkdir()
        with opened(d / "gone", os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.rmdir(d / "gone")
            assert os.listdir(fd) == []
            refused(errno.ENOENT, os.open, "new", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
            refused(errno.ENOENT, os.mkdir, "new", dir_fd=fd)
            assert os.fstat(fd).st_nlink == 0

    def test_a_directory_can_be_made_again(self, d: Path) -> None:
        for _ in range(5):
            (d / "dir").mkdir()
            (d / "dir" / "file").write_bytes(b"x")
            assert os.listdir(d / "dir") == ["file"]
            os.unlink(d / "dir" / "file")
            os.rmdir(d / "dir")
        assert os.listdir(d) == []

    def test_calls_relative_to_a_directory_handle(self, d: Path) -> None:
        (d / "dir").mkdir()
        with opened(d / "dir", os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.rename(d / "dir", d / "moved")
            with opened("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd) as file:
                os.write(file, b"x")
            os.rename("file", "other", src_dir_fd=fd, dst_dir_fd=fd)
            assert os.listdir(fd) == ["other"]
        assert (d / "moved" / "other").read_bytes() == b"x"

    def test_inode_numbers_tell_files_apart(self, d: Path) -> None:
        fill(d, 100)
        assert len({(d / name).stat().st_ino for name in os.listdir(d)}) == 100
        assert {(d / name).stat().st_dev for name in os.listdir(d)} == {d.stat().st_dev}


def fill(directory: Path, count: int) -> None:
    """Make `count` empty files, named in order."""
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as fd:
        for number in range(count):
            os.close(os.open(f"entry-{number:06}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=fd))
