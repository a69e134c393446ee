"""`send_in_parts`: a large object in parts, several at once, and made an object by one last request on a condition.

Nothing is at the key before that request, and the condition is looked at by the service at that moment (S3 takes
`If-Match` and `If-None-Match` there). After an error the upload is aborted, so that nobody pays for its parts; those of
a process that was killed stay until a lifecycle rule of the bucket removes them.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Mapping

from fusebackend.backends.object_store.bucket.parallel import each
from fusebackend.backends.object_store.bucket.s3_extras import S3Extras

log = logging.getLogger(__name__)

PART_BYTES = 16 << 20
"""A part, until there would be more than `MOST_PARTS` of them."""

MOST_PARTS = 10_000

PARTS_AT_ONCE = 8

ATTEMPTS = 3
"""How often a part is sent: one that comes twice has the same number, and the second takes the place of the first."""

PAUSE_S = 0.5
"""Before the second attempt, at most; doubled for the third."""

ANSWERS = frozenset({
    errno.EACCES, errno.EFBIG, errno.EINVAL, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOSPC, errno.ENOTSUP,
    errno.ESTALE,
})  # fmt: skip
"""Errors that are as good as an answer: asking again would give the same."""


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
        before_last: called before it; what it raises ends the upload.

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
    for number in range(ATTEMPTS - 1):
        try:
            return send()
        except OSError as error:
            if error.errno in ANSWERS:
                raise
        time.sleep(random.uniform(0.5, 1) * PAUSE_S * 2**number)
    return send()
