"""Values of a store as files: those that are files, and those that are shown as `.json` and `.md`.

A file is a mapping with `content` and perhaps `encoding`, as `text.decode_file_data` reads it: the lists of lines of
the seeds (v1), text and base64 (v2). Lists that `splitlines` made (the Korean seed, deepagents-backends) have lost a
newline at the end of the text, and look like those that `split("\\n")` makes of a text without one; they are read as
such. Only the empty list is unambiguous: it is the empty file. Further keys of such a mapping stay when the file is
written.

Any other value is foreign, and is never written. It is shown in the form `JSON` (`base/json_text.py`), and in the form
`TEXT` as well where it is one long text (`long_text`): a memory of 3,000 characters is one line with `\\n` in JSON,
which `less` and `diff` can't show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from fusebackend import text
from fusebackend.base.json_text import pretty

LONG_CHARACTERS: Final = 200
"""A text is long with more characters than this, or with more than one line."""

MAX_LEAVES: Final = 64
"""Texts, numbers and containers in a value. With more, it is a table rather than a text."""


FILE: Final = ""
JSON: Final = ".json"
TEXT: Final = ".md"
SUFFIXES: Final = (FILE, JSON, TEXT)
"""The forms in which keys are files: the ends of their names."""


class About(NamedTuple):
    """A value as a listing shows it."""

    size: int
    """Bytes, of the file or the JSON."""
    modified_at: str
    foreign: bool
    text_size: int | None = None
    """Bytes of the long text; None where there is none."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Its forms."""
        if not self.foreign:
            return (FILE,)
        return (JSON,) if self.text_size is None else (JSON, TEXT)

    def size_of(self, suffix: str) -> int:
        return self.text_size or 0 if suffix == TEXT else self.size


class UnreadableValue(bytes):
    """A value that is no JSON, or is nested too deeply to be decoded, as it is stored."""


def file_bytes(value: Any) -> bytes | None:
    """The bytes of a file; None of a foreign value."""
    try:
        return text.decode_file_data(value)
    except (TypeError, ValueError):
        return None


def forms_of(value: Any) -> dict[str, bytes]:
    """All forms of a value."""
    data = file_bytes(value)
    if data is not None:
        return {FILE: data}
    found = long_text(value)
    shown = bytes(value) if isinstance(value, UnreadableValue) else (pretty(value) + "\n").encode("utf-8")
    if found is None:
        return {JSON: shown}
    # A lone surrogate, which the JSON has, is replaced.
    return {JSON: shown, TEXT: found.encode("utf-8", "replace")}


def about(value: Any, updated_at: str) -> About:
    """`updated_at` stands in where the value has no time of its own."""
    own = value.get("modified_at") if isinstance(value, Mapping) else None
    try:
        return About(text.file_data_size(value), own if isinstance(own, str) and own else updated_at, False)
    except (TypeError, ValueError):
        forms = forms_of(value)
    return About(len(forms[JSON]), updated_at, True, len(forms[TEXT]) if TEXT in forms else None)


def long_text(value: Any) -> str | None:
    """The one long text in a foreign value, at any depth; None where there is none, or several, or much else.

    A value that is a text itself is one of any length.
    """
    if isinstance(value, str):
        return value
    found: str | None = None
    left, leaves = [value], 0
    while left:
        part = left.pop()
        leaves += 1
        if leaves > MAX_LEAVES:
            return None
        if isinstance(part, str):
            if len(part) > LONG_CHARACTERS or "\n" in part.rstrip("\n"):
                if found is not None:
                    return None
                found = part
        elif isinstance(part, (dict, list, tuple)):
            if len(part) > MAX_LEAVES:
                return None
            left += part.values() if isinstance(part, dict) else part
    return found


def written(
    data: bytes, before: Any = None, *, file_format: Literal["v1", "v2"] = "v2", takes_nul: bool = True
) -> dict[str, Any]:
    """The new value of a file with the bytes `data`, in place of the value `before`.

    Args:
        takes_nul: texts may hold NUL characters. PostgreSQL's can't: such a file is stored in base64 there.
    """
    kept = dict(before) if isinstance(before, Mapping) else {}
    created_at = kept.get("created_at")
    now = text.now_iso()
    record = text.encode_file_data(
        data,
        created_at=created_at if isinstance(created_at, str) else None,
        modified_at=now,
        file_format=file_format,
        as_text=takes_nul or b"\0" not in data,
    )
    kept.pop("encoding", None)
    return {**kept, **record}
