"""Values of a checkpoint as JSON. A part that can't be read is an object with the key `error`; the rest is shown."""

from __future__ import annotations

from typing import Any, Final

from fusebackend.backends.threads.database.rows import Damaged
from fusebackend.backends.threads.database.values import shallow
from fusebackend.base import json_text

MAX_LEVELS: Final = 4_000
"""Deeper is an error text. MessagePack has up to 1,024 levels, but an object in an object is unpacked anew."""


def pretty(value: Any) -> str:
    """Indented JSON with sorted keys, so that two versions can be compared line by line. No newline at the end."""
    return json_text.pretty(value, plain, levels=MAX_LEVELS)


def compact(value: Any) -> str:
    """JSON in one line."""
    return json_text.compact(value, plain, levels=MAX_LEVELS)


def encoded(text: str) -> bytes:
    """UTF-8. A surrogate that stands for a byte becomes that byte, any other one a question mark."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def plain(value: Any) -> Any:
    """`shallow`, with an object with the key `error` for a value that can't be read."""
    try:
        return shallow(value)
    except Damaged as error:
        return {"error": str(error)}
