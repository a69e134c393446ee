"""The log has what ten actors at once have changed, each change once and by its actor; also where the server is killed.

FUSEBACKEND_ACTORS_STEPS=20000 FUSEBACKEND_LOG_KILLS=200 pytest --night tests/mounted/test_log_is_complete.py
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import stores
from eventually import eventually
from mounts import Mounted, Serve
from profiles import amount
from services.postgres import running
from together import together

import fusebackend
from fusebackend import Actor
from fusebackend.control.client.client import Client
from fusebackend.protocol import ChangeInfo

pytestmark = pytest.mark.timeout(3600)

STEPS = amount("FUSEBACKEND_ACTORS_STEPS", day=200, night=20_000)
KILLS = amount("FUSEBACKEND_LOG_KILLS", day=3, night=200)
LACKS_S = 0.5
"""For so long before a kill the log of `dir:` and of a store may lack records: 0.1 s, and 0.21 s beside eight others on
two cores."""
ACTORS = 10
SHARED = [f"/shared/{number}" for number in range(4)]

Changed = tuple[str, str, str | None]
"""Of a record: what was changed, the path, and the new one."""

PROGRAM = """
import mmap, os, subprocess, sys

def put(path, data, flags):
    descriptor = os.open(path, flags, 0o644)
    for part in (data[:3], data[3:]):
        os.write(descriptor, part)
    os.close(descriptor)

def mapped(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[0] ^= 1
        view.flush()

def deep(path):
    inner = f"echo deep > '{path}'"
    subprocess.run(["sh", "-c", f'sh -c "{inner}" & wait'], check=True)

WORK = {
    "create": lambda path: put(path, b"created", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "append": lambda path: put(path, b"appended", os.O_WRONLY | os.O_APPEND),
    "truncate": lambda path: os.truncate(path, os.stat(path).st_size + 5),
    "map": mapped,
    "deep": deep,
    "rename": os.rename,
    "link": os.link,
    "remove": os.unlink,
    "mkdir": os.mkdir,
    "chmod": lambda path: os.chmod(path, os.stat(path).st_mode ^ 0o020),
}
for line in sys.stdin:
    name, *paths = line.rstrip("\\n").split("\\t")
    WORK[name](*paths)
    print("done", flush=True)
"""


@dataclass
class Author:
    """One of the actors: it does one thing after another, each as a call of its own, and notes what it has done."""

    name: str
    files: Client
    chance: random.Random
    done: dict[str, list[Changed]] = field(default_factory=dict)
    own: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)  # several names of a file: a record has one of them
    made: int = 0

    def new(self) -> str:
        self.made += 1
        return f"/{self.name}/{self.made}"

    def step(self) -> None:
        call = f"{self.name}-{len(self.done)}"
        verb = self.chance.choice(["create", "create", "append", "shared", "rename", "remove", *self.more()])
        path = self.chance.choice(self.own) if self.own else None
        if path is None or verb == "create":
            path = self.new()
            self.do(call, "create", path)
            self.own.append(path)
            self.done[call] = [("create", path, None)]
        elif verb == "rename":
            new = self.new()
            self.do(call, "rename", path, new)
            self.own[self.own.index(path)] = new
            self.done[call] = [("rename", path, new)]
        elif verb == "remove":
            self.do(call, "remove", path)
            self.own.remove(path)
            self.done[call] = [("remove", path, None)]
        elif verb == "shared":
            path = self.chance.choice(SHARED)
            self.do(call, "append", path)
            self.done[call] = [("content", path, None)]
        else:
            self.other(call, verb, path)

    def more(self) -> list[str]:
        return []

    def other(self, call: str, verb: str, path: str) -> None:
        self.do(call, verb, path)
        self.done[call] = [("content", path, None)]

    def do(self, call: str, verb: str, *paths: str) -> None:
        raise NotImplementedError


class Agent(Author):
    """It changes files by verbs."""

    def do(self, call: str, verb: str, *paths: str) -> None:
        with fusebackend.acting(Actor(agent=self.name, call=call)):
            if verb == "append":
                self.files.append(paths[0], [b"more\n"])
                return
            answers: dict[str, Callable[[], Any]] = {
                "create": lambda: self.files.write(paths[0], "created\n"),
                "rename": lambda: self.files.move(*paths),
                "remove": lambda: self.files.delete(paths[0]),
            }
            assert answers[verb]().error is None, (verb, paths)


class Program(Author):
    """It changes files by system calls, in a process of its own and, now and then, in its child's child."""

    def __init__(self, name: str, files: Client, chance: random.Random) -> None:
        super().__init__(name, files, chance)
        words = [sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def more(self) -> list[str]:
        return ["truncate", "map", "deep", "link", "mkdir", "chmod"]

    def other(self, call: str, verb: str, path: str) -> None:
        if verb in ("append", "truncate", "map"):
            super().other(call, verb, path)
        elif verb == "chmod":
            self.do(call, verb, path)
            self.done[call] = [("attributes", path, None)]
        else:
            new = self.new()
            self.do(call, verb, *([path, new] if verb == "link" else [new]))
            self.done[call] = [("create", new, None)]
            if verb == "link":
                self.own.remove(path)
                self.linked.append(path)
            (self.own if verb == "deep" else self.linked).append(new)

    def do(self, call: str, verb: str, *paths: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.files.begin_call(verb, pid=self.process.pid, id=call, agent=self.name)
        try:
            self.process.stdin.write("\t".join([verb, *(self.files.mountpoint + path for path in paths)]) + "\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n", (verb, paths)
        finally:
            self.files.end_call(call)


def records(files: Client, after: int = 0, branch: str | None = None) -> Iterator[ChangeInfo]:
    """The log after a record, in its order; of the mount, or of a branch."""
    while page := files.changes(after=after, branch=branch):
        yield from page
        after = page[-1].number


def calls(files: Client, branch: str | None = None) -> dict[str, Actor]:
    """The actors of all calls by the calls' names."""
    found: dict[str, Actor] = {}
    before = None
    while page := files.log(before=before, branch=branch):
        found |= {each.call: each.actor for each in page}
        before = page[-1].call
    return found


def replayed(changes: list[ChangeInfo], before: Iterable[str] = ()) -> set[str]:
    """The paths that there are after these changes of a tree. Fails where one can't follow on those before."""
    there = set(before)
    for each in changes:
        if each.change == "create":
            assert each.path not in there, each
            there.add(each.path)
        elif each.change == "remove":
            there.remove(each.path)
        elif each.change == "rename":
            assert each.to_path is not None
            inside = {path for path in there if path == each.path or path.startswith(each.path + "/")}
            assert inside, each
            there = there - inside | {each.to_path + path[len(each.path) :] for path in inside}
        else:
            assert each.path in there, each
    return there


def tree(mount: Path) -> set[str]:
    return {str(Path("/", each.relative_to(mount))) for each in mount.rglob("*")}


@contextlib.contextmanager
def authors(servers: list[Mounted], seed: int) -> Iterator[list[Author]]:
    with contextlib.ExitStack() as ends:
        found: list[Author] = []
        for number in range(ACTORS):
            files = ends.enter_context(fusebackend.connect(servers[number // 2 % len(servers)].path))
            kind = Agent if number % 2 else Program
            found.append(kind(f"{kind.__name__.lower()}{number}", files, random.Random(seed * ACTORS + number)))
            files.make_directory(f"/{found[-1].name}")
        try:
            yield found
        finally:
            for each in found:
                if isinstance(each, Program):
                    assert each.process.stdin is not None and each.process.stdout is not None
                    each.process.stdin.close()
                    each.process.wait(60)
                    each.process.stdout.close()


def at_once(everybody: list[Author], steps: int) -> None:
    def work(author: Author) -> None:
        for _ in range(steps):
            author.step()

    together(*(partial(work, each) for each in everybody), limit_s=3600)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Before `serve`: it goes after the server."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/volume.db"
    return f"postgres:{request.getfixturevalue('postgres_dsn')}?volume=v"


def test_ten_actors(url: str, serve: Serve) -> None:
    """On two hosts over `postgres:`, each of which has the log of its own changes."""
    servers = [serve(url, options=["history=on"]) for _ in range(1 if url.startswith("sqlite") else 2)]
    with fusebackend.connect(servers[0].path) as files:
        assert [each.error for each in files.upload_files([(path, b"") for path in SHARED])] == [None] * len(SHARED)
    with authors(servers, seed=7) as everybody:
        at_once(everybody, STEPS // ACTORS)
        found: dict[str, list[Changed]] = {}
        everything: list[ChangeInfo] = []
        for server in servers:
            with fusebackend.connect(server.path) as files:
                actors, own = calls(files), list(records(files))
                problems = files.verify_log().problems
                assert problems == [], problems[:20]
            everything += own
            for each in own:
                actor = actors[each.call]
                if actor.call:
                    assert actor.call.startswith(f"{actor.agent}-"), actor
                    changes = found.setdefault(actor.call, [])
                    changed = each.change, each.path, each.to_path
                    if changed not in changes or each.path not in SHARED:  # once more after another call's change
                        changes.append(changed)
        done = {call: changes for each in everybody for call, changes in each.done.items()}
        assert sum(map(len, done.values())) == STEPS // ACTORS * ACTORS
        wrong = {call: (changes, found.get(call)) for call, changes in done.items() if found.get(call) != changes}
        assert wrong == {}, f"{len(wrong)} calls, the first of {len(done)}: {dict(list(wrong.items())[:5])}"
        assert found.keys() == done.keys()
        there = tree(servers[0].path)
        assert there == {*SHARED, "/shared", *(f"/{each.name}" for each in everybody)}.union(
            *(each.own + each.linked for each in everybody)
        )
        if len(servers) == 1:
            assert replayed(everything) == there


# -- kills -------------------------------------------------------------------------------------------------------------

NOTED = """
import os, sys, time
notes = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def begin(*words):
    os.write(notes, "\\t".join(words).encode())

def end(is_made=True):
    os.write(notes, f"\\t{time.monotonic_ns() if is_made else 0}\\n".encode())
"""
"""A program notes each step before and after it, where no kill of a server takes that away; see `noted`."""


WRITER = f"""{NOTED}
import random
mount, home, call, chance = sys.argv[2], sys.argv[3], sys.argv[4], random.Random(sys.argv[4])
sys.stdin.readline()
for number in range(10_000):
    path, other = (f"{{home}}/{{chance.randrange(60)}}" for _ in range(2))
    what = chance.randrange(4)
    try:
        if what == 0:
            begin("content" if path == other else "rename", path, other)  # the same name: it changes nothing
            os.rename(mount + path, mount + other)
        elif what == 1:
            begin("remove", path, "")
            os.unlink(mount + path)
        else:
            begin("content" if os.path.exists(mount + path) else "create", path, "")
            descriptor = os.open(mount + path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(descriptor, call.encode())
            os.fsync(descriptor)
            os.close(descriptor)
    except FileNotFoundError:
        end(is_made=False)
    except OSError:
        break
    else:
        end()
"""


AGENT = f"""{NOTED}
import random
import fusebackend
mount, home, call, chance = sys.argv[2], sys.argv[3], sys.argv[4], random.Random(sys.argv[4])
with fusebackend.connect(mount) as files, fusebackend.acting(fusebackend.Actor(agent="agent", call=call)):
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(10_000):
        path, other = (f"{{home}}/{{chance.randrange(20)}}/{{chance.randrange(3)}}" for _ in range(2))
        what = chance.randrange(5)
        if what == 0:
            begin("move", path, other)
            files.move(path, other)
        elif what == 1:
            path = path if chance.randrange(4) else path[: -len("/0")]
            begin("delete", path, "")
            files.delete(path)
        elif what == 2:
            begin("write", path, "")
            files.write(path, call)
        else:
            begin("write", path, "")
            files.upload_files([(path, call.encode())])
        end()
"""


class Noted(NamedTuple):
    """A step of a program: what a record says of it, or the verb; `end_ns` is 0 if it changed nothing, and None if it
    went on when the server was killed."""

    change: str
    path: str
    to_path: str | None
    end_ns: int | None


def noted(notes: Path) -> list[Noted]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    steps = [[*line.split("\t"), None][:4] for line in lines]
    return [Noted(what, path, to or None, None if end is None else int(end)) for what, path, to, end in steps]


End = Callable[[Mounted, list["subprocess.Popen[str]"]], None]


class Killed(NamedTuple):
    """What is killed: a server of a URL, by `end`, beside writers and as many `agents`; all of them in a branch, if one
    is named. `lacks_s`: for so long before its end the log may lack records."""

    url: str
    end: End
    agents: int = 1
    branch: str | None = None
    lacks_s: float = 0

    @property
    def top(self) -> str:
        return "" if self.branch is None else f"/.fusebackend/branches/{self.branch}"


@pytest.fixture(
    params=[
        "sqlite",
        "branch",
        "dir",
        "store",
        pytest.param("postgres", marks=pytest.mark.services),
        # A record of what the crash took stays in one of some ten crashes: SEMANTICS says that it may.
        pytest.param("crash", marks=[pytest.mark.services, pytest.mark.night]),
    ]
)
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Killed]:
    """By a SIGKILL, or a crash of PostgreSQL and an unmount after it."""

    def kill(server: Mounted, writers: list[subprocess.Popen[str]]) -> None:
        server.kill()

    if request.param in ("sqlite", "branch"):
        yield Killed(f"sqlite:{tmp_path}/volume.db", kill, branch="idea" if request.param == "branch" else None)
    elif request.param == "dir":
        (tmp_path / "files").mkdir()
        yield Killed(f"dir:{tmp_path}/files", kill, lacks_s=LACKS_S)
    elif request.param == "store":
        with stores.opened("sqlite", tmp_path, None):
            pass
        yield Killed(f"store+sqlite:{tmp_path}/store.db?ns=files", kill, lacks_s=LACKS_S)
    elif request.param == "postgres":
        yield Killed(f"postgres:{request.getfixturevalue('postgres_dsn')}?volume=v", kill)
    else:
        with running(durable=True) as postgres:

            def crash(server: Mounted, writers: list[subprocess.Popen[str]]) -> None:
                postgres.crash()
                postgres.start()
                for writer in writers:
                    writer.kill()
                    writer.wait(60)
                with fusebackend.connect(server.path) as files:  # what they had asked for ends
                    eventually(lambda: files.status()["routes"][0]["health"]["running"] == 0)
                server.process.send_signal(signal.SIGTERM)
                server.process.wait(60)
                server.kill()

            yield Killed(f"postgres:{postgres.dsn()}?volume=v", crash, agents=0)


def test_a_kill_leaves_no_durable_change_without_its_record(
    killed: Killed, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each kill the log explains the tree: its names are those of the records, and each file has bytes of a call
    that has a record of that file.

    On other routes it may lack what was changed in the last tenth of a second. Each writer has files of its own there,
    for records of calls at once may be in another order than their changes.
    """
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    branch, chance = killed.branch, random.Random(11)
    server = serve(killed.url, at="mnt", options=["history=on"])
    if branch is not None:
        with fusebackend.connect(server.path) as files:
            files.create_branch(branch)
    top = server.path / killed.top[1:]
    (top / "home").mkdir()
    everything: list[ChangeInfo] = []
    replay: set[str] = set()
    for number in range(KILLS):
        with fusebackend.connect(server.path) as files:
            writers, agents, notes = [], [], {}
            for writer in range(2):
                call = f"{uuid.uuid4().hex}-{writer}"
                home = f"/home/{writer}" if killed.lacks_s else "/home"
                (top / home[1:]).mkdir(parents=True, exist_ok=True)
                notes[call] = tmp_path / f"{call}.notes"
                words = [sys.executable, "-c", WRITER, str(notes[call]), str(top), home, call]
                process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                files.begin_call("write", pid=process.pid, id=call, agent=f"writer{writer}")
                writers.append(process)
            # What an agent's verb has changed is recorded when it ends, and all that others have by then.
            for _ in range(killed.agents if not killed.lacks_s or number % 2 else 0):
                call = f"{uuid.uuid4().hex}-agent"
                notes[call] = tmp_path / f"{call}.notes"
                words = [sys.executable, "-c", AGENT, str(notes[call]), str(server.path), f"{killed.top}/agent", call]
                process = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                agents.append(process)
        for process in writers + agents:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            writers[0].wait(chance.uniform(0.05, 0.6 + killed.lacks_s))
        killed_ns = time.monotonic_ns()
        killed.end(server, writers + agents)
        for process in agents:
            process.kill()  # it would look for the server for some seconds
            process.communicate(timeout=60)
        for process in writers:
            _, said = process.communicate(timeout=60)
            assert process.returncode in (0, -signal.SIGKILL), said
        server = serve(killed.url, at="mnt", options=["history=on"])
        server.expected_log = "PostgreSQL has crashed"  # at the unmount before
        with fusebackend.connect(server.path) as files:
            new = list(records(files, everything[-1].number if everything else 0, branch))
            everything += new
            actors, there = calls(files, branch), tree(top)
            if killed.lacks_s:
                done = {call: noted(path) for call, path in notes.items()}
                texts = {path: (top / path[1:]).read_text() for path in there if is_file(path)}
                replay = explained(new, replay, texts, actors, done, killed_ns - int(killed.lacks_s * 1e9))
                continue
            replay = replayed(new, replay)
            wrong = sorted(there ^ replay)[:5]
            told = [each for each in everything if each.path in wrong or each.to_path in wrong]
            assert wrong == [], (
                f"kill {number}: {wrong} of {len(there)} differ, {len(there - replay)} unrecorded: {told}"
            )
            for path in (path for path in there if (top / path[1:]).is_file()):
                call = (top / path[1:]).read_text()
                assert not call or wrote(everything, actors, call, path), (number, path, call)
    with fusebackend.connect(server.path) as files:
        assert [each.number for each in records(files, branch=branch)] == [each.number for each in everything]
        problems = files.verify_log().problems
        assert problems == [], problems[:20]
    assert len(everything) > 5 * KILLS


def explained(
    new: list[ChangeInfo],
    before: set[str],
    texts: dict[str, str],
    actors: dict[str, Actor],
    done: dict[str, list[Noted]],
    lacks_ns: int,
) -> set[str]:
    """Return the files that there are after a kill, of whose `texts` each is a call's. Fails where the log says what
    was not done, says it twice, or lacks what was done before `lacks_ns`."""
    new = [each for each in new if is_file(each.path)]
    for call, steps in done.items():
        if call.endswith("-agent"):
            continue
        names = ("create", "remove", "rename")
        told = [(each.change, each.path, each.to_path) for each in new
                if actors[each.call].call == call and each.change in names]  # fmt: skip
        made = [step for step in steps if step.change in names and step.end_ns != 0]
        assert told == [step[:3] for step in made[: len(told)]], (call, told, made)
        late = [step for step in made[len(told) :] if step.end_ns is not None and step.end_ns < lacks_ns]
        assert late == [], (call, lacks_ns, late)
    recent = {path for steps in done.values() for step in steps if step.end_ns is None or step.end_ns >= lacks_ns
              for path in (step.path, step.to_path or step.path)}  # fmt: skip
    replay = replayed(new, before)
    wrong = {path for path in texts.keys() ^ replay if path not in recent and path.rpartition("/")[0] not in recent}
    wrong |= {path for path, call in texts.items() if call in done and path not in recent
              and not wrote(new, actors, call, path)}  # fmt: skip
    assert wrong == set(), (wrong, [each for each in new if each.path in wrong or each.to_path in wrong])
    return set(texts)


def is_file(path: str) -> bool:
    """Of the kills: all files are in directories of these, and a store has no others."""
    return path.count("/") == 3


def wrote(changes: list[ChangeInfo], actors: dict[str, Actor], call: str, path: str) -> bool:
    """Whether a call has a record of a file that has this path now."""
    for each in reversed(changes):
        if each.change == "rename" and each.to_path == path:
            path = each.path
        elif each.path == path and actors[each.call].call == call and each.change in ("create", "content"):
            return True
    return False
