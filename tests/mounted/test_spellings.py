"""One file, one name: a `dir:` route on a file system that finds a file by several spellings of its name."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import stat
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import folding
import mounts
import pytest
from eventually import eventually
from mounts import Mounted
from nodes import ME, names, node_at, put

import fusebackend
from fusebackend import Client
from fusebackend.backends import FilesystemBackend
from fusebackend.backends.directory import dirfd
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.protocol import RENAME_NOREPLACE, ROOT_NODE
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import all_refused, refused

REAL = "café-latte.txt"
SPELLINGS = {
    "upper case": "CAFÉ-LATTE.TXT",
    "one letter": "café-lattE.txt",
    "another Unicode form": unicodedata.normalize("NFD", REAL),
    "a dot at the end": "café-latte.txt.",
    "a space at the end": "café-latte.txt ",
    "short": "café-l~1",
}
OTHERS = {name: text.encode() for name, text in SPELLINGS.items()}
NEW = {"a dot at the end": b"x.", "a space at the end": b".env ", "both": b"Notes. ."}
"""Names that the file system stores as others."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with folding.mounted(tmp_path_factory.mktemp("disk")) as point:
        yield point


numbers = itertools.count()


@pytest.fixture
def root(disk: Path) -> Path:
    made = disk / f"test-{next(numbers)}"
    made.mkdir()
    return made


@pytest.fixture
def volume(root: Path) -> Iterator[DirectoryVolume]:
    with contextlib.closing(DirectoryVolume(root)) as volume:
        yield volume


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that were listed, as `os.listdir` was asked for them."""
    asked: list[str] = []
    listdir = os.listdir

    def counting(at: Any) -> list[Any]:
        asked.append(os.readlink(f"/proc/self/fd/{at}") if isinstance(at, int) else os.fspath(at))
        return listdir(at)

    monkeypatch.setattr(os, "listdir", counting)
    return asked


class TestTheKernelFace:
    def test_another_spelling_is_no_name(self, volume: DirectoryVolume, root: Path) -> None:
        real = REAL.encode()
        node, other = put(volume, real, b"x"), put(volume, b"other")
        for case in each(OTHERS):
            with case as name:
                assert (root / os.fsdecode(name)).exists(), "the file system finds it"
                for change in (
                    lambda name: volume.lookup(ROOT_NODE, name),
                    lambda name: volume.unlink(ROOT_NODE, name),
                    lambda name: volume.rmdir(ROOT_NODE, name),
                    lambda name: volume.rename(ROOT_NODE, name, ROOT_NODE, b"new"),
                    lambda name: volume.rename(ROOT_NODE, name, ROOT_NODE, b"new", RENAME_NOREPLACE),
                ):
                    refused(errno.ENOENT, change, name)
                for change in makers(volume, other):
                    refused(errno.EINVAL, change, name)
                assert names(volume) == sorted([real, b"other"])
                assert volume.lookup(ROOT_NODE, real).node == node

    def test_a_spelling_that_is_stored_as_another_can_t_be_made(self, volume: DirectoryVolume) -> None:
        node = put(volume, b"other", b"x")
        for case in each(NEW):
            with case as name:
                for change in makers(volume, node):
                    refused(errno.EINVAL, change, name)
                    assert names(volume) == [b"other"]
        assert volume.lookup(ROOT_NODE, b"other").node == node

    def test_a_directory_too(self, volume: DirectoryVolume) -> None:
        volume.mkdir(ROOT_NODE, b"src", 0o755, ME)
        put(volume, b"f", parent=node_at(volume, "src"))
        all_refused(
            (errno.ENOENT, volume.lookup, ROOT_NODE, b"SRC"),
            (errno.EINVAL, volume.mkdir, ROOT_NODE, b"Src", 0o755, ME),
            (errno.EINVAL, volume.rename, ROOT_NODE, b"src", ROOT_NODE, b"Src"),
        )
        assert names(volume, node_at(volume, "src")) == [b"f"]

    def test_what_is_not_another_spelling_works(self, volume: DirectoryVolume) -> None:
        node = put(volume, b"key", b"x")
        volume.rename(ROOT_NODE, b"key", ROOT_NODE, b"2")
        volume.link(volume.lookup(ROOT_NODE, b"2").node, ROOT_NODE, "naïve plan.md".encode())
        put(volume, b"Key")
        volume.rename(ROOT_NODE, b"Key", ROOT_NODE, b"2")
        assert names(volume) == sorted([b"2", "naïve plan.md".encode()])
        assert volume.lookup(ROOT_NODE, "naïve plan.md".encode()).node == node
        volume.unlink(ROOT_NODE, b"2")
        put(volume, b"KEY")
        volume.unlink(ROOT_NODE, b"KEY")
        put(volume, b"kEy")
        refused(errno.ENOENT, volume.lookup, ROOT_NODE, b"KEY")

    def test_a_name_that_others_spell_anew_is_the_new_one(self, volume: DirectoryVolume, root: Path) -> None:
        (root / "key").write_text("x")
        volume.ttl_s = 0.0
        node = volume.lookup(ROOT_NODE, b"key").node
        os.rename(root / "key", root / "between")
        os.rename(root / "between", root / "KEY")
        assert volume.lookup(ROOT_NODE, b"KEY").node == node
        refused(errno.ENOENT, volume.lookup, ROOT_NODE, b"key")

    def test_file_systems_that_tell_names_apart_are_not_listed(
        self, disk: Path, tmp_path: Path, listed: list[str]
    ) -> None:
        root = dirfd.open_root(os.fspath(tmp_path))
        if not root.is_exact:
            pytest.skip("this file system has no exact names")
        (tmp_path / "nested").mkdir()
        with contextlib.closing(DirectoryVolume(tmp_path)) as outer:
            for name in (b"key", b"Key", b"key.", b" "):
                put(outer, name)
                outer.lookup(ROOT_NODE, name)
            outer.rename(ROOT_NODE, b"key", ROOT_NODE, b"KEY")
            outer.unlink(ROOT_NODE, b"key.")
            assert not listed

    def test_a_mount_inside_has_its_own_rule(self, tmp_path: Path) -> None:
        (tmp_path / "outer").mkdir()
        with (
            folding.mounted(tmp_path / "outer") as inside,
            contextlib.closing(DirectoryVolume(tmp_path)) as volume,
        ):
            (inside / "key").touch()
            put(volume, b"KEY")
            put(volume, b"key")
            inner = node_at(volume, "outer/folding")
            assert volume.lookup(inner, b"key")
            refused(errno.ENOENT, volume.lookup, inner, b"KEY")

    def test_where_names_can_t_be_listed(self, volume: DirectoryVolume, root: Path, monkeypatch: Any) -> None:
        """A directory may be searched by name and not be listed: mode 0111."""
        for name in ("key", "a b", "12"):
            (root / name).touch()
        node, there = put(volume, b"other"), set(os.listdir(root))
        volume.ttl_s = 0.0

        def refuse(at: object) -> object:
            raise PermissionError(errno.EACCES, "")

        monkeypatch.setattr(dirfd, "open_names", refuse)
        # Of `key` the other case is found, and of the others it can't be told which spellings are: all are refused.
        for name in (b"key", b"KEY", b"a b", b"12"):
            refused(errno.EACCES, volume.lookup, ROOT_NODE, name)
        refused(errno.ENOENT, volume.lookup, ROOT_NODE, b"absent")
        for change in makers(volume, node):
            refused(errno.EACCES, change, b"new one")
        assert set(os.listdir(root)) == there

    def test_globs_and_searches_begin_at_names(self, root: Path, volume: DirectoryVolume) -> None:
        volume.mkdir(ROOT_NODE, b"src", 0o755, ME)
        put(volume, b"f.py", b"needle\n", parent=node_at(volume, "src"))
        face = FilesystemBackend(root)
        face.volume = face._named = volume
        for pattern, there in {"src/*.py": True, "SRC/*.py": False, "src./**": False, "*/f.py": True}.items():
            found = face.glob(pattern)
            assert (found.error, [info["path"] for info in found.matches or ()]) == (None, ["/src/f.py"] * there)
            searched = face.grep("needle", glob=pattern)
            assert (searched.error, len(searched.matches or ())) == (None, there)
        assert face.glob("*", "/SRC").matches in (None, [])
        assert face.grep("needle", "/SRC").matches in (None, [])


def makers(volume: DirectoryVolume, node: int) -> list[Callable[[bytes], object]]:
    """Give all ways to make a name; those with a node give it another one."""
    return [
        lambda name: volume.create(ROOT_NODE, name, 0o644, os.O_RDWR, ME),
        lambda name: volume.mknod(ROOT_NODE, name, stat.S_IFREG | 0o644, 0, ME),
        lambda name: volume.mknod(ROOT_NODE, name, stat.S_IFIFO | 0o644, 0, ME),
        lambda name: volume.mkdir(ROOT_NODE, name, 0o755, ME),
        lambda name: volume.symlink(ROOT_NODE, name, b"x", ME),
        lambda name: volume.link(node, ROOT_NODE, name),
        lambda name: volume.rename(ROOT_NODE, b"other", ROOT_NODE, name),
        lambda name: volume.rename(ROOT_NODE, b"other", ROOT_NODE, name, RENAME_NOREPLACE),
    ]


def test_which_file_systems_tell_names_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel of a test machine has all of them: the answers of the system calls are played."""
    answers: dict[str, Any] = {}

    class Library:
        def fstatfs(self, fd: int, found: Any) -> int:
            found[:8] = answers["kind"].to_bytes(8, "little")
            return 0

    def ioctl(fd: int, request: int, answer: bytes) -> bytes:
        if isinstance(answers["flags"], int):
            raise OSError(answers["flags"], "")
        return bytes(answers["flags"](len(answer)))

    def bit(offset: int, number: int) -> Callable[[int], bytes]:
        return lambda size: (number << 8 * offset).to_bytes(size, "little")

    monkeypatch.setattr(dirfd, "_libc", Library)
    monkeypatch.setattr(dirfd.fcntl, "ioctl", ioctl)
    for kind, flags, is_exact in (
        (0xEF53, bit(0, 0x80000), True),  # ext4, a directory with FS_EXTENT_FL
        (0xEF53, bit(0, 0x40080000), False),  # with FS_CASEFOLD_FL
        (0xEF53, errno.EACCES, False),
        (0x01021994, errno.ENOTTY, True),  # tmpfs of an older kernel
        (0x01021994, bit(0, 1 << 30), False),
        (0x58465342, bit(92, 0xCCCA), True),  # xfs
        (0x58465342, bit(92, 0xDCCA), False),  # made with `-n version=ci`
        (0x9123683E, None, True),  # btrfs
        (0x4D44, None, False),  # vfat
        (0xFF534D42, None, False),  # CIFS
        (0x65735546, None, False),  # FUSE
        (0x6969, None, False),  # NFS
    ):
        answers.update(kind=kind, flags=flags)
        assert dirfd.open_root(os.fspath(tmp_path)).is_exact == is_exact, hex(kind)


RULES = [
    {"operations": ["read", "write"], "paths": ["/e/s/**"], "mode": "deny"},
    {"operations": ["read", "write"], "paths": ["/e/hidden"], "mode": "hide"},
    {"operations": ["write"], "paths": ["/e/log"], "mode": "append"},
    {"operations": ["write"], "paths": ["/e/ask"], "mode": "interrupt"},
    {"operations": ["read", "write"], "paths": ["/**/.env"], "mode": "deny"},
]
FILES = {"e/s/key": "SECRET", "e/hidden": "SECRET", "e/log": "one\n", "e/ask": "asked", "e/free": "free", "r/.env": "S"}


@pytest.fixture(scope="module")
def served(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    tmp, files = tmp_path_factory.mktemp("served"), disk / "served"
    for path, text in FILES.items():
        (files / path).parent.mkdir(parents=True, exist_ok=True)
        (files / path).write_text(text)
    (files / "route").mkdir()
    (files / "route/key").write_text("SECRET")
    lines = ["{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in rule.items()) + "}" for rule in RULES]
    config = tmp / "mount.toml"
    config.write_text(
        f'[routes]\n"/r" = {{ url = "dir:{files}/route", hide = ["key"] }}\n'
        f"[views.agent]\nrules = [{', '.join(lines)}]\n"
    )
    state = pytest.MonkeyPatch()
    state.setenv("XDG_STATE_HOME", str(tmp / "state"))
    with mounts.mounted(tmp / "mnt", f"dir:{files}", config=config, options=["history=on"]) as server:
        yield server
    state.undo()


@pytest.fixture
def agent(served: Mounted) -> Iterator[Client]:
    with fusebackend.connect(served.path, view="agent") as files:
        yield files


@pytest.fixture
def free(served: Mounted) -> Iterator[Client]:
    with fusebackend.connect(served.path, view="") as files:
        yield files


RULED = ["/e/S/key", "/E/s/key", "/e/s./key", "/e/HIDDEN", "/e/hidden.", "/E/hidden", "/e/LOG", "/e/ASK", "/r/KEY",
         "/e/S/KEY"]  # fmt: skip


class TestRules:
    def test_no_verb_takes_another_spelling(self, agent: Client, free: Client, disk: Path) -> None:
        number = len(free.approvals())
        for case in each({path: path for path in RULED}):
            with case as path:
                assert agent.read(path).error and agent.download_files([path])[0].error
                assert agent.edit(path, "S", "T").error and agent.write(path, "T").error
                assert agent.upload_files([(path, b"T")])[0].error
                assert agent.delete(path).error and agent.move(path, "/e/moved").error
                assert agent.move("/e/free", path).error
                with pytest.raises(OSError):
                    agent.append(path, [b"T"])
                above, name = os.path.split(path)
                assert not agent.glob(name, above).matches and not agent.grep("S", path).matches
                assert not agent.glob(path[1:]).matches
        assert len(free.approvals()) == number, "an approval was asked for by another spelling"
        stored = {path: (disk / "served" / path).read_text() for path in FILES if not path.startswith("r/")}
        assert stored == {path: text for path, text in FILES.items() if not path.startswith("r/")}
        assert (disk / "served/route/key").read_text() == "SECRET"

    def test_no_name_that_a_rule_forbids_is_made_by_another_spelling(self, agent: Client, disk: Path) -> None:
        for name in (".env.", ".env ", ".env. ."):
            assert agent.write(f"/e/{name}", "T").error and agent.move("/e/free", f"/e/{name}").error
        assert sorted(os.listdir(disk / "served/e")) == ["ask", "free", "hidden", "log", "s"]

    def test_nor_does_the_kernel(self, served: Mounted, disk: Path) -> None:
        view = served.path / ".fusebackend/views/agent"
        for case in each({path: view / path[1:] for path in RULED}):
            with case as path:
                for work in (path.read_text, path.stat, path.unlink, lambda path=path: path.rename(view / "e/moved")):
                    refused(errno.ENOENT, work)
                for work in (
                    lambda path=path: path.write_text("T"),
                    lambda path=path: path.open("a").close(),
                    path.mkdir,
                    lambda path=path: path.symlink_to("x"),
                    lambda path=path: os.link(view / "e/free", path),
                    lambda path=path: (view / "e/free").rename(path),
                ):
                    refused((errno.EINVAL, errno.ENOENT, errno.EACCES, errno.EXDEV), work)
        assert (disk / "served/e/free").read_text() == "free"


class TestTheMount:
    def test_absent_names_stay_absent(self, served: Mounted, disk: Path) -> None:
        """The kernel keeps names that were looked up and not found, each by its own spelling."""
        top = served.path / "e"
        for name in ("NEW", "new", "New"):
            assert not (top / name).exists()
        (top / "new").write_text("x")
        assert not (top / "NEW").exists() and (top / "new").read_text() == "x"
        refused(errno.EINVAL, (top / "NEW").write_text, "y")
        refused(errno.EINVAL, os.rename, top / "new", top / "New")
        os.rename(top / "new", top / "between")
        assert not (top / "new").exists() and not (top / "New").exists()
        os.rename(top / "between", top / "New")
        assert (top / "New").read_text() == "x" and not (top / "new").exists()
        refused(errno.EINVAL, (top / "new").mkdir)
        (top / "New").unlink()
        (top / "new").mkdir()
        assert sorted(os.listdir(top)) == sorted({*os.listdir(disk / "served/e")}) and not (top / "New").exists()
        (top / "new").rmdir()

    def test_a_name_that_others_spell_anew_is_seen(self, served: Mounted, disk: Path) -> None:
        top, below = served.path / "e", disk / "served/e"
        (top / "spelled").write_text("x")
        os.rename(below / "spelled", below / "between")
        os.rename(below / "between", below / "Spelled")
        eventually(lambda: (top / "Spelled").exists() and not (top / "spelled").exists())
        (top / "Spelled").unlink()
