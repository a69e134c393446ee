"""Versions of files that a caller can state, to change a file only if it is still the one that was read.

A version is text that means nothing to its holder: equal versions are of equal bytes, also after a restart. Another one
may be of the same bytes: a file that was given other permissions, or another name, may have one. Directories have none.

Two forms exist. A volume names a file by its number, size and change time, or by its service's ETag
(`Volume.version_of`). Elsewhere, and for a file that has changed so lately that another change could have the same
time, the version is the digest of the bytes: it costs reading them.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypedDict

from fusebackend.base.stamps import APART_NS, coarse_ns
from fusebackend.protocol.volume import Attr

__all__ = [
    "ANY", "Changed", "Condition", "Conditions", "Digest", "conditions_of", "digest_of", "options_of",
    "version_of_attr", "version_of_bytes", "version_of_etag",
]  # fmt: skip

_DIGEST = "b2-"

DIGEST_BYTES = 20
"""Of BLAKE2b."""

COARSE_NS = 2 * 10**9
"""How far apart changes may be that have one change time, on the coarsest file system of a directory (FAT)."""


class Conditions(TypedDict, total=False):
    """The keyword arguments of verbs that change a file, as they are handed on."""

    if_version: str | None
    if_absent: bool


class Changed(OSError):
    """A file is not the one that a caller has stated. Nothing is changed.

    Attributes:
        version: the present one; None if there is no file, or none can be told.
        of_target: it is about the second path of a `move`.
    """

    def __init__(self, version: str | None, *, is_there: bool, of_target: bool = False) -> None:
        super().__init__(errno.EBUSY, "changed")
        self.version = version
        self.of_target = of_target
        self._is_there = is_there

    def sentence(self, *paths: str) -> str:
        """Return the text for a person or a model."""
        path = paths[-1 if self.of_target else 0]
        if not self._is_there:
            return f"changed: '{path}' is not there any more"
        if self.version is None:
            return f"changed: '{path}' is there already"
        return f"changed: '{path}' has version {self.version} now; read it again"


class Condition(NamedTuple):
    """What must be at a path for a change of it.

    Attributes:
        version: of the file; None for any.
        absent: nothing is there.
    """

    version: str | None = None
    absent: bool = False

    @classmethod
    def of(cls, if_version: str | None = None, if_absent: bool = False) -> Condition:
        """Return the condition of a verb's arguments. OSError: EINVAL, they exclude each other, or are no version."""
        if if_version is not None and (if_absent or not isinstance(if_version, str)):
            raise OSError(errno.EINVAL, "if_version is a text, and excludes if_absent")
        return cls(if_version, bool(if_absent))

    @property
    def wants_digest(self) -> bool:
        return self.version is not None and self.version.startswith(_DIGEST)

    def require(self, version: str | None, *, is_there: bool = True) -> None:
        """Raise `Changed` unless a file of this version, or nothing, is what is wanted."""
        if is_there and self.absent:
            raise Changed(version, is_there=True)
        if self.version is not None and (not is_there or version != self.version):
            raise Changed(version, is_there=is_there)


ANY = Condition()


def conditions_of(
    count: int, if_version: Sequence[str | None] | None, if_absent: Sequence[bool] | None
) -> Iterator[Conditions]:
    """Yield the conditions of each of `count` files.

    Raises:
        ValueError: a list has another length.
    """
    for name, given in (("if_version", if_version), ("if_absent", if_absent)):
        if given is not None and (isinstance(given, str) or len(given) != count):
            raise ValueError(f"{name} is a list with an item for each of the {count} files")
    versions: Iterable[str | None] = repeat(None, count) if if_version is None else if_version
    absent: Iterable[bool] = repeat(False, count) if if_absent is None else if_absent
    return (
        Conditions(if_version=version, if_absent=flag) if version is not None or flag else Conditions()
        for version, flag in zip(versions, absent, strict=True)
    )


def options_of(conditions: Sequence[Conditions]) -> dict[str, Any]:
    """Return the keyword arguments of `upload_files` for the conditions of each file: none without any condition."""
    versions = [when.get("if_version") for when in conditions]
    absent = [when.get("if_absent", False) for when in conditions]
    is_asked = any(version is not None or flag for version, flag in zip(versions, absent, strict=True))
    return {"if_version": versions, "if_absent": absent} if is_asked else {}


class Digest:
    """The digest of bytes that come in pieces, and the version of a file that holds them."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def passing(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces on, and count them in."""
        for piece in pieces:
            self._hash.update(piece)
            yield piece

    def value(self) -> bytes:
        return self._hash.digest()

    @property
    def version(self) -> str:
        return version_of_etag(self.value())


def digest_of(data: bytes | memoryview) -> bytes:
    """The digest by which `upload_if`, ETags of whole files and versions name these bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def version_of_attr(attr: Attr, number: int | None = None, *, coarse_by_ns: int = APART_NS) -> str | None:
    """Return the version for a file's attributes; None if another change of the file could leave them as they are.

    Args:
        number: the file's in its volume, if it is not `attr.node`.
        coarse_by_ns: changes that are so far apart have different change times.
    """
    if coarse_by_ns and attr.ctime_ns >= coarse_ns() - coarse_by_ns:
        return None
    return f"{attr.node if number is None else number:x}-{attr.size:x}-{attr.ctime_ns:x}"


def version_of_bytes(data: bytes) -> str:
    """Return the version of a file that holds these bytes and has no other."""
    return version_of_etag(digest_of(data))


def version_of_etag(etag: str | bytes) -> str:
    """Return the version for a service's ETag, or for a digest of bytes (`digest_of`)."""
    return f"e-{etag}" if isinstance(etag, str) else _DIGEST + etag.hex()
