"""Limits of the clients of a control socket, in bytes, threads and places; `server/limiter.py` keeps them."""

from __future__ import annotations

from fusebackend.base.budget import Spent

MAX_CONNECTIONS = 256
"""Beside those over which a command runs: these have places of their own."""

NEWCOMERS = 16
"""Places beyond those, for short calls only, so that a server full of clients that are at work answers a new one."""

NEWCOMER_S = 0.25
"""How long a newcomer has such a place for itself. Then it makes room for the next one, even if it is at work:
subscriptions and half messages over 272 connections shut everybody else out for as long as they lasted."""

MAX_CALLS = 16
"""Long calls and subscriptions of one connection at once, each."""

MAX_SHARED_CALLS = 256
"""Long calls of all connections, not counting the first one of each connection: a call of another one is always taken.
Each is a thread."""

MAX_COMMANDS = 256
"""Commands of one connection at once, also while their answers wait to be read. They run for as long as they like, so
they take no place of other long calls."""

MAX_COMMANDS_IN_ALL = 1024
"""Of all connections together: each has a thread, and two pipes."""

MAX_SHARED_SUBSCRIPTIONS = 64
"""And subscriptions, likewise: every change wakes the thread of each."""

MAX_MESSAGE_BYTES = 1 << 20
"""The longest line the server takes. It is decoded in one go with Python's lock held: at most 15 ms for 87,000 files in
an `upload_files`. Longer contents are staged, or arrive in pieces."""

MAX_VALUES = 20_000
"""How many commas and opening brackets a message may have where every value becomes an object of its own: the payload
of a `ping`, and a message with an escaped byte of a file name, which msgspec can't read. 340,000 empty lists, which fit
into a message, kept Python's lock for 0.5 s, most of it for the garbage collector."""

MAX_ANSWER_BYTES = 16 << 20
"""The longest line the server answers: a text of short lines that fits is encoded in 20 ms, with Python's lock held.
Longer contents are downloaded as a stream, which `Client.read` does by itself."""

MAX_ITEMS = 10_000
"""Files in one `upload_files` or `download_files`."""

MAX_BYTES = 128 << 20
"""Memory of all connections together."""

FREE_BYTES = 64 << 10
"""Memory of a call, and of a message that is arriving, that is not counted."""

MAX_ARRIVING = 24
"""Messages longer than `FREE_BYTES` that arrive at once. The others are not read from their sockets until it is their
turn. A stalled one makes room."""

STANDSTILL_S = 1.0
"""How long a message may stand still half way while others wait to arrive."""

WORK_FACTOR = 16
"""Memory of a call for each byte of its message until it is understood, at worst (short paths)."""

TYPED_FACTOR = 6
"""And once its parameters are known, that have types: a text takes up to four bytes for each of the message."""

PATIENCE_S = 10.0
"""How long a call waits for room to begin."""


class NoRoom(Spent):
    """A call would hold more than its share; its text says so. Where that is not known, a search is spent."""
