"""A file at a path is replaced by another one, in each way in which people and programs do that."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

Replace = Callable[[Path, Path], None]
"""Put the second file in the place of the first, whose path must stay."""


def moved_over(path: Path, new: Path) -> None:
    os.replace(new, path)


def made_anew(path: Path, new: Path) -> None:
    path.unlink()
    shutil.copyfile(new, path)


def copied_onto(path: Path, new: Path) -> None:
    shutil.copyfile(new, path)


def link_switched(path: Path, new: Path) -> None:
    """`path` must be a link, see `behind_a_link`."""
    path.with_suffix(".link").symlink_to(new)
    os.replace(path.with_suffix(".link"), path)


def behind_a_link(path: Path) -> None:
    """Turn a file into a symbolic link to it."""
    path.symlink_to(path.rename(path.with_suffix(".first")))


def databases(old: Path, new: Path, directory: Path, mode: str) -> tuple[Path, Path]:
    """Copy two SQLite databases into a new directory, with a journal mode. Returns the first one, which is behind
    a link, and the second one, which is to take its place."""
    directory.mkdir()
    copies = directory / old.name, directory / "new.db"
    for source, target in zip((old, new), copies, strict=True):
        shutil.copyfile(source, target)
        with contextlib.closing(sqlite3.connect(target)) as connection:
            connection.execute(f"PRAGMA journal_mode = {mode}")
    behind_a_link(copies[0])
    return copies


REPLACED: Final[dict[str, Replace]] = {
    "moved over": moved_over,
    "made anew": made_anew,
    "copied onto": copied_onto,
    "link switched": link_switched,
}
