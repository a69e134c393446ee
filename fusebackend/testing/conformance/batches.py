"""Cases of `upload_files` and `download_files`."""

from __future__ import annotations

from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import needs


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
