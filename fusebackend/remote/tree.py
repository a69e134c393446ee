"""The names of a `ForeignVolume`: entries with their node numbers, over a backend's listings, which grow old.

A listing is good for `ttl_s` seconds, or, where the backend has a `token`, as long as that is the same. It is brought
up to date with what is done through this volume, and holds what only this volume has: directories without a file,
files not stored yet.

Entries live until the kernel has held and forgotten them or their directory, and then while they are open or hold what
the backend does not: unsaved bytes, an empty directory. Modes and times are remembered beyond that, as far as
`MAX_KEPT` goes. Listings are bounded in number. Everything here runs under the volume's lock, except `hold` and
`forget`.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
import stat
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable

from fusebackend.base import errors, paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.base.stamps import now_ns
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.protocol import ROOT_NODE, Caller, FileInfo
from fusebackend.remote.entry import Entry, Info, Kept, Listing, info_of, name_of, require_text, time_ns

log = logging.getLogger(__name__)

MAX_LISTINGS = 64
"""Directories whose listing is kept; the least recently used one goes first."""

PAGE_TTLS = 10
"""A listing that is read page by page may grow this much older before it is read anew: a long one would never end."""

MAX_KEPT = 100_000
"""Files and directories nobody holds whose modes and times are remembered; the oldest go first. Some 300 bytes each."""

PATIENCE = 4
"""For so many times as long as it took a listing is believed whatever happens, at most for its time to live."""

SETTLE_S = 1.0
"""How long an entry stays after the kernel has forgotten it. A lookup's answer takes far less to the loop."""

FILE_MODE = stat.S_IFREG | 0o644
DIRECTORY_MODE = stat.S_IFDIR | 0o755

OWN = object()
"""The version of a file that this volume has stored itself: whatever the next listing calls it."""


class ForeignTree:
    """See the module's docstring.

    Args:
        face: the backend.
        exact_sizes: are the sizes of its listings bytes?
        ttl_s: for how many seconds a listing is believed.
        clock: seconds that only grow.
        token: tells whether anything has changed: two equal ones, and nothing has. None where that is not known.
    """

    def __init__(
        self,
        face: AgentFace,
        exact_sizes: bool,
        ttl_s: float,
        clock: Callable[[], float],
        token: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self._face = face
        self._exact_sizes = exact_sizes
        self.ttl_s = ttl_s
        self._clock = clock
        self._token = token
        self._numbers = itertools.count(ROOT_NODE)
        self._began_ns = now_ns()
        self._entries: dict[int, Entry] = {}
        self._listed: OrderedDict[int, Entry] = OrderedDict()
        self._let_go: deque[tuple[int, float]] = deque()  # nodes, and when the kernel forgot each
        self._kept: OrderedDict[AgentPath, Kept] = OrderedDict()
        self.root = self._new(None, b"", DIRECTORY_MODE)

    def __len__(self) -> int:
        return len(self._entries)

    # -- entries -----------------------------------------------------------------------------------------------

    def entry(self, node: int) -> Entry:
        entry = self._entries.get(node)
        if entry is None:
            raise oserror(errno.ESTALE)
        return entry

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def path(self, entry: Entry) -> AgentPath:
        """Where an entry is, or was."""
        names = []
        while entry.parent is not None:
            names.append(paths.to_text(entry.name))
            entry = entry.parent
        return AgentPath("/" + "/".join(reversed(names)))

    def is_gone(self, entry: Entry) -> bool:
        """Is it, or a directory above it, no more?"""
        above: Entry | None = entry
        while above is not None and not above.gone:
            above = above.parent
        return above is not None

    def _new(self, parent: Entry | None, name: bytes, mode: int) -> Entry:
        node = next(self._numbers)
        entry = self._entries[node] = Entry(node, mode, parent, name)
        entry.atime_ns = entry.mtime_ns = entry.ctime_ns = self._began_ns
        if parent is not None:
            parent.children[name] = entry
            kept = self._kept.pop(self.path(entry), None) if self._kept else None
            if kept is not None and stat.S_IFMT(kept.mode) == stat.S_IFMT(mode):
                entry.restore(kept)
        return entry

    def make(self, parent: Entry, name: bytes, mode: int, caller: Caller) -> Entry:
        """A new entry that only this volume has so far. EEXIST, ENOENT, EILSEQ."""
        require_text(name)
        if self.is_gone(parent):
            raise oserror(errno.ENOENT, name)
        if self.child(parent, name) is not None:
            raise oserror(errno.EEXIST, name)
        entry = self._new(parent, name, mode)
        entry.mode, entry.uid, entry.gid, entry.stamp = mode, caller.uid, caller.gid, None
        entry.resize(0)
        entry.local = entry.measured = True
        entry.touch()
        self.linked(entry)
        return entry

    def make_directories(self, path: AgentPath) -> None:
        """A directory, and those on the way to it, in this volume alone where the backend has none."""
        directory = self.root
        for name in paths.split(path):
            child = self.child(directory, name)
            if child is None:
                child = self.make(directory, name, DIRECTORY_MODE, Caller(self.root.uid, self.root.gid))
            directory = child

    def linked(self, entry: Entry) -> None:
        """Note in its directory's listing that an entry is there."""
        parent = entry.parent
        assert parent is not None
        parent.children[entry.name] = entry
        parent.touch()
        self.note(entry)

    def stored(self, entry: Entry) -> None:
        """The backend has this file now, and so every directory on the way."""
        self.note(entry)
        above: Entry | None = entry
        while above is not None:
            above.local = False
            above = above.parent

    def note(self, entry: Entry) -> None:
        """Bring the listing up to date with what was done to an entry here."""
        if entry.parent is not None and entry.parent.listing is not None and not entry.gone:
            entry.parent.listing.put(entry.name, info_of(entry))

    def unlinked(self, entry: Entry) -> None:
        """An entry has lost its name through this volume, and with it what was not stored."""
        entry.unlinked, entry.dirty = True, False
        self._emptied(entry.parent)
        self.detach(entry)

    def relink(self, entry: Entry, directory: Entry, name: bytes) -> None:
        """An entry has moved to another name."""
        old = entry.parent
        assert old is not None
        before = self.path(entry)
        del old.children[entry.name]
        if old.listing is not None:
            old.listing.remove(entry.name)
        self._emptied(old)
        entry.parent, entry.name = directory, name
        after = self.path(entry)
        for path in [path for path in self._kept if paths.is_below(path, before)] if entry.is_dir else ():
            self._kept[AgentPath(after + path[len(before) :])] = self._kept.pop(path)._replace(version=OWN)
        for moved in entry.tree():
            moved.stamp, moved.kept = OWN, True  # whatever the backend did, they are as old as before
        entry.ctime_ns = now_ns()
        self.linked(entry)
        self.expire()

    def _emptied(self, directory: Entry | None) -> None:
        """Something has left a directory: the backend may have had the directory because of it alone."""
        if directory is not None:
            directory.touch()
        while directory is not None and directory.parent is not None:
            directory.local = True
            directory = directory.parent

    def detach(self, entry: Entry) -> None:
        """Take an entry's name away; it lives on while somebody holds it."""
        assert entry.parent is not None
        entry.gone = True
        entry.nlink = 0
        if entry.parent.children.get(entry.name) is entry:
            del entry.parent.children[entry.name]
        if entry.parent.listing is not None:
            entry.parent.listing.remove(entry.name)
        self.reap(entry)

    def reap(self, entry: Entry) -> None:
        """Let go of an entry if nobody needs it, and of its directory if that was kept for it alone."""
        while entry.idle:
            assert entry.parent is not None
            if entry.kept and not self.is_gone(entry):
                self._kept[self.path(entry)] = entry.attributes()
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            self._entries.pop(entry.node, None)
            self._listed.pop(entry.node, None)
            entry.drop_buffer()
            if entry.parent.children.get(entry.name) is entry:
                del entry.parent.children[entry.name]
            entry = entry.parent
            if entry.listing is not None:
                return  # its listing is dropped first

    def hold(self, node: int) -> None:
        """Needs no lock: it sets one flag. A node that is not there any more will be ESTALE when it is used."""
        entry = self._entries.get(node)
        if entry is not None:
            entry.held, entry.forgotten = True, False

    def forget(self, nodes: Iterable[int]) -> None:
        """Needs no lock: the caller may be an event loop that must not wait for the backend. See `settle`."""
        for node in nodes:
            entry = self._entries.get(node)
            if entry is not None and entry.parent is not None:
                entry.held, entry.forgotten = False, True
                if entry.gone:  # no lookup finds it any more
                    self._let_go.appendleft((node, -math.inf))
                else:
                    self._let_go.append((node, self._clock()))

    def settle(self) -> None:
        """Do what `forget` has put off, but for what is held again by now. With a directory go the entries in it that
        were shown and never held.

        Race: a lookup has returned an entry, and before the mount's loop has its answer, a FORGET of older references
        arrives. The mount then knows the number as forgotten, and holds it again a moment later. An entry that went
        meanwhile would be ESTALE, twice in a row where its name is invalidated as well. So it stays for `SETTLE_S`.
        """
        while self._let_go and self._let_go[0][1] <= self._clock() - SETTLE_S:
            entry = self._entries.get(self._let_go.popleft()[0])
            if entry is None or entry.held:
                continue
            self._drop_listing(entry)
            for child in list(entry.children.values()):
                child.forgotten = not child.held
                self.reap(child)
            self.reap(entry)

    # -- listings ----------------------------------------------------------------------------------------------

    def child(self, parent: Entry, name: bytes) -> Entry | None:
        """What a name leads to. ENOTDIR."""
        if not parent.is_dir:
            raise oserror(errno.ENOTDIR)
        info = self.listing(parent).infos.get(name)
        return None if info is None else self._entry_for(parent, name, info)

    def page(self, directory: Entry, after: bytes, limit: int) -> list[Entry]:
        if not directory.is_dir:
            raise oserror(errno.ENOTDIR)
        listing = self.listing(directory, PAGE_TTLS if after else 1)
        return [self._entry_for(directory, name, listing.infos[name]) for name in listing.after(after, limit)]

    def listing(self, directory: Entry, ttls: float = 1) -> Listing:
        """What is in a directory, at most so many `ttl_s` old. ESTALE for one that is gone."""
        self.settle()
        listing = directory.listing
        if listing is None or not self._is_good(listing, ttls):
            listing = self._read_listing(directory)
        if directory.listing is listing:
            self._listed[directory.node] = directory
            self._listed.move_to_end(directory.node)
            while len(self._listed) > MAX_LISTINGS:
                self._drop_listing(next(iter(self._listed.values())))
        return listing

    def _is_good(self, listing: Listing, ttls: float) -> bool:
        age_s = self._clock() - listing.read_at
        token = self._token() if ttls == 1 else None
        if token is None:
            return age_s < self.ttl_s * ttls
        # A long one is not read anew for each of many changes.
        return token == listing.token or age_s < min(self.ttl_s, listing.took_s * PATIENCE)

    def backend_lists(self, entry: Entry) -> bool:
        """Has the backend this entry, by itself? Asks it."""
        assert entry.parent is not None
        info = self._ask(entry.parent).get(entry.name)
        return info is not None and info.is_dir == entry.is_dir

    def expire(self) -> None:
        """Believe no listing any more."""
        for directory in self._listed.values():
            if directory.listing is not None:
                directory.listing.expire()

    def _ask(self, directory: Entry) -> dict[bytes, Info]:
        """What the backend has in a directory; nothing where the directory is in this volume alone. ESTALE, EIO.

        An error is no proof that a directory is empty: whether it is there at all says a listing above it.
        """
        if directory.local and not self._is_there(directory.topmost_local()):
            return {}
        path = self.path(directory)
        result = self._face.ls(path)
        if result.error is None:
            read_at = self._clock()
            return {name_of(info): self._info(info, read_at) for info in result.entries or ()}
        if self._is_there(directory):
            raise self.failure(result.error, path)
        if directory.local:
            return {}
        self.detach(directory)
        raise oserror(errno.ESTALE)

    def _is_there(self, entry: Entry) -> bool:
        """Has the backend this directory? As the nearest directory above it says that can be listed. EIO."""
        error = None
        while entry.parent is not None:
            result = self._face.ls(self.path(entry.parent))
            if result.error is None:
                found = [info for info in result.entries or () if name_of(info) == entry.name]
                return any(bool(info.get("is_dir")) == entry.is_dir for info in found)
            error, entry = result.error, entry.parent
        if error is not None:
            raise self.failure(error, ROOT)
        return True

    def _read_listing(self, directory: Entry) -> Listing:
        if self.is_gone(directory):
            return Listing({}, self._clock())
        token, began = self._token(), self._clock()
        infos = self._ask(directory)
        now = self._clock()
        listing = directory.listing = Listing(infos, now, token, now - began)
        for name, child in list(directory.children.items()):
            info = infos.get(name)
            if info is not None and info.is_dir and child.is_dir:
                child.local = False
            elif child.local or child.dirty:
                listing.put(name, info_of(child))  # also over a stranger of that name: storing it will tell
            elif info is None or info.is_dir != child.is_dir:
                self.detach(child)
                if info is not None:
                    listing.put(name, info)
        return listing

    def _drop_listing(self, directory: Entry) -> None:
        directory.listing = None
        self._listed.pop(directory.node, None)

    def _info(self, raw: FileInfo, read_at: float) -> Info:
        modified_at = raw.get("modified_at") or ""
        # Without a time nothing says that a file is unchanged, so every listing brings a version of its own.
        version = (modified_at, raw.get("size")) if modified_at else (read_at, raw.get("size"))
        read_only = bool(raw.get("read_only"))
        return Info(bool(raw.get("is_dir")), raw.get("size"), time_ns(modified_at), version, read_only)

    def _entry_for(self, parent: Entry, name: bytes, info: Info) -> Entry:
        entry = parent.children.get(name)
        if entry is None:
            entry = self._new(parent, name, DIRECTORY_MODE if info.is_dir else FILE_MODE)
            if info.read_only:
                entry.mode &= ~0o222
        entry.read_only = info.read_only
        if entry.is_dir:
            if info.mtime_ns is not None and not entry.kept:
                entry.mtime_ns = entry.ctime_ns = info.mtime_ns
        elif entry.buffer is None and entry.stamp != info.version:
            self._new_version(entry, info)
        return entry

    def _new_version(self, entry: Entry, info: Info) -> None:
        """A listing calls a file by another version than the one we know."""
        ours = entry.stamp is OWN  # then it may be what we stored: our times stay
        entry.stamp = info.version
        if ours and (not self._exact_sizes or info.size == entry.size):
            entry.measured = self._exact_sizes
            return
        if info.mtime_ns is not None:
            entry.mtime_ns = entry.ctime_ns = info.mtime_ns
        entry.resize(info.size or 0)
        entry.measured = self._exact_sizes and info.size is not None

    def failure(self, error: str, path: AgentPath) -> OSError:
        """The `OSError` for an error of the backend. One without a code is EIO and logged: nobody sees its words."""
        number = errors.errno_of(error)
        if number == errno.EIO:
            log.warning("%s: %s: %s", self._face.name, path, error)
        return oserror(number)
