"""`BucketRemote`: a bucket, or a prefix in one, as a `Remote`; its agent face `ObjectStoreBackend`, and the seeds' name
for one in S3, `S3Backend`.

`bucket/object_keys.py` maps keys to names, `Stamp`s are object metadata, an `Upload` stores an object, and `rename.py`
moves it.

An upload that seems to fail may have arrived, its answer lost. Its name is remembered (each has one of its own, in the
object's attributes): a later put of the same file that finds the object of such an upload replaces it.
"""

from __future__ import annotations

import datetime
import errno
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from fusebackend.backends.object_store import opening
from fusebackend.backends.object_store.bucket import object_keys
from fusebackend.backends.object_store.bucket.errors import errno_of, object_errors, patiently
from fusebackend.backends.object_store.bucket.object_keys import MARKER, info_of
from fusebackend.backends.object_store.bucket.requests import COPY_BYTES, Bucket, Object, ObjectVersion, S3Extras
from fusebackend.backends.object_store.rename import Moves
from fusebackend.base.errors import oserror
from fusebackend.base.recent import Recent
from fusebackend.protocol import DEFAULT_TTL_S
from fusebackend.protocol.remote import Abilities, Bytes, Contents, Etag, Head, Info, Reader, Remote, Stamp, begins_with
from fusebackend.remote.backend import RemoteBackend
from fusebackend.remote.buffer import MEMORY_BYTES, Buffer
from fusebackend.remote.entry import DIRECTORY_MODE, FILE_MODE
from fusebackend.remote.keyed import FILE_MARK
from fusebackend.remote.parallel import each
from fusebackend.remote.ranges import CACHE_BYTES, WHOLE_BYTES, BlockCache, Pace, RangedReader
from fusebackend.remote.volume import RemoteVolume

if TYPE_CHECKING:
    from obstore import GetResult, PutMode
    from obstore.store import ObjectStore

# -- put ---------------------------------------------------------------------------------------------------------
#
# `Upload`: how the bytes of a file become an object.
#
# It promises:
#
# - The object is replaced at once or not at all, and only if the condition holds at that moment; a condition that does
#   not hold is ESTALE, and nothing was changed.
# - An answer that was lost (time-out, broken connection, a repeated request that met its own first try) is not guessed:
#   every upload carries a name of its own (`UPLOAD_ATTRIBUTE`), and the object that is there says whether it was ours.
# - Beyond `MULTIPART_BYTES` an upload goes in parts, several at once, read from the spill file; it is aborted when one
#   of them fails, so that its parts cost nothing; those of a process that was killed stay until a lifecycle rule of the
#   bucket removes them. In S3 its last request is conditional: nothing is at the key before it, and the service looks
#   at the condition at that moment. obstore can't do that, and neither can Google's XML interface: there, and where the
#   keys of the service are not known to us, a conditional upload is a single request, streamed from the spill file, up
#   to the 5 GiB that the services accept. A larger one goes in obstore's parts, and its condition is checked before the
#   first and after the last of them: a change of the object while those last parts travel is overwritten. It is the
#   only such gap.

log = logging.getLogger(__name__)

MULTIPART_BYTES = 64 << 20
"""An upload that is larger goes in parts, where that is possible."""

SINGLE_BYTES = 5 << 30
"""The most that S3 takes in one request (Azure: 5,000 MiB; Google: 5 TiB)."""

UPLOAD_ATTRIBUTE = "fusebackend-upload"
"""The attribute of an object that names the upload it came from."""

PART_BYTES = 16 << 20
"""A part, until there would be more than `MOST_PARTS` of them."""

MOST_PARTS = 10_000

PARTS_AT_ONCE = 8

_SLOWEST_BYTES_S = 4 << 20
"""A single request may take as long as it would at this speed."""


def part_bytes(size: int) -> int:
    """How large the parts of an object of `size` bytes are; only the last one may be smaller."""
    return max(PART_BYTES, -(-size // MOST_PARTS))


@dataclass(frozen=True)
class Upload:
    """One upload of an object with these attributes, from its sending to the question whether it arrived.

    `create`: only if there is none; `if_match`: only while it has this ETag; `tried`: the names of earlier ones that
    seemed to fail, whose object is replaced whatever the condition; `name`: of the upload, which no other has.
    """

    bucket: Bucket
    key: str
    attributes: Mapping[str, str]
    if_match: str | None = None
    create: bool = False
    tried: Collection[str] = ()
    name: str = field(default_factory=lambda: secrets.token_hex(8))

    def put(self, buffer: Bytes) -> str | None:
        """Make the object of the buffer's bytes; its ETag. OSError: ESTALE for a condition that does not hold, else as
        `object_errors` says."""
        assert not self.create or self.if_match is None, "an object is either created or replaced"
        with object_errors(self.key), buffer.frozen() as data:
            try:
                return self._send(data)
            except (BaseError, OSError) as error:
                there = self._there_after(error)
                found = None if there is None else there.attributes.get(UPLOAD_ATTRIBUTE)
                if there is not None and found == self.name:
                    return there.meta["e_tag"]
                if there is None or found not in self.tried or errno_of(error) != errno.ESTALE:
                    raise
                over = there.meta["e_tag"]
        return replace(self, if_match=over, create=False, tried=()).put(buffer)

    @property
    def _condition(self) -> dict[str, str]:
        """As a parameter of `S3Extras.end_parts`."""
        if self.create:
            return {"IfNoneMatch": "*"}
        return {"IfMatch": self.if_match} if self.if_match is not None else {}

    @property
    def _named(self) -> dict[str, str]:
        """All attributes."""
        return {**self.attributes, UPLOAD_ATTRIBUTE: self.name}

    def _send(self, data: memoryview) -> str | None:
        """Send all of it; the ETag of the new object. Raises obstore's errors."""
        if len(data) > MULTIPART_BYTES and self.bucket.extras is not None:
            return self._send_extra_parts(self.bucket.extras, data)
        if len(data) > (SINGLE_BYTES if self._condition else MULTIPART_BYTES):
            return self._send_parts(data)
        mode: PutMode = "create" if self.create else {"e_tag": self.if_match} if self.if_match else "overwrite"
        store = _patient(self.bucket.store, len(data))
        done = patiently(
            lambda: obstore.put(store, self.key, data, attributes=self._named, mode=mode, use_multipart=False)
        )
        return done["e_tag"]

    def _send_extra_parts(self, extras: S3Extras, data: memoryview) -> str | None:
        """In parts, of which the service makes the object if the condition holds by then."""
        self._check()
        upload = extras.begin_parts(self.key, self._named)
        try:
            size = part_bytes(len(data))
            numbers = range(-(-len(data) // size))

            def send(number: int) -> str:
                return extras.put_part(self.key, upload, number + 1, data[number * size : (number + 1) * size])

            etags = each(send, numbers, PARTS_AT_ONCE)
            self._check()
            return extras.end_parts(self.key, upload, etags, self._condition)
        except BaseException:
            try:
                extras.abort_parts(self.key, upload)
            except OSError as error:
                log.warning("the parts of an upload to %s stay in the bucket: %s", self.key, error)
            raise

    def _send_parts(self, data: memoryview) -> str | None:
        part = part_bytes(len(data))
        self._check()

        def parts() -> Iterator[memoryview]:
            for offset in range(0, len(data), part):
                yield data[offset : offset + part]
            # In a thread of its own: obstore asks for the parts from its own loop, where it can't be called.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self._check).result()  # an error here aborts the upload

        done = obstore.put(
            self.bucket.store, self.key, parts(), attributes=self._named, use_multipart=True, chunk_size=part,
            max_concurrency=PARTS_AT_ONCE,
        )  # fmt: skip
        return done["e_tag"]

    def _check(self) -> None:
        """ESTALE unless the condition holds now."""
        if self._condition:
            there = self.bucket.head(self.key)
            if (None if there is None else there.etag) != self.if_match:
                raise oserror(errno.ESTALE, self.key)

    def _there_after(self, error: BaseException) -> GetResult | None:
        """After an error: the object that is there, if this upload may have arrived all the same.

        A condition that failed may have failed because the same request, sent before, had succeeded. What is there
        decides between that and a conflict: the answer is waited for, and none is an error. ESTALE when the condition
        is lost for good: the object to be replaced is not there.
        """
        if isinstance(error, FileNotFoundError) and self.if_match is not None:
            raise oserror(errno.ESTALE, self.key) from None
        if isinstance(error, FileNotFoundError) or errno_of(error) in _CERTAINLY_NOT:
            return None
        decides = errno_of(error) == errno.ESTALE

        def ask() -> GetResult:
            return obstore.get(self.bucket.store, self.key, options={"head": True})

        try:
            return patiently(ask) if decides else ask()
        except FileNotFoundError:
            return None
        except BaseError as failure:
            if decides and errno_of(failure) not in _CERTAINLY_NOT:
                raise
            return None


_CERTAINLY_NOT = frozenset({errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.ENAMETOOLONG, errno.EFBIG})
"""Errors of requests that the service has refused, whatever became of others before."""


def _patient(store: ObjectStore, size: int) -> ObjectStore:
    """The same store with time for a request of `size` bytes: obstore's limit (30 s) is for all of a request."""
    this: Any = store
    if size <= MULTIPART_BYTES or getattr(this, "client_options", None) is None:
        return store
    limit = datetime.timedelta(seconds=30 + size // _SLOWEST_BYTES_S)
    patient: ObjectStore = type(this)(
        config=this.config,
        client_options={**this.client_options, "timeout": limit},
        prefix=this.prefix,
        retry_config=this.retry_config,
        credential_provider=this.credential_provider,
    )
    return patient


# -- metadata ----------------------------------------------------------------------------------------------------
#
# Modes, owners and times as object metadata: `x-amz-meta-mode`, `-uid`, `-gid` and `-mtime`.
#
# The names and forms are those of s3fs-fuse: the mode is `st_mode` in decimal digits with the type in it, a symbolic
# link's target is its content, and the time is in seconds since the epoch with nine decimals, as rclone writes and
# reads it. A missing or malformed attribute has a default: a regular file, 0644 (0755 for a directory), the user and
# the group of the server, and the time at which the store says that the object was put. A mode that begins with `0` is
# taken for an octal one (rclone). All other metadata, and attributes such as `Content-Type`, are carried along when an
# object is put again.

OURS = ("mode", "uid", "gid", "mtime", UPLOAD_ATTRIBUTE)

_DIGITS = re.compile(r"[0-9]{1,10}")
_MODE = re.compile(r"0[0-7]{0,9}|[1-9][0-9]{0,9}")
_SECONDS = re.compile(r"(-?[0-9]{1,11})(?:\.([0-9]+))?")
_BILLION = 1_000_000_000


def stamp_of(attributes: Mapping[str, str], modified_ns: int, *, is_dir: bool, is_shown: bool = True) -> Stamp:
    """The stamp of an object, with defaults. Without `is_shown` these alone; all attributes are only carried along."""
    if not is_shown:
        extra = {name: value for name, value in attributes.items() if name not in (UPLOAD_ATTRIBUTE, "mtime")}
        return stamp_of({}, modified_ns, is_dir=is_dir)._replace(extra=extra)
    mode = _mode(attributes.get("mode", ""), is_dir)
    uid, gid = (_number(attributes.get(word, "")) for word in ("uid", "gid"))
    mtime_ns = _time_ns(attributes.get("mtime", ""))
    return Stamp(
        mode,
        os.geteuid() if uid is None else uid,
        os.getegid() if gid is None else gid,
        modified_ns if mtime_ns is None else mtime_ns,
        {name: value for name, value in attributes.items() if name not in OURS},
    )


def attributes_of(stamp: Stamp) -> dict[str, str]:
    """The attributes of an object with this stamp."""
    ours = {"mode": str(stamp.mode), "uid": str(stamp.uid), "gid": str(stamp.gid), "mtime": _seconds(stamp.mtime_ns)}
    return {**ours, **stamp.extra}


def _mode(text: str, is_dir: bool) -> int:
    if not _MODE.fullmatch(text):
        return DIRECTORY_MODE if is_dir else FILE_MODE
    mode = int(text, 8 if text.startswith("0") else 10)
    if is_dir:
        return stat.S_IFDIR | stat.S_IMODE(mode)
    return (stat.S_IFLNK if stat.S_ISLNK(mode) else stat.S_IFREG) | stat.S_IMODE(mode)


def _number(text: str) -> int | None:
    number = int(text) if _DIGITS.fullmatch(text) else -1
    return number if 0 <= number < 0xFFFFFFFF else None


def _time_ns(text: str) -> int | None:
    found = _SECONDS.fullmatch(text)
    if found is None:
        return None
    fraction = int((found[2] or "").ljust(9, "0")[:9])
    return int(found[1]) * _BILLION + (-fraction if text.startswith("-") else fraction)


def _seconds(time_ns: int) -> str:
    seconds, fraction = divmod(abs(time_ns), _BILLION)
    return f"{'-' if time_ns < 0 else ''}{seconds}.{fraction:09}"


# -- the bucket --------------------------------------------------------------------------------------------------

PACE = Pace(part_bytes=4 << 20, window_bytes=64 << 20, threads=64)
"""64 MiB every 50 ms are more than the network of one host. 1 GiB from SeaweedFS on the same machine took 2.0 s in
requests of 4 MiB, of 8 MiB each 2.1, of 2 MiB each 2.5."""

TRIED = 16
"""So many uploads that failed are remembered for a key, …"""

TRIED_KEYS = 1024
"""… and for so many keys; the oldest go first."""


class BucketRemote(Remote):
    """See the module's docstring.

    Args:
        store: an obstore store; its prefix is where the tree begins.
        extras: does what obstore can't; None where there is no other way.
        cache_bytes: so many bytes of objects that were read stay in memory.
        attributes: modes, owners, times and links are those that are stored with objects.

    Raises:
        OSError: ENOTSUP for a `LocalStore`: each put would be refused, for every object has the name of its upload.
    """

    name = "bucket"
    at_once = frozenset({"write", "flush", "setattr", "release"})
    abilities = Abilities(
        ranges=True,
        exact_sizes=True,
        keeps_attributes=True,
        keeps_directories=True,
        flat_keys=True,
        concurrent=True,
        durable=True,
    )

    def __init__(
        self, store: Any, extras: S3Extras | None = None, cache_bytes: int = CACHE_BYTES, attributes: bool = True
    ) -> None:
        if isinstance(store, LocalStore):
            raise OSError(
                errno.ENOTSUP, "a LocalStore keeps no attributes, which every upload has; use FilesystemBackend"
            )
        self.abilities = replace(self.abilities, keeps_attributes=attributes)
        self.bucket = Bucket(store, extras)
        self.byte_cache = BlockCache(cache_bytes, PACE)
        self._moves = Moves(self.bucket)
        self._tried: Recent[str, tuple[str, ...]] = Recent(TRIED_KEYS)
        self._moves.recover()

    # -- names -------------------------------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        return self.bucket.contents(directory)

    def find(self, directory: str, segment: str) -> tuple[Info, Head | None] | None:
        key = directory + segment
        if not self.bucket.is_empty(key + "/"):
            return Info(segment, is_dir=True), None
        found = self.bucket.head(key)
        if found is None:
            return None
        return info_of(segment, found.size, found.etag, found.modified_ns), self._head(found, is_dir=False)

    def has(self, key: str) -> bool:
        return not self.bucket.is_empty(key) if key.endswith("/") else self.bucket.head(key) is not None

    def holds_only(self, directory: str) -> bool:
        return self.bucket.is_empty(directory, frozenset([directory + MARKER]))

    def admit(self, name: bytes, directory: str, *, is_dir: bool) -> str:
        return object_keys.new_segment(name, directory)

    def segment(self, name: bytes) -> str | None:
        # SeaweedFS takes a backslash for a slash: only a listing tells what there is.
        return None if name.endswith(FILE_MARK) or b"\\" in name else object_keys.segment_of(name)

    def make_directory(self, directory: str, stamp: Stamp, *, replace: bool) -> Etag | None:
        return self.bucket.put_small(directory + MARKER, b"", attributes_of(stamp), not replace)

    def delete(self, key: str) -> None:
        if key.endswith("/"):
            self.bucket.delete_directory(key)
        else:
            self.bucket.delete(key)
            self._tried.pop(key, None)

    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        if old.endswith("/"):
            self._moves.directory(old, new, copied)
        else:
            self._moves.file(old, new, _text(etag), _text(replaced[0]) if replaced is not None else None, copied)
        return ()

    # -- files -------------------------------------------------------------------------------------------------

    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        etag = _text(known)
        if etag is None or not 0 < fetch_bytes <= WHOLE_BYTES or self.byte_cache.has(key, etag, 0):
            found = self.bucket.head(key)
            return None if found is None else self._head(found, is_dir=False)
        fetched = self.bucket.fetch(key, WHOLE_BYTES)
        if fetched is None:
            return None
        found, content = fetched
        if content is not None and found.etag is not None:
            self.byte_cache.put_whole(key, found.etag, content)
        return self._head(found, is_dir=False)

    def _head(self, found: Object, *, is_dir: bool) -> Head:
        is_shown = self.abilities.keeps_attributes
        stamp = stamp_of(found.attributes, found.modified_ns, is_dir=is_dir, is_shown=is_shown)
        return Head(found.size, found.etag, (found.etag, found.modified_ns), found.modified_ns, stamp)

    def heads(self, wanted: Iterable[tuple[str, int]]) -> Sequence[Head | OSError | None]:
        def ask(key: str) -> Head | None:
            is_dir = not key or key.endswith("/")
            found = self.bucket.head(key + MARKER if is_dir else key)
            return None if found is None else self._head(found, is_dir=is_dir)

        return each(ask, [key for key, _ in wanted])

    def reader(self, key: str, etag: Etag | None, size: int) -> Reader:
        version = ObjectVersion(self.bucket.store, key, _text(etag))
        return RangedReader(key, version, etag=version.etag, size=size, cache=self.byte_cache)

    def load(self, key: str, etag: Etag | None) -> Iterable[bytes]:
        return self.bucket.pieces(key, _text(etag))

    def put(self, key: str, data: Bytes, stamp: Stamp, *, over: Etag | None, create: bool) -> Etag | None:
        tried = self._tried.get(key, ())
        upload = Upload(self.bucket, key, attributes_of(stamp), _text(over), create, tried)
        try:
            etag = upload.put(data)
        except OSError as error:
            if error.errno != errno.ESTALE:
                self._tried[key] = (*tried[1 - TRIED :], upload.name)
            raise
        self._tried.pop(key, None)
        if etag is not None and 0 < data.size <= MEMORY_BYTES:  # a file that was written is often read next
            self.byte_cache.put_whole(key, etag, data.read(0, data.size))
        return etag

    def same(self, key: str, data: Bytes, stamp: Stamp) -> Etag | None:
        found = self.bucket.head(key)
        mtime = attributes_of(stamp)["mtime"]
        if found is None or found.size != data.size or found.attributes.get("mtime") != mtime:
            return None
        return found.etag if begins_with(data, self.bucket.pieces(key, found.etag)) else None

    def restamp(self, key: str, etag: Etag | None, size: int, stamp: Stamp) -> Etag | None:
        extras, written = self.bucket.extras, attributes_of(stamp)
        if extras is not None and size <= COPY_BYTES:
            return extras.restamp(key, _text(etag), written)
        with closing(Buffer.of(self.bucket.pieces(key, _text(etag)))) as buffer:
            return Upload(self.bucket, key, written, _text(etag)).put(buffer)

    # -- life --------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        return self._moves.unfinished

    def finish(self) -> None:
        self._moves.finish()

    def close(self) -> None:
        self._moves.close()
        self.byte_cache.close()
        if self.bucket.extras is not None:
            self.bucket.extras.close()


def _text(etag: Etag | None) -> str | None:
    assert not isinstance(etag, bytes), "a bucket's ETags are text"
    return etag


# -- the agent face ----------------------------------------------------------------------------------------------

CONNECT_S = 5
REQUEST_S = 60
"""How long one request may take."""

RETRIES = 3
RETRY_S = 15
"""obstore repeats what failed, where that is safe, for so long."""


class ObjectStoreBackend(RemoteBackend):
    """Plain objects as files. See `BucketRemote` for what is kept, and SEMANTICS.md for what is promised.

    Args:
        store: an obstore store (`obstore.store.S3Store`, `GCSStore`, `AzureStore`, `MemoryStore` …). Its prefix is
            where the tree begins.
        ttl: seconds for which a listing is believed.
        cache_mb: so many MiB of objects that were read stay in memory.
        on_exists: see `VolumeBackend`.
        attributes: "off": modes, owners, times and links that are stored with objects are neither read nor shown, which
            saves a request for each file that is looked at.
        extras: what the service can do beyond obstore, see `S3Extras`.
        clock: seconds that only grow, by which listings age.
    """

    schemes: ClassVar = {name: opening.SCHEMES[name] for name in ("gs", "az")}

    def __init__(
        self,
        store: Any,
        *,
        ttl: float = DEFAULT_TTL_S,
        cache_mb: int = CACHE_BYTES >> 20,
        on_exists: Literal["error", "replace"] = "error",
        attributes: Literal["on", "off"] = "on",
        extras: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        remote = BucketRemote(store, extras, cache_mb << 20, attributes == "on")
        super().__init__(RemoteVolume(remote, ttl_s=ttl, clock=clock), on_exists=on_exists)
        prefix = getattr(store, "prefix", None)
        self._shown = f"{type(store).__name__} {prefix}" if prefix else type(store).__name__


def connection(endpoint: str = "") -> dict[str, Any]:
    """How a store of obstore speaks to its service."""
    return {
        "client_options": {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": datetime.timedelta(seconds=CONNECT_S),
            "timeout": datetime.timedelta(seconds=REQUEST_S),
        },
        "retry_config": {"max_retries": RETRIES, "retry_timeout": datetime.timedelta(seconds=RETRY_S)},
    }


class S3Backend(ObjectStoreBackend):
    """The seeds' class: a bucket in S3, or the keys of it that begin with `prefix` and a slash.

    Args:
        bucket: its name.
        prefix: the directory in it that is the root.
        region: where it is; None: as the environment says.
        endpoint, access_key_id, secret_access_key, session_token: of the service; what is not given is taken from the
            environment, in the words of AWS's own programs.
        options: `ttl`, `cache_mb`, `attributes` and `on_exists` as for `ObjectStoreBackend`.
    """

    schemes: ClassVar = {"s3": opening.SCHEMES["s3"]}

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        region: str | None = "us-east-1",
        *,
        endpoint: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        **options: Any,
    ) -> None:
        known = os.environ.get
        place = prefix.strip("/")
        if access_key_id is None and secret_access_key is None:
            access_key_id, secret_access_key = known("AWS_ACCESS_KEY_ID"), known("AWS_SECRET_ACCESS_KEY")
            session_token = session_token or known("AWS_SESSION_TOKEN")
        region = region or known("AWS_REGION") or known("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = endpoint or known("AWS_ENDPOINT_URL_S3") or known("AWS_ENDPOINT_URL")
        given = {
            "endpoint": endpoint,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
        }
        words: dict[str, Any] = {word: value for word, value in given.items() if value}
        store = S3Store(bucket, prefix=place or None, region=region, **connection(endpoint or ""), **words)
        extras = None
        if access_key_id and secret_access_key:
            credentials = (access_key_id, secret_access_key, session_token)
            url = endpoint or f"https://s3.{region}.amazonaws.com"
            extras = S3Extras(url, region, credentials, bucket, place)
        super().__init__(store, extras=extras, **options)
        self._shown = f"s3://{bucket}/{prefix}".rstrip("/")
