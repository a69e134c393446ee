"""`TreesOptions`: the name of the mount's trees directory, and whether listings of the root have it.

Validated where it is made, so that a wrong value is refused before anything is mounted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from fusebackend.base.paths import TREES_NAME, to_name, why_no_name
from fusebackend.protocol import NAME_MAX_BYTES

Shown = Literal["hidden", "visible", "off"]


@dataclass(frozen=True)
class TreesOptions:
    """How a mount shows its trees directory.

    Attributes:
        shown: `hidden`: it is there when named, and in no listing. `visible`: listings of the root have it. `off`: it
            is not there, and its name is the default volume's.
        name: in the root of the mount.

    Raises:
        ValueError: `shown` is another word, or `name` can't be the name of a directory.
    """

    shown: Shown = "hidden"
    name: str = TREES_NAME

    def __post_init__(self) -> None:
        if self.shown not in get_args(Shown):
            raise ValueError(f"trees={self.shown!r}: give one of {', '.join(get_args(Shown))}")
        why = _why_no_name(self.name)
        if why is not None:
            raise ValueError(f"trees_name={self.name!r} {why}; give one name, such as {TREES_NAME!r}")

    @classmethod
    def of(cls, shown: str | None, name: str | None) -> TreesOptions:
        """Return the options that were given as text; None is the default of each."""
        return cls(cast("Shown", cls.shown if shown is None else shown), cls.name if name is None else name)


def _why_no_name(name: object) -> str | None:
    if not isinstance(name, str):
        return f"is {type(name).__name__} and not text"
    why = why_no_name(name)
    if why is not None:
        return why
    if name.startswith("~"):
        return "begins with '~', which no path of an agent does"
    return f"is longer than {NAME_MAX_BYTES} bytes" if len(to_name(name)) > NAME_MAX_BYTES else None
