"""An agent's long-term memory as a mounted directory, with the agent at work in another process.

The agent here is the real store class, in the test's process; the mount's server is another process, which shares only
the database with it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import mounts
import pytest
import stores
from deepagents.backends import StoreBackend as Theirs
from eventually import eventually
from programs import sh

NS = ("memories",)
KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


class Agent(NamedTuple):
    """A store, deepagents' backend over it, and its directory on a mount."""

    store: Any
    theirs: Theirs
    path: Path
    server: mounts.Mounted
    feed: bool

    def put(self, path: str, content: str) -> None:
        assert self.theirs.write(path, content).error is None

    def text(self, path: str) -> str:
        (answer,) = self.theirs.download_files([path])
        assert answer.error is None
        return answer.content.decode()


@pytest.fixture(params=KINDS)
def agent(request, tmp_path, serve):
    with contextlib.ExitStack() as stack:
        kind, dsn = request.param, None
        if kind == "postgres":
            dsn = stack.enter_context(request.getfixturevalue("postgres").database())
        store = stack.enter_context(stores.opened(kind, tmp_path, dsn))
        url = f"store+postgres:{dsn}?ns=memories" if dsn else f"store+sqlite:{tmp_path}/store.db?ns=memories"
        server = serve("memory:", routes={"/memories": url})
        theirs = Theirs(namespace=lambda _: NS, store=store)
        yield Agent(store, theirs, server.path / "memories", server, kind == "postgres")
        server.stop()


def test_shell_tools_edit_what_the_agent_reads(agent):
    agent.put("/AGENTS.md", "# Memory\n\nThe theme is #FD5108.\n")
    sh("sed -i 's/#FD5108/#000000/' AGENTS.md", agent.path)
    assert agent.text("/AGENTS.md") == "# Memory\n\nThe theme is #000000.\n"
    sh("echo 'Answer in Korean.' >> AGENTS.md; mkdir -p notes/deep; printf x > notes/deep/one.txt", agent.path)
    assert agent.text("/AGENTS.md").endswith("#000000.\nAnswer in Korean.\n")
    assert agent.text("/notes/deep/one.txt") == "x"
    sh(
        "mv notes/deep/one.txt two.txt; rm -r notes; cp two.txt three.bin; head -c 5000 /dev/urandom >> three.bin",
        agent.path,
    )
    assert {item.key for item in agent.store.search(NS)} == {"/AGENTS.md", "/two.txt", "/three.bin"}
    assert agent.theirs.download_files(["/three.bin"])[0].content == (agent.path / "three.bin").read_bytes()
    assert sh("grep -rl Korean .; find . -name '*.txt' | sort; ls", agent.path).split() == [
        "./AGENTS.md", "./two.txt", "AGENTS.md", "three.bin", "two.txt",
    ]  # fmt: skip


def test_what_the_agent_writes_shows_in_the_mount(agent):
    """With a change feed it shows at once, though the kernel may cache for an hour; without one, after the TTL."""
    agent.put("/report.md", "first\n")
    assert (agent.path / "report.md").read_text() == "first\n"
    assert not (agent.path / "later.md").exists()
    held = (agent.path / "report.md").open()
    agent.put("/report.md", "second, and longer\n")
    agent.put("/later.md", "")
    eventually(lambda: (agent.path / "report.md").read_text() == "second, and longer\n")
    eventually((agent.path / "later.md").exists)
    agent.theirs.delete("/report.md")
    eventually(lambda: not (agent.path / "report.md").exists())
    assert os.listdir(agent.path) == ["later.md"]
    held.close()


@pytest.mark.services
def test_the_mount_outlives_the_end_of_the_server(postgres_own, tmp_path, serve):
    """Changes made while the mount had no PostgreSQL show after it is back."""
    dsn = postgres_own.dsn()
    with stores.opened("postgres", tmp_path, dsn) as store:
        store.put(NS, "/a", {"content": "one", "encoding": "utf-8"})
    server = serve(f"store+postgres:{dsn}?ns=memories")
    assert (server.path / "a").read_text() == "one"
    postgres_own.crash()
    with pytest.raises(OSError):
        (server.path / "new").write_text("x")
    postgres_own.start()
    with stores.opened("postgres", tmp_path, dsn) as store:
        store.put(NS, "/a", {"content": "two", "encoding": "utf-8"})
    eventually(lambda: (server.path / "a").read_text() == "two")
    (server.path / "new").write_text("x")
    server.expected_log = "PostgreSQL|could not be stored|closed unsaved|not told"


@pytest.fixture
def postgres_own():
    """Start a server for one test, which crashes it."""
    from services import postgres as service

    with service.running(durable=True) as server:
        yield server
