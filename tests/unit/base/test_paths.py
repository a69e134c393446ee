"""Agent paths: normalised once, by name alone; names are bytes."""

from __future__ import annotations

import posixpath

import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from fusebackend.base import paths
from fusebackend.base.paths import PathError

relaxed = settings(deadline=None)

ROUGH_PATHS = st.lists(st.sampled_from(["", ".", "..", "a", "b c", "...", ".x"]), max_size=8).map("/".join)

NAMES = st.binary(min_size=1, max_size=6).filter(lambda name: not set(name) & set(b"/\0") and name not in (b".", b".."))


class TestNormalise:
    @for_each(
        ("path", "expected"),
        [
            ("/", "/"),
            ("//", "/"),
            ("/a", "/a"),
            ("a", "/a"),
            ("/a/", "/a"),
            ("//a///b//", "/a/b"),
            ("/a/./b/.", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/..", "/"),
            ("/a/b/../../c", "/c"),
            (".", "/"),
            ("./a", "/a"),
            ("/...", "/..."),
            ("/a..b", "/a..b"),
            ("/a/~", "/a/~"),
            ("/~", "/~"),
            ("/a\nb", "/a\nb"),
            ("/\udcff", "/\udcff"),
        ],
    )
    def test_table(self, path, expected):
        assert paths.normalise(path) == expected

    @for_each(
        ("path", "words"),
        [
            ("", "empty"),
            (None, "empty"),
            (b"/a", "empty"),
            ("/a\0", "NUL"),
            ("~", "traversal"),
            ("~/x", "traversal"),
            ("~user", "traversal"),
            ("..", "above the root"),
            ("/..", "above the root"),
            ("/a/../../b", "above the root"),
        ],
    )
    def test_refused(self, path, words):
        with pytest.raises(PathError, match=words):
            paths.normalise(path)

    @relaxed
    @given(ROUGH_PATHS)
    def test_as_posixpath_where_nothing_climbs(self, path):
        try:
            normal = paths.normalise(path)
        except PathError:
            assert not path or posixpath.normpath(path.lstrip("/") or ".").startswith("..")
            return
        assert normal == posixpath.normpath("/" + path.lstrip("/"))
        assert paths.normalise(normal) == normal


class TestParts:
    @relaxed
    @given(st.lists(NAMES))
    def test_names_survive_the_round_trip_as_bytes(self, names):
        path = paths.ROOT
        for name in names:
            path = paths.join(path, paths.to_text(name))
        assert paths.normalise(path) == path
        assert paths.split(path) == names

    def test_a_surrogate_that_is_no_byte_is_no_name(self):
        with pytest.raises(UnicodeEncodeError):
            paths.to_name("\ud800")

    @for_each(
        ("path", "parent", "name"), [("/a/b", "/a", "b"), ("/a", "/", "a"), ("/", "/", ""), ("/a/b/c", "/a/b", "c")]
    )
    def test_parent_and_name(self, path, parent, name):
        assert paths.parent_and_name(paths.AgentPath(path)) == (parent, name)
        if name:
            assert paths.join(parent, name) == path

    @for_each(
        ("path", "directory", "below"),
        [
            ("/memories/x", "/memories", True),
            ("/memories", "/memories", True),
            ("/memories2/x", "/memories", False),
            ("/memories2", "/memories", False),
            ("/x", "/", True),
            ("/", "/", True),
            ("/a", "/a/b", False),
        ],
    )
    def test_below_goes_by_whole_segments(self, path, directory, below):
        assert paths.is_below(path, directory) is below


class TestPrefixes:
    @for_each(
        ("prefix", "expected"),
        [("memories", "/memories"), ("/memories", "/memories"), ("/memories/", "/memories"), ("a/b/", "/a/b")],
    )
    def test_ways_to_write_one_prefix(self, prefix, expected):
        assert paths.normalise_prefix(prefix) == expected

    @for_each(
        "prefix",
        ["", "/", "//", "//a", "/a//b", "/a//", "/a/../b", "/a/.", "..", "~", "/~x", "/a\0b", None],
    )
    def test_refused_with_the_prefix_in_the_message(self, prefix):
        with pytest.raises(PathError, match="Route prefix") as caught:
            paths.normalise_prefix(prefix)
        assert str(prefix) in str(caught.value) or repr(prefix) in str(caught.value)
