"""Amounts of work: hypothesis profiles, and the repetitions of tests.

Three profiles. `dev` is `make test`'s, `ci` that of `.ci/run`, `soak` that of `make test-all`; `tiers.py` loads the one
of the tier. A test gives its number of examples for the profile `ci`, and gets a share of them with `dev` and a
multiple with `soak`:

    @settings(max_examples=examples(150))
    ROUNDS = amount("FUSEBACKEND_CRASH_ROUNDS", dev=5, ci=50, soak=200)

A variable of the environment overrides the profile:
`FUSEBACKEND_EXAMPLES=1000 pytest tests/unit/volumes/test_volume_model.py`.
The variable is read when a test's module is imported, which is after a profile was loaded.
"""

from __future__ import annotations

import os

import hypothesis

CI_EXAMPLES = 100
"""hypothesis' own default; the other profiles are relative to it."""

FEWEST_EXAMPLES = 5

# No deadline for one example: a machine that is busy is slow at some of them. No database: runs do not depend on each
# other, and workers write no common files.
hypothesis.settings.register_profile("dev", max_examples=20, deadline=None, database=None)
hypothesis.settings.register_profile("ci", max_examples=CI_EXAMPLES, deadline=None, database=None)
hypothesis.settings.register_profile("soak", max_examples=5 * CI_EXAMPLES, deadline=None, database=None)


_loaded = "ci"


def load(profile: str) -> None:
    """Make `profile` (`dev`, `ci` or `soak`) the one of this process."""
    global _loaded
    hypothesis.settings.load_profile(profile)
    _loaded = profile


def examples(count: int) -> int:
    """Scale `count`, the number of examples for the profile `ci`, to the present profile."""
    wanted = os.environ.get("FUSEBACKEND_EXAMPLES")
    if wanted is not None:
        return int(wanted)
    return max(FEWEST_EXAMPLES, count * hypothesis.settings.get_profile(_loaded).max_examples // CI_EXAMPLES)


def amount(variable: str, *, dev: int, ci: int, soak: int) -> int:
    """Return the number in the environment's `variable`; where it is not set, that of the profile."""
    wanted = os.environ.get(variable)
    return int(wanted) if wanted is not None else {"dev": dev, "ci": ci, "soak": soak}[_loaded]
