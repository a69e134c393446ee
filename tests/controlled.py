"""A control server in this process over a backend that is not mounted, and clients of it: quick, and with nobody else.

What depends on the kernel is tested on real mounts (`tests/mounted/test_control.py`).
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from fusebackend.composite import CompositeBackend
from fusebackend.control.client import Client
from fusebackend.control.connection import Connection
from fusebackend.control.server import ControlServer
from fusebackend.mount.mounted import MountedBackend
from fusebackend.protocol import ExecuteResponse
from fusebackend.vfs.filesystem import FileSystem

LIMIT_S = 20.0


class NoShell:
    """Stands in for `Shell` where there is no mount to run anything in: it repeats what it is given."""

    def execute(self, command, *, timeout=None, stdin=None, cwd="/", on_output=None, cancelled=None):
        if command == "wait":
            cancelled.wait(LIMIT_S)
            return ExecuteResponse("ended", 130)
        if on_output is not None:
            on_output("stdout", command.encode())
            on_output("stderr", b"\xff")
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout must be above 0 seconds, but is {timeout}")
        return ExecuteResponse(f"{command} in {cwd} with {stdin!r}", 0)


class ClientOf(Client):
    """A client of a server that has no mount to be found by."""

    def __init__(self, server: ControlServer) -> None:
        self.server = server
        self._begin(server.backend.mountpoint)

    def _connect(self) -> Connection:
        return Connection(self.server.address, self.mountpoint)


@contextlib.contextmanager
def serving(backend: Any, *, read_only: bool = False) -> Iterator[ControlServer]:
    """A server of the backend at the root of a tree, as if it were mounted on `/mnt/unmounted`."""
    composite = backend if isinstance(backend, CompositeBackend) else CompositeBackend(backend)
    filesystem = FileSystem.of(composite)
    mounted = MountedBackend(composite, filesystem, "/mnt/unmounted", NoShell(), lambda: {"mountpoint": "none"})
    server = ControlServer(mounted, read_only=read_only)
    server.start()
    try:
        yield server
    finally:
        server.close()


class Raw:
    """A client that sends whatever bytes a test wants, and reads lines."""

    def __init__(self, address: str) -> None:
        self.stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.stream.connect(address)  # with a time-out, a full queue of connections would be an error at once
        self.stream.settimeout(LIMIT_S)
        self._file = self.stream.makefile("rb")

    def send(self, data: bytes) -> None:
        self.stream.sendall(data)

    def line(self) -> Any:
        """The next message, None at the end."""
        line = self._file.readline()
        return json.loads(line) if line else None

    def ask(self, method: str, id: Any = 1, **params: Any) -> Any:
        self.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")
        return self.line()

    def close(self) -> None:
        self._file.close()
        self.stream.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
