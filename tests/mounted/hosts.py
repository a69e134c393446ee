"""Hosts (processes here) change one tree at random, through both faces each; a model has the expected tree.

After every change the names that it touched, and some others, are opened at all hosts: by processes and by agents. A
file must have the bytes of its last close, a directory its names, and removed names must be gone. `catch_up` then waits
for changes that may lag by the change feed, before the next change at any host.

One host alone also has files open for many steps, writes to them and maps them. After every change everything is
compared on both faces: absence, kinds, sizes, link counts, contents, listings, and what open files show.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eventually import eventually
from name_model import File, Names

import fusebackend
from fusebackend.testing.posix.case import opened

NAMES = ("a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "e", "e/a")
DIRECTORIES = ("d", "d/e", "e")
PATIENCE_S = 120.0
RUN_STEPS = 100
"""Changes of one tree, before the next one with another seed."""

CONTENTS = (b"", b"x", b"one two\n", b"three\n" * 700, b"0123456789abcdef" * 8200)
OFFSETS = (0, 1, 4095, 4096, 65_530)
OPEN_FILES = 4


class Host(NamedTuple):
    """A mount and its agent face: `base` is the working directory in both."""

    path: Path
    agent: Any
    base: str

    def place(self, name: str) -> str:
        return f"{self.path}{self.base}/{name}"


class SharedVolume:
    """Several mounts of one volume, and their agent faces."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.roots = tuple(paths)
        self.agents = tuple(fusebackend.connect(path) for path in paths)
        self._beats = itertools.count(1)
        (self.roots[0] / "beat").touch()

    def hosts(self, base: str) -> tuple[Host, ...]:
        return tuple(Host(root, agent, base) for root, agent in zip(self.roots, self.agents, strict=True))

    def catch_up(self, here: Host, others: Sequence[Host]) -> None:
        """Wait until the feed has delivered all earlier changes of `here` to `others`. It keeps the order of
        commits."""
        beat = next(self._beats)
        os.utime(here.path / "beat", ns=(beat, beat))
        for there in others:
            beats = there.path / "beat"
            seen = f"a change is seen at {there.path.name}"
            eventually(lambda beats=beats: os.stat(beats).st_mtime_ns == beat, PATIENCE_S, seen)

    def close(self) -> None:
        for agent in self.agents:
            agent.close()


class RandomChanges:
    """See the module's docstring.

    Args:
        hosts: each change is at one of them, at random.
        seed: the same seed makes the same changes.
        catch_up: called with the host of a change and the other hosts; returns when they have the change.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        seed: int,
        catch_up: Callable[[Host, Sequence[Host]], None] = lambda here, others: None,
    ) -> None:
        self.hosts = hosts
        self.random = random.Random(seed)
        self.tree = Names()
        self.target = ""  # of the symbolic link, if it is there
        self.opened: list[tuple[int, File]] = []
        self.log: list[str] = []
        self._catch_up = catch_up
        self._changes = [self.put, self.put, self.write_within, self.append, self.truncate, self.make_directory]
        self._changes += [self.remove, self.rename, self.replace, self.link, self.point]
        self._changes += [self.create, self.upload, self.edit, self.delete, self.move]
        if len(hosts) == 1:
            self._changes += [self.open, self.open, self.write_open, self.truncate_open, self.map_open, self.close_open]
        os.makedirs(hosts[0].place(""), exist_ok=True)

    def run(self, steps: int) -> None:
        try:
            for step in range(steps):
                here, *others = self.random.sample(self.hosts, len(self.hosts))
                change = self.random.choice(self._changes)
                name = self.random.choice(NAMES)
                self.log.append(f"{step}: {here.path.name} {change.__name__} {name}")
                touched = change(here, name)
                if not others:
                    self.check_everything(here)
                for host in (*others, here):
                    for shown in {name, *touched, *self.random.sample(NAMES, 2)}:
                        self.check(host, shown)
                self._catch_up(here, others)
        except (AssertionError, OSError) as error:
            raise AssertionError("\n".join([str(error), *self.log[-12:]])) from error
        finally:
            while self.opened:
                os.close(self.opened.pop()[0])

    # -- the model ---------------------------------------------------------------------------------------------

    def other(self, name: str) -> str:
        """Choose another name; for a directory one of `DIRECTORIES`, so that its files keep names of `NAMES`."""
        others = DIRECTORIES if self.tree.is_dir(name) else [o for o in NAMES if not self.tree.is_dir(o)]
        return self.random.choice([o for o in others if o != name] or list(NAMES))

    def content(self) -> bytes:
        return self.random.choice(CONTENTS)

    @staticmethod
    def system(wanted: bool, call: Callable[..., Any], *arguments: Any) -> None:
        """Make a system call; it must succeed exactly if `wanted`, and never fail with ESTALE."""
        try:
            call(*arguments)
        except OSError as error:
            assert not wanted and error.errno != errno.ESTALE, f"{call.__name__}{arguments}: {error}"
        else:
            assert wanted, f"{call.__name__}{arguments} should have failed"

    # -- changes by processes ----------------------------------------------------------------------------------

    def _write(self, host: Host, name: str, flags: int, offset: int, data: bytes) -> None:
        def write() -> None:
            with opened(host.place(name), os.O_WRONLY | os.O_CREAT | flags, 0o644) as fd:
                assert os.pwrite(fd, data, offset) == len(data)

        self.system(self.tree.write(name, flags, offset, data), write)

    def put(self, host: Host, name: str) -> list[str]:
        self._write(host, name, os.O_TRUNC, 0, self.content())
        return []

    def write_within(self, host: Host, name: str) -> list[str]:
        self._write(host, name, 0, self.random.choice(OFFSETS), self.content())
        return []

    def append(self, host: Host, name: str) -> list[str]:
        self._write(host, name, os.O_APPEND, 0, self.content())
        return []

    def truncate(self, host: Host, name: str) -> list[str]:
        size = self.random.choice(OFFSETS)
        self.system(self.tree.truncate(name, size), os.truncate, host.place(name), size)
        return []

    def make_directory(self, host: Host, name: str) -> list[str]:
        name = self.random.choice(DIRECTORIES)
        self.system(self.tree.mkdir(name), os.mkdir, host.place(name))
        return [name]

    def remove(self, host: Host, name: str) -> list[str]:
        call = os.rmdir if self.tree.is_dir(name) else os.unlink
        self.system(self.tree.remove(name), call, host.place(name))
        return []

    def rename(self, host: Host, name: str) -> list[str]:
        new = self.other(name)
        self.system(self.tree.rename(name, new), os.rename, host.place(name), host.place(new))
        return [new]

    def replace(self, host: Host, name: str) -> list[str]:
        """Replace a file as an editor does: a new file, renamed over the old one."""
        if self.tree.can_hold(name) and not self.tree.is_dir(name):
            data = self.content()
            Path(host.place("new")).write_bytes(data)
            os.rename(host.place("new"), host.place(name))
            self.tree[name] = File(data)
        return []

    def link(self, host: Host, name: str) -> list[str]:
        new = self.other(name)
        self.system(self.tree.link(name, new), os.link, host.place(name), host.place(new))
        return [new]

    def point(self, host: Host, name: str) -> list[str]:
        """Point the symbolic link to `name`, by renaming a new one over it."""
        os.symlink(name, host.place("new"))
        os.rename(host.place("new"), host.place("link"))
        self.target = name
        return []

    # -- a file that stays open, at a host that is alone ---------------------------------------------------------

    def open(self, host: Host, name: str) -> list[str]:
        file = self.tree.get(name)
        if file is not None and len(self.opened) < OPEN_FILES:
            self.opened.append((os.open(host.place(name), os.O_RDWR), file))
        return []

    def write_open(self, host: Host, name: str) -> list[str]:
        for fd, file in self._one_open():
            offset, data = self.random.choice(OFFSETS), self.content()
            os.pwrite(fd, data, offset)
            file.write(offset, data)
        return []

    def truncate_open(self, host: Host, name: str) -> list[str]:
        for fd, file in self._one_open():
            size = self.random.choice(OFFSETS)
            os.ftruncate(fd, size)
            file.resize(size)
        return []

    def map_open(self, host: Host, name: str) -> list[str]:
        for fd, file in self._one_open():
            if file.content:
                with mmap.mmap(fd, 0) as mapped:
                    assert mapped[:] == file.content, "what an open file's mapping shows"
                    mapped[0:1] = file.content[0:1] = b"m"
                    mapped.flush()
        return []

    def close_open(self, host: Host, name: str) -> list[str]:
        for each in self._one_open():
            self.opened.remove(each)
            os.close(each[0])
        return []

    def _one_open(self) -> list[tuple[int, File]]:
        return self.random.sample(self.opened, min(len(self.opened), 1))

    # -- changes by agents -------------------------------------------------------------------------------------

    def create(self, host: Host, name: str) -> list[str]:
        data = self.content()
        answer = host.agent.write(f"{host.base}/{name}", data.decode())
        assert (answer.error is None) == self.tree.create(name, data), answer
        return []

    def upload(self, host: Host, name: str) -> list[str]:
        data = self.content()
        (answer,) = host.agent.upload_files([(f"{host.base}/{name}", data)])
        assert (answer.error is None) == self.tree.upload(name, data), answer
        return []

    def edit(self, host: Host, name: str) -> list[str]:
        """Replace a part of what is there, once or wherever it is."""
        file = self.tree.get(name)
        content = b"" if file is None else bytes(file.content)
        start = self.random.randrange(len(content) or 1)
        old, new = content[start : start + self.random.choice((1, 7, 40_000))] or b"x", self.random.choice((b"", b"1"))
        found, everywhere = content.count(old), self.random.random() < 0.5
        wanted = old != new and (found == 1 or (everywhere and found > 1))
        answer = host.agent.edit(f"{host.base}/{name}", old.decode(), new.decode(), everywhere)
        assert (answer.error is None) == wanted or old == new, answer
        if wanted:
            assert file is not None and answer.occurrences == found, answer
            file.content[:] = content.replace(old, new)
        return []

    def delete(self, host: Host, name: str) -> list[str]:
        answer = host.agent.delete(f"{host.base}/{name}")
        assert (answer.error is None) == self.tree.delete(name), answer
        return []

    def move(self, host: Host, name: str) -> list[str]:
        new = self.other(name)
        answer = host.agent.move(f"{host.base}/{name}", f"{host.base}/{new}")
        assert (answer.error is None) == self.tree.move(name, new), answer
        return [new]

    # -- comparison at all hosts -------------------------------------------------------------------------------

    def check_everything(self, host: Host) -> None:
        """Compare what one host shows of all names, on both faces, and of its open files."""
        link = f"{host.base}/link"
        for name in [*self.tree, ""]:
            self.check(host, name)
            if self.tree.is_dir(name):
                inside = self.tree.inside(name)
                entries = {entry["path"].rstrip("/") for entry in host.agent.ls(f"{host.base}/{name}").entries}
                assert entries - {link} == {f"{host.base}/{each}" for each in inside}, f"the entries of {name}"
                links = 2 + sum(map(self.tree.is_dir, inside))
            else:
                file = self.tree[name]
                links = list(self.tree.values()).count(file)
                assert os.stat(host.place(name)).st_size == len(file.content), f"the size of {name}"
            assert os.stat(host.place(name)).st_nlink == links, f"the links of {name}"
        for fd, file in self.opened:
            status = os.fstat(fd)
            found = os.pread(fd, 1 << 20, 0), status.st_size, status.st_nlink
            assert found == (file.content, len(file.content), list(self.tree.values()).count(file)), "an open file"
        matches = {match["path"] for match in host.agent.glob("**", host.base).matches}
        files = {f"{host.base}/{name}" for name, file in self.tree.items() if file is not None}
        assert matches - {link} == files

    def check(self, host: Host, name: str) -> None:
        wanted = self.tree.get(name)
        where = f"{name} at {host.path.name}"
        try:
            if self.tree.is_dir(name):
                inside = {path.rpartition("/")[2] for path in self.tree.inside(name)}
                assert {*os.listdir(host.place(name))} - {"link"} == inside, f"the names in {where}"
            else:
                self._same(read(host.place(name)), wanted, where)
        except (FileNotFoundError, NotADirectoryError):
            assert name not in self.tree, f"{where} is not found"
        (answer,) = host.agent.download_files([f"{host.base}/{name}"])
        assert answer.content == (None if wanted is None else bytes(wanted.content)), f"{where} for the agent"
        if self.target == name and wanted is not None:
            self._same(read(host.place("link")), wanted, f"what the link to {where} shows")

    def _same(self, found: bytes, wanted: File | None, where: str) -> None:
        assert wanted is not None, f"{where} should be gone, and has {len(found)} bytes"
        assert found == wanted.content, f"{where} has {found[:20]!r} ({len(found)}), not {bytes(wanted.content[:20])!r}"


def read(path: str) -> bytes:
    with opened(path, os.O_RDONLY) as fd:
        return os.pread(fd, 1 << 20, 0)


def run_at_random(hosts: Callable[[str], Sequence[Host]], steps: int, **options: Any) -> None:
    """Make changes in a new directory for each `RUN_STEPS`, with a seed that the output tells."""
    for base in range(0, steps, RUN_STEPS):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        RandomChanges(hosts(f"/run{base}"), seed, **options).run(min(RUN_STEPS, steps - base))
