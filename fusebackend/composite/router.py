"""`Routing`: a route table with an agent face at each prefix, and paths and words on both sides of a prefix.

`CompositeBackend` and `search.py` speak to their backends through this alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fusebackend.base import paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.composite.route_table import RouteTable
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.protocol import FileInfo


class Routed(NamedTuple):
    """Where a path leads: its route (None: the default), and the path inside the route's backend."""

    prefix: AgentPath | None
    face: AgentFace
    inner: AgentPath
    outer: AgentPath

    def shown(self, infos: list[FileInfo] | None) -> list[FileInfo] | None:
        """Entries of the backend with the paths an agent sees."""
        if infos is None or self.prefix is None:
            return infos
        return [{**info, "path": self.prefix + info["path"]} for info in infos]

    def words(self, error: str | None, besides: str = "") -> str | None:
        """An error that quotes the path inside the backend, with the path the agent knows.

        Only whole paths are replaced, the root only in quotes, and nothing if `besides`, which the error may quote as
        well, holds the path.
        """
        if error is None or self.prefix is None or self.inner in besides:
            return error
        if self.inner == ROOT:
            return error.replace("'/'", f"'{self.outer}'")
        whole = rf"(?<![\w/.~-]){re.escape(self.inner)}(?![\w/~-]|\.\w)"
        return re.sub(whole, lambda _: self.outer, error)


class Scope(NamedTuple):
    """What a search goes through: a backend from a path on, and all routes below `top`, as a rule the same path."""

    own: Routed
    top: AgentPath


class Routing:
    """See the module's docstring. `faces` has one for each prefix of the table, and one for None."""

    def __init__(self, table: RouteTable, faces: Mapping[AgentPath | None, AgentFace]) -> None:
        self.table = table
        self.faces = faces

    def route(self, path: str) -> Routed:
        """Raises `PathError` for a path that no backend may be asked for."""
        start = self.faces[None].start
        if start != ROOT and path and not path.startswith(("/", "~")):
            path = f"{start}/{path}"
        outer = paths.normalise(path)
        prefix, inner = self.table.route(outer)
        return Routed(prefix, self.faces[prefix], inner, outer)

    def scope(self, path: str | None) -> Scope:
        """What a search goes through. Without a path that is everything, and the default from where it begins."""
        if path is not None:
            routed = self.route(path)
            return Scope(routed, routed.outer)
        face = self.faces[None]
        return Scope(Routed(None, face, face.start, face.start), ROOT)

    def below(self, directory: AgentPath) -> Iterator[tuple[Routed, tuple[str, ...]]]:
        """The roots of the routes strictly below a directory, each with its segments from there."""
        for prefix in self.table.prefixes_below(directory):
            segments = tuple(segment for segment in prefix[len(directory) :].split("/") if segment)
            yield Routed(prefix, self.faces[prefix], ROOT, prefix), segments

    def outer_keys(self, routed: Routed, update: Mapping[str, Any]) -> dict[str, Any]:
        """A `files_update` with the paths an agent sees."""
        prefix = routed.prefix or ""
        return {prefix + (key if key.startswith("/") else f"/{key}"): record for key, record in update.items()}
