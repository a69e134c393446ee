"""The events that a watcher on the control socket gets for changes by processes and agents."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import mounts
import pytest
from eventually import eventually
from kinds import KINDS, NATIVE_BY_DAY
from replay import Replay
from together import beside, together

import fusebackend
from fusebackend.control.client.client import Client
from fusebackend.protocol import FileEvent

WAIT_S = 20.0
PAIRS = 80
"""Of files whose events are looked at, one by a process and one by an agent."""

VIM = """
echo > 4913 && rm 4913
mv file file~
echo new > file
chmod 600 file
rm file~
"""
"""vim's `:w` with `backupcopy=no`: try to create, move the old file away, write a new one."""


class Watched:
    """A mount, an agent on its control socket, and a watch of everything there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.agent: Client = fusebackend.connect(path)
        self.watch = self.agent.watch("/")
        self.marks = 0

    def close(self) -> None:
        self.watch.close()
        self.agent.close()

    def sh(self, script: str) -> None:
        subprocess.run(["sh", "-e", "-c", script], cwd=self.path, check=True, timeout=WAIT_S)

    def events(self) -> list[FileEvent]:
        """Return all events until now: write a mark file, and read events up to its own."""
        self.marks += 1
        mark = f"/mark{self.marks}"
        (answer,) = self.agent.upload_files([(mark, b"")])
        assert answer.error is None
        events: list[FileEvent] = []
        while True:
            event = self.watch.get(WAIT_S)
            assert event is not None, f"no mark after {events}"
            if event.path == mark:
                return events
            events.append(event)

    def told(self) -> list[tuple[str, ...]]:
        """Return the events as tuples, without repetitions, which depend on the speed of the reader."""
        told = [(event.kind, event.path, *filter(None, [event.moved_from])) for event in self.events()]
        return [event for event, before in zip(told, [None, *told], strict=False) if event != before]


@pytest.fixture(scope="module", params=NATIVE_BY_DAY)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    url, routes = KINDS[request.param].url, {"/other": "memory:"}
    with mounts.of_kind(request, tmp_path_factory, url, routes=routes, options=mounts.OTHERS) as server:
        yield server.path


@pytest.fixture
def watched(served: Path) -> Iterator[Watched]:
    watched = Watched(served)
    yield watched
    watched.close()
    mounts.empty(served, "other")


# -- one thing after the other ---------------------------------------------------------------------------------------


def test_shell_commands(watched: Watched) -> None:
    for script, told in (
        ("echo one > file", [("created", "/file"), ("modified", "/file")]),
        ("echo two >> file; cat file; ls -l", [("modified", "/file")]),
        (
            "mkdir -p d/e && mv file d/e/",
            [("created", "/d/"), ("created", "/d/e/"), ("moved", "/d/e/file", "/file")],
        ),
        ("mv d/e x; mv x/file .", [("moved", "/x/", "/d/e/"), ("moved", "/file", "/x/file")]),
        ("chmod 600 file; touch file; truncate -s 1 file", [("attributes", "/file"), ("modified", "/file")]),
        ("ln file hard; ln -s file soft; mkfifo pipe", [("created", f"/{name}") for name in ("hard", "soft", "pipe")]),
        (
            VIM,
            [
                ("created", "/4913"),
                ("modified", "/4913"),
                ("deleted", "/4913"),
                ("moved", "/file~", "/file"),
                ("created", "/file"),
                ("modified", "/file"),
                ("attributes", "/file"),
                ("deleted", "/file~"),
            ],
        ),
        ("rm hard soft pipe file; rm -r d x", [*[("deleted", f"/{n}") for n in ("hard", "soft", "pipe", "file")],
                                               ("deleted", "/d/"), ("deleted", "/x/")]),
    ):  # fmt: skip
        watched.sh(script)
        assert watched.told() == told, script


def test_an_event_can_be_seen_by_whoever_gets_it(watched: Watched) -> None:
    """The change shows through the mount, with the kernel's caches on, as soon as the event is there."""
    seen: list[str] = []
    wrong: list[str] = []
    ready = threading.Event()

    def look() -> None:
        with watched.agent.watch("/here") as watch:
            ready.set()
            for event in watch:
                path = watched.path / event.path[1:]
                if event.path == "/here/end":
                    return
                number = event.path.rpartition("-")[2]
                seen.append(event.kind)
                if event.kind == "deleted":
                    wrong.extend([f"{event}: still there"] if path.exists() else [])
                elif not path.exists():
                    wrong.append(f"{event}: not there")
                elif (event.kind, event.source) != ("created", "mount") and path.read_text() != number:
                    wrong.append(f"{event}: {path.stat()}")

    (watched.path / "here").mkdir()
    with beside(look, limit_s=WAIT_S) as looking:
        assert ready.wait(WAIT_S)
        for number in range(PAIRS):
            mine, theirs = watched.path / "here" / f"mine-{number}", watched.path / "here" / f"theirs-{number}"
            assert not mine.exists() and not theirs.exists(), "their absence is cached now"
            mine.write_text(str(number))
            watched.agent.write(f"/here/{theirs.name}", str(number))
            assert theirs.read_text() == str(number)
        eventually(lambda: len(seen) >= 3 * PAIRS or looking.done())  # before they go
        for number in range(PAIRS):
            (watched.path / "here" / f"mine-{number}").unlink()
            watched.agent.delete(f"/here/theirs-{number}")
        watched.agent.write("/here/end", "")
    assert wrong == []
    assert (seen.count("created"), seen.count("modified"), seen.count("deleted")) == (2 * PAIRS, PAIRS, 2 * PAIRS)


# -- a lot of work, followed by a model ------------------------------------------------------------------------------


def tree_of(top: Path) -> dict[str, bool]:
    tree: dict[str, bool] = {}
    for directory, below, files in os.walk(os.fsencode(top)):
        at = os.fsdecode(directory)[len(str(top)) :]
        for name in below + files:
            is_dir = name in below and not os.path.islink(os.path.join(directory, name))
            tree[f"{at}/{os.fsdecode(name)}"] = is_dir
    return tree


def follow(watched: Watched) -> None:
    """Replay the events: each fits the tree before it, and together they give the present tree."""
    replay = Replay({"/other": True})
    for event in watched.events():
        replay.apply(event)
    there = tree_of(watched.path)
    assert replay.tree == {path: kind for path, kind in there.items() if not path.startswith("/mark")}


def test_git_and_tar_are_followed(watched: Watched) -> None:
    watched.sh(
        "git init -q r && cd r && git config user.email a@b && git config user.name c"
        "&& mkdir -p src/deep && for n in 1 2 3 4 5; do echo $n > src/deep/$n; done && echo x > top"
        "&& git add . && git commit -q -m one && git mv src lib && git commit -q -m two"
        "&& git checkout -q -b other HEAD~1 && git gc -q && git checkout -q - && git clone -q . ../clone"
        "&& cd .. && tar cf t.tar clone && rm -rf clone && tar xf t.tar && mv clone/lib clone/moved && rm t.tar"
        "&& sed -i s/x/y/ r/top && cp -a clone/moved other/ && rm -r other/moved/deep/1"
    )
    follow(watched)


def test_both_faces_at_once_are_followed(watched: Watched) -> None:
    """Two processes and two agents change the same few names: the events come in the order of the changes."""
    program = (
        "import os, random, sys\n"
        "os.chdir(sys.argv[1])\n"
        "chance = random.Random(int(sys.argv[2]))\n"
        "names = ['a', 'b', 'd', 'd/a', 'd/b', 'e']\n"
        "for _ in range(200):\n"
        "    name, other = chance.sample(names, 2)\n"
        "    try:\n"
        "        verb = chance.randrange(6)\n"
        "        if verb == 0: os.mkdir(name)\n"
        "        elif verb == 1: os.rmdir(name)\n"
        "        elif verb == 2: os.unlink(name)\n"
        "        elif verb == 3: os.rename(name, other)\n"
        "        else: open(name, 'w').write(other)\n"
        "    except OSError: pass\n"
    )

    def act(seed: int) -> None:
        chance = random.Random(seed)
        with fusebackend.connect(watched.path) as agent:
            for _ in range(200):
                name, other = chance.sample(["/a", "/b", "/d", "/d/a", "/d/b", "/e"], 2)
                verb = chance.randrange(3)
                if verb == 0:
                    agent.delete(name)
                elif verb == 1:
                    agent.move(name, other)
                else:
                    agent.upload_files([(name, other.encode())])

    processes = [subprocess.Popen(["python3", "-c", program, str(watched.path), str(seed)]) for seed in range(2)]
    together(*(partial(act, seed) for seed in range(2)))
    assert [process.wait(60) for process in processes] == [0, 0]
    follow(watched)
