"""Serve MCP over standard input and output, or over HTTP on loopback to clients that send the token."""

from __future__ import annotations

import hmac
import logging
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
        config = uvicorn.Config(_guarded(app, token), log_config=None, access_log=False)
        shown = f"[{host}]" if ":" in host else host
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        on_ready(f"http://{shown}:{listening.getsockname()[1]}{PATH}")
        uvicorn.Server(config).run(sockets=[listening])


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def _guarded(app: Any, token: str) -> App:
    """Answer 401 to a request without the token."""
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, expected):
                headers = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b"the token is missing or wrong\n"})
                return
        await app(scope, receive, send)

    return guarded
