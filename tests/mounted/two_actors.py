"""A process on the mount and an agent on the API change the same few names at random; a model has the expected tree.

`TwoActors` needs a directory of the mount and any backend with the same files: an agent in the server, or a client of
its control socket. After every step both faces are compared with the model: absence, kinds, sizes, contents, listings,
and the contents of open and mapped files. One stale answer fails.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from name_model import File, Names

NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a")
OPEN_FILES = 4

names = st.sampled_from(NAMES)
contents = st.one_of(
    st.text("xyz\n", max_size=12),
    st.builds(lambda word, times: word * times, st.text("xyz\n", min_size=1, max_size=3), st.integers(1, 30_000)),
).map(str.encode)
offsets = st.sampled_from([0, 1, 5, 4095, 4096, 65_530])


class TwoActors(RuleBasedStateMachine):
    """See the module's docstring. A subclass gives `mountpoint`, `agent` and a fresh `base` below the mount point."""

    mountpoint: Path
    agent: Any
    base: str  # such as `/run7`

    def __init__(self) -> None:
        super().__init__()
        self.tree = Names()
        self.opened: list[tuple[int, File]] = []
        self.start()

    def start(self) -> None:
        raise NotImplementedError

    def teardown(self) -> None:
        for fd, _ in self.opened:
            os.close(fd)

    def path(self, name: str) -> str:
        return f"{self.mountpoint}{self.base}/{name}"

    def outer(self, name: str) -> str:
        return f"{self.base}/{name}"

    def system(self, wanted: bool, call: Any, *arguments: Any) -> Any:
        """Make a system call; it must succeed exactly if `wanted`."""
        try:
            result = call(*arguments)
        except OSError as error:
            assert not wanted, f"{call.__name__}{arguments}: {error}"
            return None
        if not wanted and isinstance(result, int) and call is os.open:
            os.close(result)
        assert wanted, f"{call.__name__}{arguments} should have failed"
        return result

    # -- the process -------------------------------------------------------------------------------------------

    @rule(name=names, data=contents, how=st.sampled_from([os.O_TRUNC, os.O_APPEND, 0]))
    def process_writes(self, name: str, data: bytes, how: int) -> None:
        wanted = self.tree.write(name, how, 0, data)
        fd = self.system(wanted, os.open, self.path(name), os.O_WRONLY | os.O_CREAT | how, 0o644)
        if fd is not None:
            try:
                os.write(fd, data)
            finally:
                os.close(fd)

    @rule(name=names, size=offsets)
    def process_truncates(self, name: str, size: int) -> None:
        self.system(self.tree.truncate(name, size), os.truncate, self.path(name), size)

    @rule(name=names)
    def process_makes_directory(self, name: str) -> None:
        self.system(self.tree.mkdir(name), os.mkdir, self.path(name))

    @rule(name=names)
    def process_removes(self, name: str) -> None:
        call = os.rmdir if name in self.tree and self.tree.is_dir(name) else os.unlink
        self.system(self.tree.remove(name), call, self.path(name))

    @rule(old=names, new=names)
    def process_renames(self, old: str, new: str) -> None:
        self.system(self.tree.rename(old, new), os.rename, self.path(old), self.path(new))

    @rule(old=names, new=names)
    def process_links(self, old: str, new: str) -> None:
        self.system(self.tree.link(old, new), os.link, self.path(old), self.path(new))

    @rule(name=names)
    def process_opens(self, name: str) -> None:
        file = self.tree.get(name)
        if file is not None and len(self.opened) < OPEN_FILES:
            self.opened.append((os.open(self.path(name), os.O_RDWR), file))

    @precondition(lambda self: self.opened)
    @rule(which=st.integers(0, 100), data=contents, offset=offsets)
    def process_writes_to_an_open_file(self, which: int, data: bytes, offset: int) -> None:
        fd, file = self.opened[which % len(self.opened)]
        os.pwrite(fd, data, offset)
        file.write(offset, data)

    @precondition(lambda self: self.opened)
    @rule(which=st.integers(0, 100), size=offsets)
    def process_truncates_an_open_file(self, which: int, size: int) -> None:
        fd, file = self.opened[which % len(self.opened)]
        os.ftruncate(fd, size)
        file.resize(size)

    @precondition(lambda self: self.opened)
    @rule(which=st.integers(0, 100))
    def process_maps_an_open_file(self, which: int) -> None:
        fd, file = self.opened[which % len(self.opened)]
        if file.content:
            with mmap.mmap(fd, 0) as mapped:
                assert mapped[:] == file.content
                mapped[0:1] = b"m"
                mapped.flush()
            file.content[0:1] = b"m"

    @precondition(lambda self: self.opened)
    @rule(which=st.integers(0, 100))
    def process_closes(self, which: int) -> None:
        os.close(self.opened.pop(which % len(self.opened))[0])

    # -- the agent ---------------------------------------------------------------------------------------------

    @rule(name=names, data=contents)
    def agent_writes(self, name: str, data: bytes) -> None:
        result = self.agent.write(self.outer(name), data.decode())
        assert (result.error is None) == self.tree.create(name, data), result

    @rule(name=names, data=contents)
    def agent_uploads(self, name: str, data: bytes) -> None:
        (result,) = self.agent.upload_files([(self.outer(name), data)])
        assert (result.error is None) == self.tree.upload(name, data), result

    @rule(name=names, start=st.integers(0, 9), length=st.integers(0, 40_000), new=contents, all_of_them=st.booleans())
    def agent_edits(self, name: str, start: int, length: int, new: bytes, all_of_them: bool) -> None:
        file = self.tree.get(name)
        old = bytes(file.content[start : start + length]) if file is not None else b"x"
        found = file.content.count(old) if file is not None and old else 0
        wanted = found == 1 or (all_of_them and found > 1)
        result = self.agent.edit(self.outer(name), old.decode(), new.decode(), all_of_them)
        if old == new:
            wanted = result.error is None  # whether that is an error is not of interest here
        assert (result.error is None) == wanted, result
        if wanted and file is not None:
            assert result.occurrences == found
            file.content[:] = file.content.replace(old, new)

    @rule(name=names)
    def agent_deletes(self, name: str) -> None:
        result = self.agent.delete(self.outer(name))
        assert (result.error is None) == self.tree.delete(name), result

    @rule(old=names, new=names)
    def agent_moves(self, old: str, new: str) -> None:
        result = self.agent.move(self.outer(old), self.outer(new))
        assert (result.error is None) == self.tree.move(old, new), result

    # -- comparison on both faces --------------------------------------------------------------------------------

    def check_invariants(self, *arguments: Any, **options: Any) -> None:
        super().check_invariants(*arguments, **options)
        self.process_sees_the_truth()
        self.open_files_show_the_truth()
        self.agent_sees_the_truth()

    def process_sees_the_truth(self) -> None:
        for name in NAMES:
            path = self.path(name)
            if name not in self.tree:
                assert not os.path.lexists(path), f"{name} is gone"
            elif self.tree.is_dir(name):
                listed = {f"{name}/{entry}" for entry in os.listdir(path)}
                inside = self.tree.inside(name)
                assert listed == inside
                assert os.stat(path).st_nlink == 2 + sum(map(self.tree.is_dir, inside)), f"the links of {name}"
            else:
                file = self.tree[name]
                assert file is not None
                status = os.stat(path)
                assert status.st_size == len(file.content), f"the size of {name}"
                assert status.st_nlink == list(self.tree.values()).count(file), f"the links of {name}"
                with open(path, "rb", buffering=0) as opened:
                    assert opened.read() == file.content, f"the contents of {name}"
        assert set(os.listdir(self.path(""))) == self.tree.inside("")

    def open_files_show_the_truth(self) -> None:
        for fd, file in self.opened:
            status = os.fstat(fd)
            assert status.st_size == len(file.content), "the size of an open file"
            assert status.st_nlink == list(self.tree.values()).count(file), "the links of an open file"
            assert os.pread(fd, 1 << 20, 0) == file.content, "the contents of an open file"

    def agent_sees_the_truth(self) -> None:
        answers = self.agent.download_files([self.outer(name) for name in NAMES])
        for name, answer in zip(NAMES, answers, strict=True):
            file = self.tree.get(name)
            assert answer.content == (bytes(file.content) if file is not None else None), f"{name} for the agent"
            if name in self.tree and self.tree.is_dir(name):
                listed = {info["path"].rstrip("/") for info in self.agent.ls(self.outer(name)).entries}
                assert listed == {self.outer(path) for path in self.tree.inside(name)}
        found = {info["path"] for info in self.agent.glob("**", self.base).matches}
        assert found == {self.outer(name) for name, file in self.tree.items() if file is not None}
