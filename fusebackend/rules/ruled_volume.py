"""`RuledVolume`: a volume as a view shows it. Both faces go through it: the one place where rules hold.

Rules speak of paths, and the kernel of nodes. So a decision is made where a name is looked up, and the node that is
given out carries it: bits above the volume's own number say what may not be done (`NO_READ` …). A file that may be read
and written has the volume's number. A directory always has; its path is found by the names that it was looked up by,
which are looked up again for each decision (where the volume can't tell that none has moved, or where the directory
is): a directory that was moved is ESTALE here until it is found anew. So there
is no moment between decision and use, and no rename, link or descriptor leads to a file by another decision than that
of the name that it was found by. What is open, or was found before others moved it, stays as it was decided.

- Hidden names are ENOENT. To create one is EACCES, whether it exists or not.
- A listing has the names that may be read. A directory that looks empty, and is not, can't be removed or replaced:
  EACCES, for ENOTEMPTY would say that something is hidden where nothing is only forbidden.
- A rename needs to write both names, and a file must be allowed the same under both; else EXDEV, so that `mv` copies
  what it may read. A directory is renamed where no rule can tell its files' old paths from the new ones.
- A hard link needs to read and write both names.
- A verb of several steps asks for all of its paths before the first one (`require_…`), so that none is half made.
- Modes lack the bits that are refused, for the kernel answers access(2) from them. Of what an approval could allow they
  have them: the kernel would refuse an `open` by itself, and nobody would hear of it.
- Where names are hidden, link counts of files are 1, and so are those of directories: they count subdirectories.
"""

from __future__ import annotations

import abc
import errno
import os
import stat
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fusebackend.base import acl
from fusebackend.base.errors import VANISHED, oserror, unless
from fusebackend.base.paths import ROOT, AgentPath, join, to_name, to_text
from fusebackend.protocol import (
    RENAME_EXCHANGE,
    ROOT_NODE,
    Attr,
    AttrChanges,
    Caller,
    Change,
    Changes,
    Features,
    Observer,
    SnapshotVolume,
    StatFs,
    UncountedAttr,
    Volume,
)
from fusebackend.rules import met
from fusebackend.rules.rule import Mode, Operation
from fusebackend.rules.view import ALLOWED, View
from fusebackend.volumes import walk
from fusebackend.volumes.frozen import FrozenTree, LooksAhead

_SHIFT = 44
LINKED, NO_READ, NO_WRITE, APPEND = (1 << _SHIFT << bit for bit in range(4))
"""Of a file: it has other names, that may be hidden; may not be read; not be written; only at its end."""

INTERRUPT = NO_WRITE | APPEND
"""Of a file: it may not be written without an approval."""

ASK_TO_READ = LINKED | NO_READ
"""Of a file: it may not be read without an approval."""

NODES = (1 << _SHIFT) - 1
"""The numbers of the volume below."""

_READING: dict[Mode, int] = {"allow": 0, "interrupt": ASK_TO_READ}
_WRITING: dict[Mode, int] = {"allow": 0, "append": APPEND, "interrupt": INTERRUPT}

VARIANTS = tuple(bits << _SHIFT for bits in range(16))
"""All numbers of a file, less its number in the volume below."""

MAX_DIRECTORIES = 1 << 18
"""Names of directories that are kept beyond those that the kernel knows."""

DEEPEST = 4096
"""A way up that is longer goes round in circles: a path has no more bytes."""

T = TypeVar("T")


def own_bits(node: int) -> int:
    """Return what may not be done with a file, as bits; 0 where it has the number of the volume below."""
    return node & ~NODES


def unruled(volume: Volume, changing: T, node: int) -> tuple[Volume, Volume | T, int]:
    """Return a volume, what its changes go through, and a node of it, without the rules of a view: for what a mount
    does to a file by itself, after a change that the rules have allowed."""
    if isinstance(volume, RuledVolume):
        return volume.below, volume.changed(), node & NODES
    return volume, changing, node


class _Walk(threading.local):
    """What a thread has found in the blocks of `RuledVolume._walking` that it is in."""

    def __init__(self) -> None:
        self.depth = 0
        self.paths: dict[int, AgentPath] = {}


class RuledVolume(Volume):
    """See the module's docstring. Any thread, as the volume below.

    Args:
        below: the volume.
        view: its rules; paths are those of the mounted tree.
        prefix: where the volume is in that tree, `/` for its root.
        changed: gives what the changes of the kernel go through; `below` when None.
        read_only: nothing can be changed: EROFS.
        for_all: no reader sees the volume in another way, and `view` only hides: every file has the volume's number.
    """

    def __init__(
        self,
        below: Volume,
        view: View,
        prefix: str = "/",
        *,
        changed: Callable[[], Volume] | None = None,
        read_only: bool = False,
        for_all: bool = False,
    ) -> None:
        self.below = below
        self.view = view
        self.lock: AbstractContextManager[Any] = below.lock
        self.on_interrupt: Callable[[AgentPath | None, int, Operation], None] | None = None
        """Called for what the kernel's caller is refused, and could be approved for a verb: with its path; for a file
        that is known by its node alone, with None and the node. It must not wait."""
        self._prefix = prefix
        self.changed = changed or (lambda: below)
        self._read_only = read_only
        self._for_all = for_all
        self._names: dict[int, tuple[int, bytes]] = {}  # directories, by where each was found last
        self._held: set[int] = set()  # those that the kernel knows
        # Of directories: as long as none moves; where that is not known, as each was found last.
        self._paths: dict[int, AgentPath] = {}
        self._moves: int | None = -1
        self._walk = _Walk()

    @property
    def features(self) -> Features:  # type: ignore[override]  # of a shared volume it changes
        below = self.below.features
        return replace(below, read_only=True) if self._read_only else below

    # -- decisions ---------------------------------------------------------------------------------------------

    def _path(self, node: int) -> AgentPath:
        """Return the path of a directory in the mounted tree. ESTALE if it is not where it was found.

        All names on the way are looked up again, unless the volume says that no directory has moved since, or that this
        one is where it was. Looking them up was a sixth of the server's time for `find`, and a third for git on `dir:`.
        """
        moves = self.directory_moves
        if moves != self._moves or len(self._paths) >= MAX_DIRECTORIES:
            self._paths, self._moves = {}, moves
        path = self._paths.get(node)
        if moves is not None:
            return path or self._looked_up(node, self._paths)
        if path is None or not self._is_at(path, node):
            path = self._paths[node] = self._looked_up(node, self._walk.paths if self._walk.depth else {})
        return path

    def _is_at(self, path: AgentPath, node: int) -> bool:
        """Return True if the volume says that a directory is at its path, as it was when its names were looked up."""
        names = self.way_to(node)
        return names is not None and path == join(self._prefix, to_text(names))

    def _looked_up(self, node: int, known: dict[int, AgentPath]) -> AgentPath:
        """Return the path of a directory. Names are looked up again, on the way up to a directory in `known`."""
        above: list[tuple[int, bytes]] = []
        while node != ROOT_NODE and node not in known:
            place = self._names.get(node) or self._place(node)
            if place is None or not self._leads_to(*place, node) or len(above) == DEEPEST:
                raise oserror(errno.ESTALE)
            above.append((node, place[1]))
            node = place[0]
        path = known.get(node) or AgentPath(self._prefix)
        for below, name in reversed(above):
            path = known[below] = join(path, to_text(name))
        return path

    @contextmanager
    def _walking(self) -> Iterator[None]:
        """Where the volume can't tell that no directory has moved, look each one up once in this block of the thread:
        else a path of a thousand names takes a million. With the lock, where that keeps them from being moved."""
        features = self.below.features
        walk = self._walk
        with nullcontext() if features.blocking or features.shared or self.directory_moves is not None else self.lock:
            walk.depth += 1
            try:
                yield
            finally:
                walk.depth -= 1
                if not walk.depth:
                    walk.paths = {}

    def way_to(self, directory: int) -> bytes | None:
        return self.below.way_to(directory & NODES)

    def _place(self, node: int) -> tuple[int, bytes] | None:
        """Return the directory that a directory is in, and its name there, if the volume knows it."""
        return None

    def _leads_to(self, parent: int, name: bytes, node: int) -> bool:
        found = unless(VANISHED, self.below.lookup, parent, name)
        return found is not None and found.node == node

    def _bits(self, path: AgentPath, view: View | None = None) -> int | None:
        """Return what may not be done with what is at a path; None where it is hidden."""
        decided = (view or self.view).decide_both(path)
        if decided is ALLOWED:
            return 0
        reading, writing = decided
        if reading == "hide":
            return None
        if "interrupt" in decided and (noted := met.current()) is not None:
            noted.any = True
        return _READING.get(reading, NO_READ) | _WRITING.get(writing, NO_WRITE)

    def _writable(self) -> None:
        if self._read_only:
            raise oserror(errno.EROFS)

    def _new_path(self, parent: int, name: bytes) -> AgentPath:
        """Return the path of a name that may be created. EACCES, whether it exists or not."""
        self._writable()
        path = join(self._path(parent), to_text(name))
        self._may_change(path, name, "append")
        return path

    def _own_path(self, parent: int, name: bytes) -> AgentPath:
        """Return the path of a name that may be removed."""
        self._writable()
        path = join(self._path(parent), to_text(name))
        if self.view.is_hidden(path):
            raise oserror(errno.ENOENT, name)
        self._may_change(path, name)
        return path

    def _may_change(self, path: AgentPath, name: bytes | None = None, *also: Mode) -> None:
        """EACCES for a path that may not be written, unless its mode is one of `also`."""
        mode = self.view.decide("write", path)
        if mode == "interrupt":
            self._interrupted(path, name)
        elif mode != "allow" and mode not in also:
            raise oserror(errno.EACCES, name)

    def _interrupted(self, path: AgentPath, name: bytes | None = None) -> None:
        """A change of a path is refused that may be approved: EACCES, or what else `met.deciding` finds."""
        noted = met.current()
        if noted is not None:
            noted.interrupted()
            return
        if self.on_interrupt is not None:
            self.on_interrupt(path, ROOT_NODE, "write")
        raise oserror(errno.EACCES, name)

    def _shown(self, attr: Attr, bits: int) -> Attr:
        """Return the attributes of something as the view shows them."""
        is_linked = not attr.is_dir and attr.nlink > 1 and self.view.hides
        if is_linked and not bits and not self._for_all:
            bits = LINKED
        if attr.node > NODES:
            raise OSError(errno.EOVERFLOW, "The volume's node numbers leave no room for rules")
        if not (bits & NO_READ or self.view.hides if attr.is_dir else bits or is_linked):
            return attr
        mode = attr.mode
        if not attr.is_dir:
            mode &= ~0o6000
            mode &= ~(0o111 * _refused_permissions(bits))
        elif bits & NO_READ:
            mode &= ~0o444
        is_counted = self._for_all and not attr.is_dir
        kind = UncountedAttr if is_counted and self.view.hides else Attr
        return kind(
            attr.node if attr.is_dir else attr.node | bits,
            mode,
            nlink=attr.nlink if is_counted else min(attr.nlink, 1) if self.view.hides else attr.shown_nlink,
            uid=attr.uid,
            gid=attr.gid,
            rdev=attr.rdev,
            size=0 if attr.is_dir else attr.size,
            blocks=0 if attr.is_dir else attr.blocks,
            atime_ns=attr.atime_ns,
            mtime_ns=attr.mtime_ns,
            ctime_ns=attr.ctime_ns,
            version=attr.version,
        )

    def _found(self, parent: int, name: bytes, attr: Attr) -> None:
        if attr.is_dir:
            if len(self._names) >= MAX_DIRECTORIES + len(self._held):
                self._names = {node: place for node, place in self._names.items() if node in self._held}
            self._names[attr.node] = parent, name

    def _refused(self, node: int, bits: int) -> None:
        """EACCES if one of these bits is set. Of a directory they are those of its path."""
        if not own_bits(node) & bits:
            return
        if (noted := met.current()) is not None:
            noted.refused = True  # by which rule, was noted when it was looked up
        elif self.on_interrupt is not None:
            if bits & NO_WRITE and node & INTERRUPT == INTERRUPT:
                self.on_interrupt(None, node, "write")
            elif bits & NO_READ and node & ASK_TO_READ == ASK_TO_READ:
                self.on_interrupt(None, node, "read")
        raise oserror(errno.EACCES)

    def _may_write(self, node: int) -> None:
        """EACCES for a file that may not be written all over, and a directory likewise."""
        self._writable()
        self._refused(node, NO_WRITE | APPEND)
        if not own_bits(node) and self._is_directory(node):
            self._may_change(self._path(node))

    def _may_read(self, node: int) -> None:
        self._refused(node, NO_READ)
        if self._is_closed(node):
            raise oserror(errno.EACCES)

    def _is_closed(self, node: int) -> bool:
        """Return True for a directory that may not be read."""
        if own_bits(node) or not self._is_directory(node):
            return False
        return self.view.decide("read", self._path(node)) != "allow"

    def _is_directory(self, node: int) -> bool:
        return node == ROOT_NODE or node in self._names or self.below.getattr(node & NODES).is_dir

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        return self._looked_at(parent, name, self.below.lookup)

    def lookup_brief(self, parent: int, name: bytes) -> Attr:
        return self._looked_at(parent, name, self.below.lookup_brief)

    def _looked_at(self, parent: int, name: bytes, look: Callable[[int, bytes], Attr]) -> Attr:
        with self.lock:
            bits = self._bits(join(self._path(parent), to_text(name)))
            if bits is None:
                raise oserror(errno.ENOENT, name)
            attr = look(parent, name)
            shown = self._shown(attr, bits)
            if attr.is_brief and shown is not attr:  # the view shows another mode, so it has to be known
                attr = self.below.lookup(parent, name)
                shown = self._shown(attr, bits)
            self._found(parent, name, attr)
            return shown

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        return self._page(node, after, limit, self.below.readdir)

    def readdir_brief(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        return self._page(node, after, limit, self.below.readdir_brief)

    def _page(
        self, node: int, after: bytes, limit: int, read: Callable[[int, bytes, int], Sequence[tuple[bytes, Attr]]]
    ) -> Sequence[tuple[bytes, Attr]]:
        with self.lock:
            path = self._path(node)
            if self.view.decide("read", path) != "allow":
                raise oserror(errno.EACCES)
            found: list[tuple[bytes, Attr]] = []
            ruled, inside = self.view.ruled_names(path), "/" if path == "/" else path + "/"
            give, is_directory = found.append, stat.S_ISDIR
            while not found and (page := read(node, after, limit)):  # an empty page would be the end
                for entry in page:
                    name, attr = entry
                    if (
                        attr.nlink == 1
                        and attr.node <= NODES
                        and not is_directory(attr.mode)
                        and (ruled is None or not ruled(name.decode("utf-8", "surrogateescape")))
                    ):
                        give(entry)  # as most names are, and `_shown` would give it
                        continue
                    shown = AgentPath(inside + to_text(name))
                    bits = self._bits(shown)
                    if bits is not None and not bits & NO_READ:
                        with suppress(FileNotFoundError):  # it went meanwhile
                            attr = self.below.lookup(node, name) if attr.is_brief else attr
                            self._found(node, name, attr)
                            give((name, self._shown(attr, bits)))
                after = page[-1][0]
            return found

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        return self._create(parent, name, partial(self.changed().mknod, parent, name, mode, rdev, caller))

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._create(parent, name, partial(self.changed().mkdir, parent, name, mode, caller))

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        return self._create(parent, name, partial(self.changed().symlink, parent, name, target, caller))

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        make = partial(self.changed().create, parent, name, mode, flags, caller)
        return self._create(parent, name, make, reads=flags & os.O_ACCMODE != os.O_WRONLY)

    def _create(self, parent: int, name: bytes, make: Callable[[], Attr], *, reads: bool = False) -> Attr:
        """Return what `make` makes under a name.

        Args:
            reads: it is opened for reading, too.
        """
        with self.lock:
            path = self._new_path(parent, name)
            if reads and self.view.decide("read", path) != "allow":
                raise oserror(errno.EACCES, name)
            attr = make()
            self._found(parent, name, attr)
            return self._shown(attr, self._bits(path) or 0)

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        with self.lock:
            path = self._new_path(new_parent, new_name)
            self._refused(node, NO_READ | NO_WRITE | APPEND)
            if self._bits(path):
                raise oserror(errno.EACCES, new_name)
            return self._shown(self.changed().link(node & NODES, new_parent, new_name), 0)

    def unlink(self, parent: int, name: bytes) -> None:
        with self.lock:
            self._own_path(parent, name)
            self.changed().unlink(parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        with self.lock:
            self._own_path(parent, name)
            moves = self.directory_moves
            is_found = moves is not None or self._walk.paths
            gone = self.below.lookup(parent, name).node if is_found else ROOT_NODE
            try:
                self.changed().rmdir(parent, name)
            except OSError as error:
                self._not_empty(error, parent, name)
                raise
            self._walk.paths.pop(gone, None)  # nothing was below it: all others are where they were
            if moves is not None and self._moves == moves and self.directory_moves == moves + 1:
                self._moves = moves + 1
                self._paths.pop(gone, None)

    def _not_empty(self, error: OSError, parent: int, name: bytes) -> None:
        """EACCES in place of ENOTEMPTY, for a directory that looks empty."""
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            attr = self.lookup(parent, name)
            if attr.is_dir and (not attr.mode & 0o444 or not self.readdir(attr.node, b"", 1)):
                raise oserror(errno.EACCES, name) from None

    def require_removable(self, path: str) -> None:
        with met.deciding():
            place = walk.resolve(self, path, follow=False)
            top = self._own_path(place.parent, place.name)
            self._require_free(top)
            for inner, _ in walk.below(self.below, place.found.node, to_name(top)) if place.found.is_dir else ():
                self._require_free(AgentPath(to_text(inner)))
            self.below.require_removable(path)

    def _require_free(self, path: AgentPath) -> None:
        """EACCES for what may not be read and removed. It is not said which of both, nor that it is hidden."""
        modes = {*self.view.decide_both(path)}
        if not modes <= {"allow", "interrupt"}:
            raise OSError(errno.EACCES, "Permission denied: the rules keep it, or something in it, where it is")
        if modes != {"allow"}:
            self._interrupted(path)

    def require_new(self, *paths: str, changed: bool = False) -> None:
        self._writable()
        with met.deciding():
            for path in paths:
                self._may_change(self._outer(path), None, *(() if changed else ("append",)))
            self.below.require_new(*paths, changed=changed)

    def require_rename(self, path: str, new: str) -> None:
        with self.lock:
            place = walk.resolve(self, path, follow=False)
            self._decide_rename(place.parent, place.name, self._outer(new), to_name(new))
            self.below.require_rename(path, new)

    def _outer(self, path: str) -> AgentPath:
        """Return the path in the mounted tree of one in the volume."""
        return AgentPath(self._prefix.rstrip("/") + path.rstrip("/")) or ROOT

    def _decide_rename(
        self, parent: int, name: bytes, new: AgentPath, new_name: bytes, there: tuple[int, bytes] | None = None
    ) -> list[Attr]:
        """Return the attributes of what is renamed; with `there`, also of what it is exchanged with."""
        with met.deciding():
            old = self._own_path(parent, name)
            self._may_change(new, new_name)
            moved = [self.below.lookup(*place) for place in ((parent, name), there) if place is not None]
            view = self.view
            if "interrupt" in (view.decide("write", old), view.decide("write", new)):
                view = view.granting([old, new], trees=True)  # else an approval is asked for that leads to nothing
            if self._bits(old, view) != self._bits(new, view) or (
                any(attr.is_dir for attr in moved) and not view.is_same_below(old, new)
            ):
                raise OSError(errno.EXDEV, "Other rules apply at the new place")
        return moved

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        with self.lock:
            new = join(self._path(new_parent), to_text(new_name))
            there = (new_parent, new_name) if flags & RENAME_EXCHANGE else None
            moved = self._decide_rename(parent, name, new, new_name, there)
            try:
                self.changed().rename(parent, name, new_parent, new_name, flags)
            except OSError as error:
                if not flags:
                    self._not_empty(error, new_parent, new_name)
                raise
            self._walk.paths.clear()
            self._found(new_parent, new_name, moved[0])
            if flags & RENAME_EXCHANGE:
                self._found(parent, name, moved[1])

    # -- attributes --------------------------------------------------------------------------------------------

    def version_of(self, attr: Attr) -> str | None:
        if own_bits(attr.node) & NO_READ:
            return None  # equal versions would tell of equal bytes
        return self.below.version_of(self.below.getattr(attr.node & NODES))

    def getattr(self, node: int) -> Attr:
        with self.lock:
            attr = self.below.getattr(node & NODES)
            if not attr.is_dir:
                return self._shown(attr, own_bits(node))
            path = unless((errno.ESTALE,), self._path, node)  # it was moved, or removed, while a process is in it
            bits = None if path is None else self._bits(path)
            return self._shown(attr, NO_READ if bits is None else bits)

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        with self.lock:
            if changes != AttrChanges():
                self._may_write(node)
            attr = self.changed().setattr(node & NODES, changes)
            return self.getattr(node) if attr.is_dir else self._shown(attr, own_bits(node))

    def readlink(self, node: int) -> bytes:
        self._refused(node, NO_READ)
        return self.below.readlink(node & NODES)

    def getxattr(self, node: int, name: bytes) -> bytes:
        with self.lock:
            if name != acl.ACCESS:
                self._may_read(node)
                return self.below.getxattr(node & NODES, name)
            # The kernel answers access(2) from it, as from the mode, and needs it to let somebody search a directory.
            value = self.below.getxattr(node & NODES, name)
            refused = 4 if self._is_closed(node) else _refused_permissions(own_bits(node))
            return acl.masked(value, 7 & ~refused) if refused else value

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        with self.lock:
            self._may_write(node)
            self.changed().setxattr(node & NODES, name, value)

    def listxattr(self, node: int) -> Sequence[bytes]:
        with self.lock:
            self._may_read(node)
            return self.below.listxattr(node & NODES)

    def removexattr(self, node: int, name: bytes) -> None:
        with self.lock:
            self._may_write(node)
            self.changed().removexattr(node & NODES, name)

    # -- data --------------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int) -> Attr | None:
        access = flags & os.O_ACCMODE
        if access != os.O_RDONLY:
            self._writable()
            self._refused(node, NO_WRITE | (APPEND if flags & os.O_TRUNC else 0))
        if access != os.O_WRONLY:
            self._refused(node, NO_READ)
        attr = self.below.open(node & NODES, flags)
        if attr is None or attr.node != node & NODES:
            return attr
        return self._shown(attr, own_bits(node))

    def read(self, node: int, offset: int, size: int) -> bytes:
        self._refused(node, NO_READ)
        return self.below.read(node & NODES, offset, size)

    def next_data(self, node: int, offset: int) -> int | None:
        self._refused(node, NO_READ)
        return self.below.next_data(node & NODES, offset)

    def write(self, node: int, offset: int, data: bytes) -> int:
        self._writable()
        self._refused(node, NO_WRITE)
        if not own_bits(node):
            return self.changed().write(node, offset, data)
        self._clear_set_id(node)
        with self.lock:
            if own_bits(node) & APPEND and offset != self.below.getattr(node & NODES).size:
                raise oserror(errno.EACCES)
            return self.changed().write(node & NODES, offset, data)

    def append(self, node: int, data: bytes) -> int:
        self._writable()
        self._refused(node, NO_WRITE)
        if own_bits(node):
            self._clear_set_id(node)
        return self.changed().append(node & NODES, data)

    def _clear_set_id(self, node: int) -> None:
        """Clear the set-ID bits of a file before a write. They are not shown, so the mount can't know of them."""
        attr = self.below.getattr(node & NODES)
        if attr.mode & 0o6000 and stat.S_ISREG(attr.mode):
            with self.below.changing() as changes:  # the kernel has the mode in other trees
                changes.append(Change(node=node & NODES))
                mode = stat.S_IMODE(attr.mode) & ~0o6000
                self.changed().setattr(node & NODES, AttrChanges(mode=mode))

    def flush(self, node: int) -> None:
        self.changed().flush(node & NODES)

    def fsync(self, node: int, datasync: bool = False) -> None:
        self.changed().fsync(node & NODES, datasync)

    def release(self, node: int, flags: int) -> None:
        self.below.release(node & NODES, flags)

    # -- life --------------------------------------------------------------------------------------------------

    @contextmanager
    def walking(self, names: Sequence[bytes]) -> Iterator[None]:
        with self._walking(), self.below.walking(names):
            yield

    def statfs(self) -> StatFs:
        return self.below.statfs()

    def lasting(self, node: int) -> bytes | None:
        return self.below.lasting(node & NODES)

    def clone_to(self, node: int, descriptor: int) -> bool:
        return self.below.clone_to(node & NODES, descriptor)

    def hold(self, node: int) -> None:
        if node in self._names:
            self._held.add(node)
        self.below.hold(node & NODES)

    def forget(self, nodes: Iterable[int]) -> None:
        nodes = list(nodes)
        for node in nodes:
            if node in self._held:
                self._held.discard(node)
                self._names.pop(node, None)
        self.below.forget(node & NODES for node in nodes)

    # -- changes, which the volume below reports ---------------------------------------------------------------

    def observe(self, callback: Observer) -> Callable[[], None]:
        def visible(changes: Sequence[Change]) -> Callable[[], None] | None:
            seen = [shown for change in changes if (shown := change.shown(self._is_shown)) is not None]
            return callback(seen) if seen else None

        return self.below.observe(visible if self.view.hides else callback)

    def _is_shown(self, path: str) -> bool:
        return not self.view.is_hidden(join(self._prefix, path.strip("/")) if path != "/" else "/")

    def rewriting(self, node: int) -> AbstractContextManager[None]:  # type: ignore[override]
        return self.below.rewriting(node & NODES)

    @contextmanager
    def changing(self) -> Iterator[Changes]:
        with self.below.changing() as below, self._reported(below) as changes:
            yield changes

    def change_as_one(self, work: Callable[[Changes], T], *paths: str, removes: bool = False, reads: bool = False) -> T:
        return self.below.change_as_one(self._reports(work), *paths, removes=removes, reads=reads)

    def change_at_once(self, work: Callable[[Changes], T]) -> T:
        return self.below.change_at_once(self._reports(work))

    def _reports(self, work: Callable[[Changes], T]) -> Callable[[Changes], T]:
        def reporting(below: Changes) -> T:
            with self._reported(below) as changes:
                return work(changes)

        return reporting

    @contextmanager
    def _reported(self, below: Changes) -> Iterator[Changes]:
        """Have the changes of a block that walks be those of the volume below, which reports them as its own."""
        begin = len(below)
        with self._walking():
            try:
                yield below
            finally:
                below[begin:] = map(_stripped, below[begin:])

    def publish(self, *changes: Change) -> None:
        self.below.publish(*map(_stripped, changes))


def _refused_permissions(bits: int) -> int:
    """Return the permissions (0 to 7) that the kernel shall refuse by itself."""
    return (5 if bits & ASK_TO_READ == NO_READ else 0) | (2 if bits & INTERRUPT == NO_WRITE else 0)


def _stripped(change: Change) -> Change:
    """Return a change with the node of the volume below."""
    return change if change.node is None else change._replace(node=change.node & NODES)


def pass_on(kind: type[RuledVolume], *names: str) -> None:
    """Have attributes and methods of a class be those of the volume below."""
    for each in names:

        def get(self: RuledVolume, name: str = each) -> Any:
            return getattr(self.below, name)

        def put(self: RuledVolume, value: Any, name: str = each) -> None:
            setattr(self.below, name, value)

        setattr(kind, each, property(get, put))
    abc.update_abstractmethods(kind)


pass_on(
    RuledVolume, "unpublished", "watched", "ttl_s", "at_once", "most_nodes", "byte_cache", "unstored", "trouble",
    "usage", "viewing", "expire", "sync", "close", "access_due", "observe_delays", "subscribe", "guard", "is_guarded",
    "without_rules", "require_room", "directory_moves",
)  # fmt: skip


# -- a route with rules that keeps snapshots -------------------------------------------------------------------


class RuledSnapshotVolume(RuledVolume, SnapshotVolume):
    """A volume with snapshots as the rules of its route show it, for every reader. Any thread, as the volume below.

    The snapshots are those of the volume below: a mount without the rules has the same ones, with all that is hidden
    here. Each is looked at through the rules that the route has now. An undo and a branch find files by their nodes,
    also after a restart of the server, so a file has the number here that it has below, in every state.

    Args:
        below: the volume; it reports changes, too.
        view: what is hidden, by paths inside the volume.
        read_only: its files can't be changed: EROFS. Snapshots are taken and deleted as of any other.
    """

    def __init__(self, below: SnapshotVolume, view: View, *, read_only: bool = False) -> None:
        super().__init__(below, view, read_only=read_only, for_all=True)
        self._kept = below
        self._shown_as: weakref.WeakValueDictionary[str, RuledSnapshot] = weakref.WeakValueDictionary()

    def forget_versions(self, nodes: Collection[int]) -> list[str]:
        self._writable()
        return self._kept.forget_versions(nodes)

    def snapshot(self, name: str) -> Volume:
        frozen = self._kept.snapshot(name)
        if not self.view.rules:
            return frozen
        with self.lock:
            shown = self._shown_as.get(name)
            if shown is None or shown.below is not frozen:
                shown = self._shown_as[name] = RuledSnapshot(frozen, self.view)
            return shown


pass_on(
    RuledSnapshotVolume, "is_changed", "snapshot_bytes", "snapshots", "take_snapshot", "delete_snapshot", "kept_by",
    "keep_log", "committed", "may_go", "before_commit", "on_snapshot",
)  # fmt: skip


class RuledSnapshot(RuledVolume, LooksAhead):
    """A snapshot as the rules of its route show it.

    A branch has the node of a directory from an earlier session, and looks no path up before it uses it. So the path is
    found from the node here.
    """

    def __init__(self, frozen: Volume, view: View) -> None:
        super().__init__(frozen, view, read_only=True, for_all=True)

    def _place(self, node: int) -> tuple[int, bytes] | None:
        return self.below.place_of(node) if isinstance(self.below, FrozenTree) else None

    def ahead(self, nodes: Sequence[int], *, contents: bool = False) -> None:
        if isinstance(self.below, LooksAhead):
            self.below.ahead(nodes, contents=contents)
