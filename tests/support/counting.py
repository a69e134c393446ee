"""`Counting`: random steps of all that moves the sums of a volume with limits."""

from __future__ import annotations

import errno
import os
import random
import stat
import struct

from fusebackend.backends.postgres.backend import PostgresBackend
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller, NewFile, SnapshotVolume, State
from fusebackend.volumes.agent_face import VolumeBackend

USUAL = (errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.EDQUOT)
USUAL += (errno.EPERM, errno.ENODATA, errno.ESTALE, errno.EBUSY)

ME = Caller(os.getuid(), os.getgid(), os.getpid())


def acl_of(*users: int) -> bytes:
    """A POSIX ACL that lets these users read."""
    entries = [(1, 7, 0xFFFFFFFF), *((2, 4, user) for user in users), (4, 5, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF)]
    packed = [struct.pack("<HHI", *entry) for entry in (*entries, (32, 5, 0xFFFFFFFF))]
    return struct.pack("<I", 2) + b"".join(packed)


class Counting:
    """Random steps of all that moves the sums: through a volume, with files that stay open, or known to the kernel,
    after they have lost their names."""

    def __init__(self, backend: VolumeBackend, seed: int) -> None:
        self.backend, self.volume, self.chosen = backend, backend.volume, random.Random(seed)
        self.opened: list[int] = []
        self.held: list[int] = []
        self.directories = [ROOT_NODE]
        self.refusals = 0

    def step(self) -> None:
        chosen = self.chosen
        step = chosen.choice([each for each in dir(self) if each.startswith("do_")])
        try:
            getattr(self, step)()
        except OSError as error:
            assert error.errno in USUAL, (step, error)
            self.refusals += error.errno == errno.EDQUOT

    def _in(self) -> int:
        return self.chosen.choice(self.directories)

    def _name(self) -> bytes:
        return b"n%d" % self.chosen.randrange(12)

    def _there(self) -> tuple[int, bytes, int]:
        parent = self._in()
        names = [(name, attr.node) for name, attr in self.volume.readdir(parent, b"", 100)]
        if not names:
            raise FileNotFoundError(errno.ENOENT, "empty")
        return (parent, *self.chosen.choice(names))

    def _file(self) -> int:
        node = self._there()[2]
        return self.chosen.choice([node, *self.opened])

    def do_create(self) -> None:
        node = self.volume.create(self._in(), self._name(), 0o664, os.O_RDWR, ME).node
        self.opened.append(node)

    def do_mkdir(self) -> None:
        self.directories.append(self.volume.mkdir(self._in(), self._name(), 0o775, ME).node)

    def do_mknod(self) -> None:
        self.volume.mknod(self._in(), self._name(), stat.S_IFIFO | 0o664, 0, ME)

    def do_symlink(self) -> None:
        self.volume.symlink(self._in(), self._name(), b"t" * self.chosen.choice([1, 4095]), ME)

    def do_link(self) -> None:
        self.volume.link(self._file(), self._in(), self._name())

    def do_unlink(self) -> None:
        self.volume.unlink(*self._there()[:2])

    def do_rmdir(self) -> None:
        self.volume.rmdir(*self._there()[:2])

    def do_rename(self) -> None:
        self.volume.rename(*self._there()[:2], self._in(), self._name(), self.chosen.choice([0, 0, 1]))

    def do_exchange(self) -> None:
        self.volume.rename(*self._there()[:2], *self._there()[:2], 2)

    def do_write(self) -> None:
        offset = self.chosen.choice([0, 1, 4095, 4096, 65_000, 65_536, 1 << 20])
        node = self._file()
        if stat.S_ISREG(self.volume.getattr(node).mode):
            self.volume.write(node, offset, bytes(self.chosen.choice([0, 1, 4096, 70_000])))

    def do_resize(self) -> None:
        node = self._file()
        if stat.S_ISREG(self.volume.getattr(node).mode):
            size = self.chosen.choice([0, 1, 4096, 4097, 65_536, 70_000, 1 << 22])
            self.volume.setattr(node, AttrChanges(size=size))

    def do_setxattr(self) -> None:
        name = b"user.%d" % self.chosen.randrange(2)
        self.volume.setxattr(self._file(), name, bytes(self.chosen.randrange(5000)))

    def do_set_acl(self) -> None:
        of_directory = self.chosen.random() < 0.5
        node = self._in() if of_directory else self._file()
        name = b"system.posix_acl_" + (b"default" if of_directory else b"access")
        self.volume.setxattr(node, name, acl_of(*range(self.chosen.choice([0, 1, 60]))))

    def do_minimal_acl(self) -> None:
        packed = [struct.pack("<HHI", tag, 5, 0xFFFFFFFF) for tag in (1, 4, 32)]
        self.volume.setxattr(self._file(), b"system.posix_acl_access", struct.pack("<I", 2) + b"".join(packed))

    def do_removexattr(self) -> None:
        node = self.chosen.choice([self._file(), self._in()])
        self.volume.removexattr(node, self.chosen.choice(list(self.volume.listxattr(node)) or [b"user.none"]))

    def do_chmod(self) -> None:
        self.volume.setattr(self._file(), AttrChanges(mode=self.chosen.choice([0o600, 0o777])))

    def do_place(self) -> None:
        state = State(0o600, 1, 1, 0, self.chosen.choice([9000, 1 << 20]), 1, 1, 1, {b"user.p": b"value"}, b"")
        pieces = iter([(0, bytes(5000)), (1 << 16, bytes(100))] if self.chosen.random() < 0.5 else [(0, b"x")])
        if not isinstance(self.backend, PostgresBackend):  # that one takes a transaction of its caller
            self.volume.place(NewFile(self._in(), self._name(), state, pieces))

    def do_release(self) -> None:
        if self.opened:
            self.volume.release(self.opened.pop(self.chosen.randrange(len(self.opened))), os.O_RDWR)

    def do_hold(self) -> None:
        node = self._there()[2]
        self.volume.hold(node)
        self.held.append(node)

    def do_forget(self) -> None:
        self.volume.forget(self.held)
        self.held = []

    def do_verbs(self) -> None:
        backend, chosen = self.backend, self.chosen
        path, other = (f"/n{chosen.randrange(12)}/n{chosen.randrange(12)}" for _ in range(2))
        text = "a" * chosen.choice([1, 5000, 70_000])
        match chosen.randrange(5):
            case 0:
                backend.write(path, text)
            case 1:
                backend.edit(path, "a", "bb", replace_all=True)
            case 2:
                backend.upload_files([(path, text.encode()), (other, b"")])
            case 3:
                backend.delete(path)
            case 4:
                backend.move(path, other)

    def do_snapshot(self) -> None:
        if not isinstance(self.volume, SnapshotVolume):
            return
        kept = [each.name for each in self.volume.snapshots()]
        if len(kept) > 2:
            self.volume.delete_snapshot(self.chosen.choice(kept))
        else:
            self.volume.take_snapshot(f"s{self.chosen.randrange(1 << 40)}")

    def do_store(self) -> None:
        if isinstance(self.backend, SqliteBackend):
            self.backend.volume.write_back()
        elif isinstance(self.backend, PostgresBackend):
            self.backend.volume.settle()

    def end(self) -> None:
        while self.opened:
            self.do_release()
        self.do_forget()
