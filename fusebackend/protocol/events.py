"""`Change`: the record of one change, for caches and watchers. `FileEvent`: what `watch` gives to users, in
an `EventSequence`."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "Change", "Changes", "EventKind", "EventSequence", "EventSource", "FileEvent",
]  # fmt: skip

EventKind: TypeAlias = Literal[
    "created", "modified", "attributes", "deleted", "moved", "exchanged", "unknown", "overflow"
]
"""What happened.

- `created`: the name exists now. A directory comes before the names in it.
- `modified`: the bytes of a file; one that is created through the agent face is `created` with its bytes.
- `attributes`: mode, owner, times or extended attributes. Times that follow from another change cause no event.
- `deleted`: the name is gone, and if it was a directory all that was still below it.
- `moved`: from `moved_from` to `path`, with all below it; a file at `path` is replaced.
- `exchanged`: `path` and `moved_from` have changed places.
- `unknown`: anything at or below `path` may have changed: look at it again.
- `overflow`: the queue of a slow watcher was full, and events were dropped: look again at everything it watches.
"""

EventSource: TypeAlias = Literal["mount", "api", "elsewhere"]
"""Through which face: the mount, an agent's verb, or a change made elsewhere that the backend reports."""


class Change(NamedTuple):
    """One change of a volume: the same record for kernel caches (`Volume.subscribe`) and watchers (`Volume.observe`).

    - Caches read the first three: `node`, if its data or attributes changed; `parent` and `name`, if that directory
      entry did.
    - Watchers read the others. Paths are those of the volume and begin with `/`; that of a directory also ends with it.

    A change with a path alone is for watchers, one without a path for caches. `Change()` means anything may have
    changed.
    """

    node: int | None = None
    parent: int | None = None
    name: bytes | None = None
    kind: EventKind = "unknown"
    path: str = ""
    moved_from: str | None = None
    source: EventSource = "api"

    @property
    def is_for_caches(self) -> bool:
        return not self.path or self.node is not None or self.parent is not None

    def shown(self, shows: Callable[[str], bool]) -> Change | None:
        """Return the change for a watcher that sees some paths alone; None if it sees none of the change's. A move from
        or to a hidden path is a file's beginning or end."""
        stays = shows(self.path)
        came = stays if self.moved_from is None else shows(self.moved_from)
        if stays and came:
            return self
        if self.moved_from is None or not (stays or came):
            return None
        kind: EventKind = "unknown" if self.kind == "exchanged" else "created" if stays else "deleted"
        return self._replace(kind=kind, path=self.path if stays else self.moved_from, moved_from=None)


Changes: TypeAlias = list[Change]
"""The changes of one call, in their order."""


@dataclass(frozen=True, slots=True)
class FileEvent:
    """One change, as `watch` gives it. Paths are those of the mounted tree, as the verbs take them; that of a directory
    ends with `/`.

    Promised:
    - each change that goes through the mount or a verb gives one event (under each prefix, for a volume that is mounted
      under several), after it was made, when both faces show it;
    - the events of a native volume come in the order of the changes;
    - while a watcher has not taken a `modified` or `attributes`, further ones of the same path and source add nothing;
    - the path is the one at that time: a file with several hard links has the name by which it was last reached, and
      one without a name gives no more events.
    """

    kind: EventKind
    path: str
    is_dir: bool
    source: EventSource
    moved_from: str | None = None
    time_ns: int = 0
    """When the event was queued, by this host's clock, since 1970."""


class EventSequence(AbstractContextManager["EventSequence"]):
    """Events as `get` gives them: an iterator, and a block that closes it."""

    @abc.abstractmethod
    def get(self, timeout_s: float | None = None) -> FileEvent | None:
        """The next event. None when there is none within `timeout_s` (None: wait for ever), and when it has ended."""

    @abc.abstractmethod
    def close(self) -> None:
        """End it, from any thread. Twice is once."""

    def __iter__(self) -> Iterator[FileEvent]:
        return self

    def __next__(self) -> FileEvent:
        event = self.get()
        if event is None:
            raise StopIteration
        return event

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
