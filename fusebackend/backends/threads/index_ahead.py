"""`IndexAhead`: a second process that indexes threads ahead of a walk through many of them.

A first `rg` through the messages of all threads needs every checkpoint read, for names, sizes and times, and Python
does that on one core: a third of the search. So once `MANY` threads in a row were not in the cache file, a process of
its own indexes all that are still missing there, in the direction in which they were looked at, and the server finds
them in the file.

It takes 4 s of another core and 40 MiB for the messages of 1,000 threads of 30 checkpoints. It ends when all is done,
or with the server: its standard input is closed then. There is none on a machine with one core, for other databases
than SQLite, or while nobody is told of changes, that is, without a mount; `?cache=off` turns it off.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from fusebackend.backends.threads.database.rows import Damaged, Place
from fusebackend.backends.threads.database.sqlite import SqliteDatabase
from fusebackend.backends.threads.index import LineIndex
from fusebackend.backends.threads.index_cache import IndexCache
from fusebackend.backends.threads.lineage import Lineage
from fusebackend.backends.threads.message_index import MessageIndex, RecentFiles
from fusebackend.backends.threads.nodes import Nodes, Records

log = logging.getLogger(__name__)

Part: TypeAlias = Literal["messages", "all"]
"""Of a thread: what `MessageIndex` reads, or what `LineIndex` does."""

MANY: Final = 16
"""Threads that were not in the cache file. Starting the process takes as long as indexing 50."""

WITHIN_S: Final = 20.0
"""The time in which they were looked at. On a busy machine `find` takes 300 ms for one."""

END_S: Final = 5.0
"""How long the process may take to end. It does at once."""


class IndexAhead:
    """See the module's docstring. `missed` is called with the volume's lock held, `tend` and `close` without.

    Args:
        path: of the database.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._missed: dict[Part, deque[tuple[float, str]]] = {part: deque(maxlen=MANY) for part in ("messages", "all")}
        self._began: set[Part] = set()
        self._running: list[subprocess.Popen[bytes]] = []

    def missed(self, place: Place, part: Part) -> None:
        """A part of a line had to be read from the first checkpoint on."""
        if not (place.namespace or part in self._began):
            self._missed[part].append((time.monotonic(), place.thread))

    def tend(self) -> None:
        """Start a process if a walk has begun, once for each part."""
        for process in [process for process in self._running if process.poll() is not None]:
            self._end(process)
        for part, missed in self._missed.items():
            if part not in self._began and len(missed) == MANY and missed[-1][0] - missed[0][0] < WITHIN_S:
                self._began.add(part)
                try:
                    self._start(part, missed[0][1], missed[-1][1])
                except OSError as error:
                    log.warning("no process can be started to index threads ahead: %s", error.strerror)

    def _start(self, part: Part, before: str, last: str) -> None:
        asked = {"path": self._path, "part": part, "last": last, "backwards": last < before}
        # -P: modules of the current directory must not stand in for Python's
        command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._running.append(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended at once, and printed why
            os.write(process.stdin.fileno(), json.dumps(asked).encode("ascii") + b"\n")

    def close(self) -> None:
        """End the processes."""
        for process in list(self._running):
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._running.remove(process)


# -- the other process -----------------------------------------------------------------------------------------------


def order(threads: Sequence[str], last: str, *, backwards: bool) -> list[str]:
    """All threads, those first that a walk comes to after `last`."""
    in_order = sorted(threads, reverse=backwards)
    ahead = [thread for thread in in_order if (thread < last if backwards else thread > last)]
    return ahead + in_order[: len(in_order) - len(ahead)]


def index(path: str, part: Part, last: str, backwards: bool) -> None:
    """Index what the cache file lacks. OSError."""
    database = SqliteDatabase(path)
    assert database.identity is not None, "it is cached under that"
    cache = IndexCache(database.identity)
    files, records = RecentFiles(), Records(Nodes())
    for thread in order([thread for thread, _ in database.threads()], last, backwards=backwards):
        if not cache.is_open:
            return
        lineage = Lineage(database, Place(thread, ""), records)
        talk = MessageIndex(lineage, cache, files)
        with contextlib.suppress(OSError, Damaged):  # the server will meet it too, and reports it
            (talk if part == "messages" else LineIndex(lineage, talk, cache)).refresh()


def _end_with_server() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


def main() -> None:
    asked = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_server, daemon=True).start()
    try:
        index(asked["path"], asked["part"], asked["last"], asked["backwards"])
    except OSError as error:
        sys.exit(f"threads can't be indexed ahead: {error.strerror or error}")


if __name__ == "__main__":
    main()
