"""`s3:`, `gs:` and `az:` URLs: the store that a URL names, and its backend."""

from __future__ import annotations

import datetime
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from fusebackend.backends.object_store.bucket.errors import told_by_caller
from fusebackend.backends.object_store.bucket.s3_extras import S3Extras
from fusebackend.protocol.scheme import Url, UrlError, mask

CONNECT_S = 5
REQUEST_S = 60
"""How long one request may take."""

RETRIES = 3
RETRY_S = 15
"""obstore repeats what failed, where that is safe, for so long."""


@dataclass(frozen=True)
class Service:
    """Something that speaks S3, and who we are to it."""

    region: str
    endpoint: str | None
    key: str | None
    secret: str | None = field(repr=False)
    token: str | None = field(repr=False)

    @classmethod
    def of(cls, region: str | None, given: Mapping[str, str | None]) -> Service:
        """What is not given is taken from the environment, in the words of AWS's own programs."""
        known = os.environ.get
        key, secret, token = (given.get(word) for word in ("access_key_id", "secret_access_key", "session_token"))
        if key is None and secret is None:
            key, secret = known("AWS_ACCESS_KEY_ID"), known("AWS_SECRET_ACCESS_KEY")
            token = token or known("AWS_SESSION_TOKEN")
        return cls(
            region or known("AWS_REGION") or known("AWS_DEFAULT_REGION") or "us-east-1",
            given.get("endpoint") or known("AWS_ENDPOINT_URL_S3") or known("AWS_ENDPOINT_URL"),
            key,
            secret,
            token,
        )

    def store(self, bucket: str, prefix: str) -> Any:
        """The store of a bucket, or of a directory in one."""
        from obstore.store import S3Store

        given: dict[str, Any] = {
            "endpoint": self.endpoint,
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "session_token": self.token,
        }
        return S3Store(
            bucket,
            prefix=prefix.strip("/") or None,
            region=self.region,
            client_options=client_options(self.endpoint or ""),
            retry_config=retry_config(),
            **{word: value for word, value in given.items() if value},
        )

    def extras(self, bucket: str, prefix: str) -> S3Extras | None:
        if not self.key or not self.secret:
            return None
        endpoint = self.endpoint or f"https://s3.{self.region}.amazonaws.com"
        credentials = (self.key, self.secret, self.token)
        return S3Extras(endpoint, self.region, credentials, bucket, prefix.strip("/"))


def client_options(endpoint: str = "") -> Any:
    return {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": datetime.timedelta(seconds=CONNECT_S),
        "timeout": datetime.timedelta(seconds=REQUEST_S),
    }


def retry_config() -> Any:
    return {"max_retries": RETRIES, "retry_timeout": datetime.timedelta(seconds=RETRY_S)}


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
    from fusebackend.backends.object_store.backend import ObjectStoreBackend

    store = kind(
        bucket, prefix=prefix.strip("/") or None, client_options=client_options(), retry_config=retry_config()
    )
    return ObjectStoreBackend(store, **url.parameters)


def _opened(url: Url, make: Callable[[], Any]) -> Any:
    """What `make` makes; whatever is wrong with the bucket is said in one line."""
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
