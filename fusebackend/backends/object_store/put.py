"""`put`: how the bytes of a file become an object.

`put` promises:

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
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fusebackend.backends.object_store.bucket.errors import PATIENCE_S, errno_of, object_errors, patiently
from fusebackend.base import jitter
from fusebackend.base.errors import oserror
from fusebackend.protocol.remote import Bytes
from fusebackend.remote.parallel import each

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import ObjectStore

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

ATTEMPTS = 3
"""How often a part is sent. A part that arrives twice has the same number, and the second replaces the first."""

PAUSE_S = 0.5
"""Before the second attempt, at most; doubled for the third."""

ANSWERS = frozenset({
    errno.EACCES, errno.EFBIG, errno.EINVAL, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOSPC, errno.ENOTSUP,
    errno.ESTALE,
})  # fmt: skip
"""Errors that are as good as an answer: asking again would give the same."""

_SLOWEST_BYTES_S = 4 << 20
"""A single request may take as long as it would at this speed."""


def new_name() -> str:
    """A name for one upload."""
    return secrets.token_hex(8)


def put(
    store: ObjectStore,
    key: str,
    buffer: Bytes,
    *,
    if_match: str | None = None,
    create: bool = False,
    attributes: Mapping[str, str] | None = None,
    extras: S3Extras | None = None,
    name: str | None = None,
) -> str | None:
    """Make the object `key` of the buffer's bytes, with these attributes; its ETag.

    `create`: only if there is none; `if_match`: only while it has this ETag; `extras`: of the same store, if there are
    any; `name`: of the upload, which no other has. OSError: ESTALE for a condition that does not hold, else as
    `object_errors` says.
    """
    from obstore.exceptions import BaseError

    if create and if_match is not None:
        raise ValueError("an object is either created or replaced: not both `create` and `if_match`")
    upload = _ObjectUpload(store, key, if_match, create, dict(attributes or {}), extras, name or new_name())
    with object_errors(key), buffer.frozen() as data:
        try:
            return upload.send(data)
        except (BaseError, OSError) as error:
            arrived = upload.look(error, len(data))
            if arrived is None:
                raise
            etag: str | None = arrived["e_tag"]
            return etag


def part_bytes(size: int) -> int:
    """How large the parts of an object of `size` bytes are; only the last one may be smaller."""
    return max(PART_BYTES, -(-size // MOST_PARTS))


def send_in_parts(
    extras: S3Extras,
    key: str,
    data: memoryview,
    attributes: Mapping[str, str],
    condition: Mapping[str, str],
    before_last: Callable[[], None],
) -> str | None:
    """Make the object `key` of these bytes; its ETag.

    Args:
        extras: the requests.
        key: as `S3Extras` has it.
        data: more than nothing.
        attributes: of the object.
        condition: of the last request, see `S3Extras.end_parts`.
        before_last: called before it; an exception of it ends the upload.

    Raises:
        OSError: ESTALE when the condition does not hold.
    """
    upload = extras.begin_parts(key, attributes)
    try:
        size = part_bytes(len(data))
        numbers = range(-(-len(data) // size))

        def send(number: int) -> str:
            return _sent(lambda: extras.put_part(key, upload, number + 1, data[number * size : (number + 1) * size]))

        etags = each(send, numbers, PARTS_AT_ONCE)
        before_last()
        return extras.end_parts(key, upload, etags, condition)
    except BaseException:
        try:
            extras.abort_parts(key, upload)
        except OSError as error:
            log.warning("the parts of an upload to %s stay in the bucket: %s", key, error)
        raise


def _sent(send: Callable[[], str]) -> str:
    began = time.monotonic()
    for number in range(ATTEMPTS - 1):
        try:
            return send()
        except OSError as error:
            if error.errno in ANSWERS or time.monotonic() - began > PATIENCE_S:
                raise
        time.sleep(jitter.between(0.5, 1) * PAUSE_S * 2**number)
    return send()


class _ObjectUpload:
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
        if len(data) > (SINGLE_BYTES if self._condition else MULTIPART_BYTES):
            return self._send_parts(data)
        mode: PutMode = "create" if self._create else {"e_tag": self._if_match} if self._if_match else "overwrite"
        store = _patient(self._store, len(data))
        done = patiently(
            lambda: obstore.put(store, self._key, data, attributes=self._attributes, mode=mode, use_multipart=False)
        )
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
        if self._condition and self._there() != self._if_match:
            raise oserror(errno.ESTALE, self._key)

    def _there(self) -> str | None:
        """The ETag of the object that is there."""
        import obstore

        try:
            return patiently(lambda: obstore.head(self._store, self._key))["e_tag"]
        except FileNotFoundError:
            return None

    def look(self, error: BaseException, size: int) -> ObjectMeta | None:
        """After an error: the object if this upload has arrived all the same, or None.

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
        return there.meta


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
