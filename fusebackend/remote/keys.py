"""Keys that others chose, as file names: thread ids, namespaces, and the paths of files in states and stores.

A database takes any string; a directory entry is 1 to 255 bytes without `/` and NUL, and not `.` or `..`. So one
string becomes one name (`name_of`), and back (`text_of`):

- UTF-8 without `/` and NUL stays as it is;
- `/` is `%2F`, NUL is `%00`, and the names `.` and `..` are `%2E` and `%2E%2E`; the empty string is `%`;
- a `%` that could be taken for one of the escapes on this page is `%25`; any other stays a `%`;
- a name longer than 255 bytes is cut, and ends in `%~` and 20 hex digits of its BLAKE2 digest, by which its key is
  found.

A key that is a path becomes a path (`names_of`), split at its slashes after the leading one: `//x` is `%/x`, `/a/` is
`a/%`, `/a/../b` is `a/%2E%2E/b`. A key without a leading slash is shown as if it had one. Where keys are in each
other's way (`arrange`): a key without a leading slash gives way and moves below the directory `%.`; a file whose name
is a directory as well, because of a longer key, gets `%=` at its end.

A key with more than `MAX_SEGMENTS` segments is one name at the top, cut as above: no path is that long, and an agent
may write 100,000 slashes, each of them a directory.

Nothing is hidden and nothing is shown twice: different keys have different paths.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
from collections.abc import Iterable
from itertools import pairwise

from fusebackend.protocol import NAME_MAX_BYTES

EMPTY = b"%"
RELATIVE = b"%."
"""The directory of keys without a leading slash that would otherwise be in the way of one with it."""

FILE_MARK = b"%="
CUT_MARK = b"%~"
_DIGEST_BYTES = 10

log = logging.getLogger(__name__)

MAX_SEGMENTS = 256
"""Linux opens paths of 4,096 bytes, and people write some 20 segments."""

_ESCAPE_OF = {b"/": b"%2F", b"\0": b"%00"}
_ESCAPED = re.compile(rb"%(?:25|2F|00|2E)")
_NEEDS_ESCAPE = re.compile(rb"[/\0]|%(?=25|2F|00|2E|~|=\Z)")


def name_of(text: str) -> bytes:
    """One string as one name."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return cut_name(text.encode("utf-8", "replace"), text, NAME_MAX_BYTES)
    name = _escape(raw)
    return name if len(name) <= NAME_MAX_BYTES else cut_name(name, text, NAME_MAX_BYTES)


def text_of(name: bytes) -> str:
    """The string that `name_of` makes this name of.

    Raises:
        ValueError: there is none, or the name was cut, or it is marked as in `arrange`.
    """
    raw = b"" if name == EMPTY else _ESCAPED.sub(lambda found: bytes.fromhex(found[0][1:].decode()), name)
    text = raw.decode("utf-8", "surrogateescape")
    if name_of(text) != name:
        raise ValueError(f"{name!r} is the name of no key")
    return text


def _escape(raw: bytes) -> bytes:
    if raw in (b".", b".."):
        return raw.replace(b".", b"%2E")
    if raw in (EMPTY, RELATIVE):
        return b"%25" + raw[1:]
    return _NEEDS_ESCAPE.sub(lambda found: _ESCAPE_OF.get(found[0], b"%25"), raw) or EMPTY


def cut_name(name: bytes, text: str, limit: int) -> bytes:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest().encode()
    kept = name[: limit - len(CUT_MARK) - len(digest)]
    while kept and kept[-1] & 0xC0 == 0x80:  # not through a character …
        kept = kept[:-1]
    if kept and kept[-1] >= 0xC0:
        kept = kept[:-1]
    return kept + CUT_MARK + digest


@functools.lru_cache(maxsize=1 << 16)
def names_of(key: str) -> tuple[bytes, ...]:
    """The names along a key that is a path. One without a leading slash counts as if it had it."""
    if is_too_deep(key):
        log.warning("a path of %d segments is shown as one name: %r…", key.count("/", 1) + 1, key[:60])
        start = key[:NAME_MAX_BYTES].encode("utf-8", "replace")
        return (cut_name(_escape(start), key, NAME_MAX_BYTES),)
    return tuple(name_of(segment) for segment in key.removeprefix("/").split("/"))


def is_too_deep(key: str) -> bool:
    return key.count("/", 1) >= MAX_SEGMENTS


def key_of(names: Iterable[bytes]) -> str:
    """The key, with a leading slash, that these names are the path of. ValueError as `text_of`."""
    return "/" + "/".join(text_of(name) for name in names)


def arrange(keys: Iterable[str]) -> dict[tuple[bytes, ...], str]:
    """Where each of these keys is, as the module's docstring says."""
    places: dict[tuple[bytes, ...], str] = {}
    relative = []
    for key in keys:
        if key.startswith("/"):
            places[names_of(key)] = key
        else:
            relative.append(key)
    for key in relative:
        names = names_of(key)
        places[names if names not in places else (RELATIVE, *names)] = key
    # In order, what is below a place comes right behind it.
    in_order = sorted(places)
    directories = [names for names, next_ in pairwise(in_order) if next_[: len(names)] == names]
    for names in directories:
        key = places.pop(names)
        places[(*names[:-1], _marked(names[-1], key))] = key
    return places


def _marked(name: bytes, key: str) -> bytes:
    marked = name + FILE_MARK
    return marked if len(marked) <= NAME_MAX_BYTES else cut_name(name, key, NAME_MAX_BYTES - len(FILE_MARK)) + FILE_MARK
