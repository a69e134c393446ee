"""`fusebackend mcp`: a mount as an MCP server, for agents that speak that protocol."""

from __future__ import annotations

import ipaddress
import os
import secrets
import threading
from contextlib import AbstractContextManager, nullcontext, suppress

import click

from fusebackend.base.extras import needed_by
from fusebackend.cli import target
from fusebackend.cli.show import note
from fusebackend.cli.target import complete_mountpoint
from fusebackend.cli.view import complete_view
from fusebackend.control import rendezvous
from fusebackend.control.client.client import connect

TOKEN = "FUSEBACKEND_MCP_TOKEN"
"""The environment variable that names the token of `--http`."""


@click.command()
@click.argument(
    "mount",
    required=False,
    envvar="FUSEBACKEND_MOUNT",
    shell_complete=complete_mountpoint,
    metavar="[MOUNTPOINT|SOCKET|FILE]",
)
@click.option("--view", shell_complete=complete_view, metavar="NAME", help="See the mount through this view.")
@click.option("--http", metavar="HOST:PORT", help="Serve HTTP on this loopback address; port 0 takes a free one.")
def mcp(mount: str | None, view: str | None, http: str | None) -> None:
    """Serve a mount to an MCP client over standard input and output, until the input ends.

    The client starts this command itself; docs/mcp.md has the lines for each. FILE is a TOML file as of 'fusebackend
    mount': if nothing is mounted or served with it, it is served until the last such client ends, as 'fusebackend
    serve' does. Without an argument it is the only mount.

    With --http, clients send the token of the environment variable FUSEBACKEND_MCP_TOKEN; without that, a token is made
    and printed.
    """
    address = None if http is None else _loopback(http)
    place = mount or target.here(None, "as MOUNTPOINT").files.mountpoint
    with _serving(place):
        with needed_by("'fusebackend mcp'"):
            from fusebackend.integrations import mcp as serving
        with connect(place, view=view) as files:
            if address is None:
                serving.serve_stdio(files)
                return
            token = os.environ.get(TOKEN) or secrets.token_urlsafe()

            def ready(url: str) -> None:
                note(f"serving MCP on {url}")
                if TOKEN not in os.environ:
                    note(f"clients send this header: Authorization: Bearer {token}")

            serving.serve_http(files, *address, token, ready)


def _serving(place: str) -> AbstractContextManager[None]:
    """Have a configuration served for the length of a block; nothing else."""
    found, is_mounted = rendezvous.place_of(place)
    if is_mounted or rendezvous.is_socket(found):
        return nullcontext()
    from fusebackend.cli.mount import served_meanwhile

    # The import takes a second, and so does the server's start: side by side, on two processors.
    threading.Thread(target=_import_early, daemon=True).start()
    return served_meanwhile(found)


def _import_early() -> None:
    with suppress(ImportError):  # the import that follows says so
        import fusebackend.integrations.mcp  # noqa: F401


def _loopback(given: str) -> tuple[str, int]:
    host, _, port = given.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--http is HOST:PORT, such as 127.0.0.1:8765, not '{given}'")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise click.UsageError(
            f"--http serves loopback addresses alone, and '{host}' is none: put a proxy with TLS before it"
        )
    return host, int(port)
