"""Tests of `tiers.py`: the tests of a tier, the summary of those left out, and tests that run alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tiers

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.parametrize("number", range(60))
def test_a_case(number): ...

@pytest.mark.soak
def test_a_soak(): ...
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
    for variable in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(variable, raising=False)
    pytester.makeini("[pytest]\nmarkers =\n    soak\n    alone\n")
    pytester.makeconftest('pytest_plugins = ["tiers"]')
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> tuple[int, str]:
    """Run the suite; return the number of passed tests and the output."""
    result = suite.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=120)
    return result.parseoutcomes()["passed"], result.stdout.str()


@pytest.mark.slow
def test_a_tier_takes_its_share_and_says_what_it_leaves_out(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_posix_plain=CASES)
    workers, said = run(suite, "-n", "2", "--tier", "quick")
    one, _ = run(suite, "--tier", "quick")
    assert 0 < workers == one < 60, "a sample, and the same one"
    assert f"left out of the tier quick: {61 - one} tests" in said
    assert f"{60 - one} POSIX cases on plain directories" in said
    assert "1 soak" in said
    passed, said = run(suite)
    assert (passed, "left out of the tier ci: 1 tests" in said) == (60, True)
    passed, said = run(suite, "--tier", "all")
    assert (passed, "left out" in said) == (61, False)


@pytest.mark.slow
def test_what_is_asked_for_is_not_left_out(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_posix_plain=CASES)
    assert run(suite, "-m", "soak")[0] == 1
    assert run(suite, "--tier", "quick", "test_posix_plain.py::test_a_case")[0] == 60


@pytest.mark.slow
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


def test_every_sample_is_of_tests_that_there_are() -> None:
    """A pattern without a match has lost its tests, which were renamed."""
    root = Path(__file__).parents[2]
    there = [str(path.relative_to(root)) for path in root.glob("tests/**/test_*.py")]
    for sample in tiers.SAMPLES:
        for pattern in sample.patterns:
            module = pattern.partition("::")[0]
            assert any(re.search(module, path) for path in there), pattern
