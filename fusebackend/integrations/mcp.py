"""A mount as an MCP server: tools, files as resources, and subscriptions to them, over one client of a mount; served
over standard input and output, or over HTTP on loopback to clients that send the token.

A resource is a file, `fusebackend:///memories/AGENTS.md`. The list of resources has the files of the root; any other is
reached by its path. A subscriber is told of each change of its file by anybody, and reads it again. Both forms of the
protocol are served: `resources/subscribe` until 2025-11-25, `subscriptions/listen` since 2026-07-28.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import logging
import mimetypes
import os
import re
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fusebackend.base.awaiting import aside
from fusebackend.base.shown import name_shown, shown
from fusebackend.base.version import __version__
from fusebackend.control.client.client import Client
from fusebackend.integrations.tools import TOOLS, Refused, Tool
from fusebackend.protocol.actors import Actor, acting

log = logging.getLogger(__name__)

SCHEME = "fusebackend://"
RESOURCE_BYTES = 4 << 20
"""Of a file that is read as a resource. A larger one is read in parts, with the tool `read`."""

VERSION = "fusebackend/version"
"""The key in `_meta` of a resource for the version of its file."""

PROGRESS_S = 1.0
"""How often the client is told that a call goes on."""

INSTRUCTIONS = """\
Files of agents. Paths begin with /. Every change is recorded: `log` shows the calls, `diff` what one did, `undo` takes
it back. To try something, make a branch: the same files are below /.fusebackend/branches/NAME until `branch_merge`."""
INSTRUCTIONS_OF_A_VIEW = "Files of agents. Paths begin with /. What may be seen and changed is decided by the mount."

Context = ServerRequestContext[Any, Any]

PATH = "/mcp"


class MountServer:
    """See the module's docstring.

    Args:
        files: of the mount, perhaps in a view.

    Attributes:
        server: to be run by a transport of the SDK.
    """

    def __init__(self, files: Client) -> None:
        self._files = files
        self._in_view = bool(files.status().get("view"))  # chosen here, by its socket, or the mount's default
        self._tools = {name: tool for name, tool in TOOLS.items() if tool.verb.in_view or not self._in_view}
        self._bus = InMemorySubscriptionBus()
        self._listening = ListenHandler(self._bus)
        self._subscribers: dict[str, set[ServerSession]] = {}
        self._tasks: TaskGroup | None = None
        self._watching = False
        self.server: Server[dict[str, Any]] = Server(
            "fusebackend",
            version=__version__,
            instructions=INSTRUCTIONS_OF_A_VIEW if self._in_view else INSTRUCTIONS,
            lifespan=self._lifespan,
            get_tool_input_schema=lambda name: self._tools[name].schema if name in self._tools else None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=self._listen,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, server: Server[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        async with anyio.create_task_group() as self._tasks:
            yield {}
            self._tasks.cancel_scope.cancel()

    # -- tools -----------------------------------------------------------------------------------------------------

    async def _list_tools(self, context: Context, asked: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in self._tools.values()])

    async def _call_tool(self, context: Context, asked: types.CallToolRequestParams) -> types.CallToolResult:
        tool = self._tools.get(asked.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool '{asked.name}'")
        async with anyio.create_task_group() as group:
            group.start_soon(_tell_progress, context, tool.name)
            # The number of the request would name calls of other sessions as well.
            call = f"mcp-{uuid.uuid4().hex}"
            with acting(Actor(agent=_client(context), call=call)):
                try:
                    answer = _answer(await tool.answer(self._files, asked.arguments or {}))
                except Refused as error:
                    answer = _answer(str(error), failed=True)
                if tool.changes and not self._in_view:
                    with contextlib.suppress(OSError):  # the mount keeps no history
                        await aside(self._files, "end_call", partial(self._files.end_call, call))
            group.cancel_scope.cancel()
        return answer

    # -- resources -------------------------------------------------------------------------------------------------

    async def _list_resources(
        self, context: Context, asked: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        found = await self._files.als("/")
        paths = [entry["path"] for entry in found.entries or [] if not entry.get("is_dir")]
        resources = [
            types.Resource(uri=_uri(path), name=name_shown(path[1:]), mime_type=_mime_type(path)) for path in paths
        ]
        return types.ListResourcesResult(resources=resources)

    async def _list_templates(
        self, context: Context, asked: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template=f"{SCHEME}/{{+path}}", name="file", description="A file of the mount, by its path."
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def _read_resource(
        self, context: Context, asked: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(asked.uri)
        path = _path(uri)
        size = (await aside(self._files, "stat", lambda: self._files.stat(path, follow=True))).size or 0
        if size > RESOURCE_BYTES:
            raise MCPError(
                types.INVALID_PARAMS, shown(f"{path} has {size} bytes, too many for a resource: use the tool `read`")
            )
        (answer,) = await self._files.adownload_files([path])
        if answer.error is not None or answer.content is None:
            raise MCPError(types.INVALID_PARAMS, shown(f"{path}: {answer.error}"))
        known: dict[str, Any] = {"uri": uri, "mime_type": _mime_type(path), "_meta": {VERSION: answer.version}}
        try:
            text = types.TextResourceContents(text=answer.content.decode(), **known)
        except UnicodeDecodeError:
            blob = types.BlobResourceContents(blob=base64.b64encode(answer.content).decode(), **known)
            return types.ReadResourceResult(contents=[blob])
        return types.ReadResourceResult(contents=[text])

    # -- subscriptions ---------------------------------------------------------------------------------------------

    async def _subscribe(self, context: Context, asked: types.SubscribeRequestParams) -> types.EmptyResult:
        self._subscribers.setdefault(_path(str(asked.uri)), set()).add(context.session)
        self._watch()
        return types.EmptyResult()

    async def _unsubscribe(self, context: Context, asked: types.UnsubscribeRequestParams) -> types.EmptyResult:
        path = _path(str(asked.uri))
        self._subscribers.get(path, set()).discard(context.session)
        return types.EmptyResult()

    async def _listen(
        self, context: Context, asked: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        self._watch()
        return await self._listening(context, asked)

    def _watch(self) -> None:
        """Watch the mount from the first subscriber on."""
        if not self._watching and self._tasks is not None:
            self._watching = True
            self._tasks.start_soon(self._tell_changes)

    async def _tell_changes(self) -> None:
        """Tell subscribers of changes, as long as there is the mount."""
        try:
            async with self._files.awatch("/") as changes:
                async for change in changes:
                    if change.kind in ("overflow", "unknown"):  # anything may have changed
                        for path in list(self._subscribers):
                            await self._tell(path)
                        continue
                    for changed in filter(None, (change.path, change.moved_from)):
                        await self._tell(changed)
        except (OSError, ValueError, RuntimeError) as error:
            log.warning("changes are no longer told: %s", error)
        finally:
            self._watching = False

    async def _tell(self, path: str) -> None:
        uri = _uri(path)
        await self._bus.publish(ResourceUpdated(uri=uri))
        for session in list(self._subscribers.get(path, ())):
            try:
                await session.send_resource_updated(uri)
            except Exception as error:  # of a transport that the SDK knows: the session is gone
                log.info("a subscriber of %s is gone: %s", path, error)
                self._subscribers[path].discard(session)


def _described(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.text,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(
            read_only_hint=not tool.changes,
            destructive_hint=tool.destroys,
            idempotent_hint=not tool.changes,
            open_world_hint=tool.name == "execute",
        ),
    )


def _answer(text: str, *, failed: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)


async def _tell_progress(context: Context, name: str) -> None:
    seconds = 0.0
    while True:
        await anyio.sleep(PROGRESS_S)
        seconds += PROGRESS_S
        await context.session.report_progress(seconds, message=f"{name}: {seconds:.0f} s")


def _client(context: Context) -> str:
    """The client's word for itself."""
    known = context.session.client_params
    return known.client_info.name if known is not None else "mcp"


def _uri(path: str) -> str:
    return SCHEME + quote(path, errors="surrogateescape")


def _path(uri: str) -> str:
    if not uri.startswith(SCHEME + "/"):
        raise MCPError(types.INVALID_PARAMS, f"'{uri}' is no file of this mount; its files are {SCHEME}/PATH")
    return unquote(uri[len(SCHEME) :], errors="surrogateescape")


def _mime_type(path: str) -> str:
    return mimetypes.guess_type(path)[0] or "text/plain"


# -- transports -------------------------------------------------------------------------------------------------------


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

    try:  # a client may come as soon as it knows the address, which is before uvicorn listens
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise OSError(error.errno, f"can't listen on {host} port {port}: {why}") from None
    with listening:
        app = MountServer(files).server.streamable_http_app(streamable_http_path=PATH, host=host)
        place = f"[{host}]" if ":" in host else host
        config = uvicorn.Config(guarded(app, token, place), log_config=None, access_log=False)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        on_ready(f"http://{place}:{listening.getsockname()[1]}{PATH}")
        uvicorn.Server(config).run(sockets=[listening])


def guarded(app: ASGIApp, token: str, host: str) -> ASGIApp:
    """Answer 401 to a request without the token, and 403 to one of a web page: one whose `Host` or `Origin`, if it has
    one, names anything but this host or the machine itself. mcp's own check looks at their beginnings alone, and takes
    `http://127.0.0.1:80.evil.example` for its own."""
    expected = f"Bearer {token}".encode()
    own = "|".join(map(re.escape, {host, "127.0.0.1", "localhost", "[::1]"}))
    ours = {
        b"host": re.compile(rf"(?:{own})(?::\d{{1,5}})?".encode()),
        b"origin": re.compile(rf"http://(?:{own})(?::\d{{1,5}})?".encode()),
    }

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        answering = app
        if scope["type"] == "http":
            headers = scope["headers"]
            if not hmac.compare_digest(dict(headers).get(b"authorization", b""), expected):
                bearer = {"WWW-Authenticate": "Bearer"}
                answering = PlainTextResponse("the token is missing or wrong\n", 401, bearer)
            elif not all(ours[name].fullmatch(value) for name, value in headers if name in ours):
                answering = PlainTextResponse("requests of web pages are refused\n", 403)
        await answering(scope, receive, send)

    return guard
