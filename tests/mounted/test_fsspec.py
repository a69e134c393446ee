"""File systems of fsspec as routes of a mount."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path

import pytest
from mounts import Mounted, Serve
from programs import sh
from services import fsspec_servers

from fusebackend.testing.posix.case import fails, refused

pytest.importorskip("fsspec")

GIB = 1 << 30


def require_bounded(mount: Mounted, path: Path, end: bytes) -> None:
    """The end of a file of a gibibyte is read, without the rest of it in memory."""
    before = mount.memory_kib()
    with path.open("rb", buffering=0) as opened:
        opened.seek(GIB - 4096)
        assert opened.read(4096) == end
    assert mount.memory_kib() - before < 64 << 10


def test_what_is_on_an_ftp_server_and_in_an_archive(tmp_path: Path, serve: Serve) -> None:
    top = tmp_path / "ftp"
    top.mkdir()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/in.txt", "zipped\n")
    with fsspec_servers.running("ftp", top) as port:
        url = f"ftp://{fsspec_servers.USER}:{fsspec_servers.PASSWORD}@127.0.0.1:{port}"
        mount = serve("memory:", routes={"/ftp": f"fsspec:{url}/", "/zip": f"fsspec:zip://?fo={tmp_path}/a.zip"})
        sh("echo one > ftp/a; cat ftp/a; cp zip/d/in.txt ftp/b; mv ftp/a ftp/c", mount.path)
        assert {path.name: path.read_text() for path in top.iterdir()} == {"b": "zipped\n", "c": "one\n"}
        refused(errno.EROFS, (mount.path / "zip/new").touch)
        mount.stop()


def test_a_web_server_is_a_read_only_route(tmp_path: Path, serve: Serve) -> None:
    top = tmp_path / "web"
    (top / "d/empty").mkdir(parents=True)
    (top / "d/a b%41.txt").write_text("one\n")
    content = os.urandom(5 << 20)
    for name in ("large", "replaced"):
        (top / name).write_bytes(content)
    os.utime(top / "large", (1_000_000_000, 1_000_000_000))
    with (top / "huge").open("wb") as huge:
        huge.truncate(GIB)
    with fsspec_servers.running("http", top) as port:
        mount = serve("memory:", routes={"/w": f"fsspec:http://127.0.0.1:{port}/?ttl=0"})
        at = mount.path / "w"
        assert sorted(os.listdir(at)) == ["d", "huge", "large", "replaced"]
        assert sorted(os.listdir(at / "d")) == ["a b%41.txt", "empty"]
        assert os.listdir(at / "d/empty") == [] and (at / "d/a b%41.txt").read_text() == "one\n"
        assert (at / "large").read_bytes() == content and (at / "large").stat().st_mtime == 1_000_000_000
        refused(errno.EROFS, (at / "d/new").touch)
        refused(errno.ENOENT, (at / "d/none").stat)
        require_bounded(mount, at / "huge", bytes(4096))
        (top / "d/a b%41.txt").write_text("other\n")
        assert (at / "d/a b%41.txt").read_text() == "other\n"
        with (at / "replaced").open("rb", buffering=0) as opened:
            assert opened.read(4096) == content[:4096]
            (top / "replaced").write_bytes(bytes(5 << 20))
            with fails(errno.ESTALE):  # none mixes two versions
                os.pread(opened.fileno(), 4096, 4 << 20)
        mount.stop()


@pytest.mark.timeout(120)
@pytest.mark.services
def test_a_share_of_samba(tmp_path: Path, serve: Serve) -> None:
    top = tmp_path / "share"
    (top / "d").mkdir(parents=True)
    (top / "d/old.txt").write_text("old\n")
    content = os.urandom(10 << 20)  # two parts, and more than a buffer has in memory
    (top / "large").write_bytes(content)
    with (top / "huge").open("wb") as huge:
        huge.truncate(GIB)
    with fsspec_servers.running("smb", top) as port:
        url = f"smb://{fsspec_servers.USER}:{fsspec_servers.PASSWORD}@127.0.0.1:{port}/files"
        mount = serve("memory:", routes={"/s": f"fsspec:{url}?ttl=0"})
        mount.expected_log = "was changed by others"
        at = mount.path / "s"
        sh("cat d/old.txt; echo new > d/new.txt; mv d/new.txt moved.txt; mkdir e; echo more >> moved.txt", at)
        sh("mv d/old.txt e/over; mv moved.txt e/over; mv d f; rmdir f", at)  # over a file; a directory
        assert (top / "e/over").read_text() == "new\nmore\n" and sorted(os.listdir(at)) == ["e", "huge", "large"]
        assert sorted(os.listdir(top)) == ["e", "huge", "large"] and os.listdir(at / "e") == ["over"]
        assert (at / "large").read_bytes() == content
        sh("cp large e/copy; cmp large e/copy; rm e/copy", at)

        require_bounded(mount, at / "huge", bytes(4096))

        with (at / "e/over").open("rb", buffering=0) as reading:  # Samba replaces no file that its client has open
            assert reading.read(3) == b"new"
            sh("echo replaced > e/over; sync e/over", at)

        elsewhere = pytest.importorskip("fsspec").filesystem(
            "smb", host="127.0.0.1", port=port, username=fsspec_servers.USER, password=fsspec_servers.PASSWORD
        )
        opened_alone = elsewhere.open("/files/e/over", "rb", share_access=None)  # which shares it with nobody
        with opened_alone, fails(errno.EBUSY):
            (at / "e/over").read_bytes()

        (top / "e/over").write_text("elsewhere\n")  # by another client of the server
        (top / "e/another").write_text("another\n")
        assert (at / "e/over").read_text() == "elsewhere\n" and sorted(os.listdir(at / "e")) == ["another", "over"]
        with fails(errno.ESTALE), (at / "e/over").open("r+b", buffering=0) as opened:  # as each close is
            assert opened.read(1) == b"e" and opened.write(b"mine\n")
            (top / "e/over").write_text("once more\n")
            with fails(errno.ESTALE):
                os.fsync(opened.fileno())
        assert (top / "e/over").read_text() == "once more\n" == (at / "e/over").read_text()
        assert not [name for name in os.listdir(top / "e") if name.startswith(".")]
        mount.stop()
