"""The tests of a run, the worker that each of them runs on, and what they took: a plugin that `conftest.py` loads.

    make test        `scripts/test`: every test that guards a promise; `.ci/run` calls it. Hypothesis profile `day`
    make test-all    `scripts/test --night`: also the tests marked `night`. Profile `night`

A class marked `configuration` runs a published suite on a second configuration of a backend whose first one runs it in
full. By day it runs `SMOKE`, at night everything. Where the command line names a test or a class (`file::name`), or
selects by `-m night`, nothing is left out. A run lists at its end the tests that it left out.

With `pytest -n`, modules run in an order of their own, a class and its fixtures stay on one worker, and so do the tests
of Docker, which look at all of an engine's containers. A test marked `alone` waits until no other test runs, and no
other test starts beside it: it measures a time or the machine's memory, or empties the kernel's caches.

At its end a run says how many cases the loops of `fusebackend.testing.each` ran, and which modules took longer than
`budgets.py` gives them.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import budgets
import profiles
import pytest
from _pytest.assertion import rewrite

from fusebackend.testing import each

SMOKE: frozenset[str] = frozenset(
    {
        "test_a_missing_file_is_named",
        "test_a_window_of_lines",
        "test_numbered_text_keeps_the_numbers_of_the_file",
        "test_edits",
        "test_write_refuses_or_replaces_an_existing_file",
        "test_direct_children_only_sorted_and_directories_end_in_a_slash",
        "test_nothing_there_and_a_file_are_errors",
        "test_glob_gives_files_with_their_sizes",
        "test_grep_finds_lines_in_order",
        "test_grep_stops_at_max_count",
        "test_a_directory_after_its_last_file",
        "test_deletes_and_moves",
        "test_what_is_declared_missing_is_missing",
        "test_a_batch_answers_in_order",
        "test_any_bytes",
        "test_each_failure_has_its_code",
        "test_nothing_moves_to_a_bad_path",
        "test_twins_take_keywords_and_give_errors_as_records",
    }
)
"""Functions of the published suites that a second configuration runs by day: one or two of each verb."""

NIGHT = "marked `night`"
CONFIGURATION = "second configurations of a backend, but for their smoke"


def leaves_out(item: pytest.Item) -> str | None:
    """Return why the day leaves the test out, in the words of the summary, or None."""
    if item.get_closest_marker("night") is not None:
        return NIGHT
    if item.get_closest_marker("configuration") is not None and getattr(item, "originalname", item.name) not in SMOKE:
        return CONFIGURATION
    return None


# -- choosing ----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--night", action="store_true", help="everything: also tests marked `night`, and larger amounts")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = Counter()
    profiles.load(config.getoption("hypothesis_profile", None) or ("night" if config.option.night else "day"))
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        _rewrite_asserts(config, int(worker[2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


def _rewrite_asserts(config: pytest.Config, worker: int, workers: int) -> None:
    """Rewrite the asserts of this worker's share of the modules where that is not done yet, and keep them where pytest
    looks for them. All workers import all modules: in a new clone each would rewrite for 15 s what the others do."""
    published = Path(each.__file__).parent
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    modules = {path for place in (*named, published) for path in ([place] if place.is_file() else place.rglob("*.py"))}
    for module in sorted(modules, key=lambda module: (module.stat().st_size, module))[worker::workers]:
        kept = rewrite.get_cache_dir(module) / f"{module.stem}{rewrite.PYC_TAIL}"
        is_rewritten = module.name.startswith("test_") or published in module.parents
        if is_rewritten and rewrite._read_pyc(module, kept) is None and rewrite.try_makedirs(kept.parent):
            digest, code = rewrite._rewrite_test(module, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, kept)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would look at all tests again and again, and never look at them
    afterwards: 6 s of a processor instead of 11 for each worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


COUNTS = pytest.StashKey[Counter[str]]()
"""Tests that were left out by reason, and `CASES` of loops that ran."""
CASES = "cases"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _turn(item.nodeid))
    is_named = any("::" in argument for argument in config.args)
    if config.option.night or is_named or "night" in config.option.markexpr:
        return
    kept, gone = [], []
    for item in items:
        why = leaves_out(item)
        if why is None:
            kept.append(item)
        else:
            gone.append(item)
            config.stash[COUNTS][why] += 1
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = kept


def _turn(nodeid: str) -> tuple[bool, int]:
    """Return what tests are sorted by: the longest scope first, then modules as dice would have them. In the order of
    their names those that wait would all be at the end, where nothing uses the processors meanwhile."""
    return scope(nodeid) != "docker", zlib.crc32(nodeid.partition("::")[0].encode())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's counts to the process that reports."""
    counts = session.config.stash[COUNTS]
    counts[CASES] += each.executed
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["counts"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the cases that a worker ran. All workers collect, and leave out, the same tests: those are counted once."""
    counts = Counter(getattr(node, "workeroutput", {}).get("counts", {}))
    total = node.config.stash[COUNTS]
    cases = total[CASES] + counts[CASES]
    total |= counts
    total[CASES] = cases


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    say = terminalreporter.write_line
    seconds: dict[str, float] = defaultdict(float)
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    over = [(spent_s, module) for module, spent_s in seconds.items() if spent_s > budgets.of(module)]
    if over and not config.option.night:
        terminalreporter.section(f"over their budget, of {sum(seconds.values()):,.0f} s of tests", "-")
        for spent_s, module in sorted(over, reverse=True):
            say(f"{spent_s:6,.0f} s {module}, budget {budgets.of(module)} s")
    counts = Counter(config.stash[COUNTS])
    cases = counts.pop(CASES, 0)
    if cases:
        say(f"{cases:,} cases ran in loops of `each`.")
    left_out = sum(counts.values())
    if left_out:
        terminalreporter.section(f"left to the night: {left_out:,} tests", "-")
        for what, count in counts.most_common():
            say(f"{count:6,} {what}")
        say("`make test-all` runs everything.")


# -- where and beside what ---------------------------------------------------------------------------------------


def scope(nodeid: str) -> str:
    """Return the unit that one worker runs in order: a class, a module of tests that mount nothing, or one test."""
    path, *names = nodeid.split("::")
    if "docker" in path:
        return "docker"
    if names[0].isidentifier() and len(names) > 1:
        return f"{path}::{names[0]}"
    return nodeid if "mounted/" in path else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByScope(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False
    return ByScope(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with _admitted(item):
        return (yield)


@contextlib.contextmanager
def _admitted(item: pytest.Item) -> Iterator[None]:
    """Hold the lock that keeps tests marked `alone` and all others apart. Without workers there is no lock.

    Each test first takes `door.lock`. A test that waits to be alone keeps it, so that no further test can start.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    alone = item.get_closest_marker("alone") is not None
    run: Path = item.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
    with (run / "door.lock").open("a") as door, (run / "alone.lock").open("a") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
