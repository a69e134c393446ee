"""Nothing outside the root: links, `..`, and somebody who swaps names for links while a call is on its way.

The attacker here can do what an agent with a shell inside the root could: make links, and rename them over and
against directories and files, as fast as the system lets it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest
from eventually import eventually
from nodes import ME, node_at
from together import over_and_over

from fusebackend.backends.directory import dirfd, search
from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.backends.directory.dirfd import Descriptor
from fusebackend.backends.directory.search import LocalWalk
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, AttrChanges, Caller
from fusebackend.testing.posix.case import refused

SECRET = "the secret of somebody else\n"
ROUNDS = 400

EXPECTED = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.EXDEV, errno.EINVAL, errno.EEXIST, errno.EISDIR,
    errno.ENOTEMPTY, errno.EBADF,
})  # fmt: skip
"""What a call may fail with while names are swapped under it."""


class Scene:
    """A root with `dir/file` and `dir/sub/file`, and outside of it files of the same names that hold a secret."""

    def __init__(self, tmp: Path) -> None:
        self.root, self.outside = tmp / "root", tmp / "outside"
        for place, text in ((self.root / "dir", "harmless\n"), (self.outside, SECRET)):
            (place / "sub").mkdir(parents=True)
            (place / "file").write_text(text)
            (place / "sub" / "file").write_text(text)
        (self.root / "top").write_text("harmless\n")
        self.before = self._look()

    def _look(self):
        found = {}
        for path in [self.outside, *sorted(self.outside.rglob("*"))]:
            status = path.lstat()
            data = path.read_bytes() if path.is_file() else b""
            found[path.name, path.parent.name] = (
                status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_size, status.st_mtime_ns, data,
            )  # fmt: skip
        return found

    def unharmed(self) -> None:
        assert self._look() == self.before, "something outside was changed"


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


@pytest.fixture
def backend(scene):
    with FilesystemBackend(scene.root) as backend:
        yield backend
    scene.unharmed()


# -- paths -----------------------------------------------------------------------------------------------------------

REFUSED = ("/../outside/file", "..", "/dir/../top", "dir/..", "/dir/../../outside/file", "~/x", "~", "~root/.ssh")


@pytest.mark.parametrize("path", REFUSED)
def test_dots_and_tildes_are_refused_by_every_verb(backend, path):
    results = [
        backend.ls(path),
        backend.read(path),
        backend.write(path, "x"),
        backend.edit(path, "a", "b"),
        backend.grep("secret", path),
        backend.glob("*", path),
        backend.delete(path),
        backend.move(path, "/new"),
        backend.move("/top", path),
    ]
    for result in results:
        assert "Path traversal not allowed" in (result.error or ""), result
    assert backend.upload_files([(path, b"x"), ("/fine", b"x")])[0].error == "invalid_path"
    assert [response.error for response in backend.download_files([path, "/fine"])] == ["invalid_path", None]
    assert backend.download_files([path])[0].path == path
    assert backend.ls_info(path) == backend.glob_info("*", path) == []


def test_dots_that_are_only_names_are_not_refused(backend):
    for path in ("/a..b", "/..hidden", "/...", "/x/~", "/dir/~y"):
        assert backend.write(path, "x").error is None
        assert "x" in backend.read(path)
    assert "harmless" in backend.read("dir/file")


@pytest.mark.parametrize("pattern", ["../outside/*", "../**", "dir/../../outside/file"])
def test_patterns_do_not_climb(backend, pattern):
    assert "'..'" in (backend.glob(pattern).error or "")
    assert "'..'" in (backend.grep("secret", glob=pattern).error or "")


# -- links that stay put ---------------------------------------------------------------------------------------


def plant_links(scene) -> list[str]:
    """Links that lead out, each in its own way; gives paths that would reach the secret through them."""
    os.symlink(scene.outside, scene.root / "absolute")
    os.symlink("../outside", scene.root / "relative")
    os.symlink("../../outside", scene.root / "dir" / "deep")
    os.symlink("relative", scene.root / "chain")
    os.symlink("dir/../../outside", scene.root / "roundabout")
    os.symlink("../outside/file", scene.root / "file-link")
    os.symlink(scene.outside / "file", scene.root / "absolute-file")
    os.symlink(scene.outside / "new", scene.root / "dangling")
    links = ["absolute", "relative", "dir/deep", "chain", "roundabout"]
    return [f"/{link}/file" for link in links] + ["/file-link", "/absolute-file", "/dangling"]


def test_links_that_lead_out_are_refused(scene, backend):
    for path in plant_links(scene):
        assert backend.read(path).error, path
        assert backend.write(path, "mine").error, path
        assert backend.edit(path, "secret", "public").error, path
        assert backend.upload_files([(path, b"mine")])[0].error == "invalid_path", path
        assert backend.download_files([path])[0].error == "invalid_path", path
        assert backend.move("/top", path).error, path
        directory = path.removesuffix("/file")
        if directory != path:
            assert backend.delete(path).error, path
            assert backend.ls(directory).error, path
            assert backend.write(f"{directory}/new", "x").error, path
            assert backend.grep("secret", directory).error, path
            assert backend.glob("*", directory).error, path
    assert backend.grep("secret").matches == []
    assert [info["path"] for info in backend.glob("**/*").matches] == ["/dir/file", "/dir/sub/file", "/top"]


def test_deleting_and_moving_a_link_concerns_the_link(scene, backend):
    plant_links(scene)
    assert backend.move("/absolute", "/dir/moved").error is None
    assert os.readlink(scene.root / "dir" / "moved") == str(scene.outside)
    assert backend.delete("/relative").error is None
    assert not os.path.lexists(scene.root / "relative")
    assert backend.delete("/dir").error is None, "a tree with links in it"
    assert not (scene.root / "dir").exists()


def test_links_inside_are_followed(scene, backend):
    os.symlink("dir/sub", scene.root / "inside")
    os.symlink("../top", scene.root / "dir" / "up")
    assert "harmless" in backend.read("/inside/file")
    assert "harmless" in backend.read("/dir/up")
    assert backend.edit("/dir/up", "harmless", "changed").error is None
    assert (scene.root / "top").read_text() == "changed\n"


def test_the_root_is_what_it_was_when_it_was_opened(scene, backend):
    scene.root.rename(scene.root.with_name("moved"))
    os.symlink(scene.outside, scene.root)
    assert "harmless" in backend.read("/dir/file")
    assert backend.read("/file").error
    assert backend.grep("secret").matches == []
    assert backend.write("/new", "x").error is None
    assert not (scene.outside / "new").exists()


# -- the kernel face ---------------------------------------------------------------------------------------------


def test_a_held_directory_that_is_replaced_by_a_link(scene):
    volume = DirectoryVolume(scene.root)
    directory = volume.lookup(ROOT_NODE, b"dir").node
    sub = volume.lookup(directory, b"sub").node
    file = volume.lookup(directory, b"file").node
    for node in (directory, sub, file):
        volume.hold(node)
    volume._nodes.forget_descriptors()
    (scene.root / "dir").rename(scene.root / "away")
    os.symlink(scene.outside, scene.root / "dir")
    for call in (
        lambda: volume.lookup(directory, b"file"),
        lambda: volume.lookup(sub, b"file"),
        lambda: volume.readdir(directory, b"", 10),
        lambda: volume.open(file, os.O_RDWR),
        lambda: volume.setattr(file, AttrChanges(size=0)),
        lambda: volume.setattr(file, AttrChanges(mode=0o777)),
        lambda: volume.setxattr(file, b"user.x", b"1"),
        lambda: volume.link(file, ROOT_NODE, b"stolen"),
        lambda: volume.create(directory, b"new", 0o644, os.O_RDWR, ME),
        lambda: volume.unlink(directory, b"file"),
        lambda: volume.rename(directory, b"file", ROOT_NODE, b"stolen"),
    ):
        refused(errno.ESTALE, call)
    volume.close()
    scene.unharmed()


def test_what_was_just_made_and_is_swapped_keeps_its_owner(scene, monkeypatch):
    """Between mkdir and the chmod that follows it stands one openat: nothing but a new directory may be changed."""
    volume = DirectoryVolume(scene.root)
    mkdir = os.mkdir

    def swap(name, mode, *, dir_fd):
        mkdir(name, mode, dir_fd=dir_fd)
        os.rmdir(name, dir_fd=dir_fd)
        os.symlink(scene.outside, name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", swap)
    with contextlib.suppress(OSError):  # a link has no mode
        volume.mkdir(ROOT_NODE, b"new", 0o777, Caller(ME.uid, ME.gid))
    mknod = os.mknod

    def swap_for_hard_link(name, mode, device, *, dir_fd):
        mknod(name, mode, device, dir_fd=dir_fd)
        os.unlink(name, dir_fd=dir_fd)
        os.link(scene.root / "top", name, dst_dir_fd=dir_fd)

    monkeypatch.setattr(os, "mknod", swap_for_hard_link)
    before = (scene.root / "top").stat().st_mode
    refused(errno.ESTALE, volume.mknod, ROOT_NODE, b"fifo", 0o010777, 0, ME)
    assert (scene.root / "top").stat().st_mode == before
    volume.close()
    scene.unharmed()


def test_a_file_that_is_swapped_after_the_walk_saw_it(scene):
    with contextlib.closing(DirectoryVolume(scene.root)) as volume:
        seen = dict(LocalWalk(volume, ROOT_NODE))
        (scene.root / "top").unlink()
        os.symlink("../outside/file", scene.root / "top")
        (scene.root / "dir" / "file").unlink()
        os.mkfifo(scene.root / "dir" / "file")
        for path, number in (("top", errno.ELOOP), ("dir/file", errno.ENOENT)):
            refused(number, seen[path].open)
        opened = seen["dir/sub/file"].open()
        assert os.read(opened.fd, 100) == b"harmless\n"


# -- races -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def swapping(scene, *pairs):
    """A thread that exchanges each pair of names below the root, over and over; the body runs meanwhile."""
    swaps = [0]
    at = Descriptor(os.open(scene.root, os.O_PATH))

    def swap() -> None:
        for one, other in pairs:
            # A verb that deletes or moves one of them is why it may be missing.
            with contextlib.suppress(FileNotFoundError):
                dirfd.rename(at, one.encode(), at, other.encode(), RENAME_EXCHANGE)
        swaps[0] += 1

    with over_and_over(swap):
        yield
        eventually(lambda: swaps[0] > 10, what="the attacker did not get its turn")


@pytest.fixture
def race(scene, backend):
    """`dir` and a link to outside change places, and so do `top` and a link to the secret."""
    os.symlink(scene.outside, scene.root / "evil-dir")
    os.symlink("../outside/file", scene.root / "evil-file")
    with swapping(scene, ("dir", "evil-dir"), ("top", "evil-file")):
        yield


def shown(result) -> str:
    return repr(result)


def test_reading_in_a_race(race, backend):
    good = 0
    for _ in range(ROUNDS):
        for result in (
            backend.read("/dir/file"),
            backend.read("/dir/sub/file"),
            backend.read("/top"),
            backend.download_files(["/dir/file", "/top"]),
        ):
            assert "secret" not in shown(result)
            good += "harmless" in shown(result)
    assert good, "the race was never won by the reader, so nothing was tried"


@pytest.mark.parametrize("ripgrep", [True, False])
def test_searching_in_a_race(race, backend, monkeypatch, ripgrep):
    if ripgrep and shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed")
    if not ripgrep:
        monkeypatch.setattr(search, "find_candidates", lambda *_: None)
    good = 0
    for _ in range(25):
        for result in (backend.grep("secret"), backend.grep("secret", "/dir"), backend.grep("secret", "/top")):
            assert not result.matches
        good += bool(backend.grep("harmless").matches)
        size = len(SECRET)
        for listing in (backend.glob("**/*").matches, backend.glob("file", "/dir").matches, backend.ls("/dir").entries):
            assert all(info["size"] != size for info in listing or ()), "the size of a file outside was shown"
    assert good


def test_writing_in_a_race(race, scene, backend):
    good = 0
    for number in range(ROUNDS):
        for result in (
            backend.write(f"/dir/new{number}", "mine"),
            backend.upload_files([("/dir/file", b"harmless, mine\n"), ("/top", b"harmless, mine\n")])[0],
            backend.edit("/dir/sub/file", "harmless", "harmless"),
            backend.move(f"/dir/new{number}", f"/moved{number}"),
            backend.write(f"/dir/a/b/c{number}", "mine"),
        ):
            good += result.error is None
    scene.unharmed()
    assert good


def test_deleting_in_a_race(race, scene, backend):
    good = 0
    for number in range(100):
        backend.write(f"/dir/tree/{number}/file", "x")
        backend.write(f"/tree{number}/file", "x")
        good += backend.delete("/dir/tree").error is None
        good += backend.delete(f"/tree{number}").error is None
        backend.delete("/dir/file")
    scene.unharmed()
    assert good


def test_deleting_a_tree_whose_directories_are_swapped(scene, backend):
    """The classic: `rm -r` is in a directory, which becomes a link before it goes on."""
    good = 0
    for number in range(150):
        tree = scene.root / f"tree{number}"
        shutil.copytree(scene.root / "dir", tree / "a")
        os.symlink(scene.outside, tree / "b")
        with swapping(scene, (f"tree{number}/a", f"tree{number}/b")) if number % 10 == 0 else contextlib.nullcontext():
            good += backend.delete(f"/tree{number}").error is None
    scene.unharmed()
    assert good


def test_the_kernel_face_in_a_race(race, scene, backend):
    volume = backend.volume
    good = 0
    secret = SECRET.encode()
    for number in range(ROUNDS):
        for attempt in (
            lambda: _read(volume, "dir/file"),
            lambda: _read(volume, "dir/sub/file"),
            lambda: _read(volume, "top"),
            lambda number=number: _make(volume, b"new%d" % number),
            lambda: _chmod(volume, "dir/file"),
            lambda: _names(volume),
        ):
            if number % 7 == 0:
                with volume.lock:
                    volume._nodes.forget_descriptors()
            try:
                found = attempt()
            except OSError as error:
                assert error.errno in EXPECTED, error
            else:
                good += 1
                assert secret not in found
    scene.unharmed()
    assert good


def _read(volume, path):
    node = node_at(volume, path)
    volume.open(node, os.O_RDWR)
    try:
        return volume.read(node, 0, 1000)
    finally:
        volume.release(node, os.O_RDWR)


def _make(volume, name):
    directory = node_at(volume, "dir")
    node = volume.create(directory, name, 0o666, os.O_RDWR, ME).node
    try:
        volume.write(node, 0, b"mine")
    finally:
        volume.release(node, os.O_RDWR)
    volume.unlink(directory, name)
    return b""


def _chmod(volume, path):
    node = node_at(volume, path)
    volume.setattr(node, AttrChanges(mode=0o600, mtime_ns=1))
    return b""


def _names(volume):
    directory = node_at(volume, "dir")
    return b" ".join(name for name, attr in volume.readdir(directory, b"", 10) if attr.size == len(SECRET))
