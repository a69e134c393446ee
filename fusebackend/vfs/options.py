"""`TreesOptions` and `RouteLimits`: how a mount shows its trees directory, and how long a route is waited for."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

from fusebackend.base.paths import TREES_NAME, to_name, why_no_name
from fusebackend.base.settings import TIME, ConfigError, Setting, Table
from fusebackend.protocol import NAME_MAX_BYTES

Shown = Literal["hidden", "visible", "off"]
"""`hidden`: it is there when named, and in no listing. `visible`: listings of the root have it. `off`: it is not there,
and its name is the default volume's."""


class TreesOptions(NamedTuple):
    """How a mount shows its trees directory: `MountSettings.trees` and `trees_name`."""

    shown: Shown = "hidden"
    name: str = TREES_NAME


def check_name(name: object) -> None:
    """Refuse what can't be the name of the trees directory.

    Raises:
        ConfigError: it can't, and why.
    """
    why = _why_no_name(name)
    if why is not None:
        raise ConfigError(f"trees_name = {name!r} {why}; give one name, such as {TREES_NAME!r}")


def _why_no_name(name: object) -> str | None:
    if not isinstance(name, str):
        return f"is {type(name).__name__} and not text"
    why = why_no_name(name)
    if why is not None:
        return why
    if name.startswith("~"):
        return "begins with '~', which no path of an agent does"
    return f"is longer than {NAME_MAX_BYTES} bytes" if len(to_name(name)) > NAME_MAX_BYTES else None


DEFAULT_DEADLINE_S = 30.0
"""How long one call into a blocking volume may take."""

DEFAULT_MAX_CALLS = 64
"""How many calls into one blocking volume run at once; more wait, under the same deadline."""

MOST_CALLS = 1024
"""Each is a thread."""


class RouteLimits(Table, frozen=True):
    """How long one call into a route that may wait for a network can take, and how many run at once.

    None: as for the mount as a whole.
    """

    deadline_s: Annotated[float | None, Setting("How long a call to the service may take.", "deadline", TIME)] = None
    max_calls: Annotated[int | None, Setting("How many calls run at once; more wait.")] = None

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not 0 < self.deadline_s < math.inf:
            raise ValueError(f"a deadline of {self.deadline_s!r} s: give a number of seconds above 0")
        if self.max_calls is not None and not 1 <= self.max_calls <= MOST_CALLS:
            raise ValueError(f"max_calls is {self.max_calls!r}: give a number from 1 to {MOST_CALLS}")
