"""Sizes as people write them: `64 MiB`, `1.5 GiB`, `1 GB`, or bytes; and as `ls -h` does."""

from __future__ import annotations

import re
from collections.abc import Mapping

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_UNIT_BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip

EXAMPLES = "bytes, or for example '512 MiB', '1 GiB'"


def quantity(value: float | str, units: Mapping[str, float]) -> float | None:
    """Parse a number, or text such as `1.5 GiB`, by the factors of its units; None if it is neither."""
    match = _QUANTITY.fullmatch(str(value).strip().lower())
    return None if match is None or match[2] not in units else float(match[1]) * units[match[2]]


def size_bytes(value: int | str) -> int:
    """Parse a size into bytes: a number, or text such as `64 MiB`, `1.5 GiB`, `1 GB`.

    Raises:
        ValueError: `value` is none of these, or more than Linux counts.
    """
    size = quantity(value, _UNIT_BYTES)
    if size is None:
        raise ValueError(f"'{value}' is no size; write {EXAMPLES}")
    if size >= 1 << 63:
        raise ValueError(f"'{value}' is too large; write less than 8 EiB")
    return round(size)


def short_size(size_bytes: int) -> str:
    """Return a size in the fewest characters: `0B`, `512B`, `1.5K`, `4K`."""
    power = min(max(0, size_bytes.bit_length() - 1) // 10, 3)
    number = size_bytes / 1024**power
    return f"{number:.{0 if number.is_integer() else 1}f}{'BKMG'[power]}"
