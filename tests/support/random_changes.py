"""Random changes of a volume by several calls, which are recorded."""

from __future__ import annotations

import os
import stat
from typing import Any

from hypothesis import strategies as st
from recorded import Recorded
from replayed import tree_of

from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE

OPERATIONS = (
    "write", "write", "append", "truncate", "chmod", "setxattr", "create", "create", "mkdir", "symlink", "link",
    "unlink", "unlink", "rmdir", "rename", "rename", "exchange", "noreplace", "snapshot", "end",
)  # fmt: skip
NAMES = ("a", "b", "c")


def step(recorded: Recorded, operation: str, one: int, two: int, size: int) -> None:
    """Make one random change. One that is not possible is an OSError."""
    files, volume = recorded.files, recorded.files.volume
    found = [(os.fsdecode(path), file.mode) for path, file in tree_of(volume)[0].items()]
    for known, _ in found:
        files.attr(known)  # the kernel knows it; see `UndoPlan` for files that it knows no longer
    directories = [known.rstrip("/") for known, mode in found if stat.S_ISDIR(mode)]
    regular = [known for known, mode in found if stat.S_ISREG(mode)] or ["/none"]
    path = regular[one % len(regular)]
    target = f"{directories[one % len(directories)]}/{NAMES[two % 3]}"
    other = f"{directories[two % len(directories)]}/{NAMES[size % 3]}"
    data = bytes([65 + size % 26]) * size
    match operation:
        case "write":
            with files.writing(path) as node:
                files.door.write(node, two % 50, data)
        case "append":
            files.append(path, data)
        case "truncate":
            files.change(path, size=two)
        case "chmod":
            files.change(found[one % len(found)][0], mode=0o700 | two % 64)
        case "setxattr":
            files.xattr(path, b"user.x", data)
        case "create":
            files.create(target, data)
        case "mkdir":
            files.mkdir(target)
        case "symlink":
            files.symlink("target", target)
        case "link":
            files.link(path, target)
        case "unlink":
            files.door.unlink(*files.at(target))
        case "rmdir":
            files.door.rmdir(*files.at(target))
        case "rename" | "exchange" | "noreplace":
            flags = {"exchange": RENAME_EXCHANGE, "noreplace": RENAME_NOREPLACE}.get(operation, 0)
            files.rename(target, other, flags)
        case "snapshot":
            if hasattr(volume, "take_snapshot"):
                volume.take_snapshot(recorded.name())


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
