"""`tools_of`: the tools of an MCP server in this process, for threads that call them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from fusebackend import Client

Says: TypeAlias = Callable[[str, dict[str, Any]], tuple[bool, str]]
"""Calls a tool with its arguments; answers whether it failed, and its text."""


@contextlib.contextmanager
def tools_of(files: Client) -> Iterator[Says]:
    """Serve the files of a client to one MCP client for the length of a block. Any thread may call its tools."""
    from anyio.from_thread import start_blocking_portal
    from mcp import client as mcp_client

    from fusebackend.integrations.mcp import MountServer

    def says(tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        answer = portal.call(session.call_tool, tool, arguments)
        return answer.is_error, answer.content[0].text

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(mcp_client.Client(MountServer(files).server)) as session,
    ):
        yield says
