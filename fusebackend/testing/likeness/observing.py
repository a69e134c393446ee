"""Make the calls of many rows in one directory, and record everything that is visible afterwards."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusebackend.testing.likeness.scenes import Scene, build

BATCH = 200
"""This many scenes are made, then one wait for the clock that stamps files (`TICK_S`), then the calls."""

TICK_S = 0.03


class User(NamedTuple):
    """The user that makes a call; `ROOT` for root's own."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


ROOT = User("root", 0, 0)


class Row(NamedTuple):
    label: str
    scene: Scene
    user: User
    call: Callable[[], Any]
    """Made with the scene as the working directory."""


def observe(root: Path, rows: Sequence[Row]) -> list[Any]:
    """Return the outcome of each row. The process becomes other users, and back: call it in a child."""
    seen: list[Any] = []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        cases = [f"{root}/{number}" for number in range(len(batch))]
        before = [build(case, row.scene) for case, row in zip(cases, batch, strict=True)]
        time.sleep(TICK_S)
        seen += [_made(*each) for each in zip(cases, before, batch, strict=True)]
        for case in cases:
            shutil.rmtree(case)
    return seen


def _made(case: str, before: dict[str, os.stat_result], row: Row) -> Any:
    os.chdir(case)
    os.umask(0o022)
    if row.user is not ROOT:
        os.setgroups(row.user.groups)
        os.setresgid(row.user.gid, row.user.gid, 0)
        os.setresuid(row.user.uid, row.user.uid, 0)
    try:
        answer = row.call()
    except OSError as error:
        answer = errno.errorcode[error.errno or 0]
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups([])
        os.chdir("/")
    known = {status.st_ino: (os.path.relpath(path, case), status) for path, status in before.items()}
    return answer, [_shown(path, status, case, known) for path, status in _walk(case)]


def _walk(path: str) -> Iterator[tuple[str, os.stat_result]]:
    status = os.lstat(path)
    yield path, status
    if stat.S_ISDIR(status.st_mode):
        for name in sorted(os.listdir(path)):
            yield from _walk(f"{path}/{name}")


def _shown(path: str, status: os.stat_result, case: str, known: dict[int, tuple[str, os.stat_result]]) -> Any:
    """Record one file. Access times are left out: file systems and mount options differ in the rules for them."""
    was, old = known.get(status.st_ino, ("new", status))
    moved = [
        name
        for name, then, now in (
            ("mtime", old.st_mtime_ns, status.st_mtime_ns),
            ("ctime", old.st_ctime_ns, status.st_ctime_ns),
        )
        if then != now
    ]
    kind = stat.S_IFMT(status.st_mode)
    content: Any = None
    if kind == stat.S_IFLNK:
        content = os.readlink(path)
    elif kind == stat.S_IFREG:
        with open(path, "rb") as file:
            content = status.st_size, file.read(100)
    owner = status.st_uid, status.st_gid
    return os.path.relpath(path, case), was, oct(status.st_mode), status.st_nlink, owner, status.st_rdev, moved, content
