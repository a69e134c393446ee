"""Servers that all workers of a test run share: the first worker that needs one starts it, the last one ends it.

    with shared.postgres(directory) as server: ...      # `directory` is the run's, the same for all of its workers

A keeper (`python -m services.shared NAME`) is the server's parent. It sends each worker the server's address, over a
socket in the abstract namespace named after the run's directory. A worker keeps its connection open while it uses the
server. When the last connection has ended, by the death of a worker too, the keeper removes the server and exits. So no
process id is written down and no file is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import selectors
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services import postgres as postgres_service
from services import seaweedfs as seaweedfs_service
from services.postgres import Postgres
from services.s3 import Service

START_LIMIT_S = 120.0
END_LIMIT_S = 60.0


@contextlib.contextmanager
def postgres(run: Path) -> Iterator[Postgres]:
    with _held("postgres", run) as place:
        yield Postgres(Path(place["directory"]))


@contextlib.contextmanager
def seaweedfs(run: Path) -> Iterator[Service]:
    with _held("seaweedfs", run) as place:
        yield Service(**place)


# -- a worker's side ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _held(name: str, run: Path) -> Iterator[dict[str, str]]:
    """Yield the address of the server, and keep it running for the length of the block."""
    answer: dict[str, Any] | None = None
    while answer is None:  # a keeper that is just ending closes without an answer; the next one will answer
        connection = _connected(name, run)
        answer = _received(connection)
    with connection:
        if "skip" in answer:
            pytest.skip(answer["skip"])
        if "fail" in answer:
            pytest.fail(f"{name} did not start:\n{answer['fail']}", pytrace=False)
        yield answer["place"]
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(END_LIMIT_S)
        assert connection.recv(1) == b"", "the keeper says nothing more, but ends"


def _connected(name: str, run: Path) -> socket.socket:
    """Connect to the keeper; start one if none listens."""
    address = f"\0fusebackend-tests-{hashlib.sha256(os.fsencode(run)).hexdigest()[:16]}-{name}"
    with (run / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except ConnectionRefusedError:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen()
                connection.connect(address)  # before the keeper looks, so that it does not end at once
                _start(name, run, listener)
        return connection


def _start(name: str, run: Path, listener: socket.socket) -> None:
    """Start a keeper in a session of its own, reparented to init: no worker waits for it, and it outlives each."""
    tests = Path(__file__).parents[1]
    path = [str(tests.parent), str(tests / "support"), str(tests), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (run / f"{name}.log").open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", sys.executable, "-m", "services.shared", name],
            stdin=listener.fileno(), stdout=log, stderr=log, cwd=run, check=True, timeout=START_LIMIT_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )  # fmt: skip


def _received(connection: socket.socket) -> dict[str, Any] | None:
    """Receive the keeper's answer; None if it has ended."""
    connection.settimeout(START_LIMIT_S)
    text = b""
    try:
        while not text.endswith(b"\n"):
            part = connection.recv(1 << 16)
            if not part:
                raise ConnectionResetError
            text += part
    except ConnectionResetError:
        connection.close()
        return None
    return dict(json.loads(text))


# -- the keeper --------------------------------------------------------------------------------------------------


def _postgres(opened: contextlib.ExitStack) -> dict[str, str]:
    return {"directory": str(opened.enter_context(postgres_service.running(in_memory=True)).directory)}


def _seaweedfs(opened: contextlib.ExitStack) -> dict[str, str]:
    return vars(opened.enter_context(seaweedfs_service.running()).service)


STARTS: dict[str, Callable[[contextlib.ExitStack], dict[str, str]]] = {
    "postgres": _postgres,
    "seaweedfs": _seaweedfs,
}


def keep(name: str, listener: socket.socket) -> None:
    """Start the server `name`, send its address to each connection, and remove it after the last connection."""
    clients: set[socket.socket] = set()
    with contextlib.ExitStack() as connections, contextlib.ExitStack() as opened:
        try:
            answer: dict[str, Any] = {"place": STARTS[name](opened)}
        except pytest.skip.Exception as reason:
            answer = {"skip": str(reason)}
        except (Exception, pytest.fail.Exception):
            answer = {"fail": traceback.format_exc()}
        with selectors.DefaultSelector() as ready:
            ready.register(listener, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is listener:
                        client = connections.enter_context(listener.accept()[0])
                        with contextlib.suppress(BrokenPipeError):  # the worker was killed; `select` reports EOF next
                            client.sendall(json.dumps(answer).encode() + b"\n")
                        ready.register(client, selectors.EVENT_READ)
                        clients.add(client)
                    else:
                        client = key.fileobj
                        ready.unregister(client)
                        clients.remove(client)
                        if clients:
                            client.close()
                if not clients:
                    break
        listener.close()
        # The last client's connection ends here, after the server was removed.


if __name__ == "__main__":
    inherited = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # or the address would stay taken for as long as this process lives
    keep(sys.argv[1], inherited)
