"""Amounts of work: hypothesis profiles, and the repetitions of tests.

Two profiles: `day` is `make test`'s, `night` that of `make test-all`; `tiers.py` loads one. A test gives a number of
examples, and gets a part of it by day and a multiple at night. What it expects must hold for any amount:

    @settings(max_examples=examples(150))
    ROUNDS = amount("FUSEBACKEND_CRASH_ROUNDS", day=50, night=200)

A variable of the environment overrides the profile:
`FUSEBACKEND_EXAMPLES=1000 pytest tests/unit/volumes/test_volume_model.py`.
The variable is read when a test's module is imported, which is after a profile was loaded.
"""

from __future__ import annotations

import os

import hypothesis

FULL = 100
"""The `max_examples` of a profile that makes as many as a test says. By day there are fewer, others in each run,
and machines find planted faults in a tenth of them; by night there are more."""

# No deadline for one example, and none for making its values: a busy machine is slow at some of them. A fixture is for
# all examples of a test, which makes what differs itself. No database: runs do not depend on each other, and workers
# write no common files.
_SETTINGS = hypothesis.settings(
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.register_profile("day", _SETTINGS, max_examples=60)
hypothesis.settings.register_profile("night", _SETTINGS, max_examples=5 * FULL)


_loaded = "day"


def load(profile: str) -> None:
    """Make `profile` (`day` or `night`) the one of this process."""
    global _loaded
    hypothesis.settings.load_profile(profile)
    _loaded = profile


def examples(count: int) -> int:
    """Scale `count` to the present profile: three fifths of it by day, five times as many by night."""
    wanted = os.environ.get("FUSEBACKEND_EXAMPLES")
    if wanted is not None:
        return int(wanted)
    return count * hypothesis.settings.get_profile(_loaded).max_examples // FULL


def amount(variable: str, *, day: int, night: int) -> int:
    """Return the number in the environment's `variable`; where it is not set, that of the profile."""
    wanted = os.environ.get(variable)
    return int(wanted) if wanted is not None else {"day": day, "night": night}[_loaded]
