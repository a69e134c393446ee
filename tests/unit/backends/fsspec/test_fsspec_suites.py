"""The published suite of verbs on file systems of fsspec: real servers where there are any."""

from __future__ import annotations

import uuid

import pytest

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from services import fsspec_servers, webdav

from fusebackend.backends.fsspec.backend import FsspecBackend
from fusebackend.backends.fsspec.remote import BLOCK_BYTES, FsspecRemote
from fusebackend.testing.conformance import BackendConformance


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
    def test_a_directory_of_many_entries(self):
        pytest.skip("thousands of requests: file systems without a server have it")


class TestFile(Files):
    @pytest.fixture
    def backend(self, tmp_path):
        with self.place(opened("file"), str(tmp_path)) as backend:
            yield backend


class TestMemory(Files):
    @pytest.fixture
    def backend(self):
        with self.place(opened("memory"), "/conformance") as backend:
            yield backend


class TestDirectoryOfAnother(Files):
    @pytest.fixture
    def backend(self, tmp_path):
        with self.place(DirFileSystem(str(tmp_path), opened("file")), "") as backend:
            yield backend


LOGIN = {"host": "127.0.0.1", "username": fsspec_servers.USER, "password": fsspec_servers.PASSWORD}


@pytest.mark.services
class TestFtp(Served):
    @pytest.fixture(scope="class")
    @classmethod
    def fs(cls, tmp_path_factory):
        with fsspec_servers.running("ftp", tmp_path_factory.mktemp("ftp")) as port:
            fs = opened("ftp", port=port, **LOGIN)
            yield fs
            fs.ftp.close()

    @pytest.fixture
    def backend(self, fs):
        with self.place(fs, "") as backend:
            yield backend


@pytest.mark.services
class TestSftp(Served):
    @pytest.fixture(scope="class")
    @classmethod
    def fs(cls, tmp_path_factory):
        with fsspec_servers.running("sftp", tmp_path_factory.mktemp("sftp")) as port:
            fs = opened("sftp", port=port, **LOGIN)
            yield fs
            fs.client.close()

    @pytest.fixture
    def backend(self, fs):
        with self.place(fs, "") as backend:
            yield backend

    def test_the_root_of_a_server(self, fs):
        with FsspecBackend(fs, "/") as backend:
            assert backend.write("/of-the-root", "x").error is None
        with FsspecBackend(fs, "/") as backend:
            assert "/of-the-root" in [entry["path"] for entry in backend.ls("/").entries]
            assert backend.delete("/of-the-root").error is None


@pytest.mark.services
class TestWebdav(Served):
    @pytest.fixture(scope="class")
    @classmethod
    def fs(cls, tmp_path_factory):
        pytest.importorskip("webdav4")
        with webdav.running(tmp_path_factory.mktemp("webdav")) as server:
            fs = opened("webdav", base_url=server.url)
            yield fs
            fs.client.http.close()

    @pytest.fixture
    def backend(self, fs):
        with self.place(fs, "") as backend:
            yield backend


class Buffered(AbstractFileSystem):
    """One file, of which it counts what is fetched."""

    protocol = "buffered"
    content = bytes(range(256)) * (2 * BLOCK_BYTES // 256)

    def __init__(self, **options):
        super().__init__(**options)
        self.fetched = 0

    def info(self, path, **options):
        return {"name": path, "type": "file", "size": len(self.content)}

    def _open(self, path, mode="rb", **options):
        return Fetched(self, path, mode, **options)


class Fetched(AbstractBufferedFile):
    def _fetch_range(self, start, end):
        self.fs.fetched += end - start
        return self.fs.content[start:end]


def test_reads_that_overtake_each_other_fetch_nothing_twice():
    fs = Buffered(skip_instance_cache=True)
    reader = FsspecRemote(fs, "").reader("file", None, len(fs.content))
    step = BLOCK_BYTES // 4
    for number in (1, 0, 3, 2, 4, 6, 5, 7, 3, 0):
        at = number * step
        assert reader.read(at, step) == fs.content[at : at + step]
    reader.close()
    assert fs.fetched == len(fs.content)
