"""`MergeRecords`: records what a merge changes, so that it can be undone as any other call.

A file in the place of another one is two records, of its removal and of the new one: a merge puts new files in place.
A failure to record is logged, and the merge goes on (`Recorder.failed`).
"""

from __future__ import annotations

from typing import Any

from fusebackend.base.paths import AgentPath
from fusebackend.history.calls import OpenCall
from fusebackend.history.recorder import Recorder
from fusebackend.history.records import RecordKind
from fusebackend.protocol import Attr, Volume


class MergeRecords:
    """See the module's docstring. Call it with the volume's lock held. Paths are those inside the route.

    Args:
        recorder, call: of the merge; None for a mount without a history.
    """

    def __init__(self, recorder: Recorder | None = None, call: OpenCall | None = None) -> None:
        self._recorder = recorder
        self._call = call
        self._made: list[int] = []

    @property
    def call(self) -> str | None:
        """The name of the call, if it has changed something."""
        return f"c{self._call.number}" if self._call is not None and self._call.number else None

    def add(
        self,
        kind: RecordKind,
        prefix: AgentPath,
        volume: Volume,
        path: bytes,
        node: int,
        before: Attr | None = None,
        **fields: Any,
    ) -> None:
        """Record a change, as `Recorder.add_step`: after a name was made or renamed, before anything else."""
        recorder, call = self._recorder, self._call
        if recorder is None or call is None:
            return
        with recorder.recording("a change of a merge was not recorded", call):
            number, _ = recorder.add_step(call, prefix, kind, volume, path, node, before, **fields)
            self._made.append(number)

    def flush(self) -> None:
        """Write what was recorded: a kill does not take it any more."""
        if self._recorder is not None:
            self._recorder.history.flush()

    def mark(self) -> int:
        """Return a place among the records, for `drop`."""
        return len(self._made)

    def drop(self, mark: int) -> None:
        """Forget the records since a place: their changes were taken back."""
        if self._recorder is not None:
            self._recorder.history.drop(self._made[mark:])
        del self._made[mark:]
