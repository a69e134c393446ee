"""`Looks`: what is asked of the store about single objects: attributes, and which version there is.

A listing has no modes, owners, times and links. They are asked for object by object, several at a time, and known for
as long as the object stays that version. Of a file that is opened the store is asked which version it has.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from fusebackend.backends.object_store.bucket.object_keys import MARKER
from fusebackend.backends.object_store.bucket.parallel import each
from fusebackend.backends.object_store.bucket.requests import Bucket, Head
from fusebackend.backends.object_store.entry import Entry
from fusebackend.backends.object_store.ranged_reader import WHOLE_BYTES, BlockCache
from fusebackend.backends.object_store.tree import ObjectTree
from fusebackend.base.errors import oserror


class Looks:
    """See the module's docstring."""

    def __init__(self, bucket: Bucket, tree: ObjectTree, cache: BlockCache) -> None:
        self._bucket = bucket
        self._tree = tree
        self._cache = cache

    def stamp(self, entries: Iterable[Entry]) -> None:
        """Know the modes, owners and times of entries. A file that has gone loses its name."""
        unknown = [entry for entry in entries if not entry.stamped and not entry.busy and not entry.gone]
        if not unknown:
            return

        def ask(entry: Entry) -> Head | None:
            if entry.is_dir:
                return self._bucket.head(entry.key + MARKER)
            return self._bucket.head(entry.key)

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

    def _fetched(self, entry: Entry) -> Head | None:
        """What the store has of a small file now, None for nothing. Its content is in the cache then."""
        if entry.etag is None or self._cache.has(entry.key, entry.etag, 0):
            return self._bucket.head(entry.key)
        found = self._bucket.fetch(entry.key, WHOLE_BYTES)
        if found is None:
            return None
        head, content = found
        if content is not None and head.etag is not None:
            self._cache.put_whole(entry.key, head.etag, content)
        return head

