"""Tests of `skips.py`: skips that CI allows, and skips that fail there."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SUITE = """
    import pytest

    def test_a_program():
        pytest.skip("rg is not installed")

    def test_a_feature():
        pytest.skip("needs xattrs, which this volume does not have")

    @pytest.mark.skipif(True, reason="bwrap is missing")
    def test_marked(): ...

    @pytest.mark.xfail(reason="not installed")
    def test_expected():
        assert False
"""

CONFTEST = """
    import pytest
    import skips

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport():
        return skips.judged((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report():
        return skips.judged((yield))
"""


@pytest.mark.parametrize(("ci", "bad", "skipped"), [("1", 1, 1), ("", 0, 3)])
def test_a_skip_for_what_the_machine_lacks_fails_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, bad: int, skipped: int
) -> None:
    monkeypatch.setenv("CI", ci)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=bad, errors=bad, skipped=skipped, xfailed=1)  # a mark skips before the test: an error


def test_a_module_is_not_skipped_as_a_whole(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import pytest; pytest.importorskip('no_such_package')")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*CI must not skip this*"])
