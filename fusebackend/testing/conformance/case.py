"""The base of the conformance cases: a new backend, declared differences, and a probe to call it through.

A test is a method with the argument `b`, a `Probe` around the backend under test. `needs(...)` names the words of
`Case` without which it is skipped. Where a test has many cases it loops over them (`fusebackend.testing.each`): they
share the backend, so each of them uses names of its own, or changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fusebackend.protocol import AGENT_VERBS, SEED_VERBS, BackendProtocol


class Case:
    """The base class of the cases. A subclass overrides the fixture `backend`, and those words below that differ."""

    seed_vocabulary: bool = False
    """The backend has verbs of the seeds only, and not all of them: a case that meets `NotImplementedError` is skipped.
    For any other backend it fails, except for `delete` and `move` where these are declared to be missing."""
    supports_delete: bool = True
    supports_move: bool = True
    reads_records: bool = True
    """`read` answers with a `ReadResult`; False for the seeds' numbered text."""
    cancelled_s: float = 2.0
    """A cancelled call must return within this time; on a quiet machine most take some milliseconds."""
    replaces_existing: bool = False
    """`write` replaces an existing file (`on_exists="replace"`)."""
    byte_exact: bool = True
    """`upload_files` and `download_files` carry any bytes."""
    keeps_empty_directories: bool = True
    """A directory outlives its last file; False where directories are only parts of paths. For a path below a file,
    `grep`, `glob` and `download_files` may then answer that there is nothing, instead of an error for a bad path."""
    checks_paths: bool = True
    """Bad paths are errors: empty, above the root, `~`, NUL, a file used as a directory, a lone surrogate."""
    limits_names: bool = True
    """Names over 255 bytes and paths over 4,096 are errors, as on Linux. Only with `checks_paths`."""
    normalises_paths: bool = True
    """`//a/./b/../c` is `/a/c`, and so is `a/c`."""
    resolves_dot_dot: bool = True
    """`/x/../a` is `/a`, by its text; False where `..` is refused. Only with `normalises_paths`."""
    any_name: bool = True
    """Names may be any bytes that Linux allows, shown with surrogateescape where they are not UTF-8."""
    shell_globs: bool = True
    """`glob`, and the filter of `grep`, follow the rules of `fusebackend.base.globs`."""
    finds_text_only: bool = True
    """`grep` treats files with a NUL byte, or that are not UTF-8, as binary, and finds nothing in them."""
    preserves_crlf: bool = True
    """`read` ends lines at LF alone, and `edit` keeps the line ends that a file has, CRLF or not."""
    sizes_in_bytes: bool = True
    """The size in a listing is that of the bytes, not of the characters."""
    awaits_under_trio: bool = True
    """The a* twins can be awaited under trio as well as under asyncio."""
    ends_when_cancelled: bool = True
    """A cancelled a* twin ends at once. If it has not begun, it never does; a change that has begun may finish."""
    big_file_bytes: int = (9 << 20) + 5
    """The size of the large file in the tests that have one."""
    many_entries: int = 1100
    """The length of a long listing; services that answer in pages have 1,000 entries in one."""

    @pytest.fixture
    def backend(self) -> BackendProtocol:
        raise NotImplementedError("override the fixture `backend`: it gives a new and empty backend for each test")

    @pytest.fixture
    def b(self, backend: BackendProtocol, request: pytest.FixtureRequest) -> Probe:
        """The probe around the backend of one test."""
        self.require(backend, getattr(request.function, "needs", ()))
        return Probe(backend, self)

    def require(self, backend: BackendProtocol, words: Iterable[str]) -> None:
        """Skip a test, or a case of a loop, unless the class declares each of the words."""
        for word in words:
            if not getattr(self, word):
                pytest.skip(f"needs {word}, which {type(backend).__name__} does not declare")

    def settle(self, backend: BackendProtocol, result: Any) -> None:
        """Receive each result. For a state-backed backend, override it to merge `files_update`, as its graph would."""


class Probe:
    """Calls each verb of the backend under its name. A missing verb skips the case or fails it (`without`)."""

    def __init__(self, backend: BackendProtocol, case: Case) -> None:
        self.backend = backend
        self.case = case

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in AGENT_VERBS + SEED_VERBS:
            raise AttributeError(verb)
        method = getattr(self.backend, verb)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = method(*args, **kwargs)
            except NotImplementedError as error:
                self.without(error)
            for one in result if isinstance(result, list) else [result]:
                self.case.settle(self.backend, one)
            return result

        return call

    def without(self, error: NotImplementedError) -> None:
        """Handle a missing verb: skip the case where that is declared, else fail it."""
        if self.case.seed_vocabulary:
            pytest.skip(f"a verb is missing: {error}")
        pytest.fail(f"{type(self.backend).__name__} lacks a verb and does not declare it: {error}")

    def put(self, path: str, content: str = "") -> None:
        """Write a new file, or fail."""
        result = self.write(path, content)
        assert result.error is None, result.error

    def put_bytes(self, path: str, content: bytes) -> None:
        """Upload a file, or fail."""
        (response,) = self.upload_files([(path, content)])
        assert response.error is None, response.error

    def bytes_of(self, path: str) -> bytes:
        """Download a file, or fail."""
        (response,) = self.download_files([path])
        assert response.error is None, response.error
        assert isinstance(response.content, bytes)
        return response.content

    def exists(self, path: str) -> bool:
        (response,) = self.download_files([path])
        return bool(response.error != "file_not_found")

    def names(self, path: str = "/") -> list[str]:
        """List the paths in a directory, or fail."""
        result = self.ls(path)
        assert result.error is None, result.error
        return [entry["path"] for entry in result.entries]

    def files(self, directory: str) -> dict[str, bytes]:
        """Return the files below a directory, by their paths in it; none where there is no such directory."""
        found: dict[str, bytes] = {}
        for entry in self.ls(directory).entries or ():
            path = entry["path"].rstrip("/")
            below = self.files(path) if entry.get("is_dir") else {"": self.bytes_of(path)}
            found |= {path[len(directory) :] + name: content for name, content in below.items()}
        return found

    def globbed(self, pattern: str, path: str | None = None) -> list[str]:
        """Return the paths that `glob` finds, or fail."""
        result = self.glob(pattern, path)
        assert result.error is None, result.error
        return [entry["path"] for entry in result.matches]

    def grepped(self, *args: Any, **kwargs: Any) -> list[tuple[str, int, str]]:
        """Return the matches of `grep` as tuples (path, line, text), or fail."""
        result = self.grep(*args, **kwargs)
        assert result.error is None, result.error
        return [(match["path"], match["line"], match["text"]) for match in result.matches]
