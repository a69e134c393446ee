"""Any Python value as JSON text: `pretty` with sorted keys and two spaces a level, `compact` in one line.

Values come from other programs, so no value raises. `json.dumps` alone fails on a thousand levels (RecursionError), on
keys of several types (TypeError) and on a list that contains itself (ValueError), and one such value would take a whole
listing with it.

- Levels below `INDENTED_LEVELS` are written in one line: indentation multiplies the size of a text by the depth of its
  value, and a value of 2 MB with 900 levels would become 2 GB.
- DEL, C1 control characters and lone surrogates are escaped, as JSON demands for the C0 ones: a terminal acts on them.
- An object of a class that JSON lacks is its `repr`, a container inside of itself is `"…"`. NaN and infinities are
  written as `json.dumps` does.

The C encoder of `json` writes about 30 MB a second. `_pieces` writes a tenth of that, and takes over where the encoder
fails.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

INDENTED_LEVELS: Final = 32

Shallow: TypeAlias = Callable[[Any], Any]
"""From a value to None, a string, a number, or a dict, list or tuple whose members may be anything."""

_ESCAPED: Final = re.compile("[\x7f-\x9f\ud800-\udfff]")

NOT_ENCODED: Final = (RecursionError, TypeError, ValueError)
"""Of the C encoder, and of msgspec for a number that is too large: the value is written piece by piece then."""


def pretty(value: Any, shallow: Shallow | None = None, *, levels: int | None = None) -> str:
    """Return a value as JSON text that UTF-8 can hold, without a newline at its end.

    Args:
        shallow: converts the value, and then each member that is met; for what JSON and Python lack.
        levels: containers below so many levels are an error text.
    """
    import msgspec

    with contextlib.suppress(*NOT_ENCODED):
        text = _encoder(shallow, is_sorted=True)(value)
        written = value if shallow is None else msgspec.json.decode(text)  # objects may have become containers
        if not _is_deeper(written, INDENTED_LEVELS):
            return msgspec.json.format(_escaped(text), indent=2)  # the C encoder does not indent
    return _escaped("".join(_pieces(value, shallow, levels)))


def compact(value: Any, shallow: Shallow, *, levels: int | None = None) -> str:
    """As `pretty`, in one line, and with the keys in their order."""
    import msgspec

    with contextlib.suppress(*NOT_ENCODED):
        text = _encoder(shallow, is_sorted=False)(value)
        # From Python 3.12 on the C encoder takes more levels than there may be.
        containers = text.count("[") + text.count("{")
        if levels is None or containers <= levels or not _is_deeper(msgspec.json.decode(text), levels):
            return _escaped(text)
    return _escaped("".join(_pieces(value, shallow, levels, indented=0)))


@functools.cache
def _encoder(shallow: Shallow | None, *, is_sorted: bool) -> Callable[[Any], str]:
    """`json.dumps` would make an encoder at each call. NaN is an error: `shallow` may write it in another way."""
    default = _described if shallow is None else shallow
    return json.JSONEncoder(ensure_ascii=False, sort_keys=is_sorted, allow_nan=False, default=default).encode


def _escaped(text: str) -> str:
    if text.isascii() and "\x7f" not in text:
        return text
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _is_container(value: Any) -> TypeGuard[dict[Any, Any] | list[Any] | tuple[Any, ...]]:
    return isinstance(value, (dict, list, tuple))


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether containers are nested deeper than this. The value has no cycle."""
    level = [value] if _is_container(value) else []
    for _ in range(levels):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if _is_container(child)
        ]
        if not level:
            return False
    return bool(level)


class _Open(NamedTuple):
    """A container on the way, begun and not ended."""

    entries: Iterator[tuple[str, Any]]
    end: str
    identity: int


def _pieces(
    value: Any, shallow: Shallow | None = None, levels: int | None = None, *, indented: int = INDENTED_LEVELS
) -> Iterator[str]:
    """Yield the text of a value. The containers on the way are in a list, so any depth is written.

    Args:
        indented: levels whose entries have lines of their own and sorted keys; 0 for one line and keys as they are.
    """

    def line(level: int) -> str:
        return "\n" + "  " * level if level <= indented else ""

    above: list[_Open] = []
    identities: set[int] = set()
    child: Any = value
    while True:
        identity = id(child)
        if shallow is not None:
            child = shallow(child)
        if not _is_container(child):
            yield _encode(child)
        elif identity in identities:
            yield '"…"'
        elif not child:
            yield "{}" if isinstance(child, dict) else "[]"
        elif levels is not None and len(above) > levels:
            yield f'"error: nested deeper than {levels} levels"'
        else:
            is_dict = isinstance(child, dict)
            above.append(_Open(_entries(child, is_sorted=indented > 0), "}" if is_dict else "]", identity))
            identities.add(identity)
            yield "{" if is_dict else "["
            key, child = next(above[-1].entries)
            yield line(len(above)) + key
            continue
        while above and (entry := next(above[-1].entries, None)) is None:
            closed = above.pop()
            identities.discard(closed.identity)
            yield (line(len(above)) if len(above) < indented else "") + closed.end
        if not above:
            return
        key, child = entry  # type: ignore[misc]
        yield "," + (line(len(above)) or " ") + key


def _entries(container: dict[Any, Any] | list[Any] | tuple[Any, ...], *, is_sorted: bool) -> Iterator[tuple[str, Any]]:
    """Yield the entries, each with its key as text, or an empty text in a list."""
    if not isinstance(container, dict):
        for child in container:
            yield "", child
        return
    entries = [(_key(key), child) for key, child in container.items()]
    if is_sorted:
        entries.sort(key=lambda entry: entry[0])
    for key, child in entries:
        yield _encode(key) + ": ", child


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return _encode(key) if key is None or isinstance(key, (bool, int, float)) else _described(key)


def _described(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr failed: {type(error).__name__}>"


_encode = json.JSONEncoder(ensure_ascii=False, default=_described).encode
"""`json.dumps` makes an encoder at each call: a third of the time of a value with many small parts."""
