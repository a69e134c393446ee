"""The values of a store as files: what is a file, what its bytes are, and what is written in its place.

A file is a mapping with `content` and perhaps `encoding`, as `text.decode_file_data` reads it: the lists of lines of
the seeds (v1), text and base64 (v2). Of the lists, those made by `splitlines` (the Korean seed, deepagents-backends)
have lost whether the text ended in a newline, and look like those made by `split("\\n")` of a text that did not; they
are read so. Only the empty list tells itself, and is the empty file.

Further keys of such a mapping are somebody's and stay when the file is written. Any other value is foreign: it is shown
as JSON, and never written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from fusebackend import text

_NOT_A_FILE = (TypeError, ValueError)
"""What `text.decode_file_data` raises."""


class About(NamedTuple):
    """What a listing says of a value."""

    size: int
    """Bytes."""
    modified_at: str
    foreign: bool


class Unreadable(bytes):
    """A value that is no JSON, as it is kept."""


def bytes_of(value: Any) -> tuple[bytes, bool]:
    """A file's bytes; or those of a foreign value as JSON, and True."""
    try:
        return text.decode_file_data(value), False
    except _NOT_A_FILE:
        return _rendered(value), True


def about(value: Any, updated_at: str) -> About:
    """`updated_at` stands in where the value has no time of its own."""
    content = value.get("content") if isinstance(value, Mapping) else None
    own = value.get("modified_at") if isinstance(value, Mapping) else None
    modified_at = own if isinstance(own, str) and own else updated_at
    if isinstance(content, str) and content.isascii() and value.get("encoding") in (None, "", "utf-8"):
        return About(len(content), modified_at, False)
    data, foreign = bytes_of(value)
    return About(len(data), updated_at if foreign else modified_at, foreign)


def _rendered(value: Any) -> bytes:
    if isinstance(value, Unreadable):
        return bytes(value)
    try:
        shown = json.dumps(value, indent=2, ensure_ascii=False, default=repr)
        return (shown + "\n").encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate
        return (json.dumps(value, indent=2, default=repr) + "\n").encode("ascii")


def written(
    data: bytes, before: Any = None, *, file_format: Literal["v1", "v2"] = "v2", takes_nul: bool = True
) -> dict[str, Any]:
    """The value of a file that holds `data` now, in place of the value `before`.

    Args:
        takes_nul: may texts hold NUL characters? PostgreSQL's can't; a file with one is kept in base64 there.
    """
    kept = dict(before) if isinstance(before, Mapping) else {}
    created_at = kept.get("created_at")
    now = text.now_iso()
    record = text.encode_file_data(
        data,
        created_at=created_at if isinstance(created_at, str) else None,
        modified_at=now,
        file_format=file_format,
        as_text=takes_nul or b"\0" not in data,
    )
    kept.pop("encoding", None)
    return {**kept, **record}
