"""Cases of `delete` and `move`."""

from __future__ import annotations

from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import needs


class MovingCases(Case):
    def test_what_is_declared_missing_is_missing(self, b: Probe) -> None:
        """A backend that can delete or move must declare it, or those cases would be skipped without reason."""
        if not self.supports_delete:
            self._refuses(b, "delete", "/none.txt")
        if not self.supports_move:
            self._refuses(b, "move", "/none.txt", "/other.txt")

    def _refuses(self, b: Probe, verb: str, *args: str) -> None:
        try:
            assert getattr(b.backend, verb)(*args).error
        except NotImplementedError:
            return

    @needs("supports_delete")
    def test_delete_a_file(self, b: Probe) -> None:
        b.put("/dir/one.txt", "1")
        b.put("/dir/two.txt", "2")
        result = b.delete("/dir/one.txt")
        assert (result.error, result.path) == (None, "/dir/one.txt")
        assert b.names("/dir") == ["/dir/two.txt"]
        assert not b.exists("/dir/one.txt")

    @needs("supports_delete")
    def test_delete_a_tree(self, b: Probe) -> None:
        for path in ("/tree/a.txt", "/tree/sub/b.txt", "/tree/sub/sub/c.txt", "/treehouse.txt", "/tree.txt"):
            b.put(path, path)
        assert b.delete("/tree").error is None
        assert b.names() == ["/tree.txt", "/treehouse.txt"]
        assert not b.exists("/tree/sub/sub/c.txt")

    @needs("supports_delete")
    def test_delete_a_wide_and_deep_tree(self, b: Probe) -> None:
        b.upload_files([(f"/tree/{number % 7}/{number}.txt", b"") for number in range(250)])
        b.put("/tree/" + "d/" * 60 + "deep.txt")
        assert b.delete("/tree/").error is None
        assert b.names() == []

    @needs("supports_delete")
    def test_delete_of_nothing_names_it(self, b: Probe) -> None:
        assert b.delete("/none.txt").error == "Error: File '/none.txt' not found"

    @needs("supports_delete")
    def test_a_directory_after_its_last_file(self, b: Probe) -> None:
        b.put("/dir/only.txt", "x")
        assert b.delete("/dir/only.txt").error is None
        assert b.names() == (["/dir/"] if self.keeps_empty_directories else [])

    @needs("supports_delete", "checks_paths")
    def test_the_root_can_not_be_deleted(self, b: Probe) -> None:
        b.put("/file.txt", "x")
        assert b.delete("/").error
        assert b.names() == ["/file.txt"]

    @needs("supports_delete")
    def test_what_was_deleted_can_be_written_again(self, b: Probe) -> None:
        b.put("/file.txt", "old")
        assert b.delete("/file.txt").error is None
        b.put("/file.txt", "new")
        assert b.bytes_of("/file.txt") == b"new"

    @needs("supports_move")
    def test_move_a_file_and_make_parents(self, b: Probe) -> None:
        b.put("/file.txt", "content")
        result = b.move("/file.txt", "/new/place/file.txt")
        assert (result.error, result.path) == (None, "/new/place/file.txt")
        assert b.bytes_of("/new/place/file.txt") == b"content"
        assert not b.exists("/file.txt")

    @needs("supports_move")
    def test_move_a_tree(self, b: Probe) -> None:
        b.put("/tree/sub/file.txt", "content")
        assert b.move("/tree", "/wood").error is None
        assert b.bytes_of("/wood/sub/file.txt") == b"content"
        assert b.names() == ["/wood/"]

    @needs("supports_move")
    def test_move_of_nothing_names_it(self, b: Probe) -> None:
        assert b.move("/none.txt", "/a/b.txt").error == "Error: File '/none.txt' not found"
        assert b.names() == []

    @needs("supports_move")
    def test_move_does_not_replace(self, b: Probe) -> None:
        b.put("/one.txt", "1")
        b.put("/two.txt", "2")
        b.put("/dir/file.txt")
        for destination in ("/two.txt", "/dir"):
            result = b.move("/one.txt", destination)
            assert result.error and "exists" in result.error
        assert (b.bytes_of("/one.txt"), b.bytes_of("/two.txt")) == (b"1", b"2")

    @needs("supports_move", "checks_paths")
    def test_a_directory_does_not_move_into_itself(self, b: Probe) -> None:
        b.put("/tree/file.txt", "x")
        assert b.move("/tree", "/tree/sub/tree").error
        assert b.names("/tree") == ["/tree/file.txt"]

    @needs("supports_move", "checks_paths")
    def test_the_root_can_not_be_moved(self, b: Probe) -> None:
        b.put("/file.txt", "x")
        assert b.move("/", "/elsewhere").error
        assert b.names() == ["/file.txt"]
