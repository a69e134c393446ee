"""`Recorded`: volumes whose changes are recorded in calls, as those of the kernel are, without a mount."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from backend_kinds import opened_backend
from whole_tree import Kept, whole_tree

from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.history.calls import OpenCall
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.images import Images
from fusebackend.history.recorder import HistoryListener, Recorder
from fusebackend.history.records import Record
from fusebackend.history.undo import Undo
from fusebackend.protocol import ROOT_NODE, Actor, Attr, AttrChanges, Caller, Volume
from fusebackend.trees.automatic import is_automatic, name_at
from fusebackend.vfs.door import Door
from fusebackend.volumes.contents import data_pieces, opened
from fusebackend.volumes.walk import entries

T = TypeVar("T")

ME = Caller(os.geteuid(), os.getegid())


class Names:
    """Stands for `NodePaths`, as far as it can know: the names by which the kernel has found each node."""

    moves = 0

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._found: dict[int, list[tuple[int, bytes]]] = {}

    def note(self, node: int, parent: int, name: bytes) -> None:
        there = self._found.setdefault(node, [])
        if (parent, name) in there:
            there.remove((parent, name))
        there.append((parent, name))

    def path(self, route: object, node: int, name: bytes = b"") -> bytes | None:
        if node == ROOT_NODE:
            return b"/" + name
        if node not in self._found:
            return None
        above = self.path(route, *self._found[node][-1])
        return above + b"/" + name if above and name else above

    def of(self, route: object, node: int) -> bytes | None:
        there = self._found.get(node, [])
        while there and not self._leads(*there[-1], node):
            if len(there) == 1:
                return None
            there.pop()
        return self.path(route, node)

    def _leads(self, parent: int, name: bytes, node: int) -> bool:
        try:
            return self._volume.lookup(parent, name).node == node
        except OSError:
            return False

    def forget(self) -> list[int]:
        gone, self._found = list(self._found), {}
        return gone


class Files:
    """The files of a route, changed as the kernel would: through the recorder's door. Paths are bytes or text."""

    def __init__(self, volume: Volume, door: Door, names: Names) -> None:
        self.volume = volume
        self.door = door
        self._names = names

    def make(self, *steps: tuple[Any, ...]) -> None:
        """Make changes: each is the name of a method, its arguments, and perhaps a dictionary of those with names."""
        for name, *words in steps:
            options = words.pop() if words and isinstance(words[-1], dict) else {}
            getattr(self, name)(*words, **options)

    def at(self, path: str) -> tuple[int, bytes]:
        *above, name = os.fsencode(path).strip(b"/").split(b"/")
        parent = ROOT_NODE
        for each in above:
            parent = self._found(parent, each, self.volume.lookup(parent, each)).node
        return parent, name

    def attr(self, path: str) -> Attr:
        if path == "/":
            return self.volume.getattr(ROOT_NODE)
        parent, name = self.at(path)
        return self._found(parent, name, self.volume.lookup(parent, name))

    def _found(self, parent: int, name: bytes, attr: Attr) -> Attr:
        """The kernel knows it from now on."""
        self.volume.hold(attr.node)
        self._names.note(attr.node, parent, name)
        return attr

    def made(self, make: Callable[..., Attr], path: str, *words: Any) -> int:
        """Have a method of the door make something; returns its node."""
        parent, name = self.at(path)
        return self._found(parent, name, make(parent, name, *words)).node

    def exists(self, path: str) -> bool:
        try:
            self.attr(path)
        except FileNotFoundError:
            return False
        return True

    def read(self, path: str) -> bytes:
        data = bytearray()
        for offset, piece in data_pieces(self.volume, self.attr(path).node):
            data += bytes(offset - len(data)) + piece
        return bytes(data)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Create a file, or replace its bytes: open(2) with O_TRUNC."""
        if not self.exists(path):
            self.create(path, data, mode)
            return
        with opened(self.volume, self.attr(path).node, os.O_WRONLY) as node:
            self.door.setattr(node, AttrChanges(size=0))
            self._write(node, 0, data)

    def create(self, path: str, data: bytes, mode: int = 0o644) -> None:
        node = self.made(self.door.create, path, mode, os.O_WRONLY, ME)
        self._write(node, 0, data)
        self.volume.release(node, os.O_WRONLY)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[int]:
        """Open a regular file; what is written to a FIFO never gets here."""
        attr = self.attr(path)
        if not stat.S_ISREG(attr.mode):
            raise OSError(errno.EINVAL, "no regular file")
        with opened(self.volume, attr.node, os.O_WRONLY) as node:
            yield node

    def append(self, path: str, data: bytes) -> None:
        with opened(self.volume, self.attr(path).node, os.O_WRONLY) as node:
            self.door.append(node, data)
            self._stored(node)

    def _write(self, node: int, offset: int, data: bytes) -> None:
        if data:
            self.door.write(node, offset, data)
        self._stored(node)

    def _stored(self, node: int) -> None:
        if not self.volume.features.random_writes:
            self.door.flush(node)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        self.made(self.door.mkdir, path, mode, ME)

    def symlink(self, target: str, path: str) -> None:
        self.made(self.door.symlink, path, os.fsencode(target), ME)

    def fifo(self, path: str) -> None:
        self.made(self.door.mknod, path, stat.S_IFIFO | 0o600, 0, ME)

    def link(self, old: str, new: str) -> None:
        node, (parent, name) = self.attr(old).node, self.at(new)
        self.door.link(node, parent, name)
        self._names.note(node, parent, name)

    def remove(self, path: str) -> None:
        remove = self.door.rmdir if self.attr(path).is_dir else self.door.unlink
        remove(*self.at(path))

    def remove_tree(self, path: str) -> None:
        """As `rm -rf`: the names in a directory before itself."""
        attr = self.attr(path)
        if attr.is_dir:
            for name, _ in list(entries(self.volume, attr.node)):
                self.remove_tree(f"{path.rstrip('/')}/{os.fsdecode(name)}")
        self.remove(path)

    def rename(self, old: str, new: str, flags: int = 0) -> None:
        nodes = [(self.attr(old).node, new)]
        with contextlib.suppress(FileNotFoundError):
            nodes.append((self.attr(new).node, old))
        self.door.rename(*self.at(old), *self.at(new), flags)
        for node, path in nodes if flags else nodes[:1]:
            self._names.note(node, *self.at(path))

    def change(self, path: str, **changes: Any) -> None:
        self.door.setattr(self.attr(path).node, AttrChanges(**changes))

    def xattr(self, path: str, name: bytes, value: bytes) -> None:
        self.door.setxattr(self.attr(path).node, name, value)

    def dump(self) -> dict[str, Kept]:
        """Return everything, but for access times and times of directories."""
        return {os.fsdecode(path): kept for path, kept in whole_tree(self.volume).items()}


class Agent:
    """A call that goes on beside others, until `end`."""

    def __init__(self, recorded: Recorded, title: str, agent: str) -> None:
        self._context = contextvars.copy_context()
        self._stack = contextlib.ExitStack()
        inside = recorded.recorder.calls.inside("command", title, Actor(agent=agent))
        self._call = self.do(lambda: self._stack.enter_context(inside))

    def do(self, work: Callable[[], T]) -> T:
        return self._context.run(work)

    def end(self) -> int:
        """Return the number of the call; 0 if it has changed nothing."""
        self._context.run(self._stack.close)
        return self._call.number


class Recorded:
    """A history, its recorder, and `Files` for each route. `files` are those of the first one."""

    def __init__(self, directory: Path, volumes: Mapping[str, Volume]) -> None:
        self.directory = directory / "history"
        self._numbers = itertools.count(1)
        self.volumes: dict[AgentPath, Volume]
        self.names: dict[AgentPath, Names]
        self.routes: dict[AgentPath, Files] = {}
        self.open(volumes)

    def open(self, volumes: Mapping[str, Volume] | None = None) -> None:
        """Begin, or begin again with another server's objects, over the same volumes or others, which the kernel does
        not know yet."""
        if volumes is not None:
            self.volumes, self.names = {AgentPath(prefix): volume for prefix, volume in volumes.items()}, {}
        self.history = HistoryFile(str(self.directory / "history.db"))
        self.images = Images(str(self.directory), self.name, is_automatic)
        executor = SimpleNamespace(run=lambda name, work: work())
        routes: list[Any] = [
            SimpleNamespace(prefix=prefix, volume=volume, executor=executor) for prefix, volume in self.volumes.items()
        ]
        self.recorder = Recorder(self.history, self.images, routes)
        for route in routes:
            names: Any = self.names.setdefault(route.prefix, Names(route.volume))
            listener = HistoryListener(self.recorder, route)
            self.routes[route.prefix] = Files(route.volume, Door(route, names, [listener]), names)
        self.undoing = Undo(self.recorder)

    def name(self) -> str:
        """Return the name of the next automatic snapshot."""
        return name_at(next(self._numbers) * 10**6)

    @property
    def files(self) -> Files:
        return self.routes[next(iter(self.routes))]

    @contextlib.contextmanager
    def call(self, title: str = "a call", agent: str = "") -> Iterator[OpenCall]:
        with self.recorder.calls.inside("command", title, Actor(agent=agent)) as call:
            yield call

    @contextlib.contextmanager
    def by(self, who: str) -> Iterator[None]:
        """A part of a call that goes on until it is ended, as that of a tool."""
        with self.recorder.calls.inside("verb", who, Actor(agent=who, call=who)):
            yield

    def records(self) -> list[Record]:
        return [record for call in self.history.calls() for record in self.history.records(call.number)]

    def last(self) -> int:
        """Return the number of the newest call that has changed something."""
        return self.history.calls(1)[0].number

    def close(self) -> None:
        self.recorder.calls.close()
        self.history.close()


@contextlib.contextmanager
def recorded_of(kind: str, directory: Path, prefix: str = ROOT) -> Iterator[Recorded]:
    """Record the changes of a new backend of a kind, for the length of a block."""
    with (
        opened_backend(kind, directory) as backend,
        contextlib.closing(Recorded(directory, {prefix: backend.volume})) as recorded,
    ):
        yield recorded
