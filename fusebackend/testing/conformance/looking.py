"""Cases of the verbs that look: `ls`, `read`, `glob` and `grep`."""

from __future__ import annotations

import base64
import datetime

from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import each, needs

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

    @needs("sizes_in_bytes")
    def test_sizes_are_bytes(self, b: Probe) -> None:
        b.put("/file.txt", "日本\n")
        assert b.ls("/").entries[0]["size"] == 7

    def test_times_are_iso_8601_with_an_offset(self, b: Probe) -> None:
        b.put("/file.txt", "x")
        modified = datetime.datetime.fromisoformat(b.ls("/").entries[0]["modified_at"])
        assert modified.tzinfo is not None
        assert abs(datetime.datetime.now(datetime.UTC) - modified) < datetime.timedelta(hours=1)

    @needs("normalises_paths")
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


NUMBERED: list[tuple[tuple[str, ...], str, dict[str, int], str]] = [
    ((), "first\nsecond", {}, "     1\tfirst\n     2\tsecond"),
    ((), TEN, {"offset": 8, "limit": 2}, "     9\tline 9\n    10\tline 10"),
    (("reads_records",), "x" * 12_000 + "\nshort\n", {},
     "\n".join(["     1\t" + "x" * 5000, "   1.1\t" + "x" * 5000, "   1.2\t" + "x" * 2000, "     2\tshort"])),
]  # fmt: skip
"""What a backend must declare, a text, a window, and its numbered text."""


class ReadingCases(Case):
    def test_read_gives_back_what_was_written(self, b: Probe) -> None:
        b.put("/note.txt", "first\nsecond\n")
        assert "first" in b.read("/note.txt")
        assert "third" not in b.read("/note.txt")
        assert b.bytes_of("/note.txt") == b"first\nsecond\n"

    def test_numbered_text_keeps_the_numbers_of_the_file(self, b: Probe) -> None:
        for number, case in enumerate(each(NUMBERED)):
            with case as (words, content, window, shown):
                self.require(b.backend, words)
                b.put(f"/{number}.txt", content)
                assert str(b.read(f"/{number}.txt", **window)) == shown

    def test_a_missing_file_is_named(self, b: Probe) -> None:
        assert str(b.read("/none.txt")) == "Error: File '/none.txt' not found"

    @needs("reads_records")
    def test_a_window_of_lines(self, b: Probe) -> None:
        b.put("/ten.txt", TEN)
        for case in each(WINDOWS):
            with case as (offset, limit, start, end, following):
                result = b.read("/ten.txt", offset=offset, limit=limit)
                assert (result.start_line, result.end_line, result.next_offset) == (start, end, following)
                assert (result.error, result.total_lines, result.file_data["encoding"]) == (None, 10, "utf-8")
                assert result.file_data["content"] == "".join(f"line {number}\n" for number in range(start, end + 1))

    @needs("reads_records")
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

    @needs("reads_records")
    def test_an_offset_past_the_end_is_an_error(self, b: Probe) -> None:
        b.put("/ten.txt", TEN)
        assert b.read("/ten.txt", offset=10).error == "Line offset 10 exceeds file length (10 lines)"

    @needs("reads_records")
    def test_a_limit_of_nothing_asks_for_no_lines(self, b: Probe) -> None:
        b.put("/ten.txt", TEN)
        for case in each([0, -1]):
            with case as limit:
                result = b.read("/ten.txt", limit=limit)
                assert result.error is None
                assert result.no_lines_requested
                assert result.file_data["content"] == ""
                assert result.start_line is None

    @needs("reads_records")
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

    @needs("reads_records")
    def test_crlf_is_lf_in_the_window_and_stays_in_the_file(self, b: Probe) -> None:
        b.put("/dos.txt", "one\r\ntwo\r\nthree\n")
        result = b.read("/dos.txt")
        assert result.file_data["content"] == "one\ntwo\nthree\n"
        assert result.total_lines == 3
        assert b.bytes_of("/dos.txt") == b"one\r\ntwo\r\nthree\n"

    @needs("reads_records", "preserves_crlf")
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

    @needs("reads_records", "byte_exact")
    def test_what_is_binary_is_read_whole_in_base64(self, b: Probe) -> None:
        """By its extension, or since it is not UTF-8."""
        for case in each({"/picture.PNG": b"text\n" * 5, "/data.bin": bytes(range(256))}.items()):
            with case as (path, content):
                b.put_bytes(path, content)
                result = b.read(path, offset=2, limit=1)
                assert (result.error, result.start_line, result.file_data["encoding"]) == (None, None, "base64")
                assert base64.b64decode(result.file_data["content"]) == content

    @needs("reads_records")
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
    @needs("shell_globs")
    def test_the_rules_of_globs(self, b: Probe) -> None:
        for name in TREE:
            b.put(name, "x")
        for case in each(GLOBS):
            with case as (pattern, path, found):
                assert b.globbed(pattern, path) == found

    @needs("shell_globs")
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

    @needs("finds_text_only", "shell_globs")
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
