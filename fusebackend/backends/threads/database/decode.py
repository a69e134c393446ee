"""Stored values, without the classes they were made from.

LangGraph's serialiser writes MessagePack; what MessagePack has no word for (messages, dataclasses, dates, sets …) are
extension types that name a Python class and its arguments. Files never need one. Here such a value stays an `Ext`,
which costs nothing until somebody looks into it, and `readable` turns it into plain data for people. No class is
imported and nothing is called: a checkpoint is data from somebody else.
"""

from __future__ import annotations

import base64
import json
import math
from functools import lru_cache
from typing import Any, Final

from fusebackend.backends.threads.database.rows import Damaged, Raw

# The codes of LangGraph's serialiser (langgraph.checkpoint.serde.jsonplus).
SINGLE_ARGUMENT: Final = 0
POSITIONAL: Final = 1
KEYWORDS: Final = 2
METHOD: Final = 3
PYDANTIC_V1: Final = 4
PYDANTIC_V2: Final = 5
NUMPY: Final = 6
SNAPSHOT: Final = 7
"""A delta channel's whole value."""

_NAMED = frozenset({SINGLE_ARGUMENT, POSITIONAL, KEYWORDS, METHOD, PYDANTIC_V1, PYDANTIC_V2})

_PLAIN_CLASSES = frozenset({
    "builtins.set", "builtins.frozenset", "collections.deque", "datetime.date", "datetime.datetime", "decimal.Decimal",
    "uuid.UUID", "zoneinfo.ZoneInfo",
})  # fmt: skip
"""What people can read without being told the class."""


class Ext:
    """A value of an extension type, not looked into."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data

    @property
    def is_object(self) -> bool:
        """Does it stand for an object of some class?"""
        return self.code in _NAMED

    @property
    def class_name(self) -> str | None:
        """`module.Class` of an object, None for anything else."""
        if not self.is_object:
            return None
        parts = self.parts()
        return f"{parts[0]}.{parts[1]}"

    def parts(self) -> Any:
        """Module, class, arguments, and the method's name for some; or a snapshot's value."""
        inner = unpack(self.data)
        if self.is_object and not (isinstance(inner, (list, tuple)) and len(inner) >= 3):
            raise Damaged(f"extension type {self.code} does not hold what it should")
        return inner


@lru_cache(maxsize=1)
def _ormsgpack() -> Any:
    try:
        import ormsgpack
    except ImportError:
        raise ModuleNotFoundError(
            "reading checkpoints needs ormsgpack: pip install 'fusebackend[langgraph]'", name="ormsgpack"
        ) from None
    return ormsgpack


def require() -> None:
    """ModuleNotFoundError, with what to install, where checkpoints can't be read."""
    _ormsgpack()


MAX_VALUES = 500_000
"""In one piece of MessagePack. Python's lock is held while it is unpacked: some 30 ms for so many, and 64 MiB of empty
lists would take seconds and 4 GB. What LangGraph stores has few: messages are extension types, files are texts."""

COUNTED_BYTES = 1 << 20
"""A shorter piece can't have many more."""

MAX_JSON_BYTES = 16 << 20
"""Of values in JSON, which only old checkpoints have. It is decoded in one go, too."""


def unpack(data: bytes) -> Any:
    """MessagePack as plain data and `Ext`."""
    library = _ormsgpack()
    if len(data) > COUNTED_BYTES and _has_more_values(data, MAX_VALUES):
        raise Damaged(f"MessagePack with more than {MAX_VALUES:,} values")
    try:
        return library.unpackb(data, ext_hook=Ext, option=library.OPT_NON_STR_KEYS)
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"not valid MessagePack: {error}") from None


_LENGTHS = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0), 0xDA: (2, 0),
    0xDB: (4, 0),
}  # fmt: skip
"""First bytes of what has its length in front: how many bytes the length has, and how many follow besides."""

_SIZES = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3,
    0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""First bytes of what has a fixed length, and that."""

_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First bytes of arrays and maps: how many bytes the count has, and how many values each item is."""


def _has_more_values(data: bytes, most: int) -> bool:
    """Count the values of MessagePack without making them. Strings are skipped, and others get turns meanwhile."""
    count, left, at = 0, 1, 0
    size = len(data)
    while left and at < size:
        count += 1
        if count > most:
            return True
        left -= 1
        byte = data[at]
        at += 1
        if byte < 0x80 or byte >= 0xE0:
            continue
        if byte < 0xA0:
            left += (byte & 0x0F) * (2 if byte < 0x90 else 1)
        elif byte < 0xC0:
            at += byte & 0x1F
        elif byte in _SIZES:
            at += _SIZES[byte]
        elif byte in _LENGTHS:
            width, more = _LENGTHS[byte]
            at += width + more + int.from_bytes(data[at : at + width])
        elif byte in _CONTAINERS:
            width, values = _CONTAINERS[byte]
            left += values * int.from_bytes(data[at : at + width])
            at += width
    return False


def pack(value: Any) -> Raw:
    """Plain data as LangGraph stores it."""
    library = _ormsgpack()
    try:
        return Raw("msgpack", library.packb(value, option=library.OPT_NON_STR_KEYS | library.OPT_REPLACE_SURROGATES))
    except TypeError as error:
        raise Damaged(f"a value can't be stored: {error}") from None


def loads(raw: Raw) -> Any:
    """A stored value as plain data and `Ext`."""
    kind, data = raw.kind, raw.data
    if not isinstance(kind, str | None) or not isinstance(data, bytes | bytearray | memoryview | str | None):
        raise Damaged(f"a value is kept as {type(kind).__name__} and {type(data).__name__}")
    if kind == "null":
        return None
    if data is None:
        raise Damaged(f"a value of the type {kind!r} is missing")
    if kind == "msgpack":
        return unpack(data)
    if kind in ("bytes", "bytearray"):
        return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)
    if kind == "json":
        if len(data) > MAX_JSON_BYTES:
            raise Damaged(f"JSON of more than {MAX_JSON_BYTES >> 20} MiB")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"not valid JSON: {error}") from None
    if kind is not None and "+" in kind:
        raise Damaged(f"encrypted ({kind}): only the program that has the key can read it")
    if kind == "pickle":
        raise Damaged("pickled: reading it would run code from the database")
    raise Damaged(f"the serialisation {kind!r} is not known")


def snapshot(value: Any) -> Any:
    """The value of a channel: what is in a delta channel's snapshot, anything else as it is."""
    return value.parts() if isinstance(value, Ext) and value.code == SNAPSHOT else value


def readable(value: Any) -> Any:
    """Plain data that JSON can hold. What has a class of its own says so under `__class__`."""
    try:
        return _readable(value)
    except RecursionError:
        raise Damaged("nested too deeply") from None


def _readable(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):  # bool is an int
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _readable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"__bytes__": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Ext):
        return _readable_ext(value)
    return str(value)


def _readable_ext(ext: Ext) -> Any:
    if ext.code == SNAPSHOT:
        return _readable(ext.parts())
    if ext.code == NUMPY:
        dtype, shape, _order, data = ext.parts()
        return {"__class__": "numpy.ndarray", "dtype": dtype, "shape": _readable(shape), "data": _readable(data)}
    if not ext.is_object:
        return {"__extension__": ext.code, **_readable(ext.data)}
    parts = ext.parts()
    name, argument = f"{parts[0]}.{parts[1]}", _readable(parts[2])
    if name in ("pathlib.Path", "pathlib.PosixPath") and isinstance(argument, list):
        return "/".join(str(part) for part in argument).replace("//", "/", 1)
    if name in _PLAIN_CLASSES:
        return argument
    if isinstance(argument, dict):
        return {"__class__": name, **argument}
    return {"__class__": name, "value": argument}
