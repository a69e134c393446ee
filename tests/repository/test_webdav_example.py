"""examples/webdav_backend.py against a real server: the published suite, what others do meanwhile, and a mount."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from services import webdav as webdav_service

from fusebackend import urls
from fusebackend.testing.conformance import BackendConformance

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
webdav_service.require()
sys.path.insert(0, str(EXAMPLES))

from webdav_backend import WebdavBackend  # noqa: E402

pytestmark = pytest.mark.services

_numbers = itertools.count()

ENTRY_POINTS = """[fusebackend.backends]
dav = webdav_backend:DAV
davs = webdav_backend:DAVS
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with webdav_service.running(tmp_path_factory.mktemp("webdav")) as server:
        yield server


@pytest.fixture
def webdav(server):
    """A collection of its own for each test, with a name that URLs have to escape."""
    return server.below(f"a test {next(_numbers)} é%20")


@pytest.fixture(scope="module")
def opened():
    """Opens backends. They are closed in the end: calls that a test has cancelled may still be using theirs."""
    with contextlib.ExitStack() as stack:

        def open_backend(url, **options):
            backend = WebdavBackend(url, **options)
            stack.callback(backend.close)
            return backend

        yield open_backend


@pytest.fixture
def backend(webdav, opened):
    return opened(webdav.url)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The example as an installed package that adds its schemes."""
    distribution = tmp_path / "site" / "webdav_backend-1.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: webdav-backend\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(distribution.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(distribution.parent), str(EXAMPLES)]))


@pytest.mark.configuration
class TestConformance(BackendConformance):
    any_name = False  # the path of a URL is UTF-8

    @pytest.fixture
    def backend(self, webdav, opened):
        return opened(webdav.url)


# --------------------------------------------------------------------------------------------------------------
# The backend
# --------------------------------------------------------------------------------------------------------------


def test_write_replaces_where_it_is_told_to(webdav, opened):
    backend = opened(webdav.url, on_exists="replace")
    assert [backend.write("/a", text).error for text in ("one", "two")] == [None, None]
    assert (webdav.root / "a").read_text() == "two"


def test_an_edit_is_made_on_what_others_have_written_meanwhile(backend, webdav):
    backend.write("/a", "one two")
    change = itertools.chain([lambda: (webdav.root / "a").write_text("zero one two")], itertools.repeat(lambda: None))
    remote = backend.volume.remote
    plain = remote.put
    remote.put = lambda *args, **options: (next(change)(), plain(*args, **options))[1]
    assert backend.edit("/a", "two", "three").error is None
    assert (webdav.root / "a").read_text() == "zero one three"


def test_a_failure_of_the_server_says_which(opened):
    result = opened("http://127.0.0.1:1/home").ls("/")
    assert result.error == "Path '/': http://127.0.0.1:1/home: [Errno 111] Connection refused"


def test_it_logs_in(tmp_path, opened):
    with webdav_service.running(tmp_path, login=True) as server:
        address = server.url.removeprefix("http://")
        right = f"http://{webdav_service.USER}:{quote(webdav_service.PASSWORD)}@{address}"
        assert opened(right).write("/a", "x").error is None
        assert opened(server.url).read("/a").error == "File '/a': Permission denied"
        assert webdav_service.PASSWORD not in repr(opened(right))


def test_what_is_no_url_of_a_server_is_refused():
    with pytest.raises(ValueError, match="'ftp:' is no URL of a WebDAV server"):
        WebdavBackend("ftp://host/path")


# --------------------------------------------------------------------------------------------------------------
# URLs and mounts
# --------------------------------------------------------------------------------------------------------------


def test_its_schemes_are_registered(package):
    url = urls.parse("davs://user:secret@host/home?ttl_s=5")
    assert url.masked == "davs://user:***@host/home?ttl_s=5"
    with contextlib.closing(urls.open_backend(url)) as backend:
        assert (repr(backend), backend.volume.ttl_s) == ("<WebdavBackend of https://host/home>", 5.0)
    with pytest.raises(urls.UrlError, match="knows no parameter 'tls'"):
        urls.parse("dav://host/home?tls=1")


@pytest.fixture
def mounted(webdav, package, serve):
    url = webdav.url.replace("http:", "dav:") + "?ttl_s=0"
    return serve("memory:", routes={"/team": url})


@pytest.mark.mounted
def test_a_lost_update_is_an_error_on_a_mount_and_loses_nothing(mounted, webdav):
    team = mounted.path / "team"
    (webdav.root / "notes").write_text("old")
    mounted.expected_log = "was changed by others"
    fd = os.open(team / "notes", os.O_RDWR)
    os.write(fd, b"ours")
    (webdav.root / "notes").write_text("theirs")
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        os.close(fd)
    (kept,) = webdav.root.glob("notes.conflict-*")
    assert ((webdav.root / "notes").read_text(), kept.read_text()) == ("theirs", "ours")
