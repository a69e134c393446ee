"""`VolumeFeed`: the changes that other hosts make in a volume, as this host's caches and watchers are notified of them.

Each transaction that changes something sends a NOTIFY on the channel of its volume, with the name of its session. The
feed passes over its own. The volume says whether there is a feed (`Features.change_feed`): while there is one, each
change of another session arrives within milliseconds, and caches above need not expire. When the connection is lost,
the volume says so and invalidates everything, and once more when the connection is back.

A payload is words of ASCII with spaces between, whatever the encoding of the database:

    SESSION CHANGE CHANGE …        a change is NODE/PARENT/NAME, each of which may be empty
    4f0c 17//                      the data or the attributes of node 17
    4f0c 17/1/notes%20old          the same, and the name `notes old` in directory 1
    4f0c //                        anything

Names are bytes, quoted as in URLs. A server takes payloads of less than 8,000 bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from fusebackend.databases.listener import Listener
from fusebackend.databases.postgres import translate_errors
from fusebackend.protocol import Change

if TYPE_CHECKING:
    from psycopg import Connection

log = logging.getLogger(__name__)

PAYLOAD_BYTES = 7_900
"""The longest payload: PostgreSQL's limit is 8,000 bytes, of which one ends it."""

MAX_PAYLOADS = 8
"""A transaction with more is announced as `Change()`: to invalidate everything is cheaper."""


def channel(volume_id: int) -> str:
    """The channel of a volume."""
    return f"fusebackend_{volume_id}"


def encode(session: str, changes: Sequence[Change]) -> list[str]:
    """The payloads of these changes, in their order and without repetitions; none for none.

    Args:
        session: the name of the session that makes them: ASCII, no spaces.
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
    """The session and the changes of a payload. A payload that is not from `encode` is anything, of no session."""
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


class VolumeFeed:
    """See the module's docstring. The callbacks run in the listener's thread.

    Args:
        conninfo: how to connect; the feed has a connection of its own.
        volume_id: the volume's number in the database.
        session: the name of this process's session.
        changed: is called with the changes of other sessions.
        became: is called with whether there is a feed, before `changed`, when the connection is lost or back.

    Raises:
        OSError: the server can't be reached.
    """

    def __init__(
        self,
        conninfo: str,
        volume_id: int,
        session: str,
        changed: Callable[[Sequence[Change]], None],
        became: Callable[[bool], None],
    ) -> None:
        self._session = session
        self._changed = changed
        self._became = became
        self._closed = False
        with translate_errors():
            self._listener = Listener(conninfo, channel(volume_id), self, name=f"fusebackend-feed-{session}")

    @property
    def live(self) -> bool:
        return self._listener.live

    def close(self) -> None:
        """Call nothing any more. Twice is once."""
        self._closed = True
        self._listener.close()

    # -- `Receiver` --------------------------------------------------------------------------------------------

    def prepare(self, connection: Connection[Any]) -> None:
        """No query is needed."""

    def heard(self, payload: str) -> None:
        session, changes = decode(payload)
        if session != self._session:
            self._publish(*changes)

    def lost(self, error: BaseException) -> None:
        words = " ".join(str(error).split())
        log.warning("what other hosts change in the volume is not told until the connection is back: %s", words)
        self._became(False)
        self._publish(Change())

    def back(self) -> None:
        log.info("what other hosts change in the volume is told again")
        self._became(True)
        self._publish(Change())

    def _publish(self, *changes: Change) -> None:
        if self._closed:
            return
        try:
            self._changed(changes)
        except Exception:  # later changes must still be announced
            log.exception("could not tell of %r", changes[:3])
