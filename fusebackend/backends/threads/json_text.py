"""Values of a checkpoint as JSON, however deeply they are nested.

Python's own encoder recurses, and ends at some 1,000 levels; MessagePack has up to 1,024, and an object in an object is
another level. Here the levels are a stack. A part that can't be read is an object with the key `error`, and the rest is
shown.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from fusebackend.backends.threads.database.rows import Damaged
from fusebackend.backends.threads.database.values import shallow

MAX_LEVELS: Final = 4_000
"""Deeper is an `error`: indented, a value takes memory by the square of its levels."""

_C1: Final = re.compile("[\x80-\x9f]")
"""Control characters that JSON allows, and on which terminals act: U+009B begins what `ESC [` does."""

_json = json.JSONEncoder(ensure_ascii=False).encode


def _encode(value: Any) -> str:
    text = _json(value)
    return text if text.isascii() else _C1.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def pretty(value: Any) -> str:
    """Indented JSON with sorted keys, so that two versions can be compared line by line. No newline at the end."""
    return _text(value, indent="  ", sort=True)


def compact(value: Any) -> str:
    """JSON in one line."""
    return _text(value, indent=None, sort=False)


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


def _text(value: Any, *, indent: str | None, sort: bool) -> str:
    out: list[str] = []
    todo: list[str | tuple[Any, int]] = [(value, 0)]  # texts, and values with their level
    comma = ", " if indent is None else ","
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        found, level = plain(item[0]), item[1]
        if isinstance(found, (dict, list)) and level > MAX_LEVELS:
            found = f"error: nested deeper than {MAX_LEVELS} levels"
        if not isinstance(found, (dict, list)):
            out.append(_encode(found))
            continue
        opening, closing = "{}" if isinstance(found, dict) else "[]"
        if not found:
            out.append(opening + closing)
            continue
        start = "" if indent is None else "\n" + indent * (level + 1)
        members: list[tuple[str, Any]]
        if isinstance(found, dict):
            members = [(key if isinstance(key, str) else str(key), member) for key, member in found.items()]
            if sort:
                members.sort(key=lambda pair: pair[0])
            members = [(f"{_encode(key)}: ", member) for key, member in members]
        else:
            members = [("", member) for member in found]
        todo.append(("" if indent is None else "\n" + indent * level) + closing)
        for number in range(len(members) - 1, -1, -1):
            key, member = members[number]
            todo.append((member, level + 1))
            todo.append(f"{comma if number else opening}{start}{key}")
    return "".join(out)
