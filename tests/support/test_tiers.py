"""Tests of `tiers.py`: the tests of a run, its summary, and tests that run alone."""

from __future__ import annotations

import json
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

INTERVALS = """
import json, time
import pytest

@pytest.mark.parametrize("number", range(5))
def test_beside_others(number):
    stay("others")

@pytest.mark.alone
@pytest.mark.parametrize("number", range(3))
def test_by_itself(number):
    stay("alone")

def stay(who):
    begun = time.monotonic_ns()
    time.sleep(0.02)
    with open({path!r}, "a") as file:
        file.write(json.dumps([who, begun, time.monotonic_ns()]) + "\\n")
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


@pytest.mark.night
def test_what_is_asked_for_is_not_left_out(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_suite=CASES)
    assert run(suite, "-m", "night")[0] == 1
    assert run(suite, "test_suite.py::TestSecond")[0] == 8


@pytest.mark.night
def test_cases_are_counted_and_long_modules_named(suite: pytest.Pytester) -> None:
    loop = """
        import time
        import budgets
        from fusebackend.testing.each import each

        budgets.LONGER["test_{name}.py"] = 0.1

        def test_all():
            time.sleep({seconds})
            for case in each(range(5)):
                with case:
                    pass
    """
    for name, seconds in (("one", 0.2), ("two", 0)):
        suite.makepyfile(**{f"test_{name}": loop.format(name=name, seconds=seconds)})
    assert "10 cases ran in loops" in run(suite, "-n", "2")[1]
    _, said = run(suite)
    assert "10 cases ran in loops" in said
    assert re.search(r"s test_one\.py, budget 0\.1 s", said) and "test_two.py, budget" not in said


@pytest.mark.night
def test_one_that_is_alone_runs_beside_no_other(suite: pytest.Pytester, tmp_path: Path) -> None:
    path = tmp_path / "intervals"
    source = INTERVALS.format(path=str(path))
    suite.makepyfile(test_one=source, test_two=source, test_three=source)
    assert run(suite, "-n", "3")[0] == 24
    spans = [json.loads(line) for line in path.read_text().splitlines()]
    for who, begun, ended in spans:
        beside = [other for other in spans if other[1] < ended and begun < other[2]]
        assert who != "alone" or len(beside) == 1, (who, beside)


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
