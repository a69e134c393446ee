"""`ServiceManager`: what a server tells systemd of itself, by the protocol of sd_notify(3).

The manager names a datagram socket in `$NOTIFY_SOCKET`. A unit of `Type=notify` counts as started with the first
`READY=1`, so units after it find the mount. While a server stores what is dirty, it asks for more time: at the end of
`TimeoutStopSec=` it would be killed, and what it has not stored would be lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from types import TracebackType
from typing import Final

log = logging.getLogger(__name__)

VARIABLE: Final = "NOTIFY_SOCKET"

EXTEND_EVERY_S = 10.0
EXTEND_BY_S = 30.0
"""Three times the interval: the machine may stall, and the kill is final."""

EXTEND_MOST_S = 900.0
"""A server that stores for longer hangs, and must not keep a machine from its shutdown for ever."""

SEND_TIMEOUT_S = 5.0
"""A manager that reads nothing does not hold up a mount."""


class ServiceManager(contextlib.AbstractContextManager["ServiceManager"]):
    """Messages to a service manager. Without an address nothing is sent, and no thread started.

    Args:
        address: a path, or `@` and the name of an abstract socket; None where no manager asks.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._ended = threading.Event()
        self._extending: threading.Thread | None = None

    @classmethod
    def of_environment(cls, *, is_main: bool) -> ServiceManager:
        """Take the address out of the environment, so that no child of this process can speak for it.

        Args:
            is_main: the manager started this process itself. Another one, such as a server in the background, says
                nothing: the address is that of the service in which somebody ran the command.
        """
        address = os.environ.pop(VARIABLE, "")
        return cls(address if is_main and address else None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._extending is not None:
            self._extending.join()

    def ready(self, status: str) -> None:
        """Say that the server answers.

        Args:
            status: for people, one line, as `systemctl status` shows it.
        """
        self._send("READY=1", _status(status))

    def stopping(self, status: str) -> None:
        """Say that the server ends, and ask for more time until `with` is left. Calls after the first do nothing."""
        if self._address is None or self._extending is not None:
            return
        self._send("STOPPING=1", _status(status))
        self._extending = threading.Thread(target=self._extend, name="fusebackend-extend", daemon=True)
        self._extending.start()

    def _extend(self) -> None:
        until = time.monotonic() + EXTEND_MOST_S
        while time.monotonic() < until:
            self._send(f"EXTEND_TIMEOUT_USEC={int(EXTEND_BY_S * 1e6)}")
            if self._ended.wait(EXTEND_EVERY_S):
                return

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        name = self._address
        if name.startswith("@"):
            name = "\0" + name[1:]
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as sending:
            sending.settimeout(SEND_TIMEOUT_S)
            try:
                sending.sendto("\n".join(lines).encode("utf-8", "replace"), os.fsencode(name))
            except OSError as error:
                log.warning("the service manager at %s=%s: %s", VARIABLE, self._address, error.strerror or error)


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.split())
