"""`fusebackend serve`, which kills itself at one step of the making of a branch, of a restore, or of a move to another
route.

    python branch_killed.py POINT LOG serve --config FILE

A step is a write of the branch's files, or of the journal beside them, or a record of what a restore changes, or a
change of a move. At POINT -1 it only notes the steps in LOG.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.base import durable
from fusebackend.cli.main import main
from fusebackend.composite.backend import CompositeBackend
from fusebackend.trees import branch_volume
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.branches import Branches
from fusebackend.trees.merge.run import Journal, MergeRecords
from fusebackend.trees.restore import Restores
from fusebackend.trees.snapshots import Snapshots

POINT, LOG = int(sys.argv.pop(1)), sys.argv.pop(1)
_making = threading.local()
_done: list[str] = []


def step(word: str) -> None:
    if getattr(_making, "depth", 0):
        if len(_done) == POINT:
            os.kill(os.getpid(), signal.SIGKILL)
        _done.append(word)
        with open(LOG, "a") as file:
            file.write(word + "\n")


def around(owner: Any, name: str) -> None:
    """Make a step before and after each call of a function."""
    function: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        step(f"before {name}")
        result = function(*args, **options)
        step(f"after {name}")
        return result

    setattr(owner, name, called)


def by_halves(name: str, suffix: str) -> None:
    """Make a step after half of a journal's line, and one after it."""
    put = getattr(Journal, name)

    def called(journal: Any, line: dict[str, Any]) -> None:
        if len(_done) == POINT:
            with open(journal.path + suffix, "ab") as file:
                file.write(b'{"half')
        step("half a line")
        put(journal, line)
        step("a line")

    setattr(Journal, name, called)


by_halves("begin", ".new")
by_halves("note", "")
for owner, name in (
    (Snapshots, "take"),
    (branch_volume, "_make"),
    (durable, "sync_directory"),
    (branch_volume, "transaction"),
    (BranchVolume, "write_back"),
    (BranchVolume, "sync"),
    (BranchVolume, "close"),
    (BranchVolume, "mkdir"),
    (BranchVolume, "rename"),
    (BranchVolume, "unlink"),
    (Branches, "_attach"),
    (MergeRecords, "add"),
    (os, "replace"),
    (os, "rename"),
    (os, "unlink"),
    (os, "fsync"),
):
    around(owner, name)


def killable(owner: Any, name: str) -> None:
    """Count the steps inside of a function."""
    function: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        _making.depth = 1
        try:
            return function(*args, **options)
        finally:
            _making.depth = 0

    setattr(owner, name, called)


killable(Branches, "create")
killable(Restores, "restore")
for volume in (SqliteVolume, DirectoryVolume):
    for name in ("mkdir", "create", "rename", "unlink"):
        around(volume, name)
killable(CompositeBackend, "_transfer")
main()
