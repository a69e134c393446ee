"""The published suite of verbs on file systems of fsspec: real servers where there are any."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import socket
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from nodes import names
from services import fsspec_servers, webdav

from fusebackend.backends.fsspec.reading import CONNECTION_PACE, LOOP_PACE, LOST, FsAccess, FsFile
from fusebackend.backends.fsspec.remote import FsspecBackend, FsspecRemote
from fusebackend.base.waiting import WouldWait, at_once
from fusebackend.protocol import ROOT_NODE
from fusebackend.remote.ranges import BLOCK_BYTES as UNIT_BYTES
from fusebackend.remote.ranges import BlockCache, RangedReader
from fusebackend.testing.conformance import BackendConformance
from fusebackend.testing.posix.case import fails, refused
from fusebackend.volumes.contents import opened as opened_file

RANGE_BYTES = CONNECTION_PACE.part_bytes


def opened(protocol, **options):
    return fsspec.filesystem(protocol, skip_instance_cache=True, **options)


class Files(BackendConformance):
    any_name = False

    def place(self, fs, top):
        """An empty directory."""
        path = f"{top}/{uuid.uuid4().hex}"
        fs.makedirs(path)
        return FsspecBackend(fs, path)


class Served(Files):
    """On the server of a fixture of this module."""

    many_entries = 50  # each is several requests; file systems without a server have more
    server: str
    top = ""

    @pytest.fixture
    def backend(self, request):
        with self.place(request.getfixturevalue(self.server), self.top) as backend:
            yield backend


class TestFile(Files):
    @pytest.fixture
    def backend(self, tmp_path):
        with self.place(opened("file"), str(tmp_path)) as backend:
            yield backend


@pytest.mark.configuration
class TestMemory(Files):
    @pytest.fixture
    def backend(self):
        with self.place(opened("memory"), "/conformance") as backend:
            yield backend


@pytest.mark.configuration
class TestDirectoryOfAnother(Files):
    @pytest.fixture
    def backend(self, tmp_path):
        with self.place(DirFileSystem(str(tmp_path), opened("file")), "") as backend:
            yield backend


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_a_directory_replaces_an_empty_one(protocol, tmp_path):
    """And no other: `mv` of these file systems would put it into that one."""
    fs = opened(protocol)
    top = f"{tmp_path}/replaced"
    for path in ("one/file", "empty/", "full/file"):
        fs.makedirs(f"{top}/{path.rpartition('/')[0]}")
        if not path.endswith("/"):
            fs.pipe_file(f"{top}/{path}", b"x")
    with FsspecBackend(fs, top) as backend:
        volume = backend.volume
        refused(errno.ENOTEMPTY, volume.rename, ROOT_NODE, b"one", ROOT_NODE, b"full")
        volume.rename(ROOT_NODE, b"one", ROOT_NODE, b"empty")
        assert names(volume) == [b"empty", b"full"]
    assert sorted(path.removeprefix(top) for path in fs.find(top)) == ["/empty/file", "/full/file"]


LOGIN = {"host": "127.0.0.1", "username": fsspec_servers.USER, "password": fsspec_servers.PASSWORD}


@pytest.fixture(scope="module")
def ftp(tmp_path_factory):
    with fsspec_servers.running("ftp", tmp_path_factory.mktemp("ftp")) as port:
        fs = opened("ftp", port=port, **LOGIN)
        yield fs
        fs.ftp.close()


@pytest.fixture(scope="module")
def sftp(tmp_path_factory):
    with fsspec_servers.running("sftp", tmp_path_factory.mktemp("sftp")) as port:
        fs = opened("sftp", port=port, **LOGIN)
        yield fs
        fs.client.close()


@pytest.fixture(scope="module")
def smb(tmp_path_factory):
    with fsspec_servers.running("smb", tmp_path_factory.mktemp("smb")) as port:
        yield opened("smb", port=port, **LOGIN)


@pytest.fixture(scope="module")
def dav(tmp_path_factory):
    pytest.importorskip("webdav4")
    with webdav.running(tmp_path_factory.mktemp("webdav")) as server:
        fs = opened("webdav", base_url=server.url)
        yield fs
        fs.client.http.close()


@pytest.mark.configuration
@pytest.mark.services
class TestFtp(Served):
    server = "ftp"


@pytest.mark.services
class TestTransfersByFtp:
    @pytest.fixture
    def stored(self, ftp):
        """A file on the server, a remote with it, and the commands that begin or end a transfer."""
        content = os.urandom(3 * RANGE_BYTES + 5)
        ftp.pipe_file("/stored", content)
        sent, send = [], ftp.ftp.putcmd
        ftp.ftp.putcmd = lambda line: (sent.append(line.partition(" ")[0]), send(line))
        remote = FsspecRemote(ftp, "/")
        yield content, remote, sent
        del ftp.ftp.putcmd
        remote.close()
        ftp.rm_file("/stored")

    def test_a_sequential_read_is_one_transfer(self, stored):
        content, remote, sent = stored
        with closing(remote.reader("stored", None, len(content))) as reader:
            for at in range(0, len(content), UNIT_BYTES):
                assert reader.read(at, UNIT_BYTES) == content[at : at + UNIT_BYTES]
        assert sent.count("RETR") == 1
        assert remote.head("stored").size == len(content)  # the connection takes commands

    def test_other_requests_come_between_the_ranges_of_a_transfer(self, stored):
        content, remote, _ = stored
        half = len(content) // 2 // UNIT_BYTES * UNIT_BYTES
        with (
            closing(remote.reader("stored", None, len(content))) as reader,
            closing(remote.reader("stored", None, len(content))) as other,
        ):
            for at in range(0, half, UNIT_BYTES):
                assert reader.read(at, UNIT_BYTES) == content[at : at + UNIT_BYTES]
                if at % (8 * UNIT_BYTES) == 0:
                    assert remote.head("stored").size == len(content)
                    assert other.read(half + at, 100) == content[half + at : half + at + 100]
        assert remote.head("stored").size == len(content)

    def test_a_file_of_another_length_by_now(self, stored):
        content, remote, _ = stored
        with closing(remote.reader("stored", None, 2 * RANGE_BYTES)) as reader:
            whole = b"".join(reader.read(at, UNIT_BYTES) for at in range(0, 3 * RANGE_BYTES, UNIT_BYTES))
            assert whole == content[: 2 * RANGE_BYTES]
        with closing(remote.reader("stored", None, len(content) + 1)) as reader:
            at = len(content) // UNIT_BYTES * UNIT_BYTES
            assert reader.read(0, 10) == content[:10]
            refused(errno.ESTALE, reader.read, at, UNIT_BYTES)
        assert remote.head("stored").size == len(content)


@pytest.mark.configuration
@pytest.mark.services
class TestSftp(Served):
    server = "sftp"


@pytest.mark.services
def test_the_root_of_a_server(sftp):
    with FsspecBackend(sftp, "/") as backend:
        assert backend.write("/of-the-root", "x").error is None
    with FsspecBackend(sftp, "/") as backend:
        assert "/of-the-root" in [entry["path"] for entry in backend.ls("/").entries]
        assert backend.delete("/of-the-root").error is None


@pytest.mark.configuration
@pytest.mark.services
class TestSmb(Served):
    server = "smb"
    top = "/files"


@pytest.mark.configuration
@pytest.mark.services
class TestWebdav(Served):
    server = "dav"


def cut(fs):
    """Close the connection of a file system, as a server does with one that is idle."""
    if "smb" in fs.protocol:
        from smbclient._pool import _SMB_CONNECTIONS

        connection = _SMB_CONNECTIONS[f"{fs.host}:{fs.port}"].transport._sock
    else:
        connection = fs.ftp.sock if "ftp" in fs.protocol else fs.client.get_transport().sock
    connection.shutdown(socket.SHUT_RDWR)


def asked(question):
    """As the mount asks: again, when the connection was lost."""
    for _ in range(2):
        try:
            return question()
        except OSError as error:
            if error.errno not in LOST:
                raise
    return question()


def cut_thrice(kind, tmp_path):
    content = os.urandom(4 * RANGE_BYTES)
    (tmp_path / "file").write_bytes(content)
    with fsspec_servers.running(kind, tmp_path) as port:
        fs = opened(kind, port=port, **LOGIN)
        remote = FsspecRemote(fs, "/files" if kind == "smb" else "/")
        head = remote.head("file")
        reader = remote.reader("file", head.etag, head.size)
        assert reader.read(0, UNIT_BYTES) == content[:UNIT_BYTES]
        reader.drop_ahead()  # its thread might connect again before the file is another one
        cut(fs)
        at = len(content) - 2 * UNIT_BYTES
        assert asked(lambda: reader.read(at, 100)) == content[at : at + 100]
        cut(fs)
        assert list(asked(lambda: remote.contents("")).infos) == [b"file"]
        cut(fs)
        (tmp_path / "file").write_bytes(content[1:])
        with fails(errno.ESTALE):  # it is another version by now
            asked(lambda: reader.read(len(content) // 2, 100))
        reader.close()
        remote.close()
        if kind != "smb":
            (fs.client if kind == "sftp" else fs.ftp).close()


@pytest.mark.services
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of a thread of paramiko's
@pytest.mark.filterwarnings("ignore:unclosed SMB handle")  # of the connection that was lost: it can't be closed
@pytest.mark.parametrize("kind", ["ftp", "sftp", "smb"])
def test_a_lost_connection_is_made_again(kind, tmp_path):
    cut_thrice(kind, tmp_path)
    gc.collect()  # here the filters hold


class Buffered(AbstractFileSystem):
    """One file, of which it counts what is fetched."""

    protocol = "buffered"
    content = bytes(range(256)) * (RANGE_BYTES // 256)

    def __init__(self, **options):
        super().__init__(**options)
        self.fetched = self.ranges = 0
        self.broken = False

    def info(self, path, **options):
        return {"name": path, "type": "file", "size": len(self.content)}

    def _open(self, path, mode="rb", **options):
        return Fetched(self, path, mode, **options)


class Fetched(AbstractBufferedFile):
    def _fetch_range(self, start, end):
        if self.fs.broken:
            raise OSError(errno.EIO, "Input/output error", self.path)
        self.fs.fetched += end - start
        self.fs.ranges += 1
        return self.fs.content[start:end]


@pytest.fixture
def buffered():
    fs = Buffered(skip_instance_cache=True)
    remote = FsspecRemote(fs, "")
    reader = remote.reader("file", None, len(fs.content))
    yield fs, reader
    reader.close()
    remote.close()


def fetching(fs, fetch):
    """A reader of the file by a function that yields its bytes from one offset to another."""
    asking, size = FsAccess(fs), len(fs.content)
    file = SimpleNamespace(readv=lambda pieces: fetch(pieces[0][0], sum(pieces[-1])), close=lambda: None)
    source = FsFile("file", file, size, asking, lambda: file)
    return RangedReader("file", source, etag=None, size=size, cache=BlockCache(8 * size, asking.pace))


def test_a_read_waits_for_its_piece_and_not_for_the_range():
    fs = Buffered(skip_instance_cache=True)
    begun, more = threading.Event(), threading.Event()

    def fetch(start, end):
        for at in range(start, end, UNIT_BYTES):
            if at == 3 * UNIT_BYTES:
                begun.set()
                assert more.wait(10)
            yield fs.content[at : at + UNIT_BYTES]

    reader = fetching(fs, fetch)
    assert reader.read(0, UNIT_BYTES) == fs.content[:UNIT_BYTES]  # the next 512 KiB are fetched meanwhile
    assert reader.read(UNIT_BYTES, UNIT_BYTES) == fs.content[UNIT_BYTES : 2 * UNIT_BYTES]
    assert begun.wait(10)
    with pytest.raises(WouldWait):
        at_once(lambda: reader.read(3 * UNIT_BYTES, 10))
    assert at_once(lambda: reader.read(2 * UNIT_BYTES, UNIT_BYTES))
    more.set()
    assert reader.read(3 * UNIT_BYTES, 10) == fs.content[3 * UNIT_BYTES :][:10]
    reader.close()


def test_a_file_system_with_a_loop_is_asked_for_several_ranges_at_once():
    fs = Buffered(skip_instance_cache=True)
    fs.async_impl = True
    barrier = threading.Barrier(LOOP_PACE.threads)
    numbers = itertools.count()
    sizes = []

    def fetch(start, end):
        sizes.append(end - start)
        if 0 < next(numbers) <= LOOP_PACE.threads:
            barrier.wait(10)
        yield fs.content[start:end]

    reader = fetching(fs, fetch)
    for at in range(0, len(fs.content), UNIT_BYTES):
        assert reader.read(at, UNIT_BYTES) == fs.content[at : at + UNIT_BYTES]
    assert sum(sizes) == len(fs.content) and max(sizes) <= LOOP_PACE.part_bytes
    reader.close()


def test_a_socket_that_a_librarys_own_thread_closed_is_a_lost_connection():
    asking = FsAccess(Buffered(skip_instance_cache=True))
    with fails(errno.ECONNRESET), asking.of("file"):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def test_a_file_that_was_cut_is_stale(buffered):
    fs, reader = buffered
    fs.content = fs.content[:UNIT_BYTES]
    assert reader.read(0, 10) == fs.content[:10]
    refused(errno.ESTALE, reader.read, UNIT_BYTES, 10)


def test_what_is_here_is_read_on_the_mounts_own_thread(tmp_path):
    (tmp_path / "file").write_bytes(b"monday")
    with FsspecBackend(opened("file"), str(tmp_path)) as backend:
        volume = backend.volume
        with pytest.raises(WouldWait):
            at_once(lambda: volume.lookup(ROOT_NODE, b"file"))
        with opened_file(volume, volume.lookup(ROOT_NODE, b"file").node, os.O_RDONLY) as node:
            assert volume.read(node, 0, 3) == b"mon"
            assert at_once(lambda: volume.read(node, 3, 3)) == b"day"
            with volume.lock, pytest.raises(WouldWait):  # as while another thread asks for a file
                elsewhere(lambda: at_once(lambda: volume.read(node, 0, 3)))


def test_a_read_that_would_wait_changes_nothing(buffered):
    fs, reader = buffered
    for at in range(0, 2 * UNIT_BYTES, UNIT_BYTES):
        reader.read(at, UNIT_BYTES)
    assert at_once(lambda: reader.read(0, 10)) == fs.content[:10]
    far = len(fs.content) - 10
    with pytest.raises(WouldWait):
        at_once(lambda: reader.read(far, 10))
    assert reader.read(far, 10) == fs.content[far:]
    for at in range(0, len(fs.content), UNIT_BYTES):
        assert reader.read(at, UNIT_BYTES) == fs.content[at : at + UNIT_BYTES]
    assert fs.fetched == len(fs.content)


def elsewhere(call):
    """Raise in this thread what a call raises in another one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call).result()
