"""Cases of the verbs that change: `write` and `edit`, `delete` and `move`, uploads and downloads."""

from __future__ import annotations

import contextlib
from typing import Any

from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import each, needs

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
    (("reads_records",), "text", ("", "x"), None, ""),
    (("preserves_crlf",), "one\r\ntwo\r\nthree\r\n", ("one\ntwo", "1\n2\n2b"), "1\r\n2\r\n2b\r\nthree\r\n", 1),
]
"""What a backend must declare, the text of a file, an edit, and the text after it with the number of occurrences; None
for an error, with a part of it."""


REFUSED: list[tuple[Any, ...]] = [
    ((), "write", "/dir", "y"),
    ((), "write", "/", "y"),
    ((), "edit", "/dir", "x", "y"),
    (("reads_records",), "read", "/dir"),
    (("reads_records",), "read", "/"),
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
