"""`restore.py`, over two plain directories."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import random_trees
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from random_trees import Fifo, File, Link, Tree, make
from trees import snapshot

from fusebackend.linux.open_files import writers
from fusebackend.trees import restore as module
from fusebackend.trees.restore import TEMPORARY, Action, Restore, temporary, trees

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may")


def plan(source: Path, target: Path, *paths: bytes, **options: object) -> Restore:
    restore = Restore(*trees(str(source), str(target)), **options)  # type: ignore[arg-type]
    for path in paths or (b"",):
        restore.add(path)
    restore.finish()
    return restore


def restored(source: Path, target: Path, *paths: bytes) -> list[Action]:
    restore = plan(source, target, *paths)
    restore.run()
    assert restore.skipped == []
    return restore.actions


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    return source, target


def link_some(root: Path, pairs: list[tuple[int, int]]) -> None:
    """Make hard links of some of the files in a tree."""
    files = [path for path, node in sorted(random_trees.read(root).items()) if isinstance(node, File)]
    for one, other in pairs:
        if one < len(files) and other < len(files) and one != other:
            os.unlink(os.path.join(os.fsencode(root), files[other]))
            os.link(os.path.join(os.fsencode(root), files[one]), os.path.join(os.fsencode(root), files[other]))


PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=2)


@settings(max_examples=examples(150), deadline=None)
@given(before=random_trees.trees(special=True), after=random_trees.trees(special=True), links=PAIRS, their_links=PAIRS)
def test_a_tree_is_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    before: Tree,
    after: Tree,
    links: list[tuple[int, int]],
    their_links: list[tuple[int, int]],
) -> None:
    directory = tmp_path_factory.mktemp("sides")
    for name, tree, mtime_ns, pairs in (("a", before, 1_000, links), ("b", after, 2_000, their_links)):
        (directory / name).mkdir()
        make(directory / name, tree, mtime_ns)
        link_some(directory / name, pairs)
    wanted = snapshot(directory / "a")
    restored(directory / "a", directory / "b")
    assert snapshot(directory / "b") == wanted
    assert snapshot(directory / "a") == wanted
    assert restored(directory / "a", directory / "b") == []
    shutil.rmtree(directory)


def test_only_what_differs_is_changed_and_by_new_inodes(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"same": File(b"1"), b"text": File(b"old"), b"mode": File(b"2"), b"gone": Link(b"x")}, 1_000)
    make(target, {b"same": File(b"1"), b"text": File(b"new"), b"mode": File(b"2", 0o600), b"extra": File(b"3")}, 1_000)
    inodes = {name: (target / name).stat().st_ino for name in ("same", "text", "mode")}
    with (target / "text").open() as held:
        assert restored(source, target) == [
            Action("create", b"gone"),
            Action("replace", b"mode"),
            Action("replace", b"text"),
            Action("remove", b"extra"),
            Action("attributes", b""),
        ]
        assert held.read() == "new"
    assert (target / "same").stat().st_ino == inodes["same"]
    assert (target / "text").stat().st_ino != inodes["text"]
    assert (target / "mode").stat().st_ino != inodes["mode"]


def test_a_path_alone_with_the_directories_above_it(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"a": {b"b": {b"f": File(b"1"), b"g": File(b"2")}}, b"h": File(b"3")}, 1_000)
    os.chmod(source / "a", 0o711)
    assert restored(source, target, b"a/b/f", b"h") == [
        Action("create", b"a"),
        Action("create", b"a/b"),
        Action("create", b"a/b/f"),
        Action("create", b"h"),
    ]
    assert random_trees.read(target).keys() == {b"a/b/f", b"h"}
    assert stat.S_IMODE((target / "a").stat().st_mode) == 0o711
    assert (target / "a").stat().st_mtime_ns == (source / "a").stat().st_mtime_ns


def test_to_another_path(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"d": {b"f": File(b"1")}}, 1_000)
    make(target, {b"other": {}}, 1_000)
    restore = plan(source, target, b"d/f")
    restore = Restore(*trees(str(source), str(target)))
    restore.add(b"d", b"other/copy")
    restore.finish()
    restore.run()
    assert (target / "other/copy/f").read_bytes() == b"1"
    with pytest.raises(FileNotFoundError):
        restore.add(b"d", b"not/there")


def test_errors_change_nothing(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"d": {b"f": File(b"1")}}, 1_000)
    make(target, {b"d": File(b"a file")}, 1_000)
    with pytest.raises(FileNotFoundError) as missing:
        plan(source, target, b"nothing")
    assert missing.value.filename == str(source / "nothing")
    with pytest.raises(NotADirectoryError) as wrong:
        plan(source, target, b"d/f")
    assert wrong.value.filename == str(target / "d")
    assert (target / "d").read_bytes() == b"a file"


def test_a_symbolic_link_on_the_way_is_not_followed(sides: tuple[Path, Path], tmp_path: Path) -> None:
    source, target = sides
    outside = tmp_path / "outside"
    outside.mkdir()
    make(source, {b"d": {b"f": File(b"1")}}, 1_000)
    (target / "d").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        plan(source, target, b"d/f")
    assert restored(source, target, b"d") == [Action("create", b"d/f"), Action("replace", b"d")]
    assert (target / "d/f").read_bytes() == b"1"
    assert not (target / "d").is_symlink()
    assert os.listdir(outside) == []


def test_attributes_holes_and_links(sides: tuple[Path, Path]) -> None:
    source, target = sides
    with (source / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"middle")
    os.setxattr(source / "sparse", "user.colour", b"blue")
    os.link(source / "sparse", source / "link")
    (source / "dir").mkdir(0o1770)
    os.setxattr(source / "dir", "user.kind", b"box")
    (source / "sym").symlink_to("sparse")
    os.utime(source / "sym", ns=(5, 6), follow_symlinks=False)
    os.mkfifo(source / "pipe", 0o620)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(source / "socket"))
    os.utime(source / "sparse", ns=(11, 12))
    os.chmod(source / "sparse", 0o4750)
    restored(source, target)
    found = (target / "sparse").stat()
    assert (found.st_atime_ns, found.st_mtime_ns) == (11, 12)
    assert found.st_blocks * 512 < 1 << 20
    assert found.st_nlink == 2
    assert snapshot(target) == snapshot(source)


@AS_ROOT
def test_owners_and_devices(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"f": File(b"1", 0o6755), b"l": Link(b"f")}, 1_000)
    os.chown(source / "f", 1, 2)
    os.chmod(source / "f", 0o6755)
    os.lchown(source / "l", 3, 4)
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    restored(source, target)
    assert snapshot(target) == snapshot(source)
    assert (target / "null").stat().st_rdev == os.makedev(1, 3)


def test_hard_links_that_were_none_are_parted(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"a": File(b"1"), b"b": File(b"1"), b"c": File(b"1")}, 1_000)
    make(target, {b"a": File(b"1")}, 1_000)
    for name in ("b", "c"):
        os.link(target / "a", target / name)
    restored(source, target)
    assert snapshot(target) == snapshot(source)


def test_a_link_from_elsewhere_stays_with_the_old_file(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"a": File(b"old")}, 1_000)
    make(target, {b"a": File(b"new")}, 2_000)
    os.link(target / "a", target / "outside")
    restored(source, target, b"a")
    assert ((target / "a").read_bytes(), (target / "outside").read_bytes()) == (b"old", b"new")


def test_paths_that_are_left_out(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"route": {}, b"d": File(b"1")}, 1_000)
    make(target, {b"route": {b"live": File(b"2")}, b"d": {b"deep": {b"live": File(b"3")}}, b".fusebackend": {}}, 2_000)
    restore = plan(source, target, left_out=(b"route", b".fusebackend", b"d/deep"))
    restore.run()
    assert restore.skipped == [(b"d", "'d/deep' is in it, which is not restored")]
    assert random_trees.read(target).keys() == {b"route/live", b"d/deep/live"}
    assert (target / ".fusebackend").is_dir()


def test_files_that_go_are_told(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"a": File(b"1"), b"same": File(b"2"), b"dir": {}, b"file": File(b"3")}, 1_000)
    make(target, {b"a": File(b"4"), b"same": File(b"2"), b"dir": File(b"5"), b"file": {b"in": File(b"6")}}, 1_000)
    make(target, {b"extra": {b"deep": File(b"7")}}, 1_000)
    restore = plan(source, target)
    assert sorted(restore.going.values()) == [b"a", b"dir", b"extra/deep", b"file/in"]
    with (target / "extra/deep").open("ab") as held, (target / "a").open("rb"):
        program = "import sys; print(flush=True); sys.stdin.read()"
        child = subprocess.Popen(
            ["python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(held.fileno(),)
        )
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            found = writers(restore.going)
            child.communicate()
    assert [(restore.going[each.file], each.pid) for each in found] == [(b"extra/deep", child.pid)]
    assert found[0].command.startswith("python")


# -- killed at each step -----------------------------------------------------------------------------------------

CHANGES = (
    "chmod", "chown", "fsync", "ftruncate", "link", "mkdir", "mknod", "open", "pwrite", "rename", "rmdir", "setxattr",
    "symlink", "unlink", "utime",
)  # fmt: skip
KILLED = 9


def run_until(count: int, source: Path, target: Path) -> int:
    """Restore in a child process that is killed before the change number `count`; return its exit status."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = count

    def killing(call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **named: object) -> object:
            nonlocal left
            if call is not opening or (isinstance(arguments[1], int) and arguments[1] & os.O_CREAT):
                left -= 1
                if not left:
                    os._exit(KILLED)
            return call(*arguments, **named)

        return counted

    opening = os.open
    try:
        restore = plan(source, target)
        for name in CHANGES:
            setattr(os, name, killing(getattr(os, name)))
        module.rename = killing(module.rename)  # type: ignore[assignment]
        restore.run()
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.parametrize("exchanges", [True, False])
def test_killed_at_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    source, first = tmp_path / "source", tmp_path / "first"
    source.mkdir()
    first.mkdir()
    make(
        source,
        {
            b"text": File(b"old " * 1000),
            b"gone": {b"deep": {b"f": File(b"back")}},
            b"was a file": File(b"a file"),
            b"was a dir": {b"x": File(b"in it"), b"sub": {b"y": File(b"deeper")}},
            b"link": Link(b"text"),
            b"pipe": Fifo(),
            b"one": File(b"linked"),
        },
        1_000,
    )
    os.link(source / "one", source / "was a dir" / "two")
    os.setxattr(source / "text", "user.a", b"b")
    make(
        first,
        {
            b"text": File(b"new " * 900, 0o600),
            b"was a file": {b"z": File(b"z")},
            b"was a dir": File(b"a file now"),
            b"extra": {b"e": File(b"extra")},
            b"one": File(b"one"),
        },
        2_000,
    )
    if not exchanges:

        def unsupported(*_: object) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(module, "rename", unsupported)
    wanted, old, new = snapshot(source), random_trees.read(first), random_trees.read(source)
    count, status = 0, KILLED
    while status == KILLED:
        count += 1
        target = tmp_path / f"target{count}"
        subprocess.run(["cp", "-a", first, target], check=True)
        status = run_until(count, source, target)
        assert status in (KILLED, 0)
        now = {path: node for path, node in random_trees.read(target).items() if TEMPORARY not in path}
        for path, node in now.items():
            bytes_now = node.data if isinstance(node, File) else node
            assert bytes_now in [getattr(side[path], "data", side[path]) for side in (old, new) if path in side], path
        is_complete = all(
            getattr(now.get(path), "data", now.get(path)) == getattr(node, "data", node) for path, node in new.items()
        )
        assert not exchanges or now.keys() >= old.keys() & new.keys(), "a name was missing for a moment"
        kept = {path for path, node in old.items() if now.get(path) == node or path in new}
        assert is_complete or b"extra/e" in kept, "removed before all else was in place"
        restored(source, target)
        assert snapshot(target) == wanted, count
        assert restored(source, target) == []
        shutil.rmtree(target)
    assert count > 60


def test_an_error_leaves_no_temporary_names(sides: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = sides
    make(source, {b"a": File(b"1"), b"b": File(b"2")}, 1_000)
    make(target, {b"a": File(b"old"), b"extra": File(b"3")}, 2_000)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        restored(source, target)
    assert random_trees.read(target) == {b"a": File(b"old"), b"extra": File(b"3")}


def test_left_over_temporary_names_are_removed(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"a": File(b"1"), b"d": {b"b": File(b"2")}}, 1_000)
    make(target, {temporary(b"a"): {b"x": File(b"half")}, b"d": {temporary(b"gone"): File(b"half")}}, 2_000)
    restored(source, target, b"a", b"d")
    assert random_trees.read(target).keys() == {b"a", b"d/b"}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_as_a_user_who_is_not_root(tmp_path: Path) -> None:
    """Directories without write permission are no obstacle for their owner. Set-ID bits of another one are dropped."""
    source, target = tmp_path / "source", tmp_path / "target"
    for side in (source, target):
        side.mkdir()
    make(source, {b"locked": {b"f": File(b"1", 0o444)}, b"set": File(b"2", 0o4755), b"own": File(b"3", 0o4755)}, 1_000)
    make(target, {b"locked": {b"extra": {b"e": File(b"4")}}}, 2_000)
    for directory in (source / "locked", target / "locked", target / "locked/extra"):
        os.chmod(directory, 0o555)
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for side in (source, target):
        for directory, names, files in os.walk(side):
            for name in (".", *names, *files):
                os.lchown(os.path.join(directory, name), 12345, 12345)
    os.chmod(source / "own", 0o4755)
    os.chown(source / "set", 0, 0)
    os.chmod(source / "set", 0o4755)
    for directory in (tmp_path, *tmp_path.parents):
        if directory.name.startswith(("test_", "popen-", "pytest-")):
            os.chmod(directory, 0o755)
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(12345)
            os.setuid(12345)
            restore = plan(source, target)
            restore.run()
            os._exit(0 if restore.skipped == [(b"null", "Operation not permitted")] else 2)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert random_trees.read(target).keys() == {b"locked/f", b"set", b"own"}
    assert stat.S_IMODE((target / "locked").stat().st_mode) == 0o555
    assert stat.S_IMODE((target / "set").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "own").stat().st_mode) == 0o4755


def test_holes_where_the_file_system_does_not_tell_them(sides: tuple[Path, Path], without_holes: None) -> None:
    source, target = sides
    with (source / "f").open("wb") as file:
        file.truncate(5_000_001)
        file.seek(3_000_000)
        file.write(b"data")
    restored(source, target)
    assert (target / "f").stat().st_blocks * 512 < 200_000
    assert snapshot(target) == snapshot(source)


def test_ways_keep_their_attributes(sides: tuple[Path, Path]) -> None:
    source, target = sides
    make(source, {b"way": {b"f": File(b"1")}}, 1_000)
    make(target, {b"way": {b"f": File(b"2")}, b"another": {}}, 2_000)
    (source / "way").chmod(0o555)
    restore = plan(source, target, ways=(b"way", b"another"))
    assert Action("attributes", b"way") not in restore.actions
    restore.run()
    assert stat.S_IMODE((target / "way").stat().st_mode) == 0o755
    assert (target / "way/f").read_bytes() == b"1"
    assert (target / "another").is_dir()
