"""The tests of a tier, and the worker that each of them runs on: a plugin that `conftest.py` loads.

    --tier quick    `make test`: ten minutes on two cores. Every promise, every backend's conformance, mounts of
                    `sqlite:` and `memory:` in full; the rest sampled, see `SAMPLES`; no test marked `slow`.
                    Hypothesis profile `dev`.
    --tier ci       `.ci/run`, and the default: all but tests marked `soak`. Profile `ci`.
    --tier all      `make test-all`: everything. Profile `soak`.

A sample is the same in every run, on every machine: the hash of a test's id decides. A run lists at its end the tests
that it left out. Where the command line names a test or a class (`file::name`), nothing is sampled.

With `pytest -n`, a class and its fixtures stay on one worker, and so do the tests of Docker, which look at all of an
engine's containers. A test marked `alone` waits until no other test runs, and no other test starts beside it: it
measures a time or the machine's memory, or empties the kernel's caches.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import profiles
import pytest

TIERS = {"quick": "dev", "ci": "ci", "all": "soak"}
"""Tiers and their hypothesis profiles."""


@dataclass(frozen=True)
class Sample:
    """A group of tests by patterns of their ids; one in `quick` or `ci` of them runs."""

    what: str
    patterns: tuple[str, ...]
    quick: int
    ci: int = 1

    def has(self, nodeid: str) -> bool:
        return any(re.search(pattern, nodeid) for pattern in self.patterns)

    def one_in(self, tier: str) -> int:
        return {"quick": self.quick, "ci": self.ci}.get(tier, 1)


def _sample(what: str, *patterns: str, quick: int, ci: int = 1) -> Sample:
    return Sample(what, patterns, quick, ci)


SAMPLES = (
    _sample(
        "POSIX cases on mounts of other volumes than sqlite: and memory:",
        r"test_posix_mounts\.py::Test(AnotherTree|Directory|Foreign|Postgres|Route)::",
        r"test_s3\.py::TestPosix::",
        quick=12,
    ),
    _sample("POSIX cases on plain directories", r"test_posix_plain\.py::", quick=6),
    _sample("rows of likeness on a plain directory", r"test_likeness\.py::TestSharedMemory::", quick=3),
    # One class of each backend runs in full; these test the same backend with another option, or behind another one.
    _sample(
        "conformance of a backend's second configuration",
        r"test_(conformance|\w+_conformance|filesystem_backend)\.py::Test(\w*Replac\w*|TheSeedsFormat|ReadOnly|WithoutRipgrep)::",
        r"test_state\.py::TestConformanceOf\w+::",
        r"test_foreign\.py::Test(Composite|Seed)::",
        r"test_deepagents\.py::Test(AdoptedFilesystem|ExportedAndAdopted)::",
        r"test_composite\.py::TestCompositeOverItself::",
        r"test_objectstore_suites\.py::Test(WriteBack|Memory)::",
        r"test_control_client\.py::TestConformanceAsRoute::",
        r"test_sandbox_conformance\.py::TestBusybox::",
        r"test_textfiles\.py::TestNumbered::",
        quick=8,
    ),
    _sample(
        "searches on every backend besides sqlite and memory",
        r"test_search_matrix\.py::\w+\[(?!sqlite[]-]|memory[]-])",
        quick=6,
    ),
    _sample(
        "directories of thousands of entries, on every backend",
        r"(?<!test_memory\.py)(?<!test_sqlite\.py)::test_(a_directory_of_many_entries|delete_a_wide_and_deep_tree)\b",
        r"::test_a_cancelled_crowd_ends_at_once\b",
        quick=6,
    ),
    _sample("the twins of a verb, on services", r"::Test(SeaweedFS|Postgres|Docker)\w*::test_the_twin_of_", quick=4),
    _sample(
        "threads on a second database",
        r"test_threads_\w+\.py::\w+\[postgres\b",
        r"test_threads_for_people\.py::\w+\[memory\b",
        quick=4,
    ),
    _sample("hostile texts of messages", r"test_threads_hostile\.py::test_no_text_is_another_message\[", quick=6),
    _sample("checkpoints as LangGraph finds them", r"test_threads_\w+\.py::test_every_checkpoint_is_as_\w+\[", quick=4),
    # `test_semantics.py` holds the promises, so all of it runs.
    _sample("", r"mounted/test_semantics\.py::", quick=1),
    _sample(
        "work on mounts of other volumes than sqlite: and memory:",
        r"mounted/\w+\.py::.*\[(dir|foreign|postgres)\b",
        r"mounted/test_(postgres_work|s3)\.py::",
        quick=6,
    ),
    _sample(
        "commands on a second volume or sandbox",
        r"mounted/test_execute\w*\.py::.*\[(memory|modal_sandbox|e2b_sandbox|local)\b",
        quick=4,
    ),
    _sample(
        "races and changes by others, each at another moment",
        r"mounted/test_(execute_races|clock_skew)\.py::",
        r"mounted/test_(control_invalidate|early_end)\.py::\w+\[",
        r"mounted/test_coherence\.py::test_random_changes\w+\[",
        quick=4,
    ),
    _sample(
        "hostile clients, each in another way", r"test_hostile_clients\.py::test_the_mount_and_newcomers\w+\[", quick=4
    ),
    _sample("options and odd names of the command line", r"mounted/test_cli\w*\.py::.*\[", quick=4),
    _sample("agreements with other deepagents and back", r"test_deepagents_(versions|roundtrip)\.py::", quick=3),
    _sample("snippets of README and examples", r"test_(readme|examples)\.py::", quick=3),
    _sample("benchmarks that are run once", r"test_bench\.py::TestScripts::", quick=4),
)
"""The first sample that matches a test's id applies."""


def leaves_out(item: pytest.Item, tier: str, *, sampled: bool) -> str | None:
    """Return the reason why this tier leaves the test out, in the words of the summary, or None."""
    if tier != "all" and item.get_closest_marker("soak") is not None:
        return "soak"
    if tier == "quick" and sampled and item.get_closest_marker("slow") is not None:
        return "slow"
    for sample in SAMPLES if sampled else ():
        if sample.has(item.nodeid):
            left_out = zlib.crc32(item.nodeid.encode(errors="surrogateescape")) % sample.one_in(tier) != 0
            return sample.what if left_out else None
    return None


# -- choosing ----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=sorted(TIERS), help="which tests to take, see tests/support/tiers.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tier") is None:
        config.option.tier = "all" if "soak" in config.option.markexpr else "ci"
    config.stash[LEFT_OUT] = Counter()
    profiles.load(config.getoption("hypothesis_profile", None) or TIERS[config.option.tier])


LEFT_OUT = pytest.StashKey[Counter[str]]()
LONGEST = 25
"""How many modules the summary of a run names, except for `quick`."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = any("::" in argument for argument in config.args)
    kept, gone = [], []
    for item in items:
        why = leaves_out(item, config.option.tier, sampled=not named)
        if why is None:
            kept.append(item)
        else:
            gone.append(item)
            config.stash[LEFT_OUT][why] += 1
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of a worker's left-out tests to the process that reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts of the last worker: all workers collect the same tests."""
    left_out = getattr(node, "workeroutput", {}).get("left_out")
    if left_out:
        node.config.stash[LEFT_OUT] = Counter(left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.tier != "quick":
        seconds: Counter[str] = Counter()
        for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]  # no int
        terminalreporter.section(f"the longest modules of {sum(seconds.values()):,.0f} s", "-")
        for module, spent_s in seconds.most_common(LONGEST):
            terminalreporter.write_line(f"{spent_s:6,.0f} s {module}")
    left_out = config.stash[LEFT_OUT]
    if not left_out:
        return
    terminalreporter.section(f"left out of the tier {config.option.tier}: {left_out.total():,} tests", "-")
    for what, count in left_out.most_common():
        terminalreporter.write_line(f"{count:6,} {what}")
    terminalreporter.write_line(f"Hypothesis profile: {TIERS[config.option.tier]}. `make test-all` runs everything.")


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
