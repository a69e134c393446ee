"""Tests of `tiers.py`: the tests of a run, and that what its tables name is there."""

from __future__ import annotations

import re
from pathlib import Path

import budgets
import pytest
import tiers

from fusebackend.testing.conformance import BackendConformance

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.parametrize("number", range(60))
def test_a_case(number): ...

@pytest.mark.night
def test_of_the_night(): ...

@pytest.mark.configuration
class TestSecond:
    def test_read(self): ...

    @pytest.mark.parametrize("number", range(7))
    def test_detail(self, number): ...
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others' plugins take seconds to import
    for variable in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(variable, raising=False)
    pytester.makeini("[pytest]\nmarkers =\n    night\n    configuration\n    alone\n")
    pytester.makeconftest('import tiers\npytest_plugins = ["tiers"]\ntiers.SMOKE = {"test_read"}')
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> tuple[int, str]:
    """Run the suite; return the number of passed tests and the output."""
    result = suite.runpytest_subprocess("-p", "xdist", "-p", "no:cacheprovider", *arguments, timeout=120)
    return result.parseoutcomes()["passed"], result.stdout.str()


@pytest.mark.night
def test_the_day_leaves_out_what_is_of_the_night_and_says_so(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_suite=CASES)
    for workers in ([], ["-n", "2"]):
        passed, said = run(suite, *workers)
        assert passed == 61
        assert "left to the night: 8 tests" in said
        assert re.search(r"^ +7 second configurations", said, re.MULTILINE)
        assert re.search(r"^ +1 marked `night`", said, re.MULTILINE)
        passed, said = run(suite, *workers, "--night")
        assert (passed, "left to the night" in said) == (69, False)


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/test_x.py::test_a[1]", "tests/test_x.py"),
        ("tests/test_x.py::TestA::test_a[a::b]", "tests/test_x.py::TestA"),
        ("tests/test_x.py::test_a[a::b]", "tests/test_x.py"),
        ("tests/mounted/test_x.py::test_a", "tests/mounted/test_x.py::test_a"),
        ("tests/mounted/test_execute_docker.py::test_a", "docker"),
    ],
)
def test_what_stays_together(nodeid: str, scope: str) -> None:
    assert tiers.scope(nodeid) == scope


def test_the_smoke_is_of_functions_that_there_are() -> None:
    """A name without a function has lost its test, which was renamed."""
    functions = {name for suite in (BackendConformance,) for name in dir(suite)}
    assert sorted(tiers.SMOKE - functions) == []


def test_budgets_are_of_modules_that_there_are() -> None:
    root = Path(__file__).parents[2]
    assert [module for module in budgets.LONGER if not (root / module).is_file()] == []
