"""`TreesOptions`: the name of the mount's trees directory, and whether listings of the root have it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fusebackend.base.paths import TREES_NAME, to_name, why_no_name
from fusebackend.base.settings import ConfigError
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
