"""`object_errors`: what obstore raises, as `OSError` with an errno and one line in the log.

obstore tells the outcomes of a condition apart by type. Everything else is a `GenericError` whose text holds the HTTP
status, the service's error code (`<Code>QuotaExceeded</Code>`) and the kind of a network error; those three are read
from it as the data they are, and looked up in the tables below. Nothing is guessed from prose.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from fusebackend.base import jitter
from fusebackend.base.context import during
from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait
from fusebackend.protocol.scheme import mask

log = logging.getLogger(__name__)

ERRNO_OF_CODE: dict[str, int] = {
    "QuotaExceeded": errno.ENOSPC,  # SeaweedFS, Ceph: the bucket is full
    "XMinioStorageFull": errno.ENOSPC,
    "EntityTooLarge": errno.EFBIG,
    "RequestTimeout": errno.ETIMEDOUT,  # the service waited for us: a stalled network
    "PreconditionFailed": errno.ESTALE,
    "ConditionalRequestConflict": errno.ESTALE,
    "SlowDown": errno.ETIMEDOUT,  # still so after all retries: EAGAIN would be a lie to a program that can't poll
    "NoSuchBucket": errno.ENOENT,
    "NoSuchUpload": errno.EIO,  # it says nothing about the object
    "KeyTooLongError": errno.ENAMETOOLONG,
    "XMinioInvalidObjectName": errno.EINVAL,
}
"""The codes of S3 and of the services that speak its language; they say more than the status."""

ERRNO_OF_STATUS: dict[int, int] = {
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENOENT,
    408: errno.ETIMEDOUT,
    409: errno.ESTALE,
    412: errno.ESTALE,
    413: errno.EFBIG,
    416: errno.ESTALE,  # a range beyond the end: the object is shorter than it was
    429: errno.ETIMEDOUT,
    501: errno.ENOTSUP,
    503: errno.ETIMEDOUT,
    504: errno.ETIMEDOUT,
    507: errno.ENOSPC,
}

ERRNO_OF_CLASS: dict[str, int] = {
    "AlreadyExistsError": errno.ESTALE,
    "PreconditionError": errno.ESTALE,
    "NotModifiedError": errno.ESTALE,
    "PermissionDeniedError": errno.EACCES,
    "UnauthenticatedError": errno.EACCES,
    "FileNotFoundError": errno.ENOENT,
    "InvalidPathError": errno.EINVAL,
    "NotSupportedError": errno.ENOTSUP,
    "NotImplementedError": errno.ENOTSUP,
}
"""Exceptions of obstore, which is not imported for this table, and of Python."""

THROTTLED = frozenset({429, 503})
SLOW_DOWN = "SlowDown"
"""S3 sends it with 503, and with 200 as the end of a long copy."""

_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"\bkind: (Timeout|Connect)\b")
_METADATA = re.compile(r"/latest/api/token|/latest/meta-data/|/computeMetadata/|/metadata/identity/")
"""Requests to a cloud's own service for credentials (AWS, Google, Azure), which obstore makes where it has none."""

_OS_CODE = re.compile(r"\bOs \{\s*code: (\d{1,4}),")
_SIGNATURE = re.compile(r"([?&](?:X-Amz-[\w-]+|Signature|sig|se|st)=)[^&\s]*", re.IGNORECASE)

_LINE_CHARACTERS = 300

_quiet: ContextVar[bool] = ContextVar("fusebackend_object_errors_quiet", default=False)


@contextmanager
def object_errors(key: str) -> Iterator[None]:
    """Calls about the object `key`: obstore's exceptions leave as `OSError`, any other one as it is."""
    will_wait()
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        if error.errno is not None:
            raise
        if (code := _CODE.search(str(error))) is not None and code[1] == "NoSuchBucket" and not _quiet.get():
            log.warning("%s: %s", key, _line(error))
        raise oserror(errno.ENOENT, key) from None
    except NotImplementedError as error:  # a store that lacks a feature, not one of ours
        log.warning("%s: the store can't do it: %s", key, _line(error))
        raise oserror(errno.ENOTSUP, key) from None
    except BaseError as error:
        number = errno_of(error)
        if number != errno.ESTALE and not _quiet.get():
            log.warning("%s: %s", key, _line(error))
        raised = oserror(number, key)
        if (said := _said(str(error))) is not None:
            raised.add_note(said)
        raise raised from None


def _said(text: str) -> str | None:
    """What the service, or this machine's network, calls the failure."""
    if _METADATA.search(text) is not None:
        return "no credentials are given, and the machine's metadata service gives none"
    if (code := _CODE.search(text)) is not None:
        return code[1]
    number = _OS_CODE.search(text)
    return os.strerror(int(number[1])) if number is not None else None


def told_by_caller() -> AbstractContextManager[object]:
    """Log no errors in here: the caller tells them. The service's code, or the network's, is their note."""
    return during(_quiet, True)


def errno_of(error: BaseException) -> int:
    """The errno of one of obstore's exceptions, or of an `OSError`; EIO when it tells nothing."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    code = _CODE.search(text)
    if code is not None and code[1] in ERRNO_OF_CODE:
        return ERRNO_OF_CODE[code[1]]
    if type(error).__name__ in ERRNO_OF_CLASS:
        return ERRNO_OF_CLASS[type(error).__name__]
    status = _STATUS.search(text)
    if status is not None:
        return ERRNO_OF_STATUS.get(int(status[1]), errno.EIO)
    if _KIND.search(text) is not None:
        return errno.ETIMEDOUT  # nobody answers: a caller can't tell a service that is slow from one that is not there
    return errno.EIO


def is_throttled(error: BaseException) -> bool:
    """Return whether the service refused a request because it gets too many. Takes errors of obstore and botocore."""
    answer = getattr(error.__cause__ or error, "response", None)  # botocore's ClientError
    if isinstance(answer, dict):
        code = answer.get("Error", {}).get("Code")
        return code == SLOW_DOWN or answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in THROTTLED
    text = str(error)
    found, status = _CODE.search(text), _STATUS.search(text)
    return (found is not None and found[1] == SLOW_DOWN) or (status is not None and int(status[1]) in THROTTLED)


def _line(error: BaseException) -> str:
    """An error of obstore in one line: without the debug dump below its first line, and without what signs a URL."""
    text = str(error).split("\n\nDebug source", 1)[0]
    return _SIGNATURE.sub(r"\1***", mask(" ".join(text.split())))[:_LINE_CHARACTERS]


# -- throttling ------------------------------------------------------------------------------------------------------
#
# `patiently`: sends a request again, later and later, while the service answers that it gets too many.
#
# S3 answers 503 `SlowDown` while it divides a prefix that many hosts use, which takes minutes; other services answer
# 429. Such a request has not been carried out. obstore repeats it three times within a second. Without longer waits,
# a busy bucket would be ETIMEDOUT for its users, and after three of these the circuit breaker would close the route.
# Each wait is a random part of a limit that doubles from `FIRST_S` to `MOST_S`, so that hosts which were refused
# together do not come back together. After `PATIENCE_S` the answer is an error, within a route's deadline (30 s).

T = TypeVar("T")

FIRST_S = 0.5
MOST_S = 4.0

PATIENCE_S = 15.0
"""How long after its first refusal a request may be sent again: half of a route's deadline, for the caller may need
more than one."""


def patiently(
    request: Callable[[], T],
    again: Callable[[BaseException], bool] = is_throttled,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return the answer of a request. Every error leaves as it is; one of a throttled service after the waits.

    Args:
        request: sends it; called again after each refusal.
        again: whether an error is such a refusal.
        clock: seconds that only grow.
        sleep: waits for so many seconds.
    """
    limit_s, give_up_at = FIRST_S, None
    while True:
        try:
            return request()
        except Exception as error:
            if not again(error):
                raise
            now, wait_s = clock(), jitter.between(0.5, 1) * limit_s
            give_up_at = now + PATIENCE_S if give_up_at is None else give_up_at
            if now + wait_s > give_up_at:
                raise
        sleep(wait_s)
        limit_s = min(2 * limit_s, MOST_S)
