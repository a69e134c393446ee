"""`files.branch()`: a branch as a backend for the length of a block, of a mount in this process and of a client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import fusebackend
from fusebackend import MergeConflict, Mount
from fusebackend.backends import CompositeBackend, FilesystemBackend, SqliteBackend
from fusebackend.protocol.served import MountProtocol
from fusebackend.testing.each import each


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount with a frozen route and a live one."""
    directory = tmp_path_factory.mktemp("block")
    (directory / "src").mkdir()
    (directory / "mount").mkdir()
    routes = {"/src/": FilesystemBackend(directory / "src", virtual_mode=True)}
    backend = CompositeBackend(SqliteBackend(directory / "volume.db"), routes)
    with fusebackend.mount(backend, directory / "mount", history="on") as files:
        yield files


@pytest.fixture(params=["mount", "client"])
def files(request: pytest.FixtureRequest, mount: Mount) -> Iterator[MountProtocol]:
    for path in ("/a", "/src/x"):
        mount.upload_files([(path, b"one\n")])
    with contextlib.closing(fusebackend.connect(mount.mountpoint)) as client:
        yield mount if request.param == "mount" else client
    mount.delete_branches(*(branch.name for branch in mount.branches()))
    for entry in [*(mount.ls("/").entries or []), *(mount.ls("/src/").entries or [])]:
        mount.delete(entry["path"])


def texts(files: Any, *paths: str) -> list[str | None]:
    return [None if found.content is None else found.content.decode() for found in files.download_files(list(paths))]


def names(files: MountProtocol) -> list[str]:
    return [branch.name for branch in files.branches()]


def test_every_verb_is_about_the_branch(files: MountProtocol) -> None:
    with files.branch("try") as tried:
        for case in each([
            (lambda: tried.edit("/a", "one", "two").occurrences, 1),
            (lambda: tried.write("/new/file", "x").path, "/new/file"),
            (lambda: tried.move("/new/file", "/src/moved").path, "/src/moved"),
            (lambda: tried.upload_files([("/up", b"1"), ("/../up", b"2")])[0].path, "/up"),
            (lambda: tried.upload_files([("/../up", b"2")])[0].error, "invalid_path"),
            (lambda: tried.delete("/src/x").path, "/src/x"),
            (lambda: [entry["path"] for entry in tried.ls("/").entries or []], ["/a", "/new/", "/src/", "/up"]),
            (lambda: tried.read("/nothing").error, "File '/nothing' not found"),
            (lambda: tried.read("/../a").error, "Path traversal not allowed: '/../a' climbs above the root"),
            (lambda: tried.read("").error, "Path is empty"),
            (lambda: [match["path"] for match in tried.grep("two").matches or []], ["/a"]),
            (lambda: [match["path"] for match in tried.glob("/src/*").matches or []], ["/src/moved"]),
            (lambda: [match["path"] for match in tried.glob("**/moved").matches or []], ["/src/moved"]),
            (lambda: [entry["path"] for entry in tried.ls_info("/src")], ["/src/moved"]),
            (lambda: tried.real_paths(["/a", "/.."]), ["/a", None]),
            (lambda: tried.execute("cat /a; ls /src; echo 3 > /three").output, "two\nmoved\n"),
            (lambda: texts(tried, "/a", "/three", "/none"), ["two\n", "3\n", None]),
            (lambda: texts(files, "/a", "/src/x", "/three"), ["one\n", "one\n", None]),
        ]):  # fmt: skip
            with case as (ask, wanted):
                assert ask() == wanted
    assert texts(files, "/a", "/src/x", "/src/moved", "/three") == ["two\n", None, "x", "3\n"]
    assert names(files) == []
    assert tried.merged is not None and tried.merged.call is not None
    assert not files.undo(tried.merged.call).conflicts, "also when the branch is gone"
    assert texts(files, "/a", "/src/x", "/src/moved", "/three") == ["one\n", "one\n", None, None]


def test_both_changed_it(files: MountProtocol) -> None:
    refusal = r"'try' was not merged: '/a' .*it is kept.*branch merge try"
    with pytest.raises(MergeConflict, match=refusal) as refused, files.branch("try") as tried:
        tried.edit("/a", "one", "two")
        tried.write("/new", "x")
        files.edit("/a", "one", "three")
    assert [conflict.path for conflict in refused.value.conflicts] == ["/a"]
    assert texts(files, "/a", "/new") == ["three\n", None]
    assert names(files) == ["try"]
    with files.branch("other", keep="branch") as tried:
        tried.edit("/a", "three", "four")
        files.edit("/a", "three", "five")
    assert texts(files, "/a") == ["four\n"]


@pytest.mark.parametrize(("on_error", "kept"), [("keep", ["try"]), ("discard", [])])
def test_after_an_exception(files: MountProtocol, on_error: Any, kept: list[str]) -> None:
    with pytest.raises(ZeroDivisionError) as raised, files.branch("try", on_error=on_error) as tried:
        tried.write("/new", "x")
        raise ZeroDivisionError
    notes = getattr(raised.value, "__notes__", [])
    assert notes == [f"branch '{name}' is kept: 'fusebackend branch merge {name}' merges it" for name in kept]
    assert (names(files), texts(files, "/new")) == (kept, [None])


@pytest.mark.parametrize("run", [asyncio.run, trio.run])
def test_awaited(files: MountProtocol, run: Callable[..., Any]) -> None:
    """asyncio's takes a coroutine, trio's the function."""

    async def work(name: str, kept: bool) -> None:
        async with files.branch(name, on_error="keep" if kept else "discard") as tried:
            await tried.awrite(f"/{name}", (await tried.aread("/a")).error or "read")
            assert (await tried.aexecute(f"cat /{name}")).output == "read"
            assert [match["path"] for match in (await tried.aglob(f"/{name}")).matches or []] == [f"/{name}"]
            if name == "late":
                await tried.aexecute("sleep 60")

    async def all_of_them() -> None:
        async with anyio.create_task_group() as group:
            for name in ("one", "two", "three"):
                group.start_soon(work, name, True)
        for kept in (False, True):
            with anyio.move_on_after(1.5) as scope:
                await work("late", kept)
            assert scope.cancelled_caught
            assert names(files) == ["late"] * kept

    run(all_of_them()) if run is asyncio.run else run(all_of_them)
    assert texts(files, "/one", "/two", "/three", "/late") == ["read", "read", "read", None]


def test_what_can_not_be(files: MountProtocol, tmp_path: Path) -> None:
    for case in each([
        (lambda: files.branch("a/b").__enter__(), ValueError, "branch name"),
        (lambda: files.branch("a", "c999").__enter__(), FileNotFoundError, "c999"),
        (lambda: files.branch("a", on_error="drop"), ValueError, "'keep' or 'discard', not 'drop'"),  # type: ignore[arg-type]
    ]):  # fmt: skip
        with case as (ask, error, text), pytest.raises(error, match=text):
            ask()
    assert names(files) == []
