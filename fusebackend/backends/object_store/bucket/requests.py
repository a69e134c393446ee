"""`Bucket`: the requests that a volume makes, in its own words. Each method is one request or a few of the same kind.

It knows keys, attributes and versions, and neither nodes nor names. Every error of the store leaves as `OSError`.
Thread-safe, and nothing is locked.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import obstore

from fusebackend.backends.object_store.bucket.errors import object_errors, patiently
from fusebackend.backends.object_store.bucket.object_keys import (
    MARKER,
    PAGE_OBJECTS,
    arrange,
    info_of,
    nanoseconds,
)
from fusebackend.backends.object_store.bucket.s3_extras import S3Extras
from fusebackend.base.errors import oserror, unless
from fusebackend.protocol.remote import Contents
from fusebackend.remote.parallel import each

if TYPE_CHECKING:
    from obstore import GetOptions

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
