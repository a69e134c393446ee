"""One truth on both faces, over the control socket: no stale answer in thousands of steps, and no half-made change."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import mounts
import pytest
from hosts import SharedVolume, run_at_random
from kinds import MEMORY
from mounts import Serve
from profiles import amount
from together import together

import fusebackend
from fusebackend.control.client.client import Client

LIMIT_S = 120.0
NATIVE = [MEMORY, "sqlite:{tmp}/volume.db", "dir:{tmp}/files"]


class OneTruth:
    """A mount and clients of its control socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.agent = fusebackend.connect(path)


@pytest.fixture(scope="module", params=NATIVE, ids=["memory", "sqlite", "dir"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounts.of_kind(request, tmp_path_factory, request.param) as server:
        yield server.path


@pytest.fixture
def truth(served: Path) -> Iterator[OneTruth]:
    truth = OneTruth(served)
    yield truth
    truth.agent.close()
    mounts.empty(served)


# -- at random -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "steps"),
    [
        pytest.param("memory:", amount("FUSEBACKEND_TRUTH_STEPS", day=250, night=10_000), marks=pytest.mark.night),
        ("sqlite:{tmp}/volume.db", amount("FUSEBACKEND_TRUTH_STEPS", day=250, night=50_000)),
    ],
    ids=["memory", "sqlite"],
)
def test_process_and_agent_never_see_anything_stale(tmp_path: Path, serve: Serve, url: str, steps: int) -> None:
    with contextlib.closing(SharedVolume([serve(url.format(tmp=tmp_path)).path])) as volume:
        run_at_random(volume.hosts, steps)


# -- both at once --------------------------------------------------------------------------------------------------

READER = """
import os, sys, time
path, wanted = sys.argv[1], sys.argv[2:]
os.set_blocking(0, False)
reads = 0
while True:
    try:
        if os.read(0, 1) == b"":
            break
    except BlockingIOError:
        pass
    began = time.monotonic()
    fd = os.open(path, os.O_RDONLY)
    data = os.read(fd, 1 << 20)
    took_s = time.monotonic() - began
    os.close(fd)
    if took_s > 0.03:
        continue
    reads += 1
    if len(set(data)) != 1 or str(len(data)) not in wanted:
        sys.exit(f"read {reads}: {len(data)} bytes, of {sorted(set(data))}")
print(reads)
"""
"""Opens, reads and closes until its input ends. Each read must be of one letter and one of the sizes, unless it came
more than 30 ms after its open: a change waits no longer than that for a reader (the write barrier)."""


@pytest.mark.parametrize("sizes", [(3000, 3001), (16_384, 12_000), (65_536, 65_536)], ids=["3K", "16K", "64K"])
def test_a_reader_sees_the_old_bytes_or_the_new(truth: OneTruth, sizes: tuple[int, int]) -> None:
    versions = [letter * size for letter, size in zip("ab", sizes, strict=True)]
    truth.agent.write("/file", versions[0])
    command = [sys.executable, "-c", READER, str(truth.path / "file"), *map(str, sizes)]
    readers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    for number in range(75):
        old, new = versions[number % 2], versions[(number + 1) % 2]
        if number % 3:
            assert truth.agent.edit("/file", old, new).error is None
        else:
            assert truth.agent.upload_files([("/file", new.encode())])[0].error is None
    ended = [(reader.communicate(timeout=LIMIT_S)[0], reader.returncode) for reader in readers]
    assert all(status == 0 and int(reads) > 10 for reads, status in ended), ended


COUNTER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for number in range(1, int(sys.argv[2]) + 1):
    os.pwrite(fd, b"%08d" % number, 0)
"""


def test_an_edit_beside_a_writer_loses_nothing(truth: OneTruth) -> None:
    """Process and agent each count in a part of one file, the process in place and the agent by editing the whole."""
    truth.agent.write("/file", f"{0:08d} process\nagent {0:08d}.\n" + "x" * 10_000)
    process = subprocess.Popen([sys.executable, "-c", COUNTER, str(truth.path / "file"), "500"])
    for number in range(100):
        assert truth.agent.edit("/file", f"agent {number:08d}.", f"agent {number + 1:08d}.").error is None
    assert process.wait(LIMIT_S) == 0
    wanted = f"{500:08d} process\nagent {100:08d}.\n" + "x" * 10_000
    assert (truth.path / "file").read_text() == wanted
    assert truth.agent.download_files(["/file"])[0].content == wanted.encode()


WRITER = """
import os, sys, threading
fd = os.open(sys.argv[1], os.O_RDWR if sys.argv[2] == "both" else os.O_WRONLY)
ended = threading.Thread(target=sys.stdin.read)
ended.start()
while ended.is_alive():
    for letter in (b"a", b"b"):
        os.pwrite(fd, letter * 65536, 0)
"""


@pytest.mark.parametrize("how", ["both", "write"])
def test_what_a_process_writes_in_one_call_is_seen_whole_by_an_agent(truth: OneTruth, how: str) -> None:
    truth.agent.write("/file", "a" * 65_536)
    command = [sys.executable, "-c", WRITER, str(truth.path / "file"), how]
    seen: Counter[int] = Counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        while min(seen[letter] for letter in b"ab") < 30:
            assert process.poll() is None
            content = truth.agent.download_files(["/file"])[0].content or b""
            assert len(content) == 65_536 and len(set(content)) == 1
            seen[content[0]] += 1
    assert process.returncode == 0


def at_once(path: Path, *acts: Callable[[Client], object]) -> list[object]:
    """Run these at the same moment, each with a client of its own; return their results."""
    barrier = threading.Barrier(len(acts))
    answers: list[object] = [None] * len(acts)

    def act(index: int) -> None:
        with fusebackend.connect(path) as agent:
            agent.ls("/")  # connects
            barrier.wait()
            answers[index] = acts[index](agent)

    together(*(partial(act, index) for index in range(len(acts))))
    return answers


def test_of_two_edits_at_once_one_is_told_or_both_are_in(truth: OneTruth) -> None:
    for number in range(20):
        path = f"/file{number}"
        truth.agent.write(path, "one two three")
        same = at_once(
            truth.path,
            lambda agent, path=path: agent.edit(path, "two", "mine").error,
            lambda agent, path=path: agent.edit(path, "two", "theirs").error,
        )
        assert [error is None for error in same].count(True) == 1, same
        word = "mine" if same[0] is None else "theirs"
        assert truth.agent.read(path).file_data["content"] == f"one {word} three"
        apart = at_once(
            truth.path,
            lambda agent, path=path: agent.edit(path, "one", "1").error,
            lambda agent, path=path: agent.edit(path, "three", "3").error,
        )
        assert apart == [None, None]
        assert (truth.path / path[1:]).read_text() == f"1 {word} 3"
