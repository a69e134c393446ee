"""`shown`: a name, or other text that agents choose, as it goes out to what takes UTF-8, lines or a terminal.

Names are bytes, and in Python text with a lone surrogate for each byte that is no UTF-8. An encoder of
UTF-8 refuses such text, so one file made a session of a client end, or its listing fail as a whole. Escaped are:

- as `ls -b` does, a byte that is no UTF-8 (`\\377`) and an ASCII control character (`\\033`, `\\n`, `\\t`, `\\r`);
- as `\\u202e` or `\\U000e0041` what is not seen, ends a line for some programs, or turns the text around: C1 controls,
  separators of lines and paragraphs, Unicode's Default_Ignorable_Code_Point (zero width, bidi, tags), and a surrogate
  that stands for no byte.

`shown` is for people. `name_shown` is for programs that send names back: backslashes are doubled where one could be
taken for an escape, and `name_meant` gives exactly the name.
"""

from __future__ import annotations

import os
import re
from typing import Final

_SHORT: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_LONG: Final = {escape: character for character, escape in _SHORT.items()} | {"\\\\": "\\"}

_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_ESCAPE: Final = re.compile(r"\\(?:[0-3][0-7]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5}|[ntr\\])")


def shown(text: str, *, but: str = "") -> str:
    """Return text that UTF-8 can hold, in which nothing is hidden; characters of `but` stay as they are."""
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(lambda found: found[0] if found[0] in but else _escaped(found[0]), text)


def one_line(error: BaseException) -> str:
    """The text of an error for a user: an `OSError` without its number, no line breaks and no control characters."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        name = error.filename  # a library's may be anything
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        text = error.strerror if name is None else f"{error.strerror}: '{name}'"
    return shown(" ".join(text.split())) or type(error).__name__


def name_shown(name: str) -> str:
    """Return a name or path as `shown` gives it, from which `name_meant` gives it back."""
    is_plain = "\\" not in name or not (_ESCAPE.search(name) or _HIDDEN.search(name))
    return shown(name if is_plain else name.replace("\\", "\\\\"))


def name_meant(text: str) -> str:
    """Return the name that `name_shown` has shown."""
    return _ESCAPE.sub(_unescaped, text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape
        return f"\\{code - 0xDC00:03o}"
    if code < 0x80:
        return _SHORT.get(character) or f"\\{code:03o}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _unescaped(found: re.Match[str]) -> str:
    text = found[0]
    if text in _LONG:
        return _LONG[text]
    code = int(text[2:], 16) if text[1] in "uU" else int(text[1:], 8)
    character = chr(code if text[1] in "uU" or code < 0x80 else 0xDC00 + code)
    return character if _HIDDEN.match(character) else text  # `name_shown` has no others, such as a slash
