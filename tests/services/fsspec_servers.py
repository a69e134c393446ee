"""Servers that file systems of fsspec reach: FTP, SFTP, HTTP and SMB, each in a process of its own, on loopback, of a
directory. The one of HTTP lists directories in HTML, and knows ranges, ETags and `If-Match`. That of SMB is Samba's;
its share is `files`.

with running("ftp", tmp_path) as port:
    fsspec.filesystem("ftp", host="127.0.0.1", port=port, username=USER, password=PASSWORD)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest

USER, PASSWORD = "agent", "secret"
STOP_LIMIT_S = 10.0

PACKAGES = {"ftp": ("pyftpdlib",), "sftp": ("asyncssh", "paramiko"), "http": ("aiohttp",), "smb": ("smbclient",)}


@contextlib.contextmanager
def running(kind: Literal["ftp", "sftp", "http", "smb"], root: Path) -> Iterator[int]:
    """Run a server for the length of a block; its port."""
    for package in PACKAGES[kind]:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: scripts/bootstrap --test")
    if kind == "smb" and shutil.which("smbd") is None:
        pytest.skip("smbd is not installed (Debian: samba)")
    if kind == "smb" and os.geteuid() != 0:
        pytest.skip("only root can start Samba with users of its own")
    with listening(__file__, kind, root) as port:
        yield port


@contextlib.contextmanager
def listening(script: str, *words: str | Path) -> Iterator[int]:
    """Run a script that prints the port it listens on, for the length of a block."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig=KILL", "--", sys.executable, "-W", "ignore", script, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline()
        assert port, f"the server ended with {process.wait(STOP_LIMIT_S)}"
        yield int(port)
    finally:
        process.terminate()
        with process:
            process.wait(STOP_LIMIT_S)


def serve_ftp(root: str) -> None:
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import ThreadedFTPServer

    authorizer = DummyAuthorizer()
    authorizer.add_user(USER, PASSWORD, root, perm="elradfmwMT")
    server = ThreadedFTPServer(("127.0.0.1", 0), type("Handler", (FTPHandler,), {"authorizer": authorizer}))
    print(server.address[1], flush=True)
    server.serve_forever()


async def serve_sftp(root: str) -> None:
    import asyncssh

    class Login(asyncssh.SSHServer):  # type: ignore[misc]
        def begin_auth(self, username: str) -> bool:
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == (USER, PASSWORD)

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=Login,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=root),
    )
    print(server.get_port(), flush=True)
    await server.wait_closed()


async def serve_http(root: str) -> None:
    from aiohttp import web

    async def answer(request: web.Request) -> web.StreamResponse:
        path = Path(root) / request.match_info["path"]
        if not path.exists() or (request.path.endswith("/") and not path.is_dir()):
            raise web.HTTPNotFound
        if not path.is_dir():
            return web.FileResponse(path)
        if not request.path.endswith("/"):
            raise web.HTTPMovedPermanently(f"{request.path}/")
        names = [f"{quote(each.name)}{'/' * each.is_dir()}" for each in sorted(path.iterdir())]
        links = [f'<a href="{name}">{name}</a>' for name in ("?C=N;O=D", "../", *names)]
        return web.Response(text="<br>".join(links), content_type="text/html")

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


SMB = """[global]
interfaces = 127.0.0.1
bind interfaces only = yes
smb ports = {port}
disable netbios = yes
load printers = no
disable spoolss = yes
passdb backend = tdbsam:{own}/passdb.tdb
username map = {own}/users
private dir = {own}
lock directory = {own}
state directory = {own}
cache directory = {own}
pid directory = {own}
ncalrpc dir = {own}/ncalrpc
log file = {own}/log

[files]
path = {root}
read only = no
"""


def serve_smb(root: str) -> None:
    with tempfile.TemporaryDirectory(prefix="fusebackend-smb-") as own, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        config = f"{own}/smb.conf"
        Path(config).write_text(SMB.format(port=port, own=own, root=root))
        Path(own, "users").write_text(f"root = {USER}\n")
        add = ["smbpasswd", "-c", config, "-s", "-a", "root"]
        subprocess.run(add, input=f"{PASSWORD}\n{PASSWORD}\n", text=True, check=True, stdout=subprocess.DEVNULL)
        words = ["smbd", "--foreground", "--no-process-group", "--configfile", config]
        command = ["setpriv", "--pdeathsig=KILL", "--", *words]
        # A session of its own: at its end smbd ends all of its process group, which would be that of the tests.
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        while server.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                print(port, flush=True)
                break
            time.sleep(0.05)
        server.wait()


if __name__ == "__main__":
    kind, top = sys.argv[1:]
    if kind == "ftp":
        serve_ftp(top)
    elif kind == "smb":
        serve_smb(top)
    else:
        asyncio.run(serve_sftp(top) if kind == "sftp" else serve_http(top))
