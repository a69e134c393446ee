"""A mount with both of its faces: the kernel's, and a client of its control socket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mounts

import fusebackend

DEADLINE_S = 1.0


class TwoFaces:
    """A mount and its agent face."""

    def __init__(self, mounted: mounts.Mounted, agent: fusebackend.Client) -> None:
        self.mounted = mounted
        self.path = mounted.path
        self.agent = agent

    def call(self, verb: str, *arguments: object) -> Any:
        """Call a verb; fail on an error. Return its record, or records, as a dict."""
        result = self.ask(verb, *arguments)
        for one in result if isinstance(result, list) else [result]:
            assert not one.get("error"), (verb, arguments, one)
        return result

    def ask(self, verb: str, *arguments: object) -> Any:
        result = getattr(self.agent, verb)(*arguments)
        return [asdict(one) for one in result] if isinstance(result, list) else asdict(result)

    def upload(self, path: str, content: bytes) -> None:
        self.call("upload_files", [(path, content)])

    def download(self, path: str) -> bytes:
        content: bytes = self.call("download_files", [path])[0]["content"]
        return content


@contextlib.contextmanager
def two_faces(mountpoint: Path, default: str, routes: Mapping[str, str] | None = None) -> Iterator[TwoFaces]:
    """Mount `default` and `routes` (prefix to URL) for the length of a block."""
    options = [f"deadline={DEADLINE_S}", *mounts.OTHERS]
    with (
        mounts.mounted(mountpoint, default, routes=routes, options=options) as server,
        fusebackend.connect(server.path) as agent,
    ):
        yield TwoFaces(server, agent)
