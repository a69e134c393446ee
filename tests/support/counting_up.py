"""Workers that count up in one file, each by `read` and `edit(if_version=)`: threads here and in other processes.

Every count is in the file at the end, or an update was lost. A worker that another one always outruns, or that waits
without end, does not come to its end within the limit, and the race fails.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import mounts
import warm
from together import together

FILE = "/n"


class OverMcp:
    """The two tools of an MCP server, called by all threads over one session."""

    def __init__(self, says: Callable[[str, dict[str, Any]], tuple[bool, str]]) -> None:
        self._says = says

    def read(self) -> tuple[str, str]:
        failed, said = self._says("read", {"path": FILE, "version": True})
        assert not failed, said
        line, version = said.split("\n")
        return line.split("\t")[1], version.removeprefix("(version: ").removesuffix(")")

    def edit(self, old: str, new: str, version: str) -> str | None:
        given = {"path": FILE, "old_string": old, "new_string": new, "if_version": version}
        failed, said = self._says("edit", given)
        return said if failed else None


class OfVerbs:
    """The two verbs of a backend or a client."""

    def __init__(self, files: Any) -> None:
        self.files = files

    def read(self) -> tuple[str, str]:
        found = self.files.read(FILE)
        assert found.error is None, found.error
        return found.file_data["content"], found.version

    def edit(self, old: str, new: str, version: str) -> str | None:
        error: str | None = self.files.edit(FILE, old, new, if_version=version).error
        return error


@contextlib.contextmanager
def door(address: str) -> Iterator[OfVerbs | OverMcp]:
    """Open `socket:PATH`, `mcp:PATH` (a server of this process, over that socket), or a backend by its URL."""
    kind, _, place = address.partition(":")
    with contextlib.ExitStack() as opened:
        if kind not in ("socket", "mcp"):
            from fusebackend.urls import open_backend

            yield OfVerbs(opened.enter_context(contextlib.closing(open_backend(address))))
            return
        import fusebackend

        files = opened.enter_context(fusebackend.connect(place))
        if kind == "socket":
            yield OfVerbs(files)
            return
        from over_mcp import tools_of

        yield OverMcp(opened.enter_context(tools_of(files)))


def count(way: OfVerbs | OverMcp, threads: int, counts: int, limit_s: float) -> int:
    """Count up in `threads` threads, `counts` times in each; return the most attempts that one count took."""
    ends, most = time.monotonic() + limit_s, [0]

    def up() -> None:
        for _ in range(counts):
            attempts, error = 0, "changed"
            while error is not None:
                assert error.startswith("changed"), error
                assert time.monotonic() < ends, f"outrun {attempts} times"
                attempts += 1
                number, version = way.read()
                error = way.edit(number, str(int(number) + 1), version)
            most.append(attempts)

    together(*[up] * threads, limit_s=limit_s)
    return max(most)


@contextlib.contextmanager
def others(address: str, processes: int, threads: int, counts: int, limit_s: float) -> Iterator[list[str]]:
    """Count up in processes of their own for the length of a block; the list has at its end what each of them said."""
    code = "import counting_up, sys; counting_up.main(*sys.argv[1:])"
    command = ["-c", code, address, *map(str, (threads, counts, limit_s))]
    said: list[str] = []
    with contextlib.ExitStack() as opened:
        running, streams = [], []
        for _ in range(processes):
            ours, theirs = socket.socketpair()
            with theirs:
                each = warm.start(command, mounts.module_environment(), (theirs.fileno(),) * 3)
            opened.callback(each.wait)
            opened.callback(each.kill)
            ours.settimeout(2 * limit_s)
            running.append(each)
            streams.append(opened.enter_context(opened.enter_context(ours).makefile("rw")))
        for stream in streams:
            ready = stream.readline()
            assert ready == "ready\n", ready + stream.read()
        for stream in streams:
            stream.write("go\n")
            stream.flush()
        yield said
        said += [stream.read() for stream in streams]
        assert [each.wait(limit_s) for each in running] == [0] * processes, said


def main(address: str, threads: str, counts: str, limit_s: str) -> None:
    with door(address) as way:
        print("ready", flush=True)
        sys.stdin.readline()
        print(count(way, int(threads), int(counts), float(limit_s)))
