"""Cases of `glob` and `grep`, as tables."""

from __future__ import annotations

from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import each, needs

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
