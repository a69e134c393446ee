"""Trees of files for tests: made the same way each time, and compared by everything that `stat` and `read` show."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

RUN_LIMIT_S = 300.0


def in_shared_memory() -> Iterator[Path]:
    """A directory on tmpfs, for a fixture."""
    home = Path("/dev/shm")
    if not home.is_dir():
        pytest.skip("no /dev/shm here")
    with tempfile.TemporaryDirectory(dir=home) as directory:
        yield Path(directory)


class Entry(NamedTuple):
    """The recorded attributes and content of one file, directory or link."""

    kind: str
    mode: int
    owner: tuple[int, int]
    size: int
    mtime_ns: int
    content: str
    xattrs: tuple[tuple[str, bytes], ...]
    same_as: bytes
    """The first path (in order of names) of the same inode; it is equal for hard links."""


def snapshot(
    root: Path,
    *,
    modes: bool = True,
    times: bool = True,
    directory_times: bool = True,
    xattrs: bool = True,
    links: bool = True,
) -> dict[bytes, Entry]:
    """Record every path below `root`, relative to it. The arguments leave out attributes that a volume can't keep, or
    that no record has: the times of directories."""
    top = os.fsencode(root)
    first_path: dict[int, bytes] = {}
    entries = {}
    for directory, names, files in os.walk(top):
        names.sort()
        for name in sorted(names + files):
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, top)
            status = os.lstat(path)
            entries[relative] = Entry(
                kind=stat.filemode(status.st_mode)[0],
                mode=stat.S_IMODE(status.st_mode) if modes else 0,
                owner=(status.st_uid, status.st_gid) if modes else (0, 0),
                size=status.st_size if stat.S_ISREG(status.st_mode) else 0,
                mtime_ns=status.st_mtime_ns if times and (directory_times or name in files) else 0,
                content=_content(path, status.st_mode),
                xattrs=_xattrs(path, status.st_mode) if xattrs else (),
                same_as=first_path.setdefault(status.st_ino, relative) if links else b"",
            )
    return entries


def _content(path: bytes, mode: int) -> str:
    if stat.S_ISREG(mode):
        return sha256(path)
    return os.fsdecode(os.readlink(path)) if stat.S_ISLNK(mode) else ""


def _xattrs(path: bytes, mode: int) -> tuple[tuple[str, bytes], ...]:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return ()
    names = sorted(name for name in os.listxattr(path) if name.startswith("user."))
    return tuple((name, os.getxattr(path, name)) for name in names)


def sha256(path: Path | bytes | str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_sources(root: Path, files: int, *, seed: int = 1) -> None:
    """Make a source tree: `files` text files of 1 to 20 KB, some twenty a directory, the same for the same seed."""
    chance = random.Random(seed)
    words = [f"word{number}" for number in range(400)] + ["def", "return", "import", "class", "self", "None"]
    for number in range(files):
        directory = root / f"package{number // 100}" / f"module{number // 20 % 5}"
        directory.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(chance.choices(words, k=chance.randint(3, 12))) for _ in range(chance.randint(20, 400))]
        lines[chance.randrange(len(lines))] += f" needle{number}"
        (directory / f"file{number:04}.py").write_text("\n".join(lines) + "\n")


def make_zoo(
    root: Path, *, links: bool = True, symlinks: bool = True, special: bool = True, xattrs: bool = True
) -> None:
    """Make a file of each kind: hard and symbolic links, FIFOs, odd names, modes, times, holes, attributes."""
    (root / "empty dir").mkdir(parents=True)
    (root / "deep" / "a" / "b" / "c").mkdir(parents=True)
    (root / "deep" / "a" / "b" / "c" / "leaf").write_bytes(b"leaf\n")
    (root / "empty").write_bytes(b"")
    (root / "large").write_bytes(random.Random(2).randbytes(2_500_000))
    (root / "한글 name\nwith newline").write_bytes(b"odd\n")
    (root / "script.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "script.sh").chmod(0o755)
    (root / "secret").write_bytes(b"s")
    (root / "secret").chmod(0o600)
    (root / "old").write_bytes(b"old")
    os.utime(root / "old", ns=(1_000_000_001, 123_456_789_012_345_678))
    with (root / "sparse").open("wb") as file:
        file.seek(5_000_000)
        file.write(b"end")
    if links:
        os.link(root / "large", root / "deep" / "hard")
    if symlinks:
        (root / "link").symlink_to("deep/a")
        (root / "dangling").symlink_to("nowhere/at all")
    if special:
        os.mkfifo(root / "fifo", 0o640)
    if xattrs:
        os.setxattr(root / "script.sh", "user.note", b"an attribute\x00\xff")
        os.setxattr(root / "deep", "user.dir", b"on a directory")


def tool(name: str) -> str:
    """Return the path of a program. Where it is missing the test is skipped, and in CI it fails."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def run(
    *command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None, ok: tuple[int, ...] = (0,)
) -> str:
    """Run a program to its end and return its standard output; its exit status must be one of `ok`."""
    tool(str(command[0]))
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=RUN_LIMIT_S,
    )
    assert done.returncode in ok, f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "Author",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_COMMITTER_NAME": "Author",
    "GIT_COMMITTER_EMAIL": "author@example.org",
}


def git(directory: Path, *words: str | Path) -> str:
    """Run git in a directory, without the user's settings."""
    return run("git", *words, cwd=directory, env=GIT)


def make_repository(root: Path, files: int) -> None:
    """Make a git repository of `make_sources` with one commit."""
    make_sources(root, files)
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=sources")
