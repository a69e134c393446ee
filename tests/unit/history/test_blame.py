"""`blame.py`: which call left each line of a file as it is, from what a recorder has kept."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from for_each import for_each
from recorded import Agent, Recorded

from fusebackend.backends import InMemoryBackend
from fusebackend.protocol import RENAME_EXCHANGE
from fusebackend.server.history import MountHistory


class Story:
    """Calls that change files, and what blame says of them."""

    def __init__(self, directory: Path) -> None:
        self.recorded = Recorded(directory, {"/": InMemoryBackend().volume})
        self.files = self.recorded.files

    def did(self, *steps: tuple[object, ...]) -> str:
        """Make a call of steps: the name of a method of `Files`, and its arguments. Returns the call's name."""
        with self.recorded.call():
            self.files.make(*steps)
        return f"c{self.recorded.last()}"

    def wrote(self, path: str, *lines: str) -> str:
        return self.did(("write", path, "".join(f"{line}\n" for line in lines).encode()))

    def blame(self, path: str) -> list[tuple[str, str]]:
        """Return each line with its candidates, as the command shows them."""
        found = MountHistory(self.recorded.recorder, self.recorded.volumes).blame(path)
        assert found.lines is not None
        return [("|".join(line.calls + ["-"] * line.others), line.text) for line in found.lines]

    def last(self, path: str) -> str | None:
        return MountHistory(self.recorded.recorder, self.recorded.volumes).blame(path).last


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = Story(tmp_path)
    yield story
    story.recorded.close()


F3 = ("write", "/f", b"a\nb\nc\n")
MOVED = [
    [("mkdir", "/d"), ("write", "/d/f", b"a\nb\n")],
    [("rename", "/d", "/e")],
    [("write", "/e/f", b"a\nB\n")],
    [("rename", "/e/f", "/g")],
]

BLAMED: dict[str, tuple[list[list[tuple[object, ...]]], str, str]] = {
    "each line is of the call that made it": (
        [[F3], [("write", "/f", b"a\nB\nc\nd\n")], [("append", "/f", b"e\n")]], "/f", "1a 2B 1c 2d 3e",
    ),
    "renames of the file and of directories are followed": (MOVED, "/g", "1a 3B"),
    "and exchanges": (
        [*MOVED, [("write", "/other", b"x\n")], [("rename", "/g", "/other", RENAME_EXCHANGE)]], "/other", "1a 3B",
    ),
    "an editor's new file goes on from the old one": (
        [[F3], [("write", "/f.tmp", b"a\nB\nc\n"), ("rename", "/f.tmp", "/f")]], "/f", "1a 2B 1c",
    ),
    "so does one that it makes after the old one has gone": (
        [[F3], [("remove", "/f"), ("write", "/f", b"a\nB\nc\n")]], "/f", "1a 2B 1c",
    ),
    "a file of another call that replaces one keeps its own lines": (
        [[F3], [("write", "/draft", b"a\nx\n")], [("rename", "/draft", "/f")]], "/f", "2a 2x",
    ),
}  # fmt: skip


@for_each("name", BLAMED)
def test_each_line_is_of_the_call_that_made_it(name: str, tmp_path: Path) -> None:
    calls, path, expected = BLAMED[name]
    story = Story(tmp_path)
    numbers = [story.did(*steps) for steps in calls]
    assert story.blame(path) == [(numbers[int(line[0]) - 1], line[1:]) for line in expected.split()]
    story.recorded.close()


def test_lines_that_were_there_before_the_log(story: Story) -> None:
    first = story.wrote("/f", "a", "b")
    second = story.wrote("/f", "a", "B")
    story.recorded.history.forget([int(first[1:])])
    assert story.blame("/f") == [("-", "a"), (second, "B")]
    story.recorded.history.forget([int(second[1:])])
    assert story.blame("/f") == [("-", "a"), ("-", "B")]
    assert story.last("/f") is None


def test_where_bytes_are_lost_there_are_candidates(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusebackend.history.images.RECORD_BYTES", 0)
    first = story.wrote("/f", "a", "b")
    second = story.wrote("/f", "a", "x", "b")
    third = story.wrote("/f", "a", "x", "y", "b")
    (record,) = story.recorded.history.records(int(third[1:]))
    os.unlink(story.recorded.images.path(record.image))  # what the second call has left
    assert story.blame("/f") == [(first, "a"), (f"{third}|{second}", "x"), (f"{third}|{second}", "y"), (first, "b")]
    (record,) = story.recorded.history.records(int(second[1:]))
    os.unlink(story.recorded.images.path(record.image))
    every = f"{third}|{second}|{first}"
    assert story.blame("/f") == [(every, "a"), (every, "x"), (every, "y"), (every, "b")]


def test_a_change_past_the_log_is_a_candidate(story: Story) -> None:
    first = story.wrote("/f", "a")
    volume = story.files.volume
    node = story.files.attr("/f").node
    volume.open(node, os.O_WRONLY)
    volume.write(node, 2, b"by others\n")
    volume.release(node, os.O_WRONLY)
    assert story.blame("/f") == [(f"{first}|-", "a"), (f"{first}|-", "by others")]
    second = story.did(("append", "/f", b"b\n"))
    assert story.blame("/f") == [(f"{first}|-", "a"), (f"{first}|-", "by others"), (second, "b")]


def test_binary_and_large_files_have_a_last_call_alone(story: Story) -> None:
    call = story.did(("write", "/f", b"\0\1"))
    found = MountHistory(story.recorded.recorder, story.recorded.volumes).blame("/f")
    assert (found.lines, found.last, list(found.calls)) == (None, call, [call])
    call = story.did(("write", "/large", b"a\n" * (1 << 20) + b"b"))
    found = MountHistory(story.recorded.recorder, story.recorded.volumes).blame("/large")
    assert (found.lines, found.last) == (None, call)


@pytest.mark.parametrize(("path", "error"), [("/none", FileNotFoundError), ("/d", IsADirectoryError), ("/l", OSError)])
def test_what_is_no_file(story: Story, path: str, error: type[OSError]) -> None:
    story.did(("mkdir", "/d"), ("symlink", "d", "/l"))
    with pytest.raises(error):
        story.blame(path)


@pytest.mark.parametrize("seed", range(5))
def test_random_changes_agree_with_a_model(story: Story, seed: int) -> None:
    """Every line names the call that made it, so the model is the file itself."""
    chance = random.Random(seed)
    lines: list[str] = []
    path, moves = "/f", 0
    for number in range(1, 41):
        for _ in range(chance.randint(1, 3)):
            at = chance.randint(0, len(lines))
            if lines and chance.random() < 0.4:
                del lines[at - 1]
            else:
                lines.insert(at, f"c{number} {chance.random()}")
        text = "".join(f"{line}\n" for line in lines).encode()
        steps: list[tuple[object, ...]] = [("write", path, text)]
        way = chance.random()
        if number > 1 and way < 0.3:
            steps = [("write", "/tmp", text), ("rename", "/tmp", path)]
        elif number > 1 and way < 0.5:
            moves += 1
            steps.append(("rename", path, f"/f{moves}"))
            path = f"/f{moves}"
        assert story.did(*steps) == f"c{number}"
    assert story.blame(path) == [(line.split()[0], line) for line in lines]


def test_calls_that_change_a_file_in_turn_are_candidates(story: Story) -> None:
    story.wrote("/f", "first")
    one, two = (Agent(story.recorded, "a call", name) for name in ("one", "two"))
    for number in range(3):
        for agent, name in ((one, "one"), (two, "two")):
            line = f"{name} {number}\n".encode()
            agent.do(partial(story.files.append, "/f", line))
    names = {name: f"c{agent.end()}" for name, agent in (("one", one), ("two", two))}
    for origin, line in story.blame("/f")[1:]:
        assert names[line.split()[0]] in origin.split("|"), (origin, line)
    assert story.blame("/f")[1] == (names["one"], "one 0")
