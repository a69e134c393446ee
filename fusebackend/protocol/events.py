"""What watching tells: `FileEvent`; and `Report`, what a volume says of a change so that it can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "EventKind", "EventSource", "FileEvent", "Report",
]  # fmt: skip

EventKind: TypeAlias = Literal[
    "created", "modified", "attributes", "deleted", "moved", "exchanged", "unknown", "overflow"
]
"""What happened.

- `created`: the name is there now. A directory comes before what is in it.
- `modified`: the bytes of a file; one that is created through the agent face is `created` with its bytes.
- `attributes`: mode, owner, times or extended attributes. Times that follow from something else are not told.
- `deleted`: the name is gone, and if it was a directory all that was still below it.
- `moved`: from `moved_from` to `path`, with all below it; what was at `path` is replaced.
- `exchanged`: what was at `path` is at `moved_from` now, and the other way round.
- `unknown`: anything at or below `path` may have changed: look at it again.
- `overflow`: more happened than was kept for a watcher that is too slow: look again at all that it watches.
"""

EventSource: TypeAlias = Literal["mount", "api", "elsewhere"]
"""Through which face: the mount, an agent's verb, or a backend that has told of a change made somewhere else."""


@dataclass(frozen=True, slots=True)
class FileEvent:
    """One change. Paths are those of the mounted tree, as the verbs take them; that of a directory ends with `/`.

    Promised:
    - each change that goes through the mount or a verb is told once (under each prefix, for a volume that is mounted
      under several), after it was made, when both faces show it;
    - the events of a native volume come in the order in which the changes were made, whoever made them;
    - while a `modified` or `attributes` has not been taken by a watcher, further ones of the same path and source add
      nothing;
    - the path is the one at that time: a file with several hard links has the name by which it was last reached, and
      one without a name is not told of any more.
    """

    kind: EventKind
    path: str
    is_dir: bool
    source: EventSource
    moved_from: str | None = None
    time_ns: int = 0
    """When it was told, by this host's clock, since 1970."""


class Report(NamedTuple):
    """One change of a volume, by path: those of the volume, which start with `/`; that of a directory ends with one.

    `node` is what has moved, where that is known.
    """

    kind: EventKind
    path: str
    moved_from: str | None = None
    node: int | None = None
    source: EventSource = "api"
