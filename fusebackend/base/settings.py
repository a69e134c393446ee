"""What a setting is: a field of a `Table`, declared once.

    class LogOptions(Table, frozen=True):
        commands: Annotated[Commands, Setting("Commands without their secrets; in full; or …")] = "masked"

The field is the record's, the key of a TOML file, and where it stands in `config.MountSettings` a keyword of `mount()`,
a word of `-o` and an option of the command line, with the same text in every help and reference. `read_table` parses a
table of a file, and names the place of what is wrong.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from fusebackend.base.errors import UserError
from fusebackend.base.sizes import quantity, short_size, size_bytes

_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


class ConfigError(UserError, ValueError):
    """A configuration is invalid. Its `str` is one line for the user."""


class UnreadableConfigError(ConfigError):
    """Its file can't be read now: it may be there later, as a disk that is mounted late."""


def duration_s(value: float | str) -> float:
    """Parse a length of time into seconds: a number, or text such as `1 s`, `500 ms`, `2 min`, `1 h`.

    Raises:
        ConfigError: `value` is none of these, negative, or not finite.
    """
    seconds = quantity(value, _UNIT_S)
    if seconds is None:
        raise ConfigError(f"'{value}' is no length of time; write seconds, or for example '500 ms', '1 s', '2 min'")
    if seconds == math.inf:
        raise ConfigError(f"'{value}' is too long")
    return seconds


class Unit(NamedTuple):
    """A quantity that people write with its unit."""

    metavar: str
    reads: Callable[[Any], float]
    name: str
    shown: Callable[[Any], str]


TIME = Unit("TIME", duration_s, "seconds", "{:g} s".format)
SIZE = Unit("SIZE", size_bytes, "bytes", short_size)


@dataclass(frozen=True)
class Setting:
    """What stands beside the type of a field."""

    text: str
    """What it does, for every help and reference."""
    key: str = ""
    """Its name in files and on the command line, where that is not the field's."""
    unit: Unit | None = None
    words: tuple[str, ...] = ()
    """The `-o` words of a switch for on and off, where they are not its key."""
    in_files: bool = True
    """False: for Python alone."""
    is_inline: bool = False
    """The field is a table whose keys stand in this one."""


class Field(NamedTuple):
    """A field of a table with its setting. `default` is `msgspec.NODEFAULT` where a value must be given."""

    name: str
    key: str
    type: Any
    setting: Setting
    default: Any

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be; none if it is something else."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def is_table(self) -> bool:
        """Whether TOML writes it as a table."""
        return bool(self.records) or get_origin(self.type) is Mapping

    @property
    def records(self) -> list[type[msgspec.Struct]]:
        """The tables in its type."""
        return _records_in(self.type)

    def read(self, value: Any, place: str) -> Any:
        """Return a value of a file or of the command line as the field has it.

        Raises:
            ConfigError: it is of another type, or malformed. The message names `place`.
        """
        return _read(self.type, self.setting.unit, value, place)


@functools.cache
def settings_of(table: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the settings of a table, in their order."""
    found = []
    for info in msgspec.structs.fields(table):
        kind, *beside = get_args(info.type) if get_origin(info.type) is Annotated else (info.type,)
        setting = next((each for each in beside if isinstance(each, Setting)), Setting(""))
        default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
        found.append(Field(info.name, setting.key or info.name, kind, setting, default))
    return tuple(found)


def keys_of(table: type[msgspec.Struct]) -> Iterator[Field]:
    """Yield the settings that a table of a file may have, those of inline tables among them."""
    for field in settings_of(table):
        if field.setting.is_inline:
            yield from keys_of(field.type)
        elif field.setting.in_files:
            yield field


class Table(msgspec.Struct, frozen=True):
    """A record of settings.

    Raises:
        ConfigError: a setting is none of its choices.
    """

    def __post_init__(self) -> None:
        for field in settings_of(type(self)):
            value = getattr(self, field.name)
            if field.choices and value not in field.choices:
                raise ConfigError(f"{field.key} = {value!r}: give one of {', '.join(field.choices)}")


T = TypeVar("T", bound=msgspec.Struct)


def read_table(table: type[T], said: Mapping[str, Any], place: str = "", start: T | None = None) -> T:
    """Parse a table of a file.

    Args:
        place: its dotted key; empty for the file itself.
        start: has the values of missing keys, in place of the defaults.

    Raises:
        ConfigError: it has an unknown key, lacks one, or a value is invalid.
    """
    before = f"{place}." if place else ""
    known = {field.key: field for field in keys_of(table)}
    for key in said:
        if key not in known:
            raise ConfigError(f"unknown key '{before}{key}'; known: {', '.join(known)}")
    given = {}
    for field in settings_of(table):
        if field.setting.is_inline:
            its = {each.key for each in keys_of(field.type)}
            given[field.name] = read_table(
                field.type, {key: said[key] for key in said if key in its}, place, field.default
            )
        elif field.key in said:
            given[field.name] = field.read(said[field.key], before + field.key)
        elif field.default is msgspec.NODEFAULT:
            raise ConfigError(f"'{place}': {field.key} is missing" if place else f"{field.key} is missing")
    try:
        return table(**given) if start is None else msgspec.structs.replace(start, **given)
    except ValueError as error:
        raise ConfigError(f"[{place}]: {error}" if place else str(error)) from None


def _read(kind: Any, unit: Unit | None, value: Any, place: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(value, dict) and origin is Mapping:
        return {name: _read(parts[1], None, each, f"{place}.{name}") for name, each in value.items()}
    if isinstance(value, dict) and _records_in(kind):
        return read_table(_records_in(kind)[0], value, place)
    if isinstance(value, list) and origin is Sequence:
        return [_read(parts[0], None, each, f"{place}[{number}]") for number, each in enumerate(value, 1)]
    if unit is not None and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return unit.reads(value)
        except ValueError as error:
            raise ConfigError(f"'{place}': {error}") from None
    try:
        return msgspec.convert(value, str if origin is Literal else kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"'{place}': {_in_words(str(error), unit)}") from None


def _records_in(kind: Any) -> list[type[msgspec.Struct]]:
    """Return the tables in a type: it, or those that it has as parts."""
    return [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, msgspec.Struct)]


_TYPES = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text", "object": "a table",
    "array": "a list",
}  # fmt: skip
"""msgspec's names of types, in the words of the error messages."""


def _in_words(message: str, unit: Unit | None) -> str:
    """Turn msgspec's "Expected `int`, got `str`" into "expected a whole number, got a text"."""
    what = message.partition(" - at ")[0].replace("`", "").replace(" | null", "")
    what = what.replace("object | ", "").replace(" | object", "")
    if unit is not None:
        what = re.sub(r"(?<=Expected )\w+", "float", what)
    what = re.sub(r"\b(bool|int|float|str|object|array)\b", lambda found: _TYPES[found[0]], what)
    return what[:1].lower() + what[1:]
