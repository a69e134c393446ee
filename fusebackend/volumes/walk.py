"""Paths over a volume: the node of a path of the agent face, and the regular files below a directory.

Reads only, through `lookup`, `readlink`, `getattr` and `readdir`. Symbolic links are followed inside the volume and
nowhere else: a target that is absolute or climbs above the volume's root is EXDEV, so no route leaks into another.
Walking a tree follows no link at all. No lock is held between two calls here; a caller that needs a path to keep its
node holds `volume.lock` around `resolve` and its own calls.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Literal, NamedTuple, TypeVar

from fusebackend.base import budget, paths
from fusebackend.base.errors import VANISHED, oserror, unless
from fusebackend.base.paths import AgentPath, PathError
from fusebackend.protocol import NAME_MAX_BYTES, ROOT_NODE, Attr, Volume

log = logging.getLogger(__name__)

T = TypeVar("T")

PATH_MAX_BYTES = 4096
"""Longest path of the agent face, as on Linux."""

ANY_BYTES = 1 << 62
"""No bound: for paths of what is there. Processes make longer ones, from working directories."""

LINKS_MAX = 40
"""Symbolic links followed in one path, as in Linux (fs/namei.c, MAXSYMLINKS)."""

PAGE_ENTRIES = 1000
"""Entries asked for at a time: the lock is not held from one page to the next."""

LISTED_BYTES = 400
"""Memory for an entry of a directory while a walk is in it."""

CHECKED_LEVELS = 64
"""So many directories up it is seen that they are where they were, once the lock was free."""

KNOWN_DIRECTORIES = 4096
"""So many that were looked up for some files are known for the next ones: a path of 1,200 names is looked up once."""

NOWHERE = VANISHED | {errno.ELOOP, errno.EXDEV}
"""Errors of a path that leads to no file of its volume."""

UNREADABLE = frozenset({errno.EACCES, errno.EPERM})
"""Errors that a walk passes over, but reports."""


class Place(NamedTuple):
    """Where a path leads."""

    trail: tuple[int, ...]
    """The directories from the root to the one that holds the name. Empty for the root itself."""
    name: bytes
    """The name in the last of them; empty for the root, and where a link ended in `..`."""
    attr: Attr | None
    """The attributes of the node, None for an absent name."""
    missing: tuple[bytes, ...] = ()
    """Directories that would have to be made below the trail before `name`."""
    way: tuple[bytes, ...] = ()
    """The names from where the walk began, `name` included, with every link on it resolved."""

    @property
    def parent(self) -> int:
        return self.trail[-1]

    @property
    def path(self) -> AgentPath:
        """Where this is, for a walk from the root."""
        return AgentPath(paths.to_text(b"/" + b"/".join(self.way)))

    @property
    def missing_paths(self) -> list[AgentPath]:
        """Where the missing directories would be."""
        ways = itertools.accumulate(map(paths.to_text, self.way[:-1]), "{}/{}".format, initial="")
        return [AgentPath(way) for way in itertools.islice(ways, len(self.way) - len(self.missing), len(self.way))]

    @property
    def found(self) -> Attr:
        """What is there; ENOENT when it isn't."""
        if self.attr is None:
            raise oserror(errno.ENOENT)
        return self.attr


def names_of(path: str, most_bytes: int = PATH_MAX_BYTES) -> list[bytes]:
    """The names along a normalised path.

    Raises:
        PathError: it holds characters that are no bytes of a name.
        OSError: ENAMETOOLONG for a name over 255 bytes or a longer path.
    """
    try:
        names = paths.split(path)
    except UnicodeEncodeError:  # a surrogate that surrogateescape did not make
        raise PathError(f"Path {path!r} is not valid text") from None
    if max(map(len, names), default=0) > NAME_MAX_BYTES or sum(map(len, names)) + len(names) > most_bytes:
        raise oserror(errno.ENAMETOOLONG)
    return names


Needs = Literal["attributes", "type", "name"]
"""What the caller of a walk needs to know of the last name. `type`: attributes of a directory may be brief. `name`:
those of a file as well (`Attr.is_brief`). Such a caller opens it: ELOOP for a link, which the next walk knows."""


def resolve(
    volume: Volume, path: str, *, follow: bool = True, needs: Needs = "attributes", most_bytes: int = PATH_MAX_BYTES
) -> Place:
    """Walk a normalised path from the root. A link in its last segment is followed only if `follow` says so.

    Raises:
        PathError, OSError: as `names_of`; ENOTDIR where a file is used as a directory, ELOOP, and EXDEV for a link
            that leaves the volume. An absent name is no error, see `Place.attr`.
    """
    names = names_of(path, most_bytes)
    with volume.walking(names):
        return resolve_from(volume, (ROOT_NODE,), names, follow=follow, needs=needs)


def resolve_from(
    volume: Volume, trail: Sequence[int], names: Sequence[bytes], *, follow: bool = True, needs: Needs = "attributes"
) -> Place:
    """`resolve`, from the directory at the end of `trail`, which starts with the root."""
    directories = list(trail)
    way: list[bytes] = []
    pending = deque(names)
    links = 0
    while pending:
        name = pending.popleft()
        if name in (b"", b"."):
            continue
        if name == b"..":  # only in the target of a link; physical, as the kernel does it
            directories.pop()
            if not directories:
                raise _leaves_volume()
            del way[-1:]
            continue
        try:
            attr = volume.lookup_brief(directories[-1], name)
            is_enough = attr.is_dir if pending else needs == "name" or (needs == "type" and attr.is_dir)
            if attr.is_brief and not is_enough:
                attr = volume.lookup(directories[-1], name)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return _missing(directories, way, [name, *pending])
        if stat.S_ISLNK(attr.mode) and (pending or follow):
            links += 1
            if links > LINKS_MAX:
                raise oserror(errno.ELOOP)
            target = volume.readlink(attr.node)
            if target.startswith(b"/"):
                raise _leaves_volume()
            pending.extendleft(reversed(target.split(b"/")))
        elif attr.is_dir:
            directories.append(attr.node)
            way.append(name)
            if not pending:
                return Place(tuple(directories[:-1]), name, attr, way=tuple(way))
        elif not {b"", b"."}.issuperset(pending):
            raise oserror(errno.ENOTDIR)
        else:
            return Place(tuple(directories), name, attr, way=(*way, name))
    return Place(tuple(directories[:-1]), b"", volume.getattr(directories[-1]), way=tuple(way))


def _missing(directories: Sequence[int], way: Sequence[bytes], names: Sequence[bytes]) -> Place:
    rest = [name for name in names if name not in (b"", b".")]
    if b".." in rest or any(len(name) > NAME_MAX_BYTES for name in rest):
        raise oserror(errno.ENOENT)  # from the target of a link: there is nothing to climb out of, nothing to make
    return Place(tuple(directories), rest[-1], None, tuple(rest[:-1]), (*way, *rest))


def _leaves_volume() -> OSError:
    return OSError(errno.EXDEV, "Symbolic link leads out of its volume")


def entries(volume: Volume, directory: int, is_brief: bool = False) -> Iterator[tuple[bytes, Attr]]:
    """All entries of a directory, page by page, in the order of their names as bytes. With brief attributes, where that
    is enough (`Attr.is_brief`)."""
    return paged(volume.readdir_brief if is_brief else volume.readdir, directory)


def paged(
    read: Callable[[int, bytes, int], Sequence[tuple[bytes, T]]],
    directory: int,
    limit: int | None = None,
    after: bytes = b"",
) -> Iterator[tuple[bytes, T]]:
    """Yield what is under all names of a directory, or those after one, in their order, by calls for a page after a
    name; of `limit` names if it is given."""
    while page := read(directory, after, limit or PAGE_ENTRIES):
        yield from page
        after = page[-1][0]


def find(volume: Volume, path: str) -> Attr | None:
    """Return what is at a path, None if nothing is. A link at its end is not followed."""
    found = unless(NOWHERE, partial(resolve, volume, path, follow=False, most_bytes=ANY_BYTES))
    return None if found is None else found.attr


def known(volume: Volume, node: int, path: str) -> Attr:
    """Return the attributes of what a walk has found at a path: of its node, or of its present node, where the
    volume has forgotten that. A directory on disk keeps 2,000 files that nobody holds."""
    attr = unless((errno.ESTALE,), volume.getattr, node)
    return resolve(volume, path, follow=False, most_bytes=ANY_BYTES).found if attr is None else attr


class Directories:
    """The directories of a volume by their paths, `/a/b` and empty for the root, as changes find them one after the
    other. While the lock of the volume is held they stay. Once it was free, another may have their names: those
    `CHECKED_LEVELS` up are looked up again, as where a tree is deleted. A path may be thousands deep."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._known = {b"": ROOT_NODE}
        self._before: dict[bytes, int] = {}  # the lock was free since

    def look_again(self) -> None:
        """The lock is free, or was."""
        if len(self._before) > KNOWN_DIRECTORIES:
            self._before = {}
        self._before |= self._known
        self._known = {b"": ROOT_NODE}

    def forget(self, path: bytes | None = None) -> None:
        """A directory is going to be moved, or the empty one at this path removed."""
        for known in (self._known, self._before):
            if path is None:
                known.clear()
            known.pop(path or b"", None)
        self._known[b""] = ROOT_NODE

    def find(self, path: bytes) -> int:
        """Return a directory. ENOENT, ENOTDIR."""
        above = path.rsplit(b"/", CHECKED_LEVELS)[0]
        if above in self._before:
            self._known.setdefault(above, self._before[above])
        try:
            return self._walked(path)
        except OSError:  # one was removed, or the volume does not know it any more
            if len(self._known) == 1:
                raise
            self.forget()
            return self._walked(path)

    def _walked(self, path: bytes) -> int:
        above, names = path, list[bytes]()
        while above not in self._known:
            above, _, name = above.rpartition(b"/")
            names.append(name)
        node = self._known[above]
        for name in reversed(names):
            above += b"/" + name
            attr = self._volume.lookup_brief(node, name)
            if not attr.is_dir:
                raise oserror(errno.ENOTDIR)
            node = self._known[above] = attr.node
        return node

    def place(self, path: bytes) -> tuple[int, bytes]:
        """Return the directory of a path, and its name there. ENOENT, ENOTDIR."""
        above, _, name = path.rpartition(b"/")
        return self.find(above), name

    def at(self, path: bytes) -> tuple[int, bytes, Attr | None]:
        """Return the directory of a path, its name there, and the attributes of the file, if there is one; no link is
        followed. ENOENT, ENOTDIR: the directory is not there."""
        parent, name = self.place(path)
        if not name:
            return ROOT_NODE, b"", self._volume.getattr(ROOT_NODE)
        return parent, name, unless((errno.ENOENT,), self._volume.lookup, parent, name)


def below(
    volume: Volume, directory: int, at: bytes = b"", passing: tuple[type[OSError], ...] = ()
) -> Iterator[tuple[bytes, Attr]]:
    """Yield what is below a directory, at any depth: a directory before what is in it.

    Each directory is listed whole before the first of its entries is given, so the caller may change it.

    Args:
        at: the path of the directory; those of the result begin with it.
        passing: errors of a directory's listing that are passed over.
    """
    left = [(at, directory)]
    while left:
        above, node = left.pop()
        listed: list[tuple[bytes, Attr]] = []
        with contextlib.suppress(*passing):
            listed += entries(volume, node)
        for name, attr in listed:
            path = above + b"/" + name
            yield path, attr
            if attr.is_dir:
                left.append((path, attr.node))


def prefix_of(
    directory: int, place_of: Callable[[int], tuple[int, bytes] | None], prefixes: dict[int, str | None]
) -> str | None:
    """Return the path down to a directory, with a slash at its end; None if it is elsewhere.

    Args:
        place_of: returns the directory that a directory is in, and its name there.
        prefixes: the known paths by their nodes. Gets more.
    """
    trail: list[tuple[int, str]] = []
    node = directory
    while node not in prefixes:
        prefixes[node] = None  # for now: on damaged volumes directories may be in a circle
        place = place_of(node)
        if place is None:
            break
        trail.append((node, paths.to_text(place[1])))
        node = place[0]
    for inner, name in reversed(trail):
        above = prefixes[node]
        prefixes[inner] = None if above is None else f"{above}{name}/"
        node = inner
    return prefixes[directory]


@contextlib.contextmanager
def vanishing(*passed: int) -> Iterator[None]:
    """Pass over a file that another caller has removed first, and errors with these numbers."""
    try:
        yield
    except OSError as error:
        if error.errno not in VANISHED and error.errno not in passed:
            raise


class FileWalk:
    """The regular files below a directory, in the order of their paths as text.

    The budget (`budget.current`) is asked for each directory and file; `Spent` ends the walk.

    Attributes:
        unreadable: something could not be looked into, so the walk is not complete.
    """

    def __init__(
        self,
        volume: Volume,
        directory: int,
        *,
        below: Sequence[str] = (),
        depth: int | None = None,
        is_brief: bool = True,
    ) -> None:
        """Args:
        below: go down these plain names first and see nothing else.
        depth: how many segments a file's path has at most, `below` included.
        is_brief: see `entries`.
        """
        self._is_brief = is_brief
        self._volume = volume
        self._directory = directory
        self._below = tuple(below)
        self._depth = depth
        self._budget = budget.current()
        self.unreadable = False

    def __iter__(self) -> Iterator[tuple[str, Attr]]:
        """Paths relative to the directory, with attributes. Files that vanish meanwhile are passed over."""
        start = self._start()
        if start is None:
            return
        levels = [self._level(*start)]
        way = {start[1]: None}  # the nodes of these, in their order
        while levels:
            prefix, listing, held = levels[-1]
            for text, attr in listing:
                self._budget.require()
                if not text.endswith("/"):
                    yield prefix + text, attr
                elif self._depth is None or len(levels) + len(self._below) < self._depth:
                    if attr.node in way:
                        log.error("%r is a directory that is below itself; it is not searched", prefix + text)
                        self.unreadable = True
                        continue
                    levels.append(self._level(prefix + text, attr.node))
                    way[attr.node] = None
                    break
            else:
                levels.pop()
                way.popitem()
                self._budget.hold(-held)

    def _start(self) -> tuple[str, int] | None:
        node, prefix = self._directory, ""
        for segment in self._below:
            try:
                name = paths.to_name(segment)
                attr = self._volume.lookup_brief(node, name) if len(name) <= NAME_MAX_BYTES else None
            except (OSError, UnicodeEncodeError) as error:
                self._pass_over(error)
                return None
            if attr is None or not attr.is_dir:
                return None
            node, prefix = attr.node, f"{prefix}{segment}/"
        return prefix, node

    def _level(self, prefix: str, directory: int) -> tuple[str, Iterator[tuple[str, Attr]], int]:
        """A directory on the way down: its path, what is still to come of it, and what that takes in memory."""
        listing = self._listing(directory)
        return prefix, iter(listing), len(listing) * LISTED_BYTES

    def _entries(self, directory: int) -> Iterator[tuple[bytes, Attr]]:
        """All entries of a directory, in the order of names. A subclass may leave some out."""
        return entries(self._volume, directory, self._is_brief)

    def _listing(self, directory: int) -> list[tuple[str, Attr]]:
        """Regular files and directories; `/` ends the text of a directory, which makes the order that of paths."""
        listing: list[tuple[str, Attr]] = []
        directories: set[int] = set()
        try:
            found = self._budget.kept(self._entries(directory), _size_of)
            for name, attr in self._budget.metered(found):
                if stat.S_ISREG(attr.mode):
                    listing.append((paths.to_text(name), attr))
                elif attr.is_dir and attr.node not in directories:  # two names of one are damage: it is seen once
                    directories.add(attr.node)
                    listing.append((paths.to_text(name) + "/", attr))
        except OSError as error:
            self._pass_over(error)
        listing.sort(key=itemgetter(0))
        return listing

    def _pass_over(self, error: OSError | UnicodeEncodeError) -> None:
        number = error.errno if isinstance(error, OSError) else errno.ENOENT
        if number in UNREADABLE:
            self.unreadable = True
        elif number not in VANISHED:
            raise error


def _size_of(entry: tuple[bytes, Attr]) -> int:
    return LISTED_BYTES
