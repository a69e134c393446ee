"""Waits of a random length leave the program's own random numbers alone."""

from __future__ import annotations

import random

from fusebackend.base import jitter


def test_numbers_lie_between_two_and_differ() -> None:
    found = [jitter.between(0.5, 1.5) for _ in range(100)]
    assert all(0.5 <= number <= 1.5 for number in found)
    assert len(set(found)) > 50


def test_a_program_that_has_seeded_its_numbers_gets_the_same_ones() -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    jitter.between(0, 1)
    assert random.random() == expected
