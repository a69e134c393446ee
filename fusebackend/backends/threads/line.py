"""`Line`: the contents of one line's directory.

    README.md  transcript.md  checkpoints.tsv  space.tsv      pages (`readme` …); the last is of a whole thread
    messages.jsonl  state.json                     the current conversation and state (`documents.py`)
    messages/0012-ai.md …                          each message (`conversation.py`)
    changes/NAME.patch …                           a git patch for each checkpoint that changed files (`index.py`)
    head/…                                         the files now
    history/NAME/…                                 the files at a checkpoint; beside it NAME.state.json and
                                                   NAME.messages.jsonl
    subgraphs/…                                    of a thread: a directory for each of its other namespaces
    blobs                                          a link to where deepagents keeps media
    history/@latest  @previous  @first             links to checkpoints and, with the same endings, to their
                                                   documents: found when named, and not listed

A line is made when its directory is read. It is *stale* when the database has news of it, and refreshed before anything
of it is shown again. Names and sizes come from its `LineIndex`.

A `FilesDirectory` has the files as of now, or those at a checkpoint. It is filled from a dict of records when it is
read. The files of a checkpoint are the records themselves; those of a head are nodes by path, whose contents change. A
node that nobody holds comes back with another number, but for a record.
"""

from __future__ import annotations

import errno
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, Union

from fusebackend.backends.threads import documents
from fusebackend.backends.threads.computed import (
    ComputedDirectory,
    Document,
    Fixed,
    Item,
    Link,
    Names,
)
from fusebackend.backends.threads.conversation import BLOBS, escaped_inline, files_of, one_line
from fusebackend.backends.threads.database.rows import Damaged, Place, iso_ms, time_ns_of
from fusebackend.backends.threads.database.values import encoded
from fusebackend.backends.threads.index import (
    UNREADABLE,
    IndexCache,
    LineIndex,
    MessageIndex,
    Said,
    Step,
    section_bytes,
)
from fusebackend.backends.threads.lineage import Lineage
from fusebackend.backends.threads.nodes import (
    ChangingFile,
    DirectoryNode,
    Node,
    Nodes,
    Record,
    TreeDifference,
)
from fusebackend.backends.threads.prune import weighed
from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.recent import Recent, RecentBytes
from fusebackend.base.stamps import now_ns
from fusebackend.base.waiting import will_wait
from fusebackend.remote.keyed import ListedTree, name_of

HEAD: Final = b"head"
HISTORY: Final = b"history"
MESSAGES: Final = b"messages"
CHANGES: Final = b"changes"
MESSAGES_JSONL: Final = b"messages.jsonl"
STATE: Final = b"state.json"
README: Final = b"README.md"
TRANSCRIPT: Final = b"transcript.md"
CHECKPOINTS: Final = b"checkpoints.tsv"
SPACE: Final = b"space.tsv"
SUBGRAPHS: Final = b"subgraphs"

REPEATING: Final = frozenset({HISTORY, MESSAGES, CHANGES, README, TRANSCRIPT, CHECKPOINTS, SPACE})
"""Names of what says the same as other files."""

RECENT_CHECKPOINTS: Final = 64
"""Checkpoints of a line whose folders are cached though the kernel holds none of them."""

QUICK_BYTES: Final = 64 << 10
"""Decoding a longer conversation takes over a millisecond, which other routes would wait for."""

RECENT_CONVERSATION_BYTES: Final = 16 << 20
"""Decoded conversations that are cached for all lines together. A larger one is cached alone, and only for a while."""

SMALL_CONVERSATION_BYTES: Final = 1 << 20
"""What a smaller one counts as, so that sixteen are cached at most."""

_versions = itertools.count()

Conversations = RecentBytes[tuple[int, str], list[Mapping[str, Any]]]
"""The messages at checkpoints, by the version of their line and the id."""


class Shared(NamedTuple):
    """What the lines of one database have in common."""

    nodes: Nodes
    found: TreeDifference
    cache: IndexCache | None
    conversations: Conversations
    blobs: bytes | None
    """The target of a thread's link `blobs`."""
    directory: Callable[[DirectoryNode, bytes, Place], Node]
    """Makes the directory of a sub-graph's line."""


class Line:
    """See the module's docstring. The changes that a refresh finds go into `shared.found`."""

    def __init__(self, shared: Shared, directory: DirectoryNode, lineage: Lineage) -> None:
        self.lineage = lineage
        self.stale = False
        self.version = next(_versions)
        """Another one after each refresh that has found something; no two lines have the same."""
        self.nodes = shared.nodes
        self.shared = shared
        self._index: LineIndex | None = None
        self._indexed = (-1, False)  # the version that it has seen, and whether with its steps
        self._space = (-1, Space(b"", 0))  # a version, and what was weighed then
        self.recent: Recent[int, FilesDirectory] = Recent(RECENT_CHECKPOINTS, FilesDirectory.let_go)
        """The checkpoints whose files were looked at, by the nodes of their directories."""
        self.directory = directory
        self.head = FilesDirectory(self, directory, HEAD, 0)
        self.history = History(self, directory)
        self._computed = (
            self._of_files(MESSAGES, self._message_names, self._message_bytes),
            self._of_files(CHANGES, self._change_names, self._patch_bytes),
            self.history,
        )
        self._subgraphs = None if lineage.place.namespace else Subgraphs(self, directory)
        self._documents = self._all_documents()
        computed = {directory.name: directory for directory in self._computed}
        self._entries: dict[bytes, Node] = {HEAD: self.head, **computed, **self._documents}
        self._date()
        if shared.blobs is not None:
            name = BLOBS.encode()
            target = b"../../" + name if lineage.place.namespace else shared.blobs
            self._entries[name] = Link(shared.nodes, target, self.time_ns)

    def entries(self) -> Mapping[bytes, Node]:
        subgraphs = self.find(SUBGRAPHS)
        return self._entries if subgraphs is None else {**self._entries, SUBGRAPHS: subgraphs}

    def find(self, name: bytes) -> Node | None:
        """Namespaces are queried only for their own name: a search looks up four other names in each thread."""
        if name == SUBGRAPHS and self._subgraphs is not None and self._subgraphs.entries():
            return self._subgraphs
        return self._entries.get(name)

    # -- refreshing --------------------------------------------------------------------------------------------

    def fresh(self) -> None:
        """Refresh it from the database if it is stale."""
        if not self.stale:
            return
        will_wait()
        changed = self.lineage.verify()
        self.stale = False  # what follows looks at the index
        try:
            if changed is None or changed:
                self._refresh(changed)
            if self._subgraphs is not None:
                self._subgraphs.refresh(self.shared.found, everything=False)
        except BaseException:
            self.stale = True
            self.lineage.forget()  # the next refresh starts over
            raise

    def _refresh(self, changed: frozenset[str] | None) -> None:
        found = self.shared.found
        self.version = next(_versions)
        self._date()
        self.head.refresh(found, everything=False)
        for directory in self._computed:
            directory.refresh(found, everything=changed is None)
        for name, document in self._documents.items():
            document.expire()
            found.modified(self.directory, name, document)
        for shown in (self.directory, self.head, *self._computed):
            found.attributes(shown)

    def talk(self) -> MessageIndex:
        """The index of the messages, up to date."""
        return self._fresh_index(steps=False).talk

    def index(self) -> LineIndex:
        """The index of all, up to date."""
        return self._fresh_index(steps=True)

    def _fresh_index(self, *, steps: bool) -> LineIndex:
        self.fresh()
        if self._index is None:
            self._index, self._indexed = LineIndex(self.lineage, self.shared.cache), (-1, False)
        if self._indexed not in ((self.version, steps), (self.version, True)):
            self._indexed = -1, False  # after an error it has nothing
            self._index.refresh(steps=steps)
            self._indexed = self.version, steps
        return self._index

    def let_go(self) -> None:
        """Drop values that the kernel does not hold. They may have a megabyte or more."""
        self.lineage.let_go()
        self._index = None
        while self.recent:
            self.recent.popitem()[1].let_go()
        for directory in self._computed:
            directory.let_go()

    def _date(self) -> None:
        """Give directories the time of the newest checkpoint."""
        newest = self.lineage.database.newest(self.lineage.place)
        self.time_ns = (time_ns_of(newest) if newest is not None else None) or 0
        for directory in (self.directory, self.head, *self._computed):
            directory.date(self.time_ns)

    # -- documents ---------------------------------------------------------------------------------------------

    def _all_documents(self) -> dict[bytes, Document]:
        document = functools.partial(Document, self.nodes, self._dated)
        made: dict[bytes, Document] = {
            MESSAGES_JSONL: document(lambda: documents.messages_now(self.lineage), self._messages_bytes, grows=True),
            STATE: document(lambda: documents.state_now(self.lineage), self._state_bytes),
            README: document(lambda: readme(self.index(), self.lineage.place)),
            CHECKPOINTS: document(lambda: checkpoints_tsv(self.index()), grows=True),
            TRANSCRIPT: document(self._transcript, self._transcript_bytes, grows=True),
        }
        if not self.lineage.place.namespace:
            made[SPACE] = document(lambda: self._space_now().tsv, stored_bytes=lambda: self._space_now().bytes)
        return made

    def _dated(self) -> int:
        self.fresh()
        return self.time_ns

    def _messages_bytes(self) -> int:
        """Only the newest checkpoint is read where nothing else has needed the index."""
        return len(documents.messages_now(self.lineage)) if self._index is None else self.talk().messages_bytes

    def _state_bytes(self) -> int:
        has_steps = self._index is not None and self._index.steps
        return self.index().state_bytes if has_steps else len(documents.state_now(self.lineage))

    def _space_now(self) -> Space:
        if self._space[0] != self.version:
            self._space = self.version, space_of(self.lineage)
        return self._space[1]

    def _transcript(self) -> bytes:
        talk = self.talk()
        sections = (
            section_bytes(place + 1, self._message(talk, place), talk.said[message.step].time_ns)
            for place, message in enumerate(talk.messages)
        )
        return transcript_head(talk) + b"".join(sections)

    def _transcript_bytes(self) -> int:
        index = self._fresh_index(steps=False)
        index.measure(functools.partial(self._message, index.talk))
        head = transcript_head(index.talk)
        return len(head) + sum(message.section_bytes for message in index.talk.messages)

    def _message(self, talk: MessageIndex, number: int) -> Mapping[str, Any]:
        """A message by its place in the index."""
        place, position = talk.last[number]
        conversation = self._conversation(talk.said[place])
        if position >= len(conversation):
            raise oserror(errno.ESTALE)  # deleted or replaced just now
        return conversation[position]

    def _conversation(self, step: Said) -> list[Mapping[str, Any]]:
        """The messages at a checkpoint. Damaged; OSError."""
        cache, key = self.shared.conversations, (self.version, step.id)
        messages = cache.get(key)
        if messages is None:
            if step.messages_bytes > QUICK_BYTES:
                will_wait()
            messages = list(self.lineage.conversation_at(step.id).values())
            self.lineage.let_go_messages()
            cache.put(key, messages, max(step.messages_bytes, SMALL_CONVERSATION_BYTES))
        return messages

    def _of_files(self, name: bytes, names: Callable[[], Names], make: Callable[[Item], bytes]) -> ComputedDirectory:
        def file(_name: bytes, item: Item) -> Node:
            return Fixed(self.nodes, item, make)

        return ComputedDirectory(self.nodes, self.directory, name, self.fresh, names, file)

    # -- messages/ ---------------------------------------------------------------------------------------------

    def _message_names(self) -> Names:
        talk = self.talk()
        return {
            name.encode(): (number, part, message.digest, size, talk.said[message.step].time_ns)
            for number, message in enumerate(talk.messages)
            for part, (name, size) in enumerate(message.files)
        }

    def _message_bytes(self, item: tuple[int, int, str, int, int]) -> bytes:
        number, part, digest, _, _ = item
        talk = self.talk()
        if number >= len(talk.messages) or talk.messages[number].digest != digest:
            raise oserror(errno.ESTALE)  # deleted, or another message now
        files = files_of(number + 1, self._message(talk, number))
        if part >= len(files):
            raise oserror(errno.ESTALE)
        return files[part].data

    # -- changes/ ----------------------------------------------------------------------------------------------

    def _change_names(self) -> Names:
        return {
            paths.to_name(step.name) + b".patch": (step.said.id, step.patch_bytes, step.said.time_ns)
            for step in self.index().steps
            if step.patch_bytes
        }

    def _patch_bytes(self, item: Item) -> bytes:
        return self.index().patch(item[0])


FIRST: Final = b"@first"
LATEST: Final = b"@latest"
PREVIOUS: Final = b"@previous"

OF_MESSAGES: Final = b".messages.jsonl"
OF_STATE: Final = b".state.json"
SUFFIXES: Final = (OF_MESSAGES, OF_STATE)
"""Of the documents beside a checkpoint."""


class History(ComputedDirectory):
    """A directory for each checkpoint, with its state and conversation beside it.

    Found and not listed are links: `@latest`, `@first`, `@previous`, the newest checkpoint with other files than the
    latest.
    """

    __slots__ = ("line",)

    def __init__(self, line: Line, parent: DirectoryNode) -> None:
        super().__init__(line.nodes, parent, HISTORY, line.fresh, self._list, self._entry)
        if not line.lineage.place.namespace:
            self.mode |= line.nodes.prunable
        self.line = line

    def find(self, name: bytes) -> Node | None:
        node = super().find(name)
        if node is not None:
            return node
        suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), b"")
        step = self._step_of(name.removesuffix(suffix))
        if step is None:
            return None
        return Link(self._nodes, paths.to_name(step.name) + suffix, step.said.time_ns)

    def refresh(self, difference: TreeDifference, *, everything: bool) -> None:
        super().refresh(difference, everything=everything)
        if self._shown is not None:
            for name in (LATEST, PREVIOUS, FIRST):
                for suffix in (b"", *SUFFIXES):
                    difference.forgotten(self, name + suffix)

    def _step_of(self, name: bytes) -> Step | None:
        """The checkpoint that a link leads to."""
        steps = self.line.index().steps
        if name in (LATEST, FIRST):
            return steps[-1 if name == LATEST else 0] if steps else None
        if name == PREVIOUS:
            return next((step for step in reversed(steps) if step.version != steps[-1].version), None)
        return None

    def _list(self) -> Names:
        names: dict[bytes, Item] = {}
        for step in self.line.index().steps:
            name, said = paths.to_name(step.name), step.said
            names[name] = ("files", said.id, said.mark, 0, said.time_ns)
            names[name + OF_MESSAGES] = ("messages", said.id, said.mark, said.messages_bytes, said.time_ns)
            names[name + OF_STATE] = ("state", said.id, said.mark, step.state_bytes, said.time_ns)
        return names

    def _entry(self, name: bytes, item: Item) -> Node:
        kind, checkpoint, _, _, time_ns = item
        if kind == "files":
            return FilesDirectory(self.line, self, name, time_ns, checkpoint=checkpoint)
        return Fixed(self._nodes, item, self._document_bytes)

    def _document_bytes(self, item: Item) -> bytes:
        make = documents.messages_at if item[0] == "messages" else documents.state_at
        return make(self.line.lineage, item[1])

    def _changed(self, name: bytes, node: Node, item: Item, difference: TreeDifference) -> None:
        if isinstance(node, FilesDirectory):
            node.refresh(difference, everything=False)
        else:
            super()._changed(name, node, item, difference)


class Subgraphs(ComputedDirectory):
    """A directory for each namespace of a thread but its own. It is listed where there are any."""

    __slots__ = ()

    def __init__(self, line: Line, parent: DirectoryNode) -> None:
        def names() -> Names:
            spaces = line.lineage.database.namespaces(place.thread)
            return {name_of(space): Place(place.thread, space) for space in spaces if space}

        def directory(name: bytes, item: Item) -> Node:
            return line.shared.directory(self, name, item)

        place = line.lineage.place
        super().__init__(line.nodes, parent, SUBGRAPHS, line.fresh, names, directory)
        self.date(parent.mtime_ns)

    def refresh(self, difference: TreeDifference, *, everything: bool) -> None:
        before = self._shown
        super().refresh(difference, everything=everything)
        if before is not None and bool(self._shown) != bool(before):
            assert self.parent is not None
            difference.of_name("deleted" if before else "created", self.parent, self.name, self)


# -- directories of files --------------------------------------------------------------------------------------------

ERROR_NAME = b"ERROR.txt"

Wanted: TypeAlias = dict[bytes, Union["Wanted", Record]]
"""The wanted entries of a directory: directories and files."""


def wanted(files: Mapping[str, Record]) -> Wanted:
    """The tree that the keys of files make, as in `remote/keyed.py`."""
    root: Wanted = {}
    for path, key in ListedTree(files).all():
        directory = root
        *above, last = paths.to_name(path[1:]).split(b"/")
        for name in above:
            below = directory.setdefault(name, {})
            assert isinstance(below, dict), f"{key!r} is below a file"
            directory = below
        directory[last] = files[key]
    return root


class FilesDirectory(ComputedDirectory):
    """The files as of now, or those at a checkpoint; or a folder in these, which are its `root`.

    Args:
        checkpoint: its id; None for the files as of now, and for a folder.
        root: of a folder; None for all files.
        files: those in a folder, each name with its record, or with those in a further folder.
    """

    __slots__ = ("_folder", "checkpoint", "line", "root")

    def __init__(
        self,
        line: Line,
        parent: DirectoryNode,
        name: bytes,
        mtime_ns: int,
        *,
        checkpoint: str | None = None,
        root: FilesDirectory | None = None,
        files: Wanted | None = None,
    ) -> None:
        super().__init__(line.nodes, parent, name, line.fresh, self._wanted, self._entry)
        self.line = line
        self.checkpoint = checkpoint
        self.root = root or self
        self._shown = files
        self._folder = files
        self.date(mtime_ns)

    @property
    def is_head(self) -> bool:
        return self.root is self and self.checkpoint is None

    def xattrs(self) -> dict[bytes, bytes]:
        if self.checkpoint is None:
            return {}
        return {b"user.fusebackend.checkpoint": self.checkpoint.encode("utf-8", "surrogateescape")}

    def become(self, files: Wanted, difference: TreeDifference, *, is_new: bool = False) -> None:
        """Be a folder with these files from now on; they are all new where the folder is."""
        if is_new:
            self._shown = {}
        self._folder = files
        self.refresh(difference, everything=False)

    def let_go(self) -> None:
        """Drop the names, unless a folder is held."""
        if not any(isinstance(self._alive(name), FilesDirectory) for name in self._made):
            self._shown = None
            self._made.clear()

    def _wanted(self) -> Names:
        if self._folder is not None:
            return self._folder
        lineage = self.line.lineage
        try:
            if self.checkpoint is None:
                return wanted(lineage.files_now())
            self.line.recent[self.node] = self
            return wanted(lineage.files_at(self.checkpoint))
        except Damaged as error:
            words = f"The files of this checkpoint can't be shown. {error}\n"
            return {ERROR_NAME: lineage.records.saying(words, self.mtime_ns)}

    def _entry(self, name: bytes, item: Item) -> Node:
        if isinstance(item, dict):
            return FilesDirectory(self.line, self, name, self.mtime_ns, root=self.root, files=item)
        record: Record = item
        return HeadFile(self._nodes, self.line, record) if self.root.is_head else record

    def _added(self, name: bytes, node: Node, difference: TreeDifference) -> None:
        self.date(self.root.mtime_ns)
        super()._added(name, node, difference)
        if isinstance(node, FilesDirectory):
            node.become(self._current()[name], difference, is_new=True)

    def _removed(self, name: bytes, node: Node, difference: TreeDifference) -> None:
        self.date(self.root.mtime_ns)
        super()._removed(name, node, difference)

    def _changed(self, name: bytes, node: Node, item: Item, difference: TreeDifference) -> None:
        if isinstance(node, FilesDirectory) != isinstance(item, dict):
            self._removed(name, node, difference)
            self._added(name, self._node(name, item), difference)
        elif isinstance(node, FilesDirectory):
            node.become(item, difference)
        elif isinstance(node, HeadFile):
            node.become(item)
            difference.modified(self, name, node)
        else:
            super()._changed(name, node, item, difference)


class HeadFile(ChangingFile):
    """A file as of now."""

    __slots__ = ("_line", "record")

    def __init__(self, nodes: Nodes, line: Line, record: Record) -> None:
        super().__init__(nodes)
        self._line = line
        self.record = record
        self._show()

    def settle(self) -> HeadFile:
        self._line.fresh()
        return self

    def become(self, record: Record) -> None:
        self.record = record
        self._show()
        self.ctime_ns = now_ns()  # its own times may be those of the version before
        self.expire()

    def _show(self) -> None:
        self.date(self.record.mtime_ns)
        self.resize(self.record.size)

    def _bytes(self) -> bytes:
        return self.record.data()

    def xattrs(self) -> dict[bytes, bytes]:
        return self.record.xattrs()


# -- pages -------------------------------------------------------------------------------------------------------
#
# The pages about a line that people read first: `README.md`, `transcript.md`, `checkpoints.tsv` and `space.tsv`.
#
# All but the sections of the transcript and the sizes is made of the index alone, so a look reads no checkpoint. What
# others have written is one line where it stands in a line, and can't begin a heading.

COLUMNS: Final = (
    "name", "id", "parent", "step", "source", "node", "time", "messages added", "files changed", "next",
)  # fmt: skip
"""Of `checkpoints.tsv`."""

MAX_FIELD_CHARS: Final = 2_000


def readme(index: LineIndex, place: Place) -> bytes:
    """A few lines on a conversation."""
    lines = [
        f"# {_title(index.talk)}",
        "",
        f"- thread: {_inline(place.thread)}" + (f", sub-graph: {_inline(place.namespace)}" if place.namespace else ""),
    ]
    if index.talk.model:
        lines.append(f"- model: {_inline(index.talk.model)}")
    if index.steps:
        newest = index.steps[-1]
        changes = sum(step.patch_bytes > 0 for step in index.steps)
        lines += [
            f"- created: {_when(index.steps[0])}",
            f"- last: {_when(newest)}",
            f"- steps: {len(index.steps)}, messages: {len(index.talk.messages)}, steps that changed files: {changes}",
            f"- {_standing(newest)}",
        ]
        lines += [f"- unreadable: {_inline(step.error)}" for step in index.steps[-1:] if step.error is not None]
    lines += [
        "",
        "`transcript.md` is the conversation, `messages/` has each message, `changes/` a git patch for each step that",
        "changed files, `checkpoints.tsv` a line for each step, `history/` the files and the state at each.",
        "",
    ]
    return encoded("\n".join(lines))


def _standing(newest: Step) -> str:
    if newest.interrupts:
        return f"waits for a human: {'; '.join(map(_inline, newest.interrupts))}"
    if newest.next:
        return f"next: {', '.join(map(_inline, newest.next))}"
    return "next: nothing, the run has ended"


def transcript_head(talk: MessageIndex) -> bytes:
    """The beginning of `transcript.md`; a section for each message follows."""
    return encoded(f"# {_title(talk)}\n\n")


def checkpoints_tsv(index: LineIndex) -> bytes:
    """A line for each checkpoint, below one with the names of the columns."""
    brought = Counter(message.step for message in index.talk.messages)
    lines = ["\t".join(COLUMNS)]
    for place, step in enumerate(index.steps):
        fields = (
            step.name,
            step.said.id,
            step.parent or "",
            "" if step.step is None else str(step.step),
            step.source or "",
            step.node,
            _iso(step.said.time_ns),
            str(brought[place]),
            "?" if step.changed == UNREADABLE else str(step.changed),
            ", ".join(step.next),
        )
        lines.append("\t".join(one_line(field, MAX_FIELD_CHARS) for field in fields))
    return encoded("\n".join(lines) + "\n")


class Space(NamedTuple):
    """The bytes that a thread takes in the database."""

    tsv: bytes
    """By channel, step and namespace, the largest first: `space.tsv`."""
    bytes: int


def space_of(lineage: Lineage) -> Space:
    """The space of a thread."""
    lines, sizes = ["by\tname\tbytes"], []
    for by in ("channel", "step", "namespace"):
        sizes = weighed(lineage.database, [lineage.place.thread], by)
        lines += [f"{by}\t{one_line(one.name or '', MAX_FIELD_CHARS)}\t{one.bytes}" for one in sizes]
    return Space(encoded("\n".join(lines) + "\n"), sum(one.bytes for one in sizes))


def _title(talk: MessageIndex) -> str:
    return escaped_inline(talk.title) or "(no message of a human)"


def _inline(text: str) -> str:
    return escaped_inline(one_line(text, MAX_FIELD_CHARS))


def _when(step: Step) -> str:
    return _iso(step.said.time_ns).replace("T", " ").replace("Z", " UTC") if step.said.time_ns else "undated"


def _iso(time_ns: int) -> str:
    return iso_ms(time_ns) if time_ns else ""
