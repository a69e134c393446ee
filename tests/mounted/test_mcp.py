"""A mount as an MCP server, by the SDK's own client: over stdio, over HTTP, and in this process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mounts
import pytest
import skips
import warm
from click.testing import CliRunner
from eventually import eventually
from mounts import Mounted, Serve
from programs import command, processes_with

import fusebackend

pytest.importorskip("mcp")

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError

from fusebackend.cli.main import main
from fusebackend.control import rendezvous
from fusebackend.integrations.mcp import RESOURCE_BYTES, MountServer
from fusebackend.integrations.tools import PAGE_CHARACTERS, TOOLS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
MODES = ["legacy", "auto"]
"""The protocol until 2025-11-25, with a handshake, and since 2026-07-28, without one."""

VIEW = """\
[views.reader]
rules = [
    { operations = ["read", "write"], paths = ["/secret"], mode = "hide" },
    { operations = ["write"], paths = ["/**"], mode = "deny" },
]
"""


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    directory = tmp_path_factory.mktemp("mcp")
    (directory / "mount.toml").write_text(VIEW)
    with mounts.mounted(directory / "mnt", "memory:", config=directory / "mount.toml") as server:
        yield server


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`fusebackend`, forked from a process that has imported the SDK."""
    made = tmp_path_factory.mktemp("program") / "fusebackend"
    warm.command(made, mounts.module_environment(), modules=("fusebackend.integrations.mcp",))
    return made


def over_stdio(program: Path, path: Path) -> Client:
    """A client of a server that it starts."""
    parameters = StdioServerParameters(command=str(program), args=["mcp", str(path)], env=dict(os.environ))
    return Client(stdio_client(parameters))


@asynccontextmanager
async def here(mount: Mounted, mode: str = "auto", view: str | None = None, **options: Any) -> AsyncIterator[Client]:
    """A client of a server in this process."""
    with fusebackend.connect(mount.path, view=view) as files:
        async with Client(MountServer(files).server, mode=mode, **options) as client:
            yield client


async def text(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    (block,) = answer.content
    return ("error: " if answer.is_error else "") + block.text  # type: ignore[union-attr]


async def test_every_tool(mount: Mounted) -> None:
    called, mode = set(), "tools"

    async with here(mount) as client:

        async def says(tool: str, **arguments: Any) -> str:
            called.add(tool)
            return await text(client, tool, **arguments)

        top = f"/{mode}"
        assert await says("write", path=f"{top}/a.md", content="one\ntwo\n") == f"{top}/a.md is written"
        assert (await says("write", path=f"{top}/a.md", content="")).startswith("error: Cannot write")
        assert await says("read", path=f"{top}/a.md") == "     1\tone\n     2\ttwo"
        assert await says("read", path=f"{top}/a.md", limit=1) == "     1\tone\n(the file goes on: offset=1)"
        assert await says("edit", path=f"{top}/a.md", old_string="two", new_string="2") == f"{top}/a.md: 1 replaced"
        assert (await says("ls", path=top)).startswith(f"{top}/a.md\t6\t")
        assert await says("grep", pattern="one", path=top) == f"{top}/a.md:1: one"
        assert await says("glob", pattern="*.md", path=top) == f"{top}/a.md"
        assert await says("move", source=f"{top}/a.md", destination=f"{top}/b.md") == f"{top}/a.md is {top}/b.md now"
        output = await says("execute", command=f"cat {top}/b.md; exit 3")
        assert output == "one\n2\n\nExit code: 3"

        assert f"rename to {top[1:]}/b.md" in await says("diff", paths=[top])
        calls = (await says("log", paths=[top], limit=2)).split("\n")
        assert [line.split("\t")[2:4] for line in calls] == [["mcp", "1"], ["mcp", "1"]]
        assert "\tone" in await says("blame", path=f"{top}/b.md")
        assert await says("snapshot_create", name=f"{mode}-s") == f"snapshot {mode}-s"
        assert f"{mode}-s\t" in await says("snapshot_list")

        assert await says("delete", path=f"{top}/b.md") == f"{top}/b.md is deleted"
        undone = await says("undo")
        assert re.fullmatch(rf"c\d+ undone by c\d+\ncreate\t{top}/b\.md", undone)
        assert await says("read", path=f"{top}/b.md") == "     1\tone\n     2\t2"
        await says("delete", path=f"{top}/b.md")
        restored = await says("restore", paths=[f"{top}/b.md"], ref=f"{mode}-s")
        assert restored == f"restored from {mode}-s\ncreate\t{top}/b.md"

        branch = f"/.fusebackend/branches/{mode}"
        assert await says("branch_create", name=mode) == f"branch {mode}: its files are below {branch}"
        assert f"{mode}\t" in await says("branch_list")
        await says("write", path=f"{branch}{top}/new.md", content="of the branch\n")
        await says("edit", path=f"{branch}{top}/b.md", old_string="one", new_string="branch")
        await says("edit", path=f"{top}/b.md", old_string="one", new_string="main")
        logged = (await says("log", branch=mode, limit=5)).splitlines()
        assert len(logged) == 2 and logged[0].startswith("c"), logged
        await says("write", path=f"{branch}{top}/spare.md", content="not wanted\n")
        assert "undone" in await says("undo", branch=mode)
        refused = await says("branch_merge", name=mode)
        assert refused.startswith(f"error: {top}/b.md: ") and refused.endswith("keep or merge_lines decide it")
        merged = await says("branch_merge", name=mode, paths=[f"{top}/new.md"])
        assert merged == f"{mode} is merged\ncreate\t{top}/new.md"
        assert await says("branch_delete", name=mode) == f"branch {mode} is deleted"
    assert called == set(TOOLS)
    assert (mount.path / mode / "new.md").read_text() == "of the branch\n"


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_client_is_shown(mount: Mounted, mode: str) -> None:
    async with here(mount, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == set(TOOLS)
        assert tools["read"].annotations.read_only_hint and not tools["write"].annotations.read_only_hint
        assert tools["delete"].annotations.destructive_hint and not tools["write"].annotations.destructive_hint
        for tool in tools.values():
            assert tool.description and tool.input_schema["type"] == "object"
        wrong = await text(client, "read")
        assert wrong == "error: Wrong arguments of read: Object missing required field `path`"
        wrong = await text(client, "ls", path="/", colour="red")
        assert wrong == "error: Wrong arguments of ls: Object contains unknown field `colour`"
        assert await text(client, "blame", path="/none") == "error: No such file or directory: '/none'"
        with pytest.raises(MCPError, match="there is no tool 'rm'"):
            await client.call_tool("rm", {})


async def test_answers_are_cut_and_go_on(mount: Mounted) -> None:
    (mount.path / "many").mkdir()
    for number in range(1500):
        (mount.path / "many" / f"{number:04}-{'x' * 30}").touch()
    (mount.path / "long.txt").write_text("y" * 100_000 + "\nend\n")

    async with here(mount) as client:
        seen: list[str] = []
        cursor = 0
        while cursor is not None:
            answer = await text(client, "ls", path="/many", cursor=cursor)
            assert len(answer) <= PAGE_CHARACTERS + 100
            *lines, last = answer.split("\n")
            more = re.fullmatch(r"\(more: cursor=(\d+)\)", last)
            seen += lines if more else [*lines, last]
            cursor = int(more[1]) if more else None
        assert [line.split("\t")[0] for line in seen] == [f"/many/{number:04}-{'x' * 30}" for number in range(1500)]
        output = await text(client, "execute", command="head -c 1000000 /dev/zero | tr '\\0' z")
        assert len(output) < PAGE_CHARACTERS and "characters left out" in output
        output = await text(client, "read", path="/long.txt")
        assert len(output) <= PAGE_CHARACTERS + 100


@pytest.mark.parametrize("mode", MODES)
async def test_files_are_resources_and_changes_are_told(mount: Mounted, mode: str) -> None:
    (mount.path / f"{mode} notes.md").write_text("one\n")
    (mount.path / f"{mode}.bin").write_bytes(b"\xff\xfe")
    with open(mount.path / f"{mode}.big", "wb") as big:
        big.truncate(RESOURCE_BYTES + 1)
    uri = f"fusebackend:///{mode}%20notes.md"
    told = anyio.Event()

    async def heard(message: Any) -> None:
        if getattr(getattr(message, "params", None), "uri", None) == uri:
            told.set()

    async with here(mount, mode, message_handler=heard) as client:
        listed = {resource.name: resource for resource in (await client.list_resources()).resources}
        assert listed[f"{mode} notes.md"].uri == uri
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "fusebackend:///{+path}"
        (found,) = (await client.read_resource(uri)).contents
        assert (found.text, found.mime_type) == ("one\n", "text/markdown")  # type: ignore[union-attr]
        held = (found.meta or {})["fusebackend/version"]
        path = f"/{mode} notes.md"
        assert f"(version: {held})" in await text(client, "read", path=path, version=True)
        (mount.path / path[1:]).write_text("one, by others\n")
        late = await text(client, "edit", path=path, old_string="one", new_string="1", if_version=held)
        assert late.startswith(f"error: changed: '{path}' has version ")
        (found,) = (await client.read_resource(f"fusebackend:///{mode}.bin")).contents
        assert found.blob == "//4="  # type: ignore[union-attr]
        for wrong in ("fusebackend:///none", "file:///etc/passwd", f"fusebackend:///{mode}.big"):
            with pytest.raises(MCPError):
                await client.read_resource(wrong)
        if mode == "legacy":
            await client.subscribe_resource(uri)
            while not told.is_set():  # the first changes may come before the watch has begun
                (mount.path / f"{mode} notes.md").write_text("two\n")
                await anyio.sleep(0.1)
            await client.unsubscribe_resource(uri)
        else:
            async with client.listen(resource_subscriptions=[uri]) as events, anyio.create_task_group() as group:

                async def change() -> None:
                    while True:
                        (mount.path / f"{mode} notes.md").write_text("two\n")
                        await anyio.sleep(0.1)

                group.start_soon(change)
                assert await anext(aiter(events)) == ResourceUpdated(uri=uri)
                group.cancel_scope.cancel()
        (found,) = (await client.read_resource(uri)).contents
        assert found.text == "two\n"  # type: ignore[union-attr]


async def test_a_view_holds(mount: Mounted) -> None:
    (mount.path / "secret").mkdir()
    (mount.path / "secret/key").write_text("needle\n")
    (mount.path / "open.md").write_text("needle\n")

    with fusebackend.connect(mount.path) as files:
        socket = files.view_socket("reader")

    with fusebackend.connect(socket) as files:
        async with Client(MountServer(files).server) as client, here(mount, view="reader") as other:
            for one in (client, other):
                names = {tool.name for tool in (await one.list_tools()).tools}
                assert names == {name for name, tool in TOOLS.items() if tool.verb.in_view}
    async with here(mount, view="reader") as client:
        assert "secret" not in await text(client, "ls")
        assert await text(client, "grep", pattern="needle") == "/open.md:1: needle"
        assert "needle" not in await text(client, "read", path="/secret/key")
        assert (await text(client, "write", path="/x", content="")).startswith("error: ")
        assert "needle" not in await text(client, "execute", command="cat /secret/key; grep -r needle /secret")
        with pytest.raises(MCPError):
            await client.call_tool("undo", {})
        with pytest.raises(MCPError):
            await client.read_resource("fusebackend:///secret/key")
    assert not (mount.path / "x").exists()


async def test_a_call_has_ended_when_it_is_answered(tmp_path: Path, serve: Serve) -> None:
    skips.need_sandbox()
    server = serve("memory:", options=["history=on"])

    async with here(server) as client:
        await text(client, "write", path="/note", content="one")
        await text(client, "execute", command="echo two > other")
    with fusebackend.connect(server.path) as files:
        found = files.log()
        assert [(each.kind, each.changes > 0, each.ended_ns is not None) for each in found] == [
            ("tool", True, True)
        ] * 2


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_is_cancelled_ends_and_one_that_takes_long_says_so(mount: Mounted, mode: str) -> None:
    skips.need_sandbox()
    async with here(mount, mode) as client:
        told: list[float] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.append(done)

        with anyio.move_on_after(2.5):
            await client.call_tool("execute", {"command": "sleep 77.77"}, progress_callback=progress)
        assert told and told == sorted(told)
        while "sleep 77.77" in command("status", "--json", mount.path).stdout or processes_with("sleep", "77.77"):
            await anyio.sleep(0.05)


class TestProcesses:
    """In one worker of a run, whose process has imported the SDK for them."""

    async def test_over_stdio(self, mount: Mounted, program: Path) -> None:
        async with over_stdio(program, mount.path) as client:
            assert client.server_info.name == "fusebackend" and "undo" in str(client.instructions)
            await client.call_tool("write", {"path": "/stdio.md", "content": "x"})
        assert (mount.path / "stdio.md").read_text() == "x"

    async def test_over_http_with_a_token(self, mount: Mounted, program: Path) -> None:
        words = [program, "mcp", mount.path, "--http", "127.0.0.1:0"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                url = process.stderr.readline().split()[-1]
                token = process.stderr.readline().split()[-1]
                assert url.startswith("http://127.0.0.1:") and len(token) > 40
                async with (
                    httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as network,
                    Client(streamable_http_client(url, http_client=network)) as client,
                ):
                    await client.call_tool("write", {"path": "/http.md", "content": "x"})
                request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
                for headers in ({}, {"Authorization": "Bearer wrong"}):
                    assert httpx2.post(url, json=request, headers=headers).status_code == 401
                rebound = {"Authorization": f"Bearer {token}", "Host": "evil.example"}
                assert httpx2.post(url, json=request, headers=rebound).status_code in (403, 421)
                posing = {"Authorization": f"Bearer {token}", "Origin": f"{url.removesuffix('/mcp')}.evil.example"}
                assert httpx2.post(url, json=request, headers=posing).status_code == 403
            finally:
                process.send_signal(signal.SIGTERM)
                rest = process.stderr.read() if process.stderr is not None else ""
                process.wait(LIMIT_S)
        assert "Traceback" not in rest
        assert (mount.path / "http.md").read_text() == "x"

    async def test_a_configuration_that_nothing_serves_is_served_until_the_last_client_ends(
        self, tmp_path: Path, program: Path
    ) -> None:
        config = tmp_path / "agent.toml"
        config.write_text('default = "sqlite:agent.db"\n')

        async with over_stdio(program, config) as first:
            await text(first, "write", path="/a.md", content="of the first\n")
            async with over_stdio(program, config) as second:
                assert await text(second, "read", path="/a.md") == "     1\tof the first"
                server = rendezvous.find_served(str(config))
                await text(second, "edit", path="/a.md", old_string="first", new_string="second")
            assert rendezvous.find_served(str(config)) == server  # one of the two is still there
            assert await text(first, "read", path="/a.md") == "     1\tof the second"
        async with over_stdio(program, config) as third:  # waits for the server to end, and starts another
            assert await text(third, "read", path="/a.md") == "     1\tof the second"
            assert rendezvous.find_served(str(config)) != server
        eventually(lambda: rendezvous.find_served(str(config)) is None, LIMIT_S)


async def test_without_a_mount(tmp_path: Path) -> None:
    config = tmp_path / "served.toml"
    config.write_text('default = "memory:"\n')
    assert command("serve", "--config", config, "--background").returncode == 0
    try:
        with fusebackend.connect(config) as files:
            async with Client(MountServer(files).server) as client:
                assert "nothing is mounted here" in await text(client, "execute", command="ls")
                assert await text(client, "write", path="/a", content="x") == "/a is written"
                assert await text(client, "undo") != "" and await text(client, "ls") == "(nothing)"
    finally:
        assert command("umount", config).returncode == 0


def test_a_server_for_a_client_ends_with_a_client_that_is_killed(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text('default = "memory:"\n')
    words = [sys.executable, "-m", "fusebackend", "mcp", str(config)]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE) as process:
        eventually(lambda: rendezvous.find_served(str(config)) is not None, LIMIT_S)
        process.kill()
    eventually(lambda: rendezvous.find_served(str(config)) is None, LIMIT_S)


def test_bad_words_are_one_line(mount: Mounted, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('colour = "red"\n')
    for words, said in (
        (["mcp", tmp_path], "lies in no mount of fusebackend"),
        (["mcp", tmp_path / "no.toml"], f"'{tmp_path}/no.toml' does not exist, so it lies in no mount of fusebackend"),
        (["mcp", wrong], "unknown key 'colour'"),
        (["mcp", mount.path, "--view", "none"], "there is no view 'none'"),
        (["mcp", mount.path, "--http", "0.0.0.0:80"], "'0.0.0.0' is none"),
        (["mcp", mount.path, "--http", "here"], "HOST:PORT"),
    ):
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code != 0 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_port_that_is_taken_is_one_line(mount: Mounted) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(main, ["mcp", str(mount.path), "--http", f"127.0.0.1:{port}"])
    error = f"Error: can't listen on 127.0.0.1 port {port}: Address already in use\n"
    assert (done.exit_code, done.stderr) == (1, error)


def test_without_the_sdk_it_is_one_line(mount: Mounted, tmp_path: Path) -> None:
    (tmp_path / "without/mcp").mkdir(parents=True)
    missing = "raise ModuleNotFoundError('No module', name='mcp')"
    (tmp_path / "without/mcp/__init__.py").write_text(missing)
    words = [sys.executable, "-m", "fusebackend", "mcp", mount.path]
    there = {**os.environ, "PYTHONPATH": f"{tmp_path / 'without'}:{ROOT}"}
    done = subprocess.run(words, env=there, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    install = "pip install 'fusebackend[mcp]'"
    assert done.returncode == 1
    assert done.stderr == f"Error: 'fusebackend mcp' needs mcp, which is not installed: {install}\n"
