"""`VolumeFeed`: what other hosts change in a volume, told to the mounts and watchers of this one.

While it is there, every change that another session commits reaches this process within milliseconds, and the volume
says so (`Features.change_feed`): what is above it may believe what it knows. When the connection is lost, the volume
says that it has no feed, and that anything may have changed; and the latter again when it is back.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusebackend.backends.postgres import notices
from fusebackend.databases.postgres_errors import told
from fusebackend.databases.postgres_listener import Listener
from fusebackend.protocol import Change

if TYPE_CHECKING:
    from psycopg import Connection

    from fusebackend.backends.postgres.volume import PostgresVolume

log = logging.getLogger(__name__)


class VolumeFeed:
    """See the module's docstring.

    Args:
        volume: whose `features` are kept true, and which is told of what is heard.
        conninfo: how to connect; the feed has a connection of its own.
        volume_id: its number in the database.
        session: the name under which this process's own changes are told: nobody here needs to hear of these.

    Raises:
        OSError: the server can't be reached.
    """

    def __init__(self, volume: PostgresVolume, conninfo: str, volume_id: int, session: str) -> None:
        self._volume = volume
        self._session = session
        self._closed = False
        channel = notices.channel(volume_id)
        with told():
            self._listener = Listener(conninfo, channel, self, name=f"fusebackend-feed-{session}")

    @property
    def live(self) -> bool:
        return self._listener.live

    def close(self) -> None:
        """Tell of nothing any more. Twice is once."""
        self._closed = True
        self._listener.close()

    # -- `Hearer` ----------------------------------------------------------------------------------------------

    def prepare(self, connection: Connection[Any]) -> None:
        """Nothing is to be asked."""

    def heard(self, payload: str) -> None:
        session, changes = notices.decode(payload)
        if session != self._session:
            self._publish(*changes)

    def lost(self, error: BaseException) -> None:
        words = " ".join(str(error).split())
        log.warning("what other hosts change in the volume is not told until the connection is back: %s", words)
        self._become(live=False)

    def back(self) -> None:
        log.info("what other hosts change in the volume is told again")
        self._become(live=True)

    def _become(self, *, live: bool) -> None:
        self._volume.features = replace(self._volume.features, change_feed=live)
        self._volume.expire()
        self._publish(Change())

    def _publish(self, *changes: Change) -> None:
        if self._closed:
            return
        try:
            self._volume.changed_elsewhere(changes)
        except Exception:  # the next ones must be heard
            log.exception("could not tell of %r", changes[:3])
