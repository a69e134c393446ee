"""`grep` and `glob` in a sandbox answer what the reference backend answers, over the corpus of all searches."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import sandboxes
from for_each import for_each
from search_corpus import GLOBS, ODD, ODD_PATTERNS, PATHS, PATTERNS, PLAIN
from test_search_matrix import compare, filled, questions, truth

from fusebackend.backends import DockerBackend
from fusebackend.base import budget

DOCKER = pytest.param("docker", marks=[pytest.mark.services, pytest.mark.night])
"""The same scripts in a container: the published suite has searches there by day."""


@pytest.fixture(scope="module", params=["gnu", "busybox", DOCKER])
def pair(request, tmp_path_factory):
    """A sandbox, and the reference with the same files; and whether it is quick enough to be asked everything."""
    corpus = PLAIN | ODD
    with ExitStack() as opened:
        directory = tmp_path_factory.mktemp("search")
        if request.param == "docker":
            engine = request.getfixturevalue("docker_engine")
            options = {"network_mode": "none"}
            backend = opened.enter_context(
                DockerBackend(engine.image, root="/work", base_url=engine.url, options=options)
            )
        else:
            (directory / "root").mkdir()
            tools = sandboxes.tools(request.param, directory / "tools")
            backend = sandboxes.LocalSandbox(directory / "root", tools)
        yield filled(backend, corpus), truth(corpus, opened)


def test_grep(pair):
    compare(pair, questions(PATTERNS, GLOBS)[::10])


def test_grep_of_odd_files(pair):
    backend, reference = pair
    for pattern in (*ODD_PATTERNS, "needle"):
        for glob in (None, ".hidden/*"):
            answer, expected = backend.grep(pattern, None, glob), reference.grep(pattern, None, glob)
            assert (answer.error, answer.truncated) == (expected.error, expected.truncated), pattern
            assert answer.matches == expected.matches, (pattern, glob)


@for_each("path", PATHS[::2])
def test_glob(pair, path):
    backend, reference = pair
    for pattern in (*filter(None, GLOBS), "*", "**", ".*", "?????.txt", "**/d*/*", "src/lib/**"):
        answer, expected = backend.glob(pattern, path), reference.glob(pattern, path)
        assert (answer.error, answer.truncated) == (expected.error, expected.truncated)
        found = [(info["path"], info["size"]) for info in answer.matches]
        assert found == [(info["path"], info["size"]) for info in expected.matches], pattern


def test_a_search_ends_with_its_budget(pair):
    backend, _ = pair
    with budget.limited(0.0):
        assert backend.glob("*").truncated
        assert backend.grep("needle").truncated
    assert not backend.glob("*").truncated


def test_a_file_that_is_too_large_is_passed_over_and_told(pair):
    backend, _ = pair
    complete = backend.grep("needle", "/src")
    assert not complete.truncated
    backend.max_search_bytes = 4096
    try:
        cut = backend.grep("needle", "/src")
        assert cut.truncated
        assert {match["path"] for match in complete.matches} - {match["path"] for match in cut.matches} == {
            "/src/lib/long.txt"
        }
    finally:
        del backend.max_search_bytes
