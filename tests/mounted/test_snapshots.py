"""Snapshots of a mount, seen by unix tools and through the kernel's caches. The command is tested without a mount, in
`tests/unit/cli/test_cli_states.py`, and what they hold in `tests/unit/trees/`."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from eventually import eventually
from kinds import MEMORY
from mounts import Mounted
from profiles import amount
from programs import sh
from together import over_and_over
from trees import snapshot as attributes

import fusebackend
from fusebackend.backends import InMemoryBackend, SqliteBackend
from fusebackend.linux import mount_table as table
from fusebackend.testing.posix.case import refused

LIMIT_S = 60
POSTGRES = pytest.param("postgres:{dsn}?volume=v", marks=pytest.mark.services)
KINDS = [MEMORY, "sqlite:{tmp}/volume.db", POSTGRES]
"""URLs of volumes that keep snapshots; `{tmp}` is a directory, `{dsn}` a database."""

MANUAL = ["snapshots=manual"]
"""So that no other snapshots than those of a test are there."""

ROUNDS = amount("FUSEBACKEND_SNAPSHOT_ROUNDS", day=2, night=100)

SCENE = r"""
umask 022
mkdir -p src/deep/er docs empty
echo one > src/one; echo two > src/deep/two; printf 'no newline' > docs/plain
head -c 300000 /dev/urandom > src/large
truncate -s 3M src/sparse; printf end >> src/sparse
ln src/one docs/linked; ln -s ../src/one docs/link; ln -s /nowhere docs/dangling
mkfifo docs/fifo; chmod 4755 src/deep/two; chmod 1777 empty; chmod 400 docs/plain
setfattr -n user.tag -v value src/one; setfattr -n user.dir -v yes src/deep
touch -d '2001-02-03 04:05:06.789' src/deep/two; touch -h -d '1999-01-01' docs/link; touch -d '1950-01-01' src/deep/er
printf x > "$(printf 'odd \n\377 name')"
cd src; git init -q .; git add one deep; git -c user.name=n -c user.email=e commit -qm one
"""


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    routes = {"/notes": "memory:"}
    with mounts.of_kind(request, tmp_path_factory, request.param, routes=routes, options=MANUAL) as server:
        yield server


@pytest.fixture
def mounted(shared: Mounted) -> Iterator[Mounted]:
    yield shared
    with fusebackend.connect(shared.path) as client:
        client.delete_snapshots(*(each.name for each in client.snapshots()))
    mounts.empty(shared.path, "notes")


def kept(mounted: Mounted, name: str = "") -> Path:
    return mounted.path / ".fusebackend/snapshots" / name


def same(snapshot: Path, copy: Path) -> None:
    """Compare a snapshot with a copy by the tools that users have, and by what these do not compare."""
    sh(f"diff -r --no-dereference -x fifo '{snapshot}' '{copy}'", snapshot)
    if shutil.which("rsync"):
        assert sh(f"rsync -aHXn --checksum --delete -i '{snapshot}/' '{copy}/'", snapshot) == ""
    assert attributes(snapshot) == attributes(copy)


def changed(source: random.Random, at: Path) -> None:
    """Change something, by a command that people use."""
    script = source.choice(
        [
            "rm -rf src/deep",
            "mkdir -p src/deep/er/new; echo new > src/deep/er/new/file",
            "find . -name '*.tmp' -delete; echo $RANDOM > $RANDOM.tmp",
            "sed -i s/one/uno/ src/one || true",
            "echo more >> docs/linked",
            "head -c 100000 /dev/urandom | dd of=src/large bs=64k seek=1 conv=notrunc status=none",
            "truncate -s 100 src/large; truncate -s 1M src/sparse",
            "chmod 700 src; chmod 755 src; chown 1000:1000 docs",
            "setfattr -n user.tag -v other src/one; setfattr -x user.dir src/deep 2>/dev/null || true",
            "mv docs docs2; mv docs2 docs; ln -sf elsewhere docs/link",
            "cp -a src src2; rm -rf src2/.git; mv src2/* docs/ 2>/dev/null || true; rm -rf src2",
            "cd src; echo $RANDOM > tracked; git add tracked; git -c user.name=n -c user.email=e commit -qm more",
            "cd src; git -c gc.auto=0 gc -q; git checkout -q . ; git clean -fdxq",
            "ls -lR . > /dev/null; cat src/one > /dev/null || true; touch -a src/large",
        ]
    )
    sh(f"umask 022; {{ {script}; }} 2>/dev/null || true", at)


# -- what is in it ---------------------------------------------------------------------------------------------------


def test_a_snapshot_is_a_frozen_copy(mounted: Mounted, tmp_path: Path) -> None:
    """`cp -a` and a snapshot at the same moment; then random changes by bash and git, and more of both."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to change owners")
    seed = int(os.environ.get("FUSEBACKEND_SEED", "7"))
    source = random.Random(seed)
    sh(SCENE, mounted.path)
    sh("echo note > notes/note; mkdir notes/d; ln notes/note notes/d/linked", mounted.path)
    copies: dict[str, Path] = {}
    with fusebackend.connect(mounted.path) as client:
        for number in range(ROUNDS):
            name = f"round{number}"
            copies[name] = tmp_path / name
            sh(f"cp -a . '{copies[name]}'", mounted.path)
            client.create_snapshot(name)
            for _ in range(source.randrange(1, 8)):
                changed(source, mounted.path)
            if len(copies) > 6:
                gone = source.choice(sorted(copies))
                client.delete_snapshots(gone)
                shutil.rmtree(copies.pop(gone))
                assert not kept(mounted, gone).exists()
            for each in source.sample(sorted(copies), min(2, len(copies))):
                same(kept(mounted, each), copies[each])
        for each, copy in copies.items():
            same(kept(mounted, each), copy)
        assert sorted(os.listdir(kept(mounted))) == sorted(copies)


# -- kernel caches ---------------------------------------------------------------------------------------------------


def test_names_come_and_go_at_once(mounted: Mounted) -> None:
    """Absence, listings and names are cached for an hour: each change is seen by the next system call."""
    with fusebackend.connect(mounted.path) as client:
        for number in range(20):
            (mounted.path / "file").write_text(str(number))
            assert not kept(mounted, "one").exists() and os.listdir(kept(mounted)) == []
            made = client.create_snapshot("one")
            assert client.snapshots() == [made] and made.path == "/.fusebackend/snapshots/one"
            assert kept(mounted, "one").exists() and os.listdir(kept(mounted)) == ["one"]
            assert kept(mounted, "one/file").read_text() == str(number)
            assert not kept(mounted, "one/other").exists()
            assert os.listdir(kept(mounted, "one")) == ["file", "notes"]
            client.delete_snapshots("one")
            refused(errno.ENOENT, kept(mounted, "one/file").read_text)


# -- at the same time ------------------------------------------------------------------------------------------------


def test_readers_while_snapshots_come_and_go(mounted: Mounted) -> None:
    """Every read below a snapshot gives the bytes of that snapshot, or the error of one that is gone."""
    path = mounted.path
    (path / "d").mkdir()

    def read() -> None:
        for name in os.listdir(kept(mounted)):
            try:
                first = kept(mounted, f"{name}/d/first").read_text()
                second = kept(mounted, f"{name}/d/second").read_text()
            except OSError as error:
                assert error.errno in (errno.ENOENT, errno.ESTALE)
            else:
                assert first == second == f"{name}\n" * 3000, name

    with over_and_over(read, threads=3), fusebackend.connect(path) as client:
        names: list[str] = []
        for number in range(25):
            names.append(f"s{number % 7}-{number}")
            for file in ("first", "second"):
                (path / "d" / file).write_text(f"{names[-1]}\n" * 3000)
            client.create_snapshot(names[-1])
            if len(names) > 4:
                client.delete_snapshots(names.pop(number % 5))
    assert table.probe(str(path))[0].state == "alive"


def test_a_mount_of_python_takes_none_by_itself(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    for given, taken in ((None, 0), ("auto", 1)):
        with fusebackend.mount(InMemoryBackend(), tmp_path / "mnt", snapshots=given) as files:
            files.write("/file", "1")
            assert len(files.snapshots()) == taken


# -- several hosts -------------------------------------------------------------------------------------------------


def test_what_is_read_to_put_files_back_does_not_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk an undo deleted the only bytes of the file, to make room for them."""
    monkeypatch.setattr("fusebackend.trees.automatic.EVERY_S", 0.5)
    (tmp_path / "mnt").mkdir()
    with (
        SqliteBackend(str(tmp_path / "volume.db")) as backend,
        fusebackend.mount(backend, str(tmp_path / "mnt"), snapshots="auto", history="on") as files,
    ):
        volume, free = backend.volume, []
        files.upload_files([("/file", b"one")])
        count = len(files.snapshots())
        eventually(lambda: len(files.snapshots()) > count, LIMIT_S)
        files.upload_files([("/file", b"other")])
        names = [each.name for each in files.snapshots()]
        sync = volume.sync
        with monkeypatch.context() as patched:
            patched.setattr(volume, "sync", lambda: sync() or free.append(all(map(volume.may_go, names))))
            assert [each.path for each in files.undo().changes] == ["/file"]
            assert [each.path for each in files.restore(["/file"], names[-1], to=["/copy"]).changes] == ["/copy"]
        assert free and not any(free)
        assert all(map(volume.may_go, names))
