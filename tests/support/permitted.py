"""Agents of deepagents under `permissions=`, on backends of ours with symbolic links that lead around the rules.

`deepagents_program.py` has what each agent's tools said and what is left of the files, with each version of deepagents.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sandboxes
from deepagents import FilesystemPermission
from deepagents.backends import CompositeBackend as TheirComposite
from deepagents.backends import FilesystemBackend as TheirFiles
from deepagents.backends import StateBackend as TheirState
from graphs import call, deep_agent, edit, say, use, user, write
from live import live

from fusebackend.backends import CompositeBackend, FilesystemBackend, InMemoryBackend
from fusebackend.integrations.approving import approving
from fusebackend.integrations.deepagents import export

LINKS = {
    "x": "secrets", "y": "open", "z": "secrets/k", "new": "secrets/made", "lost": "../lost", "out": "../etc", "w": "x",
}  # fmt: skip
"""`x`, `w`, `z` and `new` lead to what the rules deny."""


def filled(directory: Path) -> Path:
    for name, content in {"secrets/k": "SECRET\n", "open/f": "open\n"}.items():
        (directory / name).parent.mkdir(parents=True)
        (directory / name).write_text(content)
    for name, target in LINKS.items():
        (directory / name).symlink_to(target)
    return directory


def copied(directory: Path, backend: Any) -> Any:
    """Give a native volume the files and links of a directory."""
    from fusebackend.protocol import ROOT_NODE, Caller

    backend.upload_files([(f"/{name}", (directory / name).read_bytes()) for name in ("secrets/k", "open/f")])
    for name, target in LINKS.items():
        backend.volume.symlink(ROOT_NODE, name.encode(), target.encode(), Caller(os.getuid(), os.getgid(), 0))
    return backend


@contextlib.contextmanager
def kinds(directory: Path) -> Iterator[dict[str, tuple[Any, str, Any]]]:
    """Yield by name: a backend, the prefix of the files in it, and the backend that has them under no prefix."""
    made: dict[str, tuple[Any, str, Any]] = {}
    count = 0

    def fresh() -> Path:
        nonlocal count
        count += 1
        return filled(directory / f"files{count}")

    def memory() -> Any:
        return copied(fresh(), InMemoryBackend())

    with contextlib.ExitStack() as stack:
        for name in ("memory", "memory, awaited"):
            made[name] = ((files := memory()), "", files)
        made["dir"] = ((files := FilesystemBackend(fresh())), "", files)
        made["exported"] = (export(files := memory()), "", files)
        made["composite"] = (CompositeBackend(InMemoryBackend(), {"/m/": (files := memory())}), "/m", files)
        theirs = TheirFiles(root_dir=(there := fresh()), virtual_mode=True)
        made["theirs in ours"] = (CompositeBackend(InMemoryBackend(), {"/m/": theirs}), "/m", FilesystemBackend(there))
        box = sandboxes.LocalSandbox(fresh(), sandboxes.tools("gnu", directory / "tools"))
        made["sandbox"] = (CompositeBackend(InMemoryBackend(), {"/m/": box}), "/m", box)
        for name, given in {"route": lambda one: one, "exported route, awaited": export}.items():
            made[name] = (TheirComposite(default=TheirState(), routes={"/m/": given(files := memory())}), "/m", files)
        nested = CompositeBackend(InMemoryBackend(), {"/n/": (files := memory())})
        made["nested"] = (TheirComposite(default=InMemoryBackend(), routes={"/m/": nested}), "/m/n", files)
        (directory / "live").mkdir()
        server = stack.enter_context(live(directory / "live", (files := memory()), views={"agent": []}))
        owner = stack.enter_context(server.connect())
        viewed = stack.enter_context(server.connect(view="agent"))
        made["client"] = (TheirComposite(default=TheirState(), routes={"/m/": owner}), "/m", files)
        made["view, awaited"] = (TheirComposite(default=TheirState(), routes={"/m/": viewed}), "/m", files)
        interrupting = approving(viewed, owner)
        made["approving"] = (TheirComposite(default=TheirState(), routes={"/m/": interrupting}), "/m", files)
        yield made


def said(backend: Any, prefix: str, mode: str, *, awaited: bool = False) -> list[tuple[str, str]]:
    """Return what an agent's tools said. What changes nothing is one message: a turn of an agent takes 20 ms."""
    reads = ("/x/k", "/w/k", "/z", "/y/f", "/lost", "/out/passwd")
    turns = [[
        *(call("read_file", file_path=prefix + path) for path in reads),
        call("ls", path=f"{prefix}/x"),
        *([call("ls", path=prefix or "/")] if mode == "deny" else []),  # the other mode asks before a search above
        call("grep", pattern="SECRET", path=f"{prefix}/x"),
        call("grep", pattern="SECRET", path=f"{prefix}/z"),
        call("glob", pattern="*", path=f"{prefix}/x"),
        write(f"{prefix}/x/k", "gone"),
        write(f"{prefix}/new", "made"),
        edit(f"{prefix}/w/k", "SECRET", "gone"),
    ], [
        call("delete", file_path=f"{prefix}/x/k"),  # no two changes of a path in one turn
        write(f"{prefix}/y/f", "more"),
    ], [
        write(f"{prefix}/open/f", "open\n"),
        call("delete", file_path=f"{prefix}/y/f"),
    ]]  # fmt: skip
    rules = [FilesystemPermission(operations=["read", "write"], paths=[f"{prefix}/secrets/**"], mode=mode)]
    agent = deep_agent(None, [*(use(*calls) for calls in turns), say("done")], backend=backend, permissions=rules)
    state = asyncio.run(agent.ainvoke(user("go"))) if awaited else agent.invoke(user("go"))
    return [(message.name, message.content) for message in state["messages"] if message.type == "tool"]


def outcomes(directory: Path) -> Iterator[tuple[str, str, list[tuple[str, str]], Any]]:
    """Yield for each kind and mode: its name, the prefix, what was said, and what is left of the secrets."""
    with kinds(directory) as made:
        for name, (backend, prefix, files) in made.items():
            for mode in ("deny", "interrupt")[: 2 if name in ("memory", "route") else 1]:
                told = said(backend, prefix, mode, awaited="awaited" in name)
                left = [(info["path"], files.download_files([info["path"]])[0].content) for info in
                        files.ls("/secrets").entries]  # fmt: skip
                yield f"{name}, {mode}", prefix, told, [(path, content.decode()) for path, content in left]
