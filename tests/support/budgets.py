"""Seconds that the tests of a module may take by day, all together. A run names the modules that take longer.

The figures are those of two quiet cores, rounded up. A module that needs more than `USUAL_S` stands in `LONGER`, with
the reason: it is where the next cut is worth most.
"""

from __future__ import annotations

USUAL_S = 20

LONGER: dict[str, int] = {}


def of(module: str) -> int:
    """Return the budget of a test module, given as its path from the checkout, in seconds."""
    return LONGER.get(module, USUAL_S)
