"""`ObjectStoreBackend`: the agent face of a bucket, and `S3Backend`, the seeds' name for one in S3."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from fusebackend.backends.object_store import opening
from fusebackend.backends.object_store.bucket.s3_extras import S3Extras
from fusebackend.backends.object_store.remote import CACHE_BYTES, BucketRemote
from fusebackend.protocol import DEFAULT_TTL_S
from fusebackend.remote.backend import RemoteBackend
from fusebackend.remote.volume import RemoteVolume

CONNECT_S = 5
REQUEST_S = 60
"""How long one request may take."""

RETRIES = 3
RETRY_S = 15
"""obstore repeats what failed, where that is safe, for so long."""


class ObjectStoreBackend(RemoteBackend):
    """Plain objects as files. See `remote.py` for what is kept, and SEMANTICS.md for what is promised.

    Args:
        store: an obstore store (`obstore.store.S3Store`, `GCSStore`, `AzureStore`, `MemoryStore` …). Its prefix is
            where the tree begins.
        ttl: seconds for which a listing is believed.
        cache_mb: so many MiB of objects that were read stay in memory.
        on_exists: see `VolumeBackend`.
        attributes: "off": modes, owners, times and links that are stored with objects are neither read nor shown, which
            saves a request for each file that is looked at.
        extras: what the service can do beyond obstore, see `bucket/s3_extras.py`.
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
        from obstore.store import S3Store

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
