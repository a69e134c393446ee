"""`ObjectTree`: the names of a volume and their nodes, over listings of the bucket, which grow old.

A listing is believed for `ttl_s` seconds, and kept up to date with what is done through this volume; what was done here
while a listing was on its way is newer than the listing. A directory that one request can list is listed anew for the
sake of one name, for its neighbours will be asked for too; in a larger one a name is looked for by itself.

What a listing does not have is asked for by `looks.py`, which tells of it (`know`).

Entries live until the kernel has held and forgotten them and their directory, and then while they are open or hold what
the store does not; the first `KEPT_ENTRIES` stay, with their numbers and what was asked about them. The lock is held
for moments, never over a request.
"""

from __future__ import annotations

import errno
import itertools
import logging
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable

from fusebackend.backends.object_store import metadata as attributes
from fusebackend.backends.object_store.bucket import object_keys as names
from fusebackend.backends.object_store.bucket.object_keys import Contents, Found, Info
from fusebackend.backends.object_store.bucket.requests import PAGE_OBJECTS, Bucket, Head
from fusebackend.backends.object_store.entry import NEVER, Entry
from fusebackend.backends.object_store.metadata import Stamp
from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.protocol import ROOT_NODE, Caller

log = logging.getLogger(__name__)

PAGE_TTLS = 10
"""A listing that is read page by page may grow this much older before it is read anew: a long one would never end."""

KEPT_ENTRIES = 1 << 16
"""So many entries stay when the kernel forgets them: about 1 KiB each, or a request each when they are seen again.

Their numbers matter too: git reads every file anew whose inode has another number than in its index.
"""


class ObjectTree:
    """See the module's docstring.

    Args:
        bucket: the requests.
        ttl_s: for how many seconds a listing is believed.
        clock: seconds that only grow; `now` afterwards.
    """

    def __init__(self, bucket: Bucket, ttl_s: float, clock: Callable[[], float]) -> None:
        self.lock = threading.RLock()
        self._bucket = bucket
        self.ttl_s = ttl_s
        self.now = clock
        self._numbers = itertools.count(ROOT_NODE)
        self._count = 0  # of the changes made here
        self._expired_at = NEVER
        self._began_ns = now_ns()
        self._entries: dict[int, Entry] = {}
        self._let_go: deque[int] = deque()
        self.root = self._new(None, b"", "", is_dir=True)

    # -- entries -----------------------------------------------------------------------------------------------

    def entry(self, node: int) -> Entry:
        """ESTALE for one that is not held."""
        entry = self._entries.get(node)
        if entry is None:
            raise oserror(errno.ESTALE)
        return entry

    def entries(self) -> list[Entry]:
        with self.lock:
            return list(self._entries.values())

    def _new(self, parent: Entry | None, name: bytes, segment: str, *, is_dir: bool) -> Entry:
        entry = Entry(next(self._numbers), parent, name, segment, is_dir=is_dir)
        entry.atime_ns = entry.mtime_ns = entry.ctime_ns = self._began_ns
        self._entries[entry.node] = entry
        if parent is not None:
            parent.children[name] = entry
            parent.order = None
        return entry

    def make(self, parent: Entry, name: bytes, mode: int, caller: Caller) -> Entry:
        """A new entry that only this volume has so far; it has no name yet. EILSEQ, ENAMETOOLONG."""
        segment = names.new_segment(name, parent.key)
        entry = Entry(next(self._numbers), parent, name, segment, is_dir=stat.S_ISDIR(mode))
        entry.mode, entry.uid, entry.gid = mode, caller.uid, caller.gid
        if parent.mode & stat.S_ISGID:  # it hands on its group (POSIX, open)
            entry.gid = parent.gid
            entry.mode |= stat.S_ISGID if entry.is_dir else 0
        entry.atime_ns = entry.mtime_ns = entry.ctime_ns = now_ns()
        entry.stamped = entry.local = True
        return entry

    def link(self, entry: Entry) -> Entry:
        """Give a new entry its name; the entry that has it.

        What is in the store already may have been listed by now, and have an entry: then that is the one. EEXIST for
        one that is not in the store; ENOENT when its directory is gone.
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
                there = entry
                self._entries[entry.node] = entry
                parent.children[entry.name] = entry
            parent.ghosts.discard(entry.segment)
            self.changed(there)
            self._touch(parent)
            return there

    def distrust(self, directory: Entry) -> None:
        """There is something in a directory that its listing does not show."""
        with self.lock:
            directory.listed_at = NEVER

    def relink(self, entry: Entry, directory: Entry, name: bytes, segment: str) -> None:
        """An entry has moved to another name."""
        with self.lock:
            old = entry.parent
            assert old is not None
            self.changed(entry)
            self._touch(old)
            if entry.is_dir:
                old.ghosts.add(entry.segment)
            del old.children[entry.name]
            entry.parent, entry.name, entry.segment = directory, name, segment
            entry.ctime_ns = now_ns()
            directory.children[name] = entry
            directory.ghosts.discard(segment)
            self.changed(entry)
            self._touch(directory)

    def unlinked(self, entry: Entry) -> None:
        """An entry has lost its name through this volume, and with it what was not stored."""
        with self.lock:
            assert entry.parent is not None
            entry.unlinked, entry.dirty = True, False
            if entry.is_dir:
                entry.parent.ghosts.add(entry.segment)
            self.changed(entry)
            self._touch(entry.parent)
            self.detach(entry)

    def changed(self, entry: Entry) -> None:
        """Something was done here to what this name stands for: a listing that has begun by now does not know."""
        with self.lock:
            if entry.parent is not None:
                self._count += 1
                entry.parent.changes[entry.name] = self._count
                entry.checked_at = self.now()

    def _touch(self, directory: Entry) -> None:
        directory.order = None
        directory.mtime_ns = directory.ctime_ns = now_ns()

    def detach(self, entry: Entry) -> None:
        """Take an entry's name away; it lives on while somebody holds it."""
        with self.lock:
            assert entry.parent is not None
            entry.gone = True
            entry.nlink = 0
            if entry.parent.children.get(entry.name) is entry:
                del entry.parent.children[entry.name]
                entry.parent.order = None
            self.reap(entry)

    def reap(self, entry: Entry) -> None:
        """Let go of an entry if nobody needs it and it has no name that a listing would miss."""
        with self.lock:
            while entry.gone and entry.idle:
                assert entry.parent is not None
                self._entries.pop(entry.node, None)
                entry.drop_content()
                entry = entry.parent

    def hold(self, node: int) -> None:
        entry = self._entries.get(node)
        if entry is not None:
            entry.held, entry.forgotten = True, False

    def forget(self, nodes: Iterable[int]) -> None:
        """Needs no lock: the caller may be an event loop. What follows from it is done by the next call that may."""
        self._let_go.extend(nodes)

    def settle(self) -> None:
        """Do what `forget` has put off. With a directory go the entries in it that nobody holds."""
        with self.lock:
            while self._let_go:
                entry = self._entries.get(self._let_go.popleft())
                if entry is None or entry.parent is None:
                    continue
                entry.held, entry.forgotten = False, True
                if len(self._entries) <= KEPT_ENTRIES:
                    self.reap(entry)
                    continue
                for child in list(entry.children.values()):
                    self._drop(child)
                if entry.parent.forgotten:
                    self._drop(entry)
                self.reap(entry)

    def _drop(self, entry: Entry) -> None:
        """Forget an entry that has a name; the listing of its directory is then no longer complete."""
        if entry.held or entry.busy or entry.children or entry.local:
            return
        assert entry.parent is not None
        self._entries.pop(entry.node, None)
        if entry.parent.children.get(entry.name) is entry:
            del entry.parent.children[entry.name]
        entry.parent.order = None
        entry.parent.listed_at = NEVER
        entry.drop_content()

    # -- listings ----------------------------------------------------------------------------------------------

    def child(self, directory: Entry, name: bytes) -> Entry | None:
        """What a name leads to, at most `ttl_s` ago. ENOTDIR."""
        self.settle()
        if not directory.is_dir:
            raise oserror(errno.ENOTDIR)
        with self.lock:
            found = directory.children.get(name)
            if self.is_fresh(directory.listed_at) or directory.is_gone:
                return found
            if found is not None and (found.local or found.dirty or self.is_fresh(found.checked_at)):
                return found
        if directory.large and names.segment_of(name) is not None and not name.endswith(names.FILE_MARK):
            self._probe(directory, name)
        else:
            self.refresh(directory)
        return directory.children.get(name)

    def page(self, directory: Entry, after: bytes, limit: int) -> list[Entry]:
        """The entries whose names come next."""
        self.settle()
        if not directory.is_dir:
            raise oserror(errno.ENOTDIR)
        self.refresh(directory, self.ttl_s * (PAGE_TTLS if after else 1))
        with self.lock:
            return list(itertools.islice(directory.following(after), limit))

    def refresh(self, directory: Entry, age_s: float | None = None) -> None:
        """List a directory, unless there is a listing that is no older. Threads that ask at once share one request."""
        with directory.lock:
            with self.lock:
                if self.is_fresh(directory.listed_at, age_s) or directory.is_gone:
                    return
                key, count, began = directory.key, self._count, self.now()
            contents = self._bucket.contents(key)
            ghosts = [info.segment for info in contents.infos.values() if info.segment in directory.ghosts]
            real = {segment for segment in ghosts if not self._bucket.is_empty(f"{key}{segment}/")}
            with self.lock:
                if not directory.is_gone:
                    directory.ghosts.intersection_update(ghosts)
                    directory.ghosts -= real
                    self._merge(directory, contents, count, began)

    def is_fresh(self, since: float, age_s: float | None = None) -> bool:
        """Is what the store has shown then still to be believed, for `age_s` (None: the TTL)?"""
        return since > self._expired_at and self.now() - since < (self.ttl_s if age_s is None else age_s)

    def expire(self) -> None:
        """Believe no listing any more."""
        with self.lock:
            self._expired_at = self.now()

    def _merge(self, directory: Entry, contents: Contents, count: int, began: float) -> None:
        directory.changes = {name: at for name, at in directory.changes.items() if at > count}
        for name, info in contents.infos.items():
            if name not in directory.changes and not (info.is_dir and info.segment in directory.ghosts):
                self._show(directory, name, info, began)
        for name, child in list(directory.children.items()):
            known = name in contents.infos and (child.segment not in directory.ghosts or not child.is_dir)
            if not known and name not in directory.changes and not child.is_ahead:
                self.detach(child)
        directory.listed_at = began
        directory.large = len(contents.infos) > PAGE_OBJECTS
        marker = contents.marker
        directory.marker = marker is not None
        if marker is not None:
            ours = directory.modified_ns is None and directory.etag == marker.etag  # we have put it
            if not ours and (marker.etag, marker.modified_ns) != (directory.etag, directory.modified_ns):
                directory.stamped = False
            directory.etag, directory.modified_ns = marker.etag, marker.modified_ns

    def _show(self, directory: Entry, name: bytes, info: Info, began: float) -> Entry:
        child = directory.children.get(name)
        if child is not None and child.is_dir != info.is_dir:
            if child.local or child.dirty:
                return child  # storing it will tell
            self.detach(child)
            child = None
        if child is None:
            child = self._new(directory, name, info.segment, is_dir=info.is_dir)
        child.checked_at = began
        if info.found is not None and not child.busy:
            self.take(child, info.found)
        return child

    def take(self, entry: Entry, found: Found | Head) -> None:
        """The store has this version of a file now."""
        if entry.etag is not None and entry.etag == found.etag:
            if entry.modified_ns is None:
                entry.modified_ns = found.modified_ns  # we have put it
            elif entry.modified_ns != found.modified_ns:
                entry.modified_ns, entry.stamped = found.modified_ns, False
            return
        news = entry.etag is not None
        entry.etag, entry.modified_ns, entry.stamped, entry.local = found.etag, found.modified_ns, False, False
        entry.resize(found.size)
        entry.mtime_ns = found.modified_ns
        # Whoever has pages of it compares the times, which may be those of before.
        entry.ctime_ns = now_ns() if news else found.modified_ns
        entry.version += 1

    def _probe(self, directory: Entry, name: bytes) -> None:
        """Look for one name in a large directory."""
        segment = names.segment_of(name)
        assert segment is not None
        with self.lock:
            key, count, began = directory.key + segment, self._count, self.now()
        is_dir = not self._bucket.is_empty(key + "/")
        head = None if is_dir else self._bucket.head(key)
        with self.lock:
            if directory.is_gone or directory.changes.get(name, 0) > count:
                return
            if is_dir:
                self._show(directory, name, Info(segment, None), began)
            elif head is not None:
                found = Found(segment, head.size, head.etag, head.modified_ns)
                entry = self._show(directory, name, Info(segment, found), began)
                if not entry.busy:
                    self.know(entry, head)
            else:
                child = directory.children.get(name)
                if child is not None and not child.is_ahead:
                    self.detach(child)

    # -- attributes --------------------------------------------------------------------------------------------

    def know(self, entry: Entry, head: Head) -> None:
        """The store says this of an entry."""
        with self.lock:
            if entry.is_dir:
                entry.marker, entry.etag, entry.modified_ns = True, head.etag, head.modified_ns
            else:
                self.take(entry, head)
                entry.modified_ns = head.modified_ns
            stamp: Stamp = attributes.read(head.attributes, head.modified_ns, is_dir=entry.is_dir)
            if entry.stamp != stamp:
                entry.restamp(stamp)
                entry.ctime_ns = max(entry.ctime_ns, head.modified_ns)
            entry.stamped = True
            entry.extra = attributes.others(head.attributes)
