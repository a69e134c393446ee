"""Cases of `read`: windows of lines, numbered text, bytes."""

from __future__ import annotations

import base64

from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import each, needs

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

    @needs("checks_paths", "reads_records")
    def test_a_directory_can_not_be_read(self, b: Probe) -> None:
        b.put("/dir/file.txt")
        assert b.read("/dir").error
        assert b.read("/").error
