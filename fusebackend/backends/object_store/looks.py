"""`Looks`: what is asked of the store about single objects: attributes, and which version there is.

A listing has no modes, owners, times and links. They are asked for object by object, several at a time, and known for
as long as the object stays that version. Where files are read as well, small ones come whole (`Appetite`).

Of a file that is opened the store is asked which version it has. Who opens one file of a directory after the other, to
read what is here already, has the directory listed for that: one request does for all of them, once each, and for
`MOMENT_S` at most.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from fusebackend.backends.object_store.bucket.object_keys import MARKER
from fusebackend.backends.object_store.bucket.parallel import each
from fusebackend.backends.object_store.bucket.requests import Bucket, Head
from fusebackend.backends.object_store.entry import Entry
from fusebackend.backends.object_store.reading.disk_cache import BlockCache
from fusebackend.backends.object_store.reading.ranged_reader import WHOLE_BYTES, is_kept, keep
from fusebackend.backends.object_store.reading.read_ahead import BLOCK_BYTES
from fusebackend.backends.object_store.tree import ObjectTree
from fusebackend.base.errors import oserror

MOMENT_S = 0.1
"""For how long a listing says which version a file has that is opened, if the TTL is not less."""

SMALL_BYTES = 64 << 10
"""A file that may be fetched for its attributes' sake: that takes as long as asking for these alone."""


ENOUGH = 16
"""So many looks say something."""

REMEMBERED = 256
"""After so many, what was before counts half."""


class Appetite:
    """Do those who look at files read them as well?

    `ls -l` wants the attributes of files and `rg` their contents too. Both begin with a listing. Small files of a
    directory are fetched whole, with their attributes and in one request each, while most of those looked at before
    were read. Counts are not exact in threads, and need not be.
    """

    def __init__(self) -> None:
        self._looks = 0.0
        self._reads = 0.0

    def looked(self, count: int) -> None:
        """So many small files were looked at."""
        self._looks += count
        if self._looks > REMEMBERED:
            self._looks /= 2
            self._reads /= 2

    def read(self) -> None:
        """One of them was opened to be read."""
        self._reads += 1

    @property
    def is_there(self) -> bool:
        return self._looks >= ENOUGH and self._reads >= self._looks / 2


class Looks:
    """See the module's docstring."""

    def __init__(self, bucket: Bucket, tree: ObjectTree, cache: BlockCache) -> None:
        self._bucket = bucket
        self._tree = tree
        self._cache = cache
        self._appetite = Appetite()
        self._moment_s = min(MOMENT_S, tree.ttl_s)

    def stamp(self, entries: Iterable[Entry]) -> None:
        """Know the modes, owners and times of entries. A file that has gone loses its name."""
        unknown = [entry for entry in entries if not entry.stamped and not entry.busy and not entry.gone]
        if not unknown:
            return
        wholly = self._appetite.is_there

        def ask(entry: Entry) -> Head | None:
            if entry.is_dir:
                return self._bucket.head(entry.key + MARKER)
            return self._fetched(entry) if wholly and _is_small(entry) else self._bucket.head(entry.key)

        for entry in unknown:
            entry.unread = not entry.is_dir and _is_small(entry)
        self._appetite.looked(sum(entry.unread for entry in unknown))
        heads = each(ask, unknown)
        with self._tree.lock:
            for entry, head in zip(unknown, heads, strict=True):
                if entry.stamped or entry.busy:
                    continue  # meanwhile somebody else has
                if head is not None:
                    self._tree.know(entry, head)
                elif entry.is_dir:
                    entry.marker, entry.stamped = False, True
                else:
                    self._tree.detach(entry)

    def is_current(self, entry: Entry) -> bool:
        """Has the directory just been listed for who opens file after file in it, and is all of this one here?"""
        with self._tree.lock:
            if entry.unread:
                entry.unread = False
                self._appetite.read()
            directory = entry.parent
            if directory is None or not self._is_known(entry):
                return False
        if not self._is_here(entry):
            return False
        with self._tree.lock:
            if self._relies(entry, directory):
                return True
            is_one_of_many = self._tree.is_fresh(directory.looked_at, self._moment_s)
            asked = directory.looked_at = self._tree.now()
        if not is_one_of_many or directory.large:
            return False
        self._tree.refresh(directory, self._moment_s, begun_after=asked)
        with self._tree.lock:
            directory.shown_at = directory.listed_at
            is_shown = self._is_known(entry) and self._relies(entry, directory)
        return is_shown and self._is_here(entry)

    def _relies(self, entry: Entry, directory: Entry) -> bool:
        """May this open make use of the listing? Only once: who opens the same file again wants to know what is new."""
        shown = directory.shown_at
        if not self._tree.is_fresh(shown, self._moment_s) or entry.checked_at < shown or entry.relied_on == shown:
            return False
        entry.relied_on = shown
        return True

    def _is_known(self, entry: Entry) -> bool:
        return entry.stamped and not entry.gone and not entry.busy

    def _is_here(self, entry: Entry) -> bool:
        """Is all of a file's content in the cache?"""
        if entry.size == 0:
            return True
        etag, is_block = entry.etag, entry.size <= BLOCK_BYTES
        return is_block and etag is not None and is_kept(self._cache, self._bucket.store, entry.key, etag)

    def look(self, entry: Entry, *, fetch: bool = False) -> None:
        """See which version the store has now. ESTALE when it has none.

        Args:
            fetch: the content is wanted next. That of a small file comes with the same request, if it is not here.
        """
        head = self._fetched(entry) if fetch and 0 < entry.size <= WHOLE_BYTES else self._bucket.head(entry.key)
        if head is None:
            if not entry.opens:
                self._tree.detach(entry)
            raise oserror(errno.ESTALE, entry.key)
        if head.etag != entry.etag:
            entry.drop_content()
        self._tree.know(entry, head)
        if entry.parent is not None:
            entry.relied_on = entry.parent.shown_at

    def _fetched(self, entry: Entry) -> Head | None:
        """What the store has of a small file now, None for nothing. Its content is in the cache then."""
        store = self._bucket.store
        if entry.etag is None or is_kept(self._cache, store, entry.key, entry.etag):
            return self._bucket.head(entry.key)
        found = self._bucket.fetch(entry.key, WHOLE_BYTES)
        if found is None:
            return None
        head, content = found
        if content is not None and head.etag is not None:
            keep(self._cache, store, entry.key, head.etag, content)
        return head


def _is_small(entry: Entry) -> bool:
    return 0 < entry.size <= SMALL_BYTES
