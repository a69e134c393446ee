"""`Sight`: what of a volume's changes shows in the mounted tree, and where.

A volume's paths get the prefix of its route. What another route covers is out of sight. A directory on the way to
another route is there whatever the volume has: that it is made there is nothing new, and when it goes or comes as a
whole, what it holds has to be looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import Report
from fusebackend.vfs.junctions import MountTree, Route


class Sight:
    """See the module's docstring."""

    def __init__(self, tree: MountTree) -> None:
        self._table = tree.table

    def of(self, route: Route, report: Report) -> list[Report]:
        """A volume's report in paths of the mounted tree; none for what does not show, sometimes more than one."""
        path = _outer(route, report.path)
        before = None if report.moved_from is None else _outer(route, report.moved_from)
        shown = report._replace(path=path, moved_from=before)
        return list(self._split(route, shown)) if self._table.names_below(route.prefix) else [shown]

    def _split(self, route: Route, report: Report) -> Iterator[Report]:
        place = self._place(route, report.path)
        if report.moved_from is None:
            if place == "way" and report.kind == "deleted":
                yield report._replace(kind="unknown")
            elif place == "open" or (place == "way" and report.kind != "created"):
                yield report
            return
        before = self._place(route, report.moved_from)
        if place == before == "open":
            yield report
            return
        for path, where, kind in ((report.moved_from, before, "deleted"), (report.path, place, "created")):
            if where == "way" or (where == "open" and report.kind == "exchanged"):
                yield Report("unknown", path, source=report.source)
            elif where == "open":
                yield Report("deleted" if kind == "deleted" else "created", path, source=report.source)

    def _place(self, route: Route, path: str) -> Literal["open", "covered", "way"]:
        bare = AgentPath(path.rstrip("/") or ROOT)
        if (self._table.route(bare)[0] or ROOT) != route.prefix:
            return "covered"
        return "way" if bare != ROOT and self._table.names_below(bare) else "open"


def _outer(route: Route, inner: str) -> str:
    return inner if route.prefix == ROOT else route.prefix + inner
