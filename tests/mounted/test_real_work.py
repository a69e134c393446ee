"""Everyday programs on a mount of each volume. More in `test_builds.py`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import mounts
import pytest
import trees
from clocks import MULTIGRAIN
from kinds import SOURCES, Kind, Work

# --------------------------------------------------------------------------------------------------------------
# git
# --------------------------------------------------------------------------------------------------------------


def test_git_clone_commit_branch_gc_fsck(work: Work, sources: Path) -> None:
    trees.git(work.path, "clone", "--quiet", "--no-local", sources, "clone")
    clone = work.path / "clone"
    assert len(trees.git(clone, "ls-files").splitlines()) == SOURCES
    assert trees.git(clone, "status", "--porcelain") == ""

    trees.git(clone, "checkout", "--quiet", "-b", "topic")
    for number in range(0, 100, 5):
        with (clone / f"package0/module{number // 20}/file{number:04}.py").open("a") as file:
            file.write("# changed on a branch\n")
    (clone / "new.txt").write_text("new\n")
    assert len(trees.git(clone, "status", "--porcelain").splitlines()) == 21
    trees.git(clone, "add", "--all")
    trees.git(clone, "commit", "--quiet", "--message=topic")
    trees.git(clone, "checkout", "--quiet", "main")
    assert not (clone / "new.txt").exists()
    trees.git(clone, "merge", "--quiet", "--no-ff", "--message=merge", "topic")
    trees.git(clone, "tag", "--annotate", "--message=tag", "v1")
    trees.git(clone, "gc", "--quiet", "--prune=now")
    trees.git(clone, "fsck", "--strict", "--full", "--no-dangling")
    assert trees.git(clone, "status", "--porcelain") == ""
    assert len(trees.git(clone, "log", "--oneline").splitlines()) == 3
    trees.git(clone, "stash", "list")
    trees.git(clone, "worktree", "add", "--quiet", "../second", "topic")
    assert (work.path / "second/new.txt").read_text() == "new\n"
    trees.git(work.path, "clone", "--quiet", "clone", "local")  # hard links where the volume has them
    trees.git(work.path / "local", "fsck", "--strict")


# --------------------------------------------------------------------------------------------------------------
# Copies
# --------------------------------------------------------------------------------------------------------------


def test_tar_in_and_out(work: Work, tmp_path: Path, sources: Path) -> None:
    origin = tmp_path / "origin"
    work.zoo(origin)
    (origin / "sources").mkdir()
    trees.run("cp", "-a", sources / "package0", origin / "sources")
    trees.run("tar", "--xattrs", "--format=posix", "-cf", tmp_path / "in.tar", "-C", origin, ".")
    inside = work.path / "inside"
    inside.mkdir()
    trees.run("tar", "--xattrs", "-xpf", tmp_path / "in.tar", "-C", inside)
    assert work.snapshot(inside) == work.snapshot(origin)

    trees.run("tar", "--xattrs", "--format=posix", "-cf", tmp_path / "out.tar", "-C", inside, ".")
    back = tmp_path / "back"
    back.mkdir()
    trees.run("tar", "--xattrs", "-xpf", tmp_path / "out.tar", "-C", back)
    assert work.snapshot(back) == work.snapshot(origin)
    trees.run("tar", "-czf", work.path / "packed.tgz", "-C", inside, ".")
    trees.run("tar", "-tzf", work.path / "packed.tgz")


def test_rsync_twice_moves_nothing_the_second_time(work: Work, tmp_path: Path, sources: Path) -> None:
    work.needs("persistent_modes", "links", "xattrs")
    origin = tmp_path / "origin"
    work.zoo(origin)
    trees.run("cp", "-a", sources / "package1", origin)
    command = ["rsync", "-aHAX", "--checksum", "--modify-window=-1", "--delete", "--itemize-changes"]
    assert trees.run(*command, f"{origin}/", work.path / "copy")
    assert trees.run(*command, f"{origin}/", work.path / "copy") == ""
    assert work.snapshot(work.path / "copy") == work.snapshot(origin)

    (origin / "package1/module0/file0100.py").write_text("changed\n")
    (origin / "old").unlink()
    assert len(trees.run(*command, f"{origin}/", work.path / "copy").splitlines()) == 3  # the two, and their directory
    assert trees.run(*command, f"{origin}/", work.path / "copy") == ""

    assert trees.run(*command, f"{work.path}/copy/", tmp_path / "back")
    assert trees.run(*command, f"{work.path}/copy/", tmp_path / "back") == ""
    assert work.snapshot(tmp_path / "back") == work.snapshot(origin)


def test_mv_across_routes_and_back(work: Work) -> None:
    work.zoo(work.path / "from")
    before = work.snapshot(work.path / "from")
    other = work.path.parent / "other"
    with pytest.raises(OSError, match="Invalid cross-device link"):
        os.rename(work.path / "from", other / "from")
    trees.run("mv", work.path / "from", other / "moved")
    assert not (work.path / "from").exists()
    assert work.snapshot(other / "moved") == before
    trees.run("mv", other / "moved", work.path / "back")
    assert work.snapshot(work.path / "back") == before
    assert not (other / "moved").exists()


# --------------------------------------------------------------------------------------------------------------
# Searching and editing
# --------------------------------------------------------------------------------------------------------------


def test_rg_grep_and_find_see_what_a_plain_directory_shows(work: Work, tmp_path: Path) -> None:
    trees.make_sources(tmp_path / "plain", 150)
    trees.run("cp", "-a", f"{tmp_path}/plain/.", work.path)

    def lines(*command: str, cwd: Path) -> list[str]:
        return sorted(trees.run(*command, cwd=cwd).splitlines())

    for command in (
        ("rg", "--line-number", "--no-heading", "needle1[0-9]", "."),
        ("rg", "--files"),
        ("grep", "-rn", "needle29", "."),
        ("grep", "-rlE", "word1 word2|needle7", "."),
        ("find", ".", "-type", "f", "-size", "+8k"),
        ("find", ".", "-type", "d"),
        ("find", ".", "-not", "-type", "d", "-printf", "%y %s %p\\n" if work.features.persistent_modes else "%y %f\\n"),
        ("du", "--apparent-size", "--bytes", "--summarize", "package0/module0/file0003.py"),
    ):
        assert lines(*command, cwd=work.path) == lines(*command, cwd=tmp_path / "plain"), command


@pytest.mark.parametrize("backupcopy", ["yes", "no", "auto"])
def test_vim_edits_a_file(server: tuple[Path, Kind], backupcopy: str) -> None:
    path, kind = server
    file = path / f"vim-{backupcopy}.txt"
    file.write_text("one old line\nkept\n")
    if kind.features.persistent_modes:
        file.chmod(0o640)
    vim = "vim" if shutil.which("vim") else "vim.tiny"  # Debian's vim-tiny has the second name alone
    options = f"set backup backupskip= backupcopy={backupcopy} backupdir=."  # vim makes no backups below /tmp
    for old, new in (("old", "new"), ("new", "newer")):
        trees.run(
            vim, "-es", "-u", "NONE", "-N", "-c", options, "-c", f"%s/{old}/{new}/", "-c", "wq", file.name, cwd=path,
        )  # fmt: skip
    assert file.read_text() == "one newer line\nkept\n"
    assert (path / f"{file.name}~").read_text() == "one new line\nkept\n"
    if kind.features.persistent_modes:
        assert file.stat().st_mode & 0o777 == 0o640
    assert not list(path.glob(".*.sw?"))


def test_what_is_touched_is_made_once(work: Work) -> None:
    """`touch` uses the kernel's coarse clock. Ours must not be ahead of it, or `make` finds a stamp too old."""
    (work.path / "Makefile").write_text("stamp: made\n\t@touch stamp; echo again >> log\n")
    for turn in range(1, 11):
        (work.path / "made").write_text("x" * turn)
        for _ in range(2):
            trees.run("make", "-s", cwd=work.path)
        assert len((work.path / "log").read_text().splitlines()) == turn


@pytest.mark.skipif(not MULTIGRAIN, reason="the kernel has no multigrain timestamps (Linux 6.13)")
def test_a_change_after_a_look_is_newer_and_what_is_touched_after_it_no_older(tmp_path: Path) -> None:
    """This holds on native volumes, also across routes, within one tick of the clock."""
    with mounts.mounted(tmp_path / "mnt", f"sqlite:{tmp_path}/v.db", routes={"/other": "memory:"}) as server:
        source, stamp = server.path / "source", server.path / "other/stamp"
        source.write_bytes(b"0")
        for turn in range(1, 50):
            stamp.touch()
            os.utime(stamp)
            made = stamp.stat().st_mtime_ns
            assert made >= source.stat().st_mtime_ns, "it would be made twice"
            source.write_bytes(b"%d" % turn)
            assert source.stat().st_mtime_ns > made, "it would not be made again"


def test_no_time_goes_back_when_it_is_set_to_now(work: Work) -> None:
    file = work.path / "file"
    for _ in range(50):
        file.write_bytes(b"x")
        with file.open("rb") as opened:
            before = os.fstat(opened.fileno())
        os.utime(file)
        after = file.stat()
        assert (after.st_mtime_ns, after.st_atime_ns) >= (before.st_mtime_ns, before.st_atime_ns)
