"""A walk through more inodes than a volume bears: the kernel drops what is not in use, and finds it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bigthreads
import mounts
import pytest

from fusebackend.linux import mount_table as table

pytestmark = [pytest.mark.mounted]

ROOT = Path(__file__).parents[2]
MOST = 200

SERVER = """
import json, os, subprocess, sys
import fusebackend
from fusebackend.backends import ThreadsBackend
from fusebackend.backends.threads.volume import ThreadsVolume

point, database, most = sys.argv[1:]
ThreadsVolume.most_nodes = int(most) or None

# No `cwd=` in the mount: Python holds its lock until the child is there, and the mount's thread could not answer it.

def walk():
    return sorted(subprocess.run(["find", point], capture_output=True, check=True).stdout.splitlines())

def digest():
    done = subprocess.run("find " + point + " -type f -print0 | sort -z | xargs -0 cat | sha256sum",
                          shell=True, capture_output=True, check=True)
    return done.stdout.decode()

def text(path):
    with open(path) as file:
        return file.read()

def known():
    return json.loads(text(f"{point}/.fusebackend/status.json"))["known_inodes"]

with fusebackend.mount(ThreadsBackend.from_sqlite(database, cache=False), point):
    first = walk()
    directory = f"{point}/thread-0000/history"
    program = ["sh", "-c", "cd " + directory + " && echo there && exec sleep 60"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as inside, open(f"{point}/thread-0001/state.json") as state:
        inside.stdout.readline()
        before, beginning, counts = digest(), state.read(100), []
        for _ in range(3):
            again = walk()
            counts.append(known())
        after = digest()
        print(json.dumps({
            "entries": len(first),
            "same names": first == again,
            "same bytes": before == after,
            "the directory of a process": os.readlink(f"/proc/{inside.pid}/cwd") == directory,
            "an open file": beginning + state.read() == text(f"{point}/thread-0001/state.json"),
            "known": counts,
        }))
        inside.kill()
"""


def has_the_notice() -> bool:
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 18)


@pytest.mark.parametrize("off", ["", "init_flags"], ids=["of inodes", "of names"])
def test_a_walk_beyond_the_limit(tmp_path: Path, off: str) -> None:
    """`init_flags` tells the version of the kernel: without it names are dropped, as on kernels before 6.18."""
    mounts.require()
    bigthreads.make(tmp_path / "threads.db", threads=8, checkpoints=10, files=20)
    point = tmp_path / "agent"
    point.mkdir()

    def found(most: int) -> dict[str, Any]:
        command = [sys.executable, "-W", "error", "-c", SERVER, str(point), f"{tmp_path}/threads.db", str(most)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FUSEBACKEND_OFF": off}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert table.mount_at(str(point)) is None
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    unlimited, limited = found(0), found(MOST)
    known_of_all, known = unlimited.pop("known"), limited.pop("known")
    assert limited == unlimited == dict.fromkeys(unlimited, True) | {"entries": unlimited["entries"]}
    assert max(known) < (2 * MOST if not off and has_the_notice() else max(known_of_all))
