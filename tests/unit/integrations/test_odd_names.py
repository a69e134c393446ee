"""Files with names that are no UTF-8, or hide something, at every door: it shows them escaped, and the others too, and
takes back what it shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from for_each import for_each
from live import Live, live

pytest.importorskip("mcp")
pytest.importorskip("agents")
pytest.importorskip("anthropic")
pytest.importorskip("deepagents")

from agents import ApplyPatchOperation
from agents.tool_context import ToolContext
from mcp.client import Client
from mcp.client.subscriptions import ResourceUpdated

from fusebackend import Client as Files
from fusebackend.backends import InMemoryBackend
from fusebackend.base.shown import name_shown, shown
from fusebackend.integrations.anthropic_memory import MemoryTool
from fusebackend.integrations.deepagents import export
from fusebackend.integrations.fsspec_filesystem import FusebackendFileSystem
from fusebackend.integrations.mcp import MountServer
from fusebackend.integrations.openai_agents import PatchEditor, file_tools
from fusebackend.integrations.tools import TOOLS, Refused

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

NAMES = [
    "plain.md",
    "odd\udcff.md",
    "half\udced\udca0\udc80.md",
    "line\nend.md",
    "tab\tesc\x1b[2J.md",
    "u\u2028\u200b\u202e.md",
    "back\\377.md",
    "dots\\056\\057.md",
]
ODD = {"odd\udcff.md", "half\udced\udca0\udc80.md", "back\\377.md"}
"""Those that are no UTF-8, or look like one that is shown."""

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    rules = [{"paths": ["/asked/**"], "operations": ["write"], "mode": "interrupt"}]
    routes = {"/route\udcff\n/": InMemoryBackend()}
    with live(tmp_path_factory.mktemp("odd"), InMemoryBackend(), routes, views={"agent": rules}) as server:
        with server.connect() as files:
            for name in NAMES:
                files.write(f"/names/{name}", f"needle in {name_shown(name)}\n")
        yield server


@pytest.fixture
def files(server: Live) -> Iterator[Files]:
    with server.connect() as files:
        yield files


def through_tools(files: Files) -> Callable[..., str]:
    def call(name: str, **given: Any) -> str:
        try:
            return anyio.run(lambda: TOOLS[name].answer(files, given))
        except Refused as error:
            return f"error: {error}"

    return call


def through_openai(files: Files) -> Callable[..., str]:
    def call(name: str, **given: Any) -> str:
        (tool,) = file_tools(files, name, root="/names")
        text = json.dumps(given)
        context = ToolContext(None, tool_name=name, tool_call_id="1", tool_arguments=text)
        return str(asyncio.run(tool.on_invoke_tool(context, text)))

    return call


def through_mcp(files: Files) -> Callable[..., str]:
    async def call(name: str, given: Any) -> str:
        async with Client(MountServer(files).server) as client:
            answer = await client.call_tool(name, given)
            return json.loads(answer.model_dump_json())["content"][0]["text"]  # type: ignore[no-any-return]

    return lambda name, **given: anyio.run(call, name, given)


DOORS = {"tools": through_tools, "openai": through_openai, "mcp": through_mcp}


@pytest.mark.parametrize("door", list(DOORS))
def test_tools_show_each_name_and_take_it_back(files: Files, door: str) -> None:
    call = DOORS[door](files)
    paths = [f"/names/{name_shown(name)}" for name in NAMES]
    for tool, given in (("ls", {"path": "/names"}), ("glob", {"path": "/names", "pattern": "**"})):
        text = call(tool, **given)
        text.encode()
        assert sorted(line.split("\t")[0] for line in text.split("\n")) == sorted(paths)
    lines = call("grep", path="/names", pattern="needle").split("\n")
    assert sorted(lines) == sorted(f"{path}:1: needle in {path.removeprefix('/names/')}" for path in paths)
    for path in paths:
        assert call("read", path=path) == f"     1\tneedle in {path.removeprefix('/names/')}"
        assert call("edit", path=path, old_string="needle", new_string="needle") == f"{path}: 1 replaced"
    assert "none\\377.md' not found" in call("read", path="/names/none\\377.md")
    assert "leads out" in call("read", path="/names/../x") if door == "openai" else True


@for_each("tool", ["log", "diff", "blame", "undo", "snapshot_list", "branch_list"])
def test_tools_about_calls_are_utf8(files: Files, tool: str) -> None:
    given = {"blame": {"path": "/names/odd\\377.md"}, "undo": {"dry_run": True}}.get(tool, {})
    text = through_tools(files)(tool, **given)
    text.encode()
    if tool in ("log", "blame"):
        assert "odd\\377.md" in text


async def test_resources_are_listed_and_read_by_their_bytes(files: Files) -> None:
    files.write("/top\udcff\n.md", "odd\n")
    files.write("/top.md", "plain\n")

    async with Client(MountServer(files).server) as client:
        found = {each.name: each.uri for each in (await client.list_resources()).resources}
        assert str(found["top\\377\\n.md"]) == "fusebackend:///top%FF%0A.md"
        for name, text in (("top\\377\\n.md", "odd\n"), ("top.md", "plain\n")):
            (content,) = (await client.read_resource(found[name])).contents
            assert content.text == text  # type: ignore[union-attr]


async def test_a_subscriber_hears_of_changes_after_that_of_an_odd_name(files: Files) -> None:
    uris = ["fusebackend:///heard%FF.md", "fusebackend:///heard.md"]

    with anyio.fail_after(LIMIT_S):
        async with (
            Client(MountServer(files).server) as client,
            client.listen(resource_subscriptions=uris) as events,
            anyio.create_task_group() as group,
        ):

            async def change() -> None:
                while True:  # the first changes may come before the watch has begun
                    for name in ("unheard\udcfe.md", "heard\udcff.md", "heard.md"):
                        await files.aupload_files([(f"/{name}", b"x")])
                    await anyio.sleep(0.05)

            group.start_soon(change)
            told = set()
            async for event in events:
                assert isinstance(event, ResourceUpdated)
                told.add(str(event.uri))
                if told == set(uris):
                    break
            group.cancel_scope.cancel()


def test_a_patch_is_made_to_the_name_that_was_shown(files: Files) -> None:
    editor = PatchEditor(files, root="/names")
    files.write("/names/patched\udcff", "one\n")

    def made(kind: str, path: str, diff: str | None = None) -> str:
        operation = ApplyPatchOperation(type=kind, path=path, diff=diff)  # type: ignore[arg-type]
        result = asyncio.run(getattr(editor, kind)(operation))
        return f"{result.status}: {result.output}"

    assert made("update_file", "patched\\377", "@@\n-one\n+two\n") == "completed: Updated patched\\377"
    assert files.read("/names/patched\udcff").file_data["content"] == "two\n"  # type: ignore[index]
    assert made("delete_file", "patched\\377") == "completed: Deleted patched\\377"
    made("delete_file", "patched\\377").encode()
    assert made("delete_file", "\\056\\056/x").startswith("failed: ")


def test_the_memory_tool(files: Files) -> None:
    tool = MemoryTool(files, root="/names")
    text = str(tool.call({"command": "view", "path": "/memories"}))
    text.encode()
    shown_names = [name_shown(name) for name in NAMES]
    assert sorted(line.rpartition("/memories/")[2] for line in text.split("\n")[2:]) == sorted(shown_names)
    for name in shown_names:
        assert f"needle in {name}" in str(tool.call({"command": "view", "path": f"/memories/{name}"}))


def test_deepagents(files: Files) -> None:
    """Whose tools show names that are UTF-8 as they are, and take them so."""
    theirs = export(files)
    paths = sorted(f"/names/{name_shown(name) if name in ODD else name}" for name in NAMES)
    listed = theirs.ls("/names").entries or []
    assert sorted(each["path"] for each in listed) == paths
    assert sorted(each["path"] for each in theirs.glob("**", "/names").matches or []) == paths
    assert sorted(each["path"] for each in theirs.grep("needle", "/names").matches or []) == paths
    for path in paths:
        assert theirs.read(path).file_data["content"].startswith("needle in")  # type: ignore[index]
        assert theirs.edit(path, "needle", "needle").path == path
    assert [each.error for each in theirs.download_files(paths)] == [None] * len(paths)
    assert "none\\377' not found" in str(theirs.read("/names/none\\377").error)


def test_fsspec_has_names_as_python_has_them(server: Live) -> None:
    made = FusebackendFileSystem(socket=server.mount.status()["control"]["socket"])
    found = made.find("/names")
    assert sorted(found) == sorted(f"/names/{name}" for name in NAMES)
    assert all(made.cat(path).startswith(b"needle in") for path in found)
    made.close()


def test_metrics_name_routes_and_the_mount(files: Files) -> None:
    files.write("/route\udcff\n/x\udcff", "1")
    text = files.metrics()
    text.encode()
    assert 'route="/route\\\\377\\\\n/"' in text
    assert 'route="/",state="healthy"' in text


def test_the_log_is_utf8_in_lines(files: Files) -> None:
    for name in ("calls.tsv", "today.jsonl"):
        content = files.download_files([f"/.fusebackend/log/{name}"])[0].content or b""
        lines = content.decode().splitlines()
        assert len(lines) == content.count(b"\n") and any("odd" in line for line in lines)
        assert not {"\x1b", "\u2028", "\u202e"} & set(content.decode())
        titles = {"calls.tsv": "write /names/odd\\377.md", "today.jsonl": "write /names/odd\\udcff.md"}
        assert titles[name] in content.decode()


def test_a_request_is_named_so_that_it_can_be_nothing_else(server: Live, files: Files) -> None:
    with server.connect(view="agent") as agent:
        for name in ("two words", "odd\udcff\n\u2028", "it's"):
            assert "needs an approval" in str(agent.write(f"/asked/{name}", "x").error)
    titles = [each.title for each in files.approvals()]
    assert sorted(titles) == sorted(
        ["write '/asked/two words'", "write /asked/odd\\377\\n\\u2028", "write '/asked/it's'"]
    )


def test_what_a_graph_is_interrupted_with_can_be_stored(server: Live, files: Files) -> None:
    from fusebackend.integrations.approving import Approving

    pending: Any = SimpleNamespace(number=1, verb="write", paths=["/a\udcff"], view="v", title="write /a\\377")
    owner: Any = SimpleNamespace(approval=lambda number: SimpleNamespace(change="+new\u200b\udcff\n"))
    request = Approving(files, owner)._request([pending])
    json.dumps(request, ensure_ascii=False).encode()
    assert request["action_requests"][0]["args"]["paths"] == ["/a\\377"]
    assert shown("\u200b") in request["action_requests"][0]["description"]
