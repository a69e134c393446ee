"""Servers that file systems of fsspec reach: FTP and SFTP, on loopback, each in a thread of the test."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

USER, PASSWORD = "agent", "secret"


@contextlib.contextmanager
def ftp(directory: Path) -> Iterator[str]:
    """An FTP server of a directory; its URL."""
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import ThreadedFTPServer

    logging.getLogger("pyftpdlib").setLevel(logging.ERROR)
    authorizer = DummyAuthorizer()
    authorizer.add_user(USER, PASSWORD, str(directory), perm="elradfmwMT")
    handler = type("Handler", (FTPHandler,), {"authorizer": authorizer})
    server = ThreadedFTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=lambda: server.serve_forever(handle_exit=False), daemon=True)
    thread.start()
    try:
        yield f"ftp://{USER}:{PASSWORD}@127.0.0.1:{server.address[1]}"
    finally:
        server.close_all()
        thread.join(10)


@contextlib.contextmanager
def sftp(directory: Path) -> Iterator[dict[str, Any]]:
    """An SFTP server of a directory; the options that paramiko takes."""
    import asyncssh

    class Login(asyncssh.SSHServer):  # type: ignore[misc]
        def begin_auth(self, username: str) -> bool:
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == (USER, PASSWORD)

    loop = asyncio.new_event_loop()
    ready: list[Any] = []
    begun = threading.Event()

    def serve() -> None:
        async def begin() -> None:
            ready.append(
                await asyncssh.listen(
                    "127.0.0.1",
                    0,
                    server_factory=Login,
                    server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
                    sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(directory)),
                )
            )
            begun.set()

        async def end() -> None:
            ready[0].close()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        loop.run_until_complete(begin())
        loop.run_forever()
        loop.run_until_complete(end())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert begun.wait(30)
    try:
        yield {"host": "127.0.0.1", "port": ready[0].get_port(), "username": USER, "password": PASSWORD}
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
