"""`Remote`: the requests of a volume of remote files to the place where they are, a bucket or any agent backend.

A key is the path of a file without a slash at its start (`dir/file`); that of a directory ends with one, and the root's
is empty. A remote raises `OSError` with the errno that processes are to see, and nothing else that is not a bug. All
methods may be called from several threads where `Abilities.concurrent` says so, else with the volume's lock held.
"""

from __future__ import annotations

import abc
import errno
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from fusebackend.base.errors import oserror
from fusebackend.base.paths import to_text

Etag: TypeAlias = str | bytes
"""Names the bytes of a file: equal ones, equal bytes. A service's ETag, or a digest."""


@dataclass(frozen=True)
class Abilities:
    """The abilities of a remote, read once, when the volume is made."""

    ranges: bool = False
    """`reader` fetches parts of a file. False: `head` brings the whole, and each open file has a buffer."""
    exact_sizes: bool = False
    """Sizes in listings count bytes. False: `heads` is asked for the size of each file that is shown."""
    keeps_attributes: bool = False
    """Mode, owner and times are stored with a file, and a link is a file with a mode: `head` tells, listings do not.
    False: the volume keeps them in memory."""
    keeps_directories: bool = False
    """There are empty directories. False: the volume keeps them in memory."""
    flat_keys: bool = False
    """A directory is the beginning of keys: one with something in it proves those on the way to it."""
    concurrent: bool = False
    """Calls may run at the same time; the volume then locks single files instead of everything."""
    blocking: bool = True
    """Calls may wait for a network."""
    durable: bool = False
    """What was stored outlives the process."""
    change_feed: bool = False
    """`follow` reports every change of every writer."""
    read_only: bool = False
    can_delete: bool = True
    conditional: bool = True
    """A put compares and stores in one step, so that an append can be repeated on what others have put."""
    ttl_s: float | None = None
    """For how many seconds a listing is valid; None: as the mount says."""


class Info(NamedTuple):
    """One name in a listing."""

    segment: str
    """The last part of its key."""
    is_dir: bool
    size: int | None = None
    """In bytes if `Abilities.exact_sizes`."""
    mtime_ns: int | None = None
    version: Hashable = None
    """Another one after each change of the file; it may be another one without a change."""
    etag: Etag | None = None
    """None where listings name none."""
    read_only: bool = False


class Stamp(NamedTuple):
    """The attributes that are stored with a file or directory (`Abilities.keeps_attributes`)."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    extra: Mapping[str, str] = {}
    """Attributes of other tools, which are carried along."""


class Head(NamedTuple):
    """A file, or the sign of a directory, as the remote has it now."""

    size: int
    etag: Etag | None
    version: Hashable = None
    """The version that listings name; None where it is not known."""
    modified_ns: int | None = None
    stamp: Stamp | None = None
    content: bytes | memoryview | None = None
    """The whole, where it came with the answer."""


class Contents(NamedTuple):
    """The names in a directory, and the sign that keeps its attributes, if there is one."""

    infos: dict[bytes, Info]
    marker: Head | None = None
    large: bool = False
    """It took more than one request: a single name is better asked for by `find`."""


class Bytes(Protocol):
    """Bytes to store: a `remote.buffer.Buffer`."""

    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end."""

    def digest(self) -> bytes:
        """As `protocol.versions.digest_of`."""

    def pieces(self) -> Iterable[bytes]:
        """All the bytes, in order."""

    def frozen(self) -> AbstractContextManager[memoryview]:
        """All the bytes; writers wait meanwhile."""


def begins_with(data: Bytes, pieces: Iterable[bytes]) -> bool:
    """Return True if the bytes to store begin with these pieces, one after the other."""
    offset = 0
    for piece in pieces:
        if data.read(offset, len(piece)) != piece:
            return False
        offset += len(piece)
    return True


class Reader(Protocol):
    """Reads parts of one version of a file."""

    def read(self, offset: int, size: int) -> bytes:
        """ESTALE when that version is gone."""

    def close(self) -> None:
        """Nothing is read any more."""


class Remote(abc.ABC):
    """See the module's docstring. What a remote does not have, or has no use for, is left to this class."""

    name: str
    """For the log."""
    abilities: Abilities
    at_once: frozenset[str] = frozenset()
    """See `Volume.at_once`."""
    byte_cache: Any = None
    """See `Volume.byte_cache`."""
    hopeless: frozenset[int] = frozenset()
    """The errno of a put that will never succeed: what was written is given up, instead of tried again."""

    @property
    def unfinished(self) -> bool:
        """True if there is a rename to `finish`."""
        return False

    @property
    def write_once(self) -> bool:
        """True once it has refused to replace a file."""
        return False

    # -- names -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def contents(self, directory: str) -> Contents:
        """List a directory. ENOENT where it is not there and the remote can tell."""

    def find(self, directory: str, segment: str) -> tuple[Info, Head | None] | None:
        """One name of a large directory, with the head of a file. Only where `Contents.large` says so."""
        raise NotImplementedError("no listing is large")

    @abc.abstractmethod
    def has(self, key: str) -> bool:
        """True if there is this file, or this directory (by itself, or because of a file below it)."""

    def holds_only(self, directory: str) -> bool:
        """True if a directory is empty but for its own sign."""
        try:
            return not self.contents(directory).infos
        except FileNotFoundError:
            return True

    def admit(self, name: bytes, directory: str, *, is_dir: bool) -> str:
        """The segment for a new name in a directory. EILSEQ, ENAMETOOLONG, or another refusal."""
        try:
            return name.decode("utf-8")
        except UnicodeDecodeError:  # services differ in what they make of it
            raise oserror(errno.EILSEQ, name) from None

    def segment(self, name: bytes) -> str | None:
        """The segment of a name; None if it takes a listing to know."""
        return to_text(name)

    def make_directory(self, directory: str, stamp: Stamp, *, replace: bool) -> Etag | None:
        """Store the sign of a directory; its ETag. EEXIST unless `replace`. Only with `Abilities.keeps_directories`."""
        raise NotImplementedError("there are no directories without a file")

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Delete a file or an empty directory, if it is there."""

    @abc.abstractmethod
    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        """Move a file, also over another one, or a directory with all below it.

        Args:
            etag: of a file.
            replaced: the version, as far as it is known, of the file at `new`, which goes; None where there is none.
            copied: called when everything is at `new`, before anything at `old` is deleted.

        Returns:
            Keys that empty directories below `old` would have now: they could not be moved.
        """

    # -- files -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        """A file as it is now, None when it is not there.

        Args:
            known: the version known last.
            fetch_bytes: its size, where its content is wanted next; a small one may come with the same request.
        """

    def heads(self, wanted: Iterable[tuple[str, int]]) -> Sequence[Head | OSError | None]:
        """`head` of many files (key and size in the listing) and directories: their attributes and true sizes."""
        return [self.head_or_error(key) for key, _ in wanted]

    def head_or_error(self, key: str) -> Head | OSError | None:
        try:
            return self.head(key)
        except OSError as error:
            return error

    def reader(self, key: str, etag: Etag | None, size: int) -> Reader:
        """Only with `Abilities.ranges`."""
        raise NotImplementedError("only whole files are given")

    def load(self, key: str, etag: Etag | None) -> Iterable[bytes]:
        """The whole of one version, in pieces. ENOENT; ESTALE when it is another by now. Without `Abilities.ranges` it
        is what `head` brings."""
        head = self.head(key)
        if head is None or head.content is None:
            raise oserror(errno.ENOENT, key)
        if etag is not None and head.etag != etag:
            raise oserror(errno.ESTALE, key)
        return (bytes(head.content),)

    @abc.abstractmethod
    def put(self, key: str, data: Bytes, stamp: Stamp, *, over: Etag | None, create: bool) -> Etag | None:
        """Store a file in one step; its ETag.

        Args:
            over: the version that is there; None: whichever is.
            create: nothing must be there.

        Raises:
            OSError: ESTALE when another version is there. After any other errno it may have been stored or not.
        """

    def put_all(self, files: Sequence[tuple[str, Bytes, Stamp]]) -> Sequence[Etag | OSError | None] | None:
        """Store new files, as `put` with `create`, in one step.

        Returns:
            for each its ETag, or its error: ECANCELED if it was not begun after the error of another. None where
            nothing was stored, for there is no such step: then each file is put.
        """
        return None

    def same(self, key: str, data: Bytes, stamp: Stamp) -> Etag | None:
        """The ETag of the stored file if it equals this one: then a put has arrived, and its answer was lost."""
        head = self.head(key)
        if head is None or head.size != data.size:
            return None
        pieces = self.load(key, head.etag) if head.content is None else (bytes(head.content),)
        return head.etag if begins_with(data, pieces) else None

    def restamp(self, key: str, etag: Etag | None, size: int, stamp: Stamp) -> Etag | None:
        """Store other attributes of a file; its ETag. ESTALE when it is not that version. Only with
        `Abilities.keeps_attributes`."""
        raise NotImplementedError("no attributes are stored")

    # -- changes -----------------------------------------------------------------------------------------------

    def token(self) -> Hashable:
        """Two equal ones, and nothing has changed between them; None where that is not known."""
        return None

    def follow(self, changed: Callable[..., None]) -> Callable[[], None] | None:
        """Call `changed(*paths, elsewhere=…)` after each change that is not made through this object, without paths if
        anything may have changed; `elsewhere`: not by an agent of this process. Returns what ends that, or None: only
        with `Abilities.change_feed` is every change reported."""
        return None

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        return None

    def finish(self) -> None:
        """Carry on the renames that have failed half-way. Nothing else is stored meanwhile."""

    def expire(self) -> None:
        """Forget what was downloaded."""

    def close(self) -> None:
        """Give back what was opened here."""
