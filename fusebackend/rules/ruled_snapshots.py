"""`RuledSnapshotVolume`: a volume with snapshots as the rules of its route show it, for every reader.

The snapshots are those of the volume below: a mount without the rules has the same ones, with all that is hidden here.
Each is looked at through the rules that the route has now. An undo and a branch find files by their nodes, also after a
restart of the server, so a file has the number here that it has below, in every state.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence

from fusebackend.protocol import SnapshotVolume, Volume
from fusebackend.rules.ruled_volume import RuledVolume, pass_on
from fusebackend.rules.view import View
from fusebackend.volumes.frozen import FrozenTree, LooksAhead


class RuledSnapshotVolume(RuledVolume, SnapshotVolume):
    """See the module's docstring. Any thread, as the volume below.

    Args:
        below: the volume; it reports changes, too.
        view: what is hidden, by paths inside the volume.
        read_only: its files can't be changed: EROFS. Snapshots are taken and deleted as of any other.
    """

    def __init__(self, below: SnapshotVolume, view: View, *, read_only: bool = False) -> None:
        super().__init__(below, view, read_only=read_only, for_all=True)
        self._kept = below
        self._shown_as: weakref.WeakValueDictionary[str, RuledSnapshot] = weakref.WeakValueDictionary()

    def forget_versions(self, nodes: Collection[int]) -> list[str]:
        self._writable()
        return self._kept.forget_versions(nodes)

    def snapshot(self, name: str) -> Volume:
        frozen = self._kept.snapshot(name)
        if not self.view.rules:
            return frozen
        with self.lock:
            shown = self._shown_as.get(name)
            if shown is None or shown.below is not frozen:
                shown = self._shown_as[name] = RuledSnapshot(frozen, self.view)
            return shown


pass_on(
    RuledSnapshotVolume, "is_changed", "snapshot_bytes", "snapshots", "take_snapshot", "delete_snapshot", "kept_by",
    "keep_log", "committed", "may_go", "before_commit", "on_snapshot",
)  # fmt: skip


class RuledSnapshot(RuledVolume, LooksAhead):
    """A snapshot as the rules of its route show it.

    A branch has the node of a directory from an earlier session, and looks no path up before it uses it. So the path is
    found from the node here.
    """

    def __init__(self, frozen: Volume, view: View) -> None:
        super().__init__(frozen, view, read_only=True, for_all=True)

    def _place(self, node: int) -> tuple[int, bytes] | None:
        return self.below.place_of(node) if isinstance(self.below, FrozenTree) else None

    def ahead(self, nodes: Sequence[int], *, contents: bool = False) -> None:
        if isinstance(self.below, LooksAhead):
            self.below.ahead(nodes, contents=contents)
