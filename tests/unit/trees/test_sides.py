"""`sides`: the trees before and after a call, from records that this file makes itself."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from for_each import for_each

from fusebackend.backends import InMemoryBackend
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.records import Image, Record
from fusebackend.protocol import RENAME_EXCHANGE, Actor, AttrChanges, Caller
from fusebackend.trees import diff_output
from fusebackend.trees.diff import differences
from fusebackend.trees.earlier import Past, sides
from fusebackend.volumes.placing import KeptSource, state_of
from fusebackend.volumes.walk import resolve

ME = Caller(os.getuid(), os.getgid(), 1)


Step = tuple[Any, ...]
"""A method of `Story`, and its arguments."""


class Story:
    """A volume that calls change, with their records."""

    def __init__(self, directory: Path, prefix: str = ROOT) -> None:
        self.backend = InMemoryBackend()
        self.volume: Any = self.backend.volume
        self.history = HistoryFile(str(directory / "history.db"))
        self.prefix = AgentPath(prefix)
        self._images = directory
        self._call = 0
        self._lost: set[str] = set()

    def close(self) -> None:
        self.history.close()
        self.backend.close()

    def call(self, steps: list[Step]) -> int:
        number = self._call = self.history.open_call("tool", "test", Actor(agent="a"))
        for name, *words in steps:
            getattr(self, name)(*words)
        return number

    def goes_on(self, number: int) -> None:
        """What follows is of this call."""
        self._call = number

    def undoes(self, number: int) -> None:
        self.history.mark_undone([number], self._call)

    def lose(self, path: str) -> None:
        """The bytes of this file are not kept from now on."""
        self._lost.add(path)

    def _before(self, path: str) -> dict[str, Any]:
        attr = resolve(self.volume, path, follow=False).attr
        if attr is None:
            return {}
        state = state_of(self.volume, attr)
        if not stat.S_ISREG(state.mode):
            return {"before": state}
        if path in self._lost:
            return {"before": state, "image": Image("lost", "larger than 64 MiB")}
        name = str(len(list(self._images.iterdir())))
        content = self.backend.download_files([path])[0].content
        (self._images / name).write_bytes(content)
        return {"before": state, "image": Image("file", name)}

    def _add(self, kind: Any, path: str, **fields: Any) -> None:
        self.history.add(self._call, self.prefix, kind, os.fsencode(path), **fields)

    def write(self, path: str, text: str) -> None:
        """Create a file, or replace its bytes."""
        before = self._before(path)
        self._add("content" if before else "create", path, **before)
        assert self.backend.upload_files([(path, text.encode())])[0].error is None

    def remove(self, path: str) -> None:
        self._add("remove", path, **self._before(path))
        place = resolve(self.volume, path, follow=False)
        if place.found.is_dir:
            self.volume.rmdir(place.parent, place.name)
        else:
            self.volume.unlink(place.parent, place.name)

    def mkdir(self, path: str) -> None:
        self._add("create", path)
        place = resolve(self.volume, path)
        self.volume.mkdir(place.parent, place.name, 0o755, ME)

    def chmod(self, path: str, mode: int) -> None:
        self._add("attributes", path, before=self._before(path)["before"])
        self.volume.setattr(resolve(self.volume, path).found.node, AttrChanges(mode=mode))

    def rename(self, path: str, to: str, exchange: bool = False) -> None:
        before = {} if exchange else self._before(to)
        self._add("exchange" if exchange else "rename", path, to_path=os.fsencode(to), **before)
        one, other = resolve(self.volume, path), resolve(self.volume, to)
        flags = RENAME_EXCHANGE if exchange else 0
        self.volume.rename(one.parent, one.name, other.parent, other.name, flags)

    def _source(self, record: Record) -> KeptSource:
        return KeptSource(record.before, str(self._images / record.image.name))

    def diff(self, call: int, form: str = "names") -> list[str]:
        past = Past({self.prefix: self.volume}, self.history.since, self._source)
        before, after = sides(self.history.records(call), past)
        result = differences(before, after)
        result.emptied.clear()
        if form == "names":
            return list(diff_output.name_status(result))
        return b"".join(diff_output.patch(result)).decode().splitlines()


class Told(NamedTuple):
    """The steps of each call, and what the diff of one of them says."""

    calls: list[list[Step]]
    names: list[str]
    patch: frozenset[str] = frozenset()
    """Lines that a patch has."""

    which: int = 1


TOLD = {
    "files that a call makes, changes and removes": Told(
        [[("write", "/changed", "one\ntwo\n"), ("write", "/removed", "gone\n"), ("write", "/other", "other")],
         [("write", "/changed", "one\n2\n"), ("remove", "/removed"), ("write", "/made", "new\n")]],
        ["M\tchanged", "A\tmade", "D\tremoved"], frozenset({"-two", "+2", "+new", "-gone"}),
    ),
    "what others did since is not in it": Told(
        [[("write", "/file", "1\n")],
         [("write", "/file", "2\n"), ("write", "/made", "made\n")],
         [("write", "/file", "3\n"), ("remove", "/made"), ("write", "/beside", "beside\n")]],
        ["M\tfile", "A\tmade"], frozenset({"-1", "+2", "+made"}),
    ),
    "nor what they did before the last change": Told(
        [[("write", "/mine", "1")], [("write", "/theirs", "2"), ("goes_on", 1), ("write", "/more", "3")]],
        ["A\tmine", "A\tmore"], frozenset({"+1", "+3"}), which=0,
    ),
    "a file that was renamed since is found": Told(
        [[("mkdir", "/d"), ("write", "/d/file", "1\n")],
         [("write", "/d/file", "2\n")],
         [("rename", "/d/file", "/d/moved")],
         [("rename", "/d", "/e")],
         [("write", "/e/moved", "3\n")]],
        ["M\td/file"], frozenset({"-1", "+2"}),
    ),
    "a renamed directory is renames of its files": Told(
        [[("mkdir", "/d"), ("mkdir", "/d/deep"), ("write", "/d/a", "content of a\n"),
          ("write", "/d/deep/b", "content of b\n")],
         [("rename", "/d", "/e"), ("write", "/e/a", "changed\n")]],
        ["D\td/a", "A\te/a", "R100\td/deep/b\te/deep/b"], frozenset({"-content of a", "+changed"}),
    ),
    "a rename over a file": Told(
        [[("write", "/one", "1\n"), ("write", "/two", "2\n")], [("rename", "/one", "/two")]],
        ["D\tone", "M\ttwo"], frozenset({"-1", "-2", "+1"}),
    ),
    "an exchange": Told(
        [[("write", "/one", "1\n"), ("write", "/two", "2\n")], [("rename", "/one", "/two", True)]],
        ["M\tone", "M\ttwo"], frozenset({"-1", "-2", "+1", "+2"}),
    ),
    "a mode": Told([[("write", "/file", "x"), ("chmod", "/file", 0o644)], [("chmod", "/file", 0o755)]], ["M\tfile"]),
    "a file that was made and removed is in no diff": Told(
        [[], [("write", "/temporary", "x"), ("remove", "/temporary"), ("write", "/kept", "y"),
              ("rename", "/kept", "/final")]],
        ["A\tfinal"], frozenset({"+y"}),
    ),
    "a removed tree": Told(
        [[("mkdir", "/repo"), ("mkdir", "/repo/src"), ("write", "/repo/src/a", "a\n")],
         [("remove", "/repo/src/a"), ("remove", "/repo/src")]],
        ["D\trepo/src/a"], frozenset({"-a"}),
    ),
    "an undone call still shows what it did": Told(
        [[("write", "/file", "1\n")], [("write", "/file", "2\n")], [("write", "/file", "1\n"), ("undoes", 2)]],
        ["M\tfile"], frozenset({"-1", "+2"}),
    ),
}  # fmt: skip


@for_each("name", TOLD)
@for_each("prefix", [ROOT, "/notes"])
def test_a_diff_of_a_call(name: str, prefix: str, tmp_path: Path) -> None:
    told, story = TOLD[name], Story(tmp_path, prefix)
    numbers = [story.call(steps) for steps in told.calls]
    below = f"\t{prefix[1:]}/" if prefix != ROOT else "\t"
    assert story.diff(numbers[told.which]) == [line.replace("\t", below) for line in told.names]
    patch = story.diff(numbers[told.which], "patch")
    assert {line for line in patch if line[:1] in "+-" and line[:3] not in ("+++", "---")} == told.patch
    story.close()


def test_attributes_and_lost_bytes_are_in_the_patch(tmp_path: Path) -> None:
    with contextlib.closing(Story(tmp_path)) as story:
        story.call([("write", "/file", "x"), ("write", "/large", "1\n")])
        call = story.call([("chmod", "/file", 0o755), ("lose", "/large"), ("write", "/large", "2\n")])
        patch = story.diff(call, "patch")
        assert patch[:3] == ["diff --git a/file b/file", "old mode 100644", "new mode 100755"]
        assert patch[4:] == ["# large: not compared: its bytes are lost: larger than 64 MiB"]
