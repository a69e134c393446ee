"""A throwaway WebDAV server in a process of its own: wsgidav behind cheroot, on loopback, over a directory.

    with running(tmp_path) as server:
        WebdavBackend(server.url)                # server.root is the directory that it serves

Its ETags hold nanoseconds. wsgidav's own hold whole seconds, so that two versions of equal length can share one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

USER, PASSWORD = "agent", "pass:word"


class Webdav(NamedTuple):
    """A collection of a server, and the directory that holds it."""

    url: str
    root: Path

    def below(self, name: str) -> Webdav:
        """Make a new collection in this one."""
        (self.root / name).mkdir()
        return Webdav(f"{self.url}/{quote(name)}", self.root / name)


def require() -> None:
    """Skip the test where there is no server; see `skips.py` for CI."""
    for module in ("wsgidav", "cheroot", "httpx"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed (pip install {module})")


@contextlib.contextmanager
def running(root: Path, *, login: bool = False) -> Iterator[Webdav]:
    """Run a server for the length of a block, on a free port. With `login`, it accepts only `USER`."""
    from services.fsspec_servers import listening  # this file is also the server's program

    require()
    with listening(__file__, root, "login" * login) as port:
        yield Webdav(f"http://127.0.0.1:{port}", root)


def serve(root: str, login: bool) -> None:
    from cheroot import wsgi
    from wsgidav.fs_dav_provider import FileResource, FilesystemProvider
    from wsgidav.wsgidav_app import WsgiDAVApp

    class File(FileResource):
        def get_etag(self):
            status = os.stat(self._file_path)
            return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

    class Provider(FilesystemProvider):
        def get_resource_inst(self, path, environ):
            found = super().get_resource_inst(path, environ)
            return File(path, environ, found._file_path) if isinstance(found, FileResource) else found

    users = {USER: {"password": PASSWORD}} if login else True
    app = WsgiDAVApp(
        {
            "provider_mapping": {"/": Provider(root, readonly=False)},
            "simple_dc": {"user_mapping": {"*": users}},
            "dir_browser": {"enable": False},
            "logging": {"enable": False},
            "verbose": 0,
        }
    )
    server = wsgi.Server(("127.0.0.1", 0), app, numthreads=8)
    server.prepare()
    print(server.bind_addr[1], flush=True)
    server.serve()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2] == "login")
