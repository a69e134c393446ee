"""Names as text for a wire: UTF-8, nothing hidden, and back to the same name."""

from __future__ import annotations

import unicodedata

from for_each import for_each
from hypothesis import example, given
from hypothesis import strategies as st

from fusebackend.base.shown import name_meant, name_shown, shown

NAMES = st.text(st.sampled_from("\\\\\\0123567ntrUu abf/\n\t\r\x1b\x85\udcff\udc80\ud800\u202e\u200b\U000e0041"))


@given(NAMES)
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
