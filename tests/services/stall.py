"""A network that fails on command: a proxy in front of a server, which can delay, stop reading, and cut connections.

    with Stall(("127.0.0.1", 5432)) as network:       # or the path of a Unix socket
        connect(network.address)                      # the same kind: (host, port), or a path
        network.latency_s = 0.05                      # every round trip takes that much longer, however many there are
        network.stall()                               # nothing gets through any more; new connections are made and wait
        network.resume()                              # waiting data goes on, in order
        network.cut()                                 # every connection is reset; new ones get through

A loop of its own in a thread of this process moves the bytes. `stall` and `cut` hold from the moment they return. A
connection that the target refuses is closed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeAlias

Address: TypeAlias = tuple[str, int] | str
"""Of a TCP server, or the path of a Unix socket."""

CHUNK_BYTES = 1 << 16
CHUNKS_UNDER_WAY = 256
"""Chunks in flight in one direction of one connection; beyond that the proxy stops reading."""

LIMIT_S = 10.0
"""The loop must carry out a command within this time."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: send RST; the other side would take FIN for an orderly end


class Stall:
    """See the module's docstring.

    Args:
        target: the address of the server.
        listen: the path to listen on, of a Unix socket (PostgreSQL's clients want a certain file name); without it, a
            path in a new directory, or a free port of the loopback for a target that is TCP.

    Attributes:
        address: the address of the proxy.
        latency_s: delay of all that a client sends; may be changed at any time.
        accepted: number of connections so far.
    """

    def __init__(self, target: Address, listen: str | None = None) -> None:
        self.latency_s = 0.0
        self.accepted = 0
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._directory: str | None = None
        if isinstance(target, str) and listen is None:
            self._directory = tempfile.mkdtemp(prefix="fusebackend-stall-")
            listen = os.path.join(self._directory, "socket")
        self._listener = socket.socket(socket.AF_INET if listen is None else socket.AF_UNIX)
        self._listener.bind(("127.0.0.1", 0) if listen is None else listen)
        self._listener.listen(512)
        self._path = listen
        self.address: Address = self._listener.getsockname()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stall", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(LIMIT_S)

    # -- what it can do ----------------------------------------------------------------------------------------

    def stall(self) -> None:
        """Stop reading. Both ends see no error; they only wait."""
        self._do(self._open.clear)

    def resume(self) -> None:
        self._do(self._open.set)

    def cut(self) -> None:
        """Reset every open connection."""
        self._do(self._abort_all)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def close(self) -> None:
        """End the proxy and all its connections. A second call does nothing."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()
        if self._directory is not None:
            shutil.rmtree(self._directory)
        elif self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the loop's thread -------------------------------------------------------------------------------------

    def _do(self, what: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(LIMIT_S), "the proxy does not answer"

    async def _listen(self) -> asyncio.Server:
        if self._path is not None:
            return await asyncio.start_unix_server(self._accept, sock=self._listener)
        return await asyncio.start_server(self._accept, sock=self._listener)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until an end is gone, or `close`: asyncio would print a traceback for a cancelled one."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        self._connections[task] = [writer]
        try:
            await self._open.wait()
            onward, back = await self._connect()
            self._connections[task].append(back)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back, delayed=True))
                pumps.create_task(self._pump(onward, writer, delayed=False))
        except* OSError:
            pass  # the target refuses, or one end is gone: the `finally` ends the other
        finally:
            for end in self._connections.pop(task):
                end.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, delayed: bool) -> None:
        """Move bytes until the source ends. A delayed chunk does not delay reading the next ones."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_UNDER_WAY)
        sender = asyncio.create_task(self._send(under_way, sink))
        try:
            while data := await source.read(CHUNK_BYTES):
                await under_way.put((self._loop.time() + (self.latency_s if delayed else 0.0), data))
            await under_way.put((0.0, b""))
            await sender
        finally:
            sender.cancel()

    async def _send(self, under_way: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            await self._open.wait()
            if not data:
                sink.write_eof()
                return
            sink.write(data)
            await sink.drain()

    def _abort_all(self) -> None:
        for writers in self._connections.values():
            for writer in writers:
                _reset(writer)
                writer.transport.abort()

    async def _end(self) -> None:
        self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
