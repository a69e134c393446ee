"""`Upload`: how the bytes of a file become an object.

It promises:

- The object is replaced at once or not at all, and only if the condition holds at that moment; a condition that does
  not hold is ESTALE, and nothing was changed.
- An answer that was lost (time-out, broken connection, a repeated request that met its own first try) is not guessed:
  every upload carries a name of its own (`UPLOAD_ATTRIBUTE`), and the object that is there says whether it was ours.
- Beyond `MULTIPART_BYTES` an upload goes in parts, several at once, read from the spill file; it is aborted when one
  of them fails, so that its parts cost nothing; those of a process that was killed stay until a lifecycle rule of the
  bucket removes them. In S3 its last request is conditional: nothing is at the key before it, and the service looks at
  the condition at that moment. obstore can't do that, and neither can Google's XML interface: there, and where the keys
  of the service are not known to us, a conditional upload is a single request, streamed from the spill file, up to the
  5 GiB that the services accept. A larger one goes in obstore's parts, and its condition is checked before the first
  and after the last of them: a change of the object while those last parts travel is overwritten. It is the only such
  gap.
"""

from __future__ import annotations

import errno
import logging
import secrets
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fusebackend.backends.object_store.bucket.errors import errno_of, object_errors, patiently
from fusebackend.base.errors import oserror
from fusebackend.protocol.remote import Bytes
from fusebackend.remote.parallel import each

if TYPE_CHECKING:
    from obstore import GetResult, PutMode
    from obstore.store import ObjectStore

    from fusebackend.backends.object_store.bucket.requests import Bucket
    from fusebackend.backends.object_store.bucket.s3_extras import S3Extras

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
        from obstore.exceptions import BaseError

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
        import obstore

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

        A condition that failed may have failed because the same request, sent before, had succeeded. ESTALE when the
        condition is lost for good: the object to be replaced is not there.
        """
        import obstore
        from obstore.exceptions import BaseError

        if isinstance(error, FileNotFoundError) and self.if_match is not None:
            raise oserror(errno.ESTALE, self.key) from None
        if isinstance(error, FileNotFoundError) or errno_of(error) in _CERTAINLY_NOT:
            return None
        try:
            return obstore.get(self.bucket.store, self.key, options={"head": True})
        except (BaseError, FileNotFoundError):
            return None


_CERTAINLY_NOT = frozenset({errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.ENAMETOOLONG, errno.EFBIG})
"""Errors of requests that the service has refused, whatever became of others before."""


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
