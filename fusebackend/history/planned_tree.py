"""`PlannedTree`: the tree of a route with changes in it that are not made. An undo plans against it, and a state before
a call is read from it.

A name is looked up in the volume when it is first asked for. All names of one file of the volume lead to the same
`PlannedFile`, so a change of a file with hard links is one of all of its names.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusebackend.base.errors import VANISHED, unless
from fusebackend.base.paths import AgentPath
from fusebackend.history.records import Stamp, stamp_of
from fusebackend.protocol import ROOT_NODE, Attr, Volume
from fusebackend.volumes.placing import Source, State
from fusebackend.volumes.walk import below, entries


class PlannedFile:
    """A file in a `PlannedTree`; several places have it if it has hard links.

    Args:
        attr: of the file in the volume; None if a step makes it.

    Attributes:
        node: in the volume; 0 if a step has made it.
        nlink: the number of its names in the volume.
        state: what it is when the steps are made; None for what it is in the volume.
        source, why_lost: its bytes then, of a state before a call. Both empty: those in the volume.
        checked: it was compared with what its call has left.
        links: the number of its names when the steps are made.
        names: of a directory: the places that were looked at, or that steps have changed.
        places: where it was found by its identity, or steps have put it, or those of a killed undo, the last one at the
            end. It may have left them.
    """

    __slots__ = ("_found", "checked", "links", "names", "nlink", "node", "places", "source", "state", "why_lost")

    def __init__(self, attr: Attr | None, state: State | None = None) -> None:
        self.node, self.nlink = (0, 0) if attr is None else (attr.node, attr.nlink)
        self._found = None if attr is None else stamp_of(attr)
        self.state = state
        self.source: Source | None = None
        self.why_lost = ""
        self.checked = False
        self.links = self.nlink
        self.names: dict[bytes, PlannedName] = {}
        self.places: tuple[PlannedName, ...] = ()

    @property
    def stamp(self) -> Stamp:
        """What it is when the steps are made."""
        if self.state is not None:
            return stamp_of(self.state)
        assert self._found is not None, "a file that is made has a state"
        return self._found

    @property
    def place(self) -> PlannedName | None:
        """The last place that has it still; None if none has."""
        return next((place for place in reversed(self.places) if place.file is self), None)

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.stamp.mode)

    @property
    def is_regular(self) -> bool:
        return stat.S_ISREG(self.stamp.mode)

    @property
    def expected(self) -> Stamp | None:
        """That of the file in the volume, if no step has changed it."""
        return self.stamp if self.state is None else None


@dataclass(eq=False, slots=True)
class PlannedName:
    """A name in a `PlannedTree`.

    Attributes:
        moved: a step has put another file here, or none.
    """

    above: PlannedName | None
    name: bytes
    file: PlannedFile | None
    moved: bool = False

    @property
    def path(self) -> bytes:
        parts = []
        place: PlannedName = self
        while place.above is not None:
            parts.append(place.name)
            place = place.above
        return b"/" + b"/".join(reversed(parts))

    def put(self, file: PlannedFile | None) -> None:
        """Have another file here, or none."""
        if self.file is not None:
            self.file.links -= 1
        self.file = file
        self.moved = True
        if file is not None:
            file.links += 1
            file.places += (self,)
            for below in file.names.values():
                below.above = self

    @property
    def is_moved(self) -> bool:
        """True if a step has moved the file here, or a directory above it."""
        place: PlannedName | None = self
        while place is not None and not place.moved:
            place = place.above
        return place is not None


class PlannedTree:
    """The tree of a route with the planned steps in it.

    Args:
        returned: as `HistoryFile.returned`.
        earlier: nodes in records up to this number name no file of the volume any more.

    Attributes:
        files: those that were looked at, by node.
    """

    def __init__(
        self, prefix: AgentPath, volume: Volume, returned: Mapping[bytes, bytes] | None = None, earlier: int = 0
    ) -> None:
        self.prefix = prefix
        self.volume = volume
        self.earlier = earlier
        self._returned = returned or {}
        self.files: dict[int, PlannedFile] = {}
        self._paths: dict[bytes, list[bytes]] | None = None  # by identity
        self.root = PlannedName(None, b"", self.file(volume.getattr(ROOT_NODE)))

    def at(self, path: bytes) -> PlannedName | None:
        """Return the place of a path; None if its directory is not there."""
        place: PlannedName | None = self.root
        for name in filter(None, path.split(b"/")):
            known = None if place is None or place.file is None else place.file.names.get(name)
            place = known or self._below(place, name)  # a path may be thousands deep
        return place

    def _below(self, place: PlannedName | None, name: bytes) -> PlannedName | None:
        directory = None if place is None else place.file
        if directory is None or not directory.is_dir:
            return None
        if name not in directory.names:
            directory.names[name] = PlannedName(place, name, self._look(directory, name))
        return directory.names[name]

    def _look(self, directory: PlannedFile, name: bytes) -> PlannedFile | None:
        if not directory.node:
            return None
        attr = unless(VANISHED, self.volume.lookup, directory.node, name)
        return None if attr is None else self.file(attr)

    def now(self, key: bytes) -> bytes:
        """Return what names a file by now that an undo may have brought back."""
        seen = set()
        while key in self._returned and key not in seen:
            seen.add(key)
            key = self._returned[key]
        return key

    def identity(self, node: int) -> bytes | None:
        """Return what names a file of the volume: its identity, or its node where it has none."""
        with contextlib.suppress(OSError):  # it is gone
            return self.volume.lasting(node) or b"%d" % node
        return None

    def by_identity(self, key: bytes) -> PlannedFile | None:
        """Return a file by what `lasting` says of it; None if no name in the volume leads to it."""
        for path in () if key.isdigit() or not key else self._paths_of(key):
            place = self._now_at(path)
            if place is not None and place.file is not None:
                place.file.places += (place,)
                return place.file
        return None

    def _paths_of(self, identity: bytes) -> Sequence[bytes]:
        """Return the paths of a file as the volume is now. The first call reads the whole tree."""
        if self._paths is None:
            self._paths = {}
            for path, attr in below(self.volume, ROOT_NODE):
                found = None if attr.is_dir else self.identity(attr.node)
                if found is not None:
                    self._paths.setdefault(found, []).append(path)
        return self._paths.get(identity, ())

    def _now_at(self, path: bytes) -> PlannedName | None:
        """Return the place to which the planned steps have moved what is at a path of the volume."""
        place: PlannedName | None = self.root
        for name in path.split(b"/")[1:]:
            directory = None if place is None else place.file
            place = self._below(place, name)
            if place is not None and place.moved and directory is not None:
                file = self._look(directory, name)
                place = None if file is None else file.place
        return place

    def file(self, attr: Attr) -> PlannedFile:
        """Return a file of the volume; the same one for each of its names."""
        found = self.files.get(attr.node)
        if found is None:
            found = self.files[attr.node] = PlannedFile(attr)
        return found

    def names(self, directory: PlannedFile) -> Iterator[bytes]:
        """Return the names in a directory."""
        yield from (name for name, below in directory.names.items() if below.file is not None)
        if directory.node:
            listed = entries(self.volume, directory.node)
            yield from (name for name, _ in listed if name not in directory.names)
