"""`Tree`: the names of a volume of remote files and their nodes, over listings, which are cached for a time.

A listing is valid for `ttl_s` seconds, or, where the remote has a token, as long as that is the same. Changes through
this volume are put into it; one made while a listing was on its way is newer than the listing. A listing also holds
files that are not stored yet and, where the remote keeps none, empty directories.
In a directory that takes more than one request to list, a single name is asked for by itself.

Entries stay while the kernel holds them, while they are open, and while they hold what the remote does not. Of all
others the latest `KEPT_ENTRIES` stay, with their numbers, modes and times. The lock is never held over a request.
"""

from __future__ import annotations

import errno
import itertools
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fusebackend.base.errors import oserror, unless
from fusebackend.base.recent import RecentBytes
from fusebackend.base.stamps import now_ns
from fusebackend.base.waiting import Lock, will_wait
from fusebackend.protocol import Caller
from fusebackend.protocol.remote import Contents, Head, Info, Remote
from fusebackend.remote.entry import DIRECTORY_MODE, NEVER, OWN, Entry, Listing

PAGE_TTLS = 10
"""A listing that is read page by page may grow this much older before it is read anew: a long one would never end."""

KEPT_ENTRIES = 1 << 16
"""So many entries stay when the kernel forgets them: about 1 KiB each, or a request each when they are seen again.

Their numbers matter too: git reads every file anew whose inode has another number than in its index.
"""

MAX_CHANGES = 10_000
"""Changes of names in a directory that a listing on its way may not show yet. A large directory is never listed whole,
and nothing else would end them."""

MAX_LISTED_NAMES = 1 << 17
"""So many names are cached in listings, about 200 bytes each; the listing that was used longest ago goes first."""

MAX_AHEAD = 128
"""For at most so many names attributes are asked for before anybody wants them."""

PATIENCE = 4
"""For so many times as long as it took a listing is valid whatever the token says, at most for its time to live."""

SETTLE_S = 1.0
"""How long an entry stays after it was shown, or the kernel has forgotten it.

Race: a lookup has returned an entry, and before the mount's loop has its answer, a FORGET of older references arrives.
The mount then knows the number as forgotten, and holds it again a moment later. An entry that went meanwhile would be
ESTALE, twice in a row where its name is invalidated as well. A lookup's answer takes far less to the loop.
"""


class Tree:
    """See the module's docstring.

    Args:
        remote: where the files are.
        ttl_s: for how many seconds a listing is valid.
        clock: seconds that only grow; `now` afterwards.
        first_node: the number of the root. Others have those that follow.
    """

    def __init__(self, remote: Remote, ttl_s: float, clock: Callable[[], float], first_node: int) -> None:
        self.lock = threading.RLock()
        self._remote = remote
        self._abilities = remote.abilities
        self.ttl_s = ttl_s
        self.now = clock
        self._numbers = itertools.count(first_node)
        self._count = 0  # of the changes made here
        self._expired_at = NEVER
        self._began_ns = now_ns()
        self._entries: dict[int, Entry] = {}
        self._unheld: deque[Entry] = deque()  # entries that may go, the oldest first
        self._listed: RecentBytes[Entry, Listing] = RecentBytes(MAX_LISTED_NAMES, Listing.clear)  # by their names
        self._listing_ahead: dict[bytes, AbstractContextManager[Any]] = {}  # paths that a thread lists for a walk
        self.root = self._new(None, b"", Info("", is_dir=True))

    # -- entries -----------------------------------------------------------------------------------------------

    def entry(self, node: int) -> Entry:
        """The entry of a node. ESTALE where there is none."""
        entry = self._entries.get(node)
        if entry is None:
            raise oserror(errno.ESTALE)
        return entry

    def entries(self) -> list[Entry]:
        with self.lock:
            return list(self._entries.values())

    def _new(self, parent: Entry | None, name: bytes, info: Info) -> Entry:
        entry = Entry(next(self._numbers), parent, name, info.segment, self._abilities, is_dir=info.is_dir)
        entry.atime_ns = entry.mtime_ns = entry.ctime_ns = self._began_ns
        if entry.is_dir:
            entry.stamped = not self._abilities.keeps_attributes
        if info.read_only:
            entry.mode &= ~0o222
        self._entries[entry.node] = entry
        if parent is not None:
            parent.children[name] = entry
            self._queue(entry)
        return entry

    def make(self, parent: Entry, name: bytes, mode: int, caller: Caller) -> Entry:
        """A new entry that only this volume has so far; it has no name yet. EEXIST, ENOENT, and as `Remote.admit`."""
        if self.child(parent, name) is not None:
            raise oserror(errno.EEXIST, name)
        if parent.is_gone:
            raise oserror(errno.ENOENT, name)
        is_dir = stat.S_ISDIR(mode)
        segment = self._remote.admit(name, parent.key, is_dir=is_dir)
        entry = Entry(next(self._numbers), parent, name, segment, self._abilities, is_dir=is_dir)
        entry.mode, entry.uid, entry.gid = mode, caller.uid, caller.gid
        if parent.mode & stat.S_ISGID:  # it hands on its group (POSIX, open)
            entry.gid = parent.gid
            entry.mode |= stat.S_ISGID if is_dir else 0
        entry.atime_ns = entry.mtime_ns = entry.ctime_ns = now_ns()
        entry.stamped = entry.local = entry.kept = True
        return entry

    def link(self, entry: Entry) -> Entry:
        """Give a new entry its name; the entry that has it.

        A stored file may have been listed by now, and have an entry, which is then returned. EEXIST for a file that is
        not stored; ENOENT when its directory is gone.
        """
        with self.lock:
            parent = entry.parent
            assert parent is not None
            if parent.is_gone:
                raise oserror(errno.ENOENT, entry.name)
            there = parent.children.get(entry.name)
            if there is not None and (entry.local or there.is_dir != entry.is_dir):
                raise oserror(errno.EEXIST, entry.name)
            if there is None:
                there = self._entries[entry.node] = parent.children[entry.name] = entry
                self._queue(entry)
            parent.listing.ghosts.discard(entry.segment)
            self.changed(there)
            parent.touch()
            return there

    def make_directories(self, key: str) -> None:
        """A directory, and those on the way to it, in this volume alone where the remote has none."""
        directory, caller = self.root, Caller(self.root.uid, self.root.gid)
        for segment in key.rstrip("/").split("/"):
            name = segment.encode("utf-8", "surrogateescape")
            child = self.child(directory, name)
            directory = child if child is not None else self.link(self.make(directory, name, DIRECTORY_MODE, caller))

    def distrust(self, directory: Entry) -> None:
        """There is something in a directory that its listing does not show."""
        with self.lock:
            directory.listing.listed_at = NEVER

    def stored(self, entry: Entry) -> None:
        """The remote has this file now, and so every directory on the way."""
        with self.lock:
            entry.local = entry.tried = False
            above = entry.parent
            while above is not None and above.local:
                above.local = False
                above = above.parent
            self.changed(entry)

    def relink(self, entry: Entry, directory: Entry, name: bytes, segment: str) -> None:
        """An entry has moved to another name."""
        with self.lock:
            old = entry.parent
            assert old is not None
            self._left(entry)
            entry.parent, entry.name, entry.segment = directory, name, segment
            if entry.gone and not entry.unlinked:  # a listing has shown that its old name is gone
                entry.gone, entry.nlink = False, 1
                self._entries[entry.node] = entry
                self._queue(entry)
            directory.children[name] = entry
            directory.listing.ghosts.discard(segment)
            for moved in entry.tree():  # stored anew, and no other version for that
                moved.seen, moved.kept, moved.checked_at = OWN, True, NEVER
                moved.listing.listed_at = NEVER
            entry.ctime_ns = now_ns()
            self.changed(entry)
            directory.touch()

    def unlinked(self, entry: Entry) -> None:
        """An entry has lost its name through this volume, and with it what was not stored."""
        with self.lock:
            entry.dirty = False
            if not entry.gone:
                self._left(entry)
            entry.unlinked = True
            self.detach(entry)

    def _left(self, entry: Entry) -> None:
        """An entry leaves its directory, which the remote may have had because of it alone."""
        parent = entry.parent
        assert parent is not None
        if entry.is_dir and self._abilities.keeps_directories:
            parent.listing.ghosts.add(entry.segment)
        if parent.children.get(entry.name) is entry:
            del parent.children[entry.name]
        self.changed(entry, is_there=False)
        parent.touch()
        above = None if self._abilities.keeps_directories else parent
        while above is not None and above.parent is not None:
            above.local = True
            above = above.parent

    def changed(self, entry: Entry, *, is_there: bool = True) -> None:
        """Note a change of this name made here: a listing that has begun by now does not show it."""
        with self.lock:
            parent = entry.parent
            if parent is None or (is_there and entry.gone):
                return
            self._count += 1
            changes = parent.listing.changes
            changes.pop(entry.name, None)  # the order is that of the changes
            changes[entry.name] = self._count
            if len(changes) > MAX_CHANGES:
                del changes[next(iter(changes))]
            entry.checked_at = self.now()
            if not is_there:
                parent.listing.remove(entry.name)
            elif parent in self._listed.kept:
                parent.listing.put(entry.name, entry.info())

    def detach(self, entry: Entry) -> None:
        """Take away the name of an entry that is gone in the remote; it lives on while it is held."""
        with self.lock:
            parent = entry.parent
            assert parent is not None
            entry.gone, entry.nlink = True, 0
            if parent.children.get(entry.name) is entry:
                del parent.children[entry.name]
                parent.listing.remove(entry.name)
            self.reap(entry)

    def reap(self, entry: Entry) -> None:
        """Drop an entry without a name that is not in use, and directories that stayed for it alone."""
        with self.lock:
            while entry.gone and entry.idle:
                entry = self._without(entry)
            if not (entry.held or entry.queued or entry.gone) and entry.parent is not None:
                self._queue(entry)

    # -- what the kernel knows ---------------------------------------------------------------------------------

    def hold(self, node: int) -> None:
        """Needs no lock: it sets one flag. A node that is not there any more will be ESTALE when it is used."""
        entry = self._entries.get(node)
        if entry is not None:
            entry.held = True

    def forget(self, nodes: Iterable[int]) -> None:
        """Never waits, for the caller may be an event loop; the next call may have to do the work."""
        for node in nodes:
            entry = self._entries.get(node)
            if entry is not None and entry.parent is not None:
                entry.held = False
                self._queue(entry)
        if self.lock.acquire(blocking=False):
            try:
                self.settle()
            finally:
                self.lock.release()

    def _queue(self, entry: Entry) -> None:
        entry.forgotten_at = self.now()
        if entry.gone:  # no lookup finds it any more
            self._unheld.appendleft(entry)
        elif not entry.queued:
            entry.queued = True
            self._unheld.append(entry)

    def settle(self) -> None:
        """Let go of entries that are not held: of those without a name, and of the oldest beyond `KEPT_ENTRIES`."""
        with self.lock:
            while self._unheld and (self._unheld[0].gone or len(self._entries) > KEPT_ENTRIES):
                entry = self._unheld.popleft()
                if entry.gone:
                    self.reap(entry)
                elif entry.forgotten_at > self.now() - SETTLE_S:
                    self._unheld.appendleft(entry)
                    return
                else:
                    entry.queued = False
                    self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        """Forget an entry that has a name, if it is not in use, and then its directory, if that waited for it."""
        while entry.idle:
            entry = self._without(entry)
            if entry.queued:
                return  # its turn comes

    def _without(self, entry: Entry) -> Entry:
        """Drop an entry; its directory."""
        parent = entry.parent
        assert parent is not None
        self._entries.pop(entry.node, None)
        self._listed.pop(entry)
        entry.listing.clear()
        if parent.children.get(entry.name) is entry:
            del parent.children[entry.name]
        entry.drop_content()
        return parent

    # -- listings ----------------------------------------------------------------------------------------------

    def child(self, directory: Entry, name: bytes) -> Entry | None:
        """The entry of a name, None for no such name, at most `ttl_s` old. ENOTDIR."""
        self.settle()
        if not directory.is_dir:
            raise oserror(errno.ENOTDIR)
        with self.lock:
            if directory.is_gone:
                return None
            found = directory.children.get(name)
            if self._is_good(directory.listing):
                self._listed.get(directory)
                return self._entry_for(directory, name)
            is_newer = found is not None and self._remote.token() is None and self.is_fresh(found.checked_at)
            if found is not None and (found.local or found.dirty or is_newer):
                return found
        segment = self._remote.segment(name) if directory.listing.large else None
        if segment is None:
            self.refresh(directory)
        else:
            self._probe(directory, name, segment)
        with self.lock:
            return self._entry_for(directory, name)

    def list_ahead(self, names: Sequence[bytes]) -> None:
        """List the last of these directories, of which the first is in the root, without listing those on the way. Only
        with `Abilities.flat_keys`; where that proves nothing, the walk that follows asks by itself."""
        path = b"/".join(names)
        with self.lock:
            if self._unknown_of(names) is None:
                return
            guard = self._listing_ahead.setdefault(path, Lock())
        try:
            with guard:  # threads that ask at once share one request
                self._list_ahead(names)
        finally:
            self._listing_ahead.pop(path, None)

    def _unknown_of(self, names: Sequence[bytes]) -> tuple[Entry, list[bytes]] | None:
        """The last directory on the way that is known, and the names after it; None where a listing tells of these."""
        directory = self.root
        for number, name in enumerate(names):
            if self._is_good(directory.listing):
                return None
            child = directory.children.get(name)
            if child is None or not child.is_dir or not self.is_fresh(child.checked_at):
                return directory, list(names[number:])
            directory = child
        return None

    def _list_ahead(self, names: Sequence[bytes]) -> None:
        with self.lock:
            unknown = self._unknown_of(names)
            if unknown is None:
                return
            directory, left = unknown
            last: Entry | None = directory
            for name in left:
                last = last.children.get(name) if last is not None else None
        segments = [self._remote.segment(name) for name in left]
        if None in segments or (last is not None and last.listing.large):
            return
        with last.lock if last is not None else nullcontext():  # as `refresh`
            count, began = self._count, self.now()
            key = directory.key + "".join(f"{segment}/" for segment in segments)
            # Without an answer: no such directory, and perhaps a name that no key can have.
            contents = unless((errno.ENOENT, errno.ENOTDIR, errno.EINVAL), self._remote.contents, key)
            if contents is not None and (contents.infos or contents.marker is not None):
                with self.lock:
                    self._proven(directory, left, last, contents, count, began)

    def _proven(
        self, directory: Entry, names: list[bytes], last: Entry | None, contents: Contents, count: int, began: float
    ) -> None:
        """A listing of the last of these directories shows that all of them are there."""
        for number, name in enumerate(names, 1):
            listing, child, segment = directory.listing, directory.children.get(name), self._remote.segment(name)
            assert segment is not None
            if directory.is_gone or segment in listing.ghosts or listing.changes.get(name, 0) > count:
                return  # changed here meanwhile
            if number == len(names) and child is not last:
                return  # another thread has seen it, and may be listing it
            if child is None:
                child = self._new(directory, name, Info(segment, is_dir=True))
            elif not child.is_dir:
                return
            child.checked_at, child.local = max(began, child.checked_at), False
            directory = child
        directory.listing.took_s = self.now() - began
        self._merge(directory, contents, count, began)

    def looked_at(self, entry: Entry) -> list[Entry]:
        """The entries whose attributes are asked for with those of one: itself, and perhaps the next ones.

        A directory is listed instead in a walk, which lists it next: one without a sign has no attributes.
        """
        parent = entry.parent
        if parent is None or not entry.is_brief:
            return [entry]
        will_wait()  # before anything is noted: the call would be made once more
        with self.lock:
            if parent not in self._listed.kept:
                return [entry]
            descends, parent.listing.descended = parent.listing.descended, parent.listing.descended and not entry.is_dir
        if entry.is_dir and descends:
            self.refresh(entry)
            return [entry]
        with self.lock:
            names = parent.listing.ahead_of(entry.name, MAX_AHEAD)
            following = (self._entry_for(parent, name) for name in names)
            return [entry, *(each for each in following if each is not None)]

    def page(self, directory: Entry, after: bytes, limit: int) -> list[Entry]:
        """The next entries in the order of their names."""
        self.settle()
        if not directory.is_dir:
            raise oserror(errno.ENOTDIR)
        self.refresh(directory, PAGE_TTLS if after else 1)
        with self.lock:
            if directory.parent is not None:
                directory.parent.listing.descended = True
            if directory.is_gone:
                return []
            self._listed.get(directory)
            found = (self._entry_for(directory, name) for name in directory.listing.after(after, limit))
            return [entry for entry in found if entry is not None]

    def refresh(self, directory: Entry, ttls: float = 1) -> None:
        """List a directory, unless there is a listing that is valid. Threads that ask at once share one request."""
        with directory.lock:
            with self.lock:
                if directory.is_gone or self._is_good(directory.listing, ttls):
                    return
                key, count, began, token = directory.key, self._count, self.now(), self._remote.token()
            contents = self._list(directory)
            if contents is None:
                with self.lock:
                    self.detach(directory)
                raise oserror(errno.ESTALE)
            listing = directory.listing
            doubtful = [info.segment for info in contents.infos.values() if info.segment in listing.ghosts]
            real = {segment for segment in doubtful if self._remote.has(f"{key}{segment}/")}
            with self.lock:
                if directory.is_gone:
                    return
                listing.ghosts.intersection_update(doubtful)
                listing.ghosts -= real
                listing.took_s, listing.token = self.now() - began, token
                self._merge(directory, contents, count, began if self._abilities.concurrent else self.now())

    def _list(self, directory: Entry) -> Contents | None:
        """List a directory in the remote. Empty for a directory of this volume alone; None when it is gone."""
        if directory.local and not self._remote.has(directory.topmost_local().key):
            return Contents({})
        try:
            return self._remote.contents(directory.key)
        except FileNotFoundError:
            return Contents({}) if directory.local or directory.parent is None else None

    def _is_good(self, listing: Listing, ttls: float = 1) -> bool:
        token = self._remote.token() if ttls == 1 else None
        if token is None:
            return self.is_fresh(listing.listed_at, self.ttl_s * ttls)
        # A long one is not read anew for each of many changes.
        quickly = self.is_fresh(listing.listed_at, min(self.ttl_s, listing.took_s * PATIENCE))
        return quickly or (listing.listed_at > self._expired_at and token == listing.token)

    def is_fresh(self, since: float, age_s: float | None = None) -> bool:
        """True while an answer of that time is valid, for `age_s` (None: the TTL)."""
        return since > self._expired_at and self.now() - since < (self.ttl_s if age_s is None else age_s)

    def expire(self) -> None:
        """No listing is valid any more."""
        with self.lock:
            self._expired_at = self.now()

    def _merge(self, directory: Entry, contents: Contents, count: int, listed_at: float) -> None:
        listing = directory.listing
        listing.changes = {name: at for name, at in listing.changes.items() if at > count}
        infos = {
            name: info
            for name, info in contents.infos.items()
            if name not in listing.changes and not (info.is_dir and info.segment in listing.ghosts)
        }
        for name in listing.changes:
            if name in listing.infos:
                infos[name] = listing.infos[name]
        for name, child in list(directory.children.items()):
            info = infos.get(name)
            if name in listing.changes:
                continue
            if info is not None and info.is_dir == child.is_dir:
                child.checked_at = listed_at
                child.local = child.local and not child.is_dir
            elif child.is_ahead:
                infos[name] = child.info()  # also over a stranger of that name: storing it will tell
            else:
                self.detach(child)
        listing.replace(infos)
        listing.listed_at, listing.large = listed_at, contents.large
        self._listed.put(directory, listing, len(infos))
        if self._abilities.keeps_directories:
            directory.listing.marker = contents.marker is not None
            directory.stamped = directory.stamped or not directory.listing.marker
        if contents.marker is not None:
            self._saw_marker(directory, contents.marker)

    def _saw_marker(self, directory: Entry, marker: Head) -> None:
        ours = directory.seen is OWN and directory.etag == marker.etag
        if not ours and marker.version != directory.seen:
            directory.stamped = not self._abilities.keeps_attributes
        directory.etag, directory.seen = marker.etag, marker.version

    def _entry_for(self, parent: Entry, name: bytes) -> Entry | None:
        """The entry for a name in a listing, brought up to date."""
        info = parent.listing.infos.get(name)
        return parent.children.get(name) if info is None else self._shown(parent, name, info)

    def _shown(self, parent: Entry, name: bytes, info: Info) -> Entry:
        entry = parent.children.get(name)
        if entry is None:
            entry = self._new(parent, name, info)
            entry.checked_at = parent.listing.listed_at
        elif not entry.held:
            entry.forgotten_at = self.now()
        entry.read_only = info.read_only
        if info.is_dir:
            if info.mtime_ns is not None and not entry.kept:
                entry.mtime_ns = entry.ctime_ns = info.mtime_ns
        elif entry.seen != info.version and not entry.busy:
            self._take(entry, info)
        return entry

    def _take(self, entry: Entry, info: Info) -> None:
        """A listing names another version of a file than the known one."""
        ours, entry.seen = entry.seen is OWN, info.version
        exact = self._abilities.exact_sizes
        if info.etag is not None and info.etag == entry.etag:
            if self._abilities.keeps_attributes and not ours:
                entry.stamped = False  # stored again, perhaps with other attributes
            return
        entry.doubted = info.etag is None
        if info.etag is None and ours and (not exact or info.size == entry.size):
            entry.stamped = exact  # it may be what we stored: our times stay
            return
        is_news = info.etag is not None and entry.etag is not None
        if info.mtime_ns is not None:
            entry.mtime_ns = info.mtime_ns
            # Caches compare the times, which may be those of before.
            entry.ctime_ns = now_ns() if is_news else info.mtime_ns
        if info.etag is not None:
            entry.etag, entry.local = info.etag, False
            entry.version += 1
        entry.resize(info.size or 0)
        entry.stamped = exact and info.size is not None and not self._abilities.keeps_attributes

    def _probe(self, directory: Entry, name: bytes, segment: str) -> None:
        """Look for one name in a large directory."""
        with self.lock:
            key, count, began = directory.key, self._count, self.now()
        found = self._remote.find(key, segment)
        with self.lock:
            if directory.is_gone or directory.listing.changes.get(name, 0) > count:
                return
            child = directory.children.get(name)
            if child is not None and (found is None or found[0].is_dir != child.is_dir):
                if child.is_ahead:
                    return
                self.detach(child)
            if found is None:
                directory.listing.remove(name)
                return
            info, head = found
            if directory in self._listed.kept:
                directory.listing.put(name, info)
            entry = self._shown(directory, name, info)
            entry.checked_at = began
            if head is not None and not entry.busy:
                self.know(entry, head)

    # -- attributes --------------------------------------------------------------------------------------------

    def know(self, entry: Entry, head: Head) -> None:
        """The remote says this of an entry."""
        with self.lock:
            if entry.is_dir:
                entry.listing.marker = True
            elif entry.etag != head.etag or head.etag is None:
                if entry.etag is not None:
                    entry.touch()
                elif head.modified_ns is not None:
                    entry.mtime_ns = entry.ctime_ns = head.modified_ns
                    entry.version += 1
                entry.local = False
                entry.resize(head.size)
            elif not entry.stamped:
                entry.resize(head.size)
            entry.etag, entry.doubted = head.etag, False
            entry.stamped = True
            if head.stamp is not None:
                entry.extra = dict(head.stamp.extra)  # services add some of their own: that is no change of a file
                if self._abilities.keeps_attributes and entry.stamp != head.stamp:
                    entry.restamp(head.stamp)
                    entry.ctime_ns = max(entry.ctime_ns, head.modified_ns or 0)
            if head.version is not None:
                entry.seen = head.version
            parent = entry.parent
            if parent is not None and not entry.gone and entry.name in parent.listing.infos:
                parent.listing.put(entry.name, entry.info())
