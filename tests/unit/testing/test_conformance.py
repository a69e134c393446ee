"""The published suite: on the reference backend, on SQLite, and on broken ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fusebackend.backends.memory import InMemoryBackend
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.protocol import (
    DeleteResult,
    GrepResult,
    MoveResult,
)
from fusebackend.testing.conformance import BackendConformance, Case, Probe
from fusebackend.testing.each import each


class TestMemory(BackendConformance):
    @pytest.fixture
    def backend(self):
        with InMemoryBackend() as backend:
            yield backend


class TestSqlite(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path):
        with SqliteBackend(tmp_path / "files.db") as backend:
            yield backend


@pytest.mark.configuration
class TestMemoryThatReplaces(BackendConformance):
    replaces_existing = True

    @pytest.fixture
    def backend(self):
        with InMemoryBackend(on_exists="replace") as backend:
            yield backend


# A suite that can't fail proves nothing: each of these backends has one fault, and a case that must find it.


class WrongWindow(InMemoryBackend):
    def read(self, file_path, offset=0, limit=2000):
        return super().read(file_path, offset + 1, limit)


class EditsAll(InMemoryBackend):
    def edit(self, file_path, old_string, new_string, replace_all=False):
        return super().edit(file_path, old_string, new_string, True)


class GrepsWords(InMemoryBackend):
    def grep(self, pattern, path=None, glob=None, *, max_count=None):
        result = super().grep(pattern, path, glob, max_count=max_count)
        return GrepResult(matches=[match for match in result.matches if match["text"].startswith(pattern)])


class DeletesByPrefix(InMemoryBackend):
    def delete(self, file_path):
        for entry in self.ls("/").entries:
            if entry["path"].startswith(file_path):
                super().delete(entry["path"])
        return DeleteResult(path=file_path)


class ForgetsOrder(InMemoryBackend):
    def download_files(self, paths):
        return sorted(super().download_files(paths), key=lambda response: response.path)


class ReplacesByMove(InMemoryBackend):
    def move(self, source, destination):
        self.delete(destination)
        return super().move(source, destination)


class RaisesForBadPaths(InMemoryBackend):
    def ls(self, path):
        if not path.startswith("/"):
            raise ValueError(path)
        return super().ls(path)


class LosesBytes(InMemoryBackend):
    def upload_files(self, files):
        return super().upload_files([(path, content.replace(b"\r\n", b"\n")) for path, content in files])


class CannotMove(InMemoryBackend):
    def move(self, source, destination):
        raise NotImplementedError("no move")


FAULTS = [
    (WrongWindow, "test_a_window_of_lines", "5 of 6 cases failed"),
    (EditsAll, "test_edits", r"1 of 10 cases failed\n-- \(\(\), 'ab ab ab', \('ab', 'x'\)"),
    (GrepsWords, "test_grep_is_literal_and_goes_by_lines", r"4 of 10 cases failed\n-- \('needle', '/one.txt'"),
    (GrepsWords, "test_grep_of_every_script", "assert"),
    (DeletesByPrefix, "test_deletes_and_moves", r"cases failed\n(.*\n)*-- delete a tree\n"),
    (ForgetsOrder, "test_a_batch_answers_in_order", "assert"),
    (ReplacesByMove, "test_deletes_and_moves", r"cases failed\n(.*\n)*-- move over a file\n"),
    (RaisesForBadPaths, "test_a_bad_path_is_an_error_and_no_exception", r"2 of 100 cases failed\n-- \('ls', 'empty'\)"),
    (LosesBytes, "test_any_bytes", "assert"),
    (CannotMove, "test_deletes_and_moves", "CannotMove lacks a verb"),
    (CannotMove, "test_the_twin_of_a_verb_that_changes", r"2 of 10 cases failed\n-- \('asyncio', 'move'\)"),
]


def test_a_fault_is_found():
    suite = BackendConformance()
    for case in each({f"{backend.__name__}: {test}": (backend, test, said) for backend, test, said in FAULTS}):
        with case as (backend, test, said):
            method = getattr(suite, test)
            method(Probe(InMemoryBackend(), suite))
            with pytest.raises((AssertionError, pytest.fail.Exception), match=said):
                method(Probe(backend(), suite))


def test_a_verb_that_is_there_and_declared_missing_is_a_failure():
    class Modest(BackendConformance):
        supports_move = False

    class Reckless(InMemoryBackend):
        def move(self, source, destination):
            return MoveResult(path=destination)

    Modest().test_what_is_declared_missing_is_missing(Probe(CannotMove(), Modest()))
    with pytest.raises(AssertionError):
        Modest().test_what_is_declared_missing_is_missing(Probe(Reckless(), Modest()))


def test_a_declared_difference_skips_its_cases():
    class Quiet(BackendConformance):
        any_name = False

    function = BackendConformance.test_a_name_may_be_anything
    assert function.needs == ("any_name",)
    asking = SimpleNamespace(function=function)
    with pytest.raises(pytest.skip.Exception, match="needs any_name"):
        Case.b.__wrapped__(Quiet(), InMemoryBackend(), asking)


def test_results_are_settled():
    class Settling(BackendConformance):
        settled = 0

        def settle(self, backend, result):
            type(self).settled += 1

    probe = Probe(InMemoryBackend(), Settling())
    probe.put("/a.txt", "x")
    probe.upload_files([("/b.txt", b""), ("/c.txt", b"")])
    assert Settling.settled == 3
