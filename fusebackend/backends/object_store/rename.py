"""`Renames`: a rename is a copy in the store and a deletion, with a record in the journal from before until after.

A file is copied over its target at once, and deleted when the copy has been looked at; a directory is copied object by
object, and deleted when all of them are there. A failure before the first deletion takes the copies back; after it, and
after a crash, the rename is carried on: by this process before its next rename and at `sync`, by the next one that
opens the volume otherwise. What somebody else has put in either place meanwhile is left there.

What others change at the source between the look at it and its deletion goes with it: no store can delete on a
condition. Nobody here does, for a directory moves alone, and a file with its lock held.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from fusebackend.backends.object_store.bucket import object_keys as names
from fusebackend.backends.object_store.bucket.object_keys import MARKER
from fusebackend.backends.object_store.bucket.requests import Bucket, Head
from fusebackend.backends.object_store.entry import NEVER, Entry
from fusebackend.backends.object_store.files import ObjectFiles
from fusebackend.backends.object_store.gate import Gate
from fusebackend.backends.object_store.journal import RENEW_S, Journal, Record
from fusebackend.backends.object_store.tree import ObjectTree
from fusebackend.base.errors import oserror
from fusebackend.protocol import RENAME_NOREPLACE

T = TypeVar("T")

log = logging.getLogger(__name__)

BATCH = 256
"""So many objects are copied or deleted before the record is renewed, if it is time."""


class _TakenBack(Exception):
    """A rename has failed, and has left nothing behind. Never leaves this module."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Renames:
    """See the module's docstring."""

    def __init__(self, bucket: Bucket, tree: ObjectTree, files: ObjectFiles, gate: Gate) -> None:
        self._bucket = bucket
        self._tree = tree
        self._files = files
        self._gate = gate
        self._journal = Journal(bucket)
        self._left: dict[str, Record] = {}  # ours that have failed half-way
        self._left_guard = threading.Lock()

    # -- the kernel's rename -----------------------------------------------------------------------------------

    def rename(
        self, entry: Entry, directory: Entry, name: bytes, flags: int, keep: Callable[[Entry], None]
    ) -> None:
        """Move an entry to a name in a directory. `keep` is told what is taken out of its directory, before it is.

        Errors as `Volume.rename`; EINVAL for RENAME_EXCHANGE.
        """
        if flags not in (0, RENAME_NOREPLACE):
            raise oserror(errno.EINVAL, name)
        self.finish()
        if entry.is_dir:
            self._files.store_all(entry.tree())  # what is left when the others wait is little
        with self._gate.alone() if entry.is_dir else self._gate.passing(), contextlib.ExitStack() as locks:
            target = self._tree.child(directory, name)
            # Always in the same order, for two files may change places.
            for one in sorted({entry, *([target] if target is not None else [])}, key=lambda one: one.node):
                locks.enter_context(one.lock)
            if target is not None and flags == RENAME_NOREPLACE:
                raise oserror(errno.EEXIST, name)
            if target is entry:
                return
            segment = names.new_segment(name, directory.key)
            self._require_possible(entry, target, directory, name)
            if target is not None and not target.is_dir:
                self._files.keep_open(target)
            keep(entry)
            self._move(entry, target, directory, segment)
            if target is not None:
                self._tree.unlinked(target)
            self._tree.relink(entry, directory, name, segment)

    def _require_possible(self, entry: Entry, target: Entry | None, directory: Entry, name: bytes) -> None:
        if entry.is_gone or directory.is_gone:
            raise oserror(errno.ENOENT, name)
        if entry.is_dir and directory.is_within(entry):
            raise oserror(errno.EINVAL, name)
        if target is None:
            return
        if target.is_dir and not entry.is_dir:
            raise oserror(errno.EISDIR, name)
        if entry.is_dir:
            if not target.is_dir:
                raise oserror(errno.ENOTDIR, name)
            self.require_empty(target)

    def require_empty(self, directory: Entry) -> None:
        """ENOTEMPTY when there is something in a directory, here or in the store."""
        with self._tree.lock:
            local = any(child.is_ahead for child in directory.children.values())
        if local or not self._bucket.is_empty(directory.key, frozenset([directory.key + MARKER])):
            raise oserror(errno.ENOTEMPTY, directory.name)

    # -- moving objects ----------------------------------------------------------------------------------------

    def _move(self, entry: Entry, target: Entry | None, directory: Entry, segment: str) -> None:
        new = directory.key + segment
        if not entry.is_dir:
            self._files.uploads.store(entry)
            with self._recorded(entry.key, new, entry.etag, target.etag if target is not None else None):
                self._bucket.copy(entry.key, new)
                self._files.relocate(entry, new)
                self._bucket.delete(entry.key)
            return
        old = entry.key
        for below in entry.tree():
            if below.dirty:
                with below.lock:
                    self._files.uploads.store(below)
        with self._recorded(old, new + "/", None, None) as (key, record):
            pairs = [(source, copy) for source, copy, _, _ in self._pairs(record)]
            try:
                self._in_batches(self._bucket.copy_all, pairs, key, record)
                for below in entry.tree():
                    if below.opens and not below.is_dir:
                        with below.lock:
                            self._files.relocate(below, f"{new}/{below.key[len(old) :]}")
            except OSError as error:
                self._bucket.delete_all([copy for _, copy in pairs])
                raise _TakenBack(error) from None
            self._in_batches(self._bucket.delete_all, [source for source, _ in pairs], key, record)
        for below in entry.tree():
            # The copies were put just now, and are not other versions for that; but which they are is not known.
            below.modified_ns, below.checked_at = None, NEVER

    def _pairs(self, record: Record) -> list[tuple[str, str, int, str | None]]:
        """Each object below a directory: its key, the one it is to have, its size and ETag."""
        start = len(record.source)
        return [
            (key, record.destination + key[start:], size, etag)
            for page in self._bucket.keys_below(record.source)
            for key, size, etag in page
        ]

    def _in_batches(self, request: Callable[[list[T]], None], items: list[T], key: str, record: Record) -> None:
        renewed = time.monotonic()
        for start in range(0, len(items), BATCH):
            if time.monotonic() - renewed > RENEW_S:
                self._journal.renew(key, record)
                renewed = time.monotonic()
            request(items[start : start + BATCH])

    @contextlib.contextmanager
    def _recorded(
        self, source: str, destination: str, etag: str | None, replaced: str | None
    ) -> Iterator[tuple[str, Record]]:
        key, record = self._journal.begin(source, destination, etag, replaced)
        try:
            yield key, record
        except _TakenBack as taken_back:
            self._journal.end(key)
            raise taken_back.error from None
        except BaseException:
            with self._left_guard:
                self._left[key] = record
            raise
        try:
            self._journal.end(key)
        except OSError as error:  # the rename is done: whoever finds the record has nothing to do
            log.warning("the record of a rename stays: %s", error)

    # -- carrying on -------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Carry on what processes that are dead have begun."""
        for key, record in self._journal.abandoned():
            log.warning("carrying on a rename that was cut short: %s to %s", record.source, record.destination)
            self._carry_on(key, record)

    def finish(self) -> None:
        """Carry on what has failed here half-way."""
        if not self._left:
            return
        with self._gate.alone(), self._left_guard:
            for key, record in list(self._left.items()):
                self._carry_on(key, record)
                del self._left[key]
        self._tree.expire()

    def _carry_on(self, key: str, record: Record) -> None:
        if record.is_dir:
            self._carry_directory(key, record)
        else:
            self._carry_file(record)
        self._journal.end(key)

    def _carry_file(self, record: Record) -> None:
        source, there = self._bucket.head(record.source), self._bucket.head(record.destination)
        if source is None:
            return  # it was deleted, so the copy was there
        if there is not None and _is_copy(source, there):
            self._bucket.delete(record.source)
        elif (there.etag if there is not None else None) != record.replaced:
            log.error("%s and %s have both been changed; both stay", record.source, record.destination)

    def _carry_directory(self, key: str, record: Record) -> None:
        there = {
            found: (size, etag) for page in self._bucket.keys_below(record.destination) for found, size, etag in page
        }
        missing, copied = [], []
        for source, copy, size, etag in self._pairs(record):
            if copy not in there or source.endswith(f"/{MARKER}"):
                missing.append((source, copy))
            elif there[copy] == (size, etag) or _same(self._bucket, source, copy):
                copied.append(source)
            else:
                log.error("%s and %s have both been changed; both stay", source, copy)
        self._in_batches(self._bucket.copy_all, missing, key, record)
        self._in_batches(self._bucket.delete_all, copied + [source for source, _ in missing], key, record)

    def close(self) -> None:
        self._journal.close()


def _same(bucket: Bucket, source: str, copy: str) -> bool:
    one, other = bucket.head(source), bucket.head(copy)
    return one is not None and other is not None and _is_copy(one, other)


def _is_copy(source: Head, there: Head) -> bool:
    """A copy may have another ETag (of an object that was put in parts)."""
    mtime = source.attributes.get("mtime")
    if source.etag is not None and source.etag == there.etag:
        return True
    return source.size == there.size and mtime is not None and mtime == there.attributes.get("mtime")
