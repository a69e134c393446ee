"""`Restore`: files of one tree put back into another, as they were, with all attributes.

A plan is made first, from both trees, and nothing is changed meanwhile. Each file, link or special file that differs
becomes a new inode: written beside under a temporary name, synced, renamed over the old one. So a reader has the old
file or the new one, and a process that has the old one open keeps it. A directory keeps its inode. Where a
directory replaces a file, or a file a directory, the new one is exchanged with the old one when it is complete.

The order: missing and differing files are made, then names that the source does not have are removed, then directories
get their attributes. A restore that is killed has lost no bytes but those of files that it has replaced whole. The same
command does the rest: temporary names depend on the name only, and are removed first.

Hard links among the restored files are links of one new inode. A link from elsewhere stays with the old one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from fusebackend.backends.directory.dirfd import PATH_FLAGS, Descriptor, open_names, rename
from fusebackend.base.errors import oserror
from fusebackend.linux.holes import data_ranges
from fusebackend.linux.open_files import FileId
from fusebackend.protocol import BLOCK_BYTES, RENAME_EXCHANGE
from fusebackend.trees.diff import FOREIGN, fields, trusted
from fusebackend.trees.tree import COPY_BYTES, Tree, is_below, join, split, xattr_names

TEMPORARY: Final = b".fusebackend-restore-"
"""Temporary names begin so; a part of the digest of the file's name follows."""

BATCH_FILES: Final = 100
BATCH_BYTES: Final = 64 << 20
"""Files that are written before the first of them is synced. One flush of a volume then syncs all of them: 10,000 files
took 40 s with one flush each."""

NEW_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

HOLE_BYTES: Final = 64 << 10
"""Zeros of a file with holes are looked for in blocks of this size."""

_USER_XATTRS = ("user.", "system.posix_acl_")
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.ENOENT)

Word = Literal["create", "replace", "link", "remove", "attributes"]


class Action(NamedTuple):
    """The change of one path."""

    word: Word
    path: bytes


@dataclass
class _Leaf:
    """A file, link or special file of the source.

    Attributes:
        source: its path there.
        final: its path in the target.
        place: where it is made: elsewhere, if it is in a directory that is exchanged later.
        entry: its attributes in the source.
        there: the attributes of the file that has the path now.
        same: nothing is to be done.
        leader: the leaf that it is a hard link of.
    """

    source: bytes
    final: bytes
    place: bytes
    entry: os.stat_result
    there: os.stat_result | None
    same: bool
    leader: _Leaf | None = None


@dataclass
class _Step:
    """One change of the target.

    Attributes:
        kind: `clean` removes a temporary name, `put` makes a leaf, `swap` exchanges `place` and `path`.
        path: in the target, when all is done.
        place: where it is while the step is made.
        word: of the action that the user is shown; None for a step that is a part of another one.
        leaf: of `put`.
        source, entry: of a directory: its path and attributes there.
        needed: of `attributes`: they differ, or the directory is new. Otherwise the step is made if a name in the
            directory changes, for that moves its mtime.
    """

    kind: Literal["clean", "mkdir", "put", "swap", "remove", "attributes"]
    path: bytes
    place: bytes
    word: Word | None = None
    leaf: _Leaf | None = None
    source: bytes = b""
    entry: os.stat_result | None = None
    needed: bool = True


class _Pair(NamedTuple):
    """A path of the source, and the place in the target where `there` is now."""

    source: bytes
    final: bytes
    place: bytes
    entry: os.stat_result
    there: os.stat_result | None


def trees(source: str, target: str) -> tuple[Tree, Tree]:
    """Open two trees for a restore: with the extended attributes that this user may set."""
    prefixes = ("",) if os.geteuid() == 0 else _USER_XATTRS
    return Tree(source, xattr_prefixes=prefixes), Tree(target, xattr_prefixes=prefixes)


class Restore:
    """One restore: `add` paths, `finish` the plan, look at `actions` and `going`, then `run`.

    Args:
        source, target: the trees, from `trees`.
        left_out: paths that are neither read nor changed, such as routes that the source has no state of.
        ways, older_ns: as of `differences`.

    Attributes:
        going: the regular files that are replaced or removed, with a path of each.
        skipped: paths that are left alone, each with the reason. `run` adds to it what this user may not make.
    """

    def __init__(
        self,
        source: Tree,
        target: Tree,
        *,
        left_out: Collection[bytes] = (),
        ways: Collection[bytes] = (),
        older_ns: int | None = None,
    ) -> None:
        self.going: dict[FileId, bytes] = {}
        self.skipped: list[tuple[bytes, str]] = []
        self._source, self._target = source, target
        self._left_out, self._ways = frozenset(left_out), frozenset(ways)
        self._trusted_ns = trusted(older_ns)
        self._is_root = os.geteuid() == 0
        self._leaves: list[_Leaf] = []
        self._build: list[_Step] = []
        self._removals: list[_Step] = []
        self._attributes: list[_Step] = []

    # -- the plan ------------------------------------------------------------------------------------------------

    def add(self, path: bytes, to: bytes | None = None) -> None:
        """Plan for a path of the source, which gets the path `to`, or its own again with the directories above it.

        Raises:
            FileNotFoundError: it is not in the source, or the directory of `to` is not in the target.
            NotADirectoryError: something else is where a directory above it was.
        """
        entry = self._source.entry(path)
        if entry is None:
            raise _error(errno.ENOENT, self._source, path)
        final = path if to is None else to
        self._parents(final, may_make=to is None)
        if final:
            directory, name = split(final)
            beside = temporary(name)
            self._leftovers(directory, [beside, temporary(beside), _aside(name)])
        self._add(_Pair(path, final, final, entry, self._target.entry(final)))

    def finish(self) -> None:
        """Complete the plan: choose the files that become hard links of each other, and drop what needs no change."""
        groups: dict[object, list[_Leaf]] = defaultdict(list)
        mixed: dict[FileId, set[object]] = defaultdict(set)
        for leaf in self._leaves:
            group_id = _id(leaf.entry) if leaf.entry.st_nlink > 1 else leaf.final
            groups[group_id].append(leaf)
            if leaf.there is not None:
                mixed[_id(leaf.there)].add(group_id)
        for group in groups.values():
            theirs = {_id(leaf.there) for leaf in group if leaf.there is not None}
            if all(leaf.same for leaf in group) and len(theirs) == 1 and all(len(mixed[each]) == 1 for each in theirs):
                continue
            for leaf in group:
                leaf.same, leaf.leader = False, None if leaf is group[0] else group[0]
        self._build = [step for step in self._build if step.leaf is None or not step.leaf.same]
        for step in self._build:
            if step.leaf is not None and step.leaf.leader is not None and step.word is not None:
                step.word = "link"
        for leaf in self._leaves:
            if not leaf.same and leaf.there is not None and stat.S_ISREG(leaf.there.st_mode):
                self.going[_id(leaf.there)] = leaf.final
        changed = {split(step.path)[0] for step in (*self._build, *self._removals)}
        self._attributes = [step for step in self._attributes if step.needed or step.path in changed]
        self._attributes.reverse()  # a directory comes after all that is in it

    @property
    def actions(self) -> list[Action]:
        """The changes that `run` makes, in its order."""
        steps = (*self._build, *self._removals, *self._attributes)
        return [Action(step.word, step.path) for step in steps if step.word is not None]

    def _parents(self, final: bytes, *, may_make: bool) -> None:
        """Plan for the directories above a path that are not there."""
        missing = []
        directory = split(final)[0]
        while directory and self._target.entry(directory) is None:
            missing.append(directory)
            directory = split(directory)[0]
        there = self._target.entry(directory)
        if there is not None and not stat.S_ISDIR(there.st_mode):
            raise _error(errno.ENOTDIR, self._target, directory)
        for directory in reversed(missing):
            entry = self._source.entry(directory)
            if not may_make or entry is None:
                raise _error(errno.ENOENT, self._target, directory)
            if all(step.path != directory for step in self._attributes):
                self._make(_Pair(directory, directory, directory, entry, None))

    def _add(self, pair: _Pair) -> None:
        """Plan for one path and all below it."""
        left = [pair]
        while left:
            pair = left.pop()
            if not self._may_touch(pair):
                continue
            is_directory = stat.S_ISDIR(pair.entry.st_mode)
            if pair.there is not None and is_directory != stat.S_ISDIR(pair.there.st_mode):
                self._exchange(pair)
            elif is_directory:
                self._make(pair)
                left += reversed(self._below(pair))
            else:
                same = pair.there is not None and self._is_same(pair, pair.there)
                leaf = _Leaf(pair.source, pair.final, pair.place, pair.entry, pair.there, same)
                self._leaves.append(leaf)
                word: Word = "create" if pair.there is None else "replace"
                self._build.append(_Step("put", pair.final, pair.place, word, leaf))

    def _make(self, pair: _Pair) -> None:
        """Plan for a directory itself."""
        if pair.final in self._ways and pair.there is not None:
            return
        if pair.there is None:
            self._build.append(_Step("mkdir", pair.final, pair.place, "create"))
        needed = pair.there is None or not self._is_same(pair, pair.there)
        word: Word | None = "attributes" if pair.there is not None and needed else None
        self._attributes.append(
            _Step("attributes", pair.final, pair.final, word, source=pair.source, entry=pair.entry, needed=needed)
        )

    def _below(self, pair: _Pair) -> list[_Pair]:
        """Plan for the removal of names that the source does not have, and return the others."""
        ours = {name: entry for name, entry in self._source.entries(pair.source).items() if not _is_temporary(name)}
        theirs = {} if pair.there is None else self._target.entries(pair.final)
        self._leftovers(pair.final, [name for name in theirs if _is_temporary(name)])
        for name in sorted(theirs.keys() - ours.keys()):
            path = join(pair.final, name)
            if not _is_temporary(name) and path not in self._ways and self._may_go(path, theirs[name]):
                self._removals.append(_Step("remove", path, path, "remove"))
        return [
            _Pair(join(pair.source, name), join(pair.final, name), join(pair.place, name), ours[name], theirs.get(name))
            for name in sorted(ours)
        ]

    def _exchange(self, pair: _Pair) -> None:
        """Plan for a directory in the place of something else, or the reverse: it is made beside, then exchanged."""
        assert pair.there is not None, "there is something to be replaced"
        if not self._may_go(pair.final, pair.there):
            return
        directory, name = split(pair.final)
        beside, first = join(directory, temporary(name)), len(self._build)
        self._add(pair._replace(place=beside, there=None))
        for step in self._build[first:]:
            if step.path == pair.final:
                step.word = None  # the exchange is the action
        self._build.append(_Step("swap", pair.final, beside, "replace"))
        self._removals.append(_Step("clean", pair.final, beside))

    def _leftovers(self, directory: bytes, names: Iterable[bytes]) -> None:
        """Plan for the removal of the temporary names that an interrupted restore has left."""
        for name in names:
            path = join(directory, name)
            known = any(step.kind == "clean" and step.place == path for step in self._build)
            if not known and self._target.entry(path) is not None:
                self._build.append(_Step("clean", path, path))

    def _is_same(self, pair: _Pair, there: os.stat_result) -> bool:
        """Return True if nothing of a file is to be restored; of a directory, none of its attributes."""
        entry = pair.entry
        if stat.S_IFMT(entry.st_mode) != stat.S_IFMT(there.st_mode) or entry.st_mtime_ns != there.st_mtime_ns:
            return False
        found = fields(
            self._source, self._target, pair.source, pair.final, entry, there, trusted_ns=self._trusted_ns
        )  # fmt: skip
        return all(each == "owner" and not self._is_root for each in found)

    def _may_touch(self, pair: _Pair) -> bool:
        """Return False for a path that is left out. Note one at which another file system is mounted."""
        if pair.source in self._left_out or pair.final in self._left_out:
            return False
        is_foreign = pair.entry.st_dev != self._source.device
        if is_foreign or (pair.there is not None and pair.there.st_dev != self._target.device):
            self.skipped.append((pair.final, FOREIGN))
            return False
        return True

    def _may_go(self, path: bytes, entry: os.stat_result) -> bool:
        """Return True for a path that may be removed with all below it. Note its files as `going`."""
        going: dict[FileId, bytes] = {}
        left = [(path, entry)]
        while left:
            inner, found = left.pop()
            if inner in self._left_out:
                if inner != path:
                    self.skipped.append((path, f"'{_text(inner)}' is in it, which is not restored"))
                return False
            if found.st_dev != self._target.device:
                self.skipped.append((path, f"another file system is mounted at '{_text(inner)}'"))
                return False
            if stat.S_ISDIR(found.st_mode):
                left += [(join(inner, name), each) for name, each in self._target.entries(inner).items()]
            elif stat.S_ISREG(found.st_mode):
                going[_id(found)] = inner
        self.going |= going
        return True

    # -- its execution -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make the plan true. After an error nothing is removed that was to be removed; the same restore goes on.

        Raises:
            OSError: of the target, such as ENOSPC; of a directory that this user may not change.
        """
        work = _Work(self._source, self._target, self._is_root, self.skipped)
        try:
            for steps in (self._build, self._removals, self._attributes):
                for step in steps:
                    work.do(step)
                work.flush()
        finally:
            work.abandon()


class _Work:
    """The execution of a plan. Each change is one system call on a name below the descriptor of its directory."""

    def __init__(self, source: Tree, target: Tree, is_root: bool, skipped: list[tuple[bytes, str]]) -> None:
        self._source, self._target, self._is_root, self._skipped = source, target, is_root, skipped
        self._batch: list[tuple[_Leaf, Descriptor]] = []
        self._batch_bytes = 0
        self._exchanged: list[bytes] = []
        self._unsynced: set[bytes] = set()
        self._default_acls: dict[bytes, bool] = {}

    def do(self, step: _Step) -> None:
        if step.kind == "put" and step.leaf is not None:
            self._put(step.leaf)
        elif step.kind == "mkdir":
            directory, name = self._writable(step.place)
            os.mkdir(name, 0o700, dir_fd=directory.fd)
        elif step.kind == "swap":
            self._rename_batch()
            self._swap(step.place, step.path)
        elif step.kind == "attributes" and step.entry is not None:
            opened = self._target.directory(step.path)
            self._give(opened, step.source, step.entry)
            self._unsynced.add(step.path)
        else:
            self._remove(step.place)

    def flush(self) -> None:
        """Give all files their names, and make the names durable."""
        self._rename_batch()
        for path in sorted(self._unsynced):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # exchanged or removed since
                _sync(open_names(self._target.directory(path)))
        self._unsynced.clear()

    def _writable(self, path: bytes) -> tuple[Descriptor, bytes]:
        """Return the directory of a path that is changed next, and the name in it.

        A directory of ours without permission to write gets it for the time being: its attributes are restored last.
        """
        directory, name = self._target.parent(path)
        self._unsynced.add(split(path)[0])
        if not self._is_root:
            found = os.fstat(directory.fd)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o700 != 0o700:
                os.chmod(directory.path, stat.S_IMODE(found.st_mode) | 0o700)
        return directory, name

    # -- files ---------------------------------------------------------------------------------------------------

    def _put(self, leaf: _Leaf) -> None:
        """Make a new inode under a temporary name. `_rename_batch` gives it the right one."""
        if leaf.leader is not None and self._link(leaf, leaf.leader):
            return
        directory, name = self._writable(leaf.place)
        beside = temporary(name)
        if stat.S_ISREG(leaf.entry.st_mode):
            is_ours = (leaf.entry.st_uid, leaf.entry.st_gid) == (os.geteuid(), os.getegid())
            mode = stat.S_IMODE(leaf.entry.st_mode) & 0o777 | 0o600 if is_ours else 0o600
            made = Descriptor(os.open(beside, NEW_FLAGS, mode, dir_fd=directory.fd))
            self._batch.append((leaf, made))
            self._batch_bytes += leaf.entry.st_size
            with self._source.reading(leaf.source) as source:
                _copy(source, made.fd, leaf.entry)
        else:
            if stat.S_ISLNK(leaf.entry.st_mode):
                os.symlink(self._source.target(leaf.source), beside, dir_fd=directory.fd)
            elif not self._special(leaf, directory, beside):
                return
            made = Descriptor(os.open(beside, PATH_FLAGS, dir_fd=directory.fd))
            self._batch.append((leaf, made))
            if stat.S_IFMT(os.fstat(made.fd).st_mode) != stat.S_IFMT(leaf.entry.st_mode):
                raise oserror(errno.ESTALE)  # another process has put something else there
        self._give(made, leaf.source, leaf.entry, is_bare=not self._inherits(split(leaf.place)[0]))
        if len(self._batch) >= BATCH_FILES or self._batch_bytes >= BATCH_BYTES:
            self._rename_batch()

    def _special(self, leaf: _Leaf, directory: Descriptor, beside: bytes) -> bool:
        """Make a FIFO, socket or device. Return False if this user may not: only root makes devices."""
        try:
            os.mknod(beside, stat.S_IFMT(leaf.entry.st_mode) | 0o600, leaf.entry.st_rdev, dir_fd=directory.fd)
        except PermissionError as error:
            self._skipped.append((leaf.final, error.strerror or str(error)))
            return False
        return True

    def _rename_batch(self) -> None:
        """Sync the files of the batch, then give them their names."""
        for leaf, made in self._batch:
            if stat.S_ISREG(leaf.entry.st_mode):
                os.fsync(made.fd)
        for leaf, _ in self._batch:
            directory, name = self._target.parent(leaf.place)
            os.rename(temporary(name), name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
        self._batch, self._batch_bytes = [], 0

    def abandon(self) -> None:
        """Remove the temporary names of files that an error has left without their right ones."""
        for leaf, _ in self._batch:
            with contextlib.suppress(OSError):  # it may have got its name; the next restore removes what is left
                directory, name = self._target.parent(leaf.place)
                os.unlink(temporary(name), dir_fd=directory.fd)

    def _link(self, leaf: _Leaf, leader: _Leaf) -> bool:
        """Make a hard link of a file that was restored before. Return False where the file system has none."""
        self._rename_batch()
        is_moved = any(leader.place == each or is_below(leader.place, each) for each in self._exchanged)
        source, source_name = self._target.parent(leader.final if is_moved else leader.place)
        directory, name = self._writable(leaf.place)
        beside = temporary(name)
        try:
            os.link(source_name, beside, src_dir_fd=source.fd, dst_dir_fd=directory.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        os.rename(beside, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
        return True

    def _swap(self, place: bytes, path: bytes) -> None:
        """Exchange two names. Without RENAME_EXCHANGE the old file has a third name for a moment."""
        if self._target.entry(place) is None:
            return  # a device that this user may not make
        directory, name = self._writable(path)
        beside = split(place)[1]
        try:
            rename(directory, beside, directory, name, RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in _NO_EXCHANGE:
                raise
            aside = _aside(name)
            os.rename(name, aside, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
            os.rename(beside, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
            os.rename(aside, beside, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
        self._target.forget()
        self._exchanged.append(place)

    # -- the rest ------------------------------------------------------------------------------------------------

    def _give(self, opened: Descriptor, source: bytes, entry: os.stat_result, *, is_bare: bool = False) -> None:
        """Give an open file the attributes of a path of the source; no request for those that it has.

        In this order: chown(2) takes set-ID bits and capabilities away, and xattrs can be set while the file may be
        written. Times are last. A file that is now another user's gets no set-ID bits. `is_bare`: it has no xattrs.
        """
        place = opened.path
        given = os.fstat(opened.fd)
        owner, wanted_owner = (given.st_uid, given.st_gid), (entry.st_uid, entry.st_gid)
        if self._is_root and owner != wanted_owner:
            os.chown(place, *wanted_owner)
            owner = wanted_owner
        wanted = self._source.xattrs(source)
        if not is_bare:
            for name in xattr_names(os.fsencode(place), self._target.xattr_prefixes, follow=True):
                if name not in wanted:
                    os.removexattr(place, name)
        for name, value in wanted.items():
            os.setxattr(place, name, value)
        mode = stat.S_IMODE(entry.st_mode) & (0o7777 if owner == wanted_owner else 0o1777)
        if not stat.S_ISLNK(entry.st_mode) and (wanted or stat.S_IMODE(os.fstat(opened.fd).st_mode) != mode):
            os.chmod(place, mode)
        os.utime(place, ns=(entry.st_atime_ns, entry.st_mtime_ns))

    def _inherits(self, path: bytes) -> bool:
        """Return True for a directory whose new files get an ACL from it (acl(5), default ACLs)."""
        if path not in self._default_acls:
            self._default_acls[path] = "system.posix_acl_default" in self._target.xattrs(path)
        return self._default_acls[path]

    def _remove(self, path: bytes) -> None:
        """Remove a path with all below it; nothing on which another file system is mounted (EBUSY)."""
        left = [(path, False)]
        while left:
            inner, is_empty = left.pop()
            entry = self._target.entry(inner)
            if entry is None:
                continue
            if entry.st_dev != self._target.device:
                raise _error(errno.EBUSY, self._target, inner)
            if stat.S_ISDIR(entry.st_mode) and not is_empty:
                left.append((inner, True))
                self._writable(join(inner, b"."))
                left += [(join(inner, name), False) for name in self._target.entries(inner)]
                continue
            directory, name = self._writable(inner)
            if stat.S_ISDIR(entry.st_mode):
                os.rmdir(name, dir_fd=directory.fd)
            else:
                os.unlink(name, dir_fd=directory.fd)
        self._target.forget()


def temporary(name: bytes) -> bytes:
    """Return the temporary name of a file in its directory, the same in each restore."""
    return TEMPORARY + hashlib.sha256(name).hexdigest()[:16].encode()


def _aside(name: bytes) -> bytes:
    return temporary(name) + b"-old"


def _is_temporary(name: bytes) -> bool:
    return name.startswith(TEMPORARY)


def _id(entry: os.stat_result) -> FileId:
    return entry.st_dev, entry.st_ino


def _text(path: bytes) -> str:
    return os.fsdecode(path)


def _error(number: int, tree: Tree, path: bytes) -> OSError:
    return OSError(number, os.strerror(number), os.path.join(tree.path, _text(path)))


def _copy(source: int, target: int, entry: os.stat_result) -> None:
    """Copy the data of an open file, without its holes.

    A FUSE mount of ours doesn't tell where the holes are (its FUSE_LSEEK is not served), so blocks of zeros are left
    out of a file that has holes.
    """
    has_holes = entry.st_blocks * BLOCK_BYTES < entry.st_size
    block_bytes, size = HOLE_BYTES if has_holes else COPY_BYTES, 0
    for start, end in data_ranges(source, entry.st_size):
        while start < end and (piece := os.pread(source, min(COPY_BYTES, end - start), start)):
            for at in range(0, len(piece), block_bytes):
                block = piece[at : at + block_bytes]
                if not has_holes or block.strip(b"\0"):
                    _write(target, block, start + at)
                    size = start + at + len(block)
            start += len(piece)
    if size < entry.st_size:
        os.ftruncate(target, entry.st_size)


def _write(target: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(target, left, offset)
        offset, left = offset + written, left[written:]


def _sync(directory: Descriptor) -> None:
    """Sync the names of a directory, where the file system can (EINVAL)."""
    try:
        os.fsync(directory.fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
