"""Errors as users are shown them."""

from __future__ import annotations

import pytest

from fusebackend.base.shown import one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(2, "No such file", "a"), "No such file: 'a'"),
        (OSError(2, "No such file", b"\xff"), r"No such file: '\377'"),
        (OSError(2, "No such file", 7), "No such file: '7'"),
        (ValueError("two\n lines"), "two lines"),
        (ValueError(), "ValueError"),
    ],
)
def test_an_error_in_one_line(error: Exception, line: str) -> None:
    """Libraries name what is missing by a descriptor, too."""
    assert one_line(error) == line
