"""`Moves`: a rename in a bucket is a copy and a deletion, with a record in the journal from before until after.

A file is copied over its target at once, and deleted when the copy has been looked at; a directory is copied object by
object, and deleted when all of them are there. A failure before the first deletion takes the copies back; after it, and
after a crash, the rename is carried on: by this process before its next rename and at `sync`, else by the next process
that opens the volume. Objects that others have put in either place meanwhile stay.

A change of the source by others between its copy and its deletion is lost: no store can delete on a condition. There is
none in this process, for a directory moves alone, and a file with its lock held.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeVar

from fusebackend.backends.object_store.bucket.object_keys import JOURNAL, MARKER
from fusebackend.backends.object_store.bucket.requests import Bucket, Object
from fusebackend.linux import proc

T = TypeVar("T")

log = logging.getLogger(__name__)

BATCH = 256
"""So many objects are copied or deleted before the record is renewed, if it is time."""

RECORD_BYTES = 1 << 16
"""More than two keys and what names a process."""

STALE_S = 300.0

RENEW_S = 60.0
"""How often a long rename renews its record in the journal, so that no other server takes it for dead."""

_living: set[str] = set()
"""The sessions of this process."""


@dataclass(frozen=True)
class Record:
    """One rename. Keys of directories end with `/`."""

    source: str
    destination: str
    etag: str | None
    """The version that is moved, of a file."""
    replaced: str | None
    """The version that was at the destination, if there was one."""
    host: str
    pid: int
    session: str

    @property
    def is_dir(self) -> bool:
        return self.source.endswith("/")


def _host() -> str:
    """This start of this machine, as processes that see each other's numbers see it."""
    try:
        return f"{proc.boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{os.uname().nodename} ?"


class Moves:
    """See the module's docstring.

    A record is written before the first copy and deleted after the last deletion. It names the process: one of this
    start of this machine, in this pid namespace, can be seen to be dead; one elsewhere is taken for dead when its
    record has not been renewed for `STALE_S`, by the store's own clock.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._session = secrets.token_hex(8)
        _living.add(self._session)
        self._left: dict[str, Record] = {}  # ours that have failed half-way
        self._left_guard = threading.Lock()

    def file(self, old: str, new: str, etag: str | None, replaced: str | None, copied: Callable[[], None]) -> None:
        """Move an object; `copied` looks at the copy, and raises an OSError for a wrong one."""
        with self._recorded(old, new, etag, replaced) as (key, _):
            self._bucket.copy(old, new)
            copied()
            self._bucket.delete(old)
        try:
            self._end(key)
        except OSError as error:  # the rename is done: to carry it on does nothing
            log.warning("the record of a rename stays: %s", error)

    def directory(self, old: str, new: str, copied: Callable[[], None]) -> None:
        """Move all objects below a prefix; `copied` as in `file`."""
        with self._recorded(old, new, None, None) as (key, record):
            pairs = [(source, copy) for source, copy, _, _ in self._pairs(record)]
            failed: OSError | None = None
            try:
                self._in_batches(self._bucket.copy_all, pairs, key, record)
                copied()
            except OSError as error:
                failed = error
            if failed is None:
                # The record goes with the last of them, as the last.
                self._in_batches(self._bucket.delete_all, [*(source for source, _ in pairs), key], key, record)
            else:
                self._in_batches(self._bucket.delete_all, [copy for _, copy in pairs], key, record)
                self._end(key)  # not with them: a store may delete side by side
        if failed is not None:
            raise failed

    def _pairs(self, record: Record) -> list[tuple[str, str, int, str | None]]:
        """Each object below a directory: its key, the one it is to have, its size and ETag."""
        start = len(record.source)
        return [
            (key, record.destination + key[start:], size, etag)
            for key, size, etag in self._bucket.keys_below(record.source)
        ]

    def _in_batches(self, request: Callable[[list[T]], None], items: list[T], key: str, record: Record) -> None:
        renewed = time.monotonic()
        for start in range(0, len(items), BATCH):
            if time.monotonic() - renewed > RENEW_S:
                self._write(key, record)
                renewed = time.monotonic()
            request(items[start : start + BATCH])

    @contextlib.contextmanager
    def _recorded(
        self, source: str, destination: str, etag: str | None, replaced: str | None
    ) -> Iterator[tuple[str, Record]]:
        key, record = self._begin(source, destination, etag, replaced)
        try:
            yield key, record
        except BaseException as error:
            with self._left_guard:
                self._left[key] = record
            if isinstance(error, OSError):  # the record may have gone before what could not be deleted
                with contextlib.suppress(OSError):
                    self._write(key, record)
            raise

    # -- the journal -------------------------------------------------------------------------------------------

    def _begin(self, source: str, destination: str, etag: str | None, replaced: str | None) -> tuple[str, Record]:
        """Write a record; its key and its content."""
        record = Record(source, destination, etag, replaced, _host(), os.getpid(), self._session)
        key = f"{JOURNAL}/{secrets.token_hex(12)}"
        self._write(key, record)
        return key, record

    def _write(self, key: str, record: Record) -> None:
        self._bucket.put_small(key, json.dumps(asdict(record)).encode(), {"Content-Type": "application/json"})

    def _end(self, key: str) -> None:
        self._bucket.delete(key)

    def _abandoned(self, key: str) -> Record | None:
        """A record, if it is that of a dead process."""
        fetched = self._bucket.fetch(key, RECORD_BYTES)
        if fetched is None:
            return None  # it has ended
        head, content = fetched
        try:
            record = Record(**json.loads(bytes(content or b"")))
        except (ValueError, TypeError):
            log.error("%s is no record of a rename, and is left alone", key)
            return None
        return record if self._is_dead(record, head.modified_ns) else None

    def _is_dead(self, record: Record, written_ns: int) -> bool:
        if record.host != _host():
            return self._now_ns() - written_ns > STALE_S * 1e9
        if record.pid == os.getpid():
            return record.session not in _living
        try:
            os.kill(record.pid, 0)
        except OSError as error:
            return error.errno == errno.ESRCH
        return False

    def _now_ns(self) -> int:
        """The store's time."""
        key = f"{JOURNAL}/{secrets.token_hex(12)}.time"
        self._bucket.put_small(key, b"{}", {})
        try:
            head = self._bucket.head(key)
        finally:
            self._bucket.delete(key)
        return head.modified_ns if head is not None else 0

    # -- carrying on -------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Carry on the renames of dead processes."""
        for key in [key for key, _, _ in self._bucket.keys_below(JOURNAL + "/")]:
            record = self._abandoned(key)
            if record is not None:
                log.warning("carrying on a rename that was cut short: %s to %s", record.source, record.destination)
                self._carry_on(key, record)

    @property
    def unfinished(self) -> bool:
        return bool(self._left)

    def finish(self) -> None:
        """Carry on the renames that have failed here half-way."""
        with self._left_guard:
            for key, record in list(self._left.items()):
                self._carry_on(key, record)
                del self._left[key]

    def _carry_on(self, key: str, record: Record) -> None:
        if record.is_dir:
            self._carry_directory(key, record)
        else:
            self._carry_file(record)
        self._end(key)

    def _carry_file(self, record: Record) -> None:
        source, there = self._bucket.head(record.source), self._bucket.head(record.destination)
        if source is None:
            return  # it was deleted, so the copy was there
        if there is not None and _is_copy(source, there):
            self._bucket.delete(record.source)
        elif (there.etag if there is not None else None) != record.replaced:
            log.error("%s and %s have both been changed; both stay", record.source, record.destination)

    def _carry_directory(self, key: str, record: Record) -> None:
        there = {found: (size, etag) for found, size, etag in self._bucket.keys_below(record.destination)}
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
        _living.discard(self._session)


def _same(bucket: Bucket, source: str, copy: str) -> bool:
    one, other = bucket.head(source), bucket.head(copy)
    return one is not None and other is not None and _is_copy(one, other)


def _is_copy(source: Object, there: Object) -> bool:
    """A copy may have another ETag (of an object that was put in parts)."""
    mtime = source.attributes.get("mtime")
    has_same_etag = source.etag is not None and source.etag == there.etag
    has_same_time = mtime is not None and mtime == there.attributes.get("mtime")
    return has_same_etag or (source.size == there.size and has_same_time)
