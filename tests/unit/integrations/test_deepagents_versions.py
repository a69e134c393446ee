"""Agents of the oldest deepagents that is supported and of the newest work on ours, as they are and exported.

The oldest is in a directory of its own, where `scripts/bootstrap --test` puts it; OLD_DEEPAGENTS names another one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import mounts
import pytest

pytest.importorskip("deepagents")

TESTS = Path(__file__).parents[2]
OLDEST = "0.7.8"
OLD_DEEPAGENTS = Path(os.environ.get("OLD_DEEPAGENTS") or Path(sys.prefix) / f"deepagents-{OLDEST}")


def printed(program, directory, *path):
    """The JSON that a program of tests/support prints, with directories before all others on the path of imports."""
    modules = (*path, TESTS.parent, TESTS / "support", TESTS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, modules))}
    command = [sys.executable, TESTS / "support" / program, directory]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found, lines):
    """Every agent was told the same, whatever the backend."""
    assert found.pop("glob") == ["/d/x.md"]
    for kind, work in found.items():
        said = [
            ["write_file", "Updated file /a.md"],
            ["write_file", "Updated file /m/b.md"],
            ["edit_file", "Successfully replaced 1 instance(s) of the string in '/a.md'"],
            ["read_file", lines],
            ["ls", "['/a.md', '/m/']"],
            ["glob", "['/a.md', '/m/b.md']"],
            ["grep", "/a.md"],
            ["execute", "one\nzwei\n\n[Command succeeded with exit code 0]"],
            ["delete", "Deleted /a.md"],
            ["read_file", "Error: File '/a.md' not found"],
        ]
        assert work["said"] == [told for told in said if told[0] != "execute" or work["executes"]], kind
        assert work["files"] == (["/m/b.md"] if kind == "state" else []), kind


def test_the_newest(tmp_path):
    mounts.require()
    found = printed("deepagents_program.py", tmp_path)
    assert found.pop("from").startswith(sys.prefix) and found.pop("version") != OLDEST
    check(found, "@@ lines 1-2 of 2 @@\none\nzwei")


def of_the_oldest(program, directory):
    """What a program prints that imports the oldest."""
    if not OLD_DEEPAGENTS.is_dir():
        pytest.skip(f"no deepagents {OLDEST} in {OLD_DEEPAGENTS}: scripts/bootstrap --test installs it")
    found = printed(program, directory, OLD_DEEPAGENTS)
    assert found.pop("from").startswith(str(OLD_DEEPAGENTS)) and found.pop("version") == OLDEST
    return found


def test_the_oldest(tmp_path):
    mounts.require()
    check(of_the_oldest("deepagents_program.py", tmp_path), "1  one\n2  zwei")
