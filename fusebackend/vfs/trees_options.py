"""`TreesOptions`: the name of the mount's trees directory, and whether listings of the root have it.

Validated where it is made, so that a wrong value is refused before anything is mounted.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fusebackend.base.paths import TREES_NAME, to_name, why_no_name
from fusebackend.base.settings import ConfigError, Setting, Table
from fusebackend.protocol import NAME_MAX_BYTES

Shown = Literal["hidden", "visible", "off"]


class TreesOptions(Table, frozen=True):
    """How a mount shows its trees directory.

    Raises:
        ConfigError: `shown` is another word, or `name` can't be the name of a directory.
    """

    shown: Annotated[
        Shown,
        Setting(
            "The mount's own directory: hidden, it is there when named, and in no listing; visible in listings of the "
            "root; or off: it is not there, and its name is the default volume's.",
            "trees",
        ),
    ] = "hidden"
    name: Annotated[str, Setting("The name of that directory.", "trees_name")] = TREES_NAME

    def __post_init__(self) -> None:
        super().__post_init__()
        why = _why_no_name(self.name)
        if why is not None:
            raise ConfigError(f"trees_name = {self.name!r} {why}; give one name, such as {TREES_NAME!r}")


def _why_no_name(name: object) -> str | None:
    if not isinstance(name, str):
        return f"is {type(name).__name__} and not text"
    why = why_no_name(name)
    if why is not None:
        return why
    if name.startswith("~"):
        return "begins with '~', which no path of an agent does"
    return f"is longer than {NAME_MAX_BYTES} bytes" if len(to_name(name)) > NAME_MAX_BYTES else None
