"""`each`: the cases of one test, in a loop that runs all of them and names those that failed. `needs`: what a test of
a published suite needs.

    def test_a_bad_path_is_an_error(self, b):
        for case in each(BAD_PATHS):                    # a mapping: its keys name the cases
            with case as path:
                assert b.read(path).error

Unlike `pytest.mark.parametrize` the cases share one set of fixtures, so thousands of checks need one mount, one
container, one schema. A case must therefore not depend on the ones before it: it uses names of its own, or removes
what it made. A failed case doesn't stop the loop; at the loop's end all failures are raised together.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

import pytest

T = TypeVar("T")
_C = TypeVar("_C", bound=Callable[..., Any])

executed = 0
"""Cases that ran in this process and were not skipped. Test runs report it: cases folded into a loop remain counted."""

skipped: list[str] = []
"""Reasons of the cases that were skipped, for a plugin that judges skips. It empties the list after each test."""

COLLECTED = (Exception, pytest.fail.Exception, pytest.skip.Exception)
"""What ends one case. Anything else, such as an interrupt, ends the loop."""

SHOWN = 20
"""Failed cases of a loop that are shown with their tracebacks; further ones are named."""


class OneCase(Generic[T]):
    """One round of an `each` loop: a context manager that gives the case's value and keeps its error."""

    def __init__(self, name: str, value: T) -> None:
        self.name, self.value = name, value
        self.error: BaseException | None = None
        self.ran = False

    def __enter__(self) -> T:
        self.ran = True
        return self.value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        global executed
        self.error = error
        if isinstance(error, pytest.skip.Exception):
            skipped.append(str(error))
        else:
            executed += 1
        return isinstance(error, COLLECTED)


def needs(*words: str) -> Callable[[_C], _C]:
    """Skip a test of a published suite unless its class declares each of `words`; the suite's `Case` lists them."""

    def mark(function: _C) -> _C:
        function.needs = words  # type: ignore[attr-defined]
        return function

    return mark


@overload
def each(cases: Mapping[str, T]) -> Iterator[OneCase[T]]: ...
@overload
def each(cases: Iterable[T]) -> Iterator[OneCase[T]]: ...
def each(cases: Iterable[Any] | Mapping[str, Any]) -> Iterator[OneCase[Any]]:
    """Loop over cases; run every one, and raise their failures when all have run.

    Args:
        cases: values, each named by its `repr` (the first 80 characters), or a mapping of names to values.

    Raises:
        AssertionError: at the loop's end, if cases failed. Its text has each one's name and traceback.
        pytest.skip.Exception: every case was skipped.
        RuntimeError: there were no cases, or the loop's body did not enter one.
    """
    named: Iterable[tuple[str, Any]]
    named = cases.items() if isinstance(cases, Mapping) else ((repr(value)[:80], value) for value in cases)
    all_of_them: list[OneCase[Any]] = []
    for name, value in named:
        case = OneCase(name, value)
        all_of_them.append(case)
        try:
            yield case
        except GeneratorExit:
            if case.error is not None and not isinstance(case.error, COLLECTED):
                raise
            raise RuntimeError(f"the loop was left at case {name} by return or break: use continue") from None
        if not case.ran:
            raise RuntimeError(f"the loop did not enter case {name}: `with case as value: ...`")
    if not all_of_them:
        raise RuntimeError("a loop over no cases checks nothing")
    ended = [case for case in all_of_them if case.error is not None]
    failed = [case for case in ended if not isinstance(case.error, pytest.skip.Exception)]
    if failed:
        raise AssertionError(_text(failed, len(all_of_them)))
    if len(ended) == len(all_of_them):
        pytest.skip(f"all {len(all_of_them)} cases are skipped, the first: {all_of_them[0].error}")


def _text(failed: list[OneCase[Any]], count: int) -> str:
    lines = [f"{len(failed)} of {count} cases failed"]
    for case in failed[:SHOWN]:
        lines.append(f"-- {case.name}")
        lines.extend("".join(traceback.format_exception(case.error)).rstrip().splitlines())
    lines.extend(f"-- {case.name}, too" for case in failed[SHOWN:])
    return "\n".join(lines)
