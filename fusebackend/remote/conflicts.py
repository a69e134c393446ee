"""`FileUploads`: stores written files on a condition, and settles conflicts.

A buffer is stored on the condition that the remote still has the version that was opened, or nothing where the file is
new. Where it has something else, there are three cases. Equal bytes: an upload has arrived, and its answer was lost. A
buffer that was only appended to: the same is appended to the current file. Else theirs stays, ours is stored beside it
as `name.conflict-<time>`, and `store` raises ESTALE. Any other error leaves the buffer dirty, to be tried again.

The caller has passed the gate and holds the entry's lock.
"""

from __future__ import annotations

import errno
import logging
import time
from itertools import chain

from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import NAME_MAX_BYTES
from fusebackend.protocol.remote import Etag, Remote
from fusebackend.remote.buffer import Buffer
from fusebackend.remote.entry import OWN, ContentState, Entry
from fusebackend.remote.tree import Tree

log = logging.getLogger(__name__)

ATTEMPTS = 20
"""How often something is tried on a file that others change all the time."""


class FileUploads:
    """See the module's docstring."""

    def __init__(self, remote: Remote, tree: Tree) -> None:
        self._remote = remote
        self._tree = tree

    def store(self, entry: Entry) -> bool:
        """Store a buffer that was written to.

        Returns:
            True if the file differs now from the buffer: others have written before an append.

        Raises:
            OSError: ESTALE after a conflict, which is over then. An errno in `Remote.hopeless`: the buffer is dropped.
                Another errno: the buffer is still dirty.
        """
        if not entry.dirty:
            return False
        assert entry.buffer is not None, f"node {entry.node} has nothing to store"
        key, differs = entry.key, False
        base = entry.base if entry.writers and not entry.local else entry.etag
        try:
            if entry.is_gone:
                raise oserror(errno.ESTALE, key)
            etag = self.put(entry, key, entry.buffer, base)
        except OSError as error:
            if error.errno in self._remote.hopeless:
                self._give_up(entry)
            if error.errno != errno.ESTALE:
                raise
            found = None if entry.is_gone else self._remote.same(key, entry.buffer, entry.stamp)
            if found is None:
                found = self._append_again(entry, key)
                differs = found is not None
            if found is None:
                self._keep_beside(entry, key)
                raise oserror(errno.ESTALE, key) from None
            etag = found
        with self._tree.lock:
            entry.content = ContentState.CLEAN
            self.is_stored(entry, etag)
        return differs

    def put(self, entry: Entry, key: str, buffer: Buffer, base: Etag | None) -> Etag | None:
        """`Remote.put` of a file's new bytes."""
        try:
            return self._remote.put(key, buffer, entry.stamp, over=base, create=entry.local)
        except OSError as error:
            entry.tried = entry.tried or error.errno != errno.ESTALE
            raise

    def is_stored(self, entry: Entry, etag: Etag | None) -> None:
        """The remote has these bytes now, under this ETag."""
        entry.etag = entry.base = etag
        entry.seen = OWN
        entry.stamped = True
        self._tree.stored(entry)

    def _give_up(self, entry: Entry) -> None:
        """Drop the buffer of a file. A new file that was never stored loses its name."""
        with self._tree.lock:
            entry.content = ContentState.CLEAN
            entry.stamped = False
            entry.seen = entry.etag = entry.base = None
            entry.version += 1
            entry.drop_content()
            if entry.local:
                self._tree.unlinked(entry)
            self._tree.expire()

    def _append_again(self, entry: Entry, key: str) -> Etag | None:
        """Append the buffer's new end to the current file. None unless the buffer was only appended to."""
        buffer = entry.buffer
        assert buffer is not None
        if buffer.tail_from is None or entry.local or entry.is_gone or not self._remote.abilities.conditional:
            return None
        for _ in range(ATTEMPTS):
            head = self._remote.head(key)
            if head is None:
                return None
            try:
                there = self._remote.load(key, head.etag) if head.content is None else (head.content,)
                theirs = Buffer.of(chain(there, buffer.pieces(buffer.tail_from)))
            except OSError as error:
                if error.errno not in (errno.ESTALE, errno.ENOENT):
                    raise
                continue
            try:
                etag = self.put(entry, key, theirs, head.etag)
            except OSError as error:
                if error.errno in (errno.ESTALE, errno.ENOENT):
                    theirs.close()
                    continue
                # It may have arrived: what is tried again must hold their bytes too.
                self._adopt(entry, theirs)
                entry.etag = entry.base = head.etag
                theirs.tail_from = head.size
                raise
            self._adopt(entry, theirs)
            return etag
        return None

    def _adopt(self, entry: Entry, theirs: Buffer) -> None:
        """Have the current file with our end as the buffer."""
        with self._tree.lock:
            entry.drop_content()
            entry.buffer = theirs
            entry.resize(theirs.size)
            entry.touch()

    def _keep_beside(self, entry: Entry, key: str) -> None:
        assert entry.buffer is not None
        if entry.buffer.size:
            beside = conflict_path(AgentPath("/" + key))
            self._remote.put(beside[1:], entry.buffer, entry.stamp, over=None, create=True)
            log.error("%s: /%s was changed by others; what was written here is in %s", self._remote.name, key, beside)
        with self._tree.lock:
            entry.stamped = False
            entry.content = ContentState.CONFLICTED if entry.opens else ContentState.CLEAN
            if entry.local and not entry.gone:
                self._tree.detach(entry)
            entry.local = False
            entry.etag = entry.seen = None
            entry.drop_content()
            self._tree.expire()


def conflict_path(path: AgentPath) -> AgentPath:
    """Where the bytes go that lost a conflict over `path`, `name.conflict-<time>`."""
    directory, name = paths.parent_and_name(path)
    now_ns = time.time_ns()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_ns // 10**9))
    suffix = f".conflict-{stamp}.{now_ns % 10**9:09d}"
    short = paths.to_name(name)[: NAME_MAX_BYTES - len(suffix)].decode("utf-8", "ignore")
    return paths.join(directory, short + suffix)
