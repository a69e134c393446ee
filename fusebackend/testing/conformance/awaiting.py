"""Cases of the a* twins: each verb and each name of the seeds, awaited under asyncio and under trio."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fusebackend.testing.conformance.case import Case, Probe

# Those that only look give the same answer twice, so that sync and async can be compared.
LOOKING: list[tuple[str, tuple[Any, ...]]] = [
    ("ls", ("/dir",)),
    ("read", ("/dir/file.txt", 1, 1)),
    ("grep", ("needle", "/dir", "*.txt")),
    ("glob", ("*.txt", "/dir")),
    ("download_files", (["/dir/file.txt", "/none.txt"],)),
    ("ls_info", ("/dir",)),
    ("grep_raw", ("needle",)),
    ("glob_info", ("*.txt",)),
]

CHANGING: list[tuple[str, tuple[Any, ...]]] = [
    ("write", ("/new.txt", "x")),
    ("edit", ("/dir/file.txt", "needle", "pin")),
    ("upload_files", ([("/up.txt", b"1"), ("/dir/up.txt", b"2")],)),
    ("move", ("/dir/file.txt", "/moved.txt")),
    ("delete", ("/dir",)),
]

CHANGED: dict[str, dict[str, bytes | None]] = {
    "write": {"/new.txt": b"x"},
    "edit": {"/dir/file.txt": b"one\nthe pin\n"},
    "upload_files": {"/up.txt": b"1", "/dir/up.txt": b"2"},
    "move": {"/moved.txt": b"one\nthe needle\n", "/dir/file.txt": None},
    "delete": {"/dir/file.txt": None},
}
"""What each of `CHANGING` leaves, or takes away."""


def run(loop: str, function: Callable[[], Awaitable[Any]]) -> Any:
    """Await `function()` under asyncio or trio."""

    async def main() -> Any:
        return await function()

    if loop == "asyncio":
        return asyncio.run(main())
    import trio

    return trio.run(main)


class AwaitingCases(Case):
    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    @pytest.mark.parametrize(("verb", "arguments"), LOOKING, ids=[verb for verb, _ in LOOKING])
    def test_the_twin_of_a_verb_that_looks(self, b: Probe, loop: str, verb: str, arguments: tuple[Any, ...]) -> None:
        self._know(loop)
        b.put("/dir/file.txt", "one\nthe needle\n")
        expected = getattr(b, verb)(*arguments)
        assert self._await(b, loop, verb, arguments) == expected

    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    @pytest.mark.parametrize(("verb", "arguments"), CHANGING, ids=[verb for verb, _ in CHANGING])
    def test_the_twin_of_a_verb_that_changes(self, b: Probe, loop: str, verb: str, arguments: tuple[Any, ...]) -> None:
        self._know(loop)
        if not getattr(self, f"supports_{verb}", True):
            pytest.skip(f"no {verb}")
        b.put("/dir/file.txt", "one\nthe needle\n")
        result = self._await(b, loop, verb, arguments)
        results = result if isinstance(result, list) else [result]
        for one in results:
            self.settle(b.backend, one)
        assert [one.error for one in results] == [None] * len(results)
        for path, content in CHANGED[verb].items():
            assert b.download_files([path])[0].content == content

    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    def test_twins_take_keywords_and_give_errors_as_records(self, b: Probe, loop: str) -> None:
        self._know(loop)
        b.put("/dir/file.txt", "needle\nneedle\n")
        result = run(loop, lambda: b.backend.agrep(pattern="needle", path="/dir", glob=None, max_count=1))
        assert len(result.matches) == 1 and result.truncated
        missing = run(loop, lambda: b.backend.aread(file_path="/none.txt", offset=0, limit=1))
        assert str(missing) == "Error: File '/none.txt' not found"

    def test_records_are_plain_dataclasses(self, b: Probe) -> None:
        """They cross sockets and end in checkpoints."""
        b.put("/file.txt", "x")
        for result in (b.ls("/"), b.grep("x"), b.glob("*"), *b.download_files(["/file.txt"])):
            assert dataclasses.asdict(result)

    def _know(self, loop: str) -> None:
        if loop == "trio":
            pytest.importorskip("trio")
            if not self.awaits_under_trio:
                pytest.skip("the backend does not declare awaits_under_trio")

    def _await(self, b: Probe, loop: str, verb: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return run(loop, lambda: getattr(b.backend, f"a{verb}")(*arguments))
        except NotImplementedError as error:
            return b.without(error)
