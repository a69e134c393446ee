"""Parameters of URLs that several backends know, and how values are read. A name means the same in all of them."""

from __future__ import annotations

import re
from collections.abc import Callable

from fusebackend.base.sizes import EXAMPLES, size_bytes
from fusebackend.protocol.scheme import Parameter


def one_of(*known: str) -> Callable[[str], str]:
    """Return a reader of one of these words."""

    def read(value: str) -> str:
        if value not in known:
            raise ValueError(f"must be {' or '.join(map(repr, known))}")
        return value

    return read


def auto_or_off(value: str) -> bool:
    """Read `auto` or `off`."""
    return one_of("auto", "off")(value) == "auto"


def positive(value: str) -> int:
    """Read a whole number above 0."""
    if not re.fullmatch("[0-9]{1,12}", value) or int(value) == 0:
        raise ValueError("must be a whole number above 0")
    return int(value)


def seconds(value: str) -> float:
    """Read a number of seconds."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        raise ValueError("must be a number of seconds")
    return float(value)


def _size(value: str) -> int:
    try:
        size = size_bytes(value)
    except ValueError:
        size = 0
    if size == 0:
        raise ValueError(f"must be a size above 0 ({EXAMPLES})")
    return size


ON_EXISTS = {
    "on_exists": Parameter(
        one_of("error", "replace"), "an agent's write to a file that is there: error (default) or replace"
    )
}

LIMITS = {
    "limit_bytes": Parameter(_size, "how much the volume may hold, such as 10GiB; more is EDQUOT"),
    "limit_files": Parameter(positive, "how many files, directories and links the volume may hold; more is EDQUOT"),
}
"""Of volumes that every change of passes through this package: what others add elsewhere could not be refused."""

MAX_FILE_SIZE = {"max_file_size_mb": Parameter(positive, "larger files are passed over by grep")}

TTL = {"ttl": Parameter(seconds, "for how many seconds the kernel believes what was seen before it looks again")}

COMMANDS = {
    "max_output_bytes": Parameter(positive, "what a command prints beyond this is dropped"),
    "timeout": Parameter(positive, "seconds that a command may take"),
}
