"""A three-way merge by lines, against `git merge-file` as a user runs it and against a model."""

from __future__ import annotations

import errno
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from fusebackend.base.merge_lines import merge_lines
from fusebackend.testing.posix.case import fails

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def text(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def test_more_conflicts_than_an_exit_status_holds() -> None:
    def side(word: str) -> bytes:
        return text(*(line for number in range(300) for line in (f"{word}{number}", "x", "y", "z", f"same{number}")))

    assert not merge_lines(side("base"), side("ours"), side("theirs"))[1]


def test_binary_files_are_not_merged() -> None:
    assert merge_lines(b"a\0b\n", b"a\0c\n", b"a\0b\nd\n") == (b"a\0c\n", False)


def test_no_configuration_has_a_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With diff3 style, the conflict would have the base in it."""
    (tmp_path / "config").write_text("[merge]\n\tconflictStyle = diff3\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert b"|||||||" not in merge_lines(text("a"), text("b"), text("c"))[0]


def test_without_git_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with fails(errno.ENOTSUP, match="needs git"):
        merge_lines(b"", b"", b"")


def _edited(rng: random.Random, lines: list[str]) -> list[str]:
    lines = list(lines)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(lines) + 1)
        lines[at : at + rng.randrange(3)] = [rng.choice("abcdefxyz") for _ in range(rng.randrange(3))]
    return lines


def test_random_cases_are_equal_to_git(tmp_path: Path) -> None:
    rng = random.Random(17)
    unclean = 0
    for _ in range(200):
        base = [rng.choice("abcdef") for _ in range(rng.randrange(12))]
        sides = [base, _edited(rng, base), _edited(rng, base)]
        end = "" if rng.random() < 0.2 else "\n"
        data = ["\n".join(side).encode() + (end.encode() if side else b"") for side in sides]
        for name, content in zip(("base", "ours", "theirs"), data, strict=True):
            (tmp_path / name).write_bytes(content)
        merged, clean = merge_lines(*data)
        done = subprocess.run(
            ["git", "merge-file", "-p", "-q", "ours", "base", "theirs"], cwd=tmp_path, capture_output=True, check=False
        )
        assert (merged, clean) == (done.stdout, done.returncode == 0)
        unclean += not clean
        if data[1] == data[0] or data[1] == data[2]:
            assert (merged, clean) == (data[2], True)
    assert 20 < unclean < 180, "both outcomes were seen"
