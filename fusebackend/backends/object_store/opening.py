"""`s3:`, `gs:` and `az:` URLs: the store that a URL names, and its backend."""

from __future__ import annotations

import errno
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from fusebackend.backends.object_store.bucket.errors import told_by_caller
from fusebackend.protocol.scheme import Url, UrlError, mask


def open_s3(url: Url) -> Any:
    """The backend of `s3://BUCKET/PREFIX?…`."""
    _require(url)
    from fusebackend.backends.object_store.backend import S3Backend

    bucket, prefix = _place(url)
    words = dict(url.parameters)
    return _opened(url, lambda: S3Backend(bucket, prefix, words.pop("region", None), **words))


def open_gs(url: Url) -> Any:
    """The backend of `gs://BUCKET/PREFIX`."""
    _require(url)
    from obstore.store import GCSStore

    bucket, prefix = _place(url)
    return _opened(url, lambda: _backend(GCSStore, bucket, prefix, url))


def open_az(url: Url) -> Any:
    """The backend of `az://CONTAINER/PREFIX`."""
    _require(url)
    from obstore.store import AzureStore

    bucket, prefix = _place(url)
    return _opened(url, lambda: _backend(AzureStore, bucket, prefix, url))


def _backend(kind: Any, bucket: str, prefix: str, url: Url) -> Any:
    from fusebackend.backends.object_store.backend import ObjectStoreBackend, client_options, retry_config

    store = kind(bucket, prefix=prefix.strip("/") or None, client_options=client_options(), retry_config=retry_config())
    return ObjectStoreBackend(store, **url.parameters)


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


def _require(url: Url) -> None:
    if find_spec("obstore") is None:
        raise UrlError(f"'{url.masked}' needs obstore: pip install 'fusebackend[s3]'")
