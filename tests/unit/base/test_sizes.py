"""Sizes as people write them, and as `ls -h` shows them."""

import pytest
from for_each import for_each

from fusebackend.base.sizes import short_size, size_bytes


@for_each(
    ("size", "shown"),
    [(0, "0B"), (512, "512B"), (1023, "1023B"), (1024, "1K"), (1536, "1.5K"), (4096, "4K"), (5 << 40, "5120G")],
)
def test_the_fewest_characters(size: int, shown: str) -> None:
    assert short_size(size) == shown


@for_each(("text", "size"), [("64 MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("1 GB", 10**9), (7, 7)])
def test_what_people_write(text: int | str, size: int) -> None:
    assert size_bytes(text) == size


@for_each("text", ["", "much", "1 XB", "-1", "1,5 GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        size_bytes(text)
