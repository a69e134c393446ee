"""Notices: what a transaction has changed, as payloads of PostgreSQL's NOTIFY. Pure.

Each mutating transaction sends what it has changed on the channel of its volume, with the name of the session that made
it, so that whoever hears of it and has done it himself can pass it over. A payload is words of ASCII, with a space
between them, whatever the encoding of the database:

    SESSION CHANGE CHANGE …        a change is NODE/PARENT/NAME, each of which may be empty
    4f0c 17//                      the data or the attributes of node 17
    4f0c 17/1/notes%20old          the same, and the name `notes old` in directory 1
    4f0c //                        anything

Names are bytes, and are quoted as in URLs. A server takes payloads of less than 8,000 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote_from_bytes, unquote_to_bytes

from fusebackend.protocol import Change

PAYLOAD_BYTES = 7_900
"""The longest payload: PostgreSQL's limit is 8,000 bytes, of which one ends it."""

MAX_PAYLOADS = 8
"""What does not fit into these is told as `Change()`: looking at everything again is cheaper than hearing of it all."""


def channel(volume_id: int) -> str:
    """The channel on which the changes of a volume are told."""
    return f"fusebackend_{volume_id}"


def encode(session: str, changes: Sequence[Change]) -> list[str]:
    """The payloads that tell of these changes, in their order; none for none. Repetitions are told once.

    Args:
        session: the name of who makes them: ASCII, no spaces.
    """
    payloads: list[str] = []
    line = session
    for word in dict.fromkeys(_word(change) for change in changes):
        if len(line) + 1 + len(word) > PAYLOAD_BYTES:
            payloads.append(line)
            line = session
            if len(payloads) == MAX_PAYLOADS:
                return [f"{session} {_word(Change())}"]
        line += " " + word
    if line != session:
        payloads.append(line)
    return payloads


def decode(payload: str) -> tuple[str, list[Change]]:
    """The session and the changes of a payload. Whatever is not from `encode` means anything, from nobody."""
    session, *words = payload.split(" ")
    try:
        return session, [_change(word) for word in words] or [Change()]
    except ValueError:
        return "", [Change()]


def _word(change: Change) -> str:
    node, parent = ("" if number is None else str(number) for number in (change.node, change.parent))
    return f"{node}/{parent}/{quote_from_bytes(change.name or b'', safe='')}"


def _change(word: str) -> Change:
    node, parent, name = word.split("/")
    return Change(
        node=int(node) if node else None,
        parent=int(parent) if parent else None,
        name=unquote_to_bytes(name) if name else None,
    )
