"""Tests of the proxy itself, before its failures are used in other tests."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.stall import Address, Stall

LIMIT_S = 10.0


class Echo:
    """An echo server."""

    def __init__(self, path: Path | None) -> None:
        self._listener = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
        self._listener.bind(("127.0.0.1", 0) if path is None else str(path))
        self._listener.listen()
        self.address: Address = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture(params=["tcp", "unix"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stall]:
    server = Echo(None if request.param == "tcp" else tmp_path / "echo")
    with Stall(server.address) as proxy:
        yield proxy
    server.close()


def connected(network: Stall) -> socket.socket:
    client = socket.socket(socket.AF_UNIX if isinstance(network.address, str) else socket.AF_INET)
    client.settimeout(LIMIT_S)
    client.connect(network.address)
    return client


def echoed(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    answer = b""
    while len(answer) < len(data):
        answer += client.recv(1 << 16)
    return answer


def test_bytes_go_through_in_their_order(network: Stall) -> None:
    data = os.urandom(300_000)
    with connected(network) as client:
        assert echoed(client, data) == data
    with connected(network) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b"last words"
        assert client.recv(100) == b""


def test_a_stall_stops_everything_until_it_ends(network: Stall) -> None:
    with connected(network) as client:
        assert echoed(client, b"before") == b"before"
        network.stall()
        client.sendall(b"during")
        with connected(network) as newcomer:
            newcomer.sendall(b"new")
            for waiting in (client, newcomer):
                waiting.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    waiting.recv(100)
                waiting.settimeout(LIMIT_S)
            network.resume()
            assert client.recv(100) == b"during"
            assert newcomer.recv(100) == b"new"


def test_a_cut_ends_what_is_connected_and_nothing_later(network: Stall) -> None:
    with connected(network) as client:
        assert echoed(client, b"before") == b"before"
        assert network.connections == 1
        network.cut()
        try:
            assert client.recv(100) == b""  # Unix sockets have no reset
        except ConnectionResetError:
            pass
    with connected(network) as client:
        assert echoed(client, b"after") == b"after"
    assert network.accepted == 2
