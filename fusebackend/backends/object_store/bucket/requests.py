"""`Bucket`: the requests that a volume makes, in its own words. Each method is one request or a few of the same kind.

It knows keys, attributes and versions, and neither nodes nor names. Every error of the store leaves as `OSError`.
Thread-safe, and nothing is locked.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import obstore

from fusebackend.backends.object_store.bucket.errors import (
    ERRNO_OF_CODE,
    ERRNO_OF_STATUS,
    PATIENCE_S,
    is_throttled,
    object_errors,
    patiently,
)
from fusebackend.backends.object_store.bucket.object_keys import (
    MARKER,
    PAGE_OBJECTS,
    arrange,
    info_of,
)
from fusebackend.base.errors import oserror, unless
from fusebackend.base.stamps import nanoseconds
from fusebackend.base.waiting import will_wait
from fusebackend.protocol.remote import Contents, Info
from fusebackend.remote.parallel import each

if TYPE_CHECKING:
    from obstore import GetOptions


# -- S3 beyond obstore -------------------------------------------------------------------------------------------
#
# `S3Extras`: requests to S3 beyond obstore, by botocore's client; keys are relative to the volume's prefix.
#
# obstore ends each listing at a key with an empty segment. It can't copy an object onto itself with other attributes,
# can neither see nor delete an object with a slash at the end of its key, and can't make the last step of an upload in
# parts conditional. All other requests go through obstore, which repeats what failed; these are sent once, and again
# only when the service gets too many, a part also when its answer is lost (`patiently`).
#
# There are extras where the credentials are known here (given, or in the environment). With credentials that obstore
# fetches from a machine's metadata service there are none, and the volume does without. Thread-safe.

COPY_BYTES = 5 << 30
"""The largest object that one request copies."""

TIMEOUT_S = 30.0

MAX_CONNECTIONS = 16

_PARAMETERS = {
    "content-type": "ContentType",
    "content-encoding": "ContentEncoding",
    "content-language": "ContentLanguage",
    "content-disposition": "ContentDisposition",
    "cache-control": "CacheControl",
}
"""Attributes that are no metadata of a user's, and botocore's names for them."""


class S3Extras:
    """See the comment above.

    Args:
        endpoint: the service's URL, without a path.
        region: where the bucket is.
        credentials: access key, secret key, and the token of temporary ones.
        bucket: its name.
        prefix: the directory in it that is the root; "" for the bucket itself.
    """

    def __init__(
        self, endpoint: str, region: str, credentials: tuple[str, str, str | None], bucket: str, prefix: str
    ) -> None:
        self._endpoint = endpoint
        self._region = region
        self._credentials = credentials
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._made: Any = None
        self._guard = threading.Lock()

    @property
    def _client(self) -> Any:
        """Made at the first use: that takes 0.2 s."""
        with self._guard:
            if self._made is None:
                import botocore.session
                from botocore.config import Config

                key, secret, token = self._credentials
                self._made = botocore.session.Session().create_client(
                    "s3", self._region, endpoint_url=self._endpoint, aws_access_key_id=key,
                    aws_secret_access_key=secret, aws_session_token=token,
                    config=Config(
                        connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, max_pool_connections=MAX_CONNECTIONS,
                        retries={"total_max_attempts": 1}, s3={"addressing_style": "path"},
                        request_checksum_calculation="when_required", response_checksum_validation="when_required",
                        parameter_validation=False,  # it refuses a memoryview as a body
                    ),
                )  # fmt: skip
            return self._made

    def _ask(self, operation: str, key: str, **parameters: Any) -> Any:
        """Send one request, and again while the service gets too many. `OSError` for an answer that is no success. A
        part that arrives twice has the same number, and the second replaces the first."""
        will_wait()

        def request() -> Any:
            with _as_oserror(key):
                return getattr(self._client, operation)(Bucket=self._bucket, **parameters)

        began_s = time.monotonic()

        def may_repeat(error: BaseException) -> bool:
            return is_throttled(error) or (_is_unanswered(error) and time.monotonic() - began_s <= PATIENCE_S)

        return patiently(request, may_repeat if operation == "upload_part" else is_throttled)

    def list_directory(self, directory: str) -> tuple[list[str], list[Info]]:
        """The last parts of the prefixes in a directory, and its objects, with any keys."""
        where = self._prefix + directory
        prefixes: list[str] = []
        objects: list[Info] = []
        more: dict[str, str] = {}
        while True:
            page = self._ask("list_objects_v2", directory, Prefix=where, Delimiter="/", **more)
            prefixes += [item["Prefix"][len(where) :].removesuffix("/") for item in page.get("CommonPrefixes", ())]
            for item in page.get("Contents", ()):
                modified_ns = nanoseconds(item["LastModified"])
                objects.append(info_of(item["Key"][len(where) :], item["Size"], item["ETag"], modified_ns))
            if not page.get("NextContinuationToken"):
                return prefixes, objects
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def restamp(self, key: str, etag: str | None, attributes: Mapping[str, str]) -> str | None:
        """Copy an object onto itself with other attributes; its ETag. ESTALE when it is not the version `etag`."""
        condition = {} if etag is None else {"CopySourceIfMatch": etag}
        answer = self._ask(
            "copy_object", key, Key=self._prefix + key,
            CopySource={"Bucket": self._bucket, "Key": self._prefix + key},
            MetadataDirective="REPLACE", **_parameters(attributes), **condition,
        )  # fmt: skip
        return _quoted(answer["CopyObjectResult"].get("ETag")) or etag

    def delete(self, key: str) -> None:
        """Delete an object; its key may end with a slash."""
        self._ask("delete_object", key, Key=self._prefix + key)

    # -- uploads in parts --------------------------------------------------------------------------------------

    def begin_parts(self, key: str, attributes: Mapping[str, str]) -> str:
        """Begin an upload of an object with these attributes; its name."""
        answer = self._ask("create_multipart_upload", key, Key=self._prefix + key, **_parameters(attributes))
        return str(answer["UploadId"])

    def put_part(self, key: str, upload: str, number: int, data: memoryview) -> str:
        """Send a part; numbers begin with 1. Its ETag."""
        answer = self._ask("upload_part", key, Key=self._prefix + key, UploadId=upload, PartNumber=number, Body=data)
        return str(answer["ETag"])

    def end_parts(self, key: str, upload: str, etags: Sequence[str], condition: Mapping[str, str]) -> str | None:
        """Make the object of its parts, if the condition (`IfMatch` or `IfNoneMatch`) holds; its ETag. ESTALE."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        answer = self._ask(
            "complete_multipart_upload", key, Key=self._prefix + key, UploadId=upload,
            MultipartUpload={"Parts": parts}, **condition,
        )  # fmt: skip
        return _quoted(answer.get("ETag"))

    def abort_parts(self, key: str, upload: str) -> None:
        """Drop an upload and its parts, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._ask("abort_multipart_upload", key, Key=self._prefix + key, UploadId=upload)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


@contextlib.contextmanager
def _as_oserror(key: str) -> Iterator[None]:
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionClosedError,
        ConnectionError,
        HTTPClientError,
        SSLError,
    )

    try:
        yield
    except ClientError as error:
        answer = error.response
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        number = ERRNO_OF_CODE.get(answer.get("Error", {}).get("Code", "")) or ERRNO_OF_STATUS.get(status, errno.EIO)
        raise oserror(number, key) from error
    except SSLError as error:
        raise oserror(errno.EIO, key) from error
    except ConnectionClosedError as error:
        raise oserror(errno.ECONNRESET, key) from error
    except (ConnectionError, HTTPClientError) as error:  # no answer in time
        raise oserror(errno.ETIMEDOUT, key) from error
    except BotoCoreError as error:
        raise OSError(errno.EIO, str(error), key) from error


def _is_unanswered(error: BaseException) -> bool:
    """Return whether an error leaves open what the service makes of the request, or will make of the next one."""
    answer = getattr(error.__cause__, "response", None)
    if isinstance(answer, dict) and answer.get("Error", {}).get("Code") == "NoSuchUpload":
        return False
    return isinstance(error, OSError) and error.errno in (errno.EIO, errno.ETIMEDOUT, errno.ECONNRESET)


def _parameters(attributes: Mapping[str, str]) -> dict[str, Any]:
    known = {_PARAMETERS[name.lower()]: text for name, text in attributes.items() if name.lower() in _PARAMETERS}
    others = {name.lower(): text for name, text in attributes.items() if name.lower() not in _PARAMETERS}
    return {**known, "Metadata": others}


def _quoted(etag: str | None) -> str | None:
    return etag if etag is None or etag.startswith('"') else f'"{etag}"'


# -- the bucket --------------------------------------------------------------------------------------------------

PIECE_BYTES = 1 << 20


class Object(NamedTuple):
    """An object without its content."""

    size: int
    etag: str | None
    modified_ns: int
    attributes: Mapping[str, str]


class Bucket:
    """See the module's docstring.

    Args:
        store: an obstore store, with the volume's prefix in it.
        extras: does what obstore can't; None where there is no other way.
    """

    def __init__(self, store: Any, extras: S3Extras | None = None) -> None:
        self.store = store
        self.extras = extras

    # -- listing -----------------------------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        """The names in a directory. Its key ends with `/`; the top's is empty. EINVAL as `keys_below`."""
        prefix = directory.rstrip("/")
        with object_errors(prefix or "/"):
            try:
                page = patiently(lambda: obstore.list_with_delimiter(self.store, prefix or None))
            except obstore.exceptions.InvalidPathError:
                if self.extras is None:
                    raise
                directories, objects = self.extras.list_directory(directory)
                return arrange(directories, objects, top=not directory)
        below = len(directory)
        return arrange(
            (path[below:] for path in page["common_prefixes"]),
            # obstore lists the directory itself too, if there is an object with its key and `/`.
            (
                info_of(meta["path"][below:], meta["size"], meta["e_tag"], nanoseconds(meta["last_modified"]))
                for meta in page["objects"]
                if meta["path"].startswith(directory)
            ),
            top=not directory,
        )

    def keys_below(self, directory: str) -> Iterator[tuple[str, int, str | None]]:
        """The objects below a directory, at any depth, with sizes and ETags. Its own sign is one of them.

        Raises:
            OSError: EINVAL when there is a key below that is no path.
        """
        prefix = directory.rstrip("/")
        with object_errors(prefix or "/"):
            pages: Any = None
            last: str | None = None

            def next_page() -> Any:
                nonlocal pages
                try:
                    if pages is None:  # at the beginning, and after a refusal, which ends obstore's listing
                        pages = iter(obstore.list(self.store, prefix or None, offset=last, chunk_size=PAGE_OBJECTS))
                    return next(pages, None)
                except Exception:
                    pages = None
                    raise

            while (page := patiently(next_page)) is not None:
                last = page[-1]["path"] if page else last
                for meta in page:
                    if meta["path"].startswith(directory):
                        yield meta["path"], meta["size"], meta["e_tag"]

    def is_empty(self, directory: str, but: frozenset[str] = frozenset()) -> bool:
        """True if no object is below a directory, except those with these keys."""
        known = (key in but for key, _, _ in self.keys_below(directory))
        return bool(unless((errno.EINVAL,), all, known))  # EINVAL: a key that is no path is below

    # -- objects -----------------------------------------------------------------------------------------------

    def _ask(self, key: str, request: Callable[..., Any], *args: Any, **words: Any) -> Any:
        """Send one of obstore's requests, and again while the service gets too many."""
        with object_errors(key):
            return patiently(lambda: request(self.store, *args, **words))

    def head(self, key: str) -> Object | None:
        """An object, None when there is none."""
        try:
            return _head(self._ask(key, obstore.get, key, options={"head": True}))
        except FileNotFoundError:
            return None

    def fetch(self, key: str, most: int) -> tuple[Object, memoryview | None] | None:
        """An object, and its content if that is at most so many bytes. None when there is no object."""
        try:
            with object_errors(key):
                answer = patiently(lambda: obstore.get(self.store, key))
                head = _head(answer)
                return head, memoryview(answer.bytes()) if head.size <= most else None
        except FileNotFoundError:
            return None

    def pieces(self, key: str, etag: str | None = None) -> Iterator[bytes]:
        """The content of an object, in pieces. ENOENT; ESTALE when it is not that version."""
        with object_errors(key):
            answer = patiently(lambda: obstore.get(self.store, key, options={"if_match": etag} if etag else {}))
            for piece in answer.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)

    def put_small(self, key: str, data: bytes, attributes: Mapping[str, str], create: bool = False) -> str | None:
        """Put a small object, in place of any other one unless `create`, which is EEXIST then; its ETag."""
        words: dict[str, Any] = {"attributes": dict(attributes), "mode": "create" if create else "overwrite"}
        try:
            etag: str | None = self._ask(key, obstore.put, key, data, use_multipart=False, **words)["e_tag"]
        except OSError as error:
            raise oserror(errno.EEXIST, key) if create and error.errno == errno.ESTALE else error from None
        return etag

    def copy(self, key: str, new: str) -> None:
        """Copy an object with its attributes in the store, without a condition. ENOENT."""
        self._ask(key, obstore.copy, key, new)

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(key, obstore.delete, key)

    def delete_directory(self, directory: str) -> None:
        """Delete what keeps an empty directory: our sign, and another tool's where there are extras."""
        self.delete(directory + MARKER)
        if self.extras is not None and directory:
            self.extras.delete(directory)

    def copy_all(self, pairs: Iterable[tuple[str, str]]) -> None:
        each(lambda pair: self.copy(*pair), pairs)

    def delete_all(self, keys: Sequence[str]) -> None:
        """Delete objects, at least one, those that are there: many with one request, where the service can."""
        try:
            self._ask(keys[0], obstore.delete, keys)
        except FileNotFoundError:  # of one, where each is a request; whether the others were sent is not known
            each(self.delete, keys)


class ObjectVersion(NamedTuple):
    """One version of an object as the `remote.ranges.RangeSource` of a reader. Requests carry `If-Match`, and the ETag
    of each answer is compared: a store may ignore the condition. Without an ETag it is whichever version is there."""

    store: Any
    key: str
    etag: str | None

    def fetch(self, offset: int, size: int, add: Callable[[memoryview], None]) -> None:
        options: GetOptions = {"range": (offset, offset + size)}
        if self.etag is not None and not self.etag.startswith("W/"):  # If-Match never matches a weak one
            options["if_match"] = self.etag
        try:
            with object_errors(self.key):
                answer = patiently(lambda: obstore.get(self.store, self.key, options=options))
                data = memoryview(answer.bytes())
        except FileNotFoundError:
            raise oserror(errno.ESTALE, self.key) from None
        if self.etag is not None and answer.meta["e_tag"] != self.etag:
            raise oserror(errno.ESTALE, self.key)
        add(data)

    def close(self) -> None:
        """Nothing is open."""


def _head(answer: Any) -> Object:
    meta = answer.meta
    return Object(meta["size"], meta["e_tag"], nanoseconds(meta["last_modified"]), dict(answer.attributes))
