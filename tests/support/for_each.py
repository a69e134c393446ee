"""`for_each`: the cases of a function of our own tests, in one test. It stands where `pytest.mark.parametrize` would.

    @for_each("path", PAGES, ids=str)
    def test_links_lead_somewhere(path: Path) -> None: ...

All cases run in a loop of `fusebackend.testing.each`, which names those that failed. They share the test's fixtures, so
that a table of a hundred texts costs one schema, one mount, one process. Each case has its own `tmp_path` (a directory
in the test's) and its own `monkeypatch`, and finds `caplog`, `capsys` and `capfd` empty. Where a case changes what
another fixture gave, `parametrize` is the right one, or a fixture that is a factory.

Decorators may be stacked: every combination is a case.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fusebackend.testing.each import each

Ids = Iterable[str] | Callable[[Any], object] | None
Case = tuple[str, dict[str, Any]]


def for_each(names: str | Sequence[str], values: Iterable[Any], *, ids: Ids = None) -> Callable[[Any], Any]:
    """Return a decorator that runs a test function once for each of the values, in one test.

    Args:
        names: parameters of the function, as `parametrize` takes them.
        values: a value for each case, or a tuple of values if there are several names, or `pytest.param(…, id=…)`.
        ids: names of the cases, or a function that gives one for a value. Otherwise they are named by their `repr`.
    """
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = _cases(parameters, isinstance(names, str) and len(parameters) == 1, list(values), ids)

    def decorate(function: Any) -> Any:
        plain, tables = getattr(function, "folded", (function, ()))
        return _looping(plain, (cases, *tables))

    return decorate


def _cases(parameters: list[str], is_single: bool, values: list[Any], ids: Ids) -> list[Case]:
    names = [None] * len(values) if ids is None or callable(ids) else list(ids)
    cases = []
    for value, name in zip(values, names, strict=True):
        if isinstance(value, type(pytest.param())):
            assert not value.marks, "a case in a loop has no marks of its own"
            of_each, name = value.values, value.id or name
        else:
            of_each = (value,) if is_single else tuple(value)
        if name is None:
            named = [str(ids(part)) if callable(ids) else repr(part)[:80] for part in of_each]
            name = "-".join(named) if callable(ids) else ", ".join(named)
        cases.append((name, dict(zip(parameters, of_each, strict=True))))
    return cases


def _looping(plain: Any, tables: tuple[list[Case], ...]) -> Any:
    folded = {name for table in tables for _, values in table for name in values}
    rows = [
        (", ".join(name for name, _ in row), {name: value for _, values in row for name, value in values.items()})
        for row in itertools.product(*tables)
    ]
    named: dict[str, dict[str, Any]] = {}
    for name, values in rows:
        named[f"{name} (case {len(named)})" if name in named else name] = values

    if inspect.iscoroutinefunction(plain):

        @functools.wraps(plain)
        async def looping(*args: Any, **fixtures: Any) -> None:
            for number, case in enumerate(each(named)):
                with case as values, _fresh(fixtures, number) as own:
                    await plain(*args, **own, **values)

    else:

        @functools.wraps(plain)
        def looping(*args: Any, **fixtures: Any) -> None:
            for number, case in enumerate(each(named)):
                with case as values, _fresh(fixtures, number) as own:
                    plain(*args, **own, **values)

    signature = inspect.signature(plain)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in folded]
    looping.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    looping.folded = (plain, tables)  # type: ignore[attr-defined]
    return looping


@contextlib.contextmanager
def _fresh(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Give a case its own of what pytest makes for each test."""
    own = dict(fixtures)
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in own:
            own["monkeypatch"] = patch
        if "tmp_path" in own:
            directory: Path = own["tmp_path"] / str(number)
            directory.mkdir()
            own["tmp_path"] = directory
        if "caplog" in own:
            own["caplog"].clear()
        for name in {"capsys", "capfd"} & own.keys():
            own[name].readouterr()
        yield own
