"""MCP over HTTP: which requests reach the server. And what a tool says of a part that was not done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp")

from fusebackend.integrations.mcp import guarded
from fusebackend.integrations.tools import TOOLS
from fusebackend.protocol import RestoreResult, UndoConflict, UndoneChange
from fusebackend.testing.each import each

TOKEN = {"authorization": "Bearer secret"}
HOSTS = {
    "127.0.0.1": ("127.0.0.1", "127.0.0.1:80", "localhost", "localhost:9999", "[::1]:1"),
    "127.0.0.9": ("127.0.0.9:80", "localhost:80"),
    "[::1]": ("[::1]", "[::1]:80"),
}
FOREIGN = (
    "127.0.0.1:80.evil.example", "127.0.0.1.evil.example", "evil.example", "evil.example:80", "127.0.0.1:", "127x0.0.1",
    "localhost:80@evil.example", "xlocalhost", "127.0.0.1:80 ", "127.0.0.1:123456", "null", "[::1]x", "",
)  # fmt: skip


def status(own: str, **headers: str) -> int:
    """Return what a request gets; 200 from the server behind the guard."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    anyio.run(guarded(app, "secret", own), scope, None, send)
    return int(sent[0]["status"])


def test_only_the_machine_itself_is_its_own_origin() -> None:
    for case in each(HOSTS):
        with case as own:
            for name in own:
                assert status(case.name, host=name, **TOKEN) == 200, name
                assert status(case.name, origin=f"http://{name}", **TOKEN) == 200, name
                assert status(case.name, origin=f"https://{name}", **TOKEN) == 403, name
            for name in FOREIGN:
                assert status(case.name, host=name, **TOKEN) == 403, name
                assert status(case.name, origin=f"http://{name}", **TOKEN) == 403, name


def test_without_the_token_nobody_is_let_through() -> None:
    for case in each({"none": "", "wrong": "Bearer other", "bare": "secret", "odd": "Bearer s\u00e9"}):
        with case as given:
            headers = {"authorization": given} if given else {}
            assert status("127.0.0.1", host="127.0.0.1", **headers) == 401
    assert status("127.0.0.1", **TOKEN) == 200


def test_a_restore_says_what_it_has_left_alone() -> None:
    done = RestoreResult("s", changes=[UndoneChange("create", "/b")], skipped=[UndoConflict("/r", "a route's root")])

    async def arestore(*_: Any, **__: Any) -> RestoreResult:
        return done

    said = anyio.run(TOOLS["restore"].answer, SimpleNamespace(arestore=arestore), {"paths": ["/"], "ref": "s"})
    assert said == "restored from s\ncreate\t/b\nleft as it was /r: a route's root"
