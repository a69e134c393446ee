"""`each`: every case runs, failures are named and raised together."""

from __future__ import annotations

import sys

import pytest

from fusebackend.testing import each as module
from fusebackend.testing.each import each


def test_every_case_runs_and_failures_are_named() -> None:
    seen = []
    before = module.executed
    with pytest.raises(AssertionError) as caught:
        for case in each({"one": 1, "two": 2, "three": 3, "four": 4}):
            with case as number:
                seen.append(number)
                if number == 2:
                    raise OSError("no such thing")
                if number == 3:
                    pytest.fail("it said no")
                assert number != 4, "four"
    assert seen == [1, 2, 3, 4] and module.executed - before == 4
    said = str(caught.value)
    assert said.startswith("3 of 4 cases failed")
    assert [line for line in said.splitlines() if line.startswith("-- ")] == ["-- two", "-- three", "-- four"]
    assert "no such thing" in said and "it said no" in said and "four" in said and "test_each.py" in said


def test_values_are_named_by_their_repr() -> None:
    with pytest.raises(AssertionError, match="-- 'b'"):
        for case in each("ab"):
            with case as letter:
                assert letter == "a"


def test_many_failures_are_all_named() -> None:
    with pytest.raises(AssertionError) as caught:
        for case in each(range(module.SHOWN + 2)):
            with case:
                raise ValueError
    said = str(caught.value)
    assert said.count("ValueError") >= module.SHOWN and f"-- {module.SHOWN + 1}, too" in said


def test_a_skip_of_all_cases_is_one_of_the_test() -> None:
    before = module.executed
    for case in each([1, 2]):
        with case as number:
            if number == 1:
                pytest.skip("needs x, which it does not declare")
    assert module.executed - before == 1
    with pytest.raises(pytest.skip.Exception, match="all 2 cases are skipped, the first: needs x"):
        for case in each([1, 2]):
            with case:
                pytest.skip("needs x, which it does not declare")


def test_a_loop_that_checks_nothing_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="no cases"):
        for case in each([]):
            with case:
                pass
    with pytest.raises(RuntimeError, match="did not enter case 1"):
        list(each([1, 2]))


def test_a_loop_that_is_left_early_is_a_mistake() -> None:
    def leave() -> None:
        for case in each([1, 2]):
            with case:
                return

    cases = each([1, 2])
    with next(cases):
        pass
    with pytest.raises(RuntimeError, match="left at case 1 by return or break"):
        cases.close()  # type: ignore[attr-defined]  # a generator, as Python closes it after the loop
    complaints = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", complaints.append)
        leave()
    assert "left at case 1" in str(complaints[0].exc_value)


def test_an_interrupt_ends_the_loop() -> None:
    with pytest.raises(KeyboardInterrupt):
        for case in each([1, 2]):
            with case:
                raise KeyboardInterrupt
