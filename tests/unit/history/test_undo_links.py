"""Random calls on files with several names, undone and redone in any order, with restarts and kills between.

An undo that says it took calls back has made the state before them; one that is refused has changed nothing. The state
is what programs see: bytes, attributes, and which names share a file. It is known wherever the same calls stand: before
each call, and after each undo that was made. `dir` forgets nodes here, as under memory pressure, and numbers its files
anew after a restart.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profiles import amount
from random_changes import change
from recorded import Agent, Recorded
from whole_tree import Kept

from fusebackend.backends import FilesystemBackend, InMemoryBackend, SqliteBackend
from fusebackend.base.paths import ROOT
from fusebackend.history import undo as undo_module
from fusebackend.protocol import RENAME_EXCHANGE, Volume
from fusebackend.rules.rule import within
from fusebackend.rules.ruled_volume import RuledSnapshotVolume
from fusebackend.rules.view import View
from fusebackend.volumes.agent_face import VolumeBackend

ROUNDS = amount("UNDO_LINK_ROUNDS", day=15, night=5_000)
"""For each kind of volume."""

FIRST = amount("UNDO_LINK_FIRST", day=0, night=0)
"""The seed of the first round."""

DIRECTORIES = ["/d", "/e"]
NAMES = [f"{above}/{name}" for above in ("", *DIRECTORIES) for name in ("f", "g", "h")]

DIRECTORY_KINDS = ["dir", "dir without birth times"]
KINDS = ["memory", "sqlite", "sqlite that hides names", *DIRECTORY_KINDS]

State = dict[str, Kept]


class Killed(BaseException):
    """The end of the server."""


class World:
    """A volume with a history, and a kernel that changes it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        if kind in DIRECTORY_KINDS:
            (directory / "files").mkdir()
        self._backend = self._opened()
        self.recorded = Recorded(directory, {"/": self._backend.volume})
        self._begin()

    def _opened(self) -> Any:
        if self.kind == "memory":
            return InMemoryBackend()
        if self.kind.startswith("sqlite"):
            backend = SqliteBackend(self._directory / "files.db")
            if self.kind == "sqlite":
                return backend
            return VolumeBackend(RuledSnapshotVolume(backend.volume, View("/", [within(["/**/hidden"])])))
        return FilesystemBackend(self._directory / "files", virtual_mode=True)

    def _begin(self) -> None:
        self.volume: Volume = self._backend.volume
        if self.kind == "dir without birth times":  # as on old kernels, and over some networks
            anything: Any = self.volume
            anything.lasting = lambda node: None
        self.files = self.recorded.files

    def close(self) -> None:
        self.recorded.close()
        self._backend.close()

    def restart(self, killed: int = 0) -> None:
        """Go on with another server. `killed` is the call that went on when this one was killed."""
        if killed:
            self.recorded.history.close()
        else:
            self.recorded.close()
        if self.kind != "memory":
            self._backend.close()
            self._backend = self._opened()
        self.recorded.open({ROOT: self._backend.volume})
        if killed:
            self.recorded.history.interrupted = [killed]
            self.recorded.recorder.stamp_interrupted()
        self._begin()

    def forget(self) -> None:
        """The kernel drops its dentries, and the volume the nodes that nobody holds."""
        self.volume.forget(self.recorded.names[ROOT].forget())
        if self.kind in DIRECTORY_KINDS:
            volume: Any = self.volume
            table = volume._nodes
            for node in list(table._numbers.values()):
                if node is not table.root and not node.held and node.opened is None and not node.children:
                    table._idle(node).pop(node.number, None)
                    table._drop(node)

    # -- what the kernel does --------------------------------------------------------------------------------------

    def plant(self, rng: random.Random) -> None:
        """Make files of each kind, with one to three names each."""
        files = self.files
        for directory in DIRECTORIES:
            files.mkdir(directory)
        names = rng.sample(NAMES, len(NAMES) - 2)
        while names:
            first, *others = names[: rng.randrange(1, 4)]
            names = names[len(others) + 1 :]
            match rng.randrange(5):
                case 0:
                    files.symlink("f", first)
                case 1:
                    files.fifo(first)
                case _:
                    files.create(first, b"planted " + bytes([rng.randrange(65, 91)]) * rng.randrange(8))
            for other in others:
                files.link(first, other)

    def step(self, rng: random.Random, tell: Callable[[str], None]) -> None:
        """Make a random change, and tell of it before; many are not possible."""
        path, other = rng.choice(NAMES), rng.choice(NAMES)
        data = bytes([rng.randrange(65, 91)]) * rng.randrange(1, 30)
        word, files = rng.choice(STEPS), self.files
        tell(f"  {word} {path} {other}")
        match word:
            case "write through":  # an open file, whose name goes meanwhile
                with files.writing(path) as node:
                    files.door.unlink(*files.at(path))
                    if rng.randrange(2):
                        files.create(path, b"other")
                    files.door.write(node, 0, data)
            case "chmod":
                if not stat.S_ISLNK(files.attr(path).mode):  # Linux has no such call
                    files.change(path, mode=rng.choice([0o600, 0o640, 0o755]))
            case "touch":
                files.change(path, mtime_ns=rng.randrange(1, 4) * 10**18)
            case "mkdir" | "rmdir":
                change(files, word, rng.choice(DIRECTORIES), other, data, 0)
            case "move directory":
                files.rename(*rng.sample([*DIRECTORIES, "/i"], 2), rng.choice([0, RENAME_EXCHANGE]))
            case _:
                change(files, word, path, other, data, rng.randrange(20))


STEPS = (
    ["create", "replace", "overwrite", "overwrite", "truncate", "chmod", "touch", "setxattr", "symlink", "fifo"]
    + ["link"] * 5 + ["unlink"] * 5 + ["rename"] * 4 + ["exchange"] * 2
    + ["mkdir", "rmdir", "move directory", "write through"]
)  # fmt: skip


class Round:
    """Some calls, and then undos of them. `known` has the state for each set of calls that stand."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.standing: frozenset[int] = frozenset()
        self.known: dict[frozenset[int], State] = {}
        self.undos: dict[int, tuple[frozenset[int], frozenset[int]]] = {}  # → the calls that stood after and before it
        self.left: set[int] = set()  # calls that were undone when a later one had removed names of theirs
        self.outcomes: Counter[str] = Counter()
        self.story: list[str] = []
        self.killed = self.ended = False

    def play(self) -> None:
        with self.world.recorded.call("plant"):
            self.world.plant(self.rng)
        self.known[self.standing] = self.world.files.dump()
        if self.rng.randrange(4):
            for _ in range(self.rng.randrange(1, 5)):
                self._between()
                self._call(self.rng.randrange(1, 6))
        else:
            self._beside()
        for _ in range(self.rng.randrange(2, 9)):
            if not self.ended:
                self._between()
                self._undo()

    def _between(self) -> None:
        match self.rng.randrange(6):
            case 0:
                self.story.append("restart")
                self.world.restart()
            case 1:
                self.story.append("forget")
                self.world.forget()

    def _try(self) -> None:
        try:
            self.world.step(self.rng, self.story.append)
        except OSError as error:
            self.story.append(f"    {error.strerror}")

    def _call(self, steps: int) -> None:
        self.story.append("call")
        with self.world.recorded.recorder.calls.inside("command", "a call") as call:
            for _ in range(steps * 2):
                self._try()
        self._stands(call.number)

    def _stands(self, number: int) -> None:
        if number and self.world.recorded.history.call(number) and self.world.recorded.history.records(number):
            self.standing |= {number}
            self.story.append(f"was c{number}")
            self.known[self.standing] = self.world.files.dump()

    def _beside(self) -> None:
        """Calls that go on at the same time."""
        agents = [Agent(self.world.recorded, f"agent {number}", str(number)) for number in range(3)]
        for _ in range(self.rng.randrange(3, 25)):
            number = self.rng.randrange(3)
            self.story.append(f"agent {number}")
            agents[number].do(self._try)
        for agent in agents:
            self._stands(agent.end())
        self.known = {which: state for which, state in self.known.items() if which in (frozenset(), self.standing)}

    def _undo(self) -> None:
        chosen, after = self._choose()
        if not chosen:
            return
        before = self.world.files.dump()
        assert before == self.known[self.standing], "another look finds the same"
        self.story.append(f"undo {chosen}")
        is_gone = bool(self.world.recorded.history.overlaps(chosen))
        try:
            result = self._undone(chosen)
        except OSError as error:
            self.story.append(f"{error}")
            self.outcomes["error"] += 1
            self._refused(before)
            return
        if result.conflicts:
            self.story.append(f"{result.conflicts}")
            self.outcomes["conflict"] += 1
            self._refused(before)
            return
        assert not result.partly, result.partly
        self.outcomes["took back"] += 1
        if is_gone:  # nothing was left to do for names that a later call has removed, and an undo of that brings back
            self.known = {self.standing: before}
            self.left.update(chosen)
        for each in chosen:
            self.undos.pop(each, None)
        if result.undo and not self.killed:  # else that one has made the second part
            self.undos[int(result.undo[1:])] = after, self.standing
        self.standing = after
        now = self.world.files.dump()
        self._same(self.known.setdefault(after, now), now, "not the state before")
        # Without one of `left` a state has those names or not, by the order of the undos that led to it.
        self.known = {which: known for which, known in self.known.items() if which == after or self.left <= which}

    def _refused(self, before: State) -> None:
        if self.killed:
            self.ended = True  # a part is done, and can't be finished
        else:
            self._same(before, self.world.files.dump(), "an undo that was refused has changed something")

    def _choose(self) -> tuple[list[int], frozenset[int]]:
        rng = self.rng
        redone = sorted(undo for undo, (after, _) in self.undos.items() if after == self.standing)
        if redone and rng.randrange(3) == 0:
            undo = rng.choice(redone)
            return [undo], self.undos[undo][1]
        if not self.standing:
            return [], self.standing
        order = sorted(self.standing)
        match rng.randrange(4):
            case 0 | 1:
                chosen = order[-1:]
            case 2:
                chosen = [rng.choice(order)]
            case _:
                chosen = order[-rng.randrange(1, len(order) + 1) :]
        return chosen, self.standing - set(chosen)

    def _undone(self, chosen: list[int]) -> Any:
        self.killed = False
        if self.world.kind != "memory" and self.rng.randrange(8) == 0:
            result = self._begun(chosen, self.rng.randrange(1, 6))
            if result is not None:
                return result
            self.killed = True
        return self.world.recorded.undoing.undo(chosen)

    def _begun(self, chosen: list[int], after: int) -> Any:
        """Kill the server when an undo has made some of its steps. Returns the outcome if it has less."""
        undoing: Any = self.world.recorded.undoing
        making, steps = undo_module._Making._placed, 0

        def step(*words: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == after:
                raise Killed
            return making(*words)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(undo_module._Making, "_placed", step)
            patch.setattr(undoing, "_take_back", lambda number, error: None)
            patch.setattr(self.world.recorded.history, "drop", lambda numbers: None)
            try:
                return undoing.undo(chosen)
            except Killed:
                self.story.append(f"killed at step {after}")
        self.world.restart(killed=self.world.recorded.last())
        return None

    def _same(self, expected: State, found: State, words: str) -> None:
        if expected != found:
            paths = expected.keys() | found.keys()
            differ = {
                path: (expected.get(path), found.get(path))
                for path in sorted(paths)
                if expected.get(path) != found.get(path)
            }
            raise AssertionError(words + "".join(f"\n{path}\n  {one}\n  {two}" for path, (one, two) in differ.items()))


@pytest.mark.parametrize("kind", KINDS)
def test_an_undo_makes_the_state_before_or_is_refused(kind: str, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + ROUNDS):
        directory = tmp_path / str(seed)
        directory.mkdir()
        with contextlib.closing(World(kind, directory)) as world:
            played = Round(world, seed)
            try:
                played.play()
            except BaseException as error:
                error.add_note(f"round {seed}:\n" + "\n".join(played.story))
                raise
        outcomes += played.outcomes
        shutil.rmtree(directory)
    assert min(outcomes["took back"], outcomes["conflict"]) > ROUNDS // 4, outcomes
    assert outcomes["error"] <= ROUNDS // 20, outcomes
