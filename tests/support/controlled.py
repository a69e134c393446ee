"""A control server in this process over a backend that is not mounted, and clients of it. It needs no /dev/fuse.

Behaviour of the kernel is tested on real mounts (`tests/mounted/test_control.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from fusebackend.base import budget
from fusebackend.composite.backend import CompositeBackend
from fusebackend.control.client.client import Client
from fusebackend.control.client.client_connection import Connection, Pool
from fusebackend.control.server.control_server import ControlServer
from fusebackend.linux.command import Command
from fusebackend.protocol import NOBODY, ExecuteResponse
from fusebackend.server.approvals import Approvals
from fusebackend.server.assemble import MountParts
from fusebackend.server.mounted import MountedBackend
from fusebackend.server.rules import Views
from fusebackend.vfs.mounted_tree import FileSystem

LIMIT_S = 60.0
MOUNTPOINT = "/mnt/unmounted"


class NoShell:
    """Stands in for `Shell` where there is no mount to run commands in: it returns its arguments as output."""

    def execute(self, command: Command) -> ExecuteResponse:
        if command.text == "wait":
            ended = threading.Event()
            with budget.current().waking(ended.set):
                ended.wait(LIMIT_S)
            return ExecuteResponse("ended", 130)
        if command.text == "nap":
            time.sleep(0.2)
            return ExecuteResponse("slept", 0)
        if command.on_output is not None:
            command.on_output("stdout", command.text.encode())
            command.on_output("stderr", b"\xff")
        if command.timeout_s is not None and command.timeout_s <= 0:
            raise ValueError(f"timeout must be above 0 seconds, but is {command.timeout_s}")
        return ExecuteResponse(f"{command.text} in {command.cwd} with {command.stdin!r}", 0)


class ClientOf(Client):
    """A client of a server without a mount, so it takes the address from the server."""

    def __init__(self, server: ControlServer | Listener | SimpleNamespace) -> None:
        self.server = server
        self.mountpoint, self.is_mounted = MOUNTPOINT, True
        self.actor, self.view = NOBODY, None
        self._pool = Pool(self._connect)

    def _connect(self) -> Connection:
        return Connection(self.server.address, self.mountpoint)


@contextlib.contextmanager
def serving(backend: Any, *, read_only: bool = False) -> Iterator[ControlServer]:
    """Serve the backend at the root of a tree, as if it were mounted on `/mnt/unmounted`."""
    composite = backend if isinstance(backend, CompositeBackend) else CompositeBackend(backend)
    filesystem = FileSystem.of(composite)
    parts = MountParts(
        backend=composite,
        filesystem=filesystem,
        mountpoint=MOUNTPOINT,
        shell=NoShell(),
        status=lambda: {"mountpoint": "none"},
        views=Views(filesystem, composite, {}),
        approvals=Approvals(),
    )
    server = ControlServer(MountedBackend(parts), read_only=read_only)
    with tempfile.TemporaryDirectory(prefix="fusebackend-") as place:  # other servers don't clean up here
        with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=place):
            server.start()
        try:
            yield server
        finally:
            server.close()


class Listener:
    """A server that keeps every call (`lines`) and sends the result of `answer`; on None it closes the connection."""

    def __init__(self, path: Path, answer: Callable[[Any], Any]) -> None:
        self.address = str(path)
        self.lines: list[Any] = []
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            with stream, stream.makefile("rb") as lines:
                for line in lines:
                    self.lines.append(json.loads(line))
                    answer = self._answer(self.lines[-1])
                    if answer is None:
                        break
                    stream.sendall(json.dumps(answer).encode() + b"\n")

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


class Raw:
    """A client that sends raw bytes and reads lines."""

    def __init__(self, address: str) -> None:
        self.stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.stream.connect(address)  # before settimeout: a non-blocking connect to a full queue fails with EAGAIN
        self.stream.settimeout(LIMIT_S)
        self._file = self.stream.makefile("rb")

    def send(self, data: bytes) -> None:
        self.stream.sendall(data)

    def line(self) -> Any:
        """Read the next message; None at the end."""
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
