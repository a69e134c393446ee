"""Pages of the version that is opened: where the open itself finds the change, before the feed has told of it."""

from __future__ import annotations

import os
from pathlib import Path

import graphs
import pytest
from fakekernel import FakeKernel

from fusebackend.backends.threads import ThreadsBackend
from fusebackend.backends.threads import volume as threads_volume
from fusebackend.vfs.inodes import ROOT_INODE
from fusebackend.vfs.mounted_tree import FileSystem


@pytest.mark.trio
@pytest.mark.fails_without("page_versions")
async def test_a_file_that_has_grown_since_its_lookup_is_not_read_to_its_old_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_volume.Feed, "start", lambda feed: None)
    path = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(path) as saver, ThreadsBackend.from_sqlite(path) as backend:
        script = [graphs.use(graphs.write("/count.txt", "9")), graphs.say("done")]
        agent = graphs.deep_agent(saver, script)
        agent.invoke(graphs.user("go"), graphs.thread("t"))
        filesystem, kernel = FileSystem.of(backend), FakeKernel()
        filesystem.attach(kernel)
        inode = ROOT_INODE
        for name in (b"t", b"head", b"count.txt"):
            inode = (await filesystem.lookup(inode, name)).inode
        opened = await filesystem.open(inode, os.O_RDONLY)
        assert opened.keep_pages and not kernel.told
        await filesystem.release(opened.number)
        agent.model.script.extend([graphs.use(graphs.edit("/count.txt", "9", "10")), graphs.say("done")])
        agent.invoke(graphs.user("go"), graphs.thread("t"))
        opened = await filesystem.open(inode, os.O_RDONLY)
        assert not opened.keep_pages
        assert ("attributes", inode) in kernel.told
        assert await filesystem.read(opened.number, 0, 10) == b"10"
        await filesystem.release(opened.number)
        filesystem.detach()
