"""Windows, numbers, replacements, greps and records of state, against naive models."""

from __future__ import annotations

import base64
import datetime
import itertools
import re

import pytest
from for_each import for_each
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fusebackend import text
from fusebackend.protocol import FileData, ReadResult
from fusebackend.protocol import records as numbering

# What breaks lines, what is next to it, and little else: small alphabets find more.
LINES = st.text(alphabet="ab \t\n\r\x0b\x0c\x1c\x85\u2028é日🎉", max_size=60)
CUTS = st.lists(st.integers(0, 200), max_size=6)

relaxed = settings(deadline=None)


def cut(data, positions):
    edges = sorted({0, len(data), *(position % (len(data) + 1) for position in positions)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def naive_window(content, offset, limit):
    """The rules of a read as deepagents states them, over lines that end at LF."""
    if limit <= 0:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
    if not content.strip():
        return ReadResult(file_data=FileData(content=content, encoding="utf-8"))
    lines = re.findall(r"[^\n]*\n|[^\n]+", content)
    offset = max(0, offset)
    if offset >= len(lines):
        return ReadResult(error=f"Line offset {offset} exceeds file length ({len(lines)} lines)")
    window = "".join(lines[offset : offset + limit]).replace("\r\n", "\n")
    end = min(offset + limit, len(lines))
    return ReadResult(
        file_data=FileData(content=window, encoding="utf-8"),
        total_lines=len(lines),
        start_line=offset + 1,
        end_line=end,
        next_offset=end if end < len(lines) else None,
    )


class TestWindows:
    @relaxed
    @given(LINES, st.integers(-2, 12), st.integers(-1, 12))
    @example("a\r\nb", 0, 1)
    @example("", 5, 1)
    def test_as_the_naive_model(self, content, offset, limit):
        assert text.read_bytes("/f", content.encode(), offset, limit) == naive_window(content, offset, limit)

    @relaxed
    @given(LINES, st.integers(0, 6), st.integers(1, 6), CUTS)
    @example("a\r\nb\r", 0, 5, [2])
    @example("日\r\n", 0, 5, [1, 2, 4])
    def test_pieces_may_be_cut_anywhere(self, content, offset, limit, positions):
        pieces = cut(content.encode(), positions)
        assert text.read_pieces(pieces, offset, limit) == naive_window(content, offset, limit)

    @relaxed
    @given(LINES, st.integers(1, 7))
    def test_following_next_offset_gives_the_file(self, content, limit):
        collected, offset = "", 0
        while offset is not None:
            result = text.read_bytes("/f", content.encode(), offset, limit)
            collected += result.file_data["content"]
            offset = result.next_offset
        unified = content if not content.strip() else content.replace("\r\n", "\n")
        assert collected == unified

    def test_a_line_that_comes_in_many_pieces(self):
        result = text.read_pieces([b"x" * 1000] * 1000 + [b"\nend"], 0, 1)
        assert len(result.file_data["content"]) == 1_000_001
        assert result.total_lines == 2

    @pytest.mark.parametrize("data", [b"ok\n\xff", b"\xe6\x97", b"ok" * 10 + b"\xc3"])
    def test_what_is_not_utf8_is_an_error_for_pieces_and_base64_for_bytes(self, data):
        with pytest.raises(UnicodeDecodeError):
            text.read_pieces([data])
        result = text.read_bytes("/file.txt", data, 5, 1)
        assert result.file_data["encoding"] == "base64"
        assert base64.b64decode(result.file_data["content"]) == data
        assert result.start_line is None

    @for_each(
        ("path", "binary"),
        [
            ("/a.png", True),
            ("/a.PNG", True),
            ("/a.tar.mkv", True),
            ("/a.3gpp", True),
            ("/png", False),
            ("/a.png/b", False),
            ("/a.txt", False),
            ("/dir.pdf/.", False),
            ("/.png", False),
            ("/a.", False),
        ],
    )
    def test_binary_by_extension(self, path, binary):
        assert text.has_binary_extension(path) is binary
        result = text.read_bytes(path, b"one\ntwo\n", 1, 1)
        assert result.file_data["content"] == (base64.b64encode(b"one\ntwo\n").decode() if binary else "two\n")


class TestNumberedText:
    def test_markers_are_right_aligned_in_six_columns(self):
        result = text.read_bytes("/f", b"\n".join([b"x"] * 1_000_001), 999_998, 3)
        assert str(result) == "999999\tx\n1000000\tx\n1000001\tx"
        assert str(text.read_bytes("/f", b"one\n\ntwo\n")) == "     1\tone\n     2\t\n     3\ttwo"

    @for_each(("length", "parts"), [(4999, [4999]), (5000, [5000]), (5001, [5000, 1]), (15_000, [5000, 5000, 5000])])
    def test_long_lines_are_continued(self, length, parts):
        numbered = numbering.number_lines(["y" * length], 12).split("\n")
        assert [len(line.split("\t")[1]) for line in numbered] == parts
        markers = [f"{'12' if part == 0 else f'12.{part}':>6}" for part in range(len(parts))]
        assert [line.split("\t")[0] for line in numbered] == markers

    def test_errors(self):
        assert str(ReadResult(error="File '/x' not found")) == "Error: File '/x' not found"
        assert str(ReadResult(error="Error: said already")) == "Error: said already"
        assert str(text.read_bytes("/f", b"a\n", 3)) == "Error: Line offset 3 exceeds file length (1 lines)"

    @pytest.mark.parametrize("content", ["", "\n\n", " \u2028"])
    def test_empty_files_have_a_reminder(self, content):
        assert str(text.read_bytes("/f", content.encode())) == "System reminder: File exists but has empty contents"

    def test_blank_lines_of_a_file_that_is_not_blank_are_lines(self):
        assert str(text.read_bytes("/f", b"a\n\n\nb", 1, 2)) == "     2\t\n     3\t"

    def test_no_lines_requested(self):
        assert str(text.read_bytes("/f", b"a\n", 0, 0)).startswith("System reminder: no lines were read because")

    def test_base64_is_not_numbered(self):
        assert str(text.read_binary(b"\xff\n")) == "/wo="
        assert str(text.read_binary(b"")) == numbering.EMPTY_REMINDER

    def test_a_search_in_the_result_sees_the_numbered_text(self):
        result = text.read_bytes("/f", b"alpha\nbeta\n")
        assert "beta" in result
        assert "2\tbeta" in result
        assert "gamma" not in result

    @relaxed
    @given(LINES.filter(str.strip), st.integers(0, 5), st.integers(1, 5))
    def test_there_is_one_marker_for_each_line_of_the_window(self, content, offset, limit):
        result = text.read_bytes("/f", content.encode(), offset, limit)
        if result.error is None:
            markers = [int(line.split("\t")[0]) for line in str(result).split("\n") if line[:6].strip().isdigit()]
            assert markers == list(range(result.start_line, result.end_line + 1))


class TestReplacement:
    @relaxed
    @given(st.text(alphabet="ab\n", max_size=12), st.text(alphabet="ab\n", max_size=3), st.text("abc\n", max_size=3))
    def test_as_the_naive_model(self, content, old, new):
        count = content.count(old) if old else 0
        once, everywhere = text.replace_string(content, old, new), text.replace_string(content, old, new, True)
        if count == 0:
            assert isinstance(once, str) and once == everywhere and once.startswith("Error: ")
        else:
            assert everywhere == (content.replace(old, new), count)
            assert once == everywhere if count == 1 else isinstance(once, str)

    @relaxed
    @given(st.text("ab\n", max_size=12), st.text("ab\n", min_size=1, max_size=3), st.text("ab\n", max_size=3))
    def test_a_crlf_file_is_edited_as_if_it_were_lf(self, content, old, new):
        as_lf = text.replace_string(content, old, new, True)
        as_crlf = text.replace_string(content.replace("\n", "\r\n"), old, new, True)
        if "\n" not in content or isinstance(as_lf, str):
            assert as_crlf == as_lf
        else:
            assert as_crlf == (as_lf[0].replace("\n", "\r\n"), as_lf[1])

    @for_each(
        ("content", "old", "new", "after"),
        [
            ("a\r\nb\nc\r\n", "b", "x\ny", "a\r\nx\ny\nc\r\n"),  # a mixed file: as it is
            ("a\r\nb\nc\r\n", "a\nb", "x\ny", "x\r\ny\nc\r\n"),  # as it is it isn't there; with CRLF it is
            ("a\r\nb\r\n", "a\r\nb", "x\ny", "x\ny\r\n"),  # who writes CR means it
            ("a\r\nb\r\n", "b", "x\r\ny", "a\r\nx\r\ny\r\n"),
            ("a\rb\rc", "b", "x\ny", "a\rx\ny\rc"),  # CR alone ends no line, and is left as it is
            ("a\r\nb\nc\r\nd", "a\nb\nc\nd", "a\nx\nc\nd", "a\r\nx\nc\r\nd"),  # each line keeps its end
            ("a\r\nb\nc", "b\nc", "b\nx\nc", "a\r\nb\nx\nc"),  # a new line has that of the line before it
            ("a\nb\r\nc\n", "a\nb", "a\nx\ny", "a\nx\r\ny\r\nc\n"),  # or of the line that it replaces
            ("a\nb\r\nc", "c", "x\ny", "a\nb\r\nx\r\ny"),  # the last line has no end: as the one before
            ("a\r\nb\rc\nd", "a\nb\rc", "x\ny\rz", "x\r\ny\rz\nd"),  # a CR alone is shown, and given, as it is
            ("a\rb\r\nc", "a\nb", "x\ny", "x\r\ny\r\nc"),  # a model may write a CR alone as a newline
            ("a\nb\r\n", "a\r\nb", "x\r\ny", "x\ny\r\n"),  # CRLF that is not there as it is means a newline
            ("a\r\r\nb\n", "a\r\nb", "x", "x\n"),  # `read` shows a CR before CRLF
        ],
    )
    def test_line_ends(self, content, old, new, after):
        assert text.replace_string(content, old, new) == (after, 1)

    def test_lines_that_read_shows_alike_are_as_often_there(self):
        outcome = text.replace_string("a\nb\n--\na\r\nb\r\n", "a\nb", "x\ny")
        assert outcome.startswith("Error: String 'a\nb' appears 2 times")
        everywhere = text.replace_string("a\nb\n--\na\r\nb\r\n", "a\nb", "x\ny", replace_all=True)
        assert everywhere == ("x\ny\n--\nx\r\ny\r\n", 2)

    @relaxed
    @given(LINES.filter(len), st.integers(0, 59), st.integers(1, 60), st.text("xy\n", max_size=6))
    @example("a\rb\r\nc", 0, 60, "x\ny")
    @example("a\r\r\nb", 1, 2, "x")
    def test_text_of_a_read_is_found_and_nothing_else_changes(self, content, start, size, new):
        shown = re.findall(r"\r\n|[^|]", content)
        start %= len(shown)
        old = "".join(shown[start : start + size]).replace("\r\n", "\n")
        outcome = text.replace_string(content, old, new, replace_all=True)
        assert not isinstance(outcome, str), outcome
        there = len(re.findall(f"(?={re.escape(old)})", content.replace("\r\n", "\n")))  # with those that overlap
        if outcome[1] == there == 1 and "\r\n" not in old:
            before, after = "".join(shown[:start]), "".join(shown[start + size :])
            assert outcome[0].startswith(before) and outcome[0].endswith(after)
            middle = outcome[0][len(before) : len(outcome[0]) - len(after)]
            assert middle.replace("\r\n", "\n") == new

    @relaxed
    @given(
        st.lists(st.sampled_from(["\n", "\r\n"]), max_size=12), st.integers(0, 12), st.integers(0, 12), st.booleans()
    )
    def test_lines_that_a_change_leaves_keep_their_ends(self, ends, first, last, has_end):
        first, last = sorted((first, last))
        lines = [f"{number}{end}" for number, end in enumerate(ends)] + ([] if has_end else ["last"])
        rest = "".join(lines[last:])
        after = "".join(lines[:first]) + "new\nlines\n" + rest
        changed = text.keep_line_ends("".join(lines), after.replace("\r\n", "\n"))
        assert changed.replace("\r\n", "\n") == after.replace("\r\n", "\n")
        assert changed.startswith("".join(lines[:first])) and changed.endswith(rest)

    def test_a_change_of_more_lines_than_are_compared_leaves_those_around(self):
        lines = [str(number) + "\r" * (number % 2) + "\n" for number in range(2000)]
        new = [f"new {number}\n" for number in range(1000)]
        changed = text.keep_line_ends(
            "".join(lines), "".join([*lines[:500], *new, *lines[1500:]]).replace("\r\n", "\n")
        )
        expected = [f"new {number}" + "\r" * (number % 2) + "\n" for number in range(1000)]
        assert changed == "".join([*lines[:500], *expected, *lines[1500:]])

    def test_the_texts_of_errors(self):
        assert text.replace_string("abc", "x", "y") == "Error: String not found in file: 'x'"
        assert text.replace_string("a a", "a", "y") == (
            "Error: String 'a' appears 2 times in file. Use replace_all=True to replace all instances, or provide a "
            "more specific string with surrounding context."
        )
        assert text.replace_string("abc", "", "y").startswith("Error: old_string is empty")

    def test_a_newline_too_much_is_explained(self):
        outcome = text.replace_string("first\nlast", "last\n", "x\n")
        assert outcome.startswith("Error: String not found in file: 'last\n'")
        assert "does not end with a newline" in outcome
        assert "newline" not in text.replace_string("first\nlast", "other\n", "x\n")

    def test_a_crlf_error_shows_what_was_asked_for(self):
        outcome = text.replace_string("a\r\nb\na\r\nb\n", "a\nb", "x")
        assert outcome.startswith("Error: String 'a\nb' appears 2 times")


def naive_grep(data, pattern):
    if b"\0" in data:
        return []
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        return []
    if lines[-1] == "":
        lines.pop()
    return [(number, line) for number, line in enumerate(lines, start=1) if pattern in line]


class TestGrep:
    @relaxed
    @given(st.text(alphabet="ab\n\r\x0cé", max_size=40), st.text(alphabet="ab\né", max_size=3), CUTS)
    @example("a\n\na", "", [])
    @example("", "", [])
    def test_as_the_naive_model(self, content, pattern, positions):
        expected = naive_grep(content.encode(), pattern)
        assert text.grep_lines([content.encode()], pattern) == expected
        assert text.grep_lines(cut(content.encode(), positions), pattern) == expected

    @relaxed
    @given(st.binary(max_size=30), CUTS)
    @example(b"a\n\xe6\x97", [2])
    def test_any_bytes(self, data, positions):
        data = data + b"\na"
        assert text.grep_lines([data], "a") == text.grep_lines(cut(data, positions), "a") == naive_grep(data, "a")

    @relaxed
    @given(st.text(alphabet="ab\n", max_size=30), st.integers(0, 5), CUTS)
    def test_a_limit_takes_the_first(self, content, limit, positions):
        expected = naive_grep(content.encode(), "a")[:limit]
        assert text.grep_lines(cut(content.encode(), positions), "a", limit) == expected

    def test_a_late_nul_undoes_earlier_matches(self):
        assert text.grep_lines([b"needle\n", b"more\n", b"\0"], "needle") == []
        assert text.grep_lines([b"needle\n", b"\xff"], "needle", limit=1) == []

    def test_what_no_text_holds_is_never_found(self):
        assert text.grep_lines([b"abc"], "\udc80") == []

    def test_a_line_keeps_its_carriage_return(self):
        assert text.grep_lines([b"one\r\ntwo\r\n"], "two") == [(2, "two\r")]


class TestFileData:
    @relaxed
    @given(st.binary(max_size=50), st.sampled_from(["v1", "v2"]))
    @example(b"", "v1")
    @example(b"a\n", "v1")
    @example(b"a\r\nb\x0c\n\n", "v1")
    def test_round_trip(self, data, file_format):
        assert text.decode_file_data(text.encode_file_data(data, file_format=file_format)) == data

    def test_the_two_formats(self):
        times = {"created_at": "2025-01-01T00:00:00+00:00", "modified_at": "2025-01-02T00:00:00+00:00"}
        assert text.encode_file_data(b"a\nb\n", **times) == {"content": "a\nb\n", "encoding": "utf-8", **times}
        assert text.encode_file_data(b"a\nb\n", file_format="v1", **times) == {"content": ["a", "b", ""], **times}
        as_bytes = {"content": "/w==", "encoding": "base64", **times}
        assert text.encode_file_data(b"\xff", **times) == text.encode_file_data(b"\xff", file_format="v1", **times)
        assert text.encode_file_data(b"\xff", **times) == as_bytes

    def test_times_default_to_now_with_an_offset(self):
        record = text.encode_file_data(b"")
        assert record["created_at"] == record["modified_at"]
        modified = datetime.datetime.fromisoformat(record["modified_at"])
        assert modified.utcoffset() == datetime.timedelta(0)
        assert text.encode_file_data(b"", modified_at="2020-01-01T00:00:00+00:00")["created_at"].startswith("2020")

    @for_each(
        ("record", "data"),
        [
            ({"content": []}, b""),
            ({"content": ["a", "b"]}, b"a\nb"),  # what the Korean seed stores for "a\nb\n": the newline is lost there
            ({"content": "text"}, b"text"),
            ({"content": "text", "encoding": None}, b"text"),
            ({"content": ["/w", "=="], "encoding": "utf-8"}, b"/w\n=="),
        ],
    )
    def test_records_with_little_in_them(self, record, data):
        assert text.decode_file_data(record) == data

    @for_each(
        ("record", "error", "words"),
        [
            ("text", TypeError, "mapping"),
            ({}, ValueError, "no 'content'"),
            ({"content": None}, TypeError, "NoneType"),
            ({"content": b"bytes"}, TypeError, "bytes"),
            ({"content": ["a", 1]}, TypeError, "int as line 2"),
            ({"content": "x", "encoding": "latin-1"}, ValueError, "unknown encoding 'latin-1'"),
            ({"content": "not base64!", "encoding": "base64"}, ValueError, "not valid base64"),
            ({"content": "é", "encoding": "base64"}, ValueError, "base64"),
            ({"content": "\ud800"}, ValueError, "not valid utf-8"),
        ],
    )
    def test_records_that_are_wrong(self, record, error, words):
        with pytest.raises(error, match=words):
            text.decode_file_data(record)


class TestTimes:
    @for_each(
        ("time_ns", "expected"),
        [
            (0, "1970-01-01T00:00:00+00:00"),
            (1_500_000_000_123_456_789, "2017-07-14T02:40:00.123456+00:00"),
            (-1, "1969-12-31T23:59:59.999999+00:00"),
            (10**30, "9999-12-31T23:59:59.999999+00:00"),
            (-(10**30), "0001-01-01T00:00:00+00:00"),
        ],
    )
    def test_nanoseconds_as_iso(self, time_ns, expected):
        assert text.iso_time(time_ns) == expected

    def test_now_is_in_utc(self):
        now = datetime.datetime.fromisoformat(text.now_iso())
        assert now.utcoffset() == datetime.timedelta(0)
        assert abs(datetime.datetime.now(datetime.UTC) - now) < datetime.timedelta(minutes=1)
