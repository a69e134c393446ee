"""Hard links, symbolic links, FIFOs, sockets and device nodes."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import Case, fresh, make, opened, refused, tree


class LinkCases(Case):
    @needs("links")
    def test_a_hard_link_is_the_same_file(self, d: Path) -> None:
        (d / "one").write_bytes(b"x")
        os.link(d / "one", d / "two")
        one, two = (d / "one").stat(), (d / "two").stat()
        assert (one.st_ino, one.st_nlink) == (two.st_ino, 2)
        assert one.st_nlink == two.st_nlink
        (d / "two").write_bytes(b"changed")
        assert (d / "one").read_bytes() == b"changed"

    @needs("links")
    def test_link_counts_go_up_and_down(self, d: Path) -> None:
        (d / "file").write_bytes(b"kept")
        for number in range(20):
            os.link(d / "file", d / f"link-{number}")
            assert (d / "file").stat().st_nlink == number + 2
        os.unlink(d / "file")
        for number in range(19):
            os.unlink(d / f"link-{number}")
            assert (d / "link-19").stat().st_nlink == 19 - number
        assert (d / "link-19").read_bytes() == b"kept"

    @needs("links")
    def test_link_count_of_an_open_file(self, d: Path) -> None:
        with opened(d / "one", os.O_RDWR | os.O_CREAT) as fd:
            os.link(d / "one", d / "two")
            assert os.fstat(fd).st_nlink == 2
            os.unlink(d / "one")
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
    def test_the_target_of_a_symlink_may_be_long(self, d: Path) -> None:
        for case in each((1, 59, 60, 255, 256, 1023, 4000, 4095)):
            with case as size, fresh(d) as own:
                target = ("t" * 200 + "/") * 21
                target = target[: size - 1] + "e"
                os.symlink(target, own / "link")
                assert os.readlink(own / "link") == target
                assert (own / "link").lstat().st_size == size

    @needs("symlinks")
    def test_unlink_removes_the_symlink_and_not_its_target(self, d: Path, file: Path) -> None:
        os.symlink("file", d / "link")
        os.unlink(d / "link")
        assert tree(d) == {"file": b"x"}

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
