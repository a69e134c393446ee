"""Stored values without their classes, and the value of a channel from its stored parts.

LangGraph's serialiser writes MessagePack. Types that MessagePack lacks (messages, dataclasses, dates, sets …) are
extension types with the name of a Python class and its arguments. Files never need one. Such a value stays an `Ext`
here, which is not unpacked until it is needed, and `readable` turns it into plain data. No class is imported and no
function called: a checkpoint is data from another program.

A channel, such as the files or the messages, is stored in two ways. Up to deepagents 0.5 each checkpoint has the whole
value. Since then a checkpoint of a *delta channel* has none, or now and then a snapshot, and the value is rebuilt: from
the nearest ancestor that has one (or from nothing), with all writes to its ancestors since. The writes to the
checkpoint itself are for the one that follows; only those of `NULL_TASK` count as its own, as in LangGraph's
`get_state`. A thread may have both kinds of checkpoints. The reducer of deepagents joins values and writes; an
`Overwrite` starts anew.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from fusebackend.backends.threads.database.rows import NOTHING, Damaged, LeftOut, Raw
from fusebackend.base import json_text

# The codes of LangGraph's serialiser (langgraph.checkpoint.serde.jsonplus).
_OBJECTS: Final = range(6)
"""Objects by their class and, in this order: one argument, a list of them, keywords, those of a method, the fields of a
Pydantic 1 model, of a Pydantic 2 model."""

KEYWORDS: Final = 2
NUMPY: Final = 6
SNAPSHOT: Final = 7
"""A delta channel's whole value."""

_PLAIN_CLASSES = frozenset({
    "builtins.set", "builtins.frozenset", "collections.deque", "datetime.date", "datetime.datetime", "decimal.Decimal",
    "uuid.UUID", "zoneinfo.ZoneInfo",
})  # fmt: skip
"""Classes whose values are shown without their names."""

_PATHS = frozenset({"pathlib.Path", "pathlib.PosixPath", "pathlib._local.Path", "pathlib._local.PosixPath"})
"""Shown as the path. Those of `_local` are of an agent on Python 3.13."""


class Ext:
    """A value of an extension type, not unpacked."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data

    @property
    def is_object(self) -> bool:
        """Whether it stands for an object of some class."""
        return self.code in _OBJECTS

    @property
    def class_name(self) -> str | None:
        """`module.Class` of an object, None for anything else, and where it can't be read."""
        if not self.is_object:
            return None
        try:
            parts = self.parts()
        except Damaged:
            return None
        return f"{parts[0]}.{parts[1]}"

    def parts(self) -> Any:
        """Module, class, arguments, and the method's name for some; or a snapshot's value."""
        inner = unpack(self.data, _IN_OBJECT if self.is_object else IN_CHANNEL)
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
    """ModuleNotFoundError, with the package to install, where checkpoints can't be read."""
    _ormsgpack()


MAX_VALUES = 500_000
"""In one piece of MessagePack. Python's lock is held while it is unpacked: some 30 ms for so many, and 64 MiB of empty
lists would take seconds and 4 GB. LangGraph's values have few: messages are extension types, files are texts."""

COUNTED_BYTES = 1 << 20
"""A shorter piece can't have many more."""

MAX_JSON_BYTES = 16 << 20
"""Of a piece of JSON, which only old checkpoints have. It is decoded in one go, too."""

ALL_PIECES: Final = 8
"""All pieces of a value together may have so many times what one may."""

MAX_MEMBERS = 200_000
"""So many pieces are read one by one: in some seconds, with Python's lock free in between."""

MAX_SHOWN_CHARS: Final = 200
"""Of a key in a line of the log."""

IN_DOCUMENT: Final = 3
"""Levels of a checkpoint's document whose members can be read one by one: its fields, the channels, and what is in one,
such as files or messages."""

IN_CHANNEL: Final = 1
"""The same of a channel's value by itself."""

_IN_OBJECT: Final = 4
"""The same of an object: its parts, its arguments, and a channel in an `Overwrite`."""


class _PiecesLeft:
    """How much all pieces of a value together may still have, and how many they may be."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.members = MAX_MEMBERS


class _Format(NamedTuple):
    """How values are stored, and how large a piece may be that is decoded in one go."""

    name: str
    decode: Callable[[bytes], Any]
    """ValueError, TypeError, RecursionError."""
    split: Callable[[bytes], dict[Any, Any] | list[Any]]
    """The members of a mapping or list, as bytes. ValueError, RecursionError."""
    size: Callable[[bytes], int]
    most: int
    few_bytes: int
    """So many can't have many more than `most`: not measured."""
    too_large: str

    def read(self, data: bytes, levels: int) -> Any:
        """A value. Where it is too large or damaged, its members are read one by one, and those that are so themselves
        are `LeftOut`.

        Args:
            levels: the levels of members.

        Raises:
            Damaged: it can't be read, and has no members that can.
        """
        try:
            if len(data) > self.few_bytes and self.size(data) > self.most:
                raise Damaged(self.too_large)
            return self._decoded(data)
        except Damaged as error:
            if not levels:
                raise
            return self._members(data, levels, _PiecesLeft(self.most * ALL_PIECES), error)

    def _members(self, data: bytes, levels: int, room: _PiecesLeft, error: Damaged) -> Any:
        """Raises the error of the whole where that has no members."""
        try:
            members = self.split(data)
        except (ValueError, RecursionError):
            raise error from None
        room.members -= len(members)
        if room.members < 0:
            raise error
        pairs = list(members.items() if isinstance(members, dict) else enumerate(members))
        found: dict[Any, Any] = dict.fromkeys(key for key, _ in pairs)
        for key, member in sorted(pairs, key=lambda pair: len(pair[1])):  # the largest may find no room
            found[key] = self._member(bytes(member), levels - 1, room)
        return found if isinstance(members, dict) else list(found.values())

    def _member(self, data: bytes, levels: int, room: _PiecesLeft) -> Any:
        size = self.size(data)
        try:
            if size > self.most:
                raise Damaged(self.too_large)
            if size <= room.left:
                value = self._decoded(data)
                room.left -= size
                return value
        except Damaged as error:
            with contextlib.suppress(Damaged):
                if levels:
                    return self._members(data, levels, room, error)
            return LeftOut(str(error))
        return LeftOut(self.too_large)

    def _decoded(self, data: bytes) -> Any:
        try:
            return self.decode(data)
        except (ValueError, TypeError, RecursionError) as error:
            raise Damaged(f"not valid {self.name}: {error}") from None


def _decoded_pack(data: bytes) -> Any:
    library = _ormsgpack()
    return library.unpackb(data, ext_hook=Ext, option=library.OPT_NON_STR_KEYS)


def _split_pack(data: bytes) -> dict[Any, Any] | list[Any]:
    if not data or _members_of(data) > MAX_MEMBERS:
        raise ValueError("no members, or too many")
    return msgspec.msgpack.decode(data, type=dict[Any, msgspec.Raw] | list[msgspec.Raw])


def _split_json(data: bytes) -> dict[Any, Any] | list[Any]:
    if data.count(b",") > MAX_VALUES * ALL_PIECES:
        raise ValueError("too many members")
    return msgspec.json.decode(data, type=dict[str, msgspec.Raw] | list[msgspec.Raw])


_PACK: Final = _Format(
    "MessagePack",
    _decoded_pack,
    _split_pack,
    lambda data: _count(data, MAX_VALUES),
    MAX_VALUES,
    COUNTED_BYTES,
    f"MessagePack with more than {MAX_VALUES:,} values",
)
_JSON: Final = _Format(
    "JSON", json.loads, _split_json, len, MAX_JSON_BYTES, 0, f"JSON of more than {MAX_JSON_BYTES >> 20} MiB"
)


def unpack(data: bytes, levels: int = 0) -> Any:
    """MessagePack as plain data and `Ext`. `levels` as for `_Format.read`."""
    return _PACK.read(data, levels)


_LENGTHS = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0), 0xDA: (2, 0),
    0xDB: (4, 0),
}  # fmt: skip
"""First bytes of values with a length: the size of that length, and the number of further bytes."""

_SIZES = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3,
    0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""First bytes of values with a fixed length, and the length."""

_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First bytes of arrays and maps: the size of the count, and the values in an item."""


def _count(data: bytes, most: int) -> int:
    """Count the values of MessagePack without making them, up to one more than `most`. Strings are skipped, and other
    threads may run meanwhile."""
    count, left, at = 0, 1, 0
    size = len(data)
    while left and at < size and count <= most:
        count += 1
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
    return count


def _members_of(data: bytes) -> int:
    """The members that MessagePack says its array or map has."""
    if data[0] in _CONTAINERS:
        return int.from_bytes(data[1 : 1 + _CONTAINERS[data[0]][0]])
    return data[0] & 0x0F


def parts_of(kind: str | None, data: Any) -> dict[str, Any]:
    """The members of a mapping, each as it is stored. Damaged."""
    try:
        found: dict[str, Any] = _codec(kind).decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"it can't be taken apart: {error}") from None
    return found


def joined(kind: str, members: Mapping[str, Any]) -> bytes:
    """A mapping as it is stored, of values, and of such that are stored."""
    return bytes(_codec(kind).encode(members))


def _codec(kind: str | None) -> Any:
    return msgspec.msgpack if kind == "msgpack" else msgspec.json


def pack(value: Any) -> Raw:
    """Plain data as LangGraph stores it. Damaged for anything else, such as an `Ext` or `LeftOut`, a dataclass."""
    library = _ormsgpack()
    option = library.OPT_NON_STR_KEYS | library.OPT_REPLACE_SURROGATES | library.OPT_PASSTHROUGH_DATACLASS
    try:
        return Raw("msgpack", library.packb(value, option=option))
    except TypeError as error:
        raise Damaged(f"a value can't be stored: {error}") from None


def loads(raw: Raw, levels: int = IN_CHANNEL) -> Any:
    """A stored value as plain data and `Ext`, with `LeftOut` for the members down to some levels that can't be read.

    Args:
        levels: `IN_CHANNEL` or `IN_DOCUMENT`.
    """
    kind, data = raw.kind, raw.data
    if not isinstance(kind, str | None) or not isinstance(data, bytes | bytearray | memoryview | str | None):
        raise Damaged(f"a value is kept as {type(kind).__name__} and {type(data).__name__}")
    if kind == "null":
        return None
    if data is None:
        raise Damaged(f"a value of the type {kind!r} is missing")
    if kind == "msgpack":
        if isinstance(data, str):
            raise Damaged("not valid MessagePack: it is kept as text")
        return unpack(data, levels)
    if kind in ("bytes", "bytearray"):
        return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)
    if kind == "json":
        return _JSON.read(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data), levels)
    if kind is not None and "+" in kind:
        raise Damaged(f"encrypted ({kind}): only the program that has the key can read it")
    if kind == "pickle":
        raise Damaged("pickled: reading it would run code from the database")
    raise Damaged(f"the serialisation {kind!r} is not known")


def snapshot(value: Any) -> Any:
    """The value of a channel: a delta channel's snapshot is unpacked, also that of LangGraph.js, which is JSON."""
    if isinstance(value, Ext):
        return value.parts() if value.code == SNAPSHOT else value
    is_snapshot = isinstance(value, Mapping) and value.get("lc") == 2 and value.get("type") == "delta_snapshot"
    return value["value"] if is_snapshot and "value" in value else value


def shallow(value: Any) -> Any:
    """A value as JSON has it: None, a string, a number, or a dict or list whose members are not converted yet.

    The class of an object is under `__class__`. Damaged for an extension type that does not hold what it should.
    """
    if value is None or isinstance(value, (str, int)):  # bool is an int
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return value
    if isinstance(value, LeftOut):
        return {"error": value.reason}
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"__bytes__": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Ext):
        return _shallow_ext(value)
    return str(value)


def _shallow_ext(ext: Ext) -> Any:
    if ext.code == SNAPSHOT:
        return shallow(ext.parts())
    if ext.code == NUMPY:
        parts = ext.parts()
        if not isinstance(parts, (list, tuple)) or len(parts) != 4:
            raise Damaged(f"extension type {ext.code} does not hold what it should")
        return {"__class__": "numpy.ndarray", "dtype": parts[0], "shape": parts[1], "data": parts[3]}
    if not ext.is_object:
        return {"__extension__": ext.code, **shallow(ext.data)}
    parts = ext.parts()
    name, argument = f"{parts[0]}.{parts[1]}", shallow(parts[2])
    if name in _PATHS and isinstance(argument, list):
        return "/".join(str(part) for part in argument).replace("//", "/", 1)
    if name in _PLAIN_CLASSES:
        return argument
    if isinstance(argument, dict):
        return {"__class__": name, **argument}
    return {"__class__": name, "value": argument}


# -- channels --------------------------------------------------------------------------------------------------------

_OVERWRITE: Final = "__overwrite__"
_OVERWRITE_CLASS: Final = "langgraph.types.Overwrite"

REMOVE_ALL: Final = "__remove_all__"
"""The id of the `RemoveMessage` that stands for all messages."""

_nameless = itertools.count()


class FilesChannel:
    """The channel `files`: a dict from key to record; None deletes a key.

    A key that is no text is left out: no path could be its.

    Args:
        keep: turns a record into the kept value.
        tell: is called with a line about each part that is left out.
    """

    name: Final = "files"

    def __init__(
        self, keep: Callable[[Any], Any] = lambda record: record, tell: Callable[[str], None] = lambda what: None
    ) -> None:
        self._keep = keep
        self._tell = tell

    def whole(self, stored: Any) -> dict[str, Any]:
        """A stored value."""
        value = snapshot(stored)
        if value is None or value is NOTHING:
            return {}
        if not isinstance(value, Mapping):
            raise Damaged(f"'files'{_why_not(value, 'mapping')}")
        return self.merge({}, value)

    def merge(self, files: dict[str, Any], written: Any) -> dict[str, Any]:
        """One write on top, in place."""
        if not isinstance(written, Mapping):
            raise Damaged(f"a write to 'files'{_why_not(written, 'mapping')}")
        for key, record in written.items():
            if not isinstance(key, str):
                self._tell(f"'files' has the key {str(key)[:MAX_SHOWN_CHARS]!r}, which is no text; not shown")
            elif record is None:
                files.pop(key, None)
            else:
                files[key] = self._keep(record)
        return files


class Message(dict[str, Any]):
    """A message as a dict with a `type` (human, ai, tool, system …). `stored` is what it was made of, if that is one
    object's bytes. The other attributes are for `MessageIndex`."""

    __slots__ = ("digest", "line_bytes", "stored")

    def __init__(self, fields: Mapping[str, Any], stored: bytes | None = None) -> None:
        super().__init__(fields)
        self.stored = stored
        self.digest: str | None = None
        self.line_bytes = 0


class MessagesChannel:
    """The channel `messages`: a list of plain messages; one with a known id replaces that, and some remove others.

    The same stored bytes give the same object, so reading a conversation at each of its checkpoints decodes a message
    once; and stored values that are equal give one mapping, so that an index passes over most checkpoints.
    """

    name: Final = "messages"

    def __init__(self) -> None:
        self._decoded: dict[bytes, Message] = {}
        self._latest: Mapping[str, Message] = {}  # the value that was read last

    def whole(self, stored: Any) -> Mapping[str, Any]:
        """A stored value. Every message in it counts, also a second one with the same id: a reducer made it so."""
        value = snapshot(stored)
        if value is None or value is NOTHING:
            return {}
        if isinstance(value, LeftOut):
            raise Damaged(f"'messages': {value.reason}")
        items = value if isinstance(value, (list, tuple)) else [value]
        same = self._same(items)
        if same == len(items) == len(self._latest):
            return self._latest
        messages = dict(itertools.islice(self._latest.items(), same))
        for item in items[same:]:
            message = self._plain(item)
            key = message.get("id")
            messages[_key(None if key is None or str(key) in messages else key)] = message
        self._latest = messages
        return messages

    def _same(self, items: Sequence[Any]) -> int:
        """How many items at the beginning are those of the value that was read last."""
        same = 0
        for message, item in zip(self._latest.values(), items, strict=False):
            if not isinstance(item, Ext) or item.data != message.stored:
                break
            same += 1
        return same

    def merge(self, messages: dict[str, Any], written: Any) -> dict[str, Any]:
        """One write on top, in place. The keys are ids, or generated ones where a message has none."""
        for item in written if isinstance(written, list) else [written]:
            message = self._plain(item)
            key = message.get("id")
            if message.get("type") == "remove":
                if key == REMOVE_ALL:
                    messages.clear()
                else:
                    messages.pop(str(key), None)
                continue
            messages[_key(key)] = message
        return messages

    def _plain(self, item: Any) -> Message:
        if not isinstance(item, Ext):
            return Message(_any_message(item))
        message = self._decoded.get(item.data)
        if message is None:
            message = self._decoded[item.data] = Message(_any_message(item), item.data)
        return message


def _key(id_: Any) -> str:
    return f"\0{next(_nameless)}" if id_ is None else str(id_)


Channel: TypeAlias = FilesChannel | MessagesChannel


def replay(channel: Channel, value: Mapping[str, Any], written: Iterable[Any]) -> Mapping[str, Any]:
    """A value with the writes of many steps on top, oldest first. The value itself is not changed."""
    result: dict[str, Any] | None = None
    for item in written:
        new = overwriting(item)
        if new is not NOTHING:
            result = dict(channel.whole(new))
        else:
            result = channel.merge(dict(value) if result is None else result, item)
    return value if result is None else result


def update(channel: Channel, value: Mapping[str, Any], written: Iterable[Any]) -> Mapping[str, Any]:
    """A value with the writes of one step on top. An `Overwrite` among them replaces all."""
    written = list(written)
    for item in written:
        new = overwriting(item)
        if new is not NOTHING:
            return channel.whole(new)
    return replay(channel, value, written)


def overwriting(value: Any) -> Any:
    """The value of an `Overwrite`, in each of its three forms; `NOTHING` for any other write."""
    if isinstance(value, Ext):
        if value.code == KEYWORDS and value.class_name == _OVERWRITE_CLASS:
            arguments = value.parts()[2]
            return arguments.get("value") if isinstance(arguments, Mapping) else NOTHING
        return NOTHING
    if isinstance(value, Mapping):
        if len(value) == 1 and _OVERWRITE in value:
            return value[_OVERWRITE]
        if value.get("type") == _OVERWRITE and "value" in value:
            return value["value"]
    return NOTHING


_TYPE_OF_ROLE = {"user": "human", "assistant": "ai", "developer": "system"}


def _any_message(value: Any) -> dict[str, Any]:
    """As `plain_message`. A message that can't be read becomes one of the type `unreadable`, which says why."""
    try:
        return plain_message(value)
    except Damaged as error:
        return {"type": "unreadable", "error": str(error)}


def plain_message(value: Any) -> dict[str, Any]:
    """A message as a dict with a `type` (human, ai, tool, system …), from each form in which one is stored."""
    if isinstance(value, Ext):
        parts = value.parts() if value.is_object else ()
        if not parts or not isinstance(parts[2], Mapping):
            raise Damaged(f"a message is no object but extension type {value.code}")
        return _typed(parts[2], str(parts[1]))
    if isinstance(value, str):
        return {"type": "human", "content": value}
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return {"type": _TYPE_OF_ROLE.get(str(value[0]), str(value[0])), "content": value[1]}
    if isinstance(value, Mapping):
        if value.get("type") == "constructor" and isinstance(value.get("kwargs"), Mapping):  # LangChain's JSON
            return _typed(value["kwargs"], str((value.get("id") or [""])[-1]))
        if "role" in value and "type" not in value:
            role = str(value["role"])
            rest = {key: item for key, item in value.items() if key != "role"}
            return {"type": _TYPE_OF_ROLE.get(role, role), **rest}
        return {str(key): item for key, item in value.items()}
    raise Damaged(f"a message{_why_not(value, 'object')}")


def _typed(arguments: Mapping[Any, Any], class_name: str) -> dict[str, Any]:
    """A message with the type of its class, where its arguments have none: `HumanMessage` is `human`."""
    type_name = arguments.get("type") or class_name.removesuffix("Chunk").removesuffix("Message").lower()
    return {"type": type_name, **{str(key): item for key, item in arguments.items() if key != "type"}}


def _why_not(value: Any, wanted: str) -> str:
    if isinstance(value, LeftOut):
        return f": {value.reason}"
    return f" is no {wanted} but {f'extension type {value.code}' if isinstance(value, Ext) else type(value).__name__}"


# -- as JSON -----------------------------------------------------------------------------------------------------
#
# Values of a checkpoint as JSON. A part that can't be read is an object with the key `error`; the rest is shown.

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
