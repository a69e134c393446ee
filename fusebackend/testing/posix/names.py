"""Names: what a name may be, links and special files, renames, and reading directories."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE
from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import (
    Case,
    ForkedChild,
    all_refused,
    fresh,
    make,
    opened,
    refused,
    renameat2,
    tree,
)
from fusebackend.text import is_utf8

# -- names and paths: bytes and lengths that Linux allows in a name, and making and removing directories ---------


ODD_NAMES = {
    "newline": b"two\nlines",
    "space": b" leading and trailing ",
    "invalid-utf8": b"\xff\xfe\x80broken",
    "overlong": b"\xc0\xaf",
    "latin1": b"caf\xe9",
    "utf8": "한글-文件-ñ-🗂".encode(),
    "decomposed": "e\u0301".encode(),
    "backslash": b"back\\slash",
    "control": bytes(range(1, 32)),
    "delete": b"\x7f",
    "glob": b"*?[a-z]{x,y}",
    "quote": b"'\"`$(x)",
    "dash": b"-rf",
    "tilde": b"~root",
    "dots": b"...",
    "hidden": b".hidden",
    "colon": b"C:",
    "percent": b"%2F%00%s",
    "fuse-hidden": b".fuse_hidden0000",
    "255 letters": b"n" * 255,
    "255 bytes in 128 characters": "ñ".encode() * 127 + b"x",
    "255 times 0xff": b"\xff" * 255,
}


class NameCases(Case):
    def test_a_name_is_any_bytes(self, d: Path) -> None:
        for case in each(ODD_NAMES):
            with case as name, fresh(d) as own:
                home = os.fsencode(own)
                path, other = home + b"/" + name, home + b"/other"
                if not self.limits.byte_names and not is_utf8(name):
                    refused(errno.EILSEQ, os.mkdir, path)
                    continue
                with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                    os.write(fd, b"content")
                assert os.listdir(home) == [name]
                with opened(path, os.O_RDONLY) as fd:
                    assert os.read(fd, 100) == b"content"
                os.rename(path, other)
                os.rename(other, path)
                assert os.listdir(home) == [name]
                os.rename(path, other)
                os.mkdir(path)
                os.mkdir(path + b"/" + name)
                assert os.listdir(path) == [name]
                os.rmdir(path + b"/" + name)
                os.rmdir(path)
                assert os.listdir(home) == [b"other"]

    def test_a_name_of_256_bytes_is_enametoolong(self, d: Path, file: Path) -> None:
        rows: list[tuple[Any, ...]] = []
        for size in (256, 1000, 1024, 1025, 2000):
            long = d / ("n" * size)
            rows += [
                (errno.ENAMETOOLONG, os.stat, long),
                (errno.ENAMETOOLONG, os.open, long, os.O_WRONLY | os.O_CREAT),
                (errno.ENAMETOOLONG, os.mkdir, long),
                (errno.ENAMETOOLONG, os.rename, file, long),
                (errno.ENAMETOOLONG, os.unlink, long),
                (errno.ENAMETOOLONG, os.rmdir, long),
            ]
        all_refused(*rows)
        assert os.listdir(d) == ["file"]

    @needs("symlinks", "links", "special_files")
    def test_a_link_of_256_bytes_is_enametoolong(self, d: Path, file: Path) -> None:
        long = d / ("n" * 256)
        all_refused(
            (errno.ENAMETOOLONG, os.symlink, "file", long),
            (errno.ENAMETOOLONG, os.link, file, long),
            (errno.ENAMETOOLONG, os.mkfifo, long),
        )

    def test_a_tree_of_200_levels(self, d: Path) -> None:
        name = "level-" + "x" * 24  # 200 levels of it are a path longer than PATH_MAX
        handles = [os.open(d, os.O_RDONLY | os.O_DIRECTORY)]
        try:
            for _ in range(200):
                os.mkdir(name, dir_fd=handles[-1])
                handles.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=handles[-1]))
            with opened("leaf", os.O_WRONLY | os.O_CREAT, dir_fd=handles[-1]) as fd:
                os.write(fd, b"deep")
            assert os.stat("/".join([name] * 100), dir_fd=handles[100]).st_ino == os.fstat(handles[200]).st_ino
            assert os.stat("../" * 100, dir_fd=handles[200]).st_ino == os.fstat(handles[100]).st_ino
            assert os.stat("leaf", dir_fd=handles[200]).st_size == 4
            os.unlink("leaf", dir_fd=handles[-1])
            while len(handles) > 1:
                os.close(handles.pop())
                os.rmdir(name, dir_fd=handles[-1])
        finally:
            for fd in handles:
                os.close(fd)
        assert os.listdir(d) == []

    def test_names_that_differ_in_case_differ(self, d: Path) -> None:
        for name in ("name", "Name", "NAME"):
            (d / name).write_text(name)
        assert sorted(os.listdir(d)) == ["NAME", "Name", "name"]
        assert (d / "Name").read_text() == "Name"

    def test_a_missing_name_that_is_then_made_is_found(self, d: Path) -> None:
        for number in range(20):  # creating the name must invalidate a negative dentry
            assert not (d / f"name-{number}").exists()
            (d / f"name-{number}").write_bytes(b"x")
            assert (d / f"name-{number}").exists()
            os.unlink(d / f"name-{number}")
            assert not (d / f"name-{number}").exists()

    def test_rmdir_errors(self, d: Path) -> None:
        make(d, {"full/below": None, "file": b"x"})
        all_refused(
            ((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, d / "full"),
            (errno.ENOTDIR, os.rmdir, d / "file"),
            (errno.ENOENT, os.rmdir, d / "missing"),
            (errno.EINVAL, os.rmdir, f"{d}/full/."),
            ((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, f"{d}/full/below/.."),
        )
        assert tree(d) == {"file": b"x", "full": None, "full/below": None}


# -- hard links, symbolic links, FIFOs, sockets and device nodes -------------------------------------------------


TARGETS = {
    "no text": b"\xff\n/\xfe",
    **{f"{size} bytes": (b"t" * 200 + b"/") * (size // 201) + b"e" * (size % 201)
       for size in (1, 59, 60, 255, 256, 1023, 4000, 4095)},
}  # fmt: skip


class LinkCases(Case):
    @needs("links")
    def test_a_hard_link_is_the_same_file(self, d: Path, file: Path) -> None:
        os.link(file, d / "two")
        one, two = file.stat(), (d / "two").stat()
        assert (one.st_ino, one.st_nlink) == (two.st_ino, 2)
        assert one.st_nlink == two.st_nlink
        (d / "two").write_bytes(b"changed")
        assert file.read_bytes() == b"changed"

    @needs("links")
    def test_link_counts_go_up_and_down(self, d: Path, file: Path) -> None:
        for number in range(20):
            os.link(file, d / f"link-{number}")
            assert file.stat().st_nlink == number + 2
        os.unlink(file)
        for number in range(19):
            os.unlink(d / f"link-{number}")
            assert (d / "link-19").stat().st_nlink == 19 - number
        assert (d / "link-19").read_bytes() == b"x"

    @needs("links")
    def test_link_count_of_an_open_file(self, d: Path, fd: int) -> None:
        os.link(d / "file", d / "two")
        assert os.fstat(fd).st_nlink == 2
        os.unlink(d / "file")
        assert os.fstat(fd).st_nlink == 1
        os.unlink(d / "two")
        assert os.fstat(fd).st_nlink == 0

    @needs("links")
    def test_rename_over_one_of_two_links(self, d: Path) -> None:
        make(d, {"one": b"linked", "new": b"new"})
        os.link(d / "one", d / "two")
        os.rename(d / "new", d / "one")
        assert tree(d) == {"one": b"new", "two": b"linked"}
        assert (d / "two").stat().st_nlink == 1

    @needs("links", "symlinks")
    def test_a_hard_link_to_a_symlink(self, d: Path) -> None:
        os.symlink("nowhere", d / "link")
        os.link(d / "link", d / "twin", follow_symlinks=False)
        assert os.readlink(d / "twin") == "nowhere"
        assert (d / "twin").lstat().st_nlink == 2

    @needs("symlinks")
    def test_a_symlink_is_followed(self, d: Path) -> None:
        make(d, {"dir/file": b"x"})
        os.symlink("dir", d / "to-dir")
        os.symlink("to-dir/file", d / "to-file")
        assert (d / "to-file").read_bytes() == b"x"
        assert os.listdir(d / "to-dir") == ["file"]
        (d / "to-file").write_bytes(b"written")
        assert (d / "dir" / "file").read_bytes() == b"written"
        assert (d / "to-file").lstat().st_size == len("to-dir/file")
        assert stat.S_ISLNK((d / "to-file").lstat().st_mode)

    @needs("symlinks")
    def test_a_dangling_symlink(self, d: Path) -> None:
        os.symlink("nowhere", d / "link")
        assert os.listdir(d) == ["link"]
        assert os.readlink(d / "link") == "nowhere"
        refused(errno.ENOENT, os.stat, d / "link")
        refused(errno.EEXIST, os.symlink, "elsewhere", d / "link")
        os.unlink(d / "link")
        assert os.listdir(d) == []

    @needs("symlinks")
    def test_the_target_of_a_symlink_may_be_any_bytes(self, d: Path) -> None:
        for case in each(TARGETS):
            with case as target, fresh(d) as own:
                link = os.fsencode(own / "link")
                os.symlink(target, link)
                assert os.readlink(link) == target
                assert os.lstat(link).st_size == len(target)

    @needs("special_files")
    def test_a_fifo_passes_data(self, d: Path) -> None:
        os.mkfifo(d / "fifo", 0o640)
        status = (d / "fifo").stat()
        assert stat.S_ISFIFO(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o640
        with opened(d / "fifo", os.O_RDONLY | os.O_NONBLOCK) as reader:
            with opened(d / "fifo", os.O_WRONLY) as writer:
                os.write(writer, b"through the pipe")
            assert os.read(reader, 100) == b"through the pipe"
        assert (d / "fifo").stat().st_size == 0
        refused(errno.EEXIST, os.mkfifo, d / "fifo")
        refused(errno.ENXIO, os.open, d / "fifo", os.O_WRONLY | os.O_NONBLOCK)

    @needs("special_files")
    def test_a_socket_takes_connections(self, d: Path) -> None:
        with opened(d, os.O_RDONLY | os.O_DIRECTORY) as fd, socket.socket(socket.AF_UNIX) as server:
            name = f"/proc/self/fd/{fd}/socket"  # an address may be 108 bytes long, a test's directory is longer
            server.bind(name)
            server.listen()
            assert stat.S_ISSOCK((d / "socket").stat().st_mode)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(name)
                peer, _ = server.accept()
                with peer:
                    client.sendall(b"hello")
                    assert peer.recv(10) == b"hello"
        refused(errno.ENXIO, os.open, d / "socket", os.O_RDONLY)

    @needs("special_files")
    def test_mknod_makes_a_regular_file(self, d: Path) -> None:
        os.mknod(d / "file", stat.S_IFREG | 0o640)
        status = (d / "file").stat()
        assert stat.S_ISREG(status.st_mode) and (stat.S_IMODE(status.st_mode), status.st_size) == (0o640, 0)
        refused(errno.EEXIST, os.mknod, d / "file", stat.S_IFREG | 0o640)

    @needs("special_files", "root")
    def test_mknod_keeps_the_device_number(self, d: Path) -> None:
        os.mknod(d / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(d / "block", stat.S_IFBLK | 0o600, os.makedev(259, 70_000))
        null, block = (d / "null").stat(), (d / "block").stat()
        assert stat.S_ISCHR(null.st_mode) and null.st_rdev == os.makedev(1, 3)
        assert stat.S_ISBLK(block.st_mode) and block.st_rdev == os.makedev(259, 70_000)

    @needs("special_files")
    def test_special_files_can_be_renamed_linked_and_removed(self, d: Path) -> None:
        os.mkfifo(d / "fifo")
        os.rename(d / "fifo", d / "pipe")
        if self.features.links:
            os.link(d / "pipe", d / "twin")
            assert (d / "twin").stat().st_nlink == 2
            os.unlink(d / "twin")
        os.unlink(d / "pipe")
        assert os.listdir(d) == []


# -- rename(2) and renameat2(2): over targets of each kind, into itself, and while files are open ----------------


class Rename(NamedTuple):
    """What is in a directory, the two names of a rename in it, and what is there then; as `make` and `tree` have it."""

    before: dict[str, bytes | None]
    old: str
    new: str
    after: dict[str, bytes | None]


RENAMES = {
    "a file": Rename({"old": b"data"}, "old", "new", {"new": b"data"}),
    "a directory with all below": Rename(
        {"old/a/b/file": b"deep"}, "old", "new",
        {"new": None, "new/a": None, "new/a/b": None, "new/a/b/file": b"deep"},
    ),
    "into another directory": Rename(
        {"from/file": b"data", "to": None}, "from/file", "to/file", {"from": None, "to": None, "to/file": b"data"},
    ),
    "over a file": Rename(
        {"old": b"new content", "target": b"x" * 10_000}, "old", "target", {"target": b"new content"},
    ),
    "over an empty directory": Rename(
        {"old/file": b"x", "target": None}, "old", "target", {"target": None, "target/file": b"x"},
    ),
}  # fmt: skip


class RenameCases(Case):
    def test_a_renamed_name_takes_all_along(self, d: Path) -> None:
        for case in each(RENAMES):
            with case as (before, old, new, after), fresh(d) as own:
                make(own, before)
                inode = (own / old).stat().st_ino
                os.rename(own / old, own / new)
                assert tree(own) == after
                assert not (own / old).exists()
                assert (own / new).stat().st_ino == inode or not self.features.rename

    def test_a_moved_directory_knows_its_new_parent(self, d: Path) -> None:
        make(d, {"from/dir": None, "to": None})
        with opened(d / "from" / "dir", os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.rename(d / "from" / "dir", d / "to" / "dir")
            assert os.stat("..", dir_fd=fd).st_ino == (d / "to").stat().st_ino

    def test_rename_over_an_open_file_keeps_the_old_data_for_its_handle(self, d: Path) -> None:
        make(d, {"source": b"new", "target": b"old"})
        with opened(d / "target", os.O_RDWR) as fd:
            os.rename(d / "source", d / "target")
            assert os.pread(fd, 10, 0) == b"old"
            os.pwrite(fd, b"OLD", 0)
            assert os.fstat(fd).st_nlink == 0
        assert (d / "target").read_bytes() == b"new"

    def test_rename_of_an_open_file_keeps_its_handle(self, d: Path) -> None:
        with opened(d / "old", os.O_RDWR | os.O_CREAT) as fd:
            os.write(fd, b"before ")
            os.rename(d / "old", d / "new")
            os.write(fd, b"after")
        assert (d / "new").read_bytes() == b"before after"

    def test_rename_over_a_directory_that_is_not_empty(self, d: Path) -> None:
        make(d, {"old": None, "target/file": b"kept"})
        refused((errno.ENOTEMPTY, errno.EEXIST), os.rename, d / "old", d / "target")
        assert tree(d) == {"old": None, "target": None, "target/file": b"kept"}

    @needs("symlinks")
    def test_rename_moves_a_symlink_and_not_its_target(self, d: Path, file: Path) -> None:
        os.symlink("file", d / "link")
        os.rename(d / "link", d / "moved")
        assert os.readlink(d / "moved") == "file"
        make(d, {"other": b"y"})
        os.rename(d / "other", d / "moved")
        assert tree(d) == {"file": b"x", "moved": b"y"}
        assert not (d / "moved").is_symlink()

    @needs("rename")
    def test_the_target_of_a_rename_is_never_missing(self, d: Path) -> None:
        (d / "target").write_bytes(b"0")

        def replace() -> None:
            for number in range(150):
                (d / "next").write_bytes(b"%d" % number)
                os.rename(d / "next", d / "target")

        child = ForkedChild(replace)
        for _ in range(300):
            content = (d / "target").read_bytes()
            assert content and int(content) < 150
        child.result()
        assert (d / "target").read_bytes() == b"149"

    @needs("rename")
    def test_noreplace_refuses_an_existing_target(self, d: Path) -> None:
        make(d, {"one": b"1", "two": b"2", "dir": None})
        refused(errno.EEXIST, renameat2, d / "one", d / "two", RENAME_NOREPLACE)
        refused(errno.EEXIST, renameat2, d / "one", d / "dir", RENAME_NOREPLACE)
        renameat2(d / "one", d / "three", RENAME_NOREPLACE)
        assert tree(d) == {"dir": None, "three": b"1", "two": b"2"}

    @needs("rename")
    def test_exchange_swaps_two_files(self, d: Path) -> None:
        make(d, {"one": b"1", "two": b"22"})
        inodes = (d / "one").stat().st_ino, (d / "two").stat().st_ino
        renameat2(d / "one", d / "two", RENAME_EXCHANGE)
        assert tree(d) == {"one": b"22", "two": b"1"}
        assert ((d / "two").stat().st_ino, (d / "one").stat().st_ino) == inodes

    @needs("rename")
    def test_exchange_swaps_a_file_and_a_full_directory(self, d: Path, file: Path) -> None:
        make(d, {"a/dir/below": b"y"})
        counts = d.stat().st_nlink, (d / "a").stat().st_nlink
        renameat2(file, d / "a" / "dir", RENAME_EXCHANGE)
        assert tree(d) == {"a": None, "a/dir": b"x", "file": None, "file/below": b"y"}
        assert os.stat(f"{d}/file/..").st_ino == d.stat().st_ino
        if counts[0] > 1:
            assert (d.stat().st_nlink, (d / "a").stat().st_nlink) == (counts[0] + 1, counts[1] - 1)


# -- reading directories: large ones, ones that change meanwhile, positions, link counts, removed ones -----------


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
_libc.readdir64.restype = ctypes.POINTER(_Dirent)
_libc.telldir.restype = ctypes.c_long


class Listing(Iterator[bytes]):
    """opendir, readdir, telldir, seekdir and rewinddir, which Python does not offer. `.` and `..` are left out."""

    def __init__(self, path: Path) -> None:
        self._stream = ctypes.c_void_p(_libc.opendir(os.fsencode(path)))
        assert self._stream, os.strerror(ctypes.get_errno())

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *exc: object) -> None:
        _libc.closedir(self._stream)

    def __next__(self) -> bytes:
        while entry := _libc.readdir64(self._stream):
            name = bytes(entry.contents.d_name)
            if name not in (b".", b".."):
                return name
        raise StopIteration

    def tell(self) -> int:
        return int(_libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        _libc.seekdir(self._stream, ctypes.c_long(position))

    def rewind(self) -> None:
        _libc.rewinddir(self._stream)


class DirectoryCases(Case):
    def test_entries_carry_type_and_inode(self, d: Path) -> None:
        makers = self.makers()
        for kind, maker in makers.items():
            maker(str(d / kind))
        with os.scandir(d) as entries:
            seen = {
                entry.name: (entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False),
                             entry.is_symlink(), entry.inode())
                for entry in entries
            }  # fmt: skip
        found = {kind: (d / kind).lstat() for kind in makers}
        assert seen == {
            name: (stat.S_ISDIR(it.st_mode), stat.S_ISREG(it.st_mode), stat.S_ISLNK(it.st_mode), it.st_ino)
            for name, it in found.items()
        }

    def test_dot_and_dot_dot_are_listed_once(self, d: Path, file: Path) -> None:
        names = subprocess.check_output(["ls", "-a", d], text=True).split()
        assert sorted(names) == [".", "..", "file"]

    def test_a_large_directory_read_while_it_changes(self, d: Path) -> None:
        count = fill(d, self.limits.many_entries)
        fleeting = range(0, count, 3)
        stable = {f"entry-{number:06}".encode() for number in range(count) if number % 3}
        seen: list[bytes] = []
        with Listing(d) as listing:
            for step, number in enumerate(fleeting):
                seen.extend(itertools.islice(listing, 4))
                os.unlink(d / f"entry-{number:06}")
                (d / f"born-{step:06}").touch()
            seen.extend(listing)
        kept = [name for name in seen if name in stable]
        assert len(kept) == len(set(kept)), "a name was seen twice"
        assert set(kept) == stable, "a name was missed"
        assert len(seen) == len(set(seen)), "a name that came or went was seen twice"
        assert len(os.listdir(d)) == count

    def test_a_large_directory_read_while_another_process_changes_it(self, d: Path) -> None:
        count = fill(d, self.limits.many_entries)
        stable = {f"entry-{number:06}" for number in range(count)}

        def disturb() -> None:
            for step in range(count // 3):
                (d / f"passing-{step % 50}").touch()
                os.rename(d / f"passing-{step % 50}", d / f"passed-{step % 50}")
                os.unlink(d / f"passed-{step % 50}")

        child = ForkedChild(disturb)
        listings = [os.listdir(d) for _ in range(5)]
        child.result()
        for names in listings:
            kept = [name for name in names if name in stable]
            assert len(kept) == len(stable)
            assert set(kept) == stable

    def test_removing_while_listing_removes_all(self, d: Path) -> None:
        fill(d, min(self.limits.many_entries, 1000))
        with Listing(d) as listing:
            for name in listing:
                os.unlink(os.fsencode(d) + b"/" + name)
        assert os.listdir(d) == []

    def test_telldir_and_seekdir_return_to_a_place(self, d: Path) -> None:
        count = fill(d, min(300, self.limits.many_entries))  # the kernel asks for some 200 at a time
        with Listing(d) as listing:
            places, place = [], listing.tell()
            for name in listing:
                places.append((place, name))
                place = listing.tell()
            assert len(places) == count
            for place, name in (places[-50], places[3], places[-1], places[count // 2]):
                listing.seek(place)
                assert next(listing) == name
            listing.seek(places[-10][0])
            assert list(listing) == [name for _, name in places[-10:]]

    def test_seekdir_holds_when_other_names_go(self, d: Path) -> None:
        count = fill(d, min(300, self.limits.many_entries))
        with Listing(d) as listing:
            before = list(itertools.islice(listing, count // 3))
            place = listing.tell()
            after = list(listing)
            for name in before[: count // 6]:
                os.unlink(os.fsencode(d) + b"/" + name)
            listing.seek(place)
            assert list(listing) == after

    def test_rewinddir_sees_what_is_new(self, d: Path) -> None:
        (d / "one").touch()
        with Listing(d) as listing:
            assert list(listing) == [b"one"]
            (d / "two").touch()
            os.unlink(d / "one")
            listing.rewind()
            assert list(listing) == [b"two"]

    def test_two_listings_of_one_directory_are_independent(self, d: Path) -> None:
        count = fill(d, min(200, self.limits.many_entries))
        with Listing(d) as first, Listing(d) as second:
            half = list(itertools.islice(first, count // 2))
            whole = list(second)
            assert [*half, *first] == whole

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


def fill(directory: Path, count: int) -> int:
    """Make `count` empty files, named in order; return how many."""
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as fd:
        for number in range(count):
            os.close(os.open(f"entry-{number:06}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=fd))
    return count
