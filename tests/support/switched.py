"""A test of a coherence rule runs twice: as it is, and with the rule turned off, when it must fail.

    @pytest.mark.fails_without("hold_back")
    def test_a_notice_waits_...

The names are those of `fusebackend.vfs.switches.Switches`. In the second run, a `FileSystem(...)` without explicit
switches has all features but that one. `conftest.py` loads this plugin.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from fusebackend.vfs import switches


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rules = [rule for mark in metafunc.definition.iter_markers("fails_without") for rule in mark.args]
    if rules:
        names = ["with every rule", *(f"without {rule}" for rule in rules)]
        metafunc.parametrize("turned_off", [None, *rules], indirect=True, ids=names)


@pytest.fixture(autouse=True)
def turned_off(request: pytest.FixtureRequest) -> None:
    rule = getattr(request, "param", None)
    if rule is not None:
        patch = request.getfixturevalue("monkeypatch")
        patch.setattr(switches, "DEFAULT", replace(switches.DEFAULT, **{rule: False}))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    callspec = getattr(pyfuncitem, "callspec", None)
    rule = callspec.params.get("turned_off") if callspec is not None else None
    if rule is None:
        return (yield)
    try:
        yield
    except BaseException as error:
        if _is_failure(error):
            return True
        raise
    pytest.fail(f"without {rule} it passes: the test does not need the rule, or nobody does")


def _is_failure(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_failure(each) for each in error.exceptions)
    return isinstance(error, AssertionError | pytest.fail.Exception)
