"""Backend conformance: the required behaviour of an agent face, as a class to subclass.

    from fusebackend.testing.conformance import BackendConformance

    class TestMine(BackendConformance):
        supports_move = False             # what needs it is skipped, with that reason

        @pytest.fixture
        def backend(self):
            return MyBackend()            # a new and empty one for each test

The class declares the differences that a backend may have; `Case` lists and explains them.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import anyio
import pytest

from fusebackend.protocol import AGENT_VERBS, ROOT_NODE, SEED_VERBS, BackendProtocol, Caller, SandboxBackendProtocol
from fusebackend.testing.each import each, needs

# -- the base of the cases ---------------------------------------------------------------------------------------
#
# A new backend, declared differences, and a probe to call it through.
#
# A test is a method with the argument `b`, a `Probe` around the backend under test. `needs(...)` names the words of
# `Case` without which it is skipped. Where a test has many cases it loops over them (`fusebackend.testing.each`): they
# share the backend, so each of them uses names of its own, or changes nothing.


class Case:
    """The base class of the cases. A subclass overrides the fixture `backend`, and those words below that differ."""

    supports_delete: bool = True
    supports_move: bool = True
    cancelled_s: float = 2.0
    """A cancelled call must return within this time; on a quiet machine most take some milliseconds."""
    replaces_existing: bool = False
    """`write` replaces an existing file (`on_exists="replace"`)."""
    byte_exact: bool = True
    """`upload_files` and `download_files` carry any bytes."""
    keeps_empty_directories: bool = True
    """A directory outlives its last file; False where directories are only parts of paths. For a path below a file,
    `grep`, `glob` and `download_files` may then answer that there is nothing, instead of an error for a bad path."""
    checks_paths: bool = True
    """Bad paths are errors: empty, above the root, `~`, NUL, a file used as a directory, a lone surrogate; and, as on
    Linux, names over 255 bytes and paths over 4,096."""
    resolves_dot_dot: bool = True
    """`/x/../a` is `/a`, by its text; False where `..` is refused."""
    any_name: bool = True
    """Names may be any bytes that Linux allows, shown with surrogateescape where they are not UTF-8."""
    finds_text_only: bool = True
    """`grep` treats files with a NUL byte, or that are not UTF-8, as binary, and finds nothing in them."""
    preserves_crlf: bool = True
    """`read` ends lines at LF alone, and `edit` keeps the line ends that a file has, CRLF or not."""
    big_file_bytes: int = (9 << 20) + 5
    """The size of the large file in the tests that have one."""
    many_entries: int = 1100
    """The length of a long listing; services that answer in pages have 1,000 entries in one."""

    @pytest.fixture
    def backend(self) -> BackendProtocol:
        raise NotImplementedError("override the fixture `backend`: it gives a new and empty backend for each test")

    @pytest.fixture
    def b(self, backend: BackendProtocol, request: pytest.FixtureRequest) -> Probe:
        """The probe around the backend of one test."""
        self.require(backend, getattr(request.function, "needs", ()))
        return Probe(backend, self)

    def require(self, backend: BackendProtocol, words: Iterable[str]) -> None:
        """Skip a test, or a case of a loop, unless the class declares each of the words."""
        for word in words:
            if not getattr(self, word):
                pytest.skip(f"needs {word}, which {type(backend).__name__} does not declare")

    def settle(self, backend: BackendProtocol, result: Any) -> None:
        """Receive each result. For a state-backed backend, override it to merge `files_update`, as its graph would."""


def _word_of(verb: str) -> tuple[str, ...]:
    """The word of `Case` that declares a verb; none for a verb that every backend has."""
    return (f"supports_{verb}",) if hasattr(Case, f"supports_{verb}") else ()


class Probe:
    """Calls each verb of the backend under its name. A missing verb fails the case."""

    def __init__(self, backend: BackendProtocol, case: Case) -> None:
        self.backend = backend
        self.case = case

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in AGENT_VERBS + SEED_VERBS:
            raise AttributeError(verb)
        method = getattr(self.backend, verb)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = method(*args, **kwargs)
            except NotImplementedError as error:
                self.without(error)
            for one in result if isinstance(result, list) else [result]:
                self.case.settle(self.backend, one)
            return result

        return call

    def without(self, error: NotImplementedError) -> None:
        """Fail for a missing verb."""
        pytest.fail(f"{type(self.backend).__name__} lacks a verb and does not declare it: {error}")

    def put(self, path: str, content: str = "") -> None:
        """Write a new file, or fail."""
        _good(self.write(path, content))

    def put_bytes(self, path: str, content: bytes) -> None:
        """Upload a file, or fail."""
        _good(*self.upload_files([(path, content)]))

    def bytes_of(self, path: str) -> bytes:
        """Download a file, or fail."""
        content = _good(*self.download_files([path])).content
        assert isinstance(content, bytes)
        return content

    def exists(self, path: str) -> bool:
        (response,) = self.download_files([path])
        return bool(response.error != "file_not_found")

    def names(self, path: str = "/") -> list[str]:
        """List the paths in a directory, or fail."""
        return [entry["path"] for entry in _good(self.ls(path)).entries]

    def files(self, directory: str) -> dict[str, bytes]:
        """Return the files below a directory, by their paths in it; none where there is no such directory."""
        found: dict[str, bytes] = {}
        for entry in self.ls(directory).entries or ():
            path = entry["path"].rstrip("/")
            below = self.files(path) if entry.get("is_dir") else {"": self.bytes_of(path)}
            found |= {path[len(directory) :] + name: content for name, content in below.items()}
        return found

    def globbed(self, pattern: str, path: str | None = None) -> list[str]:
        """Return the paths that `glob` finds, or fail."""
        return [entry["path"] for entry in _good(self.glob(pattern, path)).matches]

    def grepped(self, *args: Any, **kwargs: Any) -> list[tuple[str, int, str]]:
        """Return the matches of `grep` as tuples (path, line, text), or fail."""
        return [(match["path"], match["line"], match["text"]) for match in _good(self.grep(*args, **kwargs)).matches]


def _good(result: Any) -> Any:
    """Return a result that has no error, or fail."""
    assert result.error is None, result.error
    return result


# -- cases of `ls` and `ls_info` ---------------------------------------------------------------------------------


class ListingCases(Case):
    def test_a_new_backend_is_empty(self, b: Probe) -> None:
        assert b.names("/") == []

    def test_direct_children_only_sorted_and_directories_end_in_a_slash(self, b: Probe) -> None:
        for path in ("/b.txt", "/a/one.txt", "/a/sub/two.txt", "/c/three.txt", "/a.txt", "/a-b.txt"):
            b.put(path, "x")
        assert b.names("/") == ["/a-b.txt", "/a.txt", "/a/", "/b.txt", "/c/"]
        assert b.names("/a") == ["/a/one.txt", "/a/sub/"]
        assert [entry.get("is_dir", False) for entry in b.ls("/a").entries] == [False, True]

    def test_sizes_are_bytes(self, b: Probe) -> None:
        b.put("/file.txt", "日本\n")
        assert b.ls("/").entries[0]["size"] == 7

    def test_times_are_iso_8601_with_an_offset(self, b: Probe) -> None:
        b.put("/file.txt", "x")
        modified = datetime.datetime.fromisoformat(b.ls("/").entries[0]["modified_at"])
        assert modified.tzinfo is not None
        assert abs(datetime.datetime.now(datetime.UTC) - modified) < datetime.timedelta(hours=1)

    def test_a_trailing_slash_makes_no_difference(self, b: Probe) -> None:
        b.put("/dir/file.txt", "x")
        assert b.names("/dir/") == b.names("/dir") == ["/dir/file.txt"]

    @needs("checks_paths")
    def test_nothing_there_and_a_file_are_errors(self, b: Probe) -> None:
        b.put("/file.txt", "x")
        for path in ("/none", "/file.txt"):
            result = b.ls(path)
            assert result.error and path in result.error
            assert result.entries is None

    def test_the_name_of_the_seeds(self, b: Probe) -> None:
        b.put("/dir/file.txt", "x")
        assert [entry["path"] for entry in b.ls_info("/dir")] == ["/dir/file.txt"]
        assert b.ls_info("/none") == []

    def test_a_directory_of_many_entries(self, b: Probe) -> None:
        paths = [f"/many/{number:04}.txt" for number in range(self.many_entries)]
        responses = b.upload_files([(path, b"x") for path in paths])
        assert all(response.error is None for response in responses)
        assert b.names("/many") == paths


# -- cases of `read`: windows of lines, numbered text, bytes -----------------------------------------------------


TEN = "".join(f"line {number}\n" for number in range(1, 11))

# offset and limit; the first line, the last one and the next offset
WINDOWS = [
    (0, 2000, 1, 10, None),
    (0, 3, 1, 3, 3),
    (3, 3, 4, 6, 6),
    (9, 3, 10, 10, None),
    (7, 3, 8, 10, None),
    (-5, 2, 1, 2, 2),
]


NUMBERED: list[tuple[str, dict[str, int], str]] = [
    ("first\nsecond", {}, "     1\tfirst\n     2\tsecond"),
    (TEN, {"offset": 8, "limit": 2}, "     9\tline 9\n    10\tline 10"),
    ("x" * 12_000 + "\nshort\n", {},
     "\n".join(["     1\t" + "x" * 5000, "   1.1\t" + "x" * 5000, "   1.2\t" + "x" * 2000, "     2\tshort"])),
]  # fmt: skip
"""A text, a window, and its numbered text."""


class ReadingCases(Case):
    def test_numbered_text_keeps_the_numbers_of_the_file(self, b: Probe) -> None:
        for number, case in enumerate(each(NUMBERED)):
            with case as (content, window, shown):
                b.put(f"/{number}.txt", content)
                assert str(b.read(f"/{number}.txt", **window)) == shown

    def test_a_missing_file_is_named(self, b: Probe) -> None:
        assert str(b.read("/none.txt")) == "Error: File '/none.txt' not found"

    def test_a_window_of_lines(self, b: Probe) -> None:
        b.put("/ten.txt", TEN)
        for case in each(WINDOWS):
            with case as (offset, limit, start, end, following):
                result = b.read("/ten.txt", offset=offset, limit=limit)
                assert (result.start_line, result.end_line, result.next_offset) == (start, end, following)
                assert (result.error, result.total_lines, result.file_data["encoding"]) == (None, 10, "utf-8")
                assert result.file_data["content"] == "".join(f"line {number}\n" for number in range(start, end + 1))

    def test_windows_put_together_are_the_file(self, b: Probe) -> None:
        content = "a\n\nb\u2028c\x0cd\n" * 7 + "no newline at the end"
        b.put("/pages.txt", content)
        pieces, offset = [], 0
        while offset is not None:
            result = b.read("/pages.txt", offset=offset, limit=3)
            assert result.error is None, result.error
            pieces.append(result.file_data["content"])
            offset = result.next_offset
        assert "".join(pieces) == content

    def test_an_offset_past_the_end_is_an_error(self, b: Probe) -> None:
        b.put("/ten.txt", TEN)
        assert b.read("/ten.txt", offset=10).error == "Line offset 10 exceeds file length (10 lines)"

    def test_a_limit_of_nothing_asks_for_no_lines(self, b: Probe) -> None:
        b.put("/ten.txt", TEN)
        for case in each([0, -1]):
            with case as limit:
                result = b.read("/ten.txt", limit=limit)
                assert result.error is None
                assert result.no_lines_requested
                assert result.file_data["content"] == ""
                assert result.start_line is None

    def test_white_space_alone_has_no_window_and_a_reminder(self, b: Probe) -> None:
        for case in each(["", "\n", " \t\r\n "]):
            with case as content:
                path = f"/{len(content)}.txt"
                b.put(path, content)
                result = b.read(path)
                assert result.error is None
                assert result.file_data["content"] == content
                assert result.start_line is None and result.total_lines is None
                assert str(result) == "System reminder: File exists but has empty contents"

    def test_crlf_is_lf_in_the_window_and_stays_in_the_file(self, b: Probe) -> None:
        b.put("/dos.txt", "one\r\ntwo\r\nthree\n")
        result = b.read("/dos.txt")
        assert result.file_data["content"] == "one\ntwo\nthree\n"
        assert result.total_lines == 3
        assert b.bytes_of("/dos.txt") == b"one\r\ntwo\r\nthree\n"

    @needs("preserves_crlf")
    def test_a_line_has_the_number_that_grep_gives_it(self, b: Probe) -> None:
        b.put("/odd.txt", "a\rb\x0bc\x0cd\x1ce\x1df\x1eg\x85h\u2028i\u2029j\r\nneedle\rlast")
        ((_, number, line),) = b.grepped("needle")
        result = b.read("/odd.txt", offset=number - 1)
        assert (result.start_line, result.end_line, result.total_lines) == (2, 2, 2)
        assert result.file_data["content"] == line == "needle\rlast"
        assert str(result) == "     2\tneedle\rlast"

    def test_text_of_every_script(self, b: Probe) -> None:
        content = "日本語\nпривет\n한국어\nnaïve 🎉\n"
        b.put("/words.txt", content)
        assert "한국어" in b.read("/words.txt")
        assert b.bytes_of("/words.txt").decode() == content

    @needs("byte_exact")
    def test_what_is_binary_is_read_whole_in_base64(self, b: Probe) -> None:
        """By its extension, or since it is not UTF-8."""
        for case in each({"/picture.PNG": b"text\n" * 5, "/data.bin": bytes(range(256))}.items()):
            with case as (path, content):
                b.put_bytes(path, content)
                result = b.read(path, offset=2, limit=1)
                assert (result.error, result.start_line, result.file_data["encoding"]) == (None, None, "base64")
                assert base64.b64decode(result.file_data["content"]) == content

    def test_a_window_far_into_a_large_file(self, b: Probe) -> None:
        lines = self.big_file_bytes // 16
        b.put_bytes("/large.txt", b"".join(b"%015d\n" % number for number in range(lines)))
        result = b.read("/large.txt", offset=lines - 2, limit=1)
        assert result.file_data["content"] == f"{lines - 2:015d}\n"
        assert (result.total_lines, result.next_offset) == (lines, lines - 1)


# -- cases of `glob` and `grep`, as tables -----------------------------------------------------------------------


TREE = ("/README.md", "/src/main.py", "/src/lib/util.py", "/src/lib/.hidden.py", "/.ci/build.yml", "/docs/a b.md")

GLOBS: list[tuple[str, str | None, list[str]]] = [
    # A name at any depth.
    ("*.py", None, ["/src/lib/util.py", "/src/main.py"]),
    ("util.py", None, ["/src/lib/util.py"]),
    ("*.yml", None, ["/.ci/build.yml"]),
    (".*.py", None, ["/src/lib/.hidden.py"]),
    ("*.{py,md}", None, ["/README.md", "/docs/a b.md", "/src/lib/util.py", "/src/main.py"]),
    ("[mu]*.py", None, ["/src/lib/util.py", "/src/main.py"]),
    ("????.py", None, ["/src/lib/util.py", "/src/main.py"]),
    ("*", None, ["/.ci/build.yml", "/README.md", "/docs/a b.md", "/src/lib/util.py", "/src/main.py"]),
    # A relative path.
    ("src/*.py", None, ["/src/main.py"]),
    ("src/**/*.py", None, ["/src/lib/util.py", "/src/main.py"]),
    ("**/*.yml", None, []),
    (".ci/**", None, ["/.ci/build.yml"]),
    ("**/lib/*", None, ["/src/lib/util.py"]),
    ("{src,docs}/*", None, ["/docs/a b.md", "/src/main.py"]),
    ("lib/*.py", None, []),
    # Anchored to the search root.
    ("/*.md", None, ["/README.md"]),
    ("/src/main.py", None, ["/src/main.py"]),
    ("/main.py", None, []),
    # Below a directory, and a directory itself, which is no file.
    ("*.py", "/src/lib", ["/src/lib/util.py"]),
    ("lib/*.py", "/src", ["/src/lib/util.py"]),
    ("/main.py", "/src", ["/src/main.py"]),
    ("src", None, []),
    ("src/", None, []),
    ("*.rs", None, []),
    ("*.py", "/nowhere", []),
]

GREPPED = {
    "/one.txt": "needle at the start\nnothing\nthe needle\n",
    "/dir/two.py": "no\nNEEDLE\nx.*y needle",
    "/dir/three.md": "needle needle\r\n",
}

GREPS: list[tuple[str, str | None, str | None, list[tuple[str, int, str]]]] = [
    ("NEEDLE", None, None, [("/dir/two.py", 2, "NEEDLE")]),
    ("x.*y", None, None, [("/dir/two.py", 3, "x.*y needle")]),
    (".", "/one.txt", None, []),
    ("needle", "/one.txt", None, [("/one.txt", 1, "needle at the start"), ("/one.txt", 3, "the needle")]),
    ("needle", None, "*.py", [("/dir/two.py", 3, "x.*y needle")]),
    ("needle", "/dir", "*.py", [("/dir/two.py", 3, "x.*y needle")]),
    ("needle", "/dir", "dir/*.py", []),
    ("needle", None, "dir/*.py", [("/dir/two.py", 3, "x.*y needle")]),
    ("nothing\nthe", None, None, []),
    ("absent", None, None, []),
]


class SearchingCases(Case):
    def test_the_rules_of_globs(self, b: Probe) -> None:
        for name in TREE:
            b.put(name, "x")
        for case in each(GLOBS):
            with case as (pattern, path, found):
                assert b.globbed(pattern, path) == found

    def test_patterns_that_are_refused(self, b: Probe) -> None:
        b.put("/src/main.py", "x")
        for case in each(["../*", "src/../*", ""]):
            with case as pattern:
                result = b.glob(pattern)
                assert result.error and result.matches is None

    def test_glob_gives_files_with_their_sizes(self, b: Probe) -> None:
        b.put("/dir/file.txt", "four")
        (entry,) = b.glob("*.txt").matches
        assert (entry["path"], entry["size"], entry.get("is_dir", False)) == ("/dir/file.txt", 4, False)
        assert [entry["path"] for entry in b.glob_info("*.txt")] == ["/dir/file.txt"]

    @needs("finds_text_only")
    def test_grep_is_literal_and_goes_by_lines(self, b: Probe) -> None:
        for name, content in GREPPED.items():
            b.put(name, content)
        for case in each(GREPS):
            with case as (pattern, path, glob, found):
                assert b.grepped(pattern, path, glob) == found

    def test_grep_finds_lines_in_order(self, b: Probe) -> None:
        b.put("/b.txt", "needle 1\nno\nneedle 2\n")
        b.put("/a/c.txt", "needle 3\n")
        found = [("/a/c.txt", 1, "needle 3"), ("/b.txt", 1, "needle 1"), ("/b.txt", 3, "needle 2")]
        assert b.grepped("needle") == found
        assert [match["path"] for match in b.grep_raw("needle", "/a")] == ["/a/c.txt"]

    def test_grep_stays_below_its_path(self, b: Probe) -> None:
        b.put("/dir/one.txt", "needle")
        b.put("/dir2/two.txt", "needle")
        assert ("/dir/one.txt", 1, "needle") in b.grepped("needle", "/dir")
        if self.checks_paths:
            assert len(b.grepped("needle", "/dir")) == 1
            assert b.grepped("needle", "/nowhere") == []

    def test_grep_stops_at_max_count(self, b: Probe) -> None:
        b.put("/one.txt", "needle\nneedle\n")
        b.put("/two.txt", "needle\n")
        for case in each([(2, 2, True), (3, 3, False), (9, 3, False)]):
            with case as (max_count, lines, truncated):
                result = b.grep("needle", max_count=max_count)
                assert len(result.matches) == lines
                assert result.truncated is truncated
                assert result.matches[0]["path"] == "/one.txt"

    @needs("finds_text_only", "byte_exact")
    def test_grep_finds_nothing_in_binary_files(self, b: Probe) -> None:
        for number, case in enumerate(each([b"needle\n\0", b"\0needle", b"needle \xff\n", b"needle\n\xe6\x97"])):
            with case as content:
                b.put_bytes(f"/{number}.txt", content)
                assert b.grepped("needle") == []

    @needs("finds_text_only")
    def test_grep_splits_lines_at_newlines_alone(self, b: Probe) -> None:
        b.put("/file.txt", "one\x0cneedle\u2028still one\nneedle two\r\n")
        assert b.grepped("needle") == [
            ("/file.txt", 1, "one\x0cneedle\u2028still one"),
            ("/file.txt", 2, b.grepped("needle two")[0][2]),
        ]
        assert b.grepped("needle two")[0][2].rstrip("\r") == "needle two"

    def test_grep_of_every_script(self, b: Probe) -> None:
        b.put("/words.txt", "한국어\n日本語 привет\n")
        assert b.grepped("本語 при") == [("/words.txt", 2, "日本語 привет")]

    @needs("finds_text_only")
    def test_grep_in_a_large_file(self, b: Probe) -> None:
        lines = self.big_file_bytes // 16
        b.put_bytes("/large.txt", b"%015d\n" % 0 * lines + b"the needle")
        assert b.grepped("needle") == [("/large.txt", lines + 1, "the needle")]


# -- cases of `write` and `edit`, and of calls that no directory takes -------------------------------------------


EDITS: list[tuple[tuple[str, ...], str, tuple[Any, ...], str | None, int | str]] = [
    ((), "Hello World", ("World", "Universe"), "Hello Universe", 1),
    ((), "start middle end", ("middle", "m"), "start m end", 1),
    ((), "start middle end", (" end", ""), "start middle", 1),
    ((), "start middle end", ("s", "sss"), "ssstart middle end", 1),
    ((), "日本語 привет 日本語", ("привет", "안녕 🎉"), "日本語 안녕 🎉 日本語", 1),
    ((), "ab ab ab", ("ab", "x", True), "x x x", 3),
    ((), "ab ab ab", ("ab", "x"), None, "3 times"),
    ((), "text", ("nothing", "x"), None, ""),
    ((), "text", ("", "x"), None, ""),
    (("preserves_crlf",), "one\r\ntwo\r\nthree\r\n", ("one\ntwo", "1\n2\n2b"), "1\r\n2\r\n2b\r\nthree\r\n", 1),
]
"""What a backend must declare, the text of a file, an edit, and the text after it with the number of occurrences; None
for an error, with a part of it."""


REFUSED: list[tuple[Any, ...]] = [
    ((), "write", "/dir", "y"),
    ((), "write", "/", "y"),
    ((), "edit", "/dir", "x", "y"),
    ((), "read", "/dir"),
    ((), "read", "/"),
    (("supports_delete",), "delete", "/"),
    (("supports_move",), "move", "/", "/elsewhere"),
]
"""What a backend must declare, and a call about a directory or the root that is an error."""


class EditingCases(Case):
    def test_write_says_where(self, b: Probe) -> None:
        result = b.write("/new.txt", "x")
        assert (result.error, result.path) == (None, "/new.txt")

    def test_write_refuses_or_replaces_an_existing_file(self, b: Probe) -> None:
        b.put("/file.txt", "a long old text\n")
        result = b.write("/file.txt", "new")
        if self.replaces_existing:
            assert result.error is None
            assert b.bytes_of("/file.txt") == b"new"
        else:
            assert result.error and result.error.startswith("Cannot write to /file.txt because it already exists.")
            assert result.path is None
            assert b.bytes_of("/file.txt") == b"a long old text\n"

    @needs("checks_paths")
    def test_write_of_what_is_no_text_is_an_error(self, b: Probe) -> None:
        assert b.write("/file.txt", "lone \ud800 surrogate").error
        assert not b.exists("/file.txt")

    def test_edits(self, b: Probe) -> None:
        for number, case in enumerate(each(EDITS)):
            with case as (words, before, edit, after, told):
                self.require(b.backend, words)
                path = f"/{number}.txt"
                b.put(path, before)
                result = b.edit(path, *edit)
                if after is None:
                    assert result.error and told in result.error and result.occurrences is None
                else:
                    assert (result.error, result.path, result.occurrences) == (None, path, told)
                assert b.bytes_of(path).decode() == (before if after is None else after)

    def test_edit_of_a_missing_file_names_it(self, b: Probe) -> None:
        assert b.edit("/none.txt", "a", "b").error == "Error: File '/none.txt' not found"

    @needs("preserves_crlf")
    def test_edit_of_one_mixed_line_leaves_the_others(self, b: Probe) -> None:
        b.put("/mixed.txt", "one\r\ntwo\nthree\r\n")
        assert b.edit("/mixed.txt", "two", "2").error is None
        assert b.bytes_of("/mixed.txt") == b"one\r\n2\nthree\r\n"

    @needs("preserves_crlf")
    def test_edit_takes_what_read_shows(self, b: Probe) -> None:
        b.put("/mixed.txt", "one\r\ntwo\nthree\rthree\r\nfour\x0cfour\n")
        shown = b.read("/mixed.txt").file_data["content"]
        assert b.edit("/mixed.txt", shown, shown.replace("two\n", "2\n2b\n")).error is None
        assert b.bytes_of("/mixed.txt") == b"one\r\n2\n2b\nthree\rthree\r\nfour\x0cfour\n"

    @needs("byte_exact")
    def test_edit_of_bytes_is_refused(self, b: Probe) -> None:
        b.put_bytes("/data.bin", b"\xff\xfe text")
        assert b.edit("/data.bin", "text", "x").error
        assert b.bytes_of("/data.bin") == b"\xff\xfe text"

    def test_edit_of_a_large_file(self, b: Probe) -> None:
        size = self.big_file_bytes
        b.put_bytes("/large.txt", b"x" * size + b"needle" + b"y" * 100)
        assert b.edit("/large.txt", "needle", "pin").error is None
        content = b.bytes_of("/large.txt")
        assert len(content) == size + 103
        assert content[size - 1 : size + 4] == b"xpiny"

    @needs("checks_paths")
    def test_calls_that_no_directory_takes_are_errors(self, b: Probe) -> None:
        b.put("/dir/file.txt", "x")
        for case in each(REFUSED):
            with case as (words, verb, *arguments):
                self.require(b.backend, words)
                assert getattr(b, verb)(*arguments).error
                assert b.files("/") == {"dir/file.txt": b"x"}


# -- cases of `delete` and `move` --------------------------------------------------------------------------------


ONE, TWO, SUB, DEEP = "/dir/one.txt", "/dir/two.txt", "/tree/sub/file.txt", "/tree/sub/sub/c.txt"
HOUSE, FILE = "/treehouse.txt", "/tree.txt"
MOVED = {"/wood/sub/file.txt": SUB, "/wood/sub/sub/c.txt": DEEP}
ABSENT = "'{0}' not found"
CHANGES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str | None, dict[str, str]]] = {
    "delete a file": ((), (ONE, TWO), ("delete", ONE), None, {TWO: TWO}),
    "delete a tree": ((), (SUB, DEEP, HOUSE, FILE), ("delete", "/tree"), None, {HOUSE: HOUSE, FILE: FILE}),
    "delete nothing": ((), (ONE,), ("delete", "/none.txt"), ABSENT, {ONE: ONE}),
    "move a file, and make parents": ((), (ONE,), ("move", ONE, "/new/place/1"), None, {"/new/place/1": ONE}),
    "move a tree": ((), (SUB, DEEP), ("move", "/tree", "/wood"), None, MOVED),
    "move nothing": ((), (ONE,), ("move", "/none.txt", "/a/b.txt"), ABSENT, {ONE: ONE}),
    "move over a file": ((), (ONE, TWO), ("move", ONE, TWO), "exists", {ONE: ONE, TWO: TWO}),
    "move over a directory": ((), (ONE, FILE), ("move", FILE, "/dir"), "exists", {ONE: ONE, FILE: FILE}),
    "move into itself": (("checks_paths",), (SUB,), ("move", "/tree", "/tree/sub/tree"), "", {SUB: SUB}),
}
"""What a backend must declare, files with their paths as contents, a call, a part of its error (None: it has none), and
the files after it."""


class MovingCases(Case):
    def test_what_is_declared_missing_is_missing(self, b: Probe) -> None:
        """A backend that can delete or move must declare it, or those cases would be skipped without reason."""
        for verb, *paths in (("delete", "/none.txt"), ("move", "/none.txt", "/other.txt")):
            if not getattr(self, f"supports_{verb}"):
                with contextlib.suppress(NotImplementedError):
                    assert getattr(b.backend, verb)(*paths).error

    def test_deletes_and_moves(self, b: Probe) -> None:
        for number, case in enumerate(each(CHANGES)):
            with case as (words, before, (verb, *paths), error, after):
                self.require(b.backend, (f"supports_{verb}", *words))
                given = [f"/{number}{path}" for path in paths]
                for path in before:
                    b.put(f"/{number}{path}", path)
                result = getattr(b, verb)(*given)
                assert result.path == (given[-1] if error is None else None)
                assert result.error is None if error is None else error.format(*given) in result.error
                assert b.files(f"/{number}") == {path: content.encode() for path, content in after.items()}

    @needs("supports_delete")
    def test_delete_a_wide_and_deep_tree(self, b: Probe) -> None:
        b.upload_files([(f"/tree/{number % 7}/{number}.txt", b"") for number in range(100)])
        b.put("/tree/" + "d/" * 60 + "deep.txt")
        assert b.delete("/tree/").error is None
        assert b.names() == []

    @needs("supports_delete")
    def test_a_directory_after_its_last_file(self, b: Probe) -> None:
        b.put("/dir/only.txt", "x")
        assert b.delete("/dir/only.txt").error is None
        assert b.names() == (["/dir/"] if self.keeps_empty_directories else [])

    @needs("supports_delete")
    def test_what_was_deleted_can_be_written_again(self, b: Probe) -> None:
        b.put("/file.txt", "old")
        assert b.delete("/file.txt").error is None
        b.put("/file.txt", "new")
        assert b.bytes_of("/file.txt") == b"new"


# -- cases of `upload_files` and `download_files` ----------------------------------------------------------------


class BatchCases(Case):
    def test_a_batch_answers_in_order(self, b: Probe) -> None:
        paths = ["/z.txt", "/a/b.txt", "/m.txt"]
        responses = b.upload_files([(path, path.encode()) for path in paths])
        assert [(response.path, response.error) for response in responses] == [(path, None) for path in paths]
        fetched = b.download_files(paths[::-1])
        assert [(response.path, response.content) for response in fetched] == [
            (path, path.encode()) for path in paths[::-1]
        ]

    def test_an_empty_batch(self, b: Probe) -> None:
        assert b.upload_files([]) == []
        assert b.download_files([]) == []

    def test_items_fail_singly(self, b: Probe) -> None:
        b.put("/one.txt", "1")
        b.put("/two.txt", "2")
        responses = b.download_files(["/one.txt", "/none.txt", "/two.txt"])
        assert [(response.path, response.content, response.error) for response in responses] == [
            ("/one.txt", b"1", None),
            ("/none.txt", None, "file_not_found"),
            ("/two.txt", b"2", None),
        ]

    @needs("checks_paths")
    def test_each_failure_has_its_code(self, b: Probe) -> None:
        b.put("/dir/file.txt", "x")
        uploads = [("/ok.txt", b"1"), ("/dir", b""), ("", b""), ("/dir/file.txt/x", b""), ("/../x", b"")]
        codes = [None, "is_directory", "invalid_path", "invalid_path", "invalid_path"]
        responses = b.upload_files(uploads)
        assert [response.error for response in responses] == codes
        assert [response.path for response in responses] == [path for path, _ in uploads]
        downloads = [response.error for response in b.download_files([path for path, _ in uploads])]
        if not self.keeps_empty_directories and downloads[3] == "file_not_found":
            codes[3] = "file_not_found"
        assert downloads == codes
        assert b.bytes_of("/ok.txt") == b"1"

    def test_upload_replaces_what_is_there(self, b: Probe) -> None:
        b.put("/file.txt", "a long old text")
        b.put_bytes("/file.txt", b"new")
        assert b.bytes_of("/file.txt") == b"new"

    def test_the_last_of_two_uploads_to_one_path_wins(self, b: Probe) -> None:
        responses = b.upload_files([("/file.txt", b"first"), ("/file.txt", b"second")])
        assert [response.error for response in responses] == [None, None]
        assert b.bytes_of("/file.txt") == b"second"

    def test_an_empty_file(self, b: Probe) -> None:
        b.put_bytes("/empty.txt", b"")
        assert b.bytes_of("/empty.txt") == b""
        assert b.names() == ["/empty.txt"]

    @needs("byte_exact")
    def test_any_bytes(self, b: Probe) -> None:
        contents = [bytes(range(256)), b"\0" * 1000, b"\r\n\r\r\n\n", b"\xef\xbb\xbfBOM", b"half \xe6\x97"]
        files = [(f"/{number}.{suffix}", contents[number]) for number in range(5) for suffix in ("bin", "png", "txt")]
        assert [response.error for response in b.upload_files(files)] == [None] * len(files)
        answers = b.download_files([path for path, _ in files])
        assert [(answer.path, answer.content) for answer in answers] == files

    @needs("byte_exact")
    def test_a_large_file(self, b: Probe) -> None:
        content = bytes(range(251)) * (self.big_file_bytes // 251)
        b.put_bytes("/large.bin", content)
        assert b.bytes_of("/large.bin") == content
        b.put_bytes("/large.bin", content[:-7])
        assert b.bytes_of("/large.bin") == content[:-7]


# -- cases of paths ----------------------------------------------------------------------------------------------
#
# Refused ones, equal ones, and the names that must work.


BAD_PATHS = {
    "empty": "",
    "above the root": "/../x",
    "above the root, further on": "/a/../../x",
    "home": "~/x",
    "NUL": "/a\0b",
    "a file as a directory": "/file.txt/x",
    "a lone surrogate": "/\ud800",
    "a name of 256 bytes": "/" + "n" * 256,
    "256 bytes in 128 characters": "/" + "é" * 128,
    "a path of 4,097 bytes": "/" + "/".join(["n" * 127] * 32) + "n",
}

NAMES = (
    "with space", " ", "new\nline", "tab\t", "quote'\"", "back\\slash", "*?[x]{a,b}", "-rf", "日本語", "naïve",
    "nai\u0308ve", "🎉", "...", ".hidden", "a..b", "%2e", "~tilde", "#", "colon:", "trailing.", "$(x)", "n" * 255,
)  # fmt: skip

NAMES_OF_BYTES = ("\udcff", "caf\udce9.txt", "日\udce6\udc97.txt")

LINKS = {
    "x": "secrets", "w": "x", "z": "secrets/k", "new": "secrets/made", "dots": "./secrets/../secrets/.", "loop": "loop",
    "out": "../etc", "absolute": "/secrets",
}  # fmt: skip

LED: dict[str, str | None] = {
    "/x": "/secrets", "/x/k": "/secrets/k", "/w/k": "/secrets/k", "/z": "/secrets/k", "/new": "/secrets/made",
    "/x/deep/er": "/secrets/deep/er", "/dots/k": "/secrets/k", "/loop": None, "/out": None, "/out/passwd": None,
    "/absolute/k": None, "/open/k": None,
}  # fmt: skip
"""Where paths lead by these links; None for nowhere."""

SPELLINGS = ("//{}//b.txt", "/{}/./b.txt", "/x/../{}/b.txt", "{}/b.txt", "/{}/b.txt/")
"""Ways to write the path `/{}/b.txt`."""


def call(b: Probe, verb: str, path: str) -> str | None:
    """Call a verb with a path; returns the error."""
    arguments: dict[str, tuple[object, ...]] = {
        "write": (path, "x"),
        "edit": (path, "old", "new"),
        "grep": ("pattern", path),
        "glob": ("*", path),
        "move": (path, "/moved.txt"),
        "upload_files": ([(path, b"x")],),
        "download_files": ([path],),
    }
    result = getattr(b, verb)(*arguments.get(verb, (path,)))
    error = (result[0] if isinstance(result, list) else result).error
    assert error is None or isinstance(error, str)
    return error


class NamingCases(Case):
    @needs("checks_paths")
    def test_a_bad_path_is_an_error_and_no_exception(self, b: Probe) -> None:
        b.put("/file.txt", "old")
        for case in each(itertools.product(AGENT_VERBS, BAD_PATHS)):
            with case as (verb, what):
                self.require(b.backend, _word_of(verb))
                error = call(b, verb, BAD_PATHS[what])
                codes = {"invalid_path"}
                if what == "a file as a directory" and not self.keeps_empty_directories:
                    codes.add("file_not_found")
                if verb in ("upload_files", "download_files"):
                    assert error in codes
                elif verb not in ("grep", "glob") or len(codes) == 1:
                    assert error
                assert b.names() == ["/file.txt"]
                assert b.bytes_of("/file.txt") == b"old"

    @needs("checks_paths", "supports_move")
    def test_nothing_moves_to_a_bad_path(self, b: Probe) -> None:
        b.put("/file.txt", "old")
        b.put("/moving.txt", "x")
        for case in each(BAD_PATHS):
            with case as path:
                assert b.move("/moving.txt", path).error
                assert b.names() == ["/file.txt", "/moving.txt"]

    def test_ways_to_write_one_path(self, b: Probe) -> None:
        for number, case in enumerate(each(SPELLINGS)):
            with case as spelling:
                self.require(b.backend, ("resolves_dot_dot",) if ".." in spelling else ())
                directory, before = f"a{number}", b.names("/")
                path = spelling.format(directory)
                b.put(path, "old")
                assert b.names(f"/{directory}") == [f"/{directory}/b.txt"]
                assert b.names("/") == [*before, f"/{directory}/"]
                assert "old" in b.read(path)
                assert b.edit(path, "old", "new").error is None
                assert b.bytes_of(f"/{directory}/b.txt") == b.bytes_of(path) == b"new"

    def test_real_paths_follow_every_link(self, b: Probe) -> None:
        """deepagents' rules are compared with them. A backend without links gives the paths back."""
        volume = getattr(b.backend, "volume", None)
        if not isinstance(b.backend, BackendProtocol) or getattr(b.backend, "virtual_mode", True) is False:
            pytest.skip("has no paths of its own")
        b.put("/secrets/k", "key")
        b.put("/open", "file")
        expected: dict[str, str | None] = {path: path for path in ("/", "/secrets/k", "/secrets", "/absent/x")}
        if volume is not None and volume.features.symlinks:
            for name, target in LINKS.items():
                volume.symlink(ROOT_NODE, name.encode(), target.encode(), Caller(os.getuid(), os.getgid(), 0))
            expected |= LED
        assert b.backend.real_paths(list(expected)) == list(expected.values())

    @needs("any_name")
    def test_a_name_may_be_anything(self, b: Probe) -> None:
        for number, case in enumerate(each(NAMES)):
            with case as name:
                self._round_trip(b, f"dir{number}", name)

    @needs("any_name")
    def test_a_name_may_be_bytes_that_are_no_text(self, b: Probe) -> None:
        volume = getattr(b.backend, "volume", None)
        for number, case in enumerate(each(NAMES_OF_BYTES)):
            with case as name:
                directory = f"dir{number}"
                self._round_trip(b, directory, name)
                b.put(f"/{directory}/{name}")
                if volume is not None:
                    entries = volume.readdir(volume.lookup(1, directory.encode()).node, b"", 10)
                    assert [entry for entry, _ in entries] == [name.encode("utf-8", "surrogateescape")]

    def _round_trip(self, b: Probe, directory: str, name: str) -> None:
        path = f"/{directory}/{name}"
        b.put(path, "the needle\n")
        assert b.names(f"/{directory}") == [path]
        assert "needle" in b.read(path)
        assert b.grepped("needle") == [(path, 1, "the needle")]
        assert b.globbed(f"**/{directory}/.*" if name.startswith(".") else f"{directory}/*") == [path]
        assert b.edit(path, "needle", "pin").error is None
        assert b.bytes_of(path) == b"the pin\n"
        if self.supports_move:
            assert b.move(path, f"/other/{name}").path == f"/other/{name}"
            path = f"/other/{name}"
        if self.supports_delete:
            assert b.delete(path).error is None
            assert not b.exists(path)


# -- cases of the `a…` forms -------------------------------------------------------------------------------------
#
# Each verb and each name of the seeds, awaited under asyncio and under trio.


LOOPS = ("asyncio", "trio")
NEEDLE_FILE = "one\nthe needle\n"

# Verbs that only look give the same answer twice, so that sync and async can be compared.
LOOKING: list[tuple[str, tuple[Any, ...]]] = [
    ("ls", ("/dir",)),
    ("read", ("/dir/file.txt", 1, 1)),
    ("grep", ("needle", "/dir", "*.txt")),
    ("glob", ("*.txt", "/dir")),
    ("download_files", (["/dir/file.txt", "/none.txt"],)),
    ("ls_info", ("/dir",)),
    ("grep_raw", ("needle",)),
    ("glob_info", ("*.txt",)),
]

Contents = dict[str, bytes | None]


def changing(at: str) -> dict[str, tuple[tuple[Any, ...], Contents]]:
    """Return the verbs that change the directory `at`: their arguments, and contents of files afterwards.

    None is the content of a file that must be gone. `at` has `dir/file.txt` with `NEEDLE_FILE` in it.
    """
    file = f"{at}/dir/file.txt"
    uploads = {f"{at}/up.txt": b"1", f"{at}/dir/up.txt": b"2"}
    return {
        "write": ((f"{at}/new.txt", "x"), {f"{at}/new.txt": b"x"}),
        "edit": ((file, "needle", "pin"), {file: b"one\nthe pin\n"}),
        "upload_files": ((list(uploads.items()),), {**uploads}),
        "move": ((file, f"{at}/moved.txt"), {f"{at}/moved.txt": NEEDLE_FILE.encode(), file: None}),
        "delete": ((f"{at}/dir",), {file: None}),
    }


CROWD = 100


class AwaitingCases(Case):
    def test_the_twin_of_a_verb_that_looks(self, b: Probe) -> None:
        b.put("/dir/file.txt", NEEDLE_FILE)
        for case in each(itertools.product(LOOPS, LOOKING)):
            with case as (loop, (verb, arguments)):
                expected = getattr(b, verb)(*arguments)
                assert self._await(b, loop, verb, arguments) == expected

    def test_the_twin_of_a_verb_that_changes(self, b: Probe) -> None:
        for case in each(itertools.product(LOOPS, changing(""))):
            with case as (loop, verb):
                self.require(b.backend, _word_of(verb))
                at = f"/{loop}/{verb}"
                arguments, changed = changing(at)[verb]
                b.put(f"{at}/dir/file.txt", NEEDLE_FILE)
                result = self._await(b, loop, verb, arguments)
                results = result if isinstance(result, list) else [result]
                for one in results:
                    self.settle(b.backend, one)
                assert [one.error for one in results] == [None] * len(results)
                for path, content in changed.items():
                    assert b.download_files([path])[0].content == content

    def test_twins_take_keywords_and_give_errors_as_records(self, b: Probe) -> None:
        b.put("/dir/file.txt", "needle\nneedle\n")
        for case in each(LOOPS):
            with case as loop:
                result: Any = anyio.run(
                    lambda: b.backend.agrep(pattern="needle", path="/dir", glob=None, max_count=1), backend=loop
                )
                assert len(result.matches) == 1 and result.truncated
                missing = anyio.run(lambda: b.backend.aread(file_path="/none.txt", offset=0, limit=1), backend=loop)
                assert str(missing) == "Error: File '/none.txt' not found"

    def test_what_is_cancelled_before_it_begins_changes_nothing(self, b: Probe) -> None:
        b.put("/dir/file.txt", NEEDLE_FILE)

        async def cancelled(verb: str, arguments: tuple[Any, ...]) -> bool:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await getattr(b.backend, f"a{verb}")(*arguments)
            return scope.cancelled_caught

        for case in each(itertools.product(LOOPS, changing(""))):
            with case as (loop, verb):
                self.require(b.backend, _word_of(verb))
                arguments, _ = changing("")[verb]
                assert anyio.run(functools.partial(cancelled, verb, arguments), backend=loop)
                assert b.bytes_of("/dir/file.txt") == NEEDLE_FILE.encode()
                assert b.names() == ["/dir/"]

    def test_a_cancelled_crowd_ends_at_once(self, b: Probe) -> None:
        """More calls than run at once: cancelled ones that still wait never begin, so the backend is free at once."""
        b.put("/dir/file.txt", NEEDLE_FILE)

        async def main() -> float:
            async with anyio.create_task_group() as group:
                for _ in range(CROWD):
                    group.start_soon(b.backend.agrep, "needle")
                await b.backend.aread("/dir/file.txt")
                began = time.monotonic()
                group.cancel_scope.cancel()
            took_s = time.monotonic() - began
            assert (await b.backend.aread("/dir/file.txt")).error is None
            return took_s

        for case in each(LOOPS):
            with case as loop:
                assert anyio.run(main, backend=loop) < self.cancelled_s

    def test_a_cancelled_command_ends_at_once(self, b: Probe) -> None:
        backend = b.backend
        if not isinstance(backend, SandboxBackendProtocol):
            pytest.skip("no commands")

        async def main() -> None:
            with anyio.move_on_after(0.2):
                await backend.aexecute("sleep 20")

        for case in each(LOOPS):
            with case as loop:
                began = time.monotonic()
                anyio.run(main, backend=loop)
                assert time.monotonic() - began < 0.2 + self.cancelled_s

    def test_records_are_plain_dataclasses(self, b: Probe) -> None:
        """Records cross sockets and are stored in checkpoints, so `dataclasses.asdict` must take them."""
        b.put("/file.txt", "x")
        for result in (b.ls("/"), b.grep("x"), b.glob("*"), *b.download_files(["/file.txt"])):
            assert dataclasses.asdict(result)

    def _await(self, b: Probe, loop: str, verb: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return anyio.run(lambda: getattr(b.backend, f"a{verb}")(*arguments), backend=loop)
        except NotImplementedError as error:
            return b.without(error)


class BackendConformance(
    ReadingCases,
    EditingCases,
    MovingCases,
    ListingCases,
    SearchingCases,
    BatchCases,
    NamingCases,
    AwaitingCases,
):
    """Every case. Give it a `backend`, and declare what yours does differently."""
