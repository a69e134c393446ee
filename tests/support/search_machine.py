"""Random edits of a volume on both faces, its index brought up to date at any time; searches against a plain scan."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from agentface import node_at, put
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fusebackend.base.globs import compile_glob
from fusebackend.protocol import ROOT_NODE, AttrChanges, GrepResult
from fusebackend.volumes import search
from fusebackend.volumes.walk import FileWalk

BORDER = 65536


def scan(
    backend: Any, pattern: str, path: str = "/", glob: str | None = None, max_count: int | None = None
) -> GrepResult:
    """The answer of the search that every volume has."""
    matcher = compile_glob(glob) if glob else None
    found = search.FileSearch(backend.volume, path, matcher, backend.max_search_bytes)
    return search.grepped(found, pattern, max_count)


WORDS = st.sampled_from(
    [b"needle", b"common", b"foo_bar", "文字".encode(), b"need", b"les", b"f(b)", b"\n", b" ", b"-> "]
)
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map(b"".join)
NAMES = st.sampled_from([b"a", b"b.txt", b"c.py", b"dir", b"\xff"])
PATHS = st.sampled_from(["/a", "/b.txt", "/dir/0.txt", "/dir/deep/c.py", "/dir2/b.txt"])
PICKS = st.integers(0, 9)
PORTIONS = st.sampled_from([0, 2, 10_000, 10_000])
PATTERNS = st.one_of(
    TEXTS.map(lambda text: text.decode("utf-8", "replace")),
    st.sampled_from(["nee", "eed", "dle", "zzz", "mmo", "lesneed", "ï", "\ud800", "common common", "(b)", ""]),
)


class SearchMachine(RuleBasedStateMachine):
    """A subclass has a `backend`, and implements `index_portion`."""

    backend: Any
    always: ClassVar = ("needle", "common", "foo_bar", "文字")
    """Searched for after each step."""

    @property
    def volume(self) -> Any:
        return self.backend.volume

    def index_portion(self) -> bool:
        """Index a little; False when there is nothing left."""
        raise NotImplementedError

    @initialize(contents=st.lists(TEXTS, min_size=1, max_size=5))
    def begin(self, contents: list[bytes]) -> None:
        for number, content in enumerate(contents):
            put(self.backend, f"/dir/{number}.txt", content)

    def index(self, portions: int) -> None:
        """Index up to `portions` portions, as the background thread would before a change."""
        for _ in range(portions):
            if not self.index_portion():
                return

    def file(self, pick: int) -> int | None:
        nodes = [attr.node for _, attr in FileWalk(self.volume, ROOT_NODE)]
        return nodes[pick % len(nodes)] if nodes else None

    # the kernel's face

    @rule(portions=PORTIONS, pick=PICKS, at=st.sampled_from([0, 3, None]), data=TEXTS)
    def write(self, portions: int, pick: int, at: int | None, data: bytes) -> None:
        """Write in the middle, or at the end."""
        self.index(portions)
        node = self.file(pick)
        if node is not None:
            self.volume.open(node, os.O_WRONLY)
            self.volume.write(node, self.volume.getattr(node).size if at is None else at, data)
            self.volume.release(node, os.O_WRONLY)

    @rule(portions=PORTIONS, pick=PICKS, at=st.sampled_from([BORDER - 3, BORDER, 2 * BORDER - 1]), data=TEXTS)
    def write_across_a_border(self, portions: int, pick: int, at: int, data: bytes) -> None:
        """Write across the border of two chunks, with text before it."""
        self.index(portions)
        node = self.file(pick)
        if node is not None:
            size = self.volume.getattr(node).size
            self.volume.open(node, os.O_WRONLY)
            self.volume.write(node, size, b"." * max(0, at - size))
            self.volume.write(node, at, data)
            self.volume.release(node, os.O_WRONLY)

    @rule(portions=PORTIONS, pick=PICKS, by=st.sampled_from([-BORDER, -3, 5]))
    def resize(self, portions: int, pick: int, by: int) -> None:
        self.index(portions)
        node = self.file(pick)
        if node is not None:
            self.volume.setattr(node, AttrChanges(size=max(0, self.volume.getattr(node).size + by)))

    @rule(portions=PORTIONS, pick=PICKS)
    def stretch_and_shrink(self, portions: int, pick: int) -> None:
        """Extend a file by a hole, so that it is no text any more, and cut the hole off again."""
        node = self.file(pick)
        if node is not None:
            size = self.volume.getattr(node).size
            self.volume.setattr(node, AttrChanges(size=size + 5))
            self.index(portions)
            self.volume.setattr(node, AttrChanges(size=size))

    @rule(portions=PORTIONS, pick=PICKS, name=NAMES)
    def link(self, portions: int, pick: int, name: bytes) -> None:
        self.index(portions)
        node = self.file(pick)
        if node is not None:
            try:
                self.volume.link(node, ROOT_NODE, name)
            except FileExistsError:
                return

    @rule(name=NAMES, other=NAMES, exchange=st.booleans())
    def rename_or_unlink(self, name: bytes, other: bytes, exchange: bool) -> None:
        try:
            if name == other:
                self.volume.unlink(ROOT_NODE, name)
            else:
                self.volume.rename(ROOT_NODE, name, node_at(self.backend, "/dir"), other, 2 * exchange)
        except OSError:  # missing or refused, which is fine here
            return

    @rule(portions=PORTIONS, pick=PICKS, byte=st.sampled_from([b"\0", b"\xff", b"\xc3"]))
    def spoil(self, portions: int, pick: int, byte: bytes) -> None:
        """Append binary data; sometimes cut it off again."""
        self.write(portions, pick, None, byte)
        if portions == 2:
            self.resize(10_000, pick, -1)

    # the agent's

    @rule(portions=PORTIONS, path=PATHS, content=TEXTS)
    def upload(self, portions: int, path: str, content: bytes) -> None:
        self.index(portions)
        self.backend.upload_files([(path, content)])

    @rule(
        portions=PORTIONS, old=st.sampled_from(["needle", "n", "common"]), new=st.sampled_from(["pin", "needles", ""])
    )
    def edit(self, portions: int, old: str, new: str) -> None:
        self.index(portions)
        for match in self.backend.grep(old, max_count=1).matches or []:
            assert self.backend.edit(match["path"], old, new, replace_all=True).error is None

    @rule(path=st.sampled_from(["/dir", "/dir2", "/a"]), new=st.sampled_from(["/dir2/deep", "/dir", None]))
    def move_or_delete(self, path: str, new: str | None) -> None:
        if new is not None:
            self.backend.move(path, new)
        elif path != "/dir":
            self.backend.delete(path)

    # searches

    @rule(
        pattern=PATTERNS,
        path=st.sampled_from(["/", "/dir", "/dir2", "/a", "/nowhere"]),
        glob=st.sampled_from([None, "*.txt", "dir/*", "**/*.py", "a"]),
        max_count=st.sampled_from([None, 0, 1, 2]),
    )
    def grep(self, pattern: str, path: str, glob: str | None, max_count: int | None) -> None:
        answer = self.backend.grep(pattern, path, glob, max_count=max_count)
        assert answer.error is None
        assert answer == scan(self.backend, pattern, path, glob, max_count)

    @invariant()
    def what_is_there_is_found(self) -> None:
        for pattern in self.always:
            assert self.backend.grep(pattern) == scan(self.backend, pattern)
