"""A defect in a volume ends one request with EIO, never the server."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import mounts
import pytest
from mounts import Mounted

from fusebackend.testing.likeness import opening

NEW = iter(range(10**9))


def new(root: Path) -> Path:
    """Return a name never used before, which the kernel has not cached."""
    return root / f"new{next(NEW)}"


# Method of the volume → a system call that needs it, and that the kernel can't answer from its caches.
CALLS: dict[str, Callable[[Path], object]] = {
    "mknod": lambda root: os.mkfifo(new(root)),
    "mkdir": lambda root: os.mkdir(new(root)),
    "symlink": lambda root: os.symlink("x", new(root)),
    "link": lambda root: os.link(root / "file", new(root)),
    "unlink": lambda root: os.unlink(root / "file"),
    "rmdir": lambda root: os.rmdir(root / "directory"),
    "rename": lambda root: os.rename(root / "file", new(root)),
    "setattr": lambda root: os.chmod(root / "file", 0o600),
    "readlink": lambda root: os.readlink(root / "link"),
    "getxattr": lambda root: os.getxattr(root / "file", "user.x"),
    "setxattr": lambda root: os.setxattr(root / "file", "user.x", b"1"),
    "listxattr": lambda root: os.listxattr(root / "file"),
    "removexattr": lambda root: os.removexattr(root / "file", "user.x"),
    "statfs": os.statvfs,
    "create": lambda root: new(root).touch(),
    "open": lambda root: os.close(os.open(root / "file", os.O_RDONLY)),
    "read": lambda root: opening(root / "large", os.O_RDONLY | os.O_DIRECT, lambda file: os.pread(file, 4096, 0)),
    "write": lambda root: opening(root / "file", os.O_WRONLY, lambda file: os.write(file, b"x")),
    "fsync": lambda root: opening(root / "file", os.O_RDONLY, os.fsync),
    "readdir": os.listdir,
}
# The kernel does not wait for the reply of these, so no caller gets their error.
UNHEARD: dict[str, Callable[[Path], object]] = {
    "release": lambda root: os.close(os.open(root / "file", os.O_RDONLY)),
    "forget": lambda root: (root / "file").unlink(),
}


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """Serve one mount for all these failures, one after the other; it must survive them."""
    with mounts.mounted(tmp_path_factory.mktemp("faults") / "mnt", "python:faulty:backend") as server:
        server.expected_log = "^Traceback|injected|defect"
        yield server


@pytest.fixture
def server(one_server: Mounted) -> Mounted:
    root = one_server.path
    disarm(root)
    (root / "file").write_bytes(b"some words")
    (root / "large").write_bytes(bytes(1 << 20))
    (root / "directory").mkdir(exist_ok=True)
    if not (root / "link").is_symlink():
        (root / "link").symlink_to("file")
    os.setxattr(root / "file", "user.x", b"0")
    return one_server


def arm(root: Path, method: str) -> None:
    assert not (root / f"arm-{method}-{next(NEW)}").exists()  # another name each time: absence is cached


def disarm(root: Path) -> None:
    assert not (root / f"disarm-{next(NEW)}").exists()


@pytest.mark.parametrize("method", CALLS)
def test_a_defect_is_eio_for_the_caller(server: Mounted, method: str) -> None:
    arm(server.path, method)
    with pytest.raises(OSError) as failure:
        CALLS[method](server.path)
    disarm(server.path)
    assert failure.value.errno == errno.EIO
    assert_works(server)


@pytest.mark.parametrize("method", UNHEARD)
def test_a_defect_that_no_caller_hears_of_is_in_the_log(server: Mounted, method: str) -> None:
    arm(server.path, method)
    UNHEARD[method](server.path)
    assert_works(server)
    os.listdir(server.path)
    disarm(server.path)
    assert "injected" in server.log_text()


def test_a_lookup_that_fails_ends_nothing(server: Mounted) -> None:
    arm(server.path, "lookup")
    with pytest.raises(OSError) as failure:
        os.stat(new(server.path))
    assert failure.value.errno == errno.EIO
    disarm(server.path)
    assert_works(server)


def test_a_getattr_that_fails_ends_nothing(server: Mounted) -> None:
    file = os.open(server.path / "file", os.O_WRONLY)
    arm(server.path, "getattr")
    os.write(file, b"x")  # invalidates the kernel's cached attributes
    with pytest.raises(OSError) as failure:
        os.fstat(file)
    disarm(server.path)
    os.close(file)
    assert failure.value.errno == errno.EIO
    assert_works(server)


def test_each_defect_is_logged_once_with_its_traceback(server: Mounted) -> None:
    before = len(server.log_text())
    arm(server.path, "mkdir")
    with pytest.raises(OSError):
        os.mkdir(new(server.path))
    disarm(server.path)
    logged = server.log_text()[before:]
    assert logged.count("RuntimeError: injected") == 1
    assert logged.count("Traceback") == 1


def assert_works(server: Mounted) -> None:
    path = new(server.path)
    path.write_bytes(b"still here")
    assert path.read_bytes() == b"still here"
    assert server.process.poll() is None
