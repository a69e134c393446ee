"""Random changes of a volume by several calls, which are recorded."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

from hypothesis import strategies as st
from recorded import Files, Recorded
from replayed import tree_of

from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE

OF_FILES = ("overwrite", "append", "truncate", "setxattr", "link")
"""Operations on a regular file that there is."""

OPERATIONS = (
    "overwrite", "overwrite", "append", "truncate", "chmod", "setxattr", "create", "create", "mkdir", "symlink", "link",
    "unlink", "unlink", "rmdir", "rename", "rename", "exchange", "noreplace", "snapshot", "end",
)  # fmt: skip
NAMES = ("a", "b", "c")


def change(files: Files, word: str, path: str, other: str, data: bytes, number: int) -> None:
    """Make a change of a path, for some also of another one. One that is not possible is an OSError."""
    match word:
        case "write":
            files.write(path, data)
        case "overwrite":
            with files.writing(path) as node:
                files.door.write(node, number % 50, data)
        case "append":
            files.append(path, data)
        case "truncate":
            if not stat.S_ISREG(files.attr(path).mode):
                raise OSError(errno.EINVAL, "no regular file")  # as `vfs_truncate` in fs/open.c
            files.change(path, size=number)
        case "replace":
            files.write(path + "~", data)
            files.rename(path + "~", path)
        case "chmod":
            files.change(path, mode=0o600 | number % 128)
        case "setxattr":
            files.xattr(path, b"user.x", data)
        case "create":
            files.create(path, data)
        case "mkdir":
            files.mkdir(path)
        case "fifo":
            files.fifo(path)
        case "symlink":
            files.symlink("target", path)
        case "link":
            files.link(path, other)
        case "unlink":
            files.door.unlink(*files.at(path))
        case "rmdir":
            files.door.rmdir(*files.at(path))
        case _:
            files.rename(path, other, {"rename": 0, "exchange": RENAME_EXCHANGE, "noreplace": RENAME_NOREPLACE}[word])


def step(recorded: Recorded, operation: str, one: int, two: int, size: int) -> None:
    """Make one random change. One that is not possible is an OSError."""
    files, volume = recorded.files, recorded.files.volume
    found = [(os.fsdecode(path), file.mode) for path, file in tree_of(volume)[0].items()]
    for known, _ in found:
        files.attr(known)  # the kernel knows it; see `UndoPlan` for files that it knows no longer
    directories = [known.rstrip("/") for known, mode in found if stat.S_ISDIR(mode)]
    regular = [known for known, mode in found if stat.S_ISREG(mode)] or ["/none"]
    new = f"{directories[one % len(directories)]}/{NAMES[two % 3]}"
    other = f"{directories[two % len(directories)]}/{NAMES[size % 3]}"
    data = bytes([65 + size % 26]) * size
    if operation == "snapshot":
        if hasattr(volume, "take_snapshot"):
            volume.take_snapshot(recorded.name())
    elif operation == "chmod":
        change(files, operation, found[one % len(found)][0], other, data, 0o100 | two)
    elif operation in OF_FILES:
        change(files, operation, regular[one % len(regular)], new, data, two)
    else:
        change(files, operation, new, other, data, two)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(OPERATIONS), st.sampled_from("XYZ"), st.integers(0, 40), st.integers(0, 40), st.integers(0, 99)
    ),
    max_size=40,
)


def make(recorded: Recorded, steps: Any) -> None:
    for operation, who, one, two, size in steps:
        if operation == "end":
            for call in recorded.recorder.calls.open():
                recorded.recorder.calls.end(call)
            continue
        with recorded.by(who):
            try:
                step(recorded, operation, one, two, size)
            except OSError as error:
                assert error.errno is not None  # it could not be done
