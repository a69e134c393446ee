"""`sides`: the trees before and after a call, by what a diff of them says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from for_each import for_each
from recorded import Agent, Recorded, recorded_of

from fusebackend.base.paths import ROOT
from fusebackend.history.records import Image
from fusebackend.protocol import RENAME_EXCHANGE
from fusebackend.server.history import MountHistory
from fusebackend.trees import diff_output

Step = tuple[Any, ...]
"""A method of `Files`, and its arguments."""


def diff(recorded: Recorded, call: int, form: str = "names") -> list[str]:
    result = MountHistory(recorded.recorder, recorded.volumes).diff(f"c{call}", [])
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
        [[("write", "/changed", b"one\ntwo\n"), ("write", "/removed", b"gone\n"), ("write", "/other", b"other")],
         [("write", "/changed", b"one\n2\n"), ("remove", "/removed"), ("write", "/made", b"new\n")]],
        ["M\tchanged", "A\tmade", "D\tremoved"], frozenset({"-two", "+2", "+new", "-gone"}),
    ),
    "what others did since is not in it": Told(
        [[("write", "/file", b"1\n")],
         [("write", "/file", b"2\n"), ("write", "/made", b"made\n")],
         [("write", "/file", b"3\n"), ("remove", "/made"), ("write", "/beside", b"beside\n")]],
        ["M\tfile", "A\tmade"], frozenset({"-1", "+2", "+made"}),
    ),
    "a file that was renamed since is found": Told(
        [[("mkdir", "/d"), ("write", "/d/file", b"1\n")],
         [("write", "/d/file", b"2\n")],
         [("rename", "/d/file", "/d/moved")],
         [("rename", "/d", "/e")],
         [("write", "/e/moved", b"3\n")]],
        ["M\td/file"], frozenset({"-1", "+2"}),
    ),
    "a renamed directory is renames of its files": Told(
        [[("mkdir", "/d"), ("mkdir", "/d/deep"), ("write", "/d/a", b"content of a\n"),
          ("write", "/d/deep/b", b"content of b\n")],
         [("rename", "/d", "/e"), ("write", "/e/a", b"changed\n")]],
        ["D\td/a", "A\te/a", "R100\td/deep/b\te/deep/b"], frozenset({"-content of a", "+changed"}),
    ),
    "a rename over a file": Told(
        [[("write", "/one", b"1\n"), ("write", "/two", b"2\n")], [("rename", "/one", "/two")]],
        ["D\tone", "M\ttwo"], frozenset({"-1", "-2", "+1"}),
    ),
    "an exchange": Told(
        [[("write", "/one", b"1\n"), ("write", "/two", b"2\n")], [("rename", "/one", "/two", RENAME_EXCHANGE)]],
        ["M\tone", "M\ttwo"], frozenset({"-1", "-2", "+1", "+2"}),
    ),
    "a mode": Told([[("write", "/file", b"x")], [("change", "/file", {"mode": 0o755})]], ["M\tfile"]),
    "a file that was made and removed is in no diff": Told(
        [[("write", "/temporary", b"x"), ("remove", "/temporary"), ("write", "/kept", b"y"),
          ("rename", "/kept", "/final")]],
        ["A\tfinal"], frozenset({"+y"}), which=0,
    ),
    "a removed tree": Told(
        [[("mkdir", "/repo"), ("mkdir", "/repo/src"), ("write", "/repo/src/a", b"a\n")],
         [("remove", "/repo/src/a"), ("remove", "/repo/src")]],
        ["D\trepo/src/a"], frozenset({"-a"}),
    ),
}  # fmt: skip


@for_each("name", TOLD)
@for_each("prefix", [ROOT, "/notes"])
def test_a_diff_of_a_call(name: str, prefix: str, tmp_path: Path) -> None:
    told = TOLD[name]
    with recorded_of("memory", tmp_path, prefix) as recorded:
        for steps in told.calls:
            with recorded.call():
                recorded.files.make(*steps)
        below = f"\t{prefix[1:]}/" if prefix != ROOT else "\t"
        assert diff(recorded, told.which + 1) == [line.replace("\t", below) for line in told.names]
        patch = diff(recorded, told.which + 1, "patch")
        assert {line for line in patch if line[:1] in "+-" and line[:3] not in ("+++", "---")} == told.patch


def test_what_others_did_meanwhile_is_not_in_it_nor_that_it_was_undone(tmp_path: Path) -> None:
    with recorded_of("memory", tmp_path) as recorded:
        agent = Agent(recorded, "a call", "one")
        agent.do(lambda: recorded.files.write("/mine", b"1"))
        with recorded.call():
            recorded.files.write("/theirs", b"2")
        agent.do(lambda: recorded.files.write("/more", b"3"))
        call = agent.end()
        assert diff(recorded, call) == ["A\tmine", "A\tmore"]
        assert recorded.undoing.undo([call]).conflicts == []
        assert diff(recorded, call) == ["A\tmine", "A\tmore"]


def test_attributes_and_lost_bytes_are_in_the_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_of("memory", tmp_path) as recorded:
        recorded.files.make(("write", "/file", b"x"), ("write", "/large", b"1\n"))
        with recorded.call():
            recorded.files.change("/file", mode=0o755)
            monkeypatch.setattr(recorded.images, "keep", lambda *_: Image("lost", "larger than 64 MiB"))
            recorded.files.write("/large", b"2\n")
        patch = diff(recorded, recorded.last(), "patch")
        assert patch[:3] == ["diff --git a/file b/file", "old mode 100644", "new mode 100755"]
        assert patch[4:] == ["# large: not compared: its bytes are lost: larger than 64 MiB"]
