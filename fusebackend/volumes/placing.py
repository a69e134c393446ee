"""Earlier states of files, put into any volume: new names, contents in place, attributes, removals, renames.

Undo, restore and merge change volumes through this module. A `Source` has the state that a file shall get: `NodeSource`
that of a node of another volume, such as a snapshot, `KeptSource` attributes with a file on disk for the bytes.
Each function appends the `Change`s it makes to a list, which `Volume.changing` reports to kernel caches and watchers:

    with staged(volume, parent, name, source) as ready, volume.changing() as changes:
        ...  # compare the file that is there with the expected one: the lock is held
        make(volume, parent, name, ready, changes, path)

A new file gets its name when it is complete, by a rename from a temporary name beside it, so that no reader and no
crash sees half of it. `staged` writes a large one with the lock free; without it, `make` holds the lock for as long as
the bytes take. A volume that stores whole files needs no temporary name, nor does a small file in one of ours
(`Volume.place`).

A volume may keep less than the state has (an owner that this process may not give, extended attributes): `Placed.lost`
names those attributes. A kind of file that it can't hold is EPERM. One process places one name at
a time: temporary names depend on the name alone, so that the next attempt removes what a crash has left.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from fusebackend.base.errors import NOT_TAKEN, VANISHED, oserror, unless
from fusebackend.linux.holes import data_ranges
from fusebackend.protocol import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    Attr,
    AttrChanges,
    Caller,
    Change,
    Changes,
    EventKind,
    NewFile,
    Volume,
)
from fusebackend.protocol.volume import State as State
from fusebackend.volumes.contents import PIECE_BYTES, data_pieces, filled, opened
from fusebackend.volumes.frozen import GivesPieces, LooksAhead
from fusebackend.volumes.storage import CHUNK_BYTES
from fusebackend.volumes.walk import vanishing

TEMPORARY: Final = b".fusebackend-placing-"
"""Temporary names begin so; a part of the digest of the file's name follows."""

STAGED_BYTES = 1 << 20
"""A larger file is written with the lock free: to write so many bytes takes about a millisecond."""

HOLE_BYTES: Final = 64 << 10
"""Zeros of a whole block of this size are not written to a new file."""

_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def state_of(volume: Volume, attr: Attr) -> State:
    """Return the state of a node of a volume."""
    is_link = stat.S_ISLNK(attr.mode)
    xattrs = {} if is_link else dict(volume.xattrs(attr.node))
    target = volume.readlink(attr.node) if is_link else b""
    return State(attr.mode, attr.uid, attr.gid, attr.rdev, attr.size, attr.nlink, attr.atime_ns, attr.mtime_ns, xattrs,
                 target)  # fmt: skip


# -- sources -----------------------------------------------------------------------------------------------------


class Source(Protocol):
    """A state with its bytes."""

    @property
    def state(self) -> State: ...

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Read the bytes of a regular file: each piece with its offset, holes left out. May be called again."""


class NodeSource:
    """A node of a volume, such as a snapshot."""

    def __init__(self, volume: Volume, node: int, state: State | None = None) -> None:
        self.volume = volume
        self.node = node
        self.state = state_of(volume, volume.getattr(node)) if state is None else state

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        if isinstance(self.volume, GivesPieces):
            return self.volume.pieces(self.node)
        if isinstance(self.volume, LooksAhead) and self.state.size <= CHUNK_BYTES:  # one chunk at most has all of it
            return iter([(0, self.volume.read(self.node, 0, self.state.size))])
        return data_pieces(self.volume, self.node)


class KeptSource(NamedTuple):
    """A state whose bytes are in a file on disk. Without a file it has none."""

    state: State
    path: str | None = None

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        if self.path is None:
            return
        with open(self.path, "rb", buffering=0) as file:
            for start, end in data_ranges(file.fileno(), os.fstat(file.fileno()).st_size):
                file.seek(start)
                while start < end and (piece := file.read(min(PIECE_BYTES, end - start))):
                    yield start, piece
                    start += len(piece)


class BytesSource:
    """A state with bytes in memory, such as lines that were merged."""

    def __init__(self, state: State, data: bytes) -> None:
        self.state = state._replace(size=len(data))
        self._data = data

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        yield 0, self._data


@contextlib.contextmanager
def at_hand(source: Source) -> Iterator[Source]:
    """Read the bytes of a regular file, those of a large one to disk, and yield a source that has them.

    For who takes the lock of a volume then: a source may be in a branch, and who reads there waits for the volumes
    below it with the branch's lock held."""
    if not stat.S_ISREG(source.state.mode):
        yield source
        return
    if source.state.size <= STAGED_BYTES:
        yield BytesSource(source.state, whole(source)[: source.state.size])  # it may have grown since
        return
    with tempfile.TemporaryFile() as file:
        for offset, piece in source.pieces():
            file.seek(offset)
            file.write(piece)
        file.truncate(source.state.size)
        yield KeptSource(source.state, f"/proc/self/fd/{file.fileno()}")


def whole(source: Source) -> bytes:
    """Return all bytes of a regular file."""
    return b"".join(filled(source.pieces())).ljust(source.state.size, b"\0")


def ahead(sources: Iterable[Source | None]) -> None:
    """Read the begin of each file of a snapshot among some sources, together: one by one, each takes a query. It is in
    memory at once."""
    nodes = defaultdict[LooksAhead, list[int]](list)
    for source in sources:
        if isinstance(source, NodeSource) and isinstance(source.volume, LooksAhead):
            nodes[source.volume].append(source.node)
    for volume, wanted in nodes.items():
        volume.ahead(wanted, contents=True)


# -- placing -----------------------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """The outcome of a change."""

    attr: Attr
    """Of the node that has the state now."""
    lost: tuple[str, ...] = ()
    """Attributes that the volume did not take: `owner`, `mode`, `times`, `extended attributes`."""


def refusals(volume: Volume, gone: Collection[str], new: Iterable[str]) -> Iterator[tuple[str, OSError]]:
    """Give the paths that can't be removed, and those at which nothing can be made, as far as that is known before the
    first change; each with the reason. Those that earlier steps bring are passed over.

    Args:
        gone: what is to be removed. What lies in another one is looked at with it.
        new: what is to be made, or renamed there.
    """
    checks = [(path, partial(volume.require_new, path, changed=True)) for path in new]
    checks += [(path, partial(volume.require_removable, path)) for path in gone if path.rpartition("/")[0] not in gone]
    for path, check in checks:
        try:
            with vanishing():
                check()
        except OSError as error:
            yield path, error


def temporary(name: bytes) -> bytes:
    """Return the temporary name of a file in its directory, the same at each attempt."""
    return TEMPORARY + hashlib.sha256(name).hexdigest()[:16].encode()


class _Staged(NamedTuple):
    """A source that is complete under a temporary name."""

    state: State
    pieces: Callable[[], Iterator[tuple[int, bytes]]]
    placed: Placed


@contextlib.contextmanager
def staged(volume: Volume, parent: int, name: bytes, source: Source) -> Iterator[Source]:
    """Write a large file beside its place, with the lock free, and yield a source from which `make` only renames it.

    The end removes the file if `make` did not take it. `make` writes small files itself, and all files on volumes that
    store whole files: their bytes are at hand.
    """
    state = source.state
    if not stat.S_ISREG(state.mode) or state.size <= STAGED_BYTES or not volume.features.random_writes:
        with at_hand(source) as ready:
            yield ready
        return
    beside = temporary(name)
    placed = _write_beside(volume, parent, beside, source)
    try:
        yield _Staged(state, source.pieces, placed)
    finally:
        with volume.lock:
            if _node_at(volume, parent, beside) == placed.attr.node:
                volume.unlink(parent, beside)


def remove_staged(volume: Volume, parent: int, name: bytes) -> None:
    """Remove what an attempt to make a file has left beside its place, if a kill has interrupted it."""
    with volume.lock:
        if _node_at(volume, parent, temporary(name)) is not None:
            volume.unlink(parent, temporary(name))


def make(volume: Volume, parent: int, name: bytes, source: Source, changes: Changes, path: str) -> Placed:
    """Make a file, directory, link or special file under a vacant name. An error leaves nothing.

    A directory's times move with each name that is made in it: give them to it later (`set_attributes`).

    Args:
        path: of the name, in the volume, for watchers; a directory's without the slash at its end.

    Raises:
        OSError: EEXIST; EPERM for a kind that the volume can't hold; from the volume.
    """
    state = source.state
    kind = stat.S_IFMT(state.mode)
    placed = _placed(volume, parent, name, source)
    if placed is None:
        if _node_at(volume, parent, name) is not None:
            raise oserror(errno.EEXIST)
        is_file = kind == stat.S_IFREG
        placed = (
            _make_file(volume, parent, name, source) if is_file else _make_other(volume, parent, name, kind, source)
        )
    _note_made(changes, placed.attr.node, parent, name, path + "/" if kind == stat.S_IFDIR else path)
    return placed


def make_together(volume: Volume, new: Sequence[tuple[Name, Source]], changes: Changes) -> list[Placed | OSError]:
    """Make small regular files (`is_small`), each under a vacant name. Their bytes are in memory at once. Only of a
    volume that `places_together`.

    Returns:
        for each its outcome, or the error of `make`: ECANCELED if it was not begun after the error of another.
    """
    made: list[Placed | OSError] = []
    files = [_new_file(name.parent, name.name, source) for name, source in new]
    for (name, source), attr in zip(new, volume.place_all(files), strict=True):
        if isinstance(attr, OSError):
            made.append(attr)
            continue
        made.append(Placed(attr, _lost(volume, source.state)))
        _note_made(changes, attr.node, name.parent, name.name, name.path)
    return made


def is_small(source: Source) -> bool:
    """Return True for a regular file that is made in one go, with its bytes in memory."""
    return stat.S_ISREG(source.state.mode) and source.state.size <= STAGED_BYTES


def _note_made(changes: Changes, node: int, parent: int, name: bytes, shown: str) -> None:
    if not (changes and changes[-1].kind == "created" and changes[-1].parent == parent):  # once for names in a row
        changes.append(Change(node=parent))
    changes.append(Change(node, parent, name, "created", shown))


def _make_file(volume: Volume, parent: int, name: bytes, source: Source) -> Placed:
    if not volume.features.random_writes or source.state.size == 0:
        return _write(volume, parent, name, source)
    beside = temporary(name)
    placed = source.placed if isinstance(source, _Staged) else _write_beside(volume, parent, beside, source)
    try:
        volume.rename(parent, beside, parent, name, RENAME_NOREPLACE)
    except OSError:
        _drop(volume, parent, beside)
        raise
    return placed


def _placed(volume: Volume, parent: int, name: bytes, source: Source) -> Placed | None:
    """Make a file in a volume that makes it as one change, and so needs no temporary name; None for others. In a volume
    that stores whole files it may be large."""
    if volume.features.shared or not stat.S_ISREG(source.state.mode):
        return None
    if not is_small(source) and volume.features.random_writes:
        return None
    attr = volume.place(_new_file(parent, name, source))
    return None if attr is None else Placed(attr, _lost(volume, source.state))


def _new_file(parent: int, name: bytes, source: Source) -> NewFile:
    return NewFile(parent, name, source.state, without_zeros(source.pieces()))


def _lost(volume: Volume, state: State) -> tuple[str, ...]:
    """Return what a volume does not take of a file that it has placed."""
    return ("extended attributes",) if state.xattrs and not volume.features.xattrs else ()


def _node_at(volume: Volume, parent: int, name: bytes) -> int | None:
    attr = unless((errno.ENOENT,), volume.lookup, parent, name)
    return None if attr is None else attr.node


def _write_beside(volume: Volume, parent: int, beside: bytes, source: Source) -> Placed:
    try:
        return _write(volume, parent, beside, source)
    except FileExistsError:  # a crash has left it
        volume.unlink(parent, beside)
        return _write(volume, parent, beside, source)


def _write(volume: Volume, parent: int, name: bytes, source: Source) -> Placed:
    """Make a regular file with its bytes and attributes."""
    state = source.state
    attr = volume.create(parent, name, 0o600, _WRITE_FLAGS, _owner(state))
    node = attr.node
    try:
        try:
            end = 0
            for offset, piece in without_zeros(source.pieces()):
                volume.write(node, offset, piece)
                end = offset + len(piece)
            if end != state.size:
                volume.setattr(node, AttrChanges(size=state.size))
            placed = set_attributes(volume, node, state)
            if not volume.features.random_writes:
                volume.flush(node)  # stores both at once
        finally:
            volume.release(node, _WRITE_FLAGS)
        return placed
    except BaseException:
        _drop(volume, parent, name)
        raise


def _owner(state: State) -> Caller:
    return Caller(state.uid, state.gid, os.getpid())


def without_zeros(pieces: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Leave out blocks of zeros (`HOLE_BYTES`), which become holes."""
    for offset, piece in pieces:
        start, at = 0, 0
        while at < len(piece):
            end = min(at + HOLE_BYTES - (offset + at) % HOLE_BYTES, len(piece))
            if not piece[at:end].strip(b"\0"):
                if start < at:
                    yield offset + start, piece[start:at]
                start = end
            at = end
        if start < len(piece):
            yield offset + start, piece[start:] if start else piece


def _drop(volume: Volume, parent: int, name: bytes) -> None:
    """Remove what could not be completed. The error that is being raised is the one to tell."""
    with contextlib.suppress(OSError):
        volume.unlink(parent, name)


def _make_other(volume: Volume, parent: int, name: bytes, kind: int, source: Source) -> Placed:
    state = source.state
    if kind == stat.S_IFDIR:
        node = volume.mkdir(parent, name, 0o700, _owner(state)).node
    elif kind == stat.S_IFLNK:
        node = volume.symlink(parent, name, state.target, _owner(state)).node
    else:
        node = volume.mknod(parent, name, kind | 0o600, state.rdev, _owner(state)).node
    try:
        return set_attributes(volume, node, state)
    except BaseException:
        with contextlib.suppress(OSError):
            volume.rmdir(parent, name) if kind == stat.S_IFDIR else volume.unlink(parent, name)
        raise


def link(volume: Volume, node: int, parent: int, name: bytes, changes: Changes, path: str) -> Placed:
    """Give a file another name, which is vacant. EPERM on volumes without hard links."""
    attr = volume.link(node, parent, name)
    changes += [Change(node=parent), Change(node=node), Change(node, parent, name, "created", path)]
    return Placed(attr)


def overwrite(volume: Volume, node: int, source: Source, changes: Changes, path: str) -> Placed:
    """Give a regular file the bytes and attributes of another state, in place: its links and open handles see it.

    Only pieces that differ are written. Holes between data get zeros. A reader that takes the lock sees the whole
    change; after an error or a crash the file may have a part of the bytes.
    """
    state = source.state
    changes.append(Change(node=node, kind="modified", path=path))
    with contextlib.ExitStack() as opening:
        try:
            handle = opening.enter_context(opened(volume, node, os.O_RDWR))
        except PermissionError:  # its owner may not write it: it gets its mode afterwards
            mode = stat.S_IMODE(volume.getattr(node).mode)
            volume.setattr(node, AttrChanges(mode=mode | stat.S_IRUSR | stat.S_IWUSR))
            handle = opening.enter_context(opened(volume, node, os.O_RDWR))
        if volume.features.random_writes:
            _overwrite(volume, handle, source)
        else:
            volume.setattr(handle, AttrChanges(size=0))
            for offset, piece in source.pieces():
                volume.write(handle, offset, piece)
            volume.setattr(handle, AttrChanges(size=state.size))
        placed = set_attributes(volume, node, state)
        if not volume.features.random_writes:
            volume.flush(handle)
    return placed


def _overwrite(volume: Volume, node: int, source: Source) -> None:
    state = source.state
    size = volume.getattr(node).size
    if size > state.size:
        volume.setattr(node, AttrChanges(size=state.size))
        size = state.size
    end = 0
    for offset, piece in source.pieces():
        _clear(volume, node, end, min(offset, size))
        if piece and volume.read(node, offset, len(piece)) != piece:
            volume.write(node, offset, piece)
            size = max(size, offset + len(piece))
        end = offset + len(piece)
    found = volume.next_data(node, end) if end < size else None
    if found is not None and found < size:
        volume.setattr(node, AttrChanges(size=end))  # the rest is a hole
        size = end
    if size < state.size:
        volume.setattr(node, AttrChanges(size=state.size))


def _clear(volume: Volume, node: int, start: int, end: int) -> None:
    """Make a range of an open file zeros, where it is not."""
    found = volume.next_data(node, start) if start < end else None
    while found is not None and found < end:
        piece = volume.read(node, found, min(PIECE_BYTES, end - found))
        if piece.strip(b"\0"):
            volume.write(node, found, bytes(len(piece)))
        found = volume.next_data(node, found + len(piece)) if piece else None


def set_attributes(volume: Volume, node: int, state: State, changes: Changes | None = None, path: str = "") -> Placed:
    """Give a node the owner, mode, times and extended attributes of a state. What it has already costs no call.

    In this order: a change of owner clears set-ID bits and capabilities, and extended attributes can be set while the
    file may be written. A file that stays another user's gets no set-ID bits.
    """
    if changes is not None:
        changes.append(Change(node=node, kind="attributes", path=path))
    lost: list[str] = []
    attr = volume.getattr(node)
    is_link = stat.S_ISLNK(state.mode)
    if (attr.uid, attr.gid) != (state.uid, state.gid):
        owned = unless(NOT_TAKEN, volume.setattr, node, AttrChanges(uid=state.uid, gid=state.gid))
        lost += ["owner"] if owned is None else []
        attr = owned or attr
    if not is_link and not _set_xattrs(volume, attr, state.xattrs):
        lost.append("extended attributes")
    mode = stat.S_IMODE(state.mode)
    if (attr.uid, attr.gid) != (state.uid, state.gid):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    wanted = AttrChanges(
        mode=None if is_link else mode, atime_ns=state.atime_ns, mtime_ns=state.mtime_ns
    )  # fmt: skip
    given = unless(NOT_TAKEN | VANISHED if is_link else NOT_TAKEN, volume.setattr, node, wanted)
    if given is None:
        lost += ["times"] if is_link else ["mode", "times"]
    return Placed(given or attr, tuple(lost))


def _set_xattrs(volume: Volume, attr: Attr, wanted: dict[bytes, bytes]) -> bool:
    """Return True if the node has these extended attributes now, and no others."""
    if not volume.features.xattrs:
        return not wanted
    there = volume.xattrs(attr.node)
    if there == wanted:
        return True
    if not attr.mode & stat.S_IWUSR:
        volume.setattr(attr.node, AttrChanges(mode=stat.S_IMODE(attr.mode) | stat.S_IWUSR))
    complete = True
    for name in there.keys() - wanted.keys():
        complete = _tried(volume.removexattr, attr.node, name) and complete
    for name, value in wanted.items():
        if there.get(name) != value:
            complete = _tried(volume.setxattr, attr.node, name, value) and complete
    return complete


def _tried(change: Callable[..., object], *args: object) -> bool:
    return unless(NOT_TAKEN, lambda: (change(*args),)) is not None


def remove(volume: Volume, parent: int, name: bytes, attr: Attr, changes: Changes, path: str) -> None:
    """Remove a name; a directory must be empty. ENOENT, ENOTEMPTY."""
    if attr.is_dir:
        volume.rmdir(parent, name)
    else:
        volume.unlink(parent, name)
    changes.append(Change(node=parent))
    changes.append(Change(attr.node, parent, name, "deleted", path + "/" if attr.is_dir else path))


class Name(NamedTuple):
    """A name in a volume."""

    parent: int
    name: bytes
    path: str
    """For watchers; a directory's without the slash at its end."""


def rename(volume: Volume, old: Name, new: Name, attr: Attr, changes: Changes, flags: int = 0) -> None:
    """Rename, as `Volume.rename`. What RENAME_EXCHANGE exchanges may be of different kinds."""
    volume.rename(old.parent, old.name, new.parent, new.name, flags)
    end = "/" if attr.is_dir else ""
    kind: EventKind = "exchanged" if flags & RENAME_EXCHANGE else "moved"
    changes += [Change(node=old.parent), Change(attr.node, old.parent, old.name), Change(node=new.parent)]
    changes.append(Change(attr.node, new.parent, new.name, kind, new.path + end, old.path + end))
