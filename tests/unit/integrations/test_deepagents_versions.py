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

import deepagents_program

from fusebackend.testing.each import each

TESTS = Path(__file__).parents[2]
OLDEST = "0.7.8"
OLD_DEEPAGENTS = Path(os.environ.get("OLD_DEEPAGENTS") or Path(sys.prefix) / f"deepagents-{OLDEST}")


def check(found, lines, opened):
    """Every agent was told the same, whatever the backend."""
    check_permitted(found.pop("permitted"), opened)
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


def expected(prefix, listed, lines):
    def denied(operation, path, real):
        return f"Error: permission denied for {operation} on {prefix}{path} (resolves to {prefix}{real})"

    return [
        ["read_file", denied("read", "/x/k", "/secrets/k")],
        ["read_file", denied("read", "/w/k", "/secrets/k")],
        ["read_file", denied("read", "/z", "/secrets/k")],
        ["read_file", lines],
        ["read_file", f"Error: cannot resolve {prefix}/lost"],
        ["read_file", f"Error: cannot resolve {prefix}/out/passwd"],
        ["ls", "No files found"],
        *([["ls", str([f"{prefix}/{name}/" for name in listed])]] if listed else []),
        ["grep", "No matches found"],
        ["grep", denied("read", "/z", "/secrets/k")],
        ["glob", "No files found"],
        ["write_file", denied("write", "/x/k", "/secrets/k")],
        ["write_file", denied("write", "/new", "/secrets/made")],
        ["edit_file", denied("write", "/w/k", "/secrets/k")],
        ["delete", denied("write", "/x/k", "/secrets/k")],
        ["write_file", f"Updated file {prefix}/y/f"],
        ["write_file", f"Updated file {prefix}/open/f"],
        ["delete", f"Error: {prefix}/y/f goes through a symbolic link: delete {prefix}/open/f"],
    ]


def check_permitted(outcomes, lines):
    for case in each({name: rest for name, *rest in outcomes}):
        with case as (prefix, said, left):
            listed = ["open"] if "theirs" in case.name else ["open", "w", "x", "y"]  # theirs lists where links lead
            listed = listed if case.name.endswith("deny") else []
            assert [list(each) for each in said] == expected(prefix, listed, lines)
            assert [list(each) for each in left] == [["/secrets/k", "SECRET\n"]]


def test_the_newest(tmp_path):
    mounts.require()
    found = deepagents_program.answers_in(tmp_path)
    assert found.pop("from").startswith(sys.prefix) and found.pop("version") != OLDEST
    check(json.loads(json.dumps(found)), "@@ lines 1-2 of 2 @@\none\nzwei", "@@ lines 1-1 of 1 @@\nopen")


def test_the_oldest(tmp_path):
    mounts.require()
    if not OLD_DEEPAGENTS.is_dir():
        pytest.skip(f"no deepagents {OLDEST} in {OLD_DEEPAGENTS}: scripts/bootstrap --test installs it")
    modules = (OLD_DEEPAGENTS, TESTS.parent, TESTS / "support", TESTS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, modules))}
    command = [sys.executable, TESTS / "support/deepagents_program.py", tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("from").startswith(str(OLD_DEEPAGENTS)) and found.pop("version") == OLDEST
    check(found, "1  one\n2  zwei", "1  open")
