"""Keys as file names: every string has one, no two share one, and there is a way back."""

from __future__ import annotations

import os

import pytest
from for_each import for_each
from hypothesis import example, given
from hypothesis import strategies as st

from fusebackend.remote.keyed import ListedTree, name_of, text_of

TEXTS = st.text(st.sampled_from(list("ab./%\0~=25F é\n")) | st.characters(exclude_categories=["Cs"]), max_size=12)
LONG = st.integers(240, 600).flatmap(lambda size: st.text(st.sampled_from("aé/%漢"), min_size=size, max_size=size))


@for_each(
    ("text", "name"),
    [
        ("plain.txt", b"plain.txt"),
        ("", b"%"),
        (".", b"%2E"),
        ("..", b"%2E%2E"),
        ("...", b"..."),
        ("a/b", b"a%2Fb"),
        ("nul\0", b"nul%00"),
        ("%", b"%25"),
        ("100%", b"100%"),
        ("100%.txt", b"100%.txt"),
        ("%20", b"%20"),
        ("%2F", b"%252F"),
        ("%2f", b"%2f"),
        ("a%=", b"a%25="),
        ("%.", b"%."),
        ("new\nline", b"new\nline"),
        ("\udcff", b"\xff"),
    ],
)
def test_a_string_is_a_name_and_back(text: str, name: bytes) -> None:
    assert name_of(text) == name
    assert text_of(name) == text


@given(TEXTS | LONG)
def test_any_string_has_a_name_that_linux_takes(text: str) -> None:
    name = name_of(text)
    assert 1 <= len(name) <= 255 and name not in (b".", b"..")
    assert b"/" not in name and b"\0" not in name
    name.decode("utf-8")
    if len(text.encode()) < 80:
        assert text_of(name) == text


@given(st.lists(TEXTS | LONG, unique=True))
def test_no_two_strings_share_a_name(texts: list[str]) -> None:
    assert len({name_of(text) for text in texts}) == len(texts)


@given(st.binary(min_size=1, max_size=12))
def test_a_name_that_is_no_key_is_told_from_one_that_is(name: bytes) -> None:
    try:
        text = text_of(name)
    except ValueError:
        return
    assert name_of(text) == name


def test_long_strings_are_cut_and_differ() -> None:
    one, other = name_of("é" * 200 + "1"), name_of("é" * 200 + "2")
    assert one != other
    assert len(one) <= 255
    with pytest.raises(ValueError, match="no key"):
        text_of(one)


def test_a_surrogate_that_is_no_byte_has_a_name_too() -> None:
    assert name_of("a\ud800") != name_of("a\ud801")


def test_keys_in_each_others_way() -> None:
    keys = ["/a", "/a/b", "a", "x", "/d/e/f", "/d/e", "", "/", "//x", "/a/../b/."]
    assert dict(ListedTree(keys).all()) == {
        "/a%=": "/a",
        "/a/b": "/a/b",
        "/a%=%": "a",
        "/x": "x",
        "/d/e/f": "/d/e/f",
        "/d/e%=": "/d/e",
        "/%%=": "/",
        "/%%=%": "",
        "/%/x": "//x",
        "/a/%2E%2E/b/%2E": "/a/../b/.",
    }


SEGMENTS = st.sampled_from(["", "a", "b", ".", "..", "%", "%=", "a%="])
KEYS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)


@example(["n" * length + end for length in (253, 254, 255) for end in ("", "/a")])
@given(st.lists(KEYS, unique=True))
def test_every_key_has_a_place_where_it_is_found(keys: list[str]) -> None:
    tree = ListedTree(keys)
    places = dict(tree.all())
    assert sorted(places.values()) == sorted(keys)
    assert all(len(os.fsencode(name)) <= 255 for path in places for name in path.split("/"))
    assert {path: tree.key(path) for path in places} == places
