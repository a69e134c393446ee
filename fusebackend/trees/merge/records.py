"""`MergeRecords`: records what a merge changes, so that it can be undone as any other call.

A file in the place of another one is two records, of its removal and of the new one: a merge puts new files in place.
A failure to record is logged, and the merge goes on (`Recorder.failed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fusebackend.base.paths import AgentPath
from fusebackend.history.calls import OpenCall
from fusebackend.history.recorder import ATTRIBUTES, CONTENT, MADE, Kept, Recorder
from fusebackend.history.records import RecordKind
from fusebackend.protocol import Attr, Volume
from fusebackend.volumes.placing import state_of


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

    def removed(self, prefix: AgentPath, volume: Volume, path: bytes, attr: Attr, gone: int = 0) -> None:
        """Before a name is removed, or leads to another file.

        Args:
            gone: how many of the file's names are only set aside, and removed when all is done.
        """

        def record(recorder: Recorder, call: OpenCall) -> None:
            kept = recorder.keep(call, volume, attr)
            self._made.append(recorder.add(call, prefix, "remove", path, kept.less(gone), linked=kept.is_linked))

        self._record(record)

    def created(self, prefix: AgentPath, volume: Volume, path: bytes, node: int, *, linked: bool = False) -> None:
        """After a name was made."""

        def record(recorder: Recorder, call: OpenCall) -> None:
            recorder.of(volume).own(call, node, MADE)
            self._made.append(recorder.add(call, prefix, "create", path, node=node, linked=linked))

        self._record(record)

    def renamed(self, prefix: AgentPath, path: bytes, to_path: bytes, node: int) -> None:
        """Of a name that is renamed."""

        def record(recorder: Recorder, call: OpenCall) -> None:
            self._made.append(recorder.add(call, prefix, "rename", path, to_path=to_path, node=node))

        self._record(record)

    def changes(self, prefix: AgentPath, volume: Volume, path: bytes, attr: Attr, *, content: bool) -> None:
        """Before the bytes or the attributes of a file are changed in place."""

        def record(recorder: Recorder, call: OpenCall) -> None:
            if content:
                kept, how, kind = recorder.keep(call, volume, attr), CONTENT, "content"
            else:
                identity = recorder.identity(volume, attr)
                kept, how, kind = Kept(attr.node, state_of(volume, attr), None, 0, identity), ATTRIBUTES, "attributes"
            recorder.of(volume).own(call, kept.node, how)
            self._made.append(recorder.add(call, prefix, cast(RecordKind, kind), path, kept))

        self._record(record)

    def mark(self) -> int:
        """Return a place among the records, for `drop`."""
        return len(self._made)

    def drop(self, mark: int) -> None:
        """Forget the records since a place: their changes were taken back."""
        self._record(lambda recorder, call: recorder.history.drop(self._made[mark:]))
        del self._made[mark:]

    def _record(self, work: Callable[[Recorder, OpenCall], None]) -> None:
        if self._recorder is None or self._call is None:
            return
        try:
            work(self._recorder, self._call)
        except Exception as error:
            self._recorder.failed(error, "a change of a merge was not recorded", self._call)
