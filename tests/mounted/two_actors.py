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

NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a")
OPEN_FILES = 4

names = st.sampled_from(NAMES)
contents = st.one_of(
    st.text("xyz\n", max_size=12),
    st.builds(lambda word, times: word * times, st.text("xyz\n", min_size=1, max_size=3), st.integers(1, 30_000)),
).map(str.encode)
offsets = st.sampled_from([0, 1, 5, 4095, 4096, 65_530])


class File:
    """The contents of a file, shared by all its names and handles."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)

    def resize(self, size: int) -> None:
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def write(self, offset: int, data: bytes) -> None:
        if data:
            self.resize(max(len(self.content), offset + len(data)))
            self.content[offset : offset + len(data)] = data


class TwoActors(RuleBasedStateMachine):
    """See the module's docstring. A subclass gives `mountpoint`, `agent` and a fresh `base` below the mount point."""

    mountpoint: Path
    agent: Any
    base: str  # such as `/run7`

    def __init__(self) -> None:
        super().__init__()
        self.tree: dict[str, File | None] = {}  # None is a directory
        self.opened: list[tuple[int, File]] = []
        self.start()

    def start(self) -> None:
        raise NotImplementedError

    def teardown(self) -> None:
        for fd, _ in self.opened:
            os.close(fd)

    # -- the model ---------------------------------------------------------------------------------------------

    def is_dir(self, name: str) -> bool:
        return name == "" or self.tree.get(name, name) is None

    def can_hold(self, name: str) -> bool:
        return self.is_dir(name.rpartition("/")[0])

    def could_hold(self, name: str) -> bool:
        """Return whether the directories above exist or can be made."""
        above = name.split("/")[:-1]
        return all(self.is_dir(path) or path not in self.tree for path in self.ways(above))

    @staticmethod
    def ways(parts: list[str]) -> list[str]:
        return ["/".join(parts[: end + 1]) for end in range(len(parts))]

    def make_parents(self, name: str) -> None:
        for path in self.ways(name.split("/")[:-1]):
            self.tree.setdefault(path, None)

    def below(self, name: str) -> list[str]:
        return [path for path in self.tree if path == name or path.startswith(name + "/")]

    def carry(self, old: str, new: str) -> None:
        moved = {path: self.tree.pop(path) for path in self.below(old)}
        for path, node in moved.items():
            self.tree[new + path[len(old) :]] = node

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
        wanted = self.can_hold(name) and (name not in self.tree or not self.is_dir(name))
        fd = self.system(wanted, os.open, self.path(name), os.O_WRONLY | os.O_CREAT | how, 0o644)
        if fd is None:
            return
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        file = self.tree.setdefault(name, File())
        assert file is not None
        if how == os.O_TRUNC:
            file.resize(0)
        file.write(len(file.content) if how == os.O_APPEND else 0, data)

    @rule(name=names, size=offsets)
    def process_truncates(self, name: str, size: int) -> None:
        file = self.tree.get(name)
        self.system(file is not None, os.truncate, self.path(name), size)
        if file is not None:
            file.resize(size)

    @rule(name=names)
    def process_makes_directory(self, name: str) -> None:
        wanted = self.can_hold(name) and name not in self.tree
        self.system(wanted, os.mkdir, self.path(name))
        if wanted:
            self.tree[name] = None

    @rule(name=names)
    def process_removes(self, name: str) -> None:
        if name in self.tree and self.is_dir(name):
            wanted = self.below(name) == [name]
            self.system(wanted, os.rmdir, self.path(name))
        else:
            wanted = name in self.tree
            self.system(wanted, os.unlink, self.path(name))
        if wanted:
            del self.tree[name]

    @rule(old=names, new=names)
    def process_renames(self, old: str, new: str) -> None:
        wanted = old in self.tree and self.can_hold(new)
        if wanted and old != new:
            if self.is_dir(old):
                free = new not in self.tree or (self.is_dir(new) and self.below(new) == [new])
                wanted = free and not new.startswith(old + "/")
            else:
                wanted = new not in self.tree or not self.is_dir(new)
        self.system(wanted, os.rename, self.path(old), self.path(new))
        if wanted and old != new and not (self.tree[old] is self.tree.get(new) and not self.is_dir(old)):
            self.tree.pop(new, None)
            self.carry(old, new)

    @rule(old=names, new=names)
    def process_links(self, old: str, new: str) -> None:
        wanted = self.tree.get(old) is not None and new not in self.tree and self.can_hold(new)
        self.system(wanted, os.link, self.path(old), self.path(new))
        if wanted:
            self.tree[new] = self.tree[old]

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
        wanted = name not in self.tree and self.could_hold(name)
        result = self.agent.write(self.outer(name), data.decode())
        assert (result.error is None) == wanted, result
        if wanted:
            self.make_parents(name)
            self.tree[name] = File(data)

    @rule(name=names, data=contents)
    def agent_uploads(self, name: str, data: bytes) -> None:
        wanted = self.could_hold(name) and (name not in self.tree or not self.is_dir(name))
        (result,) = self.agent.upload_files([(self.outer(name), data)])
        assert (result.error is None) == wanted, result
        if wanted:
            self.make_parents(name)
            file = self.tree.setdefault(name, File())
            assert file is not None
            file.content[:] = data

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
        assert (result.error is None) == (name in self.tree), result
        for path in self.below(name):
            del self.tree[path]

    @rule(old=names, new=names)
    def agent_moves(self, old: str, new: str) -> None:
        wanted = old in self.tree and new not in self.tree and self.could_hold(new)
        wanted = wanted and not new.startswith(old + "/")
        result = self.agent.move(self.outer(old), self.outer(new))
        assert (result.error is None) == wanted, result
        if wanted:
            self.make_parents(new)
            self.carry(old, new)

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
            elif self.is_dir(name):
                listed = {f"{name}/{entry}" for entry in os.listdir(path)}
                inside = {below for below in self.tree if below.rpartition("/")[0] == name}
                assert listed == inside
                assert os.stat(path).st_nlink == 2 + sum(map(self.is_dir, inside)), f"the links of {name}"
            else:
                file = self.tree[name]
                assert file is not None
                status = os.stat(path)
                assert status.st_size == len(file.content), f"the size of {name}"
                assert status.st_nlink == list(self.tree.values()).count(file), f"the links of {name}"
                with open(path, "rb", buffering=0) as opened:
                    assert opened.read() == file.content, f"the contents of {name}"
        assert set(os.listdir(self.path(""))) == {name for name in self.tree if "/" not in name}

    def open_files_show_the_truth(self) -> None:
        for fd, file in self.opened:
            assert os.fstat(fd).st_size == len(file.content), "the size of an open file"
            assert os.pread(fd, 1 << 20, 0) == file.content, "the contents of an open file"

    def agent_sees_the_truth(self) -> None:
        answers = self.agent.download_files([self.outer(name) for name in NAMES])
        for name, answer in zip(NAMES, answers, strict=True):
            file = self.tree.get(name)
            assert answer.content == (bytes(file.content) if file is not None else None), f"{name} for the agent"
            if name in self.tree and self.is_dir(name):
                listed = {info["path"].rstrip("/") for info in self.agent.ls(self.outer(name)).entries}
                assert listed == {self.outer(path) for path in self.tree if path.rpartition("/")[0] == name}
        found = {info["path"] for info in self.agent.glob("**", self.base).matches}
        assert found == {self.outer(name) for name, file in self.tree.items() if file is not None}
