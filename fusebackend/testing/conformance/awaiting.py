"""Cases of the a* twins: each verb and each name of the seeds, awaited under asyncio and under trio."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from typing import Any

import anyio
import pytest

from fusebackend.protocol import SandboxBackendProtocol
from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import each, needs

LOOPS = ("asyncio", "trio")
FILE = "one\nthe needle\n"

# Verbs that only look give the same answer twice, so that sync and async can be compared.
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

Contents = dict[str, bytes | None]


def changing(at: str) -> dict[str, tuple[tuple[Any, ...], Contents]]:
    """Return the verbs that change the directory `at`: their arguments, and contents of files afterwards.

    None is the content of a file that must be gone. `at` has `dir/file.txt` with `FILE` in it.
    """
    file = f"{at}/dir/file.txt"
    uploads = {f"{at}/up.txt": b"1", f"{at}/dir/up.txt": b"2"}
    return {
        "write": ((f"{at}/new.txt", "x"), {f"{at}/new.txt": b"x"}),
        "edit": ((file, "needle", "pin"), {file: b"one\nthe pin\n"}),
        "upload_files": ((list(uploads.items()),), {**uploads}),
        "move": ((file, f"{at}/moved.txt"), {f"{at}/moved.txt": FILE.encode(), file: None}),
        "delete": ((f"{at}/dir",), {file: None}),
    }


CROWD = 100


class AwaitingCases(Case):
    def test_the_twin_of_a_verb_that_looks(self, b: Probe) -> None:
        b.put("/dir/file.txt", FILE)
        for case in each(itertools.product(LOOPS, LOOKING)):
            with case as (loop, (verb, arguments)):
                self._know(loop)
                expected = getattr(b, verb)(*arguments)
                assert self._await(b, loop, verb, arguments) == expected

    def test_the_twin_of_a_verb_that_changes(self, b: Probe) -> None:
        for case in each(itertools.product(LOOPS, changing(""))):
            with case as (loop, verb):
                self._know(loop, verb)
                at = f"/{loop}/{verb}"
                arguments, changed = changing(at)[verb]
                b.put(f"{at}/dir/file.txt", FILE)
                result = self._await(b, loop, verb, arguments)
                results = result if isinstance(result, list) else [result]
                for one in results:
                    self.settle(b.backend, one)
                assert [one.error for one in results] == [None] * len(results)
                for path, content in changed.items():
                    assert b.download_files([path])[0].content == content

    def test_twins_take_keywords_and_give_errors_as_records(self, b: Probe) -> None:
        b.put("/dir/file.txt", "needle\nneedle\n")
        for case in each(LOOPS):
            with case as loop:
                self._know(loop)
                result: Any = anyio.run(
                    lambda: b.backend.agrep(pattern="needle", path="/dir", glob=None, max_count=1), backend=loop
                )
                assert len(result.matches) == 1 and result.truncated
                missing = anyio.run(lambda: b.backend.aread(file_path="/none.txt", offset=0, limit=1), backend=loop)
                assert str(missing) == "Error: File '/none.txt' not found"

    @needs("ends_when_cancelled")
    def test_what_is_cancelled_before_it_begins_changes_nothing(self, b: Probe) -> None:
        b.put("/dir/file.txt", FILE)

        async def cancelled(verb: str, arguments: tuple[Any, ...]) -> bool:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await getattr(b.backend, f"a{verb}")(*arguments)
            return scope.cancelled_caught

        for case in each(itertools.product(LOOPS, changing(""))):
            with case as (loop, verb):
                self._know(loop, verb)
                arguments, _ = changing("")[verb]
                assert anyio.run(functools.partial(cancelled, verb, arguments), backend=loop)
                assert b.bytes_of("/dir/file.txt") == FILE.encode()
                assert b.names() == ["/dir/"]

    @needs("ends_when_cancelled")
    def test_a_cancelled_crowd_ends_at_once(self, b: Probe) -> None:
        """More calls than run at once: cancelled ones that still wait never begin, so the backend is free at once."""
        b.put("/dir/file.txt", FILE)

        async def main() -> float:
            async with anyio.create_task_group() as group:
                for _ in range(CROWD):
                    group.start_soon(b.backend.agrep, "needle")
                await b.backend.aread("/dir/file.txt")
                began = time.monotonic()
                group.cancel_scope.cancel()
            took_s = time.monotonic() - began
            assert (await b.backend.aread("/dir/file.txt")).error is None
            return took_s

        for case in each(LOOPS):
            with case as loop:
                self._know(loop)
                assert anyio.run(main, backend=loop) < self.cancelled_s

    @needs("ends_when_cancelled")
    def test_a_cancelled_command_ends_at_once(self, b: Probe) -> None:
        backend = b.backend
        if not isinstance(backend, SandboxBackendProtocol):
            pytest.skip("no commands")

        async def main() -> None:
            with anyio.move_on_after(0.2):
                await backend.aexecute("sleep 20")

        for case in each(LOOPS):
            with case as loop:
                self._know(loop)
                began = time.monotonic()
                anyio.run(main, backend=loop)
                assert time.monotonic() - began < 0.2 + self.cancelled_s

    def test_records_are_plain_dataclasses(self, b: Probe) -> None:
        """Records cross sockets and are stored in checkpoints, so `dataclasses.asdict` must take them."""
        b.put("/file.txt", "x")
        for result in (b.ls("/"), b.grep("x"), b.glob("*"), *b.download_files(["/file.txt"])):
            assert dataclasses.asdict(result)

    def _know(self, loop: str, verb: str = "") -> None:
        """Skip a case of a loop, or of a verb, that the backend declares to be without."""
        if not getattr(self, f"supports_{verb}", True):
            pytest.skip(f"no {verb}")
        if loop == "trio" and not self.awaits_under_trio:
            pytest.skip("the backend does not declare awaits_under_trio")

    def _await(self, b: Probe, loop: str, verb: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return anyio.run(lambda: getattr(b.backend, f"a{verb}")(*arguments), backend=loop)
        except NotImplementedError as error:
            return b.without(error)
