"""Trigram indexes of native volumes: the trigrams kept of a text, and those asked for a pattern. Pure functions.

The index may name a file without the pattern, never leave one out that has it: the files that it names are read and
searched as in a plain scan. So a text is taken as the set of its *words*, runs of letters, digits, `_` and all bytes
above ASCII. The parts of a pattern between separators, its *fragments*, are inside of one word each. Trigrams with a
space or a bracket in them are not kept; they are in nearly every file anyway.

A fragment must have three bytes; a pattern without such a one is searched for in every file.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from fusebackend.text import is_utf8

TRIGRAM = 3
"""Bytes of a shorter word or fragment have none."""

SLICE_BYTES = 16 << 10
"""How much text is given to the index at a time: 2 to 10 ms."""

ASKED_FRAGMENTS = 8
ASKED_TRIGRAMS = 64
"""How much of a long pattern is asked for: the longest fragments, and trigrams from all over them."""

_SEPARATORS = bytes(
    byte if byte >= 0x80 or chr(byte).isalnum() or byte == ord("_") else ord(" ") for byte in range(256)
)

_SHOWN = "".join(chr(0x80 + (byte ^ 0x20 if byte & 0x40 else byte)) for byte in range(256))
"""Bytes as characters for FTS5, one each, in two bytes of UTF-8. Letters and digits differ in their second one: in
ASCII their trigrams meet in a few slots of FTS5's hash table, and a text of random letters takes half as long again."""


def is_text(data: bytes) -> bool:
    """Return True for the bytes of a text, as `text.grep_lines` defines it."""
    return b"\0" not in data and is_utf8(data)


def words(data: bytes) -> set[bytes]:
    """The words of a text that have trigrams, and some that are shorter."""
    return set(data.translate(_SEPARATORS).split())


def entries(data: bytes) -> Iterator[str]:
    """The words of a text as the index takes them, in slices."""
    text = b" ".join([word for word in words(data) if len(word) >= TRIGRAM])
    for start in range(0, len(text), SLICE_BYTES):
        yield shown(text[start : start + SLICE_BYTES + TRIGRAM - 1])  # no trigram is cut in two


def fragments(needle: bytes) -> list[bytes]:
    """The parts of a pattern that are inside of one word each and have trigrams; the longest ones."""
    found = sorted({part for part in words(needle) if len(part) >= TRIGRAM}, key=lambda part: (-len(part), part))
    return found[:ASKED_FRAGMENTS]


def query(needle: bytes) -> str:
    """The expression for FTS5 that matches files with all trigrams of a pattern's fragments."""
    trigrams = sorted({part[at : at + TRIGRAM] for part in fragments(needle) for at in range(len(part) - TRIGRAM + 1)})
    step = max(1, -(-len(trigrams) // ASKED_TRIGRAMS))
    return " ".join(f'"{shown(trigram)}"' for trigram in trigrams[::step])


def shown(data: bytes) -> str:
    return codecs.charmap_decode(data, "strict", _SHOWN)[0]


def hidden(text: str) -> bytes:
    """The opposite of `shown`."""
    return bytes(_SHOWN.index(character) for character in text)
