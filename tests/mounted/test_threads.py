"""Threads on a real mount: ordinary tools on the history of an agent, and an agent at work while they look."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import graphs
import mounts
import pytest
import threadcases
from deepagents.backends import FilesystemBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from eventually import eventually
from graphs import delete, edit, say, thread, use, user, write
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from mounts import ROOT, Serve
from profiles import amount
from programs import ok
from threadcases import APPROVE
from trees import run

from fusebackend.text import decode_file_data

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]
Database = tuple[str, Callable[[], AbstractContextManager[Any]]]
"""The URL of a checkpoint database, and a function that opens a checkpointer on it."""


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        path = tmp_path / "threads.db"
        with graphs.sqlite_saver(path):
            pass
        yield f"threads+sqlite:{path}", lambda: graphs.sqlite_saver(path)
    else:
        dsn = request.getfixturevalue("postgres_dsn")
        with graphs.postgres_saver(dsn):
            pass
        yield f"threads+postgres:{dsn}", lambda: graphs.postgres_saver(dsn)


def below(directory: Path) -> dict[str, bytes]:
    found = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the kernel may have it cached a little longer
            if path.is_file():
                found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def state(agent: Any, name: str, checkpoint: str | None = None) -> dict[str, bytes]:
    files = graphs.state_at(agent, thread(name), checkpoint).get("files") or {}
    return {key.lstrip("/"): decode_file_data(data) for key, data in files.items()}


def test_ordinary_tools(database: Database, serve: Serve) -> None:
    url, saver = database
    with saver() as opened:
        agent = threadcases.snapshots(opened)
        ids = graphs.checkpoint_ids(agent, thread("snapshots"))
        expected = {checkpoint: state(agent, "snapshots", checkpoint) for checkpoint in ids}
    root = serve("memory:", routes={"/threads/": url}).path / "threads" / "snapshots"
    history = sorted(path for path in (root / "history").iterdir() if path.is_dir())
    assert len(history) == len(ids)
    for checkpoint, directory in list(zip(ids, history, strict=True))[::7]:
        assert below(directory) == expected[checkpoint]
    assert below(root / "head") == expected[ids[-1]]
    assert os.getxattr(history[-1], "user.fusebackend.checkpoint").decode() == ids[-1]
    assert len(run("find", root / "history", "-mindepth", "2", "-type", "f").splitlines()) == sum(
        map(len, expected.values())
    )
    assert "late.txt" in run("grep", "-r", "late", root / "head")
    one, two = history[40], history[60]
    changed = {path for path in expected[ids[40]].keys() | expected[ids[60]].keys()
               if expected[ids[40]].get(path) != expected[ids[60]].get(path)}  # fmt: skip
    told = run("diff", "-r", one, two, ok=(1,))
    assert changed
    assert all(os.path.basename(path) in told for path in changed)
    assert run("diff", "-r", history[-1], root / "head") == ""
    assert run("rsync", "-ain", "--delete", f"{history[-1]}/", f"{root}/head/") == "" if has("rsync") else True
    copy = root.parents[1] / "copy"
    run("cp", "-a", root / "head", copy)
    assert below(copy) == expected[ids[-1]]
    assert run("tail", "-n", "1", root / "messages.jsonl").startswith('{"type": "ai", "content": "bye"')
    assert (root / "state.json").stat().st_size == len((root / "state.json").read_bytes())


def has(program: str) -> bool:
    return subprocess.run(["sh", "-c", f"command -v {program}"], capture_output=True).returncode == 0


def test_du_and_ls_say_what_a_thread_takes_in_the_database(database: Database, serve: Serve, tmp_path: Path) -> None:
    """And a file with one block is no hole for `tar --sparse`."""
    url, saver = database
    with saver() as opened:
        threadcases.a_subagent(opened)
    (weighed,) = json.loads(ok("threads", "du", url, "--json"))
    root = serve("memory:", routes={"/threads/": url}).path / "threads" / "a_subagent"
    blocks = -(-weighed["bytes"] // 512)
    files = [path for path in root.rglob("*") if path.is_file() and path.name != "space.tsv"]
    long = [path for path in files if path.stat().st_size >= 512]
    total = run("ls", "-s", "--block-size=512", root).splitlines()[0]
    assert total == f"total {blocks + sum(path.parent == root for path in long)}"
    assert run("du", "-s", "--block-size=512", root).split()[0] == str(blocks + len(long))
    archive, copy = tmp_path / "sparse.tar", tmp_path / "copy"
    copy.mkdir()
    run("tar", "--sparse", "-C", root, "-cf", archive, ".")
    run("tar", "-C", copy, "-xf", archive)
    assert below(copy) == below(root)


def test_media_that_deepagents_keeps_are_linked_and_counted(database: Database, serve: Serve, tmp_path: Path) -> None:
    url, saver = database
    (tmp_path / "files").mkdir()
    image = b"\x89PNG " * 300
    with saver() as opened:
        for name, more in [("one", ""), ("two", "!"), ("without", None)]:
            kept = FilesystemMiddleware(backend=FilesystemBackend(tmp_path / "files"), offload_binary_content=True)
            agent = create_agent(graphs.ScriptedModel(script=[say("I see")]), middleware=[kept], checkpointer=opened)
            data = base64.b64encode(image + (more or "").encode()).decode()
            block = {"type": "image", "base64": data, "mime_type": "image/png"}
            agent.invoke({"messages": [HumanMessage("no image" if more is None else [block])]}, thread(name))
    blobs = tmp_path / "files" / "blobs"
    one, other = (hashlib.sha256(image + end).hexdigest() for end in (b"", b"!"))
    assert sorted(os.listdir(blobs)) == sorted([one, other])
    root = serve("memory:", routes={"/files/": f"dir:{tmp_path}/files", "/threads/": f"{url}?blobs=../../files/blobs"})
    for link, page in [("", "transcript.md"), ("..", "messages/0002-human.md")]:  # the first input has it inline
        text = (root.path / "threads" / "one" / page).read_text()
        *_, found = re.findall(r"!\[.*\]\((.*)\)", text)
        assert found == str(Path(link) / "blobs" / one)
        assert (root.path / "threads" / "one" / page).parent.joinpath(found).read_bytes() == image

    def weighed(*options: str | Path) -> dict[Any, int]:
        shown = json.loads(ok("threads", "du", url, "--json", *options))
        return {item["thread"] or item["name"]: item["bytes"] for item in shown}

    plain = weighed()
    assert weighed("--blobs", blobs) == {**plain, "one": plain["one"] + 1500, "two": plain["two"] + 1501}
    with saver() as opened:
        opened.delete_thread("two")
    assert weighed("--blobs", blobs)[other] == 1501
    assert "(no message)" in ok("threads", "du", url, "--blobs", blobs)
    parts = ok("threads", "du", url, "--blobs", blobs, "--by", "step", "--json")
    assert {"thread": "one", "name": "blobs", "bytes": 1500} in json.loads(parts)


def test_an_agent_at_work_is_followed(database: Database, serve: Serve) -> None:
    """The mount follows with names, absence, sizes, pages and open files in the kernel's caches."""
    url, saver = database
    with saver() as opened:
        agent = threadcases.plain(opened)
        root = serve(url).path
        head = root / "plain" / "head"
        assert (head / "a.txt").read_text() == "three\n"
        assert not (head / "new.txt").exists()
        assert not (root / "later").exists()
        checkpoints = len(os.listdir(root / "plain" / "history"))
        size = (root / "plain" / "messages.jsonl").stat().st_size
        agent.model.script = [
            use(edit("/a.txt", "three", "THREE"), delete("/c.txt"), write("/new.txt", "new")),
            say("done"),
        ]
        agent.invoke(user("go"), thread("plain"))
        eventually(lambda: (head / "new.txt").exists() and (head / "new.txt").read_text() == "new")
        eventually(lambda: (head / "a.txt").read_text() == "THREE\n")
        eventually(lambda: not (head / "c.txt").exists())
        eventually(lambda: len(os.listdir(root / "plain" / "history")) > checkpoints)
        eventually(lambda: (root / "plain" / "messages.jsonl").stat().st_size > size)
        eventually(lambda: '"done"' in (root / "plain" / "messages.jsonl").read_text())
        graphs.deep_agent(opened, [use(write("/x.txt", "x")), say("ok")]).invoke(user("go"), thread("later"))
        eventually(lambda: (root / "later").exists() and below(root / "later" / "head") == {"x.txt": b"x"})
        opened.delete_thread("later")
        eventually(lambda: not (root / "later").exists())


# -- writing ---------------------------------------------------------------------------------------------------------


def test_people_and_agents_share_a_head(database: Database, serve: Serve) -> None:
    url, saver = database
    with saver() as opened:
        agent = threadcases.waiting_for_approval(opened)
        before = agent.get_state(thread("waiting_for_approval"))
        head = serve(f"{url}?write=head").path / "waiting_for_approval" / "head"
        run("sh", "-c", "echo 'from a shell' > note.txt && mkdir -p in/side && cp note.txt in/side/copy.txt", cwd=head)
        run("sed", "-i", "s/p/plan/", "plan.txt", cwd=head)
        run("sh", "-c", "echo more >> note.txt && mv note.txt memo.txt && rm in/side/copy.txt", cwd=head)
        expected = {"plan.txt": b"plan", "memo.txt": b"from a shell\nmore\n"}
        assert state(agent, "waiting_for_approval") == expected == below(head)
        after = agent.get_state(thread("waiting_for_approval"))
        assert (after.next, after.interrupts) == (before.next, before.interrupts)
        agent.invoke(APPROVE, thread("waiting_for_approval"))
        assert state(agent, "waiting_for_approval") == {"memo.txt": b"from a shell\nmore\n"}
        eventually(lambda: below(head) == {"memo.txt": b"from a shell\nmore\n"})


def test_a_server_that_is_killed_has_stored_what_was_closed(database: Database, serve: Serve) -> None:
    url, saver = database
    with saver() as opened:
        agent = threadcases.plain(opened)
        server = serve(f"{url}?write=head")
        (server.path / "plain" / "head" / "kept.txt").write_text("kept")
        server.kill()
        assert state(agent, "plain")["kept.txt"] == b"kept"
    assert not mounts.is_listed(server.path)


@pytest.mark.night  # by day `test_threads_memory.py` forgets what a walk has found, without a kernel
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_memory_goes_back_after_a_walk_through_all_histories(tmp_path: Path, serve: Serve) -> None:
    """1.5 million files, in some five minutes."""
    import bigthreads

    threads = 1000
    bigthreads.make(tmp_path / "threads.db", threads=threads, checkpoints=30, files=50)
    server = serve(f"threads+sqlite:{tmp_path}/threads.db", limit_s=1800.0)
    found = subprocess.run(f"find {server.path} -type f | wc -l", shell=True, capture_output=True, text=True)
    assert int(found.stdout) == threads * (31 * 50 + 6 + 3 * 30)
    mounts.drop_caches(2)

    def resident_mib() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) >> 10

    eventually(lambda: server.known_inodes() < 1000)
    eventually(lambda: resident_mib() < 200)
    start = time.monotonic()
    server.stop()
    assert time.monotonic() - start < 60  # 0.7 s where nothing else runs


# --------------------------------------------------------------------------------------------------------------
# A thread that grows several times a second is read meanwhile: whole messages only, and new ones soon
# --------------------------------------------------------------------------------------------------------------

LIMIT_S = 60.0
"""A second is promised; the machine may be busy."""


class Growing:
    """A mounted thread and the program that adds to it."""

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self.path = path
        self.process = process
        self.stored = -1
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as numbers:
            for line in numbers:
                self.stored = int(line)

    @property
    def is_growing(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@pytest.fixture(params=KINDS)
def growing_thread(
    request: pytest.FixtureRequest, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Growing]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    where = str(tmp_path / "threads.db") if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")
    with graphs.sqlite_saver(where) if request.param == "sqlite" else graphs.postgres_saver(where):
        pass
    root = serve(f"threads+{request.param}:{where}").path
    turns = amount("FUSEBACKEND_TURNS", day=15, night=300)
    command = [sys.executable, str(ROOT / "tests/support/growing.py"), request.param, where, str(turns), "0.15"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    growing = Growing(root / "t", process)
    try:
        eventually(lambda: growing.stored >= 0 and growing.path.is_dir(), LIMIT_S)  # a new thread appears soon
        yield growing
    finally:
        growing.end()


def slowly(path: Path) -> str:
    """Read a file in pieces with a pause between them, from one open descriptor, as a pager does."""
    pieces = []
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(30_000):
            pieces.append(piece)
            time.sleep(0.01)
    return b"".join(pieces).decode()


def whole(text: str) -> int:
    """The number of messages in a text, of which none may be a part."""
    begun, ended = re.findall(r"begin-(\d{4})", text), re.findall(r"end-(\d{4})", text)
    assert begun == ended == sorted(set(begun))
    return len(ended)


def last(text: str) -> int:
    return int(max(re.findall(r"end-(\d{4})", text), default="-1"))


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.decode()


def test_readers_see_whole_messages_and_new_ones_soon(growing_thread: Growing) -> None:
    """In pieces and by rg, with what is there in the kernel's caches: names, sizes, pages, absent names."""
    seen: dict[str, int] = {}

    def grown(what: str, count: int) -> None:
        assert count >= seen.get(what, 0), f"{what} has lost messages"
        seen[what] = count

    while growing_thread.is_growing:
        stored, messages = growing_thread.stored, growing_thread.path / "messages"
        for path in (growing_thread.path / "transcript.md", growing_thread.path / "messages.jsonl"):
            eventually(lambda path=path, stored=stored: last(path.read_text()) >= stored, LIMIT_S)
        eventually(lambda: len(os.listdir(messages)) > stored, LIMIT_S)  # noqa: B023
        lines = slowly(growing_thread.path / "messages.jsonl")
        assert lines.endswith("\n")
        grown("messages.jsonl", len([json.loads(line) for line in lines.splitlines()]))
        assert whole(lines) == seen["messages.jsonl"]
        transcript = slowly(growing_thread.path / "transcript.md")
        assert transcript.endswith("\n")
        grown("transcript.md", whole(transcript))
        names = sorted(os.listdir(messages))
        grown("messages/", len(names))
        for name in names[-3:]:
            assert whole((messages / name).read_text()) == 1
        head = (growing_thread.path / "head/log.txt").read_text()
        assert whole(head) == 1
        grown("head", last(head))
        rows = (growing_thread.path / "checkpoints.tsv").read_text()
        assert rows.endswith("\n")
        assert {line.count("\t") for line in rows.splitlines()} == {9}
        grown("checkpoints.tsv", rows.count("\n"))
        for path in sorted((growing_thread.path / "changes").iterdir())[-2:]:
            patch = path.read_text()
            assert patch.count("+begin-") == patch.count("+end-") == 1
        newest = output("tail", "-n", "1", str(growing_thread.path / "messages.jsonl"))
        assert whole(str(json.loads(newest)["content"])) == 1
        begun, ended = (
            output("rg", "--no-messages", "--count-matches", mark, str(messages)).splitlines()
            for mark in ("begin-", "end-")
        )
        assert all(line.endswith(":1") for line in begun) and set(begun) <= set(ended)
        grown("rg", len(begun))
    growing_thread.process.wait()
    assert min(seen.values()) > 3
