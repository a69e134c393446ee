"""Tests of `skips.py`: skips that CI allows, and skips that fail there."""

from __future__ import annotations

import pytest
import skips

pytest_plugins = ["pytester"]

SUITE = """
    import pytest
    from fusebackend.testing.each import each

    def test_a_program():
        pytest.skip("rg is not installed")

    def test_a_kernel():
        pytest.skip("this kernel has no multigrain timestamps (Linux 6.13)")

    def test_a_feature():
        pytest.skip("needs xattrs, which this volume does not have")

    @pytest.mark.skipif(True, reason="bwrap is missing")
    def test_marked(): ...

    def test_a_case():
        for case in each(["installed", "missing"]):
            with case as program:
                if program == "missing":
                    pytest.skip("rg is not installed")

    def test_a_case_of_a_feature():
        for case in each([True, False]):
            with case as is_there:
                if not is_there:
                    pytest.skip("needs xattrs, which this volume does not have")

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


@pytest.mark.parametrize(
    ("ci", "outcomes"),
    [("1", {"failed": 2, "errors": 1, "skipped": 2, "passed": 1}), ("", {"skipped": 4, "passed": 2})],
)
def test_a_skip_for_what_the_machine_lacks_fails_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, outcomes: dict[str, int]
) -> None:
    monkeypatch.setenv("CI", ci)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    # A mark skips before the test: that is an error.
    result.assert_outcomes(**outcomes, xfailed=1)


def test_a_module_is_not_skipped_as_a_whole(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import pytest; pytest.importorskip('no_such_package')")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*CI must not skip this*"])


@pytest.mark.parametrize(
    ("refused", "ci", "outcome"),
    [
        ("", "", "failed"),
        ("this machine does not let …", "", "skipped"),
        ("this machine does not let …", "1", "failed"),
    ],
)
def test_a_failure_for_want_of_a_sandbox_is_a_skip(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, refused: str, ci: str, outcome: str
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(skips, "sandbox_refused", lambda: refused or None)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        "def test_command(): assert 'Error: this machine does not let bubblewrap make a sandbox' == 'hello'"
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(**{outcome: 1})
