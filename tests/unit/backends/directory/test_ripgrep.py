"""ripgrep before the search: with it and without it, `grep` answers the same."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from fusebackend.backends.directory import search
from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.backends.directory.search import Candidates, find_candidates
from fusebackend.base import budget
from fusebackend.base.globs import compile_glob
from fusebackend.testing.posix.case import NOBODY, in_child, opened
from fusebackend.volumes.search import FileSearch, grepped

pytestmark = pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")


@contextlib.contextmanager
def without_ripgrep():
    found = search.find_candidates
    search.find_candidates = lambda *_, **__: None
    try:
        yield
    finally:
        search.find_candidates = found


def three_ways(backend, *args, **kwargs):
    """The answer with ripgrep, having seen that it was used and that the other ways give the same."""
    used = []
    found = search.find_candidates

    def spy(*spied, **options):
        used.append(found(*spied, **options))
        return used[-1]

    search.find_candidates = spy
    try:
        answer = backend.grep(*args, **kwargs)
    finally:
        search.find_candidates = found
    assert used != [None], "ripgrep gave up"
    with without_ripgrep():
        assert backend.grep(*args, **kwargs) == answer
    pattern, path, glob = (*args, None, None)[:3]
    found = FileSearch(backend.volume, path or "/", compile_glob(glob) if glob else None, backend.max_file_size_bytes)
    plain = grepped(found, pattern, kwargs.get("max_count"))
    assert plain == answer
    return answer


def candidates(directory: Path, pattern: str, max_bytes: int = 1 << 20, **options) -> Candidates | None:
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as fd:
        return find_candidates(fd, pattern, max_bytes, **options)


SEGMENTS = st.sampled_from(["a", "b.txt", ".hidden", "é", "c.py", "sp ace", "\udcff", "-n", "new\nline", ".git", "src"])
PATHS = st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join)
PIECES = st.sampled_from([
    b"needle", b"need", b"le", b"\n", b"\r\n", b"\0", b"\x0b", b"\x0c", b"\x85", "\u2028".encode(), b"\xef\xbb\xbf",
    b"\xff\xfe", "ü".encode(), b"\xfc", b" ", b".*", b"NEEDLE", b"x" * 3000, b"\r", b"\xed\xa0\x80",
])  # fmt: skip
CONTENTS = st.lists(PIECES, max_size=12).map(b"".join)
TREES = st.dictionaries(PATHS, CONTENTS, min_size=1, max_size=8)
PATTERNS = st.sampled_from(
    ["needle", "n", "", ".*", "ü", "\r", "-n", "\n", "e\n", "\0", "\ud800", "x" * 3001, "\u2028", "[", "\\", "\ufeff"]
)
GLOBS = st.sampled_from([None, "*.txt", "**/*.py", "src/*", ".git/**", "a/**", "{a,b.txt}", "nothing"])


def plant(root: Path, tree: dict[str, bytes]) -> None:
    for path, content in tree.items():
        target = root / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue  # a path that runs through a file


@given(TREES, PATTERNS, GLOBS, st.sampled_from([None, "/", "/a", "/src"]), st.sampled_from([None, 0, 1, 3]))
@settings(max_examples=examples(150))
def test_any_tree_is_searched_alike(tree, pattern, glob, path, max_count):
    with tempfile.TemporaryDirectory() as name, FilesystemBackend(name) as backend:
        root = Path(name)
        plant(root, tree)
        (root / ".gitignore").write_text("*.txt\na\n")
        (root / ".ignore").write_text("src\n")
        os.symlink("/etc", root / "link")
        os.symlink(".gitignore", root / "link.txt")
        os.mkfifo(root / "fifo")
        answer = three_ways(backend, pattern, path, glob, max_count=max_count)
        assert answer.error is None


def test_the_configuration_of_the_user_is_not_asked(tmp_path, monkeypatch):
    config = tmp_path / "ripgreprc"
    config.write_text("--ignore-case\n--glob=!*.txt\n--max-count=0\n--files\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(config))
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.txt").write_text("needle\n")
    (tmp_path / "root" / "b.txt").write_text("NEEDLE\n")
    with FilesystemBackend(tmp_path / "root") as backend:
        assert [match["path"] for match in three_ways(backend, "needle").matches] == ["/a.txt"]


def test_large_files_are_passed_over_and_told(tmp_path):
    (tmp_path / "large").write_bytes(b"needle\n" + bytes(1 << 20))
    (tmp_path / "limit").write_bytes(b"needle\n".ljust(1 << 20, b"x"))
    (tmp_path / "small").write_bytes(b"needle\n")
    with FilesystemBackend(tmp_path, max_file_size_mb=1) as backend:
        answer = three_ways(backend, "needle")
        assert ([match["path"] for match in answer.matches], answer.truncated) == (["/limit", "/small"], True)
        assert not three_ways(backend, "needle", "/", "small").truncated, "a large file that was not asked for"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who may not read everything")
def test_what_may_not_be_read_is_passed_over_and_told(tmp_path):
    os.chmod(tmp_path, 0o755)
    (tmp_path / "open").write_text("needle\n")
    (tmp_path / "secret.txt").write_text("needle\n")
    os.chmod(tmp_path / "secret.txt", 0)
    (tmp_path / "dir").mkdir(mode=0)
    with FilesystemBackend(tmp_path) as backend:

        def search():
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            return [three_ways(backend, "needle"), three_ways(backend, "needle", "/", "open"), backend.glob("*")]

        everything, one, listing = in_child(search)
    assert ([match["path"] for match in everything.matches], everything.truncated) == (["/open"], True)
    assert ([match["path"] for match in one.matches], one.truncated) == (["/open"], True), "the directory is closed"
    assert listing.truncation_reason == "unreadable"


# -- the sieve alone -------------------------------------------------------------------------------------------


def test_names_may_be_any_bytes(tmp_path):
    names = [b"new\nline", b"\xff", b"-e", b"--help", b"a:b", "ü".encode()]
    for name in names:
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).write_text("needle")
    assert candidates(tmp_path, "needle") == Candidates(frozenset(map(os.fsdecode, names)))


@for_each("pattern", ["--help", "-v", "-e", "--pre=touch pwned", "-fsecret", "", "$(touch pwned)"])
def test_a_pattern_is_never_an_option(tmp_path, pattern):
    (tmp_path / "file").write_text(f"has {pattern} in it")
    assert candidates(tmp_path, pattern) == Candidates(frozenset({"file"}))
    assert os.listdir(tmp_path) == ["file"]


@for_each("pattern", ["\n", "a\nb", "\0", "\ud800"])
def test_a_pattern_that_is_in_no_line_starts_nothing(tmp_path, monkeypatch, pattern):
    (tmp_path / "file").write_text("a\nb")
    monkeypatch.setattr(subprocess, "Popen", None)
    assert candidates(tmp_path, pattern) == Candidates(frozenset())


def test_without_ripgrep_or_with_a_pattern_too_long_for_it(tmp_path):
    (tmp_path / "file").write_text("x" * 100_000)
    assert candidates(tmp_path, "x", program="no-such-program") is None
    assert candidates(tmp_path, "x" * 100_000) is None
    with FilesystemBackend(tmp_path) as backend:
        assert len(backend.grep("x" * 100_000).matches) == 1


def fake(tmp_path, script: str) -> str:
    program = tmp_path / "fake-rg"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    return str(program)


def test_a_time_out_keeps_what_was_found_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    for name in ("found", "cut", "late"):
        (tmp_path / "root" / name).write_text("needle\n")
    program = fake(tmp_path, "printf './found\\0./cu'; exec sleep 60")
    with budget.limited(0.5):
        found = candidates(tmp_path / "root", "needle", program=program)
    assert found == Candidates(frozenset({"found"}), complete=False)
    monkeypatch.setattr(search, "find_candidates", lambda *_: found)
    with FilesystemBackend(tmp_path / "root") as backend:
        answer = backend.grep("needle")
    assert ([match["path"] for match in answer.matches], answer.truncated) == (["/found"], True)


@for_each(
    ("script", "expected"),
    [
        ("exit 1", Candidates(frozenset())),
        ("printf './a\\0'; exit 0", Candidates(frozenset({"a"}))),
        ("printf './a\\0'; echo 'b: Gone (os error 2)' >&2; exit 2", Candidates(frozenset({"a"}))),
        ("printf './a\\0'; echo 'b: Denied (os error 13)' >&2; exit 2", Candidates(frozenset({"a"}), denied=True)),
        ("echo './b: Input/output error (os error 5)' >&2; exit 2", None),
        ("echo 'error: regex parse error' >&2; exit 2", None),
        ("exit 101", None),
        ("kill -9 $$", None),
    ],
)  # fmt: skip
def test_what_an_exit_means(tmp_path, script, expected):
    assert candidates(tmp_path, "needle", program=fake(tmp_path, script)) == expected


def test_many_messages_do_not_block_it(tmp_path):
    program = fake(tmp_path, "yes './b: No such file or directory (os error 2)' | head -c 1000000 >&2; exit 2")
    assert candidates(tmp_path, "needle", program=program) == Candidates(frozenset())


def test_a_file_wrongly_named_is_found_out(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("nothing here\n")
    monkeypatch.setattr(search, "find_candidates", lambda *_: Candidates(frozenset({"file", "../etc/passwd"})))
    with FilesystemBackend(tmp_path) as backend:
        assert backend.grep("root").matches == []


def test_an_error_of_the_disk_is_told_as_without_ripgrep(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("needle\n")

    def fail(fd, size, offset):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with FilesystemBackend(tmp_path) as backend:
        monkeypatch.setattr(os, "pread", fail)
        assert backend.grep("needle").error == "Error searching '/': Input/output error"
