"""Agent paths: normalised once, by name alone; names are bytes, and text for a wire."""

from __future__ import annotations

import posixpath
import unicodedata

import pytest
from for_each import for_each
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fusebackend.base import paths
from fusebackend.base.paths import PathError
from fusebackend.base.shown import name_meant, name_shown, shown

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


# -- names as text for a wire ------------------------------------------------------------------------------------------


WIRE_NAMES = st.text(st.sampled_from("\\\\\\0123567ntrUu abf/\n\t\r\x1b\x85\udcff\udc80\ud800\u202e\u200b\U000e0041"))


@given(WIRE_NAMES)
@example("\\\t")
@example("\\377")
@example("\\\\")
def test_a_name_comes_back(name: str) -> None:
    text = name_shown(name)
    text.encode()
    assert name_meant(text) == name
    assert shown(text) == text


@given(st.binary())
def test_any_bytes_are_a_line_of_utf8_and_come_back(data: bytes) -> None:
    name = data.decode("utf-8", "surrogateescape")
    text = name_shown(name)
    assert len(text.encode().decode().splitlines()) <= 1
    assert name_meant(text).encode("utf-8", "surrogateescape") == data


def test_two_names_never_look_alike() -> None:
    names = ["a\\377", "a\udcff", "a\\\\377", "a\\n", "a\n", "\x85", "\udc85", "\\u0085", "\\205", "ä", "a\\", "a\\\\"]
    assert len(set(map(name_shown, names))) == len(names)


@for_each(
    ("name", "text"),
    [
        ("plan (final).md", "plan (final).md"),
        ("C:\\dir", "C:\\dir"),  # no escape, so as it is
        ("C:\\new", "C:\\\\new"),
        ("a\udcff\n", "a\\377\\n"),
        ("a\u2028b\u200bc", "a\\u2028b\\u200bc"),
        ("日本 ä 😀\u3000x", "日本 ä 😀\u3000x"),
        ("\ud800\U000e0041", "\\ud800\\U000e0041"),
    ],
)
def test_what_is_shown(name: str, text: str) -> None:
    assert name_shown(name) == text


@for_each("text", ["\\057etc", "\\056\\056", "\\000", "\\u002f", "\\U0010ffff", "\\q", "\\37"])
def test_what_no_name_is_shown_as_means_itself(text: str) -> None:
    assert name_meant(text) == (text if text != "\\000" else "\0")


def test_everything_that_is_not_seen_is_escaped() -> None:
    for code in range(0x20000):
        character = chr(code)
        kind = unicodedata.category(character)
        if kind in ("Cc", "Cs", "Zl", "Zp") or (kind == "Cf" and unicodedata.bidirectional(character) != "AN"):
            visible = code in (0x70F, 0x110BD, 0x110CD) or 0x13430 <= code <= 0x1343F  # Syriac, Kaithi, hieroglyphs
            assert visible or shown(character).startswith("\\"), hex(code)


def test_lines_keep_what_they_are_told_to() -> None:
    assert shown("a\tb\n\x1b[2J\u2029\n", but="\t\n") == "a\tb\n\\033[2J\\u2029\n"
