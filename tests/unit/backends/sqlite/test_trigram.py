"""What the index knows of a text must be enough for every pattern that the text holds."""

from __future__ import annotations

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from fusebackend.volumes import trigram

LETTERS = st.sampled_from([b"a", b"b", b"c", b"_", b"7", b" ", b"(", b"\n", b"\t", "é".encode(), "文".encode(), b"."])
TEXTS = st.lists(LETTERS, max_size=40).map(b"".join)


def asked(query: str) -> set[bytes]:
    return {trigram.hidden(term.strip('"')) for term in query.split()}


def known(data: bytes, common: set[bytes]) -> set[bytes]:
    texts = [trigram.hidden(entry) for entry in trigram.entries(trigram.words(data) - common)]
    return {text[at : at + 3] for text in texts for at in range(len(text) - 2)}


@given(TEXTS, TEXTS, TEXTS, st.sets(st.sampled_from([b"aaa", b"abc", b"a_b", b"ccc7"])))
def test_every_text_that_holds_a_pattern_is_found(
    before: bytes, needle: bytes, after: bytes, common: set[bytes]
) -> None:
    data = before + needle + after
    telling = [part for part in trigram.fragments(needle) if not any(part in word for word in common)]
    assert asked(trigram.query(telling)) <= known(data, common)


@given(st.binary())
def test_every_byte_is_a_character_and_back(data: bytes) -> None:
    shown = trigram.shown(data)
    assert len(shown) == len(data) and trigram.hidden(shown) == data
    assert not {'"', "\0", " "} & set(shown)


def test_slices_cut_no_trigram(monkeypatch: pytest.MonkeyPatch) -> None:
    word = bytes(range(ord("a"), ord("z") + 1)) * 10
    monkeypatch.setattr(trigram, "SLICE_BYTES", 7)
    assert known(word, set()) == {(word + word)[at : at + 3] for at in range(26)}
    assert all(len(entry) <= 9 for entry in trigram.entries({word}))


@for_each(
    ("needle", "parts"),
    [
        (b"", []),
        (b"ab", []),
        (b"a b c", []),
        (b"->);", []),
        (b"abc", [b"abc"]),
        (b"foo.bar(x, y)", [b"bar", b"foo"]),
        (b"def main_loop():", [b"main_loop", b"def"]),
        ("日本".encode(), ["日本".encode()]),
        (b"abc abc", [b"abc"]),
    ],
)
def test_the_fragments_of_a_pattern(needle: bytes, parts: list[bytes]) -> None:
    assert trigram.fragments(needle) == parts


def test_a_long_pattern_is_asked_for_in_part() -> None:
    needle = b" ".join(b"word%d" % number * 20 for number in range(100))
    parts = trigram.fragments(needle)
    assert len(parts) == trigram.ASKED_FRAGMENTS
    assert 0 < len(asked(trigram.query(parts))) <= trigram.ASKED_TRIGRAMS
    assert trigram.query([]) == ""
