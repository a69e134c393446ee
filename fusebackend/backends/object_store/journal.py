"""`Journal`: the renames that are under way, as objects in the bucket, so that a crash leaves none half done.

A record is written before the first copy and deleted after the last deletion. It says what is moved, and who does it: a
process (of this start of this machine, in this pid namespace) that can be seen to be dead, or one elsewhere, which is
taken for dead when its record has not been renewed for `STALE_S`, by the store's own clock.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
from dataclasses import asdict, dataclass

from fusebackend.backends.object_store.bucket.object_keys import JOURNAL
from fusebackend.backends.object_store.bucket.requests import Bucket

log = logging.getLogger(__name__)

STALE_S = 300.0

RENEW_S = 60.0
"""How often who is at it says so."""

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


class Journal:
    """See the module's docstring. One for each volume."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._session = secrets.token_hex(8)
        _living.add(self._session)

    def begin(self, source: str, destination: str, etag: str | None, replaced: str | None) -> tuple[str, Record]:
        """Write a record; its key and what it says."""
        record = Record(source, destination, etag, replaced, _host(), os.getpid(), self._session)
        key = f"{JOURNAL}/{secrets.token_hex(12)}"
        self.renew(key, record)
        return key, record

    def renew(self, key: str, record: Record) -> None:
        self._bucket.put_small(key, json.dumps(asdict(record)).encode(), {"Content-Type": "application/json"})

    def end(self, key: str) -> None:
        self._bucket.delete(key)

    def abandoned(self) -> list[tuple[str, Record]]:
        """The records whose process is dead."""
        found: list[tuple[str, Record, int]] = []
        for page in self._bucket.keys_below(JOURNAL + "/"):
            for key, _, _ in page:
                record = self._read(key)
                head = self._bucket.head(key) if record is not None else None
                if record is not None and head is not None:
                    found.append((key, record, head.modified_ns))
        return [(key, record) for key, record, written_ns in found if self._is_dead(record, written_ns)]

    def _read(self, key: str) -> Record | None:
        try:
            return Record(**json.loads(self._bucket.get_small(key)))
        except FileNotFoundError:
            return None  # it has ended
        except (ValueError, TypeError):
            log.error("%s is no record of a rename, and is left alone", key)
            return None

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
        """What time it is, for the store."""
        key = f"{JOURNAL}/{secrets.token_hex(12)}.time"
        self._bucket.put_small(key, b"{}", {})
        try:
            head = self._bucket.head(key)
        finally:
            self._bucket.delete(key)
        return head.modified_ns if head is not None else 0

    def close(self) -> None:
        _living.discard(self._session)


def _host() -> str:
    """This start of this machine, as processes that see each other's numbers see it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{os.uname().nodename} ?"
