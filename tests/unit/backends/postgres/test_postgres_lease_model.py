"""Hosts that come and go on one volume, and change it in turns: each sees at once what any of them has done.

One that is alone waits for its lease now and then, and answers from memory. All answers are compared with a dict.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import hypothesis
import pytest
from eventually import eventually
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from profiles import examples
from services.postgres import Postgres

from fusebackend.backends.postgres import feed, lease
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller
from fusebackend.testing.posix.case import refused

ME = Caller(0, 0)
MOST = 3
NAMES = st.sampled_from([b"a", b"b", b"c", b"d"])
DIRECTORIES = st.sampled_from([(), (b"dir",), (b"dir", b"inner"), (b"other",)])
Path = tuple[bytes, ...]
Tree = dict[Path, bytes | None]
"""The contents of files; None for a directory."""


@pytest.fixture(scope="module", autouse=True)
def database(postgres: Postgres) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, postgres.database() as Hosts.dsn:
        patch.setattr(lease, "SETTLED_S", 0.0)
        patch.setattr(feed, "SURVEY_S", 0.02)
        patch.setattr(feed, "IDLE_S", 0.02)
        yield


class Hosts(RuleBasedStateMachine):
    dsn: ClassVar = ""

    def __init__(self) -> None:
        super().__init__()
        self.name = uuid.uuid4().hex
        self.tree: Tree = {(): None}
        self.hosts: list[PostgresVolume] = []
        self.comes()

    def teardown(self) -> None:
        for host in self.hosts:
            host.close()

    # -- hosts -------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.hosts) < MOST)
    @rule()
    def comes(self) -> None:
        self.hosts.append(PostgresVolume(self.dsn, self.name))
        assert len(self.hosts) == 1 or not any(host.all_at_once for host in self.hosts)

    @precondition(lambda self: len(self.hosts) > 1)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        self.hosts.remove(host := data.draw(st.sampled_from(self.hosts)))
        host.close()

    @precondition(lambda self: len(self.hosts) > 1)
    @rule(data=st.data())
    def is_left_alone(self, data: st.DataObject) -> None:
        stays = data.draw(st.sampled_from(self.hosts))
        for host in self.hosts:
            if host is not stays:
                host.close()
        self.hosts = [stays]
        self.has_lease()

    @precondition(lambda self: len(self.hosts) == 1)
    @rule()
    def has_lease(self) -> None:
        eventually(lambda: self.hosts[0].all_at_once)

    # -- changes -----------------------------------------------------------------------------------------------

    def _host(self, data: st.DataObject) -> PostgresVolume:
        return data.draw(st.sampled_from(self.hosts))

    def _node(self, host: PostgresVolume, path: Path) -> int:
        node = ROOT_NODE
        for name in path:
            node = host.lookup(node, name).node
        return node

    def _all_see(self, *paths: Path) -> None:
        """Compare what each host says of these paths, of which one has just been changed."""
        for host in self.hosts:
            for path in paths:
                self._sees(host, path)

    def _sees(self, host: PostgresVolume, path: Path) -> None:
        parent = self._node(host, path[:-1])
        if path not in self.tree:
            refused(errno.ENOENT, host.lookup, parent, path[-1])
            return
        attr = host.lookup(parent, path[-1])
        content = self.tree[path]
        assert stat.S_ISDIR(attr.mode) == (content is None)
        if content is not None:
            host.open(attr.node, os.O_RDONLY)
            try:
                assert host.read(attr.node, 0, 100) == content
            finally:
                host.release(attr.node, os.O_RDONLY)

    def _is_directory(self, path: Path) -> bool:
        return path in self.tree and self.tree[path] is None

    @rule(data=st.data(), directory=DIRECTORIES, name=NAMES, content=st.binary(max_size=20))
    def write(self, data: st.DataObject, directory: Path, name: bytes, content: bytes) -> None:
        """Make a file or write it anew, as open(2) with O_CREAT and O_TRUNC does."""
        path = (*directory, name)
        if not self._is_directory(directory) or self._is_directory(path):
            return
        host = self._host(data)
        parent = self._node(host, directory)
        if path in self.tree:
            node = host.lookup(parent, name).node
            host.open(node, os.O_WRONLY)
            host.setattr(node, AttrChanges(size=0))
        else:
            node = host.create(parent, name, 0o644, os.O_WRONLY, ME).node
        host.write(node, 0, content)
        host.flush(node)
        host.release(node, os.O_WRONLY)
        self.tree[path] = content
        self._all_see(path)

    @rule(data=st.data(), directory=DIRECTORIES)
    def mkdir(self, data: st.DataObject, directory: Path) -> None:
        if not directory or directory in self.tree or not self._is_directory(directory[:-1]):
            return
        host = self._host(data)
        host.mkdir(self._node(host, directory[:-1]), directory[-1], 0o755, ME)
        self.tree[directory] = None
        self._all_see(directory)

    @rule(data=st.data(), directory=DIRECTORIES, name=NAMES)
    def remove(self, data: st.DataObject, directory: Path, name: bytes) -> None:
        path = (*directory, name)
        host = self._host(data)
        if path in self.tree and self.tree[path] is not None:
            host.unlink(self._node(host, directory), name)
            del self.tree[path]
            self._all_see(path)
        elif directory and directory in self.tree and self._below(directory) == [directory]:
            host.rmdir(self._node(host, directory[:-1]), directory[-1])
            del self.tree[directory]
            self._all_see(directory)

    def _below(self, path: Path) -> list[Path]:
        return [each for each in self.tree if each[: len(path)] == path]

    @rule(data=st.data(), source=DIRECTORIES, name=NAMES, to=DIRECTORIES, new_name=NAMES)
    def rename(self, data: st.DataObject, source: Path, name: bytes, to: Path, new_name: bytes) -> None:
        old, new = (*source, name), (*to, new_name)
        if self.tree.get(old) is None or not self._is_directory(to) or self._is_directory(new):
            return
        host = self._host(data)
        host.rename(self._node(host, source), name, self._node(host, to), new_name)
        self.tree[new] = self.tree.pop(old)
        self._all_see(old, new)

    @rule(data=st.data(), source=DIRECTORIES, to=DIRECTORIES)
    def rename_directory(self, data: st.DataObject, source: Path, to: Path) -> None:
        if not source or not to or not self._is_directory(source) or to in self.tree:
            return
        if not self._is_directory(to[:-1]) or to[: len(source)] == source:
            return
        host = self._host(data)
        host.rename(self._node(host, source[:-1]), source[-1], self._node(host, to[:-1]), to[-1])
        for path in self._below(source):
            self.tree[to + path[len(source) :]] = self.tree.pop(path)
        self._all_see(source, to)

    # -- what all of them see ----------------------------------------------------------------------------------

    @rule(data=st.data(), directory=DIRECTORIES, name=NAMES)
    def look(self, data: st.DataObject, directory: Path, name: bytes) -> None:
        if not self._is_directory(directory):
            return
        self._sees(self._host(data), (*directory, name))

    @rule(data=st.data(), limit=st.integers(1, 4))
    def all_is_there(self, data: st.DataObject, limit: int) -> None:
        host = self._host(data)
        found: dict[Path, Any] = {(): None}
        pending: list[tuple[Path, int]] = [((), ROOT_NODE)]
        while pending:
            path, node = pending.pop()
            after = b""
            while page := host.readdir(node, after, limit):
                for name, attr in page:
                    after = name
                    if stat.S_ISDIR(attr.mode):
                        found[*path, name] = None
                        pending.append(((*path, name), attr.node))
                    else:
                        found[*path, name] = attr.size
        assert found == {path: None if content is None else len(content) for path, content in self.tree.items()}


TestHosts = Hosts.TestCase
TestHosts.settings = hypothesis.settings(
    max_examples=examples(10), stateful_step_count=60, deadline=None, database=None
)
