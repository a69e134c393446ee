"""`Routing`: a route table with an agent face at each prefix, and paths and words on both sides of a prefix.

`CompositeBackend` and `search.py` speak to their backends through this alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from fusebackend.base import errors, paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.composite.route_table import PrefixTable
from fusebackend.dialects.agent_face import AgentFace, is_native, stumbled
from fusebackend.dialects.text_files import Outcome
from fusebackend.protocol import (
    Attr,
    Change,
    Conditions,
    FileInfo,
    FileUploadResponse,
    GrepMatch,
    Verb,
)
from fusebackend.remote.volume import ForeignVolume, foreign_volume
from fusebackend.volumes.walk import resolve

Named = TypeVar("Named", FileInfo, GrepMatch)


class RoutedPath(NamedTuple):
    """Where a path leads: its route (None: the default), and the path inside the route's backend."""

    prefix: AgentPath | None
    face: AgentFace
    inner: AgentPath
    outer: AgentPath

    def shown(self, found: list[Named] | None) -> list[Named] | None:
        """Entries or matches of the backend with the paths an agent sees."""
        if found is None or self.prefix is None:
            return found
        return [{**each, "path": self.prefix + each["path"]} for each in found]

    def words(self, error: str | None, besides: str = "") -> str | None:
        """An error that quotes the path inside the backend, with the path the agent knows.

        Only whole paths are replaced, with a slash at the end or without one, the root only in quotes, and nothing if
        `besides`, which the error may quote as well, holds the path.
        """
        if error is None or self.prefix is None or self.inner in besides:
            return error
        if self.inner == ROOT:
            return error.replace("'/'", f"'{self.outer}'")
        whole = rf"(?<![\w/.~-]){re.escape(self.inner)}(?![\w~-]|/[\w/.~-]|\.\w)"
        return re.sub(whole, lambda _: self.outer, error)


class Scope(NamedTuple):
    """The files of a search: a backend from a path on, and all routes below `top`, as a rule the same path."""

    own: RoutedPath
    top: AgentPath


class Routing:
    """See the module's docstring. `faces` has one for each prefix of the table, and one for None."""

    def __init__(self, table: PrefixTable, faces: Mapping[AgentPath | None, AgentFace]) -> None:
        self.table = table
        self.faces = faces

    def route(self, path: str, verb: Verb[Any] | None = None) -> RoutedPath:
        """Return the backend of a path.

        Args:
            verb: that is about a file, and not about a directory above routes.

        Raises:
            PathError: no backend may be asked for the path.
            OSError: the verb's, for the prefix of a route, and for a directory above one.
        """
        start = self.faces[None].start
        if start != ROOT and path and not path.startswith(("/", "~")):
            path = f"{start}/{path}"
        outer = paths.normalise(path)
        if verb is not None and outer in self.table.pinned:
            raise errors.oserror(verb.pinned)
        prefix, inner = self.table.route(outer)
        return RoutedPath(prefix, self.faces[prefix], inner, outer)

    def scope(self, path: str | None) -> Scope:
        """Return the files of a search. Without a path that is everything, and the default from where it begins."""
        if path is not None:
            routed = self.route(path)
            return Scope(routed, routed.outer)
        face = self.faces[None]
        return Scope(RoutedPath(None, face, face.start, face.start), ROOT)

    def below(self, directory: AgentPath) -> Iterator[tuple[RoutedPath, tuple[str, ...]]]:
        """The roots of the routes strictly below a directory, each with its segments from there."""
        for prefix in self.table.prefixes_below(directory):
            segments = tuple(segment for segment in prefix[len(directory) :].split("/") if segment)
            yield RoutedPath(prefix, self.faces[prefix], ROOT, prefix), segments


log = logging.getLogger(__name__)


class ReportingFace(AgentFace):
    """The agent face of a backend without a change feed, which reports its changes to a mount of it.

    `ForeignVolume`, the kernel face of such a backend, can't see changes through the other face. A composite speaks to
    its backends through this, so that a mount's caches do not wait for their time to live, and watchers get events. A
    backend with a volume of its own reports by itself, and one that is not mounted needs no report.

    Such a backend does not say whether `upload_files` replaced a file, nor whether a deleted path was a directory. Only
    while a `Watch` is open it is asked before."""

    def change(self, kind: type[Outcome], verb: str, *args: Any, **options: Any) -> Outcome:
        changed: list[AgentPath] = list(args[: 2 if verb == "move" else 1])
        volume, (before,) = self._before(changed[0])
        result = super().change(kind, verb, *args, **options)
        reports: list[Change] = []
        if result.error is None or stumbled(result.error):
            reports = [_made(verb, before, *changed)]
        elif verb == "delete" and before is not None and before.is_dir:  # a tree may be gone in part
            reports = [Change(kind="unknown", path=_shown(changed[0], before))]
        self._report(volume, changed, reports)
        return result

    def upload_files(
        self, files: list[tuple[AgentPath, bytes]], conditions: Sequence[Conditions] = ()
    ) -> list[FileUploadResponse]:
        wanted = [path for path, _ in files]
        volume, before = self._before(*wanted)
        answers = super().upload_files(files, conditions)
        stored = zip(wanted, before, answers, strict=True)
        self._report(volume, wanted, [_stored(path, attr) for path, attr, answer in stored if not answer.error])
        return answers

    def _before(self, *wanted: AgentPath) -> tuple[ForeignVolume | None, list[Attr | None]]:
        """The volume that a mount has of this backend, if any; and the attributes of these paths, if a `Watch` is
        open."""
        volume = foreign_volume(self.backend)
        if volume is None or not volume.watched:
            return volume, [None] * len(wanted)
        return volume, [self._look(volume, path) for path in wanted]

    def _look(self, volume: ForeignVolume, path: AgentPath) -> Attr | None:
        try:
            return self.guarded("stat", lambda: resolve(volume, path, follow=False).attr)
        except OSError:  # the verb fails in the same way
            return None

    def _report(self, volume: ForeignVolume | None, changed: list[AgentPath], reports: list[Change]) -> None:
        if volume is None:
            return
        try:
            self.guarded("tell", lambda: volume.told(*changed, reports=reports))
        except OSError as error:
            log.warning("%s: a mount shows changes late: %s", self.name, error)


def face_of(backend: Any, name: str) -> AgentFace:
    """Return the agent face of a composite's backend."""
    return AgentFace(backend, name) if is_native(backend) else ReportingFace(backend, name)


def _made(verb: str, before: Attr | None, path: AgentPath, target: AgentPath = ROOT) -> Change:
    """The change that a verb has made."""
    if verb == "delete":
        return Change(kind="deleted", path=_shown(path, before))
    if verb == "move":
        return Change(kind="moved", path=_shown(target, before), moved_from=_shown(path, before))
    return Change(kind="modified", path=path) if verb == "edit" else _stored(path, before)


def _stored(path: AgentPath, before: Attr | None) -> Change:
    return Change(kind="created" if before is None else "modified", path=path)


def _shown(path: AgentPath, attr: Attr | None) -> str:
    return path + "/" if attr is not None and attr.is_dir else path
