"""Threads on a real mount: ordinary tools on the history of an agent, and an agent at work while they look."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import graphs
import mounts
import pytest
import threadcases
from eventually import eventually
from graphs import delete, edit, say, thread, use, user, write
from mounts import Serve
from profiles import amount
from threadcases import APPROVE

from fusebackend.text import decode_file_data

pytestmark = [pytest.mark.mounted]

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


def run(*command: str | Path, cwd: Path | None = None, status: int = 0) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr + done.stdout
    return done.stdout


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
    told = run("diff", "-r", one, two, status=1)
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
        assert '"done"' in (root / "plain" / "messages.jsonl").read_text()
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


@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_memory_goes_back_after_a_walk_through_all_histories(tmp_path: Path, serve: Serve) -> None:
    """310,000 files of 200 threads. FUSEBACKEND_WALKED_THREADS=1000 makes it 1.5 million, in some five minutes."""
    import bigthreads

    threads = amount("FUSEBACKEND_WALKED_THREADS", day=200, night=1000)
    bigthreads.make(tmp_path / "threads.db", threads=threads, checkpoints=30, files=50)
    server = serve(f"threads+sqlite:{tmp_path}/threads.db", limit_s=1800.0)
    found = subprocess.run(f"find {server.path} -type f | wc -l", shell=True, capture_output=True, text=True)
    assert int(found.stdout) == threads * (31 * 50 + 5 + 3 * 30)
    Path("/proc/sys/vm/drop_caches").write_text("2\n")

    def resident_mib() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) >> 10

    eventually(lambda: server.known_inodes() < 1000)
    eventually(lambda: resident_mib() < 200)
    start = time.monotonic()
    server.stop()
    assert time.monotonic() - start < 60  # 0.7 s where nothing else runs
