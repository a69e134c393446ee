"""Checkpoint databases, each with the backend over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from threadcases import KINDS, Bench, bench, where_of


@pytest.fixture(params=KINDS)
def b(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with bench(request.param, where_of(request, request.param, tmp_path)) as made:
        yield made
