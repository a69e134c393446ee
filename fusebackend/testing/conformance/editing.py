"""Cases of `write` and `edit`."""

from __future__ import annotations

from typing import Any

from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import each, needs

EDITS: list[tuple[tuple[str, ...], str, tuple[Any, ...], str | None, int | str]] = [
    ((), "Hello World", ("World", "Universe"), "Hello Universe", 1),
    ((), "start middle end", ("middle", "m"), "start m end", 1),
    ((), "start middle end", (" end", ""), "start middle", 1),
    ((), "start middle end", ("s", "sss"), "ssstart middle end", 1),
    ((), "日本語 привет 日本語", ("привет", "안녕 🎉"), "日本語 안녕 🎉 日本語", 1),
    ((), "ab ab ab", ("ab", "x", True), "x x x", 3),
    ((), "ab ab ab", ("ab", "x"), None, "3 times"),
    ((), "text", ("nothing", "x"), None, ""),
    (("reads_records",), "text", ("", "x"), None, ""),
    (("preserves_crlf",), "one\r\ntwo\r\nthree\r\n", ("one\ntwo", "1\n2\n2b"), "1\r\n2\r\n2b\r\nthree\r\n", 1),
]
"""What a backend must declare, the text of a file, an edit, and the text after it with the number of occurrences; None
for an error, with a part of it."""


class EditingCases(Case):
    def test_write_says_where(self, b: Probe) -> None:
        result = b.write("/new.txt", "x")
        assert (result.error, result.path) == (None, "/new.txt")

    def test_write_makes_parents(self, b: Probe) -> None:
        b.put("/a/b/c/deep.txt", "x")
        assert b.bytes_of("/a/b/c/deep.txt") == b"x"
        assert b.names("/a/b") == ["/a/b/c/"]

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
    def test_write_on_a_directory_is_an_error(self, b: Probe) -> None:
        b.put("/dir/file.txt", "x")
        assert b.write("/dir", "y").error
        assert b.write("/", "y").error
        assert b.names("/dir") == ["/dir/file.txt"]

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

    @needs("preserves_crlf", "reads_records")
    def test_edit_takes_what_read_shows(self, b: Probe) -> None:
        b.put("/mixed.txt", "one\r\ntwo\nthree\rthree\r\nfour\x0cfour\n")
        shown = b.read("/mixed.txt").file_data["content"]
        assert b.edit("/mixed.txt", shown, shown.replace("two\n", "2\n2b\n")).error is None
        assert b.bytes_of("/mixed.txt") == b"one\r\n2\n2b\nthree\rthree\r\nfour\x0cfour\n"

    @needs("byte_exact", "reads_records")
    def test_edit_of_bytes_is_refused(self, b: Probe) -> None:
        b.put_bytes("/data.bin", b"\xff\xfe text")
        assert b.edit("/data.bin", "text", "x").error
        assert b.bytes_of("/data.bin") == b"\xff\xfe text"

    @needs("reads_records")
    def test_edit_of_a_large_file(self, b: Probe) -> None:
        size = self.big_file_bytes
        b.put_bytes("/large.txt", b"x" * size + b"needle" + b"y" * 100)
        assert b.edit("/large.txt", "needle", "pin").error is None
        content = b.bytes_of("/large.txt")
        assert len(content) == size + 103
        assert content[size - 1 : size + 4] == b"xpiny"

    @needs("checks_paths")
    def test_edit_of_a_directory_is_an_error(self, b: Probe) -> None:
        b.put("/dir/file.txt", "x")
        assert b.edit("/dir", "x", "y").error
