"""Serve MCP over standard input and output, or over HTTP on loopback to clients that send the token."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from mcp.server.stdio import stdio_server

from fusebackend.control.client.client import Client
from fusebackend.integrations.mcp.server import MountServer

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]

PATH = "/mcp"
TOKEN_BYTES = 32


def serve_stdio(files: Client) -> None:
    """Serve until standard input ends."""

    async def main() -> None:
        server = MountServer(files).server
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(main)


def serve_http(files: Client, host: str, port: int, token: str, on_ready: Callable[[str], None]) -> None:
    """Serve on a loopback address until SIGINT or SIGTERM.

    Args:
        token: what a client sends as `Authorization: Bearer TOKEN`.
        on_ready: called with the URL when it answers.

    Raises:
        OSError: the address can't be had; its text names it.
    """
    import socket

    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise OSError(error.errno, f"can't listen on {host} port {port}: {error.strerror}") from None
        listening.listen()  # a client may come as soon as it knows the address, which is before uvicorn listens
        app = MountServer(files).server.streamable_http_app(streamable_http_path=PATH, host=host)
        shown = f"[{host}]" if ":" in host else host
        config = uvicorn.Config(guarded(app, token, shown), log_config=None, access_log=False)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        on_ready(f"http://{shown}:{listening.getsockname()[1]}{PATH}")
        uvicorn.Server(config).run(sockets=[listening])


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def guarded(app: App, token: str, host: str) -> App:
    """Answer 401 to a request without the token, and 403 to one of a web page: one whose `Host` or `Origin`, if it has
    one, names anything but this host or the machine itself. mcp's own check looks at their beginnings alone, and takes
    `http://127.0.0.1:80.evil.example` for its own."""
    expected = f"Bearer {token}".encode()
    own = "|".join(map(re.escape, {host, "127.0.0.1", "localhost", "[::1]"}))
    ours = {
        b"host": re.compile(rf"(?:{own})(?::\d{{1,5}})?".encode()),
        b"origin": re.compile(rf"http://(?:{own})(?::\d{{1,5}})?".encode()),
    }

    async def guard(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = scope["headers"]
        if not hmac.compare_digest(dict(headers).get(b"authorization", b""), expected):
            await _refuse(send, 401, b"the token is missing or wrong\n", (b"www-authenticate", b"Bearer"))
        elif not all(ours[name].fullmatch(value) for name, value in headers if name in ours):
            await _refuse(send, 403, b"requests of web pages are refused\n")
        else:
            await app(scope, receive, send)

    return guard


async def _refuse(send: Any, status: int, why: bytes, *headers: tuple[bytes, bytes]) -> None:
    headers = (*headers, (b"content-type", b"text/plain"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": why})
