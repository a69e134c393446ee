"""Cases of `delete` and `move`."""

from __future__ import annotations

from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import each, needs

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
        if not self.supports_delete:
            self._refuses(b, "delete", "/none.txt")
        if not self.supports_move:
            self._refuses(b, "move", "/none.txt", "/other.txt")

    def _refuses(self, b: Probe, verb: str, *args: str) -> None:
        try:
            assert getattr(b.backend, verb)(*args).error
        except NotImplementedError:
            return

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
        b.upload_files([(f"/tree/{number % 7}/{number}.txt", b"") for number in range(250)])
        b.put("/tree/" + "d/" * 60 + "deep.txt")
        assert b.delete("/tree/").error is None
        assert b.names() == []

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

    @needs("supports_move", "checks_paths")
    def test_the_root_can_not_be_moved(self, b: Probe) -> None:
        b.put("/file.txt", "x")
        assert b.move("/", "/elsewhere").error
        assert b.names() == ["/file.txt"]
