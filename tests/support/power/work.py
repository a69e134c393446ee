"""Steps on a volume while `recorder.c` records the system calls on its file, and the expected tree after each step.

    python work.py FILE LOG SEED STEPS

`steps` gives the same for the same seed, in the process that does them and in the test that checks. Every step is one
call of the kernel face, so after a power loss a correct volume has the tree of one of the steps.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

HEADER = struct.Struct("<cBHIQQ")
"""As in `recorder.c`; `S` marks the start of a step, `P` that it and all before it are durable."""

Tree = dict[str, bytes]
"""Name → contents of a file; directories end in a slash and hold b""."""

SIZES = (0, 1, 100, 4096, 5000, 20_000, 65_536, 100_000)


class Step(NamedTuple):
    """`verb` is a call of the volume, or `fsync` or `reopen`; then the expected files after it, and those of each
    snapshot."""

    verb: str
    arguments: tuple[Any, ...]
    tree: Tree
    snapshots: dict[str, Tree]


def steps(seed: int, count: int) -> Iterator[Step]:
    chance = random.Random(seed)
    tree: Tree = {}
    snapshots: dict[str, Tree] = {}
    for number in range(count):
        files = sorted(name for name in tree if not name.endswith("/"))
        verb = chance.choices(
            ("create", "write", "truncate", "unlink", "rename", "mkdir", "fsync", "snapshot", "forget", "reopen"),
            (6, 12, 2, 2, 3, 1, 4, 1, 0.5, 0.3),
        )[0]
        arguments: tuple[Any, ...] = ()
        tree = dict(tree)
        if verb == "create" or (not files and verb in ("write", "truncate", "unlink", "rename")):
            verb, arguments = "create", (f"f{number}",)
            tree[f"f{number}"] = b""
        elif verb == "mkdir":
            arguments = (f"d{number}",)
            tree[f"d{number}/"] = b""
        elif verb == "write":
            name = chance.choice(files)
            old = tree[name]
            offset = chance.choice((0, len(old), chance.randint(0, len(old) + 1000)))
            data = chance.randbytes(chance.choice(SIZES) or 1)
            arguments = (name, offset, data)
            tree[name] = old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]
        elif verb == "truncate":
            name = chance.choice(files)
            size = chance.randint(0, len(tree[name]) + 5000)
            arguments = (name, size)
            tree[name] = tree[name][:size].ljust(size, b"\0")
        elif verb == "unlink":
            name = chance.choice(files)
            arguments = (name,)
            del tree[name]
        elif verb == "rename":
            name, target = chance.choice(files), chance.choice([*files, f"r{number}"])
            arguments = (name, target)
            tree[target] = tree[name]
            if target != name:
                del tree[name]
        elif verb == "snapshot" or (verb == "forget" and not snapshots):
            verb, arguments = "snapshot", (f"s{number}",)
            snapshots = {**snapshots, f"s{number}": tree}
        elif verb == "forget":
            arguments = (chance.choice(sorted(snapshots)),)
            snapshots = {name: kept for name, kept in snapshots.items() if name != arguments[0]}
        yield Step(verb, arguments, tree, snapshots)


def main(file: str, log: str, seed: str, count: str) -> None:
    from fusebackend.backends.sqlite import backend as sqlite
    from fusebackend.backends.sqlite import flusher
    from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller

    # As small as they can be, so that a short run flushes and checkpoints as often as a long one.
    sqlite.MAX_DIRTY_ITEMS, sqlite.MAX_WAL_BYTES = 20, 3 << 20
    flusher.FLUSH_AFTER_S, flusher.CHECKPOINT_BYTES = 0.05, 1 << 20
    me = Caller(0, 0)
    book = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def mark(kind: bytes, number: int) -> None:
        os.write(book, HEADER.pack(kind, 0, 0, 0, number, 0))

    volume = sqlite.SqliteVolume(file)
    mark(b"P", 0)
    for number, step in enumerate(steps(int(seed), int(count)), 1):
        mark(b"S", number)
        name, *rest = step.arguments or ("",)
        node = volume.lookup(ROOT_NODE, name.encode()).node if step.verb in ("write", "truncate") else 0
        if step.verb == "create":
            node = volume.create(ROOT_NODE, name.encode(), 0o644, os.O_RDWR, me).node
            volume.release(node, os.O_RDWR)
        elif step.verb == "mkdir":
            volume.mkdir(ROOT_NODE, name.encode(), 0o755, me)
        elif step.verb == "write":
            volume.open(node, os.O_RDWR)
            volume.write(node, *rest)
            volume.release(node, os.O_RDWR)
        elif step.verb == "truncate":
            volume.setattr(node, AttrChanges(size=rest[0]))
        elif step.verb == "unlink":
            volume.unlink(ROOT_NODE, name.encode())
        elif step.verb == "rename":
            volume.rename(ROOT_NODE, name.encode(), ROOT_NODE, rest[0].encode())
        elif step.verb == "snapshot":
            volume.take_snapshot(name)
            volume.sync()
            mark(b"P", number)
        elif step.verb == "forget":
            volume.delete_snapshot(name)
        elif step.verb == "fsync":
            volume.fsync(ROOT_NODE)
            mark(b"P", number)
        else:
            volume.close()
            volume = sqlite.SqliteVolume(file)
            mark(b"P", number)
    volume.close()
    mark(b"P", int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
