"""The tree of threads: `Root`, and a directory for each thread and each namespace of sub-graphs.

The package's docstring has the layout. Names are escaped as in `remote/keyed.py`.

Directories are filled when they are first read. `Tree.poll` detects writes of others; the changes that follow in the
cached parts of the tree are worked out when these are read again, or by `Tree.refresh`, and gather in `Tree.found`
until the volume publishes them. The volume's lock is held in all of this.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import time
import weakref
from collections.abc import Mapping
from typing import Final

from fusebackend.backends.threads.computed import ComputedDirectory, Item, Link, Names
from fusebackend.backends.threads.conversation import slug, title
from fusebackend.backends.threads.database.rows import Damaged, Database, Place, time_ns_of
from fusebackend.backends.threads.index import IndexCache
from fusebackend.backends.threads.line import RECENT_CONVERSATION_BYTES, SUBGRAPHS, Conversations, Line, Shared
from fusebackend.backends.threads.lineage import Lineage
from fusebackend.backends.threads.nodes import DirectoryNode, Node, Nodes, Records, TreeDifference
from fusebackend.base.recent import Recent
from fusebackend.base.waiting import will_wait
from fusebackend.protocol import Change
from fusebackend.remote.keyed import FILE_MARK, name_of, text_of

RECENT_LINES: Final = 64
"""Lines that are cached though the kernel holds none of their nodes. Where the database can't tell which lines have
changed, these are refreshed in the background."""

FEW_LINES: Final = 4
"""Those that stay when the kernel has dropped most of its inodes."""

FIRST_CHECKPOINTS: Final = 4
"""Checkpoints in which the first message of a human is looked for, for a name in `@by-time`."""

WATCHING_SHARE: Final = 1 / 20
"""Of the time, at most, that goes into listing threads in the background."""


class Tree:
    """See the module's docstring."""

    def __init__(self, database: Database, *, cache: bool = True, blobs: bytes | None = None) -> None:
        self.database = database
        self.nodes = Nodes()
        self.records = Records(self.nodes)
        self.found = TreeDifference()
        self.used_at = 0.0  # by a call of the volume; in the seconds of `time.monotonic`
        index_cache = IndexCache(database.identity) if cache and database.identity is not None else None
        self._conversations = Conversations(RECENT_CONVERSATION_BYTES)
        self._shared = Shared(
            self.nodes, self.found, index_cache, self._conversations, blobs, functools.partial(LineDirectory, self)
        )
        self.lines: weakref.WeakValueDictionary[Place, Line] = weakref.WeakValueDictionary()
        self._recent: Recent[Place, Line] = Recent(RECENT_LINES, Line.let_go)
        self.root = Root(self)

    def line(self, directory: LineDirectory) -> Line:
        """The line of a directory, up to date."""
        place = directory.place
        line = self.lines.get(place)
        if line is None:
            line = Line(self._shared, directory, Lineage(self.database, place, self.records))
            self.lines[place] = line
        self._recent[place] = line
        line.fresh()
        return line

    def poll(self, *, now: bool = False) -> None:
        """Query the database for news (with `now` in any case), and mark the stale parts of the tree."""
        news = self.database.news(now=now)
        if news is None:
            return
        if news.everything:
            self.expire()
            return
        for place in news.places:
            shown = self.lines.get(place)
            if shown is not None:
                shown.stale = True
            self.root.written(place, is_shown=shown is not None)

    def expire(self) -> None:
        """Anything may have changed."""
        self.root.all_written()
        for line in list(self.lines.values()):
            line.stale = True

    def refresh(self) -> list[Change]:
        """Update the cached parts of the tree. Returns the changes that were found since the last call."""
        self.poll(now=True)
        self.root.watch()
        self.root.by_time.refresh(self.found, everything=False)
        lines = list(self.lines.values()) if self.database.tells else list(self._recent.values())
        for line in lines:
            line.fresh()
        changes = list(self.found)
        self.found.clear()
        return changes

    def let_go(self) -> None:
        """Drop most of the lines that the kernel does not hold, and all values."""
        self._conversations.clear()
        while len(self._recent) > FEW_LINES:
            self._recent.popitem(last=False)[1].let_go()
        for line in self._recent.values():
            line.let_go()

    @property
    def has_large_values(self) -> bool:
        """Whether a conversation is cached that is too large to be kept for long."""
        return self._conversations.bytes > self._conversations.bound

    def shrink(self) -> None:
        """Give back the memory of tables that were once much larger."""
        self.nodes.shrink()
        self.records.shrink()
        self.lines = weakref.WeakValueDictionary(self.lines)

    def first_words(self, thread: str) -> tuple[int, str] | None:
        """When a thread was created, and its title, or nothing; None for a thread whose own line has no checkpoint."""
        place = Place(thread, "")
        known = self.lines.get(place)
        lineage = known.lineage if known is not None else Lineage(self.database, place, self.records)
        order = sorted(lineage.marks())
        if not order:
            return None
        for moment in lineage.moments(order[:FIRST_CHECKPOINTS], whole=False):
            with contextlib.suppress(Damaged):
                found = title(lineage.conversation_at(moment.id).values())
                if found:
                    break
        else:
            found = ""
        return time_ns_of(order[0]) or 0, found


class LineDirectory(DirectoryNode):
    """A directory that shows a line of checkpoints: that of a thread, or of a namespace."""

    __slots__ = ("_tree", "place")

    def __init__(self, tree: Tree, parent: DirectoryNode, name: bytes, place: Place, mtime_ns: int = 0) -> None:
        super().__init__(tree.nodes, parent, name, mtime_ns)
        self._tree = tree
        self.place = place

    @property
    def is_thread(self) -> bool:
        return not self.place.namespace

    def entries(self) -> Mapping[bytes, Node]:
        return self._tree.line(self).entries() if self.nlink else {}

    def find(self, name: bytes) -> Node | None:
        return self._tree.line(self).find(name) if self.nlink else None

    def written(self) -> None:
        """Something was written to one of the thread's namespaces."""
        line = self._tree.lines.get(self.place)
        if line is not None:
            line.stale = True
        else:
            self._tree.found.forgotten(self, SUBGRAPHS)

    def xattrs(self) -> dict[bytes, bytes]:
        kind, id_ = (b"thread", self.place.thread) if self.is_thread else (b"namespace", self.place.namespace)
        return {b"user.fusebackend." + kind: id_.encode("utf-8", "surrogateescape")}


LATEST: Final = b"@latest"
BY_TIME: Final = b"@by-time"


class Root(DirectoryNode):
    """A directory for each thread. A listing queries them all; a look-up queries one.

    Found and not listed are `@latest`, a link to the thread that was written to last, and the directory `@by-time`.
    """

    __slots__ = ("_entries", "_is_listed", "_list_s", "_listed_at", "_titles", "_tree", "by_time", "stale")

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.nodes, None, b"")
        self._tree = tree
        self._entries: dict[bytes, LineDirectory] = {}
        self._is_listed = False
        self._listed_at, self._list_s = 0.0, 0.0
        self.stale = False
        """The database has news that may be of any thread."""
        self._titles: dict[str, tuple[int, str]] = {}
        self.by_time = ComputedDirectory(tree.nodes, self, BY_TIME, self._update, self._named, self._link)

    def entries(self) -> Mapping[bytes, Node]:
        self._update()
        return self._entries

    def _update(self) -> None:
        """List the threads, unless the list is current."""
        if not self._is_listed or self.stale:
            self._list()

    def find(self, name: bytes) -> Node | None:
        if name == BY_TIME:
            self.by_time.date(self.mtime_ns)
            return self.by_time
        if name == LATEST:
            latest = max(self.entries().values(), key=lambda node: (node.mtime_ns, node.node), default=None)
            assert latest is None or isinstance(latest, LineDirectory)
            return None if latest is None else Link(self._tree.nodes, latest.name, latest.mtime_ns)
        if self._is_listed:
            return self.entries().get(name)
        try:
            thread = _thread_of(name)
        except ValueError:
            return self.entries().get(name)  # a name that was cut, or none at all
        known = self._entries.get(name)
        if known is not None and not self.stale:
            return known
        if self._tree.database.has_thread(thread):
            return known or self._add(name, thread, self._tree.database.newest(Place(thread, "")))
        if known is not None:
            self._remove(name)
        return None

    def written(self, place: Place, *, is_shown: bool) -> None:
        """Something was added to a line. Only a cached line can tell watchers more than that."""
        name = _name_of(place.thread)
        node = self._entries.get(name)
        newest = None if place.namespace else self._tree.database.newest(place)
        if node is None:
            if self._is_listed:
                self._tree.found.of_name("created", self, name, self._add(name, place.thread, newest))
            return
        if not is_shown:
            self._tree.found.unknown(node)
        node.written()
        if newest is not None:
            node.date(time_ns_of(newest) or 0)
            self.date(max(self.mtime_ns, node.mtime_ns))
            self._tree.found.attributes(node)
            self._tree.found.attributes(self)

    def all_written(self) -> None:
        """Any thread may have changed."""
        self.stale = True
        for node in self._entries.values():
            node.written()

    def watch(self) -> None:
        """Refresh the list of threads, as often as `WATCHING_SHARE` allows."""
        if not self._is_listed or self.stale:
            now = time.monotonic()
            if now - self._listed_at >= self._list_s / WATCHING_SHARE:
                self._list()

    def _list(self) -> None:
        """List the threads, and tell what came and went. At the first listing nothing is cached that came."""
        start = time.monotonic()
        newest = {_name_of(thread): (thread, checkpoint) for thread, checkpoint in self._tree.database.threads()}
        for name in [name for name in self._entries if name not in newest]:
            self._remove(name)
        for name, (thread, checkpoint) in newest.items():
            if name not in self._entries:
                node = self._add(name, thread, checkpoint)
                if self._is_listed:
                    self._tree.found.of_name("created", self, name, node)
        self.date(max((node.mtime_ns for node in self._entries.values()), default=0))
        self._is_listed, self.stale = True, False
        self._listed_at = time.monotonic()
        self._list_s = self._listed_at - start

    def _named(self) -> Names:
        """The links of `@by-time`: when a thread was created, and what a human said first, each with the thread."""
        will_wait()
        found: list[tuple[int, bytes, str, int]] = []
        for name, node in self._entries.items():
            thread = node.place.thread
            words = self._titles.get(thread)
            if words is None:
                words = self._tree.first_words(thread)
                if words is None:
                    continue
                if words[1]:
                    self._titles[thread] = words
            found.append((words[0], name, words[1], node.mtime_ns))
        names: dict[bytes, Item] = {}
        for created_ns, name, first_line, mtime_ns in sorted(found):
            when = datetime.datetime.fromtimestamp(created_ns // 10**9, datetime.UTC)
            stem = f"{when:%Y-%m-%dT%H%M}-{slug(first_line)}"
            link, number = stem, 1
            while link.encode() in names:
                number += 1
                link = f"{stem}-{number}"
            names[link.encode()] = (name, mtime_ns)
        return names

    def _link(self, _name: bytes, item: Item) -> Node:
        thread, mtime_ns = item
        return Link(self._tree.nodes, b"../" + thread, mtime_ns)

    def _add(self, name: bytes, thread: str, checkpoint: str | None) -> LineDirectory:
        time_ns = (time_ns_of(checkpoint) if checkpoint is not None else None) or 0
        node = self._entries[name] = LineDirectory(self._tree, self, name, Place(thread, ""), time_ns)
        return node

    def _remove(self, name: bytes) -> None:
        node = self._entries.pop(name)
        node.nlink = 0
        self._tree.found.of_name("deleted", self, name, node)


def _name_of(thread: str) -> bytes:
    """The name of a thread's directory. A thread with the name of a link gets a mark at its end."""
    name = name_of(thread)
    return name + FILE_MARK if name in (LATEST, BY_TIME) else name


def _thread_of(name: bytes) -> str:
    """ValueError as `text_of`."""
    plain = name.removesuffix(FILE_MARK)
    return text_of(plain if plain in (LATEST, BY_TIME) else name)
