"""`s3:`, `gs:` and `az:` URLs: the store that a URL names, and its backend."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fusebackend.backends.object_store.bucket.errors import told_by_caller
from fusebackend.protocol import WHOLE_FILES
from fusebackend.protocol.scheme import (
    ON_EXISTS,
    TTL,
    Parameter,
    Scheme,
    Url,
    UrlError,
    mask,
    one_of,
    positive,
    require_modules,
)


def open_s3(url: Url) -> Any:
    """The backend of `s3://BUCKET/PREFIX?…`."""
    require_modules(url, "s3", "obstore")
    from fusebackend.backends.object_store.remote import S3Backend

    bucket, prefix = _place(url)
    words = dict(url.parameters)
    return _opened(url, lambda: S3Backend(bucket, prefix, words.pop("region", None), **words))


def open_other(kind: str, url: Url) -> Any:
    """The backend of `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`, over that class of `obstore.store`."""
    require_modules(url, "s3", "obstore")
    from obstore import store

    from fusebackend.backends.object_store.remote import ObjectStoreBackend, connection

    bucket, prefix = _place(url)

    def made() -> ObjectStoreBackend:
        found = getattr(store, kind)(bucket, prefix=prefix.strip("/") or None, **connection())
        return ObjectStoreBackend(found, **url.parameters)

    return _opened(url, made)


def _opened(url: Url, make: Callable[[], Any]) -> Any:
    """Call `make`, and turn each error of the bucket into one line."""
    from obstore.exceptions import BaseError

    try:
        with told_by_caller():
            return make()
    except FileNotFoundError:
        raise UrlError(f"'{url.masked}': there is no bucket '{_place(url)[0]}'") from None
    except OSError as error:
        words = "the service does not answer" if error.errno == errno.ETIMEDOUT else error.strerror
        code = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        raise UrlError(f"'{url.masked}': the bucket can't be read: {words}{code}") from error
    except (BaseError, ValueError) as error:
        raise UrlError(f"'{url.masked}': {mask(' '.join(str(error).split('Debug source')[0].split()))}") from None


def _place(url: Url) -> tuple[str, str]:
    if not url.rest.startswith("//"):
        raise UrlError(f"'{url.masked}' is incomplete; write {url.scheme}://BUCKET/PREFIX")
    bucket, _, prefix = url.rest[2:].partition("/")
    if not bucket:
        raise UrlError(f"'{url.masked}' names no bucket; write {url.scheme}://BUCKET/PREFIX")
    return bucket, prefix


OBJECTS = replace(WHOLE_FILES, symlinks=True, persistent_modes=True, blocking=True)

PARAMETERS = {
    "attributes": Parameter(
        one_of("on", "off"),
        "off: modes, owners, times and links that are stored with objects are neither read nor shown",
    ),
    "cache_mb": Parameter(positive, "how many MiB of objects that were read stay in memory; 64 by default"),
    **ON_EXISTS,
    **TTL,
}


def _endpoint(value: str) -> str:
    if not re.fullmatch(r"https?://[^/?#@\s]+/?", value):
        raise ValueError("must be a URL such as 'https://s3.example.org:9000'")
    return value.rstrip("/")


SCHEMES = {
    "s3": Scheme(
        "s3://BUCKET/PREFIX?endpoint=URL&region=REGION",
        "objects in S3, or in what speaks like it, that other programs read as well",
        open_s3,
        parameters={
            **PARAMETERS,
            "access_key_id": Parameter(str, "with secret_access_key: credentials; by default those of the environment"),
            "endpoint": Parameter(_endpoint, "the URL of an S3 server that is not AWS's"),
            "region": Parameter(str, "of the bucket"),
            "secret_access_key": Parameter(str, "see access_key_id"),
            "session_token": Parameter(str, "for temporary credentials"),
        },
        features=OBJECTS,
    ),
    "gs": Scheme(
        "gs://BUCKET/PREFIX",
        "the same in Google Cloud Storage",
        partial(open_other, "GCSStore"),
        parameters=PARAMETERS,
        features=OBJECTS,
    ),
    "az": Scheme(
        "az://CONTAINER/PREFIX",
        "the same in Azure Blob Storage",
        partial(open_other, "AzureStore"),
        parameters=PARAMETERS,
        features=OBJECTS,
    ),
}
"""Here, and not in `remote.py`, which needs obstore: they are known without it."""
