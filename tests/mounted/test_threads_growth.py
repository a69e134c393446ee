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


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.decode()


class Tail:
    """`tail --follow` of a file, and what it has printed."""

    def __init__(self, path: Path) -> None:
        command = ["tail", "-n", "+1", "--follow=name", "--sleep-interval=0.1", str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.output = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            while piece := os.read(stream.fileno(), 1 << 16):
                self.output += piece

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


def test_readers_see_whole_messages_and_new_ones_soon(thread: Growing) -> None:
    """In pieces, by rg and by tail, with what is there in the kernel's caches: names, sizes, pages, absent names."""
    seen: dict[str, int] = {}

    def grown(what: str, count: int) -> None:
        assert count >= seen.get(what, 0), f"{what} has lost messages"
        seen[what] = count

    with contextlib.ExitStack() as stack:
        tails = [Tail(thread.path / name) for name in ("messages.jsonl", "transcript.md")]
        for tail in tails:
            stack.callback(tail.end)
        while thread.is_growing:
            stored, messages = thread.stored, thread.path / "messages"
            for path in (thread.path / "transcript.md", thread.path / "messages.jsonl"):
                eventually(lambda path=path, stored=stored: last(path.read_text()) >= stored, LIMIT_S)
            eventually(lambda: len(os.listdir(messages)) > stored, LIMIT_S)  # noqa: B023
            lines = slowly(thread.path / "messages.jsonl")
            assert lines.endswith("\n")
            grown("messages.jsonl", len([json.loads(line) for line in lines.splitlines()]))
            assert whole(lines) == seen["messages.jsonl"]
            transcript = slowly(thread.path / "transcript.md")
            assert transcript.endswith("\n")
            grown("transcript.md", whole(transcript))
            names = sorted(os.listdir(messages))
            grown("messages/", len(names))
            for name in names[-3:]:
                assert whole((messages / name).read_text()) == 1
            head = (thread.path / "head/log.txt").read_text()
            assert whole(head) == 1
            grown("head", last(head))
            rows = (thread.path / "checkpoints.tsv").read_text()
            assert rows.endswith("\n")
            assert {line.count("\t") for line in rows.splitlines()} == {9}
            grown("checkpoints.tsv", rows.count("\n"))
            for path in sorted((thread.path / "changes").iterdir())[-2:]:
                patch = path.read_text()
                assert patch.count("+begin-") == patch.count("+end-") == 1
            newest = run("tail", "-n", "1", str(thread.path / "messages.jsonl"))
            assert whole(str(json.loads(newest)["content"])) == 1
            begun, ended = (
                run("rg", "--no-messages", "--count-matches", mark, str(messages)).splitlines()
                for mark in ("begin-", "end-")
            )
            assert all(line.endswith(":1") for line in begun) and set(begun) <= set(ended)
            grown("rg", len(begun))
        thread.process.wait()
        assert min(seen.values()) > 3
        for tail in tails:
            eventually(lambda tail=tail: last(tail.output.decode(errors="replace")) >= thread.stored, LIMIT_S)
            assert b"\0" not in tail.output, "the kernel's page of an older size was read"
            assert whole(tail.output.decode()) == thread.stored + 1
