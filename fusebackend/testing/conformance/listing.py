"""Cases of `ls` and `ls_info`."""

from __future__ import annotations

import datetime

from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import needs


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
