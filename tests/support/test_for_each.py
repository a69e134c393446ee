"""Tests of `for_each`: one test runs all cases, with state of their own, and names those that failed."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from for_each import for_each

from fusebackend.testing import each as loop

pytest_plugins = ["pytester"]

TABLE = """
import logging
import pytest
from for_each import for_each

@pytest.fixture(params=["x", "y"])
def kind(request):
    return request.param

seen = []

@for_each("number", range(3))
@for_each(("a", "b"), [(1, 2), pytest.param(3, 4, id="odd one")])
def test_combinations(kind, number, a, b):
    seen.append((kind, number, a, b))
    assert (number, a) != (2, 3)

def test_all_ran():
    assert seen == [(k, n, a, b) for k in "xy" for n in range(3) for a, b in [(1, 2), (3, 4)]]

@for_each("name", ["one", "two"], ids=str.upper)
def test_own_state(name, tmp_path, monkeypatch, caplog, capsys):
    assert list(tmp_path.iterdir()) == [] and caplog.records == [] and capsys.readouterr().out == ""
    assert not hasattr(pytest, "left_behind")
    (tmp_path / name).touch()
    monkeypatch.setattr(pytest, "left_behind", name, raising=False)
    logging.getLogger("x").warning("said")
    print("said")
    assert name == "one", "the other one"

class TestIt:
    @for_each("number", [1, 1])
    def test_method(self, number):
        assert self and number == 2
"""


def test_cases_of_a_function_are_one_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pytester.makepyfile(TABLE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=4)
    lines = result.outlines
    assert sum("1 of 6 cases failed" in line for line in lines) >= 2
    assert any(line.endswith("-- 2, odd one") for line in lines)
    assert any("-- TWO" in line for line in lines) and not any("-- ONE" in line for line in lines)
    assert any("the other one" in line for line in lines)
    assert any("2 of 2 cases failed" in line for line in lines) and any("-- 1 (case 1)" in line for line in lines)


async def _looked_at(number: int, seen: list[int]) -> None:
    seen.append(number)


@pytest.mark.trio
async def test_an_async_function_stays_one() -> None:
    folded = for_each("number", [1, 2, 3])(_looked_at)
    assert inspect.iscoroutinefunction(folded)
    assert list(inspect.signature(folded).parameters) == ["seen"]
    seen: list[int] = []
    before = loop.executed
    await folded(seen=seen)
    assert seen == [1, 2, 3] and loop.executed == before + 3


def test_a_case_has_no_marks() -> None:
    with pytest.raises(AssertionError, match="no marks"):
        for_each("number", [pytest.param(1, marks=pytest.mark.night)])
