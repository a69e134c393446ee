"""A process that writes to a mount until the server dies, and records every completed fsync in a journal.

    python crash_writer.py DIRECTORY JOURNAL SEED

Each line of the journal (a file outside the mount) is a JSON object, written in one piece:
  {"whole": NAME, "sha256": …}            the file's fsync has returned
  {"replacing": NAME, "sha256": …}        a rename over NAME comes next: from now on both contents are right
  {"replaced": NAME, "sha256": …}         the rename's fsync (of the directory) has returned
  {"grown": NAME, "bytes": …, "sha256": …}  the file's first bytes, after an append and its fsync
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import sys

DEAD = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
"""Errnos of calls when the server of a mount is killed. EIO: the kernel could not write pages back."""


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def main(directory: str, journal: str, seed: str) -> None:
    chance = random.Random(int(seed))
    book = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(**facts: object) -> None:
        os.write(book, json.dumps(facts).encode() + b"\n")

    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    log = os.open("log", os.O_RDWR | os.O_CREAT | os.O_APPEND, dir_fd=top)
    grown = hashlib.sha256()
    length = 0
    while part := os.read(log, 1 << 20):
        grown.update(part)
        length += len(part)
    for number in range(1_000_000):
        data = chance.randbytes(chance.choice((0, 1, 100, 4096, 5000, 60_000, 140_000)))
        digest = hashlib.sha256(data).hexdigest()
        name = f"{seed}-{number:06}"
        step = number % 3
        if step == 0:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=top)
            cut = chance.randint(0, len(data))
            write_all(fd, data[:cut])
            write_all(fd, data[cut:])
            os.fsync(fd)
            note(whole=name, sha256=digest)
            os.close(fd)
        elif step == 1:
            fd = os.open("next", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=top)
            write_all(fd, data)
            os.fsync(fd)
            os.close(fd)
            note(replacing="target", sha256=digest)
            os.rename("next", "target", src_dir_fd=top, dst_dir_fd=top)
            os.fsync(top)
            note(replaced="target", sha256=digest)
        else:
            write_all(log, data[:10_000])
            os.fsync(log)
            grown.update(data[:10_000])
            length += len(data[:10_000])
            note(grown="log", bytes=length, sha256=grown.hexdigest())


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        if error.errno not in DEAD:
            raise
