"""`s3:`, `gs:` and `az:` URLs: the store that a URL names, and its backend."""

from __future__ import annotations

import datetime
import os
from importlib.util import find_spec
from typing import Any

from fusebackend.scheme import Url, UrlError

CONNECT_S = 5
REQUEST_S = 60
"""How long one request may take."""

RETRIES = 3
RETRY_S = 15
"""obstore repeats what failed, where that is safe, for so long."""


def client_options(endpoint: str = "") -> Any:
    return {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": datetime.timedelta(seconds=CONNECT_S),
        "timeout": datetime.timedelta(seconds=REQUEST_S),
    }


def retry_config() -> Any:
    return {"max_retries": RETRIES, "retry_timeout": datetime.timedelta(seconds=RETRY_S)}


def s3_store(
    bucket: str,
    prefix: str = "",
    *,
    region: str | None = None,
    endpoint: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
) -> Any:
    """A bucket in S3, or in what speaks like it; what is not given is taken from the environment."""
    from obstore.store import S3Store

    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    given: dict[str, Any] = {
        "region": region,
        "endpoint": endpoint,
        "access_key_id": access_key_id,
        "secret_access_key": secret_access_key,
        "session_token": session_token,
    }
    return S3Store(
        bucket,
        prefix=prefix.strip("/") or None,
        client_options=client_options(endpoint or ""),
        retry_config=retry_config(),
        **{word: value for word, value in given.items() if value},
    )


def open_s3(url: Url) -> Any:
    """The backend of `s3://BUCKET/PREFIX?…`."""
    _require(url)
    from fusebackend.backends.objectstore.backend import S3Backend

    bucket, prefix = _place(url)
    words = dict(url.parameters)
    try:
        return S3Backend(bucket, prefix, words.pop("region", None), **words)
    except OSError as error:
        raise UrlError(f"'{url.masked}': {error.strerror}") from error


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
