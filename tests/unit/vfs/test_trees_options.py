"""The options of the trees directory, refused in one line before anything is mounted."""

from __future__ import annotations

import pytest
from for_each import for_each

from fusebackend.config import MountSettings


@for_each("name", [".mount", "a b", "ä" * 127, "\udcff", "a~", "..."])
def test_names(name: str) -> None:
    assert MountSettings(trees_name=name).shown_trees == ("hidden", name)


@for_each(
    ("options", "message"),
    [
        ({"trees": "no"}, "trees = 'no': give one of hidden, visible, off"),
        ({"trees": True}, "trees = True: give one of hidden, visible, off"),
        ({"trees_name": ""}, "trees_name = '' is no name of a directory; give one name, such as '.fusebackend'"),
        ({"trees_name": ".."}, "trees_name = '..' is no name of a directory; give"),
        ({"trees_name": "a/b"}, "trees_name = 'a/b' holds a slash; give"),
        ({"trees_name": "a\0"}, "trees_name = 'a\\x00' holds a NUL; give"),
        ({"trees_name": "~a"}, "trees_name = '~a' begins with '~', which no path of an agent does; give"),
        ({"trees_name": "ä" * 128}, f"trees_name = {'ä' * 128!r} is longer than 255 bytes; give"),
        ({"trees_name": "\ud800"}, "trees_name = '\\ud800' is no text; give"),
        ({"trees_name": 7}, "trees_name = 7 is int and not text; give"),
    ],
)
def test_refusals(options: dict, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        MountSettings(**options)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)
