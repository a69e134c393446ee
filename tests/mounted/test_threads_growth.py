"""A thread that grows several times a second is read meanwhile: whole messages only, and new ones soon."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import graphs
import pytest
from eventually import eventually
from mounts import ROOT, Serve
from profiles import amount

pytestmark = pytest.mark.mounted

LIMIT_S = 60.0
"""A second is promised; the machine may be busy."""

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


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
def thread(
    request: pytest.FixtureRequest, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Growing]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    where = str(tmp_path / "threads.db") if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")
    with graphs.sqlite_saver(where) if request.param == "sqlite" else graphs.postgres_saver(where):
        pass
    root = serve(f"threads+{request.param}:{where}").path
    turns = amount("FUSEBACKEND_TURNS", day=40, night=300)
    command = [sys.executable, str(ROOT / "tests/support/growing.py"), request.param, where, str(turns), "0.15"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    growing = Growing(root / "t", process)
    try:
        deadline = time.monotonic() + LIMIT_S
        while growing.stored < 0 or not growing.path.is_dir():  # a new thread appears within a second
            assert time.monotonic() < deadline
            assert growing.is_growing
            time.sleep(0.01)
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


def test_no_reader_sees_half_a_message(thread: Growing) -> None:
    seen: dict[str, int] = {}

    def grown(what: str, count: int) -> None:
        assert count >= seen.get(what, 0), f"{what} has lost messages"
        seen[what] = count

    while thread.is_growing:
        lines = slowly(thread.path / "messages.jsonl")
        assert lines.endswith("\n")
        grown("messages.jsonl", len([json.loads(line) for line in lines.splitlines()]))
        assert whole(lines) == seen["messages.jsonl"]
        transcript = slowly(thread.path / "transcript.md")
        assert transcript.endswith("\n")
        grown("transcript.md", whole(transcript))
        names = sorted(os.listdir(thread.path / "messages"))
        grown("messages/", len(names))
        for name in names[-3:]:
            assert whole((thread.path / "messages" / name).read_text()) == 1
        assert whole((thread.path / "head/log.txt").read_text()) == 1
        rows = (thread.path / "checkpoints.tsv").read_text()
        assert rows.endswith("\n")
        assert {line.count("\t") for line in rows.splitlines()} == {9}
        grown("checkpoints.tsv", rows.count("\n"))
        for path in sorted((thread.path / "changes").iterdir())[-2:]:
            patch = path.read_text()
            assert patch.count("+begin-") == patch.count("+end-") == 1
    thread.process.wait()
    assert seen["transcript.md"] > 3


def test_new_messages_appear_soon(thread: Growing) -> None:
    """With what is there in the kernel's caches: names, sizes, pages, absent names."""
    waited = []
    while thread.is_growing:
        number, start = thread.stored, time.monotonic()
        wanted = {f"end-{number:04}"}
        left = [thread.path / "transcript.md", thread.path / "messages.jsonl", thread.path / "messages"]
        while left:
            assert time.monotonic() - start < LIMIT_S, (number, left)
            found = left[0].read_text() if left[0].is_file() else f"end-{len(os.listdir(left[0])) - 1:04}"
            assert found.rstrip()
            if any(mark in found for mark in wanted) or _last(found) >= number:
                left.pop(0)
            else:
                time.sleep(0.01)
        waited.append(time.monotonic() - start)
    assert len(waited) > 3
    assert sorted(waited)[len(waited) // 2] < LIMIT_S / 4


def _last(text: str) -> int:
    return int(max(re.findall(r"end-(\d{4})", text), default="-1"))


def test_rg_and_tail_see_whole_messages(thread: Growing) -> None:
    counted = 0
    while thread.is_growing:
        last = run("tail", "-n", "1", str(thread.path / "messages.jsonl"))
        assert whole(str(json.loads(last)["content"])) == 1
        begun = run("rg", "--no-messages", "--count-matches", "begin-", str(thread.path / "messages"))
        count = len(begun.splitlines())
        assert all(line.endswith(":1") for line in begun.splitlines())
        ended = run("rg", "--no-messages", "--count-matches", "end-", str(thread.path / "messages"))
        assert set(begun.splitlines()) <= set(ended.splitlines())
        assert count >= counted
        counted = count
    assert counted > 3


@pytest.mark.parametrize("name", ["messages.jsonl", "transcript.md"])
def test_tail_follows(thread: Growing, name: str) -> None:
    with contextlib.ExitStack() as stack:
        command = ["tail", "-n", "+1", "--follow=name", "--sleep-interval=0.1", str(thread.path / name)]
        tail = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        stack.enter_context(tail)
        output: list[bytes] = []
        reader = threading.Thread(
            target=lambda: output.extend(iter(lambda: os.read(tail.stdout.fileno(), 1 << 16), b""))
        )
        stack.callback(reader.join)
        stack.callback(tail.kill)
        reader.start()
        while thread.is_growing:
            time.sleep(0.05)
        eventually(lambda: not (_last(b"".join(output).decode()) < thread.stored), LIMIT_S)
        assert whole(b"".join(output).decode()) == thread.stored + 1


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.decode()
