"""`ObjectStoreBackend`: the agent face of a bucket, and `S3Backend`, the seeds' name for one in S3.

The verbs are those of every volume. What replaces a whole file is one conditional request instead of a step under the
volume's lock; files of a batch are put and fetched several at a time.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from fusebackend import text
from fusebackend.backends.object_store.bucket.s3_extras import S3Extras
from fusebackend.backends.object_store.volume import CACHE_BYTES, ObjectStoreVolume
from fusebackend.base import budget
from fusebackend.base.errors import oserror
from fusebackend.protocol import DEFAULT_TTL_S, Change, Changes, FileDownloadResponse, FileUploadResponse
from fusebackend.remote.parallel import each
from fusebackend.volumes.agent_face import DIRECTORY_MODE, FILE_MODE, VolumeBackend, caller
from fusebackend.volumes.contents import FileContents, require_regular
from fusebackend.volumes.walk import Place, resolve

CONNECT_S = 5
REQUEST_S = 60
"""How long one request may take."""

RETRIES = 3
RETRY_S = 15
"""obstore repeats what failed, where that is safe, for so long."""

ATTEMPTS = 20
"""How often something is put where others make and delete things all the time."""


class _Unchanged(Exception):
    """An edit that can't be made. Never leaves this module."""


class ObjectStoreBackend(VolumeBackend):
    """Plain objects as files. See `volume.py` for what is kept, and SEMANTICS.md for what is promised.

    Args:
        store: an obstore store (`obstore.store.S3Store`, `GCSStore`, `AzureStore`, `MemoryStore` …). Its prefix is
            where the tree begins.
        ttl: seconds for which a listing is believed.
        cache_mb: so many MiB of objects that were read stay in memory.
        on_exists: see `VolumeBackend`.
        extras: what the service can do beyond obstore, see `bucket/s3_extras.py`.
        clock: seconds that only grow, by which listings age.
    """

    def __init__(
        self,
        store: Any,
        *,
        ttl: float = DEFAULT_TTL_S,
        cache_mb: int = CACHE_BYTES >> 20,
        on_exists: Literal["error", "replace"] = "error",
        extras: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        volume = ObjectStoreVolume(store, ttl_s=ttl, cache_bytes=cache_mb << 20, extras=extras, clock=clock)
        super().__init__(volume, on_exists=on_exists)
        prefix = getattr(store, "prefix", None)
        self._store_shown = f"{type(store).__name__} {prefix}" if prefix else type(store).__name__

    volume: ObjectStoreVolume

    def _where(self) -> str:
        return self._store_shown

    def _put(self, path: str, data: bytes | FileContents, *, replace: bool) -> None:
        assert isinstance(data, bytes), "an object is stored as a whole"
        with self.volume.changing() as changes:
            for _ in range(ATTEMPTS):
                # As open(2): O_EXCL finds a symbolic link itself in the way, without it a link is followed.
                place = resolve(self.volume, path, follow=replace)
                if place.attr is not None and not replace:
                    raise oserror(errno.EEXIST)
                try:
                    self._put_at(place, data, changes)
                except (FileExistsError, FileNotFoundError):
                    continue  # somebody else was faster
                return
            raise oserror(errno.EAGAIN)

    def _put_at(self, place: Place, data: bytes, changes: Changes) -> None:
        if place.attr is not None:
            require_regular(place.attr)
            self.volume.rewrite(place.attr.node, lambda before: data)
            changes.append(Change(node=place.attr.node, kind="modified", path=place.path))
            return
        with self._parents(place, changes) as parent:
            node = self.volume.make_file(parent, place.name, FILE_MODE, data, caller()).node
        changes.append(Change(node, parent, place.name, "created", place.path))

    @contextlib.contextmanager
    def _parents(self, place: Place, changes: Changes) -> Iterator[int]:
        """As everywhere, but somebody else may make the same directories, or put something in those that are made."""
        changes.append(Change(node=place.parent))
        made: Changes = []
        parent = place.parent
        try:
            for name, path in zip(place.missing, place.missing_paths, strict=True):
                try:
                    node = self.volume.mkdir(parent, name, DIRECTORY_MODE, caller()).node
                except FileExistsError:
                    node = self.volume.lookup(parent, name).node
                else:
                    made.append(Change(node, parent, name, "created", path + "/"))
                parent = node
            yield parent
        except OSError:
            for change in reversed(made):
                assert change.parent is not None
                assert change.name is not None
                with contextlib.suppress(OSError):
                    self.volume.rmdir(change.parent, change.name)
            raise
        changes += made

    def _edit(self, path: str, old: str, new: str, replace_all: bool) -> int | str:
        outcome: str | tuple[str, int] = ""

        def change(before: Callable[[], bytes]) -> bytes:
            nonlocal outcome
            outcome = text.replace_string(before().decode("utf-8"), old, new, replace_all)
            if isinstance(outcome, str):
                raise _Unchanged
            return outcome[0].encode("utf-8")

        with self.volume.changing() as changes:
            place = resolve(self.volume, path)
            attr = place.found
            require_regular(attr)
            if attr.size > self.max_file_bytes:
                raise oserror(errno.EFBIG)
            try:
                self.volume.rewrite(attr.node, change)
            except _Unchanged:
                assert isinstance(outcome, str)
                return outcome
            changes.append(Change(node=attr.node, kind="modified", path=place.path))
        assert isinstance(outcome, tuple)
        return outcome[1]

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        together: dict[str, list[int]] = {}  # of two for one path the last one wins
        for number, (path, _) in enumerate(files):
            together.setdefault(posixpath.normpath(f"/{path}"), []).append(number)
        answers: dict[int, FileUploadResponse] = {}

        def upload(numbers: list[int]) -> None:
            for number in numbers:
                answers[number] = self.upload(*files[number])

        each(upload, together.values())
        return [answers[number] for number in range(len(files))]

    def upload_from(self, path: str, file: IO[bytes]) -> FileUploadResponse:
        """`upload_files` of one that is in a file. It is one object, and held in memory."""
        budget.current().hold(file.seek(0, os.SEEK_END))
        file.seek(0)
        return self.upload(path, file.read())

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return each(self.download, paths)


@dataclass(frozen=True)
class Service:
    """A service that speaks S3, and the keys for it."""

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


class S3Backend(ObjectStoreBackend):
    """The seeds' class: a bucket in S3, or the keys of it that begin with `prefix` and a slash.

    Args:
        bucket: its name.
        prefix: the directory in it that is the root.
        region: where it is; None: as the environment says.
        options: `endpoint`, `access_key_id`, `secret_access_key`, `session_token` for the service; what is not given
            is taken from the environment as AWS's own programs do. `ttl`, `cache_mb` and `on_exists` as for
            `ObjectStoreBackend`.
    """

    def __init__(self, bucket: str, prefix: str = "", region: str | None = "us-east-1", **options: Any) -> None:
        words = ("endpoint", "access_key_id", "secret_access_key", "session_token")
        service = Service.of(region, {word: options.pop(word) for word in words if word in options})
        super().__init__(service.store(bucket, prefix), extras=service.extras(bucket, prefix), **options)
        self._store_shown = f"s3://{bucket}/{prefix}".rstrip("/")
