"""`WriteBuffer`, the bytes of a file while it is written, and `put`, which makes them an object.

What is promised of `put`:

- The object is replaced at once or not at all, and only if the condition holds at that moment; a condition that does
  not hold is ESTALE, and nothing was changed.
- An answer that was lost (time-out, broken connection, a repeated request that met its own first try) is not guessed:
  every upload carries a name of its own (`UPLOAD_ATTRIBUTE`), and the object that is there says whether it was ours.
- Beyond `MULTIPART_BYTES` an upload goes in parts, several at once, read from the spill file; it is aborted when one
  of them fails. In S3 its last request is conditional (`bucket/multipart.py`). obstore can't do that, and neither can
  Google's XML interface: there, and where the keys of the service are not known to us, a conditional upload is a single
  request, streamed from the spill file, up to the 5 GiB that the services accept. What is larger goes in obstore's
  parts, and its condition is looked at before the first and after the last of them was read: who changes the object
  while those last parts travel is overwritten. It is the only such gap.
"""

from __future__ import annotations

import errno
import mmap
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from fusebackend.backends.object_store.bucket.errors import errno_of, object_errors
from fusebackend.backends.object_store.bucket.multipart import PARTS_AT_ONCE, part_bytes, send_in_parts
from fusebackend.base.errors import oserror
from fusebackend.remote.buffer import MEMORY_BYTES, Buffer

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ObjectStore

    from fusebackend.backends.object_store.bucket.s3_extras import S3Extras

MULTIPART_BYTES = 64 << 20
"""An upload that is larger goes in parts, where that is possible."""

SINGLE_BYTES = 5 << 30
"""The most that S3 takes in one request (Azure: 5,000 MiB; Google: 5 TiB)."""

UPLOAD_ATTRIBUTE = "fusebackend-upload"
"""The attribute of an object that names the upload it came from."""

_SLOWEST_BYTES_S = 4 << 20
"""A single request may take as long as it would at this speed."""


class PutResult(NamedTuple):
    etag: str | None
    size: int


class WriteBuffer(Buffer):
    """A `Buffer` for several threads: in memory up to `spill_bytes`, then in an unnamed, sparse temporary file.

    Who writes while it is uploaded waits for the end of that.
    """

    def __init__(self, spill_bytes: int = MEMORY_BYTES) -> None:
        self._lock = threading.RLock()
        super().__init__(spill_bytes=spill_bytes)

    def read(self, offset: int, size: int) -> bytes:
        with self._lock:
            return super().read(offset, size)

    def write(self, offset: int, data: bytes) -> None:
        with self._lock:
            super().write(offset, data)

    def resize(self, size: int) -> None:
        with self._lock:
            super().resize(size)

    truncate = resize

    def close(self) -> None:
        with self._lock:
            super().close()

    @contextmanager
    def frozen(self) -> Iterator[memoryview]:
        """All the bytes, without a copy in memory, and nobody may change them meanwhile.

        That is for safety too: a mapped file that is cut short kills the process that reads it.
        """
        with self._lock:
            if self._file is None or not self.size:
                yield memoryview(bytes(self._memory))
                return
            mapped = mmap.mmap(self._file.fileno(), self.size, prot=mmap.PROT_READ)
            view = memoryview(mapped)
            try:
                yield view
            finally:
                try:
                    view.release()
                    mapped.close()
                except BufferError:  # a store in memory keeps the view itself; a request may not quite have ended
                    self._leave_file()

    def _leave_file(self) -> None:
        """Go on with a copy of the file: it is still mapped, and so may never change."""
        assert self._file is not None
        copy = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
        try:
            self._file.seek(0)
            shutil.copyfileobj(self._file, copy, MULTIPART_BYTES)
        except BaseException:
            copy.close()
            raise
        self._file.close()
        self._file = copy


def new_name() -> str:
    """A name for one upload."""
    return secrets.token_hex(8)


def put(
    store: ObjectStore,
    key: str,
    buffer: WriteBuffer,
    *,
    if_match: str | None = None,
    create: bool = False,
    attributes: Mapping[str, str] | None = None,
    extras: S3Extras | None = None,
    name: str | None = None,
) -> PutResult:
    """Make the object `key` of the buffer's bytes, with these attributes.

    `create`: only if there is none; `if_match`: only while it has this ETag; `extras`: of the same store, if there are
    any; `name`: of the upload, which no other has. OSError: ESTALE for a condition that does not hold, else as
    `object_errors` says.
    """
    from obstore.exceptions import BaseError

    if create and if_match is not None:
        raise ValueError("an object is either created or replaced: not both `create` and `if_match`")
    upload = _Upload(store, key, if_match, create, dict(attributes or {}), extras, name or new_name())
    with object_errors(key), buffer.frozen() as data:
        try:
            etag = upload.send(data)
        except (BaseError, OSError) as error:
            arrived = upload.look(error, len(data))
            if arrived is None:
                raise
            return arrived
        return PutResult(etag, len(data))


class _Upload:
    """One upload, from its sending to the question whether it arrived."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        if_match: str | None,
        create: bool,
        attributes: dict[str, str],
        extras: S3Extras | None,
        name: str,
    ) -> None:
        self._store = store
        self._key = key
        self._if_match = if_match
        self._create = create
        self._name = name
        self._attributes = {**attributes, UPLOAD_ATTRIBUTE: self._name} if _keeps_attributes(store) else None
        self._extras = extras

    @property
    def _conditional(self) -> bool:
        return self._create or self._if_match is not None

    @property
    def _condition(self) -> dict[str, str]:
        """As a parameter of `S3Extras.end_parts`."""
        if self._create:
            return {"IfNoneMatch": "*"}
        return {"IfMatch": self._if_match} if self._if_match is not None else {}

    def send(self, data: memoryview) -> str | None:
        """Send all of it; the ETag of the new object. Raises obstore's errors."""
        import obstore

        if len(data) > MULTIPART_BYTES and self._extras is not None:
            self._check()
            attributes = self._attributes or {}
            return send_in_parts(self._extras, self._key, data, attributes, self._condition, self._check)
        if len(data) > (SINGLE_BYTES if self._conditional else MULTIPART_BYTES):
            return self._send_parts(data)
        mode: PutMode = "create" if self._create else {"e_tag": self._if_match} if self._if_match else "overwrite"
        store = _patient(self._store, len(data))
        done = obstore.put(store, self._key, data, attributes=self._attributes, mode=mode, use_multipart=False)
        return done["e_tag"]

    def _send_parts(self, data: memoryview) -> str | None:
        import obstore

        part = part_bytes(len(data))
        self._check()

        def parts() -> Iterator[memoryview]:
            for offset in range(0, len(data), part):
                yield data[offset : offset + part]
            # In a thread of its own: obstore asks for the parts from its own loop, where it can't be called.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self._check).result()  # an error here aborts the upload

        done = obstore.put(
            self._store, self._key, parts(), attributes=self._attributes, use_multipart=True, chunk_size=part,
            max_concurrency=PARTS_AT_ONCE,
        )  # fmt: skip
        return done["e_tag"]

    def _check(self) -> None:
        """ESTALE unless the condition holds now."""
        if self._conditional and self._there() != self._if_match:
            raise oserror(errno.ESTALE, self._key)

    def _there(self) -> str | None:
        """The ETag of the object that is there."""
        import obstore

        try:
            return obstore.head(self._store, self._key)["e_tag"]
        except FileNotFoundError:
            return None

    def look(self, error: BaseException, size: int) -> PutResult | None:
        """After an error: what was stored if this upload has arrived all the same, or None.

        A condition that failed may have failed because the same request, sent before, had succeeded. ESTALE instead of
        None when the condition is lost for good: the object to be replaced is not there.
        """
        import obstore
        from obstore.exceptions import BaseError

        if isinstance(error, FileNotFoundError):
            if self._if_match is not None:
                raise oserror(errno.ESTALE, self._key) from None
            return None
        if errno_of(error) in _CERTAINLY_NOT or self._attributes is None:
            return None
        try:
            there = obstore.get(self._store, self._key, options={"head": True})
        except (BaseError, FileNotFoundError):
            return None
        if there.attributes.get(UPLOAD_ATTRIBUTE) != self._name or there.meta["size"] != size:
            return None
        return PutResult(there.meta["e_tag"], size)


_CERTAINLY_NOT = frozenset({errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.ENAMETOOLONG, errno.EFBIG})
"""Errors of requests that the service has refused, whatever became of others before."""


def _keeps_attributes(store: ObjectStore) -> bool:
    """Whether objects of this store can have attributes: a local directory, as obstore has it, can't."""
    from obstore.store import LocalStore

    return not isinstance(store, LocalStore)


def _patient(store: ObjectStore, size: int) -> ObjectStore:
    """The same store with time for a request of `size` bytes: obstore's limit (30 s) is for all of a request."""
    this: Any = store
    if size <= MULTIPART_BYTES or getattr(this, "client_options", None) is None:
        return store
    limit = timedelta(seconds=30 + size // _SLOWEST_BYTES_S)
    patient: ObjectStore = type(this)(
        config=this.config,
        client_options={**this.client_options, "timeout": limit},
        prefix=this.prefix,
        retry_config=this.retry_config,
        credential_provider=this.credential_provider,
    )
    return patient
